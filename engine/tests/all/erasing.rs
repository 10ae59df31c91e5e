//! Words that must be gone, and secrets that must never arrive: looked for in every file of the store.

use crate::compacting::by_hand;
use crate::importing::Claude;
use crate::stage::{Short, Stage, memory, refused};
use base64::Engine;
use everturn_core::conversation::{Retention, Settings};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::turn::Status;
use everturn_engine::{ContextOptions, ForkOptions, NewStream, NewTurn, Options, Tenant};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const NOWHERE: Vec<PathBuf> = Vec::new();

fn redaction(mode: &str) -> Settings {
    let raw = Raw::of(&mode).unwrap();
    Settings { policy: BTreeMap::from([("redaction".to_string(), raw)]), ..Settings::default() }
}

fn secret() -> String {
    // Put together at run time, so that no scanner takes this file for a leak.
    format!("AKIA{}", "IOSFODNN7EXAMPLE")
}

fn around(scope: &Tenant, id: ConversationId, what: &str) {
    for n in 0..20 {
        scope.say(id, NewTurn::user(&format!("{what} {n} {}", "filler ".repeat(n * 30))));
    }
}

/// An erasure was called done while its words stayed in an index that could not be written.
#[test]
fn an_erasure_that_does_not_reach_the_index_says_so() {
    let stage = Stage::new();
    let store = stage.open_with(Options { index: true, ..crate::stage::quiet() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("the unspeakable word"));
    store.index_now().unwrap();
    let index = stage.folder.path().join("store.db-index").join("t-acme.db");
    let aside = stage.folder.path().join("aside.db");
    drop((scope, store));
    std::fs::rename(&index, &aside).unwrap();
    std::fs::create_dir(&index).unwrap();
    let store = stage.open_with(Options { index: true, ..crate::stage::quiet() });
    let scope = store.tenant("acme").unwrap();
    refused(
        scope.conversation(id).erase(turn.id, None, "asked for").wait(),
        "recall.scrub",
        "its text stays in the index",
    );
    assert!(scope.turn(turn.id).unwrap().erased, "in the log it is");
    std::fs::remove_dir(&index).unwrap();
    std::fs::rename(&aside, &index).unwrap();
    store.index_now().unwrap();
    drop((scope, store));
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
}

/// Regression: the input of a recorded call, which is the same text, stayed as a file beside the store.
#[test]
fn a_text_given_for_a_call_goes_with_the_turn_that_repeats_it() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    for ephemeral in [false, true] {
        let id = scope.begin();
        let chat = scope.conversation(id);
        let question = "the unspeakable question";
        let input = Raw::of(&serde_json::json!({"content": question, "role": "user"})).unwrap();
        let options = ContextOptions {
            input: vec![input],
            instructions: Some("Be brief.".into()),
            ..ContextOptions::new(2000)
        };
        chat.contexts().record(&chat.contexts().build(&options).unwrap()).unwrap();
        let turn = scope.say(id, NewTurn::user(question).by("ann"));
        assert_ne!(stage.files_with("unspeakable"), NOWHERE, "otherwise this test proves nothing");
        match ephemeral {
            false => drop(chat.erase(turn.id, None, "asked for").wait().unwrap()),
            true => {
                let retention = Some(Retention::Ephemeral);
                chat.update(Settings { retention, ..Settings::default() }).wait().unwrap();
                scope.say(id, NewTurn::user("and something else"));
                chat.compaction().compact(by_hand(1)).unwrap();
            }
        }
        assert_eq!(stage.files_with("unspeakable"), NOWHERE);
        assert_ne!(stage.files_with("Be brief."), NOWHERE, "another text stays");
        chat.log().verify(None).unwrap();
    }
}

/// Regression: the checkpoint of an imported session was erased with the turn, the line that it came from was not.
#[test]
fn a_line_that_became_a_checkpoint_is_erased_with_it() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let mut file = Claude { lines: Vec::new() };
    file.user("a", None, "Tell me about the unspeakable word, please.");
    file.say("b", Some("a"), "It has four letters.");
    file.other(serde_json::json!({"type": "user", "isCompactSummary": true, "isVisibleInTranscriptOnly": true, "uuid": "c",
        "parentUuid": null, "logicalParentUuid": "b", "sessionId": "s-1", "timestamp": "2026-01-01T00:01:00.000Z",
        "message": {"role": "user", "content": "Summary: they spoke of the unspeakable word and its letters."}}));
    file.user("d", Some("c"), "Go on.");
    let id = scope.import(file.text().as_bytes(), &mut |_| {}).unwrap().conversation.id;
    let first = scope.turns(id)[0].id;
    scope.conversation(id).erase(first, None, "asked for").wait().unwrap();
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
    assert_ne!(stage.files_with("four letters"), NOWHERE, "what was not erased stays");
}

