//! Handle of a tenant.

use crate::caller::Caller;
use crate::context::check_projection;
use crate::conversation::{ConversationHandle, check_by_hand, idempotency};
use crate::everturn::{Inner, Shared};
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Lifecycle, Settings, Tombstone};
use everturn_core::event::{Draft, kind};
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::redaction::RedactionMode;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn};
use everturn_core::write::Action;
use everturn_store::{ConversationQuery, ListOrder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most conversations listed in the error for an ambiguous beginning of an id.
const NAMED_MAX: usize = 3;
/// Number of conversations among which the last one usually is.
const LAST_PAGE: usize = 16;

/// A tenant. No call reaches another tenant's data.
#[derive(Clone)]
pub struct Tenant {
    shared: Arc<Shared>,
    /// Keeps the store open; the store's own threads do not.
    _open: Option<Arc<Inner>>,
    name: TenantName,
    pub(crate) caller: Arc<Caller>,
}
/// Options of a new conversation.
#[derive(Clone, Debug, Default)]
pub struct NewConversation {
    /// Title, metadata, retention, policy, system prompt, …
    pub settings: Settings,
    /// A request repeated with the same key returns the existing conversation.
    pub idempotency_key: Option<String>,
    /// An id of the caller's choice; by default a new one.
    pub id: Option<ConversationId>,
}

/// A conversation with this title.
impl From<&str> for NewConversation {
    fn from(title: &str) -> NewConversation {
        let settings = Settings { title: Some(Some(title.to_string())), ..Settings::default() };
        NewConversation { settings, ..NewConversation::default() }
    }
}

impl From<Settings> for NewConversation {
    fn from(settings: Settings) -> NewConversation {
        NewConversation { settings, ..NewConversation::default() }
    }
}

/// Conversations to list, latest first.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Only conversations with this text in their title.
    pub text: Option<String>,
    /// Only conversations in this state.
    pub state: Option<Lifecycle>,
    /// Only those of this project: its name, or a folder that it is in.
    pub project: Option<String>,
    /// Only those of this agent: its name, or the beginning of it.
    pub agent: Option<String>,
    /// Only those in which something was said at this time or later.
    pub since: Option<Timestamp>,
    /// Only forks of this conversation.
    pub forked_from: Option<ConversationId>,
    /// End of the previous page.
    pub after: Option<(Timestamp, ConversationId)>,
    /// Most conversations of a page.
    pub limit: usize,
}

