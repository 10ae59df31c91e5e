//! Limits, foreign origins, exposed addresses, certificates.

use crate::stage::{Stage, answer, config};
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewKey};
use everturn_server::{App, Config, Limits, Server, Tls, serve};
use reqwest::Method;
use serde_json::json;
use std::net::SocketAddr;

fn store_with_key() -> (Everturn, String) {
    let store = Everturn::open("memory:").unwrap();
    let new = NewKey::new("acme", KeyRole::Admin);
    let (_, words) = store.keys().create(new).unwrap();
    (store, words)
}

fn limited(limits: Limits) -> Config {
    Config { keys_required: None, limits, ..config() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_ask_so_often() {
    let (store, words) = store_with_key();
    let (_, other) = {
        let new = NewKey::new("acme", KeyRole::Reader);
        store.keys().create(new).unwrap()
    };
    let limits = Limits { requests_per_second: 1, burst: 3, ..Limits::default() };
    let stage = Stage::over(store, limited(limits)).await;
    let ask = |words: &str| stage.request(Method::GET, "/api/v1/conversations").bearer_auth(words).send();
    let mut refused = None;
    for _ in 0..10 {
        let response = ask(&words).await.unwrap();
        if response.status() == 429 {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("ten at once are too many");
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=2).contains(&wait), "{wait}");
    assert!(refused.text().await.unwrap().contains("access.rate"));
    assert_eq!(ask(&other).await.unwrap().status(), 200, "another key is not affected");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_have_so_many_streams() {
    let (store, words) = store_with_key();
    let tenant = store.tenant("acme").unwrap();
    let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    let stage = Stage::over(store, limited(Limits { concurrent: 2, ..Limits::default() })).await;
    let path = format!("/api/v1/conversations/{id}/events");
    let follow = || {
        let request = stage.request(Method::GET, &path).bearer_auth(&words);
        request.header("accept", "text/event-stream").send()
    };
    let (first, second) = (follow().await.unwrap(), follow().await.unwrap());
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    let third = follow().await.unwrap();
    assert_eq!(third.status(), 429);
    assert!(third.headers().contains_key("retry-after"));
    assert!(third.text().await.unwrap().contains("access.concurrency"));
    drop(first);
    // The server notices a disconnect when it next sends something.
    loop {
        tenant.conversation(id).append(everturn_engine::NewTurn::user("x")).wait().unwrap();
        if follow().await.unwrap().status() == 200 {
            break;
        }
    }
    drop(second);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_are_tried_so_often_only() {
    let (store, words) = store_with_key();
    let stage = Stage::over(store, limited(Limits { failures_per_minute: 3, ..Limits::default() })).await;
    let ask = |words: &str| stage.request(Method::GET, "/api/v1/conversations").bearer_auth(words).send();
    assert_eq!(ask(&words).await.unwrap().status(), 200);
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(ask("et_wrong").await.unwrap().status().as_u16());
    }
    assert_eq!(seen, [401, 401, 401, 401, 429, 429]);
    assert_eq!(ask(&words).await.unwrap().status(), 200, "a key that was good a moment ago still is");
    stage.stop().await;
}

/// Behind a proxy every request comes from its address: clients with wrong keys are distinguished by the
/// address that the proxy added.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_its_word_counts_for_who_tries_wrong_keys() {
    for (behind_tls_proxy, other) in [(true, 401), (false, 429)] {
        let limits = Limits { failures_per_minute: 1, ..Limits::default() };
        let config = Config { behind_tls_proxy, ..limited(limits) };
        let stage = Stage::over(store_with_key().0, config).await;
        let ask = async |forwarded: &'static str| {
            let request = stage.request(Method::GET, "/api/v1/conversations").bearer_auth("et_wrong");
            request.header("x-forwarded-for", forwarded).send().await.unwrap().status().as_u16()
        };
        // Addresses before the last one are supplied by the client.
        let tries = [ask("10.0.0.9, 10.0.0.1").await, ask("10.0.0.8, 10.0.0.1").await, ask("10.0.0.1").await];
        assert_eq!(tries, [401, 401, 429]);
        assert_eq!(ask("10.0.0.1, 10.0.0.2").await, other, "{behind_tls_proxy}");
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_cannot_use_a_server_without_keys() {
    let store = Everturn::open("memory:").unwrap();
    let cors_origins = vec!["https://app.example".to_string()];
    let stage = Stage::over(store, Config { keys_required: None, cors_origins, ..config() }).await;
    let ask = |name: &'static str, value: &'static str| {
        stage.request(Method::GET, "/api/v1/conversations").header(name, value)
    };
    for host in ["localhost", "localhost:7317", "127.0.0.1:1", "[::1]:80"] {
        answer(ask("host", host), 200).await;
    }
    for host in ["evil.example", "evil.example:7317", "127.0.0.1.evil.example"] {
        assert_eq!(answer(ask("host", host), 403).await["code"], "access.host", "{host}");
    }
    for origin in ["http://localhost:3000", "http://127.0.0.1:7317", "https://app.example"] {
        answer(ask("origin", origin), 200).await;
    }
    for origin in ["https://evil.example", "null", "https://app.example.evil.example"] {
        assert_eq!(answer(ask("origin", origin), 403).await["code"], "access.origin", "{origin}");
    }
    // Health checks accept any host name.
    let health = stage.request(Method::GET, "/healthz").header("host", "everturn.internal");
    assert_eq!(health.send().await.unwrap().status(), 200);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_are_told_who_may_ask() {
    let preflight = |stage: &Stage, origin: &'static str| {
        let request = stage.request(Method::OPTIONS, "/api/v1/conversations").header("origin", origin);
        let request = request.header("access-control-request-method", "POST");
        request.header("access-control-request-headers", "authorization").send()
    };
    let (store, _) = store_with_key();
    let plain = Stage::over(store, limited(Limits::default())).await;
    let silent = preflight(&plain, "https://app.example").await.unwrap();
    assert!(!silent.headers().contains_key("access-control-allow-origin"));
    plain.stop().await;
    let (store, _) = store_with_key();
    let cors_origins = vec!["https://app.example".to_string()];
    let stage = Stage::over(store, Config { cors_origins, ..limited(Limits::default()) }).await;
    let allowed = preflight(&stage, "https://app.example").await.unwrap();
    assert_eq!(allowed.status(), 200);
    assert_eq!(allowed.headers()["access-control-allow-origin"], "https://app.example");
    assert_eq!(allowed.headers()["access-control-allow-headers"], "authorization");
    let refused = preflight(&stage, "https://evil.example").await.unwrap();
    assert!(!refused.headers().contains_key("access-control-allow-origin"));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_machines_need_a_key_and_tls() {
    let everywhere =
        || Config { listen: SocketAddr::from(([0, 0, 0, 0], 0)), keys_required: None, ..config() };
    let refused = async |store: Everturn, config: Config| match Server::bind(App::new(store, config)).await {
        Ok(server) => panic!("it listens on {}", server.address),
        Err(error) => error.text().to_string(),
    };
    let said = refused(Everturn::open("memory:").unwrap(), everywhere()).await;
    assert!(said.contains("everturn keys create") && said.contains("--behind-tls-proxy"), "{said}");
    let said = refused(store_with_key().0, everywhere()).await;
    assert!(!said.contains("everturn keys create") && said.contains("--tls-cert"), "{said}");
    let proxied = || Config { behind_tls_proxy: true, ..everywhere() };
    let said = refused(Everturn::open("memory:").unwrap(), proxied()).await;
    assert!(said.contains("everturn keys create") && !said.contains("--tls-cert"), "{said}");
    let open = Config { keys_required: Some(false), ..proxied() };
    assert!(refused(store_with_key().0, open).await.contains("keys.required"));
    let server = Server::bind(App::new(store_with_key().0, proxied())).await.unwrap();
    assert!(!server.open);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_answered_with() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
    let tls = Tls { cert: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
    std::fs::write(&tls.cert, made.cert.pem()).unwrap();
    std::fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
    let (store, words) = store_with_key();
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let config = Config { listen, tls: Some(tls.clone()), keys_required: None, ..config() };
    let server = Server::bind(App::new(store, config.clone())).await.unwrap();
    let url = format!("https://localhost:{}/api/v1/conversations", server.address.port());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(serve(server, async move { drop(stopped.await) }));
    let trusted = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([trusted]).build().unwrap();
    let response = client.post(&url).bearer_auth(&words).body("{}").send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert_eq!(response.json_text().await["tenant"], json!("acme"));
    // Renewed while the server runs: new connections get the new one.
    let renewed = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
    std::fs::write(&tls.cert, renewed.cert.pem()).unwrap();
    std::fs::write(&tls.key, renewed.signing_key.serialize_pem()).unwrap();
    let trusted = reqwest::Certificate::from_pem(renewed.cert.pem().as_bytes()).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([trusted]).build().unwrap();
    while client.get(&url).bearer_auth(&words).send().await.is_err() {}
    let strict = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    assert!(strict.get(&url).send().await.is_err(), "nobody vouches for it");
    drop(stop);
    running.await.unwrap().unwrap();
    std::fs::write(&tls.key, "not a key").unwrap();
    let broken = Server::bind(App::new(store_with_key().0, config)).await.err().expect("no key");
    assert!(broken.text().contains("key.pem"), "{broken}");
}

trait JsonText {
    async fn json_text(self) -> serde_json::Value;
}

impl JsonText for reqwest::Response {
    async fn json_text(self) -> serde_json::Value {
        serde_json::from_str(&self.text().await.unwrap()).unwrap()
    }
}
