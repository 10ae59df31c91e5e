//! Generate end to end with a real model on this machine, over real sockets. `./test model` sets it up.

use crate::{python, script};
use everturn_engine::model::{Configured, Endpoint, HttpModel, Kind};
use everturn_engine::{Everturn, GenerateOptions, NewTurn, Options, Progress};
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

#[test]
fn a_real_model_answers_is_kept_and_reads_its_own_answer_next_time() {
    let model = LocalModel::start();
    let endpoint = Endpoint::new(Kind::OpenaiChat, format!("{}/v1", model.url), "smollm2");
    let client = Configured { client: Arc::new(HttpModel::new(endpoint).unwrap()), context_tokens: 4096 };
    let options = Options { models: [("default".to_string(), client)].into(), ..Options::default() };
    let store = Everturn::open_with("memory:", options).unwrap();
    let scope = store.tenant("default").unwrap();
    let id = scope.create(Default::default()).wait().unwrap().id;

    let ask = |text: &str| {
        let options = GenerateOptions {
            input: vec![NewTurn::user(text)],
            max_output_tokens: Some(24),
            temperature: Some(0.0),
            ..GenerateOptions::default()
        };
        let mut generating = everturn_engine::model::wait(scope.generate(id, options)).unwrap();
        let (mut pieces, mut done) = (0, None);
        while let Some(progress) = generating.recv().unwrap() {
            match progress {
                Progress::Delta(_) => pieces += 1,
                Progress::Done(generated) => done = Some(generated),
            }
        }
        (pieces, *done.unwrap())
    };
    let (pieces, first) = ask("My name is Ada. Say hello to me by name.");
    assert!(pieces > 1, "it came in pieces");
    assert!(!first.answer.text.trim().is_empty());
    assert!(first.answer.tokens.prompt > Some(0) && first.answer.tokens.completion > Some(0));
    let (_, second) = ask("Say it again.");

    let turns = scope.history(id, Default::default()).unwrap().data;
    assert_eq!(turns.len(), 4, "two questions, two answers");
    assert!(scope.verify(id, None).unwrap().events >= 4);
    let seen = scope.replay_context(id, second.receipt_seq).unwrap();
    let said: String = seen.messages.iter().map(|message| message.get()).collect();
    assert!(said.contains("My name is Ada"), "the second call was given the first question");
    let answer = serde_json::Value::from(first.answer.text.as_str()).to_string();
    assert!(said.contains(answer.trim_matches('"')), "and the model's own answer: {said}");
}
