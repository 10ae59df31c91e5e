//! Following a conversation: what is there, then what comes, each once and in order.

use crate::dice::{Dice, ToldOnFailure, seed};
use crate::stage::{PATIENCE, START, Short, Stage, Still, memory, quiet, refused, seqs};
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::SUBSCRIBER_LAG_EVENTS_MAX;
use everturn_engine::{
    ChangeKind, ChangeSubscription, Chunk, Everturn, NewConversation, NewStream, NewTurn, Options, Position,
    Subscription, Tenant, Update,
};
use futures_util::StreamExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Reads until the event at this place.
fn collect(subscription: &mut Subscription, last: u64) -> Vec<Update> {
    let mut got = Vec::new();
    while seqs(&got).last().is_none_or(|seq| *seq < last) {
        let update = subscription.recv_timeout(PATIENCE).unwrap();
        got.push(update.unwrap_or_else(|| panic!("nothing came after {:?}", seqs(&got))));
    }
    got
}

fn chunks(updates: &[Update]) -> Vec<Chunk> {
    updates
        .iter()
        .filter_map(|update| match update {
            Update::Chunk(chunk) => Some(chunk.clone()),
            _ => None,
        })
        .collect()
}

fn next_chunk(subscription: &mut Subscription) -> (u64, String) {
    match subscription.recv_timeout(PATIENCE).unwrap() {
        Some(Update::Chunk(chunk)) => (chunk.offset, chunk.text.to_string()),
        other => panic!("expected a chunk, got {other:?}"),
    }
}

fn is_deleted(update: Option<Update>) -> bool {
    matches!(update, Some(Update::Deleted))
}

