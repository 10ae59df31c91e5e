//! Forks: conversations that share a past.

use super::*;
use crate::TurnQuery;
use everturn_core::Error;
use everturn_core::event::kind;
use everturn_core::id::{Key, TurnId};
use everturn_core::limits::FORK_DEPTH_MAX;
use everturn_core::turn::{Status, Successor, Turn};

/// A parent with three turns at 2, 3 and 4, and a child forked after the second.
fn family(store: &dyn Backend, m: &Maker) -> (Key, Key, [TurnId; 3]) {
    let (parent, child) = (m.key(), m.key());
    let drafts = [m.say("one"), m.say("two"), m.say("three")];
    let ids = [0, 1, 2].map(|n: usize| turn_of(&drafts[n]));
    create(store, &parent, [vec![m.created()], drafts.to_vec()].concat());
    done(store, m.fork(&child, &parent, 3));
    (parent, child, ids)
}

/// Turns as another conversation would show them.
fn moved(turns: &[Turn], to: &Key) -> Vec<Turn> {
    turns.iter().cloned().map(|turn| Turn { conversation: to.id, ..turn }).collect()
}

/// A fork reads like its parent up to the fork point: the same events under the parent's id, and one chain.
pub fn a_fork_inherits_history_without_copying_it(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child, ids) = family(store, &m);
    let conversation = store.conversation(&child).expect("it was forked");
    let left = conversation.parent.expect("it has a parent");
    assert_eq!((left.conversation, left.at_seq), (parent.id, 3));
    assert_eq!((conversation.turns, conversation.head.seq), (2, 4));
    assert_eq!(history(store, &child), moved(&history(store, &parent)[..2], &child));
    let (theirs, own) = (log(store, &parent), log(store, &child));
    assert_eq!(own[..3], theirs[..3]);
    assert_eq!((own[3].conversation, own[3].prev), (child.id, theirs[2].hash));
    assert_eq!(verify(store, &child).events, 4);
    assert_eq!(store.turn_in(&child, ids[0]).expect("inherited").text(|_| None), "one");
    assert_eq!(store.turn_in(&child, ids[2]).expect_err("after the fork").code(), "turn.absent");
}

/// Turns that either side appends or supersedes afterwards stay on that side.
pub fn both_sides_of_a_fork_go_on_alone(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child, [one, two, three]) = family(store, &m);
    let theirs = history(store, &parent);
    let better = m.say("two, better");
    let by = turn_of(&better);
    append(store, &child, vec![better, m.supersede(two, by), m.say("child goes on")]);
    assert_eq!(history(store, &parent), theirs);
    assert_eq!(texts(store, &child), ["one", "two", "two, better", "child goes on"]);
    assert_eq!(store.turn_in(&child, two).expect("inherited").superseded_by, Some(Successor::Turn(by)));
    assert_eq!(store.turn_in(&parent, two).expect("it was said").superseded_by, None);
    assert_eq!(store.turn(&parent.tenant, two).expect("it was said"), theirs[1]);
    assert_eq!(store.conversation(&child).expect("it is there").turns, 4);
    let shown = store.turns(&child, &TurnQuery { limit: 2, ..TurnQuery::default() }).expect("a page");
    assert_eq!(shown.iter().map(|turn| turn.seq).collect::<Vec<_>>(), [2, 5]);

    let ours = history(store, &child);
    append(store, &parent, vec![m.supersede(one, three), m.say("parent goes on")]);
    assert_eq!(history(store, &child), ours);
    assert_eq!(texts(store, &parent), ["one", "two", "three", "parent goes on"]);
    // Each may supersede the same turn in its own way.
    append(store, &parent, vec![m.supersede(two, three)]);
    assert_eq!(store.turn_in(&child, two).expect("inherited").superseded_by, Some(Successor::Turn(by)));
    verify(store, &parent);
    verify(store, &child);
}

/// A fork made before and one made after the parent's edit each see the state at their fork point.
pub fn a_fork_does_not_see_what_its_parent_superseded_later(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, before, [one, _, three]) = family(store, &m);
    append(store, &parent, vec![m.supersede(one, three)]);
    let after = m.key();
    done(store, m.fork(&after, &parent, 5));
    assert_eq!(store.turn_in(&before, one).expect("inherited").superseded_by, None);
    assert_eq!(store.turn_in(&after, one).expect("inherited").superseded_by, Some(Successor::Turn(three)));
    // The child that has not seen the edit may make its own.
    let own = m.say("one, again");
    let by = turn_of(&own);
    append(store, &before, vec![own, m.supersede(one, by)]);
    refused(store, addition(&after, vec![m.supersede(one, by)]), "turn.superseded");
    assert_eq!(store.turn_in(&parent, one).expect("it was said").superseded_by, Some(Successor::Turn(three)));
}

