//! A store in memory: for trials, for tests, and as the simplest implementation.
//!
//! It keeps every promise of `conformance` except that nothing outlives the process.

mod backup;
mod index;
mod keys;
mod lookup;
mod recall;
mod write;

use crate::recall::Catalog;
use crate::{Committed, Erasures, Log, StoredTurn};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Tombstone};
use everturn_core::event::Event;
use everturn_core::id::{EventId, Key, KeyId, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_BYTES_MAX;
use everturn_core::turn::{TurnRow, join_chunks};
use everturn_core::write::{
    AssetReference, AssetRow, EventRef, FactRow, ForkPoint, SummaryRow, Write, absent, absent_turn,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};

/// A store that ends with the process.
pub struct Memory {
    kept: Mutex<Kept>,
    catalog: Catalog,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { kept: Mutex::default(), catalog: Catalog::new(None) }
    }
}

#[derive(Default)]
struct Kept {
    /// Never removed from, so that a fork keeps its parent even if the parent's id is reused.
    entries: Vec<StoredConversation>,
    /// Index of each conversation in `entries`, deleted ones included.
    places: BTreeMap<Key, usize>,
    /// Location of each event, in the order of arrival: the index of its conversation, and its `seq`.
    arrived: Vec<(usize, u64, EventId)>,
    requests: HashMap<(String, String), Request>,
    keys: BTreeMap<KeyId, AccessKey>,
    erasures: Erasures,
}

struct Request {
    fingerprint: Hash,
    place: usize,
    first_seq: u64,
    last_seq: u64,
}

struct StoredConversation {
    conversation: Conversation,
    /// Index of its parent.
    above: Option<usize>,
    /// Its own events, after its fork point.
    events: Vec<Event>,
    turns: BTreeMap<u64, TurnRow>,
    assets: Vec<AssetRow>,
    references: Vec<AssetReference>,
    facts: Vec<FactRow>,
    summaries: Vec<SummaryRow>,
    chunks: BTreeMap<(u64, u64), String>,
    folds: BTreeMap<u64, Raw>,
    deleted: Option<Tombstone>,
}

/// A conversation or one of its ancestors, and how far it is seen.
struct Level<'a> {
    place: usize,
    entry: &'a StoredConversation,
    floor: u64,
    cap: u64,
}

impl Memory {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }
}

impl Kept {
    fn living(&self, key: &Key) -> Result<&StoredConversation, Error> {
        self.place(key).map(|place| &self.entries[place])
    }

    /// Index of a living conversation.
    fn place(&self, key: &Key) -> Result<usize, Error> {
        let place = self.places.get(key).copied();
        place.filter(|place| self.entries[*place].deleted.is_none()).ok_or_else(|| absent(key))
    }

    fn all_living(&self) -> impl Iterator<Item = (&Key, &StoredConversation)> {
        let all = self.places.iter().map(|(key, place)| (key, &self.entries[*place]));
        all.filter(|(_, entry)| entry.deleted.is_none())
    }

    fn lineage(&self, key: &Key) -> Result<Vec<Level<'_>>, Error> {
        let mut levels: Vec<Level<'_>> = Vec::new();
        let mut next = Some((self.place(key)?, u64::MAX));
        while let Some((place, cap)) = next {
            let entry = &self.entries[place];
            let floor = entry.conversation.parent.map_or(0, |p| p.at_seq);
            levels.push(Level { place, entry, floor, cap });
            next = entry.above.map(|above| (above, floor.min(cap)));
        }
        Ok(levels)
    }

    fn entry(&mut self, key: &Key) -> Result<&mut StoredConversation, Error> {
        let place = self.place(key)?;
        Ok(&mut self.entries[place])
    }
}

impl StoredConversation {
    fn at(&self, seq: u64) -> Option<&Event> {
        let first = self.events.first()?.seq;
        self.events.get(usize::try_from(seq.checked_sub(first)?).ok()?)
    }
}

