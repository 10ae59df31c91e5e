//! A proxy in front of an MCP server over HTTP, which copies what passes.
//!
//! Requests and responses are streamed through as they come. A copy of each JSON-RPC message goes to a function that
//! must not block; if it fails, the exchange goes on.

use crate::access::origin;
use crate::config::Config;
use crate::problem::Problem;
use crate::run::signals;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::redaction::without_secrets;
use everturn_formats::wire::sse::Parser;
use flate2::write::MultiGzDecoder;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// Maximum length of a message that is copied.
const COPY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of a compressed response that are expanded at once: at most some thousand times as many come out.
const GZIP_STEP: usize = 4096;
/// Maximum time that open connections get when it is told to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Headers about one connection, which a proxy does not pass on.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A message that passed through the proxy.
pub struct PassedMessage {
    /// The MCP session, or the exchange if there is none: ids of requests are unique within it.
    pub channel: String,
    /// Whether the client sent it.
    pub from_client: bool,
    /// When it passed.
    pub at: Instant,
    /// The message.
    pub text: Vec<u8>,
}

/// A listening proxy.
pub struct Proxy {
    listener: TcpListener,
    /// Address that it listens on.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    to: reqwest::Url,
    client: reqwest::Client,
    tap: Box<dyn Fn(PassedMessage) + Send + Sync>,
    exchanges: AtomicU64,
    config: Config,
}

