//! Contexts for model calls: [`build`] puts one together, [`receipts`] proves and replays it, [`projecting`] is the view of the messages.

mod build;
mod projecting;
mod receipts;
mod transcripts;

pub use build::{Context, ContextOptions, Digest, RecallRequest};
pub(crate) use build::{StoredMedia, names};
pub use projecting::Projection;
pub(crate) use projecting::check_projection;
pub(crate) use receipts::erased;
pub use receipts::{Policy, Receipt};
pub(crate) use transcripts::Transcripts;

use crate::conversation::ConversationHandle;

/// The contexts of a conversation.
pub struct ConversationContexts<'a>(pub(crate) &'a ConversationHandle);
