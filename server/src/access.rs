//! Authentication and authorization.
//!
//! [`authenticate`] finds the [`Caller`] of each request: by a key, by a JWT of another issuer, or, on a server
//! that only this machine can reach and that has no keys, without credentials. A handler names the required
//! role as an argument: [`Reader`], [`Writer`] or [`Admin`], each of which holds the tenant. Without
//! one of them a handler has no tenant, so that no route can forget the check.

mod cache;
mod jwt;
mod lease;
mod limits;
pub mod origin;
mod signatures;

pub use everturn_core::access::KeyRole;

use crate::app::{App, blocking};
use crate::config::Config;
use crate::lanes::{Charge, Lane, Lanes, hold_until_sent};
use crate::observe::CallerInfo;
use crate::problem::Problem;
use crate::socket::{self, OverSocket};
use axum::body::HttpBody;
use axum::extract::{ConnectInfo, FromRequestParts, Request};
use axum::http::header::{AUTHORIZATION, HeaderMap};
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cache::Cache;
use everturn_api::{Requester, Threads};
use everturn_core::Error;
use everturn_engine::{KEY_PREFIX, Tenant};
use jwt::Verifier;
pub use lease::{Credential, Lease};
use limits::{Limiters, RunningRequest};
use parking_lot::Mutex;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time for which a key found in the store is cached: a key that another process revokes is still accepted for
/// this long.
const KEY_CACHED_FOR: Duration = Duration::from_secs(2);

/// The caller of a request.
#[derive(Clone)]
pub struct Caller {
    /// The tenant, as the caller sees it and writes to it.
    pub tenant: Tenant,
    pub role: KeyRole,
    /// The id of the key, or `jwt:` and the token's subject, for limits and logs; `None` without credentials.
    pub who: Option<Arc<str>>,
    pub credential: Credential,
    /// Whether no key was required because there is none.
    pub is_keyless: bool,
    pub lane: Arc<Lane>,
}

impl Caller {
    /// The same caller for the API; `threads` runs its blocking work.
    pub fn requester(&self, threads: Threads) -> Requester {
        let (tenant, role) = (self.tenant.clone(), self.role);
        Requester { tenant, role, is_keyless: self.is_keyless, threads, progress: None }
    }
}

pub struct Access {
    cache: Cache,
    pub(crate) jwt: Option<Arc<Verifier>>,
    limiters: Limiters,
    leases: lease::Leases,
    lanes: Lanes,
    local: LocalAccess,
}

/// Whether everyone on this machine has access. Once closed, it stays closed.
#[derive(Default)]
struct LocalAccess {
    closed: AtomicBool,
    seen: AtomicU64,
    looked: Mutex<Option<Instant>>,
}

impl Access {
    pub fn new(config: &Config) -> Access {
        Access {
            cache: Cache::default(),
            jwt: config.jwt.clone().map(Verifier::new),
            limiters: Limiters::new(config.limits),
            leases: lease::Leases::default(),
            lanes: Lanes::new(config.limits),
            local: LocalAccess::default(),
        }
    }

    /// Whether everyone has access: only this machine can reach the server, and no key has been created yet.
    pub async fn is_open(&self, app: &App) -> Result<bool, Error> {
        let config = &app.config;
        if !config.listen.ip().is_loopback() || self.jwt.is_some() || config.keys_required == Some(true) {
            return Ok(false);
        }
        if config.keys_required == Some(false) {
            return Ok(true);
        }
        if self.local.closed.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let keys = app.store.keys();
        let changes = keys.changes();
        let looked = *self.local.looked.lock();
        let fresh = looked.is_some_and(|at| at.elapsed() < KEY_CACHED_FOR);
        if fresh && self.local.seen.load(Ordering::SeqCst) == changes {
            return Ok(true);
        }
        let any = blocking(move || keys.any()).await?;
        self.local.closed.fetch_or(any, Ordering::SeqCst);
        self.local.seen.store(changes, Ordering::SeqCst);
        *self.local.looked.lock() = Some(Instant::now());
        Ok(!any)
    }

