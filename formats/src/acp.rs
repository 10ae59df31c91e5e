//! The Agent Client Protocol: messages between an editor and an agent, as steps of a conversation.
//!
//! | message | becomes |
//! |---|---|
//! | `session/new`, `session/load`, `session/resume` | the beginning of a session |
//! | `session/prompt` | a user turn |
//! | `agent_message_chunk`, `agent_thought_chunk` | pieces of one assistant turn |
//! | `tool_call`, `tool_call_update` | an assistant turn with the call, and a tool turn with its result |
//! | `session/request_permission` | an approval, asked and answered |
//! | `session_info_update` with a title | the title |
//! | everything else about a session | an event `acp.…` |
//!
//! Requests about files and terminals of the editor are left out: a tool call reports what they were for. So are the
//! settings of MCP servers in `session/new`, which hold keys.
//!
//! [`AcpListener`] hears both sides and never answers; [`session_update`] is the way back.

mod call;
mod content;
mod update;

pub use update::{METHOD, session_update};

use call::{Call, Merged};
use everturn_core::approval::Approval;
use everturn_core::chain::Hash;
use everturn_core::id::ConversationId;
use everturn_core::limits::{APPROVAL_QUESTION_BYTES_MAX, NAME_BYTES_MAX};
use everturn_core::turn::Role;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Most requests of one side that are remembered until they are answered.
const REQUESTS_WAITING_MAX: usize = 10_000;
/// Result of a call for which the agent reported none.
const MISSING: &str = "no result was reported";
/// Most terminals whose output is remembered.
const TERMINALS_MAX: usize = 1000;

/// The sender of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The client in the protocol's words.
    Editor,
    /// The program that was started.
    Agent,
}

/// A step to record in one session.
#[derive(Clone, PartialEq, Debug)]
pub struct AcpStep {
    /// Session id given by the agent.
    pub session: String,
    /// Content of the step.
    pub what: AcpChange,
}

/// Kind of an [`AcpStep`].
#[derive(Clone, PartialEq, Debug)]
pub enum AcpChange {
    /// A session began or continues.
    AcpStart(AcpStart),
    /// A piece of the text of the assistant turn that comes next.
    Chunk(String),
    /// A message.
    Turn(AcpTurn),
    /// Another event.
    Event {
        /// Its kind.
        kind: String,
        /// Its body.
        body: Value,
    },
    /// A permission is requested.
    Ask {
        /// Id of the approval, unique in the session.
        approval: String,
        /// Id of the call that waits for it.
        call: String,
        /// Name of the tool.
        tool: String,
        /// Question to the user.
        question: String,
    },
    /// It is granted or refused.
    Answer {
        /// Id of the approval.
        approval: String,
        /// Outcome.
        outcome: Approval,
    },
    /// A call is given up: it has no result, and none of its output is known.
    Abandon {
        /// Id of the call.
        call: String,
        /// Reason.
        reason: String,
    },
    /// The agent gave the session a title.
    Title(String),
}

/// Start of a session.
#[derive(Clone, PartialEq, Debug)]
pub struct AcpStart {
    /// Whether the agent created the session. Otherwise it is known from an earlier run.
    pub is_new: bool,
    /// Name of the agent.
    pub agent: String,
    /// The request, and names and versions of both sides.
    pub about: Value,
    /// Turns of an earlier run that the agent replayed, prompts included.
    pub replay: Vec<AcpTurn>,
}

/// A turn.
#[derive(Clone, PartialEq, Debug)]
pub struct AcpTurn {
    /// Role of the turn.
    pub role: Role,
    /// The message.
    pub message: Value,
    /// Speaker, where the protocol says so.
    pub actor: Option<String>,
    /// Model, if the session's options name it.
    pub model: Option<String>,
    /// Data that the message has no field for; an empty object if there is none.
    pub metadata: Value,
}

/// Id of a session's conversation: the same in every run, so that loading a session finds it. `generation`
/// tells sessions apart to which an agent gave the same id.
pub fn conversation_id(agent: &str, session: &str, generation: u32) -> ConversationId {
    let text = json!(["acp", agent, session, generation]).to_string();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Hash::of(text.as_bytes()).0[..16]);
    ConversationId::from_bytes(bytes)
}

/// Beginning of the ids of approvals for a call.
pub fn approvals_of(call: &str) -> String {
    // Room for the name of the run and the number.
    let end = call.floor_char_boundary(NAME_BYTES_MAX - 64);
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    call[..end].chars().map(printable).chain(['#']).collect()
}

