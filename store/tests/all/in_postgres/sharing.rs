//! Shared by several processes: places of assets, background work, encrypted connections.

use super::open;
use crate::places;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Lifecycle, Settings};
use everturn_core::id::Key;
use everturn_core::time::Timestamp;
use everturn_core::write::{Action, Idempotency, Write};
use everturn_store::assets::Place;
use everturn_store::conformance::{Database, Maker, append, create, done, restoration, tenant};
use everturn_store::memory::Memory;
use everturn_store::postgres::{self, Postgres};
use everturn_store::{
    Assets, ChangeFeed, CheckedLog, ConversationIndex, ConversationQuery, Leases, Log, VectorSearch,
    WorkDone, WorkState,
};
use std::sync::Arc;

mod assets {
    everturn_store::conformance!(assets |promise: fn(&dyn everturn_store::Assets)| {
        let Some(database) = super::Database::new() else { return };
        promise(&super::open(&database));
    });
}

/// Any id.
const ID: &str = "7e8dd9a5-3f6e-4a52-a9a0-5a35ed2d4e9b";

/// The database remembers the place of its assets, so that all processes use the same; it changes only to a place that
/// has them.
#[test]
fn assets_stay_in_the_place_that_was_chosen_first() {
    let Some(database) = Database::new() else { return };
    let acme = tenant("acme");
    let at = |place: &str| format!("{}&assets={place}", database.url());
    let opened = |url: &str| Postgres::open(url).map(|store| Arc::new(store).assets());
    let refused = |url: &str, code: &str| {
        let error = opened(url).err().unwrap();
        assert_eq!(error.code(), code, "{error}");
    };
    let ((here, first), (there, second)) = (places::folder(), places::folder());
    let first = places::s3().unwrap_or(first);
    // Started together: both agree.
    let stores: Vec<_> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..2).map(|_| scope.spawn(|| opened(&at(&first)).unwrap())).collect();
        opening.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let sha256 = Hash::of(b"bytes");
    stores[0].put(&acme, sha256, b"bytes".to_vec()).unwrap();
    assert_eq!(stores[1].get(&acme, sha256).unwrap(), b"bytes");
    // Without naming it, and for reading only.
    assert_eq!(opened(&database.url()).unwrap().get(&acme, sha256).unwrap(), b"bytes");
    let reader = Arc::new(Postgres::open_read_only(&database.url()).unwrap()).assets();
    assert_eq!(reader.get(&acme, sha256).unwrap(), b"bytes");
    let none = "SELECT 1 / (CASE WHEN EXISTS (SELECT 1 FROM asset_bytes) THEN 0 ELSE 1 END)";
    database.run(&format!("BEGIN; SET LOCAL everturn.tenants = '*'; {none}; COMMIT")).unwrap();
    refused(&at(&second), "assets.moved");
    // Another store may not use it.
    if let Some(other) = Database::new() {
        refused(&format!("{}&assets={first}", other.url()), "assets.taken");
        // Nor move there with assets in its database.
        let store = open(&other);
        store.put(&acme, sha256, b"bytes".to_vec()).unwrap();
        refused(&format!("{}&assets={second}", other.url()), "assets.moved");
    }
    // Copied with whatever tool, the place may change.
    let mark = there.path().join(".everturn-store");
    database.run(&format!("UPDATE store_identity SET id = '{ID}'")).unwrap();
    std::fs::write(mark, ID).unwrap();
    opened(&at(&second)).unwrap();
    opened(&database.url()).unwrap();
    drop(here);
}

