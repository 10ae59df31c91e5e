//! OpenAI Responses.

use super::chat::system_message;
use super::sse::SseEvent;
use super::{
    Assemble, Delta, Failure, Fields, Finish, ModelReply, ModelRequest, ReplyTokens, ToolCall, number, parse,
    text_of,
};
use everturn_core::Error;
use everturn_core::json::Raw;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub fn body(model: &str, request: &ModelRequest) -> Result<String, Error> {
    let mut input = Vec::with_capacity(request.messages.len() + 1);
    let mut instructions = None;
    match &request.system {
        Some(system) if system.get().starts_with('"') => instructions = Some(system),
        // Instructions are text only; blocks are the first item.
        Some(system) => input.push(system_message(system)?),
        None => {}
    }
    input.extend(request.messages.iter().cloned());
    let mut fields = Fields(Vec::new());
    fields.put("model", &model)?;
    if let Some(instructions) = instructions {
        fields.put("instructions", instructions)?;
    }
    fields.put("input", &input)?;
    if !request.tools.is_empty() {
        fields.put("tools", &request.tools)?;
    }
    if let Some(most) = request.max_output_tokens {
        fields.put("max_output_tokens", &most)?;
    }
    if let Some(temperature) = request.temperature {
        fields.put("temperature", &temperature)?;
    }
    if request.json {
        fields.put("text", &json!({"format": {"type": "json_object"}}))?;
    }
    // The conversation is kept here, not there. Then reasoning can only be sent back if it comes sealed, which models
    // that do not reason refuse to be asked for.
    fields.put("store", &false)?;
    if reasons(model) {
        fields.put("include", &["reasoning.encrypted_content"])?;
    }
    fields.put("stream", &true)?;
    fields.finish(&request.extra, &["model", "input", "instructions", "tools", "stream", "background"])
}

/// Whether the name is that of one of OpenAI's models that reason: `o3`, `gpt-5` and later.
fn reasons(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let number = |rest: &str| -> Option<u32> {
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    };
    match (name.strip_prefix('o').and_then(number), name.strip_prefix("gpt-").and_then(number)) {
        (Some(_), _) => true,
        (None, Some(version)) => version >= 5 && !name.contains("chat"),
        (None, None) => false,
    }
}

#[derive(Deserialize)]
struct Incoming {
    #[serde(rename = "type")]
    kind: Option<String>,
    response: Option<Response>,
    output_index: Option<u64>,
    item: Option<Raw>,
    delta: Option<Value>,
}

#[derive(Deserialize, Default)]
struct Response {
    id: Option<String>,
    model: Option<String>,
    status: Option<String>,
    output: Option<Vec<Raw>>,
    usage: Option<Raw>,
    error: Option<Value>,
    incomplete_details: Option<Value>,
}

/// An answer being assembled.
#[derive(Default)]
pub struct Responses {
    items: BTreeMap<u64, Raw>,
    /// Index of each call in the answer, by its place in the output.
    calls: BTreeMap<u64, usize>,
    /// Places in the output of which a delta was returned.
    shown: BTreeSet<u64>,
    model: String,
    id: Option<String>,
    last: Option<Response>,
}

impl Assemble for Responses {
    fn event(&mut self, event: &SseEvent) -> Result<Vec<Delta>, Failure> {
        if event.data.trim() == "[DONE]" {
            return Ok(Vec::new());
        }
        let incoming: Incoming = parse(&event.data)?;
        let kind = incoming.kind.as_deref().or(event.name.as_deref()).unwrap_or_default();
        let place = incoming.output_index.unwrap_or(0);
        let piece = || incoming.delta.as_ref().and_then(Value::as_str).unwrap_or_default().to_string();
        let delta = match kind {
            "response.output_text.delta" => Some(Delta::Text(piece())),
            "response.refusal.delta" => Some(Delta::Refusal(piece())),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                Some(Delta::Thinking(piece()))
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => self
                .calls
                .get(&place)
                .map(|index| Delta::Call { index: *index, id: None, name: None, arguments: piece() }),
            "response.output_item.added" => incoming.item.as_ref().and_then(|item| self.begin(place, item)),
            "response.reasoning_summary_part.done" => Some(Delta::ThinkingEnd),
            "response.output_item.done" => {
                let Some(item) = incoming.item else { return Ok(Vec::new()) };
                let mut deltas = match self.shown.contains(&place) {
                    true => Vec::new(),
                    false => contents(std::slice::from_ref(&item), self.calls.len()).deltas,
                };
                deltas.push(Delta::Item(item.clone()));
                self.items.insert(place, item);
                return Ok(deltas);
            }
            "response.created" | "response.in_progress" => {
                if let Some(response) = incoming.response {
                    self.name(&response);
                }
                None
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                return self
                    .end(incoming.response.ok_or_else(|| Failure::garbage("an end without the response"))?);
            }
            "error" => return Err(Failure::of_object(&parse(&event.data)?)),
            _ => None,
        };
        if delta.is_some() {
            self.shown.insert(place);
        }
        Ok(delta.into_iter().collect())
    }

