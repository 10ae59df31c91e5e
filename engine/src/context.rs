//! Contexts for model calls: [`options`] say what is wanted, [`build`] puts it together, [`render`] writes it for a provider,
//! [`receipts`] proves and replays it, [`projecting`] is the view of the messages.

mod build;
mod options;
mod projecting;
mod receipts;
mod render;
mod transcripts;

pub use build::Context;
pub(crate) use build::names;
pub use options::{ContextOptions, Digest, RecallRequest};
pub use projecting::Projection;
pub(crate) use projecting::check_projection;
pub use receipts::{Receipt, ReceiptPolicy};
pub(crate) use receipts::{erased, is_given};
pub(crate) use render::StoredMedia;
pub(crate) use transcripts::Transcripts;

use crate::conversation::ConversationHandle;

/// The contexts of a conversation.
pub struct ConversationContexts<'a>(pub(crate) &'a ConversationHandle);
