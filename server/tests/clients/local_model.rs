//! Generate end to end with a real model on this machine, over real sockets. `./test model` sets it up.

use crate::stage::{Stage, config};
use crate::{python, script};
use everturn_engine::model::{Configured, Endpoint, HttpModel, Kind};
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
    let endpoint = Endpoint::new(Kind::OpenaiChat, format!("{}/v1", model.url), "smollm2");
    let client = Configured { client: Arc::new(HttpModel::new(endpoint).unwrap()), context_tokens: 4096 };
    let options = Options { models: [("default".to_string(), client)].into(), ..Options::default() };
    let stage = Stage::over(Everturn::open_with("memory:", options).unwrap(), config()).await;
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
