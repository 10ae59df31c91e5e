//! Pairing of tool calls with their results, over any list of messages of any shape.
//!
//! A prompt is valid only if every result follows its call and every call has its result, so code that drops messages
//! looks up pairs here. Calls and results are paired by id if they have one, otherwise by name with the nearest result
//! that follows before the assistant's next turn.

use crate::message::{self, MessagePart, field, fields};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// Location of a call or a result in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockPath {
    /// The message itself: a Responses item, or a message with the role `tool`.
    Message,
    /// `content[n]`.
    Block(usize),
    /// `parts[n]`, Gemini's.
    Part(usize),
    /// `tool_calls[n]`.
    ToolCall(usize),
    /// `tool_results[n]`.
    ToolResult(usize),
    /// `function_call`, OpenAI's original form.
    FunctionCall,
}

impl BlockPath {
    /// The index in its list.
    pub fn index(self) -> Option<usize> {
        match self {
            BlockPath::Block(n) | BlockPath::Part(n) | BlockPath::ToolCall(n) | BlockPath::ToolResult(n) => {
                Some(n)
            }
            BlockPath::Message | BlockPath::FunctionCall => None,
        }
    }

    /// Parses the written form.
    pub fn read(text: &str) -> Option<BlockPath> {
        if text == "function_call" {
            return Some(BlockPath::FunctionCall);
        }
        let (list, n) = text.strip_suffix(']')?.split_once('[')?;
        let n = n.parse().ok()?;
        match list {
            "content" => Some(BlockPath::Block(n)),
            "parts" => Some(BlockPath::Part(n)),
            "tool_calls" => Some(BlockPath::ToolCall(n)),
            "tool_results" => Some(BlockPath::ToolResult(n)),
            _ => None,
        }
    }
}

impl fmt::Display for BlockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockPath::Message => f.write_str("message"),
            BlockPath::Block(n) => write!(f, "content[{n}]"),
            BlockPath::Part(n) => write!(f, "parts[{n}]"),
            BlockPath::ToolCall(n) => write!(f, "tool_calls[{n}]"),
            BlockPath::ToolResult(n) => write!(f, "tool_results[{n}]"),
            BlockPath::FunctionCall => f.write_str("function_call"),
        }
    }
}

/// A tool call.
#[derive(Clone, Copy, Debug)]
pub struct CallRef<'a> {
    /// Index of its message.
    pub message: usize,
    /// Location in the message.
    pub place: BlockPath,
    /// Id that pairs it with its result.
    pub id: Option<&'a str>,
    /// Name of the tool.
    pub name: &'a str,
    /// Index of its result in [`Pairs::results`].
    pub result: Option<usize>,
    /// Number of calls before it in the message.
    pub nth: usize,
    said: &'a Value,
}

impl<'a> CallRef<'a> {
    /// Arguments: an object, or JSON in a string.
    pub fn arguments(&self) -> Option<&'a Value> {
        match part(self.said, self.place) {
            MessagePart::Call { arguments, .. } => arguments,
            _ => None,
        }
    }

    /// The message, block or entry itself.
    pub fn whole(&self) -> &'a Value {
        whole(self.said, self.place)
    }
}

/// A tool result.
#[derive(Clone, Copy, Debug)]
pub struct PairedResult<'a> {
    /// Index of its message.
    pub message: usize,
    /// Location in the message.
    pub place: BlockPath,
    /// Id of the call that it answers.
    pub id: Option<&'a str>,
    /// Name of the tool: from the result, else from its call.
    pub name: Option<&'a str>,
    /// Whether it reports a failed call.
    pub failed: bool,
    /// Index of its call in [`Pairs::calls`].
    pub call: Option<usize>,
    /// Number of results before it in the message.
    pub nth: usize,
    said: &'a Value,
}

impl<'a> PairedResult<'a> {
    /// Content: a string, blocks or any JSON.
    pub fn content(&self) -> Option<&'a Value> {
        match part(self.said, self.place) {
            MessagePart::Result { content, .. } => content,
            _ => None,
        }
    }

    /// The message, block or entry itself.
    pub fn whole(&self) -> &'a Value {
        whole(self.said, self.place)
    }
}

/// Calls and results of a list of messages, each in order.
#[derive(Clone, Debug, Default)]
pub struct Pairs<'a> {
    /// All calls.
    pub calls: Vec<CallRef<'a>>,
    /// All results.
    pub results: Vec<PairedResult<'a>>,
    /// For each Responses reasoning item: its index, and the end of the run of items that it led to.
    pub reasoning: Vec<(usize, usize)>,
    /// For each index, whether the messages can be cut before it.
    cuttable: Vec<bool>,
}

