//! The native API, one file per noun.

pub mod conversations;
pub mod health;
pub mod keys;

use crate::app::App;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// Everything under `/api/v1`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(conversations::routes()).merge(keys::routes())
}
