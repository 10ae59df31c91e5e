//! Whole conversations out of a store and into one.

mod agents;
mod export;
mod live;
pub(crate) mod one_at_a_time;
mod redacted;
mod restore;
mod session;

pub use export::Format;
pub use live::{ConversationSession, Logged};

use crate::background;
use crate::context::check_projection;
use crate::conversation::ConversationHandle;
use crate::ingest::{self, DraftKind, Ingested, NewTurn, redaction_mode};
use crate::tenant::Tenant;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::approval::ApprovalBody;
use everturn_core::asset::Asset;
use everturn_core::budget;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Lifecycle};
use everturn_core::event::{Draft, Visibility, kind};
use everturn_core::id::{ConversationId, TurnId, clip};
use everturn_core::json::Raw;
use everturn_core::limits::{PAGE_BYTES_MAX, PAGE_ENTRIES_MAX};
use everturn_core::message;
use everturn_core::redaction::{RedactionMode, mask_text};
use everturn_core::turn::{Turn, TurnBody};
use everturn_core::viewer::is_for_everyone;
use everturn_core::write::{Action, StateBody, Summarized};
use everturn_formats::agents::Opened;
use everturn_formats::jsonl::{self, Item};
use everturn_formats::transcript;
use everturn_store::TurnQuery;
use everturn_views::compaction::{self, Checkpoint, CompactionBody, Covers};
use everturn_views::reading;
use everturn_views::state::{Fold, PINS_MAX, PinBody, SCRATCHPADS_MAX, ToolBody};
use everturn_views::tokens::TokenizerFamily;
use restore::Restore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, Read};
use std::sync::Arc;

/// Number of bytes that are read to detect the format.
const SNIFF_BYTES: usize = 512;

/// Options of an import.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions<'a> {
    /// Name of the file. It identifies the conversation if the content does not: a list of messages has no session id,
    /// and many begin with the same words.
    pub name: Option<&'a str>,
    /// Whether the file is imported again as it grows. A tool call at its end then stays pending; otherwise it is given up.
    pub watched: bool,
    /// Role of the caller; by default admin, like the owner of the store. A file cannot delete, erase or restore anything
    /// that the role does not allow.
    pub role: KeyRole,
}

impl Default for ImportOptions<'_> {
    fn default() -> Self {
        ImportOptions { name: None, watched: false, role: KeyRole::Admin }
    }
}

/// Result of an import.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Imported {
    /// Format of the file: `jsonl`, `session`, `transcript`, `claude-code`, `codex`, `gemini-cli`, `openai-chat`,
    /// `openai-responses`, `anthropic` or `messages`.
    pub format: Cow<'static, str>,
    /// The conversation, as it is now.
    pub conversation: Conversation,
    /// Further conversations of the file: subagents, and branches that were taken up again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub linked: Vec<ConversationId>,
    /// Events in the file: lines, or elements of a list.
    pub events: u64,
    /// Events that were new here.
    pub added: u64,
    /// Turns in the file.
    pub turns: u64,
    /// New turns that were said before others that an earlier import brought. They are at the end of the log.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late: u64,
    /// Number of lines that are no turns and were kept as events `import.line`, by type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<String, u64>,
    /// Parts that could not be imported, each with the reason.
    pub problems: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Problems of a file in one line: the first, and how many more there are.
fn in_short(problems: &[String]) -> String {
    match problems {
        [] => "the file has nothing else".to_string(),
        [only] => only.clone(),
        [first, more @ ..] => format!("{first}; and {} more", more.len()),
    }
}

/// The answer where events are missing at the end of a log: half must not be taken for whole.
pub(crate) fn ends_early(conversation: &Conversation, seq: u64) -> Error {
    let (id, head) = (conversation.id, conversation.head.seq);
    let text = format!("{id} ends at seq {seq} but had {head} events; restore it from a backup");
    Error::corrupt("chain.truncated", text)
}

impl Tenant {
    /// Imports a file: an export, a session file, a transcript value, or a session of an agent or chat program. The format is
    /// detected from the content. Importing a file again adds only what is new.
    pub fn import(&self, source: impl BufRead, progress: &mut dyn FnMut(u64)) -> Result<Imported, Error> {
        self.import_with(ImportOptions::default(), source, progress)
    }