/// Regression: what was summarized before the retention changed stayed, and the checkpoint quoted it.
#[test]
fn a_stricter_retention_reaches_what_is_summarized_already() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    for retention in [Retention::Ephemeral, Retention::AuditOnly] {
        let id = scope.begin();
        let chat = scope.conversation(id);
        for n in 0..4 {
            scope.say(
                id,
                NewTurn::user(&format!("Tell me the unspeakable word {n}, and please keep it short.")),
            );
        }
        chat.compaction().compact(by_hand(0)).unwrap();
        assert_ne!(stage.files_with("unspeakable"), NOWHERE, "otherwise this test proves nothing");
        chat.update(Settings { retention: Some(retention), ..Settings::default() }).wait().unwrap();
        assert_eq!(stage.files_with("unspeakable"), NOWHERE);
        assert!(scope.turns(id).iter().all(|turn| turn.erased));
        let checkpoint = chat.state().read().unwrap().checkpoint.unwrap();
        assert!(checkpoint.handoff_md.contains('4'), "it still counts: {}", checkpoint.handoff_md);
    }
}

#[test]
fn erased_words_are_in_no_file_and_the_chain_still_verifies() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    around(&scope, id, "before");
    let turn = scope.say(id, NewTurn::user("the unspeakable word").by("ann"));
    around(&scope, id, "after");
    let head = scope.head(id);
    assert_ne!(stage.files_with("unspeakable"), NOWHERE, "otherwise this test proves nothing");
    scope.conversation(id).erase(turn.id, Some("dpo".into()), "asked for by ann").wait().unwrap();
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);

    let erased = scope.turn(turn.id).unwrap();
    assert!(erased.erased);
    assert_eq!((erased.message, erased.seq, erased.actor.as_deref()), (None, turn.seq, Some("ann")));
    let report = scope.conversation(id).log().verify(Some(head)).unwrap();
    assert_eq!((report.erased, report.contains_head), (1, Some(true)));
    let event = scope.conversation(id).log().read(report.events - 1, 1).unwrap().remove(0);
    assert_eq!(
        (event.kind.as_str(), event.actor.as_deref(), event.turn),
        ("turn.erased", Some("dpo"), Some(turn.id))
    );
    assert!(event.text().unwrap().contains("asked for by ann"));
    // Its neighbours are untouched.
    assert_eq!(scope.turns(id).iter().filter(|turn| turn.erased).count(), 1);
    drop((scope, store));
    assert_eq!(stage.files_with("unspeakable"), NOWHERE, "also after closing");
    stage.open().rebuild().unwrap();
    assert_eq!(stage.files_with("unspeakable"), NOWHERE, "also after making the index again");
}

#[test]
fn a_streamed_turn_is_erased_with_all_its_chunks() {
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: Duration::ZERO, ..Options::default() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    // Another one stays open, so that its chunks stay too.
    let other = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    for n in 0..30 {
        scope.conversation(id).open_turn(turn).chunk(None, &format!("unspeakable-{n} ")).unwrap();
        scope.conversation(id).open_turn(other).chunk(None, &format!("harmless-{n} ")).unwrap();
        scope.say(id, NewTurn::user("meanwhile"));
    }
    refused(
        scope.conversation(id).erase(turn, None, "").wait(),
        "turn.open",
        "is still open; commit or abort it first",
    );
    scope.conversation(id).open_turn(turn).abort("enough", None).wait().unwrap();
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
    scope.conversation(id).open_turn(other).commit(NewTurn::default()).wait().unwrap();
    drop((scope, store));
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
}

#[test]
fn an_erased_payload_and_its_name_are_in_no_file() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let bytes = "unspeakable ".repeat(1000);
    let data = base64::engine::general_purpose::STANDARD.encode(&bytes);
    let message = format!(
        r#"{{"role":"user","content":[{{"type":"file","filename":"shameful.txt","file_data":"data:text/plain;base64,{data}"}}]}}"#
    );
    let turn = scope.say(id, NewTurn::message(message));
    assert_eq!(stage.files_with("unspeakable").len(), 1);
    scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
    for gone in ["unspeakable", "shameful.txt", &data[..40]] {
        assert_eq!(stage.files_with(gone), NOWHERE, "{gone}");
    }
    assert_eq!(scope.conversation(id).log().verify(None).unwrap().erased, 2, "the turn and its asset");
}

#[test]
fn a_deleted_conversation_is_in_no_file_but_its_tombstone_is() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let settings = Settings {
        title: Some(Some("unspeakable title".into())),
        owner: Some(Some("unspeakable-owner".into())),
        ..Settings::default()
    };
    let id = scope.begin_with(settings).id;
    scope.say(id, NewTurn::user("unspeakable").by("unspeakable-actor"));
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).chunk(None, "unspeakable").unwrap();
    let head = scope.conversation(id).get().unwrap().head;
    let tombstone = scope.conversation(id).delete("contract ended").wait().unwrap();
    assert_eq!((tombstone.id, tombstone.head), (id, head));
    assert_eq!(scope.tombstones().unwrap(), [tombstone]);
    drop((scope, store));
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
    refused(
        stage.open().tenant("acme").unwrap().conversation(id).open_turn(turn).chunk(None, "more"),
        "conversation.absent",
        "no conversation",
    );
}

