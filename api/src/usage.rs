//! How much a tenant stores, and how much it may.

use crate::{About, Asker, Method, Noun, Operation};
use everturn::Quota;
use everturn_core::Error;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reads what the caller's tenant has stored, and its quotas.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetUsage {}

/// What a tenant has stored.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StorageUsage {
    /// Conversations.
    pub conversations: u64,
    /// Turns; those that a fork inherited count once.
    pub turns: u64,
    /// Bytes of events. What was erased does not count.
    pub bytes: u64,
    /// Assets.
    pub assets: u64,
    /// Bytes of assets.
    pub asset_bytes: u64,
    /// Keys that are neither revoked nor expired.
    pub keys: u64,
    /// How much it may store; null: any number.
    pub quotas: Quota,
}

impl Operation for GetUsage {
    type Answer = StorageUsage;
    const ABOUT: About =
        About::new(Method::Get, Noun::Usage, "get_usage", "/usage", "Read usage and quotas", "The numbers.");

    async fn run(self, asker: &Asker) -> Result<StorageUsage, Error> {
        let tenant = &asker.tenant;
        let usage = tenant.usage()?;
        Ok(StorageUsage {
            conversations: usage.conversations,
            turns: usage.turns,
            bytes: usage.bytes,
            assets: usage.assets,
            asset_bytes: usage.asset_bytes,
            keys: tenant.keys().count_valid(tenant.name())?,
            quotas: tenant.quota(),
        })
    }
}