#[test]
fn every_subscriber_gets_every_event_once_and_in_order_while_many_write() {
    const WRITERS: u64 = 4;
    const TURNS: u64 = 150;
    const SUBSCRIBERS: u64 = 24;
    let seed = seed(1);
    let _told = ToldOnFailure(seed);
    for stage in [None, Some(Stage::new())] {
        let store = match &stage {
            Some(stage) => stage.open(),
            None => memory().0,
        };
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let last = 1 + WRITERS * TURNS;
        let written = AtomicU64::new(1);
        std::thread::scope(|threads| {
            for writer in 0..WRITERS {
                let (scope, written) = (&scope, &written);
                threads.spawn(move || {
                    for n in 0..TURNS {
                        scope.say(id, NewTurn::user(&format!("{writer}/{n}")));
                        written.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for n in 0..SUBSCRIBERS {
                let (scope, written) = (&scope, &written);
                threads.spawn(move || {
                    // Comes at a moment of its own, and begins at a place of its own: behind the head too.
                    let mut dice = Dice::new(seed * 100 + n);
                    let moment = 1 + dice.roll(last as usize - 1) as u64;
                    while written.load(Ordering::SeqCst) < moment {
                        std::thread::yield_now();
                    }
                    let from = 1 + dice.roll(last as usize) as u64;
                    let mut subscription = scope.conversation(id).subscribe(from.saturating_sub(1)).unwrap();
                    let got = seqs(&collect(&mut subscription, last));
                    assert_eq!(got, (from..=last).collect::<Vec<_>>(), "from {from} at {moment}");
                });
            }
        });
    }
}

#[test]
fn chunks_come_at_once_with_their_offsets_and_before_the_end_of_their_turn() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let mut subscription = scope.conversation(id).subscribe(0).unwrap();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap();
    assert_eq!(seqs(&collect(&mut subscription, turn.seq)), [1, 2]);
    assert!(subscription.recv_timeout(std::time::Duration::ZERO).unwrap().is_none(), "now it waits");
    for piece in ["Grü", "ße", "!"] {
        scope.conversation(id).open_turn(turn.id).chunk(None, piece).unwrap();
    }
    // What was said is not said again.
    scope.conversation(id).open_turn(turn.id).chunk(Some(0), "Grüße").unwrap();
    scope.conversation(id).open_turn(turn.id).commit(NewTurn::default()).wait().unwrap();
    let got = collect(&mut subscription, 3);
    let pieces: Vec<_> = chunks(&got).into_iter().map(|c| (c.turn, c.turn_seq, c.offset, c.text)).collect();
    let expected = [(0, "Grü"), (4, "ße"), (7, "!")].map(|(at, text)| (turn.id, turn.seq, at, text.into()));
    assert_eq!(pieces, expected);
    assert!(matches!(got.last(), Some(Update::Event(event)) if event.kind == "turn.committed"));
}

#[test]
fn who_joins_in_the_middle_of_a_stream_gets_what_was_said_so_far_and_then_the_rest() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap();
    let silent = scope.conversation(id).open(NewStream::default()).wait().unwrap();
    scope.conversation(id).open_turn(turn.id).chunk(None, "one ").unwrap();
    scope.conversation(id).open_turn(turn.id).chunk(None, "two ").unwrap();
    let mut subscription = scope.conversation(id).subscribe(1).unwrap();
    assert_eq!(seqs(&collect(&mut subscription, silent.seq)), [2, 3]);
    assert_eq!(next_chunk(&mut subscription), (0, "one two ".to_string()));
    scope.conversation(id).open_turn(turn.id).chunk(None, "three").unwrap();
    assert_eq!(next_chunk(&mut subscription), (8, "three".to_string()));
}

#[test]
fn pieces_seen_while_joining_at_any_moment_of_a_stream_make_up_the_whole_text() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    let text: String = (0..400).map(|n| format!("{n} ")).collect();
    std::thread::scope(|threads| {
        for from in 0..8 {
            let (scope, text) = (&scope, &text);
            threads.spawn(move || {
                for _ in 0..5 {
                    let mut subscription =
                        scope.conversation(id).subscribe((from % 3_u64).saturating_sub(1)).unwrap();
                    let mut said = String::new();
                    loop {
                        match subscription.recv_timeout(PATIENCE).unwrap().expect("an end comes") {
                            Update::Chunk(chunk) => {
                                assert_eq!(chunk.offset as usize, said.len(), "a gap or a repeat");
                                said += &chunk.text;
                            }
                            Update::Event(event) if event.kind == "turn.committed" => break,
                            _ => {}
                        }
                    }
                    // Who came after the end saw no chunk at all.
                    assert!(said == *text || said.is_empty(), "{said}");
                }
            });
        }
        for piece in text.split_inclusive(' ') {
            scope.conversation(id).open_turn(turn).chunk(None, piece).unwrap();
        }
        scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    });
}

#[test]
fn a_subscriber_that_is_too_slow_is_told_where_to_resume_and_misses_nothing() {
    let (_store, scope) = memory();
    let mut settings = Settings::default();
    settings.policy.insert("budget".into(), Raw::new(r#"{"max_messages":null}"#.into()).unwrap());
    let id = scope.begin_with(settings).id;
    let mut slow = scope.conversation(id).subscribe(0).unwrap();
    // One update read, so that it is live; then it sleeps while more comes than is kept for it.
    assert_eq!(seqs(&collect(&mut slow, 1)), [1]);
    assert!(slow.recv_timeout(std::time::Duration::ZERO).unwrap().is_none());
    let mut last = 1;
    while last < SUBSCRIBER_LAG_EVENTS_MAX as u64 + 100 {
        let turns: Vec<_> = (0..500).map(|n| NewTurn::user(&n.to_string())).collect();
        last = scope.conversation(id).append_all(turns).wait().unwrap().head.seq;
    }
    let resume_from = match slow.recv_timeout(PATIENCE).unwrap() {
        Some(Update::Lagged { resume_from }) => resume_from,
        other => panic!("expected to be let go, got {other:?}"),
    };
    assert_eq!(resume_from, 2);
    assert!(slow.recv().unwrap().is_none(), "let go means let go");
    let mut again = scope.conversation(id).subscribe(resume_from.saturating_sub(1)).unwrap();
    assert_eq!(seqs(&collect(&mut again, last)), (resume_from..=last).collect::<Vec<_>>());
}

#[test]
fn a_deletion_ends_the_subscription_with_a_word() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let mut live = scope.conversation(id).subscribe(1).unwrap();
    assert!(live.recv_timeout(std::time::Duration::ZERO).unwrap().is_none());
    let mut catching_up = scope.conversation(id).subscribe(0).unwrap();
    scope.conversation(id).delete("over").wait().unwrap();
    assert!(is_deleted(live.recv_timeout(PATIENCE).unwrap()));
    assert!(live.recv().unwrap().is_none());
    assert!(is_deleted(catching_up.recv_timeout(PATIENCE).unwrap()));
    assert!(scope.conversation(id).subscribe(0).is_err_and(|error| error.code() == "conversation.absent"));
}

/// A deletion between the last look at the log and the first at the live updates was overlooked, and the subscriber
/// waited for ever. Many subscribers at the very moment of a deletion meet that gap.
#[test]
fn no_subscriber_overlooks_a_deletion_whenever_it_comes() {
    let (_store, scope) = memory();
    for _ in 0..200 {
        let id = scope.begin();
        let subscriptions: Vec<Subscription> =
            (0..8).map(|_| scope.conversation(id).subscribe(0).unwrap()).collect();
        std::thread::scope(|threads| {
            for mut subscription in subscriptions {
                threads.spawn(move || {
                    while !is_deleted(Some(subscription.recv_timeout(PATIENCE).unwrap().expect("Deleted"))) {}
                });
            }
            scope.conversation(id).delete("over").wait().unwrap();
        });
    }
}

/// Takes so many updates and says where to go on.
fn take(subscription: &mut Subscription, updates: usize) -> Position {
    for _ in 0..updates {
        subscription.recv_timeout(PATIENCE).unwrap().expect("an update");
    }
    subscription.position()
}

#[test]
fn who_was_cut_off_goes_on_where_it_was_in_the_middle_of_a_turn_too() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap();
    scope.conversation(id).open_turn(turn.id).chunk(None, "Grü").unwrap();
    let mut first = scope.conversation(id).subscribe(0).unwrap();
    let cut = ["1", "2", "2.4"].map(|expected| {
        let position = take(&mut first, 1);
        assert_eq!(position.to_string(), expected);
        position
    });
    scope.conversation(id).open_turn(turn.id).chunk(None, "ße").unwrap();
    // From an event: the events after it, and the whole text.
    let mut after = scope.conversation(id).subscribe(cut[0]).unwrap();
    assert_eq!(seqs(&collect(&mut after, 2)), [2]);
    assert_eq!(next_chunk(&mut after), (0, "Grüße".to_string()));
    // From a chunk: the rest of the text.
    let mut after = scope.conversation(id).subscribe("2.4".parse::<Position>().unwrap()).unwrap();
    assert_eq!(next_chunk(&mut after), (4, "ße".to_string()));
    assert_eq!(after.position().to_string(), "2.7");
    // Something else is said meanwhile: it is not said again to whoever has it.
    scope.say(id, NewTurn::user("hurry"));
    scope.conversation(id).open_turn(turn.id).chunk(None, "!").unwrap();
    assert_eq!(seqs(&collect(&mut after, 3)), [3]);
    assert_eq!(next_chunk(&mut after), (7, "!".to_string()));
    assert_eq!(after.position().to_string(), "3.8.2");
    let mut again = scope.conversation(id).subscribe("3.7.2".parse::<Position>().unwrap()).unwrap();
    assert_eq!(next_chunk(&mut again), (7, "!".to_string()));
    // Nothing is new: it waits.
    let mut again = scope.conversation(id).subscribe(after.position()).unwrap();
    assert!(again.recv_timeout(std::time::Duration::ZERO).unwrap().is_none());
    // No such place in this text, or in the middle of a letter: the whole text again, as its offset says.
    for nowhere in ["3.900.2", "3.3.2"] {
        let mut again = scope.conversation(id).subscribe(nowhere.parse::<Position>().unwrap()).unwrap();
        assert_eq!(next_chunk(&mut again), (0, "Grüße!".to_string()), "{nowhere}");
    }
    scope.conversation(id).open_turn(turn.id).commit(NewTurn::default()).wait().unwrap();
    assert_eq!(seqs(&collect(&mut again, 4)), [4]);
    assert_eq!(again.position().to_string(), "4");
}

#[test]
fn a_place_in_an_open_turn_still_leads_on_after_a_restart() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap();
    scope.conversation(id).open_turn(turn.id).chunk(None, "half a").unwrap();
    let position = take(&mut scope.conversation(id).subscribe(0).unwrap(), 3);
    assert_eq!(position.to_string(), "2.6");
    drop((scope, store));
    let scope = stage.open().tenant("acme").unwrap();
    let mut again = scope.conversation(id).subscribe(position).unwrap();
    let got = collect(&mut again, 3);
    assert_eq!((seqs(&got), chunks(&got).len()), (vec![3], 0), "only the turn's end is new");
    assert!(matches!(&got[0], Update::Event(event) if event.kind == "turn.interrupted"));
}

