//! State that a chain of archives adds up to, without bodies.

use super::read::malformed;
use super::{ArchiveCounts, ArchiveHeader, Item, ParentNo, Ranges, Reader};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Tombstone;
use everturn_core::id::{Key, KeyId, TenantName};
use everturn_core::time::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

/// A full archive and the increments after it, each checked from its first byte to its last. Takes about 200 bytes of
/// memory for a conversation and 100 for an asset, and nothing for events.
#[derive(Clone, Debug, Default)]
pub struct ArchiveContents {
    /// Conversations by number.
    pub members: BTreeMap<u64, ArchivedConversation>,
    /// Assets whose bytes the chain has.
    pub assets: HashSet<(TenantName, Hash)>,
    /// References to assets: number of the conversation, and place of the event.
    pub shown: HashMap<(TenantName, Hash), Vec<(u64, u64)>>,
    /// Access keys of the last archive, and whether each is revoked.
    pub keys: BTreeMap<KeyId, bool>,
    /// Header and id of the last archive.
    pub last: Option<(ArchiveHeader, Hash)>,
    /// All archives together.
    pub counts: ArchiveCounts,
}

/// A conversation as of the last archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArchivedConversation {
    /// Tenant and id.
    pub key: Key,
    /// Time of creation.
    pub created: Timestamp,
    /// Fork point, if it is a fork.
    pub parent: Option<ParentNo>,
    /// Last own event in the chain of archives; 0 if none.
    pub through: u64,
    /// Hash of that event.
    pub hash: Option<Hash>,
    /// Events without a body.
    pub erased: Ranges,
    /// Tombstone of a deleted conversation, and the last own event that its forks need.
    pub deleted: Option<(Tombstone, u64)>,
}

impl ArchivedConversation {
    /// Whether the event at this place is still there and still has its body.
    pub fn has_body(&self, seq: u64) -> bool {
        !self.erased.contains(seq) && self.has(seq)
    }

    /// Whether the event at this place is still there.
    pub fn has(&self, seq: u64) -> bool {
        seq <= self.deleted.as_ref().map_or(self.through, |(_, kept)| *kept)
    }
}

impl ArchiveContents {
    /// Reads the next archive to its end. It must follow the one before it; the first one must be full. On an error
    /// nothing of it may be used.
    pub fn add(&mut self, source: impl Read) -> Result<(), Error> {
        let mut reader = Reader::new(source)?;
        let header = reader.header().clone();
        self.check_order(&header)?;
        let mut current: Option<u64> = None;
        // Each archive has all keys of its time.
        self.keys.clear();
        while let Some(item) = reader.next_item()? {
            match item {
                Item::Block(block) => {
                    if current.replace(block.no).is_some() {
                        return Err(malformed("a conversation does not end"));
                    }
                    let key = Key { tenant: block.tenant, id: block.id };
                    let known = self.members.entry(block.no).or_insert(ArchivedConversation {
                        key: key.clone(),
                        created: block.created,
                        parent: block.parent,
                        through: 0,
                        hash: None,
                        erased: Ranges::default(),
                        deleted: None,
                    });
                    if known.key != key || known.parent != block.parent || known.through != block.after {
                        return Err(malformed("a conversation does not go on where it ended"));
                    }
                }
                Item::Through(through) => {
                    let no = current.take().ok_or_else(|| malformed("a record is out of place"))?;
                    if let Some(member) = self.members.get_mut(&no) {
                        member.through = through.seq;
                        member.hash = through.hash;
                        member.erased.extend(&through.erased);
                    }
                }
                Item::Asset(asset, bytes) => {
                    let no = current.ok_or_else(|| malformed("a record is out of place"))?;
                    let member =
                        self.members.get(&no).ok_or_else(|| malformed("a record is out of place"))?;
                    let place = (member.key.tenant.clone(), asset.sha256);
                    if bytes.is_some() {
                        self.assets.insert(place.clone());
                    }
                    self.shown.entry(place).or_default().push((no, asset.seq));
                }
                Item::Deleted(deleted) => {
                    let member = self.members.get_mut(&deleted.no);
                    let member = member.ok_or_else(|| malformed("a tombstone is of no conversation"))?;
                    member.deleted = Some((deleted.tombstone, deleted.through));
                }
                Item::Erased(erased) => {
                    let member = self.members.get_mut(&erased.no);
                    let member = member.ok_or_else(|| malformed("an erasure is of no conversation"))?;
                    member.erased.extend(&erased.seqs);
                }
                Item::Event(_) | Item::Request(_) | Item::Text(_) if current.is_none() => {
                    return Err(malformed("a record is out of place"));
                }
                Item::Key(key) => {
                    self.keys.insert(key.id, key.revoked.is_some());
                }
                Item::Event(_) | Item::Request(_) | Item::Text(_) | Item::Loose(_) => {}
            }
        }
        let counts = *reader.counts();
        let id = reader.finish()?;
        if current.is_some() {
            return Err(malformed("a conversation does not end"));
        }
        self.counts.conversations = self.members.len() as u64;
        self.counts.events += counts.events;
        self.counts.assets += counts.assets;
        self.counts.deleted = self.members.values().filter(|member| member.deleted.is_some()).count() as u64;
        self.counts.erased = self.members.values().map(|member| member.erased.len()).sum();
        self.counts.requests += counts.requests;
        self.counts.keys = counts.keys;
        // Each archive has those of its time.
        self.counts.loose = counts.loose;
        self.last = Some((header, id));
        Ok(())
    }

    fn check_order(&self, header: &ArchiveHeader) -> Result<(), Error> {
        match (&self.last, header.follows) {
            (None, None) => Ok(()),
            (None, Some(before)) => Err(Error::invalid(
                "backup.incomplete",
                format!(
                    "this is archive {} of its backup and needs the archives before it, the last of them {before}; name them too, the full one first",
                    header.number
                ),
            )),
            (Some(_), None) => Err(Error::invalid(
                "backup.order",
                "a full archive begins a backup anew; name it first, and only its own increments after it",
            )),
            (Some((_, id)), Some(before)) if *id == before => Ok(()),
            (Some((last, id)), Some(before)) => Err(Error::invalid(
                "backup.order",
                format!(
                    "archive {} of its backup follows the archive {before}, not archive {} ({id}): one between them is missing, the order is wrong, or it is of another backup",
                    header.number, last.number
                ),
            )),
        }
    }
}