/// A stream belongs to the side that opened it.
pub fn an_open_turn_reads_as_interrupted_in_a_fork_and_goes_on_in_the_parent(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let open = m.open();
    let turn = turn_of(&open);
    create(store, &parent, vec![m.created(), open]);
    done(store, chunk(&parent, turn, 0, "so far"));
    done(store, m.fork(&child, &parent, 2));
    let cut = |key: &Key| store.turn_in(key, turn).expect("inherited");
    assert_eq!((cut(&child).status, cut(&parent).status), (Status::Interrupted, Status::Pending));
    refused(store, chunk(&child, turn, 6, " and on"), "turn.not_open");
    refused(store, addition(&child, vec![m.end(kind::COMMITTED, turn, "mine")]), "turn.not_open");
    assert_eq!(store.open_text(&child, turn).expect("inherited"), "");
    assert_eq!(store.open_turns().expect("a listing"), [(parent.clone(), turn)]);
    done(store, chunk(&parent, turn, 6, " and on"));
    append(store, &parent, vec![m.end(kind::COMMITTED, turn, "so far and on")]);
    assert_eq!(
        (cut(&parent).status, cut(&parent).text(|_| None)),
        (Status::Complete, "so far and on".into())
    );
    assert_eq!((cut(&child).status, &cut(&child).message), (Status::Interrupted, &None));
    // The child may supersede it.
    let own = m.say("my own answer");
    let by = turn_of(&own);
    append(store, &child, vec![own, m.supersede(turn, by)]);
    assert_eq!(
        (cut(&child).status, cut(&child).superseded_by),
        (Status::Interrupted, Some(Successor::Turn(by)))
    );
    assert_eq!(cut(&parent).superseded_by, None);
    assert_eq!(store.open_turns().expect("a listing"), []);
}

/// Inheritance goes through every generation, also for a fork whose fork point is before that of its parent.
pub fn a_fork_of_a_fork_reads_through_both(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child, [one, two, _]) = family(store, &m);
    let better = m.say("one, better");
    let by = turn_of(&better);
    append(store, &child, vec![better, m.supersede(one, by), m.say("child")]);
    let (late, early, first) = (m.key(), m.key(), m.key());
    done(store, m.fork(&late, &child, 7));
    done(store, m.fork(&early, &child, 2));
    done(store, m.fork(&first, &child, 3));
    assert_eq!(texts(store, &late), ["one", "two", "one, better", "child"]);
    assert_eq!(store.turn_in(&late, one).expect("inherited").superseded_by, Some(Successor::Turn(by)));
    assert_eq!(texts(store, &early), ["one"]);
    assert_eq!(store.turn_in(&early, one).expect("inherited").superseded_by, None);
    assert_eq!(store.turn_in(&early, two).expect_err("after the fork").code(), "turn.absent");
    assert_eq!(texts(store, &first), ["one", "two"]);
    let turns = |key: &Key| store.conversation(key).expect("it is there").turns;
    assert_eq!((turns(&late), turns(&early), turns(&first)), (4, 1, 2));
    for key in [&late, &early, &first] {
        append(store, key, vec![m.say("and on")]);
        verify(store, key);
        assert_eq!(turns(key) as usize, history(store, key).len());
    }
    append(store, &parent, vec![m.say("nobody below sees this")]);
    assert_eq!(texts(store, &early), ["one", "and on"]);
    let origin: Vec<_> = log(store, &late).iter().map(|event| event.conversation).collect();
    assert_eq!(origin[..3], [parent.id; 3]);
    assert_eq!(origin[3..7], [child.id; 4]);
    assert_eq!(origin[7..], [late.id; 2]);
}

/// A fork point must be an existing event of an existing parent.
pub fn a_fork_needs_a_place_that_exists(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, _, _) = family(store, &m);
    for seq in [0, 5, u64::MAX] {
        let child = m.key();
        let error = refused(store, m.fork(&child, &parent, seq), "seq.out_of_range");
        assert!(matches!(error, Error::Invalid(_)) && error.text().contains("1 to 4"), "{error:?}");
        assert!(store.conversation(&child).is_err());
    }
    let (child, gone) = (m.key(), m.key());
    refused(store, m.fork(&child, &gone, 1), "conversation.absent");
    create(store, &gone, vec![m.created()]);
    done(store, m.delete(&gone));
    refused(store, m.fork(&child, &gone, 1), "conversation.absent");
}

/// Each generation adds a step to reading, so their number is limited.
pub fn forks_are_as_deep_as_the_limit_says(store: &dyn Backend) {
    let m = Maker::default();
    let mut youngest = m.key();
    create(store, &youngest, vec![m.created(), m.say("at the root")]);
    for depth in 1..=FORK_DEPTH_MAX as u64 {
        let child = m.key();
        done(store, m.fork(&child, &youngest, depth + 1));
        youngest = child;
    }
    assert_eq!(texts(store, &youngest), ["at the root"]);
    assert_eq!(verify(store, &youngest).events as usize, FORK_DEPTH_MAX + 2);
    let error = refused(store, m.fork(&m.key(), &youngest, 1), "limit.exceeded");
    assert!(error.text().contains("FORK_DEPTH_MAX is 100, this is 101"), "{error:?}");
}