    pub fn lane(&self, tenant: &Tenant) -> Arc<Lane> {
        self.lanes.of(tenant.name())
    }

    /// Resolves when a credential ends; `None` if it cannot end.
    pub fn lease(&self, app: &App, credential: Credential) -> Option<Lease> {
        self.leases.of(app, credential)
    }

    /// Counts a request of this caller, or refuses it. Local callers without a key are the only users of the server, so
    /// they have no limits.
    pub fn admit(&self, caller: &Caller) -> Result<Option<RunningRequest>, Problem> {
        let who = caller.who.as_ref();
        who.map(|who| self.limiters.enter(who, caller.tenant.name(), &caller.lane)).transpose()
    }

    /// The caller of a request; `None` if it has no key and one is required.
    async fn caller(&self, app: &App, request: &Parts) -> Result<Option<Caller>, Problem> {
        let Some(mut caller) = self.holder(app, request).await? else { return Ok(None) };
        let actors = actors(&request.headers)?;
        if !actors.is_empty() {
            caller.tenant = caller.tenant.called_by(caller.tenant.caller().acting_as(actors)?);
        }
        Ok(Some(caller))
    }

    /// The holder of the credential of a request.
    async fn holder(&self, app: &App, request: &Parts) -> Result<Option<Caller>, Problem> {
        if request.extensions.get::<OverSocket>().is_some() {
            let tenant = socket::tenant(app, &request.headers)?;
            return Ok(Some(self.local(tenant, false)));
        }
        if self.is_open(app).await? {
            origin::check(&app.config, request)?;
            let is_keyless = app.config.keys_required.is_none();
            return Ok(Some(self.local(app.store.tenant("default")?, is_keyless)));
        }
        let Some(token) = token(&request.headers)? else { return Ok(None) };
        if let Some(caller) = self.cache.get(app, token) {
            return Ok(Some(caller));
        }
        let peer = peer(&app.config, request);
        self.limiters.check_peer(peer)?;
        match self.verify(app, token).await {
            Err(problem) if problem.status == StatusCode::UNAUTHORIZED => {
                self.limiters.failed(peer);
                Err(problem)
            }
            other => other.map(Some),
        }
    }

    /// An admin without credentials.
    fn local(&self, tenant: Tenant, is_keyless: bool) -> Caller {
        let lane = self.lane(&tenant);
        let credential = if is_keyless { Credential::Keyless } else { Credential::None };
        Caller { tenant, role: KeyRole::Admin, who: None, credential, is_keyless, lane }
    }

    async fn verify(&self, app: &App, token: &str) -> Result<Caller, Problem> {
        if token.starts_with(KEY_PREFIX) {
            return self.cache.find(app, token).await;
        }
        match &self.jwt {
            Some(verifier) => {
                let found = verifier.verify(token).await?;
                let tenant = app.store.tenant(&found.tenant).map_err(|_| {
                    Problem::unauthorized("the token names a tenant that cannot exist; ask its issuer")
                })?;
                let holder = everturn_engine::Caller::holding(found.who.as_str(), found.role, &found.actors);
                let tenant = tenant.called_by(holder);
                if app.store.keys().time_left(found.expires).is_zero() {
                    return Err(Problem::unauthorized("the token is refused: it has expired; get a new one"));
                }
                let credential = Credential::Token { expires: found.expires };
                let lane = self.lane(&tenant);
                let who = Some(found.who.into());
                Ok(Caller { tenant, role: found.role, who, credential, is_keyless: false, lane })
            }
            None => Err(Problem::unauthorized("this is not a key; keys begin with et_")),
        }
    }
}

/// The credential of a request: `Authorization: Bearer …`, or `x-api-key`, as some clients send it.
fn token(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let unreadable = || Problem::unauthorized("the key contains invalid characters; send it as it was shown");
    if let Some(value) = headers.get(AUTHORIZATION) {
        let text = value.to_str().map_err(|_| unreadable())?;
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if !scheme.eq_ignore_ascii_case("bearer") {
            let text = "only Authorization: Bearer is supported; send the key as Authorization: Bearer et_…";
            return Err(Problem::unauthorized(text));
        }
        return Ok(Some(rest.trim()));
    }
    headers.get("x-api-key").map(|value| value.to_str().map(str::trim).map_err(|_| unreadable())).transpose()
}

