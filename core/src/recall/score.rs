//! How well a text fits a question's words: BM25 over the counts of one tenant.
//!
//! For each word, name or phrase of the question, with `n` of `N` entries having it, `f` its frequency in the text, `l` the
//! text's length in words and `a` the average length:
//!
//! ```text
//! ln(1 + (N - n + 0.5) / (n + 0.5)) · f · (K1 + 1) / (f + K1 · (1 - B + B · l / a))
//! ```
//!
//! A backend proposes entries and says what it counted; the score is made here, from the text in the log. So every backend
//! gives the same score, and nothing but the tenant's own entries has a part in it.

use super::query::{TextQuery, Wanted};
use super::terms::Terms;
use std::ops::Range;

/// How soon another occurrence of the same word stops to count.
const K1: f64 = 1.2;
/// How much a text's length counts against it.
const B: f64 = 0.75;
/// A name as a whole counts like this many occurrences of a word.
const NAME_WEIGHT: f64 = 2.0;

/// What a score depends on beside the text: counts of one tenant's entries.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counts {
    /// Entries that can be found.
    pub entries: u64,
    /// Words of all of them.
    pub words: u64,
    /// Entries that have each of [`TextQuery::any`]. Of a phrase: those that have its rarest word. Of a name: those that have
    /// it as a whole, and those that have its rarest part. Of a beginning: the sum over the words that begin so.
    pub any: Vec<u64>,
    /// The same of [`TextQuery::all`].
    pub all: Vec<u64>,
}

impl Counts {
    fn average(&self) -> f64 {
        (self.words as f64 / self.entries.max(1) as f64).max(1.0)
    }

    /// How much something is worth that `entries_with` of the entries have: the rarer, the more.
    pub fn rarity(&self, entries_with: u64) -> f64 {
        // What a beginning adds up to can be more than there are entries.
        let with = entries_with.min(self.entries) as f64;
        (1.0 + (self.entries as f64 - with + 0.5) / (with + 0.5)).ln()
    }

    /// What of [`Counts::rarity`] counts, by how often it is in a text of so many words.
    pub fn saturation(&self, frequency: f64, words: u64) -> f64 {
        let length = 1.0 - B + B * words as f64 / self.average();
        frequency * (K1 + 1.0) / (frequency + K1 * length)
    }
}

/// How well a text fits. Zero if it has nothing of what is wanted.
pub fn score(query: &TextQuery, counts: &Counts, text: &Terms) -> f64 {
    let words = text.words.len() as u64;
    let wanted = query.any.iter().zip(&counts.any).chain(query.all.iter().zip(&counts.all));
    let part = |(wanted, with): (&Wanted, &u64)| match frequency(wanted, text) {
        0.0 => 0.0,
        frequency => counts.rarity(*with) * counts.saturation(frequency, words),
    };
    wanted.map(part).sum()
}

fn frequency(wanted: &Wanted, text: &Terms) -> f64 {
    let Some((last, begin)) = wanted.words.split_last() else { return 0.0 };
    let fits = |word: &str, wanted_word: &str| match wanted.prefix {
        true => word.starts_with(wanted_word),
        false => word == wanted_word,
    };
    let here = |window: &[(String, Range<usize>)]| {
        let Some(((end, _), rest)) = window.split_last() else { return false };
        fits(end, last) && rest.iter().zip(begin).all(|((word, _), wanted)| word == wanted)
    };
    let said = text.words.windows(wanted.words.len()).filter(|window| here(window)).count();
    let whole = match (&wanted.name, begin) {
        (Some(name), _) => Some(name.as_str()),
        // A single word may be a name whose parts stand apart in the text.
        (None, []) => Some(last.as_str()),
        (None, _) => None,
    };
    let named = whole.is_some_and(|whole| text.names.iter().any(|(name, _)| fits(name, whole)));
    said as f64 + if named { NAME_WEIGHT } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::terms;
    use super::*;

    fn scored(query: &str, any: &[u64], all: &[u64], text: &str) -> f64 {
        let counts = Counts { entries: 100, words: 1000, any: any.to_vec(), all: all.to_vec() };
        score(&TextQuery::parse(query), &counts, &terms(text))
    }

    /// Frozen: whoever compares scores of two versions would notice.
    #[test]
    fn a_score_is_bm25() {
        let ten_words = "the harbour is closed for the rest of this day";
        let expected = (1.0_f64 + 98.5 / 2.5).ln() * 2.2 / (1.0 + 1.2);
        assert!((scored("harbour", &[2], &[], ten_words) - expected).abs() < 1e-12);
        assert_eq!(scored("lighthouse", &[2], &[], ten_words), 0.0);
        assert_eq!(scored("", &[], &[], ten_words), 0.0);
        assert!(scored("harb*", &[900], &[], ten_words) > 0.0, "a beginning of many words");
    }

    #[test]
    fn rarer_more_often_and_shorter_is_better() {
        let text = "the harbour and the weather";
        assert!(scored("harbour", &[2], &[], text) > scored("weather", &[20], &[], text));
        let both = scored("harbour weather", &[2, 20], &[], text);
        assert!(both > scored("harbour", &[2], &[], text));
        assert!(
            scored("harbour", &[2], &[], "harbour harbour and more")
                > scored("harbour", &[2], &[], "harbour and some more")
        );
        assert!(
            scored("harbour", &[2], &[], text)
                > scored("harbour", &[2], &[], &format!("{text} {}", "x ".repeat(50)))
        );
    }

    #[test]
    fn phrases_and_names_count_where_they_stand() {
        assert!(scored("\"held the lock\"", &[], &[3], "who held the lock?") > 0.0);
        assert_eq!(scored("\"the held lock\"", &[], &[3], "who held the lock?"), 0.0);
        for text in ["call build_context", "call buildContext", "build context"] {
            assert!(scored("build_context", &[3], &[], text) > 0.0, "{text}");
            assert!(scored("build_con*", &[3], &[], text) > 0.0, "{text}");
        }
        assert!(scored("buildcontext", &[3], &[], "call build_context") > 0.0, "a name in one word");
        assert!(
            scored("build_context", &[3], &[], "call build_context")
                > scored("build_context", &[3], &[], "build context")
        );
    }
}
