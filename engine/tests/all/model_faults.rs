//! A provider that hangs, cuts the stream, answers 429, 500 or garbage: each is told apart, nothing waits for ever, and
//! nothing is asked twice that was answered once.

use crate::scripted_server::*;
use everturn_engine::Error;
use everturn_engine::model::{
    Delta, Endpoint, Generation, GenerationStep, HttpModel, LanguageModel, Limits, ModelRequest, Protocol,
    Secret,
};
use std::time::Duration;

const KEY: &str = "sk-very-secret";

/// Waits that are short where nothing can be gained by waiting, and long where a slow machine could spoil the test.
fn limits() -> Limits {
    Limits {
        backoff_first: Duration::from_millis(1),
        backoff_max: Duration::from_millis(5),
        attempts: 3,
        ..Limits::default()
    }
}

fn ask(server: &ScriptedServer, limits: Limits) -> Generation {
    let mut endpoint = Endpoint::new(Protocol::OpenaiChat, server.url(), "m");
    endpoint.api_key = Some(Secret::new(KEY));
    endpoint.limits = limits;
    HttpModel::new(endpoint).unwrap().generate(ModelRequest::default())
}

/// What was shown, and how it ended.
fn outcome(mut generation: Generation) -> (String, Result<String, Error>) {
    let mut shown = String::new();
    loop {
        match generation.recv() {
            Ok(Some(GenerationStep::Delta(Delta::Text(text)))) => shown.push_str(&text),
            Ok(Some(GenerationStep::Delta(_))) => {}
            Ok(Some(GenerationStep::Done(answer))) => return (shown, Ok(answer.text)),
            Ok(None) => panic!("a generation without an end"),
            Err(error) => {
                assert!(!error.text().contains(KEY), "{error}");
                return (shown, Err(error));
            }
        }
    }
}

fn failure(script: Vec<Vec<Act>>, limits: Limits) -> (String, Error, usize) {
    let server = ScriptedServer::start(script);
    let (shown, result) = outcome(ask(&server, limits));
    // A client that gave up may be faster than the server's note of its request.
    server.await_requests(1);
    (shown, result.unwrap_err(), server.seen().len())
}

#[test]
fn a_server_that_never_answers_is_given_up_and_not_asked_twice() {
    let quick = Limits { first_byte_timeout: Duration::from_millis(500), ..limits() };
    for script in [
        vec![Act::Hang],
        // Only the head of an answer is no answer yet.
        vec![Act::Send(stream_head()), Act::Hang],
    ] {
        let (shown, error, asked) = failure(vec![script], quick.clone());
        assert!(matches!(error, Error::Busy(_)) && error.code() == "model.timeout", "{error:?}");
        assert!(error.text().contains("first_byte_timeout is 0.5 s"), "{error}");
        assert_eq!((shown.as_str(), asked), ("", 1));
    }
}

#[test]
fn a_server_that_hangs_in_the_middle_is_given_up_after_the_idle_timeout() {
    let quick = Limits { idle_timeout: Duration::from_millis(100), ..limits() };
    let begun = [stream_head(), chunk(format!("data: {}\n\n", said("half")))].concat();
    let (shown, error, asked) = failure(vec![vec![Act::Send(begun), Act::Hang]], quick);
    assert!(error.code() == "model.timeout" && error.text().contains("idle_timeout"), "{error:?}");
    assert_eq!((shown.as_str(), asked), ("half", 1));
}

#[test]
fn everything_together_ends_at_the_total_timeout() {
    let quick = Limits { total_timeout: Duration::from_millis(1000), ..limits() };
    let (_, error, _) = failure(vec![vec![Act::Hang]], quick.clone());
    assert!(error.code() == "model.timeout" && error.text().contains("total_timeout"), "{error:?}");
    // Waiting between attempts counts as well.
    let patient =
        Limits { backoff_first: Duration::from_secs(60), backoff_max: Duration::from_secs(60), ..quick };
    let (_, error, asked) = failure(vec![vec![Act::Send(whole(500, "", ""))]], patient);
    assert!(error.text().contains("total_timeout") && asked == 1, "{error:?}");
}

