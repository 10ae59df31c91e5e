//! Halves of tool calls that no prompt can hold.

use super::{ContextMessage, LeftOut, Section};
use crate::projection::{Message, without_parts};
use crate::tokens::TokenizerFamily;
use everturn_core::Error;
use everturn_core::pairing::{self, CallRef};

/// A part of the tail that is not shown, with the `seq` of its message.
pub type Unshown = (Option<u64>, LeftOut);

/// The tail without results that have no call in it, and without calls that have no result and wait for none; and these,
/// with the `seq` of their messages. No renderer shows them, so they take no room and count as no turns. `input` may have
/// results of calls in the tail.
pub fn drop_unpaired(
    tail: Vec<ContextMessage>,
    input: &[ContextMessage],
    waits: impl Fn(&CallRef<'_>) -> bool,
    family: TokenizerFamily,
) -> Result<(Vec<ContextMessage>, Vec<Unshown>), Error> {
    let pairs = pairing::pair(tail.iter().chain(input).map(|said| &said.message));
    let results = pairs.results.iter().filter(|result| result.call.is_none());
    let results =
        results.map(|result| (result.message, result.place, "tool result without its call".to_string()));
    let calls = pairs.calls.iter().filter(|call| call.result.is_none() && !waits(call));
    let calls =
        calls.map(|call| (call.message, call.place, format!("call of {} without its result", call.name)));
    let (mut parts, mut left_out) = (Vec::new(), Vec::new());
    for (message, place, reason) in results.chain(calls) {
        // A signed message is shown whole or not at all, which depends on the provider.
        let Some(said) = tail.get(message).filter(|said| !is_signed(said)) else { continue };
        parts.push((message, place));
        left_out.push((said.seq, LeftOut { section: Section::Tail, source: None, turns: None, reason }));
    }
    if parts.is_empty() {
        return Ok((tail, left_out));
    }
    let messages: Vec<Message> =
        tail.iter().map(|said| Message::read(said.raw.clone())).collect::<Result<_, _>>()?;
    let left = without_parts(&messages, parts)?.into_iter();
    let left = left.map(|(index, message)| match &tail[index] {
        same if same.raw == *message.raw() => same.clone(),
        said => ContextMessage {
            raw: message.raw().clone(),
            message: message.value().clone(),
            tokens: family.message(message.value()),
            ..said.clone()
        },
    });
    Ok((left.collect(), left_out))
}

/// Messages without the calls that have no result among them or in the input and wait for none; each with its index. Only
/// those for which `is_told` holds: they are shown as text to somebody else, in which nothing is paired any more.
pub fn drop_unanswered(
    messages: &[Message],
    input: &[Message],
    is_told: impl Fn(usize) -> bool,
    waits: impl Fn(&CallRef<'_>) -> bool,
) -> Result<Vec<(usize, Message)>, Error> {
    let pairs = pairing::pair(messages.iter().chain(input).map(Message::value));
    let calls = pairs.calls.iter().filter(|call| call.message < messages.len() && is_told(call.message));
    let unanswered = calls.filter(|call| call.result.is_none() && !waits(call));
    without_parts(messages, unanswered.map(|call| (call.message, call.place)).collect())
}

fn is_signed(said: &ContextMessage) -> bool {
    let text = said.raw.get();
    ["ignature\"", "redacted_thinking", "encrypted_content"].iter().any(|mark| text.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::BlockSource;
    use everturn_core::json::Raw;
    use serde_json::{Value, json};

    fn said(message: Value) -> ContextMessage {
        let tokens = TokenizerFamily::default().message(&message);
        ContextMessage {
            source: BlockSource::Given,
            seq: None,
            raw: Raw::of(&message).unwrap(),
            message,
            tokens,
        }
    }

    fn call(id: &str) -> Value {
        json!({"type": "tool_use", "id": id, "name": "ls", "input": {}})
    }

    fn result(id: &str) -> ContextMessage {
        said(json!({"role": "tool", "tool_call_id": id, "content": "a b"}))
    }

    #[test]
    fn halves_without_the_other_are_dropped_and_the_rest_stays_as_it_was() {
        let words = json!({"type": "text", "text": "I look."});
        let whole = said(json!({"role": "assistant", "content": [words, call("c1")]}));
        let half = said(json!({"role": "assistant", "content": [words, call("gone")]}));
        let waiting = said(json!({"role": "assistant", "content": [call("k1")]}));
        let answered = said(json!({"role": "assistant", "content": [call("k2")]}));
        let signed = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
        let signed = said(json!({"role": "assistant", "content": [signed, call("gone2")]}));
        let tail = vec![whole, result("c1"), result("x"), half, signed, waiting, answered];
        let input = [result("k2"), result("y")];
        let family = TokenizerFamily::default();
        let (left, left_out) =
            drop_unpaired(tail.clone(), &input, |call| call.id == Some("k1"), family).unwrap();
        let content: Vec<&Value> = left.iter().map(|said| &said.message["content"]).collect();
        let kept = |index: usize| &tail[index].message["content"];
        assert_eq!(content, [kept(0), kept(1), &json!([words]), kept(4), kept(5), kept(6)]);
        assert_eq!(left[2].tokens, family.message(&left[2].message));
        let reasons: Vec<&str> = left_out.iter().map(|(_, left)| left.reason.as_str()).collect();
        assert_eq!(reasons, ["tool result without its call", "call of ls without its result"]);
    }
}
