//! Listening, and ending well.

use crate::app::App;
use everturn_core::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// A server that listens and does not answer yet.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Takes the port.
    pub async fn bind(app: App) -> Result<Server, Error> {
        let listen = app.config.listen;
        let cannot = |e: std::io::Error| {
            Error::invalid(
                "serve.listen",
                format!("cannot listen on {listen}: {e}; choose another with --listen"),
            )
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Server { listener, app: Arc::new(app), address })
    }
}

/// Answers until `stop` resolves, then ends streams with a place to resume from and waits for what runs.
pub async fn serve(server: Server, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
    let stopping = server.app.stopping.clone();
    let router = crate::router(server.app);
    let stop = async move {
        stop.await;
        stopping.cancel();
    };
    axum::serve(server.listener, router)
        .with_graceful_shutdown(stop)
        .await
        .map_err(|e| Error::internal("serve.failed", format!("the server failed: {e}")))
}
