//! Damaged databases: every reading operation gives the right answer or an error, never other words.
//!
//! Of 150 damaged databases, 21 served wrong text that only `verify` would have found.

use crate::dice::{Dice, ToldOnFailure, rounds, seed};
use crate::stage::{PATIENCE, Short, files, quiet, refused};
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_engine::{
    CompactOptions, ContextOptions, Error, Everturn, FactQuery, Format, HistoryQuery, ListQuery, NewFact,
    NewStream, NewTurn, Options, Order, RecallOptions, Tenant, Update,
};
use rusqlite::Connection;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const VARIANTS: u64 = 40;

/// A store with something of every kind in it, closed.
struct Sound {
    folder: tempfile::TempDir,
    conversations: [ConversationId; 2],
    turns: Vec<TurnId>,
    asset: String,
}

impl Sound {
    fn new() -> Sound {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), quiet()).unwrap();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        for n in 0..30 {
            let word = word(n);
            scope.say(
                id,
                NewTurn::user(&format!("The {word} lies behind the harbour of {word}{word}.")).by("ann"),
            );
        }
        let turns: Vec<TurnId> = scope.turns(id).iter().map(|turn| turn.id).collect();
        scope
            .conversation(id)
            .supersede(turns[20], NewTurn::user("instead of the twentieth"))
            .wait()
            .unwrap();
        scope.conversation(id).erase(turns[21], None, "asked for").wait().unwrap();
        let open = scope.conversation(id).open(NewStream::default()).wait().unwrap();
        scope.conversation(id).open_turn(open.id).chunk(None, "streamed words").unwrap();
        scope.conversation(id).open_turn(open.id).commit(NewTurn::default()).wait().unwrap();
        scope.conversation(id).state().pin("branch", Raw::of(&"release lighthouse").unwrap()).wait().unwrap();
        let fact = NewFact {
            subject: "lighthouse".into(),
            predicate: "stands on".into(),
            object: "granite".into(),
            ..NewFact::default()
        };
        scope.conversation(id).facts().add(fact).unwrap();
        let asset = scope
            .conversation(id)
            .assets()
            .add(Some("chart.txt".into()), "text/plain", vec![b'c'; 3_000_000])
            .unwrap();
        scope
            .conversation(id)
            .compaction()
            .compact(CompactOptions { keep_last: Some(20), ..CompactOptions::default() })
            .unwrap();
        let head = scope.conversation(id).get().unwrap().head.seq;
        let fork = scope.conversation(id).fork(head).wait().unwrap().id();
        scope.say(fork, NewTurn::user("said in the fork only"));
        while store.behind().unwrap().events > 0 {
            std::thread::yield_now();
        }
        let turns = scope.turns(fork).iter().map(|turn| turn.id).collect();
        drop((scope, store));
        Sound { folder, conversations: [id, fork], turns, asset: asset.id }
    }

    fn copy(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap();
        for file in files(self.folder.path()) {
            let to = copy.path().join(file.strip_prefix(self.folder.path()).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(&file, to).unwrap();
        }
        copy
    }

    /// Every answer that a reader can get, by what was asked.
    fn answers(&self, scope: &Tenant) -> BTreeMap<String, Result<String, Error>> {
        let mut answers = BTreeMap::new();
        let shown = |value: serde_json::Value| value.to_string();
        for (name, id) in ["parent", "fork"].into_iter().zip(self.conversations) {
            let mut note = |what: &str, answer: Result<String, Error>| {
                answers.insert(format!("{what} of the {name}"), answer);
            };
            for include_events in [false, true] {
                for order in [Order::Ascending, Order::Descending] {
                    let query = HistoryQuery {
                        order,
                        include_events,
                        include_superseded: true,
                        limit: 100,
                        ..HistoryQuery::default()
                    };
                    let page = scope.conversation(id).history(query).map(|page| shown(json!(page.data)));
                    note(&format!("history {order:?} {include_events}"), page);
                }
            }
            note("events", scope.conversation(id).log().read(0, 1000).map(|events| shown(json!(events))));
            note("state", scope.conversation(id).state().read().map(|state| shown(json!(state))));
            note("transcript", scope.conversation(id).transcript());
            let context = scope.conversation(id).contexts().build(&ContextOptions::new(3000));
            note("context", context.map(|context| shown(json!([context.system, context.messages]))));
            note(
                "facts",
                scope
                    .conversation(id)
                    .facts()
                    .list(FactQuery::default())
                    .map(|facts| shown(json!(facts.data))),
            );
            note("assets", scope.conversation(id).assets().list().map(|assets| shown(json!(assets))));
            for format in [Format::Markdown, Format::Html, Format::OpenaiChat] {
                let mut out = Vec::new();
                let done = scope.conversation(id).export(format, &mut out, &mut |_| {});
                note(&format!("export as {format}"), done.map(|()| String::from_utf8(out).unwrap()));
            }
            let mut out = Vec::new();
            let done = scope.conversation(id).export(Format::Jsonl, &mut out, &mut |_| {});
            // The head of the file tells when it was written.
            let lines = |out: Vec<u8>| {
                let text = String::from_utf8(out).unwrap();
                let lines: Vec<&str> = text.lines().filter(|line| line.contains("body_hash")).collect();
                lines.join("\n")
            };
            note("export as jsonl", done.map(|()| lines(out)));
            note("live", live(scope, id));
            for (n, turn) in self.turns.iter().enumerate() {
                let turn = scope.conversation(id).turn(*turn).map(|turn| shown(json!(turn)));
                note(&format!("turn {n}"), turn);
            }
        }
        let recalled =
            scope.recall("harbour lighthouse", &RecallOptions { limit: 50, ..RecallOptions::default() });
        let hits = recalled.map(|recalled| {
            let mut hits: Vec<String> = recalled.data.iter().map(|hit| hit.snippet.text.clone()).collect();
            hits.sort();
            hits.join("\n")
        });
        answers.insert("recall".into(), hits);
        let part = scope
            .assets()
            .get(&self.asset)
            .and_then(|asset| scope.assets().range(&asset, 1_500_000..1_500_010));
        answers.insert("part of the asset".into(), part.map(|bytes| format!("{bytes:?}")));
        answers
    }
}

