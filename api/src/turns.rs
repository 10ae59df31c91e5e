//! Turns: append, read, supersede.

use crate::decode::{present, split};
use crate::{About, ConversationName, Method, Noun, Operation, Page, Requester, Work};
use everturn_core::Error;
use everturn_core::event::Visibility;
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_core::message::{self, MessagePart};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Tokens, Turn};
use everturn_engine::{
    AppendOptions, Appended, ConversationHandle, HistoryEntry, HistoryQuery, NewTurn, Tenant,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A turn to append: either `message`, in any shape, or `role` and `content`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewTurn")]
#[schemars(example = json!({"role": "user", "content": "Where did we leave off?", "actor": "ana"}))]
pub struct TurnInput {
    /// A message in any shape: OpenAI chat, Anthropic blocks, Responses item. Kept byte for byte.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, Raw>>")]
    pub message: Option<Raw>,
    /// Role of the actor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// A text, or blocks. Kept byte for byte.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub content: Option<Raw>,
    /// Tool calls, in OpenAI's format.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Raw>,
    /// Id of the call that a turn with the role `tool` answers.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub tool_call_id: Option<Raw>,
    /// Actor that speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// `public`, `internal` (the default of tool results), or `private`: only its own actor sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Actors that it is addressed to. It is then private: only they and its own actor see it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Token counts reported by the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// Model that produced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Client or importer that it came through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Metadata to store with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Raw>,
    /// Time at which it was said, if not now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Timestamp>,
}

impl TurnInput {
    /// Converts it to the engine's type. Without content the message is empty.
    pub fn into_turn(self) -> Result<NewTurn, Error> {
        let role = self.role.map(|role| Raw::of(&role)).transpose()?;
        let fields = [
            ("role", role),
            ("content", self.content),
            ("tool_calls", self.tool_calls),
            ("tool_call_id", self.tool_call_id),
        ];
        let says_something = fields[1].1.as_ref().is_some_and(begins_with_text);
        // Room for all of it, so that nothing is copied while the text grows.
        let sizes =
            fields.iter().filter_map(|(name, value)| Some(name.len() + value.as_ref()?.get().len() + 5));
        let mut said = String::with_capacity(sizes.sum());
        for (name, value) in &fields {
            let Some(value) = value else { continue };
            let before = if said.is_empty() { "{\"" } else { ",\"" };
            [before, name, "\":", value.get()].into_iter().for_each(|part| said.push_str(part));
        }
        let message = match self.message {
            Some(_) if !said.is_empty() => {
                let text = "a turn has `message`, or `role` and `content`; send one of the two";
                return Err(Error::invalid("turn.said_twice", text));
            }
            Some(message) => message.get().to_string(),
            None if said.is_empty() => said,
            None => said + "}",
        };
        if !says_something && says_nothing(&message) {
            let text = "the turn is empty; give it content: a text, or blocks with some";
            return Err(Error::invalid("turn.empty", text));
        }
        Ok(NewTurn {
            message,
            actor: self.actor,
            visibility: self.visibility,
            audience: self.audience,
            tokens: self.tokens,
            model: self.model,
            adapter: self.adapter,
            metadata: self.metadata,
            occurred_at: self.occurred_at,
        })
    }
}

/// Whether a content is a text that begins with something to read, as nearly every one does: its message need not be
/// parsed to see that it says something.
fn begins_with_text(content: &Raw) -> bool {
    let first = content.get().strip_prefix('"').and_then(|text| text.chars().next());
    first.is_some_and(|first| !first.is_whitespace() && !matches!(first, '"' | '\\'))
}

/// A longer message is not looked into: parsing each would slow every append.
const EMPTY_BYTES_MAX: usize = 512;

/// Whether this is a message of a user without anything in it, in whatever shape.
fn says_nothing(message: &str) -> bool {
    if message.len() > EMPTY_BYTES_MAX {
        return false;
    }
    let Ok(message) = serde_json::from_str::<Value>(message) else { return false };
    let is_blank = |part: &MessagePart<'_>| matches!(part, MessagePart::Text(text) if text.trim().is_empty());
    message::role(&message).is_ok_and(|role| role == Role::User)
        && message::parts(&message).iter().all(is_blank)
}

impl TurnInput {
    /// Converts a turn that must say something.
    pub(crate) fn into_said(self) -> Result<NewTurn, Error> {
        let turn = self.into_turn()?;
        match turn.message.is_empty() {
            true => {
                let text = "the turn is empty; give it a `role` and `content`, or a `message`";
                Err(Error::invalid("turn.empty", text))
            }
            false => Ok(turn),
        }
    }
}

impl TurnInput {
    /// Converts the new text of a turn. Its role is that of the old one where none is given.
    fn in_place_of(mut self, chat: &ConversationHandle, old: TurnId) -> Result<NewTurn, Error> {
        if self.role.is_none() && self.message.is_none() && self.content.is_some() {
            self.role = Some(chat.turn(old)?.role);
        }
        self.into_said()
    }
}

impl TryFrom<NewTurn> for TurnInput {
    type Error = Error;

    /// Invalid JSON cannot be sent, and is refused as the engine would.
    fn try_from(turn: NewTurn) -> Result<TurnInput, Error> {
        let message = match turn.message.is_empty() {
            true => None,
            false => Some(Raw::new(turn.message).map_err(|e| e.at("message"))?),
        };
        Ok(TurnInput {
            message,
            actor: turn.actor,
            visibility: turn.visibility,
            audience: turn.audience,
            tokens: turn.tokens,
            model: turn.model,
            adapter: turn.adapter,
            metadata: turn.metadata,
            occurred_at: turn.occurred_at,
            ..TurnInput::default()
        })
    }
}

/// Converts turns to the engine's type; an error names the index of the turn.
pub(crate) fn new_turns(turns: Vec<TurnInput>) -> Result<Vec<NewTurn>, Error> {
    let turns = turns.into_iter().enumerate();
    turns.map(|(n, turn)| turn.into_said().map_err(|e| e.at(format!("turns[{n}]")))).collect()
}

/// Appends turns to a conversation, atomically and durably: all of them, or none. Nothing is ever overwritten.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"turns": [{"role": "user", "content": "Where did we leave off?", "actor": "ana"}]}))]
pub struct AppendTurns {
    /// The conversation.
    pub conversation: ConversationName,
    /// Turns in order.
    pub turns: Vec<TurnInput>,
    /// Refuse unless this is the `seq` of the last event.
    pub expected_seq: Option<u64>,
    /// Idempotency key of your choice: a repeated request with the same key is executed once, also after a
    /// restart.
    pub idempotency_key: Option<String>,
}

impl Operation for AppendTurns {
    type Answer = Appended;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "append_turns",
        "/conversations/{conversation}/turns",
        "Append turns",
        "The turns, appended and durable.",
    )
    .creates()
    .once()
    .repeated("The turns of the first request with the same key.")
    .work(Work::Quick)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Appended, Error> {
        let turns = new_turns(self.turns)?;
        let options =
            AppendOptions { expected_seq: self.expected_seq, idempotency_key: self.idempotency_key };
        let name = self.conversation;
        let commit = match name.0.parse() {
            Ok(id) => match requester.tenant.conversation(id).append_all(turns).with(options).try_submit() {
                Ok(commit) => commit,
                Err(append) => requester.blocking(move |_| Ok(append.submit())).await?,
            },
            Err(_) => {
                let append =
                    move |tenant: &Tenant| Ok(name.find(tenant)?.append_all(turns).with(options).submit());
                requester.blocking(append).await?
            }
        };
        requester.committed(commit).await
    }

    fn status(answer: &Appended) -> u16 {
        if answer.repeated { 200 } else { 201 }
    }
}

