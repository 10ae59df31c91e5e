//! Removing messages and parts of messages from a view so that the rest is valid.

use super::edit::{self, Edit};
use super::pointer::Pointer;
use super::{Message, Shown, pair};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::message::{self, MessagePart, field};
use everturn_core::pairing::{self, BlockPath, Pairs};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

/// Changes that one policy makes to the messages before it, by their index in that list.
#[derive(Default)]
pub(super) struct Cut {
    /// Messages to drop; empty means none.
    pub(super) dropped: Vec<bool>,
    /// Parts to remove.
    pub(super) removed: Vec<(usize, BlockPath)>,
    /// Bodies to replace. The pointers' places are those in the transcript.
    pub(super) reclaimed: Vec<(usize, Pointer)>,
    /// Message to put in front.
    pub(super) front: Option<Message>,
}

impl Edit {
    /// The place in the original message of the part that is now at `place`.
    pub(super) fn origin(&self, place: BlockPath) -> BlockPath {
        let Some(mut n) = place.index() else { return place };
        let kind = std::mem::discriminant(&place);
        // Removed places are sorted, so each earlier one shifts what follows by one.
        for gone in self.removed.iter().filter(|gone| std::mem::discriminant(*gone) == kind) {
            if gone.index().is_some_and(|gone| gone <= n) {
                n += 1;
            }
        }
        match place {
            BlockPath::Block(_) => BlockPath::Block(n),
            BlockPath::Part(_) => BlockPath::Part(n),
            BlockPath::ToolCall(_) => BlockPath::ToolCall(n),
            _ => BlockPath::ToolResult(n),
        }
    }
}

impl Cut {
    /// Removes the parts, messages of which nothing is left, and reasoning that led to nothing else.
    pub(super) fn of(shown: &[Shown<'_>], pairs: &Pairs<'_>, mut parts: Vec<(usize, BlockPath)>) -> Cut {
        let mut dropped = vec![false; shown.len()];
        parts.sort_by_key(|(index, _)| *index);
        for of_one in parts.chunk_by(|a, b| a.0 == b.0) {
            let index = of_one[0].0;
            let places: HashSet<BlockPath> = of_one.iter().map(|(_, place)| *place).collect();
            dropped[index] = is_nothing_left(shown[index].value(), &places);
        }
        drop_reasoning(pairs, &mut dropped);
        parts.retain(|(index, _)| !dropped[*index]);
        Cut { dropped, removed: parts, ..Cut::default() }
    }

    /// The list without the removed parts.
    pub(super) fn apply<'a>(
        mut self,
        messages: &'a [Message],
        mut shown: Vec<Shown<'a>>,
    ) -> Result<Vec<Shown<'a>>, Error> {
        self.removed.sort_by_key(|(index, _)| *index);
        self.reclaimed.sort_by_key(|(index, _)| *index);
        let mut removed = self.removed.into_iter().peekable();
        let mut reclaimed = self.reclaimed.into_iter().peekable();
        loop {
            let next = [removed.peek().map(|(index, _)| *index), reclaimed.peek().map(|(index, _)| *index)];
            let Some(index) = next.into_iter().flatten().min() else { break };
            let mut edit = Edit::default();
            while let Some((_, place)) = removed.next_if(|(at, _)| *at == index) {
                edit.removed.push(place);
            }
            while let Some((_, pointer)) = reclaimed.next_if(|(at, _)| *at == index) {
                edit.pointers.push(pointer);
            }
            if self.dropped.get(index) != Some(&true) {
                shown[index].change(messages, edit)?;
            }
        }
        if !self.dropped.is_empty() {
            let beginning = self.dropped.iter().take_while(|dropped| **dropped).count();
            let mut dropped = self.dropped[beginning..].iter();
            shown.drain(..beginning);
            if dropped.as_slice().contains(&true) {
                shown.retain(|_| dropped.next() != Some(&true));
            }
        }
        if let Some(front) = self.front {
            shown.insert(0, Shown::written(front, None));
        }
        Ok(shown)
    }
}

/// Removes parts of messages, and messages that become empty. Each of the others has its index.
pub(crate) fn without_parts(
    messages: &[Message],
    parts: Vec<(usize, BlockPath)>,
) -> Result<Vec<(usize, Message)>, Error> {
    let shown = super::raw(messages);
    let cut = Cut::of(&shown, &pair(&shown), parts);
    let left = cut.apply(messages, shown)?.into_iter();
    Ok(left.filter_map(|shown| Some((shown.source?, shown.message.into_owned()))).collect())
}

impl<'a> Shown<'a> {
    /// Edits the original message again with all changes so far, so that one edit records them all.
    pub(super) fn change(&mut self, messages: &'a [Message], more: Edit) -> Result<(), Error> {
        let source = self.source.filter(|_| !self.foreign).and_then(|index| messages.get(index));
        let (message, mut edit) = match source {
            None => (&*self.message, more),
            Some(source) => {
                let mut all = self.edit.take().map(Arc::unwrap_or_clone).unwrap_or_default();
                let places: Vec<_> = more.removed.iter().map(|place| all.origin(*place)).collect();
                all.removed.extend(places);
                all.removed.sort_by_key(|place| place.index());
                all.pointers.extend(more.pointers);
                (source, all)
            }
        };
        let edit::Written { text, canonical } = edit::apply(message.raw().get(), message.value(), &mut edit)?;
        self.message = Cow::Owned(Message::changed(Raw::joined(text)?, canonical));
        self.edit = source.map(|_| edit.into());
        Ok(())
    }
}

