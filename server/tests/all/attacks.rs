//! One client that takes all it can, beside another that is still served.

use crate::stage::{Stage, answer, config};
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewKey, NewTurn, Options};
use everturn_server::{Config, Limits};
use reqwest::Method;
use serde_json::{Value, json};
use std::io::ErrorKind::WouldBlock;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A server with a key of each of two tenants.
struct Two {
    stage: Stage,
    store: Everturn,
    greedy: String,
    modest: String,
}

impl Two {
    async fn with(limits: Limits) -> Two {
        let options = Options { index: false, auto_compaction: false, ..Options::default() };
        let store = Everturn::open_with("memory:", options).unwrap();
        let key = |tenant: &str| {
            let new = NewKey::new(tenant, KeyRole::Admin);
            store.keys().create(new).unwrap().1
        };
        let (greedy, modest) = (key("greedy"), key("modest"));
        let config = Config { keys_required: None, limits, ..config() };
        Two { stage: Stage::over(store.clone(), config).await, store, greedy, modest }
    }

    /// A connection on which this has been sent.
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.stage.url.trim_start_matches("http://")).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// The head of a request with a key and a body of this length.
    fn head(&self, request: &str, key: &str, length: usize) -> String {
        format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    }

    /// The other tenant creates a conversation, appends to it and reads it.
    async fn modest_is_served(&self) {
        let ask = |method, path: &str, body: Value| {
            let request = self.stage.request(method, path).bearer_auth(&self.modest);
            request.header("content-type", "application/json").body(body.to_string())
        };
        let served = async {
            let made = answer(ask(Method::POST, "/api/v1/conversations", json!({})), 201).await;
            let turns = format!("/api/v1/conversations/{}/turns", made["id"].as_str().unwrap());
            let said = json!({"turns": [{"role": "user", "content": "hello"}]});
            answer(ask(Method::POST, &turns, said), 201).await;
            let transcript = turns.replace("/turns", "/transcript");
            answer(ask(Method::GET, &transcript, json!({})), 200).await;
        };
        timeout(Duration::from_secs(5), served).await.expect("the other tenant is served");
    }
}

/// Everything that is sent on a connection until it ends.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end as well.
    let _ = timeout(Duration::from_secs(30), stream.read_to_end(&mut text)).await.expect("it ends");
    String::from_utf8_lossy(&text).into_owned()
}

/// The body of an answer on a connection that stays open.
async fn said(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = async {
        loop {
            let seen = String::from_utf8_lossy(&text).into_owned();
            if seen.contains("\r\n\r\n{") && seen.ends_with('}') {
                return seen;
            }
            assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "{seen}");
        }
    };
    timeout(Duration::from_secs(30), read).await.expect("an answer")
}

/// A client that closed its side once the request was sent got no answer, though what it asked for was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_side_after_the_request_gets_its_answer() {
    let two = Two::with(Limits::default()).await;
    let body = json!({"title": "half closed"}).to_string();
    for (request, body, status) in
        [("POST /api/v1/conversations", body.as_str(), "201"), ("GET /api/v1/conversations", "", "200")]
    {
        let head = two.head(request, &two.modest, body.len());
        let mut stream = two.send(&format!("{head}{body}")).await;
        stream.shutdown().await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains("half closed"), "{answer}");
    }
    // A request that is not whole ends at once.
    let mut stream = two.send(&two.head("POST /api/v1/conversations", &two.modest, 100)).await;
    stream.shutdown().await.unwrap();
    assert!(!rest(&mut stream).await.contains(" 201 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_headers_lock_nobody_out() {
    let header_timeout = Duration::from_secs(3);
    for (total, per_address) in [(16, 1000), (1000, 16)] {
        let limits = Limits {
            connections: total,
            connections_per_address: per_address,
            header_timeout,
            ..Limits::default()
        };
        let two = Two::with(limits).await;
        let mut half = Vec::new();
        for _ in 0..50 {
            half.push(two.send("GET /api/v1/conversations HTTP/1.1\r\nhost: loc").await);
        }
        // The server has seen them all once each that found no room has replaced an older one.
        let ended = |stream: &&TcpStream| !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == WouldBlock);
        while half.iter().filter(ended).count() < 50 - 16 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        two.modest_is_served().await;
        // Those that are still open time out.
        for stream in &mut half {
            assert_eq!(rest(stream).await, "");
        }
        two.stage.stop().await;
    }
}

