//! The indexes of all tenants: one file each, opened when needed, and the feed that records their positions.

use super::file::{Database, Readers};
use super::find::Common;
use super::open::{self, Derived};
use super::sign_bits::SignBits;
use super::{Ground, entries, feed};
use everturn_core::Error;
use everturn_core::id::{Key, TenantName};
use everturn_core::limits::INDEXES_OPEN_MAX;
use parking_lot::{Mutex, MutexGuard};
use rusqlite::Connection;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// All indexes, by tenant.
pub(crate) struct Catalog {
    /// Folder of the files; `None` in memory.
    folder: Option<PathBuf>,
    /// Closed before those that write: only a writing connection empties the write-ahead log when it is closed
    /// last.
    pub(super) readers: Readers,
    pub(super) feed: Database,
    open: Mutex<Open>,
    /// Tenants with an index that lost entries, with a file or in a power loss.
    pub(super) lagging: Mutex<BTreeMap<TenantName, Lag>>,
    /// Whether lost files were looked for.
    looked: AtomicBool,
    /// Tenants whose index may still contain deleted conversations; `None` for every tenant, since a crash may
    /// have come before.
    deletions: Mutex<Option<BTreeSet<TenantName>>>,
    tail: Mutex<Tail>,
    /// The tenant whose entries were embedded last.
    pub(super) embedded: Mutex<Option<TenantName>>,
    /// Whether a lagging index comes before new events this time.
    pub(super) lagging_first: AtomicBool,
}

#[derive(Default)]
struct Open {
    indexes: HashMap<TenantName, (Arc<Index>, u64)>,
    uses: u64,
}

/// The index of one tenant, with its cached data.
pub(crate) struct Index {
    database: Database,
    pub(super) common: Mutex<Common>,
    pub(super) signs: SignBits,
}

/// Events that an index has to process again.
#[derive(Default)]
pub(super) struct Lag {
    /// The list covers events after this one,
    after: u64,
    /// and up to this one.
    through: u64,
    /// Numbers of the tenant's events.
    numbers: VecDeque<u64>,
}

/// Events for an index that lags.
pub(crate) struct Lagging {
    pub tenant: TenantName,
    /// The index is complete up to this event,
    pub after: u64,
    /// and up to this one once it has taken in `numbers`.
    pub through: u64,
    pub numbers: Vec<u64>,
}

/// Number of events of each tenant that are not handed out yet.
#[derive(Default)]
struct Tail {
    after: u64,
    through: u64,
    counts: HashMap<TenantName, u64>,
}

/// The name of a tenant's file. Only lower-case letters, since some file systems ignore case, and a prefix that
/// distinguishes it from other files and from names that Windows reserves.
fn file_name(tenant: &TenantName) -> String {
    let mut name = String::from("t-");
    for c in tenant.as_str().chars() {
        if c.is_ascii_uppercase() {
            name.push('+');
        }
        name.push(c.to_ascii_lowercase());
    }
    name + ".db"
}

/// The tenant of a file; `None` for other files.
fn tenant_of(file: &str) -> Option<TenantName> {
    let mut name = String::new();
    let mut chars = file.strip_prefix("t-")?.strip_suffix(".db")?.chars();
    while let Some(c) = chars.next() {
        name.push(if c == '+' { chars.next()?.to_ascii_uppercase() } else { c });
    }
    TenantName::new(name).ok().filter(|tenant| file_name(tenant) == file)
}

impl Catalog {
    /// In memory, or in a folder that is created with the first entry.
    pub fn new(folder: Option<PathBuf>) -> Catalog {
        let feed = Database::new(folder.as_ref().map(|folder| folder.join("feed.db")), Derived::Feed);
        Catalog {
            folder,
            readers: Readers::default(),
            feed,
            open: Mutex::default(),
            lagging: Mutex::default(),
            looked: AtomicBool::new(false),
            deletions: Mutex::default(),
            tail: Mutex::default(),
            embedded: Mutex::default(),
            lagging_first: AtomicBool::new(false),
        }
    }

    /// A tenant's index. Does not create a file.
    pub fn index(&self, tenant: &TenantName) -> Arc<Index> {
        let mut open = self.open.lock();
        open.uses += 1;
        let now = open.uses;
        if let Some((index, used)) = open.indexes.get_mut(tenant) {
            *used = now;
            return index.clone();
        }
        let path = self.folder.as_ref().map(|folder| folder.join(file_name(tenant)));
        let index = Arc::new(Index {
            database: Database::new(path, Derived::Index),
            common: Mutex::default(),
            signs: SignBits::default(),
        });
        open.indexes.insert(tenant.clone(), (index.clone(), now));
        while self.folder.is_some() && open.indexes.len() > INDEXES_OPEN_MAX {
            let idle = open.indexes.iter().filter(|(_, (index, _))| Arc::strong_count(index) == 1);
            let Some(oldest) = idle.min_by_key(|(_, (_, used))| *used).map(|(tenant, _)| tenant.clone())
            else {
                break;
            };
            if let Some((index, _)) = open.indexes.remove(&oldest) {
                self.readers.close(index.database.path());
            }
        }
        index
    }

