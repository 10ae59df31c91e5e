//! MCP: conversations for whatever speaks the Model Context Protocol, over HTTP at `/mcp` or over standard input and
//! output.
//!
//! Conversations are resources, a conversation to go on with is a prompt, and what can be done with them are tools. The
//! protocol itself is the official SDK's, in all its versions: those with sessions, and the one without.
//!
//! Reading order: [`service`] is the table of what is answered; [`tools`], [`resources`] and [`prompts`] answer it,
//! [`watch`] tells of changes, [`record`] keeps account of what was asked;
//! [`http`] and [`stdio`] are the two doors. [`fixtures`] is what the protocol's conformance suite wants to find, and is
//! there only when asked for.

#[cfg(feature = "mcp-fixtures")]
mod fixtures;
mod http;
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
pub use stdio::{Stdio, stdio};
pub use tools::Toolsets;

use everturn::{Listings, Tenant};
use everturn_core::Error;
use everturn_core::id::TenantName;
use parking_lot::Mutex;
use record::Recorder;
use rmcp::ErrorData;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use serde_json::json;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What all sessions of a process share.
struct Shared {
    /// `http` or `stdio`.
    transport: &'static str,
    /// Where dispatches are recorded.
    record: Option<PathBuf>,
    /// Whether no key is asked for as long as there is none.
    may_be_keyless: bool,
    /// Cancelled when the process begins to stop.
    stopping: CancellationToken,
    /// Tells whose list of conversations has changed.
    listings: Arc<Listings>,
    /// The sessions over HTTP.
    sessions: Arc<LocalSessionManager>,
    /// What records requests that belong to no session, by tenant.
    loose: Mutex<HashMap<TenantName, Arc<Recorder>>>,
}

impl Shared {
    fn new(
        transport: &'static str,
        listings: Arc<Listings>,
        record: Option<PathBuf>,
        stopping: CancellationToken,
    ) -> Shared {
        let mut sessions = LocalSessionManager::default();
        // A client that only listens is not idle, which the SDK's own clock does not see; ours is in `http`.
        sessions.session_config.keep_alive = None;
        Shared {
            transport,
            record,
            may_be_keyless: false,
            stopping,
            listings,
            sessions: Arc::new(sessions),
            loose: Mutex::default(),
        }
    }

    /// What records a request outside of a session.
    fn loose_recorder(&self, scope: &Tenant) -> Option<Arc<Recorder>> {
        let folder = self.record.as_ref()?;
        let mut loose = self.loose.lock();
        let recorder = loose
            .entry(scope.name().clone())
            .or_insert_with(|| Arc::new(Recorder::begin(folder, scope, self.transport, None)));
        Some(recorder.clone())
    }
}

/// An error where the protocol has no other place for one: of a resource or a prompt.
fn protocol_error(error: Error) -> ErrorData {
    let text = format!("{}: {}", error.code(), error.text());
    let data = Some(json!({"code": error.code()}));
    match error {
        Error::NotFound(_) => ErrorData::resource_not_found(text, data),
        Error::Invalid(_) | Error::Conflict(_) | Error::TooLarge(_) => ErrorData::invalid_params(text, data),
        Error::Busy(_) | Error::Corrupt(_) | Error::Internal(_) => ErrorData::internal_error(text, data),
    }
}
