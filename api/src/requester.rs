//! The caller of an operation.

use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::conversation::Conversation;
use everturn_core::id::ConversationId;
use everturn_engine::{Commit, ConversationHandle, Tenant};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// The caller of an operation, and how to run it.
#[derive(Clone)]
pub struct Requester {
    /// Tenant of the caller.
    pub tenant: Tenant,
    /// Role of the caller.
    pub role: KeyRole,
    /// Whether the server requires no key as long as there is none: the first one must then be an admin's.
    pub is_keyless: bool,
    /// Runner of blocking work.
    pub threads: Threads,
    /// Called with the progress of a long operation: the number of events, turns or other items done.
    pub progress: Option<Arc<dyn Fn(u64) + Send + Sync>>,
}

/// Runner of blocking work.
#[derive(Clone, Copy)]
pub enum Threads {
    /// On the thread that runs the operation.
    Here,
    /// Runs blocking work through this function.
    Elsewhere(fn(Box<dyn FnOnce() + Send>) -> WorkFuture),
}

/// Blocking work on another thread.
pub type WorkFuture = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

impl Requester {
    /// A caller that may block the thread.
    pub fn here(tenant: Tenant) -> Requester {
        Requester { tenant, role: KeyRole::Admin, is_keyless: false, threads: Threads::Here, progress: None }
    }

    /// Whether the caller may see numbers only.
    pub fn is_counter(&self) -> bool {
        self.role == KeyRole::Counter
    }

    /// The conversation as the caller may see it.
    pub fn shown(&self, conversation: Conversation) -> Conversation {
        if self.is_counter() { conversation.without_words() } else { conversation }
    }

    /// Runs blocking work on a suitable thread.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tenant) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let elsewhere = match self.threads {
            Threads::Here => return work(&self.tenant),
            Threads::Elsewhere(elsewhere) => elsewhere,
        };
        let tenant = self.tenant.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        elsewhere(Box::new(move || {
            // If this fails, the caller no longer waits.
            let _ = sender.send(work(&tenant));
        }))
        .await?;
        receiver.recv().unwrap_or_else(|_| {
            Err(Error::internal("server.panic", "the request failed inside the server; see its log"))
        })
    }

    /// Waits for a commit. If it is quick, on this thread.
    pub async fn committed<T: 'static>(&self, commit: Commit<T>) -> Result<T, Error> {
        match self.threads {
            Threads::Here => commit.wait(),
            Threads::Elsewhere(_) if commit.is_quick() => commit.wait(),
            Threads::Elsewhere(_) => commit.await,
        }
    }

    /// Runs a write that has to read the disk first.
    pub async fn writing<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tenant) -> Result<Commit<T>, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let commit = self.blocking(work).await?;
        self.committed(commit).await
    }

    /// Resolves the name of a conversation.
    pub fn conversation(&self, name: &ConversationName) -> Result<ConversationHandle, Error> {
        name.find(&self.tenant)
    }

    /// Reports the progress of a long operation.
    pub fn progress(&self) -> impl FnMut(u64) + use<> {
        let progress = self.progress.clone();
        move |done| {
            if let Some(progress) = &progress {
                progress(done);
            }
        }
    }
}

/// Name of a conversation in a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConversationName(pub String);

impl ConversationName {
    /// The conversation of this name. Only what is not a whole id is looked up.
    pub fn find(&self, tenant: &Tenant) -> Result<ConversationHandle, Error> {
        let id = self.0.parse().or_else(|_| tenant.resolve(&self.0))?;
        Ok(tenant.conversation(id))
    }
}

impl From<ConversationId> for ConversationName {
    fn from(id: ConversationId) -> ConversationName {
        ConversationName(id.to_string())
    }
}

impl fmt::Display for ConversationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for ConversationName {
    fn schema_name() -> Cow<'static, str> {
        "ConversationName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "examples": ["conv_01JD0000000000000000000000"]})
    }
}
