//! What a person at a terminal reads and types.

use crate::Shell;
use serde_json::{Value, json};

/// A session of Claude Code in a project, with a subagent.
fn session(shell: &Shell, name: &str, project: &str, day: &str) {
    let line = |n: usize, kind: &str, content: Value, more: Value| {
        let mut line = json!({"type": kind, "uuid": format!("{name}{n}"), "sessionId": name, "cwd": project,
            "gitBranch": "main", "version": "2.1.0", "timestamp": format!("{day}T10:0{n}:00Z"),
            "message": {"role": kind, "content": content}});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("{line}\n")
    };
    let lines = [
        line(0, "user", json!(format!("Fix {name}")), json!({})),
        line(1, "assistant", json!([{"type": "text", "text": "I ask a helper."}]), json!({})),
        line(2, "user", json!("Look around"), json!({"isSidechain": true, "agentId": "helper"})),
    ];
    std::fs::write(shell.path(&format!("{name}.jsonl")), lines.concat()).unwrap();
    shell.ok(&["import", &format!("{name}.jsonl")]);
}

#[test]
fn a_list_has_agent_and_project_and_subagents_below() {
    let shell = Shell::new();
    session(&shell, "login", "/home/ada/web", "2026-01-05");
    session(&shell, "parser", "/home/ada/api", "2026-01-07");
    session(&shell, "layout", "/home/ada/web", "2026-01-06");
    let list = shell.ok(&["list"]);
    let lines: Vec<&str> = list.lines().collect();
    let columns = |line: &str| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).skip(1).collect::<Vec<_>>().join("|")
    };
    assert_eq!(columns(lines[0]), "last turn (UTC)|turns|agent|project|title", "{list}");
    assert_eq!(columns(lines[1]), "2026-01-07 10:01|2|claude-code|api|Fix parser", "{list}");
    assert!(lines[2].starts_with("  conv_") && lines[2].contains("2026-01-07 10:02"), "{list}");
    assert_eq!(columns(lines[3]), "2026-01-06 10:01|2|claude-code|web|Fix layout", "{list}");
    let place = |line: &str| line.find("claude-code");
    assert!(lines[1..].iter().all(|line| place(line) == place(lines[1])), "columns are aligned:\n{list}");
    assert_eq!(lines.len(), 7, "{list}");

    let web = shell.ok(&["list", "--project", "web"]);
    assert!(web.contains("Fix login") && web.contains("Fix layout") && !web.contains("Fix parser"), "{web}");
    assert_eq!(shell.ok(&["list", "--project", "/home/ada/"]).lines().count(), 7);
    let since = shell.ok(&["list", "--since", "2026-01-06"]);
    assert!(
        since.contains("Fix parser") && since.contains("Fix layout") && !since.contains("Fix login"),
        "{since}"
    );
    assert!(shell.ok(&["list", "--since", "7d"]).starts_with("no such conversations"));
    assert!(shell.refused(&["list", "--since", "soon"]).contains("write 2026-01-31, '2026-01-31 14:30'"));
    let more = shell.ok(&["list", "--project", "web", "--limit", "1"]);
    let next = more.lines().last().unwrap().strip_prefix("more: everturn ").unwrap();
    let next: Vec<&str> = next.split(' ').collect();
    assert_eq!(next[..5], ["list", "--project", "web", "--limit", "1"]);
    assert!(shell.ok(&next).contains("web"));
    // By agent, and the same for what was said.
    shell.ok(&["new", "--title", "Other", "--metadata", r#"{"agent": "codex"}"#]);
    shell.ok(&["append", "@last", "I ask a helper, too."]);
    let codex = shell.ok(&["list", "--agent", "codex"]);
    assert!(codex.contains("Other") && !codex.contains("Fix"), "{codex}");
    assert_eq!(shell.ok(&["list", "--agent", "claude"]).lines().count(), 7);
    shell.ok(&["recall", "--index"]);
    let found = shell.ok(&["recall", "helper", "--project", "web"]);
    assert!(found.contains("Fix login") && found.contains("Fix layout"), "{found}");
    assert!(!found.contains("Fix parser") && !found.contains("Other"), "{found}");
    assert!(found.lines().next().unwrap().ends_with("  web"), "{found}");
    let found = shell.ok(&["recall", "helper", "--agent", "codex"]);
    assert!(found.contains("Other") && !found.contains("Fix"), "{found}");
    assert_eq!(shell.run(&["recall", "helper", "--agent", "codex", "--project", "web"]).code, 1);
    let web =
        shell.json(&["list", "--query", "login", "--json"])["data"][0]["id"].as_str().unwrap().to_string();
    assert_eq!(shell.run(&["recall", "helper", "--agent", "codex", "--conversation", &web]).code, 1);
    assert!(
        shell.ok(&["recall", "helper", "--project", "web", "--conversation", &web]).contains("Fix login")
    );
    shell.ok(&["delete", "@last", "--reason", "test", "--yes"]);
    // The last said, and not the last stored.
    assert!(shell.ok(&["history", "@last"]).contains("Look around"));
    shell.ok(&["new", "--title", "Now"]);
    assert!(shell.ok(&["info", "@last"]).starts_with("Now\n"));
}

#[test]
fn times_are_local_and_say_so() {
    let shell = Shell::new();
    session(&shell, "login", "/home/ada/web", "2026-01-05");
    let tokyo = |args: &[&str]| {
        let said = crate::Said::from(shell.command(args).env("TZ", "JST-9").output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.out
    };
    let list = tokyo(&["list", "--query", "login"]);
    assert!(list.contains("last turn (JST)") && list.contains("2026-01-05 19:01 "), "{list}");
    let id = &list.lines().nth(1).unwrap()[..31];
    assert!(tokyo(&["history", id]).contains("2026-01-05 19:00:00 JST"));
    assert!(tokyo(&["info", id]).contains("2026-01-05 19:00:00 JST"));
    // A day begins at local midnight: 19:01 there is after 19:00 there, and 10:01 in UTC.
    assert!(tokyo(&["list", "--since", "2026-01-05 19:01"]).contains("Fix login"));
    assert!(tokyo(&["list", "--since", "2026-01-05 19:03"]).starts_with("no such"));
    assert!(tokyo(&["recall", "helper", "--since", "2026-01-05 19:00"]).contains("I ask a helper."));
    assert_eq!(shell.run(&["recall", "helper", "--after", "2026-01-06"]).code, 1);
}

#[test]
fn a_conversation_is_described_and_renamed() {
    let shell = Shell::new();
    session(&shell, "login", "/home/ada/web", "2026-01-05");
    let id =
        shell.json(&["list", "--query", "login", "--json"])["data"][0]["id"].as_str().unwrap().to_string();
    let renamed = shell.ok(&["rename", &id, "Login", "on", "phones"]);
    assert!(renamed.contains("Login on phones"), "{renamed}");
    let info = shell.ok(&["info", &id]);
    for line in [
        "Login on phones\n",
        "  agent         claude-code\n",
        "  project       /home/ada/web\n",
        "  branch        main\n",
        "  turns         2\n",
        "  began         2026-01-05 10:00:00 UTC\n",
        "  last turn     2026-01-05 10:01:00 UTC\n",
        &format!("  id            {id}\n"),
    ] {
        assert!(info.contains(line), "{line} is missing:\n{info}");
    }
    let fork = shell.json(&["fork", &id, "--at", "2", "--json"]);
    assert_eq!(fork["title"], "Login on phones (fork at #2)");
    let below = shell.json(&["fork", fork["id"].as_str().unwrap(), "--json"]);
    assert_eq!(below["title"], "Login on phones (fork at #4)");
    let info = shell.ok(&["info", fork["id"].as_str().unwrap()]);
    assert!(info.contains(&format!("  fork of       {id} at #2\n")), "{info}");
    assert!(shell.ok(&["rename", &id, ""]).contains("Fix login"));
    assert!(shell.ok(&["info", &id]).starts_with("Fix login\n"));

    // A fork of what has no title says so, and has the times of its turns.
    let said = shell.ok(&["fork", &id, "--at", "2"]);
    assert!(said.contains("Fix login (fork at #2)"), "{said}");
    let untitled = shell.json(&["fork", &id, "--at", "2", "--json"]);
    assert_eq!(untitled["preview"], "Fix login (fork at #2)");
    let list = shell.ok(&["list"]);
    let line = list.lines().find(|line| line.contains(untitled["id"].as_str().unwrap())).unwrap();
    assert!(line.contains("2026-01-05 10:00 ") && line.ends_with("Fix login (fork at #2)"), "{list}");
    let info = shell.ok(&["info", untitled["id"].as_str().unwrap()]);
    assert!(info.starts_with("Fix login (fork at #2)\n"), "{info}");
    for line in ["  began         2026-01-05 10:00:00 UTC\n", "  last turn     2026-01-05 10:00:00 UTC\n"] {
        assert!(info.contains(line), "{line} is missing:\n{info}");
    }
    // Also where a long title is cut.
    shell.ok(&["rename", &id, &"Login ".repeat(20)]);
    shell.ok(&["fork", &id, "--at", "2"]);
    assert!(shell.ok(&["list"]).contains(" Login… (fork at #2)\n"), "{}", shell.ok(&["list"]));
    let fork = shell.json(&["fork", &id, "--at", "2", "--title", "Another way", "--json"]);
    assert_eq!(fork["title"], "Another way");
}

#[test]
fn everything_is_exported_into_a_folder() {
    let shell = Shell::new();
    session(&shell, "login", "/home/ada/web", "2026-01-05");
    shell.ok(&["rename", "@last", "Äpfel / Birnen: ../und mehr"]);
    let said = shell.run(&["export", "--all", "out", "--format", "html"]);
    assert_eq!((said.out.as_str(), said.err.as_str(), said.code), ("", "wrote 2 files to out\n", 0));
    let mut names: Vec<String> = std::fs::read_dir(shell.path("out"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let plain = |name: &str| name.split("_conv_").next().unwrap().to_string();
    assert_eq!(
        names.iter().map(|name| plain(name)).collect::<Vec<_>>(),
        ["2026-01-05_fix-login", "2026-01-05_äpfel-birnen-und-mehr"]
    );
    assert!(names.iter().all(|name| name.ends_with(".html")), "{names:?}");
    let page = std::fs::read_to_string(shell.path("out").join(&names[0])).unwrap();
    assert!(
        page.contains("<dt>Project</dt><dd>/home/ada/web</dd>")
            && page.contains("<dt>Branch</dt><dd>main</dd>")
    );
    let again = shell.run(&["export", "--all", "out", "--format", "html"]);
    assert_eq!(again.err, "wrote 0 files to out; 2 files there already, --force replaces them\n");
    assert_eq!(
        shell.run(&["export", "--all", "out", "--format", "html", "--force"]).err,
        "wrote 2 files to out\n"
    );
    assert_eq!(shell.run(&["export", "--all", "out", "@last"]).code, 2);
    shell.ok(&["export", "--all", "logs"]);
    for file in std::fs::read_dir(shell.path("logs")).unwrap() {
        shell.ok(&["verify", file.unwrap().path().to_str().unwrap()]);
    }
}

#[test]
fn help_shows_the_options_of_the_verb_first() {
    let shell = Shell::new();
    for verb in ["list", "recall", "export", "import", "append"] {
        for flag in ["--help", "-h"] {
            let help = shell.ok(&[verb, flag]);
            let (own, global) =
                help.split_once("\nGlobal options:\n").unwrap_or_else(|| panic!("{verb} {flag}:\n{help}"));
            assert!(
                !own.contains("--store") && global.contains("--store") && global.contains("--json"),
                "{help}"
            );
            assert!(own.contains("\nOptions:\n"), "{help}");
        }
    }
}

#[test]
fn a_shell_completes_verbs_and_ids() {
    let shell = Shell::new();
    session(&shell, "login", "/home/ada/web", "2026-01-05");
    let id =
        shell.json(&["list", "--query", "login", "--json"])["data"][0]["id"].as_str().unwrap().to_string();
    let complete = |words: &[&str], store: bool| {
        let mut command = shell.command(&["--"]);
        command.args(words).env("EVERTURN_COMPLETE", "fish");
        if !store {
            command.env_remove("EVERTURN_STORE").env("XDG_DATA_HOME", shell.path("elsewhere"));
        }
        let said = crate::Said::from(command.output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.out
    };
    assert!(complete(&["everturn", "hist"], true).contains("history"));
    let ids = complete(&["everturn", "history", "conv_"], true);
    assert!(ids.contains(&format!("{id}\tFix login\n")), "{ids}");
    assert_eq!(ids.lines().count(), 2, "{ids}");
    assert!(complete(&["everturn", "export", "@"], true).contains("@last"));
    assert!(complete(&["everturn", "recall", "--conversation", "conv_"], true).contains(&id));
    let url = format!("sqlite:{}", shell.path("store.db").display());
    assert!(complete(&["everturn", "--store", &url, "fork", &id[..12]], false).contains(&id));
    assert_eq!(complete(&["everturn", "fork", "conv_"], false), "", "no store, no ids, no error");
    let script = shell.ok(&["completions", "bash"]);
    assert!(script.contains("EVERTURN_COMPLETE"), "{script}");
}

#[test]
fn there_is_a_manual() {
    let shell = Shell::new();
    let page = shell.ok(&["man"]);
    assert!(page.contains(".TH everturn 1") && page.contains("A conversation store for AI agents"), "{page}");
    shell.ok(&["man", "man1"]);
    let recall = std::fs::read_to_string(shell.path("man1/everturn-recall.1")).unwrap();
    assert!(recall.contains("which port did we choose"), "{recall}");
    assert!(shell.path("man1/everturn.1").exists());
}

#[test]
fn what_is_not_found_is_a_failure() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "The relay listens on port 8443."]);
    assert_eq!(shell.run(&["recall", "port"]).code, 0);
    let nothing = shell.run(&["recall", "xyzzy"]);
    assert_eq!((nothing.out.as_str(), nothing.code), ("", 1));
    assert!(nothing.err.contains("nothing found; try other words"), "{}", nothing.err);
    let json = shell.run(&["recall", "xyzzy", "--json"]);
    assert_eq!(
        (json.code, serde_json::from_str::<Value>(&json.out).unwrap()["data"].clone()),
        (1, json!([]))
    );
    // Embeddings find something near to anything; what shares no words and little meaning is not shown.
    let mut command = shell.command(&["recall", "xyzzy plugh"]);
    let near = crate::Said::from(command.env_remove("EVERTURN_RECALL_EMBEDDER").output().unwrap());
    assert_eq!((near.out.as_str(), near.code), ("", 1), "{}", near.err);
    assert!(shell.refused(&["verify", "nosuch.jsonl"]).contains("there is no file nosuch.jsonl"));
    assert!(shell.refused(&["verify", "/dev/null"]).contains("/dev/null is not a regular file"));
}

#[test]
fn an_empty_turn_is_refused_and_leaves_nothing() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    for args in [
        &["append", &id, ""][..],
        &["append", &id, " \n", "--role", "assistant"],
        &["append", &id, "-", "--role", "system"],
        &["append", &id, "-", "--stream"],
        &["append", &id, "-", "--message"],
    ] {
        assert!(shell.refused(args).contains("there is nothing to append"), "{args:?}");
    }
    assert_eq!(shell.json(&["info", &id, "--json"])["head"]["seq"], 1);
    // A tool may have no output.
    shell.ok(&["append", &id, "", "--role", "tool"]);
}

#[test]
fn only_what_is_cut_is_marked_as_cut() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "--role", "tool", "one\ntwo\nthree"]);
    shell.ok(&["append", &id, "--role", "tool", &"word ".repeat(40)]);
    let history = shell.ok(&["history", &id]);
    assert!(history.contains("  ← one ⏎ two ⏎ three\n"), "{history}");
    assert!(history.contains("word… (1 line, "), "{history}");
    // The name of the tool counted, and what was left out could be shorter than the mark for it.
    let id = shell.new_conversation();
    let result = |text: &str| json!({"role": "tool", "name": "abcdefghij", "content": text}).to_string();
    for length in [95, 115, 130] {
        shell.ok(&["append", &id, "--message", &result(&"k".repeat(length))]);
    }
    let history = shell.ok(&["history", &id]);
    for shown in ["k".repeat(95), "k".repeat(115), format!("{}… (1 line, 130 B)", "k".repeat(100))] {
        assert!(history.contains(&format!("  ← abcdefghij: {shown}\n")), "{shown} in {history}");
    }
}

