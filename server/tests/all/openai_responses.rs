//! Responses on the wire: the order of events, and what is stored.

use crate::openai::{events, read_events, stage, stage_and_scope};
use everturn::ListQuery;
use reqwest::Method;
use serde_json::{Value, json};

fn names(events: &[(Option<String>, Value)]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_deref().unwrap()).collect();
    names.dedup();
    names
}

const TEXT: [&str; 9] = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
];

const CALL: [&str; 7] = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
];

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_the_order_of_openai() {
    let (_provider, stage) = stage().await;
    for model in ["chat", "claude"] {
        let said =
            events(&stage, "/v1/responses", &json!({"model": model, "input": "ab", "stream": true})).await;
        assert_eq!(names(&said), TEXT, "{model}");
        let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
        let body = json!({"model": model, "input": "ab", "stream": true, "tools": [tool]});
        let called = events(&stage, "/v1/responses", &body).await;
        assert_eq!(names(&called), CALL, "{model}");
        for stream in [&said, &called] {
            for (place, (name, event)) in stream.iter().enumerate() {
                assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(place)));
            }
            let last = &stream.last().unwrap().1["response"];
            let done =
                stream.iter().find(|(name, _)| name.as_deref() == Some("response.output_item.done")).unwrap();
            assert_eq!(
                done.1["item"], last["output"][0],
                "the item as it was shown is the item as it is kept"
            );
            assert_eq!(done.1["output_index"], 0);
            let kept = stage.get(&format!("/v1/responses/{}", last["id"].as_str().unwrap()), 200).await;
            assert_eq!(kept["output"], last["output"]);
        }
    }
    stage.stop().await;
}

