//! What the mirror's thread does: bring files up to the log.

use super::Change;
use super::file::{self, Found, Header, Lines, Tail, failed};
use crate::everturn::Shared;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::time::Timestamp;
use everturn_formats::jsonl::Writer;
use everturn_store::ConversationQuery;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Events read at a time: few, because each may be large.
const PAGE: usize = 100;

/// Conversations looked at between two looks at what changed.
const CATCH_UP_PAGE: usize = 100;

/// How much is written at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// Past this the memory of where files end starts over; they are looked at again then.
const KNOWN_MAX: usize = 4096;

/// The thread's memory.
pub struct Work<'a> {
    shared: &'a Shared,
    folder: &'a Path,
    /// Where files end.
    known: HashMap<Key, Tail>,
    /// The oldest ancestor of each fork that has a file: those with the same one may hold the same words.
    roots: HashMap<Key, ConversationId>,
    /// Tenants whose forks are all in `roots`.
    learned: HashSet<TenantName>,
    /// Tenants that have been or are being brought up to date.
    seen: HashSet<TenantName>,
    /// What is left of that.
    steps: VecDeque<Step>,
}

/// A piece of bringing a tenant's files up to date.
enum Step {
    /// Conversations behind this one in the listing.
    Page(TenantName, Option<(Timestamp, ConversationId)>),
    /// Files of conversations that are gone.
    Tidy(TenantName),
}

