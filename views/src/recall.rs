//! Recall: the searched text of a turn, the terms of texts and queries, and a ranking that combines lexical
//! matches, embeddings and neighbouring turns.
//!
//! A backend stores terms and proposes candidates. Terms and scores are computed here, so that every backend
//! returns the same results.
//!
//! This module keeps no index and computes no embeddings.

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
pub use score::{EntryCounts, WordFit, has_phrases, score, word_fit};
pub use snippet::{Snippet, snippet};
pub use terms::{Terms, terms};
pub use text::{cut, recalled_stretches, recalled_text_of, searched_text, text_of, words_of};
use text::{has_prose, is_mixed};

use crate::speech;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Turn};
use everturn_core::viewer::Viewer;
use everturn_core::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Version of the terms: an index of another version is rebuilt.
pub const TERMS_VERSION: u32 = 1;

/// Two texts with a lower cosine are unrelated, for every model.
pub const UNRELATED_BELOW: f64 = 0.25;

/// Kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecallKind {
    /// A turn.
    Turn,
    /// A fact.
    Fact,
}

/// Search mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecallMode {
    /// Lexical and by embedding, both scores combined.
    #[default]
    Hybrid,
    /// Lexical.
    Lexical,
    /// By embedding.
    Vector,
}

words!(RecallKind, "recall.kind", Turn "turn", Fact "fact");
words!(RecallMode, "recall.mode", Hybrid "hybrid", Lexical "lexical", Vector "vector");

/// Id of an indexed turn or fact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EntryId {
    /// A turn.
    Turn(TurnId),
    /// A fact.
    Fact(FactId),
}

