//! Receipts: the contents of a prompt, recorded with its model call. The same prompt can be rebuilt from one.

use super::ConversationContexts;
use super::build::{Context, RENDERER_VERSION};
use super::options::{ContextOptions, Digest};
use crate::conversation::ConversationHandle;
use everturn_core::Error;
use everturn_core::asset::{Asset, Payload};
use everturn_core::chain::Hash;
use everturn_core::event::{Event, Visibility, kind};
use everturn_core::id::{EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::viewer::Viewer;
use everturn_core::write::Action;
use everturn_views::context::{self, BlockSource, ContextBlock, Section, Sections};
use everturn_views::state::Fold;
use everturn_views::tokens::{PART_TOKENS, TokenizerFamily};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Contents of a prompt as hashes: the body of a `context.receipt` event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Receipt {
    /// Version of the receipt.
    pub version: u32,
    /// Provider whose message shape was used.
    pub renderer: String,
    /// The version of the renderer.
    pub renderer_version: u32,
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokenizer.
    pub tokenizer: String,
    /// Options of the context, without its material.
    pub policy: ReceiptPolicy,
    /// Last event taken into account.
    pub through_seq: u64,
    /// Included blocks, in order.
    pub blocks: Vec<ContextBlock>,
    /// Hashes of the tool schemas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Hash>,
    /// Decisions of the projection of the tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projection: Option<Value>,
    /// Tokens used.
    pub used: u64,
    /// Hash of system prompt and messages.
    pub prefix_hash: String,
    /// Actors that may see the prompt, where it holds private turns; absent if everyone may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<Vec<String>>,
}

/// Options of a context, without its material.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ReceiptPolicy {
    /// Most tokens.
    pub token_budget: u64,
    /// Most turns of the tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_n: Option<usize>,
    /// Actors whose turns are the assistant's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub participants: Vec<String>,
    /// Actors whose private turns were visible; absent if all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub viewer: Option<Vec<String>>,
    /// Sections and their shares.
    #[serde(default)]
    pub sections: Value,
    /// First place of the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_from: Option<u64>,
    /// Only turns before this place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Actor of the reply, whose private turns were in the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replies_as: Option<String>,
    /// Private turns that were to be answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<TurnId>,
    /// Whether the projection is of the whole messages view, and not of its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_view: bool,
    /// Budgets' worth of turns that the tail was taken from: more than one where some were too large.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub read_budgets: u64,
    /// Recall into the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<super::RecallRequest>,
}

fn one() -> u64 {
    1
}

fn is_one(budgets: &u64) -> bool {
    *budgets == 1
}

impl Receipt {
    /// The tokenizer that its tokens are counted with.
    pub(crate) fn family(&self) -> TokenizerFamily {
        [TokenizerFamily::O200k, TokenizerFamily::Cl100k, TokenizerFamily::Estimate]
            .into_iter()
            .find(|family| family.as_str() == self.tokenizer)
            .unwrap_or_default()
    }
}

