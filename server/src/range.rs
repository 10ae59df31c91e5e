//! Range requests.

use axum::http::HeaderMap;
use axum::http::header::{IF_RANGE, RANGE};
use std::ops::Range;

/// The requested range of something with this size.
#[derive(PartialEq, Eq, Debug)]
pub enum Wanted {
    /// All of it. Also for ranges that are not understood, as RFC 9110 says, and for several ranges at once.
    Whole,
    Part(Range<u64>),
    /// A range beyond the end.
    Beyond,
}

/// Parses `Range` and `If-Range`.
pub fn wanted(headers: &HeaderMap, etag: &str, size: u64) -> Wanted {
    let Some(range) = headers.get(RANGE).and_then(|value| value.to_str().ok()) else { return Wanted::Whole };
    if headers.get(IF_RANGE).is_some_and(|known| known.as_bytes() != etag.as_bytes()) {
        return Wanted::Whole;
    }
    parse(range, size).unwrap_or(Wanted::Whole)
}

fn parse(range: &str, size: u64) -> Option<Wanted> {
    let (first, last) = range.strip_prefix("bytes=")?.trim().split_once('-')?;
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let range = match (first, last) {
        ("", last) => size.saturating_sub(number(last)?)..size,
        (first, "") => number(first)?..size,
        (first, last) => {
            let (first, last): (u64, u64) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..last.saturating_add(1).min(size)
        }
    };
    Some(if range.start >= size { Wanted::Beyond } else { Wanted::Part(range) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_range() {
        let table = [
            ("bytes=0-4", Wanted::Part(0..5)),
            ("bytes=5-", Wanted::Part(5..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-99", Wanted::Part(0..10)),
            ("bytes=8-99", Wanted::Part(8..10)),
            ("bytes=0-18446744073709551615", Wanted::Part(0..10)),
            ("bytes=10-", Wanted::Beyond),
            ("bytes=-0", Wanted::Beyond),
            ("bytes=4-2", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
            ("bytes=99999999999999999999-", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
        ];
        for (range, expected) in table {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            assert_eq!(wanted(&headers, "\"x\"", 10), expected, "{range}");
        }
    }
}
