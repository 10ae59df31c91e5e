//! OpenAI chat completions, as OpenAI and the servers compatible with it speak them.

use super::pieces::{Members, Pieces, write};
use super::sse::SseEvent;
use super::{
    Assemble, Delta, Failure, Fields, Finish, ModelReply, ModelRequest, ReplyTokens, ToolCall, number, parse,
};
use everturn_core::Error;
use everturn_core::json::Raw;
use serde::Deserialize;
use serde_json::{Value, json};

pub fn body(host: &str, model: &str, request: &ModelRequest) -> Result<String, Error> {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if let Some(system) = &request.system {
        messages.push(system_message(system)?);
    }
    messages.extend(request.messages.iter().cloned());
    let mut fields = Fields(Vec::new());
    fields.put("model", &model)?;
    fields.put("messages", &messages)?;
    if !request.tools.is_empty() {
        fields.put("tools", &request.tools)?;
    }
    if let Some(most) = request.max_output_tokens {
        // OpenAI's newer models refuse the old name, other servers do not know the new one.
        let openai = host.ends_with("openai.com") || host.ends_with("openai.azure.com");
        fields.put(if openai { "max_completion_tokens" } else { "max_tokens" }, &most)?;
    }
    if let Some(temperature) = request.temperature {
        fields.put("temperature", &temperature)?;
    }
    if request.json {
        fields.put("response_format", &json!({"type": "json_object"}))?;
    }
    fields.put("stream", &true)?;
    fields.put("stream_options", &json!({"include_usage": true}))?;
    fields.finish(&request.extra, &["model", "messages", "tools", "stream", "n"])
}

/// A whole message stays as it is; a string or a list of blocks becomes the content of one.
pub fn system_message(system: &Raw) -> Result<Raw, Error> {
    if system.get().starts_with('{') {
        return Ok(system.clone());
    }
    Raw::new(format!(r#"{{"role":"system","content":{}}}"#, system.get()))
}

#[derive(Deserialize)]
struct Chunk {
    id: Option<String>,
    model: Option<String>,
    choices: Option<Vec<Choice>>,
    usage: Option<Raw>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    index: Option<u64>,
    delta: Option<Members>,
    message: Option<Raw>,
    finish_reason: Option<String>,
}

/// An answer being assembled.
#[derive(Default)]
pub struct Chat {
    message: Pieces,
    /// Message as it came, if it came in one piece.
    exact: Option<Raw>,
    text: String,
    refusal: String,
    calls: Vec<Growing>,
    finish: Option<String>,
    usage: Option<Raw>,
    model: String,
    id: Option<String>,
    any: bool,
    done: bool,
}

#[derive(Default)]
struct Growing {
    index: Option<u64>,
    members: Pieces,
    function: Pieces,
}

impl Assemble for Chat {
    fn event(&mut self, event: &SseEvent) -> Result<Vec<Delta>, Failure> {
        match event.data.trim() {
            "[DONE]" => {
                self.done = true;
                Ok(Vec::new())
            }
            "" => Ok(Vec::new()),
            data => self.chunk(data),
        }
    }

    fn whole(&mut self, body: &str) -> Result<Vec<Delta>, Failure> {
        let deltas = self.chunk(body)?;
        self.done = true;
        Ok(deltas)
    }

    fn complete(&self) -> bool {
        self.any && (self.finish.is_some() || self.done)
    }

    fn ended(&self) -> bool {
        self.done
    }

    fn answer(mut self: Box<Self>) -> Result<ModelReply, Failure> {
        if !self.any {
            return Err(Failure::garbage("it holds no choices"));
        }
        let calls: Vec<ToolCall> = self.calls.iter().map(Growing::call).collect();
        let finish = finish(self.finish.as_deref(), !calls.is_empty());
        let message = match self.exact.take() {
            Some(message) => message,
            None => self.message()?,
        };
        Ok(ModelReply {
            messages: vec![message],
            text: self.text,
            refusal: Some(self.refusal).filter(|text| !text.is_empty()),
            calls,
            finish,
            tokens: self.usage.as_ref().and_then(Raw::read).map(|usage| tokens(&usage)).unwrap_or_default(),
            usage: self.usage,
            model: self.model,
            id: self.id,
        })
    }
}

impl Chat {
    fn chunk(&mut self, data: &str) -> Result<Vec<Delta>, Failure> {
        let chunk: Chunk = parse(data)?;
        if let Some(error) = chunk.error {
            return Err(Failure::of_object(&json!({ "error": error })));
        }
        if self.model.is_empty() {
            self.model = chunk.model.unwrap_or_default();
        }
        self.id = self.id.take().or(chunk.id.filter(|id| !id.is_empty()));
        self.usage = chunk.usage.or(self.usage.take());
        let mut deltas = Vec::new();
        // One answer was asked for; others would be mixed into it.
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index.unwrap_or(0) == 0) {
            self.any = true;
            self.finish = choice.finish_reason.filter(|reason| !reason.is_empty()).or(self.finish.take());
            let members = match (choice.delta, choice.message) {
                (Some(delta), _) => delta,
                (None, Some(message)) => {
                    let members: Members = parse(message.get())?;
                    self.exact = Some(message);
                    members
                }
                (None, None) => continue,
            };
            self.delta(members, &mut deltas)?;
        }
        Ok(deltas)
    }

    fn delta(&mut self, members: Members, deltas: &mut Vec<Delta>) -> Result<(), Failure> {
        // Some servers give the same reasoning under both names.
        let reasoning = ["reasoning_content", "reasoning"];
        let mut reasoned = false;
        for (key, value) in members.0 {
            match key.as_str() {
                "tool_calls" => {
                    let calls: Option<Vec<Members>> = parse(value.get())?;
                    for call in calls.into_iter().flatten() {
                        deltas.push(self.call(call)?);
                    }
                    continue;
                }
                "content" => {
                    let text = words(&value);
                    self.text.push_str(&text);
                    deltas.extend((!text.is_empty()).then_some(Delta::Text(text)));
                }
                "refusal" => {
                    let text = words(&value);
                    self.refusal.push_str(&text);
                    deltas.extend((!text.is_empty()).then_some(Delta::Refusal(text)));
                }
                key if reasoning.contains(&key) && !reasoned => {
                    let text = words(&value);
                    reasoned = !text.is_empty();
                    deltas.extend(reasoned.then_some(Delta::Thinking(text)));
                }
                _ => {}
            }
            self.message.add(&key, value);
        }
        Ok(())
    }

    /// The index tells which call a piece belongs to. Where a server leaves it out, or gives every call the same, the
    /// id tells them apart.
    fn call(&mut self, members: Members) -> Result<Delta, Failure> {
        let find = |name| members.0.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let index: Option<u64> = find("index").and_then(Raw::read);
        let id = find("id").and_then(Raw::read::<String>).filter(|id| !id.is_empty());
        let same_id = |call: &Growing| {
            id.is_none() || call.members.text("id").is_none_or(|known| Some(&*known) == id.as_deref())
        };
        let place = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index),
            None => self.calls.len().checked_sub(1),
        };
        let place = place.filter(|place| same_id(&self.calls[*place])).unwrap_or_else(|| {
            self.calls.push(Growing { index, ..Growing::default() });
            self.calls.len() - 1
        });
        let call = &mut self.calls[place];
        let named = call.function.has("name");
        let mut arguments = String::new();
        for (key, value) in members.0 {
            match key.as_str() {
                "index" => {}
                "function" => {
                    let function: Option<Members> = parse(value.get())?;
                    for (key, value) in function.map(|f| f.0).unwrap_or_default() {
                        if key == "arguments" {
                            arguments = value.read().unwrap_or_else(|| value.get().to_string());
                        }
                        call.function.add(&key, value);
                    }
                }
                _ => call.members.add(&key, value),
            }
        }
        let name = call.function.text("name").filter(|_| !named).map(|name| name.into_owned());
        Ok(Delta::Call { index: place, id: id.filter(|_| !named), name, arguments })
    }

    fn message(&self) -> Result<Raw, Failure> {
        let mut members = self.message.members()?;
        let mut first = |place: usize, key: &'static str, otherwise: &Value| -> Result<(), Failure> {
            let known = members.iter().position(|(name, _)| *name == key).map(|at| members.remove(at));
            let member = match known {
                Some(member) => member,
                None => (key, Raw::of(otherwise)?),
            };
            members.insert(place, member);
            Ok(())
        };
        first(0, "role", &json!("assistant"))?;
        // Without calls a message needs content.
        first(1, "content", &if self.calls.is_empty() { json!("") } else { Value::Null })?;
        if !self.calls.is_empty() {
            let calls: Vec<Raw> = self.calls.iter().map(Growing::write).collect::<Result<_, _>>()?;
            members.push(("tool_calls", Raw::of(&calls)?));
        }
        write(&members)
    }
}

