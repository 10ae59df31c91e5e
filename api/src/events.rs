//! The log itself, in pages. A server also streams it live.

use crate::{About, ConversationName, Method, Noun, Operation, Page, Requester, Work};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::json::Raw;
use everturn_engine::{ConversationChange, Order, Tenant, TenantChanges, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Reads the log, or follows it.
///
/// A search for `kinds` reads a bounded part of the log at a time, so a page may be short, or empty, before the end: go on
/// until `next` is null.
///
/// With `Accept: text/event-stream`, everything from `from` on is sent, then new events as they come, without
/// gaps and without repetition. `id:` is the position to resume after, to be sent back as `Last-Event-ID`; it
/// may be inside a turn. `resume_from` is the same as a number for `from`; open turns then start over. `event:`
/// is one of
/// `event` (data: an event of the log),
/// `chunk` (a chunk of an open turn: `turn`, `turn_seq`, `offset` in bytes, `text`),
/// `lagged` (the reader was too slow and is disconnected: `resume_from`),
/// `deleted` (the conversation was deleted),
/// `stopping` (the server is shutting down: `resume_from`) or
/// `error` (a problem).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListEvents {
    /// The conversation.
    pub conversation: ConversationName,
    /// `seq` of the first event; by default the first one, or with `order` `desc` the last.
    #[serde(default, deserialize_with = "everturn_core::json::place")]
    pub from: Option<u64>,
    /// Only events of these kinds, such as `compaction` or `context.receipt`. Not for a live stream.
    #[serde(default, alias = "kind")]
    pub kinds: Vec<String>,
    /// Oldest or newest first. A live stream is always oldest first.
    #[serde(default)]
    pub order: Order,
    /// Maximum number of events, 50 by default; a live stream has no limit.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<usize>,
}

impl Operation for ListEvents {
    type Answer = Page<Event>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Events,
        "list_events",
        "/conversations/{conversation}/events",
        "Read the log",
        "A page; `next` is the next page's `from`. Or a live stream.",
    )
    .work(Work::Page)
    .streams();

    async fn run(self, requester: &Requester) -> Result<Page<Event>, Error> {
        let chat = requester.conversation(&self.conversation)?;
        let limit = self.limit.unwrap_or(50);
        if !self.kinds.is_empty() || self.order == Order::Descending {
            let page = chat.log().find(&self.kinds, self.from, self.order, limit)?;
            return Ok(Page { data: page.data, next: page.next.map(|next| next.to_string()) });
        }
        let from = self.from.unwrap_or(1).max(1);
        let data = chat.log().read(from - 1, limit)?;
        let next = match data.last() {
            Some(last) if !chat.log().read(last.seq, 1)?.is_empty() => Some((last.seq + 1).to_string()),
            _ => None,
        };
        Ok(Page { data, next })
    }
}

/// Lists conversations that were created, changed or deleted, or follows them.
///
/// With `Accept: text/event-stream`, the changes since `since` are sent, then new ones as they come; changes in quick
/// succession are one. `id:` is the position to resume after, to be sent back as `Last-Event-ID`. `event:` is one of
/// `ready` (the stream has begun: `next`),
/// `created`, `changed` or `deleted` (data: a change as in `data`),
/// `reset` (too much has changed: list the conversations again),
/// `stopping` (the server is shutting down) or
/// `error` (a problem).
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListChanges {
    /// Position to go on from: `next` of an earlier answer. By default a stream begins now, and an answer holds
    /// nothing but the position.
    pub since: Option<Timestamp>,
}

impl Operation for ListChanges {
    type Answer = TenantChanges;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Events,
        "list_changes",
        "/events",
        "Follow all conversations",
        "What changed since; `next` is the next request's `since`. Or a live stream.",
    )
    .counts()
    .work(Work::Page)
    .streams();

    async fn run(self, requester: &Requester) -> Result<TenantChanges, Error> {
        let mut changes = requester.tenant.changes(self.since).read()?;
        changes.data = changes.data.into_iter().map(|change| shown(requester, change)).collect();
        Ok(changes)
    }
}

/// A change as the caller may see it.
pub fn shown(requester: &Requester, mut change: ConversationChange) -> ConversationChange {
    change.conversation = change.conversation.map(|conversation| requester.shown(conversation));
    change
}

/// Appends an event that is not a turn.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"kind": "snapshot_created", "body": {"path": "/tmp/a.png"}}))]
pub struct AppendEvent {
    /// The conversation.
    pub conversation: ConversationName,
    /// Kind of the event: `tool.started`, `tool.finished`, or one of your own. Kinds that change turns or
    /// conversations have their own operations.
    pub kind: String,
    /// Actor that caused it.
    pub actor: Option<String>,
    /// Body, kept byte for byte.
    pub body: Raw,
}

impl Operation for AppendEvent {
    type Answer = Event;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Events,
        "append_event",
        "/conversations/{conversation}/events",
        "Append an event that is not a turn",
        "The event.",
    )
    .creates()
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Event, Error> {
        let append = move |tenant: &Tenant| {
            Ok(self.conversation.find(tenant)?.log().append(&self.kind, self.actor, self.body))
        };
        requester.writing(append).await
    }
}
