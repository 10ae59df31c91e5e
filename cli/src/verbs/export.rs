//! `everturn export`

use crate::args::{Args, Export, Format};
use crate::open;
use crate::output::{self, Failure};
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_engine::Scope;
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub fn run(args: &Args, verb: &Export) -> Result<(), Failure> {
    let scope = open::reading(args)?;
    let id = scope.resolve(&verb.conversation)?;
    match &verb.output {
        None => write(&scope, id, verb.format, &mut BufWriter::new(io::stdout().lock())),
        Some(path) => into_file(&scope, id, verb, path),
    }
}

fn write(scope: &Scope, id: ConversationId, format: Format, out: &mut impl Write) -> Result<(), Failure> {
    match format {
        Format::Jsonl => {
            let bar = output::progress(scope.get(id)?.head.seq, "events");
            scope.export_jsonl(id, &mut *out, &mut |done| bar.set_position(done))?;
            bar.finish_and_clear();
        }
        Format::Transcript => writeln!(out, "{}", scope.transcript(id)?)?,
    }
    Ok(out.flush()?)
}

/// Written beside and moved into place when whole, so that nothing half-written is ever taken for an export.
fn into_file(scope: &Scope, id: ConversationId, verb: &Export, path: &Path) -> Result<(), Failure> {
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
    write(scope, id, verb.format, &mut BufWriter::new(file.as_file_mut()))?;
    file.as_file().sync_all().map_err(|e| cannot(&e))?;
    match verb.force {
        true => drop(file.persist(path).map_err(|e| cannot(&e))?),
        false => drop(file.persist_noclobber(path).map_err(|e| cannot(&e))?),
    }
    eprintln!("wrote {}", path.display());
    Ok(())
}
