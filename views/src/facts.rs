//! Facts: derived from the statements in a log, and learned from turns by a model.
//!
//! [`add_up`] derives facts from statements: repeating a statement raises a fact's confidence, another object
//! for the same subject and predicate supersedes it. [`state::Fold`](crate::state::Fold) knows which statements
//! are current, by `seq`.
//!
//! [`prompt`] asks a model for facts and [`read`] parses its reply; [`Redactor`] removes what must not be
//! stored.

mod fold;
mod learn;
mod redactor;

pub use fold::add_up;
pub use learn::{ExtractedFact, FactUpdate, Origin, news, prompt, quotes, read};
pub use redactor::{Redactor, read_redaction, redaction_prompt};
