//! Limits of concurrency per tenant.
//!
//! Every tenant has a lane: a maximum number of requests and streams, of threads, and of bytes of unsent
//! answers. A request that finds its lane full waits for its turn, for a bounded time, and is then refused with
//! a time to retry; other tenants are not affected. `access` opens the lane of a request and
//! [`blocking`](crate::app::blocking) finds it.

use crate::config::Limits;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use everturn_core::Error;
use everturn_core::id::TenantName;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Number of tenants above which idle lanes are dropped.
const LANES_MAX: usize = 10_000;
/// Bodies and answers up to this many bytes are not counted.
pub const SMALL_BYTES: usize = 64 * 1024;

tokio::task_local! {
    static LANE_REQUEST: Arc<LaneRequest>;
}

/// One request in a lane.
pub struct LaneRequest {
    pub lane: Arc<Lane>,
    /// Memory that its body takes.
    body: Mutex<Option<OwnedSemaphorePermit>>,
}

/// The lanes of all tenants.
pub struct Lanes {
    limits: Limits,
    /// Large operations of all tenants together.
    large: Arc<Semaphore>,
    /// Concurrent answers to all tenants that may be large.
    answers: Arc<Semaphore>,
    /// Bytes of unsent answers to all tenants.
    unsent: Arc<AtomicUsize>,
    lanes: Mutex<HashMap<TenantName, Arc<Lane>>>,
}

/// The lane of one tenant.
pub struct Lane {
    limits: Limits,
    running: Arc<Semaphore>,
    threads: Arc<Semaphore>,
    large: Arc<Semaphore>,
    large_of_all: Arc<Semaphore>,
    answers_of_all: Arc<Semaphore>,
    /// Bytes of request bodies.
    bodies: Arc<Semaphore>,
    /// Bytes of unsent answers.
    unsent: AtomicUsize,
    unsent_of_all: Arc<AtomicUsize>,
    /// Notified when some were sent.
    sent: Notify,
}

impl Lanes {
    pub fn new(limits: Limits) -> Lanes {
        let large = Arc::new(Semaphore::new(limits.large_operations));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let answers = Arc::new(Semaphore::new(2 * cores));
        Lanes { limits, large, answers, unsent: Arc::default(), lanes: Mutex::default() }
    }

    pub fn of(&self, tenant: &TenantName) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get(tenant) {
            return lane.clone();
        }
        if lanes.len() >= LANES_MAX {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        let limits = self.limits;
        let lane = Arc::new(Lane {
            limits,
            running: Arc::new(Semaphore::new(limits.tenant_concurrent)),
            threads: Arc::new(Semaphore::new(limits.tenant_threads)),
            large: Arc::new(Semaphore::new(limits.tenant_large_operations)),
            large_of_all: self.large.clone(),
            answers_of_all: self.answers.clone(),
            bodies: Arc::new(Semaphore::new(limits.tenant_body_bytes)),
            unsent: AtomicUsize::new(0),
            unsent_of_all: self.unsent.clone(),
            sent: Notify::new(),
        });
        lanes.insert(tenant.clone(), lane.clone());
        lane
    }
}

/// The request that this task answers.
pub fn current() -> Option<Arc<LaneRequest>> {
    LANE_REQUEST.try_with(Arc::clone).ok()
}

/// Runs a future in the given lane, for a task of its own.
pub async fn inherited<T>(request_lane: Option<Arc<LaneRequest>>, work: impl Future<Output = T>) -> T {
    match request_lane {
        Some(request_lane) => request_lane.lane.run(work).await,
        None => work.await,
    }
}

impl LaneRequest {
    /// Waits for memory for a body, which is held until the request is answered.
    pub async fn reserve(&self, bytes: usize) -> Result<(), Error> {
        let limits = &self.lane.limits;
        // A body above the limit takes all of it.
        let permits = bytes.min(limits.tenant_body_bytes) as u32;
        let memory =
            async { self.lane.bodies.clone().acquire_many_owned(permits).await.into_iter().collect() };
        let mut reserved =
            self.lane.within("limits.tenant_body_bytes", limits.tenant_body_bytes, memory).await?;
        *self.body.lock() = reserved.permits.pop();
        Ok(())
    }
}

/// Permission to use a thread.
pub struct Thread {
    permits: Vec<OwnedSemaphorePermit>,
}