impl<'a> Work<'a> {
    /// Begins with every tenant that has files here or conversations in the store.
    pub fn new(shared: &'a Shared, folder: &'a Path) -> Work<'a> {
        let mut work = Work {
            shared,
            folder,
            known: HashMap::new(),
            roots: HashMap::new(),
            learned: HashSet::new(),
            seen: HashSet::new(),
            steps: VecDeque::new(),
        };
        let folders = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| TenantName::new(name).ok()).for_each(|tenant| work.see(&tenant));
        match shared.journal.index.tenants() {
            Ok(tenants) => tenants.iter().for_each(|tenant| work.see(tenant)),
            // Those are seen with their next commit, then.
            Err(error) => tracing::warn!(%error, "the mirror cannot list the tenants"),
        }
        work
    }

    fn see(&mut self, tenant: &TenantName) {
        if self.seen.insert(tenant.clone()) {
            self.steps.push_back(Step::Page(tenant.clone(), None));
        }
    }

    /// Whether every file was looked at since the start.
    pub fn is_caught_up(&self) -> bool {
        self.steps.is_empty()
    }

    /// Takes one step of bringing files up to date. Gives what failed: a conversation, or the step, which is taken again.
    pub fn catch_up(&mut self) -> Vec<(Option<Key>, Error)> {
        match self.steps.pop_front() {
            None => Vec::new(),
            Some(Step::Page(tenant, after)) => match self.page(&tenant, after) {
                Ok(failed) => failed,
                Err(error) => {
                    self.steps.push_back(Step::Page(tenant, after));
                    vec![(None, error)]
                }
            },
            Some(Step::Tidy(tenant)) => match self.tidy(&tenant) {
                Ok(()) => Vec::new(),
                Err(error) => {
                    self.steps.push_back(Step::Tidy(tenant));
                    vec![(None, error)]
                }
            },
        }
    }

    fn page(
        &mut self,
        tenant: &TenantName,
        after: Option<(Timestamp, ConversationId)>,
    ) -> Result<Vec<(Option<Key>, Error)>, Error> {
        let query = ConversationQuery { after, limit: CATCH_UP_PAGE, ..ConversationQuery::default() };
        let page = self.shared.journal.index.conversations(tenant, &query)?;
        let mut failed = Vec::new();
        for conversation in &page {
            let key = Key { tenant: tenant.clone(), id: conversation.id };
            if let Err(error) = self.apply(&key, Change::default()) {
                failed.push((Some(key), error));
            }
        }
        self.steps.push_front(match page.last() {
            Some(last) if page.len() == CATCH_UP_PAGE => {
                Step::Page(tenant.clone(), Some((last.updated, last.id)))
            }
            _ => Step::Tidy(tenant.clone()),
        });
        Ok(failed)
    }

    /// Deletes the files of conversations that were deleted, and what a crash left of a file that was written anew. A
    /// file whose conversation the store has never heard of is somebody's only copy, and stays.
    fn tidy(&mut self, tenant: &TenantName) -> Result<(), Error> {
        let folder = self.folder.join(tenant.as_str());
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.ends_with(".jsonl.new")) {
                file::remove(&entry.path())?;
            }
        }
        for tombstone in self.shared.journal.index.tombstones(tenant)? {
            let key = Key { tenant: tenant.clone(), id: tombstone.id };
            if self.path(&key).exists() && self.conversation(&key)?.is_none() {
                self.remove(&key)?;
            }
        }
        Ok(())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.tenant.as_str()).join(format!("{}.jsonl", key.id))
    }

    fn conversation(&self, key: &Key) -> Result<Option<Conversation>, Error> {
        match self.shared.journal.index.conversation(key) {
            Ok(conversation) => Ok(Some(conversation)),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings one conversation's file to where its log is.
    pub fn apply(&mut self, key: &Key, change: Change) -> Result<(), Error> {
        self.see(&key.tenant);
        let known = self.known.remove(key);
        if change.deleted {
            self.remove(key)?;
        }
        // Its head bounds what is read below. Whatever was erased up to there is gone from the log by now; an erasure
        // behind it is still to come, and finds its event missing from the file even after a crash.
        let Some(conversation) = self.conversation(key)? else { return Ok(()) };
        if change.erased {
            return self.erase(key, &conversation);
        }
        let path = self.path(key);
        let found = match known.filter(|tail| fs::metadata(&path).is_ok_and(|file| file.len() == tail.bytes))
        {
            Some(tail) => Found::Ours(tail),
            None => file::look(&path, key.id)?,
        };
        match found {
            Found::Ours(tail) if agrees(&tail, &conversation) => self.append(key, &conversation, tail),
            Found::Nothing => self.append(key, &conversation, Tail { seq: 0, hash: None, bytes: 0 }),
            Found::Ours(_) | Found::Other => {
                self.set_aside(&path)?;
                self.write(key, &conversation, conversation.head.seq)
            }
        }
    }

    fn set_aside(&self, path: &Path) -> Result<(), Error> {
        let aside = file::set_aside(path)?;
        tracing::warn!(
            file = %path.display(),
            kept = %aside.display(),
            "the mirror's file is not what the log says; it was set aside and written anew"
        );
        Ok(())
    }

    /// Writes what the file has not got yet.
    fn append(&mut self, key: &Key, conversation: &Conversation, tail: Tail) -> Result<(), Error> {
        let path = self.path(key);
        let head = conversation.head.seq;
        let next = self.events(key, tail.seq, head)?;
        if let (Some(first), Some(hash)) = (next.first(), tail.hash)
            && first.prev != hash
        {
            self.set_aside(&path)?;
            return self.write(key, conversation, head);
        }
        // Looked for before anything is written, also further on: once the event is in the file, the words must be gone.
        if self.erases(key, &next, head)? {
            return self.erase(key, conversation);
        }
        if tail.bytes == 0 {
            return self.write(key, conversation, head);
        }
        let file = File::options().append(true).open(&path).map_err(|e| failed(&path, &e))?;
        // What a crash cut comes again from the log.
        file.set_len(tail.bytes).map_err(|e| failed(&path, &e))?;
        let tail = self.write_events(key, conversation, &file, (Header::There, tail, head), next)?;
        self.remember(key, tail);
        Ok(())
    }

    /// Whether any event from these on is the conversation's own erasure.
    fn erases(&self, key: &Key, first: &[Event], head: u64) -> Result<bool, Error> {
        let erases =
            |events: &[Event]| events.iter().any(|e| e.kind == kind::ERASED && e.conversation == key.id);
        if erases(first) {
            return Ok(true);
        }
        let mut after = first.last().map_or(head, |event| event.seq);
        while after < head {
            let page = self.events(key, after, head)?;
            if erases(&page) {
                return Ok(true);
            }
            after = page.last().map_or(head, |event| event.seq);
        }
        Ok(false)
    }

    /// Writes a file anew, without the words that were erased, and before it those of its relatives: the file that
    /// holds the erasure's event comes last, so that a crash in between is noticed.
    fn erase(&mut self, key: &Key, conversation: &Conversation) -> Result<(), Error> {
        self.learn(&key.tenant)?;
        let root = self.root(key, conversation)?;
        let mut relatives: Vec<ConversationId> = self
            .roots
            .iter()
            .filter(|(fork, of)| fork.tenant == key.tenant && **of == root)
            .map(|(fork, _)| fork.id)
            .collect();
        relatives.push(root);
        for id in relatives.into_iter().filter(|id| *id != key.id) {
            let relative = Key { tenant: key.tenant.clone(), id };
            let path = self.path(&relative);
            match (file::look(&path, id)?, self.conversation(&relative)?) {
                (Found::Nothing, _) => {}
                (_, None) => self.remove(&relative)?,
                // As far as it goes already: what it erases itself has its own turn.
                (Found::Ours(tail), Some(conversation)) => self.write(&relative, &conversation, tail.seq)?,
                (Found::Other, Some(_)) => file::remove(&path)?,
            }
            file::remove_asides(&path)?;
        }
        self.write(key, conversation, conversation.head.seq)?;
        file::remove_asides(&self.path(key))
    }

    /// Finds the forks of a tenant.
    fn learn(&mut self, tenant: &TenantName) -> Result<(), Error> {
        if self.learned.contains(tenant) {
            return Ok(());
        }
        let mut after = None;
        loop {
            let query = ConversationQuery { after, limit: CATCH_UP_PAGE, ..ConversationQuery::default() };
            let page = self.shared.journal.index.conversations(tenant, &query)?;
            for conversation in &page {
                self.root(&Key { tenant: tenant.clone(), id: conversation.id }, conversation)?;
            }
            match page.last() {
                Some(last) if page.len() == CATCH_UP_PAGE => after = Some((last.updated, last.id)),
                _ => break,
            }
        }
        self.learned.insert(tenant.clone());
        Ok(())
    }

    /// The oldest ancestor, which the first event names even if the conversations in between were deleted.
    fn root(&mut self, key: &Key, conversation: &Conversation) -> Result<ConversationId, Error> {
        if conversation.parent.is_none() {
            return Ok(key.id);
        }
        if let Some(root) = self.roots.get(key) {
            return Ok(*root);
        }
        let first = self.shared.journal.log.events(key, 0, 1)?;
        let root = first.first().map_or(key.id, |event| event.conversation);
        self.roots.insert(key.clone(), root);
        Ok(root)
    }

    /// Writes the file up to a place, beside, and moves it into the old one's place.
    fn write(&mut self, key: &Key, conversation: &Conversation, head: u64) -> Result<(), Error> {
        let path = self.path(key);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
        }
        self.root(key, conversation)?;
        let beside = file::beside(&path);
        let file = File::create(&beside).map_err(|e| failed(&beside, &e))?;
        let nothing = Tail { seq: 0, hash: None, bytes: 0 };
        let first = self.events(key, 0, head)?;
        let tail = self.write_events(key, conversation, &file, (Header::Wanted, nothing, head), first)?;
        file::replace(&path, &file)?;
        self.remember(key, tail);
        Ok(())
    }

    /// Writes events behind a tail: these, and what follows them up to a place.
    fn write_events(
        &self,
        key: &Key,
        conversation: &Conversation,
        file: &File,
        (header, mut tail, head): (Header, Tail, u64),
        mut page: Vec<Event>,
    ) -> Result<Tail, Error> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut writer = Writer::new(Lines::new(&mut out, header), conversation, self.shared.now())?;
        while !page.is_empty() {
            for event in &page {
                if event.kind == kind::ASSET_ADDED
                    && let Some(sha256) = event.read::<Asset>().and_then(|asset| asset.sha256)
                {
                    match self.shared.journal.assets.get(&key.tenant, sha256) {
                        Ok(bytes) => writer.asset(sha256, &bytes)?,
                        // Erased or lost since; the event stays, as in the log.
                        Err(Error::NotFound(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                writer.event(event)?;
                (tail.seq, tail.hash) = (event.seq, Some(event.hash));
            }
            page = self.events(key, tail.seq, head)?;
        }
        drop(writer);
        out.flush().map_err(|e| failed(&self.path(key), &e))?;
        tail.bytes = file.metadata().map_err(|e| failed(&self.path(key), &e))?.len();
        Ok(tail)
    }

    /// The next events behind a place, up to another.
    fn events(&self, key: &Key, after: u64, head: u64) -> Result<Vec<Event>, Error> {
        match usize::try_from(head.saturating_sub(after)).unwrap_or(PAGE) {
            0 => Ok(Vec::new()),
            left => self.shared.journal.log.events(key, after, left.min(PAGE)),
        }
    }

    fn remember(&mut self, key: &Key, tail: Tail) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key.clone(), tail);
    }

    /// Deletes a conversation's file and what was set aside.
    fn remove(&mut self, key: &Key) -> Result<(), Error> {
        self.known.remove(key);
        self.roots.remove(key);
        let path = self.path(key);
        if !path.parent().is_some_and(Path::exists) {
            return Ok(());
        }
        file::remove(&file::beside(&path))?;
        file::remove_asides(&path)?;
        file::remove(&path)?;
        file::sync_folder(&path)
    }
}

/// Whether the file can be the beginning of this log.
fn agrees(tail: &Tail, conversation: &Conversation) -> bool {
    match tail.seq.cmp(&conversation.head.seq) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => tail.hash == Some(conversation.head.hash),
        std::cmp::Ordering::Greater => false,
    }
}
