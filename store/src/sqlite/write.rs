//! Applying a plan row by row, inside one transaction.

use super::derived;
use super::erase;
use super::lookup::{self, InDatabase, lineage, unmended};
use super::parents;
use super::read;
use super::recent::{self, Recent, UNSETTLED_EVENTS_MAX};
use super::rows::{self, Bytes, Failure, signed};
use crate::{Committed, Erasures};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Lifecycle};
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::Key;
use everturn_core::write::{
    self, Action, Answered, AnsweredRequest, Changes, ChunkRow, EventAddress, EventRef, Existing, Plan,
    PlannedAppend, StateBody, Write,
};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::sync::Arc;

/// The writer's cache of conversations, so that an append need not read them again. Valid because only one
/// process writes; dropped when a transaction is rolled back.
#[derive(Default)]
pub struct Known {
    conversations: HashMap<Key, (i64, Arc<Conversation>)>,
    pub erasures: Erasures,
}

impl Known {
    /// Maximum size, after which the cache starts over; a bound on memory, not a tuning knob.
    const CONVERSATIONS_MAX: usize = 4096;

    /// Clears the cache.
    pub fn forget(&mut self) {
        self.conversations.clear();
    }

    /// A conversation according to its row. A row that does not match the log is rebuilt first: the next append
    /// is chained to it. If the log was truncated, an append is refused.
    fn get(
        &mut self,
        db: &Connection,
        key: &Key,
        appends: bool,
    ) -> Result<Option<(i64, Arc<Conversation>)>, Failure> {
        if let Some(known) = self.conversations.get(key) {
            return Ok(Some(known.clone()));
        }
        match read::conversation(db, key) {
            Ok(None) => return Ok(None),
            Ok(Some((no, conversation))) => {
                if !is_at_the_end(db, no, &conversation)? {
                    if let Err(cut) = check_cut(db, no, &conversation)? {
                        return if appends {
                            Err(cut.into())
                        } else {
                            Ok(Some((no, Arc::new(conversation))))
                        };
                    }
                } else if is_told(db, no, &conversation)? {
                    return Ok(Some((no, Arc::new(conversation))));
                }
            }
            Err(error) if rows::malformed_row(&error).is_some() => {}
            Err(error) => return Err(error.into()),
        }
        tracing::warn!("the row of {} does not match its log; rebuilding it", key.id);
        let Some(no) = read::number(db, key)? else { return Ok(None) };
        // Only this request fails with it, not the whole batch.
        match derived::mend(db, no) {
            Err(Failure::Broken(error)) if rows::malformed_row(&error).is_some() => {
                derived::mend_lineage(db, no)
            }
            mended => mended,
        }
        .map_err(unmended)?;
        Ok(read::conversation(db, key)?.map(|(no, conversation)| (no, Arc::new(conversation))))
    }

    fn put(&mut self, key: Key, no: i64, conversation: Arc<Conversation>) {
        if self.conversations.len() >= Self::CONVERSATIONS_MAX {
            self.conversations.clear();
        }
        self.conversations.insert(key, (no, conversation));
    }
}

/// Whether a conversation's head is the last event of its log, according to `places`.
fn is_at_the_end(db: &Connection, no: i64, conversation: &Conversation) -> rusqlite::Result<bool> {
    let last = db
        .prepare_cached(
            "SELECT p.seq, e.hash FROM places p
             LEFT JOIN events e ON e.no = p.event AND e.seq = p.seq AND e.conversation = p.conversation
             WHERE p.conversation = ? ORDER BY p.seq DESC LIMIT 1",
        )?
        .query_row([no], |row| {
            // An invalid `seq` or hash is not the head's.
            Ok((rows::unsigned(row, "seq").ok(), row.get::<_, Bytes<32>>("hash").ok().map(|hash| hash.0)))
        })
        .optional()?;
    let head = conversation.head;
    Ok(match last {
        Some((seq, hash)) => seq == Some(head.seq) && hash == Some(head.hash.0),
        None => head.seq == conversation.parent.map_or(0, |parent| parent.at_seq),
    })
}

