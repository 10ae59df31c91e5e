//! The promises on a real PostgreSQL server, and what only a store with several writers has. `./test postgres`
//! starts the server and names it in `EVERTURN_TEST_POSTGRES`; without it the tests say that they are skipped.

mod ahead;
mod outages;
mod sharing;

use crate::sql;
use everturn_core::chain::Hash;
use everturn_core::id::Key;
use everturn_core::turn::Role;
use everturn_core::write::{Action, Idempotency, Write};
use everturn_store::conformance::{
    Backend, Database, Maker, append, create, done, take_in_some, tenant, turn_of,
};
use everturn_store::memory::Memory;
use everturn_store::postgres::{self, Postgres};
use everturn_store::{
    CheckedLog, ConversationIndex, Log, RecallIndex, TurnIndex, TurnQuery, VectorSearch, WordSearch,
};
use everturn_views::recall::{EntryNo, Filter, TextQuery};
use serde_json::json;
use std::process::Command;

fn open(database: &Database) -> Postgres {
    Postgres::open(&database.url()).unwrap()
}

/// Runs a promise, or reports that it is skipped.
fn kept(promise: fn(&dyn Backend)) {
    let Some(database) = Database::new() else { return };
    promise(&open(&database));
}

mod promises {
    everturn_store::conformance!(log super::kept);
    everturn_store::conformance!(recall super::kept);
}

