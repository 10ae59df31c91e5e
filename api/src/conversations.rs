//! Conversations: create, find, change, fork, delete.

use crate::decode::present;
use crate::{About, ConversationName, Method, Noun, Operation, Page, Requester, Work};
use everturn_core::Error;
use everturn_core::conversation::{
    Conversation, Lifecycle, Retention, Settings, SystemPrompt, Tombstone, fork_title,
};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::message::{self, MessagePart};
use everturn_core::redaction;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use everturn_engine::{Change, ForkOptions, HistoryEntry, HistoryQuery, ListQuery, NewConversation, Tenant};
use everturn_views::speech;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Creates a conversation. Every field is optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"title": "Trip to Lisbon", "system_prompt": "You plan trips.", "metadata": {"project": "holidays"}}))]
pub struct CreateConversation {
    /// An id of your choice; by default a new one.
    pub id: Option<ConversationId>,
    /// Title for people.
    pub title: Option<String>,
    /// Owner within the tenant.
    pub owner: Option<String>,
    /// Actors that take part from the beginning; others join by speaking.
    #[serde(default)]
    pub participants: Vec<String>,
    /// Metadata of your choice.
    #[serde(default)]
    pub metadata: BTreeMap<String, Raw>,
    /// Time to live: seconds after the last change until it is deleted.
    pub ttl: Option<u64>,
    /// Retention of content.
    pub retention: Option<Retention>,
    /// Policies by name: `compaction`, `budget`, `facts`, `redaction`, `projection`,
    /// `abandon_tools_after_s`.
    #[serde(default)]
    pub policy: BTreeMap<String, Raw>,
    /// Instructions for the whole conversation.
    pub system_prompt: Option<String>,
    /// Idempotency key of your choice: a repeated request with the same key is executed once, also after a
    /// restart.
    pub idempotency_key: Option<String>,
}

impl Operation for CreateConversation {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Conversations,
        "create_conversation",
        "/conversations",
        "Begin a conversation",
        "It began.",
    )
    .creates()
    .once()
    .work(Work::Quick)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        let settings = Settings {
            title: self.title.map(Some),
            owner: self.owner.map(Some),
            participants: self.participants,
            metadata: self.metadata,
            ttl: self.ttl.map(Some),
            retention: self.retention,
            policy: self.policy,
            system_prompt: self.system_prompt.map(SystemPrompt::new).map(Some),
            ..Settings::default()
        };
        let new = NewConversation { settings, idempotency_key: self.idempotency_key, id: self.id };
        let chat = requester.committed(requester.tenant.create(new)).await?;
        requester.blocking(move |_| chat.get()).await
    }

    fn tag(answer: &Conversation) -> Option<String> {
        Some(version(answer))
    }

    fn location(_: &str, answer: &Conversation) -> Option<String> {
        Some(place(answer))
    }
}

/// A conversation's version: the `seq` of its last event.
pub(crate) fn version(conversation: &Conversation) -> String {
    conversation.head.seq.to_string()
}

/// URL path of a conversation.
pub(crate) fn place(conversation: &Conversation) -> String {
    format!("/conversations/{}", conversation.id)
}

/// Lists conversations, by the time of the latest turn (`last_said`, or `created` before there is one), newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListConversations {
    /// Only those whose title contains this text: ASCII letters in any case, all others exactly.
    pub query: Option<String>,
    /// Only those in this state.
    pub state: Option<Lifecycle>,
    /// Only those of this project: its name (the last part of its path), or a folder that it is in. A project is
    /// `metadata.project`, or the folder of an imported session.
    pub project: Option<String>,
    /// Only those of this agent, such as `codex` or `claude-code`; the beginning of its name is enough. An agent is
    /// `metadata.agent`, or the format of an imported session.
    pub agent: Option<String>,
    /// Only those in which something was said at this time or later.
    pub since: Option<Timestamp>,
    /// Only forks of this conversation.
    pub forked_from: Option<ConversationName>,
    /// Cursor: the `next` of the previous page.
    pub after: Option<String>,
    /// Maximum number of entries; 50 by default.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<usize>,
}

