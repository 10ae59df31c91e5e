//! Compaction: [`compact`] replaces the oldest turns by a checkpoint, [`worker`] does so when a policy asks for it,
//! [`budget`] when an append needs room.

pub mod budget;
mod compact;
pub mod worker;

pub use compact::{CompactOptions, Compacted, Summary};

use crate::conversation::ConversationHandle;

/// The compaction of a conversation.
pub struct ConversationCompaction<'a>(pub(crate) &'a ConversationHandle);
