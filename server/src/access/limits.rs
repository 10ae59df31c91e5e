//! Rate limits per key, tenant and address.

use crate::config::Limits;
use crate::lanes::Lane;
use crate::problem::Problem;
use everturn_core::id::TenantName;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of entries above which idle ones are dropped.
const KNOWN_MAX: usize = 10_000;

pub struct Limiters {
    limits: Limits,
    rate: DefaultKeyedRateLimiter<Arc<str>>,
    tenant_rate: DefaultKeyedRateLimiter<TenantName>,
    running: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    failures: DefaultKeyedRateLimiter<IpAddr>,
    /// Blocked addresses, with the end of each block.
    blocked: Mutex<HashMap<IpAddr, Instant>>,
    clock: DefaultClock,
}

/// A running request. It counts until its answer was sent.
pub struct RunningRequest {
    _permits: [OwnedSemaphorePermit; 2],
}

impl Limiters {
    pub fn new(limits: Limits) -> Limiters {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let rate = Quota::per_second(at_least_one(limits.requests_per_second));
        Limiters {
            limits,
            rate: RateLimiter::keyed(rate.allow_burst(at_least_one(limits.burst))),
            tenant_rate: RateLimiter::keyed(
                Quota::per_second(at_least_one(limits.tenant_requests_per_second))
                    .allow_burst(at_least_one(limits.tenant_burst)),
            ),
            running: Mutex::default(),
            failures: RateLimiter::keyed(Quota::per_minute(at_least_one(limits.failures_per_minute))),
            blocked: Mutex::default(),
            clock: DefaultClock::default(),
        }
    }

    /// Admits a request of this caller, or says when to retry.
    pub fn enter(&self, who: &Arc<str>, tenant: &TenantName, lane: &Lane) -> Result<RunningRequest, Problem> {
        if self.rate.len() > KNOWN_MAX {
            self.rate.retain_recent();
        }
        if let Err(until) = self.rate.check_key(who) {
            let wait = until.wait_time_from(self.clock.now());
            let text = format!("one key may send {} requests a second", self.limits.requests_per_second);
            return Err(Problem::later("access.rate", wait, text));
        }
        if self.tenant_rate.len() > KNOWN_MAX {
            self.tenant_rate.retain_recent();
        }
        if let Err(until) = self.tenant_rate.check_key(tenant) {
            let wait = until.wait_time_from(self.clock.now());
            let limit = self.limits.tenant_requests_per_second;
            let text = format!("one tenant may send {limit} requests a second, with all its keys");
            return Err(Problem::later("access.tenant_rate", wait, text));
        }
        let of_tenant = lane.enter().ok_or_else(|| {
            let limit = self.limits.tenant_concurrent;
            let text = format!("{limit} requests or streams of this tenant are running");
            Problem::later("access.tenant_concurrency", Duration::from_secs(1), text)
        })?;
        let mut running = self.running.lock();
        if running.len() > KNOWN_MAX {
            running.retain(|_, semaphore| semaphore.available_permits() < self.limits.concurrent);
        }
        let semaphore =
            running.entry(who.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.limits.concurrent)));
        match semaphore.clone().try_acquire_owned() {
            Ok(permit) => Ok(RunningRequest { _permits: [of_tenant, permit] }),
            Err(_) => {
                let text = format!("{} requests or streams of this key are running", self.limits.concurrent);
                Err(Problem::later("access.concurrency", Duration::from_secs(1), text))
            }
        }
    }

    /// Refuses an address with too many wrong keys.
    pub fn check_peer(&self, peer: IpAddr) -> Result<(), Problem> {
        let mut blocked = self.blocked.lock();
        let Some(until) = blocked.get(&peer).copied() else { return Ok(()) };
        let wait = until.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            blocked.remove(&peer);
            return Ok(());
        }
        let text = format!("more than {} wrong keys a minute", self.limits.failures_per_minute);
        Err(Problem::later("access.failures", wait, text))
    }

    /// Records a wrong key from this address.
    pub fn failed(&self, peer: IpAddr) {
        if self.failures.len() > KNOWN_MAX {
            self.failures.retain_recent();
        }
        if let Err(until) = self.failures.check_key(&peer) {
            let until = Instant::now() + until.wait_time_from(self.clock.now());
            let mut blocked = self.blocked.lock();
            if blocked.len() > KNOWN_MAX {
                blocked.retain(|_, until| *until > Instant::now());
            }
            blocked.insert(peer, until);
        }
    }
}
