//! Unfinished work: the last list of open items, unanswered requests and promises of people, and announced steps that the model did
//! not begin. Steps that were carried out, work that was reported as done, and work that a person took over or declined are
//! finished.

use super::cues::{Cues, Group};
use super::extract::{class_of, past, quoted};
use super::files::Files;
use super::lists::{attribution, entry_terms};
use super::prose::clip;
use super::spoken::{Material, ReadSentence, Spoken, masked};
use super::terms::Terms;
use super::tools::ToolCall;
use crate::compaction::limits::ENTRY_CHARS_MAX;
use crate::identifier::{self, IdentifierKind};
use everturn_core::turn::Role;
use serde_json::Value;

/// Unfinished work of the covered turns, in the order of the turns.
pub(super) struct Pending<'m> {
    pub items: Vec<String>,
    /// Whether a complete list of open work replaces the pending work of earlier rounds.
    pub is_all: bool,
    /// Whether the model took a step, so that the next step that it announced before is done.
    has_step: bool,
    dismissals: Dismissals<'m>,
}

struct Item {
    turn: usize,
    /// Index of the first sentence that can report it as done.
    from: usize,
    text: String,
    terms: Terms,
    /// Number of the statement of which this is a part; only the newest statement counts.
    statement: Option<usize>,
}

/// Progress of the conversation after a turn.
struct Standing {
    /// The model has reported something since.
    reported: bool,
    /// The model has not reported anything since, so that a person's request is open.
    asked: bool,
    /// The model has neither spoken nor called a tool since.
    announced: bool,
    /// The model has neither finished anything since nor named another next step, nor gone on after a call of its own.
    newest_step: bool,
    /// Another message of a person came before the model could reply.
    overtaken: bool,
    /// The model edited something in the same turn, and has reported since.
    followed: bool,
    /// The model called a tool at once, and has reported since.
    acted: bool,
}

/// Maximum number of items of one round, half of them the first and half the last.
const ITEMS_MAX: usize = 64;
/// Maximum number of sentences in which people decline work that are compared with it: the last ones.
const DISMISSALS_MAX: usize = 64;
/// Maximum number of overtaken turns whose requests are looked for: the last ones.
const OVERTAKEN_MAX: usize = 16;

