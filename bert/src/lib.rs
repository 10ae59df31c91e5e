//! Embedders from a folder: sentence models of the BERT class in the layout of model hubs, run on the local processor.
//!
//! [`FolderEmbedder`] is such a model. A program calls [`install`] once, and the setting `folder:PATH` works everywhere; the
//! program `everturn` does so when it is built with the feature `bert`.
//!
//! Not here: downloads. The folder holds `config.json`, `tokenizer.json` and `model.safetensors`.

mod folder;
mod workers;

pub use folder::FolderEmbedder;

use everturn_engine::model::FolderEmbedders;
use std::sync::Arc;

/// Makes `folder:PATH` open a [`FolderEmbedder`] in this process.
pub fn install() {
    FolderEmbedders::install(|folder, threads| Ok(Arc::new(FolderEmbedder::with_threads(folder, threads)?)));
}
