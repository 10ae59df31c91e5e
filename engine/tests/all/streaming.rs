//! Turns that come in chunks: shown at once, durable a moment later, ended exactly once.

use crate::stage::{Short, Stage, Still, memory, refused, until, words};
use everturn_core::conversation::Settings;
use everturn_core::event::kind;
use everturn_core::id::{Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::STREAM_BYTES_MAX;
use everturn_core::turn::{Partial, Role, Status, Successor};
use everturn_engine::{
    Everturn, HistoryEntry, HistoryQuery, Lifecycle, NewConversation, NewStream, NewTurn, Options, Swept,
    Update,
};
use everturn_store::Log;
use everturn_store::sqlite::Sqlite;
use std::collections::BTreeMap;
use std::time::Duration;

/// So long that nothing becomes durable before the store is closed.
const NEVER: Duration = Duration::from_secs(3600);

fn raw(json: &str) -> Raw {
    Raw::new(json.to_string()).unwrap()
}

#[test]
fn many_chunks_become_durable_in_few_writes() {
    const CHUNKS: usize = 2000;
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: Duration::from_millis(20), ..Options::default() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let wal = || std::fs::metadata(stage.folder.path().join("store.db-wal")).unwrap().len();
    let before = wal();
    let mut text = String::new();
    for n in 0..CHUNKS {
        let piece = format!("{n} ");
        scope.conversation(id).open_turn(turn).chunk(None, &piece).unwrap();
        text += &piece;
    }
    let reader = Sqlite::open_read_only(&stage.path()).unwrap();
    let key = Key { tenant: TenantName::new("acme").unwrap(), id };
    until("the whole text is durable", || reader.open_text(&key, turn).unwrap() == text);
    // A write costs at least two pages of the write-ahead log.
    let written = wal() - before;
    assert!(written < (CHUNKS * 4096 / 4) as u64, "{CHUNKS} chunks took {written} bytes of log");
}

#[test]
fn chunks_are_not_written_before_the_debounce_time_and_all_of_them_on_closing() {
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: NEVER, ..Options::default() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).chunk(None, "as far as it came").unwrap();
    let key = Key { tenant: TenantName::new("acme").unwrap(), id };
    assert_eq!(Sqlite::open_read_only(&stage.path()).unwrap().open_text(&key, turn).unwrap(), "");
    drop((scope, store));
    let reader = Sqlite::open_read_only(&stage.path()).unwrap();
    assert_eq!(reader.open_text(&key, turn).unwrap(), "as far as it came");
}

#[test]
fn a_turn_left_open_comes_back_as_interrupted_with_the_durable_text() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let new = NewStream {
        actor: Some("gpt".into()),
        model: Some("m-1".into()),
        metadata: BTreeMap::from([("run".to_string(), raw("7"))]),
        ..NewStream::default()
    };
    let turn = scope.conversation(id).open(new).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).chunk(Some(0), "half of ").unwrap();
    scope.conversation(id).open_turn(turn).chunk(Some(8), "a thought").unwrap();
    assert_eq!(scope.turn(turn).unwrap().status, Status::Pending);
    drop((scope, store));

    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let turn = scope.turn(turn).unwrap();
    assert_eq!(turn.status, Status::Interrupted);
    assert_eq!(words(&turn).unwrap(), "half of a thought");
    assert_eq!(turn.reason.as_deref(), Some("the process that wrote it ended"));
    assert_eq!((turn.actor.as_deref(), turn.model.as_deref()), (Some("gpt"), Some("m-1")));
    assert_eq!(turn.metadata.get("run").map(Raw::get), Some("7"));
    assert_eq!(turn.superseded_by, None);
    assert_eq!(scope.kinds(id).last().unwrap(), "turn.interrupted");
    refused(
        scope.conversation(id).open_turn(turn.id).chunk(None, "more"),
        "turn.not_open",
        "is interrupted already",
    );
}

#[test]
fn a_chunk_says_where_it_belongs_so_that_repeats_do_nothing_and_gaps_are_noticed() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    assert_eq!(scope.conversation(id).open_turn(turn).chunk(Some(0), "grün").unwrap(), 5);
    assert_eq!(scope.conversation(id).open_turn(turn).chunk(Some(0), "grün").unwrap(), 5, "the same again");
    assert_eq!(scope.conversation(id).open_turn(turn).chunk(Some(4), "n").unwrap(), 5, "a part of it again");
    assert_eq!(
        scope.conversation(id).open_turn(turn).chunk(Some(4), "n und blau").unwrap(),
        14,
        "overlapping"
    );
    assert_eq!(scope.conversation(id).open_turn(turn).chunk(Some(14), "").unwrap(), 14, "nothing");
    refused(
        scope.conversation(id).open_turn(turn).chunk(Some(20), "rot"),
        "chunk.offset",
        &format!("{turn} has 14 bytes and this chunk is at 20; send what is missing from 14 on"),
    );
    refused(
        scope.conversation(id).open_turn(turn).chunk(Some(0), "blau"),
        "chunk.offset",
        "it differs from the text that is already there",
    );
    refused(
        scope.conversation(id).open_turn(turn).chunk(Some(3), "x"),
        "chunk.offset",
        "it differs from the text",
    );
    let turn = scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    assert_eq!(words(&turn).unwrap(), "grün und blau");
}