#[test]
fn a_slow_server_that_goes_on_is_waited_for() {
    let words: Vec<String> = (0..20).map(|n| format!("{n} ")).collect();
    let mut pieces = vec![stream_head()];
    pieces.extend(words.iter().map(|word| chunk(format!("data: {}\n\n", said(word)))));
    pieces.push([chunk(format!("data: {FINISHED}\n\n")), LAST_CHUNK.to_vec()].concat());
    let server = ScriptedServer::start(vec![vec![Act::Drip(pieces, Duration::from_millis(80))]]);
    // Longer together than any single wait may be.
    let patient = Limits {
        first_byte_timeout: Duration::from_millis(1500),
        idle_timeout: Duration::from_millis(1500),
        ..limits()
    };
    let (shown, answer) = outcome(ask(&server, patient));
    assert_eq!((shown.as_str(), answer.unwrap()), (words.concat().as_str(), words.concat()));
}

#[test]
fn a_slow_reader_does_not_make_the_server_look_slow() {
    let words: Vec<String> = (0..500).map(|n| said(&format!("{n} "))).collect();
    let mut bytes = stream_head();
    words.iter().for_each(|word| bytes.extend(chunk(format!("data: {word}\n\n"))));
    bytes.extend([chunk(format!("data: {FINISHED}\n\n")), LAST_CHUNK.to_vec()].concat());
    let server = ScriptedServer::start(vec![vec![Act::Send(bytes)]]);
    let idle = Duration::from_millis(300);
    let mut generation = ask(&server, Limits { idle_timeout: idle, ..limits() });
    generation.recv().unwrap();
    // More wait than may wait, for longer than the server may be silent.
    std::thread::sleep(idle * 2);
    assert!(outcome(generation).1.unwrap().ends_with("499 "));
}

#[test]
fn waits_without_end_are_possible() {
    let endless = Limits {
        connect_timeout: Duration::MAX,
        first_byte_timeout: Duration::MAX,
        idle_timeout: Duration::MAX,
        total_timeout: Duration::MAX,
        backoff_first: Duration::MAX,
        ..limits()
    };
    let server = ScriptedServer::start(vec![vec![Act::Send(whole(500, "", ""))], vec![says("ok")]]);
    assert_eq!(outcome(ask(&server, endless)).1.unwrap(), "ok");
}

#[test]
fn a_stream_that_is_cut_is_told_from_one_that_ended() {
    let event = format!("data: {}\n\n", said("é😀"));
    let bytes = event.as_bytes();
    let middle = event.find('é').unwrap() + 1;
    for cut in [0, 4, bytes.len() / 2, middle, bytes.len()] {
        let rest = &bytes[..cut];
        let chunked = [stream_head(), chunk(bytes), chunk(rest)].concat();
        let in_a_chunk =
            [stream_head(), chunk(bytes), format!("{:x}\r\n", bytes.len() + 1).into_bytes(), rest.to_vec()]
                .concat();
        let open = [open_head(), bytes.to_vec(), rest.to_vec()].concat();
        for sent in [chunked, in_a_chunk, open] {
            let (shown, error, asked) = failure(vec![vec![Act::Send(sent), Act::Close]], limits());
            assert!(
                matches!(error, Error::Busy(_)) && error.code() == "model.stream_cut",
                "{cut}: {error:?}"
            );
            // It was begun to be answered: nothing is asked again.
            assert!(shown.starts_with("é😀") && asked == 1, "{cut}: {shown}");
        }
    }
}

#[test]
fn an_answer_that_said_why_it_ended_is_whole_however_the_connection_ends() {
    let events = format!("data: {}\n\ndata: {FINISHED}\n\n", said("whole"));
    let quick = Limits { idle_timeout: Duration::from_millis(100), ..limits() };
    for script in [
        vec![Act::Send([stream_head(), chunk(&events)].concat()), Act::Close],
        vec![Act::Send([open_head(), events.clone().into_bytes()].concat()), Act::Close],
        vec![Act::Send([stream_head(), chunk(&events)].concat()), Act::Hang],
        // Everything was said and the server keeps the connection: nobody waits for it.
        vec![Act::Send([stream_head(), chunk(format!("{events}data: [DONE]\n\n"))].concat()), Act::Hang],
    ] {
        let server = ScriptedServer::start(vec![script]);
        assert_eq!(outcome(ask(&server, quick.clone())).1.unwrap(), "whole");
    }
}

