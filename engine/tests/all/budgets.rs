//! Budgets: what happens when an append would make the messages view too large.

use crate::compacting::{by_hand, policy, talk};
use crate::stage::{Short, Stage, memory, quiet, refused};
use everturn_core::approval::{Approval, ApprovalBody};
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::event::Event;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::model::Summarizer;
use everturn_engine::{
    AppendOptions, ApprovalOutcome, ContextOptions, Error, Everturn, NewStream, NewTurn, Options, Tenant,
};
use serde_json::json;
use std::pin::Pin;
use std::sync::Arc;

fn shown_budget(scope: &Tenant, id: ConversationId) -> serde_json::Value {
    let shown = scope.conversation(id).get().unwrap();
    assert!(!shown.metadata.contains_key("transcript_budget"), "metadata is the caller's own");
    shown.transcript_budget.unwrap().read().unwrap()
}

fn shown_value(scope: &Tenant, id: ConversationId) -> serde_json::Value {
    serde_json::from_str(&scope.conversation(id).transcript().unwrap()).unwrap()
}

fn last_action(scope: &Tenant, id: ConversationId) -> serde_json::Value {
    shown_budget(scope, id)["last_action"].clone()
}

#[test]
fn the_policy_reject_refuses_with_both_numbers_and_writes_no_turn() {
    let (_store, scope) = memory();
    let id = scope.begin_with(policy("budget", json!({"max_messages": 3, "recovery": "reject"}))).id;
    talk(&scope, id, 3);
    refused(
        scope.try_say(id, NewTurn::user("one more")),
        "budget.exceeded",
        "max_messages is 3, this would make it 4",
    );
    assert_eq!(scope.turns(id).len(), 3, "no turn was written");
    let shown = shown_budget(&scope, id);
    assert_eq!(shown["last_action"]["action"], "reject");
    assert_eq!((&shown["usage"]["messages"], &shown["policy"]["max_messages"]), (&json!(3), &json!(3)));
    // A turn that another took the place of is not retained by the view.
    let first = scope.turns(id)[0].id;
    scope.conversation(id).supersede(first, NewTurn::user("instead")).wait().unwrap();
    assert_eq!(scope.conversation(id).compaction().usage().unwrap().messages, 3);
    refused(scope.try_say(id, NewTurn::user("one more")), "budget.exceeded", "this would make it 4");
    scope.conversation(id).compaction().compact(by_hand(1)).unwrap();
    scope.say(id, NewTurn::user("now there is room"));
}

/// Regression: a request that had been answered was refused, or waited for a compaction, once the conversation was full.
#[test]
fn a_repeat_in_a_full_conversation_is_answered_and_makes_no_room() {
    let (_store, scope) = memory();
    for recovery in [json!("reject"), json!({"compact": {"keep_last": 1}}), json!({"trim": {"keep_last": 1}})]
    {
        let id = scope.begin_with(policy("budget", json!({"max_messages": 4, "recovery": recovery}))).id;
        let chat = scope.conversation(id);
        let ask = |text: &str| {
            let options = AppendOptions { idempotency_key: Some("ask".into()), ..AppendOptions::default() };
            chat.append(text).with(options).wait()
        };
        let open = || {
            let new = NewStream { idempotency_key: Some("open".into()), ..NewStream::default() };
            chat.open(new).wait().unwrap().id
        };
        talk(&scope, id, 2);
        let (asked, opened) = (ask("the third").unwrap(), open());
        let head = chat.get().unwrap().head;
        let again = ask("the third").unwrap();
        assert!(again.repeated, "{recovery}");
        assert_eq!((again.turns[0].id, open()), (asked.turns[0].id, opened), "{recovery}");
        refused(ask("something else"), "idempotency.reused", "used before");
        assert_eq!(chat.get().unwrap().head, head, "{recovery}: nothing was written");
    }
}

