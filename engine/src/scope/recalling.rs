//! Finding again what was said and learned.

use super::{Scope, page_limit};
use crate::meaning;
use everturn_core::Error;
use everturn_core::fact::{self, Fact};
use everturn_core::id::{ConversationId, FactId, TurnId};
use everturn_core::recall::{
    EntryId, EntryNo, Filter, Kind, Mode, Snippet, TextQuery, Wanted, fuse, score, snippet, terms, text_of,
};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Turn};
use everturn_store::{Behind, Found, Proposed, TurnQuery};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::resume_unwind;
use std::time::Duration;

/// At least so many of each ranking are joined: what one ranks low may be what the other ranks high.
const CANDIDATES_MIN: usize = 50;
/// How steeply a find by words loses weight with the words that it lacks. Chosen on the questions of `bench recall-quality`:
/// with less, turns that share a word by chance push out those that mean the same.
const TOLD_POWER: i32 = 3;
/// So many that share words with a question are embedded before it is asked: more than an answer looks at, since the best by
/// meaning need not be the best by words.
const EMBEDDED_FIRST: usize = 200;
/// So often more are asked for, where what was found does not stand any more.
const ROUNDS_MAX: u32 = 4;

/// What to recall, and where.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecallOptions {
    /// Only in this conversation and in what it inherited.
    pub conversation: Option<ConversationId>,
    /// Only what these said.
    pub actors: Vec<String>,
    /// Only what was said in these roles.
    pub roles: Vec<Role>,
    /// Only what was said at this time or later.
    pub after: Option<Timestamp>,
    /// Only what was said before this time.
    pub before: Option<Timestamp>,
    /// Turns, facts; both if none is named.
    pub kinds: Vec<Kind>,
    /// At most this many.
    pub limit: usize,
    /// By words, by meaning, or both.
    pub mode: Mode,
    /// Also turns that another took the place of, and aborted ones.
    pub include_superseded: bool,
}

impl Default for RecallOptions {
    fn default() -> RecallOptions {
        RecallOptions {
            conversation: None,
            actors: Vec::new(),
            roles: Vec::new(),
            after: None,
            before: None,
            kinds: Vec::new(),
            limit: 10,
            mode: Mode::Hybrid,
            include_superseded: false,
        }
    }
}

impl RecallOptions {
    fn filter(&self) -> Filter {
        Filter {
            conversation: self.conversation,
            actors: self.actors.clone(),
            roles: self.roles.clone(),
            kinds: self.kinds.clone(),
            after: self.after,
            before: self.before,
            through_seq: None,
            before_seq: None,
            include_superseded: self.include_superseded,
        }
    }
}

/// What was recalled, best first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recalled {
    /// How it was really looked for.
    pub mode: Mode,
    /// Why that is another way than was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How much could not be found because it is not in the index yet.
    pub behind: Behind,
    /// What was found.
    pub data: Vec<Hit>,
}

/// One turn or fact that was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hit {
    /// What it is.
    pub kind: Kind,
    /// The turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The fact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fact: Option<Fact>,
    /// Where it was said or learned; of what a fork inherited, the ancestor.
    pub conversation: ConversationId,
    /// What that conversation is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its place there.
    pub seq: u64,
    /// Who said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// In which role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// When it was said.
    pub at: Timestamp,
    /// How well it fits; more is better, and only comparable within one answer.
    pub score: f64,
    /// Which rankings found it.
    pub matched: Matched,
    /// The part of it that shows why.
    pub snippet: Snippet,
}

/// Where something stands in each ranking.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Matched {
    /// By words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lexical: Option<Rank>,
    /// By meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<Rank>,
}

/// A place in one ranking.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rank {
    /// From 1.
    pub rank: usize,
    /// What that ranking says; scores of different rankings cannot be compared.
    pub score: f64,
}

/// The facts of conversations, each read once for one answer.
type KnownFacts = HashMap<ConversationId, Vec<Fact>>;

