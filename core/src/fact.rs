//! Facts: what was learned from what was said, each with the turns that it came from.
//!
//! A fact is never stored as such. The log has statements: one event each, about one turn at most, so that erasing a turn
//! takes exactly the statements with it that were learned from it. `views::facts` makes facts of them.

use crate::Error;
use crate::chain::Hash;
use crate::event::{Event, kind};
use crate::id::{ConversationId, FactId, TurnId};
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How large facts may become, and how many there may be.
pub mod limits {
    /// Longest subject and longest predicate, in bytes.
    pub const NAME_BYTES_MAX: usize = 200;
    /// Longest object, in bytes.
    pub const OBJECT_BYTES_MAX: usize = 1000;
    /// Longest quote, in bytes.
    pub const QUOTE_BYTES_MAX: usize = 1000;
    /// Shortest quote, in characters: less supports nothing.
    pub const QUOTE_CHARS_MIN: usize = 4;
    /// A fact that was stated by so many turns gets no surer by another.
    pub const SOURCES_MAX: usize = 16;
    /// Most statements, corrections and retractions of one conversation.
    pub const STATEMENTS_MAX: usize = 5000;
    /// Most facts that one answer of a model may have.
    pub const LEARNED_MAX: usize = 200;
    /// Longest answer of a model that is read at all, in bytes.
    pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
    /// Most turns that a model is shown at once.
    pub const TURNS_MAX: usize = 100;
    /// Longest material that a model is shown at once, in characters; long turns are shortened in their middle.
    pub const PROMPT_CHARS_MAX: usize = 100_000;
    /// Most pairs of subject and predicate that a model is shown, so that it spells them in the same way.
    pub const KNOWN_MAX: usize = 200;
}

/// Something learned from what was said: subject, predicate, object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Fact {
    /// Its id.
    pub id: FactId,
    /// Where it was learned; for an inherited fact of a fork, the ancestor.
    pub conversation: ConversationId,
    /// The place of the event that stated it first.
    pub seq: u64,
    /// About whom or what.
    pub subject: String,
    /// What is said of it.
    pub predicate: String,
    /// What it is said to be.
    pub object: String,
    /// How sure, from 0 to 1.
    pub confidence: f64,
    /// Whether it holds.
    pub status: Status,
    /// The turns that say so. Empty for one that was added or corrected by hand.
    pub sources: Vec<Source>,
    /// When it was taken down.
    pub created: Timestamp,
    /// Who took it down: a model, or an actor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The fact that it corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrects: Option<FactId>,
    /// The fact that took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<FactId>,
    /// The place since which it is superseded; as of any earlier place it held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_seq: Option<u64>,
    /// Who took it back, when and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retracted: Option<Retraction>,
}

impl Fact {
    /// Whether it says the same, however that is spelled.
    pub fn says(&self, subject: &str, predicate: &str, object: &str) -> bool {
        let pairs = [(&self.subject, subject), (&self.predicate, predicate), (&self.object, object)];
        pairs.into_iter().all(|(one, other)| normal(one) == normal(other))
    }

    /// As one line, for people and for searching.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.subject, self.predicate, self.object)
    }
}

/// Whether a fact holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "FactStatus")]
pub enum Status {
    /// It does.
    Current,
    /// Another took its place.
    Superseded,
    /// It was taken back.
    Retracted,
}

/// A turn that supports a fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "FactSource")]
pub struct Source {
    /// Which turn.
    pub turn: TurnId,
    /// Its place, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The words of it that support the fact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
}

/// The retraction of a fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "FactRetraction")]
pub struct Retraction {
    /// The place of the event.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// By whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of `fact.extracted` and `fact.added`; the turn that it was learned from is in the envelope. Stored in the
/// log, so its names are frozen; fields that a later version adds are ignored by this one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StatedBody {
    /// The fact that this states, a new one or one that is known.
    pub fact: FactId,
    /// About whom or what.
    pub subject: String,
    /// What is said of it.
    pub predicate: String,
    /// What it is said to be.
    pub object: String,
    /// How sure, from 0 to 1.
    pub confidence: f64,
    /// The words of the turn that support it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// The turn's place. Of what a model learned, what was said later wins, in whatever order it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_seq: Option<u64>,
    /// The model that stated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The body of `fact.corrected`: only what is different, so that with the turns of a fact also its correction loses every
/// word that came from them. Stored in the log, so its names are frozen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CorrectedBody {
    /// The fact that holds from now on.
    pub fact: FactId,
    /// The one that it takes the place of.
    pub corrects: FactId,
    /// Where that is different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Where that is different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<String>,
    /// Where that is different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// How sure; a correction by hand is certain, unless it says otherwise.
    pub confidence: f64,
}

