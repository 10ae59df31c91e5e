//! Opening the store: a local file, or a server.

use crate::args::Args;
use crate::client::{Client, Local, LocalStore, Owner, Remote, WritableStore};
use crate::output::Failure;
use clap::parser::ValueSource;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_engine::model::{BuiltinEmbedder, Embed, Embedder};
use everturn_engine::{Everturn, Options};
use everturn_server::settings::{Flag, OpenEmbedder, Origin, Settings, read_file};
use everturn_server::socket::{RequestedModel, Tenure};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time that a command that needs the file itself waits for another one that is writing.
const PATIENCE: Duration = Duration::from_secs(3);

/// The tenant's client, for reading beside a writer.
pub fn reading(args: &Args) -> Result<Client, Failure> {
    let client = with(args, Options { read_only: true, ..options(args)? })?;
    if let Client::Local(local) = &client
        && local.store.is_sweep_due()?
    {
        sweep(args);
    }
    Ok(client)
}

/// Deletes what has expired, by opening the store for writing: otherwise nothing would, if all commands only read. If
/// another process writes to the store, it sweeps itself; a store that cannot be written is left as it is.
fn sweep(args: &Args) {
    let _ = store_url(args, false).and_then(|url| {
        let options = Options { create: false, patience: Duration::ZERO, ..options(args)? };
        Everturn::open_with(&url, options)
    });
}

/// The tenant's client, for writing to an existing store: a mistyped path does not create a new one.
pub fn writing(args: &Args) -> Result<Client, Failure> {
    with(args, Options { create: false, ..options(args)? })
}

/// The tenant's client, for writing to a store that is created if it does not exist.
pub fn making(args: &Args) -> Result<Client, Failure> {
    with(args, options(args)?)
}

/// As [`writing`], for requests that belong together, such as those of a stream: an owner that ends between them
/// would interrupt it.
pub fn streaming(args: &Args) -> Result<Client, Failure> {
    let options = Options { create: false, ..options(args)? };
    match server(args)? {
        Some(url) => remote(args, url),
        None => reach(args, LocalStore { alone: true, ..local(args, options)? }),
    }
}

/// The tenant's client, for a bulk write that is indexed at once, and embedded if that takes no model server. `once`:
/// its input cannot be read again.
pub fn importing(args: &Args, once: bool) -> Result<Client, Failure> {
    if let Some(url) = server(args)? {
        return remote(args, url);
    }
    let embedder = embedder(args)?.filter(|embedder| embedder.at_once().is_some());
    let options = Options { embedder, ..options(args)? };
    reach(args, LocalStore { alone: once, ..local(args, options)? })
}

/// Every setting: from flags, else the environment, else the file, else the default. The same for every command.
pub fn settings(args: &Args, more: Vec<Flag>) -> Result<Settings, Error> {
    let file = read_file(args.config.as_deref(), dirs::config_dir().as_deref())?;
    let typed = |source| source == Some(ValueSource::CommandLine);
    let mut flags = more;
    if typed(args.sources.store) {
        flags.push(Flag { key: "store", flag: "--store", value: args.store.clone() });
    }
    if let Some(mirror) = args.mirror.as_ref().filter(|_| typed(args.sources.mirror)) {
        flags.push(Flag { key: "mirror", flag: "--mirror", value: mirror.display().to_string() });
    }
    Settings::gather(file, &environment, flags)
}

pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Options of a local store. A server has its own.
pub fn options(args: &Args) -> Result<Options, Error> {
    if server(args)?.is_some() {
        return Ok(Options::default());
    }
    settings(args, Vec::new())?.options(&environment)
}

/// The embedding model for a command that writes. `None` if none is configured and the store has vectors of another
/// model than the built-in one: they would be dropped, and may have been costly.
pub fn embedder(args: &Args) -> Result<Option<Arc<dyn Embed>>, Error> {
    if server(args)?.is_some() {
        return Ok(None);
    }
    let settings = settings(args, Vec::new())?;
    if settings.origin("recall.embedder") == Some(&Origin::Default) {
        let used = || store(args, Options { read_only: true, ..Options::default() })?.vector_models();
        // A store that does not exist yet has no embeddings.
        if used().is_ok_and(|models| !models.iter().all(|model| BuiltinEmbedder::made(model))) {
            return Ok(None);
        }
    }
    settings.embedder(&environment, Embedder::open)
}

