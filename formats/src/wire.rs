//! Requests to and answers from model servers, as they are on the wire.
//!
//! [`body`] writes a [`Request`] for a server. [`Reader`] takes the bytes that come back: [`sse`] cuts them into events,
//! and an [`Assemble`] puts the [`ModelReply`] together from them. [`failure`] reads what a server says when it refuses.
//!
//! What it is not: it opens no connection, knows no time and retries nothing; `engine` does.

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
use serde_json::Value;
use std::collections::BTreeMap;

/// Which protocol a server speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// OpenAI chat completions, and the many servers compatible with them.
    OpenaiChat,
    /// OpenAI Responses.
    OpenaiResponses,
    /// Anthropic Messages.
    Anthropic,
}

impl Kind {
    /// The last part of the URL that answers are asked from.
    pub fn path(self) -> &'static str {
        match self {
            Kind::OpenaiChat => "chat/completions",
            Kind::OpenaiResponses => "responses",
            Kind::Anthropic => "messages",
        }
    }

    /// What puts an answer of this kind together.
    pub fn assembly(self) -> Box<dyn Assemble> {
        match self {
            Kind::OpenaiChat => Box::<chat::Chat>::default(),
            Kind::OpenaiResponses => Box::<responses::Responses>::default(),
            Kind::Anthropic => Box::<anthropic::Anthropic>::default(),
        }
    }
}

/// What a model is asked. Messages and tools are already in the provider's shape; their bytes are sent as they are.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Asks for this model instead of the one that the client was made for.
    pub model: Option<String>,
    /// The system prompt: a string, a list of blocks, or a whole message where the provider has such.
    pub system: Option<Raw>,
    /// The messages (for Responses: the items), oldest first.
    pub messages: Vec<Raw>,
    /// The tools the model may call.
    pub tools: Vec<Raw>,
    /// Most tokens of the answer. Anthropic demands a number: [`ANTHROPIC_OUTPUT_TOKENS_DEFAULT`] if there is none.
    pub max_output_tokens: Option<u64>,
    /// How freely the model chooses its words.
    pub temperature: Option<f64>,
    /// Ask for a JSON answer, where the protocol can. The prompt must say so as well.
    pub json: bool,
    /// Further fields of the body. They win over what is written by default; `null` leaves a default out.
    pub extra: BTreeMap<String, Raw>,
}

/// What `max_tokens` says to Anthropic when the request does not.
pub const ANTHROPIC_OUTPUT_TOKENS_DEFAULT: u64 = 8192;

/// A piece of an answer, as it comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delta {
    /// Words of the answer.
    Text(String),
    /// Words of the reasoning, where the provider shows it.
    Thinking(String),
    /// A block of reasoning that its provider signed or encrypted has ended: the block as the provider wants it back.
    Sealed(Raw),
    /// Words of a refusal, where the provider keeps it apart.
    Refusal(String),
    /// A tool call begins or goes on.
    Call {
        /// Which call of the answer, from 0.
        index: usize,
        /// Its id; in its first piece only.
        id: Option<String>,
        /// The tool; in its first piece only.
        name: Option<String>,
        /// The next piece of its arguments, which are JSON in the end.
        arguments: String,
    },
}

/// A tool call in a finished answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Pairs it with its result. Some servers give none.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its arguments, as the model wrote them: JSON, unless the answer was cut or the model erred.
    pub arguments: String,
}

/// Why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model was done.
    Stop,
    /// It reached the most tokens it may write.
    Length,
    /// It waits for the results of its calls.
    ToolCalls,
    /// The provider, or the model itself, refused to go on.
    ContentFilter,
    /// Something else, in the provider's word.
    Other(String),
}

/// What an answer cost, as far as the server said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tokens {
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
    /// What to keep and to send back in the next request, in the provider's own shape: one assistant message, or the
    /// items of a Responses answer. What came in one piece, signatures among it, has the bytes it came with.
    pub messages: Vec<Raw>,
    /// The words of the answer.
    pub text: String,
    /// The words of a refusal, where the provider keeps it apart.
    pub refusal: Option<String>,
    /// The tools it calls.
    pub calls: Vec<Call>,
    /// Why it ended.
    pub finish: Finish,
    /// What it cost.
    pub tokens: Tokens,
    /// The same, with all that the provider says about it.
    pub usage: Option<Raw>,
    /// The model that answered, as the server calls it; empty if it does not say.
    pub model: String,
    /// The server's id of the answer.
    pub id: Option<String>,
}

/// Puts one answer together.
///
/// Events are handed in as they come; the deltas that each brings are for whoever watches. A server that answers with
/// one JSON value although a stream was asked for is read by `whole`.
pub trait Assemble: Send {
    /// Takes one event. An error object in it is a [`Failure`].
    fn event(&mut self, event: &sse::Event) -> Result<Vec<Delta>, Failure>;
    /// Takes a whole answer that was not streamed.
    fn whole(&mut self, body: &str) -> Result<Vec<Delta>, Failure>;
    /// Whether the server said why the answer ended: a connection that closes now has cut nothing.
    fn complete(&self) -> bool;
    /// Whether nothing more will come.
    fn ended(&self) -> bool;
    /// The answer. Only what is `complete` gives one.
    fn answer(self: Box<Self>) -> Result<ModelReply, Failure>;
}

/// The body of a request to a server of that kind at that host. It asks for a stream, and for this model unless the
/// request names another.
pub fn body(kind: Kind, host: &str, model: &str, request: &Request) -> Result<String, Error> {
    if request.temperature.is_some_and(|t| !t.is_finite()) {
        return Err(Error::invalid(
            "model.temperature",
            "the temperature is not a number; give one, or none",
        ));
    }
    let model = request.model.as_deref().unwrap_or(model);
    match kind {
        Kind::OpenaiChat => chat::body(host, model, request),
        Kind::OpenaiResponses => responses::body(model, request),
        Kind::Anthropic => anthropic::body(model, request),
    }
}

/// The fields of a body in order; those of `extra` replace ours.
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

/// JSON from a server, checked as everything that we may keep, and read as `T`.
fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Failure> {
    everturn_core::json::check(text).map_err(|e| Failure::garbage(e.to_string()))?;
    // What serde has to say may repeat what is in the text: only where it stopped is told.
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
