//! Projection in the loop: compaction, projection and receipt are one path for every model call.

use crate::dice::{Dice, ToldOnFailure, seed};
use crate::scripted_server::{ScriptedServer, says};
use crate::stage::{PATIENCE, Short, memory, quiet, refused};
use everturn_core::conversation::Settings;
use everturn_core::event::kind;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::model::{Configured, Endpoint, HttpModel, Protocol, wait};
use everturn_engine::{
    CompactOptions, ContextOptions, Everturn, GenerateOptions, NewConversation, NewTurn, Options, Tenant,
    Update,
};
use everturn_views::projection;
use everturn_views::reading;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

fn policy(value: Value) -> Settings {
    let mut settings = Settings::default();
    settings.policy.insert("projection".into(), Raw::of(&value).unwrap());
    settings
}

fn asking(server: &ScriptedServer) -> (Everturn, Tenant) {
    let model = Configured::new(Arc::new(
        HttpModel::new(Endpoint::new(Protocol::OpenaiChat, server.url(), "some-model")).unwrap(),
    ));
    let models = BTreeMap::from([("default".to_string(), model)]);
    let store = Everturn::open_with("memory:", Options { models, ..quiet() }).unwrap();
    let scope = store.tenant("acme").unwrap();
    (store, scope)
}

/// A call, and its result.
fn use_tool(scope: &Tenant, id: ConversationId, n: usize, result: &str) {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": format!("c{n}"), "type": "function", "function": {"name": "ls", "arguments": "{}"}}]});
    let result = json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": result});
    scope.say(id, NewTurn::message(call.to_string()));
    scope.say(id, NewTurn::message(result.to_string()));
}

fn ask(scope: &Tenant, id: ConversationId, text: &str) {
    let options = GenerateOptions { input: vec![NewTurn::user(text)], ..GenerateOptions::default() };
    wait(scope.conversation(id).generate(options)).unwrap().wait().unwrap();
}

/// Regression: every later prompt of the conversation was refused.
#[test]
fn a_default_projection_that_can_never_be_made_is_refused_at_once() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for value in [
        json!("custom"),
        json!({"policy": "custom"}),
        json!({"policy": ["raw", "custom"], "keep_last": 3}),
        json!({"policy": "custom", "projector": 5}),
    ] {
        let says = "projector is missing";
        refused(scope.conversation(id).update(policy(value.clone())).wait(), "projection.option", says);
        let new = NewConversation { settings: policy(value.clone()), ..NewConversation::default() };
        refused(scope.create(new).wait(), "projection.option", says);
        let value = json!({"_type": "transcript", "version": 2, "messages": [], "metadata": {"policy": {"projection": value}}});
        refused(scope.import(value.to_string().as_bytes(), &mut |_| {}), "projection.option", says);
    }
    scope.conversation(id).update(policy(json!("raw"))).wait().unwrap();
}

#[test]
fn a_generation_records_its_projection_with_the_receipt_and_tells_followers() {
    let server = ScriptedServer::start(vec![vec![says("Done.")]]);
    let (_store, scope) = asking(&server);
    let id = scope.begin_with(policy(json!("clean_tool_repair"))).id;
    use_tool(&scope, id, 1, "error: no such folder");
    use_tool(&scope, id, 2, "here it is");
    let mut follow = scope.conversation(id).subscribe(0).unwrap();
    ask(&scope, id, "And now?");
    let sent = server.seen()[0].body.clone();
    assert!(sent.contains("here it is") && !sent.contains("no such folder"), "{sent}");
    let kinds = scope.kinds(id);
    let projected = kinds.iter().position(|kind| kind == kind::PROJECTION).unwrap();
    assert_eq!(kinds[projected + 1], kind::RECEIPT, "{kinds:?}");
    loop {
        match follow.recv_timeout(PATIENCE).unwrap().expect("the projection comes") {
            Update::Event(event) if event.kind == kind::PROJECTION => break,
            _ => {}
        }
    }
    let contexts = scope.conversation(id);
    let contexts = contexts.contexts();
    let seq = projected as u64 + 1;
    assert_eq!(
        contexts.replay_projection(seq).unwrap().len(),
        3,
        "the repaired call, its result, the question"
    );
    contexts.replay_at(seq + 1).unwrap();
}

