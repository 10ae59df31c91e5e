//! Opening the store that was asked for.

use crate::args::Args;
use crate::output::Failure;
use everturn_core::Error;
use everturn_engine::{Everturn, Options, Scope};
use std::time::Duration;

/// How long a command waits for another one that is writing: long enough for a loop of appends in two shells.
const PATIENCE: Duration = Duration::from_secs(3);

/// The tenant's view, for reading beside whoever writes.
pub fn reading(args: &Args) -> Result<Scope, Failure> {
    open(args, true)
}

/// The tenant's view, for writing.
pub fn writing(args: &Args) -> Result<Scope, Failure> {
    open(args, false)
}

/// The store for writing, whole.
pub fn store(args: &Args) -> Result<Everturn, Failure> {
    let options = Options { patience: PATIENCE, mirror: args.mirror.clone(), ..Options::default() };
    Ok(Everturn::open_with(&url(&args.store, true)?, options)?)
}

/// The store for reading beside whoever writes, whole.
pub fn everything(args: &Args) -> Result<Everturn, Failure> {
    let options = Options { read_only: true, ..Options::default() };
    Ok(Everturn::open_with(&url(&args.store, false)?, options)?)
}

fn open(args: &Args, read_only: bool) -> Result<Scope, Failure> {
    with(args, Options { read_only, mirror: args.mirror.clone(), ..Options::default() })
}

/// The tenant's view of a store that is opened with options.
pub fn with(args: &Args, options: Options) -> Result<Scope, Failure> {
    let read_only = options.read_only;
    let options = Options { patience: PATIENCE, ..options };
    let store = Everturn::open_with(&url(&args.store, !read_only)?, options)?;
    Ok(store.tenant(&args.tenant)?)
}

/// The URL with a file in it: `sqlite:` alone means the one in the data folder.
pub fn url(store: &str, make: bool) -> Result<String, Error> {
    if store != "sqlite:" && store != "sqlite" {
        return Ok(store.to_string());
    }
    let data = dirs::data_dir().ok_or_else(|| {
        Error::invalid(
            "store.no_data_folder",
            "no data folder is known here; say where with --store sqlite:PATH",
        )
    })?;
    let folder = data.join("everturn");
    if make {
        std::fs::create_dir_all(&folder).map_err(|e| {
            Error::invalid(
                "store.cannot_open",
                format!("cannot make {}: {e}; say where with --store", folder.display()),
            )
        })?;
    }
    Ok(format!("sqlite:{}", folder.join("everturn.db").display()))
}
