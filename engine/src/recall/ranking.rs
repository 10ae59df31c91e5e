//! Combines lexical and vector results into one ranking.

use super::search::{Candidate, Known, LexicalResults, Matched, Rank, Search, VectorResults};
use crate::model::{Closeness, Embed};
use crate::recall::embedding;
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::time::Timestamp;
use everturn_store::Proposal;
use everturn_views::recall::{
    EntryNo, Filter, Fit, NEIGHBOURS, excess, has_phrases, lift, own_scores, period, word_fit,
};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Number of best results whose neighbouring turns are considered as well: the reply to a question has few of its
/// words.
const NEIGHBOURS_OF: usize = 10;
/// Number of lexical and of vector results looked for in the period that a query names: they may not be among the
/// best of all times.
const IN_PERIOD: usize = 20;
/// Lowest rank of the best lexical result, counted from 0.
const BEST_BY_WORDS_PLACE: usize = 9;
/// Number of best results that a reranker reorders.
const RERANKED: usize = 50;
/// Weight of the reranker's cosine relative to the score so far.
const RERANKED_WEIGHT: f64 = 1.0;

/// A result, before it is read.
pub struct Ranked {
    pub found: Proposal,
    pub score: f64,
    pub matched: Matched,
    /// The neighbouring turn that matches best, if that is why it was found.
    pub beside: Option<Proposal>,
}

/// Scoring of candidates.
struct Scoring<'a> {
    /// Without one, only vectors and words are compared.
    closeness: Option<Closeness>,
    /// Period that the query names.
    period: Option<Range<Timestamp>>,
    search: &'a Search<'a>,
    by_words: &'a LexicalResults,
    meant: &'a VectorResults,
}

/// A single ranking.
pub fn alone(found: &[Proposal], matched: fn(Rank) -> Matched) -> Vec<Ranked> {
    let ranked = found.iter().enumerate().map(|(place, found)| Ranked {
        found: found.clone(),
        score: found.score,
        matched: matched(Rank { rank: place + 1, score: found.score }),
        beside: None,
    });
    ranked.collect()
}

/// Moves entries that the embedder knows nothing of up to their lexical rank: vectors must not push them down. The
/// best lexical result is shown in any case: it may be the only one with a rare word.
fn not_below(ranked: &mut Vec<Ranked>, by_words: &LexicalResults, unsure: &HashSet<EntryNo>) {
    for (place, found) in by_words.found.iter().enumerate() {
        let lowest = match (unsure.contains(&found.no), place) {
            (true, place) => place,
            (false, 0) => BEST_BY_WORDS_PLACE,
            _ => continue,
        };
        let at = ranked.iter().position(|ranked| ranked.found.no == found.no);
        if let Some(at) = at.filter(|at| *at > lowest) {
            let mut moved = ranked.remove(at);
            moved.score = moved.score.max(ranked[lowest].score);
            ranked.insert(lowest, moved);
        }
    }
}

