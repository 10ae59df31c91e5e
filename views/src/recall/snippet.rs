//! The part of a text that shows the matches.

use super::language::Language;
use super::query::{TextQuery, Wanted};
use super::score::is_form;
use super::terms::{Terms, terms};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Approximate size of a snippet.
pub const SNIPPET_BYTES_MAX: usize = 240;

/// A part of a text, with its matches.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Snippet {
    /// The part. `…` marks omitted text.
    pub text: String,
    /// Ranges of the matches in it, in characters (Unicode scalar values): start, end.
    pub marks: Vec<(usize, usize)>,
}

impl Snippet {
    /// The text with `before` and `behind` around every match, for people.
    pub fn marked(&self, before: &str, behind: &str) -> String {
        let mut out = String::new();
        for (index, c) in self.text.chars().enumerate() {
            if self.marks.iter().any(|(_, to)| *to == index) {
                out.push_str(behind);
            }
            if self.marks.iter().any(|(from, _)| *from == index) {
                out.push_str(before);
            }
            out.push(c);
        }
        if self.marks.iter().any(|(_, to)| *to == self.text.chars().count()) {
            out.push_str(behind);
        }
        out
    }
}

/// The part of a text in which most terms of the query occur close together; without any, its beginning.
pub fn snippet(text: &str, query: &TextQuery) -> Snippet {
    let terms = terms(text);
    let mut found: Vec<(usize, Range<usize>)> = Vec::new();
    let language = Language::of(&terms).unwrap_or(Language::English);
    for (number, wanted) in query.wanted().enumerate() {
        found.extend(places(&terms, wanted, language).into_iter().map(|place| (number, place)));
    }
    found.sort_by_key(|(_, place)| (place.start, place.end));
    // For each position, the number of different terms within reach.
    let mut best = (0, 0..0);
    for (index, (_, first)) in found.iter().enumerate() {
        let near: Vec<&(usize, Range<usize>)> = found[index..]
            .iter()
            .take_while(|(_, place)| place.end <= first.start + SNIPPET_BYTES_MAX * 3 / 4)
            .collect();
        let mut numbers: Vec<usize> = near.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() > best.0 {
            let end = near.last().map_or(first.end, |(_, place)| place.end);
            best = (numbers.len(), first.start..end);
        }
    }
    let window = window(text, &best.1);
    let marks = found.into_iter().map(|(_, place)| place);
    cut(text, window, marks.collect())
}

/// Ranges in a text that match a term.
fn places(terms: &Terms, wanted: &Wanted, language: Language) -> Vec<Range<usize>> {
    let matches =
        |have: &str, want: &str, prefix: bool| if prefix { have.starts_with(want) } else { have == want };
    let last = wanted.words.len() - 1;
    let mut found: Vec<Range<usize>> = terms
        .words
        .windows(wanted.words.len())
        .filter(|words| {
            let pairs = words.iter().zip(&wanted.words).enumerate();
            pairs.into_iter().all(|(n, (have, want))| matches(&have.0, want, wanted.prefix && n == last))
        })
        .map(|words| words[0].1.start..words[last].1.end)
        .collect();
    // A single word may also be a spelling of a name: `sqliters` for `sqlite.rs`.
    let name = wanted.name.as_ref().or(wanted.words.first().filter(|_| wanted.words.len() == 1));
    if let Some(name) = name {
        let named = terms.names.iter().filter(|(have, _)| matches(have, name, wanted.prefix));
        found.extend(named.map(|(_, place)| place.clone()));
    }
    if !wanted.stems.is_empty() {
        let forms =
            terms.prose().filter(|(word, _)| *word != wanted.words[0] && is_form(wanted, word, language));
        found.extend(forms.map(|(_, place)| place.clone()));
    }
    found
}

