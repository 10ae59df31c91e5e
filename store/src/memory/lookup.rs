//! Lookups for a plan. A conversation's number is its index in [`Kept::entries`].

use super::{Kept, StoredConversation, event_at, fork_point, turn_row, turn_rows};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Parent;
use everturn_core::echo::Words;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::turn::TurnRow;
use everturn_core::write::{
    AssetRow, EventRef, FactRow, Fork, ForkParent, Level, Lookup, Statement, StatementsOf, SummaryRow,
    Traces, Turns,
};
use std::ops::RangeInclusive;

/// One conversation of the store.
pub(super) struct InMemory<'a> {
    pub(super) kept: &'a Kept,
    pub(super) key: &'a Key,
    /// Origin of a fork that is being made.
    pub(super) parent: Option<Parent>,
}

impl InMemory<'_> {
    fn numbered(&self, conversation: u64) -> &StoredConversation {
        &self.kept.entries[conversation as usize]
    }

    /// The levels above a fork that is being made, and the `seq` up to which it sees them.
    fn above(&self) -> Option<(Vec<super::Level<'_>>, u64)> {
        let parent = self.parent?;
        let key = Key { tenant: self.key.tenant.clone(), id: parent.conversation };
        Some((self.kept.lineage(&key).ok()?, parent.at_seq))
    }
}

impl Turns for InMemory<'_> {
    fn turn(&self, id: TurnId) -> Result<Option<TurnRow>, Error> {
        // A conversation that is being made or restored does not exist yet.
        if let Ok(levels) = self.kept.lineage(self.key) {
            return Ok(turn_row(&levels, id));
        }
        let Some((levels, seq)) = self.above() else { return Ok(None) };
        Ok(turn_row(&levels, id).filter(|row| row.seq <= seq).map(|row| row.as_of(seq)))
    }
}

impl Lookup for InMemory<'_> {
    fn fork_parent(&self, parent: Parent) -> Result<Option<ForkParent>, Error> {
        let key = Key { tenant: self.key.tenant.clone(), id: parent.conversation };
        let Ok(levels) = self.kept.lineage(&key) else { return Ok(None) };
        Ok(Some(ForkParent {
            conversation: levels[0].entry.conversation.clone(),
            levels: levels.len(),
            point: fork_point(&levels, parent.at_seq),
        }))
    }

    fn lineage(&self) -> Result<Vec<Level>, Error> {
        let levels = self.kept.lineage(self.key)?;
        let level = |level: &super::Level<'_>| Level {
            conversation: level.place as u64,
            floor: level.floor,
            cap: level.cap,
            deleted: level.entry.deleted.is_some(),
        };
        Ok(levels.iter().map(level).collect())
    }

    fn forks(&self, conversation: u64) -> Result<Vec<Fork>, Error> {
        Ok(self.kept.forks(conversation))
    }

    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error> {
        Ok(event_at(&self.kept.lineage(self.key)?, seq).map(|event| event.hash))
    }

    fn fallen_after(&self, seq: u64) -> Result<u64, Error> {
        let fallen = |row: &TurnRow| row.seq > seq && (row.superseded_by.is_some() || row.place <= seq);
        if let Ok(levels) = self.kept.lineage(self.key) {
            return Ok(turn_rows(&levels).into_values().filter(fallen).count() as u64);
        }
        let Some((levels, cap)) = self.above() else { return Ok(0) };
        let inherited =
            turn_rows(&levels).into_values().filter(|row| row.seq <= cap).map(|row| row.as_of(cap));
        Ok(inherited.filter(fallen).count() as u64)
    }

    fn erased_since(&self, mark: u64) -> Result<Option<Vec<EventRef>>, Error> {
        Ok(self.kept.erasures.since(mark))
    }
}

