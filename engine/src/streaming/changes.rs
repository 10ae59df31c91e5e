//! A tenant's stream of changes: conversations that were created, changed or deleted, each with its head.
//!
//! It reports current states, not single changes: quick changes of one conversation are reported once. A reader that was
//! away or too slow reads the list of conversations from its position on, so nothing is queued for it.

use super::hub::through_outages;
use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::event::kind;
use everturn_core::id::{ConversationId, TenantName};
use everturn_core::time::Timestamp;
use everturn_store::{ChangedConversation, ConversationQuery, ListOrder};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{Receiver, Sender};

/// Changes kept for a slow reader; one that is slower reads the list again.
const AHEAD_MAX: usize = 1024;

/// Most conversations that a reader catches up with one by one.
const CATCH_UP_MAX: usize = 1000;

/// A commit carries the time at which it was requested, so one that waited may be older than its neighbours.
const OVERLAP_US: i64 = 10_000_000;

/// Change of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new.
    Created,
    /// It has new events.
    Changed,
    /// It was deleted.
    Deleted,
}

/// A conversation that changed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ConversationChange {
    /// Kind of change.
    pub change: ChangeKind,
    /// Its id.
    pub id: ConversationId,
    /// `seq` of its last event.
    pub seq: u64,
    /// Time of its last event, or of its deletion.
    pub at: Timestamp,
    /// The conversation as it is now; null if it was deleted.
    pub conversation: Option<Conversation>,
}

/// The changes of a tenant since a position.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct TenantChanges {
    /// Conversations that changed, in order of time. One that changed just before the position may be here again.
    pub data: Vec<ConversationChange>,
    /// The position to go on from.
    pub next: Timestamp,
    /// Whether more has changed than is told here: list the conversations instead.
    pub reset: bool,
}

#[derive(Clone, Copy)]
enum Note {
    Created(ConversationId),
    Changed(ConversationId),
    Deleted {
        id: ConversationId,
        seq: u64,
    },
    /// Another process wrote something.
    Elsewhere,
}

/// Tenants whose changes are followed.
#[derive(Default)]
pub struct ChangeHub {
    tenants: Mutex<HashMap<TenantName, Followed>>,
}

struct Followed {
    notes: Sender<Note>,
    /// In a read-only process: the newest change that it has seen.
    newest: Option<Newest>,
}

/// The last changed conversation with its head, and the number of deleted ones.
type Newest = (Option<(ConversationId, u64)>, usize);

impl Observer for ChangeHub {
    fn committed(&self, commit: &Observed<'_>) {
        let (id, conversation) = (commit.key.id, &commit.committed.conversation);
        let note = match commit.deleted {
            true => Note::Deleted { id, seq: conversation.head.seq },
            false if commit.has(|kind| matches!(kind, kind::CREATED | kind::FORKED)) => Note::Created(id),
            false => Note::Changed(id),
        };
        self.note(&commit.key.tenant, note);
    }

    fn changed_elsewhere(&self, change: &ChangedConversation) {
        let id = change.key.id;
        let note = match (change.deleted, change.created) {
            (true, _) => Note::Deleted { id, seq: change.head_seq },
            (false, true) => Note::Created(id),
            (false, false) => Note::Changed(id),
        };
        self.note(&change.key.tenant, note);
    }
}

impl ChangeHub {
    fn note(&self, tenant: &TenantName, note: Note) {
        let mut tenants = self.tenants.lock();
        if tenants.get(tenant).is_some_and(|followed| followed.notes.send(note).is_err()) {
            tenants.remove(tenant);
        }
    }

    fn join(&self, tenant: &TenantName) -> Receiver<Note> {
        let mut tenants = self.tenants.lock();
        let new = || Followed { notes: Sender::new(AHEAD_MAX), newest: None };
        tenants.entry(tenant.clone()).or_insert_with(new).notes.subscribe()
    }

    /// Ends every subscription.
    pub fn close(&self) {
        self.tenants.lock().clear();
    }
}

