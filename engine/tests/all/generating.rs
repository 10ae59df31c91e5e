//! Generating: the input is durable before the model is asked, the answer is kept however it ends, and what the model was
//! given can be shown afterwards, byte for byte.

mod faults;
mod private;
mod recalling;

use crate::compacting::{by_hand, good, policy};
use crate::scripted_server::*;
use crate::stage::*;
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::turn::{Role, Status, Successor, Turn};
use everturn_engine::model::{
    Configured, Delta, Endpoint, Finish, Generation, GenerationStep, HttpModel, LanguageModel, Limits,
    ModelReply, ModelRequest, ModelSummarizer, Protocol, Provider, ReplyTokens, Summarizer, wait,
};
use everturn_engine::{
    AppendOptions, CompactOptions, ContextOptions, Error, Everturn, GenerateOptions, Generated, Generating,
    GenerationProgress, GenerationState, NewTurn, Options, Regenerate, Tenant, Update,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

fn raw(text: &str) -> Raw {
    Raw::new(text.to_string()).unwrap()
}

fn limits() -> Limits {
    Limits {
        backoff_first: Duration::from_millis(1),
        backoff_max: Duration::from_millis(5),
        attempts: 3,
        ..Limits::default()
    }
}

fn model_with(server: &ScriptedServer, kind: Protocol, limits: Limits) -> Configured {
    let mut endpoint = Endpoint::new(kind, server.url(), "some-model");
    endpoint.limits = limits;
    Configured::new(Arc::new(HttpModel::new(endpoint).unwrap()))
}

fn options(model: Configured) -> Options {
    Options { models: BTreeMap::from([("default".to_string(), model)]), ..quiet() }
}

/// A store in memory whose model is the server.
fn asking_with(
    server: &ScriptedServer,
    kind: Protocol,
    limits: Limits,
) -> (Everturn, Tenant, ConversationId) {
    let store = Everturn::open_with("memory:", options(model_with(server, kind, limits))).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(prompted()).id;
    (store, scope, id)
}

fn asking(server: &ScriptedServer, kind: Protocol) -> (Everturn, Tenant, ConversationId) {
    asking_with(server, kind, limits())
}

fn prompted() -> Settings {
    Settings { system_prompt: Some(Some(SystemPrompt::new("Be brief.".into()))), ..Settings::default() }
}

fn input(text: &str) -> GenerateOptions {
    GenerateOptions { input: vec![NewTurn::user(text)], ..GenerateOptions::default() }
}

fn begin(scope: &Tenant, id: ConversationId, options: GenerateOptions) -> Result<Generating, Error> {
    wait(scope.conversation(id).generate(options))
}

fn generate(scope: &Tenant, id: ConversationId, options: GenerateOptions) -> Result<Generated, Error> {
    begin(scope, id, options)?.wait()
}

/// The bytes of a field of a request.
fn sent(seen: &Seen, name: &str) -> Option<String> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(&seen.body).unwrap();
    fields.get(name).map(|raw| raw.get().to_string())
}

/// What a receipt gives back is what the server got.
#[track_caller]
fn replays(scope: &Tenant, id: ConversationId, seq: u64, seen: &Seen) {
    let context = scope.conversation(id).contexts().replay_at(seq).unwrap();
    let (messages, system) =
        everturn_formats::provider::request_fields(context.receipt.renderer.parse::<Provider>().unwrap());
    let texts: Vec<&str> = context.messages.iter().map(Raw::get).collect();
    assert_eq!(sent(seen, messages).unwrap(), format!("[{}]", texts.join(",")));
    let given = context.system.as_ref().map(|system| system.get().to_string());
    assert_eq!(system.and_then(|name| sent(seen, name)), given);
}

fn long_ago(scope: &Tenant, id: ConversationId) {
    for n in 0..20 {
        scope.say(id, NewTurn::user(&format!("Note {n}: {}", "the quick brown fox ".repeat(20))));
        scope.say(id, NewTurn::assistant("Noted."));
    }
}

fn kind_of_turns(turns: &[Turn]) -> Vec<(Role, Status)> {
    turns.iter().map(|turn| (turn.role, turn.status)).collect()
}

/// A piece of a chat answer and nothing more yet.
fn begun(word: &str) -> Act {
    Act::Send([stream_head(), chunk(format!("data: {}\n\n", said(word)))].concat())
}

fn more(word: &str) -> Act {
    Act::Send(chunk(format!("data: {}\n\n", said(word))))
}

fn rest() -> Act {
    Act::Send([chunk(format!("data: {FINISHED}\n\ndata: [DONE]\n\n")), LAST_CHUNK.to_vec()].concat())
}

const OVERFLOW: &str = r#"{"error":{"message":"This model's maximum context length is 9 tokens.","code":"context_length_exceeded"}}"#;

const ANTHROPIC: [&str; 10] = [
    r#"{"type":"message_start","message":{"id":"msg_1","model":"claude-x","content":[],"usage":{"input_tokens":5,"output_tokens":1}}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB\/+="}}"#,
    r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"I look."}}"#,
    r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"tu","name":"ls","input":{}}}"#,
    r#"{"type":"ping"}"#,
    r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}"#,
    r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}"#,
    r#"{"type":"message_stop"}"#,
];

const REASONING: &str = r#"{"type":"reasoning", "id":"rs_1","summary":[],"encrypted_content":"gAAA\/"}"#;
const MESSAGE: &str = r#"{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I look.","annotations":[]}]}"#;
const CALL: &str = r#"{"type":"function_call","id":"fc_1","call_id":"c1","name":"ls","arguments":"{\"a\":1}","status":"completed"}"#;