/// What a question means to a model, by its name, and what lies nearest to that.
struct Meant {
    vector: (String, Vec<f32>),
    near: Vec<Found>,
}

/// Moves entries without a vector up to where words alone put them: meaning knows nothing of them, so it must not push them
/// down. `places` has the place of each by words, from 0, best first.
fn not_below(ranked: &mut Vec<Ranked>, places: &[(EntryNo, usize)]) {
    for (no, place) in places {
        if let Some(at) = ranked.iter().position(|ranked| ranked.found.no == *no).filter(|at| at > place) {
            let mut moved = ranked.remove(at);
            moved.score = moved.score.max(ranked[*place].score);
            ranked.insert(*place, moved);
        }
    }
}

/// What was found, before it is looked at.
struct Ranked {
    found: Found,
    score: f64,
    matched: Matched,
}

/// Both rankings as one, best first.
fn joined(by_words: &[(Found, f64)], near: &[Found], mode: Mode) -> Vec<Ranked> {
    let weights: Vec<(EntryNo, f64)> = by_words.iter().map(|(found, weight)| (found.no, *weight)).collect();
    let meanings: Vec<(EntryNo, f64)> = near.iter().map(|found| (found.no, 1.0)).collect();
    let lexical: HashMap<EntryNo, &Found> = by_words.iter().map(|(found, _)| (found.no, found)).collect();
    let near: HashMap<EntryNo, &Found> = near.iter().map(|found| (found.no, found)).collect();
    let rank = |rank: Option<usize>, found: Option<&&Found>| {
        rank.zip(found).map(|(rank, found)| Rank { rank, score: found.score })
    };
    let ranked = fuse(&[&weights[..], &meanings[..]]).into_iter();
    let ranked = ranked.filter_map(|fused| {
        let (by_words, by_meaning) = (lexical.get(&fused.found), near.get(&fused.found));
        let found = Found::clone(by_words.or(by_meaning)?);
        let matched =
            Matched { lexical: rank(fused.ranks[0], by_words), vector: rank(fused.ranks[1], by_meaning) };
        let score = if mode == Mode::Hybrid { fused.score } else { found.score };
        Some(Ranked { found, score, matched })
    });
    ranked.collect()
}

impl Scope {
    /// Finds turns and facts again, by words and by meaning. Whatever is typed is a question: words, `"phrases"` and
    /// `begin*`. Blocks: it reads the index, and for a meaning asks the embedder.
    pub fn recall(&self, query: &str, options: &RecallOptions) -> Result<Recalled, Error> {
        let limit = page_limit(options.limit)?;
        if let Some(id) = options.conversation {
            self.shared().index.conversation(&self.key(id))?;
        }
        let (data, mode, note) = self.find(query, &options.filter(), options.mode, limit)?;
        let behind = meaning::behind(self.shared(), &self.tenant)?;
        if behind.events > 0 && self.shared().options.index {
            // Its index may just have been found to be lost, and nothing else tells the indexer.
            self.shared().indexer.note();
        }
        Ok(Recalled { mode, note, behind, data })
    }

    /// As [`Everturn::embed_now`](crate::Everturn::embed_now), but what this question's words find comes first, best first:
    /// so meanings are compared among all that shares words with it, however much still waits for a vector.
    pub fn embed_for(&self, query: &str, options: &RecallOptions, time: Duration) -> Result<Behind, Error> {
        let first = self.sharing_words(&TextQuery::parse(query), &options.filter())?;
        meaning::catch_up(self.shared(), Some((&self.tenant, &first)), time)?;
        meaning::behind(self.shared(), &self.tenant)
    }

