//! Recording of requests: a session file per MCP session.
//!
//! A tool call becomes `agent_tool_call` and `tool_result`, everything else `mcp_dispatch`. A failure to record
//! never fails the request. Content that was read before an erasure is not recorded after it: such a record has
//! no content.

use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_engine::{Records, SystemWorld, Tenant, World};
use everturn_formats::session::{
    AgentToolCall, Dispatch, Entry, NewSession, Session, SessionFields, SessionOptions, Sink, ToolResult,
    milliseconds,
};
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, Implementation};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Records one session. Dropping it ends the file.
pub struct Recorder {
    sink: Sink,
    /// `None` if the session could not be started.
    records: Option<Records>,
    calls: AtomicU64,
}

/// A tool call in progress.
pub struct Call {
    id: String,
    tool: String,
    asked: RequestTime,
}

/// Time of a request: by the clock, and relative to erasures.
#[derive(Clone, Copy)]
pub struct RequestTime {
    began: Instant,
    mark: u64,
}

impl Recorder {
    /// Creates the file: `<folder>/<tenant>/sessions/….jsonl`.
    pub fn begin(
        folder: &Path,
        tenant: &Tenant,
        transport: &str,
        client: Option<&Implementation>,
    ) -> Recorder {
        let begun = tenant
            .records_in(folder)
            .and_then(|records| Ok((records, start(folder, tenant, transport, client)?)));
        let (records, session) = match begun {
            Ok((records, session)) => (Some(records), Ok(session)),
            Err(error) => (None, Err(error)),
        };
        let sink = Sink::new(session, |error| {
            tracing::warn!(code = error.code(), "a session could not be recorded: {}", error.text());
        });
        Recorder { sink, records, calls: AtomicU64::new(0) }
    }

    /// Notes the time of a request. To be called before any content is read for the answer.
    pub fn asked(&self) -> RequestTime {
        RequestTime { began: Instant::now(), mark: self.records.as_ref().map_or(0, Records::mark) }
    }

    /// Records an entry, unless it may contain text that was erased since the request.
    fn write(&self, asked: RequestTime, entry: impl FnOnce(bool) -> Result<Entry, Error>) -> bool {
        let Some(records) = &self.records else { return false };
        records.write(asked.mark, |erased| {
            self.sink.record(entry(erased));
            erased
        })
    }

    /// Records a tool call.
    pub fn called(&self, tool: &str, arguments: &impl Serialize) -> Call {
        let id = format!("call_{}", self.calls.fetch_add(1, Ordering::Relaxed) + 1);
        let asked = self.asked();
        self.sink.record(Raw::of(arguments).and_then(|parameters| {
            let call = AgentToolCall { tool: tool.into(), parameters, call_id: Some(id.clone()) };
            Entry::of(SystemWorld.now(), &call)
        }));
        Call { id, tool: tool.into(), asked }
    }

    /// Records its result.
    pub fn answered(&self, call: Call, answer: &Result<CallToolResult, ErrorData>) {
        let is_error = answer.as_ref().map_or(true, |result| result.is_error == Some(true));
        let took = milliseconds(call.asked.began.elapsed());
        let erased = self.write(call.asked, |erased| {
            let result = match answer {
                _ if erased => Raw::of(&()),
                Ok(result) => Raw::of(result),
                Err(error) => Raw::of(error),
            };
            let result = ToolResult {
                tool: Some(call.tool),
                result: result?,
                call_id: Some(call.id.clone()),
                is_error: Some(is_error),
            };
            let entry = Entry::of(SystemWorld.now(), &result)?.with("duration_ms", &took)?;
            if erased { entry.with("erased", &true) } else { Ok(entry) }
        });
        if erased {
            self.forget_arguments(&call.id);
        }
    }

    /// Removes the arguments of a call, which may contain the very text that was erased while it was answered.
    fn forget_arguments(&self, call: &str) {
        let file = self.sink.session().ok().and_then(|session| session.path());
        if let (Some(records), Some(file)) = (&self.records, file)
            && let Err(error) = records.erase_call(file, call)
        {
            tracing::warn!(%error, file = %file.display(), "a record may still contain text that was erased");
        }
    }

    /// Records another request and its answer.
    pub fn dispatched<P: Serialize, T: Serialize>(
        &self,
        method: &str,
        parameters: &P,
        answer: &Result<T, ErrorData>,
        asked: RequestTime,
    ) {
        let duration_ms = milliseconds(asked.began.elapsed());
        self.write(asked, |erased| {
            let (parameters, result, error) = match erased {
                true => (None, None, None),
                false => (Some(parameters), answer.as_ref().ok(), answer.as_ref().err()),
            };
            Dispatch { method, from: None, parameters, result, error, duration_ms, erased }
                .entry(SystemWorld.now())
        });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.sink.end(SystemWorld.now(), &SessionFields::default());
    }
}

fn start(
    folder: &Path,
    tenant: &Tenant,
    transport: &str,
    client: Option<&Implementation>,
) -> Result<Session, Error> {
    // Not the protocol's session id: with it, a reader of the file could act in the session.
    let mut bytes = [0; 16];
    SystemWorld.fill(&mut bytes)?;
    let id = hex::encode(bytes);
    let new = NewSession {
        subject_key: "tenant".into(),
        agent_provider: client.map(|client| format!("{} {}", client.name, client.version)),
        extra: SessionFields::of(&serde_json::json!({"program": "everturn mcp", "transport": transport}))?,
        ..NewSession::about(tenant.name().to_string(), id, SystemWorld.now())
    };
    Session::start(folder, &new, SessionOptions::default())
}