/// Listens to every message of both sides, in order.
pub struct AcpListener {
    agent: Value,
    editor: Value,
    /// Name of the program, for an agent that does not give its own.
    program: String,
    /// Name of this run, in the ids of approvals.
    run: String,
    /// Requests that were not answered yet, by sender and id.
    waiting: HashMap<(Side, String), AcpRequest>,
    sessions: BTreeMap<String, AcpSession>,
    /// Number of new sessions requested from the agent.
    opening: u64,
    /// Last known output of terminals.
    terminals: HashMap<String, String>,
    steps: Vec<AcpStep>,
}

struct AcpRequest {
    method: String,
    params: Value,
    /// Id of the approval that it requests.
    approval: Option<String>,
}

#[derive(Default)]
struct AcpSession {
    model: Option<String>,
    /// Blocks of the assistant turn in progress, and the protocol's id of it.
    blocks: Vec<Value>,
    message_id: Option<String>,
    /// Blocks of a replayed prompt.
    repeated: Vec<Value>,
    calls: Vec<Call>,
    approvals: u64,
    /// Number of prompts in progress.
    prompts: u64,
    /// Collects turns while a session is loaded.
    replay: Option<Vec<AcpTurn>>,
    /// Whether its start was reported.
    has_begun: bool,
    /// Updates that came before the agent answered the request for the session.
    early: Vec<AcpChange>,
}

impl AcpListener {
    /// Listener for an agent that is run by this program.
    pub fn new(program: impl Into<String>) -> AcpListener {
        AcpListener {
            agent: Value::Null,
            editor: Value::Null,
            program: program.into(),
            run: String::new(),
            waiting: HashMap::new(),
            sessions: BTreeMap::new(),
            opening: 0,
            terminals: HashMap::new(),
            steps: Vec::new(),
        }
    }

    /// Names the run: the permissions of a session that goes on in another run have other ids.
    pub fn in_run(mut self, name: impl Into<String>) -> AcpListener {
        self.run = name.into();
        self
    }

    /// Takes one line from a side. A line that is no message of the protocol gives no steps.
    pub fn hear(&mut self, side: Side, line: &[u8]) -> Vec<AcpStep> {
        let Ok(Value::Object(message)) = serde_json::from_slice(line) else { return Vec::new() };
        self.message(side, message);
        std::mem::take(&mut self.steps)
    }

    /// Ends every session.
    pub fn finish(&mut self) -> Vec<AcpStep> {
        self.opening = 0;
        for (_, request) in std::mem::take(&mut self.waiting) {
            if let (Some(approval), Some(session)) = (request.approval, request.params["sessionId"].as_str())
            {
                self.push(session, AcpChange::Answer { approval, outcome: Approval::Cancelled });
            }
        }
        for id in self.sessions.keys().cloned().collect::<Vec<_>>() {
            self.loaded(&id, None);
            let early = std::mem::take(&mut self.session(&id).early);
            early.into_iter().for_each(|what| self.push(&id, what));
            self.close(&id, "the agent ended before the tool did");
        }
        std::mem::take(&mut self.steps)
    }

    /// The agent's name.
    pub fn agent(&self) -> String {
        self.agent["name"].as_str().unwrap_or(&self.program).to_string()
    }

    fn message(&mut self, side: Side, mut message: Map<String, Value>) {
        let id = message.get("id").filter(|id| !id.is_null()).map(Value::to_string);
        let params = message.remove("params").unwrap_or_default();
        match (message.remove("method"), id) {
            (Some(Value::String(method)), Some(id)) => self.request(side, id, method, params),
            (Some(Value::String(method)), None) => self.notification(side, &method, params),
            (None, Some(id)) => {
                let asker = if side == Side::Editor { Side::Agent } else { Side::Editor };
                let Some(request) = self.waiting.remove(&(asker, id)) else { return };
                let outcome =
                    message.remove("result").ok_or_else(|| message.remove("error").unwrap_or_default());
                self.response(asker, request, outcome);
            }
            _ => {}
        }
    }

    fn request(&mut self, side: Side, id: String, method: String, params: Value) {
        let mut approval = None;
        if let Some(session) = params["sessionId"].as_str().map(str::to_string) {
            match (side, method.as_str()) {
                (Side::Editor, "session/prompt") => {
                    self.close(&session, MISSING);
                    self.session(&session).prompts += 1;
                    let (content, metadata) = content::prompt(&params["prompt"]);
                    self.say(&session, Role::User, content, None, metadata);
                }
                (Side::Editor, "session/load") => {
                    self.close(&session, MISSING);
                    self.session(&session).replay = Some(Vec::new());
                }
                (Side::Agent, "session/request_permission") => approval = Some(self.ask(&session, &params)),
                _ => {}
            }
        }
        if method == "initialize" && side == Side::Editor {
            self.editor = params["clientInfo"].clone();
        }
        if self.waiting.len() < REQUESTS_WAITING_MAX {
            self.opening += u64::from(is_opening(side, &method));
            let replaced = self.waiting.insert((side, id), AcpRequest { method, params, approval });
            self.opening -= u64::from(replaced.is_some_and(|old| is_opening(side, &old.method)));
        }
    }

