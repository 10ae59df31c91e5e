//! The basis of state, compaction and budgets: reads as of a `seq`, cached folds, and the start of the messages
//! view.

use super::*;
use crate::TurnQuery;
use everturn_core::conversation::Settings;
use everturn_core::event::{Draft, kind};
use everturn_core::id::{Key, TurnId};
use everturn_core::write::{Action, EventAddress, Write};
use serde_json::json;

/// Turns can be read as of any `seq`.
pub fn turns_are_read_as_they_stood_then(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (one, two) = (m.say("one"), m.say("two"));
    let (first, second) = (turn_of(&one), turn_of(&two));
    create(store, &key, vec![m.created(), one, m.open()]);
    append(store, &key, vec![two, m.supersede(first, second)]);
    let as_of = |seq| {
        let query = TurnQuery { as_of: Some(seq), limit: 10, ..TurnQuery::default() };
        let turns = store.turns(&key, &query).expect("turns are read");
        turns.into_iter().map(|turn| (turn.seq, turn.superseded_by.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(as_of(1), []);
    assert_eq!(as_of(2), [(2, false)]);
    assert_eq!(as_of(4), [(2, false), (3, false), (4, false)], "it was superseded at 5");
    assert_eq!(as_of(5), [(4, false), (3, false)], "in its place");
}

/// A cached fold is found for its `seq` and every later one, also through a fork; a rebuild drops it.
pub fn kept_folds_are_found_and_are_never_the_only_copy(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.say("one"), m.say("two"), m.say("three")]);
    let raw = |n: u64| raw(&format!("{{\"n\":{n}}}"));
    store.keep_fold(&key, 2, &raw(2)).expect("it is kept");
    store.keep_fold(&key, 4, &raw(4)).expect("it is kept");
    let found = |key: &Key, seq| store.fold(key, seq).expect("folds are read");
    assert_eq!(
        (found(&key, 1), found(&key, 3), found(&key, 9)),
        (None, Some((2, raw(2))), Some((4, raw(4))))
    );
    let fork = m.key();
    done(store, m.fork(&fork, &key, 3));
    assert_eq!(found(&fork, 9), Some((2, raw(2))), "what the parent did later is not the fork's");
    store.keep_fold(&fork, 4, &raw(40)).expect("it is kept");
    assert_eq!((found(&fork, 9), found(&key, 9)), (Some((4, raw(40))), Some((4, raw(4)))));
    assert!(store.fold(&elsewhere(&key), 9).is_err(), "another tenant has no such conversation");
    store.rebuild().expect("it is rebuilt");
    assert_eq!((found(&key, 9), found(&fork, 9)), (None, None));
}

/// Regression: a fork's turns were counted from a fold that was cached before its own turns had rows.
pub fn a_fold_that_is_kept_at_once_miscounts_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork) = (m.key(), m.key());
    create(store, &key, vec![m.created()]);
    (2..9).for_each(|n| drop(append(store, &key, vec![m.say(&format!("at {n}"))])));
    store.keep_fold(&key, 5, &raw("{}")).expect("it is kept");
    done(store, m.fork(&fork, &key, 6));
    assert_eq!(store.conversation(&fork).expect("it is there").turns, 5);
    assert_eq!(store.check().expect("it is checked"), []);
}

/// One asset is found by its id, an inherited one too.
pub fn an_asset_is_found_by_its_id(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.asset("asset_1", b"bytes"), m.asset("asset_2", b"more")]);
    let fork = m.key();
    done(store, m.fork(&fork, &key, 2));
    let has = |key: &Key, id: &str| store.asset(key, id).expect("assets are read").is_some();
    assert!(has(&key, "asset_1") && has(&key, "asset_2") && has(&fork, "asset_1"));
    assert!(!has(&fork, "asset_2") && !has(&key, "asset_3"));
}

/// An asset is found by its id without its conversation: in this tenant, once for each different content, and
/// no longer once the conversation is deleted.
pub fn an_asset_is_found_by_its_id_alone(store: &dyn Backend) {
    let m = Maker::default();
    let (one, two, three) = (m.key(), m.key(), m.key());
    create(store, &one, vec![m.created(), m.asset("asset_1", b"bytes"), m.asset("asset_2", b"more")]);
    create(store, &two, vec![m.created(), m.asset("asset_1", b"bytes"), m.asset("asset_2", b"other")]);
    create(store, &three, vec![m.created(), m.asset("asset_1", b"bytes")]);
    done(store, m.fork(&m.key(), &one, 3));
    create(store, &elsewhere(&one), vec![m.created(), m.asset("asset_3", b"theirs")]);
    let found = |id: &str, limit| {
        let found = store.assets_with_id(&one.tenant, id, limit).expect("assets are read");
        found.into_iter().map(|(id, descriptor)| (id, descriptor.get().to_string())).collect::<Vec<_>>()
    };
    let descriptor = |key: &Key, id: &str| {
        let raw = store.asset(key, id).expect("assets are read").expect("it is there");
        (key.id, raw.get().to_string())
    };
    assert_eq!(found("asset_1", 9), [descriptor(&one, "asset_1")]);
    assert_eq!(found("asset_2", 9), [descriptor(&one, "asset_2"), descriptor(&two, "asset_2")]);
    assert_eq!(found("asset_2", 1), [descriptor(&one, "asset_2")]);
    assert_eq!((found("asset_3", 9), found("asset_9", 9)), (Vec::new(), Vec::new()));
    store.rebuild().expect("it is made again");
    done(store, m.delete(&one));
    assert_eq!(found("asset_1", 9), [descriptor(&two, "asset_1")]);
    assert_eq!(found("asset_2", 9), [descriptor(&two, "asset_2")]);
}

