//! Copying a store to another of any kind.
//!
//! Conversations are copied in the order of their creation, so that a parent is there before its forks, each in pages. What
//! the destination already has is not read again: an interrupted copy goes on where it stopped, and a later one brings
//! what is new.

use crate::backup::BackupProgress;
use crate::everturn::{Everturn, Shared};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::asset::Asset;
use everturn_core::chain;
use everturn_core::conversation::{Parent, Tombstone};
use everturn_core::error::code;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::write::{Action, Write};
use everturn_store::Member;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Bytes of bodies read into memory at once, plus at most one event.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Requests read into memory at once.
const REQUESTS_PAGE: usize = 1000;
/// Maximum number of events that a message names.
const SEQS_NAMED: usize = 5;

/// Result of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Copied {
    /// Conversations that are now in both stores, also those in `ahead`. Deleted ones and those in `not_copied` do not
    /// count.
    pub conversations: u64,
    /// Events written.
    pub events: u64,
    /// Assets copied, also those with the same bytes as another.
    pub assets: u64,
    /// Access keys written.
    pub keys: u64,
    /// Conversations that were deleted at the destination and stay so, with their forks that are not there.
    pub left_deleted: Vec<ConversationId>,
    /// Conversations that have all events of the source at the destination, and more.
    pub ahead: Vec<ConversationId>,
    /// Conversations that differ from the source's, because they could not be copied or only in part.
    pub not_copied: Vec<NotCopied>,
}

/// A conversation that could not be copied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct NotCopied {
    /// Its id.
    pub conversation: ConversationId,
    /// Its tenant.
    pub tenant: TenantName,
    /// Stable code of the error.
    pub code: &'static str,
    /// The reason, and what to do.
    pub message: String,
}

impl Everturn {
    /// Copies everything of every tenant to another store, and compares the end of each chain. Repeating it copies what is
    /// new. Conversations that cannot be copied are in `not_copied`, and the others are copied; an error means that the copy
    /// ended early. Nothing is written of conversations that both stores have continued differently. Those that only the
    /// destination has continued stay as they are there, and those that were deleted at the destination stay deleted,
    /// unless `deleted_too`.
    pub fn copy_to(
        &self,
        to: &Everturn,
        deleted_too: bool,
        progress: BackupProgress<'_>,
    ) -> Result<Copied, Error> {
        let (from, to) = (&self.inner.shared, &to.inner.shared);
        to.journal.writable()?;
        let members = from.backup.members()?;
        let total = members.iter().map(|member| member.through).sum();
        let mut copying = Copying {
            from,
            to,
            buried: HashMap::new(),
            reach: HashMap::new(),
            to_bury: BTreeMap::new(),
            deleted_too,
            known_deletions: members.iter().filter_map(|m| m.deleted.clone()).collect(),
            left: HashSet::new(),
            failed: HashSet::new(),
            copied: Copied::default(),
            read: 0,
            total,
            progress,
        };
        for member in &members {
            if let Err(error) = copying.member(member) {
                if ends_copy(&error) {
                    return Err(error.at(format!("{} of tenant {}", member.key.id, member.key.tenant)));
                }
                copying.fail(member.no, &member.key, error);
            }
            copying.read += member.through;
        }
        for (key, tombstone) in std::mem::take(&mut copying.to_bury) {
            copying.write(&key, Action::Bury { tombstone })?;
        }
        from.backup.all_keys()?.iter().try_for_each(|key| copying.key(key))?;
        copying.compare(&members)?;
        to.journal.log.settle()?;
        Ok(copying.copied)
    }
}

struct Copying<'a> {
    from: &'a Shared,
    to: &'a Shared,
    /// Tombstones of the destination, by tenant.
    buried: HashMap<TenantName, Vec<Tombstone>>,
    /// Id and highest `seq` at which each conversation can be forked.
    reach: HashMap<u64, (Key, u64)>,
    /// Conversations to delete once their forks are copied.
    to_bury: BTreeMap<Key, Tombstone>,
    deleted_too: bool,
    /// Tombstones of the source.
    known_deletions: Vec<Tombstone>,
    /// Numbers of conversations that stay deleted.
    left: HashSet<u64>,
    /// Numbers of conversations in `not_copied`.
    failed: HashSet<u64>,
    copied: Copied,
    /// Events of the conversations that are done.
    read: u64,
    total: u64,
    progress: BackupProgress<'a>,
}

