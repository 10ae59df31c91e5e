//! Expired conversations are absent for every reader the moment their time to live has passed, and not only once they are
//! swept.

use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::world::World;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Tombstone};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::write::{Learned, Write, absent, absent_turn};
use everturn_store::{
    AssetIndex, ChangedConversation, CheckedIndex, CheckedLog, CommitProgress, Committed, ConversationIndex,
    ConversationQuery, FoldCache, Log, Maintenance, PendingCommit, Provenance, StoreProblem, StoredTurn,
    TenantUsage, TurnIndex, TurnQuery, Unwritten, WrittenPage,
};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// A store without its expired conversations.
pub struct Unexpired {
    log: Arc<dyn CheckedLog>,
    index: Arc<dyn CheckedIndex>,
    world: Arc<dyn World>,
    /// No conversation expires before this time: until then, none has to be looked up. `None` beside a writer, which may
    /// set a time to live at any moment.
    nearest: Option<Mutex<Timestamp>>,
}

impl Unexpired {
    pub fn new(
        log: Arc<dyn CheckedLog>,
        index: Arc<dyn CheckedIndex>,
        world: Arc<dyn World>,
        read_only: bool,
    ) -> Unexpired {
        let nearest = (!read_only).then(|| Mutex::new(first_due(&*index)));
        Unexpired { log, index, world, nearest }
    }

    /// Notes that a conversation expires then.
    fn note(&self, due: Timestamp) {
        if let Some(nearest) = &self.nearest {
            let mut nearest = nearest.lock();
            *nearest = due.min(*nearest);
        }
    }

    /// Notes when the conversations of a commit expire.
    fn noted<E>(&self, committed: Vec<Result<Committed, E>>) -> Vec<Result<Committed, E>> {
        let due = committed.iter().flatten().filter_map(|committed| committed.conversation.expires());
        due.min().into_iter().for_each(|due| self.note(due));
        committed
    }

    fn is_expired(&self, conversation: &Conversation) -> bool {
        conversation.expires().is_some_and(|due| due <= self.world.now())
    }

    /// Whether a conversation has expired. One that is absent or damaged has not: reading it reports the problem.
    fn has_expired(&self, key: &Key) -> bool {
        let none_has = self.nearest.as_ref().is_some_and(|nearest| self.world.now() < *nearest.lock());
        !none_has && self.index.conversation(key).is_ok_and(|conversation| self.is_expired(&conversation))
    }

    /// Refuses an expired conversation.
    fn check(&self, key: &Key) -> Result<(), Error> {
        if self.has_expired(key) { Err(absent(key)) } else { Ok(()) }
    }
}

/// The time at which the next conversation expires, so that its deletion is told when it is due.
#[derive(Default)]
pub struct Expiry {
    /// Not later than the next time: a change of the conversation may have moved it.
    next: Mutex<Option<Timestamp>>,
    changed: Condvar,
    /// Conversations deleted since a sweep last reported them. Held while more are deleted.
    pub deleted: Mutex<usize>,
}

impl Observer for Expiry {
    fn committed(&self, commit: &Observed<'_>) {
        let due = commit.committed.conversation.expires().filter(|_| !commit.deleted);
        due.into_iter().for_each(|due| self.note(due));
    }

    fn changed_elsewhere(&self, change: &ChangedConversation) {
        change.expires.filter(|_| !change.deleted).into_iter().for_each(|due| self.note(due));
    }
}

/// Only for changes by other processes: [`Log::commit`] sees changes by this process first.
impl Observer for Unexpired {
    fn committed(&self, _: &Observed<'_>) {}

    fn changed_elsewhere(&self, change: &ChangedConversation) {
        change.expires.into_iter().for_each(|due| self.note(due));
    }
}

impl Expiry {
    fn note(&self, due: Timestamp) {
        let mut next = self.next.lock();
        if next.is_none_or(|next| due < next) {
            *next = Some(due);
            self.changed.notify_all();
        }
    }