/// The body of `fact.retracted`. Stored in the log, so its names are frozen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RetractedBody {
    /// Which fact.
    pub fact: FactId,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of `facts.read`: a part of the log was read for facts, and need not be again. Stored in the log, so its names
/// are frozen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadBody {
    /// The first place.
    pub from_seq: u64,
    /// The last place.
    pub to_seq: u64,
    /// How many turns that were.
    pub turns: u64,
    /// Who read.
    pub model: String,
    /// What the model was asked.
    pub prompt_hash: Hash,
    /// The turns, as they went in.
    pub input_hash: Hash,
    /// How many statements were kept.
    pub stated: u64,
    /// How many were not, and why.
    pub dropped: Dropped,
    /// The code of the error, where the model gave no usable answer twice: it would not give one later either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// What a model found that was not kept, counted by reason.
// Stored in the log, so its names are frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "FactsDropped")]
pub struct Dropped {
    /// Not of the form that was asked for, or too long.
    pub malformed: u64,
    /// Its turn is not among those that were shown, or no longer stands.
    pub no_such_turn: u64,
    /// Its turn does not have the quote.
    pub ungrounded: u64,
    /// Nothing is left of it after redaction.
    pub redacted: u64,
    /// It is known, from this turn or from one that is no worse.
    pub known: u64,
}

impl Dropped {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.malformed + self.no_such_turn + self.ungrounded + self.redacted + self.known
    }

    /// Both together.
    pub fn add(&mut self, other: Dropped) {
        self.malformed += other.malformed;
        self.no_such_turn += other.no_such_turn;
        self.ungrounded += other.ungrounded;
        self.redacted += other.redacted;
        self.known += other.known;
    }
}

/// Whether an event can change which facts of its conversation hold.
pub fn touches(event: &Event) -> bool {
    kind::is_fact(&event.kind) || matches!(event.kind.as_str(), kind::SUPERSEDED | kind::ERASED)
}

/// The id under which an event states a fact; `None` for any other event, and for one whose words are erased.
pub fn stated_by(event: &Event) -> Option<FactId> {
    match event.kind.as_str() {
        kind::FACT_EXTRACTED | kind::FACT_ADDED => event.read::<StatedBody>().map(|body| body.fact),
        kind::FACT_CORRECTED => event.read::<CorrectedBody>().map(|body| body.fact),
        _ => None,
    }
}

/// The fact that an event is about, and the one that it corrects or takes back.
pub fn told_by(event: &Event) -> Option<(FactId, Option<FactId>)> {
    match event.kind.as_str() {
        kind::FACT_CORRECTED => event.read::<CorrectedBody>().map(|body| (body.fact, Some(body.corrects))),
        kind::FACT_RETRACTED => event.read::<RetractedBody>().map(|body| (body.fact, Some(body.fact))),
        _ => stated_by(event).map(|fact| (fact, None)),
    }
}

/// Checks the words of a fact and tidies them: no line breaks, no space around.
pub fn check(subject: &str, predicate: &str, object: &str) -> Result<[String; 3], Error> {
    let parts =
        [("subject", subject, limits::NAME_BYTES_MAX), ("predicate", predicate, limits::NAME_BYTES_MAX)];
    let parts = parts.into_iter().chain([("object", object, limits::OBJECT_BYTES_MAX)]);
    let mut tidy = Vec::with_capacity(3);
    for (name, text, max) in parts {
        let text = tidied(text);
        if text.is_empty() {
            return Err(Error::invalid(
                "fact.empty",
                format!("the {name} of a fact is empty; say what it is"),
            ));
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

/// Refuses a confidence that is none.
pub fn check_confidence(confidence: f64) -> Result<f64, Error> {
    if (0.0..=1.0).contains(&confidence) {
        return Ok(confidence);
    }
    Err(Error::invalid("fact.confidence", format!("confidence {confidence} is not between 0 and 1")))
}

/// The answer for a fact that is not there, or not this tenant's.
pub fn absent(id: FactId) -> Error {
    Error::not_found("fact.absent", format!("no fact {id} here; `facts` shows what there is"))
}

/// Words with one space between them: how a text is compared with a quote of it.
pub fn tidied(text: &str) -> String {
    let clean = text.replace(|c: char| c.is_control(), " ");
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What two spellings of the same thing have in common: letter case, underscores and what stands around do not count.
pub fn normal(text: &str) -> String {
    let spaced = text.replace(['_', '-'], " ").to_lowercase();
    let around = |c: char| {
        c.is_whitespace() || matches!(c, '.' | ',' | ';' | ':' | '!' | '"' | '\'' | '“' | '”' | '`')
    };
    tidied(spaced.trim_matches(around))
}
