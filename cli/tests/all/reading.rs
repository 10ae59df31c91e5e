//! State, compaction, context and projection from the command line.

use crate::Shell;
use serde_json::{Value, json};

fn talk(shell: &Shell, turns: usize) -> String {
    let id = shell.new_conversation();
    for n in 0..turns {
        let text = format!("Look at src/part_{n}.rs, it takes {n}17 ms.");
        shell.ok(&["append", &id, &text, "--actor", "ana"]);
    }
    id
}

#[test]
fn a_conversation_is_compacted_shown_and_taken_back() {
    let shell = Shell::new();
    let id = talk(&shell, 8);
    let would = shell.ok(&["compact", &id, "--dry-run"]);
    assert!(would.starts_with("would summarize 4 turns (#2 to #5), "), "{would}");
    assert_eq!(shell.json(&["history", &id, "--events", "--json"])["data"].as_array().unwrap().len(), 9);
    let did = shell.ok(&["compact", &id, "--keep-last", "2"]);
    assert!(did.starts_with("summarized 6 turns (#2 to #7), ") && did.contains("extracted"), "{did}");
    assert!(did.contains("src/part_5.rs") && !did.contains("src/part_6.rs"), "{did}");
    let state = shell.json(&["state", &id, "--json"]);
    assert_eq!(state["recent_turn_ids"].as_array().unwrap().len(), 2);
    assert!(state["checkpoint"]["handoff_md"].is_string());
    assert_eq!(
        shell.json(&["history", &id, "--json"])["data"].as_array().unwrap().len(),
        8,
        "nothing is removed"
    );
    assert_eq!(shell.ok(&["compact", &id, "--revert"]), "reverted; nothing is summarized any more\n");
    assert!(shell.refused(&["compact", &id, "--revert"]).contains("no compaction to revert"));
}

#[test]
fn appends_from_the_command_line_are_compacted_by_themselves() {
    let shell = Shell::new();
    let policy = r#"{"compaction":{"max_turns":6,"strategy":"tail","keep_last":2}}"#;
    let id = shell.json(&["new", "--json", "--policy", policy])["id"].as_str().unwrap().to_string();
    for n in 0..8 {
        shell.ok(&["append", &id, &format!("step {n}")]);
    }
    let events = shell.json(&["history", &id, "--events", "--json"]);
    let kinds = events["data"].as_array().unwrap().iter().filter(|event| event["kind"] == "compaction");
    assert!(kinds.count() >= 1, "{events}");
}

#[test]
fn a_context_is_a_table_for_people_and_the_prompt_for_programs() {
    let shell = Shell::new();
    let id = talk(&shell, 6);
    shell.ok(&["pin", &id, "branch", "main"]);
    let table = shell.ok(&["context", &id, "--budget", "1000", "--input", "And now?"]);
    for line in ["section      tokens  parts", "tail ", "input ", "frame ", "of 1000 (o200k_base)", "sha256:"]
    {
        assert!(table.contains(line), "{line} is missing:\n{table}");
    }
    let long: Vec<Value> = (0..200)
        .map(|n| json!({"role": "user", "content": format!("{n}: {}", "many words ".repeat(20))}))
        .collect();
    std::fs::write(shell.path("long.json"), json!(long).to_string()).unwrap();
    let long = shell.json(&["import", "long.json", "--json"])["data"][0]["conversation"]["id"].clone();
    let long = long.as_str().unwrap();
    let table = shell.ok(&["context", long, "--budget", "300"]);
    assert!(table.contains("left out   tail, the rest of 200 turns: they do not fit"), "{table}");
    let context = shell.json(&["context", &id, "--budget", "1000", "--provider", "openai-chat", "--json"]);
    assert_eq!(context["messages"][0]["role"], "system");
    assert!(context["messages"][0]["content"].as_str().unwrap().contains("- branch: main"));
    assert!(context["tokens"]["used"].as_u64().unwrap() <= 1000);
    let recorded = shell.ok(&["context", &id, "--budget", "1000", "--input", "And now?", "--record"]);
    let seq = recorded.rsplit(' ').next().unwrap().trim().to_string();
    let shown = shell.ok(&["context", &id, "--budget", "1000", "--input", "And now?", "--show"]);
    shell.ok(&["unpin", &id, "branch"]);
    assert_eq!(shell.ok(&["context", &id, "--replay", &seq, "--show"]), shown, "byte for byte");
}

