//! A session that is recorded into a store as it happens, instead of into a file.

use super::Format;
use crate::conversation::{Change, ConversationHandle};
use crate::ingest::NewTurn;
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::conversation::Lifecycle;
use everturn_core::id::TurnId;
use everturn_core::time::Timestamp;
use everturn_formats::session::{
    Entry, Fields, Mapped, Mapper, New, Recorded, SessionSummary, Tally, ToolResult,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An entry that was logged.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Logged {
    /// Its `seq`.
    pub seq: u64,
    /// The turn that it became, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
}

impl Tenant {
    /// Starts a session: a conversation that begins with the session's header. `header` gets a new id and the time.
    #[doc(hidden)]
    pub fn start_session(
        &self,
        header: impl FnOnce(String, Timestamp) -> New,
    ) -> Result<ConversationHandle, Error> {
        let shared = self.shared();
        let new = header(shared.journal.source.ulid()?.to_string(), shared.now());
        let imported = self.import(new.line()?.as_bytes(), &mut |_| {})?;
        Ok(self.conversation(imported.conversation.id))
    }
}

impl ConversationHandle {
    /// Logs an entry, as a turn or as an event of its type; by default it happens now.
    #[doc(hidden)]
    pub fn log_session(&self, kind: String, at: Option<Timestamp>, fields: Fields) -> Result<Logged, Error> {
        let conversation = self.get()?;
        let at = at.unwrap_or_else(|| self.shared().now());
        let line = Entry { kind, at, fields }.line()?;
        let waiting = self.state().read()?.pending_tools.into_iter();
        let mut mapper = Mapper::resume(
            conversation.metadata.get("session").map(|header| header.get()),
            waiting.filter_map(|tool| Some((tool.tool_call_id?, Some(tool.tool_name)))),
        );
        let recorded = Recorded::new(conversation.head.seq + 1, line.trim_end().to_string());
        match mapper.step(&recorded)? {
            Mapped::Turn { message, actor, model, metadata, occurred_at, .. } => {
                let turn = NewTurn {
                    actor,
                    model,
                    metadata,
                    occurred_at,
                    adapter: Some(super::session::FORMAT.into()),
                    ..NewTurn::message(message.get())
                };
                let appended = self.append(turn).wait()?;
                let turn = appended.turns.last();
                Ok(Logged {
                    seq: turn.map_or(appended.head.seq, |turn| turn.seq),
                    turn: turn.map(|turn| turn.id),
                })
            }
            Mapped::Event { kind, body, .. } => {
                Ok(Logged { seq: self.append_event(&kind, None, body).wait()?.seq, turn: None })
            }
        }
    }

    /// Ends a session: calls without a result fail, its last entry has the numbers of the session, and the conversation is
    /// closed.
    #[doc(hidden)]
    pub fn end_session(&self, extra: &Fields) -> Result<SessionSummary, Error> {
        if self.get()?.state == Lifecycle::Closed {
            return Err(Error::conflict("session.ended", "the session was ended; start another one"));
        }
        for tool in self.state().read()?.pending_tools {
            let Some(id) = tool.tool_call_id else { continue };
            let failed = ToolResult::missing(tool.tool_name, id)?;
            self.log_session("tool_result".into(), None, Fields::of(&failed)?)?;
        }
        let at = self.shared().now();
        let mut tally = Tally::default();
        self.export(Format::Session, &mut tally, &mut |_| {})?;
        let (summary, body) = tally.end(at, extra)?;
        self.append_event("session_end", None, body).wait()?;
        let change = Change { state: Some(Lifecycle::Closed), ..Change::default() };
        self.update(change).wait()?;
        Ok(summary)
    }
}