fn responses() -> Vec<String> {
    let output = format!("[{REASONING},{MESSAGE},{CALL}]");
    vec![
        r#"{"type":"response.created","response":{"id":"resp_1","model":"gpt-x"}}"#.to_string(),
        r#"{"type":"response.output_text.delta","output_index":1,"delta":"I look."}"#.to_string(),
        format!(
            r#"{{"type":"response.completed","response":{{"id":"resp_1","model":"gpt-x","status":"completed","output":{output},"usage":{{"input_tokens":7,"output_tokens":8}}}}}}"#
        ),
    ]
}

fn chat_calls() -> Vec<String> {
    vec![
        said("I look."),
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"ls","arguments":"{}"}}]}}]}"#.to_string(),
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#.to_string(),
        "[DONE]".to_string(),
    ]
}

#[test]
fn an_answer_follows_its_input_and_its_receipt_gives_back_the_bytes_that_were_sent() {
    for kind in [Protocol::OpenaiChat, Protocol::OpenaiResponses, Protocol::Anthropic] {
        let script = match kind {
            Protocol::OpenaiChat => stream(&chat_calls()),
            Protocol::OpenaiResponses => stream(&responses()),
            Protocol::Anthropic => stream(&ANTHROPIC),
        };
        let server = ScriptedServer::start(vec![vec![script]]);
        let (_store, scope, id) = asking(&server, kind);
        scope.conversation(id).state().pin("budget", raw("900")).wait().unwrap();
        let options = GenerateOptions {
            actor: Some("helper".into()),
            metadata: BTreeMap::from([("run".to_string(), raw("7"))]),
            max_output_tokens: Some(50),
            temperature: Some(0.5),
            extra: BTreeMap::from([("top_p".to_string(), raw("0.25"))]),
            context: ContextOptions { tools: vec![raw(r#"{"name":"ls"}"#)], ..ContextOptions::new(0) },
            ..input("what is here?")
        };
        let mut generating = begin(&scope, id, options).unwrap();
        assert_eq!(generating.input.len(), 1);
        let (turn, receipt_seq) = (generating.turn, generating.receipt_seq);
        let mut deltas = Vec::new();
        let generated = loop {
            match generating.recv().unwrap().unwrap() {
                GenerationProgress::Delta(delta) => deltas.push(delta),
                GenerationProgress::Done(generated) => break *generated,
            }
        };
        assert!(generating.recv().unwrap().is_none());
        assert!(deltas.contains(&Delta::Text("I look.".into())), "{deltas:?}");
        assert_eq!(generated.answer.calls[0].name, "ls");

        let first = &generated.turns[0];
        assert_eq!(
            (first.id, first.status, first.actor.as_deref()),
            (turn, Status::Complete, Some("helper"))
        );
        assert_eq!(first.metadata["run"].get(), "7");
        let about: Value = first.metadata["generation"].read().unwrap();
        assert_eq!((&about["receipt_seq"], &about["finish"]), (&json!(receipt_seq), &json!("tool_calls")));
        assert_eq!(about["items"], generated.turns.len());
        for later in &generated.turns[1..] {
            let about: Value = later.metadata["generation"].read().unwrap();
            assert_eq!((&about["answer"], &about["nth"]), (&json!(turn), &json!(0)), "the first of its kind");
        }
        let tokens = first.tokens.unwrap();
        let (prompt, completion) = match kind {
            Protocol::OpenaiChat => (3, 4),
            Protocol::OpenaiResponses => (7, 8),
            Protocol::Anthropic => (5, 9),
        };
        assert_eq!((tokens.prompt, tokens.completion), (Some(prompt), Some(completion)));
        let kept: Vec<&str> =
            generated.turns.iter().filter_map(|turn| turn.message.as_ref()).map(Raw::get).collect();
        let answered: Vec<&str> = generated.answer.messages.iter().map(Raw::get).collect();
        assert_eq!(kept, answered, "what the model said is kept as it came");
        assert_eq!(scope.turns(id)[1..], generated.turns);

        let seen = &server.seen()[0];
        let body = seen.json();
        assert_eq!((&body["temperature"], &body["top_p"]), (&json!(0.5), &json!(0.25)));
        assert_eq!(body["tools"], json!([{"name": "ls"}]));
        assert_eq!(seen.body.matches("what is here?").count(), 1, "{}", seen.body);
        assert!(seen.body.contains("Be brief.") && seen.body.contains("900"));
        replays(&scope, id, receipt_seq, seen);
        // The input before the receipt, the receipt before the answer.
        let kinds = scope.kinds(id);
        let place = |kind: &str| kinds.iter().position(|other| other == kind).unwrap();
        assert!(
            place("message") < place("context.receipt") && place("context.receipt") < place("turn.opened")
        );
        assert!(place("turn.opened") < place("turn.committed"));
        assert_eq!(scope.generations().status(generating.id).unwrap().state, GenerationState::Done);
        assert_eq!(scope.generations().running(id).unwrap(), []);
    }
}

/// A prompt that ends with a call is refused by every provider, so it is not sent.
#[test]
fn a_model_is_not_asked_while_the_last_call_waits() {
    for kind in [Protocol::OpenaiChat, Protocol::OpenaiResponses, Protocol::Anthropic] {
        let server = ScriptedServer::start(vec![vec![match kind {
            Protocol::OpenaiChat => says("done"),
            Protocol::OpenaiResponses => stream(&responses()),
            Protocol::Anthropic => stream(&ANTHROPIC),
        }]]);
        let (_store, scope, id) = asking(&server, kind);
        scope.say(id, NewTurn::user("what is here?"));
        let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"ls","input":{}}]}"#;
        scope.say(id, NewTurn::message(call));
        let head = scope.head(id);
        refused(
            generate(&scope, id, GenerateOptions::default()),
            "generate.call_waits",
            "the call c1 of ls, which has no result yet",
        );
        assert_eq!(scope.head(id), head, "and nothing is written");
        scope.conversation(id).state().abandon_tool("c1", None, None).unwrap();
        generate(&scope, id, GenerateOptions::default()).unwrap();
    }
}

