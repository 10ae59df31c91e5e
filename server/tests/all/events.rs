//! The log over REST: in pages, and live.

use crate::live::Live;
use crate::stage::{Stage, config};
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::SUBSCRIBER_LAG_EVENTS_MAX;
use everturn_engine::{Everturn, NewConversation, NewStream, NewTurn, Options, Tenant};
use everturn_server::Config;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

/// A server, and the engine under it to write with.
async fn stage(config: Config) -> (Stage, Tenant, ConversationId) {
    // Nothing but what a test writes.
    let options = Options { auto_compaction: false, ..Options::default() };
    let store = Everturn::open_with("memory:", options).unwrap();
    let tenant = store.tenant("default").unwrap();
    // Searching megabytes for secrets takes a while.
    let policy = [("redaction".to_string(), Raw::new("\"off\"".into()).unwrap())].into();
    let settings = Settings { policy, ..Settings::default() };
    let new = NewConversation { settings, ..NewConversation::default() };
    let id = tenant.create(new).wait().unwrap().id();
    (Stage::over(store, config).await, tenant, id)
}

fn say(tenant: &Tenant, id: ConversationId, text: &str) {
    tenant.conversation(id).append(NewTurn::user(text)).wait().unwrap();
}

impl Stage {
    async fn follow(&self, id: ConversationId, query: &str, last: Option<&str>) -> Live {
        let path = format!("/api/v1/conversations/{id}/events{query}");
        let mut request = self.request(Method::GET, &path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Live::connect(request).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_in_pages() {
    let (stage, tenant, id) = stage(config()).await;
    (1..7).for_each(|n| say(&tenant, id, &n.to_string()));
    let (mut seqs, mut from) = (Vec::new(), "1".to_string());
    loop {
        let page = stage.get(&format!("/api/v1/conversations/{id}/events?limit=3&from={from}"), 200).await;
        seqs.extend(page["data"].as_array().unwrap().iter().map(|event| event["seq"].as_u64().unwrap()));
        match page["next"].as_str() {
            Some(next) => from = next.to_string(),
            None => break,
        }
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6, 7]);
    let path = format!("/api/v1/conversations/{id}/events");
    let own = stage.post(&path, &json!({"kind": "snapshot_created", "body": {"a": 1}}), 201).await;
    assert_eq!((&own["seq"], &own["body"]), (&json!(8), &json!({"a": 1})));
    stage.post(&path, &json!({"kind": "turn.erased", "body": {}}), 400).await;
    stage.post(&path, &json!({"kind": "", "body": {}}), 400).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_and_what_comes_without_a_gap_or_a_repeat() {
    let (stage, tenant, id) = stage(config()).await;
    (2..10).for_each(|n| say(&tenant, id, &n.to_string()));
    let mut live = stage.follow(id, "?from=3", None).await;
    for seq in 3..10u64 {
        let seen = live.expect("event").await;
        assert_eq!((seen.data["seq"].as_u64(), seen.id), (Some(seq), seq.to_string()));
        if seq == 6 {
            say(&tenant, id, "10");
        }
    }
    assert_eq!(live.expect("event").await.id, "10");
    // The connection is killed; another one resumes.
    drop(live);
    say(&tenant, id, "11");
    let mut live = stage.follow(id, "", Some("10")).await;
    assert_eq!(live.expect("event").await.id, "11");
    assert!(live.retry.is_some());
    tenant.conversation(id).delete("test").wait().unwrap();
    live.expect("deleted").await;
    assert!(live.next().await.is_none());
    stage.stop().await;
}

/// JSON that was stored with line breaks must not end a frame early.
#[tokio::test(flavor = "multi_thread")]
async fn line_breaks_in_stored_json_do_not_break_frames() {
    let (stage, tenant, id) = stage(config()).await;
    let message = "{\"role\":\"user\",\r\n\r\n\"content\":\n\"a\\nb\"}";
    tenant.conversation(id).append(NewTurn::message(message)).wait().unwrap();
    let mut live = stage.follow(id, "?from=2", None).await;
    assert_eq!(live.expect("event").await.data["body"]["message"]["content"], "a\nb");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_killed_in_the_middle_of_a_word_goes_on_there() {
    let (stage, tenant, id) = stage(config()).await;
    let turn = tenant.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let mut live = stage.follow(id, "?from=2", None).await;
    live.expect("event").await;
    let mut read = String::new();
    let mut last = String::new();
    for piece in ["Lis", "bôa is ", "beau"] {
        tenant.conversation(id).open_turn(turn).chunk(None, piece).unwrap();
        let seen = live.expect("chunk").await;
        assert_eq!(seen.data["offset"].as_u64(), Some(read.len() as u64));
        read += seen.data["text"].as_str().unwrap();
        last = seen.id;
    }
    assert_eq!(last, format!("2.{}", read.len()));
    drop(live);
    tenant.conversation(id).open_turn(turn).chunk(None, "tif").unwrap();
    let mut live = stage.follow(id, "", Some(&last)).await;
    tenant.conversation(id).open_turn(turn).chunk(None, "ul").unwrap();
    while read.len() < "Lisbôa is beautiful".len() {
        let seen = live.expect("chunk").await;
        assert_eq!(seen.data["offset"].as_u64(), Some(read.len() as u64));
        read += seen.data["text"].as_str().unwrap();
    }
    assert_eq!(read, "Lisbôa is beautiful");
    tenant.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    let end = live.expect("event").await;
    assert_eq!((end.data["kind"].as_str(), end.id.as_str()), (Some("turn.committed"), "3"));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_filled_with_heartbeats() {
    let (stage, _, id) = stage(Config { heartbeat: Duration::from_millis(20), ..config() }).await;
    let mut live = stage.follow(id, "?from=2", None).await;
    live.heartbeat().await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_says_where_to_go_on() {
    let (stage, tenant, id) = stage(config()).await;
    say(&tenant, id, "hello");
    let mut live = stage.follow(id, "", None).await;
    live.expect("event").await;
    live.expect("event").await;
    let stopped = tokio::spawn(stage.stop());
    let last = live.expect("stopping").await;
    assert_eq!((last.id.as_str(), &last.data["resume_from"]), ("2", &json!(3)));
    assert!(live.next().await.is_none());
    stopped.await.unwrap();
}

/// A reader that does not read is disconnected with a position to resume from, and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_let_go_with_a_place_to_resume() {
    let (stage, tenant, id) = stage(config()).await;
    let mut live = stage.follow(id, "", None).await;
    live.expect("event").await;
    // More than the sockets hold, then more than the ring buffer does.
    let (text, events, chunks) = ("x".repeat(256 * 1024), 64, SUBSCRIBER_LAG_EVENTS_MAX + 100);
    let writer = tenant.clone();
    let write = tokio::task::spawn_blocking(move || {
        (0..events).for_each(|_| say(&writer, id, &text));
        let turn = writer.conversation(id).open(NewStream::default()).wait().unwrap().id;
        for _ in 0..chunks {
            writer.conversation(id).open_turn(turn).chunk(None, "y").unwrap();
        }
    });
    write.await.unwrap();
    let mut next = 2u64;
    let seen = loop {
        let seen = live.next().await.expect("a word of farewell");
        if seen.name != "event" {
            break seen;
        }
        assert_eq!(seen.data["seq"].as_u64(), Some(next));
        next += 1;
    };
    assert_eq!((seen.name.as_str(), &seen.data["resume_from"]), ("lagged", &json!(next)));
    assert!(next < events);
    assert!(live.next().await.is_none());
    let mut live = stage.follow(id, "", Some(&seen.id)).await;
    for seq in next..events + 3 {
        assert_eq!(live.expect("event").await.data["seq"].as_u64(), Some(seq));
    }
    assert_eq!(live.expect("chunk").await.data["text"], "y".repeat(chunks));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_followed_is_refused_before_it_begins() {
    let (stage, _, id) = stage(config()).await;
    for (path, last, status, code) in [
        (format!("/api/v1/conversations/{id}/events"), "x", 400, "position.malformed"),
        (
            "/api/v1/conversations/conv_01JD0000000000000000000000/events".into(),
            "",
            404,
            "conversation.absent",
        ),
        (format!("/api/v1/conversations/{id}/events?from=x"), "", 400, "query.shape"),
    ] {
        let request = stage.request(Method::GET, &path).header("accept", "text/event-stream");
        let problem: Value = crate::stage::answer(request.header("last-event-id", last), status).await;
        assert_eq!(problem["code"], code);
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_changes_live_resumed_and_in_pages() {
    let (stage, tenant, id) = stage(config()).await;
    let follow = async |last: Option<&str>| {
        let mut request = stage.request(Method::GET, "/api/v1/events");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Live::connect(request).await
    };
    let mut live = follow(None).await;
    let ready = live.expect("ready").await;
    assert_eq!(ready.data["next"], ready.id);
    say(&tenant, id, "hello");
    let changed = live.expect("changed").await;
    assert_eq!((&changed.data["id"], &changed.data["seq"]), (&json!(id), &json!(2)));
    assert_eq!(changed.data["conversation"]["id"], json!(id));
    drop(live);
    let other = tenant.create("Another").wait().unwrap();
    tenant.conversation(id).delete("over").wait().unwrap();
    let mut live = follow(Some(&changed.id)).await;
    live.expect("ready").await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let next = live.next().await.unwrap();
        seen.push((next.data["id"].clone(), next.data["change"].clone()));
    }
    assert!(seen.contains(&(json!(other.id()), json!("created"))), "{seen:?}");
    assert!(seen.contains(&(json!(id), json!("deleted"))), "{seen:?}");
    let page = stage.get(&format!("/api/v1/events?since={}", changed.id), 200).await;
    assert_eq!((page["data"].as_array().unwrap().len(), &page["reset"]), (2, &json!(false)));
    stage.get("/api/v1/events?since=yesterday", 400).await;
    let told = stage.post("/api/v1/conversations", &json!({"participants": ["ann", "bob"]}), 201).await;
    assert_eq!(told["participants"], json!(["ann", "bob"]));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_conversation_is_told_when_it_is_due() {
    let options = Options { sweep_every: Duration::from_secs(3600), ..Options::default() };
    let stage = Stage::over(Everturn::open_with("memory:", options).unwrap(), config()).await;
    let mut live = Live::connect(stage.request(Method::GET, "/api/v1/events")).await;
    live.expect("ready").await;
    let made = stage.post("/api/v1/conversations", &json!({"ttl": 1}), 201).await;
    loop {
        let frame = live.next().await.expect("the stream goes on");
        if frame.name == "deleted" {
            assert_eq!(frame.data["id"], made["id"]);
            break;
        }
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_by_kind_and_from_its_end() {
    let (stage, tenant, id) = stage(config()).await;
    (1..7).for_each(|n| say(&tenant, id, &n.to_string()));
    let path = format!("/api/v1/conversations/{id}/events");
    stage.post(&path, &json!({"kind": "snapshot_created", "body": {"a": 1}}), 201).await;
    stage.post(&path, &json!({"kind": "other", "body": {"a": 2}}), 201).await;
    let seqs = |page: &Value| -> Vec<u64> {
        page["data"].as_array().unwrap().iter().map(|event| event["seq"].as_u64().unwrap()).collect()
    };
    let found = stage.get(&format!("{path}?kinds=snapshot_created&kinds=other&order=desc"), 200).await;
    assert_eq!((seqs(&found), &found["next"]), (vec![9, 8], &Value::Null));
    let one = stage.get(&format!("{path}?kind=other"), 200).await;
    assert_eq!(seqs(&one), [9]);
    let last = stage.get(&format!("{path}?order=desc&limit=2"), 200).await;
    assert_eq!((seqs(&last), &last["next"]), (vec![9, 8], &json!("7")));
    let none = stage.get(&format!("{path}?kinds=nothing"), 200).await;
    assert_eq!((seqs(&none), &none["next"]), (vec![], &Value::Null));
    stage.get(&format!("{path}?order=sideways"), 400).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_are_listed_by_their_parent() {
    let (stage, tenant, id) = stage(config()).await;
    say(&tenant, id, "one");
    let fork = stage.post(&format!("/api/v1/conversations/{id}/fork"), &json!({}), 201).await;
    stage.conversation().await;
    let found = stage.get(&format!("/api/v1/conversations?forked_from={id}"), 200).await;
    assert_eq!(found["data"].as_array().unwrap().len(), 1);
    assert_eq!(found["data"][0]["id"], fork["id"]);
    stage.stop().await;
}

/// A client that moves to another server says what it has seen; a server that is behind does not answer with less.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_not_older_than_what_the_caller_has_seen() {
    let (stage, tenant, id) = stage(config()).await;
    say(&tenant, id, "one");
    let path = format!("/api/v1/conversations/{id}/turns");
    let ask = |seen: &str| stage.request(Method::GET, &path).header("everturn-seq", seen).send();
    assert_eq!(ask("2").await.unwrap().status(), 200);
    let late = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        say(&tenant, id, "two");
    };
    let (answer, ()) = tokio::join!(ask("3"), late);
    let page: Value = serde_json::from_str(&answer.unwrap().text().await.unwrap()).unwrap();
    assert_eq!(page["data"].as_array().unwrap().len(), 2, "it waited");
    let behind = ask("4").await.unwrap();
    assert_eq!((behind.status().as_u16(), behind.headers()["retry-after"].as_bytes()), (503, &b"1"[..]));
    let behind: Value = serde_json::from_str(&behind.text().await.unwrap()).unwrap();
    assert_eq!(behind["code"], "store.behind");
    assert!(behind["detail"].as_str().unwrap().contains("ends at 3 here"), "{behind}");
    assert_eq!(ask("soon").await.unwrap().status(), 400);
    stage.request(Method::DELETE, &format!("/api/v1/conversations/{id}")).send().await.unwrap();
    assert_eq!(ask("3").await.unwrap().status(), 404, "gone, and not behind");
    stage.stop().await;
}
