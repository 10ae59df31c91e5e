//! Bad input: refused with a code that stays and a sentence that says what to do.

use crate::stage::{Short, Stage, files, memory, refused};
use everturn_core::conversation::{Parent, Settings, SystemPrompt};
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::{
    BATCH_EVENTS_MAX, BODY_BYTES_MAX, PAGE_ENTRIES_MAX, PARTICIPANTS_MAX, TITLE_BYTES_MAX,
};
use everturn_core::time::Timestamp;
use everturn_engine::{
    Change, Error, Everturn, Format, HistoryQuery, Lifecycle, ListQuery, NewConversation, NewStream, NewTurn,
    Options, Tenant,
};
use std::collections::BTreeMap;

fn unknown() -> (ConversationId, TurnId) {
    ("conv_00000000000000000000000007".parse().unwrap(), "turn_00000000000000000000000007".parse().unwrap())
}

fn note() -> Raw {
    Raw::new("{}".into()).unwrap()
}

/// Everything that a tenant can ask about a conversation and a turn, by name.
fn everything(scope: &Tenant, id: ConversationId, turn: TurnId) -> Vec<(&'static str, Result<(), Error>)> {
    let user = || NewTurn::user("x");
    let titled = || Settings { title: Some(Some("x".into())), ..Settings::default() };
    let mut sink = Vec::new();
    vec![
        ("get", scope.conversation(id).get().map(drop)),
        ("system_prompt", scope.conversation(id).state().system_prompt(None).map(drop)),
        ("resolve", scope.resolve(&id.to_string()).map(drop)),
        ("update", scope.conversation(id).update(titled()).wait().map(drop)),
        ("update with nothing", scope.conversation(id).update(Settings::default()).wait().map(drop)),
        ("archive", scope.conversation(id).update(Lifecycle::Archived).wait().map(drop)),
        ("resume", scope.conversation(id).update(Lifecycle::Active).wait().map(drop)),
        (
            "abandon",
            scope
                .conversation(id)
                .update(Change { state: Some(Lifecycle::Abandoned), reason: None, ..Change::default() })
                .wait()
                .map(drop),
        ),
        ("close", scope.conversation(id).update(Lifecycle::Closed).wait().map(drop)),
        ("reset", scope.conversation(id).reset().map(drop)),
        ("fork", scope.conversation(id).fork(1).wait().map(drop)),
        ("delete", scope.conversation(id).delete("").wait().map(drop)),
        ("append", scope.conversation(id).append(user()).wait().map(drop)),
        ("append_event", scope.conversation(id).log().append("note", None, note()).wait().map(drop)),
        ("append_open", scope.conversation(id).open(NewStream::default()).wait().map(drop)),
        ("append_chunk", scope.conversation(id).open_turn(turn).chunk(None, "x").map(drop)),
        ("append_commit", scope.conversation(id).open_turn(turn).commit(user()).wait().map(drop)),
        ("append_abort", scope.conversation(id).open_turn(turn).abort("", None).wait().map(drop)),
        ("supersede", scope.conversation(id).supersede(turn, user()).wait().map(drop)),
        ("erase", scope.conversation(id).erase(turn, None, "").wait().map(drop)),
        ("apply_retention", scope.conversation(id).compaction().apply_retention(9).map(drop)),
        ("turn_in", scope.conversation(id).turn(turn).map(drop)),
        ("history", scope.conversation(id).history(HistoryQuery::default()).map(drop)),
        (
            "history with events",
            scope
                .conversation(id)
                .history(HistoryQuery { include_events: true, ..HistoryQuery::default() })
                .map(drop),
        ),
        ("events", scope.conversation(id).log().read(0, 1).map(drop)),
        ("subscribe", scope.conversation(id).subscribe(0).map(drop)),
        ("add_asset", scope.conversation(id).assets().add(None, "text/plain", b"x".to_vec()).map(drop)),
        ("assets", scope.conversation(id).assets().list().map(drop)),
        ("export_jsonl", scope.conversation(id).export(Format::Jsonl, &mut sink, &mut |_| {}).map(drop)),
        ("export html", scope.conversation(id).export(Format::Html, &mut sink, &mut |_| {})),
        ("export gemini", scope.conversation(id).export(Format::Gemini, &mut sink, &mut |_| {})),
        ("transcript", scope.conversation(id).transcript().map(drop)),
        ("verify", scope.conversation(id).log().verify(None).map(drop)),
    ]
}

