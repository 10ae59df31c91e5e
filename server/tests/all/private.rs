//! Private stays private: a word in private turns, in a private block and in a turn for one participant; then every answer
//! of the server to everyone else is searched for it.

use crate::access::{ask, asking, requests};
use crate::live::Live;
use crate::mcp::{Client, last};
use crate::scripted_provider::ScriptedProvider;
use crate::stage::{Stage, answer};
use crate::tokens::{self, SECRET, jwt_config};
use base64::Engine;
use everturn_engine::{
    CompactOptions, ContextOptions, ConversationHandle, Everturn, KeyRole, NewFact, NewKey, NewStream,
    NewTurn, Visibility,
};
use everturn_server::Config;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The word. It is also the name of a tool, a part of a file name and of what is in the file.
const CANARY: &str = "zanzibarite";

/// A store in memory and one in a file.
fn addresses(folder: &tempfile::TempDir) -> [String; 2] {
    ["memory:".to_string(), format!("sqlite:{}", folder.path().join("chats.db").display())]
}

fn key(store: &Everturn, role: KeyRole, actors: &[&str]) -> String {
    let actors = actors.iter().map(|actor| actor.to_string()).collect();
    let new = NewKey { actors, ..NewKey::new("acme", role) };
    store.keys().create(new).unwrap().1
}

fn private(text: &str) -> NewTurn {
    NewTurn { visibility: Some(Visibility::Private), ..NewTurn::user(text).by("ada") }
}

/// A conversation with the word wherever it may be private, and the objects that a path can name.
fn furnish(store: &Everturn) -> (ConversationHandle, BTreeMap<&'static str, String>) {
    let chat = store.tenant("acme").unwrap().create("Crystals").wait().unwrap();
    let say = |turn: NewTurn| chat.append(turn).wait().unwrap().turns.remove(0);
    say(NewTurn::user("We decided to catalogue every crystal in the harbour.").by("bob"));
    let secret = say(private(&format!("We decided that {CANARY} must stay in src/{CANARY}.rs.")));
    let blocks = json!({"role": "user", "content": [
        {"type": "text", "text": "The harbour has a crystal."},
        {"type": "text", "text": format!("We decided to hide the {CANARY}."), "visibility": "private"},
    ]});
    say(NewTurn::message(blocks.to_string()).by("ada"));
    let whisper = format!("Carol, we decided that the {CANARY} is yours.");
    say(NewTurn { audience: vec!["carol".into()], ..NewTurn::user(&whisper).by("ada") });
    let call = json!({"role": "assistant", "content": format!("I look for {CANARY}."), "tool_calls": [{
        "id": "call_1", "type": "function", "function": {"name": CANARY, "arguments": format!("{{\"path\":\"{CANARY}\"}}")},
    }]});
    say(NewTurn { audience: vec!["carol".into()], ..NewTurn::message(call.to_string()).by("bot") });
    let bytes = format!("{CANARY} ").repeat(2000);
    let file = json!({"role": "user", "content": [{
        "type": "file", "filename": format!("{CANARY}.txt"), "media_type": "text/plain",
        "data": base64::engine::general_purpose::STANDARD.encode(&bytes),
    }]});
    say(NewTurn { visibility: Some(Visibility::Private), ..NewTurn::message(file.to_string()).by("ada") });
    let asset = chat.assets().list().unwrap().remove(0);
    let fact = NewFact {
        subject: "ada".into(),
        predicate: "hides".into(),
        object: format!("the {CANARY}"),
        source_turn: Some(secret.id),
        by: Some("ada".into()),
        ..NewFact::default()
    };
    let fact = chat.facts().add(fact).unwrap();
    // What carol's model was given is for carol: even a hash of it could be guessed.
    let mut given = ContextOptions::new(10_000);
    (given.participants, given.instructions) = (vec!["carol".into()], Some(format!("Mind the {CANARY}.")));
    let given = chat.contexts().build(&given).unwrap();
    assert!(format!("{:?}", given.messages).contains(CANARY), "{given:?}");
    let receipt = chat.contexts().record(&given).unwrap();
    chat.contexts().project_turn(&everturn_engine::ViewOptions::default()).unwrap();
    say(NewTurn::user("The harbour closes at noon.").by("bob"));
    let compact = CompactOptions { keep_last: Some(1), extractive: true, ..CompactOptions::default() };
    let _ = chat.compaction().compact(compact);
    say(NewTurn::user("Which crystal is in the harbour?").by("bob"));
    say(private(&format!("Is the {CANARY} still there?")));
    let open =
        NewStream { actor: Some("bot".into()), audience: vec!["carol".into()], ..NewStream::default() };
    let open = chat.open(open).wait().unwrap();
    chat.open_turn(open.id).chunk(None, &format!("The {CANARY} is")).unwrap();
    // Written shortly after; every view of it from here on has the text.
    while !chat.turn(open.id).unwrap().partial.is_some_and(|partial| partial.text.contains(CANARY)) {
        std::thread::yield_now();
    }
    store.index_now().unwrap();
    let variables = BTreeMap::from([
        ("conversation", chat.id().to_string()),
        ("turn", secret.id.to_string()),
        ("asset", asset.id),
        ("fact", fact.id.to_string()),
        ("name", "a-pin".into()),
        ("approval", "an-approval".into()),
        ("call", "call_1".into()),
        ("seq", receipt.seq.to_string()),
        ("key", "key_01JD0000000000000000000000".into()),
        ("generation", "gen_01JD0000000000000000000000".into()),
    ]);
    (chat, variables)
}

