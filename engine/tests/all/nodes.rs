//! Several processes on one PostgreSQL store: all of them write, and each follows the others. `./test postgres` starts
//! the server and names it in `EVERTURN_TEST_POSTGRES`; without it these tests say that they are skipped.

pub mod work;

use crate::child::{Process, given, tell};
use crate::compacting::policy;
use crate::stage::{PATIENCE, Short, refused, seqs, until, words};
use everturn_core::access::KeyRole;
use everturn_core::chain::Hash;
use everturn_core::id::ConversationId;
use everturn_core::turn::Status;
use everturn_engine::model::Embedder;
use everturn_engine::{
    ChangeKind, Everturn, NewKey, NewStream, NewTurn, Options, RecallMode, RecallOptions, Subscription,
    Tenant, Update,
};
use everturn_store::conformance::Database;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const STORE: &str = "EVERTURN_TEST_STORE";
const CONVERSATION: &str = "EVERTURN_TEST_CONVERSATION";

fn open(database: &Database) -> Everturn {
    Everturn::open(&database.url()).unwrap()
}

/// The next updates until the event at this place.
fn collect(subscription: &mut Subscription, last: u64) -> Vec<Update> {
    let mut got = Vec::new();
    while seqs(&got).last().is_none_or(|seq| *seq < last) {
        let update = subscription.recv_timeout(PATIENCE).unwrap();
        got.push(update.unwrap_or_else(|| panic!("nothing came after {:?}", seqs(&got))));
    }
    got
}

#[test]
fn what_one_node_appends_reaches_subscribers_of_the_other() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let mut changes = there.changes(None);
    // Only the turns are to be counted.
    let id = here.begin_with(policy("compaction", json!({"auto": false}))).id;
    let change = changes.recv().unwrap().unwrap().data.remove(0);
    assert_eq!((change.id, change.change), (id, ChangeKind::Created));
    let mut subscription = there.conversation(id).subscribe(0).unwrap();
    // Both nodes write at once: one order, each event once.
    std::thread::scope(|scope| {
        for tenant in [&here, &there] {
            scope.spawn(move || {
                (0..50).for_each(|nth| drop(tenant.say(id, NewTurn::user(&format!("word {nth}")))))
            });
        }
    });
    assert_eq!(seqs(&collect(&mut subscription, 101)), (1..=101).collect::<Vec<u64>>());
    assert_eq!(here.head(id), there.head(id));
    // The database restarts: no gap, no repeat, and both go on.
    database.cut();
    // A request that finds a connection gone has done nothing.
    until("it goes on", || match here.conversation(id).append(NewTurn::user("after")).wait() {
        Err(error) if error.code() == "store.unreachable" => false,
        appended => appended.is_ok(),
    });
    assert_eq!(seqs(&collect(&mut subscription, 102)), [102]);
    here.conversation(id).delete("done").wait().unwrap();
    let last = subscription.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(last, Some(Update::Deleted)), "{last:?}");
    until("the deletion is told", || {
        changes.read().unwrap().data.iter().any(|change| change.change == ChangeKind::Deleted)
    });
}

/// A stream whose read found its connection broken ended with an error, although the database was there.
#[test]
fn streams_live_through_broken_connections() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let id = here.begin_with(policy("compaction", json!({"auto": false}))).id;
    let mut subscription = there.conversation(id).subscribe(0).unwrap();
    let mut changes = there.changes(None);
    let head = AtomicU64::new(0);
    let got = std::thread::scope(|scope| {
        let following = scope.spawn(|| {
            let mut got = Vec::new();
            while got.is_empty() || got.last() != Some(&head.load(Ordering::SeqCst)) {
                let update = subscription.recv_timeout(Duration::from_millis(20)).unwrap();
                got.extend(seqs(update.as_slice()));
                changes.read().unwrap();
            }
            got
        });
        let appending = scope.spawn(|| {
            let turn = || here.conversation(id).append(NewTurn::user("word")).wait();
            (0..200).filter(|_| turn().is_ok()).count()
        });
        (0..40).for_each(|_| database.cut());
        assert!(appending.join().unwrap() > 0);
        until("the head is known", || match here.conversation(id).get() {
            Ok(conversation) => {
                head.store(conversation.head.seq, Ordering::SeqCst);
                true
            }
            Err(_) => false,
        });
        following.join().unwrap()
    });
    assert_eq!(got, (1..=head.into_inner()).collect::<Vec<u64>>());
}

