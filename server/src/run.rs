//! The whole server, as `everturn serve` runs it: settings, store, telemetry, port, signals, shutdown.

use crate::app::App;
use crate::serve::{BLOCKING_PATIENCE, Server, serve};
use crate::settings::Settings;
use crate::socket;
use everturn::model::Embedder;
use everturn::{Everturn, Options};
use everturn_core::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The started server.
pub struct Started {
    /// Address that it listens on.
    pub address: SocketAddr,
    /// Whether it terminates TLS itself.
    pub tls: bool,
    /// Whether everyone on this machine has access, without a key.
    pub open: bool,
    /// Whether tokens are accepted beside keys.
    pub jwt: bool,
    /// The names of the models.
    pub models: Vec<String>,
}

/// Serves until SIGINT or SIGTERM. `store` is the URL to open; `started` is called once the port is open.
pub fn run(settings: &Settings, store: &str, started: impl FnOnce(&Started)) -> Result<(), Error> {
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
        let opened = Everturn::open_with(store, options)?;
        if let Some(folder) = &config.mcp_record {
            opened.note_records(folder)?;
        }
        let app = App::new(opened, config).with_embedders(embedders);
        let (tls, jwt) = (app.config.tls.is_some(), app.config.jwt.is_some());
        // Before the address is announced, so that no signal is missed.
        let stop = signals()?;
        let server = Server::bind(app).await?;
        let file = everturn::store_file(store)?;
        let page = Some(page_url(server.address, tls));
        let sharing =
            file.and_then(|file| socket::share(server.app.clone(), &file, page, socket::Tenure::Lasting));
        started(&Started { address: server.address, tls, open: server.open, jwt, models });
        let served = serve(server, stop).await;
        drop(sharing);
        served.map(|()| telling)
    });
    let ended = served.map(|telling| telling.end());
    runtime.shutdown_timeout(BLOCKING_PATIENCE);
    ended
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

/// Resolves at the first signal. The second ends the process at once.
pub fn signals() -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let cannot =
        |e: std::io::Error| Error::internal("serve.signals", format!("cannot wait for signals: {e}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    Ok(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        tracing::info!(
            "shutting down: streams end, running requests may finish; a second signal exits at once"
        );
        tokio::spawn(async move {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            // Everything acknowledged is durable.
            std::process::exit(130);
        });
    })
}
