//! Recall of turns and facts.

use super::ranking::{Ranked, alone};
use crate::model::Closeness;
use crate::recall::embedding;
use crate::tenant::{Tenant, page_limit};
use everturn_core::Error;
use everturn_core::fact::{self, Fact};
use everturn_core::id::{ConversationId, FactId, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Turn};
use everturn_store::{Behind, ConversationQuery, Proposal, Proposed, TurnQuery};
use everturn_views::recall::{
    EntryCounts, EntryId, EntryNo, Filter, Fit, RecallKind, RecallMode, Snippet, Terms, TextQuery,
    UNRELATED_BELOW, Wanted, WordFit, has_phrases, searched_text, snippet, terms, word_fit, words_of,
};
use everturn_views::speech;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::time::Duration;

/// Fewest results of each ranking to combine, because a result that ranks low in one may rank high in the other.
const CANDIDATES_MIN: usize = 50;
/// Number of lexical matches embedded before a query runs: more than a recall reads, since the best by vector need
/// not be the best by words.
const EMBEDDED_FIRST: usize = 200;
/// Number of turns that are read at once.
pub(crate) const READ_AT_ONCE: usize = 32;
/// Most rounds of asking for more results, where some no longer hold.
const ROUNDS_MAX: u32 = 4;
/// Most unrelated results to skip.
const UNRELATED_MAX: usize = 32;

/// Options of a recall.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecallOptions {
    /// Only this conversation and its inherited history.
    #[serde(skip)]
    pub conversation: Option<ConversationId>,
    /// Only entries from conversations of this project: its name, or a folder that it is in.
    pub project: Option<String>,
    /// Only entries from conversations of this agent, such as `codex`; the beginning of its name is enough.
    pub agent: Option<String>,
    /// Only entries of these actors.
    pub actors: Vec<String>,
    /// Only entries in these roles.
    pub roles: Vec<Role>,
    /// Only entries from this time or later.
    pub after: Option<Timestamp>,
    /// Only entries from before this time.
    pub before: Option<Timestamp>,
    /// Kinds of entries: turns, facts; both if none is named.
    pub kinds: Vec<RecallKind>,
    /// Maximum number of results.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: usize,
    /// By words, by meaning, or both.
    pub mode: RecallMode,
    /// Also superseded and aborted turns.
    pub include_superseded: bool,
}

impl Default for RecallOptions {
    fn default() -> RecallOptions {
        RecallOptions {
            conversation: None,
            project: None,
            agent: None,
            actors: Vec::new(),
            roles: Vec::new(),
            after: None,
            before: None,
            kinds: Vec::new(),
            limit: 10,
            mode: RecallMode::Hybrid,
            include_superseded: false,
        }
    }
}

impl RecallOptions {
    fn filter(&self, tenant: &Tenant) -> Result<Filter, Error> {
        let mut among = None;
        if self.project.is_some() || self.agent.is_some() {
            let (project, agent) = (self.project.clone(), self.agent.clone());
            let query =
                ConversationQuery { project, agent, limit: usize::MAX, ..ConversationQuery::default() };
            let found = tenant.shared().journal.index.conversations(tenant.name(), &query)?;
            among = Some(found.into_iter().map(|conversation| conversation.id).collect::<Vec<_>>());
        }
        // One conversation is searched with what it inherited, if it is among them.
        let is_among = |id| among.as_ref().is_none_or(|among: &Vec<_>| among.contains(&id));
        let conversation = self.conversation.filter(|id| is_among(*id));
        if self.conversation.is_some() {
            among = conversation.is_none().then(Vec::new);
        }
        let viewer = tenant.viewer().clone();
        Ok(Filter {
            conversation,
            among,
            actors: self.actors.clone(),
            roles: self.roles.clone(),
            kinds: self.kinds.clone(),
            after: self.after,
            before: self.before,
            through_seq: None,
            before_seq: None,
            include_superseded: self.include_superseded,
            viewer,
        })
    }
}