#[test]
fn a_commit_without_a_message_is_what_came_in_chunks_and_keeps_what_was_said_at_the_opening() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let new = NewStream {
        actor: Some("gpt".into()),
        role: Some(Role::Assistant),
        model: Some("m-1".into()),
        metadata: BTreeMap::from([("run".to_string(), raw("7")), ("try".to_string(), raw("1"))]),
        ..NewStream::default()
    };
    let opened = scope.conversation(id).open(new).wait().unwrap();
    assert_eq!((opened.status, opened.message), (Status::Pending, None));
    scope.conversation(id).open_turn(opened.id).chunk(None, "said \"so\"\n").unwrap();
    let last = NewTurn {
        metadata: BTreeMap::from([("try".to_string(), raw("2"))]),
        tokens: Some(everturn_core::turn::Tokens { prompt: Some(10), completion: Some(3) }),
        ..NewTurn::default()
    };
    let turn = scope.conversation(id).open_turn(opened.id).commit(last).wait().unwrap();
    assert_eq!((turn.seq, turn.status), (opened.seq, Status::Complete));
    assert_eq!(words(&turn).unwrap(), "said \"so\"\n");
    assert_eq!((turn.actor.as_deref(), turn.model.as_deref()), (Some("gpt"), Some("m-1")));
    assert_eq!(turn.tokens.unwrap().completion, Some(3));
    let kept: Vec<(&str, &str)> = turn.metadata.iter().map(|(k, v)| (k.as_str(), v.get())).collect();
    assert_eq!(kept, [("run", "7"), ("try", "2")], "what the end says goes before what the opening said");
    assert_eq!(scope.kinds(id), ["conversation.created", "turn.opened", "turn.committed"]);
}

#[test]
fn a_commit_with_a_message_is_that_message_byte_for_byte_in_the_role_of_the_turn() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for (message, stored) in [
        (
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"c2ln"},{"type":"text","text":"42"}]}"#,
            None,
        ),
        (r#"{ "content": "42",  "x": 1.50 }"#, Some(r#"{"role":"assistant", "content": "42",  "x": 1.50 }"#)),
        (r#"{"type":"reasoning","summary":[]}"#, None),
    ] {
        let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
        scope.conversation(id).open_turn(turn).chunk(None, "something else").unwrap();
        let turn = scope.conversation(id).open_turn(turn).commit(NewTurn::message(message)).wait().unwrap();
        assert_eq!(turn.message.unwrap().get(), stored.unwrap_or(message));
        assert_eq!(turn.role, Role::Assistant);
    }
}

#[test]
fn a_turn_ends_once() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).commit(NewTurn::assistant("done")).wait().unwrap();
    let says = format!("{turn} is complete already; open a new turn");
    refused(
        scope.conversation(id).open_turn(turn).commit(NewTurn::assistant("again")).wait(),
        "turn.not_open",
        &says,
    );
    refused(scope.conversation(id).open_turn(turn).abort("late", None).wait(), "turn.not_open", &says);
    refused(scope.conversation(id).open_turn(turn).chunk(None, "late"), "turn.not_open", &says);
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, 3, "nothing was written");
    // Two that race: one wins, the other is told.
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let commits: Vec<_> = ["one", "two"]
        .map(|text| scope.conversation(id).open_turn(turn).commit(NewTurn::assistant(text)))
        .into();
    let answers: Vec<_> = commits.into_iter().map(|commit| commit.wait()).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    refused(answers.into_iter().find(Result::is_err).unwrap(), "turn.not_open", "is complete already");
}