    fn response(&mut self, asker: Side, request: AcpRequest, outcome: Result<Value, Value>) {
        let AcpRequest { method, params, approval } = request;
        if let (Side::Agent, "terminal/output", Ok(result)) = (asker, method.as_str(), &outcome) {
            return self.terminal(&params, result);
        }
        if (asker, method.as_str()) == (Side::Editor, "initialize") {
            self.agent = outcome.map(|mut result| result["agentInfo"].take()).unwrap_or_default();
            return;
        }
        let given = outcome.as_ref().ok().and_then(|result| result["sessionId"].as_str());
        let named = params["sessionId"].as_str();
        match (asker, method.as_str()) {
            (side, name) if is_opening(side, name) => {
                self.opening -= 1;
                let Some(session) = given.map(str::to_string) else { return };
                // The agent may give out an id again.
                if self.session(&session).has_begun {
                    self.close(&session, MISSING);
                    self.sessions.remove(&session);
                }
                self.began(&session, true, &method, &params, &outcome);
            }
            (Side::Editor, "session/load" | "session/resume") => {
                let Some(session) = named.map(str::to_string) else { return };
                match outcome {
                    Ok(_) => self.began(&session, false, &method, &params, &outcome),
                    Err(_) => self.loaded(&session, None),
                }
            }
            (Side::Editor, "session/prompt") => {
                let Some(session) = named.map(str::to_string) else { return };
                self.close(&session, MISSING);
                let state = self.session(&session);
                state.prompts = state.prompts.saturating_sub(1);
                self.event(
                    &session,
                    "prompt_finished",
                    outcome.unwrap_or_else(|error| json!({"error": error})),
                );
            }
            (Side::Agent, "session/request_permission") => {
                if let (Some(session), Some(approval)) = (named, approval) {
                    self.answer(session, approval, &params, outcome);
                }
            }
            (_, method) if method.starts_with("fs/") || method.starts_with("terminal/") => {}
            (_, method) => {
                let Some(session) = named.map(str::to_string) else { return };
                let options = outcome.as_ref().ok().map(|result| result["configOptions"].clone());
                self.options(&session, &options.unwrap_or_default());
                let kind = method.trim_start_matches("session/").replace('/', "_");
                let body = match outcome {
                    Ok(result) => json!({"params": params, "result": result}),
                    Err(error) => json!({"params": params, "error": error}),
                };
                self.event(&session, &kind, body);
            }
        }
    }

    fn notification(&mut self, side: Side, method: &str, mut params: Value) {
        let Some(session) = params["sessionId"].as_str().map(str::to_string) else { return };
        match (side, method) {
            (Side::Agent, "session/update") => self.update(&session, params["update"].take()),
            (Side::Editor, "session/cancel") => self.event(&session, "cancel", params),
            (_, method) => {
                let kind = method.trim_start_matches("session/").replace('/', "_");
                self.event(&session, &kind, params);
            }
        }
    }

    fn update(&mut self, session: &str, mut update: Value) {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default().to_string();
        match kind.as_str() {
            "user_message_chunk" => self.repeat(session, update["content"].take()),
            "agent_message_chunk" | "agent_thought_chunk" => {
                self.flush_repeated(session);
                self.chunk(session, kind == "agent_thought_chunk", &mut update);
            }
            "tool_call" | "tool_call_update" => {
                self.flush(session);
                self.call(session, &update);
            }
            _ => {
                if let ("session_info_update", Some(title)) = (kind.as_str(), update["title"].as_str()) {
                    self.push(session, AcpChange::Title(title.to_string()));
                }
                self.options(session, &update["configOptions"]);
                self.event(session, if kind.is_empty() { "update" } else { &kind }, update);
            }
        }
    }

    /// A prompt that the agent repeats. While it works on one, this is an echo of a recorded prompt.
    fn repeat(&mut self, session: &str, content: Value) {
        self.flush(session);
        let state = self.session(session);
        if state.replay.is_some() || state.prompts == 0 {
            state.repeated.push(content);
        }
    }

