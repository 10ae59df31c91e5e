//! Erasing content and deleting conversations.

use super::*;
use crate::{ConversationQuery, TurnQuery};
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::event::kind;
use everturn_core::id::TurnId;
use everturn_core::time::Timestamp;
use everturn_core::write::{Action, ErasedBody, Write};

/// Erasing a turn removes its body and salt, records the actor, and leaves a chain that verifies.
pub fn erasing_keeps_the_envelope_and_records_it(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (one, open) = (m.say("regret"), m.open());
    let (said, streamed) = (turn_of(&one), turn_of(&open));
    create(store, &key, vec![m.created(), one, open, m.say("kept")]);
    done(store, chunk(&key, streamed, 0, "more reg"));
    append(store, &key, vec![m.end(kind::COMMITTED, streamed, "more regret")]);
    let before = log(store, &key);
    let committed = done(store, m.erase(&key, &[said, streamed]));
    assert_eq!(committed.events.len(), 1);
    let after = log(store, &key);
    for (old, new) in before.iter().zip(&after) {
        let erased = [2, 3, 5].contains(&old.seq);
        assert_eq!(new.body.is_none(), erased, "seq {}", old.seq);
        assert_eq!((new.hash, new.body_hash, new.prev, new.at), (old.hash, old.body_hash, old.prev, old.at));
        assert_eq!((&new.actor, &new.kind, new.turn), (&old.actor, &old.kind, old.turn));
    }
    let record = after.last().expect("the erasure is an event");
    assert_eq!((record.kind.as_str(), record.actor.as_deref()), (kind::ERASED, Some("officer")));
    assert_eq!(record.read::<ErasedBody>().expect("it says what went").turns, [said, streamed]);
    let report = verify(store, &key);
    assert_eq!((report.events, report.erased), (6, 3));
    let turns = history(store, &key);
    assert_eq!(turns.iter().map(|turn| turn.erased).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(texts(store, &key), ["", "", "kept"]);
    // Repeating it changes nothing but the record.
    done(store, m.erase(&key, &[said]));
    assert_eq!(verify(store, &key).erased, 3);
    append(store, &key, vec![m.say("and on")]);
    verify(store, &key);
}

/// All or nothing: with one unknown turn, no other is touched.
pub fn erasing_an_absent_turn_erases_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let one = m.say("stays");
    let said = turn_of(&one);
    create(store, &key, vec![m.created(), one]);
    let absent = TurnId(m.draft("x", "{}").id.0);
    refused(store, m.erase(&key, &[said, absent]), "turn.absent");
    assert_eq!((verify(store, &key).events, texts(store, &key)), (2, vec!["stays".to_string()]));
    done(store, m.delete(&key));
    refused(store, m.erase(&key, &[absent]), "conversation.absent");
}

/// A fork and its parent may both have, say, a seq 5. Erasing the fork's affects only the fork; erasing a
/// shared one affects both, because there is only one copy.
pub fn erasing_in_a_fork_leaves_the_parents_later_turns_alone(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let shared = m.say("shared");
    let both = turn_of(&shared);
    create(store, &parent, vec![m.created(), shared]);
    done(store, m.fork(&child, &parent, 2));
    append(store, &parent, vec![m.asset("asset_p", b"theirs"), m.show("asset_p"), m.say("parent at 5")]);
    let (own, last) = (m.show("asset_c"), m.say("child at 6"));
    let erased = [turn_of(&own), turn_of(&last)];
    // In both conversations a turn at 4 or 5 refers to an asset.
    append(store, &child, vec![own, m.asset("asset_c", b"ours"), last]);
    done(store, m.erase(&child, &erased));
    assert_eq!(verify(store, &child).erased, 3);
    assert_eq!(verify(store, &parent).erased, 0);
    assert_eq!(texts(store, &parent), ["shared", "<image:asset_p>", "parent at 5"]);
    assert_eq!(store.assets(&parent).expect("descriptors").len(), 1);
    assert_eq!(store.assets(&child).expect("descriptors").len(), 0);
    done(store, m.erase(&child, &[both]));
    assert_eq!((texts(store, &parent)[0].as_str(), verify(store, &parent).erased), ("", 1));
    // The parent's later turn cannot be addressed from the child.
    let later = history(store, &parent)[2].id;
    refused(store, m.erase(&child, &[later]), "turn.absent");
}

