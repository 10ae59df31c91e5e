//! Conversion between rows and values. An invalid stored value is `Corrupt`, never a panic.

use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Parent, PromptRef};
use everturn_core::event::{Body, Event};
use everturn_core::id::{ConversationId, EventId, TenantName, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::TurnRow;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Row, RowIndex, ToSql};
use std::str::FromStr;

/// A failure inside a transaction: either the request is refused, or the database is broken.
pub enum Failure {
    /// The request is refused and has written nothing; the rest of the batch continues.
    Refused(Error),
    /// The whole transaction must be rolled back.
    Broken(rusqlite::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Refused(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        Failure::Broken(error)
    }
}

/// A derived row that cannot be read. Rebuilt from the log, it can.
#[derive(Debug)]
struct Malformed(String);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// Marks an error as one of a derived row.
pub fn malformed(row: &str, error: &rusqlite::Error) -> rusqlite::Error {
    FromSqlError::Other(Box::new(Malformed(format!("{row} is malformed ({error})")))).into()
}

/// The message about a derived row that cannot be read; `None` for any other error.
pub fn malformed_row(error: &rusqlite::Error) -> Option<String> {
    match error {
        rusqlite::Error::FromSqlConversionFailure(_, _, source) => {
            source.downcast_ref::<Malformed>().map(Malformed::to_string)
        }
        _ => None,
    }
}

/// Sixteen or thirty-two bytes as a column.
pub struct Bytes<const N: usize>(pub [u8; N]);

impl<const N: usize> FromSql for Bytes<N> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_blob()?.try_into().map(Bytes).map_err(|_| FromSqlError::InvalidType)
    }
}

impl<const N: usize> ToSql for Bytes<N> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(&self.0)))
    }
}

/// A name or a JSON text as a column.
pub struct Parsed<T>(pub T);

impl<T: FromStr<Err = Error>> FromSql for Parsed<T> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map(Parsed).map_err(|e| FromSqlError::Other(Box::new(e)))
    }
}

pub fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text).map_err(|e| FromSqlError::Other(Box::new(e)).into())
}

fn optional_json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => json(row, column).map(Some),
    }
}

