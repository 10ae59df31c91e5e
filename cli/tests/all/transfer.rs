//! Export, import, verify, doctor.

use crate::process::Serving;
use crate::{Shell, assert_shows};

#[test]
fn an_export_verifies_offline_and_imports_again() {
    let (here, there) = (Shell::new(), Shell::new());
    let id = here.new_conversation();
    here.ok(&["append", &id, "remember this"]);
    let file = there.path("session.jsonl");
    let file = file.to_str().unwrap();
    here.ok(&["export", &id, "-o", file]);
    assert_shows!(there.ok(&["verify", file]), @"ok  conv_ID  2 events, head HASH");
    assert_shows!(there.ok(&["import", file]), @"conv_ID  FOLDER/session.jsonl (jsonl): 2 events in the file, 1 turn, 2 new events");
    assert_shows!(there.ok(&["import", file]), @"conv_ID  FOLDER/session.jsonl (jsonl): 2 events in the file, 1 turn, 0 new events");
    let head = |shell: &Shell| shell.json(&["verify", &id, "--json"])["head"]["hash"].clone();
    assert_eq!(head(&here), head(&there), "the chain is the same");
    let again = here.refused(&["export", &id, "-o", file]);
    assert!(again.contains("exists; --force replaces it"), "{again}");
}

#[test]
fn a_changed_file_is_found() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "pay 100 euros"]);
    let text = shell.ok(&["export", &id]).replace("pay 100", "pay 900");
    std::fs::write(shell.path("changed.jsonl"), text).unwrap();
    let said = shell.run(&["verify", "changed.jsonl"]);
    assert_eq!(said.code, 1);
    assert_shows!(said.out, @r"
    BROKEN  conv_ID  1 event, head HASH
      line 3: seq 2: its body is not the one that was written
    ");
}

#[test]
fn a_head_noted_earlier_is_still_there_or_it_is_said() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let head = shell.json(&["verify", &id, "--json"])["head"]["hash"].as_str().unwrap().to_string();
    shell.ok(&["append", &id, "more"]);
    assert_eq!(shell.run(&["verify", &id, "--head", &head]).code, 0);
    let other = "ab".repeat(32);
    let said = shell.run(&["verify", &id, "--head", &other]);
    assert_eq!(said.code, 1);
    assert!(said.out.contains("does not contain that head"), "{}", said.out);
}

#[test]
fn a_transcript_value_comes_back_equal() {
    let shell = Shell::new();
    let value = r#"{"_type":"transcript","version":2,"id":"tr_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X","state":"active","summary":"so far","metadata":{"a":1.0},
        "messages":[{"role":"user","content":[{"type":"image","asset_id":"asset_1","visibility":"public"},
            {"type":"text","text":"Review this screenshot","visibility":"public"}]}],
        "events":[{"kind":"message","role":"user","visibility":"public","text":"<image:screenshot.png> Review this screenshot",
            "blocks":[{"type":"image","asset_id":"asset_1","visibility":"public"},{"type":"text","text":"Review this screenshot","visibility":"public"}]}],
        "assets":[{"_type":"transcript_asset","id":"asset_1","kind":"image","mime_type":"image/png","name":"screenshot.png",
            "visibility":"internal","storage":{"path":".harn/assets/asset_1.png"}}]}"#;
    std::fs::write(shell.path("value.json"), value).unwrap();
    shell.ok(&["import", "value.json"]);
    let mut back: serde_json::Value = shell.json(&["export", "@last", "--format", "transcript"]);
    let budget = back["metadata"].as_object_mut().unwrap().remove("transcript_budget");
    assert!(budget.is_some_and(|budget| budget["policy"].is_object()));
    assert_eq!(back, serde_json::from_str::<serde_json::Value>(value).unwrap());
    assert!(shell.ok(&["history", "@last"]).contains("▣ image screenshot.png"));
}

