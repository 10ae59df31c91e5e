//! Formatting of measurements.

use everturn_formats::render::thousands;
use std::time::Duration;

/// Measurements of one thing, in no order.
#[derive(Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    pub fn push_time(&mut self, time: Duration) {
        self.push(time.as_secs_f64());
    }

    pub fn extend(&mut self, more: &Samples) {
        self.0.extend_from_slice(&more.0);
    }

    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The quantile of the samples; NaN if there are none.
    pub fn at(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1) as f64;
        sorted.get((last * part).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// The ratio of these to those, round by round.
    pub fn over(&self, other: &Samples) -> Samples {
        Samples(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }
}

/// `12,345/s`
pub fn rate(per_second: f64) -> String {
    format!("{}/s", count(per_second))
}

/// `12,345`
pub fn count(number: f64) -> String {
    thousands(number.round() as u64)
}

/// `870 µs`, `1.25 ms`
pub fn time(seconds: f64) -> String {
    match seconds * 1e6 {
        us if us < 1000.0 => format!("{us:.0} µs"),
        us if us < 100_000.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.0} ms", us / 1e3),
    }
}

/// `312 B`, `4.2 MiB`
pub fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1024.0 => format!("{b:.0} B"),
        b if b < 1024.0 * 1024.0 => format!("{:.1} KiB", b / 1024.0),
        b => format!("{:.1} MiB", b / (1024.0 * 1024.0)),
    }
}
