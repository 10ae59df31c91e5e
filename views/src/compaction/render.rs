//! A checkpoint as text: the handoff note, and the whole.

use super::Checkpoint;
use super::extractive::RAN;

/// Maximum overhead that `render` adds to each entry, in bytes.
pub(super) const LIST_OVERHEAD_BYTES: usize = 4;
/// Maximum overhead that `render` adds to the whole, in bytes.
pub(super) const OVERHEAD_BYTES: usize = 400;

/// Maximum length of a section of an extracted handoff note, in bytes: four of them and a goal stay below
/// [`HANDOFF_BYTES_MAX`](super::limits::HANDOFF_BYTES_MAX).
const SECTION_BYTES_MAX: usize = 700;

/// A checkpoint in Markdown, for a prompt and for people: the handoff note first, then the entries of each list
/// that the note does not contain. Identifiers that a sentence contains are not listed. Frozen: receipts are replayed
/// with it.
pub fn render(checkpoint: &Checkpoint) -> String {
    let note = checkpoint.handoff_md.trim();
    let mut out = note.to_string();
    if !checkpoint.goal.is_empty() && !note.contains(&checkpoint.goal) {
        out = format!("**Goal:** {}\n\n{out}", checkpoint.goal).trim_end().to_string();
    }
    for (title, list) in [
        ("User constraints", &checkpoint.user_constraints),
        ("Decisions", &checkpoint.decisions),
        ("Discoveries", &checkpoint.discoveries),
        ("Completed work", &checkpoint.completed_work),
        ("Pending work", &checkpoint.pending_work),
        ("Unresolved questions", &checkpoint.unresolved_questions),
    ] {
        let mut first = true;
        for entry in list.iter().filter(|entry| !note.contains(entry.as_str())) {
            if first {
                out.push_str(&format!("\n\n**{title}**\n"));
                first = false;
            }
            out.push_str(&format!("\n- {entry}"));
        }
    }
    let unsaid = checkpoint.critical_identifiers.iter().filter(|name| !says(&out, name));
    let identifiers = unsaid.cloned().collect::<Vec<_>>();
    for (title, list) in [("Identifiers", &identifiers), ("Files", &checkpoint.relevant_files)] {
        if !list.is_empty() {
            out.push_str(&format!("\n\n**{title}**\n\n{}", list.join(", ")));
        }
    }
    out.trim_start().to_string()
}

/// Whether a text contains a name, and not as a part of a longer one.
fn says(text: &str, name: &str) -> bool {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "_-/".contains(c));
    text.match_indices(name).any(|(at, _)| {
        let behind = text[at + name.len()..].chars().next();
        !joins(text[..at].chars().next_back()) && !joins(behind)
    })
}

/// The most important parts of a checkpoint that fit: files that a sentence names are left out first, then the entries of the
/// lists, oldest first, the note (or the earlier summary in an extracted one) from its end, and last open work, questions and
/// constraints. What is shorter than the part that did not fit is put back. The goal stays. `None` if not even that fits.
/// Frozen: receipts are replayed with it.
pub fn fitted(checkpoint: &Checkpoint, fits: impl Fn(&Checkpoint) -> bool) -> Option<Checkpoint> {
    if fits(checkpoint) {
        return Some(checkpoint.clone());
    }
    let mut unnamed = checkpoint.clone();
    let sentences = render(&Checkpoint { relevant_files: Vec::new(), ..checkpoint.clone() });
    unnamed.relevant_files.retain(|path| !says(&sentences, path));
    let parts = Parts::of(&unnamed);
    let (mut fitting, mut lacking) = (parts.all.len(), 0);
    let mut dropped = vec![true; fitting];
    if !fits(&parts.without(&dropped)) {
        return None;
    }
    let beginning = |count: usize| (0..parts.all.len()).map(|index| index < count).collect::<Vec<_>>();
    if fits(&unnamed) {
        return Some(unnamed);
    }
    while fitting - lacking > 1 {
        let middle = lacking + (fitting - lacking) / 2;
        match fits(&parts.without(&beginning(middle))) {
            true => fitting = middle,
            false => lacking = middle,
        }
    }
    dropped.copy_from_slice(&beginning(fitting));
    let mut is_note_cut = false;
    for index in (0..fitting).rev().take(PUT_BACK_MAX) {
        if parts.all[index] == Part::Note && is_note_cut {
            continue;
        }
        dropped[index] = false;
        if !fits(&parts.without(&dropped)) {
            dropped[index] = true;
            is_note_cut |= parts.all[index] == Part::Note;
        }
    }
    Some(parts.without(&dropped))
}

/// Most parts that are tried again in the room that is left.
const PUT_BACK_MAX: usize = 64;

/// A part of a checkpoint that can be left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The next entry of the list with this index, in the order of [`by_importance`].
    Entry(usize),
    /// The last line or sentence of the note.
    Note,
}

/// The parts of a checkpoint, the least important first.
struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    is_extracted: bool,
    /// Ends of the lines and sentences of the note, or of the earlier summary.
    ends: Vec<usize>,
    all: Vec<Part>,
}

