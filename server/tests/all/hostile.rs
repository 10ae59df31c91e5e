//! Hostile or broken input: each gives a problem with a code, and nothing is lost.

use crate::stage::{Stage, answer};
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn hostile_json_is_refused_and_changes_nothing() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    stage.say(&id, "before").await;
    let path = format!("/api/v1/conversations/{id}/turns");
    let turn = |content: &str| format!(r#"{{"turns":[{{"role":"user","content":{content}}}]}}"#);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let table = [
        (turn(r#""\ud800""#), "json.malformed"),
        (turn("{\"a\":1,\"a\":2}"), "json.duplicate_key"),
        (turn("\"a\u{0}b\""), "json.malformed"),
        (turn("1."), "json.malformed"),
        (turn("NaN"), "json.malformed"),
        ("{\"turns\":[".to_string(), "json.malformed"),
        ("[]".to_string(), "body.shape"),
        ("{}".to_string(), "body.shape"),
        ("".to_string(), "body.shape"),
        (r#"{"turns":[],"expected":1}"#.to_string(), "body.shape"),
        (r#"{"turns":[{"role":"king","content":"x"}]}"#.to_string(), "body.shape"),
    ];
    for (body, code) in table {
        let problem = stage.post_text(&path, &body, 400).await;
        assert_eq!(problem["code"], code, "{}", &body[..body.len().min(80)]);
        assert_eq!(problem["type"], format!("urn:everturn:{code}"));
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    assert_eq!(stage.post_text(&path, &turn(&deep), 413).await["code"], "limit.exceeded");
    let not_text = stage.request(Method::POST, &path).body(b"{\"turns\":[\xff]}".to_vec());
    assert_eq!(answer(not_text, 400).await["code"], "body.not_utf8");
    let form = stage.request(Method::POST, &path).header("content-type", "text/plain").body("{}");
    assert_eq!(answer(form, 415).await["code"], "body.not_json");
    // Unusual but valid input is accepted: a huge number, an escaped NUL.
    stage.post_text(&path, &turn(r#"[{"type":"x","n":1e999999}]"#), 201).await;
    stage.post_text(&path, &turn(r#""a\u0000b""#), 201).await;
    let text = stage.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert!(text.contains("before") && text.contains("1e999999") && text.contains(r"a\u0000b"));
    let verdict = stage.get(&format!("/api/v1/conversations/{id}/verify"), 200).await;
    assert_eq!(verdict["ok"], true);
    stage.stop().await;
}

/// Errors used to be those of the parser, and hints named commands.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_shape_names_its_field_and_hints_name_routes() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}");
    let detail = |problem: serde_json::Value| problem["detail"].as_str().unwrap_or_default().to_string();
    for (place, body, words) in [
        ("turns", json!([]), "it must be an object, not a list"),
        ("turns", json!({}), "`turns` is missing"),
        ("turns", json!({"turns": "hello"}), "`turns` must be a list, not a string"),
        ("turns", json!({"turns": [{"role": "king", "content": "x"}]}), "`turns[0].role` must be one of "),
        ("turns", json!({"turns": [{"role": 7, "content": "x"}]}), "`turns[0].role` must be a string"),
        ("context", json!({"token_budget": "much"}), "`token_budget` must be a whole number, not a string"),
        ("generate", json!({"temperature": "hot"}), "`temperature` must be a number, not a string"),
        ("fork", json!({"titel": "x"}), "unknown field `titel`; known are "),
    ] {
        let said = detail(stage.post(&format!("{path}/{place}"), &body, 400).await);
        assert!(said.contains(words) && said.len() < 400, "{place} {body}: {said}");
    }
    let said = detail(stage.post("/api/v1/recall", &json!({"query": 7}), 400).await);
    assert!(said.contains("`query` must be a string, not 7"), "{said}");
    let said = detail(stage.get(&format!("{path}/turns?limit=many"), 400).await);
    assert!(said.contains("`limit` must be a whole number, 0 or more, not \"many\""), "{said}");
    let state = "; `GET /api/v1/conversations/{conversation}/state` shows the pins";
    let said = detail(stage.send(Method::DELETE, &format!("{path}/pins/goal"), &json!({}), 404).await);
    assert!(said.ends_with(state), "{said}");
    let absent = "/api/v1/conversations/conv_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X";
    let said = detail(stage.get(absent, 404).await);
    assert!(said.ends_with("; `GET /api/v1/conversations` shows what there is"), "{said}");
    stage.send(Method::PATCH, &path, &json!({"state": "archived"}), 200).await;
    let turn = json!({"turns": [{"role": "user", "content": "x"}]});
    let said = detail(stage.post(&format!("{path}/turns"), &turn, 409).await);
    assert!(said.ends_with("(`PATCH /api/v1/conversations/{conversation}`)"), "{said}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/turns");
    let body = json!({"turns": [{"role": "user", "content": "x".repeat(17 * 1024 * 1024)}]});
    assert_eq!(stage.post(&path, &body, 413).await["code"], "limit.exceeded");
    assert_eq!(stage.get(&path, 200).await["data"], json!([]));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_methods_that_are_not_there() {
    let stage = Stage::new().await;
    for path in
        ["/api/v1/nothing", "/api/v2/conversations", "/api/v1/conversations/", "/api/v1/turns/%00/erase"]
    {
        let problem = stage.get(path, if path.ends_with("erase") { 405 } else { 404 }).await;
        assert!(problem["code"].as_str().unwrap().starts_with("route."), "{path}");
    }
    let wrong = stage.send(Method::PUT, "/api/v1/conversations", &json!({}), 405).await;
    assert_eq!(wrong["code"], "route.method");
    for id in ["turn_x", "%FF", "..%2F..%2Fetc", "turn_01JD000000000000000000000O"] {
        assert_eq!(stage.get(&format!("/api/v1/turns/{id}"), 404).await["code"], "id.malformed", "{id}");
    }
    stage.stop().await;
}
