//! Conversations written out: what a reader sees, and what nobody can smuggle into a page.

use crate::document_valid::{check_markdown, check_page};
use crate::log::{Log, conversation_id};
use crate::provider_valid::check;
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::event::{Draft, Visibility, kind};
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_core::turn::{Role, Tokens, TurnBody};
use everturn_core::write::Summarized;
use everturn_formats::provider::{Input, Media, NoMedia, Provider, render, request_fields};
use everturn_formats::render::{Outline, Preamble, Style, document};
use everturn_views::compaction::{Checkpoint, CompactionBody, Covers, EXTRACTIVE};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A red square of 16 by 16 pixels.
const SQUARE: &str = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mO4Y2NDEmIY1TCqYfhqAADtZBYPX60O0QAAAABJRU5ErkJggg==";

struct OneAsset;

impl Media for OneAsset {
    fn bytes(&self, id: &str) -> Option<(String, Vec<u8>)> {
        use base64::Engine;
        let bytes = || base64::engine::general_purpose::STANDARD.decode(SQUARE).unwrap();
        (id == "asset_1").then(|| ("image/png".into(), bytes()))
    }

    fn label(&self, id: &str) -> Option<String> {
        Some(if id == "asset_1" { "gate.png".into() } else { format!("{id}, lost") })
    }
}

/// Somebody says something.
fn say(log: &mut Log, actor: Option<&str>, role: Role, body: TurnBody) -> TurnId {
    let kind = if role == Role::Tool { kind::TOOL_RESULT } else { kind::MESSAGE };
    let draft = log.draft(kind, Raw::of(&body).unwrap().get());
    let turn = TurnId(draft.id.0);
    log.append(Draft { role: Some(role), actor: actor.map(str::to_string), turn: Some(turn), ..draft });
    turn
}

fn message(value: Value) -> TurnBody {
    TurnBody { message: Some(Raw::of(&value).unwrap()), ..TurnBody::default() }
}

fn written(log: &Log, style: Style) -> String {
    let conversation = log.conversation.as_ref().unwrap();
    let prompt = conversation.system_prompt.map(|prompt| {
        let settings: Settings = log.events[prompt.seq as usize - 1].read().unwrap();
        settings.system_prompt.flatten().unwrap()
    });
    let mut out = Vec::new();
    let mut turns = log.turns();
    turns.sort_by_key(|turn| turn.seq);
    let mut outline = Outline::default();
    turns.iter().for_each(|turn| outline.note(turn, None));
    let about = Preamble {
        conversation,
        system_prompt: prompt.as_ref(),
        outline: &outline,
        given_up: &[],
        media: &OneAsset,
    };
    let mut document = document(style, &mut out, about).unwrap();
    let mut turns = turns.into_iter().peekable();
    for event in &log.events {
        if let Some(turn) = turns.next_if(|turn| turn.seq == event.seq) {
            document.turn(&turn).unwrap();
        } else if event.kind == kind::COMPACTION {
            document.event(event).unwrap();
        }
    }
    document.finish().unwrap();
    String::from_utf8(out).unwrap()
}

