//! What is kept and for how long: repeated requests, expected places, retention, time to live, system prompts.

use crate::stage::{START, Short, Stage, Still, memory, refused, words};
use everturn::{AppendOptions, NewConversation, NewTurn, Swept, Tenant};
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Retention, Settings, SystemPrompt};
use everturn_core::event::kind;
use everturn_core::json::Raw;
use everturn_core::limits::EPHEMERAL_TTL_S;
use std::collections::BTreeMap;

fn with_key(key: &str) -> AppendOptions {
    AppendOptions { idempotency_key: Some(key.into()), ..AppendOptions::default() }
}

fn expecting(seq: u64) -> AppendOptions {
    AppendOptions { expected_seq: Some(seq), ..AppendOptions::default() }
}

fn metadata(key: &str, json: &str) -> Settings {
    let raw = Raw::new(json.to_string()).unwrap();
    Settings { metadata: BTreeMap::from([(key.to_string(), raw)]), ..Settings::default() }
}

fn retention(retention: Retention) -> Settings {
    Settings { retention: Some(retention), ..Settings::default() }
}

#[test]
fn a_repeated_request_gives_the_first_answer_also_after_a_restart() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let new = NewConversation { idempotency_key: Some("begin".into()), ..NewConversation::default() };
    let id = scope.create(new.clone()).wait().unwrap().id();
    let turns = vec![NewTurn::user("one"), NewTurn::assistant("two")];
    let first = scope.conversation(id).append_all(turns.clone()).with(with_key("k")).wait().unwrap();
    assert!(!first.repeated);
    scope.say(id, NewTurn::user("something else meanwhile"));
    let asked_again = |scope: &Tenant| {
        let again = scope.conversation(id).append_all(turns.clone()).with(with_key("k")).wait().unwrap();
        assert!(again.repeated);
        assert_eq!(again.turns, first.turns);
        assert_eq!(scope.create(new.clone()).wait().unwrap().id(), id);
        let other = scope.conversation(id).append(NewTurn::user("three")).with(with_key("k")).wait();
        refused(other, "idempotency.reused", "\"k\" was used before with a different request; use a new key");
        assert_eq!(scope.conversation(id).get().unwrap().head.seq, 4, "nothing was written");
    };
    asked_again(&scope);
    drop(scope);
    asked_again(&stage.open().tenant("acme").unwrap());
}

#[test]
fn a_repeated_request_is_known_by_its_key_and_its_whole_body() {
    let (_store, scope) = memory();
    let [one, two] = [0, 1].map(|_| scope.begin());
    let turn = NewTurn::user("hello").by("ann");
    scope.conversation(one).append(turn.clone()).with(with_key("k")).wait().unwrap();
    // A key is of one conversation.
    assert!(!scope.conversation(two).append(turn.clone()).with(with_key("k")).wait().unwrap().repeated);
    // Who said it is part of what was sent.
    refused(
        scope.conversation(one).append(turn.clone().by("bob")).with(with_key("k")).wait(),
        "idempotency.reused",
        "\"k\"",
    );
    // A stale place does not matter to a request that was answered before.
    let late = AppendOptions { expected_seq: Some(1), ..with_key("k") };
    assert!(scope.conversation(one).append(turn).with(late).wait().unwrap().repeated);
}

#[test]
fn an_append_at_a_stale_place_is_refused_with_the_head() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.conversation(id).append(NewTurn::user("a")).with(expecting(1)).wait().unwrap();
    let stale = scope.conversation(id).append(NewTurn::user("b")).with(expecting(1)).wait();
    refused(stale, "append.stale_seq", "head is 2, you expected 1; read from 2 and append again");
    let future = scope.conversation(id).append(NewTurn::user("b")).with(expecting(9)).wait();
    refused(future, "append.stale_seq", "head is 2, you expected 9; read from 3 and append again");
    scope.conversation(id).append(NewTurn::user("b")).with(expecting(2)).wait().unwrap();
}

#[test]
fn of_many_that_expect_the_same_place_exactly_one_gets_it() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let id = scope.begin();
    let asked: Vec<_> = (0..50)
        .map(|n| scope.conversation(id).append(NewTurn::user(&n.to_string())).with(expecting(1)))
        .collect();
    let answers: Vec<_> = asked.into_iter().map(|commit| commit.wait()).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, 2);
}

#[test]
fn a_batch_is_written_whole_or_not_at_all() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let batch = vec![NewTurn::user("good"), NewTurn::message("{\"role\":\"user\",")];
    refused(
        scope.conversation(id).append_all(batch).wait(),
        "json.malformed",
        "message: not JSON at byte 15",
    );
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, 1);
}

