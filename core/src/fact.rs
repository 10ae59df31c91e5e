//! Facts learned from a conversation, each with the turns that it came from.
//!
//! A fact itself is never stored. The log holds statements: one event each, about one turn at most, so that
//! erasing a turn removes exactly the statements learned from it. `views::facts` derives facts from them.

use crate::Error;
use crate::chain::Hash;
use crate::event::{Event, kind};
use crate::id::{ConversationId, FactId, TurnId};
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits on the size and number of facts.
pub mod limits {
    /// Maximum length of a subject or a predicate, in bytes.
    pub const NAME_BYTES_MAX: usize = 200;
    /// Maximum length of an object, in bytes.
    pub const OBJECT_BYTES_MAX: usize = 1000;
    /// Maximum length of a quote, in bytes.
    pub const QUOTE_BYTES_MAX: usize = 1000;
    /// Minimum length of a quote, in characters: a shorter one supports nothing.
    pub const QUOTE_CHARS_MIN: usize = 4;
    /// Number of source turns after which another one does not raise the confidence.
    pub const SOURCES_MAX: usize = 16;
    /// Maximum number of statements, corrections and retractions of one conversation.
    pub const STATEMENTS_MAX: usize = 5000;
    /// Maximum number of facts in one model reply.
    pub const LEARNED_MAX: usize = 200;
    /// Maximum length of a model reply, in bytes. A longer one is not parsed.
    pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
    /// Maximum number of turns in one request to a model.
    pub const TURNS_MAX: usize = 100;
    /// Maximum length of the turns in one request to a model, in characters; long turns are shortened in their
    /// middle.
    pub const PROMPT_CHARS_MAX: usize = 100_000;
    /// Maximum number of known pairs of subject and predicate in a request to a model, given so that it spells
    /// them the same way.
    pub const KNOWN_MAX: usize = 200;
}

/// A fact: subject, predicate, object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Fact {
    /// Its id.
    pub id: FactId,
    /// The conversation that it was learned in; for an inherited fact of a fork, the ancestor.
    pub conversation: ConversationId,
    /// `seq` of the event that stated it first.
    pub seq: u64,
    /// Person or thing that it is about.
    pub subject: String,
    /// Property or relation.
    pub predicate: String,
    /// Value of the property, or target of the relation.
    pub object: String,
    /// Confidence, from 0 to 1.
    pub confidence: f64,
    /// Whether it is current.
    pub status: FactStatus,
    /// Turns that support it. Empty for a fact that was added or corrected by hand.
    pub sources: Vec<FactSource>,
    /// Time at which it was recorded.
    pub created: Timestamp,
    /// Author: a model or an actor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The fact that it corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrects: Option<FactId>,
    /// The fact that superseded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<FactId>,
    /// `seq` from which it is superseded; as of any earlier `seq` it is current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_seq: Option<u64>,
    /// Its retraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retracted: Option<Retraction>,
}

impl Fact {
    /// Whether it states the same as these, ignoring spelling.
    pub fn says(&self, subject: &str, predicate: &str, object: &str) -> bool {
        let pairs = [(&self.subject, subject), (&self.predicate, predicate), (&self.object, object)];
        pairs.into_iter().all(|(one, other)| normal(one) == normal(other))
    }

    /// The fact as one line, for people and for search.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.subject, self.predicate, self.object)
    }
}

/// Status of a fact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FactStatus {
    /// It holds.
    Current,
    /// Another fact replaced it.
    Superseded,
    /// It was retracted.
    Retracted,
}

/// A turn that supports a fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FactSource {
    /// The turn.
    pub turn: TurnId,
    /// `seq` of the turn, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Text of the turn that supports the fact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
}

/// The retraction of a fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "FactRetraction")]
pub struct Retraction {
    /// `seq` of the event.
    pub seq: u64,
    /// Time of the retraction.
    pub at: Timestamp,
    /// Actor that retracted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of `fact.extracted` and `fact.added`; the source turn is in the envelope. Stored in the log, so its
/// names are frozen; fields added by later versions are ignored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StatedBody {
    /// The fact that this states, new or known.
    pub fact: FactId,
    /// Person or thing that it is about.
    pub subject: String,
    /// Property or relation.
    pub predicate: String,
    /// Value of the property, or target of the relation.
    pub object: String,
    /// Confidence, from 0 to 1.
    pub confidence: f64,
    /// Text of the turn that supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// `seq` of the turn. Among facts learned by models, the later turn wins, in any order of reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_seq: Option<u64>,
    /// The model that stated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Actors that may see a private one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
}

/// The body of `fact.corrected`. It holds only what differs, so that erasing a fact's turns also removes their
/// text from its correction. Stored in the log, so its names are frozen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CorrectedBody {
    /// The fact that is current from now on.
    pub fact: FactId,
    /// The fact that it replaces.
    pub corrects: FactId,
    /// New subject, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// New predicate, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<String>,
    /// New object, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Confidence; 1 for a correction by hand, unless stated otherwise.
    pub confidence: f64,
    /// Actors that may see a private one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
}

/// The body of `fact.retracted`. Stored in the log, so its names are frozen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RetractedBody {
    /// The retracted fact.
    pub fact: FactId,
    /// Reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Actors that may see a private one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
}

