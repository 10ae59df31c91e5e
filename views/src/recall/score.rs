//! Lexical score of a text: BM25 over the counts of one tenant.
//!
//! For each word, name or phrase of the query, with `n` of `N` entries having it, `f` its frequency in the
//! text, `l` the text's length in words and `a` the average length:
//!
//! ```text
//! ln(1 + (N - n + 0.5) / (n + 0.5)) · f · (K1 + 1) / (f + K1 · (1 - B + B · l / a))
//! ```
//!
//! A word that occurs only in another form counts less, and so do words that nearly every text has.
//!
//! A backend proposes entries and reports its counts; the score is computed here, from the text in the log. So
//! every backend gives the same score, and it depends on nothing but the tenant's own entries.

use super::language::Language;
use super::query::{TextQuery, Wanted};
use super::terms::Terms;
use std::ops::Range;

/// Saturation: how soon further occurrences of a word stop counting.
const K1: f64 = 1.2;
/// Length normalisation: how much a text's length counts against it.
const B: f64 = 0.75;
/// Weight of a whole name, as a multiple of a word's.
const NAME_WEIGHT: f64 = 2.0;
/// Weight of another form of a word, relative to the word itself.
const STEM_WEIGHT: f64 = 0.8;
/// Minimum number of letters that two forms of a word share.
const FORMS_SHARE: usize = 2;
/// Weight of a word that nearly every text has, relative to others.
const COMMON_WEIGHT: f64 = 0.2;

/// Counts of one tenant's entries that a score depends on.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EntryCounts {
    /// Number of searchable entries.
    pub entries: u64,
    /// Number of words in all of them.
    pub words: u64,
    /// For each of [`TextQuery::any`], the number of entries that have it. For a phrase: those with its rarest
    /// word. For a name: those with the whole name, and those with its rarest part. For a prefix: the sum over
    /// the words with it.
    pub any: Vec<u64>,
    /// The same for [`TextQuery::all`].
    pub all: Vec<u64>,
}

impl EntryCounts {
    fn average(&self) -> f64 {
        (self.words as f64 / self.entries.max(1) as f64).max(1.0)
    }

    /// Weight of a term that `entries_with` of the entries have: the rarer, the higher.
    pub fn rarity(&self, entries_with: u64) -> f64 {
        // The sum for a prefix can exceed the number of entries.
        let with = entries_with.min(self.entries) as f64;
        (1.0 + (self.entries as f64 - with + 0.5) / (with + 0.5)).ln()
    }

    /// The fraction of [`EntryCounts::rarity`] that counts, by the frequency in a text of this many words.
    pub fn saturation(&self, frequency: f64, words: u64) -> f64 {
        let length = 1.0 - B + B * words as f64 / self.average();
        frequency * (K1 + 1.0) / (frequency + K1 * length)
    }
}

/// Lexical match of a text with a query.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WordFit {
    /// BM25. Zero if the text has none of the terms, or only common ones.
    pub score: f64,
    /// The score as a share of the expected score of a text that has every term once, which makes results of
    /// different queries comparable. If higher, the share of the query's names alone, since a name is the
    /// subject of a query.
    pub share: f64,
}

/// Lexical score of a text; see [`WordFit::score`].
pub fn score(query: &TextQuery, counts: &EntryCounts, text: &Terms) -> f64 {
    word_fit(query, counts, text).score
}

/// Lexical match of a text.
pub fn word_fit(query: &TextQuery, counts: &EntryCounts, text: &Terms) -> WordFit {
    let words = text.words.len() as u64;
    let language = Language::of(text).unwrap_or(Language::English);
    let (mut score, mut full, mut names, mut full_names) = (0.0, 0.0, 0.0, 0.0);
    let mut tells = false;
    for (wanted, worth) in worths(query, counts) {
        let (mut part, mut full_name) = (0.0, 0.0);
        let exact = frequency(wanted, text);
        let of_stem = stem_frequency(wanted, text, language);
        if exact + of_stem > 0.0 {
            let form = if exact > 0.0 { 1.0 } else { STEM_WEIGHT };
            part = worth * form * counts.saturation(exact + of_stem, words);
            tells |= !wanted.common;
        }
        if wanted.is_name() {
            (names, full_name) = (names + part, worth);
        }
        (score, full, full_names) = (score + part, full + worth, full_names + full_name);
    }
    if !tells {
        return WordFit::default();
    }
    let share = |part: f64, full: f64| if full > 0.0 { part / full } else { 0.0 };
    WordFit { score, share: share(score, full).max(share(names, full_names)) }
}

