//! The lists of a checkpoint: how they are merged from round to round, and what is dropped when they grow too
//! long.

use super::cues::{Cues, Group};
use super::extract::open_questions;
use super::files::Files;
use super::identifiers::{self, Name, Sort};
use super::prose::clip;
use super::spoken::Material;
use super::terms::Terms;
use super::tools::RAN;
use crate::compaction::Checkpoint;
use crate::compaction::limits::*;
use crate::compaction::plan::Candidate;
use crate::compaction::render::{LIST_OVERHEAD_BYTES, OVERHEAD_BYTES};
use std::collections::HashSet;

/// Adds entries that must not get lost to a model's reply.
///
/// It adds the identifiers of the covered turns and of the previous checkpoint that the reply mentions nowhere,
/// and the constraints and questions of the previous checkpoint that the reply omits although nothing in the
/// covered turns settles them. Then everything is brought within the [`limits`](crate::compaction::limits).
pub fn complete(checkpoint: &mut Checkpoint, previous: Option<&Checkpoint>, turns: &[Candidate<'_>]) {
    let material = Material::of(turns);
    let empty = Checkpoint::default();
    let previous = previous.unwrap_or(&empty);
    for (list, max) in lists(checkpoint).into_iter().zip(LIST_MAX) {
        let mut entries = std::mem::take(list);
        // Avoids comparing thousands of entries one by one.
        if entries.len() > 2 * max {
            entries.drain(max..entries.len() - max);
        }
        merge(list, entries.into_iter().map(|entry| one_line(&entry)).filter(|entry| !entry.is_empty()));
    }
    let said = Terms::of(&text_of(checkpoint));
    let is_said = |entry: &str| {
        let terms = entry_terms(entry);
        terms.names_within(&said) && terms.shared(&said) * 10 >= terms.len() * 6
    };
    let missing =
        previous.user_constraints.iter().filter(|entry| !is_said(entry)).cloned().collect::<Vec<_>>();
    restore(&mut checkpoint.user_constraints, missing);
    let missing = open_questions(&previous.unresolved_questions, &material);
    restore(
        &mut checkpoint.unresolved_questions,
        missing.into_iter().filter(|entry| !is_said(entry)).collect(),
    );
    for list in [&mut checkpoint.critical_identifiers, &mut checkpoint.relevant_files] {
        for name in list.iter_mut() {
            *name = one_line(name);
        }
        list.retain(|name| !name.is_empty() && name.len() <= IDENTIFIER_BYTES_MAX);
    }
    let files = Files::of(&material, &previous.relevant_files);
    let mut names = identifiers::names(&material.texts, &files);
    names.extend(files.relevant.iter().map(|file| Name { text: &file.path, score: file.score }));
    complete_names(checkpoint, previous, &names);
    fit(checkpoint);
}

/// Puts entries of earlier rounds back at the front.
fn restore(list: &mut Vec<String>, mut missing: Vec<String>) {
    missing.append(list);
    merge(list, missing);
}

fn complete_names(checkpoint: &mut Checkpoint, previous: &Checkpoint, names: &[Name<'_>]) {
    let answer = text_of(checkpoint);
    let mut said: HashSet<&str> = HashSet::new();
    identifiers::scan(&answer, |_, name| {
        said.insert(name);
    });
    let files: HashSet<&str> = checkpoint.relevant_files.iter().map(String::as_str).collect();
    let mut known = files.clone();
    known.extend(checkpoint.critical_identifiers.iter().map(String::as_str));
    known.extend(previous.critical_identifiers.iter().chain(&previous.relevant_files).map(String::as_str));
    let earlier = text_of(previous);
    let mut found: Vec<(&str, u32)> = Vec::new();
    identifiers::scan(&earlier, |sort, name| {
        if sort != Sort::Weak && !said.contains(name) && !known.contains(name) {
            found.push((name, 1));
        }
    });
    // Names listed by the model weigh more than those mentioned once.
    found.extend(checkpoint.critical_identifiers.iter().map(|name| (name.as_str(), 8)));
    let missing = names.iter().filter(|name| !said.contains(name.text) && !files.contains(name.text));
    found.extend(missing.map(|name| (name.text, name.score)));
    let files: Vec<(&str, u32)> = checkpoint.relevant_files.iter().map(|name| (name.as_str(), 8)).collect();
    // A name that the reply moved from one list to the other is not put back.
    let kept = |list: &[String], other: &[String]| -> Vec<String> {
        let other: HashSet<&String> = other.iter().collect();
        list.iter().filter(|name| !other.contains(name)).cloned().collect()
    };
    let protecting = protecting_text(checkpoint);
    let protected = protected(&protecting);
    let identifiers = identifiers::roll(
        &kept(&previous.critical_identifiers, &checkpoint.relevant_files),
        &found,
        &protected,
        IDENTIFIERS_MAX,
        IDENTIFIERS_OLDEST,
    );
    let files = identifiers::roll(
        &kept(&previous.relevant_files, &checkpoint.critical_identifiers),
        &files,
        &protected,
        FILES_MAX,
        FILES_OLDEST,
    );
    (checkpoint.critical_identifiers, checkpoint.relevant_files) = (identifiers, files);
}

/// Adds entries to a list. One that says nearly the same as an older one replaces it; if they differ in a
/// number, only if it says that something changed.
pub(super) fn merge(list: &mut Vec<String>, new: impl IntoIterator<Item = String>) {
    let mut terms: Vec<Terms> = list.iter().map(|entry| entry_terms(entry)).collect();
    for entry in new {
        let own = entry_terms(&entry);
        let tool = tool_of(&entry);
        let same = list.iter().zip(&terms).position(|(older, older_terms)| match tool {
            // Files of earlier calls are in their own list; how often a tool ran long ago matters little.
            Some(_) => tool_of(older) == tool,
            None => tool_of(older).is_none() && is_near(older, older_terms, &entry, &own),
        });
        match same {
            Some(index) => {
                list[index] = entry;
                terms[index] = own;
            }
            None => {
                list.push(entry);
                terms.push(own);
            }
        }
    }
}

/// Whether two entries say nearly the same and have the same speaker.
pub(super) fn is_near(older: &str, older_terms: &Terms, newer: &str, newer_terms: &Terms) -> bool {
    if attribution(older).0 != attribution(newer).0 {
        return false;
    }
    if older_terms.len() == 0 || newer_terms.len() == 0 {
        return older.to_lowercase() == newer.to_lowercase();
    }
    older_terms.same_names(newer_terms)
        && older_terms.near_words(newer_terms)
        && (older_terms.numbers == newer_terms.numbers || Cues::of(newer).weight(Group::Revision) > 0)
}

/// Terms of an entry, without its speaker.
pub(super) fn entry_terms(entry: &str) -> Terms {
    Terms::of(attribution(entry).1)
}

/// Splits `maya: I booked it` into speaker and text.
pub(super) fn attribution(entry: &str) -> (Option<&str>, &str) {
    match entry.split_once(": ") {
        Some((who, rest)) if who.len() <= SPEAKER_BYTES_MAX && !who.contains(char::is_whitespace) => {
            (Some(who), rest)
        }
        _ => (None, entry),
    }
}

/// A speaker's name in the form that [`attribution`] recognises.
pub(super) fn attributable(speaker: &str) -> String {
    let end = speaker.floor_char_boundary(SPEAKER_BYTES_MAX);
    speaker[..end].replace(char::is_whitespace, "_")
}

/// Maximum length of a speaker's name before an entry, in bytes.
const SPEAKER_BYTES_MAX: usize = 40;

fn tool_of(entry: &str) -> Option<&str> {
    let rest = entry.strip_prefix(RAN)?;
    Some(rest.split([':', ' ']).next().unwrap_or(rest))
}

/// Brings every list and the whole checkpoint within the [`limits`](crate::compaction::limits).
pub(super) fn fit(checkpoint: &mut Checkpoint) {
    checkpoint.goal = clip(&one_line(&checkpoint.goal), GOAL_CHARS_MAX);
    checkpoint.handoff_md = clip_lines(&checkpoint.handoff_md, HANDOFF_BYTES_MAX);
    let mut values: [Vec<usize>; 6] = Default::default();
    for ((list, max), values) in lists(checkpoint).into_iter().zip(LIST_MAX).zip(&mut values) {
        for entry in list.iter_mut() {
            if entry.chars().nth(ENTRY_CHARS_MAX).is_some() {
                *entry = clip(entry, ENTRY_CHARS_MAX);
            }
        }
        *values = list.iter().map(|entry| value(entry)).collect();
        while list.len() > max {
            drop_least(list, values);
        }
    }
    let mut size = size(checkpoint);
    const BYTES_MAX: usize = TOKENS_MAX * 4;
    for stage in STAGES {
        if size <= BYTES_MAX {
            return;
        }
        match stage {
            Stage::Lists(mins) => {
                // The longest list that is still above its minimum drops one entry at a time.
                while size > BYTES_MAX {
                    let longest = lists(checkpoint)
                        .into_iter()
                        .zip(&mut values)
                        .zip(mins)
                        .filter(|((list, _), min)| list.len() > **min)
                        .max_by_key(|((list, _), _)| list.iter().map(String::len).sum::<usize>());
                    let Some(((list, values), _)) = longest else { break };
                    size -= drop_least(list, values).len() + LIST_OVERHEAD_BYTES;
                }
            }
            Stage::Names { files, identifiers } => {
                let protecting = protecting_text(checkpoint);
                let protected = protected(&protecting);
                for (list, min, oldest) in [
                    (&mut checkpoint.critical_identifiers, *identifiers, IDENTIFIERS_OLDEST),
                    (&mut checkpoint.relevant_files, *files, FILES_OLDEST),
                ] {
                    while size > BYTES_MAX && list.len() > min {
                        let name = list.remove(least_name(list, oldest, &protected));
                        size -= name.len() + LIST_OVERHEAD_BYTES;
                    }
                }
            }
        }
    }
}

enum Stage {
    /// Number of entries to keep of each list, in the order of [`lists`].
    Lists([usize; 6]),
    Names {
        files: usize,
        identifiers: usize,
    },
}

/// Constraints, decisions, discoveries, completed, pending, questions.
const LIST_MAX: [usize; 6] =
    [CONSTRAINTS_MAX, DECISIONS_MAX, DISCOVERIES_MAX, COMPLETED_MAX, PENDING_MAX, QUESTIONS_MAX];
const STAGES: &[Stage] = &[
    Stage::Lists([usize::MAX, usize::MAX, 8, 8, usize::MAX, usize::MAX]),
    Stage::Lists([usize::MAX, 12, 6, 6, 6, usize::MAX]),
    Stage::Names { files: FILES_OLDEST, identifiers: IDENTIFIERS_OLDEST },
    Stage::Lists([12, 6, 3, 3, 3, 12]),
    Stage::Names { files: 0, identifiers: 0 },
    Stage::Lists([0; 6]),
];

pub(super) fn lists(checkpoint: &mut Checkpoint) -> [&mut Vec<String>; 6] {
    [
        &mut checkpoint.user_constraints,
        &mut checkpoint.decisions,
        &mut checkpoint.discoveries,
        &mut checkpoint.completed_work,
        &mut checkpoint.pending_work,
        &mut checkpoint.unresolved_questions,
    ]
}

/// Removes the least valuable entry of the middle. A third at the beginning and half at the end are kept.
fn drop_least(list: &mut Vec<String>, values: &mut Vec<usize>) -> String {
    let (from, to) = (list.len() / 3, list.len() - list.len() / 2);
    let index = (from..to.max(from + 1)).min_by_key(|index| values[*index]).unwrap_or(from);
    values.remove(index);
    list.remove(index)
}

/// The value of an entry.
fn value(entry: &str) -> usize {
    if tool_of(entry).is_some() {
        return 0;
    }
    let cues = Cues::of(entry);
    let groups = [Group::Decision, Group::Discovery, Group::Constraint, Group::Completed, Group::Pending];
    let strongest = groups.into_iter().map(|group| usize::from(cues.weight(group))).max().unwrap_or(0);
    4 + strongest + 3 * Terms::of(entry).names.len().min(3)
}

/// Index of the name to drop first: the oldest after the protected oldest, then the newest of those, referenced
/// ones last.
fn least_name(list: &[String], oldest: usize, protected: &HashSet<&str>) -> usize {
    let free = |index: &usize| !protected.contains(list[*index].as_str());
    (oldest..list.len())
        .find(free)
        .or_else(|| (0..list.len().min(oldest)).rev().find(free))
        .unwrap_or(list.len() / 2)
}

/// Text whose names are kept as long as possible.
fn protecting_text(checkpoint: &Checkpoint) -> String {
    let mut text = checkpoint.goal.clone();
    for list in [
        &checkpoint.user_constraints,
        &checkpoint.unresolved_questions,
        &checkpoint.decisions,
        &checkpoint.pending_work,
    ] {
        for entry in list {
            text.push('\n');
            text.push_str(entry);
        }
    }
    text
}

fn protected(text: &str) -> HashSet<&str> {
    let mut names = HashSet::new();
    identifiers::scan(text, |_, name| {
        names.insert(name);
    });
    names
}

/// Updates the two lists of names after a round without a model.
pub(super) fn roll_names(
    checkpoint: &mut Checkpoint,
    previous: &Checkpoint,
    material: &Material<'_>,
    files: &Files,
) {
    let protecting = protecting_text(checkpoint);
    let protected = protected(&protecting);
    // A name that a model put into the other list is not listed twice.
    let other: HashSet<&str> = previous.relevant_files.iter().map(String::as_str).collect();
    let names = identifiers::names(&material.texts, files);
    let mut new: Vec<(&str, u32)> = Vec::new();
    if let Some(root) = &files.root {
        new.push((root, 1));
    }
    new.extend(names.iter().filter(|name| !other.contains(name.text)).map(|name| (name.text, name.score)));
    checkpoint.critical_identifiers = identifiers::roll(
        &previous.critical_identifiers,
        &new,
        &protected,
        IDENTIFIERS_MAX,
        IDENTIFIERS_OLDEST,
    );
    let other: HashSet<&str> = previous.critical_identifiers.iter().map(String::as_str).collect();
    let new = files.relevant.iter().map(|file| (file.path.as_str(), file.score));
    let new: Vec<(&str, u32)> = new.filter(|(path, _)| !other.contains(path)).collect();
    checkpoint.relevant_files = identifiers::roll(&files.previous, &new, &protected, FILES_MAX, FILES_OLDEST);
}

/// An upper bound of the size that `render` writes, in bytes.
fn size(checkpoint: &Checkpoint) -> usize {
    let entries = [
        &checkpoint.user_constraints,
        &checkpoint.decisions,
        &checkpoint.discoveries,
        &checkpoint.completed_work,
        &checkpoint.pending_work,
        &checkpoint.unresolved_questions,
        &checkpoint.critical_identifiers,
        &checkpoint.relevant_files,
    ];
    // The note may not be written yet, so room for it is reserved.
    let handoff = checkpoint.handoff_md.len().max(HANDOFF_BYTES_MAX);
    OVERHEAD_BYTES
        + checkpoint.goal.len()
        + checkpoint.earlier_summary.len()
        + handoff
        + entries
            .iter()
            .flat_map(|list| list.iter())
            .map(|entry| entry.len() + LIST_OVERHEAD_BYTES)
            .sum::<usize>()
}

/// Everything except the two lists of names.
fn text_of(checkpoint: &Checkpoint) -> String {
    let mut text = protecting_text(checkpoint);
    for entry in
        checkpoint.discoveries.iter().chain(&checkpoint.completed_work).chain([&checkpoint.handoff_md])
    {
        text.push('\n');
        text.push_str(entry);
    }
    text
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A note truncated after its last whole line that fits.
fn clip_lines(text: &str, bytes_max: usize) -> String {
    let text = text.trim();
    if text.len() <= bytes_max {
        return text.to_string();
    }
    let end = text.floor_char_boundary(bytes_max - '…'.len_utf8());
    let cut = text[..end].rfind('\n').filter(|at| at * 2 > end).unwrap_or(end);
    format!("{}…", text[..cut].trim_end())
}
