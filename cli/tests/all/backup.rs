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
    let error = shell.refused(&["copy", "--from", &source, "--to", "sqlite:copy.db"]);
    assert!(error.contains(&id), "{error}");
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