/// Requests beyond the examples of the description: other formats, filters and protocols.
fn further(stage: &Stage, id: &str) -> Vec<RequestBuilder> {
    let get = |path: String| stage.request(Method::GET, &path);
    let post = |path: String, body: Value| {
        stage.request(Method::POST, &path).header("content-type", "application/json").body(body.to_string())
    };
    let base = format!("/api/v1/conversations/{id}");
    let formats =
        ["jsonl", "transcript", "openai-chat", "openai-responses", "anthropic", "gemini", "markdown", "html"];
    let mut all: Vec<RequestBuilder> =
        formats.iter().map(|format| get(format!("{base}/export?format={format}"))).collect();
    all.extend([
        get(format!("{base}/transcript")),
        get(format!("{base}/turns?include_events=true&include_superseded=true&limit=100")),
        get(format!("{base}/turns?order=desc&actors=ada")),
        get(format!("{base}/events?limit=100")),
        get(format!("{base}/state")),
        get(format!("{base}/facts?include_superseded=true&include_retracted=true")),
        get(format!("/api/v1/assets?conversation={id}")),
        get(format!("/v1/conversations/{id}/items")),
        get(format!("/v1/conversations/{id}")),
        post(format!("{base}/summarize"), json!({"from_seq": 1, "to_seq": 20})),
        post(format!("{base}/compact"), json!({"dry_run": true, "keep_last": 0, "extractive": true})),
    ]);
    for provider in ["neutral", "openai-chat", "openai-responses", "anthropic", "gemini"] {
        let recall = json!({"turns": 5, "facts": 5, "query": CANARY});
        let options = json!({"token_budget": 20000, "provider": provider, "recall": recall});
        all.push(post(format!("{base}/context"), options));
    }
    all.push(post(format!("{base}/project"), json!({"policy": "reachability_gc"})));
    for mode in ["lexical", "vector", "hybrid"] {
        let words = [CANARY, "zanzi*", "crystal harbour", "we decided"];
        let asked =
            words.map(|query| json!({"query": query, "mode": mode, "include_superseded": true, "limit": 50}));
        all.extend(asked.map(|body| post("/api/v1/recall".into(), body)));
    }
    all
}

/// The answers of MCP that say anything of a conversation.
async fn through_mcp(stage: &Stage, id: &str) -> String {
    let client = Client::begin(stage).await;
    let resource = format!("everturn://conversations/{id}");
    let mut all = String::new();
    for (method, parameters) in [
        ("resources/list", json!({})),
        ("resources/read", json!({"uri": resource})),
        ("prompts/get", json!({"name": "continue_conversation", "arguments": {"conversation": id}})),
        ("tools/call", json!({"name": "recall", "arguments": {"query": format!("{CANARY} crystal")}})),
        (
            "tools/call",
            json!({"name": "list_turns", "arguments": {"conversation": id, "include_events": true}}),
        ),
        (
            "tools/call",
            json!({"name": "build_context", "arguments": {"conversation": id, "token_budget": 9000}}),
        ),
        ("tools/call", json!({"name": "get_state", "arguments": {"conversation": id}})),
        ("tools/call", json!({"name": "list_facts", "arguments": {"conversation": id}})),
    ] {
        let message = last(client.send(method, parameters).await).await;
        all += &message.to_string();
    }
    all
}

/// What a live stream says until a public turn that is appended meanwhile.
async fn live(stage: &Stage, chat: &ConversationHandle) -> String {
    let mut live =
        Live::connect(stage.request(Method::GET, &format!("/api/v1/conversations/{}/events", chat.id())))
            .await;
    let open = NewStream {
        actor: Some("bot".into()),
        visibility: Some(Visibility::Private),
        ..NewStream::default()
    };
    let open = chat.open(open).wait().unwrap();
    chat.open_turn(open.id).chunk(None, &format!("live {CANARY}")).unwrap();
    chat.open_turn(open.id).commit(NewTurn::default()).wait().unwrap();
    chat.append(private(&format!("the live {CANARY}"))).wait().unwrap();
    chat.append(NewTurn::user("that is all").by("bob")).wait().unwrap();
    let mut all = String::new();
    while !all.contains("that is all") {
        all += &format!("{:?}\n", live.next().await.expect("the stream goes on"));
    }
    all
}

