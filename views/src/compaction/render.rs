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

/// Form of a checkpoint as text. Frozen: receipts are replayed with the form of their version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// All headings are bold, as in the note, and identifiers that a sentence contains are not listed.
    Bold,
    /// Headings of the second level, and all identifiers: in prompts up to version 6 of the renderers.
    Sections,
}

impl Form {
    fn heading(self, title: &str) -> String {
        match self {
            Form::Bold => format!("**{title}**"),
            Form::Sections => format!("## {title}"),
        }
    }
}

/// A checkpoint in Markdown, for a prompt and for people: the handoff note first, then the entries of each list
/// that the note does not contain.
pub fn render(checkpoint: &Checkpoint) -> String {
    render_as(checkpoint, Form::Bold)
}

/// The same in another form.
pub fn render_as(checkpoint: &Checkpoint, form: Form) -> String {
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
                out.push_str(&format!("\n\n{}\n", form.heading(title)));
                first = false;
            }
            out.push_str(&format!("\n- {entry}"));
        }
    }
    let unsaid = |name: &&String| form == Form::Sections || !says(&out, name);
    let identifiers = checkpoint.critical_identifiers.iter().filter(unsaid).cloned().collect::<Vec<_>>();
    for (title, list) in [("Identifiers", &identifiers), ("Files", &checkpoint.relevant_files)] {
        if !list.is_empty() {
            out.push_str(&format!("\n\n{}\n\n{}", form.heading(title), list.join(", ")));
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

/// A checkpoint of which parts are left out until it fits: files that a sentence names, then the oldest entries of the lists,
/// least important lists first, and last the end of a summary that another program wrote. The goal stays. `None` if it does not fit even so.
pub fn fitted(checkpoint: &Checkpoint, fits: impl Fn(&Checkpoint) -> bool) -> Option<Checkpoint> {
    let mut next = checkpoint.clone();
    if fits(&next) {
        return Some(next);
    }
    let mut summary = summary_of(checkpoint).map(str::to_string);
    let is_extracted = checkpoint.handoff_md == handoff_with(checkpoint, summary.as_deref());
    let unlisted = Checkpoint { relevant_files: Vec::new(), ..checkpoint.clone() };
    let sentences = render(&unlisted);
    next.relevant_files.retain(|path| !says(&sentences, path));
    while !fits(&next) {
        if !is_extracted {
            next = shorter(&next)?;
            continue;
        }
        match least_list(&mut next) {
            Some(list) => drop(list.remove(0)),
            None => {
                let half = summary.take().filter(|summary| !summary.is_empty())?;
                summary = Some(half[..half.floor_char_boundary(half.len() / 2)].trim_end().to_string());
            }
        }
        next.handoff_md = handoff_with(&next, summary.as_deref());
    }
    Some(next)
}

/// The least important list that has entries.
fn least_list(checkpoint: &mut Checkpoint) -> Option<&mut Vec<String>> {
    let lists = [
        &mut checkpoint.critical_identifiers,
        &mut checkpoint.relevant_files,
        &mut checkpoint.completed_work,
        &mut checkpoint.discoveries,
        &mut checkpoint.decisions,
        &mut checkpoint.pending_work,
        &mut checkpoint.unresolved_questions,
        &mut checkpoint.user_constraints,
    ];
    lists.into_iter().find(|list| !list.is_empty())
}

/// The checkpoint with a part less: the older half of a list or, once there are none, the second half of the note. The
/// goal stays. `None` if nothing else is left. Frozen: receipts are replayed with it.
pub fn shorter(checkpoint: &Checkpoint) -> Option<Checkpoint> {
    let mut next = checkpoint.clone();
    if let Some(list) = least_list(&mut next) {
        list.drain(..list.len().div_ceil(2));
        return Some(next);
    }
    let note = next.handoff_md.trim_end();
    if note.is_empty() {
        return None;
    }
    let half = &note[..note.floor_char_boundary(note.len() / 2)];
    let sentence = half.rfind(". ").map(|end| end + 1).max(half.rfind('\n')).unwrap_or(0);
    next.handoff_md = half[..sentence].trim_end().to_string();
    Some(next)
}

/// Heading of a summary that another program wrote, in the notes of checkpoints that were extracted since.
const SUMMARY: &str = "**Summary of what came before**\n\n";

/// The summary of another program in a checkpoint: all that an imported one has.
pub(super) fn summary_of(checkpoint: &Checkpoint) -> Option<&str> {
    let note = checkpoint.handoff_md.trim();
    let is_alone = || {
        let lists = Checkpoint { handoff_md: String::new(), ..checkpoint.clone() };
        !note.is_empty() && lists == Checkpoint::default() && note != handoff(&lists)
    };
    match note.split_once(SUMMARY) {
        Some((_, summary)) => Some(summary),
        None => is_alone().then_some(note),
    }
}

/// The handoff note of an extracted checkpoint, with the summary that another program wrote of what came before.
pub(super) fn handoff_with(checkpoint: &Checkpoint, summary: Option<&str>) -> String {
    let note = handoff(checkpoint);
    match summary.filter(|summary| !summary.is_empty()) {
        Some(summary) => format!("{note}\n\n{SUMMARY}{summary}"),
        None => note,
    }
}

/// The handoff note of an extracted checkpoint: the newest few entries of each list.
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
    if out.is_empty() {
        out.push_str("Nothing was said in the covered turns.");
    }
    out.trim().to_string()
}
