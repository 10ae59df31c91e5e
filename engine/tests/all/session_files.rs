//! Sessions that are logged into a store, and conversations as session files.

use crate::stage::{Stage, refused};
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::id::ConversationId;
use everturn_engine::{
    ConversationHandle, Everturn, Format, HistoryEntry, HistoryQuery, NewConversation, NewTurn, Tenant,
};
use everturn_formats::session::{self, NewSession, SessionFields};
use serde_json::{Value, json};

/// On memory and on SQLite.
fn on_both(test: impl Fn(&Tenant)) {
    let stage = Stage::new();
    for url in ["memory:".to_string(), stage.url()] {
        test(&Everturn::open(&url).unwrap().tenant("acme").unwrap());
    }
}

fn fields(value: Value) -> SessionFields {
    SessionFields::of(&value).unwrap()
}

fn exported(tenant: &Tenant, id: ConversationId) -> String {
    let mut out = Vec::new();
    tenant.conversation(id).export(Format::Session, &mut out, &mut |_| {}).unwrap();
    String::from_utf8(out).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Regression: private turns were left out, and private blocks written.
#[test]
fn a_session_file_has_nothing_private() {
    on_both(|tenant| {
        let chat = tenant.create("A trip").wait().unwrap();
        let blocks = json!([{"type": "text", "text": "hello"}, {"type": "text", "text": "wombat", "visibility": "private"}]);
        let message = json!({"role": "user", "content": blocks}).to_string();
        chat.append(NewTurn::message(message)).wait().unwrap();
        let private = NewTurn { audience: vec!["ben".into()], ..NewTurn::user("quokka").by("ana") };
        chat.append(private).wait().unwrap();
        let text = exported(tenant, chat.id());
        assert!(text.contains("hello") && !text.contains("wombat") && !text.contains("quokka"), "{text}");
    });
}

#[test]
fn a_session_is_started_logged_ended_and_exported() {
    on_both(|tenant| {
        let chat = tenant
            .start_session(
                |id, now| NewSession {
                    subject_key: "image_id".into(),
                    agent_provider: Some("claude".into()),
                    ..NewSession::about("img_1", id, now)
                },
                None,
            )
            .unwrap();
        let log = |kind: &str, value: Value| chat.session().log(kind.into(), None, fields(value), None);
        assert!(log("photographer_message", json!({"text": "warmer"})).unwrap().turn.is_some());
        log("agent_tool_call", json!({"tool": "crop", "parameters": {"x": 1}})).unwrap();
        log("agent_tool_call", json!({"tool": "blur", "parameters": {}})).unwrap();
        // A result that names its tool alone answers the call that waits.
        log("tool_result", json!({"tool": "blur", "result": "ok"})).unwrap();
        log("tool_result", json!({"result": "ok"})).unwrap();
        assert!(log("snapshot_created", json!({"hash": "9f", "label": "v1"})).unwrap().turn.is_none());
        log("weather", json!({"sun": true})).unwrap();
        refused(
            log("snapshot_created", json!({"label": "v1"})),
            "session.field",
            "snapshot_created needs `hash`",
        );
        refused(log("session_end", json!({})), "session.frame_type", "end the session instead");
        assert_eq!(chat.state().read().unwrap().pending_tools.len(), 0);

        let summary = chat.session().end(&fields(json!({"kept": 1})), None).unwrap();
        assert_eq!((summary.entries, summary.by_type["agent_tool_call"]), (7, 2));
        refused(chat.session().end(&SessionFields::default(), None), "session.ended", "start another");
        refused(log("weather", json!({})), "conversation.not_active", "is closed");

        let text = exported(tenant, chat.id());
        let report = session::check(text.as_bytes()).unwrap();
        assert!(report.is_ok() && !report.unclosed, "{report:?}");
        let lines = lines(&text);
        let kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                "session_start",
                "photographer_message",
                "agent_tool_call",
                "agent_tool_call",
                "tool_result",
                "tool_result",
                "snapshot_created",
                "weather",
                "session_end"
            ]
        );
        assert_eq!((&lines[0]["image_id"], &lines[8]["kept"]), (&json!("img_1"), &json!(1)));
        assert_eq!(lines[4]["call_id"], lines[3]["call_id"]);
        assert_eq!(lines[5]["call_id"], lines[2]["call_id"]);

        // It is the file of this very conversation.
        let again = tenant.import(text.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!((again.conversation.id, again.added), (chat.id(), 0), "{again:?}");
        // Elsewhere it becomes a conversation that exports as the same file.
        let elsewhere = Everturn::open("memory:").unwrap().tenant("other").unwrap();
        let imported = elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!(imported.problems, Vec::<String>::new());
        assert_eq!(exported(&elsewhere, imported.conversation.id), text);
    });
}