impl ConversationContexts<'_> {
    /// Records the use of a context for a model call, with its projection, in one commit. A text supplied by the caller for
    /// several calls is stored once.
    pub fn record(&self, context: &Context) -> Result<Event, Error> {
        let key = self.0.key();
        let (mut drafts, mut uploads) = (Vec::new(), Vec::new());
        let mut kept: Vec<String> = Vec::new();
        let audience = &context.receipt.audience;
        let prepared = (|| {
            for (sha256, text) in &context.given {
                let asset = given_id(*sha256);
                if kept.contains(&asset) || self.0.shared().journal.index.asset(key, &asset)?.is_some() {
                    continue;
                }
                let payload =
                    Payload { bytes: text.clone().into_bytes(), mime_type: "text/plain".into(), name: None };
                drafts.push(self.0.shared().asset_draft(
                    &self.0.key().tenant,
                    asset.clone(),
                    payload,
                    audience.clone(),
                    &mut uploads,
                )?);
                kept.push(asset);
            }
            if let Some(body) = &context.projection {
                drafts.push(self.0.projection_draft(body)?);
            }
            let mut receipt = self.0.shared().draft(kind::RECEIPT, &context.receipt)?;
            if audience.is_some() {
                receipt.visibility = Visibility::Private;
            }
            drafts.push(receipt);
            Ok(Action::append(std::mem::take(&mut drafts)))
        })();
        match prepared {
            Err(error) => {
                self.0.shared().journal.uploaded(&uploads);
                Err(error)
            }
            Ok(action) => {
                let submitted = self.0.tenant.submit(key.clone(), action, uploads);
                crate::writer::Commit::new(submitted, |mut committed| {
                    committed.events.pop().ok_or_else(crate::writer::closed)
                })
                .wait()
            }
        }
    }

    /// Rebuilds the context of a model call, byte for byte; or reports which part of it was erased since.
    pub fn replay_at(&self, seq: u64) -> Result<Context, Error> {
        let _key = self.0.key();
        let event = self.0.event_at(seq)?.filter(|event| event.kind == kind::RECEIPT);
        let receipt = event.and_then(|event| event.read::<Receipt>()).ok_or_else(|| {
            Error::not_found("receipt.absent", format!("{} has no context.receipt at seq {seq}", self.0.id()))
        })?;
        self.0.contexts().replay(&receipt)
    }

    /// Rebuilds the context of a receipt.
    pub fn replay(&self, receipt: &Receipt) -> Result<Context, Error> {
        let _key = self.0.key();
        let versions = (receipt.version, receipt.renderer_version);
        if versions != (context::VERSION, RENDERER_VERSION) {
            let text = format!(
                "the receipt has version {} and its renderer {}, this everturn knows {} and {RENDERER_VERSION}; replay it with \
                 the everturn that wrote it",
                versions.0,
                versions.1,
                context::VERSION
            );
            return Err(Error::invalid("receipt.version", text));
        }
        self.0.check_sources(receipt)?;
        let given = |section: Section| -> Result<Vec<String>, Error> {
            let blocks =
                receipt.blocks.iter().filter(|b| b.section == section && b.source == BlockSource::Given);
            blocks.map(|block| self.0.given_text(block.sha256)).collect()
        };
        let tools = receipt.tools.iter().map(|sha256| Raw::new(self.0.given_text(*sha256)?));
        let options = ContextOptions {
            last_n: receipt.policy.last_n,
            participants: receipt.policy.participants.clone(),
            sections: Sections::parse(&receipt.policy.sections)?,
            instructions: Some(given(Section::System)?.join("\n\n")).filter(|text| !text.is_empty()),
            digests: given(Section::Digests)?
                .into_iter()
                .map(|text| Digest { title: String::new(), text })
                .collect(),
            input: given(Section::Input)?.into_iter().map(Raw::new).collect::<Result<_, _>>()?,
            tools: tools.collect::<Result<_, _>>()?,
            provider: receipt.renderer.parse()?,
            model: receipt.model.clone(),
            recall: receipt.policy.recall.clone(),
            at_seq: Some(receipt.through_seq),
            input_from: receipt.policy.input_from,
            before: receipt.policy.before,
            replies_as: receipt.policy.replies_as.clone(),
            asked: receipt.policy.asked.clone(),
            ..ContextOptions::new(receipt.policy.token_budget)
        };
        let viewer = receipt.policy.viewer.clone().map_or(Viewer::Owner, Viewer::actors);
        for turn in &receipt.policy.asked {
            self.0.visible_turn(*turn)?;
        }
        let context = self.0.seen_by(viewer.clone()).context_with(&options, Some(receipt))?;
        if context.receipt.audience.is_some() && !self.0.tenant.viewer().includes(&viewer) {
            let text =
                "the prompt contains private turns that you may not see; ask someone with access to them";
            return Err(Error::not_found("receipt.private", text));
        }
        if context.prefix_hash != receipt.prefix_hash {
            let text = format!(
                "the prompt is {} now and was {}; a turn in it may have been erased since",
                context.prefix_hash, receipt.prefix_hash
            );
            return Err(Error::conflict("receipt.differs", text));
        }
        Ok(context)
    }
}

