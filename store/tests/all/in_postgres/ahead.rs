//! Batches that are sent while others are under way.

use super::open;
use everturn_core::id::Key;
use everturn_core::write::Write;
use everturn_store::conformance::{Database, Maker, addition, append, create, creation};
use everturn_store::postgres::Postgres;
use everturn_store::{CheckedLog, CommitProgress, Committed, Log, Unwritten};
use std::collections::HashSet;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

type Answers = Vec<Result<Committed, Unwritten>>;

/// A conversation that the store wrote last, with two turns: the next is event 4.
fn known(store: &Postgres, m: &Maker) -> Key {
    let key = m.key();
    create(store, &key, vec![m.created()]);
    append(store, &key, vec![m.say("one")]);
    append(store, &key, vec![m.say("two")]);
    key
}

fn says(m: &Maker, keys: &[&Key]) -> Vec<Write> {
    keys.iter().map(|key| addition(key, vec![m.say("more")])).collect()
}

/// The place of the one event of each request; 0 for one that came back.
fn seqs(answers: &Answers) -> Vec<u64> {
    let seq = |answer: &Result<Committed, Unwritten>| match answer {
        Ok(committed) => committed.events[0].seq,
        Err(unwritten) if unwritten.held.is_some() => 0,
        Err(unwritten) => panic!("{:?}", unwritten.error),
    };
    answers.iter().map(seq).collect()
}

/// Each event is there once, in a chain that verifies.
#[track_caller]
fn assert_chained(store: &Postgres, key: &Key, count: usize) {
    let events = store.events(key, 0, 1000).unwrap();
    assert_eq!(events.len(), count);
    assert!(events.windows(2).all(|two| two[1].prev == two[0].hash));
    let ids: HashSet<_> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), count);
}

/// Appends to conversations that this process wrote last are on their way before they are finished.
#[test]
fn appends_to_known_conversations_are_sent_ahead() {
    let Some(database) = Database::new() else { return };
    let (store, m) = (open(&database), Maker::default());
    let (key, other) = (known(&store, &m), known(&store, &m));
    let first = store.begin_commit(says(&m, &[&key, &other]));
    let mut second = store.begin_commit(says(&m, &[&other, &key]));
    while second.progress(Waker::noop()) == CommitProgress::UnderWay {
        thread::yield_now();
    }
    assert_eq!(second.progress(Waker::noop()), CommitProgress::Written);
    assert_chained(&store, &key, 5);
    let none = HashSet::new();
    assert_eq!((seqs(&first.finish(&none)), seqs(&second.finish(&none))), (vec![4, 4], vec![5, 5]));
}

/// A batch is planned for what those under way will leave. If another process has written a conversation meanwhile, each
/// is written again, in its order.
#[test]
fn batches_behind_one_that_failed_are_written_in_their_order() {
    let Some(database) = Database::new() else { return };
    let (here, there, m) = (open(&database), open(&database), Maker::default());
    let (key, other) = (known(&here, &m), known(&here, &m));
    append(&there, &key, vec![m.say("theirs")]);
    let first = here.begin_commit(says(&m, &[&key, &other]));
    let second = here.begin_commit(says(&m, &[&key]));
    let third = here.begin_commit(says(&m, &[&other, &other]));
    let none = HashSet::new();
    assert_eq!(seqs(&first.finish(&none)), [5, 4]);
    assert_eq!(seqs(&second.finish(&none)), [6]);
    assert_eq!(seqs(&third.finish(&none)), [5, 6]);
    assert_chained(&there, &key, 6);
    assert_chained(&there, &other, 6);
}

