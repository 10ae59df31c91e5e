//! From the beginning of a conversation to its end: states, forks, a fresh start, who took part.

use crate::compacting::policy;
use crate::stage::{Short, Stage, memory, refused, turns_of, words};
use everturn_core::conversation::{Lifecycle, Parent, Settings};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, Successor};
use everturn_engine::{Caller, Change, HistoryQuery, NewStream, NewTurn, Tenant};
use serde_json::json;

fn said(scope: &Tenant, id: everturn_core::id::ConversationId) -> Vec<String> {
    let page = scope.conversation(id).history(Default::default()).unwrap().data;
    crate::stage::turns_of(page).iter().filter_map(words).collect()
}

#[test]
fn what_happens_on_one_side_of_a_fork_does_not_show_on_the_other() {
    for stage in [None, Some(Stage::new())] {
        let store = stage.as_ref().map_or_else(|| memory().0, Stage::open);
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let [one, two] = ["one", "two"].map(|text| scope.say(id, NewTurn::user(text).by("ann")));
        let fork = scope.conversation(id).fork(two.seq).wait().unwrap().get().unwrap();
        assert_eq!(fork.parent, Some(Parent { conversation: id, at_seq: 3 }));
        assert_eq!((fork.turns, fork.head.seq), (2, 4));
        scope.say(id, NewTurn::user("only here").by("bob"));
        scope.say(fork.id, NewTurn::user("only there"));
        let [here, there] = [id, fork.id].map(|id| {
            scope.conversation(id).supersede(one.id, NewTurn::user("instead")).wait().unwrap().turns[0].id
        });
        assert_eq!(said(&scope, id), ["instead", "two", "only here"]);
        assert_eq!(said(&scope, fork.id), ["instead", "two", "only there"]);
        assert_eq!(scope.conversation(id).turn(one.id).unwrap().superseded_by, Some(Successor::Turn(here)));
        assert_eq!(
            scope.conversation(fork.id).turn(one.id).unwrap().superseded_by,
            Some(Successor::Turn(there))
        );
        assert_eq!(scope.conversation(fork.id).get().unwrap().participants, ["ann"]);

        // Not even a deletion shows.
        scope.conversation(id).delete("over").wait().unwrap();
        assert_eq!(said(&scope, fork.id), ["instead", "two", "only there"]);
        let report = scope.conversation(fork.id).log().verify(Some(two_hash(&scope, fork.id))).unwrap();
        assert_eq!((report.events, report.contains_head), (7, Some(true)));
    }
}

/// A fork of a session of last year was the conversation of today, and had no times until something was said in it.
#[test]
fn a_fork_has_the_times_of_the_turns_that_it_inherits() {
    for stage in [None, Some(Stage::new())] {
        let store = stage.as_ref().map_or_else(|| memory().0, Stage::open);
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let at = |s: i64| Timestamp(1_500_000_000_000_000 + s * 1_000_000);
        let old = |s: i64| NewTurn { occurred_at: Some(at(s)), ..NewTurn::user("long ago") };
        let turns = [10, 20, 30].map(|s| scope.say(id, old(s)));
        let times = |id| {
            let conversation = scope.conversation(id).get().unwrap();
            (conversation.began, conversation.last_said)
        };
        let fork = |at_seq: u64| scope.conversation(id).fork(at_seq).wait().unwrap().id();
        let (before, middle, whole) = (fork(1), fork(turns[1].seq), fork(turns[2].seq));
        assert_eq!(times(before), (None, None));
        assert_eq!(times(middle), (Some(at(10)), Some(at(20))));
        assert_eq!(times(whole), times(id));
        let below = scope.conversation(middle).fork(turns[0].seq).wait().unwrap().id();
        assert_eq!(times(below), (Some(at(10)), Some(at(10))));
        let listed: Vec<_> = scope.list(Default::default()).unwrap().data.iter().map(|one| one.id).collect();
        assert_eq!(listed, [before, whole, id, middle, below]);
        // The end of the parent changes nothing, and neither does the erasure of an inherited turn.
        scope.conversation(id).erase(turns[0].id, None, "test").wait().unwrap();
        scope.conversation(id).delete("over").wait().unwrap();
        scope.say(middle, old(25));
        assert_eq!(times(middle), (Some(at(10)), Some(at(25))));
        scope.say(middle, NewTurn::user("now"));
        assert_eq!(scope.list(Default::default()).unwrap().data[0].id, middle);
        let kept = [before, middle, whole, below].map(times);
        store.rebuild().unwrap();
        assert_eq!([before, middle, whole, below].map(times), kept);
    }
}

