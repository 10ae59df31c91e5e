//! A store in memory: for trying things out, for tests, and as the simplest reading of what a store must do.
//!
//! It keeps every promise of [`mod@crate::conformance`] except that nothing outlives the process.

mod keys;
mod recall;

use crate::recall::Catalog;
use crate::{Committed, ConversationQuery, Index, Log, Recall, TurnQuery};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Parent, Tombstone};
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, EventId, Key, KeyId, Tenant, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, Turn, TurnRow, join_chunks};
use everturn_core::write::{
    self, Action, AssetReference, AssetRow, Changes, ForkPoint, Idempotency, Lookup, Plan, Write, absent,
    absent_turn,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A store that ends with the process.
pub struct Memory {
    kept: Mutex<Kept>,
    /// What can be found by words.
    catalog: Catalog,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { kept: Mutex::default(), catalog: Catalog::new(None) }
    }
}

#[derive(Default)]
struct Kept {
    /// Never removed from, so that a fork keeps its parent also when the parent's id is used again.
    entries: Vec<Entry>,
    /// Where each conversation is, deleted ones included.
    places: BTreeMap<Key, usize>,
    /// Where each event is, in the order of arrival: its conversation's place, and its own in it.
    arrived: Vec<(usize, u64, EventId)>,
    requests: HashMap<(String, String), Request>,
    keys: BTreeMap<KeyId, AccessKey>,
}

struct Request {
    fingerprint: Hash,
    place: usize,
    first_seq: u64,
    last_seq: u64,
}

struct Entry {
    conversation: Conversation,
    /// Where its parent is.
    above: Option<usize>,
    /// Its own, after the place where it left its parent.
    events: Vec<Event>,
    turns: BTreeMap<u64, TurnRow>,
    assets: Vec<AssetRow>,
    references: Vec<AssetReference>,
    chunks: BTreeMap<(u64, u64), String>,
    folds: BTreeMap<u64, Raw>,
    deleted: Option<Tombstone>,
}

/// A conversation or one of its ancestors, and how far it is seen.
struct Level<'a> {
    place: usize,
    entry: &'a Entry,
    floor: u64,
    cap: u64,
}

impl Memory {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn living(&self, key: &Key) -> Result<&Entry, Error> {
        self.place(key).map(|place| &self.entries[place])
    }

    /// Where a living conversation is.
    fn place(&self, key: &Key) -> Result<usize, Error> {
        let place = self.places.get(key).copied();
        place.filter(|place| self.entries[*place].deleted.is_none()).ok_or_else(|| absent(key))
    }

    fn all_living(&self) -> impl Iterator<Item = (&Key, &Entry)> {
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

    fn write(&mut self, request: Write) -> Result<Committed, Error> {
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
                Ok(Committed {
                    conversation: conversation.into(),
                    events: Vec::new(),
                    repeated: false,
                    released: Vec::new(),
                })
            }
            Action::Delete { at, reason, only_expired } => {
                let conversation = existing.ok_or_else(|| absent(&key))?;
                write::check_due(&conversation, at, only_expired)?;
                let tombstone = Tombstone { id: key.id, head: conversation.head, deleted: at, reason };
                let place = self.place(&key)?;
                self.entries[place].deleted = Some(tombstone);
                let released = self.purge(place);
                let released = self.unused(&key.tenant, released);
                Ok(Committed {
                    conversation: conversation.into(),
                    events: Vec::new(),
                    repeated: false,
                    released,
                })
            }
            Action::Erase { ref turns, ref events, .. } => {
                let events = events.clone();
                let levels = self.lineage(&key)?;
                let found: Result<Vec<_>, _> =
                    turns.iter().map(|id| turn_row(&levels, *id).ok_or_else(|| absent_turn(*id))).collect();
                let found = found?;
                let mut committed = self.append(&key, existing, action, None)?;
                for row in found {
                    committed.released.extend(self.erase(&key, &row)?);
                }
                for seq in events {
                    let owner = owner(&self.lineage(&key)?, seq).map(|level| level.place);
                    if let Some(place) = owner {
                        self.entries[place].erase(seq);
                    }
                }
                committed.released = self.unused(&key.tenant, committed.released);
                Ok(committed)
            }
            Action::Create { ref idempotency, .. } => {
                let asked = idempotency.clone().map(|i| (format!("tenant:{}", key.tenant), i));
                self.append(&key, existing, action, asked)
            }
            Action::Append { ref idempotency, .. } => {
                let asked =
                    idempotency.clone().map(|i| (format!("conversation:{}/{}", key.tenant, key.id), i));
                self.append(&key, existing, action, asked)
            }
            Action::Restore { .. } => self.append(&key, existing, action, None),
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
        Ok(Committed { conversation: conversation.into(), events, repeated: false, released: Vec::new() })
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
        Ok(Some(Committed {
            conversation: conversation.into(),
            events,
            repeated: true,
            released: Vec::new(),
        }))
    }