#[test]
fn retention_erases_what_is_covered_unless_everything_is_kept() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    for (how, gone) in [(Retention::Full, 0), (Retention::AuditOnly, 2), (Retention::Ephemeral, 2)] {
        let id = scope.begin_with(retention(how)).id;
        for n in 1..=3 {
            scope.say(id, NewTurn::user(&format!("{how} number {n} ")));
        }
        let before = scope.head(id);
        assert_eq!(scope.conversation(id).compaction().apply_retention(3).unwrap(), gone, "{how}");
        let turns = scope.turns(id);
        let left: Vec<bool> = turns.iter().map(|turn| !turn.erased).collect();
        assert_eq!(left, [gone == 0, gone == 0, true], "{how}");
        assert_eq!(words(&turns[2]).unwrap(), format!("{how} number 3 "));
        let report = scope.conversation(id).log().verify(Some(before)).unwrap();
        assert_eq!((report.erased, report.contains_head), (gone as u64, Some(true)));
        let found = stage.files_with(&format!("{how} number 1 ")).len()
            + stage.files_with(&format!("{how} number 2 ")).len();
        assert_eq!(found > 0, gone == 0, "{how}");
        if gone > 0 {
            let event = scope.conversation(id).log().read(4, 1).unwrap().remove(0);
            assert_eq!(event.kind, kind::ERASED);
            assert!(event.text().unwrap().contains(&format!("\"reason\":\"retention {how}\"")), "{event:?}");
        }
        // Once more changes nothing.
        assert_eq!(scope.conversation(id).compaction().apply_retention(3).unwrap(), 0);
    }
}

#[test]
fn retention_of_a_fork_leaves_what_it_inherited_to_the_parent() {
    let (_store, scope) = memory();
    let id = scope.begin_with(retention(Retention::AuditOnly)).id;
    scope.say(id, NewTurn::user("the parent's"));
    let fork = scope.conversation(id).fork(2).wait().unwrap().get().unwrap();
    assert_eq!(fork.retention, Retention::AuditOnly);
    scope.say(fork.id, NewTurn::user("its own"));
    assert_eq!(scope.conversation(fork.id).compaction().apply_retention(100).unwrap(), 1);
    assert_eq!(words(&scope.turns(id)[0]).unwrap(), "the parent's");
}

#[test]
fn an_ephemeral_conversation_lives_a_day_unless_it_says_otherwise() {
    let (_store, scope) = memory();
    assert_eq!(scope.begin_with(retention(Retention::Ephemeral)).ttl, Some(EPHEMERAL_TTL_S));
    assert_eq!(EPHEMERAL_TTL_S, 86_400);
    let own = Settings { ttl: Some(Some(60)), ..retention(Retention::Ephemeral) };
    assert_eq!(scope.begin_with(own).ttl, Some(60));
    let later = scope.begin();
    assert_eq!(scope.conversation(later).get().unwrap().ttl, None);
    let updated = scope.conversation(later).update(retention(Retention::Ephemeral)).wait().unwrap();
    assert_eq!(updated.ttl, Some(EPHEMERAL_TTL_S));
}

#[test]
fn retention_in_the_metadata_is_the_retention() {
    let (_store, scope) = memory();
    let conversation = scope.begin_with(metadata("retention", "\"audit-only\""));
    assert_eq!(conversation.retention, Retention::AuditOnly);
    // Said in two places, it says the same in both.
    let changed = scope.conversation(conversation.id).update(retention(Retention::Full)).wait().unwrap();
    assert_eq!(changed.metadata["retention"].get(), "\"full\"");
    let changed =
        scope.conversation(conversation.id).update(metadata("retention", "\"ephemeral\"")).wait().unwrap();
    assert_eq!((changed.retention, changed.ttl), (Retention::Ephemeral, Some(EPHEMERAL_TTL_S)));
    let wrong = scope.conversation(conversation.id).update(metadata("retention", "\"for ever\"")).wait();
    refused(wrong, "retention.unknown", "\"for ever\" is not one of full, audit-only, ephemeral");
}

