//! `custom`: the choice of a projector, as long as it is valid.

use super::options::wrong;
use super::part::{Cut, protected_with_partners};
use super::{Decided, Message, Shown, Signatures, ViewOptions, hash, pair};
use everturn_core::Error;
use everturn_core::pairing::Pairs;
use serde_json::Value;
use std::collections::{HashMap, HashSet, VecDeque};

/// Selects the messages of a view. Must be pure: the same messages give the same result.
pub trait Projector: Send + Sync {
    /// Receives the messages and returns a list of messages, or `{messages, reason?, kept_indices?,
    /// dropped_indices?}`. A message that is returned equal is shown as it came, byte for byte. A number stands
    /// for the message at that index, so that nothing has to be copied and compared.
    fn project(&self, messages: &[&Message]) -> Result<Value, Error>;
}

impl<F: Fn(&[&Message]) -> Result<Value, Error> + Send + Sync> Projector for F {
    fn project(&self, messages: &[&Message]) -> Result<Value, Error> {
        self(messages)
    }
}

/// Runs the projector on the view so far and returns the reason.
pub(super) fn run<'a>(
    messages: &'a [Message],
    decided: &mut Decided<'a>,
    options: &ViewOptions,
) -> Result<String, Error> {
    let projector = options.projector()?;
    let given: Vec<&Message> = decided.shown.iter().map(|shown| &*shown.message).collect();
    let mut choice = Choice::read(projector.project(&given)?, given.len())?;
    let before = std::mem::take(&mut decided.shown);
    let pairs = pair(&before);
    let mut sources = match_in_order(&mut choice.messages, &before)?;
    if options.signatures == Signatures::PerTurn && sources.iter().all(Option::is_some) {
        // The position of a message that is put back is only clear if all others are from the transcript.
        let keep = protected_with_partners(&before, &pairs);
        let kept: HashSet<usize> = sources.iter().flatten().copied().collect();
        let put_back = (0..before.len()).filter(|index| keep[*index] && !kept.contains(index));
        let mut all: Vec<usize> = kept.iter().copied().chain(put_back).collect();
        if all.len() > kept.len() {
            all.sort_unstable();
            sources = all.into_iter().map(Some).collect();
            (choice.kept, choice.dropped) = (None, None);
            choice.messages.clear();
        }
    }
    let mut written = choice.messages.into_iter();
    let mut origins = Vec::with_capacity(sources.len());
    let mut shown = Vec::with_capacity(sources.len());
    for (n, source) in sources.iter().enumerate() {
        let message = written.next();
        origins.push(*source);
        shown.push(match (source, message) {
            (Some(index), _) => before[*index].clone(),
            (None, message) => {
                let claimed = choice.kept.as_ref().filter(|kept| kept.len() == sources.len());
                let source = claimed.and_then(|kept| before.get(kept[n])).and_then(Shown::source);
                Shown::written(Message::of(message.unwrap_or_default())?, source)
            }
        });
    }
    let cut = match is_end(&origins, &pairs, before.len()) {
        true => Cut::default(),
        false => mend(&shown, &origins, &pairs, before.len()),
    };
    let mended = cut.dropped.contains(&true);
    decided.shown = cut.apply(messages, shown)?;
    let to_source = |indices: Vec<usize>| indices.iter().filter_map(|index| before[*index].source).collect();
    decided.claim = match (choice.kept, choice.dropped) {
        (Some(kept), Some(dropped)) if !mended && before.len() == messages.len() => {
            Some((to_source(kept), to_source(dropped)))
        }
        _ => None,
    };
    Ok(choice.reason.unwrap_or_else(|| "custom".to_string()))
}

/// Result of a projector.
struct Choice {
    messages: Vec<Value>,
    reason: Option<String>,
    kept: Option<Vec<usize>>,
    dropped: Option<Vec<usize>>,
}

impl Choice {
    fn read(value: Value, messages: usize) -> Result<Choice, Error> {
        let mut fields = match value {
            Value::Array(messages) => {
                return Ok(Choice { messages, reason: None, kept: None, dropped: None });
            }
            Value::Object(fields) => fields,
            _ => return Err(wrong("projector", "must return a list of messages or an object with one")),
        };
        let Some(Value::Array(list)) = fields.shift_remove("messages") else {
            return Err(wrong("projector", "must return messages, a list"));
        };
        let reason = match fields.shift_remove("reason") {
            None | Some(Value::Null) => None,
            Some(Value::String(reason)) if !reason.trim().is_empty() => Some(reason),
            Some(_) => return Err(wrong("projector", "must return a reason that is text, or none")),
        };
        let mut indices = |name: &str| -> Result<Option<Vec<usize>>, Error> {
            let unfit =
                || wrong("projector", format_args!("must return {name} as a list of different indices"));
            let list = match fields.shift_remove(name) {
                None | Some(Value::Null) => return Ok(None),
                Some(Value::Array(list)) => list,
                Some(_) => return Err(unfit()),
            };
            let mut seen = HashSet::new();
            let index = |value: &Value| {
                let index = usize::try_from(value.as_u64()?).ok()?;
                (index < messages && seen.insert(index)).then_some(index)
            };
            list.iter().map(index).collect::<Option<_>>().map(Some).ok_or_else(unfit)
        };
        let (kept, dropped) = (indices("kept_indices")?, indices("dropped_indices")?);
        if let Some(name) = fields.keys().next() {
            return Err(wrong(
                "projector",
                format_args!("returned {}, which is unknown", everturn_core::id::clip(name)),
            ));
        }
        let (kept, dropped) = match (kept, dropped) {
            (None, None) => (None, None),
            (kept, dropped) => {
                let said: HashSet<usize> = kept.iter().chain(&dropped).flatten().copied().collect();
                let rest = || (0..messages).filter(|index| !said.contains(index)).collect();
                (Some(kept.unwrap_or_else(rest)), Some(dropped.unwrap_or_else(rest)))
            }
        };
        if let (Some(kept), Some(dropped)) = (&kept, &dropped) {
            let all: HashSet<usize> = kept.iter().chain(dropped).copied().collect();
            if all.len() < messages || kept.len() + dropped.len() > messages {
                let what = "must return kept_indices and dropped_indices that name every message once";
                return Err(wrong("projector", what));
            }
        }
        Ok(Choice { messages: list, reason, kept, dropped })
    }
}