/// Terms of the query with the weight of each.
fn worths<'q>(query: &'q TextQuery, counts: &'q EntryCounts) -> impl Iterator<Item = (&'q Wanted, f64)> {
    let wanted = query.any.iter().zip(&counts.any).chain(query.all.iter().zip(&counts.all));
    wanted.map(|(wanted, with)| {
        let weight = if wanted.common { COMMON_WEIGHT } else { 1.0 };
        (wanted, counts.rarity(*with) * weight)
    })
}

/// Whether a text has every required phrase.
pub fn has_phrases(query: &TextQuery, text: &Terms) -> bool {
    query.all.iter().all(|wanted| frequency(wanted, text) > 0.0)
}

/// Number of occurrences of other forms of a word in a text. Parts of names have no other forms.
fn stem_frequency(wanted: &Wanted, text: &Terms, language: Language) -> f64 {
    if wanted.stems.is_empty() {
        return 0.0;
    }
    let asked = &wanted.words[0];
    // Forms of a word have the same beginning; checking it first avoids stemming.
    let beginning = asked.char_indices().nth(FORMS_SHARE).map_or(asked.as_str(), |(end, _)| &asked[..end]);
    let forms = text
        .prose()
        .filter(|(word, _)| word.starts_with(beginning) && word != asked && is_form(wanted, word, language));
    forms.count() as f64
}

/// Whether a word is another form of the wanted one.
pub(super) fn is_form(wanted: &Wanted, word: &str, language: Language) -> bool {
    let stem = language.stem(word);
    let stem = stem.as_deref().unwrap_or(word);
    wanted.stems.iter().any(|wanted| wanted == stem)
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
        // A single word may be a name whose parts are separate words in the text.
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
        let counts = EntryCounts { entries: 100, words: 1000, any: any.to_vec(), all: all.to_vec() };
        score(&TextQuery::parse(query), &counts, &terms(text))
    }

    /// Frozen: a change would be noticed when comparing scores of two versions.
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
    fn other_forms_of_a_word_count_less_than_itself() {
        let text = "somebody is locking the harbour";
        assert!(scored("lock", &[2], &[], text) > 0.0);
        assert!(scored("locked", &[2], &[], text) > 0.0);
        assert!(scored("locking", &[2], &[], text) > scored("lock", &[2], &[], text));
        assert_eq!(scored("lock", &[2], &[], "see file_locking.rs"), 0.0, "names have no other forms");
        assert!(scored("Häuser", &[2], &[], "das ist das Haus an dem Hafen") > 0.0);
    }

    #[test]
    fn a_share_is_of_the_question_or_of_its_names() {
        let share = |question: &str, text: &str| {
            let query = TextQuery::parse(question);
            let counts =
                EntryCounts { entries: 100, words: 500, any: vec![2; query.any.len()], all: Vec::new() };
            word_fit(&query, &counts, &terms(text)).share
        };
        assert!(share("harbour lighthouse", "the harbour of the town") < 0.6);
        assert!(share("harbour lighthouse", "the harbour has its lighthouse") > 0.9);
        assert!(share("ticket OPS-4417", "closed OPS-4417 today") > 1.0, "a name is what it is about");
        assert!(share("ticket OPS-4417", "which ticket was it?") < 0.6);
    }

    #[test]
    fn common_words_alone_find_nothing_beside_others() {
        assert_eq!(scored("who holds the lighthouse", &[50, 2, 90, 1], &[], "the one who is here"), 0.0);
        assert!(scored("who is it", &[50, 60, 70], &[], "the one who is here") > 0.0);
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
