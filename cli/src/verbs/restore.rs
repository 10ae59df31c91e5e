//! `everturn restore`

use super::backup::beside_the_store;
use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::Everturn;
use everturn_engine::backup::{Restored, archives_of};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn restore /var/backups/everturn --store sqlite:restored.db\n  \
    everturn restore /var/backups/everturn --through 12 --store sqlite:then.db\n  \
    everturn restore monday.jsonl.zst tuesday.jsonl.zst --store sqlite:restored.db\n  \
    ssh elsewhere cat everturn.jsonl.zst | everturn restore - --store sqlite:restored.db\n\n\
    The store must not exist yet; it appears when all of it is there and checked. See docs/backup.md.")]
pub struct Restore {
    /// A folder of backups, or archives in their order, the full one first; - is standard input
    #[arg(value_name = "BACKUP", required = true)]
    backup: Vec<String>,
    /// Of a folder: up to this archive, by its number or its name
    #[arg(long, value_name = "ARCHIVE")]
    through: Option<String>,
}

pub fn run(args: &Args, verb: &Restore) -> Result<(), Failure> {
    beside_the_store(args, "restore")?;
    let url = open::url(&args.store, true)?;
    let found = Archives::find(&verb.backup, verb.through.as_deref())?;
    let bar = output::progress(0, "events");
    let restored = Everturn::restore(&url, &found.paths, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let restored = restored.map_err(|error| found.without_copy(error))?;
    if args.json {
        return output::json(&Done { store: &url, restored: &restored });
    }
    output::text(format!("restored {} to {url}", summary(&restored)))
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Done<'a> {
    store: &'a str,
    #[serde(flatten)]
    restored: &'a Restored,
}

/// What is in archives, for people.
pub fn summary(restored: &Restored) -> String {
    let counts = &restored.counts;
    let mut parts = vec![
        show::count(counts.conversations, "conversation"),
        show::count(counts.events, "event"),
        show::count(counts.assets, "asset"),
        show::count(counts.keys, "key"),
    ];
    if counts.erased > 0 {
        parts.push(format!("{} erased", counts.erased));
    }
    if counts.deleted > 0 {
        parts.push(format!("{} deleted", counts.deleted));
    }
    if counts.loose > 0 {
        parts.push(format!(
            "without {} behind damage, which only the archive has",
            show::count(counts.loose, "event")
        ));
    }
    format!("{} from {}", parts.join(", "), show::count(restored.archives as u64, "archive"))
}

/// Archives, and the copy of standard input if it is one of them: they are read more than once.
pub struct Archives {
    pub paths: Vec<PathBuf>,
    copy: Option<tempfile::NamedTempFile>,
}

impl Archives {
    pub fn find(names: &[String], through: Option<&str>) -> Result<Archives, Error> {
        let mut found = Archives { paths: Vec::new(), copy: None };
        for name in names {
            if name == "-" {
                let copy = copy_of_input().map_err(|error| {
                    let text =
                        format!("cannot keep standard input in a file: {error}; make room, or set TMPDIR");
                    Error::internal("backup.input", text)
                })?;
                found.paths.push(copy.path().to_path_buf());
                found.copy = Some(copy);
            } else {
                found.paths.extend(archives_of(Path::new(name), through)?);
            }
        }
        Ok(found)
    }

    /// An error about the copy of standard input, without the name of that file, which nobody has heard of.
    pub fn without_copy(&self, error: Error) -> Error {
        let Some(copy) = &self.copy else { return error };
        let name = copy.path().display().to_string();
        error.reworded(|text| text.replace(&name, "standard input"))
    }
}

fn copy_of_input() -> std::io::Result<tempfile::NamedTempFile> {
    let mut copy = tempfile::NamedTempFile::new()?;
    std::io::copy(&mut std::io::stdin().lock(), copy.as_file_mut())?;
    Ok(copy)
}