    fn whole(&mut self, body: &str) -> Result<Vec<Delta>, Failure> {
        self.end(parse(body)?)
    }

    fn complete(&self) -> bool {
        self.last.is_some()
    }

    fn ended(&self) -> bool {
        self.last.is_some()
    }

    fn answer(self: Box<Self>) -> Result<ModelReply, Failure> {
        let last = self.last.ok_or_else(|| Failure::garbage("it has no end"))?;
        let items = last.output.unwrap_or_default();
        let Contents { text, refusal, calls, .. } = contents(&items, 0);
        let reason = last.incomplete_details.as_ref().and_then(|details| text_of(details, "reason"));
        let finish = match (last.status.as_deref(), reason) {
            (Some("incomplete"), Some("max_output_tokens")) => Finish::Length,
            (Some("incomplete"), Some("content_filter")) => Finish::ContentFilter,
            (Some("completed") | None, _) if calls.is_empty() => Finish::Stop,
            (Some("completed") | None, _) => Finish::ToolCalls,
            (Some(status), reason) => Finish::Other(reason.unwrap_or(status).to_string()),
        };
        Ok(ModelReply {
            messages: items,
            text,
            refusal: Some(refusal).filter(|text| !text.is_empty()),
            calls,
            finish,
            tokens: last.usage.as_ref().and_then(Raw::read).map(|usage| tokens(&usage)).unwrap_or_default(),
            usage: last.usage,
            model: self.model,
            id: self.id,
        })
    }
}

impl Responses {
    fn name(&mut self, response: &Response) {
        if let Some(model) = &response.model {
            self.model.clone_from(model);
        }
        self.id = response.id.clone().or(self.id.take());
    }

    /// Introduces a call with the name of its tool, before its arguments come.
    fn begin(&mut self, place: u64, item: &Raw) -> Option<Delta> {
        let item: Value = item.read()?;
        let call = call(&item)?;
        let index = self.calls.len();
        self.calls.insert(place, index);
        Some(Delta::Call { index, id: call.id, name: Some(call.name), arguments: call.arguments })
    }

    fn end(&mut self, mut response: Response) -> Result<Vec<Delta>, Failure> {
        match (&response.error, response.status.as_deref()) {
            (Some(error), _) => return Err(Failure::of_object(&json!({ "error": error }))),
            (None, Some("failed" | "cancelled")) => {
                return Err(Failure::new(super::failure::Class::Unavailable, "the response failed"));
            }
            _ => {}
        }
        self.name(&response);
        let has_streamed = !self.shown.is_empty() || !self.items.is_empty();
        // Some servers leave the items out of the last event, having sent them before.
        if response.output.as_ref().is_none_or(Vec::is_empty) && !self.items.is_empty() {
            response.output = Some(std::mem::take(&mut self.items).into_values().collect());
        }
        let items =
            response.output.as_deref().ok_or_else(|| Failure::garbage("a response without output"))?;
        let deltas = if has_streamed { Vec::new() } else { contents(items, 0).deltas };
        self.last = Some(response);
        Ok(deltas)
    }
}

#[derive(Default)]
struct Contents {
    text: String,
    refusal: String,
    calls: Vec<ToolCall>,
    deltas: Vec<Delta>,
}

/// The contents of items after this many calls.
fn contents(items: &[Raw], calls_before: usize) -> Contents {
    let mut all = Contents::default();
    for item in items.iter().filter_map(Raw::read::<Value>) {
        for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
            match text_of(part, "type") {
                Some("output_text") => {
                    let text = text_of(part, "text").unwrap_or_default();
                    all.text.push_str(text);
                    all.deltas.push(Delta::Text(text.to_string()));
                }
                Some("refusal") => {
                    let text = text_of(part, "refusal").unwrap_or_default();
                    all.refusal.push_str(text);
                    all.deltas.push(Delta::Refusal(text.to_string()));
                }
                _ => {}
            }
        }
        if let Some(call) = call(&item) {
            let ToolCall { id, name, arguments } = call.clone();
            let index = calls_before + all.calls.len();
            all.deltas.push(Delta::Call { index, id, name: Some(name), arguments });
            all.calls.push(call);
        }
    }
    all
}

/// A call that the caller must answer; those that the provider runs itself are not.
fn call(item: &Value) -> Option<ToolCall> {
    let arguments = match text_of(item, "type")? {
        "function_call" => "arguments",
        "custom_tool_call" => "input",
        _ => return None,
    };
    Some(ToolCall {
        id: text_of(item, "call_id").map(str::to_string),
        name: text_of(item, "name").unwrap_or_default().to_string(),
        arguments: text_of(item, arguments).unwrap_or_default().to_string(),
    })
}

fn tokens(usage: &Value) -> ReplyTokens {
    ReplyTokens {
        prompt: number(usage, &["input_tokens"]),
        completion: number(usage, &["output_tokens"]),
        cached: number(usage, &["input_tokens_details", "cached_tokens"]),
    }
}
