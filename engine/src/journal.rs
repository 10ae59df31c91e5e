//! Commits: the log with its queue, the clock and ids, uploads, and each conversation as of its last commit.
//! Observers handle the consequences of a commit.

use crate::world::Source;
use crate::writer::{Job, PrepareAgain, Queue, Submitted};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::error::code;
use everturn_core::event::Event;
use everturn_core::id::{Key, TenantName};
use everturn_core::write::Write;
use everturn_store::{Assets, ChangedConversation, CheckedIndex, CheckedLog, Committed, ConversationQuery};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most conversations in memory; past this the cache starts over.
const KNOWN_MAX: usize = 4096;

/// Follows commits: live readers, open turns, mirror, indexer, compaction, generations, caches.
pub trait Observer: Send + Sync {
    /// Called by the writer before the caller gets the result, in the order of the log. Must be quick.
    fn committed(&self, commit: &Observed<'_>);

    /// Another process that shares the store may have changed a conversation.
    fn changed_elsewhere(&self, _change: &ChangedConversation) {}

    /// Another process writes to the store now, or derived rows were rebuilt: caches may be stale.
    fn forget_all(&self) {}
}

/// A commit that wrote something.
pub struct Observed<'a> {
    pub key: &'a Key,
    /// Whether the conversation was deleted.
    pub deleted: bool,
    pub committed: &'a Committed,
}

impl Observed<'_> {
    pub fn events(&self) -> &[Event] {
        &self.committed.events
    }

    /// Whether any event is of a kind.
    pub fn has(&self, is: impl Fn(&str) -> bool) -> bool {
        self.events().iter().any(|event| is(&event.kind))
    }
}

/// Bytes uploaded for a tenant.
pub type Upload = (TenantName, Hash);

/// The log and everything that a commit needs.
pub struct Journal {
    pub log: Arc<dyn CheckedLog>,
    pub index: Arc<dyn CheckedIndex>,
    pub assets: Arc<dyn Assets>,
    pub source: Source,
    pub queue: Arc<Queue>,
    read_only: bool,
    /// Whether no other process writes to the store. Only then is what is in memory current.
    pub alone: bool,
    /// Conversations as of their last commit here; saves a read before each append.
    known: Mutex<HashMap<Key, Arc<Conversation>>>,
    /// Another process has opened the store for writing since: caches may be stale.
    overtaken: AtomicBool,
    /// Uploads for appends that are not committed yet, with the number of those appends.
    uploads: Mutex<HashMap<Upload, usize>>,
    observers: Vec<Arc<dyn Observer>>,
}

impl Journal {
    pub fn new(
        log: Arc<dyn CheckedLog>,
        index: Arc<dyn CheckedIndex>,
        assets: Arc<dyn Assets>,
        source: Source,
        read_only: bool,
        observers: Vec<Arc<dyn Observer>>,
    ) -> Journal {
        Journal {
            log,
            index,
            assets,
            source,
            queue: Arc::default(),
            read_only,
            alone: true,
            known: Mutex::default(),
            overtaken: AtomicBool::new(false),
            uploads: Mutex::default(),
            observers,
        }
    }

    /// The conversation as of its last commit here, if it is in memory. Another process may have changed it since.
    pub fn recent_conversation(&self, key: &Key) -> Option<Arc<Conversation>> {
        let known = self.known.lock().get(key).cloned();
        known.filter(|known| known.expires().is_none_or(|due| due > self.source.now()))
    }

    /// The conversation as it is now.
    pub fn conversation(&self, key: &Key) -> Result<Arc<Conversation>, Error> {
        if let Some(known) = self.recent_conversation(key).filter(|_| self.alone) {
            return Ok(known);
        }
        let conversation = Arc::new(self.index.conversation(key)?);
        self.remember(key, conversation.clone());
        Ok(conversation)
    }

    /// A conversation to be shown, with the verified hash of its head.
    pub fn shown(&self, key: &Key) -> Result<Conversation, Error> {
        self.log.with_head(self.index.conversation(key)?)
    }

    /// A page of conversations to be shown. One that was deleted meanwhile is not in it. Where the last event is
    /// damaged, the head is the row's, so that one conversation does not hide the others.
    pub fn listed(&self, tenant: &TenantName, query: &ConversationQuery) -> Result<Vec<Conversation>, Error> {
        let listed = self.index.conversations(tenant, query)?.into_iter();
        let shown = listed.map(|conversation| match self.log.with_head(conversation.clone()) {
            Err(Error::NotFound(_)) => Ok(None),
            Err(Error::Corrupt(_)) => Ok(Some(conversation)),
            shown => shown.map(Some),
        });
        shown.filter_map(Result::transpose).collect()
    }

    fn remember(&self, key: &Key, conversation: Arc<Conversation>) {
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        // One that was deleted and created again begins anew.
        let is_old = |old: &Arc<Conversation>| {
            old.head.seq <= conversation.head.seq || old.created != conversation.created
        };
        let newer = known.get(key).is_none_or(is_old);
        if newer && !self.read_only && !self.overtaken.load(Ordering::SeqCst) {
            known.insert(key.clone(), conversation);
        }
    }