/// Two processes and their work: one does it, the other once it is done or the first has left.
#[test]
fn work_is_done_by_one_process_and_taken_over() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let m = Maker::default();
    let key = m.key();
    assert!(one.leads("sweep").unwrap() && one.leads("sweep").unwrap() && !other.leads("sweep").unwrap());
    assert!(other.leads("index").unwrap(), "each job by itself");
    assert_eq!(one.take_work(&key).unwrap(), Some(0));
    assert_eq!(other.take_work(&key).unwrap(), None);
    let left = || other.work_left(&[(key.clone(), 5), (m.key(), 1)]).unwrap();
    assert_eq!(left(), [WorkState::Taken, WorkState::Free]);
    let done = |through, due: Option<i64>| Some(WorkDone { through, due: due.map(Timestamp) });
    // Ending what another has changes nothing.
    other.end_work(&key, done(9, None)).unwrap();
    one.end_work(&key, done(5, Some(70))).unwrap();
    assert_eq!(left(), [WorkState::Done, WorkState::Free]);
    assert_eq!(other.work_left(&[(key.clone(), 6)]).unwrap(), [WorkState::Free]);
    assert_eq!(other.due_work(Timestamp(69), 10).unwrap(), []);
    assert_eq!(other.due_work(Timestamp(70), 10).unwrap(), std::slice::from_ref(&key));
    assert_eq!(other.take_work(&key).unwrap(), Some(5));
    other.end_work(&key, None).unwrap();
    assert_eq!(one.take_work(&key).unwrap(), Some(5));
    one.end_work(&key, done(2, None)).unwrap();
    assert_eq!(other.due_work(Timestamp(70), 10).unwrap(), []);
    one.forget_work().unwrap();
    assert_eq!(one.take_work(&key).unwrap(), Some(5), "not forgotten yet");
    // A process that leaves gives all back at once; one that dies, after some seconds (tested with a real one, in `engine`).
    assert!(other.take_work(&key).unwrap().is_none());
    drop(one);
    assert!(other.take_work(&key).unwrap().is_some() && other.leads("sweep").unwrap());
}

/// A server whose certificate is known, and one that is not the right one.
#[test]
fn connections_are_encrypted_and_certificates_are_checked() {
    let Ok(server) = std::env::var("EVERTURN_TEST_POSTGRES_TLS") else {
        eprintln!(
            "skipped: EVERTURN_TEST_POSTGRES_TLS names no PostgreSQL server with TLS; use ./test postgres"
        );
        return;
    };
    let (right, wrong) = (
        std::env::var("EVERTURN_TEST_CERTIFICATE").unwrap(),
        std::env::var("EVERTURN_TEST_OTHER_CERTIFICATE").unwrap(),
    );
    let encrypted =
        "SELECT 1 / (CASE WHEN ssl THEN 1 ELSE 0 END) FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let with = |parameters: &str| postgres::run(&format!("{server}{parameters}"), encrypted);
    let by_address = |parameters: &str| {
        postgres::run(&format!("{}{parameters}", server.replace("localhost", "127.0.0.1")), encrypted)
    };
    let refused = |answer: Result<(), Error>, code: &str, says: &str| {
        let error = answer.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    for parameters in ["", "&sslmode=prefer", "&sslmode=require", "&sslmode=require&channel_binding=require"]
    {
        with(parameters).unwrap();
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        with(&format!("&sslmode={mode}&sslrootcert={right}")).unwrap();
        let other = with(&format!("&sslmode={mode}&sslrootcert={wrong}"));
        refused(other, "store.certificate", "is not trusted");
    }
    by_address(&format!("&sslmode=verify-ca&sslrootcert={right}")).unwrap();
    refused(
        by_address(&format!("&sslmode=verify-full&sslrootcert={right}")),
        "store.certificate",
        "the host as it is in the certificate",
    );
    refused(with("&sslmode=verify-full"), "store.certificate", "sslrootcert=FILE");
    refused(with("&sslmode=disable"), "store.query", "division by zero");
    refused(with("&sslmode=verify-ca"), "store.url", "sslrootcert=FILE");
    refused(with("&sslmode=always"), "store.url", "verify-full");
    refused(with("&sslmode=verify-full&sslrootcert=/nowhere"), "store.certificate", "/nowhere");
    // What no second attempt mends.
    refused(
        postgres::run(&server.replace(":secret@", "@"), encrypted),
        "store.denied",
        "password missing; name it in the URL",
    );
    refused(
        postgres::run(&server.replace("localhost", "nowhere.invalid"), encrypted),
        "store.unreachable",
        "check the host",
    );
    refused(
        postgres::run(&server.replace(":secret@", ":sec@ret@"), encrypted),
        "store.unreachable",
        "percent-encode special characters of the password",
    );
    refused(postgres::run("postgres:///everturn", encrypted), "store.url", "; use postgres://");
    // The whole store over an encrypted connection, with the one that listens.
    let name = format!("tls_{}", std::process::id());
    postgres::run(&server, &format!("CREATE DATABASE {name}")).unwrap();
    let whole = server.replace("/postgres?", &format!("/{name}?"));
    let store = Postgres::open(&format!("{whole}&sslmode=verify-full&sslrootcert={right}")).unwrap();
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created(), m.say("hello")]);
    assert_eq!(store.events(&key, 0, 10).unwrap().len(), 2);
    drop(store);
    postgres::run(&server, &format!("DROP DATABASE {name} WITH (FORCE)")).unwrap();
    // A server without TLS.
    if let Ok(plain) = std::env::var("EVERTURN_TEST_POSTGRES") {
        refused(
            postgres::run(&plain.replace("sslmode=disable", "sslmode=require"), "SELECT 1"),
            "store.url",
            "sslmode=disable",
        );
        postgres::run(&plain.replace("sslmode=disable", "sslmode=prefer"), "SELECT 1").unwrap();
    }
}

