//! A file of events becomes the log that it was written from.

use crate::tenant::Tenant;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Settings};
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, TenantName};
use everturn_core::write::{Action, Write};
use everturn_formats::jsonl::{AssetPiece, AssetPieces};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Events restored in one transaction.
const RESTORE_BATCH: usize = 500;

/// Events on their way into the store, one batch at a time.
pub(super) struct Restore<'a> {
    tenant: &'a Tenant,
    role: KeyRole,
    /// `seq` of the last event of each conversation before the import; `None` for those that it begins.
    heads: HashMap<ConversationId, Option<u64>>,
    /// Conversations that it began.
    begun: HashSet<ConversationId>,
    /// Events that wait until the whole file is allowed: from the first on that goes on in an existing conversation.
    held: Vec<Event>,
    held_bytes: u64,
    batch: Vec<Event>,
    assets: AssetPieces,
    /// Bytes that are there before their events are: not to be collected meanwhile.
    uploads: Vec<(TenantName, Hash)>,
    pub conversation: Option<Conversation>,
    pub events: u64,
    pub turns: u64,
    pub added: u64,
}

impl<'a> Restore<'a> {
    pub fn new(tenant: &'a Tenant, role: KeyRole) -> Restore<'a> {
        Restore {
            tenant,
            role,
            heads: HashMap::new(),
            begun: HashSet::new(),
            held: Vec::new(),
            held_bytes: 0,
            batch: Vec::new(),
            assets: AssetPieces::default(),
            uploads: Vec::new(),
            conversation: None,
            events: 0,
            turns: 0,
            added: 0,
        }
    }

    pub fn event(&mut self, event: Event) -> Result<(), Error> {
        self.events += 1;
        self.turns += u64::from(kind::begins_turn(&event.kind));
        let goes_on = self.head(event.conversation)?.is_some_and(|head| event.seq > head);
        if goes_on && event.kind == kind::ERASED && event.body.is_none() {
            let text = format!(
                "seq {}: the file does not name the erased content; import a file that an admin exported",
                event.seq
            );
            return Err(Error::invalid("import.erasure_hidden", text));
        }
        if self.role < KeyRole::Admin {
            if goes_on {
                self.check(&event).map_err(|e| e.at(format!("seq {} ({})", event.seq, event.kind)))?;
            }
            if goes_on || !self.held.is_empty() {
                return self.hold(event);
            }
        }
        self.put(event)
    }

    /// The last event of a conversation before the import. A deleted one is brought back only by a caller that may delete.
    fn head(&mut self, id: ConversationId) -> Result<Option<u64>, Error> {
        if let Some(head) = self.heads.get(&id) {
            return Ok(*head);
        }
        self.tenant.check_deleted(id, self.role)?;
        let head = match self.tenant.shared().journal.index.conversation(&self.tenant.key(id)) {
            Ok(conversation) => Some(conversation.head.seq),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        self.heads.insert(id, head);
        Ok(head)
    }

    /// Refuses a new event of an existing conversation that the caller could not have written directly.
    fn check(&self, event: &Event) -> Result<(), Error> {
        let forbidden = |text: &str| {
            Err(Error::forbidden("access.role", format!("{text}; import the file with the key of an admin")))
        };
        if kind::is_settings(&event.kind)
            && let Some(settings) = event.read::<Settings>()
        {
            settings.check_role(self.role)?;
        }
        if event.kind == kind::ERASED {
            return forbidden("only an admin erases");
        }
        if event.key.is_some() && event.key.as_deref() != self.tenant.caller().key() {
            return forbidden("it says that another key wrote it");
        }
        // A turn that is not for the caller is absent for it; those that come with the file are not there yet.
        let changed = event.turn.filter(|_| !kind::begins_turn(&event.kind));
        let changed = changed.map(|turn| self.tenant.conversation(event.conversation).turn(turn));
        match changed {
            Some(Ok(turn)) if turn.hidden && turn.message.is_none() => {
                forbidden("it is about a turn that is not for you")
            }
            Some(Err(error)) if !matches!(error, Error::NotFound(_)) => Err(error),
            _ => Ok(()),
        }
    }

    fn hold(&mut self, event: Event) -> Result<(), Error> {
        let max = self.tenant.shared().options.whole_bytes_max;
        self.held_bytes += (size_of::<Event>() + event.text().map_or(0, str::len)) as u64;
        if self.held_bytes > max {
            let advice = "a file that continues existing conversations is checked as a whole before anything is written: import it with the key of an admin";
            return Err(Error::limit("WHOLE_BYTES_MAX", max, self.held_bytes, advice));
        }
        self.held.push(event);
        Ok(())
    }

    fn put(&mut self, event: Event) -> Result<(), Error> {
        let event = if event.kind == kind::ERASED { self.erased(event)? } else { Some(event) };
        event.map_or(Ok(()), |event| self.push(event))
    }

    /// Erases what the record of an erasure names and what is still here. Returns the event if that is nothing.
    fn erased(&mut self, event: Event) -> Result<Option<Event>, Error> {
        self.flush()?;
        let chat = self.tenant.conversation(event.conversation);
        match chat.get() {
            Ok(conversation) if event.seq > conversation.head.seq => {}
            Ok(_) | Err(Error::NotFound(_)) => return Ok(Some(event)),
            Err(error) => return Err(error),
        }
        let Some((erasure, is_own)) = chat.named_by(&event)? else { return Ok(Some(event)) };
        if is_own && self.head(event.conversation)?.is_none() {
            // It came from this file.
            chat.delete("its file has words that it says are erased").wait()?;
            let text = format!(
                "seq {} records that something was erased, and the file has its words; export it again",
                event.seq
            );
            return Err(Error::invalid("import.contradictory", text));
        }
        if self.role < KeyRole::Admin {
            let text = format!(
                "seq {} ({}): only an admin erases; import the file with the key of an admin",
                event.seq, event.kind
            );
            return Err(Error::forbidden("access.role", text));
        }
        self.conversation = Some(chat.erase_as_recorded(event, erasure)?);
        self.added += 1;
        Ok(None)
    }

    fn push(&mut self, event: Event) -> Result<(), Error> {
        // A fork's file has its ancestors' events in front; each conversation is restored as its own.
        if self.batch.len() == RESTORE_BATCH
            || self.batch.last().is_some_and(|last| last.conversation != event.conversation)
        {
            self.flush()?;
        }
        let (id, forked) = (event.conversation, event.kind == kind::FORKED);
        let begins = self.heads.get(&id) == Some(&None) && self.begun.insert(id);
        self.batch.push(event);
        // A fork begins on its own, so that the events behind it can look up what it inherits: a store knows no parents of
        // a conversation that is not there yet.
        if forked || begins {
            let before = self.added;
            self.flush()?;
            // The rest was allowed because the conversation is the caller's own.
            if begins && self.added == before {
                let text = format!("{id} was created while the file was imported; import it again");
                return Err(Error::conflict("import.created", text));
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let Some(id) = self.batch.first().map(|event| event.conversation) else { return Ok(()) };
        let action = Action::Restore { events: std::mem::take(&mut self.batch) };
        let submitted = self.tenant.shared().submit(Write { key: self.tenant.key(id), action }, Vec::new());
        let committed = Commit::new(submitted, Ok).wait()?;
        self.added += committed.events.len() as u64;
        self.conversation = Some(Arc::unwrap_or_clone(committed.conversation));
        Ok(())
    }

    pub fn finish(&mut self) -> Result<(), Error> {
        for event in std::mem::take(&mut self.held) {
            self.put(event)?;
        }
        self.flush()
    }

    pub fn asset(&mut self, piece: AssetPiece) -> Result<(), Error> {
        if let Some((sha256, bytes)) = self.assets.push(piece)? {
            self.tenant.shared().quotas.check_upload(self.tenant.name(), bytes.len())?;
            self.tenant.shared().journal.upload(self.tenant.name(), sha256, bytes)?;
            self.uploads.push((self.tenant.name().clone(), sha256));
        }
        Ok(())
    }
}

/// From here on the events that were restored keep the bytes.
impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.tenant.shared().journal.uploaded(&self.uploads);
    }
}
