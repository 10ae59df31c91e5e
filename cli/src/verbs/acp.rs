//! `everturn acp`

use crate::args::Args;
use crate::client::Client;
use crate::open;
use crate::output::Failure;
use crate::relay::{self, NextLine, PassedLines};
use crate::verbs::session::uuid;
use clap::Args as ClapArgs;
use everturn_api::conversations::{ChangeConversation, CreateConversation, GetConversation};
use everturn_api::events::AppendEvent;
use everturn_api::state::{AbandonToolCall, GetState, RequestApproval, ResolveApproval};
use everturn_api::streams::{AppendChunk, CommitTurn, OpenTurn};
use everturn_api::turns::{AppendTurns, GetTurn, ListTurns, SupersedeTurn, TurnInput};
use everturn_core::Error;
use everturn_core::approval::Approval;
use everturn_core::event::check_name;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::turn::{Role, Status};
use everturn_engine::{HistoryEntry, HistoryQuery, NewStream, Update};
use everturn_formats::acp::{self, AcpChange, AcpListener, AcpStart, AcpStep, AcpTurn, Side};
use everturn_formats::session::Sender;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[derive(ClapArgs)]
#[command(
    after_help = "An editor starts this command instead of the agent; the agent's own command follows --.\n\
    Messages pass unchanged, even if they cannot be recorded.\n\nExamples:\n  \
    everturn acp -- claude-agent-acp\n  \
    everturn acp --store sqlite:work.db -- gemini --acp\n  \
    {\"agent_servers\": {\"Claude\": {\"command\": \"everturn\", \"args\": [\"acp\", \"--\", \"claude-agent-acp\"]}}}"
)]
pub struct Acp {
    /// Command that runs the agent
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<OsString>,
}

/// Pause between attempts to open a store that another program uses.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of steps that wait for the store.
const BACKLOG_MAX: usize = 100_000;
/// Maximum number of sessions to which an agent may give the same id.
const GENERATIONS_MAX: u32 = 10_000;
/// Maximum number of turns in a request.
const TURNS_AT_ONCE: usize = 100;

pub fn run(args: &Args, verb: &Acp) -> Result<(), Failure> {
    let program = verb.command.first().and_then(|program| Path::new(program).file_stem());
    let run = format!("{}-", &uuid()?[..8]);
    let listener = AcpListener::new(program.unwrap_or_default().to_string_lossy()).in_run(run);
    let args = args.for_thread();
    let status = relay::run(&verb.command, move |lines, editor| {
        AcpRecorder::new(args, listener, editor).run(&lines);
    })?;
    relay::end_as(status)
}

/// Records the messages that pass. A failure is reported once and does not stop them.
struct AcpRecorder {
    args: Args,
    listener: AcpListener,
    editor: Arc<relay::ClientPipe>,
    /// The store, once it could be opened.
    store: Option<Arc<Client>>,
    tried: Option<Instant>,
    backlog: VecDeque<AcpStep>,
    sessions: HashMap<String, RecordedSession>,
    has_complained: bool,
}

/// A session that is being recorded.
struct RecordedSession {
    id: ConversationId,
    /// The open assistant turn, once some of its text is in the store.
    open: Option<TurnId>,
    /// Its text that is not there yet.
    text: String,
}

impl AcpRecorder {
    fn new(args: Args, listener: AcpListener, editor: Arc<relay::ClientPipe>) -> AcpRecorder {
        AcpRecorder {
            args,
            listener,
            editor,
            store: None,
            tried: None,
            backlog: VecDeque::new(),
            sessions: HashMap::new(),
            has_complained: false,
        }
    }

    fn run(&mut self, lines: &PassedLines) {
        // Opened before it is needed, because that takes a moment.
        self.write();
        loop {
            let timeout = (!self.backlog.is_empty()).then_some(RETRY);
            match lines.next(timeout) {
                NextLine::Line(line) => {
                    let side = if line.from == Sender::Client { Side::Editor } else { Side::Agent };
                    let steps = self.listener.hear(side, &line.bytes);
                    self.take(steps);
                }
                NextLine::Nothing => {}
                NextLine::End => break,
            }
            if lines.take_lost() > 0 {
                let text = "messages are too large, or come faster than they can be written";
                self.complain(&Error::busy("acp.lost", text));
            }
            self.write();
            if lines.is_empty() {
                self.write_text();
            }
        }
        let steps = self.listener.finish();
        self.take(steps);
        self.tried = None;
        self.write();
    }

    fn take(&mut self, steps: Vec<AcpStep>) {
        let room = BACKLOG_MAX - self.backlog.len();
        if steps.len() > room {
            self.complain(&Error::busy("acp.backlog", "the store cannot be opened"));
        }
        self.backlog.extend(steps.into_iter().take(room));
    }

    /// Writes the waiting steps, if the store can be opened.
    fn write(&mut self) {
        if self.store.is_none() && self.tried.is_none_or(|tried| tried.elapsed() >= RETRY) {
            match open::sharing(&self.args) {
                Ok(store) => self.store = Some(Arc::new(store)),
                Err(Failure::Error(error)) => self.complain(&error),
                Err(_) => {}
            }
            self.tried = Some(Instant::now());
        }
        let Some(store) = self.store.clone() else { return };
        while let Some(step) = self.backlog.pop_front() {
            if let Err(error) = self.step(&store, step) {
                self.complain(&error);
            }
        }
    }