/// A copy of a database has the same id, and names the same place: it deletes nothing there, not even what it does not know.
#[test]
fn a_copied_database_deletes_nothing_in_the_place_of_the_first() {
    let Some(database) = Database::new() else { return };
    let (_folder, url) = places::folder();
    let url = places::s3().unwrap_or(url);
    let acme = tenant("acme");
    let (old, new) = (Hash::of(b"old"), Hash::of(b"new"));
    let open = |url: &str| Arc::new(Postgres::open(url).unwrap()).assets();
    let first = open(&format!("{}&assets={url}", database.url()));
    first.put(&acme, old, b"old".to_vec()).unwrap();
    drop(first);
    let copy = database.beside("copy");
    let admin = std::env::var("EVERTURN_TEST_POSTGRES_ADMIN").unwrap();
    let owner = "OWNER everturn";
    postgres::run(&admin, &format!("CREATE DATABASE {} TEMPLATE {} {owner}", copy.name, database.name))
        .unwrap();
    let live = open(&database.url());
    live.put(&acme, new, b"new".to_vec()).unwrap();
    let copied = open(&copy.url());
    assert_eq!(copied.get(&acme, new).unwrap(), b"new", "it may read");
    for (what, refused) in
        [("claim", copied.claim()), ("old", copied.delete(&acme, old)), ("new", copied.delete(&acme, new))]
    {
        assert_eq!(refused.unwrap_err().code(), "assets.copied", "{what}");
    }
    assert_eq!(live.list().unwrap().len(), 2);
    // Several processes of the first go on, in any order.
    let other = open(&database.url());
    for store in [&live, &other, &live, &live, &other] {
        store.claim().unwrap();
    }
    live.delete(&acme, new).unwrap();
    assert_eq!(other.list().unwrap().len(), 1);
    // An operator decides that the copy replaces the first.
    let place = Place::new(&url, std::env::vars()).unwrap();
    place.remove_mark().unwrap();
    copied.claim().unwrap();
    assert_eq!(live.claim().unwrap_err().code(), "assets.copied");
    copied.delete(&acme, old).unwrap();
}

/// The lock that an append takes on its conversation.
fn lock_of(key: &Key) -> i64 {
    let id = key.id.to_bytes();
    let parts: [&[u8]; 3] = [b"conversation", key.tenant.as_str().as_bytes(), &id];
    let Hash(hash) = Hash::of(&parts.join(&0xff));
    i64::from_be_bytes(std::array::from_fn(|at| hash[at]))
}

