//! Tool calls that never get a result: given up by hand, by an import or after a time.

use crate::compacting::{by_hand, policy, talk};
use crate::importing::Claude;
use crate::stage::{Short, Stage, Still, memory, refused};
use everturn_core::event::Visibility;
use everturn_core::id::ConversationId;
use everturn_engine::{
    Caller, ContextOptions, Format, ImportOptions, Lifecycle, NewTurn, Options, Swept, Tenant,
};
use everturn_formats::provider::Provider;
use everturn_views::state::ToolBody;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Runs a test on both backends.
fn on_both(test: impl Fn(&Tenant)) {
    let (_store, scope) = memory();
    test(&scope);
    let stage = Stage::new();
    test(&stage.open().tenant("acme").unwrap());
}

fn calling(ids: &[&str]) -> NewTurn {
    let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": "run", "input": {"n": 1}});
    let blocks: Vec<Value> = ids.iter().map(call).collect();
    NewTurn::message(json!({"role": "assistant", "content": blocks}).to_string())
}

fn pending(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let state = scope.conversation(id).state().read().unwrap();
    state.pending_tools.into_iter().filter_map(|tool| tool.tool_call_id).collect()
}

/// The whole prompt as text, and whether every call in it is followed by its result.
fn prompt(scope: &Tenant, id: ConversationId) -> String {
    let options = ContextOptions { provider: Provider::Anthropic, ..ContextOptions::new(100_000) };
    let context = scope.conversation(id).contexts().build(&options).unwrap();
    let messages: Vec<Value> = context.messages.iter().map(|raw| raw.read().unwrap()).collect();
    let ids = |message: &Value, kind: &str, key: &str| -> Vec<String> {
        let blocks = message["content"].as_array().cloned().unwrap_or_default();
        let of_kind = blocks.into_iter().filter(|block| block["type"] == kind);
        of_kind.filter_map(|block| block[key].as_str().map(str::to_string)).collect()
    };
    for (at, message) in messages.iter().enumerate() {
        let mut called = ids(message, "tool_use", "id");
        if called.is_empty() {
            continue;
        }
        let mut answered = ids(&messages[at + 1], "tool_result", "tool_use_id");
        called.sort();
        answered.sort();
        assert_eq!(called, answered, "every call has its result");
    }
    let system = context.system.map(|system| system.get().to_string()).unwrap_or_default();
    format!("{system}\n{}", json!(messages))
}

/// Regression: a finished web search was "not answered yet" in every prompt, and held compaction back.
#[test]
fn a_call_that_the_provider_ran_itself_waits_for_no_result() {
    let hosted = [
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "rust"}}),
        json!({"type": "mcp_call", "id": "mcp_1", "name": "roll", "arguments": "{}", "output": "4"}),
        json!({"role": "assistant", "content": [{"type": "image_generation_call", "id": "ig_1", "status": "completed"}]}),
    ];
    on_both(|scope| {
        let id = scope.begin();
        let chat = scope.conversation(id);
        chat.append("Which is the newest Rust?").wait().unwrap();
        for item in &hosted {
            chat.append(NewTurn::message(item.to_string())).wait().unwrap();
        }
        let search = json!({"type": "tool_search_call", "call_id": "ts_1", "arguments": {"query": "maps"}});
        chat.append(NewTurn::message(search.to_string())).wait().unwrap();
        assert_eq!(pending(scope, id), ["ts_1"]);
        let found =
            json!({"type": "tool_search_output", "call_id": "ts_1", "status": "completed", "tools": []});
        chat.append(NewTurn::message(found.to_string())).wait().unwrap();
        talk(scope, id, 8);
        assert_eq!(pending(scope, id), [""; 0]);
        assert!(!prompt(scope, id).contains("have not answered"));
        assert_eq!(chat.compaction().compact(by_hand(2)).unwrap().covers.to_seq, 13, "all but the last two");
    });
}

