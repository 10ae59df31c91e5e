//! Appending.

use super::*;
use everturn_core::Error;
use everturn_core::approval::{Approval, ApprovalBody};
use everturn_core::conversation::{Conversation, Lifecycle, Settings};
use everturn_core::event::{Draft, Visibility, kind};
use everturn_core::id::{EventId, Key, TurnId};
use everturn_core::limits::BATCH_EVENTS_MAX;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use everturn_core::write::{Action, Idempotency, Write};
use std::sync::Arc;

/// Every field of an event comes back as committed, its body byte for byte, and the chain verifies.
pub fn events_come_back_byte_for_byte(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let odd = "{ \"message\" : {\"role\":\"user\",\"content\":\"\\u00e9 é 𝄞 \\/\",\"n\":1.0e+2,\"id\":9007199254740993},\n\t\"z\":1,\"a\":2 }";
    let full = Draft {
        occurred_at: Some(Timestamp(-1)),
        visibility: Visibility::Private,
        key: Some("key_01J00000000000000000000000".into()),
        role: Some(Role::System),
        actor: Some("Ünï ✓".into()),
        ..m.draft(kind::MESSAGE, odd)
    };
    let full = Draft { turn: Some(turn_of(&full)), ..full };
    let written =
        create(store, &key, vec![m.created(), full.clone(), m.say("two"), m.draft("x", " null ")]).events;
    let read = log(store, &key);
    assert_eq!(read, written);
    assert_eq!(read[1].text(), Some(odd));
    assert_eq!(read[1].occurred_at, full.occurred_at);
    assert_eq!(read[1].actor, full.actor);
    assert_eq!(read[3].text(), Some(" null "));
    let report = verify(store, &key);
    assert_eq!((report.events, report.erased), (4, 0));
    let turn = store.turn_in(&key, turn_of(&full)).expect("it was said");
    assert_eq!(turn.message.as_ref().map(|raw| raw.get()), Some(&odd[14..odd.find(",\n").unwrap_or(0)]));
}

/// A batch is answered in order; a request sees the writes of the ones before it.
pub fn a_batch_is_answered_in_order_and_each_request_sees_the_ones_before(store: &dyn Backend) {
    let m = Maker::default();
    let (key, child) = (m.key(), m.key());
    let open = m.open();
    let turn = turn_of(&open);
    let batch = vec![
        creation(&key, vec![m.created(), open]),
        chunk(&key, turn, 0, "half"),
        m.fork(&child, &key, 2),
        addition(&key, vec![m.end(kind::COMMITTED, turn, "half a word")]),
        m.erase(&key, &[turn]),
        m.delete(&child),
        addition(&child, vec![m.say("too late")]),
    ];
    let answers = store.commit(batch);
    let heads: Vec<Option<u64>> =
        answers.iter().map(|answer| answer.as_ref().ok().map(|c| c.conversation.head.seq)).collect();
    assert_eq!(heads, [Some(2), Some(2), Some(3), Some(3), Some(4), Some(3), None]);
    assert_eq!(answers[6].as_ref().expect_err("it is deleted").code(), "conversation.absent");
    assert_eq!(verify(store, &key).erased, 2);
    assert!(store.commit(Vec::new()).is_empty());
}

/// Batches are carried out in the order in which they were begun, and a later one sees the writes of those before it,
/// whether the backend sends them ahead or not.
pub fn batches_are_carried_out_in_the_order_in_which_they_were_begun(store: &dyn Backend) {
    let m = Maker::default();
    let (one, two) = (m.key(), m.key());
    for key in [&one, &two] {
        create(store, key, vec![m.created()]);
        append(store, key, vec![m.say("first")]);
    }
    let say = |key: &Key, text: &str| addition(key, vec![m.say(text)]);
    let once = |text: &str| {
        let action = Action::Append {
            drafts: vec![m.say(text)],
            expected_seq: None,
            prepared_for: None,
            idempotency: once("key", "request"),
        };
        Write { key: one.clone(), action }
    };
    let batches = [
        vec![say(&one, "a"), say(&two, "b"), once("c")],
        vec![say(&one, "d")],
        // What a batch under way answers is not written again.
        vec![once("repeated"), say(&two, "e"), say(&one, "f")],
        vec![say(&two, "g")],
    ];
    let begun: Vec<_> = batches.into_iter().map(|batch| store.begin_commit(batch)).collect();
    let answers = begun.into_iter().flat_map(|commit| commit.finish(&Default::default()));
    let repeated: Vec<bool> = answers.map(|answer| answer.expect("accepted").repeated).collect();
    assert_eq!(repeated, [false, false, false, false, true, false, false, false]);
    assert_eq!(texts(store, &one), ["first", "a", "c", "d", "f"]);
    assert_eq!(texts(store, &two), ["first", "b", "e", "g"]);
    assert_eq!((verify(store, &one).events, verify(store, &two).events), (6, 5));
}

