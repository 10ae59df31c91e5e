//! `everturn backup`, `restore` and `verify --against` from the command line.

use crate::Shell;
use crate::process::Serving;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn names(folder: &Path) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    files(folder).iter().map(name).filter(|name| name != ".everturn-backup.lock").collect()
}

fn holding(folder: &Path, word: &str) -> Vec<PathBuf> {
    let holds = |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains(word);
    files(folder).into_iter().filter(holds).collect()
}

fn heads(shell: &Shell, store: &str) -> Vec<String> {
    let listed = shell.json(&["--store", store, "verify", "--all", "--json"]);
    let mut heads: Vec<String> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|verdict| verdict["head"]["hash"].to_string())
        .collect();
    heads.sort();
    heads
}

#[test]
fn a_folder_gets_a_full_backup_and_then_what_is_new_beside_a_server() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let serving = Serving::start(&shell, &[]);
    let said = shell.ok(&["backup", "backups"]);
    assert!(said.contains("everturn-000001-full.jsonl.zst  full backup: 1 conversation, "), "{said}");
    let said = serving.ask(
        &format!("POST /api/v1/conversations/{id}/turns"),
        r#"{"turns":[{"message":{"role":"user","content":"the unspeakable word"}}]}"#,
    );
    assert!(said.starts_with("HTTP/1.1 201"), "{said}");
    let turn = said.split("\"id\":\"turn_").nth(1).unwrap().split('"').next().unwrap().to_string();
    shell.ok(&["backup", "backups", "--full"]);
    let erased = serving.ask(&format!("POST /api/v1/turns/turn_{turn}/erase"), r#"{"reason":"asked for"}"#);
    assert!(erased.starts_with("HTTP/1.1 200"), "{erased}");
    let done = shell.json(&["backup", "backups", "--json"]);
    assert_eq!((&done["number"], &done["erased"], &done["events"]), (&2.into(), &1.into(), &1.into()));
    assert_eq!(
        names(&shell.path("backups")),
        [
            "everturn-000001-full.jsonl.zst",
            "everturn-000002-full.jsonl.zst",
            "everturn-000003-increment.jsonl.zst"
        ]
    );
    serving.kill();

    std::fs::create_dir(shell.path("then")).unwrap();
    std::fs::create_dir(shell.path("now")).unwrap();
    let said = shell.run(&["restore", "backups", "--through", "2", "--store", "sqlite:then/store.db"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("not applied, since only later archives have it: 1 erasure\n"), "{}", said.err);
    assert_ne!(holding(&shell.path("then"), "unspeakable"), Vec::<PathBuf>::new());
    let said = shell.ok(&["restore", "backups", "--store", "sqlite:now/store.db"]);
    assert!(said.starts_with("restored 1 conversation, "), "{said}");
    assert_eq!(holding(&shell.path("now"), "unspeakable"), Vec::<PathBuf>::new());
    assert_eq!(heads(&shell, "sqlite:now/store.db"), heads(&shell, "sqlite:store.db"));
    assert!(
        names(&shell.path("now")).iter().all(|name| name.starts_with("store.db")),
        "nothing unfinished is left"
    );
    shell.ok(&["--store", "sqlite:now/store.db", "doctor"]);
    shell.ok(&["--store", "sqlite:now/store.db", "append", &id, "it goes on"]);

    let said = shell.ok(&["verify", "backups"]);
    assert!(said.contains("ok  1 conversation, "), "{said}");
    let said = shell.ok(&["verify", "--against", "backups"]);
    assert!(said.starts_with("the store has everything that the backup has: 1 conversation, "), "{said}");
    let said = shell.run(&["--store", "sqlite:then/store.db", "verify", "--against", "backups"]);
    assert_eq!(said.code, 1);
    assert!(said.out.contains(&format!("DIFFERS  default  {id} is cut: it ends at seq ")), "{}", said.out);
}

/// An older full archive can be restored, too.
#[test]
fn every_archive_of_a_folder_is_verified() {
    let shell = Shell::new();
    shell.new_conversation();
    shell.ok(&["backup", "backups"]);
    shell.ok(&["backup", "backups", "--full"]);
    assert_eq!(shell.ok(&["verify", "backups"]).matches("ok  1 conversation").count(), 2);
    let oldest = shell.path("backups/everturn-000001-full.jsonl.zst");
    let whole = std::fs::read(&oldest).unwrap();
    std::fs::write(&oldest, &whole[..whole.len() / 2]).unwrap();
    let said = shell.run(&["verify", "backups"]);
    assert_eq!(said.code, 1);
    assert_eq!(said.out.matches("ok  1 conversation").count(), 1, "{}", said.out);
    assert!(said.err.contains("everturn-000001-full"), "{}", said.err);
}

#[test]
fn a_pipe_carries_a_backup() {
    let shell = Shell::new();
    shell.new_conversation();
    let out = shell.command(&["backup", "-"]).output().unwrap();
    assert!(out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("full backup: 1 conversation"));
    let said = shell.run_with(&["restore", "-", "--store", "sqlite:copy.db"], &out.stdout);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(heads(&shell, "sqlite:copy.db"), heads(&shell, "sqlite:store.db"));
    let cut =
        shell.run_with(&["restore", "-", "--store", "sqlite:cut.db"], &out.stdout[..out.stdout.len() - 7]);
    assert_eq!(cut.code, 1);
    assert!(cut.err.contains("error: standard input: the backup is"), "{}", cut.err);
    assert!(!shell.path("cut.db").exists());
}

#[test]
fn files_follow_each_other() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["backup", "one.zst"]);
    shell.ok(&["append", &id, "more"]);
    assert!(shell.refused(&["backup", "one.zst"]).contains("one.zst exists; --force replaces it"));
    shell.ok(&["backup", "two.zst", "--after", "one.zst"]);
    let err = shell.refused(&["restore", "two.zst", "--store", "sqlite:copy.db"]);
    assert!(err.contains("needs the archives before it"), "{err}");
    let err = shell.refused(&["restore", "two.zst", "one.zst", "--store", "sqlite:copy.db"]);
    assert!(err.contains("needs the archives before it"), "{err}");
    shell.ok(&["restore", "one.zst", "two.zst", "--store", "sqlite:copy.db"]);
    assert_eq!(heads(&shell, "sqlite:copy.db"), heads(&shell, "sqlite:store.db"));
    let err = shell.refused(&["restore", "one.zst", "--store", "sqlite:copy.db"]);
    assert!(err.contains("copy.db is not empty"), "{err}");
    assert!(shell.refused(&["backup", "-", "--full"]).contains("are for a folder"));
    let err = shell.refused(&["backup", "folder", "--url", "http://127.0.0.1:9"]);
    assert!(err.contains("run it on the machine that has the store"), "{err}");
    std::fs::write(shell.path("words.txt"), "no backup").unwrap();
    let err = shell.refused(&["restore", "words.txt", "--store", "sqlite:other.db"]);
    assert!(err.contains("not a backup that `everturn backup` wrote"), "{err}");
    assert!(
        shell
            .refused(&["restore", "nowhere", "--store", "sqlite:other.db"])
            .contains("there is no file nowhere")
    );
    std::fs::create_dir(shell.path("empty")).unwrap();
    let err = shell.refused(&["restore", "empty", "--store", "sqlite:other.db"]);
    assert!(err.contains("there is no backup in empty"), "{err}");
}