impl EntryId {
    /// Kind of the entry.
    pub fn kind(self) -> RecallKind {
        match self {
            EntryId::Turn(_) => RecallKind::Turn,
            EntryId::Fact(_) => RecallKind::Fact,
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
    pub fn from_bytes(kind: RecallKind, bytes: [u8; 16]) -> EntryId {
        match kind {
            RecallKind::Turn => EntryId::Turn(TurnId::from_bytes(bytes)),
            RecallKind::Fact => EntryId::Fact(FactId::from_bytes(bytes)),
        }
    }
}

/// Number of an entry in one index file; another file numbers differently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryNo(pub i64);

/// An indexed turn or fact.
#[derive(Clone, PartialEq, Debug)]
pub struct IndexEntry {
    /// Tenant that it belongs to.
    pub tenant: TenantName,
    /// Conversation that it is from.
    pub conversation: ConversationId,
    /// `seq` of the turn; for a fact, of the event that states it.
    pub seq: u64,
    /// Turn or fact.
    pub id: EntryId,
    /// Role of the speaker; see [`speech`].
    pub role: Option<Role>,
    /// Actor that spoke.
    pub actor: Option<String>,
    /// Time at which it was said, according to the client or importer, else at which the store accepted it.
    pub at: Timestamp,
    /// `seq` of the event that superseded or aborted it.
    pub fallen: Option<u64>,
    /// Whether it was written by a person or a model, or is a fact: it gets its embedding before tool calls and
    /// results.
    pub prose: bool,
    /// Searched text; see [`searched_text`].
    pub text: String,
    /// The words of a person, if those of a tool or a program are beside them: both roles find it, each by its own words.
    pub persons: Option<String>,
    /// Actors that may find it; `None` for everyone.
    pub audience: Option<Vec<String>>,
    /// Embedding, if it is computed together with the terms. Without one, the entry waits for it.
    pub vector: Option<Embedded>,
}

/// An embedding, and the name of the model that computed it.
#[derive(Clone, PartialEq, Debug)]
pub struct Embedded {
    /// Name of the model. Embeddings of different models are never compared.
    pub model: Arc<str>,
    /// The vector; empty if the text means nothing to the model.
    pub numbers: Vec<f32>,
}

impl IndexEntry {
    /// The entry of a turn; `None` if the turn is empty, still open, or erased. `fallen` is the `seq` of the
    /// event that superseded or aborted it.
    pub fn of_turn(tenant: &TenantName, turn: &Turn, fallen: Option<u64>) -> Option<IndexEntry> {
        let message = turn.value().filter(|_| turn.status != Status::Pending)?;
        let text = searched_text(turn, &[])?;
        let role = speech::of_said(turn, Some(&message)).role;
        Some(IndexEntry {
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
            persons: (role == Role::User && is_mixed(&message))
                .then(|| searched_text(turn, &[Role::User]).unwrap_or_default()),
            audience: None,
            vector: None,
        })
    }

    /// The entries of a turn: one with its public text, and one with all of its text for those who may see it.
    pub fn all_of_turn(tenant: &TenantName, turn: &Turn, fallen: Option<u64>) -> Vec<IndexEntry> {
        let public = Viewer::everyone().turn(turn.clone());
        let mut entries: Vec<IndexEntry> = IndexEntry::of_turn(tenant, &public, fallen).into_iter().collect();
        if public.message != turn.message {
            // Private blocks of an addressed turn are its actor's alone, and not searched.
            let addressed = turn.audience.iter().find(|name| Some(*name) != turn.actor.as_ref());
            let seen = match addressed {
                Some(name) => Viewer::actors([name.clone()]).turn(turn.clone()),
                None => turn.clone(),
            };
            let audience = turn.actor.iter().chain(&turn.audience).cloned().collect();
            let entry = IndexEntry::of_turn(tenant, &seen, fallen);
            entries.extend(entry.map(|entry| IndexEntry { audience: Some(audience), ..entry }));
        }
        entries
    }

    /// Its role in the index. Filters by role ask for [`Filter::index_roles`].
    pub fn index_role(&self) -> Option<&'static str> {
        self.role.map(|role| if self.persons.is_some() { MIXED } else { role.as_str() })
    }

    /// The text that is embedded.
    pub fn embedded_text(&self) -> &str {
        self.persons.as_deref().unwrap_or(&self.text)
    }

    /// Key of its conversation.
    pub fn key(&self) -> Key {
        Key { tenant: self.tenant.clone(), id: self.conversation }
    }
}

/// Role of mixed entries in an index. Frozen for each [`TERMS_VERSION`].
const MIXED: &str = "mixed";

/// Filter of results. Empty lists allow everything.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filter {
    /// Only in this conversation, inherited turns included.
    pub conversation: Option<ConversationId>,
    /// Only entries of these conversations, without inherited ones. Not together with `conversation`.
    pub among: Option<Vec<ConversationId>>,
    /// Only by these actors.
    pub actors: Vec<String>,
    /// Only in these roles.
    pub roles: Vec<Role>,
    /// Only these kinds.
    pub kinds: Vec<RecallKind>,
    /// Only at this time or later.
    pub after: Option<Timestamp>,
    /// Only before this time.
    pub before: Option<Timestamp>,
    /// Only up to this `seq`, and as of it. Requires a conversation: the `seq` of different conversations
    /// cannot be compared.
    pub through_seq: Option<u64>,
    /// Only before this `seq`. Requires a conversation as well.
    pub before_seq: Option<u64>,
    /// Whether to include superseded and aborted turns.
    pub include_superseded: bool,
    /// Reader of the results; finds only turns that it may see.
    pub viewer: Viewer,
}

impl Filter {
    /// The roles in an index that it allows.
    pub fn index_roles(&self) -> Vec<&'static str> {
        let mut roles: Vec<&str> = self.roles.iter().map(|role| role.as_str()).collect();
        if self.roles.iter().any(|role| matches!(role, Role::User | Role::Tool)) {
            roles.push(MIXED);
        }
        roles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_kinds_and_modes() {
        assert_eq!("hybrid".parse::<RecallMode>().unwrap(), RecallMode::Hybrid);
        assert!("fuzzy".parse::<RecallMode>().unwrap_err().text().contains("hybrid, lexical, vector"));
        assert_eq!(RecallKind::Fact.to_string(), "fact");
    }
}