/// What was frozen stays until enough can be gained, from one call to the next.
#[test]
fn freeze_works_from_one_generation_to_the_next() {
    let server = ScriptedServer::start((0..3).map(|_| vec![says("Done.")]).collect());
    let (_store, scope) = asking(&server);
    let how = json!({"policy": "clean_tool_repair", "freeze": 1_000_000});
    let id = scope.begin_with(policy(how)).id;
    ask(&scope, id, "First.");
    use_tool(&scope, id, 1, "error: no such folder");
    ask(&scope, id, "Second.");
    use_tool(&scope, id, 2, "here it is");
    ask(&scope, id, "Third.");
    let sent = server.seen()[2].body.clone();
    assert!(sent.contains("no such folder"), "the failed call was shown before and stays: {sent}");
    let events = scope.conversation(id).log().read(0, 1000).unwrap();
    let texts: Vec<String> = events
        .iter()
        .filter(|event| event.kind == kind::PROJECTION)
        .map(|event| event.read::<Value>().unwrap()["text"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(texts.len(), 3);
    assert_eq!(texts[2], "clean_tool_repair_frozen");
}

/// Regression: what was decided about a result held for the one that took its place.
#[test]
fn what_was_edited_is_decided_anew() {
    let (_store, scope) = memory();
    let id = scope.begin_with(policy(json!({"policy": "clean_tool_repair", "freeze": 1_000_000}))).id;
    use_tool(&scope, id, 1, "error: no such folder");
    use_tool(&scope, id, 2, "here it is");
    let chat = scope.conversation(id);
    let prompt = || {
        let context = chat.contexts().build(&ContextOptions::new(8000)).unwrap();
        chat.contexts().record(&context).unwrap();
        json!(context.messages).to_string()
    };
    assert!(!prompt().contains("no such folder"));
    let failed = scope.turns(id)[1].clone();
    let worked = failed.message.unwrap().get().replace("error: no such folder", "it worked");
    chat.supersede(failed.id, NewTurn::message(worked)).wait().unwrap();
    assert!(prompt().contains("it worked"), "{}", prompt());
}

#[test]
fn a_conversation_can_have_a_default_projection() {
    let (_store, scope) = memory();
    let wrong =
        everturn_engine::NewConversation { settings: policy(json!("no_such_policy")), ..Default::default() };
    refused(scope.create(wrong).wait(), "projection.option", "policy");
    let id = scope.begin_with(policy(json!("clean_tool_repair"))).id;
    use_tool(&scope, id, 1, "error: no such folder");
    use_tool(&scope, id, 2, "here it is");
    let built = |projection: Option<Value>| {
        let projection = projection.map(|value| projection::ViewOptions::parse(&value).unwrap());
        let options = ContextOptions { projection, ..ContextOptions::new(8000) };
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        context.messages.iter().map(Raw::get).collect::<Vec<_>>().join("\n")
    };
    assert!(!built(None).contains("no such folder"));
    assert!(built(Some(json!("raw"))).contains("no such folder"), "another one can be asked for");
    let default = scope.conversation(id).contexts().default_projection().unwrap().unwrap();
    assert_eq!(scope.conversation(id).contexts().project(&default).unwrap().messages.len(), 2);
}

/// Whatever happens between two projections, the next one is what it would be from the log alone.
#[test]
fn a_projection_that_reads_only_what_is_new_equals_one_of_the_whole_log() {
    let seed = seed(15);
    let _told = ToldOnFailure(seed);
    for round in 0..20 {
        let mut dice = Dice::new(seed.wrapping_add(round));
        let (_store, scope) = memory();
        let id = scope.begin();
        let chat = scope.conversation(id);
        for n in 0..60 {
            let turns = scope.turns(id);
            let standing: Vec<_> =
                turns.iter().filter(|turn| turn.superseded_by.is_none() && !turn.erased).collect();
            match dice.roll(12) {
                0..=3 => drop(scope.say(id, NewTurn::user(&format!("word {n}")))),
                4 | 5 => use_tool(&scope, id, n, ["error: no", "yes"][dice.roll(2)]),
                6 => {
                    // A result that comes late.
                    let call = json!({"role": "assistant", "content": null, "tool_calls": [
                        {"id": format!("late{}", n / 10), "type": "function", "function": {"name": "ls", "arguments": "{}"}}]});
                    scope.say(id, NewTurn::message(call.to_string()));
                }
                7 => {
                    let result = json!({"role": "tool", "tool_call_id": format!("late{}", n / 10), "content": "at last"});
                    scope.say(id, NewTurn::message(result.to_string()));
                }
                8 if !standing.is_empty() => {
                    let turn = standing[dice.roll(standing.len())].id;
                    drop(chat.supersede(turn, NewTurn::user("instead")).wait().unwrap());
                }
                9 if !standing.is_empty() => {
                    let turn = standing[dice.roll(standing.len())].id;
                    chat.erase(turn, None, "asked").wait().unwrap();
                }
                10 => {
                    let keep_last = Some(dice.roll(8));
                    let _ =
                        chat.compaction().compact(CompactOptions { keep_last, ..CompactOptions::default() });
                }
                _ => {
                    let open = chat.open(Default::default()).wait().unwrap().id;
                    scope.say(id, NewTurn::user("meanwhile"));
                    chat.open_turn(open).commit(NewTurn::assistant("streamed")).wait().unwrap();
                }
            }
            if dice.once_in(3) {
                continue;
            }
            let policies = ["raw", "clean_tool_repair", "squash_failed_calls", "clear_tool_uses"];
            let options = projection::ViewOptions::parse(&json!(dice.pick(&policies))).unwrap();
            let start = chat.get().unwrap().view_start().0;
            let turns: Vec<_> = scope.turns(id).into_iter().filter(|turn| turn.place > start).collect();
            let messages: Vec<_> =
                reading::messages(&turns).unwrap().into_iter().map(|(_, message)| message).collect();
            let summary = chat.state().read().unwrap().checkpoint.map(|checkpoint| checkpoint.handoff_md);
            let wanted = projection::project(&messages, summary.as_deref(), &options).unwrap();
            assert_eq!(
                chat.contexts().project(&options).unwrap().prefix_hash,
                wanted.prefix_hash,
                "round {round}, {n}"
            );
        }
    }
}

#[test]
fn appended_events_cannot_pin_more_than_is_allowed() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let chat = scope.conversation(id);
    let pin =
        |n: usize| chat.log().append(kind::PIN, None, json!({"name": format!("p{n}"), "value": n})).wait();
    for n in 0..everturn_views::state::PINS_MAX {
        pin(n).unwrap();
    }
    refused(pin(1000), "limit.exceeded", "PINS_MAX");
    pin(0).unwrap();
}
