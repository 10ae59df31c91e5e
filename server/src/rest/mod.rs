//! The native API, one file per noun.

mod assets;
mod compaction;
mod context;
mod conversations;
mod erasing;
mod events;
mod facts;
mod generations;
pub mod health;
mod keys;
mod projections;
mod recall;
mod state;
mod streams;
pub mod transfer;
mod turns;
mod usage;

pub use assets::AsIs;

use crate::app::App;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// Everything under `/api/v1`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .merge(conversations::routes())
        .merge(turns::routes())
        .merge(streams::routes())
        .merge(events::routes())
        .merge(erasing::routes())
        .merge(state::routes())
        .merge(facts::routes())
        .merge(recall::routes())
        .merge(context::routes())
        .merge(projections::routes())
        .merge(compaction::routes())
        .merge(generations::routes())
        .merge(assets::routes())
        .merge(transfer::routes())
        .merge(keys::routes())
        .merge(usage::routes())
}