    fn entry(&mut self, key: &Key) -> Result<&mut Entry, Error> {
        let place = self.place(key)?;
        Ok(&mut self.entries[place])
    }

    fn erase(&mut self, key: &Key, row: &TurnRow) -> Result<Vec<Hash>, Error> {
        let levels = self.lineage(key)?;
        let owner = |seq| owner(&levels, seq).map(|level| (level.place, seq));
        let bodies: Vec<_> =
            [Some(row.seq), row.content_seq].into_iter().flatten().filter_map(owner).collect();
        for (place, seq) in &bodies {
            self.entries[*place].erase(*seq);
        }
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

    fn forks(&self, place: usize) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(move |(_, entry)| entry.above == Some(place))
    }

    /// Whether a turn of a conversation or of its forks shows an asset.
    fn shown(&self, place: usize, asset: &str) -> bool {
        self.entries[place].references.iter().any(|r| r.asset == asset)
            || self.forks(place).any(|(fork, _)| self.shown(fork, asset))
    }

    /// Those that no asset of the tenant has any more.
    fn unused(&self, tenant: &Tenant, mut hashes: Vec<Hash>) -> Vec<Hash> {
        hashes.sort();
        hashes.dedup();
        hashes.retain(|hash| !self.in_use(tenant, *hash));
        hashes
    }

    fn in_use(&self, tenant: &Tenant, sha256: Hash) -> bool {
        let mut own = self.entries.iter().filter(|entry| entry.conversation.tenant == *tenant);
        own.any(|entry| entry.assets.iter().any(|asset| asset.sha256 == Some(sha256)))
    }

    /// How far living forks still read in a conversation; 0 if none does.
    fn needed(&self, place: usize) -> u64 {
        let read = |(fork, entry): (usize, &Entry)| {
            let left = entry.conversation.parent.map_or(0, |parent| parent.at_seq);
            if entry.deleted.is_none() { left } else { left.min(self.needed(fork)) }
        };
        self.forks(place).map(read).max().unwrap_or(0)
    }

    fn purge(&mut self, place: usize) -> Vec<Hash> {
        let keep = self.needed(place);
        self.requests.retain(|_, request| request.place != place);
        let entry = &mut self.entries[place];
        let mut released: Vec<Hash> =
            entry.assets.iter().filter(|asset| asset.seq > keep).filter_map(|asset| asset.sha256).collect();
        entry.events.retain(|event| event.seq <= keep);
        entry.turns.retain(|seq, _| *seq <= keep);
        entry.assets.retain(|asset| asset.seq <= keep);
        entry.references.retain(|reference| reference.turn_seq <= keep);
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
    fn new(conversation: Conversation, above: Option<usize>) -> Entry {
        Entry {
            conversation,
            above,
            events: Vec::new(),
            turns: BTreeMap::new(),
            assets: Vec::new(),
            references: Vec::new(),
            chunks: BTreeMap::new(),
            folds: BTreeMap::new(),
            deleted: None,
        }
    }

    fn apply(&mut self, changes: Changes) {
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
    }

    fn erase(&mut self, seq: u64) {
        for event in self.events.iter_mut().filter(|event| event.seq == seq) {
            event.body = None;
        }
    }

    fn at(&self, seq: u64) -> Option<&Event> {
        let first = self.events.first()?.seq;
        self.events.get(usize::try_from(seq.checked_sub(first)?).ok()?)
    }
}

struct InMemory<'a> {
    kept: &'a Kept,
    key: &'a Key,
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

