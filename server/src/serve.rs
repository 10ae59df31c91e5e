//! Listening and graceful shutdown.

use crate::app::App;
use crate::connections::Connections;
use crate::tls;
use axum::extract::connect_info::Connected;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{AddrListener, Address};
use everturn_core::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{Mutex, mpsc};
use tokio_util::task::AbortOnDropHandle;

/// Maximum time that blocking work gets after everything else has ended.
pub const BLOCKING_PATIENCE: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A server that listens and does not answer yet.
pub struct Server {
    listener: TcpListener,
    pub(crate) app: Arc<App>,
    tls: Option<RustlsConfig>,
    /// Address that it listens on.
    pub address: SocketAddr,
    /// Whether everyone on this machine has access, without a key.
    pub open: bool,
}

impl Server {
    /// Opens the port, unless listening there would be unsafe.
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
                "cannot listen on {listen}: {why}; choose another address with --listen; port 0 picks a free one"
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

/// Other machines need a key, and an encrypted connection.
fn check_exposure(app: &App) -> Result<(), Error> {
    let config = &app.config;
    if config.listen.ip().is_loopback() {
        return Ok(());
    }
    let mut missing = Vec::new();
    if config.keys_required == Some(false) {
        missing.push("keys.required is false; remove it");
    }
    if config.jwt.is_none() && !app.store.keys().any_valid()? {
        missing
            .push("this store has no keys; create one with `everturn keys create --role admin` and the same --store or EVERTURN_STORE, or configure jwt");
    }
    if config.tls.is_none() && !config.behind_tls_proxy {
        missing.push(
            "keys would travel unencrypted; give a certificate with --tls-cert and --tls-key, or pass --behind-tls-proxy if a proxy in front speaks TLS",
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

/// Serves until `stop` resolves, then ends streams with a position to resume from and waits for running
/// requests.
///
/// Every core has a thread, and each connection stays on the one that it is assigned to. If threads shared
/// connections, one would be woken for nearly every request of another, which costs more than answering it.
pub async fn serve(server: Server, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
    let Server { listener, app, tls, address, .. } = server;
    let (stopping, limit) = (app.stopping.clone(), app.config.shutdown);
    let handle = axum_server::Handle::new();
    let _ending = AbortOnDropHandle::new(tokio::spawn({
        let (handle, stopping) = (handle.clone(), stopping.clone());
        async move {
            stop.await;
            stopping.cancel();
            handle.graceful_shutdown(Some(limit));
        }
    }));
    tokio::spawn(crate::metrics::upkeep(stopping.clone()));
    let connections = Connections::new(&app.config);
    tokio::spawn(connections.clone().watch(stopping.clone()));
    if let (Some(config), Some(files)) = (&tls, &app.config.tls) {
        tokio::spawn(tls::watch(files.clone(), config.clone(), stopping.clone()));
    }
    let failed = |e: io::Error| Error::internal("serve.failed", format!("the server failed: {e}"));
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let router = crate::router(app);
    let _ended_early = EndOnDrop(handle.clone());
    let (mut hands, mut threads) = (Vec::new(), Vec::new());
    for number in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        let (hand, dealt) = mpsc::unbounded_channel();
        let listener = AssignedConnections { address, connections: Mutex::new(dealt) };
        let answering = answer(listener, tls.clone(), handle.clone(), connections.clone(), router.clone());
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let run = move || {
            let served = runtime.block_on(answering);
            runtime.shutdown_timeout(BLOCKING_PATIENCE);
            served
        };
        let thread = std::thread::Builder::new().name(format!("everturn-http-{number}"));
        threads.push(thread.spawn(run).map_err(failed)?);
        hands.push(hand);
    }
    stopping.run_until_cancelled_owned(deal(listener, hands)).await;
    let ended = tokio::task::spawn_blocking(|| {
        threads
            .into_iter()
            .map(|thread| thread.join())
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|ended| ended.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
    });
    ended.await.map_err(io::Error::from).flatten().map_err(failed)
}

/// Ends the threads of a server that is no longer awaited.
struct EndOnDrop(axum_server::Handle<PeerAddress>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// Accepts connections and assigns them to the threads in turn.
async fn deal(listener: tokio::net::TcpListener, hands: Vec<mpsc::UnboundedSender<Connection>>) {
    for hand in hands.iter().cycle() {
        let connection = loop {
            let accepted = listener.accept().await;
            match accepted.and_then(|(stream, address)| Ok((stream.into_std()?, address))) {
                Ok(connection) => break connection,
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    // Perhaps too many files are open: some may be closed soon.
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        };
        // A thread that has ended is noticed by the receiver.
        let _ = hand.send(connection);
    }
}

type Connection = (std::net::TcpStream, SocketAddr);

/// The connections assigned to a thread, as a listener.
struct AssignedConnections {
    address: SocketAddr,
    connections: Mutex<mpsc::UnboundedReceiver<Connection>>,
}

/// The address of an assigned connection.
#[derive(Clone, Debug)]
struct PeerAddress(SocketAddr);

impl Address for PeerAddress {
    type Stream = TcpStream;
    type Listener = AssignedConnections;
}

impl Connected<PeerAddress> for SocketAddr {
    fn connect_info(peer: PeerAddress) -> SocketAddr {
        peer.0
    }
}

impl AddrListener<TcpStream, PeerAddress> for AssignedConnections {
    async fn bind_to(_: PeerAddress) -> io::Result<AssignedConnections> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn accept_stream(&self) -> io::Result<(TcpStream, PeerAddress)> {
        match self.connections.lock().await.recv().await {
            Some((stream, address)) => Ok((TcpStream::from_std(stream)?, PeerAddress(address))),
            // No more connections are assigned; existing ones continue.
            None => std::future::pending().await,
        }
    }

    fn get_local_addr(&self) -> io::Result<PeerAddress> {
        Ok(PeerAddress(self.address))
    }
}

/// Serves the connections assigned to this thread.
async fn answer(
    dealt: AssignedConnections,
    tls: Option<RustlsConfig>,
    handle: axum_server::Handle<PeerAddress>,
    connections: Connections,
    router: axum::Router,
) -> io::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum_server::Server::from_listener(dealt).handle(handle);
    match tls {
        Some(config) => {
            server.acceptor(RustlsAcceptor::new(config).acceptor(connections)).serve(service).await
        }
        None => server.acceptor(connections).serve(service).await,
    }
}
