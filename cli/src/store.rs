//! The one door to conversations: a store of this machine, or a server's. No verb knows which it is.

mod local;
mod remote;

pub use local::Local;
pub use remote::Remote;

use crate::output::Failure;
use everturn_core::Error;
use everturn_core::access::{AccessKey, Role};
use everturn_core::asset::Asset;
use everturn_core::chain::{Hash, Report};
use everturn_core::conversation::{Conversation, Settings, Tombstone};
use everturn_core::event::Event;
use everturn_core::fact::Fact;
use everturn_core::id::{ConversationId, FactId, KeyId, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::Turn;
use everturn_engine::{
    AppendOptions, Behind, CompactOptions, Compacted, Context, ContextOptions, Correction, Doctor, Entry,
    ErasedActor, ExtractOptions, Extraction, FactQuery, Format, HistoryQuery, Imported, ListQuery, NewFact,
    NewStream, NewTurn, Page, RecallOptions, Recalled, Update,
};
use everturn_views::state::State;
use serde_json::Value;
use std::io::{BufRead, Write};

/// What the verbs need of conversations. Both sides give the same answers and the same errors.
pub trait Store {
    /// The conversation that a person means: an id, the beginning of one, or `@last`.
    fn resolve(&self, name: &str) -> Result<ConversationId, Error>;
    /// A conversation as it is now.
    fn get(&self, id: ConversationId) -> Result<Conversation, Error>;
    /// Begins a conversation.
    fn create(&self, settings: Settings) -> Result<Conversation, Error>;
    /// A page of conversations, last changed first.
    fn list(&self, query: ListQuery) -> Result<Page<Conversation, Cursor>, Error>;
    /// Forks a conversation, by default at its end.
    fn fork(&self, id: ConversationId, at: Option<u64>) -> Result<Conversation, Error>;
    /// Deletes a conversation whole.
    fn delete(&self, id: ConversationId, reason: &str) -> Result<Tombstone, Error>;

    /// Appends a turn.
    fn append(&self, id: ConversationId, turn: NewTurn, options: AppendOptions) -> Result<Vec<Turn>, Error>;
    /// Opens a turn whose text will come in chunks.
    fn open_turn(&self, id: ConversationId, new: NewStream) -> Result<Turn, Error>;
    /// Adds a chunk; `offset` is the bytes before it. Gives the next one's.
    fn append_chunk(&self, id: ConversationId, turn: TurnId, offset: u64, text: &str) -> Result<u64, Error>;
    /// Ends an open turn.
    fn commit_turn(&self, id: ConversationId, turn: TurnId, last: NewTurn) -> Result<Turn, Error>;
    /// Gives an open turn up.
    fn abort_turn(&self, id: ConversationId, turn: TurnId, reason: &str) -> Result<Turn, Error>;
    /// A turn, in whatever conversation of the tenant.
    fn turn(&self, turn: TurnId) -> Result<Turn, Error>;
    /// Erases the words of a turn; gives what stays.
    fn erase(&self, turn: TurnId, by: Option<String>, reason: &str) -> Result<Turn, Error>;
    /// Erases events that are no turns.
    fn erase_events(
        &self,
        id: ConversationId,
        seqs: &[u64],
        by: Option<String>,
        reason: &str,
    ) -> Result<Conversation, Error>;
    /// Erases everything that an actor said.
    fn erase_actor(
        &self,
        actor: &str,
        by: Option<String>,
        reason: &str,
        progress: &mut dyn FnMut(&ErasedActor),
    ) -> Result<ErasedActor, Error>;

    /// A page of the history.
    fn history(&self, id: ConversationId, query: HistoryQuery) -> Result<Page<Entry>, Error>;
    /// A turn as a conversation sees it.
    fn turn_in(&self, id: ConversationId, turn: TurnId) -> Result<Turn, Error>;
    /// The descriptors of a conversation's assets.
    fn assets(&self, id: ConversationId) -> Result<Vec<Asset>, Error>;
    /// Everything from a place on, then what comes.
    fn follow(&self, id: ConversationId, from_seq: u64) -> Result<Box<dyn Updates>, Error>;

    /// What a conversation needs to go on, now or when its log ended at a place.
    fn state(&self, id: ConversationId, at: Option<u64>) -> Result<State, Error>;
    /// Pins a truth.
    fn pin(&self, id: ConversationId, name: &str, value: Raw) -> Result<Event, Error>;
    /// Takes a pin away.
    fn unpin(&self, id: ConversationId, name: &str) -> Result<Event, Error>;
    /// Summarizes the oldest turns.
    fn compact(&self, id: ConversationId, options: CompactOptions) -> Result<Compacted, Error>;
    /// Takes the last compaction back.
    fn revert_compaction(&self, id: ConversationId) -> Result<Conversation, Error>;
    /// A page of facts.
    fn facts(&self, id: ConversationId, query: FactQuery) -> Result<Page<Fact>, Error>;
    /// Adds a fact.
    fn add_fact(&self, id: ConversationId, new: NewFact) -> Result<Fact, Error>;
    /// Corrects a fact.
    fn correct_fact(&self, id: ConversationId, fact: FactId, correction: Correction) -> Result<Fact, Error>;
    /// Takes a fact back.
    fn retract_fact(
        &self,
        id: ConversationId,
        fact: FactId,
        by: Option<String>,
        reason: Option<String>,
    ) -> Result<Fact, Error>;
    /// Lets a model read turns for facts.
    fn extract_facts(&self, id: ConversationId, options: ExtractOptions) -> Result<Extraction, Error>;
    /// Makes everything findable, by meaning as well. `progress` hears how much is left.
    fn index(&self, progress: &mut dyn FnMut(Behind)) -> Result<(), Error>;
    /// Finds turns and facts again.
    fn recall(&self, query: &str, options: &RecallOptions) -> Result<Recalled, Error>;
    /// Builds a context; where it is to be recorded, also gives the place of its receipt.
    fn context(&self, id: ConversationId, ask: &Ask) -> Result<(Context, Option<u64>), Error>;
    /// Makes a context again from its receipt.
    fn replay_context(&self, id: ConversationId, seq: u64) -> Result<Context, Error>;
    /// Projects a conversation by options; gives the result object.
    fn project(&self, id: ConversationId, options: &Value) -> Result<Raw, Error>;

    /// Walks the chain of a conversation. `progress` hears how many events were checked.
    fn verify(
        &self,
        id: ConversationId,
        head: Option<Hash>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Report, Error>;
    /// Writes a conversation as a file. `progress` hears how many events were written.
    fn export(
        &self,
        id: ConversationId,
        format: Format,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure>;
    /// Takes over what is in a file; its name tells one from another where the content does not.
    fn import(&self, name: Option<&str>, file: &mut (dyn BufRead + Send)) -> Result<Imported, Error>;
    /// Keeps bytes beside a conversation.
    fn attach(&self, id: ConversationId, name: &str, mime_type: &str, bytes: Vec<u8>)
    -> Result<Asset, Error>;
    /// Checks everything: of a store of this machine all tenants, of a server the key's tenant.
    fn doctor(&self, progress: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error>;

    /// Makes a key of the tenant; also gives its words.
    fn create_key(&self, new: NewKey) -> Result<(AccessKey, String), Error>;
    /// The keys of the tenant.
    fn keys(&self) -> Result<Vec<AccessKey>, Error>;
    /// Takes a key back.
    fn revoke_key(&self, id: KeyId) -> Result<AccessKey, Error>;
}

/// Where a page of conversations ended.
pub type Cursor = (Timestamp, ConversationId);

/// News of a conversation.
pub trait Updates {
    /// The next; waits for it. Each comes once, and `Lagged` never. `None` when nothing can come any more.
    fn next(&mut self) -> Result<Option<Update>, Error>;
}

/// What a context is asked for with.
pub struct Ask {
    /// As the engine takes it.
    pub options: ContextOptions,
    /// The projection in it, as it was written: a compiled script cannot be sent.
    pub projection: Option<Value>,
    /// Whether to keep the receipt, because the context is going to be used.
    pub record: bool,
}

/// A key to make.
pub struct NewKey {
    /// What may be done with it.
    pub role: Role,
    /// For people.
    pub label: Option<String>,
    /// When it ends by itself.
    pub expires: Option<Timestamp>,
}

/// Reads a cursor as it is written: `TIME/ID`.
pub fn cursor(text: &str) -> Option<Cursor> {
    let (updated, id) = text.split_once('/')?;
    Some((updated.parse().ok()?, id.parse().ok()?))
}