#[test]
fn what_is_not_there_is_absent_for_every_call() {
    let (_store, scope) = memory();
    let (id, turn) = unknown();
    for (call, answer) in everything(&scope, id, turn) {
        println!("{call}");
        refused(answer, "conversation.absent", &format!("no conversation {id}; `list` shows what there is"));
    }
    refused(scope.turn(turn), "turn.absent", &format!("no turn {turn} here; `history` shows what there is"));
    let here = scope.begin();
    refused(scope.conversation(here).open_turn(turn).chunk(None, "x"), "turn.absent", "no turn");
    refused(
        scope.conversation(here).open_turn(turn).commit(NewTurn::user("x")).wait(),
        "turn.absent",
        "no turn",
    );
    refused(scope.conversation(here).open_turn(turn).abort("", None).wait(), "turn.absent", "no turn");
    refused(scope.conversation(here).supersede(turn, NewTurn::user("x")).wait(), "turn.absent", "no turn");
    refused(scope.conversation(here).erase(turn, None, "").wait(), "turn.absent", "no turn");
    refused(scope.conversation(here).turn(turn), "turn.absent", "no turn");
    assert_eq!(scope.conversation(here).get().unwrap().head.seq, 1, "nothing was written");
}

#[test]
fn another_tenants_conversation_looks_the_same_as_none_in_every_call() {
    for stage in [None, Some(Stage::new())] {
        let store = stage.as_ref().map_or_else(|| memory().0, Stage::open);
        let owner = store.tenant("owner").unwrap();
        let id = owner.begin_with(Settings { title: Some(Some("mine".into())), ..Settings::default() }).id;
        let turn = owner.say(id, NewTurn::user("private"));
        let open = owner.conversation(id).open(NewStream::default()).wait().unwrap().id;
        let asset = owner.conversation(id).assets().add(None, "text/plain", b"private".to_vec()).unwrap();
        let before = owner.conversation(id).get().unwrap();
        let stranger = store.tenant("stranger").unwrap();
        for turn in [turn.id, open] {
            for (call, answer) in everything(&stranger, id, turn) {
                println!("{call}");
                refused(answer, "conversation.absent", "no conversation");
            }
            refused(stranger.turn(turn), "turn.absent", "no turn");
        }
        refused(stranger.assets().bytes(&asset), "asset.absent", "are not here");
        refused(
            stranger.resolve(&id.to_string()[..12]),
            "conversation.absent",
            "no conversation begins with",
        );
        refused(stranger.resolve("@last"), "conversation.none", "there is no conversation yet");
        assert_eq!(stranger.list(ListQuery::default()).unwrap().data, []);
        assert_eq!(stranger.tombstones().unwrap(), []);
        assert_eq!(stranger.doctor(&mut |_| {}).unwrap().conversations, 0);
        // A conversation of its own must not take over another tenant's turn.
        let own = stranger.begin();
        refused(
            stranger.conversation(own).supersede(turn.id, NewTurn::user("x")).wait(),
            "turn.absent",
            "no turn",
        );
        refused(stranger.conversation(own).erase(turn.id, None, "").wait(), "turn.absent", "no turn");
        refused(stranger.conversation(own).open_turn(open).chunk(None, "x"), "turn.absent", "no turn");
        assert_eq!(owner.conversation(id).get().unwrap(), before, "nothing has changed");
        // And the same id may be used twice.
        let same = NewConversation { id: Some(id), ..NewConversation::default() };
        assert_eq!(stranger.create(same).wait().unwrap().get().unwrap().turns, 0);
        assert_eq!(owner.conversation(id).get().unwrap(), before);
    }
}

