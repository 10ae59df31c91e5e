//! The input of one model call: sections in a fixed order, each counted, all inside a token budget.
//!
//! [`assemble`] selects the content. It is pure: the material is gathered by `engine`,
//! and the result is rendered by `formats`. The same material and the same request give the same result.

mod abandoned;
mod participants;
mod unpaired;

pub use abandoned::{GivenUp, answer_abandoned};
use everturn_core::error::code;
pub use participants::{Seen, seen_by};
pub use unpaired::{Unshown, drop_unanswered, drop_unpaired};

use crate::projection::{self, Clearing, Message, ProjectionPolicy, Trigger, ViewOptions};
use crate::tokens::{PART_TOKENS, PROMPT_TOKENS, TokenizerFamily};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::clip;
use everturn_core::json::Raw;
use everturn_core::pairing;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Version of the receipt; a receipt of another version is refused.
pub const VERSION: u32 = 1;

/// Sections of a prompt, in the order in which the model reads them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// The system prompt and instructions for this call.
    System,
    /// Checkpoint, pins, pending approvals and tools.
    State,
    /// Recalled facts.
    Facts,
    /// Recalled turns older than the tail.
    Recalled,
    /// Texts provided by the caller.
    Digests,
    /// The last turns, verbatim.
    Tail,
    /// The new input.
    Input,
}

impl Section {
    /// All sections, in order.
    pub const ALL: [Section; 7] = [
        Section::System,
        Section::State,
        Section::Facts,
        Section::Recalled,
        Section::Digests,
        Section::Tail,
        Section::Input,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Section::System => "system",
            Section::State => "state",
            Section::Facts => "facts",
            Section::Recalled => "recalled",
            Section::Digests => "digests",
            Section::Tail => "tail",
            Section::Input => "input",
        }
    }

    /// Default share of the room left by the fixed sections. The tail also gets the room that the others leave.
    fn share(self) -> f64 {
        match self {
            Section::Facts => 0.10,
            Section::Recalled => 0.20,
            Section::Digests => 0.20,
            Section::Tail => 0.50,
            _ => 1.0,
        }
    }

    /// Title above its entries.
    fn title(self) -> &'static str {
        match self {
            Section::State => "# State of this conversation\n\n",
            Section::Facts => "# Facts from earlier conversations\n\n",
            Section::Recalled => "# Earlier turns that may matter\n\n",
            _ => "",
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Setting of one section in a request.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum SectionChoice {
    /// Included or not.
    On(bool),
    /// Included, with this share of the room.
    Share {
        /// A number between 0 and 1.
        share: f64,
    },
}

/// Settings by section. A section that is not named is included, with its default share.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Sections(pub BTreeMap<Section, SectionChoice>);

impl Sections {
    /// Parses `{"facts": false, "recalled": {"share": 0.3}}`.
    pub fn parse(value: &Value) -> Result<Sections, Error> {
        let wrong =
            |field: &str, what: &str| Error::invalid("context.sections", format!("sections{field} {what}"));
        let fields = value.as_object().ok_or_else(|| wrong("", "must be an object"))?;
        let mut sections = Sections::default();
        for (name, value) in fields {
            let section =
                Section::ALL.into_iter().find(|section| section.as_str() == name).ok_or_else(|| {
                    let names = Section::ALL.map(Section::as_str).join(", ");
                    wrong(&format!(".{}", clip(name)), &format!("is not one of {names}"))
                })?;
            let share = |value: &Value| value.as_f64().filter(|share| (0.0..=1.0).contains(share));
            let choice = match value {
                Value::Bool(on) => Some(SectionChoice::On(*on)),
                Value::Object(fields) if fields.len() == 1 => {
                    fields.get("share").and_then(share).map(|share| SectionChoice::Share { share })
                }
                _ => None,
            };
            let choice = choice
                .ok_or_else(|| wrong(&format!(".{name}"), "must be true, false or {\"share\": 0…1}"))?;
            sections.0.insert(section, choice);
        }
        Ok(sections)
    }

    /// Whether a section is included.
    pub fn has(&self, section: Section) -> bool {
        self.0.get(&section) != Some(&SectionChoice::On(false))
    }

    fn share(&self, section: Section) -> f64 {
        match self.0.get(&section) {
            Some(SectionChoice::Share { share }) => *share,
            _ => section.share(),
        }
    }
}

/// Origin of something in a prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockSource {
    /// Events or facts, by id.
    Ids(Vec<String>),
    /// Provided by the caller.
    Given,
    /// Written by the assembly itself.
    Made,
}

