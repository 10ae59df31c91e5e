//! Summaries of other programs. They are one text each, so no list has their content.

use super::lists::one_line;
use super::prose::clip;
use super::spoken::masked;
use crate::compaction::Checkpoint;
use crate::compaction::limits::{EARLIER_BYTES_MAX, ENTRY_CHARS_MAX};
use crate::compaction::render::handoff;

/// Headings of the paragraph about the goal, as agents write them.
const GOAL_HEADINGS: [&str; 5] = ["goal", "primary request", "objective", "user's goal", "ziel"];

/// The checkpoint before the next round: a note without lists is a summary that has to be carried on.
pub(super) fn carried(previous: &Checkpoint) -> Checkpoint {
    let Checkpoint { handoff_md: note, .. } = previous;
    let alone = Checkpoint { handoff_md: note.clone(), ..Checkpoint::default() };
    if note.trim().is_empty() || *previous != alone || *note == handoff(&Checkpoint::default()) {
        return previous.clone();
    }
    let summary = masked(note.trim());
    Checkpoint { goal: goal(&summary), earlier_summary: shortened(&summary), ..alone }
}

/// The first paragraph under a heading for the goal, or behind it.
fn goal(summary: &str) -> String {
    let mut lines =
        summary.lines().map(|line| line.trim_matches(|c: char| c.is_whitespace() || "*_".contains(c)));
    let behind = lines.by_ref().find_map(|line| {
        let title = line.trim_start_matches(|c: char| !c.is_alphabetic());
        let is_heading = title.len() < line.len() || line.contains(':');
        let begins =
            |name: &&str| title.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        let is_goal = is_heading && GOAL_HEADINGS.iter().any(begins);
        is_goal.then(|| title.split_once(':').map_or("", |(_, behind)| behind).trim_matches([' ', '*', '_']))
    });
    let paragraph = match behind {
        None => return String::new(),
        Some("") => {
            let is_text = |line: &&str| !line.is_empty() && !line.starts_with('#');
            let text: Vec<&str> = lines.skip_while(|line| line.is_empty()).take_while(is_text).collect();
            one_line(&text.join(" "))
        }
        Some(behind) => one_line(behind),
    };
    clip(paragraph.trim_start_matches(['-', '•', ' ']), ENTRY_CHARS_MAX)
}

/// Beginning and end of a summary that is too long: its frame, and where things stood.
fn shortened(summary: &str) -> String {
    const END: usize = EARLIER_BYTES_MAX / 3;
    if summary.len() <= EARLIER_BYTES_MAX {
        return summary.to_string();
    }
    let start = &summary[..summary.floor_char_boundary(EARLIER_BYTES_MAX - END - "\n\n…\n\n".len())];
    let end = &summary[summary.ceil_char_boundary(summary.len() - END)..];
    let start = start.rfind('\n').filter(|at| at * 2 > start.len()).map_or(start, |at| &start[..at]);
    let end = end.find('\n').filter(|at| at * 2 < end.len()).map_or(end, |at| &end[at..]);
    format!("{}\n\n…\n\n{}", start.trim_end(), end.trim_start())
}
