//! Facts: [`statements`] adds, corrects and lists them, [`extract`] has a model learn them from turns, [`findable`] says what events change about
//! which of them can be found.

mod extract;
mod findable;
mod statements;

pub use extract::ExtractOptions;
pub use statements::{Correction, Extraction, FactQuery, NewFact};

use crate::conversation::ConversationHandle;

/// The facts of a conversation.
pub struct ConversationFacts<'a>(pub(crate) &'a ConversationHandle);