#[test]
fn a_projection_is_made_of_a_file_a_transcript_value_a_conversation_or_standard_input() {
    let shell = Shell::new();
    let call = |id: &str| {
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
            "function": {"name": "run", "arguments": "{}"}}]})
    };
    let messages = json!([call("c1"), {"role": "tool", "tool_call_id": "c1", "content": "error: no"},
        call("c2"), {"role": "tool", "tool_call_id": "c2", "content": "yes"}]);
    std::fs::write(shell.path("messages.json"), messages.to_string()).unwrap();
    let view = shell.json(&["project", "messages.json", "--policy", "clean_tool_repair"]);
    assert_eq!((&view["kept_indices"], &view["dropped_indices"]), (&json!([2, 3]), &json!([0, 1])));
    let transcript =
        json!({"_type": "transcript", "version": 2, "messages": messages, "summary": "It was tried."});
    let prefixed = shell.run_with(
        &["project", "-", "--policy", "summary_prefix", "--options", r#"{"keep_last": 2}"#, "--messages"],
        transcript.to_string().as_bytes(),
    );
    let shown: Value = serde_json::from_str(&prefixed.out).unwrap();
    assert_eq!((shown.as_array().unwrap().len(), &shown[0]["content"]), (3, &json!("It was tried.")));
    let id = shell.new_conversation();
    for message in messages.as_array().unwrap() {
        shell.ok(&["append", &id, "--message", &message.to_string()]);
    }
    let of_conversation = shell.json(&["project", &id, "--policy", "clean_tool_repair"]);
    assert_eq!(of_conversation["prefix_hash"], view["prefix_hash"], "the same messages, the same hash");
    std::fs::write(shell.path("keep-users.rhai"), "fn project(messages) { [2, 3] }").unwrap();
    let scripted =
        shell.json(&["project", "messages.json", "--policy", "custom", "--script", "keep-users.rhai"]);
    assert_eq!(scripted["kept_indices"], json!([2, 3]));
}

#[test]
fn what_cannot_be_done_is_said_with_what_to_do() {
    let shell = Shell::new();
    let id = talk(&shell, 2);
    let short = shell.new_conversation();
    for word in ["newest rust?", "1.91"] {
        shell.ok(&["append", &short, word]);
    }
    std::fs::write(shell.path("endless.rhai"), "loop { }").unwrap();
    std::fs::write(shell.path("list.json"), "[]").unwrap();
    for (args, says) in [
        (&["context", &id, "--budget", "2"][..], "token_budget is 2, but"),
        (&["context", &id, "--budget", "500", "--provider", "acme"], "\"acme\" is not one of openai-chat"),
        (
            &["context", &id, "--budget", "500", "--sections", "{\"tails\":true}"],
            "sections.tails is not one of",
        ),
        (&["context", &id, "--budget", "500", "--digest", "x"], "--digest must be TITLE=TEXT"),
        (&["context", &id, "--replay", "2"], "no context.receipt at seq 2"),
        (&["project", "list.json", "--policy", "magic"], "\"magic\" is unknown; use raw, clean_tool_repair"),
        (&["project", "list.json", "--policy", "raw", "--options", "{\"keep_lats\":1}"], "keep_lats"),
        (&["project", "list.json", "--policy", "custom"], "projector"),
        (
            &["project", "list.json", "--policy", "custom", "--script", "endless.rhai"],
            "SCRIPT_OPERATIONS_MAX",
        ),
        (&["compact", &id, "--keep-last", "5"], "nothing to compact: there are 2 turns"),
        (
            &["compact", &short, "--keep-last", "1"],
            "a summary of the oldest turn would be no shorter than the",
        ),
        (&["unpin", &id, "branch"], "nothing is pinned as \"branch\""),
        (&["new", "--policy", "{\"compaction\":{\"max_turn\":1}}"], "policy.compaction.max_turn"),
        (&["compact", &id, "--base-url", "ftp://x", "--model", "m"], "http"),
        (
            &["compact", &id, "--base-url", "http://x", "--model", "m", "--api-key-env", "NO_SUCH_KEY"],
            "NO_SUCH_KEY is not set",
        ),
    ] {
        let said = shell.refused(args);
        assert!(said.contains(says), "{args:?} says: {said}");
    }
}

#[test]
fn a_mirror_holds_a_file_of_each_conversation_that_verifies() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["--mirror", "mirror", "append", &id, "kept twice"]);
    let file = format!("mirror/default/{id}.jsonl");
    assert!(std::fs::read_to_string(shell.path(&file)).unwrap().contains("kept twice"));
    assert!(shell.ok(&["verify", &file]).contains("2 events"));
}
