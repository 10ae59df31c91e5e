//! `everturn tail`

use crate::args::{Args, Tail};
use crate::output::{self, Failure};
use crate::{open, show};
use everturn_core::Error;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::turn::Turn;
use everturn_engine::{Scope, Update};

/// How much is shown before following, unless said otherwise.
const EVENTS_SHOWN: u64 = 10;

pub fn run(args: &Args, verb: &Tail) -> Result<(), Failure> {
    let scope = open::reading(args)?;
    let id = scope.resolve(&verb.conversation)?;
    let head = scope.get(id)?.head.seq;
    let mut from = verb.from.unwrap_or((head + 1).saturating_sub(EVENTS_SHOWN)).max(1);
    loop {
        let mut updates = scope.subscribe(id, from)?;
        from = loop {
            match updates.recv()? {
                Some(Update::Event(event)) => show_event(args, &scope, id, &event)?,
                Some(Update::Chunk(chunk)) if args.json => {
                    output::json(
                        &serde_json::json!({"turn": chunk.turn, "offset": chunk.offset, "chunk": &*chunk.text}),
                    )?;
                }
                Some(Update::Chunk(_)) => {}
                // The terminal was slower than the conversation; nothing is lost, it is read again from there.
                Some(Update::Lagged { resume_from }) => break resume_from,
                Some(Update::Deleted) => {
                    return Err(Error::not_found("conversation.deleted", format!("{id} was deleted")).into());
                }
                None => return Ok(()),
            }
        };
    }
}

fn show_event(args: &Args, scope: &Scope, id: ConversationId, event: &Event) -> Result<(), Failure> {
    if args.json {
        return output::json(event);
    }
    let turn: Option<TurnId> =
        event.turn.filter(|_| kind::begins_turn(&event.kind) || kind::ends_turn(&event.kind));
    match turn {
        // A turn that has just been opened has nothing to show yet.
        Some(_) if event.kind == kind::OPENED => Ok(()),
        Some(turn) => {
            let turn = Turn::begun(event).map_or_else(|| scope.turn_in(id, turn), Ok)?;
            output::text(show::turn(&turn, &scope.assets(id)?, false))
        }
        None => output::text(show::event(event)),
    }
}
