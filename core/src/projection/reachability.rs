//! `reachability_gc`: without the bodies of old tool results that nothing refers to.
//!
//! Names are compared by a 64-bit hash, so that nothing is copied. Two names with one hash would only keep a body
//! that could have gone.

use super::clearing::body_pointer;
use super::hash::of_body;
use super::part::Cut;
use super::{Memo, Options, Policy, Shown, Signatures, pair};
use crate::identifier::{self, Kind};
use crate::pairing::{self, Answer, Pairs};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) fn cut(
    shown: &[Shown<'_>],
    options: &Options,
    consulted: &mut Vec<String>,
    memo: &Memo,
) -> (Cut, &'static str) {
    let knobs = &options.reachability;
    if knobs.require_write_barrier && !knobs.write_barrier {
        return (Cut::default(), "reachability_gc_write_barrier_missing");
    }
    let pairs = pair(shown);
    let window = shown.len().saturating_sub(knobs.root_window);
    let mut candidates = Vec::new();
    let mut kept = Vec::new();
    for result in pairs.results.iter().take_while(|result| result.message < window) {
        let stays = result.failed
            || options.signatures == Signatures::PerTurn && shown[result.message].message.is_signed();
        if stays || !is_long(result, knobs.min_chars) {
            kept.push(result);
        } else {
            candidates.push(result);
        }
    }
    let mut note = |name: &str| {
        if !consulted.iter().any(|known| known == name) {
            consulted.push(name.to_string());
        }
    };
    let mut roots = Roots::default();
    if window < shown.len() {
        note("root_window");
        for shown in &shown[window..] {
            envelope(shown.value(), &mut |name, _| {
                roots.insert(name);
            });
        }
    }
    for (field, value) in &knobs.roots {
        note(field);
        material(value, &mut roots);
    }
    if knobs.transitive {
        for result in kept {
            roots.extend(names_of(result, shown, &pairs).map(|(name, _)| name));
        }
    }
    // What every conversation is full of refers to nothing.
    for word in ENVELOPE {
        roots.remove(&hash(word));
    }
    for name in pairs.calls.iter().map(|call| call.name).chain(pairs.results.iter().filter_map(|r| r.name)) {
        roots.remove(&hash(name));
    }
    let reached = if knobs.transitive {
        reached_through_results(&candidates, shown, &pairs, &roots)
    } else {
        let refers = |result: &Answer<'_>| {
            is_called_for(result, &pairs, &roots)
                || names_of(result, shown, &pairs)
                    .any(|(name, is_identifier)| is_identifier && roots.contains(&name))
        };
        candidates.iter().map(|result| refers(result)).collect()
    };
    let unreached = candidates.into_iter().zip(reached).filter(|(_, reached)| !reached);
    let pointer = |result: &Answer<'_>| body_pointer(shown, &pairs, result, Policy::ReachabilityGc, memo);
    let reclaimed = unreached.filter_map(|(result, _)| Some((result.message, pointer(result)?))).collect();
    (Cut { reclaimed, ..Cut::default() }, "reachability_gc")
}

/// Whether a body is long enough, as its pointer will say.
fn is_long(result: &Answer<'_>, min_chars: usize) -> bool {
    match result.content() {
        None => false,
        Some(Value::String(text)) => text.len() >= min_chars && text.chars().count() >= min_chars,
        Some(body) => of_body(body).1 >= min_chars,
    }
}

