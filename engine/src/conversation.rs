//! Handle of a conversation. `append` and `turns` append, `reading` reads, `settings` changes, forks and deletes,
//! `state` reads and sets the state; other methods are in the folders of their features.

mod append;
pub(crate) mod due;
mod reading;
mod settings;
mod state;
mod turns;

pub use append::{Append, AppendOptions, Appended};
pub use reading::{HistoryEntry, HistoryQuery, Order};
pub(crate) use settings::check_by_hand;
pub use settings::{Change, ForkOptions};
pub use state::{ApprovalOutcome, ConversationState};

use crate::assets::ConversationAssets;
use crate::caller::Caller;
use crate::compaction::ConversationCompaction;
use crate::context::ConversationContexts;
use crate::everturn::Shared;
use crate::facts::ConversationFacts;
use crate::proof::ConversationLog;
use crate::streaming::turn::OpenTurnHandle;
use crate::tenant::Tenant;
use crate::transfer::ConversationSession;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::check_name;
use everturn_core::id::{ConversationId, Key, TurnId};
use everturn_core::redaction;
use everturn_core::write::{Action, Idempotency};
use everturn_store::Committed;
use std::sync::Arc;

/// A conversation, by [`Tenant::conversation`]. It is cheap to make and to clone, and reads nothing by itself: the
/// first call reports a conversation that does not exist.
#[derive(Clone)]
pub struct ConversationHandle {
    pub(crate) tenant: Tenant,
    key: Key,
}

impl ConversationHandle {
    pub(crate) fn new(tenant: Tenant, id: ConversationId) -> ConversationHandle {
        let key = tenant.key(id);
        ConversationHandle { tenant, key }
    }

    /// The conversation's id.
    pub fn id(&self) -> ConversationId {
        self.key.id
    }

    /// State: pins, approvals, running tools, the system prompt.
    pub fn state(&self) -> ConversationState<'_> {
        ConversationState(self)
    }

    /// Facts learned from it, or stated by hand.
    pub fn facts(&self) -> ConversationFacts<'_> {
        ConversationFacts(self)
    }

    /// Images, documents and other bytes that belong to it.
    pub fn assets(&self) -> ConversationAssets<'_> {
        ConversationAssets(self)
    }

    /// Contexts for model calls, their receipts, and projections.
    pub fn contexts(&self) -> ConversationContexts<'_> {
        ConversationContexts(self)
    }

    /// Checkpoints of older turns, and the budgets that ask for them.
    pub fn compaction(&self) -> ConversationCompaction<'_> {
        ConversationCompaction(self)
    }

    /// Stored events and their verification.
    pub fn log(&self) -> ConversationLog<'_> {
        ConversationLog(self)
    }

    /// Entries of a session.
    pub fn session(&self) -> ConversationSession<'_> {
        ConversationSession(self)
    }

    /// A turn that was opened by [`open`](ConversationHandle::open) and is streamed.
    pub fn open_turn(&self, turn: TurnId) -> OpenTurnHandle<'_> {
        OpenTurnHandle::new(self, turn)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.tenant.shared()
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn write<T: 'static>(
        &self,
        action: Result<Action, Error>,
        read: impl FnOnce(Committed) -> Result<T, Error> + Send + 'static,
    ) -> Commit<T> {
        let key = self.key.clone();
        Commit::new(action.and_then(|action| self.tenant.submit(key, action, Vec::new())), read)
    }
}

/// Code for "not answered before", of a request that is only looked up.
pub(crate) const UNANSWERED: &str = "idempotency.unanswered";

/// The key of a request that the caller may send again. Others who choose the same key mean another request.
pub(crate) fn idempotency(
    caller: &Caller,
    key: Option<String>,
    request: Option<Hash>,
) -> Result<Option<Idempotency>, Error> {
    let (Some(mut key), Some(request)) = (key, request) else { return Ok(None) };
    check_name("idempotency key", &key)?;
    // Not masked as other names are: the mode may be another one when the request is sent again.
    if redaction::mask(&key, &mut Vec::new()) != key {
        key = Hash::of(key.as_bytes()).to_string();
    }
    Ok(Some(Idempotency { key: caller.own_key(&key), request, only_repeat: None }))
}

/// The action for a request that cannot be prepared: if it was answered before, its answer is repeated.
pub(crate) fn repeat_or(error: Error, asked: Option<Idempotency>) -> Result<Action, Error> {
    match (asked, &error) {
        // The store may have no answer at all.
        (_, Error::Busy(_) | Error::Corrupt(_) | Error::Internal(_)) | (None, _) => Err(error),
        (Some(asked), _) => Ok(Action::Append {
            drafts: Vec::new(),
            expected_seq: None,
            prepared_for: None,
            idempotency: Some(Idempotency { only_repeat: Some(error), ..asked }),
        }),
    }
}
