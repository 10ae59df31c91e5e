//! Fixtures for the promises: values that count instead of reading a clock, and shorthands for writing and
//! reading.

use super::Backend;
use crate::{Committed, TurnQuery};
use everturn_core::Error;
use everturn_core::chain::{ChainReport, Hash, Verifier};
use everturn_core::conversation::{Lifecycle, Parent, Settings};
use everturn_core::event::{Body, Draft, Event, Visibility, kind};
use everturn_core::fact::StatedBody;
use everturn_core::id::{ConversationId, EventId, FactId, Key, TenantName, TurnId};
use everturn_core::json::{Raw, quote};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn};
use everturn_core::write::{Action, ErasedBody, EventAddress, Idempotency, StateBody, SupersededBody, Write};
use serde::Serialize;
use std::borrow::Cow;
use std::cell::Cell;

/// Makes ids, times, salts and drafts from a counter.
#[derive(Default)]
pub struct Maker {
    made: Cell<u64>,
}

impl Maker {
    fn next(&self) -> u64 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }

    /// Sixteen bytes that sort by creation, as a ULID does.
    fn id(&self) -> [u8; 16] {
        (u128::from(self.next()) << 80 | 7).to_be_bytes()
    }

    /// The current time, one second after the previous call.
    pub fn now(&self) -> Timestamp {
        Timestamp(1_700_000_000_000_000 + self.next() as i64 * 1_000_000)
    }

    /// A new conversation of the tenant `acme`.
    pub fn key(&self) -> Key {
        Key { tenant: tenant("acme"), id: ConversationId::from_bytes(self.id()) }
    }

    /// An event with this body.
    pub fn draft(&self, kind: &'static str, body: impl Into<String>) -> Draft {
        let mut salt = [0xa5; 16];
        salt[..8].copy_from_slice(&self.next().to_be_bytes());
        Draft {
            id: EventId::from_bytes(self.id()),
            at: self.now(),
            occurred_at: None,
            kind: Cow::Borrowed(kind),
            actor: None,
            role: None,
            visibility: Visibility::Public,
            turn: None,
            key: None,
            body: Body { salt, text: body.into() },
        }
    }

    /// An event whose body is this value.
    pub fn event(&self, kind: &'static str, body: &impl Serialize) -> Draft {
        self.draft(kind, serde_json::to_string(body).expect("every body of ours can be written as JSON"))
    }

    /// The first event of a conversation.
    pub fn created(&self) -> Draft {
        self.event(kind::CREATED, &Settings::default())
    }

    /// The first event of a fork.
    pub fn forked(&self, parent: &Key, at_seq: u64) -> Draft {
        let parent = Some(Parent { conversation: parent.id, at_seq });
        self.event(kind::FORKED, &Settings { parent, ..Settings::default() })
    }

    /// A turn of `actor`, with any message.
    pub fn turn(&self, actor: &str, role: Role, message: &str) -> Draft {
        let kind = if role == Role::Tool { kind::TOOL_RESULT } else { kind::MESSAGE };
        let draft = self.draft(kind, format!("{{\"message\":{message}}}"));
        Draft { turn: Some(TurnId(draft.id.0)), actor: Some(actor.into()), role: Some(role), ..draft }
    }

    /// A turn of the person `ada`.
    pub fn say(&self, text: &str) -> Draft {
        self.turn("ada", Role::User, &message("user", text))
    }

    /// A turn that shows an asset.
    pub fn show(&self, asset: &str) -> Draft {
        let block = format!("[{{\"type\":\"image\",\"asset_id\":{}}}]", quote(asset));
        self.turn("ada", Role::User, &format!("{{\"role\":\"user\",\"content\":{block}}}"))
    }

    /// The descriptor of an asset with these bytes.
    pub fn asset(&self, id: &str, bytes: &[u8]) -> Draft {
        let sha256 = Hash::of(bytes);
        self.draft(
            kind::ASSET_ADDED,
            format!("{{\"_type\":\"transcript_asset\",\"id\":{},\"sha256\":\"{sha256}\"}}", quote(id)),
        )
    }

    /// The beginning of a turn of the model `bot`.
    pub fn open(&self) -> Draft {
        let draft = self.draft(kind::OPENED, "{}");
        let turn = Some(TurnId(draft.id.0));
        Draft { turn, actor: Some("bot".into()), role: Some(Role::Assistant), ..draft }
    }

    /// The end of an open turn; `kind` says how it ended.
    pub fn end(&self, kind: &'static str, turn: TurnId, text: &str) -> Draft {
        let draft = self.draft(kind, format!("{{\"message\":{}}}", message("assistant", text)));
        Draft { turn: Some(turn), actor: Some("bot".into()), role: Some(Role::Assistant), ..draft }
    }

    /// Supersedes one turn by another.
    pub fn supersede(&self, old: TurnId, by: TurnId) -> Draft {
        Draft { turn: Some(old), ..self.event(kind::SUPERSEDED, &SupersededBody { by }) }
    }

    /// A change of settings.
    pub fn update(&self, settings: Settings) -> Draft {
        self.event(kind::UPDATED, &settings)
    }

    /// A change of state.
    pub fn state(&self, state: Lifecycle) -> Draft {
        self.event(kind::STATE, &StateBody { state, reason: None })
    }

    /// A fact learned from a turn.
    pub fn learn(&self, turn: TurnId, object: &str) -> Draft {
        let draft = self.draft(kind::FACT_EXTRACTED, "null");
        let body = StatedBody {
            fact: FactId(draft.id.0),
            subject: "ada".into(),
            predicate: "likes".into(),
            object: object.into(),
            confidence: 0.5,
            quote: Some(object.into()),
            turn_seq: None,
            model: None,
            audience: Vec::new(),
        };
        let text = serde_json::to_string(&body).expect("every body of ours can be written as JSON");
        Draft { turn: Some(turn), body: Body { text, ..draft.body }, ..draft }
    }

    /// Erases turns.
    pub fn erase(&self, key: &Key, turns: &[TurnId]) -> Write {
        let body = ErasedBody {
            turns: turns.to_vec(),
            reason: "asked for".into(),
            reason_for: None,
            answered: Vec::new(),
            learned: Vec::new(),
            events: Vec::new(),
        };
        let draft = Draft { actor: Some("officer".into()), ..self.event(kind::ERASED, &body) };
        let action = Action::Erase { turns: turns.to_vec(), events: Vec::new(), summaries: true, draft };
        Write { key: key.clone(), action }
    }

    /// Erases other events.
    pub fn erase_events(&self, key: &Key, places: &[(&Key, u64)]) -> Write {
        let Write { key, action: Action::Erase { draft, .. } } = self.erase(key, &[]) else {
            unreachable!("an erasure is one")
        };
        let events =
            places.iter().map(|(key, seq)| EventAddress { conversation: key.id, seq: *seq }).collect();
        Write { key, action: Action::Erase { turns: Vec::new(), events, summaries: true, draft } }
    }

    /// Deletes a conversation.
    pub fn delete(&self, key: &Key) -> Write {
        let action = Action::Delete { at: self.now(), reason: "asked for".into(), only_expired: false };
        Write { key: key.clone(), action }
    }

    /// Begins a fork.
    pub fn fork(&self, child: &Key, parent: &Key, at_seq: u64) -> Write {
        let action = Action::Create {
            drafts: vec![self.forked(parent, at_seq)],
            parent: Some(Parent { conversation: parent.id, at_seq }),
            idempotency: None,
        };
        Write { key: child.clone(), action }
    }
}

