//! Reading order: a turn that replaces another takes its place.
//!
//! The log keeps the order of arrival. A turn and the turns that it replaces, directly or indirectly, form a chain.
//! The place of the chain is the smallest `seq` in it, and its one current turn is read there (the rows of a store hold
//! it). So an edit moves nothing, and no two current turns have the same place: a place can serve as a cursor.

use crate::projection::{Message, without_parts};
use everturn_core::Error;
use everturn_core::pairing::{self, CallRef, PairedResult};
use everturn_core::turn::Turn;
use std::collections::HashMap;

/// The messages of the current turns in reading order. `turns` are those of a conversation, including superseded ones, in
/// any order; each message has the index of its turn. A call that lost its result to an edit, by removal or by
/// moving, is left out, and so is a result that lost its call: providers reject one without the other.
pub fn messages(turns: &[Turn]) -> Result<Vec<(usize, Message)>, Error> {
    let mut all = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        if let Some(raw) = &turn.message {
            all.push((index, turn, Message::read(raw.clone())?));
        }
    }
    all.sort_by_key(|(_, turn, _)| turn.place);
    let stands = |turn: &Turn| turn.superseded_by.is_none();
    let standing = all.iter().filter(|(_, turn, _)| stands(turn));
    let (indices, messages): (Vec<usize>, Vec<Message>) =
        standing.clone().map(|(index, _, message)| (*index, message.clone())).unzip();
    if turns.iter().all(stands) {
        return Ok(indices.into_iter().zip(messages).collect());
    }
    // The first place of each call and the last `seq` of each result, by id or else by name, including superseded ones.
    let (mut calls, mut results) = (HashMap::new(), HashMap::new());
    for (_, turn, message) in &all {
        let pairs = pairing::pair([message.value()]);
        for call in &pairs.calls {
            calls.entry(call.id.unwrap_or(call.name)).or_insert(turn.place);
        }
        for key in pairs.results.iter().filter_map(|result| result.id.or(result.name)) {
            let last = results.entry(key).or_insert(turn.seq);
            *last = (*last).max(turn.seq);
        }
    }
    let at: Vec<(u64, u64)> = standing.map(|(_, turn, _)| (turn.place, turn.seq)).collect();
    let pairs = pairing::pair(messages.iter().map(Message::value));
    let lost_call = |result: &&PairedResult<'_>| {
        let called = result.id.or(result.name).and_then(|key| calls.get(key));
        result.call.is_none() && called.is_some_and(|place| *place < at[result.message].1)
    };
    let lost_result = |call: &&CallRef<'_>| {
        let answered = results.get(call.id.unwrap_or(call.name));
        call.result.is_none() && answered.is_some_and(|seq| *seq > at[call.message].0)
    };
    let parts = pairs.results.iter().filter(lost_call).map(|result| (result.message, result.place));
    let parts = parts.chain(pairs.calls.iter().filter(lost_result).map(|call| (call.message, call.place)));
    let left = without_parts(&messages, parts.collect())?;
    Ok(left.into_iter().map(|(message, left)| (indices[message], left)).collect())
}
