//! Asking models: what is sent, what comes back, and for whom it works.

use crate::scripted_server::*;
use everturn_core::json::Raw;
use everturn_engine::Error;
use everturn_engine::model::{
    Delta, Embed, Embedding, Endpoint, Finish, Generation, GenerationStep, HttpEmbedder, HttpModel,
    LanguageModel, Limits, ModelRequest, ModelSummarizer, Protocol, Provider, ReplyTokens, Secret,
    Summarizer, wait,
};
use futures_util::StreamExt;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

fn raw(text: &str) -> Raw {
    Raw::new(text.to_string()).unwrap()
}

fn endpoint(server: &ScriptedServer, kind: Protocol) -> Endpoint {
    let mut endpoint = Endpoint::new(kind, server.url(), "some-model");
    endpoint.api_key = Some(Secret::new("sk-1"));
    endpoint.limits.backoff_first = Duration::from_millis(1);
    endpoint
}

fn request() -> ModelRequest {
    ModelRequest {
        system: Some(raw("\"Be brief.\"")),
        messages: vec![raw(r#"{"role":"user","content":"hi"}"#)],
        tools: vec![raw(r#"{"name":"ls"}"#)],
        ..ModelRequest::default()
    }
}

fn model(server: &ScriptedServer, kind: Protocol) -> HttpModel {
    HttpModel::new(endpoint(server, kind)).unwrap()
}

const ANTHROPIC: [&str; 9] = [
    r#"{"type":"message_start","message":{"id":"msg_1","model":"claude-x","content":[],"usage":{"input_tokens":5,"output_tokens":1}}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB\/+="}}"#,
    r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"tu","name":"ls","input":{}}}"#,
    r#"{"type":"ping"}"#,
    r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}"#,
    r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}"#,
    r#"{"type":"message_stop"}"#,
];

