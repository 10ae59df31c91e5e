//! The events of a streamed response, in OpenAI's order.

use super::items::{self, ItemIds, call_id, kind_of};
use super::sealed::seal;
use super::stored::{ResponseView, State, StoredRequest, done, usage};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_engine::model::{Delta, ModelReply};
use serde_json::{Value, json};

/// Makes the events of one response. Each is a JSON object with its name in `type`.
pub struct ResponseEvents {
    turn: TurnId,
    kept: StoredRequest,
    names: ItemIds,
    sequence: u64,
    /// Number of items that have begun.
    begun: usize,
    /// Items that have ended.
    ended: Vec<Value>,
    open: Option<OpenItem>,
    out: Vec<Value>,
}

/// The current item.
struct OpenItem {
    id: String,
    place: usize,
    what: ItemContent,
}

enum ItemContent {
    /// The parts of a message.
    Message(Vec<OutputPart>),
    /// Reasoning: its text by block, whether the last block is unfinished, and the blocks to send back to its
    /// provider.
    Thinking { parts: Vec<String>, unfinished: bool, sealed: Vec<Value> },
    /// A call: its index in the reply, its id, the tool, the arguments, and whether they are free text.
    Call { index: usize, call_id: String, name: String, arguments: String, custom: bool },
}

struct OutputPart {
    refusal: bool,
    text: String,
}

impl OutputPart {
    fn object(&self) -> Value {
        match self.refusal {
            true => json!({"type": "refusal", "refusal": self.text}),
            false => json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}),
        }
    }
}

impl ResponseEvents {
    pub fn new(turn: TurnId, kept: StoredRequest) -> ResponseEvents {
        ResponseEvents {
            turn,
            kept,
            names: ItemIds::new(turn),
            sequence: 0,
            begun: 0,
            ended: Vec::new(),
            open: None,
            out: Vec::new(),
        }
    }

    pub fn begin(&mut self) -> Vec<Value> {
        let response = self.response(&State::InProgress, &[], None);
        self.tell("response.created", json!({"response": response}));
        self.tell("response.in_progress", json!({"response": response}));
        std::mem::take(&mut self.out)
    }

    /// The events of another piece.
    pub fn delta(&mut self, delta: Delta) -> Vec<Value> {
        match delta {
            Delta::Text(text) => self.say(false, &text),
            Delta::Refusal(text) => self.say(true, &text),
            Delta::Thinking(text) => self.think(&text),
            Delta::ThinkingEnd => self.end_thought(),
            Delta::Item(item) => self.provided(&item),
            Delta::Sealed(block) => self.seal(block.read().unwrap_or_default()),
            Delta::Call { index, id, name, arguments } => self.call(index, id, name, &arguments),
        }
        std::mem::take(&mut self.out)
    }

    /// The last events of a reply that ended at this time, in seconds since 1970.
    pub fn end(&mut self, answer: &ModelReply, at: i64) -> Vec<Value> {
        let state = done(&answer.finish, at);
        let output = items::of_answer(&answer.messages, self.turn, &state);
        self.last(self.response(&state, &output, usage(answer)))
    }

    /// The last events of a response without output.
    pub fn end_empty(&mut self, at: i64) -> Vec<Value> {
        self.last(self.response(&State::Done(at), &[], None))
    }

    /// The items of a finished response, as if they came now.
    pub fn items(&mut self, output: &[Value]) -> Vec<Value> {
        for (index, item) in output.iter().enumerate() {
            let text = |name: &str| item[name].as_str().map(str::to_string);
            let words = |part: &Value| part["type"] == "output_text" || part["type"] == "refusal";
            match (item["type"].as_str(), item["content"].as_array()) {
                (Some("message"), Some(parts)) if !parts.is_empty() && parts.iter().all(words) => {
                    self.close();
                    for part in parts {
                        let refusal = part["refusal"].as_str();
                        self.say(refusal.is_some(), refusal.or(part["text"].as_str()).unwrap_or_default());
                    }
                }
                (Some("function_call" | "custom_tool_call"), _) => {
                    let arguments = text("arguments").or(text("input")).unwrap_or_default();
                    self.call(index, text("call_id"), text("name"), &arguments);
                }
                _ => {
                    self.close();
                    self.whole(item);
                }
            }
        }
        std::mem::take(&mut self.out)
    }

    /// The last events, with the final response.
    pub fn last(&mut self, response: Value) -> Vec<Value> {
        let status = if response["status"] == "completed" { "completed" } else { "incomplete" };
        self.end_item(status, None);
        for item in response["output"].as_array().into_iter().flatten() {
            // Items that were not streamed.
            if !self.ended.iter().any(|ended| item["id"] == ended["id"]) {
                self.whole(item);
            }
        }
        // A stop has no event of its own; this is the one that ends the stream.
        let name = match response["status"].as_str() {
            Some("completed") => "response.completed",
            Some("failed") => "response.failed",
            _ => "response.incomplete",
        };
        self.tell(name, json!({"response": response}));
        std::mem::take(&mut self.out)
    }

