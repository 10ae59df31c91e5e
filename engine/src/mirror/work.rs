//! Work of the mirror's thread: bringing files up to date with the log.

use super::Change;
use super::file::{self, Header, Lines, MirroredFile, Tail, failed};
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

/// Conversations checked between two looks at the queue.
const CATCH_UP_PAGE: usize = 100;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 256 * 1024;

/// Most file ends in memory; past this the cache starts over, and the files are read again.
const KNOWN_MAX: usize = 4096;

/// State of the thread.
pub struct Work<'a> {
    shared: &'a Shared,
    folder: &'a Path,
    /// Ends of files.
    known: HashMap<Key, Tail>,
    /// Oldest ancestor of each fork that has a file: forks of the same ancestor may hold the same text.
    roots: HashMap<Key, ConversationId>,
    /// Tenants whose forks are all in `roots`.
    learned: HashSet<TenantName>,
    /// Tenants that are or were brought up to date.
    seen: HashSet<TenantName>,
    /// Remaining steps.
    steps: VecDeque<CatchUp>,
}

/// A step of bringing a tenant's files up to date.
enum CatchUp {
    /// Conversations after this one in the listing.
    Page(TenantName, Option<(Timestamp, ConversationId)>),
    /// Files of deleted conversations.
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
            // Those tenants are found with their next commit.
            Err(error) => tracing::warn!(%error, "the mirror cannot list the tenants"),
        }
        work
    }

    fn see(&mut self, tenant: &TenantName) {
        if self.seen.insert(tenant.clone()) {
            self.steps.push_back(CatchUp::Page(tenant.clone(), None));
        }
    }

    /// Whether every file was checked since the start.
    pub fn is_caught_up(&self) -> bool {
        self.steps.is_empty()
    }

    /// Takes one step of bringing files up to date. Returns failures: of a conversation, or of the step, which is
    /// repeated.
    pub fn catch_up(&mut self) -> Vec<(Option<Key>, Error)> {
        match self.steps.pop_front() {
            None => Vec::new(),
            Some(CatchUp::Page(tenant, after)) => match self.page(&tenant, after) {
                Ok(failed) => failed,
                Err(error) => {
                    self.steps.push_back(CatchUp::Page(tenant, after));
                    vec![(None, error)]
                }
            },
            Some(CatchUp::Tidy(tenant)) => match self.tidy(&tenant) {
                Ok(()) => Vec::new(),
                Err(error) => {
                    self.steps.push_back(CatchUp::Tidy(tenant));
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
                CatchUp::Page(tenant.clone(), Some(query.order.position(last)))
            }
            _ => CatchUp::Tidy(tenant.clone()),
        });
        Ok(failed)
    }

    /// Deletes the files of deleted conversations, and what a crash left of a file being rewritten. A file of a
    /// conversation unknown to the store may be the only copy, and stays.
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

    /// Brings one conversation's file up to date with its log.
    pub fn apply(&mut self, key: &Key, change: Change) -> Result<(), Error> {
        self.see(&key.tenant);
        let known = self.known.remove(key);
        if change.deleted {
            self.remove(key)?;
        }
        // The head bounds what is read below. Everything erased up to it has left the log by now; a later erasure is
        // still to come, and its event is missing from the file even after a crash.
        let Some(conversation) = self.conversation(key)? else { return Ok(()) };
        if change.erased {
            return self.erase(key, &conversation);
        }
        let path = self.path(key);
        let found = match known.filter(|tail| fs::metadata(&path).is_ok_and(|file| file.len() == tail.bytes))
        {
            Some(tail) => MirroredFile::Ours(tail),
            None => file::look(&path, key.id)?,
        };
        match found {
            MirroredFile::Ours(tail) if agrees(&tail, &conversation) => self.append(key, &conversation, tail),
            MirroredFile::Nothing => self.append(key, &conversation, Tail { seq: 0, hash: None, bytes: 0 }),
            MirroredFile::Ours(_) | MirroredFile::Other => {
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
            "the mirror's file contradicts the log; it was set aside and written again"
        );
        Ok(())
    }

    /// Appends the events that the file lacks.
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
        // Checked before anything is written, also further on: once the erasure's event is in the file, the text must
        // be gone.
        if self.erases(key, &next, head)? {
            return self.erase(key, conversation);
        }
        if tail.bytes == 0 {
            return self.write(key, conversation, head);
        }
        let file = File::options().append(true).open(&path).map_err(|e| failed(&path, &e))?;
        // The part cut by a crash is written again from the log.
        file.set_len(tail.bytes).map_err(|e| failed(&path, &e))?;
        let tail = self.write_events(key, conversation, &file, (Header::There, tail, head), next)?;
        self.remember(key, tail);
        Ok(())
    }

    /// Whether any event from these on is an erasure in this conversation.
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

    /// Rewrites a file without the erased text, after those of related conversations: the file with the erasure's
    /// event comes last, so that a crash in between is noticed.
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
                (MirroredFile::Nothing, _) => {}
                (_, None) => self.remove(&relative)?,
                // Only up to its current end: its own erasures are handled separately.
                (MirroredFile::Ours(tail), Some(conversation)) => {
                    self.write(&relative, &conversation, tail.seq)?
                }
                (MirroredFile::Other, Some(_)) => file::remove(&path)?,
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
                Some(last) if page.len() == CATCH_UP_PAGE => after = Some(query.order.position(last)),
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

    /// Writes the file up to `head` beside the old one, and replaces that.
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

    /// Writes events after a tail: these, and the following ones up to a `seq`.
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

    /// The next events after `after`, up to `head`.
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

    /// Deletes a conversation's file and those that were set aside.
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