#[test]
fn results_are_handed_back_and_the_next_prompt_has_the_answer_as_it_came() {
    for kind in [Protocol::OpenaiChat, Protocol::OpenaiResponses, Protocol::Anthropic] {
        let (first, second, result) = match kind {
            Protocol::OpenaiChat => (
                stream(&chat_calls()),
                says("two files"),
                r#"{"role":"tool","tool_call_id":"c1","content":"a.rs b.rs"}"#,
            ),
            Protocol::OpenaiResponses => (
                stream(&responses()),
                stream(&responses()),
                r#"{"type":"function_call_output","call_id":"c1","output":"a.rs b.rs"}"#,
            ),
            Protocol::Anthropic => (
                stream(&ANTHROPIC),
                stream(&ANTHROPIC),
                r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"tu","content":"a.rs b.rs"}]}"#,
            ),
        };
        let server = ScriptedServer::start(vec![vec![first], vec![second]]);
        let (_store, scope, id) = asking(&server, kind);
        let asked = generate(&scope, id, input("what is here?")).unwrap();
        // Appended by hand, then asked without input: the log's end is what is answered.
        scope.say(id, NewTurn::message(result));
        let answered = generate(&scope, id, GenerateOptions::default()).unwrap();
        let body = &server.seen()[1].body;
        let said: Vec<&str> = asked.answer.messages.iter().map(Raw::get).collect();
        assert!(body.contains(&said.join(",")), "{said:?} is not in {body}");
        assert_eq!(body.matches("a.rs b.rs").count(), 1, "{body}");
        replays(&scope, id, answered.receipt_seq, &server.seen()[1]);
        assert_eq!(
            scope.conversation(id).state().read().unwrap().pending_tools.len(),
            answered.answer.calls.len()
        );
    }
}