/// Speaker of a message.
#[derive(Clone, Copy, Debug)]
struct Speaker {
    /// A Responses item, as opposed to a message with a role.
    item: bool,
    assistant: bool,
    /// A reasoning item.
    thinks: bool,
}

impl Speaker {
    fn of(message: &Value) -> Speaker {
        let [role, kind] = fields(message, ["role", "type"]);
        Speaker {
            item: role.is_none(),
            assistant: matches!(message::role_of(role, kind), Ok(crate::turn::Role::Assistant)),
            thinks: role.is_none() && kind.and_then(Value::as_str) == Some("reasoning"),
        }
    }
}

/// Whether a value is a message of the assistant, and not an item of one. A result after it never answers, by name, a
/// call before it.
pub fn is_assistant_message(message: &Value) -> bool {
    let speaker = Speaker::of(message);
    speaker.assistant && !speaker.item
}

/// Pairs calls with results, in time linear in the number of messages and blocks.
pub fn pair<'a>(messages: impl IntoIterator<Item = &'a Value>) -> Pairs<'a> {
    let mut open = Open::default();
    let mut pairs = Pairs::default();
    let messages = messages.into_iter();
    // For each message, the last one that must stay with it.
    let mut reach: Vec<usize> = Vec::with_capacity(messages.size_hint().0);
    let mut thoughts: Vec<usize> = Vec::new();
    let mut acted = false;
    for (index, message) in messages.enumerate() {
        reach.push(index);
        let (calls, results) = (pairs.calls.len(), pairs.results.len());
        read(index, message, &mut pairs);
        let Speaker { item, assistant, thinks } = Speaker::of(message);
        if (pairs.calls.len() > calls || assistant) && (!item || open.answered) {
            open.turn(calls);
        }
        if pairs.calls.len() > calls {
            open.by_name = None;
        }
        for n in results..pairs.results.len() {
            let Some(call) = open.answer(&pairs.results[n], &pairs.calls) else { continue };
            let called = &mut pairs.calls[call];
            called.result = Some(n);
            let result = &mut pairs.results[n];
            (result.call, result.name) = (Some(call), result.name.or(Some(called.name)));
            reach[called.message] = index;
        }
        // A reasoning item is valid only together with the assistant items that follow it.
        if thinks && acted || !thinks && !assistant {
            thoughts.clear();
        }
        acted = !thinks;
        if thinks {
            thoughts.push(pairs.reasoning.len());
            pairs.reasoning.push((index, index + 1));
        } else {
            for thought in &thoughts {
                let (start, end) = &mut pairs.reasoning[*thought];
                *end = index + 1;
                reach[*start] = index;
            }
        }
    }
    let mut furthest = 0;
    pairs.cuttable.push(true);
    for (index, reach) in reach.iter().enumerate() {
        furthest = furthest.max(*reach);
        pairs.cuttable.push(furthest <= index);
    }
    pairs
}

/// The last index at or before `index` where messages can be cut, as in [`Pairs::cut_at_or_before`], but
/// searched from the end: it reads only as many messages as needed.
pub fn cut_at_or_before<'a>(messages: usize, message: impl Fn(usize) -> &'a Value, index: usize) -> usize {
    const FEW: usize = 16;
    // If a message of the assistant follows one of another role, no reasoning is unfinished and no call
    // waits for a result by name alone. Only ids reach across.
    let is_beginning = |index: &usize| {
        let says = |index| Speaker::of(message(index));
        *index == 0 || is_assistant_message(message(*index)) && !says(*index - 1).assistant
    };
    let mut width = FEW.max(messages - index);
    loop {
        let start = (0..=index.saturating_sub(width)).rev().find(is_beginning).unwrap_or(0);
        let pairs = pair((start..messages).map(&message));
        let is_answer_to =
            |result: &PairedResult<'_>, call: usize| result.id.is_none() || pairs.calls[call].id == result.id;
        let is_whole = |result: &PairedResult<'_>| result.call.is_some_and(|call| is_answer_to(result, call));
        if start == 0 || pairs.results.iter().all(is_whole) {
            return start + pairs.cut_at_or_before(index - start);
        }
        width *= 2;
    }
}