impl Operation for ListConversations {
    type Answer = Page<Conversation>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Conversations,
        "list_conversations",
        "/conversations",
        "List conversations",
        "A page.",
    )
    .counts()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Page<Conversation>, Error> {
        if requester.is_counter() && (self.query.is_some() || self.project.is_some() || self.agent.is_some())
        {
            let text = "`query`, `project` and `agent` search titles and metadata, which a counter may not see; leave them out, or use the key of a reader";
            return Err(Error::forbidden("access.role", text));
        }
        let forked_from = self.forked_from.map(|name| name.find(&requester.tenant)).transpose()?;
        let page = requester.tenant.list(ListQuery {
            text: self.query,
            state: self.state,
            project: self.project,
            agent: self.agent,
            since: self.since,
            forked_from: forked_from.map(|chat| chat.id()),
            after: self.after.as_deref().map(cursor).transpose()?,
            limit: self.limit.unwrap_or(ListQuery::default().limit),
        })?;
        let data = page.data.into_iter().map(|conversation| previewed(requester, conversation));
        let data = data.collect::<Result<_, Error>>()?;
        Ok(Page { data, next: page.next.map(cursor_text) })
    }
}

/// A conversation as the caller may see it, with a preview if it has no title.
fn previewed(requester: &Requester, conversation: Conversation) -> Result<Conversation, Error> {
    let conversation = match requester.is_counter() {
        true => conversation,
        false => with_preview(&requester.tenant, conversation)?,
    };
    Ok(requester.shown(conversation))
}

/// A conversation with a preview if it has no title. Blocks.
fn with_preview(tenant: &Tenant, mut conversation: Conversation) -> Result<Conversation, Error> {
    if conversation.title.is_none() {
        conversation.preview = preview(tenant, &conversation)?;
    }
    Ok(conversation)
}

/// Number of turns that are searched for a preview, and read at once: usually the first or second has it.
const PREVIEW_TURNS_MAX: usize = 20;
const PREVIEW_PAGE: usize = 4;
/// Maximum number of characters of a preview.
const PREVIEW_CHARS_MAX: usize = 80;
/// Number of characters that it is cut from: a secret is masked only where it is read whole.
const PREVIEW_CHARS_READ: usize = 4096;

/// The beginning of what a person said first, for a conversation without a title. That of a fork says so, since its parent
/// begins the same. Secrets are masked: a list is shown to people who look for something else. Blocks.
pub fn preview(tenant: &Tenant, conversation: &Conversation) -> Result<Option<String>, Error> {
    let said = first_said(tenant, conversation.id)?;
    Ok(match conversation.parent {
        Some(parent) => Some(fork_title(&said.unwrap_or_default(), parent.at_seq).trim_start().to_string()),
        None => said,
    })
}

fn first_said(tenant: &Tenant, id: ConversationId) -> Result<Option<String>, Error> {
    let mut query = HistoryQuery { limit: PREVIEW_PAGE, ..HistoryQuery::default() };
    for _ in 0..PREVIEW_TURNS_MAX / PREVIEW_PAGE {
        let page = match tenant.conversation(id).history(query.clone()) {
            // It has just been deleted.
            Err(Error::NotFound(_)) => return Ok(None),
            page => page?,
        };
        let found = page.data.iter().find_map(beginning);
        if found.is_some() || page.next.is_none() {
            return Ok(found);
        }
        query.after = page.next;
    }
    Ok(None)
}