/// A process that hangs with the lock of a conversation, and a person who has locked its row: what is about others is
/// written at once, the rest once it is free, in its order.
#[test]
fn a_conversation_that_is_locked_holds_back_no_other() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let (busy, free) = (m.key(), m.key());
    create(&store, &busy, vec![m.created()]);
    create(&store, &free, vec![m.created()]);
    let say = |key: &Key, text: &str| {
        let action = Action::append(vec![m.say(text)]);
        Write { key: key.clone(), action }
    };
    let hex: String = busy.id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let holds = [
        format!("SELECT pg_advisory_xact_lock({})", lock_of(&busy)),
        format!("SELECT 1 FROM conversation_rows WHERE id = '\\x{hex}' FOR UPDATE"),
    ];
    for (nth, hold) in holds.iter().enumerate() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let locked =
                    format!("BEGIN; SET LOCAL everturn.tenants = '*'; {hold}; SELECT pg_sleep(4); COMMIT");
                database.run(&locked).unwrap();
            });
            let is_locked = "SELECT 1 / count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(4)%' AND wait_event = 'PgSleep' AND pid <> pg_backend_pid()";
            while database.run(is_locked).is_err() {}
            let batch = vec![
                say(&busy, &format!("first {nth}")),
                say(&free, "other"),
                say(&busy, &format!("second {nth}")),
            ];
            let answers = store.commit_free(batch.clone());
            let codes: Vec<_> =
                answers.iter().map(|answer| answer.as_ref().err().map(|e| e.error.code())).collect();
            assert_eq!(codes, [Some("store.held"), None, Some("store.held")]);
            // Known to be locked.
            let answers = store.commit_free(vec![say(&free, "again"), batch[0].clone()]);
            assert!(answers[0].is_ok() && answers[1].is_err());
            let waited = store.commit(vec![batch[0].clone(), batch[2].clone()]);
            assert!(waited.iter().all(Result::is_ok), "{waited:?}");
        });
        let texts: Vec<String> = store
            .events(&busy, 1 + 2 * nth as u64, 9)
            .unwrap()
            .iter()
            .map(|event| event.text().unwrap().to_string())
            .collect();
        assert!(
            texts[0].contains(&format!("first {nth}")) && texts[1].contains(&format!("second {nth}")),
            "{texts:?}"
        );
        // Free again, it is waited for as usual.
        assert!(store.commit_free(vec![say(&free, "after")])[0].is_ok());
    }
}

/// A zero character, which text of the database cannot have, fails neither the search for titles nor a deletion.
#[test]
fn a_zero_character_fails_no_search_and_no_deletion() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let (zero, plain) = (m.key(), m.key());
    for (key, title) in [(&zero, "ra\0ce"), (&plain, "A Race")] {
        let settings = Settings { title: Some(Some(title.into())), ..Settings::default() };
        create(&store, key, vec![m.created(), m.update(settings)]);
    }
    let found = |text: &str| -> Vec<_> {
        let query = ConversationQuery { text: Some(text.into()), limit: 10, ..ConversationQuery::default() };
        store.conversations(&zero.tenant, &query).unwrap().into_iter().map(|c| c.id).collect()
    };
    assert_eq!(found("race"), [plain.id]);
    assert_eq!(found("a\0C"), [zero.id]);
    assert_eq!(found("nothing\0"), []);
    let action = Action::Delete { at: Timestamp(7), reason: "a\0b".into(), only_expired: false };
    store.commit(vec![Write { key: zero.clone(), action }]).remove(0).unwrap();
    assert_eq!(store.tombstones(&zero.tenant).unwrap()[0].reason, "a\u{fffd}b");
}