impl Serialize for BlockSource {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            BlockSource::Ids(ids) => ids.serialize(serializer),
            BlockSource::Given => serializer.serialize_str("given"),
            BlockSource::Made => serializer.serialize_str("made"),
        }
    }
}

impl<'de> Deserialize<'de> for BlockSource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(word) if word == "given" => Ok(BlockSource::Given),
            Value::String(word) if word == "made" => Ok(BlockSource::Made),
            Value::Array(ids) => {
                Ok(BlockSource::Ids(ids.iter().filter_map(Value::as_str).map(str::to_string).collect()))
            }
            _ => Err(serde::de::Error::custom("a source is a list of ids, \"given\" or \"made\"")),
        }
    }
}

impl JsonSchema for BlockSource {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Source".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "string", "enum": ["given", "made"]},
            ]
        })
    }
}

/// A text that may be included.
#[derive(Clone, PartialEq, Debug)]
pub struct ContextText {
    /// Origin of the text.
    pub source: BlockSource,
    /// The text as the model reads it.
    pub text: String,
}

/// A message that may be included.
#[derive(Clone, PartialEq, Debug)]
pub struct ContextMessage {
    /// Origin of the message.
    pub source: BlockSource,
    /// `seq` of its turn.
    pub seq: Option<u64>,
    /// Its exact text, as it will be rendered.
    pub raw: Raw,
    /// The parsed message.
    pub message: Value,
    /// Its size in tokens.
    pub tokens: u64,
}

/// Everything that may be included.
#[derive(Clone, Debug, Default)]
pub struct Material {
    /// System prompt and instructions.
    pub system: Vec<ContextText>,
    /// The state.
    pub state: Option<ContextText>,
    /// Facts, the most relevant first.
    pub facts: Vec<ContextText>,
    /// Recalled turns, the most relevant first.
    pub recalled: Vec<ContextText>,
    /// Digests, the most important first.
    pub digests: Vec<ContextText>,
    /// The last turns, oldest first.
    pub tail: Vec<ContextMessage>,
    /// Whether there are older turns that were not gathered because no budget could hold them.
    pub more: bool,
    /// The new input.
    pub input: Vec<ContextMessage>,
}

/// Budget and selection.
#[derive(Clone, Debug)]
pub struct ContextSelection {
    /// Maximum number of tokens.
    pub token_budget: u64,
    /// Number of turns of the tail. All of them are wanted: recalled turns, facts and digests make room for
    /// them.
    pub last_n: Option<usize>,
    /// Sections to include.
    pub sections: Sections,
    /// Tokenizer.
    pub family: TokenizerFamily,
    /// Tokens of the tool definitions sent along.
    pub tools_tokens: u64,
    /// `seq` before which no turn is included in the tail: recalled turns are older.
    pub begins: Option<u64>,
}

/// The assembled context.
#[derive(Clone, Debug)]
pub struct Assembled<'a> {
    /// Text sections, in order.
    pub texts: Vec<Text>,
    /// Tail and input, in order.
    pub messages: Vec<Cow<'a, ContextMessage>>,
    /// Number of them that belong to the tail.
    pub tail: usize,
    /// Token counts.
    pub tokens: ContextTokens,
    /// Included blocks.
    pub blocks: Vec<ContextBlock>,
    /// Omitted items, with reasons.
    pub left_out: Vec<LeftOut>,
}

/// A text section.
#[derive(Clone, PartialEq, Debug)]
pub struct Text {
    /// The section.
    pub section: Section,
    /// The text as the model reads it.
    pub text: String,
}

/// Token counts of a context.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ContextTokens {
    /// Maximum number of tokens.
    pub budget: u64,
    /// Number of tokens used.
    pub used: u64,
    /// Tokens by section.
    pub by_section: BTreeMap<Section, u64>,
}