/// Everything that a conversation can have, in the shapes of several providers.
fn example() -> Log {
    let settings = Settings {
        title: Some(Some("Trip to *Porto* & back".into())),
        system_prompt: Some(Some(SystemPrompt::new(
            "You plan trips.\n\n- Be brief.\n- Never book without asking.".into(),
        ))),
        ..Settings::default()
    };
    let mut log = Log::created(conversation_id(7), settings);
    let ask = "We want to go to **Porto** on Friday.\nTwo people, at most 900 EUR. Which flights are there?";
    say(&mut log, Some("ana"), Role::User, message(json!({"role": "user", "content": ask})));
    let search = json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Friday is the 9th. I look for *direct* flights first.", "signature": "c2lnbmVk"},
        {"type": "text", "text": "I look at the flights for both of you."},
        {"type": "tool_use", "id": "toolu_1", "name": "search_flights",
            "input": {"from": "HAM", "to": "OPO", "date": "2026-01-09", "persons": 2, "max_price": 900.00}},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Porto"}},
    ]});
    say(
        &mut log,
        Some("planner"),
        Role::Assistant,
        TurnBody { model: Some("claude-sonnet-4-5".into()), ..message(search) },
    );
    let found = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "TP 567  09:40  HAM-OPO  2 seats  312.00 EUR\nTP 569  17:05  HAM-OPO  4 seats  287.50 EUR\n"},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "Error: the weather service does not answer", "is_error": true},
    ]});
    say(&mut log, None, Role::User, message(found));
    let draft = say(
        &mut log,
        Some("planner"),
        Role::Assistant,
        message(json!({"role": "assistant", "content": "Only one flight is left."})),
    );
    let answer = "# Two flights\n\nBoth are *direct*, see [the airline](https://example.org/flights?a=1&b=2):\n\n\
        | flight | leaves | price |\n|---|---|---:|\n| `TP 567` | 09:40 | 312.00 |\n| `TP 569` | 17:05 | 287.50 |\n\n\
        - [x] within the budget\n- [ ] booked\n\nTo book it yourself:\n\n```sh\nbook --flight 'TP 569' --persons 2 # asks before it pays\n```\n\n> Prices change.";
    let better = say(
        &mut log,
        Some("planner"),
        Role::Assistant,
        TurnBody {
            model: Some("claude-sonnet-4-5".into()),
            ..message(json!({"role": "assistant", "content": answer}))
        },
    );
    log.about(kind::SUPERSEDED, draft, &format!(r#"{{"by":"{better}"}}"#));
    let checkpoint = Checkpoint {
        goal: "Two people to Porto on Friday".into(),
        user_constraints: vec!["at most 900 EUR".into()],
        handoff_md: "TP 567 and TP 569 fit.".into(),
        ..Checkpoint::default()
    };
    let to = log.turns().into_iter().find(|turn| turn.seq == 5).unwrap().id;
    let body = CompactionBody {
        checkpoint: Some(checkpoint),
        covers: Covers { from_seq: 3, to_seq: 5, turns: 3 },
        summarized: Some(Summarized { through: to, through_seq: 5, turns_before: 3 }),
        previous: None,
        summarizer: EXTRACTIVE.into(),
        prompt_hash: None,
        input_hash: everturn_core::chain::Hash::of(b""),
        tokens_before: 300,
        tokens_after: 40,
        reverts: None,
        restores: None,
    };
    log.add(kind::COMPACTION, Raw::of(&body).unwrap().get());
    let photo = json!({"role": "user", "content": [
        {"type": "text", "text": "Is this the right gate? The sign says:\n\n<h1>B7</h1>"},
        {"type": "image", "asset_id": "asset_1"},
        {"type": "image_url", "image_url": {"url": "https://example.org/map.png"}},
        {"type": "file", "file": {"filename": "ticket.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
    ]});
    say(&mut log, Some("ben"), Role::User, message(photo));
    let call = json!({"type": "function_call", "call_id": "call_9", "name": "shell", "arguments": "{\"command\":\"cat gates.md\"}"});
    say(&mut log, Some("planner"), Role::Assistant, message(call));
    let said = json!({"type": "function_call_output", "call_id": "call_9", "output": "```\nB7  OPO\n```\n"});
    say(&mut log, None, Role::Tool, message(said));
    let private = message(json!({"role": "assistant", "content": "Ben always forgets the gate."}));
    let turn = log.turn(Role::Assistant, Visibility::Private, &private);
    assert_eq!(log.turns().iter().filter(|t| t.id == turn).count(), 1);
    say(
        &mut log,
        None,
        Role::Assistant,
        message(
            json!({"role": "model", "parts": [{"text": "Yes, **B7**. Boarding is at 09:10:\n\n```text\nunclosed"}]}),
        ),
    );
    say(&mut log, Some("ana"), Role::User, message(json!({"role": "user", "content": "Thanks!"})));
    log
}

/// The file in `tests/all/render` says what is written; `EVERTURN_UPDATE=1` writes it anew.
fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/all/render/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("EVERTURN_UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(
        kept == text,
        "{name} is written otherwise now; look at it, then run with EVERTURN_UPDATE=1\n{text}"
    );
}

#[test]
fn a_rich_conversation_is_written_as_the_golden_files_say() {
    let log = example();
    golden("example.md", &written(&log, Style::Markdown));
    golden("example.html", &written(&log, Style::Html));
    for provider in Provider::ALL.into_iter().filter(|provider| *provider != Provider::Neutral) {
        golden(&format!("example.{provider}.json"), &written(&log, Style::Messages(provider)));
    }
}

/// What a provider is sent: valid, with the ids that were there, and nothing that is private, superseded or sealed by
/// somebody else. Read again it is written the same.
/// A page of a long session was a scroll of hours: nothing said where it ran, what it cost, and where each prompt is.
#[test]
fn the_head_of_a_page_has_project_branch_tokens_and_prompts() {
    let origin = json!({"format": "claude-code", "cwd": "/home/ana/<web>", "git_branch": "fix/login"});
    let metadata = [("import".to_string(), Raw::of(&origin).unwrap())].into();
    let mut log = Log::created(conversation_id(9), Settings { metadata, ..Settings::default() });
    let user = |text: &str| message(json!({"role": "user", "content": text}));
    let counted = |prompt, completion| TurnBody {
        tokens: Some(Tokens { prompt: Some(prompt), completion }),
        ..message(json!({"role": "assistant", "content": "Done."}))
    };
    say(&mut log, None, Role::User, user("Fix <b>the</b> build.\n\nIt is red."));
    say(&mut log, None, Role::Assistant, counted(1200, Some(30)));
    say(&mut log, None, Role::User, user("<command-name>/clear</command-name>"));
    // A reminder behind the words was shown with them.
    let text = |text: &str| json!({"type": "text", "text": text});
    let reminded = json!([text("Look again."), text("<system-reminder>\nbe brief\n</system-reminder>")]);
    say(&mut log, None, Role::User, message(json!({"role": "user", "content": reminded})));
    let secret =
        json!({"role": "user", "content": [{"type": "text", "text": "the key", "visibility": "private"}]});
    say(&mut log, None, Role::User, message(secret));
    say(&mut log, None, Role::Assistant, counted(1300, None));
    say(&mut log, None, Role::User, user(&"And now something long. ".repeat(20)));
    let page = written(&log, Style::Html);
    let head = page.split("<main").next().unwrap();
    for part in [
        "<dt>Agent</dt><dd>claude-code</dd>",
        "<dt>Project</dt><dd>/home/ana/&lt;web&gt;</dd>",
        "<dt>Branch</dt><dd>fix/login</dd>",
        "<dt>Tokens</dt><dd>2,500 in, 30 out</dd>",
        "<summary>3 prompts</summary>",
        "<li><a href=\"#t2\">Fix &lt;b&gt;the&lt;/b&gt; build. It is red.</a></li>",
        "<li><a href=\"#t5\">Look again.</a></li>",
        "<li><a href=\"#t8\">And now something long.",
        "long. And…</a></li>",
    ] {
        assert!(head.contains(part), "{part} is missing:\n{head}");
    }
    assert!(!page.contains("the key"));
    for seq in [2, 5, 8] {
        assert!(page.contains(&format!("id=\"t{seq}\"")), "#{seq} cannot be reached");
    }
}

/// Claude Code writes notices of its own into messages of the user; they were shown as the user's words.
#[test]
fn notices_are_folded_and_named() {
    let mut log = Log::created(conversation_id(9), Settings::default());
    let user = |text: &str| message(json!({"role":"user","content":text}));
    say(&mut log, None, Role::User, user("<command-name>/clear</command-name>"));
    let meta = [("claude_code".to_string(), Raw::new(r#"{"isMeta":true}"#.into()).unwrap())];
    say(&mut log, None, Role::User, TurnBody { metadata: meta.into(), ..user("Continue.") });
    say(&mut log, None, Role::User, user("Fix the build."));
    let page = written(&log, Style::Html);
    let notice = |kind: &str, text: &str| {
        format!("<summary>Notice: {kind} <span class=\"hint\">{text}</span></summary>\n<pre>\n{text}</pre>")
    };
    assert!(page.contains(&notice("command", "/clear")), "{page}");
    assert!(page.contains(&notice("program text", "Continue.")), "{page}");
    assert_eq!(page.matches("<article class=\"turn user\"").count(), 1, "{page}");
    let text = written(&log, Style::Markdown);
    assert_eq!(text.matches("## User").count(), 1, "{text}");
    assert!(!text.contains("command-name"), "{text}");

    // Open tabs of an editor stood as headings among the words of the person.
    let tabs =
        "# Context from my IDE setup:\n\n## Open tabs:\n- a.rs\n\n## My request for Codex:\nRename it.";
    say(&mut log, None, Role::User, user(tabs));
    let page = written(&log, Style::Html);
    assert!(page.contains("<summary>Notice: editor state <span"), "{page}");
    assert!(page.contains("<div class=\"prose\">\n<p>Rename it.</p>\n</div>"), "{page}");
    assert!(!page.contains("Open tabs:</h"), "{page}");
    let text = written(&log, Style::Markdown);
    assert!(text.contains("<summary>Notice: editor state</summary>"), "{text}");
    assert_eq!(text.matches("## User").count(), 2, "{text}");
}

/// Edits were shown as the JSON of a call.
#[test]
fn an_edit_is_shown_as_a_difference() {
    let mut log = Log::created(conversation_id(9), Settings::default());
    let call =
        |id: &str, input: serde_json::Value| json!({"type":"tool_use","id":id,"name":"Edit","input":input});
    let one = json!({"file_path":"src/<a>.rs","old_string":"fn a() {\n    1\n}","new_string":"fn a() {\n    2 < 3\n}"});
    let many = json!({"path":"b.rs","edits":[{"old_text":"x","new_text":""}]});
    let content = json!([call("1", one), call("2", many), call("3", json!({"pattern":"x","n":3}))]);
    say(&mut log, None, Role::Assistant, message(json!({"role":"assistant","content":content})));
    let page = written(&log, Style::Html);
    for part in [
        "<code>Edit</code> <span class=\"hint\">src/&lt;a&gt;.rs</span>",
        "<pre>\n  fn a() {\n<span class=\"removed\">-     1</span>\n<span class=\"added\">+     2 &lt; 3</span>\n  }\n</pre>",
        "<span class=\"hint\">b.rs</span></summary>\n<pre>\n<span class=\"removed\">- x</span>\n</pre>",
        "<span class=\"hint\">pattern: x, n: 3</span></summary>\n<pre>\n{",
    ] {
        assert!(page.contains(part), "{part} is missing:\n{page}");
    }
}

/// Output that Codex had wrapped in JSON was shown with the escapes of a string in a string.
#[test]
fn json_in_a_tool_result_is_laid_out_for_reading() {
    let mut log = Log::created(conversation_id(9), Settings::default());
    let call = |id: &str| json!({"type":"function_call","call_id":id,"name":"shell","arguments":"{}"});
    for (id, output) in [
        ("c1", "{\"output\":\"alpha.txt\\nwombat.yaml\",\"metadata\":{\"exit_code\":0}}"),
        ("c2", "{\"files\":[1.50,2]}"),
    ] {
        say(&mut log, None, Role::Assistant, message(call(id)));
        let result = json!({"type":"function_call_output","call_id":id,"output":output});
        say(&mut log, None, Role::Tool, message(result));
    }
    let page = written(&log, Style::Html);
    assert!(page.contains("<pre>\nalpha.txt\nwombat.yaml</pre>"), "{page}");
    assert!(page.contains("{\n  &quot;files&quot;: [\n    1.50,\n    2\n  ]\n}"), "{page}");
    assert!(written(&log, Style::Markdown).contains("\nalpha.txt\nwombat.yaml\n"));
}

/// Regression: a result without content became a line `tool_result` without a result, and a call without arguments one without
/// parameters, which the check of session files calls wrong.
#[test]
fn what_lacks_a_field_of_its_line_is_a_message_in_a_session() {
    for value in [
        json!({"role": "tool", "tool_call_id": "a"}),
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read"}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": true}]}),
    ] {
        let mut log = Log::created(conversation_id(7), Settings::default());
        let role = everturn_core::message::role(&value).unwrap();
        say(&mut log, None, role, message(value.clone()));
        let file = written(&log, Style::Session);
        let report = everturn_formats::session::check(file.as_bytes()).unwrap();
        assert!(report.is_ok(), "{report:?}\n{file}");
        assert_eq!(report.by_type.get("message"), Some(&1), "{file}");
    }
}

/// Such a message made the export fail: the line has a time of its own.
#[test]
fn a_message_with_a_time_of_its_own_is_a_line_of_a_session() {
    for (time, key) in [("2026-06-13T10:00:00", "original_timestamp"), ("2026-06-13T10:00:00Z", "timestamp")]
    {
        let mut log = example();
        say(
            &mut log,
            None,
            Role::System,
            message(json!({"role":"system","content":"be good","timestamp":time})),
        );
        let text = written(&log, Style::Session);
        let line = text.lines().find(|line| line.contains("be good")).unwrap();
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line[key].as_str().unwrap().starts_with("2026-06-13T10:00:00"), "{line}");
    }
}

