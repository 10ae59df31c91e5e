//! Where conversations are kept.
//!
//! Short traits, their backends, and the module `conformance` (a feature): the one list of promises that every backend runs.
//! A behaviour that is not in that list is not promised. All rules about what may be written are in `core::write`; a
//! backend only looks up, writes down and makes durable.
//!
//! | trait | for |
//! |---|---|
//! | [`Log`] | committing, and reading events |
//! | [`ConversationIndex`], [`TurnIndex`], [`AssetIndex`] | listings, and finding one by id |
//! | [`Provenance`] | erasing: sources and copies of words |
//! | [`FoldCache`] | folds of a log up to a place |
//! | [`Maintenance`], [`Divergence`] | check, rebuild, compact; repair |
//! | [`RecallIndex`], [`WordSearch`], [`VectorSearch`] | recall |
//! | [`Assets`], [`Keys`], [`Backup`] | bytes; access to a server; reading everything |
//!
//! [`Index`] and [`Recall`] stand for several of them. [`CheckedLog`] and [`CheckedIndex`] read with proof.
//!
//! What it is not: it has no clock and makes no ids, it does not batch (the writer in `engine` does), and it knows no
//! message format.

pub mod assets;
mod backup;
mod checked;
#[cfg(feature = "conformance")]
pub mod conformance;
mod index;
mod keys;
mod log;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
mod recall;
mod search;
pub mod sqlite;

pub use assets::Assets;
pub use backup::{Backup, ErasedPage, Member};
pub use checked::{CheckedIndex, CheckedLog};
pub use index::{
    AssetIndex, Branch, ConversationIndex, ConversationQuery, Divergence, FoldCache, Index, Maintenance,
    Problem, ProblemKind, Provenance, StoredTurn, TenantUsage, TurnIndex, TurnQuery, Written, WrittenPage,
};
pub use keys::Keys;
pub use log::{Committed, Log};
pub use search::{
    Behind, Found, IndexChange, Proposed, Recall, RecallIndex, Span, Unembedded, Unindexed, VectorSearch,
    WordSearch,
};

pub(crate) use backup::{EVENT_BYTES, absent_member};
pub(crate) use keys::{absent_key, key_exists};
pub(crate) use log::Erasures;
