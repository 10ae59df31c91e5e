//! Conversations, chat and messages for OpenAI's and Anthropic's clients, on the wire.

use crate::scripted_provider::ScriptedProvider;
use crate::stage::{Stage, answer, config};
use everturn_engine::Tenant;
use everturn_server::App;
use reqwest::Method;
use serde_json::{Value, json};

/// A server with the models of a scripted provider.
pub async fn stage() -> (ScriptedProvider, Stage) {
    let (provider, stage, _) = stage_and_tenant().await;
    (provider, stage)
}

/// The same, with the tenant.
pub async fn stage_and_tenant() -> (ScriptedProvider, Stage, Tenant) {
    let provider = ScriptedProvider::start().await;
    let store = provider.store();
    let tenant = store.tenant("default").unwrap();
    let stage = Stage::with(App::new(store, config()).with_embedders(provider.embedders())).await;
    (provider, stage, tenant)
}

/// The events of a stream: their names and their data.
pub async fn events(stage: &Stage, path: &str, body: &Value) -> Vec<(Option<String>, Value)> {
    let request = stage.request(Method::POST, path).header("content-type", "application/json");
    read_events(request.body(body.to_string()).send().await.unwrap()).await
}

/// The events of a streamed answer. Those of a response end with a mark, which is left out.
pub async fn read_events(response: reqwest::Response) -> Vec<(Option<String>, Value)> {
    assert_eq!(response.status(), 200);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let text = response.text().await.unwrap();
    let event = |block: &str| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_string);
        let data = field("data: ")?;
        Some((field("event: "), serde_json::from_str(&data).unwrap_or(Value::String(data))))
    };
    let mut events: Vec<_> = text.split("\n\n").filter_map(event).collect();
    let of_response =
        |(name, _): &(Option<String>, Value)| name.as_deref()?.strip_prefix("response.").map(drop);
    if events.first().and_then(of_response).is_some() {
        assert_eq!(events.pop(), Some((None, json!("[DONE]"))));
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_keeps_its_bytes_in_the_log() {
    let (_provider, stage, tenant) = stage_and_tenant().await;
    let made = stage.post("/v1/conversations", &json!({}), 200).await;
    let path = format!("/v1/conversations/{}/items", made["id"].as_str().unwrap());
    // A number that no double can hold, and an unknown field.
    let item = r#"{"type":"message", "role":"user","content":[{"type":"input_text","text":"\u0041"}],"x":1.00000000000000000001}"#;
    let body = format!(r#"{{"items":[{item}]}}"#);
    let request = stage.request(Method::POST, &path).header("content-type", "application/json").body(body);
    let added = answer(request, 200).await;
    assert_eq!(added["data"][0]["content"][0]["text"], "A");
    let id = added["data"][0]["id"].as_str().unwrap();
    let turn = tenant.turn(id.replace("msg_", "turn_").parse().unwrap()).unwrap();
    assert_eq!(turn.message.unwrap().get(), item);
    assert_eq!(stage.get(&format!("{path}/{id}"), 200).await["status"], "completed");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_body_that_each_client_expects() {
    let (_provider, stage) = stage().await;
    for (method, path, body, status, code) in [
        (Method::GET, "/v1/conversations/conv_01JD0000000000000000000000", "", 404, "conversation_not_found"),
        (Method::GET, "/v1/conversations/nonsense", "", 404, "id.malformed"),
        (Method::GET, "/v1/nothing", "", 404, "route.absent"),
        (Method::PUT, "/v1/models", "", 405, "route.method"),
        (Method::POST, "/v1/conversations", "{", 400, "json.malformed"),
        (Method::POST, "/v1/responses", r#"{"model": "none", "input": "x"}"#, 404, "model_not_found"),
        (Method::POST, "/v1/conversations", r#"{"metadata": {"a": 1}}"#, 400, "invalid_value"),
        (Method::GET, "/v1/conversations?limit=0", "", 400, "invalid_value"),
    ] {
        let request = stage.request(method, path).header("content-type", "application/json").body(body);
        let got = answer(request, status).await;
        assert_eq!(got["error"]["code"], code, "{path}: {got}");
        assert!(got["error"]["message"].is_string() && got["error"]["type"].is_string(), "{got}");
        assert!(got["error"].get("param").is_some(), "{got}");
    }
    let got =
        stage.post("/v1/messages", &json!({"model": "none", "max_tokens": 1, "messages": []}), 404).await;
    assert_eq!((&got["type"], &got["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_recorded_once_however_much_of_it_is_sent() {
    let (provider, stage) = stage().await;
    let made = stage.post("/v1/conversations", &json!({}), 200).await;
    let id = made["id"].as_str().unwrap();
    let user = |text: &str| json!({"role": "user", "content": text});
    let ask =
        |messages: Value| json!({"model": "chat", "messages": messages, "metadata": {"conversation": id}});
    let first = stage.post("/v1/chat/completions", &ask(json!([user("a")])), 200).await;
    let said = first["choices"][0]["message"].clone();
    // All of it, the last part of it, and only what is new.
    stage.post("/v1/chat/completions", &ask(json!([user("a"), said, user("b")])), 200).await;
    stage.post("/v1/chat/completions", &ask(json!([user("c")])), 200).await;
    let items = stage.get(&format!("/v1/conversations/{id}/items?order=asc"), 200).await;
    let words: Vec<&str> = items["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(words, ["a", "Heard 1: a", "b", "Heard 2: b", "c", "Heard 1: c"]);
    // The provider must not see what is recorded.
    assert!(provider.seen().iter().all(|request| request.get("metadata").is_none()));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn further_fields_reach_a_server_that_speaks_the_same_language_as_they_are() {
    let (provider, stage) = stage().await;
    let body = json!({"model": "chat/special", "messages": [{"role": "user", "content": "a", "odd": 1}],
        "max_completion_tokens": 9, "temperature": 0.25, "new_field": {"x": [1]}, "n": 1});
    stage.post("/v1/chat/completions", &body, 200).await;
    let seen = provider.seen().pop().unwrap();
    assert_eq!(seen["model"], "special");
    for name in ["messages", "max_completion_tokens", "temperature", "new_field"] {
        assert_eq!(seen[name], body[name], "{name}");
    }
    let body = json!({"model": "claude", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 9,
        "stop": "x", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}});
    stage.post("/v1/chat/completions", &body, 200).await;
    let seen = provider.seen().pop().unwrap();
    assert_eq!((&seen["max_tokens"], &seen["stop_sequences"]), (&json!(9), &json!(["x"])));
    assert_eq!(seen["output_config"]["format"]["schema"], json!({"type": "object"}));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_stream_in_the_order_of_anthropic() {
    let (_provider, stage) = stage().await;
    for model in ["claude", "chat", "responses"] {
        let body = json!({"model": model, "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "ab"}],
            "tools": [{"name": "weather", "input_schema": {"type": "object"}}]});
        let events = events(&stage, "/v1/messages", &body).await;
        let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_deref().unwrap()).collect();
        names.dedup();
        assert_eq!(
            names,
            [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ],
            "{model}"
        );
        assert!(events.iter().all(|(name, data)| data["type"] == name.as_deref().unwrap()));
        let delta = &events[events.len() - 2].1;
        assert_eq!(
            (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
            (&json!("tool_use"), &json!(7))
        );
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_listed_page_by_page_without_hidden_ones() {
    let (_provider, stage) = stage().await;
    let mut made = Vec::new();
    for topic in ["a", "b", "c"] {
        let body = json!({"metadata": {"topic": topic}});
        made.insert(0, stage.post("/v1/conversations", &body, 200).await["id"].clone());
        stage.post("/v1/responses", &json!({"model": "chat", "input": topic}), 200).await;
    }
    let ids = |page: &Value| -> Vec<Value> {
        page["data"].as_array().unwrap().iter().map(|entry| entry["id"].clone()).collect()
    };
    let first = stage.get("/v1/conversations?limit=2", 200).await;
    assert_eq!((ids(&first), &first["has_more"]), (made[..2].to_vec(), &json!(true)));
    assert_eq!((&first["first_id"], &first["last_id"]), (&made[0], &made[1]));
    let next = format!("/v1/conversations?limit=2&after={}", first["last_id"].as_str().unwrap());
    let second = stage.get(&next, 200).await;
    assert_eq!((ids(&second), &second["has_more"]), (made[2..].to_vec(), &json!(false)));
    stage.post("/v1/conversations", &json!({"metadata": {"everturn.hidden": "x"}}), 400).await;
    stage.stop().await;
}

/// Anthropic's `tool_runner` lets the server keep the conversation, and sends only what is new; refused like this, it
/// sends everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_refused_as_anthropics_package_expects() {
    let (provider, stage) = stage().await;
    for model in ["claude", "chat"] {
        let message = json!({"role": "user", "content": "a"});
        let thread = json!({"type": "continue", "previous_message_id": "msg_1"});
        let body = |thread: Value, messages: Value| json!({"model": model, "max_tokens": 9, "messages": messages, "thread": thread});
        let refused = stage.post("/v1/messages", &body(thread, json!([message])), 400).await;
        assert_eq!(refused["error"]["type"], "invalid_request_error");
        assert_eq!(refused["error"]["details"]["error_code"], "thread_unsupported_request");
        let refused = stage.post("/v1/messages", &body(Value::Null, json!([])), 400).await;
        assert_eq!(refused["error"]["type"], "invalid_request_error");
        assert!(refused["error"].get("details").is_none());
        assert!(provider.seen().is_empty(), "the model was not asked");
    }
    stage.stop().await;
}

/// Regression: messages of which nothing was left in the model's format were sent as an empty list.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_never_asked_with_an_empty_prompt() {
    let (provider, stage, tenant) = stage_and_tenant().await;
    let (user, assistant) = (
        |content: Value| json!({"role": "user", "content": content}),
        |content: Value| json!({"role": "assistant", "content": content}),
    );
    let orphan = json!({"type": "tool_result", "tool_use_id": "q1", "content": "orphan"});
    let empty = [
        json!([user(json!([]))]),
        json!([user(json!(""))]),
        json!([user(json!([{"type": "text", "text": ""}]))]),
    ];
    let thinking = json!([assistant(json!([{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]))]);
    let lost = [
        json!([user(json!([orphan]))]),
        json!([user(json!([orphan, {"type": "text", "text": "and words"}]))]),
    ];
    for model in ["chat", "responses", "claude"] {
        let foreign = model != "claude";
        let more = lost.iter().chain([&thinking]).filter(|_| foreign);
        for messages in empty.iter().chain(more) {
            let body = json!({"model": model, "max_tokens": 9, "messages": messages});
            let refused = stage.post("/v1/messages", &body, 400).await;
            assert_eq!(refused["error"]["type"], "invalid_request_error", "{model}: {messages}");
            assert_eq!(refused["type"], "error");
        }
        let tool = json!([{"role": "tool", "tool_call_id": "q1", "content": "orphan"}, user(json!("words"))]);
        for messages in empty.iter().chain([&tool].into_iter().filter(|_| model != "chat")) {
            for store in [false, true] {
                let body = json!({"model": model, "messages": messages, "store": store});
                let refused = stage.post("/v1/chat/completions", &body, 400).await;
                assert_eq!(refused["error"]["param"], "messages", "{model}: {refused}");
            }
        }
        let reasoning = json!([{"type": "reasoning", "id": "rs_1", "summary": []}]);
        let output = json!([{"type": "function_call_output", "call_id": "q1", "output": "?"}]);
        let inputs = [json!([]), json!(""), Value::Null, reasoning, output];
        for input in inputs.iter().chain(&empty) {
            for store in [false, true] {
                let body = json!({"model": model, "input": input, "store": store});
                let refused = stage.post("/v1/responses", &body, 400).await;
                assert_eq!(refused["error"]["type"], "invalid_request_error", "{model}: {input}");
            }
        }
        let conversation = stage.conversation().await;
        let turns = format!("/api/v1/conversations/{conversation}/turns");
        let silent = [&lost[0], &thinking].into_iter().filter(|_| foreign);
        for messages in empty.iter().chain(silent) {
            let body = json!({"model": model, "input": messages});
            let refused =
                stage.post(&format!("/api/v1/conversations/{conversation}/generate"), &body, 400).await;
            let code = refused["code"].as_str().unwrap();
            assert!(["turn.empty", "generate.nothing"].contains(&code), "{refused}");
            assert_eq!(stage.get(&turns, 200).await["data"], json!([]));
        }
        tenant.conversation(conversation.parse().unwrap()).delete("test").await.unwrap();
    }
    assert_eq!(provider.seen(), Vec::<Value>::new(), "no model was asked");
    // And nothing is left of what was refused, in any list.
    assert_eq!(stage.get("/api/v1/conversations", 200).await["data"], json!([]));
    stage.stop().await;
}

/// Where the model speaks another protocol, parts of a request were left out without a word.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_client_sends_vanishes_silently() {
    let (provider, stage) = stage().await;
    let go = json!({"role": "user", "content": "Go."});
    let user = |content: Value| json!({"role": "user", "content": content});
    let found = json!({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "WOMBAT"}]});
    let document = json!({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "WOMBAT"}]}});
    let shown = [
        user(json!([found])),
        user(json!([document])),
        user(json!([{"type": "new_block", "text": "WOMBAT"}])),
        user(json!({"a": "WOMBAT"})),
    ];
    let unreadable = [
        json!({"role": "User", "content": "WOMBAT"}),
        json!({"role": "martian", "content": "WOMBAT"}),
        json!({"content": "WOMBAT"}),
        json!("WOMBAT"),
        user(json!([{"type": "new_block", "payload": "WOMBAT"}])),
        user(json!([{"type": "container_upload", "file_id": "WOMBAT"}])),
    ];
    for (path, same) in [("/v1/messages", "claude"), ("/v1/chat/completions", "chat"), ("/v1/responses", "")]
    {
        for model in ["chat", "responses", "claude"].into_iter().filter(|model| *model != same) {
            let body = |message: &Value| match path {
                "/v1/responses" => json!({"model": model, "input": [message, go], "store": false}),
                _ => json!({"model": model, "max_tokens": 9, "messages": [message, go]}),
            };
            for message in &shown {
                stage.post(path, &body(message), 200).await;
                let seen = provider.seen().pop().unwrap().to_string();
                assert!(seen.contains("WOMBAT") && seen.contains("Go."), "{path} {model} {message}: {seen}");
            }
            let asked = provider.seen().len();
            // A container of Anthropic's is there for a model of Anthropic.
            let known = |message: &&Value| model != "claude" || !message.to_string().contains("container");
            for message in unreadable.iter().filter(known) {
                let refused = stage.post(path, &body(message), 400).await;
                assert_eq!(refused["error"]["type"], "invalid_request_error", "{path} {model} {message}");
            }
            assert_eq!(provider.seen().len(), asked, "no model was asked");
        }
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_of_tokens_are_those_of_their_text() {
    let (provider, stage) = stage().await;
    for (input, texts) in [
        (json!([15339, 1917]), json!(["hello world"])),
        (json!([[15339, 1917], [15339]]), json!(["hello world", "hello"])),
    ] {
        let body = json!({"model": "embed", "input": input});
        stage.post("/v1/embeddings", &body, 200).await;
        assert_eq!(provider.seen().pop().unwrap()["input"], texts);
    }
    for input in [json!([4_294_967_295u32]), json!([-1]), json!([[]]), json!([]), json!({"a": 1})] {
        let refused = stage.post("/v1/embeddings", &json!({"model": "embed", "input": input}), 400).await;
        assert_eq!(refused["error"]["param"], "input", "{input}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_are_stored_where_that_is_asked_for() {
    let (provider, stage, tenant) = stage_and_tenant().await;
    let ask = |text: &str, more: Value| {
        let mut body = json!({"model": "chat", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    stage.post("/v1/chat/completions", &ask("never", json!({})), 200).await;
    let first = stage
        .post("/v1/chat/completions", &ask("a", json!({"store": true, "metadata": {"topic": "x"}})), 200)
        .await;
    assert!(provider.seen().pop().unwrap().get("store").is_none(), "it is stored here");
    let streamed =
        events(&stage, "/v1/chat/completions", &ask("b", json!({"store": true, "stream": true}))).await;
    let second = streamed[0].1["id"].as_str().unwrap();
    stage.post("/v1/chat/completions", &ask("refuse", json!({"store": true})), 400).await;
    let listed = stage.get("/v1/chat/completions", 200).await;
    let ids = |page: &Value| -> Vec<Value> {
        page["data"].as_array().unwrap().iter().map(|entry| entry["id"].clone()).collect()
    };
    assert_eq!(ids(&listed), [first["id"].clone(), json!(second)], "one that failed is not kept");
    assert_eq!(listed["data"][0]["choices"], first["choices"]);
    for (query, expected) in [
        ("order=desc&limit=1", vec![json!(second)]),
        ("limit=1", vec![first["id"].clone()]),
        ("metadata[topic]=x", vec![first["id"].clone()]),
        ("model=other", vec![]),
    ] {
        assert_eq!(ids(&stage.get(&format!("/v1/chat/completions?{query}"), 200).await), expected, "{query}");
    }
    let path = format!("/v1/chat/completions/{}", first["id"].as_str().unwrap());
    let kept = stage.get(&path, 200).await;
    assert_eq!((&kept["choices"], &kept["metadata"]), (&first["choices"], &json!({"topic": "x"})));
    let changed = stage.post(&path, &json!({"metadata": {"topic": "y"}}), 200).await;
    assert_eq!(changed["metadata"], json!({"topic": "y"}));
    let messages = stage.get(&format!("{path}/messages"), 200).await;
    let said: Vec<&Value> =
        messages["data"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!(said, [&json!("Be brief."), &json!("a")]);
    let after = messages["data"][0]["id"].as_str().unwrap();
    let rest = stage.get(&format!("{path}/messages?after={after}"), 200).await;
    assert_eq!(rest["data"][0]["content"], "a");
    assert_eq!(
        stage.get("/v1/conversations", 200).await["data"],
        json!([]),
        "they are no conversations of their own"
    );
    let gone = answer(stage.request(Method::DELETE, &path), 200).await;
    assert_eq!((&gone["deleted"], &gone["object"]), (&json!(true), &json!("chat.completion.deleted")));
    assert_eq!(stage.get(&path, 404).await["error"]["code"], "completion_not_found");
    // Another conversation is no completion, whoever asks for it.
    let made = stage.conversation().await;
    stage.get(&format!("/v1/chat/completions/{}", made.replace("conv_", "chatcmpl-")), 404).await;
    assert_eq!(tenant.list(everturn_engine::ListQuery::default()).unwrap().data.len(), 2);
    stage.stop().await;
}
