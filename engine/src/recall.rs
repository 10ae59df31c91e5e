//! Finding again what was said and learned: [`search`] asks, [`ranking`] joins what words and meaning found, [`in_context`] puts what
//! was recalled into a prompt; [`indexer`] takes in what is committed, and [`embedding`] gives it vectors.

pub mod embedding;
mod in_context;
pub mod indexer;
mod ranking;
mod search;

pub use search::{Hit, Matched, Rank, RecallOptions, Recalled};

use crate::load::{self, Slots};
use embedding::Embeddings;
use everturn_store::Recall;
use indexer::Indexer;
use std::sync::Arc;

/// The index that recall searches, and what keeps it up to date.
pub struct RecallIndex {
    pub store: Arc<dyn Recall>,
    pub indexer: Arc<Indexer>,
    pub embeddings: Embeddings,
    /// Recalls that run at once.
    pub slots: Slots,
}

impl RecallIndex {
    pub fn new(store: Arc<dyn Recall>, indexer: Arc<Indexer>) -> RecallIndex {
        let slots = Slots::new(load::heavy_max());
        RecallIndex { store, indexer, embeddings: Embeddings::default(), slots }
    }
}
