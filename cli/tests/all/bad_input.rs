//! Errors say what is wrong and what to do; nothing is lost.

use crate::{Said, Shell, assert_shows};
use std::io::Write;

#[test]
fn errors_say_what_to_do() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    for (args, says) in [
        (
            &["history", "conv_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X"][..],
            "no conversation conv_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X; `list` shows what there is",
        ),
        (&["history", "zzz"], "no conversation begins with \"zzz\""),
        (&["append", &id, "x", "--role", "king"], "\"king\" is not one of user, assistant, system, tool"),
        (
            &["append", &id, "--message", "{\"role\":\"user\",\"role\":\"user\"}"],
            "message: duplicate key \"role\" at byte 15",
        ),
        (&["append", &id, "--message", "[1]"], "a message is a JSON object, this is [1]"),
        (&["append", &id, "--message", "{\"content\":\"x\"}"], "the message has no role"),
        (
            &["append", &id, "x", "--expected-seq", "7"],
            "head is 1, you expected 7; read from 2 and append again",
        ),
        (&["fork", &id, "--at", "99"], "has no seq 99; its events are 1 to 1"),
        (&["new", "--retention", "forever"], "\"forever\" is not one of full, audit-only, ephemeral"),
        (&["new", "--metadata", "[]"], "--metadata must be a JSON object"),
        (&["new", "--redaction", "blur"], "policy.redaction \"blur\" is not \"off\", \"mark\" or \"mask\""),
        (&["history", &id, "--limit", "0"], "limit is 0; ask for at least 1"),
        (
            &["history", &id, "--limit", "5000"],
            "PAGE_ENTRIES_MAX is 1000, this is 5000; ask for fewer, or read in several pages",
        ),
        (&["erase", "turn_x", "--reason", "r"], "is not an id of the form turn_01J"),
        (&["list", "--tenant", "a/b"], "tenant \"a/b\" is not usable"),
        (
            &["list", "--store", "mysql://localhost/x"],
            "is not a store this version knows; use sqlite:PATH, postgres://USER@HOST/DATABASE or memory:",
        ),
        (&["list", "--store", "mysql://u:hunter2@h/db"], "\"mysql://u:***@h/db\" is not a store"),
        (&["list", "--store", "postgres:/u:hunter2@h/db"], "\"postgres:/u:***@h/db\" names no server"),
        (
            &["list", "--store", "postgres://127.0.0.1:1/x"],
            "127.0.0.1:1 refused the connection; is PostgreSQL running there?",
        ),
        (&["verify", &id, "--head", "xyz"], "\"xyz\" is not a SHA-256 in 64 hexadecimal digits"),
        (&["list", "--after", "nonsense"], "`after` is not the `next` of a page"),
        (&["list", "--after", "2026-01-01"], "For a date, use `since`"),
    ] {
        let error = shell.refused(args);
        assert!(error.starts_with("error: ") && error.contains(says), "{args:?}: {error}");
    }
}

#[test]
fn an_error_as_json_has_a_code() {
    let shell = Shell::new();
    shell.new_conversation();
    let error: serde_json::Value =
        serde_json::from_str(&shell.refused(&["history", "zzz", "--json"])).unwrap();
    assert_eq!(error["error"]["code"], "conversation.absent");
}

