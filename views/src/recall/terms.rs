//! The words of a text, lower case and without accents, with the parts of names.
//!
//! `core/src/build_context.rs` is read as the words `core src build context rs`, and as the names
//! `coresrcbuildcontextrs`, `buildcontextrs` and `buildcontext`: a name is found whole and by part, however it
//! is spelt (`BuildContext`, `build-context`). In scripts that put no spaces between words each letter is a
//! word, so that a phrase of them is found inside a longer one.

use super::language::Language;
use std::collections::BTreeSet;
use std::ops::Range;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Longer runs of letters and digits are data, not words: keys, encoded bytes.
pub const WORD_CHARS_MAX: usize = 64;
/// Longer names are found by their parts only.
pub const NAME_CHARS_MAX: usize = 96;

/// The words of a text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Words in order, each with its range in the text.
    pub words: Vec<(String, Range<usize>)>,
    /// For each word, whether it is separate: neither part of a name nor in a script without spaces.
    alone: Vec<bool>,
    /// Names of more than one word, written together, each with its range.
    pub names: Vec<(String, Range<usize>)>,
}

impl Terms {
    /// The words with spaces between them, for an index.
    pub fn words_text(&self) -> String {
        join(self.words.iter().map(|(word, _)| word.as_str()))
    }

    /// Stems of words that have one in the text's language, each once, with spaces between them. Parts of names
    /// have none.
    pub fn stems_text(&self) -> String {
        let language = Language::of(self).unwrap_or(Language::English);
        let words: BTreeSet<&str> = self.prose().map(|(word, _)| word.as_str()).collect();
        let stems: BTreeSet<String> = words.into_iter().filter_map(|word| language.stem(word)).collect();
        join(stems.iter().map(String::as_str))
    }

    /// Words that are not parts of names.
    pub fn prose(&self) -> impl Iterator<Item = &(String, Range<usize>)> {
        self.words.iter().zip(&self.alone).filter(|(_, alone)| **alone).map(|(word, _)| word)
    }

    /// The names with spaces between them, each once.
    pub fn names_text(&self) -> String {
        let mut names: Vec<&str> = self.names.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        join(names.into_iter())
    }
}

fn join<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut out = String::new();
    for word in words {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// Strength of the character that joins the words of a name, from the loosest to the tightest.
fn joint(c: char) -> Option<usize> {
    match c {
        '/' | '\\' | '@' => Some(0),
        '.' | ':' => Some(1),
        '_' | '-' => Some(2),
        _ => None,
    }
}

/// Whether a character belongs to a script that puts no spaces between words.
fn is_unspaced(c: char) -> bool {
    let script = matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{2e80}'..='\u{a4cf}' | '\u{a980}'..='\u{aadf}' | '\u{ac00}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..='\u{3ffff}');
    script && c.is_alphanumeric()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || (!c.is_ascii() && (c.is_alphanumeric() || is_combining_mark(c)) && !is_unspaced(c))
}

/// The words of a text, in order.
pub fn terms(text: &str) -> Terms {
    let (mut terms, mut joints) = (Terms::default(), Vec::new());
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if is_word(c) {
            let first = terms.words.len();
            at = name(text, at, &mut terms, &mut joints);
            terms.alone.resize(terms.words.len(), terms.words.len() == first + 1);
        } else {
            let end = at + c.len_utf8();
            if is_unspaced(c) {
                // One character may fold to two letters, and a combining mark to none.
                let letters = fold(&text[at..end]);
                terms.words.extend(letters.chars().map(|letter| (letter.to_string(), at..end)));
                terms.alone.resize(terms.words.len(), false);
            }
            at = end;
        }
    }
    terms
}

/// Reads words that are joined without a space from `start`, and returns their end. `joints` is a reused
/// buffer: the loosest joint before each word of the name; for its first word, looser than any.
fn name(text: &str, start: usize, terms: &mut Terms, joints: &mut Vec<usize>) -> usize {
    let first = terms.words.len();
    joints.clear();
    let (mut at, mut before) = (start, 0);
    loop {
        let end = at + text[at..].find(|c| !is_word(c)).unwrap_or(text.len() - at);
        for (index, part) in parts(&text[at..end]).enumerate() {
            let place = at + part.start..at + part.end;
            let word = fold(&text[place.clone()]);
            let short = word.len() <= WORD_CHARS_MAX || word.chars().nth(WORD_CHARS_MAX).is_none();
            if !word.is_empty() && short {
                // The words inside `BuildContext` are joined more tightly than those of `build_context`.
                joints.push(if index == 0 { before } else { 3 });
                terms.words.push((word, place));
            }
        }
        at = end;
        // `a::b` and `C:\x` have two joints in a row; a full stop at the end of a sentence joins nothing.
        let mut gap = text[at..].chars();
        before = match (gap.next(), gap.next(), gap.next()) {
            (Some(one), Some(next), _) if is_word(next) => joint(one),
            (Some(one), Some(two), Some(next)) if is_word(next) => {
                joint(one).zip(joint(two)).map(|(one, two)| one.min(two))
            }
            _ => None,
        }
        .unwrap_or(usize::MAX);
        if before == usize::MAX {
            break;
        }
        at += text[at..].find(is_word).unwrap_or(0);
    }
    let Terms { words, names, .. } = terms;
    let words = &words[first..];
    if words.len() < 2 {
        return at;
    }
    for looser in 0..=3 {
        // A name continues as long as its words are joined more tightly than this.
        let mut from = 0;
        for to in 1..=words.len() {
            if to == words.len() || joints[to] < looser {
                written_together(&words[from..to], names);
                from = to;
            }
        }
    }
    at
}