/// Whatever a conversation holds comes back as the same file, whoever wrote its messages.
#[test]
fn any_conversation_is_a_session_file_that_can_be_read_back() {
    on_both(|tenant| {
        let settings = Settings {
            title: Some(Some("A trip".into())),
            system_prompt: Some(Some(SystemPrompt::new("Answer in one line.".into()))),
            ..Settings::default()
        };
        let chat = tenant.create(NewConversation { settings, ..Default::default() }).wait().unwrap();
        let turns = [
            json!({"role": "system", "content": "be brief"}),
            json!({"role": "user", "content": "hi"}),
            json!({"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{\"n\":1.50}"}}]}),
            json!({"role": "tool", "tool_call_id": "a", "content": "x"}),
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}, {"type": "tool_use", "id": "b", "name": "cat", "input": {"f": "x"}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "y"}], "is_error": true}]}),
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "s", "signature": "Zz=="}, {"type": "text", "text": "signed"}]}),
        ];
        for turn in turns {
            chat.append(NewTurn::message(turn.to_string()).by("ana")).wait().unwrap();
        }
        chat.log().append("snapshot_created", None, json!({"hash": "h"})).wait().unwrap();
        chat.log().append("note", None, json!([1, 2])).wait().unwrap();
        // Regression: as lines of these types they lacked fields, so that the file was reported as broken.
        chat.log().append("snapshot_created", None, json!({"label": "x"})).wait().unwrap();
        chat.log().append("mask_generated", None, json!({})).wait().unwrap();
        chat.log().append("agent_tool_call", None, json!({"tool": "z"})).wait().unwrap();
        let text = exported(tenant, chat.id());
        let report = session::check(text.as_bytes()).unwrap();
        assert!(report.is_ok() && report.unclosed, "it goes on, so it has no end: {report:?}");
        let kinds: Vec<Value> = lines(&text).iter().map(|line| line["type"].clone()).collect();
        let expected = json!([
            "session_start",
            "message",
            "user_message",
            "message",
            "agent_tool_call",
            "tool_result",
            "agent_thinking",
            "agent_message",
            "agent_tool_call",
            "tool_result",
            "message",
            "snapshot_created",
            "note",
            "imported.snapshot_created",
            "imported.mask_generated",
            "imported.agent_tool_call"
        ]);
        assert_eq!(Value::Array(kinds), expected);
        assert_eq!(lines(&text)[4]["parameters"].to_string(), "{\"n\":1.50}".replace("1.50", "1.5"));
        assert!(text.contains("{\"n\":1.50}"), "numbers keep their digits");
        assert!(text.contains("Zz=="), "signed reasoning stays whole");

        let elsewhere = Everturn::open("memory:").unwrap().tenant("other").unwrap();
        let imported = elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!((imported.problems, imported.turns), (Vec::<String>::new(), 10));
        let id = imported.conversation.id;
        assert_eq!(exported(&elsewhere, id), text);
        let events = elsewhere.conversation(id).log().read(0, 100).unwrap();
        for kind in ["snapshot_created", "mask_generated", "agent_tool_call"] {
            assert!(events.iter().any(|event| event.kind == kind), "{kind}");
        }
        // Regression: blocks lost their speaker, and the conversation its title and instructions.
        assert_eq!(imported.conversation.title.as_deref(), Some("A trip"));
        let prompt = elsewhere.conversation(id).state().system_prompt(None).unwrap();
        assert_eq!(prompt.map(|prompt| prompt.content).as_deref(), Some("Answer in one line."));
        let history = elsewhere.conversation(id).history(HistoryQuery::default()).unwrap();
        let actors = history.data.into_iter().map(|entry| match entry {
            HistoryEntry::Turn(turn) => turn.actor,
            HistoryEntry::Event(_) => None,
        });
        assert!(actors.eq(vec![Some("ana".to_string()); 10]), "everybody is ana");
        // It grew, and the longer file adds what is new.
        chat.append(NewTurn::user("more")).wait().unwrap();
        let longer = exported(tenant, chat.id());
        assert!(longer.starts_with(&text));
        let again = elsewhere.import(longer.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!((again.added, again.conversation.id), (1, id));
    });
}

