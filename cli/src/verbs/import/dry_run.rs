//! Preview of an import.

use super::find::Inputs;
use super::{joined, open, shown};
use crate::args::Args;
use crate::output::{self, Failure};
use crate::show;
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_formats::agents::{self, EntryContent, Opened};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

/// Content of one folder in one format.
#[derive(Default, Serialize)]
pub struct Source {
    place: String,
    format: String,
    files: u64,
    /// Unknown for Everturn's own files before they are imported.
    conversations: u64,
    turns: u64,
    bytes: u64,
    #[serde(skip)]
    pub turns_of: BTreeMap<ConversationId, u64>,
    /// Turns, by conversation and name: several files may have the same.
    #[serde(skip)]
    distinct: HashSet<(ConversationId, u64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

pub fn run(args: &Args, found: Inputs) -> Result<(), Failure> {
    let mut sources: BTreeMap<(String, String), Source> = BTreeMap::new();
    let bar = output::progress(found.files.iter().map(|file| file.bytes).sum(), "bytes");
    let nothing = found.nothing();
    for files in joined::join(found.files) {
        let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        let (counted, problem) = match open(&paths) {
            Ok(source) => count(bar.wrap_read(source)),
            Err(error) => (Source { format: "unreadable".into(), ..Source::default() }, Some(error)),
        };
        let folder = files.first().map(|file| file.place.clone()).unwrap_or_default();
        let place = sources.entry((folder.clone(), counted.format.clone())).or_insert_with(|| Source {
            place: folder,
            format: counted.format.clone(),
            ..Source::default()
        });
        place.files += files.len() as u64;
        place.distinct.extend(counted.distinct);
        place.turns = place.distinct.len() as u64;
        place.bytes += files.iter().map(|file| file.bytes).sum::<u64>();
        place.turns_of.extend(counted.turns_of);
        place.conversations = place.turns_of.len() as u64;
        place.problems.extend(problem.map(|problem| format!("{}: {problem}", shown(&paths))));
    }
    bar.finish_and_clear();
    let sources: Vec<Source> = sources.into_values().collect();
    if args.json {
        output::json_list(&sources, None)?;
    } else {
        sources.iter().try_for_each(|source| output::text(source.text()))?;
        if let Some(text) = nothing {
            output::text(text)?;
        }
    }
    if sources.iter().all(|source| source.problems.is_empty()) { Ok(()) } else { Err(Failure::Reported) }
}

/// Counts the content of a file, as far as it can be read.
pub fn count(source: impl std::io::Read) -> (Source, Option<Error>) {
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
    let mut told: BTreeMap<usize, u64> = BTreeMap::new();
    let result = loop {
        let entry = match reader.next() {
            None => break Ok(()),
            Some(Err(error)) => break Err(error),
            Some(Ok(entry)) => entry,
        };
        let is_turn = matches!(entry.step, EntryContent::Turn(_));
        let is_kept = matches!(&entry.step, EntryContent::Turn(said) if said.is_oversized());
        let turns = u64::from(is_turn && !is_kept);
        if turns > 0
            && let Some(thread) = reader.threads().get(entry.thread)
        {
            counted.distinct.insert((thread.id, entry.name));
        }
        // As in an import, a thread without a turn is no conversation, unless it goes on from another.
        if is_turn || reader.threads().get(entry.thread).is_some_and(|thread| thread.branch.is_some()) {
            *told.entry(entry.thread).or_default() += turns;
        }
    };
    counted.turns_of = told.into_iter().map(|(at, turns)| (reader.threads()[at].id, turns)).collect();
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