fn written_together(words: &[(String, Range<usize>)], names: &mut Vec<(String, Range<usize>)>) {
    let [first, .., last] = words else { return };
    let name: String = words.iter().map(|(word, _)| word.as_str()).collect();
    let place = first.1.start..last.1.end;
    // Numbers written together would be other numbers.
    let speaks = name.chars().any(char::is_alphabetic) && name.chars().nth(NAME_CHARS_MAX).is_none();
    if speaks && !names.iter().rev().take(8).any(|known| known.0 == name && known.1 == place) {
        names.push((name, place));
    }
}

/// Whether a letter has a different lower case. Some characters count as upper case and have none.
fn is_capital(c: char) -> bool {
    c.is_uppercase() && !c.to_lowercase().eq([c])
}

/// The parts of `BuildContext` and `HTTPServer`, as ranges.
fn parts(word: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut from = 0;
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        // Most words are all lower case.
        if from == 0 && word.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()) {
            ended = true;
            return Some(0..word.len());
        }
        let mut rest = word[from..].char_indices().peekable();
        let mut last: Option<char> = None;
        while let Some((index, c)) = rest.next() {
            let next = rest.peek().map(|(_, next)| *next);
            let begins = match last {
                Some(last) if is_capital(c) => {
                    last.is_lowercase() || (is_capital(last) && next.is_some_and(char::is_lowercase))
                }
                _ => false,
            };
            if begins && index > 0 {
                let part = from..from + index;
                from += index;
                return Some(part);
            }
            last = Some(c);
        }
        ended = true;
        Some(from..word.len())
    })
}

/// Lower case, without accents, with compatible forms unified.
pub(super) fn fold(word: &str) -> String {
    if word.is_ascii() {
        return word.to_ascii_lowercase();
    }
    let plain = word.nfkd().filter(|c| !is_combining_mark(*c) && c.is_alphanumeric());
    plain.flat_map(char::to_lowercase).filter(|c| c.is_alphanumeric()).nfc().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> String {
        terms(text).words_text()
    }

    fn names(text: &str) -> String {
        terms(text).names_text()
    }

    #[test]
    fn words_of_prose() {
        assert_eq!(words("The café isn't CLOSED, is it? No."), "the cafe isn t closed is it no");
        assert_eq!(words("naïve Straße ÅNGSTRÖM ﬁne"), "naive straße angstrom fine");
        assert_eq!(words("hello世界,再见"), "hello 世 界 再 见");
        assert_eq!(words("한국어 テスト"), "한 국 어 テ ス ト");
        assert_eq!(words("x".repeat(65).as_str()), "", "data is not a word");
        assert_eq!(words(" \u{0}\t--//.."), "");
    }

    #[test]
    fn names_are_found_whole_and_by_part() {
        for (text, parts, whole) in [
            ("build_context", "build context", "buildcontext"),
            ("BuildContext", "build context", "buildcontext"),
            ("HTTPServer", "http server", "httpserver"),
            ("src/store/sqlite.rs", "src store sqlite rs", "sqliters srcstoresqliters"),
            (
                "core/src/build_context.rs.",
                "core src build context rs",
                "buildcontext buildcontextrs coresrcbuildcontextrs",
            ),
            ("std::mem::Swap", "std mem swap", "stdmemswap"),
            ("C:\\logs\\a.txt", "c logs a txt", "atxt clogsatxt"),
            ("E0308 0x1f sha256", "e0308 0x1f sha256", ""),
            ("1.2.3", "1 2 3", ""),
            ("v1.2", "v1 2", "v12"),
            ("ada@example.com", "ada example com", "adaexamplecom examplecom"),
            ("--rebuild", "rebuild", ""),
        ] {
            assert_eq!((words(text).as_str(), names(text).as_str()), (parts, whole), "{text}");
        }
    }

    #[test]
    fn stems_of_prose() {
        let stems = |text: &str| terms(text).stems_text();
        assert_eq!(stems("Somebody is locking the files"), "file lock somebodi");
        assert_eq!(stems("see locking_files.rs and E0716s"), "", "names have none");
        assert_eq!(stems("die Häuser und die Lieferungen"), "haus liefer");
        assert_eq!(stems("数据库"), "");
    }

    proptest! {
        /// For any text, its words are at their ranges, in order, and reading them again gives the same words.
        #[test]
        fn words_stand_where_they_say(text in ".{0,200}") {
            let found = terms(&text);
            let mut last = 0..0;
            for (word, place) in &found.words {
                prop_assert!((place.start >= last.end || *place == last) && !word.is_empty());
                let there = fold(&text[place.clone()]);
                prop_assert!(there == *word || there.chars().count() == 2 && there.contains(word), "{}", there);
                last = place.clone();
            }
            let again = terms(&found.words_text());
            prop_assert_eq!(again.words_text(), found.words_text());
            for (name, place) in &found.names {
                prop_assert!(text.is_char_boundary(place.start) && text.is_char_boundary(place.end));
                prop_assert!(!name.contains(' '));
            }
        }
    }
}
