//! The items of a conversation.

use super::conversations::{Paging, append, new_turns, object, page};
use super::error::RequestError;
use super::fields::Fields;
use super::{ids, items, stored};
use crate::access::{Admin, Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path, Query};
use axum::Router;
use axum::routing::{get, post};
use everturn_core::Error;
use everturn_core::event::Visibility;
use everturn_core::id::{ConversationId, clip};
use everturn_core::json::Raw;
use everturn_core::turn::{Status, Turn};
use everturn_engine::{HistoryEntry, HistoryQuery, Order, Tenant};
use serde_json::Value;
use std::sync::Arc;

/// Number of turns after the first in which an item of a reply is searched.
const ANSWER_TURNS_MAX: usize = 1000;

/// `/v1/conversations/{id}/items`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/conversations/{id}/items", post(create).get(list))
        .route("/v1/conversations/{id}/items/{item}", get(retrieve).delete(delete))
}

async fn create(
    Writer(tenant): Writer,
    Path(id): Path<ConversationId>,
    Json(mut body): Json<Fields>,
) -> Result<axum::Json<Value>, RequestError> {
    let given: Vec<Raw> = body.need("items")?;
    Ok(page(append(tenant, id, new_turns(&given)?).await?, false))
}

async fn list(
    Reader(tenant): Reader,
    Path(id): Path<ConversationId>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Value>, RequestError> {
    let (limit, newest_first) = (paging.limit()?, paging.newest_first()?);
    let mut found = blocking(move || {
        let mut walk = ItemReader { tenant: &tenant, id, newest_first, from: None, until: None };
        let mut found = Vec::new();
        if let Some(after) = paging.after() {
            let at = locate(&tenant, id, after)?;
            walk.from = Some(at.turn.place);
            found = at.rest(newest_first);
        }
        walk.gather(&mut found, limit + 1)?;
        Ok(found)
    })
    .await?;
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(page(found, more))
}

async fn retrieve(
    Reader(tenant): Reader,
    Path((id, item)): Path<(ConversationId, String)>,
) -> Result<axum::Json<Value>, RequestError> {
    let mut at = blocking(move || locate(&tenant, id, &item)).await?;
    let item = at.index.map(|index| at.items.swap_remove(index));
    Ok(axum::Json(item.ok_or_else(erased)?))
}

/// Erases the turn of an item: its content is removed, its envelope stays in the chain. An item that shares its turn with
/// others is refused, because a turn is erased as a whole.
async fn delete(
    Admin(tenant): Admin,
    Path((id, item)): Path<(ConversationId, String)>,
) -> Result<axum::Json<Value>, RequestError> {
    let conversation = blocking(move || {
        let at = locate(&tenant, id, &item)?;
        match at.index.map(|_| at.items.len()) {
            None => return Err(erased()),
            Some(1) => {}
            Some(count) => {
                let text = format!(
                    "the item is one of {count} of one turn, which can only be erased together; to do so, POST \
                     /api/v1/turns/{}/erase",
                    at.turn.id
                );
                return Err(Error::invalid("item.part_of_turn", text));
            }
        }
        tenant.conversation(id).erase(at.turn.id, None, "deleted through /v1/conversations").wait()?;
        tenant.conversation(id).get()
    })
    .await?;
    Ok(axum::Json(object(&conversation)))
}

fn erased() -> Error {
    Error::not_found("item_not_found", "the item was deleted")
}

/// Location of an item.
pub struct ItemLocation {
    /// The turn that holds it.
    pub turn: Turn,
    /// The items of that turn.
    pub items: Vec<Value>,
    /// Its index among them; `None` if the turn was erased.
    pub index: Option<usize>,
}

impl ItemLocation {
    /// The item itself.
    pub fn item(&self) -> Option<&Value> {
        self.items.get(self.index?)
    }

    /// The items of the turn after it.
    fn rest(mut self, newest_first: bool) -> Vec<Value> {
        match (self.index, newest_first) {
            (Some(index), true) => {
                self.items.truncate(index);
                self.items.reverse();
                self.items
            }
            (Some(index), false) => self.items.split_off(index + 1),
            (None, _) => Vec::new(),
        }
    }
}

/// Finds an item of a conversation by its id.
pub fn locate(tenant: &Tenant, id: ConversationId, item: &str) -> Result<ItemLocation, Error> {
    let absent = || Error::not_found("item_not_found", format!("no item {:?} in {id}", clip(item)));
    let named_after = ids::turn_of_item(item).ok_or_else(absent)?;
    let turn = match tenant.conversation(id).turn(named_after) {
        Ok(turn) => turn,
        Err(Error::NotFound(_)) => return Err(absent()),
        Err(error) => return Err(error),
    };
    let place = |turn: &Turn| {
        let items = items::of_turn(tenant, turn);
        let index = items.iter().position(|known| known["id"] == item);
        (items, index)
    };
    let (items, index) = place(&turn);
    if index.is_some() || turn.erased {
        return Ok(ItemLocation { turn, items, index });
    }
    let query = HistoryQuery { after: Some(turn.place), limit: ANSWER_TURNS_MAX, ..HistoryQuery::default() };
    for turn in stored::turns(tenant, id, query)? {
        if items::generation(&turn).answer == Some(named_after) {
            let (items, index) = place(&turn);
            if index.is_some() {
                return Ok(ItemLocation { turn, items, index });
            }
        }
    }
    Err(absent())
}

/// Iterates over the items of a conversation.
pub struct ItemReader<'a> {
    pub tenant: &'a Tenant,
    pub id: ConversationId,
    pub newest_first: bool,
    /// Position to start after, in that direction.
    pub from: Option<u64>,
    /// Position to stop before, in that direction.
    pub until: Option<u64>,
}

impl ItemReader<'_> {
    /// Adds items until there are `wanted`, or no more.
    pub fn gather(mut self, found: &mut Vec<Value>, wanted: usize) -> Result<(), Error> {
        while found.len() < wanted {
            let (after, before) = match self.newest_first {
                true => (self.until, self.from),
                false => (self.from, self.until),
            };
            let order = if self.newest_first { Order::Descending } else { Order::Ascending };
            let query = HistoryQuery { before, after, limit: wanted, order, ..HistoryQuery::default() };
            let page = self.tenant.conversation(self.id).history(query)?;
            for entry in page.data {
                let HistoryEntry::Turn(turn) = entry else { continue };
                if turn.status == Status::Pending || turn.visibility == Visibility::Private {
                    continue;
                }
                let mut items = items::of_turn(self.tenant, &turn);
                if self.newest_first {
                    items.reverse();
                }
                found.append(&mut items);
            }
            match page.next {
                Some(next) => self.from = Some(next),
                None => break,
            }
        }
        Ok(())
    }
}