/// Whether the log confirms a conversation's row where that may refuse an append: its parent, and a state that
/// accepts no more turns.
fn is_told(db: &Connection, no: i64, conversation: &Conversation) -> rusqlite::Result<bool> {
    if parents::is_wrong(db, no, conversation.parent)? {
        return Ok(false);
    }
    if conversation.state == Lifecycle::Active {
        return Ok(true);
    }
    // Found quickly: hardly anything is written after it.
    let body: Option<String> = db
        .prepare_cached(
            "SELECT e.body FROM places p JOIN events e ON e.no = p.event AND e.conversation = p.conversation
             WHERE p.conversation = ? AND e.kind = ? AND e.salt <> zeroblob(16) ORDER BY p.seq DESC LIMIT 1",
        )?
        .query_row(params![no, kind::STATE], |row| row.get(0))
        .optional()?;
    let told = body.map(|body| serde_json::from_str::<StateBody>(&body));
    // An unreadable body does not contradict it.
    Ok(told.is_some_and(|told| told.map_or(true, |told| told.state == conversation.state)))
}

/// Whether the log of a conversation was truncated: its row and `places` agree on an end that the log does not
/// reach. They are the evidence of the loss, and a new event would get the `seq` of a lost one.
fn check_cut(db: &Connection, no: i64, conversation: &Conversation) -> rusqlite::Result<Result<(), Error>> {
    let head = signed(conversation.head.seq);
    let placed =
        db.prepare_cached("SELECT 1 FROM places WHERE conversation = ? AND seq = ?")?.exists([no, head])?;
    let last: i64 = db
        .prepare_cached("SELECT ifnull(max(seq), 0) FROM events WHERE conversation = ?")?
        .query_row([no], |row| row.get(0))?;
    if !placed || last >= head {
        return Ok(Ok(()));
    }
    Ok(Err(Error::corrupt(
        "chain.truncated",
        format!(
            "the log of {} ends at seq {last} but had {head}, so nothing is appended to it; restore a backup, or run \
             `everturn doctor --rebuild --accept-loss` to go on after seq {last}",
            conversation.id
        ),
    )))
}

/// A batch being written.
pub struct Batch<'a> {
    db: &'a Connection,
    known: &'a mut Known,
    /// Unsettled events before it.
    before: &'a Recent,
    /// Events that this batch added and did not settle.
    pub added: Recent,
    /// Whether the earlier events are settled by now.
    pub settled: bool,
    /// The last event that this batch wrote: its number in this file and its hash.
    pub last: Option<(i64, Hash)>,
}