/// Regression: the new call had the result "the call was abandoned" in the prompt, while the state said that it waits.
#[test]
fn a_call_is_not_given_up_because_an_earlier_one_with_its_id_was() {
    on_both(|scope| {
        let id = scope.begin();
        let chat = scope.conversation(id);
        scope.say(id, NewTurn::user("Run it."));
        scope.say(id, calling(&["a"]));
        chat.state().abandon_tool("a", None, Some("too slow")).unwrap();
        scope.say(id, NewTurn::user("Again."));
        scope.say(id, calling(&["a"]));
        assert_eq!(pending(scope, id), ["a"]);
        let options = ContextOptions { provider: Provider::OpenaiChat, ..ContextOptions::new(100_000) };
        let context = chat.contexts().build(&options).unwrap();
        refused(context.check_asks(), "generate.call_waits", "has no result yet");
        scope.say(id, NewTurn::tool_result("a", "the result"));
        let text = prompt(scope, id);
        assert_eq!(text.matches("abandoned (too slow)").count(), 1, "{text}");
        assert_eq!(text.matches("the result").count(), 1, "{text}");
        // A late result is of the nearest call.
        scope.say(id, calling(&["a"]));
        chat.state().abandon_tool("a", None, Some("too late")).unwrap();
        scope.say(id, NewTurn::tool_result("a", "at last"));
        let text = prompt(scope, id);
        assert!(
            text.contains("at last") && text.contains("too slow") && !text.contains("too late"),
            "{text}"
        );
    });
}

