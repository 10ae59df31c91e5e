//! `reachability_gc`: removes the bodies of old tool results that nothing refers to.
//!
//! Names are compared by a 64-bit hash, so that nothing is copied. A collision would only keep a body that
//! could have been removed.

use super::clearing::{body, body_pointer};
use super::hash::{chars, of_body};
use super::part::Cut;
use super::{ProjectionPolicy, Reachability, Shown, Signatures, ViewOptions, pair};
use crate::identifier::{self, IdentifierKind};
use everturn_core::message::{self, MessagePart, field};
use everturn_core::pairing::{BlockPath, PairedResult, Pairs};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) fn cut(shown: &[Shown<'_>], options: &ViewOptions) -> (Cut, &'static str) {
    if is_barred(options) {
        return (Cut::default(), "reachability_gc_write_barrier_missing");
    }
    let pairs = pair(shown);
    (cut_end(shown, &pairs, options, &Names::default()).0, "reachability_gc")
}

/// Whether a write barrier is required but missing. Then nothing may be reclaimed.
pub(super) fn is_barred(options: &ViewOptions) -> bool {
    options.reachability.require_write_barrier && !options.reachability.write_barrier
}

/// Adds the names of the roots that are not listed yet; `messages` is the length of the view.
pub(super) fn consult(options: &ViewOptions, messages: usize, consulted: &mut Vec<String>) {
    for name in roots_consulted(&options.reachability, messages.min(options.reachability.root_window)) {
        if !consulted.contains(&name) {
            consulted.push(name);
        }
    }
}

/// Decides about the end of a view, which includes at least the messages that are roots. Returns the roots too.
/// `tools` are the tool names of the messages before it.
pub(super) fn cut_end(
    shown: &[Shown<'_>],
    pairs: &Pairs<'_>,
    options: &ViewOptions,
    tools: &Names,
) -> (Cut, Names) {
    let knobs = &options.reachability;
    let window = shown.len().saturating_sub(knobs.root_window);
    let old = pairs.results.iter().take_while(|result| result.message < window);
    let (candidates, kept): (Vec<_>, Vec<_>) =
        old.partition(|result| is_candidate(result, &shown[result.message], options));
    let mut roots = Names::default();
    for shown in &shown[window..] {
        envelope(shown.value(), &mut roots);
    }
    for (_, value) in &knobs.roots {
        material(value, &mut roots);
    }
    if knobs.transitive {
        for result in kept {
            names_of(result, shown, pairs, &mut roots);
        }
    }
    // Words that occur in every conversation are not references.
    let tools = tools.iter().copied().chain(tools_of(pairs));
    for name in ENVELOPE.iter().map(|word| hash(word)).chain(tools) {
        roots.remove(&name);
    }
    let reached = if knobs.transitive {
        reached_through_results(&candidates, shown, pairs, &roots)
    } else {
        let refers = |result: &PairedResult<'_>| {
            is_called_for(result, pairs, &roots) || !names_of(result, shown, pairs, &mut StopAtRoot(&roots))
        };
        candidates.iter().map(|result| refers(result)).collect()
    };
    let unreached = candidates.into_iter().zip(reached).filter(|(_, reached)| !reached);
    let pointer =
        |result: &PairedResult<'_>| body_pointer(shown, pairs, result, ProjectionPolicy::ReachabilityGc);
    let reclaimed = unreached.filter_map(|(result, _)| Some((result.message, pointer(result)?))).collect();
    (Cut { reclaimed, ..Cut::default() }, roots)
}

/// Whether a result is reclaimed if nothing refers to it.
pub(super) fn is_candidate(result: &PairedResult<'_>, shown: &Shown<'_>, options: &ViewOptions) -> bool {
    let stays = result.failed || options.signatures == Signatures::PerTurn && shown.is_signed();
    !stays && is_long(result, options.reachability.min_chars)
}

/// The names of the tools.
pub(super) fn tools_of(pairs: &Pairs<'_>) -> impl Iterator<Item = u64> {
    let calls = pairs.calls.iter().map(|call| call.name);
    calls.chain(pairs.results.iter().filter_map(|result| result.name)).map(hash)
}

/// All names by which a root can refer to a result.
pub(super) fn identifiers(result: &PairedResult<'_>, shown: &[Shown<'_>], pairs: &Pairs<'_>) -> Names {
    let mut identifiers = Identifiers(id_of(result, pairs).map(hash).into_iter().collect());
    names_of(result, shown, pairs, &mut identifiers);
    identifiers.0
}

/// Names of the roots in the event; `messages` is the number of messages that are roots.
fn roots_consulted(knobs: &Reachability, messages: usize) -> Vec<String> {
    let window = (messages > 0).then(|| format!("last_{messages}_messages"));
    let given = knobs.roots.iter().map(|(field, _)| field.to_string());
    let barrier = knobs.write_barrier.then(|| "write_barrier".to_string());
    let required = knobs.require_write_barrier.then(|| "write_barrier_required".to_string());
    window.into_iter().chain(given).chain(barrier).chain(required).collect()
}