    fn hash_at(&self, seq: u64) -> Result<Option<Hash>, Error> {
        Ok(event_at(&self.kept.lineage(self.key)?, seq).map(|event| event.hash))
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

/// The level whose own event stands at this place.
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
    levels.iter().rev().flat_map(own).filter(|event| event.seq > after).take(limit).collect()
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

fn read(levels: &[Level<'_>], row: TurnRow) -> Result<Turn, Error> {
    let content = event_at(levels, row.content_seq.unwrap_or(row.seq))
        .ok_or_else(|| Error::corrupt("turn.content", format!("the content of {} is missing", row.id)))?;
    Ok(Turn::read(levels[0].entry.conversation.id, row, content))
}

impl Log for Memory {
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>> {
        if batch.iter().any(|write| matches!(write.action, Action::Delete { .. })) {
            self.catalog.deletions.store(true, Ordering::SeqCst);
        }
        let mut kept = self.kept();
        batch.into_iter().map(|request| kept.write(request)).collect()
    }

    fn settle(&self) -> Result<(), Error> {
        Ok(())
    }

    fn events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        Ok(events(&kept.lineage(key)?, after, limit))
    }

    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error> {
        let kept = self.kept();
        let entry = kept.living(key)?;
        let row = turn_row(&kept.lineage(key)?, turn).ok_or_else(|| absent_turn(turn))?;
        let pieces = entry.chunks.range((row.seq, 0)..=(row.seq, u64::MAX));
        Ok(join_chunks(pieces.map(|((_, offset), text)| (*offset, text.clone()))))
    }
}

impl Index for Memory {
    fn conversation(&self, key: &Key) -> Result<Conversation, Error> {
        self.kept().living(key).map(|entry| entry.conversation.clone())
    }

    fn conversations(&self, tenant: &Tenant, query: &ConversationQuery) -> Result<Vec<Conversation>, Error> {
        let kept = self.kept();
        let mut found: Vec<&Conversation> = kept
            .all_living()
            .filter(|(key, _)| key.tenant == *tenant)
            .map(|(_, entry)| &entry.conversation)
            .filter(|c| query.after.is_none_or(|after| (c.updated, c.id) < after))
            .filter(|c| query.state.is_none_or(|state| c.state == state))
            .filter(|c| {
                query.text.as_ref().is_none_or(|text| {
                    c.title
                        .as_ref()
                        .is_some_and(|title| title.to_ascii_lowercase().contains(&text.to_ascii_lowercase()))
                })
            })
            .collect();
        found.sort_by_key(|c| std::cmp::Reverse((c.updated, c.id)));
        Ok(found.into_iter().take(query.limit).cloned().collect())
    }

    fn starting_with(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, Error> {
        let prefix = prefix.strip_prefix(ConversationId::PREFIX).unwrap_or(prefix).to_ascii_uppercase();
        let kept = self.kept();
        let ids = kept.all_living().filter(|(key, _)| key.tenant == *tenant).map(|(key, _)| key.id);
        Ok(ids
            .filter(|id| id.to_string()[ConversationId::PREFIX.len()..].starts_with(&prefix))
            .take(limit)
            .collect())
    }

    fn turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<Turn>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let levels = kept.lineage(key)?;
        let (low, high) = query.range();
        let mut rows: BTreeMap<u64, TurnRow> = BTreeMap::new();
        for (depth, level) in levels.iter().enumerate() {
            for row in level.entry.turns.values().filter(|row| (low..=high.min(level.cap)).contains(&row.seq))
            {
                rows.entry(row.seq)
                    .or_insert_with(|| if depth == 0 { row.clone() } else { row.clone().as_of(level.cap) });
            }
        }
        let seen = |row: TurnRow| match query.as_of {
            Some(seq) => row.as_of(seq),
            None => row,
        };
        let mut rows: Vec<TurnRow> = rows.into_values().map(seen).filter(|row| query.takes(row)).collect();
        if query.descending {
            rows.reverse();
        }
        rows.into_iter().take(query.limit).map(|row| read(&levels, row)).collect()
    }

    fn turn(&self, tenant: &Tenant, id: TurnId) -> Result<Turn, Error> {
        let said = {
            let kept = self.kept();
            let mut living = kept.all_living().filter(|(key, _)| key.tenant == *tenant);
            let own = |entry: &Entry| entry.events.iter().any(|event| event.id.0 == id.0);
            living.find(|(_, entry)| own(entry)).map(|(key, _)| key.clone()).ok_or_else(|| absent_turn(id))?
        };
        self.turn_in(&said, id)
    }

    fn turn_in(&self, key: &Key, id: TurnId) -> Result<Turn, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let levels = kept.lineage(key)?;
        read(&levels, turn_row(&levels, id).ok_or_else(|| absent_turn(id))?)
    }

    fn open_turns(&self) -> Result<Vec<(Key, TurnId)>, Error> {
        let kept = self.kept();
        Ok(kept
            .all_living()
            .flat_map(|(key, entry)| entry.turns.values().map(move |row| (key, row)))
            .filter(|(_, row)| row.status == Status::Pending)
            .map(|(key, row)| (key.clone(), row.id))
            .collect())
    }

    fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error> {
        let kept = self.kept();
        let mut due: Vec<(Timestamp, Key)> = kept
            .all_living()
            .filter_map(|(key, entry)| Some((entry.conversation.expires()?, key.clone())))
            .filter(|(at, _)| *at <= now)
            .collect();
        due.sort();
        Ok(due.into_iter().map(|(_, key)| key).take(limit).collect())
    }

    fn assets(&self, key: &Key) -> Result<Vec<Raw>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let levels = kept.lineage(key)?;
        let mut found = Vec::new();
        for level in levels.iter().rev() {
            for asset in level.entry.assets.iter().filter(|asset| asset.seq <= level.cap) {
                let text = level.entry.at(asset.seq).and_then(Event::text);
                found.extend(text.map(|text| Raw::new(text.to_string())).transpose()?);
            }
        }
        Ok(found)
    }

