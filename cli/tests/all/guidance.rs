//! What a newcomer is told: by answers, by errors and by hints at the next command.

use crate::Shell;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

fn call(shell: &Shell, conversation: &str, ids: &[&str]) {
    let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": "look", "input": {}});
    let message = json!({"role": "assistant", "content": ids.iter().map(call).collect::<Vec<_>>()});
    shell.ok(&["append", conversation, "--message", &message.to_string()]);
}

/// `everturn record` keeps the result of an MCP server as it came. It used to be shown as nothing, or as JSON.
#[test]
fn the_result_of_an_mcp_server_is_shown_as_its_text() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "What is it?"]);
    call(&shell, &id, &["c1"]);
    let result = r#"{"content": [{"type": "text", "text": "42"}], "isError": false}"#;
    let message = format!(
        r#"{{"role":"tool","content":[{{"type":"tool_result","tool_use_id":"c1","name":"answer","content":{result}}}]}}"#
    );
    shell.ok(&["append", &id, "--message", &message]);
    for args in [&["history", &id][..], &["history", &id, "--full"]] {
        let said = shell.ok(args);
        assert!(said.contains("← look: 42\n"), "{said}");
    }
    let page = shell.ok(&["export", &id, "--format", "markdown"]);
    assert!(page.contains("42") && !page.contains("isError"), "{page}");
    for (provider, content) in [
        ("openai-chat", "/messages/2/content"),
        ("openai-responses", "/messages/2/output"),
        ("anthropic", "/messages/2/content/0/content"),
    ] {
        let context = shell.json(&["context", &id, "--budget", "2000", "--provider", provider, "--json"]);
        assert_eq!(context.pointer(content), Some(&json!("42")), "{provider}: {context}");
    }
    let stored = shell.ok(&["export", &id, "--format", "session"]);
    assert!(stored.contains(result), "the bytes are those that came: {stored}");
    call(&shell, &id, &["c2"]);
    let other = r#"{"role":"tool","tool_call_id":"c2","content":[{"type":"tool_result","tool_use_id":"c2","content":{"code":7}}]}"#;
    shell.ok(&["append", &id, "--message", other]);
    assert!(shell.ok(&["history", &id]).contains("← look: {\"code\":7}\n"));
}

#[test]
fn a_result_without_a_waiting_call_is_noticed() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let none = shell.refused(&["append", &id, "--role", "tool", "--tool-call-id", "t9", "x"]);
    assert!(none.contains("no tool call \"t9\" waits for a result; none does"), "{none}");
    let note = shell.run(&["append", &id, "--role", "tool", "x"]);
    assert!(note.code == 0 && note.err.starts_with("note: no tool call waits for a result"), "{}", note.err);
    call(&shell, &id, &["t1", "t2"]);
    let other = shell.refused(&["append", &id, "--role", "tool", "--tool-call-id", "t9", "x"]);
    assert!(other.contains("these do: t1 (look), t2 (look)"), "{other}");
    let other = shell.refused(&["abandon-call", &id, "t9"]);
    assert!(other.contains("these do: t1 (look), t2 (look)"), "{other}");
    // A result that comes after its call was given up counts.
    shell.ok(&["abandon-call", &id, "t1"]);
    shell.ok(&["append", &id, "--role", "tool", "--tool-call-id", "t1", "late"]);
    // A repeated request is the same, though the call no longer waits.
    let again = ["append", &id, "--role", "tool", "--tool-call-id", "t2", "once", "--idempotency-key", "k"];
    assert_eq!(shell.ok(&again), shell.ok(&again));
}

#[test]
fn the_only_approval_need_not_be_named() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let question = shell.refused(&["request-approval", &id, "Deploy to production?"]);
    assert!(question.contains("looks like the question"), "{question}");
    assert!(shell.refused(&["approve", &id]).contains("no approval waits"));
    shell.ok(&["request-approval", &id, "a1", "--question", "Deploy?"]);
    assert!(
        shell.refused(&["deny", &id, "a7"]).contains(&format!("`everturn state {id}` shows those that do"))
    );
    assert!(shell.ok(&["approve", &id]).starts_with("approved at #"));
    shell.ok(&["request-approval", &id, "a2"]);
    shell.ok(&["request-approval", &id, "a3"]);
    assert!(shell.refused(&["approve", &id]).contains("2 approvals wait: a2, a3; name one"));
}