fn two_hash(scope: &Tenant, id: everturn_core::id::ConversationId) -> everturn_core::chain::Hash {
    scope.conversation(id).log().read(2, 1).unwrap()[0].hash
}

#[test]
fn an_open_turn_stays_unfinished_in_a_fork_and_can_be_finished_in_the_parent_only() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).chunk(None, "so").unwrap();
    let fork = scope.conversation(id).fork(2).wait().unwrap().id();
    refused(
        scope.conversation(fork).open_turn(turn).chunk(None, "x"),
        "turn.not_open",
        "is interrupted already",
    );
    refused(
        scope.conversation(fork).open_turn(turn).commit(NewTurn::default()).wait(),
        "turn.not_open",
        "is interrupted already",
    );
    scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    assert_eq!(scope.conversation(id).turn(turn).unwrap().status, Status::Complete);
    assert_eq!(scope.conversation(fork).turn(turn).unwrap().status, Status::Interrupted);
}

/// Regression: what an open turn had said so far was in no fork.
#[test]
fn a_fork_has_the_text_of_an_open_turn_so_far() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let id = scope.begin_with(policy("budget", json!({"max_events": 4, "recovery": "reject"}))).id;
        let chat = scope.conversation(id);
        let stream = NewStream { actor: Some("bot".into()), ..NewStream::default() };
        let turn = chat.open(stream).wait().unwrap().id;
        chat.open_turn(turn).chunk(None, "said so far").unwrap();
        scope.say(id, NewTurn::user("meanwhile"));
        // Of another author than who forks, and without room for more.
        let caller = Caller::default().acting_as(vec!["ann".into()]).unwrap();
        let fork = scope.called_by(caller).conversation(id).fork(3).wait().unwrap().id();
        chat.open_turn(turn).chunk(None, ", and more").unwrap();
        chat.open_turn(turn).commit(NewTurn::default()).wait().unwrap();
        let read = |id| {
            let turns = turns_of(scope.conversation(id).history(HistoryQuery::default()).unwrap().data);
            turns.into_iter().map(|turn| (turn.text(|_| None), turn.status, turn.actor)).collect::<Vec<_>>()
        };
        let bot = Some("bot".to_string());
        let user = ("meanwhile".to_string(), Status::Complete, None);
        assert_eq!(read(fork), [("said so far".into(), Status::Interrupted, bot.clone()), user.clone()]);
        assert_eq!(read(id), [("said so far, and more".into(), Status::Complete, bot), user]);
        let verified = scope.conversation(fork).log().verify(None);
        verified.unwrap();
        assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
        // A later fork at the same place, and the erasure of the turn, which goes for the copy as well.
        let later = scope.conversation(id).fork(3).wait().unwrap().id();
        assert_eq!(read(later)[0].0, "", "nobody knows what had been said there");
        chat.erase(turn, None, "asked for").wait().unwrap();
        for id in [id, fork] {
            let events = scope.conversation(id).log().read(0, 100).unwrap();
            assert!(!format!("{events:?}").contains("said so far"), "{events:?}");
        }
        assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
    }
}

#[test]
fn a_conversation_that_is_put_away_takes_no_turns_until_it_is_resumed() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    for (state, put_away) in [
        ("archived", scope.conversation(id).update(Lifecycle::Archived).wait().unwrap()),
        (
            "abandoned",
            scope
                .conversation(id)
                .update(Change {
                    state: Some(Lifecycle::Abandoned),
                    reason: Some("no answer".into()),
                    ..Change::default()
                })
                .wait()
                .unwrap(),
        ),
    ] {
        assert_eq!(put_away.state.as_str(), state);
    }
    let says = format!("{id} is abandoned; set its state to active first (`everturn archive --undo`)");
    refused(scope.try_say(id, NewTurn::user("hello?")), "conversation.not_active", &says);
    refused(scope.conversation(id).open(NewStream::default()).wait(), "conversation.not_active", &says);
    // What was begun may end, and what is asked for may be erased.
    scope.conversation(id).open_turn(turn).commit(NewTurn::assistant("bye")).wait().unwrap();
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    scope
        .conversation(id)
        .update(Settings { title: Some(Some("old".into())), ..Settings::default() })
        .wait()
        .unwrap();
    assert_eq!(scope.conversation(id).update(Lifecycle::Active).wait().unwrap().state, Lifecycle::Active);
    scope.say(id, NewTurn::user("there you are"));
}

