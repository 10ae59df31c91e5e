//! The period that a query names: `in May 2023`, `last March`, `on 8 May`, `2023-05-08`, `yesterday`, `last
//! week`. In English words, or in digits.

use super::terms::terms;
use everturn_core::time::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan};
use std::ops::Range;

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
/// Words before a month whose name is also an ordinary word: `may`, `march`.
const BEFORE_MONTHS: [&str; 9] = ["in", "last", "of", "since", "during", "early", "late", "mid", "this"];
const YEARS: Range<i16> = 1970..2200;

/// The period that a query names, extended by a day on either side, because the time zone is unknown. `None` if
/// it names none. A month without a year is the most recent one that has begun.
pub fn period(question: &str, now: Timestamp) -> Option<Range<Timestamp>> {
    let words: Vec<String> = terms(question).words.into_iter().map(|(word, _)| word).collect();
    let today = jiff::Timestamp::from_microsecond(now.0).ok()?.to_zoned(TimeZone::UTC).date();
    let (from, length) = (0..words.len()).find_map(|at| named(&words, at, today))?;
    let to = from.checked_add(length).and_then(|to| to.checked_add(1.day())).ok()?;
    Some(start_of(from.yesterday().ok()?)?..start_of(to)?)
}

fn start_of(day: Date) -> Option<Timestamp> {
    let start = day.to_zoned(TimeZone::UTC).ok()?;
    Some(Timestamp(start.timestamp().as_microsecond()))
}

/// The period named by the words from an index on: its first day and its length.
fn named(words: &[String], at: usize, today: Date) -> Option<(Date, Span)> {
    let word = |place: Option<usize>| place.and_then(|place| words.get(place)).map_or("", String::as_str);
    let (before, next) = (at.checked_sub(1), Some(at + 1));
    match (word(Some(at)), word(next)) {
        ("today", _) => return Some((today, 1.day())),
        ("yesterday", _) => return Some((today.yesterday().ok()?, 1.day())),
        ("last", "week") => return Some((today.checked_sub(2.weeks()).ok()?, 2.weeks())),
        ("last", "month") => return Some((today.first_of_month().checked_sub(1.month()).ok()?, 1.month())),
        ("last", "year") => return Some((Date::new(today.year() - 1, 1, 1).ok()?, 1.year())),
        _ => {}
    }
    if let Some(year) = year(word(Some(at))) {
        // In digits: a year, a month and perhaps a day.
        return match (number(word(next), 12), number(word(Some(at + 2)), 31)) {
            (Some(month), Some(day)) => Some((Date::new(year, month, day).ok()?, 1.day())),
            (Some(month), None) => Some((Date::new(year, month, 1).ok()?, 1.month())),
            (None, _) if word(before) == "in" => Some((Date::new(year, 1, 1).ok()?, 1.year())),
            _ => None,
        };
    }
    let month = MONTHS.iter().position(|month| *month == word(Some(at)))? as i8 + 1;
    let behind = number(word(next), 31);
    let day = behind.or(number(word(before), 31)).or_else(|| {
        let of = word(before) == "of";
        of.then(|| number(word(at.checked_sub(2)), 31)).flatten()
    });
    let named_year = year(word(Some(at + if behind.is_some() { 2 } else { 1 })));
    let is_word = matches!(word(Some(at)), "may" | "march");
    if is_word && day.is_none() && named_year.is_none() && !BEFORE_MONTHS.contains(&word(before)) {
        return None;
    }
    let begun = |year: &i16| Date::new(*year, month, 1).is_ok_and(|first| first <= today);
    let year = named_year.or([today.year(), today.year() - 1].into_iter().find(begun))?;
    Some(match day {
        Some(day) => (Date::new(year, month, day).ok()?, 1.day()),
        None => (Date::new(year, month, 1).ok()?, 1.month()),
    })
}

fn year(word: &str) -> Option<i16> {
    word.parse().ok().filter(|year| word.len() == 4 && YEARS.contains(year))
}

/// `8`, `08`, `8th`.
fn number(word: &str, most: i8) -> Option<i8> {
    let digits = word.trim_end_matches(char::is_alphabetic);
    let ending = &word[digits.len()..];
    let number: i8 = digits.parse().ok()?;
    (matches!(ending, "" | "st" | "nd" | "rd" | "th") && (1..=most).contains(&number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_questions_name() {
        let now = "2023-06-10T12:00:00Z".parse().expect("a time");
        for (question, first, behind) in [
            ("what did we decide in May 2023?", "2023-05-01", "2023-06-01"),
            ("What happened last March?", "2023-03-01", "2023-04-01"),
            ("what did she buy in November?", "2022-11-01", "2022-12-01"),
            ("who called on 8 May?", "2023-05-08", "2023-05-09"),
            ("who called on May 8th, 2022?", "2022-05-08", "2022-05-09"),
            ("who called on the 8th of May 2022?", "2022-05-08", "2022-05-09"),
            ("the release of 2023-05-08", "2023-05-08", "2023-05-09"),
            ("what broke in 2022", "2022-01-01", "2023-01-01"),
            ("what broke yesterday", "2023-06-09", "2023-06-10"),
            ("what broke last week", "2023-05-27", "2023-06-10"),
            ("what broke last month", "2023-05-01", "2023-06-01"),
            ("what broke last year", "2022-01-01", "2023-01-01"),
        ] {
            let day = |day: &str| format!("{day}T00:00:00Z").parse::<Timestamp>().expect("a time");
            let slack = 24 * 60 * 60 * 1_000_000;
            let expected = Timestamp(day(first).0 - slack)..Timestamp(day(behind).0 + slack);
            assert_eq!(period(question, now), Some(expected), "{question}");
        }
        for question in [
            "may I see it?",
            "the march of progress",
            "before the release",
            "port 2023",
            "",
            "on 31 February",
        ] {
            assert_eq!(period(question, now), None, "{question}");
        }
    }
}