/// A stretch of the text around a match, from one space to another.
fn window(text: &str, place: &Range<usize>) -> Range<usize> {
    if text.len() <= SNIPPET_BYTES_MAX {
        return 0..text.len();
    }
    let spare = SNIPPET_BYTES_MAX.saturating_sub(place.len());
    let mut from = place.start.saturating_sub(spare / 3);
    let mut to = (from + SNIPPET_BYTES_MAX).max(place.end).min(text.len());
    from = from.min(to.saturating_sub(SNIPPET_BYTES_MAX).min(place.start));
    from = text.floor_char_boundary(from);
    to = text.ceil_char_boundary(to);
    if from > 0 {
        // Do not cut inside a word, unless the word is all there is.
        from += text[from..place.start.max(from)].find(char::is_whitespace).map_or(0, |space| space + 1);
        from = text.ceil_char_boundary(from);
    }
    if to < text.len() {
        let behind = place.end.min(to);
        to = text[behind..to].rfind(char::is_whitespace).map_or(to, |space| behind + space);
    }
    from..to
}

fn cut(text: &str, window: Range<usize>, places: Vec<Range<usize>>) -> Snippet {
    let mut out = String::new();
    let mut length = 0;
    if window.start > 0 {
        out.push('…');
        length += 1;
    }
    let mut marks: Vec<(usize, usize)> = Vec::new();
    let mut covered = window.start;
    let mut chars = |from: usize, to: usize, out: &mut String| {
        // Line breaks would break a listing of snippets.
        out.extend(text[from..to].chars().map(|c| if c.is_control() { ' ' } else { c }));
        length += text[from..to].chars().count();
        length
    };
    for place in places {
        let (from, to) = (place.start.max(covered), place.end);
        if from < to && to <= window.end {
            let start = chars(covered, from, &mut out);
            let end = chars(from, to, &mut out);
            match marks.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => marks.push((start, end)),
            }
            covered = to;
        }
    }
    chars(covered, window.end, &mut out);
    if window.end < text.len() {
        out.push('…');
    }
    Snippet { text: out, marks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str, query: &str) -> String {
        snippet(text, &TextQuery::parse(query)).marked("[", "]")
    }

    #[test]
    fn what_was_looked_for_is_marked() {
        for (text, query, marked) in [
            ("The lock is held.", "lock", "The [lock] is held."),
            ("The CAFÉ is closed", "cafe closed", "The [CAFÉ] is [closed]"),
            ("see src/store/sqlite.rs now", "sqlite.rs", "see src/store/[sqlite.rs] now"),
            ("see src/store/sqlite.rs now", "store", "see src/[store]/sqlite.rs now"),
            ("call buildContext()", "build_context", "call [buildContext]()"),
            ("a build context", "build_context", "a [build context]"),
            ("locked lock", "loc*", "[locked] [lock]"),
            ("He is locking it", "lock", "He is [locking] it"),
            ("write ahead log, write log", "\"write ahead\"", "[write ahead] log, write log"),
            ("数据库锁住了", "据库", "数[据库]锁住了"),
            ("nothing here", "elsewhere", "nothing here"),
            ("two\nlines", "lines", "two [lines]"),
            ("", "x", ""),
        ] {
            assert_eq!(shown(text, query), marked, "{text} / {query}");
        }
    }

    #[test]
    fn the_part_with_most_of_it_is_shown() {
        let text =
            format!("lock {}the lock of the writer was held {}", "filler ".repeat(200), "more ".repeat(200));
        let part = shown(&text, "writer lock held");
        assert!(part.contains("[lock] of the [writer] was [held]"), "{part}");
        assert!(
            part.starts_with('…') && part.ends_with('…') && part.len() < SNIPPET_BYTES_MAX + 40,
            "{part}"
        );
    }

    proptest! {
        #[test]
        fn marks_stand_inside_and_in_order(text in ".{0,600}", query in ".{0,40}") {
            let snippet = snippet(&text, &TextQuery::parse(&query));
            let length = snippet.text.chars().count();
            let mut end = 0;
            for (from, to) in snippet.marks {
                prop_assert!(from >= end && from < to && to <= length);
                end = to;
            }
        }
    }
}
