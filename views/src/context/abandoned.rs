//! Results that stand for those of abandoned calls: providers reject a call without a result.

use super::{BlockSource, ContextMessage};
use crate::tokens::TokenizerFamily;
use everturn_core::Error;
use everturn_core::id::{EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::pairing;
use serde_json::{Value, json};

/// A tool call that was given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GivenUp {
    /// Its turn: a later call may have the same id.
    pub turn: Option<TurnId>,
    /// Id of the call.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Reason given.
    pub reason: Option<String>,
}

impl GivenUp {
    /// Whether it is this call. One without an id is known by its name. A message that a projection made is of no turn.
    pub fn is_of(&self, turn: Option<TurnId>, id: Option<&str>, name: &str) -> bool {
        let is_same = match &self.id {
            Some(given_up) => id == Some(given_up),
            None => id.is_none() && self.name == name,
        };
        is_same && (self.turn.is_none() || turn.is_none() || self.turn == turn)
    }

    /// The message that stands for its result.
    pub fn result(&self) -> Value {
        let content = match &self.reason {
            Some(reason) => format!("No result: the call was abandoned ({reason})."),
            None => "No result: the call was abandoned.".to_string(),
        };
        let mut message = json!({"role": "tool", "name": self.name, "content": content, "is_error": true});
        if let Some(id) = &self.id {
            message["tool_call_id"] = id.as_str().into();
        }
        message
    }
}

/// Adds a result to each abandoned call of the tail that has none: behind its message, and behind the results of the
/// other calls in it.
pub fn answer_abandoned(
    tail: Vec<ContextMessage>,
    given_up: &[GivenUp],
    family: TokenizerFamily,
) -> Result<Vec<ContextMessage>, Error> {
    if given_up.is_empty() {
        return Ok(tail);
    }
    let pairs = pairing::pair(tail.iter().map(|said| &said.message));
    // Calls of one message and their results are read together, so each message is looked up once.
    let mut behind: Vec<usize> = (0..tail.len()).collect();
    for call in &pairs.calls {
        let result = call.result.map_or(call.message, |result| pairs.results[result].message);
        behind[call.message] = behind[call.message].max(result);
    }
    let mut added: Vec<(usize, ContextMessage)> = Vec::new();
    for call in pairs.calls.iter().filter(|call| call.result.is_none()) {
        let turn = turn_of(&tail[call.message]);
        let Some(given_up) = given_up.iter().find(|given_up| given_up.is_of(turn, call.id, call.name)) else {
            continue;
        };
        let message = GivenUp { name: call.name.to_string(), ..given_up.clone() }.result();
        let said = ContextMessage {
            source: BlockSource::Made,
            seq: tail[call.message].seq,
            raw: Raw::of(&message)?,
            tokens: family.message(&message),
            message,
        };
        added.push((behind[call.message], said));
    }
    added.sort_by_key(|(behind, _)| *behind);
    let mut added = added.into_iter().peekable();
    let mut answered = Vec::with_capacity(tail.len() + added.len());
    for (index, said) in tail.into_iter().enumerate() {
        answered.push(said);
        while let Some((_, said)) = added.next_if(|(behind, _)| *behind == index) {
            answered.push(said);
        }
    }
    Ok(answered)
}

/// The turn of a message.
fn turn_of(said: &ContextMessage) -> Option<TurnId> {
    let BlockSource::Ids(ids) = &said.source else { return None };
    ids.first()?.parse::<EventId>().ok().map(|id| TurnId(id.0))
}