#[test]
fn a_chat_server_is_asked_with_a_bearer_key() {
    let server = ScriptedServer::start(vec![vec![says("hello")]]);
    let model = model(&server, Protocol::OpenaiChat);
    assert_eq!((model.provider(), model.model()), (Provider::OpenaiChat, "some-model"));
    let answer = model.generate(request()).wait().unwrap();
    assert_eq!((answer.text.as_str(), answer.finish), ("hello", Finish::Stop));
    assert_eq!(answer.messages, [raw(r#"{"role":"assistant","content":"hello"}"#)]);
    let seen = &server.seen()[0];
    assert_eq!(seen.line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(seen.header("authorization"), Some("Bearer sk-1"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("x-api-key"), None);
    assert_eq!(
        seen.json(),
        json!({
            "model": "some-model", "messages": [{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],
            "tools": [{"name":"ls"}], "stream": true, "stream_options": {"include_usage": true},
        })
    );
}

#[test]
fn anthropic_is_asked_with_its_own_headers_and_keeps_the_signature() {
    let server = ScriptedServer::start(vec![vec![stream(&ANTHROPIC)]]);
    let model = model(&server, Protocol::Anthropic);
    assert_eq!(model.provider(), Provider::Anthropic);
    let answer = model.generate(request()).wait().unwrap();
    assert_eq!(
        answer.messages,
        [raw(
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"EqQB\/+="},{"type":"tool_use","id":"tu","name":"ls","input":{"a":1}}]}"#
        )]
    );
    assert_eq!((answer.finish, answer.calls[0].name.as_str()), (Finish::ToolCalls, "ls"));
    assert_eq!(answer.tokens, ReplyTokens { prompt: Some(5), completion: Some(9), cached: None });
    let seen = &server.seen()[0];
    assert_eq!(seen.line, "POST /v1/messages HTTP/1.1");
    assert_eq!(seen.header("x-api-key"), Some("sk-1"));
    assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(seen.header("authorization"), None);
    assert_eq!(
        seen.json(),
        json!({
            "model": "some-model", "max_tokens": 8192, "system": "Be brief.",
            "messages": [{"role":"user","content":"hi"}], "tools": [{"name":"ls"}], "stream": true,
        })
    );
}

#[test]
fn responses_are_asked_for_without_being_stored_and_give_their_items() {
    let item =
        r#"{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"hello"}]}"#;
    let server = ScriptedServer::start(vec![vec![stream(&[
        r#"{"type":"response.created","response":{"id":"r","model":"x","status":"in_progress","output":[]}}"#
            .to_string(),
        r#"{"type":"response.output_text.delta","output_index":0,"delta":"hello"}"#.to_string(),
        format!(
            r#"{{"type":"response.completed","response":{{"id":"r","model":"x","status":"completed","output":[{item}],"usage":{{"input_tokens":1,"output_tokens":2}}}}}}"#
        ),
    ])]]);
    let model = model(&server, Protocol::OpenaiResponses);
    assert_eq!(model.provider(), Provider::OpenaiResponses);
    let answer = model.generate(request()).wait().unwrap();
    assert_eq!((answer.text.as_str(), answer.messages), ("hello", vec![raw(item)]));
    let seen = &server.seen()[0];
    assert_eq!(seen.line, "POST /v1/responses HTTP/1.1");
    assert_eq!(seen.header("authorization"), Some("Bearer sk-1"));
    assert_eq!(
        seen.json(),
        json!({
            "model": "some-model", "instructions": "Be brief.", "input": [{"role":"user","content":"hi"}],
            "tools": [{"name":"ls"}], "store": false, "stream": true,
        })
    );
}

#[test]
fn a_server_without_keys_is_asked_without_one() {
    let server = ScriptedServer::start(vec![vec![says("hello")]]);
    let endpoint = Endpoint { api_key: None, ..endpoint(&server, Protocol::OpenaiChat) };
    HttpModel::new(endpoint).unwrap().generate(request()).wait().unwrap();
    assert_eq!(server.seen()[0].header("authorization"), None);
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_sent() {
    let server = ScriptedServer::start(vec![]);
    let good = || endpoint(&server, Protocol::OpenaiChat);
    for (endpoint, code) in [
        (Endpoint { base_url: "ftp://x".into(), ..good() }, "model.base_url"),
        (Endpoint { api_key: Some(Secret::new("sk-1\n")), ..good() }, "model.key_malformed"),
        (Endpoint { api_key: Some(Secret::new("")), ..good() }, "model.key_malformed"),
        (Endpoint { limits: Limits { attempts: 0, ..Limits::default() }, ..good() }, "model.limits"),
    ] {
        let error = HttpModel::new(endpoint).err().unwrap();
        assert!(matches!(error, Error::Invalid(_)) && error.code() == code, "{error:?}");
        assert!(!error.text().contains("sk-1"));
    }
    let odd = ModelRequest { temperature: Some(f64::INFINITY), ..request() };
    assert_eq!(
        model(&server, Protocol::OpenaiChat).generate(odd).wait().unwrap_err().code(),
        "model.temperature"
    );
    assert!(server.seen().is_empty());
}

#[test]
fn https_is_spoken_to_a_server_that_should() {
    // The server does not answer a TLS greeting; what matters is that it got one and no key in the clear.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let greeted = std::thread::spawn(move || {
        let mut first = [0; 3];
        std::io::Read::read_exact(&mut listener.accept().unwrap().0, &mut first).unwrap();
        first
    });
    let mut endpoint = Endpoint::new(Protocol::OpenaiChat, format!("https://{address}"), "m");
    endpoint.limits.attempts = 1;
    match HttpModel::new(endpoint) {
        Ok(model) => {
            let error = model.generate(request()).wait().unwrap_err();
            assert_eq!(error.code(), "model.unavailable", "{error}");
            assert_eq!(greeted.join().unwrap()[..2], [0x16, 0x03]);
        }
        // A machine without any certificates cannot trust anybody, and says so.
        Err(error) => assert_eq!(error.code(), "model.client", "{error}"),
    }
}

#[test]
fn every_piece_comes_in_order_also_to_a_slow_reader() {
    let words: Vec<String> = (0..2000).map(|n| format!("{n} ")).collect();
    let mut events: Vec<String> = words.iter().map(|word| said(word)).collect();
    events.push(FINISHED.to_string());
    let server = ScriptedServer::start(vec![vec![stream(&events)]]);
    let mut generation = model(&server, Protocol::OpenaiChat).generate(request());
    let mut shown = String::new();
    loop {
        match generation.recv().unwrap().unwrap() {
            GenerationStep::Delta(Delta::Text(text)) => shown.push_str(&text),
            GenerationStep::Delta(other) => panic!("{other:?}"),
            GenerationStep::Done(answer) => break assert_eq!(answer.text, words.concat()),
        }
    }
    assert_eq!(shown, words.concat());
    assert!(generation.recv().unwrap().is_none());
}

#[test]
fn it_works_without_a_runtime_on_any_executor_and_inside_tokio() {
    let server = ScriptedServer::start((0..5).map(|_| vec![says("hello")]).collect());
    let model = Arc::new(model(&server, Protocol::OpenaiChat));
    let ask = || model.generate(request());
    assert_eq!(ask().wait().unwrap().text, "hello");
    assert_eq!(futures_executor::block_on(ask().answer()).unwrap().text, "hello");
    let steps = futures_executor::block_on(ask().collect::<Vec<_>>());
    assert!(matches!(steps[..], [Ok(GenerationStep::Delta(_)), Ok(GenerationStep::Done(_))]));
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(tokio.block_on(ask().answer()).unwrap().text, "hello");
    // A caller who blocks inside of somebody's runtime blocks only himself.
    assert_eq!(tokio.block_on(async { ask().wait() }).unwrap().text, "hello");
}

#[test]
fn many_are_asked_at_once_and_one_that_hangs_holds_up_nobody() {
    let slow = ScriptedServer::start(vec![vec![Act::Hang]]);
    let hanging = model(&slow, Protocol::OpenaiChat).generate(request());
    slow.await_requests(1);
    let server = ScriptedServer::start((0..30).map(|_| vec![says("hello")]).collect());
    let model = model(&server, Protocol::OpenaiChat);
    let all: Vec<Generation> = (0..30).map(|_| model.generate(request())).collect();
    assert!(all.into_iter().all(|generation| generation.wait().unwrap().text == "hello"));
    drop(hanging);
    slow.client_gone();
}

#[test]
fn a_connection_is_used_again_although_the_answer_was_over_before_its_body() {
    let words = format!("data: {}\n\ndata: [DONE]\n\n", said("hello"));
    let (read, was_read) = std::sync::mpsc::channel();
    let first = [stream_head(), chunk(&words)].concat();
    let mut script = vec![vec![Act::Send(first), Act::Await(was_read), Act::Send(LAST_CHUNK.to_vec())]];
    // The connections of the others end with their answers.
    script
        .extend((0..300).map(|_| vec![Act::Send([open_head(), words.clone().into()].concat()), Act::Close]));
    let server = ScriptedServer::start(script);
    let model = model(&server, Protocol::OpenaiChat);
    model.generate(request()).wait().unwrap();
    read.send(()).unwrap();
    // The next request may well come before the end of the body; sooner or later one finds the connection free.
    let again = (1..=300).any(|asked| {
        model.generate(request()).wait().unwrap();
        server.seen()[asked].connection == 0
    });
    assert!(again, "the first connection was never used again");
}

#[test]
fn a_summarizer_asks_for_json_where_its_instructions_do() {
    let server = ScriptedServer::start(vec![vec![says("{}")], vec![says("prose")]]);
    let summarizer = ModelSummarizer::new(Arc::new(model(&server, Protocol::OpenaiChat)));
    assert_eq!(summarizer.name(), "some-model");
    assert_eq!(wait(summarizer.summarize("Answer in JSON.", "a \"b\"\n")).unwrap(), "{}");
    assert_eq!(wait(summarizer.summarize("Be brief.", "json")).unwrap(), "prose");
    let seen = server.seen();
    assert_eq!(seen[0].json()["response_format"], json!({"type":"json_object"}));
    assert_eq!(
        seen[0].json()["messages"],
        json!([{"role":"system","content":"Answer in JSON."},{"role":"user","content":"a \"b\"\n"}])
    );
    assert_eq!(seen[1].json().get("response_format"), None);
}

#[test]
fn a_summary_that_is_cut_refused_or_empty_is_none() {
    let ends = |reason: &str| format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{reason}"}}]}}"#);
    let refuses = r#"{"choices":[{"delta":{"refusal":"No."},"finish_reason":"stop"}]}"#.to_string();
    for (events, code) in [
        (vec![said("half"), ends("length")], "model.answer_cut"),
        (vec![said("half"), ends("content_filter")], "model.refused"),
        (vec![refuses], "model.refused"),
        (vec![said(" \n"), ends("stop")], "model.garbage"),
    ] {
        let server = ScriptedServer::start(vec![vec![stream(&events)]]);
        let summarizer = ModelSummarizer::new(Arc::new(model(&server, Protocol::OpenaiChat)));
        assert_eq!(wait(summarizer.summarize("s", "u")).unwrap_err().code(), code);
    }
}

fn vectors(vectors: &[&[f32]]) -> Act {
    let data: Vec<_> = vectors.iter().enumerate().map(|(i, v)| json!({"index": i, "embedding": v})).collect();
    Act::Send(whole(200, "content-type: application/json\r\n", &json!({"data": data}).to_string()))
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

#[test]
fn texts_are_embedded_in_batches_and_in_order() {
    let server = ScriptedServer::start(vec![
        vec![vectors(&[&[1.0, 0.0], &[2.0, 0.0]])],
        vec![Act::Send(whole(500, "", ""))],
        vec![vectors(&[&[3.0, 0.5]])],
    ]);
    let how = Embedding { batch_texts_max: 2, ..Embedding::default() };
    let embedder = HttpEmbedder::new(endpoint(&server, Protocol::OpenaiChat), how).unwrap();
    assert_eq!((embedder.model(), embedder.dimensions()), ("some-model", None));
    let got = wait(embedder.embed(texts(&["a", "b", "c"]))).unwrap();
    assert_eq!(got, [[1.0, 0.0], [2.0, 0.0], [3.0, 0.5]]);
    assert_eq!(embedder.dimensions(), Some(2));
    let seen = server.seen();
    assert_eq!(seen[0].line, "POST /v1/embeddings HTTP/1.1");
    assert_eq!(seen[0].header("authorization"), Some("Bearer sk-1"));
    let inputs: Vec<_> = seen.iter().map(|seen| seen.json()).collect();
    let body = |input: serde_json::Value| json!({"model":"some-model","input":input});
    // The failed one is asked again; the one that was answered is not.
    assert_eq!(inputs, [body(json!(["a", "b"])), body(json!(["c"])), body(json!(["c"]))]);
    assert!(futures_executor::block_on(embedder.embed(Vec::new())).unwrap().is_empty());
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn vectors_of_another_length_are_refused() {
    let server =
        ScriptedServer::start(vec![vec![vectors(&[&[1.0, 2.0]])], vec![vectors(&[&[1.0, 2.0, 3.0]])]]);
    let embedder = HttpEmbedder::new(endpoint(&server, Protocol::OpenaiChat), Embedding::default()).unwrap();
    wait(embedder.embed(texts(&["a"]))).unwrap();
    let error = wait(embedder.embed(texts(&["a"]))).unwrap_err();
    assert!(
        error.code() == "model.dimensions" && error.text().contains("3 dimensions, 2 are expected"),
        "{error}"
    );

    let server = ScriptedServer::start(vec![vec![vectors(&[&[1.0, 2.0]])]]);
    let how = Embedding { dimensions: Some(3), shorten: true, ..Embedding::default() };
    let embedder = HttpEmbedder::new(endpoint(&server, Protocol::OpenaiChat), how).unwrap();
    assert_eq!(embedder.dimensions(), Some(3));
    assert_eq!(wait(embedder.embed(texts(&["a"]))).unwrap_err().code(), "model.dimensions");
    assert_eq!(server.seen()[0].json()["dimensions"], 3);
}

#[test]
fn an_embedding_server_has_the_same_faults() {
    for (script, code) in [
        (vec![Act::Send(whole(401, "", ""))], "model.unauthorized"),
        (vec![Act::Send(whole(200, "", "{"))], "model.garbage"),
        (vec![Act::Send(whole(200, "", r#"{"data":[]}"#))], "model.garbage"),
        (
            vec![Act::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()), Act::Close],
            "model.stream_cut",
        ),
        (vec![Act::Hang], "model.timeout"),
        (
            vec![Act::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()), Act::Hang],
            "model.timeout",
        ),
        (vec![Act::Send(open_head()), Act::Flood(vec![b' '; 1000])], "limit.exceeded"),
    ] {
        let server = ScriptedServer::start(vec![script]);
        let mut endpoint = endpoint(&server, Protocol::OpenaiChat);
        endpoint.limits.first_byte_timeout = Duration::from_millis(500);
        endpoint.limits.idle_timeout = Duration::from_millis(500);
        endpoint.limits.answer_bytes_max = 100_000;
        let embedder = HttpEmbedder::new(endpoint, Embedding::default()).unwrap();
        assert_eq!(wait(embedder.embed(texts(&["a"]))).unwrap_err().code(), code);
        server.await_requests(1);
        assert_eq!(server.seen().len(), 1);
    }
    let server = ScriptedServer::start(vec![]);
    assert_eq!(
        HttpEmbedder::new(endpoint(&server, Protocol::Anthropic), Embedding::default()).err().unwrap().code(),
        "model.kind"
    );
}

#[test]
fn dropping_an_embedding_ends_the_request() {
    let server = ScriptedServer::start(vec![vec![Act::Hang]]);
    let embedder = HttpEmbedder::new(endpoint(&server, Protocol::OpenaiChat), Embedding::default()).unwrap();
    let mut asked = embedder.embed(texts(&["a"]));
    // It begins with the first look at it.
    assert!(futures_executor::block_on(futures_util::future::poll_immediate(&mut asked)).is_none());
    server.await_requests(1);
    drop(asked);
    server.client_gone();
}
