//! The OpenAI-compatible endpoints, so that the official packages work unchanged with `base_url`; one file per
//! noun.
//!
//! A conversation of theirs is one of ours. Their item is (a part of) one of our turns: [`items`] derives the
//! items of a turn, whatever the shape of its message, and [`ids`] gives them ids that lead back to it. A
//! response is the turn of a reply; the required part of its request is stored in that turn's metadata.
//!
//! This is not a proxy. Replies are assembled by the engine's model clients and serialised again.

pub mod chat;
mod compact;
mod completions;
pub mod conversations;
pub mod conversion;
mod embeddings;
pub mod error;
mod events;
pub mod fields;
pub mod ids;
mod item_routes;
mod items;
pub mod models;
pub mod recorded;
pub mod request;
pub mod responses;
mod sealed;
mod socket;
pub mod sse;
mod stored;
mod streams;
pub mod target;
pub mod tokens;
pub mod tools;

pub use streams::Streams;

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
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(models::routes())
        .merge(crate::anthropic::routes())
}
