//! The documentation and the help are correct.

use crate::{Shell, assert_shows};
use std::process::Command;

#[test]
fn without_a_verb_it_says_what_it_can_do_in_one_screen() {
    let shell = Shell::new();
    let said = shell.ok(&[]);
    assert!(said.lines().count() <= 40, "{said}");
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
        "update",
        "archive",
        "close",
        "reset",
        "supersede",
        "scratchpad",
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

/// Runs the shell blocks of a page one after the other in a folder and a store of their own.
fn run_as_typed(page: &str) -> String {
    let steps: Vec<&str> =
        page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    assert!(steps.len() >= 4, "the page has steps");
    let shell = Shell::new();
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_everturn")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let said = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &steps.concat()])
        .current_dir(shell.folder.path())
        .env("PATH", path)
        .env("EVERTURN_STORE", format!("sqlite:{}", shell.path("store.db").display()))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{out}\n{err}");
    out.into_owned()
}

fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn the_tour_in_the_readme_runs_as_typed() {
    let readme = page("README.md");
    let (_, tour) = readme.split_once("## A tour in five minutes").expect("the README has a tour");
    let out = run_as_typed(tour.split("\n## ").next().unwrap());
    assert!(out.contains("everything is in order"), "{out}");
    assert!(!out.contains("have not answered"), "the tour's only call has its result: {out}");
}

#[test]
fn the_page_on_projection_runs_as_typed() {
    let out = run_as_typed(&page("docs/projection.md"));
    assert!(out.contains("stale_tool_result_unreachable"), "{out}");
}

#[test]
fn the_page_on_compaction_runs_as_typed() {
    let out = run_as_typed(&page("docs/compaction.md"));
    assert!(out.contains("would summarize 11 turns") && out.contains("summarized 18 turns"), "{out}");
}

#[test]
fn the_page_on_facts_runs_as_typed() {
    let out = run_as_typed(&page("docs/facts.md"));
    let porto_for_lisbon = "Ana lives in Porto";
    assert!(out.contains(porto_for_lisbon) && out.contains("Vila Nova de Gaia\n"), "{out}");
    assert!(out.contains("from #2") && out.contains("retracted: only in the evening"), "{out}");
}

#[test]
fn the_page_on_recall_runs_as_typed() {
    let out = run_as_typed(&page("docs/recall.md"));
    assert!(out.contains("Port 8443, we decided.") && out.contains("fn build_context"), "{out}");
    assert!(out.contains("send the parcels by train") && out.contains("\"vector\":{\"rank\":1"), "{out}");
    assert!(out.contains("relay listens on port 8443") && out.contains("# Facts"), "{out}");
}

#[test]
fn the_page_on_servers_runs_as_typed() {
    let out = run_as_typed(&page("docs/remote.md"));
    assert!(out.contains("What changed?") && out.contains("2 events in the file, 1 turn, 0 new"), "{out}");
}

#[test]
fn the_page_on_export_runs_as_typed() {
    let out = run_as_typed(&page("docs/export.md"));
    assert!(out.contains("the signature is as it was") && out.contains("no scripts"), "{out}");
}

#[test]
fn the_page_on_context_runs_as_typed() {
    let out = run_as_typed(&page("docs/context.md"));
    assert!(out.contains("recorded at #"), "{out}");
}

#[test]
fn the_page_on_importing_runs_as_typed() {
    let out = run_as_typed(&page("docs/import.md"));
    assert!(
        out.contains("7 events in the file, 4 turns, 6 new") && out.contains("1 conversation, 4 turns"),
        "{out}"
    );
    assert!(out.contains("now delete it"), "{out}");
}