#[test]
fn whoever_follows_sees_piece_after_piece_and_the_end() {
    let (go, gate) = channel();
    let (on, second) = channel();
    let server = ScriptedServer::start(vec![vec![
        Act::Await(gate),
        begun("Hel"),
        Act::Await(second),
        more("lo"),
        rest(),
    ]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let generating = begin(&scope, id, input("greet")).unwrap();
    let turn = generating.turn;
    assert_eq!(scope.turn(turn).unwrap().status, Status::Pending);
    let mut follower = scope
        .conversation(id)
        .subscribe(scope.conversation(id).get().unwrap().head.seq.saturating_sub(1))
        .unwrap();
    let mut next = || follower.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(matches!(next(), Update::Event(event) if event.kind == "turn.opened"));
    for (word, signal) in [("Hel", go), ("lo", on)] {
        signal.send(()).unwrap();
        match next() {
            Update::Chunk(chunk) => assert_eq!((chunk.turn, &*chunk.text), (turn, word)),
            other => panic!("{other:?}"),
        }
    }
    match next() {
        Update::Event(event) => {
            assert_eq!((event.kind.as_str(), event.turn), ("turn.committed", Some(turn)));
            assert!(event.text().unwrap().contains("Hello"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(words(&generating.wait().unwrap().turns[0]).unwrap(), "Hello");
}

/// A model that must not be asked before what it is asked is on the disk.
struct Asks(std::path::PathBuf);

impl LanguageModel for Asks {
    fn provider(&self) -> Provider {
        Provider::OpenaiChat
    }

    fn model(&self) -> &str {
        "asks"
    }

    fn generate(&self, _: ModelRequest) -> Generation {
        let store =
            Everturn::open_with(self.0.to_str().unwrap(), Options { read_only: true, ..Options::default() });
        let scope = store.unwrap().tenant("acme").unwrap();
        let id = scope.list(Default::default()).unwrap().data[0].id;
        let kinds = scope.kinds(id).join(" ");
        Generation::failed(Error::internal("test.seen", kinds))
    }
}

#[test]
fn the_input_and_the_receipt_are_durable_before_the_model_is_asked() {
    let stage = Stage::new();
    let store = stage.open_with(options(Configured::new(Arc::new(Asks(stage.path())))));
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let error = generate(&scope, id, input("hello")).unwrap_err();
    assert_eq!(error.text(), "conversation.created message context.receipt turn.opened");
}

#[test]
fn the_input_never_gives_way_and_is_there_once() {
    let server = ScriptedServer::start((0..3).map(|_| vec![says("ok")]).collect());
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    long_ago(&scope, id);
    let context = |options: ContextOptions| GenerateOptions { context: options, ..input("") };
    let long = format!("QUESTION {}", "word ".repeat(300));
    // The tail gives way to it.
    let options = GenerateOptions {
        input: vec![NewTurn::user(&long), NewTurn::user("QUESTION two")],
        ..context(ContextOptions::new(600))
    };
    let generated = generate(&scope, id, options).unwrap();
    let body = server.seen()[0].json();
    let messages = body["messages"].as_array().unwrap();
    assert_eq!(messages[messages.len() - 2]["content"], json!(long));
    assert_eq!(server.seen()[0].body.matches("QUESTION").count(), 2);
    assert!(messages.len() < 10, "{messages:?}");
    replays(&scope, id, generated.receipt_seq, &server.seen()[0]);
    // Too little room for it is said, and the input is kept.
    let options = GenerateOptions { input: vec![NewTurn::user(&long)], ..context(ContextOptions::new(200)) };
    refused(generate(&scope, id, options), "context.budget_too_small", "input");
    assert_eq!(words(scope.turns(id).last().unwrap()).unwrap(), long);
    // Without a tail it is all there is.
    let sections = everturn_views::context::Sections::parse(&json!({"tail": false})).unwrap();
    let options = GenerateOptions {
        input: vec![NewTurn::user("alone")],
        ..context(ContextOptions { sections, ..ContextOptions::new(0) })
    };
    let generated = generate(&scope, id, options).unwrap();
    let alone = server.seen()[1].json();
    assert_eq!(alone["messages"].as_array().unwrap().len(), 2, "{alone}");
    replays(&scope, id, generated.receipt_seq, &server.seen()[1]);
    // The last ones of the tail, and the input.
    let options = GenerateOptions {
        input: vec![NewTurn::user("lastly")],
        ..context(ContextOptions { last_n: Some(1), ..ContextOptions::new(0) })
    };
    generate(&scope, id, options).unwrap();
    assert_eq!(server.seen()[2].json()["messages"].as_array().unwrap().len(), 3);
    // What was asked then is tail now, and a prompt cache knows it still.
    let next =
        ContextOptions { last_n: Some(3), provider: Provider::OpenaiChat, ..ContextOptions::new(4000) };
    let next = scope.conversation(id).contexts().build(&next).unwrap();
    let before = &next.included[..next.included.len() - 1];
    assert_eq!(next.cache.stable_prefix_tokens, before.iter().map(|block| block.tokens).sum::<u64>());
}

/// A result is nothing without its call: where there is no room for both, that is said, and nobody is asked with half.
#[test]
fn the_calls_that_the_input_answers_stay_with_it() {
    let server = ScriptedServer::start(vec![vec![says("ok")]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    long_ago(&scope, id);
    let arguments = json!({ "path": "a.rs", "text": "x ".repeat(200) }).to_string();
    scope.say(id, NewTurn::message(
        json!({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"write","arguments":arguments}}]}).to_string(),
    ));
    let result = NewTurn::message(r#"{"role":"tool","tool_call_id":"c1","content":"done"}"#);
    let options = GenerateOptions {
        input: vec![result],
        context: ContextOptions::new(150),
        ..GenerateOptions::default()
    };
    refused(generate(&scope, id, options), "context.budget_too_small", "input");
    let options = GenerateOptions { context: ContextOptions::new(400), ..GenerateOptions::default() };
    generate(&scope, id, options).unwrap();
    let body = server.seen()[0].json();
    let messages = body["messages"].as_array().unwrap();
    let last: Vec<&str> =
        messages[messages.len() - 2..].iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(last, ["assistant", "tool"]);
}

#[test]
fn a_prompt_for_anthropic_is_marked_for_its_cache_at_the_ends_of_sections() {
    let server = ScriptedServer::start((0..2).map(|_| vec![stream(&ANTHROPIC)]).collect());
    let (_store, scope, id) = asking(&server, Protocol::Anthropic);
    scope.conversation(id).state().pin("budget", raw("900")).wait().unwrap();
    for text in ["one", "two"] {
        scope.say(id, NewTurn::user(text));
        scope.say(id, NewTurn::assistant(text));
    }
    let digest = everturn_engine::Digest { title: "Board".into(), text: "3 open".into() };
    let context = ContextOptions { digests: vec![digest], ..ContextOptions::new(0) };
    let generated = generate(&scope, id, GenerateOptions { context, ..input("three") }).unwrap();
    let seen = &server.seen()[0];
    let body = seen.json();
    let mark = json!({"type": "ephemeral"});
    let marks: Vec<bool> = (0..3).map(|n| body["system"][n]["cache_control"] == mark).collect();
    assert_eq!(marks, [true, true, false], "{}", body["system"]);
    assert_eq!(
        body["messages"][3],
        json!({"role":"assistant","content":[{"type":"text","text":"two","cache_control":mark}]})
    );
    assert_eq!(body["messages"][4], json!({"role":"user","content":"three"}));
    assert_eq!(seen.body.matches("cache_control").count(), 3);
    replays(&scope, id, generated.receipt_seq, seen);
    // Whoever marks by themselves is left alone.
    let tools = vec![raw(r#"{"name":"ls","cache_control":{"type":"ephemeral"}}"#)];
    scope.say(
        id,
        NewTurn::message(
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"tu","content":"a"}]}"#,
        ),
    );
    let context = ContextOptions { tools, ..ContextOptions::new(0) };
    generate(&scope, id, GenerateOptions { context, ..input("four") }).unwrap();
    assert_eq!(server.seen()[1].body.matches("cache_control").count(), 1);
}

#[test]
fn a_model_is_chosen_by_name_and_may_be_asked_to_serve_another() {
    let server = ScriptedServer::start((0..4).map(|_| vec![says("ok")]).collect());
    let model = |name: &str| {
        let endpoint = Endpoint::new(Protocol::OpenaiChat, server.url(), name);
        Configured::new(Arc::new(HttpModel::new(endpoint).unwrap()))
    };
    let open = |names: &[&str]| {
        let models = names.iter().map(|name| (name.to_string(), model(&format!("{name}-1")))).collect();
        let store = Everturn::open_with("memory:", Options { models, ..quiet() }).unwrap();
        let scope = store.tenant("acme").unwrap();
        (store, scope.begin(), scope)
    };
    let named = |name: &str| GenerateOptions { model: Some(name.into()), ..input("hi") };
    let (_store, id, scope) = open(&[]);
    refused(begin(&scope, id, input("hi")), "model.none", "no model is configured");
    let (_store, id, scope) = open(&["fast", "smart"]);
    refused(begin(&scope, id, named("clever")), "model.unknown", "\"clever\" is not one of fast, smart");
    refused(begin(&scope, id, input("hi")), "model.unknown", "name one of fast, smart");
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, 1, "nothing was appended");
    assert_eq!(
        scope.generations().models(),
        [("fast".into(), "fast-1".into()), ("smart".into(), "smart-1".into())]
    );
    generate(&scope, id, named("smart")).unwrap();
    let other = GenerateOptions { served_model: Some("smart-2".into()), ..named("smart") };
    let generated = generate(&scope, id, other).unwrap();
    assert_eq!(
        scope.conversation(id).contexts().replay_at(generated.receipt_seq).unwrap().receipt.model.as_deref(),
        Some("smart-2")
    );
    let (_store, id, scope) = open(&["only"]);
    generate(&scope, id, input("hi")).unwrap();
    let (_store, id, scope) = open(&["default", "other"]);
    generate(&scope, id, input("hi")).unwrap();
    let asked: Vec<Value> = server.seen().iter().map(|seen| seen.json()["model"].clone()).collect();
    assert_eq!(asked, ["smart-1", "smart-2", "only-1", "default-1"]);
}

#[test]
fn what_cannot_be_generated_is_refused_before_anything_is_said() {
    let server = ScriptedServer::start(Vec::new());
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let head = scope.conversation(id).get().unwrap().head.seq;
    let at = GenerateOptions {
        context: ContextOptions { at_seq: Some(1), ..ContextOptions::new(0) },
        ..input("hi")
    };
    refused(begin(&scope, id, at), "generate.at_seq", "fork there first");
    let long = GenerateOptions { max_output_tokens: Some(128_000), ..input("hi") };
    refused(begin(&scope, id, long), "generate.max_output_tokens", "128000");
    refused(begin(&scope, id, GenerateOptions::default()), "generate.nothing", "give some input");
    let stale = AppendOptions { expected_seq: Some(99), ..AppendOptions::default() };
    refused(
        begin(&scope, id, GenerateOptions { append: stale.clone(), ..input("hi") }),
        "append.stale_seq",
        "",
    );
    refused(
        begin(&scope, id, GenerateOptions { append: stale, ..GenerateOptions::default() }),
        "append.stale_seq",
        "",
    );
    let nowhere = "conv_00000000000000000000000007".parse().unwrap();
    refused(begin(&scope, nowhere, input("hi")), "conversation.absent", "");
    assert_eq!((scope.conversation(id).get().unwrap().head.seq, server.seen().len()), (head, 0));
    assert_eq!(scope.generations().running(id).unwrap(), []);
}

/// The client lost the answer and sends the request again: nothing is said twice, and nothing is paid twice.
#[test]
fn a_repeated_request_says_nothing_twice() {
    let server = ScriptedServer::start(vec![vec![Act::Send(whole(400, "", "{}"))], vec![says("ok")]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let request = || GenerateOptions {
        append: AppendOptions { idempotency_key: Some("k1".into()), ..AppendOptions::default() },
        ..input("once")
    };
    refused(generate(&scope, id, request()), "model.refused", "");
    // It failed, so that it may be tried again.
    let generated = generate(&scope, id, request()).unwrap();
    refused(generate(&scope, id, request()), "generation.repeated", &generated.turns[0].id.to_string());
    let said = scope.turns(id).iter().filter(|turn| turn.role == Role::User).count();
    assert_eq!((said, server.seen().len()), (1, 2));
    assert_eq!(server.seen()[1].body.matches("once").count(), 1);
}

/// Regression: only a request with input was known again, by the next answer in the sixteen turns after it, whoever's that was.
#[test]
fn a_repeated_request_is_known_by_its_own_reply() {
    let keyed = |key: &str, options: GenerateOptions| GenerateOptions {
        append: AppendOptions { idempotency_key: Some(key.into()), ..AppendOptions::default() },
        ..options
    };
    let nothing = GenerateOptions::default;
    let server = ScriptedServer::start(vec![
        vec![says("first")],
        vec![says("anew")],
        vec![Act::Send(whole(400, "", "{}"))],
        vec![says("second")],
        vec![says("third")],
        vec![Act::Hang],
    ]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    scope.say(id, NewTurn::user("Well?"));
    let first = generate(&scope, id, keyed("empty", nothing())).unwrap().turns[0].id.to_string();
    refused(generate(&scope, id, keyed("empty", nothing())), "generation.repeated", &first);
    let anew_keyed = || keyed("anew", anew(Regenerate::Last));
    let replaced = generate(&scope, id, anew_keyed()).unwrap().turns[0].id.to_string();
    refused(generate(&scope, id, anew_keyed()), "generation.repeated", &replaced);
    // The answer to another request is none to this one, which failed.
    refused(generate(&scope, id, keyed("failed", input("Q1"))), "model.refused", "");
    generate(&scope, id, keyed("other", input("Q2"))).unwrap();
    let third = generate(&scope, id, keyed("failed", input("Q1"))).unwrap().turns[0].id.to_string();
    // However much was said since.
    (0..40).for_each(|n| drop(scope.say(id, NewTurn::user(&format!("meanwhile {n}")))));
    refused(generate(&scope, id, keyed("failed", input("Q1"))), "generation.repeated", &third);
    // Beside others, it is known as well.
    let parallel = || GenerateOptions { parallel: true, ..keyed("slow", input("Q3")) };
    let running = begin(&scope, id, parallel()).unwrap();
    refused(begin(&scope, id, parallel()), "generation.running", &running.turn.to_string());
    assert_eq!(server.seen().len(), 6);
}

/// A model that says the same each time.
struct Says(&'static str, String);

impl LanguageModel for Says {
    fn provider(&self) -> Provider {
        Provider::OpenaiChat
    }

    fn model(&self) -> &str {
        self.0
    }

    fn generate(&self, _: ModelRequest) -> Generation {
        let reply = ModelReply {
            messages: Vec::new(),
            text: self.1.clone(),
            refusal: None,
            calls: Vec::new(),
            finish: Finish::Stop,
            tokens: ReplyTokens::default(),
            usage: None,
            model: self.0.into(),
            id: None,
        };
        Generation::new(futures_util::stream::iter([Ok(GenerationStep::Done(Box::new(reply)))]))
    }
}

#[test]
fn a_model_that_a_caller_brings_is_the_default_of_its_requests_only() {
    let says = |name, text: &str| Configured::new(Arc::new(Says(name, text.to_string())));
    let stage = Stage::new();
    for url in ["memory:".to_string(), stage.url()] {
        let models = [("default", says("own", "mine")), ("other", says("other-1", "other"))];
        let models: BTreeMap<_, _> = models.map(|(name, model)| (name.to_string(), model)).into();
        let written = |name| ModelSummarizer::new(Arc::new(Says(name, good(name))));
        let summarizers = ["default", "other"].map(|name| {
            let summarizer: Arc<dyn Summarizer> = Arc::new(written(name));
            (name.to_string(), summarizer)
        });
        let options = Options { models, summarizers: summarizers.into(), ..quiet() };
        let store = Everturn::open_with(&url, options).unwrap();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        long_ago(&scope, id);
        let bringing = |text: &str| scope.called_by(scope.caller().clone().bringing(says("brought", text)));
        let reply = |scope: &Tenant, model: Option<&str>| {
            let model = model.map(str::to_string);
            generate(scope, id, GenerateOptions { model, ..input("and?") }).unwrap().answer.text
        };
        let brought = bringing("theirs");
        assert_eq!(reply(&brought, None), "theirs");
        assert_eq!(reply(&brought, Some("default")), "theirs");
        assert_eq!(reply(&brought, Some("other")), "other");
        // A reply in the name of an actor is one of the same caller.
        let acting = GenerateOptions { actor: Some("bot".into()), ..input("and?") };
        assert_eq!(generate(&brought, id, acting).unwrap().answer.text, "theirs");
        assert_eq!(reply(&scope, None), "mine");
        let summarizer = |scope: &Tenant| {
            let dry = CompactOptions { dry_run: true, ..by_hand(4) };
            let compacted = scope.conversation(id).compaction().compact(dry).unwrap();
            let summary = scope.conversation(id).compaction().summarize(1, 9, None).unwrap();
            assert_eq!(compacted.summarizer, summary.summarizer);
            summary.summarizer
        };
        let brought = bringing(&good("theirs"));
        assert_eq!((summarizer(&brought), summarizer(&scope)), ("brought".into(), "default".into()));
        let named = policy("compaction", json!({"summarizer": "other"}));
        scope.conversation(id).update(named).wait().unwrap();
        assert_eq!((summarizer(&brought), summarizer(&scope)), ("brought".into(), "other".into()));
    }
}

/// A model that thinks for a long time says nothing for a long time. It is not silent.
#[test]
fn a_turn_is_not_swept_away_while_its_model_thinks() {
    struct Thinks(Mutex<Option<UnboundedReceiver<String>>>);
    impl LanguageModel for Thinks {
        fn provider(&self) -> Provider {
            Provider::OpenaiChat
        }
        fn model(&self) -> &str {
            "thinks"
        }
        fn generate(&self, _: ModelRequest) -> Generation {
            let mut thoughts = self.0.lock().unwrap().take().unwrap();
            Generation::new(futures_util::stream::poll_fn(move |context| {
                thoughts
                    .poll_recv(context)
                    .map(|thought| thought.map(|text| Ok(GenerationStep::Delta(Delta::Thinking(text)))))
            }))
        }
    }
    let (signal, signals) = unbounded_channel();
    let clock = Still::new(3);
    let model = Configured::new(Arc::new(Thinks(Mutex::new(Some(signals)))));
    let models = BTreeMap::from([("default".to_string(), model)]);
    let options = Options { models, stream_idle_max: Duration::from_secs(600), ..clock.options() };
    let store = Everturn::open_with("memory:", options).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let mut generating = begin(&scope, id, input("think")).unwrap();
    for _ in 0..3 {
        clock.advance_s(400);
        signal.send("hm".to_string()).unwrap();
        assert!(matches!(generating.recv().unwrap(), Some(GenerationProgress::Delta(Delta::Thinking(_)))));
        assert_eq!(store.sweep().unwrap().interrupted, 0);
    }
    // One that hangs for ever is given up, and does not keep the conversation.
    clock.advance_s(600);
    assert_eq!(store.sweep().unwrap().interrupted, 1);
    refused(generating.wait(), "turn.not_open", "is interrupted already");
    assert_eq!(scope.generations().running(id).unwrap(), []);
}

/// What is traced, of the conversations of one test: names and values of fields.
struct Traced {
    spans: Mutex<Vec<(&'static str, BTreeMap<String, String>)>>,
}

impl tracing::Subscriber for Traced {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && ["chat", "everturn.compaction"].contains(&metadata.name())
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut fields = BTreeMap::new();
        span.record(&mut Reading(&mut fields));
        let mut spans = self.spans.lock().unwrap();
        spans.push((span.metadata().name(), fields));
        tracing::span::Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        let fields = &mut self.spans.lock().unwrap()[span.into_u64() as usize - 1].1;
        values.record(&mut Reading(fields));
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

struct Reading<'a>(&'a mut BTreeMap<String, String>);

impl tracing::field::Visit for Reading<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_string(), format!("{value:?}").trim_matches('"').to_string());
    }
}

#[test]
fn what_is_traced_has_the_names_that_others_use_and_no_words_of_anybody() {
    let traced = Arc::new(Traced { spans: Mutex::default() });
    // The work runs on other threads; whatever other tests do is told apart by the conversation.
    tracing::subscriber::set_global_default(traced.clone()).unwrap();
    let overflow = || vec![Act::Send(whole(400, "", OVERFLOW))];
    let answers = vec![overflow(), vec![stream(&chat_calls())], vec![Act::Send(whole(400, "", "{}"))]];
    let server = ScriptedServer::start(answers);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    long_ago(&scope, id);
    generate(&scope, id, input("SECRET question")).unwrap();
    generate(&scope, id, input("SECRET again")).unwrap_err();
    let all = traced.spans.lock().unwrap().clone();
    let ours: Vec<_> =
        all.into_iter().filter(|(_, f)| f.get("gen_ai.conversation.id") == Some(&id.to_string())).collect();
    let names: Vec<&str> = ours.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["chat", "everturn.compaction", "chat"]);
    let of = |n: usize, field: &str| ours[n].1.get(field).map(String::as_str);
    assert_eq!(of(0, "gen_ai.operation.name"), Some("chat"));
    assert_eq!(of(0, "gen_ai.request.model"), Some("some-model"));
    assert_eq!(of(0, "gen_ai.response.model"), Some("m"));
    assert_eq!(of(0, "gen_ai.usage.input_tokens"), Some("3"));
    assert_eq!(of(0, "gen_ai.usage.output_tokens"), Some("4"));
    assert_eq!(of(0, "error.type"), None);
    assert_eq!(of(1, "gen_ai.request.model"), Some("extractive"));
    assert!(of(1, "everturn.compaction.turns").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(of(2, "error.type"), Some("model.refused"));
    let told = format!("{ours:?}");
    for word in ["SECRET", "fox", "I look", "Be brief"] {
        assert!(!told.contains(word), "{word} in {told}");
    }
}

/// Waits until the generation that runs in a conversation is in a state.
fn until_state(scope: &Tenant, id: ConversationId, is: impl Fn(&GenerationState) -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !scope.generations().running(id).unwrap().first().is_some_and(|status| is(&status.state)) {
        assert!(std::time::Instant::now() < end, "{:?}", scope.generations().running(id).unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_generation_says_which_approvals_it_waits_for_and_goes_on_when_they_are_resolved() {
    use everturn_core::approval::Approval;
    use everturn_engine::{ApprovalBody, ApprovalOutcome};
    let server = ScriptedServer::start(vec![vec![says("Done.")]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let chat = scope.conversation(id);
    for approval in ["a1", "a2"] {
        let body = ApprovalBody { approval_id: approval.into(), ..ApprovalBody::default() };
        chat.state().request_approval(body, None).wait().unwrap();
    }
    let generation = {
        let scope = scope.clone();
        std::thread::spawn(move || generate(&scope, id, input("Send both mails.")))
    };
    let waits = |ids: &[&str]| {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        move |state: &GenerationState| *state == GenerationState::Waiting { waits_for: ids.clone() }
    };
    until_state(&scope, id, waits(&["a1", "a2"]));
    assert_eq!(scope.turns(id).len(), 1, "the input is durable, and the model was not asked");
    let resolve = |approval: &str| {
        let resolution = ApprovalOutcome {
            approval_id: approval.into(),
            state: Approval::Approved,
            actor: None,
            reason: None,
        };
        chat.state().resolve_approval(resolution).wait().unwrap();
    };
    resolve("a1");
    until_state(&scope, id, waits(&["a2"]));
    resolve("a2");
    assert_eq!(generation.join().unwrap().unwrap().answer.text, "Done.");
}

#[test]
fn a_generation_that_waits_can_be_stopped() {
    let server = ScriptedServer::start(Vec::new());
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let body = everturn_engine::ApprovalBody {
        approval_id: "a1".into(),
        ..everturn_engine::ApprovalBody::default()
    };
    scope.conversation(id).state().request_approval(body, None).wait().unwrap();
    let generation = {
        let scope = scope.clone();
        std::thread::spawn(move || begin(&scope, id, input("Send it.")).map(drop))
    };
    until_state(&scope, id, |state| matches!(state, GenerationState::Waiting { .. }));
    let running = scope.generations().running(id).unwrap().remove(0).id;
    scope.generations().stop(running).unwrap();
    refused(generation.join().unwrap(), "generation.stopped", "before the model was asked");
    assert_eq!(scope.generations().status(running).unwrap().state, GenerationState::Stopped);
}

fn anew(which: Regenerate) -> GenerateOptions {
    GenerateOptions { regenerate: Some(which), ..GenerateOptions::default() }
}

/// The words of the current turns in reading order.
fn told(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let page = scope.conversation(id).history(Default::default()).unwrap();
    turns_of(page.data).iter().filter_map(words).collect()
}

#[test]
fn an_answer_generated_anew_takes_the_place_of_the_old_one() {
    let script = ["A1", "A2", "A2, other", "A1, other"].map(|word| vec![says(word)]);
    let server = ScriptedServer::start(script.into());
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let first = generate(&scope, id, input("Q1")).unwrap().turns.remove(0);
    let second = generate(&scope, id, input("Q2")).unwrap().turns.remove(0);
    let last = generate(&scope, id, anew(Regenerate::Last)).unwrap();
    assert_eq!(told(&scope, id), ["Q1", "A1", "Q2", "A2, other"]);
    assert_eq!(last.turns[0].place, second.seq);
    let old = scope.conversation(id).turn(second.id).unwrap();
    assert_eq!(old.superseded_by, Some(Successor::Turn(last.turns[0].id)));
    let seen = server.seen()[2].body.clone();
    assert!(seen.contains("Q2") && !seen.contains("A2"), "it is asked as if it had not answered: {seen}");
    replays(&scope, id, last.receipt_seq, &server.seen()[2]);
    // One in the middle: what follows stays, and is not in its prompt.
    let middle = generate(&scope, id, anew(Regenerate::Turn(first.id))).unwrap();
    assert_eq!(told(&scope, id), ["Q1", "A1, other", "Q2", "A2, other"]);
    let seen = server.seen()[3].body.clone();
    assert!(seen.contains("Q1") && !seen.contains("A1") && !seen.contains("Q2"), "{seen}");
    replays(&scope, id, middle.receipt_seq, &server.seen()[3]);
}

#[test]
fn an_answer_stays_until_the_new_one_is_complete() {
    let failed = Act::Send(whole(400, "", r#"{"error":{"message":"no"}}"#));
    let server = ScriptedServer::start(vec![vec![says("A1")], vec![failed]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    generate(&scope, id, input("Q1")).unwrap();
    generate(&scope, id, anew(Regenerate::Last)).unwrap_err();
    assert_eq!(told(&scope, id), ["Q1", "A1"]);
}

#[test]
fn all_items_of_an_answer_are_replaced() {
    let server = ScriptedServer::start(vec![
        vec![stream(&responses())],
        vec![stream(&responses())],
        vec![stream(
            &responses()[2..].iter().map(|last| last.replace(&format!("{MESSAGE},"), "")).collect::<Vec<_>>(),
        )],
    ]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiResponses);
    let old = generate(&scope, id, input("Q1")).unwrap().turns;
    let new = generate(&scope, id, anew(Regenerate::Turn(old[1].id))).unwrap().turns;
    let places = |turns: &[Turn]| turns.iter().map(|turn| turn.place).collect::<Vec<_>>();
    assert_eq!((new.len(), places(&new)), (3, places(&old)));
    for old in &old {
        let old = scope.conversation(id).turn(old.id).unwrap();
        assert!(matches!(old.superseded_by, Some(Successor::Turn(_))));
    }
    let fewer = generate(&scope, id, anew(Regenerate::Last)).unwrap().turns;
    assert_eq!((fewer.len(), places(&fewer)), (2, places(&old)[..2].to_vec()));
    let shown = turns_of(scope.conversation(id).history(Default::default()).unwrap().data);
    assert_eq!(shown.len(), 3, "the question and both items");
}

#[test]
fn only_an_answer_that_stands_is_generated_anew() {
    let server = ScriptedServer::start(vec![vec![says("A1")], vec![says("A1, other")]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let nothing = generate(&scope, id, anew(Regenerate::Last));
    refused(nothing, "generate.nothing_to_regenerate", "without `regenerate`");
    let question = scope.say(id, NewTurn::user("Q1"));
    refused(generate(&scope, id, anew(Regenerate::Last)), "generate.nothing_to_regenerate", "answer");
    let not_one = generate(&scope, id, anew(Regenerate::Turn(question.id)));
    refused(not_one, "generate.not_an_answer", "not an answer");
    let old = generate(&scope, id, GenerateOptions::default()).unwrap().turns.remove(0);
    let both = GenerateOptions { regenerate: Some(Regenerate::Last), ..input("more") };
    refused(generate(&scope, id, both), "generate.regenerate_input", "leave the input out");
    generate(&scope, id, anew(Regenerate::Last)).unwrap();
    refused(generate(&scope, id, anew(Regenerate::Turn(old.id))), "generate.not_an_answer", "stands");
    scope.say(id, NewTurn::user("Q2"));
    let answer = turns_of(scope.conversation(id).history(Default::default()).unwrap().data).remove(1);
    let keep = CompactOptions { keep_last: Some(1), extractive: true, ..CompactOptions::default() };
    scope.conversation(id).compaction().compact(keep).unwrap();
    refused(generate(&scope, id, anew(Regenerate::Turn(answer.id))), "generate.summarized", "branch");
}