/// Runs a scenario of the views for people, read by the program `psql`.
fn in_sql(scenario: fn(&sql::Store<'_>)) {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let url = database.admin();
    let ask = |sql: &str| {
        let rows = format!("SELECT coalesce(json_agg(found), '[]') FROM ({sql}) found");
        let psql =
            std::env::var("EVERTURN_TEST_POSTGRES_BIN").map_or("psql".into(), |bin| format!("{bin}/psql"));
        let said = Command::new(psql).args(["-At", &url, "-c", &rows]).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        serde_json::from_slice(&said.stdout).unwrap()
    };
    scenario(&sql::Store { m: Maker::default(), store: &store, ask: &ask, lags: false });
}

#[test]
fn turns_of_every_kind_are_in_the_view() {
    in_sql(sql::turns_of_every_kind);
}

#[test]
fn a_private_turn_says_so() {
    in_sql(sql::a_private_turn);
}

#[test]
fn the_words_and_the_speaker_of_every_shape_are_in_the_view() {
    in_sql(sql::shapes);
}

#[test]
fn a_fork_has_the_turns_that_it_inherited_as_they_were() {
    in_sql(sql::forks);
}

#[test]
fn facts_are_in_the_view_with_their_words() {
    in_sql(sql::facts);
}

#[test]
fn an_expired_conversation_is_not_in_the_views() {
    in_sql(sql::expired);
}

/// A character that PostgreSQL cannot hold is replaced, and the rest of the view is shown.
#[test]
fn a_zero_character_does_not_fail_the_view() {
    in_sql(|s| {
        let key = s.m.key();
        create(s.store, &key, vec![s.m.created(), s.m.say("nu\0ll"), s.m.say("plain")]);
        let found = (s.ask)("select content from turns order by seq");
        assert_eq!(found, [json!({"content": "nu\u{fffd}ll"}), json!({"content": "plain"})]);
    });
}

/// Four processes (here: four stores with connections of their own) append to two conversations at once, in both
/// orders: one order, no gap, nothing lost, and a key that all send is answered once.
#[test]
fn several_writers_give_one_order() {
    let Some(database) = Database::new() else { return };
    // Opened at once: one of them creates the tables.
    let stores: Vec<Postgres> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..4).map(|_| scope.spawn(|| open(&database))).collect();
        opening.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let m = Maker::default();
    let (one, other) = (m.key(), m.key());
    create(&stores[0], &one, vec![m.created()]);
    create(&stores[1], &other, vec![m.created()]);
    let write = |key: &Key, round: usize| {
        let name = format!("round {round}");
        let idempotency = Idempotency { request: Hash::of(name.as_bytes()), key: name, only_repeat: None };
        let action = |idempotency| Action::Append {
            drafts: vec![m.say("hello")],
            expected_seq: None,
            prepared_for: None,
            idempotency,
        };
        [None, Some(idempotency)].map(|asked| Write { key: key.clone(), action: action(asked) })
    };
    let batches: Vec<Vec<Vec<Write>>> = (0..4)
        .map(|writer| {
            let keys = if writer % 2 == 0 { [&one, &other] } else { [&other, &one] };
            (0..25).map(|round| keys.iter().flat_map(|key| write(key, round)).collect()).collect()
        })
        .collect();
    let repeated: usize = std::thread::scope(|scope| {
        let writing: Vec<_> = stores
            .iter()
            .zip(batches)
            .map(|(store, batches)| {
                scope.spawn(move || {
                    let answers = batches.into_iter().flat_map(|batch| store.commit(batch));
                    answers.filter(|answer| answer.as_ref().unwrap().repeated).count()
                })
            })
            .collect();
        writing.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(repeated, 3 * 25 * 2);
    for key in [&one, &other] {
        let events = stores[3].events(key, 0, 1000).unwrap();
        assert_eq!(events.len(), 1 + 4 * 25 + 25);
        assert!(events.windows(2).all(|two| two[1].prev == two[0].hash && two[1].seq == two[0].seq + 1));
    }
}

/// SQL that tries to reach another tenant: as the server without or with the wrong tenant, and as a role that may
/// read one of them, through tables, partitions and settings.
#[test]
fn row_level_security_keeps_tenants_apart() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let mine = m.key();
    let other = Key { tenant: tenant("other"), ..m.key() };
    create(&store, &mine, vec![m.created(), m.say("mine")]);
    create(&store, &other, vec![m.created(), m.say("theirs")]);
    let reader = format!("reader_{}", database.name);
    let set = |tenants: &str| format!("BEGIN; SET LOCAL everturn.tenants = '{tenants}';");
    let name = mine.tenant.as_str();
    // A failing assertion of SQL: division by zero unless the count is as expected.
    let expect = |count: u32, of: &str| {
        format!("SELECT 1 / (CASE WHEN (SELECT count(*) FROM {of}) = {count} THEN 1 ELSE 0 END);")
    };
    let tables = ["events", "turn_rows", "conversation_rows"];
    for table in tables {
        database.run(&expect(0, table)).unwrap();
        database
            .run(&format!(
                "{} {} COMMIT",
                set("other"),
                expect(0, &format!("{table} WHERE tenant = '{name}'"))
            ))
            .unwrap();
        database.run(&format!("{} UPDATE {table} SET tenant = tenant WHERE tenant = '{name}'; DELETE FROM {table} WHERE tenant <> 'other'; COMMIT", set("other"))).unwrap();
        let stolen = format!("{} UPDATE {table} SET tenant = '{name}'; COMMIT", set("other"));
        assert!(database.run(&stolen).unwrap_err().to_string().contains("row-level security"), "{table}");
        // What was there is still there, and a tenant sees its own.
        database
            .run(&format!("{} {} COMMIT", set(name), expect(if table == "events" { 2 } else { 1 }, table)))
            .unwrap();
    }
    let parts = (0..16)
        .map(|part| format!("SELECT tenant FROM events_{part}"))
        .collect::<Vec<_>>()
        .join(" UNION ALL ");
    database.run(&format!("{} {} COMMIT", set("other"), expect(2, &format!("({parts}) p")))).unwrap();
    // The index of recall is a copy of the words.
    take_in(&store);
    store.unembedded("model/3", None, 9).unwrap();
    let derived = ["entries", "words", "conversations", "tenants", "models", "waiting"]
        .map(|table| format!("recall_{table}"));
    for table in derived {
        let whose = format!("{table} WHERE tenant = '{name}'");
        database.run(&expect(0, &table)).unwrap();
        database.run(&format!("{} {} COMMIT", set("other"), expect(0, &whose))).unwrap();
        let lost = format!("{} SELECT 1 / count(*) FROM {whose}; COMMIT", set(name));
        database.run(&lost).unwrap_or_else(|error| panic!("{table}: {error}"));
    }
    let admin = database.admin();
    postgres::run(&admin, &format!("CREATE ROLE {reader} LOGIN")).unwrap();
    database.run(&format!("SELECT let_read('{name}', '{reader}')")).unwrap();
    let as_reader =
        |sql: &str| postgres::run(&database.url().replace("//everturn@", &format!("//{reader}@")), sql);
    let checked = (|| {
        as_reader(&expect(2, "events"))?;
        // The server's setting has no effect for others.
        as_reader(&format!("{} {} COMMIT", set("*"), expect(2, "events")))?;
        as_reader(&format!("{} {} COMMIT", set("other"), expect(0, "events WHERE tenant = 'other'")))?;
        as_reader(&expect(1, "conversation_rows"))?;
        as_reader(&expect(1, "conversations"))?;
        as_reader(&expect(1, "turns WHERE content = 'mine'"))?;
        as_reader(&expect(0, "turns WHERE content = 'theirs'"))
    })();
    let refused = [
        "SELECT let_read('other', current_user)",
        "SELECT * FROM events_3",
        "SELECT * FROM access_keys",
        "SELECT * FROM recall_words",
        "SELECT * FROM recall_entries",
        "CREATE POLICY mine ON events TO PUBLIC USING (true)",
        "UPDATE events SET body = ''",
        "DELETE FROM events",
        "ALTER TABLE events DISABLE ROW LEVEL SECURITY",
        "SET ROLE everturn",
        "TRUNCATE events",
    ]
    .map(|sql| (sql, as_reader(sql).is_err()));
    postgres::run(&admin, &format!("DROP OWNED BY {reader}; DROP ROLE {reader}")).unwrap();
    checked.unwrap();
    for (sql, refused) in refused {
        assert!(refused, "{sql}");
    }
    assert_eq!(store.conversation(&mine).unwrap().head.seq, 2);
    assert_eq!(store.conversation(&other).unwrap().head.seq, 2);
}

/// Each error says what to do.
#[test]
fn errors_of_opening_say_what_to_do() {
    let Some(database) = Database::new() else { return };
    let url = database.url();
    let said = |url: &str| {
        Postgres::open(url).err().map(|error| (error.code().to_string(), error.to_string())).unwrap()
    };
    let (code, text) = said(&url.replace(&database.name, "nothing_here"));
    assert_eq!(code, "store.absent", "{text}");
    let (code, text) = said(&url.replace("//everturn@", "//nobody_here@"));
    assert_eq!(code, "store.denied", "{text}");
    let (code, text) = said(&format!("{url}&connections_max=none"));
    assert!(code == "store.url" && text.contains("4 to 1000"), "{text}");
    let (code, text) = said(&format!("{url}&colour=blue"));
    assert!(code == "store.url" && text.contains("postgres://"), "{text}");
    assert!(text.contains("the options are application_name, "), "{text}");
    let unmade = Postgres::open_read_only(&url).err().unwrap();
    assert_eq!(unmade.code(), "store.absent", "{unmade}");
    drop(open(&database));
    Postgres::open_read_only(&url).unwrap();
    database.run("INSERT INTO schema_versions (version, made_by) VALUES (99, 'everturn 9.0.0')").unwrap();
    let (code, text) = said(&url);
    assert!(code == "store.newer" && text.contains("format 99"), "{text}");
}

/// Builds that were never released numbered their tables, too, and did not say who made them.
#[test]
fn tables_of_an_unreleased_build_are_refused_and_left_as_they_are() {
    let Some(database) = Database::new() else { return };
    database.run("CREATE TABLE schema_versions (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())").unwrap();
    database.run("INSERT INTO schema_versions (version) VALUES (1)").unwrap();
    let url = database.url();
    for refused in [Postgres::open(&url).err().unwrap(), Postgres::open_read_only(&url).err().unwrap()] {
        assert_eq!(refused.code(), "store.unreleased", "{refused}");
        assert!(refused.to_string().contains("export it with that build"), "{refused}");
    }
    database.counts(0, "pg_class WHERE relname = 'conversation_rows'");
}

/// Indexes everything that is committed.
fn take_in(store: &dyn Backend) {
    while take_in_some(store, 300).unwrap() {}
}

/// A page of a long conversation, and the turns around what recall found, read their own rows and no others.
#[test]
fn a_page_costs_the_same_however_long_the_conversation_is() {
    const TURNS: usize = 3000;
    let Some(database) = Database::new() else { return };
    let (m, store) = (Maker::default(), open(&database));
    let key = m.key();
    create(&store, &key, vec![m.created()]);
    for some in texts(TURNS).chunks(500) {
        append(&store, &key, some.iter().map(|text| m.say(text)).collect());
    }
    take_in(&store);
    drop(store);
    for reads in [
        |store: &Postgres, key: &Key| {
            let query = TurnQuery { limit: 50, descending: true, ..TurnQuery::default() };
            let store: &dyn Backend = store;
            assert_eq!(store.turns(key, &query).unwrap().len(), 50);
        },
        |store: &Postgres, key: &Key| {
            let entries: Vec<EntryNo> = (1000..1010).map(EntryNo).collect();
            let found = store.neighbours(&key.tenant, &Filter::default(), &entries, 2).unwrap();
            assert_eq!(found.iter().map(Vec::len).sum::<usize>(), 4 * entries.len());
        },
    ] {
        // What a connection has read is counted when it ends.
        let alone = "WHILE EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
                 AND backend_type = 'client backend' AND pid <> pg_backend_pid())
             LOOP PERFORM pg_sleep(0.05), pg_stat_clear_snapshot(); END LOOP";
        let forget = format!("DO $$ BEGIN {alone}; PERFORM pg_stat_reset(); END $$");
        postgres::run(&database.admin(), &forget).unwrap();
        let store = open(&database);
        reads(&store, &key);
        drop(store);
        let few = format!(
            "DO $$ DECLARE read bigint; indexes text; BEGIN
                 {alone};
                 SELECT sum(idx_tup_read), string_agg(indexrelname || ' ' || idx_tup_read, ', ') FILTER (WHERE idx_tup_read > 0)
                     INTO read, indexes FROM pg_stat_user_indexes WHERE relname ~ '^(events|turn_rows|recall_entries)';
                 IF read = 0 OR read >= {TURNS} THEN RAISE 'read % rows: %', read, indexes; END IF;
             END $$"
        );
        postgres::run(&database.admin(), &few).unwrap();
    }
}

