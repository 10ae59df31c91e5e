//! Access to a model server: one client, one address, one key.

use super::endpoint::{Endpoint, Secret, url};
use super::retry::{self, Fault};
use super::{Limits, Protocol};
use crate::world::{SystemWorld, World};
use everturn_core::Error;
use everturn_formats::wire::Failure;
use everturn_formats::wire::failure::{Class, MODEL_ERROR_BYTES_MAX};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Version of the Anthropic API.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// Longest time to read the end of a complete stream, so that its connection can be used again.
const LINGER: Duration = Duration::from_secs(1);

pub struct Server {
    client: Client,
    url: Url,
    headers: HeaderMap,
    key: Option<Secret>,
    pub limits: Limits,
}

impl Server {
    pub fn new(endpoint: &Endpoint, path: &str) -> Result<Server, Error> {
        if endpoint.limits.attempts == 0 {
            return Err(Error::invalid(
                "model.limits",
                "attempts is 0, so nothing would be asked; give 1 or more",
            ));
        }
        let url = url(endpoint.kind, &endpoint.base_url, path)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        if endpoint.kind == Protocol::Anthropic {
            headers.insert("anthropic-version", HeaderValue::from_static(ANTHROPIC_VERSION));
        }
        if let Some(key) = endpoint.api_key.as_ref().and_then(|key| key.reveal().ok()) {
            let (name, value) = key_header(endpoint.kind, key)?;
            headers.insert(name, value);
        }
        // A provider that was installed for the whole process stays.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // It fails only if another thread was faster, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut builder = Client::builder()
            .user_agent(concat!("everturn/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(endpoint.limits.connect_timeout)
            // The key must not be sent to where a redirect or the environment points.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .retry(reqwest::retry::never());
        if url.scheme() == "http" {
            // Plain HTTP needs no certificates, and a machine without any can still reach a local model.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|e| {
            Error::internal("model.client", format!("cannot make an HTTP client: {}", root(e)))
        })?;
        Ok(Server { client, url, headers, key: endpoint.api_key.clone(), limits: endpoint.limits.clone() })
    }

    /// The name of the machine.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Error for the caller.
    pub fn error(&self, failure: &Failure) -> Error {
        failure.error(self.key.as_ref().and_then(|key| key.reveal().ok()))
    }

    /// Runs `work` within the total timeout.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let limit = self.limits.total_timeout;
        timeout(limit, work).await.unwrap_or_else(|_| Err(late("total_timeout", limit)))
    }

    /// One attempt, up to the head of a successful response.
    pub async fn send(&self, body: &str) -> Result<ResponseBody<'_>, Fault> {
        if let Some(Err(unset)) = self.key.as_ref().map(Secret::reveal) {
            return Err(Fault::last(unset.into()));
        }
        let deadline = after(self.limits.first_byte_timeout);
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body.to_string());
        let response = match timeout_at(deadline, request.send()).await {
            // The server has the request and may be working on it: a retry would double the work.
            Err(_) => return Err(Fault::last(first_byte_late(&self.limits))),
            Ok(Err(error)) => return Err(self.unreached(error)),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        let wait = retry::wait(response.headers(), SystemWorld.now());
        let mut body = ResponseBody { response, limits: &self.limits, deadline, begun: false };
        if status.is_success() {
            return Ok(body);
        }
        let failure = Failure::of_status(status.as_u16(), &body.refusal().await);
        Err(Fault { again: failure.transient(), failure, wait })
    }

    fn unreached(&self, error: reqwest::Error) -> Fault {
        let class = if error.is_timeout() { Class::Timeout } else { Class::Unavailable };
        let place = self.url.origin().ascii_serialization();
        let what = if error.is_connect() { "no connection to" } else { "no answer from" };
        let failure = Failure::new(class, format!("{what} {place}: {}", root(error)));
        Fault { failure, again: true, wait: None }
    }
}

/// Body of a response, piece by piece, each with its timeout.
pub struct ResponseBody<'a> {
    response: Response,
    limits: &'a Limits,
    /// Deadline of the first piece.
    deadline: Instant,
    begun: bool,
}

impl ResponseBody<'_> {
    /// The next piece, `None` at the end.
    pub async fn next(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Failure> {
        // From now and not from the last piece: a slow reader must not make the server look slow.
        let deadline = if self.begun { after(self.limits.idle_timeout) } else { self.deadline };
        let piece = match timeout_at(deadline, self.response.chunk()).await {
            Err(_) if self.begun => Err(late("idle_timeout", self.limits.idle_timeout)),
            Err(_) => Err(first_byte_late(self.limits)),
            Ok(Err(error)) => Err(Failure::new(Class::Cut, root(error))),
            Ok(Ok(piece)) => Ok(piece),
        };
        self.begun = true;
        piece
    }

    /// Beginning of an error response; as much as arrives in time.
    async fn refusal(&mut self) -> String {
        let mut body = Vec::new();
        while body.len() < MODEL_ERROR_BYTES_MAX {
            match self.next().await {
                Ok(Some(piece)) => body.extend_from_slice(piece.as_ref()),
                _ => break,
            }
        }
        body.truncate(MODEL_ERROR_BYTES_MAX);
        String::from_utf8_lossy(&body).into_owned()
    }

    /// Reads the rest of a complete stream, in the background. A connection that was not read to its end is closed,
    /// and the next request would have to open another.
    pub fn linger(self) {
        let mut response = self.response;
        tokio::spawn(timeout(LINGER, async move { while let Ok(Some(_)) = response.chunk().await {} }));
    }
}

fn key_header(kind: Protocol, key: &str) -> Result<(HeaderName, HeaderValue), Error> {
    let (name, text) = match kind {
        Protocol::Anthropic => (HeaderName::from_static("x-api-key"), key.to_string()),
        Protocol::OpenaiChat | Protocol::OpenaiResponses => (AUTHORIZATION, format!("Bearer {key}")),
    };
    let mut value = HeaderValue::from_str(&text).ok().filter(|_| !key.is_empty()).ok_or_else(|| {
        Error::invalid(
            "model.key_malformed",
            "the key is empty or holds a line break or the like; check api_key_env",
        )
    })?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// The instant after this wait; an unlimited wait is one year.
fn after(wait: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    Instant::now() + wait.min(YEAR)
}

fn first_byte_late(limits: &Limits) -> Failure {
    late("first_byte_timeout", limits.first_byte_timeout)
}

fn late(name: &str, limit: Duration) -> Failure {
    Failure::new(Class::Timeout, format!("{name} is {} s", limit.as_secs_f64()))
}

/// The innermost cause, which is the informative one, without the address.
fn root(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut reason: &dyn std::error::Error = &error;
    while let Some(inner) = reason.source() {
        reason = inner;
    }
    reason.to_string()
}