/// Regression: the call waited for ever for a result that stood behind it, and held compaction back.
#[test]
fn a_call_that_an_undone_edit_brings_back_has_its_result() {
    on_both(|scope| {
        let id = scope.begin();
        let chat = scope.conversation(id);
        scope.say(id, NewTurn::user("Run them."));
        let called = scope.say(id, calling(&["a", "b"])).id;
        scope.say(id, NewTurn::tool_result("a", "done"));
        chat.state().abandon_tool("b", None, Some("too slow")).unwrap();
        talk(scope, id, 8);
        let before = prompt(scope, id);
        let plain = chat.supersede(called, NewTurn::assistant("No call.")).wait().unwrap().turns.remove(0).id;
        let exported = || {
            let mut out = Vec::new();
            chat.export(Format::OpenaiChat, &mut out, &mut |_| {}).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(!prompt(scope, id).contains("abandoned") && !exported().contains("abandoned"));
        chat.supersede(plain, calling(&["a", "b"])).wait().unwrap();
        assert_eq!(pending(scope, id), [""; 0]);
        assert_eq!(prompt(scope, id), before);
        assert_eq!(exported().matches("abandoned (too slow)").count(), 1);
        assert_eq!(chat.compaction().compact(by_hand(2)).unwrap().covers.to_seq, 11, "all but the last two");
    });
}

/// Regression: an export ended with the call, which providers refuse, while the context had a result for it.
#[test]
fn an_export_for_a_provider_has_a_result_for_a_call_that_was_given_up() {
    on_both(|scope| {
        let id = scope.begin();
        let chat = scope.conversation(id);
        scope.say(id, NewTurn::user("Run both."));
        scope.say(id, calling(&["a", "b"]));
        scope.say(id, NewTurn::tool_result("b", "fine"));
        chat.state().abandon_tool("a", None, Some("mail to ana@example.org")).unwrap();
        let exported = |format, redacted| {
            let mut out = Vec::new();
            match redacted {
                true => chat.export_redacted(format, &mut out, &mut |_| {}),
                false => chat.export(format, &mut out, &mut |_| {}),
            }
            .unwrap();
            String::from_utf8(out).unwrap()
        };
        for format in [Format::OpenaiChat, Format::OpenaiResponses, Format::Anthropic, Format::Gemini] {
            let text = exported(format, false);
            assert_eq!(text.matches("the call was abandoned (mail to ana@example.org)").count(), 1, "{text}");
            assert_eq!(text.matches("fine").count(), 1, "{text}");
            assert!(!exported(format, true).contains("ana@example.org"));
        }
        let value: Value = serde_json::from_str(&exported(Format::Anthropic, false)).unwrap();
        let last = value["messages"].as_array().unwrap().last().unwrap();
        let answered = last["content"].as_array().unwrap().iter().map(|block| block["tool_use_id"].clone());
        assert_eq!(answered.collect::<Vec<_>>(), ["a", "b"]);
        // In the middle as well.
        scope.say(id, NewTurn::user("Go on."));
        assert!(exported(Format::OpenaiChat, false).contains("the call was abandoned"));
    });
}

/// Regression: the result had `is_error` and `name`, which strict servers refuse, and then every later call failed.
#[test]
fn the_result_of_a_call_that_was_given_up_has_only_fields_that_openai_knows() {
    on_both(|scope| {
        let id = scope.begin();
        scope.say(id, NewTurn::user("Run it."));
        scope.say(id, calling(&["a"]));
        let chat = scope.conversation(id);
        chat.state().abandon_tool("a", None, Some("died")).unwrap();
        scope.say(id, NewTurn::user("Go on."));
        let result = json!({"role": "tool", "tool_call_id": "a",
            "content": "Error: No result: the call was abandoned (died)."});
        let options = ContextOptions { provider: Provider::OpenaiChat, ..ContextOptions::new(10_000) };
        let context = chat.contexts().build(&options).unwrap();
        let messages: Vec<Value> = context.messages.iter().map(|raw| raw.read().unwrap()).collect();
        assert!(messages.contains(&result), "{messages:?}");
        let mut exported = Vec::new();
        chat.export(Format::OpenaiChat, &mut exported, &mut |_| {}).unwrap();
        let exported: Value = serde_json::from_slice(&exported).unwrap();
        assert!(exported["messages"].as_array().unwrap().contains(&result), "{exported}");
    });
}

/// Due is due for every reader, also where nobody is there to write it down.
#[test]
fn a_call_is_given_up_for_readers_from_the_moment_it_is_due() {
    let clock = Still::new(9);
    let stage = Stage::new();
    let store = stage.open_with(clock.options());
    let scope = store.tenant("acme").unwrap();
    let [id, archived] = [(); 2].map(|()| {
        let id = scope.begin_with(policy("abandon_tools_after_s", json!(60))).id;
        scope.say(id, NewTurn::user("Run it."));
        scope.say(id, calling(&["c1"]));
        id
    });
    scope.conversation(archived).update(Lifecycle::Archived).wait().unwrap();
    clock.advance_s(59);
    assert_eq!((pending(&scope, id), pending(&scope, archived)), (vec!["c1".into()], vec!["c1".into()]));
    clock.advance_s(1);
    let reader = stage.open_with(Options { read_only: true, ..clock.options() });
    let reader = reader.tenant("acme").unwrap();
    let heads = (scope.head(id), scope.head(archived));
    for (scope, id) in [(&scope, id), (&scope, archived), (&reader, id), (&reader, archived)] {
        assert_eq!(pending(scope, id), Vec::<String>::new());
        let mut exported = Vec::new();
        scope.conversation(id).export(Format::Anthropic, &mut exported, &mut |_| {}).unwrap();
        let exported = String::from_utf8(exported).unwrap();
        assert!(exported.contains("the call was abandoned (no result within 60 s)"), "{exported}");
    }
    for (scope, id) in [(&scope, archived), (&reader, id), (&reader, archived)] {
        let said = prompt(scope, id);
        assert!(
            said.contains("abandoned (no result within 60 s)") && !said.contains("not answered"),
            "{said}"
        );
    }
    assert_eq!((scope.head(id), scope.head(archived)), heads, "reading writes nothing");
    let before = scope.conversation(id).state().at(scope.conversation(id).get().unwrap().head.seq).unwrap();
    assert_eq!(before.pending_tools.len(), 1, "the log itself says nothing of it yet");
    assert_eq!(store.sweep().unwrap().abandoned, 1);
}

/// A call that was given up looked like one that was done.
#[test]
fn documents_for_people_mark_a_call_that_was_given_up() {
    on_both(|scope| {
        let id = scope.begin();
        let chat = scope.conversation(id);
        scope.say(id, calling(&["a", "b"]));
        scope.say(id, NewTurn::tool_result("b", "fine"));
        let exported = |format, redacted| {
            let mut out = Vec::new();
            match redacted {
                true => chat.export_redacted(format, &mut out, &mut |_| {}),
                false => chat.export(format, &mut out, &mut |_| {}),
            }
            .unwrap();
            String::from_utf8(out).unwrap()
        };
        for format in [Format::Html, Format::Markdown] {
            assert!(!exported(format, false).contains("given up"));
        }
        chat.state().abandon_tool("a", None, Some("mail to <ana@example.org>")).unwrap();
        for format in [Format::Html, Format::Markdown] {
            let text = exported(format, false);
            assert_eq!(text.matches("given up").count(), 1, "{text}");
            assert!(text.contains("iven up: mail to &lt;ana@example.org&gt;"), "{text}");
            let text = exported(format, true);
            assert!(text.contains("given up") && !text.contains("ana@example.org"), "{text}");
        }
        // A result that still comes is one.
        scope.say(id, NewTurn::tool_result("a", "late"));
        for format in [Format::Html, Format::Markdown] {
            assert!(!exported(format, false).contains("given up"));
        }
    });
}

#[test]
fn an_abandoned_call_is_not_pending_and_has_a_result_that_says_so() {
    on_both(|scope| {
        let id = scope.begin();
        scope.say(id, NewTurn::user("Run both."));
        scope.say(id, calling(&["c1", "c2"]));
        scope.say(id, NewTurn::tool_result("c1", "fine"));
        let chat = scope.conversation(id);
        refused(chat.state().abandon_tool("c1", None, None), "tool_call.absent", "no tool call \"c1\" waits");
        let event = chat.state().abandon_tool("c2", Some("ana".into()), Some("the worker died")).unwrap();
        assert_eq!((event.kind.as_str(), event.actor.as_deref()), ("tool.abandoned", Some("ana")));
        assert_eq!(pending(scope, id), Vec::<String>::new());
        scope.say(id, NewTurn::user("Go on."));
        let said = prompt(scope, id);
        assert!(said.contains("No result: the call was abandoned (the worker died)."), "{said}");
        assert!(!said.contains("have not answered"), "{said}");
        refused(chat.state().abandon_tool("c2", None, None), "tool_call.absent", "waits");
        let then = chat.state().at(event.seq - 1).unwrap();
        assert_eq!(then.pending_tools.len(), 1, "before that, it was pending");
    });
}

/// An edit that kept the id of its call had it pending for ever, although its result stood behind it.
#[test]
fn the_edit_of_a_call_keeps_its_result_and_holds_nothing_back() {
    on_both(|scope| {
        let id = scope.begin();
        scope.say(id, NewTurn::user("Run both."));
        let said = scope.say(id, calling(&["c1", "c2"]));
        scope.say(id, NewTurn::tool_result("c1", "fine"));
        let chat = scope.conversation(id);
        chat.state().abandon_tool("c2", None, Some("the worker died")).unwrap();
        chat.supersede(said.id, calling(&["c1", "c2"])).wait().unwrap();
        scope.say(id, NewTurn::user("Go on."));
        assert_eq!(pending(scope, id), Vec::<String>::new());
        let said = prompt(scope, id);
        assert!(said.contains("fine") && said.contains("abandoned (the worker died)"), "{said}");
        assert!(!said.contains("have not answered"), "{said}");
    });
}

#[test]
fn a_late_result_revives_a_call_and_a_started_tool_makes_it_pending_again() {
    on_both(|scope| {
        let id = scope.begin();
        scope.say(id, NewTurn::user("Run it."));
        scope.say(id, calling(&["c1"]));
        let chat = scope.conversation(id);
        chat.state().abandon_tool("c1", None, None).unwrap();
        let tool = ToolBody { tool_call_id: "c1".into(), tool_name: None, summary: None };
        chat.state().tool_started(tool).wait().unwrap();
        assert_eq!(pending(scope, id), ["c1"]);
        chat.state().abandon_tool("c1", None, None).unwrap();
        scope.say(id, NewTurn::user("What now?"));
        scope.say(id, NewTurn::tool_result("c1", "late but here"));
        let said = prompt(scope, id);
        assert!(said.contains("late but here") && !said.contains("abandoned"), "{said}");
        assert_eq!(pending(scope, id), Vec::<String>::new());
    });
}

#[test]
fn an_abandoned_call_does_not_hold_compaction_back() {
    on_both(|scope| {
        let id = scope.begin();
        let call = scope.say(id, calling(&["c1"]));
        talk(scope, id, 6);
        let compaction = scope.conversation(id);
        refused(compaction.compaction().compact(by_hand(1)), "compaction.nothing", "`abandon-call`");
        compaction.state().abandon_tool("c1", None, None).unwrap();
        assert!(compaction.compaction().compact(by_hand(1)).unwrap().covers.to_seq > call.seq);
        // A result for what is summarized by now leaves the prompt valid.
        scope.say(id, NewTurn::tool_result("c1", "very late"));
        prompt(scope, id);
        // Also where a turn before it could be covered, but would not be worth it.
        let id = scope.begin();
        scope.say(id, NewTurn::user("go"));
        scope.say(id, calling(&["c1"]));
        talk(scope, id, 6);
        let compacted = scope.conversation(id).compaction().compact(by_hand(1));
        refused(compacted, "compaction.nothing", "pending since seq 3");
    });
}

/// A full view under `reject` must not refuse the event that lets it be compacted.
#[test]
fn a_call_can_be_given_up_in_a_full_conversation() {
    let (_store, scope) = memory();
    let id = scope.begin_with(policy("budget", json!({"max_events": 2, "recovery": "reject"}))).id;
    scope.say(id, calling(&["c1"]));
    refused(scope.try_say(id, NewTurn::user("more")), "budget.exceeded", "max_events");
    scope.conversation(id).state().abandon_tool("c1", None, None).unwrap();
}

#[test]
fn calls_without_an_id_are_known_by_their_tool() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let call =
        json!({"role": "assistant", "content": [{"type": "tool_call", "name": "look", "arguments": {}}]});
    scope.say(id, NewTurn::message(call.to_string()));
    let chat = scope.conversation(id);
    chat.state().abandon_tool("look", None, None).unwrap();
    assert_eq!(chat.state().read().unwrap().pending_tools, []);
    scope.say(id, NewTurn::user("Well?"));
    let context = chat.contexts().build(&ContextOptions::new(10_000)).unwrap();
    let said = json!(context.messages).to_string();
    assert!(said.contains("No result: the call was abandoned."), "{said}");
}

