//! Recorded erasures: a body may be missing because a `turn.erased` event records it.
//!
//! A body that is missing without a record was lost, not erased.

use crate::everturn::Shared;
use everturn_core::Error;
use everturn_core::event::{Event, kind};
use everturn_core::id::{Key, TurnId};
use everturn_core::write::{ErasedBody, EventAddress};
use everturn_store::Member;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Bytes of bodies read into memory at once, plus at most one event.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Recorded erasures.
#[derive(Default)]
pub struct Recorded {
    turns: HashSet<TurnId>,
    places: HashSet<EventAddress>,
    /// Whether there is any record.
    any: bool,
    /// Whether records may be missing, because their conversation was deleted.
    incomplete: bool,
}

/// An event without a body.
pub struct Gone {
    pub place: EventAddress,
    pub kind: String,
    pub turn: Option<TurnId>,
}

impl Gone {
    pub fn of(event: &Event) -> Option<Gone> {
        let place = EventAddress { conversation: event.conversation, seq: event.seq };
        event.body.is_none().then(|| Gone { place, kind: event.kind.clone(), turn: event.turn })
    }

    /// Whether it is erased with turns that it does not name: a summary, a fact, an asset.
    fn is_derived(&self) -> bool {
        kind::is_fact(&self.kind)
            || matches!(self.kind.as_str(), kind::COMPACTION | kind::PROJECTION | kind::ASSET_ADDED)
    }

    pub fn text(&self) -> String {
        format!("seq {}: its body is gone, and no erasure is recorded", self.place.seq)
    }
}

impl Recorded {
    /// Adds the erasures that an event records, if any.
    pub fn add(&mut self, event: &Event) {
        if event.kind != kind::ERASED {
            return;
        }
        self.any = true;
        match event.read::<ErasedBody>() {
            Some(body) => {
                self.turns.extend(body.turns);
                self.places.extend(body.events);
            }
            None => self.incomplete = true,
        }
    }

    /// Whether a recorded erasure explains the missing body.
    pub fn explains(&self, gone: &Gone) -> bool {
        self.incomplete
            || self.places.contains(&gone.place)
            || gone.turn.is_some_and(|turn| self.turns.contains(&turn))
            || gone.is_derived() && self.any
    }

    /// Turns that were erased according to these records.
    pub fn turns(&self) -> impl Iterator<Item = TurnId> {
        self.turns.iter().copied()
    }

    /// Adds the erasures that a conversation records.
    fn add_member(&mut self, shared: &Shared, member: &Member) -> Result<(), Error> {
        self.incomplete |= member.deleted.is_some();
        let mut after = 0;
        while after < member.through {
            let page = match shared.backup.member_events(member.no, after, member.through, PAGE_BYTES) {
                Ok(page) => page,
                // An unreadable event records nothing.
                Err(Error::Corrupt(_)) => break,
                Err(error) => return Err(error),
            };
            let Some(last) = page.last() else { break };
            after = last.seq;
            page.iter().for_each(|event| self.add(event));
        }
        Ok(())
    }
}

/// Erasures recorded in all conversations, read on demand. An erasure recorded in a fork may reach an ancestor, or
/// the other way round, so conversations that share events are looked at together.
pub struct Erasures<'a> {
    shared: &'a Shared,
    members: Vec<Member>,
    /// The oldest ancestor of each conversation, by their numbers.
    roots: HashMap<u64, u64>,
    /// By oldest ancestor.
    recorded: HashMap<u64, Recorded>,
}

impl<'a> Erasures<'a> {
    pub fn of(shared: &'a Shared) -> Result<Erasures<'a>, Error> {
        let members = shared.backup.members()?;
        let mut roots = HashMap::new();
        // A fork has a higher number than its parent.
        for member in &members {
            let root = member.parent.and_then(|(parent, _)| roots.get(&parent).copied());
            roots.insert(member.no, root.unwrap_or(member.no));
        }
        Ok(Erasures { shared, members, roots, recorded: HashMap::new() })
    }

    /// Whether a recorded erasure explains a missing body of a conversation.
    pub fn explain_in(&mut self, key: &Key, gone: &Gone) -> Result<bool, Error> {
        let living = |member: &&Member| member.key == *key && member.deleted.is_none();
        match self.members.iter().find(living).map(|member| member.no) {
            Some(no) => self.explain(no, gone),
            None => Ok(false),
        }
    }

    /// The same, by the conversation's number.
    pub fn explain(&mut self, no: u64, gone: &Gone) -> Result<bool, Error> {
        let Some(root) = self.roots.get(&no).copied() else { return Ok(false) };
        if self.recorded(root)?.explains(gone) {
            return Ok(true);
        }
        // A correction is erased with its fact, which may be in another conversation of the tenant.
        if kind::is_fact(&gone.kind) {
            let tenant = self.members.iter().find(|member| member.no == no).map(|member| &member.key.tenant);
            let others = self.members.iter().filter(|member| Some(&member.key.tenant) == tenant);
            let roots: BTreeSet<u64> = others.map(|member| self.roots[&member.no]).collect();
            for root in roots {
                if self.recorded(root)?.any {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn recorded(&mut self, root: u64) -> Result<&Recorded, Error> {
        if !self.recorded.contains_key(&root) {
            let mut recorded = Recorded::default();
            for member in self.members.iter().filter(|member| self.roots[&member.no] == root) {
                recorded.add_member(self.shared, member)?;
            }
            self.recorded.insert(root, recorded);
        }
        Ok(&self.recorded[&root])
    }
}
