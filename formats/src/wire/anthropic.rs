//! Anthropic Messages.

use super::pieces::{Members, Pieces, write};
use super::sse::SseEvent;
use super::{
    ANTHROPIC_OUTPUT_TOKENS_DEFAULT, Assemble, Delta, Failure, Fields, Finish, ModelReply, ModelRequest,
    ReplyTokens, ToolCall, number, parse,
};
use everturn_core::Error;
use everturn_core::json::{Raw, quote};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

pub fn body(model: &str, request: &ModelRequest) -> Result<String, Error> {
    let mut fields = Fields(Vec::new());
    fields.put("model", &model)?;
    fields.put("max_tokens", &request.max_output_tokens.unwrap_or(ANTHROPIC_OUTPUT_TOKENS_DEFAULT))?;
    if let Some(system) = &request.system {
        fields.put("system", system)?;
    }
    fields.put("messages", &request.messages)?;
    if !request.tools.is_empty() {
        fields.put("tools", &request.tools)?;
    }
    if let Some(temperature) = request.temperature {
        fields.put("temperature", &temperature)?;
    }
    fields.put("stream", &true)?;
    fields.finish(&request.extra, &["model", "messages", "system", "tools", "stream"])
}

#[derive(Deserialize)]
struct Incoming {
    #[serde(rename = "type")]
    kind: Option<String>,
    message: Option<Message>,
    index: Option<u64>,
    content_block: Option<Members>,
    delta: Option<Members>,
    usage: Option<Members>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    id: Option<String>,
    model: Option<String>,
    content: Option<Raw>,
    stop_reason: Option<String>,
    usage: Option<Members>,
    error: Option<Value>,
}

/// An answer being assembled.
#[derive(Default)]
pub struct Anthropic {
    blocks: BTreeMap<u64, Block>,
    /// List of blocks as it came, if it came in one piece.
    exact: Option<Raw>,
    calls: usize,
    usage: Pieces,
    finish: Option<String>,
    model: String,
    id: Option<String>,
    done: bool,
}

#[derive(Default)]
struct Block {
    members: Pieces,
    /// Input of a tool: JSON, in pieces so far.
    input: String,
    /// Index of the call in the answer.
    call: Option<usize>,
}

impl Assemble for Anthropic {
    fn event(&mut self, event: &SseEvent) -> Result<Vec<Delta>, Failure> {
        let incoming: Incoming = parse(&event.data)?;
        match incoming.kind.as_deref().or(event.name.as_deref()) {
            Some("message_start") => {
                if let Some(message) = incoming.message {
                    self.begin(message);
                }
            }
            Some("content_block_start") => {
                let members = incoming.content_block.ok_or_else(|| missing("content_block"))?;
                return Ok(self.start(incoming.index.ok_or_else(|| missing("index"))?, members));
            }
            Some("content_block_delta") => {
                let index = incoming.index.ok_or_else(|| missing("index"))?;
                let block =
                    self.blocks.get_mut(&index).ok_or_else(|| Failure::garbage("a piece of no block"))?;
                return Ok(block.grow(incoming.delta.ok_or_else(|| missing("delta"))?).into_iter().collect());
            }
            Some("content_block_stop") => {
                let block = incoming.index.and_then(|index| self.blocks.get(&index));
                return Ok(block.map(Block::sealed).transpose()?.flatten().into_iter().collect());
            }
            Some("message_delta") => {
                for (key, value) in incoming.delta.map(|delta| delta.0).unwrap_or_default() {
                    if key == "stop_reason" {
                        self.finish = value.read().or(self.finish.take());
                    }
                }
                self.count(incoming.usage);
            }
            Some("message_stop") => self.done = true,
            Some("error") => return Err(failed(incoming.error)),
            // `ping`, and events added to the protocol later.
            _ => {}
        }
        Ok(Vec::new())
    }

    fn whole(&mut self, body: &str) -> Result<Vec<Delta>, Failure> {
        let message: Message = parse(body)?;
        if message.error.is_some() {
            return Err(failed(message.error));
        }
        let content = message.content.clone().ok_or_else(|| missing("content"))?;
        self.begin(message);
        let blocks: Vec<Members> = parse(content.get())?;
        let mut deltas = Vec::new();
        for (index, block) in (0..).zip(blocks) {
            deltas.extend(self.start(index, block));
            deltas.extend(self.blocks.get(&index).map(Block::sealed).transpose()?.flatten());
        }
        self.exact = Some(content);
        self.done = true;
        Ok(deltas)
    }

    fn complete(&self) -> bool {
        self.finish.is_some() || self.done
    }

    fn ended(&self) -> bool {
        self.done
    }

