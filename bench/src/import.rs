//! Importing a large session file: rate and memory.

use crate::figures::{bytes, count};
use crate::place::Scratch;
use crate::report::Row;
use crate::{Result, corpus, sessions};
use everturn_formats::agents::{self, Opened};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Instant;

const MIB: u64 = 1024 * 1024;
/// The bar in docs/BENCHMARKS.md, in MiB over an idle store.
const MEMORY_MIB_MAX: u64 = 200;

pub fn run(place: &Scratch, quick: bool) -> Result<Vec<Row>> {
    let size = if quick { 64 * MIB } else { 1024 * MIB };
    let mut rows = Vec::new();
    for (agent, write) in [("Claude Code", sessions::claude as Write), ("Codex", sessions::codex as Write)] {
        let file = place.file("session.jsonl");
        eprintln!("import: writing a session of {agent} of {}", bytes(size));
        let lines = write(&file, size)?;
        rows.extend(one(agent, &file, lines, &place.store(&format!("{}.db", &agent[..2])))?);
    }
    Ok(rows)
}

type Write = fn(&Path, u64) -> std::io::Result<u64>;

fn one(agent: &str, file: &Path, lines: u64, store: &str) -> Result<Vec<Row>> {
    let size = file.metadata()?.len();
    let open = || File::open(file).map(|file| BufReader::with_capacity(64 * 1024, file));
    eprintln!("import: reading it");
    let started = Instant::now();
    let Opened::Agent(reader) = agents::open(open()?, None)? else { return Err("not a session".into()) };
    let mut entries = 0_u64;
    for entry in reader {
        entry?;
        entries += 1;
    }
    let read_s = started.elapsed().as_secs_f64();
    eprintln!("import: {entries} entries; taking it over");
    let store = corpus::open(store)?;
    let scope = store.tenant("bench")?;
    let idle = forget_peak().and_then(|()| status("VmRSS"));
    let started = Instant::now();
    let imported = scope.import(open()?, &mut |_| {})?;
    let import_s = started.elapsed().as_secs_f64();
    let peak = status("VmHWM");
    let idle_again = forget_peak().and_then(|()| status("VmRSS"));
    let started = Instant::now();
    let again = scope.import(open()?, &mut |_| {})?;
    let again_s = started.elapsed().as_secs_f64();
    let peak_again = status("VmHWM");
    if (imported.added, again.added) != (entries, 0) {
        return Err(format!("took over {} of {entries} entries, then {}", imported.added, again.added).into());
    }
    let rate = |seconds: f64| format!("{:.0} MB/s", size as f64 / 1e6 / seconds);
    let what = format!("importing a session of {agent} of {}, {} lines", bytes(size), count(lines as f64));
    let reading = format!("{} read only", rate(read_s));
    let memory = |idle: Option<u64>, peak: Option<u64>| match (idle, peak) {
        (Some(idle), Some(peak)) => Some(peak.saturating_sub(idle) / 1024),
        _ => None,
    };
    let row = |name: &str, idle, peak| {
        let Some(mib) = memory(idle, peak) else { return Row::new(name, "not told by the system", "") };
        Row::new(name, format!("{mib} MiB over idle"), "").bar("≤ 200 MiB", mib <= MEMORY_MIB_MAX)
    };
    Ok(vec![
        Row::new(what, rate(import_s), reading.clone()),
        row("its memory", idle, peak),
        Row::new("importing it again", rate(again_s), reading),
        row("its memory", idle_again, peak_again),
    ])
}

/// Resets the peak memory that the system records.
fn forget_peak() -> Option<()> {
    std::fs::write("/proc/self/clear_refs", "5").ok()
}

/// A memory value of this process in KiB, if the system provides it.
fn status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
