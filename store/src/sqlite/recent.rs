//! Turns that are durable but not yet in the derived tables.
//!
//! A commit of plain turns appends to `events` and touches nothing else: their derived rows would be spread
//! over as many pages as there are conversations, and writing those with every commit costs several times the
//! commit itself (see `docs/decisions/0003-settle-later.md`). They are kept here, readers look here too, and
//! every few thousand events, or when nothing waits, they are settled: all their rows are written at once.
//! After a crash they are found after the event that `settled` names.

use super::rows::{self, CONVERSATION_COLUMNS, EVENT_COLUMNS};
use super::write;
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Event, kind};
use everturn_core::id::{Key, TurnId};
use everturn_core::turn::TurnRow;
use everturn_core::write::{Changes, PlannedAppend, Turns, fold};
use rusqlite::{Connection, OptionalExtension, Row};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Number of events after which to settle. Bounds the memory, and the events to read after a crash.
pub const UNSETTLED_EVENTS_MAX: usize = 4096;

/// Unsettled events, by conversation.
#[derive(Default)]
pub struct Recent {
    pub conversations: HashMap<Key, RecentConversation>,
    pub events: usize,
    /// Conversations whose rows do not match their events, by their numbers in this file. Their rows have to be
    /// rebuilt from the log.
    pub doubtful: BTreeSet<i64>,
    /// Whether the `settled` mark is wrong and has to be set again.
    pub unmarked: bool,
}

/// The unsettled part of one conversation.
#[derive(Clone)]
pub struct RecentConversation {
    /// Its number in this file.
    pub no: i64,
    /// The conversation after the last of the events.
    pub conversation: Arc<Conversation>,
    /// Events in order, without gaps, up to the head.
    pub events: Vec<Arc<Event>>,
}

impl Recent {
    pub fn add(
        &mut self,
        key: &Key,
        no: i64,
        conversation: &Arc<Conversation>,
        events: impl IntoIterator<Item = Arc<Event>>,
    ) {
        let entry = self.conversations.entry(key.clone()).or_insert_with(|| RecentConversation {
            no,
            conversation: conversation.clone(),
            events: Vec::new(),
        });
        entry.conversation = conversation.clone();
        let before = entry.events.len();
        entry.events.extend(events);
        self.events += entry.events.len() - before;
    }

    /// Adds later events.
    pub fn extend(&mut self, later: Recent) {
        for (key, entry) in later.conversations {
            self.add(&key, entry.no, &entry.conversation, entry.events);
        }
    }

    /// Reads the events after the `settled` mark. If the mark is wrong, the whole log is searched.
    pub fn load(db: &Connection) -> Result<Recent, rows::Failure> {
        let mut recent = Recent::default();
        let mut keys: HashMap<i64, Key> = HashMap::new();
        let mark = settled_mark(db)?;
        recent.unmarked = mark.is_none();
        let mut statement = db.prepare_cached(&format!(
            "SELECT {EVENT_COLUMNS}, events.no AS no, conversation FROM events WHERE events.no > ? ORDER BY events.no"
        ))?;
        let mut found = statement.query([mark.unwrap_or(0)])?;
        while let Some(row) = found.next()? {
            let Ok(no) = row.get::<_, i64>("conversation") else { continue };
            if recent.doubtful.contains(&no) || (recent.unmarked && has_place(db, row)?) {
                continue;
            }
            let key = match keys.entry(no) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => match living(db, no) {
                    Ok(Some(conversation)) => {
                        let key = Key { tenant: conversation.tenant.clone(), id: conversation.id };
                        recent.add(&key, no, &Arc::new(conversation), []);
                        unknown.insert(key)
                    }
                    // An event of a deleted conversation needs no rows.
                    Ok(None) => continue,
                    Err(_) => {
                        recent.doubtful.insert(no);
                        continue;
                    }
                },
            };
            let entry = recent.conversations.get_mut(key).expect("it was added above");
            let head = entry.conversation.head;
            if rows::unsigned(row, "seq").is_ok_and(|seq| seq <= head.seq) && has_place(db, row)? {
                // The mark is too low.
                recent.unmarked = true;
                continue;
            }
            let event = rows::event(row, entry.conversation.id, head.hash).ok();
            let Some(event) = event.filter(|event| event.seq == head.seq.saturating_add(1) && plain(event))
            else {
                recent.doubtful.insert(no);
                continue;
            };
            fold(Arc::make_mut(&mut entry.conversation), &event, &mut Changes::default(), &Nothing)?;
            entry.events.push(Arc::new(event));
            recent.events += 1;
        }
        let doubtful = &recent.doubtful;
        let dropped = recent.conversations.extract_if(|_, entry| doubtful.contains(&entry.no));
        recent.events -= dropped.map(|(_, entry)| entry.events.len()).sum::<usize>();
        Ok(recent)
    }
}