/// Regression: a trim that worked advised to set the recovery to trim, and so did the refusal of an append that no trim can help.
#[test]
fn what_is_said_of_a_budget_is_about_what_happened() {
    let (_store, scope) = memory();
    let recovery = json!({"trim": {"keep_last": 2}});
    let id = scope.begin_with(policy("budget", json!({"max_messages": 4, "recovery": recovery}))).id;
    talk(&scope, id, 5);
    assert_eq!(last_action(&scope, id)["reason"], "policy.budget.max_messages is 4, this would make it 5");
    let id = scope.begin_with(policy("budget", json!({"max_bytes": 600, "recovery": recovery}))).id;
    let refusal = "max_bytes is 600, and this append alone has ";
    refused(scope.try_say(id, NewTurn::user(&"long ".repeat(1000))), "budget.exceeded", refusal);
    assert!(last_action(&scope, id)["reason"].as_str().unwrap().contains(refusal));
}

/// A rejection used to be remembered in memory only, and `last_action` was gone after a restart.
#[test]
fn a_rejection_is_an_event_once_a_minute_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db").display().to_string();
    let rejections =
        |scope: &Tenant, id| scope.kinds(id).iter().filter(|kind| *kind == "transcript_budget").count();
    let id = {
        let store = Everturn::open_with(&path, quiet()).unwrap();
        let scope = store.tenant("acme").unwrap();
        let limits = json!({"max_messages": 2, "max_bytes": 400, "recovery": "reject"});
        let id = scope.begin_with(policy("budget", limits)).id;
        talk(&scope, id, 2);
        for _ in 0..5 {
            refused(scope.try_say(id, NewTurn::user("one more")), "budget.exceeded", "max_messages");
        }
        assert_eq!(rejections(&scope, id), 1, "a client that tries again does not fill the log");
        scope.conversation(id).supersede(scope.turns(id)[0].id, NewTurn::user("short")).wait().unwrap();
        let long = NewTurn::user(&"x".repeat(400));
        refused(
            scope.conversation(id).supersede(scope.turns(id)[1].id, long).wait(),
            "budget.exceeded",
            "max_bytes",
        );
        assert_eq!(rejections(&scope, id), 2, "another limit is another reason");
        id
    };
    let store = Everturn::open_with(&path, quiet()).unwrap();
    let scope = store.tenant("acme").unwrap();
    assert_eq!(last_action(&scope, id)["action"], "reject");
    assert!(last_action(&scope, id)["reason"].as_str().unwrap().contains("max_bytes"));
    let long = NewTurn::user(&"x".repeat(400));
    refused(
        scope.conversation(id).supersede(scope.turns(id)[1].id, long).wait(),
        "budget.exceeded",
        "max_bytes",
    );
    assert_eq!(rejections(&scope, id), 2, "the minute goes on across a restart");
}

#[test]
fn events_and_bytes_have_limits_of_their_own_and_equal_is_not_over() {
    let (_store, scope) = memory();
    let id = scope.begin_with(policy("budget", json!({"max_events": 3, "recovery": "reject"}))).id;
    talk(&scope, id, 2);
    let note = || Raw::of(&json!({})).unwrap();
    refused(
        scope.conversation(id).log().append("note", None, note()).wait(),
        "budget.exceeded",
        "max_events is 3, this would make it 4",
    );
    let bytes = NewTurn::user("0123456789").message.len();
    let id = scope.begin_with(policy("budget", json!({"max_bytes": bytes * 2, "recovery": "reject"}))).id;
    scope.say(id, NewTurn::user("0123456789"));
    scope.say(id, NewTurn::user("0123456789"));
    let says = format!("max_bytes is {}, this would make it {}", bytes * 2, bytes * 3);
    refused(scope.try_say(id, NewTurn::user("0123456789")), "budget.exceeded", &says);
}

