//! Export, import and verification over REST.

use crate::stage::{Stage, answer, config};
use everturn_engine::{Everturn, NewTurn, Options};
use everturn_server::Config;
use reqwest::Method;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_moves_to_another_server_with_its_chain() {
    // Nothing may be appended between the export and the comparison, not even in the background.
    let quiet = Options { auto_compaction: false, ..Options::default() };
    let here = Stage::over(Everturn::open_with("memory:", quiet).unwrap(), config()).await;
    let id = here.conversation().await;
    for n in 0..300 {
        here.say(&id, &format!("turn {n}")).await;
    }
    let path = format!("/api/v1/conversations/{id}");
    let export = here.request(Method::GET, &format!("{path}/export")).header("accept-encoding", "gzip");
    let export = export.send().await.unwrap();
    assert_eq!(export.headers()["content-encoding"], "gzip");
    let export = here.request(Method::GET, &format!("{path}/export")).send().await.unwrap();
    assert_eq!(export.headers()["content-type"], "application/jsonl");
    let file = export.text().await.unwrap();
    assert!(file.lines().count() > 300);

    let there = Stage::new().await;
    let import = |text: String| there.request(Method::POST, "/api/v1/import").body(text);
    let imported = answer(import(file.clone()), 200).await;
    assert_eq!((&imported["format"], &imported["added"]), (&json!("jsonl"), &json!(301)));
    assert_eq!(answer(import(file.clone()), 200).await["added"], 0);
    let (ours, theirs) = (here.get(&path, 200).await, there.get(&path, 200).await);
    assert_eq!(ours["head"], theirs["head"]);
    let head = ours["head"]["hash"].as_str().unwrap();
    let verdict = there.get(&format!("{path}/verify?head={head}"), 200).await;
    assert_eq!((&verdict["ok"], &verdict["contains_head"]), (&json!(true), &json!(true)));
    let other = "0".repeat(64);
    assert_eq!(there.get(&format!("{path}/verify?head={other}"), 200).await["ok"], false);
    assert_eq!(there.get(&format!("{path}/verify?head=x"), 400).await["code"], "hash.malformed");
    assert_eq!(there.get("/api/v1/doctor", 200).await["findings"], json!([]));

    let value = here.get(&format!("{path}/transcript"), 200).await;
    assert_eq!(value["messages"].as_array().unwrap().len(), 300);
    assert_eq!(here.get(&format!("{path}/export?format=transcript"), 200).await, value);
    here.get(&format!("{path}/export?format=pdf"), 400).await;
    for (format, kind, name) in [
        ("openai-chat", "application/json", "json"),
        ("openai-responses", "application/json", "json"),
        ("anthropic", "application/json", "json"),
        ("gemini", "application/json", "json"),
        ("markdown", "text/markdown; charset=utf-8", "md"),
        ("html", "text/html; charset=utf-8", "html"),
    ] {
        let export =
            here.request(Method::GET, &format!("{path}/export?format={format}")).send().await.unwrap();
        assert_eq!(export.headers()["content-type"], kind);
        let disposition = format!("attachment; filename=\"{id}.{name}\"");
        assert_eq!(export.headers()["content-disposition"], disposition.as_str());
        let text = export.text().await.unwrap();
        assert!(text.contains("turn 0") && text.contains("turn 299"), "{format}");
    }
    let third = Stage::new().await;
    let imported = answer(third.request(Method::POST, "/api/v1/import").body(value.to_string()), 200).await;
    assert_eq!(imported["format"], "transcript");
    for stage in [here, there, third] {
        stage.stop().await;
    }
}

/// A value has what the next store needs: the summary, edits, pins and calls that were given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_from_its_value_on_another_server() {
    let quiet = || Options { auto_compaction: false, ..Options::default() };
    let here = Stage::over(Everturn::open_with("memory:", quiet()).unwrap(), config()).await;
    let there = Stage::over(Everturn::open_with("memory:", quiet()).unwrap(), config()).await;
    let id = here.conversation().await;
    let path = format!("/api/v1/conversations/{id}");
    for n in 0..12 {
        here.say(&id, &format!("turn {n} about src/parser.rs")).await;
    }
    here.post(&format!("{path}/compact"), &json!({"keep_last": 4}), 200).await;
    let history = here.get(&format!("{path}/turns?limit=50"), 200).await;
    let last = history["data"].as_array().unwrap().last().unwrap()["id"].as_str().unwrap().to_string();
    let edit = json!({"role": "user", "content": "the last, edited"});
    here.post(&format!("/api/v1/turns/{last}/supersede"), &edit, 201).await;
    let value = here.get(&format!("{path}/transcript"), 200).await;
    assert_eq!(value["messages"].as_array().unwrap().len(), 4);
    assert!(!value["summary"].as_str().unwrap().is_empty());
    let import = |text: String| there.request(Method::POST, "/api/v1/import").body(text);
    assert_eq!(answer(import(value.to_string()), 200).await["format"], "transcript");
    assert_eq!(answer(import(value.to_string()), 200).await["added"], 0);
    for options in [json!({"token_budget": 50_000}), json!({"token_budget": 500, "provider": "anthropic"})] {
        let at = format!("{path}/context");
        let (ours, theirs) = (here.post(&at, &options, 200).await, there.post(&at, &options, 200).await);
        assert_eq!((&ours["system"], &ours["messages"]), (&theirs["system"], &theirs["messages"]));
        assert_eq!(ours["prefix_hash"], theirs["prefix_hash"]);
    }
    for stage in [here, there] {
        stage.stop().await;
    }
}

