//! `reachability_gc`: removes the bodies of old tool results that nothing refers to.
//!
//! Names are compared by a 64-bit hash, so that nothing is copied. A collision would only keep a body that
//! could have been removed.

use super::clearing::body_pointer;
use super::hash::{chars, of_body};
use super::part::Cut;
use super::{Options, Policy, Shown, Signatures, pair};
use crate::identifier::{self, Kind};
use everturn_core::message::field;
use everturn_core::pairing::{Answer, Pairs};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) fn cut(
    shown: &[Shown<'_>],
    options: &Options,
    consulted: &mut Vec<String>,
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
        let stays =
            result.failed || options.signatures == Signatures::PerTurn && shown[result.message].is_signed();
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
            envelope(shown.value(), &mut roots);
        }
    }
    for (field, value) in &knobs.roots {
        note(field);
        material(value, &mut roots);
    }
    if knobs.transitive {
        for result in kept {
            names_of(result, &pairs, &mut roots);
        }
    }
    // Words that occur in every conversation are not references.
    for word in ENVELOPE {
        roots.remove(&hash(word));
    }
    for name in pairs.calls.iter().map(|call| call.name).chain(pairs.results.iter().filter_map(|r| r.name)) {
        roots.remove(&hash(name));
    }
    let reached = if knobs.transitive {
        reached_through_results(&candidates, &pairs, &roots)
    } else {
        let refers = |result: &Answer<'_>| {
            is_called_for(result, &pairs, &roots) || !names_of(result, &pairs, &mut StopAtRoot(&roots))
        };
        candidates.iter().map(|result| refers(result)).collect()
    };
    let unreached = candidates.into_iter().zip(reached).filter(|(_, reached)| !reached);
    let pointer = |result: &Answer<'_>| body_pointer(shown, &pairs, result, Policy::ReachabilityGc);
    let reclaimed = unreached.filter_map(|(result, _)| Some((result.message, pointer(result)?))).collect();
    (Cut { reclaimed, ..Cut::default() }, "reachability_gc")
}

/// Whether a body is long enough, by the length that its pointer will report.
fn is_long(result: &Answer<'_>, min_chars: usize) -> bool {
    match result.content() {
        None => false,
        Some(Value::String(text)) => text.len() >= min_chars && chars(text.as_bytes()) >= min_chars,
        Some(body) => of_body(body).1 >= min_chars,
    }
}

/// Marks the results that are reachable from the roots, directly or through another result.
fn reached_through_results(results: &[&Answer<'_>], pairs: &Pairs<'_>, roots: &Roots) -> Vec<bool> {
    let mut reached = vec![false; results.len()];
    let mut todo = Vec::new();
    let mut says: Vec<Vec<u64>> = vec![Vec::new(); results.len()];
    // For each name, the last result that contains it, and for each entry the one before: linked lists in one
    // vector.
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
        let mut names = Vec::new();
        names_of(result, pairs, &mut names);
        names.sort_unstable();
        names.dedup();
        for (name, is_identifier) in names.into_iter().filter(|(name, _)| !tools.contains(name)) {
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
            // Once everything with a name is reached, the name need not be looked up again.
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

/// Receiver of names, each given as its hash.
trait Seeker {
    /// Whether the name is wanted at all. Only then is the kind of word determined.
    fn wants(&self, name: u64) -> bool;

    /// Receives a name; the flag is set for an identifier (or the whole value of a reference field), as opposed
    /// to a plain word. Returns whether to continue.
    fn found(&mut self, name: u64, is_identifier: bool) -> bool;
}

/// Collects all names.
impl Seeker for Roots {
    fn wants(&self, _: u64) -> bool {
        true
    }

    fn found(&mut self, name: u64, _: bool) -> bool {
        self.insert(name);
        true
    }
}

/// Collects all names, with repetitions.
impl Seeker for Vec<(u64, bool)> {
    fn wants(&self, _: u64) -> bool {
        true
    }

    fn found(&mut self, name: u64, is_identifier: bool) -> bool {
        self.push((name, is_identifier));
        true
    }
}

/// Stops at an identifier that is among the roots.
struct StopAtRoot<'r>(&'r Roots);

impl Seeker for StopAtRoot<'_> {
    fn wants(&self, name: u64) -> bool {
        self.0.contains(&name)
    }

    fn found(&mut self, name: u64, is_identifier: bool) -> bool {
        !(is_identifier && self.wants(name))
    }
}

/// Visits the names in a tool result: in the arguments of its call, its body and its other fields. Like the
/// functions below, it returns whether the end was reached.
fn names_of(result: &Answer<'_>, pairs: &Pairs<'_>, seeker: &mut impl Seeker) -> bool {
    let arguments = result.call.and_then(|call| pairs.calls[call].arguments());
    arguments.is_none_or(|arguments| walk("", arguments, seeker)) && envelope(result.whole(), seeker)
}

type Roots = HashSet<u64, Plain>;
type Plain = BuildHasherDefault<Same>;

/// Identity hasher: names are hashed already.
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

/// Hashes eight bytes at a time, multiplied and folded; the same on every machine.
fn hash(name: &str) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(FACTOR);
        (product as u64) ^ (product >> 64) as u64
    };
    let bytes = name.as_bytes();
    let hash = 0x51_7c_c1_b7_27_22_0a_95 ^ bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(hash, |hash, word| fold(hash, u64::from_le_bytes(*word)));
    // Reading the last eight bytes again is as good as reading the remainder, and takes one step.
    let rest = match bytes.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    fold(hash, rest)
}