#[test]
fn trimming_moves_the_start_of_the_view_and_never_the_log() {
    for recovery in [json!({"trim": {"keep_last": 2}}), json!({"compact": {"keep_last": 2}})] {
        let (_store, scope) = memory();
        let id = scope.begin_with(policy("budget", json!({"max_messages": 4, "recovery": recovery}))).id;
        talk(&scope, id, 5);
        let word = recovery.as_object().unwrap().keys().next().unwrap();
        let events = scope.conversation(id).log().read(0, 100).unwrap();
        let event = events.iter().find(|event| event.kind == "transcript_budget").expect("it is recorded");
        let body: serde_json::Value = event.read().unwrap();
        assert_eq!((&body["action"], &body["source"]), (&json!(word), &json!("append")));
        assert_eq!(
            (&body["usage_before"]["messages"], &body["usage_attempted"]["messages"]),
            (&json!(4), &json!(5))
        );
        assert_eq!((&body["usage_after"]["messages"], &body["removed_messages"]), (&json!(2), &json!(2)));
        assert_eq!(scope.turns(id).len(), 5, "the log keeps all");
        let context = scope.conversation(id).contexts().build(&ContextOptions::new(4000)).unwrap();
        assert_eq!(context.messages.len(), 3);
        assert_eq!(
            context.system.is_some(),
            word == "compact",
            "a summary takes the place of what was compacted"
        );
        let shown = shown_budget(&scope, id);
        assert_eq!(shown["last_action"]["action"], json!(word));
        scope.conversation(id).log().verify(None).unwrap();
    }
}

#[test]
fn trimming_keeps_pairs_together_and_goes_on_until_the_bytes_fit() {
    let (_store, scope) = memory();
    let limit = 1200;
    let id = scope
        .begin_with(policy("budget", json!({"max_bytes": limit, "recovery": {"trim": {"keep_last": 100}}})))
        .id;
    for n in 0..20 {
        let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": format!("c{n}"),
            "type": "function", "function": {"name": "read", "arguments": "{}"}}]});
        scope.say(id, NewTurn { message: call.to_string(), ..NewTurn::default() });
        let result = json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": "x".repeat(100)});
        scope.say(id, NewTurn { message: result.to_string(), ..NewTurn::default() });
        assert!(
            scope.conversation(id).compaction().usage().unwrap().bytes <= limit,
            "{:?}",
            scope.conversation(id).compaction().usage()
        );
    }
    let context = scope.conversation(id).contexts().build(&ContextOptions::new(4000)).unwrap();
    let first: serde_json::Value = context.messages[0].read().unwrap();
    assert_eq!(first["role"], "assistant", "no result without its call: {first}");
}

/// The default refused appends in a plain load test, because compaction in the background was a moment behind. The
/// summarizer never answers here: an append must not wait for it.
#[test]
fn appends_far_past_the_default_budget_are_never_refused() {
    struct Never;
    impl Summarizer for Never {
        fn name(&self) -> String {
            "never".into()
        }
        fn summarize(
            &self,
            _: &str,
            _: &str,
        ) -> Pin<Box<dyn Future<Output = Result<String, Error>> + Send + 'static>> {
            Box::pin(std::future::pending())
        }
    }
    let summarizers = [("default".to_string(), Arc::new(Never) as Arc<dyn Summarizer>)].into();
    let store = Everturn::open_with("memory:", Options { summarizers, ..Options::default() }).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(policy("compaction", json!({"timeout_s": 1}))).id;
    let turns = |thread: usize| -> Vec<NewTurn> {
        (0..50).map(|n| NewTurn::user(&format!("turn {n} of src/part_{thread}.rs"))).collect()
    };
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (scope, turns) = (&scope, &turns);
            threads.spawn(move || {
                for _ in 0..30 {
                    scope.conversation(id).append_all(turns(thread)).wait().unwrap();
                }
            });
        }
    });
    assert_eq!(scope.conversation(id).get().unwrap().turns, 6000);
    let action = last_action(&scope, id);
    assert_eq!(action["action"], "compact", "{action}");
    scope.conversation(id).log().verify(None).unwrap();
}