#[test]
fn hints_name_the_store_and_the_filters() {
    let shell = Shell::new();
    let store = format!("sqlite:{}", shell.path("a store.db").display());
    let run = |args: &[&str]| {
        let said = crate::Said::from(shell.command(args).env_remove("EVERTURN_STORE").output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.out
    };
    for title in ["One", "Two"] {
        run(&["new", "--title", title, "--store", &store]);
        run(&["append", "@last", "hello", "--actor", "ana b", "--store", &store]);
        run(&["append", "@last", "hello again", "--actor", "ana b", "--store", &store]);
    }
    let follow = |said: &str, hint: &str| {
        let (_, hint) = said.split_once(hint).unwrap_or_else(|| panic!("{said}"));
        let script =
            hint.lines().next().unwrap().trim().replacen("everturn", env!("CARGO_BIN_EXE_everturn"), 1);
        let said = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("XDG_CONFIG_HOME", shell.folder.path())
            .env("TZ", "UTC")
            .env_remove("EVERTURN_STORE")
            .output()
            .unwrap();
        assert!(said.status.success(), "{script}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    };
    let list = run(&["list", "--limit", "1", "--state", "active", "--store", &store]);
    assert!(list.contains("more: everturn list --state active --limit 1 --store"), "{list}");
    assert!(list.contains("Two") && follow(&list, "more: ").contains("One"));
    let newest = run(&["history", "@last", "--limit", "1", "--actor", "ana b", "--store", &store]);
    assert!(newest.contains("hello again") && follow(&newest, "earlier: ").contains("  hello\n"), "{newest}");
    let recorded = run(&["context", "@last", "--budget", "2000", "--record", "--store", &store]);
    assert!(follow(&recorded, "again: ").contains("total "), "{recorded}");
}

/// The last piece of a stream may be read together with its end; the answer was then shown twice.
#[test]
fn a_streamed_answer_is_shown_once() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let mut tail = shell.command(&["tail", &id]).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut writer = shell
        .command(&["append", &id, "--role", "assistant", "--stream", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    let mut seen: Vec<String> = Vec::new();
    let mut until = |words: &str, seen: &mut Vec<String>| {
        while !seen.last().is_some_and(|line| line.contains(words)) {
            seen.push(lines.next().expect("the tail goes on"));
        }
    };
    until("one", &mut seen);
    input.write_all(b"two").unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success());
    shell.ok(&["append", &id, "the end"]);
    until("the end", &mut seen);
    tail.kill().unwrap();
    tail.wait().unwrap();
    let count = |words: &str| seen.iter().filter(|line| line.contains(words)).count();
    assert_eq!((count("assistant  #"), count("one"), count("two")), (1, 1, 1), "{seen:#?}");
}

#[test]
fn answers_say_what_happened() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let turn = shell.json(&["append", &id, "To Faro.", "--json"])["id"].as_str().unwrap().to_string();
    let branch = shell.ok(&["edit", &turn, "To Porto.", "--branch"]);
    assert!(branch.contains("branched into conv_") && branch.contains(&format!("; {id} stays as it was")));
    let edited = shell.ok(&["supersede", &format!("{id}#2"), "To Rome."]);
    assert!(edited.contains("replaces #2, which stays in the log"), "{edited}");
    let none = shell.refused(&["update", &id]);
    assert!(none.contains("nothing to change"), "{none}");
    let updated = shell.ok(&["update", &id, "--ttl", "7d", "--metadata", r#"{"team": "web"}"#]);
    assert!(updated.contains("604800 seconds") && updated.contains("team: \"web\""), "{updated}");
    let malformed = shell.refused(&["update", &id, "--ttl", "soon"]);
    assert!(malformed.contains("--ttl: \"soon\" is not a length of time; write 3600, 12h or 7d, or none"));
    assert_eq!(shell.json(&["new", "--ttl", "1h", "--json"])["ttl"], 3600);
    let mistyped = shell.refused(&["new", "--policy", r#"{"compactoin": {}}"#]);
    assert!(mistyped.contains("policy.compactoin is unknown; known are compaction"), "{mistyped}");
    let reset = shell.ok(&["reset", &id]);
    assert!(
        reset.contains(&format!("starts over with the settings of {id}, which is closed now")),
        "{reset}"
    );
    let listed = shell.json(&["list", "--json"]);
    let shown = shell.json(&["show", &id, "--json"]);
    let listed = listed["data"].as_array().unwrap().iter().find(|one| one["id"] == shown["id"]).unwrap();
    assert_eq!(listed["metadata"], shown["metadata"], "metadata is the caller's own");
    assert!(shown["transcript_budget"]["policy"].is_object(), "{shown}");
    assert!(shell.ok(&["history", &id, "--actor", "nobody"]).starts_with("no turns match"));
    assert!(shell.ok(&["history", &id, "--after", "999"]).starts_with("no turns match"));
    shell.ok(&["export", &id, "-o", "talk.md"]);
    assert!(std::fs::read_to_string(shell.path("talk.md")).unwrap().starts_with("# "));
    let gone = shell.ok(&["delete", &id, "--reason", "test"]);
    assert!(gone.starts_with(&format!("deleted {id} and its ")) && gone.contains("a tombstone"), "{gone}");
    shell.ok(&["delete", "@last", "--reason", "test", "--yes"]);
}

#[test]
fn errors_name_the_option() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    for (args, says) in [
        (&["append", &id, "x", "--role", "asistant"][..], "--role: \"asistant\" is not one of user"),
        (&["list", "--state", "gone"], "--state: \"gone\" is not one of"),
        (&["recall", "x", "--mode", "fast"], "--mode: \"fast\" is not one of"),
        (&["new", "--retention", "all"], "--retention: \"all\" is not one of"),
        (&["supersede", "turn_01", "x"], "`everturn history CONV --ids` shows them"),
        (&["supersede", "#2", "x"], "nor a place such as @last#4"),
        (&["supersede", "@last#1", "x"], "has no turn #1"),
        (&["erase", "@last#99", "--reason", "x"], "has no turn #99"),
        (&["import", "--watch", "nowhere"], "nowhere does not exist"),
    ] {
        let said = shell.refused(args);
        assert!(said.contains(says), "{args:?}: {said}");
    }
    let unquoted = shell.run(&["append", &id, "hi", "there"]);
    assert!(
        unquoted.code == 2 && unquoted.err.contains(&format!("quote it: everturn append {id} 'hi there'"))
    );
    let missing = shell.run(&["append"]);
    assert!(missing.code == 2 && !missing.err.contains("--store"), "{}", missing.err);
    let empty: Value = shell.json(&["history", &id, "--json"]);
    assert_eq!(empty["data"], json!([]), "nothing was appended");
}