#[test]
fn a_message_that_is_none_is_refused() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for (message, code, says) in [
        ("", "json.malformed", "message: not JSON at byte 0: the JSON ends too early"),
        ("hello", "json.malformed", "message: not JSON at byte 0: expected a JSON value"),
        ("{\"role\":\"user\"", "json.malformed", "expected ',' or '}'"),
        ("\"hello\"", "message.not_an_object", "a message is a JSON object, this is \"hello\""),
        ("[{\"role\":\"user\"}]", "message.not_an_object", "a message is a JSON object, this is [{"),
        (
            "{\"content\":\"x\"}",
            "message.role_missing",
            "the message has no role; give user, assistant, system or tool",
        ),
        (
            "{\"role\":\"king\"}",
            "message.role_unknown",
            "role \"king\" is not user, assistant, system or tool",
        ),
        ("{\"role\":7}", "message.role_unknown", "role 7 is not"),
        (
            "{\"role\":\"user\",\"role\":\"tool\"}",
            "json.duplicate_key",
            "duplicate key \"role\" at byte 15; keep one of them",
        ),
        ("{\"role\":\"user\",\"content\":\"\\ud800\"}", "json.malformed", "a lone surrogate"),
    ] {
        refused(scope.try_say(id, NewTurn::message(message)), code, says);
    }
    let deep = format!("{{\"role\":\"user\",\"content\":{}{}}}", "[".repeat(100), "]".repeat(100));
    refused(
        scope.try_say(id, NewTurn::message(deep)),
        "limit.exceeded",
        "JSON_DEPTH_MAX is 100, this is 101",
    );
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, 1, "nothing was written");
}

#[test]
fn every_limit_says_its_name_and_both_numbers() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let large = scope.try_say(id, NewTurn::user(&"x".repeat(BODY_BYTES_MAX)));
    refused(large, "limit.exceeded", "BODY_BYTES_MAX is 16777216, this is 16777");
    let many: Vec<_> = (0..=BATCH_EVENTS_MAX).map(|_| NewTurn::user("x")).collect();
    refused(
        scope.conversation(id).append_all(many).wait(),
        "limit.exceeded",
        "BATCH_EVENTS_MAX is 1000, this is 1001; append in several batches",
    );
    let long = NewTurn::user("x").by("a".repeat(201));
    refused(
        scope.try_say(id, long),
        "limit.exceeded",
        "NAME_BYTES_MAX is 200, this is 201; shorten the actor",
    );
    let title = Settings { title: Some(Some("t".repeat(TITLE_BYTES_MAX + 1))), ..Settings::default() };
    refused(
        scope.conversation(id).update(title).wait(),
        "limit.exceeded",
        "TITLE_BYTES_MAX is 1000, this is 1001",
    );
    let big = Raw::of(&"m".repeat(70_000)).unwrap();
    let metadata = Settings { metadata: BTreeMap::from([("k".to_string(), big)]), ..Settings::default() };
    refused(
        scope.conversation(id).update(metadata).wait(),
        "limit.exceeded",
        "METADATA_BYTES_MAX is 65536, this is 70003",
    );
    for limit in [PAGE_ENTRIES_MAX + 1, usize::MAX] {
        let says =
            format!("PAGE_ENTRIES_MAX is 1000, this is {limit}; ask for fewer, or read in several pages");
        let page = HistoryQuery { limit, ..HistoryQuery::default() };
        refused(scope.conversation(id).history(page.clone()), "limit.exceeded", &says);
        refused(
            scope.conversation(id).history(HistoryQuery { include_events: true, ..page }),
            "limit.exceeded",
            &says,
        );
        refused(scope.conversation(id).log().read(0, limit), "limit.exceeded", &says);
        refused(scope.list(ListQuery { limit, ..ListQuery::default() }), "limit.exceeded", &says);
    }
    let nothing = HistoryQuery { limit: 0, ..HistoryQuery::default() };
    refused(scope.conversation(id).history(nothing), "limit.zero", "limit is 0; ask for at least 1");
    refused(scope.conversation(id).log().read(0, 0), "limit.zero", "ask for at least 1");
    refused(scope.list(ListQuery { limit: 0, ..ListQuery::default() }), "limit.zero", "ask for at least 1");
    refused(
        scope.conversation(id).append_all(Vec::<NewTurn>::new()).wait(),
        "append.empty",
        "give at least one turn",
    );
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, 1, "nothing was written");
}