/// Whatever keeps a compaction from cutting, the view is trimmed and nothing is refused.
#[test]
fn appends_are_not_refused_where_a_compaction_is_blocked() {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1",
        "type": "function", "function": {"name": "build", "arguments": "{}"}}]});
    type Block<'a> = &'a dyn Fn(&Tenant, ConversationId);
    let block: [(&str, Block<'_>); 3] = [
        ("a call that waits for its result", &|scope, id| {
            scope.say(id, NewTurn { message: call.to_string(), ..NewTurn::default() });
        }),
        ("an open turn", &|scope, id| {
            scope.conversation(id).open(NewStream::default()).wait().unwrap();
        }),
        ("an approval", &|scope, id| {
            let approval = ApprovalBody { approval_id: "a1".into(), ..ApprovalBody::default() };
            scope.conversation(id).state().request_approval(approval, None).wait().unwrap();
        }),
    ];
    for (what, begin) in block {
        let (_store, scope) = memory();
        let id = scope.begin_with(policy("budget", json!({"max_messages": 10, "max_events": 30}))).id;
        begin(&scope, id);
        talk(&scope, id, 60);
        for _ in 0..60 {
            scope.conversation(id).log().append("note", None, Raw::of(&json!({})).unwrap()).wait().unwrap();
        }
        scope.conversation(id).assets().add(None, "text/plain", b"bytes".to_vec()).unwrap();
        assert!(
            scope.conversation(id).compaction().usage().unwrap().messages <= 10,
            "{what}: {:?}",
            scope.conversation(id).compaction().usage()
        );
        assert_eq!(last_action(&scope, id)["action"], "trim", "{what}");
        let context = scope.conversation(id).contexts().build(&ContextOptions::new(4000)).unwrap();
        assert_ne!(context.messages.len(), 0, "{what}");
        scope.conversation(id).log().verify(None).unwrap();
    }
}

/// The result of the first call comes when the view is full: nothing can be cut without parting the two.
#[test]
fn a_result_that_pairs_with_the_first_turn_of_a_full_view_is_not_refused() {
    let (_store, scope) = memory();
    let id = scope.begin_with(policy("budget", json!({"max_messages": 4}))).id;
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1",
        "type": "function", "function": {"name": "build", "arguments": "{}"}}]});
    scope.say(id, NewTurn { message: call.to_string(), ..NewTurn::default() });
    talk(&scope, id, 3);
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "done"});
    scope.say(id, NewTurn { message: result.to_string(), ..NewTurn::default() });
    talk(&scope, id, 10);
    assert!(
        scope.conversation(id).compaction().usage().unwrap().messages <= 4,
        "{:?}",
        scope.conversation(id).compaction().usage()
    );
}

/// The budget by default refuses nothing, and its advice would not help.
#[test]
fn more_turns_than_one_append_takes_are_refused_for_that() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for turns in [1001, 5000] {
        let turns: Vec<_> = (0..turns).map(|n| NewTurn::user(&format!("turn {n}"))).collect();
        refused(scope.conversation(id).append_all(turns).wait(), "limit.exceeded", "BATCH_EVENTS_MAX");
    }
}

/// The value used to show every message and every event, whatever the budget.
#[test]
fn the_transcript_value_holds_the_caps_and_tells_the_budget() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let limits = json!({"max_messages": 4, "max_events": 12, "recovery": {"trim": {"keep_last": 2}}});
        let id = scope.begin_with(policy("budget", limits)).id;
        scope.conversation(id).state().pin("branch", "main").wait().unwrap();
        talk(&scope, id, 30);
        let value: serde_json::Value =
            serde_json::from_str(&scope.conversation(id).transcript().unwrap()).unwrap();
        let usage = scope.conversation(id).compaction().usage().unwrap();
        let messages = value["messages"].as_array().unwrap();
        assert_eq!((messages.len() as u64, messages.len() <= 4), (usage.messages, true));
        let last = scope.turns(id).pop().unwrap();
        assert_eq!(messages.last().unwrap(), &last.value().unwrap());
        let events = value["events"].as_array().unwrap();
        assert!(events.len() <= 12, "{} events", events.len());
        assert!(events.iter().any(|event| event["kind"] == "state.pin"), "what is in force is shown");
        let budget = &value["metadata"]["transcript_budget"];
        assert_eq!(
            (&budget["last_action"]["action"], &budget["policy"]["max_messages"]),
            (&json!("trim"), &json!(4))
        );
        assert_eq!(scope.turns(id).len(), 30, "the log keeps everything");
    }
}

