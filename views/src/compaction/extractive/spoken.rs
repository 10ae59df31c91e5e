//! The covered turns, parsed once: sentences of people and models, and every text that may contain a name.

use super::cues::{Cues, Group};
use super::terms::Terms;
use super::tools::{self, ToolCall};
use super::{pasted, prose};
use crate::compaction::plan::Candidate;
use crate::speech;
use everturn_core::event::Visibility;
use everturn_core::message::{self, MessagePart};
use everturn_core::redaction;
use everturn_core::turn::Role;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;

/// Source of a text, from most to least significant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::compaction) enum Source {
    /// A person, or instructions.
    User,
    /// A model.
    Assistant,
    /// Arguments of a tool call, or the name of a file.
    Call,
    /// Name of a tool.
    Tool,
    /// Output of a tool.
    Output,
}

/// A sentence of the covered turns, with its properties.
#[derive(Clone, Debug)]
pub(super) struct ReadSentence {
    pub text: String,
    /// Index of its [`Spoken`].
    pub spoken: usize,
    pub cues: Cues,
    pub terms: Terms,
    pub lead: Option<Group>,
    pub ticked: Option<bool>,
    /// Whether it is an item of a list.
    pub listed: bool,
    /// Whether it is an item of a list that its speaker takes back: "Ignore them."
    pub taken_back: bool,
    pub question: bool,
    /// Whether it is the first or the last of its turn.
    pub edge: bool,
}

/// A turn that contains sentences.
#[derive(Clone, Debug)]
pub(super) struct Spoken<'a> {
    /// The actor, else the role.
    pub speaker: &'a str,
    /// Index of the turn among the covered ones.
    pub turn: usize,
    pub role: Role,
    /// Whether it contains anything other than questions.
    pub states: bool,
    /// Whether it defers an answer.
    pub defers: bool,
    /// Its sentences in [`Material::said`].
    pub said: std::ops::Range<usize>,
}

impl Spoken<'_> {
    /// Whether this turn answers a question that another speaker asked before.
    pub fn answers(&self) -> bool {
        self.states && !self.defers
    }
}

/// Everything read from the covered turns.
#[derive(Default)]
pub(super) struct Material<'a> {
    pub spoken: Vec<Spoken<'a>>,
    pub said: Vec<ReadSentence>,
    /// Number of different speakers.
    pub people: usize,
    /// Every text with its source, secrets masked. A log that a person pasted is output.
    pub texts: Vec<(Source, Cow<'a, str>)>,
    pub calls: Vec<ToolCall<'a>>,
    /// Number of turns.
    pub turns: usize,
}