impl<'m> Pending<'m> {
    /// `whole` also has the turns that stay verbatim after the covered ones: they may finish work, and add none.
    pub fn of(material: &Material<'_>, whole: &'m Material<'_>, done: &DoneWork<'_>) -> Pending<'m> {
        let last = |is: &dyn Fn(&Spoken<'_>) -> bool| {
            whole.spoken.iter().rposition(|spoken| spoken.role == Role::Assistant && is(spoken))
        };
        let first_answer = whole.spoken.iter().position(|spoken| spoken.role == Role::Assistant);
        let last_answer = last(&|_| true);
        let last_report = last(&|spoken| reports(whole, spoken));
        let steps = |said: &ReadSentence| is_step(&said.text) || completes(said);
        let last_step = last(&|spoken| whole.sentences(spoken).iter().any(steps));
        let last_call = whole.calls.last().map(|call| call.turn);
        let overtaken = overtaken(whole);
        let edits =
            |turn| whole.calls.iter().any(|call| call.turn == turn && call.edits() && call.succeeded());
        let mut items: Vec<Item> = Vec::new();
        let mut statements = 0;
        let mut plans = whole.calls.iter().filter_map(|call| Some((call.turn, plan(call)?))).peekable();
        let add_plan = |turn: usize, plan: Vec<String>, statements: &mut usize, items: &mut Vec<Item>| {
            *statements += 1;
            let statement = Some(*statements);
            let from = whole.said.partition_point(|said| whole.spoken[said.spoken].turn <= turn);
            let covered = plan.into_iter().filter(|_| turn < material.turns);
            items.extend(covered.map(|text| Item { turn, from, terms: entry_terms(&text), text, statement }));
        };
        for (index, spoken) in whole.spoken.iter().enumerate() {
            while let Some((turn, plan)) = plans.next_if(|(turn, _)| *turn < spoken.turn) {
                add_plan(turn, plan, &mut statements, &mut items);
            }
            let sentences = whole.sentences(spoken);
            let listed = |said: &&ReadSentence| said.ticked.is_some() || said.lead == Some(Group::Pending);
            let is_total = spoken.role == Role::Assistant
                && (sentences.iter().filter(listed).count() > 1
                    || sentences.iter().any(|said| said.cues.weight(Group::Total) > 0));
            statements += usize::from(is_total);
            if index >= material.spoken.len() {
                continue;
            }
            let standing = Standing {
                reported: last_report.is_some_and(|report| report > index),
                asked: spoken.role == Role::User
                    && last_report.is_none_or(|report| report < index)
                    && first_answer.is_some_and(|answer| answer < index),
                announced: last_answer == Some(index) && last_call.is_none_or(|turn| turn < spoken.turn),
                newest_step: last_step.is_none_or(|step| step <= index)
                    && !(whole.leads_to_call(index) && last_answer > Some(index)),
                overtaken: overtaken.contains(&index) && first_answer.is_some_and(|answer| answer < index),
                followed: spoken.role == Role::Assistant
                    && last_report.is_some_and(|report| report > index)
                    && edits(spoken.turn),
                acted: last_report.is_some_and(|report| report > index) && whole.leads_to_call(index),
            };
            let said = spoken.said.clone().zip(sentences);
            for (at, said) in said.filter(|(_, said)| is_left(whole, said, &standing)) {
                items.push(Item {
                    turn: spoken.turn,
                    from: at + 1,
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
        let dismissals = Dismissals::of(whole);
        items.retain(|item| {
            !done.files.names_edited(&item.text, Some(item.turn))
                && !done.files.names_undone(&item.text)
                && !done.includes(&item.terms, item.from)
                && !dismissals.include(&item.terms, Some(item.turn))
        });
        Pending {
            items: items.into_iter().map(|item| item.text).collect(),
            is_all: statements > 0,
            has_step: last_step.is_some(),
            dismissals,
        }
    }

    /// Whether work that an earlier round left is done by now, or was declined.
    pub fn closes(&self, entry: &str, done: &DoneWork<'_>) -> bool {
        let terms = entry_terms(entry);
        (self.has_step && is_step(attribution(entry).1))
            || done.files.names_edited(entry, None)
            || done.includes(&terms, 0)
            || self.dismissals.include(&terms, None)
    }
}

/// Work that the turns report as done, and the files that show it.
pub(super) struct DoneWork<'m> {
    material: &'m Material<'m>,
    files: &'m Files,
    /// Indices of the sentences.
    said: Vec<usize>,
}

impl<'m> DoneWork<'m> {
    pub fn of(material: &'m Material<'m>, files: &'m Files) -> DoneWork<'m> {
        let reports = |(index, said): &(usize, &ReadSentence)| {
            let is_cued = completes(said) || said.ticked == Some(true) || said.lead == Some(Group::Completed);
            is_cued && class_of(material, *index, said).0 == Some(Group::Completed)
        };
        let said = material.said.iter().enumerate().filter(reports).map(|(index, _)| index).collect();
        DoneWork { material, files, said }
    }

    /// Whether a sentence from this one on reports this work as done.
    fn includes(&self, work: &Terms, from: usize) -> bool {
        self.said.iter().filter(|index| **index >= from).any(|index| {
            let done = &self.material.said[*index].terms;
            let shared = work.shared(done);
            shared >= 2 && shared * 10 >= work.len() * 6 && work.names_within(done)
        })
    }
}

/// Sentences in which people decline work or take it over, with their turns.
struct Dismissals<'m>(Vec<(usize, &'m Terms)>);

impl<'m> Dismissals<'m> {
    fn of(material: &'m Material<'_>) -> Dismissals<'m> {
        let dismisses = |said: &&ReadSentence| {
            material.role(said) == Role::User && said.cues.weight(Group::Dismissal) > 0
        };
        let found = material.said.iter().rev().filter(dismisses).take(DISMISSALS_MAX);
        Dismissals(found.map(|said| (material.spoken[said.spoken].turn, &said.terms)).collect())
    }

    /// Whether this work was declined, after a turn or at any time.
    fn include(&self, work: &Terms, after: Option<usize>) -> bool {
        self.0.iter().any(|(turn, terms)| {
            let shared = work.shared(terms);
            after.is_none_or(|after| *turn > after) && shared > 0 && shared * 4 >= work.len()
        })
    }
}

/// Turns of people that another message of a person follows before the model says or does anything.
fn overtaken(material: &Material<'_>) -> Vec<usize> {
    let follows = |pair: &[Spoken<'_>]| {
        let between = pair[0].turn..pair[1].turn;
        pair.iter().all(|spoken| spoken.role == Role::User)
            && !material.calls.iter().any(|call| between.contains(&call.turn))
    };
    let pairs = material.spoken.windows(2).enumerate().rev();
    pairs.filter(|(_, pair)| follows(pair)).map(|(index, _)| index).take(OVERTAKEN_MAX).collect()
}