#[test]
fn the_doctor_finds_nothing_in_a_healthy_store_and_something_in_a_changed_one() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "hello there"]);
    assert_shows!(shell.ok(&["doctor"]), @r"
    checked 1 conversation, 2 events, 0 assets
    everything is in order
    ");
    let said = shell.run(&["doctor", "--rebuild", "--compact"]);
    assert_eq!(said.code, 0);
    assert_shows!(said.err, @r"
    rebuilt all derived rows from the log
    reclaimed unused space
    ");
    let refused = shell.run(&["doctor", "--tenant", "acme"]);
    assert!(refused.code == 1 && refused.err.contains("leave --tenant out"), "{}", refused.err);
    damage(&shell, b"hello there");
    let said = shell.run(&["doctor"]);
    assert_eq!(said.code, 1);
    assert!(said.out.contains("its body is not the one that was written"), "{}", said.out);
}

/// Regression: damage of another tenant was found only by naming the tenant.
#[test]
fn the_doctor_checks_every_tenant_and_names_it() {
    let shell = Shell::new();
    shell.new_conversation();
    let other = shell.json(&["new", "--tenant", "umbrella", "--json"])["id"].as_str().unwrap().to_string();
    shell.ok(&["append", "--tenant", "umbrella", &other, "hello there"]);
    shell.ok(&["append", "--tenant", "umbrella", &other, "hello again"]);
    let file = shell.path("store.db");
    let mut bytes = std::fs::read(&file).unwrap();
    for words in [b"hello there", b"hello again"] {
        let at = bytes.windows(11).position(|window| window == words).expect("the text is in the file");
        bytes[at] = b'j';
    }
    std::fs::write(&file, bytes).unwrap();
    let said = shell.run(&["doctor"]);
    assert_eq!(said.code, 1);
    assert_shows!(said.out, @r"
    checked 2 conversations, 4 events, 0 assets
    conv_ID (tenant umbrella): seq 2 (evt_ID): its body is not the one that was written
      someone or something changed the stored log; compare with a backup or an export
    conv_ID (tenant umbrella): seq 3 (evt_ID): its body is not the one that was written
      someone or something changed the stored log; compare with a backup or an export
    ");
}

/// Regression: a mistyped path got a new, empty store, and the command reported no problem.
#[test]
fn a_store_is_made_only_by_verbs_that_begin_one() {
    let shell = Shell::new();
    let nowhere = shell.path("mistyped.db");
    let store = format!("sqlite:{}", nowhere.display());
    let conv = "conv_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X";
    let turn = "turn_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X";
    let cases: &[&[&str]] = &[
        &["doctor"],
        &["doctor", "--rebuild"],
        &["doctor", "--compact"],
        &["doctor", "--accept-loss"],
        &["append", conv, "hello"],
        &["append", conv, "--stream"],
        &["erase", turn, "--reason", "asked"],
        &["erase", "--said-by", "ana", "--reason", "asked", "--yes"],
        &["delete", conv, "--reason", "asked"],
        &["fork", conv],
        &["pin", conv, "branch", "\"main\""],
        &["compact", conv],
        &["facts", conv, "add", "tea", "is", "hot"],
        &["keys", "revoke", "key_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X"],
        &["keys", "list"],
        &["history", conv],
        &["verify", "--all"],
    ];
    for case in cases {
        let said = shell.run(&[&["--store", &store], *case].concat());
        assert_eq!(said.code, 1, "{case:?}: {}{}", said.out, said.err);
        assert!(
            said.err.contains("no store at") && said.err.contains("mistyped.db"),
            "{case:?}: {}",
            said.err
        );
        let left: Vec<_> =
            std::fs::read_dir(shell.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [] as [std::ffi::OsString; 0], "{case:?}");
    }
    shell.ok(&["--store", &store, "keys", "create", "--role", "admin"]);
    assert!(nowhere.exists(), "the first key may come before the first conversation");
}

/// Regression: 45 of 498 turns were gone after a crash and a removed file, and every command reported no
/// problem.
#[test]
fn a_lost_write_ahead_log_is_said_by_every_command() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let serving = Serving::start(&shell, &[]);
    shell.ok(&["append", &id, "hello there", "--url", &serving.url]);
    let pid = serving.id().to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    serving.end();
    std::fs::remove_file(shell.path("store.db-wal")).unwrap();
    for command in [&["doctor"][..], &["verify", "--all"], &["history", &id], &["append", &id, "no"]] {
        let said = shell.run(command);
        assert_ne!(said.code, 0, "{command:?}");
        assert!(
            said.err.contains("store.db-wal") && said.err.contains("--accept-loss"),
            "{command:?}: {}",
            said.err
        );
    }
    let said = shell.run(&["doctor", "--accept-loss"]);
    assert!(said.code == 0 && said.out.contains("accepted, see above; the rest is in order"), "{}", said.err);
    // It reports the loss, and does not advise running itself.
    assert!(
        said.err.contains("1 events, but 2 events were written") && !said.err.contains("--accept-loss"),
        "{}",
        said.err
    );
    shell.ok(&["append", &id, "again"]);
}

/// Regression: the first conversation that could not be exported ended it, and was not named.
#[test]
fn an_export_of_all_goes_on_after_one_that_fails() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "hello there"]);
    for words in ["one", "two"] {
        let other = shell.json(&["new", "--json"])["id"].as_str().unwrap().to_string();
        shell.ok(&["append", &other, words]);
    }
    damage(&shell, b"hello there");
    let said = shell.run(&["export", "--all", "out"]);
    assert_eq!((said.out.as_str(), said.code), ("", 1));
    assert!(said.err.contains(&format!("failed  {id}: ")), "{}", said.err);
    assert!(said.err.ends_with("wrote 2 files to out; 1 conversation failed\n"), "{}", said.err);
    assert_eq!(std::fs::read_dir(shell.path("out")).unwrap().count(), 2);
}

