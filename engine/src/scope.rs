//! What a tenant can do. The tenant is in the handle: no call can reach another's data.
//!
//! What is asked and answered is here; what is done is in `conversations`, `turns` and `reading`.

pub(crate) mod context;
mod conversations;
mod erasing;
mod projecting;
mod reading;
pub(crate) mod receipts;
mod state;
mod turns;

pub(crate) use context::StoredMedia;
pub use context::{Context, ContextOptions, Digest, RecallRequest};
pub use erasing::ErasedActor;
pub use projecting::Projection;
pub use receipts::{Policy, Receipt};

use crate::ingest::Ingested;
use crate::writer::Commit;
use crate::{Inner, Shared};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Settings, State};
use everturn_core::event::{Event, check_name};
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn};
use everturn_core::write::{Action, Idempotency, Write};
use everturn_store::Committed;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tenant's view of the store.
#[derive(Clone)]
pub struct Tenant {
    shared: Arc<Shared>,
    /// Keeps the store open; the store's own threads do not.
    _open: Option<Arc<Inner>>,
    pub(crate) tenant: TenantName,
}

/// How a conversation begins.
#[derive(Clone, Debug, Default)]
pub struct NewConversation {
    /// Title, metadata, retention, policy, system prompt, …
    pub settings: Settings,
    /// Makes a repeated request harmless.
    pub idempotency_key: Option<String>,
    /// An id of the caller's choice; by default a new one.
    pub id: Option<ConversationId>,
}

/// What is to be different about a conversation.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Title, metadata, retention, policy, system prompt, …
    pub settings: Settings,
    /// Put away, brought back, given up or ended.
    pub state: Option<State>,
    /// Why the state changes.
    pub reason: Option<String>,
    /// Refuse unless the log ends here: nobody changed it since it was read.
    pub expected_seq: Option<u64>,
}

/// How turns are appended.
#[derive(Clone, Debug, Default)]
pub struct AppendOptions {
    /// Refuse unless the log ends here.
    pub expected_seq: Option<u64>,
    /// Makes a repeated request harmless, also after a restart.
    pub idempotency_key: Option<String>,
}

/// What an append did.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Appended {
    /// The turns, with their ids and places.
    pub turns: Vec<Turn>,
    /// Where the log ends now.
    pub head: Head,
    /// Whether this had been appended before, under the same idempotency key.
    pub repeated: bool,
}

/// How a streamed turn begins.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewStream {
    /// Who speaks.
    pub actor: Option<String>,
    /// In which role; the assistant's by default.
    pub role: Option<Role>,
    /// Which model speaks.
    pub model: Option<String>,
    /// Whatever else is to be kept with it.
    pub metadata: BTreeMap<String, Raw>,
    /// Repeated with the same key, the turn that is there is given.
    pub idempotency_key: Option<String>,
}

/// In which direction a page goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum Order {
    /// Oldest first.
    #[default]
    #[serde(rename = "asc")]
    Ascending,
    /// Newest first.
    #[serde(rename = "desc")]
    Descending,
}

/// Which part of a history to read.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryQuery {
    /// Only what comes before this place.
    #[serde(deserialize_with = "everturn_core::json::place")]
    pub before: Option<u64>,
    /// Only what comes after this place.
    #[serde(deserialize_with = "everturn_core::json::place")]
    pub after: Option<u64>,
    /// At most this many.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: usize,
    /// Oldest or newest first.
    pub order: Order,
    /// Only turns of these actors, if any are named.
    #[serde(alias = "actor")]
    pub actors: Vec<String>,
    /// Also superseded turns.
    pub include_superseded: bool,
    /// Also events that are not turns.
    pub include_events: bool,
}

impl Default for HistoryQuery {
    fn default() -> HistoryQuery {
        HistoryQuery {
            before: None,
            after: None,
            limit: 50,
            order: Order::Ascending,
            actors: Vec::new(),
            include_superseded: false,
            include_events: false,
        }
    }
}

/// Which conversations to list: last changed first.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Only those whose title contains this.
    pub text: Option<String>,
    /// Only those in this state.
    pub state: Option<State>,
    /// Where the page before ended.
    pub after: Option<(Timestamp, ConversationId)>,
    /// At most this many.
    pub limit: usize,
}

impl Default for ListQuery {
    fn default() -> ListQuery {
        ListQuery { text: None, state: None, after: None, limit: 50 }
    }
}

/// One entry of a history.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Entry {
    /// Something said.
    Turn(Box<Turn>),
    /// Something else that happened.
    Event(Box<Event>),
}