/// Reads the turns of a conversation verbatim, summarized ones included; oldest first, or newest first with
/// `order` = `desc`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ListTurns {
    /// The conversation.
    pub conversation: ConversationName,
    /// Range and filter.
    #[serde(flatten)]
    pub query: HistoryQuery,
}
split!(ListTurns { conversation: ConversationName } query);

impl Operation for ListTurns {
    type Answer = Page<HistoryEntry>;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Turns,
        "list_turns",
        "/conversations/{conversation}/turns",
        "Read a conversation",
        "A page; `next` is the next page's `after`, or its `before` with `order=desc`.",
    )
    .work(Work::Page)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Page<HistoryEntry>, Error> {
        Ok(requester.conversation(&self.conversation)?.history(self.query)?.into())
    }
}

/// Reads one turn.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetTurn {
    /// The turn's id.
    pub turn: TurnId,
    /// A fork, to read the turn as of its fork point.
    pub conversation: Option<ConversationName>,
}

impl Operation for GetTurn {
    type Answer = Turn;
    const ABOUT: About =
        About::new(Method::Get, Noun::Turns, "get_turn", "/turns/{turn}", "Read one turn", "The turn.");

    async fn run(self, requester: &Requester) -> Result<Turn, Error> {
        match &self.conversation {
            Some(name) => requester.conversation(name)?.turn(self.turn),
            None => requester.tenant.turn(self.turn),
        }
    }
}