    /// Waits until a conversation may have expired, at most `patience` long, or until the store closes.
    pub fn wait(&self, shared: &Shared, patience: Duration) {
        let index = &*shared.journal.index;
        let now = shared.now();
        let due = match first_due(index) {
            // It has just expired, or cannot be read or deleted.
            due if due <= now => now.plus_s(1),
            due => due,
        };
        let mut next = self.next.lock();
        let due = next.take().unwrap_or(due).min(due);
        *next = Some(due);
        let left = Duration::from_micros(u64::try_from(due.0.saturating_sub(now.0)).unwrap_or(0));
        if !shared.pauses.ended() {
            self.changed.wait_for(&mut next, left.min(patience));
        }
        *next = None;
    }

    /// Ends the wait.
    pub fn wake(&self) {
        drop(self.next.lock());
        self.changed.notify_all();
    }
}

/// The time at which the first conversation expires. If that cannot be read, every one has to be looked up.
fn first_due(index: &dyn CheckedIndex) -> Timestamp {
    let never = Timestamp(i64::MAX);
    let first = index.expired(never, 1).and_then(|mut first| match first.pop() {
        Some(key) => index.conversation(&key).map(|first| first.expires().unwrap_or(never)),
        None => Ok(never),
    });
    first.unwrap_or(Timestamp(i64::MIN))
}

impl Log for Unexpired {
    fn commit(&self, batch: Vec<Write>) -> Vec<Result<Committed, Error>> {
        self.noted(self.log.commit(batch))
    }

    fn commit_free(&self, batch: Vec<Write>) -> Vec<Result<Committed, Unwritten>> {
        self.noted(self.log.commit_free(batch))
    }

    fn begin_commit(&self, batch: Vec<Write>) -> Box<dyn PendingCommit + '_> {
        Box::new(Noting { commit: self.log.begin_commit(batch), unexpired: self })
    }

    fn settle(&self) -> Result<(), Error> {
        self.log.settle()
    }

    fn ready(&self) -> Result<(), Error> {
        self.log.ready()
    }

    fn stored_events(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        self.check(key)?;
        self.log.stored_events(key, after, limit)
    }

    fn had_body(&self, key: &Key, seq: u64) -> Result<bool, Error> {
        self.log.had_body(key, seq)
    }

    fn open_text(&self, key: &Key, turn: TurnId) -> Result<String, Error> {
        self.log.open_text(key, turn)
    }
}

/// A commit whose conversations are noted once it is done.
struct Noting<'a> {
    commit: Box<dyn PendingCommit + 'a>,
    unexpired: &'a Unexpired,
}

impl PendingCommit for Noting<'_> {
    fn progress(&mut self, waker: &Waker) -> CommitProgress {
        self.commit.progress(waker)
    }

    fn finish(self: Box<Self>, waiting: &HashSet<Key>) -> Vec<Result<Committed, Unwritten>> {
        self.unexpired.noted(self.commit.finish(waiting))
    }
}

impl ConversationIndex for Unexpired {
    fn conversation(&self, key: &Key) -> Result<Conversation, Error> {
        let conversation = self.index.conversation(key)?;
        if self.is_expired(&conversation) { Err(absent(key)) } else { Ok(conversation) }
    }

    fn conversations(
        &self,
        tenant: &TenantName,
        query: &ConversationQuery,
    ) -> Result<Vec<Conversation>, Error> {
        let mut query = query.clone();
        let mut found = Vec::new();
        loop {
            let page = self.index.conversations(tenant, &query)?;
            let is_last = page.len() < query.limit;
            query.after = page.last().map(|last| query.order.position(last)).or(query.after);
            found.extend(page.into_iter().filter(|conversation| !self.is_expired(conversation)));
            if is_last || found.len() >= query.limit {
                found.truncate(query.limit);
                return Ok(found);
            }
        }
    }

