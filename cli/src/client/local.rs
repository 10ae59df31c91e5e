//! A local store, opened by this process.

use super::Updates;
use super::owner::OwnerSocket;
use everturn_api::recall::Recall;
use everturn_api::{Operation, Requester};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::id::ConversationId;
use everturn_engine::model::wait;
use everturn_engine::{Behind, Everturn, RecallOptions, Recalled, Subscription, Tenant, Update};
use everturn_server::socket::RequestedModel;
use everturn_views::recall::RecallMode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A tenant of a local store.
pub struct Local {
    /// The socket through which others use the store. Closed first.
    _owner_socket: Option<OwnerSocket>,
    pub store: Everturn,
    pub tenant: Tenant,
}

impl Drop for Local {
    fn drop(&mut self) {
        // Others can use the store meanwhile, but not while it closes.
        self.store.finish_compactions();
    }
}

/// Maximum time without progress of an embedding model.
const EMBED_PATIENCE: Duration = Duration::from_secs(60);
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Maximum time spent on embedding before a query is answered.
const EMBED_TIME: Duration = Duration::from_secs(2);

impl Local {
    pub fn new(
        store: Everturn,
        tenant: &str,
        owner_socket: Option<OwnerSocket>,
        model: Option<RequestedModel>,
    ) -> Result<Local, Error> {
        let tenant = store.tenant(tenant)?;
        let tenant = match model {
            Some(model) => model.bring_to(&tenant)?,
            None => tenant,
        };
        Ok(Local { tenant, store, _owner_socket: owner_socket })
    }

    /// Runs an operation on this thread.
    pub fn call<O: Operation>(
        &self,
        operation: O,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<O::Answer, Error> {
        let requester =
            Requester { progress: Some(Arc::new(progress)), ..Requester::here(self.tenant.clone()) };
        wait(operation.run(&requester))
    }

    /// Recalls, after indexing everything.
    pub fn recall(&self, recall: Recall) -> Result<Recalled, Error> {
        let conversation = recall.conversation.as_ref().map(|name| name.find(&self.tenant)).transpose()?;
        let options =
            RecallOptions { conversation: conversation.map(|chat| chat.id()), ..recall.options.clone() };
        // If the index cannot be written, what is in it is searched nevertheless.
        let made = (|| -> Result<(), Error> {
            let behind = self.store.index_now()?;
            if options.mode != RecallMode::Lexical && behind.vectors > 0 {
                self.tenant.embed_for(&recall.query, &options, EMBED_TIME)?;
            }
            Ok(())
        })();
        let mut recalled = self.call(recall, |_| {})?;
        match made {
            Ok(()) => {}
            Err(error) if error.is(code::RECALL_READ_ONLY) && !recalled.data.is_empty() => {
                recalled.note = Some(error.text().to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(recalled)
    }

    pub fn index(&self, progress: &mut dyn FnMut(Behind)) -> Result<(), Error> {
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
                let text = "the embedding model returns no vectors; use --embedder none, or choose another";
                return Err(Error::busy("embedder.stuck", text));
            }
            behind = left;
        }
        Ok(())
    }

    pub fn follow(&self, id: ConversationId, from_seq: u64) -> Result<Box<dyn Updates>, Error> {
        let updates = self.tenant.conversation(id).subscribe(from_seq.saturating_sub(1))?;
        Ok(Box::new(LocalUpdates { tenant: self.tenant.clone(), id, updates }))
    }
}

struct LocalUpdates {
    tenant: Tenant,
    id: ConversationId,
    updates: Subscription,
}

impl Updates for LocalUpdates {
    fn next(&mut self) -> Result<Option<Update>, Error> {
        loop {
            match self.updates.recv()? {
                // The reader was slower than the conversation; nothing is lost, it resumes from there.
                Some(Update::Lagged { .. }) => {
                    self.updates = self.tenant.conversation(self.id).subscribe(self.updates.position())?;
                }
                update => return Ok(update),
            }
        }
    }
}
