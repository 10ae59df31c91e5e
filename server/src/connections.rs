//! Connections: their number, and their timeouts.
//!
//! A connection is idle while it has no request being answered. Where there are too many, from one address or
//! in total, the one that has been idle longest is closed for the new one; so half-sent headers cost their
//! sender's own connections, and clients that have sent a request are not affected. A watcher ends connections
//! that delay their header, or that do not read what is sent to them.
//!
//! A client may close its side once its request is sent. That looks like one that has gone, so the end of what it sends is
//! reported only after the answer, or if nothing could be sent to it for a while.

use crate::config::{Config, Limits};
use crate::lanes::hold_until_sent;
use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::header::UPGRADE;
use axum::response::Response;
use axum_server::accept::Accept;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tower::Service;

/// Interval at which connections are checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time for which a client that closed its side waits for an answer, or for more of it. One that has gone looks the same
/// until something is sent to it.
const HALF_CLOSED_PATIENCE: Duration = Duration::from_secs(10);
/// The same while a request is not read to its end: the rest of it may have arrived already.
const UNREAD_PATIENCE: Duration = Duration::from_secs(1);
/// Value of [`Connection::half_closed_since`] once the end of what the client sends has been reported.
const REPORTED: u64 = u64::MAX;

/// The connections of a server.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    limits: Limits,
    /// A proxy's connections all come from its own address, which says nothing about clients.
    by_address: bool,
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, usize>,
}

struct Connection {
    address: IpAddr,
    /// Number of requests being answered.
    busy: AtomicUsize,
    /// Whether a request was ever answered.
    used: AtomicBool,
    /// Start of idleness, in milliseconds since the server started.
    idle_since: AtomicU64,
    /// Time since which the client has read nothing; 0 while it reads.
    stalled_since: AtomicU64,
    /// Whether the request being answered was read to its end.
    asked: AtomicBool,
    /// Whether it asks for another protocol, so that the bytes that follow are not a request.
    upgrades: AtomicBool,
    /// Time of the end of what the client sends, or of the last bytes sent to it since; 0 before, [`REPORTED`] after.
    half_closed_since: AtomicU64,
    ended: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Connection {
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.reader.wake();
        self.writer.wake();
    }

    /// Whether the end of what the client sends is not reported yet: it waits for its answer.
    fn waits_for_answer(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
            && !self.upgrades.load(Ordering::SeqCst)
            && self.half_closed_since.load(Ordering::SeqCst) != REPORTED
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0 && !self.ended.load(Ordering::SeqCst)
    }
}

impl Connections {
    pub fn new(config: &Config) -> Connections {
        let (mut limits, by_address) = (config.limits, !config.behind_tls_proxy);
        if let Some(files) =
            open_files_max().map(|files| files / 4 * 3).filter(|files| *files < limits.connections)
        {
            tracing::debug!(
                connections = files,
                "the limit on open files is too low for limits.connections; raise it with `ulimit -n`"
            );
            limits.connections = files;
        }
        limits.connections_per_address =
            limits.connections_per_address.min(limits.connections.div_ceil(4) * 3);
        Connections(Arc::new(Inner { limits, by_address, began: Instant::now(), open: Mutex::default() }))
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock()
    }

    /// Never 0.
    fn now(&self) -> u64 {
        self.0.began.elapsed().as_millis() as u64 + 1
    }

    /// Admits a connection, closing an idle one if needed; `None` if there is no room.
    fn enter(&self, address: IpAddr) -> Option<ConnectionGuard> {
        let limits = &self.0.limits;
        let mut open = self.open();
        let same = open.by_address.get(&address).copied().unwrap_or_default();
        let room = if self.0.by_address && same >= limits.connections_per_address {
            open.make_room(|connection| connection.address == address)
        } else if open.connections.len() >= limits.connections {
            open.make_room(|_| true)
        } else {
            true
        };
        if !room {
            metrics::counter!("everturn_connections_refused_total").increment(1);
            return None;
        }
        let connection = Arc::new(Connection {
            address,
            busy: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            idle_since: AtomicU64::new(self.now()),
            stalled_since: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            upgrades: AtomicBool::new(false),
            half_closed_since: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
        });
        open.next += 1;
        let no = open.next;
        open.connections.insert(no, connection.clone());
        *open.by_address.entry(address).or_default() += 1;
        Some(ConnectionGuard { connections: self.clone(), no, connection })
    }

    /// Ends connections that have timed out, until the server stops.
    pub async fn watch(self, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            let (now, limits) = (self.now(), &self.0.limits);
            let past = |since: u64, limit: Duration| now.saturating_sub(since) > limit.as_millis() as u64;
            for connection in self.open().connections.values() {
                let used = connection.used.load(Ordering::Relaxed);
                let patience = if used { limits.idle_timeout } else { limits.header_timeout };
                let waits =
                    connection.is_idle() && past(connection.idle_since.load(Ordering::SeqCst), patience);
                let stalled = connection.stalled_since.load(Ordering::SeqCst);
                if waits || (stalled > 0 && past(stalled, limits.body_timeout)) {
                    connection.end();
                }
                let closed = connection.half_closed_since.load(Ordering::SeqCst);
                let patience = match connection.asked.load(Ordering::SeqCst) {
                    true => HALF_CLOSED_PATIENCE,
                    false => UNREAD_PATIENCE,
                };
                if closed > 0 && past(closed, patience) {
                    connection.half_closed_since.store(REPORTED, Ordering::SeqCst);
                    connection.reader.wake();
                }
            }
        }
        // Only requests that are being answered are waited for.
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.open().connections.values().filter(|one| one.is_idle()).for_each(|one| one.end());
        }
    }
}

