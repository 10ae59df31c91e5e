//! Writing and reading conversations.

use crate::{Shell, assert_shows};
use std::io::{BufRead, BufReader};

#[test]
fn a_conversation_reads_pleasantly() {
    let shell = Shell::new();
    shell.new_conversation();
    shell.ok(&["append", "@last", "What did we decide?", "--actor", "alice"]);
    let message = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
        {"type":"text","text":"Let me look.\nOne moment."},
        {"type":"tool_use","id":"1","name":"grep","input":{"pattern":"TODO"}}]}"#;
    shell.ok(&["append", "@last", "--message", message, "--actor", "claude", "--model", "sonnet"]);
    let result =
        shell.run_with(&["append", "@last", "--role", "tool", "--actor", "grep", "-"], b"one\ntwo\nthree\n");
    assert_eq!(result.code, 0);
    assert_shows!(shell.ok(&["history", "@last"]), @r#"
    alice (user)  #2  TIME
      What did we decide?

    claude (assistant)  #3  TIME  (sonnet)
      ✻ hm
      Let me look.
      One moment.
      → grep {"pattern":"TODO"}

    grep (tool)  #4  TIME
      ← one ⏎ two ⏎ three
    "#);
    assert_shows!(shell.ok(&["list"]), @r"
    id                               last turn (UTC)   turns  title
    conv_ID  TIME      3  Fix the build
    ");
}

#[test]
fn json_is_one_object_or_a_list_with_next() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    for word in ["one", "two", "three"] {
        let turn = shell.json(&["append", &id, word, "--json"]);
        assert_eq!(turn["content"], word);
        assert_eq!(turn["status"], "complete");
    }
    let page = shell.json(&["history", &id, "--limit", "2", "--json"]);
    let words: Vec<_> = page["data"].as_array().unwrap().iter().map(|turn| turn["content"].clone()).collect();
    assert_eq!(words, ["two", "three"]);
    assert_eq!(page["next"], "3", "the page before ends here");
    let before = shell.json(&["history", &id, "--before", "3", "--json"]);
    assert_eq!((&before["data"][0]["content"], &before["next"]), (&"one".into(), &serde_json::Value::Null));
    let list = shell.json(&["list", "--json"]);
    assert_eq!(list["data"][0]["id"], id);
    let events = shell.json(&["history", &id, "--events", "--json"]);
    assert_eq!(events["data"][0]["kind"], "conversation.created");
}

#[test]
fn a_prefix_or_last_names_a_conversation() {
    let shell = Shell::new();
    let (first, second) = (shell.new_conversation(), shell.new_conversation());
    assert!(first != second);
    shell.ok(&["append", &first[..30], "hello"]);
    let history = shell.json(&["history", "@last", "--json"]);
    assert_eq!(history["data"][0]["conversation"], first, "the last one changed");
    let shared = &first[..8];
    let error = shell.refused(&["history", shared]);
    assert!(error.contains("could be conv_") && error.contains("write more of it"), "{error}");
}

#[test]
fn a_stream_is_kept_while_it_comes() {
    let shell = Shell::new();
    shell.new_conversation();
    let said = shell.run_with(
        &["append", "@last", "--role", "assistant", "--stream", "--json", "-"],
        "naïve\nwords".as_bytes(),
    );
    assert_eq!(said.code, 0, "{}", said.err);
    let turn = shell.json(&["history", "@last", "--json"])["data"][0].clone();
    assert_eq!((&turn["content"], &turn["status"]), (&"naïve\nwords".into(), &"complete".into()));
    let cut = shell.run_with(&["append", "@last", "--stream", "-"], b"good then \xff bad");
    assert_eq!(cut.code, 1);
    assert!(cut.err.contains("not UTF-8") && cut.err.contains("kept in turn_"), "{}", cut.err);
}

#[test]
fn tail_follows_what_another_process_writes() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let mut tail = shell.command(&["tail", &id, "--json", "--from", "1"]).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["kind"], "conversation.created");
    for word in ["one", "two"] {
        shell.ok(&["append", &id, word]);
        assert_eq!(next()["body"]["message"]["content"], word);
    }
    tail.kill().unwrap();
    tail.wait().unwrap();
}

#[test]
fn a_fork_shares_the_past_and_not_the_future() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "shared"]);
    shell.ok(&["append", &id, "only in the first"]);
    let fork = shell.json(&["fork", &id, "--at", "2", "--json"]);
    let fork = fork["id"].as_str().unwrap();
    shell.ok(&["append", fork, "only in the fork"]);
    let words = |id: &str| -> Vec<String> {
        let page = shell.json(&["history", id, "--json"]);
        page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|turn| turn["content"].as_str().unwrap().to_string())
            .collect()
    };
    assert_eq!(words(&id), ["shared", "only in the first"]);
    assert_eq!(words(fork), ["shared", "only in the fork"]);
    assert!(shell.ok(&["verify", fork]).starts_with("ok"));
}

/// Asserts that no file in a folder, at any depth, contains these bytes.
fn assert_nowhere(folder: &std::path::Path, words: &[u8]) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_nowhere(&path, words);
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(words.len()).any(|window| window == words), "{}", path.display());
    }
}

#[test]
fn an_erased_turn_and_a_deleted_conversation_leave_proof() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let turn = shell.json(&["append", &id, "a secret nobody should keep", "--json"])["id"]
        .as_str()
        .unwrap()
        .to_string();
    shell.ok(&["erase", &turn, "--reason", "asked for"]);
    assert!(shell.ok(&["history", &id]).contains("‹erased›"));
    assert_shows!(shell.ok(&["verify", &id]), @"ok  conv_ID  3 events, 1 erased, head HASH");
    let stone = shell.json(&["delete", &id, "--reason", "test", "--json"]);
    assert_eq!((&stone["id"], &stone["reason"]), (&id.clone().into(), &"test".into()));
    assert!(shell.refused(&["history", &id]).contains("no conversation"));
    assert_nowhere(shell.folder.path(), b"a secret nobody");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let long = "x".repeat(200_000);
    shell.run_with(&["append", &id, "-"], long.as_bytes());
    let mut child = shell.command(&["history", &id]).spawn().unwrap();
    drop(child.stdout.take());
    let said = child.wait_with_output().unwrap();
    assert_eq!((said.status.code(), said.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn tenants_do_not_see_each_other() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    assert_eq!(
        shell.ok(&["list", "--tenant", "other"]),
        "no conversations; `everturn new` creates one, `everturn import` finds those of agents\n"
    );
    assert!(shell.refused(&["history", &id, "--tenant", "other"]).contains("no conversation"));
}