#[test]
fn a_list_of_messages_is_valid_and_comes_back_equal() {
    for provider in Provider::ALL {
        let list: Value = serde_json::from_str(&written(&example(), Style::Messages(provider))).unwrap();
        let (messages, system) = request_fields(provider);
        let messages = list[messages].as_array().unwrap().clone();
        check(provider.as_str(), system.and_then(|field| list.get(field)), &messages).unwrap();
        let text = list.to_string();
        assert!(
            ["toolu_1", "toolu_2", "call_9", "Never book"].iter().all(|word| text.contains(word)),
            "{provider}: {text}"
        );
        assert!(!text.contains("forgets") && !text.contains("Only one flight"), "{provider}: {text}");
        assert_eq!(text.contains("c2lnbmVk"), provider == Provider::Anthropic, "{provider}: {text}");
        assert!(text.contains(SQUARE), "{provider}: pictures are inline");
        let again = render(provider, &Input { system: &[], messages: &messages, media: &NoMedia }).unwrap();
        let again: Vec<Value> = again.messages.iter().map(|raw| raw.read().unwrap()).collect();
        assert_eq!(again, messages, "{provider}");
    }
}

#[test]
fn an_empty_conversation_is_a_whole_document() {
    let log = Log::created(conversation_id(7), Settings::default());
    assert_eq!(written(&log, Style::Messages(Provider::OpenaiChat)), "{\"messages\":[\n]}\n");
    assert_eq!(written(&log, Style::Messages(Provider::Gemini)), "{\"contents\":[\n]}\n");
    assert!(written(&log, Style::Html).ends_with("</main>\n</body>\n</html>\n"));
    assert!(written(&log, Style::Markdown).starts_with("# conv"));
}

