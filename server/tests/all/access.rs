//! Permissions: every route of the API, tried by every role. The routes are those of the OpenAPI description: the table of
//! operations, and the routes that only stream.

use crate::live::Live;
use crate::mcp::{Client, last};
use crate::openapi::{document, operations};
use crate::stage::{Stage, config};
use crate::tokens::{self, SECRET, jwt_config};
use everturn_core::access::KeyRole;
use everturn_core::conversation::{Retention, Settings};
use everturn_core::id::{ConversationId, KeyId};
use everturn_core::time::Timestamp;
use everturn_engine::{
    ConversationHandle, Everturn, Format, NewFact, NewKey, NewStream, NewTurn, Options, Tenant,
};
use everturn_server::{Config, Limits};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A word of the other tenant that must never be seen.
const MARKER: &str = "xylophone";

/// The role that a route needs; other routes that change something need a writer, others a reader.
fn needed(method: &str, path: &str) -> KeyRole {
    const ADMIN: &[&str] = &[
        "DELETE /api/v1/conversations/{conversation}",
        "POST /api/v1/turns/{turn}/erase",
        "POST /api/v1/conversations/{conversation}/events/erase",
        "POST /api/v1/erase",
        "GET /api/v1/keys",
        "POST /api/v1/keys",
        "DELETE /api/v1/keys/{key}",
        "GET /api/v1/doctor",
        "POST /api/v1/doctor",
    ];
    const READER: &[&str] = &[
        "POST /api/v1/project",
        "POST /api/v1/recall",
        "POST /api/v1/conversations/{conversation}/recall",
        "POST /api/v1/conversations/{conversation}/context",
        "POST /api/v1/conversations/{conversation}/project",
        "POST /api/v1/conversations/{conversation}/summarize",
    ];
    const COUNTER: &[&str] = &[
        "GET /api/v1/conversations",
        "GET /api/v1/conversations/{conversation}",
        "GET /api/v1/events",
        "GET /api/v1/usage",
        "GET /api/v1/usage/tokens",
        "GET /api/v1/whoami",
    ];
    let place = format!("{method} {path}");
    match () {
        () if COUNTER.contains(&place.as_str()) => KeyRole::Counter,
        () if ADMIN.contains(&place.as_str()) => KeyRole::Admin,
        () if READER.contains(&place.as_str()) || method == "GET" => KeyRole::Reader,
        () => KeyRole::Writer,
    }
}

/// A new key and its id.
fn key(store: &Everturn, tenant: &str, role: KeyRole) -> (KeyId, String) {
    let new = NewKey::new(tenant, role);
    let (key, words) = store.keys().create(new).unwrap();
    (key.id, words)
}

/// Keys are required as soon as there is one.
pub fn asking() -> Config {
    let limits = Limits { failures_per_minute: 1_000_000, burst: 1_000_000, ..Limits::default() };
    Config { keys_required: None, limits, ..config() }
}

/// The objects of one tenant, by the variables of paths.
fn furnish(store: &Everturn, name: &str) -> (ConversationId, BTreeMap<&'static str, String>) {
    let tenant = store.tenant(name).unwrap();
    let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    let said = tenant.conversation(id).append(NewTurn::user(MARKER).by(MARKER)).wait().unwrap();
    let open = tenant.conversation(id).open(NewStream::default()).wait().unwrap();
    let asset = tenant
        .conversation(id)
        .assets()
        .add(Some(format!("{MARKER}.txt")), "text/plain", MARKER.into())
        .unwrap();
    tenant.conversation(id).open_turn(open.id).chunk(None, MARKER).unwrap();
    let [subject, predicate, object] = ["ana", "plays", MARKER].map(str::to_string);
    let fact = tenant
        .conversation(id)
        .facts()
        .add(NewFact { subject, predicate, object, ..NewFact::default() })
        .unwrap();
    let variables = BTreeMap::from([
        ("conversation", id.to_string()),
        ("turn", said.turns[0].id.to_string()),
        ("asset", asset.id.to_string()),
        ("fact", fact.id.to_string()),
        ("name", MARKER.into()),
        ("approval", MARKER.into()),
        ("call", MARKER.into()),
        ("seq", "1".into()),
        ("key", key(store, name, KeyRole::Reader).0.to_string()),
        ("generation", "gen_01JD0000000000000000000000".into()),
    ]);
    (id, variables)
}