/// Whenever a backup is killed, no incomplete file has a final name, and the next backup continues.
#[test]
fn a_backup_that_is_killed_leaves_nothing_behind() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let input: String = (0..3000)
        .map(|n| format!("{{\"role\":\"user\",\"content\":\"{n} {}\"}}\n", "x".repeat(300)))
        .collect();
    std::fs::write(shell.path("many.jsonl"), input).unwrap();
    shell.ok(&["import", "many.jsonl"]);
    let folder = shell.path("backups");
    std::fs::create_dir(&folder).unwrap();
    let mut killed = 0;
    for round in 0..8 {
        let mut child = shell
            .command(&["backup", "backups"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From before its first byte to after its last: at once, or when the unfinished file has some size.
        let wanted = round * 2000;
        loop {
            let partial =
                files(&folder).into_iter().find(|path| path.to_string_lossy().ends_with(".partial"));
            let size = partial.and_then(|path| path.metadata().ok()).map_or(0, |meta| meta.len());
            if size >= wanted || child.try_wait().unwrap().is_some() {
                break;
            }
        }
        killed += usize::from(child.try_wait().unwrap().is_none());
        let _ = child.kill();
        child.wait().unwrap();
        if names(&folder).iter().any(|name| name.ends_with(".zst")) {
            shell.ok(&["verify", "backups"]);
        }
    }
    assert!(killed > 0, "none was killed in the middle");
    shell.ok(&["append", &id, "one more"]);
    shell.ok(&["backup", "backups"]);
    assert!(names(&folder).iter().all(|name| name.ends_with(".zst")), "{:?}", names(&folder));
    shell.ok(&["restore", "backups", "--store", "sqlite:copy.db"]);
    assert_eq!(heads(&shell, "sqlite:copy.db"), heads(&shell, "sqlite:store.db"));
}

/// A limit on the size of files simulates a full disk: a write fails in the middle.
#[test]
fn a_target_without_room_says_so_and_keeps_what_was_there() {
    let shell = Shell::new();
    shell.new_conversation();
    shell.ok(&["backup", "backups"]);
    let noise: String =
        (0..60_000u64).map(|n| format!("{:x} ", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    std::fs::write(shell.path("noise.jsonl"), format!("{{\"role\":\"user\",\"content\":\"{noise}\"}}\n"))
        .unwrap();
    shell.ok(&["import", "noise.jsonl"]);
    let everturn = env!("CARGO_BIN_EXE_everturn");
    let limited = |target: &str| {
        let mut command = Command::new("bash");
        let script = format!("ulimit -f 64; exec {everturn} backup {target}");
        command.args(["-c", &script]).current_dir(shell.folder.path());
        command.env("EVERTURN_STORE", format!("sqlite:{}", shell.path("store.db").display()));
        let said = command.output().unwrap();
        assert_eq!(said.status.code(), Some(1));
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let failed = limited("backups");
    assert!(
        failed.contains("backups/everturn-000002-increment.jsonl.zst: cannot write the backup"),
        "{failed}"
    );
    assert_eq!(names(&shell.path("backups")), ["everturn-000001-full.jsonl.zst"]);
    assert!(limited("one.zst").contains("cannot write"));
    assert!(!shell.path("one.zst").exists() && !shell.path("one.zst.partial").exists());
    let full =
        shell.command(&["backup", "-"]).stdout(std::fs::File::create("/dev/full").unwrap()).output().unwrap();
    assert_eq!(full.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&full.stderr).contains("make room"));
    shell.ok(&["backup", "backups"]);
    shell.ok(&["verify", "--against", "backups"]);
}

#[test]
fn a_target_is_a_file_or_a_folder_by_a_plain_rule() {
    let shell = Shell::new();
    shell.new_conversation();
    shell.ok(&["backup", "Monday.ZST"]);
    assert!(shell.path("Monday.ZST").is_file());
    shell.ok(&["backup", "daily"]);
    shell.ok(&["backup", "weekly.d/"]);
    shell.ok(&["backup", "weekly.d"]);
    assert!(shell.path("daily").is_dir() && names(&shell.path("weekly.d")).len() == 2);
    let err = shell.refused(&["backup", "store.everturn"]);
    assert!(err.contains("end it in .zst for one file, or in / for a folder"), "{err}");
    assert!(!shell.path("store.everturn").exists());
}

#[test]
fn a_backup_says_what_it_removed_and_what_it_wrote() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["backup", "backups"]);
    for number in 2..4 {
        shell.ok(&["append", &id, "more"]);
        let said = shell.ok(&["backup", "backups"]);
        let name = format!("backups/everturn-00000{number}-increment.jsonl.zst");
        assert!(
            said.starts_with(&format!("{name}  increment: 1 conversation, 1 event, 0 assets, ")),
            "{said}"
        );
    }
    let said = shell.ok(&["backup", "backups", "--full", "--keep", "1"]);
    let removed: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("removed backups/")).collect();
    let archives = ["000001-full", "000002-increment", "000003-increment"];
    assert_eq!(removed, archives.map(|name| format!("everturn-{name}.jsonl.zst")));
    let said = shell.json(&["backup", "backups", "--full", "--keep", "1", "--json"]);
    assert_eq!(said["removed"], serde_json::json!(["backups/everturn-000004-full.jsonl.zst"]));
    let restored = shell.json(&["restore", "backups", "--store", "sqlite:copy.db", "--json"]);
    assert_eq!((&restored["store"], &restored["events"]), (&"sqlite:copy.db".into(), &3.into()));
    for verb in ["backup", "restore"] {
        let help = shell.ok(&[verb, "--help"]);
        assert!(
            help.contains("--store") && !help.contains("--url") && !help.contains("--key-file"),
            "{help}"
        );
    }
}

