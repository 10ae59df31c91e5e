//! Facts: what statements in a log add up to, and what a model learns from turns.
//!
//! [`add_up`] makes facts of statements: the same statement again makes a fact surer, another object for the same subject and
//! predicate takes its place. Which statements stand is known to [`state::Fold`](crate::state::Fold), by their places.
//!
//! What a model is asked and may answer is in [`prompt`] and [`read`]; what must not be kept is taken out by [`Redactor`].

mod fold;
mod learn;
mod redactor;

pub use fold::add_up;
pub use learn::{Learned, News, Origin, news, prompt, quotes, read};
pub use redactor::{Redactor, read_redaction, redaction_prompt};