/// The tenant's client, for recall beside a writer, or to make its index.
pub fn recalling(args: &Args, flags: Vec<Flag>, index: bool) -> Result<Client, Failure> {
    if server(args)?.is_some() {
        if !flags.is_empty() {
            let text = "a server uses its own models (recall.embedder, recall.rerank); leave --embedder and --rerank out";
            return Err(Error::invalid("url.embedder", text).into());
        }
        return with(args, Options::default());
    }
    let settings = settings(args, flags)?;
    // A person waits for it.
    let with_all_cores: OpenEmbedder =
        |embedder| embedder.open_with(std::thread::available_parallelism().map_or(1, usize::from));
    // The index of a file is written beside its owner; that of a database is in it.
    let in_database = settings.text("store").is_some_and(|url| url.starts_with("postgres"));
    let options = Options {
        read_only: !(index && in_database),
        embedder: settings.embedder(&environment, with_all_cores)?,
        reranker: settings.reranker(&environment, with_all_cores)?,
        ..settings.options(&environment)?
    };
    with(args, options)
}

/// The tenant's client, for a process that runs for long: while it owns the store, others use it through its socket.
pub fn sharing(args: &Args) -> Result<Client, Failure> {
    match server(args)? {
        Some(url) => remote(args, url),
        None => reach(args, shared(args, &settings(args, Vec::new())?)?),
    }
}

/// The local store of such a process, with the models that requests of others need.
pub fn shared(args: &Args, settings: &Settings) -> Result<LocalStore, Error> {
    let local = local(args, with_models(args, settings)?)?;
    Ok(LocalStore { shared: Some(settings.config(&environment)?), tenure: Tenure::Lasting, ..local })
}

/// Options of a local store, with the embedding model and the reranker.
pub fn with_models(args: &Args, settings: &Settings) -> Result<Options, Error> {
    Ok(Options {
        embedder: embedder(args)?,
        reranker: settings.reranker(&environment, Embedder::open)?,
        ..settings.options(&environment)?
    })
}

/// The tenant's client; the options are for a local store.
pub fn with(args: &Args, options: Options) -> Result<Client, Failure> {
    asking(args, options, None)
}

/// As [`with`], for operations that ask this model; a server has its own.
pub fn asking(args: &Args, options: Options, model: Option<RequestedModel>) -> Result<Client, Failure> {
    if let Some(url) = server(args)? {
        return remote(args, url);
    }
    if options.read_only {
        return Ok(Client::Local(Box::new(Local::new(store(args, options)?, &args.tenant, None, model)?)));
    }
    // An owner that is passing may have no embedding model, and may end before a model has answered.
    let alone = options.embedder.is_some() || model.is_some();
    reach(args, LocalStore { alone, model, ..local(args, options)? })
}

fn remote(args: &Args, url: &str) -> Result<Client, Failure> {
    Ok(Client::Remote(Box::new(Remote::new(url, key(args)?.as_deref())?)))
}

fn reach(args: &Args, mut local: LocalStore) -> Result<Client, Failure> {
    // The owner has its own mirror.
    let is_mirrored = args.sources.mirror == Some(ValueSource::CommandLine);
    local.alone |= is_mirrored;
    match local.open()? {
        WritableStore::Here(store) => Ok(local.here(*store)?),
        WritableStore::Through(_, owned) if is_mirrored => Err(owned.0.into()),
        WritableStore::Through(remote, _) => Ok(Client::Owner(Box::new(Owner::new(local, remote)))),
    }
}