/// One entry of a receipt.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Block")]
#[non_exhaustive]
pub struct ContextBlock {
    /// Section that it is in.
    pub section: Section,
    /// Origin: ids of events or facts, `given` by the caller, or `made` by the assembly itself.
    pub source: BlockSource,
    /// Hash of its text.
    pub sha256: Hash,
    /// Its size in tokens.
    pub tokens: u64,
}

/// An item that was left out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// Section that it would be in.
    pub section: Section,
    /// Origin: ids of events or facts, `given` by the caller, or `made` by the assembly itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<BlockSource>,
    /// Number of turns, for the tail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Reason for leaving it out.
    pub reason: String,
}

impl LeftOut {
    /// Whether it was left out for lack of room.
    pub fn lacked_room(&self) -> bool {
        self.reason == BUDGET_FULL || self.reason == BODIES_LEFT_OUT
    }

    /// Whether it stands for older turns that were not even read, since no budget seemed to hold them.
    pub fn is_unread(&self) -> bool {
        self.reason == BUDGET_FULL && self.turns.is_none()
    }
}

/// Reason for turns left out without being asked to.
const BUDGET_FULL: &str = "they do not fit into the budget";
/// Reason for tool results that are included without their bodies.
const BODIES_LEFT_OUT: &str = "the bodies of their tool results do not fit";
/// Part of the room for the tail that has to be free for older turns to be tried.
pub const FREE_PART: u64 = 10;

/// Selects the content of the prompt.
pub fn assemble<'a>(request: &ContextSelection, material: &'a Material) -> Result<Assembled<'a>, Error> {
    let Material { system, state, facts, recalled, digests, tail, more, input } = material;
    let family = request.family;
    let system = Chosen::all(family, Section::System, system.iter().collect());
    let state = Chosen::all(family, Section::State, state.iter().collect());
    let asked: u64 = input.iter().map(|said| said.tokens).sum();
    let room = room(request, system.cost + request.tools_tokens, state.cost, asked)?;
    let mut left_out = Vec::new();
    let share = |section| (room as f64 * request.sections.share(section)) as u64;
    let mut choose = |section, pieces| Chosen::within(family, section, pieces, share(section), &mut left_out);
    // In the order in which they make room.
    let mut flexible = [
        choose(Section::Recalled, recalled),
        choose(Section::Facts, facts),
        choose(Section::Digests, digests),
    ];
    let tail = Tail::new(tail, request.last_n);
    // Tokens reserved for the tail: those of the requested number of turns, else its share.
    let wanted = tail.cost(tail.first);
    let wanted = if request.last_n.is_some() { wanted } else { wanted.min(share(Section::Tail)) };
    let over =
        |flexible: &[Chosen<'_>]| flexible.iter().map(|chosen| chosen.cost).sum::<u64>() + wanted > room;
    for index in 0..flexible.len() {
        while over(&flexible) && flexible[index].drop_last(family, &mut left_out) {}
    }
    let others: u64 = flexible.iter().map(|chosen| chosen.cost).sum();
    let shown = tail.shown(room.saturating_sub(others), request)?;
    let omitted = tail.said.len() - shown.said.len();
    if omitted > 0 || *more {
        let reason = match request.last_n {
            Some(n) if omitted == tail.first => format!("only the last {n} were asked for"),
            _ => BUDGET_FULL.to_string(),
        };
        // If older turns were not even read, their number is unknown.
        let turns = (!more).then_some(omitted as u64);
        left_out.push(LeftOut { section: Section::Tail, source: None, turns, reason });
    }
    if shown.bare > 0 {
        let (turns, reason) = (Some(shown.bare), BODIES_LEFT_OUT.to_string());
        left_out.push(LeftOut { section: Section::Tail, source: None, turns, reason });
    }
    let [recalled, facts, digests] = flexible;
    let texts = [system, state, facts, recalled, digests];
    Ok(Assembled::new(request, texts, shown.said, input, left_out))
}

