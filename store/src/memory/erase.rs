//! Taking words away: of turns, of what was learned from them, and of whole conversations.

use super::write::InMemory;
use super::{Entry, Kept, owner};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::Conversation;
use everturn_core::echo::Words;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, Tenant, TurnId};
use everturn_core::turn::TurnRow;
use everturn_core::write::{self, Changes, FactRow, Place};

impl Kept {
    /// Notes what goes with a turn: its bodies, what was learned from it, assets that only it showed, and on request
    /// whatever sums it up.
    pub(super) fn erase_turn(
        &mut self,
        key: &Key,
        row: &TurnRow,
        summaries: bool,
        erased: &mut Vec<(usize, u64)>,
    ) -> Result<(), Error> {
        let levels = self.lineage(key)?;
        let owner = |seq| owner(&levels, seq).map(|level| (level.place, seq));
        let bodies: Vec<_> =
            [Some(row.seq), row.content_seq].into_iter().flatten().filter_map(owner).collect();
        erased.extend(&bodies);
        erased.extend(self.learned(&key.tenant, row.id).into_iter().map(|(place, fact)| (place, fact.seq)));
        // The turn shows its assets where it was said.
        let Some((place, seq)) = bodies.first().copied() else { return Ok(()) };
        if summaries {
            self.summaries(place, seq, erased);
        }
        let entry = &mut self.entries[place];
        let shown: Vec<String> =
            entry.references.iter().filter(|r| r.turn_seq == seq).map(|r| r.asset.clone()).collect();
        entry.references.retain(|r| r.turn_seq != seq);
        for asset in shown.into_iter().filter(|asset| !self.shown(place, asset)) {
            let added = self.entries[place].assets.iter().find(|a| a.id == asset);
            erased.extend(added.map(|added| (place, added.seq)));
        }
        Ok(())
    }

    /// Notes another event, with what follows from that.
    pub(super) fn erase_event(&self, tenant: &Tenant, at: Place, erased: &mut Vec<(usize, u64)>) {
        let key = Key { tenant: tenant.clone(), id: at.conversation };
        let Some(place) = self.places.get(&key).copied() else { return };
        erased.push((place, at.seq));
        let entry = &self.entries[place];
        let reach = entry.summaries.iter().find(|row| row.seq == at.seq && row.through_seq > 0);
        if let Some(reach) = reach {
            // Later checkpoints roll on from this one.
            self.summaries(place, reach.through_seq, erased);
        }
        if let Some(told) = entry.facts.iter().find(|fact| fact.seq == at.seq) {
            let gone = vec![(place, told.clone())];
            let gone = self.with_corrections(tenant, gone);
            erased.extend(gone.into_iter().map(|(place, fact)| (place, fact.seq)));
        }
    }

    /// Takes the bodies, and the rows that followed from them.
    pub(super) fn erase_bodies(&mut self, erased: &mut Vec<(usize, u64)>) -> Result<Vec<Hash>, Error> {
        let mut released = Vec::new();
        erased.sort_unstable();
        erased.dedup();
        erased.retain(|(place, seq)| self.entries[*place].at(*seq).is_some_and(|event| event.body.is_some()));
        for (place, seq) in erased.iter().copied() {
            let entry = &mut self.entries[place];
            entry.erase(seq);
            released.extend(entry.assets.extract_if(.., |asset| asset.seq == seq).filter_map(|a| a.sha256));
            entry.facts.retain(|fact| fact.seq != seq);
            let before = entry.summaries.len();
            entry.summaries.retain(|row| row.seq != seq);
            if entry.summaries.len() < before {
                self.restore_checkpoint(place)?;
            }
            self.entries.iter_mut().for_each(|entry| entry.folds.clear());
        }
        Ok(released)
    }

    /// Puts the checkpoint in force that the remaining events say.
    fn restore_checkpoint(&mut self, place: usize) -> Result<(), Error> {
        let known = &self.entries[place].conversation;
        let key = Key { tenant: known.tenant.clone(), id: known.id };
        let mut fresh = Conversation::new(key.id, key.tenant.clone(), known.created, Head::genesis(key.id));
        let rows = self.entries[place].summaries.clone();
        for event in rows.iter().filter_map(|row| self.entries[place].at(row.seq)) {
            write::fold(&mut fresh, event, &mut Changes::default(), &InMemory { kept: self, key: &key })?;
        }
        self.entries[place].conversation.set_checkpoint(fresh.checkpoint);
        Ok(())
    }

    /// Whatever sums up the turn at a place, in the conversation and in all forks that see it.
    fn summaries(&self, place: usize, seq: u64, found: &mut Vec<(usize, u64)>) {
        let rows = self.entries[place].summaries.iter().filter(|row| row.through_seq >= seq);
        found.extend(rows.map(|row| (place, row.seq)));
        for fork in self.seeing(place, seq) {
            self.summaries(fork, seq, found);
        }
    }

    /// Forks that see a place.
    fn seeing(&self, place: usize, seq: u64) -> Vec<usize> {
        let sees = |entry: &Entry| entry.conversation.parent.is_some_and(|parent| parent.at_seq >= seq);
        self.forks(place).filter(|(_, entry)| sees(entry)).map(|(fork, _)| fork).collect()
    }