/// Whether a message has no content left without the parts. Reasoning alone does not count: it led to them.
fn is_nothing_left(message: &Value, gone: &HashSet<BlockPath>) -> bool {
    let empty_list = |key: &str, place: fn(usize) -> BlockPath| {
        let items = field(message, key).and_then(Value::as_array).map_or(0, Vec::len);
        (0..items).all(|n| gone.contains(&place(n)))
    };
    let says_nothing = |part: MessagePart<'_>| match part {
        MessagePart::Text(text) => text.trim().is_empty(),
        MessagePart::Thinking { .. } => true,
        _ => false,
    };
    let is_empty = |blocks: &[Value], place: fn(usize) -> BlockPath, read: fn(&Value) -> MessagePart<'_>| {
        let mut blocks = blocks.iter().enumerate();
        blocks.all(|(n, block)| gone.contains(&place(n)) || says_nothing(read(block)))
    };
    let empty_content = match (field(message, "content"), field(message, "parts")) {
        (Some(Value::String(text)), _) => text.trim().is_empty(),
        (Some(Value::Array(blocks)), _) => is_empty(blocks, BlockPath::Block, message::block),
        (None, Some(Value::Array(parts))) => is_empty(parts, BlockPath::Part, message::gemini_part),
        (content, _) => content.is_none_or(Value::is_null),
    };
    let has = |key: &str| field(message, key).is_some_and(|value| !value.is_null() && value != "");
    gone.contains(&BlockPath::Message)
        || empty_content
            && empty_list("tool_calls", BlockPath::ToolCall)
            && empty_list("tool_results", BlockPath::ToolResult)
            && (gone.contains(&BlockPath::FunctionCall) || !has("function_call"))
            && !has("refusal")
            && !has("audio")
}

/// Drops reasoning items whose following items are all gone: a provider refuses them alone.
fn drop_reasoning(pairs: &Pairs<'_>, dropped: &mut [bool]) {
    if pairs.reasoning.is_empty() {
        return;
    }
    // For each index, the number of messages before it that are not reasoning, and how many of those are kept.
    let mut thinks = vec![false; dropped.len()];
    pairs.reasoning.iter().for_each(|(index, _)| thinks[*index] = true);
    let mut before = vec![(0, 0)];
    for (gone, thinks) in dropped.iter().zip(&thinks) {
        let (all, kept) = before[before.len() - 1];
        before.push((all + usize::from(!thinks), kept + usize::from(!thinks && !gone)));
    }
    for (start, end) in &pairs.reasoning {
        let (all, kept) = (before[*end].0 - before[*start].0, before[*end].1 - before[*start].1);
        if all > 0 && kept == 0 {
            dropped[*start] = true;
        }
    }
}

/// Messages of turns with signed reasoning: those that carry it, and those that a signed reasoning item led to.
pub(super) fn protected(shown: &[Shown<'_>], pairs: &Pairs<'_>) -> Vec<bool> {
    let mut protected: Vec<bool> = shown.iter().map(|shown| shown.is_signed()).collect();
    let mut end_of_turn = 0;
    let signed: Vec<_> = pairs.reasoning.iter().filter(|(start, _)| protected[*start]).copied().collect();
    for (start, end) in signed {
        for slot in &mut protected[start.max(end_of_turn)..end.max(end_of_turn)] {
            *slot = true;
        }
        end_of_turn = end.max(end_of_turn);
    }
    protected
}

/// The same, with every message that is valid only together with one of them.
pub(super) fn protected_with_partners(shown: &[Shown<'_>], pairs: &Pairs<'_>) -> Vec<bool> {
    let mut keep = protected(shown, pairs);
    let mut partners: Vec<Vec<usize>> = vec![Vec::new(); shown.len()];
    for (call, result) in pairs.calls.iter().filter_map(|call| Some((call.message, call.result?))) {
        let result = pairs.results[result].message;
        partners[call].push(result);
        partners[result].push(call);
    }
    // A chain is enough to reach every item of a turn; turns may overlap, links need not.
    let mut linked = 0;
    for (start, end) in &pairs.reasoning {
        for index in linked.max(*start)..end - 1 {
            partners[index].push(index + 1);
            partners[index + 1].push(index);
        }
        linked = linked.max(end - 1);
    }
    let mut todo: Vec<usize> = (0..keep.len()).filter(|index| keep[*index]).collect();
    while let Some(index) = todo.pop() {
        for partner in &partners[index] {
            if !std::mem::replace(&mut keep[*partner], true) {
                todo.push(*partner);
            }
        }
    }
    keep
}

/// Whether every call is shown exactly if its result is, and no reasoning item stands alone.
pub(super) fn is_valid(messages: &[Message], shown: &[Shown<'_>]) -> bool {
    let mut gone: Vec<Option<&[BlockPath]>> = vec![None; messages.len()];
    for shown in shown {
        if let Some(source) = shown.source {
            gone[source] = Some(&shown.edit().removed);
        }
    }
    let is_shown = |index: usize, place| gone[index].is_some_and(|gone| !gone.contains(&place));
    let pairs = pairing::pair(messages.iter().map(Message::value));
    let whole = pairs.calls.iter().all(|call| {
        call.result
            .map(|result| &pairs.results[result])
            .is_none_or(|result| is_shown(call.message, call.place) == is_shown(result.message, result.place))
    });
    // The very last one still waits for what it will lead to.
    let led_to_something: HashSet<usize> = pairs
        .reasoning
        .iter()
        .filter(|(start, end)| *end > start + 1 || *end == messages.len())
        .map(|(start, _)| *start)
        .collect();
    whole
        && pair(shown).reasoning.iter().all(|(start, end)| {
            let led = shown[*start].source.is_some_and(|source| led_to_something.contains(&source));
            !led || *end > start + 1 || *end == shown.len()
        })
}
