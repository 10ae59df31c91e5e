//! Cues: words that mark a sentence as a decision, a constraint, something found, done or still to do.
//!
//! English and German. A text in another language has no cues and is ranked without them.

use crate::identifier::{self, IdentifierKind};
use aho_corasick::{AhoCorasick, MatchKind};
use std::sync::LazyLock;

/// Meaning of a cue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// Without content: greetings, thanks, narration. Also phrases that resemble another cue.
    Noise,
    /// A demand or a prohibition, if a user says it.
    Constraint,
    /// A decision.
    Decision,
    /// A finding.
    Discovery,
    /// Finished work.
    Completed,
    /// Work to do, stated explicitly.
    Pending,
    /// An announcement of the speaker's next step.
    Intent,
    /// Something unknown, stated explicitly.
    Open,
    /// A request.
    Request,
    /// A request that changes the goal.
    GoalChange,
    /// A suggestion.
    Proposal,
    /// Somebody agrees.
    Agreement,
    /// A reply that does not answer.
    Deflection,
    /// Something open is settled.
    Resolution,
    /// Replaces an earlier statement.
    Revision,
    /// The rest of the sentence is hypothetical, negated or in the future.
    Unreal,
    /// All that is left to do follows.
    Total,
    /// A person declines work, or does it without help.
    Dismissal,
    /// Takes back what was said before.
    Withdrawal,
    /// The model names the step that it takes at once.
    Announcement,
}

const GROUPS: usize = Group::Announcement as usize + 1;

/// Groups in the order of their numbers, with their names in [`TABLE`].
const NAMES: [(Group, &str); GROUPS] = [
    (Group::Noise, "Noise"),
    (Group::Constraint, "Constraint"),
    (Group::Decision, "Decision"),
    (Group::Discovery, "Discovery"),
    (Group::Completed, "Completed"),
    (Group::Pending, "Pending"),
    (Group::Intent, "Intent"),
    (Group::Open, "Open"),
    (Group::Request, "Request"),
    (Group::GoalChange, "GoalChange"),
    (Group::Proposal, "Proposal"),
    (Group::Agreement, "Agreement"),
    (Group::Deflection, "Deflection"),
    (Group::Resolution, "Resolution"),
    (Group::Revision, "Revision"),
    (Group::Unreal, "Unreal"),
    (Group::Total, "Total"),
    (Group::Dismissal, "Dismissal"),
    (Group::Withdrawal, "Withdrawal"),
    (Group::Announcement, "Announcement"),
];

/// Groups with their weights and cues.
const TABLE: &str = include_str!("cues.txt");

struct Cue {
    group: Group,
    at_start: u8,
    elsewhere: u8,
    open_end: bool,
}

static CUES: LazyLock<(AhoCorasick, Vec<Cue>)> = LazyLock::new(|| {
    let mut patterns = Vec::new();
    let mut cues = Vec::new();
    let mut heading = (Group::Noise, 0, 0);
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(group) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            heading = read_heading(group).expect("the headings are constant and tested");
            continue;
        }
        let (group, at_start, elsewhere) = heading;
        patterns.push(line.trim_end_matches('*'));
        cues.push(Cue { group, at_start, elsewhere, open_end: line.ends_with('*') });
    }
    let automaton = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::Standard)
        .build(patterns)
        .expect("the cues are constant and tested");
    (automaton, cues)
});