impl Lane {
    /// Runs a future in this lane.
    pub async fn run<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        LANE_REQUEST.scope(Arc::new(LaneRequest { lane: self.clone(), body: Mutex::default() }), work).await
    }

    /// Admits a request; `None` if too many run.
    pub fn enter(&self) -> Option<OwnedSemaphorePermit> {
        self.running.clone().try_acquire_owned().ok()
    }

    pub async fn thread(&self) -> Result<Thread, Error> {
        if self.has_room()
            && let Ok(permit) = self.threads.clone().try_acquire_owned()
        {
            return Ok(Thread { permits: vec![permit] });
        }
        let permits = self.with_room([&self.threads]);
        self.within("limits.tenant_threads", self.limits.tenant_threads, permits).await
    }

    /// Waits for a thread for a short piece of work with an answer that may be large.
    pub async fn answer(&self) -> Result<Thread, Error> {
        let permits = self.with_room([&self.threads, &self.answers_of_all]);
        self.within("limits.tenant_threads", self.limits.tenant_threads, permits).await
    }

    /// Waits for a thread without a timeout: a stream has time.
    pub async fn thread_of_stream(&self) -> Thread {
        Thread { permits: self.with_room([&self.threads]).await }
    }

    /// Waits for a thread for work that needs much memory or processor time, or that may wait for the client.
    pub async fn large(&self) -> Result<Thread, Error> {
        let permits = self.with_room([&self.large, &self.large_of_all]);
        self.within("limits.tenant_large_operations", self.limits.tenant_large_operations, permits).await
    }

    /// Waits for a permit of each, at a moment when there is room for more answers.
    async fn with_room<const N: usize>(&self, semaphores: [&Arc<Semaphore>; N]) -> Vec<OwnedSemaphorePermit> {
        loop {
            self.room().await;
            let mut permits = Vec::with_capacity(N);
            for semaphore in semaphores {
                permits.push(acquire(semaphore).await);
            }
            // Others may have filled it meanwhile.
            if self.has_room() {
                return permits;
            }
        }
    }

    async fn within(
        &self,
        name: &str,
        limit: usize,
        permits: impl Future<Output = Vec<OwnedSemaphorePermit>>,
    ) -> Result<Thread, Error> {
        let wait = self.limits.wait;
        match tokio::time::timeout(wait, permits).await {
            Ok(permits) => Ok(Thread { permits }),
            Err(_) => Err(Error::busy(
                "tenant.busy",
                format!(
                    "{name} is {limit}, and none ended within {} s; send fewer requests at once, or read the answers",
                    wait.as_secs()
                ),
            )),
        }
    }

    /// Whether there is room for more answers. If all tenants together have too many unsent bytes, those with a
    /// part in it wait, and the others are answered one request at a time.
    fn has_room(&self) -> bool {
        let own = self.unsent.load(Ordering::Relaxed);
        let threads = self.limits.tenant_threads - self.threads.available_permits();
        let large = self.limits.tenant_large_operations - self.large.available_permits();
        own <= self.limits.tenant_unsent_bytes
            && (self.unsent_of_all.load(Ordering::Relaxed) <= self.limits.unsent_bytes
                || (own == 0 && threads + large <= 1))
    }

    /// Waits until enough of the answers is sent.
    pub async fn room(&self) {
        loop {
            let sent = self.sent.notified();
            if self.has_room() {
                return;
            }
            // A wake-up may be lost between the check and the wait.
            let _ = tokio::time::timeout(Duration::from_millis(100), sent).await;
        }
    }

    /// Counts bytes that wait to be sent; `None` for a few.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        (bytes > SMALL_BYTES).then(|| {
            self.unsent.fetch_add(bytes, Ordering::Relaxed);
            self.unsent_of_all.fetch_add(bytes, Ordering::Relaxed);
            Charge { lane: self.clone(), bytes }
        })
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match semaphore.clone().acquire_owned().await {
        Ok(permit) => permit,
        Err(_) => unreachable!("it is never closed"),
    }
}

/// Counted unsent bytes, until dropped.
pub struct Charge {
    lane: Arc<Lane>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.lane.unsent.fetch_sub(self.bytes, Ordering::Relaxed);
        self.lane.unsent_of_all.fetch_sub(self.bytes, Ordering::Relaxed);
        self.lane.sent.notify_waiters();
    }
}

/// Bytes that carry their charge with them.
pub fn charged(bytes: Bytes, charge: Option<Charge>) -> Bytes {
    match charge {
        Some(charge) => Bytes::from_owner(HeldBytes(bytes, charge)),
        None => bytes,
    }
}

/// Bytes, and a value held until they are sent.
struct HeldBytes<B, T>(B, #[allow(dead_code, reason = "kept until the bytes are sent")] T);

impl<B: AsRef<[u8]>, T> AsRef<[u8]> for HeldBytes<B, T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

/// Holds a value for as long as an answer is being sent. A small answer of known length counts as sent.
pub fn hold_until_sent(response: Response, held: impl Send + Sync + 'static) -> Response {
    if response.body().size_hint().exact().is_some_and(|bytes| bytes <= SMALL_BYTES as u64) {
        return response;
    }
    response.map(|body| Body::new(HoldingBody { body, held: Arc::new(held) }))
}

struct HoldingBody {
    body: Body,
    held: Arc<dyn std::any::Any + Send + Sync>,
}

impl HttpBody for HoldingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        // The body ends before its last bytes are sent.
        let held = |bytes: Bytes| match bytes.len() > SMALL_BYTES {
            true => Bytes::from_owner(HeldBytes(bytes, self.held.clone())),
            false => bytes,
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