#[test]
fn a_store_is_held_against_several_files_or_a_folder() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["backup", "one.zst"]);
    shell.ok(&["append", &id, "more"]);
    shell.ok(&["backup", "two.zst", "--after", "one.zst"]);
    shell.ok(&["backup", "backups"]);
    let everything =
        "the store has everything that the backup has: 1 conversation, 2 events, 0 assets, 0 keys\n";
    assert_eq!(shell.ok(&["verify", "--against", "one.zst", "two.zst"]), everything);
    assert_eq!(shell.ok(&["verify", "--against", "one.zst", "--against", "two.zst"]), everything);
    assert_eq!(shell.ok(&["verify", "--against", "backups"]), everything);
    assert!(shell.refused(&["verify", "--against", "two.zst"]).contains("needs the archives before it"));
    assert!(shell.refused(&["verify", "two.zst"]).contains("needs the archives before it"));
    assert!(shell.ok(&["verify", "one.zst", "two.zst"]).contains("ok"));
    assert!(shell.refused(&["verify", "one.zst", "@last"]).contains("one conversation or file at a time"));
}

/// A store is copied to another and back again; the second time brings what is new.
#[test]
fn a_store_is_copied_and_the_copy_is_brought_up_to_date() {
    let shell = Shell::new();
    let id = shell.json(&["new", "--title", "first", "--json"])["id"].as_str().unwrap().to_string();
    shell.ok(&["append", &id, "every word is kept"]);
    let source = format!("sqlite:{}", shell.path("store.db").display());
    let copied = shell.json(&["copy", "--from", &source, "--to", "sqlite:copy.db", "--json"]);
    assert_eq!((&copied["conversations"], &copied["events"]), (&1.into(), &2.into()));
    assert_eq!(shell.json(&["copy", "--from", &source, "--to", "sqlite:copy.db", "--json"])["events"], 0);
    shell.ok(&["append", &id, "and a word more"]);
    let said = shell.ok(&["copy", "--from", &source, "--to", "sqlite:copy.db"]);
    assert!(said.starts_with("copied 1 event, 0 assets, 0 keys ("), "{said}");
    shell.ok(&["append", &id, "written there", "--store", "sqlite:copy.db"]);
    // There it merely goes on; others are copied.
    let other = shell.json(&["new", "--json"])["id"].as_str().unwrap().to_string();
    let copied = shell.json(&["copy", "--from", &source, "--to", "sqlite:copy.db", "--json"]);
    assert_eq!((&copied["conversations"], &copied["ahead"]), (&2.into(), &serde_json::json!([id])));
    let said = shell.ok(&["copy", "--from", &source, "--to", "sqlite:copy.db"]);
    assert!(said.contains(&format!("{id} has more at the destination")), "{said}");
    assert!(shell.ok(&["history", &id, "--store", "sqlite:copy.db"]).contains("written there"));
    shell.ok(&["delete", &other, "--yes", "--reason", "of this test"]);
    shell.ok(&["append", &id, "written here"]);
    let said = shell.run(&["copy", "--from", &source, "--to", "sqlite:copy.db"]);
    assert!(said.code == 1 && said.err.contains(&id), "{}{}", said.out, said.err);
    // Deleted there, it stays so, with its fork that is not there, unless it is asked for.
    let fork = shell.json(&["fork", &id, "--at", "2", "--json"])["id"].as_str().unwrap().to_string();
    shell.ok(&["delete", &id, "--yes", "--reason", "not here", "--store", "sqlite:copy.db"]);
    let copied = shell.json(&["copy", "--from", &source, "--to", "sqlite:copy.db", "--json"]);
    assert_eq!(copied["left_deleted"], serde_json::json!([id, fork]));
    let said = shell.ok(&["copy", "--from", &source, "--to", "sqlite:copy.db"]);
    assert!(
        said.contains(&format!("{id} was deleted at the destination")) && said.contains("--deleted"),
        "{said}"
    );
    assert!(!shell.ok(&["list", "--store", "sqlite:copy.db"]).contains("first"));
    let copied = shell.json(&["copy", "--from", &source, "--to", "sqlite:copy.db", "--deleted", "--json"]);
    assert_eq!((&copied["conversations"], &copied["left_deleted"]), (&2.into(), &serde_json::json!([])));
    assert!(shell.ok(&["list", "--store", "sqlite:copy.db"]).contains("first"));
    assert!(shell.refused(&["copy", "--from", &source, "--to", &source]).contains("name two"));
    let both = ["copy", "--from", &source, "--to", "sqlite:copy.db", "--store", "sqlite:third.db"];
    assert!(shell.refused(&both).contains("leave --store out"));
    assert!(shell.refused(&["copy", "--from", &source, "--tenant", "acme"]).contains("leave --tenant out"));
    assert!(!shell.ok(&["copy", "--help"]).contains("--tenant"));
    // The one that is not named is the store of the other commands.
    shell.ok(&["copy", "--from", &source, "--store", "sqlite:third.db"]);
    shell.ok(&["copy", "--to", "sqlite:fourth.db", "--store", "sqlite:third.db"]);
    assert!(shell.ok(&["list", "--store", "sqlite:fourth.db"]).contains("first"));
}