impl<'a> Batch<'a> {
    pub fn new(db: &'a Connection, known: &'a mut Known, before: &'a Recent) -> Batch<'a> {
        Batch { db, known, before, added: Recent::default(), settled: false, last: None }
    }

    /// A conversation at this point of the batch.
    fn conversation(
        &mut self,
        key: &Key,
        appends: bool,
    ) -> Result<Option<(i64, Arc<Conversation>)>, Failure> {
        let before = (!self.settled).then(|| self.before.conversations.get(key)).flatten();
        match self.added.conversations.get(key).or(before) {
            Some(recent) => Ok(Some((recent.no, recent.conversation.clone()))),
            None => self.known.get(self.db, key, appends),
        }
    }

    /// Writes all pending rows.
    pub fn settle(&mut self) -> rusqlite::Result<()> {
        let before = if self.settled { None } else { Some(self.before) };
        let mut touched: HashMap<i64, &Conversation> = HashMap::new();
        for recent in before.into_iter().chain([&self.added]) {
            touched.extend(recent.conversations.values().map(|entry| (entry.no, &*entry.conversation)));
        }
        if !touched.is_empty() {
            recent::settle(self.db, touched.into_iter())?;
        }
        self.settled = true;
        self.added = Recent::default();
        Ok(())
    }

    /// Number of pending events.
    fn waiting(&self) -> usize {
        self.added.events + if self.settled { 0 } else { self.before.events }
    }

    /// Applies one request. If it is refused, nothing was written for it.
    pub fn write(&mut self, request: Write) -> Result<Committed, Failure> {
        if !request.action.removes() {
            return self.write_once(request);
        }
        // Rows locate the content, also in other conversations. Unreadable ones are rebuilt.
        self.settle()?;
        let (db, last) = (self.db, self.last);
        match derived::atomically(db, || self.write_once(request.clone())) {
            Err(Failure::Broken(error)) if error.sqlite_error_code().is_none() => {
                self.last = last;
                self.known.forget();
                if let Some(no) = read::number(db, &request.key)? {
                    derived::mend_lineage(db, no).map_err(unmended)?;
                }
                derived::mend_malformed(db).map_err(unmended)?;
                derived::atomically(db, || self.write_once(request)).map_err(unmended)
            }
            answer => answer,
        }
    }

    fn write_once(&mut self, request: Write) -> Result<Committed, Failure> {
        let Write { key, action } = request;
        let existing = self.conversation(&key, action.appends())?;
        let answered = match action.idempotency() {
            Some((creation, asked)) => {
                self.answered(&key, creation, existing.as_ref().map(|(no, _)| *no), &asked.key)?
            }
            None => None,
        };
        self.prepare(&action, existing.as_ref())?;
        let plan = {
            let no = existing.as_ref().map(|(no, _)| *no);
            let conversation = existing.as_ref().map(|(_, conversation)| &**conversation);
            let lookup =
                InDatabase::new(self.db, &key, no, Some(&self.known.erasures)).forking(action.parent());
            lookup.answer(write::plan(&key, action, Existing { conversation, answered }, &lookup))?
        };
        let there = |existing: Option<(i64, Arc<Conversation>)>| existing.ok_or_else(|| write::absent(&key));
        match plan {
            Plan::Repeat(Answered { conversation, events, .. }) => {
                Ok(Committed { repeated: true, ..Committed::new(conversation, events) })
            }
            Plan::Append(append) => self.append(&key, existing, *append),
            Plan::Chunk(chunk) => {
                let (no, conversation) = there(existing)?;
                insert_chunk(self.db, no, &chunk)?;
                Ok(Committed::new(conversation, Vec::new()))
            }
            Plan::Remember(requests) => {
                let (no, conversation) = there(existing)?;
                requests.iter().try_for_each(|request| remember(self.db, &key, no, request))?;
                Ok(Committed::new(conversation, Vec::new()))
            }
            Plan::Delete(deletion) => {
                let (no, conversation) = there(existing)?;
                erase::delete(self.db, no, &deletion)?;
                self.known.conversations.remove(&key);
                let released = deletion.released;
                Ok(Committed { released, ..Committed::new(conversation, Vec::new()) })
            }
        }
    }

    /// Writes the rows that a plan may look up.
    fn prepare(
        &mut self,
        action: &Action,
        existing: Option<&(i64, Arc<Conversation>)>,
    ) -> Result<(), Failure> {
        let plain =
            |drafts: &[Draft]| drafts.iter().all(|d| matches!(&*d.kind, kind::MESSAGE | kind::TOOL_RESULT));
        match (action, existing) {
            // An append of complete turns looks up nothing that may still be pending.
            (Action::Append { drafts, .. }, _) if plain(drafts) => {}
            (Action::Chunk { .. } | Action::Remember { .. }, _) => {}
            (Action::Erase { turns, .. }, Some((no, conversation))) => {
                self.settle()?;
                lookup::check_places(self.db, *no, conversation.id, turns)?;
            }
            (Action::Delete { .. } | Action::Bury { .. }, Some((no, conversation))) => {
                self.settle()?;
                self.place_all(*no, conversation)?;
            }
            _ => self.settle()?,
        }
        Ok(())
    }

    /// Adds every event of a conversation to `places`, if one is missing: what is missing would not be deleted.
    fn place_all(&self, no: i64, conversation: &Conversation) -> rusqlite::Result<()> {
        let placed: i64 = self
            .db
            .prepare_cached(
                "SELECT count(*) FROM places p
                 JOIN events e ON e.no = p.event AND e.conversation = p.conversation AND e.seq = p.seq
                 WHERE p.conversation = ?",
            )?
            .query_row([no], |row| row.get(0))?;
        let floor = conversation.parent.map_or(0, |parent| parent.at_seq);
        if placed != signed(conversation.head.seq.saturating_sub(floor)) {
            derived::place(self.db, no, i64::MAX)?;
        }
        Ok(())
    }

    /// The events whose bodies these are.
    fn places(&self, erased: &[EventRef]) -> rusqlite::Result<Vec<EventAddress>> {
        let place = |at: &EventRef| {
            Ok(EventAddress { conversation: read::id(self.db, signed(at.conversation))?, seq: at.seq })
        };
        erased.iter().map(place).collect()
    }

    fn append(
        &mut self,
        key: &Key,
        existing: Option<(i64, Arc<Conversation>)>,
        append: PlannedAppend,
    ) -> Result<Committed, Failure> {
        let can_wait = recent::can_wait(&append);
        let PlannedAppend { conversation, events, changes, request, erasure } = append;
        let conversation = Arc::new(conversation);
        let no = match existing {
            Some((no, _)) if can_wait => {
                self.add(key, no, &conversation, &events)?;
                no
            }
            Some((no, before)) => {
                self.settle()?;
                update_conversation(self.db, no, &before, &conversation)?;
                self.last = insert(self.db, no, &events, &changes)?.or(self.last);
                no
            }
            None => {
                let no = insert_conversation(self.db, key, &conversation)?;
                self.last = insert(self.db, no, &events, &changes)?.or(self.last);
                no
            }
        };
        if let Some(request) = request {
            remember(self.db, key, no, &request)?;
        }
        let mut committed = Committed::new(conversation.clone(), events);
        match erasure {
            None => self.known.put(key.clone(), no, conversation),
            Some(erasure) => {
                erase::erase(self.db, &erasure)?;
                committed.erased = self.places(&erasure.bodies)?;
                committed.released = erasure.released;
                self.known.erasures.extend(erasure.bodies);
                // Any conversation of the tenant may have another checkpoint now.
                self.known.forget();
            }
        }
        Ok(committed)
    }

    /// Writes complete turns into the log and queues their rows.
    fn add(
        &mut self,
        key: &Key,
        no: i64,
        conversation: &Arc<Conversation>,
        events: &[Event],
    ) -> rusqlite::Result<()> {
        for event in events {
            self.last = Some((insert_event(self.db, no, event)?, event.hash));
        }
        self.added.add(key, no, conversation, events.iter().cloned().map(Arc::new));
        if self.waiting() > UNSETTLED_EVENTS_MAX {
            self.settle()?;
        }
        Ok(())
    }

    /// The request that was answered under this key, with its events.
    fn answered(
        &mut self,
        key: &Key,
        creation: bool,
        no: Option<i64>,
        name: &str,
    ) -> Result<Option<Answered>, Failure> {
        let scope = match (creation, no) {
            (true, _) => tenant_scope(key),
            (false, Some(no)) => conversation_scope(no),
            (false, None) => return Ok(None),
        };
        let found = self
            .db
            .prepare_cached(
                "SELECT i.fingerprint, i.first_seq, i.last_seq, c.id, c.no FROM idempotency i JOIN conversation_rows c ON c.no = i.conversation
                 WHERE i.scope = ? AND i.key = ?",
            )?
            .query_row(params![scope, name], |row| {
                let id = everturn_core::id::ConversationId::from_bytes(row.get::<_, Bytes<16>>("id")?.0);
                let (first, last) =
                    (rows::unsigned(row, "first_seq").ok(), rows::unsigned(row, "last_seq").ok());
                let fingerprint = row.get::<_, Bytes<32>>("fingerprint").ok();
                Ok((fingerprint.zip(first.zip(last)), id, row.get::<_, i64>("no")?))
            })
            .optional()?;
        // An unreadable row is ignored, and replaced.
        let Some((Some((fingerprint, (first, last))), id, no)) = found else { return Ok(None) };
        self.settle()?;
        let key = Key { tenant: key.tenant.clone(), id };
        let (_, conversation) = self.known.get(self.db, &key, false)?.ok_or_else(|| write::absent(&key))?;
        if first == 0 || last < first || last > conversation.head.seq {
            // No request of this conversation has such an answer: the row is damaged, and is replaced.
            return Ok(None);
        }
        let lineage = lineage(self.db, no, id)?;
        let count = (last - first + 1) as usize;
        let mut events = read::events(self.db, &lineage, first - 1, count)?;
        if events.first().is_none_or(|event| event.seq != first) {
            // Its entry in `places` is wrong.
            derived::mend(self.db, no).map_err(unmended)?;
            events = read::events(self.db, &lineage, first - 1, count)?;
        }
        Ok(Some(Answered { fingerprint: Hash(fingerprint.0), conversation, events }))
    }
}

/// Keys of creations are unique in a tenant.
pub fn tenant_scope(key: &Key) -> String {
    format!("tenant:{}", key.tenant)
}

/// Keys of appends are unique in a conversation.
pub fn conversation_scope(no: i64) -> String {
    format!("conversation:{no}")
}

fn remember(db: &Connection, key: &Key, no: i64, request: &AnsweredRequest) -> rusqlite::Result<()> {
    let scope = if request.creation { tenant_scope(key) } else { conversation_scope(no) };
    db.prepare_cached("INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?, ?)")?
        .execute(params![
            scope,
            request.key,
            Bytes(request.fingerprint.0),
            no,
            signed(request.first_seq),
            signed(request.last_seq)
        ])
        .map(drop)
}

/// Writes events with all their rows. Nothing else may be pending. Returns the number and the hash of the last
/// one.
fn insert(
    db: &Connection,
    no: i64,
    events: &[Event],
    changes: &Changes,
) -> rusqlite::Result<Option<(i64, Hash)>> {
    let mut last = None;
    for event in events {
        let place = insert_event(db, no, event)?;
        db.prepare_cached("INSERT OR REPLACE INTO places VALUES (?, ?, ?)")?.execute(params![
            no,
            signed(event.seq),
            place
        ])?;
        last = Some((place, event.hash));
    }
    insert_changes(db, no, changes)?;
    for turn_seq in &changes.ended {
        erase::chunks(db, no, *turn_seq)?;
    }
    recent::mark(db)?;
    Ok(last)
}

fn insert_chunk(db: &Connection, no: i64, chunk: &ChunkRow) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT INTO chunks (conversation, turn_seq, offset, text) VALUES (?, ?, ?, ?)")?
        .execute(params![no, signed(chunk.turn_seq), signed(chunk.offset), chunk.text])
        .map(drop)
}