#[test]
fn a_place_is_written_as_one_to_three_numbers() {
    for text in ["0", "7", "7.0", "7.12", "9.12.7"] {
        assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
    }
    assert_eq!("7.12.7".parse::<Position>().unwrap().to_string(), "7.12");
    for text in ["", "x", "+1", "1.", ".1", "1.2.3.4", "-1", "99999999999999999999"] {
        refused(text.parse::<Position>(), "position.malformed", "write it as 42");
    }
}

#[test]
fn closing_the_store_ends_every_subscription() {
    let (store, scope) = memory();
    let id = scope.begin();
    let mut subscription = scope.conversation(id).subscribe(0).unwrap();
    assert_eq!(seqs(&collect(&mut subscription, 1)), [1]);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(move || subscription.recv());
        drop((scope, store));
        assert!(waiting.join().unwrap().unwrap().is_none());
    });
}

#[test]
fn it_is_a_stream_for_any_executor() {
    let (store, scope) = memory();
    let id = scope.begin();
    let subscription = scope.conversation(id).subscribe(0).unwrap();
    let writer = {
        let scope = scope.clone();
        std::thread::spawn(move || {
            for n in 0..20 {
                futures_executor::block_on(async {
                    scope.conversation(id).append(NewTurn::user(&n.to_string())).await.unwrap()
                });
            }
        })
    };
    let first: Vec<Update> = futures_executor::block_on(subscription.take(21).map(Result::unwrap).collect());
    assert_eq!(seqs(&first), (1..=21).collect::<Vec<_>>());
    writer.join().unwrap();

    // Two at once on one thread: neither blocks the other, and the end of the store is the end of both.
    let streams: Vec<Subscription> =
        (0..2).map(|n| scope.conversation(id).subscribe(19 + n).unwrap()).collect();
    let closing = std::thread::spawn(move || drop((scope, store)));
    let all: Vec<Vec<Update>> = futures_executor::block_on(futures_util::future::join_all(
        streams.into_iter().map(|stream| stream.map(Result::unwrap).collect::<Vec<_>>()),
    ));
    closing.join().unwrap();
    assert_eq!([seqs(&all[0]), seqs(&all[1])], [vec![20, 21], vec![21]]);
}

