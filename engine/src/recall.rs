//! Recall of turns and facts: [`search`] runs queries, [`ranking`] combines lexical and vector results,
//! [`in_context`] puts recalled text into a prompt; [`indexer`] indexes commits, and [`embedding`] adds their
//! vectors.

pub mod embedding;
mod in_context;
pub mod indexer;
mod ranking;
mod search;

pub(crate) use in_context::turn_piece;
pub use search::{Hit, Matched, Rank, RecallOptions, Recalled};

use crate::load::{self, Slots};
use embedding::Embeddings;
use everturn_store::RecallStore;
use indexer::Indexer;
use std::sync::Arc;

/// The recall index and the tasks that keep it up to date.
pub struct RecallIndex {
    pub store: Arc<dyn RecallStore>,
    pub indexer: Arc<Indexer>,
    pub embeddings: Embeddings,
    /// Limits concurrent recalls.
    pub slots: Slots,
}

impl RecallIndex {
    pub fn new(store: Arc<dyn RecallStore>, indexer: Arc<Indexer>) -> RecallIndex {
        let slots = Slots::new(load::heavy_max());
        RecallIndex { store, indexer, embeddings: Embeddings::default(), slots }
    }
}
