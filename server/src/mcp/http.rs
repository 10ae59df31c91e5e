//! MCP over HTTP: ownership and end of sessions.
//!
//! The SDK identifies sessions by an unguessable id. Here each belongs to the tenant that began it, and
//! does not exist for anyone else; it ends after a period without requests and listeners.

use super::Shared;
use super::service::{RawArguments, Service};
use super::watch::ListingSource;
use crate::access::{Caller, Lease, Reader};
use crate::app::App;
use crate::json;
use crate::problem::Problem;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use everturn_core::error::code;
use everturn_core::id::TenantName;
use futures_util::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum number of concurrent sessions of one tenant.
const MCP_SESSIONS_MAX: usize = 1000;
const SESSION_ID: &str = "mcp-session-id";

/// `/mcp`.
pub fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let shared = Shared::new(
        "http",
        ListingSource::Served(app.store.listings()),
        app.config.mcp_record.clone(),
        app.stopping.clone(),
    );
    let shared = Arc::new(shared);
    // Allowed host names are checked for every route alike, in `access`.
    let config = StreamableHttpServerConfig::default()
        .with_cancellation_token(app.stopping.child_token())
        .with_max_request_body_bytes(app.config.body_bytes_max)
        .disable_allowed_hosts();
    let sessions = Arc::new(Sessions {
        shared: shared.clone(),
        app: app.clone(),
        idle: app.config.mcp_session_idle,
        open: Mutex::default(),
    });
    let manager = shared.sessions.clone();
    let new = move || Service::new(shared.clone(), None);
    #[cfg(feature = "mcp-fixtures")]
    let new = {
        let (shared, on) = (sessions.shared.clone(), app.config.mcp_fixtures);
        move || super::fixtures::WithFixtures::new(new(), shared.clone(), on)
    };
    let service = StreamableHttpService::new(move || Ok(new()), manager, config);
    Router::new().route_service("/mcp", service).layer(middleware::from_fn_with_state(sessions, guard))
}

struct Sessions {
    shared: Arc<Shared>,
    app: Arc<App>,
    idle: Duration,
    open: Mutex<HashMap<String, OpenSession>>,
}

struct OpenSession {
    tenant: TenantName,
    /// Number of running requests and streams.
    visits: usize,
    /// Time at which the last of them ended.
    last: Instant,
    /// Wakes the task that waits for it to be idle.
    _ended: DropGuard,
}

/// A running request or stream of a session.
struct Visit {
    sessions: Arc<Sessions>,
    id: String,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(open) = self.sessions.open().get_mut(&self.id) {
            open.visits -= 1;
            open.last = Instant::now();
        }
    }
}

impl Sessions {
    fn open(&self) -> MutexGuard<'_, HashMap<String, OpenSession>> {
        self.open.lock()
    }

    /// `None` if there is no such session, or it belongs to another tenant.
    fn visit(self: &Arc<Sessions>, id: &str, tenant: &TenantName) -> Option<Visit> {
        let mut sessions = self.open();
        let open = sessions.get_mut(id).filter(|open| open.tenant == *tenant)?;
        open.visits += 1;
        Some(Visit { sessions: self.clone(), id: id.into() })
    }

    /// Registers a new session of a tenant. `false` if the tenant has too many.
    fn begin(self: &Arc<Sessions>, id: &str, tenant: TenantName, lease: Option<Lease>) -> bool {
        let ended = CancellationToken::new();
        let mut sessions = self.open();
        let theirs = sessions.values().filter(|open| open.tenant == tenant).count();
        let last = Instant::now();
        let open = OpenSession { tenant, visits: 0, last, _ended: ended.clone().drop_guard() };
        if theirs >= MCP_SESSIONS_MAX {
            return false;
        }
        sessions.insert(id.into(), open);
        tokio::spawn(self.clone().wait_until_idle(id.into(), ended.clone()));
        if let Some(lease) = lease {
            tokio::spawn(self.clone().end_with(id.into(), lease, ended));
        }
        true
    }

    fn lease(&self, caller: &Caller) -> Option<Lease> {
        self.app.access.lease(&self.app, caller.credential)
    }

    /// Ends a session and its subscriptions together with the credential that began it.
    async fn end_with(self: Arc<Sessions>, id: String, lease: Lease, ended: CancellationToken) {
        tokio::select! {
            () = lease.ended() => self.end(&id).await,
            () = ended.cancelled() => {}
        }
    }

    async fn wait_until_idle(self: Arc<Sessions>, id: String, ended: CancellationToken) {
        loop {
            let quiet = match self.open().get(&id) {
                None => return,
                Some(open) if open.visits > 0 => Duration::ZERO,
                Some(open) => open.last.elapsed(),
            };
            if quiet >= self.idle {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(self.idle - quiet) => {}
                () = ended.cancelled() => return,
                () = self.shared.stopping.cancelled() => break,
            }
        }
        self.end(&id).await;
    }

    async fn end(&self, id: &str) {
        self.open().remove(id);
        // Fails only if the session has already ended.
        let _ = self.shared.sessions.close_session(&id.into()).await;
    }
}

