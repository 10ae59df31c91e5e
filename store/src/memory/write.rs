//! Writing: what a plan says.

use super::{Entry, Kept, Request, event_at, events, fork_point, turn_row};
use crate::Committed;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Parent, Tombstone};
use everturn_core::event::kind;
use everturn_core::id::{Key, TurnId};
use everturn_core::turn::{Status, TurnRow};
use everturn_core::write::{
    self, Action, Changes, ForkPoint, Idempotency, Lookup, Place, Plan, Write, absent, absent_turn,
};
use std::collections::BTreeMap;

impl Kept {
    pub(super) fn write(&mut self, request: Write) -> Result<Committed, Error> {
        let Write { key, action } = request;
        let existing = self.living(&key).ok().map(|entry| entry.conversation.clone());
        match action {
            Action::Chunk { turn, offset, text } => {
                let conversation = existing.ok_or_else(|| absent(&key))?;
                let row = turn_row(&self.lineage(&key)?, turn).ok_or_else(|| absent_turn(turn))?;
                if row.status != Status::Pending {
                    return Err(write::not_open(row.id, row.status));
                }
                self.entry(&key)?.chunks.insert((row.seq, offset), text);
                Ok(Committed::new(conversation, Vec::new()))
            }
            Action::Delete { at, reason, only_expired } => {
                let conversation = existing.ok_or_else(|| absent(&key))?;
                write::check_due(&conversation, at, only_expired)?;
                let tombstone = Tombstone { id: key.id, head: conversation.head, deleted: at, reason };
                let place = self.place(&key)?;
                self.entries[place].deleted = Some(tombstone);
                let released = self.purge(place);
                let released = self.unused(&key.tenant, released);
                Ok(Committed { released, ..Committed::new(conversation, Vec::new()) })
            }
            Action::Erase { ref turns, ref events, summaries, .. } => {
                let events = events.clone();
                let levels = self.lineage(&key)?;
                let found: Result<Vec<_>, _> =
                    turns.iter().map(|id| turn_row(&levels, *id).ok_or_else(|| absent_turn(*id))).collect();
                let found = found?;
                let mut committed = self.append(&key, existing, action, None)?;
                let mut erased = Vec::new();
                for row in &found {
                    self.erase_turn(&key, row, summaries, &mut erased)?;
                }
                for place in events {
                    self.erase_event(&key.tenant, place, &mut erased);
                }
                let released = self.erase_bodies(&mut erased)?;
                committed.released = self.unused(&key.tenant, released);
                committed.erased = erased
                    .iter()
                    .map(|(place, seq)| Place {
                        conversation: self.entries[*place].conversation.id,
                        seq: *seq,
                    })
                    .collect();
                self.erasures.extend(erased.into_iter().map(|(place, seq)| (place as i64, seq)));
                committed.conversation = self.living(&key)?.conversation.clone().into();
                Ok(committed)
            }
            Action::Create { ref idempotency, .. } => {
                let asked = idempotency.clone().map(|i| (tenant_scope(&key), i));
                self.append(&key, existing, action, asked)
            }
            Action::Append { ref idempotency, .. } => {
                let asked = idempotency.clone().map(|i| (conversation_scope(&key), i));
                self.append(&key, existing, action, asked)
            }
            Action::Restore { .. } | Action::Derive { .. } | Action::Begin { .. } => {
                self.append(&key, existing, action, None)
            }
            Action::Bury { tombstone } => {
                let conversation = existing.ok_or_else(|| absent(&key))?;
                let place = self.place(&key)?;
                self.entries[place].deleted = Some(tombstone);
                self.purge(place);
                Ok(Committed::new(conversation, Vec::new()))
            }
            Action::Remember { requests } => {
                let conversation = existing.ok_or_else(|| absent(&key))?;
                let place = self.place(&key)?;
                for request in requests {
                    let scope = if request.creation { tenant_scope(&key) } else { conversation_scope(&key) };
                    self.requests.entry((scope, request.key)).or_insert(Request {
                        fingerprint: request.fingerprint,
                        place,
                        first_seq: request.first_seq,
                        last_seq: request.last_seq,
                    });
                }
                Ok(Committed::new(conversation, Vec::new()))
            }
        }
    }