/// For each returned message, the index of the original, in order: the first equal one after the previous
/// match. A number that refers to an earlier message becomes the content of that message.
fn match_in_order(returned: &mut [Value], shown: &[Shown<'_>]) -> Result<Vec<Option<usize>>, Error> {
    let mut equal: Option<HashMap<Vec<u8>, VecDeque<usize>>> = None;
    let mut next = 0;
    // A transcript that holds bare numbers is broken, but must pass: there a number is content.
    let are_indices = !shown.iter().any(|shown| shown.value().is_number());
    let mut find = |message: &mut Value| {
        if let (Value::Number(number), true) = (&*message, are_indices) {
            let index = number.as_u64().and_then(|index| usize::try_from(index).ok());
            let index = index.filter(|index| *index < shown.len()).ok_or_else(|| {
                wrong("projector", format_args!("returned {number}, which is not the index of a message"))
            })?;
            if index >= next {
                next = index + 1;
                return Ok(Some(index));
            }
            *message = shown[index].value().clone();
        }
        let equal = equal.get_or_insert_with(|| by_text(shown));
        let Some(places) = equal.get_mut(&hash::canonical(message)) else { return Ok(None) };
        while places.front().is_some_and(|place| *place < next) {
            places.pop_front();
        }
        let place = places.pop_front();
        next = place.map_or(next, |place| place + 1);
        Ok(place)
    };
    returned.iter_mut().map(&mut find).collect()
}

fn by_text(shown: &[Shown<'_>]) -> HashMap<Vec<u8>, VecDeque<usize>> {
    let mut equal: HashMap<_, VecDeque<_>> = HashMap::new();
    for (index, shown) in shown.iter().enumerate() {
        let mut text = Vec::new();
        shown.message.write_canonical(&mut text, &mut Vec::new());
        equal.entry(text).or_default().push_back(index);
    }
    equal
}

/// Whether only a beginning was left out, with no call or result reaching across: then all others are paired as
/// before, and need not be paired again. Reasoning is checked in any case.
fn is_end(origins: &[Option<usize>], pairs: &Pairs<'_>, messages: usize) -> bool {
    let Some(start) = messages.checked_sub(origins.len()) else { return false };
    pairs.reasoning.is_empty()
        && pairs.cut_at_or_before(start) == start
        && origins.iter().enumerate().all(|(n, origin)| *origin == Some(start + n))
}

/// For each message, the number of parts (given in order) before it.
fn starts(parts: impl Iterator<Item = usize>, messages: usize) -> Vec<usize> {
    let mut starts = vec![0; messages + 1];
    parts.for_each(|message| starts[message + 1] += 1);
    for n in 0..messages {
        starts[n + 1] += starts[n];
    }
    starts
}

/// Removes calls that lost their result, results that lost their call, and reasoning that leads to nothing.
/// Parts that had no partner before the projector ran are kept.
fn mend(shown: &[Shown<'_>], origins: &[Option<usize>], before: &Pairs<'_>, messages: usize) -> Cut {
    let pairs = pair(shown);
    // An unchanged message has the same calls and results as before, so each is found by counting.
    let calls = starts(before.calls.iter().map(|call| call.message), messages);
    let results = starts(before.results.iter().map(|result| result.message), messages);
    let was_call = |n: usize| {
        let call = &pairs.calls[n];
        origins[call.message].map(|origin| calls[origin] + call.nth)
    };
    let was_result = |n: usize| {
        let result = &pairs.results[n];
        origins[result.message].map(|origin| results[origin] + result.nth)
    };
    // `partner` is the previous one, and inside it the current one if that was kept.
    let is_whole = |was: Option<Option<usize>>, partner: Option<Option<usize>>| match (was, partner) {
        // If ids repeat, two parts that were not a pair may now look like one.
        (Some(was), Some(Some(partner))) => was == Some(partner),
        (Some(_), Some(None)) => true,
        (Some(was), None) => was.is_none(),
        (None, partner) => partner.is_some(),
    };
    let mut parts = Vec::new();
    for (n, call) in pairs.calls.iter().enumerate() {
        let was = was_call(n);
        // A call that the projector itself wrote at the very end waits for its result.
        let waits = call.result.is_none() && was.is_none() && call.message + 1 == shown.len();
        if !waits && !is_whole(was.map(|was| before.calls[was].result), call.result.map(was_result)) {
            parts.push((call.message, call.place));
        }
    }
    for (n, result) in pairs.results.iter().enumerate() {
        if !is_whole(was_result(n).map(|was| before.results[was].call), result.call.map(was_call)) {
            parts.push((result.message, result.place));
        }
    }
    let mut cut = Cut::of(shown, &pairs, parts);
    drop_lone_reasoning(origins, &pairs, &mut cut.dropped);
    cut
}

/// Drops reasoning items that are no longer followed by anything of their turn.
fn drop_lone_reasoning(origins: &[Option<usize>], pairs: &Pairs<'_>, dropped: &mut [bool]) {
    for (start, end) in &pairs.reasoning {
        // The very last one waits for what it will lead to.
        if *end == start + 1 && *end < origins.len() {
            dropped[*start] = true;
        }
    }
}