/// Recalled turns and facts, best first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Recalled {
    /// Mode that was used.
    pub mode: RecallMode,
    /// Reason for using another mode than was asked for, or for an incomplete search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Backlog of the index: entries that could not be found yet.
    pub behind: Behind,
    /// Results, best first.
    pub data: Vec<Hit>,
}

/// A recalled turn or fact.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Hit {
    /// Kind of the entry.
    pub kind: RecallKind,
    /// The turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The fact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fact: Option<Fact>,
    /// Conversation in which it was said or learned; for inherited entries, the ancestor.
    pub conversation: ConversationId,
    /// Title of that conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Project of that conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// `seq` in that conversation.
    pub seq: u64,
    /// Position in reading order, where it is not `seq`: that of the turn that it supersedes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
    /// Actor who said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Role in which it was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Time at which it was said.
    pub at: Timestamp,
    /// Relevance; higher is better, and only comparable within one recall.
    pub score: f64,
    /// Rankings that found it.
    pub matched: Matched,
    /// Part of the text that matches.
    pub snippet: Snippet,
    /// Part of the neighbouring turn that matches, if that is why it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Snippet>,
}

/// Ranks of an entry.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Matched {
    /// Lexical rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lexical: Option<Rank>,
    /// Vector rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<Rank>,
    /// `seq` of the neighbouring turn that matches best, if that is why it was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<u64>,
    /// Whether it was said in the period that the query names; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_period: bool,
}

impl Matched {
    /// Whether it shares words with the query, is near to it in meaning, or is from the time that it names.
    fn is_related(&self) -> bool {
        self.lexical.is_some()
            || self.in_period
            || self.vector.is_some_and(|vector| vector.score >= UNRELATED_BELOW)
    }

    /// Whether it was found as the neighbour of another.
    fn is_beside(&self) -> bool {
        self.beside.is_some() || self.vector.is_none()
    }
}

/// Rank and score in one ranking.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Rank {
    /// Rank, from 1.
    pub rank: usize,
    /// Score in that ranking; scores of different rankings cannot be compared.
    pub score: f64,
}

/// Cache of one recall: turns to show, texts to rank, and facts of conversations.
#[derive(Default)]
pub(crate) struct Known {
    /// Roles to read; empty for all.
    roles: Vec<Role>,
    turns: HashMap<(ConversationId, TurnId), Result<Turn, Error>>,
    texts: HashMap<(ConversationId, TurnId), Option<String>>,
    facts: HashMap<ConversationId, Vec<Fact>>,
}

impl Known {
    pub fn by(filter: &Filter) -> Known {
        Known { roles: filter.roles.clone(), ..Known::default() }
    }
}

/// A query and its scope.
pub(crate) struct Search<'a> {
    pub query: &'a str,
    pub words: TextQuery,
    pub filter: &'a Filter,
}

/// Embedding of a query, its nearest entries, best first, and the words of each.
pub(crate) struct VectorResults {
    pub question: embedding::Question,
    pub near: Vec<Proposal>,
    pub texts: HashMap<EntryNo, Candidate>,
}

/// The words of a result.
pub(crate) struct Candidate {
    pub terms: Terms,
    /// Similarity of its words to those of the query.
    pub closeness: f64,
}

/// Lexical results of a query, best first, with its term statistics and their scores.
#[derive(Default)]
pub(crate) struct LexicalResults {
    pub counts: EntryCounts,
    pub found: Vec<Proposal>,
    pub fits: HashMap<EntryNo, Fit>,
}