    /// Runs a closure in one transaction of a tenant's index.
    pub fn writing<T>(
        &self,
        index: &Index,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        index.database.writing(&self.readers, body)
    }

    /// Runs a closure in one consistent view of a tenant's index; `None` if there is none.
    pub fn reading<T>(
        &self,
        index: &Index,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Error> {
        if index.database.was_replaced() {
            *index.common.lock() = Common::default();
            index.signs.clear();
        }
        index.database.reading(&self.readers, body)
    }

    /// Drops a tenant's index.
    pub fn drop_index(&self, index: &Index) {
        index.database.remove(&self.readers);
    }

    /// Queries the feed; the default if there is none yet.
    pub fn fed<T: Default>(&self, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        Ok(self.feed.reading(&self.readers, body)?.unwrap_or_default())
    }

    /// Records in the feed the current content of these indexes. They are read within the feed's transaction,
    /// so that of two processes the one that writes last has read last.
    pub fn note<T>(
        &self,
        tenants: &[TenantName],
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.feed.writing(&self.readers, |feed| {
            let done = body(feed)?;
            for tenant in tenants {
                match self.reading(&self.index(tenant), entries::summary) {
                    Ok(summary) => feed::note(feed, tenant, &summary.unwrap_or_default())?,
                    Err(error) => tracing::debug!(%error, "an index cannot be read for now"),
                }
            }
            Ok(done)
        })
    }

    /// Drops everything.
    pub fn forget(&self) {
        let indexes = std::mem::take(&mut self.open.lock().indexes);
        self.readers.close(None);
        indexes.values().for_each(|(index, _)| self.drop_index(index));
        for tenant in self.kept() {
            self.drop_index(&self.index(&tenant));
        }
        self.feed.remove(&self.readers);
        self.lagging.lock().clear();
        *self.tail.lock() = Tail::default();
    }

    /// Tenants that have a file.
    fn kept(&self) -> Vec<TenantName> {
        let Some(Ok(files)) = self.folder.as_ref().map(std::fs::read_dir) else { return Vec::new() };
        files.flatten().filter_map(|file| tenant_of(file.file_name().to_str()?)).collect()
    }

    /// The last event that was handed out. Indexes made from another log are dropped: a backup was restored, or
    /// the file replaced.
    pub fn position(&self, ground: &dyn Ground) -> Result<Option<u64>, Error> {
        let (after, anchor) = self.fed(feed::position)?;
        let same = after == 0 || (anchor.is_some() && ground.arrived_at(after)? == anchor);
        Ok(same.then_some(after))
    }

    /// Drops indexes that are made from another log, before everything is handed out again.
    pub fn drop_foreign(&self, ground: &dyn Ground) -> Result<(), Error> {
        for tenant in self.kept() {
            self.index_position(ground, &self.index(&tenant))?;
        }
        Ok(())
    }

    /// The last event in a tenant's index; 0 if there is none. An index made from another log is dropped.
    pub fn index_position(&self, ground: &dyn Ground, index: &Index) -> Result<u64, Error> {
        let (at, anchor) = self.reading(index, entries::position)?.unwrap_or_default();
        if at == 0 || (anchor.is_some() && ground.arrived_at(at)? == anchor) {
            return Ok(at);
        }
        self.drop_index(index);
        Ok(0)
    }

    /// Looks once for tenants whose file was lost, truncated or replaced while the store was not open.
    pub fn look_for_lost(&self) -> Result<(), Error> {
        if self.folder.is_none() || self.looked.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let kept: BTreeSet<TenantName> = self.kept().into_iter().collect();
        let handed = self.fed(feed::tenants)?;
        let whole = |tenant: &TenantName| match &self.folder {
            // Already open: readers notice. Closing another descriptor would release its locks.
            _ if self.open.lock().indexes.contains_key(tenant) => true,
            Some(folder) => open::looks_whole(&folder.join(file_name(tenant))),
            None => true,
        };
        let lost = handed.into_iter().filter(|tenant| !kept.contains(tenant) || !whole(tenant));
        self.lagging.lock().extend(lost.map(|tenant| (tenant, Lag::default())));
        Ok(())
    }

    /// The next events that a lagging index has to process again.
    pub fn next_lagging(&self, ground: &dyn Ground, limit: usize) -> Result<Option<Lagging>, Error> {
        loop {
            let Some(tenant) = self.lagging.lock().keys().next().cloned() else { return Ok(None) };
            let (at, last) = self.places(ground, &tenant)?;
            if at >= last {
                self.lagging.lock().remove(&tenant);
                continue;
            }
            let (left, mut numbers) = self.left(ground, &tenant, at, last, limit + 1)?;
            let through = if left <= limit as u64 { last } else { numbers[limit - 1] };
            numbers.truncate(limit);
            return Ok(Some(Lagging { tenant, after: at, numbers, through }));
        }
    }

    /// The last event in a tenant's index, and the last one handed to it.
    fn places(&self, ground: &dyn Ground, tenant: &TenantName) -> Result<(u64, u64), Error> {
        let last = self.fed(|db| feed::last(db, tenant))?;
        Ok((self.index_position(ground, &self.index(tenant))?, last))
    }

    /// Number of a tenant's events in a range, and the numbers of the first ones. The list is made once for
    /// each rebuild of an index, and grows with what is handed to it meanwhile.
    fn left(
        &self,
        ground: &dyn Ground,
        tenant: &TenantName,
        at: u64,
        last: u64,
        limit: usize,
    ) -> Result<(u64, Vec<u64>), Error> {
        let mut lagging = self.lagging.lock();
        let lag = lagging.entry(tenant.clone()).or_default();
        if at < lag.after || at > lag.through {
            *lag = Lag { after: at, through: at, numbers: VecDeque::new() };
        }
        if last > lag.through {
            lag.numbers.extend(ground.numbers_of(tenant, lag.through, last)?);
            lag.through = last;
        }
        lag.after = at;
        while lag.numbers.front().is_some_and(|number| *number <= at) {
            lag.numbers.pop_front();
        }
        Ok((lag.numbers.len() as u64, lag.numbers.iter().take(limit).copied().collect()))
    }

    /// Number of events of a tenant that are not in its index.
    pub fn behind(&self, ground: &dyn Ground, tenant: &TenantName) -> Result<u64, Error> {
        let (at, last) = self.places(ground, tenant)?;
        let lag = if at < last { self.left(ground, tenant, at, last, 0)?.0 } else { 0 };
        Ok(lag + self.tail(ground)?.counts.get(tenant).copied().unwrap_or(0))
    }

    /// Number of events of all tenants that are not in an index.
    pub fn behind_in_all(&self, ground: &dyn Ground) -> Result<u64, Error> {
        self.look_for_lost()?;
        let after = self.position(ground)?.unwrap_or(0);
        let mut behind = ground.last_arrived()?.saturating_sub(after);
        let lagging: Vec<TenantName> = self.lagging.lock().keys().cloned().collect();
        for tenant in lagging {
            let (at, last) = self.places(ground, &tenant)?;
            if at < last {
                behind += self.left(ground, &tenant, at, last, 0)?.0;
            }
        }
        Ok(behind)
    }

    /// Counts events that are not handed out yet. Each event is counted when it arrives and when it is handed
    /// out, however often this is called.
    fn tail(&self, ground: &dyn Ground) -> Result<MutexGuard<'_, Tail>, Error> {
        let after = self.position(ground)?.unwrap_or(0);
        let mut tail = self.tail.lock();
        if after < tail.after {
            *tail = Tail::default();
        }
        if tail.through <= after {
            *tail = Tail { after, through: after, counts: HashMap::new() };
        }
        for (tenant, handed) in ground.counts(tail.after, after)? {
            let left = tail.counts.get(&tenant).copied().unwrap_or(0).saturating_sub(handed);
            if left == 0 {
                tail.counts.remove(&tenant)
            } else {
                tail.counts.insert(tenant, left)
            };
        }
        tail.after = after;
        let last = ground.last_arrived()?;
        if last > tail.through {
            for (tenant, came) in ground.counts(tail.through, last)? {
                *tail.counts.entry(tenant).or_default() += came;
            }
            tail.through = last;
        }
        Ok(tail)
    }

