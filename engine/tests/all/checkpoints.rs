//! Checkpoints that are worth their place: shorter than what they cover, true to the turns after them, and replayed as they
//! were shown.

use crate::compacting::{by_hand, policy, talk};
use crate::stage::{Short, Stage, memory, refused};
use everturn_core::conversation::{Retention, Settings};
use everturn_engine::{CompactOptions, NewTurn, Options};
use serde_json::json;

/// "8 tokens into 16": a checkpoint of a few words was longer than they were.
#[test]
fn a_checkpoint_that_would_not_be_shorter_is_refused_in_words() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let id = scope.begin();
        scope.say(id, NewTurn::user("newest rust?"));
        scope.say(id, NewTurn::assistant("1.91"));
        let head = scope.head(id);
        for options in [by_hand(1), CompactOptions { dry_run: true, ..by_hand(1) }] {
            let compacted = scope.conversation(id).compaction().compact(options);
            refused(
                compacted,
                "compaction.nothing",
                "a summary of the oldest turn would be no shorter than the",
            );
        }
        assert_eq!(scope.head(id), head, "nothing is written");
        // With more to cover, there is something to gain.
        talk(&scope, id, 8);
        let compacted = scope.conversation(id).compaction().compact(by_hand(1)).unwrap();
        assert!(compacted.tokens_after < compacted.tokens_before, "{compacted:?}");
        assert_eq!(compacted.covers.turns, 9);
    }
}

#[test]
fn whatever_is_covered_its_checkpoint_is_shorter() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let mut written = 0;
    for _ in 0..20 {
        talk(&scope, id, 2);
        if let Ok(compacted) = scope.conversation(id).compaction().compact(by_hand(1)) {
            assert!(compacted.tokens_after < compacted.tokens_before, "{compacted:?}");
            written += 1;
        }
    }
    assert!(written >= 18, "{written}");
}

/// The automatic run comes back to it once there is more to cover.
#[test]
fn automatic_compaction_does_not_write_a_checkpoint_that_is_no_shorter() {
    let stage = Stage::new();
    let due = policy("compaction", json!({"max_turns": 1, "strategy": "tail", "keep_last": 1}));
    let id = {
        let store = stage.open_with(Options::default());
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin_with(due).id;
        scope.say(id, NewTurn::user("newest rust?"));
        scope.say(id, NewTurn::assistant("1.91"));
        id
    };
    // Closing the store took the last look at what changed.
    let checkpoint = |stage: &Stage| {
        let store = stage.open();
        store.tenant("acme").unwrap().conversation(id).get().unwrap().checkpoint
    };
    assert_eq!(checkpoint(&stage), None);
    {
        let store = stage.open_with(Options::default());
        talk(&store.tenant("acme").unwrap(), id, 8);
    }
    assert!(checkpoint(&stage).is_some());
}

/// An append that needs room, and content that is to be erased, need a checkpoint of any length.
#[test]
fn turns_that_must_be_covered_are_covered_however_short_they_are() {
    let (_store, scope) = memory();
    let room = policy("budget", json!({"max_messages": 2, "recovery": {"compact": {"keep_last": 1}}}));
    let id = scope.begin_with(room).id;
    for word in ["a", "b", "c", "d"] {
        scope.say(id, NewTurn::user(word));
    }
    let kinds = scope.kinds(id);
    assert!(kinds.iter().any(|kind| kind == "compaction"), "{kinds:?}");
    let id = scope.begin_with(Settings { retention: Some(Retention::AuditOnly), ..Settings::default() }).id;
    for word in ["a", "b"] {
        scope.say(id, NewTurn::user(word));
    }
    assert_eq!(scope.conversation(id).compaction().compact(by_hand(1)).unwrap().erased, 1);
}

#[test]
fn what_the_kept_turns_answer_or_finish_is_not_open_in_the_checkpoint() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let id = scope.begin();
        talk(&scope, id, 6);
        scope.say(id, NewTurn::user("Please add a metric for evictions. Which port does the proxy use?"));
        let chat = scope.conversation(id);
        let open = chat.compaction().compact(CompactOptions { dry_run: true, ..by_hand(0) }).unwrap();
        assert_eq!(open.checkpoint.unresolved_questions.len(), 1, "{:?}", open.checkpoint);
        assert_eq!(open.checkpoint.pending_work.len(), 1, "{:?}", open.checkpoint);
        scope.say(id, NewTurn::assistant("Added the metric for evictions. The proxy uses port 8443."));
        let closed = chat.compaction().compact(by_hand(1)).unwrap().checkpoint;
        assert_eq!((closed.unresolved_questions.len(), closed.pending_work.len()), (0, 0), "{closed:?}");
        assert!(!format!("{closed:?}").contains("8443"), "what stays is not summarized: {closed:?}");
    }
}