/// A turn that is asked for under the id of another conversation is not there, although that one has an event at its `seq`.
#[test]
fn turns_are_looked_up_in_their_own_conversation() {
    let Some(database) = Database::new() else { return };
    let (m, store) = (Maker::default(), open(&database));
    let (one, other) = (m.key(), m.key());
    let [said, foreign] = ["said here", "said there"].map(|text| m.say(text));
    create(&store, &one, vec![m.created(), said.clone()]);
    create(&store, &other, vec![m.created(), foreign.clone()]);
    let asked = [(one.id, turn_of(&said)), (one.id, turn_of(&foreign))];
    let found = store.stored_turns_in(&one.tenant, &asked).unwrap();
    assert_eq!(found[0].as_ref().unwrap().row.id, turn_of(&said));
    assert_eq!(found[1].as_ref().err().map(|error| error.code()), Some("turn.absent"));
}

/// Texts of few words, so that words are common, rare, alone and together; the same ones every time.
fn texts(count: usize) -> Vec<String> {
    const WORDS: [&str; 16] = [
        "harbour",
        "weather",
        "the",
        "lock",
        "locking",
        "build_context",
        "OPS-4417",
        "数据库",
        "lighthouse",
        "of",
        "master",
        "closed",
        "src/store.rs",
        "zebra",
        "Häuser",
        "writer",
    ];
    let mut seed = 7_u64;
    let mut number = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut word = move || {
        let below = number(WORDS.len()) + 1;
        WORDS[number(below)]
    };
    (0..count).map(|nth| (0..3 + nth % 9).map(|_| word()).collect::<Vec<_>>().join(" ")).collect()
}

