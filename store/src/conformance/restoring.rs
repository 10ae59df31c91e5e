//! Restoring from a file, and rebuilding from the log.

use super::*;
use crate::{ConversationQuery, TurnQuery};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head, next_event};
use everturn_core::conversation::{Conversation, Lifecycle, Parent, Settings, Tombstone};
use everturn_core::event::{Event, kind};
use everturn_core::id::{Key, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::Turn;

/// A log of some length as exported by another store, made in `globex` and read from there.
fn exported(store: &dyn Backend, m: &Maker, key: &Key) -> Vec<Event> {
    let there = elsewhere(key);
    let (said, open) = (m.say("one"), m.open());
    let (turn, opened) = (turn_of(&said), turn_of(&open));
    let settings = Settings { title: Some(Some("Moved".into())), ..Settings::default() };
    create(store, &there, vec![m.event(kind::CREATED, &settings), said, open, m.say("two")]);
    append(store, &there, vec![m.end(kind::COMMITTED, opened, "streamed")]);
    append(store, &there, vec![m.asset("asset_a", b"a"), m.show("asset_a"), m.supersede(turn, opened)]);
    done(store, m.erase(&there, &[turn]));
    log(store, &there)
}

/// Asserts that a conversation equals its copy in another tenant.
fn same(store: &dyn Backend, one: &Key, two: &Key) {
    assert_eq!(log(store, one), log(store, two));
    assert_eq!(history(store, one), history(store, two));
    assert_eq!(store.assets(one).expect("descriptors"), store.assets(two).expect("descriptors"));
    let a = store.conversation(one).expect("it is there");
    let b = store.conversation(two).expect("it is there");
    assert_eq!(Conversation { tenant: a.tenant.clone(), ..b }, a);
    verify(store, one);
}

/// The same events, hashes and turns; erased bodies stay erased.
pub fn restoring_into_an_empty_store_gives_the_same_chain(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let file = exported(store, &m, &key);
    let restored = done(store, restoration(&key, &file));
    assert_eq!(restored.events, file);
    same(store, &key, &elsewhere(&key));
    assert_eq!(verify(store, &key).erased, 1);
    // An event that came without its body was not erased here.
    let had_body = |key: &Key| store.had_body(key, 2).expect("it can be told");
    assert_eq!((had_body(&elsewhere(&key)), had_body(&key)), (true, false));
    append(store, &key, vec![m.say("goes on here")]);
    verify(store, &key);
    refused(store, restoration(&m.key(), &file), "restore.foreign");
}

/// Restoring can be resumed: existing events are skipped.
pub fn restoring_again_adds_nothing_and_a_longer_file_adds_the_rest(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let file = exported(store, &m, &key);
    for end in [1, 3, 3, 5, file.len(), file.len()] {
        let before = store.conversation(&key).map_or(0, |conversation| conversation.head.seq);
        let restored = done(store, restoration(&key, &file[..end]));
        assert_eq!(restored.events, file[before as usize..end], "only what was missing");
        assert_eq!(restored.conversation.head.seq as usize, end);
        verify(store, &key);
    }
    // A shorter file, or one that begins in the middle, adds nothing.
    assert_eq!(done(store, restoration(&key, &file[..2])).events, []);
    assert_eq!(done(store, restoration(&key, &file[4..])).events, []);
    same(store, &key, &elsewhere(&key));
}

/// Two logs that share an id but not a past are not mixed.
pub fn a_file_that_diverges_is_a_conflict(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let file = exported(store, &m, &key);
    done(store, restoration(&key, &file[..4]));
    append(store, &key, vec![m.say("something else at 5")]);
    let before = log(store, &key);
    let error = refused(store, restoration(&key, &file), "restore.diverged");
    assert!(matches!(error, Error::Conflict(_)) && error.text().contains("seq 5"), "{error:?}");
    assert_eq!(log(store, &key), before);
}

/// A file that was damaged or changed is refused as a whole.
pub fn a_broken_link_is_corrupt(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let file = exported(store, &m, &key);
    let damaged = |damage: &dyn Fn(&mut Vec<Event>)| {
        let mut file = file.clone();
        damage(&mut file);
        file
    };
    let wrong = [
        (damaged(&|f| drop(f.remove(2))), "chain.missing_seq"),
        (damaged(&|f| f.swap(3, 4)), "chain.missing_seq"),
        (damaged(&|f| f[3].prev = Hash([1; 32])), "chain.broken_link"),
        (damaged(&|f| f[3].body.as_mut().expect("not erased").text.push(' ')), "chain.body_mismatch"),
        (damaged(&|f| f[3].actor = Some("eve".into())), "chain.envelope_mismatch"),
        (damaged(&|f| f[3].at = Timestamp(0)), "chain.envelope_mismatch"),
        (file[1..].to_vec(), "chain.missing_seq"),
    ];
    for (events, code) in wrong {
        let error = refused(store, restoration(&key, &events), code);
        assert!(matches!(error, Error::Corrupt(_)));
        assert_eq!(store.conversation(&key).expect_err("nothing was taken").code(), "conversation.absent");
    }
    done(store, restoration(&key, &file));
}

/// A backup restores a deleted conversation, and its tombstone is removed.
pub fn a_deleted_conversation_can_be_restored(store: &dyn Backend) {
    let m = Maker::default();
    let (key, child) = (m.key(), m.key());
    let file = exported(store, &m, &key);
    done(store, restoration(&key, &file));
    done(store, m.fork(&child, &key, 4));
    let inherited = history(store, &child);
    done(store, m.delete(&key));
    assert_eq!(store.tombstones(&key.tenant).expect("a listing").len(), 1);
    // In two steps, which shows that the fork does not depend on it.
    done(store, restoration(&key, &file[..2]));
    assert_eq!(history(store, &child), inherited);
    done(store, restoration(&key, &file));
    same(store, &key, &elsewhere(&key));
    assert_eq!(store.tombstones(&key.tenant).expect("a listing"), []);
    assert_eq!(history(store, &child), inherited);
    assert_eq!(store.turn(&key.tenant, inherited[0].id).expect("it is back").conversation, key.id);
    done(store, m.delete(&key));
    assert_eq!(store.tombstones(&key.tenant).expect("a listing").len(), 1);
    assert_eq!(history(store, &child), inherited);
    verify(store, &child);
}

/// A fork's own events are enough if its parent exists; if not, nothing is invented.
pub fn a_fork_is_restored_onto_its_parent(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let (there, theirs) = (elsewhere(&parent), elsewhere(&child));
    create(store, &there, vec![m.created(), m.say("one"), m.say("two")]);
    done(store, m.fork(&theirs, &there, 2));
    append(store, &theirs, vec![m.say("child")]);
    let own: Vec<Event> =
        log(store, &theirs).into_iter().filter(|event| event.conversation == child.id).collect();
    refused(store, restoration(&child, &own), "conversation.absent");
    done(store, restoration(&parent, &log(store, &there)));
    done(store, restoration(&child, &own));
    same(store, &child, &theirs);
    // It does not fit a parent with another past.
    let stranger = Key { tenant: tenant("initech"), ..parent };
    create(store, &stranger, vec![m.created(), m.say("another past")]);
    refused(store, restoration(&Key { tenant: stranger.tenant, ..child }, &own), "chain.broken_link");
}

/// All answers about a store.
#[derive(PartialEq, Debug)]
struct Answers {
    conversations: Vec<Conversation>,
    tombstones: Vec<Tombstone>,
    open: Vec<(Key, TurnId)>,
    expired: Vec<Key>,
    used: Vec<bool>,
    each: Vec<Contents>,
}

/// All answers about one conversation.
#[derive(PartialEq, Debug)]
struct Contents {
    log: Vec<Event>,
    turns: Vec<Turn>,
    shown: Vec<Turn>,
    assets: Vec<Raw>,
    open_texts: Vec<String>,
}

fn answers(store: &dyn Backend, bytes: &[&[u8]]) -> Answers {
    let acme = tenant("acme");
    let all = ConversationQuery { limit: usize::MAX, ..ConversationQuery::default() };
    let conversations = store.conversations(&acme, &all).expect("a listing");
    let keys = conversations.iter().map(|c| Key { tenant: acme.clone(), id: c.id });
    let mut open = store.open_turns().expect("a listing");
    open.sort();
    let each = keys
        .map(|key| {
            let shown = TurnQuery { limit: usize::MAX, descending: true, ..TurnQuery::default() };
            let turns = history(store, &key);
            let open_texts =
                turns.iter().map(|turn| store.open_text(&key, turn.id).expect("a text")).collect();
            let shown = store.turns(&key, &shown).expect("a page");
            let assets = store.assets(&key).expect("descriptors");
            Contents { log: log(store, &key), turns, shown, assets, open_texts }
        })
        .collect();
    let mut expired = store.expired(Timestamp(i64::MAX), 100).expect("a listing");
    expired.sort();
    let used = bytes.iter().map(|bytes| store.asset_in_use(&acme, Hash::of(bytes)).expect("an answer"));
    Answers {
        tombstones: store.tombstones(&acme).expect("a listing"),
        open,
        expired,
        used: used.collect(),
        conversations,
        each,
    }
}

/// Derived rows can be dropped and rebuilt with the same answers.
pub fn rebuilding_gives_the_same_answers(store: &dyn Backend) {
    let m = Maker::default();
    let (root, child, grandchild, gone, plain) = (m.key(), m.key(), m.key(), m.key(), m.key());
    let bytes: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let (one, two, open, aborted, never) = (m.say("one"), m.say("two"), m.open(), m.open(), m.open());
    let [first, second, opened, given_up, left_open] = [&one, &two, &open, &aborted, &never].map(turn_of);
    create(store, &root, vec![m.created(), one, two, open, m.asset("asset_a", b"a"), m.show("asset_a")]);
    append(store, &root, vec![m.supersede(first, second), aborted, m.end(kind::ABORTED, given_up, "no")]);
    done(store, m.fork(&child, &root, 5));
    append(store, &root, vec![m.end(kind::COMMITTED, opened, "yes"), never]);
    done(store, chunk(&root, left_open, 0, "still coming"));
    let better = m.say("two, better");
    let by = turn_of(&better);
    append(
        store,
        &child,
        vec![better, m.supersede(second, by), m.draft("x.y", "[]"), m.asset("asset_b", b"b")],
    );
    let settings = Settings { title: Some(Some("Fork".into())), ttl: Some(Some(900)), ..Settings::default() };
    append(store, &child, vec![m.update(settings), m.show("asset_b"), m.say("more")]);
    done(store, m.fork(&grandchild, &child, 4));
    append(store, &grandchild, vec![m.asset("asset_c", b"c"), m.show("asset_c"), m.supersede(second, first)]);
    let shown = history(store, &grandchild).last().expect("it has turns").id;
    done(store, m.erase(&grandchild, &[shown]));
    done(store, m.erase(&root, &[opened]));
    create(store, &gone, vec![m.created(), m.asset("asset_d", b"d"), m.say("gone")]);
    done(store, m.fork(&m.key(), &gone, 3));
    done(store, m.delete(&gone));
    create(store, &plain, vec![m.created(), m.say("plain"), m.state(Lifecycle::Closed)]);
    done(store, m.delete(&root));

    let before = answers(store, &bytes);
    assert_eq!(before.used, [true, true, false, true]);
    assert_eq!(store.check().expect("a check"), Vec::new(), "every derived row is what the log says");
    store.rebuild().expect("it can be rebuilt");
    assert_eq!(answers(store, &bytes), before);
    // It can be continued.
    append(store, &child, vec![m.say("after")]);
    verify(store, &child);
    assert_eq!(store.check().expect("a check"), Vec::new());
}

/// Every turn has a unique id, even in a hand-made file.
pub fn a_file_cannot_say_a_turn_twice(store: &dyn Backend) {
    let m = Maker::default();
    let (source, key) = (m.key(), m.key());
    let said = m.say("once");
    let again = said.clone();
    let events = [m.created(), said, again].into_iter().fold(Vec::new(), |mut events: Vec<Event>, draft| {
        let head =
            events.last().map_or(Head::genesis(key.id), |last| Head { seq: last.seq, hash: last.hash });
        events.push(next_event(key.id, head, draft));
        events
    });
    let error = refused(store, restoration(&key, &events), "restore.turn_twice");
    assert!(error.text().contains("seq 3"), "{error}");
    assert!(store.conversation(&key).is_err() && store.conversation(&source).is_err());
}

/// Only `conversation.forked`, as the first event, makes a fork. A parent in later settings has no effect.
pub fn a_made_up_parent_is_no_parent(store: &dyn Backend) {
    let m = Maker::default();
    let (secret, key) = (m.key(), m.key());
    create(store, &secret, vec![m.created(), m.say("not yours")]);
    let parent = Parent { conversation: secret.id, at_seq: 2 };
    let settings = Settings { parent: Some(parent), ..Settings::default() };
    create(store, &key, vec![m.event(kind::CREATED, &settings), m.update(settings.clone())]);
    assert_eq!(store.conversation(&key).expect("it is there").parent, None);
    assert_eq!(log(store, &key).len(), 2);
    store.rebuild().expect("it can be rebuilt");
    assert_eq!(store.conversation(&key).expect("it is there").parent, None);
}

/// Settling changes no answer, whenever it happens.
pub fn settling_changes_no_answer(store: &dyn Backend) {
    let m = Maker::default();
    let (one, two) = (m.key(), m.key());
    create(store, &one, vec![m.created()]);
    create(store, &two, vec![m.created()]);
    let mut last = None;
    for n in 0..20 {
        let said = m.say(&format!("turn {n}"));
        last = Some(turn_of(&said));
        append(store, if n % 3 == 0 { &two } else { &one }, vec![said]);
    }
    let last = last.expect("something was said");
    let answers = || {
        let of = |key: &Key| {
            let page = |before, descending| {
                let query = TurnQuery { before, descending, limit: 4, ..TurnQuery::default() };
                store.turns(key, &query).expect("a page")
            };
            let events = store.events(key, 2, 5).expect("a page");
            (
                store.conversation(key).expect("it is there"),
                log(store, key),
                history(store, key),
                events,
                page(None, true),
                page(Some(6), false),
            )
        };
        (
            of(&one),
            of(&two),
            store.turn(&one.tenant, last).expect("it was said"),
            store.turn_in(&one, last).is_ok(),
        )
    };
    let before = answers();
    store.settle().expect("it can be settled");
    assert_eq!(answers(), before);
    store.settle().expect("there is nothing left to do");
    append(store, &one, vec![m.say("more")]);
    assert_eq!(log(store, &one).len() as u64, store.conversation(&one).expect("it is there").head.seq);
    verify(store, &one);
}
