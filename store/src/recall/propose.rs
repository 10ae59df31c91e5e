//! Candidates for a lexical query, for any storage of words.
//!
//! They are ordered by what is known without their text: the words that each has, their rarity, and its length.
//! The caller scores them by their text, with the same counts ([`EntryCounts`]).
//!
//! Visiting every entry that has "the" in a million turns takes too long, and means little. So the rare words
//! select, and the common ones only lift what the rare ones found.

use crate::Proposal;
use everturn_views::recall::{EntryCounts, EntryNo, TextQuery, Wanted};
use std::collections::HashSet;

/// Maximum number of entries of a word that is used for ranking.
pub const COUNTED_ENTRIES_MAX: u64 = 20_000;
/// Most conversations of a scope that are terms of a query as well.
pub const SCOPE_WORDS_MAX: usize = 100;
/// Maximum number of entries ranked for one query: all that have its rare words, else the newest that have its
/// rarest.
const RANKED_ENTRIES_MAX: u64 = 1_000;
/// Most common words that raise the scores of entries found by the rare ones.
const LIFTING_WORDS_MAX: usize = 3;
/// Maximum number of entries that may be lifted past others.
const LIFTED_ENTRIES: usize = 200;
/// Maximum number of words that a very common prefix is expanded to, the commonest first.
pub const BEGINNING_WORDS_MAX: usize = 100;

