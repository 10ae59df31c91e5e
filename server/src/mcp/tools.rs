//! What a model can do with conversations.
//!
//! Each tool is a row of [`ALL`]: its name, what it needs, and a function from arguments to an answer. What goes wrong
//! is an answer too, one that says what to do; the protocol's own errors are for tools that do not exist.

mod facts;
mod files;

use super::shapes::{self, tool};
use crate::access::Role;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn;
use everturn_engine::{
    AppendOptions, CompactOptions, ContextOptions, HistoryQuery, ListQuery, NewConversation, NewTurn, Order,
    RecallOptions, RecallRequest, Scope, script,
};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// What a tool answers.
type Answer = Result<Value, Error>;

/// A tool.
pub struct Row {
    name: &'static str,
    /// What it needs.
    pub role: Role,
    describe: fn() -> Tool,
    run: fn(&Scope, JsonObject) -> Answer,
}

/// Every tool, those that only read first.
pub const ALL: [Row; 13] = [
    Row { name: "list_conversations", role: Role::Reader, describe: about_list, run: list },
    Row { name: "history", role: Role::Reader, describe: about_history, run: history },
    Row { name: "recall", role: Role::Reader, describe: about_recall, run: recall },
    Row { name: "facts", role: Role::Reader, describe: facts::about_list, run: facts::list },
    Row { name: "build_context", role: Role::Reader, describe: about_context, run: build_context },
    Row { name: "project", role: Role::Reader, describe: about_project, run: project },
    Row { name: "verify", role: Role::Reader, describe: about_verify, run: verify },
    Row { name: "export", role: Role::Reader, describe: files::about_export, run: files::export },
    Row { name: "append", role: Role::Writer, describe: about_append, run: append },
    Row { name: "pin", role: Role::Writer, describe: about_pin, run: pin },
    Row { name: "add_fact", role: Role::Writer, describe: facts::about_add, run: facts::add },
    Row { name: "compact", role: Role::Writer, describe: about_compact, run: compact },
    Row { name: "import", role: Role::Writer, describe: files::about_import, run: files::import },
];

/// The tool of this name.
pub fn find(name: &str) -> Option<&'static Row> {
    const { &ALL }.iter().find(|row| row.name == name)
}

/// What somebody in this role can use.
pub fn list_for(role: Role) -> Vec<Tool> {
    ALL.iter().filter(|row| row.role <= role).map(|row| (row.describe)()).collect()
}

impl Row {
    /// What it is, for whoever decides to use it.
    pub fn describe(&self) -> Tool {
        (self.describe)()
    }

    /// Does it. Blocks.
    pub fn call(&self, scope: &Scope, arguments: JsonObject) -> CallToolResult {
        match (self.run)(scope, arguments) {
            Ok(answer) => CallToolResult::structured(answer),
            Err(error) => refused(&error),
        }
    }
}

/// An error as an answer that a model can read and act on.
pub fn refused(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(format!("{}: {}", error.code(), error.text()))])
}

/// Where the next page of conversations begins, as text.
pub fn cursor(place: (Timestamp, ConversationId)) -> String {
    format!("{}/{}", place.0, place.1)
}

/// The place that such a text names.
pub fn place(cursor: &str) -> Result<(Timestamp, ConversationId), Error> {
    let wrong = || {
        Error::invalid("list.cursor", "the cursor is not one of a page; copy it from there, or leave it out")
    };
    let (updated, id) = cursor.split_once('/').ok_or_else(wrong)?;
    Ok((updated.parse().map_err(|_| wrong())?, id.parse().map_err(|_| wrong())?))
}

fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, Error> {
    serde_json::from_value(Value::Object(arguments)).map_err(|e| {
        Error::invalid("arguments.shape", format!("the arguments are not what is expected: {e}"))
    })
}

fn answer(value: &impl Serialize) -> Answer {
    let value = serde_json::to_value(value)
        .map_err(|e| Error::internal("answer.json", format!("the answer cannot be written: {e}")))?;
    Ok(value)
}

fn reads() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// Only conversations whose title contains this.
    query: Option<String>,
    /// Only those in this state: active, archived, abandoned or closed.
    state: Option<String>,
    /// At most this many; 20 if left out, 1000 at most.
    limit: Option<usize>,
    /// The `next` of the page before, to go on.
    cursor: Option<String>,
}