#[test]
fn settings_and_state_change_in_one_step_and_only_if_nothing_else_did() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let change = |title: &str, state, seq| {
        let settings = Settings { title: Some(Some(title.into())), ..Settings::default() };
        scope
            .conversation(id)
            .update(Change { settings, state, reason: None, expected_seq: Some(seq) })
            .wait()
    };
    let changed = change("Trip", Some(Lifecycle::Archived), 1).unwrap();
    assert_eq!(
        (changed.title.as_deref(), changed.state, changed.head.seq),
        (Some("Trip"), Lifecycle::Archived, 3)
    );
    refused(change("Journey", None, 1), "append.stale_seq", "head is 3, you expected 1");
    // Nothing would be written, but what the caller has seen is not what is there.
    refused(change("Trip", Some(Lifecycle::Archived), 2), "append.stale_seq", "head is 3, you expected 2");
    assert_eq!(change("Trip", Some(Lifecycle::Archived), 3).unwrap().head.seq, 3, "it is so already");
    // One step: what cannot be done leaves the rest undone.
    change("Trip", Some(Lifecycle::Closed), 3).unwrap();
    refused(change("Other", Some(Lifecycle::Active), 4), "conversation.not_active", "is closed");
    assert_eq!(scope.conversation(id).get().unwrap().title.as_deref(), Some("Trip"));
}

#[test]
fn a_closed_conversation_stays_closed_and_says_how_to_go_on() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("goodbye"));
    scope.conversation(id).update(Lifecycle::Closed).wait().unwrap();
    let says = "is closed; it cannot be continued: `reset` starts a new one, `fork` goes on from a copy";
    refused(scope.try_say(id, NewTurn::user("wait")), "conversation.not_active", says);
    refused(scope.conversation(id).update(Lifecycle::Active).wait(), "conversation.not_active", says);
    refused(scope.conversation(id).update(Lifecycle::Archived).wait(), "conversation.not_active", says);
    assert_eq!(said(&scope, id), ["goodbye"], "it can be read");
    let fork = scope.conversation(id).fork(turn.seq).wait().unwrap().get().unwrap();
    assert_eq!(fork.state, Lifecycle::Active);
    scope.say(fork.id, NewTurn::user("wait"));
}

#[test]
fn a_reset_starts_over_with_the_same_settings_and_names_its_predecessor() {
    let (_store, scope) = memory();
    let mut settings =
        Settings { title: Some(Some("Trip".into())), ttl: Some(Some(60)), ..Settings::default() };
    for (key, json) in [("system_prompt", "\"Be brief.\""), ("retention", "\"audit-only\""), ("k", "1")] {
        settings.metadata.insert(key.into(), everturn_core::json::Raw::new(json.into()).unwrap());
    }
    let id = scope.begin_with(settings).id;
    scope.say(id, NewTurn::user("hello").by("ann"));
    let fresh = scope.conversation(id).reset().unwrap().get().unwrap();
    assert_eq!((fresh.predecessor, fresh.turns, fresh.state), (Some(id), 0, Lifecycle::Active));
    let (mut old, mut new) =
        (scope.conversation(id).get().unwrap(), scope.conversation(fresh.id).get().unwrap());
    // What each retains is its own.
    assert_ne!(old.transcript_budget.take(), new.transcript_budget.take());
    assert_eq!(old.state, Lifecycle::Closed);
    assert_eq!(
        (&new.title, new.ttl, new.retention, &new.metadata),
        (&old.title, old.ttl, old.retention, &old.metadata)
    );
    assert_eq!(new.participants, Vec::<String>::new());
    assert_eq!(said(&scope, id), ["hello"]);
    // Once more from the closed one gives another.
    assert_ne!(scope.conversation(id).reset().unwrap().id(), fresh.id);
}

