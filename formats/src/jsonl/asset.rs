//! Putting an asset's pieces together again.

use super::AssetPiece;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::limits::ASSET_BYTES_MAX;
use std::collections::HashMap;

/// The assets of a file whose last piece has not come yet.
#[derive(Default)]
pub struct AssetPieces {
    pending: HashMap<Hash, Vec<u8>>,
}

impl AssetPieces {
    /// Takes the next piece. Returns the asset when it is complete and its bytes match the hash.
    pub fn push(&mut self, piece: AssetPiece) -> Result<Option<(Hash, Vec<u8>)>, Error> {
        let sha256 = piece.sha256;
        if piece.bytes > ASSET_BYTES_MAX as u64 {
            return Err(Error::limit(
                "ASSET_BYTES_MAX",
                ASSET_BYTES_MAX as u64,
                piece.bytes,
                "leave the asset out",
            ));
        }
        let so_far = self.pending.entry(sha256).or_default();
        if so_far.len() as u64 != piece.offset || piece.offset + piece.piece.len() as u64 > piece.bytes {
            return Err(Error::corrupt(
                "asset.pieces",
                format!("a piece of asset {sha256} is missing; export it again"),
            ));
        }
        so_far.extend(piece.piece);
        if (so_far.len() as u64) < piece.bytes {
            return Ok(None);
        }
        let whole = self.pending.remove(&sha256).unwrap_or_default();
        if Hash::of(&whole) != sha256 {
            return Err(Error::corrupt(
                "asset.changed",
                format!("the bytes of asset {sha256} were changed; export it again"),
            ));
        }
        Ok(Some((sha256, whole)))
    }

    /// An asset whose end never came.
    pub fn unfinished(&self) -> Option<Hash> {
        self.pending.keys().next().copied()
    }
}
