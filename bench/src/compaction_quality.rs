//! Quality of extracted checkpoints: precision and recall of their lists on labelled sessions.
//!
//! The sessions are in `bench/data/compaction-quality`; its `README.md` defines the labels and every measure
//! used here.

use crate::Result;
use crate::report::Row;
use everturn_core::id::TurnId;
use everturn_core::message;
use everturn_core::time::Timestamp;
use everturn_views::compaction::{Candidate, Checkpoint, extract, render};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashSet;
use std::ops::AddAssign;
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/compaction-quality");

/// Required precision of all lists together.
const PRECISION_MIN: f64 = 0.8;
/// Required recall of all lists together.
const RECALL_MIN: f64 = 0.7;
/// Maximum share of the text that is lists of identifiers and files.
const SHARE_MAX: f64 = 0.35;

/// Prefix of an entry that summarizes tool calls.
const RAN: &str = "ran ";

#[derive(Deserialize)]
struct LabelledSession {
    keep_last: usize,
    turns: Vec<LabelledTurn>,
    labels: Labels,
}

#[derive(Deserialize)]
struct LabelledTurn {
    actor: Option<String>,
    message: Value,
}

/// Substrings in lower case, any of which identifies an entry.
type Alternatives = Vec<String>;

#[derive(Deserialize)]
struct Labels {
    goal: Alternatives,
    files: Vec<FileLabel>,
    must_not: Vec<Forbidden>,
    may: May,
    #[serde(flatten)]
    texts: TextLabels,
}

#[derive(Deserialize)]
struct FileLabel {
    path: String,
    edited: bool,
    /// Other accepted paths.
    #[serde(default)]
    spellings: Vec<String>,
}

impl FileLabel {
    fn paths(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.path).chain(&self.spellings).map(|path| path.to_lowercase())
    }
}

/// A text that no entry of a list may contain.
#[derive(Deserialize)]
struct Forbidden {
    list: ListName,
    text: String,
    reason: String,
}

/// Entries that are neither right nor wrong.
#[derive(Deserialize, Default)]
#[serde(default)]
struct May {
    files: Vec<String>,
    #[serde(flatten)]
    texts: TextLabels,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TextLabels {
    constraints: Vec<Alternatives>,
    decisions: Vec<Alternatives>,
    discoveries: Vec<Alternatives>,
    done: Vec<Alternatives>,
    open: Vec<Alternatives>,
    identifiers: Vec<Alternatives>,
}

impl TextLabels {
    fn of(&self, list: ListName) -> &[Alternatives] {
        match list {
            ListName::Constraints => &self.constraints,
            ListName::Decisions => &self.decisions,
            ListName::Discoveries => &self.discoveries,
            ListName::Done => &self.done,
            ListName::Open => &self.open,
            ListName::Identifiers => &self.identifiers,
            ListName::Files => &[],
        }
    }
}

/// A list of a checkpoint, by the name of its labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ListName {
    Constraints,
    Decisions,
    Discoveries,
    Done,
    Open,
    Identifiers,
    Files,
}

impl ListName {
    const ALL: [ListName; 7] = [
        ListName::Constraints,
        ListName::Decisions,
        ListName::Discoveries,
        ListName::Done,
        ListName::Open,
        ListName::Identifiers,
        ListName::Files,
    ];

