//! A real model on this machine, over real sockets, for replies and facts. `./test model` sets it up.

use crate::stage::{Stage, config};
use crate::{python, script};
use everturn_core::json::Raw;
use everturn_engine::model::{
    Configured, Endpoint, Generation, HttpModel, LanguageModel, ModelRequest, Protocol, Provider,
};
use everturn_engine::{Everturn, Options};
use reqwest::Method;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;

/// The model's server; it ends when its standard input does.
struct LocalModel {
    process: Child,
    url: String,
}

impl LocalModel {
    fn start() -> LocalModel {
        let mut process = python(&script("python/local_model.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines.map_while(Result::ok).find(|line| line.starts_with("http")).expect("an address");
        LocalModel { process, url }
    }

    fn client(&self) -> HttpModel {
        HttpModel::new(Endpoint::new(Protocol::OpenaiChat, format!("{}/v1", self.url), "smollm2")).unwrap()
    }
}

/// A server over a store that has this model.
async fn stage(client: Arc<dyn LanguageModel>) -> Stage {
    let model = Configured { client, context_tokens: 4096 };
    let options = Options { models: [("default".to_string(), model)].into(), ..Options::default() };
    Stage::over(Everturn::open_with("memory:", options).unwrap(), config()).await
}

impl Drop for LocalModel {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_model_answers_is_kept_and_reads_its_own_answer_next_time() {
    let model = LocalModel::start();
    let stage = stage(Arc::new(model.client())).await;
    let path = format!("/api/v1/conversations/{}", stage.conversation().await);

    let ask = |text: &str, stream: bool| {
        let input = json!([{"role": "user", "content": text}]);
        json!({"input": input, "stream": stream, "max_output_tokens": 24, "temperature": 0.0})
    };
    let body = ask("My name is Ada. Say hello to me by name.", true).to_string();
    let request = stage.request(Method::POST, &format!("{path}/generate")).body(body);
    let frames = request.send().await.unwrap().text().await.unwrap();
    assert!(frames.matches("event: delta").count() > 1, "it came in pieces: {frames}");
    assert_eq!(frames.matches("event: done").count(), 1, "{frames}");
    let second = stage.post(&format!("{path}/generate"), &ask("Say it again.", false), 200).await;
    assert!(second["tokens"]["prompt"].as_u64() > Some(0), "{second}");
    assert!(!second["text"].as_str().unwrap().trim().is_empty());

    let turns = stage.get(&format!("{path}/turns"), 200).await;
    let said = |n: usize| turns["data"][n]["content"].clone();
    assert_eq!(turns["data"].as_array().unwrap().len(), 4, "two questions, two answers");
    let seen = stage.get(&format!("{path}/contexts/{}", second["receipt_seq"]), 200).await;
    let given: Vec<Value> =
        seen["messages"].as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    assert_eq!(given, [said(0), said(1), said(2)], "the second call was given all that was said before");
    stage.stop().await;
}

/// A model whose output is constrained to a schema. One as small as this would not follow it by itself, and
/// then only refusals would be tested.
struct Shaped {
    model: HttpModel,
    schema: Value,
}

impl LanguageModel for Shaped {
    fn provider(&self) -> Provider {
        self.model.provider()
    }

    fn model(&self) -> &str {
        self.model.model()
    }

    fn generate(&self, mut request: ModelRequest) -> Generation {
        let shape = json!({"type": "json_schema", "json_schema": {"name": "facts", "schema": self.schema}});
        request.extra.insert("response_format".into(), Raw::of(&shape).unwrap());
        request.temperature = Some(0.0);
        self.model.generate(request)
    }
}

/// What a small model takes for facts is unpredictable. Each is supported by the turns that it names, or
/// dropped.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_model_learns_stands_in_its_turns_or_is_dropped_and_counted() {
    const FACTS_MIN: u64 = 2;
    const FACTS_MAX: u64 = 3;
    let text = json!({"type": "string", "minLength": 4, "maxLength": 60});
    let fact = json!({
        "subject": text, "predicate": text, "object": text, "quote": text,
        "confidence": {"enum": [0.5, 0.9]}, "source_turn": {"type": "integer", "minimum": 2, "maximum": 4},
    });
    let object = |properties: Value| {
        let names: Vec<&String> = properties.as_object().unwrap().keys().collect();
        json!({"type": "object", "required": names, "properties": properties, "additionalProperties": false})
    };
    let facts = json!({"type": "array", "minItems": FACTS_MIN, "maxItems": FACTS_MAX, "items": object(fact)});
    let model = LocalModel::start();
    let shaped = Shaped { model: model.client(), schema: object(json!({ "facts": facts })) };
    let stage = stage(Arc::new(shaped)).await;
    let conversation = stage.conversation().await;
    let said = ["My name is Ada Lovelace and I live in London.", "The engine is due in December."];
    for text in said {
        stage.say(&conversation, text).await;
    }

    let path = format!("/api/v1/conversations/{conversation}/facts");
    let done = stage.post(&format!("{path}/extract"), &json!({}), 200).await;
    assert_eq!((&done["model"], &done["turns"]), (&json!("smollm2"), &json!(2)), "{done}");
    let dropped: u64 = done["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    let kept = stage.get(&format!("{path}?include_superseded=true"), 200).await;
    let kept = kept["data"].as_array().unwrap();
    // The same fact from two turns is one fact with two sources.
    let sources: Vec<&Value> = kept.iter().flat_map(|fact| fact["sources"].as_array().unwrap()).collect();
    let found = dropped + sources.len() as u64;
    assert!((FACTS_MIN..=FACTS_MAX).contains(&found), "everything is accounted for: {done}");
    for source in sources {
        let turn = stage.get(&format!("/api/v1/turns/{}", source["turn"].as_str().unwrap()), 200).await;
        let (text, quote) = (turn["content"].as_str().unwrap(), source["quote"].as_str().unwrap());
        assert!(said.contains(&text) && text.contains(quote), "{quote:?} is not in {text:?}");
    }
    // The range was read, so the model is not called again.
    let again = stage.post(&format!("{path}/extract"), &json!({}), 200).await;
    assert_eq!((&again["turns"], &again["facts"]), (&json!(0), &json!([])), "{again}");
    stage.stop().await;
}
