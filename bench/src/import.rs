//! Importing a large session file: how fast, and in how much memory.

use crate::figures::{bytes, count};
use crate::place::Place;
use crate::report::Row;
use crate::{Result, corpus};
use everturn_formats::agents::{self, Opened};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

const MIB: u64 = 1024 * 1024;
/// What spec 7 allows, in MiB over an idle store.
const MEMORY_MIB_MAX: u64 = 200;

pub fn run(place: &Place, quick: bool) -> Result<Vec<Row>> {
    let size = if quick { 64 * MIB } else { 1024 * MIB };
    let file = place.file("session.jsonl");
    eprintln!("import: writing a session of {}", bytes(size));
    let lines = write(&file, size)?;
    let open = || File::open(&file).map(|file| BufReader::with_capacity(64 * 1024, file));
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
    let store = corpus::open(&place.file("import.db"))?;
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
    let what = format!("importing a session of {}, {} lines", bytes(size), count(lines as f64));
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

/// A session of Claude Code with lines as they come: short ones, long results, thinking, edits, notes of the program.
fn write(path: &Path, size: u64) -> Result<u64> {
    let mut out = BufWriter::new(File::create(path)?);
    let (mut written, mut line) = (0, 0_u64);
    let mut parent = String::from("null");
    while written < size {
        let uuid = format!("{line:08x}-1111-4222-8333-444455556666");
        let long =
            "let answer = 42; // and what came of it\\n".repeat([1, 4, 60, 12, 200][line as usize % 5]);
        let frame = format!(
            r#""parentUuid":{parent},"isSidechain":false,"userType":"external","cwd":"/home/ana/work/project","sessionId":"bench","version":"2.1.80","gitBranch":"main","uuid":"{uuid}","timestamp":"2026-01-01T{:02}:{:02}:{:02}.000Z""#,
            line / 3600 % 24,
            line / 60 % 60,
            line % 60,
        );
        let message = line / 5;
        let answer = |block: String| {
            format!(
                r#"{{{frame},"type":"assistant","requestId":"req_{message}","message":{{"id":"msg_{message}","type":"message","role":"assistant","model":"claude","content":[{block}],"stop_reason":null,"usage":{{"input_tokens":3,"cache_read_input_tokens":12000,"output_tokens":{}}}}}}}"#,
                line % 5
            )
        };
        let text = match line % 5 {
            0 => format!(
                r#"{{{frame},"type":"user","message":{{"role":"user","content":"Step {line}: {long}"}}}}"#
            ),
            1 => answer(format!(r#"{{"type":"thinking","thinking":"{long}","signature":"c2lnbmF0dXJl"}}"#)),
            2 => answer(format!(
                r#"{{"type":"tool_use","id":"toolu_{line}","name":"Write","input":{{"text":"{long}"}}}}"#
            )),
            3 => format!(
                r#"{{{frame},"type":"user","message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"toolu_{}","content":"{long}"}}]}},"toolUseResult":{{"stdout":"ok"}}}}"#,
                line - 1
            ),
            _ => format!(
                r#"{{{frame},"type":"system","subtype":"turn_duration","durationMs":{line},"content":"{long}"}}"#
            ),
        };
        writeln!(out, "{text}")?;
        written += text.len() as u64 + 1;
        parent = format!("\"{uuid}\"");
        line += 1;
    }
    out.flush()?;
    Ok(line)
}

/// From here on the system notes the largest memory anew.
fn forget_peak() -> Option<()> {
    std::fs::write("/proc/self/clear_refs", "5").ok()
}

/// A number of this process in KiB, where the system tells.
fn status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
