//! Every limit has a name and a number; hitting one reports both.

/// Longest body of one event, in bytes of JSON. Larger payloads belong into an asset.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Deepest nesting of arrays and objects in a body.
pub const JSON_DEPTH_MAX: usize = 100;
/// Most turns or events in one atomic append.
pub const BATCH_EVENTS_MAX: usize = 1000;
/// Longest actor id, kind, key, owner or asset id, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest tenant name, in bytes.
pub const TENANT_BYTES_MAX: usize = 64;
/// Longest title, in bytes.
pub const TITLE_BYTES_MAX: usize = 1000;
/// Largest metadata of one conversation (its system prompt not counted), in bytes of JSON.
pub const METADATA_BYTES_MAX: usize = 64 * 1024;
/// Most participants remembered on a conversation.
pub const PARTICIPANTS_MAX: usize = 1000;
/// Base64 payloads above this move from the turn into an asset.
pub const ASSET_INLINE_BYTES_MAX: usize = 8 * 1024;
/// Largest single asset, in bytes.
pub const ASSET_BYTES_MAX: usize = 512 * 1024 * 1024;
/// An asset larger than this has a hash for each piece of this many bytes, so that a part of it can be checked. Kept in
/// descriptors: changing it needs another field there.
pub const ASSET_PIECE_BYTES: usize = 1024 * 1024;
/// Most forks between a conversation and its oldest ancestor.
pub const FORK_DEPTH_MAX: usize = 100;
/// Most entries in one page of history, events or listings.
pub const PAGE_ENTRIES_MAX: usize = 1000;
/// A page of history or events ends once what was said in it reaches this many bytes; it always has one entry.
pub const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Largest text of one open stream, in bytes.
pub const STREAM_BYTES_MAX: usize = BODY_BYTES_MAX / 2;
/// How long chunks may wait before they are made durable.
pub const STREAM_DEBOUNCE_MS: u64 = 250;
/// An open stream that gets no chunk for this long is ended as interrupted.
pub const STREAM_IDLE_MAX_MS: u64 = 10 * 60 * 1000;
/// A live subscriber further behind than this is told where to resume and let go.
pub const SUBSCRIBER_LAG_EVENTS_MAX: usize = 4096;
/// The same in bytes, so that a few huge events cannot fill the memory.
pub const SUBSCRIBER_LAG_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Appends that may wait for the writer before callers are told that it is busy.
pub const WRITER_QUEUE_MAX: usize = 16 * 1024;
/// Time to live of an `ephemeral` conversation that sets none, in seconds.
pub const EPHEMERAL_TTL_S: u64 = 24 * 60 * 60;
/// Indexes of tenants that are kept open at a time; the one that was used longest ago is closed first.
pub const INDEXES_OPEN_MAX: usize = 32;