/// A database that has not every character, and a role that row-level security would show nothing.
#[test]
fn a_database_or_a_role_that_cannot_do_is_refused() {
    let Some(database) = Database::new() else { return };
    let admin = std::env::var("EVERTURN_TEST_POSTGRES_ADMIN").unwrap();
    let latin = database.beside("latin");
    let as_latin = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0 OWNER everturn";
    postgres::run(&admin, &format!("CREATE DATABASE {} {as_latin}", latin.name)).unwrap();
    let error = Postgres::open(&latin.url()).err().unwrap();
    assert!(error.code() == "store.encoding" && error.to_string().contains("LATIN1"), "{error}");
    let m = Maker::default();
    create(&open(&database), &m.key(), vec![m.created()]);
    let (blind, member) = (format!("blind_{}", database.name), format!("member_{}", database.name));
    let in_it = database.admin();
    postgres::run(
        &in_it,
        &format!("CREATE ROLE {blind} LOGIN; CREATE ROLE {member} LOGIN; GRANT everturn TO {member}"),
    )
    .unwrap();
    postgres::run(
        &in_it,
        &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {blind}"),
    )
    .unwrap();
    let of = |role: &str| database.url().replace("//everturn@", &format!("//{role}@"));
    let refused = [Postgres::open(&of(&blind)).err(), Postgres::open_read_only(&of(&blind)).err()];
    let read = Postgres::open_read_only(&of(&member)).map(|store| store.tenants().unwrap().len());
    let unbound = Postgres::open_read_only(&in_it).map(|store| store.tenants().unwrap().len());
    postgres::run(
        &in_it,
        &format!("DROP OWNED BY {blind}; DROP ROLE {blind}; DROP OWNED BY {member}; DROP ROLE {member}"),
    )
    .unwrap();
    for error in refused {
        let error = error.unwrap();
        assert!(
            error.code() == "store.denied" && error.to_string().contains("row-level security"),
            "{error}"
        );
    }
    assert_eq!((read.unwrap(), unbound.unwrap()), (1, 1));
}

/// Readers of one tenant with a long name, told twice, and sent away.
#[test]
fn reading_is_allowed_and_ended_for_each_role() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let long = tenant(&"t".repeat(60));
    let key = Key { tenant: long.clone(), ..m.key() };
    create(&store, &key, vec![m.created(), m.say("theirs")]);
    let admin = database.admin();
    let readers = ["one", "two"].map(|name| format!("reader_{name}_{}", database.name));
    for reader in &readers {
        postgres::run(&admin, &format!("CREATE ROLE {reader} LOGIN")).unwrap();
    }
    let reads = |reader: &str, count: u32| {
        let sql = format!(
            "SELECT 1 / (CASE WHEN (SELECT count(*) FROM conversations) = {count} THEN 1 ELSE 0 END)"
        );
        postgres::run(&database.url().replace("//everturn@", &format!("//{reader}@")), &sql)
    };
    let checked = (|| {
        for reader in [&readers[0], &readers[1], &readers[1]] {
            database.run(&format!("SELECT let_read('{long}', '{reader}')"))?;
        }
        reads(&readers[0], 1)?;
        reads(&readers[1], 1)?;
        database.run(&format!("SELECT stop_reading('{long}', '{}')", readers[0]))?;
        reads(&readers[0], 0)?;
        reads(&readers[1], 1)
    })();
    for reader in &readers {
        postgres::run(&admin, &format!("DROP OWNED BY {reader}; DROP ROLE {reader}")).unwrap();
    }
    checked.unwrap();
}

