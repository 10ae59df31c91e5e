//! Conversations in OpenAI's format, and a list of them, which OpenAI does not have.

use super::error::RequestError;
use super::fields::{Fields, check_metadata};
use super::{compact, items, sealed};
use crate::access::{Admin, Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path, Query};
use axum::Router;
use axum::routing::{get, post};
use everturn_core::Error;
use everturn_core::conversation::{Conversation, HIDDEN, Settings};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::{ListQuery, NewTurn, Tenant};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of items in one request.
pub const ITEMS_MAX: usize = 20;
/// Maximum and default number of entries of a page.
pub const PAGE_MAX: usize = 100;
const PAGE_DEFAULT: usize = 20;

/// `/v1/conversations`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/conversations", post(create).get(list))
        .route("/v1/conversations/{id}", get(retrieve).post(update).delete(delete))
}

/// A conversation in OpenAI's format. Only text metadata is shown.
pub fn object(conversation: &Conversation) -> Value {
    let metadata: Map<String, Value> = texts(conversation).map(|(k, v)| (k.clone(), json!(v))).collect();
    json!({
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created.0.div_euclid(1_000_000),
        "metadata": metadata,
    })
}

pub fn texts(conversation: &Conversation) -> impl Iterator<Item = (&String, String)> {
    let shown = conversation.metadata.iter().filter(|(key, _)| *key != HIDDEN);
    shown.filter_map(|(key, raw)| Some((key, raw.read::<String>()?)))
}

pub fn raw_metadata(metadata: BTreeMap<String, String>) -> Result<BTreeMap<String, Raw>, RequestError> {
    check_metadata(&metadata)?;
    if metadata.contains_key(HIDDEN) {
        return Err(RequestError::field(
            "metadata",
            format!("{HIDDEN} is written by Everturn itself; choose another key"),
        ));
    }
    metadata.into_iter().map(|(key, value)| Ok((key, Raw::of(&value)?))).collect()
}

/// The message of an item: its JSON as it came, or the message packed in it.
pub fn message_of(item: &Raw) -> Result<String, Error> {
    let unpacked = match compact::summary_of(item)? {
        None => sealed::thoughts_of(item)?,
        summary => summary,
    };
    Ok(unpacked.unwrap_or_else(|| item.get().to_string()))
}

/// The turn that an item becomes.
pub fn new_turn(item: &Raw) -> Result<NewTurn, Error> {
    message_of(item).map(NewTurn::message)
}

/// At most [`ITEMS_MAX`] items, as turns.
pub fn new_turns(given: &[Raw]) -> Result<Vec<NewTurn>, RequestError> {
    if given.len() > ITEMS_MAX {
        let text = format!(
            "at most {ITEMS_MAX} items are accepted at once, these are {}; send them in parts",
            given.len()
        );
        return Err(RequestError::field("items", text));
    }
    given.iter().map(|item| new_turn(item).map_err(RequestError::at("items"))).collect()
}

/// Appends items, and returns them.
pub async fn append(
    tenant: Tenant,
    id: ConversationId,
    turns: Vec<NewTurn>,
) -> Result<Vec<Value>, RequestError> {
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let appended = tenant.conversation(id).append_all(turns).await.map_err(RequestError::at("items"))?;
    Ok(blocking(move || Ok(appended.turns.iter().flat_map(|turn| items::of_turn(&tenant, turn)).collect()))
        .await?)
}

async fn create(
    Writer(tenant): Writer,
    Json(mut body): Json<Fields>,
) -> Result<axum::Json<Value>, RequestError> {
    let given: Vec<Raw> = body.take("items")?.unwrap_or_default();
    let turns = new_turns(&given)?;
    let metadata = raw_metadata(body.take("metadata")?.unwrap_or_default())?;
    let settings = Settings { metadata, ..Settings::default() };
    let chat = tenant.create(settings).await?;
    if let Err(refused) = append(tenant, chat.id(), turns).await {
        chat.delete("its first items were refused").await?;
        return Err(refused);
    }
    Ok(axum::Json(object(&blocking(move || chat.get()).await?)))
}

