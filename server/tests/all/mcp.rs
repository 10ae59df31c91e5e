//! MCP over HTTP, message by message, without a client library.

use crate::stage::{Stage, config};
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewKey, Options};
use everturn_server::Config;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use std::time::Duration;

/// A session, or none yet.
pub struct Client<'a> {
    stage: &'a Stage,
    session: Option<String>,
}

impl Client<'_> {
    pub async fn begin(stage: &Stage) -> Client<'_> {
        let mut client = Client { stage, session: None };
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let response = client.send("initialize", hello).await;
        assert_eq!(response.status(), 200);
        client.session = Some(response.headers()["mcp-session-id"].to_str().unwrap().to_string());
        let answer = last(response).await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "everturn");
        assert_eq!(answer["result"]["instructions"].as_str().unwrap().lines().count(), 5);
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(client.request(Method::POST).body(told.to_string()).send().await.unwrap().status(), 202);
        client
    }

    fn request(&self, method: Method) -> RequestBuilder {
        let request = self
            .stage
            .request(method, "/mcp")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        match &self.session {
            Some(id) => request.header("mcp-session-id", id).header("mcp-protocol-version", "2025-11-25"),
            None => request,
        }
    }

    pub async fn send(&self, method: &str, params: Value) -> Response {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.request(Method::POST).body(message.to_string()).send().await.unwrap()
    }

    /// The result of a request.
    async fn ask(&self, method: &str, params: Value) -> Value {
        let answer = last(self.send(method, params).await).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// The error of a request.
    async fn fail(&self, method: &str, params: Value) -> Value {
        last(self.send(method, params).await).await["error"].clone()
    }

    /// The result of a tool.
    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let result = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_ne!(result["isError"], true, "{result}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), result["structuredContent"]);
        result["structuredContent"].clone()
    }

    /// Creates a conversation with a turn; returns its id, and the appended turn.
    async fn converse(&self, new: Value, turn: Value) -> (String, Value) {
        let id = self.call("create_conversation", new).await["id"].as_str().unwrap().to_string();
        let said = self.call("append_turns", json!({"conversation": id, "turns": [turn]})).await;
        (id, said)
    }

    /// The error of a tool.
    async fn refused(&self, tool: &str, arguments: Value) -> String {
        let result = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_eq!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().unwrap().to_string()
    }
}

/// The last message of an answer: the stream ends with it.
pub async fn last(response: Response) -> Value {
    let text = response.text().await.unwrap();
    let data =
        text.lines().rev().find_map(|line| line.strip_prefix("data: ").filter(|data| !data.is_empty()));
    serde_json::from_str(data.unwrap_or(&text)).unwrap_or_else(|_| panic!("{text}"))
}