#[test]
fn a_result_without_an_id_answers_the_only_call_that_waits() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, calling(&["c1"]));
    scope.say(id, NewTurn::text(everturn_core::turn::Role::Tool, "done"));
    assert_eq!(pending(&scope, id), Vec::<String>::new());
    scope.say(id, calling(&["c2", "c3"]));
    scope.say(id, NewTurn::text(everturn_core::turn::Role::Tool, "whose?"));
    assert_eq!(pending(&scope, id), ["c2", "c3"], "of two, neither is meant");
}

#[test]
fn calls_are_given_up_after_a_time_also_by_the_next_process() {
    let clock = Still::new(7);
    let stage = Stage::new();
    let id = {
        let store = stage.open_with(clock.options());
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin_with(policy("abandon_tools_after_s", json!(60))).id;
        scope.say(id, calling(&["c1"]));
        clock.advance_s(30);
        scope.say(id, calling(&["c2"]));
        clock.advance_s(29);
        assert_eq!(store.sweep().unwrap(), Swept::default());
        clock.advance_s(1);
        assert_eq!(store.sweep().unwrap(), Swept { abandoned: 1, ..Swept::default() });
        assert_eq!(pending(&scope, id), ["c2"]);
        id
    };
    let store = stage.open_with(clock.options());
    let scope = store.tenant("acme").unwrap();
    clock.advance_s(30);
    assert_eq!(store.sweep().unwrap(), Swept { abandoned: 1, ..Swept::default() });
    assert_eq!((pending(&scope, id), store.sweep().unwrap()), (Vec::new(), Swept::default()));
    for wrong in [json!(0), json!("soon"), json!(-1)] {
        let update = scope.conversation(id).update(policy("abandon_tools_after_s", wrong)).wait();
        refused(update, "policy.abandon_tools_after_s", "seconds above 0");
    }
}