/// In a read-only process: wakes the readers of tenants in which another process has written.
pub fn look_elsewhere(shared: &Shared) -> Result<(), Error> {
    let tenants: Vec<TenantName> = shared.changes.tenants.lock().keys().cloned().collect();
    for tenant in tenants {
        let first = ConversationQuery { limit: 1, order: ListOrder::Changed, ..ConversationQuery::default() };
        let last = shared.journal.index.conversations(&tenant, &first)?.pop();
        let deleted = shared.journal.index.tombstones(&tenant)?.len();
        let newest = (last.map(|conversation| (conversation.id, conversation.head.seq)), deleted);
        let mut followed = shared.changes.tenants.lock();
        let Some(known) = followed.get_mut(&tenant) else { continue };
        if known.newest.replace(newest) != Some(newest) && known.notes.send(Note::Elsewhere).is_err() {
            followed.remove(&tenant);
        }
    }
    Ok(())
}

/// Follows the changes of one tenant: wait, then read.
pub struct ChangeSubscription {
    tenant: Tenant,
    notes: Receiver<Note>,
    waiting: Vec<Note>,
    position: Timestamp,
    /// Whether the list has to be read.
    behind: bool,
    /// Heads that were told lately, so that catching up does not tell them again.
    told: HashMap<ConversationId, u64>,
}

impl ChangeSubscription {
    pub(crate) fn new(tenant: Tenant, after: Option<Timestamp>) -> ChangeSubscription {
        // Joined before the list is read, so that nothing is missed in between.
        let notes = tenant.shared().changes.join(tenant.name());
        let position = after.unwrap_or_else(|| tenant.shared().now());
        let mut told = HashMap::new();
        if after.is_none() && tenant.shared().options.read_only {
            // Such a process always reads the list, which goes back a little: that is not told.
            match tenant.changes_since(position) {
                Ok(known) => told.extend(known.data.iter().map(|change| (change.id, told_as(change)))),
                Err(error) => tracing::debug!(%error, "what changed a moment before is told as well"),
            }
        }
        ChangeSubscription { tenant, notes, waiting: Vec::new(), position, behind: after.is_some(), told }
    }

    /// Position after the last read. Pass it to [`Tenant::changes`] to continue.
    pub fn position(&self) -> Timestamp {
        self.position
    }

    /// Waits for a change; false when the store is closed. Dropping the future loses nothing.
    pub async fn wait(&mut self) -> bool {
        if self.behind || !self.waiting.is_empty() {
            return true;
        }
        match self.notes.recv().await {
            Ok(note) => self.waiting.push(note),
            Err(RecvError::Lagged(_)) => self.behind = true,
            Err(RecvError::Closed) => return false,
        }
        true
    }

