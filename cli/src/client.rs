//! The only access to conversations: a local store, or a server. Verbs do not know which.

mod local;
mod owner;
mod remote;

pub use local::Local;
pub use owner::{LocalStore, McpStore, Owner, WritableStore};
pub use remote::Remote;

use crate::output::Failure;
use everturn_api::Operation;
use everturn_api::conversations::ResolveConversation;
use everturn_api::recall::Recall;
use everturn_api::turns::ListTurns;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::id::{ConversationId, TurnId};
use everturn_engine::{
    Behind, Doctor, Format, HistoryEntry, HistoryQuery, ImportOptions, Imported, Order, Recalled, Update,
};
use std::io::{BufRead, Write};

/// Opens a file at its beginning; `None` if it can be read only once and has been read.
pub type OpenFile<'a> = dyn FnMut() -> Result<Option<Box<dyn BufRead + Send>>, Error> + 'a;

/// A client with three transports, which give the same answers and the same errors.
pub enum Client {
    /// A local store, opened by this process.
    Local(Box<Local>),
    /// A server's store, over HTTP.
    Remote(Box<Remote>),
    /// A local store that another process owns, through its socket.
    Owner(Box<Owner>),
}

impl Client {
    pub fn call<O: Operation>(&self, operation: O) -> Result<O::Answer, Error> {
        self.call_telling(operation, |_| {})
    }

    /// Runs an operation that may take long. `progress` is called with how much is done, unless a server runs
    /// it.
    pub fn call_telling<O: Operation>(
        &self,
        operation: O,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<O::Answer, Error> {
        match self {
            Client::Local(local) => local.call(operation, progress),
            Client::Remote(remote) => remote.call(&operation),
            Client::Owner(owner) => owner.call(operation, progress),
        }
    }

    /// Whether this process has the store open.
    pub fn is_local(&self) -> bool {
        matches!(self, Client::Local(_))
    }

    /// Resolves a name: an id, the beginning of one, or `@last`.
    pub fn resolve(&self, name: &str) -> Result<ConversationId, Error> {
        Ok(self.call(ResolveConversation { name: name.into() })?.id)
    }

    /// Resolves the name of a turn: its id, or `CONV#4`, its conversation and `seq`.
    pub fn turn(&self, name: &str) -> Result<TurnId, Error> {
        let Some((conversation, seq)) = turn_place(name)? else { return name.parse() };
        let id = self.resolve(conversation)?;
        let query = HistoryQuery {
            after: Some(seq.saturating_sub(1)),
            limit: 1,
            order: Order::Ascending,
            include_superseded: true,
            ..HistoryQuery::default()
        };
        let page = self.call(ListTurns { conversation: id.into(), query })?;
        match page.data.into_iter().next() {
            Some(HistoryEntry::Turn(turn)) if turn.seq == seq => Ok(turn.id),
            _ => {
                let text = format!("{id} has no turn #{seq}; `everturn history {id} --ids` shows them");
                Err(Error::not_found("turn.absent", text))
            }
        }
    }

    /// Recalls turns and facts, including the most recent ones.
    pub fn recall(&self, recall: Recall) -> Result<Recalled, Error> {
        match self {
            Client::Local(local) => local.recall(recall),
            Client::Remote(remote) => remote.recall(recall),
            Client::Owner(owner) => owner.now().recall(recall),
        }
    }

    /// Indexes and embeds everything. `progress` is called with how much is left.
    pub fn index(&self, progress: &mut dyn FnMut(Behind)) -> Result<(), Error> {
        match self {
            Client::Local(local) => local.index(progress),
            Client::Remote(_) | Client::Owner(_) => {
                let text = "a server indexes by itself; leave --index out";
                Err(Error::invalid("url.index", text))
            }
        }
    }

    /// Updates from a `seq` on, including future ones.
    pub fn follow(&self, id: ConversationId, from_seq: u64) -> Result<Box<dyn Updates>, Error> {
        match self {
            Client::Local(local) => local.follow(id, from_seq),
            Client::Remote(remote) => remote.follow(id, from_seq),
            Client::Owner(owner) => owner.now().follow(id, from_seq),
        }
    }

    /// Writes a conversation to a file. `progress` is called with the number of events written.
    pub fn export(
        &self,
        id: ConversationId,
        format: Format,
        redacted: bool,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        match self {
            Client::Local(local) if redacted => {
                Ok(local.tenant.conversation(id).export_redacted(format, out, progress)?)
            }
            Client::Local(local) => Ok(local.tenant.conversation(id).export(format, out, progress)?),
            Client::Remote(remote) => remote.export(id, format, redacted, out, progress),
            Client::Owner(owner) => owner.now().export(id, format, redacted, out, progress),
        }
    }

    /// Imports a file; its name distinguishes conversations where the content does not.
    pub fn import(&self, options: ImportOptions<'_>, open: &mut OpenFile<'_>) -> Result<Imported, Error> {
        let mut file = || open().map(|file| file.unwrap_or_else(|| Box::new(std::io::empty())));
        match self {
            Client::Local(local) => local.tenant.import_with(options, &mut *file()?, &mut |_| {}),
            Client::Remote(remote) => remote.import(options, &mut *file()?),
            Client::Owner(owner) => owner.import(options, open),
        }
    }

    /// Adds an asset to a conversation.
    pub fn attach(
        &self,
        id: ConversationId,
        name: &str,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        match self {
            Client::Local(local) => {
                local.tenant.conversation(id).assets().add(Some(name.to_string()), mime_type, bytes)
            }
            Client::Remote(remote) => remote.attach(id, name, mime_type, bytes),
            Client::Owner(owner) => owner.attach(id, name, mime_type, &bytes),
        }
    }

    /// Checks everything: all tenants of a local store, the key's tenant of a server.
    pub fn doctor(&self, progress: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error> {
        match self {
            Client::Local(local) => local.store.doctor(progress),
            Client::Remote(remote) => remote.call(&everturn_api::transfer::CheckStore {}),
            Client::Owner(owner) => owner.call(everturn_api::transfer::CheckStore {}, |_| {}),
        }
    }
}

/// The conversation and the `seq` of a turn that is named by them, after a check of the name; `None` for an id.
pub fn turn_place(name: &str) -> Result<Option<(&str, u64)>, Error> {
    let place = name.split_once('#').filter(|(conversation, _)| !conversation.is_empty());
    match place.map(|(conversation, seq)| (conversation, seq.parse())) {
        Some((conversation, Ok(seq))) => Ok(Some((conversation, seq))),
        _ => name.parse::<TurnId>().map(|_| None).map_err(|error| {
            error.reworded(|text| {
                format!("{text}, nor a place such as @last#4; `everturn history CONV --ids` shows them")
            })
        }),
    }
}

pub trait Updates {
    /// Waits for the next update. Each is returned once, `Lagged` never. `None` if there can be no more.
    fn next(&mut self) -> Result<Option<Update>, Error>;
}