/// Refuses a prompt without any message, where not even the newest turn fits: no provider accepts one.
pub fn check_newest(
    budget: u64,
    request: &ContextSelection,
    material: &Material,
    assembled: &Assembled<'_>,
) -> Result<(), Error> {
    let newest = newest_tokens(request, material)?;
    if !assembled.messages.is_empty() || newest == 0 {
        return Ok(());
    }
    let fixed = assembled.tokens.used - PROMPT_TOKENS;
    Err(Error::too_large(
        code::BUDGET_TOO_SMALL,
        format!(
            "token_budget is {budget}, but {} are needed for the newest turn alone: turn {newest}, system, state and other \
             sections {fixed}, frame {PROMPT_TOKENS}; raise it",
            newest + fixed + PROMPT_TOKENS
        ),
    ))
}

/// Tokens of the newest turn, at its shortest; 0 if the prompt needs none, because it has input or there are no turns.
pub fn newest_tokens(request: &ContextSelection, material: &Material) -> Result<u64, Error> {
    let tail = Tail::new(&material.tail, request.last_n);
    if !material.input.is_empty() || tail.first == tail.said.len() {
        return Ok(0);
    }
    let newest = (tail.first..tail.said.len()).rev().find(|index| tail.legal[*index]).unwrap_or(tail.first);
    let bare = without_bodies(&tail.said[newest..], request.family)?;
    Ok(tail.cost(newest).min(bare.iter().map(|said| said.tokens).sum()))
}

/// Tokens of the smallest group of calls and results in the tail before the newest one; `None` if there is none.
pub fn least_older(request: &ContextSelection, material: &Material) -> Option<u64> {
    let tail = Tail::new(&material.tail, request.last_n);
    let begins: Vec<usize> =
        (tail.first..tail.said.len()).filter(|index| *index == tail.first || tail.legal[*index]).collect();
    begins.windows(2).map(|group| tail.cost(group[0]) - tail.cost(group[1])).min()
}

/// Whether the sections that are always included do not fit together with the newest turn.
pub fn lacks_room(request: &ContextSelection, material: &Material) -> Result<bool, Error> {
    let cost = |section, pieces| Chosen::all(request.family, section, pieces).cost;
    let system = cost(Section::System, material.system.iter().collect());
    let state = cost(Section::State, material.state.iter().collect());
    let input: u64 = material.input.iter().map(|said| said.tokens).sum();
    let newest = newest_tokens(request, material)?;
    Ok(room(request, system + request.tools_tokens, state, input + newest).is_err())
}

/// Tokens that the state may have beside the other sections that are always included, and so many tokens of the tail.
pub fn room_for_state(request: &ContextSelection, material: &Material, tail: u64) -> u64 {
    let system = Chosen::all(request.family, Section::System, material.system.iter().collect()).cost;
    let input: u64 = material.input.iter().map(|said| said.tokens).sum();
    request.token_budget.saturating_sub(system + request.tools_tokens + input + tail + PROMPT_TOKENS)
}

/// Tokens of the state as a section.
pub fn state_tokens(family: TokenizerFamily, state: &ContextText) -> u64 {
    Chosen::all(family, Section::State, vec![state]).cost
}

/// Tokens left beside the sections that are always included.
fn room(request: &ContextSelection, system: u64, state: u64, input: u64) -> Result<u64, Error> {
    let fixed = system + state + input + PROMPT_TOKENS;
    request.token_budget.checked_sub(fixed).ok_or_else(|| {
        Error::too_large(
            code::BUDGET_TOO_SMALL,
            format!(
                "token_budget is {}, but {fixed} are needed: system {system}, state {state}, input {input}, frame \
                 {PROMPT_TOKENS}; raise it, or shorten one of these",
                request.token_budget
            ),
        )
    })
}

/// Pieces of a section included so far.
struct Chosen<'a> {
    section: Section,
    pieces: Vec<&'a ContextText>,
    text: String,
    /// Tokens of the text as it will be rendered.
    cost: u64,
}

