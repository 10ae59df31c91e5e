//! `everturn man`

use crate::args::Args;
use crate::output::{self, Failure};
use clap::{Args as ClapArgs, CommandFactory};
use everturn_core::Error;
use std::path::PathBuf;

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
        clap_mangen::Man::new(Args::command()).render(&mut page)?;
        return output::text(String::from_utf8_lossy(&page).trim_end());
    };
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Args::command(), folder));
    written.map_err(|e| {
        Error::invalid("file.cannot_write", format!("cannot write to {}: {e}", folder.display()))
    })?;
    eprintln!("wrote the manual pages to {}", folder.display());
    Ok(())
}
