//! Limits. Every limit has a name and a number; an error for exceeding one reports both.

/// Maximum length of an event's body, in bytes of JSON. Larger payloads belong in an asset.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum nesting of arrays and objects in a body.
pub const JSON_DEPTH_MAX: usize = 100;
/// Maximum number of turns or events in one atomic append.
pub const BATCH_EVENTS_MAX: usize = 1000;
/// Maximum length of an actor id, kind, key, owner or asset id, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Maximum length of a tenant name, in bytes.
pub const TENANT_BYTES_MAX: usize = 64;
/// Maximum length of a title, in bytes.
pub const TITLE_BYTES_MAX: usize = 1000;
/// Maximum size of a conversation's metadata (its system prompt not counted), in bytes of JSON.
pub const METADATA_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of actors that an access key is bound to.
pub const KEY_ACTORS_MAX: usize = 100;
/// Maximum number of participants recorded on a conversation.
pub const PARTICIPANTS_MAX: usize = 1000;
/// Maximum number of actors that one turn is addressed to.
pub const AUDIENCE_MAX: usize = 1000;
/// Maximum length of the question of an approval, in bytes.
pub const APPROVAL_QUESTION_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of approvals that are pending in one conversation.
pub const APPROVALS_PENDING_MAX: usize = 100;
/// Base64 payloads above this size move from the turn into an asset.
pub const ASSET_INLINE_BYTES_MAX: usize = 8 * 1024;
/// Maximum size of an asset, in bytes.
pub const ASSET_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Size of a separately hashed piece of an asset, in bytes, so that a part of it can be verified. Descriptors
/// depend on it: changing it needs another field there.
pub const ASSET_PIECE_BYTES: usize = 1024 * 1024;
/// Maximum number of forks between a conversation and its oldest ancestor.
pub const FORK_DEPTH_MAX: usize = 100;
/// Maximum number of entries in one page of history, events or listings.
pub const PAGE_ENTRIES_MAX: usize = 1000;
/// A page of history or events ends once its content reaches this many bytes; it always has at least one entry.
pub const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum text of one open stream, in bytes.
pub const STREAM_BYTES_MAX: usize = BODY_BYTES_MAX / 2;
/// Maximum delay before chunks are made durable.
pub const STREAM_DEBOUNCE_MS: u64 = 250;
/// An open stream that receives no chunk for this long is ended as interrupted.
pub const STREAM_IDLE_MAX_MS: u64 = 10 * 60 * 1000;
/// Maximum lag of a live subscriber, in events. One further behind is told where to resume and disconnected.
pub const SUBSCRIBER_LAG_EVENTS_MAX: usize = 4096;
/// The same in bytes, so that a few huge events cannot fill the memory.
pub const SUBSCRIBER_LAG_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of appends waiting for the writer; further callers get a busy error.
pub const WRITER_QUEUE_MAX: usize = 16 * 1024;
/// Time to live of an `ephemeral` conversation that sets none, in seconds.
pub const EPHEMERAL_TTL_S: u64 = 24 * 60 * 60;
/// Maximum number of tenant indexes open at a time; the least recently used one is closed first.
pub const INDEXES_OPEN_MAX: usize = 32;
