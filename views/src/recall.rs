//! Finding what was said again: what of a turn is searched, the words of a text and of a question, and how what
//! words, meaning and neighbours say becomes one ranking.
//!
//! A backend keeps words and proposes what has them. Which words there are and how well a text fits is decided here, so that
//! every backend finds the same.
//!
//! What it is not: it keeps no index and computes no vectors.

mod language;
mod period;
mod query;
mod rank;
mod score;
mod snippet;
mod terms;
mod text;

pub use language::Language;
pub use period::period;
pub use query::{TextQuery, Wanted};
pub use rank::{Fit, NEIGHBOURS, excess, lift, own_scores};
pub use score::{Counts, WordFit, has_phrases, score, word_fit};
pub use snippet::{Snippet, snippet};
pub use terms::{Terms, terms};
use text::has_prose;
pub use text::{cut, raw_text_of, searched_text, text_of};

use crate::speech;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Turn};
use everturn_core::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What words are made of changed when this does: an index of another version is made again.
pub const TERMS_VERSION: u32 = 4;

/// What can be found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "RecallKind")]
pub enum Kind {
    /// Something said.
    Turn,
    /// Something learned.
    Fact,
}

/// How to look.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "RecallMode")]
pub enum Mode {
    /// By words and by meaning, both rankings joined.
    #[default]
    Hybrid,
    /// By words.
    Lexical,
    /// By meaning.
    Vector,
}

words!(Kind, "recall.kind", Turn "turn", Fact "fact");
words!(Mode, "recall.mode", Hybrid "hybrid", Lexical "lexical", Vector "vector");

/// Which turn or fact something in the index is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EntryId {
    /// A turn.
    Turn(TurnId),
    /// A fact.
    Fact(FactId),
}

impl EntryId {
    /// What it is.
    pub fn kind(self) -> Kind {
        match self {
            EntryId::Turn(_) => Kind::Turn,
            EntryId::Fact(_) => Kind::Fact,
        }
    }

    /// The sixteen bytes that are stored.
    pub fn to_bytes(self) -> [u8; 16] {
        match self {
            EntryId::Turn(id) => id.to_bytes(),
            EntryId::Fact(id) => id.to_bytes(),
        }
    }

    /// From the stored bytes.
    pub fn from_bytes(kind: Kind, bytes: [u8; 16]) -> EntryId {
        match kind {
            Kind::Turn => EntryId::Turn(TurnId::from_bytes(bytes)),
            Kind::Fact => EntryId::Fact(FactId::from_bytes(bytes)),
        }
    }
}

/// Its number in one index file; another file numbers differently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryNo(pub i64);

/// One thing that can be found.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Whose.
    pub tenant: TenantName,
    /// Where it was said or learned.
    pub conversation: ConversationId,
    /// The place of the turn; of a fact, the place of the event that tells it.
    pub seq: u64,
    /// Which one.
    pub id: EntryId,
    /// Its speaker's role; see [`speech`].
    pub role: Option<Role>,
    /// Who said it.
    pub actor: Option<String>,
    /// When it was said: what a client or importer says, else when the store took it.
    pub at: Timestamp,
    /// The place of the event after which it does not stand any more.
    pub fallen: Option<u64>,
    /// Whether a person or a model said it, or learned it: it gets its vector before what tools were asked and answered.
    pub prose: bool,
    /// Its words; see [`searched_text`].
    pub text: String,
    /// Its vector, where it is made along with the words. Without one, the entry waits for it.
    pub vector: Option<Embedded>,
}

/// A vector, and the name of the model that made it.
#[derive(Clone, PartialEq, Debug)]
pub struct Embedded {
    /// Vectors of different models are never compared.
    pub model: Arc<str>,
    /// Empty if nothing in the text has a meaning to the model.
    pub numbers: Vec<f32>,
}

impl Entry {
    /// A turn that can be found; `None` for one that says nothing, or not yet, or whose words were erased. `fallen` is the
    /// place of the event after which it does not stand any more.
    pub fn of_turn(tenant: &TenantName, turn: &Turn, fallen: Option<u64>) -> Option<Entry> {
        let message = turn.value().filter(|_| turn.status != Status::Pending)?;
        let text = searched_text(turn)?;
        let role = speech::of_turn(turn).role;
        Some(Entry {
            tenant: tenant.clone(),
            conversation: turn.conversation,
            seq: turn.seq,
            id: EntryId::Turn(turn.id),
            role: Some(role),
            actor: turn.actor.clone(),
            at: turn.occurred_at.unwrap_or(turn.created),
            fallen,
            prose: matches!(role, Role::User | Role::Assistant) && has_prose(&message),
            text,
            vector: None,
        })
    }

    /// The conversation that it is in.
    pub fn key(&self) -> Key {
        Key { tenant: self.tenant.clone(), id: self.conversation }
    }
}

/// What may be found. Empty lists allow everything.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filter {
    /// Only in this conversation and in what it inherited.
    pub conversation: Option<ConversationId>,
    /// Only what these said.
    pub actors: Vec<String>,
    /// Only what was said in these roles.
    pub roles: Vec<Role>,
    /// Only these kinds.
    pub kinds: Vec<Kind>,
    /// Only what was said at this time or later.
    pub after: Option<Timestamp>,
    /// Only what was said before this time.
    pub before: Option<Timestamp>,
    /// Only up to this place, and as it stood there. Needs a conversation: places of others cannot be compared.
    pub through_seq: Option<u64>,
    /// Only before this place. Needs a conversation as well.
    pub before_seq: Option<u64>,
    /// Also what another took the place of, and what was aborted.
    pub include_superseded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_kinds_and_modes() {
        assert_eq!("hybrid".parse::<Mode>().unwrap(), Mode::Hybrid);
        assert!("fuzzy".parse::<Mode>().unwrap_err().text().contains("hybrid, lexical, vector"));
        assert_eq!(Kind::Fact.to_string(), "fact");
    }
}
