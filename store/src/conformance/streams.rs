//! Turns that arrive in chunks.

use super::*;
use crate::TurnQuery;
use everturn_core::event::kind;
use everturn_core::id::{Key, TurnId};
use everturn_core::turn::{Status, Successor};

/// A conversation with an open turn that has some text.
fn opened(store: &dyn Backend, m: &Maker) -> (Key, TurnId) {
    let key = m.key();
    let open = m.open();
    let turn = turn_of(&open);
    create(store, &key, vec![m.created(), m.say("tell me"), open]);
    done(store, chunk(&key, turn, 0, "Once ünder "));
    done(store, chunk(&key, turn, 12, "a time"));
    (key, turn)
}

/// Chunks are durable without being events; the commit carries the content, and the chunks are removed.
pub fn an_open_turn_collects_text_until_it_is_committed(store: &dyn Backend) {
    let m = Maker::default();
    let (key, turn) = opened(store, &m);
    let pending = store.turn_in(&key, turn).expect("it was opened");
    assert_eq!((pending.status, &pending.message, pending.seq), (Status::Pending, &None, 3));
    assert_eq!(store.open_text(&key, turn).expect("it is open"), "Once ünder a time");
    assert_eq!(verify(store, &key).events, 3, "a chunk is no event");
    append(store, &key, vec![m.say("meanwhile")]);
    let committed = append(store, &key, vec![m.end(kind::COMMITTED, turn, "Once upon a time")]);
    assert_eq!(committed.conversation.turns, 3);
    assert_eq!(store.open_text(&key, turn).expect("it is there"), "");
    let turns = history(store, &key);
    let said: Vec<(u64, Status)> = turns.iter().map(|turn| (turn.seq, turn.status)).collect();
    assert_eq!(said, [(2, Status::Complete), (3, Status::Complete), (4, Status::Complete)]);
    assert_eq!(texts(store, &key), ["tell me", "Once upon a time", "meanwhile"]);
    assert_eq!(store.turn(&key.tenant, turn).expect("it was said"), turns[1]);
    // A turn may be opened and ended in one request.
    let open = m.open();
    let quick = turn_of(&open);
    append(store, &key, vec![open, m.end(kind::COMMITTED, quick, "quick")]);
    assert_eq!(store.turn_in(&key, quick).expect("it was said").text(|_| None), "quick");
    assert_eq!(store.open_turns().expect("a listing"), []);
}

/// An abort keeps the text and supersedes the turn.
pub fn an_aborted_turn_keeps_what_was_said_and_is_superseded_by_the_abort(store: &dyn Backend) {
    let m = Maker::default();
    let (key, turn) = opened(store, &m);
    let abort = append(store, &key, vec![m.end(kind::ABORTED, turn, "Once ünder a")]).events[0].id;
    let aborted = store.turn_in(&key, turn).expect("it was said");
    assert_eq!((aborted.status, aborted.text(|_| None)), (Status::Aborted, "Once ünder a".to_string()));
    assert_eq!(aborted.superseded_by, Some(Successor::Event(abort)));
    assert_eq!(store.open_text(&key, turn).expect("it is there"), "");
    let shown = store.turns(&key, &TurnQuery { limit: 9, ..TurnQuery::default() }).expect("a page");
    assert_eq!(shown.len(), 1, "history without superseded turns has only the question");
}

/// A turn interrupted by a crash is still part of the conversation.
pub fn an_interrupted_turn_stays_in_the_history(store: &dyn Backend) {
    let m = Maker::default();
    let (key, turn) = opened(store, &m);
    append(store, &key, vec![m.end(kind::INTERRUPTED, turn, "Once ünder a time")]);
    let shown = store.turns(&key, &TurnQuery { limit: 9, ..TurnQuery::default() }).expect("a page");
    assert_eq!((shown[1].status, shown[1].superseded_by), (Status::Interrupted, None));
    assert_eq!(shown[1].text(|_| None), "Once ünder a time");
    assert_eq!(store.open_text(&key, turn).expect("it is there"), "");
}

/// An ended turn accepts neither chunks nor another end.
pub fn a_turn_ends_once(store: &dyn Backend) {
    let m = Maker::default();
    for end in [kind::COMMITTED, kind::ABORTED, kind::INTERRUPTED] {
        let (key, turn) = opened(store, &m);
        append(store, &key, vec![m.end(end, turn, "the end")]);
        for again in [kind::COMMITTED, kind::ABORTED, kind::INTERRUPTED] {
            refused(store, addition(&key, vec![m.end(again, turn, "another end")]), "turn.not_open");
        }
        refused(store, chunk(&key, turn, 18, "late"), "turn.not_open");
        assert_eq!(texts(store, &key), ["tell me", "the end"]);
        assert_eq!(store.open_text(&key, turn).expect("it is there"), "");
    }
    let (key, turn) = opened(store, &m);
    let twice = vec![m.end(kind::COMMITTED, turn, "one"), m.end(kind::COMMITTED, turn, "two")];
    refused(store, addition(&key, twice), "turn.not_open");
    assert_eq!(store.open_text(&key, turn).expect("it is open"), "Once ünder a time");
}

/// A client that reconnects may send a chunk again.
pub fn a_repeated_chunk_changes_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let (key, turn) = opened(store, &m);
    done(store, chunk(&key, turn, 12, "a time"));
    done(store, chunk(&key, turn, 0, "Once ünder "));
    assert_eq!(store.open_text(&key, turn).expect("it is open"), "Once ünder a time");
}

/// After a crash the engine finds every open stream.
pub fn open_turns_are_listed_over_all_tenants(store: &dyn Backend) {
    let m = Maker::default();
    let (one, first) = opened(store, &m);
    let (two, second) = opened(store, &m);
    let theirs = elsewhere(&m.key());
    let open = m.open();
    let third = turn_of(&open);
    create(store, &theirs, vec![m.created(), open]);
    let listed = || {
        let mut open = store.open_turns().expect("a listing");
        open.sort();
        open
    };
    let mut expected = vec![(one.clone(), first), (two.clone(), second), (theirs.clone(), third)];
    expected.sort();
    assert_eq!(listed(), expected);
    append(store, &one, vec![m.end(kind::COMMITTED, first, "done")]);
    done(store, m.delete(&two));
    assert_eq!(listed(), [(theirs, third)]);
}