/// A condition on the words of an entry.
#[derive(Clone, Debug)]
pub enum Matching<'q> {
    /// Has a term of the query, in any form.
    Term(&'q Wanted),
    /// Has one of these words of its scope.
    Scope(&'q [String]),
    All(Vec<Matching<'q>>),
    Any(Vec<Matching<'q>>),
}

/// The words of one tenant's entries, within the scope of a search.
pub trait Words {
    type Error;
    /// Approximate number of entries of the tenant with a word, or with words that begin so.
    fn count(&self, word: &str, prefix: bool) -> Result<u64, Self::Error>;
    /// The same for a word of the scope.
    fn count_in_scope(&self, word: &str) -> Result<u64, Self::Error>;
    /// The newest entries in scope that match, each with its length in words.
    fn newest(&self, matching: &Matching<'_>, limit: u64) -> Result<Vec<(Proposal, u64)>, Self::Error>;
    /// Those of these entries that match. Among more than [`COUNTED_ENTRIES_MAX`] newer ones, the rest may be
    /// left out.
    fn having(
        &self,
        matching: &Matching<'_>,
        of: &[(Proposal, u64)],
    ) -> Result<HashSet<EntryNo>, Self::Error>;
}

/// Counts of the terms of a query, among so many entries with so many words.
pub fn counts<W: Words>(
    index: &W,
    (entries, words): (u64, u64),
    query: &TextQuery,
) -> Result<EntryCounts, W::Error> {
    let any = query.any.iter().map(|wanted| entries_with(index, wanted)).collect::<Result<_, _>>()?;
    let all = query.all.iter().map(|wanted| entries_with(index, wanted)).collect::<Result<_, _>>()?;
    Ok(EntryCounts { entries, words, any, all })
}

/// Approximate number of entries with a term, in any form.
fn entries_with<W: Words>(index: &W, wanted: &Wanted) -> Result<u64, W::Error> {
    let mut fewest = u64::MAX;
    for (at, word) in wanted.words.iter().enumerate() {
        let prefix = wanted.prefix && at + 1 == wanted.words.len();
        fewest = fewest.min(index.count(word, prefix)?);
    }
    if let Some(name) = &wanted.name {
        return Ok(fewest + index.count(name, wanted.prefix)?);
    }
    // An entry that has a word also has its stem, unless it is part of a name.
    for stem in &wanted.stems {
        fewest = fewest.max(index.count(stem, false)?);
    }
    Ok(fewest)
}

/// The best entries, as far as their words tell. `scope` names words of the scope: an entry has one of each list.
pub fn proposed<'q, W: Words>(
    index: &W,
    scope: &'q [Vec<String>],
    query: &'q TextQuery,
    counts: &EntryCounts,
    limit: usize,
) -> Result<Vec<Proposal>, W::Error> {
    // Words that nearly every text has propose nothing: an entry with only these scores zero.
    let terms = query.any.iter().zip(&counts.any).filter(|(wanted, entries)| **entries > 0 && !wanted.common);
    let mut any: Vec<(u64, &Wanted)> = terms.map(|(wanted, entries)| (*entries, wanted)).collect();
    if any.is_empty() && query.all.is_empty() {
        return Ok(Vec::new());
    }
    any.sort_by_key(|(entries, _)| *entries);
    let mut must = Vec::new();
    for list in scope {
        let mut entries = 0;
        for word in list {
            entries += index.count_in_scope(word)?;
        }
        // If nearly everything is in scope, checking each entry is faster than searching for the word.
        if entries <= COUNTED_ENTRIES_MAX / 2 && entries < counts.entries / 2 {
            must.push(Matching::Scope(list));
        }
    }
    must.extend(query.all.iter().map(Matching::Term));
    let and = |matching: Option<Matching<'q>>| Matching::All(must.iter().cloned().chain(matching).collect());
    // As many words as can be ranked in full; if the rarest is too common for that, it and the next ones.
    let most = match any.first() {
        Some((rarest, _)) if *rarest > RANKED_ENTRIES_MAX => COUNTED_ENTRIES_MAX,
        _ => RANKED_ENTRIES_MAX,
    };
    let mut matches = 0;
    let choosing = any.iter().take_while(|(entries, _)| {
        matches += entries;
        matches <= most
    });
    let choosing = choosing.count().max(1).min(any.len());
    let (choosing, others) = any.split_at(choosing);
    let commonest_phrase = counts.all.iter().copied().max().unwrap_or(0);
    let ranked = choosing.first().is_none_or(|(rarest, _)| *rarest <= COUNTED_ENTRIES_MAX)
        && commonest_phrase <= COUNTED_ENTRIES_MAX;
    // If that is too many, the newest are the best, and the others need not be found.
    let enough =
        if ranked { RANKED_ENTRIES_MAX } else { RANKED_ENTRIES_MAX.min(limit.max(LIFTED_ENTRIES) as u64) };

    let words: Vec<Matching<'_>> = choosing.iter().map(|(_, wanted)| Matching::Term(wanted)).collect();
    let matches: u64 = choosing.iter().map(|(entries, _)| entries).sum();
    let mut found = Vec::new();
    if words.len() > 1 && matches > RANKED_ENTRIES_MAX && query.all.is_empty() {
        // The best of very many have all the words, and need not be among the newest.
        found = index.newest(&and(Some(Matching::All(words.clone()))), enough)?;
    }
    // Required phrases select, the other words only rank.
    let broad = and(query.all.is_empty().then_some(Matching::Any(words)));
    if found.len() < limit {
        let known: HashSet<EntryNo> = found.iter().map(|(found, _)| found.no).collect();
        let more = index.newest(&broad, enough)?;
        found.extend(more.into_iter().filter(|(found, _)| !known.contains(&found.no)));
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }

    let is_in_all = choosing.len() == 1 && query.all.is_empty();
    let phrases: f64 = counts.all.iter().map(|entries| counts.rarity(*entries)).sum();
    let in_all = choosing.first().filter(|_| is_in_all).map_or(0.0, |(entries, _)| counts.rarity(*entries));
    let mut worth = vec![phrases + in_all; found.len()];
    let telling = choosing.iter().map(|(entries, wanted)| (*entries, and(Some(Matching::Term(wanted)))));
    let lifting = others
        .iter()
        .map(|(entries, wanted)| (*entries, Matching::All(vec![broad.clone(), Matching::Term(wanted)])));
    // If all are returned, the caller orders them.
    let lifting = lifting.take(if found.len() > limit { LIFTING_WORDS_MAX } else { 0 });
    for (entries, matching) in telling.skip(usize::from(is_in_all)).chain(lifting) {
        let with = index.having(&matching, &found)?;
        let rarity = counts.rarity(entries);
        let having = found.iter().zip(&mut worth).filter(|((found, _), _)| with.contains(&found.no));
        having.for_each(|(_, worth)| *worth += rarity);
    }
    let mut found: Vec<Proposal> = found
        .into_iter()
        .zip(worth)
        .map(|((found, words), worth)| Proposal { score: worth * counts.saturation(1.0, words), ..found })
        .collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.no.cmp(&a.no)));
    found.truncate(limit);
    Ok(found)
}

/// Condition on entries that are not counted yet: one of the terms, or every phrase. `None` if the query has neither.
pub fn uncounted(query: &TextQuery) -> Option<Matching<'_>> {
    if !query.all.is_empty() {
        return Some(Matching::All(query.all.iter().map(Matching::Term).collect()));
    }
    let any: Vec<Matching<'_>> =
        query.any.iter().filter(|wanted| !wanted.common).map(Matching::Term).collect();
    (!any.is_empty()).then_some(Matching::Any(any))
}
