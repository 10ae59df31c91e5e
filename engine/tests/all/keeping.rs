//! What is kept and for how long: repeated requests, expected places, retention, time to live, system prompts.

use crate::compacting::{by_hand, policy};
use crate::stage::{START, Short, Stage, Still, memory, refused, words};
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Retention, Settings, SystemPrompt};
use everturn_core::event::{Visibility, kind};
use everturn_core::json::Raw;
use everturn_core::limits::EPHEMERAL_TTL_S;
use everturn_engine::{
    AppendOptions, Caller, Change, ContextOptions, Everturn, ForkOptions, Lifecycle, NewConversation,
    NewStream, NewTurn, Options, Swept, Tenant,
};
use serde_json::json;
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

/// A client that missed the answer must learn that its turn is there, and not that it is refused.
#[test]
fn a_repeated_request_gives_the_first_answer_whatever_was_changed_since() {
    let (_store, scope) = memory();
    let full = json!({"max_messages": 2, "recovery": "reject"});
    let changes: [Change; 4] = [
        Lifecycle::Closed.into(),
        Lifecycle::Archived.into(),
        policy("redaction", json!("mask")).into(),
        policy("budget", full).into(),
    ];
    for change in changes {
        let chat = scope.conversation(scope.begin());
        // A name like those of secrets is masked in events.
        let key = "job-sk-2026-11-19-nightly-import-0001";
        let say = || chat.append("the key is AKIAIOSFODNN7EXAMPLE").with(with_key(key)).wait().unwrap();
        let open = || {
            let new = NewStream { idempotency_key: Some("open".into()), ..NewStream::default() };
            chat.open(new).wait().unwrap().id
        };
        let (said, opened) = (say(), open());
        chat.open_turn(opened).commit(NewTurn::assistant("noted")).wait().unwrap();
        let head = chat.update(change.clone()).wait().unwrap().head;
        let again = say();
        assert!(again.repeated, "{change:?}");
        assert_eq!((again.turns[0].id, open()), (said.turns[0].id, opened), "{change:?}");
        assert_eq!(chat.get().unwrap().head, head, "{change:?}");
    }
}

#[test]
fn a_fork_is_found_again_after_its_parent_was_deleted() {
    let (_store, scope) = memory();
    let chat = scope.conversation(scope.begin());
    let fork = || {
        let options = ForkOptions { idempotency_key: Some("fork".into()), ..ForkOptions::default() };
        chat.fork(options).wait()
    };
    let id = fork().unwrap().id();
    chat.delete("test").wait().unwrap();
    assert_eq!(fork().unwrap().id(), id);
}

/// Regression: the second of two actors who chose the same key was answered with the turn of the first, and wrote nothing.
#[test]
fn a_key_is_its_callers_own() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let acting = |actor: &str| scope.called_by(Caller::default().acting_as(vec![actor.into()]).unwrap());
    let say = |actor: &str| {
        let turn = NewTurn { visibility: Some(Visibility::Private), ..NewTurn::user("yes") };
        acting(actor).conversation(id).append(turn).with(with_key("msg-1")).wait().unwrap()
    };
    let (ana, ben) = (say("ana"), say("ben"));
    assert!(!ben.repeated && ben.turns[0].id != ana.turns[0].id);
    assert_eq!(ben.turns[0].actor.as_deref(), Some("ben"));
    let again = say("ana");
    assert!(again.repeated && again.turns == ana.turns);
    let other = acting("ana").conversation(id).append(NewTurn::user("no")).with(with_key("msg-1")).wait();
    refused(other, "idempotency.reused", "\"msg-1\" was used before");
    let begin = |actor: &str| {
        let new = NewConversation { idempotency_key: Some("begin".into()), ..NewConversation::default() };
        acting(actor).create(new).wait().unwrap().id()
    };
    assert_eq!(begin("ana"), begin("ana"));
    assert_ne!(begin("ana"), begin("ben"));
    // However many actors there are, and in whatever order they are named.
    let mut names: Vec<String> = (0..100).map(|n| format!("{n}").repeat(60)).collect();
    let mut say = || {
        names.reverse();
        let caller = Caller::default().acting_as(names.clone()).unwrap();
        let turn = NewTurn { actor: Some("7".repeat(60)), ..NewTurn::user("yes") };
        scope.called_by(caller).conversation(id).append(turn).with(with_key("msg-2")).wait().unwrap()
    };
    let first = say();
    assert!(say().repeated && !first.repeated);
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

