//! Storage of conversations.
//!
//! Short traits, their backends, and the module `conformance` (a feature): the one list of promises that every
//! backend runs. A behaviour that is not in that list is not promised. All rules about writing are in
//! `core::write`; a backend only looks up, writes and makes durable.
//!
//! | trait | for |
//! |---|---|
//! | [`Log`] | committing, and reading events |
//! | [`ConversationIndex`], [`TurnIndex`], [`AssetIndex`] | listings, and lookup by id |
//! | [`Provenance`] | erasing: sources and copies of text |
//! | [`FoldCache`] | cached folds of a log |
//! | [`Maintenance`] | check, rebuild, compact |
//! | [`RecallIndex`], [`WordSearch`], [`VectorSearch`] | recall |
//! | [`ChangeFeed`], [`Leases`] | changes by other processes, and work that one of them does |
//! | [`Assets`], [`AccessKeys`], [`Backup`] | asset bytes; access to a server; reading everything |
//!
//! [`Index`] and [`RecallStore`] combine several of them. [`CheckedLog`] and [`CheckedIndex`] verify what they read.
//!
//! Without features, stores are in memory or in SQLite. `postgres` adds the module `postgres`, and `objects` assets in object stores.
//!
//! This crate has no clock and generates no ids, it does not batch (the writer in `engine` does), and it knows
//! no message format.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod assets;
mod backup;
mod checked;
#[cfg(feature = "conformance")]
pub mod conformance;
mod elsewhere;
mod index;
mod keys;
mod log;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
mod recall;
#[cfg(feature = "postgres")]
mod runtime;
mod search;
pub mod sqlite;

pub use assets::Assets;
pub use backup::{Backup, ErasedPage, Member};
pub use checked::{CheckedIndex, CheckedLog};
pub use elsewhere::{ChangeFeed, ChangedConversation, Leases, RemoteChanges, WorkDone, WorkState};
pub use index::{
    AssetIndex, ConversationIndex, ConversationQuery, FoldCache, Index, ListOrder, Maintenance, ProblemKind,
    Provenance, StoreProblem, StoredTurn, StoredTurns, TenantUsage, TurnIndex, TurnQuery, Written,
    WrittenPage,
};
pub use keys::AccessKeys;
pub use log::{CommitProgress, Committed, Log, PendingCommit, Unwritten};
pub use search::{
    Behind, IndexChange, Proposal, Proposed, RecallIndex, RecallStore, Span, Unembedded, Unindexed,
    VectorSearch, WordSearch,
};

pub(crate) use backup::{EVENT_BYTES, absent_member};
pub(crate) use keys::{absent_key, key_exists};
pub(crate) use log::{Erasures, newer, unreleased};