/// Waits for a message on an open stream.
async fn next(stream: &mut Response, method: &str) -> Value {
    let mut text = String::new();
    let wait = async {
        loop {
            let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            let messages = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let mut messages = messages.filter_map(|data| serde_json::from_str::<Value>(data).ok());
            if let Some(found) = messages.find(|message| message["method"] == method) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_tool_does_what_it_says() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let listed = client.ask("tools/list", json!({})).await;
    let names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let all = [
        "list_conversations",
        "get_conversation",
        "list_turns",
        "get_state",
        "list_facts",
        "recall",
        "build_context",
        "project_conversation",
        "summarize",
        "export",
        "verify",
        "create_conversation",
        "change_conversation",
        "fork_conversation",
        "append_turns",
        "pin",
        "unpin",
        "add_fact",
        "compact",
        "import",
    ];
    assert_eq!(names, all);
    for tool in listed["tools"].as_array().unwrap() {
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object", "{tool}");
            assert!(!tool[schema]["properties"].as_object().unwrap().is_empty(), "{tool}");
            assert!(!tool[schema].to_string().contains("\"format\":\""), "{tool}");
        }
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{tool}");
        }
    }

    let first = json!({"role": "user", "content": "It fails.", "actor": "mara"});
    let (id, begun) = client.converse(json!({"title": "Build"}), first).await;
    let id = id.as_str();
    let message = json!({"role": "assistant", "content": [{"type": "text", "text": "Show me."}]});
    let seq = begun["head"]["seq"].as_u64().unwrap();
    let said = client
        .call(
            "append_turns",
            json!({"conversation": id, "turns": [{"message": message, "model": "m1"}], "expected_seq": seq}),
        )
        .await;
    assert_eq!(said["turns"][0]["role"], "assistant");
    let found = client.call("list_conversations", json!({"query": "buil"})).await;
    assert_eq!((found["data"][0]["id"].as_str(), &found["next"]), (Some(id), &Value::Null));
    let newest = json!({"conversation": "@last", "limit": 1, "order": "desc"});
    let history = client.call("list_turns", newest).await;
    assert_eq!(history["data"][0]["content"][0]["text"], "Show me.");
    let before = json!({"conversation": id, "before": history["next"]});
    assert_eq!(client.call("list_turns", before).await["data"][0]["content"], "It fails.");
    let pinned = client.call("pin", json!({"conversation": id, "name": "branch", "value": "main"})).await;
    assert_eq!(pinned["kind"], "state.pin");
    let context = client.call("build_context", json!({"conversation": id, "token_budget": 2000})).await;
    assert!(context.to_string().contains("It fails.") && context.to_string().contains("branch"));
    client.call("unpin", json!({"conversation": id, "name": "branch"})).await;
    assert_eq!(client.call("get_state", json!({"conversation": id})).await["pins"], json!({}));
    let source = &begun["turns"][0]["id"];
    let known = json!({"conversation": id, "subject": "the build", "predicate": "is", "object": "broken", "source_turn": source});
    let fact = client.call("add_fact", known.clone()).await;
    assert_eq!(client.call("add_fact", known).await["id"], fact["id"], "known is not added twice");
    let facts = client.call("list_facts", json!({"conversation": id})).await;
    assert_eq!((facts["data"].as_array().unwrap().len(), &facts["data"][0]["object"]), (1, &json!("broken")));
    let shown = client.call("export", json!({"conversation": id})).await;
    assert!(shown["content"].as_str().unwrap().contains("It fails."), "{shown}");
    let file = client.call("export", json!({"conversation": id, "format": "openai-chat"})).await;
    let file = json!({"content": file["content"], "name": "copy"});
    let imported = client.call("import", file.clone()).await;
    assert_eq!((&imported["turns"], &imported["problems"]), (&json!(2), &json!([])));
    assert_ne!(imported["conversation"]["id"], id);
    assert_eq!(client.call("import", file).await["added"], 0, "again adds nothing");
    let raw = client.call("project_conversation", json!({"conversation": id, "policy": "raw"})).await;
    assert_eq!(raw["messages"].as_array().unwrap().len(), 2);
    let log = "The build of the parser stops at the same test on every machine. ".repeat(4);
    let turns = json!([{"role": "user", "content": log}, {"role": "user", "content": "Why?"}]);
    client.call("append_turns", json!({"conversation": id, "turns": turns})).await;
    let compacted =
        client.call("compact", json!({"conversation": id, "dry_run": true, "keep_last": 1})).await;
    assert_eq!((&compacted["event"], &compacted["covers"]["turns"]), (&Value::Null, &json!(3)));
    let verdict = client.call("verify", json!({"conversation": id, "head": said["head"]["hash"]})).await;
    assert_eq!((&verdict["ok"], &verdict["contains_head"]), (&json!(true), &json!(true)));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_refuses_says_what_to_do() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let id = client.call("create_conversation", json!({})).await["id"].clone();
    let one =
        json!({"conversation": id, "turns": [{"role": "user", "content": "one"}], "idempotency_key": "k"});
    let begun = client.call("append_turns", one.clone()).await;
    let again = client.call("append_turns", one).await;
    assert_eq!((&again["repeated"], &again["turns"][0]["id"]), (&json!(true), &begun["turns"][0]["id"]));
    let two = |role: &str| json!([{"role": role, "content": "two"}]);
    let absent = "conv_01JD0000000000000000000000";
    for (tool, arguments, code) in [
        ("list_turns", json!({"conversation": absent}), "conversation.absent: "),
        ("list_turns", json!({"conversation": id, "limit": 0}), "limit.zero: "),
        ("list_turns", json!({"conversaton": id}), "arguments.shape: "),
        ("append_turns", json!({"conversation": id}), "arguments.shape: "),
        ("append_turns", json!({"conversation": id, "turns": []}), "append.empty: "),
        (
            "append_turns",
            json!({"conversation": id, "turns": two("user"), "expected_seq": 1}),
            "append.stale_seq: ",
        ),
        ("append_turns", json!({"conversation": id, "turns": two("judge")}), "arguments.shape: "),
        (
            "build_context",
            json!({"conversation": id, "token_budget": 10, "provider": "acme"}),
            "arguments.shape: ",
        ),
        ("build_context", json!({"conversation": id, "token_budget": 1}), "context."),
        ("project_conversation", json!({"conversation": id, "policy": "magic"}), "projection."),
        ("list_conversations", json!({"after": "x"}), "list.after: "),
        ("verify", json!({"conversation": id, "head": "x"}), "hash."),
        ("export", json!({"conversation": id, "format": "pdf"}), "arguments.shape: "),
        ("import", json!({"content": "no messages at all"}), "import.unknown: unknown format"),
        ("add_fact", json!({"conversation": id, "subject": "", "predicate": "is", "object": "x"}), "fact."),
    ] {
        let text = client.refused(tool, arguments).await;
        assert!(text.starts_with(code), "{tool}: {text}");
    }
    let unknown = client.fail("tools/call", json!({"name": "fly", "arguments": {}})).await;
    assert_eq!(unknown["code"], -32602);
    let nothing =
        client.fail("resources/read", json!({"uri": format!("everturn://conversations/{absent}")})).await;
    assert_eq!((&nothing["code"], &nothing["data"]["code"]), (&json!(-32002), &json!("conversation.absent")));
    let nowhere = client.fail("resources/read", json!({"uri": "file:///etc/passwd"})).await;
    assert_eq!(nowhere["data"]["code"], "resource.absent");
    let prompt = json!({"name": "continue_conversation", "arguments": {"conversation": absent}});
    let prompt = client.fail("prompts/get", prompt).await;
    assert_eq!((&prompt["code"], &prompt["data"]["code"]), (&json!(-32602), &json!("conversation.absent")));
    let fixture = client.fail("tools/call", json!({"name": "test_simple_text", "arguments": {}})).await;
    assert_eq!(fixture["code"], -32602);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_resources_that_tell_when_they_change() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let mut stream = client.request(Method::GET).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let where_to = json!({"role": "user", "content": "Where to?", "actor": "mara"});
    let (id, _) = client.converse(json!({"title": "Trip"}), where_to).await;
    next(&mut stream, "notifications/resources/list_changed").await;
    // Changes by any client are reported: here, one of the REST API.
    let other = stage.conversation().await;
    next(&mut stream, "notifications/resources/list_changed").await;
    stage.request(Method::DELETE, &format!("/api/v1/conversations/{other}?reason=x")).send().await.unwrap();
    next(&mut stream, "notifications/resources/list_changed").await;
    let id = id.as_str();
    let uri = format!("everturn://conversations/{id}");

    let list = client.ask("resources/list", json!({})).await;
    assert_eq!((&list["resources"][0]["uri"], &list["resources"][0]["title"]), (&json!(uri), &json!("Trip")));
    let templates = client.ask("resources/templates/list", json!({})).await;
    assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], "everturn://conversations/{id}");
    let read = client.ask("resources/read", json!({"uri": uri})).await;
    let text = read["contents"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("# Trip\n") && text.contains("## user (mara), #"), "{text}");
    let transcript = client.ask("resources/read", json!({"uri": format!("{uri}/transcript")})).await;
    let value: Value = serde_json::from_str(transcript["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(value["messages"].as_array().unwrap().len(), 1);

    client.ask("resources/subscribe", json!({"uri": uri})).await;
    // Appended by another client, in another session.
    let other = Client::begin(&stage).await;
    let to_rome = json!([{"role": "assistant", "content": "To Rome."}]);
    other.call("append_turns", json!({"conversation": id, "turns": to_rome})).await;
    let told = next(&mut stream, "notifications/resources/updated").await;
    assert_eq!(told["params"]["uri"], uri);
    client.ask("resources/unsubscribe", json!({"uri": uri})).await;

    let prompt =
        json!({"name": "continue_conversation", "arguments": {"conversation": "@last", "budget": "2000"}});
    let prompt = client.ask("prompts/get", prompt).await;
    let messages = prompt["messages"].as_array().unwrap();
    let said: Vec<(&str, &str)> = messages
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"]["text"].as_str().unwrap()))
        .collect();
    assert!(said.ends_with(&[("user", "Where to?"), ("assistant", "To Rome.")]), "{said:?}");
    let typed = json!({
        "ref": {"type": "ref/prompt", "name": "continue_conversation"},
        "argument": {"name": "conversation", "value": &id[..12]},
    });
    assert_eq!(client.ask("completion/complete", typed).await["completion"]["values"], json!([id]));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_resources_come_in_pages() {
    let store = Everturn::open_with("memory:", Options::default()).unwrap();
    let tenant = store.tenant("default").unwrap();
    for _ in 0..130 {
        tenant.create(everturn_engine::NewConversation::default()).wait().unwrap();
    }
    let stage = Stage::over(store, config()).await;
    let client = Client::begin(&stage).await;
    let first = client.ask("resources/list", json!({})).await;
    let second = client.ask("resources/list", json!({"cursor": first["nextCursor"]})).await;
    let counts = [&first, &second].map(|page| page["resources"].as_array().unwrap().len());
    assert_eq!((counts, second.get("nextCursor")), ([100, 30], None));
    let wrong = client.fail("resources/list", json!({"cursor": "x"})).await;
    assert_eq!(wrong["code"], -32602);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_when_it_is_deleted_or_idle() {
    let quick = Config { mcp_session_idle: Duration::from_millis(200), ..config() };
    let stage = Stage::over(Everturn::open("memory:").unwrap(), quick).await;
    let client = Client::begin(&stage).await;
    let deleted = client.request(Method::DELETE).send().await.unwrap();
    assert!(deleted.status().is_success());
    assert_eq!(client.send("tools/list", json!({})).await.status(), 404);

    // A session with a listener is not idle.
    let listening = Client::begin(&stage).await;
    let stream = listening.request(Method::GET).send().await.unwrap();
    let idle = Client::begin(&stage).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert_eq!(listening.send("tools/list", json!({})).await.status(), 200);
    assert_eq!(idle.send("tools/list", json!({})).await.status(), 404);
    drop(stream);

    let nobody = Client { stage: &stage, session: Some("guessed".into()) };
    let answer = nobody.send("tools/list", json!({})).await;
    assert_eq!(answer.status(), 404);
    assert_eq!(last(answer).await["code"], "mcp.session_absent");
    stage.stop().await;
}

/// The session ends with the key that began it, with its stream and its subscriptions.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_key() {
    let store = Everturn::open("memory:").unwrap();
    let new = NewKey::new("acme", KeyRole::Admin);
    let (_, admin) = store.keys().create(new.clone()).unwrap();
    let (key, words) = store.keys().create(new).unwrap();
    let id = store
        .tenant("acme")
        .unwrap()
        .create(everturn_engine::NewConversation::default())
        .wait()
        .unwrap()
        .id();
    let mut stage = Stage::over(store.clone(), Config { keys_required: None, ..config() }).await;
    stage.bearer(&words);
    let client = Client::begin(&stage).await;
    let mut stream = client.request(Method::GET).send().await.unwrap();
    client.ask("resources/subscribe", json!({"uri": format!("everturn://conversations/{id}")})).await;
    store.keys().revoke("acme", key.id).unwrap();
    let mut seen = String::new();
    let end = async {
        while let Some(chunk) = stream.chunk().await.unwrap() {
            seen += std::str::from_utf8(&chunk).unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), end).await.expect("the stream ends");
    assert!(seen.contains("was revoked"), "{seen}");
    assert_eq!(client.send("tools/list", json!({})).await.status(), 401);
    // Nobody else can continue it either.
    let session = client.session.clone();
    stage.bearer(&admin);
    let other = Client { stage: &stage, session };
    while other.send("tools/list", json!({})).await.status() != 404 {}
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = Config { mcp_record: Some(folder.path().into()), ..config() };
    let stage = Stage::over(Everturn::open("memory:").unwrap(), recorded).await;
    let client = Client::begin(&stage).await;
    let hello = json!({"title": "hello"});
    client.call("create_conversation", hello.clone()).await;
    client.refused("list_turns", json!({})).await;
    client.ask("resources/list", json!({})).await;
    assert!(client.request(Method::DELETE).send().await.unwrap().status().is_success());
    stage.stop().await;

    let files: Vec<_> = std::fs::read_dir(folder.path().join("default/sessions")).unwrap().collect();
    assert_eq!(files.len(), 1);
    let path = files[0].as_ref().unwrap().path();
    // The session is ended by a task of its own, which the deletion does not wait for.
    let mut text = String::new();
    for _ in 0..600 {
        text = std::fs::read_to_string(&path).unwrap();
        if text.contains("\"session_end\"") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    let expected = [
        "session_start",
        "agent_tool_call",
        "tool_result",
        "agent_tool_call",
        "tool_result",
        "mcp_dispatch",
        "session_end",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(lines[0]["agent_provider"], "test 1");
    assert_eq!((&lines[1]["tool"], &lines[1]["parameters"]), (&json!("create_conversation"), &hello));
    assert_eq!((&lines[2]["call_id"], &lines[2]["is_error"]), (&lines[1]["call_id"], &json!(false)));
    assert!(lines[2]["duration_ms"].is_number());
    assert_eq!(lines[4]["is_error"], true);
    assert_eq!(lines[5]["method"], "resources/list");
    let report = everturn_formats::session::check(std::io::Cursor::new(text)).unwrap();
    assert!(!report.unclosed && report.problems.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused() {
    let small = Config { body_bytes_max: 4096, ..config() };
    let stage = Stage::over(Everturn::open("memory:").unwrap(), small).await;
    let client = Client::begin(&stage).await;
    let said = json!({"name": "create_conversation", "arguments": {"title": "x".repeat(5000)}});
    assert_eq!(client.send("tools/call", said).await.status(), 413);
    stage.stop().await;
}

/// Records are written by real calls, and lose the content when a turn is erased.
#[tokio::test(flavor = "multi_thread")]
async fn erased_words_leave_what_was_recorded() {
    const WORD: &str = "quetzalcoatlus";
    let folder = tempfile::tempdir().unwrap();
    let recorded = Config { mcp_record: Some(folder.path().into()), ..config() };
    let stage = Stage::over(Everturn::open("memory:").unwrap(), recorded).await;
    let client = Client::begin(&stage).await;
    let user = |text: String| json!({"role": "user", "content": text});
    let (id, _) = client.converse(json!({}), user(format!("call it the {WORD}"))).await;
    client.converse(json!({}), user("of no interest".into())).await;
    client.call("list_turns", json!({"conversation": id})).await;
    client.call("build_context", json!({"conversation": id, "token_budget": 2000})).await;
    client.ask("resources/read", json!({"uri": format!("everturn://conversations/{id}")})).await;
    let read = || {
        let files = std::fs::read_dir(folder.path().join("default/sessions")).unwrap();
        files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect::<String>()
    };
    assert!(read().matches(WORD).count() >= 4, "{}", read());
    let history = stage.get(&format!("/api/v1/conversations/{id}/turns"), 200).await;
    let turn = history["data"][0]["id"].as_str().unwrap();
    stage.post(&format!("/api/v1/turns/{turn}/erase"), &json!({"reason": "asked for"}), 200).await;
    assert!(!read().contains(WORD), "{}", read());
    assert!(read().contains("of no interest"), "{}", read());
    stage.stop().await;
}

/// Tool arguments are stored as sent: the protocol's library alone would rewrite their numbers.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_is_given_keeps_its_bytes() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let id = client.call("create_conversation", json!({})).await["id"].as_str().unwrap().to_string();
    let message = r#"{"role":"user","content":"x", "a":123456789012345678901234567890,"z":1.0e2,"b":1.10}"#;
    let append = |message: &str| {
        let arguments = format!(r#"{{"conversation":"{id}","turns":[{{"message":{message}}}]}}"#);
        let call = format!(r#"{{"name":"append_turns","arguments":{arguments}}}"#);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{call}}}"#);
        client.request(Method::POST).body(text).send()
    };
    let said = last(append(message).await.unwrap()).await;
    let text = said["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains(message), "{text}");
    let page = stage.request(Method::GET, &format!("/api/v1/conversations/{id}/turns")).send().await.unwrap();
    assert!(page.text().await.unwrap().contains(message));
    let twice = last(append(r#"{"role":"user","content":"first","content":"second"}"#).await.unwrap()).await;
    let text = twice["result"]["content"][0]["text"].as_str().unwrap();
    assert!(twice["result"]["isError"] == true && text.starts_with("json.duplicate_key: "), "{twice}");
    stage.stop().await;
}

/// Regression: both were a 415 in the words of a parser, which did not say what to send.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_message_is_told_what_to_send() {
    let stage = Stage::new().await;
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    for (kind, body, status, says) in [
        ("text/plain", message.as_str(), 415, "send it with Content-Type: application/json"),
        ("application/json", "{\"jsonrpc\":", 400, "the body is not a JSON-RPC message"),
    ] {
        let request = stage.request(Method::POST, "/mcp").header("content-type", kind);
        let request = request.header("accept", "application/json, text/event-stream");
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), status);
        let text = answer.text().await.unwrap();
        assert!(text.contains(says), "{text}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_sets_are_asked_for_by_name() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let tools = async |query: &str| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).to_string();
        let request = stage.request(Method::POST, &format!("/mcp{query}"));
        let request = request
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-session-id", client.session.as_ref().unwrap())
            .header("mcp-protocol-version", "2025-11-25");
        let answer = last(request.body(message).send().await.unwrap()).await;
        let tools = answer["result"]["tools"].as_array().cloned();
        let names = |tools: Vec<Value>| {
            tools.iter().map(|tool| tool["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
        };
        tools.map(names).ok_or_else(|| answer["error"]["message"].as_str().unwrap().to_string())
    };
    let default = tools("").await.unwrap();
    assert!(default.len() <= 20, "{}", default.len());
    assert_eq!(tools("?toolsets=").await.unwrap(), default);
    let facts = tools("?toolsets=facts").await.unwrap();
    assert!(facts.contains(&"retract_fact".into()) && !facts.contains(&"append_turns".into()), "{facts:?}");
    let both = tools("?toolsets=facts%2Cstate&toolsets=destructive").await.unwrap();
    for name in ["get_fact", "get_state", "erase_turn", "delete_conversation", "create_key", "list_keys"] {
        assert!(both.contains(&name.into()), "{name}: {both:?}");
    }
    let all = tools("?toolsets=all").await.unwrap();
    assert!(
        all.len() > 45 && !all.iter().any(|name| name.contains("erase") || name.contains("key")),
        "{all:?}"
    );
    assert!(tools("?toolsets=magic").await.unwrap_err().contains("there are default, all, destructive"));
    assert!(tools("?toolset=all").await.unwrap_err().contains("?toolsets="));
    stage.stop().await;
}

/// Sessions of an agent: over MCP as tools, and over REST the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_started_logged_and_ended_by_tools() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let in_session = async |tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        let message =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let request = stage.request(Method::POST, "/mcp?toolsets=sessions");
        let request = request
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-session-id", client.session.as_ref().unwrap())
            .header("mcp-protocol-version", "2025-11-25");
        last(request.body(message).send().await.unwrap()).await["result"].clone()
    };
    let started = in_session("start_session", json!({"subject": "img_1", "subject_key": "image_id"})).await;
    let id = started["structuredContent"]["id"].as_str().unwrap().to_string();
    let log = async |kind: &str, fields: Value| {
        in_session("log_session", json!({"conversation": id, "type": kind, "fields": fields})).await
    };
    assert_eq!(log("photographer_message", json!({"text": "warmer"})).await["isError"], false);
    assert_eq!(log("snapshot_created", json!({"hash": "9f"})).await["isError"], false);
    let refused = log("snapshot_created", json!({"label": "v1"})).await;
    assert!(refused["content"][0]["text"].as_str().unwrap().starts_with("session.field: "), "{refused}");
    // Over REST it is the same session.
    let path = format!("/api/v1/sessions/{id}/entries");
    let entry = json!({"type": "weather", "fields": {"sun": true}}).to_string();
    let request = stage.request(Method::POST, &path).header("content-type", "application/json");
    assert_eq!(request.body(entry).send().await.unwrap().status(), 201);
    // Sent again under its key, an entry is logged once, and the end is the same.
    for _ in 0..2 {
        let request = stage.request(Method::POST, &path).header("content-type", "application/json");
        let request = request.header("idempotency-key", "k1").body(r#"{"type": "rain"}"#);
        assert_eq!(request.send().await.unwrap().status(), 201);
    }
    let ended = in_session("end_session", json!({"conversation": id, "idempotency_key": "k2"})).await;
    assert_eq!(ended["structuredContent"]["entries"], 4, "{ended}");
    let again = in_session("end_session", json!({"conversation": id, "idempotency_key": "k2"})).await;
    assert_eq!(again["structuredContent"], ended["structuredContent"]);
    let export = stage.request(Method::GET, &format!("/api/v1/conversations/{id}/export?format=session"));
    let text = export.send().await.unwrap().text().await.unwrap();
    let kinds: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(
        kinds,
        ["session_start", "photographer_message", "snapshot_created", "weather", "rain", "session_end"]
    );
    stage.stop().await;
}

/// Clients show the choices of a field, and many do not follow references.
#[tokio::test(flavor = "multi_thread")]
async fn words_to_choose_from_are_in_the_field_itself() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let listed = client.ask("tools/list", json!({})).await;
    let input = |tool: &str| {
        let tools = listed["tools"].as_array().unwrap();
        tools.iter().find(|known| known["name"] == tool).unwrap()["inputSchema"].clone()
    };
    let state = &input("list_conversations")["properties"]["state"];
    assert_eq!(state["enum"], json!(["active", "archived", "abandoned", "closed", null]), "{state}");
    assert_eq!(state["type"], json!(["string", "null"]));
    assert_eq!(state["description"], "Only those in this state.");
    let recall = input("recall");
    assert_eq!(
        recall["properties"]["roles"]["items"]["enum"],
        json!(["user", "assistant", "system", "tool"])
    );
    assert_eq!(recall["properties"]["mode"]["enum"], json!(["hybrid", "lexical", "vector"]), "{recall}");
    let role = &input("append_turns")["$defs"]["NewTurn"]["properties"]["role"];
    assert!(role["enum"].as_array().unwrap().contains(&json!("assistant")), "{role}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_without_a_title_is_known_by_its_first_words() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let long = format!("Where is {}Lisbon?", "the long road to ".repeat(20));
    let turn = json!({"role": "user", "content": format!("\n {long}\nTell me.")});
    let (plain, _) = client.converse(json!({}), turn).await;
    client.converse(json!({"title": "A trip"}), json!({"role": "user", "content": "Hello"})).await;
    let (empty, _) = client.converse(json!({}), json!({"role": "assistant", "content": "Hello"})).await;
    let listed = client.call("list_conversations", json!({})).await;
    let entry = |id: &str| {
        let data = listed["data"].as_array().unwrap();
        data.iter().find(|entry| entry["id"] == id).unwrap().clone()
    };
    let preview = entry(&plain)["preview"].as_str().unwrap().to_string();
    assert!(long.starts_with(preview.trim_end_matches('…')) && preview.chars().count() == 81, "{preview}");
    assert_eq!(entry(&empty).get("preview"), None);
    assert!(
        listed["data"]
            .as_array()
            .unwrap()
            .iter()
            .all(|entry| entry["title"].is_null() || entry.get("preview").is_none())
    );
    let resources = client.ask("resources/list", json!({})).await;
    let titles: Vec<&Value> =
        resources["resources"].as_array().unwrap().iter().map(|one| &one["title"]).collect();
    assert!(titles.contains(&&json!(preview)) && titles.contains(&&json!("A trip")), "{titles:?}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_speak_of_tools_and_name_what_is_absent() {
    let stage = Stage::new().await;
    let client = Client::begin(&stage).await;
    let refused = client.refused("list_turns", json!({"conversation": "@last"})).await;
    assert!(
        refused.contains("the tool create_conversation") && !refused.contains("everturn new"),
        "{refused}"
    );
    let (id, _) = client.converse(json!({}), json!({"role": "user", "content": "hi"})).await;
    let refused = client.refused("list_turns", json!({"conversation": "conv_zz"})).await;
    assert!(refused.contains("the tool list_conversations"), "{refused}");
    for content in ["", " \n"] {
        let turns = json!([{"role": "user", "content": content}]);
        let refused = client.refused("append_turns", json!({"conversation": id, "turns": turns})).await;
        assert!(refused.starts_with("turn.empty: "), "{refused}");
    }
    // A field that has the name of a command stays a field.
    let refused = client.refused("list_conversations", json!({"state": "bogus"})).await;
    assert!(refused.contains("`state` must be one of"), "{refused}");
    let absent = "everturn://conversations/conv_01JD0000000000000000000000";
    for method in ["resources/read", "resources/subscribe"] {
        for uri in [absent, "everturn://nothing"] {
            let error = client.fail(method, json!({"uri": uri})).await;
            assert_eq!((&error["code"], &error["data"]["uri"]), (&json!(-32002), &json!(uri)), "{error}");
        }
    }
    assert_eq!(client.ask("logging/setLevel", json!({"level": "warning"})).await, json!({}));
    let ended = client.request(Method::DELETE).send().await.unwrap();
    assert_eq!(ended.status(), 204);
    assert_eq!(client.send("tools/list", json!({})).await.status(), 404);
    stage.stop().await;
}
