//! Echoes: a turn's text repeated in other events, such as titles made from a first message and imported lines.
//!
//! Such an event does not name the turn that it repeats, so texts are compared. To find candidates without
//! reading a whole log, a store keeps a [`bucket`] for each text of such an event: 16 bits, too few to guess an
//! erased text from.

use crate::chain::Hash;
use crate::conversation::{Settings, without_fork_mark};
use crate::event::{Event, kind};
use crate::json::replace_lone_surrogates;
use serde_json::Value;
use std::collections::BTreeSet;

/// Maximum number of texts of one event or message that are compared.
const TEXTS_MAX: usize = 64;
/// Number of characters at the start of a text that determine its bucket.
const OPENING_CHARS: usize = 32;
/// Shorter texts occur in others by coincidence.
const STANDING_CHARS_MIN: usize = 8;
/// Fields that hold names, not text.
const NAMES: [&str; 16] = [
    "type",
    "role",
    "id",
    "uuid",
    "name",
    "status",
    "phase",
    "model",
    "timestamp",
    "signature",
    "version",
    "cwd",
    "level",
    "subtype",
    "format",
    "mime_type",
];

/// The bucket of a text. Frozen: stores keep it.
pub fn bucket(text: &str) -> u16 {
    let opening: String = text.chars().take(OPENING_CHARS).collect();
    let hash = Hash::of(opening.as_bytes()).0;
    u16::from_be_bytes([hash[0], hash[1]])
}

/// Buckets of an event that may repeat a turn. Empty for all other events.
pub fn buckets(event: &Event) -> BTreeSet<u16> {
    texts_of(event).iter().map(|text| bucket(text)).collect()
}

/// Whether events of this kind may repeat a turn's text without naming the turn.
pub fn may_repeat(kind: &str) -> bool {
    kind == kind::IMPORT_LINE || kind::is_settings(kind)
}

/// Texts of a turn, for comparison.
#[derive(PartialEq, Eq)]
pub struct Words(Vec<String>);

impl Words {
    /// The texts of a message.
    pub fn of(message: &Value) -> Words {
        let mut texts = Vec::new();
        collect(message, &mut texts);
        Words(texts)
    }

    /// Whether a value contains one of the texts.
    pub fn stand_in(&self, value: &Value) -> bool {
        let mut texts = Vec::new();
        collect_all(value, &mut texts);
        let words = || self.0.iter().filter(|word| word.chars().count() >= STANDING_CHARS_MIN);
        texts.iter().any(|text| words().any(|word| text.contains(word.as_str())))
    }

    /// Buckets in which events that repeat the texts are found.
    pub fn buckets(&self) -> BTreeSet<u16> {
        self.0.iter().map(|text| bucket(text)).collect()
    }

    /// Whether an event repeats one of the texts, whole or truncated.
    pub fn are_repeated_by(&self, event: &Event) -> bool {
        let same = |one: &str, other: &str| {
            // A truncated text must be long enough to rule out coincidence.
            one == other || (one.chars().count() >= OPENING_CHARS && other.starts_with(one))
        };
        texts_of(event).iter().any(|text| self.0.iter().any(|word| same(text, word) || same(word, text)))
    }
}

fn texts_of(event: &Event) -> Vec<String> {
    let mut texts = Vec::new();
    match event.kind.as_str() {
        kind::IMPORT_LINE => {
            if let Some(line) = event.read::<Value>() {
                collect(&line, &mut texts);
            }
        }
        kind if kind::is_settings(kind) => {
            let title = event.read::<Settings>().and_then(|settings| settings.title.flatten());
            let title = title.as_deref().unwrap_or_default();
            let own = without_fork_mark(title);
            texts.extend(tidied(title));
            texts.extend(tidied(own).filter(|_| own != title));
        }
        _ => {}
    }
    texts
}

/// Collects the texts in a value, including those in JSON inside a string, which some programs use for
/// arguments and results.
fn collect(value: &Value, texts: &mut Vec<String>) {
    if texts.len() >= TEXTS_MAX {
        return;
    }
    match value {
        Value::String(text) => {
            if text.starts_with(['{', '['])
                && let Ok(inner) = serde_json::from_str::<Value>(&replace_lone_surrogates(text))
            {
                collect(&inner, texts);
            }
            texts.extend(tidied(text));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, texts)),
        Value::Object(fields) => {
            let words = fields.iter().filter(|(name, _)| {
                !NAMES.contains(&name.as_str()) && !name.ends_with("_id") && !name.ends_with("Id")
            });
            words.for_each(|(_, value)| collect(value, texts));
        }
        _ => {}
    }
}

/// Collects every text in a value, without a limit.
fn collect_all(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.extend(tidied(text)),
        Value::Array(values) => values.iter().for_each(|value| collect_all(value, texts)),
        Value::Object(fields) => fields.values().for_each(|value| collect_all(value, texts)),
        _ => {}
    }
}

/// A text with single spaces and without a trailing ellipsis.
fn tidied(text: &str) -> Option<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.trim_end_matches(['…', '.']).trim_end();
    (!text.is_empty()).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(text: &str) -> Words {
        Words::of(&json!({"role": "user", "content": [{"type": "text", "text": text}]}))
    }

    fn line(body: Value) -> Event {
        let zero = Hash([0; 32]);
        Event {
            id: "evt_01J00000000000000000000000".parse().unwrap(),
            conversation: "conv_01J00000000000000000000000".parse().unwrap(),
            seq: 1,
            at: Default::default(),
            occurred_at: None,
            kind: kind::IMPORT_LINE.into(),
            actor: None,
            role: None,
            visibility: Default::default(),
            turn: None,
            key: None,
            hidden: false,
            body: Some(crate::event::Body { salt: [1; 16], text: body.to_string() }),
            body_hash: zero,
            prev: zero,
            hash: zero,
        }
    }

    #[test]
    fn a_line_that_repeats_a_message_is_found_whole_or_cut_off_and_others_are_not() {
        let said = "please   look into the failing\ntest of the parser, it is urgent";
        let repeats = [
            json!({"type": "event_msg", "payload": {"type": "user_message", "message": said}}),
            json!({"type": "last-prompt", "lastPrompt": "please look into the failing test of the parser…"}),
            json!({"arguments": json!({"command": said}).to_string()}),
        ];
        for body in repeats {
            let line = line(body);
            assert!(words(said).are_repeated_by(&line), "{line:?}");
            assert!(!words(said).buckets().is_disjoint(&buckets(&line)), "{line:?}");
        }
        for body in
            [json!({"type": "text", "role": "user"}), json!({"message": "please look"}), json!("user")]
        {
            assert!(!words(said).are_repeated_by(&line(body.clone())), "{body}");
        }
        assert!(words("yes").are_repeated_by(&line(json!({"message": "yes"}))));
    }
}