/// A conversation goes while both nodes append to it: what was answered came before, what comes after is refused, nothing
/// of it is left but what its fork reads, and the fork still verifies.
#[test]
fn a_conversation_that_is_deleted_under_appends_is_gone_as_a_whole() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    for round in 0..12 {
        let id = here.begin();
        here.say(id, NewTurn::user("before the fork"));
        let fork = here.conversation(id).fork(2).wait().unwrap().id();
        let answered = AtomicU64::new(2);
        let deleted = std::thread::scope(|scope| {
            for tenant in [&here, &there, &here, &there] {
                let answered = &answered;
                scope.spawn(move || {
                    let word = || tenant.conversation(id).append(NewTurn::user("word")).wait();
                    let refusal = (0..10_000)
                        .find_map(|_| word().map(|_| answered.fetch_add(1, Ordering::SeqCst)).err());
                    let refusal = refusal.expect("the conversation goes");
                    assert_eq!(refusal.code(), "conversation.absent", "{refusal}");
                });
            }
            until("both nodes append", || answered.load(Ordering::SeqCst) > 2 + round * 3);
            let by = if round % 2 == 0 { &here } else { &there };
            by.conversation(id).delete("while it is used").wait().unwrap()
        });
        assert_eq!(deleted.head.seq, answered.load(Ordering::SeqCst), "each answered append came before");
        for tenant in [&here, &there] {
            refused(tenant.conversation(id).get().map(drop), "conversation.absent", "");
            assert!(tenant.tombstones().unwrap().iter().any(|tombstone| tombstone.head == deleted.head));
            let head = tenant.conversation(fork).get().unwrap().head;
            assert_eq!(tenant.conversation(fork).log().verify(None).unwrap().head, head);
        }
        let of = |table: &str, place: &str| {
            format!(
                "{table} t JOIN conversation_rows c ON c.tenant = t.tenant AND c.no = t.conversation
                 WHERE c.deleted IS NOT NULL AND {place} > 2"
            )
        };
        for table in ["events", "turn_rows", "kept_folds", "summary_rows"] {
            database.counts(0, &of(table, "t.seq"));
        }
        database.counts(0, &of("turn_chunks", "t.turn_seq"));
        database.counts(0, &of("answered_requests", "t.last_seq"));
    }
}

/// A node prepares appends for the conversation as it knows it. A policy that another one has set holds all the same, from
/// the moment at which that was answered.
#[test]
fn a_policy_that_one_node_sets_holds_for_the_next_append_on_the_other() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let id = here.begin_with(policy("compaction", json!({"auto": false}))).id;
    let secret = format!("AKIA{}", "IOSFODNN7EXAMPLE");
    for round in 0..40 {
        there.say(id, NewTurn::user("this node knows it"));
        let mode = if round % 2 == 0 { "mask" } else { "off" };
        here.conversation(id).update(policy("redaction", json!(mode))).wait().unwrap();
        let said =
            |nth: usize| there.conversation(id).append(NewTurn::user(&format!("{nth}: {secret}"))).submit();
        let commits: Vec<_> = (0..3).map(said).collect();
        for commit in commits {
            let text = words(&commit.wait().unwrap().turns[0]).unwrap();
            assert_eq!(text.contains(&secret), mode == "off", "round {round}: {text}");
        }
    }
    // A budget set elsewhere holds too. Making room is a commit of its own, for which the append waits.
    for recovery in ["trim", "compact"] {
        let limit = json!({"max_messages": 6, "recovery": {recovery: {"keep_last": 2}}});
        here.conversation(id).update(policy("budget", limit)).wait().unwrap();
        for nth in 0..20 {
            let said =
                |n: usize| NewTurn::user(&format!("Please look at src/part_{n}.rs, it takes {n}17 ms."));
            there.say(id, said(nth));
            // This node does not know of them yet, and there is no room any more.
            here.conversation(id).append_all((0..4).map(|n| said(nth * 10 + n))).wait().unwrap();
            there.say(id, said(nth + 1));
            assert!(there.conversation(id).compaction().usage().unwrap().messages <= 6, "{recovery}: {nth}");
        }
    }
    let limit = json!({"max_messages": 2, "recovery": "reject"});
    let full = here.begin_with(policy("budget", limit)).id;
    there.say(full, NewTurn::user("one"));
    here.say(full, NewTurn::user("two"));
    refused(
        there.conversation(full).append("three").wait().map(drop),
        "budget.exceeded",
        "max_messages is 2",
    );
}