    fn name(self) -> &'static str {
        match self {
            ListName::Constraints => "constraints",
            ListName::Decisions => "decisions",
            ListName::Discoveries => "discoveries",
            ListName::Done => "done",
            ListName::Open => "open",
            ListName::Identifiers => "identifiers",
            ListName::Files => "files",
        }
    }

    /// Lists in which an entry may stand as well, this one included: one sentence often belongs to several.
    fn neighbours(self) -> &'static [ListName] {
        use ListName::{Constraints, Decisions, Discoveries, Done, Files, Identifiers, Open};
        match self {
            Constraints => &[Constraints, Decisions],
            Decisions => &[Constraints, Decisions, Discoveries, Done],
            Discoveries | Done => &[Decisions, Discoveries, Done],
            Open => &[Open],
            Identifiers => &[Identifiers],
            Files => &[Files],
        }
    }

    /// Its entries, in lower case.
    fn entries(self, checkpoint: &Checkpoint) -> Vec<String> {
        let list = match self {
            ListName::Constraints => &checkpoint.user_constraints,
            ListName::Decisions => &checkpoint.decisions,
            ListName::Discoveries => &checkpoint.discoveries,
            ListName::Done => &checkpoint.completed_work,
            ListName::Open => &checkpoint.pending_work,
            ListName::Identifiers => &checkpoint.critical_identifiers,
            ListName::Files => &checkpoint.relevant_files,
        };
        let questions = if self == ListName::Open { &checkpoint.unresolved_questions[..] } else { &[] };
        list.iter().chain(questions).map(|entry| entry.to_lowercase()).collect()
    }

    /// Whether an entry of this list is meant by a text of a label.
    fn meets(self, entry: &str, text: &str) -> bool {
        match self {
            ListName::Files => entry == text,
            ListName::Identifiers => contains_word(entry, text),
            _ => entry.contains(text),
        }
    }
}

/// Whether a text contains a word, with no letter or digit directly before or behind it.
fn contains_word(text: &str, word: &str) -> bool {
    let joined = |a: Option<char>, b: Option<char>| {
        a.is_some_and(char::is_alphanumeric) && b.is_some_and(char::is_alphanumeric)
    };
    text.match_indices(word).any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + word.len()..]);
        !joined(before.chars().next_back(), word.chars().next())
            && !joined(word.chars().next_back(), behind.chars().next())
    })
}

/// Entries and labels of a list.
#[derive(Clone, Copy, Default)]
struct Tally {
    right: usize,
    wrong: usize,
    found: usize,
    labels: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.found += other.found;
        self.labels += other.labels;
    }
}

impl Tally {
    fn precision(&self) -> f64 {
        share(self.right, self.right + self.wrong)
    }

    fn recall(&self) -> f64 {
        share(self.found, self.labels)
    }

    fn row(&self, what: String) -> Row {
        Row::new(
            what,
            format!("precision {:.2}, recall {:.2}", self.precision(), self.recall()),
            format!("{} entries, {} labels", self.right + self.wrong, self.labels),
        )
    }
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

/// The comparison of one checkpoint, or the sum of many, with the labels.
#[derive(Default)]
struct Comparison {
    lists: [Tally; ListName::ALL.len()],
    /// Sessions whose goal is right.
    goals: usize,
    /// Pairs of an edited and another file, those in order first.
    ordered: usize,
    pairs: usize,
    /// Bytes of identifiers and files, and of the rendered checkpoint.
    list_bytes: usize,
    bytes: usize,
    /// Entries that meet a `must_not`.
    forbidden: Vec<String>,
    /// Wrong entries and missing labels.
    remarks: Vec<String>,
}

impl Comparison {
    fn of(checkpoint: &Checkpoint, labels: &Labels) -> Comparison {
        let text = render(checkpoint);
        let names = checkpoint.critical_identifiers.iter().chain(&checkpoint.relevant_files);
        let goal = checkpoint.goal.to_lowercase();
        let mut comparison = Comparison {
            goals: usize::from(labels.goal.iter().any(|label| goal.contains(label))),
            list_bytes: names.map(|name| name.len() + ", ".len()).sum(),
            bytes: text.len(),
            ..Comparison::default()
        };
        let text = text.to_lowercase();
        for list in ListName::ALL {
            comparison.judge_entries(list, checkpoint, labels);
            comparison.look_for_labels(list, checkpoint, labels, &goal, &text);
        }
        comparison.compare_order(checkpoint, labels);
        comparison
    }

