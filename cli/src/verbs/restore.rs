//! `everturn restore`

use super::backup::beside_the_store;
use crate::args::Args;
use crate::output::{self, Failure};
use crate::{open, show};
use clap::Args as ClapArgs;
use everturn_core::Error;
use everturn_engine::Everturn;
use everturn_engine::backup::{Restored, UndoneRemovals, archives_of, left_out};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn restore /var/backups/everturn --store sqlite:restored.db\n  \
    everturn restore /var/backups/everturn --through 12 --store sqlite:then.db\n  \
    everturn restore monday.jsonl.zst tuesday.jsonl.zst --store sqlite:restored.db\n  \
    ssh elsewhere cat everturn.jsonl.zst | everturn restore - --store sqlite:restored.db\n\n\
    The store must not exist yet; it appears when all of it is there and checked. With --through it is as it was then: \
    what was erased, deleted or revoked since is there again. See docs/backup.md.")]
pub struct Restore {
    /// A folder of backups, or archives in order, the full one first; - is standard input
    #[arg(value_name = "BACKUP", required = true)]
    backup: Vec<String>,
    /// For a folder: up to this archive, by its number or its name
    #[arg(long, value_name = "ARCHIVE")]
    through: Option<String>,
}

pub fn run(args: &Args, verb: &Restore) -> Result<(), Failure> {
    beside_the_store(args, "restore")?;
    let url = open::store_url(args, true)?;
    let found = Archives::find(&verb.backup, verb.through.as_deref())?;
    if let Some(absent) = found.paths.iter().find(|path| !path.exists()) {
        let text =
            format!("there is no file {}; name an archive, or the folder of a backup", absent.display());
        return Err(Error::not_found("backup.absent", text).into());
    }
    let bar = output::progress(0, "events");
    let restored = Everturn::restore(&url, &found.paths, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let restored = restored.map_err(|error| found.without_copy(error))?;
    // With --through there is one name, and it is a folder.
    let left_out = verb.through.as_ref().map(|_| left_out(Path::new(&verb.backup[0]), &found.paths));
    if args.json {
        let left_out = left_out.and_then(Result::ok);
        return output::json(&RestoreReport { store: &url, restored: &restored, left_out });
    }
    output::text(format!("restored {} to {url}", summary(&restored)))?;
    if let Some(not_applied) = left_out.and_then(not_applied) {
        eprintln!(
            "note: not applied, since only later archives have it: {not_applied}\n\
             erase, delete and revoke again before anybody uses this store"
        );
    }
    Ok(())
}

/// Restored content that later archives removed; `None` if there is none.
fn not_applied(left_out: Result<UndoneRemovals, Error>) -> Option<String> {
    let left_out = match left_out {
        Ok(left_out) => left_out,
        Err(error) => {
            let text =
                format!("what was erased, deleted or revoked, which cannot be counted ({})", error.text());
            return Some(text);
        }
    };
    let counts =
        [(left_out.erased, "erasure"), (left_out.deleted, "deletion"), (left_out.revoked, "revoked key")];
    let counts = counts.iter().filter(|(number, _)| *number > 0);
    let counts: Vec<String> = counts.map(|(number, noun)| show::count(*number, noun)).collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

#[derive(Serialize)]
struct RestoreReport<'a> {
    store: &'a str,
    #[serde(flatten)]
    restored: &'a Restored,
    /// With `--through`, unless later archives cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<UndoneRemovals>,
}

/// The content of archives, for people.
pub fn summary(restored: &Restored) -> String {
    let counts = &restored.counts;
    let erased = if counts.erased > 0 { format!(" ({} erased)", counts.erased) } else { String::new() };
    let mut parts = vec![
        show::count(counts.conversations, "conversation"),
        show::count(counts.events, "event") + erased.as_str(),
        show::count(counts.assets, "asset"),
        show::count(counts.keys, "key"),
    ];
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

    /// An error about the copy of standard input, without the name of that temporary file.
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