#[test]
fn places_beyond_the_ends_are_empty_or_refused_but_never_a_panic() {
    for stage in [None, Some(Stage::new())] {
        let store = stage.as_ref().map_or_else(|| memory().0, Stage::open);
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        scope.say(id, NewTurn::user("x"));
        for place in [0, 1, 2, 3, i64::MAX as u64, u64::MAX] {
            for include_events in [false, true] {
                let query = HistoryQuery { include_events, ..HistoryQuery::default() };
                let after = scope
                    .conversation(id)
                    .history(HistoryQuery { after: Some(place), ..query.clone() })
                    .unwrap();
                let before =
                    scope.conversation(id).history(HistoryQuery { before: Some(place), ..query }).unwrap();
                assert!(after.data.iter().all(|entry| entry.seq() > place));
                assert!(before.data.iter().all(|entry| entry.seq() < place));
            }
            assert_eq!(scope.conversation(id).log().read(place, 10).unwrap().len() as u64, 2 - place.min(2));
            drop(scope.conversation(id).subscribe(place.saturating_sub(1)).unwrap());
            if !(1..=2).contains(&place) {
                let says = format!("{id} has no seq {place}; its events are 1 to 2");
                refused(scope.conversation(id).fork(place).wait(), "seq.out_of_range", &says);
            }
        }
    }
}

#[test]
fn kinds_that_mean_something_are_written_by_everturn_only() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for kind in everturn_core::event::kind::RESERVED {
        let says = format!("{kind} is written by Everturn itself; choose a kind of your own");
        refused(scope.conversation(id).log().append(kind, None, note()).wait(), "kind.reserved", &says);
    }
    refused(
        scope.conversation(id).log().append("", None, note()).wait(),
        "name.malformed",
        "choose a printable name",
    );
    refused(
        scope.conversation(id).log().append("a\nb", None, note()).wait(),
        "name.malformed",
        "control characters",
    );
    assert_eq!(
        scope.conversation(id).log().append("mask_generated", Some("x".into()), note()).wait().unwrap().seq,
        2
    );
}

/// A parent that was set by hand made a conversation read events that were not its own.
#[test]
fn what_fork_reset_and_import_write_cannot_be_set_by_hand() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let other = scope.begin();
    let parent = Some(Parent { conversation: other, at_seq: 1 });
    let transcript = BTreeMap::from([("id".to_string(), note())]);
    for settings in [
        Settings { parent, ..Settings::default() },
        Settings { predecessor: Some(other), ..Settings::default() },
        Settings { transcript, ..Settings::default() },
        Settings { began: Some(Timestamp(1)), ..Settings::default() },
        Settings { last_said: Some(Timestamp(1)), ..Settings::default() },
    ] {
        let says = "parent, predecessor, checkpoint, budget, began, last_said and transcript are written by Everturn itself";
        refused(scope.conversation(id).update(settings.clone()).wait(), "settings.reserved", says);
        let new = NewConversation { settings, ..NewConversation::default() };
        refused(scope.create(new).wait(), "settings.reserved", says);
    }
}

#[test]
fn participants_are_declared_at_creation_and_join_by_speaking() {
    let (_store, scope) = memory();
    let with = |names: &[&str]| Settings {
        participants: names.iter().map(|name| name.to_string()).collect(),
        ..Settings::default()
    };
    let chat = scope.create(with(&["ann", "bob", "ann"])).wait().unwrap();
    assert_eq!(chat.get().unwrap().participants, ["ann", "bob"]);
    chat.append("hello").by("carl").wait().unwrap();
    assert_eq!(chat.get().unwrap().participants, ["ann", "bob", "carl"]);
    refused(chat.update(with(&["eve"])).wait(), "settings.participants", "when a conversation is created");
    refused(scope.create(with(&[""])).wait(), "name.malformed", "participant");
    let many: Vec<String> = (0..=PARTICIPANTS_MAX).map(|n| n.to_string()).collect();
    let new = Settings { participants: many, ..Settings::default() };
    refused(scope.create(new).wait(), "limit.exceeded", "PARTICIPANTS_MAX");
}