/// Regression: pins, scratchpads, approvals and custom events passed `max_events`, because only turns could leave the view.
#[test]
fn events_that_are_no_turns_leave_the_view_and_never_pass_its_limit() {
    let stage = Stage::new();
    let stored = stage.open();
    let ask = |scope: &Tenant, id, n: u64| {
        let approval = ApprovalBody { approval_id: format!("a{n}"), ..ApprovalBody::default() };
        scope.conversation(id).state().request_approval(approval, None).wait()
    };
    type Add<'a> = &'a dyn Fn(&Tenant, ConversationId, u64) -> Result<Event, Error>;
    let add: [(&str, Add<'_>); 4] = [
        ("state.pin", &|scope, id, n| scope.conversation(id).state().pin("k", n).wait()),
        ("scratchpad.set", &|scope, id, n| scope.conversation(id).state().set_scratchpad("k", n).wait()),
        ("note", &|scope, id, n| scope.conversation(id).log().append("note", None, json!({"n": n})).wait()),
        ("approval.resolved", &|scope, id, n| {
            ask(scope, id, n)?;
            let (approval_id, state) = (format!("a{n}"), Approval::Denied);
            let outcome = ApprovalOutcome { approval_id, state, actor: None, reason: None };
            scope.conversation(id).state().resolve_approval(outcome).wait()
        }),
    ];
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        for recovery in [json!({"trim": {"keep_last": 4}}), json!({"compact": {"keep_last": 4}})] {
            for (kind, add) in add {
                let id =
                    scope.begin_with(policy("budget", json!({"max_events": 12, "recovery": recovery}))).id;
                talk(&scope, id, 3);
                let told = |scope: &Tenant| {
                    scope.kinds(id).iter().filter(|kind| *kind == "transcript_budget").count()
                };
                for n in 0..30 {
                    add(&scope, id, n).unwrap();
                    let (shown, usage) = (shown_value(&scope, id), shown_budget(&scope, id)["usage"].clone());
                    let events = shown["events"].as_array().unwrap();
                    assert!(events.len() <= 12, "{kind}, {n}: {} events", events.len());
                    assert!(usage["events"].as_u64().unwrap() <= 12, "{usage}");
                    assert!(events.iter().any(|event| event["kind"] == kind), "the newest is shown");
                    assert_eq!(shown["messages"].as_array().unwrap().len(), 3, "no turn leaves for it");
                }
                assert_eq!(last_action(&scope, id)["action"], "trim");
                assert!((1..=10).contains(&told(&scope)), "{} actions", told(&scope));
                talk(&scope, id, 20);
                let shown = shown_value(&scope, id);
                let budget = &shown["metadata"]["transcript_budget"];
                assert!(shown["events"].as_array().unwrap().len() <= 12, "{budget}");
                let is_set = shown["events"].as_array().unwrap().iter().any(|event| event["kind"] == kind);
                assert_eq!(is_set, matches!(kind, "state.pin" | "scratchpad.set"), "what is in force stays");
                let copy = memory().1;
                let copied = copy.import(shown.to_string().as_bytes(), &mut |_| {}).unwrap();
                assert_eq!(
                    copy.conversation(copied.conversation.id).state().read().unwrap().pins.len(),
                    scope.conversation(id).state().read().unwrap().pins.len()
                );
                scope.conversation(id).log().verify(None).unwrap();
            }
        }
    }
}

/// What is in force cannot leave, so what has no room beside it is refused, and what ends it is not.
#[test]
fn an_append_without_room_beside_what_is_in_force_is_refused() {
    let (_store, scope) = memory();
    let recovery = json!({"trim": {"keep_last": 4}});
    let id = scope.begin_with(policy("budget", json!({"max_events": 12, "recovery": recovery}))).id;
    talk(&scope, id, 1);
    let state = |scope: &Tenant| scope.conversation(id);
    for n in 0..11 {
        state(&scope).state().pin(&format!("pin {n}"), n).wait().unwrap();
    }
    let is_full = |scope: &Tenant| {
        assert_eq!(shown_value(scope, id)["events"].as_array().unwrap().len(), 12);
        assert_eq!(shown_budget(scope, id)["usage"]["events"], 12);
    };
    is_full(&scope);
    let says = "max_events is 12, this would make it 13, and pins";
    refused(state(&scope).state().pin("one more", 1).wait(), "budget.exceeded", says);
    refused(state(&scope).log().append("note", None, json!({})).wait(), "budget.exceeded", says);
    is_full(&scope);
    assert_eq!(last_action(&scope, id)["action"], "reject");
    state(&scope).state().pin("pin 1", "changed").wait().unwrap();
    is_full(&scope);
    scope.say(id, NewTurn::user("instead of the first turn"));
    is_full(&scope);
    for n in 0..8 {
        state(&scope).state().unpin(&format!("pin {n}")).wait().unwrap();
    }
    talk(&scope, id, 3);
    assert!(shown_value(&scope, id)["events"].as_array().unwrap().len() <= 12);
    assert_eq!(scope.conversation(id).compaction().usage().unwrap().messages, 4);
}

