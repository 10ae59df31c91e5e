//! Text as the numbers of tokens, the way BERT's uncased tokenizer reads it:
//!
//! 1. Control, format and private-use characters are dropped; accents are taken off; letters become lower case.
//! 2. White space ends a word. A punctuation mark or a Chinese character is a word by itself.
//! 3. A word is spelt by the longest token that begins it, then by the longest that continues it (`##…` in the vocabulary), and
//!    so on. One that cannot be spelt, or of more than 100 characters, has no tokens.
//!
//! Two things differ from the original. There are no special tokens: `[SEP]` in a text is a word in brackets, as whoever typed it
//! meant. And characters are classified as today's Unicode does, not as Unicode 8 did.

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::char::decompose_canonical;

/// Characters of a word; a longer one has no tokens.
const WORD_CHARS_MAX: usize = 100;
/// Bytes of a token, without the marks that say that it continues a word.
const TOKEN_BYTES_MAX: usize = 18;
/// Slots of the hash table: a power of two, more than twice as many as there are tokens.
const SLOTS: usize = 1 << 16;
const CONTINUES: &str = "##";

pub struct WordPiece {
    /// A token a line.
    vocabulary: &'static str,
    /// Start of each token, and end of the last one.
    starts: Vec<u32>,
    /// A hash table of tokens.
    slots: Vec<Slot>,
    /// The class of each character, by its number.
    kinds: Vec<Kind>,
}

/// A token in the hash table.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// One more than its number; 0 where there is none.
    token: u16,
    /// Bits of its hash, so that most others are told apart without reading them.
    tag: u16,
}

/// The class of a character to the tokenizer.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Letter,
    /// An accent.
    Mark,
    Space,
    Punctuation,
    Ideograph,
    /// Not read.
    Control,
}

impl WordPiece {
    pub fn new(vocabulary: &'static str) -> WordPiece {
        let (mut starts, mut start) = (vec![0], 0);
        for token in vocabulary.lines() {
            start += token.len() as u32 + 1;
            starts.push(start);
        }
        let mut words = WordPiece { vocabulary, starts, slots: vec![Slot::default(); SLOTS], kinds: kinds() };
        for (number, token) in vocabulary.lines().enumerate() {
            let continued = token.strip_prefix(CONTINUES);
            let text = continued.unwrap_or(token).as_bytes();
            let hash = text.iter().fold(seed(continued.is_some()), |hash, byte| mix(hash, *byte));
            let (mut at, tag) = place(hash);
            while words.slots[at].token > 0 {
                at = (at + 1) % SLOTS;
            }
            words.slots[at] = Slot { token: number as u16 + 1, tag };
        }
        words
    }

    /// Calls `token` with the number of each token of a text, in order.
    pub fn tokens(&self, text: &str, mut token: impl FnMut(u16)) {
        let mut word = Word { bytes: [0; _], length: 0, chars: 0 };
        let mut rest = text;
        while let Some(&byte) = rest.as_bytes().first() {
            if byte.is_ascii() {
                rest = &rest[1..];
                match self.kinds[usize::from(byte)] {
                    Kind::Letter => word.push_ascii(byte.to_ascii_lowercase()),
                    Kind::Punctuation => {
                        self.end(&mut word, &mut token);
                        word.push_ascii(byte);
                        self.end(&mut word, &mut token);
                    }
                    Kind::Control => {}
                    _ => self.end(&mut word, &mut token),
                }
                continue;
            }
            let mut chars = rest.chars();
            if let Some(c) = chars.next() {
                self.read(c, &mut word, &mut token);
            }
            rest = chars.as_str();
        }
        self.end(&mut word, &mut token);
    }

    /// Whether a token is a part of a word.
    pub fn is_part(&self, token: u16) -> bool {
        self.token(token).starts_with(CONTINUES.as_bytes())
    }

    fn token(&self, number: u16) -> &[u8] {
        let start = self.starts[usize::from(number)] as usize;
        let end = self.starts[usize::from(number) + 1] as usize - 1;
        &self.vocabulary.as_bytes()[start..end]
    }

    /// Reads a character that is not ASCII.
    fn read(&self, c: char, word: &mut Word, token: &mut impl FnMut(u16)) {
        let kind = self.kind(c);
        match kind {
            Kind::Control => return,
            Kind::Space => return self.end(word, token),
            Kind::Ideograph => self.end(word, token),
            _ => {}
        }
        decompose_canonical(c, |part| {
            for part in part.to_lowercase() {
                match self.kind(part) {
                    Kind::Mark => {}
                    Kind::Punctuation => {
                        self.end(word, token);
                        word.push(part);
                        self.end(word, token);
                    }
                    _ => word.push(part),
                }
            }
        });
        if kind == Kind::Ideograph {
            self.end(word, token);
        }
    }

    fn kind(&self, c: char) -> Kind {
        self.kinds[c as usize]
    }