/// Tables that `pg_dump` brought from a server with higher numbers of transactions: nothing in them is news, and what is new
/// is told and indexed.
#[test]
fn a_dump_in_another_server_is_not_all_news() {
    let Some(database) = Database::new() else { return };
    let m = Maker::default();
    let old = m.key();
    create(&open(&database), &old, vec![m.created(), m.say("old words")]);
    let number = "'9000000000'::xid8";
    let dumped = format!(
        "BEGIN; SET LOCAL everturn.tenants = '*'; UPDATE conversation_rows SET changed = {number}, begun = {number};
         UPDATE recall_feed SET snapshot = '9000000000:9000000000:'; COMMIT"
    );
    database.run(&dumped).unwrap();
    let (store, other) = (open(&database), open(&database));
    assert!(store.news().unwrap().changed.is_empty());
    let new = m.key();
    create(&store, &new, vec![m.created(), m.say("new words")]);
    let told = |news: everturn_store::RemoteChanges| {
        news.changed.into_iter().map(|change| (change.key, change.created)).collect::<Vec<_>>()
    };
    assert_eq!(told(other.news().unwrap()), [(new, true)]);
    assert!(told(other.news().unwrap()).is_empty());
    super::take_in(&store);
    let indexed = "SELECT 1 / (CASE WHEN (SELECT count(*) FROM recall_entries WHERE words LIKE '%words%') = 2 THEN 1 ELSE 0 END)";
    database.run(&format!("BEGIN; SET LOCAL everturn.tenants = '*'; {indexed}; COMMIT")).unwrap();
}

/// A turn that a killed process left open is ended by a process that has just begun, once the other has been silent for long;
/// at once if it has left.
#[test]
fn a_new_process_finds_turns_of_one_that_died_long_ago() {
    let Some(database) = Database::new() else { return };
    let dead = open(&database);
    // Always one that has just begun.
    let orphaned = || open(&database).orphaned_turns().unwrap();
    let m = Maker::default();
    let key = m.key();
    let begun = m.open();
    let turn = everturn_store::conformance::turn_of(&begun);
    create(&dead, &key, vec![m.created(), begun]);
    assert_eq!(orphaned(), []);
    // Its signs would come again: a row of a process that is gone.
    let gone = "BEGIN; SET LOCAL everturn.tenants = '*'; UPDATE turn_rows SET node = 99; INSERT INTO nodes (no, seen)
        OVERRIDING SYSTEM VALUE VALUES (99, clock_timestamp() - interval '30 s'); COMMIT";
    database.run(gone).unwrap();
    assert_eq!(orphaned(), [], "not silent for long enough to be judged by a new process");
    database.run("UPDATE nodes SET seen = clock_timestamp() - interval '90 s' WHERE no = 99").unwrap();
    let began = std::time::Instant::now();
    // The server itself must have been up for some seconds.
    while orphaned().is_empty() && began.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    assert_eq!(orphaned(), [(key.clone(), turn)]);
    database.run("DELETE FROM nodes WHERE no = 99").unwrap();
    assert_eq!(orphaned(), [(key, turn)]);
}

/// A conversation that is copied or imported has as many turns as it likes: what its plan looks up is read at once.
#[test]
fn the_turns_of_a_restoration_are_looked_up_at_once() {
    let Some(database) = Database::new() else { return };
    let (memory, m) = (Memory::default(), Maker::default());
    let key = m.key();
    let says = (0..300).map(|nth| m.say(&format!("word {nth}")));
    create(&memory, &key, [m.created()].into_iter().chain(says).collect());
    let events = memory.events(&key, 0, 1000).unwrap();
    let store = open(&database);
    done(&store, restoration(&key, &events[..200]));
    // Half of them are there.
    done(&store, restoration(&key, &events[100..]));
    assert_eq!(store.events(&key, 0, 1000).unwrap(), events);
    drop(store);
    assert_statistics(&database, "idx_scan + seq_scan < 100");
}

/// However many conversations there are, a commit reads those that it writes.
#[test]
fn a_commit_reads_no_other_conversation() {
    let Some(database) = Database::new() else { return };
    let (store, m) = (open(&database), Maker::default());
    let keys: Vec<Key> = (0..200).map(|_| m.key()).collect();
    keys.iter().for_each(|key| drop(create(&store, key, vec![m.created()])));
    fill(&database);
    keys.iter().for_each(|key| drop(append(&store, key, vec![m.say("word")])));
    drop(store);
    assert_statistics(&database, "coalesce(seq_tup_read, 0) < 2000");
}

