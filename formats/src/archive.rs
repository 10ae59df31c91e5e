//! A backup of a whole store as a file: JSON, one record a line, compressed with Zstandard.
//!
//! ```text
//! {"backup":{…}}          what it is, and which archive it follows; an increment contains only what is new since then
//! {"conversation":{…}}    one block for each conversation with something new: which, and after which event it goes on
//!   {"event":{…}}           its own events, chain fields and salts included, as `core::encoding` writes them
//!   {"asset":{…}}           behind an event that brought an asset; its bytes follow unless the chain of archives has them
//!   {"piece":"…"}             … in pieces, base64
//!   {"request":{…}}         requests with idempotency keys that were answered
//!   {"text":{…}}            durable text of an open turn
//! {"through":{…}}         the block's last event, and which of its events have no body
//! {"loose":{…}}           an event that can be read, of a conversation whose chain is broken before it; not restored
//! {"deleted":{…}}         a tombstone, and how much of the log forks still need
//! {"erased":{…}}          bodies that earlier records of the chain have, and that were erased since
//! {"key":{…}}             access keys, all of them in each archive, with the hashes of their secrets
//! {"end":{…}}             how much of everything there was
//! ```
//!
//! Behind the compressed data stands one skippable frame of Zstandard with the SHA-256 of all bytes before it. That hash
//! is the archive's id. So `zstd -dc FILE` shows the records, and a cut or changed byte anywhere is found by reading the
//! file once, before anything is made of it.
//!
//! Version 1; the names of the fields are frozen by `formats/tests/all/archive.rs`. `docs/backup.md` describes it for users.

mod contents;
mod frame;
mod ranges;
mod read;
mod write;

pub use contents::{ArchiveContents, ArchivedConversation};
pub use ranges::Ranges;
pub use read::{EventLine, Item, Reader};
pub use write::Writer;

use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::chain::Hash;
use everturn_core::conversation::Tombstone;
use everturn_core::id::{ConversationId, KeyId, TenantName, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::write::AnsweredRequest;
use serde::{Deserialize, Serialize};

/// The version that [`Writer`] writes. An archive with a higher one is refused.
pub const FORMAT: u64 = 1;
/// Longest line, in bytes. The longest event, escaped at worst, is about half of it.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest piece of an asset in one line.
const PIECE_BYTES: usize = 3 * 1024 * 1024;

/// The first record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArchiveHeader {
    /// See [`FORMAT`].
    pub format: u64,
    /// 1 for a full archive, one more for each increment after it.
    pub number: u64,
    /// The id of the archive before it. A full archive follows none.
    pub follows: Option<Hash>,
    /// Start of the backup.
    pub created: Timestamp,
}

/// A conversation, or its new part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Number in the store. Conversations are numbered in order of creation.
    pub no: u64,
    /// Owner.
    pub tenant: TenantName,
    /// Id. The id of a deleted conversation may be used again, under another number.
    pub id: ConversationId,
    /// Time of creation.
    pub created: Timestamp,
    /// Fork point, if it is a fork.
    pub parent: Option<ParentNo>,
    /// Last own event in earlier archives of the chain; 0 if none.
    pub after: u64,
}

/// Fork point of a conversation in its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParentNo {
    /// Number of the parent.
    pub no: u64,
    /// Last event that both share.
    pub at_seq: u64,
}

/// The end of a [`Block`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Through {
    /// Last own event in this and earlier archives of the chain; 0 if none.
    pub seq: u64,
    /// Hash of that event.
    pub hash: Option<Hash>,
    /// Events of the block without a body.
    #[serde(default, skip_serializing_if = "Ranges::is_empty")]
    pub erased: Ranges,
}

/// An asset of the event before it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AssetRef {
    /// Place of the event.
    pub seq: u64,
    /// Address of the bytes.
    pub sha256: Hash,
    /// Number of bytes that follow; absent if an earlier archive of the chain has them, or the store has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Durable text of an open turn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenText {
    /// Id of the turn.
    pub turn: TurnId,
    /// Text from the beginning of the turn.
    pub text: String,
}

/// A deleted conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deleted {
    /// Number in the store.
    pub no: u64,
    /// Tombstone.
    pub tombstone: Tombstone,
    /// Last own event that forks still read.
    pub through: u64,
}

/// Events with erased bodies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Erased {
    /// Number of the conversation.
    pub no: u64,
    /// Places of the events.
    pub seqs: Ranges,
}

/// An access key with the hash of its secret, which `AccessKey` itself never writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyRecord {
    id: KeyId,
    tenant: TenantName,
    role: KeyRole,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    actors: Vec<String>,
    label: Option<String>,
    created: Timestamp,
    expires: Option<Timestamp>,
    revoked: Option<Timestamp>,
    last_used: Option<Timestamp>,
    secret_sha256: Hash,
}

impl From<AccessKey> for KeyRecord {
    fn from(key: AccessKey) -> KeyRecord {
        KeyRecord {
            id: key.id,
            tenant: key.tenant,
            role: key.role,
            actors: key.actors,
            label: key.label,
            created: key.created,
            expires: key.expires,
            revoked: key.revoked,
            last_used: key.last_used,
            secret_sha256: key.secret,
        }
    }
}

impl From<KeyRecord> for AccessKey {
    fn from(key: KeyRecord) -> AccessKey {
        AccessKey {
            id: key.id,
            tenant: key.tenant,
            role: key.role,
            actors: key.actors,
            label: key.label,
            created: key.created,
            expires: key.expires,
            revoked: key.revoked,
            last_used: key.last_used,
            secret: key.secret_sha256,
        }
    }
}

/// Number of records of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ArchiveCounts {
    /// Blocks: conversations with something new.
    pub conversations: u64,
    /// Events.
    pub events: u64,
    /// Assets with bytes in the archive.
    pub assets: u64,
    /// Tombstones.
    pub deleted: u64,
    /// Bodies in earlier records that were erased since.
    pub erased: u64,
    /// Answered requests.
    pub requests: u64,
    /// Access keys.
    pub keys: u64,
    /// Events after damage, which a restore leaves out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub loose: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One line, apart from events.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Backup(ArchiveHeader),
    Conversation(Block),
    Asset(AssetRef),
    Piece(String),
    Request(AnsweredRequest),
    Text(OpenText),
    Through(Through),
    Deleted(Deleted),
    Erased(Erased),
    Key(KeyRecord),
    End(ArchiveCounts),
}
