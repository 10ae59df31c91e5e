//! Folder of the stores: on the disk to measure, removed at the end.

use crate::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

pub struct Scratch {
    folder: TempDir,
    file_system: String,
}

impl Scratch {
    pub fn make(parent: Option<&Path>) -> Result<Scratch> {
        let default = Path::new("target");
        let parent = parent.unwrap_or(if default.is_dir() { default } else { Path::new(".") });
        let folder = tempfile::Builder::new().prefix("everturn-bench-").tempdir_in(parent).map_err(|e| {
            format!("cannot make a folder in {}: {e}; choose another with --dir", parent.display())
        })?;
        let file_system = file_system(folder.path()).unwrap_or_else(|| "unknown".into());
        if ["tmpfs", "ramfs"].contains(&file_system.as_str()) {
            eprintln!(
                "{file_system} is memory: syncs cost nothing here; choose a folder on a disk with --dir"
            );
        }
        Ok(Scratch { folder, file_system })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The URL of a store in SQLite.
    pub fn store(&self, name: &str) -> String {
        format!("sqlite:{}", self.file(name).display())
    }

    /// Facts that the numbers depend on, without naming the machine.
    pub fn facts(&self, quick: bool) -> String {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let memory = memory_gib().map_or(String::new(), |gib| format!("{gib:.0} GiB of memory, "));
        let build = if cfg!(debug_assertions) { "DEBUG build" } else { "release build" };
        let quick = if quick { ", quick" } else { "" };
        format!(
            "{cores} cores ({}), {memory}{} on {}, {build}{quick}",
            std::env::consts::ARCH,
            self.file_system,
            std::env::consts::OS,
        )
    }
}

/// The type of the file system that holds a path, if known.
fn file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (on, kind) = (Path::new(fields.nth(1)?), fields.next()?);
            path.starts_with(on).then(|| (on.components().count(), kind.to_string()))
        })
        // Of several mounted at the same path the last one covers the others.
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, kind)| kind)
}

/// Time that this thread waited for a processor, if known.
pub fn waited_for_cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(stat.split(' ').nth(1)?.parse().ok()?))
}

/// Processor time of all threads of this process.
pub fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call. A process's own clock is always there, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn memory_gib() -> Option<f64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib: f64 = info.lines().next()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0 / 1024.0)
}