/// A tenant of this name.
pub fn tenant(name: &str) -> TenantName {
    TenantName::new(name).expect("the promises use proper names")
}

/// The same conversation id in another tenant.
pub fn elsewhere(key: &Key) -> Key {
    Key { tenant: tenant("globex"), id: key.id }
}

/// A message as JSON.
pub fn message(role: &str, text: &str) -> String {
    format!("{{\"role\":\"{role}\",\"content\":{}}}", quote(text))
}

/// A JSON text.
pub fn raw(text: &str) -> Raw {
    Raw::new(text.into()).expect("the promises use proper JSON")
}

/// A repeatable idempotency key, for a request with the content `request`.
pub fn once(key: &str, request: &str) -> Option<Idempotency> {
    Some(Idempotency { key: key.into(), request: Hash::of(request.as_bytes()), only_repeat: None })
}

/// Creates a conversation.
pub fn creation(key: &Key, drafts: Vec<Draft>) -> Write {
    Write { key: key.clone(), action: Action::Create { drafts, parent: None, idempotency: None } }
}

/// Appends to a conversation.
pub fn addition(key: &Key, drafts: Vec<Draft>) -> Write {
    Write { key: key.clone(), action: Action::append(drafts) }
}

/// A chunk of an open turn.
pub fn chunk(key: &Key, turn: TurnId, offset: u64, text: &str) -> Write {
    Write { key: key.clone(), action: Action::Chunk { turn, offset, text: text.into() } }
}

