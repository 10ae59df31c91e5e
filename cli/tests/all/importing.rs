//! `import` of agents' sessions: files, folders, default folders, following.

use crate::Shell;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than any step takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn line(session: &str, uuid: &str, text: &str) -> String {
    line_at("2026-01-01T00:00:00Z", session, uuid, text)
}

fn line_at(at: &str, session: &str, uuid: &str, text: &str) -> String {
    let message = json!({"role":"user","content":text});
    let line =
        json!({"type":"user","uuid":uuid,"sessionId":session,"cwd":"/w","timestamp":at,"message":message});
    format!("{line}\n")
}

fn put(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A home folder with sessions of three agents, and other files beside them.
fn home(shell: &Shell) {
    put(&shell.path(".claude/projects/-w/one.jsonl"), &line("one", "u1", "first of one"));
    put(&shell.path(".claude/projects/-w/two.jsonl"), &line("two", "u1", "first of two"));
    put(&shell.path(".claude/projects/-w/sessions-index.json"), "{\"version\":1,\"entries\":[]}");
    put(&shell.path(".claude/projects/-w/one/tool-results/big.txt"), "a large result");
    let rollout = [
        json!({"timestamp":"2026-01-01T00:00:00Z","type":"session_meta","payload":{"id":"c-1","cwd":"/w"}}),
        json!({"timestamp":"2026-01-01T00:00:01Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"from codex"}]}}),
    ];
    let rollout: String = rollout.iter().map(|line| format!("{line}\n")).collect();
    put(&shell.path(".codex/sessions/2026/01/01/rollout-1.jsonl"), &rollout);
    let chat = json!({"sessionId":"g","projectHash":"h","startTime":"t","messages":[{"id":"1","type":"user","content":"from gemini"}]});
    put(&shell.path(".gemini/tmp/abc/chats/session-1.json"), &chat.to_string());
    put(&shell.path(".gemini/tmp/abc/logs.json"), "[{\"type\":\"user\",\"message\":\"not a chat\"}]");
}

fn at_home(shell: &Shell, args: &[&str]) -> std::process::Command {
    let mut command = shell.command(args);
    command.env("HOME", shell.folder.path()).env_remove("CLAUDE_CONFIG_DIR").env_remove("CODEX_HOME");
    command
}

fn run(shell: &Shell, args: &[&str]) -> (String, i32) {
    let said = crate::Said::from(at_home(shell, args).output().unwrap());
    (format!("{}{}", said.out, said.err), said.code)
}

#[test]
fn without_a_path_everything_that_agents_left_is_found() {
    let shell = Shell::new();
    home(&shell);
    let (dry, code) = run(&shell, &["import", "--dry-run", "--json"]);
    assert_eq!(code, 0, "{dry}");
    let dry: Value = serde_json::from_str(&dry).unwrap();
    let found: Vec<_> = dry["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|source| {
            (
                source["format"].as_str().unwrap().to_string(),
                source["files"].clone(),
                source["conversations"].clone(),
                source["turns"].clone(),
            )
        })
        .collect();
    let expected = [("claude-code", 2), ("codex", 1), ("gemini-cli", 1)];
    assert_eq!(found, expected.map(|(format, n)| (format.to_string(), json!(n), json!(n), json!(n))));
    assert!(!shell.path("store.db").exists(), "nothing was made");
    let (text, _) = run(&shell, &["import", "--dry-run"]);
    assert!(text.contains("projects: 2 files, 2 conversations, 2 turns, "), "{text}");

    let (said, code) = run(&shell, &["import", "-v"]);
    assert_eq!((said.lines().filter(|line| line.starts_with("conv_")).count(), code), (4, 0), "{said}");
    assert!(said.contains("attached 1 file beside it"), "{said}");
    let unknown = said.lines().filter(|line| line.starts_with("not read  "));
    let unknown: Vec<&str> = unknown.filter_map(|line| line.split(['/', ':']).nth_back(1)).collect();
    assert_eq!(unknown, ["sessions-index.json"], "{said}");
    let total = "\n4 files: 4 conversations, 4 turns, 6 new events (1 more of unknown format)\n";
    assert!(said.ends_with(total), "{said}");
    assert_eq!(shell.json(&["list", "--json"])["data"].as_array().unwrap().len(), 4);
    let (again, code) = run(&shell, &["import"]);
    let total = "4 files: 4 conversations, 4 turns, 0 new events (1 more of unknown format)\n-v shows a line for each file\n";
    assert_eq!((again.as_str(), code), (total, 0));
    assert!(shell.ok(&["doctor"]).contains("everything is in order"));
}

/// Regression: threads without a turn were counted, though no import makes a conversation of them.
#[test]
fn a_dry_run_counts_what_an_import_makes() {
    let shell = Shell::new();
    let line = |uuid: &str, session: &str, text: &str, agent: Value| {
        let mut line = json!({"type": "user", "uuid": uuid, "sessionId": session, "cwd": "/w", "timestamp": "2026-01-01T00:00:00Z",
            "message": {"role": "user", "content": text}});
        line.as_object_mut().unwrap().extend(agent.as_object().unwrap().clone());
        format!("{line}\n")
    };
    let progress = json!({"type": "system", "subtype": "agent", "uuid": "p", "sessionId": "s", "isSidechain": true,
        "agentId": "quiet", "timestamp": "2026-01-01T00:00:00Z", "content": "started"});
    let lines = [
        line("a", "s", "Fix it", json!({})),
        format!("{progress}\n"),
        line("b", "s", "Look", json!({"isSidechain": true, "agentId": "helper"})),
        format!("{}\n", json!({"type": "summary", "summary": "Other", "leafUuid": "z", "sessionId": "t"})),
    ];
    put(&shell.path("work/a.jsonl"), &lines.concat());
    let dry = shell.json(&["import", "work", "--dry-run", "--json"])["data"][0].clone();
    shell.ok(&["import", "work"]);
    let made = shell.json(&["list", "--json"])["data"].as_array().unwrap().len();
    assert_eq!((&dry["conversations"], &dry["turns"]), (&json!(made), &json!(2)), "{dry}");
}

#[test]
fn sessions_of_other_agents_and_archived_ones_are_found() {
    let shell = Shell::new();
    let at = "2026-01-01T00:00:00Z";
    let session = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let user = |id: &str| json!({"type":"message","id":id,"parentId":null,"timestamp":at,"message":{"role":"user","content":"hi"}});
    put(
        &shell.path(".pi/agent/sessions/--w--/a.jsonl"),
        &session(&[json!({"type":"session","version":3,"id":"p","timestamp":at,"cwd":"/w"}), user("1")]),
    );
    put(
        &shell.path(".factory/sessions/-w/a.jsonl"),
        &session(&[json!({"type":"session_start","id":"d","cwd":"/w"}), user("1")]),
    );
    put(
        &shell.path(".qwen/projects/-w/chats/a.jsonl"),
        &session(&[
            json!({"uuid":"1","parentUuid":null,"sessionId":"q","timestamp":at,"type":"user","message":{"role":"user","parts":[{"text":"hi"}]}}),
        ]),
    );
    put(
        &shell.path(".copilot/session-state/c/events.jsonl"),
        &session(&[
            json!({"type":"session.start","data":{"sessionId":"c"},"id":"1","timestamp":at}),
            json!({"type":"user.message","data":{"content":"hi"},"id":"2","timestamp":at}),
        ]),
    );
    put(
        &shell.path(".kimi/sessions/f/k/context.jsonl"),
        &session(&[json!({"role":"_checkpoint","id":0}), json!({"role":"user","content":"hi"})]),
    );
    put(
        &shell.path(".cursor/projects/w/agent-transcripts/c/c.jsonl"),
        &session(&[
            json!({"role":"user","message":{"content":[{"type":"text","text":"<user_query>hi</user_query>"}]}}),
        ]),
    );
    put(
        &shell.path(".codex/archived_sessions/rollout-1.jsonl"),
        &session(&[
            json!({"timestamp":at,"type":"session_meta","payload":{"id":"x"}}),
            json!({"timestamp":at,"type":"response_item","payload":{"type":"message","role":"user","content":"hi"}}),
        ]),
    );
    let (said, code) = run(&shell, &["import", "--json"]);
    assert_eq!(code, 0, "{said}");
    let said: Value = serde_json::from_str(&said).unwrap();
    let files = said["data"].as_array().unwrap();
    let found: Vec<&str> = files.iter().map(|file| file["format"].as_str().unwrap()).collect();
    assert_eq!(found, ["codex", "pi", "droid", "qwen-code", "copilot-cli", "kimi-cli", "cursor"]);
    assert!(files.iter().all(|file| file["turns"] == 1), "{said}");
}

/// A session in Claude's shape: results and notices were shown as the user's words, and results without their tool.
#[test]
fn history_names_tools_and_notices() {
    let shell = Shell::new();
    let line = |uuid: &str, kind: &str, content: Value| {
        let message = json!({"role":kind,"content":content});
        json!({"type":kind,"uuid":uuid,"sessionId":"s","cwd":"/w","timestamp":"2026-01-01T00:00:00Z","message":message})
    };
    let file = [
        line("1", "user", json!("<command-name>/clear</command-name>")),
        line("2", "user", json!("What is there?")),
        line("3", "assistant", json!([{"type":"tool_use","id":"t","name":"Bash","input":{"command":"ls"}}])),
        line("4", "user", json!([{"type":"tool_result","tool_use_id":"t","content":"a.txt"}])),
    ];
    let text: String = file.iter().map(|line| format!("{line}\n")).collect();
    put(&shell.path("s.jsonl"), &text);
    let (said, code) = run(&shell, &["import", shell.path("s.jsonl").to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
    let (history, _) = run(&shell, &["history", "@last"]);
    let heads: Vec<&str> = history.lines().filter(|line| line.contains("  #")).collect();
    let who: Vec<&str> = heads.iter().map(|head| head.split("  ").next().unwrap()).collect();
    assert_eq!(who, ["command", "user", "assistant", "tool"], "{history}");
    assert!(history.contains("← Bash: a.txt"), "{history}");
    // In the shape of chat completions, the message itself is the result; output in an object is read.
    let chat = json!([
        {"role": "user", "content": "What is here?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "list_files", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "b.txt"},
        {"role": "tool", "name": "look", "content": "c.txt"},
    ]);
    put(&shell.path("chat.json"), &chat.to_string());
    let id = shell.json(&["import", "chat.json", "--json"])["data"][0]["conversation"]["id"].clone();
    let history = shell.ok(&["history", id.as_str().unwrap()]);
    assert!(history.contains("← list_files: b.txt") && history.contains("← look: c.txt"), "{history}");
    // A file of events alone is left out, which is no failure.
    put(
        &shell.path("empty.jsonl"),
        "{\"type\":\"file-history-snapshot\",\"messageId\":\"x\",\"snapshot\":{}}\n",
    );
    let (said, code) = run(&shell, &["import", shell.path("empty.jsonl").to_str().unwrap()]);
    assert_eq!((said.starts_with("left out"), code), (true, 0), "{said}");
    assert!(said.contains("a file of claude-code without turns"), "{said}");
    put(&shell.path("app.log"), "[2026-01-01] INFO started \"type\" \"role\"\n");
    let (said, code) = run(&shell, &["import", shell.path("app.log").to_str().unwrap()]);
    assert_eq!((said.lines().count(), code), (1, 1), "{said}");
    assert!(said.contains("it looks like text that is not JSON"), "{said}");
}

/// A line larger than a turn may be was counted as one by the report and the dry run, and not by `list`.
#[test]
fn a_line_that_is_too_large_for_a_turn_is_counted_as_none() {
    let shell = Shell::new();
    let lines = ["one".to_string(), "x".repeat(17 << 20), "three".to_string()];
    let said = lines.map(|text| serde_json::json!({"role": "user", "content": text}).to_string() + "\n");
    put(&shell.path("big.jsonl"), &said.concat());
    let dry = shell.json(&["import", "big.jsonl", "--dry-run", "--json"]);
    let turns = |value: &serde_json::Value| value["data"][0]["turns"].clone();
    assert_eq!(turns(&dry), 2, "{dry}");
    for _ in 0..2 {
        let report = shell.json(&["import", "big.jsonl", "--json"]);
        assert_eq!(turns(&report), 2);
        assert_eq!(report["data"][0]["kept"]["oversized"], 1);
        assert_eq!(report["data"][0]["conversation"]["turns"], 2);
    }
}

#[test]
fn where_nothing_is_that_is_said() {
    let shell = Shell::new();
    let (said, code) = run(&shell, &["import"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("nothing to import in") && said.contains(".claude/projects"), "{said}");
}

#[test]
fn one_bad_file_does_not_keep_the_others_out() {
    let shell = Shell::new();
    put(&shell.path("good.jsonl"), &line("good", "u1", "hello"));
    put(&shell.path("bad.jsonl"), "nonsense");
    put(&shell.path("torn.jsonl"), &format!("{}{{\"type\":\"us", line("torn", "u1", "hello")));
    let said = shell.run(&["import", "bad.jsonl", "good.jsonl", "torn.jsonl", "absent.jsonl", "--json"]);
    assert_eq!(said.code, 1);
    let reports: Value = serde_json::from_str(&said.out).unwrap();
    let reports = reports["data"].as_array().unwrap();
    assert!(reports[0]["error"].is_string() && reports[3]["error"].as_str().unwrap().contains("cannot open"));
    assert_eq!((&reports[1]["turns"], &reports[1]["added"]), (&json!(1), &json!(1)));
    assert!(reports[2]["problems"][0].as_str().unwrap().contains("cut off"), "{reports:?}");
    assert_eq!(shell.json(&["list", "--json"])["data"].as_array().unwrap().len(), 2);
}

/// Waits until a condition holds.
fn until(what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

#[test]
fn a_file_is_followed_until_ctrl_c() {
    let shell = Shell::new();
    let file = shell.path("logs/live.jsonl");
    put(&file, &line("live", "u1", "first words"));
    let mut child = at_home(&shell, &["import", "logs", "--watch"]).spawn().unwrap();
    let has = |text: &str| {
        let said = shell.run(&["history", "@last"]);
        said.out.contains(text)
    };
    until("the first line is there", || has("first words"));
    let mut out = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    // Half a line, then the rest of it.
    let second = line("live", "u2", "second words");
    out.write_all(&second.as_bytes()[..30]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    out.write_all(&second.as_bytes()[30..]).unwrap();
    until("the second line is there", || has("second words"));
    // A new file.
    put(&shell.path("logs/new.jsonl"), &line_at("2026-01-02T00:00:00Z", "new", "u1", "other words"));
    until("the new file is there", || has("other words"));
    // Others can write meanwhile.
    assert_eq!(shell.run(&["append", "@last", "mine"]).code, 0);
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    let turns = shell.json(&["history", "@last", "--json"])["data"].as_array().unwrap().len();
    assert_eq!(turns, 2);
}

#[test]
fn standard_input_cannot_be_watched() {
    let shell = Shell::new();
    assert!(shell.refused(&["import", "-", "--watch"]).contains("standard input cannot be watched"));
}

#[test]
fn what_was_imported_is_found_as_soon_as_the_import_ends() {
    let shell = Shell::new();
    // More than a store indexes while it closes.
    let many: String =
        (0..3000).map(|n| line("long", &format!("u{n}"), &format!("step {n} of many"))).collect();
    put(
        &shell.path("long.jsonl"),
        &format!("{}{many}", line("long", "first", "the heron nests in the reeds")),
    );
    let (said, code) = run(&shell, &["import", "long.jsonl"]);
    assert_eq!(code, 0, "{said}");
    let (found, code) = run(&shell, &["recall", "--embedder", "none", "heron"]);
    assert_eq!(code, 0, "{found}");
    assert!(found.contains("nests in the reeds") && !found.contains("not searched yet"), "{found}");
}

#[test]
fn a_deleted_session_is_left_out_and_that_is_no_failure() {
    let shell = Shell::new();
    put(&shell.path("s/one.jsonl"), &line("one", "u1", "first of one"));
    assert_eq!(run(&shell, &["import", "s"]).1, 0);
    let (said, code) = run(&shell, &["delete", "@last", "--reason", "private"]);
    assert_eq!(code, 0, "{said}");
    put(&shell.path("s/two.jsonl"), &line("two", "u1", "first of two"));
    let (said, code) = run(&shell, &["import", "s"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("2 files: 1 conversation, 1 turn, 1 new event (1 left out)\n"), "{said}");
    let (said, code) = run(&shell, &["import", "s", "-v"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("left out") && said.contains("was deleted on") && said.contains("0 new"), "{said}");
    let (json, _) = run(&shell, &["import", "s", "--json"]);
    assert!(json.contains("\"left_out\""), "{json}");
}

/// Of a session in two files, the one that sorts first by its name may be the later one. Its turns came first.
#[test]
fn files_of_a_session_are_read_in_the_order_of_their_time_and_late_ones_are_reported() {
    let shell = Shell::new();
    put(&shell.path("s/a.jsonl"), &line_at("2026-01-03T00:00:00Z", "one", "u3", "third"));
    put(&shell.path("s/b.jsonl"), &line_at("2026-01-02T00:00:00Z", "one", "u2", "second"));
    let (said, code) = run(&shell, &["import", "s"]);
    assert_eq!(code, 0, "{said}");
    let texts = || {
        let history = shell.json(&["history", "@last", "--json"]);
        let turns = history["data"].as_array().unwrap().clone();
        turns.iter().map(|turn| turn["content"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(texts(), ["second", "third"]);
    let info = shell.json(&["info", "@last", "--json"]);
    assert_eq!(info["began"], "2026-01-02T00:00:00.000000Z");
    assert_eq!(info["last_said"], "2026-01-03T00:00:00.000000Z");
    put(&shell.path("s/c.jsonl"), &line_at("2026-01-01T00:00:00Z", "one", "u1", "first"));
    let (said, code) = run(&shell, &["import", "s"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("c.jsonl (claude-code)"), "{said}");
    assert!(said.contains("1 turn said before what was imported earlier: appended at the end"), "{said}");
    assert_eq!(texts(), ["second", "third", "first"]);
    let (again, _) = run(&shell, &["import", "s", "--json"]);
    assert!(!again.contains("\"late\""), "{again}");
}

/// Regression: `info` named a conversation that did not exist.
#[test]
fn an_agent_without_its_session_works_for_nobody_until_that_is_there() {
    let shell = Shell::new();
    let with = |line: &str, fields: Value| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        format!("{line}\n")
    };
    let side = json!({"isSidechain": true, "agentId": "7"});
    put(&shell.path("agent-7.jsonl"), &with(&line("s", "x1", "find the bug"), side));
    let imported = shell.json(&["import", "agent-7.jsonl", "--json"]);
    let id = imported["data"][0]["conversation"]["id"].as_str().unwrap().to_string();
    assert!(!shell.ok(&["info", &id]).contains("works for"));
    assert_eq!(shell.json(&["info", &id, "--json"])["metadata"]["import"]["parent"], json!(null));
    put(&shell.path("s.jsonl"), &line("s", "u1", "look into it"));
    let session = shell.json(&["import", "s.jsonl", "--json"])["data"][0]["conversation"]["id"].clone();
    assert!(shell.ok(&["info", &id]).contains("works for"));
    assert_eq!(shell.json(&["info", &id, "--json"])["metadata"]["import"]["parent"], session);
}

/// A line of a session whose lines may be in several files.
fn chained(session: &str, n: usize) -> String {
    let parent = (n > 0).then(|| format!("u{}", n - 1));
    let at = format!("2026-01-01T00:0{n}:00Z");
    let message = json!({"role": "user", "content": format!("number {n}")});
    json!({"type": "user", "uuid": format!("u{n}"), "parentUuid": parent, "sessionId": session, "cwd": "/w", "timestamp": at, "message": message})
        .to_string()
}

/// Regression: only an import that found both files at once joined them.
#[test]
fn a_session_that_goes_on_in_another_file_is_followed_there() {
    let shell = Shell::new();
    put(&shell.path("logs/b.jsonl"), &format!("{}\n{}\n", chained("b", 0), chained("b", 1)));
    let mut child = at_home(&shell, &["import", "logs", "--watch"]).spawn().unwrap();
    let has = |text: &str| shell.run(&["history", "@last"]).out.contains(text);
    until("the beginning is there", || has("number 1"));
    put(&shell.path("logs/a.jsonl"), &format!("{}\n", chained("a", 2)));
    until("the next file is there", || has("number 2"));
    put(&shell.path("logs/c.jsonl"), &format!("{}\n", chained("c", 3)));
    until("the file after it is there", || has("number 3"));
    let mut out = std::fs::OpenOptions::new().append(true).open(shell.path("logs/c.jsonl")).unwrap();
    writeln!(out, "{}", chained("c", 4)).unwrap();
    until("what is added to it is there", || has("number 4"));
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let listed = shell.json(&["list", "--json"]);
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][0]["turns"]), (1, &json!(5)));
}

/// Regression: the total counted a turn once for each file that has it.
#[test]
fn a_turn_that_several_files_have_counts_once() {
    let shell = Shell::new();
    let first = line("one", "u1", "first of one");
    put(&shell.path("s/a.jsonl"), &first);
    put(&shell.path("s/b.jsonl"), &format!("{first}{}", line("one", "u2", "second of one")));
    assert!(shell.ok(&["import", "s", "--dry-run"]).contains(": 2 files, 1 conversation, 2 turns, "));
    let said = shell.ok(&["import", "s"]);
    assert!(said.starts_with("2 files: 1 conversation, 2 turns, 2 new events"), "{said}");
}

/// Regression: a session that went on in another file under another id was two conversations. In one file it was one.
#[test]
fn a_session_that_goes_on_in_another_file_is_one_conversation() {
    let shell = Shell::new();
    let line = chained;
    // The last line has no end. Names are against the order of time.
    put(&shell.path("cross/b.jsonl"), &[line("b", 0), line("b", 1)].join("\n"));
    put(&shell.path("cross/a.jsonl"), &[line("a", 2), line("a", 3)].join("\n"));
    put(&shell.path("cross/c.jsonl"), &[line("c", 4), String::new()].join("\n"));
    let said = shell.ok(&["import", "cross"]);
    assert!(said.starts_with("3 files: 1 conversation, 5 turns, 5 new events"), "{said}");
    assert!(shell.ok(&["import", "cross"]).contains("5 turns, 0 new events"));
    let history = shell.ok(&["history", "@last"]);
    let places: Vec<_> = (0..5).map(|n| history.find(&format!("number {n}"))).collect();
    assert!(places.is_sorted() && places[0].is_some(), "{history}");
    assert_eq!(shell.json(&["list", "--json"])["data"].as_array().unwrap().len(), 1);
}

/// A file that was imported alone, before the one that it goes on from, left a conversation that nothing spoke of.
#[test]
fn a_conversation_of_a_part_of_a_session_is_named_when_the_whole_comes() {
    let shell = Shell::new();
    put(&shell.path("all/a.jsonl"), &[chained("a", 0), chained("a", 1), String::new()].join("\n"));
    put(&shell.path("all/b.jsonl"), &[chained("b", 2), chained("b", 3), String::new()].join("\n"));
    let id = |file: &str| {
        let report = shell.json(&["import", file, "--json"]);
        report["data"][0]["conversation"]["id"].as_str().unwrap().to_string()
    };
    let (first, second) = (id("all/a.jsonl"), id("all/b.jsonl"));
    assert_ne!(first, second);
    let said = shell.ok(&["import", "all"]);
    assert!(said.contains(&format!("everturn delete {second}")), "{said}");
    // What somebody went on with is more than a part.
    shell.ok(&["append", &second, "And now?", "--actor", "ana"]);
    assert!(!shell.ok(&["import", "all"]).contains("everturn delete"));
}

/// An earlier beginning gives the conversation its title, and the report did not say so.
#[test]
fn the_report_of_a_late_piece_names_the_title() {
    let shell = Shell::new();
    put(&shell.path("new.jsonl"), &line_at("2026-02-01T00:00:00Z", "s", "n", "First question about kites"));
    put(&shell.path("old.jsonl"), &line_at("2026-01-01T00:00:00Z", "s", "o", "Even earlier question"));
    put(&shell.path("newer.jsonl"), &line_at("2026-03-01T00:00:00Z", "s", "p", "And a tail?"));
    shell.ok(&["import", "new.jsonl"]);
    // What goes on in another file is no new beginning.
    shell.ok(&["import", "newer.jsonl"]);
    assert_eq!(shell.json(&["info", "@last", "--json"])["title"], "First question about kites");
    let said = shell.ok(&["import", "old.jsonl"]);
    let late = "1 turn said before what was imported earlier: appended at the end; the title is \"Even earlier question\"";
    assert!(said.contains(late), "{said}");
}

/// Regression: the first line of a file with a byte order mark was unreadable where it went on from another file, and a
/// file was not joined to one if its own first line, or that of the other, began with a mark.
#[test]
fn a_byte_order_mark_is_part_of_no_line_of_joined_files() {
    let shell = Shell::new();
    let linked = |uuid: &str, parent: Option<&str>, session: &str, at: &str| {
        let mut line: Value = serde_json::from_str(&line_at(at, session, uuid, uuid)).unwrap();
        line["parentUuid"] = json!(parent);
        format!("\u{feff}{line}\n")
    };
    put(&shell.path("all/a.jsonl"), &linked("first-of-all", None, "a", "2026-01-01T00:00:00Z"));
    put(&shell.path("all/b.jsonl"), &linked("second", Some("first-of-all"), "b", "2026-01-02T00:00:00Z"));
    let report = shell.json(&["import", "all", "--json"]);
    let reports = report["data"].as_array().unwrap();
    assert_eq!(reports.len(), 1, "{report}");
    assert_eq!((&reports[0]["turns"], &reports[0]["events"]), (&json!(2), &json!(2)), "{report}");
}

/// Regression: "No such file or directory".
#[cfg(target_os = "linux")]
#[test]
fn a_file_name_need_not_be_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    let shell = Shell::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.jsonl");
    std::fs::create_dir(shell.path("all")).unwrap();
    std::fs::write(shell.path("all").join(name), line("one", "u1", "hello")).unwrap();
    let report = shell.json(&["import", "all", "--json"]);
    assert_eq!(report["data"][0]["turns"], 1, "{report}");
    let said =
        crate::Said::from(shell.command(&["import"]).arg(shell.path("all").join(name)).output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("0 new"), "{}", said.out);
}

/// Regression: the second part of a session was read by itself where it began within a subagent, so its first prompt was the
/// title, and the rest of that subagent a conversation of its own.
#[test]
fn a_part_of_a_session_that_begins_within_a_subagent_goes_on_from_the_part_before() {
    let shell = Shell::new();
    let line = |n: usize, parent: Option<usize>, side: bool, text: &str| {
        let mut line: Value = serde_json::from_str(&chained("s", n)).unwrap();
        line["parentUuid"] = json!(parent.map(|parent| format!("u{parent}")));
        line["isSidechain"] = json!(side);
        line["message"]["content"] = json!(text);
        line.to_string()
    };
    let first =
        [line(0, None, false, "Create the app, please"), line(1, None, true, "Write the types, please")];
    let second = [line(2, Some(1), true, "Go on with them"), line(3, Some(0), false, "Thanks, now the docs")];
    put(&shell.path("parts/b.jsonl"), &first.join("\n"));
    put(&shell.path("parts/a.jsonl"), &second.join("\n"));
    shell.ok(&["import", "parts"]);
    let listed = shell.json(&["list", "--json"]);
    let of = |title: &str| {
        let all = listed["data"].as_array().unwrap();
        all.iter().find(|one| one["title"] == title).map(|one| one["turns"].as_u64().unwrap())
    };
    assert_eq!((of("Create the app, please"), of("Write the types, please")), (Some(2), Some(2)), "{listed}");
    assert_eq!(listed["data"].as_array().unwrap().len(), 2, "{listed}");
}
