//! Model replies: [`generate`] requests and stores them, [`account`] tracks the running ones.

mod account;
mod generate;

pub use account::{Generated, Generating, GenerationState, GenerationStatus, Generations, Progress};
pub use generate::{GenerateOptions, Regenerate, TenantGenerations};