    /// Ends a word: gives its tokens, and begins an empty one.
    fn end(&self, word: &mut Word, token: &mut impl FnMut(u16)) {
        let (bytes, chars) = (&word.bytes[..word.length], word.chars);
        if chars > 0 && chars <= WORD_CHARS_MAX {
            let (mut found, mut count, mut at) = ([0; WORD_CHARS_MAX], 0, 0);
            while let Some((number, length)) = self.longest(&bytes[at..], at > 0) {
                found[count] = number;
                (count, at) = (count + 1, at + length);
            }
            if at == bytes.len() {
                found[..count].iter().for_each(|number| token(*number));
            }
        }
        (word.length, word.chars) = (0, 0);
    }

    /// The longest token that these bytes begin with, and its length.
    fn longest(&self, bytes: &[u8], continues: bool) -> Option<(u16, usize)> {
        let bytes = &bytes[..bytes.len().min(TOKEN_BYTES_MAX)];
        let mut hashes = [0; TOKEN_BYTES_MAX];
        let mut hash = seed(continues);
        for (at, byte) in bytes.iter().enumerate() {
            hash = mix(hash, *byte);
            hashes[at] = hash;
        }
        let tried = (1..=bytes.len()).rev();
        tried.into_iter().find_map(|length| {
            self.find(&bytes[..length], continues, hashes[length - 1]).map(|number| (number, length))
        })
    }

    /// The token with this text.
    fn find(&self, text: &[u8], continues: bool, hash: u64) -> Option<u16> {
        let (mut at, tag) = place(hash);
        loop {
            let slot = self.slots[at];
            let number = slot.token.checked_sub(1)?;
            if slot.tag == tag {
                let token = self.token(number);
                let token = if continues { token.strip_prefix(CONTINUES.as_bytes()) } else { Some(token) };
                if token == Some(text) {
                    return Some(number);
                }
            }
            at = (at + 1) % SLOTS;
        }
    }
}

/// A word that is being read.
struct Word {
    bytes: [u8; WORD_CHARS_MAX * 4],
    length: usize,
    /// Number of characters; one more than the limit if the word is longer: then the rest is not kept.
    chars: usize,
}

impl Word {
    fn push_ascii(&mut self, byte: u8) {
        if self.chars < WORD_CHARS_MAX {
            self.bytes[self.length] = byte;
            self.length += 1;
            self.chars += 1;
        } else {
            self.chars = WORD_CHARS_MAX + 1;
        }
    }

    fn push(&mut self, c: char) {
        if self.chars < WORD_CHARS_MAX {
            self.length += c.encode_utf8(&mut self.bytes[self.length..]).len();
            self.chars += 1;
        } else {
            self.chars = WORD_CHARS_MAX + 1;
        }
    }
}

fn seed(continues: bool) -> u64 {
    if continues { 0x6c62_272e_07bb_0142 } else { 0xcbf2_9ce4_8422_2325 }
}

/// FNV-1a.
fn mix(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

/// First slot for a token with this hash, and its tag.
fn place(hash: u64) -> (usize, u16) {
    let spread = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((spread >> 32) as usize % SLOTS, (spread >> 48) as u16)
}

/// The classes of characters. Later lines overrule earlier ones.
fn kinds() -> Vec<Kind> {
    let mut kinds = vec![Kind::Letter; char::MAX as usize + 1];
    let mut set = |ranges: &[(char, char)], kind| {
        ranges.iter().for_each(|(first, last)| kinds[*first as usize..=*last as usize].fill(kind));
    };
    set(&class(r"[\p{P}$+<=>^`|~]"), Kind::Punctuation);
    set(&class(r"\p{Mn}"), Kind::Mark);
    set(&IDEOGRAPHS, Kind::Ideograph);
    set(&class(r"\p{Z}"), Kind::Space);
    set(&class(r"[\p{Cc}\p{Cf}\p{Co}\x{fffd}]"), Kind::Control);
    set(&[('\t', '\n'), ('\r', '\r')], Kind::Space);
    kinds
}

/// Chinese characters, also where Japanese and Korean use them.
const IDEOGRAPHS: [(char, char); 8] = [
    ('\u{3400}', '\u{4dbf}'),
    ('\u{4e00}', '\u{9fff}'),
    ('\u{f900}', '\u{faff}'),
    ('\u{20000}', '\u{2a6df}'),
    ('\u{2a700}', '\u{2b73f}'),
    ('\u{2b740}', '\u{2b81f}'),
    ('\u{2b920}', '\u{2ceaf}'),
    ('\u{2f800}', '\u{2fa1f}'),
];

/// The characters of a class of Unicode, as ranges.
fn class(pattern: &str) -> Vec<(char, char)> {
    let class = regex_syntax::parse(pattern).expect("a class that is known").into_kind();
    match class {
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().map(|range| (range.start(), range.end())).collect()
        }
        _ => unreachable!("{pattern} is a class of characters"),
    }
}
