//! A checkpoint without a model: sentences chosen by class and score.
//!
//! Deterministic and offline. It quotes and never rephrases, so it invents nothing.

use super::cues::Group;
use super::earlier;
use super::files::Files;
use super::lists::{attributable, entry_terms, fit, is_near, merge, roll_names};
use super::pending::{DoneWork, Pending, is_definite, is_next, remains, reports};
use super::prose::clip;
use super::spoken::{Material, ReadSentence, Spoken};
use super::terms::Terms;
use super::tools;
use crate::compaction::Checkpoint;
use crate::compaction::limits::ENTRY_CHARS_MAX;
use crate::compaction::plan::Candidate;
use crate::compaction::render::handoff;
use everturn_core::turn::Role;
use std::collections::{HashMap, HashSet};

/// Separates a new goal from the one with which the conversation began.
const BEFORE: &str = " (before that: ";
/// Marks a question that was asked last: the next speaker answers it.
const AWAITING: &str = ", awaiting an answer)";
/// Maximum number of turns between a question and its answer.
const ANSWER_TURNS_MAX: usize = 50;
/// Most withdrawals that are compared with earlier sentences; the last ones count.
const WITHDRAWALS_MAX: usize = 64;
/// Maximum number of entries that one round adds to a list before the list's own limit is applied.
const PER_ROUND_MAX: usize = 64;
/// Maximum number of turns after the covered ones that are read.
const KEPT_TURNS_MAX: usize = 256;