#[test]
fn a_store_opened_for_reading_follows_what_another_handle_writes() {
    let stage = Stage::new();
    let writer = stage.open();
    let writing: Tenant = writer.tenant("acme").unwrap();
    let id: ConversationId = writing.begin();
    let reader = stage.open_read_only();
    let reading = reader.tenant("acme").unwrap();
    let mut subscription = reading.conversation(id).subscribe(0).unwrap();
    assert_eq!(seqs(&collect(&mut subscription, 1)), [1]);
    for n in 2..=600 {
        writing.say(id, NewTurn::user(&n.to_string()));
    }
    assert_eq!(seqs(&collect(&mut subscription, 600)), (2..=600).collect::<Vec<_>>());
    assert_eq!(reading.conversation(id).get().unwrap(), writing.conversation(id).get().unwrap());
    writing.conversation(id).delete("over").wait().unwrap();
    assert!(is_deleted(subscription.recv_timeout(PATIENCE).unwrap()));
}

/// Text of an open turn reaches the subscribers of another process as it becomes durable: those that were there, and
/// those that come later.
#[test]
fn another_process_follows_an_open_turn_as_it_grows() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let chat = scope.conversation(scope.begin());
    let reader = stage.open_read_only();
    let there = reader.tenant("acme").unwrap().conversation(chat.id());
    let mut early = there.subscribe(0).unwrap();
    let turn = chat.open(NewStream::default()).wait().unwrap();
    assert_eq!(seqs(&collect(&mut early, turn.seq)), [1, turn.seq]);
    let text = |subscription: &mut Subscription, from: &str, wanted: &str| {
        let mut text = from.to_string();
        while text != wanted {
            let (offset, more) = next_chunk(subscription);
            assert_eq!(offset, text.len() as u64);
            text += &more;
        }
    };
    chat.open_turn(turn.id).chunk(None, "Lisbôa, ").unwrap();
    text(&mut early, "", "Lisbôa, ");
    let mut late = there.subscribe(turn.seq).unwrap();
    text(&mut late, "", "Lisbôa, ");
    chat.open_turn(turn.id).chunk(None, "then.").unwrap();
    text(&mut early, "Lisbôa, ", "Lisbôa, then.");
    text(&mut late, "Lisbôa, ", "Lisbôa, then.");
    let ended = chat.open_turn(turn.id).commit(Default::default()).wait().unwrap();
    for subscription in [&mut early, &mut late] {
        let got = collect(subscription, ended.seq + 1);
        assert!(chunks(&got).is_empty(), "nothing comes twice: {got:?}");
    }
}

