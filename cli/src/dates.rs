//! Reads dates as people write them, and formats local time.

use everturn_core::Error;
use everturn_core::time::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Zoned};

/// Parses a date or a time, in the time zone of this machine.
pub fn parse(text: &str) -> Result<Timestamp, Error> {
    read(text.trim(), &now()).ok_or_else(|| {
        let shown = everturn_core::id::clip(text);
        let text = format!(
            "{shown:?} is not a date; write 2026-01-31, '2026-01-31 14:30', 14:30, today, yesterday, 7d, '2 weeks ago', 'last week' or 2026-01-31T14:30:00Z"
        );
        Error::invalid("time.malformed", text)
    })
}

/// Parses the time at which something ends, the value of an option: a date, a time, or a length of time from now.
pub fn deadline(option: &str, text: &str) -> Result<Timestamp, Error> {
    read_ahead(text.trim(), &now()).ok_or_else(|| {
        let shown = everturn_core::id::clip(text);
        let text = format!(
            "{shown:?} is not a time; write 2027-01-31, '2027-01-31 14:30', 14:30, tomorrow, 2h, 30d or 2027-01-31T14:30:00Z"
        );
        Error::invalid("time.malformed", text).at(option)
    })
}

/// As [`read`], but a length of time without `ago` begins now.
fn read_ahead(text: &str, now: &Zoned) -> Option<Timestamp> {
    let word = text.to_ascii_lowercase();
    if word == "tomorrow" {
        let day = now.date().tomorrow().ok()?.to_datetime(Time::midnight());
        return micros(&now.time_zone().to_zoned(day).ok()?);
    }
    let length = word.strip_prefix("in ").unwrap_or(&word);
    match ago(length).filter(|_| !length.ends_with("ago")) {
        Some(length) => micros(&now.checked_add(length).ok()?),
        None => read(text, now),
    }
}

/// Parses a length of time: seconds, or `90s`, `30m`, `12h`, `7d`, `2w`.
pub fn seconds(text: &str) -> Result<u64, Error> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit: Option<u64> = match unit {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(60 * 60),
        "d" => Some(24 * 60 * 60),
        "w" => Some(7 * 24 * 60 * 60),
        _ => None,
    };
    let seconds =
        unit.zip(number.parse().ok()).and_then(|(unit, number): (u64, u64)| unit.checked_mul(number));
    seconds.ok_or_else(|| {
        let shown = everturn_core::id::clip(text);
        Error::invalid("time.malformed", format!("{shown:?} is not a length of time; write 3600, 12h or 7d"))
    })
}

fn read(text: &str, now: &Zoned) -> Option<Timestamp> {
    if let Ok(exact) = text.parse::<Timestamp>() {
        return Some(exact);
    }
    let word = text.to_ascii_lowercase();
    let today = now.date();
    let local = match word.as_str() {
        "now" => return micros(now),
        "today" => today.to_datetime(Time::midnight()),
        "yesterday" => today.yesterday().ok()?.to_datetime(Time::midnight()),
        "this week" => {
            let days = i64::from(today.weekday().to_monday_zero_offset());
            today.checked_sub(Span::new().days(days)).ok()?.to_datetime(Time::midnight())
        }
        "this month" => today.first_of_month().to_datetime(Time::midnight()),
        "last week" => today.checked_sub(Span::new().weeks(1)).ok()?.to_datetime(Time::midnight()),
        "last month" => today.checked_sub(Span::new().months(1)).ok()?.to_datetime(Time::midnight()),
        "last year" => today.checked_sub(Span::new().years(1)).ok()?.to_datetime(Time::midnight()),
        // A day without a time is its beginning, as is a month.
        word => match (word.parse::<DateTime>(), format!("{word}-01").parse::<DateTime>(), clock(word)) {
            (Ok(at), _, _) | (_, Ok(at), _) => at,
            (_, _, Some(time)) => today.to_datetime(time),
            _ => return micros(&now.checked_sub(ago(word)?).ok()?),
        },
    };
    micros(&now.time_zone().to_zoned(local).ok()?)
}

/// `14:30`, with seconds or without.
fn clock(word: &str) -> Option<Time> {
    word.contains(':').then(|| word.parse().ok()).flatten()
}

/// The length of `7d`, `2w`, `36h` or `3 months ago`; `m` are minutes, and only the past is meant.
fn ago(word: &str) -> Option<Span> {
    let span: Span = word.strip_suffix("ago").unwrap_or(word).trim().parse().ok()?;
    Some(span.abs()).filter(|_| word.starts_with(|first: char| first.is_ascii_digit()))
}

