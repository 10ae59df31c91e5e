//! The indexes of recall: one for each tenant, in a SQLite file of its own in a folder beside the log; for a
//! store in memory, in memory. So everything that influences a result belongs to the tenant who asks.
//!
//! ```text
//! commit ─▶ unindexed ─▶ (the engine computes changes) ─▶ index ─▶ tenant's index, then feed ─▶ find_text, find_near
//! ```
//!
//! Both backends feed it and query it the same way. It knows nothing of the log but the [`Ground`] that it is
//! handed.

mod catalog;
mod entries;
mod feed;
mod file;
mod find;
mod open;
pub(crate) mod propose;
mod sign_bits;
mod vectors;

pub(crate) use catalog::Catalog;
use catalog::Lagging;

use crate::{
    Behind, IndexChange, Proposal, Proposed, RecallIndex, Span, TurnIndex, TurnQuery, Unembedded, Unindexed,
    VectorSearch, WordSearch,
};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, EventId, Key, TenantName, TurnId};
use everturn_views::recall::{EntryNo, Filter, RecallKind, TextQuery};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Readable events of conversations, and the conversations through which they are read.
pub(crate) trait Visible {
    /// The last `seq` of a conversation that anyone can read: its end if it lives, else as far as its forks
    /// read.
    fn readable_through(&self, key: &Key) -> Result<u64, Error>;
    /// For [`RecallIndex::reader`], of several events.
    fn readers(
        &self,
        tenant: &TenantName,
        places: &[(ConversationId, u64)],
    ) -> Result<Vec<Option<ConversationId>>, Error>;
    /// A conversation and its ancestors, each with the last `seq` visible. Empty if it does not exist.
    fn levels(&self, key: &Key) -> Result<Vec<(ConversationId, u64)>, Error>;
}

/// Source of the indexes: the log of the backend that has them.
pub(crate) trait Ground: Visible {
    /// Its indexes.
    fn catalog(&self) -> &Catalog;
    /// Position of the last event, in the order of arrival.
    fn last_arrived(&self) -> Result<u64, Error>;
    /// The id of the event at a position in the order of arrival.
    fn arrived_at(&self, no: u64) -> Result<Option<EventId>, Error>;
    /// Events after a position in the order of arrival, and the position up to which these are all that is
    /// left.
    fn arrived(&self, after: u64, limit: usize) -> Result<(Vec<(TenantName, Event)>, u64), Error>;
    /// Number of events of each tenant in a range of the order of arrival.
    fn counts(&self, after: u64, through: u64) -> Result<Vec<(TenantName, u64)>, Error>;
    /// Positions of a tenant's events in a range of the order of arrival, ascending. Does not read those of
    /// other tenants.
    fn numbers_of(&self, tenant: &TenantName, after: u64, through: u64) -> Result<Vec<u64>, Error>;
    /// The events at these positions, each with its position; perhaps only the first of them, at least one.
    fn events_at(&self, numbers: &[u64]) -> Result<Vec<(u64, Event)>, Error>;
    /// Tenants with deleted conversations.
    fn with_deletions(&self) -> Result<Vec<TenantName>, Error>;
}

fn kind_number(kind: RecallKind) -> i64 {
    match kind {
        RecallKind::Turn => 0,
        RecallKind::Fact => 1,
    }
}

fn kind_of(number: i64) -> RecallKind {
    if number == 1 { RecallKind::Fact } else { RecallKind::Turn }
}

fn tenant_of(change: &IndexChange) -> &TenantName {
    match change {
        IndexChange::Put(entry) => &entry.tenant,
        IndexChange::Fell { key, .. } | IndexChange::Remove { key, .. } => &key.tenant,
        IndexChange::RemoveAt { tenant, .. } => tenant,
    }
}

/// Puts what was said in deleted conversations under those that still read it: the one in scope, or a living fork.
fn read_by_forks(
    ground: &dyn Ground,
    tenant: &TenantName,
    filter: &Filter,
    found: &mut [&mut Proposal],
) -> Result<(), Error> {
    let places: Vec<(ConversationId, u64)> =
        found.iter().map(|found| (found.conversation, found.seq)).collect();
    for (found, reader) in found.iter_mut().zip(ground.readers(tenant, &places)?) {
        if reader != Some(found.conversation) {
            found.conversation = filter.conversation.or(reader).unwrap_or(found.conversation);
        }
    }
    Ok(())
}

