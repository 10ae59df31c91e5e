//! A session file of another program becomes a conversation.

use super::{Format, Imported};
use crate::conversation::ConversationHandle;
use crate::ingest::{DraftKind, Ingested, NewTurn};
use crate::tenant::Tenant;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Head;
use everturn_core::conversation::{Conversation, Lifecycle};
use everturn_core::event::{Draft, kind};
use everturn_core::id::ConversationId;
use everturn_core::limits::BATCH_EVENTS_MAX;
use everturn_core::redaction::RedactionMode;
use everturn_core::write::{Action, Idempotency};
use everturn_formats::jsonl::{Header, Item};
use everturn_formats::session::{self, Mapped, Mapper, Recorded, Tally};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lines taken over in one transaction: each gives one event, and one more for each payload in it.
const LINES_PER_BATCH: usize = BATCH_EVENTS_MAX / 4;

/// The body of `import.finished` behind each batch: what was taken over so far, so that the next import goes on there.
#[derive(Serialize, Deserialize)]
struct Progress {
    format: String,
    line: u64,
}

pub(super) const FORMAT: &str = "session";

pub(super) use session::conversation_id as id_of;

impl Tenant {
    /// Takes over the rest of a file whose header was read. The same session is the same conversation every time, so that
    /// importing it again adds the lines that are new.
    pub(super) fn import_session(
        &self,
        header: &Header,
        items: impl Iterator<Item = Result<Item, Error>>,
        mut problems: Vec<String>,
        once: Option<Idempotency>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported, Error> {
        let id = session::conversation_id(header);
        let mut import =
            Import { tenant: self, id, once, conversation: None, done: 0, batch: None, added: 0 };
        import.begin(header)?;
        let mut mapper = Mapper::new(header);
        let (mut events, mut turns) = (1, 0);
        import.line(header.line, Mapper::start(header), &mut problems)?;
        for item in items {
            let (line, step) = match item? {
                // Under a foreign header its chain leads nowhere; what it says is kept all the same.
                Item::Event { line, event } => {
                    let text = everturn_core::encoding::to_line(&event)?;
                    (line, mapper.step(&Recorded::new(line, text)))
                }
                Item::Foreign { line, text } => (line, mapper.step(&Recorded::new(line, text))),
                Item::End(end) => (end.line, Mapper::end(&end)),
                Item::Header(second) => (second.line, Mapper::start(&second)),
                Item::Asset(piece) => {
                    problems.push(format!("line {}: bytes of a conversation's asset; left out", piece.line));
                    continue;
                }
                Item::Corrupt(corrupt) => {
                    problems.push(format!("line {}: {}; left out", corrupt.line, corrupt.reason));
                    continue;
                }
                Item::TruncatedTail(tail) => {
                    let (at, bytes) = (tail.byte_offset, tail.bytes);
                    problems.push(format!("the last line is cut off at byte {at} ({bytes} bytes); left out"));
                    continue;
                }
            };
            events += 1;
            turns += u64::from(matches!(step, Ok(Mapped::Turn { .. })));
            import.line(line, step, &mut problems)?;
            progress(events);
        }
        import.flush()?;
        let conversation = match import.conversation.take() {
            Some(conversation) => conversation,
            None => self.shared().journal.index.conversation(&self.key(id))?,
        };
        Ok(Imported {
            format: FORMAT.into(),
            conversation,
            linked: Vec::new(),
            events,
            turns,
            late: 0,
            added: import.added,
            kept: BTreeMap::new(),
            problems,
        })
    }
}

impl ConversationHandle {
    /// The last line of the session that was taken over; 0 if none was.
    fn session_line(&self, conversation: &Conversation) -> Result<u64, Error> {
        const PAGE: u64 = 100;
        let mut end = conversation.head.seq;
        while end > 0 {
            let after = end.saturating_sub(PAGE);
            let page = self.shared().journal.events_between(&self.tenant.key(conversation.id), after, end)?;
            let markers = page.iter().rev().filter(|event| event.kind == kind::IMPORT_FINISHED);
            let progress = markers.filter_map(|event| event.read::<Progress>()).find(|p| p.format == FORMAT);
            if let Some(progress) = progress {
                return Ok(progress.line);
            }
            end = after;
        }
        Ok(0)
    }
}

/// Lines on their way into the store.
struct Import<'a> {
    tenant: &'a Tenant,
    id: ConversationId,
    /// Makes it begin once.
    once: Option<Idempotency>,
    conversation: Option<Conversation>,
    /// The last line that is in the store.
    done: u64,
    batch: Option<Batch>,
    added: u64,
}

