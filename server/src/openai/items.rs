//! The items of a turn for an OpenAI client: one or several, whatever the shape of its message.

use super::stored::State;
use super::{ids, sealed};
use everturn_core::asset;
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_core::turn::{Status, Turn};
use everturn_engine::Tenant;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Metadata that the engine stores with every turn of a reply.
#[derive(Deserialize, Default)]
pub struct Generation {
    /// In the first turn: id of the generation.
    pub id: Option<String>,
    /// In the first turn: `seq` of the receipt.
    pub receipt_seq: Option<u64>,
    /// In the first turn: why it ended.
    pub finish: Option<String>,
    /// In the first turn: code of the error that ended it.
    pub error: Option<String>,
    /// In the first turn: usage as reported by the provider.
    pub usage: Option<Value>,
    /// In the first turn: number of turns of the reply.
    pub items: Option<usize>,
    /// In later turns: the first turn.
    pub answer: Option<TurnId>,
    /// In later turns: number of items of its kind before it.
    pub nth: Option<usize>,
}

/// The engine's metadata of a turn.
pub fn generation(turn: &Turn) -> Generation {
    turn.metadata.get("generation").and_then(|raw| raw.read()).unwrap_or_default()
}

/// The message of a turn. Payloads that were moved into assets are put back.
pub fn restored(tenant: &Tenant, turn: &Turn) -> String {
    let bytes = |id: &str| {
        let asset = tenant.conversation(turn.conversation).assets().get(id).ok()?;
        tenant.assets().bytes(&asset).ok()
    };
    let message = turn.message.as_ref().map_or("null", Raw::get);
    asset::restore(message, bytes).unwrap_or_else(|_| message.to_string())
}

/// The items of a turn, with their ids.
pub fn of_turn(tenant: &Tenant, turn: &Turn) -> Vec<Value> {
    if turn.message.is_none() {
        return Vec::new();
    }
    let message = read(&restored(tenant, turn));
    let about = generation(turn);
    let mut names = ItemIds::new(about.answer.unwrap_or(turn.id));
    let mut items = of_message(&message);
    if let (Some(nth), Some(item)) = (about.nth, items.first()) {
        names.counts.insert(kind_of(item).to_string(), nth);
    }
    items.iter_mut().for_each(|item| names.put(item));
    if turn.status != Status::Complete {
        items.iter_mut().for_each(|item| item["status"] = json!("incomplete"));
    }
    items
}

/// The items of a reply that ended in this state. Their ids are derived from `turn`.
pub fn of_answer(messages: &[Raw], turn: TurnId, state: &State) -> Vec<Value> {
    let mut names = ItemIds::new(turn);
    let mut items: Vec<Value> = messages.iter().flat_map(|raw| of_message(&read(raw.get()))).collect();
    items.iter_mut().for_each(|item| names.put(item));
    if let State::Cut(_) = state {
        cut(&mut items);
    }
    items
}

/// A parsed message: the input of a call, which is an object for Anthropic and text for OpenAI, becomes the
/// text that the model wrote.
pub fn read(text: &str) -> Value {
    #[derive(Deserialize)]
    struct Exact {
        content: Vec<Block>,
    }
    #[derive(Deserialize)]
    struct Block {
        input: Option<Raw>,
    }
    let mut message: Value = serde_json::from_str(text).unwrap_or_default();
    let exact = serde_json::from_str::<Exact>(text).map(|exact| exact.content).unwrap_or_default();
    let blocks = message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
    for (block, exact) in blocks.zip(exact) {
        if let Some(input) = exact.input.filter(|_| block["type"] == "tool_use") {
            block["input"] = json!(input.get());
        }
    }
    message
}

/// Assigns ids to the items of a turn.
pub struct ItemIds {
    turn: TurnId,
    counts: BTreeMap<String, usize>,
}

impl ItemIds {
    pub fn new(turn: TurnId) -> ItemIds {
        ItemIds { turn, counts: BTreeMap::new() }
    }

    /// The id of the next item of this type.
    pub fn peek(&self, kind: &str) -> String {
        ids::item(kind, self.turn, self.counts.get(kind).copied().unwrap_or(0))
    }

    /// Takes the next id of this type.
    pub fn next(&mut self, kind: &str) -> String {
        let id = self.peek(kind);
        *self.counts.entry(kind.to_string()).or_default() += 1;
        id
    }

    fn put(&mut self, item: &mut Value) {
        let id = self.next(kind_of(item));
        name(item, &id);
    }
}

/// Names an item, and adds the fields that every item has.
pub fn name(item: &mut Value, id: &str) {
    let kind = kind_of(item).to_string();
    if kind == "function_call" && item["call_id"].as_str().is_none_or(str::is_empty) {
        item["call_id"] = json!(call_id(id));
    }
    if let Value::Object(fields) = item {
        fields.shift_insert(0, "id".into(), json!(id));
        if kind != "reasoning" {
            fields.entry("status").or_insert(json!("completed"));
        }
    }
}