/// Trimming used to move the start of the view and to leave the words where they were: 0 of 12 turns were erased.
#[test]
fn what_is_trimmed_from_an_ephemeral_conversation_is_erased() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        for (how, erased) in [(Retention::Ephemeral, true), (Retention::AuditOnly, false)] {
            let mut settings = retention(how);
            let limits = r#"{"max_messages":4,"recovery":{"trim":{"keep_last":2}}}"#;
            settings.policy.insert("budget".into(), Raw::new(limits.into()).unwrap());
            let id = scope.begin_with(settings).id;
            for n in 0..12 {
                scope.say(id, NewTurn::user(&format!("{how} word {n} ")));
            }
            let start = scope.conversation(id).get().unwrap().view_start().0;
            assert!(start > 0);
            for (n, turn) in scope.turns(id).iter().enumerate() {
                assert_eq!(turn.erased, erased && turn.seq <= start, "{how} {n}");
            }
            scope.conversation(id).log().verify(None).unwrap();
        }
    }
    assert_eq!(stage.files_with("ephemeral word 0 "), Vec::<std::path::PathBuf>::new());
    assert!(!stage.files_with("audit-only word 0 ").is_empty());
}

/// A summary that came with a projection outlived the turns that it was about.
#[test]
fn a_given_summary_goes_with_what_it_sums_up() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        for how in [Retention::AuditOnly, Retention::Ephemeral] {
            let chat = scope.conversation(scope.begin_with(retention(how)).id);
            for n in 0..4 {
                scope.say(chat.id(), NewTurn::user(&format!("numbat {n}")));
            }
            let given =
                json!({"policy": "summary_prefix", "summary": "the numbat is striped", "keep_last": 1});
            chat.contexts().project_turn(&everturn_engine::script::options(&given).unwrap()).unwrap();
            assert!(format!("{:?}", chat.log().read(0, 100).unwrap()).contains("striped"));
            chat.compaction().compact(by_hand(0)).unwrap();
            let events = format!("{:?}", chat.log().read(0, 100).unwrap());
            assert!(!events.contains("numbat"), "{how}: {events}");
            assert!(chat.state().read().unwrap().checkpoint.is_some(), "the checkpoint stays");
            chat.log().verify(None).unwrap();
        }
    }
    assert_eq!(stage.files_with("striped"), Vec::<std::path::PathBuf>::new());
}

/// The content of covered turns used to be erased and quoted by the checkpoint.
#[test]
fn the_checkpoint_of_what_is_not_kept_quotes_nothing() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        for how in [Retention::AuditOnly, Retention::Ephemeral] {
            let id = scope.begin_with(retention(how)).id;
            let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"send_mail","input":{"to":"zebra"}}]}"#;
            for round in 1..=2 {
                scope.say(
                    id,
                    NewTurn::user(
                        "We decided to paint the zebra green. Never tell the otter! See src/stripes.rs.",
                    ),
                );
                scope.say(id, NewTurn::message(call));
                scope.say(id, NewTurn::tool_result("c1", "error: the zebra is away, see trace 4f1c22ab9"));
                scope.say(id, NewTurn::assistant("Why is the zebra away? I will ask the otter tomorrow."));
                scope.conversation(id).compaction().compact(by_hand(0)).unwrap();
                let state = scope.conversation(id).state().read().unwrap();
                let checkpoint = state.checkpoint.unwrap();
                let rendered = everturn_views::compaction::render(&checkpoint);
                let shown = format!("{} {rendered}", serde_json::to_string(&checkpoint).unwrap());
                for word in ["zebra", "otter", "decided", "4f1c22ab9", "paint"] {
                    assert!(!shown.contains(word), "{how}: {word} in {shown}");
                }
                assert_eq!(checkpoint.relevant_files, ["src/stripes.rs"]);
                let counts = [
                    format!("turns by assistant: {}", 2 * round),
                    format!("turns by tool: {round}"),
                    format!("turns by user: {round}"),
                    format!("calls of send_mail: {round}"),
                ];
                assert_eq!(checkpoint.completed_work, counts);
                assert!(checkpoint.handoff_md.contains("is not kept"), "it says so");
            }
        }
    }
    assert_eq!(stage.files_with("zebra green"), Vec::<std::path::PathBuf>::new());
}