/// A result whose call was on another page was shown without the name of its tool.
#[test]
fn a_result_is_named_where_its_call_is_on_an_earlier_page() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "lookup", "arguments": "{}"}}]});
    shell.ok(&["append", &id, "--message", &call.to_string()]);
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "42"});
    shell.ok(&["append", &id, "--message", &result.to_string()]);
    for limit in ["1", "2"] {
        let history = shell.ok(&["history", &id, "--limit", limit]);
        assert!(history.contains("  ← lookup: 42\n"), "{history}");
    }
    shell.ok(&["append", &id, "Good.", "--actor", "ana"]);
    let history = shell.ok(&["history", &id, "--after", "2", "--limit", "1"]);
    assert!(history.contains("  ← lookup: 42\n"), "{history}");
}

/// "resume it first" named no command; nothing is called so.
#[test]
fn an_archived_conversation_says_how_to_resume_it() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["archive", &id]);
    let said = shell.refused(&["append", &id, "hello"]);
    assert!(said.contains("set its state to active first (`everturn archive --undo`)"), "{said}");
    shell.ok(&["archive", "--undo", &id]);
    shell.ok(&["append", &id, "hello"]);
}

/// After the end, nothing is said any more; what is said about it is.
#[test]
fn a_closed_conversation_takes_settings_and_facts_and_nothing_else() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    for n in 0..6 {
        shell.ok(&["append", &id, &format!("step {n}")]);
    }
    shell.ok(&["close", &id]);
    for args in [
        &["append", &id, "more"][..],
        &["pin", &id, "branch", "main"],
        &["scratchpad", &id, "plan", "rest"],
        &["request-approval", &id, "a1", "--question", "May I?"],
        &["update", &id, "--system-prompt", "Be brief."],
        &["archive", &id, "--undo"],
    ] {
        let said = shell.refused(args);
        assert!(said.contains("is closed; it cannot be continued"), "{args:?}: {said}");
    }
    shell.ok(&["rename", &id, "Done"]);
    shell.ok(&["facts", &id, "add", "relay", "listens on", "8443"]);
    shell.ok(&["compact", &id, "--keep-last", "2"]);
}

