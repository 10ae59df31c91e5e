//! How much one key may ask for, and how often one address may try.

use crate::config::Limits;
use crate::problem::Problem;
use axum::body::{Body, HttpBody};
use axum::response::Response;
use futures_util::StreamExt;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Past this many, those who asked for nothing lately are forgotten.
const KNOWN_MAX: usize = 10_000;

pub struct Limiters {
    limits: Limits,
    rate: DefaultKeyedRateLimiter<Arc<str>>,
    running: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    failures: DefaultKeyedRateLimiter<IpAddr>,
    /// Addresses that tried too often, until when.
    blocked: Mutex<HashMap<IpAddr, Instant>>,
    clock: DefaultClock,
}

/// A request that runs. It counts until its answer was sent.
pub struct Running {
    _permit: OwnedSemaphorePermit,
}

impl Limiters {
    pub fn new(limits: Limits) -> Limiters {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let rate = Quota::per_second(at_least_one(limits.requests_per_second));
        Limiters {
            limits,
            rate: RateLimiter::keyed(rate.allow_burst(at_least_one(limits.burst))),
            running: Mutex::default(),
            failures: RateLimiter::keyed(Quota::per_minute(at_least_one(limits.failures_per_minute))),
            blocked: Mutex::default(),
            clock: DefaultClock::default(),
        }
    }

    /// Lets a request of this caller in, or says when to come again.
    pub fn enter(&self, who: &Arc<str>) -> Result<Running, Problem> {
        if self.rate.len() > KNOWN_MAX {
            self.rate.retain_recent();
        }
        if let Err(until) = self.rate.check_key(who) {
            let wait = until.wait_time_from(self.clock.now());
            let text = format!("one key may send {} requests a second", self.limits.requests_per_second);
            return Err(Problem::later("access.rate", wait, text));
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.len() > KNOWN_MAX {
            running.retain(|_, semaphore| semaphore.available_permits() < self.limits.concurrent);
        }
        let semaphore =
            running.entry(who.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.limits.concurrent)));
        match semaphore.clone().try_acquire_owned() {
            Ok(permit) => Ok(Running { _permit: permit }),
            Err(_) => {
                let text = format!("{} requests or streams of this key run already", self.limits.concurrent);
                Err(Problem::later("access.concurrency", Duration::from_secs(1), text))
            }
        }
    }

    /// Refuses an address that tried wrong keys too often.
    pub fn check_peer(&self, peer: IpAddr) -> Result<(), Problem> {
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(until) = blocked.get(&peer).copied() else { return Ok(()) };
        let wait = until.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            blocked.remove(&peer);
            return Ok(());
        }
        let text = format!("more than {} wrong keys a minute", self.limits.failures_per_minute);
        Err(Problem::later("access.failures", wait, text))
    }

    /// Notes a wrong key from this address.
    pub fn failed(&self, peer: IpAddr) {
        if self.failures.len() > KNOWN_MAX {
            self.failures.retain_recent();
        }
        if let Err(until) = self.failures.check_key(&peer) {
            let until = Instant::now() + until.wait_time_from(self.clock.now());
            let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
            if blocked.len() > KNOWN_MAX {
                blocked.retain(|_, until| *until > Instant::now());
            }
            blocked.insert(peer, until);
        }
    }
}

impl Running {
    /// Counts a stream until it ends. An answer whose length is known is as good as sent.
    pub fn until_sent(self, response: Response) -> Response {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        response.map(|body| {
            let mut held = Some(self);
            let end = futures_util::stream::poll_fn(move |_| {
                held.take();
                std::task::Poll::Ready(None)
            });
            Body::from_stream(body.into_data_stream().chain(end))
        })
    }
}