    /// Records that conversations of a tenant were deleted.
    pub fn note_deletion(&self, tenant: &TenantName) {
        if let Some(tenants) = &mut *self.deletions.lock() {
            tenants.insert(tenant.clone());
        }
    }

    /// Removes entries of deleted conversations that can no longer be read.
    pub fn drop_deleted(&self, ground: &dyn Ground) -> Result<(), Error> {
        // Later deletions are recorded for the next time.
        let mut noted = self.deletions.lock().replace(BTreeSet::new());
        let dropped = self.drop_deleted_in(ground, &mut noted);
        if dropped.is_err() {
            let mut deletions = self.deletions.lock();
            match (&mut *deletions, noted) {
                (Some(tenants), Some(left)) => tenants.extend(left),
                (deletions, _) => *deletions = None,
            }
        }
        dropped
    }

    fn drop_deleted_in(
        &self,
        ground: &dyn Ground,
        noted: &mut Option<BTreeSet<TenantName>>,
    ) -> Result<(), Error> {
        if noted.is_none() {
            let known: BTreeSet<TenantName> = self.fed(feed::tenants)?.into_iter().collect();
            let deleted = ground.with_deletions()?.into_iter();
            *noted = Some(deleted.filter(|tenant| known.contains(tenant)).collect());
        }
        while let Some(tenant) = noted.as_mut().and_then(BTreeSet::pop_first) {
            if let Err(error) = self.drop_deleted_of(ground, &tenant) {
                noted.get_or_insert_default().insert(tenant);
                return Err(error);
            }
        }
        Ok(())
    }

