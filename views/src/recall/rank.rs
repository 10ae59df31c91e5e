//! One ranking from the lexical score and the embedding of each candidate, and from its neighbouring turns.
//!
//! Scores are added, not ranks: the lexical score as a share of the maximum, and the cosine of the embeddings,
//! mean the same in every query. Parameters were chosen with `bench recall-quality`.

/// Maximum number of best candidates that lift their neighbours.
const SOURCES_MAX: usize = 50;
/// Only candidates above this share of the best score lift their neighbours.
const SOURCE_SHARE_MIN: f64 = 0.5;
/// Weights of the turns directly beside a turn, and of those two away.
pub const NEIGHBOURS: [f64; 2] = [0.5, 0.3];
/// Turns up to this many words are lifted in full: in a chat, one turn answers another.
const SHORT_WORDS: f64 = 60.0;
/// Turns with this share of the best score are lifted in full: small talk beside an answer is not an answer.
const OWN_SHARE: f64 = 0.5;
/// Turns of this many words or more are not lifted.
const LONG_WORDS: f64 = 180.0;

/// Bonus for candidates in the period that a query names. It is small, because people talk about things before
/// and after they happen.
const IN_PERIOD: f64 = 0.25;

/// Match of a candidate with a query, its neighbours aside.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Fit {
    /// Lexical score, as a share of the maximum.
    pub words: f64,
    /// Cosine of the embeddings; 0 if unknown.
    pub meaning: f64,
    /// Whether it was said in the period that the query names.
    pub in_period: bool,
    /// Number of words.
    pub length: usize,
}

/// Lexical score and embedding combined, for each candidate. The lexical part is weighted by the best
/// candidate's share of it: if none has many of the words, sharing one is coincidence.
pub fn own_scores(fits: &[Fit]) -> Vec<f64> {
    let best = fits.iter().fold(0.0_f64, |best, fit| best.max(fit.words));
    let own = |fit: &Fit| fit.words * best + fit.meaning + if fit.in_period { IN_PERIOD } else { 0.0 };
    fits.iter().map(own).collect()
}

/// Excess of each score over the rest, which determines how much it lifts its neighbours.
pub fn excess(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let best = sorted.first().copied().unwrap_or(0.0);
    let floor = sorted.get(SOURCES_MAX).copied().unwrap_or(0.0).max(best * SOURCE_SHARE_MIN);
    scores.iter().map(|score| (score - floor).max(0.0)).collect()
}

/// The lift of a turn with this many words and this share of the best score, from a turn that is `distance`
/// turns away and stands out by `excess`.
pub fn lift(excess: f64, distance: usize, words: usize, share: f64) -> f64 {
    let weight = distance.checked_sub(1).and_then(|at| NEIGHBOURS.get(at)).copied().unwrap_or(0.0);
    let short = ((LONG_WORDS - words as f64) / (LONG_WORDS - SHORT_WORDS)).clamp(0.0, 1.0);
    excess * weight * short * (share / OWN_SHARE).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(words: f64, meaning: f64) -> Fit {
        Fit { words, meaning, in_period: false, length: 10 }
    }

    #[test]
    fn words_count_as_much_as_the_best_has_of_them() {
        let chance = own_scores(&[fit(0.2, 0.1), fit(0.0, 0.4)]);
        assert!(chance[1] > chance[0], "one shared word says less than a near meaning");
        let sure = own_scores(&[fit(0.9, 0.1), fit(0.0, 0.4)]);
        assert!(sure[0] > sure[1]);
        let then = Fit { in_period: true, ..fit(0.5, 0.3) };
        let timed = own_scores(&[fit(0.5, 0.4), then, fit(0.9, 0.6)]);
        assert!(timed[1] > timed[0] && timed[1] < timed[2], "a time says something, not everything");
        assert!(own_scores(&[]).is_empty());
    }

    #[test]
    fn only_what_stands_out_counts_for_its_neighbours() {
        assert_eq!(excess(&[1.0, 0.75, 0.4]), [0.5, 0.25, 0.0]);
        let mut many = vec![0.9; 60];
        many.push(1.0);
        let excess = excess(&many);
        assert_eq!(excess[0], 0.0, "as good as fifty others");
        assert!((excess[60] - 0.1).abs() < 1e-9);
    }

    #[test]
    fn short_turns_count_their_neighbours() {
        assert_eq!(lift(1.0, 1, 20, 1.0), 0.5);
        assert_eq!(lift(1.0, 2, 20, 0.5), 0.3);
        assert_eq!(lift(1.0, 3, 20, 1.0), 0.0);
        assert_eq!(lift(1.0, 1, 120, 1.0), 0.25);
        assert_eq!(lift(1.0, 1, 500, 1.0), 0.0, "a long one stands for itself");
        assert_eq!(lift(1.0, 1, 20, 0.25), 0.25, "one that hardly fits counts less of what is beside it");
    }
}
