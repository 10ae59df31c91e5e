//! Model replies over REST.

use crate::live::Live;
use crate::stage::{Stage, answer, config};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_engine::model::{
    Configured, Delta, Finish, Generation, GenerationStep, LanguageModel, ModelReply, ModelRequest, Provider,
    ReplyTokens, ToolCall,
};
use everturn_engine::{Everturn, Options};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A model whose replies the test controls.
struct Told(Mutex<Option<UnboundedReceiver<Result<GenerationStep, Error>>>>);

impl LanguageModel for Told {
    fn provider(&self) -> Provider {
        Provider::OpenaiChat
    }

    fn model(&self) -> &str {
        "told-1"
    }

    fn generate(&self, _: ModelRequest) -> Generation {
        let told = self.0.lock().unwrap().take().expect("asked once");
        Generation::new(futures_util::stream::unfold(told, |mut told| async {
            told.recv().await.map(|step| (step, told))
        }))
    }
}

/// A server with such a model, and the sender of its replies.
pub async fn stage() -> (Stage, UnboundedSender<Result<GenerationStep, Error>>) {
    let (store, tell) = store();
    (Stage::over(store, config()).await, tell)
}

/// A store with such a model, and the sender of its replies.
pub fn store() -> (Everturn, UnboundedSender<Result<GenerationStep, Error>>) {
    let (tell, told) = unbounded_channel();
    let model = Configured::new(Arc::new(Told(Mutex::new(Some(told)))));
    let models = BTreeMap::from([("default".to_string(), model)]);
    (Everturn::open_with("memory:", Options { models, ..Options::default() }).unwrap(), tell)
}

pub fn text(text: &str) -> Result<GenerationStep, Error> {
    Ok(GenerationStep::Delta(Delta::Text(text.into())))
}

pub fn done(text: &str) -> Result<GenerationStep, Error> {
    let message = format!(
        r#"{{"role":"assistant","content":{},"tool_calls":[{{"id":"c1","type":"function","function":{{"name":"ls","arguments":"{{}}"}}}}]}}"#,
        everturn_core::json::quote(text)
    );
    Ok(GenerationStep::Done(Box::new(ModelReply {
        messages: vec![Raw::new(message).unwrap()],
        text: text.into(),
        refusal: None,
        calls: vec![ToolCall { id: Some("c1".into()), name: "ls".into(), arguments: "{}".into() }],
        finish: Finish::ToolCalls,
        tokens: ReplyTokens { prompt: Some(7), completion: Some(2), cached: None },
        usage: None,
        model: "told-1".into(),
        id: None,
    })))
}