/// Encrypted reasoning shows nothing while it is streamed, and must be sent back before the reply that it led
/// to.
#[tokio::test(flavor = "multi_thread")]
async fn sealed_reasoning_is_kept_in_its_place() {
    let (provider, stage) = stage().await;
    let body = json!({"model": "responses", "input": "ab", "stream": true});
    let stream = events(&stage, "/v1/responses", &body).await;
    let last = &stream.last().unwrap().1["response"];
    let kinds: Vec<&str> =
        last["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    let shown = stream.iter().find(|(name, _)| name.as_deref() == Some("response.output_text.done")).unwrap();
    assert_eq!(
        shown.1["item_id"], last["output"][1]["id"],
        "an item has the same name in the stream and afterwards"
    );
    let kept = stage.get(&format!("/v1/responses/{}", last["id"].as_str().unwrap()), 200).await;
    assert_eq!(kept["output"], last["output"]);
    let body = json!({"model": "responses", "input": "cd", "previous_response_id": last["id"]});
    stage.post("/v1/responses", &body, 200).await;
    let sent = provider.seen().pop().unwrap();
    let kinds: Vec<&str> =
        sent["input"].as_array().unwrap().iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{sent}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_stored_leaves_nothing_in_the_log() {
    let (_provider, stage, scope) = stage_and_scope().await;
    let first = stage.post("/v1/responses", &json!({"model": "chat", "input": "ab"}), 200).await;
    let before = scope.list(ListQuery::default()).unwrap().data;
    for stream in [false, true] {
        for previous in [&Value::Null, &first["id"]] {
            let body = json!({"model": "chat", "input": "cd", "store": false, "stream": stream, "previous_response_id": previous});
            let response = match stream {
                true => events(&stage, "/v1/responses", &body).await.pop().unwrap().1["response"].take(),
                false => stage.post("/v1/responses", &body, 200).await,
            };
            let heard = if previous.is_null() { "Heard 1: cd" } else { "Heard 2: cd" };
            assert_eq!(response["output"][0]["content"][0]["text"], heard);
            stage.get(&format!("/v1/responses/{}", response["id"].as_str().unwrap()), 404).await;
        }
    }
    assert_eq!(scope.list(ListQuery::default()).unwrap().data, before);
    assert!(scope.tombstones().unwrap().is_empty());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_when_its_client_has_gone_until_it_is_cancelled() {
    let (_provider, stage) = stage().await;
    let body = json!({"model": "chat", "input": "forever", "stream": true}).to_string();
    let request = stage.request(Method::POST, "/v1/responses").header("content-type", "application/json");
    let mut response = request.body(body).send().await.unwrap();
    let mut text = String::new();
    while !text.contains("response.output_text.delta") {
        text.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
    drop(response);
    let created: Value =
        serde_json::from_str(text.lines().nth(1).unwrap().strip_prefix("data: ").unwrap()).unwrap();
    let path = format!("/v1/responses/{}", created["response"]["id"].as_str().unwrap());
    let running = stage.get(&path, 200).await;
    assert_eq!(running["status"], "in_progress");
    assert_eq!(running["created_at"], created["response"]["created_at"]);
    let cancelled = stage.post(&format!("{path}/cancel"), &json!({}), 200).await;
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(stage.get(&path, 200).await["status"], "cancelled");
    stage.stop().await;
}

/// A client that lost its connection streams the response again, whether it has ended or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_can_be_streamed_again() {
    let (_provider, stage) = stage().await;
    let again = async |id: &Value| {
        let path = format!("/v1/responses/{}?stream=true", id.as_str().unwrap());
        read_events(stage.request(Method::GET, &path).send().await.unwrap()).await
    };
    let function = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    let custom = json!({"type": "custom", "name": "python"});
    for (model, tools) in [
        ("chat", json!([])),
        ("responses", json!([])),
        ("claude", json!([function])),
        ("responses", json!([custom])),
    ] {
        let body = json!({"model": model, "input": "think", "stream": true, "tools": tools});
        let first = events(&stage, "/v1/responses", &body).await;
        let last = &first.last().unwrap().1["response"];
        let second = again(&last["id"]).await;
        assert_eq!(
            second.last().unwrap(),
            &(
                Some("response.completed".into()),
                json!({"type": "response.completed",
            "sequence_number": second.len() - 1, "response": last})
            ),
            "{model}"
        );
        let done = |events: &[(Option<String>, Value)]| -> Vec<Value> {
            let done = events.iter().filter(|(name, _)| name.as_deref() == Some("response.output_item.done"));
            done.map(|(_, event)| event["item"].clone()).collect()
        };
        assert_eq!(json!(done(&second)), last["output"], "{model}");
        if tools == json!([custom]) {
            for stream in [&first, &second] {
                assert!(names(stream).contains(&"response.custom_tool_call_input.delta"), "{stream:?}");
                assert!(names(stream).contains(&"response.custom_tool_call_input.done"), "{stream:?}");
            }
            assert!(done(&first).contains(&last["output"][1]), "{first:?}");
            assert_eq!(last["output"][1]["input"], "print(1)");
        }
    }
    let body = json!({"model": "chat", "input": "forever", "background": true});
    let running = stage.post("/v1/responses", &body, 200).await;
    let path = format!("/v1/responses/{}", running["id"].as_str().unwrap());
    let mut stream = stage.request(Method::GET, &format!("{path}?stream=true")).send().await.unwrap();
    let mut text = String::new();
    while !text.contains("tick ") {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    stage.post(&format!("{path}/cancel"), &json!({}), 200).await;
    text.push_str(&stream.text().await.unwrap());
    assert!(text.contains("response.incomplete") && text.contains("\"cancelled\""), "{text}");
    let refused = stage.get(&format!("{path}?stream=true&starting_after=3"), 400).await;
    assert_eq!(refused["error"]["param"], "starting_after");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_wants_no_truncation_is_refused_instead() {
    let (_provider, stage) = stage().await;
    let made = stage.post("/v1/conversations", &json!({}), 200).await;
    let items: Vec<Value> = (0..20)
        .map(|at| json!({"type": "message", "role": "user", "content": format!("{at} {}", "word ".repeat(8_000))}))
        .collect();
    stage
        .post(
            &format!("/v1/conversations/{}/items", made["id"].as_str().unwrap()),
            &json!({"items": items}),
            200,
        )
        .await;
    let body = |truncation: Value| json!({"model": "chat", "conversation": made["id"], "input": "ab", "truncation": truncation});
    let refused = stage.post("/v1/responses", &body(json!("disabled")), 400).await;
    assert_eq!(refused["error"]["code"], "context_length_exceeded", "{refused}");
    for truncation in [json!("auto"), Value::Null] {
        let answered = stage.post("/v1/responses", &body(truncation), 200).await;
        assert_eq!(answered["truncation"], "auto");
    }
    let refused = stage.post("/v1/responses", &body(json!("sometimes")), 400).await;
    assert_eq!(refused["error"]["param"], "truncation");
    stage.stop().await;
}

const THOUGHT: [&str; 7] = [
    "response.output_item.added",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done",
    "response.output_item.done",
    "response.output_item.added",
];

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_is_an_item_of_its_own_before_the_answer() {
    let (provider, stage) = stage().await;
    for model in ["chat", "claude"] {
        let body = json!({"model": model, "input": "think", "stream": true});
        let stream = events(&stage, "/v1/responses", &body).await;
        assert_eq!(names(&stream)[2..9], THOUGHT, "{model}");
        let last = &stream.last().unwrap().1["response"];
        let done: Vec<&Value> = stream
            .iter()
            .filter(|(name, _)| name.as_deref() == Some("response.output_item.done"))
            .map(|(_, event)| &event["item"])
            .collect();
        assert_eq!(last["output"].as_array().unwrap().iter().collect::<Vec<_>>(), done, "{model}");
        assert_eq!(last["output"][0]["summary"][0]["text"], "Let me see.");
        let kept = stage.get(&format!("/v1/responses/{}", last["id"].as_str().unwrap()), 200).await;
        assert_eq!(kept["output"], last["output"]);
        stage
            .post(
                "/v1/responses",
                &json!({"model": model, "input": "b", "previous_response_id": last["id"]}),
                200,
            )
            .await;
    }
    // The provider that signed it gets it back unchanged.
    let sent = provider.seen().pop().unwrap();
    assert_eq!(sent["messages"][1]["content"][0]["signature"], "c2lnbmVk", "{sent}");
    stage.stop().await;
}

/// An item referred to by id is passed on unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn an_item_can_be_referred_to() {
    let (provider, stage) = stage().await;
    let items = json!([{"role": "user", "content": "elsewhere"}]);
    let made = stage.post("/v1/conversations", &json!({"items": items}), 200).await;
    let listed = stage.get(&format!("/v1/conversations/{}/items", made["id"].as_str().unwrap()), 200).await;
    let reference = json!({"type": "item_reference", "id": listed["data"][0]["id"]});
    for store in [true, false] {
        let body = json!({"model": "chat", "store": store, "input": [reference, {"role": "user", "content": "here"}]});
        stage.post("/v1/responses", &body, 200).await;
        let sent = provider.seen().pop().unwrap();
        assert_eq!(sent["messages"][0]["content"], "elsewhere", "{sent}");
    }
    let absent = json!({"model": "chat", "input": [{"type": "item_reference", "id": "msg_1"}]});
    assert_eq!(stage.post("/v1/responses", &absent, 404).await["error"]["code"], "item_not_found");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_continue_the_same_response_at_once_get_a_branch_each() {
    let (_provider, stage) = stage().await;
    let first = stage.post("/v1/responses", &json!({"model": "chat", "input": "a"}), 200).await;
    let body = |text: &str| json!({"model": "chat", "input": text, "previous_response_id": first["id"]});
    let (left, right) = (body("left"), body("right"));
    let (left, right) =
        tokio::join!(stage.post("/v1/responses", &left, 200), stage.post("/v1/responses", &right, 200));
    assert_eq!(left["output"][0]["content"][0]["text"], "Heard 2: left");
    assert_eq!(right["output"][0]["content"][0]["text"], "Heard 2: right");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn part_of_a_turn_cannot_be_deleted() {
    let (_provider, stage) = stage().await;
    let items = json!([{"role": "assistant", "content": "Let me see.",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]);
    let made = stage.post("/v1/conversations", &json!({"items": items}), 200).await;
    let path = format!("/v1/conversations/{}/items", made["id"].as_str().unwrap());
    let listed = stage.get(&path, 200).await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    let item = listed["data"][0]["id"].as_str().unwrap();
    let request = stage.request(Method::DELETE, &format!("{path}/{item}"));
    let refused = crate::stage::answer(request, 400).await;
    assert_eq!(refused["error"]["code"], "item.part_of_turn");
    stage.stop().await;
}