    /// Whether the store accepts the next write. A read-only store is always ready.
    pub fn ready(&self) -> Result<(), Error> {
        if self.read_only {
            return Ok(());
        }
        self.log.ready().inspect_err(|error| self.refused(error))
    }

    /// Refuses writes to a read-only store.
    pub fn writable(&self) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::forbidden(
                "store.opened_read_only",
                "the store was opened for reading only; open it for writing",
            ));
        }
        Ok(())
    }

    /// Once another process has taken over writing, reads come from the store.
    pub fn refused(&self, error: &Error) {
        if error.is(code::OVERTAKEN) && !self.overtaken.swap(true, Ordering::SeqCst) {
            self.forget_derived();
        }
    }

    /// Drops everything cached from derived rows.
    pub fn forget_derived(&self) {
        self.known.lock().clear();
        self.observers.iter().for_each(|observer| observer.forget_all());
    }

    /// Notifies the observers of a change by another process.
    pub fn changed_elsewhere(&self, change: &ChangedConversation) {
        // The news also has what this process wrote itself.
        let mut known = self.known.lock();
        if known
            .get(&change.key)
            .is_some_and(|known| change.deleted || change.created || known.head.seq < change.head_seq)
        {
            known.remove(&change.key);
        }
        drop(known);
        self.observers.iter().for_each(|observer| observer.changed_elsewhere(change));
    }

    /// Queues a request whose caller will wait for it. It may be prepared `again` if it is outdated when it is written.
    pub fn submit(
        self: &Arc<Self>,
        write: Write,
        uploads: Vec<Upload>,
        again: Option<PrepareAgain>,
    ) -> Result<Submitted, Error> {
        Ok(Submitted::new(self.queued(write, uploads, again)?, self.clone()))
    }

    /// Queues a request and wakes the writer thread for it.
    pub fn submit_now(&self, write: Write) -> Result<oneshot::Receiver<Result<Committed, Error>>, Error> {
        let answer = self.queued(write, Vec::new(), None)?;
        self.queue.nudge();
        Ok(answer)
    }

    fn queued(
        &self,
        write: Write,
        uploads: Vec<Upload>,
        again: Option<PrepareAgain>,
    ) -> Result<oneshot::Receiver<Result<Committed, Error>>, Error> {
        self.writable()?;
        let (done, answer) = oneshot::channel();
        match self.queue.push(Job { write, since: std::time::Instant::now(), uploads, again, done }) {
            Ok(()) => Ok(answer),
            Err(refused) => {
                let (job, error) = *refused;
                self.uploaded(&job.uploads);
                Err(error)
            }
        }
    }

    /// Notifies the observers of a commit. Called by the writer before the caller gets the result, in the order of
    /// the log.
    pub fn committed(&self, key: &Key, deleted: bool, committed: &Committed) {
        if committed.repeated {
            return;
        }
        if !committed.erased.is_empty() || deleted {
            // Titles and checkpoints may have changed, also those of forks.
            let mut known = self.known.lock();
            for place in &committed.erased {
                known.remove(&Key { tenant: key.tenant.clone(), id: place.conversation });
            }
            known.remove(key);
        }
        if !deleted {
            self.remember(key, committed.conversation.clone());
        }
        let commit = Observed { key, deleted, committed };
        self.observers.iter().for_each(|observer| observer.committed(&commit));
        self.collect(&key.tenant, &committed.released);
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<Upload, usize>> {
        self.uploads.lock()
    }

    /// Stores bytes, and protects them from collection until [`Journal::uploaded`] says that their event is
    /// committed.
    pub fn upload(&self, tenant: &TenantName, sha256: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        self.writable()?;
        *self.uploads().entry((tenant.clone(), sha256)).or_default() += 1;
        self.assets.put(tenant, sha256, bytes).inspect_err(|_| self.uploaded(&[(tenant.clone(), sha256)]))
    }

    /// Ends the protection of uploads whose appends are done.
    pub fn uploaded(&self, done: &[Upload]) {
        if done.is_empty() {
            return;
        }
        let mut uploads = self.uploads();
        for upload in done {
            if let Some(count) = uploads.get_mut(upload) {
                *count -= 1;
                if *count == 0 {
                    uploads.remove(upload);
                }
            }
        }
    }

    /// Deletes bytes that nothing refers to any more. The sweeper retries failures.
    pub fn collect(&self, tenant: &TenantName, hashes: &[Hash]) -> usize {
        let mut collected = 0;
        for sha256 in hashes {
            // Held while deleting, so that an upload of the same bytes comes before or after, not in between.
            let uploads = self.uploads();
            let wanted = uploads.contains_key(&(tenant.clone(), *sha256))
                || self.index.asset_in_use(tenant, *sha256).unwrap_or(true);
            if !wanted {
                match self.assets.delete(tenant, *sha256) {
                    Ok(()) => collected += 1,
                    Err(error) => tracing::warn!(%error, "an unused asset could not be deleted"),
                }
            }
        }
        collected
    }

    /// All events after `after`, up to `through`.
    pub fn events_between(&self, key: &Key, after: u64, through: u64) -> Result<Vec<Event>, Error> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let last = events.last().map_or(after, |event| event.seq);
            if last >= through {
                return Ok(events);
            }
            let page = self.log.events(key, last, usize::try_from(through - last).unwrap_or(usize::MAX))?;
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }
}
