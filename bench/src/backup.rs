//! Backing a store up and restoring it against copying its file.

use crate::corpus::{self, Corpus};
use crate::figures::{Samples, bytes, count, time};
use crate::place::Scratch;
use crate::report::Row;
use crate::{Result, Scale};
use everturn_engine::{Everturn, Options};
use std::fs::{self, File};
use std::time::Instant;

/// Number of rounds: each writes everything three times.
const ROUNDS: usize = 5;

pub fn run(place: &Scratch, scale: Scale) -> Result<Vec<Row>> {
    let turns = scale.long / 10;
    eprintln!("backup: {turns} turns of 1 KiB, {ROUNDS} rounds");
    let filled = corpus::fill(&place.store("backed-up.db"), &Corpus::one(turns, 1024))?;
    let (copy, archive) = (place.file("copy.db"), place.file("archive.zst"));
    let (mut copied, mut backed_up, mut restored) =
        (Samples::default(), Samples::default(), Samples::default());
    let mut size = 0;
    for round in 0..ROUNDS {
        let started = Instant::now();
        fs::copy(filled.path(), &copy)?;
        File::open(&copy)?.sync_all()?;
        copied.push_time(started.elapsed());
        let options = Options { read_only: true, ..Options::default() };
        let store = Everturn::open_with(&filled.url, options)?;
        let started = Instant::now();
        size = store.backup_to_file(&archive, &[], &mut |_, _| {})?.bytes;
        backed_up.push_time(started.elapsed());
        let target = place.file(&format!("restored-{round}.db"));
        let started = Instant::now();
        Everturn::restore(&target.display().to_string(), std::slice::from_ref(&archive), &mut |_, _| {})?;
        restored.push_time(started.elapsed());
    }
    let file = format!("copying the file, {}", bytes(fs::metadata(filled.path())?.len()));
    let row = |what: &str, took: &Samples| {
        Row::new(
            format!("{what}, {} turns of 1 KiB", count(turns as f64)),
            time(took.median()),
            format!("{} {file}", time(copied.median())),
        )
        .ratios(&took.over(&copied))
    };
    Ok(vec![
        row(&format!("a full backup, checked and read again, {}", bytes(size)), &backed_up),
        row("restoring it", &restored),
    ])
}
