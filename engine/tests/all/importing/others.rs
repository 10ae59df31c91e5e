//! Files of other programs than Claude Code.

use super::{import, kept, said, stands};
use crate::stage::{Short, memory, refused};
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::id::ConversationId;
use everturn_core::turn::Role;
use everturn_engine::{Error, Format, HistoryEntry, HistoryQuery, ImportOptions, Imported, NewTurn, Tenant};
use serde_json::json;

fn rollout() -> Vec<String> {
    let line = |kind: &str, payload: serde_json::Value| {
        json!({"timestamp":"2026-01-02T03:04:05.678Z","type":kind,"payload":payload}).to_string()
    };
    vec![
        line("session_meta", json!({"id":"sess-1","cwd":"/work","cli_version":"0.146.0"})),
        line("event_msg", json!({"type":"user_message","message":"List the files"})),
        line(
            "response_item",
            json!({"type":"message","role":"user","content":[{"type":"input_text","text":"List the files"}]}),
        ),
        line("response_item", json!({"type":"reasoning","summary":[],"encrypted_content":"gAAA+/=="})),
        line(
            "response_item",
            json!({"type":"function_call","name":"shell","arguments":"{\"command\":[\"ls\"]}","call_id":"c1"}),
        ),
        line("response_item", json!({"type":"function_call_output","call_id":"c1","output":"a.txt"})),
        line("compacted", json!({"message":"There is one file."})),
        line(
            "response_item",
            json!({"type":"message","role":"assistant","content":[{"type":"output_text","text":"One file."}]}),
        ),
        line("event_msg", json!({"type":"agent_message","message":"One file."})),
    ]
}

/// Regression: another chat that was written to the path of the first was appended to it, and renamed it.
#[test]
fn another_chat_at_the_same_path_is_another_conversation() {
    let (_store, scope) = memory();
    let chat = |texts: &[&str]| {
        let said = |(n, text): (usize, &&str)| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": text});
        let system = json!({"role":"system","content":"Be brief."});
        let messages: Vec<_> = std::iter::once(system).chain(texts.iter().enumerate().map(said)).collect();
        let options = ImportOptions { name: Some("/chats/chat.json"), ..ImportOptions::default() };
        let file = serde_json::to_string(&messages).unwrap();
        scope.import_with(options, file.as_bytes(), &mut |_| {}).unwrap()
    };
    let first = chat(&["where is it?", "here"]).conversation.id;
    let second = chat(&["how much?", "four"]);
    assert_ne!(second.conversation.id, first);
    assert_eq!(second.conversation.title.as_deref(), Some("how much?"));
    assert_eq!(scope.conversation(first).get().unwrap().title.as_deref(), Some("where is it?"));
    // Each goes on where it ended, also where its beginning has been cut away or changed.
    for (texts, id, added) in [
        (&["how much?", "four", "why?"][..], second.conversation.id, 1),
        (&["where is it?", "here", "thanks"], first, 1),
        (&["Where is it?", "here", "thanks"], first, 1),
        (&["where is it?", "here", "thanks"], first, 0),
    ] {
        let report = chat(texts);
        assert_eq!((report.conversation.id, report.added), (id, added), "{texts:?}");
    }
    assert_eq!(said(&scope, second.conversation.id)[1..], ["user how much?", "assistant four", "user why?"]);
}

/// Regression: with a summary, the prompts that Codex kept word for word were left out.
#[test]
fn prompts_that_codex_kept_are_in_the_checkpoint() {
    let line = |kind: &str, payload: serde_json::Value| {
        json!({"timestamp":"2026-01-02T03:04:05.678Z","type":kind,"payload":payload}).to_string()
    };
    let user =
        |text: &str| json!({"type":"message","role":"user","content":[{"type":"input_text","text":text}]});
    let context = "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>";
    let lines = [
        line("session_meta", json!({"id":"cx-7","cwd":"/w","cli_version":"0.60.0"})),
        line("response_item", user("the port is 4711")),
        line(
            "response_item",
            json!({"type":"message","role":"assistant","content":[{"type":"output_text","text":"noted"}]}),
        ),
        line(
            "compacted",
            json!({"message":"They noted a port.","replacement_history":[
            user(context), user("the port is 4711"), user("Another model began this. They noted a port.")]}),
        ),
        line("response_item", user("which port?")),
    ];
    let (_store, scope) = memory();
    let id = import(&scope, &format!("{}\n", lines.join("\n"))).unwrap().conversation.id;
    let transcript: serde_json::Value =
        serde_json::from_str(&scope.conversation(id).transcript().unwrap()).unwrap();
    assert_eq!(transcript["summary"], "They noted a port.\n\nuser: the port is 4711");
}