    /// What shares words with a question, best first. In a large store its rare words choose, which may be few entries: then
    /// come those that have only one of the others.
    fn sharing_words(&self, words: &TextQuery, filter: &Filter) -> Result<Vec<EntryNo>, Error> {
        let alone = |wanted: &Wanted| TextQuery { any: vec![wanted.clone()], all: Vec::new() };
        let each = words.telling().into_iter().map(alone);
        let mut sharing = Vec::new();
        for words in std::iter::once(words.clone()).chain(each) {
            if sharing.len() < EMBEDDED_FIRST {
                let proposed =
                    self.shared().recall.find_text(&self.tenant, &words, filter, EMBEDDED_FIRST)?;
                let new = proposed.found.iter().map(|found| found.no).filter(|no| !sharing.contains(no));
                sharing.extend(new.collect::<Vec<_>>());
            }
        }
        sharing.truncate(EMBEDDED_FIRST);
        Ok(sharing)
    }

    /// Finds, and says how it was looked for.
    pub(super) fn find(
        &self,
        query: &str,
        filter: &Filter,
        mode: Mode,
        limit: usize,
    ) -> Result<(Vec<Hit>, Mode, Option<String>), Error> {
        self.shared().load.note();
        let _slot = self.shared().recalls.take();
        let words = TextQuery::parse(query);
        let mut wanted = (limit * 2).max(CANDIDATES_MIN);
        let asks = mode != Mode::Lexical && self.shared().options.embedder.is_some();
        // Words can be looked for while the model still reads the question.
        let (meant, by_words) = std::thread::scope(|threads| {
            // That the embedder failed is told; that the index did is an error.
            let meaning = || match meaning::of_question(self.shared(), &self.tenant, query) {
                Ok(Some(vector)) => self.by_meaning(vector, filter, wanted).map(|meant| Ok(Some(meant))),
                asked => Ok(asked.map(|_| None)),
            };
            if asks && mode == Mode::Vector {
                return (meaning(), Ok(Vec::new()));
            }
            let meaning = asks.then(|| threads.spawn(meaning));
            let by_words = self.by_words(&words, asks, filter, wanted);
            let meant = meaning.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            (meant.unwrap_or(Ok(Ok(None))), by_words)
        });
        let (meant, mut by_words) = (meant?, by_words?);
        // Without anything near, words alone decide, and no find by words may weigh less than another.
        if !matches!(&meant, Ok(Some(meant)) if !meant.near.is_empty()) {
            by_words.iter_mut().for_each(|(_, told)| *told = 1.0);
        }
        let (mut meant, mode, note) = match (meant, mode) {
            (Ok(None), Mode::Lexical) => (None, Mode::Lexical, None),
            (Ok(Some(meant)), mode) => (Some(meant), mode, None),
            (Ok(None), _) => {
                let note =
                    "there is no embedder, so only words were compared; configure one to find by meaning";
                (None, Mode::Lexical, Some(note.to_string()))
            }
            (Err(error), Mode::Vector) => return Err(error),
            (Err(error), _) => {
                let note = format!("the embedder failed, so only words were compared: {}", error.text());
                (None, Mode::Lexical, Some(note))
            }
        };
        let mut known = KnownFacts::new();
        for round in 1.. {
            let near = meant.as_ref().map_or(&[][..], |meant| meant.near.as_slice());
            let mut ranked = joined(&by_words, near, mode);
            if let Some(meant) = &meant {
                not_below(&mut ranked, &self.places_without_vector(&by_words, &meant.vector.0)?);
            }
            ranked.truncate(wanted);
            let all = ranked.len() < wanted;
            let mut hits = Vec::new();
            for ranked in ranked {
                if hits.len() == limit {
                    break;
                }
                hits.extend(self.looked_at(ranked, filter, &words, &mut known)?);
            }
            if hits.len() == limit || all || round == ROUNDS_MAX {
                let only_words = hits.iter().all(|hit| hit.matched.vector.is_none());
                let asked = meant.filter(|_| mode == Mode::Hybrid && only_words && !hits.is_empty());
                let note = note.or(asked.map(|meant| match meant.vector.1.is_empty() {
                    true => {
                        "the embedder knows no word of the question: only words were compared".to_string()
                    }
                    false => "no vectors yet: only words found these".to_string(),
                }));
                return Ok((hits, mode, note));
            }
            wanted *= 4;
            meant = meant.map(|meant| self.by_meaning(meant.vector, filter, wanted)).transpose()?;
            if mode != Mode::Vector {
                let weighed = meant.as_ref().is_some_and(|meant| !meant.near.is_empty());
                by_words = self.by_words(&words, weighed, filter, wanted)?;
            }
        }
        unreachable!("the last round returns")
    }