/// Makes a checkpoint from the previous one and the turns since it.
///
/// Sentences are sorted into the lists by cue and ranked by the strength of their cues, by the names in them,
/// by how often their words occur and by their position. Entries that a later turn answers, completes or
/// replaces are removed from the lists.
pub fn extract(previous: Option<&Checkpoint>, turns: &[Candidate<'_>]) -> Checkpoint {
    extract_before(previous, turns, &[])
}

/// The same before turns that stay verbatim: questions that these answer and work that they report as done are not open.
pub fn extract_before(
    previous: Option<&Checkpoint>,
    turns: &[Candidate<'_>],
    kept: &[Candidate<'_>],
) -> Checkpoint {
    let empty = Checkpoint::default();
    let carried = earlier::carried(previous.unwrap_or(&empty));
    let previous = &carried;
    let material = Material::of(turns);
    let files = Files::of(&material, &previous.relevant_files);
    let kept = &kept[..kept.len().min(KEPT_TURNS_MAX)];
    // Its sentences begin with those of `material`.
    let with_kept = (!kept.is_empty()).then(|| material.followed_by(kept, &[turns, kept].concat()));
    let whole = with_kept.as_ref().unwrap_or(&material);
    let goal = Goal::of(&previous.goal, &material);
    let reading = Reading::of(&material, &files, &goal);
    let reported = material
        .spoken
        .iter()
        .rev()
        .find(|spoken| spoken.role == Role::Assistant && reports(&material, spoken));
    let work = tools::work(&material.calls, &files, reported.map(|spoken| spoken.turn));
    let files_with_kept = with_kept.as_ref().map(|whole| Files::of(whole, &previous.relevant_files));
    let done_work = DoneWork::of(whole, files_with_kept.as_ref().unwrap_or(&files));
    let pending = Pending::of(&material, whole, &done_work);
    let mut next = Checkpoint { goal: goal.text.clone(), ..previous.clone() };

    next.user_constraints.retain(|entry| !reading.is_taken_back(&entry_terms(entry), 0));
    merge(&mut next.user_constraints, reading.lines(Group::Constraint, 12));
    merge(&mut next.decisions, reading.lines(Group::Decision, 8));
    // A failure that a later round repairs is no longer recognised as such; the newest statement is the last
    // one.
    merge(&mut next.discoveries, reading.lines(Group::Discovery, 10).into_iter().chain(work.failures));
    let done = reading.lines(Group::Completed, 8);
    // Shell commands say little about the work; they count only when nothing else does.
    let silent = done.is_empty() && work.edits.is_empty() && work.commits.is_empty();
    let ran = if silent { work.others } else { Vec::new() };
    merge(&mut next.completed_work, done.into_iter().chain(work.commits).chain(work.edits).chain(ran));
    if pending.is_all {
        next.pending_work.clear();
    }
    next.pending_work.retain(|entry| !pending.closes(entry, &done_work));
    merge(&mut next.pending_work, pending.items);
    next.unresolved_questions = open_questions(&previous.unresolved_questions, whole);
    merge(&mut next.unresolved_questions, questions(&material, whole));
    roll_names(&mut next, previous, &material, &files);
    fit(&mut next);
    next.handoff_md = handoff(&next);
    next
}

/// Sentences with their class and score.
struct Reading<'m> {
    material: &'m Material<'m>,
    ranked: Vec<Ranked>,
    settled: Vec<Settled>,
    /// Sentences in which people take something back.
    taken_back: Vec<(usize, &'m Terms)>,
    goal: String,
}

struct Ranked {
    said: usize,
    class: Option<Group>,
    /// Whether it is left out of every list.
    dropped: bool,
    score: u32,
}

impl<'m> Reading<'m> {
    fn of(material: &'m Material<'m>, files: &Files, goal: &Goal) -> Reading<'m> {
        let mut frequency: HashMap<u32, u32> = HashMap::new();
        for said in &material.said {
            for word in said.terms.words.iter().chain(&said.terms.names) {
                *frequency.entry(*word).or_default() += 1;
            }
        }
        let settled = settled(material);
        // A reply that is shown together with its question is not shown again alone.
        let told: HashSet<usize> = settled.iter().map(|settled| settled.reply).collect();
        let withdrawn = withdrawn(material);
        let ranked = material.said.iter().enumerate().filter(|(index, _)| {
            !told.contains(index) && !withdrawn.iter().any(|range| range.contains(index))
        });
        let ranked = ranked.map(|(index, said)| {
            let (mut class, cue) = class_of(material, index, said);
            // Words that lead up to the request are part of it, and a file that is gone needs no report.
            let leads = goal.said.first().is_some_and(|first| {
                index < *first
                    && material.said[*first].spoken == said.spoken
                    && class == Some(Group::Discovery)
            });
            let repeats = || goal.said.contains(&index) || files.names_undone(&said.text);
            let dropped = leads
                || said.taken_back
                || (class.is_none() && is_subject(material, said))
                || (class != Some(Group::Constraint) && repeats());
            if dropped {
                class = None;
            }
            Ranked { said: index, class, dropped, score: score(material, said, cue, &frequency) }
        });
        let takes_back = |said: &(usize, &ReadSentence)| {
            material.role(said.1) == Role::User && said.1.cues.weight(Group::Withdrawal) > 0
        };
        let taken_back = material.said.iter().enumerate().rev().filter(takes_back).take(WITHDRAWALS_MAX);
        let taken_back = taken_back.map(|(index, said)| (index, &said.terms)).collect();
        let ranked = ranked.collect();
        let mut reading = Reading { material, ranked, settled, taken_back, goal: goal.text.clone() };
        let kept = |ranked: &Ranked| {
            ranked.class != Some(Group::Constraint)
                || !reading.is_taken_back(&material.said[ranked.said].terms, ranked.said + 1)
        };
        let kept: Vec<bool> = reading.ranked.iter().map(kept).collect();
        let mut kept = kept.into_iter();
        reading.ranked.retain(|_| kept.next().unwrap_or(true));
        reading
    }

    /// The entries that these turns add to a list, in the order in which they were said. More turns add more
    /// entries.
    fn lines(&self, class: Group, count: usize) -> Vec<String> {
        let of_class = self.ranked.iter().filter(|ranked| ranked.class == Some(class));
        let count = (count + self.material.spoken.len() / 10).min(PER_ROUND_MAX);
        let mut lines = self.choose(of_class.collect(), class, count);
        let settled = self.settled.iter().rev().filter(|settled| settled.class == class).take(count);
        lines.extend(settled.map(|settled| (settled.reply, settled.text.clone())));
        if class == Group::Discovery {
            lines.extend(self.telling());
        }
        lines.sort_by_key(|(said, _)| *said);
        lines.into_iter().map(|(_, text)| text).collect()
    }

    /// The best of these sentences, without repetition.
    fn choose(&self, mut ranked: Vec<&Ranked>, class: Group, count: usize) -> Vec<(usize, String)> {
        ranked.sort_by_key(|ranked| (std::cmp::Reverse(ranked.score), ranked.said));
        let mut chosen: Vec<(usize, String, Terms)> = Vec::new();
        // Index of each sentence, so that one that is said a thousand times is compared once.
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        for Ranked { said, .. } in ranked {
            let sentence = &self.material.said[*said];
            let key = (sentence.text.as_str(), self.material.spoken[sentence.spoken].speaker);
            if let Some(place) = places.get(&key)
                && self.material.said[chosen[*place].0].text == sentence.text
            {
                chosen[*place].0 = chosen[*place].0.max(*said);
                continue;
            }
            let text = quoted(self.material, sentence, class);
            let terms = entry_terms(&text);
            let twin = chosen.iter().position(|(_, other, known)| is_near(other, known, &text, &terms));
            match twin {
                // Of two wordings, the later one is kept.
                Some(twin) if chosen[twin].0 < *said => chosen[twin] = (*said, text, terms),
                Some(_) => {}
                None if chosen.len() < count => chosen.push((*said, text, terms)),
                None => break,
            }
            places.insert(key, twin.unwrap_or(chosen.len() - 1));
        }
        chosen.into_iter().map(|(said, text, _)| (said, text)).collect()
    }

    /// Whether a person takes a demand back, from a sentence on.
    fn is_taken_back(&self, demand: &Terms, from: usize) -> bool {
        self.taken_back.iter().any(|(index, terms)| {
            let shared = demand.shared(terms);
            *index >= from && (shared >= 2 || (shared == 1 && terms.len() <= 3))
        })
    }

    /// Statements without any cue that are closest to the subject of the turns: all there is in many languages,
    /// and in small talk. A few always; more of them where there are few cues.
    fn telling(&self) -> Vec<(usize, String)> {
        let quiet = self.ranked.iter().filter(|ranked| {
            let said = &self.material.said[ranked.said];
            let cues = &said.cues;
            ranked.class.is_none()
                && !ranked.dropped
                && !said.question
                && said.ticked.is_none()
                && said.lead.is_none()
                && cues.weight(Group::Total) == 0
                && cues.weight(Group::Pending) < 4
                && said.terms.len() >= 4
                && !supposes(&said.text)
                && !self.material.announces(said)
                && ![Group::Noise, Group::Agreement].iter().any(|group| cues.starts(*group))
                && ![Group::Request, Group::Deflection, Group::Intent, Group::Dismissal, Group::Proposal]
                    .iter()
                    .any(|group| cues.weight(*group) > 2)
        });
        let cued = self.ranked.iter().filter(|ranked| ranked.class.is_some()).count();
        let few = 2 + self.material.spoken.len() / 6;
        let count = (few + 2).saturating_sub(cued).max(few).min(8);
        let chosen = self.choose(quiet.collect(), Group::Discovery, count + 1);
        // The goal is not repeated.
        chosen
            .into_iter()
            .filter(|(said, _)| !self.goal.contains(self.material.said[*said].text.as_str()))
            .take(count)
            .collect()
    }
}

/// A sentence as an entry. With several speakers, "I" needs a name; with one, only beside what the model did.
pub(super) fn quoted(material: &Material<'_>, said: &ReadSentence, class: Group) -> String {
    let spoken = &material.spoken[said.spoken];
    let named = material.people > 1
        || (spoken.role == Role::User
            && class != Group::Constraint
            && class != Group::Decision
            && is_personal(&said.text));
    if named {
        clip(&format!("{}: {}", attributable(spoken.speaker), said.text), ENTRY_CHARS_MAX)
    } else {
        clip(&said.text, ENTRY_CHARS_MAX)
    }
}

/// Whether a text is a conjecture and not a statement.
fn supposes(text: &str) -> bool {
    const SUPPOSING: [&str; 10] = [
        "would",
        "could",
        "might",
        "should",
        "alternatively",
        "würde",
        "würden",
        "könnte",
        "könnten",
        "sollte",
    ];
    text.split(|c: char| !c.is_alphanumeric()).any(|word| SUPPOSING.contains(&word.to_lowercase().as_str()))
}

/// Whether a text speaks of its speaker.
fn is_personal(text: &str) -> bool {
    const FIRST_PERSON: [&str; 11] =
        ["i", "i'm", "i'll", "i've", "i'd", "my", "ich", "mein", "meine", "meinen", "mir"];
    text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’')
        .any(|word| FIRST_PERSON.contains(&word.to_lowercase().replace('’', "'").as_str()))
}

/// The class of a sentence, and the strength of its cues. What is left to do is not a class: see [`Pending`].
pub(super) fn class_of(material: &Material<'_>, index: usize, said: &ReadSentence) -> (Option<Group>, u8) {
    const STRONG: u8 = 6;
    const CONTRASTS: [&str; 3] = [", not ", ", nicht ", ", kein"];
    let cues = &said.cues;
    if let Some(ticked) = said.ticked {
        return (ticked.then_some(Group::Completed), STRONG);
    }
    if said.question {
        return (None, 0);
    }
    if let Some(lead) = said.lead {
        return ((lead != Group::Pending).then_some(lead), STRONG);
    }
    let spoken = &material.spoken[said.spoken];
    let word = !said.text.contains(' ') && !said.text.contains(super::terms::is_unspaced);
    let empty = word || said.terms.len() == 0 || (cues.starts(Group::Noise) && said.terms.len() < 6);
    if empty || (cues.starts(Group::Agreement) && said.terms.len() < 2) || cues.weight(Group::Deflection) > 0
    {
        return (None, 0);
    }
    let demands = matches!(spoken.role, Role::User | Role::System);
    let asks = demands && cues.weight(Group::Request) >= 3;
    // "should" is a demand of a person; of a model it is only a thought.
    let mut demand = if demands { cues.weight(Group::Constraint) } else { 0 };
    if demand > 0 || (demands && CONTRASTS.iter().any(|contrast| said.text.contains(contrast))) {
        demand = demand.max(2);
    }
    if said.text.starts_with("No,") || said.text.starts_with("Nein,") {
        demand = demand.saturating_sub(4);
    }
    let intends = cues.weight(Group::Intent) > 0 || material.announces(said);
    let dismisses = demands && cues.weight(Group::Dismissal) > 0;
    let remains = remains(said);
    // A model's proposal is a decision once somebody agrees; work that a person declines is one at once.
    let decision = match () {
        // "Let me add a comment about this decision."
        () if !demands && (cues.weight(Group::Proposal) > 0 || cues.starts(Group::Intent)) => 0,
        () if dismisses && is_personal(&said.text) => 0,
        () if dismisses && said.terms.len() >= 3 => STRONG,
        () if demand > 0 => cues.weight(Group::Decision),
        () => cues.weight(Group::Decision).max(reply(material, index, said)),
    };
    if decision == 0 && is_subject(material, said) {
        return (None, 0);
    }
    let states = !intends
        && !asks
        && !dismisses
        && !remains
        && !cues.starts(Group::Noise)
        && cues.weight(Group::Proposal) == 0
        && said.terms.len() >= 3
        && !supposes(&said.text)
        && is_definite(said);
    let classes = [
        (Group::Open, cues.weight(Group::Open)),
        (Group::Decision, decision),
        (Group::Constraint, demand),
        (
            Group::Completed,
            if asks || intends { 0 } else { cues.weight(Group::Completed).max(past(&said.text)) },
        ),
        (Group::Discovery, if intends || asks { 0 } else { cues.weight(Group::Discovery) }),
        (Group::Discovery, if states { 2 } else { 0 }),
    ];
    // The first of equals: `max_by_key` would take the last.
    let least = if said.terms.len() < 2 { 4 } else { 2 };
    let strongest =
        classes.iter().rev().max_by_key(|(_, weight)| *weight).filter(|(_, weight)| *weight >= least);
    strongest.map_or((None, 0), |(class, weight)| (Some(*class), *weight))
}

/// A short statement with which a person answers the model is a decision, if it answers a question or a proposal, or takes
/// up something that the model named: "Own table.", "Ok, the flag then." Otherwise it is the next subject.
fn reply(material: &Material<'_>, index: usize, said: &ReadSentence) -> u8 {
    const WORDS_MAX: usize = 8;
    const LEADING_MAX: usize = 3;
    let spoken = &material.spoken[said.spoken];
    let before = said.spoken.checked_sub(1).map(|before| &material.spoken[before]);
    let is_taken_up = |before: &ReadSentence| {
        inquires(before) || before.cues.weight(Group::Proposal) > 0 || said.terms.meet(&before.terms)
    };
    // Terms of a text without spaces cannot be compared so.
    let agrees = material.said[spoken.said.start].cues.starts(Group::Agreement)
        || said.text.contains(super::terms::is_unspaced);
    let answers = spoken.role == Role::User
        && before.is_some_and(|before| {
            before.role == Role::Assistant && (agrees || material.sentences(before).iter().any(is_taken_up))
        });
    let first = spoken.said.clone().take(LEADING_MAX).find(|index| {
        let said = &material.said[*index];
        !(said.cues.starts(Group::Noise) || said.cues.starts(Group::Agreement) && said.terms.len() == 0)
    });
    let cues = &said.cues;
    let other = [Group::Request, Group::Intent, Group::Dismissal, Group::Pending, Group::Withdrawal];
    let short = said.text.split_whitespace().count() <= WORDS_MAX && !is_next(&said.text);
    let decides = answers
        && first == Some(index)
        && short
        && !is_overruled(material, said.spoken)
        && other.iter().all(|group| cues.weight(*group) < 3);
    if decides { 3 } else { 0 }
}

/// A few words of a person that are all of a turn, with no end and no cue, name a subject: "Question 3 about parser.rs".
fn is_subject(material: &Material<'_>, said: &ReadSentence) -> bool {
    const WORDS_MAX: usize = 8;
    let spoken = &material.spoken[said.spoken];
    let cued = [Group::Constraint, Group::Discovery, Group::Completed, Group::Pending, Group::Open];
    spoken.role == Role::User
        && spoken.said.len() == 1
        && said.text.split_whitespace().count() <= WORDS_MAX
        && !said.text.contains(super::terms::is_unspaced)
        && said.text.ends_with(char::is_alphanumeric)
        && cued.iter().all(|group| said.cues.weight(*group) == 0)
}

/// Sentences of the model that a later one of the same turn takes back.
fn withdrawn(material: &Material<'_>) -> Vec<std::ops::Range<usize>> {
    let by_model = material.spoken.iter().rev().filter(|spoken| spoken.role == Role::Assistant);
    let last = by_model.filter_map(|spoken| {
        let last =
            material.sentences(spoken).iter().rposition(|said| said.cues.weight(Group::Withdrawal) > 0)?;
        Some(spoken.said.start..spoken.said.start + last + 1)
    });
    last.take(WITHDRAWALS_MAX).collect()
}

/// "Documented the flag.": a sentence that begins with a past-tense verb reports finished work.
pub(super) fn past(text: &str) -> u8 {
    const NOT_DONE: [&str; 7] = ["Indeed", "Based", "Related", "Expected", "Failed", "Needed", "Unexpected"];
    const IRREGULAR: [&str; 12] = [
        "Built",
        "Rebuilt",
        "Cut",
        "Made",
        "Put",
        "Rewritten",
        "Rewrote",
        "Set",
        "Split",
        "Taken",
        "Written",
        "Wrote",
    ];
    let first = text.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    let done =
        first.len() > 4 && first.ends_with("ed") && first.starts_with(|c: char| c.is_ascii_uppercase());
    if done && !NOT_DONE.contains(&first) || IRREGULAR.contains(&first) { 3 } else { 0 }
}

/// The score of a sentence.
fn score(material: &Material<'_>, said: &ReadSentence, cue: u8, frequency: &HashMap<u32, u32>) -> u32 {
    let terms = said.terms.words.iter().chain(&said.terms.names);
    let common: u32 = terms.map(|term| frequency.get(term).copied().unwrap_or(0).min(8) - 1).sum();
    let count = said.terms.len() as u32;
    // Long sentences collect terms without saying more about each, so the sum is divided by their number.
    let subject = 12 * common / (count + 4);
    let names = 3 * (said.terms.names.len() + said.terms.numbers.len()).min(4) as u32;
    let place = if said.edge { 2 } else { 0 };
    let who = if material.role(said) == Role::User { 3 } else { 0 };
    let length = match said.text.chars().count() {
        0..20 => 0,
        20..240 => 4,
        _ => 1,
    };
    6 * u32::from(cue) + subject + names + place + who + length
}

/// The goal: the first substantial request, unless a later one changes it.
struct Goal {
    text: String,
    /// Indices of the sentences of people that it consists of.
    said: Vec<usize>,
}

impl Goal {
    fn of(previous: &str, material: &Material<'_>) -> Goal {
        let mut said = Vec::new();
        let text = goal(previous, material, &mut said);
        said.retain(|index| material.role(&material.said[*index]) == Role::User);
        Goal { text, said }
    }
}

fn goal(previous: &str, material: &Material<'_>, indices: &mut Vec<usize>) -> String {
    let mut goal = previous.to_string();
    if goal.is_empty() {
        let is_by_user = |said: &&ReadSentence| material.role(said) == Role::User && !said.taken_back;
        let by_user = || material.said.iter().filter(is_by_user);
        let substance = |said: &&ReadSentence| {
            said.terms.len() >= 3 || (said.terms.len() >= 2 && said.cues.weight(Group::Request) > 0)
        };
        let is_silent = || material.spoken.iter().all(|spoken| spoken.role != Role::User);
        // A short question says what is wanted, too. A model's words are no request, unless nobody else speaks.
        let first = by_user()
            .find(substance)
            .or_else(|| by_user().find(|said| said.question && said.text.split_whitespace().count() >= 3))
            .or_else(|| material.said.iter().filter(|_| is_silent()).find(substance))
            .map(|said| said.spoken);
        let best = first.and_then(|spoken| {
            let range = material.spoken[spoken].said.clone();
            // The first of equals, because a request comes before its details.
            let standing = range.rev().filter(|index| !material.said[*index].taken_back);
            standing.max_by_key(|index| {
                let said = &material.said[*index];
                let (request, demand) =
                    (said.cues.weight(Group::Request), said.cues.weight(Group::Constraint));
                (6 * u32::from(request)
                    + said.terms.len().min(8) as u32
                    + 2 * said.terms.names.len().min(3) as u32)
                    .saturating_sub(4 * u32::from(demand))
            })
        });
        goal = best.map(|best| in_context(material, best, indices)).unwrap_or_default();
    }
    let start = goal.clone();
    let changed = material.said.iter().enumerate().rev().find(|(_, said)| {
        let cues = &said.cues;
        let instead = cues.weight(Group::Request) > 0 && said.text.to_lowercase().starts_with("instead");
        material.role(said) == Role::User
            && !said.question
            && said.terms.len() >= 2
            && (cues.weight(Group::GoalChange) > 0 || instead)
            && !start.contains(said.text.as_str())
    });
    if let Some((index, said)) = changed {
        indices.push(index);
        let began = goal.split_once(BEFORE).map_or(goal.as_str(), |(_, began)| began.trim_end_matches(')'));
        let new = clip(&said.text, ENTRY_CHARS_MAX);
        goal = if began.is_empty() { new } else { format!("{new}{BEFORE}{})", clip(began, 160)) };
    }
    goal
}

/// A sentence; if it says little or speaks of "it", prefixed with those before it in its turn that say what it is about.
fn in_context(material: &Material<'_>, index: usize, indices: &mut Vec<usize>) -> String {
    let start = material.spoken[material.said[index].spoken].said.start;
    let said = &material.said[index];
    let (mut first, mut text) = (index, said.text.clone());
    while first > start
        && (refers_back(&material.said[first].text) || (first == index && said.terms.len() < 4))
    {
        let before = &material.said[first - 1];
        let longer = format!("{} {text}", before.text);
        if before.terms.len() < 2
            || before.cues.starts(Group::Noise)
            || longer.chars().count() > ENTRY_CHARS_MAX
        {
            break;
        }
        (first, text) = (first - 1, longer);
    }
    indices.extend(first..=index);
    clip(&text, ENTRY_CHARS_MAX)
}

/// Whether a sentence speaks of something that another one before it names.
fn refers_back(text: &str) -> bool {
    const ALWAYS: [&str; 6] = ["it", "its", "it's", "them", "they", "es"];
    // "Please do this." and not "Please do this step."
    const AT_END: [&str; 6] = ["this", "that", "these", "those", "das", "dies"];
    text.split_whitespace().any(|word| {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase().replace('’', "'");
        let ends = || word.ends_with(['.', ',', '!', '?', ';', ':']) || text.ends_with(word);
        ALWAYS.contains(&bare.as_str()) || (AT_END.contains(&bare.as_str()) && ends())
    })
}

/// A question with its short answer, or a proposal that the next speaker agrees to: each is incomplete without
/// the other.
struct Settled {
    text: String,
    /// The sentence that is meaningless without the other one.
    reply: usize,
    class: Group,
}

fn settled(material: &Material<'_>) -> Vec<Settled> {
    const PERMISSIONS: [&str; 5] = ["May I", "Shall I", "Can I", "Darf ich", "Soll ich"];
    const SHORT_WORDS: usize = 8;
    const REPLY_CHARS: usize = 100;
    let mut found = Vec::new();
    for (index, pair) in material.spoken.windows(2).enumerate() {
        let [asks, replies] = pair else { continue };
        if is_overruled(material, index + 1) {
            continue;
        }
        if asks.speaker == replies.speaker || replies.role != Role::User || !replies.answers() {
            continue;
        }
        let reply = &material.said[replies.said.start];
        let agrees = reply.cues.starts(Group::Agreement);
        let brief = reply.text.split_whitespace().count() <= SHORT_WORDS && !reply.question;
        let Some(last) = material.sentences(asks).last() else { continue };
        let proposal =
            material.sentences(asks).iter().rev().find(|said| {
                !said.question && said.terms.len() >= 2 && said.cues.weight(Group::Proposal) >= 3
            });
        let text = if inquires(last) {
            // The permission for a step says nothing once the step is taken.
            let permits =
                agrees && reply.terms.len() == 0 && PERMISSIONS.iter().any(|ask| last.text.starts_with(ask));
            if !brief || permits || reply.cues.starts(Group::Noise) {
                continue;
            }
            let question = clip(&quoted(material, last, Group::Decision), ENTRY_CHARS_MAX - REPLY_CHARS);
            format!("{question} → {}", clip(&quoted(material, reply, Group::Decision), REPLY_CHARS - 3))
        } else if let Some(proposal) = proposal.filter(|_| agrees) {
            quoted(material, proposal, Group::Decision)
        } else {
            continue;
        };
        let demand = reply.cues.weight(Group::Constraint) >= 2;
        let class = if demand { Group::Constraint } else { Group::Decision };
        found.push(Settled { text, reply: replies.said.start, class });
    }
    found
}

/// Whether the next speaker, also a person, says no.
fn is_overruled(material: &Material<'_>, spoken: usize) -> bool {
    material.spoken.get(spoken + 1).is_some_and(|next| {
        let first = material.said[next.said.start].text.as_str();
        next.role == Role::User && ["No,", "No.", "Nein,", "Nein."].iter().any(|no| first.starts_with(no))
    })
}

/// Questions of the covered turns that no later turn answers, one that stays verbatim included.
fn questions(material: &Material<'_>, whole: &Material<'_>) -> Vec<String> {
    let mut open: Vec<(&ReadSentence, bool)> = Vec::new();
    for (index, said) in material.said.iter().enumerate() {
        let explicit = said.lead == Some(Group::Open)
            || (said.cues.weight(Group::Open) > 0 && said.cues.weight(Group::Resolution) == 0);
        if said.ticked.is_some() || !(inquires(said) || (explicit && said.terms.len() >= 2)) {
            continue;
        }
        let behind = material.said.get(index + 1).filter(|next| next.spoken == said.spoken);
        let rhetorical = behind.is_some_and(|next| answers_itself(&next.text));
        // A counter-question leaves it open; so does "I'll ask".
        let reply = replies(whole, said).find(|spoken| spoken.states);
        let answered = reply.is_some_and(Spoken::answers);
        if !(rhetorical || (answered && !explicit)) {
            open.push((said, explicit));
        }
    }
    // Each of them is compared with everything said later.
    if open.len() > 2 * PER_ROUND_MAX {
        open.drain(PER_ROUND_MAX..open.len() - PER_ROUND_MAX);
    }
    open.retain(|(said, _)| !is_settled(&said.terms, whole, said.spoken + 1));
    let entries = open.into_iter().map(|(said, explicit)| {
        let text = clip(&said.text, ENTRY_CHARS_MAX - 60);
        if explicit || replies(whole, said).next().is_some() {
            return text;
        }
        format!("{text} (asked by {}{AWAITING}", shown(material.spoken[said.spoken].speaker))
    });
    entries.collect()
}

/// A speaker's name as shown after a question.
fn shown(speaker: &str) -> String {
    clip(speaker, 30)
}

/// Whether a sentence asks for something in particular: "Anything else?" does not.
fn inquires(said: &ReadSentence) -> bool {
    const POLITE: [&str; 3] = ["anything else", "something else", "sonst noch"];
    let is_polite = || {
        let text = said.text.to_lowercase();
        said.terms.len() < 4 && POLITE.iter().any(|words| text.contains(words))
    };
    said.question && said.terms.len() >= 2 && !is_polite()
}

/// Turns in which others could have answered.
fn replies<'m>(material: &'m Material<'m>, said: &ReadSentence) -> impl Iterator<Item = &'m Spoken<'m>> {
    let asker = material.spoken[said.spoken].speaker;
    let later = material.spoken[said.spoken + 1..].iter().take(ANSWER_TURNS_MAX);
    later.filter(move |spoken| spoken.speaker != asker && spoken.role != Role::System)
}

fn answers_itself(next: &str) -> bool {
    const BEGINNINGS: [&str; 9] =
        ["because", "yes", "no", "yep", "nope", "short answer", "weil", "ja", "nein"];
    let next = next.to_lowercase();
    BEGINNINGS
        .iter()
        .any(|word| next.strip_prefix(word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
}

/// Questions of the previous checkpoint that the new turns leave open.
pub(super) fn open_questions(previous: &[String], material: &Material<'_>) -> Vec<String> {
    previous
        .iter()
        .filter_map(|entry| {
            let waits = entry.strip_suffix(AWAITING).and_then(|rest| rest.rsplit_once(" (asked by "));
            let (text, asker) = waits.map_or((entry.as_str(), None), |(text, asker)| (text, Some(asker)));
            if is_settled(&entry_terms(text), material, 0) {
                return None;
            }
            let Some(asker) = asker else { return Some(entry.clone()) };
            let reply = material.spoken.iter().find(|spoken| {
                spoken.states && spoken.role != Role::System && shown(spoken.speaker) != asker
            });
            match reply {
                Some(spoken) if spoken.answers() => None,
                // It was deferred: from now on only a turn about it settles it.
                Some(_) => Some(text.to_string()),
                None => Some(entry.clone()),
            }
        })
        .collect()
}

/// Whether a statement from this turn on covers most terms of a question.
fn is_settled(question: &Terms, material: &Material<'_>, from: usize) -> bool {
    let Some(first) = material.spoken.get(from) else { return false };
    material.said[first.said.start..].iter().any(|said| {
        if said.question {
            return false;
        }
        let shared = question.shared(&said.terms);
        let enough = if said.cues.weight(Group::Resolution) > 0 { 4 } else { 6 };
        shared >= 2
            && shared * 10 >= question.len() * enough
            && question.names_within(&said.terms)
            && said.cues.weight(Group::Open) == 0
            && said.cues.weight(Group::Deflection) == 0
            && said.cues.weight(Group::Pending) == 0
            && said.lead != Some(Group::Open)
    })
}