impl<'a> Material<'a> {
    pub fn of(turns: &[Candidate<'a>]) -> Material<'a> {
        let mut material = Material { calls: tools::calls(turns), ..Material::default() };
        material.read(turns);
        material
    }

    /// The same with further turns; `all` are those of both.
    pub fn followed_by(&self, turns: &[Candidate<'a>], all: &[Candidate<'a>]) -> Material<'a> {
        let (spoken, said, texts) = (self.spoken.clone(), self.said.clone(), self.texts.clone());
        let mut material =
            Material { spoken, said, texts, calls: tools::calls(all), people: 0, turns: self.turns };
        material.read(turns);
        material
    }

    fn read(&mut self, turns: &[Candidate<'a>]) {
        for turn in turns {
            self.turns += 1;
            let first = self.texts.len();
            for (source, text) in texts(turn) {
                match source {
                    Source::User => self.push_words(text),
                    _ => self.texts.push((source, text)),
                }
            }
            let start = self.said.len();
            for (_, text) in self.texts[first..]
                .iter()
                .filter(|(source, _)| matches!(source, Source::User | Source::Assistant))
            {
                for sentence in prose::sentences(text) {
                    let cues = Cues::of(&sentence.text);
                    let (lead, ticked, listed) = (sentence.lead, sentence.ticked, sentence.listed);
                    let mut push = |text: String, cues: Cues| {
                        self.said.push(ReadSentence {
                            spoken: self.spoken.len(),
                            cues,
                            terms: Terms::of(&text),
                            question: is_question(&text),
                            lead,
                            ticked,
                            listed,
                            taken_back: false,
                            edge: false,
                            text,
                        });
                    };
                    match final_demand(&sentence.text, &cues).filter(|_| turn.role == Role::User) {
                        Some(parts) => parts.into_iter().for_each(|text| {
                            let cues = Cues::of(&text);
                            push(text, cues);
                        }),
                        None => push(sentence.text, cues),
                    }
                }
            }
            let said = start..self.said.len();
            if said.is_empty() {
                continue;
            }
            self.said[said.start].edge = true;
            self.said[said.end - 1].edge = true;
            let speaker = turn.actor.unwrap_or(turn.role.as_str());
            if turn.role == Role::User && self.said[said.clone()].iter().any(takes_list_back) {
                self.take_list_back(speaker);
            }
            let sentences = &self.said[said.clone()];
            self.spoken.push(Spoken {
                states: sentences.iter().any(|said| !said.question),
                defers: defers(sentences),
                speaker,
                turn: self.turns - 1,
                role: turn.role,
                said,
            });
        }
        let people = self.spoken.iter().filter(|spoken| spoken.role == Role::User);
        self.people = people.map(|spoken| spoken.speaker).collect::<HashSet<_>>().len();
    }

    /// Takes back the lists of the last turn of this speaker.
    fn take_list_back(&mut self, speaker: &str) {
        if let Some(last) = self.spoken.iter().rfind(|spoken| spoken.speaker == speaker) {
            for said in &mut self.said[last.said.clone()] {
                said.taken_back |= said.listed;
            }
        }
    }

    fn push_words(&mut self, text: Cow<'a, str>) {
        let (words, log) = pasted::split(&text);
        match log {
            None => self.texts.push((Source::User, text)),
            Some(log) => {
                let words = words.into_owned();
                self.texts.push((Source::User, Cow::Owned(words)));
                self.texts.push((Source::Output, Cow::Owned(log)));
            }
        }
    }

    pub fn role(&self, said: &ReadSentence) -> Role {
        self.spoken[said.spoken].role
    }

    /// Whether a turn of the model leads to a tool call: in it, or before anybody speaks again.
    pub fn leads_to_call(&self, index: usize) -> bool {
        let spoken = &self.spoken[index];
        let end = self.spoken.get(index + 1).map_or(usize::MAX, |next| next.turn);
        let first = self.calls.partition_point(|call| call.turn < spoken.turn);
        spoken.role == Role::Assistant && self.calls.get(first).is_some_and(|call| call.turn < end)
    }

    /// Whether the model names the step that it takes at once: "Now I update src/lexer.rs.", and the call.
    pub fn announces(&self, said: &ReadSentence) -> bool {
        said.cues.weight(Group::Announcement) > 2 && self.leads_to_call(said.spoken)
    }

    pub fn sentences(&self, spoken: &Spoken<'_>) -> &[ReadSentence] {
        &self.said[spoken.said.clone()]
    }
}

/// "Ok, ignore them then.": all of what its speaker listed before, such as the comments of a review.
fn takes_list_back(said: &ReadSentence) -> bool {
    const TERMS_MAX: usize = 2;
    let mut words = said.text.split(|c: char| !c.is_alphanumeric());
    said.cues.weight(Group::Withdrawal) > 0
        && said.terms.len() <= TERMS_MAX
        && words.any(|word| ["them", "these", "those", "all"].contains(&word))
}

/// Whether an answer is put off, and not given after all: "Let me ask… ok, they have one."
fn defers(sentences: &[ReadSentence]) -> bool {
    let last = sentences.iter().rposition(|said| said.cues.weight(Group::Deflection) > 0);
    let tells = |said: &ReadSentence| {
        let announces = [Group::Intent, Group::Pending, Group::Open, Group::Total];
        !said.question && said.terms.len() >= 4 && announces.iter().all(|group| said.cues.weight(*group) == 0)
    };
    last.is_some_and(|last| !sentences[last + 1..].iter().any(tells))
}

/// Splits a demand off the end of a request: "Please fix it, and don't change the API." It is in force for longer than the
/// request is open.
fn final_demand(text: &str, cues: &Cues) -> Option<[String; 2]> {
    const JOINTS: [&str; 6] = [", and ", ", but ", "; ", ", und ", ", aber ", " – "];
    const JOINTS_MAX: usize = 4;
    if cues.weight(Group::Request) < 3 || cues.weight(Group::Constraint) < 4 {
        return None;
    }
    let joints = JOINTS.iter().flat_map(|joint| {
        text.match_indices(joint).take(JOINTS_MAX).map(|(at, joint)| (at, at + joint.len()))
    });
    joints.map(|(end, start)| (&text[..end], &text[start..])).find_map(|(request, demand)| {
        let (asks, demands) = (Cues::of(request), Cues::of(demand));
        let is_split = asks.weight(Group::Request) >= 3
            && asks.weight(Group::Constraint) == 0
            && demands.weight(Group::Constraint) >= 4
            && !is_question(demand);
        is_split.then(|| [format!("{request}."), demand.to_string()])
    })
}

fn is_question(text: &str) -> bool {
    text.trim_end_matches(['"', '\'', ')', '”', '’', '“', '*', ' ']).ends_with(['?', '？', '؟'])
}

/// Texts of a turn. Private ones are left out: every participant reads a checkpoint.
pub(in crate::compaction) fn texts<'a>(turn: &Candidate<'a>) -> Vec<(Source, Cow<'a, str>)> {
    turn.message.map_or_else(Vec::new, |message| texts_of(message, turn.role))
}

/// The texts of a message.
pub(in crate::compaction) fn texts_of(message: &Value, role: Role) -> Vec<(Source, Cow<'_, str>)> {
    let mut out = Vec::new();
    if is_private(message) {
        return out;
    }
    let mut texts = speech::Texts::default();
    let blocks = match message.get("content") {
        Some(Value::Array(blocks)) if message.get("role").is_some() => &blocks[..],
        _ => &[],
    };
    for (index, part) in message::parts(message).into_iter().enumerate() {
        if blocks.get(index).is_some_and(is_private) {
            continue;
        }
        match part {
            MessagePart::Text(text) => match role {
                Role::User => match texts.words(text) {
                    Ok(Cow::Borrowed(words)) => push(Source::User, words, &mut out),
                    Ok(Cow::Owned(words)) => push_owned(Source::User, &words, &mut out),
                    Err(_) => push(Source::Output, text, &mut out),
                },
                Role::System => push(Source::User, text, &mut out),
                Role::Assistant => push(Source::Assistant, text, &mut out),
                Role::Tool => output(text, &mut |text| push_owned(Source::Output, text, &mut out)),
            },
            MessagePart::Call { name, arguments, .. } => {
                push(Source::Tool, name, &mut out);
                if let Some(arguments) = arguments {
                    outputs(&message::arguments(arguments), &mut |text| {
                        push_owned(Source::Call, text, &mut out);
                    });
                }
            }
            MessagePart::Result { content: Some(content), .. } => {
                outputs(content, &mut |text| push_owned(Source::Output, text, &mut out));
            }
            MessagePart::Media { label, asset_id, .. } => {
                for name in [label, asset_id].into_iter().flatten() {
                    push(Source::Call, name, &mut out);
                }
            }
            _ => {}
        }
    }
    out
}

pub(super) fn is_private(value: &Value) -> bool {
    message::visibility(value) == Visibility::Private
}

fn push<'a>(source: Source, text: &'a str, out: &mut Vec<(Source, Cow<'a, str>)>) {
    out.push((source, masked(text)));
}

fn push_owned(source: Source, text: &str, out: &mut Vec<(Source, Cow<'_, str>)>) {
    out.push((source, Cow::Owned(masked(text).into_owned())));
}

/// Masks secrets: they must not survive in a checkpoint after their turn was erased.
pub(super) fn masked(text: &str) -> Cow<'_, str> {
    redaction::mask(text, &mut Vec::new())
}

/// Calls back for every string in a value, at any depth; keys are not included.
pub(super) fn strings(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => found(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, found)),
        // The bytes of an image are not text.
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "data" | "type" | "mime_type" | "media_type"))
            .for_each(|(_, item)| strings(item, found)),
        _ => {}
    }
}

/// The same for a call or a tool result, with JSON in its texts decoded.
pub(super) fn outputs(content: &Value, found: &mut dyn FnMut(&str)) {
    strings(content, &mut |text| output(text, found));
}

fn output(text: &str, found: &mut dyn FnMut(&str)) {
    match message::json_within(text) {
        Some(json) => outputs(&json, found),
        None => found(text),
    }
}
