//! Redaction is a boundary: a secret in everything that a client can send, then the whole store is searched for it.

use crate::access::ask;
use crate::stage::{Stage, answer, config};
use everturn_engine::Everturn;
use reqwest::Method;
use serde_json::json;

/// Assembled at run time, so that no scanner reports this file as a leak.
fn secret() -> String {
    format!("AKIA{}", "IOSFODNN7EXAMPLE")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_masked_wherever_it_comes_in() {
    let folder = tempfile::tempdir().unwrap();
    for address in ["memory:".to_string(), format!("sqlite:{}", folder.path().join("chats.db").display())] {
        let store = Everturn::open(&address).unwrap();
        let stage = Stage::over(store.clone(), config()).await;
        let (secret, mask) = (secret(), json!({"redaction": "mask"}));
        let text = format!("the key is\n{secret}");
        // At creation, where the policy comes with the words that it is for.
        let made = json!({
            "title": text, "owner": "ana", "policy": mask, "system_prompt": text,
            "metadata": {"note": text, (secret.clone()): {"deep": [text]}},
        });
        let made = stage.post("/api/v1/conversations", &made, 201).await;
        let id = made["id"].as_str().unwrap().to_string();
        let base = format!("/api/v1/conversations/{id}");
        let change = json!({"title": format!("{text}!"), "system_prompt": format!("{text}!"), "metadata": {"other": text}});
        stage.send(Method::PATCH, &base, &change, 200).await;
        let turn = stage
            .post(
                &format!("{base}/turns"),
                &json!({"turns": [{"role": "user", "content": text, "metadata": {"m": text}}]}),
                201,
            )
            .await;
        let turn = turn["turns"][0]["id"].as_str().unwrap().to_string();
        let open = stage.post(&format!("{base}/turns/open"), &json!({"metadata": {"m": text}}), 201).await;
        let open = open["id"].as_str().unwrap().to_string();
        let call = json!({"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
        for (method, path, body) in [
            (Method::PUT, format!("{base}/pins/p"), json!({"value": {"deep": text}})),
            (
                Method::POST,
                format!("{base}/events"),
                json!({"kind": "note", "body": {(secret.clone()): text}}),
            ),
            (
                Method::POST,
                format!("{base}/events"),
                json!({"kind": "scratchpad.set", "body": {"name": "s", "value": text}}),
            ),
            (
                Method::POST,
                format!("{base}/events"),
                json!({"kind": "tool.started", "body": {"tool_call_id": "t", "name": "f", "arguments": text}}),
            ),
            (Method::POST, format!("{base}/approvals"), json!({"approval_id": "a", "question": text})),
            (
                Method::POST,
                format!("{base}/facts"),
                json!({"subject": "the key", "predicate": "is", "object": format!("{secret} for the bucket")}),
            ),
            (Method::POST, format!("/api/v1/turns/{open}/chunks"), json!({"delta": text})),
            (Method::POST, format!("/api/v1/turns/{open}/abort"), json!({"reason": text})),
            (Method::POST, format!("{base}/turns"), json!({"turns": [{"message": call}]})),
            (
                Method::POST,
                format!("{base}/contexts"),
                json!({
                    "token_budget": 10000, "model": secret, "instructions": text, "digests": [{"title": text, "text": text}],
                    "input": [{"role": "user", "content": text}],
                }),
            ),
            (
                Method::POST,
                format!("/api/v1/turns/{turn}/supersede"),
                json!({"role": "user", "content": format!("{text}, really")}),
            ),
            (Method::POST, format!("{base}/fork"), json!({})),
            (
                Method::POST,
                format!("{base}/projections"),
                json!({"policy": "summary_prefix", "summary": text, "reason": text, "keep_last": 1}),
            ),
            (
                Method::POST,
                format!("{base}/turns"),
                json!({"turns": [{
                    "role": "user", "content": "named", "actor": format!("a {secret}"), "model": secret,
                    "adapter": secret, "metadata": {(secret.clone()): 1}, "audience": [format!("b {secret}")],
                }]}),
            ),
            (
                Method::POST,
                format!("{base}/turns/open"),
                json!({"model": secret, "actor": secret, "metadata": {(secret.clone()): 1}}),
            ),
            (Method::POST, format!("{base}/events"), json!({"kind": format!("k.{secret}"), "body": 1})),
            (Method::POST, format!("{base}/approvals"), json!({"approval_id": secret})),
            (Method::POST, format!("{base}/approvals/{secret}/resolve"), json!({"state": "approved"})),
            (Method::PUT, format!("{base}/pins/{secret}"), json!({"value": 1})),
        ] {
            let request = stage.request(method.clone(), &path).header("content-type", "application/json");
            let (got, answer) = ask(request.body(body.to_string()), None).await;
            assert!(got < 300, "{method} {path}: {got} {answer}");
            assert!(!answer.contains(&secret), "{method} {path}: {answer}");
        }
        let fact = json!({"subject": "s", "predicate": "p", "object": "o"});
        let fact = stage.post(&format!("{base}/facts"), &fact, 201).await;
        let retract = format!("/api/v1/facts/{}?by=x%20{secret}&reason=r", fact["id"].as_str().unwrap());
        answer(stage.request(Method::DELETE, &retract), 200).await;
        // A key that is a secret is kept masked, and still makes the same request harmless.
        let keyed = json!({"turns": [{"role": "user", "content": "once"}]});
        for repeated in [false, true] {
            let request =
                stage.request(Method::POST, &format!("{base}/turns")).header("idempotency-key", &secret);
            let request = request.header("content-type", "application/json").body(keyed.to_string());
            assert_eq!(answer(request, if repeated { 200 } else { 201 }).await["repeated"], repeated);
        }
        // Imported: a session that goes on in a conversation that masks.
        let line = |kind: &str, second: u8| {
            let (at, text) = (format!("2026-04-27T14:30:0{second}Z"), serde_json::json!(text));
            format!(r#"{{"type":"{kind}","timestamp":"{at}","text":{text},"label":{text},"hash":"h"}}"#)
        };
        let header = r#"{"type":"session_start","session_id":"u-1","started_at":"2026-04-27T14:30:00Z"}"#;
        let import = async |file: String| {
            let request =
                stage.request(Method::POST, "/api/v1/import").header("content-type", "application/jsonl");
            let (status, answer) = ask(request.body(file), None).await;
            assert!(status < 300, "{status} {answer}");
            serde_json::from_str::<serde_json::Value>(&answer).unwrap()
        };
        let session = import(format!("{header}\n")).await;
        let path = format!("/api/v1/conversations/{}", session["conversation"]["id"].as_str().unwrap());
        stage.send(Method::PATCH, &path, &json!({"policy": mask}), 200).await;
        let grown = [line("photographer_message", 1), line("snapshot_created", 2), line("a_note", 3)];
        let grown = import(format!("{header}\n{}\n", grown.join("\n"))).await;
        assert_eq!(grown["added"], 3, "{grown}");

        let tenant = store.tenant("default").unwrap();
        let all = tenant.list(everturn_engine::ListQuery::default()).unwrap().data;
        for conversation in &all {
            let chat = tenant.conversation(conversation.id);
            let mut file = Vec::new();
            chat.export(everturn_engine::Format::Jsonl, &mut file, &mut |_| {}).unwrap();
            let file = String::from_utf8_lossy(&file).into_owned();
            let at = file.find(&secret).map(|at| file[at.saturating_sub(200)..at + 20].to_string());
            assert_eq!(at, None);
            for asset in chat.assets().list().unwrap() {
                let bytes = tenant.assets().bytes(&asset).unwrap();
                assert!(!String::from_utf8_lossy(&bytes).contains(&secret), "{asset:?}");
            }
            chat.log().verify(None).unwrap();
            let prompt = chat.state().system_prompt(None).unwrap();
            if let Some(prompt) = prompt {
                assert_eq!(
                    everturn_engine::Hash::of(prompt.content.as_bytes()),
                    prompt.sha256,
                    "it is the text's own"
                );
            }
        }
        assert_eq!(all.len(), 3, "the conversation, its fork and the session");
        if address != "memory:" {
            let found = std::process::Command::new("grep")
                .arg("-rlF")
                .arg(&secret)
                .arg(folder.path())
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&found.stdout), "", "it is in a file");
        }
        stage.stop().await;
    }
}

/// Marking is the default: it changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn marking_leaves_words_as_they_are() {
    let stage = Stage::new().await;
    let secret = secret();
    let made = stage.post("/api/v1/conversations", &json!({"title": secret}), 201).await;
    assert_eq!(made["title"], secret);
    let base = format!("/api/v1/conversations/{}", made["id"].as_str().unwrap());
    let event =
        stage.post(&format!("{base}/events"), &json!({"kind": "note", "body": {"k": secret}}), 201).await;
    assert_eq!(event["body"]["k"], secret);
    stage.stop().await;
}
