//! Model replies: [`generate`] requests and stores them, [`account`] tracks the running ones.

mod account;
mod generate;
mod options;

pub use account::{
    Generated, Generating, GenerationProgress, GenerationState, GenerationStatus, Generations,
};
pub use generate::TenantGenerations;
pub use options::{GenerateOptions, Regenerate};