/// A refused request changes nothing that can be read, and the others of its batch are written.
pub fn a_refused_request_leaves_no_trace_and_does_not_disturb_the_others(store: &dyn Backend) {
    let m = Maker::default();
    let (one, two, never) = (m.key(), m.key(), m.key());
    let first = m.say("first");
    let said = turn_of(&first);
    create(store, &one, vec![m.created(), first]);
    let before = store.conversation(&one).expect("it was created");
    let absent = TurnId(m.draft("x", "{}").id.0);
    let wrong = vec![
        addition(&one, vec![m.say("lost"), m.end(kind::COMMITTED, absent, "never opened")]),
        creation(&never, vec![m.created(), m.supersede(absent, said)]),
        m.erase(&one, &[said, absent]),
        m.fork(&never, &one, 99),
        chunk(&one, said, 0, "it is complete"),
        addition(&never, vec![m.say("nobody")]),
    ];
    let refusals = wrong.len();
    let mut batch = wrong;
    batch.insert(3, creation(&two, vec![m.created(), m.say("kept")]));
    batch.push(addition(&two, vec![m.say("kept too")]));
    let answers = store.commit(batch);
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), refusals);
    assert!(answers[3].is_ok() && answers[7].is_ok());
    assert_eq!(store.conversation(&one).expect("it is there"), before);
    assert_eq!(texts(store, &one), ["first"]);
    assert_eq!(verify(store, &one).erased, 0);
    assert_eq!(texts(store, &two), ["kept", "kept too"]);
    assert_eq!(store.conversation(&never).expect_err("never made").code(), "conversation.absent");
    append(store, &one, vec![m.say("second")]);
    assert_eq!(verify(store, &one).events, 3);
}

/// Order is `seq`, assigned by the store: a clock that goes back does not affect it.
pub fn seq_is_dense_whatever_the_clocks_say(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created()]);
    for at in [5, i64::MAX, -5, 0, i64::MIN] {
        append(store, &key, vec![Draft { at: Timestamp(at), ..m.say("tick") }]);
    }
    let read = log(store, &key);
    assert_eq!(read.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(read[5].at, Timestamp(i64::MIN));
    verify(store, &key);
    let places: Vec<u64> = history(store, &key).iter().map(|turn| turn.seq).collect();
    assert_eq!(places, [2, 3, 4, 5, 6]);
}

/// `updated` is the latest time seen, so that a listing does not jump when a clock does.
pub fn updated_never_goes_back(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let late = Timestamp(2_000_000_000_000_000);
    create(store, &key, vec![Draft { at: late, ..m.created() }]);
    let after = append(store, &key, vec![Draft { at: Timestamp(7), ..m.say("earlier") }]).conversation;
    assert_eq!((after.created, after.updated), (late, late));
    assert_eq!(store.conversation(&key).expect("it is there").updated, late);
}

/// After a concurrent append nothing is written, and the error names the current head.
pub fn stale_expected_seq_is_a_conflict_that_names_the_head(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.say("one")]);
    let expecting = |seq: u64, text: &str| Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say(text)],
            expected_seq: Some(seq),
            prepared_for: None,
            idempotency: None,
        },
    };
    for stale in [0, 1, 3, u64::MAX] {
        let error = refused(store, expecting(stale, "stale"), "append.stale_seq");
        assert!(matches!(error, Error::Conflict(_)) && error.text().contains("head is 2"), "{error:?}");
    }
    assert_eq!(texts(store, &key), ["one"]);
    assert_eq!(done(store, expecting(2, "two")).conversation.head.seq, 3);
}