/// Marks the last item of a reply that was cut.
pub fn cut(items: &mut [Value]) {
    if let Some(last) = items.last_mut().filter(|item| kind_of(item) != "reasoning") {
        last["status"] = json!("incomplete");
    }
}

/// The id that pairs a call with its result if the provider gave none.
pub fn call_id(item: &str) -> String {
    format!("call_{}", item.trim_start_matches("fc_"))
}

pub fn kind_of(item: &Value) -> &str {
    item.get("type").and_then(Value::as_str).unwrap_or("message")
}

/// The items of a message, without ids.
pub fn of_message(message: &Value) -> Vec<Value> {
    let Some(role) = message.get("role").and_then(Value::as_str) else {
        let mut item = message.clone();
        if let Value::Object(fields) = &mut item {
            fields.retain(|_, value| !value.is_null());
        }
        return vec![item];
    };
    if role == "tool" || role == "function" || role == "tool_result" {
        return vec![output(message, message.get("content"))];
    }
    let mut items = Items { role, items: Vec::new(), parts: Vec::new() };
    if let Some(thought) = text(message, &["reasoning_content", "reasoning"]) {
        items.push(reasoning(thought, None));
    }
    match message.get("content") {
        Some(Value::String(text)) if !text.is_empty() => items.text(text),
        Some(Value::Array(blocks)) => blocks.iter().for_each(|block| items.block(block)),
        _ => {}
    }
    if let Some(refusal) = text(message, &["refusal"]) {
        items.parts.push(json!({"type": "refusal", "refusal": refusal}));
    }
    for call in list(message, "tool_calls") {
        items.push(self::call(call));
    }
    for result in list(message, "tool_results") {
        items.push(output(result, result.get("content").or(result.get("result"))));
    }
    items.flush();
    let mut items = items.items;
    for item in &mut items {
        if let Some(blocks) = item.get("encrypted_content").and_then(Value::as_array) {
            item["encrypted_content"] = json!(sealed::seal(blocks));
        }
    }
    // An empty message is still an item.
    if items.is_empty() {
        items.push(json!({"type": "message", "role": spoken(role), "content": []}));
    }
    for name in ["phase", "status"] {
        if let (Some(value), Some(item)) = (message.get(name), items.first_mut()) {
            item[name] = value.clone();
        }
    }
    items
}

struct Items<'a> {
    role: &'a str,
    items: Vec<Value>,
    /// Parts of the message item being assembled.
    parts: Vec<Value>,
}

impl Items<'_> {
    fn push(&mut self, item: Value) {
        self.flush();
        // Reasoning in several blocks was streamed as one.
        let joins = kind_of(&item) == "reasoning";
        let Some(last) = self.items.last_mut().filter(|last| joins && kind_of(last) == "reasoning") else {
            return self.items.push(item);
        };
        for name in ["summary", "encrypted_content"] {
            if let Some(Value::Array(more)) = item.get(name) {
                if let Some(list) = last[name].as_array_mut() {
                    list.extend(more.iter().cloned());
                } else {
                    last[name] = json!(more);
                }
            }
        }
    }

    fn flush(&mut self) {
        if !self.parts.is_empty() {
            let content = std::mem::take(&mut self.parts);
            self.items.push(json!({"type": "message", "role": spoken(self.role), "content": content}));
        }
    }

    /// Consecutive texts belong to one part: in the stream they cannot be distinguished either.
    fn text(&mut self, text: &str) {
        let said = matches!(self.role, "assistant" | "model");
        if let Some(Value::String(last)) =
            self.parts.last_mut().filter(|_| said).and_then(|p| p.get_mut("text"))
        {
            last.push_str(text);
            return;
        }
        self.parts.push(match said {
            true => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
            false => json!({"type": "input_text", "text": text}),
        });
    }

    fn block(&mut self, block: &Value) {
        match block.get("type").and_then(Value::as_str).unwrap_or("text") {
            "text" => self.text(block.as_str().or(text(block, &["text"])).unwrap_or_default()),
            "output_text" => {
                let mut part = block.clone();
                for name in ["annotations", "logprobs"] {
                    if !part[name].is_array() {
                        part[name] = json!([]);
                    }
                }
                self.parts.push(part);
            }
            "thinking" => {
                let thought = text(block, &["thinking"]).unwrap_or_default();
                let signed = text(block, &["signature"]).is_some();
                self.push(reasoning(thought, signed.then_some(block)));
            }
            "redacted_thinking" => self.push(reasoning("", Some(block))),
            "tool_use" | "tool_call" => self.push(call(block)),
            "tool_result" => self.push(output(block, block.get("content"))),
            "image_url" => {
                let image = &block["image_url"];
                let url = image.as_str().or(text(image, &["url"])).unwrap_or_default();
                let detail = text(image, &["detail"]).unwrap_or("auto");
                self.parts.push(json!({"type": "input_image", "image_url": url, "detail": detail}));
            }
            "image" => self.parts.push(image(block)),
            "file" if block["file"].is_object() => {
                let mut part = Map::from_iter([("type".to_string(), json!("input_file"))]);
                part.extend(block["file"].as_object().cloned().unwrap_or_default());
                self.parts.push(Value::Object(part));
            }
            _ => self.parts.push(block.clone()),
        }
    }
}