#[test]
fn an_erasure_shows_in_forks_too_because_the_words_are_kept_once() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("shared"));
    let fork = scope.conversation(id).fork(turn.seq).wait().unwrap().id();
    scope.conversation(fork).erase(turn.id, None, "asked for").wait().unwrap();
    assert!(scope.conversation(id).turn(turn.id).unwrap().erased);
    assert_eq!(scope.kinds(id).len(), 2, "it is recorded where it was asked for");
    assert_eq!(scope.conversation(id).log().verify(None).unwrap().erased, 1);
    assert_eq!(scope.conversation(fork).log().verify(None).unwrap().erased, 1);
}

#[test]
fn a_secret_is_marked_by_default_and_kept() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user(&format!("use {} please", secret())));
    assert!(turn.message.unwrap().get().contains(&secret()));
    let marked = turn.metadata["secrets"].get();
    assert!(marked.contains("\"kind\":\"aws_access_key\"") && !marked.contains(&secret()), "{marked}");
    let looked_away = scope.begin_with(redaction("off")).id;
    let turn = scope.say(looked_away, NewTurn::user(&secret()));
    assert!(turn.metadata.is_empty());
}

#[test]
fn a_masked_secret_never_reaches_a_file_in_any_way_a_turn_can_come() {
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: Duration::ZERO, ..Options::default() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(redaction("mask")).id;
    let said = format!("use {} please", secret());
    let first = scope.say(id, NewTurn::user(&said));
    assert!(first.message.as_ref().unwrap().get().contains("use ‹secret:aws_access_key:"), "{first:?}");
    let keyed = everturn_engine::AppendOptions { idempotency_key: Some("k".into()), ..Default::default() };
    scope.conversation(id).append(NewTurn::user(&said)).with(keyed).wait().unwrap();
    scope.conversation(id).supersede(first.id, NewTurn::user(&said)).wait().unwrap();
    let block = format!(
        r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"1","name":"f","input":{{"k":"{}"}}}}]}}"#,
        secret()
    );
    scope.say(id, NewTurn::message(block));
    let [committed, aborted, left] = [0, 1, 2].map(|_| {
        let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
        scope.conversation(id).open_turn(turn).chunk(None, &said).unwrap();
        turn
    });
    scope.conversation(id).open_turn(committed).commit(NewTurn::default()).wait().unwrap();
    scope.conversation(id).open_turn(aborted).abort("enough", None).wait().unwrap();
    let fork = scope.conversation(id).fork(2).wait().unwrap().id();
    scope.say(fork, NewTurn::user(&said));
    drop((scope, store));
    let scope = stage.open().tenant("acme").unwrap();
    assert_eq!(scope.turn(left).unwrap().status, Status::Interrupted);
    assert_eq!(stage.files_with(&secret()), NOWHERE);
    assert_ne!(stage.files_with("‹secret:aws_access_key:"), NOWHERE);
}

/// A fork has the checkpoint of where it began. When that is erased, all its views go back to what is left: its transcript
/// value used to begin after turns that were in no summary.
#[test]
fn a_fork_whose_checkpoint_was_erased_reads_the_same_everywhere() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let id = scope.begin();
        around(&scope, id, "word");
        let chat = scope.conversation(id);
        chat.compaction().compact(by_hand(12)).unwrap();
        let older = chat.get().unwrap().checkpoint;
        chat.compaction().compact(by_hand(3)).unwrap();
        let fork = chat.fork(ForkOptions::default()).wait().unwrap().id();
        let nested = scope.conversation(fork).fork(ForkOptions::default()).wait().unwrap().id();
        let erased = scope.turns(id)[12].id;
        chat.erase(erased, None, "asked for").wait().unwrap();
        for fork in [fork, nested].map(|fork| scope.conversation(fork)) {
            assert_eq!(fork.get().unwrap().checkpoint, older);
            assert_eq!(fork.state().read().unwrap().summarized_through, older.map(|at| at.through));
            let value: serde_json::Value = serde_json::from_str(&fork.transcript().unwrap()).unwrap();
            let messages = value["messages"].to_string();
            for n in (8..20).filter(|n| *n != 12) {
                assert!(messages.contains(&format!("word {n} ")), "{n}: {messages}");
            }
            fork.log().verify(None).unwrap();
        }
        assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
    }
}

/// What a fork calls pending does not depend on when somebody looked.
#[test]
fn a_call_that_was_erased_waits_in_no_fork() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("Q"));
    let call = serde_json::json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "k1", "name": "run", "input": {}}]});
    let turn = scope.say(id, NewTurn::message(call.to_string())).id;
    let fork = scope.conversation(id).fork(ForkOptions::default()).wait().unwrap().id();
    scope.say(fork, NewTurn::user("in the fork"));
    let pending = |id| scope.conversation(id).state().read().unwrap().pending_tools.len();
    assert_eq!(pending(fork), 1);
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    assert_eq!((pending(id), pending(fork)), (0, 0));
}