/// Which of the results are reached from the roots, directly or through another one.
fn reached_through_results(
    results: &[&Answer<'_>],
    shown: &[Shown<'_>],
    pairs: &Pairs<'_>,
    roots: &Roots,
) -> Vec<bool> {
    let mut reached = vec![false; results.len()];
    let mut todo = Vec::new();
    let mut says: Vec<Vec<u64>> = vec![Vec::new(); results.len()];
    // For each name the last result that bears it, and behind each entry the one before it: lists without a list each.
    let mut last: HashMap<u64, usize, Plain> = HashMap::default();
    let mut bearers: Vec<(usize, Option<usize>)> = Vec::new();
    let tools: Roots = pairs
        .calls
        .iter()
        .map(|call| hash(call.name))
        .chain(ENVELOPE.iter().map(|word| hash(word)))
        .collect();
    for (n, result) in results.iter().enumerate() {
        if is_called_for(result, pairs, roots) {
            reached[n] = true;
            todo.push(n);
        }
        for (name, is_identifier) in names_of(result, shown, pairs) {
            if tools.contains(&name) {
                continue;
            }
            says[n].push(name);
            if is_identifier {
                let before = last.insert(name, bearers.len());
                bearers.push((n, before));
                if roots.contains(&name) && !std::mem::replace(&mut reached[n], true) {
                    todo.push(n);
                }
            }
        }
    }
    while let Some(n) = todo.pop() {
        for name in std::mem::take(&mut says[n]) {
            // Once everything that bears a name is reached, nobody needs to look there again.
            let mut next = last.remove(&name);
            while let Some((other, before)) = next.map(|at| bearers[at]) {
                if !std::mem::replace(&mut reached[other], true) {
                    todo.push(other);
                }
                next = before;
            }
        }
    }
    reached
}

/// What the calls and results of a message name, each list without repetitions. The flag: an identifier (or the whole
/// value of a reference field), and not just a word.
#[derive(Debug)]
pub(super) struct Names {
    calls: Vec<Box<[Name]>>,
    results: Vec<Box<[Name]>>,
}

type Name = (u64, bool);

impl Names {
    pub(super) fn of(message: &Value) -> Names {
        fn collect(walk: impl FnOnce(Found<'_>)) -> Box<[Name]> {
            let mut names = Vec::new();
            walk(&mut |name, is_identifier| names.push((name, is_identifier)));
            names.sort_unstable();
            names.dedup();
            names.into()
        }
        let pairs = pairing::pair([message]);
        let arguments = pairs.calls.iter().map(|call| call.arguments().unwrap_or(&Value::Null));
        Names {
            calls: arguments.map(|arguments| collect(|found| walk("", arguments, found))).collect(),
            results: pairs.results.iter().map(|one| collect(|found| envelope(one.whole(), found))).collect(),
        }
    }
}

/// The names in a tool result: in its body, its other fields, and the arguments of its call.
fn names_of<'v>(
    result: &Answer<'_>,
    shown: &'v [Shown<'_>],
    pairs: &Pairs<'_>,
) -> impl Iterator<Item = Name> + 'v {
    let names = |message: usize| shown[message].message.names();
    let call = result.call.map(|call| &pairs.calls[call]);
    let arguments = call.map(|call| &names(call.message).calls[call.nth]);
    names(result.message).results[result.nth].iter().chain(arguments.into_iter().flatten()).copied()
}

type Roots = HashSet<u64, Plain>;
type Plain = BuildHasherDefault<Same>;

/// Names are hashed already.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Eight bytes at a time, multiplied and folded; the same on every machine.
fn hash(name: &str) -> u64 {
    const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let fold = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word).wrapping_mul(FACTOR);
        (product as u64) ^ (product >> 64) as u64
    };
    let mut hash = 0x51_7c_c1_b7_27_22_0a_95 ^ name.len() as u64;
    for chunk in name.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = fold(hash, u64::from_le_bytes(word));
    }
    fold(hash, 0)
}

/// Called with each name.
type Found<'f> = &'f mut dyn FnMut(u64, bool);

/// Words of the shapes themselves.
#[rustfmt::skip]
const ENVELOPE: &[&str] = &[
    "tool_use", "tool_result", "tool_results", "tool_call", "tool_calls", "tool_call_id", "tool_use_id",
    "tool_name", "function_call", "function_call_output", "call_id", "is_error", "input_text",
    "output_text", "input_image", "image_url", "redacted_thinking", "encrypted_content",
    "thinking_signature", "thoughtSignature", "text", "assistant", "user", "system", "developer", "tool",
    "function", "reasoning", "thinking", "summary_text", "metadata", "content", "role", "type",
    "_harn_projection",
];

/// Fields of messages, blocks, calls and results that say nothing about what they are about. Ids are among them: they
/// tie a result to its call, and some models count them from zero in every turn.
#[rustfmt::skip]
fn is_envelope(key: &str) -> bool {
    matches!(
        key,
        "role" | "type" | "id" | "call_id" | "tool_call_id" | "tool_use_id" | "name" | "tool_name" | "status"
            | "is_error" | "error" | "success" | "visibility" | "data" | "signature" | "encrypted_content"
            | "thinking_signature" | "thoughtSignature" | "cache_control" | "_harn_projection"
    )
}