/// Regression: a title could be turned around by characters that nobody sees.
#[test]
fn a_list_shows_characters_that_mislead_by_their_number() {
    let shell = Shell::new();
    shell.ok(&["new", "--title", "mal\u{202e}lory"]);
    assert!(shell.ok(&["list"]).contains("mal‹U+202E›lory"));
}

#[test]
fn a_conversation_without_a_title_is_listed_by_its_first_words() {
    let shell = Shell::new();
    shell.ok(&["new"]);
    assert!(shell.ok(&["list"]).contains("(no title)"));
    // Put together at run time, so that no scanner takes this file for a leak.
    let key = format!("AKIA{}", "IOSFODNN7EXAMPLE");
    shell.ok(&["append", "@last", &format!("Please fix the login test, the key is {key}")]);
    let list = shell.ok(&["list"]);
    assert!(list.contains("Please fix the login test") && !list.contains(&key), "{list}");
    assert!(shell.ok(&["info", "@last"]).starts_with("Please fix the login test"));
}

#[test]
fn a_hyphen_is_standard_output_and_an_unknown_ending_is_refused() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "remember this"]);
    let markdown = shell.ok(&["export", &id, "--format", "markdown"]);
    assert!(markdown.contains("remember this"));
    assert_eq!(shell.ok(&["export", &id, "-o", "-", "--format", "markdown"]), markdown);
    let transcript = ["export", &id, "--format", "transcript"];
    assert_eq!(shell.ok(&[&transcript[..], &["-o", "-"]].concat()), shell.ok(&transcript));
    assert!(!shell.path("-").exists());
    let said = shell.refused(&["export", &id, "-o", "talk.pdf"]);
    assert!(
        said.contains(".pdf") && said.contains(".jsonl, .md or .html") && said.contains("--format"),
        "{said}"
    );
    assert!(!shell.path("talk.pdf").exists());
    shell.ok(&["export", &id, "-o", "talk.json", "--format", "anthropic"]);
    shell.ok(&["export", &id, "-o", "talk"]);
    let said = shell.refused(&["export", &id, "-o", "nowhere/x.md"]);
    assert!(said.contains("cannot write nowhere/x.md: there is no folder nowhere"), "{said}");
    let said = shell.refused(&["export"]);
    assert!(said.contains("@last") && said.contains("--all DIR"), "{said}");
}

