//! Answers of models: [`generate`] asks for one and keeps it, [`account`] knows those on their way.

mod account;
mod generate;

pub use account::{Generated, Generating, GenerationState, GenerationStatus, Generations, Progress};
pub use generate::{GenerateOptions, TenantGenerations};
