//! Storage used by a tenant, its quotas, and the tokens of its model calls.

use crate::conversations::preview;
use crate::{About, ConversationName, Method, Noun, Operation, Requester, Work};
use everturn_core::Error;
use everturn_engine::{Quota, TokenUsage};
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
    )
    .counts();

    async fn run(self, requester: &Requester) -> Result<StorageUsage, Error> {
        let tenant = &requester.tenant;
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

/// Reads the tokens, time and cost of model calls by day, model and conversation: what providers reported, or importers
/// found, for each reply. Costs follow from the setting `prices`. A conversation without a title is named after the first words of
/// a person in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetTokenUsage {
    /// Number of days, today included; 30 by default.
    #[schemars(range(min = 1, max = 3660))]
    pub days: Option<u64>,
    /// Only this conversation.
    pub conversation: Option<ConversationName>,
}

impl Operation for GetTokenUsage {
    type Answer = TokenUsage;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Usage,
        "get_token_usage",
        "/usage/tokens",
        "Read token usage by day",
        "Tokens, time and cost.",
    )
    .counts()
    .work(Work::Large);

    async fn run(self, requester: &Requester) -> Result<TokenUsage, Error> {
        let conversation = self.conversation.map(|name| name.find(&requester.tenant)).transpose()?;
        let mut usage =
            requester.tenant.token_usage(self.days.unwrap_or(30), conversation.map(|chat| chat.id()))?;
        for one in &mut usage.conversations {
            match requester.is_counter() {
                true => one.title = None,
                false if one.title.is_none() => {
                    one.title = match requester.tenant.conversation(one.conversation).get() {
                        // It was deleted at this very moment.
                        Err(Error::NotFound(_)) => None,
                        found => preview(&requester.tenant, &found?)?,
                    }
                }
                false => {}
            }
        }
        Ok(usage)
    }
}