/// Whether a body is long enough, by the length that its pointer will report.
fn is_long(result: &PairedResult<'_>, min_chars: usize) -> bool {
    match body(result) {
        None => false,
        Some((_, Value::String(text))) => text.len() >= min_chars && chars(text.as_bytes()) >= min_chars,
        Some((_, body)) => of_body(body).1 >= min_chars,
    }
}

/// Marks the results that are reachable from the roots, directly or through another result.
fn reached_through_results(
    results: &[&PairedResult<'_>],
    shown: &[Shown<'_>],
    pairs: &Pairs<'_>,
    roots: &Names,
) -> Vec<bool> {
    let mut reached = vec![false; results.len()];
    let mut todo = Vec::new();
    let mut says: Vec<Vec<u64>> = vec![Vec::new(); results.len()];
    // For each name, the last result that contains it, and for each entry the one before: linked lists in one
    // vector.
    let mut last: HashMap<u64, usize, Plain> = HashMap::default();
    let mut bearers: Vec<(usize, Option<usize>)> = Vec::new();
    let tools: Names = pairs
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
        names_of(result, shown, pairs, &mut names);
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
    /// Whether words of prose are wanted, which only the value of a reference field can match.
    const PROSE: bool;

    /// Whether the name is wanted at all. Only then is the kind of word determined.
    fn wants(&self, name: u64) -> bool;

    /// Receives a name; `is_identifier` is set for an identifier (or the whole value of a reference field), as
    /// opposed to a plain word. Returns whether to continue.
    fn found(&mut self, name: u64, is_identifier: bool) -> bool;
}

/// Collects all names.
impl Seeker for Names {
    const PROSE: bool = true;

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
    const PROSE: bool = true;

    fn wants(&self, _: u64) -> bool {
        true
    }

    fn found(&mut self, name: u64, is_identifier: bool) -> bool {
        self.push((name, is_identifier));
        true
    }
}

/// Stops at an identifier that is among the roots.
struct StopAtRoot<'r>(&'r Names);

impl Seeker for StopAtRoot<'_> {
    const PROSE: bool = false;

    fn wants(&self, name: u64) -> bool {
        self.0.contains(&name)
    }

    fn found(&mut self, name: u64, is_identifier: bool) -> bool {
        !(is_identifier && self.wants(name))
    }
}

/// Collects identifiers only.
struct Identifiers(Names);

impl Seeker for Identifiers {
    const PROSE: bool = false;

    fn wants(&self, name: u64) -> bool {
        !self.0.contains(&name)
    }

    fn found(&mut self, name: u64, is_identifier: bool) -> bool {
        if is_identifier {
            self.0.insert(name);
        }
        true
    }
}

/// Visits the names in a tool result: in the arguments of its call, its body, its other fields, and the fields
/// beside the list that contains it. Like the functions below, it returns whether the end was reached.
fn names_of(
    result: &PairedResult<'_>,
    shown: &[Shown<'_>],
    pairs: &Pairs<'_>,
    seeker: &mut impl Seeker,
) -> bool {
    let arguments = result.call.and_then(|call| pairs.calls[call].arguments());
    arguments.is_none_or(|arguments| walk("", arguments, seeker))
        && envelope(result.whole(), seeker)
        && (result.place == BlockPath::Message || beside_lists(shown[result.message].value(), seeker))
}

/// Names, by their hashes.
pub(super) type Names = HashSet<u64, Plain>;
pub(super) type Plain = BuildHasherDefault<Same>;

/// Identity hasher: names are hashed already.
#[derive(Default)]
pub(super) struct Same(u64);

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
            | "is_error" | "success" | "visibility" | "signature" | "encrypted_content" | "thinking_signature"
            | "thoughtSignature" | "cache_control" | "_harn_projection"
    )
}

/// Part before the kind of reference in the name of a field whose whole value is a name: `issue` of
/// `issue_number`, nothing of `id`. `None` for every other field.
fn reference(key: &str) -> Option<&str> {
    const FIELDS: [&str; 10] =
        ["id", "path", "symbol", "sha", "hash", "commit", "ref", "number", "name", "kind"];
    // `paths` is a list of them.
    let key = key.strip_suffix('s').unwrap_or(key);
    FIELDS.iter().find_map(|field| {
        let at = key.len().checked_sub(field.len())?;
        let (front, end) = (key.get(..at)?, &key.as_bytes()[at..]);
        match front.strip_suffix('_') {
            // `file_path`, or `filePath`.
            Some(stem) => (end == field.as_bytes()).then_some(stem),
            None if front.is_empty() => (end == field.as_bytes()).then_some(front),
            None => {
                (end[0].is_ascii_uppercase() && end.eq_ignore_ascii_case(field.as_bytes())).then_some(front)
            }
        }
    })
}

/// Whether a root names the call that the result answers.
fn is_called_for(result: &PairedResult<'_>, pairs: &Pairs<'_>, roots: &Names) -> bool {
    id_of(result, pairs).is_some_and(|id| roots.contains(&hash(id)))
}

