//! `everturn append`

use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::state::GetState;
use everturn_api::streams::{AbortTurn, AppendChunk, CommitTurn, OpenTurn};
use everturn_api::turns::{AppendTurns, ListTurns, TurnInput};
use everturn_core::Error;
use everturn_core::event::{Visibility, kind};
use everturn_core::id::{ConversationId, TurnId, clip};
use everturn_core::json::Raw;
use everturn_core::limits::{BODY_BYTES_MAX, PAGE_ENTRIES_MAX};
use everturn_core::turn::{Role, Turn, TurnBody};
use everturn_engine::{HistoryEntry, HistoryQuery, NewStream, NewTurn, Order};
use everturn_views::speech;
use everturn_views::state::{AbandonedBody, PendingTool};
use std::io::{BufRead, BufReader, Read};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn append @last 'What did we decide?'\n  \
    git log -3 | everturn append @last --role tool --tool-call-id call_7 -\n  \
    make 2>&1 | everturn append @last --role tool --actor make -\n  \
    everturn append @last --message '{\"role\":\"assistant\",\"content\":\"hi\"}'\n  \
    llm 'Tell me a story' | everturn append @last --role assistant --stream -")]
pub struct Append {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// Text of the turn; - reads it from standard input
    #[arg(value_name = "TEXT", default_value = "-")]
    text: String,
    #[arg(hide = true)]
    unquoted: Vec<String>,
    /// Role: user, assistant, system or tool
    #[arg(long, default_value = "user")]
    role: String,
    /// Actor that speaks
    #[arg(long)]
    actor: Option<String>,
    /// Only its own actor may see it
    #[arg(long)]
    private: bool,
    /// Actor that it is addressed to: only these and its own actor may see it; may be repeated
    #[arg(long, value_name = "ACTOR")]
    to: Vec<String>,
    /// TEXT is a message as JSON, in any provider's shape; it is stored unchanged
    #[arg(long, conflicts_with_all = ["role", "stream"])]
    message: bool,
    /// Append the text while it is still arriving on standard input
    #[arg(long)]
    stream: bool,
    /// Id of the tool call that TEXT is the result of; by default, the only call that waits for one
    #[arg(long, value_name = "ID", conflicts_with_all = ["message", "stream"])]
    tool_call_id: Option<String>,
    /// Model that produced it
    #[arg(long)]
    model: Option<String>,
    /// Refuse unless the log ends at this seq
    #[arg(long, value_name = "SEQ", conflicts_with = "stream")]
    expected_seq: Option<u64>,
    /// Idempotency key: repeating the request with the same key changes nothing
    #[arg(long, value_name = "KEY", conflicts_with = "stream")]
    idempotency_key: Option<String>,
}

pub fn run(args: &Args, verb: &Append) -> Result<(), Failure> {
    if !verb.unquoted.is_empty() {
        let text = format!("{} {}", verb.text, verb.unquoted.join(" "));
        let text = format!(
            "the text is more than one argument; quote it: everturn append {} {}",
            verb.conversation,
            show::quoted(&text)
        );
        Args::whole().error(clap::error::ErrorKind::TooManyValues, text).exit();
    }
    let role: Role = show::option("--role", &verb.role)?;
    if verb.tool_call_id.is_some() && role != Role::Tool {
        let text = "only a tool's turn answers a call; add --role tool";
        return Err(Error::invalid("append.tool_call_id", text).into());
    }
    if verb.stream {
        let store = open::streaming(args)?;
        let id = store.resolve(&verb.conversation)?;
        return said(args, &stream(&store, id, verb, role)?);
    }
    // Read before the store is opened, so that a slow pipe does not block other writers.
    let text = if verb.text == "-" { standard_input()? } else { verb.text.clone() };
    // A tool may have no output.
    if text.trim().is_empty() && (verb.message || role != Role::Tool) {
        return Err(empty().into());
    }
    let store = open::writing(args)?;
    let conversation = store.resolve(&verb.conversation)?;
    let mut turn = match verb.message {
        true => NewTurn::message(text),
        false if role == Role::Tool => match answered_call(&store, conversation, verb)? {
            Some(id) => NewTurn::tool_result(&id, text.trim_end_matches('\n')),
            None => NewTurn::text(role, text.trim_end_matches('\n')),
        },
        false => NewTurn::text(role, text.trim_end_matches('\n')),
    };
    turn.actor = verb.actor.clone();
    turn.visibility = verb.private.then_some(Visibility::Private);
    turn.audience = verb.to.clone();
    turn.model = verb.model.clone();
    let append = AppendTurns {
        conversation: conversation.into(),
        turns: vec![input(turn)?],
        expected_seq: verb.expected_seq,
        idempotency_key: verb.idempotency_key.clone(),
    };
    store.call(append)?.turns.iter().try_for_each(|turn| said(args, turn))
}

fn empty() -> Error {
    let text = "there is nothing to append: the text is empty; give it as TEXT, or on standard input";
    Error::invalid("append.empty", text)
}