/// Restores events.
pub fn restoration(key: &Key, events: &[Event]) -> Write {
    Write { key: key.clone(), action: Action::Restore { events: events.to_vec() } }
}

/// One request, alone in its batch.
pub fn commit(store: &dyn Backend, write: Write) -> Result<Committed, Error> {
    let mut answers = store.commit(vec![write]);
    assert_eq!(answers.len(), 1, "every request has one answer");
    answers.remove(0)
}

/// One request that must succeed.
#[track_caller]
pub fn done(store: &dyn Backend, write: Write) -> Committed {
    commit(store, write).unwrap_or_else(|error| panic!("refused: {error:?}"))
}

/// One request that must be refused, with this code.
#[track_caller]
pub fn refused(store: &dyn Backend, write: Write, code: &str) -> Error {
    let error = commit(store, write).expect_err("this had to be refused");
    assert_eq!(error.code(), code, "{error:?}");
    error
}

/// Creates a conversation, which must succeed.
#[track_caller]
pub fn create(store: &dyn Backend, key: &Key, drafts: Vec<Draft>) -> Committed {
    done(store, creation(key, drafts))
}

/// Appends to a conversation, which must succeed.
#[track_caller]
pub fn append(store: &dyn Backend, key: &Key, drafts: Vec<Draft>) -> Committed {
    done(store, addition(key, drafts))
}

/// All events of its log.
#[track_caller]
pub fn log(store: &dyn Backend, key: &Key) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event.seq);
        let page = store.events(key, after, usize::MAX);
        let page = page.unwrap_or_else(|error| panic!("unreadable: {error:?}"));
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

/// Every turn, superseded ones included.
#[track_caller]
pub fn history(store: &dyn Backend, key: &Key) -> Vec<Turn> {
    let query = TurnQuery { whole_log: true, limit: usize::MAX, ..TurnQuery::default() };
    store.turns(key, &query).unwrap_or_else(|error| panic!("unreadable: {error:?}"))
}

/// The text of every turn, superseded ones included; empty for an erased or open one.
#[track_caller]
pub fn texts(store: &dyn Backend, key: &Key) -> Vec<String> {
    history(store, key).iter().map(|turn| turn.text(|_| None)).collect()
}

/// Verifies its chain, which must be complete and end at its head.
#[track_caller]
pub fn verify(store: &dyn Backend, key: &Key) -> ChainReport {
    let mut verifier = Verifier::new(key.id, None);
    for event in log(store, key) {
        verifier.push(&event).unwrap_or_else(|error| panic!("broken chain: {error:?}"));
    }
    let report = verifier.finish();
    let conversation = store.conversation(key).unwrap_or_else(|error| panic!("unreadable: {error:?}"));
    assert_eq!(report.head, conversation.head, "the chain ends where the conversation says");
    report
}

/// The turn that a draft begins.
pub fn turn_of(draft: &Draft) -> TurnId {
    TurnId(draft.id.0)
}
