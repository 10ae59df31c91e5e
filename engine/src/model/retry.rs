//! Retries of requests.

use super::Limits;
use crate::world::{SystemWorld, World};
use everturn_core::time::Timestamp;
use everturn_formats::wire::Failure;
use reqwest::header::HeaderMap;
use std::time::{Duration, UNIX_EPOCH};

/// An attempt that failed.
pub struct Fault {
    pub failure: Failure,
    /// Whether nothing of the reply was seen and another attempt may help.
    pub again: bool,
    /// Wait that the server asks for.
    pub wait: Option<Duration>,
}

impl Fault {
    /// A fault that is not retried.
    pub fn last(failure: Failure) -> Fault {
        Fault { failure, again: false, wait: None }
    }
}

/// Counts the attempts at one request.
pub struct Tries<'a> {
    limits: &'a Limits,
    made: u32,
}

impl<'a> Tries<'a> {
    pub fn new(limits: &'a Limits) -> Tries<'a> {
        Tries { limits, made: 0 }
    }

    /// Waits until the next attempt is due, or returns the failure if there is none.
    pub async fn again(&mut self, fault: Fault) -> Result<(), Failure> {
        self.made += 1;
        let mut failure = fault.failure;
        if !fault.again || self.made >= self.limits.attempts {
            if let Some(wait) = fault.wait {
                failure.said = format!("{} (it asks to wait {} s)", failure.said, wait.as_secs_f64().ceil());
            }
            return Err(failure);
        }
        let wait = match fault.wait {
            Some(wait) => wait.min(self.limits.backoff_max),
            None => backoff(self.limits, self.made, chance()),
        };
        tracing::debug!(attempt = self.made, wait_ms = wait.as_millis(), class = ?failure.class, "retrying the model request");
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// A random number from 0 to 1. Without randomness there is no jitter.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    SystemWorld.fill(&mut bytes).map_or(1.0, |()| f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}

fn backoff(limits: &Limits, made: u32, chance: f64) -> Duration {
    let doubled = limits.backoff_first.saturating_mul(2u32.saturating_pow(made.saturating_sub(1)));
    doubled.min(limits.backoff_max).mul_f64(0.5 + 0.5 * chance)
}

/// Wait that the server asks for: `retry-after-ms`, or `retry-after` in seconds or as a date.
pub fn wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    let seconds = match text("retry-after-ms").and_then(number) {
        Some(ms) => ms / 1000.0,
        None => {
            let after = text("retry-after")?;
            number(after).or_else(|| Some(until(after, now)?.as_secs_f64()))?
        }
    };
    Duration::try_from_secs_f64(seconds).ok()
}

/// Time until an HTTP date; zero if it has passed.
fn until(date: &str, now: Timestamp) -> Option<Duration> {
    let now = UNIX_EPOCH + Duration::from_micros(now.0.max(0) as u64);
    Some(httpdate::parse_http_date(date).ok()?.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&'static str, &str)]) -> Option<Duration> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        wait(&headers.collect(), "2026-10-21T07:27:30Z".parse().unwrap())
    }

    #[test]
    fn retry_after_is_read_as_seconds_milliseconds_and_date() {
        for (headers, expected) in [
            (vec![("retry-after", "7")], Some(7_000)),
            (vec![("retry-after", "0.5")], Some(500)),
            (vec![("retry-after-ms", "1234"), ("retry-after", "7")], Some(1_234)),
            (vec![("retry-after-ms", "soon"), ("retry-after", "7")], Some(7_000)),
            (vec![("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")], Some(30_000)),
            (vec![("retry-after", "Wed, 21 Oct 2026 07:00:00 GMT")], Some(0)),
            (vec![("retry-after", "Wed, 21 Okt 2026 07:28:00 GMT")], None),
            (vec![("retry-after", "-5")], None),
            (vec![("retry-after", "NaN")], None),
            (vec![("retry-after", "1e300")], None),
            (vec![("retry-after", "")], None),
            (vec![], None),
        ] {
            assert_eq!(asked(&headers), expected.map(Duration::from_millis), "{headers:?}");
        }
    }

    #[test]
    fn waits_double_up_to_the_longest_and_are_shortened_by_chance() {
        let limits = Limits {
            backoff_first: Duration::from_millis(100),
            backoff_max: Duration::from_millis(350),
            ..Limits::default()
        };
        let ms = |made, chance| backoff(&limits, made, chance).as_millis();
        assert_eq!([1, 2, 3, 4, 90].map(|made| ms(made, 1.0)), [100, 200, 350, 350, 350]);
        assert_eq!([1, 2, 3].map(|made| ms(made, 0.0)), [50, 100, 175]);
        assert!((0..100).all(|_| (0.0..=1.0).contains(&chance())));
    }
}
