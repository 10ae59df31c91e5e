//! The rules of writing, tested against a store made of a few maps.

use crate::sample::{START, conversation_id, draft, event_id, head_of, link, turn_id};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Lifecycle, Parent};
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::limits::BATCH_EVENTS_MAX;
use everturn_core::turn::{Role, Status, Successor, TurnRow};
use everturn_core::write::{
    Action, AssetReference, AssetRow, Changes, EventRef, Existing, Fork, ForkParent, ForkPoint, Level,
    Lookup, Plan, PlannedAppend, Statement, StatementsOf, SummaryRow, Traces, Turns, fold, plan,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Rows of one conversation, and of the parent that it could fork from.
#[derive(Default)]
struct FakeLookup {
    turns: BTreeMap<TurnId, TurnRow>,
    assets: Vec<AssetRow>,
    references: Vec<AssetReference>,
    hashes: Vec<Hash>,
    fork_point: Option<ForkPoint>,
}

impl FakeLookup {
    fn take(&mut self, changes: Changes) {
        self.turns.extend(changes.turns.into_iter().map(|row| (row.id, row)));
        self.assets.extend(changes.assets);
        self.references.extend(changes.references);
    }
}

impl Turns for FakeLookup {
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error> {
        Ok(self.turns.get(&id).cloned())
    }
}

impl Lookup for FakeLookup {
    fn fork_parent(&self, parent: Parent) -> Result<Option<ForkParent>, Error> {
        let point = self
            .fork_point
            .filter(|point| point.head.seq == parent.at_seq)
            .ok_or_else(|| Error::not_found("fork.absent", "no such place to fork from"))?;
        let conversation = Conversation::new(parent.conversation, key().tenant, START, point.head);
        Ok(Some(ForkParent { conversation, levels: 1, point: Some(point) }))
    }

    fn lineage(&self) -> Result<Vec<Level>, Error> {
        Ok(vec![Level { conversation: 1, floor: 0, cap: u64::MAX, deleted: false }])
    }

    fn forks(&self, _: u64) -> Result<Vec<Fork>, Error> {
        Ok(Vec::new())
    }

    fn fallen_after(&self, _: u64) -> Result<u64, Error> {
        Ok(0)
    }

    fn erased_since(&self, _: u64) -> Result<Option<Vec<EventRef>>, Error> {
        Ok(Some(Vec::new()))
    }

    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error> {
        Ok(usize::try_from(seq - 1).ok().and_then(|at| self.hashes.get(at)).copied())
    }
}

impl Traces for FakeLookup {
    fn number(&self, _: ConversationId) -> Result<Option<u64>, Error> {
        unreachable!("nothing is erased here")
    }

    fn body_kind(&self, _: EventRef) -> Result<Option<String>, Error> {
        unreachable!("nothing is erased here")
    }

    fn event(&self, _: EventRef) -> Result<Option<Event>, Error> {
        unreachable!("nothing is erased here")
    }

    fn statements(&self, _: StatementsOf) -> Result<Vec<Statement>, Error> {
        unreachable!("nothing is erased here")
    }

    fn summaries(&self, _: u64, _: RangeInclusive<u64>) -> Result<Vec<SummaryRow>, Error> {
        unreachable!("nothing is erased here")
    }

    fn summaries_reaching(&self, _: EventRef) -> Result<Vec<EventRef>, Error> {
        unreachable!("nothing is erased here")
    }

    fn shown_by(&self, _: EventRef) -> Result<Vec<AssetRow>, Error> {
        unreachable!("nothing is erased here")
    }

    fn showing(&self, _: u64, _: &str) -> Result<Vec<EventRef>, Error> {
        unreachable!("nothing is erased here")
    }

    fn assets(&self, _: u64, _: RangeInclusive<u64>) -> Result<Vec<AssetRow>, Error> {
        unreachable!("nothing is erased here")
    }

    fn asset_count(&self, _: Hash) -> Result<u64, Error> {
        unreachable!("nothing is erased here")
    }
}

/// One conversation in such a store.
#[derive(Default)]
struct Log {
    conversation: Option<Conversation>,
    events: Vec<Event>,
    known: FakeLookup,
}

impl Log {
    fn write(&mut self, action: Action) -> Result<usize, Error> {
        let existing = Existing { conversation: self.conversation.as_ref(), answered: None };
        let Plan::Append(append) = plan(&key(), action, existing, &self.known)? else {
            panic!("nothing to append")
        };
        let PlannedAppend { conversation, events, changes, .. } = *append;
        let added = events.len();
        self.conversation = Some(conversation);
        self.known.hashes.extend(events.iter().map(|event| event.hash));
        self.known.take(changes);
        self.events.extend(events);
        Ok(added)
    }

    fn created() -> Log {
        let mut log = Log::default();
        log.write(create(vec![draft(1, kind::CREATED, "{}")])).unwrap();
        log
    }

    fn with(drafts: Vec<Draft>) -> Log {
        let mut log = Log::created();
        log.append(drafts).unwrap();
        log
    }

    fn append(&mut self, drafts: Vec<Draft>) -> Result<usize, Error> {
        self.write(Action::append(drafts))
    }

    /// The error with which it refuses; a refusal must leave no trace.
    fn refuses(&mut self, drafts: Vec<Draft>) -> Error {
        let before = self.conversation.clone();
        let error = self.append(drafts).unwrap_err();
        assert_eq!(self.conversation, before);
        error
    }

    fn row(&self, n: u64) -> &TurnRow {
        &self.known.turns[&turn_id(n)]
    }
}

fn key() -> Key {
    Key { tenant: TenantName::new("test").unwrap(), id: conversation_id(1) }
}

fn create(drafts: Vec<Draft>) -> Action {
    Action::Create { drafts, parent: None, idempotency: None }
}

fn message(n: u64) -> Draft {
    Draft {
        role: Some(Role::User),
        actor: Some(format!("actor {}", n % 3)),
        turn: Some(turn_id(n)),
        ..draft(n, kind::MESSAGE, format!(r#"{{"message":{{"role":"user","content":"{n}"}}}}"#))
    }
}

fn opened(n: u64) -> Draft {
    Draft { role: Some(Role::Assistant), turn: Some(turn_id(n)), ..draft(n, kind::OPENED, "{}") }
}

fn about(n: u64, kind: &'static str, turn: u64, body: &str) -> Draft {
    Draft { turn: Some(turn_id(turn)), ..draft(n, kind, body) }
}

fn superseded(n: u64, turn: u64, by: u64) -> Draft {
    about(n, kind::SUPERSEDED, turn, &format!(r#"{{"by":"{}"}}"#, turn_id(by)))
}

fn state(n: u64, state: Lifecycle) -> Draft {
    draft(n, kind::STATE, format!(r#"{{"state":"{state}"}}"#))
}

#[test]
fn a_stale_expected_seq_says_the_head_and_where_to_read_from() {
    let mut log = Log::with(vec![message(2), message(3)]);
    for (expected, says) in [
        (1, "head is 3, you expected 1; read from 2 and append again"),
        (9, "head is 3, you expected 9; read from 4 and append again"),
    ] {
        let action = Action::Append {
            drafts: vec![message(4)],
            expected_seq: Some(expected),
            prepared_for: None,
            idempotency: None,
        };
        let error = log.write(action).unwrap_err();
        assert!(matches!(error, Error::Conflict(_)));
        assert_eq!((error.code(), error.text()), ("append.stale_seq", says));
    }
    let right = Action::Append {
        drafts: vec![message(4)],
        expected_seq: Some(3),
        prepared_for: None,
        idempotency: None,
    };
    assert_eq!(log.write(right).unwrap(), 1);
}

#[test]
fn what_is_not_active_takes_no_turns() {
    for away in [Lifecycle::Archived, Lifecycle::Abandoned] {
        let mut log = Log::with(vec![opened(2), state(3, away)]);
        let error = log.refuses(vec![message(4)]);
        assert_eq!(error.code(), "conversation.not_active");
        assert!(
            error
                .text()
                .ends_with(&format!("is {away}; set its state to active first (`everturn archive --undo`)")),
            "{error}"
        );
        // Open turns may end, and the conversation becomes active again.
        log.append(vec![about(4, kind::COMMITTED, 2, "{}"), state(5, Lifecycle::Active), message(6)])
            .unwrap();
    }
    let mut log = Log::with(vec![opened(2), state(3, Lifecycle::Closed)]);
    let error = log.refuses(vec![message(4)]);
    assert!(error.text().contains("is closed; it cannot be continued: `reset` starts a new one"), "{error}");
    assert_eq!(log.refuses(vec![state(4, Lifecycle::Active)]).code(), "conversation.not_active");
    log.append(vec![
        about(4, kind::INTERRUPTED, 2, "{}"),
        draft(5, kind::ERASED, r#"{"turns":[],"reason":"asked"}"#),
    ])
    .unwrap();
    // Also within one batch: drafts after the one that closes it are refused.
    let error = Log::created().refuses(vec![state(2, Lifecycle::Closed), message(3)]);
    assert_eq!(error.code(), "conversation.not_active");
}

#[test]
fn a_turn_ends_once_and_only_if_it_was_opened() {
    let mut log = Log::with(vec![opened(2), about(3, kind::COMMITTED, 2, "{}"), message(4)]);
    assert_eq!((log.row(2).status, log.row(2).content_seq), (Status::Complete, Some(3)));
    for again in [kind::COMMITTED, kind::ABORTED, kind::INTERRUPTED] {
        let error = log.refuses(vec![about(5, again, 2, "{}")]);
        assert_eq!(error.code(), "turn.not_open");
        assert!(error.text().ends_with("is complete already; open a new turn"), "{error}");
        assert_eq!(log.refuses(vec![about(5, again, 4, "{}")]).code(), "turn.not_open");
        let error = log.refuses(vec![about(5, again, 99, "{}")]);
        assert!(matches!(error, Error::NotFound(_)), "{error}");
        assert_eq!(error.code(), "turn.absent");
        assert_eq!(log.refuses(vec![draft(5, again, "{}")]).code(), "turn.missing");
    }
    let both = vec![opened(5), about(6, kind::COMMITTED, 5, "{}"), about(7, kind::COMMITTED, 5, "{}")];
    assert_eq!(log.refuses(both).code(), "turn.not_open");
}

#[test]
fn a_turn_is_superseded_once_and_not_while_it_is_open() {
    let mut log = Log::with(vec![message(2), message(3), superseded(4, 2, 3), opened(5)]);
    assert_eq!(
        (log.row(2).superseded_by, log.row(2).superseded_seq),
        (Some(Successor::Turn(turn_id(3))), Some(4))
    );
    let error = log.refuses(vec![superseded(6, 2, 3)]);
    assert_eq!(error.code(), "turn.superseded");
    assert!(error.text().contains(&turn_id(3).to_string()), "it names the one to supersede: {error}");
    assert_eq!(log.refuses(vec![superseded(6, 5, 3)]).code(), "turn.open");
    assert_eq!(log.refuses(vec![superseded(6, 99, 3)]).code(), "turn.absent");
}

#[test]
fn an_aborted_turn_points_at_the_abort_until_a_turn_replaces_it() {
    let mut log = Log::with(vec![
        message(2),
        opened(3),
        about(4, kind::ABORTED, 3, r#"{"reason":"stop"}"#),
        opened(5),
        about(6, kind::ABORTED, 5, "{}"),
        superseded(7, 5, 2),
        opened(8),
        about(9, kind::INTERRUPTED, 8, "{}"),
    ]);
    let rows: Vec<_> = [3, 5, 8].map(|n| (log.row(n).status, log.row(n).superseded_by)).into();
    assert_eq!(
        rows,
        [
            (Status::Aborted, Some(Successor::Event(event_id(4)))),
            (Status::Aborted, Some(Successor::Turn(turn_id(2)))),
            (Status::Interrupted, None),
        ]
    );
    assert_eq!(log.refuses(vec![superseded(10, 5, 2)]).code(), "turn.superseded");
}

/// An imported event may lack what its kind requires: it is kept, and begins nothing.
#[test]
fn an_event_without_a_turn_or_a_role_begins_no_turn() {
    let no_turn = Draft { turn: None, ..message(2) };
    let other_turn = Draft { turn: Some(turn_id(77)), ..message(3) };
    let no_role = Draft { role: None, ..message(4) };
    let log = Log::with(vec![no_turn, other_turn, no_role, message(5)]);
    assert_eq!(log.known.turns.keys().collect::<Vec<_>>(), [&turn_id(5)]);
    let conversation = log.conversation.unwrap();
    assert_eq!((conversation.turns, conversation.head.seq), (1, 5));
}

#[test]
fn creating_appending_and_restoring_nothing_or_too_much_is_refused() {
    let mut log = Log::created();
    assert_eq!(log.write(create(vec![message(2)])).unwrap_err().code(), "conversation.exists");
    assert_eq!(log.refuses(vec![]).code(), "append.empty");
    let many = (2..).map(message).take(BATCH_EVENTS_MAX + 1).collect();
    assert!(log.refuses(many).text().contains("BATCH_EVENTS_MAX is 1000, this is 1001"));
    let mut nowhere = Log::default();
    assert_eq!(nowhere.append(vec![message(2)]).unwrap_err().code(), "conversation.absent");
    assert_eq!(nowhere.write(create(vec![])).unwrap_err().code(), "append.empty");
    assert_eq!(nowhere.write(Action::Restore { events: vec![] }).unwrap_err().code(), "append.empty");
}

#[test]
fn restore_skips_what_is_there_and_reports_what_differs() {
    let log = Log::with(vec![message(2), opened(3), about(4, kind::COMMITTED, 3, "{}"), message(5)]);
    let restore = |events: &[Event]| Action::Restore { events: events.to_vec() };

    let mut copy = Log::default();
    assert_eq!(copy.write(restore(&log.events[..3])).unwrap(), 3);
    assert_eq!(copy.row(3).status, Status::Pending);
    assert_eq!(copy.write(restore(&log.events)).unwrap(), 2, "the first three are there");
    assert_eq!(copy.write(restore(&log.events)).unwrap(), 0);
    assert_eq!((&copy.conversation, &copy.events), (&log.conversation, &log.events));
    assert_eq!(copy.known.turns, log.known.turns);

    let mut other = Log::with(vec![message(2), message(9)]);
    let error = other.write(restore(&log.events)).unwrap_err();
    assert!(matches!(error, Error::Conflict(_)));
    assert_eq!(error.code(), "restore.diverged");
    assert!(error.text().contains("differs from what is here at seq 3"), "{error}");

    let gap = [&log.events[..2], &log.events[3..]].concat();
    assert_eq!(Log::default().write(restore(&gap)).unwrap_err().code(), "chain.missing_seq");
    let mut changed = log.events.clone();
    changed[1].body.as_mut().unwrap().text.push(' ');
    assert_eq!(Log::default().write(restore(&changed)).unwrap_err().code(), "chain.body_mismatch");
    let mut foreign = log.events.clone();
    foreign[2].conversation = conversation_id(8);
    assert_eq!(Log::default().write(restore(&foreign)).unwrap_err().code(), "restore.foreign");
}

#[test]
fn a_fork_goes_on_where_its_parent_was_and_can_be_restored() {
    let parent_id = conversation_id(7);
    let parent = link(
        parent_id,
        Head::genesis(parent_id),
        vec![draft(1, kind::CREATED, "{}"), message(2), message(3)],
    );
    let fork = Parent { conversation: parent_id, at_seq: 3 };
    let body = format!(r#"{{"parent":{{"conversation":"{parent_id}","at_seq":3}},"participants":["ann"]}}"#);
    let point = Some(ForkPoint { head: head_of(&parent), turns: 2 });
    let empty = || Log { known: FakeLookup { fork_point: point, ..FakeLookup::default() }, ..Log::default() };

    let mut child = empty();
    let drafts = vec![draft(4, kind::FORKED, body), message(5)];
    child.write(Action::Create { drafts: drafts.clone(), parent: Some(fork), idempotency: None }).unwrap();
    let conversation = child.conversation.clone().unwrap();
    assert_eq!((conversation.head.seq, conversation.turns, conversation.parent), (5, 3, Some(fork)));
    assert_eq!(conversation.participants, ["ann", "actor 2"]);
    assert_eq!(child.events[0].prev, head_of(&parent).hash);

    let mut copy = empty();
    copy.write(Action::Restore { events: child.events.clone() }).unwrap();
    assert_eq!(copy.conversation, child.conversation);

    let nowhere = Some(Parent { at_seq: 9, ..fork });
    let action = Action::Create { drafts, parent: nowhere, idempotency: None };
    assert_eq!(empty().write(action).unwrap_err().code(), "fork.absent");
}

/// A sequence of allowed drafts, chosen by the numbers.
fn allowed(choices: &[(u8, prop::sample::Index)]) -> Vec<Draft> {
    let mut drafts = vec![draft(1, kind::CREATED, r#"{"title":"t","metadata":{"a":1}}"#)];
    let (mut open, mut done) = (Vec::new(), Vec::new());
    for (choice, index) in choices {
        let n = drafts.len() as u64 + 1;
        match choice % 9 {
            0 | 1 => {
                let body = format!(
                    r#"{{"message":{{"role":"user","content":[{{"type":"image","asset_id":"asset_{n}"}}]}}}}"#
                );
                drafts.push(Draft {
                    actor: Some(format!("a{}", n % 4)),
                    role: Some(Role::User),
                    ..about(n, kind::MESSAGE, n, &body)
                });
                done.push(n);
            }
            2 | 3 => {
                drafts.push(opened(n));
                open.push(n);
            }
            4 if !open.is_empty() => {
                let turn = open.remove(index.index(open.len()));
                let end = [kind::COMMITTED, kind::ABORTED, kind::INTERRUPTED][index.index(3)];
                drafts.push(about(
                    n,
                    end,
                    turn,
                    r#"{"message":{"content":"asset_","x":{"asset_id":"asset_7"}}}"#,
                ));
                done.push(turn);
            }
            5 if done.len() > 1 => {
                let turn = done.remove(index.index(done.len()));
                drafts.push(superseded(n, turn, done[index.index(done.len())]));
            }
            6 => drafts.push(draft(n, kind::ASSET_ADDED, format!(r#"{{"id":"asset_{n}","kind":"image"}}"#))),
            7 => drafts.push(draft(
                n,
                kind::UPDATED,
                r#"{"metadata":{"a":null,"b":[1.0]},"title":null,"retention":"ephemeral"}"#,
            )),
            8 => drafts.extend([state(n, Lifecycle::Archived), state(n + 1, Lifecycle::Active)]),
            _ => drafts.push(draft(n, "snapshot_created", "[]")),
        }
    }
    drafts
}

proptest! {
    #[test]
    fn one_batch_single_appends_and_a_rebuild_give_the_same_rows(
        choices in prop::collection::vec((any::<u8>(), any::<prop::sample::Index>()), 0..60),
    ) {
        let drafts = allowed(&choices);
        let mut batch = Log::default();
        batch.write(create(drafts.clone())).unwrap();

        let mut single = Log::default();
        for (n, draft) in drafts.into_iter().enumerate() {
            if n == 0 { single.write(create(vec![draft])).unwrap() } else { single.append(vec![draft]).unwrap() };
        }

        // Rebuilt from the log alone, as a store rebuilds its derived rows.
        let mut rebuilt = Conversation::new(key().id, key().tenant, START.plus_s(1), Head::genesis(key().id));
        let mut changes = Changes::default();
        for event in &batch.events {
            fold(&mut rebuilt, event, &mut changes, &FakeLookup::default()).unwrap();
        }
        let mut known = FakeLookup::default();
        known.take(changes);

        prop_assert_eq!(&batch.events, &single.events);
        for (conversation, other) in [(single.conversation.as_ref(), &single.known), (Some(&rebuilt), &known)] {
            prop_assert_eq!(batch.conversation.as_ref(), conversation);
            prop_assert_eq!(&batch.known.turns, &other.turns);
            prop_assert_eq!(&batch.known.assets, &other.assets);
            prop_assert_eq!(&batch.known.references, &other.references);
        }
        let conversation = batch.conversation.unwrap();
        prop_assert_eq!(conversation.turns, batch.known.turns.len() as u64);
        prop_assert_eq!(conversation.head, head_of(&batch.events));
    }
}
