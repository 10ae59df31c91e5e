//! Context, projection and compaction over REST.

use crate::stage::{Stage, answer};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_context_is_built_recorded_and_made_again() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    stage.say(&id, "Where is Lisbon?").await;
    let path = format!("/api/v1/conversations/{id}");
    let ask = json!({
        "token_budget": 1000, "provider": "openai-chat", "instructions": "Be brief.",
        "digests": [{"title": "Board", "text": "3 open"}], "sections": {"facts": false},
        "projection": {"policy": "clean_tool_repair"}, "input": [{"role": "user", "content": "And then?"}]
    });
    let built = stage.post(&format!("{path}/context"), &ask, 200).await;
    assert_eq!(built["messages"].as_array().unwrap().last().unwrap()["content"], "And then?");
    let recorded = stage.post(&format!("{path}/contexts"), &ask, 201).await;
    assert_eq!(recorded["prefix_hash"], built["prefix_hash"]);
    let seq = recorded["recorded_seq"].as_u64().unwrap();
    stage.say(&id, "Something else").await;
    let again = stage.get(&format!("{path}/contexts/{seq}"), 200).await;
    assert_eq!(again["messages"], built["messages"]);
    stage.get(&format!("{path}/contexts/1"), 404).await;
    for (ask, status) in [
        (json!({"token_budget": 2}), 413),
        (json!({}), 400),
        (json!({"token_budget": 1000, "input": "And then?"}), 200),
        (json!({"token_budget": 1000, "input": 7}), 400),
        (json!({"token_budget": 1000, "provider": "x"}), 400),
        (json!({"token_budget": 1000, "sections": {"x": true}}), 400),
        (json!({"token_budget": 1000, "projection": "x"}), 400),
        (json!({"token_budget": -1}), 400),
        (json!({"budget": 1000}), 400),
    ] {
        stage.post(&format!("{path}/context"), &ask, status).await;
    }
    let detail = |answer: Value| answer["detail"].as_str().unwrap_or_default().to_string();
    let missing = detail(stage.post(&format!("{path}/contexts"), &json!({}), 400).await);
    assert!(missing.starts_with("token_budget is missing"), "{missing}");
    let unknown = detail(stage.post(&format!("{path}/context"), &json!({"budget": 1}), 400).await);
    assert!(unknown.contains("unknown field `budget`; known are ") && unknown.contains("token_budget"));
    assert!(!unknown.contains("conversation"), "it is in the path: {unknown}");
    let unknown = detail(stage.post("/api/v1/recall", &json!({"q": "hello"}), 400).await);
    assert!(unknown.contains("query"), "{unknown}");
    let unknown = detail(stage.get("/api/v1/conversations?lmit=3", 400).await);
    assert!(unknown.contains("limit") && !unknown.contains(" line "), "{unknown}");
    let malformed = detail(stage.get("/api/v1/conversations/@last/turns", 404).await);
    assert!(malformed.contains("\"@last\" is not the id of a conversation"), "{malformed}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcript_is_projected_given_or_kept() {
    let stage = Stage::new().await;
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]);
    let ask = json!({"transcript": messages, "options": {"policy": "raw"}});
    let view = stage.post("/api/v1/project", &ask, 200).await;
    assert_eq!(view["messages"], messages);
    let value =
        json!({"transcript": {"summary": "We met.", "messages": messages}, "options": "summary_prefix"});
    let view = stage.post("/api/v1/project", &value, 200).await;
    assert!(view["messages"].to_string().contains("We met."));
    assert_eq!(stage.post("/api/v1/project", &json!({"transcript": 7}), 400).await["code"], "project.input");
    let script = json!({"transcript": messages, "options": {"policy": "custom", "projector": "loop {}"}});
    stage.post("/api/v1/project", &script, 413).await;

    let id = stage.conversation().await;
    stage.say(&id, "hi").await;
    let path = format!("/api/v1/conversations/{id}");
    let view = stage.post(&format!("{path}/project"), &json!({"policy": "raw"}), 200).await;
    assert_eq!(view["messages"], json!([{"role": "user", "content": "hi"}]));
    let request = stage.request(Method::POST, &format!("{path}/projections"));
    let response = request.body(r#"{"policy":"raw"}"#).send().await.unwrap();
    assert_eq!(response.status(), 201);
    let location = response.headers()["location"].to_str().unwrap().to_string();
    stage.say(&id, "more").await;
    assert_eq!(stage.get(&location, 200).await["data"], view["messages"]);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_summarizes_and_can_be_taken_back() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    for n in 0..6 {
        stage.say(&id, &format!("We decided to use port {n} for the server.")).await;
    }
    let path = format!("/api/v1/conversations/{id}");
    let dry = stage.post(&format!("{path}/compact"), &json!({"dry_run": true, "keep_last": 2}), 200).await;
    assert!(dry["event"].is_null() && dry["covers"]["turns"] == 4);
    let done =
        stage.post(&format!("{path}/compact"), &json!({"keep_last": 2, "extractive": true}), 200).await;
    assert_eq!(done["covers"], dry["covers"]);
    assert!(stage.get(&path, 200).await.get("checkpoint").is_some());
    assert_eq!(stage.get(&format!("{path}/turns"), 200).await["data"].as_array().unwrap().len(), 6);
    let back = stage.post(&format!("{path}/compact/revert"), &json!({}), 200).await;
    assert!(back.get("checkpoint").is_none());
    let summary = stage.post(&format!("{path}/summarize"), &json!({"to_seq": 3}), 200).await;
    assert_eq!(summary["covers"]["turns"], 2);
    assert_eq!(
        stage.post(&format!("{path}/summarize"), &json!({"from_seq": 99}), 400).await["code"],
        "summarize.empty"
    );
    let nothing = stage.request(Method::POST, &format!("{path}/compact")).body(r#"{"keep_last":99}"#);
    answer(nothing, 400).await;
    let short = stage.conversation().await;
    for word in ["newest rust?", "1.91"] {
        stage.say(&short, word).await;
    }
    let path = format!("/api/v1/conversations/{short}/compact");
    for dry_run in [true, false] {
        let refused = stage.post(&path, &json!({"keep_last": 1, "dry_run": dry_run}), 400).await;
        assert_eq!(refused["code"], "compaction.nothing");
        assert!(refused["detail"].as_str().unwrap().contains("no shorter"), "{refused}");
    }
    stage.stop().await;
}
