//! Work that is left: what was listed as open last, what people asked for and nobody has answered yet, what they promised, and what
//! the model announced and did not begin. Announcements that were followed, and what a person took over or declined, are
//! not left.

use super::cues::Group;
use super::extract::quoted;
use super::files::Files;
use super::lists::entry_terms;
use super::prose::clip;
use super::spoken::{Material, ReadSentence, Spoken, masked};
use super::terms::Terms;
use super::tools::ToolCall;
use crate::compaction::limits::ENTRY_CHARS_MAX;
use everturn_core::turn::Role;
use serde_json::Value;

/// Work of the covered turns that is left, in the order in which it was said.
pub(super) struct Pending {
    pub items: Vec<String>,
    /// Whether a statement of all that is left replaces what earlier rounds left.
    pub is_all: bool,
}

struct Item {
    turn: usize,
    text: String,
    terms: Terms,
    /// Number of the statement of which this is a part; only the newest statement counts.
    statement: Option<usize>,
}

/// Maximum number of items of one round, half of them the first and half the last.
const ITEMS_MAX: usize = 64;
/// Maximum number of sentences in which people decline work that are compared with it: the last ones.
const DISMISSALS_MAX: usize = 64;

impl Pending {
    pub fn of(material: &Material<'_>, files: &Files) -> Pending {
        let by_model = |spoken: &Spoken<'_>| spoken.role == Role::Assistant;
        let last_call = material.calls.last().map(|call| call.turn);
        let first_answer = material.spoken.iter().position(by_model);
        let last_answer = material.spoken.iter().rposition(by_model);
        let last_report =
            material.spoken.iter().rposition(|spoken| by_model(spoken) && reports(material, spoken));
        let mut items: Vec<Item> = Vec::new();
        let mut statements = 0;
        let mut plans = material.calls.iter().filter_map(|call| Some((call.turn, plan(call)?))).peekable();
        let add_plan = |turn: usize, plan: Vec<String>, statements: &mut usize, items: &mut Vec<Item>| {
            *statements += 1;
            let statement = Some(*statements);
            items.extend(plan.into_iter().map(|text| Item {
                turn,
                terms: entry_terms(&text),
                text,
                statement,
            }));
        };
        for (index, spoken) in material.spoken.iter().enumerate() {
            while let Some((turn, plan)) = plans.next_if(|(turn, _)| *turn < spoken.turn) {
                add_plan(turn, plan, &mut statements, &mut items);
            }
            let sentences = material.sentences(spoken);
            let listed = |said: &&ReadSentence| said.ticked.is_some() || said.lead == Some(Group::Pending);
            let is_total = by_model(spoken)
                && (sentences.iter().filter(listed).count() > 1
                    || sentences.iter().any(|said| said.cues.weight(Group::Total) > 0));
            statements += usize::from(is_total);
            // A request is open as long as the model has not reported anything after it.
            let asked = spoken.role == Role::User
                && last_report.is_none_or(|report| report < index)
                && first_answer.is_some_and(|answer| answer < index);
            let announced = last_answer == Some(index) && last_call.is_none_or(|turn| turn < spoken.turn);
            for said in sentences.iter().filter(|said| is_left(material, said, asked, announced)) {
                items.push(Item {
                    turn: spoken.turn,
                    text: quoted(material, said, Group::Pending),
                    terms: said.terms.clone(),
                    statement: is_total.then_some(statements),
                });
            }
        }
        for (turn, plan) in plans {
            add_plan(turn, plan, &mut statements, &mut items);
        }
        items.retain(|item| item.statement.is_none_or(|statement| statement == statements));
        if items.len() > ITEMS_MAX {
            items.drain(ITEMS_MAX / 2..items.len() - ITEMS_MAX / 2);
        }
        let dismissals = Dismissals::of(material);
        items.retain(|item| {
            !files.names_edited_after(&item.text, item.turn)
                && !files.names_undone(&item.text)
                && !dismissals.include(&item.terms, Some(item.turn))
        });
        Pending { items: items.into_iter().map(|item| item.text).collect(), is_all: statements > 0 }
    }
}

/// Sentences in which people decline work or take it over, with their turns.
pub(super) struct Dismissals<'m>(Vec<(usize, &'m Terms)>);

