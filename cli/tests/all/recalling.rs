//! `everturn recall` by embedding, with the built-in model.

use crate::process::Serving;
use crate::{Said, Shell};

const SAID: [&str; 4] = [
    "We send the parcels by train because it is cheaper.",
    "The database hangs when two processes write at the same moment.",
    "My cat sleeps on the keyboard every afternoon.",
    "Tests are slow on the small machine.",
];

fn furnished() -> (Shell, String) {
    let shell = Shell::new();
    let id = shell.new_conversation();
    SAID.iter().for_each(|text| drop(shell.ok(&["append", &id, text])));
    (shell, id)
}

/// Imports a turn and many long ones after it.
fn import_much_after(shell: &Shell, first: &str, embedder: &str) {
    let say = |text: String| serde_json::json!({"role": "user", "content": text});
    let later = |n| say(format!("Number {n} of many. {}", "It says nothing of use. ".repeat(40)));
    let all: Vec<_> = std::iter::once(say(first.into())).chain((0..500).map(later)).collect();
    std::fs::write(shell.path("much.json"), serde_json::to_string(&all).unwrap()).unwrap();
    let mut command = shell.command(&["import", "much.json"]);
    let said = Said::from(command.env("EVERTURN_RECALL_EMBEDDER", embedder).output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
}

fn recall(shell: &Shell, args: &[&str]) -> Said {
    let mut command = shell.command(&[&["recall"], args].concat());
    Said::from(command.env("EVERTURN_RECALL_EMBEDDER", "builtin").output().unwrap())
}

#[test]
fn what_was_meant_is_found_without_its_words() {
    let (shell, id) = furnished();
    for (question, text) in [
        ("shipping packages over rails to save money", SAID[0]),
        ("concurrent commits lock up storage", SAID[1]),
        ("a pet resting", SAID[2]),
    ] {
        let said = recall(&shell, &[question, "--mode", "vector", "--json"]);
        let found: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(found["data"][0]["snippet"]["text"], text, "{question}: {}", said.out);
        assert_eq!(found["data"][0]["matched"]["vector"]["rank"], 1);
        assert_eq!(found["behind"], serde_json::json!({"events": 0, "vectors": 0}));
    }
    let both = recall(&shell, &["database", "processes"]);
    assert!(both.out.contains(&id) && both.out.contains("best by words and by meaning"), "{}", both.out);
    assert_eq!(both.err, "");
    let words = shell.run(&["recall", "pet"]);
    assert!(words.err.contains("nothing found") && words.err.contains("no embedder"), "{}", words.err);
    assert_eq!((words.out.as_str(), words.code), ("", 1));
    // Erased content is not found by its embedding either.
    let turn = shell.json(&["history", &id, "--json"])["data"][2]["id"].as_str().unwrap().to_string();
    shell.ok(&["erase", &turn, "--reason", "test"]);
    assert!(!recall(&shell, &["a pet resting", "--mode", "vector"]).out.contains("cat"));
}

/// When an import ends, all of it is embedded: nothing is embedded later, and no query waits.
#[test]
fn what_was_imported_is_found_by_meaning_when_the_import_ends() {
    let shell = Shell::new();
    let old = "The invoice archive lies on the grey shelf.";
    import_much_after(&shell, old, "builtin");
    // Without an embedding model, existing embeddings are used.
    let index = shell.path("store.db-index/t-default.db");
    let made = std::fs::metadata(&index).unwrap().modified().unwrap();
    let said = recall(&shell, &["where are the bills kept", "--mode", "vector", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(found["data"][0]["snippet"]["text"], old, "{}", said.out);
    assert_eq!(found["behind"], serde_json::json!({"events": 0, "vectors": 0}));
    assert_eq!(std::fs::metadata(&index).unwrap().modified().unwrap(), made, "nothing was left to embed");
}

/// Turns imported without an embedding model are embedded by the first query.
#[test]
fn what_was_imported_without_vectors_gets_them_when_somebody_asks() {
    let shell = Shell::new();
    let old = "The invoice archive lies on the grey shelf.";
    import_much_after(&shell, old, "none");
    let said = recall(&shell, &["which shelf has the bills", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(found["data"][0]["snippet"]["text"], old, "{}", said.out);
    assert_eq!(found["data"][0]["matched"]["vector"]["rank"], 1, "{}", said.out);
}

/// A command ends before any background work, so the query itself has to notice.
#[test]
fn an_index_that_is_cut_or_something_else_is_made_again_by_the_question() {
    let (shell, _) = furnished();
    let index = shell.path("store.db-index/t-default.db");
    let found = || recall(&shell, &["parcels", "--mode", "lexical"]);
    assert!(found().out.contains("parcels"));
    let whole = std::fs::read(&index).unwrap();
    for (what, bytes) in [("cut", &whole[..8192]), ("something else", &[0x5a; 20_000])] {
        std::fs::write(&index, bytes).unwrap();
        let said = found();
        assert!(said.out.contains("parcels"), "{what}: {} {}", said.out, said.err);
    }
}

#[test]
fn a_server_makes_what_is_said_findable_by_itself() {
    let (shell, id) = furnished();
    std::fs::write(shell.path("everturn.toml"), "[recall]\nembedder = \"builtin\"\n").unwrap();
    // Flags and the environment take precedence over a file.
    let settings = ["serve", "--check-config", "--config", "everturn.toml"];
    let mut command = shell.command(&settings);
    let shown = Said::from(command.env_remove("EVERTURN_RECALL_EMBEDDER").output().unwrap());
    assert!(shown.out.contains("recall.embedder = \"builtin\""), "{}", shown.out);
    let server = Serving::start_with(&shell, &["--config", "everturn.toml"], |command| {
        command.env_remove("EVERTURN_RECALL_EMBEDDER");
    });
    let ask = || shell.run(&["recall", "a pet resting", "--mode", "vector", "--json", "--url", &server.url]);
    let found = loop {
        let said = ask();
        let found: serde_json::Value =
            serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
        if found["behind"]["vectors"] == 0 && found["behind"]["events"] == 0 {
            break found;
        }
    };
    assert_eq!(found["data"][0]["snippet"]["text"], SAID[2], "{found}");
    assert_eq!(found["data"][0]["conversation"], *id);
    let refused = shell.run(&["recall", "pet", "--rerank", "builtin", "--url", &server.url]);
    assert!(refused.code == 1 && refused.err.contains("uses its own models"), "{}", refused.err);
    let refused = shell.run(&["recall", "--index", "--url", &server.url]);
    assert!(refused.code == 1 && refused.err.contains("leave --index out"), "{}", refused.err);
}

#[test]
fn a_folder_that_is_no_model_is_named() {
    let (shell, _) = furnished();
    let mut command = shell.command(&["recall", "pet", "--embedder", "folder:nowhere"]);
    let said = Said::from(command.output().unwrap());
    assert!(said.code == 1 && said.err.contains("nowhere"), "{}", said.err);
    assert_eq!(said.err.contains("--features bert"), !cfg!(feature = "bert"), "{}", said.err);
    let said = shell.refused(&["recall", "pet", "--embedder", "magic"]);
    assert!(said.contains("builtin, none, folder:PATH"), "{said}");
}

/// Changes the write permission of a folder and everything in it.
#[cfg(unix)]
fn writable(folder: &std::path::Path, writable: bool) {
    use std::os::unix::fs::PermissionsExt;
    let mode = |is_folder| if is_folder { 0o555 } else { 0o444 } | if writable { 0o200 } else { 0 };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            self::writable(&path, writable);
        } else {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode(false))).unwrap();
        }
    }
    std::fs::set_permissions(folder, PermissionsExt::from_mode(mode(true))).unwrap();
}

/// A store on a read-only medium is searched as far as it was indexed; otherwise the answer says why not.
#[cfg(unix)]
#[test]
fn a_store_in_a_read_only_folder_is_searched() {
    use std::os::unix::process::CommandExt;
    let (shell, id) = furnished();
    shell.ok(&["recall", "database"]);
    let recall = |question: &str| {
        writable(shell.folder.path(), false);
        let mut command = shell.command(&["recall", question]);
        // Root may write everywhere, so another user runs the command.
        if std::fs::write(shell.path("probe"), "").is_ok() {
            std::fs::remove_file(shell.path("probe")).unwrap();
            command.uid(65534);
        }
        let said = Said::from(command.output().unwrap());
        writable(shell.folder.path(), true);
        said
    };
    let found = recall("database");
    assert!(found.out.contains("The database hangs"), "{}{}", found.out, found.err);
    assert!(!found.err.contains("cannot be written"), "everything was in the index: {}", found.err);
    assert!(recall("xyzzy").err.contains("nothing found"));

    shell.ok(&["append", &id, "A second database, not indexed."]);
    std::fs::remove_dir_all(shell.path("store.db-index")).unwrap();
    let refused = recall("database");
    assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{}", refused.err);
    assert!(refused.err.contains("store.db-index cannot be written"), "{}", refused.err);
    assert!(refused.err.contains("make it writable"), "{}", refused.err);
}

/// Hits are grouped by conversation; each states its reason, and shows the turns around it on request.
#[test]
fn hits_are_grouped_explained_and_shown_in_their_context() {
    let shell = Shell::new();
    let (ports, cats) = (shell.new_conversation(), shell.new_conversation());
    for (id, role, text) in [
        (&ports, "user", "Good morning."),
        (&ports, "user", "Which port should the staging gateway listen on?"),
        (&ports, "assistant", "Take 8443, the others are taken."),
        (&ports, "user", "Fine."),
        (&cats, "user", "My cat walked over the staging keyboard."),
        (&ports, "user", "Now the colours of the front page."),
        (&ports, "assistant", "Blue would do."),
        (&ports, "user", "And the staging gateway needs a certificate."),
    ] {
        shell.ok(&["append", id, text, "--role", role]);
    }
    let said = recall(&shell, &["staging gateway port"]).out;
    assert_eq!(said.matches(ports.as_str()).count(), 1, "one heading for all hits of a conversation: {said}");
    assert!(said.contains("best by words"), "{said}");
    let answer = said.lines().position(|line| line.contains("8443")).expect("the answer beside the question");
    assert!(said.lines().nth(answer - 1).unwrap().contains("beside #3"), "{said}");
    let found: serde_json::Value =
        serde_json::from_str(&recall(&shell, &["staging gateway port", "--json"]).out).unwrap();
    let answer = found["data"].as_array().unwrap().iter().find(|hit| hit["seq"] == 4).unwrap();
    let beside = answer["beside"]["text"].as_str().unwrap();
    assert!(beside.starts_with("Which port should the staging"), "{answer}");

    let said = recall(&shell, &["certificate", "--mode", "lexical", "--context", "1"]).out;
    let shown = ["Blue would do.", "needs a certificate"];
    assert!(shown.iter().all(|text| said.contains(text)) && !said.contains("colours"), "{said}");
    let gap = recall(&shell, &["gateway", "--mode", "lexical", "-C", "1"]).out;
    let at = |text: &str| gap.find(text).unwrap_or_else(|| panic!("{text}: {gap}"));
    assert!(at("Good morning") < at("8443") && at("8443") < at("--") && at("--") < at("Blue"), "{gap}");

    let said = recall(&shell, &["certificate", "--mode", "lexical", "-C", "2", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let before = found["data"][0]["before"].as_array().unwrap();
    assert_eq!(before.iter().map(|turn| &turn["seq"]).collect::<Vec<_>>(), [6, 7], "{found}");
    assert_eq!(found["data"][0]["after"], serde_json::json!([]));
}

/// Regression: inherited turns were shown with what the parent said after the fork point.
#[test]
fn around_a_hit_in_a_fork_stands_what_the_fork_says() {
    let shell = Shell::new();
    let parent = shell.new_conversation();
    shell.ok(&["append", &parent, "The gateway listens on 8443."]);
    let fork = shell.json(&["fork", &parent, "--json"])["id"].as_str().unwrap().to_string();
    shell.ok(&["append", &parent, "Said in the parent only."]);
    shell.ok(&["append", &fork, "Said in the fork only."]);
    let said = recall(&shell, &["gateway", "--mode", "lexical", "-c", &fork, "-C", "1"]).out;
    assert!(said.contains(&fork) && said.contains("in the fork only"), "{said}");
    assert!(!said.contains(&parent) && !said.contains("in the parent only"), "{said}");
}
