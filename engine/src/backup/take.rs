//! Writing an archive of a store while it is written to.
//!
//! The scope of the backup is fixed at its start: every conversation up to its head at that time. Events are never
//! rewritten, so they can be read afterwards in many short transactions. Erasures and deletions that happen meanwhile
//! are found at the end and recorded in the archive: a restore never brings that data back.
//!
//! A damaged store is backed up as far as it can be read: of an event with a damaged body, the envelope; after a
//! damaged envelope, events that a restore leaves out. Bodies that are missing without a recorded erasure stay as
//! they were archived.

use super::{BackedUp, BackupProgress};
use crate::erasing::erasures::{Erasures, Gone};
use crate::everturn::Shared;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::chain::{Hash, Head, Verifier, body_hash};
use everturn_core::error::code;
use everturn_core::event::{Event, kind};
use everturn_core::id::{Key, TenantName, TurnId};
use everturn_core::turn::Status;
use everturn_formats::archive::{
    ArchiveContents, ArchiveHeader, Block, Deleted, Erased, FORMAT, OpenText, ParentNo, Ranges, Through,
    Writer,
};
use everturn_store::Member;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;

/// Bytes of bodies read into memory at once, plus at most one event.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Requests read into memory at once.
const REQUESTS_PAGE: usize = 1000;
/// Conversations named in an error; the rest are counted.
const NAMED_MAX: usize = 10;

pub fn take<W: Write>(
    shared: &Shared,
    out: W,
    previous: &ArchiveContents,
    progress: BackupProgress<'_>,
) -> Result<(W, BackedUp), Error> {
    // Read before the members, so that the event that opened each of these turns is part of the backup.
    let mut open: HashMap<Key, Vec<TurnId>> = HashMap::new();
    for (key, turn) in shared.journal.index.open_turns()? {
        open.entry(key).or_default().push(turn);
    }
    let members = shared.backup.members()?;
    check_continues(&members, previous)?;
    let (number, follows) = match &previous.last {
        None => (1, None),
        Some((header, id)) => (header.number + 1, Some(*id)),
    };
    let header = ArchiveHeader { format: FORMAT, number, follows, created: shared.now() };
    let new = |member: &Member| member.through.saturating_sub(archived(previous, member.no));
    let mut taking = Taking {
        shared,
        previous,
        writer: Writer::new(out, &header)?,
        open,
        states: HashMap::new(),
        assets: HashSet::new(),
        problems: Vec::new(),
        total: members.iter().map(new).sum(),
        progress,
    };
    for member in &members {
        taking.member(member)?;
    }
    drop(members);
    taking.removals()?;
    for key in shared.backup.all_keys()? {
        taking.writer.key(key)?;
    }
    let counts = *taking.writer.counts();
    let problems = taking.problems;
    let (out, id, bytes) = taking.writer.finish()?;
    let (path, removed, kept_because) = (None, Vec::new(), None);
    Ok((out, BackedUp { path, id, follows, number, bytes, counts, problems, removed, kept_because }))
}

fn archived(previous: &ArchiveContents, no: u64) -> u64 {
    previous.members.get(&no).map_or(0, |member| member.through)
}