/// Id of the call that a tool's text answers: the named one, which must be pending, else the only pending one. `None` if
/// there is none.
fn answered_call(
    store: &Client,
    conversation: ConversationId,
    verb: &Append,
) -> Result<Option<String>, Failure> {
    // A repeated request must be the same, and the call is pending only the first time.
    if verb.idempotency_key.is_some() {
        return Ok(verb.tool_call_id.clone());
    }
    let waiting = store.call(GetState { conversation: conversation.into(), at: None })?.pending_tools;
    let names: Vec<String> = waiting.iter().map(named).collect();
    let names = names.join(", ");
    match (&verb.tool_call_id, &waiting[..]) {
        (Some(id), _) if waiting.iter().any(|tool| tool.tool_call_id.as_ref() == Some(id)) => {
            Ok(Some(id.clone()))
        }
        (Some(id), _) if was_abandoned(store, conversation, id)? => Ok(Some(id.clone())),
        (Some(id), _) => {
            let others = match waiting.is_empty() {
                true => "none does".to_string(),
                false => format!("these do: {names}"),
            };
            let text = format!(
                "no tool call {:?} waits for a result; {others}; --message stores any message",
                clip(id)
            );
            Err(Error::not_found("append.no_such_call", text).into())
        }
        (None, []) => {
            eprintln!(
                "note: no tool call waits for a result; the text is stored as a tool's, without a call"
            );
            Ok(None)
        }
        (None, [only]) => Ok(only.tool_call_id.clone()),
        (None, several) => {
            let text = format!(
                "{} calls wait for a result: {names}; name the one that this answers with --tool-call-id",
                several.len(),
            );
            Err(Error::invalid("append.which_call", text).into())
        }
    }
}

/// A pending call, with its tool.
fn named(tool: &PendingTool) -> String {
    let name = show::one_line(&tool.tool_name);
    tool.tool_call_id.as_ref().map_or(name.clone(), |id| format!("{} ({name})", show::one_line(id)))
}

/// Whether a call was given up recently: a result that comes later still counts.
fn was_abandoned(store: &Client, conversation: ConversationId, call: &str) -> Result<bool, Error> {
    let query = HistoryQuery {
        order: Order::Descending,
        include_events: true,
        limit: PAGE_ENTRIES_MAX,
        ..HistoryQuery::default()
    };
    let page = store.call(ListTurns { conversation: conversation.into(), query })?;
    Ok(page.data.iter().any(|entry| match entry {
        HistoryEntry::Event(event) if event.kind == kind::TOOL_ABANDONED => {
            event.read::<AbandonedBody>().is_some_and(|body| body.tool_call_id.as_deref() == Some(call))
        }
        _ => false,
    }))
}

/// A turn to send. One that is too large for an event is refused with the engine's error: a server would only refuse the
/// request as too large.
pub fn input(turn: NewTurn) -> Result<TurnInput, Error> {
    let turn = TurnInput::try_from(turn)?;
    if let Some(message) = turn.message.as_ref().filter(|message| message.get().len() >= BODY_BYTES_MAX) {
        let body =
            TurnBody { message: Some(message.clone()), model: turn.model.clone(), ..TurnBody::default() };
        let bytes = Raw::of(&body)?.get().len() as u64;
        let advice = "split the turn or put the payload into an asset";
        return Err(Error::limit("BODY_BYTES_MAX", BODY_BYTES_MAX as u64, bytes, advice));
    }
    Ok(turn)
}

pub fn said(args: &Args, turn: &Turn) -> Result<(), Failure> {
    if args.json {
        return output::json(turn);
    }
    output::text(format!(
        "{}  {}",
        show::head(speech::of_turn(turn), turn.actor.as_deref(), turn.created, turn.seq),
        turn.id
    ))
}

pub fn standard_input() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin().take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > BODY_BYTES_MAX {
        let got = bytes.len() as u64;
        return Err(Error::limit("BODY_BYTES_MAX", BODY_BYTES_MAX as u64, got, "append it in parts").into());
    }
    String::from_utf8(bytes).map_err(|e| {
        let text =
            format!("standard input is not UTF-8 at byte {}; convert it first", e.utf8_error().valid_up_to());
        Error::invalid("input.not_utf8", text).into()
    })
}

/// Appends text while it arrives. A character split between two reads waits for its rest.
fn stream(store: &Client, id: ConversationId, verb: &Append, role: Role) -> Result<Turn, Failure> {
    let new = NewStream {
        visibility: verb.private.then_some(Visibility::Private),
        audience: verb.to.clone(),
        actor: verb.actor.clone(),
        role: Some(role),
        model: verb.model.clone(),
        ..NewStream::default()
    };
    let mut input = BufReader::new(std::io::stdin().lock());
    if input.fill_buf()?.is_empty() {
        return Err(empty().into());
    }
    let turn = store.call(OpenTurn { conversation: id.into(), new })?.id;
    let mut length = 0;
    let mut pending: Vec<u8> = Vec::new();
    let mut buffer = [0; 8192];
    let ended = loop {
        let read = match input.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(read) => read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => break Err(format!("standard input failed: {e}")),
        };
        pending.extend_from_slice(&buffer[..read]);
        let whole = match std::str::from_utf8(&pending) {
            Ok(text) => text.len(),
            Err(e) if e.error_len().is_some() => {
                break Err("standard input is not UTF-8; convert it first".to_string());
            }
            Err(e) => e.valid_up_to(),
        };
        let text = String::from_utf8_lossy(&pending[..whole]).into_owned();
        pending.drain(..whole);
        length = store.call(AppendChunk { turn, delta: text, offset: Some(length) })?.length;
    };
    match ended {
        Ok(()) if pending.is_empty() => {
            let last = TurnInput { model: verb.model.clone(), ..TurnInput::default() };
            Ok(store.call(CommitTurn { turn, last })?)
        }
        Ok(()) => give_up(store, turn, "standard input ended inside a character"),
        Err(reason) => give_up(store, turn, &reason),
    }
}

fn give_up(store: &Client, turn: TurnId, reason: &str) -> Result<Turn, Failure> {
    store.call(AbortTurn { turn, reason: reason.into(), replacement: None })?;
    Err(Error::invalid("input.broken", format!("{reason}; what came before is kept in {turn} as aborted"))
        .into())
}