/// Drafts depend on the policy, and on the room that there is: otherwise they would not be what is asked for. Other changes
/// do not matter to them.
pub fn an_append_that_was_prepared_for_what_has_changed_is_refused(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let before = create(store, &key, vec![m.created()]).conversation;
    let prepared_for = |known: &Arc<Conversation>, text: &str| Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say(text)],
            expected_seq: None,
            prepared_for: Some(known.clone()),
            idempotency: None,
        },
    };
    let titled = Settings { title: Some(Some("a title".into())), ..Settings::default() };
    append(store, &key, vec![m.say("one"), m.update(titled)]);
    done(store, prepared_for(&before, "two"));
    let mut masked = Settings::default();
    masked.policy.insert("redaction".into(), raw("\"mask\""));
    // Also within one batch.
    let batch = vec![addition(&key, vec![m.update(masked)]), prepared_for(&before, "secret")];
    let answers = store.commit(batch);
    let after = answers[0].as_ref().expect("it is changed").conversation.clone();
    assert!(answers[1].as_ref().is_err_and(|error| error.is("append.outdated")), "{answers:?}");
    refused(store, prepared_for(&before, "secret"), "append.outdated");
    done(store, prepared_for(&after, "three"));
    let mut limited = Settings::default();
    limited.policy.insert("budget".into(), raw(r#"{"max_messages":4}"#));
    let limited = append(store, &key, vec![m.update(limited)]).conversation;
    done(store, prepared_for(&limited, "four"));
    refused(store, prepared_for(&limited, "too much"), "append.outdated");
    assert_eq!(texts(store, &key), ["one", "two", "three", "four"]);
}

/// A client that lost the answer repeats the request and gets the same answer.
pub fn a_repeated_key_gives_the_first_answer_and_writes_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let (key, other) = (m.key(), m.key());
    create(store, &key, vec![m.created()]);
    create(store, &other, vec![m.created()]);
    let request = |key: &everturn_core::id::Key| Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say("one"), m.say("two")],
            expected_seq: Some(1),
            prepared_for: None,
            idempotency: once("k", "one, two"),
        },
    };
    let first = done(store, request(&key));
    assert!(!first.repeated);
    append(store, &key, vec![m.say("three")]);
    // By now the expected seq is stale; a repeated request is still answered.
    let again = done(store, request(&key));
    assert!(again.repeated);
    assert_eq!(again.events, first.events);
    assert_eq!(texts(store, &key), ["one", "two", "three"]);
    // The same key in another conversation is another key.
    assert!(!done(store, request(&other)).repeated);
    let batch = vec![request(&key), request(&other)];
    assert!(store.commit(batch).into_iter().all(|answer| answer.is_ok_and(|committed| committed.repeated)));
}

/// The same key for a different request is a mistake of the client, not a repetition.
pub fn a_key_reused_for_another_body_is_a_conflict(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created()]);
    let request = |text: &str| Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say(text)],
            expected_seq: None,
            prepared_for: None,
            idempotency: once("k", text),
        },
    };
    done(store, request("one"));
    let error = refused(store, request("another"), "idempotency.reused");
    assert!(matches!(error, Error::Conflict(_)));
    assert_eq!(texts(store, &key), ["one"]);
}

/// Erasing removes what the request could be compared with, not the key.
pub fn a_key_still_works_after_its_first_event_was_erased(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created()]);
    let request = || Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say("one")],
            expected_seq: None,
            prepared_for: None,
            idempotency: once("k", "one"),
        },
    };
    let first = done(store, request());
    done(store, m.erase(&key, &[TurnId(first.events[0].id.0)]));
    let again = done(store, request());
    assert!(again.repeated);
    assert_eq!(again.events.len(), 1);
    assert_eq!((again.events[0].hash, &again.events[0].body), (first.events[0].hash, &None));
    assert_eq!(store.conversation(&key).expect("it is there").head.seq, 3);
}

