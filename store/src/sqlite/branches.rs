//! Logs that two processes wrote beside each other, before each writing transaction checked who owns the store.
//!
//! Both read the same head and both wrote the next place, so a conversation has several events at one place. Each is
//! chained to the one that its writer saw: the events are a tree. The longest branch is the log; the others stand beside it,
//! without places, until each is moved into a fork from where they parted.

use super::derived;
use super::read;
use super::rows::{self, Bytes, EVENT_COLUMNS, Failure, signed};
use crate::Branch;
use everturn_core::Error;
use everturn_core::chain::{Hash, envelope_hash};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, Tenant};
use rusqlite::{Connection, params};
use std::collections::{HashMap, HashSet};

/// Living conversations in which a place was given more than once.
pub fn diverged(db: &Connection) -> rusqlite::Result<Vec<i64>> {
    db.prepare(
        "SELECT DISTINCT e.conversation FROM events e JOIN conversations c ON c.no = e.conversation
         WHERE c.deleted IS NULL GROUP BY e.conversation, e.seq HAVING count(*) > 1",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}

/// Gives the longest branch its places, if there are several. Does nothing to other conversations.
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

/// The branches that stand beside logs.
pub fn list(db: &Connection) -> Result<Vec<Branch>, Failure> {
    let mut found = Vec::new();
    for no in diverged(db)? {
        let (tenant, id): (String, Bytes<16>) =
            db.query_row("SELECT tenant, id FROM conversations WHERE no = ?", [no], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let key = Key { tenant: Tenant::new(tenant)?, id: ConversationId::from_bytes(id.0) };
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

/// Moves a branch to the end of a fork, where its events get new places and are chained anew. Their ids, times and bodies
/// stay. Gives how many there are.
pub fn adopt(db: &Connection, branch: &Branch, into: &Key) -> Result<u64, Failure> {
    let absent = || Error::not_found("branch.absent", "this branch is not there any more; look again");
    let (from, _) = read::conversation(db, &branch.key)?.ok_or_else(absent)?;
    let (to, fork) = read::conversation(db, into)?.ok_or_else(absent)?;
    let tree = Tree::read(db, from, i64::MAX)?;
    let root = tree.events.iter().position(|(no, _)| *no == branch.first).ok_or_else(absent)?;
    let shift = fork.head.seq + 1 - tree.events[root].1.seq;
    let mut moved: HashMap<usize, Hash> = HashMap::new();
    let family = tree.descendants(root);
    for index in &family {
        let (no, event) = &tree.events[*index];
        let prev = match tree.parents[*index] {
            Some(Link::To(parent)) if *index != root => moved.get(&parent).copied().ok_or_else(absent)?,
            _ => fork.head.hash,
        };
        let mut event = Event { conversation: into.id, seq: event.seq + shift, prev, ..event.clone() };
        event.hash = envelope_hash(&event);
        db.prepare_cached("UPDATE events SET conversation = ?, seq = ?, hash = ? WHERE no = ?")?
            .execute(params![to, signed(event.seq), Bytes(event.hash.0), no])?;
        moved.insert(*index, event.hash);
    }
    derived::mend(db, from)?;
    derived::mend(db, to)?;
    Ok(family.len() as u64)
}

#[derive(Clone, Copy)]
enum Link {
    /// To where the conversation begins.
    Start,
    /// To another of its events.
    To(usize),
}

/// The events of a conversation, without their bodies, ordered by place and arrival, each with the one that it is chained
/// to. Empty if no place was given more than once.
struct Tree {
    events: Vec<(i64, Event)>,
    /// `None` where an event is chained to nothing that is there.
    parents: Vec<Option<Link>>,
}

impl Tree {
    fn read(db: &Connection, no: i64, through: i64) -> rusqlite::Result<Tree> {
        let id: Bytes<16> =
            db.query_row("SELECT id FROM conversations WHERE no = ?", [no], |row| row.get(0))?;
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
            "SELECT events.no AS no, {EVENT_COLUMNS} FROM events WHERE conversation = ? AND events.no <= ? ORDER BY events.seq, events.no"
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