impl Proxy {
    /// Listens on loopback, and passes requests on to the server at the URL `to`.
    pub fn bind(
        listen: SocketAddr,
        to: &str,
        tap: impl Fn(PassedMessage) + Send + Sync + 'static,
    ) -> Result<Proxy, Error> {
        if !listen.ip().is_loopback() {
            let text = format!(
                "{listen} can be reached by other machines, and a proxy has no keys; listen on 127.0.0.1"
            );
            return Err(Error::invalid("record.unsafe", text));
        }
        let wrong = |e: &dyn std::fmt::Display| {
            let to = without_secrets(to);
            let text = format!("{to:?} is not the URL of an MCP server: {e}; write it as http://host/mcp");
            Error::invalid("record.url", text)
        };
        let to = reqwest::Url::parse(to).map_err(|e| wrong(&e))?;
        crate::tls::provide();
        let mut client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        if to.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]")) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|e| wrong(&e))?;
        let cannot = |e: std::io::Error| {
            let text = format!(
                "cannot listen on {listen}: {e}; choose another address with --listen; port 0 picks a free one"
            );
            Error::invalid("serve.listen", text)
        };
        let listener = TcpListener::bind(listen).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let config = Config { listen: address, ..Config::default() };
        let shared = Shared { to, client, tap: Box::new(tap), exchanges: AtomicU64::new(0), config };
        Ok(Proxy { listener, address, shared: Arc::new(shared) })
    }

    /// Serves until the process is told to stop.
    pub fn run(self) -> Result<(), Error> {
        let failed = |e: std::io::Error| Error::internal("serve.failed", format!("the proxy failed: {e}"));
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
        runtime.block_on(async {
            let stop = signals()?;
            let listener = tokio::net::TcpListener::from_std(self.listener).map_err(failed)?;
            let router = Router::new().fallback(pass).with_state(self.shared);
            tokio::select! {
                served = std::future::IntoFuture::into_future(axum::serve(listener, router)) => served.map_err(failed),
                () = stop => Ok(()),
            }
        })?;
        runtime.shutdown_timeout(STOP_PATIENCE);
        Ok(())
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(problem) = origin::check(&shared.config, &parts) {
        return problem.into_response();
    }
    let exchange = shared.exchanges.fetch_add(1, Ordering::Relaxed);
    let at = Instant::now();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let copied = {
        let sent = sent.clone();
        body.into_data_stream().inspect(move |piece| {
            if let Ok(piece) = piece {
                copy(&mut sent.lock(), piece);
            }
        })
    };
    let mut headers = passed_on(&parts.headers);
    headers.remove(HOST);
    // Compression costs time on the machine's own network, and the copy would have to be expanded in every encoding.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let mut upstream =
        shared.client.request(parts.method.clone(), target(&shared.to, &parts.uri)).headers(headers);
    // Some servers refuse a chunked body on a request that has none.
    if parts.headers.contains_key("content-length") || parts.headers.contains_key("transfer-encoding") {
        upstream = upstream.body(reqwest::Body::wrap_stream(copied));
    }
    let answer = upstream.send().await;
    let session = |headers: &HeaderMap| Some(headers.get("mcp-session-id")?.to_str().ok()?.to_string());
    let given = answer.as_ref().ok().and_then(|answer| session(answer.headers()));
    let channel = session(&parts.headers).or(given).unwrap_or_else(|| format!("exchange {exchange}"));
    let text = std::mem::take(&mut *sent.lock());
    if !text.is_empty() {
        (shared.tap)(PassedMessage { channel: channel.clone(), from_client: true, at, text });
    }
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let text = format!("the MCP server behind this proxy does not answer: {}", error.without_url());
            return Problem::new(StatusCode::BAD_GATEWAY, "record.upstream", text).into_response();
        }
    };
    let is_stream = answer
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.starts_with("text/event-stream"));
    // Some servers compress in spite of `identity`.
    let encoding = answer.headers().get(CONTENT_ENCODING).and_then(|encoding| encoding.to_str().ok());
    let is_gzip = encoding.is_some_and(|encoding| {
        encoding.eq_ignore_ascii_case("gzip") || encoding.eq_ignore_ascii_case("x-gzip")
    });
    let gzip = is_gzip.then(|| MultiGzDecoder::new(Vec::new()));
    let (status, headers) = (answer.status(), passed_on(answer.headers()));
    let events = is_stream.then(|| Parser::new(COPY_BYTES_MAX));
    let copy = Copy { shared, channel, events, gzip, message: Vec::new() };
    let body = Tee { stream: Box::pin(answer.bytes_stream()), copy };
    let mut response = Body::from_stream(body).into_response();
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// URL of the server for a request: its own for the root, else below it, with the query of the request.
fn target(to: &reqwest::Url, asked: &axum::http::Uri) -> reqwest::Url {
    let mut url = to.clone();
    // Some clients repeat the path of the server's URL.
    if asked.path() != "/" && asked.path() != to.path() {
        url.set_path(&format!("{}{}", to.path().trim_end_matches('/'), asked.path()));
    }
    if asked.query().is_some() {
        url.set_query(asked.query());
    }
    url
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let is_own = |name: &HeaderName| HOP_BY_HOP.contains(&name.as_str());
    headers
        .iter()
        .filter(|(name, _)| !is_own(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn copy(into: &mut Vec<u8>, piece: &[u8]) {
    // A message that is too long is cut, so that it does not parse and is not recorded.
    let room = COPY_BYTES_MAX - into.len().min(COPY_BYTES_MAX);
    into.extend_from_slice(&piece[..piece.len().min(room)]);
}

/// A response on its way to the client.
struct Tee {
    stream: Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
    copy: Copy,
}

impl Stream for Tee {
    type Item = reqwest::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = ready!(self.stream.as_mut().poll_next(context));
        if let Some(Ok(piece)) = &piece {
            self.copy.take(piece);
        }
        Poll::Ready(piece)
    }
}

/// The copy of a response: one message, or a stream of events with one each.
struct Copy {
    shared: Arc<Shared>,
    channel: String,
    /// Reads the events, if the response is a stream of them.
    events: Option<Parser>,
    gzip: Option<MultiGzDecoder<Vec<u8>>>,
    /// The message, if it is not.
    message: Vec<u8>,
}

impl Copy {
    fn take(&mut self, piece: &[u8]) {
        let Some(mut gzip) = self.gzip.take() else { return self.read(piece) };
        for part in piece.chunks(GZIP_STEP) {
            // Bytes that cannot be expanded are missing from the copy only.
            let _ = gzip.write_all(part).and_then(|()| gzip.flush());
            self.read(&std::mem::take(gzip.get_mut()));
        }
        self.gzip = Some(gzip);
    }

    fn read(&mut self, bytes: &[u8]) {
        let Some(parser) = &mut self.events else { return copy(&mut self.message, bytes) };
        let mut events = Vec::new();
        if parser.feed(bytes, &mut events).is_err() {
            // An event that is too long or not UTF-8 is missing from the copy; those that follow may be good.
            *parser = Parser::new(COPY_BYTES_MAX);
        }
        for event in events {
            self.pass(event.data.into_bytes());
        }
    }

    fn pass(&self, text: Vec<u8>) {
        if !text.is_empty() {
            let channel = self.channel.clone();
            (self.shared.tap)(PassedMessage { channel, from_client: false, at: Instant::now(), text });
        }
    }
}

/// A response also ends when its client goes away.
impl Drop for Copy {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.message);
        self.pass(text);
    }
}