/// A truncated upload is not accepted as complete, and sending it again completes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_upload_is_told_and_can_be_repeated() {
    let here = Stage::new().await;
    let id = here.conversation().await;
    for n in 0..20 {
        here.say(&id, &format!("turn {n}")).await;
    }
    let export = here.request(Method::GET, &format!("/api/v1/conversations/{id}/export"));
    let file = export.send().await.unwrap().text().await.unwrap();
    let there = Stage::new().await;
    let half = file[..file.len() / 2].to_string();
    let (address, whole) = (there.url.trim_start_matches("http://").to_string(), file.len());
    let told = tokio::task::spawn_blocking(move || {
        let mut line = TcpStream::connect(address).unwrap();
        let head =
            format!("POST /api/v1/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: {whole}\r\n\r\n");
        line.write_all(format!("{head}{half}").as_bytes()).unwrap();
        line.shutdown(Shutdown::Write).unwrap();
        let mut told = String::new();
        line.read_to_string(&mut told).unwrap();
        told
    });
    let told = told.await.unwrap();
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("body.broken"), "{told}");
    let imported = answer(there.request(Method::POST, "/api/v1/import").body(file), 200).await;
    assert_eq!(imported["events"], 21);
    assert_eq!(
        there.get(&format!("/api/v1/conversations/{id}/turns"), 200).await["data"].as_array().unwrap().len(),
        20
    );
    here.stop().await;
    there.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_imported() {
    let store = Everturn::open("memory:").unwrap();
    let stage = Stage::over(store, Config { import_bytes_max: 1000, ..config() }).await;
    let import = |body: Vec<u8>| stage.request(Method::POST, "/api/v1/import").body(body);
    for body in [&b""[..], b"nonsense", b"{}", b"\xff\xfe\x00", b"[1,2"] {
        answer(import(body.to_vec()), 400).await;
    }
    assert_eq!(answer(import(vec![b'{'; 1001]), 413).await["code"], "limit.exceeded");
    assert_eq!(stage.get("/api/v1/conversations", 200).await["data"], json!([]));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_readiness() {
    let stage = Stage::new().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(stage.request(Method::GET, path).send().await.unwrap().status(), 200);
    }
    stage.stop().await;
}

/// Regression: a load balancer continued to send requests to a server that could no longer write.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_write_is_not_ready_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let url = format!("sqlite:{}", path.display());
    let stage = Stage::over(Everturn::open(&url).unwrap(), config()).await;
    let id = stage.conversation().await;
    let unready = |problem: Value, code: &str, says: &str| {
        assert_eq!(problem["code"], code);
        let text = problem.to_string();
        assert!(text.contains(says) && !text.contains("store.db"), "{text}");
    };
    let aside = folder.path().join("aside.db");
    std::fs::rename(&path, &aside).unwrap();
    unready(stage.get("/readyz", 503).await, "store.moved", "renamed");
    let turns = format!("/api/v1/conversations/{id}/turns");
    let turn = json!({"turns": [{"role": "user", "content": "lost"}]});
    assert_eq!(stage.post(&turns, &turn, 503).await["code"], "store.moved");
    std::fs::rename(&aside, &path).unwrap();
    stage.get("/readyz", 200).await;
    stage.post(&turns, &turn, 201).await;
    std::fs::remove_file(folder.path().join("store.db.lock")).unwrap();
    let other = Everturn::open(&url).unwrap();
    unready(stage.get("/readyz", 503).await, "store.overtaken", "another process");
    drop(other);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_agents_left_is_imported_over_http() {
    let stage = Stage::new().await;
    let import =
        |query: &str, text: String| stage.request(Method::POST, &format!("/api/v1/import{query}")).body(text);
    let line = |uuid: &str, more: &str| {
        format!(
            r#"{{"type":"user","uuid":"{uuid}","sessionId":"s"{more},"message":{{"role":"user","content":"hi"}}}}"#
        )
    };
    let side = r#","isSidechain":true,"agentId":"ada""#;
    let file =
        format!("{}\n{}\n{{\"type\":\"mode\",\"sessionId\":\"s\"}}\n", line("u1", ""), line("x1", side));
    let imported = answer(import("", file.clone()), 200).await;
    assert_eq!((&imported["format"], &imported["turns"]), (&json!("claude-code"), &json!(2)));
    assert_eq!((&imported["events"], &imported["kept"]), (&json!(3), &json!({"mode": 1})));
    assert_eq!(imported["linked"].as_array().unwrap().len(), 1);
    assert_eq!(answer(import("", file), 200).await["added"], 0);
    let chat = r#"[{"role":"user","content":"hi"}]"#.to_string();
    let first = answer(import("?name=a.json", chat.clone()), 200).await;
    let second = answer(import("?name=b.json", chat), 200).await;
    assert_ne!(first["conversation"]["id"], second["conversation"]["id"]);
    answer(import("?nam=x", "[]".into()), 400).await;
    stage.stop().await;
}