/// Writes an event and returns its number in this file.
fn insert_event(db: &Connection, no: i64, event: &Event) -> rusqlite::Result<i64> {
    let (salt, text) = event.body.as_ref().map_or(([0; 16], ""), |body| (body.salt, body.text.as_str()));
    db.prepare_cached(
        "INSERT INTO events (conversation, seq, id, at, occurred_at, kind, actor, role, visibility, turn, body_hash, hash, salt, body, written_by)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        no,
        signed(event.seq),
        Bytes(event.id.to_bytes()),
        event.at.0,
        event.occurred_at.map(|at| at.0),
        event.kind,
        event.actor,
        event.role.map(|role| role.as_str()),
        event.visibility.as_str(),
        event.turn.map(|turn| Bytes(turn.to_bytes())),
        Bytes(event.body_hash.0),
        Bytes(event.hash.0),
        Bytes(salt),
        text,
        event.key,
    ])?;
    Ok(db.last_insert_rowid())
}

/// Writes derived rows.
pub fn insert_changes(db: &Connection, no: i64, changes: &Changes) -> rusqlite::Result<()> {
    for row in &changes.turns {
        db.prepare_cached("INSERT OR REPLACE INTO turn_rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                no,
                signed(row.seq),
                Bytes(row.id.to_bytes()),
                row.actor,
                row.role.as_str(),
                row.status.as_str(),
                row.created.0,
                row.content_seq.map(signed),
                row.superseded_by.map(|by| by.to_string()),
                row.superseded_seq.map(signed),
                Some(row.place).filter(|place| *place != row.seq).map(signed),
                row.placed_seq.map(signed),
            ])?;
    }
    for asset in &changes.assets {
        db.prepare_cached("INSERT OR REPLACE INTO assets VALUES (?, ?, ?, ?)")?.execute(params![
            no,
            asset.id,
            signed(asset.seq),
            asset.sha256.map(|hash| Bytes(hash.0))
        ])?;
    }
    for reference in &changes.references {
        db.prepare_cached("INSERT OR IGNORE INTO asset_references VALUES (?, ?, ?)")?.execute(params![
            no,
            signed(reference.turn_seq),
            reference.asset
        ])?;
    }
    for fact in &changes.facts {
        db.prepare_cached("INSERT OR REPLACE INTO fact_rows VALUES (?, ?, ?, ?, ?)")?.execute(params![
            no,
            signed(fact.seq),
            Bytes(fact.id.to_bytes()),
            fact.source_turn.map(|turn| Bytes(turn.to_bytes())),
            fact.corrects.map(|fact| Bytes(fact.to_bytes()))
        ])?;
    }
    for summary in &changes.summaries {
        db.prepare_cached("INSERT OR REPLACE INTO summaries VALUES (?, ?, ?)")?.execute(params![
            no,
            signed(summary.seq),
            signed(summary.through_seq)
        ])?;
    }
    for echo in &changes.echoes {
        db.prepare_cached("INSERT OR IGNORE INTO echoes VALUES (?, ?, ?)")?.execute(params![
            no,
            signed(echo.seq),
            echo.bucket
        ])?;
    }
    Ok(())
}

