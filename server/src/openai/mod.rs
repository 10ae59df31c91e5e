//! The OpenAI-compatible endpoints, so that the official packages work unchanged with `base_url`; one file per noun.
//!
//! A conversation of theirs is one of ours. What they call an item is (a part of) one of our turns: [`items`] reads
//! the items out of a turn, whatever shape its message has, and [`ids`] names them so that the name leads back. A
//! response is the turn of an answer; what has to be known of its request is kept in that turn's metadata.
//!
//! What it is not: a proxy. Answers are put together by the engine's model clients and written anew.

pub mod ask;
pub mod chat;
mod compact;
pub mod conversations;
pub mod conversion;
mod embeddings;
pub mod error;
mod events;
pub mod fields;
pub mod ids;
mod item_routes;
mod items;
mod kept;
pub mod models;
pub mod place;
pub mod recorded;
pub mod responses;
pub mod sse;
pub mod tokens;
pub mod tools;

use crate::app::App;
use axum::Router;
use std::sync::Arc;

/// Everything under `/v1`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(conversations::routes())
        .merge(item_routes::routes())
        .merge(responses::routes())
        .merge(compact::routes())
        .merge(tokens::routes())
        .merge(chat::routes())
        .merge(embeddings::routes())
        .merge(models::routes())
        .merge(crate::anthropic::routes())
}