fn live(scope: &Tenant, id: ConversationId) -> Result<String, Error> {
    let mut subscription = scope.conversation(id).subscribe(0)?;
    let head = scope.conversation(id).get()?.head.seq;
    let mut events = Vec::new();
    while events.len() < head as usize {
        match subscription.recv_timeout(PATIENCE)? {
            Some(Update::Event(event)) => events.push(json!(*event)),
            Some(_) => {}
            None => break,
        }
    }
    Ok(json!(events).to_string())
}

fn open(folder: &Path, options: Options) -> Result<Everturn, Error> {
    Everturn::open_with(&format!("sqlite:{}", folder.join("store.db").display()), options)
}

fn word(n: usize) -> String {
    let syllables = ["ba", "ko", "mi", "tu", "re", "sa", "lo"];
    [n % 7, n / 7 % 7, n % 5, n % 3].map(|n| syllables[n]).concat()
}

/// Words and ids, but no bare numbers: where a row is hidden, counts are others.
fn words(text: &str) -> BTreeSet<&str> {
    let all = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    all.filter(|word| word.chars().any(char::is_alphabetic)).collect()
}

/// What is done to the rows of the log, and of what is derived from it.
fn damage_rows(path: &Path, dice: &mut Dice) -> String {
    let db = Connection::open(path).unwrap();
    let events: i64 = db.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap();
    let no = 1 + dice.roll(events as usize) as i64;
    let other = 1 + dice.roll(events as usize) as i64;
    let flip = |column: &str, dice: &mut Dice| {
        let bytes: Vec<u8> = db
            .query_row(&format!("SELECT CAST({column} AS BLOB) FROM events WHERE no = ?"), [no], |row| {
                row.get(0)
            })
            .unwrap_or_default();
        let mut bytes = bytes;
        if !bytes.is_empty() {
            let at = dice.roll(bytes.len());
            // Stays ASCII, so that text stays text.
            bytes[at] ^= 1 << dice.roll(5);
        }
        let as_text = matches!(column, "body" | "kind" | "actor" | "role" | "visibility");
        let value = if as_text { "CAST(? AS TEXT)" } else { "?" };
        let sql = format!("UPDATE events SET {column} = {value} WHERE no = ?");
        db.execute(&sql, rusqlite::params![bytes, no]).unwrap();
        format!("{column} of event {no} flipped")
    };
    let run = |sql: &str| {
        let _ = db.execute(sql, rusqlite::params![no, other]);
        format!("{sql} with {no}, {other}")
    };
    match dice.roll(16) {
        0..=4 => flip("body", dice),
        5 => flip("salt", dice),
        6 => flip("id", dice),
        7 => flip("kind", dice),
        8 => flip("hash", dice),
        9 => flip("body_hash", dice),
        10 => run("UPDATE events SET at = at + 1 + ?2 WHERE no = ?1"),
        11 => run("UPDATE events SET actor = 'mallory' || ?2 WHERE no = ?1"),
        12 => run("UPDATE events SET body = substr(body, 1, length(body) - 1 - ?2 % 5) WHERE no = ?1"),
        13 => run(
            "UPDATE events SET body = (SELECT body FROM events e WHERE e.no = ?2), salt = (SELECT salt FROM events e \
                   WHERE e.no = ?2) WHERE no = ?1",
        ),
        14 => run("UPDATE places SET event = ?2 WHERE event = ?1"),
        _ => run("UPDATE turn_rows SET content_seq = ?2 WHERE seq = ?1"),
    }
}

