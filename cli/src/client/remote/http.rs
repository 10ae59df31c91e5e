//! One request to a server and its answer. Errors are the server's own, or explain why there is no answer.

use everturn_api::hints::in_commands;
use everturn_core::Error;
use everturn_core::error::{ErrorDetail, code};
use everturn_core::event::check_name;
use everturn_core::id::{TenantName, clip};
use everturn_server::socket::TENANT_HEADER;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Client, Method, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A live stream has a heartbeat every few seconds; one that is silent for this long is dead.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Characters to escape in a segment of a path. `Url` would drop line breaks instead of escaping them.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'@');

/// A server and its key.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    client: Client,
    /// URL that contains `api/v1`.
    base: Url,
    key: Option<HeaderValue>,
    /// The socket of the process that owns a local store, used instead of the URL.
    socket: Option<PathBuf>,
}

impl Server {
    /// A client for the server at this URL. Sends no request yet.
    pub fn new(url: &str, key: Option<&str>) -> Result<Server, Error> {
        let key = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
                Error::invalid("key.malformed", "the key contains invalid characters; copy it again")
            })?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        Server::build(parse(url)?, key.transpose()?, None, HeaderMap::new())
    }

    /// A client for the process that owns a local store.
    pub fn through(socket: &Path, tenant: &str) -> Result<Server, Error> {
        let tenant = HeaderValue::from_str(TenantName::new(tenant)?.as_str())
            .map_err(|e| Error::internal("url.client", format!("a tenant cannot be sent: {e}")))?;
        let headers = HeaderMap::from_iter([(HeaderName::from_static(TENANT_HEADER), tenant)]);
        Server::build(parse("http://localhost")?, None, Some(socket.to_path_buf()), headers)
    }

    fn build(
        base: Url,
        key: Option<HeaderValue>,
        socket: Option<PathBuf>,
        headers: HeaderMap,
    ) -> Result<Server, Error> {
        let inside = |e: &dyn std::fmt::Display| {
            Error::internal("url.client", format!("cannot make an HTTP client: {e}"))
        };
        // Fails only if another provider was installed first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("everturn/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none());
        if base.scheme() == "http" {
            // Certificates are not needed, so this works on a machine without any.
            builder = builder.tls_certs_only([]);
        }
        if base.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]")) {
            builder = builder.no_proxy();
        }
        if let Some(socket) = &socket {
            // A connection for each request: if the owner has ended, the request has not left, and can go to the next one.
            builder = builder.unix_socket(socket.as_path()).pool_max_idle_per_host(0);
        }
        let client = builder.build().map_err(|e| inside(&root(&e)))?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| inside(&e))?;
        Ok(Server(Arc::new(Inner { runtime, client, base, key, socket })))
    }

    /// Whether something listens on the socket.
    pub fn is_there(&self) -> bool {
        self.0.socket.as_ref().is_some_and(|socket| UnixStream::connect(socket).is_ok())
    }

    /// A request to a path that only a socket serves.
    pub fn over_socket(&self, path: &str) -> Request<'_> {
        let mut request = self.post(&[]);
        request.url.set_path(path);
        request
    }

    /// The request that every server answers, without a key.
    pub fn health(&self) -> Request<'_> {
        let mut request = self.get(&[]);
        request.url.set_path(&format!("{}/healthz", self.0.base.path().trim_end_matches('/')));
        request
    }

    /// A request to a path below `api/v1`. Each part is one segment, whatever it contains.
    pub fn request(&self, method: Method, path: &[&str]) -> Request<'_> {
        let mut url = self.0.base.clone();
        let path: String =
            path.iter().map(|part| format!("/{}", utf8_percent_encode(part, ESCAPED))).collect();
        url.set_path(&format!("{}/api/v1{path}", self.0.base.path().trim_end_matches('/')));
        Request { server: self, method, url, headers: Vec::new(), body: None, wrong: None }
    }

    pub fn get(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::GET, path)
    }

    pub fn post(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::POST, path)
    }

    pub fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.runtime.block_on(work)
    }

    /// The URL as the user wrote it.
    pub fn place(&self) -> &str {
        self.0.base.as_str().trim_end_matches('/')
    }

    /// The error for a missing answer, with what to do.
    pub fn unanswered(&self, error: &reqwest::Error) -> Error {
        if self.0.socket.is_some() {
            return match error.is_connect() {
                true => {
                    Error::busy(code::OWNER_GONE, "the process that owned the store has ended; try again")
                }
                false => Error::busy(
                    code::OWNER_LOST,
                    "the process that owned the store ended before it answered; check whether it was done, and try again if not",
                ),
            };
        }
        let (place, cause) = (self.place(), chain(error));
        let has = |words: &[&str]| words.iter().any(|word| cause.contains(word));
        let text = if has(&["refused"]) {
            format!("nothing listens at {place}; start it with `everturn serve`, or check --url")
        } else if has(&["CaUsedAsEndEntity"]) {
            format!("the certificate of {place} is that of a CA, not of a server; create it with CA:FALSE")
        } else if has(&["certificate"]) {
            format!(
                "the certificate of {place} is not trusted: {}; put the certificate of its issuer in a file and set SSL_CERT_FILE to that file",
                root(error)
            )
        } else if has(&["InvalidContentType", "corrupt message", "InvalidMessage"]) {
            format!("{place} does not speak TLS; write http:// instead of https://")
        } else if has(&["dns", "lookup"]) {
            format!("the host name in {place} cannot be resolved; check --url")
        } else if error.is_timeout() {
            format!(
                "{place} does not answer; check --url, or whether something between here and there blocks it"
            )
        } else if error.is_connect() {
            format!("no connection to {place}: {}; check --url", root(error))
        } else if has(&["invalid HTTP", "parse"]) {
            format!("{place} does not answer in HTTP: {}; if it speaks TLS, write https://", root(error))
        } else {
            format!("{place} ended the connection before its answer was complete: {}", root(error))
        };
        Error::busy("server.unreachable", text)
    }

    /// The error in a server's answer.
    pub fn refused(&self, status: StatusCode, text: &str) -> Error {
        let Some(problem) = Problem::read(text) else {
            let place = self.place();
            let text = format!("{place} answers {status}, but not like an Everturn server; check --url");
            return Error::invalid("server.foreign", text);
        };
        if status == StatusCode::UNAUTHORIZED {
            let text = match self.0.key {
                None => {
                    "the server requires a key; put it in EVERTURN_KEY, or in a file named with --key-file"
                }
                Some(_) => "the server does not accept this key; check EVERTURN_KEY or the --key-file",
            };
            return Error::invalid("access.unauthorized", format!("{text} ({})", problem.detail));
        }
        if problem.code.starts_with("route.") {
            let text = format!("{}; check --url, and that both are the same version", problem.detail);
            return Error::invalid("server.foreign", text);
        }
        problem.error(status)
    }
}

