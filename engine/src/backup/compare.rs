//! Comparison of a store with a backup.

use super::{BackupProgress, contents, open};
use crate::erasing::erasures::{Erasures, Gone};
use crate::everturn::Shared;
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::chain::{body_hash, envelope_hash};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_formats::archive::{ArchiveContents, Block, Item, Reader};
use everturn_store::Member;
use serde::Serialize;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;

/// Bytes of bodies read into memory at once, plus at most one event.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Comparison {
    /// Conversations of the backup that the store has.
    pub conversations: u64,
    /// Conversations that were deleted since, with a tombstone.
    pub deleted: u64,
    /// Events of the backup that the store has.
    pub events: u64,
    /// Events whose bodies were erased since, with a record of the erasure.
    pub erased: u64,
    /// Assets whose bytes the store has.
    pub assets: u64,
    /// Access keys that the store has.
    pub keys: u64,
    /// Access keys that were revoked since.
    pub revoked: u64,
    /// Missing or different parts; empty if the store has everything.
    pub differences: Vec<Difference>,
}

/// A difference between the store and the backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The tenant.
    pub tenant: TenantName,
    /// The conversation, if the difference is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationId>,
    /// Description of the difference.
    pub problem: String,
}

pub fn compare(
    shared: &Shared,
    archives: &[PathBuf],
    progress: BackupProgress<'_>,
) -> Result<Comparison, Error> {
    let contents = contents(archives)?;
    let members = shared.backup.members()?;
    let mut comparing = Comparing {
        shared,
        contents: &contents,
        found: find(&members, &contents),
        lost: HashSet::new(),
        erasures: None,
        comparison: Comparison::default(),
    };
    drop(members);
    comparing.conversations();
    let mut done = 0;
    for (place, path) in archives.iter().enumerate() {
        let mut reader = Reader::new(open(path)?)?;
        let mut page = None;
        while let Some(item) = reader.next_item().map_err(|error| error.at(path.display()))? {
            match item {
                Item::Block(block) => page = comparing.page(block),
                Item::Event(line) => {
                    done += 1;
                    if let Some(page) = &mut page {
                        comparing.event(page, &line.event()?)?;
                    }
                    if done % 1000 == 0 {
                        progress(done, contents.counts.events);
                    }
                }
                Item::Asset(asset, Some(_)) => {
                    if let Some(page) = &page {
                        comparing.asset(&page.block, asset.sha256)?;
                    }
                }
                Item::Through(_) => page = None,
                Item::Key(key) if place + 1 == archives.len() => comparing.key(&key)?,
                _ => {}
            }
        }
    }
    Ok(comparing.comparison)
}

/// Conversations of the store, by their number in the backup.
fn find(members: &[Member], contents: &ArchiveContents) -> HashMap<u64, Member> {
    let mut by_key: HashMap<&Key, &Member> = HashMap::new();
    for member in members {
        // The newest one, unless it is deleted and an older one is not.
        let known = by_key.get(&member.key);
        if known.is_none_or(|known| member.deleted.is_none() || known.deleted.is_some()) {
            by_key.insert(&member.key, member);
        }
    }
    let numbered =
        |no: u64| members.binary_search_by_key(&no, |member| member.no).ok().map(|place| &members[place]);
    contents
        .members
        .iter()
        .filter_map(|(no, wanted)| {
            let same = numbered(*no).filter(|member| member.key == wanted.key);
            Some((*no, same.or_else(|| by_key.get(&wanted.key).copied())?.clone()))
        })
        .collect()
}

struct Comparing<'a> {
    shared: &'a Shared,
    contents: &'a ArchiveContents,
    found: HashMap<u64, Member>,
    /// Conversations reported already.
    lost: HashSet<u64>,
    /// Loaded when the first body is missing.
    erasures: Option<Erasures<'a>>,
    comparison: Comparison,
}

/// Events of the store that belong to one block.
struct Page {
    block: Block,
    no: u64,
    events: VecDeque<Event>,
}

