//! Byte-pair encoding with OpenAI's vocabularies, as far as counting and decoding need it.
//!
//! A table is embedded in the program in the form in which it is searched. All numbers are little-endian `u32`:
//! the number of tokens, the number of slots, and the length of the longest token; the offset of each token,
//! and the end of the last one; the slots of an open hash table, each a rank plus one, with zero for an empty
//! slot; the tokens' bytes in the order of their ranks.

use super::hash;
use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::LazyLock;

pub static CL100K: LazyLock<Vocabulary> = LazyLock::new(|| {
    let pieces = [
        r"'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s+$",
        r"\s*[\r\n]",
    ];
    Vocabulary::new(include_bytes!(concat!(env!("OUT_DIR"), "/cl100k_base")), &pieces)
});

pub static O200K: LazyLock<Vocabulary> = LazyLock::new(|| {
    const ENDING: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
    let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    let pieces = [
        &format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{ENDING}"),
        &format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{ENDING}"),
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
    ];
    Vocabulary::new(include_bytes!(concat!(env!("OUT_DIR"), "/o200k_base")), &pieces)
});

/// Tokens with their ranks, and the rule that splits a text into pieces before each is encoded by itself.
pub struct Vocabulary {
    /// Offsets of tokens.
    starts: &'static [u8],
    slots: &'static [u8],
    bytes: &'static [u8],
    longest: usize,
    /// The second pattern is a run of white space, which leaves its last character to the piece that follows.
    pieces: Regex,
}

impl Vocabulary {
    fn new(table: &'static [u8], pieces: &[&str]) -> Vocabulary {
        let (head, table) = table.split_at(3 * 4);
        let [tokens, slots, longest] = [0, 1, 2].map(|at| number(head, at));
        let (starts, table) = table.split_at((tokens + 1) * 4);
        let (slots, bytes) = table.split_at(slots * 4);
        let pieces = Regex::new_many(&[&pieces.join("|"), r"\s+"]);
        Vocabulary { starts, slots, bytes, longest, pieces: pieces.expect("the patterns are constant") }
    }

    /// Number of tokens of a text.
    pub fn count(&self, text: &str) -> usize {
        let (mut tokens, mut at) = (0, 0);
        while at < text.len() {
            let end = self.piece_end(text, at);
            tokens += self.count_piece(&text.as_bytes()[at..end]);
            at = end;
        }
        tokens
    }

    /// The bytes of tokens; `None` if one of them is not in the vocabulary.
    pub fn decode(&self, tokens: &[u32]) -> Option<Vec<u8>> {
        let count = self.starts.len() / 4 - 1;
        let known = tokens.iter().map(|token| usize::try_from(*token).ok().filter(|rank| *rank < count));
        let pieces: Option<Vec<&[u8]>> = known
            .map(|rank| {
                rank.map(|rank| &self.bytes[number(self.starts, rank)..number(self.starts, rank + 1)])
            })
            .collect();
        pieces.map(|pieces| pieces.concat())
    }

    fn piece_end(&self, text: &str, at: usize) -> usize {
        let input = Input::new(text).range(at..).anchored(Anchored::Yes);
        let found = self.pieces.find(input).expect("the patterns cover every character");
        let last = text[at..found.end()].char_indices().next_back().map_or(0, |(last, _)| last);
        let leaves_last = found.pattern().as_usize() == 1 && found.end() < text.len() && last > 0;
        if leaves_last { at + last } else { found.end() }
    }

    /// Joins the two neighbours with the lowest rank, the leftmost first, until no two form a token.
    fn count_piece(&self, piece: &[u8]) -> usize {
        if self.rank(piece).is_some() {
            return 1;
        }
        let length = piece.len();
        // The end of the part that begins here; the start of the part before it. A part that was joined has no
        // end.
        let mut ends: Vec<usize> = (1..=length).collect();
        let mut before: Vec<usize> = (0..=length).map(|at: usize| at.wrapping_sub(1)).collect();
        let mut pairs = BinaryHeap::new();
        let pair = |at: usize, ends: &[usize]| {
            let end = *ends.get(ends[at])?;
            Some(Reverse((self.rank(&piece[at..end])?, at, end)))
        };
        pairs.extend((0..length).filter_map(|at| pair(at, &ends)));
        let mut tokens = length;
        while let Some(Reverse((_, at, end))) = pairs.pop() {
            let middle = ends[at];
            // One of the two may have been joined with another since.
            if middle == JOINED || ends.get(middle) != Some(&end) {
                continue;
            }
            (ends[at], ends[middle]) = (end, JOINED);
            before[end] = at;
            tokens -= 1;
            pairs.extend(pair(at, &ends));
            if at > 0 {
                pairs.extend(pair(before[at], &ends));
            }
        }
        tokens
    }

    fn rank(&self, token: &[u8]) -> Option<usize> {
        if token.len() > self.longest {
            return None;
        }
        let slots = self.slots.len() / 4;
        let mut slot = hash::of(token) as usize % slots;
        loop {
            let rank = number(self.slots, slot).checked_sub(1)?;
            if &self.bytes[number(self.starts, rank)..number(self.starts, rank + 1)] == token {
                return Some(rank);
            }
            slot = (slot + 1) % slots;
        }
    }
}

/// The end of a part that was joined with another.
const JOINED: usize = usize::MAX;

fn number(numbers: &[u8], at: usize) -> usize {
    let bytes = numbers[at * 4..at * 4 + 4].try_into().expect("four bytes");
    u32::from_le_bytes(bytes) as usize
}