impl ConversationHandle {
    /// Refuses a receipt with an erased source, and names it.
    fn check_sources(&self, receipt: &Receipt) -> Result<(), Error> {
        for block in &receipt.blocks {
            let BlockSource::Ids(ids) = &block.source else { continue };
            for id in ids
                .iter()
                .filter(|_| matches!(block.section, Section::Recalled | Section::Tail | Section::Input))
            {
                let Ok(event) = id.parse::<EventId>() else { continue };
                match self.shared().journal.index.turn_in(self.key(), TurnId(event.0)) {
                    Ok(turn) if turn.erased => return Err(erased(&turn.id.to_string())),
                    Err(Error::NotFound(_)) => return Err(erased(id)),
                    other => drop(other?),
                }
            }
        }
        let fold = self.shared().fold(self.key(), receipt.through_seq)?;
        if let Some(at) = fold.checkpoint
            && receipt.blocks.iter().any(|block| block.section == Section::State)
            && self.checkpoint(Some(at))?.is_none()
        {
            return Err(erased(&at.event.to_string()));
        }
        Ok(())
    }

    /// The receipt of the last recorded call.
    pub(crate) fn last_receipt(&self, fold: &Fold) -> Result<Option<Receipt>, Error> {
        let receipt = fold.receipt.map(|seq| self.event_at(seq)).transpose()?.flatten();
        Ok(receipt.and_then(|event| event.read::<Receipt>()))
    }

    /// Tokens of a prompt beside the conversation: the system prompt, and the instructions and tools of the last recorded
    /// call.
    pub(crate) fn fixed_tokens(&self, receipt: Option<&Receipt>) -> Result<u64, Error> {
        let family = TokenizerFamily::default();
        let prompt = self.state().system_prompt(None)?;
        let prompt = prompt.map_or(0, |prompt| family.count(&prompt.content) + PART_TOKENS);
        let Some(receipt) = receipt else { return Ok(prompt) };
        let is_given =
            |block: &&ContextBlock| block.section == Section::System && block.source == BlockSource::Given;
        let instructions: u64 = receipt.blocks.iter().filter(is_given).map(|block| block.tokens).sum();
        let instructions = receipt.family().in_default(instructions);
        // A text that was erased costs nothing.
        let texts = receipt.tools.iter().filter_map(|sha256| self.given_text(*sha256).ok());
        let tools: u64 = texts.map(|tool| family.count(&tool) + PART_TOKENS).sum();
        Ok(prompt + instructions + tools)
    }

    fn given_text(&self, sha256: Hash) -> Result<String, Error> {
        let absent = || {
            let text = format!("the text with the hash {sha256} is not kept here; was the receipt recorded?");
            Error::not_found("receipt.given_absent", text)
        };
        let raw = self.shared().journal.index.asset(self.key(), &given_id(sha256))?.ok_or_else(absent)?;
        let asset: Asset = raw.read().ok_or_else(absent)?;
        String::from_utf8(self.tenant.assets().bytes(&asset)?).map_err(|_| absent())
    }
}

/// Error for an erased source.
pub(crate) fn erased(what: &str) -> Error {
    let text = format!("{what} was erased; the model's prompt can no longer be shown");
    Error::not_found("receipt.erased", text)
}

/// Prefix of the ids of supplied texts.
const GIVEN: &str = "given_";

/// Whether an asset is a text supplied for a model call.
pub(crate) fn is_given(asset: &str) -> bool {
    asset.starts_with(GIVEN)
}

/// Id under which a supplied text is stored. The same text has the same id, so that it is stored once.
fn given_id(sha256: Hash) -> String {
    format!("{GIVEN}{sha256}")
}