impl<'m> Dismissals<'m> {
    pub fn of(material: &'m Material<'_>) -> Dismissals<'m> {
        let dismisses = |said: &&ReadSentence| {
            material.role(said) == Role::User && said.cues.weight(Group::Dismissal) > 0
        };
        let found = material.said.iter().rev().filter(dismisses).take(DISMISSALS_MAX);
        Dismissals(found.map(|said| (material.spoken[said.spoken].turn, &said.terms)).collect())
    }

    /// Whether somebody declined this work, after a turn or at any time.
    pub fn include(&self, work: &Terms, after: Option<usize>) -> bool {
        self.0.iter().any(|(turn, terms)| {
            let shared = work.shared(terms);
            after.is_none_or(|after| *turn > after) && shared > 0 && shared * 4 >= work.len()
        })
    }
}

fn is_left(material: &Material<'_>, said: &ReadSentence, asked: bool, announced: bool) -> bool {
    let cues = &said.cues;
    let by_person = material.role(said) == Role::User;
    if let Some(ticked) = said.ticked {
        return !ticked;
    }
    if said.lead == Some(Group::Pending) {
        return true;
    }
    let remains = remains(said);
    if said.question {
        // "What remains is a translation, if you want one?"
        return !by_person && cues.starts(Group::Total);
    }
    if cues.weight(Group::Deflection) > 0 || cues.weight(Group::Dismissal) > 0 || said.terms.len() == 0 {
        return false;
    }
    let requested =
        cues.weight(Group::Request) >= 3 || cues.weight(Group::Pending) > 0 || is_next(&said.text);
    let demanded = cues.weight(Group::Constraint) >= 2 && cues.weight(Group::Request) < 3;
    let promised = by_person && cues.weight(Group::Intent) > 0 && is_definite(said);
    let constrained = by_person && cues.weight(Group::Constraint) > cues.weight(Group::Pending);
    // "Let me add that to the list" is an announcement.
    let announces = !by_person && cues.weight(Group::Intent) > 0;
    (remains && said.terms.len() >= 2 && !constrained && !announces)
        || promised
        || (asked && requested && !demanded && (said.terms.len() >= 2 || is_next(&said.text)))
        || (announced
            && cues.weight(Group::Intent) > 0
            && said.terms.len() >= 2
            && !cues.starts(Group::Noise))
}

/// Whether a sentence says that something is left to do: by a cue, or as in "The docs are not updated yet."
pub(super) fn remains(said: &ReadSentence) -> bool {
    let mut negated = false;
    let mut words =
        said.text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’').map(str::to_lowercase);
    let not_yet = words.any(|word| {
        negated |= matches!(word.as_str(), "not" | "no" | "nothing" | "nobody" | "none" | "never")
            || word.ends_with("n't")
            || word.ends_with("n’t");
        negated && word == "yet"
    });
    not_yet || said.cues.weight(Group::Pending) >= 4 || said.cues.weight(Group::Total) > 0
}

/// "The mails next."
pub(super) fn is_next(text: &str) -> bool {
    let last = text.trim_end_matches(|c: char| !c.is_alphanumeric()).rsplit(' ').next().unwrap_or_default();
    ["next", "Next", "dran"].contains(&last)
}

/// Whether a sentence names something in particular: an identifier, a number, a person.
pub(super) fn is_definite(said: &ReadSentence) -> bool {
    let proper = || {
        said.text.split_whitespace().skip(1).any(|word| {
            let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
            word.starts_with(char::is_uppercase) && word.chars().nth(1).is_some_and(char::is_alphabetic)
        })
    };
    said.terms.names.len() + said.terms.numbers.len() > 0 || proper()
}

/// Whether a turn of the model contains more than announcements and questions.
pub(super) fn reports(material: &Material<'_>, spoken: &Spoken<'_>) -> bool {
    material.sentences(spoken).iter().any(|said| {
        !said.question
            && said.terms.len() >= 2
            && said.cues.weight(Group::Intent) == 0
            && said.cues.weight(Group::Deflection) == 0
            && !said.cues.starts(Group::Noise)
            && !said.cues.starts(Group::Agreement)
    })
}

/// Unfinished entries of the list that an agent keeps with a tool of its own.
fn plan(call: &ToolCall<'_>) -> Option<Vec<String>> {
    let list = ["todos", "plan"].iter().find_map(|key| call.arguments.get(key)?.as_array())?;
    let text = |entry: &Value| {
        ["content", "step", "title"].iter().find_map(|key| Some(entry.get(key)?.as_str()?.to_string()))
    };
    let is_open = |entry: &&Value| {
        !entry
            .get("status")
            .and_then(Value::as_str)
            .is_some_and(|status| matches!(status, "completed" | "done" | "cancelled"))
    };
    let left = list.iter().filter(is_open).filter_map(text);
    Some(
        left.map(|text| clip(&masked(text.trim()), ENTRY_CHARS_MAX))
            .filter(|text| !text.is_empty())
            .collect(),
    )
}