/// The tables propose what the indexes in SQLite files propose, with the same counts and scores.
#[test]
fn recall_is_that_of_the_other_stores() {
    let Some(database) = Database::new() else { return };
    let (postgres, memory) = (open(&database), Memory::default());
    let stores: [&dyn Backend; 2] = [&postgres, &memory];
    let found = stores.map(|store| {
        let m = Maker::default();
        let (one, other) = (m.key(), m.key());
        for (key, part) in [(&one, 0), (&other, 1)] {
            create(store, key, vec![m.created()]);
            for some in texts(1200).chunks(50).skip(part).step_by(2) {
                append(store, key, some.iter().map(|text| m.say(text)).collect());
            }
        }
        take_in(store);
        let mut all = Vec::new();
        for conversation in [None, Some(one.id)] {
            let filter = Filter { conversation, ..Filter::default() };
            for query in [
                "harbour",
                "lock",
                "locked",
                "zebra lighthouse",
                "the harbour of the weather master",
                "\"harbour weather\"",
                "\"harbour weather\" lock zebra",
                "build_context",
                "build_con*",
                "buildcontext",
                "harb*",
                "ops-4417",
                "OPS 4417",
                "数据",
                "数据库 lock",
                "store.rs",
                "haus",
                "absent",
                "the",
                "writer* closed zebra \"the lock\"",
            ] {
                for limit in [5, 400] {
                    let proposed =
                        store.find_text(&one.tenant, &TextQuery::parse(query), &filter, limit).unwrap();
                    let hits: Vec<_> = proposed
                        .found
                        .iter()
                        .map(|hit| (hit.no, hit.conversation, hit.seq, hit.id, hit.at, hit.score))
                        .collect();
                    all.push((query, conversation, limit, proposed.counts, hits));
                }
            }
        }
        all
    });
    for (here, there) in found[0].iter().zip(&found[1]) {
        assert_eq!(here, there);
    }
    assert!(found[0].iter().filter(|(.., hits)| !hits.is_empty()).count() > 60);
}

