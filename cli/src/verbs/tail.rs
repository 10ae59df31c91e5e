//! `everturn tail`

use crate::args::Args;
use crate::client::Client;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_api::assets::ListAssets;
use everturn_api::conversations::GetConversation;
use everturn_api::turns::GetTurn;
use everturn_core::Error;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::turn::Turn;
use everturn_engine::{Chunk, Update};
use everturn_views::speech;
use std::collections::HashMap;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn tail @last\n  everturn tail @last --from 1 --json\n  \
    EVERTURN_KEY=et_… everturn tail @last --url https://chats.example.org")]
pub struct Tail {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    /// First seq; by default the last ten events
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
}

/// Default number of events shown before following.
const EVENTS_SHOWN: u64 = 10;

pub fn run(args: &Args, verb: &Tail) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let id = store.resolve(&verb.conversation)?;
    let head = store.call(GetConversation { conversation: id.into() })?.head.seq;
    let from = verb.from.unwrap_or((head + 1).saturating_sub(EVENTS_SHOWN)).max(1);
    let mut updates = store.follow(id, from)?;
    let (mut called, mut growing) = (show::ShownCalls::default(), OpenTurnText::default());
    while let Some(update) = updates.next()? {
        match update {
            Update::Event(event) => show_event(args, &store, id, &event, &mut called, &mut growing)?,
            Update::Chunk(chunk) if args.json => {
                output::json(
                    &serde_json::json!({"turn": chunk.turn, "offset": chunk.offset, "chunk": &*chunk.text}),
                )?;
            }
            Update::Chunk(chunk) => growing.show(&store, id, &chunk)?,
            Update::Lagged { .. } => {}
            Update::Deleted => {
                return Err(Error::not_found("conversation.deleted", format!("{id} was deleted")).into());
            }
        }
    }
    Ok(())
}

fn show_event(
    args: &Args,
    store: &Client,
    id: ConversationId,
    event: &Event,
    called: &mut show::ShownCalls,
    growing: &mut OpenTurnText,
) -> Result<(), Failure> {
    if args.json {
        return output::json(event);
    }
    let turn: Option<TurnId> =
        event.turn.filter(|_| kind::begins_turn(&event.kind) || kind::ends_turn(&event.kind));
    match turn {
        // A turn that has just been opened has no text yet.
        Some(_) if event.kind == kind::OPENED => growing.end_line(),
        Some(turn) => {
            let turn = Turn::begun(event)
                .map_or_else(|| store.call(GetTurn { turn, conversation: Some(id.into()) }), Ok)?;
            if growing.finish(&turn)? {
                return Ok(());
            }
            super::history::look_back(store, id, &[&turn], called)?;
            output::text(show::turn(
                &turn,
                &store.call(ListAssets { conversation: id.into() })?.data,
                show::Detail::default(),
                called,
            ))
        }
        None => {
            growing.end_line()?;
            output::text(show::event(event))
        }
    }
}

/// Text of open turns, shown as it comes.
#[derive(Default)]
struct OpenTurnText {
    /// The turn whose text the current line belongs to.
    line: Option<TurnId>,
    texts: HashMap<TurnId, String>,
}

impl OpenTurnText {
    fn show(&mut self, store: &Client, id: ConversationId, chunk: &Chunk) -> Result<(), Failure> {
        if self.line != Some(chunk.turn) {
            self.end_line()?;
            let turn = store.call(GetTurn { turn: chunk.turn, conversation: Some(id.into()) })?;
            output::text(show::head(speech::of_turn(&turn), turn.actor.as_deref(), turn.created, turn.seq))?;
            output::piece("  ")?;
            self.line = Some(chunk.turn);
        }
        self.texts.entry(chunk.turn).or_default().push_str(&chunk.text);
        piece(&chunk.text)
    }

    /// Ends the line, after the rest of the turn if the line shows that turn: its last text may come together
    /// with its end. Returns whether the whole turn has been shown.
    fn finish(&mut self, turn: &Turn) -> Result<bool, Failure> {
        let shown = self.texts.remove(&turn.id);
        let message = turn.value();
        let text = message.as_ref().and_then(|message| message["content"].as_str());
        let rest = shown.as_deref().zip(text).and_then(|(shown, text)| text.strip_prefix(shown));
        let goes_on = self.line == Some(turn.id);
        if let Some(rest) = rest.filter(|_| goes_on) {
            piece(rest)?;
        }
        self.end_line()?;
        Ok(rest.is_some_and(|rest| goes_on || rest.is_empty()))
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        if self.line.take().is_some() { output::text("") } else { Ok(()) }
    }
}

/// Writes a part of a turn's text.
fn piece(text: &str) -> Result<(), Failure> {
    let lines: Vec<String> = text.split('\n').map(show::printable).collect();
    output::piece(lines.join("\n  "))
}
