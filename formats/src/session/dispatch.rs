//! Messages between an MCP client and a server as entries of a session.
//!
//! A tool call becomes `agent_tool_call` and `tool_result`, every other request `mcp_dispatch` with its answer.

use super::entry::{AgentToolCall, Entry, ToolResult};
use everturn_core::Error;
use everturn_core::json::{Raw, replace_lone_surrogates};
use everturn_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;

/// Most requests that are remembered until they are answered.
const REQUESTS_WAITING_MAX: usize = 10_000;

/// Beginning of the id of a recorded call; its number follows.
pub const CALL: &str = "call_";

/// The sender of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sender {
    /// Side that calls tools.
    Client,
    /// Side that provides tools.
    Server,
}

/// Listens to the messages of both sides, in order.
#[derive(Default)]
pub struct Dispatches {
    /// Requests without an answer so far, by channel, sender and id.
    waiting: HashMap<(String, Sender, String), Waiting>,
    calls: u64,
    client: Option<String>,
}

/// A request that was not answered yet.
struct Waiting {
    method: String,
    params: Option<Raw>,
    since: Duration,
    /// Name of the tool, and id of the call.
    call: Option<(String, String)>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    id: Option<Raw>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Raw>,
    #[serde(default)]
    result: Option<Raw>,
    #[serde(default)]
    error: Option<Raw>,
}

/// The payload of an entry `mcp_dispatch`: a request other than a tool call, with its answer.
#[derive(Serialize)]
pub struct Dispatch<'a, P, R, E> {
    /// Method of the request.
    pub method: &'a str,
    /// Sender of the request; absent for the client's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<&'static str>,
    /// Parameters of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<&'a P>,
    /// Result, if it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'a R>,
    /// Error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a E>,
    /// Time until the answer, in milliseconds.
    pub duration_ms: f64,
    /// Whether parameters and answer are left out because their text was erased.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub erased: bool,
}

impl<P: Serialize, R: Serialize, E: Serialize> Dispatch<'_, P, R, E> {
    /// The entry.
    pub fn entry(&self, at: Timestamp) -> Result<Entry, Error> {
        Entry::new("mcp_dispatch", at, self)
    }
}

/// A duration in milliseconds, to the microsecond.
pub fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl Dispatches {
    /// Name and version of the client, once known.
    pub fn client(&self) -> Option<&str> {
        self.client.as_deref()
    }

    /// Takes a message or a batch of them; ignores anything else. Half a character, which JSON from elsewhere may
    /// have and an entry cannot, becomes U+FFFD. Ids of requests are unique in a `channel`.
    /// `elapsed` is the time since any fixed moment.
    pub fn hear(
        &mut self,
        channel: &str,
        from: Sender,
        text: &[u8],
        at: Timestamp,
        elapsed: Duration,
    ) -> Vec<Result<Entry, Error>> {
        let text = String::from_utf8_lossy(text);
        let text = replace_lone_surrogates(&text);
        let messages = match text.trim_ascii_start().starts_with('[') {
            true => serde_json::from_str::<Vec<Message>>(&text).unwrap_or_default(),
            false => serde_json::from_str::<Message>(&text).into_iter().collect(),
        };
        messages.into_iter().filter_map(|message| self.message(channel, from, message, at, elapsed)).collect()
    }

    fn message(
        &mut self,
        channel: &str,
        from: Sender,
        message: Message,
        at: Timestamp,
        elapsed: Duration,
    ) -> Option<Result<Entry, Error>> {
        let id = message.id.as_ref().map(Raw::get).filter(|id| *id != "null");
        let key = |from, id: &str| (channel.to_string(), from, id.to_string());
        match (message.method, id) {
            (Some(method), Some(id)) => self.request(key(from, id), method, message.params, at, elapsed),
            (Some(method), None) if method == "notifications/cancelled" => {
                #[derive(Deserialize)]
                #[serde(rename_all = "camelCase")]
                struct Cancelled {
                    request_id: Raw,
                }
                let params = message.params?;
                let Cancelled { request_id } = params.read()?;
                let waiting = self.waiting.remove(&key(from, request_id.get()))?;
                Some(answered(from, &waiting, None, Some(&params), at, elapsed))
            }
            (None, Some(id)) => {
                let asker = if from == Sender::Client { Sender::Server } else { Sender::Client };
                let waiting = self.waiting.remove(&key(asker, id))?;
                Some(answered(asker, &waiting, message.result.as_ref(), message.error.as_ref(), at, elapsed))
            }
            _ => None,
        }
    }

    fn request(
        &mut self,
        key: (String, Sender, String),
        method: String,
        params: Option<Raw>,
        at: Timestamp,
        elapsed: Duration,
    ) -> Option<Result<Entry, Error>> {
        let from = key.1;
        let called =
            (from == Sender::Client && method == "tools/call").then(|| self.call(params.as_ref(), at));
        if (from, method.as_str()) == (Sender::Client, "initialize") {
            self.client = params.as_ref().and_then(client);
        }
        let (call, entry) = called.unzip();
        if self.waiting.len() < REQUESTS_WAITING_MAX {
            self.waiting.insert(key, Waiting { method, params, since: elapsed, call });
        }
        entry
    }

    fn call(&mut self, params: Option<&Raw>, at: Timestamp) -> ((String, String), Result<Entry, Error>) {
        #[derive(Deserialize)]
        struct Call {
            name: String,
            #[serde(default)]
            arguments: Option<Raw>,
        }
        self.calls += 1;
        let id = format!("{CALL}{}", self.calls);
        let call: Option<Call> = params.and_then(Raw::read);
        let (tool, arguments) = call.map_or((String::new(), None), |call| (call.name, call.arguments));
        // The server refuses a call without a tool name; the attempt is recorded.
        let tool = if tool.is_empty() { "unknown".to_string() } else { tool };
        let entry = arguments.map_or_else(|| Raw::new("{}".into()), Ok).and_then(|parameters| {
            Entry::of(at, &AgentToolCall { tool: tool.clone(), parameters, call_id: Some(id.clone()) })
        });
        ((tool, id), entry)
    }
}

fn answered(
    asker: Sender,
    waiting: &Waiting,
    result: Option<&Raw>,
    error: Option<&Raw>,
    at: Timestamp,
    elapsed: Duration,
) -> Result<Entry, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Outcome {
        #[serde(default)]
        is_error: bool,
    }
    let duration_ms = milliseconds(elapsed.saturating_sub(waiting.since));
    let Some((tool, id)) = &waiting.call else {
        let from = (asker == Sender::Server).then_some("server");
        let (method, parameters) = (waiting.method.as_str(), waiting.params.as_ref());
        let dispatch = Dispatch { method, from, parameters, result, error, duration_ms, erased: false };
        return dispatch.entry(at);
    };
    let failed =
        result.is_none() || result.and_then(Raw::read).is_some_and(|outcome: Outcome| outcome.is_error);
    let returned = result.or(error).cloned().map_or_else(|| Raw::new("null".into()), Ok)?;
    let result = ToolResult {
        tool: Some(tool.clone()),
        result: returned,
        call_id: Some(id.clone()),
        is_error: Some(failed),
    };
    Entry::of(at, &result)?.with("duration_ms", &duration_ms)
}

fn client(params: &Raw) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Hello {
        client_info: Info,
    }
    #[derive(Deserialize)]
    struct Info {
        name: String,
        #[serde(default)]
        version: String,
    }
    let Hello { client_info } = params.read()?;
    Some(format!("{} {}", client_info.name, client_info.version).trim_end().to_string())
}