    fn answer(self: Box<Self>) -> Result<ModelReply, Failure> {
        let mut text = String::new();
        let mut calls = Vec::new();
        let mut content = Vec::new();
        for block in self.blocks.values() {
            match block.members.text("type").as_deref() {
                Some("text") => text.push_str(&block.members.text("text").unwrap_or_default()),
                Some("tool_use") => calls.push(block.call()),
                _ => {}
            }
            content.push(block.write()?.get().to_string());
        }
        let content =
            self.exact.map_or_else(|| format!("[{}]", content.join(",")), |raw| raw.get().to_string());
        let usage = self.usage.write()?;
        let finish = match self.finish.as_deref() {
            Some("end_turn" | "stop_sequence") => Finish::Stop,
            Some("max_tokens" | "model_context_window_exceeded") => Finish::Length,
            Some("tool_use") => Finish::ToolCalls,
            Some("refusal") => Finish::ContentFilter,
            Some(other) => Finish::Other(other.to_string()),
            None => Finish::Other("not said".to_string()),
        };
        Ok(ModelReply {
            // Only the fields of a request: the id, the model and the usage would be refused there.
            messages: vec![Raw::new(format!(r#"{{"role":"assistant","content":{content}}}"#))?],
            text,
            refusal: None,
            calls,
            finish,
            tokens: usage.read().map(|usage| tokens(&usage)).unwrap_or_default(),
            usage: Some(usage).filter(|usage| usage.get() != "{}"),
            model: self.model,
            id: self.id,
        })
    }
}

impl Anthropic {
    fn begin(&mut self, message: Message) {
        self.id = message.id;
        self.model = message.model.unwrap_or_default();
        self.finish = message.stop_reason;
        self.count(message.usage);
    }

    /// The numbers are totals: the last ones hold.
    fn count(&mut self, usage: Option<Members>) {
        for (key, value) in usage.map(|usage| usage.0).unwrap_or_default() {
            if value.get() != "null" {
                self.usage.set(&key, value);
            }
        }
    }

    fn start(&mut self, index: u64, members: Members) -> Vec<Delta> {
        let mut block = Block::default();
        for (key, value) in members.0 {
            block.members.set(&key, value);
        }
        let text =
            |key| block.members.text(key).map(|text| text.into_owned()).filter(|text| !text.is_empty());
        let delta = match block.members.text("type").as_deref() {
            Some("text") => text("text").map(Delta::Text),
            Some("thinking") => text("thinking").map(Delta::Thinking),
            Some("tool_use") => {
                block.call = Some(self.calls);
                self.calls += 1;
                let whole = block.members.raw("input").map(|input| input.get().to_string());
                Some(Delta::Call {
                    index: self.calls - 1,
                    id: text("id"),
                    name: text("name"),
                    arguments: whole.filter(|input| input != "{}").unwrap_or_default(),
                })
            }
            _ => None,
        };
        self.blocks.insert(index, block);
        delta.into_iter().collect()
    }
}

impl Block {
    fn grow(&mut self, delta: Members) -> Option<Delta> {
        let mut shown = None;
        for (key, value) in delta.0 {
            let text = value.read::<String>().unwrap_or_default();
            match key.as_str() {
                "type" => continue,
                "partial_json" => {
                    self.input.push_str(&text);
                    shown =
                        self.call.map(|index| Delta::Call { index, id: None, name: None, arguments: text });
                    continue;
                }
                "citation" => {
                    if let Ok(list) = Raw::new(format!("[{}]", value.get())) {
                        self.members.add("citations", list);
                    }
                    continue;
                }
                "text" => shown = Some(Delta::Text(text)),
                "thinking" => shown = Some(Delta::Thinking(text)),
                _ => {}
            }
            self.members.add(&key, value);
        }
        shown
    }

    /// The whole block, if it is reasoning that only its provider can read or check.
    fn sealed(&self) -> Result<Option<Delta>, Failure> {
        let seal = match self.members.text("type").as_deref() {
            Some("thinking") => self.members.text("signature"),
            Some("redacted_thinking") => self.members.text("data"),
            _ => None,
        };
        seal.filter(|seal| !seal.is_empty()).map(|_| self.write().map(Delta::Sealed)).transpose()
    }

    fn call(&self) -> ToolCall {
        let text = |key| self.members.text(key).map(|text| text.into_owned());
        let arguments = match self.input.as_str() {
            "" => self.members.raw("input").map_or_else(|| "{}".to_string(), |raw| raw.get().to_string()),
            input => input.to_string(),
        };
        ToolCall { id: text("id"), name: text("name").unwrap_or_default(), arguments }
    }

    fn write(&self) -> Result<Raw, Failure> {
        if self.input.is_empty() {
            return self.members.write();
        }
        // An input that was cut is no JSON. This is how the provider wants to have it back.
        let input = Raw::new(self.input.clone())
            .or_else(|_| Raw::new(format!(r#"{{"INVALID_JSON":{}}}"#, quote(&self.input))))?;
        let mut members = self.members.members()?;
        members.retain(|(key, _)| *key != "input");
        members.push(("input", input));
        write(&members)
    }
}

fn missing(what: &str) -> Failure {
    Failure::garbage(format!("an event without {what}"))
}

fn failed(error: Option<Value>) -> Failure {
    Failure::of_object(&serde_json::json!({ "error": error }))
}

fn tokens(usage: &Value) -> ReplyTokens {
    let fresh = number(usage, &["input_tokens"]);
    let cached = number(usage, &["cache_read_input_tokens"]);
    let written = number(usage, &["cache_creation_input_tokens"]);
    ReplyTokens {
        prompt: fresh
            .map(|fresh| fresh.saturating_add(cached.unwrap_or(0)).saturating_add(written.unwrap_or(0))),
        completion: number(usage, &["output_tokens"]),
        cached,
    }
}