impl Growing {
    fn call(&self) -> ToolCall {
        let text = |key| self.function.text(key).map(|text| text.into_owned());
        ToolCall {
            id: self.members.text("id").filter(|id| !id.is_empty()).map(|id| id.into_owned()),
            name: text("name").unwrap_or_default(),
            arguments: text("arguments").unwrap_or_default(),
        }
    }

    fn write(&self) -> Result<Raw, Failure> {
        let mut members = self.members.members()?;
        if !self.members.has("type") {
            members.push(("type", Raw::of(&"function")?));
        }
        members.push(("function", self.function.write()?));
        write(&members)
    }
}

fn words(value: &Raw) -> String {
    match value.read() {
        Some(Value::String(text)) => text,
        Some(Value::Array(blocks)) => blocks
            .iter()
            .filter(|block| block.get("type").is_some_and(|kind| kind == "text"))
            .filter_map(|block| super::text_of(block, "text"))
            .collect(),
        _ => String::new(),
    }
}

fn finish(reason: Option<&str>, calls: bool) -> Finish {
    match reason {
        // Some servers say `stop` although they wait for the results.
        Some("stop" | "tool_calls" | "function_call") if calls => Finish::ToolCalls,
        Some("stop") => Finish::Stop,
        Some("tool_calls" | "function_call") => Finish::ToolCalls,
        Some("length") => Finish::Length,
        Some("content_filter") => Finish::ContentFilter,
        Some(other) => Finish::Other(other.to_string()),
        None => Finish::Other("not said".to_string()),
    }
}

fn tokens(usage: &Value) -> ReplyTokens {
    ReplyTokens {
        prompt: number(usage, &["prompt_tokens"]),
        completion: number(usage, &["completion_tokens"]),
        cached: number(usage, &["prompt_tokens_details", "cached_tokens"]),
    }
}
