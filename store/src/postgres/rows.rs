//! Conversion between rows and values. An invalid stored value is `Corrupt`, never a panic.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::error::code;
use everturn_core::event::{Body, Event};
use everturn_core::id::{ConversationId, EventId, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::TurnRow;
use std::str::FromStr;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

pub fn wrong(what: impl std::fmt::Display) -> Error {
    Error::corrupt(code::STORE_ROW, format!("a row cannot be read: {what}"))
}

pub fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Error> {
    row.try_get(column).map_err(wrong)
}

pub fn unsigned(row: &Row, column: usize) -> Result<u64, Error> {
    u64::try_from(get::<i64>(row, column)?).map_err(wrong)
}

pub fn optional_unsigned(row: &Row, column: usize) -> Result<Option<u64>, Error> {
    get::<Option<i64>>(row, column)?.map(|n| u64::try_from(n).map_err(wrong)).transpose()
}

pub fn bytes<const N: usize>(row: &Row, column: usize) -> Result<[u8; N], Error> {
    get::<&[u8]>(row, column)?.try_into().map_err(wrong)
}

pub fn optional_bytes<const N: usize>(row: &Row, column: usize) -> Result<Option<[u8; N]>, Error> {
    get::<Option<&[u8]>>(row, column)?.map(|b| b.try_into().map_err(wrong)).transpose()
}

pub fn parsed<T: FromStr<Err = Error>>(row: &Row, column: usize) -> Result<T, Error> {
    get::<&str>(row, column)?.parse()
}

pub fn optional_parsed<T: FromStr<Err = Error>>(row: &Row, column: usize) -> Result<Option<T>, Error> {
    get::<Option<&str>>(row, column)?.map(str::parse).transpose()
}

/// PostgreSQL's integers are signed, and none of our counters gets near their maximum.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub fn conversation(text: &str) -> Result<Conversation, Error> {
    serde_json::from_str(text).map_err(wrong)
}

pub fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|e| Error::internal("store.json", e.to_string()))
}

pub const EVENT_COLUMNS: &str = "e.seq, e.id, e.at, e.occurred_at, e.kind, e.actor, e.role, e.visibility, e.turn, e.body_hash, e.hash, e.salt, e.body, e.written_by";

/// An event; its `prev` is the hash of the one before.
pub fn event(row: &Row, conversation: ConversationId, prev: Hash) -> Result<Event, Error> {
    let salt = optional_bytes::<16>(row, 11)?;
    let text: Option<String> = get(row, 12)?;
    Ok(Event {
        seq: unsigned(row, 0)?,
        id: EventId::from_bytes(bytes(row, 1)?),
        conversation,
        at: Timestamp(get(row, 2)?),
        occurred_at: get::<Option<i64>>(row, 3)?.map(Timestamp),
        kind: get(row, 4)?,
        actor: get(row, 5)?,
        role: optional_parsed(row, 6)?,
        visibility: parsed(row, 7)?,
        turn: optional_bytes(row, 8)?.map(TurnId::from_bytes),
        body_hash: Hash(bytes(row, 9)?),
        hash: Hash(bytes(row, 10)?),
        key: get(row, 13)?,
        hidden: false,
        body: salt.zip(text).map(|(salt, text)| Body { salt, text }),
        prev,
    })
}

pub const TURN_COLUMNS: &str = "t.seq, t.id, t.actor, t.role, t.status, t.created, t.content_seq, t.superseded_by, t.superseded_seq, t.place, t.placed_seq";

pub fn turn(row: &Row) -> Result<TurnRow, Error> {
    Ok(TurnRow {
        seq: unsigned(row, 0)?,
        id: TurnId::from_bytes(bytes(row, 1)?),
        actor: get(row, 2)?,
        role: parsed(row, 3)?,
        status: parsed(row, 4)?,
        created: Timestamp(get(row, 5)?),
        content_seq: optional_unsigned(row, 6)?,
        superseded_by: optional_parsed(row, 7)?,
        superseded_seq: optional_unsigned(row, 8)?,
        place: unsigned(row, 9)?,
        placed_seq: optional_unsigned(row, 10)?,
    })
}