#[test]
fn an_aborted_turn_keeps_what_was_said_and_names_its_end_or_its_replacement() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let first = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(first).chunk(None, "never mi").unwrap();
    let turn = scope.conversation(id).open_turn(first).abort("stopped by the user", None).wait().unwrap();
    assert_eq!((turn.status, words(&turn).unwrap().as_str()), (Status::Aborted, "never mi"));
    assert_eq!(turn.reason.as_deref(), Some("stopped by the user"));
    let abort = scope.conversation(id).log().read(2, 1).unwrap().remove(0);
    assert_eq!((abort.kind.as_str(), turn.superseded_by), ("turn.aborted", Some(Successor::Event(abort.id))));

    let better = scope.say(id, NewTurn::assistant("better")).id;
    let second = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let turn = scope.conversation(id).open_turn(second).abort("worse", Some(better)).wait().unwrap();
    assert_eq!(turn.superseded_by, Some(Successor::Turn(better)));
    // Not in the plain history, but kept.
    assert_eq!(scope.conversation(id).history(Default::default()).unwrap().data.len(), 1);
    assert_eq!(scope.turns(id).len(), 3);
}

#[test]
fn a_replacement_must_be_another_turn_of_the_conversation() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let elsewhere = scope.begin();
    let other = scope.say(elsewhere, NewTurn::user("elsewhere")).id;
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let unknown: TurnId = "turn_00000000000000000000000007".parse().unwrap();
    for by in [unknown, other] {
        refused(
            scope.conversation(id).open_turn(turn).abort("", Some(by)).wait(),
            "turn.absent",
            &format!("no turn {by} here"),
        );
    }
    refused(
        scope.conversation(id).open_turn(turn).abort("", Some(turn)).wait(),
        "turn.replaces_itself",
        "name another turn",
    );
    assert_eq!(scope.turn(turn).unwrap().status, Status::Pending, "still open");
}

#[test]
fn a_silent_turn_is_ended_by_the_sweeper_after_its_time_and_not_before() {
    let clock = Still::new(1);
    let stage = Stage::new();
    let store = stage.open_with(Options { stream_idle_max: Duration::from_secs(600), ..clock.options() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let [silent, busy] = [0, 1].map(|_| scope.conversation(id).open(NewStream::default()).wait().unwrap().id);
    scope.conversation(id).open_turn(silent).chunk(None, "and then").unwrap();
    clock.advance_s(599);
    assert_eq!(store.sweep().unwrap(), Swept::default());
    scope.conversation(id).open_turn(busy).chunk(None, "still here").unwrap();
    clock.advance_s(1);
    assert_eq!(store.sweep().unwrap(), Swept { interrupted: 1, ..Swept::default() });
    let turn = scope.turn(silent).unwrap();
    assert_eq!((turn.status, words(&turn).unwrap().as_str()), (Status::Interrupted, "and then"));
    assert_eq!(turn.reason.as_deref(), Some("nothing came for 600 s"));
    assert_eq!(scope.turn(busy).unwrap().status, Status::Pending);
    // A clock that jumps back interrupts nobody.
    clock.advance_s(-86_400);
    assert_eq!(store.sweep().unwrap(), Swept::default());
}

#[test]
fn with_masking_no_chunk_reaches_the_disk_and_the_end_is_masked() {
    let secret = format!("ghp_{}", "a1".repeat(18));
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: Duration::ZERO, ..Options::default() });
    let scope = store.tenant("acme").unwrap();
    let settings = Settings {
        policy: BTreeMap::from([("redaction".to_string(), raw("\"mask\""))]),
        ..Settings::default()
    };
    let id = scope.create(NewConversation { settings, ..NewConversation::default() }).wait().unwrap().id();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    // In two pieces, neither of which looks like a secret.
    scope.conversation(id).open_turn(turn).chunk(None, &format!("the token is {}", &secret[..20])).unwrap();
    scope.conversation(id).open_turn(turn).chunk(None, &format!("{} ok", &secret[20..])).unwrap();
    // A write behind them: whatever was to be written before it, is.
    scope.say(id, NewTurn::user("thanks"));
    let ended = scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    assert!(words(&ended).unwrap().starts_with("the token is ‹secret:github_token:"), "{ended:?}");
    assert!(ended.metadata["secrets"].get().contains("github_token"));
    drop((scope, store));
    assert_eq!(stage.files_with(&secret[..20]), Vec::<std::path::PathBuf>::new());
    assert_eq!(stage.files_with(&secret[20..]), Vec::<std::path::PathBuf>::new());
}

/// Eight megabytes of quotation marks are sixteen as JSON, more than a body may have. Such a turn could be neither
/// committed nor aborted, and after a crash the store could not be opened, because its recovery could not end it.
#[test]
fn a_stream_never_grows_past_what_can_be_stored_at_its_end() {
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: NEVER, ..Options::default() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let quotes = "\"".repeat(STREAM_BYTES_MAX / 16);
    let mut length = 0;
    let full = loop {
        match scope.conversation(id).open_turn(turn).chunk(None, &quotes) {
            Ok(now) => length = now as usize,
            Err(error) => break error,
        }
    };
    refused(Err::<(), _>(full), "limit.exceeded", "STREAM_BYTES_MAX is 8388608, this is");
    drop((scope, store));
    let scope = stage.open().tenant("acme").unwrap();
    let turn = scope.turn(turn).unwrap();
    assert_eq!((turn.status, words(&turn).unwrap().len()), (Status::Interrupted, length));
}

