//! `everturn erase` from the command line, locally and against a server.

use crate::process::Serving;
use crate::{Shell, assert_shows};
use everturn_engine::{Everturn, NewTurn};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const WORD: &str = "quetzalcoatlus";

/// Conversations between Ann and Bob.
fn fill(shell: &Shell, conversations: usize) {
    let store = Everturn::open(&shell.path("store.db").display().to_string()).unwrap();
    let scope = store.tenant("default").unwrap();
    for n in 0..conversations {
        let id = scope.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
        let said = [NewTurn::user(&format!("{WORD} {n}")).by("ann"), NewTurn::user("of Bob").by("bob")];
        scope.conversation(id).append_all(said.to_vec()).wait().unwrap();
    }
}

fn holding(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path));
        } else if occurrences(&path) > 0 {
            found.push(path);
        }
    }
    found
}

fn occurrences(path: &Path) -> usize {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).matches(WORD).count()
}

#[test]
fn everything_that_an_actor_said_is_erased_here_and_by_a_server() {
    for remote in [false, true] {
        let shell = Shell::new();
        fill(&shell, 3);
        let serving = remote.then(|| Serving::start(&shell, &[]));
        let url: Vec<&str> = serving.iter().flat_map(|serving| ["--url", &serving.url]).collect();
        let run = |args: &[&str]| {
            let mut command = shell.command(&[args, &url].concat());
            if remote {
                command.env_remove("EVERTURN_STORE");
            }
            crate::Said::from(command.output().unwrap())
        };
        let erase = ["erase", "--said-by", "ann", "--reason", "asked for", "--actor", "dpo"];
        let refused = run(&erase);
        assert_eq!((refused.code, holding(shell.folder.path()).is_empty()), (1, false));
        assert!(refused.err.contains("add --yes to confirm"), "{}", refused.err);
        let said = run(&[&erase[..], &["--yes"]].concat());
        assert_eq!(said.code, 0, "{}", said.err);
        assert!(said.out.starts_with("erased what ann said: 3 turns and 0 other events in 3 conversations;"));
        assert!(said.out.contains("everturn doctor --compact"), "{}", said.out);
        assert_eq!(holding(shell.folder.path()), Vec::<PathBuf>::new());
        let again = run(&[&erase[..], &["--yes", "--json"]].concat());
        let again: serde_json::Value = serde_json::from_str(&again.out).unwrap();
        assert_eq!(again, serde_json::json!({"actor": "ann", "conversations": 0, "turns": 0, "events": 0}));
        let history = run(&["history", "@last"]);
        assert!(history.out.contains("of Bob") && history.out.contains("‹erased›"), "{}", history.out);
        serving.into_iter().for_each(Serving::kill);
    }
}

/// An interrupted erasure of an actor is completed by running it again.
#[test]
fn an_erasure_that_was_killed_is_finished_by_the_next() {
    const CONVERSATIONS: usize = 150;
    let shell = Shell::new();
    fill(&shell, CONVERSATIONS);
    let erase = ["erase", "--said-by", "ann", "--reason", "asked for", "--yes", "--json"];
    let database = shell.path("store.db");
    let before = occurrences(&database);
    assert!(before >= CONVERSATIONS, "{before}");
    let mut child = shell.command(&erase).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while occurrences(&database) > before - 20 && child.try_wait().unwrap().is_none() {}
    assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
    child.kill().unwrap();
    child.wait().unwrap();
    let done = shell.json(&erase);
    let rest = done["turns"].as_u64().unwrap();
    assert!(0 < rest && rest < CONVERSATIONS as u64, "{rest} were left: it was not killed in its middle");
    assert_eq!(holding(shell.folder.path()), Vec::<PathBuf>::new());
    let found = shell.json(&["doctor", "--json"]);
    assert_eq!((&found["findings"], &found["erased"]), (&serde_json::json!([]), &CONVERSATIONS.into()));
    assert_eq!(shell.json(&erase)["turns"], 0);
}

#[test]
fn an_erased_turn_is_not_erased_again() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "call it off"]);
    let shown = shell.ok(&["history", &id, "--ids"]);
    let turn = shown.split_whitespace().find(|word| word.starts_with("turn_")).expect("the id is shown");
    let erase = ["erase", turn, "--reason", "asked for"];
    assert_shows!(shell.ok(&erase), @"erased turn_ID; its envelope and hash stay, `everturn verify` still succeeds");
    let events = || shell.json(&["verify", &id, "--json"])["events"].as_u64().unwrap();
    let before = events();
    assert_shows!(shell.ok(&erase), @"turn_ID had been erased before");
    assert_eq!(shell.json(&[&erase[..], &["--json"]].concat())["erased"], true);
    assert_eq!(events(), before, "nothing is appended");
    let event = ["erase", &id, "--event", "1", "--reason", "asked for"];
    assert!(shell.ok(&event).contains("erased 1 event of conv_"));
    let before = events();
    assert_shows!(shell.ok(&event), @"1 event of conv_ID had been erased before; nothing was added");
    assert_eq!(events(), before, "nothing is appended");
    let said = shell.refused(&["erase", &id, "--reason", "asked for"]);
    assert!(said.contains("--event SEQ") && said.contains("--ids"), "{said}");
    let help = shell.ok(&["erase", "--help"]);
    assert!(help.contains("everturn history CONV --ids"), "{help}");
}
