//! Reading order: a turn that replaces another takes its place.
//!
//! The log keeps the order of arrival. A turn and the turns that it replaces, directly or indirectly, form a chain.
//! The place of the chain is the smallest `seq` in it, and its one current turn is read there. So an edit moves
//! nothing, and no two current turns have the same place: a place can serve as a cursor.

use crate::projection::{Message, without_parts};
use everturn_core::Error;
use everturn_core::id::TurnId;
use everturn_core::pairing::{self, Call, PairedResult};
use everturn_core::turn::{Successor, Turn};
use std::collections::HashMap;

/// The place of every turn, given as id, `seq` and successor, in any order.
pub fn places(turns: impl IntoIterator<Item = (TurnId, u64, Option<Successor>)>) -> HashMap<TurnId, u64> {
    let mut ends: HashMap<TurnId, TurnId> = HashMap::new();
    let mut seqs = Vec::new();
    for (turn, seq, successor) in turns {
        seqs.push((turn, seq));
        if let Some(Successor::Turn(by)) = successor {
            ends.insert(turn, by);
        }
    }
    // In order of `seq`, the first turn of a chain determines its place.
    seqs.sort_unstable_by_key(|(_, seq)| *seq);
    let mut first: HashMap<TurnId, u64> = HashMap::new();
    seqs.iter()
        .map(|(turn, seq)| {
            let end = end_of(*turn, &mut ends);
            (*turn, *first.entry(end).or_insert(*seq))
        })
        .collect()
}

/// The end of a turn's chain. Compresses the path, so that a long chain is walked only once.
fn end_of(turn: TurnId, next: &mut HashMap<TurnId, TurnId>) -> TurnId {
    let mut way = Vec::new();
    let mut end = turn;
    while let Some(by) = next.remove(&end) {
        way.push(end);
        end = by;
    }
    // Two aborted turns may replace each other; then the chain ends where it was entered.
    next.extend(way.into_iter().filter(|turn| *turn != end).map(|turn| (turn, end)));
    end
}

/// The current turns in reading order. `turns` are those of a conversation, including superseded ones, in any order.
pub fn standing(mut turns: Vec<Turn>) -> Vec<Turn> {
    let places = places_of(&turns);
    turns.retain(|turn| turn.superseded_by.is_none());
    turns.sort_by_key(|turn| places[&turn.id]);
    turns
}

/// The messages of the current turns in reading order. A call that lost its result to an edit, by removal or by
/// moving, is left out, and so is a result that lost its call: providers reject one without the other.
pub fn messages(turns: &[Turn]) -> Result<Vec<Message>, Error> {
    let places = places_of(turns);
    let mut all = Vec::new();
    for turn in turns {
        if let Some(raw) = &turn.message {
            all.push((places[&turn.id], turn, Message::read(raw.clone())?));
        }
    }
    all.sort_by_key(|(place, ..)| *place);
    let stands = |turn: &Turn| turn.superseded_by.is_none();
    let standing = all.iter().filter(|(_, turn, _)| stands(turn));
    let messages: Vec<Message> = standing.clone().map(|(.., message)| message.clone()).collect();
    if turns.iter().all(stands) {
        return Ok(messages);
    }
    // The first place of each call and the last `seq` of each result, by id or else by name, including superseded ones.
    let (mut calls, mut results) = (HashMap::new(), HashMap::new());
    for (place, turn, message) in &all {
        let pairs = pairing::pair([message.value()]);
        for call in &pairs.calls {
            calls.entry(call.id.unwrap_or(call.name)).or_insert(*place);
        }
        for key in pairs.results.iter().filter_map(|result| result.id.or(result.name)) {
            let last = results.entry(key).or_insert(turn.seq);
            *last = (*last).max(turn.seq);
        }
    }
    let at: Vec<(u64, u64)> = standing.map(|(place, turn, _)| (*place, turn.seq)).collect();
    let pairs = pairing::pair(messages.iter().map(Message::value));
    let lost_call = |result: &&PairedResult<'_>| {
        let called = result.id.or(result.name).and_then(|key| calls.get(key));
        result.call.is_none() && called.is_some_and(|place| *place < at[result.message].1)
    };
    let lost_result = |call: &&Call<'_>| {
        let answered = results.get(call.id.unwrap_or(call.name));
        call.result.is_none() && answered.is_some_and(|seq| *seq > at[call.message].0)
    };
    let parts = pairs.results.iter().filter(lost_call).map(|result| (result.message, result.place));
    let parts = parts.chain(pairs.calls.iter().filter(lost_result).map(|call| (call.message, call.place)));
    without_parts(&messages, parts.collect())
}

fn places_of(turns: &[Turn]) -> HashMap<TurnId, u64> {
    places(turns.iter().map(|turn| (turn.id, turn.seq, turn.superseded_by)))
}