/// Field names of message shapes.
#[rustfmt::skip]
const ENVELOPE: &[&str] = &[
    "tool_use", "tool_result", "tool_results", "tool_call", "tool_calls", "tool_call_id", "tool_use_id",
    "tool_name", "function_call", "function_call_output", "call_id", "is_error", "input_text",
    "output_text", "input_image", "image_url", "redacted_thinking", "encrypted_content",
    "thinking_signature", "thoughtSignature", "text", "assistant", "user", "system", "developer", "tool",
    "function", "reasoning", "thinking", "summary_text", "metadata", "content", "role", "type",
    "_harn_projection",
];

/// Whether a field of a message, block, call or result carries no content. Ids are among them: they tie a
/// result to its call, and some models count them from zero in every turn.
#[rustfmt::skip]
fn is_envelope(key: &str) -> bool {
    matches!(
        key,
        "role" | "type" | "id" | "call_id" | "tool_call_id" | "tool_use_id" | "name" | "tool_name" | "status"
            | "is_error" | "error" | "success" | "visibility" | "data" | "signature" | "encrypted_content"
            | "thinking_signature" | "thoughtSignature" | "cache_control" | "_harn_projection"
    )
}

/// Whether the whole value of a field is a name.
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

/// Visits the names in a message, block, call or result, except the field names of its shape.
fn envelope(shape: &Value, seeker: &mut impl Seeker) -> bool {
    let Value::Object(fields) = shape else { return walk("", shape, seeker) };
    fields.iter().all(|(key, value)| match key.as_str() {
        key if is_envelope(key) => true,
        "content" | "tool_calls" | "tool_results" => match value {
            Value::Array(items) => items.iter().all(|item| match field(item, "type") {
                None if key == "content" => walk("", item, seeker),
                _ => envelope(item, seeker),
            }),
            other => walk("", other, seeker),
        },
        "function" | "function_call" => envelope(value, seeker),
        key => walk(key, value, seeker),
    })
}

/// Visits the names in any JSON under `key`.
fn walk(key: &str, value: &Value, seeker: &mut impl Seeker) -> bool {
    match value {
        Value::String(text) => string(key, text, seeker),
        Value::Number(number) if is_reference(key) => seeker.found(hash(&number.to_string()), true),
        Value::Array(items) => items.iter().all(|item| walk(key, item, seeker)),
        Value::Object(fields) => fields.iter().all(|(key, value)| walk(key, value, seeker)),
        _ => true,
    }
}

/// Visits the names in a string. If it is JSON, those in its values; its keys are not names. JSON nested inside
/// that is read as text, which bounds the recursion.
fn string(key: &str, text: &str, seeker: &mut impl Seeker) -> bool {
    if text.trim_start().starts_with(['{', '[']) {
        let mut reader = serde_json::Deserializer::from_str(text);
        let mut goes_on = true;
        while goes_on {
            if reader.end().is_ok() {
                return true;
            }
            // Several consecutive values are JSON lines. Anything that is not JSON to its end is read as text.
            let walker = Walker { key: "", seeker: &mut *seeker, goes_on: &mut goes_on };
            if walker.deserialize(&mut reader).is_err() {
                break;
            }
        }
        if !goes_on {
            return false;
        }
    }
    plain(key, text, seeker)
}

fn plain(key: &str, text: &str, seeker: &mut impl Seeker) -> bool {
    if is_reference(key) && !text.is_empty() && !seeker.found(hash(text), true) {
        return false;
    }
    identifier::words(text, &mut Words(seeker))
}

/// Passes the hashes of words on.
struct Words<'s, S>(&'s mut S);

impl<S: Seeker> identifier::Reader<'_> for Words<'_, S> {
    fn wants(&self, word: &str) -> bool {
        self.0.wants(hash(word))
    }

    fn found(&mut self, kind: Option<Kind>, word: &str) -> bool {
        match kind {
            Some(Kind::Quantity) => true,
            Some(Kind::Issue) => self.0.found(hash(&word[1..]), true),
            kind => self.0.found(hash(word), kind.is_some()),
        }
    }
}

/// Collects the names that a caller gave as roots. Each string is one, whatever it is.
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
        walk("", value, roots);
    }
}

/// Reads JSON text without keeping it. The parser limits its depth.
struct Walker<'k, 's, S> {
    key: &'k str,
    seeker: &'s mut S,
    /// Whether the seeker wants more; if not, the rest is skipped.
    goes_on: &'s mut bool,
}

impl<'de, S: Seeker> DeserializeSeed<'de> for Walker<'_, '_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<S: Seeker> Walker<'_, '_, S> {
    fn number(self, number: impl fmt::Display) {
        if *self.goes_on && is_reference(self.key) {
            *self.goes_on = self.seeker.found(hash(&number.to_string()), true);
        }
    }
}

/// A key, copied only if it contains escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, S: Seeker> Visitor<'de> for Walker<'_, '_, S> {
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
        *self.goes_on = *self.goes_on && plain(self.key, text, self.seeker);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Walker { key, seeker, goes_on } = self;
        while items.next_element_seed(Walker { key, seeker: &mut *seeker, goes_on: &mut *goes_on })?.is_some()
        {
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Walker { seeker, goes_on, .. } = self;
        while let Some(Key(key)) = fields.next_key()? {
            fields.next_value_seed(Walker { key: &key, seeker: &mut *seeker, goes_on: &mut *goes_on })?;
        }
        Ok(())
    }
}