    fn judge_entries(&mut self, list: ListName, checkpoint: &Checkpoint, labels: &Labels) {
        let meets = |entry: &str, texts: &TextLabels| {
            let neighbours = list.neighbours().iter().flat_map(|list| texts.of(*list));
            neighbours.flatten().any(|text| list.meets(entry, text))
        };
        let mut known_files = HashSet::new();
        for entry in list.entries(checkpoint) {
            let forbidden = labels
                .must_not
                .iter()
                .find(|forbidden| forbidden.list == list && list.meets(&entry, &forbidden.text));
            if let Some(Forbidden { text, reason, .. }) = forbidden {
                self.lists[list as usize].wrong += 1;
                self.forbidden.push(format!("{} must not have {text:?}: {reason}", list.name()));
                continue;
            }
            let right = match list {
                ListName::Files => labels
                    .files
                    .iter()
                    .find(|file| file.paths().any(|path| path == entry))
                    .is_some_and(|file| known_files.insert(file.path.as_str())),
                ListName::Done => meets(&entry, &labels.texts) || names_edited(&entry, labels),
                _ => meets(&entry, &labels.texts),
            };
            let neutral = match list {
                ListName::Files => labels.may.files.iter().any(|path| path.to_lowercase() == entry),
                _ => meets(&entry, &labels.may.texts),
            };
            if right {
                self.lists[list as usize].right += 1;
            } else if !neutral {
                self.lists[list as usize].wrong += 1;
                self.remarks.push(format!("wrong in {}: {entry}", list.name()));
            }
        }
    }

    fn look_for_labels(
        &mut self,
        list: ListName,
        checkpoint: &Checkpoint,
        labels: &Labels,
        goal: &str,
        text: &str,
    ) {
        let entries: Vec<String> =
            list.neighbours().iter().flat_map(|list| list.entries(checkpoint)).collect();
        let mut count = |label: &dyn std::fmt::Debug, found: bool| {
            let tally = &mut self.lists[list as usize];
            tally.labels += 1;
            tally.found += usize::from(found);
            if !found {
                self.remarks.push(format!("missing in {}: {label:?}", list.name()));
            }
        };
        if list == ListName::Files {
            for file in &labels.files {
                count(&file.path, file.paths().any(|path| entries.contains(&path)));
            }
        }
        for alternatives in labels.texts.of(list) {
            let found = alternatives.iter().any(|label| match list {
                // A sentence keeps a name as well as a list does.
                ListName::Identifiers => contains_word(text, label),
                _ => goal.contains(label) || entries.iter().any(|entry| entry.contains(label)),
            });
            count(alternatives, found);
        }
    }

    fn compare_order(&mut self, checkpoint: &Checkpoint, labels: &Labels) {
        let entries = ListName::Files.entries(checkpoint);
        let places = |edited: bool| -> Vec<usize> {
            let files = labels.files.iter().filter(|file| file.edited == edited);
            files
                .filter_map(|file| entries.iter().position(|entry| file.paths().any(|path| path == *entry)))
                .collect()
        };
        let (edited, others) = (places(true), places(false));
        self.pairs = edited.len() * others.len();
        self.ordered =
            edited.iter().map(|edited| others.iter().filter(|other| edited < *other).count()).sum();
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        for list in self.lists {
            total += list;
        }
        total
    }

    fn list_share(&self) -> f64 {
        share(self.list_bytes, self.bytes)
    }