fn id_of<'p>(result: &PairedResult<'p>, pairs: &Pairs<'p>) -> Option<&'p str> {
    result.id.or(result.call.and_then(|call| pairs.calls[call].id))
}

/// Visits the names in a message, block, call or result, except the field names of its shape.
fn envelope(shape: &Value, seeker: &mut impl Seeker) -> bool {
    let Value::Object(fields) = shape else { return walk("", shape, seeker) };
    fields.iter().all(|(key, value)| in_envelope(shape, key, value, seeker))
}

/// Visits the names in the fields of a message beside its lists of blocks, calls and results.
fn beside_lists(message: &Value, seeker: &mut impl Seeker) -> bool {
    let mut fields = message.as_object().into_iter().flatten();
    fields.all(|(key, value)| {
        matches!(key.as_str(), "content" | "tool_calls" | "tool_results")
            || in_envelope(message, key, value, seeker)
    })
}

fn in_envelope(shape: &Value, key: &str, value: &Value, seeker: &mut impl Seeker) -> bool {
    match key {
        key if is_envelope(key) => true,
        "data" if value.is_string() && holds_bytes(shape) => true,
        "content" | "tool_calls" | "tool_results" => match value {
            Value::Array(items) => items.iter().all(|item| match field(item, "type") {
                None if key == "content" => walk("", item, seeker),
                _ => envelope(item, seeker),
            }),
            other => walk("", other, seeker),
        },
        "function" | "function_call" => envelope(value, seeker),
        key => walk(key, value, seeker),
    }
}

/// Whether a string under `data` is encoded bytes, as in an image or in redacted reasoning, but not in a result.
fn holds_bytes(shape: &Value) -> bool {
    field(shape, "type").is_some() && !matches!(message::block(shape), MessagePart::Result { .. })
}

/// Visits the names in any JSON under `key`.
fn walk(key: &str, value: &Value, seeker: &mut impl Seeker) -> bool {
    match value {
        Value::String(text) => string(key, text, seeker),
        Value::Number(number) => numbered(key, number, seeker),
        Value::Array(items) => items.iter().all(|item| walk(key, item, seeker)),
        Value::Object(fields) => fields.iter().all(|(key, value)| walk(key, value, seeker)),
        _ => true,
    }
}

/// Visits a number in a reference field: 12 under `issue_number` is `#12` and "issue 12".
fn numbered(key: &str, number: impl fmt::Display, seeker: &mut impl Seeker) -> bool {
    let Some(stem) = reference(key) else { return true };
    let number = hash(&number.to_string());
    // "pull request 12" is recognized by the word before the number.
    let word =
        stem.rfind(|char: char| char == '_' || char.is_ascii_uppercase()).map_or(stem, |at| &stem[at..]);
    let word = word.trim_start_matches('_').to_ascii_lowercase();
    seeker.found(number, true) && (word.is_empty() || seeker.found(joined(hash(&word), number), true))
}

/// A word and the number after it, as one name.
fn joined(word: u64, number: u64) -> u64 {
    word.rotate_left(1) ^ number
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
    let value = text.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let goes_on = match reference(key) {
        Some(_) if is_number => numbered(key, value, seeker),
        Some(_) if !value.is_empty() => seeker.found(hash(value), true),
        _ => true,
    };
    goes_on && identifier::words(text, &mut Words { seeker, before: None })
}

/// Passes the hashes of words on.
struct Words<'s, S> {
    seeker: &'s mut S,
    /// The preceding word of prose.
    before: Option<u64>,
}

impl<S: Seeker> identifier::Reader<'_> for Words<'_, S> {
    fn wants(&self, word: &str) -> bool {
        self.seeker.wants(hash(word))
    }

    fn found(&mut self, kind: Option<IdentifierKind>, word: &str) -> bool {
        self.before = None;
        match kind {
            Some(IdentifierKind::Quantity) => true,
            Some(IdentifierKind::Issue) => self.seeker.found(hash(&word[1..]), true),
            kind => self.seeker.found(hash(word), kind.is_some()),
        }
    }

    fn plain(&mut self, word: &str) {
        if !S::PROSE {
            return;
        }
        if word.bytes().all(|byte| byte.is_ascii_digit()) {
            if let Some(before) = self.before {
                self.seeker.found(joined(before, hash(word)), false);
            }
            return;
        }
        self.seeker.found(hash(word), false);
        let mut lower = hash(word);
        // A word at the start of a sentence is capitalized.
        if word.bytes().any(|byte| byte.is_ascii_uppercase()) {
            lower = hash(&word.to_ascii_lowercase());
            self.seeker.found(lower, false);
        }
        self.before = Some(lower);
    }
}

/// Collects the names that a caller gave as roots: every string is one.
fn material(value: &Value, roots: &mut Names) {
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
        *self.goes_on = *self.goes_on && numbered(self.key, number, self.seeker);
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