/// Every operation of the description with its example, on the objects in `variables`.
pub fn requests(stage: &Stage, variables: &BTreeMap<&str, String>) -> Vec<(String, String, RequestBuilder)> {
    let document = document();
    let mut all = Vec::new();
    for (method, path, operation) in operations(&document) {
        let mut address = path.clone();
        for (name, value) in variables {
            address = address.replace(&format!("{{{name}}}"), value);
        }
        assert!(!address.contains('{'), "{path} has a variable that this test does not know");
        if path.starts_with("/api/v1/assets") && !path.contains('{') {
            address += &format!("?conversation={}", variables["conversation"]);
        } else if path.ends_with("/resolve") && !path.contains('{') {
            address += &format!("?name={}", variables["conversation"]);
        }
        let mut request = stage.request(method.parse().unwrap(), &address);
        if let Some(content) = operation["requestBody"]["content"].as_object() {
            request = match content.get("application/json") {
                Some(json) if !path.ends_with("/import") => request
                    .header("content-type", "application/json")
                    .body(example(&document, json).to_string()),
                _ => request.header("content-type", "application/jsonl").body("{}"),
            };
        }
        all.push((method, path, request));
    }
    for about in everturn_api::TABLE.iter().map(|row| &row.about) {
        let (method, path) = (about.method.as_str(), format!("/api/v1{}", about.path));
        let is_there = all.iter().any(|(m, p, _)| m == method && *p == path);
        assert!(is_there, "{method} {path} is in the table and not in the description");
    }
    assert!(all.len() > 45, "{}", all.len());
    all
}

/// The example of a body, or an empty one: permission is checked before it is read.
fn example(document: &Value, content: &Value) -> Value {
    let name = content["schema"]["$ref"].as_str().and_then(|name| name.rsplit('/').next());
    let of_schema = || document["components"]["schemas"][name?].get("example");
    content.get("example").or_else(of_schema).cloned().unwrap_or_else(|| json!({}))
}