/// Superseded and aborted turns after any `seq` are counted, including inherited ones.
pub fn turns_that_fell_are_counted(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (one, two, open) = (m.say("one"), m.say("two"), m.open());
    let (first, second, streamed) = (turn_of(&one), turn_of(&two), turn_of(&open));
    create(store, &key, vec![m.created(), one, two, open]);
    append(store, &key, vec![m.end(kind::ABORTED, streamed, "sa")]);
    let fell = |key: &Key, seq| store.fallen_after(key, seq).expect("they are counted");
    assert_eq!((fell(&key, 0), fell(&key, 4)), (1, 0));
    let fork = m.key();
    done(store, m.fork(&fork, &key, 5));
    append(store, &key, vec![m.supersede(first, second)]);
    assert_eq!(
        (fell(&key, 0), fell(&key, 2), fell(&fork, 0)),
        (2, 2, 1),
        "after 2, the second is read before"
    );
    append(store, &fork, vec![m.supersede(second, first)]);
    assert_eq!((fell(&key, 0), fell(&fork, 0)), (2, 2));
}

/// An erasure includes the bodies of other events that may repeat the text.
pub fn erasing_takes_the_bodies_of_other_events_along(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let one = m.say("regret");
    let said = turn_of(&one);
    create(store, &key, vec![m.created(), one, m.draft("note", r#"{"it":"said regret"}"#), m.say("kept")]);
    let Write { key: of, action: Action::Erase { turns, draft, .. } } = m.erase(&key, &[said]) else {
        panic!("it erases")
    };
    let events = vec![EventAddress { conversation: key.id, seq: 3 }];
    done(store, Write { key: of, action: Action::Erase { turns, events, summaries: false, draft } });
    let erased: Vec<u64> = log(store, &key).iter().filter(|e| e.body.is_none()).map(|e| e.seq).collect();
    assert_eq!(erased, [2, 3]);
    assert_eq!(verify(store, &key).erased, 2);
}

/// The body of a compaction: its reach, the previous checkpoint, and what it reverts.
pub(super) fn compaction(m: &Maker, through: TurnId, seq: u64, previous: serde_json::Value) -> Draft {
    let summarized = json!({"through": through, "through_seq": seq, "turns_before": 1});
    m.draft(kind::COMPACTION, json!({"previous": previous, "summarized": summarized}).to_string())
}

/// The checkpoint in force moves with compactions and back with a revert; the second of two concurrent
/// compactions is a conflict; all of that is the same after a rebuild.
pub fn of_two_compactions_one_wins_and_one_can_be_taken_back(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (one, two) = (m.say("one"), m.say("two"));
    let (first, second) = (turn_of(&one), turn_of(&two));
    create(store, &key, vec![m.created(), one, two, m.say("three")]);
    let now = || store.conversation(&key).expect("it is there");
    append(store, &key, vec![compaction(&m, first, 2, json!(null))]);
    let winner = now().checkpoint.expect("it is in force");
    assert_eq!((winner.seq, winner.through_seq, now().summarized_through), (5, 2, Some(first)));
    refused(store, addition(&key, vec![compaction(&m, second, 3, json!(null))]), "compaction.stale");
    append(store, &key, vec![compaction(&m, second, 3, json!(winner))]);
    let second = now().checkpoint.expect("it is in force");
    assert_eq!(second.through_seq, 3);
    let back = json!({"previous": second, "reverts": second.event, "restores": winner});
    append(store, &key, vec![m.draft(kind::COMPACTION, back.to_string())]);
    assert_eq!(now().checkpoint, Some(winner));
    let before = now();
    store.rebuild().expect("it is rebuilt");
    assert_eq!(now(), before);
}

/// With the policy `reject`, an append over the budget of turns or events leaves no trace; reaching the limit
/// is allowed, and superseded turns do not count.
pub fn what_goes_over_the_budget_is_refused(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let mut settings = Settings::default();
    settings.policy.insert("budget".into(), raw(r#"{"max_messages":2,"max_events":6,"recovery":"reject"}"#));
    let (one, two) = (m.say("one"), m.say("two"));
    let (first, second) = (turn_of(&one), turn_of(&two));
    create(store, &key, vec![m.event(kind::CREATED, &settings), one, two]);
    let over = |draft: Draft, what: &str| {
        let error = refused(store, addition(&key, vec![draft]), "budget.exceeded");
        assert!(error.text().contains(what), "{error}");
    };
    over(m.say("three"), "max_messages is 2, this would make it 3");
    append(store, &key, vec![m.supersede(first, second)]);
    append(store, &key, vec![m.say("three")]);
    append(store, &key, vec![m.draft("note", "{}")]);
    over(m.draft("note", "{}"), "max_events is 6, this would make it 7");
    assert_eq!(store.conversation(&key).expect("it is there").head.seq, 6);
    // A trim moves the start of the view, and there is room again.
    let trimmed = json!({"trimmed": {"through": second, "through_seq": 3, "turns_before": 2}});
    append(store, &key, vec![m.draft(kind::BUDGET, trimmed.to_string())]);
    append(store, &key, vec![m.say("four")]);
    over(m.say("five"), "max_messages");
}

/// Without the policy `reject`, a budget refuses nothing: the engine makes room.
pub fn a_budget_refuses_nothing_by_default(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let mut settings = Settings::default();
    settings.policy.insert("budget".into(), raw(r#"{"max_messages":2,"max_events":3}"#));
    create(store, &key, vec![m.event(kind::CREATED, &settings), m.say("one"), m.say("two")]);
    append(store, &key, vec![m.say("three")]);
    append(store, &key, vec![m.draft("note", "{}")]);
    assert_eq!(store.conversation(&key).expect("it is there").head.seq, 5);
}