/// Calls at 1 (a prompt follows) and at 4 (the file ends).
fn unanswered() -> Claude {
    let call = |id: &str| json!({"type":"tool_use","id":id,"name":"Bash","input":{"command":"ls"}});
    let mut file = Claude::default();
    file.user("u1", None, "List the files.");
    file.block("u2", Some("u1"), "m1", call("t1"), 5);
    file.user("u3", Some("u2"), "[Request interrupted by user]");
    file.user("u4", Some("u3"), "Do it differently.");
    file.block("u5", Some("u4"), "m2", call("t2"), 5);
    file
}

#[test]
fn an_import_gives_up_calls_that_will_not_be_answered() {
    on_both(|scope| {
        let file = unanswered().text();
        let watched = ImportOptions { watched: true, ..ImportOptions::default() };
        let id = scope.import_with(watched, file.as_bytes(), &mut |_| {}).unwrap().conversation.id;
        assert_eq!(
            pending(scope, id),
            ["t2"],
            "in a file that is watched, the last call may be answered yet"
        );
        let again = scope.import(file.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!((again.added, pending(scope, id)), (0, Vec::new()));
        let said = prompt(scope, id);
        assert!(!said.contains("have not answered"), "{said}");
        let head = scope.head(id);
        scope.import(file.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!(scope.head(id), head, "a third time adds nothing");
        scope.conversation(id).compaction().compact(by_hand(0)).unwrap();
        let mut grown = unanswered();
        grown.result("u6", Some("u5"), "t2", "a.txt");
        scope.import(grown.text().as_bytes(), &mut |_| {}).unwrap();
        prompt(scope, id);
    });
}

/// Session files of real programs, where the folder is there.
#[test]
fn real_sessions_have_nothing_pending_and_can_be_compacted() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if !folder.exists() {
        eprintln!("skipped: there is no folder {}", folder.display());
        return;
    }
    let (_store, scope) = memory();
    for path in
        crate::stage::files(&folder).iter().filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
    {
        let file = std::fs::read(path).unwrap();
        let name = path.display().to_string();
        let options = ImportOptions { name: Some(&name), ..ImportOptions::default() };
        let imported = match scope.import_with(options, file.as_slice(), &mut |_| {}) {
            Ok(imported) => imported,
            Err(error) => panic!("{name}: {error}"),
        };
        for id in imported.linked.into_iter().chain([imported.conversation.id]) {
            assert_eq!(scope.conversation(id).state().read().unwrap().pending_tools, [], "{name}");
            prompt(&scope, id);
            if scope.turns(id).iter().any(|turn| turn.superseded_by.is_none()) {
                let compacted = scope.conversation(id).compaction().compact(by_hand(0));
                let nothing =
                    compacted.as_ref().is_err_and(|error| error.text().contains("every turn is summarized"));
                assert!(compacted.is_ok() || nothing, "{name}: {:?}", compacted.err());
            }
        }
    }
}

/// Others learn neither the reason nor the id of a private call that was given up, from the log or from a session file.
#[test]
fn a_private_call_is_given_up_without_a_word_to_others() {
    on_both(|scope| {
        let id = scope.begin();
        scope.say(id, NewTurn::user("Q"));
        let private = NewTurn { visibility: Some(Visibility::Private), ..calling(&["canary"]).by("ann") };
        scope.say(id, private);
        scope.conversation(id).state().abandon_tool("canary", None, Some("canary too")).unwrap();
        let carl = scope.called_by(Caller::default().acting_as(vec!["carl".into()]).unwrap());
        let events = carl.conversation(id).log().read(0, 100).unwrap();
        assert!(!format!("{events:?}").contains("canary"), "{events:?}");
        // Nobody knows who reads the file.
        let mut file = Vec::new();
        scope.conversation(id).export(Format::Session, &mut file, &mut |_| {}).unwrap();
        let file = String::from_utf8(file).unwrap();
        assert!(!file.contains("canary"), "{file}");
        assert_eq!(pending(scope, id), Vec::<String>::new());
    });
}