fn spoken(role: &str) -> &str {
    if role == "model" { "assistant" } else { role }
}

fn text<'a>(value: &'a Value, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| value.get(name)?.as_str()).filter(|text| !text.is_empty())
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// A reasoning item. Its `encrypted_content` is a list of blocks until it is sealed.
fn reasoning(thought: &str, block: Option<&Value>) -> Value {
    let summary = match thought {
        "" => json!([]),
        thought => json!([{"type": "summary_text", "text": thought}]),
    };
    match block {
        Some(block) => json!({"type": "reasoning", "summary": summary, "encrypted_content": [block]}),
        None => json!({"type": "reasoning", "summary": summary}),
    }
}

fn call(call: &Value) -> Value {
    let function = call.get("function").or(call.get("custom")).unwrap_or(call);
    let arguments = ["arguments", "input", "args"].iter().find_map(|name| function.get(name));
    let arguments = match arguments {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "{}".to_string(),
    };
    let id = text(call, &["call_id", "id", "tool_call_id"]).unwrap_or_default();
    let name = text(function, &["name"]).unwrap_or_default();
    match call.get("custom").is_some() {
        true => json!({"type": "custom_tool_call", "call_id": id, "name": name, "input": arguments}),
        false => json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}),
    }
}

fn output(result: &Value, content: Option<&Value>) -> Value {
    let id = text(result, &["tool_call_id", "tool_use_id", "call_id"]).unwrap_or_default();
    let output = match content {
        Some(Value::String(text)) => json!(text),
        Some(Value::Array(blocks)) => {
            let mut items = Items { role: "user", items: Vec::new(), parts: Vec::new() };
            blocks.iter().for_each(|block| items.block(block));
            json!(items.parts)
        }
        Some(Value::Null) | None => json!(""),
        Some(other) => json!(other.to_string()),
    };
    json!({"type": "function_call_output", "call_id": id, "output": output})
}

fn image(block: &Value) -> Value {
    let source = &block["source"];
    let url = match (text(source, &["url"]), text(source, &["data"])) {
        (Some(url), _) => url.to_string(),
        (None, Some(data)) => {
            format!("data:{};base64,{data}", text(source, &["media_type"]).unwrap_or("image/png"))
        }
        (None, None) => return block.clone(),
    };
    json!({"type": "input_image", "image_url": url, "detail": "auto"})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(message: Value) -> Vec<String> {
        let items = of_answer(&[Raw::of(&message).unwrap()], TurnId::from_bytes([1; 16]), &State::Done(0));
        items.iter().map(|item| kind_of(item).to_string()).collect()
    }

    #[test]
    fn every_shape_becomes_items() {
        for (message, expected) in [
            (json!({"role": "user", "content": "hi"}), vec!["message"]),
            (json!({"role": "assistant", "content": ""}), vec!["message"]),
            (
                json!({"role": "assistant", "content": "a", "reasoning_content": "hm",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}, {"id": "d", "function": {"name": "f"}}]}),
                vec!["reasoning", "message", "function_call", "function_call"],
            ),
            (json!({"role": "tool", "tool_call_id": "c", "content": "42"}), vec!["function_call_output"]),
            (
                json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}]}),
                vec!["reasoning", "message", "function_call"],
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]},
                    {"type": "text", "text": "go on"}]}),
                vec!["function_call_output", "message"],
            ),
            (json!({"type": "web_search_call", "id": "ws", "status": "completed"}), vec!["web_search_call"]),
        ] {
            assert_eq!(kinds(message.clone()), expected, "{message}");
        }
    }

    #[test]
    fn the_second_of_a_kind_has_a_number() {
        let turn = TurnId::from_bytes([1; 16]);
        let calls = json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]});
        let items = of_answer(&[Raw::of(&calls).unwrap()], turn, &State::Done(0));
        assert_eq!(items[1]["id"], format!("{}_1", items[0]["id"].as_str().unwrap()));
        assert!(items[1]["call_id"].as_str().unwrap().starts_with("call_"), "{items:?}");
    }
}