/// What people try, in every place where words of a stranger are shown.
const HOSTILE: [&str; 19] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "</pre></details></article></main><script>alert(1)</script>",
    "[click](javascript:alert(1)) [again](JaVaScRiPt:alert(1)) [t](java\tscript:alert(1)) <javascript:alert(1)>",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==) ![y](data:image/svg+xml,<svg onload=alert(1)>)",
    "[r]: javascript:alert(1)\n\n[r] ![r]",
    "[a](&#106;avascript&colon;alert(1)) [b](vbscript:x) [c](<java\u{1}script:x>) [d]( JAVASCRIPT:x \"t\") ![e](file:///etc/passwd)",
    "[f](data:text/html,x) <vbscript:x> [g](java&Tab;script:x) [h](\\javascript:x) [i](x-apple:y) \\\\[j](javascript:x)",
    "> [q]: DATA:text/html,x\n\n- [q][] [![p](javascript:x)](https://example.org)",
    "![a\" onerror=\"alert(1)](https://example.org/\"onerror=\"alert(1))",
    "<!-- \n```\n-->\n```\n<script>alert(1)</script>",
    "````\n```\n</details>\n<style>*{display:none}</style>",
    "</title><style>@import 'https://evil.example'</style><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<svg/onload=alert(1)><iframe src=javascript:alert(1)><base href=https://evil.example>",
    "a\u{0}b\u{8}c\u{1b}[31m \u{202e}evil",
    "| a |\n|---|\n| <img src=x onerror=alert(1)> |",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#106;avascript:alert(1)",
    "``` \" onclick=\"alert(1)\n<b>x</b>\n```",
];

