//! In, out, and proof. Whole files go over HTTP as streams; as a tool, their text is in the request or the answer.

use crate::{About, Asker, ConversationName, Method, Noun, Operation, Work};
use everturn::{Doctor, Format, Imported};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head, Report};
use everturn_core::id::ConversationId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;

/// More than this is no answer for a model to read.
const EXPORT_BYTES_MAX: usize = 1024 * 1024;

/// Exports a conversation as a file; as a tool up to 1 MiB of it. Each format but `markdown` and `html` can be imported again.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The conversation.
    pub conversation: ConversationName,
    /// `jsonl` (the default of a download) has everything, verifies offline and can be imported again; `transcript` is a
    /// transcript value. `openai-chat`, `openai-responses`, `anthropic` and `gemini` are the messages of a request;
    /// `markdown` (the default of a tool) and `html` are for people.
    pub format: Option<Format>,
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
        "The file. One that ends early is cut off, not complete.",
    )
    .work(Work::Large)
    .streams()
    .for_agents();

    async fn run(self, asker: &Asker) -> Result<ExportedText, Error> {
        let chat = asker.conversation(&self.conversation)?;
        let format = self.format.unwrap_or(Format::Markdown);
        let mut file = Within { bytes: Vec::new(), overflows: false };
        let (id, written) = (chat.id(), chat.export(format, &mut file, &mut |_| {}));
        if file.overflows {
            let text = format!(
                "the conversation is larger than {EXPORT_BYTES_MAX} bytes as {format}; read its turns, or write the file \
                 with `everturn export {id} --format {format}` or GET /api/v1/conversations/{id}/export?format={format}"
            );
            return Err(Error::too_large("export.large", text));
        }
        written?;
        let content = String::from_utf8_lossy(&file.bytes).into_owned();
        Ok(ExportedText { conversation: id, format, content })
    }
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

/// Takes over conversations from a file: an export, a session file, a transcript value, what Claude Code, Codex or Gemini
/// CLI left on disk, or messages as providers take them; its content tells which. Importing a file again adds only what is
/// new.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The whole text of the file.
    pub content: String,
    /// Tells one conversation from another where the content does not: a list of messages has no session id.
    pub name: Option<String>,
}

impl Operation for Import {
    type Answer = Imported;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Transfer,
        "import",
        "/import",
        "Import a conversation",
        "What was taken over.",
    )
    .idempotent()
    .streams()
    .for_agents();

    async fn run(self, asker: &Asker) -> Result<Imported, Error> {
        asker.tenant.import_as(self.name.as_deref(), &mut self.content.as_bytes(), &mut |_| {})
    }
}

/// Proves that a conversation is what was written: walks its hash chain and tells whether it holds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// The conversation.
    pub conversation: ConversationName,
    /// A head hash noted earlier, which the log must still contain.
    pub head: Option<String>,
}

/// What a verification found.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The conversation.
    pub conversation: ConversationId,
    /// Whether it holds.
    pub ok: bool,
    /// Events that were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// Bodies that are erased: counted, not an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erased: Option<u64>,
    /// Where the log ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// If a head was asked for: whether the chain contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contains_head: Option<bool>,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl Verdict {
    /// The report; what is wrong with the chain is an error.
    pub fn into_report(self) -> Result<Report, Error> {
        match (self.events, self.erased, self.head) {
            (Some(events), Some(erased), Some(head)) => {
                Ok(Report { events, erased, head, contains_head: self.contains_head })
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
        "What was found; `ok` says whether it holds.",
    )
    .work(Work::Large)
    .for_agents();

    async fn run(self, asker: &Asker) -> Result<Verdict, Error> {
        let chat = asker.conversation(&self.conversation)?;
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
        match chat.log().verify_with(head, &mut asker.progress()) {
            Ok(report) => {
                let ok = report.contains_head != Some(false);
                let text = "the log does not contain that head: it was cut or rewritten, or the head is of another one";
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
            // That the chain is broken is what was asked for.
            Err(Error::Corrupt(found)) => Ok(Verdict { problems: vec![found.text], ..nothing }),
            Err(error) => Err(error),
        }
    }
}

/// Checks everything of this tenant: chains, bodies, assets. The database is read from end to end, so one check runs at a
/// time, whoever asks.
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
        "What was found; nothing is wrong if `findings` is empty.",
    )
    .admin()
    .work(Work::Large);

    async fn run(self, asker: &Asker) -> Result<Doctor, Error> {
        let mut progress = asker.progress();
        asker.tenant.doctor(&mut |doctor| progress(doctor.events))
    }
}