    fn step(&mut self, store: &Arc<Client>, AcpStep { session, what }: AcpStep) -> Result<(), Error> {
        if let AcpChange::AcpStart(began) = what {
            return self.begin(store, session, began);
        }
        if !self.sessions.contains_key(&session) {
            // Its beginning was not recorded.
            let began = AcpStart {
                is_new: false,
                agent: self.listener.agent(),
                about: json!({"session_id": session}),
                replay: Vec::new(),
            };
            self.begin(store, session.clone(), began)?;
        }
        let Some(open) = self.sessions.get_mut(&session) else { return Ok(()) };
        let conversation = open.id.into();
        match what {
            AcpChange::AcpStart(_) => Ok(()),
            AcpChange::Chunk(text) => {
                open.text.push_str(&text);
                Ok(())
            }
            AcpChange::Turn(said) => {
                open.text.clear();
                let turn = input(said)?;
                match open.open.take() {
                    Some(spoken) => finish(store, open.id, spoken, turn),
                    None => append(store, open.id, vec![turn]),
                }
            }
            AcpChange::Event { kind, body } => {
                let body = Raw::of(&body)?;
                store.call(AppendEvent { conversation, kind, actor: None, body }).map(drop)
            }
            AcpChange::Ask { approval, call, tool, question } => {
                let actor = Some(self.listener.agent());
                let ask = RequestApproval {
                    conversation,
                    approval_id: approval,
                    tool_call_id: Some(call),
                    tool_name: Some(tool),
                    question: Some(question),
                    actor: actor.filter(|actor| check_name("actor", actor).is_ok()),
                    deadline: None,
                };
                store.call(ask).map(drop)
            }
            AcpChange::Answer { approval, outcome } => store
                .call(ResolveApproval { conversation, approval, state: outcome, actor: None, reason: None })
                .map(drop),
            AcpChange::Abandon { call, reason } => {
                let reason = Some(reason);
                store.call(AbandonToolCall { conversation, call, actor: None, reason }).map(drop)
            }
            AcpChange::Title(title) => {
                let change =
                    ChangeConversation { conversation, title: Some(Some(title)), ..Default::default() };
                store.call(change).map(drop)
            }
        }
    }

    /// Finds or creates the conversation of a session, and follows it.
    fn begin(&mut self, store: &Arc<Client>, session: String, began: AcpStart) -> Result<(), Error> {
        let known = match began.is_new {
            true => None,
            false => known(store, &began.agent, &session)?,
        };
        let id = match known {
            Some(id) => id,
            None => create(store, &began.agent, &session, &began.about)?,
        };
        let head = store.call(GetConversation { conversation: id.into() })?.head.seq;
        if known.is_some() && !self.sessions.contains_key(&session) {
            give_up(store, id)?;
        }
        self.follow(store, &session, id, head + 1);
        self.sessions.insert(session, RecordedSession { id, open: None, text: String::new() });
        let body = Raw::of(&began.about)?;
        let kind = "acp.session".to_string();
        store.call(AppendEvent { conversation: id.into(), kind, actor: None, body })?;
        let prompts = if known.is_some() { prompts(store, id)? } else { 0 };
        let turns = unrecorded(began.replay, prompts).map(input).collect::<Result<Vec<_>, _>>()?;
        turns.chunks(TURNS_AT_ONCE).try_for_each(|turns| append(store, id, turns.to_vec()))
    }

    /// Tells the editor what happens to the conversation from a `seq` on.
    fn follow(&self, store: &Arc<Client>, session: &str, id: ConversationId, from: u64) {
        let (store, editor, session) = (store.clone(), self.editor.clone(), session.to_string());
        let tell = move || -> Result<(), Error> {
            let mut updates = store.follow(id, from)?;
            while let Some(update) = updates.next()? {
                let Update::Event(event) = update else { continue };
                if let Some(update) = acp::session_update(&event) {
                    let params = json!({"sessionId": session, "update": update});
                    editor.send(
                        &json!({"jsonrpc": "2.0", "method": acp::METHOD, "params": params}).to_string(),
                    );
                }
            }
            Ok(())
        };
        // Without a thread, or once the store is gone, the editor gets no notices; the agent's messages pass all the same.
        let _ = thread::Builder::new().name("acp-follow".into()).spawn(tell);
    }

    /// Writes text of open turns. Text that cannot be written now is in the turn once it is complete.
    fn write_text(&mut self) {
        let Some(store) = &self.store else { return };
        for session in self.sessions.values_mut().filter(|session| !session.text.is_empty()) {
            if session.open.is_none() {
                let new = NewStream { actor: Some(self.listener.agent()), ..NewStream::default() };
                session.open =
                    store.call(OpenTurn { conversation: session.id.into(), new }).ok().map(|turn| turn.id);
            }
            let delta = std::mem::take(&mut session.text);
            if let Some(turn) = session.open {
                let _ = store.call(AppendChunk { turn, delta, offset: None });
            }
        }
    }