/// An asset lives as long as a turn refers to it. One that no turn ever referred to is not affected by erasing
/// turns.
pub fn erasing_releases_assets_that_only_the_erased_turns_showed(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let shows = [m.show("asset_a"), m.show("asset_b"), m.show("asset_b")];
    let [a, b, again] = [0, 1, 2].map(|n: usize| turn_of(&shows[n]));
    let added =
        vec![m.created(), m.asset("asset_a", b"a"), m.asset("asset_b", b"b"), m.asset("asset_c", b"c")];
    create(store, &key, [added, shows.to_vec()].concat());
    let descriptors = |store: &dyn Backend| {
        let found = store.assets(&key).expect("descriptors");
        found.iter().map(|raw| raw.get()[34..41].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(descriptors(store), ["asset_a", "asset_b", "asset_c"]);
    assert_eq!(done(store, m.erase(&key, &[a, b])).released, [Hash::of(b"a")]);
    assert_eq!(descriptors(store), ["asset_b", "asset_c"]);
    let used = |bytes: &[u8]| store.asset_in_use(&key.tenant, Hash::of(bytes)).expect("an answer");
    assert_eq!((used(b"a"), used(b"b"), used(b"c")), (false, true, true));
    let report = verify(store, &key);
    assert_eq!(report.erased, 3, "two turns and the descriptor");
    assert_eq!(done(store, m.erase(&key, &[again])).released, [Hash::of(b"b")]);
    assert_eq!(descriptors(store), ["asset_c"]);
}

/// The same bytes may have two descriptors, also in two conversations: they are released with the last one.
pub fn bytes_that_another_asset_shares_are_not_released(store: &dyn Backend) {
    let m = Maker::default();
    let (one, two) = (m.key(), m.key());
    let shows = [m.show("asset_a"), m.show("asset_b")];
    let [a, b] = [0, 1].map(|n: usize| turn_of(&shows[n]));
    let added = vec![m.created(), m.asset("asset_a", b"same"), m.asset("asset_b", b"same")];
    create(store, &one, [added, shows.to_vec()].concat());
    create(store, &two, vec![m.created(), m.asset("asset_c", b"same")]);
    // Another tenant's bytes are a separate file.
    create(store, &elsewhere(&two), vec![m.created(), m.asset("asset_d", b"same")]);
    assert_eq!(done(store, m.erase(&one, &[a])).released, []);
    assert_eq!(done(store, m.erase(&one, &[b])).released, []);
    assert_eq!(done(store, m.delete(&one)).released, []);
    assert_eq!(done(store, m.delete(&two)).released, [Hash::of(b"same")]);
}

/// A fork may refer to an asset that its parent added.
pub fn an_asset_that_a_fork_still_shows_is_not_released(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let (theirs, ours) = (m.show("asset_a"), m.show("asset_a"));
    let turn = turn_of(&theirs);
    create(store, &parent, vec![m.created(), m.asset("asset_a", b"a"), theirs]);
    done(store, m.fork(&child, &parent, 3));
    append(store, &child, vec![ours]);
    assert_eq!(done(store, m.erase(&parent, &[turn])).released, []);
    assert_eq!(store.assets(&child).expect("descriptors").len(), 1);
    assert!(store.asset_in_use(&parent.tenant, Hash::of(b"a")).expect("an answer"));
}

/// After a deletion nothing can be read, and one tombstone records id, head, time and reason.
pub fn deleting_leaves_one_tombstone(store: &dyn Backend) {
    let m = Maker::default();
    let (key, stays) = (m.key(), m.key());
    let (said, open) = (m.say("gone"), m.open());
    let (turn, opened) = (turn_of(&said), turn_of(&open));
    create(store, &stays, vec![m.created(), m.say("stays")]);
    let head = create(store, &key, vec![m.created(), said, open]).conversation.head;
    done(store, chunk(&key, opened, 0, "gone too"));
    let at = m.now();
    let delete = Write {
        key: key.clone(),
        action: Action::Delete { at, reason: "expired".into(), only_expired: false },
    };
    let deleted = done(store, delete.clone());
    assert_eq!((deleted.conversation.head, deleted.events.len()), (head, 0));
    let tombstones = store.tombstones(&key.tenant).expect("a listing");
    assert_eq!(tombstones.len(), 1);
    let stone = &tombstones[0];
    assert_eq!((stone.id, stone.head, stone.deleted), (key.id, head, at));
    assert_eq!(stone.reason, "expired");

    let all = TurnQuery { limit: 9, ..TurnQuery::default() };
    let answers = [
        store.conversation(&key).map(drop),
        store.events(&key, 0, 9).map(drop),
        store.turns(&key, &all).map(drop),
        store.turn_in(&key, turn).map(drop),
        store.open_text(&key, opened).map(drop),
        store.assets(&key).map(drop),
        commit(store, addition(&key, vec![m.say("more")])).map(drop),
        commit(store, chunk(&key, opened, 8, "more")).map(drop),
        commit(store, delete).map(drop),
    ];
    for answer in answers {
        assert_eq!(answer.expect_err("it is deleted").code(), "conversation.absent");
    }
    assert_eq!(store.turn(&key.tenant, turn).expect_err("it is deleted").code(), "turn.absent");
    assert_eq!(store.open_turns().expect("a listing"), []);
    let listed = ConversationQuery { limit: 9, ..ConversationQuery::default() };
    assert_eq!(store.conversations(&key.tenant, &listed).expect("a listing").len(), 1);
    assert_eq!(texts(store, &stays), ["stays"]);
    store.rebuild().expect("it can be rebuilt");
    assert!(store.conversation(&key).is_err(), "what was deleted stays deleted");
    assert_eq!(store.tombstones(&key.tenant).expect("a listing"), tombstones);
}

/// Deleting returns the assets whose bytes can be removed.
pub fn deleting_releases_assets(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(
        store,
        &key,
        vec![m.created(), m.asset("asset_a", b"a"), m.show("asset_a"), m.asset("asset_b", b"b")],
    );
    let mut released = done(store, m.delete(&key)).released;
    released.sort();
    let mut expected = [Hash::of(b"a"), Hash::of(b"b")];
    expected.sort();
    assert_eq!(released, expected);
    assert!(!store.asset_in_use(&key.tenant, Hash::of(b"a")).expect("an answer"));
}

/// Deleting removes the idempotency keys of its own requests only.
pub fn deleting_in_one_tenant_leaves_the_keys_of_another(store: &dyn Backend) {
    let m = Maker::default();
    let ours = m.key();
    let theirs = elsewhere(&ours);
    let request = |key: &everturn_core::id::Key| Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say("one")],
            expected_seq: None,
            prepared_for: None,
            idempotency: once("k", "one"),
        },
    };
    for key in [&ours, &theirs] {
        create(store, key, vec![m.created()]);
        done(store, request(key));
    }
    done(store, m.delete(&ours));
    assert!(done(store, request(&theirs)).repeated);
    create(store, &ours, vec![m.created()]);
    assert!(!done(store, request(&ours)).repeated, "a new conversation has not heard of it");
}