impl Tenant {
    /// Recalls turns and facts, by words and by meaning. Any text is a query: words, `"phrases"` and `begin*`.
    /// Blocks: it reads the index, and asks the embedder for the vector of the query.
    pub fn recall(&self, query: &str, options: &RecallOptions) -> Result<Recalled, Error> {
        let limit = page_limit(options.limit)?;
        if let Some(id) = options.conversation {
            self.shared().journal.index.conversation(&self.key(id))?;
        }
        // The index may catch up during the search, and a loss may only then be noticed: everything that may have
        // been missed counts. The second call also wakes the indexer, which nothing else tells of a loss.
        let before = embedding::behind(self.shared(), self.name())?;
        // What is related may be behind what is not.
        let wanted = if options.mode == RecallMode::Hybrid { limit + UNRELATED_MAX } else { limit };
        let (mut data, mode, note) = self.find(query, &options.filter(self)?, options.mode, wanted)?;
        if mode == RecallMode::Hybrid {
            // Something is nearest to anything. A neighbour of a hit may answer in other words, but whoever looks for one
            // word wants to see it.
            let is_found = data.iter().any(|hit| hit.matched.is_related());
            let is_one_word = TextQuery::parse(query).wanted().count() == 1;
            data.retain(|hit| {
                let may_answer = hit.matched.is_beside() && (!is_one_word || !hit.snippet.marks.is_empty());
                is_found && (hit.matched.is_related() || may_answer)
            });
        }
        data.truncate(limit);
        let after = embedding::behind(self.shared(), self.name())?;
        let behind =
            Behind { events: before.events.max(after.events), vectors: before.vectors.max(after.vectors) };
        let notes: Vec<String> = note.into_iter().chain(self.unsearched(behind.events)).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Recalled { mode, note, behind, data })
    }

    /// Note that the index is behind, with advice. Otherwise an empty result would suggest that there is nothing to find.
    fn unsearched(&self, events: u64) -> Option<String> {
        let options = &self.shared().options;
        let are = match events {
            0 => return None,
            1 => "1 event is",
            _ => &format!("{events} events are"),
        };
        let remedy = if options.index && !options.read_only {
            "indexing goes on in the background, so ask again in a moment"
        } else {
            "this process does not index, so run `everturn recall --index`"
        };
        Some(format!("{are} not in the index yet and not searched; {remedy}"))
    }

    /// As [`Everturn::embed_now`](crate::Everturn::embed_now), but embeds the lexical matches of this query first, so that
    /// all of them have vectors to compare.
    #[doc(hidden)]
    pub fn embed_for(&self, query: &str, options: &RecallOptions, time: Duration) -> Result<Behind, Error> {
        let first = self.sharing_words(&TextQuery::parse(query), &options.filter(self)?)?;
        embedding::catch_up(self.shared(), Some((self.name(), &first)), time)?;
        embedding::behind(self.shared(), self.name())
    }

    /// Entries that share words with a query, best first. In a large store only its rare words select, which may give
    /// few entries: then those with only one of the other words follow.
    fn sharing_words(&self, words: &TextQuery, filter: &Filter) -> Result<Vec<EntryNo>, Error> {
        let alone = |wanted: &Wanted| TextQuery { any: vec![wanted.clone()], all: Vec::new() };
        let each = words.telling().map(alone);
        let mut sharing = Vec::new();
        for words in std::iter::once(words.clone()).chain(each) {
            if sharing.len() < EMBEDDED_FIRST {
                let proposed =
                    self.shared().recall.store.find_text(self.name(), &words, filter, EMBEDDED_FIRST)?;
                let new = proposed.found.iter().map(|found| found.no).filter(|no| !sharing.contains(no));
                sharing.extend(new.collect::<Vec<_>>());
            }
        }
        sharing.truncate(EMBEDDED_FIRST);
        Ok(sharing)
    }

    /// Finds entries, and returns the mode that was used.
    pub(crate) fn find(
        &self,
        query: &str,
        filter: &Filter,
        mode: RecallMode,
        limit: usize,
    ) -> Result<(Vec<Hit>, RecallMode, Option<String>), Error> {
        self.shared().load.note();
        let _slot = self.shared().recall.slots.take();
        let search = Search { query, words: TextQuery::parse(query), filter };
        let mut wanted = (limit * 2).max(CANDIDATES_MIN);
        let without_vectors = self.shared().recall.store.without_vectors();
        let asks = mode != RecallMode::Lexical
            && self.shared().options.embedder.is_some()
            && without_vectors.is_none();
        // The lexical search runs while the model embeds the query.
        let (meant, by_words) = std::thread::scope(|threads| {
            // A failure of the embedder becomes a note; a failure of the index is an error.
            let meaning = || match embedding::of_question(self.shared(), self.name(), query) {
                Ok(Some(question)) => {
                    self.by_meaning(question, &search, wanted, mode).map(|meant| Ok(Some(meant)))
                }
                asked => Ok(asked.map(|_| None)),
            };
            if asks && mode == RecallMode::Vector {
                return (meaning(), Ok(LexicalResults::default()));
            }
            let meaning = asks.then(|| threads.spawn(meaning));
            let by_words = self.by_words(&search, wanted, mode);
            let meant = meaning.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            (meant.unwrap_or(Ok(Ok(None))), by_words)
        });
        let (meant, mut by_words) = (meant?, by_words?);
        let (mut meant, mode, note) = match (meant, mode) {
            (Ok(None), RecallMode::Lexical) => (None, RecallMode::Lexical, None),
            (Ok(Some(meant)), mode) => (Some(meant), mode, None),
            (Ok(None), _) => {
                let note = without_vectors.filter(|_| self.shared().options.embedder.is_some()).unwrap_or(
                    "there is no embedder, so only words were compared; configure one to find by meaning",
                );
                (None, RecallMode::Lexical, Some(note.to_string()))
            }
            (Err(error), RecallMode::Vector) => return Err(error),
            (Err(error), _) => {
                let note = format!("the embedder failed, so only words were compared: {}", error.text());
                (None, RecallMode::Lexical, Some(note))
            }
        };
        let mut known = Known::by(filter);
        for round in 1.. {
            let (mut ranked, not_reranked) = match (&meant, mode) {
                (Some(meant), RecallMode::Hybrid) => self.joined(&search, &by_words, meant)?,
                (Some(meant), _) => {
                    (alone(&meant.near, |rank| Matched { vector: Some(rank), ..Matched::default() }), None)
                }
                (None, _) => {
                    let matched = |rank| Matched { lexical: Some(rank), ..Matched::default() };
                    (alone(&by_words.found, matched), None)
                }
            };
            let all = ranked.len() < wanted;
            ranked.truncate(wanted);
            // A turn with private blocks may be found as everyone sees it and as the caller does.
            let mut seen = HashSet::new();
            ranked.retain(|ranked| seen.insert((ranked.found.conversation, ranked.found.id)));
            let mut hits = Vec::new();
            for page in ranked.chunks(limit.clamp(1, READ_AT_ONCE)) {
                if hits.len() == limit {
                    break;
                }
                self.read_page(page, filter, &mut known)?;
                for ranked in page {
                    if hits.len() < limit {
                        hits.extend(self.looked_at(ranked, filter, &search.words, &mut known)?);
                    }
                }
            }
            if hits.len() == limit || all || round == ROUNDS_MAX {
                let says_nothing = |meant: &VectorResults| meant.question.vector.numbers.is_empty();
                let is_unknown = mode == RecallMode::Hybrid && meant.as_ref().is_some_and(says_nothing);
                let note = note.or(not_reranked).or((is_unknown && !hits.is_empty()).then(|| {
                    "the embedder knows no word of the question: only words were compared".to_string()
                }));
                return Ok((hits, mode, note));
            }
            wanted *= 4;
            meant = meant.map(|meant| self.by_meaning(meant.question, &search, wanted, mode)).transpose()?;
            if mode != RecallMode::Vector {
                by_words = self.by_words(&search, wanted, mode)?;
            }
        }
        unreachable!("the last round returns")
    }

    /// Lexical results of a query, best first. In hybrid mode, also the similarity of their words.
    fn by_words(&self, search: &Search, wanted: usize, mode: RecallMode) -> Result<LexicalResults, Error> {
        let Proposed { counts, mut found } =
            self.shared().recall.store.find_text(self.name(), &search.words, search.filter, wanted)?;
        let (mut known, mut fits) = (Known::by(search.filter), HashMap::new());
        let mut closeness = (mode == RecallMode::Hybrid).then(|| Closeness::to(search.query)).flatten();
        self.read_ahead(&found, &mut known)?;
        for found in &mut found {
            let Candidate { terms, closeness } =
                self.candidate(found, search, closeness.as_mut(), &mut known)?;
            let WordFit { score, share } = word_fit(&search.words, &counts, &terms);
            found.score = score;
            let length = terms.words.len();
            fits.insert(found.no, Fit { words: share, meaning: closeness, length, ..Fit::default() });
        }
        found.retain(|found| found.score > 0.0);
        found.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.no.cmp(&a.no)));
        Ok(LexicalResults { counts, found, fits })
    }

    /// Entries nearest to a query's vector, best first.
    fn by_meaning(
        &self,
        question: embedding::Question,
        search: &Search,
        wanted: usize,
        mode: RecallMode,
    ) -> Result<VectorResults, Error> {
        let mut near = self.shared().recall.store.find_near(
            self.name(),
            &question.model,
            &question.vector.numbers,
            search.filter,
            wanted,
        )?;
        let mut texts = HashMap::new();
        // A search by meaning alone asks for the nearest entries, however far they are.
        if mode == RecallMode::Hybrid {
            if near.first().is_some_and(|nearest| nearest.score < question.vector.nearness_min) {
                near.clear();
            }
            let (mut closeness, mut known) = (Closeness::to(search.query), Known::by(search.filter));
            self.read_ahead(&near, &mut known)?;
            for found in &near {
                texts.insert(found.no, self.candidate(found, search, closeness.as_mut(), &mut known)?);
            }
        }
        Ok(VectorResults { question, near, texts })
    }

    /// Reads a result. One that can no longer be read has no words here, and is left out later.
    pub(crate) fn candidate(
        &self,
        found: &Proposal,
        search: &Search,
        closeness: Option<&mut Closeness>,
        known: &mut Known,
    ) -> Result<Candidate, Error> {
        let text = self.found_text(found, known)?.unwrap_or_default();
        let terms = terms(&text);
        // An entry that lacks a phrase of the query is not ranked.
        let closeness = closeness.filter(|_| has_phrases(&search.words, &terms));
        Ok(Candidate { closeness: closeness.map_or(0.0, |closeness| closeness.of(&text)), terms })
    }

    /// Reads the texts of turns.
    pub(crate) fn read_ahead<'f>(
        &self,
        found: impl IntoIterator<Item = &'f Proposal>,
        known: &mut Known,
    ) -> Result<(), Error> {
        self.read_turns(found, |place, turn| {
            let text = match turn {
                Err(Error::NotFound(_) | Error::Corrupt(_)) => None,
                turn => searched_text(&turn?, &known.roles),
            };
            known.texts.insert(place, text);
            Ok(())
        })
    }

    /// Reads the turns of a page of results, as far as the conversation in scope sees them as they are.
    fn read_page(&self, page: &[Ranked], filter: &Filter, known: &mut Known) -> Result<(), Error> {
        known.turns.clear();
        if filter.through_seq.is_some() {
            return Ok(());
        }
        let shown = page.iter().flat_map(|ranked| std::iter::once(&ranked.found).chain(&ranked.beside));
        let in_scope =
            shown.filter(|found| filter.conversation.is_none_or(|scope| scope == found.conversation));
        self.read_turns(in_scope, |place, turn| {
            known.turns.insert(place, turn);
            Ok(())
        })
    }

    /// Reads turns where they were said, some at a time: a database that is far away is not asked for each.
    fn read_turns<'f>(
        &self,
        found: impl IntoIterator<Item = &'f Proposal>,
        mut each: impl FnMut((ConversationId, TurnId), Result<Turn, Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let turn = |found: &Proposal| match found.id {
            EntryId::Turn(id) => Some((found.conversation, id)),
            EntryId::Fact(_) => None,
        };
        let turns: Vec<(ConversationId, TurnId)> = found.into_iter().filter_map(turn).collect();
        for some in turns.chunks(READ_AT_ONCE) {
            let read = self.shared().journal.index.turns_in(self.name(), some)?;
            for (place, turn) in some.iter().zip(read) {
                each(*place, turn.and_then(|turn| self.conversation(place.0).viewed(turn)))?;
            }
        }
        Ok(())
    }

    /// The text of a result; `None` if it can no longer be read.
    pub(crate) fn found_text(&self, found: &Proposal, known: &mut Known) -> Result<Option<String>, Error> {
        let key = self.key(found.conversation);
        let text = match found.id {
            EntryId::Turn(id) => match known.texts.get(&(found.conversation, id)) {
                Some(text) => return Ok(text.clone()),
                None => self.conversation(key.id).turn(id).map(|turn| searched_text(&turn, &known.roles)),
            },
            EntryId::Fact(id) => self
                .facts_known(found.conversation, None, known)
                .map(|facts| facts.iter().find(|fact| fact.id == id).map(Fact::text)),
        };
        match text {
            Err(Error::NotFound(_) | Error::Corrupt(_)) => Ok(None),
            text => text,
        }
    }

    /// The facts of a conversation, read once per recall.
    fn facts_known<'k>(
        &self,
        place: ConversationId,
        through: Option<u64>,
        known: &'k mut Known,
    ) -> Result<&'k [Fact], Error> {
        match known.facts.entry(place) {
            Entry::Occupied(facts) => Ok(facts.into_mut()),
            Entry::Vacant(unknown) => {
                let key = self.key(place);
                let through = match through {
                    Some(through) => through,
                    None => self.shared().journal.index.conversation(&key)?.head.seq,
                };
                Ok(unknown.insert(self.conversation(key.id).facts_at(through)?))
            }
        }
    }

    /// A result as it is now; `None` if it no longer holds.
    fn looked_at(
        &self,
        ranked: &Ranked,
        filter: &Filter,
        words: &TextQuery,
        known: &mut Known,
    ) -> Result<Option<Hit>, Error> {
        let Ranked { found, score, matched, beside } = ranked;
        let said_in = self.key(found.conversation);
        let (title, project) = match self.shared().journal.conversation(&said_in) {
            Ok(conversation) => (conversation.title.clone(), conversation.project()),
            // Deleted; a fork may still read it.
            Err(Error::NotFound(_)) if filter.conversation.is_some() => (None, None),
            Err(Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let hit = |kind, at, text: &str| Hit {
            kind,
            turn: None,
            fact: None,
            conversation: found.conversation,
            title: title.clone(),
            project: project.clone(),
            seq: found.seq,
            place: None,
            actor: None,
            role: None,
            at,
            score: *score,
            matched: *matched,
            snippet: snippet(text, words),
            beside: None,
        };
        match found.id {
            EntryId::Turn(id) => {
                let Some(turn) = self.standing_turn(found, id, filter, known)? else { return Ok(None) };
                let role = found_role(&turn, filter, words);
                let Some(text) = words_of(&turn, &[role]) else { return Ok(None) };
                let at = turn.occurred_at.unwrap_or(turn.created);
                let told = hit(RecallKind::Turn, at, &text);
                let beside = match beside {
                    Some(beside) => self.snippet_of(beside, filter, words, known)?,
                    None => None,
                };
                let role = Some(role);
                let place = Some(turn.place).filter(|place| *place != turn.seq);
                let actor = turn.actor;
                Ok(Some(Hit { turn: Some(id), place, actor, role, beside, ..told }))
            }
            EntryId::Fact(id) => {
                let Some(fact) = self.standing_fact(found, id, filter, known)? else { return Ok(None) };
                let told = hit(RecallKind::Fact, fact.created, &fact.text());
                Ok(Some(Hit { actor: fact.by.clone(), fact: Some(fact), ..told }))
            }
        }
    }

    /// Snippet of the neighbouring turn of a result.
    fn snippet_of(
        &self,
        beside: &Proposal,
        filter: &Filter,
        words: &TextQuery,
        known: &Known,
    ) -> Result<Option<Snippet>, Error> {
        let EntryId::Turn(id) = beside.id else { return Ok(None) };
        let turn = self.standing_turn(beside, id, filter, known)?;
        let text = turn.and_then(|turn| words_of(&turn, &[found_role(&turn, filter, words)]));
        Ok(text.map(|text| snippet(&text, words)))
    }

    /// A turn as the conversation in scope sees it, unless it is gone from there. A damaged one is left out and
    /// logged: it must not hide the others.
    fn standing_turn(
        &self,
        found: &Proposal,
        id: TurnId,
        filter: &Filter,
        known: &Known,
    ) -> Result<Option<Turn>, Error> {
        match self.turn_standing(found, id, filter, known) {
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!(%error, "left out of the recall");
                Ok(None)
            }
            turn => turn,
        }
    }

    fn turn_standing(
        &self,
        found: &Proposal,
        id: TurnId,
        filter: &Filter,
        known: &Known,
    ) -> Result<Option<Turn>, Error> {
        let key = self.key(filter.conversation.unwrap_or(found.conversation));
        let turn = match filter.through_seq {
            None => {
                let read = known.turns.get(&(key.id, id)).cloned();
                match read.unwrap_or_else(|| self.conversation(key.id).turn(id)) {
                    Err(Error::NotFound(_)) => return Ok(None),
                    turn => turn?,
                }
            }
            Some(through) => {
                let (after, before) = (Some(found.seq - 1), Some(found.seq + 1));
                let query = TurnQuery {
                    after,
                    before,
                    as_of: Some(through),
                    whole_log: true,
                    limit: 1,
                    ..TurnQuery::default()
                };
                let page = self.conversation(key.id).turns(&query)?;
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

    /// A fact as the conversation in scope sees it, unless it does not hold there.
    fn standing_fact(
        &self,
        found: &Proposal,
        id: FactId,
        filter: &Filter,
        known: &mut Known,
    ) -> Result<Option<Fact>, Error> {
        let place = filter.conversation.unwrap_or(found.conversation);
        let facts = self.facts_known(place, filter.through_seq, known)?;
        let fact = facts.iter().find(|fact| fact.id == id);
        let holds = |fact: &&Fact| match fact.status {
            fact::FactStatus::Current => true,
            fact::FactStatus::Superseded => filter.include_superseded,
            fact::FactStatus::Retracted => false,
        };
        Ok(fact.filter(holds).cloned())
    }
}

/// Role of the matched text. A person's message may contain text of a tool or program.
fn found_role(turn: &Turn, filter: &Filter, words: &TextQuery) -> Role {
    let role = speech::of_turn(turn).role;
    let has = |role| filter.roles.is_empty() || filter.roles.contains(&role);
    let matches = |role| {
        let said = words_of(turn, &[role]).unwrap_or_default();
        has(role) && !snippet(&said, words).marks.is_empty()
    };
    match role == Role::User && (!has(role) || !matches(role) && matches(Role::Tool)) {
        true => Role::Tool,
        false => role,
    }
}