impl<'a> Parts<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Parts<'a> {
        let is_extracted = checkpoint.handoff_md == handoff(checkpoint);
        let mut parts = Parts { checkpoint, is_extracted, ends: Vec::new(), all: Vec::new() };
        let note = parts.note();
        let breaks = note.match_indices('\n').chain(note.match_indices(". "));
        parts.ends = breaks.map(|(at, found)| at + found.len()).chain([note.len()]).collect();
        parts.ends.sort_unstable();
        parts.ends.dedup();
        parts.ends.retain(|end| *end > 0);
        let mut whole = checkpoint.clone();
        for (index, list) in by_importance(&mut whole).into_iter().enumerate() {
            if index == OPEN_LISTS {
                parts.all.extend(vec![Part::Note; parts.ends.len()]);
            }
            parts.all.extend(vec![Part::Entry(index); list.len()]);
        }
        parts
    }

    fn note(&self) -> &'a str {
        match self.is_extracted {
            true => &self.checkpoint.earlier_summary,
            false => &self.checkpoint.handoff_md,
        }
    }

    fn without(&self, dropped: &[bool]) -> Checkpoint {
        let mut next = self.checkpoint.clone();
        let is_kept = |wanted: Part| {
            let parts = self.all.iter().zip(dropped).filter(move |(part, _)| **part == wanted);
            parts.map(|(_, dropped)| !dropped)
        };
        for (index, list) in by_importance(&mut next).into_iter().enumerate() {
            let mut kept = is_kept(Part::Entry(index));
            list.retain(|_| kept.next().unwrap_or(true));
        }
        let pieces = is_kept(Part::Note).filter(|kept| *kept).count();
        let end = pieces.checked_sub(1).map_or(0, |last| self.ends[last]);
        match self.is_extracted {
            true => {
                next.earlier_summary = self.note()[..end].trim_end().to_string();
                next.handoff_md = handoff(&next);
            }
            false => next.handoff_md = self.note()[..self.before_goal(end)].trim_end().to_string(),
        }
        next
    }

    /// Where to cut the note instead, if the goal that it begins with would be cut: that is shown anyway.
    fn before_goal(&self, end: usize) -> usize {
        let (note, goal) = (self.note(), &self.checkpoint.goal);
        match note.find(goal.as_str()).filter(|_| !goal.is_empty()) {
            Some(at) if (at..at + goal.len()).contains(&end) => note[..at].rfind('\n').unwrap_or(0),
            _ => end,
        }
    }
}

/// Index of the first list of open work in [`by_importance`].
const OPEN_LISTS: usize = 5;

/// The lists, the least important first.
fn by_importance(checkpoint: &mut Checkpoint) -> [&mut Vec<String>; 8] {
    [
        &mut checkpoint.critical_identifiers,
        &mut checkpoint.relevant_files,
        &mut checkpoint.completed_work,
        &mut checkpoint.discoveries,
        &mut checkpoint.decisions,
        &mut checkpoint.pending_work,
        &mut checkpoint.unresolved_questions,
        &mut checkpoint.user_constraints,
    ]
}

/// The handoff note of an extracted checkpoint: the newest few entries of each list, and the earlier summary.
pub(super) fn handoff(checkpoint: &Checkpoint) -> String {
    let mut out = String::new();
    if !checkpoint.goal.is_empty() {
        out.push_str(&format!("**Goal:** {}\n", checkpoint.goal));
    }
    let newest =
        |list: &[String], count: usize| -> Vec<String> { list[list.len().saturating_sub(count)..].to_vec() };
    let (ran, done): (Vec<String>, Vec<String>) =
        checkpoint.completed_work.iter().cloned().partition(|entry| entry.starts_with(RAN));
    let mut state = newest(&done, 4);
    if state.is_empty() {
        state = newest(&ran, 2);
    }
    state.extend(newest(&checkpoint.discoveries, 3));
    for (title, entries) in [
        ("Where things stand", state),
        ("Decided", newest(&checkpoint.decisions, 4)),
        ("Open", newest(&checkpoint.unresolved_questions, 4)),
        ("Next", newest(&checkpoint.pending_work, 4)),
    ] {
        // Newest first, as long as there is room.
        let mut room = SECTION_BYTES_MAX;
        let shown = entries.iter().rev().take_while(|entry| {
            let fits = entry.len() <= room;
            room = room.saturating_sub(entry.len());
            fits
        });
        let first = entries.len() - shown.count();
        if first < entries.len() {
            out.push_str(&format!("\n**{title}**\n\n- {}\n", entries[first..].join("\n- ")));
        }
    }
    if !checkpoint.earlier_summary.is_empty() {
        out.push_str(&format!("\n**Earlier summary**\n\n{}\n", checkpoint.earlier_summary));
    }
    if out.is_empty() {
        out.push_str("Nothing was said in the covered turns.");
    }
    out.trim().to_string()
}
