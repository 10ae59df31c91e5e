//! Storage used by a tenant, and its quotas.

use crate::{About, Asker, Method, Noun, Operation};
use everturn::Quota;
use everturn_core::Error;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reads the storage used by the caller's tenant, and its quotas.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetUsage {}

/// Storage used by a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StorageUsage {
    /// Number of conversations.
    pub conversations: u64,
    /// Number of turns; inherited ones count once.
    pub turns: u64,
    /// Size of events in bytes, without erased content.
    pub bytes: u64,
    /// Number of assets.
    pub assets: u64,
    /// Size of assets in bytes.
    pub asset_bytes: u64,
    /// Number of keys that are neither revoked nor expired.
    pub keys: u64,
    /// Quotas; null means no limit.
    pub quotas: Quota,
}

impl Operation for GetUsage {
    type Answer = StorageUsage;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Usage,
        "get_usage",
        "/usage",
        "Read usage and quotas",
        "Usage and quotas.",
    );

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