fn micros(at: &Zoned) -> Option<Timestamp> {
    Some(Timestamp(at.timestamp().as_microsecond()))
}

/// The time zone of this machine; UTC where none is set.
fn here() -> TimeZone {
    TimeZone::try_system().ok().filter(|zone| !zone.is_unknown()).unwrap_or(TimeZone::UTC)
}

fn now() -> Zoned {
    jiff::Timestamp::now().to_zoned(here())
}

/// `2026-11-15 05:30:12 CET`: local time and its zone.
pub fn to_second(at: Timestamp) -> String {
    written(at, "%Y-%m-%d %H:%M:%S %Z")
}

/// `2026-11-15 05:30`, local time.
pub fn to_minute(at: Timestamp) -> String {
    written(at, "%Y-%m-%d %H:%M")
}

/// `2026-11-15`, local time.
pub fn to_day(at: Timestamp) -> String {
    written(at, "%Y-%m-%d")
}

fn written(at: Timestamp, format: &str) -> String {
    // A stored number may be anything.
    let local = jiff::Timestamp::from_microsecond(at.0).map(|at| at.to_zoned(here()));
    local.map_or_else(|_| at.to_string(), |local| local.strftime(format).to_string())
}

/// Name of the local time zone: `Europe/Berlin`, or its abbreviation.
pub fn zone() -> String {
    let abbreviation = || now().strftime("%Z").to_string();
    here().iana_name().map_or_else(abbreviation, |name| name.trim_start_matches("Etc/").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_people_write_them() {
        let now: Zoned = "2026-11-17T15:00:30+01:00[Europe/Berlin]".parse().unwrap();
        for (text, meant) in [
            ("2026-01-01", "2026-01-01T00:00:00+01:00"),
            ("2026-07-01", "2026-07-01T00:00:00+02:00"),
            ("2026-07", "2026-07-01T00:00:00+02:00"),
            ("2026-01-31 14:30", "2026-01-31T14:30:00+01:00"),
            ("2026-01-31T14:30:05", "2026-01-31T14:30:05+01:00"),
            ("2026-01-31T14:30:00Z", "2026-01-31T14:30:00Z"),
            ("14:30", "2026-11-17T14:30:00+01:00"),
            ("now", "2026-11-17T15:00:30+01:00"),
            ("Today", "2026-11-17T00:00:00+01:00"),
            ("yesterday", "2026-11-16T00:00:00+01:00"),
            ("7d", "2026-11-10T15:00:30+01:00"),
            ("2w", "2026-11-03T15:00:30+01:00"),
            ("36h", "2026-11-16T03:00:30+01:00"),
            ("90m", "2026-11-17T13:30:30+01:00"),
            ("2 weeks ago", "2026-11-03T15:00:30+01:00"),
            ("3 months", "2026-08-17T15:00:30+02:00"),
            ("last week", "2026-11-10T00:00:00+01:00"),
            ("this week", "2026-11-16T00:00:00+01:00"),
            ("last month", "2026-10-17T00:00:00+02:00"),
            ("this month", "2026-11-01T00:00:00+01:00"),
            ("last year", "2025-11-17T00:00:00+01:00"),
            ("1y", "2025-11-17T15:00:30+01:00"),
        ] {
            let meant: Timestamp = meant.parse().unwrap();
            assert_eq!(read(text, &now), Some(meant), "{text}");
        }
        for (text, meant) in [
            ("30d", "2026-12-17T15:00:30+01:00"),
            ("2h", "2026-11-17T17:00:30+01:00"),
            ("in 2 weeks", "2026-12-01T15:00:30+01:00"),
            ("tomorrow", "2026-11-18T00:00:00+01:00"),
            ("2027-01-01", "2027-01-01T00:00:00+01:00"),
            ("16:30", "2026-11-17T16:30:00+01:00"),
            ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            let meant: Timestamp = meant.parse().unwrap();
            assert_eq!(read_ahead(text, &now), Some(meant), "{text}");
        }
        for wrong in ["", "soon", "in", "-2h", "99999999999999999999d"] {
            assert_eq!(read_ahead(wrong, &now), None, "{wrong}");
        }
        for wrong in ["", "soon", "-7d", "7", "2026-13-01", "32:10", "ago", "d", "99999999999999999999d"] {
            assert_eq!(read(wrong, &now), None, "{wrong}");
        }
    }
}
