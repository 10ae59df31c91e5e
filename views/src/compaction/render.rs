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
/// that the note does not contain.
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
                out.push_str(&format!("\n\n## {title}\n"));
                first = false;
            }
            out.push_str(&format!("\n- {entry}"));
        }
    }
    for (title, list) in
        [("Identifiers", &checkpoint.critical_identifiers), ("Files", &checkpoint.relevant_files)]
    {
        if !list.is_empty() {
            out.push_str(&format!("\n\n## {title}\n\n{}", list.join(", ")));
        }
    }
    out.trim_start().to_string()
}

/// The checkpoint with a part less: the older half of a list or, once there are none, the second half of the note. The
/// goal stays. `None` if nothing else is left.
pub fn shorter(checkpoint: &Checkpoint) -> Option<Checkpoint> {
    let mut next = checkpoint.clone();
    // Least important first.
    let lists = [
        &mut next.critical_identifiers,
        &mut next.relevant_files,
        &mut next.completed_work,
        &mut next.discoveries,
        &mut next.decisions,
        &mut next.pending_work,
        &mut next.unresolved_questions,
        &mut next.user_constraints,
    ];
    let first = lists.into_iter().find(|list| !list.is_empty());
    if let Some(list) = first {
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
