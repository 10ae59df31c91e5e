//! MCP over standard input and output, for clients that start the process themselves.

use super::Shared;
use super::lines::Lines;
use super::service::{Service, StdioCaller};
use super::tools::Toolsets;
use super::watch::ListingSource;
use crate::access::KeyRole;
use everturn_api::Row;
use everturn_core::Error;
use everturn_engine::Tenant;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Options of MCP over standard input and output.
pub struct Stdio {
    /// Store of the conversations that are served.
    pub store: Arc<dyn SharedStore>,
    /// Tools that are offered.
    pub toolsets: Toolsets,
    /// Whether to offer only tools that change nothing.
    pub read_only: bool,
    /// Folder for a session file that records requests.
    pub record: Option<PathBuf>,
}

/// A tenant of a store that another process may own.
pub trait SharedStore: Send + Sync {
    /// The tenant, for reading. Does not block.
    fn tenant(&self) -> Tenant;

    /// Has the owner of the store run a tool, if it writes and this process is not the owner. Takes over from an owner
    /// that has ended. Blocks.
    fn ask(&self, tool: &'static Row, arguments: String) -> ToolDispatch;
}

/// Result of asking the owner of the store to run a tool.
pub enum ToolDispatch {
    /// The owner ran it, with this answer.
    Answered(Result<Vec<u8>, Error>),
    /// This process does, on this tenant and with these arguments.
    Here(Tenant, String),
}

/// A store that is only read, or owned by this process.
impl SharedStore for Tenant {
    fn tenant(&self) -> Tenant {
        self.clone()
    }

    fn ask(&self, _: &'static Row, arguments: String) -> ToolDispatch {
        ToolDispatch::Here(self.clone(), arguments)
    }
}

/// Serves until standard input ends or the process is told to stop.
pub fn stdio(options: Stdio) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| failed(&e))?;
    // The client of an owner has a runtime of its own, which must not be dropped inside of this one.
    let _outlives = options.store.clone();
    let answer = runtime.block_on(async {
        let stopping = CancellationToken::new();
        tokio::spawn(stop_signal(stopping.clone()));
        serve_lines(options, rmcp::transport::io::stdio_pipes(), stopping).await
    });
    // A read of standard input may still be waiting and cannot be cancelled.
    runtime.shutdown_timeout(Duration::from_secs(1));
    answer
}

/// Serves a client at the other end of two pipes. For fuzzing, which has no process of its own.
#[doc(hidden)]
pub async fn serve_pipes<R, W>(options: Stdio, pipes: (R, W)) -> Result<(), Error>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    serve_lines(options, pipes, CancellationToken::new()).await
}

async fn serve_lines<R, W>(options: Stdio, pipes: (R, W), stopping: CancellationToken) -> Result<(), Error>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let role = match (options.read_only, options.toolsets.destroy()) {
        (true, _) => KeyRole::Reader,
        (false, false) => KeyRole::Writer,
        (false, true) => KeyRole::Admin,
    };
    let lists = ListingSource::Shared(options.store.clone());
    let shared = Shared::new("stdio", lists, options.record.clone(), stopping.clone());
    let Stdio { store, toolsets, .. } = options;
    let local = StdioCaller { store, role, toolsets };
    let service = Service::new(Arc::new(shared), Some(local));
    match service.serve_with_ct(Lines::new(pipes), stopping).await {
        Ok(running) => running.waiting().await.map(|_| ()).map_err(|e| failed(&e)),
        // The parent process ended without a message.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(Error::invalid(
            "mcp.protocol",
            format!("standard input does not speak MCP: {error}; an MCP client starts this command"),
        )),
    }
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::internal("mcp.failed", format!("MCP failed: {error}"))
}

async fn stop_signal(stopping: CancellationToken) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return stopping.cancel();
        }
    }
    let _ = tokio::signal::ctrl_c().await;
    stopping.cancel();
}