/// Flips bytes of the file, behind the first page: what is there, SQLite itself looks at.
fn damage_file(path: &Path, dice: &mut Dice) -> String {
    let mut bytes = std::fs::read(path).unwrap();
    let count = 1 + dice.roll(8);
    for _ in 0..count {
        let at = 4096 + dice.roll(bytes.len() - 4096);
        bytes[at] ^= 1 << dice.roll(8);
    }
    std::fs::write(path, bytes).unwrap();
    format!("{count} bytes of the file flipped")
}

#[test]
fn every_read_of_a_damaged_database_is_right_or_an_error() {
    let sound = Sound::new();
    let truth = {
        let store = open(sound.folder.path(), Options { read_only: true, ..quiet() }).unwrap();
        sound.answers(&store.tenant("acme").unwrap())
    };
    let known: BTreeSet<&str> = truth.values().flatten().flat_map(|text| words(text)).collect();
    // Only what was said in the fork alone is not in its parent.
    assert_eq!(truth.values().filter(|answer| answer.is_err()).count(), 1, "{truth:?}");
    let first = seed(0);
    let (mut noticed, mut unharmed) = (0, 0);
    let variants = rounds(VARIANTS);
    for variant in first..first + variants {
        let _told = ToldOnFailure(variant);
        let mut dice = Dice::new(variant);
        let copy = sound.copy();
        let path = copy.path().join("store.db");
        let by_rows = !variant.is_multiple_of(4);
        let done = if by_rows { damage_rows(&path, &mut dice) } else { damage_file(&path, &mut dice) };
        let Ok(store) = open(copy.path(), Options { read_only: true, ..quiet() }) else {
            noticed += 1;
            continue;
        };
        let mut errors = 0;
        for (what, answer) in sound.answers(&store.tenant("acme").unwrap()) {
            match answer {
                Ok(text) if truth[&what].as_ref() == Ok(&text) => {}
                Err(error) if truth[&what].as_ref() == Err(&error) => {}
                // A damaged turn is left out of what is recalled, and hidden rows are the doctor's to find; but what is
                // shown is true.
                Ok(text) if what == "recall" || !by_rows => {
                    let wrong: Vec<&str> = words(&text).difference(&known).copied().collect();
                    assert!(wrong.is_empty(), "{variant}: {done}: {what} shows {wrong:?}");
                }
                Ok(text) => panic!("{variant}: {done}: {what} is\n{text}\nand not\n{:?}", truth[&what]),
                Err(error) => {
                    errors += 1;
                    assert!(!error.text().is_empty());
                }
            }
        }
        if errors > 0 { noticed += 1 } else { unharmed += 1 }
    }
    assert!(noticed > variants / 2, "{noticed} noticed, {unharmed} unharmed");
}

/// A page printed the head of the conversation's row, which no hash covers.
#[test]
fn the_hash_of_a_head_is_that_of_the_last_event() {
    let sound = Sound::new();
    let [id, _] = sound.conversations;
    let shown = |folder: &Path| {
        let store = open(folder, Options { read_only: true, ..quiet() }).unwrap();
        let scope = store.tenant("acme").unwrap();
        let mut page = Vec::new();
        let exported = scope.conversation(id).export(Format::Html, &mut page, &mut |_| {});
        let listed = scope.list(ListQuery::default()).unwrap().data;
        let listed = listed.iter().find(|listed| listed.id == id).unwrap().head;
        (scope.conversation(id).get().map(|found| found.head), exported.map(|()| page), listed)
    };
    let truth = shown(sound.folder.path());
    let head = truth.2;
    assert!(String::from_utf8(truth.1.clone().unwrap()).unwrap().contains(&head.hash.to_string()));
    let damaged = |sql: &str| {
        let copy = sound.copy();
        let db = Connection::open(copy.path().join("store.db")).unwrap();
        assert_eq!(db.execute(sql, []).unwrap(), 1);
        drop(db);
        shown(copy.path())
    };
    assert_eq!(damaged("UPDATE conversation_rows SET head_hash = zeroblob(32) WHERE no = 1"), truth);
    // The event itself: an error, but others can still be listed.
    let last = format!("UPDATE events SET hash = zeroblob(32) WHERE conversation = 1 AND seq = {}", head.seq);
    let (got, exported, listed) = damaged(&last);
    refused(got, "chain.envelope_mismatch", "");
    refused(exported, "chain.envelope_mismatch", "");
    assert_eq!(listed, head);
}