/// The text of a stream may look like a payload. Its asset was an event that a closed conversation does not take, so
/// that the end of the turn was refused, and with it the opening of the store.
#[test]
fn a_store_opens_whatever_was_streamed_into_a_conversation_before_it_was_closed() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let text = format!("data:image/png;base64,{}", "QUJD".repeat(4000));
    scope.conversation(id).open_turn(turn).chunk(None, &text).unwrap();
    scope.conversation(id).update(Lifecycle::Closed).wait().unwrap();
    drop((scope, store));
    let scope = stage.open().tenant("acme").unwrap();
    let turn = scope.turn(turn).unwrap();
    assert_eq!((turn.status, words(&turn).unwrap()), (Status::Interrupted, text));
}

/// The durable text of an open turn is read by everyone: in this process, in another, one by one and in the history.
#[test]
fn an_open_turn_can_be_read_as_far_as_it_is_durable() {
    for stage in [None, Some(Stage::new())] {
        let quick = Options { debounce: Duration::from_millis(5), ..Options::default() };
        let store = match &stage {
            Some(stage) => stage.open_with(quick),
            None => Everturn::open_with("memory:", quick).unwrap(),
        };
        let scope = store.tenant("acme").unwrap();
        let chat = scope.conversation(scope.begin());
        let turn = chat.open(NewStream::default()).wait().unwrap().id;
        assert_eq!(scope.turn(turn).unwrap().partial, Some(Partial::new(String::new())));
        chat.open_turn(turn).chunk(None, "Lisbôa, ").unwrap();
        let half = Some(Partial { text: "Lisbôa, ".into(), offset: 9 });
        until("it is durable", || scope.turn(turn).unwrap().partial == half);
        assert_eq!(chat.turn(turn).unwrap().partial, half);
        for include_events in [false, true] {
            let page = chat.history(HistoryQuery { include_events, ..HistoryQuery::default() }).unwrap();
            let Some(HistoryEntry::Turn(last)) = page.data.last() else { panic!("it is the last entry") };
            assert_eq!((last.id, last.status, &last.partial), (turn, Status::Pending, &half));
        }
        let reader = stage.as_ref().map(|stage| stage.open_read_only().tenant("acme").unwrap());
        if let Some(reader) = &reader {
            assert_eq!(reader.turn(turn).unwrap().partial, half, "another process");
        }
        chat.open_turn(turn).chunk(None, "then.").unwrap();
        let ended = chat.open_turn(turn).commit(Default::default()).wait().unwrap();
        assert_eq!((ended.status, &ended.partial), (Status::Complete, &None));
        for scope in [Some(&scope), reader.as_ref()].into_iter().flatten() {
            let turn = scope.turn(turn).unwrap();
            assert_eq!((words(&turn).as_deref(), turn.partial), (Some("Lisbôa, then."), None));
        }
    }
}

/// Secrets are masked when the text is complete, so nothing of it is durable before, and nothing is shown.
#[test]
fn an_open_turn_with_masked_secrets_shows_nothing_before_its_end() {
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: Duration::from_millis(1), ..Options::default() });
    let scope = store.tenant("acme").unwrap();
    let policy = BTreeMap::from([("redaction".to_string(), raw("\"mask\""))]);
    let chat = scope.conversation(scope.begin_with(Settings { policy, ..Settings::default() }).id);
    let turn = chat.open(NewStream::default()).wait().unwrap().id;
    let mut early = chat.subscribe(0).unwrap();
    chat.open_turn(turn).chunk(None, "the key is sk-ant-api03-").unwrap();
    let mut late = chat.subscribe(0).unwrap();
    let other = scope.conversation(scope.begin());
    let open = other.open(NewStream::default()).wait().unwrap().id;
    other.open_turn(open).chunk(None, "hello").unwrap();
    // A later chunk of another conversation is durable by now.
    until("it is durable", || scope.turn(open).unwrap().partial == Some(Partial::new("hello".into())));
    assert_eq!(scope.turn(turn).unwrap().partial, Some(Partial::new(String::new())));
    assert_eq!(stage.open_read_only().tenant("acme").unwrap().turn(turn).unwrap().partial.unwrap().offset, 0);
    // Regression: followers were sent the chunks as they came.
    chat.open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    for followed in [&mut early, &mut late] {
        loop {
            match followed.recv().unwrap() {
                Some(Update::Event(event)) if event.kind == kind::COMMITTED => break,
                Some(Update::Event(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