impl Pairs<'_> {
    /// The last index at or before `index` where a list of messages can be cut without separating a call from
    /// its result.
    pub fn cut_at_or_before(&self, index: usize) -> usize {
        let index = index.min(self.cuttable.len().saturating_sub(1));
        (0..=index).rev().find(|cut| self.cuttable.get(*cut) == Some(&true)).unwrap_or(0)
    }

    /// The first index at or after `index` where it can be cut in the same way; `messages` is their number.
    pub fn cut_at_or_after(&self, index: usize, messages: usize) -> usize {
        (index..messages).find(|cut| self.cuttable.get(*cut) == Some(&true)).unwrap_or(messages)
    }
}

/// Calls that wait for a result.
#[derive(Default)]
struct Open<'a> {
    /// The latest call with an id, and for each call the previous one with the same id. Filled only once a
    /// result answers none of the last calls: most results do, and then no id needs to be hashed.
    by_id: HashMap<&'a str, usize>,
    before: Vec<Option<usize>>,
    /// The first call since the assistant last spoke, and whether one has been answered since.
    turn: usize,
    answered: bool,
    /// Calls of this turn by name, filled only once a result has no id. The flag is set for calls without an
    /// id.
    by_name: Option<HashMap<(&'a str, bool), VecDeque<usize>>>,
    in_order: VecDeque<usize>,
}

impl<'a> Open<'a> {
    fn turn(&mut self, first: usize) {
        (self.turn, self.answered, self.by_name) = (first, false, None);
    }

    /// The call that the result answers. An id may occur again in a later turn, so the nearest call wins.
    fn answer(&mut self, result: &PairedResult<'a>, calls: &[CallRef<'a>]) -> Option<usize> {
        self.answered = true;
        let free = |call: &usize| calls[*call].result.is_none();
        const LAST: usize = 8;
        let last = calls.len().saturating_sub(LAST)..calls.len();
        let mut last = last.rev().filter(|call| result.id.is_some() && calls[*call].id == result.id);
        if let Some(call) = last.find(free) {
            return Some(call);
        }
        for (n, call) in calls.iter().enumerate().skip(self.before.len()) {
            self.before.push(call.id.and_then(|id| self.by_id.insert(id, n)));
        }
        let mut candidate = result.id.and_then(|id| self.by_id.get(id).copied());
        while let (Some(call), Some(id)) = (candidate, result.id) {
            candidate = self.before[call];
            match candidate {
                Some(earlier) => self.by_id.insert(id, earlier),
                None => self.by_id.remove(id),
            };
            if free(&call) {
                return Some(call);
            }
        }
        if result.name.is_none() && result.id.is_some() {
            return None;
        }
        let (turn, in_order) = (self.turn, &mut self.in_order);
        let by_name = self.by_name.get_or_insert_with(|| {
            let mut by_name: HashMap<_, VecDeque<_>> = HashMap::new();
            in_order.clear();
            for (n, call) in calls.iter().enumerate().skip(turn) {
                in_order.push_back(n);
                by_name.entry((call.name, false)).or_default().push_back(n);
                if call.id.is_none() {
                    by_name.entry((call.name, true)).or_default().push_back(n);
                }
            }
            by_name
        });
        // If both have an id, they pair by id or not at all.
        let queue = match result.name {
            Some(name) => by_name.get_mut(&(name, result.id.is_some()))?,
            None => in_order,
        };
        while let Some(call) = queue.pop_front() {
            if free(&call) {
                return Some(call);
            }
        }
        None
    }
}

/// The value at a location in a message.
fn whole(message: &Value, place: BlockPath) -> &Value {
    let at = |key, n: usize| field(message, key).and_then(|list| list.get(n));
    let found = match place {
        BlockPath::Message => None,
        BlockPath::Block(n) => at("content", n),
        BlockPath::Part(n) => at("parts", n),
        BlockPath::ToolCall(n) => at("tool_calls", n),
        BlockPath::ToolResult(n) => at("tool_results", n),
        BlockPath::FunctionCall => field(message, "function_call"),
    };
    found.unwrap_or(message)
}

fn part(message: &Value, place: BlockPath) -> MessagePart<'_> {
    part_of(whole(message, place), place, || field(message, "role").is_some())
}

