//! A server on a free port, in this process, that ends with the test.

use everturn_engine::{Everturn, Options, script::Metered};
use everturn_server::{App, Config, Server, serve};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Scripts are limited by the memory they take, which only this counts.
#[global_allocator]
static ALLOCATOR: Metered<std::alloc::System> = Metered(std::alloc::System);

pub struct Stage {
    /// `http://127.0.0.1:PORT`
    pub url: String,
    pub http: reqwest::Client,
    /// Key sent with every request.
    bearer: Option<String>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
}

/// Listens on any free port of this machine, and requires no key.
pub fn config() -> Config {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Config { listen, keys_required: Some(false), ..Config::default() }
}

impl Stage {
    /// Over an empty store in memory.
    pub async fn new() -> Stage {
        Stage::over(Everturn::open_with("memory:", Options::default()).unwrap(), config()).await
    }

    pub async fn over(store: Everturn, config: Config) -> Stage {
        Stage::with(App::new(store, config)).await
    }

    /// With the given shared state.
    pub async fn with(app: App) -> Stage {
        let server = Server::bind(app).await.unwrap();
        let url = format!("http://{}", server.address);
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let stopped = async move { drop(stopped.await) };
            serve(server, stopped).await.unwrap();
        });
        // Fails only if another test of this process was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Stage { url, http, bearer: None, stop: Some(stop), running: Some(running) }
    }

    /// A request to a path.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.bearer {
            Some(words) => request.bearer_auth(words),
            None => request,
        }
    }

    /// Sends this key with every request from now on.
    pub fn bearer(&mut self, words: &str) {
        self.bearer = Some(words.into());
    }

    /// Posts JSON, expects this status and returns the answer.
    pub async fn post(&self, path: &str, body: &Value, status: u16) -> Value {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        answer(request.body(body.to_string()), status).await
    }

    /// Gets JSON, expects this status.
    pub async fn get(&self, path: &str, status: u16) -> Value {
        answer(self.request(Method::GET, path), status).await
    }

    /// Sends JSON with any method, expects this status.
    pub async fn send(&self, method: Method, path: &str, body: &Value, status: u16) -> Value {
        let request = self.request(method, path).header("content-type", "application/json");
        answer(request.body(body.to_string()), status).await
    }

    /// Posts text as it is, as JSON.
    pub async fn post_text(&self, path: &str, text: &str, status: u16) -> Value {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        answer(request.body(text.to_string()), status).await
    }

    pub async fn conversation(&self) -> String {
        let made = self.post("/api/v1/conversations", &serde_json::json!({}), 201).await;
        made["id"].as_str().unwrap().to_string()
    }

    /// Appends a user turn, and returns it.
    pub async fn say(&self, conversation: &str, text: &str) -> Value {
        let body = serde_json::json!({"turns": [{"role": "user", "content": text}]});
        let path = format!("/api/v1/conversations/{conversation}/turns");
        self.post(&path, &body, 201).await["turns"][0].take()
    }

    /// Stops the server and waits for its end.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        self.running.take().unwrap().await.unwrap();
    }
}

/// Sends a request, expects this status and returns the JSON.
pub async fn answer(request: RequestBuilder, status: u16) -> Value {
    let response = request.send().await.unwrap();
    let got = response.status();
    let text = response.text().await.unwrap();
    assert_eq!(got, StatusCode::from_u16(status).unwrap(), "{text}");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}
