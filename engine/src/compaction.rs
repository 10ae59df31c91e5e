//! Summarizing the oldest turns: [`compact`] does it, [`worker`] when a policy asks for it, [`budget`] where room must be made.

pub mod budget;
mod compact;
pub mod worker;

pub use compact::{CompactOptions, Compacted, Summary};

use crate::conversation::ConversationHandle;

/// The compaction of a conversation.
pub struct ConversationCompaction<'a>(pub(crate) &'a ConversationHandle);
