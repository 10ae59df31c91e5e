//! Stored chat completions. Each has a hidden conversation of its own, whose id is the completion's; the last turn of the
//! reply holds the completion.

use super::conversations::{Paging, page, raw_metadata, replace_metadata, texts};
use super::error::RequestError;
use super::fields::Fields;
use super::recorded::Recorder;
use super::responses::fresh;
use super::{ids, items, stored};
use crate::access::{Admin, Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path, Query};
use axum::Router;
use axum::routing::get;
use everturn_core::Error;
use everturn_core::conversation::{Conversation, HIDDEN, Settings};
use everturn_core::id::{ConversationId, TurnId, clip};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::turn::Turn;
use everturn_engine::{HistoryQuery, ListQuery, Order, Tenant};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Its key in the metadata of the reply's last turn.
pub const KEY: &str = "openai.completion";

const PREFIX: &str = "chatcmpl-";
/// Value of [`HIDDEN`] in the conversation of a completion.
const OF_CHAT: &str = "chat";

/// `/v1/chat/completions`, apart from the creation.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", get(list))
        .route("/v1/chat/completions/{id}", get(retrieve).post(update).delete(delete))
        .route("/v1/chat/completions/{id}/messages", get(messages))
}

/// The id of a completion: that of its conversation, or a new one if it is not stored.
pub fn id(conversation: Option<ConversationId>) -> Result<String, Error> {
    let ulid = conversation.map(|id| id.0).map_or_else(|| fresh().map(|turn| turn.0), Ok)?;
    Ok(format!("{PREFIX}{ulid}"))
}

/// Begins a conversation for a completion.
pub async fn begin(tenant: &Tenant, metadata: Map<String, Value>) -> Result<Recorder, RequestError> {
    let texts = metadata.into_iter().map(|(key, value)| match value {
        Value::String(text) => Ok((key, text)),
        _ => Err(RequestError::field("metadata", format!("metadata.{} is not a text", clip(&key)))),
    });
    let mut metadata = raw_metadata(texts.collect::<Result<BTreeMap<_, _>, _>>()?)?;
    metadata.insert(HIDDEN.to_string(), Raw::of(&OF_CHAT)?);
    let chat = tenant.create(Settings { metadata, ..Settings::default() }).await?;
    Ok(Recorder::new(tenant, chat.id(), "openai-chat"))
}

fn absent(id: &str) -> Error {
    let text =
        format!("there is no stored chat completion {:?}; only those created with store are kept", clip(id));
    Error::not_found("completion_not_found", text)
}

/// The conversation of a completion.
fn find(tenant: &Tenant, id: &str) -> Result<Conversation, Error> {
    let ulid = id.strip_prefix(PREFIX).ok_or_else(|| absent(id))?;
    let conversation = format!("{}{ulid}", ConversationId::PREFIX).parse().map_err(|_| absent(id))?;
    match tenant.conversation(conversation).get() {
        Ok(conversation) if is_completion(&conversation) => Ok(conversation),
        Ok(_) | Err(Error::NotFound(_)) => Err(absent(id)),
        Err(error) => Err(error),
    }
}

fn is_completion(conversation: &Conversation) -> bool {
    conversation.metadata.get(HIDDEN).and_then(|raw| raw.read::<String>()).is_some_and(|kind| kind == OF_CHAT)
}

/// The completion in a conversation; `None` while there is no reply, or once it was erased.
fn object(tenant: &Tenant, conversation: &Conversation) -> Result<Option<Value>, Error> {
    let query = HistoryQuery { limit: 1, order: Order::Descending, ..HistoryQuery::default() };
    let last = stored::turns(tenant, conversation.id, query)?.pop();
    let Some(mut object) = last.and_then(|turn| turn.metadata.get(KEY)?.read::<Value>()) else {
        return Ok(None);
    };
    object["metadata"] = texts(conversation).map(|(key, text)| (key.clone(), json!(text))).collect();
    Ok(Some(object))
}

/// Query of the list: a model, and metadata as `metadata[key]=value`.
fn matches(query: &BTreeMap<String, String>, object: &Value) -> bool {
    query.iter().all(|(name, wanted)| {
        let key = name.strip_prefix("metadata[").and_then(|rest| rest.strip_suffix(']'));
        match (name.as_str(), key) {
            ("model", _) => object["model"] == *wanted,
            (_, Some(key)) => object["metadata"][key] == *wanted,
            _ => true,
        }
    })
}

