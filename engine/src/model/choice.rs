//! Which embedder somebody wants, as a setting says it.

use super::local::threads_default;
use super::{BuiltinEmbedder, Embed, Embedding, Endpoint, FolderEmbedder, HttpEmbedder};
use everturn_core::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Where vectors come from.
#[derive(Clone, Debug)]
pub enum Embedder {
    /// The model inside the program.
    Builtin,
    /// A model in a folder.
    Folder(PathBuf),
    /// A server with OpenAI's embeddings endpoint.
    Endpoint(Box<Endpoint>, Embedding),
}

impl Embedder {
    /// Makes it ready. Nothing is sent anywhere yet, but a folder is read. A model of this machine takes half of its cores.
    pub fn open(self) -> Result<Arc<dyn Embed>, Error> {
        self.open_with(threads_default())
    }

    /// As [`Embedder::open`], where a model of this machine takes so many threads: all cores, if somebody waits for it.
    pub fn open_with(self, threads: usize) -> Result<Arc<dyn Embed>, Error> {
        Ok(match self {
            Embedder::Builtin => Arc::new(BuiltinEmbedder::with_threads(threads)),
            Embedder::Folder(folder) => Arc::new(FolderEmbedder::with_threads(&folder, threads)?),
            Embedder::Endpoint(endpoint, how) => Arc::new(HttpEmbedder::new(*endpoint, how)?),
        })
    }
}

/// `builtin` or `folder:PATH`. A server needs more than one word; it is described where models are.
impl FromStr for Embedder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Embedder, Error> {
        match text.split_once(':') {
            None if text == "builtin" => Ok(Embedder::Builtin),
            Some(("folder", path)) if !path.is_empty() => Ok(Embedder::Folder(PathBuf::from(path))),
            _ => Err(Error::invalid(
                "embedder.unknown",
                format!("{:?} is no embedder; use builtin or folder:PATH", everturn_core::id::clip(text)),
            )),
        }
    }
}