/// The key of a creation belongs to the tenant, because a client that repeats it sends another conversation id.
pub fn a_repeated_creation_gives_the_first_conversation(store: &dyn Backend) {
    let m = Maker::default();
    let keys = [m.key(), m.key(), m.key()];
    let request = |key: &everturn_core::id::Key, text: &str| Write {
        key: key.clone(),
        action: Action::Create {
            drafts: vec![m.created(), m.say(text)],
            parent: None,
            idempotency: once("k", text),
        },
    };
    let first = done(store, request(&keys[0], "hello"));
    let again = done(store, request(&keys[1], "hello"));
    assert!(again.repeated);
    assert_eq!((again.conversation.id, &again.events), (keys[0].id, &first.events));
    refused(store, request(&keys[2], "something else"), "idempotency.reused");
    for key in &keys[1..] {
        assert_eq!(store.conversation(key).expect_err("never made").code(), "conversation.absent");
    }
    assert!(!done(store, request(&elsewhere(&keys[1]), "hello")).repeated, "another tenant's key is another");
}

/// A client at its quota may still repeat a request whose answer it missed.
pub fn a_request_that_may_only_repeat_writes_nothing_new(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let full = Error::too_large("quota.exceeded", "full");
    let only_repeat = |asked: Option<Idempotency>, error: Option<&Error>| {
        asked.map(|asked| Idempotency { only_repeat: error.cloned(), ..asked })
    };
    let begin = |key: &everturn_core::id::Key, name: &str, error| Write {
        key: key.clone(),
        action: Action::Create {
            drafts: vec![m.created()],
            parent: None,
            idempotency: only_repeat(once(name, "begin"), error),
        },
    };
    let say = |name: &str, error| Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say("one")],
            expected_seq: None,
            prepared_for: None,
            idempotency: only_repeat(once(name, "one"), error),
        },
    };
    refused(store, begin(&key, "b", Some(&full)), "quota.exceeded");
    done(store, begin(&key, "b", None));
    assert!(done(store, begin(&m.key(), "b", Some(&full))).repeated);
    refused(store, say("k", Some(&full)), "quota.exceeded");
    let first = done(store, say("k", None));
    let again = done(store, say("k", Some(&full)));
    assert_eq!((again.repeated, &again.events), (true, &first.events));
    refused(store, say("another", Some(&full)), "quota.exceeded");
    assert_eq!(texts(store, &key), ["one"]);
}

/// Creating an existing conversation is a conflict.
pub fn creating_what_exists_is_a_conflict(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.say("one")]);
    let error = refused(store, creation(&key, vec![m.created()]), "conversation.exists");
    assert!(matches!(error, Error::Conflict(_)));
    assert_eq!(texts(store, &key), ["one"]);
}

/// An append without drafts is refused.
pub fn an_empty_append_is_refused(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    refused(store, creation(&key, Vec::new()), "append.empty");
    create(store, &key, vec![m.created()]);
    refused(store, addition(&key, Vec::new()), "append.empty");
    refused(store, restoration(&key, &[]), "append.empty");
}

/// The size of an atomic append is limited, and the error names the limit and both numbers.
pub fn a_batch_above_the_limit_is_refused_with_both_numbers(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created()]);
    let drafts = |count: usize| (0..count).map(|_| m.say("again")).collect();
    let error = refused(store, addition(&key, drafts(BATCH_EVENTS_MAX + 1)), "limit.exceeded");
    assert!(matches!(error, Error::TooLarge(_)));
    for part in ["BATCH_EVENTS_MAX".to_string(), BATCH_EVENTS_MAX.to_string()] {
        assert!(error.text().contains(&part), "{error:?}");
    }
    assert_eq!(verify(store, &key).events, 1);
    append(store, &key, drafts(BATCH_EVENTS_MAX));
    assert_eq!(verify(store, &key).events as usize, 1 + BATCH_EVENTS_MAX);
}

/// The set of kinds is open: events of unknown kinds are kept in order and change no turn.
pub fn unknown_kinds_are_stored_and_served(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let strange = Draft { actor: Some("camera".into()), ..m.draft("snapshot_created", "[1,2]") };
    create(store, &key, vec![m.created(), strange, m.say("nice")]);
    let read = log(store, &key);
    assert_eq!((read[1].kind.as_str(), read[1].text()), ("snapshot_created", Some("[1,2]")));
    let conversation = store.conversation(&key).expect("it is there");
    assert_eq!((conversation.turns, conversation.participants), (1, vec!["ada".to_string()]));
    assert_eq!(texts(store, &key), ["nice"]);
}