/// Whether a request of an overtaken turn names files, and neither the model nor a call has named one of them since.
fn is_forgotten(material: &Material<'_>, said: &ReadSentence) -> bool {
    let mut names: Vec<&str> = Vec::new();
    identifier::scan(&said.text, |name| {
        if matches!(name.kind, IdentifierKind::Path | IdentifierKind::FileName) {
            names.push(name.text.rsplit('/').next().unwrap_or(name.text));
        }
    });
    let turn = material.spoken[said.spoken].turn;
    let by_model = material.spoken[said.spoken..].iter().filter(|spoken| spoken.role == Role::Assistant);
    let mut texts = by_model.flat_map(|spoken| material.sentences(spoken)).map(|said| said.text.as_str());
    let mut calls =
        material.calls.iter().filter(|call| call.turn > turn).map(|call| call.arguments.to_string());
    let is_named = |text: &str| names.iter().any(|name| text.contains(name));
    said.cues.weight(Group::Request) >= 3
        && !names.is_empty()
        && !texts.any(is_named)
        && !calls.any(|arguments| is_named(&arguments))
}

fn is_left(material: &Material<'_>, said: &ReadSentence, standing: &Standing) -> bool {
    let Standing { asked, announced, .. } = *standing;
    let cues = &said.cues;
    let by_person = material.role(said) == Role::User;
    if let Some(ticked) = said.ticked {
        return !ticked;
    }
    if said.lead == Some(Group::Pending) {
        return true;
    }
    // "Now I need to move the pending components.", and the call. "Next steps:" is a heading.
    if material.announces(said) || said.text.trim_end().ends_with(':') {
        return false;
    }
    let is_forgotten = || standing.overtaken && is_forgotten(material, said);
    if said.question {
        // "What remains is a translation, if you want one?", "Can you prepare docs/export.md meanwhile?"
        return if by_person { is_forgotten() } else { cues.starts(Group::Total) };
    }
    // A person's next step is a request; the model's is left until it is taken.
    let is_due = if by_person { asked } else { standing.newest_step };
    // "One caller is left.", and the edit of it.
    let is_followed = (standing.followed && !is_definite(said))
        || (is_need(&said.text) && if by_person { !asked } else { standing.acted });
    // A request is open until the model reports something, whatever it says.
    let is_answered = by_person && standing.reported && cues.weight(Group::Request) >= 3;
    // "If you need it elsewhere, you would need to export it.": advice.
    let advises = !by_person && (said.text.starts_with("If ") || would(&said.text));
    let is_followed = is_followed || is_answered || advises;
    let remains = remains(said) && (is_due || !is_step(&said.text)) && !is_followed;
    // "I'll ask Bea to run it on cache-prod." defers an answer, and is a promise.
    let asks_somebody = by_person && said.terms.len() >= 3 && is_definite(said) && will_ask(&said.text);
    if cues.weight(Group::Dismissal) > 0 || said.terms.len() == 0 {
        return false;
    }
    if cues.weight(Group::Deflection) > 0 {
        return asks_somebody;
    }
    // "Sounds good to me.", and not "Yes, deploy it to staging."
    let only_agrees = said
        .text
        .split(", ")
        .map(Cues::of)
        .all(|cues| cues.starts(Group::Noise) || cues.starts(Group::Agreement));
    let requested = cues.weight(Group::Request) >= 3
        || cues.weight(Group::Pending) > 0
        || is_next(&said.text)
        || (is_imperative(&said.text) && !only_agrees);
    let demanded = cues.weight(Group::Constraint) >= 2 && cues.weight(Group::Request) < 3;
    let promised = by_person && cues.weight(Group::Intent) > 0 && is_definite(said);
    let constrained = by_person && cues.weight(Group::Constraint) > cues.weight(Group::Pending);
    // "Let me add that to the list" is an announcement.
    let announces = !by_person && cues.weight(Group::Intent) > 0;
    // "Not submitted."
    let is_whole = said.terms.len() >= 2 || (!by_person && cues.starts(Group::Pending));
    (remains && is_whole && !constrained && !announces)
        || promised
        || is_forgotten()
        || (asked && requested && !demanded && (said.terms.len() >= 2 || is_next(&said.text)))
        || (announced
            && cues.weight(Group::Intent) > 0
            && said.terms.len() >= 2
            && !cues.starts(Group::Noise))
}

