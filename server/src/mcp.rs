//! MCP: conversations for clients of the Model Context Protocol, over HTTP at `/mcp` or over standard input and
//! output.
//!
//! Conversations are resources, continuing a conversation is a prompt, and operations are tools. The protocol
//! itself is implemented by the official SDK, in all its versions: those with sessions, and the one without.
//!
//! Reading order: [`service`] is the table of requests; [`tools`], [`resources`] and [`prompts`] answer them,
//! [`watch`] sends notifications, [`record`] records requests; [`http`] and [`stdio`] with [`lines`] are the two transports.
//! [`fixtures`] serves the protocol's conformance suite, and is there only on request.

#[cfg(feature = "mcp-fixtures")]
mod fixtures;
mod http;
mod lines;
mod prompts;
mod record;
mod resources;
mod service;
mod stdio;
#[cfg(test)]
mod tests;
mod tools;
mod watch;

pub use http::routes;
pub use stdio::{SharedStore, Stdio, ToolDispatch, serve_pipes, stdio};
pub use tools::{Toolsets, read as read_tool, run as run_tool};

use everturn_api::hints::in_tools;
use everturn_core::Error;
use everturn_core::id::TenantName;
use everturn_engine::Tenant;
use parking_lot::Mutex;
use record::Recorder;
use rmcp::ErrorData;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use serde_json::json;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use watch::ListingSource;

/// State shared by all sessions of a process.
struct Shared {
    /// `http` or `stdio`.
    transport: &'static str,
    /// Folder for recorded sessions.
    record: Option<PathBuf>,
    /// Cancelled when the process begins to stop.
    stopping: CancellationToken,
    lists: ListingSource,
    sessions: Arc<LocalSessionManager>,
    /// Recorders of requests that belong to no session, by tenant.
    loose: Mutex<HashMap<TenantName, Arc<Recorder>>>,
}

impl Shared {
    fn new(
        transport: &'static str,
        lists: ListingSource,
        record: Option<PathBuf>,
        stopping: CancellationToken,
    ) -> Shared {
        let mut sessions = LocalSessionManager::default();
        // A client that only listens is not idle, which the SDK's own timeout does not see; ours is in `http`.
        sessions.session_config.keep_alive = None;
        Shared { transport, record, stopping, lists, sessions: Arc::new(sessions), loose: Mutex::default() }
    }

    /// The recorder of requests outside of a session.
    fn loose_recorder(&self, tenant: &Tenant) -> Option<Arc<Recorder>> {
        let folder = self.record.as_ref()?;
        let mut loose = self.loose.lock();
        let recorder = loose
            .entry(tenant.name().clone())
            .or_insert_with(|| Arc::new(Recorder::begin(folder, tenant, self.transport, None)));
        Some(recorder.clone())
    }
}

/// An error of a resource or a prompt, for which the protocol has only its own errors.
fn protocol_error(error: Error) -> ErrorData {
    let text = format!("{}: {}", error.code(), in_tools(error.text()));
    let data = Some(json!({"code": error.code()}));
    match error {
        Error::NotFound(_) => ErrorData::resource_not_found(text, data),
        Error::Invalid(_) | Error::Forbidden(_) | Error::Conflict(_) | Error::TooLarge(_) => {
            ErrorData::invalid_params(text, data)
        }
        Error::Busy(_) | Error::Corrupt(_) | Error::Internal(_) => ErrorData::internal_error(text, data),
    }
}