async fn guard(
    State(sessions): State<Arc<Sessions>>,
    Reader(tenant): Reader,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let tenant = tenant.name().clone();
    let named = session_id(request.headers());
    let visit = match &named {
        Some(id) => match sessions.visit(id, &tenant) {
            Some(visit) => Some(visit),
            None => return absent().into_response(),
        },
        None => None,
    };
    let ends = request.method() == Method::DELETE;
    let is_json = json::is_json(request.headers());
    let request = match read(&sessions.app, request).await {
        Ok(request) => request,
        Err(problem) => return problem.into_response(),
    };
    let response = next.run(request).await;
    // The SDK answers both with the words of its parser.
    match response.status() {
        StatusCode::UNSUPPORTED_MEDIA_TYPE if is_json => {
            let text = "the body is not a JSON-RPC message; send one such as {\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}";
            return Problem::new(StatusCode::BAD_REQUEST, "mcp.malformed", text).into_response();
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE => return json::not_json().into_response(),
        _ => {}
    }
    match (named, session_id(response.headers())) {
        (Some(id), _) if ends && response.status().is_success() => {
            sessions.open().remove(&id);
            return StatusCode::NO_CONTENT.into_response();
        }
        (None, Some(id)) if !sessions.begin(&id, tenant, sessions.lease(&caller)) => {
            sessions.end(&id).await;
            let text = format!(
                "MCP_SESSIONS_MAX is {MCP_SESSIONS_MAX}; end sessions that are not needed with DELETE"
            );
            return Problem::new(StatusCode::SERVICE_UNAVAILABLE, code::LIMIT_EXCEEDED, text).into_response();
        }
        _ => {}
    }
    let streams = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    match visit {
        Some(visit) if streams => {
            let (parts, body) = response.into_parts();
            // The session is in use for as long as the stream lasts.
            let body = body.into_data_stream().map(move |part| {
                let _ = &visit;
                part
            });
            Response::from_parts(parts, Body::from_stream(body))
        }
        _ => response,
    }
}

/// Reads the body of a request, inside the limits of the tenant.
async fn read(app: &App, request: Request) -> Result<Request, Problem> {
    let (mut parts, body) = request.into_parts();
    let bytes = json::bytes(Request::new(body), &app.config, app.config.body_bytes_max).await?;
    if let Some(arguments) = arguments(&bytes) {
        parts.extensions.insert(RawArguments(arguments));
    }
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// The arguments of a tool call, byte for byte: the SDK parses them into a value, which changes numbers.
fn arguments(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        params: Option<Params<'a>>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
    }
    let message: Message = serde_json::from_slice(body).ok()?;
    Some(message.params?.arguments?.get().to_string())
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION_ID).map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned())
}

fn absent() -> Problem {
    let text = "there is no such session, or it has ended; start another one with initialize";
    Problem::new(StatusCode::NOT_FOUND, "mcp.session_absent", text)
}