impl Default for ListQuery {
    fn default() -> ListQuery {
        ListQuery {
            text: None,
            state: None,
            project: None,
            agent: None,
            since: None,
            forked_from: None,
            after: None,
            limit: 50,
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Page_{T}")]
pub struct Page<T, C = u64> {
    /// The entries.
    pub data: Vec<T>,
    /// Pass this as `after` (or `before`, going backwards) to get the next page; null at the end.
    pub next: Option<C>,
}

impl Tenant {
    pub(crate) fn new(inner: Arc<Inner>, name: TenantName) -> Tenant {
        Tenant { shared: inner.shared.clone(), _open: Some(inner), name, caller: Arc::default() }
    }

    /// For the store's own threads, which end when it closes.
    pub(crate) fn within(shared: Arc<Shared>, name: TenantName) -> Tenant {
        Tenant { shared, _open: None, name, caller: Arc::default() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The keys of the store.
    pub fn keys(&self) -> crate::keys::Keys {
        crate::keys::Keys::new(self.shared.clone(), self._open.clone())
    }

    /// Name of the tenant.
    pub fn name(&self) -> &TenantName {
        &self.name
    }

    pub(crate) fn key(&self, id: ConversationId) -> Key {
        Key { tenant: self.name.clone(), id }
    }

    /// Handle of a conversation of this tenant.
    pub fn conversation(&self, id: ConversationId) -> ConversationHandle {
        ConversationHandle::new(self.clone(), id)
    }

    /// Begins a conversation. A title alone is enough: `tenant.create("A trip to Oslo")`.
    pub fn create(&self, new: impl Into<NewConversation>) -> Commit<ConversationHandle> {
        let new = new.into();
        match check_by_hand(&new.settings) {
            Ok(()) => self.create_with(new),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    pub(crate) fn create_with(&self, new: NewConversation) -> Commit<ConversationHandle> {
        let prepared = (|| {
            let settings = new.settings.normalise()?.redacted(RedactionMode::default())?;
            check_projection(&settings)?;
            let request = match new.idempotency_key {
                Some(_) => Some(Hash::of(Raw::of(&settings)?.get().as_bytes())),
                None => None,
            };
            let idempotency = idempotency(self.caller(), new.idempotency_key, request)?;
            let id = match new.id {
                Some(id) => id,
                None => ConversationId(self.shared().journal.source.ulid()?),
            };
            let drafts = self.setting_drafts(kind::CREATED, &settings)?;
            Ok((id, Action::Create { drafts, parent: None, idempotency }))
        })();
        match prepared {
            Ok((id, action)) => self.begun(id, Ok(action)),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// Writes the beginning of a conversation. With an idempotency key it may return an earlier one.
    pub(crate) fn begun(
        &self,
        id: ConversationId,
        action: Result<Action, Error>,
    ) -> Commit<ConversationHandle> {
        let tenant = self.clone();
        self.conversation(id)
            .write(action, move |committed| Ok(tenant.conversation(committed.conversation.id)))
    }

    /// Events for new settings; the prompt's fingerprint comes first, if one is set.
    pub(crate) fn setting_drafts(
        &self,
        kind: &'static str,
        settings: &Settings,
    ) -> Result<Vec<Draft>, Error> {
        let mut drafts = Vec::new();
        if let Some(Some(prompt)) = &settings.system_prompt {
            let fingerprint = serde_json::json!({"sha256": prompt.sha256, "bytes": prompt.bytes});
            drafts.push(Draft {
                role: Some(Role::System),
                ..self.shared().draft(kind::SYSTEM_PROMPT, &fingerprint)?
            });
        }
        drafts.push(self.shared().draft(kind, settings)?);
        drafts.iter().try_for_each(Draft::check)?;
        Ok(drafts)
    }

    /// Conversations, by the time of the latest turn, newest first.
    pub fn list(&self, query: ListQuery) -> Result<Page<Conversation, (Timestamp, ConversationId)>, Error> {
        let limit = page_limit(query.limit)?;
        let store_query = ConversationQuery {
            text: query.text,
            state: query.state,
            project: query.project,
            agent: query.agent,
            since: query.since,
            parent: query.forked_from,
            after: query.after,
            limit: limit + 1,
            ..ConversationQuery::default()
        };
        let mut data = self.shared().journal.listed(self.name(), &store_query)?;
        let next = more(&mut data, limit, |c: &Conversation| store_query.order.position(c));
        Ok(Page { data, next })
    }

    /// The conversation with the latest turn, or a fork made of it since. One that was begun for a chain of responses only counts if there is no
    /// other.
    fn last(&self) -> Result<ConversationId, Error> {
        let mut query = ConversationQuery { limit: LAST_PAGE, ..ConversationQuery::default() };
        let mut first = None;
        loop {
            let page = self.shared().journal.index.conversations(self.name(), &query)?;
            first = first.or(page.first().map(|conversation| conversation.id));
            let shown = page.iter().find(|conversation| !conversation.is_hidden());
            let is_end = page.len() < query.limit;
            if let Some(shown) = shown {
                return self.latest_fork(shown).map(|fork| fork.unwrap_or(shown.id));
            }
            match first.filter(|_| is_end) {
                Some(id) => return Ok(id),
                None if is_end => {
                    let text = "there is no conversation yet; `everturn new` begins one";
                    return Err(Error::not_found("conversation.none", text));
                }
                None => {
                    query.after = page.last().map(|last| query.order.position(last));
                    query.limit = PAGE_ENTRIES_MAX;
                }
            }
        }
    }

    /// The last fork that was made since the latest turn of a conversation, of it or of one that it is a fork of: whoever
    /// made it goes on there.
    fn latest_fork(&self, conversation: &Conversation) -> Result<Option<ConversationId>, Error> {
        // Nothing was said yet in one that is itself a new fork.
        let (since, mut above) = (conversation.said().max(conversation.created), Some(conversation.id));
        let mut forks = Vec::new();
        while let Some(parent) = above {
            let query = ConversationQuery {
                parent: Some(parent),
                order: ListOrder::Changed,
                since: Some(since),
                limit: LAST_PAGE,
                ..ConversationQuery::default()
            };
            forks.extend(self.shared().journal.index.conversations(self.name(), &query)?);
            above = match self.shared().journal.index.conversation(&self.key(parent)) {
                Ok(conversation) => conversation.parent.map(|parent| parent.conversation),
                // Deleted.
                Err(Error::NotFound(_)) => None,
                Err(error) => return Err(error),
            };
        }
        forks.retain(|fork| fork.id != conversation.id && fork.created >= since && !fork.is_hidden());
        Ok(forks.iter().max_by_key(|fork| (fork.created, fork.id)).map(|fork| fork.id))
    }

    /// Resolves an id as people write it: a whole one, the beginning of one, or `@last` for the one with the
    /// latest turn, or for a fork that was made of it since.
    pub fn resolve(&self, text: &str) -> Result<ConversationId, Error> {
        if text == "@last" {
            return self.last();
        }
        if let Ok(id) = text.parse::<ConversationId>() {
            return self
                .shared()
                .journal
                .index
                .conversation(&self.key(id))
                .map(|conversation| conversation.id);
        }
        let shown = everturn_core::id::clip(text);
        let found = if text.is_empty() {
            Vec::new()
        } else {
            self.shared().journal.index.starting_with(self.name(), text, NAMED_MAX + 1)?
        };
        match found.as_slice() {
            [id] => Ok(*id),
            [] => Err(Error::not_found(
                "conversation.absent",
                format!("no conversation begins with {shown:?}; `list` shows what there is"),
            )),
            several => {
                let ids: Vec<String> = several.iter().take(NAMED_MAX).map(ToString::to_string).collect();
                let others = if several.len() > NAMED_MAX { " or others" } else { "" };
                let text = format!("{shown:?} could be {}{others}; write more of it", ids.join(" or "));
                Err(Error::invalid("conversation.ambiguous", text))
            }
        }
    }

    /// Tombstones of deleted conversations.
    pub fn tombstones(&self) -> Result<Vec<Tombstone>, Error> {
        self.shared().journal.index.tombstones(self.name())
    }

    /// A turn with its message, as the caller sees it.
    pub fn turn(&self, id: TurnId) -> Result<Turn, Error> {
        let turn = self.shared().journal.index.turn(self.name(), id)?;
        let key = Key { tenant: self.name().clone(), id: turn.conversation };
        Ok(self.viewer().turn(self.shared().with_partial(&key, turn)?))
    }

    /// The conversation in which a turn was said, even if the turn itself is damaged. For servers.
    #[doc(hidden)]
    pub fn conversation_of(&self, id: TurnId) -> Result<ConversationId, Error> {
        Ok(self.shared().journal.index.stored_turn(self.name(), id)?.conversation)
    }
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

/// Cursor of the next page. One entry more than wanted was read: if it is there, the page is not the last.
pub(crate) fn more<T, C>(data: &mut Vec<T>, limit: usize, cursor: impl Fn(&T) -> C) -> Option<C> {
    let more = data.len() > limit;
    data.truncate(limit);
    data.last().map(cursor).filter(|_| more)
}