/// Regression: calls and results in the shapes of Responses and Gemini came back as events, a refusal not at all, and the
/// model of a turn only if it was the assistant's.
#[test]
fn messages_of_every_shape_come_back_from_a_session_file() {
    on_both(|tenant| {
        let chat = tenant.create(NewConversation::default()).wait().unwrap();
        let turns = [
            json!({"role": "user", "content": "q"}),
            json!({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "why"}]}),
            json!({"type": "function_call", "call_id": "c7", "name": "run", "arguments": "{\"a\":1}"}),
            json!({"type": "function_call_output", "call_id": "c7", "output": "done"}),
            json!({"role": "assistant", "content": "ok"}),
            json!({"role": "model", "parts": [{"text": "I look"}, {"functionCall": {"name": "ls", "args": {"a": 1}}}]}),
            json!({"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"files": "x"}}}]}),
            json!({"role": "model", "parts": [{"text": "one file"}]}),
            json!({"role": "assistant", "content": "", "refusal": "I will not"}),
            json!({"type": "function_call", "call_id": "c8", "name": "run", "arguments": "{}", "timestamp": "2026-01-02T03:04:05Z"}),
            json!({"type": "function_call_output", "call_id": "c8", "output": "again"}),
            json!({"role": "user", "content": "and now?"}),
        ];
        for turn in turns {
            let turn = NewTurn { model: Some("m-1".into()), ..NewTurn::message(turn.to_string()) };
            chat.append(turn).wait().unwrap();
        }
        let text = exported(tenant, chat.id());
        assert!(session::check(text.as_bytes()).unwrap().is_ok());
        let elsewhere = Everturn::open("memory:").unwrap().tenant("other").unwrap();
        let imported = elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!((imported.problems, imported.turns), (Vec::<String>::new(), 12));
        let there = elsewhere.conversation(imported.conversation.id);
        assert_eq!(exported(&elsewhere, there.id()), text);
        for format in [Format::OpenaiChat, Format::OpenaiResponses, Format::Anthropic, Format::Gemini] {
            let messages = |chat: &ConversationHandle| {
                let mut list = Vec::new();
                chat.export(format, &mut list, &mut |_| {}).unwrap();
                String::from_utf8(list).unwrap()
            };
            assert_eq!(messages(&there), messages(&chat), "{format}");
        }
        let history = there.history(HistoryQuery::default()).unwrap();
        let models = history.data.into_iter().filter_map(|entry| match entry {
            HistoryEntry::Turn(turn) => Some(turn.model),
            HistoryEntry::Event(_) => None,
        });
        assert!(models.eq(vec![Some("m-1".to_string()); 12]));
        assert!(there.state().read().unwrap().pending_tools.is_empty());
    });
}

