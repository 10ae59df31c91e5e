//! The documentation and the help are correct.

use crate::{Shell, assert_shows};
use std::process::Command;

#[test]
fn without_a_verb_it_says_what_it_can_do_in_one_screen() {
    let shell = Shell::new();
    let said = shell.ok(&[]);
    assert!(
        said.lines().count() <= 40,
        "{} lines, 40 at most: put a verb into FURTHER\n{said}",
        said.lines().count()
    );
    let verbs = [
        "new", "list", "append", "history", "tail", "state", "pin", "unpin", "compact", "recall", "facts",
        "context", "project", "fork", "verify", "export", "import", "session", "doctor", "serve", "keys",
        "backup", "restore", "mcp", "demo",
    ];
    for verb in verbs {
        assert!(said.contains(&format!("  {verb} ")), "{verb} is missing:\n{said}");
        let help = shell.ok(&[verb, "--help"]);
        assert!(help.contains("Example"), "{verb} --help has no example");
    }
    let all = shell.ok(&["--help"]);
    let further = [
        "info",
        "update",
        "rename",
        "archive",
        "close",
        "reset",
        "supersede",
        "scratchpad",
        "copy",
        "request-approval",
        "approve",
        "deny",
        "abandon-call",
        "generate",
        "summarize",
        "sweep",
        "open",
    ];
    for verb in further {
        assert!(said.contains(verb) && all.contains(&format!("  {verb} ")), "{verb} is missing:\n{all}");
        let help = shell.ok(&[verb, "--help"]);
        assert!(help.contains("Example"), "{verb} --help has no example");
    }
    assert_shows!(said.lines().next().unwrap(), @"Every word is kept; the model reads what it needs. A conversation store for AI agents");
}

#[test]
fn completions_are_printed_for_every_shell() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(shell.ok(&["completions", name]).contains("everturn"), "{name}");
    }
}

