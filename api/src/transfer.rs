//! Import, export and verification. Whole files are streamed over HTTP; as a tool, their text is in the request
//! or the answer.

use crate::{About, ConversationName, Method, Noun, Operation, Requester, Work};
use everturn_core::Error;
use everturn_core::chain::{ChainReport, Hash, Head};
use everturn_core::id::ConversationId;
use everturn_engine::{Doctor, Format, ImportOptions, Imported};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;

/// Maximum size of an export that a model can read as an answer.
const EXPORT_BYTES_MAX: usize = 1024 * 1024;

/// Exports a conversation as a file; as a tool up to 1 MiB of it. All formats except `markdown` and `html` can
/// be imported again.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The conversation.
    pub conversation: ConversationName,
    /// `jsonl` (the default of a download) contains everything, verifies offline and can be imported again;
    /// `transcript` is a transcript value. `openai-chat`, `openai-responses`, `anthropic` and `gemini` are the
    /// messages of a request; `markdown` (the default of a tool) and `html` are for people.
    pub format: Option<Format>,
    /// Mask secrets and personal data (e-mail addresses, phone and card numbers), and leave out files and images. Not
    /// for `jsonl`, which would not verify.
    #[serde(default)]
    pub redacted: bool,
}

/// A conversation as the text of a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExportedText {
    /// The conversation.
    pub conversation: ConversationId,
    /// The format.
    pub format: Format,
    /// The text of the file.
    pub content: String,
}

impl Operation for Export {
    type Answer = ExportedText;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Transfer,
        "export",
        "/conversations/{conversation}/export",
        "Export a conversation",
        "The file. One that ends early is incomplete.",
    )
    .work(Work::Large)
    .streams()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<ExportedText, Error> {
        let chat = requester.conversation(&self.conversation)?;
        let format = self.format.unwrap_or(Format::Markdown);
        let mut file = Within { bytes: Vec::new(), overflows: false };
        let written = match self.redacted {
            true => chat.export_redacted(format, &mut file, &mut |_| {}),
            false => chat.export(format, &mut file, &mut |_| {}),
        };
        let id = chat.id();
        if file.overflows {
            let text = format!(
                "the conversation is larger than {EXPORT_BYTES_MAX} bytes as {format}; read its turns, or have the file \
                 written by `everturn export {id} --format {format}` or by `GET /api/v1/conversations/{id}/export?format={format}`"
            );
            return Err(Error::too_large("export.large", text));
        }
        written?;
        let content = String::from_utf8_lossy(&file.bytes).into_owned();
        Ok(ExportedText { conversation: id, format, content })
    }
}

/// A writer with a maximum size.
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

/// Imports conversations from a file: an export, a session file, a transcript value, a session of Claude Code,
/// Codex, Gemini CLI or one of seven other agents, or messages in a provider's format; the format is detected. Importing a file again adds
/// only what is new.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The whole text of the file.
    pub content: String,
    /// Distinguishes conversations where the content does not: a list of messages has no session id. With the same name,
    /// only new messages are added to its conversation; without one, a list that is not the same is another conversation.
    pub name: Option<String>,
    /// Whether the file is imported again when it grows. Then a tool call at its end stays pending; otherwise it is given
    /// up.
    #[serde(default)]
    pub watched: bool,
}

impl Operation for Import {
    type Answer = Imported;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Transfer,
        "import",
        "/import",
        "Import a conversation",
        "What was imported.",
    )
    .idempotent()
    .streams()
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Imported, Error> {
        let options =
            ImportOptions { name: self.name.as_deref(), watched: self.watched, role: requester.role };
        requester.tenant.import_with(options, &mut self.content.as_bytes(), &mut |_| {})
    }
}

/// Verifies that a conversation is unchanged: walks its hash chain and reports whether it is intact.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// The conversation.
    pub conversation: ConversationName,
    /// A head hash noted earlier, which the log must still contain.
    pub head: Option<String>,
}

/// Result of a verification.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The conversation.
    pub conversation: ConversationId,
    /// Whether the chain is intact.
    pub ok: bool,
    /// Number of events checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// Number of erased bodies. They are not errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erased: Option<u64>,
    /// End of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// Whether the chain contains the given head; absent if none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contains_head: Option<bool>,
    /// Problems found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl Verdict {
    /// The report; a problem with the chain is an error.
    pub fn into_report(self) -> Result<ChainReport, Error> {
        match (self.events, self.erased, self.head) {
            (Some(events), Some(erased), Some(head)) => {
                Ok(ChainReport { events, erased, head, contains_head: self.contains_head })
            }
            _ => Err(Error::corrupt("chain.broken", self.problems.join("; "))),
        }
    }
}

impl Operation for Verify {
    type Answer = Verdict;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Transfer,
        "verify",
        "/conversations/{conversation}/verify",
        "Verify a conversation",
        "The result; `ok` says whether the chain is intact.",
    )
    .work(Work::Large)
    .for_agents();

    async fn run(self, requester: &Requester) -> Result<Verdict, Error> {
        let chat = requester.conversation(&self.conversation)?;
        let head: Option<Hash> = self.head.as_deref().map(str::parse).transpose()?;
        let nothing = Verdict {
            conversation: chat.id(),
            ok: false,
            events: None,
            erased: None,
            head: None,
            contains_head: None,
            problems: Vec::new(),
        };
        match chat.log().verify_with(head, &mut requester.progress()) {
            Ok(report) => {
                let ok = report.contains_head != Some(false);
                let text = "the log does not contain that head: it was truncated or rewritten, or the head belongs to another log";
                Ok(Verdict {
                    ok,
                    events: Some(report.events),
                    erased: Some(report.erased),
                    head: Some(report.head),
                    contains_head: report.contains_head,
                    problems: if ok { Vec::new() } else { vec![text.into()] },
                    ..nothing
                })
            }
            // A broken chain is a result, not an error.
            Err(Error::Corrupt(found)) => Ok(Verdict { problems: vec![found.text], ..nothing }),
            Err(error) => Err(error),
        }
    }
}

/// Checks everything of this tenant: chains, bodies, assets. The database is read from end to end, so only one
/// check runs at a time on the server.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckStore {}

impl Operation for CheckStore {
    type Answer = Doctor;
    const ABOUT: About = About::new(
        Method::Get,
        Noun::Transfer,
        "doctor",
        "/doctor",
        "Check everything",
        "The findings; none if nothing is wrong.",
    )
    .admin()
    .work(Work::Large);

    async fn run(self, requester: &Requester) -> Result<Doctor, Error> {
        let mut progress = requester.progress();
        requester.tenant.doctor(&mut |doctor| progress(doctor.events))
    }
}