/// Edits a turn in place: a new one supersedes it and is read where it stood; what follows stays. The old turn stays in
/// the log. Without `role` or `actor`, the new one has the old one's.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"role": "user", "content": "Where did we leave off?", "actor": "ana"}))]
pub struct SupersedeTurn {
    /// The turn's id.
    pub turn: TurnId,
    /// A fork, to edit an inherited turn there.
    pub conversation: Option<ConversationName>,
    /// The new turn.
    #[serde(flatten)]
    pub with: TurnInput,
}
split!(SupersedeTurn { turn: TurnId, conversation: Option<ConversationName> } with);

impl Operation for SupersedeTurn {
    type Answer = Appended;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "supersede_turn",
        "/turns/{turn}/supersede",
        "Supersede a turn",
        "The new turn.",
    )
    .creates()
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Appended, Error> {
        let SupersedeTurn { turn, conversation, with } = self;
        let supersede = move |tenant: &Tenant| {
            let chat = editing(tenant, turn, conversation)?;
            let with = with.in_place_of(&chat, turn)?;
            Ok(chat.supersede(turn, with))
        };
        requester.writing(supersede).await
    }
}

/// The conversation in which a turn is edited: the one it was said in, or the fork that is named.
fn editing(
    tenant: &Tenant,
    turn: TurnId,
    fork: Option<ConversationName>,
) -> Result<ConversationHandle, Error> {
    match fork {
        Some(name) => name.find(tenant),
        None => Ok(tenant.conversation(tenant.turn(turn)?.conversation)),
    }
}

/// Edits a turn and branches from there: a fork with everything that is read before the turn, and a new one instead of
/// it; the fork is the `conversation` of that turn. The conversation itself stays as it is. Without `role` or `actor`, the
/// new turn has the old one's.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"role": "user", "content": "Where did we leave off?", "actor": "ana"}))]
pub struct EditAndBranch {
    /// The turn's id.
    pub turn: TurnId,
    /// A fork, to branch from an inherited turn there.
    pub conversation: Option<ConversationName>,
    /// The new turn.
    #[serde(flatten)]
    pub with: TurnInput,
}
split!(EditAndBranch { turn: TurnId, conversation: Option<ConversationName> } with);

impl Operation for EditAndBranch {
    type Answer = Appended;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "edit_and_branch",
        "/turns/{turn}/branch",
        "Edit a turn and branch from there",
        "The new turn; its `conversation` is the fork.",
    )
    .creates();

    async fn run(self, requester: &Requester) -> Result<Appended, Error> {
        let EditAndBranch { turn, conversation, with } = self;
        let branch = move |tenant: &Tenant| {
            let chat = editing(tenant, turn, conversation)?;
            let with = with.in_place_of(&chat, turn)?;
            chat.edit_and_branch(turn, with)
        };
        requester.blocking(branch).await.map(|(_, appended)| appended)
    }
}