#[test]
fn a_damaged_turn_is_an_error_and_leaves_no_file_that_looks_whole() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "before"]);
    let turn = shell.json(&["append", &id, "hello there", "--json"])["id"].as_str().unwrap().to_string();
    shell.ok(&["append", &id, "and more"]);
    damage(&shell, b"hello there");
    for format in ["jsonl", "markdown", "html", "openai-chat", "transcript"] {
        let said = shell.run(&["export", &id, "--format", format, "-o", "out"]);
        assert_eq!(said.code, 1, "{format}");
        assert!(
            said.err.contains("seq 3 (evt_") && said.err.contains("restore the store from a backup"),
            "{}",
            said.err
        );
        assert!(!shell.path("out").exists(), "{format} left a file");
    }
    // Entries around it are shown, and the error names a command that helps.
    for (flags, order) in
        [(&["--ids"][..], ["before", "and more"]), (&["--after", "0"], ["before", "and more"])]
    {
        let said = shell.run(&[&["history", &id], flags].concat());
        assert!(said.code == 1 && !said.out.contains("jello"), "{}", said.out);
        let at = order.map(|words| said.out.find(words).expect(words));
        assert!(at[0] < at[1], "{}", said.out);
        assert!(said.err.contains(&format!("`everturn erase {turn} --reason damaged`")), "{}", said.err);
    }
    let said = shell.run(&["history", &id, "--json", "--limit", "2"]);
    let page: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (said.code, page["data"].as_array().unwrap().len(), &page["next"]),
        (1, 1, &"3".into()),
        "{page}"
    );
    shell.ok(&["erase", &turn, "--reason", "damaged"]);
    let shown = shell.ok(&["history", &id]);
    assert!(shown.contains("before") && shown.contains("and more"), "{shown}");
}

/// Regression: only turns could be erased, although any event may be damaged.
#[test]
fn a_damaged_event_that_is_no_turn_can_be_erased_by_the_command_that_its_error_gives() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["pin", &id, "branch", "\"hello there\""]);
    shell.ok(&["append", &id, "and more"]);
    damage(&shell, b"hello there");
    let said = shell.run(&["history", &id, "--events"]);
    assert!(said.code == 1 && said.out.contains("and more"), "{}", said.out);
    let command = format!("everturn erase {id} --event 2 --reason damaged");
    assert!(said.err.contains(&command), "{}", said.err);
    shell.ok(&command.split(' ').skip(1).collect::<Vec<_>>());
    assert!(shell.ok(&["history", &id, "--events"]).contains("and more"));
    assert!(shell.ok(&["doctor"]).contains("everything is in order"));
}

/// Changes a letter of stored text.
fn damage(shell: &Shell, words: &[u8]) {
    let file = shell.path("store.db");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(words.len()).position(|window| window == words).expect("the text is in the file");
    bytes[at] = b'j';
    std::fs::write(&file, bytes).unwrap();
}

/// Regression: a damaged conversation ended the copy, and left an empty one at the destination.
#[test]
fn a_damaged_conversation_is_not_copied_and_the_others_are() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    shell.ok(&["append", &id, "hello there"]);
    let behind = shell.new_conversation();
    shell.ok(&["append", &behind, "the one behind it"]);
    damage(&shell, b"hello there");
    let said = shell.run(&["copy", "--to", "sqlite:copy.db"]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.out.contains("; 1 conversation equal in both stores, 1 not copied\n"), "{}", said.out);
    assert!(said.err.contains(&format!("failed  {id} of tenant default: ")), "{}", said.err);
    let listed = shell.json(&["list", "--store", "sqlite:copy.db", "--json"]);
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, [behind]);
}

/// Regression: the doctor advised running the doctor.
#[test]
fn no_command_advises_itself() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    for _ in 0..4 {
        shell.ok(&["append", &id, &"long words ".repeat(5000)]);
    }
    let file = shell.path("store.db");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let said = shell.run(&["doctor"]);
    assert_eq!(said.code, 1);
    let words = format!("{}{}", said.out, said.err);
    assert!(
        words.contains("damaged") && words.contains("backup") && !words.contains("everturn doctor`"),
        "{words}"
    );
}
