//! Preview of an import.

use super::find::{Input, Inputs, is_standard_input};
use crate::args::Args;
use crate::output::{self, Failure};
use crate::show;
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_formats::agents::{self, EntryContent, Opened};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Content of one folder in one format.
#[derive(Default, Serialize)]
struct Source {
    place: String,
    format: String,
    files: u64,
    /// Unknown for Everturn's own files before they are imported.
    conversations: u64,
    turns: u64,
    bytes: u64,
    #[serde(skip)]
    ids: HashSet<ConversationId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

pub fn run(args: &Args, found: &Inputs) -> Result<(), Failure> {
    let mut sources: BTreeMap<(String, String), Source> = BTreeMap::new();
    let bar = output::progress(found.files.iter().map(|file| file.bytes).sum(), "bytes");
    for file in &found.files {
        let (counted, problem) = match open(file) {
            Ok(source) => count(bar.wrap_read(source)),
            Err(error) => (Source { format: "unreadable".into(), ..Source::default() }, Some(error)),
        };
        let key = (file.place.clone(), counted.format.clone());
        let place = sources.entry(key).or_insert_with(|| Source {
            place: file.place.clone(),
            format: counted.format.clone(),
            ..Source::default()
        });
        place.files += 1;
        place.turns += counted.turns;
        place.bytes += file.bytes;
        place.ids.extend(counted.ids);
        place.conversations = place.ids.len() as u64;
        place.problems.extend(problem.map(|problem| format!("{}: {problem}", file.path.display())));
    }
    bar.finish_and_clear();
    let sources: Vec<Source> = sources.into_values().collect();
    if args.json {
        output::json_list(&sources, None)?;
    } else {
        sources.iter().try_for_each(|source| output::text(source.text()))?;
        if let Some(text) = found.nothing() {
            output::text(text)?;
        }
    }
    if sources.iter().all(|source| source.problems.is_empty()) { Ok(()) } else { Err(Failure::Reported) }
}

fn open(file: &Input) -> Result<Box<dyn std::io::Read>, Error> {
    if is_standard_input(&file.path) {
        return Ok(Box::new(std::io::stdin()));
    }
    let cannot = |e: std::io::Error| Error::invalid("file.cannot_open", format!("cannot open it: {e}"));
    Ok(Box::new(File::open(&file.path).map_err(cannot)?))
}

/// Counts the content of a file, as far as it can be read.
fn count(source: impl std::io::Read) -> (Source, Option<Error>) {
    let mut counted = Source::default();
    let problem = read(BufReader::new(source), &mut counted).err();
    (counted, problem)
}

fn read(source: impl BufRead, counted: &mut Source) -> Result<(), Error> {
    let mut reader = match agents::open(source, None)? {
        Opened::Agent(reader) => reader,
        Opened::Other(head, _) => {
            let text = String::from_utf8_lossy(&head);
            let ours = text.contains("\"session_start\"") || text.contains("\"_type\"");
            counted.format = if ours { "everturn" } else { "unknown" }.into();
            return ours.then_some(()).ok_or_else(|| agents::unknown(&head));
        }
    };
    counted.format = reader.format().name().into();
    let result = reader.by_ref().try_for_each(|entry| {
        counted.turns += u64::from(matches!(entry?.step, EntryContent::Turn(_)));
        Ok(())
    });
    counted.ids.extend(reader.threads().iter().map(|thread| thread.id));
    result
}

impl Source {
    fn text(&self) -> String {
        let mut out = format!(
            "{}  {}: {}, {}, {}, {} bytes",
            self.format,
            self.place,
            show::count(self.files, "file"),
            show::count(self.conversations, "conversation"),
            show::count(self.turns, "turn"),
            self.bytes,
        );
        self.problems.iter().for_each(|problem| out += &format!("\n  {problem}"));
        out
    }
}