    fn asset(&self, key: &Key, id: &str) -> Result<Option<Raw>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        for level in &kept.lineage(key)? {
            if let Some(row) = level.entry.assets.iter().find(|a| a.id == id && a.seq <= level.cap) {
                let text = level.entry.at(row.seq).and_then(Event::text);
                return text.map(|text| Raw::new(text.to_string())).transpose();
            }
        }
        Ok(None)
    }

    fn assets_with_id(
        &self,
        tenant: &Tenant,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Raw)>, Error> {
        let kept = self.kept();
        let mut contents = Vec::new();
        let mut found = Vec::new();
        for (key, entry) in kept.all_living().filter(|(key, _)| key.tenant == *tenant) {
            let Some(row) = entry.assets.iter().find(|asset| asset.id == id) else { continue };
            let Some(text) = entry.at(row.seq).and_then(Event::text) else { continue };
            if found.len() < limit && !contents.contains(&row.sha256) {
                contents.push(row.sha256);
                found.push((key.id, Raw::new(text.to_string())?));
            }
        }
        Ok(found)
    }

    fn fallen_after(&self, key: &Key, seq: u64) -> Result<u64, Error> {
        let kept = self.kept();
        kept.living(key)?;
        InMemory { kept: &kept, key }.fallen_after(seq)
    }

    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<Raw>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let newest = |level: &Level<'_>| {
            let kept = level.entry.folds.range(..=at_or_before.min(level.cap)).next_back();
            kept.map(|(_, fold)| fold.clone())
        };
        Ok(kept.lineage(key)?.iter().find_map(newest))
    }

    fn keep_fold(&self, key: &Key, seq: u64, fold: &Raw) -> Result<(), Error> {
        let mut kept = self.kept();
        kept.living(key)?;
        kept.entry(key)?.folds.insert(seq, fold.clone());
        Ok(())
    }

    fn asset_in_use(&self, tenant: &Tenant, sha256: Hash) -> Result<bool, Error> {
        Ok(self.kept().in_use(tenant, sha256))
    }

    fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        let mut tenants: Vec<Tenant> = self.kept().places.keys().map(|key| key.tenant.clone()).collect();
        tenants.dedup();
        Ok(tenants)
    }

    fn tombstones(&self, tenant: &Tenant) -> Result<Vec<Tombstone>, Error> {
        let kept = self.kept();
        let mut found: Vec<Tombstone> = kept
            .places
            .iter()
            .filter(|(key, _)| key.tenant == *tenant)
            .filter_map(|(_, place)| kept.entries[*place].deleted.clone())
            .collect();
        found.sort_by_key(|tombstone| std::cmp::Reverse(tombstone.deleted));
        Ok(found)
    }

    fn rebuild(&self) -> Result<(), Error> {
        let mut kept = self.kept();
        let keys: Vec<Key> = kept.all_living().map(|(key, _)| key.clone()).collect();
        kept.entries.iter_mut().for_each(|entry| entry.folds.clear());
        for key in keys {
            let entry = kept.entry(&key)?;
            let (own, old) = (entry.events.clone(), entry.conversation.clone());
            (entry.turns, entry.assets, entry.references) = Default::default();
            let point = match old.parent {
                None => ForkPoint { head: Head::genesis(key.id), turns: 0 },
                Some(parent) => fork_point(&kept.lineage(&key)?[1..], parent.at_seq).ok_or_else(|| {
                    Error::corrupt("fork.parent", format!("the parent of {} is damaged", key.id))
                })?,
            };
            let mut fresh = Conversation::new(key.id, key.tenant.clone(), old.created, point.head);
            (fresh.turns, fresh.parent) = (point.turns, old.parent);
            for event in &own {
                let mut changes = Changes::default();
                write::fold(&mut fresh, event, &mut changes, &InMemory { kept: &kept, key: &key })?;
                kept.entry(&key)?.apply(changes);
            }
            kept.entry(&key)?.conversation = fresh;
        }
        drop(kept);
        self.forget()
    }

    fn compact(&self) -> Result<(), Error> {
        self.scrub(None).map(drop)
    }

    fn check(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}