    /// Changes since the last read, possibly none. Reads the store.
    pub fn read(&mut self) -> Result<TenantChanges, Error> {
        loop {
            match self.notes.try_recv() {
                Ok(note) => self.waiting.push(note),
                Err(TryRecvError::Lagged(_)) => self.behind = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        let notes = std::mem::take(&mut self.waiting);
        self.behind |= notes.iter().any(|note| matches!(note, Note::Elsewhere));
        let mut changes = through_outages(self.tenant.shared(), || match self.behind {
            true => self.tenant.changes_since(self.position),
            false => Ok(TenantChanges { data: self.resolve(&notes)?, next: self.position, reset: false }),
        })?;
        self.behind = false;
        changes.data.retain_mut(|change| {
            let seq = told_as(change);
            let known = self.told.insert(change.id, seq);
            // By the list, it is new for a while.
            if change.change == ChangeKind::Created && known.is_some_and(|known| known != DELETED) {
                change.change = ChangeKind::Changed;
            }
            known != Some(seq)
        });
        let newest = changes.data.iter().map(|change| change.at).max();
        self.position =
            newest.into_iter().chain([changes.next, self.position]).max().unwrap_or(self.position);
        changes.next = self.position;
        if self.told.len() > 2 * CATCH_UP_MAX {
            self.told.clear();
        }
        Ok(changes)
    }

    /// The conversations as they are now, each once.
    fn resolve(&self, notes: &[Note]) -> Result<Vec<ConversationChange>, Error> {
        let mut kinds: Vec<(ConversationId, ChangeKind)> = Vec::new();
        let mut deleted = Vec::new();
        for note in notes {
            let (id, kind) = match *note {
                Note::Created(id) => (id, ChangeKind::Created),
                Note::Changed(id) => (id, ChangeKind::Changed),
                Note::Deleted { id, seq } => {
                    kinds.retain(|(known, _)| *known != id);
                    deleted.push(ConversationChange {
                        change: ChangeKind::Deleted,
                        id,
                        seq,
                        at: self.tenant.shared().now(),
                        conversation: None,
                    });
                    continue;
                }
                Note::Elsewhere => continue,
            };
            if !kinds.iter().any(|(known, _)| *known == id) {
                kinds.push((id, kind));
            }
        }
        for (id, kind) in kinds {
            match self.tenant.conversation(id).get() {
                Ok(conversation) => deleted.push(changed(kind, conversation)),
                // Deleted since; that is the next change.
                Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        deleted.sort_by_key(|change| change.at);
        Ok(deleted)
    }

    /// The next changes; blocks until there are some. `None` when the store is closed.
    pub fn recv(&mut self) -> Result<Option<TenantChanges>, Error> {
        while crate::model::wait(self.wait()) {
            let changes = self.read()?;
            if changes.reset || !changes.data.is_empty() {
                return Ok(Some(changes));
            }
        }
        Ok(None)
    }
}

/// The head of a deleted conversation.
const DELETED: u64 = u64::MAX;

/// The head as which a change is remembered.
fn told_as(change: &ConversationChange) -> u64 {
    if change.change == ChangeKind::Deleted { DELETED } else { change.seq }
}

fn changed(change: ChangeKind, conversation: Conversation) -> ConversationChange {
    ConversationChange {
        change,
        id: conversation.id,
        seq: conversation.head.seq,
        at: conversation.updated,
        conversation: Some(conversation),
    }
}

impl Tenant {
    /// Follows the tenant's conversations: from now on, or from a position on. Ends when the store is closed.
    pub fn changes(&self, after: Option<Timestamp>) -> ChangeSubscription {
        ChangeSubscription::new(Tenant::within(self.shared().clone(), self.name().clone()), after)
    }

    fn changes_since(&self, since: Timestamp) -> Result<TenantChanges, Error> {
        let now = self.shared().now();
        let from = Timestamp(since.0.saturating_sub(OVERLAP_US));
        let query = ConversationQuery {
            since: Some(from),
            order: ListOrder::Changed,
            limit: CATCH_UP_MAX + 1,
            ..ConversationQuery::default()
        };
        let listed = self.shared().journal.listed(self.name(), &query)?;
        let kind = |conversation: &Conversation| match conversation.created >= from {
            true => ChangeKind::Created,
            false => ChangeKind::Changed,
        };
        let mut data: Vec<ConversationChange> =
            listed.into_iter().map(|conversation| changed(kind(&conversation), conversation)).collect();
        let gone = self.tombstones()?.into_iter().take_while(|gone| gone.deleted >= from);
        data.extend(gone.take(CATCH_UP_MAX + 1).map(|gone| ConversationChange {
            change: ChangeKind::Deleted,
            id: gone.id,
            seq: gone.head.seq,
            at: gone.deleted,
            conversation: None,
        }));
        if data.len() > CATCH_UP_MAX {
            return Ok(TenantChanges { data: Vec::new(), next: now, reset: true });
        }
        data.sort_by_key(|change| change.at);
        // What was told is behind the position once it is older than any commit that may still come.
        let settled = Timestamp(now.0.saturating_sub(OVERLAP_US));
        let newest = data.iter().map(|change| change.at).max();
        let next = newest.into_iter().chain([since, settled]).max().unwrap_or(since);
        Ok(TenantChanges { data, next, reset: false })
    }
}