#[test]
fn text_of_a_turn_that_is_open_on_one_node_reaches_the_other() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let id = here.begin();
    let mut subscription = there.conversation(id).subscribe(0).unwrap();
    let conversation = here.conversation(id);
    let turn = conversation.open(NewStream::default()).wait().unwrap().id;
    collect(&mut subscription, 2);
    let mut text = String::new();
    for piece in ["every ", "word ", "is kept"] {
        conversation.open_turn(turn).chunk(None, piece).unwrap();
        let wanted = text.len() + piece.len();
        while text.len() < wanted {
            match subscription.recv_timeout(PATIENCE).unwrap() {
                Some(Update::Chunk(chunk)) => {
                    assert_eq!(chunk.offset as usize, text.len());
                    text += &chunk.text;
                }
                other => panic!("expected a chunk, got {other:?}"),
            }
        }
    }
    assert_eq!(text, "every word is kept");
    refused(
        there.conversation(id).open_turn(turn).chunk(None, "x"),
        "turn.open_elsewhere",
        "send its chunks there",
    );
    conversation.open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    assert_eq!(seqs(&collect(&mut subscription, 3)), [3]);
}

/// The child: has a turn open, with some text that is durable.
pub fn stream_until_killed() {
    let store = Everturn::open(&given(STORE)).unwrap();
    let id: ConversationId = given(CONVERSATION).parse().unwrap();
    let conversation = store.tenant("acme").unwrap().conversation(id);
    let turn = conversation.open(NewStream::default()).wait().unwrap().id;
    conversation.open_turn(turn).chunk(None, "half a thou").unwrap();
    tell(format_args!("open {turn}"));
    loop {
        std::thread::park();
    }
}

#[test]
fn a_turn_of_a_node_that_dies_comes_back_as_interrupted() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let tenant = store.tenant("acme").unwrap();
    let id = tenant.begin();
    let child = Process::start("stream", &[(STORE, database.url()), (CONVERSATION, id.to_string())]);
    child.wait_for("open");
    let turn = || tenant.turns(id).remove(0);
    let text_is_durable = || {
        let mut subscription = tenant.conversation(id).subscribe(2).unwrap();
        matches!(subscription.recv_timeout(Duration::from_secs(2)).unwrap(), Some(Update::Chunk(_)))
    };
    until("the text is durable", text_is_durable);
    // A living node keeps its turn, however long others look at it.
    assert_eq!(turn().status, Status::Pending);
    child.kill();
    until("the turn is interrupted", || turn().status == Status::Interrupted);
    assert_eq!(words(&turn()).unwrap(), "half a thou");
}

#[test]
fn keys_and_settings_hold_on_every_node() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let (key, text) = one.keys().create(NewKey::new("acme", KeyRole::Writer)).unwrap();
    assert_eq!(other.keys().find(&text).unwrap().key, key.id);
    let before = other.keys().changes();
    one.keys().revoke("acme", key.id).unwrap();
    refused(other.keys().find(&text).map(drop), "key.unknown", "revoked");
    until("the other node forgets earlier grants", || other.keys().changes() > before);
    // A turn that one node wrote is recalled on the other.
    let id = one.tenant("acme").unwrap().begin();
    one.tenant("acme").unwrap().say(id, NewTurn::user("the zebra crossed the street"));
    until("the other node has indexed it", || other.index_now().unwrap().events == 0);
    let found = other.tenant("acme").unwrap().recall("zebra", &RecallOptions::default()).unwrap();
    assert_eq!(found.data.len(), 1);
}

/// News come once. A look that failed after it had them used to forget those that it had not told yet.
#[test]
fn changes_are_not_forgotten_when_a_look_for_them_fails() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    for nth in 0..30 {
        let id = here.begin();
        // A connection that was cut before may be found only now.
        let mut subscription = None;
        until("it is read", || {
            subscription = there.conversation(id).subscribe(1).ok();
            subscription.is_some()
        });
        let mut subscription = subscription.unwrap();
        // It has read the log, and waits.
        assert!(subscription.recv_timeout(Duration::from_millis(20)).unwrap().is_none());
        here.say(id, NewTurn::user("word"));
        // Somewhere in the other node's look.
        std::thread::sleep(Duration::from_millis(nth % 10));
        database.cut();
        assert_eq!(seqs(&collect(&mut subscription, 2)), [2]);
    }
}