#[track_caller]
fn silent(text: &str, what: &str) {
    let at = text.find(CANARY).map(|at| {
        let start = text.floor_char_boundary(at.saturating_sub(300));
        &text[start..text.ceil_char_boundary((at + 100).min(text.len()))]
    });
    assert_eq!(at, None, "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_private_is_in_no_answer_to_anyone_else() {
    let folder = tempfile::tempdir().unwrap();
    let provider = ScriptedProvider::start().await;
    for address in addresses(&folder) {
        let store = provider.store_at(&address);
        key(&store, KeyRole::Admin, &[]);
        let (chat, variables) = furnish(&store);
        let id = chat.id().to_string();
        let callers = [
            ("bob", key(&store, KeyRole::Admin, &["bob"])),
            ("a reader without an actor", key(&store, KeyRole::Reader, &[])),
            ("a writer without an actor", key(&store, KeyRole::Writer, &[])),
        ];
        let mut stage = Stage::over(store.clone(), asking()).await;
        for (who, words) in &callers {
            stage.bearer(words);
            for request in further(&stage, &id) {
                let path = request.try_clone().unwrap().build().unwrap().url().to_string();
                let (status, text) = ask(request, None).await;
                assert!(status < 500 && status != 401, "{who} {path}: {status} {text}");
                // A search names what was searched for.
                silent(
                    &text.replace(&format!("\"query\":\"{CANARY}\""), ""),
                    &format!("{who} {path} {status}"),
                );
            }
            silent(&through_mcp(&stage, &id).await, &format!("{who} over MCP"));
            silent(&live(&stage, &chat).await, &format!("{who} live"));
        }
        // Every operation of the table, those last that take the conversation away or hold generations back.
        let mut all = Vec::new();
        for (who, words) in &callers {
            stage.bearer(words);
            all.extend(requests(&stage, &variables).into_iter().map(|request| (*who, request)));
        }
        let ends =
            |method: &str, path: &str| method == "DELETE" || path.contains("erase") || path.contains("reset");
        // A generation would wait for an approval that was asked for before.
        all.sort_by_key(|(_, (method, path, _))| (ends(method, path), path.ends_with("/approvals")));
        for (who, (method, path, request)) in all {
            let (status, text) = ask(request, None).await;
            assert!(status < 500 && status != 401, "{who} {method} {path}: {status} {text}");
            silent(&text, &format!("{who} {method} {path} {status}"));
        }
        // Nor was any model given it.
        silent(&format!("{:?}", provider.seen()), "the model");
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_whom_it_is_for_see_it_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let provider = ScriptedProvider::start().await;
    for address in addresses(&folder) {
        let store = provider.store_at(&address);
        let owner = key(&store, KeyRole::Admin, &[]);
        let (chat, variables) = furnish(&store);
        let base = format!("/api/v1/conversations/{}", chat.id());
        let (ada, carol) = (key(&store, KeyRole::Writer, &["ada"]), key(&store, KeyRole::Reader, &["carol"]));
        let anyone = key(&store, KeyRole::Reader, &[]);
        let mut stage = Stage::over(store, asking()).await;
        let history = format!("{base}/turns?limit=100");
        let times = |text: &Value| text.to_string().matches(CANARY).count();
        let recall = json!({"query": CANARY, "mode": "lexical"});
        let mut seen = Vec::new();
        for words in [&owner, &ada, &carol] {
            stage.bearer(words);
            let turns = stage.get(&history, 200).await;
            let found = stage.post("/api/v1/recall", &recall, 200).await;
            seen.push((times(&turns), found["data"].as_array().unwrap().len()));
        }
        let [(owners, owner_finds), (adas, ada_finds), (carols, carol_finds)] = seen[..] else { panic!() };
        assert!(owners > adas && adas > carols && carols > 0, "{seen:?}");
        assert!(owner_finds > ada_finds && ada_finds > carol_finds && carol_finds > 0, "{seen:?}");

        stage.bearer(&ada);
        let fact = stage.get(&format!("/api/v1/facts/{}", variables["fact"]), 200).await;
        assert_eq!(fact["object"], format!("the {CANARY}"));
        let asset = stage.request(Method::GET, &format!("/api/v1/assets/{}/content", variables["asset"]));
        assert!(ask(asset, None).await.1.starts_with(CANARY));
        stage.bearer(&carol);
        stage.get(&format!("/api/v1/facts/{}", variables["fact"]), 404).await;
        stage.get(&format!("/api/v1/assets/{}", variables["asset"]), 404).await;
        let replay = format!("{base}/contexts/{}", variables["seq"]);
        let (status, text) = ask(stage.request(Method::GET, &replay), None).await;
        assert!(status == 200 && text.contains(CANARY), "{status} {text}");

        // A key that is bound to nobody says in whose name it asks.
        stage.bearer(&anyone);
        assert_eq!(times(&stage.get(&history, 200).await), 0);
        let as_carol = stage.request(Method::GET, &history).header("everturn-actor", "carol");
        assert_eq!(times(&answer(as_carol, 200).await), carols);
        // An export that leaves something out still verifies.
        let file = ask(stage.request(Method::GET, &format!("{base}/export")), None).await.1;
        assert!(!file.contains(CANARY), "{file}");
        stage.bearer(&owner);
        let elsewhere = Everturn::open("memory:").unwrap();
        let imported = elsewhere.tenant("acme").unwrap().import(file.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!(imported.problems, Vec::<String>::new());
        elsewhere.tenant("acme").unwrap().conversation(chat.id()).log().verify(None).unwrap();
        stage.stop().await;
    }
}

/// A private question used to be missing from the prompt that was to answer it.
#[tokio::test(flavor = "multi_thread")]
async fn a_private_question_is_answered_to_those_who_see_it() {
    let folder = tempfile::tempdir().unwrap();
    let provider = ScriptedProvider::start().await;
    for address in addresses(&folder) {
        let store = provider.store_at(&address);
        let (ada, bob) = (key(&store, KeyRole::Writer, &["ada"]), key(&store, KeyRole::Writer, &["bob"]));
        let chat = store.tenant("acme").unwrap().create("Crystals").wait().unwrap();
        let base = format!("/api/v1/conversations/{}", chat.id());
        let mut stage = Stage::over(store, asking()).await;
        stage.bearer(&ada);
        let question =
            json!([{"role": "user", "content": format!("Where is the {CANARY}?"), "visibility": "private"}]);
        let got = stage.post(&format!("{base}/generate"), &json!({"input": question}), 200).await;
        let asked = provider.seen().pop().unwrap().to_string();
        assert_eq!(asked.matches(CANARY).count(), 1, "{asked}");
        assert_eq!(
            (&got["turns"][0]["visibility"], &got["turns"][0]["audience"]),
            (&json!("private"), &json!(["ada"]))
        );
        let generation = format!("/api/v1/generations/{}", got["id"].as_str().unwrap());
        stage.get(&generation, 200).await;
        stage.post(&format!("{generation}/stop"), &json!({}), 409).await;
        stage.bearer(&bob);
        stage.get(&generation, 404).await;
        stage.post(&format!("{generation}/stop"), &json!({}), 404).await;
        let others = json!([{"role": "user", "content": "What was said?"}]);
        let got = stage.post(&format!("{base}/generate"), &json!({"input": others}), 200).await;
        silent(&provider.seen().pop().unwrap().to_string(), "the model that bob asks");
        silent(&got.to_string(), "bob's answer");
        silent(&stage.get(&format!("{base}/events?limit=100"), 200).await.to_string(), "bob's events");
        stage.stop().await;
    }
}

/// Regression: who named a participant in the context had its private turns in the prompt, and the reply was for everyone.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_to_a_prompt_with_private_turns_is_for_those_who_see_them() {
    let folder = tempfile::tempdir().unwrap();
    let provider = ScriptedProvider::start().await;
    for address in addresses(&folder) {
        let store = provider.store_at(&address);
        let (ada, bob) = (key(&store, KeyRole::Writer, &["ada"]), key(&store, KeyRole::Writer, &["bob"]));
        let chat = store.tenant("acme").unwrap().create("Crystals").wait().unwrap();
        chat.append(private(&format!("The {CANARY} is mine."))).wait().unwrap();
        let base = format!("/api/v1/conversations/{}", chat.id());
        let mut stage = Stage::over(store, asking()).await;
        stage.bearer(&ada);
        let asked = json!({"input": "And now?", "context": {"token_budget": 9000, "participants": ["ada"]}});
        let got = stage.post(&format!("{base}/generate"), &asked, 200).await;
        assert!(provider.seen().pop().unwrap().to_string().contains(CANARY));
        let reply = &got["turns"][0];
        assert_eq!((&reply["visibility"], &reply["audience"]), (&json!("private"), &json!(["ada"])));
        stage.bearer(&bob);
        stage.post(&format!("{base}/generate"), &asked, 403).await;
        let turns = stage.get(&format!("{base}/turns"), 200).await;
        let seen = turns["data"].as_array().unwrap().iter().find(|turn| turn["id"] == reply["id"]).unwrap();
        assert_eq!((&seen["hidden"], &seen["content"]), (&json!(true), &Value::Null), "{seen}");
        stage.stop().await;
    }
}

/// The words of others must not be readable from the scores of one's own.
#[tokio::test(flavor = "multi_thread")]
async fn private_words_change_no_score() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let words = key(&store, KeyRole::Writer, &["bob"]);
        let chat = store.tenant("acme").unwrap().create("Crystals").wait().unwrap();
        for text in ["a zanzibarite", "a zanzibar of the harbour", "the harbour and the master"] {
            chat.append(NewTurn::user(text).by("bob")).wait().unwrap();
        }
        store.index_now().unwrap();
        let mut stage = Stage::over(store.clone(), asking()).await;
        stage.bearer(&words);
        let queries = ["zanzibarite", "zanz*", "harbour master", "zanzibarite harbour"];
        let mut before = Vec::new();
        for query in queries {
            before.push(stage.post("/api/v1/recall", &json!({"query": query}), 200).await["data"].take());
        }
        for n in 0..50 {
            chat.append(private(&format!("{CANARY} harbour {n} zanzibar zanzibaritis"))).wait().unwrap();
        }
        store.index_now().unwrap();
        for (query, before) in queries.iter().zip(before) {
            let after = stage.post("/api/v1/recall", &json!({"query": query}), 200).await["data"].take();
            assert_eq!(after, before, "{query}");
        }
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_key_claims_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let admin = key(&store, KeyRole::Admin, &[]);
        let (bob, both) =
            (key(&store, KeyRole::Admin, &["bob"]), key(&store, KeyRole::Writer, &["bob", "bot"]));
        let mut stage = Stage::over(store, asking()).await;
        stage.bearer(&admin);
        let base = format!("/api/v1/conversations/{}", stage.conversation().await);
        let turns = format!("{base}/turns");
        let turn = |actor: Value| json!({"turns": [{"role": "user", "content": "hello", "actor": actor}]});

        stage.bearer(&bob);
        let said = stage.post(&turns, &turn(Value::Null), 201).await;
        assert_eq!(said["turns"][0]["actor"], "bob", "who asks is who speaks");
        for (path, body) in [
            (turns.clone(), turn(json!("ada"))),
            (format!("{base}/turns/open"), json!({"actor": "ada"})),
            (format!("{base}/events"), json!({"kind": "note", "actor": "ada", "body": {}})),
            (format!("{base}/facts"), json!({"subject": "a", "predicate": "b", "object": "c", "by": "ada"})),
            (format!("{base}/context"), json!({"token_budget": 1000, "participants": ["ada"]})),
            ("/api/v1/keys".to_string(), json!({"role": "reader"})),
            ("/api/v1/keys".to_string(), json!({"role": "reader", "actors": ["bob", "ada"]})),
            ("/api/v1/import".to_string(), json!({"_type": "transcript"})),
        ] {
            let refused = stage.post(&path, &body, 403).await;
            assert!(refused["detail"].as_str().unwrap().contains("key"), "{path}: {refused}");
        }
        let as_ada = stage.request(Method::GET, &turns).header("everturn-actor", "ada");
        assert_eq!(answer(as_ada, 403).await["code"], "actor.forbidden");
        stage.post("/api/v1/keys", &json!({"role": "reader", "actors": ["bob"]}), 201).await;

        stage.bearer(&both);
        stage.post(&turns, &turn(json!("bot")), 201).await;
        assert_eq!(stage.post(&turns, &turn(Value::Null), 400).await["code"], "actor.missing");
        // Every event says which key wrote it, also in an export, and the chain covers it.
        stage.bearer(&admin);
        let events = stage.get(&format!("{base}/events?limit=100"), 200).await;
        let keys: Vec<&str> =
            events["data"].as_array().unwrap().iter().map(|event| event["key"].as_str().unwrap()).collect();
        let id = |words: &str| format!("key_{}", words.split('_').nth(1).unwrap());
        assert_eq!(keys[0], id(&admin));
        assert_eq!((keys[1], *keys.last().unwrap()), (&*id(&bob), &*id(&both)));
        let file = ask(stage.request(Method::GET, &format!("{base}/export")), None).await.1;
        assert!(file.contains(&id(&bob)));
        let forged = file.replace(&id(&bob), &id(&both));
        let elsewhere = Everturn::open("memory:").unwrap();
        let tenant = elsewhere.tenant("acme").unwrap();
        let problems = |file: &str| tenant.import(file.as_bytes(), &mut |_| {}).map(|done| done.problems);
        assert!(problems(&forged).is_err() || !problems(&forged).unwrap().is_empty());
        stage.stop().await;
    }
}