    fn chunk(&mut self, session: &str, is_thought: bool, update: &mut Value) {
        let id = update["messageId"].as_str().map(str::to_string);
        let state = self.session(session);
        if id.is_some() && state.message_id.is_some() && id != state.message_id {
            self.flush(session);
        }
        let (replayed, state) = (self.session(session).replay.is_some(), self.session(session));
        state.message_id = id.or(state.message_id.take());
        let text = match content::block(update["content"].take()) {
            // Thoughts that are not text have no place in a prompt.
            block if is_thought => {
                let text = block["text"].as_str().unwrap_or_default().to_string();
                content::grow(&mut state.blocks, "thinking", "thinking", &text);
                return;
            }
            block => match (block["type"].as_str(), block["text"].as_str()) {
                (Some("text"), Some(text)) => {
                    content::grow(&mut state.blocks, "text", "text", text);
                    text.to_string()
                }
                _ => return state.blocks.push(block),
            },
        };
        if !replayed && !text.is_empty() {
            self.push(session, AcpChange::Chunk(text));
        }
    }

    fn call(&mut self, session: &str, update: &Value) {
        let Some(id) = update["toolCallId"].as_str() else { return };
        let state = self.session(session);
        let at = match state.calls.iter().position(|call| call.id == id) {
            Some(at) => at,
            None => {
                state.calls.push(Call::new(id));
                state.calls.len() - 1
            }
        };
        match state.calls[at].merge(update) {
            Merged::Running if state.calls[at].is_known() => self.called(session, at),
            Merged::Running => {}
            Merged::Ended => {
                self.called(session, at);
                self.returned(session, at, None);
            }
            // The call was recorded; a later update is recorded as it is.
            Merged::Late => self.event(session, "tool_call_update", update.clone()),
        }
    }

    /// Records a call, once.
    fn called(&mut self, session: &str, at: usize) {
        let call = &mut self.session(session).calls[at];
        if !std::mem::replace(&mut call.is_written, true) {
            let (content, metadata) = (call.request(), call.about());
            let actor = Some(self.agent());
            self.say(session, Role::Assistant, content, actor, metadata);
        }
    }

    /// Records the result of a call; `missing` is the reason if there is none.
    fn returned(&mut self, session: &str, at: usize, missing: Option<&str>) {
        let terminals = std::mem::take(&mut self.terminals);
        let call = &mut self.session(session).calls[at];
        call.is_ended = true;
        let (content, metadata) = (call.result(&terminals, missing), call.about());
        let actor = Some(call.tool().to_string());
        self.terminals = terminals;
        self.say(session, Role::Tool, content, actor, metadata);
    }

    fn terminal(&mut self, params: &Value, result: &Value) {
        if let (Some(id), Some(output)) = (params["terminalId"].as_str(), result["output"].as_str())
            && (self.terminals.len() < TERMINALS_MAX || self.terminals.contains_key(id))
        {
            self.terminals.insert(id.to_string(), output.to_string());
        }
    }

    fn ask(&mut self, session: &str, params: &Value) -> String {
        self.flush(session);
        let update = &params["toolCall"];
        self.call(session, update);
        let id = update["toolCallId"].as_str().unwrap_or("permission").to_string();
        let state = self.session(session);
        state.approvals += 1;
        let number = state.approvals;
        let approval = format!("{}{}{number}", approvals_of(&id), self.run);
        let state = self.session(session);
        let at = state.calls.iter().position(|call| call.id == id);
        if let Some(at) = at {
            self.called(session, at);
        }
        let call = at.map(|at| &self.session(session).calls[at]);
        let tool = call.map_or("tool", |call| call.tool()).to_string();
        let question = call.and_then(|call| call.title()).unwrap_or(&tool);
        let question = question[..question.floor_char_boundary(APPROVAL_QUESTION_BYTES_MAX)].to_string();
        self.push(session, AcpChange::Ask { approval: approval.clone(), call: id, tool, question });
        approval
    }

    fn answer(&mut self, session: &str, approval: String, params: &Value, outcome: Result<Value, Value>) {
        let options = params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        let chosen = outcome.as_ref().ok().and_then(|result| result["outcome"]["optionId"].as_str());
        let kind = options
            .iter()
            .find(|option| chosen.is_some() && option["optionId"].as_str() == chosen)
            .and_then(|option| option["kind"].as_str());
        let resolved = match kind {
            Some(kind) if kind.starts_with("allow") => Approval::Approved,
            Some(_) => Approval::Denied,
            None => Approval::Cancelled,
        };
        self.push(session, AcpChange::Answer { approval: approval.clone(), outcome: resolved });
        let answer = outcome.unwrap_or_else(|error| json!({"error": error}));
        let body = json!({"approval_id": approval, "options": params["options"], "answer": answer});
        self.event(session, "permission", body);
    }

