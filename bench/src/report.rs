//! The report: one row for each number, as a Markdown table that is also readable as text.

use crate::figures::Samples;

pub struct Row {
    pub what: String,
    pub measured: String,
    /// Baseline measured in the same run.
    pub against: String,
    /// Median and range, if there is a baseline.
    ratio: Option<Ratio>,
    /// Target, if any, and the verdict.
    bar: Option<(String, &'static str)>,
}

struct Ratio {
    median: f64,
    range: Option<(f64, f64)>,
}

impl Row {
    pub fn new(what: impl Into<String>, measured: impl Into<String>, against: impl Into<String>) -> Row {
        Row { what: what.into(), measured: measured.into(), against: against.into(), ratio: None, bar: None }
    }

    /// Adds ratios of many rounds.
    pub fn ratios(self, ratios: &Samples) -> Row {
        let range = Some((ratios.at(0.1), ratios.at(0.9)));
        Row { ratio: Some(Ratio { median: ratios.median(), range }), ..self }
    }

    /// Adds a ratio without noise.
    pub fn ratio(self, ratio: f64) -> Row {
        Row { ratio: Some(Ratio { median: ratio, range: None }), ..self }
    }

    pub fn at_least(self, bar: f64) -> Row {
        let verdict = self.verdict(|ratio| ratio >= bar);
        Row { bar: Some((format!("≥ {bar} ×"), verdict)), ..self }
    }

    pub fn at_most(self, bar: f64) -> Row {
        let verdict = self.verdict(|ratio| ratio <= bar);
        Row { bar: Some((format!("≤ {bar} ×"), verdict)), ..self }
    }

    /// Sets a bar that is not about the ratio.
    pub fn bar(self, bar: &str, met: bool) -> Row {
        Row { bar: Some((bar.into(), if met { "ok" } else { "missed" })), ..self }
    }

    /// Marks the row as invalid, because the machine had other load.
    pub fn disturbed(self) -> Row {
        Row { bar: self.bar.map(|(bar, _)| (bar, "disturbed")), ..self }
    }

    /// If some rounds meet the bar and others do not, the result is within the noise, which is reported as
    /// well.
    fn verdict(&self, meets: impl Fn(f64) -> bool) -> &'static str {
        let Some(Ratio { median, range }) = &self.ratio else { return "not measured" };
        let sure = range.is_none_or(|(low, high)| meets(low) == meets(high));
        match (meets(*median), sure) {
            (true, true) => "ok",
            (true, false) => "ok, unsure",
            (false, true) => "missed",
            (false, false) => "missed, unsure",
        }
    }

    fn cells(&self) -> [String; 6] {
        let ratio = match &self.ratio {
            Some(Ratio { median, range: Some((low, high)) }) => {
                format!("{median:.2} × ({low:.2} to {high:.2})")
            }
            Some(Ratio { median, range: None }) => format!("{median:.2} ×"),
            None => String::new(),
        };
        let (bar, verdict) = match &self.bar {
            Some((bar, verdict)) => (bar.clone(), *verdict),
            None => (String::new(), ""),
        };
        [self.what.clone(), self.measured.clone(), self.against.clone(), ratio, bar, verdict.into()]
    }
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let head = ["what", "measured", "against", "ratio", "bar", ""].map(String::from);
    let cells: Vec<[String; 6]> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut out = String::new();
    for (line, row) in cells.iter().enumerate() {
        for (cell, width) in row.iter().zip(widths) {
            out.push_str(&format!("| {cell:width$} "));
        }
        out.push_str("|\n");
        if line == 0 {
            for width in widths {
                out.push_str(&format!("|{}", "-".repeat(width + 2)));
            }
            out.push_str("|\n");
        }
    }
    out
}