async fn retrieve(
    Reader(tenant): Reader,
    Path(id): Path<ConversationId>,
) -> Result<axum::Json<Value>, RequestError> {
    Ok(axum::Json(object(&blocking(move || tenant.conversation(id).get()).await?)))
}

async fn update(
    Writer(tenant): Writer,
    Path(id): Path<ConversationId>,
    Json(mut body): Json<Fields>,
) -> Result<axum::Json<Value>, RequestError> {
    let metadata = body.take("metadata")?.unwrap_or_default();
    Ok(axum::Json(object(&replace_metadata(&tenant, id, metadata).await?)))
}

/// Replaces the metadata of a conversation that this interface shows.
pub async fn replace_metadata(
    tenant: &Tenant,
    id: ConversationId,
    metadata: BTreeMap<String, String>,
) -> Result<Conversation, RequestError> {
    let mut metadata = raw_metadata(metadata)?;
    let chat = tenant.conversation(id);
    let reading = chat.clone();
    let now = blocking(move || reading.get()).await?;
    for (key, _) in texts(&now) {
        metadata.entry(key.clone()).or_insert(Raw::of(&Value::Null)?);
    }
    // A stricter retention erases what is summarized already, which takes time.
    Ok(blocking(move || chat.update(Settings { metadata, ..Settings::default() }).wait()).await?)
}

async fn delete(
    Admin(tenant): Admin,
    Path(id): Path<ConversationId>,
) -> Result<axum::Json<Value>, RequestError> {
    tenant.conversation(id).delete("deleted through /v1/conversations").await?;
    Ok(axum::Json(json!({"id": id, "object": "conversation.deleted", "deleted": true})))
}

#[derive(Deserialize)]
pub struct Paging {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
}

impl Paging {
    /// Whether an order was given.
    pub fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// The last entry of the previous page.
    pub fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    pub fn limit(&self) -> Result<usize, RequestError> {
        match self.limit.unwrap_or(PAGE_DEFAULT) {
            limit @ 1..=PAGE_MAX => Ok(limit),
            limit => Err(RequestError::field("limit", format!("limit is {limit}; give 1 to {PAGE_MAX}"))),
        }
    }

    /// Newest first, unless `order` is `asc`.
    pub fn newest_first(&self) -> Result<bool, RequestError> {
        match self.order.as_deref() {
            None | Some("desc") => Ok(true),
            Some("asc") => Ok(false),
            Some(_) => Err(RequestError::field("order", "order is neither asc nor desc")),
        }
    }
}

/// A page in OpenAI's format.
pub fn page(data: Vec<Value>, has_more: bool) -> axum::Json<Value> {
    let id = |entry: Option<&Value>| entry.map_or(json!(""), |entry| entry["id"].clone());
    axum::Json(json!({
        "object": "list",
        "first_id": id(data.first()),
        "last_id": id(data.last()),
        "has_more": has_more,
        "data": data,
    }))
}

/// Conversations, by the time of the latest turn, newest first.
async fn list(
    Reader(tenant): Reader,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Value>, RequestError> {
    let limit = paging.limit()?;
    if !paging.newest_first()? {
        return Err(RequestError::field("order", "conversations are listed latest first; leave order out"));
    }
    let after: Option<ConversationId> =
        paging.after().map(|id| id.parse().map_err(RequestError::at("after"))).transpose()?;
    let mut found = blocking(move || {
        let mut query = ListQuery { limit: PAGE_MAX, ..ListQuery::default() };
        if let Some(id) = after {
            let last = tenant.conversation(id).get()?;
            query.after = Some((last.said(), last.id));
        }
        let mut found = Vec::new();
        loop {
            let page = tenant.list(query.clone())?;
            found.extend(page.data.iter().filter(|conversation| !conversation.is_hidden()).map(object));
            query.after = page.next;
            if page.next.is_none() || found.len() > limit {
                return Ok(found);
            }
        }
    })
    .await?;
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(page(found, more))
}
