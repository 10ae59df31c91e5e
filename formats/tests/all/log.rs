//! A conversation in memory, written by the rules of `core` as a store would.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Lifecycle, Parent, Settings, SystemPrompt};
use everturn_core::event::{Body, Draft, Event, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::pairing::pair;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn, TurnBody, TurnRow};
use everturn_core::write::{
    Action, AssetRow, EventRef, Existing, Fork, ForkParent, ForkPoint, Level, Lookup, Plan, PlannedAppend,
    Statement, StatementsOf, SummaryRow, Traces, Turns, plan,
};
use everturn_formats::transcript::{ExportSource, Item, ParsedTranscript, STATE_REASON, export};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::RangeInclusive;

/// 2026-01-01T00:00:00Z.
pub const START: Timestamp = Timestamp(1_767_225_600_000_000);

pub fn conversation_id(n: u64) -> ConversationId {
    ConversationId::from_bytes(u128::from(n).to_be_bytes())
}

pub struct Log {
    pub id: ConversationId,
    pub conversation: Option<Conversation>,
    pub events: Vec<Event>,
    /// The note of the checkpoint.
    pub summary: Option<String>,
    rows: Rows,
    next_id: u64,
}

struct Rows {
    turns: BTreeMap<TurnId, TurnRow>,
    parent: Option<ForkParent>,
}

impl Turns for Rows {
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error> {
        Ok(self.turns.get(&id).cloned())
    }
}

impl Lookup for Rows {
    fn fork_parent(&self, _: Parent) -> Result<Option<ForkParent>, Error> {
        Ok(self.parent.clone())
    }

    fn lineage(&self) -> Result<Vec<Level>, Error> {
        unreachable!("nothing is erased here")
    }

    fn forks(&self, _: u64) -> Result<Vec<Fork>, Error> {
        unreachable!("nothing is deleted here")
    }

    fn fallen_after(&self, _: u64) -> Result<u64, Error> {
        Ok(0)
    }

    fn erased_since(&self, _: u64) -> Result<Option<Vec<EventRef>>, Error> {
        Ok(Some(Vec::new()))
    }

    fn hash_at(&self, _: u64) -> Result<Option<Hash>, Error> {
        Ok(None)
    }
}

impl Traces for Rows {
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

impl Log {
    pub fn new(id: ConversationId) -> Log {
        let rows = Rows { turns: BTreeMap::new(), parent: None };
        Log { id, conversation: None, events: Vec::new(), summary: None, rows, next_id: 1 }
    }

    /// Begins with these settings, and with the fingerprint of the prompt if they set one.
    pub fn created(id: ConversationId, settings: Settings) -> Log {
        let mut log = Log::new(id);
        log.begin(settings);
        log
    }

