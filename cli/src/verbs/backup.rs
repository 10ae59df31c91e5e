//! `everturn backup`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::Options;
use everturn_engine::backup::{BackedUp, FolderOptions, archives_of, contents};
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn backup /var/backups/everturn             (a folder: the first time all of it, then what is new)\n  \
    everturn backup /var/backups/everturn --full --keep 4\n  \
    everturn backup monday.jsonl.zst                  (one file, all of it)\n  \
    everturn backup tuesday.jsonl.zst --after monday.jsonl.zst\n  \
    everturn backup - | ssh elsewhere 'cat > everturn.jsonl.zst'\n\n\
    Everything of every tenant, also while a server has the store open. `everturn restore` brings it back. A name that \
    ends in .zst is a file; one that ends in / or has no ending is a folder. See docs/backup.md, also for a schedule.")]
pub struct Backup {
    /// A folder, a file (.zst), or - for standard output
    #[arg(value_name = "TARGET")]
    target: String,
    /// In a folder: start over with a full backup
    #[arg(long)]
    full: bool,
    /// In a folder: keep this many full backups with their increments, and remove older ones
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    keep: Option<u16>,
    /// Only what is new since these archives: the full one first, or their folder
    #[arg(long, value_name = "PATH", conflicts_with_all = ["full", "keep"])]
    after: Vec<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

pub fn run(args: &Args, verb: &Backup) -> Result<(), Failure> {
    beside_the_store(args, "backup")?;
    let store = open::store(args, Options { read_only: true, ..Options::default() })?;
    let bar = output::progress(0, "events");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let mut after = Vec::new();
    for path in &verb.after {
        after.extend(archives_of(path, None)?);
    }
    let path = Path::new(&verb.target);
    let done = if verb.target == "-" {
        in_folder_only(verb)?;
        if stdout().is_terminal() {
            let text =
                "a backup cannot be written to a terminal; redirect it to a file or a pipe, or name a folder";
            return Err(Error::invalid("backup.terminal", text).into());
        }
        store.backup(stdout().lock(), &contents(&after)?, &mut progress)?
    } else if is_file(&verb.target)? {
        in_folder_only(verb)?;
        if path.exists() && !verb.force {
            let text = format!("{} exists; --force replaces it", path.display());
            return Err(Error::conflict("file.exists", text).into());
        }
        store.backup_to_file(path, &after, &mut progress)?
    } else {
        if !after.is_empty() || verb.force {
            let text =
                "a folder of backups needs no --after and no --force; leave them out, they are for files";
            return Err(Error::invalid("backup.folder", text).into());
        }
        let options = FolderOptions { full: verb.full, keep: verb.keep.map(usize::from) };
        store.backup_to_folder(path, options, &mut progress)?
    };
    bar.finish_and_clear();
    tell(args, verb, &done)
}

/// Reports what was written: on standard error if standard output is the backup itself.
fn tell(args: &Args, verb: &Backup, done: &BackedUp) -> Result<(), Failure> {
    let streamed = verb.target == "-";
    let text = match args.json {
        true => serde_json::to_string(done).map_err(|error| Error::internal("output", error.to_string()))?,
        false => summary(done),
    };
    if streamed {
        eprintln!("{text}")
    } else {
        output::text(text)?
    }
    if !args.json {
        done.problems.iter().for_each(|problem| eprintln!("not backed up completely: {problem}"));
    }
    for path in done.removed.iter().filter(|_| !args.json) {
        output::text(format!("removed {}", path.display()))?;
    }
    if let Some(why) = done.kept_because.as_ref().filter(|_| !args.json) {
        eprintln!("older archives were kept: {why}");
    }
    if done.problems.is_empty() {
        return if done.kept_because.is_none() { Ok(()) } else { Err(Failure::Reported) };
    }
    if !args.json {
        eprintln!(
            "the store is damaged; the backup has everything that can be read, and `everturn doctor` says more"
        );
    }
    Err(Failure::Reported)
}

fn summary(done: &BackedUp) -> String {
    let what = if done.follows.is_none() { "full backup" } else { "increment" };
    let mut parts = vec![
        show::count(done.counts.conversations, "conversation"),
        show::count(done.counts.events, "event"),
        show::count(done.counts.assets, "asset"),
    ];
    if done.counts.erased > 0 {
        parts.push(format!("{} erased", done.counts.erased));
    }
    if done.counts.deleted > 0 {
        parts.push(format!("{} deleted", done.counts.deleted));
    }
    if done.counts.loose > 0 {
        parts.push(format!("{} behind damage", show::count(done.counts.loose, "event")));
    }
    let path = done.path.as_ref().map(|path| format!("{}  ", path.display())).unwrap_or_default();
    format!("{path}{what}: {}, {}, id {}", parts.join(", "), show::count(done.bytes, "byte"), done.id)
}

fn in_folder_only(verb: &Backup) -> Result<(), Error> {
    if verb.full || verb.keep.is_some() {
        let text = "--full and --keep are for a folder; a file or a stream is full unless --after is given";
        return Err(Error::invalid("backup.folder", text));
    }
    Ok(())
}

/// Whether a target is a file: by its type if it exists, else by its name.
fn is_file(target: &str) -> Result<bool, Error> {
    let path = Path::new(target);
    if target.ends_with('/') || path.is_dir() {
        return Ok(false);
    }
    let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
    match ending {
        _ if path.exists() => Ok(true),
        None => Ok(false),
        Some(ending) if ending == "zst" => Ok(true),
        Some(_) => {
            let text = format!(
                "{target} may be a file or a folder; end it in .zst for one file, or in / for a folder"
            );
            Err(Error::invalid("backup.target", text))
        }
    }
}

/// Refuses `--url`, because each key of a server belongs to one tenant, and `--tenant`: a backup covers all tenants.
pub fn beside_the_store(args: &Args, verb: &str) -> Result<(), Error> {
    if open::server(args)?.is_some() {
        let text = format!(
            "{verb} covers the whole store, all tenants: run it on the machine that has the store, also while its server runs, with --store and without --url"
        );
        return Err(Error::invalid("url.backup", text));
    }
    open::all_tenants(args, verb)
}
