//! A server's store, over its REST API.

mod follow;
mod http;
mod transfer;

use super::Updates;
use crate::output::Failure;
use everturn_api::encode::EncodedRequest;
use everturn_api::recall::Recall;
use everturn_api::{About, Method, Operation};
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::id::ConversationId;
use everturn_engine::{Format, ImportOptions, Imported, Recalled, Swept};
use everturn_server::socket::{RequestWithModel, RequestedModel};
use follow::RemoteUpdates;
use http::Server;
use serde_json::{Map, Value};
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum time that recall waits for recent turns to be indexed.
const INDEX_PATIENCE: Duration = Duration::from_secs(2);
const INDEX_PAUSE: Duration = Duration::from_millis(100);

/// A tenant of a server's store, determined by the key.
pub struct Remote {
    server: Server,
}

impl Remote {
    /// The store of the server at this URL. Sends no request yet.
    pub fn new(url: &str, key: Option<&str>) -> Result<Remote, Error> {
        Ok(Remote { server: Server::new(url, key)? })
    }

    /// The store of the process that listens on this socket. Sends no request yet.
    pub fn through(socket: &Path, tenant: &str) -> Result<Remote, Error> {
        Ok(Remote { server: Server::through(socket, tenant)? })
    }

    /// Whether something listens on the socket of an owner.
    pub fn is_there(&self) -> bool {
        self.server.is_there()
    }

    /// Calls a tool of the owner, and returns its answer byte for byte.
    pub fn tool(&self, name: &str, arguments: &str) -> Result<Vec<u8>, Error> {
        let request = self.server.over_socket(&format!("/tools/{name}"));
        Ok(request.json(arguments.to_string()).text()?.into_bytes())
    }

    /// Has the owner run an operation with this model.
    pub fn call_asking<O: Operation>(
        &self,
        operation: &O,
        model: RequestedModel,
    ) -> Result<O::Answer, Error> {
        let unwritten = |e| Error::internal("request.json", format!("a request cannot be written: {e}"));
        let arguments = serde_json::value::to_raw_value(operation).map_err(unwritten)?;
        let asking = serde_json::to_string(&RequestWithModel { model, arguments }).map_err(unwritten)?;
        let asked = self.server.over_socket(&format!("/asking/{}", O::ABOUT.name)).json(asking).text();
        self.server.read(&asked?)
    }

    /// Fails if no server answers at the URL.
    pub fn check(&self) -> Result<(), Error> {
        self.server.health().text().map(drop)
    }

    /// Address of the page that the owner serves.
    pub fn page(&self) -> Result<Option<String>, Error> {
        self.server.over_socket("/page").read()
    }

    /// Has the owner sweep the whole store.
    pub fn sweep(&self) -> Result<Swept, Error> {
        self.server.over_socket("/sweep").read()
    }

    pub fn call<O: Operation>(&self, operation: &O) -> Result<O::Answer, Error> {
        let EncodedRequest { path, query, idempotency_key, if_match, body } = EncodedRequest::new(operation)?;
        // `.` and `..` cannot be path segments of a URL, even escaped.
        if let Some(part) = path.iter().find(|part| matches!(part.as_str(), "" | "." | "..")) {
            let text = format!("something named {part:?} cannot be reached over HTTP; choose another name");
            return Err(Error::invalid("url.name", text));
        }
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let mut request = self.server.request(method(O::ABOUT.method), &path);
        for (name, value) in query {
            request = request.query(&name, value);
        }
        let version = if_match.map(|seq| format!("\"{seq}\""));
        request = request
            .header("idempotency-key", idempotency_key.as_deref())
            .header("if-match", version.as_deref());
        if let Some(body) = body {
            request = request.json(body);
        }
        request.read()
    }

    /// Calls an operation by its description, with untyped fields.
    pub fn ask(&self, about: &About, mut fields: Map<String, Value>) -> Result<Value, Error> {
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let part = |part: &str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(field) => text(fields.remove(field).unwrap_or_default()),
            None => part.to_string(),
        };
        let path: Vec<String> = about.path.split('/').filter(|part| !part.is_empty()).map(part).collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let mut request = self.server.request(method(about.method), &path);
        if about.method.has_body() {
            request = request.json(Value::Object(fields).to_string());
        } else {
            for (name, value) in fields {
                request = request.query(&name, text(value));
            }
        }
        request.read()
    }

    /// Recalls. A server indexes recent turns within a second.
    pub fn recall(&self, recall: Recall) -> Result<Recalled, Error> {
        let until = Instant::now() + INDEX_PATIENCE;
        loop {
            let recalled = self.call(&recall)?;
            if recalled.behind.events == 0 || Instant::now() > until {
                return Ok(recalled);
            }
            std::thread::sleep(INDEX_PAUSE);
        }
    }

    /// Follows a conversation, across restarts of the server.
    pub fn follow(&self, id: ConversationId, from_seq: u64) -> Result<Box<dyn Updates>, Error> {
        Ok(Box::new(RemoteUpdates::new(self.server.clone(), id, from_seq)?))
    }

    pub fn export(
        &self,
        id: ConversationId,
        format: Format,
        redacted: bool,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let export = self.server.get(&["conversations", &id.to_string(), "export"]).query("format", format);
        let request = if redacted { export.query("redacted", true) } else { export };
        transfer::export(&self.server, request, out, progress)
    }

    pub fn import(
        &self,
        options: ImportOptions<'_>,
        file: &mut (dyn BufRead + Send),
    ) -> Result<Imported, Error> {
        transfer::import(&self.server, options, file)
    }

    pub fn attach(
        &self,
        id: ConversationId,
        name: &str,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        let request = self.server.post(&["assets"]).query("conversation", id).query("name", name);
        request.header("content-type", Some(mime_type)).body(bytes.into()).read()
    }
}

fn method(method: Method) -> reqwest::Method {
    match method {
        Method::Get => reqwest::Method::GET,
        Method::Post => reqwest::Method::POST,
        Method::Put => reqwest::Method::PUT,
        Method::Patch => reqwest::Method::PATCH,
        Method::Delete => reqwest::Method::DELETE,
    }
}