/// One conversation that was continued in both stores ended the whole copy, and its advice was that of an import.
#[test]
fn a_copy_goes_on_past_what_it_cannot_copy() {
    let shell = Shell::new();
    let new = || shell.json(&["new", "--json"])["id"].as_str().unwrap().to_string();
    let copy = ["copy", "--from", "sqlite:store.db", "--to", "sqlite:copy.db"];
    let there = ["--store", "sqlite:copy.db"];
    let append = |id: &str, text: &str, at: &[&str]| shell.ok(&[&["append", id, text], at].concat());
    // Continued in both; continued only there; new.
    let (first, ahead, equal) = (new(), new(), new());
    append(&first, "both have it", &[]);
    shell.ok(&copy);
    append(&first, "said here", &[]);
    append(&first, "said there", &there);
    append(&ahead, "said there only", &there);
    let fork =
        |at: &str| shell.json(&["fork", &first, "--at", at, "--json"])["id"].as_str().unwrap().to_string();
    let (early, late) = (fork("2"), fork("3"));
    let behind = new();
    append(&behind, "the one behind it", &[]);

    let said = shell.run(&copy);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(
        said.out.contains(" to sqlite:copy.db; 3 conversations equal in both stores, 1 with more at the destination, 2 not copied\n"),
        "{}",
        said.out
    );
    assert!(said.out.contains(&format!("{ahead} has more at the destination")), "{}", said.out);
    for line in [
        format!(
            "failed  {first} of tenant default: it goes on differently in the two stores; copy to another store"
        ),
        format!(
            "failed  {late} of tenant default: it is a fork of {first} at seq 3, which was not copied up to there"
        ),
    ] {
        assert!(said.err.contains(&line), "{line}\n{}", said.err);
    }
    assert!(said.err.contains("delete it at the destination and copy with --deleted"), "{}", said.err);
    assert!(!said.err.contains("import it"), "{}", said.err);
    let history = |id: &str| shell.run(&[&["history", id], &there[..]].concat());
    assert!(history(&behind).out.contains("the one behind it"));
    assert!(history(&early).out.contains("both have it"));
    assert_eq!(history(&late).code, 1, "nothing is left of what was not copied");
    let of_first = history(&first).out;
    assert!(of_first.contains("said there") && !of_first.contains("said here"), "{of_first}");

    let json = shell.run(&[&copy[..], &["--json"]].concat());
    assert_eq!((json.code, json.err.as_str()), (1, ""));
    let copied: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&copied["conversations"], &copied["events"]), (&4.into(), &0.into()));
    let not_copied = copied["not_copied"].as_array().unwrap();
    let codes: Vec<_> =
        not_copied.iter().map(|not| (&not["conversation"], &not["tenant"], &not["code"])).collect();
    assert_eq!(
        codes,
        [
            (&first.as_str().into(), &"default".into(), &"copy.diverged".into()),
            (&late.as_str().into(), &"default".into(), &"copy.fork".into())
        ]
    );

    // As advised.
    shell.ok(&[&["delete", &first, "--yes", "--reason", "as advised"], &there[..]].concat());
    let said = shell.ok(&[&copy[..], &["--deleted"]].concat());
    assert!(
        said.contains("; 5 conversations equal in both stores, 1 with more at the destination\n"),
        "{said}"
    );
    assert!(history(&first).out.contains("said here") && history(&late).out.contains("said here"));
    assert!(
        shell.json(&["list", "--json"])["data"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["id"] == equal.as_str())
    );
}

