//! A store of this machine, opened by this process.

use super::{Ask, Cursor, NewKey, Store, Updates};
use crate::output::Failure;
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::asset::Asset;
use everturn_core::chain::{Hash, Report};
use everturn_core::conversation::{Conversation, Settings, Tombstone};
use everturn_core::event::Event;
use everturn_core::fact::Fact;
use everturn_core::id::{ConversationId, FactId, KeyId, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::Turn;
use everturn_engine::{
    AppendOptions, Behind, CompactOptions, Compacted, Context, Correction, Doctor, Entry, ErasedActor,
    Everturn, ExtractOptions, Extraction, FactQuery, Format, HistoryQuery, Imported, ListQuery,
    NewConversation, NewFact, NewStream, NewTurn, Page, RecallOptions, Recalled, Scope, Subscription, Update,
    script,
};
use everturn_views::recall::Mode;
use everturn_views::state::State;
use serde_json::Value;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// A tenant's part of a store of this machine.
pub struct Local {
    store: Everturn,
    scope: Scope,
}

/// How long an embedder may bring nothing.
const EMBED_PATIENCE: Duration = Duration::from_secs(60);
/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// How long turns are embedded before a question is answered.
const EMBED_TIME: Duration = Duration::from_secs(2);

impl Local {
    /// A tenant's part of an open store.
    pub fn new(store: Everturn, tenant: &str) -> Result<Local, Error> {
        Ok(Local { scope: store.tenant(tenant)?, store })
    }
}

impl Store for Local {
    fn resolve(&self, name: &str) -> Result<ConversationId, Error> {
        self.scope.resolve(name)
    }

    fn get(&self, id: ConversationId) -> Result<Conversation, Error> {
        self.scope.get(id)
    }

    fn create(&self, settings: Settings) -> Result<Conversation, Error> {
        let new = NewConversation { settings, ..NewConversation::default() };
        self.scope.get(self.scope.create(new).wait()?.id)
    }

    fn list(&self, query: ListQuery) -> Result<Page<Conversation, Cursor>, Error> {
        self.scope.list(query)
    }

    fn fork(&self, id: ConversationId, at: Option<u64>) -> Result<Conversation, Error> {
        self.scope.get(self.scope.fork_once(id, at, None).wait()?.id)
    }

    fn delete(&self, id: ConversationId, reason: &str) -> Result<Tombstone, Error> {
        self.scope.delete(id, reason).wait()
    }

    fn append(&self, id: ConversationId, turn: NewTurn, options: AppendOptions) -> Result<Vec<Turn>, Error> {
        Ok(self.scope.append(id, vec![turn], options).wait()?.turns)
    }

    fn open_turn(&self, id: ConversationId, new: NewStream) -> Result<Turn, Error> {
        self.scope.append_open(id, new).wait()
    }

    fn append_chunk(&self, id: ConversationId, turn: TurnId, offset: u64, text: &str) -> Result<u64, Error> {
        self.scope.append_chunk(id, turn, Some(offset), text)
    }

    fn commit_turn(&self, id: ConversationId, turn: TurnId, last: NewTurn) -> Result<Turn, Error> {
        self.scope.append_commit(id, turn, last).wait()
    }

    fn abort_turn(&self, id: ConversationId, turn: TurnId, reason: &str) -> Result<Turn, Error> {
        self.scope.append_abort(id, turn, reason, None).wait()
    }

    fn turn(&self, turn: TurnId) -> Result<Turn, Error> {
        self.scope.turn(turn)
    }

    fn erase(&self, turn: TurnId, by: Option<String>, reason: &str) -> Result<Turn, Error> {
        let conversation = self.scope.conversation_of(turn)?;
        self.scope.erase(conversation, turn, by, reason).wait()?;
        self.scope.turn(turn)
    }

    fn erase_events(
        &self,
        id: ConversationId,
        seqs: &[u64],
        by: Option<String>,
        reason: &str,
    ) -> Result<Conversation, Error> {
        self.scope.erase_events(id, seqs, by, reason)?;
        self.scope.get(id)
    }

    fn erase_actor(
        &self,
        actor: &str,
        by: Option<String>,
        reason: &str,
        progress: &mut dyn FnMut(&ErasedActor),
    ) -> Result<ErasedActor, Error> {
        self.scope.erase_actor(actor, by, reason, progress)
    }

    fn history(&self, id: ConversationId, query: HistoryQuery) -> Result<Page<Entry>, Error> {
        self.scope.history(id, query)
    }

    fn turn_in(&self, id: ConversationId, turn: TurnId) -> Result<Turn, Error> {
        self.scope.turn_in(id, turn)
    }

    fn assets(&self, id: ConversationId) -> Result<Vec<Asset>, Error> {
        self.scope.assets(id)
    }

    fn follow(&self, id: ConversationId, from_seq: u64) -> Result<Box<dyn Updates>, Error> {
        let updates = self.scope.subscribe(id, from_seq)?;
        Ok(Box::new(Following { scope: self.scope.clone(), id, updates }))
    }

    fn state(&self, id: ConversationId, at: Option<u64>) -> Result<State, Error> {
        match at {
            Some(seq) => self.scope.state_at(id, seq),
            None => self.scope.state(id),
        }
    }

    fn pin(&self, id: ConversationId, name: &str, value: Raw) -> Result<Event, Error> {
        self.scope.pin(id, name, value).wait()
    }

    fn unpin(&self, id: ConversationId, name: &str) -> Result<Event, Error> {
        self.scope.unpin(id, name).wait()
    }

    fn compact(&self, id: ConversationId, options: CompactOptions) -> Result<Compacted, Error> {
        self.scope.compact(id, options)
    }

    fn revert_compaction(&self, id: ConversationId) -> Result<Conversation, Error> {
        self.scope.revert_compaction(id)
    }

    fn facts(&self, id: ConversationId, query: FactQuery) -> Result<Page<Fact>, Error> {
        self.scope.facts(id, query)
    }

    fn add_fact(&self, id: ConversationId, new: NewFact) -> Result<Fact, Error> {
        self.scope.add_fact(id, new)
    }

    fn correct_fact(&self, id: ConversationId, fact: FactId, correction: Correction) -> Result<Fact, Error> {
        self.scope.correct_fact(id, fact, correction)
    }

    fn retract_fact(
        &self,
        id: ConversationId,
        fact: FactId,
        by: Option<String>,
        reason: Option<String>,
    ) -> Result<Fact, Error> {
        self.scope.retract_fact(id, fact, by, reason)
    }

    fn extract_facts(&self, id: ConversationId, options: ExtractOptions) -> Result<Extraction, Error> {
        self.scope.extract_facts(id, options)
    }

    fn recall(&self, query: &str, options: &RecallOptions) -> Result<Recalled, Error> {
        // Where the index cannot be written, what is in it is found nevertheless.
        let made = (|| -> Result<(), Error> {
            let behind = self.store.index_now()?;
            if options.mode != Mode::Lexical && behind.vectors > 0 {
                self.scope.embed_for(query, options, EMBED_TIME)?;
            }
            Ok(())
        })();
        let mut recalled = self.scope.recall(query, options)?;
        match made {
            Ok(()) => {}
            Err(error) if error.code() == "recall.read_only" && !recalled.data.is_empty() => {
                recalled.note = Some(error.text().to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(recalled)
    }

    fn index(&self, progress: &mut dyn FnMut(Behind)) -> Result<(), Error> {
        let mut behind = std::thread::scope(|threads| {
            let indexing = threads.spawn(|| self.store.index_now());
            while !indexing.is_finished() {
                progress(self.store.behind()?);
                std::thread::park_timeout(PROGRESS_EVERY);
            }
            indexing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let mut moved = Instant::now();
        while behind.vectors > 0 {
            progress(behind);
            let left = self.store.embed_now(EMBED_TIME)?;
            if left.vectors < behind.vectors {
                moved = Instant::now();
            } else if moved.elapsed() > EMBED_PATIENCE {
                let text = "the embedder makes no vectors; ask with --embedder none, or choose another";
                return Err(Error::busy("embedder.stuck", text));
            }
            behind = left;
        }
        Ok(())
    }

    fn context(&self, id: ConversationId, ask: &Ask) -> Result<(Context, Option<u64>), Error> {
        let context = self.scope.build_context(id, &ask.options)?;
        let recorded = ask.record.then(|| self.scope.record_receipt(id, &context)).transpose()?;
        Ok((context, recorded.map(|event| event.seq)))
    }

    fn replay_context(&self, id: ConversationId, seq: u64) -> Result<Context, Error> {
        self.scope.replay_context(id, seq)
    }

    fn project(&self, id: ConversationId, options: &Value) -> Result<Raw, Error> {
        Ok(self.scope.project(id, &script::options(options)?)?.result)
    }

    fn verify(
        &self,
        id: ConversationId,
        head: Option<Hash>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Report, Error> {
        self.scope.verify_with(id, head, progress)
    }

    fn export(
        &self,
        id: ConversationId,
        format: Format,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        Ok(self.scope.export(id, format, out, progress)?)
    }

    fn import(&self, name: Option<&str>, file: &mut (dyn BufRead + Send)) -> Result<Imported, Error> {
        self.scope.import_as(name, file, &mut |_| {})
    }

    fn attach(
        &self,
        id: ConversationId,
        name: &str,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        self.scope.add_asset(id, Some(name.to_string()), mime_type, bytes)
    }

    fn doctor(&self, progress: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error> {
        self.store.doctor(progress)
    }

    fn create_key(&self, new: NewKey) -> Result<(AccessKey, String), Error> {
        let tenant = self.scope.tenant().to_string();
        self.store.keys().create(everturn_engine::NewKey {
            tenant,
            role: new.role,
            label: new.label,
            expires: new.expires,
        })
    }

    fn keys(&self) -> Result<Vec<AccessKey>, Error> {
        self.store.keys().list(self.scope.tenant().as_str())
    }

    fn revoke_key(&self, id: KeyId) -> Result<AccessKey, Error> {
        self.store.keys().revoke(self.scope.tenant().as_str(), id)
    }
}

struct Following {
    scope: Scope,
    id: ConversationId,
    updates: Subscription,
}

impl Updates for Following {
    fn next(&mut self) -> Result<Option<Update>, Error> {
        loop {
            match self.updates.recv()? {
                // The reader was slower than the conversation; nothing is lost, it is read again from there.
                Some(Update::Lagged { .. }) => {
                    self.updates = self.scope.subscribe_after(self.id, self.updates.position())?;
                }
                update => return Ok(update),
            }
        }
    }
}