/// Counts and words stay right when entries come and go, and nothing is left of what was removed.
#[test]
fn nothing_is_left_of_removed_words() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let (key, other) = (m.key(), m.key());
    create(&store, &key, vec![m.created()]);
    create(&store, &other, vec![m.created()]);
    let mut turns = Vec::new();
    for some in texts(1500).chunks(100) {
        let drafts: Vec<_> = some.iter().map(|text| m.say(&format!("everywhere {text}"))).collect();
        turns.extend(drafts.iter().map(turn_of));
        append(&store, &key, drafts);
        append(&store, &other, vec![m.say("everywhere else, a singular thing")]);
    }
    take_in(&store);
    let count = |word: &str| {
        let query = TextQuery::parse(word);
        store.find_text(&key.tenant, &query, &Filter::default(), 5).unwrap().counts
    };
    assert_eq!((count("everywhere").any, count("singular").any), (vec![1515], vec![15]));
    // What the last row of each word counts is what its rows have, and what entries have.
    let check = || {
        let counted = "SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END) FROM
            (SELECT word, sum(cardinality(entries)) AS has, (array_agg(before + cardinality(entries) ORDER BY first DESC))[1] AS counted
             FROM recall_words GROUP BY word) w WHERE has <> counted OR has = 0";
        let listed = "SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END) FROM
            (SELECT DISTINCT no, word FROM recall_entries, unnest(string_to_array(words, ' ')) AS word) e FULL JOIN
            (SELECT unnest(entries) AS no, word FROM recall_words WHERE word NOT LIKE ' %') w ON w.no = e.no AND w.word = e.word
            WHERE w.no IS NULL OR e.no IS NULL AND w.word IN ('harbour', 'everywhere', 'zebra')";
        for sql in [counted, listed] {
            database.run(&format!("BEGIN; SET LOCAL everturn.tenants = '*'; {sql}; COMMIT")).unwrap();
        }
    };
    check();
    for some in [&turns[3..4], &turns[250..900], &turns[1499..]] {
        done(&store, m.erase(&key, some));
        take_in(&store);
        check();
    }
    assert_eq!(count("everywhere").any, [1515 - 652]);
    append(&store, &key, vec![m.say("everywhere again")]);
    take_in(&store);
    check();
    assert_eq!(count("everywhere").any, [1515 - 651]);
    done(&store, m.delete(&other));
    take_in(&store);
    check();
    assert_eq!((count("everywhere").any, count("singular").any), (vec![1500 - 651], vec![0]));
    done(&store, m.delete(&key));
    take_in(&store);
    let empty =
        "SELECT 1 / (CASE WHEN (SELECT count(*) FROM recall_words) + (SELECT count(*) FROM recall_entries)
        + (SELECT sum(entries + words) FROM recall_tenants) = 0 THEN 1 ELSE 0 END)";
    database.run(&format!("BEGIN; SET LOCAL everturn.tenants = '*'; {empty}; COMMIT")).unwrap();
    assert!(store.scrub(None, None).unwrap());
}