#[test]
fn a_session_of_codex_is_one_conversation_with_its_items_byte_for_byte() {
    let lines = rollout();
    let (_store, whole) = memory();
    let report = import(&whole, &format!("{}\n", lines.join("\n"))).unwrap();
    let id = report.conversation.id;
    assert_eq!((&*report.format, report.events, report.turns, report.added), ("codex", 9, 5, 9));
    let all = [
        "user List the files",
        "assistant ",
        "assistant <tool_call:shell>",
        "tool <tool_result>",
        "assistant One file.",
    ];
    assert_eq!(said(&whole, id), all);
    assert!(stands(&whole, id)[1].contains(r#""encrypted_content":"gAAA+/==""#));
    assert_eq!(whole.conversation(id).get().unwrap().checkpoint.unwrap().turns_before, 4);
    assert_eq!(kept(&whole, id).len(), 4);
    // Codex does not say how large it was before: 0 would be wrong.
    let query = HistoryQuery { include_events: true, ..HistoryQuery::default() };
    let events = whole.conversation(id).history(query).unwrap().data;
    let compaction = events.iter().find_map(|entry| match entry {
        HistoryEntry::Event(event) if event.kind == "compaction" => event.text(),
        _ => None,
    });
    let body: serde_json::Value = serde_json::from_str(compaction.unwrap()).unwrap();
    assert!(body["tokens_before"].as_u64().unwrap() > 20, "{body}");
    let (_store, parts) = memory();
    for end in 1..=lines.len() {
        let report = import(&parts, &format!("{}\n", lines[..end].join("\n")));
        match end {
            1 | 2 => refused(report, "import.no_turns", "session_meta"),
            _ => assert!(report.is_ok(), "{report:?}"),
        }
    }
    assert_eq!(stands(&parts, id), stands(&whole, id));
    assert_eq!(kept(&parts, id), kept(&whole, id));
    assert_eq!(parts.conversation(id).get().unwrap().checkpoint.unwrap().turns_before, 4);
}

#[test]
fn a_message_of_gemini_cli_that_is_completed_takes_the_place_of_what_it_was() {
    let (_store, scope) = memory();
    let file = |messages: &[serde_json::Value]| {
        json!({"sessionId":"g","projectHash":"h","startTime":"t","messages":messages}).to_string()
    };
    let asked = json!({"id":"1","type":"user","content":"List files."});
    let call = json!({"id":"2","type":"gemini","content":"","toolCalls":[{"id":"t","name":"ls","args":{}}]});
    let mut answered = call.clone();
    answered["toolCalls"][0]["result"] = json!([{"functionResponse":{"response":{"output":"a.txt"}}}]);
    let said_last = json!({"id":"3","type":"gemini","content":"One file."});
    let early = file(&[asked.clone(), call]);
    let id = import(&scope, &early).unwrap().conversation.id;
    assert_eq!(said(&scope, id), ["user List files.", "assistant <tool_call:ls>"]);
    let late = file(&[asked, answered, said_last]);
    import(&scope, &late).unwrap();
    let all =
        ["user List files.", "assistant <tool_call:ls>", "tool <tool_result:ls>", "assistant One file."];
    assert_eq!(said(&scope, id), all);
    assert_eq!(scope.turns(id).len(), 5);
    assert_eq!(import(&scope, &late).unwrap().added, 0);
    // A copy from before changes nothing.
    import(&scope, &early).unwrap();
    assert_eq!(said(&scope, id), all);
    scope.conversation(id).log().verify(None).unwrap();
}

fn named(scope: &Tenant, name: &str, text: &str) -> Result<Imported, Error> {
    let options = ImportOptions { name: Some(name), ..ImportOptions::default() };
    scope.import_with(options, text.as_bytes(), &mut |_| {})
}

#[test]
fn lists_of_messages_are_told_apart_by_their_names() {
    let (_store, scope) = memory();
    let one = r#"[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}]"#;
    let more = r#"[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]"#;
    let a = named(&scope, "/a.json", one).unwrap();
    let b = named(&scope, "/b.json", one).unwrap();
    assert_ne!(a.conversation.id, b.conversation.id);
    let grown = named(&scope, "/a.json", more).unwrap();
    assert_eq!((grown.conversation.id, grown.added), (a.conversation.id, 1));
    assert_eq!(said(&scope, a.conversation.id), ["system Be brief.", "user hi", "assistant hello"]);
    // Without a name, two lists that begin alike may be two chats; only the same list is the same one.
    let c = import(&scope, one).unwrap();
    assert_eq!(import(&scope, one).unwrap().conversation.id, c.conversation.id);
    assert_ne!(import(&scope, more).unwrap().conversation.id, c.conversation.id);
    let report =
        import(&scope, "{\"role\":\"user\",\"content\":\"a\"}\n{\"role\":\"assistant\",\"content\":\"b\"}\n")
            .unwrap();
    assert_eq!((&*report.format, report.turns), ("messages", 2));
}

#[test]
fn what_is_none_of_the_formats_is_refused() {
    let (_store, scope) = memory();
    refused(import(&scope, ""), "import.empty", "the file is empty");
    assert!(import(&scope, "hello").is_err());
    assert!(import(&scope, "[1,2]").is_err());
    refused(
        import(&scope, "{\"parentUuid\":null,\"type\":\"user\",\"mess"),
        "import.nothing",
        "cut off at byte 0",
    );
    assert_eq!(scope.list(Default::default()).unwrap().data.len(), 0);
}

/// A file of events alone left a conversation in which nothing was said.
#[test]
fn a_file_without_turns_leaves_no_conversation_and_is_reported() {
    let (_store, scope) = memory();
    let meta = json!({"timestamp":"t","type":"session_meta","payload":{"id":"empty"}});
    let note = |n: usize| json!({"timestamp":"t","type":"event_msg","payload":{"type":"note","n":n}});
    let mut text = format!("{meta}\n");
    for events in [0, 3, 3000] {
        text.extend((0..events).map(|n| format!("{}\n", note(n))));
        refused(import(&scope, &text), "import.no_turns", "a file of codex without turns");
        assert_eq!(scope.list(Default::default()).unwrap().data.len(), 0);
    }
    // Nothing of it is lost once somebody says something.
    text += &format!(
        "{}\n",
        json!({"timestamp":"t","type":"response_item","payload":{"type":"message","role":"user","content":"hi"}})
    );
    let report = import(&scope, &text).unwrap();
    assert_eq!((report.turns, report.added), (1, 3005));
    assert_eq!(kept(&scope, report.conversation.id).len(), 3004);
    assert_eq!(import(&scope, &text).unwrap().added, 0);
    // From now on events alone are added to it.
    text += &format!("{}\n", note(9999));
    let tail: Vec<&str> = text.lines().collect();
    let end = format!("{meta}\n{}\n", tail[tail.len() - 1]);
    assert_eq!(import(&scope, &end).unwrap().added, 1);
}

/// A session file of another program whose lines nobody here knows made an error of 441 KB.
#[test]
fn a_file_of_unknown_lines_is_refused_in_few_words() {
    let (_store, scope) = memory();
    let line = json!({"kind":"x","text":"y".repeat(100)});
    let text = format!("{}\n{}", json!({"event":"session_start"}), format!("{line}\n").repeat(5000));
    for text in [text.as_str(), &text[text.find('\n').unwrap() + 1..]] {
        let error = import(&scope, text).unwrap_err();
        assert!(error.text().len() < 600, "{} bytes: {}", error.text().len(), &error.text()[..600]);
    }
}

#[test]
fn another_tenant_has_the_same_session_for_itself() {
    let (store, scope) = memory();
    let text = format!("{}\n", rollout().join("\n"));
    let id = import(&scope, &text).unwrap().conversation.id;
    let other = store.tenant("other").unwrap();
    let report = import(&other, &text).unwrap();
    assert_eq!((report.conversation.id, report.added), (id, 9));
    assert_eq!(stands(&other, id), stands(&scope, id));
    assert_ne!(other.turns(id)[0].id, scope.turns(id)[0].id);
}

#[test]
fn a_file_with_a_conversation_a_line_gives_all_of_them() {
    let (_store, scope) = memory();
    let line = |n: usize| json!({"messages":[{"role":"user","content":format!("question {n}")},{"role":"assistant","content":"yes"}]});
    let text: String = (0..450).map(|n| format!("{}\n", line(n))).collect();
    let report = import(&scope, &text).unwrap();
    assert_eq!((report.turns, report.added, report.linked.len()), (900, 900, 449));
    assert_eq!(said(&scope, report.linked[448]), ["user question 449", "assistant yes"]);
    let again = import(&scope, &text).unwrap();
    assert_eq!((again.added, again.linked), (0, report.linked));
}

/// A conversation with everything that a provider's format can say.
fn talk(scope: &Tenant) -> ConversationId {
    let prompt = Some(Some(SystemPrompt::new("You plan trips.".into())));
    let id = scope.begin_with(Settings { system_prompt: prompt, ..Settings::default() }).id;
    for message in [
        json!({"role":"system","content":"Be brief."}),
        json!({"role":"user","content":"Which flights are there?"}),
        json!({"role":"assistant","content":[{"type":"thinking","thinking":"Direct ones.","signature":"c2ln"},
            {"type":"text","text":"I look."},
            {"type":"tool_use","id":"toolu_1","name":"search","input":{"to":"OPO"}}]}),
        json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"TP 567"}]}),
        json!({"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}},
            {"type":"text","text":"And this?"}]}),
        json!({"role":"assistant","content":"That is a map."}),
        // The last line of an exported file reads like a message alone.
        json!({"role":"user","content":"Thanks."}),
    ] {
        scope.say(id, NewTurn::message(message.to_string()));
    }
    id
}