#[test]
fn a_command_that_is_not_understood_ends_with_2() {
    let shell = Shell::new();
    for args in [&["frobnicate"][..], &["history"], &["history", "x", "--limit", "-3"], &["append"]] {
        assert_eq!(shell.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn files_that_are_no_store_are_refused_and_left_alone() {
    let shell = Shell::new();
    let folder = shell.folder.path().to_str().unwrap().to_string();
    let error = shell.refused(&["new", "--store", &format!("sqlite:{folder}")]);
    assert!(error.contains("is a directory; name a file in it"), "{error}");
    std::fs::write(shell.path("notes.txt"), "these are my notes, not a database ".repeat(100)).unwrap();
    let error = shell.refused(&["new", "--store", "sqlite:notes.txt"]);
    assert!(error.contains("is not a database"), "{error}");
    assert!(std::fs::read_to_string(shell.path("notes.txt")).unwrap().starts_with("these are my notes"));
    let error = shell.refused(&["list", "--store", "sqlite:nowhere.db"]);
    assert!(error.contains("no store at nowhere.db; `everturn import` creates one"), "{error}");
    assert!(!shell.path("nowhere.db").exists());
}

#[test]
fn files_that_cannot_be_imported_say_why_and_do_not_stop_the_others() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["export", &id, "-o", "good.jsonl"]);
    std::fs::write(shell.path("empty.json"), "").unwrap();
    std::fs::write(shell.path("binary.json"), b"{\"_type\":\"transcript\",\"x\":\"\xff\"}").unwrap();
    std::fs::write(
        shell.path("wrong.json"),
        r#"{"_type":"transcript","version":2,"messages":[{"content":1}]}"#,
    )
    .unwrap();
    std::fs::write(shell.path("newer.json"), r#"{"_type":"transcript","version":9,"messages":[]}"#).unwrap();
    let said = shell.run(&[
        "import",
        "empty.json",
        "binary.json",
        "wrong.json",
        "newer.json",
        "missing.json",
        "good.jsonl",
    ]);
    assert_eq!(said.code, 1);
    for says in [
        "failed  empty.json: the file is empty",
        "failed  binary.json: the file is not UTF-8 text",
        "failed  wrong.json: $.messages[0]",
        "failed  newer.json: ",
        "failed  missing.json: cannot open it",
        "good.jsonl (jsonl): 1 event in the file, 0 turns, 0 new events",
    ] {
        let said = if says.starts_with("failed") { &said.err } else { &said.out };
        assert!(said.contains(says), "{says}:\n{said}");
    }
}

#[test]
fn a_command_that_needs_the_file_itself_is_told_who_writes() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let mut first =
        shell.command(&["append", &id, "--stream", "-"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    first.stdin.as_mut().unwrap().write_all(b"first").unwrap();
    // The stream's turn appears once the first process holds the store.
    while shell.json(&["history", &id, "--json"])["data"].as_array().unwrap().is_empty() {}
    let error = shell.refused(&["doctor", "--rebuild"]);
    assert_shows!(error, @"error: FOLDER/store.db is open for writing by process PID, and doctor must own the file to change it; wait until that ends, or stop it");
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    shell.ok(&["append", &id, "now it works"]);
}

/// Permission bits do not stop the superuser, so there the command runs as another user.
#[cfg(unix)]
#[test]
fn a_store_that_may_only_be_read_can_be_read_and_says_so_when_written() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;

    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "carved in stone"]);
    // The binary may be in a folder that others cannot read.
    let program = shell.path("everturn");
    std::fs::copy(env!("CARGO_BIN_EXE_everturn"), &program).unwrap();
    let superuser = std::fs::metadata(&program).unwrap().uid() == 0;
    let allow = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(&shell.path("store.db"), 0o444);
    allow(&shell.path("store.db.lock"), 0o444);
    allow(shell.folder.path(), 0o555);
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(args).env("EVERTURN_STORE", format!("sqlite:{}", shell.path("store.db").display()));
        if superuser {
            command.uid(NOBODY);
        }
        crate::Said::from(command.output().unwrap())
    };
    let (read, written) = (run(&["history", &id]), run(&["append", &id, "more"]));
    allow(shell.folder.path(), 0o755);
    assert_eq!(written.code, 1);
    assert!(written.err.contains("is read-only; make it writable, or only read from it"), "{}", written.err);
    assert_eq!(read.code, 0, "{}", read.err);
    assert!(read.out.contains("carved in stone"), "{}", read.out);
}

/// Regression: the usage showed options that environment variables set as if they had to be typed.
#[test]
fn usage_names_no_option_that_was_not_typed() {
    let shell = Shell::new();
    let mut command = shell.command(&["generate", "@last", "words", "--regenerate"]);
    command.env("EVERTURN_TENANT", "acme").env("EVERTURN_CONFIG", "settings.toml").env("EVERTURN_MODEL", "m");
    let said = Said::from(command.output().unwrap());
    let usage = said.err.lines().find(|line| line.starts_with("Usage:")).unwrap();
    assert!(
        !usage.contains("--config") && !usage.contains("--tenant") && !usage.contains("--model"),
        "{usage}"
    );
}