/// The first line of what a person said in a turn.
fn beginning(entry: &HistoryEntry) -> Option<String> {
    let HistoryEntry::Turn(turn) = entry else { return None };
    if turn.role != Role::User || turn.speaker.is_some() {
        return None;
    }
    let message = turn.value()?;
    let texts: Vec<&str> = message::parts(&message)
        .into_iter()
        .filter_map(|part| if let MessagePart::Text(text) = part { Some(text) } else { None })
        .collect();
    let text = texts.join("\n");
    let words = speech::words(&text).ok()?;
    let end = words.char_indices().nth(PREVIEW_CHARS_READ).map_or(words.len(), |(end, _)| end);
    let said = redaction::mask(&words[..end], &mut Vec::new());
    let line = said.lines().find(|line| !line.trim().is_empty())?.trim();
    let end = line.char_indices().nth(PREVIEW_CHARS_MAX).map(|(end, _)| end);
    Some(end.map_or_else(|| line.to_string(), |end| format!("{}…", &line[..end])))
}

/// The cursor of the next page of conversations, as text.
pub fn cursor_text((said, id): (Timestamp, ConversationId)) -> String {
    format!("{said}/{id}")
}

/// Parses such a cursor.
pub fn cursor(text: &str) -> Result<(Timestamp, ConversationId), Error> {
    let wrong = || {
        Error::invalid(
            "list.after",
            "`after` is not the `next` of a page; copy it from there. For a date, use `since`",
        )
    };
    let (said, id) = text.split_once('/').ok_or_else(wrong)?;
    Ok((said.parse().map_err(|_| wrong())?, id.parse().map_err(|_| wrong())?))
}

/// Resolves a name to a conversation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveConversation {
    /// An id, the beginning of one, or `@last` for the conversation with the latest turn, or a fork made of it since.
    #[schemars(example = &"@last")]
    pub name: String,
}

impl Operation for ResolveConversation {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Conversations,
        "resolve_conversation",
        "/conversations/resolve",
        "Find a conversation by its name",
        "The conversation.",
    );

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        requester.tenant.conversation(requester.tenant.resolve(&self.name)?).get()
    }

    fn tag(answer: &Conversation) -> Option<String> {
        Some(version(answer))
    }
}

/// Reads a conversation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetConversation {
    /// The conversation.
    pub conversation: ConversationName,
}

impl Operation for GetConversation {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Conversations,
        "get_conversation",
        "/conversations/{conversation}",
        "Read a conversation's settings",
        "The conversation as it is now.",
    )
    .counts()
    .versioned()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        previewed(requester, requester.conversation(&self.conversation)?.get()?)
    }

    fn tag(answer: &Conversation) -> Option<String> {
        Some(version(answer))
    }
}

/// Changes settings and state, in one step. An absent field is left as it is; null removes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"title": "Lisbon in May", "metadata": {"project": null}}))]
pub struct ChangeConversation {
    /// The conversation.
    pub conversation: ConversationName,
    /// Title for people.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub title: Option<Option<String>>,
    /// Owner within the tenant.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub owner: Option<Option<String>>,
    /// Metadata, merged key by key; null removes a key.
    #[serde(default)]
    pub metadata: BTreeMap<String, Raw>,
    /// Time to live: seconds after the last change until it is deleted. Only an admin changes it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Option<u64>>,
    /// Retention of content. Only an admin makes it stricter: what is summarized is erased.
    pub retention: Option<Retention>,
    /// Policies by name, merged key by key; null removes a key.
    #[serde(default)]
    pub policy: BTreeMap<String, Raw>,
    /// Instructions for the whole conversation.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<Option<String>>,
    /// Lifecycle state: `archived` puts it away, `active` resumes it, `closed` ends it for good.
    pub state: Option<Lifecycle>,
    /// Reason for the change of state.
    pub reason: Option<String>,
    /// Refuse unless this is the `seq` of the last event: otherwise the conversation changed since it was read.
    pub expected_seq: Option<u64>,
}

