//! Responses on the wire: the order of events, and what is stored.

use crate::openai::{events, read_events, stage, stage_and_tenant};
use everturn_engine::ListQuery;
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

/// A client may keep the items of the stream or those of the final response: they are the same, and in the same order.
#[tokio::test(flavor = "multi_thread")]
async fn items_of_a_stream_are_those_of_the_response() {
    let (provider, stage) = stage().await;
    for (model, input, status) in [
        ("responses", "ab", "completed"),
        ("responses", "phases", "completed"),
        ("chat", "think", "completed"),
        ("claude", "think", "completed"),
        ("chat", "cut short", "incomplete"),
        ("claude", "cut short", "incomplete"),
        ("responses", "cut short", "incomplete"),
    ] {
        for store in [true, false] {
            let body = json!({"model": model, "input": input, "stream": true, "store": store});
            let stream = events(&stage, "/v1/responses", &body).await;
            let last = &stream.last().unwrap().1["response"];
            let done = stream.iter().filter(|(name, _)| name.as_deref() == Some("response.output_item.done"));
            for (place, (_, event)) in done.clone().enumerate() {
                assert_eq!(event["output_index"], place, "{model}: {input}");
            }
            let done: Vec<&Value> = done.map(|(_, event)| &event["item"]).collect();
            assert_eq!(json!(done), last["output"], "{model}: {input}");
            assert_eq!((&last["status"], &done.last().unwrap()["status"]), (&json!(status), &json!(status)));
            if store {
                let kept = stage.get(&format!("/v1/responses/{}", last["id"].as_str().unwrap()), 200).await;
                assert_eq!(kept["output"], last["output"], "{model}: {input}");
            }
            if input == "phases" {
                let texts = |kind: &str| -> Vec<Value> {
                    let done = stream.iter().filter(|(name, _)| name.as_deref() == Some(kind));
                    done.map(|(_, event)| event["text"].clone()).collect()
                };
                assert_eq!(texts("response.reasoning_summary_text.done"), ["One.", "Two."]);
                assert_eq!(texts("response.output_text.done"), ["I look it up. ", "1, 2, 3"]);
                assert_eq!(done[0]["encrypted_content"], "c2VhbGVk");
                assert_eq!(
                    (&done[1]["phase"], &done[2]["phase"]),
                    (&json!("commentary"), &json!("final_answer"))
                );
                let mut input: Vec<Value> = done.into_iter().cloned().collect();
                input.push(json!({"role": "user", "content": "And now?"}));
                stage.post("/v1/responses", &json!({"model": model, "input": input}), 200).await;
                let sent = provider.seen().pop().unwrap();
                assert_eq!(sent["input"][0]["encrypted_content"], "c2VhbGVk", "{sent}");
                assert_eq!(sent["input"][1]["phase"], "commentary", "{sent}");
            }
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
    let (_provider, stage, tenant) = stage_and_tenant().await;
    let first = stage.post("/v1/responses", &json!({"model": "chat", "input": "ab"}), 200).await;
    let before = tenant.list(ListQuery::default()).unwrap().data;
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
    assert_eq!(tenant.list(ListQuery::default()).unwrap().data, before);
    assert!(tenant.tombstones().unwrap().is_empty());
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
        let body = |stream: bool| json!({"model": model, "input": "think", "stream": stream, "tools": tools});
        let first = events(&stage, "/v1/responses", &body(true)).await;
        let last = &first.last().unwrap().1["response"];
        assert_eq!(again(&last["id"]).await, first, "{model}: as it was streamed");
        // One that was not streamed is streamed from the log.
        let last = &stage.post("/v1/responses", &body(false), 200).await;
        let second = again(&last["id"]).await;
        let completed =
            json!({"type": "response.completed", "sequence_number": second.len() - 1, "response": last});
        assert_eq!(second.last().unwrap(), &(Some("response.completed".into()), completed), "{model}");
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

fn call_of(response: &Value) -> Value {
    let items = response["output"].as_array().unwrap();
    items.iter().find(|item| item["type"] == "function_call").unwrap()["call_id"].clone()
}

fn references(response: &Value) -> Vec<Value> {
    let items = response["output"].as_array().unwrap().iter();
    items.map(|item| json!({"type": "item_reference", "id": item["id"]})).collect()
}

/// Occurrences of a text in the last request that the provider saw.
fn seen_times(provider: &crate::scripted_provider::ScriptedProvider, text: &str) -> usize {
    provider.seen().pop().unwrap().to_string().matches(text).count()
}

/// Vercel's SDK refers to every item of a reply, in a request that names nothing before it.
#[tokio::test(flavor = "multi_thread")]
async fn references_are_resolved_item_by_item_and_once() {
    let (provider, stage) = stage().await;
    let user = |text: &str| json!({"role": "user", "content": text});
    let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    for model in ["chat", "responses", "claude"] {
        for store in [true, false] {
            let ask = async |input: Vec<Value>, tools: Value| {
                let body = json!({"model": model, "input": input, "tools": tools, "store": store});
                stage.post("/v1/responses", &body, 200).await
            };
            let body = json!({"model": model, "input": [user("think")]});
            let first = stage.post("/v1/responses", &body, 200).await;
            let all = references(&first);
            // All items of the reply, and each of them twice.
            for references in [all.clone(), [all.clone(), all.clone()].concat()] {
                let input = [vec![user("think")], references, vec![user("next")]].concat();
                let answer = ask(input, json!([])).await;
                assert_eq!(
                    answer["output"].as_array().unwrap().last().unwrap()["content"][0]["text"],
                    "Heard 2: next"
                );
                assert_eq!(seen_times(&provider, "Heard 1: think"), 1);
            }
            let signed = if model == "claude" { 1 } else { 0 };
            assert_eq!(seen_times(&provider, "c2lnbmVk"), signed);
            // The text alone does not bring the reasoning of its turn.
            ask(vec![user("think"), all.last().unwrap().clone(), user("next")], json!([])).await;
            assert_eq!((seen_times(&provider, "Heard 1: think"), seen_times(&provider, "c2lnbmVk")), (1, 0));
            // A call, and its result.
            let body = json!({"model": model, "input": [user("hot?")], "tools": [tool]});
            let called = stage.post("/v1/responses", &body, 200).await;
            let output =
                json!({"type": "function_call_output", "call_id": call_of(&called), "output": "21 degrees"});
            let input = [vec![user("hot?")], references(&called), vec![output]].concat();
            let answer = ask(input, json!([tool])).await;
            let text = &answer["output"].as_array().unwrap().last().unwrap()["content"][0]["text"];
            assert_eq!(text, "The tool says: 21 degrees", "{model}");
            assert_eq!(seen_times(&provider, "Paris"), 1);
        }
    }
    stage.stop().await;
}

/// Vercel's SDK sends the whole exchange again in each step, without the items whose ids it knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_a_conversation_again_appends_only_what_is_new() {
    let (provider, stage) = stage().await;
    let user = |text: &str| json!({"role": "user", "content": [{"type": "input_text", "text": text}]});
    let system = json!({"role": "system", "content": "Be brief."});
    let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    for model in ["chat", "responses", "claude"] {
        let made = stage.post("/v1/conversations", &json!({}), 200).await;
        let ask = async |input: Vec<Value>, tools: Value| {
            let body = json!({"model": model, "conversation": made["id"], "input": input, "tools": tools});
            stage.post("/v1/responses", &body, 200).await
        };
        let called = ask(vec![system.clone(), user("hot?")], json!([tool])).await;
        let result =
            json!({"type": "function_call_output", "call_id": call_of(&called), "output": "21 degrees"});
        ask(vec![system.clone(), user("hot?"), result.clone()], json!([tool])).await;
        assert_eq!(seen_times(&provider, "hot?"), 1, "{model}");
        ask(vec![system.clone(), user("hot?"), result.clone(), user("thanks")], json!([])).await;
        // The same words again are a new message.
        ask(vec![user("thanks")], json!([])).await;
        let path = format!("/v1/conversations/{}/items?order=asc", made["id"].as_str().unwrap());
        let items = stage.get(&path, 200).await;
        let items = items["data"].as_array().unwrap().iter().filter(|item| item["type"] != "reasoning");
        let said: Vec<String> = items
            .map(|item| match item["type"].as_str().unwrap() {
                "message" => item["content"][0]["text"].as_str().unwrap().to_string(),
                kind => kind.to_string(),
            })
            .collect();
        let expected = [
            "Be brief.",
            "hot?",
            "function_call",
            "function_call_output",
            "The tool says: 21 degrees",
            "thanks",
            "Heard 2: thanks",
            "thanks",
            "Heard 3: thanks",
        ];
        assert_eq!(said, expected, "{model}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_without_its_call_is_refused() {
    let (_provider, stage) = stage().await;
    let output = json!({"type": "function_call_output", "call_id": "call_lost", "output": "?"});
    for store in [true, false] {
        let body =
            json!({"model": "claude", "input": [{"role": "user", "content": "a"}, output], "store": store});
        let refused = stage.post("/v1/responses", &body, 400).await;
        assert_eq!(refused["error"]["code"], "tool_call_not_found");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("call_lost"), "{message}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cancelled_answer_said_is_part_of_the_conversation() {
    let (provider, stage) = stage().await;
    for model in ["chat", "claude"] {
        let made = stage.post("/v1/conversations", &json!({}), 200).await;
        let body = json!({"model": model, "conversation": made["id"], "input": "forever", "stream": true});
        let request = stage.request(Method::POST, "/v1/responses").header("content-type", "application/json");
        let mut stream = request.body(body.to_string()).send().await.unwrap();
        let mut text = String::new();
        while !text.contains("tick ") {
            text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
        }
        let created: Value =
            serde_json::from_str(text.lines().nth(1).unwrap().strip_prefix("data: ").unwrap()).unwrap();
        let path = format!("/v1/responses/{}", created["response"]["id"].as_str().unwrap());
        let cancelled = stage.post(&format!("{path}/cancel"), &json!({}), 200).await;
        assert_eq!(cancelled["status"], "cancelled");
        let item = &cancelled["output"][0];
        assert!(item["content"][0]["text"].as_str().unwrap().starts_with("tick "), "{cancelled}");
        assert_eq!(item["status"], "incomplete");
        assert_eq!(stage.get(&path, 200).await, cancelled);
        let items =
            stage.get(&format!("/v1/conversations/{}/items", made["id"].as_str().unwrap()), 200).await;
        assert_eq!(&items["data"][0], item);
        for before in [json!({"conversation": made["id"]}), json!({"previous_response_id": cancelled["id"]})]
        {
            let mut body = json!({"model": model, "input": "go on"});
            body.as_object_mut().unwrap().extend(before.as_object().unwrap().clone());
            stage.post("/v1/responses", &body, 200).await;
            assert!(seen_times(&provider, "tick ") > 0, "{body}");
        }
    }
    stage.stop().await;
}

/// A client that stores nothing here gets reasoning in a form that its provider accepts again.
#[tokio::test(flavor = "multi_thread")]
async fn signed_reasoning_survives_a_client_that_carries_it() {
    let (provider, stage) = stage().await;
    let user = |text: &str| json!({"role": "user", "content": text});
    let include = json!(["reasoning.encrypted_content"]);
    let body = json!({"model": "claude", "input": [user("think")], "store": false, "include": include});
    let first = stage.post("/v1/responses", &body, 200).await;
    assert!(first["output"][0]["encrypted_content"].is_string(), "{first}");
    let mut streaming = body.clone();
    streaming["stream"] = json!(true);
    let stream = events(&stage, "/v1/responses", &streaming).await;
    let done = stream.iter().find(|(name, _)| name.as_deref() == Some("response.output_item.done")).unwrap();
    assert_eq!(done.1["item"]["encrypted_content"], first["output"][0]["encrypted_content"]);
    let output = first["output"].as_array().unwrap().clone();
    let input = [vec![user("think")], output, vec![user("next")]].concat();
    for store in [true, false] {
        let body = json!({"model": "claude", "input": input, "store": store, "include": include});
        stage.post("/v1/responses", &body, 200).await;
        let seen = provider.seen().pop().unwrap();
        let thought = json!({"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"});
        assert_eq!(seen["messages"][1]["content"][0], thought, "{seen}");
        assert_eq!(seen["messages"].as_array().unwrap().len(), 3, "{seen}");
    }
    // Another provider gets the words, without what it cannot read.
    stage.post("/v1/responses", &json!({"model": "chat", "input": input, "store": false}), 200).await;
    assert_eq!(seen_times(&provider, "c2lnbmVk"), 0);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_after_the_event_that_was_seen_last() {
    let (_provider, stage) = stage().await;
    let rest = async |id: &Value, after: usize| {
        let path = format!("/v1/responses/{}?stream=true&starting_after={after}", id.as_str().unwrap());
        read_events(stage.request(Method::GET, &path).send().await.unwrap()).await
    };
    for model in ["chat", "responses", "claude"] {
        let body = json!({"model": model, "input": "think about it", "stream": true});
        let all = events(&stage, "/v1/responses", &body).await;
        let id = &all.last().unwrap().1["response"]["id"];
        for seen in [0, 3, all.len() - 2] {
            assert_eq!(rest(id, seen).await, all[seen + 1..], "{model}");
        }
        assert_eq!(rest(id, all.len() + 7).await, [(None, json!("[DONE]"))]);
    }
    // While it is being written, in the background.
    let body = json!({"model": "chat", "input": "forever", "background": true});
    let running = stage.post("/v1/responses", &body, 200).await;
    let path = format!("/v1/responses/{}", running["id"].as_str().unwrap());
    let mut stream =
        stage.request(Method::GET, &format!("{path}?stream=true&starting_after=4")).send().await.unwrap();
    let mut text = String::new();
    while !text.contains("\"sequence_number\":6") {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    assert!(!text.contains("\"sequence_number\":4,") && text.contains("\"sequence_number\":5,"), "{text}");
    stage.post(&format!("{path}/cancel"), &json!({}), 200).await;
    assert!(stream.text().await.unwrap().contains("response.incomplete"));
    // One that was never streamed has no numbers.
    let whole = stage.post("/v1/responses", &json!({"model": "chat", "input": "a"}), 200).await;
    let path = format!("/v1/responses/{}?stream=true", whole["id"].as_str().unwrap());
    let refused = stage.get(&format!("{path}&starting_after=1"), 400).await;
    assert_eq!(refused["error"]["param"], "starting_after");
    assert!(!read_events(stage.request(Method::GET, &path).send().await.unwrap()).await.is_empty());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_responses_is_compacted_with_its_messages() {
    let (_provider, stage) = stage().await;
    let first =
        stage.post("/v1/responses", &json!({"model": "chat", "input": "The word is slate."}), 200).await;
    let body = json!({"model": "chat", "input": "And ember.", "previous_response_id": first["id"]});
    let second = stage.post("/v1/responses", &body, 200).await;
    let body = json!({"model": "chat", "previous_response_id": second["id"]});
    let compacted = stage.post("/v1/responses/compact", &body, 200).await;
    let output = compacted["output"].as_array().unwrap();
    let said: Vec<&Value> = output.iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(said, [&json!("The word is slate."), &json!("And ember."), &Value::Null]);
    let both = compacted["usage"]["input_tokens"].as_u64().unwrap();
    let body = json!({"model": "chat", "previous_response_id": first["id"]});
    let one = stage.post("/v1/responses/compact", &body, 200).await;
    assert!(both > one["usage"]["input_tokens"].as_u64().unwrap() && one["usage"]["input_tokens"] != 0);
    stage.stop().await;
}

/// Regression: a call that waited was compacted away, and its result refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_is_not_compacted() {
    let (_provider, stage) = stage().await;
    let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    for model in ["chat", "responses", "claude"] {
        let user = json!({"type": "message", "role": "user", "content": "hot?"});
        let body = json!({"model": model, "input": [user], "tools": [tool]});
        let called = stage.post("/v1/responses", &body, 200).await;
        let call = called["output"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(call["type"], "function_call");
        for body in [
            json!({"model": model, "previous_response_id": called["id"]}),
            json!({"model": model, "input": [user, call]}),
        ] {
            let compacted = stage.post("/v1/responses/compact", &body, 200).await;
            let mut items = compacted["output"].as_array().unwrap().clone();
            assert!(items.iter().any(|item| item["type"] == "compaction"), "{items:?}");
            let kept = items.last().unwrap().clone();
            for field in ["type", "call_id", "name", "arguments"] {
                assert_eq!(kept[field], call[field], "{kept}");
            }
            items.push(
                json!({"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"}),
            );
            let body = json!({"model": model, "input": items, "tools": [tool]});
            let answer = stage.post("/v1/responses", &body, 200).await;
            let text = &answer["output"].as_array().unwrap().last().unwrap()["content"][0]["text"];
            assert_eq!(text, "The tool says: 21 degrees", "{model}");
        }
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_cannot_do_is_refused_by_name() {
    let (provider, stage) = stage().await;
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, body, param) in [
        ("/v1/chat/completions", json!({"model": "chat", "messages": messages, "n": 2}), "n"),
        ("/v1/chat/completions", json!({"model": "chat", "messages": messages, "n": 0}), "n"),
        (
            "/v1/chat/completions",
            json!({"model": "chat", "messages": messages, "logprobs": true}),
            "logprobs",
        ),
        ("/v1/chat/completions", json!({"model": "chat", "messages": []}), "messages"),
        ("/v1/responses", json!({"model": "chat", "input": "a", "top_logprobs": 2}), "top_logprobs"),
        (
            "/v1/responses",
            json!({"model": "claude", "input": "a", "include": ["message.output_text.logprobs"]}),
            "top_logprobs",
        ),
    ] {
        let refused = stage.post(path, &body, 400).await;
        assert_eq!(refused["error"]["param"], param, "{refused}");
    }
    let body = json!({"model": "responses", "input": "a", "top_logprobs": 2});
    stage.post("/v1/responses", &body, 200).await;
    assert_eq!(provider.seen().pop().unwrap()["top_logprobs"], 2);
    for store in [true, false] {
        let refused =
            stage.post("/v1/responses", &json!({"model": "claude", "input": [], "store": store}), 400).await;
        assert_eq!(refused["error"]["code"], "generate.nothing");
    }
    stage.stop().await;
}
