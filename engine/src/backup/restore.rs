//! Restoring a store from archives.
//!
//! The archives are read twice. The first pass reads to the end, so that nothing is made from a damaged backup and
//! later erasures and deletions are known. The second pass writes. Text that a later archive erases never reaches the
//! new store.

use super::{BackupProgress, archives_of, cannot_write, contents, folder_of, open, sync_folder};
use crate::everturn::{Location, assets_folder, close_new_store};
use crate::private;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Parent, Tombstone};
use everturn_core::event::Event;
use everturn_core::id::{Key, TenantName};
use everturn_core::write::{Action, AnsweredRequest, Write};
use everturn_formats::archive::{ArchiveContents, ArchiveCounts, ArchivedConversation, Block, Item, Reader};
use everturn_store::assets::FolderAssets;
use everturn_store::sqlite::Sqlite;
use everturn_store::{AccessKeys, Assets, ConversationIndex, Log};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most events and bytes of a transaction.
const BATCH_EVENTS: usize = 1000;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Result of a restore.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Restored {
    /// Id of the last archive.
    pub id: Hash,
    /// Number of archives.
    pub archives: usize,
    /// Combined contents of the archives, counted.
    #[serde(flatten)]
    pub counts: ArchiveCounts,
}

/// Reads archives to the end and counts their contents. An error is the first problem found.
pub fn check(archives: &[PathBuf]) -> Result<Restored, Error> {
    report(archives, &contents(archives)?)
}

fn report(archives: &[PathBuf], contents: &ArchiveContents) -> Result<Restored, Error> {
    let Some((_, id)) = &contents.last else {
        return Err(Error::invalid("backup.absent", "no archive was named; name at least one"));
    };
    Ok(Restored { id: *id, archives: archives.len(), counts: contents.counts })
}

pub fn restore(url: &str, archives: &[PathBuf], progress: BackupProgress<'_>) -> Result<Restored, Error> {
    let path = match Location::parse(url)? {
        Location::Sqlite(path) => path,
        Location::Memory => {
            let text = "a store in memory ends with this process; name a file: --store sqlite:PATH";
            return Err(Error::invalid("restore.memory", text));
        }
        Location::Postgres(_) => {
            let text = "a backup is restored to a file: restore to --store sqlite:PATH, then `everturn copy` it to PostgreSQL";
            return Err(Error::invalid("restore.target", text));
        }
    };
    check_vacant(&path)?;
    let contents = contents(archives)?;
    let restored = report(archives, &contents)?;
    let name = path.file_name().ok_or_else(|| {
        Error::invalid("restore.target", format!("{} does not name a file; add a file name", path.display()))
    })?;
    let folder = folder_of(&path);
    remove_unfinished(folder, &name.to_string_lossy());
    let scratch = tempdir(folder, &name.to_string_lossy())?;
    let written = (|| {
        let _alive = mark_alive(&scratch)?;
        let new = scratch.join(name);
        let store = Sqlite::open(&new, Duration::ZERO)?;
        close_new_store(&new, folder);
        let assets = FolderAssets::new(&assets_folder(&new));
        Restoring::new(Parts { log: &store, index: &store, keys: &store, assets: &assets }, &contents)
            .run(archives, progress)?;
        store.settle()?;
        drop(store);
        // Another process may have made a store there meanwhile.
        check_vacant(&path)?;
        move_into_place(&scratch, &path)
    })();
    // Only the lock file is left in it or, after an error, the unfinished store.
    let _ = std::fs::remove_dir_all(&scratch);
    // Errors name the final path, not the unfinished one.
    let (unfinished, name) = (scratch.join(name).display().to_string(), path.display().to_string());
    written.map_err(|error| error.reworded(|text| text.replace(&unfinished, &name))).map(|()| restored)
}

/// Removals by later archives that a restore up to an earlier one undoes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct UndoneRemovals {
    /// Bodies that were erased.
    pub erased: u64,
    /// Conversations that were deleted.
    pub deleted: u64,
    /// Access keys that were revoked.
    pub revoked: u64,
}