fn insert_conversation(db: &Connection, key: &Key, conversation: &Conversation) -> rusqlite::Result<i64> {
    let parent: Option<i64> = match conversation.parent {
        None => None,
        Some(parent) => Some(db.query_row(
            "SELECT no FROM conversation_rows WHERE tenant = ? AND id = ?",
            params![key.tenant.as_str(), Bytes(parent.conversation.to_bytes())],
            |row| row.get(0),
        )?),
    };
    // A deleted conversation that is restored by import replaces its tombstone.
    let buried: Option<i64> = db
        .query_row(
            "SELECT no FROM conversation_rows WHERE tenant = ? AND id = ?",
            params![key.tenant.as_str(), Bytes(key.id.to_bytes())],
            |row| row.get(0),
        )
        .optional()?;
    if let Some(no) = buried {
        erase::bury(db, no)?;
    }
    db.prepare_cached(
        "INSERT INTO conversation_rows (tenant, id, participants, metadata, state, created, updated, retention, policy, head_seq,
             head_hash, turns, parent, parent_seq)
         VALUES (?, ?, '[]', '{}', 'active', ?, 0, 'full', '{}', 0, x'', 0, ?, ?)",
    )?
    .execute(params![
        key.tenant.as_str(),
        Bytes(key.id.to_bytes()),
        conversation.created.0,
        parent,
        conversation.parent.map(|parent| signed(parent.at_seq)),
    ])?;
    let no = db.last_insert_rowid();
    update_all(db, no, conversation)?;
    Ok(no)
}

