//! Quotas of tenants.

use crate::stage::{Stage, answer, config};
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewKey, Options, Quota, Quotas};
use everturn_server::Config;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A server where `small` has this quota and nobody else has one, with an admin's key of `small` and one of
/// `other`.
async fn stage(store: &str, quota: Quota) -> (Stage, [String; 2]) {
    let quotas =
        Quotas { default: Quota::default(), tenants: BTreeMap::from([("small".to_string(), quota)]) };
    let options = Options { quotas, auto_compaction: false, ..Options::default() };
    let store = Everturn::open_with(store, options).unwrap();
    let key = |tenant: &str| {
        let new = NewKey::new(tenant, KeyRole::Admin);
        store.keys().create(new).unwrap().1
    };
    let keys = [key("small"), key("other")];
    (Stage::over(store, Config { keys_required: None, ..config() }).await, keys)
}

async fn say(stage: &Stage, conversation: &str, text: &str, status: u16) -> Value {
    let body = json!({"turns": [{"role": "user", "content": text}]});
    stage.post(&format!("/api/v1/conversations/{conversation}/turns"), &body, status).await
}

fn is_refused(refused: &Value, name: &str, limit: u64, would_be: u64) {
    assert_eq!(refused["code"], "quota.exceeded", "{refused}");
    let detail = refused["detail"].as_str().unwrap();
    let said = format!("{name} of this tenant is {limit}, and this would make it {would_be};");
    assert!(detail.starts_with(&said), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_and_bytes_are_bounded_until_something_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("store.db").display());
    for store in ["memory:", &file] {
        let quota = Quota { turns: Some(3), bytes: Some(100_000), ..Quota::default() };
        let (mut stage, [small, other]) = stage(store, quota).await;
        stage.bearer(&small);
        let (first, second) = (stage.conversation().await, stage.conversation().await);
        say(&stage, &first, "one", 201).await;
        let usage = stage.get("/api/v1/usage", 200).await;
        assert_eq!((&usage["turns"], &usage["conversations"]), (&json!(1), &json!(2)), "{usage}");
        assert_eq!((&usage["quotas"]["turns"], &usage["quotas"]["assets"]), (&json!(3), &Value::Null));
        // Counted incrementally from now on.
        is_refused(&say(&stage, &first, &"x".repeat(100_000), 413).await, "quotas.bytes", 100_000, {
            let bytes = stage.get("/api/v1/usage", 200).await["bytes"].as_u64().unwrap();
            bytes + 100_000 + r#"{"message":{"role":"user","content":""}}"#.len() as u64
        });
        say(&stage, &first, "two", 201).await;
        say(&stage, &second, "three", 201).await;
        is_refused(&say(&stage, &second, "four", 413).await, "quotas.turns", 3, 4);
        stage.bearer(&other);
        let unbounded = stage.conversation().await;
        for _ in 0..5 {
            say(&stage, &unbounded, "as many as I like", 201).await;
        }
        stage.bearer(&small);
        let delete = stage.request(Method::DELETE, &format!("/api/v1/conversations/{first}"));
        assert!(delete.send().await.unwrap().status().is_success());
        say(&stage, &second, "four", 201).await;
        stage.stop().await;
    }
}

/// A client that missed an answer gets it, and content can be erased: both matter most when nothing else works.
#[tokio::test(flavor = "multi_thread")]
async fn at_its_quota_a_tenant_may_repeat_and_erase() {
    let (mut stage, [small, _]) = stage("memory:", Quota { bytes: Some(2000), ..Quota::default() }).await;
    stage.bearer(&small);
    let made = stage.post("/api/v1/conversations", &json!({"title": "Ada's secret"}), 201).await;
    let conversation = format!("/api/v1/conversations/{}", made["id"].as_str().unwrap());
    let used = stage.get("/api/v1/usage", 200).await["bytes"].as_u64().unwrap() as usize;
    let text = "x".repeat(2000 - used - r#"{"message":{"role":"user","content":""}}"#.len());
    let body = json!({"turns": [{"role": "user", "content": text}]}).to_string();
    let say = async |key: &str, status| {
        let request = stage.request(Method::POST, &format!("{conversation}/turns"));
        let request = request.header("content-type", "application/json").header("idempotency-key", key);
        answer(request.body(body.clone()), status).await
    };
    let first = say("a", 201).await;
    assert_eq!(stage.get("/api/v1/usage", 200).await["bytes"], 2000);
    assert_eq!(say("b", 413).await["code"], "quota.exceeded");
    let again = say("a", 200).await;
    assert_eq!((&again["turns"], &again["repeated"]), (&first["turns"], &json!(true)));
    let rename = stage.send(Method::PATCH, &conversation, &json!({"title": "Longer"}), 413).await;
    assert_eq!(rename["code"], "quota.exceeded");
    stage.post(&format!("{conversation}/events/erase"), &json!({"seqs": [1], "reason": "asked"}), 200).await;
    assert_eq!(stage.get(&conversation, 200).await["title"], Value::Null);
    let turn = first["turns"][0]["id"].as_str().unwrap();
    stage.post(&format!("/api/v1/turns/{turn}/erase"), &json!({"reason": "asked"}), 200).await;
    let short = json!({"turns": [{"role": "user", "content": "room again"}]});
    stage.post(&format!("{conversation}/turns"), &short, 201).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assets_and_keys_are_bounded() {
    let quota = Quota { assets: Some(2), asset_bytes: Some(1000), keys: Some(2), ..Quota::default() };
    let (mut stage, [small, _]) = stage("memory:", quota).await;
    stage.bearer(&small);
    let id = stage.conversation().await;
    let add = async |bytes: usize, status| {
        let request = stage.request(Method::POST, &format!("/api/v1/assets?conversation={id}"));
        answer(request.header("content-type", "text/plain").body("x".repeat(bytes)), status).await
    };
    add(600, 201).await;
    is_refused(&add(601, 413).await, "quotas.asset_bytes", 1000, 1201);
    add(100, 201).await;
    is_refused(&add(1, 413).await, "quotas.assets", 2, 3);
    let made = stage.post("/api/v1/keys", &json!({"role": "reader"}), 201).await;
    is_refused(&stage.post("/api/v1/keys", &json!({"role": "reader"}), 413).await, "quotas.keys", 2, 3);
    let revoke = format!("/api/v1/keys/{}", made["id"].as_str().unwrap());
    answer(stage.request(Method::DELETE, &revoke), 200).await;
    stage.post("/api/v1/keys", &json!({"role": "reader"}), 201).await;
    let usage = stage.get("/api/v1/usage", 200).await;
    assert_eq!(
        (&usage["assets"], &usage["asset_bytes"], &usage["keys"]),
        (&json!(2), &json!(700), &json!(2))
    );
    stage.stop().await;
}
