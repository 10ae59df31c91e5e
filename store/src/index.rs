//! Indexed lookups that need not read a log from its start. Everything here is derived:
//! [`Maintenance::rebuild`] gives the same answers.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Lifecycle, Tombstone, is_agent, is_project};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, Turn, TurnRow};
use everturn_core::write::{EventAddress, Learned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The whole index. Implemented by every type that implements its parts.
pub trait Index: ConversationIndex + TurnIndex + AssetIndex + Provenance + FoldCache + Maintenance {}

impl<T: ConversationIndex + TurnIndex + AssetIndex + Provenance + FoldCache + Maintenance> Index for T {}

/// Conversations and tenants.
pub trait ConversationIndex: Send + Sync {
    /// A conversation. `NotFound` if it is absent, another tenant's, or deleted.
    fn conversation(&self, key: &Key) -> Result<Conversation, Error>;
    /// A page of a tenant's conversations, latest first.
    fn conversations(
        &self,
        tenant: &TenantName,
        query: &ConversationQuery,
    ) -> Result<Vec<Conversation>, Error>;
    /// Ids of a tenant's conversations that begin with `prefix`, at most `limit`.
    fn starting_with(
        &self,
        tenant: &TenantName,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, Error>;
    /// Conversations whose time to live has passed, over all tenants.
    fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error>;
    /// Tombstones of a tenant's deleted conversations, last deleted first.
    fn tombstones(&self, tenant: &TenantName) -> Result<Vec<Tombstone>, Error>;
    /// Every tenant that has or had a conversation, in order.
    fn tenants(&self) -> Result<Vec<TenantName>, Error>;
    /// Storage that a tenant uses, counted from its rows: takes time in proportion to them.
    fn usage(&self, tenant: &TenantName) -> Result<TenantUsage, Error>;
}

/// A page of a listing of conversations.
#[derive(Clone, Debug, Default)]
pub struct ConversationQuery {
    /// Only those whose title contains this, with ASCII letters in any case.
    pub text: Option<String>,
    /// Only those in this state.
    pub state: Option<Lifecycle>,
    /// Only those of this project: see [`is_project`].
    pub project: Option<String>,
    /// Only those of this agent: see [`is_agent`].
    pub agent: Option<String>,
    /// Only forks of this conversation.
    pub parent: Option<ConversationId>,
    /// Only those at or after this time in the listing.
    pub since: Option<Timestamp>,
    /// Order of the listing.
    pub order: ListOrder,
    /// Only those after this one in the listing: its [`position`](ListOrder::position).
    pub after: Option<(Timestamp, ConversationId)>,
    /// Maximum number of conversations.
    pub limit: usize,
}

/// Order of a listing of conversations, latest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ListOrder {
    /// By the time of the latest turn.
    #[default]
    Said,
    /// By the time of the last event.
    Changed,
}

impl ListOrder {
    /// Position of a conversation in the listing.
    pub fn position(self, conversation: &Conversation) -> (Timestamp, ConversationId) {
        let at = match self {
            ListOrder::Said => conversation.said(),
            ListOrder::Changed => conversation.updated,
        };
        (at, conversation.id)
    }
}

impl ConversationQuery {
    /// Whether a conversation passes the filters, its position, title and state aside.
    pub(crate) fn takes(&self, conversation: &Conversation) -> bool {
        self.since.is_none_or(|since| self.order.position(conversation).0 >= since)
            && self.project.as_ref().is_none_or(|wanted| {
                conversation.project().is_some_and(|project| is_project(&project, wanted))
            })
            && self
                .agent
                .as_ref()
                .is_none_or(|wanted| conversation.agent().is_some_and(|agent| is_agent(&agent, wanted)))
    }
}

/// Storage that a tenant uses. Erased and deleted content does not count, and inherited content counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TenantUsage {
    /// Number of conversations.
    pub conversations: u64,
    /// Number of turns.
    pub turns: u64,
    /// Size of event bodies in bytes.
    pub bytes: u64,
    /// Number of assets with stored bytes; the same bytes in two conversations count twice.
    pub assets: u64,
    /// Size of those assets in bytes.
    pub asset_bytes: u64,
}

/// Several turns, or why they cannot be read: each of them, or all.
pub type StoredTurns = Result<Vec<Result<StoredTurn, Error>>, Error>;