/// A conversation that another process keeps locked is put aside, with all that follows about it; the others go on.
#[test]
fn what_follows_a_request_that_is_put_aside_is_put_aside() {
    let Some(database) = Database::new() else { return };
    let (store, m) = (open(&database), Maker::default());
    let (key, other) = (known(&store, &m), known(&store, &m));
    let id: String = key.id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let hold = format!(
        "BEGIN; SET LOCAL everturn.tenants = '*'; SELECT 1 FROM conversation_rows WHERE id = '\\x{id}' FOR UPDATE;
         SELECT pg_sleep(4); COMMIT"
    );
    let is_held = "SELECT 1 / count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(4)%' AND wait_event = 'PgSleep'
         AND pid <> pg_backend_pid()";
    let second = thread::scope(|threads| {
        threads.spawn(|| database.run(&hold).unwrap());
        while database.run(is_held).is_err() {}
        let first = store.begin_commit(says(&m, &[&key, &other]));
        let second = store.begin_commit(says(&m, &[&key, &other, &key]));
        assert_eq!(seqs(&first.finish(&HashSet::new())), [0, 4]);
        second
    });
    // The lock is free now, but the earlier request is not written yet.
    let answers = second.finish(&HashSet::from([key.clone()]));
    assert_eq!(seqs(&answers), [0, 5, 0]);
    let held = answers.into_iter().filter_map(|answer| answer.err()?.held).map(|write| *write);
    assert!(store.commit(held.collect()).iter().all(Result::is_ok));
    assert_chained(&store, &key, 5);
    assert_chained(&store, &other, 5);
}

/// The answer to a large batch was larger than what the client keeps for somebody who does not take it. It then read nothing
/// more, so that a batch before it, which had failed, waited for a sign behind it until the time of an answer was over.
#[test]
fn answers_of_large_batches_are_read_while_something_else_is_awaited() {
    let Some(database) = Database::new() else { return };
    let (here, there, m) = (open(&database), open(&database), Maker::default());
    let keys: Vec<Key> = (0..1000).map(|_| m.key()).collect();
    let all: Vec<&Key> = keys.iter().collect();
    let created = here.commit(keys.iter().map(|key| creation(key, vec![m.created()])).collect());
    assert!(created.iter().all(Result::is_ok));
    for _ in 0..2 {
        assert!(here.commit(says(&m, &all)).iter().all(Result::is_ok));
    }
    append(&there, &keys[0], vec![m.say("theirs")]);
    let began = Instant::now();
    let first = here.begin_commit(says(&m, &all));
    let second = here.begin_commit(says(&m, &all));
    let none = HashSet::new();
    assert_eq!(seqs(&first.finish(&none))[..2], [5, 4]);
    assert_eq!(seqs(&second.finish(&none))[..2], [6, 5]);
    // The time of an answer is 20 s.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_chained(&there, &keys[0], 6);
    assert_chained(&there, &keys[999], 5);
}

/// The connection breaks while batches are under way: whatever was answered is there, and nothing is there twice.
#[test]
fn a_connection_that_breaks_loses_and_repeats_nothing() {
    let Some(database) = Database::new() else { return };
    let (store, m) = (open(&database), Maker::default());
    let keys = [known(&store, &m), known(&store, &m)];
    let (one, two) = (&keys[0], &keys[1]);
    let mut next = 4;
    for _ in 0..20 {
        // Each begins with a whole connection.
        append(&store, one, vec![m.say("again")]);
        append(&store, two, vec![m.say("again")]);
        let first = store.begin_commit(says(&m, &[one, two]));
        let second = store.begin_commit(says(&m, &[two, one, two]));
        let (first, second) = thread::scope(|threads| {
            let cutting = threads.spawn(|| database.cut());
            let answers = (first.finish(&HashSet::new()), second.finish(&HashSet::new()));
            cutting.join().unwrap();
            answers
        });
        assert_eq!(seqs(&first), [next + 1, next + 1]);
        assert_eq!(seqs(&second), [next + 2, next + 2, next + 3]);
        // One turn more in each round, so that both are equally long again.
        append(&store, one, vec![m.say("again")]);
        next += 4;
    }
    assert_chained(&store, one, next as usize - 1);
    assert_chained(&store, two, next as usize - 1);
}