/// A non-negative number.
pub fn unsigned(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<u64> {
    optional_unsigned(row, column)?.ok_or_else(|| FromSqlError::InvalidType.into())
}

fn optional_unsigned(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Option<u64>> {
    let number: Option<i64> = row.get(column)?;
    number.map(|n| u64::try_from(n).map_err(|_| FromSqlError::OutOfRange(n).into())).transpose()
}

/// For parameters: SQLite's integers are signed, and none of our counters gets near their maximum.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub const CONVERSATION_COLUMNS: &str = "c.no, c.tenant, c.id, c.owner, c.title, c.participants, c.metadata, c.state, c.created, c.updated, c.began, c.said,
    c.summarized_through, c.ttl, c.retention, c.policy, c.head_seq, c.head_hash, c.turns, c.parent_seq, c.predecessor,
    c.prompt_sha256, c.prompt_seq, c.checkpoint, c.budget, (SELECT p.id FROM conversation_rows p WHERE p.no = c.parent) AS parent_id";

/// Names the row in its error.
pub fn conversation(row: &Row<'_>) -> rusqlite::Result<(i64, Conversation)> {
    read_conversation(row).map_err(|error| match row.get::<_, Bytes<16>>("id") {
        Ok(id) => malformed(&format!("the row of {}", ConversationId::from_bytes(id.0)), &error),
        Err(_) => malformed("the row of a conversation", &error),
    })
}

fn read_conversation(row: &Row<'_>) -> rusqlite::Result<(i64, Conversation)> {
    let id = |column| row.get::<_, Option<Bytes<16>>>(column);
    let tenant: String = row.get("tenant")?;
    let parent = match (id("parent_id")?, optional_unsigned(row, "parent_seq")?) {
        (Some(id), Some(at_seq)) => Some(Parent { conversation: ConversationId::from_bytes(id.0), at_seq }),
        (None, None) => None,
        _ => return Err(FromSqlError::Other("half of its parent is missing".into()).into()),
    };
    let prompt =
        match (row.get::<_, Option<Bytes<32>>>("prompt_sha256")?, optional_unsigned(row, "prompt_seq")?) {
            (Some(sha256), Some(seq)) => Some(PromptRef { sha256: Hash(sha256.0), seq }),
            _ => None,
        };
    let time = |column| row.get::<_, Option<i64>>(column).map(|at| at.map(Timestamp));
    let (began, said) = (time("began")?, time("said")?);
    let conversation = Conversation {
        id: ConversationId::from_bytes(row.get::<_, Bytes<16>>("id")?.0),
        tenant: TenantName::new(tenant).map_err(|e| FromSqlError::Other(Box::new(e)))?,
        owner: row.get("owner")?,
        title: row.get("title")?,
        preview: None,
        participants: json(row, "participants")?,
        metadata: json(row, "metadata")?,
        state: row.get::<_, Parsed<_>>("state")?.0,
        created: Timestamp(row.get("created")?),
        updated: Timestamp(row.get("updated")?),
        began,
        last_said: began.and(said),
        summarized_through: id("summarized_through")?.map(|id| TurnId::from_bytes(id.0)),
        ttl: optional_unsigned(row, "ttl")?,
        retention: row.get::<_, Parsed<_>>("retention")?.0,
        policy: json(row, "policy")?,
        head: Head { seq: unsigned(row, "head_seq")?, hash: Hash(row.get::<_, Bytes<32>>("head_hash")?.0) },
        turns: unsigned(row, "turns")?,
        parent,
        predecessor: id("predecessor")?.map(|id| ConversationId::from_bytes(id.0)),
        system_prompt: prompt,
        checkpoint: optional_json(row, "checkpoint")?,
        budget: optional_json(row, "budget")?,
        transcript_budget: None,
    };
    Ok((row.get("no")?, conversation))
}

/// Must come first in a query: [`event`] reads them by number, since looking up their names took a quarter of
/// the time of a page.
pub const EVENT_COLUMNS: &str = "events.seq, events.id, at, occurred_at, kind, actor, role, visibility, turn, body_hash, hash, salt, body, written_by";

/// An event without its `prev`, which is the hash of the one before.
pub fn event(row: &Row<'_>, conversation: ConversationId, prev: Hash) -> rusqlite::Result<Event> {
    let (salt, text) = (row.get::<_, Bytes<16>>(11)?.0, row.get_ref(12)?.as_str()?);
    // Erasing overwrites both. Text without its salt is damage, which the hash reveals.
    let erased = salt == [0; 16] && text.bytes().all(|byte| byte == b' ');
    let body = (!erased).then(|| Body { salt, text: text.to_string() });
    Ok(Event {
        id: EventId::from_bytes(row.get::<_, Bytes<16>>(1)?.0),
        conversation,
        seq: unsigned(row, 0)?,
        at: Timestamp(row.get(2)?),
        occurred_at: row.get::<_, Option<i64>>(3)?.map(Timestamp),
        kind: row.get(4)?,
        actor: row.get(5)?,
        role: row.get::<_, Option<Parsed<_>>>(6)?.map(|role| role.0),
        visibility: row.get::<_, Parsed<_>>(7)?.0,
        turn: row.get::<_, Option<Bytes<16>>>(8)?.map(|id| TurnId::from_bytes(id.0)),
        key: row.get(13)?,
        hidden: false,
        body,
        body_hash: Hash(row.get::<_, Bytes<32>>(9)?.0),
        prev,
        hash: Hash(row.get::<_, Bytes<32>>(10)?.0),
    })
}

/// Must come first too.
pub const TURN_COLUMNS: &str = "t.seq, t.id, t.actor, t.role, t.status, t.created, t.content_seq, t.superseded_by, t.superseded_seq, t.place, t.placed_seq";

pub fn turn(row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    read_turn(row).map_err(|error| malformed("the row of a turn", &error))
}

fn read_turn(row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    let seq = unsigned(row, 0)?;
    let place = optional_unsigned(row, 9)?.unwrap_or(seq);
    if !(1..=seq).contains(&place) {
        return Err(FromSqlError::OutOfRange(signed(place)).into());
    }
    Ok(TurnRow {
        id: TurnId::from_bytes(row.get::<_, Bytes<16>>(1)?.0),
        seq,
        actor: row.get(2)?,
        role: row.get::<_, Parsed<_>>(3)?.0,
        status: row.get::<_, Parsed<_>>(4)?.0,
        created: Timestamp(row.get(5)?),
        content_seq: optional_unsigned(row, 6)?,
        superseded_by: row.get::<_, Option<Parsed<_>>>(7)?.map(|by| by.0),
        superseded_seq: optional_unsigned(row, 8)?,
        place,
        placed_seq: optional_unsigned(row, 10)?,
    })
}