    fn drop_deleted_of(&self, ground: &dyn Ground, tenant: &TenantName) -> Result<(), Error> {
        let index = self.index(tenant);
        let Some(conversations) = self.reading(&index, entries::conversations)? else { return Ok(()) };
        let (mut left, mut cut) = (conversations.len(), false);
        for (no, id) in conversations {
            let through = ground.readable_through(&Key { tenant: tenant.clone(), id })?;
            // Entries that a fork still reads are kept; the rest was removed before.
            if through < u64::MAX
                && self.reading(&index, |db| entries::reaches(db, no, through))? == Some(true)
            {
                self.writing(&index, |db| entries::cut(db, no, through))?;
                cut = true;
            }
            left -= usize::from(through == 0);
        }
        if !cut {
            return Ok(());
        }
        let (at, last) = self.places(ground, tenant)?;
        if left == 0 && at >= last {
            // Nothing of the tenant is left: its file is removed as well.
            self.feed.writing(&self.readers, |db| feed::forget(db, tenant))?;
            self.drop_index(&index);
            return Ok(());
        }
        self.note(std::slice::from_ref(tenant), |_| Ok(()))
    }

    /// Rewrites a tenant's index without the removed entries.
    pub fn scrub(&self, tenant: &TenantName, bytes_max: Option<u64>) -> Result<bool, Error> {
        let index = self.index(tenant);
        if self.lagging.lock().contains_key(tenant) {
            // The removals have not reached the file yet. If it cannot be written, this must not report
            // success.
            self.writing(&index, |_| Ok(()))?;
            return Ok(false);
        }
        if self.reading(&index, entries::has_removed)? != Some(true) {
            return Ok(true);
        }
        if bytes_max.is_some_and(|most| index.database.bytes() > most) {
            return Ok(false);
        }
        self.writing(&index, entries::merge)?;
        let in_file = index.database.path().is_some();
        let clean = index.database.alone(&self.readers, |db| entries::write_anew(db, in_file))?;
        if !clean {
            return Err(Error::busy(
                "recall.scrub",
                format!(
                    "the index of {tenant} is being read, so copies of removed entries stay for now; it will be retried"
                ),
            ));
        }
        self.note(std::slice::from_ref(tenant), |_| Ok(()))?;
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]
mod tests {
    use super::*;

    /// Two tenants must never share a file, also on case-insensitive file systems, and no name may lead outside
    /// the folder.
    #[test]
    fn every_tenant_has_a_file_name_of_its_own() {
        let names =
            ["acme", "Acme", "ACME", "aCme", "a.db-wal", "con", "feed", "t-acme", "x..y", "-", "_a.B"];
        let mut files = BTreeSet::new();
        for name in names {
            let tenant = TenantName::new(name).unwrap();
            let file = file_name(&tenant);
            assert_eq!(tenant_of(&file).as_ref(), Some(&tenant), "{file}");
            assert_eq!(file, file.to_lowercase());
            assert!(!file.contains(['/', '\\']) && file.len() < 200, "{file}");
            assert!(files.insert(file), "{name}");
        }
        assert_eq!(file_name(&TenantName::new("Acme").unwrap()), "t-+acme.db");
        for other in ["feed.db", "t-acme.db-wal", "t-.db", "t-Acme.db", "t-+.db", "t-++a.db", "t-a+.db"] {
            assert_eq!(tenant_of(other), None, "{other}");
        }
    }
}
