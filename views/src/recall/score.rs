//! How well a text fits a question's words: BM25 over the counts of one tenant.
//!
//! For each word, name or phrase of the question, with `n` of `N` entries having it, `f` its frequency in the text, `l` the
//! text's length in words and `a` the average length:
//!
//! ```text
//! ln(1 + (N - n + 0.5) / (n + 0.5)) · f · (K1 + 1) / (f + K1 · (1 - B + B · l / a))
//! ```
//!
//! A word that is there only in another form counts less, and so do words that nearly every text has.
//!
//! A backend proposes entries and says what it counted; the score is made here, from the text in the log. So every backend
//! gives the same score, and nothing but the tenant's own entries has a part in it.

use super::language::Language;
use super::query::{TextQuery, Wanted};
use super::terms::Terms;
use std::ops::Range;

/// How soon another occurrence of the same word stops to count.
const K1: f64 = 1.2;
/// How much a text's length counts against it.
const B: f64 = 0.75;
/// A name as a whole counts like this many occurrences of a word.
const NAME_WEIGHT: f64 = 2.0;
/// What a word in another form is worth against the word itself.
const STEM_WEIGHT: f64 = 0.8;
/// Forms of a word share at least so many letters.
const FORMS_SHARE: usize = 2;
/// What a word that nearly every text has is worth against others.
const COMMON_WEIGHT: f64 = 0.2;

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

/// How well a text fits a question's words.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WordFit {
    /// BM25. Zero if the text has nothing of what is wanted, or only words that nearly every text has.
    pub score: f64,
    /// The score as a share of what a text that has everything once can be expected to have: by it, answers to different
    /// questions compare. Of the question's names alone if that is more, since a name is what a question is about.
    pub share: f64,
}

/// How well a text fits; see [`WordFit::score`].
pub fn score(query: &TextQuery, counts: &Counts, text: &Terms) -> f64 {
    word_fit(query, counts, text).score
}

/// How well a text fits.
pub fn word_fit(query: &TextQuery, counts: &Counts, text: &Terms) -> WordFit {
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

/// Everything that is wanted, and what having it is worth.
fn worths<'q>(query: &'q TextQuery, counts: &'q Counts) -> impl Iterator<Item = (&'q Wanted, f64)> {
    let wanted = query.any.iter().zip(&counts.any).chain(query.all.iter().zip(&counts.all));
    wanted.map(|(wanted, with)| {
        let weight = if wanted.common { COMMON_WEIGHT } else { 1.0 };
        (wanted, counts.rarity(*with) * weight)
    })
}

/// Whether a text has every phrase that stood in quotation marks.
pub fn has_phrases(query: &TextQuery, text: &Terms) -> bool {
    query.all.iter().all(|wanted| frequency(wanted, text) > 0.0)
}

/// How often other forms of a word are in a text. Parts of names have no other forms.
fn stem_frequency(wanted: &Wanted, text: &Terms, language: Language) -> f64 {
    if wanted.stems.is_empty() {
        return 0.0;
    }
    let asked = &wanted.words[0];
    // Forms of a word begin alike, and stems are not made for nothing.
    let beginning = asked.char_indices().nth(FORMS_SHARE).map_or(asked.as_str(), |(end, _)| &asked[..end]);
    let forms = text
        .prose()
        .filter(|(word, _)| word.starts_with(beginning) && word != asked && is_form(wanted, word, language));
    forms.count() as f64
}

/// Whether a word is another form of what is wanted.
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
            let counts = Counts { entries: 100, words: 500, any: vec![2; query.any.len()], all: Vec::new() };
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
