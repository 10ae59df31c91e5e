//! The native API. Operations of the table are answered by [`operations`]; streamed ones have a handler of
//! their own, in a file named after its noun.

mod assets;
mod events;
mod generations;
pub mod health;
mod operations;
mod transfer;

pub use assets::Uncompressed;

use crate::app::App;
use axum::Router;
use std::sync::Arc;

/// Path of the API. Routes contain it: a nested router would parse and rebuild the URL of every request to remove it.
const ROOT: &str = "/api/v1";

/// Everything under [`ROOT`].
pub fn routes() -> Router<Arc<App>> {
    operations::routes()
        .merge(events::routes())
        .merge(generations::routes())
        .merge(assets::routes())
        .merge(transfer::routes())
}

/// A path of the API, as routes have it.
fn at(path: &str) -> String {
    format!("{ROOT}{path}")
}