    /// An item that comes in one piece.
    fn whole(&mut self, item: &Value) {
        let place = self.begun;
        self.begun += 1;
        self.names.next(kind_of(item));
        self.tell("response.output_item.added", json!({"output_index": place, "item": item}));
        self.tell("response.output_item.done", json!({"output_index": place, "item": item}));
        self.ended.push(item.clone());
    }

    /// Ends an item as its provider has it. One that was not streamed comes in one piece.
    fn provided(&mut self, item: &Raw) {
        let mut items = items::of_message(&items::read(item.get()));
        let [item] = &mut items[..] else { return self.close() };
        match self.open.as_ref().filter(|open| open.kind() == kind_of(item)) {
            Some(open) => {
                items::name(item, &open.id);
                self.end_item("completed", Some(item.clone()));
            }
            None => {
                self.close();
                items::name(item, &self.names.peek(kind_of(item)));
                self.whole(item);
            }
        }
    }

    /// The last events if there is no reply.
    pub fn fail(&mut self, error: &Error) -> Vec<Value> {
        let state = match error.code() {
            code::GENERATION_STOPPED => State::Cancelled,
            code => State::Failed(code.to_string(), error.text().to_string()),
        };
        self.end_item("incomplete", None);
        self.last(self.response(&state, &self.ended, None))
    }

    fn response(&self, state: &State, output: &[Value], usage: Option<Value>) -> Value {
        ResponseView { turn: self.turn, kept: &self.kept }.object(state, output, usage)
    }

    fn tell(&mut self, name: &str, mut event: Value) {
        if let Value::Object(fields) = &mut event {
            fields.shift_insert(0, "type".into(), json!(name));
            fields.shift_insert(1, "sequence_number".into(), json!(self.sequence));
        }
        self.sequence += 1;
        self.out.push(event);
    }

    fn begin_item(&mut self, kind: &str, what: ItemContent) {
        self.close();
        let open = OpenItem { id: self.names.next(kind), place: self.begun, what };
        self.begun += 1;
        let item = open.item("in_progress");
        self.tell("response.output_item.added", json!({"output_index": open.place, "item": item}));
        self.open = Some(open);
    }

    /// Adds an event about a part of the open item.
    fn within(&mut self, name: &str, more: Value) {
        let Some(open) = &self.open else { return };
        let mut event = json!({"item_id": open.id, "output_index": open.place});
        if let (Value::Object(fields), Value::Object(more)) = (&mut event, more) {
            fields.extend(more);
        }
        self.tell(name, event);
    }

    fn say(&mut self, refusal: bool, text: &str) {
        if !matches!(&self.open, Some(OpenItem { what: ItemContent::Message(_), .. })) {
            self.begin_item("message", ItemContent::Message(Vec::new()));
        }
        let Some(OpenItem { what: ItemContent::Message(parts), .. }) = &mut self.open else { return };
        if parts.last().is_none_or(|part| part.refusal != refusal) {
            let before = parts.len().checked_sub(1);
            let part = OutputPart { refusal, text: String::new() };
            let (index, shown) = (parts.len(), part.object());
            parts.push(part);
            if let Some(before) = before {
                self.end_part(before);
            }
            self.within("response.content_part.added", json!({"content_index": index, "part": shown}));
        }
        let Some(OpenItem { what: ItemContent::Message(parts), .. }) = &mut self.open else { return };
        let index = parts.len().saturating_sub(1);
        if let Some(part) = parts.last_mut() {
            part.text.push_str(text);
        }
        match refusal {
            true => self.within("response.refusal.delta", json!({"content_index": index, "delta": text})),
            false => self.within(
                "response.output_text.delta",
                json!({"content_index": index, "delta": text, "logprobs": []}),
            ),
        }
    }

    fn end_part(&mut self, index: usize) {
        let Some(OpenItem { what: ItemContent::Message(parts), .. }) = &self.open else { return };
        let Some(part) = parts.get(index) else { return };
        let (refusal, text, shown) = (part.refusal, part.text.clone(), part.object());
        match refusal {
            true => self.within("response.refusal.done", json!({"content_index": index, "refusal": text})),
            false => self.within(
                "response.output_text.done",
                json!({"content_index": index, "text": text, "logprobs": []}),
            ),
        }
        self.within("response.content_part.done", json!({"content_index": index, "part": shown}));
    }

    fn begin_thinking(&mut self) {
        if !matches!(&self.open, Some(OpenItem { what: ItemContent::Thinking { .. }, .. })) {
            let what = ItemContent::Thinking { parts: Vec::new(), unfinished: false, sealed: Vec::new() };
            self.begin_item("reasoning", what);
        }
    }