/// A conversation that only this process writes is read for its first append; those after it check, as they write, that it is
/// as they left it.
#[test]
fn an_append_reads_no_conversation_that_this_process_wrote_last() {
    let Some(database) = Database::new() else { return };
    let (store, m) = (open(&database), Maker::default());
    let keys: Vec<Key> = (0..100).map(|_| m.key()).collect();
    keys.iter().for_each(|key| drop(create(&store, key, vec![m.created()])));
    fill(&database);
    let key = keys[50].clone();
    for round in 0..50 {
        let name = format!("round {round}");
        let idempotency =
            Some(Idempotency { request: Hash::of(name.as_bytes()), key: name, only_repeat: None });
        let action = Action::Append {
            drafts: vec![m.say("word")],
            expected_seq: Some(1 + round),
            prepared_for: None,
            idempotency,
        };
        assert_eq!(done(&store, Write { key: key.clone(), action }).conversation.head.seq, 2 + round);
    }
    drop(store);
    // Creations look for the id; appends read their own row only.
    assert_statistics(&database, "idx_tup_fetch < 400");
    let scans = "SELECT 1 / (CASE WHEN idx_scan < 120 THEN 1 ELSE 0 END) FROM pg_stat_user_indexes
         WHERE indexrelname = 'conversation_rows_by_id'";
    database.run(scans).unwrap();
}

/// What a process knows of a conversation is outdated when another one writes it, whatever it writes.
#[test]
fn what_another_process_did_in_between_is_seen() {
    let Some(database) = Database::new() else { return };
    let (here, there, m) = (open(&database), open(&database), Maker::default());
    let known = || {
        let key = m.key();
        create(&here, &key, vec![m.created()]);
        append(&here, &key, vec![m.say("one")]);
        append(&here, &key, vec![m.say("two")]);
        key
    };
    let say = |key: &Key, request: Option<&str>| {
        let asked = |name: &str| Idempotency {
            key: name.into(),
            request: Hash::of(name.as_bytes()),
            only_repeat: None,
        };
        let action = Action::Append {
            drafts: vec![m.say("three")],
            expected_seq: None,
            prepared_for: None,
            idempotency: request.map(asked),
        };
        Write { key: key.clone(), action }
    };
    let written = |key: &Key| here.commit(vec![say(key, None)]).remove(0);
    let code = |key: &Key| written(key).unwrap_err().code().to_string();
    let chained = |key: &Key, count: usize| {
        let events = there.events(key, 0, 100).unwrap();
        assert_eq!(events.len(), count);
        assert!(events.windows(2).all(|two| two[1].prev == two[0].hash && two[1].seq == two[0].seq + 1));
    };

    let key = known();
    append(&there, &key, vec![m.say("theirs")]);
    assert_eq!(written(&key).unwrap().events[0].seq, 5);
    assert_eq!(written(&key).unwrap().events[0].seq, 6);
    chained(&key, 6);

    let key = known();
    done(&there, m.delete(&key));
    assert_eq!(code(&key), "conversation.absent");

    // Deleted, and begun anew under its id.
    let key = known();
    done(&there, m.delete(&key));
    create(&there, &key, vec![m.created()]);
    assert_eq!(written(&key).unwrap().events[0].seq, 2);
    chained(&key, 2);

    let key = known();
    append(&there, &key, vec![m.state(Lifecycle::Closed)]);
    assert_eq!(code(&key), "conversation.not_active");

    // A request that the other one has answered is not written again.
    let key = known();
    assert!(!done(&there, say(&key, Some("request"))).repeated);
    assert!(done(&here, say(&key, Some("request"))).repeated);
    chained(&key, 4);
    // Nor one that this one has answered.
    assert!(!done(&here, say(&key, Some("another"))).repeated);
    assert!(done(&here, say(&key, Some("another"))).repeated);
    chained(&key, 5);

    // An erasure in one conversation may leave another, a fork of it, without its checkpoint.
    let (parent, key) = (known(), m.key());
    done(&here, m.fork(&key, &parent, 3));
    append(&here, &key, vec![m.say("one")]);
    let erased = there.events(&parent, 1, 1).unwrap().remove(0).turn.unwrap();
    done(&there, m.erase(&parent, &[erased]));
    assert_eq!(written(&key).unwrap().events[0].seq, 6);
    assert_eq!(written(&parent).unwrap().events[0].seq, 5);
    chained(&parent, 5);

    // One of a batch is outdated: all of it is written, each once.
    let keys = [known(), known(), known()];
    append(&there, &keys[1], vec![m.say("theirs")]);
    let seqs: Vec<u64> = here
        .commit(keys.iter().map(|key| say(key, None)).collect())
        .into_iter()
        .map(|answer| answer.unwrap().events[0].seq)
        .collect();
    assert_eq!(seqs, [4, 5, 4]);
    keys.iter().zip([4, 5, 4]).for_each(|(key, count)| chained(key, count));
}