/// Expired conversations used to be there until the next sweep, up to half a minute later.
#[test]
fn what_has_expired_is_absent_for_every_reader_at_once() {
    let clock = Still::new(8);
    let stage = Stage::new();
    let stored = stage.open_with(clock.options());
    let in_memory = Everturn::open_with("memory:", clock.options()).unwrap();
    let mut readers = Vec::new();
    for store in [&in_memory, &stored] {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin_with(Settings { ttl: Some(Some(100)), ..Settings::default() }).id;
        let turn = scope.say(id, NewTurn::user("a zebra for a moment"));
        let kept = scope.begin();
        readers.push((scope, id, turn.id, kept));
    }
    let beside = stage.open_with(Options { read_only: true, ..clock.options() });
    let (_, id, turn, kept) = readers[1].clone();
    readers.push((beside.tenant("acme").unwrap(), id, turn, kept));
    clock.advance_s(99);
    for (scope, id, turn, _) in &readers {
        scope.conversation(*id).get().unwrap();
        scope.turn(*turn).unwrap();
    }
    clock.advance_s(1);
    for (scope, id, turn, kept) in &readers {
        let chat = scope.conversation(*id);
        refused(chat.get(), "conversation.absent", "no conversation");
        refused(chat.history(Default::default()).map(drop), "conversation.absent", "no conversation");
        refused(chat.log().read(0, 10), "conversation.absent", "no conversation");
        refused(chat.state().read(), "conversation.absent", "no conversation");
        refused(chat.transcript(), "conversation.absent", "no conversation");
        refused(
            chat.contexts().build(&ContextOptions::new(1000)).map(drop),
            "conversation.absent",
            "no conversation",
        );
        refused(scope.turn(*turn), "turn.absent", "no turn");
        let listed = scope.list(Default::default()).unwrap().data;
        assert_eq!(listed.iter().map(|it| it.id).collect::<Vec<_>>(), [*kept]);
    }
    for (scope, id, ..) in &readers[..2] {
        refused(scope.try_say(*id, NewTurn::user("too late")), "conversation.absent", "no conversation");
    }
    assert_eq!(stored.sweep().unwrap().expired, 1);
}

#[test]
fn opening_a_store_sweeps_it() {
    let clock = Still::new(9);
    let stage = Stage::new();
    let id = {
        let store = stage.open_with(clock.options());
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin_with(Settings { ttl: Some(Some(100)), ..Settings::default() }).id;
        scope.say(id, NewTurn::user("a zebra for a moment"));
        id
    };
    clock.advance_s(100);
    let store = stage.open_with(clock.options());
    assert_eq!(store.tenant("acme").unwrap().tombstones().unwrap()[0].id, id);
    assert_eq!(stage.files_with("a zebra for"), Vec::<std::path::PathBuf>::new());
    assert_eq!(store.sweep().unwrap().expired, 1, "the first sweep tells what opening did");
    assert_eq!(store.sweep().unwrap().expired, 0);
}