#[test]
fn what_has_expired_is_deleted_and_leaves_a_tombstone() {
    let clock = Still::new(1);
    let stage = Stage::new();
    let store = stage.open_with(clock.options());
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(Settings { ttl: Some(Some(100)), ..Settings::default() }).id;
    let forever = scope.begin();
    scope.say(id, NewTurn::user("not for ever"));
    clock.advance_s(60);
    let head = scope.try_say(id, NewTurn::user("touched")).unwrap().head;
    clock.advance_s(99);
    assert_eq!(store.sweep().unwrap(), Swept::default(), "its time counts from the last change");
    clock.advance_s(1);
    assert_eq!(store.sweep().unwrap(), Swept { expired: 1, ..Swept::default() });
    refused(scope.conversation(id).get(), "conversation.absent", &format!("no conversation {id}"));
    assert_eq!(stage.files_with("not for ever"), Vec::<std::path::PathBuf>::new());
    let tombstones = scope.tombstones().unwrap();
    assert_eq!(tombstones.len(), 1);
    assert_eq!((tombstones[0].id, tombstones[0].head), (id, head));
    assert_eq!(tombstones[0].deleted, START.plus_s(160));
    assert_eq!(tombstones[0].reason, "its time to live has passed");
    assert!(scope.conversation(forever).get().is_ok());
}

fn prompt(text: &str) -> Settings {
    Settings { system_prompt: Some(Some(SystemPrompt::new(text.into()))), ..Settings::default() }
}

fn shown(conversation: &Conversation) -> SystemPrompt {
    conversation.metadata["system_prompt"].read().unwrap()
}

#[test]
fn a_system_prompt_leads_the_log_as_a_fingerprint_and_stands_in_the_metadata() {
    let (_store, scope) = memory();
    let id = scope.begin_with(prompt("Be brief.")).id;
    let sha256 = Hash::of(b"Be brief.");
    let first = scope.conversation(id).log().read(0, 1).unwrap().remove(0);
    assert_eq!((first.seq, first.kind.as_str(), first.visibility.as_str()), (1, "system_prompt", "internal"));
    assert_eq!(first.text().unwrap(), format!("{{\"sha256\":\"{sha256}\",\"bytes\":9}}"));
    let now = scope.conversation(id).get().unwrap();
    assert_eq!(shown(&now), SystemPrompt { content: "Be brief.".into(), sha256, bytes: 9 });
    assert_eq!(now.turns, 0, "it is never a message");

    // The same again, in any of its spellings, adds nothing.
    for same in [prompt("Be brief."), metadata("system_prompt", "\"Be brief.\"")] {
        scope.conversation(id).update(same).wait().unwrap();
        assert_eq!(scope.conversation(id).get().unwrap().head.seq, 2);
    }
    scope.conversation(id).update(metadata("system_prompt", "\"Be kind.\"")).wait().unwrap();
    assert_eq!(scope.kinds(id)[2..], ["system_prompt", "conversation.updated"]);
    assert_eq!(shown(&scope.conversation(id).get().unwrap()).content, "Be kind.");
    assert_eq!(
        scope.conversation(id).state().system_prompt(Some(sha256)).unwrap().unwrap().content,
        "Be brief."
    );
    assert_eq!(scope.conversation(id).state().system_prompt(Some(Hash::of(b"never said"))).unwrap(), None);

    // Removed, it stays recoverable too.
    scope.conversation(id).update(metadata("system_prompt", "null")).wait().unwrap();
    assert_eq!(scope.conversation(id).state().system_prompt(None).unwrap(), None);
    assert!(!scope.conversation(id).get().unwrap().metadata.contains_key("system_prompt"));
    assert_eq!(
        scope.conversation(id).state().system_prompt(Some(Hash::of(b"Be kind."))).unwrap().unwrap().content,
        "Be kind."
    );
    // And a fork takes both along.
    let fork = scope.conversation(id).fork(4).wait().unwrap().id();
    assert_eq!(
        scope.conversation(fork).state().system_prompt(Some(sha256)).unwrap().unwrap().content,
        "Be brief."
    );
}

#[test]
fn setting_what_is_set_already_adds_nothing() {
    let (_store, scope) = memory();
    let settings = Settings {
        owner: Some(Some("ann".into())),
        title: Some(Some("Trip".into())),
        ttl: Some(Some(60)),
        retention: Some(Retention::AuditOnly),
        policy: BTreeMap::from([("redaction".to_string(), Raw::new("\"mask\"".into()).unwrap())]),
        ..metadata("k", "{\"a\":1}")
    };
    let id = scope.begin_with(settings.clone()).id;
    let before = scope.conversation(id).get().unwrap();
    assert_eq!(scope.conversation(id).update(settings).wait().unwrap(), before);
    assert_eq!(scope.conversation(id).update(Settings::default()).wait().unwrap(), before);
    scope.conversation(id).update(metadata("never there", "null")).wait().unwrap();
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, 1);
    // Of two, only the new one is written.
    let both = Settings { title: Some(Some("Trip".into())), owner: Some(None), ..Settings::default() };
    assert_eq!(scope.conversation(id).update(both).wait().unwrap().owner, None);
    assert_eq!(scope.conversation(id).log().read(1, 1).unwrap()[0].text().unwrap(), "{\"owner\":null}");
}