/// A page of the documentation.
pub fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The blocks of a page: the line that begins each, and its text without the indentation of a list.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let (mut blocks, mut open) = (Vec::new(), None::<(usize, String, String)>);
    for line in page.lines() {
        let indent = line.len() - line.trim_start().len();
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => open = Some((indent, info.to_string(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take().map(|(_, info, text)| (info, text))),
            (Some((indent, _, text)), None) => {
                text.push_str(line.get(*indent..).unwrap_or_default());
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// A server in the foreground ends once it answers; one in the background ends with the page.
const PRELUDE: &str = r#"
everturn() {
    case " $* " in
        *" --check-config "* | *" --help "*) command everturn "$@"; return ;;
        " serve "* | " demo "*) ;;
        *) command everturn "$@"; return ;;
    esac
    [ "$BASHPID" = "$$" ] || exec "$(type -P everturn)" "$@"
    local said=$(mktemp) server
    command everturn "$@" >"$said" 2>&1 &
    server=$!
    until grep -q 'http://' "$said"; do kill -0 $server || { cat "$said"; return 1; }; sleep 0.05; done
    kill -TERM $server
    wait $server
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"#;

/// Runs the commands of a page one after the other, in a folder and a store of their own. The port of the documentation
/// is replaced by a free one.
fn run_as_typed(page: &str) -> String {
    let steps: String =
        blocks(page).into_iter().filter(|(info, _)| info == "sh").map(|(_, text)| text).collect();
    assert!(!steps.is_empty(), "the page has no commands");
    let shell = Shell::new();
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_everturn")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = format!("{PRELUDE}{}", steps.replace(":7317", &format!(":{free}")));
    let said = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(shell.folder.path())
        .env("PATH", path)
        .env("HOME", shell.folder.path())
        .env("OPENAI_API_KEY", "none")
        .env("EVERTURN_LISTEN", format!("127.0.0.1:{free}"))
        .env("EVERTURN_STORE", format!("sqlite:{}", shell.path("store.db").display()))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{}\n{out}\n{err}", said.status);
    out.into_owned()
}

/// The pages with commands, and what these must print.
macro_rules! pages {
    ($($name:ident $page:literal [$($words:literal),*];)+) => {
        const PAGES: &[&str] = &[$($page),+];
        $(
            #[test]
            fn $name() {
                let out = run_as_typed(&page($page));
                let words: &[&str] = &[$($words),*];
                words.iter().for_each(|words| assert!(out.contains(words), "{words} in\n{out}"));
            }
        )+
    };
}

pages! {
    the_readme_runs_as_typed "README.md" ["\"title\":\"Hello\"", "everything is in order"];
    the_page_on_backups_runs_as_typed "docs/backup.md" [];
    the_page_on_compaction_runs_as_typed "docs/compaction.md" ["would summarize 11 turns", "summarized 18 turns"];
    the_page_on_context_runs_as_typed "docs/context.md" ["recorded at #"];
    the_page_on_conversations_runs_as_typed "docs/conversations.md" ["replaces #2, which stays in the log", "branched into"];
    the_page_on_export_runs_as_typed "docs/export.md" ["the signature is as it was", "no scripts"];
    the_page_on_facts_runs_as_typed "docs/facts.md"
        ["Ana lives in Porto", "Vila Nova de Gaia\n", "from #2", "retracted: only in the evening"];
    the_page_on_generating_runs_as_typed "docs/generate.md" [];
    the_page_on_importing_runs_as_typed "docs/import.md"
        ["7 lines in the file, 4 turns, 6 new events", "1 conversation, 4 turns", "now delete it"];
    the_page_on_the_log_runs_as_typed "docs/log.md" [];
    the_page_on_the_page_runs_as_typed "docs/page.md" [];
    the_page_on_records_runs_as_typed "docs/record.md" [];
    the_page_on_projection_runs_as_typed "docs/projection.md" ["stale_tool_result_unreachable"];
    the_page_on_projectors_runs_as_typed "docs/projectors.md" ["How long is the log?"];
    the_quick_start_of_mcp_runs_as_typed "docs/quickstart-mcp.md" ["\"serverInfo\":{\"name\":\"everturn\""];
    the_quick_start_of_python_runs_as_typed "docs/quickstart-python.md" [];
    the_quick_start_of_typescript_runs_as_typed "docs/quickstart-typescript.md" [];
    the_page_on_recall_runs_as_typed "docs/recall.md"
        ["Port 8443, we decided.", "fn build_context", "send the parcels by train", "\"vector\":{\"rank\":1",
         "relay listens on port 8443", "# Facts"];
    the_page_on_servers_runs_as_typed "docs/remote.md" ["What changed?", "2 events in the file, 1 turn, 0 new events"];
    the_page_on_rest_runs_as_typed "docs/rest.md" ["\"content\":\"hello\"", "event: event"];
    the_page_on_serving_runs_as_typed "docs/serve.md" ["et_", "limits.burst"];
}

#[test]
fn the_tour_in_the_readme_leaves_no_call_without_its_result() {
    let readme = page("README.md");
    let (_, tour) = readme.split_once("## A tour in five minutes").expect("the README has a tour");
    let out = run_as_typed(tour.split("\n## ").next().unwrap());
    assert!(!out.contains("have not answered"), "the tour's only call has its result: {out}");
}

/// Regression: the words of the alternative went into the original.
#[test]
fn the_alternative_of_the_tour_is_said_in_the_fork() {
    let readme = page("README.md");
    let (_, tour) = readme.split_once("## A tour in five minutes").expect("the README has a tour");
    let (tour, _) = tour.split_once("Search all conversations").expect("the tour searches after it forked");
    let out = run_as_typed(&format!(
        "{tour}\n```sh\necho HERE\neverturn info @last\neverturn history @last\n```\n"
    ));
    let (_, here) = out.split_once("HERE").unwrap();
    assert!(here.contains("(fork at #3)") && here.contains("Actually, roll it back instead."), "{here}");
    assert!(!here.contains("Pin it to 1.4"), "{here}");
}

/// The examples in the help of a verb, without their comments.
fn examples(shell: &Shell, verb: &str) -> Vec<String> {
    let help = shell.ok(&[verb, "--help"]);
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let commands = lines.filter(|line| {
        line.starts_with("everturn ") || line.contains("| everturn ") || line.contains("$(everturn ")
    });
    commands.map(|line| line.split("   (").next().unwrap_or(line).trim_end().to_string()).collect()
}

/// One that is given to `everturn update --policy` used to be refused.
#[test]
fn the_examples_of_the_help_run_as_typed() {
    let shell = Shell::new();
    let one = |args: &[&str], field: &str| {
        let answer = shell.json(&[args, &["--json"]].concat());
        answer.pointer(field).and_then(|value| value.as_str()).unwrap_or_default().to_string()
    };
    let metadata = r#"{"project": "web", "agent": "codex"}"#;
    let other = one(&["new", "--metadata", metadata], "/id");
    shell.ok(&["append", &other, "We wrote decorators."]);
    let line =
        |n| format!("{{\"role\":\"user\",\"content\":\"which port did we choose in build_context {n}?\"}}\n");
    std::fs::write(shell.path("talk.jsonl"), (0..130).map(line).collect::<String>()).unwrap();
    shell.ok(&["import", "talk.jsonl"]);
    shell.ok(&["compact", "@last", "--keep-last", "20"]);
    let call = |id: &str| {
        let message = serde_json::json!({"role": "assistant",
            "content": [{"type": "tool_use", "id": id, "name": "run", "input": {}}]});
        shell.ok(&["append", "@last", "--message", &message.to_string()]);
    };
    call("call_1");
    shell.ok(&["append", "@last", "--role", "tool", "connection refused in sqlite.rs: no deployment"]);
    let turn = one(&["append", "@last", "To Faro"], "/id");
    let pinned = shell.json(&["pin", "@last", "branch", "main", "--json"])["seq"].to_string();
    shell.ok(&["scratchpad", "@last", "plan", "{}"]);
    let fact = one(&["facts", "@last", "add", "Ana", "likes", "tea"], "/id");
    let recorded = shell.ok(&["context", "@last", "--budget", "8000", "--record"]);
    let receipt = recorded.split_once("--replay ").unwrap().1.trim();
    let key = one(&["keys", "create", "--role", "admin"], "/id");
    call("call_7");
    shell.ok(&["request-approval", "@last", "appr-1"]);
    let (id, head) = (one(&["info", "@last"], "/id"), one(&["info", "@last"], "/head/hash"));
    for (name, format) in
        [("session.jsonl", "jsonl"), ("transcript.json", "transcript"), ("chat.json", "openai-chat")]
    {
        shell.ok(&["export", "@last", "--format", format, "-o", name]);
    }
    let chat: serde_json::Value =
        serde_json::from_slice(&std::fs::read(shell.path("chat.json")).unwrap()).unwrap();
    std::fs::write(shell.path("messages.json"), chat["messages"].to_string()).unwrap();
    std::fs::write(shell.path("prompt.md"), "Be brief.").unwrap();
    std::fs::write(shell.path("better.json"), r#"{"role":"user","content":"To Porto"}"#).unwrap();

    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_everturn")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let (replay, event) = (format!("--replay {receipt}"), format!("--event {pinned}"));
    let values = [
        ("conv_01J9…", id.as_str()),
        ("conv_01J9", id.as_str()),
        ("turn_01J9…", turn.as_str()),
        ("fact_01J9…", fact.as_str()),
        ("key_01J9…", key.as_str()),
        ("9f2c…", head.as_str()),
        ("--replay 120", replay.as_str()),
        ("--event 7", event.as_str()),
        ("request-approval @last appr-1", "request-approval @last appr-2"),
        ("export @last -o session.jsonl", "export @last -o another.jsonl"),
        // These are dates to come.
        ("2026-12-01", "2999-12-01"),
        ("2027-01-01", "2999-01-01"),
    ];
    // What needs a server, a model, another machine, another program or files of your own.
    let elsewhere = ["http", "ssh ", "llm ", "/var/", ".zst", ".rhai", "~/", "--watch"];
    let verbs = [
        "new",
        "list",
        "info",
        "append",
        "supersede",
        "history",
        "state",
        "pin",
        "unpin",
        "scratchpad",
        "request-approval",
        "approve",
        "deny",
        "abandon-call",
        "summarize",
        "compact",
        "recall",
        "facts",
        "context",
        "project",
        "update",
        "rename",
        "archive",
        "close",
        "reset",
        "fork",
        "verify",
        "export",
        "import",
        "erase",
        "delete",
        "session",
        "keys",
        "sweep",
        "doctor",
    ];
    for verb in verbs {
        let here = |line: &String| !elsewhere.iter().any(|word| line.contains(word));
        let mut scripts: Vec<String> = examples(&shell, verb).into_iter().filter(here).collect();
        assert!(!scripts.is_empty(), "{verb}");
        if verb == "session" {
            scripts = vec![scripts.join("\n")];
        }
        for script in scripts {
            let script = values.iter().fold(script, |script, (name, value)| script.replace(name, value));
            // Each on a copy of the store.
            let copy = tempfile::tempdir().unwrap();
            let prepare = format!("cp -r '{}/.' . && {script}", shell.folder.path().display());
            let said = Command::new("bash")
                .args(["-euc", &prepare])
                .current_dir(copy.path())
                .env("PATH", &path)
                .env("HOME", copy.path())
                .env("XDG_CONFIG_HOME", copy.path())
                .env("EVERTURN_STORE", format!("sqlite:{}", copy.path().join("store.db").display()))
                .env("EVERTURN_RECALL_EMBEDDER", "none")
                .stdin(std::process::Stdio::null())
                .output()
                .unwrap();
            assert!(said.status.success(), "{script}\n{}", String::from_utf8_lossy(&said.stderr));
        }
    }
}

/// Commands are in blocks that are run, or that say why they are not.
#[test]
fn every_command_in_the_documentation_is_run() {
    let folder = std::fs::read_dir(format!("{}/../docs", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let files = folder.map(|file| format!("docs/{}", file.unwrap().file_name().to_str().unwrap()));
    let commands = ["everturn ", "curl ", "pip ", "npm ", "cargo ", "claude ", "jq "];
    for name in files.filter(|name| name.ends_with(".md")).chain(["README.md".to_string()]) {
        for (info, text) in blocks(&page(&name)) {
            match info.as_str() {
                "sh" => assert!(PAGES.contains(&name.as_str()), "{name} has commands that no test runs"),
                info if info.starts_with("sh") => {
                    let reason = info.strip_prefix("sh not run: ");
                    assert!(reason.is_some_and(|reason| !reason.is_empty()), "{name}: {info}");
                }
                info => {
                    let command =
                        text.lines().find(|line| commands.iter().any(|word| line.starts_with(word)));
                    assert_eq!(command, None, "{name}: a command in a block of {info:?}");
                }
            }
        }
    }
}

/// Regression: options that the short help leaves out had no text, and a heading was EXTRA.
#[test]
fn the_manual_page_describes_every_option() {
    let shell = Shell::new();
    let page = shell.ok(&["man"]);
    for text in [
        "File that holds the key of the server",
        "Mirror every conversation",
        "Configuration file",
        "Print more",
    ] {
        assert!(page.contains(text), "{text} is missing:\n{page}");
    }
    shell.ok(&["man", "pages"]);
    let recall = std::fs::read_to_string(shell.path("pages/everturn-recall.1")).unwrap();
    assert!(!page.contains("SH EXTRA") && !recall.contains("SH EXTRA"), "{recall}");
    assert!(recall.contains("File that holds the key of the server"), "{recall}");
}
