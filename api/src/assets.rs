//! Assets: large or non-text payloads and their descriptors. Their bytes are transferred separately over HTTP.

use crate::{About, ConversationName, Method, Noun, Operation, Page, Requester};
use everturn_core::Error;
use everturn_core::asset::Asset;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lists the assets of a conversation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListAssets {
    /// The conversation they belong to.
    pub conversation: ConversationName,
}

impl Operation for ListAssets {
    type Answer = Page<Asset>;
    const ABOUT: About =
        About::new(Method::Get, Noun::Assets, "list_assets", "/assets", "List assets", "The whole list.");

    async fn run(self, requester: &Requester) -> Result<Page<Asset>, Error> {
        requester.conversation(&self.conversation)?.assets().list().map(Page::whole)
    }
}

/// Reads an asset's descriptor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetAsset {
    /// The asset's id.
    #[schemars(example = &"asset_01JD0000000000000000000000")]
    pub asset: String,
    /// The conversation, needed if several have an imported asset with this id.
    pub conversation: Option<ConversationName>,
}

impl GetAsset {
    /// Finds the asset.
    pub fn find(&self, requester: &Requester) -> Result<Asset, Error> {
        match &self.conversation {
            Some(name) => requester.conversation(name)?.assets().get(&self.asset),
            None => requester.tenant.assets().get(&self.asset),
        }
    }
}

impl Operation for GetAsset {
    type Answer = Asset;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Assets,
        "get_asset",
        "/assets/{asset}",
        "Read an asset's descriptor",
        "Its descriptor.",
    );

    async fn run(self, requester: &Requester) -> Result<Asset, Error> {
        self.find(requester)
    }
}