struct Batch {
    ingested: Ingested,
    creates: bool,
    lines: usize,
    last: u64,
}

impl Import<'_> {
    fn begin(&mut self, header: &Header) -> Result<(), Error> {
        let shared = self.tenant.shared();
        match shared.journal.index.conversation(&self.tenant.key(self.id)) {
            Ok(conversation) => {
                let chat = self.tenant.conversation(conversation.id);
                self.done = chat.session_line(&conversation)?;
                // It was recorded here, and this is the file of it.
                if self.done == header.line {
                    let mut tally = Tally::default();
                    chat.export(Format::Session, &mut tally, &mut |_| {})?;
                    let has_end = conversation.state == Lifecycle::Closed;
                    self.done += tally.entries() + u64::from(has_end);
                }
                self.conversation = Some(conversation);
            }
            Err(Error::NotFound(_)) => {
                let settings = Mapper::settings(header)?.normalise()?.redacted(RedactionMode::default())?;
                let drafts = self.tenant.setting_drafts(kind::CREATED, &settings)?;
                let ingested = Ingested { drafts, uploads: Vec::new() };
                self.batch = Some(Batch { ingested, creates: true, lines: 0, last: 0 });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn line(
        &mut self,
        line: u64,
        step: Result<Mapped, Error>,
        problems: &mut Vec<String>,
    ) -> Result<(), Error> {
        if line <= self.done {
            return Ok(());
        }
        let mut batch = self.batch.take().unwrap_or_else(|| Batch {
            ingested: Ingested { drafts: Vec::new(), uploads: Vec::new() },
            creates: false,
            lines: 0,
            last: 0,
        });
        let before = batch.ingested.drafts.len();
        match step.and_then(|step| self.ingest(step, &mut batch.ingested)) {
            Ok(()) => self.added += 1,
            // One line that does not fit does not keep the others out.
            Err(error @ (Error::Invalid(_) | Error::TooLarge(_))) => {
                batch.ingested.drafts.truncate(before);
                problems.push(format!("line {line}: {error}; left out"));
            }
            Err(error) => {
                self.tenant.shared().journal.uploaded(&batch.ingested.uploads);
                return Err(error);
            }
        }
        (batch.last, batch.lines) = (line, batch.lines + 1);
        let full = batch.lines == LINES_PER_BATCH || batch.ingested.drafts.len() > BATCH_EVENTS_MAX / 2;
        self.batch = Some(batch);
        if full { self.flush() } else { Ok(()) }
    }

    fn ingest(&self, step: Mapped, into: &mut Ingested) -> Result<(), Error> {
        let shared = self.tenant.shared();
        match step {
            Mapped::Turn { message, actor, model, metadata, occurred_at, .. } => {
                let turn = NewTurn {
                    actor,
                    model,
                    metadata,
                    occurred_at,
                    adapter: Some(FORMAT.into()),
                    ..NewTurn::message(message.get())
                };
                let fresh = || {
                    let (tenant, now) = (self.tenant.name().clone(), shared.now());
                    Conversation::new(self.id, tenant, now, Head::genesis(self.id))
                };
                let conversation = self.conversation.clone().unwrap_or_else(fresh);
                shared.ingest(&conversation, turn, DraftKind::Whole, into)
            }
            Mapped::Event { kind, body, occurred_at } => {
                let draft = Draft { occurred_at, ..shared.draft(kind, &body)? };
                draft.check()?;
                into.drafts.push(draft);
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let Some(Batch { mut ingested, creates, last, .. }) = self.batch.take() else { return Ok(()) };
        let shared = self.tenant.shared();
        let marker = shared.draft(kind::IMPORT_FINISHED, &Progress { format: FORMAT.into(), line: last });
        match marker {
            Ok(marker) => ingested.drafts.push(marker),
            Err(error) => {
                shared.journal.uploaded(&ingested.uploads);
                return Err(error);
            }
        }
        let action = match creates {
            true => Action::Create { drafts: ingested.drafts, parent: None, idempotency: self.once.take() },
            false => Action::append(ingested.drafts),
        };
        let submitted = self.tenant.submit(self.tenant.key(self.id), action, ingested.uploads);
        let committed = Commit::new(submitted, Ok).wait()?;
        self.conversation = Some(Arc::unwrap_or_clone(committed.conversation));
        self.done = last;
        Ok(())
    }
}