    fn add(&mut self, other: Comparison) {
        for (list, more) in self.lists.iter_mut().zip(other.lists) {
            *list += more;
        }
        self.goals += other.goals;
        self.ordered += other.ordered;
        self.pairs += other.pairs;
        self.list_bytes += other.list_bytes;
        self.bytes += other.bytes;
        self.forbidden.extend(other.forbidden);
    }
}

/// Whether an entry about tool calls names a file that was edited.
fn names_edited(entry: &str, labels: &Labels) -> bool {
    let mut edited = labels.files.iter().filter(|file| file.edited);
    entry.starts_with(RAN) && edited.any(|file| file.paths().any(|path| contains_word(entry, &path)))
}

/// Compares the checkpoint of every session with its labels. `explain` also prints every wrong entry and every
/// missing label.
pub fn run(explain: bool) -> Result<Vec<Row>> {
    let (mut rows, mut all) = (Vec::new(), Comparison::default());
    let sessions = sessions()?;
    for (name, session) in &sessions {
        let comparison = Comparison::of(&checkpoint(session)?, &session.labels);
        let remarks = comparison.remarks.iter().filter(|_| explain);
        for line in comparison.forbidden.iter().chain(remarks) {
            eprintln!("{name}: {line}");
        }
        let mut row = comparison.total().row(name.clone());
        row.measured.push_str(&format!(
            ", {:.0} % lists, {} forbidden",
            100.0 * comparison.list_share(),
            comparison.forbidden.len()
        ));
        rows.push(row);
        all.add(comparison);
    }
    for (list, tally) in ListName::ALL.into_iter().zip(all.lists) {
        rows.push(tally.row(format!("all sessions, {}", list.name())));
    }
    rows.extend(totals(&all, sessions.len()));
    Ok(rows)
}

fn totals(all: &Comparison, sessions: usize) -> Vec<Row> {
    let total = all.total();
    let row = |what: &str, measured: String, against: String| {
        Row::new(format!("all sessions, {what}"), measured, against)
    };
    vec![
        row(
            "precision",
            format!("{:.2}", total.precision()),
            format!("{} entries", total.right + total.wrong),
        )
        .bar(&format!("≥ {PRECISION_MIN}"), total.precision() >= PRECISION_MIN),
        row("recall", format!("{:.2}", total.recall()), format!("{} labels", total.labels))
            .bar(&format!("≥ {RECALL_MIN}"), total.recall() >= RECALL_MIN),
        row(
            "identifiers and files in the text",
            format!("{:.0} %", 100.0 * all.list_share()),
            format!("{} bytes", all.bytes),
        )
        .bar(&format!("≤ {:.0} %", 100.0 * SHARE_MAX), all.list_share() <= SHARE_MAX),
        row("forbidden entries", all.forbidden.len().to_string(), String::new())
            .bar("0", all.forbidden.is_empty()),
        row(
            "edited files before others",
            format!("{:.2}", share(all.ordered, all.pairs)),
            format!("{} pairs", all.pairs),
        ),
        row("goals", all.goals.to_string(), format!("{sessions} sessions")),
    ]
}

/// The checkpoint of all turns but the last few.
fn checkpoint(session: &LabelledSession) -> Result<Checkpoint> {
    let covered = session.turns.len().saturating_sub(session.keep_last);
    let turns = session.turns[..covered].iter().zip(1..).map(|(turn, seq)| candidate(turn, seq));
    Ok(extract(None, &turns.collect::<Result<Vec<_>>>()?))
}

fn candidate(turn: &LabelledTurn, seq: u64) -> Result<Candidate<'_>> {
    Ok(Candidate {
        turn: TurnId::from_bytes(u128::from(seq).to_be_bytes()),
        seq,
        role: message::role(&turn.message)?,
        actor: turn.actor.as_deref(),
        at: Timestamp::default().plus_s(60 * seq),
        message: Some(&turn.message),
        tokens: 0,
    })
}

/// The labelled sessions with their names, in the order of these.
fn sessions() -> Result<Vec<(String, LabelledSession)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(FOLDER).map_err(|error| format!("{FOLDER}: {error}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    files.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<(String, LabelledSession)> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let session = serde_json::from_str(&std::fs::read_to_string(path)?)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((name, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_of_the_labelled_sessions_are_worth_reading() {
        let mut all = Comparison::default();
        for (_, session) in sessions().unwrap() {
            all.add(Comparison::of(&checkpoint(&session).unwrap(), &session.labels));
        }
        let total = all.total();
        assert!(total.precision() >= PRECISION_MIN, "precision {}", total.precision());
        assert!(total.recall() >= RECALL_MIN, "recall {}", total.recall());
        assert!(all.list_share() <= SHARE_MAX, "share of lists {}", all.list_share());
    }
}
