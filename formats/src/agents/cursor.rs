//! Transcripts of Cursor's agent: `{"role": "user", "message": {"content": […]}}` a line, without ids, and without the results
//! of its calls.

use super::line::{Line, words};
use everturn_core::json::quote;
use everturn_core::time::Timestamp;
use std::borrow::Cow;

/// The message of a line. Calls get an id from their place, since there is none by which they could be told apart; what
/// is not a message stays as it is.
pub fn message(number: u64, text: &str) -> Cow<'_, str> {
    let line = Line::parse(text).unwrap_or_default();
    let inner = line.object("message").unwrap_or_default();
    let (Some(role), Some(content)) = (line.text("role"), inner.list("content")) else {
        return Cow::Borrowed(text);
    };
    let block = |(index, raw): (usize, &&serde_json::value::RawValue)| {
        let block = Line::parse(raw.get()).unwrap_or_default();
        match block.text("type").as_deref() {
            Some("tool_use") if block.raw("id").is_none() => {
                format!("{{\"id\":\"call_{number}_{index}\",{}", &raw.get().trim_start()[1..])
            }
            _ => raw.get().to_string(),
        }
    };
    let blocks: Vec<String> = content.iter().enumerate().map(block).collect();
    Cow::Owned(format!("{{\"role\":{},\"content\":[{}]}}", quote(&role), blocks.join(",")))
}

/// The time that Cursor writes before a prompt: `<timestamp>Friday, May 8, 2026, 6:05 AM (UTC+5:30)</timestamp>`.
pub fn time(message: &Line<'_>) -> Option<Timestamp> {
    let said = words(message.raw("content").filter(|_| message.text("role").as_deref() == Some("user"))?);
    let (_, rest) = said.split_once("<timestamp>")?;
    let (stamp, _) = rest.split_once("</timestamp>")?;
    read(stamp)
}

fn read(stamp: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut parts = stamp.split(',').map(str::trim);
    let (_weekday, date, year, clock) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let (month, day) = date.split_once(' ')?;
    let month = 1 + MONTHS.iter().position(|name| month.starts_with(name))?;
    let (day, year): (u8, u16) = (day.parse().ok()?, year.parse().ok()?);
    let mut words = clock.split_whitespace();
    let (hour, minute) = words.next()?.split_once(':')?;
    let (hour, minute): (u8, u8) = (hour.parse().ok()?, minute.parse().ok()?);
    let hour = match words.next()? {
        "AM" => hour % 12,
        "PM" => hour % 12 + 12,
        _ => return None,
    };
    // Without an offset it is UTC, as there is nothing else to go by.
    let offset = words.next().unwrap_or("(UTC)").trim_matches(['(', ')']).strip_prefix("UTC")?;
    let (sign, offset) = match offset.split_at_checked(1) {
        Some((sign, offset)) => (sign, offset),
        None => ("+", "0"),
    };
    let (hours, minutes) = offset.split_once(':').unwrap_or((offset, "0"));
    let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:00{sign}{hours:02}:{minutes:02}")
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_before_a_prompt_is_read_with_its_offset() {
        for (stamp, expected) in [
            ("Friday, May 8, 2026, 6:05 AM (UTC+5:30)", Some("2026-05-08T00:35:00Z")),
            ("Sunday, Sep 20, 2026, 12:31 AM (UTC-3)", Some("2026-09-20T03:31:00Z")),
            ("Sunday, September 20, 2026, 12:31 PM (UTC)", Some("2026-09-20T12:31:00Z")),
            ("Sunday, Sep 20, 2026, 1:00 PM", Some("2026-09-20T13:00:00Z")),
            ("Wed Jul 1 2026 3:45 PM", None),
            ("Friday, May 88, 2026, 6:05 AM (UTC+é)", None),
            ("", None),
        ] {
            assert_eq!(read(stamp), expected.map(|time| time.parse().unwrap()), "{stamp}");
        }
    }
}
