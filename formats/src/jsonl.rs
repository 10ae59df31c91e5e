//! A conversation as a file: one JSON object per line, UTF-8, `\n`.
//!
//! ```text
//! {"type":"session_start", …}      the header
//! {"type":"asset_content", …}      the bytes of the conversation's assets, in pieces
//! {"type":"message", …}            one event per line, chain fields included, as `core::encoding` writes it
//! {"type":"session_end", …}        how many events there were
//! ```
//!
//! [`Writer`] writes such a file, [`Reader`] reads it in bounded memory and continues after broken lines, and
//! [`verify`] checks its chain without a database. A fork's file holds its ancestors' events in front of its own, so
//! that the chain can be followed from its beginning.
//!
//! A session file of another program has the same frame and no chain fields. Its lines come out of the reader as
//! [`Item::Foreign`]; their meaning is not decided here.

mod asset;
mod read;
mod verify;
mod write;

pub use asset::AssetPieces;
use everturn_core::error::code;
pub use read::{AssetPiece, CorruptLine, End, Header, Item, Reader, TruncatedTail};
pub use verify::{Broken, FileReport, verify};
pub use write::Writer;

use everturn_core::Error;
use std::io;

/// The version of the frame that [`Writer`] writes. A file with a higher one is refused.
pub const FORMAT: u64 = 1;
/// Longest line, in bytes. The longest event, escaped at worst, is about half of it.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most corrupt lines that [`FileReport`] lists; the rest is counted.
pub const CORRUPT_LINES_LISTED_MAX: usize = 100;

const START: &str = "session_start";
const END: &str = "session_end";
/// A piece of an asset's bytes, so that the file is whole without the store that it came from.
const ASSET: &str = "asset_content";
/// Largest piece of an asset in one line.
const ASSET_PIECE_BYTES: usize = 3 * 1024 * 1024;

/// Error for a failed read or write.
pub(crate) fn failed(doing: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Error::internal(code::PIPE_CLOSED, format!("{doing}: the reader closed the output"))
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::busy("file.disk_full", format!("{doing}: {error}; make room and try again"))
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Error::busy("file.not_ready", format!("{doing}: {error}; try again"))
        }
        _ => Error::internal("file.io", format!("{doing}: {error}; check the file and its disk")),
    }
}
