//! Files that Claude Code keeps beside a session's file: results that were too large for it.

use crate::client::Client;
use everturn_api::assets::ListAssets;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_engine::Imported;
use std::path::Path;

/// Maximum size of an attached file, in bytes.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Attaches the files in `<session>/tool-results` that are not attached yet; returns their number. They are
/// found by listing the folder, never by paths in the session's content.
pub fn attach(store: &Client, path: &Path, imported: &mut Imported) -> Result<usize, Error> {
    let folder = path.with_extension("").join("tool-results");
    if imported.format != "claude-code" || !folder.is_dir() {
        return Ok(0);
    }
    let cannot = |e: std::io::Error| {
        Error::invalid("file.cannot_open", format!("cannot read {}: {e}", folder.display()))
    };
    let known = store.call(ListAssets { conversation: imported.conversation.id.into() })?.data;
    let mut entries: Vec<_> = std::fs::read_dir(&folder).map_err(cannot)?.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut attached = 0;
    for entry in entries {
        let data = match entry.metadata() {
            Ok(data) if data.is_file() => data,
            _ => continue,
        };
        let name = format!("tool-results/{}", entry.file_name().to_string_lossy());
        if data.len() > BYTES_MAX {
            imported.problems.push(format!("{name}: larger than {BYTES_MAX} bytes; left where it is"));
            continue;
        }
        let bytes = std::fs::read(entry.path()).map_err(cannot)?;
        let sha256 = Hash::of(&bytes);
        let is_known = |asset: &everturn_core::asset::Asset| {
            asset.name.as_deref() == Some(name.as_str()) && asset.sha256 == Some(sha256)
        };
        if known.iter().any(is_known) {
            continue;
        }
        let mime_type = match entry.path().extension().and_then(|end| end.to_str()) {
            Some("json") => "application/json",
            Some("txt" | "md" | "log") => "text/plain",
            _ => "application/octet-stream",
        };
        store.attach(imported.conversation.id, &name, mime_type, bytes)?;
        attached += 1;
    }
    Ok(attached)
}