    fn complain(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            eprintln!("everturn: the session goes on, but is not recorded completely: {error}");
        }
    }
}

/// The conversation of a session that was recorded before.
fn known(store: &Client, agent: &str, session: &str) -> Result<Option<ConversationId>, Error> {
    let mut known = None;
    for generation in 0..GENERATIONS_MAX {
        let id = acp::conversation_id(agent, session, generation);
        match store.call(GetConversation { conversation: id.into() }) {
            Ok(_) => known = Some(id),
            Err(Error::NotFound(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(known)
}

/// Ends the open turn with the complete message. If the process that held it open has ended, the turn was interrupted, and
/// the message supersedes it.
fn finish(store: &Client, id: ConversationId, spoken: TurnId, whole: TurnInput) -> Result<(), Error> {
    let Err(_) = store.call(CommitTurn { turn: spoken, last: whole.clone() }) else { return Ok(()) };
    match store.call(GetTurn { turn: spoken, conversation: None }).map(|turn| turn.status) {
        // The owner ended after it was written.
        Ok(Status::Complete) => Ok(()),
        Ok(Status::Interrupted) => {
            store.call(SupersedeTurn { turn: spoken, conversation: None, with: whole }).map(drop)
        }
        _ => append(store, id, vec![whole]),
    }
}

/// Gives up the calls and approvals that an earlier run waited for: the agent makes them anew.
fn give_up(store: &Client, id: ConversationId) -> Result<(), Error> {
    const REASON: &str = "the agent was started anew";
    let state = store.call(GetState { conversation: id.into(), at: None })?;
    for approval in state.pending_approvals {
        let is_ours = |call: &String| approval.approval_id.starts_with(&acp::approvals_of(call));
        if approval.tool_call_id.as_ref().is_some_and(is_ours) {
            let cancel = ResolveApproval {
                conversation: id.into(),
                approval: approval.approval_id,
                state: Approval::Cancelled,
                actor: None,
                reason: Some(REASON.into()),
            };
            store.call(cancel)?;
        }
    }
    for call in state.pending_tools.into_iter().filter_map(|tool| tool.tool_call_id) {
        let reason = Some(REASON.into());
        store.call(AbandonToolCall { conversation: id.into(), call, actor: None, reason })?;
    }
    Ok(())
}

/// A new conversation for a session. An agent may have given the same id to another session before.
fn create(store: &Client, agent: &str, session: &str, about: &Value) -> Result<ConversationId, Error> {
    for generation in 0..GENERATIONS_MAX {
        let id = acp::conversation_id(agent, session, generation);
        let metadata = BTreeMap::from([("acp".to_string(), Raw::of(about)?)]);
        match store.call(CreateConversation { id: Some(id), metadata, ..Default::default() }) {
            Ok(_) => return Ok(id),
            Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let (limit, advice) = (u64::from(GENERATIONS_MAX), "have the agent give out other ids");
    Err(Error::limit("GENERATIONS_MAX", limit, limit, advice))
}

/// Number of prompts in a conversation.
fn prompts(store: &Client, id: ConversationId) -> Result<usize, Error> {
    let mut prompts = 0;
    let mut query = HistoryQuery { limit: PAGE_ENTRIES_MAX, ..HistoryQuery::default() };
    loop {
        let page = store.call(ListTurns { conversation: id.into(), query: query.clone() })?;
        let is_prompt =
            |entry: &&HistoryEntry| matches!(entry, HistoryEntry::Turn(turn) if turn.role == Role::User);
        prompts += page.data.iter().filter(is_prompt).count();
        match page.next.and_then(|next| next.parse().ok()) {
            Some(next) => query.after = Some(next),
            None => return Ok(prompts),
        }
    }
}

/// The part of a repeated session after this many prompts: it was continued elsewhere.
fn unrecorded(replay: Vec<AcpTurn>, prompts: usize) -> impl Iterator<Item = AcpTurn> {
    let mut seen = 0;
    replay.into_iter().skip_while(move |said| {
        seen += usize::from(said.role == Role::User);
        seen <= prompts && prompts > 0
    })
}

fn append(store: &Client, id: ConversationId, turns: Vec<TurnInput>) -> Result<(), Error> {
    let append = AppendTurns { conversation: id.into(), turns, expected_seq: None, idempotency_key: None };
    store.call(append).map(drop)
}

fn input(said: AcpTurn) -> Result<TurnInput, Error> {
    let metadata = match said.metadata.as_object().is_some_and(|fields| !fields.is_empty()) {
        true => BTreeMap::from([("acp".to_string(), Raw::of(&said.metadata)?)]),
        false => BTreeMap::new(),
    };
    Ok(TurnInput {
        message: Some(Raw::of(&said.message)?),
        actor: said.actor.filter(|actor| check_name("actor", actor).is_ok()),
        model: said.model,
        adapter: Some("acp".into()),
        metadata,
        ..TurnInput::default()
    })
}