/// Fields whose whole value is a name.
fn is_reference(key: &str) -> bool {
    const FIELDS: [&str; 10] =
        ["id", "path", "symbol", "sha", "hash", "commit", "ref", "number", "name", "kind"];
    FIELDS.iter().any(|field| match key.len().checked_sub(field.len()) {
        None => false,
        Some(0) => key == *field,
        // `file_path`, or `filePath`.
        Some(at) => {
            let (front, end) = (&key.as_bytes()[..at], &key.as_bytes()[at..]);
            front.ends_with(b"_") && end == field.as_bytes()
                || end[0].is_ascii_uppercase() && end.eq_ignore_ascii_case(field.as_bytes())
        }
    })
}

/// Whether a root names the call that the result answers.
fn is_called_for(result: &Answer<'_>, pairs: &Pairs<'_>, roots: &Roots) -> bool {
    let id = result.id.or(result.call.and_then(|call| pairs.calls[call].id));
    id.is_some_and(|id| roots.contains(&hash(id)))
}

/// The names in a message, block, call or result: everything but the words of the shape.
fn envelope(shape: &Value, found: Found<'_>) {
    let Value::Object(fields) = shape else { return walk("", shape, found) };
    for (key, value) in fields {
        match key.as_str() {
            key if is_envelope(key) => {}
            "content" | "tool_calls" | "tool_results" => match value {
                Value::Array(items) => items.iter().for_each(|item| match item.get("type") {
                    None if key == "content" => walk("", item, found),
                    _ => envelope(item, found),
                }),
                other => walk("", other, found),
            },
            "function" | "function_call" => envelope(value, found),
            key => walk(key, value, found),
        }
    }
}

/// The names in any JSON that stands under `key`.
fn walk(key: &str, value: &Value, found: Found<'_>) {
    match value {
        Value::String(text) => string(key, text, found),
        Value::Number(number) if is_reference(key) => found(hash(&number.to_string()), true),
        Value::Array(items) => items.iter().for_each(|item| walk(key, item, found)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| walk(key, value, found)),
        _ => {}
    }
}

/// The names in a string. If it is JSON, those in its values; its keys are no names. JSON inside of that is read as
/// text, so that nothing nests without end.
fn string(key: &str, text: &str, found: Found<'_>) {
    if text.trim_start().starts_with(['{', '[']) {
        let mut reader = serde_json::Deserializer::from_str(text);
        loop {
            if reader.end().is_ok() {
                return;
            }
            // Several values behind one another are JSON lines. What is no JSON to its end is read as text.
            if (Walker { key: "", found: &mut *found }).deserialize(&mut reader).is_err() {
                break;
            }
        }
    }
    plain(key, text, found);
}

fn plain(key: &str, text: &str, found: Found<'_>) {
    if is_reference(key) && !text.is_empty() {
        found(hash(text), true);
    }
    identifier::words(text, |kind, word| {
        match kind {
            Some(Kind::Quantity) => {}
            Some(Kind::Issue) => found(hash(&word[1..]), true),
            kind => found(hash(word), kind.is_some()),
        }
        true
    });
}

/// The names in what a caller gave as roots. Each of its strings is one, whatever it is.
fn material(value: &Value, roots: &mut Roots) {
    match value {
        Value::String(text) => {
            roots.insert(hash(text.trim()));
        }
        Value::Array(items) => items.iter().for_each(|item| material(item, roots)),
        Value::Object(fields) => fields.values().for_each(|value| material(value, roots)),
        _ => {}
    }
    if !matches!(value, Value::Array(_)) {
        walk("", value, &mut |name, _| {
            roots.insert(name);
        });
    }
}

/// Reads JSON text without keeping it. Its depth is limited by the reader.
struct Walker<'k, 'f> {
    key: &'k str,
    found: Found<'f>,
}

impl<'de> DeserializeSeed<'de> for Walker<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walker<'_, '_> {
    fn number(self, number: impl fmt::Display) {
        if is_reference(self.key) {
            (self.found)(hash(&number.to_string()), true);
        }
    }
}

impl<'de> Visitor<'de> for Walker<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.number(number);
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.number(number);
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        plain(self.key, text, self.found);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Walker { key: self.key, found: self.found })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<std::borrow::Cow<'_, str>>()? {
            fields.next_value_seed(Walker { key: &key, found: self.found })?;
        }
        Ok(())
    }
}