/// A node that also compares meanings.
fn embedding(database: &Database) -> Everturn {
    let embedder = "builtin".parse::<Embedder>().unwrap().open_with(1).unwrap();
    let options = Options { embedder: Some(embedder), ..Options::default() };
    Everturn::open_with(&database.url(), options).unwrap()
}

/// Recall is one index for all nodes, by words and by meaning. What is erased through one is found through none, and is
/// in no row of the index when the erasure is answered.
#[test]
fn every_node_recalls_the_same() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (embedding(&database), embedding(&database));
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let id = here.begin();
    let cat = here.say(id, NewTurn::user("my cat sleeps on the sofa all day")).id;
    here.say(id, NewTurn::user("the invoice is due on Friday"));
    until("everything is indexed", || other.behind().unwrap().events == 0);
    let recalled =
        |tenant: &Tenant| tenant.recall("where does the kitten rest?", &RecallOptions::default()).unwrap();
    for tenant in [&here, &there] {
        let found = recalled(tenant);
        assert_eq!((found.mode, found.note), (RecallMode::Hybrid, None));
        assert_eq!(found.data[0].turn, Some(cat));
        assert!(found.data[0].matched.vector.is_some());
    }
    there.conversation(id).erase(cat, None, "asked to").wait().unwrap();
    database.counts(0, "recall_words WHERE word = 'sofa'");
    database.counts(1, "recall_vectors");
    for tenant in [&here, &there] {
        assert!(recalled(tenant).data.iter().all(|hit| hit.turn != Some(cat)));
    }
    // Another tenant's recall knows nothing of it.
    assert_eq!(recalled(&other.tenant("globex").unwrap()).data.len(), 0);
}

#[test]
fn without_pgvector_a_recall_says_that_it_compared_words() {
    let Some(database) = Database::without_extensions() else { return };
    let store = embedding(&database);
    let tenant = store.tenant("acme").unwrap();
    let id = tenant.begin();
    tenant.say(id, NewTurn::user("my cat sleeps on the sofa all day"));
    assert_eq!((store.index_now().unwrap().events, store.behind().unwrap().vectors), (0, 0));
    let found = tenant.recall("sofa", &RecallOptions::default()).unwrap();
    assert_eq!((found.mode, found.data.len()), (RecallMode::Lexical, 1));
    assert!(found.note.unwrap().contains("pgvector"));
}

/// A process that hangs with the lock of one conversation: appends to others are answered, and those to it once it is free.
#[test]
fn a_hanging_process_holds_back_only_its_conversation() {
    let Some(database) = Database::new() else { return };
    let store = open(&database);
    let tenant = store.tenant("acme").unwrap();
    let (busy, free) = (tenant.begin(), tenant.begin());
    let rows =
        "SELECT 1 FROM conversation_rows WHERE no = (SELECT min(no) FROM conversation_rows) FOR UPDATE";
    let hold = format!("BEGIN; SET LOCAL everturn.tenants = '*'; {rows}; SELECT pg_sleep(5); COMMIT");
    std::thread::scope(|scope| {
        scope.spawn(|| database.run(&hold).unwrap());
        let sleeping = "SELECT 1 / count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%pg_sleep(5)%'";
        until("it is locked", || database.run(sleeping).is_ok());
        let began = std::time::Instant::now();
        let late = ["one", "two", "three"]
            .map(|word| tenant.conversation(busy).append(NewTurn::user(word)).submit());
        for nth in 0..20 {
            tenant.say(free, NewTurn::user(&format!("word {nth}")));
        }
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        for commit in late {
            commit.wait().unwrap();
        }
    });
    let said: Vec<String> = tenant.turns(busy).iter().filter_map(words).collect();
    assert_eq!(said, ["one", "two", "three"]);
}

