//! Sets of hashed terms of a sentence, for telling whether two sentences say the same.
//!
//! Words are lower case, without stop words, and truncated to five letters, so that "decide", "decided" and
//! "deciding" match. Scripts without spaces are split into pairs of characters.

use std::sync::LazyLock;

/// Number of letters of a word that are compared.
const STEM_CHARS: usize = 5;

/// Terms of one text. Each list is sorted and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// Ordinary words.
    pub words: Vec<u32>,
    /// Names: paths, symbols, issue numbers, anything that is spelt like code.
    pub names: Vec<u32>,
    /// Numbers, with or without a unit.
    pub numbers: Vec<u32>,
}

impl Terms {
    pub fn of(text: &str) -> Terms {
        let mut terms = Terms::default();
        for token in text.split(|c: char| !is_part_of_token(c)) {
            terms.add(token);
        }
        for list in [&mut terms.words, &mut terms.names, &mut terms.numbers] {
            list.sort_unstable();
            list.dedup();
        }
        terms
    }

    fn add(&mut self, token: &str) {
        let issue = token.starts_with('#');
        let token = token.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
        if token.is_empty() {
            return;
        }
        let (mut letters, mut digits, mut coded, mut unspaced, mut lower) = (0, false, false, false, false);
        for c in token.chars() {
            letters += usize::from(c.is_alphabetic());
            digits |= c.is_numeric();
            coded |= matches!(c, '_' | '/' | ':' | '@' | '.') || (lower && c.is_uppercase());
            unspaced |= !c.is_ascii() && is_unspaced(c);
            lower = c.is_lowercase();
        }
        if unspaced {
            return self.add_pairs(token);
        }
        let amount = digits && letters <= 3 && token.starts_with(char::is_numeric);
        match () {
            () if issue || (coded && letters > 0 && !amount) || (digits && !amount) => {
                self.names.push(hash(token.chars()));
            }
            () if digits => self.numbers.push(hash(token.chars())),
            () => {
                for word in token.split(['-', '.', '/']) {
                    self.add_word(word);
                }
            }
        }
    }

    fn add_word(&mut self, word: &str) {
        let mut lower = [0u8; 40];
        // Words longer than this already differ in their first letters.
        let mut used = 0;
        if word.is_ascii() {
            used = word.len().min(lower.len());
            lower[..used].copy_from_slice(&word.as_bytes()[..used]);
            lower.make_ascii_lowercase();
        } else {
            for c in word.chars().flat_map(char::to_lowercase) {
                let c = if c == '’' { '\'' } else { c };
                if used + c.len_utf8() > lower.len() {
                    break;
                }
                used += c.encode_utf8(&mut lower[used..]).len();
            }
        }
        let Ok(lower) = std::str::from_utf8(&lower[..used]) else { return };
        if lower.chars().count() > 2 && !is_stop_word(lower) {
            self.words.push(hash(lower.chars().take(STEM_CHARS)));
        }
    }

    fn add_pairs(&mut self, token: &str) {
        let mut last = None;
        for c in token.chars() {
            if let Some(last) = last {
                self.words.push(hash([last, c].into_iter()));
            }
            last = Some(c);
        }
    }

    /// Number of terms.
    pub fn len(&self) -> usize {
        self.words.len() + self.names.len() + self.numbers.len()
    }

    /// Number of these terms that the other has too.
    pub fn shared(&self, other: &Terms) -> usize {
        shared(&self.words, &other.words)
            + shared(&self.names, &other.names)
            + shared(&self.numbers, &other.numbers)
    }

    /// Whether both have a word or a name in common: the same number may be of something else.
    pub fn meet(&self, other: &Terms) -> bool {
        shared(&self.words, &other.words) + shared(&self.names, &other.names) > 0
    }

    /// Whether both have the same names.
    pub fn same_names(&self, other: &Terms) -> bool {
        self.names == other.names
    }

    /// Whether the other has all of these names.
    pub fn names_within(&self, other: &Terms) -> bool {
        shared(&self.names, &other.names) == self.names.len()
    }

    /// Whether the words are nearly the same: three quarters of them.
    pub fn near_words(&self, other: &Terms) -> bool {
        let both = shared(&self.words, &other.words);
        let all = self.words.len() + other.words.len() - both;
        both * 4 >= all * 3
    }
}

/// Called for every character that is summarized.
fn is_part_of_token(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric()
            || matches!(c, '_' | '.' | '/' | ':' | '-' | '#' | '@' | '%' | '\'');
    }
    c == '’' || c.is_alphanumeric()
}

/// Called for every word that is summarized.
fn is_stop_word(word: &str) -> bool {
    let first = word.bytes().next().unwrap_or_default();
    STOP_WORDS[usize::from(first)].contains(&word)
}

fn shared(a: &[u32], b: &[u32]) -> usize {
    let (mut i, mut j, mut count) = (0, 0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        match x.cmp(y) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                count += 1;
                i += 1;
                j += 1;
            }
        }
    }
    count
}

/// FNV-1a over the characters: the same on every machine.
fn hash(chars: impl Iterator<Item = char>) -> u32 {
    chars.fold(0x811c_9dc5, |hash, c| (hash ^ c as u32).wrapping_mul(0x0100_0193))
}

/// Whether a script is written without spaces, or with spaces that do not separate words: Chinese, Japanese,
/// Korean, Thai.
pub(super) fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0e7f}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Words without a subject of their own, English and German, by their first byte.
static STOP_WORDS: LazyLock<[Vec<&str>; 256]> = LazyLock::new(|| {
    let mut words = [const { Vec::new() }; 256];
    for word in include_str!("stop_words.txt").lines() {
        words[usize::from(word.bytes().next().unwrap_or_default())].push(word);
    }
    words
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_are_found() {
        assert!(["the", "and", "über", "i'm"].into_iter().all(is_stop_word));
        assert!(!["", "th", "thee", "zzz", "ü", "postgres"].into_iter().any(is_stop_word));
    }

    #[test]
    fn forms_of_a_word_meet_and_names_do_not_blur() {
        let shared = |a: &str, b: &str| Terms::of(a).shared(&Terms::of(b));
        assert_eq!(shared("We decided on Postgres", "deciding: postgres!"), 2);
        assert_eq!(shared("fixed src/a.rs", "fixed src/b.rs"), 1);
        assert_eq!(Terms::of("src/a.rs TurnId #12 foo_bar abc-123 v1.2").names.len(), 6);
        assert_eq!(Terms::of("250ms 12% 3 14:30 1.200").numbers.len(), 5);
        assert_eq!(Terms::of("数据库连接").words.len(), 4);
        assert!(Terms::of("the of is 'tis").len() <= 1);
    }
}