#[test]
fn a_malformed_setting_is_refused() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let set = |map: &str, json: &str| {
        let entry = BTreeMap::from([(map.to_string(), Raw::new(json.into()).unwrap())]);
        match map {
            "redaction" | "compactoin" => Settings { policy: entry, ..Settings::default() },
            _ => Settings { metadata: entry, ..Settings::default() },
        }
    };
    refused(
        scope.conversation(id).update(set("redaction", "\"hide\"")).wait(),
        "policy.redaction",
        "\"off\", \"mark\" or \"mask\"",
    );
    let mistyped = "policy.compactoin is unknown; known are compaction, budget";
    refused(scope.conversation(id).update(set("compactoin", "{}")).wait(), "policy.unknown", mistyped);
    refused(scope.create(set("compactoin", "{}")).wait(), "policy.unknown", mistyped);
    // An imported log of a newer version may have it.
    scope.conversation(id).update(set("compactoin", "null")).wait().unwrap();
    refused(
        scope.conversation(id).update(set("system_prompt", "7")).wait(),
        "metadata.system_prompt",
        "must be a text",
    );
    refused(
        scope.conversation(id).update(set("retention", "7")).wait(),
        "retention.unknown",
        "must be a text",
    );
    let owner = Settings { owner: Some(Some("a\tb".into())), ..Settings::default() };
    refused(scope.conversation(id).update(owner).wait(), "name.malformed", "owner \"a\\tb\"");
    let prompt = SystemPrompt::new("p".repeat(BODY_BYTES_MAX));
    let prompt = Settings { system_prompt: Some(Some(prompt)), ..Settings::default() };
    refused(scope.conversation(id).update(prompt).wait(), "limit.exceeded", "BODY_BYTES_MAX");
    for name in ["", "a/b", "..", "ä"] {
        refused(_store.tenant(name), "tenant.malformed", "letters, digits, '.', '_' or '-'");
    }
    let existing = NewConversation { id: Some(id), ..NewConversation::default() };
    refused(scope.create(existing).wait(), "conversation.exists", "append to it instead");
}

#[test]
fn a_file_that_cannot_be_imported_says_why() {
    let (_store, scope) = memory();
    let import = |bytes: &[u8]| scope.import(bytes, &mut |_| {});
    refused(import(b""), "import.empty", "the file is empty; nothing was imported");
    refused(import(b" \n\n"), "import.empty", "the file is empty");
    refused(import("\u{feff}".as_bytes()), "import.empty", "the file is empty");
    refused(import(b"{\"_type\":\"\xff\xfe\"}"), "import.not_utf8", "the file is not UTF-8 text");
    refused(
        import(b"PK\x03\x04"),
        "import.unknown",
        "it looks like text that is not JSON, beginning with \"PK",
    );
    for (text, looks) in [
        ("[]", "an empty JSON list;"),
        ("[1, 2]", "a JSON list, and not of messages;"),
        ("42\n", "a JSON number;"),
        ("\"text\"", "a JSON string;"),
        ("null", "a JSON value without messages;"),
    ] {
        refused(import(text.as_bytes()), "import.unknown", &format!("it looks like {looks}"));
    }
    refused(import(b"{}"), "import.unknown", "it looks like a JSON object without fields");
    refused(import(b"{\"_type\":\"x\"}"), "transcript.malformed", "this is no transcript value");
    refused(import(b"{\"_type\":\"transcript\",\"version\":3}"), "transcript.newer", "upgrade it");
    assert_eq!(scope.list(ListQuery::default()).unwrap().data, []);
}

#[test]
fn a_store_that_cannot_be_opened_says_why() {
    let stage = Stage::new();
    let folder = stage.folder.path();
    let known = "use sqlite:PATH, postgres://USER@HOST/DATABASE or memory:";
    for (url, says) in [
        ("postgres:chats", "\"postgres:chats\" names no server"),
        ("s3://bucket/x", "is not a store this version knows"),
        ("memory:x", "has text after memory:"),
        ("sqlite:", "names no file"),
        ("", "is empty"),
        ("host=db.example port=5432 user=everturn", "is named by options of libpq"),
        ("dbname=everturn password=a:b", "is named by options of libpq"),
    ] {
        refused(Everturn::open(url), "store.url", says);
        refused(Everturn::open(url), "store.url", known);
    }
    let example = folder.join("everturn.db");
    let says = format!("is a directory; name a file in it, such as {}", example.display());
    refused(Everturn::open(&folder.display().to_string()), "store.is_directory", &says);
    let nowhere = folder.join("no/such/folder/store.db").display().to_string();
    refused(Everturn::open(&nowhere), "store.cannot_open", "check that its folder exists");
    let read_only = || Options { read_only: true, ..Options::default() };
    refused(Everturn::open_with(&stage.url(), read_only()), "store.absent", "no store at");

    std::fs::write(
        stage.path(),
        "this is a shopping list, not a database, and long enough to be looked at".repeat(99),
    )
    .unwrap();
    let says = "is not a database; restore it from a backup or name another file";
    refused(Everturn::open(&stage.url()), "store.not_a_database", says);
    refused(Everturn::open_with(&stage.url(), read_only()), "store.not_a_database", says);
}

