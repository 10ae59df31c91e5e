//! The native API. What is in the table of operations is answered by [`operations`]; what is streamed has a handler of
//! its own, in a file that is named after its noun.

mod assets;
mod events;
mod generations;
pub mod health;
mod operations;
mod transfer;

pub use assets::AsIs;

use crate::app::App;
use axum::Router;
use std::sync::Arc;

/// Everything under `/api/v1`.
pub fn routes() -> Router<Arc<App>> {
    operations::routes()
        .merge(events::routes())
        .merge(generations::routes())
        .merge(assets::routes())
        .merge(transfer::routes())
}
