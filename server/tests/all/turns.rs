//! Turns over REST.

use crate::stage::{Stage, answer};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_comes_back_byte_for_byte() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/turns");
    let content = r#"[ {"type":"thinking","thinking":"é\/\u00e9","signature":"Eq\/B=="} , {"type":"x","n":1e400,"m":12345678901234567890123, "z":0.10}]"#;
    let message = r#"{"type":"function_call","call_id":"c1","name":"ls","arguments":"{}"  ,"n":-0.0}"#;
    let body = format!(
        r#"{{"turns":[{{"role":"assistant","content":{content}}},{{"message":{message},"actor":"bot"}},{{"role":"tool","tool_call_id":"c1","content":null}}]}}"#
    );
    stage.post_text(&path, &body, 201).await;
    let text = stage.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert!(text.contains(content), "{text}");
    assert!(text.contains(message), "{text}");
    assert!(text.contains(r#""content":null"#), "{text}");
    // Not every parser accepts a number that large, so the second turn's id is found by hand.
    let turn = text.split("\"id\":\"").nth(2).unwrap().split('"').next().unwrap();
    let one = stage.request(Method::GET, &format!("/api/v1/turns/{turn}")).send().await.unwrap();
    assert!(one.text().await.unwrap().contains(message));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_turn_is_said() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/turns");
    let empty = stage.post(&path, &json!({"turns": [{}]}), 400).await;
    assert_eq!(empty["code"], "turn.empty");
    assert!(empty["detail"].as_str().unwrap().starts_with("turns[0]"), "{empty}");
    let nothing = [
        json!(""),
        json!([]),
        json!([{"type": "text", "text": " "}]),
        Value::Null,
        json!(5),
        json!({"a": 1}),
    ];
    for content in nothing {
        for turn in [
            json!({"role": "user", "content": content}),
            json!({"message": {"role": "user", "content": content}}),
        ] {
            let empty = stage.post(&path, &json!({"turns": [turn]}), 400).await;
            assert_eq!(empty["code"], "turn.empty", "{turn}");
        }
    }
    let empty = stage.post(&path, &json!({"turns": [{"role": "user"}]}), 400).await;
    assert_eq!(empty["code"], "turn.empty");
    let said = stage.post(&path, &json!({"turns": [{"role": "user", "content": "a"}]}), 201).await;
    let turn = said["turns"][0]["id"].as_str().unwrap();
    for verb in ["supersede", "branch"] {
        let empty = stage.post(&format!("/api/v1/turns/{turn}/{verb}"), &json!({}), 400).await;
        assert_eq!(empty["code"], "turn.empty");
        let twice = json!({"turn": turn, "role": "user", "content": "b"});
        let twice = stage.post(&format!("/api/v1/turns/{turn}/{verb}"), &twice, 400).await;
        assert!(
            twice["detail"].as_str().unwrap().contains("`turn` is in the path of the request"),
            "{twice}"
        );
    }
    for (at, written) in [
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000000Z"),
        ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000000Z"),
    ] {
        let late = json!({"turns": [{"role": "user", "content": "a", "occurred_at": at}]});
        let late = stage.post(&path, &late, 201).await;
        assert_eq!(late["turns"][0]["occurred_at"], written);
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_all_or_nothing_and_a_repeat_is_harmless() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/turns");
    let bad =
        json!({"turns": [{"role": "user", "content": "a"}, {"role": "user", "message": {"role": "user"}}]});
    let problem = stage.post(&path, &bad, 400).await;
    assert_eq!(problem["code"], "turn.said_twice");
    assert!(problem["detail"].as_str().unwrap().starts_with("turns[1]"));
    assert_eq!(stage.get(&path, 200).await["data"], json!([]));

    let append = |text: &'static str| {
        let body = json!({"turns": [{"role": "user", "content": text}]}).to_string();
        let request = stage.request(Method::POST, &path).header("idempotency-key", "once");
        request.header("content-type", "application/json").body(body)
    };
    let first = answer(append("hello"), 201).await;
    let again = answer(append("hello"), 200).await;
    assert_eq!(first["turns"], again["turns"]);
    assert_eq!((&first["repeated"], &again["repeated"]), (&json!(false), &json!(true)));
    answer(append("other"), 409).await;

    let seq = first["head"]["seq"].as_u64().unwrap();
    let next = json!({"turns": [{"role": "assistant", "content": "hi"}], "expected_seq": seq});
    stage.post(&path, &next, 201).await;
    assert_eq!(stage.post(&path, &next, 409).await["code"], "append.stale_seq");
    assert_eq!(stage.get(&path, 200).await["data"].as_array().unwrap().len(), 2);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_can_be_read_in_every_way() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/turns");
    for (n, actor) in ["ana", "bob", "a,b", "ana", "eve"].into_iter().enumerate() {
        let turn = json!({"role": "user", "content": n.to_string(), "actor": actor});
        stage.post(&path, &json!({ "turns": [turn] }), 201).await;
    }
    let words = |page: &Value| -> Vec<String> {
        let data = page["data"].as_array().unwrap().iter();
        data.map(|turn| turn["content"].as_str().unwrap_or("-").to_string()).collect()
    };
    let page = stage.get(&format!("{path}?limit=2&order=desc"), 200).await;
    assert_eq!(words(&page), ["4", "3"]);
    let before = page["next"].as_str().unwrap();
    let page = stage.get(&format!("{path}?limit=9&order=desc&before={before}"), 200).await;
    assert_eq!((words(&page), &page["next"]), (vec!["2".into(), "1".into(), "0".into()], &Value::Null));
    let page = stage.get(&format!("{path}?actor=ana&actor=a%2Cb"), 200).await;
    assert_eq!(words(&page), ["0", "2", "3"]);
    let page = stage.get(&format!("{path}?after=4&limit=1"), 200).await;
    assert_eq!(words(&page), ["3"]);

    let third = stage.get(&path, 200).await["data"][2]["id"].as_str().unwrap().to_string();
    let new = json!({"role": "user", "content": "two"});
    let new = stage.post(&format!("/api/v1/turns/{third}/supersede"), &new, 201).await;
    stage
        .post(&format!("/api/v1/turns/{third}/supersede"), &json!({"role": "user", "content": "x"}), 409)
        .await;
    assert_eq!(words(&stage.get(&path, 200).await), ["0", "1", "two", "3", "4"]);
    let edited = &new["turns"][0];
    assert_eq!((&edited["seq"], &edited["place"]), (&json!(7), &json!(4)));
    // A cursor is a place: an edit between two pages moves nothing.
    let page = stage.get(&format!("{path}?after={}&limit=1", edited["place"]), 200).await;
    assert_eq!(words(&page), ["3"]);
    let all = stage.get(&format!("{path}?include_superseded=true&include_events=true"), 200).await;
    assert_eq!(words(&all), ["-", "0", "1", "2", "3", "4", "two", "-"].map(String::from).to_vec());
    assert_eq!(all["data"][3]["superseded_by"], new["turns"][0]["id"]);
    for query in ["order=up", "include_superseded=perhaps", "acter=ana", "before=-1", "limit=0"] {
        stage.get(&format!("{path}?{query}"), 400).await;
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_edited_in_place_or_branched_from() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    for text in ["Q1", "A1", "Q2", "A2"] {
        stage.say(&id, text).await;
    }
    let path = |id: &str| format!("/api/v1/conversations/{id}/turns");
    let words = |page: &Value| -> Vec<String> {
        let data = page["data"].as_array().unwrap().iter();
        data.map(|turn| turn["content"].as_str().unwrap().to_string()).collect()
    };
    let turns = stage.get(&path(&id), 200).await["data"].clone();
    let turn = |n: usize| turns[n]["id"].as_str().unwrap().to_string();
    // The role is that of the old turn.
    let new = json!({"content": "Q1'"});
    stage.post(&format!("/api/v1/turns/{}/supersede", turn(0)), &new, 201).await;
    let new = json!({"content": "Q2, other"});
    let branched = stage.post(&format!("/api/v1/turns/{}/branch", turn(2)), &new, 201).await;
    let fork = branched["turns"][0]["conversation"].as_str().unwrap();
    assert_eq!(words(&stage.get(&path(fork), 200).await), ["Q1'", "A1", "Q2, other"]);
    assert_eq!(words(&stage.get(&path(&id), 200).await), ["Q1'", "A1", "Q2", "A2"]);
    // An inherited turn is edited in the fork that is named.
    let new = json!({"role": "user", "content": "A1, other"});
    let edit = format!("/api/v1/turns/{}/supersede?conversation={fork}", turn(1));
    stage.post(&edit, &new, 201).await;
    assert_eq!(words(&stage.get(&path(fork), 200).await), ["Q1'", "A1, other", "Q2, other"]);
    assert_eq!(words(&stage.get(&path(&id), 200).await), ["Q1'", "A1", "Q2", "A2"]);
    let prompt = json!({"token_budget": 1000});
    let context = stage.post(&format!("/api/v1/conversations/{id}/context"), &prompt, 200).await;
    let messages = context["messages"].as_array().unwrap().iter();
    let messages: Vec<&str> = messages.map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(messages, ["Q1'", "A1", "Q2", "A2"]);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_turn_keeps_its_envelope() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let turn = stage.say(&id, "my number is 12").await["id"].as_str().unwrap().to_string();
    let path = format!("/api/v1/turns/{turn}");
    assert_eq!(stage.post(&format!("{path}/erase"), &json!({}), 400).await["code"], "body.shape");
    let erased = stage.post(&format!("{path}/erase"), &json!({"reason": "asked", "by": "dpo"}), 200).await;
    assert_eq!((&erased["erased"], erased.get("content")), (&json!(true), None));
    let events =
        stage.request(Method::GET, &format!("/api/v1/conversations/{id}/events")).send().await.unwrap();
    assert!(!events.text().await.unwrap().contains("my number"));
    let verdict = stage.get(&format!("/api/v1/conversations/{id}/verify"), 200).await;
    assert_eq!((&verdict["ok"], &verdict["erased"]), (&json!(true), &json!(1)));
    stage.stop().await;
}

/// A field has one location: one that belongs in the body is not accepted in the query.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_beside_a_body_is_refused() {
    let stage = Stage::new().await;
    let refused = stage.post("/api/v1/conversations?title=x", &json!({}), 400).await;
    assert_eq!(refused["code"], "query.shape", "{refused}");
    let id = stage.conversation().await;
    let refused = stage.get("/api/v1/conversations/resolve", 400).await;
    assert_eq!(refused["code"], "query.shape", "{refused}");
    let unknown = stage.get(&format!("/api/v1/conversations/{id}/turns?zzz=1"), 400).await;
    assert!(
        unknown["code"] == "query.shape" && unknown["detail"].as_str().unwrap().contains("zzz"),
        "{unknown}"
    );
    stage.stop().await;
}
