//! Range requests.

use axum::http::HeaderMap;
use axum::http::header::{IF_RANGE, RANGE};
use std::ops::Range;

/// The requested range of something with this size.
#[derive(PartialEq, Eq, Debug)]
pub enum RequestedRange {
    /// All of it. Also for ranges that are not understood, as RFC 9110 says, and for several ranges at once.
    Whole,
    Part(Range<u64>),
    /// A range beyond the end.
    Beyond,
}

/// Parses `Range` and `If-Range`.
pub fn requested_range(headers: &HeaderMap, etag: &str, size: u64) -> RequestedRange {
    let Some(range) = headers.get(RANGE).and_then(|value| value.to_str().ok()) else {
        return RequestedRange::Whole;
    };
    if headers.get(IF_RANGE).is_some_and(|known| known.as_bytes() != etag.as_bytes()) {
        return RequestedRange::Whole;
    }
    parse(range, size).unwrap_or(RequestedRange::Whole)
}

fn parse(range: &str, size: u64) -> Option<RequestedRange> {
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
    Some(if range.start >= size { RequestedRange::Beyond } else { RequestedRange::Part(range) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_range() {
        let table = [
            ("bytes=0-4", RequestedRange::Part(0..5)),
            ("bytes=5-", RequestedRange::Part(5..10)),
            ("bytes=-3", RequestedRange::Part(7..10)),
            ("bytes=-99", RequestedRange::Part(0..10)),
            ("bytes=8-99", RequestedRange::Part(8..10)),
            ("bytes=0-18446744073709551615", RequestedRange::Part(0..10)),
            ("bytes=10-", RequestedRange::Beyond),
            ("bytes=-0", RequestedRange::Beyond),
            ("bytes=4-2", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("bytes=+1-2", RequestedRange::Whole),
            ("lines=1-2", RequestedRange::Whole),
            ("bytes=99999999999999999999-", RequestedRange::Whole),
            ("bytes=-", RequestedRange::Whole),
        ];
        for (range, expected) in table {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            assert_eq!(requested_range(&headers, "\"x\"", 10), expected, "{range}");
        }
    }
}