/// An open turn cannot be erased; once ended, it can.
pub fn an_open_turn_is_not_erased(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let open = m.open();
    let turn = turn_of(&open);
    create(store, &key, vec![m.created(), open]);
    let error = refused(store, m.erase(&key, &[turn]), "turn.open");
    assert!(error.text().contains("still open; commit or abort it first"), "{error}");
    assert_eq!(log(store, &key).len(), 2);
}

/// A conversation that was found due but used since is kept.
pub fn what_is_in_use_again_is_not_deleted_as_expired(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let settings = Settings { ttl: Some(Some(10)), ..Settings::default() };
    create(store, &key, vec![m.event(kind::CREATED, &settings)]);
    let due = store.conversation(&key).expect("it is there").expires().expect("it has an end");
    let delete = |at| Write {
        key: key.clone(),
        action: Action::Delete { at, reason: "expired".into(), only_expired: true },
    };
    let mut late = m.say("still here");
    late.at = Timestamp(due.0 - 1);
    append(store, &key, vec![late]);
    refused(store, delete(due), "delete.not_due");
    assert_eq!(texts(store, &key), ["still here"]);
    // Once its time has passed, it is absent for writers, swept or not.
    let mut too_late = m.say("too late");
    too_late.at = due.plus_s(10);
    refused(store, addition(&key, vec![too_late]), "conversation.absent");
    done(store, delete(due.plus_s(10)));
    assert!(store.conversation(&key).is_err());
}