    /// What a question's words find, best first, each with its weight. Beside a ranking by meaning, a find that has few of
    /// those words says little: mostly it is chance.
    fn by_words(
        &self,
        words: &TextQuery,
        weighed: bool,
        filter: &Filter,
        wanted: usize,
    ) -> Result<Vec<(Found, f64)>, Error> {
        let Proposed { counts, found } =
            self.shared().recall.find_text(&self.tenant, words, filter, wanted)?;
        let mut known = KnownFacts::new();
        let mut ranked = Vec::with_capacity(found.len());
        for found in found {
            // One that cannot be read any more is left out later, when it is looked at.
            let text = self.found_text(&found, &mut known)?.unwrap_or_default();
            let terms = terms(&text);
            let told = match found.id {
                EntryId::Turn(_) if weighed => words.told_by(&terms),
                // A fact is short: whatever of it fits, fits.
                _ => 1.0,
            };
            ranked.push((Found { score: score(words, &counts, &terms), ..found }, told.powi(TOLD_POWER)));
        }
        ranked.sort_by(|(a, _), (b, _)| b.score.total_cmp(&a.score).then(b.no.cmp(&a.no)));
        Ok(ranked)
    }

    /// Which of what words found has no vector of a model, each with its place.
    fn places_without_vector(
        &self,
        by_words: &[(Found, f64)],
        model: &str,
    ) -> Result<Vec<(EntryNo, usize)>, Error> {
        let entries: Vec<EntryNo> = by_words.iter().map(|(found, _)| found.no).collect();
        let lacking = self.shared().recall.lacking_vectors(&self.tenant, model, &entries)?;
        let place = |no: &EntryNo| entries.iter().position(|entry| entry == no).map(|place| (*no, place));
        Ok(lacking.iter().filter_map(place).collect())
    }

    /// What lies nearest to a question's meaning, best first.
    fn by_meaning(&self, vector: (String, Vec<f32>), filter: &Filter, wanted: usize) -> Result<Meant, Error> {
        let near = self.shared().recall.find_near(&self.tenant, &vector.0, &vector.1, filter, wanted)?;
        Ok(Meant { vector, near })
    }

    /// The text that something was found by; `None` if it cannot be read any more.
    fn found_text(&self, found: &Found, known: &mut KnownFacts) -> Result<Option<String>, Error> {
        let key = self.key(found.conversation);
        let text = match found.id {
            EntryId::Turn(id) => self
                .shared()
                .index
                .turn_in(&key, id)
                .map(|turn| turn.value().map(|message| text_of(&message))),
            EntryId::Fact(id) => self
                .facts_known(found.conversation, None, known)
                .map(|facts| facts.iter().find(|fact| fact.id == id).map(Fact::text)),
        };
        match text {
            Err(Error::NotFound(_) | Error::Corrupt(_)) => Ok(None),
            text => text,
        }
    }

