//! A point in time: microseconds since 1970, UTC, written as RFC 3339. It is always passed in as an argument.

use crate::Error;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

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
        jiff::Timestamp::from_microsecond(self.0).map(drop).map_err(|_| {
            Error::invalid(
                "time.out_of_range",
                format!("{} µs is not a time between the years -9999 and 9999", self.0),
            )
        })
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
        let edge = if self.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        write!(f, "{:.6}", jiff::Timestamp::from_microsecond(self.0).unwrap_or(edge))
    }
}

impl FromStr for Timestamp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed: jiff::Timestamp = text.parse().map_err(|_| {
            Error::invalid(
                "time.malformed",
                format!("{:?} is not an RFC 3339 time such as 2026-04-27T14:30:00Z", crate::id::clip(text)),
            )
        })?;
        Ok(Timestamp(parsed.as_microsecond()))
    }
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
            assert!(!Timestamp(edge).to_string().is_empty());
        }
    }
}
