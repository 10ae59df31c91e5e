//! Writing answers and errors.

use everturn_core::Error;
use everturn_core::error::code;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Reason for ending a command early.
pub enum Failure {
    Error(Error),
    /// An error that was printed already.
    Reported,
    /// The reader of the output is gone.
    PipeClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        if error.is(code::PIPE_CLOSED) { Failure::PipeClosed } else { Failure::Error(error) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            _ => Failure::Error(Error::internal("output", format!("cannot write the output: {error}"))),
        }
    }
}

/// Writes an error for people, or as JSON.
pub fn error(error: &Error, json: bool) {
    let mut err = anstream::stderr().lock();
    // If standard error cannot be written, the failure cannot be reported.
    let _ = if json {
        let value = serde_json::json!({"error": {"code": error.code(), "message": error.text()}});
        writeln!(err, "{value}")
    } else {
        let red = anstyle::AnsiColor::Red.on_default().bold();
        writeln!(err, "{red}error:{red:#} {error}")
    };
}

pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

pub fn json_list(data: &impl Serialize, next: Option<String>) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct List<'a, T> {
        data: &'a T,
        next: Option<String>,
    }
    json(&List { data, next })
}

pub fn text(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes text without a line break, to be continued.
pub fn piece(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// A progress bar on standard error; hidden if that is not a terminal.
pub fn progress(total: u64, unit: &str) -> indicatif::ProgressBar {
    if !io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(total);
    let template = format!("{{bar:30}} {{human_pos}}/{{human_len}} {unit}, {{per_sec:0}}, {{eta}} left");
    if let Ok(style) = indicatif::ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}