/// A connection that sends nothing at all, or a byte now and then, is not a request either.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_end() {
    let limits = Limits { header_timeout: Duration::from_millis(500), ..Limits::default() };
    let two = Two::with(limits).await;
    let mut silent = two.send("").await;
    assert_eq!(rest(&mut silent).await, "");
    let (began, mut drip) = (Instant::now(), two.send("GET ").await);
    while drip.write_all(b"/").await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(30), "it goes on for ever");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    two.stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stalls_is_ended_and_one_that_is_slow_is_not() {
    let limits = Limits { body_timeout: Duration::from_secs(1), ..Limits::default() };
    let two = Two::with(limits).await;
    for request in ["POST /api/v1/conversations", "POST /api/v1/import", "POST /mcp"] {
        let mut stalled = two.send(&two.head(request, &two.greedy, 100)).await;
        stalled.write_all(b"{\"title\"").await.unwrap();
        let said = said(&mut stalled).await;
        assert!(said.starts_with("HTTP/1.1 408"), "{request}: {said}");
        assert!(said.contains("body.stalled") && said.contains("limits.body_timeout_s"), "{request}: {said}");
    }
    let body = r#"{"title": "slow but steady"}"#;
    let mut slow = two.send(&two.head("POST /api/v1/conversations", &two.greedy, body.len())).await;
    for byte in body.as_bytes() {
        slow.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    assert!(said(&mut slow).await.starts_with("HTTP/1.1 201"));
    two.stage.stop().await;
}

/// Each waits for its client on a thread of its own.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_imports_take_no_thread_of_others() {
    let limits = Limits {
        tenant_large_operations: 2,
        large_operations: 3,
        wait: Duration::from_millis(300),
        body_timeout: Duration::from_secs(60),
        ..Limits::default()
    };
    let two = Two::with(limits).await;
    let mut imports = Vec::new();
    for _ in 0..6 {
        let mut import = two.send(&two.head("POST /api/v1/import", &two.greedy, 1000)).await;
        import.write_all(b"{\"_type\"").await.unwrap();
        imports.push(import);
    }
    let mut refused = 0;
    for import in &mut imports {
        if let Ok(said) = timeout(Duration::from_secs(2), said(import)).await {
            assert!(said.starts_with("HTTP/1.1 503") && said.contains("retry-after"), "{said}");
            assert!(said.contains("limits.tenant_large_operations is 2"), "{said}");
            refused += 1;
        }
    }
    assert_eq!(refused, 4, "two run");
    two.modest_is_served().await;
    drop(imports);
    two.stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_limits_over_all_its_keys() {
    let limits = Limits { tenant_concurrent: 2, ..Limits::default() };
    let two = Two::with(limits).await;
    let tenant = two.store.tenant("greedy").unwrap();
    let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    let new = NewKey::new("greedy", KeyRole::Admin);
    let other = two.store.keys().create(new).unwrap().1;
    let path = format!("/api/v1/conversations/{id}/events");
    let follow = |key: &str| {
        let request = two.stage.request(Method::GET, &path).bearer_auth(key);
        request.header("accept", "text/event-stream").send()
    };
    let (_one, _two) = (follow(&two.greedy).await.unwrap(), follow(&other).await.unwrap());
    let third = follow(&other).await.unwrap();
    assert_eq!(third.status(), 429);
    assert!(third.headers().contains_key("retry-after"));
    assert!(third.text().await.unwrap().contains("access.tenant_concurrency"));
    two.modest_is_served().await;
    two.stage.stop().await;

    let limits = Limits { tenant_requests_per_second: 1, tenant_burst: 4, ..Limits::default() };
    let two = Two::with(limits).await;
    let list = |key: &str| two.stage.request(Method::GET, "/api/v1/conversations").bearer_auth(key).send();
    let mut refused = None;
    for _ in 0..10 {
        let response = list(&two.greedy).await.unwrap();
        if response.status() == 429 {
            refused = Some(response.text().await.unwrap());
            break;
        }
    }
    assert!(refused.expect("ten at once are too many").contains("access.tenant_rate"));
    assert_eq!(list(&two.modest).await.unwrap().status(), 200);
    two.stage.stop().await;
}

/// Unread answers stay in memory: above a limit the tenant's next requests wait until they are read, whether
/// the limit is the tenant's own or that of all together.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_read_stop_their_own_tenant_only() {
    let limits = Limits {
        wait: Duration::from_millis(300),
        body_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let own = Limits { tenant_unsent_bytes: 1024 * 1024, ..limits };
    let of_all = Limits { unsent_bytes: 1024 * 1024, ..limits };
    for (limits, request) in [(own, "GET /turns"), (of_all, "GET /turns"), (own, "POST /project")] {
        let two = Two::with(limits).await;
        let tenant = two.store.tenant("greedy").unwrap();
        let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
        // More than the buffers of a socket hold.
        let large = NewTurn::user(&"x".repeat(12 * 1024 * 1024));
        tenant.conversation(id).append(large).wait().unwrap();
        let request = request.replace(" /", &format!(" /api/v1/conversations/{id}/"));
        let ask = format!("{}{{}}", two.head(&request, &two.greedy, 2));
        let mut unread = two.send(&ask).await;
        unread.readable().await.unwrap();
        let mut next = two.send(&ask).await;
        let said = said(&mut next).await;
        assert!(said.starts_with("HTTP/1.1 503") && said.contains("tenant.busy"), "{request}: {said}");
        two.modest_is_served().await;
        // A client that does not read at all is disconnected, which makes room.
        let again = async {
            loop {
                let turns = format!("/api/v1/conversations/{id}/turns");
                let request = two.stage.request(Method::GET, &turns).bearer_auth(&two.greedy);
                if request.send().await.unwrap().status() == 200 {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(30), again).await.expect("the tenant is served again");
        assert!(rest(&mut unread).await.len() < 12 * 1024 * 1024);
        two.stage.stop().await;
    }
}

/// The same for answers requested before the first one was there.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_asked_for_at_once_stop_their_tenant_too() {
    let limits = Limits {
        tenant_unsent_bytes: 1024 * 1024,
        tenant_threads: 1,
        tenant_large_operations: 1,
        wait: Duration::from_secs(1),
        ..Limits::default()
    };
    let two = Two::with(limits).await;
    let tenant = two.store.tenant("greedy").unwrap();
    let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    let large = NewTurn::user(&"x".repeat(12 * 1024 * 1024));
    tenant.conversation(id).append(large).wait().unwrap();
    for request in ["GET /turns", "POST /project"] {
        let request = request.replace(" /", &format!(" /api/v1/conversations/{id}/"));
        let ask = format!("{}{{}}", two.head(&request, &two.greedy, 2));
        let mut streams = Vec::new();
        for _ in 0..8 {
            streams.push(two.send(&ask).await);
        }
        let mut answered = 0;
        for stream in &mut streams {
            let mut status = [0; 12];
            stream.read_exact(&mut status).await.unwrap();
            answered += usize::from(&status == b"HTTP/1.1 200");
        }
        assert_eq!(answered, 1, "{request}");
        two.modest_is_served().await;
    }
    two.stage.stop().await;
}

/// A thousand large turns are several pages, each of which says where the next one begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_bounded_in_bytes() {
    let two = Two::with(Limits::default()).await;
    let tenant = two.store.tenant("greedy").unwrap();
    let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    for n in 0..20 {
        let text = format!("{n} {}", "x".repeat(512 * 1024));
        tenant.conversation(id).append(NewTurn::user(&text)).wait().unwrap();
    }
    for (path, forward, fields) in [
        ("turns", "after", ""),
        ("turns", "before", "&order=desc"),
        ("turns", "after", "&include_events=true"),
        ("turns", "before", "&include_events=true&order=desc"),
        ("events", "from", ""),
    ] {
        let (mut seen, mut next, mut pages) = (Vec::new(), None::<String>, 0);
        loop {
            let place = next.map_or(String::new(), |next| format!("&{forward}={next}"));
            let path = format!("/api/v1/conversations/{id}/{path}?limit=1000{fields}{place}");
            let text = two.stage.request(Method::GET, &path).bearer_auth(&two.greedy).send().await.unwrap();
            let text = text.text().await.unwrap();
            assert!(text.len() < 10 * 1024 * 1024, "{path}: {}", text.len());
            let page: Value = serde_json::from_str(&text).unwrap();
            seen.extend(page["data"].as_array().unwrap().iter().map(|entry| entry["seq"].as_u64().unwrap()));
            pages += 1;
            match page["next"].as_str() {
                Some(place) => next = Some(place.to_string()),
                None => break,
            }
        }
        if forward == "before" {
            seen.reverse();
        }
        let first = if path == "events" || fields.contains("include_events") { 1 } else { 2 };
        assert_eq!(seen, (first..=21).collect::<Vec<u64>>(), "{path}{fields}");
        assert!(pages >= 2, "{path}{fields}: {pages}");
    }
    two.stage.stop().await;
}

/// A view is made from a conversation that is held in memory. A file, even one that is a single value, is
/// streamed.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_bounded_in_bytes_and_an_export_is_not() {
    let options = Options { whole_bytes_max: 1024 * 1024, ..Options::default() };
    let store = Everturn::open_with("memory:", options).unwrap();
    let tenant = store.tenant("default").unwrap();
    let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    for _ in 0..3 {
        tenant.conversation(id).append(NewTurn::user(&"x".repeat(400_000))).wait().unwrap();
    }
    let stage = Stage::over(store, config()).await;
    let refused = stage.post(&format!("/api/v1/conversations/{id}/project"), &json!({}), 413).await;
    assert_eq!(refused["code"], "limit.exceeded");
    let detail = refused["detail"].as_str().unwrap();
    assert!(
        detail.contains("WHOLE_BYTES_MAX is 1048576, this is 12") && detail.contains("export"),
        "{detail}"
    );
    for path in ["transcript", "export?format=transcript", "export"] {
        let file = stage.request(Method::GET, &format!("/api/v1/conversations/{id}/{path}"));
        assert!(file.send().await.unwrap().text().await.unwrap().len() > 1_200_000, "{path}");
    }
    stage.stop().await;
}