impl<'a> Chosen<'a> {
    fn all(family: TokenizerFamily, section: Section, pieces: Vec<&'a ContextText>) -> Chosen<'a> {
        let mut chosen = Chosen { section, pieces, text: String::new(), cost: 0 };
        chosen.write(family);
        chosen
    }

    /// Includes as many pieces as fit, in order; a smaller one may fit where a larger one did not.
    fn within(
        family: TokenizerFamily,
        section: Section,
        pieces: &'a [ContextText],
        share: u64,
        left_out: &mut Vec<LeftOut>,
    ) -> Chosen<'a> {
        let mut chosen = Chosen::all(family, section, Vec::new());
        let mut cost = family.count(section.title()) + PART_TOKENS;
        for piece in pieces {
            // The separator between two pieces, and one more because a text can have slightly more tokens than
            // the sum of its parts.
            let more = family.count(&piece.text) + 2;
            if cost + more <= share {
                cost += more;
                chosen.pieces.push(piece);
            } else {
                left_out.push(LeftOut {
                    section,
                    source: Some(piece.source.clone()),
                    turns: None,
                    reason: format!("the section has room for {share} tokens"),
                });
            }
        }
        chosen.write(family);
        chosen
    }

    fn write(&mut self, family: TokenizerFamily) {
        let texts: Vec<&str> = self.pieces.iter().map(|piece| piece.text.as_str()).collect();
        (self.text, self.cost) = (String::new(), 0);
        if !texts.is_empty() {
            self.text = format!("{}{}", self.section.title(), texts.join("\n\n"));
            self.cost = family.count(&self.text) + PART_TOKENS;
        }
    }

    /// Drops one piece; `false` if there is none left.
    fn drop_last(&mut self, family: TokenizerFamily, left_out: &mut Vec<LeftOut>) -> bool {
        let Some(piece) = self.pieces.pop() else { return false };
        left_out.push(LeftOut {
            section: self.section,
            source: Some(piece.source.clone()),
            turns: None,
            reason: "the tail needs the room".into(),
        });
        self.write(family);
        true
    }
}

/// The last turns, and where they may be cut.
struct Tail<'a> {
    said: &'a [ContextMessage],
    /// For each index, the tokens of everything from there on.
    costs: Vec<u64>,
    /// For each index, whether a cut before it keeps every call with its result.
    legal: Vec<bool>,
    /// The first index that was asked for.
    first: usize,
}

impl<'a> Tail<'a> {
    fn new(said: &'a [ContextMessage], last_n: Option<usize>) -> Tail<'a> {
        let count = said.len();
        let pairs = pairing::pair(said.iter().map(|said| &said.message));
        let legal = (0..=count).map(|index| pairs.cut_at_or_after(index, count) == index).collect();
        let first = pairs.cut_at_or_before(count.saturating_sub(last_n.unwrap_or(count)));
        let mut costs = vec![0; count + 1];
        for index in (0..count).rev() {
            costs[index] = costs[index + 1] + said[index].tokens;
        }
        Tail { costs, legal, first, said }
    }

    fn cost(&self, from: usize) -> u64 {
        self.costs.get(from).copied().unwrap_or(0)
    }

    /// The turns that fit, by whole groups of calls and results, the newest first. A group that does not fit is included
    /// without the bodies of its tool results, or left out; older ones are tried while a good part of the room is free.
    fn shown(&self, room: u64, request: &ContextSelection) -> Result<TailShown<'a>, Error> {
        let (mut groups, mut bare, mut left, mut end) = (Vec::new(), 0, room, self.said.len());
        while end > self.first {
            let start = (self.first..end).rev().find(|index| self.legal[*index]).unwrap_or(self.first);
            let group = &self.said[start..end];
            let cost = self.costs[start] - self.costs[end];
            if group[0].seq.is_some_and(|seq| request.begins.is_some_and(|begins| seq < begins)) {
                break;
            }
            if cost <= left {
                left -= cost;
                groups.push(group.iter().map(Cow::Borrowed).collect());
            } else {
                let without = without_bodies(group, request.family)?;
                let cost: u64 = without.iter().map(|said| said.tokens).sum();
                if cost <= left {
                    left -= cost;
                    bare += group.len() as u64;
                    groups.push(without.into_iter().map(Cow::Owned).collect::<Vec<_>>());
                }
                if left < room / FREE_PART {
                    break;
                }
            }
            end = start;
        }
        groups.reverse();
        Ok(TailShown { said: groups.concat(), bare })
    }
}