/// An event that ends or supersedes a turn must name one of this conversation.
pub fn an_event_about_an_absent_turn_is_refused(store: &dyn Backend) {
    let m = Maker::default();
    let (key, other) = (m.key(), m.key());
    let theirs = m.open();
    let turn = turn_of(&theirs);
    create(store, &key, vec![m.created()]);
    create(store, &other, vec![m.created(), theirs]);
    for kind in [kind::COMMITTED, kind::ABORTED, kind::INTERRUPTED, kind::SUPERSEDED] {
        refused(store, addition(&key, vec![m.end(kind, turn, "?")]), "turn.absent");
        refused(store, addition(&key, vec![m.draft(kind, "{}")]), "turn.missing");
    }
    refused(store, chunk(&key, turn, 0, "?"), "turn.absent");
    refused(store, m.erase(&key, &[turn]), "turn.absent");
    assert_eq!(verify(store, &key).events, 1);
}

/// Archived and abandoned conversations must be resumed first; a closed one is never continued. Erasing always
/// works.
pub fn a_conversation_that_is_not_active_takes_no_turns(store: &dyn Backend) {
    let m = Maker::default();
    for state in [Lifecycle::Archived, Lifecycle::Abandoned, Lifecycle::Closed] {
        let key = m.key();
        let (said, open) = (m.say("one"), m.open());
        let (turn, opened) = (turn_of(&said), turn_of(&open));
        create(store, &key, vec![m.created(), said, open, m.state(state)]);
        assert_eq!(store.conversation(&key).expect("it is there").state, state);
        let error = refused(store, addition(&key, vec![m.say("two")]), "conversation.not_active");
        assert!(matches!(error, Error::Conflict(_)) && error.text().contains(state.as_str()));
        append(store, &key, vec![m.end(kind::INTERRUPTED, opened, "so far")]);
        done(store, m.erase(&key, &[turn]));
        let resume = commit(store, addition(&key, vec![m.state(Lifecycle::Active)]));
        assert_eq!(resume.is_ok(), state != Lifecycle::Closed);
        let next = commit(store, addition(&key, vec![m.say("three")]));
        assert_eq!(next.is_ok(), state != Lifecycle::Closed);
    }
    // An id that belongs to no event is not a turn either.
    let nobody = EventId::from_bytes([9; 16]);
    assert_eq!(
        store.turn(&tenant("acme"), TurnId(nobody.0)).expect_err("nobody said it").code(),
        "turn.absent"
    );
}

/// A store that accepts commits reports that it is ready.
pub fn a_store_that_takes_commits_is_ready(store: &dyn Backend) {
    let m = Maker::default();
    store.ready().expect("before the first one");
    create(store, &m.key(), vec![m.created()]);
    store.ready().expect("and after it");
}

/// Of two resolutions of an approval in one batch, both made for the same state of the log, the first wins. The other is a
/// conflict that names it.
pub fn of_two_resolutions_the_first_wins(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let begun = create(store, &key, vec![m.event(kind::CREATED, &Settings::default())]);
    let body =
        |state: Option<Approval>| ApprovalBody { approval_id: "a1".into(), state, ..ApprovalBody::default() };
    let write = |draft: Draft, request: Option<u64>, seen: u64| Write {
        key: key.clone(),
        action: Action::Approve { drafts: vec![draft], request, last: request, seen },
    };
    let asked = m.event(kind::APPROVAL_REQUESTED, &body(None));
    let head = begun.conversation.head.seq;
    // Neither has seen the request: it is found in the log.
    let resolve = |actor: &str, state: Approval| {
        let draft = m.event(kind::APPROVAL_RESOLVED, &body(Some(state)));
        write(Draft { actor: Some(actor.into()), ..draft }, None, head)
    };
    refused(store, resolve("ana", Approval::Approved), "approval.absent");
    let batch = vec![
        write(asked.clone(), None, head),
        write(m.event(kind::APPROVAL_REQUESTED, &body(None)), None, head),
        resolve("ana", Approval::Approved),
        resolve("bob", Approval::Denied),
    ];
    let answers = store.commit(batch);
    let codes: Vec<&str> =
        answers.iter().map(|answer| answer.as_ref().map_or_else(Error::code, |_| "")).collect();
    assert_eq!(codes, ["", "approval.exists", "", "approval.resolved"]);
    let lost = answers[3].as_ref().expect_err("the second");
    assert!(lost.text().contains("approved by ana"), "{lost}");
    assert_eq!(log(store, &key).len(), 3);
}
