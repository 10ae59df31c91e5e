//! The socket of the process that owns a store: other programs of the same user send their requests through
//! it, so that one writer serves all of them.
//!
//! It speaks the REST API, without keys: a program that can connect may read the file as well. Each request acts as
//! admin of the tenant that it names. Only the user may enter the folder of the socket, and both sides check that; a
//! symbolic link in its place is not followed.

use crate::app::{App, blocking, elsewhere};
use crate::mcp::{read_tool, run_tool};
use crate::problem::Problem;
use axum::body::{Body, to_bytes};
use axum::extract::{Path as PathParameter, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::Listener;
use axum::{Extension, Json, Router};
use everturn_api::{Requester, Row, Threads, Work};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_engine::model::{Configured, Endpoint, HttpModel, Protocol, Secret};
use everturn_engine::{Swept, Tenant};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// Header that names the tenant of a request.
pub const TENANT_HEADER: &str = "everturn-tenant";

/// Longest path of a socket: 104 bytes on macOS, 108 on Linux, with a final zero.
const PATH_BYTES_MAX: usize = 103;
/// Pause after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The model that a request asks in place of the configured default. Only the socket takes it: it reaches any address that
/// the owner reaches, and only its user may say which.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RequestedModel {
    /// A configured one.
    Named(String),
    /// A model at a server.
    At {
        /// Protocol of the server.
        kind: Protocol,
        /// Address of the server.
        base_url: String,
        /// The model's name at that server.
        model: String,
        /// Key of the server, a secret.
        api_key: Option<String>,
    },
}

impl RequestedModel {
    /// The tenant, with this model in place of the configured default.
    pub fn bring_to(self, tenant: &Tenant) -> Result<Tenant, Error> {
        let model = match self {
            RequestedModel::Named(name) => tenant.generations().model(Some(&name))?,
            RequestedModel::At { kind, base_url, model, api_key } => {
                let api_key = api_key.map(Secret::new);
                let endpoint = Endpoint { api_key, ..Endpoint::new(kind, base_url, model) };
                Configured::new(Arc::new(HttpModel::new(endpoint)?))
            }
        };
        Ok(tenant.called_by(tenant.caller().clone().bringing(model)))
    }
}

/// Body of a request to `/asking/{operation}`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestWithModel {
    /// The model.
    pub model: RequestedModel,
    /// Arguments of the operation.
    pub arguments: Box<RawValue>,
}

/// How long a process owns a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tenure {
    /// Until it is stopped.
    Lasting,
    /// Until the command that it runs is done.
    Passing,
}

impl Tenure {
    const ALL: [Tenure; 2] = [Tenure::Lasting, Tenure::Passing];

    /// Name of the socket. It tells a process that needs a lasting owner which one it has found.
    fn name(self) -> &'static str {
        match self {
            Tenure::Lasting => "socket",
            Tenure::Passing => "passing",
        }
    }
}

/// Marks a request that came over the socket.
#[derive(Clone, Copy)]
pub struct OverSocket;

/// Places for the socket of a store, best first: beside the file; below /tmp where that path is too long, or its file
/// system has no sockets.
fn places(file: &Path, tenure: Tenure) -> impl Iterator<Item = PathBuf> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
    let mut beside = file.clone().into_os_string();
    beside.push("-owner");
    let name = &Hash::of(file.as_os_str().as_bytes()).to_string()[..16];
    let elsewhere = format!("/tmp/everturn-{}-{name}", user());
    let sockets = [PathBuf::from(beside), PathBuf::from(elsewhere)].map(|folder| folder.join(tenure.name()));
    sockets.into_iter().filter(|socket| socket.as_os_str().len() <= PATH_BYTES_MAX)
}

/// The socket of the process that owns a store, if there is one and it belongs to this user.
pub fn find(file: &Path) -> Option<(PathBuf, Tenure)> {
    let is_served =
        |socket: &PathBuf| socket.parent().is_some_and(is_private) && UnixStream::connect(socket).is_ok();
    Tenure::ALL.into_iter().find_map(|tenure| Some((places(file, tenure).find(is_served)?, tenure)))
}

/// The user of this process.
fn user() -> u32 {
    // SAFETY: takes no argument, touches no memory, and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether a path is a folder of this user that nobody else may enter.
fn is_private(folder: &Path) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == user() && found.mode() & 0o077 == 0)
}

/// Listens at a place. The caller owns the store, so a socket that is there was left behind by a process that ended.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    let folder = socket.parent().ok_or(io::ErrorKind::InvalidInput)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_private(folder) => {}
        made => made?,
    }
    for tenure in Tenure::ALL {
        match fs::remove_file(folder.join(tenure.name())) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    UnixListener::bind(socket)
}

/// Accepts connections of this user only.
struct OwnConnections(UnixListener);