/// A conversation with two bound keys: the base of its paths, the admin's key, ana's and bob's.
async fn shared_by_two(stage: &mut Stage, store: &Everturn) -> (String, [String; 3]) {
    let admin = key(store, KeyRole::Admin, &[]);
    let (ana, bob) = (key(store, KeyRole::Writer, &["ana"]), key(store, KeyRole::Writer, &["bob"]));
    stage.bearer(&ana);
    (format!("/api/v1/conversations/{}", stage.conversation().await), [admin, ana, bob])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_turn_of_any_role_is_its_writers_own_while_open_too() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let mut stage = Stage::over(store.clone(), asking()).await;
        let (base, [_, ana, bob]) = shared_by_two(&mut stage, &store).await;
        let private = json!({"role": "assistant", "visibility": "private"});
        let open = stage.post(&format!("{base}/turns/open"), &private, 201).await;
        let path = format!("/api/v1/turns/{}", open["id"].as_str().unwrap());
        let chunks = format!("{path}/chunks");
        stage.post(&chunks, &json!({"delta": "a secret "}), 200).await;
        // Not even by guessing what is there already.
        stage.bearer(&bob);
        for delta in ["a secret ", "a guess   ", "more"] {
            stage.post(&chunks, &json!({"delta": delta, "offset": 0}), 404).await;
            stage.post(&chunks, &json!({"delta": delta}), 404).await;
        }
        stage.post(&format!("{path}/commit"), &json!({}), 404).await;
        stage.post(&format!("{path}/abort"), &json!({"reason": "no"}), 404).await;
        // Nor with a key that is bound to nobody, unless it opened the turn itself.
        let anyone = key(&store, KeyRole::Writer, &[]);
        stage.bearer(&anyone);
        stage.post(&chunks, &json!({"delta": "more"}), 404).await;
        stage.post(&format!("{path}/commit"), &json!({}), 404).await;
        stage.post(&format!("{path}/abort"), &json!({"reason": "no"}), 404).await;
        let for_ana = json!({"role": "assistant", "actor": "ana", "visibility": "private"});
        let own = stage.post(&format!("{base}/turns/open"), &for_ana, 201).await;
        let own = format!("/api/v1/turns/{}", own["id"].as_str().unwrap());
        stage.post(&format!("{own}/chunks"), &json!({"delta": "for ana"}), 200).await;
        stage.post(&format!("{own}/commit"), &json!({}), 200).await;
        stage.bearer(&ana);
        stage.post(&chunks, &json!({"delta": "of mine"}), 200).await;
        stage.post(&format!("{path}/commit"), &json!({}), 200).await;
        let said = stage.get(&path, 200).await;
        assert_eq!((&said["content"], &said["actor"]), (&json!("a secret of mine"), &json!("ana")));
        for role in ["assistant", "system", "user"] {
            let turn = json!({"turns": [{"role": role, "content": "mine", "visibility": "private"}]});
            stage.post(&format!("{base}/turns"), &turn, 201).await;
        }
        let turns = stage.get(&format!("{base}/turns?limit=100"), 200).await;
        assert!(turns["data"].as_array().unwrap().iter().all(|turn| turn["hidden"] != true), "{turns}");
        stage.bearer(&bob);
        let turns = stage.get(&format!("{base}/turns?limit=100"), 200).await;
        assert!(turns["data"].as_array().unwrap().iter().all(|turn| turn["hidden"] == true), "{turns}");
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_private_turns_and_private_uploads_are_their_writers_own() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let mut stage = Stage::over(store.clone(), asking()).await;
        let (base, [admin, ana, bob]) = shared_by_two(&mut stage, &store).await;
        let data = base64::engine::general_purpose::STANDARD.encode(CANARY.repeat(2000));
        let file =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        let turn = json!({"turns": [{"role": "user", "content": [file], "visibility": "private"}]});
        stage.post(&format!("{base}/turns"), &turn, 201).await;
        let id = base.rsplit('/').next().unwrap();
        let upload = format!("/api/v1/assets?conversation={id}&name={CANARY}&visibility=private");
        let upload = |stage: &Stage| {
            stage.request(Method::POST, &upload).header("content-type", "text/plain").body(CANARY)
        };
        answer(upload(&stage), 201).await;
        let list = format!("/api/v1/assets?conversation={id}");
        let assets = stage.get(&list, 200).await;
        assert_eq!(assets["data"].as_array().unwrap().len(), 2, "{assets}");
        for asset in assets["data"].as_array().unwrap() {
            let content = format!("/api/v1/assets/{}/content", asset["id"].as_str().unwrap());
            for (words, status) in [(&ana, 200), (&bob, 404), (&admin, 200)] {
                stage.bearer(words);
                assert_eq!(ask(stage.request(Method::GET, &content), None).await.0, status, "{asset}");
            }
        }
        stage.bearer(&bob);
        silent(&stage.get(&list, 200).await.to_string(), "the list");
        silent(&stage.get(&format!("{base}/events?limit=100"), 200).await.to_string(), "the events");
        // A key that is nobody's cannot keep anything to itself.
        stage.bearer(&admin);
        assert_eq!(answer(upload(&stage), 400).await["code"], "asset.nobody");
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_private_wherever_it_is_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let mut stage = Stage::over(store.clone(), asking()).await;
        let (base, [_, _, bob]) = shared_by_two(&mut stage, &store).await;
        let turns = format!("{base}/turns");
        let block = json!({"type": "text", "text": CANARY, "visibility": "private"});
        let source = json!({"type": "document", "source": {"type": "content", "content": [block]}});
        let summary = json!([{"type": "summary_text", "text": CANARY, "visibility": "private"}]);
        for turn in [
            json!({"role": "user", "content": [source]}),
            json!({"message": {"type": "reasoning", "id": "r1", "summary": summary}}),
        ] {
            stage.post(&turns, &json!({"turns": [turn]}), 201).await;
        }
        for (code, mark, value) in [
            ("block.visibility", "visibility", json!("Private")),
            ("block.visibility", "visibility", json!(["private"])),
            ("block.audience", "audience", json!(["carol"])),
        ] {
            let block = json!({"type": "text", "text": CANARY, (mark): value});
            let turn = json!({"turns": [{"role": "user", "content": [block]}]});
            assert_eq!(stage.post(&turns, &turn, 400).await["code"], code);
        }
        let crowd: Vec<String> = (0..1001).map(|n| format!("actor {n}")).collect();
        let crowd = json!({"turns": [{"role": "user", "content": "hello", "audience": crowd}]});
        let refused = stage.post(&turns, &crowd, 413).await;
        assert!(refused["detail"].as_str().unwrap().contains("AUDIENCE_MAX"), "{refused}");
        stage.bearer(&bob);
        let id = base.rsplit('/').next().unwrap();
        for request in further(&stage, id) {
            let path = request.try_clone().unwrap().build().unwrap().url().to_string();
            let (_, text) = ask(request, None).await;
            silent(&text.replace(&format!("\"query\":\"{CANARY}\""), ""), &path);
        }
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reason_about_something_private_is_private() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let mut stage = Stage::over(store.clone(), asking()).await;
        let (base, [admin, ana, bob]) = shared_by_two(&mut stage, &store).await;
        let call = json!([{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
        let turns = json!({"turns": [
            {"role": "assistant", "content": "x", "tool_calls": call, "visibility": "private"},
            {"role": "user", "content": "y", "visibility": "private"},
            {"role": "user", "content": "z"},
        ]});
        let said = stage.post(&format!("{base}/turns"), &turns, 201).await;
        let why = json!({"reason": format!("because of the {CANARY}")});
        stage.bearer(&admin);
        stage.post(&format!("{base}/tool-calls/c1/abandon"), &why, 200).await;
        let erase = format!("/api/v1/turns/{}/erase", said["turns"][1]["id"].as_str().unwrap());
        stage.post(&erase, &why, 200).await;
        let events = format!("{base}/events?limit=100");
        for words in [&admin, &ana] {
            stage.bearer(words);
            assert_eq!(stage.get(&events, 200).await.to_string().matches(CANARY).count(), 2);
        }
        // The rest of these events is for everyone: a call is given up, the turn erased.
        stage.bearer(&bob);
        let seen = stage.get(&events, 200).await.to_string();
        assert!(seen.contains("tool.abandoned") && seen.contains("turn.erased"), "{seen}");
        assert!(!seen.contains("tool_call_id") && !seen.contains("reason_for"), "{seen}");
        let id = base.rsplit('/').next().unwrap();
        for request in further(&stage, id) {
            let path = request.try_clone().unwrap().build().unwrap().url().to_string();
            let (_, text) = ask(request, None).await;
            silent(&text.replace(&format!("\"query\":\"{CANARY}\""), ""), &path);
        }
        let session = stage.request(Method::GET, &format!("{base}/export?format=session"));
        silent(&ask(session, None).await.1, "the session file");
        // A reason about what everyone sees is for everyone.
        let erase = format!("/api/v1/turns/{}/erase", said["turns"][2]["id"].as_str().unwrap());
        stage.bearer(&admin);
        stage.post(&erase, &json!({"reason": "a plain one"}), 200).await;
        stage.bearer(&bob);
        assert!(stage.get(&events, 200).await.to_string().contains("a plain one"));
        stage.stop().await;
    }
}

/// A call that is not there was refused with the ids and tools of all that wait, and whoever knew the id of a private call
/// could give it up or answer it.
#[tokio::test(flavor = "multi_thread")]
async fn a_private_call_is_neither_named_nor_settled_by_others() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let mut stage = Stage::over(store.clone(), asking()).await;
        let (base, [admin, ana, bob]) = shared_by_two(&mut stage, &store).await;
        let (turns, events) = (format!("{base}/turns"), format!("{base}/events"));
        let writer = key(&store, KeyRole::Writer, &[]);
        let calls = |id: &str, name: &str| {
            let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
            json!({"role": "assistant", "content": "1", "tool_calls": [call]})
        };
        let with = |mut turn: Value, key: &str, value: Value| {
            turn[key] = value;
            turn
        };
        let secret = |id: &str| with(calls(id, CANARY), "visibility", json!("private"));
        // Its id is part of what everyone sees of the turn.
        let mut block = calls("1", CANARY);
        block["tool_calls"][0]["visibility"] = json!("private");
        block["actor"] = json!("ana");
        let private = json!({"turns": [secret(CANARY), secret("c2"), secret("c3"), block]});
        stage.post(&turns, &private, 201).await;
        let abandon = |id: &str| format!("{base}/tool-calls/{id}/abandon");
        let result = |id: &str| json!({"turns": [{"role": "tool", "tool_call_id": id, "content": "forged"}]});
        let pending = |state: Value| -> Vec<String> {
            let tools = state["pending_tools"].as_array().unwrap();
            tools.iter().map(|tool| tool["tool_call_id"].as_str().unwrap().to_string()).collect()
        };
        let state = format!("{base}/state");
        for words in [&bob, &writer] {
            stage.bearer(words);
            for id in ["nope", CANARY, "1"] {
                let refused = stage.post(&abandon(id), &json!({}), 404).await;
                assert_eq!(refused["code"], "tool_call.absent");
                silent(&refused.to_string().replace(&format!("tool call \\\"{CANARY}"), ""), "the refusal");
            }
            assert_eq!(pending(stage.get(&state, 200).await), [""; 0]);
        }
        stage.bearer(&bob);
        for kind in ["tool.finished", "tool.abandoned"] {
            let event = json!({"kind": kind, "body": {"tool_call_id": CANARY}});
            assert_eq!(stage.post(&events, &event, 404).await["code"], "tool_call.absent");
        }
        let refused = stage.post(&turns, &result(CANARY), 404).await;
        silent(&refused.to_string(), "the refusal");
        let open = stage.post(&format!("{turns}/open"), &json!({"role": "tool"}), 201).await;
        let commit = format!("/api/v1/turns/{}/commit", open["id"].as_str().unwrap());
        let message = json!({"message": {"role": "tool", "tool_call_id": CANARY, "content": "forged"}});
        stage.post(&commit, &message, 404).await;
        // An id of bob's own is his, even if somebody else's call has it.
        let own = json!({"turns": [calls("c3", "look"), result("c3")["turns"][0]]});
        stage.post(&turns, &own, 201).await;
        stage.post(&turns, &json!({"turns": [calls("c4", "look")]}), 201).await;
        assert_eq!(
            stage.post(&abandon("nope"), &json!({}), 404).await["detail"]
                .as_str()
                .unwrap()
                .matches("c4 (look)")
                .count(),
            1
        );
        stage.post(&turns, &result("c4"), 201).await;

        stage.bearer(&ana);
        assert_eq!(pending(stage.get(&state, 200).await), [CANARY, "c2", "1"]);
        stage.post(&turns, &result(CANARY), 201).await;
        // A key that is bound to nobody says in whose name it acts.
        stage.bearer(&writer);
        stage.post(&abandon("c2"), &json!({"actor": "ana"}), 200).await;
        stage.bearer(&admin);
        stage.post(&abandon("1"), &json!({"actor": "admin"}), 200).await;
        assert_eq!(pending(stage.get(&state, 200).await), [""; 0]);
        stage.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_never_in_the_name_of_somebody_else() {
    let provider = ScriptedProvider::start().await;
    let store = provider.store_at("memory:");
    let mut stage = Stage::over(store.clone(), asking()).await;
    let (base, [_, _, bob]) = shared_by_two(&mut stage, &store).await;
    stage.bearer(&bob);
    let asked = json!({"actor": "ana", "input": [{"role": "user", "content": "hello"}]});
    let refused = stage.post(&format!("{base}/generate"), &asked, 403).await;
    assert_eq!(refused["code"], "actor.forbidden");
    let turns = stage.get(&format!("{base}/turns"), 200).await;
    assert_eq!(turns["data"], json!([]), "nothing was written");
    stage.stop().await;
}

/// A branch after somebody else's edit was refused, and left a fork without the edit behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_keeps_the_authors_of_what_it_copies_or_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(&folder) {
        let store = Everturn::open(&address).unwrap();
        let mut stage = Stage::over(store.clone(), asking()).await;
        let (base, [admin, ana, bob]) = shared_by_two(&mut stage, &store).await;
        let id = |words: &str| format!("key_{}", words.split('_').nth(1).unwrap());
        for (visibility, shown) in [("public", json!("Q1, edited")), ("private", Value::Null)] {
            stage.bearer(&ana);
            let turns = ["Q1", "A1", "Q2", "A2"].map(|text| json!({"role": "user", "content": text}));
            let said = stage.post(&format!("{base}/turns"), &json!({"turns": turns}), 201).await;
            let turn = |n: usize| said["turns"][n]["id"].as_str().unwrap();
            let edit = json!({"role": "user", "content": "Q1, edited", "visibility": visibility});
            stage.post(&format!("/api/v1/turns/{}/supersede", turn(0)), &edit, 201).await;
            stage.bearer(&bob);
            let count = async |stage: &Stage| {
                stage.get("/api/v1/conversations", 200).await["data"].as_array().unwrap().len()
            };
            let before = count(&stage).await;
            let branch = format!("/api/v1/turns/{}/branch", turn(3));
            let as_ana = json!({"role": "user", "content": "on", "actor": "ana"});
            stage.post(&branch, &as_ana, 403).await;
            assert_eq!(count(&stage).await, before, "a refused branch leaves nothing");
            let made = stage.post(&branch, &json!({"role": "user", "content": "bob goes on"}), 201).await;
            assert_eq!(made["turns"].as_array().unwrap().len(), 1);
            let fork =
                format!("/api/v1/conversations/{}", made["turns"][0]["conversation"].as_str().unwrap());
            let turns = stage.get(&format!("{fork}/turns?limit=100"), 200).await;
            let turns = turns["data"].as_array().unwrap();
            let last = &turns[turns.len() - 4..];
            let contents: Vec<&Value> = last.iter().map(|turn| &turn["content"]).collect();
            assert_eq!(contents, [&shown, &json!("A1"), &json!("Q2"), &json!("bob goes on")]);
            let actors: Vec<&Value> = last.iter().map(|turn| &turn["actor"]).collect();
            assert_eq!(actors, ["ana", "ana", "ana", "bob"]);
            stage.bearer(&admin);
            let events = stage.get(&format!("{fork}/events?limit=100"), 200).await;
            let events = events["data"].as_array().unwrap().iter();
            let own: Vec<(&str, &str)> = events
                .skip_while(|event| event["kind"] != "conversation.forked")
                .map(|event| (event["kind"].as_str().unwrap(), event["key"].as_str().unwrap()))
                .collect();
            let (ana, bob) = (id(&ana), id(&bob));
            let written = [
                ("conversation.forked", bob.as_str()),
                ("message", ana.as_str()),
                ("turn.superseded", bob.as_str()),
                ("message", bob.as_str()),
            ];
            assert_eq!(own, written);
            stage.get(&format!("{fork}/verify"), 200).await;
        }
        stage.stop().await;
    }
}

/// A token names its holder's actors in a claim, as a key does.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_bound_like_a_key() {
    let store = Everturn::open("memory:").unwrap();
    let (chat, _) = furnish(&store);
    let stage = Stage::over(store, Config { jwt: Some(jwt_config()), ..asking() }).await;
    let path = format!("/api/v1/conversations/{}/turns?limit=100", chat.id());
    let end = Some(tokens::now() + 3600);
    for (actors, status, sees) in [
        (json!("ada"), 200, true),
        (json!(["bob", "carol"]), 200, true),
        (json!(["bob"]), 200, false),
        (json!([]), 401, false),
        (json!(7), 401, false),
    ] {
        let claims = json!({"tenant": "acme", "role": "admin", "sub": "x", "actors": actors});
        let token = tokens::hs256(SECRET, &claims, end);
        let (got, text) = ask(stage.request(Method::GET, &path), Some(&token)).await;
        assert_eq!((got, text.contains(CANARY)), (status, sees), "{actors}: {text}");
    }
    stage.stop().await;
}