/// The body of `facts.read`: a range of the log was read for facts and need not be read again. Stored in the
/// log, so its names are frozen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadBody {
    /// First `seq` of the range.
    pub from_seq: u64,
    /// Last `seq` of the range.
    pub to_seq: u64,
    /// Number of turns in the range.
    pub turns: u64,
    /// The model that read it.
    pub model: String,
    /// Hash of the prompt.
    pub prompt_hash: Hash,
    /// Hash of the turns as sent to the model.
    pub input_hash: Hash,
    /// Number of statements kept.
    pub stated: u64,
    /// Number of statements dropped, by reason.
    pub dropped: FactsDropped,
    /// Code of the error, if the model twice gave no usable reply. The range is not retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Statements of a model that were not kept, counted by reason.
// Stored in the log, so its names are frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FactsDropped {
    /// Not of the requested form, or too long.
    pub malformed: u64,
    /// Its turn was not among those shown, or has been superseded.
    pub no_such_turn: u64,
    /// Its turn does not contain the quote.
    pub ungrounded: u64,
    /// Nothing is left of it after redaction.
    pub redacted: u64,
    /// Already known, from this turn or from an equally good one.
    pub known: u64,
}

impl FactsDropped {
    /// The total over all reasons.
    pub fn total(&self) -> u64 {
        self.malformed + self.no_such_turn + self.ungrounded + self.redacted + self.known
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: FactsDropped) {
        self.malformed += other.malformed;
        self.no_such_turn += other.no_such_turn;
        self.ungrounded += other.ungrounded;
        self.redacted += other.redacted;
        self.known += other.known;
    }
}

/// Whether an event can change which facts of its conversation are current.
pub fn touches(event: &Event) -> bool {
    kind::is_fact(&event.kind) || matches!(event.kind.as_str(), kind::SUPERSEDED | kind::ERASED)
}

/// The fact that an event states; `None` for any other event, and once its body is erased.
pub fn stated_by(event: &Event) -> Option<FactId> {
    match event.kind.as_str() {
        kind::FACT_EXTRACTED | kind::FACT_ADDED => event.read::<StatedBody>().map(|body| body.fact),
        kind::FACT_CORRECTED => event.read::<CorrectedBody>().map(|body| body.fact),
        _ => None,
    }
}

/// The fact that an event is about, and the one that it corrects or retracts.
pub fn told_by(event: &Event) -> Option<(FactId, Option<FactId>)> {
    match event.kind.as_str() {
        kind::FACT_CORRECTED => event.read::<CorrectedBody>().map(|body| (body.fact, Some(body.corrects))),
        kind::FACT_RETRACTED => event.read::<RetractedBody>().map(|body| (body.fact, Some(body.fact))),
        _ => stated_by(event).map(|fact| (fact, None)),
    }
}

/// Checks and normalises the text of a fact: no line breaks, no surrounding space.
pub fn check(subject: &str, predicate: &str, object: &str) -> Result<[String; 3], Error> {
    let parts =
        [("subject", subject, limits::NAME_BYTES_MAX), ("predicate", predicate, limits::NAME_BYTES_MAX)];
    let parts = parts.into_iter().chain([("object", object, limits::OBJECT_BYTES_MAX)]);
    let mut tidy = Vec::with_capacity(3);
    for (name, text, max) in parts {
        let text = tidied(text);
        if text.is_empty() {
            return Err(Error::invalid("fact.empty", format!("the {name} of a fact is empty; name one")));
        }
        if text.len() > max {
            let limit = if name == "object" { "OBJECT_BYTES_MAX" } else { "NAME_BYTES_MAX" };
            let advice = format!("shorten the {name}; a fact is one short sentence");
            return Err(Error::limit(limit, max as u64, text.len() as u64, &advice));
        }
        tidy.push(text);
    }
    <[String; 3]>::try_from(tidy).map_err(|_| Error::internal("fact.parts", "a fact has three parts"))
}

/// Refuses a confidence outside 0 to 1.
pub fn check_confidence(confidence: f64) -> Result<f64, Error> {
    if (0.0..=1.0).contains(&confidence) {
        return Ok(confidence);
    }
    Err(Error::invalid("fact.confidence", format!("confidence {confidence} is not between 0 and 1")))
}

/// The error for a fact that does not exist or belongs to another tenant.
pub fn absent(id: FactId) -> Error {
    Error::not_found("fact.absent", format!("no fact {id} here; `facts` shows what there is"))
}

/// Text with runs of white space collapsed, for comparing it with a quote.
pub fn tidied(text: &str) -> String {
    let clean = text.replace(|c: char| c.is_control(), " ");
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Normal form of a spelling: ignores letter case, underscores, hyphens and surrounding punctuation.
pub fn normal(text: &str) -> String {
    let spaced = text.replace(['_', '-'], " ").to_lowercase();
    let around = |c: char| {
        c.is_whitespace() || matches!(c, '.' | ',' | ';' | ':' | '!' | '"' | '\'' | '“' | '”' | '`')
    };
    tidied(spaced.trim_matches(around))
}