/// Makes many more rows like the ones that are there, and tells the planner: of a small table it reads all, and rightly.
fn fill(database: &Database) {
    let copies = "INSERT INTO conversation_rows
         SELECT (jsonb_populate_record(c, jsonb_build_object('no', c.no + 1000 * n, 'id', '\\x' || md5(c.no || ' ' || n)))).*
         FROM conversation_rows c, generate_series(1, 50) n";
    postgres::run(&database.admin(), copies).unwrap();
    database.run("ANALYZE").unwrap();
}

fn wait_for_the_end_of_sessions(database: &Database) {
    let others = "SELECT 1 / (CASE WHEN EXISTS (SELECT 1 FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend') THEN 0 ELSE 1 END)";
    while database.run(others).is_err() {}
}

/// Checks what was read of conversations, once every session has ended: it reports its statistics then.
fn assert_statistics(database: &Database, condition: &str) {
    wait_for_the_end_of_sessions(database);
    let holds = format!(
        // The error has the numbers in its text.
        "SELECT CASE WHEN {condition} THEN 1 ELSE row_to_json(s)::text::integer END FROM pg_stat_user_tables s WHERE relname = 'conversation_rows'"
    );
    database.run(&holds).unwrap();
}

/// Whoever only reads words needs neither the place of assets nor credentials for it.
#[test]
fn a_place_is_opened_for_reading_when_bytes_are_read() {
    let Some(database) = Database::new() else { return };
    let (folder, place) = places::folder();
    let m = Maker::default();
    let sha256 = Hash::of(b"bytes");
    let store = Arc::new(Postgres::open(&format!("{}&assets={place}", database.url())).unwrap());
    create(&*store, &m.key(), vec![m.created()]);
    store.assets().put(&m.key().tenant, sha256, b"bytes".to_vec()).unwrap();
    drop(store);
    let read = || Arc::new(Postgres::open_read_only(&database.url()).unwrap());
    assert_eq!(read().assets().get(&m.key().tenant, sha256).unwrap(), b"bytes");
    std::fs::remove_file(folder.path().join(".everturn-store")).unwrap();
    assert_eq!(read().tenants().unwrap().len(), 1);
    let error = read().assets().get(&m.key().tenant, sha256).unwrap_err();
    assert_eq!(error.code(), "assets.foreign", "{error}");
}

/// The extension is there, in a schema where the role does not look.
#[test]
fn an_extension_in_another_schema_is_named() {
    let Some(database) = Database::without_extensions() else { return };
    postgres::run(&database.admin(), "CREATE EXTENSION vector").unwrap();
    database.run("CREATE SCHEMA app").unwrap();
    let store = Postgres::open(&format!("{}&options=-csearch_path%3Dapp", database.url())).unwrap();
    let why = store.without_vectors().unwrap();
    assert!(why.contains("in the schema public") && why.contains("search_path = app, public"), "{why}");
    assert_eq!(open(&database).without_vectors(), None);
}