    /// Imports a file with options.
    pub fn import_with(
        &self,
        options: ImportOptions<'_>,
        source: impl BufRead,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported, Error> {
        self.check_import()?;
        let (start, source) = match everturn_formats::agents::open(source, options.name)? {
            Opened::Agent(reader) => return self.import_agent(reader, options.watched, progress),
            Opened::Other(start, source) => (start, source),
        };
        let head = String::from_utf8_lossy(&start[..start.len().min(SNIFF_BYTES)]).into_owned();
        let source = start.as_slice().chain(source);
        if head.contains("\"session_start\"") && !head.contains("\"_type\"") {
            return self.import_jsonl(source, options.role, progress);
        }
        if head.trim_start_matches('\u{feff}').trim_start().is_empty() {
            return Err(Error::invalid("import.empty", "the file is empty; nothing was imported"));
        }
        // A transcript value says so, mostly at its beginning.
        let says_so = String::from_utf8_lossy(&start).contains("\"_type\"");
        self.import_value(source, options.role).map_err(|error| match error {
            Error::Invalid(_) | Error::TooLarge(_) if !says_so => everturn_formats::agents::unknown(&start),
            error => error,
        })
    }

    /// Refuses a caller that may not speak for everyone in a file.
    fn check_import(&self) -> Result<(), Error> {
        match self.caller().actors() {
            [] => Ok(()),
            _ => {
                let text = "a file names the actors of its turns, and your key may write only as its own actors; import it with another key";
                Err(Error::forbidden("import.actors", text))
            }
        }
    }

    /// Refuses to bring back a deleted conversation with a role that could not delete it.
    fn check_deleted(&self, id: ConversationId, role: KeyRole) -> Result<(), Error> {
        if role == KeyRole::Admin || self.shared().journal.index.conversation(&self.key(id)).is_ok() {
            return Ok(());
        }
        // One that is due is absent for every reader, but not deleted yet.
        background::delete_if_due(self.shared(), self.key(id))?;
        let stones = self.tombstones()?;
        let Some(stone) = stones.iter().find(|stone| stone.id == id) else { return Ok(()) };
        let text = format!(
            "{id} was deleted on {}; only an admin brings it back: use the key of an admin, or another tenant",
            stone.deleted
        );
        Err(Error::forbidden("access.role", text))
    }

    fn import_value(&self, source: impl Read, role: KeyRole) -> Result<Imported, Error> {
        let unreadable = |e: std::io::Error| Error::internal("file.io", format!("cannot read the file: {e}"));
        let mut text = String::new();
        let whole_bytes_max = self.shared().options.whole_bytes_max;
        let read =
            source.take(whole_bytes_max + 1).read_to_string(&mut text).map_err(|e| match e.kind() {
                std::io::ErrorKind::InvalidData => {
                    Error::invalid("import.not_utf8", "the file is not UTF-8 text; nothing was imported")
                }
                _ => unreadable(e),
            })?;
        if read as u64 > whole_bytes_max {
            let advice = "a file that is one value is held in memory: use the jsonl format";
            return Err(Error::limit("WHOLE_BYTES_MAX", whole_bytes_max, read as u64, advice));
        }
        self.import_transcript(text.trim_start_matches('\u{feff}'), role)
    }

    fn import_jsonl(
        &self,
        source: impl BufRead,
        role: KeyRole,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported, Error> {
        let mut restore = Restore::new(self, role);
        let mut problems = Vec::new();
        let mut reader = jsonl::Reader::new(source);
        while let Some(item) = reader.next() {
            match item? {
                Item::Header(header) if header.conversation.is_none() && restore.events == 0 => {
                    self.check_deleted(session::id_of(&header), role)?;
                    // A conversation that was exported as a session is named by its own id.
                    let exported =
                        header.session_id.as_ref().and_then(|id| id.parse::<ConversationId>().ok());
                    if let Some(id) = exported {
                        self.check_deleted(id, role)?;
                    }
                    return self.import_session(&header, reader, problems, None, progress);
                }
                Item::Header(_) | Item::End(_) => {}
                Item::Event { line, event } => {
                    restore.event(*event).map_err(|e| e.at(format!("line {line}")))?;
                    progress(restore.events);
                }
                Item::Asset(piece) => {
                    let line = piece.line;
                    restore.asset(piece).map_err(|e| e.at(format!("line {line}")))?;
                }
                Item::Foreign { line, .. } => {
                    problems.push(format!("line {line}: not an event of an Everturn file; left out"))
                }
                Item::Corrupt(corrupt) => {
                    problems.push(format!("line {}: {}; left out", corrupt.line, corrupt.reason))
                }
                Item::TruncatedTail(tail) => {
                    problems.push(format!(
                        "the last line is cut off at byte {} ({} bytes); left out",
                        tail.byte_offset, tail.bytes
                    ));
                }
            }
        }
        if reader.is_unclosed() {
            problems.push("the file has no session_end: it may be cut off".into());
        }
        restore.finish()?;
        let conversation = restore.conversation.take().ok_or_else(|| {
            let text =
                format!("no event in the file could be read; nothing was imported; {}", in_short(&problems));
            Error::invalid("import.nothing", text)
        })?;
        Ok(Imported {
            format: "jsonl".into(),
            conversation,
            linked: Vec::new(),
            events: restore.events,
            turns: restore.turns,
            late: 0,
            added: restore.added,
            kept: BTreeMap::new(),
            problems,
        })
    }

    fn import_transcript(&self, text: &str, role: KeyRole) -> Result<Imported, Error> {
        let value = transcript::parse(text)?;
        let id = match value.id {
            Some(id) => id,
            None => ConversationId(self.shared().journal.source.ulid()?),
        };
        let chat = self.conversation(id);
        let (existing, items) = match self.shared().journal.index.conversation(&self.key(id)) {
            Ok(existing) => (Some(existing), value.items.len()),
            Err(Error::NotFound(_)) => {
                self.check_deleted(id, role)?;
                (None, 0)
            }
            Err(error) => return Err(error),
        };
        let mut problems = Vec::new();
        let mut ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
        let prepared = match &existing {
            Some(existing) => chat.new_in_transcript(existing, value, &mut ingested, &mut problems),
            None => chat.transcript_drafts(value, &mut ingested),
        };
        if let Err(error) = prepared {
            self.shared().journal.uploaded(&ingested.uploads);
            return Err(error);
        }
        let added = ingested.drafts.len() as u64;
        let turns = ingested.drafts.iter().filter(|draft| kind::begins_turn(&draft.kind)).count() as u64;
        let Ingested { drafts, uploads } = ingested;
        let action = match &existing {
            Some(existing) => Action::Append {
                drafts,
                expected_seq: Some(existing.head.seq),
                prepared_for: None,
                idempotency: None,
            },
            None => Action::Create { drafts, parent: None, idempotency: None },
        };
        let conversation = match existing {
            Some(existing) if added == 0 => existing,
            _ => Commit::new(self.submit(self.key(id), action, uploads), |committed| {
                Ok(Arc::unwrap_or_clone(committed.conversation))
            })
            .wait()?,
        };
        Ok(Imported {
            format: "transcript".into(),
            conversation,
            linked: Vec::new(),
            events: added.max(items as u64),
            turns,
            late: 0,
            added,
            kept: BTreeMap::new(),
            problems,
        })
    }
}

impl ConversationHandle {
    /// Writes a conversation as a file of events: everything, chain fields and asset bytes included. It verifies offline
    /// and can be imported again, here or elsewhere. `progress` hears how many events are written.
    pub(crate) fn export_jsonl(
        &self,
        out: impl std::io::Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let key = self.key();
        let conversation = self.shared().journal.index.conversation(key)?;
        let mut writer = jsonl::Writer::new(out, &conversation, self.shared().now())?;
        for asset in self.assets().list()? {
            if let Some(sha256) = asset.sha256 {
                writer.asset(sha256, &self.shared().journal.assets.get(&self.key().tenant, sha256)?)?;
            }
        }
        let mut after = 0;
        // Up to the head of the moment it began, so that a busy conversation has an end as well.
        while after < conversation.head.seq {
            let left = usize::try_from(conversation.head.seq - after).unwrap_or(usize::MAX);
            let page = self.shared().journal.log.events(key, after, left.min(PAGE_ENTRIES_MAX))?;
            let last = page.last().ok_or_else(|| ends_early(&conversation, after))?;
            after = last.seq;
            for mut event in page {
                // A body that is there only in part would not match its hash.
                if self.tenant.viewer().event(event.clone()) != event {
                    event.body = None;
                }
                writer.event(&event)?;
            }
            progress(after);
        }
        writer.finish(self.shared().now()).map(drop)
    }

    /// The conversation as a transcript value, version 2.
    pub fn transcript(&self) -> Result<String, Error> {
        let mut text = Vec::new();
        self.export_transcript(false, &mut text, &mut |_| {})?;
        String::from_utf8(text).map_err(|e| Error::internal("transcript.encode", e.to_string()))
    }

    /// Writes it, up to the head of the moment it began, so that a busy conversation has an end as well.
    pub(crate) fn export_transcript(
        &self,
        is_redacted: bool,
        out: impl std::io::Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let key = self.key();
        let mut conversation = self.shared().journal.index.conversation(key)?;
        conversation.metadata.insert("transcript_budget".into(), self.transcript_budget(&conversation)?);
        let head = conversation.head.seq;
        let fold = self.fold_now(&conversation)?;
        let (events_after, in_force) = self.shown_events(&conversation, &fold)?;
        if is_redacted {
            conversation = redacted::conversation(conversation)?;
        }
        let progress = RefCell::new(progress);
        let events = |after: u64| {
            let left = usize::try_from(head.saturating_sub(after)).unwrap_or(usize::MAX);
            let page = match left {
                0 => Vec::new(),
                left => self.events(after, left.min(PAGE_ENTRIES_MAX))?,
            };
            if page.is_empty() && left > 0 {
                return Err(ends_early(&conversation, after));
            }
            if let Some(last) = page.last() {
                progress.borrow_mut()(last.seq);
            }
            match is_redacted {
                true => page.into_iter().map(redacted::event).collect(),
                false => Ok(page),
            }
        };
        let page = |after: u64, whole_log: bool| {
            let query = TurnQuery {
                after: Some(after),
                before: Some(head + 1),
                as_of: Some(head),
                whole_log,
                limit: PAGE_ENTRIES_MAX,
                bytes_max: Some(PAGE_BYTES_MAX),
                ..TurnQuery::default()
            };
            match is_redacted {
                true => self.turns(&query)?.into_iter().map(redacted::turn).collect(),
                false => self.turns(&query),
            }
        };
        let edited = self.edited_view(conversation.view_start().0, &page)?;
        let turns = |after| page(after, true);
        let read = |after: u64| match &edited {
            Some(turns) => {
                Ok(turns.iter().filter(|turn| turn.place > after).take(PAGE_ENTRIES_MAX).cloned().collect())
            }
            None => page(after, false),
        };
        let system_prompt = self.state().system_prompt(None)?;
        let system_prompt = match is_redacted {
            true => system_prompt.as_ref().map(redacted::system_prompt),
            false => system_prompt,
        };
        let waiting = self.waiting_before(conversation.view_start().0, &fold, is_redacted)?;
        let given_up = fold.abandoned.iter().map(|abandoned| &abandoned.tool);
        let unanswered = fold.tools.iter().chain(given_up).filter_map(|tool| tool.id.clone()).collect();
        let bytes = |sha256: Hash| match self.shared().journal.assets.get(&key.tenant, sha256) {
            Err(Error::NotFound(_)) => Ok(None),
            bytes => bytes.map(Some),
        };
        let summary = self.summary(&fold)?;
        let summary = if is_redacted { summary.as_deref().map(mask_text) } else { summary };
        let source = transcript::ExportSource {
            conversation: &conversation,
            system_prompt: system_prompt.as_ref(),
            events: &events,
            turns: &turns,
            read: &read,
            has_assets: !self.assets().list()?.is_empty(),
            // Bytes cannot be searched for what must not be passed on.
            bytes: if is_redacted { None } else { Some(&bytes) },
            waiting: &waiting,
            unanswered: &unanswered,
            summary: summary.as_deref(),
            events_after,
            in_force: &in_force,
        };
        transcript::export(&source, out)
    }

    /// Calls at or before a place that wait for their result.
    fn waiting_before(
        &self,
        start: u64,
        fold: &Fold,
        is_redacted: bool,
    ) -> Result<Vec<transcript::WaitingCall>, Error> {
        let mask = |text: String| if is_redacted { mask_text(&text) } else { text };
        let mut waiting = Vec::new();
        for (tool, shown) in self.pending_tools(fold.tools_in_order())? {
            let Some((turn, id)) = tool.turn.filter(|_| tool.place <= start).zip(tool.id.clone()) else {
                continue;
            };
            let is_public = self.for_everyone().pending_tool(tool)?.is_some();
            let audience = match is_public {
                true => None,
                false => {
                    let turn = self.shared().journal.index.turn_in(self.key(), turn)?;
                    Some(turn.actor.into_iter().chain(turn.audience).collect())
                }
            };
            let body = ToolBody {
                tool_call_id: mask(id),
                tool_name: Some(mask(shown.tool_name)),
                summary: Some(mask(shown.summary)),
            };
            waiting.push(transcript::WaitingCall { body, at: tool.at, audience });
        }
        Ok(waiting)
    }

    /// The turns of the messages view where some were edited, without calls and results that lost each other by it. `None`
    /// if none was, or if they are too many to be held at once.
    pub(crate) fn edited_view(
        &self,
        start: u64,
        page: &dyn Fn(u64, bool) -> Result<Vec<Turn>, Error>,
    ) -> Result<Option<Vec<Turn>>, Error> {
        if self.shared().journal.index.fallen_after(self.key(), start)? == 0 {
            return Ok(None);
        }
        let (mut turns, mut bytes, mut after) = (Vec::new(), 0, start);
        loop {
            let read = page(after, true)?;
            let Some(last) = read.last() else { break };
            after = last.seq;
            bytes += read
                .iter()
                .filter_map(|turn| turn.message.as_ref())
                .map(|m| m.get().len() as u64)
                .sum::<u64>();
            if bytes > self.shared().options.whole_bytes_max {
                return Ok(None);
            }
            turns.extend(read.into_iter().filter(|turn| turn.place > start));
        }
        let mut standing: BTreeMap<u64, Turn> = BTreeMap::new();
        let public: Vec<Turn> = turns.iter().filter(|turn| is_for_everyone(turn)).cloned().collect();
        // Where a private result and a public one answer a call, everyone reads the second.
        for turns in [public, turns] {
            standing.extend(reading::messages(&turns)?.into_iter().map(|(index, message)| {
                (turns[index].place, Turn { message: Some(message.raw().clone()), ..turns[index].clone() })
            }));
        }
        Ok(Some(standing.into_values().collect()))
    }

    /// Drafts of what a value has that is not in its conversation: turns after all that are there. One that was exported
    /// here and has nothing new has none, whatever was erased, covered or trimmed since.
    fn new_in_transcript(
        &self,
        existing: &Conversation,
        value: transcript::ParsedTranscript,
        into: &mut Ingested,
        problems: &mut Vec<String>,
    ) -> Result<(), Error> {
        let index = &self.shared().journal.index;
        let (turns, events): (Vec<transcript::Item>, Vec<transcript::Item>) =
            value.items.into_iter().partition(|item| matches!(item, transcript::Item::Turn { .. }));
        let summary = value.checkpoint.map(|(checkpoint, _)| checkpoint.handoff_md);
        let new = match self.count_known(existing, &turns, summary.is_some(), problems)? {
            Some(known) => {
                let fold = self.shared().fold(self.key(), existing.head.seq)?;
                let given = summary.map(|summary| {
                    let mut summary = Raw::of(&summary)?;
                    ingest::redact(&mut summary, redaction_mode(existing))?;
                    Ok::<_, Error>(summary.read::<String>())
                });
                if let Some(given) = given.transpose()?
                    && given != self.summary(&fold)?
                {
                    problems.push(format!("{} keeps its own summary, which is not the value's", self.id()));
                }
                let left = self.left_as_it_is(existing, &events)?;
                if !left.is_empty() {
                    problems.push(format!(
                        "{} keeps its own pins, scratchpads and approvals, of which these are not as in the value: {}",
                        self.id(),
                        left.join(", ")
                    ));
                }
                turns.into_iter().skip(known).collect()
            }
            None => Vec::new(),
        };
        let shown: HashSet<String> = new.iter().flat_map(transcript::Item::asset_ids).collect();
        for asset in value.assets.iter().filter(|asset| shown.contains(&asset.id)) {
            if index.asset(self.key(), &asset.id)?.is_none() {
                self.asset_draft(asset, into)?;
            }
        }
        for item in new {
            self.transcript_draft(existing, item, into)?;
        }
        bind_assets(&mut into.drafts);
        into.drafts.iter().try_for_each(Draft::check)
    }

    /// Pins, scratchpads and approvals that are not here as the events of a value leave them.
    fn left_as_it_is(
        &self,
        existing: &Conversation,
        events: &[transcript::Item],
    ) -> Result<Vec<String>, Error> {
        // By what it is and its name: the value, `None` if it was removed. Approvals that wait have an empty one.
        let mut told: BTreeMap<(&str, String), Option<serde_json::Value>> = BTreeMap::new();
        for event in events {
            let (transcript::Item::Event { kind, .. }, Some(body)) = (event, event.body().transpose()?)
            else {
                continue;
            };
            let mut body = body;
            ingest::redact(&mut body, redaction_mode(existing))?;
            let named = |what| {
                let PinBody { name, value } = body.read()?;
                Some(((what, name), value.and_then(|value| value.read())))
            };
            let asked = |waits: bool| {
                let ApprovalBody { approval_id, .. } = body.read()?;
                Some((("approval", approval_id), waits.then_some(serde_json::Value::Null)))
            };
            told.extend(match kind.as_str() {
                kind::PIN | kind::UNPIN => named("pin"),
                kind::SCRATCHPAD_SET | kind::SCRATCHPAD_CLEAR => named("scratchpad"),
                kind::APPROVAL_REQUESTED => asked(true),
                kind::APPROVAL_RESOLVED => asked(false),
                _ => None,
            });
        }
        if told.is_empty() {
            return Ok(Vec::new());
        }
        let here = self.state().read()?;
        let is_here = |((what, name), told): &(&(&str, String), &Option<serde_json::Value>)| match *what {
            "pin" => here.pins.get(name).and_then(|pin| pin.value.read()) == **told,
            "scratchpad" => here.scratchpads.get(name).and_then(|pad| pad.value.read()) == **told,
            _ => here.pending_approvals.iter().any(|waiting| waiting.approval_id == *name) == told.is_some(),
        };
        let left = told.iter().filter(|told| !is_here(told));
        Ok(left.map(|((what, name), _)| format!("{what} {}", clip(name))).collect())
    }

    /// Number of a value's turns that are in its conversation already; `None`, with the problem, if it reads differently.
    fn count_known(
        &self,
        existing: &Conversation,
        given: &[transcript::Item],
        is_summarized: bool,
        problems: &mut Vec<String>,
    ) -> Result<Option<usize>, Error> {
        let said = |item: &transcript::Item| match item {
            transcript::Item::Turn { message, about, .. } => Some((message.clone(), about.turn)),
            transcript::Item::Event { .. } => None,
        };
        let given: Vec<(Raw, Option<TurnId>)> = given.iter().filter_map(said).collect();
        let is_here = |turn: &Option<TurnId>| {
            let found = turn.map(|turn| self.shared().journal.index.turn_in(self.key(), turn));
            found.is_some_and(|found| !matches!(found, Err(Error::NotFound(_))))
        };
        let here: Vec<bool> = given.iter().map(|(_, turn)| is_here(turn)).collect();
        let start = existing.view_start().0;
        let view: Vec<Turn> =
            self.standing_after(start)?.into_iter().filter(|turn| turn.message.is_some()).collect();
        if let Some(last) = here.iter().rposition(|here| *here) {
            // Turns that are here and no longer read, such as erased ones, are passed over.
            let reads: HashSet<Option<TurnId>> = view.iter().map(|turn| Some(turn.id)).collect();
            let rest: Vec<usize> =
                (0..given.len()).filter(|n| !here[*n] || reads.contains(&given[*n].1)).collect();
            // What the value has summarized or trimmed by now still reads here.
            let begins = rest.first().and_then(|n| given[*n].1);
            let covered = view.iter().position(|turn| Some(turn.id) == begins);
            for from in std::iter::once(0).chain(covered) {
                if begins_with(rest.iter().map(|n| &given[*n].0), &view[from..]) {
                    let first = rest.get(view.len() - from).copied().unwrap_or(given.len());
                    return Ok(Some(first.max(last + 1)));
                }
            }
        } else {
            // Without ids, an erased turn may have been any.
            let mut log = self.standing_after(0)?;
            log.retain(|turn| turn.erased || turn.message.is_some());
            let erased = log.iter().take(given.len()).filter(|turn| turn.erased).count();
            if begins_with(given.iter().map(|(message, _)| message), &log) {
                if erased > 0 {
                    problems.push(format!("{erased} turns of {} were erased; they stay erased", self.id()));
                }
                return Ok(Some(log.len()));
            }
            if !view.is_empty()
                && log.iter().all(|turn| !turn.erased)
                && begins_with(given.iter().map(|(message, _)| message), &view)
            {
                return Ok(Some(view.len()));
            }
            if is_summarized && given.len() > 1 && log.iter().all(|turn| !turn.erased) {
                // One message alone may read like another.
                let mut overlaps = 1..view.len().saturating_sub(1);
                let goes_on =
                    |from: &usize| begins_with(given.iter().map(|(message, _)| message), &view[*from..]);
                if let Some(from) = overlaps.find(goes_on) {
                    return Ok(Some(view.len() - from));
                }
            }
        }
        if !here.iter().all(|here| *here) {
            problems.push(format!("{} is here already and reads differently; nothing was added", self.id()));
        }
        Ok(None)
    }

    /// The turns that read after a place, erased ones included.
    fn standing_after(&self, mut after: u64) -> Result<Vec<Turn>, Error> {
        let mut turns = Vec::new();
        loop {
            let query = TurnQuery { after: Some(after), limit: PAGE_ENTRIES_MAX, ..TurnQuery::default() };
            let page = self.turns(&query)?;
            let Some(last) = page.last() else { return Ok(turns) };
            after = last.place;
            turns.extend(page);
        }
    }

    /// Stores the bytes of a value's asset, and drafts its event.
    fn asset_draft(&self, asset: &transcript::AssetItem, into: &mut Ingested) -> Result<(), Error> {
        let (shared, tenant) = (self.shared(), &self.key().tenant);
        if let Some((sha256, bytes)) = asset.bytes()? {
            ingest::check_asset(bytes.len())?;
            shared.quotas.check_upload(tenant, bytes.len())?;
            shared.journal.upload(tenant, sha256, bytes)?;
            into.uploads.push((tenant.clone(), sha256));
        }
        let draft = shared.draft(kind::ASSET_ADDED, &asset.raw)?;
        into.drafts.push(Draft { visibility: asset.visibility, ..draft });
        Ok(())
    }

    fn transcript_draft(
        &self,
        conversation: &Conversation,
        item: transcript::Item,
        into: &mut Ingested,
    ) -> Result<(), Error> {
        let shared = self.shared();
        let body = item.body().transpose()?;
        match item {
            transcript::Item::Turn { visibility, message, event, is_derived, about, .. } => {
                let transcript::TurnDetails { turn, actor, audience, at, model, tokens, metadata } = *about;
                let new = NewTurn {
                    actor,
                    audience,
                    tokens,
                    model,
                    metadata,
                    occurred_at: at,
                    visibility: Some(visibility),
                    ..NewTurn::message(message.get())
                };
                // A turn keeps its id, unless that is taken.
                let is_free = |turn: &TurnId| {
                    let found = shared.journal.index.stored_turn(&self.key().tenant, *turn);
                    matches!(found, Err(Error::NotFound(_)))
                };
                let turn = turn.filter(is_free);
                let event = event.filter(|_| !(is_derived && turn.is_some()));
                shared.ingest(conversation, new, DraftKind::Imported(turn, event), into)
            }
            transcript::Item::Event { kind, role, visibility, raw, about } => {
                let mut body = body.unwrap_or(raw);
                ingest::redact(&mut body, redaction_mode(conversation))?;
                let draft = shared.draft(kind, &body)?;
                // A call without an id is given up by its turn.
                let turn = about.turn.filter(|turn| {
                    draft.kind == kind::TOOL_ABANDONED
                        && into.drafts.iter().any(|said| said.id.0 == turn.0 && said.turn == Some(*turn))
                });
                let (actor, occurred_at) = (about.actor, about.at);
                into.drafts.push(Draft { role, visibility, actor, occurred_at, turn, ..draft });
                Ok(())
            }
        }
    }

    /// The event that makes a value's summary a checkpoint: it covers everything before the first turn.
    fn summary_draft(
        &self,
        (checkpoint, through): (Checkpoint, Option<TurnId>),
        before: u64,
        mode: RedactionMode,
    ) -> Result<Draft, Error> {
        let input_hash = Hash::of(checkpoint.handoff_md.as_bytes());
        let tokens_after = TokenizerFamily::default().count(&compaction::render(&checkpoint));
        let id = self.shared().journal.source.ulid()?;
        let through = through.unwrap_or(TurnId(id));
        let body = CompactionBody {
            checkpoint: Some(checkpoint),
            covers: Covers { from_seq: 1, to_seq: before, turns: 0 },
            summarized: Some(Summarized { through, through_seq: before, turns_before: 0 }),
            previous: None,
            summarizer: "transcript".into(),
            prompt_hash: None,
            input_hash,
            tokens_before: 0,
            tokens_after,
            reverts: None,
            restores: None,
        };
        let mut body = Raw::of(&body)?;
        ingest::redact(&mut body, mode)?;
        self.shared().draft(kind::COMPACTION, &body)
    }

    fn transcript_drafts(
        &self,
        value: transcript::ParsedTranscript,
        into: &mut Ingested,
    ) -> Result<(), Error> {
        let shared = self.shared();
        let told = value.settings.metadata.get("transcript_budget").and_then(Raw::read::<ToldBudget>);
        let settings = value.settings.normalise()?.redacted(RedactionMode::default())?;
        check_projection(&settings).map_err(|error| error.at("$.metadata.policy.projection"))?;
        // Stands for the conversation while its turns are read: it is not there yet, and its policy decides about secrets.
        let created = Conversation::new(
            self.id(),
            self.key().tenant.clone(),
            shared.now(),
            everturn_core::chain::Head::genesis(self.id()),
        );
        let created = Conversation { policy: settings.policy.clone(), ..created };
        into.drafts.extend(self.tenant.setting_drafts(kind::CREATED, &settings)?);
        for asset in &value.assets {
            self.asset_draft(asset, into)?;
        }
        let mut summary = value.checkpoint;
        for item in value.items {
            if matches!(item, transcript::Item::Turn { .. })
                && let Some(summary) = summary.take()
            {
                into.drafts.push(self.summary_draft(
                    summary,
                    into.drafts.len() as u64,
                    redaction_mode(&created),
                )?);
            }
            self.transcript_draft(&created, item, into)?;
        }
        if let Some(summary) = summary {
            into.drafts.push(self.summary_draft(
                summary,
                into.drafts.len() as u64,
                redaction_mode(&created),
            )?);
        }
        check_state_limits(&into.drafts)?;
        bind_assets(&mut into.drafts);
        if let Some(last) = told.and_then(|told| told.last_action) {
            // The places that it names are in the log that the value was made from.
            let last = budget::BudgetAction { trimmed: None, left: None, ..last };
            into.drafts.push(shared.draft(kind::BUDGET, &last)?);
        }
        into.drafts.push(shared.draft(kind::IMPORT_FINISHED, &serde_json::json!({"format": "transcript"}))?);
        if value.state != Lifecycle::Active {
            let body = StateBody { state: value.state, reason: Some(transcript::STATE_REASON.into()) };
            into.drafts.push(shared.draft(kind::STATE, &body)?);
        }
        into.drafts.iter().try_for_each(Draft::check)
    }
}

/// `metadata.transcript_budget` of a value.
#[derive(Deserialize)]
struct ToldBudget {
    last_action: Option<budget::BudgetAction>,
}

/// Whether messages begin with those of these turns, or end before. An erased turn may have been any.
fn begins_with<'a>(mut messages: impl Iterator<Item = &'a Raw>, turns: &[Turn]) -> bool {
    let value = |raw: &Raw| raw.read::<serde_json::Value>();
    turns.iter().all(|turn| {
        let (Some(given), Some(known)) = (messages.next(), &turn.message) else { return true };
        // Data stored as an asset is no longer in the message; another program may have written the same value in other bytes.
        known == given
            || known.get().contains("\"asset_id\"")
            || value(known).is_some_and(|known| value(given) == Some(known))
    })
}

/// Makes the first turn that refers to an asset the one that brought it; a private one only if its author may see it.
fn bind_assets(drafts: &mut [Draft]) {
    let mut added = HashMap::new();
    for (n, draft) in drafts.iter().enumerate().filter(|(_, draft)| draft.kind == kind::ASSET_ADDED) {
        if let Ok(asset) = serde_json::from_str::<Asset>(&draft.body.text) {
            added.insert(asset.id.clone(), (n, asset));
        }
    }
    for n in 0..drafts.len() {
        let Draft { kind, body, turn, actor, .. } = &drafts[n];
        if added.is_empty() || !kind::begins_turn(kind) || !body.text.contains("asset_") {
            continue;
        }
        let message = serde_json::from_str::<TurnBody>(&body.text).ok().and_then(|body| body.message);
        let Some(message) = message.and_then(|message| message.read()) else { continue };
        let (turn, sees) = (*turn, |asset: &Asset| {
            asset.visibility != Visibility::Private
                || actor.as_ref().is_some_and(|actor| asset.audience.contains(actor))
        });
        let brought = message::asset_ids(&message).into_iter().filter_map(|id| added.remove(&id));
        let brought: Vec<usize> = brought.filter(|(_, asset)| sees(asset)).map(|(n, _)| n).collect();
        brought.into_iter().for_each(|asset| drafts[asset].turn = turn);
    }
}

/// Refuses a value that sets more pins or scratchpads than a conversation may have: every prompt carries them.
fn check_state_limits(drafts: &[Draft]) -> Result<(), Error> {
    let (mut pins, mut scratchpads) = (HashSet::new(), HashSet::new());
    for draft in drafts {
        let name = || serde_json::from_str::<PinBody>(&draft.body.text).ok().map(|body| body.name);
        match &*draft.kind {
            kind::PIN => pins.extend(name()),
            kind::UNPIN => drop(name().map(|name| pins.remove(&name))),
            kind::SCRATCHPAD_SET => scratchpads.extend(name()),
            kind::SCRATCHPAD_CLEAR => drop(name().map(|name| scratchpads.remove(&name))),
            _ => {}
        }
    }
    for (limit, max, got) in
        [("PINS_MAX", PINS_MAX, pins.len()), ("SCRATCHPADS_MAX", SCRATCHPADS_MAX, scratchpads.len())]
    {
        if got > max {
            return Err(Error::limit(limit, max as u64, got as u64, "remove some from the value's events"));
        }
    }
    Ok(())
}