impl Traces for InMemory<'_> {
    fn number(&self, id: ConversationId) -> Result<Option<u64>, Error> {
        let key = Key { tenant: self.key.tenant.clone(), id };
        Ok(self.kept.places.get(&key).map(|place| *place as u64))
    }

    fn body_kind(&self, at: EventRef) -> Result<Option<String>, Error> {
        let event = self.numbered(at.conversation).at(at.seq).filter(|event| event.body.is_some());
        Ok(event.map(|event| event.kind.clone()))
    }

    fn event(&self, at: EventRef) -> Result<Option<Event>, Error> {
        Ok(self.numbered(at.conversation).at(at.seq).cloned())
    }

    fn statements(&self, of: StatementsOf) -> Result<Vec<Statement>, Error> {
        Ok(self.kept.statements(&self.key.tenant, of))
    }

    fn summaries(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<SummaryRow>, Error> {
        let rows = self.numbered(conversation).summaries.iter();
        Ok(rows.filter(|row| seqs.contains(&row.seq)).copied().collect())
    }

    fn summaries_reaching(&self, at: EventRef) -> Result<Vec<EventRef>, Error> {
        let EventRef { conversation, seq } = at;
        let rows = self.numbered(conversation).summaries.iter().filter(|row| row.through_seq >= seq);
        let mut found: Vec<EventRef> = rows.map(|row| EventRef { conversation, seq: row.seq }).collect();
        for fork in self.kept.seeing(conversation as usize, seq) {
            found.extend(self.summaries_reaching(EventRef { conversation: fork as u64, seq })?);
        }
        Ok(found)
    }

    fn shown_by(&self, turn: EventRef) -> Result<Vec<AssetRow>, Error> {
        let entry = self.numbered(turn.conversation);
        let shows = |id: &str| entry.references.iter().any(|r| r.turn_seq == turn.seq && r.asset == id);
        Ok(entry.assets.iter().filter(|asset| shows(&asset.id)).cloned().collect())
    }

    fn showing(&self, conversation: u64, asset: &str) -> Result<Vec<EventRef>, Error> {
        let references = self.numbered(conversation).references.iter().filter(|r| r.asset == asset);
        let mut found: Vec<EventRef> =
            references.map(|r| EventRef { conversation, seq: r.turn_seq }).collect();
        for fork in self.kept.forks(conversation) {
            found.extend(self.showing(fork.conversation, asset)?);
        }
        Ok(found)
    }

    fn assets(&self, conversation: u64, seqs: RangeInclusive<u64>) -> Result<Vec<AssetRow>, Error> {
        let rows = self.numbered(conversation).assets.iter();
        Ok(rows.filter(|row| seqs.contains(&row.seq)).cloned().collect())
    }

    fn asset_count(&self, sha256: Hash) -> Result<u64, Error> {
        Ok(self.kept.asset_count(&self.key.tenant, sha256))
    }
}

impl Kept {
    pub(super) fn forks(&self, conversation: u64) -> Vec<Fork> {
        let entries = self.entries.iter().enumerate();
        let forks = entries.filter(|(_, entry)| entry.above == Some(conversation as usize));
        let fork = |(place, entry): (usize, &StoredConversation)| Fork {
            conversation: place as u64,
            at_seq: entry.conversation.parent.map_or(0, |parent| parent.at_seq),
            deleted: entry.deleted.is_some(),
        };
        forks.map(fork).collect()
    }

    /// Direct forks that see a `seq`.
    pub(super) fn seeing(&self, place: usize, seq: u64) -> Vec<usize> {
        let forks = self.forks(place as u64).into_iter().filter(|fork| fork.at_seq >= seq);
        forks.map(|fork| fork.conversation as usize).collect()
    }

    pub(super) fn statements(&self, tenant: &TenantName, of: StatementsOf) -> Vec<Statement> {
        let asked = |at: EventRef, row: &FactRow| match of {
            StatementsOf::Source(turn) => row.source_turn == Some(turn),
            StatementsOf::Fact(fact) => row.id == fact || row.corrects == Some(fact),
            StatementsOf::Event(event) => at == event,
        };
        let mut found = Vec::new();
        for (place, entry) in self.entries.iter().enumerate() {
            if entry.conversation.tenant != *tenant {
                continue;
            }
            for row in &entry.facts {
                let at = EventRef { conversation: place as u64, seq: row.seq };
                if asked(at, row) {
                    found.push(Statement { conversation: entry.conversation.id, at, row: row.clone() });
                }
            }
        }
        found
    }

    pub(super) fn asset_count(&self, tenant: &TenantName, sha256: Hash) -> u64 {
        let own = self.entries.iter().filter(|entry| entry.conversation.tenant == *tenant);
        own.flat_map(|entry| &entry.assets).filter(|asset| asset.sha256 == Some(sha256)).count() as u64
    }

    /// A living conversation that sees a `seq`: the one that it is in, or a fork.
    pub(super) fn living_reader(&self, place: usize, seq: u64) -> Option<ConversationId> {
        match self.entries[place].deleted {
            None => Some(self.entries[place].conversation.id),
            Some(_) => self.seeing(place, seq).into_iter().find_map(|fork| self.living_reader(fork, seq)),
        }
    }

    /// Events that repeat text, in a conversation and in the forks that see a `seq` of it.
    pub(super) fn echoes(&self, place: usize, seq: u64, words: &Words, found: &mut Vec<Event>) {
        let events = self.entries[place].events.iter();
        found.extend(events.filter(|event| words.are_repeated_by(event)).cloned());
        for fork in self.seeing(place, seq) {
            self.echoes(fork, seq, words, found);
        }
    }
}