/// Parses and checks a URL.
fn parse(text: &str) -> Result<Url, Error> {
    let wrong = |what: &str| {
        Error::invalid(
            "url.malformed",
            format!("--url {:?} {what}, such as http://127.0.0.1:7317", clip(text)),
        )
    };
    let url = Url::parse(text).map_err(|_| wrong("is not a URL; write one"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong(
            "contains a user name or password; put the key in EVERTURN_KEY and give only the address",
        ));
    }
    Ok(url)
}

pub struct Request<'a> {
    server: &'a Server,
    method: Method,
    url: Url,
    headers: Vec<(&'static str, HeaderValue)>,
    body: Option<Body>,
    wrong: Option<Error>,
}

impl Request<'_> {
    pub fn query(mut self, name: &str, value: impl ToString) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    /// Adds a query parameter, if there is a value.
    pub fn query_some(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Adds a header, if there is a value.
    pub fn header(mut self, name: &'static str, value: Option<&str>) -> Self {
        if let Some(text) = value {
            match HeaderValue::from_bytes(text.as_bytes()) {
                Ok(value) => self.headers.push((name, value)),
                // A header cannot hold characters that are not allowed in a name.
                Err(_) => self.wrong = check_name(&name.replace('-', " "), text).err(),
            }
        }
        self
    }

    pub fn json(mut self, body: String) -> Self {
        self.headers.push((CONTENT_TYPE.as_str(), HeaderValue::from_static("application/json")));
        self.body = Some(body.into());
        self
    }

    /// Sets a body as it is.
    pub fn body(mut self, body: Body) -> Self {
        self.body = Some(body);
        self
    }

    /// Requests a live stream instead of a page.
    pub fn live(mut self) -> Self {
        self.headers.push((ACCEPT.as_str(), HeaderValue::from_static("text/event-stream")));
        self
    }

    /// Sends it; returns the answer if it is a success.
    pub async fn send(self) -> Result<Response, Error> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let Server(inner) = self.server;
        let mut request = inner.client.request(self.method, self.url);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        if let Some(key) = &inner.key {
            request = request.header(AUTHORIZATION, key);
        }
        if let Some(body) = self.body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(|e| self.server.unanswered(&e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|e| self.server.unanswered(&e))?;
        Err(self.server.refused(status, &text))
    }

    /// Sends it and returns the text of the answer.
    pub fn text(self) -> Result<String, Error> {
        let server = self.server.clone();
        server.wait(async { self.send().await?.text().await.map_err(|e| server.unanswered(&e)) })
    }

    /// Sends it and parses the answer.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, Error> {
        let server = self.server;
        server.read(&self.text()?)
    }
}

impl Server {
    /// Parses the text of an answer.
    pub fn read<T: DeserializeOwned>(&self, text: &str) -> Result<T, Error> {
        serde_json::from_str(text).map_err(|e| {
            let place = self.place();
            let text = format!(
                "{place} does not answer as this version expects ({e}); check --url, and that both are the same version"
            );
            Error::invalid("server.foreign", text)
        })
    }
}

/// The body of a server's error.
#[derive(serde::Deserialize)]
pub struct Problem {
    status: u16,
    code: String,
    detail: String,
}

impl Problem {
    /// Parses one; `None` if it is something else.
    pub fn read(text: &str) -> Option<Problem> {
        serde_json::from_str(text).ok()
    }

    /// The error as a local store would return it.
    pub fn into_error(self) -> Error {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.error(status)
    }

    fn error(self, status: StatusCode) -> Error {
        // Codes live as long as the program; few arrive before it ends.
        let detail = ErrorDetail { code: self.code.leak(), text: in_commands(&self.detail) };
        match status.as_u16() {
            403 => Error::Forbidden(detail),
            404 => Error::NotFound(detail),
            409 | 412 => Error::Conflict(detail),
            413 => Error::TooLarge(detail),
            429 | 503 => Error::Busy(detail),
            400..500 => Error::Invalid(detail),
            _ => Error::Internal(detail),
        }
    }
}

/// The error with all its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| format!("{error} {error:?}")).collect::<Vec<_>>().join(" ")
}

/// The first cause.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}