#[test]
fn participants_are_those_who_spoke_each_once() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("a").by("ann"));
    scope.say(id, NewTurn::user("b"));
    let turn = scope.conversation(id).open(NewStream { actor: Some("gpt".into()), ..NewStream::default() });
    let turn = turn.wait().unwrap().id;
    scope.conversation(id).open_turn(turn).commit(NewTurn::assistant("c").by("gpt-critic")).wait().unwrap();
    scope.say(id, NewTurn::user("d").by("ann"));
    assert_eq!(scope.conversation(id).get().unwrap().participants, ["ann", "gpt", "gpt-critic"]);
}

#[test]
fn a_person_names_a_conversation_by_its_beginning_or_as_the_last() {
    for stage in [None, Some(Stage::new())] {
        let store = stage.as_ref().map_or_else(|| memory().0, Stage::open);
        let scope = store.tenant("acme").unwrap();
        refused(scope.resolve("@last"), "conversation.none", "`everturn new` begins one");
        let [one, two] = [0, 1].map(|_| scope.begin());
        assert_eq!(scope.resolve(&one.to_string()).unwrap(), one);
        assert_eq!(scope.resolve("@last").unwrap(), two);
        scope.say(one, NewTurn::user("x"));
        assert_eq!(scope.resolve("@last").unwrap(), one);
        let text = one.to_string();
        assert_eq!(scope.resolve(&text["conv_".len()..]).unwrap(), one);
        refused(scope.resolve("conv_0"), "conversation.ambiguous", "write more of it");
        refused(scope.resolve("conv_7"), "conversation.absent", "no conversation begins with \"conv_7\"");
        refused(scope.resolve(""), "conversation.absent", "`list` shows what there is");
    }
}

/// Regression: `@last` was the conversation of a request beside the one that somebody had.
#[test]
fn the_last_conversation_is_not_a_hidden_one() {
    let (_store, scope) = memory();
    let hide = || {
        let metadata = [("everturn.hidden".to_string(), Raw::of(&"responses").unwrap())].into();
        let id = scope.begin_with(Settings { metadata, ..Settings::default() }).id;
        scope.say(id, NewTurn::user("beside"));
        id
    };
    let only = hide();
    assert_eq!(scope.resolve("@last").unwrap(), only, "there is no other");
    let own = scope.begin();
    scope.say(own, NewTurn::user("mine"));
    for _ in 0..20 {
        hide();
    }
    assert_eq!(scope.resolve("@last").unwrap(), own);
}

/// Regression: after `fork @last --at 3`, words for `@last` went to the parent, because the last turn of the fork is older.
#[test]
fn a_fork_of_the_last_conversation_is_the_last_until_something_is_said_elsewhere() {
    for stage in [None, Some(Stage::new())] {
        let store = stage.as_ref().map_or_else(|| memory().0, Stage::open);
        let scope = store.tenant("acme").unwrap();
        let last = || scope.resolve("@last").unwrap();
        let fork = |id, at: u64| scope.conversation(id).fork(at).wait().unwrap().id();
        let old = |s: i64| NewTurn {
            occurred_at: Some(Timestamp(1_500_000_000_000_000 + s)),
            ..NewTurn::user("long ago")
        };
        let [imported, own] = [0, 1].map(|_| scope.begin());
        let turn = scope.say(imported, old(1));
        let first = scope.say(own, NewTurn::user("one"));
        let second = scope.say(own, NewTurn::user("two"));
        let one = fork(own, first.seq);
        assert_eq!(last(), one);
        let two = fork(own, second.seq);
        assert_eq!(last(), two, "the last of them");
        // Of a session of last year, it is not.
        fork(imported, turn.seq);
        assert_eq!(last(), two);
        scope.say(one, NewTurn::user("instead"));
        assert_eq!(last(), one);
        // A fork within what it inherits is one of its parent.
        let again = fork(one, first.seq);
        assert_eq!(last(), again);
        scope.say(own, NewTurn::user("three"));
        assert_eq!(last(), own);
        scope.conversation(own).delete("over").wait().unwrap();
        assert_eq!(last(), again, "made after the last turn that is left");
    }
}