    /// The facts of a conversation, read once for one answer.
    fn facts_known<'k>(
        &self,
        place: ConversationId,
        through: Option<u64>,
        known: &'k mut KnownFacts,
    ) -> Result<&'k [Fact], Error> {
        match known.entry(place) {
            Entry::Occupied(facts) => Ok(facts.into_mut()),
            Entry::Vacant(unknown) => {
                let key = self.key(place);
                let through = match through {
                    Some(through) => through,
                    None => self.shared().index.conversation(&key)?.head.seq,
                };
                Ok(unknown.insert(self.facts_at(&key, through)?))
            }
        }
    }

    /// What was found as it is now; `None` if it does not stand any more.
    fn looked_at(
        &self,
        ranked: Ranked,
        filter: &Filter,
        words: &TextQuery,
        known: &mut KnownFacts,
    ) -> Result<Option<Hit>, Error> {
        let Ranked { found, score, matched } = ranked;
        let said_in = self.key(found.conversation);
        let title = match self.shared().conversation(&said_in) {
            Ok(conversation) => conversation.title.clone(),
            // Deleted; a fork may still read it.
            Err(Error::NotFound(_)) if filter.conversation.is_some() => None,
            Err(Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let hit = |kind, at, text: &str| Hit {
            kind,
            turn: None,
            fact: None,
            conversation: found.conversation,
            title: title.clone(),
            seq: found.seq,
            actor: None,
            role: None,
            at,
            score,
            matched,
            snippet: snippet(text, words),
        };
        match found.id {
            EntryId::Turn(id) => {
                let Some(turn) = self.standing_turn(&found, id, filter)? else { return Ok(None) };
                let Some(text) = turn.value().map(|message| text_of(&message)) else { return Ok(None) };
                let at = turn.occurred_at.unwrap_or(turn.created);
                let told = hit(Kind::Turn, at, &text);
                Ok(Some(Hit { turn: Some(id), actor: turn.actor, role: Some(turn.role), ..told }))
            }
            EntryId::Fact(id) => {
                let Some(fact) = self.standing_fact(&found, id, filter, known)? else { return Ok(None) };
                let told = hit(Kind::Fact, fact.created, &fact.text());
                Ok(Some(Hit { actor: fact.by.clone(), fact: Some(fact), ..told }))
            }
        }
    }

    /// A turn as the conversation that is asked about sees it, unless it is gone from there. A damaged one is left out and
    /// logged: it must not keep the others from being found.
    fn standing_turn(&self, found: &Found, id: TurnId, filter: &Filter) -> Result<Option<Turn>, Error> {
        match self.turn_standing(found, id, filter) {
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!(%error, "left out of what was recalled");
                Ok(None)
            }
            turn => turn,
        }
    }

    fn turn_standing(&self, found: &Found, id: TurnId, filter: &Filter) -> Result<Option<Turn>, Error> {
        let key = self.key(filter.conversation.unwrap_or(found.conversation));
        let turn = match filter.through_seq {
            None => match self.shared().index.turn_in(&key, id) {
                Err(Error::NotFound(_)) => return Ok(None),
                turn => turn?,
            },
            Some(through) => {
                let (after, before) = (Some(found.seq - 1), Some(found.seq + 1));
                let query = TurnQuery {
                    after,
                    before,
                    as_of: Some(through),
                    include_superseded: true,
                    limit: 1,
                    ..TurnQuery::default()
                };
                let page = self.shared().index.turns(&key, &query)?;
                match page.into_iter().find(|turn| turn.id == id) {
                    Some(turn) => turn,
                    None => return Ok(None),
                }
            }
        };
        let fell = turn.superseded_by.is_some() || turn.status == Status::Aborted;
        let stands = turn.message.is_some() && turn.status != Status::Pending;
        Ok(Some(turn).filter(|_| stands && (filter.include_superseded || !fell)))
    }

    /// A fact as the conversation that is asked about sees it, unless it does not hold there.
    fn standing_fact(
        &self,
        found: &Found,
        id: FactId,
        filter: &Filter,
        known: &mut KnownFacts,
    ) -> Result<Option<Fact>, Error> {
        let place = filter.conversation.unwrap_or(found.conversation);
        let facts = self.facts_known(place, filter.through_seq, known)?;
        let fact = facts.iter().find(|fact| fact.id == id);
        let holds = |fact: &&Fact| match fact.status {
            fact::Status::Current => true,
            fact::Status::Superseded => filter.include_superseded,
            fact::Status::Retracted => false,
        };
        Ok(fact.filter(holds).cloned())
    }
}