/// Reads changes until one of the conversation with this head or a later one.
fn changes_until(
    changes: &mut ChangeSubscription,
    id: ConversationId,
    seq: u64,
) -> Vec<(ConversationId, ChangeKind)> {
    let mut got = Vec::new();
    loop {
        let read = changes.recv().unwrap().expect("the store is open");
        assert!(!read.reset);
        got.extend(read.data.iter().map(|change| (change.id, change.change)));
        let is_last = |change: &everturn_engine::ConversationChange| {
            change.id == id && (change.seq >= seq || change.change == ChangeKind::Deleted)
        };
        if read.data.iter().any(is_last) {
            return got;
        }
    }
}

#[test]
fn a_tenant_is_followed_from_its_first_conversation_to_the_deletion_of_the_last() {
    for stage in [None, Some(Stage::new())] {
        let store = match &stage {
            Some(stage) => stage.open(),
            None => memory().0,
        };
        let (scope, other) = (store.tenant("acme").unwrap(), store.tenant("other").unwrap());
        let mut changes = scope.changes(None);
        let first = scope.begin();
        other.begin();
        assert_eq!(changes_until(&mut changes, first, 1), [(first, ChangeKind::Created)]);
        scope.conversation(first).append("hello").wait().unwrap();
        let read = changes.recv().unwrap().unwrap();
        assert_eq!((read.data[0].change, read.data[0].seq), (ChangeKind::Changed, 2));
        assert_eq!(read.data[0].conversation.as_ref().map(|now| now.head.seq), Some(2));
        // A reader that was away learns the same.
        let position = changes.position();
        drop(changes);
        let second = scope.begin();
        scope.conversation(first).delete("over").wait().unwrap();
        let mut again = scope.changes(Some(position));
        let mut got = changes_until(&mut again, first, u64::MAX);
        if !got.contains(&(second, ChangeKind::Created)) {
            got.extend(changes_until(&mut again, second, 1));
        }
        assert!(
            got.contains(&(first, ChangeKind::Deleted)) && !got.contains(&(first, ChangeKind::Changed)),
            "{got:?}"
        );
        // Nothing is told twice to one reader.
        scope.conversation(second).append("more").wait().unwrap();
        assert_eq!(changes_until(&mut again, second, 2), [(second, ChangeKind::Changed)]);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(move || again.recv());
            drop((scope, other, store));
            assert!(waiting.join().unwrap().unwrap().is_none());
        });
    }
}

