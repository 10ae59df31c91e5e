//! Listening, and ending well.

use crate::app::App;
use crate::door::Door;
use crate::tls;
use axum_server::tls_rustls::RustlsConfig;
use everturn_core::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// A server that listens and does not answer yet.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
    tls: Option<RustlsConfig>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether everybody on this machine may ask, without a key.
    pub open: bool,
}

impl Server {
    /// Takes the port, unless listening there would be unsafe.
    pub async fn bind(app: App) -> Result<Server, Error> {
        check_exposure(&app)?;
        if let Some(jwt) = &app.access.jwt {
            jwt.load().await?;
        }
        let tls = match &app.config.tls {
            Some(files) => Some(tls::load(files).await?),
            None => None,
        };
        let listen = app.config.listen;
        let cannot = |e: std::io::Error| {
            let taken = e.kind() == std::io::ErrorKind::AddrInUse;
            let why = if taken { "another program listens there".to_string() } else { e.to_string() };
            let text = format!(
                "cannot listen on {listen}: {why}; choose another with --listen, port 0 takes any that is free"
            );
            Error::invalid("serve.listen", text)
        };
        let listener = TcpListener::bind(listen).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let open = app.access.is_open(&app).await?;
        Ok(Server { listener, app: Arc::new(app), tls, address, open })
    }
}

/// Other machines may ask only with a key, and only where nobody on the way can read it.
fn check_exposure(app: &App) -> Result<(), Error> {
    let config = &app.config;
    if config.listen.ip().is_loopback() {
        return Ok(());
    }
    let mut missing = Vec::new();
    if config.keys_required == Some(false) {
        missing.push("keys.required is false; take it away");
    }
    if config.jwt.is_none() && !app.store.keys().any_valid()? {
        missing.push("nobody has a key; make one with `everturn keys create --role admin`, or configure jwt");
    }
    if config.tls.is_none() && !config.behind_tls_proxy {
        missing.push(
            "keys would travel unencrypted; give a certificate with --tls-cert and --tls-key, or say \
             --behind-tls-proxy if a proxy in front speaks TLS",
        );
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(
        "serve.unsafe",
        format!(
            "{} can be reached by other machines, but: {}. Or listen on 127.0.0.1 only",
            config.listen,
            missing.join("; and ")
        ),
    ))
}

/// Answers until `stop` resolves, then ends streams with a place to resume from and waits for what runs.
pub async fn serve(server: Server, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
    let Server { listener, app, tls, .. } = server;
    let (stopping, limit) = (app.stopping.clone(), app.config.shutdown);
    let handle = axum_server::Handle::new();
    let ending = tokio::spawn({
        let (handle, stopping) = (handle.clone(), stopping.clone());
        async move {
            stop.await;
            stopping.cancel();
            handle.graceful_shutdown(Some(limit));
        }
    });
    tokio::spawn(crate::metrics::upkeep(stopping.clone()));
    let door = Door::new(&app.config);
    tokio::spawn(door.clone().watch(stopping.clone()));
    let files = app.config.tls.clone();
    let service = crate::router(app).into_make_service_with_connect_info::<SocketAddr>();
    let served = match (tls, files) {
        (Some(config), Some(files)) => {
            tokio::spawn(tls::watch(files, config.clone(), stopping));
            let server = axum_server::from_tcp_rustls(listener, config);
            async { server?.handle(handle).map(|tls| tls.acceptor(door)).serve(service).await }.await
        }
        _ => {
            let server = axum_server::from_tcp(listener);
            async { server?.handle(handle).acceptor(door).serve(service).await }.await
        }
    };
    ending.abort();
    served.map_err(|e| Error::internal("serve.failed", format!("the server failed: {e}")))
}