/// Events for an index that lags.
fn unindexed_again<T: Ground>(ground: &T, limit: usize) -> Result<Option<Unindexed>, Error> {
    let Some(Lagging { tenant, after, numbers, through: complete }) =
        ground.catalog().next_lagging(ground, limit)?
    else {
        return Ok(None);
    };
    let events = if numbers.is_empty() { Vec::new() } else { ground.events_at(&numbers)? };
    // If not all of them were read at once, the others follow.
    let through = match events.last() {
        Some((last, _)) if events.len() < numbers.len() => *last,
        _ => complete,
    };
    let events = events.into_iter().map(|(_, event)| (tenant.clone(), event)).collect();
    Ok(Some(Unindexed { events, span: Span { tenant: Some(tenant), after, through } }))
}

impl<T: Ground + Send + Sync> RecallIndex for T {
    fn unindexed(&self, limit: usize) -> Result<Unindexed, Error> {
        let catalog = self.catalog();
        catalog.drop_deleted(self)?;
        catalog.look_for_lost()?;
        let after = match catalog.position(self)? {
            Some(0) => {
                catalog.drop_foreign(self)?;
                0
            }
            Some(after) => after,
            None => {
                catalog.forget();
                0
            }
        };
        // In turns, so that neither starves the other.
        if catalog.lagging_first.fetch_not(Ordering::SeqCst)
            && let Some(again) = unindexed_again(self, limit)?
        {
            return Ok(again);
        }
        let (events, through) = self.arrived(after, limit)?;
        let new = Unindexed { events, span: Span { tenant: None, after, through } };
        if through > after {
            return Ok(new);
        }
        Ok(unindexed_again(self, limit)?.unwrap_or(new))
    }

    fn index(&self, changes: Vec<IndexChange>, span: Span) -> Result<(), Error> {
        let (catalog, Span { tenant: only, after, through }) = (self.catalog(), span);
        let anchor = self.arrived_at(through)?;
        let mut by_tenant: BTreeMap<TenantName, Vec<entries::Change>> = BTreeMap::new();
        for change in changes {
            let levels = match &change {
                IndexChange::Remove { key, .. } => self.levels(key)?,
                _ => Vec::new(),
            };
            let places = levels.into_iter().map(|(id, _)| id).collect();
            by_tenant.entry(tenant_of(&change).clone()).or_default().push((change, places));
        }
        if let Some(tenant) = only {
            let changes = by_tenant.remove(&tenant).unwrap_or_default();
            catalog.writing(&catalog.index(&tenant), |db| match entries::position(db)?.0 == after {
                true => entries::take_in(db, &changes, through, anchor),
                // Another process was faster, or the file was lost again.
                false => Ok(()),
            })?;
            return catalog.note(&[tenant], |_| Ok(()));
        }
        for (tenant, changes) in &by_tenant {
            let index = catalog.index(tenant);
            let handed = catalog.fed(|db| feed::last(db, tenant))?;
            let taken = catalog.index_position(self, &index).and_then(|_| {
                catalog.writing(&index, |db| {
                    let (at, _) = entries::position(db)?;
                    if at >= handed && at < through {
                        entries::take_in(db, changes, through, anchor)?;
                    }
                    Ok(at >= handed)
                })
            });
            // A file that cannot be written must not block the others: it is retried later.
            let complete = taken.unwrap_or_else(|error| {
                tracing::warn!(%error, %tenant, "an index of recall cannot be written");
                false
            });
            if !complete {
                // Missing events come first, and these with them.
                let mut lagging = catalog.lagging.lock();
                lagging.entry(tenant.clone()).or_default();
            }
        }
        let tenants: Vec<TenantName> = by_tenant.into_keys().collect();
        catalog.note(&tenants, |feed| {
            if feed::advance(feed, after, through, anchor)? {
                tenants.iter().try_for_each(|tenant| feed::hand(feed, tenant, through))?;
            }
            Ok(())
        })
    }

    fn behind(&self, tenant: Option<&TenantName>, model: Option<&str>) -> Result<Behind, Error> {
        let catalog = self.catalog();
        let events = match tenant {
            Some(tenant) => catalog.behind(self, tenant)?,
            None => catalog.behind_in_all(self)?,
        };
        let vectors = match (tenant, model) {
            (Some(tenant), Some(model)) => {
                catalog.reading(&catalog.index(tenant), |db| vectors::missing(db, model))?.unwrap_or(0)
            }
            (None, Some(model)) => {
                catalog.fed(|db| feed::waiting(db, model))?.iter().map(|(_, entries)| entries).sum()
            }
            (_, None) => 0,
        };
        Ok(Behind { events, vectors })
    }