    fn think(&mut self, piece: &str) {
        self.begin_thinking();
        let Some(OpenItem { what: ItemContent::Thinking { parts, unfinished, .. }, .. }) = &mut self.open
        else {
            return;
        };
        let begins = !std::mem::replace(unfinished, true);
        if begins {
            parts.push(String::new());
        }
        let index = parts.len() - 1;
        parts[index].push_str(piece);
        if begins {
            let part = summary_part("");
            self.within(
                "response.reasoning_summary_part.added",
                json!({"summary_index": index, "part": part}),
            );
        }
        self.within("response.reasoning_summary_text.delta", json!({"summary_index": index, "delta": piece}));
    }

    fn end_thought(&mut self) {
        let Some(OpenItem { what: ItemContent::Thinking { parts, unfinished, .. }, .. }) = &mut self.open
        else {
            return;
        };
        if !std::mem::replace(unfinished, false) {
            return;
        }
        let index = parts.len() - 1;
        let text = parts[index].clone();
        let part = summary_part(&text);
        self.within("response.reasoning_summary_text.done", json!({"summary_index": index, "text": text}));
        self.within("response.reasoning_summary_part.done", json!({"summary_index": index, "part": part}));
    }

    fn seal(&mut self, block: Value) {
        self.begin_thinking();
        self.end_thought();
        if let Some(OpenItem { what: ItemContent::Thinking { sealed, .. }, .. }) = &mut self.open {
            sealed.push(block);
        }
    }

    fn call(&mut self, which: usize, id: Option<String>, name: Option<String>, piece: &str) {
        let same = |open: &OpenItem| matches!(&open.what, ItemContent::Call { index, .. } if *index == which);
        if !self.open.as_ref().is_some_and(same) {
            // A piece of a call that has already ended: the last event has all of it.
            let Some(name) = name else { return };
            let call_id = id.unwrap_or_default();
            let tools = self.kept.echo.get("tools").and_then(Value::as_array);
            let custom = |tool: &Value| tool["type"] == "custom" && tool["name"] == *name;
            let custom = tools.is_some_and(|tools| tools.iter().any(custom));
            let kind = if custom { "custom_tool_call" } else { "function_call" };
            self.begin_item(
                kind,
                ItemContent::Call { index: which, call_id, name, arguments: String::new(), custom },
            );
        }
        if piece.is_empty() {
            return;
        }
        if let Some(OpenItem { what: ItemContent::Call { arguments, custom, .. }, .. }) = &mut self.open {
            arguments.push_str(piece);
            let name = match custom {
                true => "response.custom_tool_call_input.delta",
                false => "response.function_call_arguments.delta",
            };
            self.within(name, json!({"delta": piece}));
        }
    }

    fn close(&mut self) {
        self.end_item("completed", None);
    }

    /// Ends the open item: as its provider has it, or else with this status.
    fn end_item(&mut self, status: &str, provided: Option<Value>) {
        match self.open.as_ref().map(|open| &open.what) {
            None => return,
            Some(ItemContent::Message(parts)) => {
                if let Some(last) = parts.len().checked_sub(1) {
                    self.end_part(last);
                }
            }
            Some(ItemContent::Thinking { .. }) => self.end_thought(),
            Some(ItemContent::Call { arguments, custom: true, .. }) => {
                let done = json!({"input": arguments});
                self.within("response.custom_tool_call_input.done", done);
            }
            Some(ItemContent::Call { arguments, name, .. }) => {
                let done = json!({"arguments": arguments, "name": name});
                self.within("response.function_call_arguments.done", done);
            }
        }
        if let Some(open) = self.open.take() {
            let item = provided.unwrap_or_else(|| open.item(status));
            self.tell("response.output_item.done", json!({"output_index": open.place, "item": item}));
            self.ended.push(item);
        }
    }
}

fn summary_part(text: &str) -> Value {
    json!({"type": "summary_text", "text": text})
}

impl OpenItem {
    fn kind(&self) -> &'static str {
        match self.what {
            ItemContent::Message(_) => "message",
            ItemContent::Thinking { .. } => "reasoning",
            ItemContent::Call { custom: true, .. } => "custom_tool_call",
            ItemContent::Call { .. } => "function_call",
        }
    }

    fn item(&self, status: &str) -> Value {
        match &self.what {
            ItemContent::Message(parts) => {
                let content: Vec<Value> = parts.iter().map(OutputPart::object).collect();
                json!({"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            ItemContent::Thinking { parts, sealed, .. } => {
                let summary: Vec<Value> = parts.iter().map(|text| summary_part(text)).collect();
                let mut item = json!({"id": self.id, "type": "reasoning", "summary": summary});
                if !sealed.is_empty() {
                    item["encrypted_content"] = json!(seal(sealed));
                }
                item
            }
            ItemContent::Call { call_id: given, name, arguments, custom, .. } => {
                let given = if given.is_empty() { &call_id(&self.id) } else { given };
                if *custom {
                    return json!({"id": self.id, "type": "custom_tool_call", "status": status, "call_id": given,
                        "name": name, "input": arguments});
                }
                json!({"id": self.id, "type": "function_call", "status": status, "call_id": given, "name": name,
                    "arguments": arguments})
            }
        }
    }
}