    fn begin(&mut self, settings: Settings) {
        let settings = settings.normalise().unwrap();
        self.add(kind::CREATED, Raw::of(&settings).unwrap().get());
        if let Some(Some(prompt)) = &settings.system_prompt {
            let body = format!(r#"{{"sha256":"{}","bytes":{}}}"#, prompt.sha256, prompt.bytes);
            self.append(Draft { visibility: Visibility::Internal, ..self.draft(kind::SYSTEM_PROMPT, &body) });
        }
    }

    /// Goes on behind the last event of a parent, whose events stand in front.
    pub fn fork(parent: &Log, id: ConversationId) -> Log {
        let from = parent.conversation.as_ref().unwrap();
        let mut log = Log::new(id);
        log.events = parent.events.clone();
        log.rows.turns = parent.rows.turns.clone();
        let point = Some(ForkPoint { head: from.head, turns: from.turns });
        log.rows.parent = Some(ForkParent { conversation: from.clone(), levels: 1, point });
        log.next_id = parent.next_id;
        let settings = Settings {
            parent: Some(Parent { conversation: from.id, at_seq: from.head.seq }),
            ..Settings::default()
        };
        log.add(kind::FORKED, Raw::of(&settings).unwrap().get());
        log
    }

    /// As `engine` stores a value: what [`everturn_formats::transcript`] says, in this order.
    pub fn imported(value: &ParsedTranscript) -> Log {
        let id = value.id.unwrap_or_else(|| conversation_id(4711));
        let mut log = Log::new(id);
        // New ids are none of the value's.
        let given = value.items.iter().filter_map(|item| match item {
            Item::Turn { about, .. } | Item::Event { about, .. } => about.turn,
        });
        let last = given.map(|turn| u128::from_be_bytes(turn.to_bytes())).max().unwrap_or_default();
        log.next_id = u64::try_from(last % (1 << 40)).unwrap() + 1000;
        log.begin(value.settings.clone());
        for asset in &value.assets {
            log.add(kind::ASSET_ADDED, asset.raw.get());
        }
        if let Some((checkpoint, _)) = &value.checkpoint {
            log.summary = Some(checkpoint.handoff_md.clone());
        }
        for item in &value.items {
            match item {
                Item::Turn { role, visibility, message, event, is_derived, about } => {
                    let body = TurnBody {
                        message: Some(message.clone()),
                        event: event.clone().filter(|_| !is_derived),
                        tokens: about.tokens,
                        model: about.model.clone(),
                        metadata: about.metadata.clone(),
                        audience: about.audience.clone(),
                        ..TurnBody::default()
                    };
                    let draft = log.turn_draft(*role, *visibility, &body);
                    let turn = about.turn.or(draft.turn);
                    let id = turn.map_or(draft.id, |turn| EventId(turn.0));
                    let (actor, occurred_at) = (about.actor.clone(), about.at);
                    log.append(Draft { id, turn, actor, occurred_at, ..draft });
                }
                Item::Event { kind, role, visibility, about, .. } => {
                    let body = item.body().unwrap().unwrap();
                    log.append(Draft {
                        role: *role,
                        visibility: *visibility,
                        actor: about.actor.clone(),
                        occurred_at: about.at,
                        ..log.draft(kind.clone(), body.get())
                    });
                }
            }
        }
        log.add(kind::IMPORT_FINISHED, "{}");
        if value.state != Lifecycle::Active {
            log.add(kind::STATE, &format!(r#"{{"state":"{}","reason":"{STATE_REASON}"}}"#, value.state));
        }
        log
    }

    pub fn draft(&self, kind: impl Into<Cow<'static, str>>, body: &str) -> Draft {
        Draft {
            id: EventId::from_bytes(u128::from(self.next_id).to_be_bytes()),
            at: START.plus_s(self.next_id),
            occurred_at: None,
            kind: kind.into(),
            actor: None,
            role: None,
            visibility: Visibility::Public,
            turn: None,
            key: None,
            body: Body { salt: [self.next_id as u8; 16], text: body.to_string() },
        }
    }

    pub fn append(&mut self, draft: Draft) {
        draft.check().unwrap();
        let key = Key { tenant: TenantName::new("test").unwrap(), id: self.id };
        let drafts = vec![draft];
        let parent = self.rows.parent.as_ref().map(|_| Parent { conversation: self.id, at_seq: 0 });
        let action = match self.conversation {
            None => Action::Create { drafts, parent, idempotency: None },
            Some(_) => Action::append(drafts),
        };
        let existing = Existing { conversation: self.conversation.as_ref(), answered: None };
        let Plan::Append(append) = plan(&key, action, existing, &self.rows).unwrap() else {
            panic!("nothing to append")
        };
        let PlannedAppend { conversation, events, changes, .. } = *append;
        self.conversation = Some(conversation);
        self.rows.turns.extend(changes.turns.into_iter().map(|row| (row.id, row)));
        self.events.extend(events);
        self.next_id += 1;
    }

    pub fn add(&mut self, kind: &'static str, body: &str) {
        self.append(self.draft(kind, body));
    }

    pub fn turn(&mut self, role: Role, visibility: Visibility, body: &TurnBody) -> TurnId {
        let draft = self.turn_draft(role, visibility, body);
        let turn = TurnId(draft.id.0);
        self.append(draft);
        turn
    }

    fn turn_draft(&self, role: Role, visibility: Visibility, body: &TurnBody) -> Draft {
        let kind = if role == Role::Tool { kind::TOOL_RESULT } else { kind::MESSAGE };
        let draft = self.draft(kind, Raw::of(body).unwrap().get());
        Draft { role: Some(role), visibility, turn: Some(TurnId(draft.id.0)), ..draft }
    }

    /// A turn with this message.
    pub fn say(&mut self, role: Role, message: &str) -> TurnId {
        let message = Some(Raw::new(message.to_string()).unwrap());
        self.turn(role, Visibility::Public, &TurnBody { message, ..TurnBody::default() })
    }

    /// Opens a turn, to be ended by [`Log::about`].
    pub fn open(&mut self, role: Role) -> TurnId {
        let draft = self.draft(kind::OPENED, "{}");
        let turn = TurnId(draft.id.0);
        self.append(Draft { role: Some(role), turn: Some(turn), ..draft });
        turn
    }

    pub fn about(&mut self, kind: &'static str, turn: TurnId, body: &str) {
        self.append(Draft { turn: Some(turn), ..self.draft(kind, body) });
    }

    pub fn turns(&self) -> Vec<Turn> {
        let at = |seq: u64| &self.events[seq as usize - 1];
        self.rows
            .turns
            .values()
            .map(|row| Turn::read(self.id, row.clone(), at(row.content_seq.unwrap_or(row.seq))))
            .collect()
    }

    pub fn export(&self) -> String {
        let conversation = self.conversation.as_ref().unwrap();
        let system_prompt: Option<SystemPrompt> = conversation.system_prompt.map(|prompt| {
            let settings: Settings = self.events[prompt.seq as usize - 1].read().unwrap();
            settings.system_prompt.flatten().unwrap()
        });
        let system_prompt = system_prompt.as_ref();
        let mut turns = self.turns();
        turns.sort_by_key(|turn| turn.seq);
        let mut read: Vec<Turn> = turns.iter().filter(|turn| turn.superseded_by.is_none()).cloned().collect();
        read.sort_by_key(|turn| turn.place);
        // Those without a result wait for it.
        let mut calls = HashSet::new();
        for message in turns.iter().filter_map(|turn| turn.message.as_ref()?.read::<Value>()) {
            let called = pair([&message]).calls.iter().filter_map(|call| call.id.map(String::from)).collect();
            calls = &calls | &called;
        }
        let source = ExportSource {
            conversation,
            system_prompt,
            // A few at a time, so that pages have ends.
            events: &|after| {
                Ok(self.events.iter().filter(|event| event.seq > after).take(3).cloned().collect())
            },
            turns: &|after| Ok(turns.iter().filter(|turn| turn.seq > after).take(2).cloned().collect()),
            read: &|after| Ok(read.iter().filter(|turn| turn.place > after).take(2).cloned().collect()),
            has_assets: true,
            bytes: Some(&|_| Ok(None)),
            waiting: &[],
            unanswered: &calls,
            summary: self.summary.as_deref(),
            events_after: 0,
            in_force: &BTreeSet::new(),
        };
        let mut text = Vec::new();
        export(&source, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }
}
