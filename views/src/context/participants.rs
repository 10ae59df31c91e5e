//! One participant's view of a shared transcript.

use crate::speech;
use everturn_core::event::Visibility;
use everturn_core::message;
use everturn_core::pairing;
use everturn_core::turn::{Role, Turn};
use serde_json::{Value, json};

/// A turn from a participant's point of view.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// The participant's own, verbatim.
    Own,
    /// Another's: a user message that begins with the speaker's name.
    Told(Value),
    /// Not visible.
    Hidden,
}

/// Turns as participants see them: their own verbatim, in the role of the assistant; those of others as user
/// messages with the speaker's name. A tool result belongs to whoever called the tool. Private turns are
/// visible to their own actor and their audience only. Without participants the model is the only reader: it sees everything
/// except what users keep private.
pub fn seen_by(participants: &[String], turns: &[(&Turn, Option<&Value>)]) -> Vec<Seen> {
    let null = Value::Null;
    let pairs = pairing::pair(turns.iter().map(|(_, message)| message.unwrap_or(&null)));
    let is_own = |turn: &Turn| turn.actor.as_ref().is_some_and(|actor| participants.contains(actor));
    // For each turn with a tool result, whether its call is the participant's own.
    let answers_own = |index: usize| {
        let mut results = pairs.results.iter().filter(|result| result.message == index);
        results.any(|result| result.call.is_some_and(|call| is_own(turns[pairs.calls[call].message].0)))
    };
    let seen = |(index, (turn, message)): (usize, &(&Turn, Option<&Value>))| {
        let Some(message) = message else { return Seen::Hidden };
        let own = is_own(turn);
        let addressed = || turn.audience.iter().any(|name| participants.contains(name));
        let hidden = match participants.is_empty() {
            true => turn.role != Role::Assistant,
            false => !own && !addressed(),
        };
        if hidden && turn.visibility == Visibility::Private {
            return Seen::Hidden;
        }
        if participants.is_empty() || turn.role == Role::System {
            return Seen::Own;
        }
        let speech = speech::of_said(turn, Some(message));
        if speech.role == Role::Tool && speech.notice.is_none() {
            return if own || answers_own(index) { Seen::Own } else { Seen::Hidden };
        }
        match own {
            true if turn.role == Role::Assistant => Seen::Own,
            true => Seen::Told(with_role(message, "assistant")),
            false => Seen::Told(told(turn.actor.as_deref().unwrap_or(speech.name()), message)),
        }
    };
    turns.iter().enumerate().map(seen).collect()
}

fn with_role(message: &Value, role: &str) -> Value {
    let mut message = message.clone();
    message["role"] = json!(role);
    message
}

/// Another's message, prefixed with its speaker's name. Calls and results become text: they are not this
/// reader's.
fn told(name: &str, message: &Value) -> Value {
    let private = |block: &&Value| message::visibility(block) != Visibility::Private;
    let public = match message.get("content") {
        Some(Value::Array(blocks)) => {
            let mut message = message.clone();
            message["content"] = blocks.iter().filter(private).cloned().collect();
            message
        }
        _ => message.clone(),
    };
    json!({"role": "user", "content": format!("{name}: {}", message::render(&public, |_| None))})
}
