//! Live sessions: entries are recorded into a store instead of a file.

use super::Format;
use crate::conversation::{AppendOptions, Change, ConversationHandle, idempotency};
use crate::ingest::{DraftKind, NewTurn};
use crate::tenant::Tenant;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Lifecycle;
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::Turn;
use everturn_core::write::Idempotency;
use everturn_formats::jsonl::{self, Item};
use everturn_formats::session::{
    Entry, Mapped, Mapper, NewSession, Recorded, SessionFields, SessionSummary, Tally, ToolResult,
};
use everturn_store::Committed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An entry that was logged.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Logged {
    /// Its `seq`.
    pub seq: u64,
    /// The turn that it became, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
}

impl Tenant {
    /// Starts a session: a conversation that begins with the session's header, which `header` makes from a new id and the
    /// time. A repeated call with the same idempotency key returns the existing session.
    pub fn start_session(
        &self,
        header: impl Fn(String, Timestamp) -> NewSession,
        idempotency_key: Option<String>,
    ) -> Result<ConversationHandle, Error> {
        self.check_import()?;
        let shared = self.shared();
        let request = Hash::of(header("new".into(), Timestamp(0)).line()?.as_bytes());
        let once = idempotency(self.caller(), idempotency_key, Some(request))?;
        let line = header(shared.journal.source.ulid()?.to_string(), shared.now()).line()?;
        let mut lines = jsonl::Reader::new(line.as_bytes());
        let Some(Item::Header(header)) = lines.next().transpose()? else {
            return Err(Error::internal("session.header", "the header of a session cannot be read"));
        };
        let imported = self.import_session(&header, lines, Vec::new(), once, &mut |_| {})?;
        Ok(self.conversation(imported.conversation.id))
    }
}

/// A conversation as a session: one entry after another, until the end entry.
pub struct ConversationSession<'a>(pub(crate) &'a ConversationHandle);

impl ConversationSession<'_> {
    /// Logs an entry, as a turn or as an event of its type, at the current time by default. A repeated call with the same
    /// idempotency key returns the existing entry and writes nothing.
    pub fn log(
        &self,
        kind: String,
        at: Option<Timestamp>,
        fields: SessionFields,
        idempotency_key: Option<String>,
    ) -> Result<Logged, Error> {
        let conversation = self.0.get()?;
        // As it came: what it becomes depends on the calls that wait.
        let request = Hash::of(Raw::of(&(&kind, at, &fields))?.get().as_bytes());
        let at = at.unwrap_or_else(|| self.0.shared().now());
        let line = Entry { kind, at, fields }.line()?;
        let waiting = self.0.state().read()?.pending_tools.into_iter();
        let mut mapper = Mapper::resume(
            conversation.metadata.get("session").map(|header| header.get()),
            waiting.filter_map(|tool| Some((tool.tool_call_id?, Some(tool.tool_name)))),
        );
        let recorded = Recorded::new(conversation.head.seq + 1, line.trim_end().to_string());
        let submitted = match mapper.step(&recorded)? {
            Mapped::Turn { message, actor, model, metadata, occurred_at, .. } => {
                let turn = NewTurn {
                    actor,
                    model,
                    metadata,
                    occurred_at,
                    adapter: Some(super::session::FORMAT.into()),
                    ..NewTurn::message(message.get())
                };
                let shared = self.0.shared();
                let conversation = shared.journal.conversation(self.0.key());
                let options = AppendOptions { idempotency_key, ..AppendOptions::default() };
                self.0.submit_turns(conversation, options, Ok(Some(request)), |conversation, ingested| {
                    shared.ingest(conversation, turn, DraftKind::Whole, ingested)
                })
            }
            Mapped::Event { kind, body, .. } => {
                let once = idempotency(self.0.tenant.caller(), idempotency_key, Some(request))?;
                let action = self.0.event_action(&kind, None, body, once)?;
                self.0.tenant.submit(self.0.key().clone(), action, Vec::new())
            }
        };
        let logged = |committed: Committed| {
            let last = committed.events.last().ok_or_else(crate::writer::closed)?;
            let turn = committed.events.iter().filter_map(Turn::begun).next_back();
            Ok(Logged {
                seq: turn.as_ref().map_or(last.seq, |turn| turn.seq),
                turn: turn.map(|turn| turn.id),
            })
        };
        Commit::new(submitted, logged).wait()
    }

    /// Ends a session: calls without a result fail, the last entry has the totals, and the conversation is closed. A repeated
    /// call with the same idempotency key returns the same totals.
    pub fn end(
        &self,
        extra: &SessionFields,
        idempotency_key: Option<String>,
    ) -> Result<SessionSummary, Error> {
        let request = Hash::of(Raw::of(extra)?.get().as_bytes());
        let once = idempotency(self.0.tenant.caller(), idempotency_key, Some(request))?;
        // Of several calls at once, each but the first repeats it.
        let _alone = self.0.shared().ending.of(self.0.key());
        let is_closed = self.0.get()?.state == Lifecycle::Closed;
        let ended = Error::conflict("session.ended", "the session was ended; start another one");
        let once = match once {
            Some(once) => Some(Idempotency { only_repeat: is_closed.then_some(ended), ..once }),
            None if is_closed => return Err(ended),
            None => None,
        };
        let waiting = if is_closed { Vec::new() } else { self.0.state().read()?.pending_tools };
        for tool in waiting {
            let Some(id) = tool.tool_call_id else { continue };
            let failed = ToolResult::missing(tool.tool_name, id)?;
            self.log("tool_result".into(), None, SessionFields::of(&failed)?, None)?;
        }
        let at = self.0.shared().now();
        let mut tally = Tally::default();
        self.0.export(Format::Session, &mut tally, &mut |_| {})?;
        let (summary, body) = tally.end(at, extra)?;
        let action = self.0.event_action("session_end", None, body, once);
        let end =
            self.0.write(action, |mut committed| committed.events.pop().ok_or_else(crate::writer::closed));
        let end = end.wait()?;
        if !is_closed {
            let change = Change { state: Some(Lifecycle::Closed), ..Change::default() };
            self.0.update(change).wait()?;
        }
        // Of a repeated request, the numbers of the first.
        Ok(end.read().unwrap_or(summary))
    }
}
