//! Requests to model servers and their answers, as bytes on the wire.
//!
//! [`body`] writes a [`ModelRequest`] for a server. [`Reader`] takes the bytes that come back: [`sse`] cuts them into events,
//! and an [`Assemble`] puts the [`ModelReply`] together from them. [`failure`] reads error responses.
//!
//! It opens no connection, knows no time and retries nothing; `engine` does.

mod anthropic;
mod chat;
pub mod embeddings;
pub mod failure;
mod pieces;
mod reader;
mod responses;
pub mod sse;

pub use failure::Failure;
pub use reader::{MODEL_ANSWER_BYTES_MAX, Reader};

use everturn_core::Error;
use everturn_core::json::Raw;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Protocol of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// OpenAI chat completions, and the many servers compatible with them.
    OpenaiChat,
    /// OpenAI Responses.
    OpenaiResponses,
    /// Anthropic Messages.
    Anthropic,
}

impl Protocol {
    /// Last part of the URL for answers.
    pub fn path(self) -> &'static str {
        match self {
            Protocol::OpenaiChat => "chat/completions",
            Protocol::OpenaiResponses => "responses",
            Protocol::Anthropic => "messages",
        }
    }

    /// Assembler for an answer of this kind.
    #[doc(hidden)]
    pub fn assembly(self) -> Box<dyn Assemble> {
        match self {
            Protocol::OpenaiChat => Box::<chat::Chat>::default(),
            Protocol::OpenaiResponses => Box::<responses::Responses>::default(),
            Protocol::Anthropic => Box::<anthropic::Anthropic>::default(),
        }
    }
}

/// A request to a model. Messages and tools are already in the provider's shape; their bytes are sent unchanged.
#[derive(Clone, Debug, Default)]
pub struct ModelRequest {
    /// Model, if it is not the one that the client was made for.
    pub model: Option<String>,
    /// The system prompt: a string, a list of blocks, or a whole message where the provider has such.
    pub system: Option<Raw>,
    /// The messages (for Responses: the items), oldest first.
    pub messages: Vec<Raw>,
    /// The tools the model may call.
    pub tools: Vec<Raw>,
    /// Maximum number of tokens in the answer. Anthropic requires one: [`ANTHROPIC_OUTPUT_TOKENS_DEFAULT`] if absent.
    pub max_output_tokens: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Ask for a JSON answer, where the protocol can. The prompt must say so as well.
    pub json: bool,
    /// Further fields of the body. They override our defaults; `null` removes a default.
    pub extra: BTreeMap<String, Raw>,
}

/// `max_tokens` for Anthropic if the request sets none.
pub const ANTHROPIC_OUTPUT_TOKENS_DEFAULT: u64 = 8192;

/// A piece of a streamed answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delta {
    /// Text of the answer.
    Text(String),
    /// Text of the reasoning, where the provider shows it.
    Thinking(String),
    /// End of a part of the reasoning; the next piece begins another.
    ThinkingEnd,
    /// A finished block of signed or encrypted reasoning, in the form that the provider wants back.
    Sealed(Raw),
    /// A finished item of a Responses answer. Its text and its call came before, in pieces.
    Item(Raw),
    /// Text of a refusal, where the provider keeps it apart.
    Refusal(String),
    /// A piece of a tool call.
    Call {
        /// Index of the call in the answer, from 0.
        index: usize,
        /// Id of the call; in its first piece only.
        id: Option<String>,
        /// Name of the tool; in its first piece only.
        name: Option<String>,
        /// Next piece of the arguments, which together are JSON.
        arguments: String,
    },
}

/// A tool call in a finished answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolCall {
    /// Id that pairs the call with its result. Some servers give none.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments as the model wrote them: JSON, unless the answer was cut or the model erred.
    pub arguments: String,
}

/// Reason for the end of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model was done.
    Stop,
    /// It reached the token limit.
    Length,
    /// It waits for the results of its calls.
    ToolCalls,
    /// The provider, or the model itself, refused to continue.
    ContentFilter,
    /// Another reason, in the provider's word.
    Other(String),
}