/// Refuses an increment of a different store, or of one that has lost data since.
fn check_continues(members: &[Member], previous: &ArchiveContents) -> Result<(), Error> {
    let mut lost = Vec::new();
    for (no, before) in &previous.members {
        let place = members.binary_search_by_key(no, |member| member.no);
        let now = place.ok().map(|place| &members[place]).filter(|member| member.key == before.key);
        let Some(now) = now else {
            return Err(Error::conflict(
                "backup.other_store",
                format!(
                    "the earlier archives are of another store: this one has no conversation {} of tenant {} at that position; name another target, since a folder holds the backups of one store",
                    before.key.id, before.key.tenant
                ),
            ));
        };
        if now.deleted.is_some() {
            continue;
        }
        if before.deleted.is_some() {
            lost.push(format!("{} was deleted and exists again", now.key.id));
        } else if now.through < before.through {
            lost.push(format!("{} ends at seq {} and had {}", now.key.id, now.through, before.through));
        } else if now.through == before.through && now.hash != before.hash {
            lost.push(format!("{} ends with another event at seq {}", now.key.id, now.through));
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    let more = lost.len().saturating_sub(NAMED_MAX);
    lost.truncate(NAMED_MAX);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Err(Error::corrupt(
        "backup.lost",
        format!(
            "the store has lost data that was backed up: {}{more}. Nothing was written; `everturn verify --against` shows more; keep the archives, and start a new full backup with --full once you know why",
            lost.join("; ")
        ),
    ))
}

/// State of a conversation in the archives, this one included.
struct State {
    through: u64,
    /// Highest `seq` at which it can be forked: of its own events, or of the inherited ones.
    reach: u64,
    /// Events without a body in this archive.
    erased: Ranges,
}

struct Taking<'a, W: Write> {
    shared: &'a Shared,
    previous: &'a ArchiveContents,
    writer: Writer<W>,
    /// Turns that were open when the backup began.
    open: HashMap<Key, Vec<TurnId>>,
    states: HashMap<u64, State>,
    /// Assets in this archive.
    assets: HashSet<(TenantName, Hash)>,
    problems: Vec<String>,
    total: u64,
    progress: BackupProgress<'a>,
}

impl<W: Write> Taking<'_, W> {
    /// Writes the new part of a conversation.
    fn member(&mut self, member: &Member) -> Result<(), Error> {
        let before = self.previous.members.get(&member.no);
        let after = before.map_or(0, |before| before.through);
        let inherited = match member.parent {
            None => 0,
            Some((parent, at_seq)) => {
                let reach = self.states.get(&parent).map_or(0, |state| state.reach);
                // A deleted fork without events of its own needs only what is left of its parent.
                if reach < at_seq && (member.deleted.is_none() || member.through > 0) {
                    let text = "it was forked from a conversation that is damaged before the fork point";
                    self.problem(&member.key, text);
                    return self.loose(member, after.max(at_seq), member.through);
                }
                at_seq.min(reach)
            }
        };
        let mut state = State { through: after, reach: 0, erased: Ranges::default() };
        let open = if member.deleted.is_none() { self.open.remove(&member.key) } else { None };
        if before.is_none() || member.through > after || open.is_some() {
            self.writer.block(&Block {
                no: member.no,
                tenant: member.key.tenant.clone(),
                id: member.key.id,
                created: member.created,
                parent: member.parent.map(|(no, at_seq)| ParentNo { no, at_seq }),
                after,
            })?;
            let start = match (before.and_then(|before| before.hash), member.parent) {
                (Some(hash), _) => Some(Head { seq: after, hash }),
                (None, None) => Some(Head::genesis(member.key.id)),
                // A fork begins with an event of its parent, against which a restore checks it.
                (None, Some(_)) => None,
            };
            let mut hash = before.and_then(|before| before.hash);
            let mut verifier = start.map(|head| Verifier::after(member.key.id, head));
            self.events(member, member.through, &mut state, &mut hash, &mut verifier)?;
            if let Some(open) = open {
                self.open_texts(member, open, &mut state, &mut hash, &mut verifier)?;
            }
            self.requests(member.no, after, state.through)?;
            self.writer.through(Through { seq: state.through, hash, erased: state.erased.clone() })?;
        }
        state.reach = state.through.max(inherited);
        self.states.insert(member.no, state);
        Ok(())
    }

    /// Writes events up to a `seq`, each checked against the one before. Ends early where the chain is broken or the
    /// conversation was deleted meanwhile.
    fn events(
        &mut self,
        member: &Member,
        through: u64,
        state: &mut State,
        hash: &mut Option<Hash>,
        verifier: &mut Option<Verifier>,
    ) -> Result<(), Error> {
        let mut page_bytes = PAGE_BYTES;
        while state.through < through {
            let page = match self.shared.backup.member_events(member.no, state.through, through, page_bytes) {
                Ok(page) => page,
                // Only the events before the unreadable one.
                Err(Error::Corrupt(_)) if page_bytes > 1 => {
                    page_bytes = 1;
                    continue;
                }
                Err(Error::Corrupt(_)) => return self.loose(member, state.through, through),
                Err(error) => return Err(error),
            };
            if page.is_empty() {
                if self.shared.backup.member(member.no)?.deleted.is_none() {
                    let text = format!("its events after seq {} are missing", state.through);
                    self.problem(&member.key, &text);
                }
                return Ok(());
            }
            for event in &page {
                let first = Head { seq: event.seq.saturating_sub(1), hash: event.prev };
                let verifier = verifier.get_or_insert_with(|| Verifier::after(member.key.id, first));
                let mut event = Cow::Borrowed(event);
                let checked = match verifier.push(&event) {
                    Err(error) if error.is(code::BODY_MISMATCH) => {
                        let text = format!("{}; only its envelope is backed up", error.text());
                        self.problem(&member.key, &text);
                        event.to_mut().body = None;
                        verifier.push(&event)
                    }
                    checked => checked,
                };
                if let Err(error) = checked {
                    self.problem(&member.key, error.text());
                    return self.loose(member, state.through, through);
                }
                self.writer.event(&event)?;
                if event.body.is_none() {
                    state.erased.insert(event.seq);
                }
                if event.kind == kind::ASSET_ADDED {
                    self.asset(member, &event)?;
                }
                state.through = event.seq;
                *hash = Some(event.hash);
            }
            (self.progress)(self.writer.counts().events, self.total.max(self.writer.counts().events));
        }
        Ok(())
    }

    /// Writes the readable events after a break in the chain.
    fn loose(&mut self, member: &Member, mut after: u64, through: u64) -> Result<(), Error> {
        let (before, mut unreadable) = (self.writer.counts().loose, Ranges::default());
        while after < through {
            let found = match self.shared.backup.member_events(member.no, after, through, 1) {
                Ok(page) => page.into_iter().next(),
                Err(Error::Corrupt(_)) => {
                    after += 1;
                    unreadable.insert(after);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(event) = found else {
                unreadable.insert_range(after + 1, through);
                break;
            };
            if event.seq <= after || event.seq > through {
                after += 1;
                unreadable.insert(after);
                continue;
            }
            unreadable.insert_range(after + 1, event.seq - 1);
            // Its envelope cannot always be checked, since that needs the hash of the event before it.
            match event.body.as_ref().is_none_or(|body| body_hash(body) == event.body_hash) {
                true => self.writer.loose(&member.key.tenant, &event)?,
                false => unreadable.insert(event.seq),
            }
            after = event.seq;
        }
        if !unreadable.is_empty() {
            self.problem(&member.key, &format!("seq {unreadable} cannot be read and is not in the backup"));
        }
        let loose = self.writer.counts().loose - before;
        if loose > 0 {
            let are = if loose == 1 { "event is" } else { "events are" };
            let text = format!("{loose} {are} after the damage: in the archive, but left out by a restore");
            self.problem(&member.key, &text);
        }
        Ok(())
    }

    fn asset(&mut self, member: &Member, event: &Event) -> Result<(), Error> {
        let Some(asset) = event.read::<Asset>() else { return Ok(()) };
        let Some(sha256) = asset.sha256 else { return Ok(()) };
        let place = (member.key.tenant.clone(), sha256);
        if self.previous.assets.contains(&place) || self.assets.contains(&place) {
            return self.writer.asset(event.seq, sha256, None);
        }
        match self.shared.journal.assets.get(&member.key.tenant, sha256) {
            Ok(bytes) => {
                self.assets.insert(place);
                self.writer.asset(event.seq, sha256, Some(&bytes))
            }
            Err(Error::NotFound(_)) => {
                // An asset imported without its bytes is not stored here.
                let ours = everturn_store::assets::path(&member.key.tenant, sha256);
                let is_kept = asset.storage.is_some_and(|storage| storage.path == Some(ours));
                let now = self.shared.backup.member_events(member.no, event.seq - 1, event.seq, 1)?;
                let is_erased = now.first().is_none_or(|event| event.body.is_none());
                if is_kept && !is_erased {
                    let text = format!("the bytes of asset {} at seq {} are missing", asset.id, event.seq);
                    self.problem(&member.key, &text);
                }
                self.writer.asset(event.seq, sha256, None)
            }
            Err(error @ Error::Corrupt(_)) => {
                self.problem(&member.key, error.text());
                self.writer.asset(event.seq, sha256, None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the text of open turns. If one ended since the backup began, its text is in an event now, and the
    /// conversation is taken up to its current head.
    fn open_texts(
        &mut self,
        member: &Member,
        mut open: Vec<TurnId>,
        state: &mut State,
        hash: &mut Option<Hash>,
        verifier: &mut Option<Verifier>,
    ) -> Result<(), Error> {
        loop {
            let mut texts = Vec::new();
            for turn in &open {
                let text = match self.shared.journal.log.open_text(&member.key, *turn) {
                    Ok(text) => text,
                    // Deleted meanwhile.
                    Err(Error::NotFound(_)) => return Ok(()),
                    Err(error) => return Err(error),
                };
                // Checked after the text was read: while the turn is open, none of its text is removed.
                match self.shared.journal.index.turn_in(&member.key, *turn) {
                    Ok(found) if found.status == Status::Pending => {
                        texts.push(OpenText { turn: *turn, text })
                    }
                    Ok(_) => {}
                    Err(Error::NotFound(_)) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            if texts.len() == open.len() {
                let said = texts.into_iter().filter(|text| !text.text.is_empty());
                return said.into_iter().try_for_each(|text| self.writer.open_text(text));
            }
            let now = self.shared.backup.member(member.no)?;
            if now.deleted.is_some() {
                return Ok(());
            }
            self.events(member, now.through, state, hash, verifier)?;
            let turns = self.shared.journal.index.open_turns()?;
            open = turns.into_iter().filter(|(key, _)| *key == member.key).map(|(_, turn)| turn).collect();
            // A turn opened after that `seq` is not in the archive.
            let before = state.through;
            open.retain(|turn| {
                self.shared.journal.index.turn_in(&member.key, *turn).is_ok_and(|turn| turn.seq <= before)
            });
        }
    }

    fn requests(&mut self, no: u64, mut after: u64, through: u64) -> Result<(), Error> {
        while after < through {
            let page = self.shared.backup.requests(no, after, through, REQUESTS_PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.last_seq;
            page.into_iter().try_for_each(|request| self.writer.request(request))?;
        }
        Ok(())
    }

    /// Writes the current deletions and erasures: of events in this archive, and in earlier ones.
    fn removals(&mut self) -> Result<(), Error> {
        let mut kept: HashMap<u64, u64> = HashMap::new();
        for member in self.shared.backup.members()? {
            let Some(state) = self.states.get(&member.no) else { continue };
            kept.insert(member.no, state.through.min(member.through));
            let Some(tombstone) = member.deleted else { continue };
            let before = self.previous.members.get(&member.no).and_then(|before| before.deleted.as_ref());
            if before.is_none_or(|(known, through)| *known != tombstone || *through != member.through) {
                self.writer.deleted(Deleted { no: member.no, tombstone, through: member.through })?;
            }
        }
        let mut erased: BTreeMap<u64, Ranges> = BTreeMap::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let page = self.shared.backup.erased(from)?;
            for (no, seq) in page.erased {
                let known = self.states.get(&no).is_some_and(|state| state.erased.contains(seq))
                    || self.previous.members.get(&no).is_some_and(|before| before.erased.contains(seq));
                if !known && kept.get(&no).is_some_and(|kept| seq <= *kept) {
                    erased.entry(no).or_default().insert(seq);
                }
            }
            next = page.next;
        }
        if erased.is_empty() {
            return Ok(());
        }
        let mut erasures = Erasures::of(self.shared)?;
        for (no, seqs) in erased {
            let (mut recorded, mut lost) = (Ranges::default(), Ranges::default());
            for seq in seqs.iter() {
                let found = self.shared.backup.member_events(no, seq - 1, seq, 1)?;
                let gone = found.first().and_then(Gone::of);
                let explained = gone.map(|gone| erasures.explain(no, &gone)).transpose()?;
                // A conversation that no longer exists was deleted.
                if explained.unwrap_or(true) { recorded.insert(seq) } else { lost.insert(seq) }
            }
            if !recorded.is_empty() {
                self.writer.erased(Erased { no, seqs: recorded })?;
            }
            if !lost.is_empty() {
                let text = format!(
                    "seq {lost}: the body is gone, and no erasure is recorded; what was archived before stays"
                );
                let key = self.shared.backup.member(no)?.key;
                self.problem(&key, &text);
            }
        }
        Ok(())
    }

    fn problem(&mut self, key: &Key, text: &str) {
        self.problems.push(format!("{} of tenant {}: {text}", key.id, key.tenant));
    }
}
