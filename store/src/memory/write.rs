//! Applying a plan.

use super::lookup::InMemory;
use super::{Kept, Request, StoredConversation, events};
use crate::Committed;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::id::Key;
use everturn_core::write::{
    self, Answered, AnsweredRequest, Changes, Deletion, Erasure, EventAddress, EventRef, Existing, Plan,
    PlannedAppend, Purge, Write,
};
use std::collections::BTreeMap;

impl Kept {
    pub(super) fn write(&mut self, request: Write) -> Result<Committed, Error> {
        let Write { key, action } = request;
        let answered = match action.idempotency() {
            Some((creation, asked)) => self.answered(scope(&key, creation), &asked.key)?,
            None => None,
        };
        let conversation = self.living(&key).ok().map(|entry| &entry.conversation);
        let existing = Existing { conversation, answered };
        let parent = action.parent();
        let plan = write::plan(&key, action, existing, &InMemory { kept: self, key: &key, parent })?;
        match plan {
            Plan::Repeat(Answered { conversation, events, .. }) => {
                Ok(Committed { repeated: true, ..Committed::new(conversation, events) })
            }
            Plan::Append(append) => self.append(&key, *append),
            Plan::Chunk(chunk) => {
                let entry = self.entry(&key)?;
                entry.chunks.insert((chunk.turn_seq, chunk.offset), chunk.text);
                Ok(entry.unchanged())
            }
            Plan::Remember(requests) => {
                let place = self.place(&key)?;
                requests.into_iter().for_each(|request| self.remember(&key, place, request));
                Ok(self.entries[place].unchanged())
            }
            Plan::Delete(Deletion { tombstone, purges, released }) => {
                let entry = self.entry(&key)?;
                entry.deleted = Some(tombstone);
                let committed = Committed { released, ..entry.unchanged() };
                purges.into_iter().for_each(|purge| self.purge(purge));
                Ok(committed)
            }
        }
    }

    fn append(&mut self, key: &Key, append: PlannedAppend) -> Result<Committed, Error> {
        let PlannedAppend { conversation, events, changes, request, erasure } = append;
        if self.living(key).is_err() {
            let above = conversation
                .parent
                .map(|parent| self.place(&Key { tenant: key.tenant.clone(), id: parent.conversation }));
            let above = above.transpose()?;
            self.places.insert(key.clone(), self.entries.len());
            self.entries.push(StoredConversation::new(conversation.clone(), above));
        }
        let place = self.place(key)?;
        let entry = &mut self.entries[place];
        entry.conversation = conversation.clone();
        entry.events.extend(events.iter().cloned());
        entry.apply(changes);
        self.arrived.extend(events.iter().map(|event| (place, event.seq, event.id)));
        if let Some(request) = request {
            self.remember(key, place, request);
        }
        let mut committed = Committed::new(conversation, events);
        if let Some(erasure) = erasure {
            committed.erased = erasure.bodies.iter().map(|at| self.place_of(*at)).collect();
            committed.released = self.erase(erasure);
        }
        Ok(committed)
    }

    fn answered(&self, scope: String, key: &str) -> Result<Option<Answered>, Error> {
        let Some(request) = self.requests.get(&(scope, key.to_string())) else { return Ok(None) };
        let conversation = &self.entries[request.place].conversation;
        let key = Key { tenant: conversation.tenant.clone(), id: conversation.id };
        let count = (request.last_seq - request.first_seq + 1) as usize;
        Ok(Some(Answered {
            fingerprint: request.fingerprint,
            events: events(&self.lineage(&key)?, request.first_seq - 1, count),
            conversation: conversation.clone().into(),
        }))
    }

    fn remember(&mut self, key: &Key, place: usize, request: AnsweredRequest) {
        let AnsweredRequest { creation, key: name, fingerprint, first_seq, last_seq } = request;
        let request = Request { fingerprint, place, first_seq, last_seq };
        self.requests.insert((scope(key, creation), name), request);
    }

    fn erase(&mut self, erasure: Erasure) -> Vec<Hash> {
        for at in &erasure.bodies {
            let entry = self.numbered_mut(at.conversation);
            entry.events.iter_mut().filter(|event| event.seq == at.seq).for_each(|event| event.body = None);
            entry.summaries.retain(|row| row.seq != at.seq);
        }
        for at in erasure.assets {
            self.numbered_mut(at.conversation).assets.retain(|row| row.seq != at.seq);
        }
        for at in erasure.facts {
            self.numbered_mut(at.conversation).facts.retain(|row| row.seq != at.seq);
        }
        for at in erasure.references {
            self.numbered_mut(at.conversation).references.retain(|row| row.turn_seq != at.seq);
        }
        for at in erasure.folds {
            self.drop_folds(at.conversation as usize, at.seq, at.seq);
        }
        for (conversation, checkpoint) in erasure.checkpoints {
            self.numbered_mut(conversation).conversation.set_checkpoint(checkpoint);
        }
        self.erasures.extend(erasure.bodies);
        erasure.released
    }

    fn drop_folds(&mut self, place: usize, from: u64, seen: u64) {
        self.entries[place].folds.retain(|seq, _| *seq < from);
        for fork in self.seeing(place, seen) {
            self.drop_folds(fork, from, seen);
        }
    }

    fn purge(&mut self, Purge { conversation, keep }: Purge) {
        let place = conversation as usize;
        self.requests.retain(|_, request| request.place != place);
        let entry = &mut self.entries[place];
        entry.events.retain(|event| event.seq <= keep);
        entry.turns.retain(|seq, _| *seq <= keep);
        entry.assets.retain(|asset| asset.seq <= keep);
        entry.references.retain(|reference| reference.turn_seq <= keep);
        entry.facts.retain(|fact| fact.seq <= keep);
        entry.summaries.retain(|summary| summary.seq <= keep);
        entry.chunks.clear();
        entry.folds.retain(|seq, _| *seq <= keep);
    }

    fn numbered_mut(&mut self, conversation: u64) -> &mut StoredConversation {
        &mut self.entries[conversation as usize]
    }

    fn place_of(&self, at: EventRef) -> EventAddress {
        EventAddress { conversation: self.entries[at.conversation as usize].conversation.id, seq: at.seq }
    }
}

impl StoredConversation {
    pub(super) fn new(conversation: Conversation, above: Option<usize>) -> StoredConversation {
        StoredConversation {
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

    /// The result of a request that added no events.
    fn unchanged(&self) -> Committed {
        Committed::new(self.conversation.clone(), Vec::new())
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
        self.chunks.retain(|(turn_seq, _), _| !changes.ended.contains(turn_seq));
    }
}

/// Keys of creations are unique in a tenant, others in a conversation.
pub(super) fn scope(key: &Key, creation: bool) -> String {
    if creation {
        format!("tenant:{}", key.tenant)
    } else {
        format!("conversation:{}/{}", key.tenant, key.id)
    }
}
