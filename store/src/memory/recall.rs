//! What the index of words is made from: the events, in the order in which they came.

use super::Memory;
use crate::recall::{Catalog, Ground};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, Tenant};

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

    fn arrived(&self, after: u64, limit: usize) -> Result<(Vec<(Tenant, Event)>, u64), Error> {
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

    fn readable_through(&self, key: &Key) -> Result<u64, Error> {
        let kept = self.kept();
        match kept.places.get(key) {
            None => Ok(0),
            Some(place) if kept.entries[*place].deleted.is_none() => Ok(u64::MAX),
            Some(place) => Ok(kept.needed(*place)),
        }
    }

    fn levels(&self, key: &Key) -> Result<Vec<(ConversationId, u64)>, Error> {
        let kept = self.kept();
        let Ok(levels) = kept.lineage(key) else { return Ok(Vec::new()) };
        Ok(levels.iter().map(|level| (level.entry.conversation.id, level.cap)).collect())
    }
}
