//! The usage of the caller's tenant, and its quotas.

use crate::access::Reader;
use crate::app::{App, blocking};
use crate::problem::Problem;
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/usage`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(get_usage))
}

/// What a tenant has stored.
#[derive(Serialize, ToSchema)]
struct StorageUsage {
    /// Conversations.
    conversations: u64,
    /// Turns; those that a fork inherited count once.
    turns: u64,
    /// Bytes of events. What was erased does not count.
    bytes: u64,
    /// Assets.
    assets: u64,
    /// Bytes of assets.
    asset_bytes: u64,
    /// Keys that are neither revoked nor expired.
    keys: u64,
    /// How much it may store.
    quotas: StorageQuotas,
}

/// How much a tenant may store; null: any number.
#[derive(Serialize, ToSchema)]
struct StorageQuotas {
    /// Turns.
    turns: Option<u64>,
    /// Bytes of events.
    bytes: Option<u64>,
    /// Assets.
    assets: Option<u64>,
    /// Bytes of assets.
    asset_bytes: Option<u64>,
    /// Keys that are neither revoked nor expired.
    keys: Option<u64>,
}

/// Reads what the caller's tenant has stored, and its quotas.
#[utoipa::path(
    get, path = "/usage", tag = "usage",
    responses((status = 200, description = "The numbers.", body = StorageUsage))
)]
async fn get_usage(
    Reader(scope): Reader,
    State(app): State<Arc<App>>,
) -> Result<axum::Json<StorageUsage>, Problem> {
    let count = move || {
        let (usage, quota) = (scope.tenant_usage()?, scope.quota());
        Ok(StorageUsage {
            conversations: usage.conversations,
            turns: usage.turns,
            bytes: usage.bytes,
            assets: usage.assets,
            asset_bytes: usage.asset_bytes,
            keys: app.store.keys().count_valid(scope.tenant())?,
            quotas: StorageQuotas {
                turns: quota.turns,
                bytes: quota.bytes,
                assets: quota.assets,
                asset_bytes: quota.asset_bytes,
                keys: quota.keys,
            },
        })
    };
    Ok(axum::Json(blocking(count).await?))
}