/// Completions, oldest first unless asked otherwise.
async fn list(
    Reader(tenant): Reader,
    Query(paging): Query<Paging>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<axum::Json<Value>, RequestError> {
    let (limit, newest_first) = (paging.limit()?, paging.has_order() && paging.newest_first()?);
    let mut found = blocking(move || {
        let after =
            paging.after().map(|id| find(&tenant, id)).transpose()?.map(|conversation| conversation.id);
        let mut all = Vec::new();
        let mut next = ListQuery { limit: PAGE_ENTRIES_MAX, ..ListQuery::default() };
        loop {
            let page = tenant.list(next.clone())?;
            all.extend(page.data.into_iter().filter(is_completion));
            next.after = page.next;
            if next.after.is_none() {
                break;
            }
        }
        // Ids are in the order of creation.
        all.sort_by_key(|conversation| conversation.id);
        if newest_first {
            all.reverse();
        }
        let follows =
            |id: ConversationId| after.is_none_or(|after| if newest_first { id < after } else { id > after });
        let mut found = Vec::new();
        for conversation in all.iter().filter(|conversation| follows(conversation.id)) {
            found.extend(object(&tenant, conversation)?.filter(|object| matches(&query, object)));
            if found.len() > limit {
                break;
            }
        }
        Ok(found)
    })
    .await?;
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(page(found, more))
}

async fn retrieve(Reader(tenant): Reader, Path(id): Path<String>) -> Result<axum::Json<Value>, RequestError> {
    let found = blocking(move || object(&tenant, &find(&tenant, &id)?)?.ok_or_else(|| absent(&id)));
    Ok(axum::Json(found.await?))
}

async fn update(
    Writer(tenant): Writer,
    Path(id): Path<String>,
    Json(mut body): Json<Fields>,
) -> Result<axum::Json<Value>, RequestError> {
    let (finding, asked) = (tenant.clone(), id.clone());
    let conversation = blocking(move || find(&finding, &asked)).await?;
    let metadata = body.take("metadata")?.unwrap_or_default();
    let changed = replace_metadata(&tenant, conversation.id, metadata).await?;
    Ok(axum::Json(blocking(move || object(&tenant, &changed)?.ok_or_else(|| absent(&id))).await?))
}

async fn delete(Admin(tenant): Admin, Path(id): Path<String>) -> Result<axum::Json<Value>, RequestError> {
    let (finding, asked) = (tenant.clone(), id.clone());
    let conversation = blocking(move || find(&finding, &asked)).await?;
    tenant.conversation(conversation.id).delete("deleted through /v1/chat/completions").await?;
    Ok(axum::Json(json!({"id": id, "object": "chat.completion.deleted", "deleted": true})))
}

/// The messages of the request, oldest first unless asked otherwise.
async fn messages(
    Reader(tenant): Reader,
    Path(id): Path<String>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Value>, RequestError> {
    let (limit, newest_first) = (paging.limit()?, paging.has_order() && paging.newest_first()?);
    let mut found = blocking(move || {
        let conversation = find(&tenant, &id)?;
        let after: Option<TurnId> = paging.after().and_then(ids::turn_of_item);
        let seq = after
            .map(|turn| tenant.conversation(conversation.id).turn(turn))
            .transpose()?
            .map(|turn| turn.seq);
        let (order, after, before) = match newest_first {
            true => (Order::Descending, None, seq),
            false => (Order::Ascending, seq, None),
        };
        // One more than asked for, and the turns of the reply.
        let query = HistoryQuery { limit: PAGE_ENTRIES_MAX, order, after, before, ..HistoryQuery::default() };
        let turns = stored::turns(&tenant, conversation.id, query)?;
        let sent = |turn: &&Turn| turn.model.is_none() && !turn.metadata.contains_key(KEY);
        Ok(turns.iter().filter(sent).take(limit + 1).map(|turn| message(&tenant, turn)).collect::<Vec<_>>())
    })
    .await?;
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(page(found, more))
}

/// A message with its id. Content in parts is shown apart, as OpenAI does.
fn message(tenant: &Tenant, turn: &Turn) -> Value {
    let mut message: Value = serde_json::from_str(&items::restored(tenant, turn)).unwrap_or_default();
    if let Value::Object(fields) = &mut message {
        fields.shift_insert(0, "id".into(), json!(ids::item("message", turn.id, 0)));
        let parts = fields.get("content").filter(|content| content.is_array()).cloned();
        if parts.is_some() {
            fields.insert("content".into(), Value::Null);
        }
        fields.insert("content_parts".into(), parts.unwrap_or_default());
    }
    message
}