/// Many chats begin with the same words. Without a name, only the same messages are the same conversation.
#[tokio::test(flavor = "multi_thread")]
async fn chats_without_a_name_that_begin_alike_stay_apart() {
    let stage = Stage::new().await;
    let import = async |messages: serde_json::Value| {
        let request = stage.request(Method::POST, "/api/v1/import").body(messages.to_string());
        answer(request, 200).await
    };
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let begin = [said("system", "Be brief."), said("user", "hi"), said("assistant", "Hello.")];
    let chat = |last: &str| json!([begin.as_slice(), &[said("user", last)]].concat());
    let first = import(chat("Where is Oslo?")).await;
    for other in [chat("Where is Rome?"), json!(begin), json!({"messages": chat("Where is Bonn?")})] {
        let imported = import(other).await;
        assert_ne!(imported["conversation"]["id"], first["conversation"]["id"], "{imported}");
        assert_ne!(imported["added"], 0);
    }
    let again = import(chat("Where is Oslo?")).await;
    assert_eq!((&again["conversation"]["id"], &again["added"]), (&first["conversation"]["id"], &json!(0)));
    // One conversation a line.
    let lines = format!("{}\n{}\n", json!({"messages": chat("a")}), json!({"messages": chat("b")}));
    let request = stage.request(Method::POST, "/api/v1/import").body(lines);
    assert_eq!(answer(request, 200).await["linked"].as_array().unwrap().len(), 1);
    stage.stop().await;
}

/// Regression: an export that met damage ended like a complete one.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_export_ends_with_an_error_that_the_client_sees() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let url = format!("sqlite:{}", path.display());
    let quiet = || Options { auto_compaction: false, ..Options::default() };
    let id = {
        let store = Everturn::open_with(&url, quiet()).unwrap();
        let tenant = store.tenant("default").unwrap();
        let id = tenant.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
        for n in 0..3000 {
            let turn = NewTurn::user(&format!("turn {n} {}", "words ".repeat(20)));
            tenant.conversation(id).append(turn).wait().unwrap();
        }
        id
    };
    let damage = |from: &str, to: &str| {
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, bytes).unwrap();
    };
    // Far after the first piece: the answer has begun, so the connection is closed.
    damage("turn 2500 words", "turn 2500 sword");
    let formats = ["jsonl", "markdown", "html", "openai-chat"];
    let read = |stage: &Stage, format: &str, encoding: &str| {
        let path = format!("/api/v1/conversations/{id}/export?format={format}");
        stage.request(Method::GET, &path).header("accept-encoding", encoding).send()
    };
    let stage = Stage::over(Everturn::open_with(&url, quiet()).unwrap(), config()).await;
    for format in formats {
        for encoding in ["identity", "gzip"] {
            let export = read(&stage, format, encoding).await.unwrap();
            // A page begins with its list of prompts, so all of them are read first.
            assert_eq!(export.status(), if format == "html" { 500 } else { 200 });
            if format == "html" {
                continue;
            }
            assert!(export.bytes().await.is_err(), "{format} as {encoding} looks whole");
        }
    }
    stage.stop().await;
    // At its beginning: the error is the answer.
    damage("turn 1 words", "turn 1 sword");
    let stage = Stage::over(Everturn::open_with(&url, quiet()).unwrap(), config()).await;
    for format in formats.into_iter().chain(["transcript"]) {
        let export = read(&stage, format, "identity").await.unwrap();
        assert_eq!(export.status(), 500, "{format}");
        let problem: serde_json::Value = serde_json::from_slice(&export.bytes().await.unwrap()).unwrap();
        assert_eq!(problem["code"], "chain.body_mismatch", "{format}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redacted_file_masks_secrets_and_addresses() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    stage.say(&id, "Write to zoe@example.org").await;
    let path = format!("/api/v1/conversations/{id}/export");
    let file = stage.request(Method::GET, &format!("{path}?format=html&redacted=true")).send().await.unwrap();
    let name = file.headers()["content-disposition"].to_str().unwrap().to_string();
    assert_eq!(name, format!("attachment; filename=\"{id}.redacted.html\""));
    let text = file.text().await.unwrap();
    assert!(text.contains("‹email›") && !text.contains("zoe@"), "{text}");
    let refused = stage.get(&format!("{path}?redacted=true"), 400).await;
    assert_eq!(refused["code"], "export.redacted");
    stage.stop().await;
}
