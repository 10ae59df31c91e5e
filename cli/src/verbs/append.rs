//! `everturn append`

use crate::args::{Append, Args};
use crate::output::{self, Failure};
use crate::{open, show};
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_core::limits::BODY_BYTES_MAX;
use everturn_core::turn::{Role, Turn};
use everturn_engine::{AppendOptions, NewStream, NewTurn, Scope};
use std::io::Read;

pub fn run(args: &Args, verb: &Append) -> Result<(), Failure> {
    let role: Role = verb.role.parse()?;
    if verb.stream {
        let scope = open::writing(args)?;
        let id = scope.resolve(&verb.conversation)?;
        return said(args, &stream(&scope, id, verb, role)?);
    }
    // Read before the store is opened, so that a slow pipe does not keep others from writing.
    let text = if verb.text == "-" { standard_input()? } else { verb.text.clone() };
    let mut turn = match verb.message {
        true => NewTurn::message(text),
        false => NewTurn::text(role, text.trim_end_matches('\n')),
    };
    turn.actor = verb.actor.clone();
    turn.model = verb.model.clone();
    let options =
        AppendOptions { expected_seq: verb.expected_seq, idempotency_key: verb.idempotency_key.clone() };
    let scope = open::writing(args)?;
    let id = scope.resolve(&verb.conversation)?;
    let appended = scope.append(id, vec![turn], options).wait()?;
    appended.turns.iter().try_for_each(|turn| said(args, turn))
}

fn said(args: &Args, turn: &Turn) -> Result<(), Failure> {
    if args.json {
        return output::json(turn);
    }
    output::text(format!(
        "{}  {}",
        show::head(turn.role, turn.actor.as_deref(), turn.created, turn.seq),
        turn.id
    ))
}

fn standard_input() -> Result<String, Failure> {
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

/// Appends what comes while it comes. A character that is cut between two reads waits for its rest.
fn stream(scope: &Scope, id: ConversationId, verb: &Append, role: Role) -> Result<Turn, Failure> {
    let new = NewStream {
        actor: verb.actor.clone(),
        role: Some(role),
        model: verb.model.clone(),
        ..NewStream::default()
    };
    let turn = scope.append_open(id, new).wait()?.id;
    let mut input = std::io::stdin().lock();
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
        scope.append_chunk(id, turn, None, &text)?;
    };
    match ended {
        Ok(()) if pending.is_empty() => Ok(scope
            .append_commit(id, turn, NewTurn { model: verb.model.clone(), ..NewTurn::default() })
            .wait()?),
        Ok(()) => give_up(scope, id, turn, "standard input ended inside a character"),
        Err(reason) => give_up(scope, id, turn, &reason),
    }
}

fn give_up(
    scope: &Scope,
    id: ConversationId,
    turn: everturn_core::id::TurnId,
    reason: &str,
) -> Result<Turn, Failure> {
    scope.append_abort(id, turn, reason, None).wait()?;
    Err(Error::invalid("input.broken", format!("{reason}; what came before is kept in {turn} as aborted"))
        .into())
}