/// Counts the removals in the newest backup of a folder that these archives, an earlier state of it, lack.
pub fn left_out(folder: &Path, archives: &[PathBuf]) -> Result<UndoneRemovals, Error> {
    let newest = archives_of(folder, None)?;
    let mut left_out = UndoneRemovals::default();
    if newest == archives {
        return Ok(left_out);
    }
    let (then, now) = (contents(archives)?, contents(&newest)?);
    for (no, before) in then.members.iter().filter(|(_, member)| member.deleted.is_none()) {
        match now.members.get(no).filter(|member| member.key == before.key) {
            Some(member) if member.deleted.is_some() => left_out.deleted += 1,
            Some(member) => {
                left_out.erased += member.erased.iter().filter(|seq| before.has_body(*seq)).count() as u64;
            }
            None => {}
        }
    }
    let revoked = |id| now.keys.get(id) == Some(&true);
    left_out.revoked = then.keys.iter().filter(|(id, was)| !**was && revoked(*id)).count() as u64;
    Ok(left_out)
}

/// Lock file in the folder of an unfinished restore, locked as long as its process lives.
const ALIVE: &str = "restoring.lock";

fn mark_alive(scratch: &Path) -> Result<File, Error> {
    let path = scratch.join(ALIVE);
    let file = File::create(&path).map_err(|error| cannot_write(&path, &error))?;
    // If files cannot be locked, unfinished restores are never removed.
    let _ = file.try_lock();
    Ok(file)
}

/// Removes leftovers of a killed restore to the same path: they may hold conversations.
fn remove_unfinished(folder: &Path, name: &str) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_unfinished = entry.file_name().to_string_lossy().starts_with(&format!(".{name}.restoring-"));
        let alive = || File::options().write(true).open(entry.path().join(ALIVE));
        if is_unfinished && alive().is_ok_and(|file| file.try_lock().is_ok()) {
            // If this fails, the next restore retries.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder beside the target, so that moving out of it is a rename.
fn tempdir(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    (0..100)
        .map(|n| folder.join(format!(".{name}.restoring-{}-{n}", std::process::id())))
        .find_map(|path| match std::fs::create_dir(&path) {
            Ok(()) => {
                private::close(&path, folder);
                Some(Ok(path))
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
            Err(error) => Some(Err(cannot_write(&path, &error))),
        })
        .unwrap_or_else(|| {
            let text = format!("{} is full of unfinished restores; remove them", folder.display());
            Err(Error::invalid("restore.target", text))
        })
}

/// Refuses a path that holds a store or leftovers of one: a write-ahead log or an index of another store beside a new
/// database would become part of it.
fn check_vacant(path: &Path) -> Result<(), Error> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Ok(entries) = std::fs::read_dir(folder_of(path)) else { return Ok(()) };
    let mut there: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|file| *file == name || file.strip_prefix(&name).is_some_and(|rest| rest.starts_with('-')))
        .collect();
    there.sort();
    if there.is_empty() {
        return Ok(());
    }
    Err(Error::conflict(
        "restore.exists",
        format!(
            "{} is not empty: there is {}; restore to another path with --store, or move those files away",
            path.display(),
            there.join(", ")
        ),
    ))
}

/// Moves every file of the store, the database last: the store exists once its database does.
fn move_into_place(scratch: &Path, path: &Path) -> Result<(), Error> {
    let cannot = |error: std::io::Error| cannot_write(path, &error);
    let folder = folder_of(path);
    let mut files: Vec<PathBuf> = std::fs::read_dir(scratch)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(cannot)?;
    let database = |file: &PathBuf| file.file_name() == path.file_name();
    files.retain(|file| file.extension().is_none_or(|extension| extension != "lock"));
    files.sort_by_key(database);
    for file in &files {
        let name = file.file_name().unwrap_or_default();
        if database(file) {
            sync_folder(folder)?;
        }
        std::fs::rename(file, folder.join(name)).map_err(cannot)?;
    }
    sync_folder(folder)
}