    /// A living conversation that sees a place: the one that it is in, or a fork.
    pub(super) fn living_reader(&self, place: usize, seq: u64) -> Option<ConversationId> {
        match self.entries[place].deleted {
            None => Some(self.entries[place].conversation.id),
            Some(_) => self.seeing(place, seq).into_iter().find_map(|fork| self.living_reader(fork, seq)),
        }
    }

    /// Events that repeat words in a conversation and in the forks that see a place of it.
    pub(super) fn echoes(&self, place: usize, seq: u64, words: &Words, found: &mut Vec<Event>) {
        let events = self.entries[place].events.iter();
        found.extend(events.filter(|event| words.are_repeated_by(event)).cloned());
        for fork in self.seeing(place, seq) {
            self.echoes(fork, seq, words, found);
        }
    }

    /// What was learned from a turn, in whatever conversation of the tenant, and corrections of facts that then have no
    /// source left.
    pub(super) fn learned(&self, tenant: &Tenant, turn: TurnId) -> Vec<(usize, FactRow)> {
        let learned = self.statements(tenant).filter(|(_, fact)| fact.source_turn == Some(turn)).collect();
        self.with_corrections(tenant, learned)
    }

    fn with_corrections(&self, tenant: &Tenant, mut gone: Vec<(usize, FactRow)>) -> Vec<(usize, FactRow)> {
        let mut facts: Vec<FactId> = gone.iter().map(|(_, fact)| fact.id).collect();
        while let Some(id) = facts.pop() {
            let stays = |one: &(usize, FactRow)| !gone.contains(one);
            let states = |fact: &FactRow| fact.id == id && fact.corrects != Some(id);
            if self.statements(tenant).any(|one| states(&one.1) && stays(&one)) {
                continue;
            }
            let corrects = |one: &(usize, FactRow)| one.1.corrects == Some(id) && stays(one);
            let corrected: Vec<_> = self.statements(tenant).filter(corrects).collect();
            facts.extend(corrected.iter().map(|(_, fact)| fact.id).filter(|fact| *fact != id));
            gone.extend(corrected);
        }
        gone
    }

    fn statements(&self, tenant: &Tenant) -> impl Iterator<Item = (usize, FactRow)> {
        let own = self.entries.iter().enumerate().filter(|(_, entry)| entry.conversation.tenant == *tenant);
        own.flat_map(|(place, entry)| entry.facts.iter().map(move |fact| (place, fact.clone())))
    }

    fn forks(&self, place: usize) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(move |(_, entry)| entry.above == Some(place))
    }

    /// Whether a turn of a conversation or of its forks shows an asset.
    fn shown(&self, place: usize, asset: &str) -> bool {
        self.entries[place].references.iter().any(|r| r.asset == asset)
            || self.forks(place).any(|(fork, _)| self.shown(fork, asset))
    }

    /// Those that no asset of the tenant has any more.
    pub(super) fn unused(&self, tenant: &Tenant, mut hashes: Vec<Hash>) -> Vec<Hash> {
        hashes.sort();
        hashes.dedup();
        hashes.retain(|hash| !self.in_use(tenant, *hash));
        hashes
    }

    pub(super) fn in_use(&self, tenant: &Tenant, sha256: Hash) -> bool {
        let mut own = self.entries.iter().filter(|entry| entry.conversation.tenant == *tenant);
        own.any(|entry| entry.assets.iter().any(|asset| asset.sha256 == Some(sha256)))
    }

    /// How far living forks still read in a conversation; 0 if none does.
    pub(super) fn needed(&self, place: usize) -> u64 {
        let read = |(fork, entry): (usize, &Entry)| {
            let left = entry.conversation.parent.map_or(0, |parent| parent.at_seq);
            if entry.deleted.is_none() { left } else { left.min(self.needed(fork)) }
        };
        self.forks(place).map(read).max().unwrap_or(0)
    }

    pub(super) fn purge(&mut self, place: usize) -> Vec<Hash> {
        let keep = self.needed(place);
        self.requests.retain(|_, request| request.place != place);
        let entry = &mut self.entries[place];
        let mut released: Vec<Hash> =
            entry.assets.iter().filter(|asset| asset.seq > keep).filter_map(|asset| asset.sha256).collect();
        entry.events.retain(|event| event.seq <= keep);
        entry.turns.retain(|seq, _| *seq <= keep);
        entry.assets.retain(|asset| asset.seq <= keep);
        entry.references.retain(|reference| reference.turn_seq <= keep);
        entry.facts.retain(|fact| fact.seq <= keep);
        entry.summaries.retain(|summary| summary.seq <= keep);
        entry.chunks.clear();
        entry.folds.retain(|seq, _| *seq <= keep);
        // A deleted parent may have been kept only for this fork.
        if let Some(above) = entry.above.filter(|above| self.entries[*above].deleted.is_some()) {
            released.extend(self.purge(above));
        }
        released
    }
}

impl Entry {
    pub(super) fn erase(&mut self, seq: u64) {
        for event in self.events.iter_mut().filter(|event| event.seq == seq) {
            event.body = None;
        }
    }
}