/// A message may look like a line that means something else.
#[test]
fn a_message_with_the_type_of_a_line_stays_what_its_author_said() {
    on_both(|tenant| {
        let chat = tenant.create(NewConversation::default()).wait().unwrap();
        let types = [
            "session_start",
            "session_end",
            "agent_message",
            "agent_tool_call",
            "tool_result",
            "photographer_message",
            "user_message",
            "message",
            "snapshot_created",
            "own",
        ];
        for name in types {
            let message = json!({"type": name, "timestamp": "2024-01-01T00:00:00Z", "role": "user", "content": format!("words {name}"), "tool": "x"});
            let turn = NewTurn { model: Some("m-1".into()), ..NewTurn::message(message.to_string()) };
            chat.append(turn.by("eve")).wait().unwrap();
        }
        let text = exported(tenant, chat.id());
        let elsewhere = Everturn::open("memory:").unwrap().tenant("other").unwrap();
        let imported = elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!(imported.turns, types.len() as u64, "{text}");
        let there = elsewhere.conversation(imported.conversation.id);
        let said = |chat: &ConversationHandle| -> Vec<_> {
            let history = chat.history(HistoryQuery::default()).unwrap();
            let turns = history.data.into_iter().filter_map(|entry| match entry {
                HistoryEntry::Turn(turn) => Some(turn),
                HistoryEntry::Event(_) => None,
            });
            let part = |turn: Box<everturn_engine::Turn>| {
                (turn.role, turn.actor, turn.model, turn.message.unwrap().get().to_string())
            };
            turns.map(part).collect()
        };
        assert_eq!(said(&there), said(&chat));
        assert_eq!(exported(&elsewhere, there.id()), text);
    });
}

/// An entry whose answer was lost, because the process that owned the store ended, is sent again to the next one.
#[test]
fn whatever_is_sent_again_under_its_key_happens_once() {
    on_both(|tenant| {
        let key = |name: &str| Some(name.to_string());
        let start = |subject: &'static str| {
            tenant.start_session(move |id, now| NewSession::about(subject, id, now), key("start"))
        };
        let chat = start("img_1").unwrap();
        assert_eq!(start("img_1").unwrap().id(), chat.id());
        refused(start("img_2").map(drop), "idempotency.reused", "different request");

        let log = |kind: &str, value: Value, name: &str| {
            chat.session().log(kind.into(), None, fields(value), key(name))
        };
        // The second time, no call waits for the result any more.
        let entries = [
            ("photographer_message", json!({"text": "warmer"})),
            ("agent_tool_call", json!({"tool": "crop", "parameters": {}})),
            ("tool_result", json!({"result": "ok"})),
            ("weather", json!({"sun": true})),
            ("agent_tool_call", json!({"tool": "blur", "parameters": {}})),
        ];
        for (n, (kind, value)) in entries.iter().enumerate() {
            let first = log(kind, value.clone(), &format!("entry {n}")).unwrap();
            let again = log(kind, value.clone(), &format!("entry {n}")).unwrap();
            assert_eq!((first.seq, first.turn), (again.seq, again.turn), "{kind}");
        }
        refused(log("weather", json!({"sun": false}), "entry 3"), "idempotency.reused", "different request");

        let end = |name: &str| chat.session().end(&fields(json!({"kept": 1})), key(name));
        let summary = end("end").unwrap();
        assert_eq!((summary.entries, summary.by_type["tool_result"]), (6, 2));
        assert_eq!(end("end").unwrap(), summary);
        refused(end("another end"), "session.ended", "start another");
        let kinds: Vec<String> = lines(&exported(tenant, chat.id()))
            .iter()
            .map(|line| line["type"].as_str().unwrap().to_string())
            .collect();
        let said = entries.iter().map(|(kind, _)| *kind);
        let expected: Vec<&str> =
            ["session_start"].into_iter().chain(said).chain(["tool_result", "session_end"]).collect();
        assert_eq!(kinds, expected);
    });
}

/// Regression: each of several calls at once wrote the results of calls without one, and some were refused.
#[test]
fn a_session_that_is_ended_several_times_at_once_ends_once() {
    on_both(|tenant| {
        let chat = tenant.start_session(|id, now| NewSession::about("img_1", id, now), None).unwrap();
        let call = json!({"tool": "crop", "parameters": {}});
        chat.session().log("agent_tool_call".into(), None, fields(call), None).unwrap();
        let end = || chat.session().end(&fields(json!({"kept": 1})), Some("end".into())).unwrap();
        let ends: Vec<_> = std::thread::scope(|threads| {
            let running: Vec<_> = (0..8).map(|_| threads.spawn(end)).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ends.iter().all(|summary| *summary == ends[0]), "{ends:?}");
        let results = lines(&exported(tenant, chat.id()));
        let results = results.iter().filter(|line| line["type"] == "tool_result");
        assert_eq!(results.count(), 1);
    });
}