/// Destination of a restore.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub log: &'a dyn Log,
    pub index: &'a dyn ConversationIndex,
    pub keys: &'a dyn AccessKeys,
    pub assets: &'a dyn Assets,
}

pub(super) struct Restoring<'a> {
    parts: Parts<'a>,
    contents: &'a ArchiveContents,
    batch: Vec<Write>,
    batch_events: usize,
    batch_bytes: usize,
    /// Highest `seq` at which each conversation can be forked.
    reach: HashMap<u64, u64>,
    /// Conversations to delete once their forks are restored.
    to_bury: BTreeMap<Key, Tombstone>,
    events: u64,
}

impl<'a> Restoring<'a> {
    pub fn new(parts: Parts<'a>, contents: &'a ArchiveContents) -> Restoring<'a> {
        Restoring {
            parts,
            contents,
            batch: Vec::new(),
            batch_events: 0,
            batch_bytes: 0,
            reach: HashMap::new(),
            to_bury: BTreeMap::new(),
            events: 0,
        }
    }

    pub fn run(mut self, archives: &[PathBuf], progress: BackupProgress<'_>) -> Result<(), Error> {
        for (place, path) in archives.iter().enumerate() {
            let last = place + 1 == archives.len();
            self.archive(open(path)?, last, progress).map_err(|error| error.at(path.display()))?;
        }
        for (key, tombstone) in std::mem::take(&mut self.to_bury) {
            self.push(Write { key, action: Action::Bury { tombstone } }, 0)?;
        }
        self.flush()?;
        self.verify()
    }

    fn archive(
        &mut self,
        source: impl std::io::Read,
        last: bool,
        progress: BackupProgress<'_>,
    ) -> Result<(), Error> {
        let mut reader = Reader::new(source)?;
        let mut block = None;
        let mut events = Vec::new();
        let mut requests = Vec::new();
        while let Some(item) = reader.next_item()? {
            if let Item::Block(new) = item {
                self.begin(&new)?;
                block = Some(new);
                continue;
            }
            let here = block.as_ref().and_then(|block| {
                Some((
                    Key { tenant: block.tenant.clone(), id: block.id },
                    self.contents.members.get(&block.no)?,
                ))
            });
            match (item, here) {
                (Item::Event(line), Some((key, member))) => {
                    let mut event = line.event()?;
                    self.events += 1;
                    if !member.has(event.seq) {
                        continue;
                    }
                    if !member.has_body(event.seq) {
                        event.body = None;
                    }
                    self.add(&key, event, &mut events)?;
                    if self.events.is_multiple_of(BATCH_EVENTS as u64) {
                        progress(self.events, self.contents.counts.events);
                    }
                }
                (Item::Asset(asset, Some(bytes)), Some((key, _))) => {
                    self.asset(&key.tenant, asset.sha256, bytes)?;
                }
                (Item::Request(request), Some((_, member))) if member.deleted.is_none() => {
                    requests.push(request);
                }
                (Item::Text(text), Some((key, member))) if last && member.deleted.is_none() => {
                    self.events_of(&key, &mut events)?;
                    let bytes = text.text.len();
                    let action = Action::Chunk { turn: text.turn, offset: 0, text: text.text };
                    self.push(Write { key, action }, bytes)?;
                }
                (Item::Through(_), Some((key, _))) => {
                    self.events_of(&key, &mut events)?;
                    self.remember(&key, std::mem::take(&mut requests))?;
                    block = None;
                }
                (Item::Key(key), _) if last => self.parts.keys.put_key(&key)?,
                _ => {}
            }
        }
        reader.finish().map(drop)
    }

    /// Begins a conversation that earlier archives do not have.
    fn begin(&mut self, block: &Block) -> Result<(), Error> {
        if self.reach.contains_key(&block.no) {
            return Ok(());
        }
        let Some(member) = self.contents.members.get(&block.no) else { return Ok(()) };
        let key = &member.key;
        // The id belonged to a conversation that was deleted; its forks have lower numbers and exist by now.
        if let Some(tombstone) = self.to_bury.remove(key) {
            self.push(Write { key: key.clone(), action: Action::Bury { tombstone } }, 0)?;
        }
        let parent = self.parent(member)?;
        let inherited = parent.map_or(0, |parent| parent.at_seq);
        let own = member.deleted.as_ref().map_or(member.through, |(_, kept)| member.through.min(*kept));
        self.reach.insert(block.no, own.max(inherited));
        if let Some((tombstone, _)) = &member.deleted {
            self.to_bury.insert(key.clone(), tombstone.clone());
        }
        let action = Action::Begin { created: member.created, parent };
        self.push(Write { key: key.clone(), action }, 0)
    }

    /// The parent and fork point. A deleted fork of which only the tombstone is left may have begun after the last
    /// event that is kept of its parent: then it begins at that event.
    fn parent(&self, member: &ArchivedConversation) -> Result<Option<Parent>, Error> {
        let Some(parent) = member.parent else { return Ok(None) };
        let above = self.contents.members.get(&parent.no).zip(self.reach.get(&parent.no));
        let (above, reach) = above.ok_or_else(|| {
            Error::corrupt("backup.damaged", format!("the parent of {} is not in the backup", member.key.id))
        })?;
        let at_seq = parent.at_seq.min(*reach);
        Ok((at_seq > 0).then_some(Parent { conversation: above.key.id, at_seq }))
    }

    fn add(&mut self, key: &Key, event: Event, events: &mut Vec<Event>) -> Result<(), Error> {
        self.batch_bytes += event.text().map_or(0, str::len);
        self.batch_events += 1;
        events.push(event);
        if self.batch_events >= BATCH_EVENTS || self.batch_bytes >= BATCH_BYTES {
            self.events_of(key, events)?;
            self.flush()?;
        }
        Ok(())
    }

    fn events_of(&mut self, key: &Key, events: &mut Vec<Event>) -> Result<(), Error> {
        if events.is_empty() {
            return Ok(());
        }
        let action = Action::Restore { events: std::mem::take(events) };
        self.push(Write { key: key.clone(), action }, 0)
    }

    fn remember(&mut self, key: &Key, requests: Vec<AnsweredRequest>) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        self.push(Write { key: key.clone(), action: Action::Remember { requests } }, 0)
    }

    /// Stores an asset's bytes if something still refers to them.
    fn asset(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        let shown = self.contents.shown.get(&(tenant.clone(), sha256));
        let living = |(no, seq): &(u64, u64)| {
            self.contents.members.get(no).is_some_and(|member| member.has_body(*seq))
        };
        if shown.is_some_and(|shown| shown.iter().any(living)) {
            self.parts.assets.put(tenant, sha256, bytes)?;
        }
        Ok(())
    }

    fn push(&mut self, write: Write, bytes: usize) -> Result<(), Error> {
        self.batch.push(write);
        self.batch_bytes += bytes;
        if self.batch.len() >= BATCH_EVENTS || self.batch_bytes >= BATCH_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        (self.batch_events, self.batch_bytes) = (0, 0);
        let batch = std::mem::take(&mut self.batch);
        let keys: Vec<Key> = batch.iter().map(|write| write.key.clone()).collect();
        for (answer, key) in self.parts.log.commit(batch).into_iter().zip(keys) {
            answer.map_err(|error| error.at(format!("{} of tenant {}", key.id, key.tenant)))?;
        }
        Ok(())
    }

    /// Compares the end of each chain with the backup's. Its events were checked one by one when they were written.
    fn verify(&self) -> Result<(), Error> {
        for member in self.contents.members.values().filter(|member| member.deleted.is_none()) {
            let head = self.parts.index.conversation(&member.key)?.head;
            if Some(head.hash) != member.hash {
                return Err(Error::corrupt(
                    "restore.incomplete",
                    format!(
                        "{} ends at seq {}, the backup says {}; report this",
                        member.key.id, head.seq, member.through
                    ),
                ));
            }
        }
        Ok(())
    }
}
