//! The whole server, as `everturn serve` runs it: settings, store, telemetry, port, signals, shutdown.

use crate::app::App;
use crate::serve::{BLOCKING_PATIENCE, Server, serve};
use crate::settings::Settings;
use crate::socket;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_engine::model::Embedder;
use everturn_engine::{Everturn, Options};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Maximum time that a start waits for a command that has the file open for writing.
const OWNER_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts to lock the file: nothing announces that it is free.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Maximum time for closing the store, after the time that running requests get.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// The started server.
pub struct StartedServer {
    /// Address that it listens on.
    pub address: SocketAddr,
    /// Whether it terminates TLS itself.
    pub tls: bool,
    /// Whether everyone on this machine has access, without a key.
    pub open: bool,
    /// Whether tokens are accepted beside keys.
    pub jwt: bool,
    /// Whether it refuses everything that writes.
    pub read_only: bool,
    /// The names of the models.
    pub models: Vec<String>,
}

/// Serves until SIGINT or SIGTERM. `store` is the URL to open; `started` is called once the port is open.
pub fn run(settings: &Settings, store: &str, started: impl FnOnce(&StartedServer)) -> Result<(), Error> {
    let environment = |name: &str| std::env::var(name).ok();
    let config = settings.config(&environment)?;
    let telemetry = settings.telemetry()?;
    settings.check_model_keys(&environment)?;
    let embedders = settings.embedders(&environment)?;
    let options = Options {
        embedder: settings.embedder(&environment, Embedder::open)?,
        reranker: settings.reranker(&environment, Embedder::open)?,
        whole_bytes_max: config.limits.whole_bytes as u64,
        read_only: settings.flag("read_only").unwrap_or(false),
        ..settings.options(&environment)?
    };
    let models = options.models.keys().cloned().collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|e| Error::internal("serve.runtime", format!("cannot start threads: {e}")))?;
    let served = runtime.block_on(async {
        let telling = telemetry.begin()?;
        // Before the store is opened, so that no measurement is missed.
        crate::metrics::collect();
        // Before the store is waited for and the address announced, so that no signal is missed.
        let mut stop = Box::pin(signals()?);
        let opened = tokio::select! {
            opened = open(store, options) => opened?,
            () = &mut stop => return Ok(telling),
        };
        if let Some(folder) = &config.mcp_record {
            opened.note_records(folder)?;
        }
        let app = App::new(opened, config).with_embedders(embedders);
        let (tls, jwt) = (app.config.tls.is_some(), app.config.jwt.is_some());
        let read_only = app.store.is_read_only();
        let time = app.config.shutdown.saturating_add(CLOSING_MAX);
        let stop = async move {
            stop.await;
            end_within(time);
        };
        let server = Server::bind(app).await?;
        let file = everturn_engine::store_file(store)?;
        let page = Some(page_url(server.address, tls));
        let sharing =
            file.and_then(|file| socket::share(server.app.clone(), &file, page, socket::Tenure::Lasting));
        started(&StartedServer { address: server.address, tls, open: server.open, jwt, read_only, models });
        let served = serve(server, stop).await;
        drop(sharing);
        served.map(|()| telling)
    });
    let ended = served.map(|telling| telling.end());
    runtime.shutdown_timeout(BLOCKING_PATIENCE);
    ended
}

/// Opens the store. A command that has its file open for writing ends by itself, and is waited for, like any owner without
/// a socket. An owner that serves the store until it is stopped is an error at once.
async fn open(store: &str, options: Options) -> Result<Everturn, Error> {
    let (file, until) = (everturn_engine::store_file(store)?, Instant::now() + OWNER_PATIENCE);
    let mut has_told = false;
    loop {
        let owned = match Everturn::open_with(store, options.clone()) {
            Err(error) if error.is(code::STORE_OWNED) => error,
            opened => return opened,
        };
        let owner = file.as_deref().and_then(socket::find);
        let is_lasting = owner.is_some_and(|(_, tenure)| tenure == socket::Tenure::Lasting);
        if is_lasting || Instant::now() >= until {
            return Err(owned);
        }
        if !std::mem::replace(&mut has_told, true) {
            let owned = owned.text().split(';').next().unwrap_or_default();
            tracing::info!("{owned}; waiting up to {} s for it to end", OWNER_PATIENCE.as_secs());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Ends the process after some time, or at the next signal, if it has not ended by itself: a database that does not answer
/// would hold it up for as long as each of its threads waits for an answer. Everything acknowledged is durable. On a thread
/// of its own, because the runtime of the server stands still while the store closes.
fn end_within(time: Duration) {
    let last = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let signalled = async {
                match Signals::listen() {
                    Ok(mut signals) => signals.next().await,
                    Err(_) => std::future::pending().await,
                }
            };
            if tokio::time::timeout(time, signalled).await.is_ok() {
                std::process::exit(SECOND_SIGNAL);
            }
            tracing::warn!("the store did not close in time; the next start finishes the rest");
            std::process::exit(1);
        })
    };
    std::thread::spawn(last);
}

/// URL of the page for a browser on this machine.
fn page_url(mut address: SocketAddr, tls: bool) -> String {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    format!("{}://{address}", if tls { "https" } else { "http" })
}

/// Exit code after a second signal.
const SECOND_SIGNAL: i32 = 130;

/// Resolves at the first signal. The second ends the process at once.
pub fn signals() -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let mut signals = Signals::listen()?;
    Ok(async move {
        signals.next().await;
        tracing::info!(
            "shutting down: streams end, running requests may finish; a second signal exits at once"
        );
        tokio::spawn(async move {
            signals.next().await;
            // Everything acknowledged is durable.
            std::process::exit(SECOND_SIGNAL);
        });
    })
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Error> {
        let listen = |kind| {
            signal(kind)
                .map_err(|e| Error::internal("serve.signals", format!("cannot wait for signals: {e}")))
        };
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.interrupt.recv() => {}, _ = self.terminate.recv() => {} }
    }
}