impl Operation for ChangeConversation {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Patch,
        Noun::Conversations,
        "change_conversation",
        "/conversations/{conversation}",
        "Change a conversation's settings",
        "The conversation as it is now.",
    )
    .versioned()
    .if_match()
    .work(Work::Quick)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        let name = self.conversation.clone();
        let settings = Settings {
            title: self.title,
            owner: self.owner,
            metadata: self.metadata,
            ttl: self.ttl,
            retention: self.retention,
            policy: self.policy,
            system_prompt: self.system_prompt.map(|prompt| prompt.map(SystemPrompt::new)),
            ..Settings::default()
        };
        let erases = settings.erases();
        let chat = requester.blocking(move |tenant| name.find(tenant)).await?;
        let change =
            Change { settings, state: self.state, reason: self.reason, expected_seq: self.expected_seq };
        if erases {
            // What is summarized already is erased at once.
            return requester.blocking(move |tenant| with_preview(tenant, chat.update(change).wait()?)).await;
        }
        requester.committed(chat.update(change)).await?;
        requester.blocking(move |tenant| with_preview(tenant, chat.get()?)).await
    }

    fn tag(answer: &Conversation) -> Option<String> {
        Some(version(answer))
    }
}

/// Deletes a whole conversation. A tombstone stays, so that an audit can tell deletion from loss.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteConversation {
    /// The conversation.
    pub conversation: ConversationName,
    /// Reason; kept in the tombstone.
    #[schemars(example = &"test data")]
    pub reason: Option<String>,
}

impl Operation for DeleteConversation {
    type Answer = Tombstone;
    const ABOUT: About = About::new(
        Method::Delete,
        Noun::Conversations,
        "delete_conversation",
        "/conversations/{conversation}",
        "Delete a conversation",
        "The tombstone.",
    )
    .destructive();

    async fn run(self, requester: &Requester) -> Result<Tombstone, Error> {
        let chat = requester.conversation(&self.conversation)?;
        chat.delete(self.reason.as_deref().unwrap_or("on request")).wait()
    }
}

/// Forks a conversation: creates a new one that shares the history up to a `seq`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"at_seq": 1}))]
pub struct ForkConversation {
    /// The conversation.
    pub conversation: ConversationName,
    /// `seq` of the last shared event; by default the newest.
    pub at_seq: Option<u64>,
    /// Title of the fork; by default that of the conversation, with the place of the fork.
    pub title: Option<String>,
    /// Idempotency key of your choice: a repeated request with the same key is executed once, also after a
    /// restart.
    pub idempotency_key: Option<String>,
}

impl Operation for ForkConversation {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Conversations,
        "fork_conversation",
        "/conversations/{conversation}/fork",
        "Fork a conversation",
        "The fork.",
    )
    .creates()
    .once()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        let options =
            ForkOptions { at_seq: self.at_seq, title: self.title, idempotency_key: self.idempotency_key };
        with_preview(
            &requester.tenant,
            requester.conversation(&self.conversation)?.fork(options).wait()?.get()?,
        )
    }

    fn tag(answer: &Conversation) -> Option<String> {
        Some(version(answer))
    }

    fn location(_: &str, answer: &Conversation) -> Option<String> {
        Some(place(answer))
    }
}

/// Starts over: creates a new conversation with the same settings that refers to this one, and closes this one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetConversation {
    /// The conversation.
    pub conversation: ConversationName,
}

impl Operation for ResetConversation {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Conversations,
        "reset_conversation",
        "/conversations/{conversation}/reset",
        "Start a conversation over",
        "The new conversation.",
    )
    .creates();

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        requester.conversation(&self.conversation)?.reset()?.get()
    }

    fn tag(answer: &Conversation) -> Option<String> {
        Some(version(answer))
    }

    fn location(_: &str, answer: &Conversation) -> Option<String> {
        Some(place(answer))
    }
}

/// Lists the tombstones of deleted conversations.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTombstones {}

impl Operation for ListTombstones {
    type Answer = Page<Tombstone>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Conversations,
        "list_tombstones",
        "/tombstones",
        "List deleted conversations",
        "The whole list.",
    );

    async fn run(self, requester: &Requester) -> Result<Page<Tombstone>, Error> {
        requester.tenant.tombstones().map(Page::whole)
    }
}