#[test]
fn history_marks_private_turns() {
    let shell = Shell::new();
    shell.new_conversation();
    shell.ok(&["append", "@last", "mine", "--actor", "ana", "--private"]);
    shell.ok(&["append", "@last", "yours", "--actor", "ana", "--to", "ben"]);
    let shown = shell.ok(&["history", "@last"]);
    assert!(shown.contains("(private)") && shown.contains("(private, for ben)"), "{shown}");
}

#[test]
fn history_shows_blocks_in_their_order_with_name_and_query() {
    let shell = Shell::new();
    shell.new_conversation();
    let append = |message: Value| shell.ok(&["append", "@last", "--message", &message.to_string()]);
    append(json!({"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "newest rust"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "title": "Rust 1.91"}]},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "text", "text": "It is 1.91."}]}));
    append(
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "newest go"}}),
    );
    append(json!({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"}));
    append(
        json!({"type": "function_call_output", "call_id": "c1", "output": {"type": "input_text", "text": "a.txt\n", "detail": null}}),
    );
    let shown = shell.ok(&["history", "@last"]);
    let places: Vec<Option<usize>> = [
        "→ web_search {\"query\":\"newest rust\"}",
        "← web_search: ",
        "Rust 1.91",
        "▣ image",
        "It is 1.91.",
        "newest go",
        "← shell: a.txt\n",
    ]
    .iter()
    .map(|text| shown.find(text))
    .collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{shown}");
    assert!(shown.lines().all(|line| line.trim_end() == line), "{shown:?}");
}

#[test]
fn a_notice_has_no_tags_and_a_command_is_one() {
    let shell = Shell::new();
    shell.new_conversation();
    shell.ok(&[
        "append",
        "@last",
        "<command-name>test</command-name><command-contents>Run it.</command-contents>",
    ]);
    shell.ok(&["append", "@last", "<local-command-stdout>all passed</local-command-stdout>"]);
    let shown = shell.ok(&["history", "@last"]);
    assert!(shown.contains("← all passed\n") && shown.contains("← test ⏎ Run it.\n"), "{shown}");
    assert!(shown.contains("command  #2") && !shown.contains("user"), "{shown}");
}

#[test]
fn errors_speak_of_what_was_asked() {
    let shell = Shell::new();
    assert!(shell.refused(&["list"]).contains("`everturn import` creates one"));
    shell.new_conversation();
    assert!(shell.refused(&["compact", "@last"]).contains("there are no turns yet"));
    let said = shell.refused(&["restore", "nosuch.zst"]);
    assert!(said.contains("there is no file nosuch.zst"), "{said}");
    (0..4).for_each(|_| drop(shell.new_conversation()));
    assert!(shell.refused(&["info", "conv_"]).contains(" or others; write more of it"));
    let first = shell.json(&["append", "@last", "To Faro.", "--json"])["id"].as_str().unwrap().to_string();
    shell.ok(&["supersede", &first, "To Porto."]);
    let said = shell.run(&["history", "@last"]);
    assert!(
        said.err.contains("1 superseded or aborted turn not shown; --superseded shows all"),
        "{}",
        said.err
    );
    assert_eq!(shell.run(&["history", "@last", "--superseded"]).err, "");
    let _server = crate::process::Serving::start(&shell, &[]);
    let said = shell.refused(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("stop that one first, or name another store") && !said.contains("--url"), "{said}");
}

#[test]
fn ends_are_written_as_people_do() {
    let shell = Shell::new();
    shell.new_conversation();
    shell.ok(&["request-approval", "@last", "a1", "--question", "Send it?", "--deadline", "2h"]);
    shell.ok(&["request-approval", "@last", "a2", "--question", "Send it?", "--deadline", "tomorrow"]);
    shell.ok(&["keys", "create", "--role", "reader", "--expires", "2099-01-01"]);
    shell.ok(&["keys", "create", "--role", "reader", "--expires", "30d"]);
    assert!(shell.ok(&["keys", "list"]).contains("until 2099-01-01 00:00:00 UTC"));
    for args in [
        &["keys", "create", "--role", "reader", "--expires", "soon"][..],
        &["request-approval", "@last", "a3", "--deadline", "soon"],
    ] {
        let said = shell.refused(args);
        assert!(said.contains("--expires") || said.contains("--deadline"), "{said}");
        assert!(said.contains("tomorrow, 2h, 30d"), "{said}");
    }
}

/// Open tabs of an editor were shown as the words of the person.
#[test]
fn what_an_editor_adds_to_a_request_is_folded_and_named() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let text =
        "# Context from my IDE setup:\n\n## Open tabs:\n- a.rs\n\n## My request for Codex:\nRename it.";
    shell.ok(&["append", &id, text]);
    let history = shell.ok(&["history", &id]);
    assert!(
        history.contains(
            "  ← editor state: # Context from my IDE setup: ⏎ ## Open tabs: ⏎ - a.rs\n  Rename it.\n"
        ),
        "{history}"
    );
}

/// The query of a search by the provider was shown and could not be found.
#[test]
fn the_query_of_a_web_search_is_found() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let call = json!({"type": "web_search_call", "id": "ws_1", "status": "completed",
        "action": {"type": "search", "query": "numbat habitat"}});
    shell.ok(&["append", &id, "--message", &call.to_string()]);
    shell.ok(&["recall", "--index"]);
    let found = shell.ok(&["recall", "numbat"]);
    assert!(found.contains("numbat habitat"), "{found}");
}

/// A list of messages was said to be of the agent "messages"; models and tokens of a session were in its turns only.
#[test]
fn info_names_models_and_tokens_and_no_agent_of_a_plain_list() {
    let shell = Shell::new();
    let lines =
        "{\"role\":\"user\",\"content\":\"Which queue?\"}\n{\"role\":\"assistant\",\"content\":\"One.\"}\n";
    std::fs::write(shell.path("plain.jsonl"), lines).unwrap();
    shell.ok(&["import", "plain.jsonl"]);
    let info = shell.ok(&["info", "@last"]);
    assert!(!info.contains("  agent ") && !info.contains("  tokens "), "{info}");
    let list = shell.ok(&["list"]);
    assert!(!list.contains("messages"), "{list}");

    let line = |uuid: &str, kind: &str, message: Value| {
        json!({"type": kind, "uuid": uuid, "sessionId": "s", "timestamp": "2026-01-05T10:00:00Z", "message": message})
            .to_string()
    };
    let usage = json!({"input_tokens": 38976, "output_tokens": 7});
    let reply = json!({"id": "m1", "role": "assistant", "model": "claude-x", "content": [{"type": "text", "text": "Hi."}], "usage": usage});
    let lines =
        [line("u", "user", json!({"role": "user", "content": "Hello"})), line("a", "assistant", reply)];
    std::fs::create_dir(shell.path("sessions")).unwrap();
    std::fs::write(shell.path("sessions/s.jsonl"), lines.join("\n")).unwrap();
    let said = shell.ok(&["import", "-v", "sessions"]);
    assert!(said.lines().last().unwrap().starts_with("1 file: 1 conversation, 2 turns"), "{said}");
    let id = &shell.json(&["list", "--agent", "claude", "--json"])["data"][0]["id"];
    let info = shell.ok(&["info", id.as_str().unwrap()]);
    for line in ["  models        claude-x\n", "  tokens        38,976 in, 7 out\n"] {
        assert!(info.contains(line), "{line} is missing:\n{info}");
    }
}

/// The lines of a result ran into each other.
#[test]
fn lines_of_a_folded_result_are_told_apart() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "a1b2c3 Bump the parser\n\nd4e5f6 Fix a typo\n"});
    shell.ok(&["append", &id, "--message", &result.to_string()]);
    let history = shell.ok(&["history", &id]);
    assert!(history.contains("← a1b2c3 Bump the parser ⏎ d4e5f6 Fix a typo\n"), "{history}");
}
