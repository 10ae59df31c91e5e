//! Conversations as files, in and out.

use super::{Answer, answer, read, reads};
use crate::mcp::shapes::{self, tool};
use everturn_core::Error;
use everturn_engine::{Format, Scope};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::io;

/// More than this is no answer for a model to read.
const EXPORT_BYTES_MAX: usize = 1024 * 1024;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Export {
    /// The conversation: its id, the beginning of one, or @last for the last changed.
    conversation: String,
    /// markdown (if left out) or html for people; openai-chat, openai-responses, anthropic or gemini as messages of a request;
    /// transcript; jsonl with everything, which verifies offline.
    format: Option<String>,
}

pub fn about_export() -> Tool {
    let text = "Writes a whole conversation as the text of a file, up to 1 MiB. Each format but markdown and html can be \
                given to `import` again.";
    tool::<Export, shapes::Exported>("export", "Export a conversation", text, reads())
}

pub fn export(scope: &Scope, arguments: JsonObject) -> Answer {
    let Export { conversation, format } = read(arguments)?;
    let id = scope.resolve(&conversation)?;
    let format = format.as_deref().map_or(Ok(Format::Markdown), str::parse)?;
    let mut file = Within { bytes: Vec::new(), overflows: false };
    let written = scope.export(id, format, &mut file, &mut |_| {});
    if file.overflows {
        let text = format!(
            "the conversation is larger than {EXPORT_BYTES_MAX} bytes as {format}; read it with `history`, or write the file \
             with `everturn export {id} --format {format}` or GET /api/v1/conversations/{id}/export?format={format}"
        );
        return Err(Error::too_large("export.large", text));
    }
    written?;
    let content = String::from_utf8_lossy(&file.bytes);
    answer(&json!({"conversation": id, "format": format, "content": content}))
}

/// A file that must not grow too large.
struct Within {
    bytes: Vec<u8>,
    overflows: bool,
}

impl io::Write for Within {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.overflows |= self.bytes.len() + bytes.len() > EXPORT_BYTES_MAX;
        if self.overflows {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Import {
    /// The whole text of the file.
    content: String,
    /// Tells one conversation from another where the content does not: a list of messages has no session id.
    name: Option<String>,
}

pub fn about_import() -> Tool {
    let text = "Takes over a conversation from the text of a file: an export, a session of Claude Code, Codex or Gemini CLI, or \
                messages as providers take them; its content tells which. Importing it again adds only what is new.";
    let hints = ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(false);
    tool::<Import, shapes::Imported>("import", "Import a conversation", text, hints)
}

pub fn import(scope: &Scope, arguments: JsonObject) -> Answer {
    let Import { content, name } = read(arguments)?;
    answer(&scope.import_as(name.as_deref(), &mut content.as_bytes(), &mut |_| {})?)
}
