//! Logs that two processes wrote concurrently, before each writing transaction checked the ownership of the
//! store.
//!
//! Both read the same head and both wrote the next `seq`, so a conversation has several events with one `seq`.
//! Each is chained to the one that its writer saw: the events are a tree. The longest branch is the log; the
//! others stay beside it, without entries in `places`, until each is moved into a fork from where they
//! diverged. Forks of such a branch are moved with it.

use super::lookup::InDatabase;
use super::read;
use super::rows::{self, Bytes, EVENT_COLUMNS, Failure, signed};
use super::{derived, erase, recent};
use crate::Branch;
use everturn_core::Error;
use everturn_core::chain::{Hash, body_hash, envelope_hash};
use everturn_core::conversation::{Parent, Tombstone};
use everturn_core::event::{Body, Event, kind};
use everturn_core::id::{ConversationId, Key, TenantName};
use everturn_core::time::Timestamp;
use everturn_core::write;
use rusqlite::{Connection, params};
use std::collections::{HashMap, HashSet, VecDeque};

/// Living conversations in which a `seq` was assigned more than once.
pub fn diverged(db: &Connection) -> rusqlite::Result<Vec<i64>> {
    db.prepare(
        "SELECT DISTINCT e.conversation FROM events e JOIN conversation_rows c ON c.no = e.conversation
         WHERE c.deleted IS NULL GROUP BY e.conversation, e.seq HAVING count(*) > 1",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}

/// Indexes the longest branch, if there are several. Does nothing to other conversations.
pub fn place(db: &Connection, no: i64, through: i64) -> rusqlite::Result<()> {
    let tree = Tree::read(db, no, through)?;
    let trunk = tree.trunk();
    if trunk.is_empty() {
        return Ok(());
    }
    db.execute("DELETE FROM places WHERE conversation = ?", [no])?;
    for index in trunk {
        let (event_no, event) = &tree.events[index];
        db.execute("INSERT INTO places VALUES (?, ?, ?)", params![no, signed(event.seq), event_no])?;
    }
    Ok(())
}

/// Branches beside logs.
pub fn list(db: &Connection) -> Result<Vec<Branch>, Failure> {
    let mut found = Vec::new();
    for no in diverged(db)? {
        let (tenant, id): (String, Bytes<16>) =
            db.query_row("SELECT tenant, id FROM conversation_rows WHERE no = ?", [no], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let key = Key { tenant: TenantName::new(tenant)?, id: ConversationId::from_bytes(id.0) };
        let tree = Tree::read(db, no, i64::MAX)?;
        let trunk: HashSet<usize> = tree.trunk().into_iter().collect();
        for (index, (event, first)) in tree.events.iter().enumerate() {
            let leaves_trunk =
                matches!(tree.parents[index], Some(Link::To(parent)) if trunk.contains(&parent));
            if leaves_trunk && !trunk.contains(&index) {
                let events = tree.descendants(index).len() as u64;
                found.push(Branch { key: key.clone(), at_seq: first.seq - 1, first: *event, events });
            }
        }
    }
    Ok(found)
}

/// Moves a branch to the end of a fork, where its events are renumbered and chained again. Their ids, times and
/// bodies stay. Forks of the branch are moved with it. Returns the number of events of the branch.
pub fn adopt(db: &Connection, branch: &Branch, into: &Key) -> Result<u64, Failure> {
    let absent =
        || Error::not_found("branch.absent", "this branch no longer exists; list the branches again");
    let (from, _) = read::conversation(db, &branch.key)?.ok_or_else(absent)?;
    let (to, fork) = read::conversation(db, into)?.ok_or_else(absent)?;
    let tree = Tree::read(db, from, i64::MAX)?;
    let root = tree.events.iter().position(|(no, _)| *no == branch.first).ok_or_else(absent)?;
    let mut moved = Moved { db, shift: fork.head.seq + 1 - tree.events[root].1.seq, renamed: HashMap::new() };
    let family = tree.descendants(root);
    for index in &family {
        let (no, event) = &tree.events[*index];
        let prev = match tree.parents[*index] {
            Some(Link::To(parent)) if *index != root => {
                let parent = &tree.events[parent].1;
                moved.new_hash(parent.seq, |old| old == parent.hash).ok_or_else(absent)?
            }
            _ => fork.head.hash,
        };
        moved.place(*no, event, Event { conversation: into.id, prev, ..event.clone() }, to)?;
    }
    let forks = moved.forks(from, to, into.id)?;
    derived::mend(db, from)?;
    derived::mend(db, to)?;
    forks.iter().try_for_each(|fork| derived::mend(db, fork.no))?;
    for Fork { no, deleted, .. } in forks {
        if let Some((at, reason)) = deleted {
            delete(db, no, at, reason)?;
        }
    }
    Ok(family.len() as u64)
}

/// Deletes a conversation that lives again since its rows were rebuilt.
fn delete(db: &Connection, no: i64, deleted: Timestamp, reason: String) -> Result<(), Failure> {
    let Some(conversation) = recent::living(db, no)? else { return Ok(()) };
    let key = Key { tenant: conversation.tenant, id: conversation.id };
    let tombstone = Tombstone { id: key.id, head: conversation.head, deleted, reason };
    let lookup = InDatabase::new(db, &key, Some(no), None);
    let deletion = lookup.answer(write::deletion(tombstone, &lookup))?;
    Ok(erase::delete(db, no, &deletion)?)
}

/// A fork of a branch.
struct Fork {
    /// Its number in this file.
    no: i64,
    id: ConversationId,
    /// Time and reason of its deletion, if it was deleted. It lives until its own forks are moved, so that they
    /// keep what they read.
    deleted: Option<(Timestamp, String)>,
}

/// Events being moved.
struct Moved<'a> {
    db: &'a Connection,
    /// Offset from the old `seq` to the new one.
    shift: u64,
    /// Their old and new hashes, by their old `seq`.
    renamed: HashMap<u64, Vec<(Hash, Hash)>>,
}

impl Moved<'_> {
    /// The new hash of an event with this old `seq`.
    fn new_hash(&self, seq: u64, is_it: impl Fn(Hash) -> bool) -> Option<Hash> {
        self.renamed.get(&seq)?.iter().find(|(old, _)| is_it(*old)).map(|(_, new)| *new)
    }

    /// Writes an event to its new location. `event` has its new conversation, link and body, and `old` its old
    /// `seq`. Returns its new hash.
    fn place(&mut self, no: i64, old: &Event, mut event: Event, conversation: i64) -> rusqlite::Result<Hash> {
        event.seq = old.seq + self.shift;
        event.hash = envelope_hash(&event);
        self.db
            .prepare_cached(
                "UPDATE events SET conversation = ?, seq = ?, body_hash = ?, hash = ? WHERE no = ?",
            )?
            .execute(params![
                conversation,
                signed(event.seq),
                Bytes(event.body_hash.0),
                Bytes(event.hash.0),
                no
            ])?;
        self.renamed.entry(old.seq).or_default().push((old.hash, event.hash));
        Ok(event.hash)
    }

    /// Chains the forks of a moved event to its new location, and their forks as well. Each gets a new number,
    /// since parents come before their forks.
    fn forks(&mut self, from: i64, to: i64, new_parent: ConversationId) -> Result<Vec<Fork>, Failure> {
        let (mut changed, mut seen) = (Vec::new(), HashSet::from([from, to]));
        let mut parents = VecDeque::from([(from, to, new_parent)]);
        while let Some((old_parent, parent, parent_id)) = parents.pop_front() {
            let forks: Vec<(Fork, u64)> = self
                .db
                .prepare(
                    "SELECT no, id, parent_seq, deleted, ifnull(deleted_reason, '') FROM conversation_rows
                     WHERE parent = ? ORDER BY no",
                )?
                .query_map([old_parent], |row| {
                    let id = ConversationId::from_bytes(row.get::<_, Bytes<16>>(1)?.0);
                    let (at, reason): (Option<i64>, String) = (row.get(3)?, row.get(4)?);
                    let deleted = at.map(|at| (Timestamp(at), reason));
                    Ok((Fork { no: row.get(0)?, id, deleted }, rows::unsigned(row, 2)?))
                })?
                .collect::<Result<_, _>>()?;
            for (fork, at_seq) in forks {
                if !seen.insert(fork.no) {
                    continue;
                }
                let place = Parent { conversation: parent_id, at_seq: at_seq + self.shift };
                if self.fork(fork.no, fork.id, at_seq, place)? {
                    let no = self.renumber(fork.no, parent, signed(place.at_seq))?;
                    parents.push_back((fork.no, no, fork.id));
                    changed.push(Fork { no, ..fork });
                } else if fork.deleted.is_some() {
                    // If nothing is left of it, its forks become forks of its parent.
                    parents.push_back((fork.no, parent, parent_id));
                }
            }
        }
        Ok(changed)
    }

    /// Moves the non-derived rows of a fork to a new number. The old one stays as an invisible tombstone.
    fn renumber(&self, no: i64, parent: i64, parent_seq: i64) -> rusqlite::Result<i64> {
        let db = self.db;
        let tenant: String =
            db.query_row("SELECT tenant FROM conversation_rows WHERE no = ?", [no], |row| row.get(0))?;
        erase::bury(db, no)?;
        db.execute(
            "INSERT INTO conversation_rows (tenant, id, participants, metadata, state, created, updated, retention, policy, head_seq,
                 head_hash, turns, parent, parent_seq)
             SELECT ?1, id, '[]', '{}', state, created, updated, retention, '{}', head_seq, head_hash, turns, ?2, ?3
             FROM conversation_rows WHERE no = ?4",
            params![tenant, parent, parent_seq, no],
        )?;
        let new = db.last_insert_rowid();
        db.execute(
            "UPDATE conversation_rows SET owner = NULL, title = NULL, participants = '[]', metadata = '{}', policy = '{}', expires = NULL,
                 deleted = updated, deleted_reason = 'moved by a repair' WHERE no = ?",
            [no],
        )?;
        db.execute("UPDATE events SET conversation = ? WHERE conversation = ?", [new, no])?;
        let shift = signed(self.shift);
        db.execute(
            "UPDATE chunks SET conversation = ?, turn_seq = turn_seq + ? WHERE conversation = ?",
            [new, shift, no],
        )?;
        db.execute(
            "UPDATE idempotency SET conversation = ?1, first_seq = first_seq + ?2, last_seq = last_seq + ?2,
                 scope = iif(scope = 'conversation:' || ?3, 'conversation:' || ?1, scope) WHERE conversation = ?3",
            [new, shift, no],
        )?;
        for table in derived::OF_CONVERSATIONS {
            db.execute(&format!("DELETE FROM {table} WHERE conversation = ?"), [no])?;
        }
        Ok(new)
    }

    /// Chains a fork again, if it began at a moved event.
    fn fork(&mut self, no: i64, id: ConversationId, at_seq: u64, parent: Parent) -> Result<bool, Failure> {
        let mut statement = self.db.prepare(&format!(
            "SELECT {EVENT_COLUMNS}, events.no AS no FROM events WHERE conversation = ? ORDER BY events.seq, events.no"
        ))?;
        let mut found = statement.query([no])?;
        let mut last = None;
        while let Some(row) = found.next()? {
            let old = rows::event(row, id, Hash([0; 32]))?;
            let envelope = Event { body: None, ..old.clone() };
            let follows = |prev: Hash| envelope_hash(&Event { prev, ..envelope.clone() }) == old.hash;
            // A deletion also overwrites names, so that the hash of what it left no longer proves anything.
            let emptied = old.body.is_none() && old.actor.as_ref().is_some_and(|name| name.trim().is_empty());
            let prev = self.new_hash(old.seq.saturating_sub(1), follows).or(last.filter(|_| emptied));
            let Some(prev) = prev else {
                if last.is_some() {
                    continue;
                }
                return Ok(false);
            };
            let event_no: i64 = row.get("no")?;
            let mut event = Event { prev, ..old.clone() };
            if old.seq == at_seq + 1
                && let Some(body) = told_parent(&old, parent)
            {
                self.db.execute("UPDATE events SET body = ? WHERE no = ?", params![body.text, event_no])?;
                event.body_hash = body_hash(&body);
            }
            last = Some(self.place(event_no, &old, event, no)?);
        }
        Ok(last.is_some())
    }
}

