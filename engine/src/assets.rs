//! Assets: bytes that belong to conversations.

use crate::conversation::ConversationHandle;
use crate::tenant::Tenant;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::asset::{Asset, Payload};
use everturn_core::chain::Hash;
use everturn_core::event::{Event, check_name};
use everturn_core::id::clip;
use everturn_core::limits::ASSET_PIECE_BYTES;
use everturn_core::write::Action;
use std::ops::Range;

/// The assets of a conversation.
pub struct ConversationAssets<'a>(pub(crate) &'a ConversationHandle);

impl ConversationAssets<'_> {
    /// Adds a public asset. A turn shows it by its `asset_id`.
    pub fn add(&self, name: Option<String>, mime_type: &str, bytes: Vec<u8>) -> Result<Asset, Error> {
        self.add_for(None, name, mime_type, bytes)
    }

    /// Adds an asset that only the caller's actors may see, even if public turns refer to it.
    pub fn add_private(&self, name: Option<String>, mime_type: &str, bytes: Vec<u8>) -> Result<Asset, Error> {
        let actors = self.0.tenant.caller().actors();
        if actors.is_empty() {
            let text = "a private asset needs an actor that may see it, and the request has none; name an actor, or use a key that is bound to one";
            return Err(Error::invalid("asset.nobody", text));
        }
        self.add_for(Some(actors.to_vec()), name, mime_type, bytes)
    }

    fn add_for(
        &self,
        audience: Option<Vec<String>>,
        name: Option<String>,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        let conversation = self.0.shared().journal.conversation(self.0.key())?;
        check_name("mime_type", mime_type)?;
        let payload = Payload { bytes, mime_type: mime_type.to_string(), name };
        let mut uploads = Vec::new();
        let asset_id = crate::ingest::asset_id(self.0.shared().journal.source.ulid()?);
        let draft =
            self.0.shared().asset_draft(&self.0.key().tenant, asset_id, payload, audience, &mut uploads)?;
        let mut drafts = self.0.make_room(&conversation, std::slice::from_ref(&draft), "add_asset", None)?;
        drafts.push(draft);
        let action = Action::append(drafts);
        let answer = self.0.tenant.submit(self.0.key().clone(), action, uploads);
        Commit::new(answer, |committed| {
            committed.events.last().and_then(Event::read::<Asset>).ok_or_else(crate::writer::closed)
        })
        .wait()
    }

    /// The descriptors of a conversation's assets.
    pub fn list(&self) -> Result<Vec<Asset>, Error> {
        let raw = self.0.shared().journal.index.assets(self.0.key())?;
        let assets = raw.iter().filter_map(|raw| raw.read());
        Ok(assets.filter(|asset| self.0.tenant.sees_asset(asset)).collect())
    }

    /// The descriptor of a conversation's asset.
    pub fn get(&self, id: &str) -> Result<Asset, Error> {
        let raw = self.0.shared().journal.index.asset(self.0.key(), id)?;
        let asset = raw.and_then(|raw| raw.read()).filter(|asset| self.0.tenant.sees_asset(asset));
        asset.ok_or_else(|| absent_asset(id))
    }
}

impl Tenant {
    /// The assets of all conversations of the tenant.
    pub fn assets(&self) -> TenantAssets<'_> {
        TenantAssets(self)
    }

    fn sees_asset(&self, asset: &Asset) -> bool {
        self.viewer().sees(asset.visibility, None, &asset.audience)
    }
}

/// The assets of a tenant.
pub struct TenantAssets<'a>(&'a Tenant);

impl TenantAssets<'_> {
    /// The descriptor of an asset in any conversation of the tenant.
    pub fn get(&self, id: &str) -> Result<Asset, Error> {
        let found = self.0.shared().journal.index.assets_with_id(self.0.name(), id, 2)?;
        if let [(one, _), (other, _)] = found.as_slice() {
            let text =
                format!("{} names different assets in {one} and {other}; name the conversation", clip(id));
            return Err(Error::invalid("asset.ambiguous", text));
        }
        let asset = found.first().and_then(|(_, raw)| raw.read()).filter(|asset| self.0.sees_asset(asset));
        asset.ok_or_else(|| absent_asset(id))
    }

    /// An asset's bytes.
    pub fn bytes(&self, asset: &Asset) -> Result<Vec<u8>, Error> {
        self.0.shared().journal.assets.get(self.0.name(), kept_here(asset)?)
    }

    /// A range of an asset's bytes, cut at the asset's end. The pieces that the range touches are checked against
    /// their hashes; an asset without piece hashes is read and checked as a whole.
    pub fn range(&self, asset: &Asset, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let sha256 = kept_here(asset)?;
        if asset.bytes == Some(0) && range.start == 0 {
            return self.bytes(asset);
        }
        if range.is_empty() || asset.bytes.is_some_and(|bytes| range.start >= bytes) {
            let (start, end, bytes) = (range.start, range.end, asset.bytes.unwrap_or(0));
            let text = format!("{} has {bytes} bytes, none of them in {start}..{end}", asset.id);
            return Err(Error::invalid("asset.range", text));
        }
        let piece = ASSET_PIECE_BYTES as u64;
        let (first, last) = (range.start / piece, (range.end - 1) / piece);
        let (begin, bytes) = match asset.pieces.is_empty() {
            true => (0, self.bytes(asset)?),
            false => {
                let end = last.saturating_add(1).saturating_mul(piece);
                let bytes =
                    self.0.shared().journal.assets.get_range(self.0.name(), sha256, first * piece..end)?;
                let hashes = asset.pieces.iter().skip(first as usize).take((last - first) as usize + 1);
                if !bytes.chunks(ASSET_PIECE_BYTES).map(Hash::of).eq(hashes.copied()) {
                    return Err(everturn_store::assets::damaged(sha256));
                }
                (first * piece, bytes)
            }
        };
        let place = |at: u64| usize::try_from(at - begin).map_or(bytes.len(), |at| at.min(bytes.len()));
        Ok(bytes[place(range.start)..place(range.end)].to_vec())
    }
}

fn absent_asset(id: &str) -> Error {
    Error::not_found("asset.absent", format!("no asset {} here", clip(id)))
}

fn kept_here(asset: &Asset) -> Result<Hash, Error> {
    asset.sha256.ok_or_else(|| {
        Error::not_found(
            "asset.elsewhere",
            format!("the bytes of {} are not kept here; its storage says where", asset.id),
        )
    })
}
