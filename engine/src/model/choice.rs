//! Choice of an embedder, parsed from a setting.

use super::{Embed, builtin};
#[cfg(feature = "models")]
use super::{Embedding, Endpoint, HttpEmbedder};
use everturn_core::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

/// Source of vectors.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Embedder {
    /// The built-in model. Needs the feature `embedder`.
    Builtin,
    /// A model in a folder. Requires the package `everturn-bert`.
    Folder(PathBuf),
    /// A server with OpenAI's embeddings endpoint. Needs the feature `models`.
    #[cfg(feature = "models")]
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
            Embedder::Builtin => builtin::open()?,
            Embedder::Folder(folder) => open_folder(&folder, threads)?,
            #[cfg(feature = "models")]
            Embedder::Endpoint(endpoint, how) => Arc::new(HttpEmbedder::new(*endpoint, how)?),
        })
    }
}

/// Opens the model in a folder, to run on a number of threads.
type OpenFolder = fn(&Path, usize) -> Result<Arc<dyn Embed>, Error>;

static OPEN_FOLDER: OnceLock<OpenFolder> = OnceLock::new();

/// What opens models in folders, if this program has it: the package `everturn-bert` installs it. Its libraries take longer to
/// build than everything else together, so nothing here depends on them.
pub struct FolderEmbedders;

impl FolderEmbedders {
    /// Makes this function open `folder:PATH` in this process. The first call counts.
    pub fn install(open: OpenFolder) {
        OPEN_FOLDER.get_or_init(|| open);
    }
}

fn open_folder(folder: &Path, threads: usize) -> Result<Arc<dyn Embed>, Error> {
    let Some(open) = OPEN_FOLDER.get() else {
        let text = format!(
            "the model in {} cannot be used: no reader of models is installed; install everturn with `--features bert`, call \
             `everturn::bert::install()` in a program of your own, or use builtin",
            folder.display()
        );
        return Err(Error::invalid("embedder.no_bert", text));
    };
    open(folder, threads)
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