fn ask(stream: bool) -> Value {
    json!({"input": [{"role": "user", "content": "Where?"}], "stream": stream, "actor": "bot"})
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_stream_the_whole_answer_comes() {
    let (stage, tell) = stage().await;
    let id = stage.conversation().await;
    for step in [text("Lis"), text("bon"), done("Lisbon")] {
        tell.send(step).unwrap();
    }
    let path = format!("/api/v1/conversations/{id}");
    let got = stage.post(&format!("{path}/generate"), &ask(false), 200).await;
    assert_eq!((&got["text"], &got["finish"]), (&json!("Lisbon"), &json!("tool_calls")));
    assert_eq!(got["calls"], json!([{"id": "c1", "name": "ls", "arguments": "{}"}]));
    assert_eq!(got["tokens"]["prompt"], 7);
    assert_eq!(got["turns"][0]["status"], "complete");
    let mut turns = stage.get(&format!("{path}/turns"), 200).await;
    for turn in turns["data"].as_array_mut().unwrap() {
        assert_eq!(turn.as_object_mut().unwrap().shift_remove("entry"), Some(json!("turn")));
    }
    assert_eq!(turns["data"], json!([got["input"][0], got["turns"][0]]));
    let saw = stage.get(&format!("{path}/contexts/{}", got["receipt_seq"]), 200).await;
    assert_eq!(saw["messages"][0]["content"], "Where?");
    let status = stage.get(&format!("/api/v1/generations/{}", got["id"].as_str().unwrap()), 200).await;
    assert_eq!(status["state"], "done");
    assert_eq!(
        stage.get("/api/v1/models", 200).await["data"],
        json!([{"name": "default", "model": "told-1"}])
    );
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_shows_the_answer_as_it_comes_and_goes_on_without_its_reader() {
    let (stage, tell) = stage().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}");
    let request = stage.request(Method::POST, &format!("{path}/generate")).body(ask(true).to_string());
    let mut live = Live::connect(request).await;
    let started = live.expect("started").await.data;
    assert_eq!(started["input"][0]["content"], "Where?");
    tell.send(text("Lis")).unwrap();
    assert_eq!(live.expect("delta").await.data, json!({"type": "text", "text": "Lis"}));
    let running = stage.get(&format!("{path}/generations"), 200).await;
    assert_eq!(running["data"][0]["id"], started["id"]);
    let other = stage.post(&format!("{path}/generate"), &ask(false), 409).await;
    assert_eq!(other["code"], "generation.running");
    // Its reader disconnects; subscribers of the conversation see the end.
    drop(live);
    let follow = stage.request(Method::GET, &format!("{path}/events?from=2"));
    let mut events = Live::connect(follow).await;
    tell.send(text("bon")).unwrap();
    tell.send(done("Lisbon")).unwrap();
    let end = loop {
        let seen = events.next().await.unwrap();
        if seen.data["kind"] == "turn.committed" {
            break seen;
        }
    };
    assert_eq!(end.data["turn"], started["turn"]);
    let turn = stage.get(&format!("/api/v1/turns/{}", started["turn"].as_str().unwrap()), 200).await;
    assert_eq!((&turn["content"], &turn["actor"]), (&json!("Lisbon"), &json!("bot")));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_says_which_approvals_it_waits_for_and_goes_on_when_they_are_resolved() {
    let (stage, tell) = stage().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}");
    let approval = json!({"approval_id": "a1", "question": "Ask the model?", "actor": "bot"});
    stage.post(&format!("{path}/approvals"), &approval, 201).await;
    let request = stage.request(Method::POST, &format!("{path}/generate")).body(ask(true).to_string());
    let mut live = Live::connect(request).await;
    let waits_for = live.expect("waiting").await.data["waits_for"].clone();
    assert_eq!((&waits_for[0]["approval_id"], &waits_for[0]["requested_by"]), (&json!("a1"), &json!("bot")));
    stage.post(&format!("{path}/approvals/a1/resolve"), &json!({"state": "approved"}), 200).await;
    assert_eq!(live.expect("started").await.data["input"][0]["content"], "Where?");
    tell.send(done("Lisbon")).unwrap();
    live.expect("done").await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_stopped_or_fails_keeps_what_was_said() {
    for stopped in [true, false] {
        let (stage, tell) = stage().await;
        let id = stage.conversation().await;
        let path = format!("/api/v1/conversations/{id}/generate");
        let mut live = Live::connect(stage.request(Method::POST, &path).body(ask(true).to_string())).await;
        let started = live.expect("started").await.data;
        tell.send(text("Lis")).unwrap();
        live.expect("delta").await;
        let generation = format!("/api/v1/generations/{}", started["id"].as_str().unwrap());
        if stopped {
            answer(stage.request(Method::POST, &format!("{generation}/stop")), 202).await;
        } else {
            tell.send(Err(Error::busy("model.overloaded", "try later"))).unwrap();
        }
        let end = live.expect("error").await.data;
        assert_eq!(end["code"], if stopped { "generation.stopped" } else { "model.overloaded" });
        assert!(live.next().await.is_none());
        let turn = stage.get(&format!("/api/v1/turns/{}", started["turn"].as_str().unwrap()), 200).await;
        let status = if stopped { "interrupted" } else { "aborted" };
        assert_eq!((&turn["content"], &turn["status"]), (&json!("Lis"), &json!(status)));
        answer(stage.request(Method::POST, &format!("{generation}/stop")), 409).await;
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked() {
    let (stage, _tell) = stage().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/generate");
    for (body, code) in [
        (json!({"model": "other"}), "model.unknown"),
        (json!({"context": {"provider": "gemini"}}), "generate.context"),
        (json!({"context": {"at_seq": 1}, "input": [{"role": "user", "content": "x"}]}), "generate.at_seq"),
        (json!({"temperature": "hot"}), "body.shape"),
    ] {
        assert_eq!(stage.post(&path, &body, 400).await["code"], code);
    }
    stage.get("/api/v1/generations/gen_01JD0000000000000000000000", 404).await;
    assert_eq!(stage.get(&format!("/api/v1/conversations/{id}/turns"), 200).await["data"], json!([]));
    stage.stop().await;
    let none = Stage::new().await;
    let id = none.conversation().await;
    let problem = none.post(&format!("/api/v1/conversations/{id}/generate"), &json!({}), 400).await;
    assert_eq!(problem["code"], "model.none");
    none.stop().await;
}

/// The last answer is generated anew over REST, in its place.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_generated_anew() {
    let (stage, tell) = stage().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}");
    let turns = json!({"turns": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"}]});
    stage.post(&format!("{path}/turns"), &turns, 201).await;
    let wrong = json!({"regenerate": "first"});
    stage.post(&format!("{path}/generate"), &wrong, 400).await;
    tell.send(done("A1, other")).unwrap();
    let generated = stage.post(&format!("{path}/generate"), &json!({"regenerate": "last"}), 200).await;
    assert_eq!(generated["turns"][0]["place"], 3);
    let page = stage.get(&format!("{path}/turns"), 200).await;
    let words: Vec<&str> =
        page["data"].as_array().unwrap().iter().map(|turn| turn["content"].as_str().unwrap()).collect();
    assert_eq!(words, ["Q1", "A1, other"]);
    stage.stop().await;
}
