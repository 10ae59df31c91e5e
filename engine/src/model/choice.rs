//! Choice of an embedder, parsed from a setting.

use super::{BuiltinEmbedder, Embed, Embedding, Endpoint, HttpEmbedder};
use everturn_core::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Source of vectors.
#[derive(Clone, Debug)]
pub enum Embedder {
    /// The built-in model.
    Builtin,
    /// A model in a folder. Requires the feature `bert`.
    Folder(PathBuf),
    /// A server with OpenAI's embeddings endpoint.
    Endpoint(Box<Endpoint>, Embedding),
}

impl Embedder {
    /// Opens the embedder. Sends nothing yet, but reads a folder. A model in a folder takes half of the cores.
    pub fn open(self) -> Result<Arc<dyn Embed>, Error> {
        self.open_with(std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1)))
    }

    /// As [`Embedder::open`], with this number of threads for a model in a folder: all cores if a caller waits for it.
    pub fn open_with(self, threads: usize) -> Result<Arc<dyn Embed>, Error> {
        Ok(match self {
            Embedder::Builtin => Arc::new(BuiltinEmbedder::new()),
            Embedder::Folder(folder) => open_folder(&folder, threads)?,
            Embedder::Endpoint(endpoint, how) => Arc::new(HttpEmbedder::new(*endpoint, how)?),
        })
    }
}

#[cfg(feature = "bert")]
fn open_folder(folder: &Path, threads: usize) -> Result<Arc<dyn Embed>, Error> {
    Ok(Arc::new(super::FolderEmbedder::with_threads(folder, threads)?))
}

#[cfg(not(feature = "bert"))]
fn open_folder(folder: &Path, _: usize) -> Result<Arc<dyn Embed>, Error> {
    let text = format!(
        "the model in {} cannot be used: this program was built without models from folders; \
         build it with `cargo build --release --features bert`, or use builtin",
        folder.display()
    );
    Err(Error::invalid("embedder.no_bert", text))
}

/// `builtin` or `folder:PATH`. A server needs more than one word; it is configured with the models.
impl FromStr for Embedder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Embedder, Error> {
        match text.split_once(':') {
            None if text == "builtin" => Ok(Embedder::Builtin),
            Some(("folder", path)) if !path.is_empty() => Ok(Embedder::Folder(PathBuf::from(path))),
            _ => Err(Error::invalid(
                "embedder.unknown",
                format!(
                    "{:?} is not an embedder; use builtin, none or folder:PATH",
                    everturn_core::id::clip(text)
                ),
            )),
        }
    }
}