    fn scrub(&self, tenant: Option<&TenantName>, bytes_max: Option<u64>) -> Result<bool, Error> {
        let catalog = self.catalog();
        let tenants = match tenant {
            Some(tenant) => vec![tenant.clone()],
            None => catalog.fed(feed::to_scrub)?,
        };
        let mut clean = true;
        for tenant in tenants {
            clean &= catalog.scrub(&tenant, bytes_max)?;
        }
        Ok(clean)
    }

    fn forget(&self) -> Result<(), Error> {
        self.catalog().forget();
        Ok(())
    }

    fn reader(&self, key: &Key, seq: u64) -> Result<Option<ConversationId>, Error> {
        Ok(self.readers(&key.tenant, &[(key.id, seq)])?.pop().flatten())
    }
}

impl<T: Ground + TurnIndex> WordSearch for T {
    fn find_text(
        &self,
        tenant: &TenantName,
        query: &TextQuery,
        filter: &Filter,
        limit: usize,
    ) -> Result<Proposed, Error> {
        let Some(scope) = find::Searched::new(self, tenant, filter)? else { return Ok(Proposed::default()) };
        let catalog = self.catalog();
        let index = catalog.index(tenant);
        let found = catalog.reading(&index, |db| find::by_words(db, &index.common, &scope, query, limit))?;
        let mut proposed = found.unwrap_or_default();
        read_by_forks(self, tenant, filter, &mut proposed.found.iter_mut().collect::<Vec<_>>())?;
        Ok(proposed)
    }