    fn starting_with(
        &self,
        tenant: &TenantName,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, Error> {
        let mut found = self.index.starting_with(tenant, prefix, limit)?;
        found.retain(|id| !self.has_expired(&Key { tenant: tenant.clone(), id: *id }));
        Ok(found)
    }

    fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error> {
        let expired = self.index.expired(now, limit)?;
        if let Some(nearest) = self.nearest.as_ref().filter(|_| expired.is_empty()) {
            // Held while the store is asked: what is committed meanwhile lowers it afterwards.
            let mut nearest = nearest.lock();
            *nearest = first_due(&*self.index);
        }
        Ok(expired)
    }

    fn tombstones(&self, tenant: &TenantName) -> Result<Vec<Tombstone>, Error> {
        self.index.tombstones(tenant)
    }

    fn tenants(&self) -> Result<Vec<TenantName>, Error> {
        self.index.tenants()
    }

    fn usage(&self, tenant: &TenantName) -> Result<TenantUsage, Error> {
        self.index.usage(tenant)
    }
}

impl TurnIndex for Unexpired {
    fn stored_turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<StoredTurn>, Error> {
        self.check(key)?;
        self.index.stored_turns(key, query)
    }

    fn stored_turn(&self, tenant: &TenantName, id: TurnId) -> Result<StoredTurn, Error> {
        let turn = self.index.stored_turn(tenant, id)?;
        match self.has_expired(&Key { tenant: tenant.clone(), id: turn.conversation }) {
            true => Err(absent_turn(id)),
            false => Ok(turn),
        }
    }

    fn stored_turn_in(&self, key: &Key, id: TurnId) -> Result<StoredTurn, Error> {
        self.check(key)?;
        self.index.stored_turn_in(key, id)
    }

    fn fallen_after(&self, key: &Key, seq: u64) -> Result<u64, Error> {
        self.index.fallen_after(key, seq)
    }

    fn open_turns(&self) -> Result<Vec<(Key, TurnId)>, Error> {
        self.index.open_turns()
    }
}

impl AssetIndex for Unexpired {
    fn stored_assets(&self, key: &Key) -> Result<Vec<Event>, Error> {
        self.check(key)?;
        self.index.stored_assets(key)
    }

    fn stored_asset(&self, key: &Key, id: &str) -> Result<Option<Event>, Error> {
        self.check(key)?;
        self.index.stored_asset(key, id)
    }

    fn stored_assets_with_id(
        &self,
        tenant: &TenantName,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Event)>, Error> {
        let mut found = self.index.stored_assets_with_id(tenant, id, limit)?;
        found.retain(|(of, _)| !self.has_expired(&Key { tenant: tenant.clone(), id: *of }));
        Ok(found)
    }

    fn asset_in_use(&self, tenant: &TenantName, sha256: Hash) -> Result<bool, Error> {
        self.index.asset_in_use(tenant, sha256)
    }
}

impl Provenance for Unexpired {
    fn fact(&self, tenant: &TenantName, id: FactId) -> Result<Option<ConversationId>, Error> {
        match self.index.fact(tenant, id)? {
            Some(of) if self.has_expired(&Key { tenant: tenant.clone(), id: of }) => Ok(None),
            found => Ok(found),
        }
    }

    fn learned_from(&self, tenant: &TenantName, turn: TurnId) -> Result<Vec<Learned>, Error> {
        self.index.learned_from(tenant, turn)
    }

    fn echoes(&self, key: &Key, turn: TurnId) -> Result<Vec<Event>, Error> {
        self.index.echoes(key, turn)
    }

    fn written_by(&self, tenant: &TenantName, actor: &str, after: u64) -> Result<Option<WrittenPage>, Error> {
        self.index.written_by(tenant, actor, after)
    }

    fn erasures(&self, tenant: &TenantName) -> Result<u64, Error> {
        self.index.erasures(tenant)
    }
}

impl FoldCache for Unexpired {
    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<(u64, Raw)>, Error> {
        self.index.fold(key, at_or_before)
    }

    fn keep_fold(&self, key: &Key, seq: u64, fold: &Raw) -> Result<(), Error> {
        self.index.keep_fold(key, seq, fold)
    }
}

impl Maintenance for Unexpired {
    fn check(&self) -> Result<Vec<StoreProblem>, Error> {
        self.index.check()
    }

    fn rebuild(&self) -> Result<(), Error> {
        self.index.rebuild()
    }

    fn compact(&self) -> Result<(), Error> {
        self.index.compact()
    }
}