/// Token counts of an answer, if the server reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyTokens {
    /// All tokens of the prompt, cached ones included.
    pub prompt: Option<u64>,
    /// Tokens of the answer, reasoning included.
    pub completion: Option<u64>,
    /// Tokens of the prompt that came from the provider's cache.
    pub cached: Option<u64>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct ModelReply {
    /// Messages to keep and to send back in the next request, in the provider's own shape: one assistant message, or
    /// the items of a Responses answer. Parts that came in one piece, signatures among them, keep their original
    /// bytes.
    pub messages: Vec<Raw>,
    /// Text of the answer.
    pub text: String,
    /// Text of a refusal, where the provider keeps it apart.
    pub refusal: Option<String>,
    /// Tool calls.
    pub calls: Vec<ToolCall>,
    /// Reason for its end.
    pub finish: Finish,
    /// Token counts.
    pub tokens: ReplyTokens,
    /// Usage object as the provider sent it.
    pub usage: Option<Raw>,
    /// Name of the model that answered, from the server; empty if it does not say.
    pub model: String,
    /// The server's id of the answer.
    pub id: Option<String>,
}

/// Assembles one answer.
///
/// Takes events as they come, and returns the deltas of each for live display. A server that answers with one JSON
/// value although a stream was requested is read by `whole`.
pub trait Assemble: Send {
    /// Takes one event. An error object in it is returned as a [`Failure`].
    fn event(&mut self, event: &sse::SseEvent) -> Result<Vec<Delta>, Failure>;
    /// Takes a whole answer that was not streamed.
    fn whole(&mut self, body: &str) -> Result<Vec<Delta>, Failure>;
    /// Whether the server sent the reason for the end: a connection that closes now has cut nothing.
    fn complete(&self) -> bool;
    /// Whether nothing more will come.
    fn ended(&self) -> bool;
    /// The answer, if it is `complete`.
    fn answer(self: Box<Self>) -> Result<ModelReply, Failure>;
}

/// Body of a request to a server of that kind at that host. It requests a stream, and this model unless the request
/// names another.
pub fn body(kind: Protocol, host: &str, model: &str, request: &ModelRequest) -> Result<String, Error> {
    if request.temperature.is_some_and(|t| !t.is_finite()) {
        return Err(Error::invalid(
            "model.temperature",
            "the temperature is not a number; give one, or none",
        ));
    }
    let model = request.model.as_deref().unwrap_or(model);
    match kind {
        Protocol::OpenaiChat => chat::body(host, model, request),
        Protocol::OpenaiResponses => responses::body(model, request),
        Protocol::Anthropic => anthropic::body(model, request),
    }
}

/// Fields of a body in order; those of `extra` replace ours.
struct Fields(Vec<(&'static str, Raw)>);

impl Fields {
    fn put(&mut self, name: &'static str, value: &impl serde::Serialize) -> Result<(), Error> {
        self.0.push((name, Raw::of(value)?));
        Ok(())
    }

    fn finish(self, extra: &BTreeMap<String, Raw>, reserved: &[&str]) -> Result<String, Error> {
        if let Some(name) = extra.keys().find(|name| reserved.contains(&name.as_str())) {
            return Err(Error::invalid(
                "model.extra_reserved",
                format!("extra must not hold {name:?}, which the request itself says; remove it"),
            ));
        }
        let ours = self.0.iter().filter(|(name, _)| !extra.contains_key(*name));
        let theirs = extra.iter().filter(|(_, value)| value.get() != "null");
        let all = ours.map(|(name, raw)| (*name, raw)).chain(theirs.map(|(name, raw)| (name.as_str(), raw)));
        Ok(object(all))
    }
}

/// A JSON object of these fields, in this order, each value with its own bytes.
fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a Raw)>) -> String {
    let mut out = String::from("{");
    for (name, value) in fields {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&everturn_core::json::quote(name));
        out.push(':');
        out.push_str(value.get());
    }
    out.push('}');
    out
}

/// Parses JSON from a server, with the checks for everything that we store. Half a character, which some write between two
/// pieces, is no reason to lose the answer.
fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Failure> {
    let text = &everturn_core::json::replace_lone_surrogates(text);
    everturn_core::json::check(text).map_err(|e| Failure::garbage(e.to_string()))?;
    // Serde's message may quote the text, so only the position is reported.
    serde_json::from_str(text)
        .map_err(|e| Failure::garbage(format!("JSON of another shape, seen at column {}", e.column())))
}

fn text_of<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !text.is_empty())
}

fn number(value: &Value, path: &[&str]) -> Option<u64> {
    path.iter().try_fold(value, |value, key| value.get(key))?.as_u64()
}

#[cfg(test)]
mod tests;
