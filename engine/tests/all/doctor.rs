//! The doctor: every tenant, every damaged event, and what to do about each.

use crate::stage::{Short, Stage, quiet, refused};
use everturn_engine::{Doctor, Everturn, NewTurn, Options};
use rusqlite::Connection;

fn examine(store: &Everturn) -> Doctor {
    store.doctor(&mut |_| {}).unwrap()
}

fn sql(stage: &Stage, text: &str) {
    Connection::open(stage.path()).unwrap().execute_batch(text).unwrap();
}

/// Only the first damaged event of each conversation was named, and only those of one tenant.
#[test]
fn every_damaged_event_of_every_tenant_is_named_once() {
    let stage = Stage::new();
    let store = stage.open();
    let (acme, umbrella) = (store.tenant("acme").unwrap(), store.tenant("umbrella").unwrap());
    let (parent, other) = (acme.begin(), umbrella.begin());
    for n in 0..6 {
        acme.say(parent, NewTurn::user(&format!("acme {n}")));
        umbrella.say(other, NewTurn::user(&format!("umbrella {n}")));
    }
    let fork = acme.conversation(parent).fork(5).wait().unwrap().id();
    acme.say(fork, NewTurn::user("acme in the fork"));
    let whole = examine(&store);
    assert_eq!(whole.findings, []);
    assert_eq!((whole.conversations, whole.events), (3, 7 + 7 + 2), "what a fork inherits counts once");
    drop((acme, umbrella, store));
    sql(
        &stage,
        "UPDATE events SET body = replace(body, 'acme', 'acne') WHERE seq IN (3, 5) OR body LIKE '%in the fork%';
         UPDATE events SET occurred_at = 7 WHERE seq = 6 AND body LIKE '%umbrella%';
         UPDATE events SET hash = zeroblob(32) WHERE seq = 3 AND body LIKE '%umbrella%';",
    );
    let store = stage.open_read_only();
    let found = examine(&store);
    assert_eq!((found.conversations, found.events), (3, 16));
    let mut named: Vec<String> = found
        .findings
        .iter()
        .map(|finding| {
            let tenant = finding.tenant.as_ref().unwrap();
            let seq = finding.problem.split(" (").next().unwrap();
            let part = if finding.problem.contains("its body") { "body" } else { "envelope" };
            format!("{tenant} {} {seq} {part}", finding.conversation.unwrap())
        })
        .collect();
    named.sort();
    let mut expected = vec![
        format!("acme {parent} seq 3 body"),
        format!("acme {parent} seq 5 body"),
        format!("acme {fork} seq 7 body"),
        format!("umbrella {other} seq 3 envelope"),
        format!("umbrella {other} seq 6 envelope"),
    ];
    expected.sort();
    assert_eq!(named, expected);
    // A tenant is told of its own only.
    let own = store.tenant("umbrella").unwrap().doctor(&mut |_| {}).unwrap();
    assert_eq!((own.conversations, own.findings.len()), (1, 2));
}

/// One nonsensical cell kept the doctor from saying anything but that the file is to be restored.
#[test]
fn a_cell_that_cannot_be_read_is_named_with_its_column_and_rebuilding_mends_it() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let (id, other) = (scope.begin(), scope.begin());
    scope.say(id, NewTurn::user("before"));
    drop((scope, store));
    for cells in ["metadata = 'nonsense', policy = '['", "state = 'asleep', head_hash = x'00'"] {
        sql(&stage, &format!("UPDATE conversation_rows SET {cells} WHERE no = 1"));
        let found = examine(&stage.open_read_only());
        assert_eq!(found.conversations, 2);
        let [finding] = &found.findings[..] else { panic!("{found:#?}") };
        assert_eq!((finding.tenant.as_ref().unwrap().as_str(), finding.conversation), ("acme", Some(id)));
        for column in cells.split(", ") {
            let column = column.split(' ').next().unwrap();
            assert!(finding.problem.contains(column), "{finding:?}");
        }
        assert!(finding.advice.contains("doctor --rebuild"), "{finding:?}");
        // Whoever only reads is told the same; the other conversation can be read.
        let reading = stage.open_read_only().tenant("acme").unwrap();
        refused(reading.conversation(id).get(), "store.row", "`everturn doctor --rebuild` makes it again");
        reading.conversation(other).get().unwrap();
        let store = stage.open();
        assert_eq!(store.rebuild().unwrap(), []);
        assert_eq!(examine(&store).findings, []);
    }
    // A write needs no rebuilding.
    sql(&stage, "UPDATE conversation_rows SET metadata = 'nonsense'");
    let scope = stage.open().tenant("acme").unwrap();
    scope.say(id, NewTurn::user("after"));
    assert_eq!(scope.turns(id).len(), 2);
    assert_eq!(scope.list(Default::default()).unwrap().data.len(), 2);
}