/// The status and the text of an answer; for a stream only its beginning.
pub async fn ask(request: RequestBuilder, words: Option<&str>) -> (u16, String) {
    let request = match words {
        Some(words) => request.header("authorization", format!("Bearer {words}")),
        None => request,
    };
    let mut response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let streams = response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
    let text = match streams {
        true => response.chunk().await.unwrap().map(|text| String::from_utf8_lossy(&text).into_owned()),
        false => response.text().await.ok(),
    };
    (status, text.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_good_key_nothing_is_answered() {
    let store = Everturn::open("memory:").unwrap();
    let (_, good) = key(&store, "acme", KeyRole::Admin);
    let (_, variables) = furnish(&store, "acme");
    let (gone, revoked) = key(&store, "acme", KeyRole::Admin);
    store.keys().revoke("acme", gone).unwrap();
    let claims = json!({"tenant": "acme", "role": "admin", "sub": "eve"});
    let now = tokens::now();
    let bad = [
        ("a wrong key", good.replace(&good[good.len() - 4..], "0000")),
        ("a revoked key", revoked),
        ("no key at all", "et_".into()),
        ("nonsense", "hunter2".into()),
        ("an expired token", tokens::hs256(SECRET, &claims, Some(now - 3600))),
        ("a token without an end", tokens::hs256(SECRET, &claims, None)),
        ("a token of somebody else", tokens::hs256(&"x".repeat(32), &claims, Some(now + 3600))),
        ("an unsigned token", tokens::unsigned(&claims, now + 3600)),
        ("a token of another algorithm", tokens::hs384(SECRET, &claims, now + 3600)),
    ];
    let stage = Stage::over(store, Config { jwt: Some(jwt_config()), ..asking() }).await;
    for (method, path, request) in requests(&stage, &variables) {
        let copy = || request.try_clone().unwrap();
        let (status, text) = ask(copy(), None).await;
        assert_eq!(status, 401, "{method} {path} without a key: {text}");
        for (what, words) in &bad {
            let (status, text) = ask(copy(), Some(words)).await;
            assert_eq!(status, 401, "{method} {path} with {what}: {text}");
            assert!(!text.contains(MARKER) && !text.contains(words.as_str()), "{method} {path}: {text}");
        }
    }
    for (path, expected) in
        [("/healthz", 200), ("/readyz", 200), ("/openapi.json", 200), ("/metrics", 401), ("/nowhere", 404)]
    {
        assert_eq!(ask(stage.request(Method::GET, path), None).await.0, expected, "{path}");
    }
    let good_token = tokens::hs256(SECRET, &claims, Some(now + 3600));
    for words in [&good, &good_token] {
        assert_eq!(ask(stage.request(Method::GET, "/metrics"), Some(words)).await.0, 200);
    }
    let by_header = stage.request(Method::GET, "/api/v1/keys").header("x-api-key", &good);
    assert_eq!(ask(by_header, None).await.0, 200);
    let basic = stage.request(Method::GET, "/api/v1/keys").header("authorization", "Basic ZXZlOmV2ZQ==");
    assert_eq!(ask(basic, None).await.0, 401);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_may_do_what_it_may_and_no_more() {
    for role in [KeyRole::Counter, KeyRole::Reader, KeyRole::Writer, KeyRole::Admin] {
        let store = Everturn::open("memory:").unwrap();
        let (_, words) = key(&store, "acme", role);
        let (_, variables) = furnish(&store, "acme");
        let stage = Stage::over(store, asking()).await;
        for (method, path, request) in requests(&stage, &variables) {
            let (status, text) = ask(request, Some(&words)).await;
            let may = role >= needed(&method, &path);
            assert_eq!(status == 403, !may, "{method} {path} as {role}: {status} {text}");
            assert!(status != 401 && status != 500, "{method} {path} as {role}: {status} {text}");
        }
        stage.stop().await;
    }
}

/// A counter gets numbers from every route that it may use, in pages and live, and no word of anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_sees_numbers_and_no_words() {
    let store = Everturn::open("memory:").unwrap();
    key(&store, "acme", KeyRole::Admin);
    let (_, words) = key(&store, "acme", KeyRole::Counter);
    let tenant = store.tenant("acme").unwrap();
    let raw = || everturn_engine::Raw::of(&json!({"note": MARKER})).unwrap();
    let settings = everturn_core::conversation::Settings {
        title: Some(Some(MARKER.into())),
        owner: Some(Some(MARKER.into())),
        participants: vec![MARKER.into()],
        metadata: [(MARKER.to_string(), raw())].into(),
        policy: [("facts".to_string(), everturn_engine::Raw::of(&json!({"model": MARKER})).unwrap())].into(),
        system_prompt: Some(Some(everturn_core::conversation::SystemPrompt::new(MARKER.into()))),
        ..Default::default()
    };
    let chat =
        tenant.create(everturn_engine::NewConversation { settings, ..Default::default() }).wait().unwrap();
    let tokens = Some(everturn_engine::Tokens { prompt: Some(70), completion: Some(7) });
    chat.append(NewTurn { tokens, ..NewTurn::assistant(MARKER) }.by(MARKER)).wait().unwrap();
    let id = chat.id();
    let stage = Stage::over(store, asking()).await;
    let get = async |path: &str| ask(stage.request(Method::GET, path), Some(&words)).await;
    for (path, number) in [
        ("/api/v1/conversations".to_string(), "\"turns\":1"),
        (format!("/api/v1/conversations/{id}"), "\"turns\":1"),
        ("/api/v1/events?since=2026-01-01T00:00:00Z".into(), "\"turns\":1"),
        ("/api/v1/usage".into(), "\"turns\":1"),
        ("/api/v1/usage/tokens".into(), "\"prompt\":70"),
        (format!("/api/v1/usage/tokens?conversation={id}"), "\"completion\":7"),
        ("/api/v1/whoami".into(), "\"role\":\"counter\""),
        ("/metrics".into(), "everturn_"),
    ] {
        let (status, text) = get(&path).await;
        assert!(status == 200 && text.contains(number), "{path}: {status} {text}");
        assert!(!text.contains(MARKER), "{path}: {text}");
    }
    // A search would tell words letter by letter.
    for search in ["query=xyl", "project=xyl"] {
        let (status, text) = get(&format!("/api/v1/conversations?{search}")).await;
        assert!(status == 403 && text.contains("access.role"), "{text}");
    }
    let live = stage.request(Method::GET, "/api/v1/events?since=2026-01-01T00:00:00Z").bearer_auth(&words);
    let mut live = Live::connect(live).await;
    loop {
        let frame = live.next().await.expect("the stream goes on");
        assert!(!frame.data.to_string().contains(MARKER), "{}", frame.data);
        if frame.name == "created" || frame.name == "changed" {
            assert_eq!(frame.data["conversation"]["turns"], 1);
            break;
        }
    }
    for path in ["/v1/conversations", "/v1/models", "/mcp"] {
        assert_eq!(get(path).await.0, 403, "{path}");
    }
    // A conversation without a title has no preview either.
    let untitled = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap();
    untitled.append(NewTurn::user(MARKER)).wait().unwrap();
    for path in ["/api/v1/conversations".to_string(), format!("/api/v1/conversations/{}", untitled.id())] {
        let (status, text) = get(&path).await;
        assert!(status == 200 && !text.contains(MARKER), "{path}: {text}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_told_who_it_is() {
    let store = Everturn::open("memory:").unwrap();
    let stage = Stage::over(store.clone(), asking()).await;
    let without = stage.get("/api/v1/whoami", 200).await;
    assert_eq!(without, json!({"tenant": "default", "role": "admin", "actors": [], "key": null}));
    let new = NewKey { actors: vec!["ana".into()], ..NewKey::new("acme", KeyRole::Writer) };
    let (key, words) = store.keys().create(new).unwrap();
    let (status, text) = ask(stage.request(Method::GET, "/api/v1/whoami"), Some(&words)).await;
    assert_eq!(status, 200, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        told,
        json!({"tenant": "acme", "role": "writer", "actors": ["ana"], "key": key.id.to_string()})
    );
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_another_tenants_is_not_there() {
    let store = Everturn::open("memory:").unwrap();
    let (_, words) = key(&store, "globex", KeyRole::Admin);
    let (id, variables) = furnish(&store, "acme");
    let acme = store.tenant("acme").unwrap();
    let before = acme.conversation(id).get().unwrap();
    let stage = Stage::over(store.clone(), asking()).await;
    let absent: BTreeMap<&str, String> = variables
        .iter()
        .map(|(name, value)| match value.split_once('_') {
            Some((kind, rest)) if rest.len() == 26 => (*name, format!("{kind}_01JD0000000000000000000000")),
            _ => (*name, value.clone()),
        })
        .collect();
    for ((method, path, foreign), (_, _, nowhere)) in
        requests(&stage, &variables).into_iter().zip(requests(&stage, &absent))
    {
        let (status, text) = ask(foreign, Some(&words)).await;
        let (expected, expected_text) = ask(nowhere, Some(&words)).await;
        assert_eq!(status, expected, "{method} {path}: {text}\n{expected_text}");
        let code = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default()["code"].clone();
        assert_eq!(code(&text), code(&expected_text), "{method} {path}: {text}");
        if path.contains('{') {
            assert!(matches!(status, 400 | 404), "{method} {path}: {status} {text}");
        }
        // Pins and approvals are named by the caller, so their names come back.
        let own_name = ["{name}", "{approval}", "{call}"].iter().any(|name| path.contains(name));
        assert!(own_name || !text.contains(MARKER), "{method} {path}: {text}");
    }
    assert_eq!(acme.conversation(id).get().unwrap(), before);
    stage.stop().await;
}

/// Regression: a compressed stream that may end with its key was read on after its end, and the connection broke.
#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_export_is_whole_with_and_without_a_key() {
    for keyed in [true, false] {
        let store = Everturn::open("memory:").unwrap();
        let tenant = if keyed { "acme" } else { "default" };
        let words = keyed.then(|| key(&store, tenant, KeyRole::Reader).1);
        let id = store.tenant(tenant).unwrap().create("theirs").wait().unwrap().id();
        let stage = Stage::over(store, asking()).await;
        let path = format!("/api/v1/conversations/{id}/export?format=markdown");
        let request = stage.request(Method::GET, &path).header("accept-encoding", "gzip");
        let (status, text) = ask(request, words.as_deref()).await;
        assert!(status == 200 && !text.is_empty(), "{status}");
        stage.stop().await;
    }
}

/// Regression: a writer, who may delete and erase nothing, did both by changing `ttl` and `retention`.
#[tokio::test(flavor = "multi_thread")]
async fn only_an_admin_has_the_conversations_of_others_deleted_or_erased() {
    let store = Everturn::open("memory:").unwrap();
    let (_, writer) = key(&store, "acme", KeyRole::Writer);
    let (_, admin) = key(&store, "acme", KeyRole::Admin);
    let id = store.tenant("acme").unwrap().create("theirs").wait().unwrap().id();
    let stage = Stage::over(store.clone(), asking()).await;
    let change = async |body: serde_json::Value, words: &str| {
        let request = stage.request(Method::PATCH, &format!("/api/v1/conversations/{id}"));
        ask(request.header("content-type", "application/json").body(body.to_string()), Some(words)).await
    };
    for body in [json!({"ttl": 1}), json!({"retention": "ephemeral"}), json!({"retention": "audit-only"})] {
        let (status, text) = change(body, &writer).await;
        assert!(status == 403 && text.contains("access.role") && text.contains("admin"), "{status} {text}");
    }
    // Regression: in the metadata it is the same setting, and was not refused.
    for word in ["ephemeral", "audit-only"] {
        let body = json!({"metadata": {"retention": word}});
        let (status, text) = change(body.clone(), &writer).await;
        assert!(status == 403 && text.contains("access.role"), "{status} {text}");
        let over_openai = stage.request(Method::POST, &format!("/v1/conversations/{id}"));
        let over_openai = over_openai.header("content-type", "application/json").body(body.to_string());
        let (status, text) = ask(over_openai, Some(&writer)).await;
        assert!(status == 403 && text.contains("admin"), "{status} {text}");
        let mut theirs = Stage::over(store.clone(), asking()).await;
        theirs.bearer(&writer);
        let arguments = json!({"conversation": id, "metadata": {"retention": word}});
        let call = json!({"name": "change_conversation", "arguments": arguments});
        let answer = last(Client::begin(&theirs).await.send("tools/call", call).await).await;
        assert!(answer.to_string().contains("access.role"), "{answer}");
        theirs.stop().await;
    }
    let now = store.tenant("acme").unwrap().conversation(id).get().unwrap();
    assert_eq!((now.retention, now.ttl), (Retention::Full, None));
    assert_eq!(change(json!({"ttl": null, "retention": "full", "title": "mine"}), &writer).await.0, 200);
    assert_eq!(change(json!({"ttl": 3600, "metadata": {"retention": "ephemeral"}}), &admin).await.0, 200);
    // What is so already may be sent along.
    let same = json!({"metadata": {"retention": "ephemeral", "note": "n"}});
    assert_eq!(change(same, &writer).await.0, 200);
    let (status, _) = ask(
        stage
            .request(Method::POST, "/api/v1/conversations")
            .header("content-type", "application/json")
            .body(json!({"ttl": 3600, "retention": "ephemeral"}).to_string()),
        Some(&writer),
    )
    .await;
    assert_eq!(status, 201, "of a conversation that is new, its author decides");
    stage.stop().await;
}

/// Regression: a writer did the same by importing the conversation's log with one more event, and brought deleted ones back.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_does_only_what_its_key_may_do_directly() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".to_string(), format!("sqlite:{}", folder.path().join("store.db").display())] {
        let store = Everturn::open(&url).unwrap();
        let (_, writer) = key(&store, "acme", KeyRole::Writer);
        let (_, admin) = key(&store, "acme", KeyRole::Admin);
        let tenant = store.tenant("acme").unwrap();
        let theirs = tenant.create("theirs").wait().unwrap();
        theirs.append(NewTurn::user(MARKER).by("ana")).wait().unwrap();
        let exported = |chat: &ConversationHandle| {
            let mut file = Vec::new();
            chat.export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
            String::from_utf8(file).unwrap()
        };
        let before = exported(&theirs);
        let elsewhere = Everturn::open("memory:").unwrap();
        let other = elsewhere.tenant("acme").unwrap();
        other.import(before.as_bytes(), &mut |_| {}).unwrap();
        let copy = other.conversation(theirs.id());
        copy.update(Settings { ttl: Some(Some(3600)), ..Settings::default() }).wait().unwrap();
        let mut stage = Stage::over(store, asking()).await;
        let import = async |stage: &Stage, file: &str, words: &str| {
            let request = stage.request(Method::POST, "/api/v1/import?name=x.jsonl");
            ask(request.header("content-type", "application/jsonl").body(file.to_string()), Some(words)).await
        };
        let (status, text) = import(&stage, &exported(&copy), &writer).await;
        assert!(status == 403 && text.contains("access.role"), "{status} {text}");
        assert!(text.contains("seq 3 (conversation.updated)") && text.contains("admin"), "{text}");
        assert_eq!(theirs.get().unwrap().ttl, None);
        assert_eq!(import(&stage, &exported(&copy), &admin).await.0, 200);
        assert_eq!(theirs.get().unwrap().ttl, Some(3600));
        theirs.delete("asked for").wait().unwrap();
        let (status, text) = import(&stage, &before, &writer).await;
        assert!(status == 403 && text.contains("was deleted on"), "{status} {text}");
        assert_eq!(import(&stage, &before, &admin).await.0, 200);
        stage.bearer(&writer);
        let client = Client::begin(&stage).await;
        let call = json!({"name": "import", "arguments": {"content": exported(&copy)}});
        let answer = last(client.send("tools/call", call).await).await.to_string();
        assert!(answer.contains("access.role") && answer.contains("conversation.updated"), "{answer}");
        stage.stop().await;
    }
}

/// Regression: with one index for all tenants, exact scores revealed how many entries of any tenant have a word
/// or a prefix: with a writer's key another tenant's secrets could be read letter by letter.
#[tokio::test(flavor = "multi_thread")]
async fn recall_tells_nothing_of_what_others_store() {
    let store = Everturn::open("memory:").unwrap();
    let (_, words) = key(&store, "acme", KeyRole::Writer);
    let own = store.tenant("acme").unwrap();
    let say = |tenant: &Tenant, texts: &[&str]| {
        let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
        let turns = texts.iter().map(|text| NewTurn::user(text));
        tenant.conversation(id).append_all(turns).wait().unwrap();
        id
    };
    // The attacker plants every guess, so that each has a score that can be compared.
    let id = say(&own, &["xylophoney", "xylophonez", "the xylo and a harbour", "the harbour of the master"]);
    store.index_now().unwrap();
    let stage = Stage::over(store.clone(), asking()).await;
    let places = ["/api/v1/recall".to_string(), format!("/api/v1/conversations/{id}/recall")];
    let questions = [
        "xylophoney",
        "xylophonez",
        "xylo*",
        "xylophone*",
        "\"harbour of\"",
        "harbour master xylophonez",
        "the",
    ];
    let told = async || {
        let mut told = Vec::new();
        for place in &places {
            for (question, mode) in
                questions.iter().flat_map(|question| [(question, "lexical"), (question, "hybrid")])
            {
                let body = json!({"query": question, "mode": mode});
                let request = stage.request(Method::POST, place).header("content-type", "application/json");
                let (status, text) = ask(request.body(body.to_string()), Some(&words)).await;
                assert_eq!(status, 200, "{text}");
                told.push(format!("{question} ({mode}): {text}"));
            }
        }
        told
    };
    let before = told().await;
    assert!(before[0].contains("score"), "{}", before[0]);
    let theirs = store.tenant("globex").unwrap();
    let secret = say(&theirs, &["our secret is xylophonez", "harbour harbour harbour of the master", MARKER]);
    assert_eq!(told().await, before, "perhaps before it is in the index");
    store.index_now().unwrap();
    assert_eq!(told().await, before, "when it is in the index");
    theirs.conversation(secret).delete("").wait().unwrap();
    assert_eq!(told().await, before, "when it is gone");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_taken_back_ends_at_once() {
    let store = Everturn::open("memory:").unwrap();
    let (_, admin) = key(&store, "acme", KeyRole::Admin);
    let stage = Stage::over(store, asking()).await;
    let asked = |method, path: &str| stage.request(method, path).header("x-api-key", admin.clone());
    let body = json!({"role": "writer", "label": "bot"}).to_string();
    let request = asked(Method::POST, "/api/v1/keys").header("content-type", "application/json").body(body);
    let made = crate::stage::answer(request, 201).await;
    let (words, id) = (made["secret"].as_str().unwrap(), made["id"].as_str().unwrap());
    let list = || stage.request(Method::GET, "/api/v1/conversations");
    assert_eq!(ask(list(), Some(words)).await.0, 200);
    crate::stage::answer(asked(Method::DELETE, &format!("/api/v1/keys/{id}")), 200).await;
    assert_eq!(ask(list(), Some(words)).await.0, 401);
    let listed = crate::stage::answer(asked(Method::GET, "/api/v1/keys"), 200).await;
    assert!(listed["data"][1]["revoked"].is_string() && !listed.to_string().contains(words), "{listed}");
    stage.stop().await;
}

/// Without a key everyone on this machine is an admin; creating the first key ends that, and its creator must
/// be able to continue.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_key_closes_the_door() {
    let stage = Stage::over(Everturn::open("memory:").unwrap(), asking()).await;
    stage.get("/api/v1/conversations", 200).await;
    assert_eq!(stage.post("/api/v1/keys", &json!({"role": "reader"}), 409).await["code"], "key.first");
    let made = stage.post("/api/v1/keys", &json!({"role": "admin"}), 201).await;
    stage.get("/api/v1/conversations", 401).await;
    let words = made["secret"].as_str().unwrap();
    let keys = stage.request(Method::GET, "/api/v1/keys");
    assert_eq!(ask(keys, Some(words)).await.0, 200);
    // Revoking the last key must not open access again.
    let revoke = format!("/api/v1/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(ask(stage.request(Method::DELETE, &revoke), Some(words)).await.0, 200);
    stage.get("/api/v1/conversations", 401).await;
    stage.stop().await;
}

/// A server with an admin's and a reader's key of `acme`, which has one conversation.
struct Watched {
    stage: Stage,
    store: Everturn,
    admin: String,
    reader: (KeyId, String),
    events: String,
}

impl Watched {
    async fn new() -> Watched {
        Watched::over(Everturn::open("memory:").unwrap()).await
    }

    async fn over(store: Everturn) -> Watched {
        let ((_, admin), reader) =
            (key(&store, "acme", KeyRole::Admin), key(&store, "acme", KeyRole::Reader));
        let id = store
            .tenant("acme")
            .unwrap()
            .create(everturn_engine::NewConversation::default())
            .wait()
            .unwrap()
            .id();
        let stage = Stage::over(store.clone(), asking()).await;
        Watched { stage, store, admin, reader, events: format!("/api/v1/conversations/{id}/events") }
    }

    async fn follow(&self, words: &str) -> Live {
        let mut live = Live::connect(self.stage.request(Method::GET, &self.events).bearer_auth(words)).await;
        live.expect("event").await;
        live
    }

    async fn revoke(&self, key: KeyId) {
        let revoke = self.stage.request(Method::DELETE, &format!("/api/v1/keys/{key}"));
        assert_eq!(ask(revoke, Some(&self.admin)).await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_revoked_ends_its_live_streams() {
    let watched = Watched::new().await;
    let (id, words) = &watched.reader;
    let (mut one, mut other) = (watched.follow(words).await, watched.follow(words).await);
    let mut unrelated = watched.follow(&watched.admin).await;
    watched.revoke(*id).await;
    for live in [&mut one, &mut other] {
        assert_eq!(live.expect("error").await.data["code"], "access.ended");
        assert!(live.next().await.is_none(), "the stream has ended");
    }
    let again = watched.stage.request(Method::GET, &watched.events);
    assert_eq!(ask(again, Some(words)).await.0, 401);
    let tenant = watched.store.tenant("acme").unwrap();
    let conversation = watched.events.split('/').nth(4).unwrap().parse().unwrap();
    tenant.conversation(conversation).append(NewTurn::user("still here")).wait().unwrap();
    unrelated.expect("event").await;
    watched.stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_expires_ends_its_live_streams() {
    let watched = Watched::new().await;
    let expires = Some(Timestamp(tokens::now() as i64 * 1_000_000).plus_s(2));
    let new = NewKey { expires, ..NewKey::new("acme", KeyRole::Reader) };
    let (_, words) = watched.store.keys().create(new).unwrap();
    let mut live = watched.follow(&words).await;
    assert_eq!(live.expect("error").await.data["code"], "access.ended");
    assert!(live.next().await.is_none(), "the stream has ended");
    watched.stage.stop().await;
}

/// The server reads the file that another process writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_another_process_revokes_ends_its_live_streams() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let writer = Everturn::open(&url).unwrap();
    let (id, words) = key(&writer, "acme", KeyRole::Reader);
    let conversation = writer
        .tenant("acme")
        .unwrap()
        .create(everturn_engine::NewConversation::default())
        .wait()
        .unwrap()
        .id();
    let reading = Everturn::open_with(&url, Options { read_only: true, ..Options::default() }).unwrap();
    let stage = Stage::over(reading, asking()).await;
    let events = stage.request(Method::GET, &format!("/api/v1/conversations/{conversation}/events"));
    let mut live = Live::connect(events.bearer_auth(&words)).await;
    live.expect("event").await;
    writer.keys().revoke("acme", id).unwrap();
    assert_eq!(live.expect("error").await.data["code"], "access.ended");
    assert!(live.next().await.is_none(), "the stream has ended");
    stage.stop().await;
}

/// Streams that were opened when no key was needed, of a conversation and of the tenant, end with the first key, whichever
/// process makes it.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_key_ends_live_streams_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let writer = Everturn::open(&url).unwrap();
    let reading = Everturn::open_with(&url, Options { read_only: true, ..Options::default() }).unwrap();
    let id = writer
        .tenant("default")
        .unwrap()
        .create(everturn_engine::NewConversation::default())
        .wait()
        .unwrap()
        .id();
    let events = format!("/api/v1/conversations/{id}/events");
    let (here, there) = (Stage::over(writer.clone(), asking()).await, Stage::over(reading, asking()).await);
    let mut open = Vec::new();
    for stage in [&here, &there] {
        let mut live = Live::connect(stage.request(Method::GET, &events)).await;
        live.expect("event").await;
        open.push(live);
    }
    key(&writer, "default", KeyRole::Reader);
    for live in &mut open {
        assert_eq!(live.expect("error").await.data["code"], "access.ended");
        assert!(live.next().await.is_none(), "the stream has ended");
    }
    here.stop().await;
    there.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_ends_its_live_streams() {
    let store = Everturn::open("memory:").unwrap();
    let id = store
        .tenant("acme")
        .unwrap()
        .create(everturn_engine::NewConversation::default())
        .wait()
        .unwrap()
        .id();
    let config = Config { jwt: Some(jwt_config()), ..asking() };
    let stage = Stage::over(store, config).await;
    let claims = json!({"tenant": "acme", "role": "reader", "sub": "ann"});
    let token = tokens::hs256(SECRET, &claims, Some(tokens::now() + 2));
    let events = format!("/api/v1/conversations/{id}/events");
    let mut live = Live::connect(stage.request(Method::GET, &events).bearer_auth(&token)).await;
    live.expect("event").await;
    assert_eq!(live.expect("error").await.data["code"], "access.ended");
    assert!(live.next().await.is_none(), "the stream has ended");
    assert_eq!(ask(stage.request(Method::GET, &events), Some(&token)).await.0, 401);
    stage.stop().await;
}

/// In the shape for which each client raises its own exception.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_ends_streams_of_answers_in_the_clients_words() {
    for (path, pointer, word) in [
        ("/v1/chat/completions", "/error/code", "access.ended"),
        ("/v1/responses", "/error/code", "access.ended"),
        ("/v1/messages", "/error/type", "authentication_error"),
        ("/api/v1/conversations/{conversation}/generate", "/code", "access.ended"),
    ] {
        let (store, steps) = crate::generations::store();
        let ((_, _admin), (id, words)) =
            (key(&store, "acme", KeyRole::Admin), key(&store, "acme", KeyRole::Writer));
        let conversation = store
            .tenant("acme")
            .unwrap()
            .create(everturn_engine::NewConversation::default())
            .wait()
            .unwrap()
            .id();
        let stage = Stage::over(store.clone(), asking()).await;
        let body = if path.starts_with("/v1/responses") {
            json!({"model": "default", "stream": true, "input": "hi"})
        } else if path.starts_with("/v1") {
            let messages = json!([{"role": "user", "content": "hi"}]);
            json!({"model": "default", "stream": true, "messages": messages, "max_tokens": 64})
        } else {
            json!({"input": [{"role": "user", "content": "hi"}], "stream": true})
        };
        let path = path.replace("{conversation}", &conversation.to_string());
        // Some answer only once the model has begun.
        steps.send(crate::generations::text("Lisb")).unwrap();
        let request = stage.request(Method::POST, &path).bearer_auth(&words);
        let request =
            request.header("content-type", "application/json").header("accept", "text/event-stream");
        let mut response = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let mut seen = String::new();
        while !seen.contains("Lisb") {
            seen += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
        }
        store.keys().revoke("acme", id).unwrap();
        while let Some(chunk) = response.chunk().await.unwrap() {
            seen += std::str::from_utf8(&chunk).unwrap();
        }
        let last = seen.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        assert_eq!(last.pointer(pointer), Some(&json!(word)), "{path}: {seen}");
        stage.stop().await;
    }
}