/// Turns, unchecked: [`CheckedIndex`](crate::CheckedIndex) is the way to read them.
pub trait TurnIndex: Send + Sync {
    /// For [`CheckedIndex::turns`](crate::CheckedIndex::turns).
    fn stored_turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<StoredTurn>, Error>;
    /// For [`CheckedIndex::turn`](crate::CheckedIndex::turn).
    fn stored_turn(&self, tenant: &TenantName, id: TurnId) -> Result<StoredTurn, Error>;
    /// For [`CheckedIndex::turn_in`](crate::CheckedIndex::turn_in).
    fn stored_turn_in(&self, key: &Key, id: TurnId) -> Result<StoredTurn, Error>;
    /// For [`CheckedIndex::turns_in`](crate::CheckedIndex::turns_in). A backend that is far away answers all of them at once.
    fn stored_turns_in(&self, tenant: &TenantName, turns: &[(ConversationId, TurnId)]) -> StoredTurns {
        let one = |(conversation, id): &(ConversationId, TurnId)| {
            self.stored_turn_in(&Key { tenant: tenant.clone(), id: *conversation }, *id)
        };
        Ok(turns.iter().map(one).collect())
    }
    /// Number of turns after `seq` that a view from there on does not show: superseded, aborted, or read at an earlier
    /// place.
    fn fallen_after(&self, key: &Key, seq: u64) -> Result<u64, Error>;
    /// Turns that are still open, over all tenants.
    fn open_turns(&self) -> Result<Vec<(Key, TurnId)>, Error>;
}

/// A page of turns.
#[derive(Clone, Debug, Default)]
pub struct TurnQuery {
    /// Only those with a smaller place, or `seq` with `whole_log`.
    pub before: Option<u64>,
    /// Only those with a greater place, or `seq` with `whole_log`.
    pub after: Option<u64>,
    /// Last first instead of first first.
    pub descending: bool,
    /// Only turns of these actors, if any are named.
    pub actors: Vec<String>,
    /// Every turn in the order of the log, superseded and aborted ones included: a superseded turn shares the place of
    /// the turn that supersedes it. Otherwise the current turns, in reading order.
    pub whole_log: bool,
    /// Only turns that were moved to their places after this `seq`: edits since then.
    pub moved_after: Option<u64>,
    /// As of this `seq`.
    pub as_of: Option<u64>,
    /// Maximum number of turns.
    pub limit: usize,
    /// Maximum size of the page's messages in bytes; a page always has at least one turn.
    pub bytes_max: Option<usize>,
}

impl TurnQuery {
    /// Whether a page with these turns is full.
    pub(crate) fn is_full(&self, page: &[StoredTurn], bytes: &mut usize) -> bool {
        let read = page.last().into_iter().flat_map(|turn| &turn.events);
        *bytes += read.filter_map(Event::text).map(str::len).sum::<usize>();
        page.len() >= self.limit || self.bytes_max.is_some_and(|max| *bytes >= max)
    }

    /// Position of a row in the pages.
    pub(crate) fn position(&self, row: &TurnRow) -> u64 {
        if self.whole_log { row.seq } else { row.place }
    }

    /// The row as of the `seq` asked for.
    pub(crate) fn seen(&self, row: TurnRow) -> TurnRow {
        match self.as_of {
            Some(seq) => row.as_of(seq),
            None => row,
        }
    }

    /// Whether a row passes the filters, its position aside.
    pub(crate) fn takes(&self, row: &TurnRow) -> bool {
        (self.whole_log || (row.superseded_by.is_none() && row.status != Status::Aborted))
            && (self.actors.is_empty() || row.actor.as_ref().is_some_and(|actor| self.actors.contains(actor)))
            && self.moved_after.is_none_or(|after| row.placed_seq.is_some_and(|at| at > after))
    }

    /// Range of positions to search, both inclusive.
    pub(crate) fn range(&self) -> (u64, u64) {
        (
            self.after.map_or(1, |after| after.saturating_add(1)),
            // No place is greater than its turn's `seq`.
            self.before
                .map_or(i64::MAX as u64, |b| b.saturating_sub(1))
                .min(self.as_of.unwrap_or(i64::MAX as u64)),
        )
    }
}

/// A turn as a backend stores it. [`CheckedIndex`](crate::CheckedIndex) derives a
/// [`Turn`](everturn_core::turn::Turn) from it.
#[derive(Clone, Debug)]
pub struct StoredTurn {
    /// The conversation it was read from.
    pub conversation: ConversationId,
    /// Its row.
    pub row: TurnRow,
    /// The events that the row refers to ([`TurnRow::places`]), with their `prev`, as far as they exist.
    pub events: Vec<Event>,
}

impl StoredTurn {
    /// The message, unchecked: enough to search for what repeats it.
    pub(crate) fn message(&self) -> Option<serde_json::Value> {
        let place = self.row.content_seq.unwrap_or(self.row.seq);
        let content = self.events.iter().find(|event| event.seq == place)?;
        Turn::read(self.conversation, self.row.clone(), content).value()
    }
}

/// Descriptors of assets, unchecked: [`CheckedIndex`](crate::CheckedIndex) is the way to read them.
pub trait AssetIndex: Send + Sync {
    /// For [`CheckedIndex::assets`](crate::CheckedIndex::assets): the `asset.added` events.
    fn stored_assets(&self, key: &Key) -> Result<Vec<Event>, Error>;
    /// For [`CheckedIndex::asset`](crate::CheckedIndex::asset).
    fn stored_asset(&self, key: &Key, id: &str) -> Result<Option<Event>, Error>;
    /// For [`CheckedIndex::assets_with_id`](crate::CheckedIndex::assets_with_id).
    fn stored_assets_with_id(
        &self,
        tenant: &TenantName,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Event)>, Error>;
    /// Whether any conversation of the tenant still has an asset with these bytes.
    fn asset_in_use(&self, tenant: &TenantName, sha256: Hash) -> Result<bool, Error>;
}

