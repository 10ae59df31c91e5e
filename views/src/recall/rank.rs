//! One ranking from what words and meaning say of each candidate, and from what is said beside it.
//!
//! Scores are added, not ranks: what a text has of a question's words as a share of all it could have, and the cosine of the
//! meanings, say the same in every question. Chosen on `bench recall-quality`.

/// So many of the best count for their neighbours.
const SOURCES_MAX: usize = 50;
/// Only what is better than this part of the best counts for its neighbours.
const SOURCE_SHARE_MIN: f64 = 0.5;
/// What a turn counts of the turns beside it, and of those two away.
pub const NEIGHBOURS: [f64; 2] = [0.5, 0.3];
/// A turn of this many words counts its neighbours in full: in a chat, one turn answers another.
const SHORT_WORDS: f64 = 60.0;
/// What fits this part as well as the best counts its neighbours in full: small talk beside an answer is no answer.
const OWN_SHARE: f64 = 0.5;
/// One of this many words stands for itself.
const LONG_WORDS: f64 = 180.0;

/// What was said in the time that a question names stands before what fits a little better. Not more: people say things before
/// and after they happen.
const IN_PERIOD: f64 = 0.25;

/// How well a candidate fits a question by itself.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Fit {
    /// Its score by words, as a share of the full score.
    pub words: f64,
    /// How near it is in meaning; 0 if that is not known.
    pub meaning: f64,
    /// Whether it was said in the time that the question names.
    pub in_period: bool,
    /// How many words it has.
    pub length: usize,
}

/// Words and meaning as one score for each candidate. Words count as much as the best candidate has of them: where none has
/// many, those that share one do so by chance.
pub fn own_scores(fits: &[Fit]) -> Vec<f64> {
    let best = fits.iter().fold(0.0_f64, |best, fit| best.max(fit.words));
    let own = |fit: &Fit| fit.words * best + fit.meaning + if fit.in_period { IN_PERIOD } else { 0.0 };
    fits.iter().map(own).collect()
}

/// How much each score stands out: by this it counts for its neighbours. What many candidates reach does not.
pub fn excess(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let best = sorted.first().copied().unwrap_or(0.0);
    let floor = sorted.get(SOURCES_MAX).copied().unwrap_or(0.0).max(best * SOURCE_SHARE_MIN);
    scores.iter().map(|score| (score - floor).max(0.0)).collect()
}

/// What a turn of so many words, which by itself fits `share` as well as the best, counts of one that is `distance` turns away and
/// stands out by `excess`.
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