fn about_list() -> Tool {
    let text = "Lists conversations, last changed first, with title, state, number of turns and times.";
    tool::<List, shapes::Conversations>("list_conversations", "List conversations", text, reads())
}

fn list(scope: &Scope, arguments: JsonObject) -> Answer {
    let List { query, state, limit, cursor: after } = read(arguments)?;
    let page = scope.list(ListQuery {
        text: query,
        state: state.as_deref().map(str::parse).transpose()?,
        after: after.as_deref().map(place).transpose()?,
        limit: limit.unwrap_or(20),
    })?;
    answer(&json!({"data": page.data, "next": page.next.map(cursor)}))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct History {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// At most this many turns; 50 if left out, 1000 at most.
    limit: Option<usize>,
    /// Only what comes before this place (`seq`): the way to older turns.
    before: Option<u64>,
    /// Only what comes after this place (`seq`): the way to what is new.
    after: Option<u64>,
    /// Only turns of these actors.
    #[serde(default)]
    actors: Vec<String>,
    /// Also superseded turns.
    #[serde(default)]
    include_superseded: bool,
    /// Also events that are not turns: compactions, pins, receipts.
    #[serde(default)]
    include_events: bool,
}

fn about_history() -> Tool {
    let text = "Reads what was said in a conversation, word for word: the newest turns, oldest of them first. `next` \
                is where to go on: give it as `before` (or as `after`, if you gave `after`).";
    tool::<History, shapes::Turns>("history", "Read a conversation", text, reads())
}

fn history(scope: &Scope, arguments: JsonObject) -> Answer {
    let given: History = read(arguments)?;
    let id = scope.resolve(&given.conversation)?;
    let order = if given.after.is_some() { Order::Ascending } else { Order::Descending };
    let mut page = scope.history(
        id,
        HistoryQuery {
            before: given.before,
            after: given.after,
            limit: given.limit.unwrap_or(50),
            order,
            actors: given.actors,
            include_superseded: given.include_superseded,
            include_events: given.include_events,
        },
    )?;
    if order == Order::Descending {
        page.data.reverse();
    }
    answer(&json!({"conversation": id, "data": page.data, "next": page.next}))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Recall {
    /// What to look for, in any words: a question, names, "a phrase", begin*.
    query: String,
    /// Only in this conversation: its id, the beginning of one, or @last. In all of them if left out.
    conversation: Option<String>,
    /// Only what these actors said.
    #[serde(default)]
    actors: Vec<String>,
    /// Only what was said in these roles: user, assistant, system, tool.
    #[serde(default)]
    roles: Vec<String>,
    /// Only what was said at this time or later, such as 2026-11-15T00:00:00Z.
    after: Option<String>,
    /// Only what was said before this time.
    before: Option<String>,
    /// Only these kinds: turn, fact.
    #[serde(default)]
    kinds: Vec<String>,
    /// At most this many; 10 if left out.
    limit: Option<usize>,
    /// hybrid (if left out), lexical or vector.
    mode: Option<String>,
}

fn about_recall() -> Tool {
    let text = "Finds what was said or learned before, in any conversation, by words and by meaning: the best matches with \
                a snippet, who said it, when and where. Read more around a match with `history`: `before` its `seq` + 1.";
    tool::<Recall, shapes::Recalled>("recall", "Recall what was said", text, reads())
}

fn recall(scope: &Scope, arguments: JsonObject) -> Answer {
    let given: Recall = read(arguments)?;
    let options = RecallOptions {
        conversation: given.conversation.as_deref().map(|name| scope.resolve(name)).transpose()?,
        actors: given.actors,
        roles: given.roles.iter().map(|role| role.parse()).collect::<Result<_, _>>()?,
        after: given.after.as_deref().map(str::parse).transpose()?,
        before: given.before.as_deref().map(str::parse).transpose()?,
        kinds: given.kinds.iter().map(|kind| kind.parse()).collect::<Result<_, _>>()?,
        limit: given.limit.unwrap_or(RecallOptions::default().limit),
        mode: given.mode.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
        include_superseded: false,
    };
    answer(&scope.recall(&given.query, &options)?)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BuildContext {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// Most tokens.
    budget: u64,
    /// In whose shape: neutral (if left out), openai-chat, openai-responses, anthropic or gemini.
    provider: Option<String>,
    /// Which model will read it; decides how tokens are counted.
    model: Option<String>,
    /// At most this many turns word for word.
    last_n: Option<usize>,
    /// Whose view: turns of these actors are the assistant's.
    #[serde(default)]
    participants: Vec<String>,
    /// How turns are projected: the name of a policy, or its options.
    projection: Option<Value>,
    /// Instructions for this call.
    instructions: Option<String>,
    /// What is asked now.
    input: Option<String>,
    /// At most this many turns from further back that have to do with what is asked.
    #[serde(default)]
    recall_turns: usize,
    /// At most this many facts that have to do with what is asked.
    #[serde(default)]
    recall_facts: usize,
}

fn about_context() -> Tool {
    let text = "Builds what the next model call needs of a conversation, inside a token budget: system prompt, summary, \
                pins and the newest turns, with what it costs and what was left out. Changes nothing.";
    tool::<BuildContext, shapes::Context>("build_context", "Build a context", text, reads())
}

fn build_context(scope: &Scope, arguments: JsonObject) -> Answer {
    let given: BuildContext = read(arguments)?;
    let id = scope.resolve(&given.conversation)?;
    let mut options = ContextOptions::new(given.budget);
    if let Some(provider) = &given.provider {
        options.provider = provider.parse()?;
    }
    options.model = given.model;
    options.last_n = given.last_n;
    options.participants = given.participants;
    options.projection = given.projection.as_ref().map(script::options).transpose()?;
    options.instructions = given.instructions;
    if given.recall_turns + given.recall_facts > 0 {
        options.recall =
            Some(RecallRequest { turns: given.recall_turns, facts: given.recall_facts, query: None });
    }
    if let Some(text) = given.input {
        options.input = vec![Raw::of(&json!({"role": "user", "content": text}))?];
    }
    answer(&scope.build_context(id, &options)?)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Project {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// raw, clean_tool_repair, squash_failed_calls, summary_prefix, reachability_gc, clear_tool_uses or custom.
    policy: Option<String>,
    /// Further options of the policy.
    #[serde(default)]
    options: Map<String, Value>,
}

fn about_project() -> Tool {
    let text = "Shows which messages of a conversation the next request would see under a policy, such as without failed \
                tool calls, and what that saves. Changes nothing.";
    tool::<Project, shapes::Projection>("project", "Project a conversation", text, reads())
}

fn project(scope: &Scope, arguments: JsonObject) -> Answer {
    let Project { conversation, policy, mut options } = read(arguments)?;
    let id = scope.resolve(&conversation)?;
    if let Some(policy) = policy
        && options.insert("policy".into(), json!(policy)).is_some()
    {
        let text = "the policy is in `policy` and in `options`; say it once";
        return Err(Error::invalid("projection.policy", text));
    }
    answer(&scope.project(id, &script::options(&Value::Object(options))?)?.result)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Verify {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// A head hash that was noted earlier: also check that the log still contains it.
    head: Option<String>,
}

fn about_verify() -> Tool {
    let text =
        "Proves that a conversation is what was written: walks its hash chain and tells whether it holds.";
    tool::<Verify, shapes::Verdict>("verify", "Verify a conversation", text, reads())
}

fn verify(scope: &Scope, arguments: JsonObject) -> Answer {
    let Verify { conversation, head } = read(arguments)?;
    let id = scope.resolve(&conversation)?;
    let head: Option<Hash> = head.as_deref().map(str::parse).transpose()?;
    match scope.verify(id, head) {
        Ok(report) => answer(&json!({
            "conversation": id,
            "ok": report.contains_head != Some(false),
            "events": report.events,
            "erased": report.erased,
            "head": report.head,
            "contains_head": report.contains_head,
        })),
        // That the chain is broken is what was asked for.
        Err(error @ Error::Corrupt(_)) => {
            answer(&json!({"conversation": id, "ok": false, "problem": error.to_string()}))
        }
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Speaker {
    User,
    Assistant,
    System,
    Tool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Append {
    /// The conversation: its id, the beginning of one, or @last for the last changed. Leave it out to begin a new one.
    conversation: Option<String>,
    /// The title of the new conversation, if one is begun.
    title: Option<String>,
    /// Who speaks; the user if left out.
    role: Option<Speaker>,
    /// What is said. Either this or `message`.
    text: Option<String>,
    /// A whole message in the shape of any provider, kept as it is: for tool calls, results and media.
    message: Option<Map<String, Value>>,
    /// The name of the person or agent that speaks.
    actor: Option<String>,
    /// Which model said it.
    model: Option<String>,
    /// Refuse unless the log ends at this place (`head.seq`): nothing else was said meanwhile.
    expected_seq: Option<u64>,
    /// Sending the same again under the same key changes nothing.
    idempotency_key: Option<String>,
}

fn about_append() -> Tool {
    let text = "Appends a turn to a conversation, for good: nothing is ever overwritten. Without `conversation` it begins \
                a new one and answers with its id.";
    let hints =
        ToolAnnotations::new().read_only(false).destructive(false).idempotent(false).open_world(false);
    tool::<Append, shapes::Appended>("append", "Append a turn", text, hints)
}

fn append(scope: &Scope, arguments: JsonObject) -> Answer {
    let given: Append = read(arguments)?;
    let role = match given.role.unwrap_or(Speaker::User) {
        Speaker::User => turn::Role::User,
        Speaker::Assistant => turn::Role::Assistant,
        Speaker::System => turn::Role::System,
        Speaker::Tool => turn::Role::Tool,
    };
    let mut turn = match (given.text, given.message) {
        (Some(text), None) => NewTurn::text(role, &text),
        (None, Some(message)) if given.role.is_none() => NewTurn::message(Value::Object(message).to_string()),
        (None, Some(_)) => {
            let text = "a message says its role itself; leave `role` out";
            return Err(Error::invalid("append.role", text));
        }
        _ => return Err(Error::invalid("append.content", "give either `text` or `message`")),
    };
    turn.actor = given.actor;
    turn.model = given.model;
    let key = given.idempotency_key;
    let (id, begun) = match (given.conversation, given.title) {
        (Some(_), Some(_)) => {
            let text = "the conversation is there already; leave `title` out";
            return Err(Error::invalid("append.title", text));
        }
        (Some(conversation), None) => (scope.resolve(&conversation)?, false),
        (None, title) => {
            let settings = Settings { title: title.map(Some), ..Settings::default() };
            let new =
                NewConversation { settings, idempotency_key: key.clone(), ..NewConversation::default() };
            (scope.create(new).wait()?.id, true)
        }
    };
    let options = AppendOptions { expected_seq: given.expected_seq, idempotency_key: key };
    let appended = scope.append(id, vec![turn], options).wait().map_err(|error| match begun {
        true => error.at(format!("{id} was begun and is empty, append to it")),
        false => error,
    })?;
    Ok(json!({
        "conversation": id,
        "turns": appended.turns,
        "head": appended.head,
        "repeated": appended.repeated,
    }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Pin {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// What the truth is called.
    name: String,
    /// The truth: a text or any JSON. null takes the pin away.
    value: Value,
}

fn about_pin() -> Tool {
    let text = "Pins a truth to a conversation: every context says it, however long the conversation gets, until it is \
                pinned anew or taken away with null.";
    let hints = ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(false);
    tool::<Pin, shapes::Pinned>("pin", "Pin a truth", text, hints)
}

fn pin(scope: &Scope, arguments: JsonObject) -> Answer {
    let Pin { conversation, name, value } = read(arguments)?;
    let id = scope.resolve(&conversation)?;
    let event = match value {
        Value::Null => scope.unpin(id, &name).wait()?,
        value => scope.pin(id, &name, Raw::of(&value)?).wait()?,
    };
    answer(&json!({"conversation": id, "seq": event.seq, "pins": scope.state(id)?.pins}))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Compact {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// Only show what the summary would be.
    #[serde(default)]
    dry_run: bool,
    /// Leave this many turns at the end as they are, instead of what the conversation's policy says.
    keep_last: Option<usize>,
}

fn about_compact() -> Tool {
    let text = "Summarizes the oldest turns of a conversation into a checkpoint that contexts use instead; the history \
                keeps every word, unless the conversation's retention asks for its words to be erased.";
    let hints = ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(true);
    tool::<Compact, shapes::Compacted>("compact", "Compact a conversation", text, hints)
}

fn compact(scope: &Scope, arguments: JsonObject) -> Answer {
    let Compact { conversation, dry_run, keep_last } = read(arguments)?;
    let id = scope.resolve(&conversation)?;
    answer(&scope.compact(id, CompactOptions { dry_run, keep_last, ..CompactOptions::default() })?)
}