/// A conversation in which everything is this text.
fn hostile(evil: &str) -> Log {
    let name: String = evil.chars().filter(|c| !c.is_control()).collect();
    let settings = Settings {
        title: Some(Some(evil.into())),
        system_prompt: Some(Some(SystemPrompt::new(evil.into()))),
        ..Settings::default()
    };
    let mut log = Log::created(conversation_id(7), settings);
    for content in [
        json!(evil),
        json!([{"type": "text", "text": evil}, {"type": "thinking", "thinking": evil}, {"type": evil, "x": evil}]),
        json!([{"type": "image", "mime_type": evil, "data": "aGVsbG8=", "name": evil}]),
        json!([{"type": "image", "mime_type": "image/svg+xml", "data": "PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+", "name": evil}]),
        json!([{"type": "image_url", "image_url": {"url": format!("data:image/svg+xml;base64,{evil}")}}]),
        json!([{"type": "image_url", "image_url": {"url": evil}}, {"type": "image_url", "image_url": {"url": format!("javascript:{evil}")}}]),
        json!([{"type": "image_url", "image_url": {"url": format!("https://example.org/{evil}")}}]),
        json!([{"type": "file", "file": {"filename": evil, "file_data": format!("data:{evil};base64,aGVsbG8=")}}]),
        json!([{"type": "document", "title": evil, "source": {"type": "text", "media_type": "text/plain", "data": evil}}]),
        json!([{"type": "tool_use", "id": evil, "name": evil, "input": {evil: evil}}]),
        json!([{"type": "tool_result", "tool_use_id": evil, "content": evil}]),
        json!([{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": evil}, {"type": "image", "asset_id": evil}]}]),
        json!([{"type": "tool_use", "id": "y", "name": "f", "input": evil}]),
    ] {
        for role in [Role::User, Role::Assistant] {
            let body = message(json!({"role": role.as_str(), "content": content, "name": evil}));
            say(&mut log, Some(&name), role, TurnBody { model: Some(evil.into()), ..body.clone() });
            say(&mut log, None, role, body);
        }
    }
    let turn =
        say(&mut log, Some(&name), Role::Assistant, message(json!({"role": "assistant", "content": evil})));
    let other = say(&mut log, None, Role::Assistant, message(json!({"role": "assistant", "content": "x"})));
    log.about(kind::SUPERSEDED, turn, &format!(r#"{{"by":"{other}"}}"#));
    log
}

#[test]
fn nothing_that_is_said_becomes_part_of_the_page() {
    check_page(&written(&example(), Style::Html)).unwrap();
    for evil in HOSTILE {
        let page = written(&hostile(evil), Style::Html);
        check_page(&page).unwrap_or_else(|why| panic!("{evil}: {why}\n{page}"));
    }
    for (page, why) in [
        ("<style></style><script>", "a tag <script>"),
        ("<style></style><p onclick=\"x\">", "onclick"),
        ("<style></style><a href=\"javascript:x\">", "javascript"),
        ("<style></style><p>", "left open"),
    ] {
        assert!(check_page(page).unwrap_err().contains(why), "the check itself sees {page}");
    }
}

#[test]
fn in_markdown_nothing_that_is_said_reaches_beyond_its_turn() {
    for text in
        ["# t\n[x](javascript:y)", "# t\n[x]: vbscript:y\n\n## a\n[x]", "# t\n![x](data:image/svg+xml,y)"]
    {
        assert!(check_markdown(text).unwrap_err().contains("link"), "the check itself sees {text}");
    }
    let harmless = check_markdown(&written(&hostile("x"), Style::Markdown)).unwrap();
    assert!(harmless > 20, "{harmless} turns");
    for evil in HOSTILE {
        let text = written(&hostile(evil), Style::Markdown);
        assert_eq!(check_markdown(&text), Ok(harmless), "{evil}\n{text}");
    }
}

fn nasty() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("```"),
        Just("````\n"),
        Just("~~~\n"),
        Just("`"),
        Just("\n"),
        Just("\n\n"),
        Just("<!--"),
        Just("-->"),
        Just("<details>"),
        Just("</details>"),
        Just("<script>"),
        Just("<b"),
        Just(">"),
        Just("# "),
        Just("## x\n"),
        Just("\n===\n"),
        Just("\n---\n"),
        Just("- "),
        Just("> "),
        Just("    "),
        Just("1. "),
        Just("["),
        Just("]("),
        Just(")"),
        Just("javascript:"),
        Just("]: data:x\n"),
        Just("https://a.b"),
        Just("<?"),
        Just("<![CDATA["),
        Just("]]>"),
        Just("<pre>"),
        Just("\\"),
        Just("&"),
        Just("\""),
        Just("'"),
        Just("|"),
        Just("|---|\n"),
        Just("word"),
        Just("é☃"),
        Just("\t"),
        Just("\r\n"),
        Just("\r"),
        Just("\u{0}"),
        Just("*"),
        Just("!["),
        Just("<https://a.b>"),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_is_said_both_documents_stay_whole(texts in prop::collection::vec(nasty(), 1..4)) {
        let mut log = Log::created(conversation_id(7), Settings { title: Some(Some(texts[0].clone())), ..Settings::default() });
        for text in &texts {
            say(&mut log, None, Role::User, message(json!({"role": "user", "content": text})));
            let blocks = json!([{"type": "thinking", "thinking": text}, {"type": "tool_use", "id": "a", "name": text, "input": text}]);
            say(&mut log, None, Role::Assistant, message(json!({"role": "assistant", "content": blocks})));
            say(&mut log, None, Role::Tool, message(json!({"role": "tool", "tool_call_id": "a", "content": text})));
        }
        let (page, text) = (written(&log, Style::Html), written(&log, Style::Markdown));
        prop_assert!(check_page(&page).is_ok(), "{:?}\n{}", check_page(&page), page);
        prop_assert_eq!(check_markdown(&text), Ok(texts.len() * 2), "{}", text);
    }
}

#[test]
fn words_that_nest_without_end_are_written_too() {
    let mut log = Log::created(conversation_id(7), Settings::default());
    for text in
        [">".repeat(20_000), "- ".repeat(5_000), "[".repeat(20_000), "*a ".repeat(20_000), "<".repeat(20_000)]
    {
        say(&mut log, None, Role::User, message(json!({"role": "user", "content": text})));
    }
    assert!(written(&log, Style::Html).ends_with("</html>\n"));
    assert!(written(&log, Style::Markdown).len() > 80_000);
}

/// Regression: characters that nobody sees turned names and titles around, and a link could claim to lead elsewhere.
#[test]
fn a_page_shows_characters_that_mislead_and_where_links_lead() {
    let evil = "mal\u{202e}lory &#8238;x `a\u{200b}b` [https://bank.example](https://evil.example/login) <https://ok.example>";
    let html = written(&hostile(evil), Style::Html);
    assert!(!html.contains(['\u{202e}', '\u{200b}']));
    assert!(html.contains("<h1>mal‹U+202E›lory &amp;#8238;x"), "the title");
    assert!(html.contains("mal‹U+202E›lory ‹U+202E›x <code>a‹U+200B›b</code>"), "the text");
    assert!(
        html.contains(">https://bank.example</a> <span class=\"hint\">(https://evil.example/login)</span>")
    );
    assert!(html.contains(">https://ok.example</a>") && !html.contains("(https://ok.example)"));
}