/// The local store, which another process may own.
pub fn local(args: &Args, options: Options) -> Result<LocalStore, Error> {
    let settings = settings(args, Vec::new())?;
    let url = url(settings.text("store").unwrap_or("sqlite:"), options.create)?;
    // Settings of a server that are wrong are no reason to refuse a command.
    let shared = settings.config(&environment).ok();
    let tenure = Tenure::Passing;
    Ok(LocalStore { url, tenant: args.tenant.clone(), options, shared, tenure, alone: false, model: None })
}

/// The error for a command that cannot go through the owner of a file, with its own advice.
pub fn owned(error: Error, advice: &str) -> Error {
    match error.is(code::STORE_OWNED) {
        true => {
            let owned = error.text().split(';').next().unwrap_or_default();
            Error::busy(code::STORE_OWNED, format!("{owned}, and {advice}"))
        }
        false => error,
    }
}

/// The whole local store.
pub fn store(args: &Args, options: Options) -> Result<Everturn, Error> {
    let make = options.create && !options.read_only;
    Everturn::open_with(&store_url(args, make)?, Options { patience: PATIENCE, ..options })
}

/// The URL of the local store; `make` creates the data folder if the store is there.
pub fn store_url(args: &Args, make: bool) -> Result<String, Error> {
    url(settings(args, Vec::new())?.text("store").unwrap_or("sqlite:"), make)
}

/// The URL of the server to use; `None` for a local store. A flag takes precedence over the environment.
pub fn server(args: &Args) -> Result<Option<&str>, Error> {
    let typed = |source| source == Some(ValueSource::CommandLine);
    let sources = &args.sources;
    let Some(url) = args.url.as_deref() else { return Ok(None) };
    let both = match (typed(sources.store), typed(sources.url)) {
        (true, false) => return Ok(None),
        (true, true) => Some("--store and --url are given together; leave one out"),
        (false, false) if sources.store == Some(ValueSource::EnvVariable) => {
            Some("EVERTURN_STORE and EVERTURN_URL are both set; unset one, or pass --store or --url")
        }
        _ => None,
    };
    let wrong = |code, text: &str| Err(Error::invalid(code, text));
    if let Some(text) = both {
        return wrong("url.and_store", text);
    }
    if typed(sources.tenant) {
        return wrong("url.tenant", "the key determines the tenant on a server; leave --tenant out");
    }
    if typed(sources.mirror) {
        return wrong(
            "url.mirror",
            "a server keeps its own mirror: `everturn serve --mirror`; leave --mirror out",
        );
    }
    Ok(Some(url))
}

/// Refuses `--tenant` for a verb that covers all tenants: it would be ignored.
pub fn all_tenants(args: &Args, verb: &str) -> Result<(), Error> {
    if args.sources.tenant == Some(ValueSource::CommandLine) {
        let text = format!("{verb} covers the whole store, all tenants; leave --tenant out");
        return Err(Error::invalid("tenant.all", text));
    }
    Ok(())
}

/// The key of the server. It is not taken from the command line, where every local user could read it.
pub fn key(args: &Args) -> Result<Option<String>, Error> {
    let key = match &args.key_file {
        Some(path) => Some(read(path)?),
        None => std::env::var("EVERTURN_KEY").ok(),
    };
    Ok(key.map(|key| key.trim().to_string()).filter(|key| !key.is_empty()))
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| {
        Error::invalid("key.cannot_read", format!("cannot read the key in {}: {e}", path.display()))
    })
}

/// The URL with a path in it: `sqlite:` alone means the file in the data folder.
pub fn url(store: &str, make: bool) -> Result<String, Error> {
    if store != "sqlite:" && store != "sqlite" {
        return Ok(store.to_string());
    }
    let data = dirs::data_dir().ok_or_else(|| {
        Error::invalid(
            "store.no_data_folder",
            "there is no data folder on this system; give a path with --store sqlite:PATH",
        )
    })?;
    let folder = data.join("everturn");
    if make {
        let mut maker = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut maker, 0o700);
        maker.recursive(true).create(&folder).map_err(|e| {
            Error::invalid(
                "store.cannot_open",
                format!("cannot create {}: {e}; name another place with --store", folder.display()),
            )
        })?;
    }
    Ok(format!("sqlite:{}", folder.join("everturn.db").display()))
}