/// Writes the changed columns: most appends only move the head.
fn update_conversation(
    db: &Connection,
    no: i64,
    before: &Conversation,
    after: &Conversation,
) -> rusqlite::Result<()> {
    let moved = Conversation {
        head: after.head,
        updated: after.updated,
        began: after.began,
        last_said: after.last_said,
        turns: after.turns,
        ..before.clone()
    };
    if moved != *after {
        // Overwritten first: a shorter value would leave the rest of the old one behind.
        if before.title != after.title {
            erase::wipe(db, "conversation_rows", &["title"], no, b' ')?;
        }
        if before.metadata != after.metadata {
            erase::wipe(db, "conversation_rows", &["metadata"], no, b' ')?;
        }
        return update_all(db, no, after);
    }
    db.prepare_cached("UPDATE conversation_rows SET head_seq = ?, head_hash = ?, updated = ?, began = ?, said = ?, turns = ?, expires = ? WHERE no = ?")?
        .execute(params![
            signed(after.head.seq),
            Bytes(after.head.hash.0),
            after.updated.0,
            after.began.map(|at| at.0),
            after.said().0,
            signed(after.turns),
            after.expires().map(|at| at.0),
            no
        ])
        .map(drop)
}

pub fn update_all(db: &Connection, no: i64, conversation: &Conversation) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE conversation_rows SET owner = ?, title = ?, participants = ?, metadata = ?, state = ?, updated = ?, began = ?, said = ?,
             summarized_through = ?, ttl = ?, expires = ?, retention = ?, policy = ?, head_seq = ?, head_hash = ?, turns = ?,
             predecessor = ?, prompt_sha256 = ?, prompt_seq = ?, checkpoint = ?, budget = ?
         WHERE no = ?",
    )?
    .execute(params![
        conversation.owner,
        conversation.title,
        json(&conversation.participants)?,
        json(&conversation.metadata)?,
        conversation.state.as_str(),
        conversation.updated.0,
        conversation.began.map(|at| at.0),
        conversation.said().0,
        conversation.summarized_through.map(|turn| Bytes(turn.to_bytes())),
        conversation.ttl.map(signed),
        conversation.expires().map(|at| at.0),
        conversation.retention.as_str(),
        json(&conversation.policy)?,
        signed(conversation.head.seq),
        Bytes(conversation.head.hash.0),
        signed(conversation.turns),
        conversation.predecessor.map(|id| Bytes(id.to_bytes())),
        conversation.system_prompt.map(|prompt| Bytes(prompt.sha256.0)),
        conversation.system_prompt.map(|prompt| signed(prompt.seq)),
        conversation.checkpoint.map(|checkpoint| json(&checkpoint)).transpose()?,
        conversation.budget.map(|budget| json(&budget)).transpose()?,
        no,
    ])
    .map(drop)
}

pub fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}