impl Comparing<'_> {
    fn differences(&mut self, tenant: &TenantName, conversation: Option<ConversationId>, problem: String) {
        self.comparison.differences.push(Difference { tenant: tenant.clone(), conversation, problem });
    }

    /// Checks that every conversation of the backup exists.
    fn conversations(&mut self) {
        let contents = self.contents;
        for (no, wanted) in contents.members.iter().filter(|(_, member)| member.deleted.is_none()) {
            match self.found.get(no).map(|member| (member.deleted.is_some(), member.through)) {
                None => {
                    self.lost.insert(*no);
                    let events = if wanted.through == 1 { "event" } else { "events" };
                    let text = format!("is missing, with {} {events}, and was not deleted", wanted.through);
                    self.differences(&wanted.key.tenant, Some(wanted.key.id), text);
                }
                Some((true, _)) => {
                    self.lost.insert(*no);
                    self.comparison.deleted += 1;
                }
                Some((false, through)) => {
                    self.comparison.conversations += 1;
                    if through < wanted.through {
                        let text =
                            format!("is cut: it ends at seq {through}, the backup has {}", wanted.through);
                        self.differences(&wanted.key.tenant, Some(wanted.key.id), text);
                    }
                }
            }
        }
    }

    fn page(&self, block: Block) -> Option<Page> {
        let deleted = self.contents.members.get(&block.no)?.deleted.is_some();
        if deleted || self.lost.contains(&block.no) {
            return None;
        }
        let no = self.found.get(&block.no)?.no;
        Some(Page { block, no, events: VecDeque::new() })
    }

    /// Compares one event with the store's.
    fn event(&mut self, page: &mut Page, wanted: &Event) -> Result<(), Error> {
        let no = page.block.no;
        if self.lost.contains(&no) {
            return Ok(());
        }
        if page.events.is_empty() {
            let through = self.contents.members.get(&no).map_or(0, |member| member.through);
            page.events = self
                .shared
                .backup
                .member_events(page.no, wanted.seq.saturating_sub(1), through, PAGE_BYTES)?
                .into();
        }
        let (tenant, id) = (page.block.tenant.clone(), page.block.id);
        let Some(found) = page.events.pop_front() else {
            // The cut was reported already.
            self.lost.insert(no);
            return Ok(());
        };
        let same = found.hash == wanted.hash && envelope_hash(&found) == wanted.hash;
        if !same {
            self.lost.insert(no);
            let text = format!("was rewritten: it differs from seq {} on", wanted.seq);
            self.differences(&tenant, Some(id), text);
            return Ok(());
        }
        let expected = wanted.body.is_some()
            && self.contents.members.get(&no).is_some_and(|member| member.has_body(wanted.seq));
        match &found.body {
            Some(body) if body_hash(body) != found.body_hash => {
                let text = format!("seq {}: its body is not the one that was written", wanted.seq);
                self.differences(&tenant, Some(id), text);
            }
            Some(_) if wanted.body.is_some() && !expected => {
                let text = format!("seq {}: was erased, and its body is back", wanted.seq);
                self.differences(&tenant, Some(id), text);
            }
            None if expected => match self.unexplained(page.no, &found)? {
                Some(gone) => self.differences(&tenant, Some(id), gone.text()),
                None => self.comparison.erased += 1,
            },
            _ => {}
        }
        self.comparison.events += 1;
        Ok(())
    }

    /// The event, if its body is missing and no recorded erasure explains it.
    fn unexplained(&mut self, no: u64, event: &Event) -> Result<Option<Gone>, Error> {
        let erasures = match &mut self.erasures {
            Some(erasures) => erasures,
            none => none.insert(Erasures::of(self.shared)?),
        };
        let Some(gone) = Gone::of(event) else { return Ok(None) };
        Ok(if erasures.explain(no, &gone)? { None } else { Some(gone) })
    }

    fn key(&mut self, wanted: &AccessKey) -> Result<(), Error> {
        let found = self.shared.keys.store.key(wanted.id)?.filter(|found| found.tenant == wanted.tenant);
        let problem = match found.map(|found| (found.secret == wanted.secret, found.revoked.is_some())) {
            None => "is missing",
            Some((false, _)) => "has another secret",
            Some((true, false)) if wanted.revoked.is_some() => "was revoked, and is valid again",
            Some((true, revoked)) => {
                self.comparison.keys += 1;
                self.comparison.revoked += u64::from(revoked && wanted.revoked.is_none());
                return Ok(());
            }
        };
        self.differences(&wanted.tenant, None, format!("the access key {} {problem}", wanted.id));
        Ok(())
    }

    fn asset(&mut self, block: &Block, sha256: everturn_core::chain::Hash) -> Result<(), Error> {
        let tenant = &block.tenant;
        // Bytes that the store no longer refers to were deleted, not lost.
        if !self.shared.journal.index.asset_in_use(tenant, sha256)? {
            return Ok(());
        }
        match self.shared.journal.assets.get(tenant, sha256) {
            Ok(_) => self.comparison.assets += 1,
            Err(error @ (Error::NotFound(_) | Error::Corrupt(_))) => {
                self.differences(tenant, Some(block.id), error.text().to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
