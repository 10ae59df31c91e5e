//! Isolation of tenants.

use super::*;
use crate::{ConversationQuery, TurnQuery};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Parent;
use everturn_core::id::{Key, TurnId};
use everturn_core::write::{Action, Write};

/// One conversation with a turn, an open turn and an asset.
fn furnished(store: &dyn Backend, m: &Maker) -> (Key, TurnId, TurnId) {
    let key = m.key();
    let (said, open) = (m.say("private"), m.open());
    let (turn, opened) = (turn_of(&said), turn_of(&open));
    create(store, &key, vec![m.created(), m.asset("asset_a", b"bytes"), said, m.show("asset_a"), open]);
    done(store, chunk(&key, opened, 0, "so far"));
    (key, turn, opened)
}

/// The error equals the one for something that does not exist, ids aside.
fn looks_absent(foreign: Error, nowhere: Error, ids: [String; 2]) {
    assert!(matches!(foreign, Error::NotFound(_)), "{foreign:?}");
    assert_eq!(foreign.code(), nowhere.code());
    assert_eq!(foreign.text().replace(&ids[0], "ID"), nowhere.text().replace(&ids[1], "ID"));
}

/// For every read, another tenant's data looks as if it did not exist.
pub fn another_tenant_sees_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let (key, turn, opened) = furnished(store, &m);
    let (foreign, nowhere) = (elsewhere(&key), elsewhere(&m.key()));
    let no_turn = TurnId(m.draft("x", "{}").id.0);
    let ids = || [foreign.id.to_string(), nowhere.id.to_string()];
    let all = TurnQuery { limit: 10, ..TurnQuery::default() };
    macro_rules! same_for {
        ($($read:expr),* $(,)?) => {$(
            let read = $read;
            looks_absent(
                read(&foreign, turn).map(drop).expect_err("not theirs"),
                read(&nowhere, no_turn).map(drop).expect_err("nowhere"),
                ids(),
            );
        )*};
    }
    same_for!(
        |key: &Key, _| store.conversation(key),
        |key: &Key, _| store.events(key, 0, 10),
        |key: &Key, _| store.turns(key, &all),
        |key: &Key, turn| store.turn_in(key, turn),
        |key: &Key, _| store.open_text(key, opened),
        |key: &Key, _| store.assets(key),
    );
    let them = &foreign.tenant;
    looks_absent(
        store.turn(them, turn).expect_err("not theirs"),
        store.turn(them, no_turn).expect_err("nowhere"),
        [turn.to_string(), no_turn.to_string()],
    );
    let query = ConversationQuery { limit: 10, ..ConversationQuery::default() };
    assert!(store.conversations(them, &query).expect("a listing").is_empty());
    assert!(store.starting_with(them, "", 10).expect("a listing").is_empty());
    assert!(!store.asset_in_use(them, Hash::of(b"bytes")).expect("an answer"));
    assert!(store.asset_in_use(&key.tenant, Hash::of(b"bytes")).expect("an answer"));
    done(store, m.delete(&key));
    assert!(store.tombstones(them).expect("a listing").is_empty());
}

/// Every write fails as for a conversation that does not exist, and changes nothing.
pub fn another_tenant_can_change_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let (key, turn, opened) = furnished(store, &m);
    let before = (store.conversation(&key).expect("it is there"), log(store, &key), history(store, &key));
    let (foreign, nowhere) = (elsewhere(&key), elsewhere(&m.key()));
    let fork_of = |parent: &Key| {
        let child = elsewhere(&m.key());
        let action = Action::Create {
            drafts: vec![m.forked(parent, 1)],
            parent: Some(Parent { conversation: parent.id, at_seq: 1 }),
            idempotency: None,
        };
        Write { key: child, action }
    };
    let writes = |key: &Key| {
        [
            addition(key, vec![m.say("intruding")]),
            chunk(key, opened, 6, "intruding"),
            m.erase(key, &[turn]),
            m.delete(key),
            fork_of(key),
        ]
    };
    for (theirs, absent) in writes(&foreign).into_iter().zip(writes(&nowhere)) {
        looks_absent(
            commit(store, theirs).expect_err("not theirs"),
            commit(store, absent).expect_err("nowhere"),
            [foreign.id.to_string(), nowhere.id.to_string()],
        );
    }
    // A turn of another tenant is not a turn of this one.
    let mine = elsewhere(&m.key());
    create(store, &mine, vec![m.created(), m.say("mine")]);
    for write in [m.erase(&mine, &[turn]), chunk(&mine, opened, 6, "intruding")] {
        refused(store, write, "turn.absent");
    }
    let after = (store.conversation(&key).expect("it is there"), log(store, &key), history(store, &key));
    assert_eq!(after, before);
    assert_eq!(store.open_text(&key, opened).expect("it is open"), "so far");
}

/// Maintenance of the whole store finds every tenant.
pub fn every_tenant_is_listed_once(store: &dyn Backend) {
    let m = Maker::default();
    let before = store.tenants().expect("they can be listed");
    let ours = m.key();
    let theirs = elsewhere(&ours);
    for key in [&theirs, &ours, &m.key()] {
        create(store, key, vec![m.created()]);
    }
    // Deleted, restored and deleted again: each deletion leaves a tombstone.
    let events = log(store, &theirs);
    done(store, m.delete(&theirs));
    done(store, restoration(&theirs, &events));
    done(store, m.delete(&theirs));
    let mut expected = [before, vec![ours.tenant, theirs.tenant]].concat();
    expected.sort();
    expected.dedup();
    assert_eq!(store.tenants().expect("they can be listed"), expected);
}

/// A conversation id means nothing without its tenant.
pub fn the_same_id_lives_apart_in_two_tenants(store: &dyn Backend) {
    let m = Maker::default();
    let ours = m.key();
    let theirs = elsewhere(&ours);
    let said = m.say("ours");
    let turn = turn_of(&said);
    create(store, &ours, vec![m.created(), said.clone()]);
    // Even the turn has the same id, as after importing one file twice.
    create(store, &theirs, vec![m.created(), m.say("filler"), said]);
    append(store, &ours, vec![m.say("more of ours")]);
    assert_eq!(texts(store, &ours), ["ours", "more of ours"]);
    assert_eq!(texts(store, &theirs), ["filler", "ours"]);
    assert_eq!(store.turn(&ours.tenant, turn).expect("it is ours").seq, 2);
    assert_eq!(store.turn(&theirs.tenant, turn).expect("it is theirs").seq, 3);
    done(store, m.erase(&ours, &[turn]));
    assert_eq!(verify(store, &theirs).erased, 0);
    done(store, m.delete(&ours));
    assert_eq!(texts(store, &theirs), ["filler", "ours"]);
    assert_eq!(verify(store, &theirs).events, 3);
}