/// Regression: the event that records a refusal made 13 events of 12.
#[test]
fn the_record_of_a_refusal_does_not_pass_the_limit() {
    let (_store, scope) = memory();
    let id = scope.begin_with(policy("budget", json!({"max_events": 12, "recovery": "reject"}))).id;
    talk(&scope, id, 11);
    for _ in 0..3 {
        refused(scope.try_say(id, NewTurn::user("more")), "budget.exceeded", "this would make it 13");
        assert_eq!(shown_budget(&scope, id)["usage"]["events"], 12);
        assert_eq!(shown_value(&scope, id)["events"].as_array().unwrap().len(), 12);
        assert_eq!(last_action(&scope, id)["action"], "reject");
    }
}

/// The limit is one of the model that reads the prompt: a prompt for one whose tokens are estimated used to pass it by a
/// third.
#[test]
fn the_threshold_is_counted_as_the_last_prompt_was() {
    for (model, is_due) in [("gpt-4.1", false), ("claude-x", true)] {
        let stage = Stage::new();
        // When a store is closed, a last look is taken at what changed.
        let store = stage.open_with(Options::default());
        let scope = store.tenant("acme").unwrap();
        let threshold =
            json!({"strategy": "threshold", "input_limit": 12_000, "reserved_tokens": 2_000, "keep_last": 1});
        let id = scope.begin_with(policy("compaction", threshold)).id;
        let turn = "These are some words about nothing in particular. ".repeat(50);
        for _ in 0..19 {
            scope.say(id, NewTurn::user(&turn));
        }
        let options = ContextOptions { model: Some(model.into()), ..ContextOptions::new(50_000) };
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        assert_eq!(context.tokens.used > 10_000, is_due, "{}", context.tokens.used);
        scope.conversation(id).contexts().record(&context).unwrap();
        drop((scope, store));
        let store = stage.open_with(quiet());
        let after = store.tenant("acme").unwrap().conversation(id).get().unwrap();
        assert_eq!(after.checkpoint.is_some(), is_due, "{model}");
    }
}

/// A prompt of 12,600 tokens used to pass a trigger of 10,000, because only turns were counted.
#[test]
fn the_threshold_counts_the_system_prompt_and_the_tools() {
    let stage = Stage::new();
    // When a store is closed, a last look is taken at what changed.
    let open = |options: Options| {
        let store = stage.open_with(options);
        (store.tenant("acme").unwrap(), store)
    };
    let (scope, store) = open(Options::default());
    let threshold = json!({"strategy": "threshold", "input_limit": 30_000, "keep_last": 1});
    let settings = Settings {
        system_prompt: Some(Some(SystemPrompt::new("Be careful with every word. ".repeat(600)))),
        ..policy("compaction", threshold)
    };
    let id = scope.begin_with(settings).id;
    let turn = "These are some words about nothing in particular. ".repeat(50);
    for _ in 0..8 {
        scope.say(id, NewTurn::user(&turn));
    }
    drop((scope, store));
    let (scope, store) = open(Options::default());
    let is_compacted = |scope: &Tenant| scope.conversation(id).get().unwrap().checkpoint.is_some();
    assert!(!is_compacted(&scope), "4,000 tokens of turns and 3,600 of the system prompt");
    let tool = json!({"name": "look", "description": "It looks at everything there is. ".repeat(500)});
    let tools = vec![Raw::of(&tool).unwrap()];
    let options = ContextOptions { tools, ..ContextOptions::new(50_000) };
    let context = scope.conversation(id).contexts().build(&options).unwrap();
    assert!((10_000..12_600).contains(&context.tokens.used), "{}", context.tokens.used);
    scope.conversation(id).contexts().record(&context).unwrap();
    drop((scope, store));
    let (scope, _store) = open(quiet());
    assert!(is_compacted(&scope), "and 3,500 of the tools");
}