/// Only an event says of which kind it is. The text is kept until that is known: what is said keeps its bytes.
impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entry, D::Error> {
        #[derive(Deserialize)]
        struct Kind {
            kind: Option<serde::de::IgnoredAny>,
        }
        let raw = Raw::deserialize(deserializer)?;
        let entry = match raw.read::<Kind>() {
            Some(Kind { kind: Some(_) }) => serde_json::from_str(raw.get()).map(Entry::Event),
            _ => serde_json::from_str(raw.get()).map(Entry::Turn),
        };
        entry.map_err(serde::de::Error::custom)
    }
}

impl Entry {
    /// Its place in the log.
    pub fn seq(&self) -> u64 {
        match self {
            Entry::Turn(turn) => turn.seq,
            Entry::Event(event) => event.seq,
        }
    }
}

/// A part of a list, and where the next part begins.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Page_{T}")]
pub struct Page<T, C = u64> {
    /// The entries.
    pub data: Vec<T>,
    /// Hand this in as `after` (or `before`, going backwards) to go on; null at the end.
    pub next: Option<C>,
}

impl Tenant {
    pub(crate) fn new(inner: Arc<Inner>, tenant: TenantName) -> Tenant {
        Tenant { shared: inner.shared.clone(), _open: Some(inner), tenant }
    }

    /// For the store's own threads, which end when it closes.
    pub(crate) fn within(shared: Arc<Shared>, tenant: TenantName) -> Tenant {
        Tenant { shared, _open: None, tenant }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Tells whose list of conversations has changed, as [`Everturn::listings`](crate::Everturn::listings) does.
    pub fn listings(&self) -> crate::Listings {
        crate::Listings(self.shared.listed.clone())
    }

    /// The keys of the store.
    pub fn keys(&self) -> crate::Keys {
        crate::Keys::new(self.shared.clone(), self._open.clone())
    }

    /// Whose view this is.
    pub fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    pub(crate) fn key(&self, id: ConversationId) -> Key {
        Key { tenant: self.tenant.clone(), id }
    }

    pub(crate) fn write<T: 'static>(
        &self,
        id: ConversationId,
        action: Result<Action, Error>,
        read: impl FnOnce(Committed) -> Result<T, Error> + Send + 'static,
    ) -> Commit<T> {
        let key = self.key(id);
        Commit::new(action.and_then(|action| self.shared().submit(Write { key, action }, Vec::new())), read)
    }

    /// Appends turns, or ends an open one, with everything that goes along.
    pub(crate) fn append_with(
        &self,
        id: ConversationId,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Commit<Appended> {
        self.append_to(id, self.shared().conversation(&self.key(id)), options, request, fill)
    }

    fn append_to(
        &self,
        id: ConversationId,
        conversation: Result<Arc<Conversation>, Error>,
        options: AppendOptions,
        request: Result<Option<Hash>, Error>,
        fill: impl FnOnce(&Conversation, &mut Ingested) -> Result<(), Error>,
    ) -> Commit<Appended> {
        let mut ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
        let prepared = (|| {
            let idempotency = idempotency(options.idempotency_key, request?)?;
            let conversation = conversation?;
            fill(&conversation, &mut ingested)?;
            let room = self.make_room(&conversation, &ingested.drafts, "append")?;
            ingested.drafts.splice(..0, room);
            Ok(idempotency)
        })();
        let submitted = match prepared {
            Err(error) => {
                self.shared().uploaded(&ingested.uploads);
                Err(error)
            }
            Ok(idempotency) => {
                let action = Action::Append {
                    drafts: ingested.drafts,
                    expected_seq: options.expected_seq,
                    idempotency,
                };
                self.shared().submit(Write { key: self.key(id), action }, ingested.uploads)
            }
        };
        Commit::new(submitted, |committed| {
            Ok(Appended {
                turns: committed.events.iter().filter_map(Turn::begun).collect(),
                head: committed.conversation.head,
                repeated: committed.repeated,
            })
        })
    }
}

fn idempotency(key: Option<String>, request: Option<Hash>) -> Result<Option<Idempotency>, Error> {
    let (Some(key), Some(request)) = (key, request) else { return Ok(None) };
    check_name("idempotency key", &key)?;
    Ok(Some(Idempotency { key, request, only_repeat: None }))
}

pub(crate) fn page_limit(limit: usize) -> Result<usize, Error> {
    match limit {
        0 => Err(Error::invalid("limit.zero", "limit is 0; ask for at least 1")),
        limit if limit > PAGE_ENTRIES_MAX => Err(Error::limit(
            "PAGE_ENTRIES_MAX",
            PAGE_ENTRIES_MAX as u64,
            limit as u64,
            "ask for fewer, or read in several pages",
        )),
        limit => Ok(limit),
    }
}

/// One entry more than wanted was read: if it is there, the page is not the last.
pub(crate) fn more<T, C>(data: &mut Vec<T>, limit: usize, cursor: impl Fn(&T) -> C) -> Option<C> {
    let more = data.len() > limit;
    data.truncate(limit);
    data.last().map(cursor).filter(|_| more)
}
