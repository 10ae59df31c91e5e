//! Names in the covered turns, and the choice among them when there are too many.

use super::files::Files;
use super::spoken::Source;
use crate::compaction::limits::IDENTIFIER_BYTES_MAX;
use crate::identifier::{self, IdentifierKind, has_file_ending};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Maximum number of names that one round adds: the best of them.
const PER_ROUND_MAX: usize = 120;
/// Minimum score of a name that may be an ordinary word: a person says it, or the model does so twice.
const WEAK_SCORE_MIN: u32 = 6;

/// Category of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    /// Looks like a file; see [`files`](super::files).
    File,
    /// Goes to `critical_identifiers`.
    Name,
    /// Goes there if a person says it: a number with a unit is worth little without its sentence.
    Figure,
    /// Goes there with a high enough score: a symbol, or two words with a slash between.
    Weak,
}

/// A name with its score.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'t> {
    pub text: &'t str,
    pub score: u32,
}

/// Names that people and the model say in the covered turns, in the order of their first mention, without files. Arguments and
/// output of tools are not read: a name that matters is repeated by somebody.
pub(super) fn names<'t>(texts: &'t [(Source, Cow<'_, str>)], files: &Files) -> Vec<Name<'t>> {
    let mut names: Vec<(Sort, Name<'t>)> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (source, text) in texts {
        let score = match source {
            Source::User => 6,
            Source::Assistant => 4,
            Source::Call | Source::Output | Source::Tool => continue,
        };
        scan(text, |sort, name| {
            if sort == Sort::File || (sort == Sort::Figure && *source != Source::User) {
                return;
            }
            let index = *known.entry(name).or_insert_with(|| {
                names.push((sort, Name { text: name, score: 0 }));
                names.len() - 1
            });
            names[index].1.score += score;
        });
    }
    names.retain(|(sort, name)| {
        (*sort != Sort::Weak || name.score >= WEAK_SCORE_MIN)
            && !(name.text.contains('/') && files.covers(name.text))
    });
    let mut names: Vec<(usize, Name<'t>)> = names.into_iter().map(|(_, name)| name).enumerate().collect();
    if names.len() > PER_ROUND_MAX {
        names.sort_by_key(|(index, name)| (std::cmp::Reverse(name.score), *index));
        names.truncate(PER_ROUND_MAX);
        names.sort_unstable_by_key(|(index, _)| *index);
    }
    names.into_iter().map(|(_, name)| name).collect()
}

/// Calls back for every name in a text.
pub(super) fn scan<'t>(text: &'t str, mut found: impl FnMut(Sort, &'t str)) {
    let mut take = |sort: Sort, name: &'t str| {
        if name.len() <= IDENTIFIER_BYTES_MAX {
            found(sort, name);
        }
    };
    let mut reader = identifier::Every(|kind, word| {
        if let Some(sort) = sort_of(kind, word) {
            take(sort, word);
        }
        true
    });
    identifier::words(text, &mut reader);
    figures(text, |figure| take(Sort::Figure, figure));
}

fn sort_of(kind: Option<IdentifierKind>, word: &str) -> Option<Sort> {
    let digits = word.bytes().any(|byte| byte.is_ascii_digit());
    Some(match kind {
        Some(IdentifierKind::FileName) => Sort::File,
        Some(IdentifierKind::Path) => {
            let last = word.rsplit(['/', '\\']).next().unwrap_or_default();
            let plain = word.chars().all(|c| c.is_alphabetic() || c == '/') && !word.starts_with('/');
            match () {
                () if has_file_ending(last) => Sort::File,
                // "client/server" is more often a pair of words than a folder.
                () if plain && word.matches('/').count() == 1 => Sort::Weak,
                () => Sort::Name,
            }
        }
        // Of symbols, those with a number in them are ids: `req_8f3a`, `conv_01J…`.
        Some(IdentifierKind::Symbol) => {
            match () {
                () if digits => Sort::Name,
                // `kWh` is a unit.
                () if word.chars().count() < 4 => return None,
                () => Sort::Weak,
            }
        }
        // A hash that ends in a unit: `1000001b`.
        Some(IdentifierKind::Quantity)
            if word.len() > 6 && word.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            Sort::Name
        }
        Some(IdentifierKind::Quantity) => Sort::Figure,
        Some(_) => Sort::Name,
        None if is_code(word, digits) || is_host(word) => Sort::Name,
        None => return None,
    })
}

/// Ticket numbers, versions, dates, error codes: `ABC-123`, `v1.2.3`, `2026-04-27`, `E0382`.
fn is_code(word: &str, digits: bool) -> bool {
    let letters = word.chars().any(char::is_alphabetic);
    let ordinal = word.len() <= 4
        && word.starts_with(|c: char| c.is_ascii_digit())
        && !word.ends_with(|c: char| c.is_ascii_digit());
    digits
        && word.chars().all(|c| c.is_alphanumeric() || "-._@+".contains(c))
        && if letters { word.len() > 3 && !ordinal } else { word.matches(['.', '-']).count() > 1 }
}

/// Mail addresses and host names, recognised by endings that are not words.
fn is_host(word: &str) -> bool {
    const ENDINGS: [&str; 14] = [
        "com", "org", "net", "io", "dev", "app", "ai", "eu", "de", "ch", "at", "internal", "local", "example",
    ];
    let host = word.rsplit('@').next().unwrap_or_default();
    let mut parts = host.split('.');
    host.contains('.')
        && parts.clone().all(|part| part.len() > 1 && part.chars().all(|c| c.is_alphanumeric() || c == '-'))
        && parts.next_back().is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Numbers for people: money, times of day, days of the year, areas.
fn figures<'t>(text: &'t str, mut found: impl FnMut(&'t str)) {
    #[rustfmt::skip]
    const UNITS: &[&str] = &[
        "€", "$", "£", "EUR", "USD", "CHF", "GBP", "Euro", "euro", "euros", "dollars", "Uhr", "am", "pm", "Minuten", "Stunden", "Tage",
        "Tagen", "Wochen", "Monate", "Monaten", "months", "Personen", "people", "persons", "guests", "Gäste", "°C", "m²", "m³", "l", "Liter",
        "s", "h", "m", "g",
    ];
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while let Some(step) = bytes[at..].iter().position(u8::is_ascii_digit) {
        let mut start = at + step;
        let mut end = start;
        while is_digit(end) || (matches!(bytes.get(end), Some(b'.' | b',' | b':')) && is_digit(end + 1)) {
            end += 1;
        }
        at = end;
        let before = &text[..start];
        if before.ends_with(|c: char| c.is_alphanumeric() || "_-./#@%".contains(c)) {
            continue;
        }
        let rest = &text[end..];
        let behind = rest.strip_prefix(' ').unwrap_or(rest);
        let unit =
            behind.find(|c: char| !(c.is_alphabetic() || "²³€$£°".contains(c))).unwrap_or(behind.len());
        let day = end - start <= 2;
        let dotted = rest.strip_prefix(". ").unwrap_or(behind);
        let next = dotted.find(|c: char| !c.is_alphabetic()).unwrap_or(dotted.len());
        let last = before
            .trim_end()
            .rfind(|c: char| !c.is_alphabetic())
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        match () {
            () if UNITS.contains(&&behind[..unit]) => end = text.len() - behind.len() + unit,
            () if day && is_month(&dotted[..next]) => end = text.len() - dotted.len() + next,
            () if day && before.ends_with(' ') && is_month(before[last..].trim_end()) => start = last,
            () => match before.chars().next_back() {
                Some(sign @ ('€' | '$' | '£')) => start -= sign.len_utf8(),
                _ if is_clock(&text[start..end]) => {}
                _ => continue,
            },
        }
        found(&text[start..end]);
        at = end;
    }
}

fn is_clock(number: &str) -> bool {
    matches!(number.split_once(':'), Some((hour, minute))
        if (1..=2).contains(&hour.len()) && minute.len() == 2 && minute.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_month(word: &str) -> bool {
    const MONTHS: [&str; 19] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
        "Januar",
        "Februar",
        "März",
        "Mai",
        "Juni",
        "Juli",
        "Oktober",
    ];
    MONTHS.contains(&word) || word == "Dezember"
}

/// Merges a list of names with those of another round: the previous ones in their order, then the new ones;
/// over `max`, see [`limits`](crate::compaction::limits). A name after the `oldest` that is mentioned again
/// counts as new.
pub(super) fn roll(
    previous: &[String],
    new: &[(&str, u32)],
    protected: &HashSet<&str>,
    max: usize,
    oldest: usize,
) -> Vec<String> {
    let mentions: HashMap<&str, u32> = new.iter().copied().collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut list: Vec<(&str, u32)> = Vec::new();
    let mut again: Vec<(&str, u32)> = Vec::new();
    for name in previous.iter().map(String::as_str).filter(|name| seen.insert(name)) {
        match mentions.get(name) {
            Some(score) if list.len() >= oldest => again.push((name, *score)),
            score => list.push((name, score.copied().unwrap_or(0))),
        }
    }
    list.append(&mut again);
    list.extend(new.iter().copied().filter(|(name, _)| seen.insert(name)));
    let mut order: Vec<usize> = (0..list.len()).collect();
    if list.len() > max {
        order.sort_by_cached_key(|index| {
            let (name, score) = list[*index];
            let rank = match () {
                () if protected.contains(name) => 0,
                () if *index < oldest => 1,
                () if score > 0 => 2,
                () => 3,
            };
            // Among the oldest the older, else the more often mentioned, else the newer.
            let age = if rank == 1 { *index } else { list.len() - index };
            (rank, std::cmp::Reverse(if rank == 2 { score } else { 0 }), age)
        });
        order.truncate(max);
        order.sort_unstable();
    }
    order.into_iter().map(|index| list[index].0.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(Sort, &str)> {
        let mut out = Vec::new();
        scan(text, |sort, name| out.push((sort, name)));
        out
    }

    #[test]
    fn ids_versions_dates_hosts_money_and_times_are_names() {
        for (text, expected) in [
            ("fix ABC-123 in v1.2.3 by 2026-04-27", vec!["ABC-123", "v1.2.3", "2026-04-27"]),
            ("mail anna@example.org or db.internal", vec!["anna@example.org", "db.internal"]),
            ("1.450 € or $300 or 20 CHF", vec!["1.450 €", "$300", "20 CHF"]),
            ("at 14:30, for 12 people", vec!["14:30", "12 people"]),
            ("um 9 Uhr, 3 Stunden, 240 m², 1,20 m", vec!["9 Uhr", "3 Stunden", "240 m²", "1,20 m"]),
            ("5 s, am 12. März, September 17", vec!["5 s", "12. März", "September 17"]),
            ("the u64 may 3 be", vec![]),
            ("error E0382, commit 1a2b3c4, #12", vec!["E0382", "1a2b3c4", "#12"]),
            ("the 3rd of 20 well-known e.g. ones, 1.5 times, z.B. so", vec![]),
        ] {
            let names: Vec<&str> = found(text).into_iter().map(|(_, name)| name).collect();
            assert_eq!(names, expected, "{text}");
        }
        assert_eq!(found("src/a.rs"), [(Sort::File, "src/a.rs")]);
        assert_eq!(found("/var/log/app"), [(Sort::Name, "/var/log/app")]);
        assert_eq!(found("client/server"), [(Sort::Weak, "client/server")]);
        assert_eq!(found("parse_config req_81"), [(Sort::Weak, "parse_config"), (Sort::Name, "req_81")]);
    }

    #[test]
    fn the_oldest_the_protected_the_mentioned_and_the_newest_stay() {
        let previous: Vec<String> = (0..10).map(|n| format!("n{n}")).collect();
        let protected = HashSet::from(["n5"]);
        let list = roll(&previous, &[("n6", 3), ("new", 1)], &protected, 6, 3);
        assert_eq!(list, ["n0", "n1", "n2", "n5", "n6", "new"]);
        let list = roll(&list, &[("x", 1), ("y", 9)], &HashSet::new(), 6, 3);
        assert_eq!(list, ["n0", "n1", "n2", "new", "x", "y"]);
        // Mentioned again, one of the oldest keeps its position and stays protected; a younger one becomes new.
        let list = roll(&list, &[("n0", 9), ("new", 1)], &HashSet::new(), 6, 3);
        assert_eq!(list, ["n0", "n1", "n2", "x", "y", "new"]);
    }
}