/// Appends that were submitted without waiting keep their order in each conversation, also where batches that are under way
/// together fail: because another process holds a conversation, or has written one of them.
#[test]
fn submitted_appends_keep_their_order_whatever_fails() {
    let Some(database) = Database::new() else { return };
    let (store, other) = (open(&database), open(&database));
    let (tenant, theirs) = (store.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let ids: [_; 4] = std::array::from_fn(|_| tenant.begin());
    let hold = |nth: usize| {
        let id = ids[nth % 2].to_bytes();
        let parts: [&[u8]; 3] = [b"conversation", b"acme", &id];
        let Hash(hash) = Hash::of(&parts.join(&0xff));
        let lock = i64::from_be_bytes(std::array::from_fn(|at| hash[at]));
        database.run(&format!("BEGIN; SELECT pg_advisory_xact_lock({lock}); SELECT pg_sleep(0.8); COMMIT"))
    };
    let is_over = AtomicBool::new(false);
    let mut commits: [Vec<_>; 4] = Default::default();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            (0..5).for_each(|nth| hold(nth).unwrap());
            is_over.store(true, Ordering::SeqCst);
        });
        threads.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                theirs.say(ids[2], NewTurn::user("theirs"));
            }
        });
        while !is_over.load(Ordering::SeqCst) {
            for (id, commits) in ids.iter().zip(&mut commits) {
                commits.push(tenant.conversation(*id).append(NewTurn::user("ours")).submit());
            }
            tenant.say(ids[3], NewTurn::user("waited for"));
        }
    });
    for commits in commits {
        let seqs: Vec<u64> = commits.into_iter().map(|commit| commit.wait().unwrap().turns[0].seq).collect();
        assert!(seqs.is_sorted_by(|one, next| one < next), "{seqs:?}");
    }
}

/// A private turn that is open on one node is absent on the other for those who may not see it.
#[test]
fn a_private_turn_that_is_open_elsewhere_is_absent_for_others() {
    let Some(database) = Database::new() else { return };
    let (one, other) = (open(&database), open(&database));
    let called = |store: &Everturn, key: &str, actors: &[&str]| {
        let actors: Vec<String> = actors.iter().map(ToString::to_string).collect();
        store.tenant("acme").unwrap().called_by(everturn_engine::Caller::holding(
            key,
            KeyRole::Writer,
            &actors,
        ))
    };
    let ana = called(&one, "key_ana", &["ana"]);
    let id = ana.begin();
    let private = NewStream {
        actor: Some("ana".into()),
        visibility: Some(everturn_core::event::Visibility::Private),
        ..NewStream::default()
    };
    let turn = ana.conversation(id).open(private).wait().unwrap().id;
    let said = |tenant: Tenant| {
        tenant.conversation(id).open_turn(turn).chunk(None, "x").unwrap_err().code().to_string()
    };
    assert_eq!(said(called(&other, "key_bob", &["bob"])), "turn.absent");
    assert_eq!(said(called(&other, "key_any", &[])), "turn.absent");
    assert_eq!(said(called(&other, "key_ana", &["ana"])), "turn.open_elsewhere");
}

/// Erasing while another node compacts the same conversation succeeds.
#[test]
fn an_erasure_beside_a_compaction_of_another_node_succeeds() {
    let Some(database) = Database::new() else { return };
    let quiet = || {
        let options = Options { auto_compaction: false, ..Options::default() };
        Everturn::open_with(&database.url(), options).unwrap()
    };
    let (one, other) = (quiet(), quiet());
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let id = here.begin();
    let turns: Vec<_> =
        (0..60).map(|nth| here.say(id, NewTurn::user(&format!("word {nth} of many")))).collect();
    let options = everturn_engine::CompactOptions {
        keep_last: Some(1),
        extractive: true,
        ..everturn_engine::CompactOptions::default()
    };
    here.conversation(id).compaction().compact(options.clone()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                there.say(id, NewTurn::user("a word more"));
                let _ = there.conversation(id).compaction().compact(options.clone());
            }
        });
        let erased: Vec<_> = turns
            .iter()
            .take(25)
            .map(|turn| here.conversation(id).erase(turn.id, None, "asked for").wait())
            .collect();
        done.store(true, Ordering::SeqCst);
        erased.into_iter().for_each(|erased| _ = erased.unwrap());
    });
}

#[test]
fn a_node_that_only_reads_tells_changes_as_the_others_do() {
    let Some(database) = Database::new() else { return };
    let writer = open(&database);
    let options = Options { read_only: true, ..Options::default() };
    let reader = Everturn::open_with(&database.url(), options).unwrap();
    crate::processes::told_once_as_new(&writer, &reader);
}