/// Whether a sentence says that something is left to do: by a cue, or as in "The docs are not updated yet."
pub(super) fn remains(said: &ReadSentence) -> bool {
    let (mut negated, mut before) = (false, String::new());
    let mut words =
        said.text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’').map(str::to_lowercase);
    let not_yet = words.any(|word| {
        // "The branch has no commits yet." is how things are.
        let states = word == "no" && matches!(before.as_str(), "has" | "had" | "with");
        negated |= !states && matches!(word.as_str(), "not" | "no" | "nothing" | "nobody" | "none" | "never")
            || word.ends_with("n't")
            || word.ends_with("n’t");
        before = word;
        negated && before == "yet"
    });
    not_yet || said.cues.weight(Group::Pending) >= 4 || said.cues.weight(Group::Total) > 0
}

/// Whether a sentence is hypothetical: neither a fact nor a request.
fn would(text: &str) -> bool {
    const WORDS: [&str; 7] = ["would", "could", "might", "würde", "würden", "könnte", "könnten"];
    text.split(|c: char| !c.is_alphanumeric()).any(|word| WORDS.contains(&word.to_lowercase().as_str()))
}

/// "Next is part 2.": the speaker's very next step, and not all that is left.
fn is_step(text: &str) -> bool {
    const STEPS: [&str; 5] =
        ["next", "the next step", "als nächstes", "der nächste schritt", "nächster schritt"];
    let start: String = text.chars().take(24).flat_map(char::to_lowercase).collect();
    STEPS
        .iter()
        .filter_map(|step| start.strip_prefix(step))
        .any(|rest| !rest.starts_with(char::is_alphanumeric) && !rest.starts_with(" steps"))
}

/// "We need a section on themes.": what is to be done now, and not what was left.
fn is_need(text: &str) -> bool {
    #[rustfmt::skip]
    const LEFT: [&str; 12] = [
        "still", "yet", "later", "somebody", "someone", "nobody", "before", "until", "once", "remaining", "left", "after",
    ];
    let mut needs = false;
    let is_left = text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase).any(|word| {
        needs |= matches!(word.as_str(), "need" | "needs");
        LEFT.contains(&word.as_str())
    });
    needs && !is_left
}

/// Whether a sentence begins as an order does: with none of the words that begin a statement.
fn is_imperative(text: &str) -> bool {
    const WORDS_MIN: usize = 3;
    #[rustfmt::skip]
    const LEADING: [&str; 12] =
        ["also", "and", "then", "now", "ok", "okay", "yes", "right", "good", "auch", "und", "dann"];
    #[rustfmt::skip]
    const STATING: [&str; 72] = [
        "i", "we", "you", "he", "she", "it", "they", "the", "a", "an", "this", "that", "these", "those", "there", "my", "our", "your",
        "his", "her", "its", "their", "no", "not", "if", "when", "because", "since", "for", "in", "on", "at", "with", "as", "so", "but",
        "or", "maybe", "perhaps", "until", "unless", "after", "before", "all", "some", "nothing", "nobody", "both", "each", "ich", "wir", "du",
        "ihr", "sie", "er", "es", "der", "die", "das", "ein", "eine", "mein", "meine", "unser", "unsere", "kein", "keine", "nicht", "wenn",
        "weil", "im", "am",
    ];
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let first = words.map(str::to_lowercase).find(|word| !LEADING.contains(&word.as_str()));
    text.split_whitespace().count() >= WORDS_MIN
        && first.is_some_and(|word| !STATING.contains(&word.as_str()))
}

fn will_ask(text: &str) -> bool {
    const BEGINNINGS: [&str; 4] = ["i'll ask ", "i’ll ask ", "i will ask ", "ich frage "];
    let start: String = text.chars().take(12).flat_map(char::to_lowercase).collect();
    BEGINNINGS.iter().any(|beginning| start.starts_with(beginning))
}

/// Whether a sentence reports finished work.
pub(super) fn completes(said: &ReadSentence) -> bool {
    !said.question && (said.cues.weight(Group::Completed) > 0 || past(&said.text) > 0)
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
        // "Done."
        let is_short_report = completes(said) && said.cues.starts(Group::Completed);
        !said.question
            && (said.terms.len() >= 2 || is_short_report)
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