/// The turns of the tail that are included.
struct TailShown<'a> {
    said: Vec<Cow<'a, ContextMessage>>,
    /// Number of turns in groups without the bodies of their tool results.
    bare: u64,
}

/// Messages with a line in place of the body of each tool result.
fn without_bodies(group: &[ContextMessage], family: TokenizerFamily) -> Result<Vec<ContextMessage>, Error> {
    let messages: Vec<Message> =
        group.iter().map(|said| Message::read(said.raw.clone())).collect::<Result<_, _>>()?;
    let clearing = Clearing { trigger: Trigger::ToolUses(0), keep: 0, ..Clearing::default() };
    let mut options = ViewOptions::policy(ProjectionPolicy::ClearToolUses);
    options.clearing = clearing;
    let view = projection::project(&messages, None, &options)?;
    let shown = view.messages.iter().zip(group).map(|(shown, said)| match shown.is_unchanged() {
        true => said.clone(),
        false => ContextMessage {
            raw: shown.raw().clone(),
            message: shown.value().clone(),
            tokens: family.message(shown.value()),
            ..said.clone()
        },
    });
    Ok(shown.collect())
}

impl<'a> Assembled<'a> {
    fn new(
        request: &ContextSelection,
        texts: [Chosen<'a>; 5],
        tail: Vec<Cow<'a, ContextMessage>>,
        input: &'a [ContextMessage],
        left_out: Vec<LeftOut>,
    ) -> Assembled<'a> {
        let mut by_section: BTreeMap<Section, u64> = BTreeMap::new();
        let mut blocks = Vec::new();
        let mut shown = Vec::new();
        for chosen in texts.into_iter().filter(|chosen| !chosen.pieces.is_empty()) {
            by_section.insert(chosen.section, chosen.cost);
            for piece in chosen.pieces {
                let (sha256, tokens) = (Hash::of(piece.text.as_bytes()), request.family.count(&piece.text));
                let source = piece.source.clone();
                blocks.push(ContextBlock { section: chosen.section, source, sha256, tokens });
            }
            shown.push(Text { section: chosen.section, text: chosen.text });
        }
        if request.tools_tokens > 0 {
            *by_section.entry(Section::System).or_default() += request.tools_tokens;
        }
        let count = tail.len();
        let messages: Vec<Cow<'a, ContextMessage>> =
            tail.into_iter().chain(input.iter().map(Cow::Borrowed)).collect();
        let tail = count;
        for (index, said) in messages.iter().enumerate() {
            let section = if index < tail { Section::Tail } else { Section::Input };
            *by_section.entry(section).or_default() += said.tokens;
            let sha256 = Hash::of(said.raw.get().as_bytes());
            blocks.push(ContextBlock { section, source: said.source.clone(), sha256, tokens: said.tokens });
        }
        let used = by_section.values().sum::<u64>() + PROMPT_TOKENS;
        let tokens = ContextTokens { budget: request.token_budget, used, by_section };
        Assembled { texts: shown, messages, tail, tokens, blocks, left_out }
    }
}

/// Coverage of a provider's prompt cache, compared with the previous call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// Number of tokens at the beginning that are the same.
    pub stable_prefix_tokens: u64,
    /// Section of the first difference; null if there is none, or nothing to compare with.
    pub first_changed_section: Option<Section>,
}

impl Cache {
    /// Compares block by block.
    pub fn compare(before: &[ContextBlock], now: &[ContextBlock]) -> Cache {
        // The input of the last call is now part of the tail, at the same position.
        let lane = |block: &ContextBlock| {
            if block.section == Section::Input { Section::Tail } else { block.section }
        };
        let same = before.iter().zip(now).take_while(|(a, b)| a.sha256 == b.sha256 && lane(a) == lane(b));
        let same = same.count();
        Cache {
            stable_prefix_tokens: now[..same].iter().map(|block| block.tokens).sum(),
            // A longer prompt with the same beginning changes where it continues.
            first_changed_section: now.get(same).or(before.get(same)).map(|block| block.section),
        }
    }
}
