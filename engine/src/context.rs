//! Contexts for model calls: [`options`] has the parameters, [`build`] assembles, [`render`] converts to a provider's shape,
//! [`receipts`] records and replays, [`projecting`] projects the messages.

mod build;
mod options;
mod projecting;
mod receipts;
mod render;
mod transcripts;

pub use build::Context;
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