    fn began(
        &mut self,
        session: &str,
        is_new: bool,
        method: &str,
        params: &Value,
        outcome: &Result<Value, Value>,
    ) {
        let mut about = Map::new();
        about.insert("method".into(), method.into());
        about.insert("session_id".into(), session.into());
        for (name, value) in [("agent", &self.agent), ("editor", &self.editor), ("cwd", &params["cwd"])] {
            if !value.is_null() {
                about.insert(name.into(), value.clone());
            }
        }
        let options = outcome.as_ref().ok().map(|result| result["configOptions"].clone());
        self.options(session, &options.unwrap_or_default());
        let agent = self.agent();
        self.loaded(
            session,
            Some(AcpStart { is_new, agent, about: Value::Object(about), replay: Vec::new() }),
        );
    }

    /// Ends the replay of a session, and begins it.
    fn loaded(&mut self, session: &str, began: Option<AcpStart>) {
        if self.session(session).replay.is_some() {
            self.close(session, MISSING);
        }
        let replay = self.session(session).replay.take().unwrap_or_default();
        if let Some(began) = began {
            let state = self.session(session);
            state.has_begun = true;
            let early = std::mem::take(&mut state.early);
            self.push(session, AcpChange::AcpStart(AcpStart { replay, ..began }));
            early.into_iter().for_each(|what| self.push(session, what));
        }
    }

    fn options(&mut self, session: &str, options: &Value) {
        let model = options.as_array().into_iter().flatten().find(|option| option["category"] == "model");
        if let Some(model) = model.and_then(|option| option["currentValue"].as_str()) {
            self.session(session).model = Some(model.to_string());
        }
    }

    /// Ends the turn in progress, and gives up calls without a result.
    fn close(&mut self, session: &str, missing: &str) {
        self.flush_repeated(session);
        self.flush(session);
        for at in 0..self.session(session).calls.len() {
            if self.session(session).calls[at].is_ended {
                continue;
            }
            self.called(session, at);
            let state = self.session(session);
            let call = &state.calls[at];
            // A replay consists of turns.
            if state.replay.is_some() || call.has_output() {
                self.returned(session, at, Some(missing));
            } else {
                let abandoned = AcpChange::Abandon { call: call.id.clone(), reason: missing.into() };
                self.push(session, abandoned);
            }
        }
        self.session(session).calls.clear();
    }

    fn flush(&mut self, session: &str) {
        let state = self.session(session);
        state.message_id = None;
        let blocks = std::mem::take(&mut state.blocks);
        if !blocks.is_empty() {
            let actor = Some(self.agent());
            self.say(session, Role::Assistant, Value::Array(blocks), actor, json!({}));
        }
    }

    fn flush_repeated(&mut self, session: &str) {
        let blocks = std::mem::take(&mut self.session(session).repeated);
        if !blocks.is_empty() {
            let (content, metadata) = content::prompt(&Value::Array(blocks));
            self.say(session, Role::User, content, None, metadata);
        }
    }

    fn say(&mut self, session: &str, role: Role, content: Value, actor: Option<String>, metadata: Value) {
        let model = self.session(session).model.clone().filter(|_| role == Role::Assistant);
        let message = json!({"role": role, "content": content});
        let said = AcpTurn { role, message, actor, model, metadata };
        match &mut self.session(session).replay {
            Some(replay) => replay.push(said),
            None => self.push(session, AcpChange::Turn(said)),
        }
    }

    fn event(&mut self, session: &str, kind: &str, body: Value) {
        // While a session is loaded, the agent repeats recorded turns.
        if self.session(session).replay.is_none() {
            self.push(session, AcpChange::Event { kind: format!("acp.{kind}"), body });
        }
    }

    fn push(&mut self, session: &str, what: AcpChange) {
        let is_opening = self.opening > 0;
        let state = self.session(session);
        state.early.push(what);
        if !is_opening || state.has_begun {
            let steps = std::mem::take(&mut state.early).into_iter();
            self.steps.extend(steps.map(|what| AcpStep { session: session.to_string(), what }));
        }
    }

    fn session(&mut self, id: &str) -> &mut AcpSession {
        self.sessions.entry(id.to_string()).or_default()
    }
}

/// Whether the request opens a session under a new id. A fork is a session of its own, which begins with the agent's
/// memory.
fn is_opening(side: Side, method: &str) -> bool {
    side == Side::Editor && matches!(method, "session/new" | "session/fork")
}
