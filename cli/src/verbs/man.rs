//! `everturn man`

use crate::args::Args;
use crate::output::{self, Failure};
use clap::{Args as ClapArgs, Command, CommandFactory};
use everturn_core::Error;
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  everturn man | man -l -\n  everturn man ~/.local/share/man/man1     (then: man everturn-recall)"
)]
pub struct Man {
    /// Folder to write the pages of everturn and of every verb to
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub fn run(verb: &Man) -> Result<(), Failure> {
    let Some(folder) = &verb.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command()).render(&mut page)?;
        return output::text(titled(&String::from_utf8_lossy(&page)).trim_end());
    };
    write(folder).map_err(|e| {
        Error::invalid("file.cannot_write", format!("cannot write to {}: {e}", folder.display()))
    })?;
    eprintln!("wrote the manual pages to {}", folder.display());
    Ok(())
}

fn write(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command(), folder)?;
    for entry in std::fs::read_dir(folder)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let name = name.to_string_lossy();
        if name.starts_with("everturn") && name.ends_with(".1") {
            let page = std::fs::read_to_string(&path)?;
            std::fs::write(&path, titled(&page))?;
        }
    }
    Ok(())
}

/// The command with every option as the long help shows it.
fn command() -> Command {
    Args::command().mut_args(|arg| arg.hide_short_help(false))
}

/// A page whose last section has a name that says something.
fn titled(page: &str) -> String {
    page.replace("\n.SH EXTRA\n", "\n.SH EXAMPLES AND NOTES\n")
}