fn exported(scope: &Tenant, id: ConversationId, format: Format) -> String {
    let mut out = Vec::new();
    scope.conversation(id).export(format, &mut out, &mut |_| {}).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn what_was_exported_for_a_provider_comes_back_and_is_exported_equal() {
    let formats = [Format::OpenaiChat, Format::OpenaiResponses, Format::Anthropic, Format::Gemini];
    for there in formats {
        let (_store, scope) = memory();
        let file = exported(&scope, talk(&scope), there);
        let name = format!("/{there}.json");
        let report = named(&scope, &name, &file).unwrap();
        assert_eq!(report.problems, [""; 0], "{there}");
        assert_eq!(report.format, there.as_str());
        let id = report.conversation.id;
        assert_eq!(exported(&scope, id, there), file, "{there} and back");
        assert_eq!(named(&scope, &name, &file).unwrap().added, 0, "{there} again");
        let words = said(&scope, id).join(" ");
        for word in ["Which flights", "<tool_call:search>", "That is a map.", "<image"] {
            assert!(words.contains(word), "{there}: {word} in {words}");
        }
        // On to every other provider, and back from there.
        for next in formats {
            let (_store, other) = memory();
            let onward = exported(&scope, id, next);
            let back = named(&other, "/next.json", &onward).unwrap();
            assert_eq!(exported(&other, back.conversation.id, next), onward, "{there} to {next}");
            assert!(onward.contains("You plan trips."), "{there} to {next}: {onward}");
        }
    }
}

#[test]
fn a_session_that_was_deleted_stays_deleted() {
    let (store, scope) = memory();
    let lines = rollout();
    let (early, late) = (format!("{}\n", lines[..4].join("\n")), format!("{}\n", lines.join("\n")));
    let id = import(&scope, &early).unwrap().conversation.id;
    scope.conversation(id).delete("private").wait().unwrap();
    refused(import(&scope, &late), "import.deleted", "was deleted on");
    assert_eq!(scope.list(Default::default()).unwrap().data.len(), 0);
    // Whoever wants it again has it elsewhere.
    assert_eq!(import(&store.tenant("other").unwrap(), &late).unwrap().added, 9);
}

/// Calls of models with their tokens, which the head of a page names, too.
fn spent(scope: &Tenant, id: ConversationId) -> (u64, u64, u64) {
    let all = scope.token_usage(3660, Some(id)).unwrap().days;
    let sum =
        |number: fn(&everturn_engine::Spent) -> u64| all.iter().map(|day| number(&day.spent)).sum::<u64>();
    let (calls, prompt, completion) = (sum(|it| it.calls), sum(|it| it.prompt), sum(|it| it.completion));
    let page = exported(scope, id, Format::Html).replace(',', "");
    assert!(
        page.contains(&format!("<dt>Tokens</dt><dd>{prompt} in {completion} out</dd>")),
        "{prompt} {completion}"
    );
    (calls, prompt, completion)
}

/// Regression: a message that was imported before it was whole was counted again with each of its versions.
#[test]
fn tokens_of_a_message_count_once_however_often_its_file_was_imported() {
    let prefixes = |lines: &[String]| -> Vec<String> {
        (2..=lines.len()).map(|end| lines[..end].iter().map(|line| format!("{line}\n")).collect()).collect()
    };
    let claude = prefixes(&super::session().lines);

    let gemini = |messages: serde_json::Value| {
        json!({"sessionId":"g","projectHash":"h","startTime":"2026-01-01T00:00:00Z","messages":messages})
            .to_string()
    };
    let asked = json!({"id":"1","timestamp":"2026-01-01T00:00:00Z","type":"user","content":"List files."});
    let mut call = json!({"id":"2","timestamp":"2026-01-01T00:00:01Z","type":"gemini","content":"","model":"pro",
        "tokens":{"input":10,"output":2},"toolCalls":[{"id":"t","name":"ls","args":{}}]});
    let early = gemini(json!([asked, call]));
    call["toolCalls"][0]["result"] = json!([{"functionResponse":{"response":{"output":"a.txt"}}}]);
    call["tokens"] = json!({"input":10,"output":3});
    let gemini = vec![early, gemini(json!([asked, call]))];

    let opencode = |parts: serde_json::Value, input: u64| {
        let info = |id: &str, role: &str| json!({"id":id,"sessionID":"s","role":role,"modelID":"m","time":{"created":1_767_322_800_000_u64}});
        let mut answer = info("m2", "assistant");
        answer["tokens"] = json!({"input":input,"output":5});
        let asked =
            json!({"info":info("m1", "user"),"parts":[{"type":"text","text":"List","messageID":"m1"}]});
        json!({"info":{"id":"s","directory":"/w"},"messages":[asked, {"info":answer,"parts":parts}]})
            .to_string()
    };
    let text = |text: &str| json!({"type":"text","text":text,"messageID":"m2"});
    let tool = |state: serde_json::Value| json!({"type":"tool","callID":"c","tool":"ls","state":state});
    let ran = json!({"status":"completed","input":{},"output":"a.txt"});
    let opencode = vec![
        opencode(json!([text("I look"), tool(json!({"status":"running","input":{}}))]), 10),
        opencode(json!([text("I look for it"), tool(ran.clone())]), 10),
        opencode(json!([text("I look for it"), tool(ran), text("One file.")]), 30),
    ];

    let event = |event: serde_json::Value| json!({"type":"context.append_loop_event","event":event,"time":1_785_612_800_000_u64});
    let usage = json!({"inputOther":9,"output":4});
    let kimi = [
        json!({"type":"metadata","protocol_version":"1.4","created_at":1}),
        json!({"type":"context.append_message","message":{"role":"user","content":"List"},"time":1_785_612_800_000_u64}),
        event(json!({"type":"step.begin","uuid":"st"})),
        event(json!({"type":"content.part","stepUuid":"st","part":{"type":"text","text":"I look."}})),
        event(json!({"type":"tool.call","stepUuid":"st","toolCallId":"c","name":"ls","args":{}})),
        event(json!({"type":"tool.result","toolCallId":"c","result":{"output":"a.txt"}})),
        event(json!({"type":"step.end","uuid":"st","usage":usage})),
        event(json!({"type":"step.begin","uuid":"st2"})),
        event(json!({"type":"content.part","stepUuid":"st2","part":{"type":"text","text":"One file."}})),
        event(json!({"type":"step.end","uuid":"st2","usage":usage})),
    ];
    let kimi = prefixes(&kimi.map(|line| line.to_string()));

    for versions in [claude, gemini, opencode, kimi] {
        let (_whole, whole) = memory();
        let id = import(&whole, versions.last().unwrap()).unwrap().conversation.id;
        let (_store, scope) = memory();
        for version in &versions {
            import(&scope, version).unwrap();
            // What was counted so far is remembered.
            scope.token_usage(3660, Some(id)).unwrap();
        }
        let counted = spent(&whole, id);
        assert!(counted.1 > 0);
        assert_eq!(spent(&scope, id), counted, "{}", versions.last().unwrap());
        assert_eq!(import(&scope, versions.last().unwrap()).unwrap().added, 0);
    }
}

/// Regression: an older copy of a file put an older version in the place of a newer one; an erased turn came back, and an
/// edited one was said twice, when the file had grown.
#[test]
fn an_older_copy_changes_nothing_and_what_was_changed_here_stays() {
    let message = |id: &str, role: &str, parts: serde_json::Value| {
        json!({"info":{"id":id,"sessionID":"s","role":role,"modelID":"m","time":{"created":1_767_322_800_000_u64},
            "tokens":{"input":10,"output":5}},"parts":parts})
    };
    let text = |text: &str| json!({"type":"text","text":text,"messageID":"m"});
    let tool = json!({"type":"tool","callID":"c","tool":"ls","state":{"status":"completed","input":{},"output":"a.txt"}});
    let file = |parts: &[serde_json::Value]| {
        let messages =
            [message("m1", "user", json!([text("List")])), message("m2", "assistant", json!(parts))];
        json!({"info":{"id":"s","directory":"/w"},"messages":messages}).to_string()
    };
    let opencode = [
        file(&[text("I look")]),
        file(&[text("I look for it"), tool.clone()]),
        file(&[text("I look for it"), tool, text("One file.")]),
    ];
    let event = |event: serde_json::Value| json!({"type":"context.append_loop_event","event":event,"time":1_785_612_800_000_u64});
    let part =
        |text: &str| event(json!({"type":"content.part","stepUuid":"st","part":{"type":"text","text":text}}));
    let lines = [
        json!({"type":"metadata","protocol_version":"1.4","created_at":1}),
        json!({"type":"context.append_message","message":{"role":"user","content":"List"},"time":1_785_612_800_000_u64}),
        event(json!({"type":"step.begin","uuid":"st"})),
        part("I look"),
        part(" for it."),
        event(json!({"type":"step.end","uuid":"st","usage":{"inputOther":9,"output":4}})),
    ];
    let kimi = [4, 5, 6].map(|end| lines[..end].iter().map(|line| format!("{line}\n")).collect::<String>());

    for versions in [opencode, kimi] {
        let (_store, scope) = memory();
        let id = import(&scope, &versions[2]).unwrap().conversation.id;
        let whole = (said(&scope, id), spent(&scope, id));
        assert_eq!(import(&scope, &versions[1]).unwrap().added, 0, "an older copy");
        assert_eq!((said(&scope, id), spent(&scope, id)), whole);

        for erases in [false, true] {
            let (_store, scope) = memory();
            let id = import(&scope, &versions[0]).unwrap().conversation.id;
            let chat = scope.conversation(id);
            let page = chat.history(Default::default()).unwrap().data;
            let answer = page.iter().find_map(|entry| match entry {
                HistoryEntry::Turn(turn) if turn.role == Role::Assistant => Some(turn.id),
                _ => None,
            });
            match erases {
                true => drop(chat.erase(answer.unwrap(), None, "private").wait().unwrap()),
                false => {
                    drop(chat.supersede(answer.unwrap(), NewTurn::assistant("By hand.")).wait().unwrap())
                }
            }
            let report = import(&scope, &versions[2]).unwrap();
            assert!(report.problems[0].contains("erased or edited here"), "{:?}", report.problems);
            let words = match erases {
                true => exported(&scope, id, Format::Markdown),
                false => said(&scope, id).join("\n"),
            };
            assert!(!words.contains("I look") && words.contains("By hand.") != erases, "{words}");
        }
    }
}

/// Another answer to the same prompt is a second call of the model.
#[test]
fn an_answer_that_another_took_the_place_of_was_paid_for() {
    let (_store, scope) = memory();
    let mut file = super::Claude::default();
    file.user("u1", None, "List the files");
    file.say("a1", Some("u1"), "None.");
    let id = import(&scope, &file.text()).unwrap().conversation.id;
    assert_eq!(spent(&scope, id), (1, 103, 5));
    file.say("a2", Some("u1"), "One.");
    import(&scope, &file.text()).unwrap();
    assert_eq!(said(&scope, id), ["user List the files", "assistant One."]);
    assert_eq!(spent(&scope, id), (2, 206, 10));
}
