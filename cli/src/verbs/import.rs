//! `everturn import`

use crate::args::{Args, Import};
use crate::output::{self, Failure};
use crate::store::Store;
use crate::{open, show};
use everturn_core::Error;
use everturn_engine::Imported;
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// How much of a file is read at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// What happened to one file.
#[derive(Serialize)]
struct Report<'a> {
    path: &'a str,
    #[serde(flatten)]
    imported: Option<Imported>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub fn run(args: &Args, verb: &Import) -> Result<(), Failure> {
    let store = open::writing(args)?;
    let mut reports = Vec::new();
    // One bad file does not keep the others out.
    for path in &verb.paths {
        let (imported, error) = match one(&*store, path) {
            Ok(imported) => (Some(imported), None),
            Err(error) => (None, Some(error.to_string())),
        };
        reports.push(Report { path, imported, error });
    }
    if args.json {
        output::json_list(&reports, None)?;
    } else {
        reports.iter().try_for_each(|report| output::text(report.text()))?;
    }
    let clean =
        |report: &Report| report.imported.as_ref().is_some_and(|imported| imported.problems.is_empty());
    if reports.iter().all(clean) { Ok(()) } else { Err(Failure::Said) }
}

fn one(store: &dyn Store, path: &str) -> Result<Imported, Error> {
    if path == "-" {
        return store.import(&mut BufReader::new(std::io::stdin()));
    }
    let cannot = |e: std::io::Error| Error::invalid("file.cannot_open", format!("cannot open it: {e}"));
    if Path::new(path).is_dir() {
        return Err(Error::invalid("file.is_directory", "it is a directory; name the files in it"));
    }
    let file = File::open(path).map_err(cannot)?;
    let bar = output::progress(file.metadata().map_err(cannot)?.len(), "bytes");
    let imported = store.import(&mut BufReader::with_capacity(PIECE_BYTES, bar.wrap_read(file)));
    bar.finish_and_clear();
    imported
}

impl Report<'_> {
    fn text(&self) -> String {
        let Some(imported) = &self.imported else {
            let style = anstyle::AnsiColor::Red.on_default().bold();
            return format!(
                "{style}failed{style:#}  {}: {}",
                self.path,
                self.error.as_deref().unwrap_or_default()
            );
        };
        let mut out = format!(
            "{}  {} ({}): {} in the file, {} new",
            imported.conversation.id,
            self.path,
            imported.format,
            show::count(imported.events, "event"),
            imported.added,
        );
        imported.problems.iter().for_each(|problem| out += &format!("\n  {problem}"));
        out
    }
}