impl Open {
    /// Ends the connection that has been idle longest among those that fit; `false` if none is idle.
    fn make_room(&mut self, fits: impl Fn(&Connection) -> bool) -> bool {
        let idle = self.connections.iter().filter(|(_, connection)| connection.is_idle() && fits(connection));
        // One that never sent a request is closed before one that is kept alive.
        let longest = idle.min_by_key(|(no, connection)| {
            (connection.used.load(Ordering::Relaxed), connection.idle_since.load(Ordering::SeqCst), **no)
        });
        let Some(no) = longest.map(|(no, _)| *no) else { return false };
        self.leave(no);
        true
    }

    fn leave(&mut self, no: u64) {
        let Some(connection) = self.connections.remove(&no) else { return };
        connection.end();
        if let Some(count) = self.by_address.get_mut(&connection.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&connection.address);
            }
        }
    }
}

/// Maximum number of open files of this process, if known.
fn open_files_max() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A connection that counts until it is dropped.
struct ConnectionGuard {
    connections: Connections,
    no: u64,
    connection: Arc<Connection>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.open().leave(self.no);
    }
}

impl<S: Send + 'static> Accept<TcpStream, S> for Connections {
    type Stream = CountedStream;
    type Service = CountedService<S>;
    type Future = std::future::Ready<io::Result<(CountedStream, CountedService<S>)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let address = stream.peer_addr().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        // Answers are written as a whole: waiting for more data would only delay them.
        let _ = stream.set_nodelay(true);
        let Some(entered) = self.enter(address) else {
            return std::future::ready(Err(io::ErrorKind::ConnectionRefused.into()));
        };
        let (connections, connection) = (self.clone(), entered.connection.clone());
        std::future::ready(Ok((
            CountedStream { stream, entered },
            CountedService { service, connections, connection },
        )))
    }
}

/// The bytes of a connection.
pub struct CountedStream {
    stream: TcpStream,
    entered: ConnectionGuard,
}

impl CountedStream {
    fn check(&self) -> io::Result<()> {
        match self.entered.connection.ended.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// Records whether the client reads what is sent, and waits to be ended if it does not.
    fn wrote<T>(&self, context: &Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let connection = &self.entered.connection;
        if written.is_ready() {
            if connection.stalled_since.load(Ordering::Relaxed) > 0 {
                connection.stalled_since.store(0, Ordering::SeqCst);
            }
            if connection.half_closed_since.load(Ordering::Relaxed) > 0 {
                let sent = |since| (since != REPORTED).then(|| self.entered.connections.now());
                let _ = connection.half_closed_since.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sent);
            }
            return written;
        }
        let now = self.entered.connections.now();
        let _ = connection.stalled_since.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
        connection.writer.register(context.waker());
        self.check()?;
        Poll::Pending
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        let is_end = matches!(read, Poll::Ready(Ok(()))) && into.filled().len() == before;
        if read.is_ready() && !is_end {
            return read;
        }
        let connection = &self.entered.connection;
        connection.reader.register(context.waker());
        self.check()?;
        if is_end && connection.half_closed_since.load(Ordering::SeqCst) == 0 {
            connection.half_closed_since.store(self.entered.connections.now(), Ordering::SeqCst);
            // A request that came with it is only about to be answered.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match is_end && !connection.waits_for_answer() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.wrote(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Marks connections as busy while a request is answered.
#[derive(Clone)]
pub struct CountedService<S> {
    service: S,
    connections: Connections,
    connection: Arc<Connection>,
}

/// Marks a connection as busy while a request is answered. A handler that takes the connection over (an upgrade) keeps it, so
/// that the connection does not count as idle.
pub struct BusyGuard {
    connections: Connections,
    connection: Arc<Connection>,
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.connection.idle_since.store(self.connections.now(), Ordering::SeqCst);
        self.connection.busy.fetch_sub(1, Ordering::SeqCst);
        if self.connection.half_closed_since.load(Ordering::SeqCst) > 0 {
            self.connection.reader.wake();
        }
    }
}

/// The body of a request, which records that it was read to its end.
pub struct TrackedBody<B> {
    body: B,
    connection: Arc<Connection>,
}

impl<B: HttpBody + Unpin> HttpBody for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.connection.asked.store(true, Ordering::SeqCst);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<S, B> Service<Request<B>> for CountedService<S>
where
    B: HttpBody,
    S: Service<Request<TrackedBody<B>>, Response = Response>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        ready!(self.service.poll_ready(context))?;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        self.connection.busy.fetch_add(1, Ordering::SeqCst);
        self.connection.used.store(true, Ordering::Relaxed);
        let (connections, connection) = (self.connections.clone(), self.connection.clone());
        let answering = Arc::new(BusyGuard { connections, connection });
        request.extensions_mut().insert(answering.clone());
        self.connection.asked.store(request.body().is_end_stream(), Ordering::SeqCst);
        self.connection.upgrades.store(request.headers().contains_key(UPGRADE), Ordering::SeqCst);
        let connection = self.connection.clone();
        let answer = self.service.call(request.map(|body| TrackedBody { body, connection }));
        Box::pin(async move { Ok(hold_until_sent(answer.await?, answering)) })
    }
}