#[test]
fn nothing_is_said_twice_when_nothing_was_said_yet() {
    for first in [
        vec![Act::Close],
        vec![Act::Send(whole(500, "", "")), Act::Close],
        vec![Act::Send(whole(503, "content-type: text/html\r\n", "<html><body>Bad gateway</body></html>"))],
        vec![Act::Send(whole(
            529,
            "",
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        ))],
        vec![Act::Send(whole(408, "", ""))],
        vec![Act::Send(whole(409, "", ""))],
        // Accepted, and refused in the stream.
        vec![stream(&[r#"{"error":{"code":503,"message":"busy"}}"#])],
        vec![Act::Send(whole(200, "", r#"{"error":{"code":503,"message":"busy"}}"#))],
    ] {
        let server = ScriptedServer::start(vec![first, vec![says("hello")]]);
        let (shown, answer) = outcome(ask(&server, limits()));
        assert_eq!((shown.as_str(), answer.unwrap().as_str(), server.seen().len()), ("hello", "hello", 2));
    }
}

#[test]
fn after_the_first_word_nothing_is_asked_again() {
    for end in [
        vec![Act::Send(chunk("data: {\"error\":{\"code\":503,\"message\":\"busy\"}}\n\n")), Act::Close],
        vec![Act::Send(chunk("data: nonsense\n\n")), Act::Close],
        vec![Act::Close],
    ] {
        let mut script =
            vec![Act::Send([stream_head(), chunk(format!("data: {}\n\n", said("word")))].concat())];
        script.extend(end);
        let (shown, _, asked) = failure(vec![script, vec![says("twice")]], limits());
        assert_eq!((shown.as_str(), asked), ("word", 1));
    }
}

#[test]
fn attempts_are_limited_and_the_last_reason_is_told() {
    let refuse = |status: u16, body: &str| (0..9).map(|_| vec![Act::Send(whole(status, "", body))]).collect();
    for (status, body, code) in [
        (500, r#"{"error":{"message":"boom"}}"#, "model.unavailable"),
        (503, "<html>", "model.unavailable"),
        (429, r#"{"error":{"message":"slow down"}}"#, "model.rate_limited"),
    ] {
        let (_, error, asked) = failure(refuse(status, body), limits());
        assert!(matches!(error, Error::Busy(_)) && error.code() == code, "{error:?}");
        assert!(error.text().contains(&status.to_string()), "{error}");
        assert_eq!(asked, 3);
    }
    let (_, error, asked) = failure(refuse(500, "boom"), Limits { attempts: 1, ..limits() });
    assert!(error.text().contains("boom") && asked == 1, "{error}");
}

#[test]
fn a_request_that_is_wrong_is_asked_once_and_the_reason_passed_on() {
    for (status, body, code) in [
        (400, r#"{"error":{"message":"tools[0] is odd"}}"#, "model.refused"),
        (401, r#"{"error":{"message":"tools[0] is odd: sk-very-secret"}}"#, "model.unauthorized"),
        (403, "tools[0] is odd", "model.unauthorized"),
        (404, r#"{"error":{"message":"tools[0] is odd"}}"#, "model.not_found"),
        (
            400,
            r#"{"error":{"message":"tools[0] is odd","code":"context_length_exceeded"}}"#,
            "model.context_overflow",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"tools[0] is odd: prompt is too long: 9 tokens > 8 maximum"}}"#,
            "model.context_overflow",
        ),
    ] {
        let (_, error, asked) = failure(vec![vec![Act::Send(whole(status, "", body))]], limits());
        assert_eq!((error.code(), asked), (code, 1));
        assert!(error.text().contains("tools[0] is odd"), "{error}");
    }
}

#[test]
fn the_wait_that_a_server_asks_for_is_kept_and_capped() {
    let refused = |header: &str| vec![Act::Send(whole(429, &format!("{header}\r\n"), ""))];
    // It asks for less than we would wait: this would take a minute otherwise.
    let slow =
        Limits { backoff_first: Duration::from_secs(60), backoff_max: Duration::from_secs(60), ..limits() };
    for header in ["retry-after: 0", "retry-after-ms: 1", "retry-after: Wed, 21 Oct 2015 07:28:00 GMT"] {
        let server = ScriptedServer::start(vec![refused(header), vec![says("ok")]]);
        assert_eq!(outcome(ask(&server, slow.clone())).1.unwrap(), "ok");
    }
    // It asks for more.
    let server = ScriptedServer::start(vec![refused("retry-after-ms: 300"), vec![says("ok")]]);
    outcome(ask(&server, Limits { backoff_max: Duration::from_secs(60), ..limits() })).1.unwrap();
    let seen = server.seen();
    assert!(seen[1].at - seen[0].at >= Duration::from_millis(300));
    // It asks for more than we are ready to wait.
    let server = ScriptedServer::start(vec![refused("retry-after: 3600"), vec![says("ok")]]);
    assert_eq!(outcome(ask(&server, limits())).1.unwrap(), "ok");
    // And it is told when it comes to nothing.
    let (_, error, _) = failure(vec![refused("retry-after: 3600")], Limits { attempts: 1, ..limits() });
    assert!(error.text().contains("it asks to wait 3600 s"), "{error}");
}

#[test]
fn an_answer_that_cannot_be_read_is_refused() {
    for (body, code) in [
        (r#"{"this is": "something else"}"#, "model.garbage"),
        ("{broken", "model.garbage"),
        ("<html><body>Welcome</body></html>", "model.garbage"),
        ("Hello, World!", "model.garbage"),
        ("data: nonsense\n\n", "model.garbage"),
        ("data: \u{0}\n\n", "model.garbage"),
        ("", "model.stream_cut"),
        ("data: [DONE]\n\n", "model.stream_cut"),
    ] {
        let (shown, error, asked) = failure(vec![vec![Act::Send(whole(200, "", body))]], limits());
        assert_eq!((error.code(), shown.as_str(), asked), (code, "", 1), "{body}: {error}");
    }
    let (_, error, _) = failure(
        vec![vec![Act::Send([open_head(), b"data: \xff\xfe\n\n".to_vec()].concat()), Act::Close]],
        limits(),
    );
    assert_eq!(error.code(), "model.garbage");
}

#[test]
fn what_is_no_http_is_not_an_answer() {
    let (_, error, _) = failure(
        (0..3).map(|_| vec![Act::Send(b"SSH-2.0-OpenSSH\r\n".to_vec()), Act::Close]).collect(),
        limits(),
    );
    assert!(matches!(error, Error::Busy(_)) && error.code() == "model.unavailable", "{error:?}");
}

#[test]
fn a_wrong_content_type_does_not_matter() {
    let events = format!("data: {}\n\ndata: {FINISHED}\n\n", said("hi"));
    let json =
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
    for (kind, body) in [
        ("application/json", events.as_str()),
        ("text/plain", &events),
        ("text/event-stream", json),
        ("text/html", json),
    ] {
        let server = ScriptedServer::start(vec![vec![Act::Send(whole(
            200,
            &format!("content-type: {kind}\r\n"),
            body,
        ))]]);
        let (shown, answer) = outcome(ask(&server, limits()));
        assert_eq!((shown.as_str(), answer.unwrap().as_str()), ("hi", "hi"), "{kind}");
    }
}

#[test]
fn a_server_that_never_stops_is_stopped() {
    let small = Limits { answer_bytes_max: 200_000, ..limits() };
    for (head, flood) in [
        (open_head(), format!("data: {}\n\n", said("again")).into_bytes()),
        (open_head(), b": ping\n\n".to_vec()),
        (open_head(), vec![b'x'; 1000]),
        ([open_head(), b"{\"a\":\"".to_vec()].concat(), vec![b'x'; 1000]),
        (open_head(), b"   \n".to_vec()),
    ] {
        let server = ScriptedServer::start(vec![vec![Act::Send(head), Act::Flood(flood)]]);
        let error = outcome(ask(&server, small.clone())).1.unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error:?}");
        assert!(error.text().contains("_BYTES_MAX is 200000, this is 2"), "{error}");
        server.client_gone();
    }
}

#[test]
fn one_event_has_a_limit_of_its_own() {
    let server = ScriptedServer::start(vec![vec![
        Act::Send([open_head(), b"data: ".to_vec()].concat()),
        Act::Flood(vec![b'x'; 64 * 1024]),
    ]]);
    let error = outcome(ask(&server, limits())).1.unwrap_err();
    assert!(error.text().contains("SSE_EVENT_BYTES_MAX is 16777216"), "{error}");
    server.client_gone();
}

#[test]
fn a_refusal_that_never_stops_is_not_read_to_its_end() {
    for head in [
        "HTTP/1.1 400 X\r\nconnection: close\r\n\r\nreason: ",
        "HTTP/1.1 400 X\r\ncontent-length: 99999999999\r\n\r\nreason: ",
    ] {
        let server = ScriptedServer::start(vec![vec![Act::Send(head.into()), Act::Flood(vec![b'x'; 1000])]]);
        let error = outcome(ask(&server, limits())).1.unwrap_err();
        assert!(error.code() == "model.refused" && error.text().contains("reason: xxx"), "{error:?}");
        assert!(error.text().len() < 1000);
        server.client_gone();
    }
    // One that says half and then hangs is given the time between pieces.
    let quick = Limits { idle_timeout: Duration::from_millis(100), ..limits() };
    let (_, error, _) = failure(
        vec![vec![Act::Send(b"HTTP/1.1 400 X\r\ncontent-length: 100\r\n\r\nhalf".to_vec()), Act::Hang]],
        quick,
    );
    assert!(error.text().contains("half"), "{error}");
}

#[test]
fn a_key_does_not_follow_a_redirect() {
    let elsewhere = ScriptedServer::start(vec![vec![says("gotcha")]]);
    for status in [301, 302, 303, 307, 308] {
        let location = format!("location: {}/v1/chat/completions\r\n", elsewhere.url());
        let (_, error, asked) = failure(vec![vec![Act::Send(whole(status, &location, ""))]], limits());
        assert_eq!((error.code(), asked), ("model.redirected", 1));
        assert!(matches!(error, Error::Invalid(_)) && error.text().contains("base_url"), "{error:?}");
    }
    assert!(elsewhere.seen().is_empty());
}

#[test]
fn a_server_that_is_not_there_is_tried_again_and_named() {
    let gone = ScriptedServer::start(vec![]);
    let url = gone.url();
    drop(gone);
    let mut endpoint = Endpoint::new(Protocol::OpenaiChat, &url, "m");
    endpoint.limits = limits();
    let error = HttpModel::new(endpoint).unwrap().generate(ModelRequest::default()).wait().unwrap_err();
    assert!(matches!(error, Error::Busy(_)) && error.code() == "model.unavailable", "{error:?}");
    assert!(error.text().contains(&format!("no connection to {url}")), "{error}");
}

#[test]
fn dropping_a_generation_ends_the_request_wherever_it_is() {
    let word = [stream_head(), chunk(format!("data: {}\n\n", said("word")))].concat();
    for (script, steps) in [
        (vec![Act::Hang], 0),
        (vec![Act::Send(stream_head()), Act::Hang], 0),
        (vec![Act::Send(word.clone()), Act::Hang], 1),
        (vec![Act::Send(open_head()), Act::Flood(format!("data: {}\n\n", said("word")).into_bytes())], 1),
    ] {
        let server = ScriptedServer::start(vec![script]);
        let mut generation = ask(&server, limits());
        server.await_requests(1);
        for _ in 0..steps {
            assert!(matches!(generation.recv().unwrap(), Some(GenerationStep::Delta(_))));
        }
        drop(generation);
        server.client_gone();
    }
}

#[test]
fn a_generation_that_is_dropped_while_it_waits_does_not_ask_again() {
    let refused = |ms: u32| vec![Act::Send(whole(500, &format!("retry-after-ms: {ms}\r\n"), ""))];
    let patient = Limits { backoff_max: Duration::from_secs(60), ..limits() };
    let server = ScriptedServer::start(vec![refused(1500), vec![says("twice")]]);
    let generation = ask(&server, patient.clone());
    server.await_requests(1);
    drop(generation);
    // Another one, begun later and made to wait longer, comes back; the first would have been back before it.
    let other = ScriptedServer::start(vec![refused(2000), vec![says("ok")]]);
    assert_eq!(outcome(ask(&other, patient)).1.unwrap(), "ok");
    assert_eq!(server.seen().len(), 1);
}