/// A turn id alone leads to the conversation that the turn was written in, not to a fork that inherited or
/// changed it.
pub fn a_turn_is_found_where_it_was_said(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child, [one, two, _]) = family(store, &m);
    let better = m.say("two, better");
    let by = turn_of(&better);
    append(store, &child, vec![better, m.supersede(two, by)]);
    let said = |turn| store.turn(&parent.tenant, turn);
    assert_eq!(said(two).expect("it was said").conversation, parent.id);
    assert_eq!(said(by).expect("it was said").conversation, child.id);
    // A deleted conversation cannot be read any more; its forks still show what they inherited.
    done(store, m.delete(&parent));
    for gone in [one, two] {
        assert_eq!(said(gone).expect_err("deleted").code(), "turn.absent");
        assert!(store.turn_in(&child, gone).is_ok());
    }
}

/// Deleting removes from a parent what no living fork reads; deleting the last fork removes the rest.
pub fn a_deleted_parent_keeps_its_children_readable_until_the_last_is_gone(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let pictures = [(b"first", "asset_1"), (b"other", "asset_2")];
    let [first, other] = pictures.map(|(bytes, id)| m.asset(id, bytes));
    let hash = |n: usize| everturn_core::chain::Hash::of(pictures[n].0);
    create(
        store,
        &parent,
        vec![m.created(), first, m.show("asset_1"), m.say("two"), other, m.show("asset_2")],
    );
    done(store, m.fork(&child, &parent, 4));
    let grandchild = m.key();
    append(store, &child, vec![m.say("child")]);
    done(store, m.fork(&grandchild, &child, 3));
    append(store, &grandchild, vec![m.say("grandchild")]);
    let inherited = (history(store, &child), log(store, &child), store.assets(&child).expect("descriptors"));

    assert_eq!(done(store, m.delete(&parent)).released, [hash(1)]);
    assert_eq!(store.conversation(&parent).expect_err("deleted").code(), "conversation.absent");
    assert_eq!((history(store, &child), log(store, &child)), (inherited.0, inherited.1));
    assert_eq!(store.assets(&child).expect("descriptors"), inherited.2);
    assert!(store.asset_in_use(&parent.tenant, hash(0)).expect("an answer"));
    append(store, &child, vec![m.say("child goes on")]);
    verify(store, &child);

    assert_eq!(done(store, m.delete(&child)).released, []);
    assert_eq!(texts(store, &grandchild), ["<image:asset_1>", "grandchild"]);
    verify(store, &grandchild);
    assert_eq!(done(store, m.delete(&grandchild)).released, [hash(0)]);
    assert!(!store.asset_in_use(&parent.tenant, hash(0)).expect("an answer"));
    assert_eq!(store.tombstones(&parent.tenant).expect("a listing").len(), 3);
}

/// An id may be reused after a deletion; the forks of the old conversation are not affected.
pub fn a_new_conversation_under_a_deleted_parents_id_leaves_its_children_alone(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    create(store, &parent, vec![m.created(), m.asset("asset_1", b"bytes"), m.show("asset_1"), m.say("old")]);
    done(store, m.fork(&child, &parent, 4));
    let inherited = (history(store, &child), log(store, &child));
    done(store, m.delete(&parent));
    create(store, &parent, vec![m.created(), m.say("new")]);
    assert_eq!((history(store, &child), log(store, &child)), inherited);
    assert_eq!(texts(store, &parent), ["new"]);
    let used = || store.asset_in_use(&parent.tenant, everturn_core::chain::Hash::of(b"bytes"));
    assert!(used().expect("an answer"));
    store.rebuild().expect("it can be rebuilt");
    assert_eq!((history(store, &child), log(store, &child)), inherited);
    done(store, m.delete(&parent));
    assert_eq!((history(store, &child), log(store, &child)), inherited);
    assert!(used().expect("an answer"));
    done(store, m.delete(&child));
    assert!(!used().expect("an answer"));
}

/// A fork point between an abort and a later replacement of the turn: there the turn is aborted.
pub fn a_turn_that_was_aborted_at_a_fork_is_aborted_there_for_ever(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let (open, better) = (m.open(), m.say("better"));
    let (turn, by) = (turn_of(&open), turn_of(&better));
    create(store, &parent, vec![m.created(), open]);
    let abort = append(store, &parent, vec![m.end(kind::ABORTED, turn, "so far")]).events[0].id;
    done(store, m.fork(&child, &parent, 3));
    append(store, &parent, vec![better, m.supersede(turn, by)]);
    let seen = |key: &Key| store.turn_in(key, turn).expect("it was said").superseded_by;
    assert_eq!(seen(&parent), Some(Successor::Turn(by)));
    assert_eq!(seen(&child), Some(Successor::Event(abort)));
    let shown = store.turns(&child, &TurnQuery { limit: 10, ..TurnQuery::default() }).expect("a page");
    assert_eq!(shown, [], "an aborted turn is shown only when asked for");
}
