//! Finding what was said again: what of a turn is searched, the words of a text and of a question, and how several
//! rankings become one.
//!
//! A backend keeps words and proposes what has them. Which words there are and how well a text fits is decided here, so that
//! every backend finds the same.
//!
//! What it is not: it keeps no index and computes no vectors.

mod query;
mod score;
mod snippet;
mod terms;
mod text;

pub use query::{TextQuery, Wanted};
pub use score::{Counts, score};
pub use snippet::{Snippet, snippet};
pub use terms::{Terms, terms};
use text::has_prose;
pub use text::text_of;

use crate::Error;
use crate::id::{ConversationId, FactId, Key, Tenant, TurnId};
use crate::time::Timestamp;
use crate::turn::{Role, Status, Turn, words};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;

/// What words are made of changed when this does: an index of another version is made again.
pub const TERMS_VERSION: u32 = 2;

/// What can be found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Something said.
    Turn,
    /// Something learned.
    Fact,
}

/// How to look.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    pub tenant: Tenant,
    /// Where it was said or learned.
    pub conversation: ConversationId,
    /// The place of the turn; of a fact, the place of the event that tells it.
    pub seq: u64,
    /// Which one.
    pub id: EntryId,
    /// In which role it was said.
    pub role: Option<Role>,
    /// Who said it.
    pub actor: Option<String>,
    /// When it was said: what a client or importer says, else when the store took it.
    pub at: Timestamp,
    /// The place of the event after which it does not stand any more.
    pub fallen: Option<u64>,
    /// Whether a person or a model said it, or learned it: it gets its vector before what tools were asked and answered.
    pub prose: bool,
    /// Its words; see [`text_of`].
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
    pub fn of_turn(tenant: &Tenant, turn: &Turn, fallen: Option<u64>) -> Option<Entry> {
        let message = turn.value().filter(|_| turn.status != Status::Pending)?;
        let text = text_of(&message);
        if text.trim().is_empty() {
            return None;
        }
        Some(Entry {
            tenant: tenant.clone(),
            conversation: turn.conversation,
            seq: turn.seq,
            id: EntryId::Turn(turn.id),
            role: Some(turn.role),
            actor: turn.actor.clone(),
            at: turn.occurred_at.unwrap_or(turn.created),
            fallen,
            prose: matches!(turn.role, Role::User | Role::Assistant) && has_prose(&message),
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

/// How much the place in one ranking counts against that in another: with 10, being first is worth nearly three times as
/// much as being twentieth.
const FUSION_RANKS: f64 = 10.0;
/// What is first in a ranking counts at least like one between these places of a full one.
const FIRST_RANK_MAX: f64 = 8.5;

/// Something that several rankings found.
#[derive(Clone, PartialEq, Debug)]
pub struct Fused<T> {
    /// What.
    pub found: T,
    /// How well, over all rankings.
    pub score: f64,
    /// Its place in each ranking, from 1.
    pub ranks: Vec<Option<usize>>,
}

/// Joins rankings by reciprocal rank: each is worth `weight / (10 + rank)` to what it found, where everything has a weight of
/// its own. What is first in one of them stands at least before the ninth of another, however little it weighs: the one turn
/// that has a rare word must not go unseen. Best first; at the same score, what an earlier ranking found first.
pub fn fuse<T: Clone + Eq + Hash>(rankings: &[&[(T, f64)]]) -> Vec<Fused<T>> {
    let mut places: HashMap<&T, usize> = HashMap::new();
    let mut all: Vec<Fused<T>> = Vec::new();
    for (ranking, found) in rankings.iter().enumerate() {
        for (rank, (item, weight)) in found.iter().enumerate() {
            let place = *places.entry(item).or_insert_with(|| {
                all.push(Fused { found: item.clone(), score: 0.0, ranks: vec![None; rankings.len()] });
                all.len() - 1
            });
            // Only its best place counts, should a ranking name something twice.
            if all[place].ranks[ranking].is_none() {
                all[place].ranks[ranking] = Some(rank + 1);
                all[place].score += weight / (FUSION_RANKS + (rank + 1) as f64);
            }
        }
    }
    for (first, weight) in rankings.iter().filter_map(|found| found.first()) {
        let fused = &mut all[places[first]];
        if *weight > 0.0 {
            fused.score = fused.score.max(1.0 / (FUSION_RANKS + FIRST_RANK_MAX));
        }
    }
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(items: &[&'static str]) -> Vec<(&'static str, f64)> {
        items.iter().map(|item| (*item, 1.0)).collect()
    }

    #[test]
    fn what_both_rankings_found_comes_before_what_one_did() {
        let joined = fuse(&[&plain(&["a", "b", "c"])[..], &plain(&["d", "c", "b"])]);
        let order: Vec<&str> = joined.iter().map(|fused| fused.found).collect();
        assert_eq!(order, ["b", "c", "a", "d"]);
        assert_eq!(joined[0].ranks, [Some(2), Some(3)]);
        assert_eq!(joined[2].ranks, [Some(1), None]);
        assert!((joined[0].score - (1.0 / 12.0 + 1.0 / 13.0)).abs() < 1e-12);
        assert_eq!(
            fuse(&[&plain(&["a", "b"])[..]]).iter().map(|fused| fused.found).collect::<String>(),
            "ab"
        );
        assert!(fuse::<u8>(&[]).is_empty());
        assert_eq!(fuse(&[&plain(&["a", "a"])[..]])[0].score, 1.0 / 11.0, "said twice is not found twice");
        let weak = fuse(&[&[("a", 0.1)][..], &plain(&["b"])]);
        assert_eq!(weak[0].found, "b", "a weak find comes after a full one");
        let letters = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let seen = fuse(&[&[("x", 0.001), ("y", 0.001)][..], &plain(&letters)]);
        let order: String = seen.iter().map(|fused| fused.found).collect();
        assert_eq!(order, "abcdefghxijy", "the best of a weak ranking is seen");
        assert_eq!(fuse(&[&[("x", 0.0)][..], &plain(&letters)])[10].found, "x", "unless it weighs nothing");
    }

    #[test]
    fn words_for_kinds_and_modes() {
        assert_eq!("hybrid".parse::<Mode>().unwrap(), Mode::Hybrid);
        assert!("fuzzy".parse::<Mode>().unwrap_err().text().contains("hybrid, lexical, vector"));
        assert_eq!(Kind::Fact.to_string(), "fact");
    }
}