    fn append(
        &mut self,
        key: &Key,
        existing: Option<Conversation>,
        action: Action,
        idempotency: Option<(String, Idempotency)>,
    ) -> Result<Committed, Error> {
        if let Some((scope, asked)) = &idempotency
            && let Some(answered) = self.repeated(scope, asked)?
        {
            return Ok(answered);
        }
        if let Some((_, Idempotency { only_repeat: Some(error), .. })) = idempotency {
            return Err(error);
        }
        let Plan { conversation, events, changes } =
            write::plan(key, existing, action, &InMemory { kept: self, key })?;
        if self.living(key).is_err() {
            let above = conversation
                .parent
                .map(|parent| self.place(&Key { tenant: key.tenant.clone(), id: parent.conversation }));
            let above = above.transpose()?;
            self.places.insert(key.clone(), self.entries.len());
            self.entries.push(Entry::new(conversation.clone(), above));
        }
        let entry = self.entry(key)?;
        entry.conversation = conversation.clone();
        entry.events.extend(events.iter().cloned());
        for event in events.iter().filter(|event| kind::ends_turn(&event.kind)) {
            if let Some(row) = changes.turns.iter().find(|row| Some(row.id) == event.turn) {
                entry.chunks.retain(|(turn_seq, _), _| *turn_seq != row.seq);
            }
        }
        entry.apply(changes);
        let place = self.place(key)?;
        self.arrived.extend(events.iter().map(|event| (place, event.seq, event.id)));
        if let (Some((scope, asked)), Some(first), Some(last)) = (idempotency, events.first(), events.last())
        {
            let salt = first.body.as_ref().map_or([0; 16], |body| body.salt);
            let request = Request {
                fingerprint: asked.fingerprint(&salt),
                place: self.place(key)?,
                first_seq: first.seq,
                last_seq: last.seq,
            };
            self.requests.insert((scope, asked.key), request);
        }
        Ok(Committed::new(conversation, events))
    }

    fn repeated(&self, scope: &str, asked: &Idempotency) -> Result<Option<Committed>, Error> {
        let Some(request) = self.requests.get(&(scope.to_string(), asked.key.clone())) else {
            return Ok(None);
        };
        let conversation = self.entries[request.place].conversation.clone();
        let key = Key { tenant: conversation.tenant.clone(), id: conversation.id };
        let events = events(
            &self.lineage(&key)?,
            request.first_seq - 1,
            (request.last_seq - request.first_seq + 1) as usize,
        );
        if let Some(body) = events.first().and_then(|event| event.body.as_ref())
            && asked.fingerprint(&body.salt) != request.fingerprint
        {
            return Err(asked.conflict());
        }
        Ok(Some(Committed { repeated: true, ..Committed::new(conversation, events) }))
    }
}

impl Entry {
    pub(super) fn new(conversation: Conversation, above: Option<usize>) -> Entry {
        Entry {
            conversation,
            above,
            events: Vec::new(),
            turns: BTreeMap::new(),
            assets: Vec::new(),
            references: Vec::new(),
            facts: Vec::new(),
            summaries: Vec::new(),
            chunks: BTreeMap::new(),
            folds: BTreeMap::new(),
            deleted: None,
        }
    }

    pub(super) fn apply(&mut self, changes: Changes) {
        self.turns.extend(changes.turns.into_iter().map(|row| (row.seq, row)));
        for asset in changes.assets {
            self.assets.retain(|known| known.id != asset.id);
            self.assets.push(asset);
        }
        for reference in changes.references {
            if !self.references.contains(&reference) {
                self.references.push(reference);
            }
        }
        self.facts.extend(changes.facts);
        self.summaries.extend(changes.summaries);
    }
}

/// Keys of creations are unique in a tenant.
fn tenant_scope(key: &Key) -> String {
    format!("tenant:{}", key.tenant)
}

/// Keys of appends are unique in a conversation.
pub(super) fn conversation_scope(key: &Key) -> String {
    format!("conversation:{}/{}", key.tenant, key.id)
}

/// What a plan asks of the store, in one conversation.
pub(super) struct InMemory<'a> {
    pub(super) kept: &'a Kept,
    pub(super) key: &'a Key,
}

impl Lookup for InMemory<'_> {
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error> {
        // One that is being restored is not there yet.
        match self.kept.living(self.key) {
            Ok(_) => Ok(turn_row(&self.kept.lineage(self.key)?, id)),
            Err(_) => Ok(None),
        }
    }

    fn fork_point(&self, parent: Parent) -> Result<ForkPoint, Error> {
        let key = Key { tenant: self.key.tenant.clone(), id: parent.conversation };
        let conversation = &self.kept.living(&key)?.conversation;
        let levels = self.kept.lineage(&key)?;
        write::check_fork_depth(levels.len())?;
        fork_point(&levels, parent.at_seq).ok_or_else(|| write::no_such_seq(conversation, parent.at_seq))
    }

    fn fallen_after(&self, seq: u64) -> Result<u64, Error> {
        let Ok(levels) = self.kept.lineage(self.key) else { return Ok(0) };
        let mut rows: BTreeMap<u64, bool> = BTreeMap::new();
        for (depth, level) in levels.iter().enumerate() {
            for row in level.entry.turns.values().filter(|row| row.seq > seq && row.seq <= level.cap) {
                let row = if depth == 0 { row.clone() } else { row.clone().as_of(level.cap) };
                rows.entry(row.seq).or_insert(row.superseded_by.is_some());
            }
        }
        Ok(rows.into_values().filter(|fallen| *fallen).count() as u64)
    }

    fn erased_since(&self, mark: u64) -> Result<bool, Error> {
        let levels = self.kept.lineage(self.key)?;
        let sees = |place: i64, seq: u64| levels.iter().any(|l| l.place as i64 == place && seq <= l.cap);
        Ok(self.kept.erasures.any_since(mark, sees))
    }

    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error> {
        Ok(event_at(&self.kept.lineage(self.key)?, seq).map(|event| event.hash))
    }
}
