//! The source of the indexes: events in the order of arrival.

use super::{Kept, Memory, StoredConversation};
use crate::recall::{Catalog, Ground, Visible};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, TenantName};
use everturn_core::write::{needed, reader};
use std::collections::BTreeMap;

impl Kept {
    /// Events after one position in the order of arrival and up to another: position, tenant, and location.
    fn arrived_between(
        &self,
        after: u64,
        through: u64,
    ) -> impl Iterator<Item = (u64, &TenantName, &StoredConversation, u64)> {
        let place = |number| usize::try_from(number).unwrap_or(usize::MAX).min(self.arrived.len());
        let (from, to) = (place(after), place(through));
        self.arrived[from.min(to)..to].iter().zip(after + 1..).map(|((place, seq, _), number)| {
            let entry = &self.entries[*place];
            (number, &entry.conversation.tenant, entry, *seq)
        })
    }
}

impl Ground for Memory {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn last_arrived(&self) -> Result<u64, Error> {
        Ok(self.kept().arrived.len() as u64)
    }

    fn arrived_at(&self, no: u64) -> Result<Option<EventId>, Error> {
        let at = usize::try_from(no).unwrap_or(usize::MAX).checked_sub(1);
        Ok(at.and_then(|at| self.kept().arrived.get(at).map(|(.., id)| *id)))
    }

    fn arrived(&self, after: u64, limit: usize) -> Result<(Vec<(TenantName, Event)>, u64), Error> {
        let kept = self.kept();
        let mut out = Vec::new();
        let from = usize::try_from(after).unwrap_or(usize::MAX);
        let to = kept.arrived.len().min(from.saturating_add(limit));
        for (place, seq, _) in kept.arrived.iter().take(to).skip(from) {
            let entry = &kept.entries[*place];
            // Of a deleted conversation only what its forks read is left.
            out.extend(entry.at(*seq).map(|event| (entry.conversation.tenant.clone(), event.clone())));
        }
        Ok((out, after.max(to as u64)))
    }

    fn counts(&self, after: u64, through: u64) -> Result<Vec<(TenantName, u64)>, Error> {
        let kept = self.kept();
        let mut counts: BTreeMap<TenantName, u64> = BTreeMap::new();
        for (_, tenant, _, _) in kept.arrived_between(after, through) {
            *counts.entry(tenant.clone()).or_default() += 1;
        }
        Ok(counts.into_iter().collect())
    }

    fn numbers_of(&self, tenant: &TenantName, after: u64, through: u64) -> Result<Vec<u64>, Error> {
        let kept = self.kept();
        let all = kept.arrived_between(after, through);
        Ok(all.filter(|(_, of, ..)| *of == tenant).map(|(number, ..)| number).collect())
    }

    fn events_at(&self, numbers: &[u64]) -> Result<Vec<(u64, Event)>, Error> {
        let kept = self.kept();
        let at = |number: &u64| {
            let (_, _, entry, seq) = kept.arrived_between(number - 1, *number).next()?;
            entry.at(seq).map(|event| (*number, event.clone()))
        };
        Ok(numbers.iter().filter_map(at).collect())
    }

    fn with_deletions(&self) -> Result<Vec<TenantName>, Error> {
        let kept = self.kept();
        let deleted = kept.entries.iter().filter(|entry| entry.deleted.is_some());
        Ok(deleted.map(|entry| entry.conversation.tenant.clone()).collect())
    }
}

impl Visible for Memory {
    fn readable_through(&self, key: &Key) -> Result<u64, Error> {
        let kept = self.kept();
        match kept.places.get(key) {
            None => Ok(0),
            Some(place) if kept.entries[*place].deleted.is_none() => Ok(u64::MAX),
            Some(place) => needed(*place as u64, |conversation| Ok(kept.forks(conversation))),
        }
    }

    fn readers(
        &self,
        tenant: &TenantName,
        places: &[(ConversationId, u64)],
    ) -> Result<Vec<Option<ConversationId>>, Error> {
        let kept = self.kept();
        let reader = |(id, seq): &(ConversationId, u64)| {
            let Some(place) = kept.places.get(&Key { tenant: tenant.clone(), id: *id }) else {
                return Ok(None);
            };
            if kept.entries[*place].deleted.is_none() {
                return Ok(Some(*id));
            }
            let reader = reader(*place as u64, *seq, |conversation| Ok(kept.forks(conversation)))?;
            Ok(reader.map(|reader| kept.entries[reader as usize].conversation.id))
        };
        places.iter().map(reader).collect()
    }

    fn levels(&self, key: &Key) -> Result<Vec<(ConversationId, u64)>, Error> {
        let kept = self.kept();
        let Ok(levels) = kept.lineage(key) else { return Ok(Vec::new()) };
        Ok(levels.iter().map(|level| (level.entry.conversation.id, level.cap)).collect())
    }
}