/// Sources and copies of text, to remove when a turn or an actor is erased.
pub trait Provenance: Send + Sync {
    /// The conversation of a tenant in which a fact was first stated under this id. `None` for another tenant's, and when
    /// every statement of it was erased.
    fn fact(&self, tenant: &TenantName, id: FactId) -> Result<Option<ConversationId>, Error>;
    /// Facts to remove when a turn is erased, in every conversation of the tenant: those learned from it, and
    /// corrections of facts that have no other source. See [`learned`](everturn_core::write::learned).
    fn learned_from(&self, tenant: &TenantName, turn: TurnId) -> Result<Vec<Learned>, Error>;
    /// Events that repeat the text of a turn: titles and imported lines, in its conversation and in forks that see it, and
    /// its copies in branches, see [`copies`](everturn_core::write::copies).
    fn echoes(&self, key: &Key, turn: TurnId) -> Result<Vec<Event>, Error>;
    /// Events of an actor with bodies that are not erased, over all conversations of a tenant, in the order of
    /// arrival. Searches a bounded part of the log after a position (0 at first); `None` after its end.
    fn written_by(&self, tenant: &TenantName, actor: &str, after: u64) -> Result<Option<WrittenPage>, Error>;
    /// Number of bodies of a tenant erased so far, as the store counts them; a store may count those of all
    /// tenants together. See [`Action::Derive`](everturn_core::write::Action::Derive).
    fn erasures(&self, tenant: &TenantName) -> Result<u64, Error>;
}

/// A page of an actor's events.
#[derive(Clone, Debug)]
pub struct WrittenPage {
    /// Events in the order of arrival.
    pub events: Vec<Written>,
    /// Position to continue after.
    pub through: u64,
}

/// An event of an actor.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its address.
    pub place: EventAddress,
    /// A conversation that sees it: its own, or a fork if that was deleted.
    pub seen_in: ConversationId,
    /// Kind of the event, see [`kind`](everturn_core::event::kind).
    pub kind: String,
    /// The turn that it begins or refers to.
    pub turn: Option<TurnId>,
}

/// Cache of folds, so that the next fold need not begin at the start of the log.
pub trait FoldCache: Send + Sync {
    /// The newest cached fold at or before this `seq`, an ancestor's included, and its `seq`.
    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<(u64, Raw)>, Error>;
    /// Caches a fold. It may be lost, and is then rebuilt from the log.
    fn keep_fold(&self, key: &Key, seq: u64, fold: &Raw) -> Result<(), Error>;
}

/// Checks and cleanup of a whole store.
pub trait Maintenance: Send + Sync {
    /// Looks for damage: errors of the storage itself, events that are known to have been written and are
    /// missing, and derived rows that differ from the log. Changes nothing.
    fn check(&self) -> Result<Vec<StoreProblem>, Error>;
    /// Drops everything derived and rebuilds it from the log.
    fn rebuild(&self) -> Result<(), Error>;
    /// Reclaims unused space, which may hold remains of old titles, names and metadata.
    fn compact(&self) -> Result<(), Error>;
}

/// A problem with a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreProblem {
    /// The conversation that it concerns, if any.
    pub key: Option<Key>,
    /// Kind, which determines the remedy.
    pub kind: ProblemKind,
    /// A sentence without its full stop.
    pub text: String,
}

/// Kinds of problems, by remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemKind {
    /// The storage is damaged: restore a backup.
    Damaged,
    /// Events that were written are not in the log: restore a backup.
    Missing,
    /// A derived row differs from the log: use [`Maintenance::rebuild`].
    Derived,
}

/// The first and the last id with this prefix, in bytes. `None` if no id has it.
pub(crate) fn id_range(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    const DIGITS: usize = 26;
    let rest = prefix.strip_prefix(ConversationId::PREFIX).unwrap_or(prefix).to_ascii_uppercase();
    if rest.len() > DIGITS || !rest.is_ascii() {
        return None;
    }
    let edge = |fill: &str| {
        // The first digit of a ULID has only three bits, so it ends at 7.
        let first = if rest.is_empty() && fill == "Z" { "7" } else { "" };
        let text = format!(
            "{}{rest}{first}{}",
            ConversationId::PREFIX,
            fill.repeat(DIGITS - rest.len() - first.len())
        );
        // Parsing accepts letters that look like digits, and a first digit that is too large.
        let id = text.parse::<ConversationId>().ok().filter(|id| id.to_string() == text);
        id.map(ConversationId::to_bytes)
    };
    Some((edge("0")?, edge("Z")?))
}