/// Events are claimed by one process: another waits for it, gets the next ones, and goes on at once where it died.
#[test]
fn events_are_indexed_once_by_whichever_process() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let m = Maker::default();
    let (key, foreign) = (m.key(), Key { tenant: tenant("other"), ..m.key() });
    create(&one, &key, vec![m.created(), m.say("the first beacon"), m.say("the second beacon")]);
    let claimed = one.unindexed(2).unwrap();
    assert_eq!(claimed.events.len(), 2);
    // Another tenant is free.
    create(&other, &foreign, vec![m.created()]);
    let free = other.unindexed(9).unwrap();
    assert_eq!((free.events.len(), free.span.tenant.as_ref()), (1, Some(&foreign.tenant)));
    other.index(Vec::new(), free.span).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.unindexed(9).unwrap());
        // The claim holds for as long as it is not indexed.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!waiting.is_finished());
        one.index(Vec::new(), claimed.span).unwrap();
        let next = waiting.join().unwrap();
        assert_eq!((next.events.len(), next.span.after, next.span.through), (1, 2, 3));
    });
    // It ends without indexing it.
    drop(other);
    let left = one.unindexed(9).unwrap();
    assert_eq!((left.events.len(), left.span.after), (1, 2));
    one.index(Vec::new(), left.span.clone()).unwrap();
    assert_eq!(one.unindexed(9).unwrap().events.len(), 0);
    one.index(Vec::new(), left.span).unwrap();
    assert_eq!(one.behind(None, None).unwrap().events, 0);
}

/// Whatever several processes do at once, each entry is there once.
#[test]
fn several_processes_index_together() {
    let Some(database) = Database::new() else { return };
    let stores: Vec<Postgres> = (0..3).map(|_| open(&database)).collect();
    let m = Maker::default();
    let keys: Vec<Key> =
        (0..6).map(|nth| Key { tenant: tenant(&format!("tenant{}", nth % 3)), ..m.key() }).collect();
    keys.iter().for_each(|key| drop(create(&stores[0], key, vec![m.created()])));
    let drafts: Vec<Vec<_>> = (0..20)
        .map(|_| keys.iter().map(|_| vec![m.say("a beacon"), m.say("another one")]).collect())
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in drafts {
                keys.iter().zip(round).for_each(|(key, drafts)| drop(append(&stores[0], key, drafts)));
            }
        });
        for store in &stores {
            scope.spawn(|| (0..30).for_each(|_| take_in(store)));
        }
    });
    take_in(&stores[1]);
    for key in &keys {
        let query = TextQuery::parse("beacon");
        let within = Filter { conversation: Some(key.id), ..Filter::default() };
        let found = stores[2].find_text(&key.tenant, &query, &within, 100).unwrap();
        assert_eq!((found.found.len(), found.counts.entries, found.counts.any), (20, 80, vec![40]));
        assert_eq!(stores[0].behind(Some(&key.tenant), None).unwrap().events, 0);
    }
}