/// Text that was erased after a copy is named with both remedies, and the second one is a command that works.
#[test]
fn a_copy_names_what_was_erased_since() {
    let shell = Shell::new();
    let new = || shell.json(&["new", "--json"])["id"].as_str().unwrap().to_string();
    let copy = ["copy", "--from", "sqlite:store.db", "--to", "sqlite:copy.db"];
    let (turn, title) = (new(), new());
    shell.ok(&["append", &turn, "the harbour"]);
    shell.ok(&["rename", &title, "the lighthouse"]);
    shell.ok(&copy);
    shell.ok(&["erase", &format!("{turn}#2"), "--reason", "asked"]);
    shell.ok(&["erase", &title, "--event", "2", "--reason", "asked"]);
    let said = shell.run(&copy);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.out.contains("; 0 conversations equal in both stores, 2 not copied"), "{}", said.out);
    for id in [&turn, &title] {
        let line = said.err.lines().find(|line| line.contains(&format!("failed  {id} "))).unwrap();
        assert!(
            line.contains("the destination still has it (seq 2); delete the conversation there"),
            "{line}"
        );
        assert!(line.contains("copy with --deleted"), "{line}");
        let (_, command) = line.split_once("(everturn ").unwrap();
        let command = command.replace("--reason …", "--reason asked").replace("…", "sqlite:copy.db");
        shell.ok(&command.trim_end_matches(')').split(' ').collect::<Vec<_>>());
    }
    let said = shell.ok(&copy);
    assert!(
        said.contains("; 0 conversations equal in both stores, 2 with more at the destination\n"),
        "{said}"
    );
    assert!(!shell.ok(&["history", &turn, "--store", "sqlite:copy.db"]).contains("harbour"));
}

#[test]
fn a_copy_names_its_stores_and_its_progress() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "every word is kept"]);
    let said = shell.run(&["copy", "--from", "sqlite:store.db", "--to", "sqlite:copy.db", "-v"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("copying sqlite:store.db to sqlite:copy.db\n"), "{}", said.err);
    assert!(said.err.contains("\n2 of 2 events\n"), "{}", said.err);
    assert!(said.out.contains(" to sqlite:copy.db; 1 conversation equal in both stores\n"), "{}", said.out);
    // The destination that nobody named is in the data folder.
    let mut command = shell.command(&["copy", "--from", "sqlite:store.db"]);
    command.env_remove("EVERTURN_STORE").env("XDG_DATA_HOME", shell.path("data"));
    let said = crate::Said::from(command.output().unwrap());
    let default = format!("to sqlite:{}", shell.path("data/everturn/everturn.db").display());
    assert!(said.err.contains(&default) && said.out.contains(&default), "{}{}", said.out, said.err);
    for to in [["--to", "memory:"], ["--store", "memory:"]] {
        let error = shell.refused(&[&["copy", "--from", "sqlite:store.db"], &to[..]].concat());
        assert!(error.contains("copy to sqlite:PATH or postgres://"), "{error}");
    }
}