/// The part that the message, block or entry itself represents. `has_role` matters only for a whole message.
fn part_of(whole: &Value, place: BlockPath, has_role: impl Fn() -> bool) -> MessagePart<'_> {
    match place {
        BlockPath::Message if has_role() => message::tool_message(whole),
        BlockPath::Message | BlockPath::Block(_) => message::block(whole),
        BlockPath::Part(_) => message::gemini_part(whole),
        BlockPath::ToolCall(_) | BlockPath::FunctionCall => message::tool_call(whole),
        BlockPath::ToolResult(_) => message::tool_result(whole),
    }
}

fn read<'a>(index: usize, message: &'a Value, pairs: &mut Pairs<'a>) {
    let (calls, results) = (pairs.calls.len(), pairs.results.len());
    let [role, content, parts, tool_calls, function_call, tool_results] =
        fields(message, ["role", "content", "parts", "tool_calls", "function_call", "tool_results"]);
    let note = |place: BlockPath, whole: &'a Value, pairs: &mut Pairs<'a>| match part_of(whole, place, || {
        role.is_some()
    }) {
        MessagePart::Call { .. } if message::is_hosted_call(whole) => {}
        MessagePart::Call { id, name, .. } => {
            let nth = pairs.calls.len() - calls;
            pairs.calls.push(CallRef { message: index, place, id, name, result: None, nth, said: message });
        }
        MessagePart::Result { id, name, content } => {
            let nth = pairs.results.len() - results;
            let failed = match place {
                BlockPath::Part(_) => content.is_some_and(is_gemini_error),
                _ => failed(whole, content),
            };
            let (call, said) = (None, message);
            pairs.results.push(PairedResult { message: index, place, id, name, failed, call, nth, said });
        }
        _ => {}
    };
    if role.is_none() {
        return note(BlockPath::Message, message, pairs);
    }
    let each = |list: Option<&'a Value>, place: fn(usize) -> BlockPath, pairs: &mut Pairs<'a>| {
        let items = list.and_then(Value::as_array).into_iter().flatten();
        items.enumerate().for_each(|(n, item)| note(place(n), item, pairs));
    };
    each(content, BlockPath::Block, pairs);
    each(parts.filter(|_| content.is_none()), BlockPath::Part, pairs);
    each(tool_calls, BlockPath::ToolCall, pairs);
    if let Some(call) = function_call.filter(|call| call.is_object()) {
        note(BlockPath::FunctionCall, call, pairs);
    }
    each(tool_results, BlockPath::ToolResult, pairs);
    if results == pairs.results.len() && matches!(message::role_of(role, None), Ok(crate::turn::Role::Tool)) {
        note(BlockPath::Message, message, pairs);
    }
}

/// Whether the response of a Gemini result reports a failure: `{"error": …}` alone.
fn is_gemini_error(response: &Value) -> bool {
    response.as_object().is_some_and(|fields| fields.len() == 1) && field(response, "error").is_some()
}

/// Whether a result reports a failure. The text is examined only if there is no flag.
fn failed(result: &Value, content: Option<&Value>) -> bool {
    const FAILURES: [&str; 5] = ["error", "failed", "rejected", "exception", "denied"];
    // The `status` of a Responses item describes its transmission, not the outcome of the tool.
    let [role, kind, status, is_error, error, success] =
        fields(result, ["role", "type", "status", "is_error", "error", "success"]);
    let item = role.is_none() && kind.and_then(Value::as_str).is_some_and(|kind| kind.ends_with("_output"));
    let status = status.and_then(Value::as_str).filter(|status| {
        let of_item = item && matches!(*status, "in_progress" | "completed" | "incomplete");
        !status.is_empty() && !of_item
    });
    let flags = [
        is_error.and_then(Value::as_bool),
        error.and_then(|error| match error {
            Value::Bool(error) => Some(*error),
            Value::String(text) => (!text.is_empty()).then_some(true),
            Value::Object(_) => Some(true),
            _ => None,
        }),
        success.and_then(Value::as_bool).map(|success| !success),
        status.map(|status| FAILURES.iter().any(|failure| status.eq_ignore_ascii_case(failure))),
    ];
    if flags.iter().any(Option::is_some) {
        return flags.contains(&Some(true));
    }
    let text = match content {
        Some(Value::String(text)) => text,
        Some(Value::Array(blocks)) => blocks
            .iter()
            .find_map(|block| block.as_str().or_else(|| field(block, "text")?.as_str()))
            .unwrap_or_default(),
        _ => "",
    };
    let start = text.trim_start().as_bytes();
    ["error:", "tool error", "failed:"]
        .iter()
        .any(|word| start.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word.as_bytes())))
}
