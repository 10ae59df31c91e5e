//! `everturn export`

use crate::args::{Args, Export, Format};
use crate::open;
use crate::output::{self, Failure};
use crate::store::Store;
use everturn_core::Error;
use everturn_core::id::ConversationId;
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub fn run(args: &Args, verb: &Export) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let id = store.resolve(&verb.conversation)?;
    match &verb.output {
        None => write(&*store, id, verb.format, &mut BufWriter::new(io::stdout().lock())),
        Some(path) => into_file(&*store, id, verb, path),
    }
}

fn write(store: &dyn Store, id: ConversationId, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let bar = output::progress(store.get(id)?.head.seq, "events");
    store.export(id, format, out, &mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    if format == Format::Transcript {
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

/// Written beside and moved into place when whole, so that nothing half-written is ever taken for an export.
fn into_file(store: &dyn Store, id: ConversationId, verb: &Export, path: &Path) -> Result<(), Failure> {
    let cannot = |e: &dyn std::fmt::Display| {
        Error::invalid("file.cannot_write", format!("cannot write {}: {e}", path.display()))
    };
    if path.exists() && !verb.force {
        return Err(Error::conflict(
            "file.exists",
            format!("{} exists; --force replaces it", path.display()),
        )
        .into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|e| cannot(&e))?;
    write(store, id, verb.format, &mut BufWriter::new(file.as_file_mut()))?;
    file.as_file().sync_all().map_err(|e| cannot(&e))?;
    match verb.force {
        true => drop(file.persist(path).map_err(|e| cannot(&e))?),
        false => drop(file.persist_noclobber(path).map_err(|e| cannot(&e))?),
    }
    eprintln!("wrote {}", path.display());
    Ok(())
}