/// Header with the actors that a request acts as. It may be repeated.
pub const ACTOR_HEADER: &str = "everturn-actor";

/// The actors that a request acts as: it sees what they see, and writes in their names.
fn actors(headers: &HeaderMap) -> Result<Vec<String>, Problem> {
    let text = |value: &axum::http::HeaderValue| {
        // Names of any script are sent as UTF-8.
        let name = std::str::from_utf8(value.as_bytes()).map(str::trim).unwrap_or_default();
        if name.is_empty() {
            let text = "Everturn-Actor is empty or not UTF-8; send the name of one actor in each";
            return Err(Problem::new(StatusCode::BAD_REQUEST, "actor.malformed", text));
        }
        Ok(name.to_string())
    };
    headers.get_all(ACTOR_HEADER).iter().map(text).collect()
}

/// The address of the client. Behind a proxy it is the last one in the header, added by the proxy itself.
fn peer(config: &Config, request: &Parts) -> IpAddr {
    let forwarded = || {
        let mut values = request.headers.get_all("x-forwarded-for").iter();
        values.next_back()?.to_str().ok()?.rsplit(',').next()?.trim().parse().ok()
    };
    let direct = request.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let proxied = if config.behind_tls_proxy { forwarded() } else { None };
    proxied.or(direct).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Authenticates a request and applies its limits. Routes that need no caller go on without one.
pub async fn authenticate(app: &App, request: Request, next: Next) -> Response {
    // Health checks need no key, and any host name is accepted.
    if matches!(request.uri().path(), "/healthz" | "/readyz") {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let caller = match app.access.caller(app, &parts).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return next.run(Request::from_parts(parts, body)).await,
        Err(problem) => return problem.into_response(),
    };
    let span = tracing::Span::current();
    span.record("everturn.tenant", caller.tenant.name().as_str());
    let called_by = CallerInfo { tenant: caller.tenant.name().clone(), key: caller.who.clone() };
    span.record("everturn.key", caller.who.as_deref());
    let running = match app.access.admit(&caller) {
        Ok(running) => running,
        Err(problem) => {
            let mut refusal = problem.into_response();
            refusal.extensions_mut().insert(called_by);
            return refusal;
        }
    };
    let (credential, uri, lane) = (caller.credential, parts.uri.clone(), caller.lane.clone());
    parts.extensions.insert(caller);
    let response = lane.run(next.run(Request::from_parts(parts, body))).await;
    let mut response = match lease::is_stream(&response).then(|| app.access.lease(app, credential)).flatten()
    {
        Some(lease) => lease.end_with(response, uri.path()),
        None => response,
    };
    response.extensions_mut().insert(called_by);
    let charge = response.extensions_mut().remove::<Arc<Option<Charge>>>();
    let bytes = response.body().size_hint().exact().unwrap_or_default();
    let charge = charge.unwrap_or_else(|| Arc::new(lane.charge(bytes as usize)));
    hold_until_sent(response, (running, charge))
}

macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident),+) => {$(
        $(#[$doc])*
        pub struct $name(pub Tenant);

        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<$name, Problem> {
                allow(parts, KeyRole::$name).map($name)
            }
        }
    )+};
}
needs!(
    /// May read.
    Reader,
    /// May append.
    Writer,
    /// May do everything.
    Admin
);

fn allow(parts: &Parts, needed: KeyRole) -> Result<Tenant, Problem> {
    allowed(&parts.extensions, needed).map(|caller| caller.tenant.clone())
}

/// The caller of a request, if it has the required role.
pub fn allowed(extensions: &Extensions, needed: KeyRole) -> Result<&Caller, Problem> {
    match extensions.get::<Caller>() {
        None => Err(Problem::unauthorized("this needs a key; send it as Authorization: Bearer et_…")),
        Some(caller) if caller.role < needed => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "access.role",
            format!("this needs the role {needed}, the key has {}; use another key", caller.role),
        )),
        Some(caller) => Ok(caller),
    }
}
