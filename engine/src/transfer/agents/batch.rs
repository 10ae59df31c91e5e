//! Entries that wait to be written together.

use crate::everturn::Shared;
use crate::ingest::{DraftKind, Ingested, NewTurn, asset_id};
use everturn_core::Error;
use everturn_core::asset::Payload;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Draft, kind};
use everturn_core::id::{TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::{BATCH_EVENTS_MAX, BODY_BYTES_MAX, JSON_DEPTH_MAX};
use everturn_core::time::Timestamp;
use serde_json::json;
use std::collections::HashMap;

/// Size at which a batch is written.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Entries that are written in one transaction.
pub struct Batch {
    pub ingested: Ingested,
    /// Names and versions of the entries.
    pub names: Vec<(u64, u64)>,
    /// Turns of the batch, and whether each is current.
    pub turns: HashMap<TurnId, bool>,
    pub bytes: usize,
    /// Title of the conversation.
    pub title: Option<String>,
    /// System prompt of the conversation.
    pub prompt: Option<String>,
}

impl Default for Batch {
    fn default() -> Batch {
        let ingested = Ingested { drafts: Vec::new(), uploads: Vec::new() };
        Batch { ingested, names: Vec::new(), turns: HashMap::new(), bytes: 0, title: None, prompt: None }
    }
}

impl Batch {
    pub fn is_full(&self) -> bool {
        self.ingested.drafts.len() >= BATCH_EVENTS_MAX / 2 || self.bytes > BYTES_MAX
    }

    pub fn push(&mut self, draft: Draft) {
        self.bytes += draft.body.text.len();
        self.ingested.drafts.push(draft);
    }

    /// A turn; one that does not fit into a body is kept as a line.
    pub fn turn(
        &mut self,
        shared: &Shared,
        conversation: &Conversation,
        id: TurnId,
        turn: NewTurn,
        line: u64,
    ) -> Result<(), Error> {
        let before = self.ingested.drafts.len();
        let occurred_at = turn.occurred_at;
        let copy = may_not_fit(&turn).then(|| (turn.message.clone(), turn.metadata.clone()));
        match shared.ingest(conversation, turn, DraftKind::Found(id), &mut self.ingested) {
            Ok(()) => {
                self.bytes += self.ingested.drafts[before..].iter().map(|d| d.body.text.len()).sum::<usize>();
                self.turns.insert(id, true);
                Ok(())
            }
            Err(error @ (Error::Invalid(_) | Error::TooLarge(_))) => {
                self.ingested.drafts.truncate(before);
                let Some((message, metadata)) = copy else { return Err(error) };
                let text = format!("{{\"message\":{message},\"metadata\":{}}}", Raw::of(&metadata)?.get());
                self.aside(shared, &conversation.tenant, line, text, error.text(), occurred_at)
            }
            Err(error) => Err(error),
        }
    }

    /// A line that is no turn, as it is; in an asset, if it does not fit into a body.
    pub fn line(
        &mut self,
        shared: &Shared,
        tenant: &TenantName,
        line: u64,
        body: Raw,
        occurred_at: Option<Timestamp>,
    ) -> Result<(), Error> {
        let draft = Draft { occurred_at, ..shared.draft(kind::IMPORT_LINE, &body)? };
        match draft.check() {
            Ok(()) => {
                self.push(draft);
                Ok(())
            }
            Err(error @ (Error::Invalid(_) | Error::TooLarge(_))) => {
                self.aside(shared, tenant, line, body.get().to_string(), error.text(), occurred_at)
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps a text beside the log.
    fn aside(
        &mut self,
        shared: &Shared,
        tenant: &TenantName,
        line: u64,
        text: String,
        reason: &str,
        occurred_at: Option<Timestamp>,
    ) -> Result<(), Error> {
        let id = asset_id(shared.journal.source.ulid()?);
        let payload = Payload {
            bytes: text.into_bytes(),
            mime_type: "application/json".into(),
            name: Some(format!("line-{line}.json")),
        };
        let draft = shared.asset_draft(tenant, id.clone(), payload, None, &mut self.ingested.uploads)?;
        self.push(draft);
        let body = json!({"line": line, "asset_id": id, "reason": reason});
        self.push(Draft { occurred_at, ..shared.draft(kind::IMPORT_LINE, &body)? });
        Ok(())
    }
}

/// Whether a turn may be larger than a body, or deeper: it is looked at before a copy is made, since nearly none is.
fn may_not_fit(turn: &NewTurn) -> bool {
    let texts = || std::iter::once(turn.message.as_str()).chain(turn.metadata.values().map(Raw::get));
    let opens = |text: &str| text.bytes().filter(|byte| matches!(byte, b'{' | b'[')).count();
    texts().map(str::len).sum::<usize>() > BODY_BYTES_MAX / 2
        || texts().any(|text| opens(text) + 4 > JSON_DEPTH_MAX)
}