/// A conversation that was not deleted.
pub fn living(db: &Connection, no: i64) -> rusqlite::Result<Option<Conversation>> {
    db.prepare_cached(&format!(
        "SELECT {CONVERSATION_COLUMNS} FROM conversation_rows c WHERE c.no = ? AND c.deleted IS NULL"
    ))?
    .query_row([no], |row| Ok(rows::conversation(row)?.1))
    .optional()
}

/// Whether the event of this row is in `places`.
fn has_place(db: &Connection, row: &Row<'_>) -> rusqlite::Result<bool> {
    let (no, conversation, seq): (i64, i64, i64) =
        (row.get("no")?, row.get("conversation")?, row.get("seq")?);
    db.prepare_cached("SELECT 1 FROM places WHERE conversation = ? AND seq = ? AND event = ?")?.exists([
        conversation,
        seq,
        no,
    ])
}

/// The number of the last settled event; `None` if the stored value cannot be right. It is right if the last
/// event up to it is in `places`.
fn settled_mark(db: &Connection) -> rusqlite::Result<Option<i64>> {
    let mark: Option<i64> = db
        .prepare_cached("SELECT max(event) FROM settled WHERE typeof(event) = 'integer' HAVING count(*) = 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    let last: i64 =
        db.prepare_cached("SELECT coalesce(max(no), 0) FROM events")?.query_row([], |row| row.get(0))?;
    let Some(mark) = mark.filter(|mark| (0..=last).contains(mark)) else { return Ok(None) };
    // Events of deleted conversations have none, so a few before it are examined.
    let place: Option<bool> = db
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM places p WHERE p.conversation = e.conversation AND p.seq = e.seq)
             FROM events e JOIN conversation_rows c ON c.no = e.conversation
             WHERE e.no <= ?1 AND e.no > ?1 - ?2 AND c.deleted IS NULL ORDER BY e.no DESC LIMIT 1",
        )?
        .query_row([mark, MARK_LOOK_BACK], |row| row.get(0))
        .optional()?;
    Ok((place != Some(false)).then_some(mark))
}

/// Number of events before the mark that are examined to find one of a living conversation.
const MARK_LOOK_BACK: i64 = 256;

fn plain(event: &Event) -> bool {
    matches!(event.kind.as_str(), kind::MESSAGE | kind::TOOL_RESULT)
}

/// Whether a plan only adds complete turns, so that its rows can wait.
pub fn can_wait(plan: &PlannedAppend) -> bool {
    plan.changes.references.is_empty()
        && plan.changes.assets.is_empty()
        && plan.changes.turns.len() == plan.events.len()
        && plan.events.iter().all(plain)
}

/// Writes the rows of everything after the `settled` mark. `conversations` are those affected, in their current
/// state.
pub fn settle<'a>(
    db: &Connection,
    conversations: impl Iterator<Item = (i64, &'a Conversation)>,
) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO places SELECT conversation, seq, no FROM events WHERE no > (SELECT event FROM settled) ORDER BY conversation, seq",
    )?
    .execute([])?;
    db.prepare_cached(
        "INSERT OR REPLACE INTO turn_rows SELECT conversation, seq, id, actor, role, 'complete', at, NULL, NULL, NULL, NULL, NULL
         FROM events WHERE no > (SELECT event FROM settled) ORDER BY conversation, seq",
    )?
    .execute([])?;
    for (no, conversation) in conversations {
        write::update_all(db, no, conversation)?;
    }
    mark(db)
}

/// Marks everything as settled.
pub fn mark(db: &Connection) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE settled SET event = (SELECT coalesce(max(no), 0) FROM events)")?
        .execute([])
        .map(drop)
}

/// A lookup that finds nothing: complete turns refer to nothing before them.
pub struct Nothing;

impl Turns for Nothing {
    fn turn(&self, _: TurnId) -> Result<Option<TurnRow>, Error> {
        Ok(None)
    }
}