/// Whether no other conversation can be copied either: a store cannot be used.
fn ends_copy(error: &Error) -> bool {
    matches!(error, Error::Busy(_) | Error::Internal(_) | Error::Forbidden(_))
        || error.code().starts_with("store.")
}

impl Copying<'_> {
    fn fail(&mut self, no: u64, key: &Key, error: Error) {
        self.failed.insert(no);
        self.copied.not_copied.push(NotCopied {
            conversation: key.id,
            tenant: key.tenant.clone(),
            code: error.code(),
            message: error.text().to_string(),
        });
    }

    fn write(&self, key: &Key, action: Action) -> Result<(), Error> {
        let answer = self.to.journal.submit_now(Write { key: key.clone(), action })?;
        answer.recv().map_err(|_| crate::writer::closed())?.map(drop)
    }

    /// Whether the destination has this tombstone already.
    fn is_buried(&mut self, member: &Member) -> Result<bool, Error> {
        let Some(tombstone) = &member.deleted else { return Ok(false) };
        Ok(self.tombstones(&member.key.tenant)?.contains(tombstone))
    }

    /// Tombstones of the destination, as of the first look.
    fn tombstones(&mut self, tenant: &TenantName) -> Result<&[Tombstone], Error> {
        if !self.buried.contains_key(tenant) {
            let there = self.to.journal.index.tombstones(tenant)?;
            self.buried.insert(tenant.clone(), there);
        }
        Ok(&self.buried[tenant])
    }

    /// Whether the conversation, or its origin, was deleted at the destination.
    fn was_deleted_there(&mut self, member: &Member) -> Result<bool, Error> {
        if self.deleted_too || member.deleted.is_some() {
            return Ok(false);
        }
        let id = member.key.id;
        let there = self.tombstones(&member.key.tenant)?.iter().find(|there| there.id == id).cloned();
        let deleted = there.is_some_and(|there| !self.known_deletions.contains(&there))
            || member.parent.is_some_and(|(no, _)| self.left.contains(&no));
        Ok(deleted && matches!(self.to.journal.index.conversation(&member.key), Err(Error::NotFound(_))))
    }

    fn member(&mut self, member: &Member) -> Result<(), Error> {
        let key = &member.key;
        let parent = match member.parent {
            None => None,
            Some((no, at_seq)) => self.reach.get(&no).and_then(|(above, reach)| {
                let at_seq = at_seq.min(*reach);
                (at_seq > 0).then_some(Parent { conversation: above.id, at_seq })
            }),
        };
        let floor = parent.map_or(0, |parent| parent.at_seq);
        self.reach.insert(member.no, (key.clone(), member.through.max(floor)));
        if self.is_buried(member)? {
            return Ok(());
        }
        if self.was_deleted_there(member)? {
            self.left.insert(member.no);
            self.copied.left_deleted.push(key.id);
            return Ok(());
        }
        if let (Some((no, _)), Some(parent)) = (member.parent, parent)
            && self.failed.contains(&no)
            && !self.both_have(&Key { id: parent.conversation, ..key.clone() }, parent.at_seq)?
        {
            return Err(Error::conflict(
                "copy.fork",
                format!(
                    "it is a fork of {} at seq {}, which was not copied up to there; copy again once that one can be copied",
                    parent.conversation, parent.at_seq
                ),
            ));
        }
        // The id belonged to a conversation that was deleted; its forks have lower numbers and exist by now.
        if let Some(tombstone) = self.to_bury.remove(key) {
            self.write(key, Action::Bury { tombstone })?;
        }
        let (mut after, mut begin) = match self.to.journal.index.conversation(key) {
            Ok(there) => (there.head.seq.max(floor), None),
            Err(Error::NotFound(_)) => (floor, Some(Action::Begin { created: member.created, parent })),
            Err(error) => return Err(error),
        };
        let mut requests_after = after;
        if after > member.through.max(floor) && member.deleted.is_none() {
            if !self.has_all(member, member.through.max(floor))? {
                return Err(diverged());
            }
            self.copied.ahead.push(key.id);
            self.copied.conversations += 1;
            return Ok(());
        }
        // The last event that both have comes along, so that the two chains are compared where they meet.
        after = after.saturating_sub(1).max(floor);
        while after < member.through {
            let page = self.from.backup.member_events(member.no, after, member.through, PAGE_BYTES)?;
            let Some(last) = page.last().map(|event| event.seq) else { break };
            let mut assets = 0;
            for event in page.iter().filter(|event| event.kind == kind::ASSET_ADDED) {
                let is_there = self.asset(key, event)?;
                assets += u64::from(is_there && event.seq > requests_after);
            }
            let new = page.iter().filter(|event| event.seq > requests_after).count() as u64;
            if begin.is_some() {
                // Of a damaged conversation, no empty one may be left.
                page.iter().try_for_each(chain::check)?;
                self.begin(key, begin.take())?;
            }
            self.write(key, Action::Restore { events: page }).map_err(|error| {
                // The advice of that error is for imports.
                if error.is(code::DIVERGED) { diverged() } else { error }
            })?;
            self.copied.events += new;
            self.copied.assets += assets;
            after = last;
            (self.progress)(self.read + after, self.total);
        }
        self.begin(key, begin)?;
        while member.deleted.is_none() {
            let requests =
                self.from.backup.requests(member.no, requests_after, member.through, REQUESTS_PAGE)?;
            let Some(last) = requests.last() else { break };
            requests_after = last.last_seq;
            self.write(key, Action::Remember { requests })?;
        }
        match &member.deleted {
            Some(tombstone) => drop(self.to_bury.insert(key.clone(), tombstone.clone())),
            None => self.copied.conversations += 1,
        }
        Ok(())
    }

    fn begin(&self, key: &Key, begin: Option<Action>) -> Result<(), Error> {
        match begin.map(|begin| self.write(key, begin)) {
            // It is there, and has expired.
            Some(Err(Error::Conflict(_))) | None => Ok(()),
            Some(written) => written,
        }
    }

    /// Whether both stores have the same event at `seq` of a conversation.
    fn both_have(&self, key: &Key, seq: u64) -> Result<bool, Error> {
        let hash = |store: &Shared| match store.journal.log.events(key, seq.saturating_sub(1), 1) {
            Ok(events) => Ok(events.first().filter(|event| event.seq == seq).map(|event| event.hash)),
            Err(error) if ends_copy(&error) => Err(error),
            // Deleted or damaged.
            Err(_) => Ok(None),
        };
        let here = hash(self.from)?;
        Ok(here.is_some() && here == hash(self.to)?)
    }

    /// Whether the destination, which has more events, has the chain of the source up to its end at `seq`.
    fn has_all(&self, member: &Member, seq: u64) -> Result<bool, Error> {
        let Some(before) = seq.checked_sub(1) else { return Ok(true) };
        let there = self.to.journal.log.events(&member.key, before, 1)?;
        Ok(there.first().is_some_and(|event| event.seq == seq && Some(event.hash) == member.hash))
    }

    /// Copies the bytes of an asset, unless they are there. Returns whether they are then.
    fn asset(&self, key: &Key, event: &Event) -> Result<bool, Error> {
        let Some(sha256) = event.read::<Asset>().and_then(|asset| asset.sha256) else { return Ok(false) };
        if self.to.journal.assets.get_range(&key.tenant, sha256, 0..1).is_ok() {
            return Ok(true);
        }
        match self.from.journal.assets.get(&key.tenant, sha256) {
            Ok(bytes) => self.to.journal.assets.put(&key.tenant, sha256, bytes).map(|()| true),
            // It was imported without its bytes.
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn key(&mut self, key: &AccessKey) -> Result<(), Error> {
        match self.to.keys.store.put_key(key) {
            Ok(()) => self.copied.keys += 1,
            // It is there; a revocation since is copied as well.
            Err(Error::Conflict(_)) => {
                if let Some(at) = key.revoked {
                    self.to.keys.store.revoke_key(&key.tenant, key.id, at)?;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Compares the end of each chain, and looks for text that was erased at the source after an earlier copy.
    fn compare(&mut self, members: &[Member]) -> Result<(), Error> {
        for member in members.iter().filter(|member| member.deleted.is_none()) {
            if self.failed.contains(&member.no) {
                continue;
            }
            match self.to.journal.index.conversation(&member.key) {
                Ok(there) if Some(there.head.hash) == member.hash => {}
                Ok(there) if self.copied.ahead.contains(&there.id) => {}
                // It has expired.
                Err(Error::NotFound(_)) => {}
                Ok(_) => self.fail_after_all(member.no, &member.key, diverged()),
                Err(error) if ends_copy(&error) => return Err(error),
                Err(error) => self.fail_after_all(member.no, &member.key, error),
            }
        }
        let living: HashMap<u64, &Key> = members
            .iter()
            .filter(|member| member.deleted.is_none())
            .map(|member| (member.no, &member.key))
            .collect();
        let mut unerased: BTreeMap<u64, Vec<Unerased>> = BTreeMap::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let page = self.from.backup.erased(at)?;
            for (no, seq) in page.erased {
                let Some(key) = living.get(&no).filter(|_| !self.failed.contains(&no)) else { continue };
                let there = match self.to.journal.log.events(key, seq - 1, 1) {
                    Ok(there) => there,
                    Err(Error::NotFound(_)) => continue,
                    Err(error) if ends_copy(&error) => return Err(error),
                    Err(error) => {
                        self.fail_after_all(no, key, error);
                        continue;
                    }
                };
                if let Some(event) = there.first().filter(|event| event.seq == seq && event.body.is_some()) {
                    let own = kind::begins_turn(&event.kind).then_some(TurnId(event.id.0));
                    unerased.entry(no).or_default().push(Unerased { seq, turn: event.turn.or(own) });
                }
            }
            from = page.next;
        }
        for (no, events) in unerased {
            if let Some(key) = living.get(&no).filter(|_| !self.failed.contains(&no)) {
                self.fail_after_all(no, key, erased_since(key, &events));
            }
        }
        Ok(())
    }

    /// As [`fail`](Self::fail), for a conversation that was counted as copied.
    fn fail_after_all(&mut self, no: u64, key: &Key, error: Error) {
        self.copied.conversations = self.copied.conversations.saturating_sub(1);
        self.copied.ahead.retain(|id| *id != key.id);
        self.fail(no, key, error);
    }
}

fn diverged() -> Error {
    Error::conflict(
        "copy.diverged",
        "it goes on differently in the two stores; copy to another store to keep both, or delete it at the destination and \
         copy with --deleted to have the source's",
    )
}

/// An event that was erased at the source only.
struct Unerased {
    seq: u64,
    turn: Option<TurnId>,
}

fn erased_since(key: &Key, events: &[Unerased]) -> Error {
    let named: Vec<String> = events.iter().take(SEQS_NAMED).map(|event| event.seq.to_string()).collect();
    let more = match events.len().saturating_sub(SEQS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let erase = match events.first() {
        Some(Unerased { turn: Some(turn), .. }) => format!("{turn}"),
        Some(Unerased { seq, .. }) => format!("{} --event {seq}", key.id),
        None => key.id.to_string(),
    };
    Error::conflict(
        "copy.erased_since",
        format!(
            "text was erased at the source after an earlier copy, and the destination still has it (seq {}{more}); delete the \
             conversation there and copy with --deleted, or, if nothing more is to be copied, erase it there too (everturn erase \
             {erase} --reason … --store … --tenant {})",
            named.join(", "),
            key.tenant
        ),
    )
}
