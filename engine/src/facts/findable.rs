//! Changes of facts in the recall index.

use super::statements::addressed;
use crate::everturn::Shared;
use everturn_core::Error;
use everturn_core::event::{Event, kind};
use everturn_core::fact::{self, Fact, FactStatus};
use everturn_core::id::{ConversationId, FactId, Key};
use everturn_core::viewer::Viewer;
use everturn_core::write::ErasedBody;
use everturn_store::IndexChange;
use everturn_views::facts::add_up;
use everturn_views::recall::{EntryId, IndexEntry};
use std::collections::BTreeSet;

impl Shared {
    /// Changes that an event makes to the indexed facts. The index holds facts under the conversation in which they
    /// were written: a fork finds inherited facts there. The log is read in `place`: there, or in a fork of it.
    pub fn fact_changes(&self, place: &Key, event: &Event) -> Result<Vec<IndexChange>, Error> {
        let key = Key { tenant: place.tenant.clone(), id: event.conversation };
        match event.kind.as_str() {
            kind if kind::is_fact(kind) => {
                self.findable_facts(place, event.seq).map(|facts| stated_changes(&key, event, &facts))
            }
            kind::SUPERSEDED => self.forgotten(&key, place, event.seq, []),
            kind::ERASED => self.erased_facts(&key, place, event),
            _ => Ok(Vec::new()),
        }
    }

    /// Facts with the actors that may find them: those that everyone may see as everyone sees them, the others as they
    /// are.
    fn findable_facts(&self, key: &Key, through: u64) -> Result<Vec<Findable>, Error> {
        let statements = self.statements_at(key, through)?;
        let seen: Vec<Event> =
            statements.iter().map(|event| Viewer::everyone().event(event.clone())).collect();
        let mut facts: Vec<Findable> = add_up(&seen).into_iter().map(|fact| (fact, None)).collect();
        if seen != statements {
            for fact in add_up(&statements) {
                let states =
                    |event: &&Event| fact::stated_by(event) == Some(fact.id) || event.id.0 == fact.id.0;
                if !facts.iter().any(|(known, _)| known.id == fact.id) {
                    let audience = statements.iter().find(states).map(addressed).unwrap_or_default();
                    facts.push((fact, Some(audience)));
                }
            }
        }
        Ok(facts)
    }

    /// Facts learned from erased turns are erased too, wherever they were stated.
    fn erased_facts(&self, key: &Key, read_in: &Key, event: &Event) -> Result<Vec<IndexChange>, Error> {
        let body: Option<ErasedBody> = event.read();
        let learned = body.map(|body| body.learned).unwrap_or_default();
        let mut changes = Vec::new();
        let places: BTreeSet<ConversationId> =
            learned.iter().map(|one| one.conversation).chain([key.id]).collect();
        for conversation in places {
            let ids = learned.iter().filter(|one| one.conversation == conversation).map(|one| one.fact);
            let place = Key { tenant: key.tenant.clone(), id: conversation };
            let (read_in, through) = match conversation == key.id {
                true => (read_in, event.seq),
                false => match self.journal.index.conversation(&place) {
                    Ok(conversation) => (&place, conversation.head.seq),
                    Err(Error::NotFound(_)) => continue,
                    Err(error) => return Err(error),
                },
            };
            changes.extend(self.forgotten(&place, read_in, through, ids)?);
        }
        Ok(changes)
    }

    /// Removes facts that no longer hold, and restores those that hold again because of that.
    fn forgotten(
        &self,
        key: &Key,
        read_in: &Key,
        through: u64,
        ids: impl IntoIterator<Item = FactId>,
    ) -> Result<Vec<IndexChange>, Error> {
        let mut candidates: BTreeSet<FactId> = ids.into_iter().collect();
        for event in self.statements_at(read_in, through.saturating_sub(1))? {
            if event.conversation == key.id {
                candidates.insert(FactId(event.id.0));
                candidates.extend(fact::stated_by(&event));
            }
        }
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let facts = self.findable_facts(read_in, through)?;
        let gone = candidates.into_iter().filter(|id| !facts.iter().any(|(fact, _)| fact.id == *id));
        let mut changes: Vec<IndexChange> =
            gone.map(|id| IndexChange::Remove { key: key.clone(), id: EntryId::Fact(id) }).collect();
        if !changes.is_empty() {
            let own = facts
                .iter()
                .filter(|(fact, _)| fact.conversation == key.id && fact.status == FactStatus::Current);
            changes.extend(own.map(|(fact, audience)| put(key, fact, audience.clone())));
        }
        Ok(changes)
    }
}

/// A fact, and the actors that may find it; `None` for everyone.
type Findable = (Fact, Option<Vec<String>>);

/// Changes made by a statement, a correction or a retraction.
fn stated_changes(key: &Key, event: &Event, facts: &[Findable]) -> Vec<IndexChange> {
    let own = facts.iter().filter(|(fact, _)| fact.conversation == key.id);
    own.filter_map(|(fact, audience)| {
        let (key, id) = (key.clone(), EntryId::Fact(fact.id));
        match fact.status {
            FactStatus::Retracted if fact.retracted.as_ref().is_some_and(|at| at.seq == event.seq) => {
                Some(IndexChange::Remove { key, id })
            }
            _ if fact.seq == event.seq => Some(put(&key, fact, audience.clone())),
            FactStatus::Superseded if fact.superseded_seq == Some(event.seq) => {
                Some(IndexChange::Fell { key, id, seq: event.seq })
            }
            _ => None,
        }
    })
    .collect()
}

fn put(key: &Key, fact: &Fact, audience: Option<Vec<String>>) -> IndexChange {
    IndexChange::Put(Box::new(IndexEntry {
        tenant: key.tenant.clone(),
        conversation: fact.conversation,
        seq: fact.seq,
        id: EntryId::Fact(fact.id),
        role: None,
        actor: fact.by.clone(),
        at: fact.created,
        fallen: fact.superseded_seq,
        prose: true,
        text: fact.text(),
        persons: None,
        audience,
        vector: None,
    }))
}