impl Tenant {
    /// Both rankings as one, best first: the results of either, and turns beside the best of them. Also returns why
    /// they were not reranked, if they should have been.
    pub(crate) fn joined(
        &self,
        search: &Search,
        by_words: &LexicalResults,
        meant: &VectorResults,
    ) -> Result<(Vec<Ranked>, Option<String>), Error> {
        let mut matched: HashMap<EntryNo, Matched> = HashMap::new();
        let mut candidates: Vec<Proposal> = Vec::new();
        let places = |found: &[Proposal]| -> Vec<(EntryNo, Rank)> {
            let rank =
                |(place, found): (usize, &Proposal)| (found.no, Rank { rank: place + 1, score: found.score });
            found.iter().enumerate().map(rank).collect()
        };
        for (no, rank) in places(&by_words.found) {
            matched.entry(no).or_default().lexical = Some(rank);
        }
        for (no, rank) in places(&meant.near) {
            matched.entry(no).or_default().vector = Some(rank);
        }
        let period = period(search.query, self.shared().now());
        let then = match &period {
            Some(period) => self.in_period(search, meant, period)?,
            None => Vec::new(),
        };
        let mut seen = HashSet::new();
        let all = by_words.found.iter().chain(&meant.near).chain(&then);
        candidates.extend(all.filter(|found| seen.insert(found.no)).cloned());
        let closeness = Closeness::to(search.query);
        let mut fitting = Scoring { closeness, period, search, by_words, meant };
        let (mut fits, mut unsure) = self.fits(&mut fitting, &mut candidates)?;

        let mut best: Vec<(EntryNo, f64)> =
            candidates.iter().map(|found| found.no).zip(own_scores(&fits)).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        let standing_out = best.iter().map(|(_, score)| *score).collect::<Vec<f64>>();
        let sources: Vec<(EntryNo, f64)> = best
            .iter()
            .zip(excess(&standing_out))
            .map(|((no, _), excess)| (*no, excess))
            .take_while(|(_, excess)| *excess > 0.0)
            .collect();
        let numbers: Vec<EntryNo> = sources.iter().map(|(no, _)| *no).collect();
        let beside =
            self.shared().recall.store.neighbours(self.name(), search.filter, &numbers, NEIGHBOURS.len())?;
        let new = beside.iter().take(NEIGHBOURS_OF).flatten().map(|(found, _)| found);
        let mut new: Vec<Proposal> = new.filter(|found| seen.insert(found.no)).cloned().collect();
        let (new_fits, new_unsure) = self.fits(&mut fitting, &mut new)?;
        candidates.extend(new);
        fits.extend(new_fits);
        unsure.extend(new_unsure);

        let places: HashMap<EntryNo, usize> =
            candidates.iter().enumerate().map(|(place, found)| (found.no, place)).collect();
        let mut ranked: Vec<Ranked> = candidates
            .iter()
            .zip(own_scores(&fits))
            .zip(&fits)
            .map(|((found, score), fit)| {
                let matched = matched.get(&found.no).copied().unwrap_or_default();
                let matched = Matched { in_period: fit.in_period, ..matched };
                Ranked { found: found.clone(), score, matched, beside: None }
            })
            .collect();
        let own: Vec<f64> = ranked.iter().map(|ranked| ranked.score).collect();
        let best = own.iter().fold(f64::MIN_POSITIVE, |best, own| best.max(*own));
        // The largest share that each gets from a neighbouring turn, and that turn.
        let mut most = vec![(0.0, 0); ranked.len()];
        for ((source, excess), beside) in sources.iter().zip(&beside) {
            for (turn, distance) in beside {
                let Some(at) = places.get(&turn.no).copied() else { continue };
                let lifted = lift(*excess, *distance, fits[at].length, own[at] / best);
                ranked[at].score += lifted;
                if lifted > most[at].0 {
                    most[at] = (lifted, places[source]);
                }
            }
        }
        // An entry that shares no word with the query and is far from its vector is irrelevant.
        let nearness_min = meant.question.vector.nearness_min;
        let mut of_each = fits.iter().zip(own).zip(most);
        ranked.retain_mut(|Ranked { matched, beside, .. }| {
            let Some(((fit, own), (lifted, source))) = of_each.next() else { return false };
            let near = matched.vector.is_some_and(|rank| rank.score >= nearness_min);
            let by_itself = near || fit.words > 0.0 || matched.in_period;
            // A result that matches by itself needs no other reason.
            let is_beside = lifted > 0.0 && (!by_itself || lifted > own / 4.0);
            *beside = is_beside.then(|| candidates[source].clone());
            matched.beside = beside.as_ref().map(|beside| beside.seq);
            by_itself || is_beside
        });
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.found.no.cmp(&a.found.no)));
        let not_reranked = match &self.shared().options.reranker {
            Some(reranker) => self.rerank(&**reranker, search, &mut ranked)?,
            None => None,
        };
        not_below(&mut ranked, by_words, &unsure);
        Ok((ranked, not_reranked))
    }

    /// Reranks the best results with another model. If that fails, the order stays as it was, and the reason is
    /// returned.
    fn rerank(
        &self,
        reranker: &dyn Embed,
        search: &Search,
        ranked: &mut [Ranked],
    ) -> Result<Option<String>, Error> {
        let count = RERANKED.min(ranked.len());
        let best = &mut ranked[..count];
        let mut known = Known::by(search.filter);
        self.read_ahead(best.iter().map(|ranked| &ranked.found), &mut known)?;
        let text = |ranked: &Ranked| Ok(self.found_text(&ranked.found, &mut known)?.unwrap_or_default());
        let texts = best.iter().map(text).collect::<Result<Vec<String>, Error>>()?;
        let near = match embedding::nearness(reranker, search.query, &texts) {
            Ok(near) => near,
            Err(error) => {
                let text = error.text();
                return Ok(Some(format!("the reranker failed, so the results are not reranked: {text}")));
            }
        };
        for (ranked, near) in best.iter_mut().zip(near) {
            ranked.score += RERANKED_WEIGHT * near.max(0.0);
        }
        best.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.found.no.cmp(&a.found.no)));
        Ok(None)
    }

    /// Lexical and vector results in a period.
    fn in_period(
        &self,
        search: &Search,
        meant: &VectorResults,
        period: &Range<Timestamp>,
    ) -> Result<Vec<Proposal>, Error> {
        let filter = Filter {
            after: search.filter.after.max(Some(period.start)),
            before: Some(search.filter.before.map_or(period.end, |before| before.min(period.end))),
            ..search.filter.clone()
        };
        let (recall, question) = (&self.shared().recall.store, &meant.question);
        let mut found = recall.find_text(self.name(), &search.words, &filter, IN_PERIOD)?.found;
        found.extend(recall.find_near(
            self.name(),
            &question.model,
            &question.vector.numbers,
            &filter,
            IN_PERIOD,
        )?);
        Ok(found)
    }

    /// Scores of candidates, and those that the embedder knows nothing of. Candidates that lack a phrase of the query
    /// are left out.
    fn fits(
        &self,
        fitting: &mut Scoring,
        candidates: &mut Vec<Proposal>,
    ) -> Result<(Vec<Fit>, HashSet<EntryNo>), Error> {
        let Scoring { closeness, period, search, by_words, meant } = fitting;
        let (mut fits, mut fitting, mut known) = (Vec::new(), Vec::new(), Known::by(search.filter));
        let is_unread = |found: &&Proposal| {
            !by_words.fits.contains_key(&found.no) && !meant.texts.contains_key(&found.no)
        };
        self.read_ahead(candidates.iter().filter(is_unread), &mut known)?;
        for found in candidates.drain(..) {
            let fit = match by_words.fits.get(&found.no) {
                Some(fit) => *fit,
                None => {
                    let new;
                    let Candidate { terms, closeness } = match meant.texts.get(&found.no) {
                        Some(read) => read,
                        None => {
                            new = self.candidate(&found, search, closeness.as_mut(), &mut known)?;
                            &new
                        }
                    };
                    if !has_phrases(&search.words, terms) {
                        continue;
                    }
                    let words = word_fit(&search.words, &by_words.counts, terms).share;
                    Fit { words, meaning: *closeness, length: terms.words.len(), ..Fit::default() }
                }
            };
            let in_period = period.as_ref().is_some_and(|period| period.contains(&found.at));
            fits.push(Fit { in_period, ..fit });
            fitting.push(found);
        }
        *candidates = fitting;
        let numbers: Vec<EntryNo> = candidates.iter().map(|found| found.no).collect();
        let embedding::Question { model, vector } = &meant.question;
        let near = self.shared().recall.store.nearness(self.name(), model, &vector.numbers, &numbers)?;
        let mut unsure = HashSet::new();
        for ((fit, no), near) in fits.iter_mut().zip(numbers).zip(near) {
            fit.meaning += near.unwrap_or(0.0).max(0.0);
            if near.is_none() || fit.words >= vector.words_hold {
                unsure.insert(no);
            }
        }
        Ok((fits, unsure))
    }
}