/// Regression: who came back with the last position was told the same changes for ever, as long as nothing else changed.
#[test]
fn a_reader_that_comes_back_is_told_the_last_changes_for_a_moment_only() {
    let stage = Stage::new();
    for url in ["memory:", &stage.url()] {
        let clock = Still::new(3);
        let store = Everturn::open_with(url, clock.options()).unwrap();
        let scope = store.tenant("acme").unwrap();
        scope.begin();
        let read = |since| scope.changes(Some(since)).read().unwrap();
        let mut position = START;
        let mut told = Vec::new();
        for _ in 0..5 {
            let changes = read(position);
            told.push(changes.data.len());
            assert!(changes.next >= position);
            position = changes.next;
            clock.advance_s(15);
        }
        assert_eq!((told[0], told[4]), (1, 0), "{told:?}");
        scope.begin();
        assert_eq!(read(position).data.len(), 1, "what is new is told");
    }
}

/// The sweeper used to be the first to delete an expired conversation, up to half a minute late, and only then was it told.
#[test]
fn a_follower_of_a_tenant_is_told_when_a_conversation_expires() {
    let stage = Stage::new();
    for url in ["memory:", &stage.url()] {
        let options = Options { sweep_every: Duration::from_secs(3600), ..quiet() };
        let store = Everturn::open_with(url, options).unwrap();
        let scope = store.tenant("acme").unwrap();
        let mut changes = scope.changes(None);
        let lasting = |ttl| Settings { ttl: Some(Some(ttl)), ..Settings::default() };
        let with_ttl = |ttl| {
            let new = NewConversation { settings: lasting(ttl), ..NewConversation::default() };
            scope.create(new).wait().unwrap().id()
        };
        // A later one is waited for first.
        let (_long, short) = (with_ttl(1000), with_ttl(1));
        let got = changes_until(&mut changes, short, u64::MAX);
        assert!(got.contains(&(short, ChangeKind::Deleted)), "{got:?}");
        let later = scope.begin();
        scope.conversation(later).update(lasting(1)).wait().unwrap();
        let got = changes_until(&mut changes, later, u64::MAX);
        assert!(got.contains(&(later, ChangeKind::Deleted)), "{got:?}");
        assert_eq!(store.sweep().unwrap().expired, 2);
    }
}

#[test]
fn a_slow_follower_of_a_tenant_ends_with_every_head() {
    let (_store, scope) = memory();
    let mut changes = scope.changes(None);
    let ids: Vec<ConversationId> = (0..40).map(|_| scope.begin()).collect();
    for _ in 0..50 {
        ids.iter().for_each(|id| drop(scope.conversation(*id).append("more").wait().unwrap()));
    }
    let mut heads = std::collections::HashMap::new();
    while heads.len() < ids.len() || heads.values().any(|head| *head != 51) {
        let read = changes.recv().unwrap().unwrap();
        heads.extend(read.data.iter().map(|change| (change.id, change.seq)));
    }
    let mut late = scope.changes(Some(everturn_engine::Timestamp(0)));
    assert_eq!(late.recv().unwrap().unwrap().data.len(), 40);
    // More than can be told one by one.
    for _ in 0..1000 {
        scope.begin();
    }
    assert!(scope.changes(Some(everturn_engine::Timestamp(0))).recv().unwrap().unwrap().reset);
}

#[test]
fn a_reading_process_follows_a_tenant_that_another_writes() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let reader = stage.open_read_only();
    let mut changes = reader.tenant("acme").unwrap().changes(None);
    scope.conversation(id).append("from elsewhere").wait().unwrap();
    changes_until(&mut changes, id, 2);
    scope.conversation(id).delete("over").wait().unwrap();
    let got = changes_until(&mut changes, id, u64::MAX);
    assert_eq!(got.last(), Some(&(id, ChangeKind::Deleted)));
}