    fn neighbours(
        &self,
        tenant: &TenantName,
        filter: &Filter,
        entries: &[EntryNo],
        reach: usize,
    ) -> Result<Vec<Vec<(Proposal, usize)>>, Error> {
        let Some(scope) = find::Searched::new(self, tenant, filter)? else { return Ok(Vec::new()) };
        let catalog = self.catalog();
        let index = catalog.index(tenant);
        let found = catalog.reading(&index, |db| match scope.resolve(db)? {
            Some(scope) => Ok((find::neighbours(db, &scope, entries, reach)?, find::turns_of(db, entries)?)),
            None => Ok((Vec::new(), Vec::new())),
        })?;
        let (mut beside, turns) = found.unwrap_or_default();
        let mut read = Vec::new();
        for (at, (conversation, turn)) in turns.into_iter().enumerate().filter_map(|(at, t)| Some((at, t?))) {
            let key = Key { tenant: tenant.clone(), id: filter.conversation.unwrap_or(conversation) };
            match read_beside(self, &key, turn, filter.through_seq) {
                Ok(Some(turns)) => read.push((at, turns)),
                Ok(None) | Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if !read.is_empty() {
            catalog.reading(&index, |db| {
                let Some(scope) = scope.resolve(db)? else { return Ok(()) };
                for (at, turns) in &read {
                    beside[*at] = find::beside(db, &scope, turns, reach)?;
                }
                Ok(())
            })?;
        }
        let mut found: Vec<&mut Proposal> = beside.iter_mut().flatten().map(|(found, _)| found).collect();
        read_by_forks(self, tenant, filter, &mut found)?;
        Ok(beside)
    }
}

/// The turns that are read before and after a turn, nearest first; `None` in a conversation without edits, which is read in
/// the order of its log.
fn read_beside(
    index: &impl TurnIndex,
    key: &Key,
    turn: TurnId,
    as_of: Option<u64>,
) -> Result<Option<[Vec<TurnId>; 2]>, Error> {
    if index.fallen_after(key, 0)? == 0 {
        return Ok(None);
    }
    let row = index.stored_turn_in(key, turn)?.row;
    let place = as_of.map_or(row.place, |seq| row.as_of(seq).place);
    let side = |query: TurnQuery| -> Result<Vec<TurnId>, Error> {
        let query = TurnQuery { as_of, limit: find::BESIDE_TURNS_MAX, ..query };
        Ok(index.stored_turns(key, &query)?.into_iter().map(|stored| stored.row.id).collect())
    };
    let before = side(TurnQuery { before: Some(place), descending: true, ..TurnQuery::default() })?;
    let after = side(TurnQuery { after: Some(place), ..TurnQuery::default() })?;
    Ok(Some([before, after]))
}

impl<T: Ground + Send + Sync> VectorSearch for T {
    fn without_vectors(&self) -> Option<&str> {
        None
    }

    fn find_near(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Proposal>, Error> {
        let Some(scope) = find::Searched::new(self, tenant, filter)? else { return Ok(Vec::new()) };
        let catalog = self.catalog();
        let index = catalog.index(tenant);
        let found =
            catalog.reading(&index, |db| vectors::near(db, &index.signs, &scope, model, vector, limit))?;
        let mut found = found.unwrap_or_default();
        read_by_forks(self, tenant, filter, &mut found.iter_mut().collect::<Vec<_>>())?;
        Ok(found)
    }

    fn nearness(
        &self,
        tenant: &TenantName,
        model: &str,
        vector: &[f32],
        entries: &[EntryNo],
    ) -> Result<Vec<Option<f64>>, Error> {
        let catalog = self.catalog();
        let index = catalog.index(tenant);
        let near = catalog.reading(&index, |db| vectors::nearness(db, model, vector, entries))?;
        Ok(near.unwrap_or_else(|| vec![None; entries.len()]))
    }

    fn unembedded(
        &self,
        model: &str,
        wanted: Option<(&TenantName, &[EntryNo])>,
        limit: usize,
    ) -> Result<Vec<Unembedded>, Error> {
        let catalog = self.catalog();
        let of = |tenant: &TenantName, first: &[EntryNo]| {
            let index = catalog.index(tenant);
            let waiting = |db: &Connection| vectors::unembedded(db, tenant, model, first, limit);
            let mut found =
                match catalog.reading(&index, |db| Ok((vectors::knows(db, model)?, waiting(db)?)))? {
                    None => Vec::new(),
                    Some((true, waiting)) => waiting,
                    Some((false, _)) => catalog.writing(&index, |db| {
                        vectors::know(db, model)?;
                        waiting(db)
                    })?,
                };
            let places: Vec<_> = found.iter().map(|entry| (entry.key.id, entry.seq)).collect();
            for (entry, reader) in found.iter_mut().zip(self.readers(tenant, &places)?) {
                entry.key.id = reader.unwrap_or(entry.key.id);
            }
            Ok(found)
        };
        if let Some((tenant, first)) = wanted {
            return of(tenant, first);
        }
        // Tenants take turns, so that a large import does not keep the others waiting.
        let mut tenants: Vec<TenantName> =
            catalog.fed(|db| feed::waiting(db, model))?.into_iter().map(|(tenant, _)| tenant).collect();
        let last = catalog.embedded.lock().clone();
        let next = tenants.partition_point(|tenant| Some(tenant) <= last.as_ref());
        tenants.rotate_left(next);
        for tenant in tenants {
            let waiting: Result<_, Error> = of(&tenant, &[]);
            let waiting = waiting?;
            if !waiting.is_empty() {
                *catalog.embedded.lock() = Some(tenant);
                return Ok(waiting);
            }
            catalog.note(&[tenant], |_| Ok(()))?;
        }
        Ok(Vec::new())
    }

    fn put_vectors(
        &self,
        tenant: &TenantName,
        model: &str,
        vectors: Vec<(EntryNo, Vec<f32>)>,
    ) -> Result<(), Error> {
        let catalog = self.catalog();
        catalog.writing(&catalog.index(tenant), |db| vectors::put(db, model, &vectors))?;
        catalog.note(std::slice::from_ref(tenant), |_| Ok(()))
    }

    fn vector_models(&self, tenant: Option<&TenantName>) -> Result<Vec<String>, Error> {
        let catalog = self.catalog();
        match tenant {
            Some(tenant) => Ok(catalog.reading(&catalog.index(tenant), vectors::models)?.unwrap_or_default()),
            None => catalog.fed(feed::models),
        }
    }

    fn keep_vectors_of(&self, model: &str, limit: usize) -> Result<usize, Error> {
        let catalog = self.catalog();
        let mut dropped = 0;
        for tenant in catalog.fed(|db| feed::with_other_models(db, model))? {
            if dropped == limit {
                break;
            }
            let index = catalog.index(&tenant);
            dropped += catalog.writing(&index, |db| vectors::keep_only(db, model, limit - dropped))?;
            catalog.note(&[tenant], |_| Ok(()))?;
        }
        Ok(dropped)
    }
}