impl Listener for OwnConnections {
    type Io = tokio::net::UnixStream;
    type Addr = tokio::net::unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok((stream, address)) => {
                    if stream.peer_cred().is_ok_and(|peer| peer.uid() == user()) {
                        return (stream, address);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection to the socket could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// Serves a socket until it is dropped, which also ends the streams of its app.
pub struct ServedSocket {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ServedSocket {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panicked thread has reported it itself.
            let _ = thread.join();
        }
    }
}

/// Serves the store in this file, which this process owns, to other programs of the same user. `None` with a warning
/// if that is impossible: those are then refused, as they are by an owner without a socket.
/// `page` is the address of this process, if it serves the page.
pub fn share(app: Arc<App>, file: &Path, page: Option<String>, tenure: Tenure) -> Option<ServedSocket> {
    let start = || -> io::Result<ServedSocket> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (socket, listener) = {
            let _inside = runtime.enter();
            let mut failure = io::Error::from(io::ErrorKind::InvalidInput);
            let bound = places(file, tenure).find_map(|socket| match bind(&socket) {
                Ok(listener) => Some((socket, listener)),
                Err(error) => {
                    failure = error;
                    None
                }
            });
            bound.ok_or(failure)?
        };
        let stop = app.stopping.clone();
        let serving = serve(app.clone(), OwnConnections(listener), page, stop.clone());
        let thread = std::thread::Builder::new().name("everturn-socket".into()).spawn(move || {
            // While this process still owns the store: the next owner's socket is not removed.
            let _owner = app;
            runtime.block_on(serving);
            runtime.shutdown_timeout(crate::serve::BLOCKING_PATIENCE);
            let _ = fs::remove_file(&socket);
            let _ = socket.parent().map(fs::remove_dir);
        })?;
        Ok(ServedSocket { stop, thread: Some(thread) })
    };
    match start() {
        Ok(sharing) => Some(sharing),
        Err(error) => {
            tracing::warn!(
                %error,
                "no socket could be made beside {}; other commands that write to it are refused meanwhile",
                file.display()
            );
            None
        }
    }
}

async fn serve(app: Arc<App>, listener: OwnConnections, page: Option<String>, stop: CancellationToken) {
    let patience = app.config.shutdown;
    let router = Router::new()
        .route("/tools/{name}", post(call_tool))
        .route("/asking/{name}", post(ask_model))
        .route("/sweep", post(sweep))
        .route("/page", post(move || std::future::ready(Json(page.clone()))))
        .with_state(app.clone())
        .merge(crate::router(app))
        .layer(Extension(OverSocket));
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                tracing::warn!(%error, "the socket is no longer served");
            }
        }
        () = async { stop.cancelled().await; tokio::time::sleep(patience).await } => {}
    }
}

/// The tenant that a request over the socket names.
pub fn tenant(app: &App, headers: &HeaderMap) -> Result<Tenant, Error> {
    let name = headers.get(TENANT_HEADER).and_then(|name| name.to_str().ok()).unwrap_or("default");
    app.store.tenant(name)
}

/// Sweeps the whole store, of all tenants.
async fn sweep(State(app): State<Arc<App>>) -> Result<Json<Swept>, Problem> {
    Ok(Json(blocking(move || app.store.sweep_all()).await?))
}

/// Calls a tool for another MCP server: its body is the arguments, its answer that of the operation.
async fn call_tool(
    State(app): State<Arc<App>>,
    PathParameter(name): PathParameter<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (tenant, arguments) = (tenant(&app, &headers)?, text(&app, body).await?);
    answer(&name, tenant, arguments).await
}

/// Runs an operation that asks a model, with the one that the request names.
async fn ask_model(
    State(app): State<Arc<App>>,
    PathParameter(name): PathParameter<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    // The reason would show what is in the body: a key.
    let asking: RequestWithModel = serde_json::from_str(&text(&app, body).await?)
        .map_err(|_| Error::invalid("body.shape", "the model of the request cannot be read"))?;
    let tenant = asking.model.bring_to(&tenant(&app, &headers)?)?;
    answer(&name, tenant, asking.arguments.get().to_string()).await
}

async fn text(app: &App, body: Body) -> Result<String, Error> {
    let unreadable =
        |e: &dyn std::fmt::Display| Error::invalid("body.shape", format!("cannot read the body: {e}"));
    let body = to_bytes(body, app.config.body_bytes_max).await.map_err(|e| unreadable(&e))?;
    String::from_utf8(body.into()).map_err(|e| unreadable(&e.utf8_error()))
}

/// Answer of an operation to these arguments.
async fn answer(name: &str, tenant: Tenant, arguments: String) -> Result<Response, Problem> {
    let row = Row::named(name)
        .ok_or_else(|| Error::not_found("route.unknown", "the owner of the store has no such tool"))?;
    let requester = Requester::here(tenant);
    let answer = match row.about.work {
        // It may wait for long, and a thread that waits would keep the store open when this process stops.
        Work::Quick => {
            let requester = Requester { threads: Threads::Elsewhere(elsewhere), ..requester };
            let request = blocking(move || read_tool(row, &arguments)).await?;
            request.run(requester, String::new()).await?.json
        }
        _ => blocking(move || run_tool(row, requester, &arguments)).await?,
    };
    Ok(([(CONTENT_TYPE, "application/json")], answer).into_response())
}
