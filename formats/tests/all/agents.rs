//! Every rule of the importers, on small files in the shapes that programs write.

use everturn_core::id::ConversationId;
use everturn_formats::agents::{
    self, AgentEntry, AgentFormat, EntryContent, FileProblem, ImportOrigin, Opened, ParsedTurn, open,
};
use serde_json::{Value, json};
use std::io::Write;

/// Everything that was read from a file.
pub struct Read {
    pub format: AgentFormat,
    pub entries: Vec<AgentEntry>,
    pub threads: Vec<(ConversationId, ImportOrigin)>,
    pub problems: Vec<FileProblem>,
    pub lines: u64,
}

/// Reads a file; `None` if it is none of the formats.
pub fn read(bytes: &[u8]) -> Option<Read> {
    let Opened::Agent(mut reader) = open(bytes, None).unwrap() else { return None };
    let entries = reader.by_ref().map(Result::unwrap).collect();
    let threads = reader.threads().iter().map(|thread| (thread.id, thread.origin.clone())).collect();
    let problems = reader.problems();
    Some(Read { format: reader.format(), entries, threads, problems, lines: reader.lines() })
}

fn lines(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn turns(read: &Read) -> Vec<&ParsedTurn> {
    read.entries
        .iter()
        .filter_map(|entry| match &entry.step {
            EntryContent::Turn(said) => Some(&**said),
            _ => None,
        })
        .collect()
}

fn messages(read: &Read) -> Vec<Value> {
    turns(read).iter().map(|said| serde_json::from_str(&said.message).unwrap()).collect()
}

/// The types of what is no turn.
fn kept(read: &Read) -> Vec<&str> {
    read.entries
        .iter()
        .filter_map(|entry| match &entry.step {
            EntryContent::Event { what, .. } | EntryContent::Compaction { what, .. } => Some(what.as_str()),
            EntryContent::Turn(_) | EntryContent::System(_) => None,
        })
        .collect()
}

#[test]
fn the_content_tells_the_format() {
    let cases: [(Option<&str>, &str); 46] = [
        (
            Some("claude-code"),
            r#"{"type":"user","uuid":"u","sessionId":"s","message":{"role":"user","content":"x"}}"#,
        ),
        (Some("claude-code"), r#"{"type":"summary","summary":"x","leafUuid":"u"}"#),
        (
            Some("claude-code"),
            "{\"type\":\"system\",\"subtype\":\"session_start\",\"sessionId\":\"s\",\"uuid\":\"u\"}",
        ),
        (Some("codex"), r#"{"timestamp":"t","type":"session_meta","payload":{"id":"i"}}"#),
        (Some("codex"), r#"{"id":"i","timestamp":"t","instructions":null}"#),
        (Some("codex"), r#"{"record_type":"state"}"#),
        (Some("gemini-cli"), r#"{"sessionId":"s","projectHash":"h","startTime":"t","kind":"main"}"#),
        (Some("gemini-cli"), "{\n  \"sessionId\": \"s\",\n  \"projectHash\": \"h\",\n  \"messages\": [\n"),
        (Some("openai-chat"), r#"[{"role":"user","content":"x"}]"#),
        (
            Some("openai-responses"),
            r#"[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}]"#,
        ),
        (Some("openai-responses"), r#"{"type":"function_call","call_id":"c","name":"n","arguments":"{}"}"#),
        (
            Some("anthropic"),
            r#"[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"n","input":{}}]}]"#,
        ),
        (Some("openai-chat"), "{\"model\":\"m\",\n\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"),
        // Over several lines, the last of which could also stand alone.
        (Some("openai-chat"), "{\"messages\":[\n{\"role\":\"user\",\"content\":\"x\"}\n]}\n"),
        (
            Some("anthropic"),
            "{\"system\":[{\"type\":\"text\",\"text\":\"s\"}],\n\"messages\":[\n{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"n\",\"input\":{}}]}\n]}",
        ),
        (Some("gemini"), "{\"contents\":[\n{\"role\":\"user\",\"parts\":[{\"text\":\"x\"}]}\n]}\n"),
        (
            Some("gemini"),
            r#"{"contents":[{"parts":[{"text":"x"}]}],"systemInstruction":{"parts":[{"text":"s"}]}}"#,
        ),
        (Some("gemini"), r#"[{"parts":[{"text":"x"}]}]"#),
        // A line that was not written to its end is not the beginning of a value.
        (Some("messages"), "{\"role\":\"user\",\n{\"role\":\"user\",\"content\":\"x\"}\n"),
        (Some("messages"), r#"{"role":"user","content":"x"}"#),
        (None, r#"{"type":"session_start","session_id":"u"}"#),
        (None, r#"{"_type":"transcript","version":2,"messages":[{"role":"user","content":"x"}]}"#),
        (None, r#"{"contents":[{"role":"template","name":"x"}]}"#),
        // The log that Droid prints, and a journal of another program: "claude-code" and "codex" without turns.
        (
            None,
            r#"{"type":"message","sessionId":"s","timestamp":1767812641000,"role":"user","text":"x","id":"m1"}"#,
        ),
        (
            None,
            r#"{"schema_version":1,"id":"i","record_type":"event","payload_type":"runtime.session","payload":{"kind":"x"}}"#,
        ),
        (Some("claude-code"), r#"{"type":"queue-operation","operation":"enqueue","sessionId":"s"}"#),
        (None, "[1,2,3]"),
        // A prompt of another agent, and no list of messages.
        (None, r#"{"type":"turn.prompt","input":[{"type":"text","text":"hi"}],"time":1}"#),
        // Two values on a line.
        (
            Some("qwen-code"),
            r#"{"uuid":"1","sessionId":"s","type":"user","message":{"parts":[{"text":"x"}]}}{"uuid":"2","sessionId":"s"}"#,
        ),
        // Whole conversations, as ChatGPT exports them: "gemini without turns".
        (
            None,
            r#"[{"title":"T","mapping":{"a":{"message":{"author":{"role":"user"},"content":{"parts":["hi"]}}}}}]"#,
        ),
        // Regression: accounts were a conversation of empty turns, and any objects with a type, and lines of a log, files of
        // an agent without turns.
        (None, r#"[{"id":1,"role":"user","name":"Ann","email":"a@x"},{"id":2,"role":"user","name":"Bob"}]"#),
        (None, r#"{"messages":[{"id":1,"role":"user","name":"Ann"}]}"#),
        (None, "{\"messages\":[\n{\"id\":1,\"role\":\"user\",\"name\":\"Ann\"}\n]}"),
        (None, r#"[{"foo":0,"type":"thing0"},{"foo":1,"type":"thing1"}]"#),
        (None, r#"[{"type":"Feature","geometry":{"type":"Point","coordinates":[1"#),
        (None, r#"[{"type":"post","content":"hello"},{"type":"comment","content":"nice"}]"#),
        (None, r#"{"type":"user","message":"user logged in","timestamp":"2026-01-01T00:00:00Z"}"#),
        (None, r#"{"type":"user","uuid":"u","name":"Ann"}"#),
        // The first element of a list need not say anything.
        (Some("openai-chat"), r#"[{"note":1},{"role":"user","content":"x"}]"#),
        (Some("openai-chat"), r#"[{"role":"assistant","tool_calls":[]}]"#),
        (Some("openai-responses"), r#"[{"type":"message","role":"user","content":["#),
        // A log.
        (None, "[2026-01-01 10:00:00] INFO started {\"type\":\"x\",\"role\":\"user\"}"),
        (None, "[{INFO}] \"role\" \"type\""),
        (None, "hello"),
        (None, "{}"),
        (None, ""),
    ];
    for (expected, text) in cases {
        let detected = everturn_formats::agents::detect(text.as_bytes());
        assert_eq!(detected.map(AgentFormat::name), expected, "{text}");
        let marked = format!("\u{feff}\n{text}\n");
        let detected = everturn_formats::agents::detect(marked.as_bytes());
        assert_eq!(detected.map(AgentFormat::name), expected, "with a byte order mark: {text}");
    }
}

#[test]
fn a_file_of_no_known_format_is_described_in_one_short_line() {
    let long = format!("{{\"{}\":1}}", "x".repeat(60_000));
    for (head, looks) in [
        (r#"{"ts":1,"level":"info","msg":"hi"}"#, "a JSON object with \"ts\", \"level\", \"msg\";"),
        ("{\"ts\":1}\n{\"ts\":2}\n", "JSON objects, the first with \"ts\";"),
        ("{}", "a JSON object without fields;"),
        ("[{\"a\":1}]", "a JSON list of objects, the first with \"a\";"),
        ("[{\"id\":1,\"role\":\"user\"}]", "a JSON list of objects, the first with \"id\", \"role\";"),
        (
            "[{\"title\":\"T\",\"mapping\":{\"a\":{",
            "a JSON list of objects, the first with \"title\", \"mapping\";",
        ),
        ("[2026-01-01] INFO", "text that is not JSON, beginning with \"[2026-01-01] INFO\";"),
        ("PK\u{3}\u{4}\0\0", "binary data;"),
        ("{\"a\":{", "a JSON object, long or cut off, with \"a\";"),
        ("{\"a\":{\"b\":\"c\\\": {\"},\"d\":[", "long or cut off, with \"a\", \"d\";"),
        ("{", "a JSON object, long or cut off;"),
        (&long, "a JSON object with"),
    ] {
        let error = everturn_formats::agents::unknown(head.as_bytes());
        assert!(error.text().contains(looks), "{head}: {error}");
        assert!(error.text().contains("known are claude-code, codex, gemini-cli"), "{error}");
        assert!(error.text().len() < 500 && !error.text().contains('\n'), "{error}");
    }
}

fn rollout() -> Vec<Value> {
    let at = "2026-01-02T03:04:05.678Z";
    let line = |kind: &str, payload: Value| json!({"timestamp":at,"type":kind,"payload":payload});
    vec![
        line(
            "session_meta",
            json!({"id":"sess-1","cwd":"/work","cli_version":"0.146.0","git":{"branch":"main"}}),
        ),
        line("turn_context", json!({"model":"gpt-5","cwd":"/work"})),
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
        line(
            "response_item",
            json!({"type":"message","role":"assistant","content":[{"type":"output_text","text":"One file."}]}),
        ),
        line("event_msg", json!({"type":"agent_message","message":"One file."})),
        line("event_msg", json!({"type":"token_count","info":null})),
        line("response_item", json!({"type":"ghost_snapshot","ghost_commit":{}})),
        line(
            "compacted",
            json!({"message":"","replacement_history":[{"type":"message","role":"user","content":[{"type":"input_text","text":"There is one file."}]}]}),
        ),
    ]
}

#[test]
fn codex_items_are_turns_and_what_the_screen_showed_is_not_said_twice() {
    let text = lines(&rollout());
    let read = read(text.as_bytes()).unwrap();
    assert_eq!((read.format, read.lines, read.problems.len()), (AgentFormat::Codex, 12, 0));
    let said = messages(&read);
    assert_eq!(said.len(), 5);
    // As they came, byte for byte.
    let payload = rollout()[4]["payload"].to_string();
    assert_eq!(turns(&read)[1].message, payload);
    assert_eq!(said[2]["arguments"], r#"{"command":["ls"]}"#);
    assert_eq!(turns(&read)[4].model.as_deref(), Some("gpt-5"));
    assert_eq!(turns(&read)[0].model, None);
    assert_eq!(
        kept(&read),
        [
            "session_meta",
            "turn_context",
            "event_msg/user_message",
            "event_msg/agent_message",
            "event_msg/token_count",
            "response_item/ghost_snapshot",
            "compacted"
        ]
    );
    let EntryContent::Compaction { summary, .. } = &read.entries.last().unwrap().step else { panic!() };
    assert_eq!(summary, "user: There is one file.");
    let (_, origin) = &read.threads[0];
    assert_eq!((origin.session.as_deref(), origin.cwd.as_deref()), (Some("sess-1"), Some("/work")));
    assert_eq!((origin.git_branch.as_deref(), origin.version.as_deref()), (Some("main"), Some("0.146.0")));
    assert!(read.entries.iter().any(|entry| entry.title.as_deref() == Some("List the files")));
    assert_eq!(read.entries[0].at.unwrap().to_string(), "2026-01-02T03:04:05.678000Z");
}

#[test]
fn codex_files_from_before_there_were_envelopes() {
    let text = lines(&[
        json!({"id":"old-1","timestamp":"2025-05-01T00:00:00.000Z","instructions":"be brief"}),
        json!({"record_type":"state"}),
        json!({"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}),
        json!({"type":"function_call","name":"shell","arguments":"{}","call_id":"c"}),
        json!({"type":"function_call_output","call_id":"c","output":"{\"output\":\"x\"}"}),
    ]);
    let old = read(text.as_bytes()).unwrap();
    assert_eq!((old.format, turns(&old).len()), (AgentFormat::Codex, 3));
    assert_eq!(kept(&old), ["session", "record"]);
    assert_eq!(old.threads[0].1.session.as_deref(), Some("old-1"));
    // The same session in the new form is the same conversation.
    let new =
        read(lines(&[json!({"timestamp":"t","type":"session_meta","payload":{"id":"old-1"}})]).as_bytes());
    assert_eq!(new.unwrap().threads[0].0, old.threads[0].0);
}

#[test]
fn a_codex_file_without_items_is_read_by_what_the_screen_showed() {
    let event = |kind: &str, text: &str| json!({"timestamp":"2026-01-01T00:00:00Z","type":"event_msg","payload":{"type":kind,"message":text}});
    let file = [
        json!({"timestamp":"2026-01-01T00:00:00Z","type":"session_meta","payload":{"id":"e"}}),
        event("user_message", "hi"),
        event("agent_message", "hello"),
        event("user_message", "bye"),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    let said: Vec<Value> = messages(&read).iter().map(|message| message["content"].clone()).collect();
    assert_eq!(said, ["hi", "hello", "bye"]);
}

#[test]
fn a_subagent_of_codex_names_the_thread_that_it_worked_for() {
    let meta = json!({"id":"child","parent_thread_id":"sess-1","source":{"subagent":{"thread_spawn":{"agent_nickname":"Ada"}}}});
    let child =
        read(lines(&[json!({"timestamp":"t","type":"session_meta","payload":meta})]).as_bytes()).unwrap();
    let parent = read(lines(&rollout()).as_bytes()).unwrap();
    assert_eq!(child.threads[0].1.parent, Some(parent.threads[0].0));
    assert_eq!(child.threads[0].1.agent.as_deref(), Some("Ada"));
}

fn counted(total: u64, output: u64) -> Value {
    let usage = |input: u64| json!({"input_tokens":input,"output_tokens":output});
    json!({"timestamp":"t","type":"event_msg","payload":{"type":"token_count",
        "info":{"total_token_usage":usage(total),"last_token_usage":usage(10)}}})
}

/// A session that began in another one was two conversations, of 1 and of 117 turns; and its subagents named a third one.
#[test]
fn a_session_that_goes_on_in_another_is_one_conversation() {
    let line = |uuid: &str, parent: Option<&str>, session: &str, side: bool| {
        json!({"type":"user","uuid":uuid,"parentUuid":parent,"sessionId":session,"isSidechain":side,"cwd":"/w",
            "agentId":side.then_some("ada"),"message":{"role":"user","content":uuid}})
    };
    let file = lines(&[
        line("a1", None, "first", false),
        line("b1", Some("a1"), "second", false),
        line("c1", None, "second", true),
        line("b2", Some("b1"), "second", false),
    ]);
    let threads = |name: Option<&str>| {
        let Opened::Agent(mut reader) = open(file.as_bytes(), name).unwrap() else { panic!() };
        let entries: Vec<usize> = reader.by_ref().map(|entry| entry.unwrap().thread).collect();
        let threads: Vec<_> =
            reader.threads().iter().map(|thread| (thread.id, thread.origin.clone())).collect();
        assert_eq!((entries, threads.len()), (vec![0, 0, 1, 0], 2));
        assert_eq!(threads[1].1.parent, Some(threads[0].0));
        threads[0].0
    };
    let alone =
        |session: &str| read(lines(&[line("x", None, session, false)]).as_bytes()).unwrap().threads[0].0;
    // The file's name says which session it is; without one, it is the first.
    assert_eq!(threads(Some("/home/x/second.jsonl")), alone("second"));
    assert_eq!(threads(None), alone("first"));
    assert_eq!(threads(Some("/home/x/other.jsonl")), alone("first"));
}

#[test]
fn pi_sessions_are_read_with_their_branches() {
    let entry = |id: &str, parent: Option<&str>, message: Value| json!({"type":"message","id":id,"parentId":parent,"timestamp":"2026-01-02T03:04:05.000Z","message":message});
    let call = json!({"type":"toolCall","id":"c1","name":"bash","arguments":{"command":"ls"},"thoughtSignature":"x"});
    let answer = json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},call],"provider":"openai",
        "model":"gpt-5","usage":{"input":10,"output":7,"cacheRead":5,"cacheWrite":0},"stopReason":"toolUse"});
    let file = [
        json!({"type":"session","version":3,"id":"pi-1","timestamp":"2026-01-02T03:04:05.000Z","cwd":"/work"}),
        json!({"type":"model_change","id":"e0","parentId":null,"timestamp":"t","provider":"openai","modelId":"gpt-5"}),
        entry(
            "e1",
            Some("e0"),
            json!({"role":"user","content":[{"type":"text","text":"List the files"},
            {"type":"image","data":"aGk=","mimeType":"image/png"}],"timestamp":1}),
        ),
        entry("e2", Some("e1"), answer),
        entry(
            "e3",
            Some("e2"),
            json!({"role":"toolResult","toolCallId":"c1","toolName":"bash",
            "content":[{"type":"text","text":"no such folder"}],"isError":true,"details":{"n":1}}),
        ),
        json!({"type":"compaction","id":"e4","parentId":"e3","timestamp":"t","summary":"One folder is missing.","tokensBefore":99}),
        entry("e5", Some("e4"), json!({"role":"user","content":"go on"})),
        entry("e6", Some("e3"), json!({"role":"user","content":"something else"})),
        json!({"type":"session_info","id":"e7","parentId":"e6","timestamp":"t","name":"Files"}),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    assert_eq!((read.format.name(), read.lines, read.problems.len()), ("pi", 9, 0));
    let origin = &read.threads[0].1;
    assert_eq!((origin.session.as_deref(), origin.cwd.as_deref()), (Some("pi-1"), Some("/work")));
    assert_eq!(
        messages(&read),
        [
            json!({"role":"user","content":[{"type":"text","text":"List the files"},
                {"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}}]}),
            json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},
                {"type":"tool_call","id":"c1","name":"bash","arguments":{"command":"ls"},"thoughtSignature":"x"}]}),
            json!({"role":"tool","content":[{"type":"tool_result","tool_use_id":"c1","name":"bash",
                "content":[{"type":"text","text":"no such folder"}],"is_error":true}]}),
            json!({"role":"user","content":"go on"}),
            json!({"role":"user","content":"something else"}),
        ]
    );
    let said = turns(&read);
    let tokens = said[1].tokens.unwrap();
    assert_eq!(
        (said[1].model.as_deref(), tokens.prompt, tokens.completion),
        (Some("gpt-5"), Some(15), Some(7))
    );
    assert!(said[2].metadata["pi"].get().contains("\"details\":{\"n\":1}"));
    assert_eq!(said[4].supersedes.len(), 1, "it leaves what was said after the result");
    assert_eq!(kept(&read), ["session", "model_change", "compaction", "session_info"]);
    let titles: Vec<&str> = read.entries.iter().filter_map(|entry| entry.title.as_deref()).collect();
    assert_eq!(titles, ["List the files", "Files"]);
}

/// The first versions of pi had no ids: what a compaction kept was counted in lines, the header being line 0. It was hidden.
#[test]
fn what_the_first_versions_of_pi_kept_is_found_by_its_line() {
    let said = |role: &str, text: &str| json!({"type":"message","timestamp":"2025-12-08T10:00:01Z","message":{"role":role,"content":[{"type":"text","text":text}]}});
    let shell = json!({"type":"message","timestamp":"2025-12-08T10:00:01Z","message":{"role":"bashExecution","command":"ls","output":"a.txt","exitCode":0,"cancelled":false}});
    let file = [
        json!({"type":"session","id":"pi-v1","timestamp":"2025-12-08T10:00:00Z","cwd":"/w","provider":"anthropic","modelId":"m"}),
        said("user", "old question"),
        said("assistant", "old answer"),
        json!({"type":"thinking_level_change","timestamp":"2025-12-08T10:00:02Z","thinkingLevel":"off"}),
        said("user", "kept question"),
        shell,
        json!({"type":"compaction","timestamp":"2025-12-08T10:00:05Z","summary":"Old things.","firstKeptEntryIndex":3,"tokensBefore":5000}),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    assert_eq!(read.format.name(), "pi");
    let compaction = read.entries.iter().find_map(|entry| match &entry.step {
        EntryContent::Compaction { kept, .. } => Some(*kept),
        _ => None,
    });
    let question =
        read.entries.iter().filter(|entry| matches!(entry.step, EntryContent::Turn(_))).nth(2).unwrap();
    assert_eq!(compaction, Some(Some(question.name)));
    // A command that a person ran is a turn as well.
    let ran = &messages(&read)[3];
    assert_eq!(ran["content"], "<bash-input>ls</bash-input>\n<bash-stdout>a.txt</bash-stdout>");
}

/// A prompt that was typed while the agent worked is an attachment in the file, and was only kept as a line.
#[test]
fn prompts_from_the_queue_of_claude_code_are_turns() {
    let line = |kind: &str, uuid: &str, parent: Option<&str>, rest: Value| {
        let mut line = json!({"type":kind,"uuid":uuid,"parentUuid":parent,"sessionId":"q","cwd":"/w","timestamp":"2026-01-01T10:00:00Z"});
        line.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        line
    };
    let queued = |uuid: &str, parent: &str, mode: &str, prompt: Value| {
        let attachment =
            json!({"type":"queued_command","prompt":prompt,"commandMode":mode,"origin":{"kind":"human"}});
        line("attachment", uuid, Some(parent), json!({"attachment":attachment}))
    };
    let call = json!([{"type":"tool_use","id":"t1","name":"Write","input":{}}]);
    let result = json!([{"type":"tool_result","tool_use_id":"t1","content":"written"}]);
    let file = [
        line("user", "u1", None, json!({"message":{"role":"user","content":"Add a login page."}})),
        line("assistant", "a1", Some("u1"), json!({"message":{"id":"m1","role":"assistant","content":call}})),
        line("user", "r1", Some("a1"), json!({"message":{"role":"user","content":result}})),
        queued("q1", "r1", "prompt", json!("and no cookies")),
        queued("q1", "r1", "prompt", json!("and no cookies")),
        queued("q2", "q1", "task-notification", json!("<task-notification>x</task-notification>")),
        queued("q3", "q2", "prompt", json!([{"type":"text","text":"and be quick"}])),
        line(
            "assistant",
            "a2",
            Some("q3"),
            json!({"message":{"id":"m2","role":"assistant","content":[{"type":"text","text":"Yes."}]}}),
        ),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    let said: Vec<Value> = messages(&read).into_iter().map(|message| message["content"].clone()).collect();
    let yes = json!([{"type":"text","text":"Yes."}]);
    let quick = json!([{"type":"text","text":"and be quick"}]);
    assert_eq!(said, [json!("Add a login page."), call, result, json!("and no cookies"), quick, yes]);
    assert!(turns(&read).iter().all(|said| said.supersedes.is_empty()));
    assert_eq!(turns(&read)[3].visibility, None);
    assert!(turns(&read)[3].metadata["claude_code"].get().contains("queued_command"));
}

#[test]
fn droid_sessions_are_read_as_they_are() {
    let entry = |id: &str, parent: &str, role: &str, content: Value| json!({"type":"message","id":id,"parentId":parent,"timestamp":"2026-01-02T03:04:05.000Z","message":{"role":role,"content":content}});
    let file = [
        json!({"type":"session_start","id":"d-1","title":"New Session","sessionTitle":"Missing folder","cwd":"/work","owner":"u","version":2}),
        entry(
            "m1",
            "d-1",
            "user",
            json!([{"type":"text","text":"<system-reminder>x</system-reminder>"},{"type":"text","text":"List"}]),
        ),
        entry(
            "m2",
            "m1",
            "assistant",
            json!([{"type":"tool_use","id":"t1","name":"Execute","input":{"command":"ls"}}]),
        ),
        entry("m3", "m2", "user", json!([{"type":"tool_result","tool_use_id":"t1","content":"a.txt"}])),
        json!({"type":"todo_state","id":"x","timestamp":"t","todos":[]}),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    assert_eq!((read.format.name(), kept(&read)), ("droid", vec!["session_start", "todo_state"]));
    for (said, line) in turns(&read).iter().zip(&file[1..]) {
        assert_eq!(said.message, line["message"].to_string());
    }
    assert_eq!(
        read.entries.iter().filter_map(|entry| entry.title.as_deref()).collect::<Vec<_>>(),
        ["Missing folder"]
    );
    // A session file of our own kind stays one.
    assert_eq!(
        everturn_formats::agents::detect(br#"{"type":"session_start","session_id":"u","id":"x"}"#),
        None
    );
}

/// Regression: a session of Claude Code on the web was a request of Anthropic without turns.
#[test]
fn sessions_of_claude_code_on_the_web_are_read_like_those_of_the_terminal() {
    let said = [
        json!({"type":"user","timestamp":"2026-01-02T03:04:05.000Z","message":{"role":"user","content":"List the files."}}),
        json!({"type":"assistant","timestamp":"2026-01-02T03:04:06.000Z","message":{"role":"assistant",
            "content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}),
        json!({"type":"user","timestamp":"2026-01-02T03:04:07.000Z","message":{"role":"user",
            "content":[{"type":"tool_result","tool_use_id":"t1","content":"a.rs"}]}}),
    ];
    let terminal = read(lines(&said).as_bytes()).unwrap();
    let web = json!({"loglines": said, "branch": "main"});
    for text in [web.to_string(), serde_json::to_string_pretty(&web).unwrap()] {
        let read = read(text.as_bytes()).unwrap();
        assert_eq!((read.format.name(), read.problems.len()), ("claude-code", 0));
        assert_eq!(messages(&read), messages(&terminal));
        assert_eq!(messages(&read).len(), 3);
    }
}

#[test]
fn qwen_code_sessions_are_read_and_lines_of_one_message_are_joined() {
    let line = |uuid: &str, parent: Option<&str>, kind: &str, parts: Value| {
        json!({"uuid":uuid,"parentUuid":parent,"sessionId":"q-1","timestamp":"2026-01-02T03:04:05.000Z","type":kind,
            "cwd":"/work","version":"0.21.13","gitBranch":"main","message":{"role":if kind == "assistant" {"model"} else {"user"},"parts":parts}})
    };
    let mut call = line(
        "u2",
        Some("u1"),
        "assistant",
        json!([{"functionCall":{"id":"c","name":"read_file","args":{}}}]),
    );
    call["model"] = "qwen3".into();
    call["usageMetadata"] = json!({"promptTokenCount":12,"candidatesTokenCount":4});
    let file = [
        line("u1", None, "user", json!([{"text":"Read it."}])),
        line("u2", Some("u1"), "assistant", json!([{"text":"hm","thought":true}])),
        call,
        line(
            "u3",
            Some("u2"),
            "tool_result",
            json!([{"functionResponse":{"id":"c","name":"read_file","response":{"output":"x"}}}]),
        ),
        json!({"uuid":"u4","parentUuid":"u3","sessionId":"q-1","timestamp":"t","type":"system","subtype":"custom_title",
            "systemPayload":{"customTitle":"Reading"}}),
        line("u5", Some("u1"), "assistant", json!([{"text":"Another way."}])),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    assert_eq!((read.format.name(), kept(&read)), ("qwen-code", vec!["system/custom_title"]));
    let said = turns(&read);
    assert_eq!(said.len(), 4);
    assert_eq!(
        messages(&read)[1],
        json!({"role":"model","parts":[{"text":"hm","thought":true},{"functionCall":{"id":"c","name":"read_file","args":{}}}]})
    );
    assert_eq!((said[1].model.as_deref(), said[1].tokens.unwrap().prompt), (Some("qwen3"), Some(12)));
    assert_eq!(said[3].supersedes.len(), 2);
    let origin = &read.threads[0].1;
    assert_eq!((origin.git_branch.as_deref(), origin.version.as_deref()), (Some("main"), Some("0.21.13")));
    // Regression: a notification of the program was the title of a file that began with it.
    let mut told = line("u6", None, "user", json!([{"text":"A task has ended."}]));
    told["subtype"] = "notification".into();
    told["systemPayload"] = json!({"displayText":"A task has ended."});
    let later =
        self::read(lines(&[told, line("u7", Some("u6"), "user", json!([{"text":"Go on."}]))]).as_bytes());
    let titles: Vec<_> = later.unwrap().entries.into_iter().filter_map(|entry| entry.title).collect();
    assert_eq!(titles, ["Go on."]);
    assert_eq!(
        read.entries.iter().filter_map(|entry| entry.title.as_deref()).collect::<Vec<_>>(),
        ["Read it.", "Reading"]
    );
}

#[test]
fn values_that_share_a_line_are_all_read() {
    let line = |n: u64| json!({"role":"user","content":format!("question {n}")}).to_string();
    let text = format!("{}{}\n{}\n{}{}", line(1), line(2), line(3), line(4), line(5));
    let read = read(text.as_bytes()).unwrap();
    let said: Vec<Value> = messages(&read).iter().map(|message| message["content"].clone()).collect();
    assert_eq!(said, [1, 2, 3, 4, 5].map(|n| format!("question {n}")));
}

#[test]
fn copilot_cli_sessions_are_read_event_by_event() {
    let event = |id: &str, kind: &str, data: Value| json!({"type":kind,"data":data,"id":id,"timestamp":"2026-01-02T03:04:05.000Z","parentId":null});
    let file = [
        event(
            "e1",
            "session.start",
            json!({"sessionId":"co-1","copilotVersion":"1.0.77","context":{"cwd":"/work","branch":"main"}}),
        ),
        event("e2", "session.model_change", json!({"newModel":"gpt-5"})),
        event(
            "e3",
            "user.message",
            json!({"content":"List the files","transformedContent":"…","attachments":[]}),
        ),
        event("e4", "assistant.turn_start", json!({"turnId":"0"})),
        event(
            "e5",
            "assistant.message",
            json!({"content":"","reasoningText":"hm","outputTokens":12,
            "toolRequests":[{"toolCallId":"c1","name":"bash","arguments":{"command":"ls"},"type":"function"}]}),
        ),
        event("e6", "tool.execution_start", json!({"toolCallId":"c1"})),
        event(
            "e7",
            "tool.execution_complete",
            json!({"toolCallId":"c1","success":false,"result":{"content":"denied","detailedContent":"d"}}),
        ),
        event(
            "e8",
            "assistant.message",
            json!({"content":"It is denied.","toolRequests":[],"model":"gpt-5-mini"}),
        ),
        event(
            "e9",
            "session.compaction_complete",
            json!({"success":true,"preCompactionTokens":99,"summaryContent":"Nothing was listed."}),
        ),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    assert_eq!(read.format.name(), "copilot-cli");
    assert_eq!(
        messages(&read),
        [
            json!({"role":"user","content":"List the files"}),
            json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},
                {"type":"tool_call","id":"c1","name":"bash","arguments":{"command":"ls"}}]}),
            json!({"role":"tool","content":[{"type":"tool_result","tool_use_id":"c1","content":"denied","is_error":true}]}),
            json!({"role":"assistant","content":[{"type":"text","text":"It is denied."}]}),
        ]
    );
    let said = turns(&read);
    assert_eq!((said[1].model.as_deref(), said[3].model.as_deref()), (Some("gpt-5"), Some("gpt-5-mini")));
    assert_eq!(said[1].tokens.unwrap().completion, Some(12));
    assert!(said[2].metadata["copilot_cli"].get().contains("detailedContent"));
    let EntryContent::Compaction { tokens_before, .. } = &read.entries[8].step else { panic!() };
    assert_eq!(*tokens_before, Some(99));
    let origin = &read.threads[0].1;
    assert_eq!((origin.cwd.as_deref(), origin.git_branch.as_deref()), (Some("/work"), Some("main")));
}

/// Up to 0.4x Codex wrote the items of an answer after it had ended, and so behind its count: every count was lost.
#[test]
fn codex_counts_are_found_before_and_behind_the_items_of_an_answer() {
    let item = |payload: Value| json!({"timestamp":"t","type":"response_item","payload":payload});
    let said = |role: &str, text: &str| {
        item(json!({"type":"message","role":role,"content":[{"type":"input_text","text":text}]}))
    };
    let call = item(json!({"type":"function_call","name":"sh","arguments":"{}","call_id":"c"}));
    let output = item(json!({"type":"function_call_output","call_id":"c","output":"x"}));
    let thought = item(json!({"type":"reasoning","summary":[]}));
    let completions = |file: &[Value]| -> Vec<Option<u64>> {
        let read = read(lines(file).as_bytes()).unwrap();
        turns(&read).iter().map(|said| said.tokens.and_then(|tokens| tokens.completion)).collect()
    };
    let (ask, answer) = (said("user", "go"), said("assistant", "done"));
    let before = [
        ask.clone(),
        counted(1, 7),
        thought.clone(),
        call.clone(),
        output.clone(),
        counted(2, 8),
        answer.clone(),
    ];
    assert_eq!(completions(&before), [None, None, Some(7), None, Some(8)]);
    let more = [before.as_slice(), &[said("user", "more"), counted(3, 9), said("assistant", "ok")]].concat();
    assert_eq!(completions(&more), [None, None, Some(7), None, Some(8), None, Some(9)]);
    // Newer files count behind the items, and repeat the last count when an answer begins.
    let behind = [ask, thought, call, counted(1, 7), output, counted(1, 7), answer, counted(2, 8)];
    assert_eq!(completions(&behind), [None, None, Some(7), None, Some(8)]);
    // A count behind what the tool answered is too late, and not that of the next answer.
    let late = [
        before[0].clone(),
        before[3].clone(),
        before[4].clone(),
        counted(1, 7),
        before[6].clone(),
        counted(2, 8),
    ];
    assert_eq!(completions(&late), [None, None, None, Some(8)]);
}

#[test]
fn titles_are_what_a_person_asked() {
    let codex = |texts: &[&str]| {
        let say = |text: &&str| {
            json!({"timestamp":"t","type":"response_item",
            "payload":{"type":"message","role":"user","content":[{"type":"input_text","text":text}]}})
        };
        lines(&texts.iter().map(say).collect::<Vec<_>>())
    };
    let claude = |texts: &[&str]| {
        let say = |text: &&str| json!({"type":"user","uuid":text,"sessionId":"s","message":{"role":"user","content":text}});
        lines(&texts.iter().map(say).collect::<Vec<_>>())
    };
    let ide =
        "# Context from my IDE setup:\n\n## Open tabs:\n- a.rs\n\n## My request for Codex:\nFix the build.";
    let notes =
        ["# AGENTS.md instructions for /w", "<environment_context><cwd>/w</cwd></environment_context>"];
    let interrupted = "[Request interrupted by user for tool use]";
    let gemini = lines(&[
        json!({"sessionId":"g","projectHash":"h","startTime":"t"}),
        json!({"id":"1","type":"user","content":"<system-reminder>x</system-reminder>"}),
        json!({"id":"2","type":"user","content":"Fix the build."}),
    ]);
    for text in [
        codex(&[ide]),
        codex(&[notes[0], notes[1], "Fix the build."]),
        codex(&["# Fix the build."]),
        claude(&[interrupted, "Fix the build."]),
        claude(&["<command-name>/clear</command-name>", "Fix the build."]),
        claude(&["<system-reminder>x</system-reminder>\nFix the build."]),
        gemini,
    ] {
        let read = read(text.as_bytes()).unwrap();
        let titles: Vec<&str> = read.entries.iter().filter_map(|entry| entry.title.as_deref()).collect();
        assert_eq!(titles.len(), 1, "{titles:?} in {text}");
        assert_eq!(titles[0].trim_start_matches("# "), "Fix the build.", "{text}");
    }
}

#[test]
fn compressed_files_are_read_and_bombs_are_not() {
    let text = lines(&rollout());
    let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
    let (plain, unpacked) = (read(text.as_bytes()).unwrap(), read(&packed).unwrap());
    assert_eq!(plain.entries, unpacked.entries);
    assert_eq!(plain.entries, read(&gzip(text.as_bytes())).unwrap().entries);
    let line = format!("{}\n", json!({"role":"user","content":"boom ".repeat(1000)}));
    let boom = line.repeat(20_000);
    for bomb in [zstd::encode_all(boom.as_bytes(), 3).unwrap(), gzip(boom.as_bytes())] {
        assert!(bomb.len() < 500_000);
        let Opened::Agent(reader) = open(&bomb[..], None).unwrap() else { panic!("messages") };
        let mut count = 0_u64;
        let error = reader.inspect(|_| count += 1).find_map(Result::err).expect("it ends early");
        assert!(error.text().contains("EXPANSION_MAX is 300"), "{error}");
        assert!(count < 10_000, "{count}");
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn gemini_messages() -> Vec<Value> {
    vec![
        json!({"id":"m1","timestamp":"2026-01-01T00:00:01.000Z","type":"user","content":[{"text":"List files."}]}),
        json!({"id":"m2","timestamp":"2026-01-01T00:00:02.000Z","type":"gemini","content":"","model":"gemini-3",
            "thoughts":[{"subject":"Plan","description":"use ls"}],"tokens":{"input":10,"output":3,"total":13},
            "toolCalls":[{"id":"t1","name":"run_shell_command","args":{"command":"ls"},
                "result":[{"functionResponse":{"id":"t1","name":"run_shell_command","response":{"output":"a.txt"}}}]}]}),
        json!({"id":"m3","timestamp":"2026-01-01T00:00:03.000Z","type":"info","content":"saved"}),
        json!({"id":"m4","timestamp":"2026-01-01T00:00:04.000Z","type":"gemini","content":"One file."}),
    ]
}

#[test]
fn gemini_cli_reads_the_same_from_a_value_and_from_lines() {
    let header = json!({"sessionId":"g-1","projectHash":"h","startTime":"2026-01-01T00:00:00.000Z"});
    let by_line = lines(&[std::slice::from_ref(&header), gemini_messages().as_slice()].concat());
    let mut value = header;
    value["messages"] = gemini_messages().into();
    value["lastUpdated"] = "2026-01-01T00:00:05.000Z".into();
    let by_line = read(by_line.as_bytes()).unwrap();
    let pretty = read(serde_json::to_string_pretty(&value).unwrap().as_bytes()).unwrap();
    let compact = read(value.to_string().as_bytes()).unwrap();
    for read in [&by_line, &pretty, &compact] {
        assert_eq!((read.format, read.problems.len()), (AgentFormat::Gemini, 0), "{:?}", read.problems);
        assert_eq!(read.threads[0].0, by_line.threads[0].0);
        let said = messages(read);
        assert_eq!(said.len(), 4);
        assert_eq!(said[0], json!({"role":"user","content":[{"text":"List files."}]}));
        assert_eq!(
            said[1]["content"],
            json!([{"type":"thinking","thinking":"Plan: use ls"},
                {"type":"tool_call","id":"t1","name":"run_shell_command","arguments":{"command":"ls"}}])
        );
        assert_eq!(
            said[2],
            json!({"role":"tool","content":[{"type":"tool_result","tool_use_id":"t1","name":"run_shell_command","content":"a.txt"}]})
        );
        assert_eq!(said[3], json!({"role":"assistant","content":"One file."}));
        let tokens = turns(read)[1].tokens.unwrap();
        assert_eq!((tokens.prompt, tokens.completion), (Some(10), Some(3)));
        assert!(turns(read)[1].metadata["gemini"].get().contains("functionResponse"));
        let mut kept = kept(read);
        kept.sort_unstable();
        assert_eq!(kept, ["info", "session"]);
    }
}

/// Regression: the error of a tool disappeared where it also had an output, and was shown as JSON where it had none.
#[test]
fn errors_of_tools_in_gemini_cli_are_in_their_results() {
    let result_of = |response: Value, status: &str| {
        let mut messages = gemini_messages();
        messages[1]["toolCalls"][0]["status"] = status.into();
        messages[1]["toolCalls"][0]["result"][0]["functionResponse"]["response"] = response;
        let header = json!({"sessionId":"g-1","projectHash":"h","startTime":"2026-01-01T00:00:00.000Z"});
        let read = read(lines(&[&[header][..], &messages].concat()).as_bytes()).unwrap();
        let result = messages_of_results(&read);
        (result["content"].clone(), result.get("is_error").cloned())
    };
    let (done, failed) = (None, Some(json!(true)));
    for (response, status, expected) in [
        (json!({"output":"a.txt"}), "success", (json!("a.txt"), &done)),
        (json!({"output":"","error":"no such file","exitCode":1}), "error", (json!("no such file"), &failed)),
        (json!({"output":"","error":"no such file"}), "success", (json!("no such file"), &failed)),
        (json!({"output":"a.txt","error":"and no b.txt"}), "error", (json!("a.txt\nand no b.txt"), &failed)),
        (json!({"error":"no such file"}), "error", (json!("no such file"), &failed)),
        (json!({"output":"a.txt","error":""}), "success", (json!("a.txt"), &done)),
        (json!({"output":"exit 1"}), "error", (json!("exit 1"), &failed)),
    ] {
        let (content, is_error) = result_of(response.clone(), status);
        assert_eq!((content, &is_error), expected, "{response} {status}");
    }
}

fn messages_of_results(read: &Read) -> Value {
    messages(read)[2]["content"][0].clone()
}

#[test]
fn gemini_cli_takes_messages_back_and_completes_them() {
    let header = json!({"sessionId":"g-1","projectHash":"h","startTime":"t"});
    let early =
        json!({"id":"m2","type":"gemini","content":"","toolCalls":[{"id":"t1","name":"n","args":{}}]});
    let file = [
        header,
        gemini_messages()[0].clone(),
        early,
        gemini_messages()[1].clone(),
        json!({"$set":{"lastUpdated":"t"}}),
        json!({"$rewindTo":"m1"}),
        json!({"id":"m9","type":"user","content":"Something else."}),
    ];
    let read = read(lines(&file).as_bytes()).unwrap();
    assert_eq!(kept(&read), ["session", "$set", "$rewindTo"]);
    let entries: Vec<&AgentEntry> =
        read.entries.iter().filter(|entry| matches!(entry.step, EntryContent::Turn(_))).collect();
    // The second message, its completed version, its results, and what took the place of all.
    assert_eq!(entries[1].name, entries[2].name);
    assert_ne!(entries[1].key, entries[2].key);
    let names = [entries[0].name, entries[1].name, entries[3].name];
    assert_eq!(turns(&read).last().unwrap().supersedes, names);
}

#[test]
fn messages_of_any_provider_are_turns_as_they_are() {
    let chat = r#"[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{ }"}}]},
        {"role":"tool","tool_call_id":"c","content":"ok"}, {"note":1.50}]"#;
    let read_chat = read(chat.as_bytes()).unwrap();
    assert_eq!((turns(&read_chat).len(), read_chat.lines), (4, 5));
    assert!(chat.contains(&turns(&read_chat)[2].message), "{}", turns(&read_chat)[2].message);
    let EntryContent::Event { body, .. } = &read_chat.entries[4].step else { panic!() };
    assert_eq!(body.get(), r#"{"note":1.50}"#);
    let request = json!({"model":"claude","system":"Be brief.","messages":[
        {"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"}]}]});
    let request = serde_json::to_string_pretty(&request).unwrap();
    let read_request = read(request.as_bytes()).unwrap();
    assert_eq!((read_request.format, turns(&read_request).len()), (AgentFormat::Anthropic, 2));
    assert_eq!(turns(&read_request)[1].model.as_deref(), Some("claude"));
    assert_eq!(kept(&read_request), ["request"]);
    // A line for each conversation.
    let set = lines(&[
        json!({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}),
        json!({"messages":[{"role":"user","content":"c"}],"split":"train"}),
    ]);
    let read_set = read(set.as_bytes()).unwrap();
    assert_eq!((read_set.threads.len(), turns(&read_set).len()), (2, 3));
    // The same words twice are two turns.
    let twice = lines(&[json!({"role":"user","content":"ok"}), json!({"role":"user","content":"ok"})]);
    let read_twice = read(twice.as_bytes()).unwrap();
    assert_ne!(read_twice.entries[0].name, read_twice.entries[1].name);
}

/// Regression: JavaScript writes half a surrogate pair where a text was cut inside an emoji, and the turn vanished.
#[test]
fn a_lone_surrogate_is_a_replacement_character_and_the_line_is_kept_as_it_was() {
    let cut = r#""cut \ud83d""#;
    let original = |entry: &AgentEntry| match &entry.step {
        EntryContent::Event { body, .. } => {
            serde_json::from_str::<Value>(body.get()).ok()?["text"].as_str().map(str::to_string)
        }
        _ => None,
    };
    let part = |text: &str| {
        format!(
            r#"{{"uuid":"q2","parentUuid":"q1","sessionId":"s","timestamp":"2026-01-01T00:00:02Z","type":"assistant","message":{{"role":"model","parts":[{{"text":{text}}}]}}}}"#
        )
    };
    let header =
        r#"{"timestamp":"2026-01-01T00:00:00Z","type":"session_meta","payload":{"id":"c","cwd":"/"}}"#;
    let item = format!(
        r#"{{"timestamp":"2026-01-01T00:00:00Z","type":"response_item","payload":{{"type":"message","role":"user","content":[{{"type":"input_text","text":{cut}}}]}}}}"#
    );
    let prompt =
        r#"{"uuid":"q1","sessionId":"s","type":"user","message":{"role":"user","parts":[{"text":"hi"}]}}"#;
    let message = format!(r#"{{"role":"user","content":{cut}}}"#);
    let files = [
        (
            "claude-code",
            format!(r#"{{"type":"user","uuid":"u1","sessionId":"s","cwd":"/","message":{message}}}"#),
            1,
        ),
        ("codex", format!("{header}\n{item}"), 1),
        (
            "gemini-cli",
            format!(
                r#"{{"sessionId":"g","projectHash":"h","startTime":"t","messages":[{{"id":"1","type":"user","content":{cut}}}]}}"#
            ),
            1,
        ),
        // The lines of one message, which a kept line between them does not end.
        ("qwen-code", format!("{prompt}\n{}\n{}", part(cut), part(r#""and on""#)), 2),
        ("messages", message.clone(), 1),
        ("openai-chat", format!(r#"{{"messages":[{message}],"split":"train"}}"#), 1),
    ];
    for (format, file, count) in files {
        // With a line break at the end or not: it is whole.
        for file in [file.clone(), format!("{file}\n")] {
            let read = read(file.as_bytes()).unwrap();
            assert_eq!(read.format.name(), format);
            assert!(read.problems.is_empty(), "{format}: {:?}", read.problems);
            let messages = messages(&read);
            assert_eq!(messages.len(), count, "{format}: {messages:?}");
            let last = messages.last().unwrap().to_string();
            assert!(last.contains("cut \u{fffd}"), "{format}: {last}");
            assert!(format != "qwen-code" || last.contains("and on"), "{last}");
            let kept: Vec<String> = read.entries.iter().filter_map(original).collect();
            assert_eq!(kept.len(), 1, "{format}");
            assert!(file.contains(&kept[0]) && kept[0].contains(cut), "{format}: {kept:?}");
        }
    }
    // In the conversation that it belongs to, so that it is erased with its turn.
    let subagent = lines(&[
        json!({"type":"user","uuid":"u1","sessionId":"s","cwd":"/","message":{"role":"user","content":"hi"}}),
        json!({"type":"user","uuid":"u2","sessionId":"s","cwd":"/","isSidechain":true,"agentId":"a","message":{"role":"user","content":"CUT"}}),
    ]);
    let read = read(subagent.replace("\"CUT\"", cut).as_bytes()).unwrap();
    let kept = read.entries.iter().find(|entry| original(entry).is_some()).unwrap();
    assert!(read.threads[kept.thread].1.agent.is_some());
}

/// Regression: a byte that is no UTF-8 made a message an event called "no role".
#[test]
fn a_message_with_a_byte_that_is_no_text_is_a_turn_and_its_original_is_kept() {
    let messages_of = |between: &str, end: &str| -> Vec<u8> {
        let each =
            ["hi", "h\u{1}llo", "more"].map(|text| json!({"role": "user", "content": text}).to_string());
        let text = each.join(between).replace("\\u0001", "\u{1}") + end;
        text.bytes().map(|byte| if byte == 1 { 0xe9 } else { byte }).collect()
    };
    let list = [b"[".to_vec(), messages_of(",", "]")].concat();
    let lines = messages_of("\n", "\n");
    for file in [list, lines] {
        let read = read(&file).unwrap();
        let said: Vec<Value> = messages(&read).iter().map(|message| message["content"].clone()).collect();
        assert_eq!(said, ["hi", "h\u{fffd}llo", "more"]);
        let bodies = read.entries.iter().filter_map(|entry| match &entry.step {
            EntryContent::Event { body, .. } => serde_json::from_str::<Value>(body.get()).ok(),
            _ => None,
        });
        assert!(bodies.into_iter().any(|body| body["base64"].is_string()));
    }
}

/// Regression: such messages had the time of the import.
#[test]
fn times_are_read_as_numbers_and_without_a_zone() {
    for time in [
        "1767261600",
        "1767261600.0",
        "1767261600000",
        "1767261600000000",
        "\"2026-01-01T10:00:00\"",
        "\"2026-01-01 10:00:00\"",
    ] {
        let file = format!(
            "[{{\"role\":\"user\",\"content\":\"hi\",\"timestamp\":{time}}},{{\"role\":\"assistant\",\"content\":\"ho\"}}]"
        );
        let read = read(file.as_bytes()).unwrap();
        let expected: everturn_core::time::Timestamp = "2026-01-01T10:00:00Z".parse().unwrap();
        assert_eq!(read.entries[0].at, Some(expected), "{time}");
        assert_eq!(agents::first_time(file.as_bytes()), Some(expected), "{time}");
    }
    for time in ["5", "-1767261600", "\"soon\"", "1e300"] {
        let file = format!(
            "[{{\"role\":\"user\",\"content\":\"hi\",\"timestamp\":{time}}},{{\"role\":\"assistant\",\"content\":\"ho\"}}]"
        );
        assert_eq!(read(file.as_bytes()).unwrap().entries[0].at, None, "{time}");
    }
}

/// Regression: of "Can you look at /Users/…/TASK.md and …" the title kept "Can you look at…"; a first answer with the number
/// of an option was the title "1".
#[test]
fn a_title_uses_the_room_there_is() {
    let path = format!("/Users/ann/{}/TASK-CLI-HOOKS.md", "work/".repeat(15));
    let url = format!("https://example.com/{}", "x".repeat(90));
    let title = |text: &str| {
        let line = json!({"type":"user","uuid":"u","sessionId":"s","message":{"role":"user","content":text}});
        let read = read(lines(&[line]).as_bytes()).unwrap();
        read.entries[0].title.clone()
    };
    let words = "word ".repeat(30);
    for (text, expected) in [
        (
            format!("Can you look at {path} and start implementing it?"),
            "Can you look at …/TASK-CLI-HOOKS.md and start implementing it?".to_string(),
        ),
        (format!("See {url} now"), format!("See {}…", &url[..75])),
        (format!("See {}", "日本".repeat(60)), format!("See {}日…", "日本".repeat(37))),
        (words.clone(), format!("{}…", words[..79].trim_end())),
        (format!("{} extraordinary", "w".repeat(76)), format!("{}…", "w".repeat(76))),
        ("Look at /etc/hosts".to_string(), "Look at /etc/hosts".to_string()),
    ] {
        let title = title(&text).unwrap();
        assert_eq!(title, expected);
        assert!(title.chars().count() <= 80, "{title}");
    }
    for text in ["1", " 2. ", "?"] {
        assert_eq!(title(text), None, "{text}");
    }
}

/// Regression: a session of pi that begins with a command was called "/mode".
#[test]
fn a_command_alone_is_no_title() {
    for (first, title) in
        [("/mode", "fix it"), ("/review the login", "/review the login"), ("/etc/hosts", "/etc/hosts")]
    {
        let file = lines(&[
            json!({"type":"session","version":3,"id":"s","timestamp":"2026-01-01T10:00:00Z","cwd":"/"}),
            json!({"type":"message","id":"1","parentId":null,"timestamp":"2026-01-01T10:00:01Z","message":{"role":"user","content":[{"type":"text","text":first}]}}),
            json!({"type":"message","id":"2","parentId":"1","timestamp":"2026-01-01T10:00:02Z","message":{"role":"user","content":[{"type":"text","text":"fix it"}]}}),
        ]);
        let read = read(file.as_bytes()).unwrap();
        let found = read.entries.iter().find_map(|entry| entry.title.clone());
        assert_eq!((read.format.name(), found.as_deref()), ("pi", Some(title)));
    }
}

#[test]
fn lines_that_cannot_be_read_are_kept_and_a_line_that_was_cut_waits() {
    let good =
        json!({"type":"user","uuid":"u1","sessionId":"s","cwd":"/","message":{"role":"user","content":"hi"}});
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let mut file: Vec<u8> =
        format!("{good}\nnot json\n{{\"a\":1,\"a\":2}}\n\"\\ud800\"\n{deep}\n[1]\n").into();
    file.extend(b"\xff\xfe\n");
    // A crash, and what the program wrote when it was started again.
    let second = good.to_string().replace("u1", "u2");
    file.extend(format!("{{\"type\":\"assistant\",\"mess{second}\n").bytes());
    let third = good.to_string().replace("u1", "u3");
    file.extend(&third.as_bytes()[..50]);
    let read = read(&file).unwrap();
    assert_eq!(turns(&read).len(), 2);
    assert_eq!(kept(&read).iter().filter(|what| **what == "unreadable").count(), 6);
    let bodies: Vec<Value> = read
        .entries
        .iter()
        .filter_map(|entry| match &entry.step {
            EntryContent::Event { body, .. } => serde_json::from_str(body.get()).ok(),
            _ => None,
        })
        .collect();
    assert_eq!(bodies[0]["text"], "not json");
    assert!(bodies[1]["reason"].as_str().unwrap().contains("duplicate key"));
    assert_eq!(bodies[5]["base64"], "//4=");
    assert_eq!(bodies[6]["text"], "{\"type\":\"assistant\",\"mess");
    let [problem] = &read.problems[..] else { panic!("{:?}", read.problems) };
    assert!(problem.text.contains("is cut off at byte"), "{problem:?}");
    // Whole, without its line break: it is there.
    let mut whole = file.clone();
    whole.extend(&third.as_bytes()[50..]);
    assert_eq!(turns(&self::read(&whole).unwrap()).len(), 3);
}

#[test]
fn a_line_that_is_too_long_is_left_out_and_said() {
    let good = json!({"role":"user","content":"hi"});
    let long = "x".repeat(everturn_formats::agents::LINE_BYTES_MAX + 10);
    let read =
        read(format!("{good}\n{{\"role\":\"user\",\"content\":\"{long}\"}}\n{good}\n").as_bytes()).unwrap();
    assert_eq!(turns(&read).len(), 2);
    assert!(read.problems[0].text.contains("LINE_BYTES_MAX is 33554432"), "{:?}", read.problems);
}

#[test]
fn what_an_answer_of_codex_cost_is_with_its_last_item() {
    let mut file = rollout();
    let count = |input: u64, output: u64| {
        json!({"timestamp":"2026-01-02T03:04:06Z","type":"event_msg","payload":{"type":"token_count","info":{
            "total_token_usage":{"input_tokens":9999,"output_tokens":999},
            "last_token_usage":{"input_tokens":input,"cached_input_tokens":5,"output_tokens":output}}}})
    };
    // Behind the call, and behind the message and what the screen showed of it. ParsedTurn twice, it counts once.
    file.insert(6, count(100, 20));
    file.insert(7, count(100, 20));
    file[10] = count(150, 7);
    let text = lines(&file);
    let whole = read(text.as_bytes()).unwrap();
    let tokens: Vec<_> =
        turns(&whole).iter().map(|said| said.tokens.map(|t| (t.prompt, t.completion))).collect();
    assert_eq!(tokens, [None, None, Some((Some(100), Some(20))), None, Some((Some(150), Some(7)))]);
    // Everything is there, in the order of the file, wherever it ends.
    for end in 1..=file.len() {
        let part = read(lines(&file[..end]).as_bytes()).unwrap();
        let names =
            |read: &Read| read.entries.iter().map(|entry| (entry.line, entry.key)).collect::<Vec<_>>();
        assert_eq!(names(&part), names(&whole)[..end]);
    }
}

#[test]
fn instructions_of_a_request_are_the_system_prompt() {
    let said = |text: &str| -> Vec<String> {
        let entries = read(text.as_bytes()).unwrap().entries;
        let shown = entries.iter().map(|entry| match &entry.step {
            EntryContent::System(text) => format!("prompt {text}"),
            EntryContent::Turn(said) => said.message.clone(),
            EntryContent::Event { what, .. } | EntryContent::Compaction { what, .. } => what.clone(),
        });
        shown.collect()
    };
    let hi = r#"{"role":"user","content":"hi"}"#;
    let brief = r#"{"role":"system","content":"Be brief."}"#;
    let anthropic = r#"{"system":[{"type":"text","text":"You help."},{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":"hi"}]}"#;
    let over_lines = anthropic.replace("],\"messages\"", "],\n\"messages\"");
    for text in [anthropic, &over_lines] {
        assert_eq!(said(text), ["prompt You help.", brief, hi, "request"]);
    }
    let responses = format!("{{\"instructions\":\"You help.\",\n\"input\":[{hi}]}}");
    assert_eq!(said(&responses), ["prompt You help.", hi, "request"]);
    // It comes first also where it stands behind the messages.
    let behind = format!("{{\"messages\":[\n{hi}],\"system\":[\"You help.\",\"Be brief.\"]}}");
    assert_eq!(said(&behind), ["prompt You help.", brief, hi, "request"]);
    let contents = r#"{"role":"user","parts":[{"text":"hi"}]}"#;
    let gemini =
        r#"{"system_instruction":{"parts":[{"text":"You help."}]},"contents":[{"parts":[{"text":"hi"}]}]}"#;
    assert_eq!(said(gemini), ["prompt You help.", contents, "request"]);
    assert_eq!(read(gemini.as_bytes()).unwrap().entries[1].title.as_deref(), Some("hi"));
    // What is no text is only in the request.
    assert_eq!(said(r#"{"system":7,"messages":[{"role":"user","content":"hi"}]}"#), [hi, "request"]);
}

/// What was read of a file with this path.
fn read_at(path: &str, text: &str) -> Read {
    let Opened::Agent(mut reader) = open(text.as_bytes(), Some(path)).unwrap() else {
        panic!("not known: {text}")
    };
    let entries = reader.by_ref().map(Result::unwrap).collect();
    let threads = reader.threads().iter().map(|thread| (thread.id, thread.origin.clone())).collect();
    let problems = reader.problems();
    Read { format: reader.format(), entries, threads, problems, lines: reader.lines() }
}

#[test]
fn a_list_that_is_cut_names_the_line_where_it_ends() {
    let said = r#"{"role":"user","content":"hi"}"#;
    for (text, line) in [
        (format!("[{said},{{\"role\":\"assis"), 1),
        (format!("[{said}"), 1),
        (format!("[\n{said},\n{said},\n{{\"role\""), 4),
    ] {
        let read = read_at("/chats/cut.json", &text);
        assert_eq!(read.problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [line], "{text}");
    }
}

#[test]
fn kimi_cli_sessions_are_read_as_they_are() {
    let said = [
        json!({"role":"user","content":[{"type":"text","text":"<system>CHECKPOINT 0</system>"}]}),
        json!({"role":"user","content":"List the files"}),
        json!({"role":"assistant","content":[{"type":"think","think":"hm","encrypted":null},{"type":"text","text":"I look."}],
            "tool_calls":[{"type":"function","id":"c1","function":{"name":"Shell","arguments":"{\"command\":\"ls\"}"}}]}),
        json!({"role":"tool","content":[{"type":"text","text":"a.txt"}],"tool_call_id":"c1"}),
    ];
    let mut file = vec![
        json!({"role":"_system_prompt","content":"You are Kimi."}),
        json!({"role":"_checkpoint","id":0}),
    ];
    file.extend(said.iter().cloned());
    file.push(json!({"role":"_usage","token_count":1234}));
    let read = read_at("/home/u/.kimi/sessions/9f/5b1e-1/context.jsonl", &lines(&file));
    assert_eq!((read.format.name(), kept(&read)), ("kimi-cli", vec!["_checkpoint", "_usage"]));
    assert_eq!(messages(&read), said);
    assert!(read.entries.iter().any(|entry| entry.step == EntryContent::System("You are Kimi.".into())));
    assert_eq!(read.threads[0].1.session.as_deref(), Some("5b1e-1"));
    let titles: Vec<&str> = read.entries.iter().filter_map(|entry| entry.title.as_deref()).collect();
    assert_eq!(titles, ["List the files"]);
    // Another place of the same session is the same conversation; a context beside it and another session are not.
    let id = |path: &str| read_at(path, &lines(&file)).threads[0].0;
    assert_eq!(id("/copy/5b1e-1/context.jsonl"), read.threads[0].0);
    assert_ne!(id("/copy/5b1e-1/context_1.jsonl"), read.threads[0].0);
    assert_ne!(id("/copy/5b1e-2/context.jsonl"), read.threads[0].0);
}

#[test]
fn qwen_code_summaries_are_compactions_and_what_hooks_add_is_no_title() {
    let line = |uuid: &str, kind: &str, rest: Value| {
        let mut line = json!({"uuid":uuid,"parentUuid":null,"sessionId":"q-1","timestamp":"2026-01-02T03:04:05.000Z","type":kind});
        line.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        line
    };
    let hook = "<qwen:user-prompt-submit-context>\nfrom a hook\n</qwen:user-prompt-submit-context>";
    let said = json!({"message":{"role":"user","parts":[{"text":"Read it."},{"text":hook}]},"systemPayload":{"displayText":"Read it."}});
    let summary = json!([{"role":"user","parts":[{"text":"They read it."}]},{"role":"model","parts":[{"text":"Got it."}]}]);
    let compressed = json!({"subtype":"chat_compression","systemPayload":{"info":{"originalTokenCount":49127},"compressedHistory":summary}});
    let failed = json!({"subtype":"chat_compression","systemPayload":{"info":{"compressionStatus":2}}});
    let file = [line("u1", "user", said), line("u2", "system", compressed), line("u3", "system", failed)];
    let read = read(lines(&file).as_bytes()).unwrap();
    let compactions: Vec<(&str, Option<u64>)> = read
        .entries
        .iter()
        .filter_map(|entry| match &entry.step {
            EntryContent::Compaction { summary, tokens_before, .. } => {
                Some((summary.as_str(), *tokens_before))
            }
            _ => None,
        })
        .collect();
    assert_eq!(compactions, [("They read it.", Some(49127))]);
    assert_eq!(read.entries[0].title.as_deref(), Some("Read it."));
}

#[test]
fn kimi_code_journals_are_read_step_by_step() {
    let at = |n: u64| 1_785_612_800_000 + n * 1000;
    let event = |n: u64, event: Value| json!({"type":"context.append_loop_event","event":event,"time":at(n)});
    let said = |n: u64, text: &str, kind: &str| {
        json!({"type":"context.append_message","message":{"role":"user","content":[{"type":"text","text":text}],
            "toolCalls":[],"origin":{"kind":kind}},"time":at(n)})
    };
    let part = |n: u64, part: Value| event(n, json!({"type":"content.part","stepUuid":"st-1","part":part}));
    let call = |n: u64, id: &str| {
        event(
            n,
            json!({"type":"tool.call","stepUuid":"st-1","toolCallId":id,"name":"Bash","args":{"command":"ls"}}),
        )
    };
    let result = |n: u64, id: &str, result: Value| {
        event(n, json!({"type":"tool.result","toolCallId":id,"result":result}))
    };
    let usage = json!({"inputOther":9,"output":4,"inputCacheRead":100,"inputCacheCreation":1});
    let file = [
        json!({"type":"metadata","protocol_version":"1.4","created_at":at(0)}),
        json!({"type":"config.update","profileName":"agent","systemPrompt":"You are Kimi Code.","time":at(0)}),
        json!({"type":"turn.prompt","input":[{"type":"text","text":"List the files"}],"origin":{"kind":"user"},"time":at(1)}),
        said(1, "<system-reminder>Plan mode is active.</system-reminder>", "injection"),
        said(1, "List the files", "user"),
        event(2, json!({"type":"step.begin","uuid":"st-1","turnId":"0","step":1})),
        json!({"type":"llm.request","kind":"loop","model":"kimi-k2.7-code","time":at(2)}),
        part(3, json!({"type":"think","think":"hm"})),
        part(3, json!({"type":"text","text":"I look."})),
        call(4, "Bash_0"),
        call(4, "Bash_1"),
        result(5, "Bash_0", json!({"output":"a.txt"})),
        result(6, "Bash_1", json!({"output":"no such file","isError":true})),
        event(7, json!({"type":"step.end","uuid":"st-1","usage":usage,"finishReason":"tool_use"})),
        json!({"type":"context.apply_compaction","summary":"They listed files.","tokensBefore":15912,"time":at(8)}),
        event(9, json!({"type":"step.begin","uuid":"st-2"})),
        event(9, json!({"type":"content.part","stepUuid":"st-2","part":{"type":"text","text":"Do"}})),
    ];
    let path = "/home/u/.kimi-code/sessions/wd_a/session_1/agents/main/wire.jsonl";
    let read = read_at(path, &lines(&file));
    let events = ["metadata", "config.update", "turn.prompt", "llm.request", "context.apply_compaction"];
    assert_eq!((read.format.name(), kept(&read)), ("kimi-code", events.to_vec()));
    let call = |id: &str| json!({"type":"tool_call","id":id,"name":"Bash","arguments":{"command":"ls"}});
    let answered = |id: &str, content: &str| json!({"type":"tool_result","tool_use_id":id,"name":"Bash","content":content});
    let mut failed = answered("Bash_1", "no such file");
    failed["is_error"] = json!(true);
    assert_eq!(
        messages(&read)[2..],
        [
            json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"I look."},call("Bash_0"),call("Bash_1")]}),
            json!({"role":"tool","content":[answered("Bash_0", "a.txt")]}),
            json!({"role":"tool","content":[failed]}),
            json!({"role":"assistant","content":[{"type":"text","text":"Do"}]}),
        ]
    );
    let titles: Vec<&str> = read.entries.iter().filter_map(|entry| entry.title.as_deref()).collect();
    assert_eq!(titles, ["List the files"]);
    assert!(read.entries.iter().any(|entry| entry.step == EntryContent::System("You are Kimi Code.".into())));
    let turn = |read: &Read, name: usize| {
        let mut turns = read.entries.iter().filter_map(|entry| match &entry.step {
            EntryContent::Turn(turn) => Some((entry.name, entry.key, entry.at, turn.clone())),
            _ => None,
        });
        turns.nth(name).unwrap()
    };
    let (_, _, time, step) = turn(&read, 2);
    assert_eq!(time, Some("2026-08-01T19:33:22Z".parse().unwrap()));
    let tokens = step.tokens.unwrap();
    assert_eq!(
        (step.model.as_deref(), tokens.prompt, tokens.completion),
        (Some("kimi-k2.7-code"), Some(110), Some(4))
    );
    // A step that goes on is a newer version of itself.
    let mut more = file.to_vec();
    more.push(event(10, json!({"type":"content.part","stepUuid":"st-2","part":{"type":"text","text":"ne"}})));
    let (before, after) = (turn(&read, 5), turn(&read_at(path, &lines(&more)), 5));
    assert!(before.0 == after.0 && before.1 != after.1);
    // Regression: a step that only its end was missing of never got its tokens.
    let before_end = read_at(path, &lines(&file[..13]));
    let early = turn(&before_end, 2);
    assert_eq!((early.0, early.3.tokens), (turn(&read, 2).0, None));
    assert_ne!(early.1, turn(&read, 2).1);
    assert_eq!(turn(&before_end, 3).1, turn(&read, 3).1, "its results are what they were");
    // A subagent names the session that it worked for.
    let agent = read_at("/copy/session_1/agents/agent-0/wire.jsonl", &lines(&file));
    assert_eq!(
        (agent.threads[0].1.agent.as_deref(), agent.threads[0].1.parent),
        (Some("agent-0"), Some(read.threads[0].0))
    );
    // Copies of several sessions in one folder are several conversations, whatever the folder is called.
    let copy = |name: &str| read_at(&format!("/backup/agents/kimi/{name}.jsonl"), &lines(&file)).threads[0].0;
    assert_ne!(copy("monday"), copy("tuesday"));
    // The journal that Kimi CLI keeps beside its context would say everything twice.
    let other = "{\"type\":\"metadata\",\"protocol_version\":\"1.9\"}\n{\"timestamp\":1.5,\"message\":{\"type\":\"TurnBegin\",\"payload\":{}}}\n";
    assert_eq!(agents::detect(other.as_bytes()), None);
}

/// Events of some program were taken for items of Responses, and of all that was said only the reasoning became turns.
#[test]
fn a_list_of_events_is_no_list_of_items() {
    let events = json!([{"type":"user","content":{"text":"my question"}},{"type":"reasoning","content":{"text":"hm"}}]);
    assert_eq!(agents::detect(events.to_string().as_bytes()), None);
    let items =
        json!([{"type":"message","role":"user","content":"my question"},{"type":"reasoning","summary":[]}]);
    assert_eq!(agents::detect(items.to_string().as_bytes()), Some(AgentFormat::OpenaiResponses));
}

/// Regression: one item made a file one of Responses, whatever its other lines were; they were lost as turns.
#[test]
fn an_item_among_other_lines_decides_nothing() {
    let reasoning = json!({"type":"reasoning","id":"rs_1","summary":[]});
    let others = [
        json!({"type":"user","content":"hi"}),
        reasoning.clone(),
        json!({"type":"assistant","content":"ho"}),
    ];
    assert_eq!(agents::detect(lines(&others).as_bytes()), None);
    let part = json!({"id":"prt_1","sessionID":"ses_1","messageID":"msg_1","type":"reasoning","text":"hm"});
    assert_eq!(agents::detect(part.to_string().as_bytes()), None);
    // What is known of the file ends within a long content.
    let long = json!([{"content": "words ".repeat(20_000), "role": "user"}]).to_string();
    assert!(agents::detect(&long.as_bytes()[..agents::HEAD_BYTES]).is_some());
    let items = [reasoning, json!({"type":"function_call","call_id":"c1","name":"ls","arguments":"{}"})];
    assert_eq!(agents::detect(lines(&items).as_bytes()), Some(agents::AgentFormat::OpenaiResponses));
}

/// Regression: a session of Qwen Code was joined to one of Claude Code, whose lines are linked in the same way.
#[test]
fn only_sessions_of_claude_code_go_on_in_other_files() {
    let line = |message: Value| {
        json!({"type":"user","uuid":"u2","parentUuid":"u1","sessionId":"s","timestamp":"2026-01-01T00:00:00Z","message":message})
            .to_string()
    };
    let claude = line(json!({"role":"user","content":"hi"}));
    assert_eq!(agents::continues(claude.as_bytes()).as_deref(), Some("u1"));
    let qwen = line(json!({"role":"user","parts":[{"text":"hi"}]}));
    assert_eq!(agents::continues(qwen.as_bytes()), None);
    // Older versions kept subagents in the session's file, where the second part of one may begin with theirs.
    let side = claude.replace("\"uuid\"", "\"isSidechain\":true,\"uuid\"");
    assert_eq!(agents::continues(side.as_bytes()).as_deref(), Some("u1"));
    let agent = side.replace("\"uuid\"", "\"agentId\":\"a\",\"uuid\"");
    assert_eq!(agents::continues(agent.as_bytes()), None);
}

#[test]
fn cursor_transcripts_are_read_with_their_calls() {
    let line = |role: &str, content: Value| json!({"role":role,"message":{"content":content}});
    let stamp = "<timestamp>Friday, May 8, 2026, 6:05 AM (UTC+5:30)</timestamp>";
    let prompt = format!("{stamp}\n<user_query>\nadd a health check\n</user_query>");
    let call = |input: Value| json!([{"type":"text","text":"I look."},{"type":"tool_use","name":"ReadFile","input":input}]);
    let file = [
        line("user", json!([{"type":"text","text":prompt}])),
        line("assistant", call(json!({"path":"/a/router.ts"}))),
        line("assistant", call(json!("*** Begin Patch\n*** End Patch"))),
        line("assistant", call(json!("*** Begin Patch\n*** End Patch"))),
        json!({"type":"turn_ended","status":"completed"}),
    ];
    let folder = "/home/u/.cursor/projects/a/agent-transcripts/c-1";
    // The last line of these files has no line break.
    let read = read_at(&format!("{folder}/c-1.jsonl"), lines(&file).trim_end());
    assert_eq!((read.format.name(), kept(&read)), ("cursor", vec!["turn_ended"]));
    let said = messages(&read);
    assert_eq!(said.len(), 4, "equal lines are kept");
    assert_eq!(said[0], json!({"role":"user","content":[{"type":"text","text":prompt}]}));
    assert_eq!(
        said[1]["content"][1],
        json!({"id":"call_2_1","type":"tool_use","name":"ReadFile","input":{"path":"/a/router.ts"}})
    );
    assert_eq!(read.entries[0].at, Some("2026-05-08T00:35:00Z".parse().unwrap()));
    assert_eq!(read.entries[0].title.as_deref(), Some("add a health check"));
    let agent = read_at(&format!("{folder}/subagents/s-1.jsonl"), &lines(&file));
    let origin = &agent.threads[0].1;
    assert_eq!((origin.agent.as_deref(), origin.parent), (Some("s-1"), Some(read.threads[0].0)));
}

/// Regression: what opencode adds to a prompt was the person's words, and its summary an answer like others.
#[test]
fn what_opencode_adds_is_not_said_by_the_user_and_its_summary_is_a_compaction() {
    let text = |id: &str, text: &str| json!({"id": id, "type": "text", "text": text});
    let synthetic = |id: &str, text: &str| json!({"id": id, "type": "text", "synthetic": true, "text": text});
    let info = |id: &str, role: &str| json!({"id": id, "sessionID": "ses_1", "role": role, "time": {"created": 1767261600000u64}});
    let mut summary = info("m4", "assistant");
    summary["summary"] = true.into();
    let file = json!({"info": {"id": "ses_1", "title": "New session - x"}, "messages": [
        {"info": info("m1", "user"), "parts": [text("p1", "Explain @a.ts"), synthetic("p2", "Called the Read tool"), synthetic("p3", "okapi")]},
        {"info": info("m2", "assistant"), "parts": [text("p4", "It is a constant.")]},
        {"info": info("m3", "user"), "parts": [{"id": "p5", "type": "compaction", "auto": true, "tail_start_id": "m2"}]},
        {"info": summary, "parts": [text("p6", "We looked at a.ts.")]},
        {"info": info("m5", "user"), "parts": [synthetic("p7", "Continue if you have next steps")]},
    ]});
    let read = read(file.to_string().as_bytes()).unwrap();
    let said: Vec<(&str, Option<bool>)> = turns(&read)
        .iter()
        .map(|turn| {
            let message: Value = serde_json::from_str(&turn.message).unwrap();
            let first = ["Explain", "Called", "It is", "Continue"]
                .into_iter()
                .find(|word| message["content"][0]["text"].as_str().unwrap().starts_with(word));
            let mark = turn
                .metadata
                .get("opencode")
                .and_then(|kept| serde_json::from_str::<Value>(kept.get()).unwrap()["synthetic"].as_bool());
            (first.unwrap(), mark)
        })
        .collect();
    assert_eq!(said, [("Explain", None), ("Called", Some(true)), ("It is", None), ("Continue", Some(true))]);
    let second =
        read.entries.iter().filter(|entry| matches!(entry.step, EntryContent::Turn(_))).nth(2).unwrap().name;
    let compaction = read.entries.iter().find_map(|entry| match &entry.step {
        EntryContent::Compaction { summary, kept, .. } => Some((summary.as_str(), *kept)),
        _ => None,
    });
    assert_eq!(compaction, Some(("We looked at a.ts.", Some(second))));
}

#[test]
fn exports_of_opencode_are_read_step_by_step() {
    let part = |kind: &str, text: &str| json!({"id":"prt","sessionID":"ses_1","messageID":"m","type":kind,"text":text});
    let tool = |id: &str, state: Value| json!({"type":"tool","callID":id,"tool":"bash","state":state});
    let answer = json!({"info":{"id":"msg_2","sessionID":"ses_1","role":"assistant","time":{"created":1_767_322_800_000_u64},
        "modelID":"kimi-k2","tokens":{"input":10,"output":5,"reasoning":2,"cache":{"read":7,"write":0}}},
        "parts":[{"type":"step-start"}, part("reasoning", "hm"), part("text", "I look."),
            tool("c1", json!({"status":"completed","input":{"command":"ls"},"output":"a.txt","title":"ls"})),
            tool("c2", json!({"status":"error","input":{"command":"rm"},"error":"denied"})),
            {"type":"step-finish"}, part("text", "One file.")]});
    let mut file = json!({"info":{"id":"ses_1","directory":"/work","title":"New session - 2026","version":"1.0","parentID":"ses_0",
        "time":{"created":1_767_322_790_000_u64}},
        "messages":[{"info":{"id":"msg_1","sessionID":"ses_1","role":"user","time":{"created":1_767_322_790_000_u64}},
            "parts":[part("text", "List the files")]}, answer, {"info":{"id":"msg_3","role":"user"},"parts":[]}]});
    for text in [file.to_string(), format!("{file:#}")] {
        let read = read(text.as_bytes()).unwrap();
        assert_eq!((read.format.name(), kept(&read)), ("opencode", vec!["message"]));
        assert_eq!(
            messages(&read),
            [
                json!({"role":"user","content":[{"type":"text","text":"List the files"}]}),
                json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"I look."},
                    {"type":"tool_call","id":"c1","name":"bash","arguments":{"command":"ls"}},
                    {"type":"tool_call","id":"c2","name":"bash","arguments":{"command":"rm"}}]}),
                json!({"role":"tool","content":[
                    {"type":"tool_result","tool_use_id":"c1","name":"bash","content":"a.txt"},
                    {"type":"tool_result","tool_use_id":"c2","name":"bash","content":"denied","is_error":true}]}),
                json!({"role":"assistant","content":[{"type":"text","text":"One file."}]}),
            ]
        );
        let said = turns(&read);
        let tokens = said[3].tokens.unwrap();
        assert_eq!(
            (said[3].model.as_deref(), tokens.prompt, tokens.completion),
            (Some("kimi-k2"), Some(17), Some(7))
        );
        assert!(said[1].metadata["opencode"].get().contains("step-finish"));
        let origin = &read.threads[0].1;
        assert_eq!((origin.session.as_deref(), origin.cwd.as_deref()), (Some("ses_1"), Some("/work")));
        assert!(origin.parent.is_some());
        assert_eq!(read.entries[0].title.as_deref(), Some("List the files"));
        assert_eq!(read.entries[0].at, Some("2026-01-02T02:59:50Z".parse().unwrap()));
    }
    // An export that was made earlier has the same names, and other versions of what was not whole.
    file["messages"][1]["parts"][6]["text"] = "One".into();
    let names = |value: &Value| -> Vec<(u64, u64)> {
        read(value.to_string().as_bytes())
            .unwrap()
            .entries
            .iter()
            .map(|entry| (entry.name, entry.key))
            .collect()
    };
    let earlier = names(&file);
    file["messages"][1]["parts"][6]["text"] = "One file.".into();
    let later = names(&file);
    assert_eq!(earlier[..3], later[..3]);
    assert!(earlier[3].0 == later[3].0 && earlier[3].1 != later[3].1);
}

/// Regression: a compressed file that was cut in its first block was called empty.
#[test]
fn a_compressed_file_that_is_cut_off_says_so() {
    let line = |n: u32| {
        let text = format!("question {n} about {}", n * 7919 % 1009);
        let line = json!({"type":"user","uuid":format!("u{n}"),"parentUuid":null,"sessionId":"s","cwd":"/w",
            "timestamp":"2026-01-01T00:00:00Z","message":{"role":"user","content":text}});
        format!("{line}\n")
    };
    let file: String = (0..4000).map(line).collect();
    let (zstd, gzip) = (zstd::encode_all(file.as_bytes(), 3).unwrap(), gzip(file.as_bytes()));
    let error = agents::open(&zstd[..200], None).err().unwrap();
    assert_eq!(error.code(), "import.cut_off");
    let cuts = [&zstd, &gzip].map(|packed| [(&packed[..packed.len() - 1000], true), (&packed[..], false)]);
    for (packed, cut) in cuts.into_iter().flatten() {
        let Ok(Opened::Agent(mut reader)) = agents::open(packed, None) else { panic!("not an agent's") };
        let turns = reader.by_ref().map(Result::unwrap).count();
        assert_eq!((turns > 0, turns < 4000), (true, cut));
        let told: Vec<String> = reader.problems().into_iter().map(|problem| problem.text).collect();
        assert_eq!(told.iter().any(|text| text.contains("compressed file is cut off")), cut, "{told:?}");
    }
}