/// Without pgvector recall is lexical, and says so.
#[test]
fn without_the_extension_only_words_are_compared() {
    let Some(database) = Database::without_extensions() else { return };
    let m = Maker::default();
    let key = m.key();
    {
        let store = open(&database);
        create(&store, &key, vec![m.created(), m.say("a beacon")]);
        take_in(&store);
        assert!(store.without_vectors().unwrap().contains("CREATE EXTENSION vector"));
        assert_eq!(
            store
                .find_text(&key.tenant, &TextQuery::parse("beacon"), &Filter::default(), 9)
                .unwrap()
                .found
                .len(),
            1
        );
        assert_eq!(store.unembedded("model/3", None, 9).unwrap(), []);
        store.put_vectors(&key.tenant, "model/3", vec![(EntryNo(1), vec![1.0; 3])]).unwrap();
        assert_eq!(store.find_near(&key.tenant, "model/3", &[1.0; 3], &Filter::default(), 9).unwrap(), []);
        assert_eq!(store.behind(None, Some("model/3")).unwrap().vectors, 0);
        done(&store, m.delete(&key));
        create(&store, &m.key(), vec![m.created(), m.say("another beacon")]);
        take_in(&store);
    }
    postgres::run(&database.admin(), "CREATE EXTENSION vector").unwrap();
    // Once it is there, what was indexed before waits for its vectors.
    let store = open(&database);
    assert_eq!(store.without_vectors(), None);
    assert_eq!(store.unembedded("model/3", None, 9).unwrap().len(), 1);
}

/// Dropping pgvector leaves the table of vectors without its column, and every recall failed for good. Now recall is lexical
/// until the extension is there again, and then every entry waits for its vector.
#[test]
fn an_extension_that_was_dropped_and_comes_back_is_used_again() {
    let Some(database) = Database::new() else { return };
    let m = Maker::default();
    let key = m.key();
    let (near, model) = ([1.0, 0.0, 0.0], "model/3");
    let found = |store: &Postgres| {
        let by_words =
            store.find_text(&key.tenant, &TextQuery::parse("beacon"), &Filter::default(), 9).unwrap();
        let by_meaning = store.find_near(&key.tenant, model, &near, &Filter::default(), 9).unwrap();
        (by_words.found.len(), by_meaning.len())
    };
    let embed = |store: &Postgres| {
        let waiting = store.unembedded(model, None, 9).unwrap();
        let vectors = waiting.iter().map(|entry| (entry.no, near.to_vec())).collect();
        store.put_vectors(&key.tenant, model, vectors).unwrap();
    };
    {
        let store = open(&database);
        create(&store, &key, vec![m.created(), m.say("a beacon")]);
        take_in(&store);
        embed(&store);
        assert_eq!(found(&store), (1, 1));
    }
    postgres::run(&database.admin(), "DROP EXTENSION vector CASCADE").unwrap();
    {
        let store = open(&database);
        assert!(store.without_vectors().unwrap().contains("CREATE EXTENSION vector"));
        append(&store, &key, vec![m.say("another beacon")]);
        take_in(&store);
        assert_eq!(found(&store), (2, 0));
    }
    postgres::run(&database.admin(), "CREATE EXTENSION vector").unwrap();
    let store = open(&database);
    assert_eq!(store.without_vectors(), None);
    embed(&store);
    assert_eq!(found(&store), (2, 2));
}

/// Those that waited while another process made the tables did not see them, and failed.
#[test]
fn processes_that_start_together_on_an_empty_database_all_start() {
    for _ in 0..3 {
        let Some(database) = Database::new() else { return };
        std::thread::scope(|threads| {
            (0..12).for_each(|_| drop(threads.spawn(|| open(&database))));
        });
        database.counts(1, "schema_versions");
    }
}

