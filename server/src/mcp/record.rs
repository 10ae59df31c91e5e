//! Keeping account of what was asked: a session file per MCP session.
//!
//! A tool call becomes `agent_tool_call` and `tool_result`, whatever else is asked `mcp_dispatch`. A failure to record
//! never fails what is recorded.

use everturn_core::Error;
use everturn_core::id::Tenant;
use everturn_core::json::Raw;
use everturn_engine::{SystemWorld, World};
use everturn_formats::session::{AgentToolCall, Entry, Fields, New, Options, Session, Sink, ToolResult};
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, Implementation};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Records one session. Dropping it ends the file.
pub struct Recorder {
    sink: Sink,
    calls: AtomicU64,
}

/// A tool call on its way.
pub struct Call {
    id: String,
    tool: String,
    began: Instant,
}

/// What was asked, other than a tool call.
#[derive(Serialize)]
struct Dispatch<'a, P, T> {
    method: &'a str,
    parameters: &'a P,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ErrorData>,
    duration_ms: f64,
}

impl Recorder {
    /// Makes the file: `<folder>/<tenant>/sessions/….jsonl`.
    pub fn begin(
        folder: &Path,
        tenant: &Tenant,
        transport: &str,
        client: Option<&Implementation>,
    ) -> Recorder {
        let session = start(folder, tenant, transport, client);
        let sink = Sink::new(session, |error| {
            tracing::warn!(code = error.code(), "a session could not be recorded: {}", error.text());
        });
        Recorder { sink, calls: AtomicU64::new(0) }
    }

    /// A tool is called.
    pub fn called(&self, tool: &str, arguments: &impl Serialize) -> Call {
        let id = format!("call_{}", self.calls.fetch_add(1, Ordering::Relaxed) + 1);
        self.sink.record(Raw::of(arguments).and_then(|parameters| {
            let call = AgentToolCall { tool: tool.into(), parameters, call_id: Some(id.clone()) };
            Entry::of(SystemWorld.now(), &call)
        }));
        Call { id, tool: tool.into(), began: Instant::now() }
    }

    /// It answered.
    pub fn answered(&self, call: Call, answer: &Result<CallToolResult, ErrorData>) {
        let result = match answer {
            Ok(result) => Raw::of(result),
            Err(error) => Raw::of(error),
        };
        let is_error = answer.as_ref().map_or(true, |result| result.is_error == Some(true));
        let took = ms(call.began.elapsed());
        self.sink.record(result.and_then(|result| {
            let result = ToolResult {
                tool: Some(call.tool),
                result,
                call_id: Some(call.id),
                is_error: Some(is_error),
            };
            Entry::of(SystemWorld.now(), &result)?.with("duration_ms", &took)
        }));
    }

    /// Something else was asked and answered.
    pub fn dispatched<P: Serialize, T: Serialize>(
        &self,
        method: &str,
        parameters: &P,
        answer: &Result<T, ErrorData>,
        took: Duration,
    ) {
        let (result, error) = (answer.as_ref().ok(), answer.as_ref().err());
        let payload = Dispatch { method, parameters, result, error, duration_ms: ms(took) };
        self.sink.record(Entry::new("mcp_dispatch", SystemWorld.now(), &payload));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.sink.end(SystemWorld.now(), &Fields::default());
    }
}

fn start(
    folder: &Path,
    tenant: &Tenant,
    transport: &str,
    client: Option<&Implementation>,
) -> Result<Session, Error> {
    // Not the protocol's session id: whoever reads the file could speak in the session with it.
    let mut bytes = [0; 16];
    SystemWorld.fill(&mut bytes)?;
    let id = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let new = New {
        subject_key: "tenant".into(),
        agent_provider: client.map(|client| format!("{} {}", client.name, client.version)),
        extra: Fields::of(&serde_json::json!({"program": "everturn mcp", "transport": transport}))?,
        ..New::about(tenant.to_string(), id, SystemWorld.now())
    };
    Session::start(folder, &new, Options::default())
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