fn damaged_turn() -> (Sound, tempfile::TempDir, PathBuf) {
    let sound = Sound::new();
    let copy = sound.copy();
    let path = copy.path().join("store.db");
    let db = Connection::open(&path).unwrap();
    let changed =
        db.execute("UPDATE events SET body = replace(body, 'harbour', 'airport') WHERE seq = 5", []);
    assert_eq!(changed.unwrap(), 1);
    (sound, copy, path)
}

#[test]
fn a_damaged_turn_is_named_can_be_read_around_and_erased() {
    let (sound, copy, _) = damaged_turn();
    let store = open(copy.path(), quiet()).unwrap();
    let scope = store.tenant("acme").unwrap();
    let [id, fork] = sound.conversations;
    let names = format!("{id} seq 5 (evt_");
    refused(
        scope.conversation(fork).history(HistoryQuery::default()).map(drop),
        "chain.body_mismatch",
        &names,
    );
    refused(
        scope.conversation(id).turn(sound.turns[3]).map(drop),
        "chain.body_mismatch",
        "read around it with `before` 5",
    );
    refused(
        scope.conversation(id).export(Format::Jsonl, Vec::new(), &mut |_| {}),
        "chain.body_mismatch",
        &names,
    );
    refused(scope.conversation(id).log().verify(None).map(drop), "chain.body_mismatch", "seq 5");
    let page = |query| scope.conversation(id).history(query).unwrap().data.len();
    assert_eq!(page(HistoryQuery { before: Some(5), ..HistoryQuery::default() }), 3);
    assert!(page(HistoryQuery { after: Some(5), ..HistoryQuery::default() }) > 20);
    refused(scope.token_usage(30, Some(id)).map(drop), "chain.body_mismatch", &names);
    let sums = |scope: &Tenant| {
        scope.token_usage(30, None).unwrap().conversations.iter().map(|one| one.spent.prompt).sum::<u64>()
    };
    let tokens = Some(everturn_engine::Tokens { prompt: Some(7), completion: None });
    scope.say(scope.begin(), NewTurn { tokens, ..NewTurn::assistant("counted") });
    assert_eq!(sums(&scope), 7, "a damaged conversation does not hide the others");
    scope.say(id, NewTurn::user("writing goes on"));
    scope.conversation(id).erase(sound.turns[3], None, "damaged").wait().unwrap();
    assert!(page(HistoryQuery::default()) > 20);
    scope.conversation(id).log().verify(None).unwrap();
}

/// The bytes of an asset larger than a piece, damaged on disk.
#[test]
fn a_part_of_a_damaged_asset_is_refused_and_good_bytes_repair_it() {
    let sound = Sound::new();
    let store = open(sound.folder.path(), quiet()).unwrap();
    let scope = store.tenant("acme").unwrap();
    let asset = scope.assets().get(&sound.asset).unwrap();
    assert_eq!(asset.pieces.len(), 3);
    let is_asset = |path: &PathBuf| path.to_string_lossy().ends_with(&asset.sha256.unwrap().to_string());
    let path = files(sound.folder.path()).into_iter().find(is_asset).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1_500_000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(scope.assets().range(&asset, 10..20).unwrap(), vec![b'c'; 10], "another piece is whole");
    assert_eq!(scope.assets().range(&asset, 2_999_990..9_000_000).unwrap(), vec![b'c'; 10]);
    refused(
        scope.assets().range(&asset, 1_400_000..1_400_001).map(drop),
        "asset.corrupt",
        "add the same file again",
    );
    refused(
        scope.assets().range(&asset, 10..2_900_000).map(drop),
        "asset.corrupt",
        "add the same file again",
    );
    refused(scope.assets().bytes(&asset).map(drop), "asset.corrupt", "add the same file again");
    let older = everturn_core::asset::Asset { pieces: Vec::new(), ..asset.clone() };
    refused(scope.assets().range(&older, 10..20).map(drop), "asset.corrupt", "add the same file again");
    scope
        .conversation(sound.conversations[0])
        .assets()
        .add(None, "text/plain", vec![b'c'; 3_000_000])
        .unwrap();
    assert_eq!(scope.assets().range(&asset, 1_499_999..1_500_001).unwrap(), b"cc");
    assert_eq!(scope.assets().bytes(&asset).unwrap().len(), 3_000_000);
}