/// A tenant with very many vectors gets an index of its own, with which nearly all of the ten best are found, with and
/// without a filter; a tenant beside it is not affected.
#[test]
fn the_nearest_of_very_many_are_found_by_an_index() {
    const MANY: usize = 21_000;
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let m = Maker::default();
    let key = m.key();
    create(&store, &key, vec![m.created(), m.say("one")]);
    take_in(&store);
    let first = store.unembedded("noise/16", None, 9).unwrap();
    store.put_vectors(&key.tenant, "noise/16", vec![(first[0].no, vec![1.0; 16])]).unwrap();
    let name = key.tenant.as_str();
    // Entries as they would be after so many turns, with vectors that can be computed here as well.
    database
        .run(&format!(
            "BEGIN; SET LOCAL everturn.tenants = '*';
             INSERT INTO recall_entries SELECT tenant, no + n, conversation, seq + n, kind, uuid_send(gen_random_uuid()),
                 CASE WHEN n % 2 = 0 THEN 'user' ELSE 'tool' END, actor, at, fallen, prose, audience, length, words, others
                 FROM recall_entries, generate_series(1, {MANY}) n WHERE tenant = '{name}';
             INSERT INTO recall_vectors SELECT tenant, model, entry + n, l2_normalize(
                 (SELECT array_agg(((n::bigint * n % 1000003 * (2 * d + 3) + n * (31 * d * d + 17)) % 1000003)::real / 500001.5 - 1 ORDER BY d)
                     FROM generate_series(0, 15) d)::real[]::halfvec)
                 FROM recall_vectors, generate_series(1, {MANY}) n WHERE tenant = '{name}';
             INSERT INTO recall_words SELECT tenant, word, first + 1, 1, ARRAY(SELECT entries[1] + n FROM generate_series(2, {MANY}, 2) n)
                 FROM recall_words WHERE tenant = '{name}' AND word = ' ruser';
             UPDATE recall_models SET vectors = vectors + {MANY} WHERE tenant = '{name}'; COMMIT"
        ))
        .unwrap();
    assert_eq!(store.unembedded("noise/16", None, 9).unwrap(), [], "which makes the index");
    let made = "SELECT 1 / count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname LIKE 'recall_near_%' AND i.indisvalid";
    database.run(made).unwrap();
    let noise = |n: usize| -> Vec<f64> {
        let n = n as i64;
        let number = |d: i64| (n * n % 1_000_003 * (2 * d + 3) + n * (31 * d * d + 17)) % 1_000_003;
        let all: Vec<f64> = (0..16).map(|d| number(d) as f64 / 500_001.5 - 1.0).collect();
        let length = all.iter().map(|one| one * one).sum::<f64>().sqrt();
        all.iter().map(|one| one / length).collect()
    };
    let no = |n: usize| EntryNo(first[0].no.0 + n as i64);
    let question =
        |nth: usize| noise(nth * 977 + 13).iter().map(|one| (one + 0.05) as f32).collect::<Vec<f32>>();
    for role in [None, Some(Role::User)] {
        let filter = Filter { roles: role.into_iter().collect(), ..Filter::default() };
        let mut hits = 0;
        for nth in 0..20 {
            let question = question(nth);
            let near = |n: usize| noise(n).iter().zip(&question).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
            let allowed = (1..=MANY).filter(|n| role.is_none() || n % 2 == 0);
            let mut best: Vec<(f64, EntryNo)> = allowed.map(|n| (near(n), no(n))).collect();
            best.sort_by(|a, b| b.0.total_cmp(&a.0));
            let found = store.find_near(&key.tenant, "noise/16", &question, &filter, 10).unwrap();
            assert_eq!(found.len(), 10);
            hits += best[..10].iter().filter(|(_, no)| found.iter().any(|found| found.no == *no)).count();
        }
        assert!(hits >= 190, "{hits} of 200, {role:?}");
    }
    store.forget().unwrap();
    assert_eq!(store.unembedded("noise/16", None, 9).unwrap(), []);
    assert!(database.run(made).is_err(), "the index goes with the vectors");
}