#[test]
fn what_is_given_up_is_said() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    for n in 0..6 {
        scope.say(id, NewTurn::user(&format!("turn {n}")));
    }
    drop((scope, store));
    sql(&stage, "PRAGMA foreign_keys = OFF; DELETE FROM events WHERE seq IN (3, 6, 7)");
    let head = format!("{}-head", stage.path().display());
    std::fs::remove_file(head).unwrap();
    let store = stage.open();
    refused(store.rebuild(), "rebuild.loss", "seq 6 to 7 are missing");
    drop(store);
    let store = stage.open_with(Options { accept_loss: true, ..quiet() });
    let lost = store.rebuild().unwrap();
    let texts: Vec<&str> = lost.iter().map(|finding| finding.problem.as_str()).collect();
    assert_eq!(texts, ["seq 3 is missing", "seq 6 to 7 are missing"]);
    assert!(lost.iter().all(|finding| finding.conversation == Some(id)));
}

/// What a process remembers of conversations is stale once another one writes.
#[test]
fn a_process_that_was_overtaken_answers_what_the_store_has_now() {
    let stage = Stage::new();
    let first = stage.open();
    let scope = first.tenant("acme").unwrap();
    let id = scope.begin();
    scope.say(id, NewTurn::user("one"));
    std::fs::remove_file(format!("{}.lock", stage.path().display())).unwrap();
    let second = stage.open();
    let other = second.tenant("acme").unwrap();
    other.say(id, NewTurn::user("two"));
    let lost = scope.conversation(id).append(NewTurn::user("lost"));
    refused(lost.wait(), "store.overtaken", "restart");
    refused(first.ready(), "store.overtaken", "restart");
    second.ready().unwrap();
    for n in 4..6 {
        assert_eq!(scope.conversation(id).get().unwrap().head, other.conversation(id).get().unwrap().head);
        assert_eq!(scope.turns(id).len(), n - 2);
        other.say(id, NewTurn::user("and on"));
    }
}

/// A place that names an event of an earlier one gave the same page again and again, and the doctor never ended.
#[test]
fn a_place_that_names_an_earlier_event_is_named() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    (0..3).for_each(|n| drop(scope.say(id, NewTurn::user(&format!("number {n}")))));
    drop((scope, store));
    for wrong in
        ["INSERT INTO places VALUES (1, 77, 3)", "UPDATE places SET seq = 9223372036854775807 WHERE seq = 4"]
    {
        sql(&stage, wrong);
        let store = stage.open_read_only();
        let found = examine(&store).findings;
        assert!(found.iter().any(|finding| finding.conversation == Some(id)), "{wrong}: {found:?}");
    }
}

/// A changed fold passed unnoticed, since whoever needs it makes it again.
#[test]
fn a_changed_fold_is_named_and_rebuilding_drops_it() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    for _ in 0..11 {
        let turns: Vec<_> = (0..100).map(|n| NewTurn::user(&format!("number {n}"))).collect();
        scope.conversation(id).append_all(turns).wait().unwrap();
    }
    let fork = scope.conversation(id).fork(1100).wait().unwrap().id();
    for id in [id, fork] {
        scope.conversation(id).state().read().unwrap();
    }
    assert_eq!(examine(&store).findings, []);
    drop((scope, store));
    let kept: i64 = Connection::open(stage.path())
        .unwrap()
        .query_row("SELECT count(*) FROM folds", [], |row| row.get(0))
        .unwrap();
    assert_eq!(kept, 1);
    for changed in ["replace(fold, 'through_seq', 'trough_seq')", "'{}'", "replace(fold, '1', '2')"] {
        sql(&stage, &format!("UPDATE folds SET fold = {changed}"));
        let found = examine(&stage.open_read_only()).findings;
        let [finding] = &found[..] else { panic!("{changed}: {found:#?}") };
        assert_eq!(finding.conversation, Some(id));
        assert!(finding.problem.contains("fold") && finding.advice.contains("--rebuild"), "{finding:?}");
    }
    let store = stage.open();
    store.rebuild().unwrap();
    assert_eq!(examine(&store).findings, []);
}

/// Every body that is gone without a record is named, not only the first one, and also beside other damage.
#[test]
fn every_body_that_is_gone_without_a_record_is_named() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turns: Vec<_> = (0..6).map(|n| scope.say(id, NewTurn::user(&format!("number {n}")))).collect();
    scope.conversation(id).erase(turns[5].id, None, "asked").wait().unwrap();
    let fork = scope.conversation(id).fork(5).wait().unwrap().id();
    scope.say(fork, NewTurn::user("in the fork"));
    drop((scope, store));
    sql(
        &stage,
        "UPDATE events SET salt = zeroblob(16), body = replace(hex(zeroblob(length(body) / 2)), '0', ' ')
             WHERE seq IN (2, 4) AND conversation = 1 OR body LIKE '%in the fork%';
         UPDATE events SET body = replace(body, 'number', 'lumber') WHERE seq = 3;",
    );
    let found = examine(&stage.open_read_only()).findings;
    let mut named: Vec<_> =
        found.iter().map(|f| (f.conversation, f.problem.contains("no erasure"))).collect();
    named.sort();
    let mut expected = vec![(Some(id), false), (Some(id), true), (Some(id), true), (Some(fork), true)];
    expected.sort();
    assert_eq!(named, expected, "{found:#?}");
}