/// Parses a heading such as `Decision 3 2`: a group and the weights of its cues.
fn read_heading(text: &str) -> Option<(Group, u8, u8)> {
    let mut words = text.split(' ');
    let name = words.next()?;
    let (group, _) = NAMES.iter().find(|(_, known)| *known == name)?;
    Some((*group, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Cues of one sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cues {
    weights: [u8; GROUPS],
    starts: u32,
}

impl Cues {
    pub fn of(text: &str) -> Cues {
        // Typographic apostrophes would hide half of the English cues.
        if text.contains('’') {
            return Cues::of_plain(&text.replace('’', "'"));
        }
        Cues::of_plain(text)
    }

    fn of_plain(text: &str) -> Cues {
        let (automaton, table) = &*CUES;
        let start = text.find(char::is_alphanumeric).unwrap_or(0);
        let mut found: Vec<(usize, usize, usize)> = automaton
            .find_overlapping_iter(text)
            .map(|found| (found.start(), found.end(), found.pattern().as_usize()))
            .filter(|(from, to, cue)| is_word(text, *from, *to, table[*cue].open_end))
            .collect();
        if !found.is_empty() {
            let named = named(text);
            found.retain(|(from, _, _)| !named[*from]);
        }
        // From left to right, the longest first; a cue inside another one does not count. The search is
        // overlapping and checks word boundaries first, because "must no" would otherwise win over "must" and
        // then fail.
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let mut cues = Cues::default();
        let mut unreal = false;
        let mut end = 0;
        for (from, to, cue) in found {
            if from < end {
                continue;
            }
            end = to;
            let Cue { group, at_start, elsewhere, .. } = table[cue];
            unreal |= group == Group::Unreal;
            if group == Group::Completed && unreal {
                continue;
            }
            let weight = if from <= start { at_start } else { elsewhere };
            let sum = &mut cues.weights[group as usize];
            *sum = (*sum + weight).min(9);
            if from <= start && weight > 0 {
                cues.starts |= 1 << group as u32;
            }
        }
        cues
    }

    /// Strength of the sentence's cues for a group; 0 to 9.
    pub fn weight(&self, group: Group) -> u8 {
        self.weights[group as usize]
    }

    /// Whether the sentence begins with a cue of the group.
    pub fn starts(&self, group: Group) -> bool {
        self.starts & (1 << group as u32) != 0
    }
}

/// For each byte, whether it belongs to a name or to code: a cue there is a part of them, as in `todo/next.rs`.
fn named(text: &str) -> Vec<bool> {
    let mut named = vec![false; text.len()];
    identifier::scan(text, |name| {
        let start = name.text.as_ptr() as usize - text.as_ptr() as usize;
        if name.kind != IdentifierKind::Quantity {
            named[start..start + name.text.len()].fill(true);
        }
    });
    let marks: Vec<usize> = text.match_indices('`').map(|(at, _)| at).collect();
    marks.chunks_exact(2).for_each(|pair| named[pair[0]..pair[1]].fill(true));
    named
}

fn is_word(text: &str, from: usize, to: usize, open_end: bool) -> bool {
    let before = text[..from].chars().next_back();
    let behind = text[to..].chars().next();
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !joins(before) && (open_end || !joins(behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_cue_is_lower_case_and_stands_once() {
        let mut seen = HashSet::new();
        for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '['])) {
            assert!(seen.insert(line), "{line} stands twice");
            assert_eq!(line.to_lowercase(), line);
            assert_eq!(line.trim(), line);
        }
        assert_eq!(CUES.1.len(), seen.len());
    }

    #[test]
    fn cues_are_words_and_the_longest_wins() {
        for (text, group, found) in [
            ("You must not do it", Group::Constraint, true),
            ("A mustard seed", Group::Constraint, false),
            ("Never mind", Group::Constraint, false),
            ("I don’t know", Group::Constraint, false),
            ("I don't want any dairy", Group::Constraint, true),
            ("The tests pass, so it is fixed", Group::Completed, true),
            ("It is not fixed", Group::Completed, false),
            ("Once this is fixed, ship it", Group::Completed, false),
            ("We'll use SQLite", Group::Decision, true),
            ("Es stellte sich heraus, dass der Ofen kaputt ist", Group::Discovery, true),
            ("next to the door", Group::Pending, false),
            ("Next, write the docs", Group::Pending, true),
        ] {
            assert_eq!(Cues::of(text).weight(group) > 0, found, "{text}");
        }
        assert!(Cues::of("\"Agreed!\"").starts(Group::Agreement));
        assert!(!Cues::of("I said yes").starts(Group::Agreement));
    }
}