/// The body of the event that began a fork, with another parent. Imports rely on it.
fn told_parent(event: &Event, parent: Parent) -> Option<Body> {
    let body = event.body.as_ref().filter(|_| event.kind == kind::FORKED)?;
    let mut settings: serde_json::Value = serde_json::from_str(&body.text).ok()?;
    *settings.get_mut("parent")? = serde_json::to_value(parent).ok()?;
    Some(Body { text: settings.to_string(), ..body.clone() })
}

#[derive(Clone, Copy)]
enum Link {
    /// To the start of the conversation.
    Start,
    /// To another of its events.
    To(usize),
}

/// The events of a conversation, without their bodies, ordered by `seq` and arrival, each with the one that it
/// is chained to. Empty if no `seq` was assigned more than once.
struct Tree {
    events: Vec<(i64, Event)>,
    /// `None` if an event is chained to nothing that exists.
    parents: Vec<Option<Link>>,
}

impl Tree {
    fn read(db: &Connection, no: i64, through: i64) -> rusqlite::Result<Tree> {
        let id: Bytes<16> =
            db.query_row("SELECT id FROM conversation_rows WHERE no = ?", [no], |row| row.get(0))?;
        let id = ConversationId::from_bytes(id.0);
        let repeated: bool = db.query_row(
            "SELECT count(*) > count(DISTINCT seq) FROM events WHERE conversation = ? AND no <= ?",
            [no, through],
            |row| row.get(0),
        )?;
        let mut tree = Tree { events: Vec::new(), parents: Vec::new() };
        if !repeated {
            return Ok(tree);
        }
        let mut statement = db.prepare(&format!(
            "SELECT {EVENT_COLUMNS}, events.no AS no FROM events WHERE conversation = ? AND events.no <= ? ORDER BY events.seq, events.no"
        ))?;
        let mut found = statement.query([no, through])?;
        while let Some(row) = found.next()? {
            let event = rows::event(row, id, Hash([0; 32]))?;
            tree.events.push((row.get("no")?, Event { body: None, ..event }));
        }
        let lineage = read::lineage(db, no, id)?;
        let floor = lineage.levels[0].floor;
        let start = read::hash_at(db, &lineage, floor)?;
        for index in 0..tree.events.len() {
            let event = &tree.events[index].1;
            let follows = |prev: Hash| envelope_hash(&Event { prev, ..event.clone() }) == event.hash;
            let parent = if event.seq == floor + 1 {
                start.filter(|start| follows(*start)).map(|_| Link::Start)
            } else {
                let before = (0..index).rev().take_while(|at| tree.events[*at].1.seq + 1 >= event.seq);
                let mut before = before.filter(|at| tree.events[*at].1.seq + 1 == event.seq);
                before.find(|at| follows(tree.events[*at].1.hash)).map(Link::To)
            };
            tree.parents.push(parent);
        }
        Ok(tree)
    }

    /// The longest chain from the start; of several, the one whose end arrived first.
    fn trunk(&self) -> Vec<usize> {
        let mut linked = vec![false; self.events.len()];
        let mut end: Option<usize> = None;
        for (index, parent) in self.parents.iter().enumerate() {
            linked[index] = match parent {
                None => false,
                Some(Link::Start) => true,
                Some(Link::To(parent)) => linked[*parent],
            };
            if linked[index] && end.is_none_or(|end| self.events[end].1.seq < self.events[index].1.seq) {
                end = Some(index);
            }
        }
        let mut chain = Vec::new();
        while let Some(index) = end {
            chain.push(index);
            end = match self.parents[index] {
                Some(Link::To(parent)) => Some(parent),
                _ => None,
            };
        }
        chain.reverse();
        chain
    }

    /// An event and all that are chained to it, each after the one that it is chained to.
    fn descendants(&self, root: usize) -> Vec<usize> {
        let mut family = vec![root];
        let mut members = HashSet::from([root]);
        for index in root + 1..self.events.len() {
            if matches!(self.parents[index], Some(Link::To(parent)) if members.contains(&parent)) {
                members.insert(index);
                family.push(index);
            }
        }
        family
    }
}
