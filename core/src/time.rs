//! A point in time: microseconds since 1970, UTC, written as RFC 3339. It is always passed in as an argument.

use crate::Error;
use jiff::SignedDuration;
use jiff::civil::{DateTime, datetime};
use jiff::fmt::temporal::Pieces;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

const EPOCH: DateTime = datetime(1970, 1, 1, 0, 0, 0, 0);

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Whole milliseconds, for a ULID.
    pub fn millis(self) -> u64 {
        u64::try_from(self.0.div_euclid(1000)).unwrap_or(0)
    }

    /// Refuses a time that RFC 3339 cannot express: it could not be read back from a file.
    pub fn check(self) -> Result<(), Error> {
        match self.in_utc() {
            Some(_) => Ok(()),
            None => Err(Error::invalid(
                "time.out_of_range",
                format!("{} µs is not a time between the years -9999 and 9999", self.0),
            )),
        }
    }

    fn in_utc(self) -> Option<DateTime> {
        EPOCH.checked_add(SignedDuration::from_micros(self.0)).ok()
    }

    /// The time this many seconds later, saturating.
    pub fn plus_s(self, seconds: u64) -> Timestamp {
        let us = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        Timestamp(self.0.saturating_add(us))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A stored number may be anything; one outside the range of RFC 3339 is shown as the nearest limit.
        let edge = if self.0 < 0 { DateTime::MIN } else { DateTime::MAX };
        write!(f, "{:.6}Z", self.in_utc().unwrap_or(edge))
    }
}

impl FromStr for Timestamp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = text.parse::<jiff::Timestamp>().ok().map(|at| Timestamp(at.as_microsecond()));
        parsed.or_else(|| at_the_edge(text)).ok_or_else(|| {
            Error::invalid(
                "time.malformed",
                format!("{:?} is not an RFC 3339 time such as 2026-04-27T14:30:00Z", crate::id::clip(text)),
            )
        })
    }
}

/// A time in the first or last hours of all years, which [`jiff::Timestamp`] leaves for time zones.
fn at_the_edge(text: &str) -> Option<Timestamp> {
    let pieces = Pieces::parse(text).ok()?;
    let said = pieces.date().to_datetime(pieces.time()?).duration_since(EPOCH);
    let offset = SignedDuration::from_secs(i64::from(pieces.to_numeric_offset()?.seconds()));
    let at = Timestamp(i64::try_from(said.checked_sub(offset)?.as_micros()).ok()?);
    let plain = jiff::Timestamp::MIN.as_microsecond()..=jiff::Timestamp::MAX.as_microsecond();
    (!plain.contains(&at.0) && at.in_utc().is_some()).then_some(at)
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Timestamp {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_with_six_digits_in_utc() {
        let t: Timestamp = "2026-04-27T16:30:00.5+02:00".parse().unwrap();
        assert_eq!(t.to_string(), "2026-04-27T14:30:00.500000Z");
        assert_eq!(t.to_string().parse::<Timestamp>().unwrap(), t);
        assert!("yesterday".parse::<Timestamp>().is_err());
        for edge in [i64::MIN, i64::MAX, 0] {
            let text = Timestamp(edge).to_string();
            assert_eq!(text.parse::<Timestamp>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn every_year_of_four_digits_is_a_time() {
        for (text, written) in [
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000000Z"),
            ("1969-12-31T23:59:59.25Z", "1969-12-31T23:59:59.250000Z"),
            ("9999-12-30T22:00:01Z", "9999-12-30T22:00:01.000000Z"),
            ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
            ("9999-12-31T23:59:59+02:00", "9999-12-31T21:59:59.000000Z"),
        ] {
            let at: Timestamp = text.parse().unwrap();
            assert_eq!(at.to_string(), written);
            assert_eq!(written.parse::<Timestamp>().unwrap(), at);
            at.check().unwrap();
        }
        for text in
            ["9999-12-31T23:59:59-01:00", "10000-01-01T00:00:00Z", "9999-12-31", "9999-12-31T23:59:59"]
        {
            assert_eq!(text.parse::<Timestamp>().unwrap_err().code(), "time.malformed", "{text}");
        }
        assert_eq!(Timestamp(i64::MIN).check().unwrap_err().code(), "time.out_of_range");
    }
}