fn fork_point(levels: &[Level<'_>], seq: u64) -> Option<ForkPoint> {
    let hash = event_at(levels, seq)?.hash;
    let turns = levels
        .iter()
        .map(|l| l.entry.turns.keys().filter(|at| **at > l.floor && **at <= l.cap.min(seq)).count() as u64)
        .sum();
    Some(ForkPoint { head: Head { seq, hash }, turns })
}

/// The level that has its own event at this `seq`.
fn owner<'l, 'a>(levels: &'l [Level<'a>], seq: u64) -> Option<&'l Level<'a>> {
    levels.iter().find(|level| seq > level.floor && seq <= level.cap)
}

fn event_at<'a>(levels: &[Level<'a>], seq: u64) -> Option<&'a Event> {
    owner(levels, seq)?.entry.at(seq)
}

fn events(levels: &[Level<'_>], after: u64, limit: usize) -> Vec<Event> {
    let own = |level: &Level<'_>| {
        level.entry.events.iter().filter(|e| e.seq <= level.cap).cloned().collect::<Vec<_>>()
    };
    let found = levels.iter().rev().flat_map(own).filter(|event| event.seq > after).take(limit);
    let mut bytes = 0;
    let fits = |event: &Event| {
        let full = bytes >= PAGE_BYTES_MAX;
        bytes += event.text().map_or(0, str::len);
        !full
    };
    found.take_while(fits).collect()
}

/// The rows of all turns by `seq`, as the youngest level sees them.
fn turn_rows(levels: &[Level<'_>]) -> BTreeMap<u64, TurnRow> {
    let mut rows: BTreeMap<u64, TurnRow> = BTreeMap::new();
    for (depth, level) in levels.iter().enumerate() {
        for row in level.entry.turns.values().filter(|row| row.seq <= level.cap) {
            rows.entry(row.seq)
                .or_insert_with(|| if depth == 0 { row.clone() } else { row.clone().as_of(level.cap) });
        }
    }
    rows
}

fn turn_row(levels: &[Level<'_>], id: TurnId) -> Option<TurnRow> {
    for (depth, level) in levels.iter().enumerate() {
        if let Some(row) = level.entry.turns.values().find(|row| row.id == id) {
            let row = row.clone();
            return (row.seq <= level.cap).then(|| if depth == 0 { row } else { row.as_of(level.cap) });
        }
    }
    None
}

fn stored(levels: &[Level<'_>], row: TurnRow) -> StoredTurn {
    let events = row.places().filter_map(|seq| event_at(levels, seq).cloned()).collect();
    StoredTurn { conversation: levels[0].entry.conversation.id, row, events }
}

impl Log for Memory {
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>> {
        let deletes = |write: &&Write| write.action.deletes();
        let deleted: Vec<Key> = batch.iter().filter(deletes).map(|write| write.key.clone()).collect();
        let answers = {
            let mut kept = self.kept();
            batch.into_iter().map(|request| kept.write(request)).collect()
        };
        deleted.iter().for_each(|key| self.catalog.note_deletion(&key.tenant));
        answers
    }

    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        Ok(events(&kept.lineage(key)?, after, limit))
    }

    fn had_body(&self, key: &Key, seq: u64) -> Result<bool, Error> {
        let kept = self.kept();
        let levels = kept.lineage(key)?;
        let owner = owner(&levels, seq).map(|level| EventRef { conversation: level.place as u64, seq });
        Ok(owner.is_some_and(|at| kept.erasures.contains(at)))
    }

    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error> {
        let kept = self.kept();
        let entry = kept.living(key)?;
        let row = turn_row(&kept.lineage(key)?, turn).ok_or_else(|| absent_turn(turn))?;
        let pieces = entry.chunks.range((row.seq, 0)..=(row.seq, u64::MAX));
        Ok(join_chunks(pieces.map(|((_, offset), text)| (*offset, text.clone()))))
    }
}
