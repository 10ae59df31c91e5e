//! Taking words away: of turns, of what was learned from them, and of whole conversations.

use super::{Entry, Kept, owner};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::id::{Key, Tenant, TurnId};
use everturn_core::turn::TurnRow;
use everturn_core::write::FactRow;

impl Kept {
    pub(super) fn erase(&mut self, key: &Key, row: &TurnRow) -> Result<Vec<Hash>, Error> {
        let levels = self.lineage(key)?;
        let owner = |seq| owner(&levels, seq).map(|level| (level.place, seq));
        let bodies: Vec<_> =
            [Some(row.seq), row.content_seq].into_iter().flatten().filter_map(owner).collect();
        for (place, seq) in &bodies {
            self.entries[*place].erase(*seq);
        }
        self.forget_learned(&key.tenant, row.id);
        // The turn shows its assets where it was said.
        let Some((place, seq)) = bodies.first().copied() else { return Ok(Vec::new()) };
        let entry = &mut self.entries[place];
        let shown: Vec<String> =
            entry.references.iter().filter(|r| r.turn_seq == seq).map(|r| r.asset.clone()).collect();
        entry.references.retain(|r| r.turn_seq != seq);
        let mut released = Vec::new();
        for asset in shown.into_iter().filter(|asset| !self.shown(place, asset)).collect::<Vec<_>>() {
            let entry = &mut self.entries[place];
            if let Some(at) = entry.assets.iter().position(|a| a.id == asset) {
                let gone = entry.assets.remove(at);
                entry.erase(gone.seq);
                released.extend(gone.sha256);
            }
        }
        Ok(released)
    }

    /// Erases what was learned from a turn, in whatever conversation of the tenant.
    fn forget_learned(&mut self, tenant: &Tenant, turn: TurnId) {
        for entry in self.entries.iter_mut().filter(|entry| entry.conversation.tenant == *tenant) {
            let learned = |fact: &FactRow| fact.source_turn == Some(turn);
            let places: Vec<u64> =
                entry.facts.iter().filter(|fact| learned(fact)).map(|fact| fact.seq).collect();
            entry.facts.retain(|fact| !learned(fact));
            places.into_iter().for_each(|seq| entry.erase(seq));
        }
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
