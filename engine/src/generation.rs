//! Model replies: [`generate`] requests and stores them, [`account`] tracks the running ones.

mod account;
mod generate;
mod options;

pub use account::{Generated, Generating, GenerationState, GenerationStatus, Generations, Progress};
pub use generate::TenantGenerations;
pub use options::{GenerateOptions, Regenerate};