#[test]
fn a_damaged_store_is_reported_and_does_not_panic() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let id = scope.begin();
    for n in 0..200 {
        scope.say(id, NewTurn::user(&format!("turn {n} {}", "x".repeat(300))));
    }
    drop(scope);
    // A word changed behind its back: the file is a valid database, the log is not what was written.
    let whole = std::fs::read(stage.path()).unwrap();
    let at = whole.windows(9).position(|w| w == b"turn 100 ").unwrap();
    let mut changed = whole.clone();
    changed[at..at + 9].copy_from_slice(b"turn 999 ");
    std::fs::write(stage.path(), &changed).unwrap();
    let scope = stage.open().tenant("acme").unwrap();
    refused(
        scope.conversation(id).log().verify(None),
        "chain.body_mismatch",
        "seq 102: its body is not the one that was written",
    );
    let doctor = scope.doctor(&mut |_| {}).unwrap();
    assert_eq!(doctor.findings.len(), 1);
    assert_eq!(doctor.findings[0].conversation, Some(id));
    assert!(doctor.findings[0].advice.contains("compare with a backup"), "{doctor:?}");
    drop(scope);

    // Half of it overwritten: some call says so, none panics.
    let mut torn = whole.clone();
    let (from, to) = (torn.len() / 4, torn.len() * 3 / 4);
    torn[from..to].fill(0x5a);
    std::fs::write(stage.path(), &torn).unwrap();
    let damage = match Everturn::open(&stage.url()) {
        Err(error) => error,
        Ok(store) => {
            let scope = store.tenant("acme").unwrap();
            let doctor = scope.doctor(&mut |_| {});
            assert!(doctor.as_ref().map_or(true, |doctor| !doctor.findings.is_empty()), "{doctor:?}");
            scope.conversation(id).log().verify(None).unwrap_err()
        }
    };
    refused(Err::<(), _>(damage), "store.corrupt", "restore it from a backup");
}

#[test]
fn a_store_opened_for_reading_refuses_every_write() {
    let stage = Stage::new();
    let writer = stage.open();
    let scope = writer.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("x")).id;
    let open = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let mut file = Vec::new();
    scope.conversation(id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
    let store = stage.open_read_only();
    let reading = store.tenant("acme").unwrap();
    let before = scope.conversation(id).get().unwrap();
    let reads = [
        "get",
        "system_prompt",
        "resolve",
        "update with nothing",
        "apply_retention",
        "turn_in",
        "history",
        "history with events",
        "events",
        "subscribe",
        "assets",
        "export_jsonl",
        "export html",
        "export gemini",
        "transcript",
        "verify",
    ];
    for (call, answer) in everything(&reading, id, turn) {
        println!("{call}");
        match call {
            read if reads.contains(&read) => answer.unwrap(),
            "append_chunk" | "append_commit" | "append_abort" => {
                refused(answer, "turn.not_open", "is complete already")
            }
            _ => refused(answer, "store.opened_read_only", "opened for reading only; open it for writing"),
        }
    }
    refused(
        reading.conversation(id).open_turn(open).chunk(None, "x"),
        "turn.open_elsewhere",
        "is open in another process; send its chunks there",
    );
    refused(
        reading.create(NewConversation::default()).wait(),
        "store.opened_read_only",
        "open it for writing",
    );
    refused(reading.import(file.as_slice(), &mut |_| {}), "store.opened_read_only", "open it for writing");
    refused(store.rebuild(), "store.opened_read_only", "was opened for reading only");
    assert_eq!(store.sweep().unwrap(), Default::default());
    assert_eq!(scope.conversation(id).get().unwrap(), before);
    let assets = files(&stage.folder.path().join("store.db-assets"));
    assert_eq!(assets, Vec::<std::path::PathBuf>::new(), "not even bytes of an asset are written");
}
