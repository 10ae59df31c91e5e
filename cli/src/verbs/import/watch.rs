//! Following files while agents write them.
//!
//! A changed file is imported again as soon as it has not been written for a moment, or when it has waited long
//! enough: importing again adds only what is new. The store is open only meanwhile, so that others can write to
//! it.

use super::find::{find_that, in_time, is_readable, is_standard_input, usual};
use super::{Import, joined, one};
use crate::args::Args;
use crate::open;
use crate::output::{self, Failure};
use everturn_core::Error;
use indicatif::ProgressBar;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

/// Interval at which files are checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Interval at which folders are searched for new files.
const FIND_EVERY: Duration = Duration::from_secs(1);
/// Maximum time that a change waits while more is written.
const WAIT_MAX: Duration = Duration::from_millis(800);
/// Pause after a failure of a file or of the store.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Pause of a file after an import, as a multiple of the import's duration.
const REST: u32 = 4;

/// State of a watched file.
#[derive(Default)]
struct Watched {
    /// Size and time of the last import.
    imported: Option<(u64, Option<SystemTime>)>,
    /// Size and time of the last check.
    seen: Option<(u64, Option<SystemTime>)>,
    /// Time since which it differs from the last import.
    changed: Option<Instant>,
    /// Size and time of the last reported failure.
    failed: Option<(u64, Option<SystemTime>)>,
    rests_until: Option<Instant>,
    /// Files that its session began in, in their order: they are read before it.
    before: Vec<PathBuf>,
}

impl Watched {
    /// Whether it is time to import it.
    fn is_due(&mut self, now: Instant, looked: (u64, Option<SystemTime>)) -> bool {
        let still = self.seen == Some(looked);
        self.seen = Some(looked);
        if self.imported == Some(looked) {
            self.changed = None;
            return false;
        }
        let first = self.imported.is_none();
        let since = *self.changed.get_or_insert(now);
        let rested = self.rests_until.is_none_or(|until| now >= until);
        rested && (first || still || now.duration_since(since) >= WAIT_MAX)
    }
}

pub fn run(args: &Args, verb: &Import) -> Result<(), Failure> {
    if verb.paths.iter().any(|path| is_standard_input(path)) {
        let text = "standard input cannot be watched; name files or folders";
        return Err(Error::invalid("import.watch_stdin", text).into());
    }
    if let Some(path) = verb.paths.iter().find(|path| !path.exists()) {
        let text = format!("{} does not exist; name files or folders that do", path.display());
        return Err(Error::not_found("import.no_such_path", text).into());
    }
    let places = if verb.paths.is_empty() { usual()? } else { verb.paths.clone() };
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    eprintln!("watching {}; Ctrl-C stops", places.join(", "));
    let stopping = Arc::new(AtomicBool::new(false));
    let woken = stop_at_a_signal(stopping.clone())?;
    let mut files: HashMap<PathBuf, Watched> = HashMap::new();
    let mut order: Vec<PathBuf> = Vec::new();
    let mut others: HashMap<PathBuf, u64> = HashMap::new();
    let mut found_at: Option<Instant> = None;
    while !stopping.load(Ordering::SeqCst) {
        let now = Instant::now();
        if found_at.is_none_or(|at| now.duration_since(at) >= FIND_EVERY) {
            found_at = Some(now);
            // Checked once, and again when they have grown: there may be thousands.
            let mut so = |path: &Path, bytes: u64| {
                let known = files.contains_key(path);
                known || (others.insert(path.to_path_buf(), bytes) != Some(bytes) && is_readable(path))
            };
            for file in find_that(&verb.paths, &mut so)?.files {
                files.entry(file.path.clone()).or_insert_with(|| {
                    order.push(file.path);
                    Watched::default()
                });
            }
        }
        let mut due = Vec::new();
        for path in &order {
            let Ok(data) = path.metadata() else { continue };
            let looked = (data.len(), data.modified().ok());
            if files.get_mut(path).is_some_and(|file| file.is_due(now, looked)) {
                due.push((path.clone(), looked));
            }
        }
        in_time(&mut due, |(path, _)| path);
        if !due.is_empty() {
            find_beginnings(&due, &mut files);
            take(args, &due, &mut files, &stopping)?;
        }
        // A signal ends this wait at once.
        let _ = woken.recv_timeout(LOOK_EVERY);
    }
    Ok(())
}

type FileStamp = (u64, Option<SystemTime>);

/// Finds the files that new files continue, in the same folder.
fn find_beginnings(due: &[(PathBuf, FileStamp)], files: &mut HashMap<PathBuf, Watched>) {
    let is_new = |path: &&Path| files.get(*path).is_some_and(|file| file.imported.is_none());
    let new: Vec<&Path> = due.iter().map(|(path, _)| path.as_path()).filter(is_new).collect();
    let folders: HashSet<Option<&Path>> = new.iter().map(|path| path.parent()).collect();
    let among: Vec<PathBuf> = files.keys().filter(|path| folders.contains(&path.parent())).cloned().collect();
    let paths: Vec<&Path> = among.iter().map(PathBuf::as_path).collect();
    let found = joined::before(&new, &paths);
    // In order of time, so that the beginnings of a beginning are known.
    for (at, path) in new.iter().enumerate() {
        let Some(beginning) = found.get(&at).map(|at| &among[*at]) else { continue };
        let Some(earlier) = files.get(beginning).map(|file| &file.before) else { continue };
        // Files that continue each other are each read alone.
        if earlier.iter().any(|earlier| earlier == path) {
            continue;
        }
        let first = earlier.first().unwrap_or(beginning).clone();
        // Also others that continue the same file: two that continue the same message diverge.
        let goes_on = |file: &Watched| file.before.first() == Some(&first);
        let others = files.iter().filter(|(other, file)| other.as_path() != *path && goes_on(file));
        let mut others: Vec<PathBuf> = others.map(|(other, _)| other.clone()).collect();
        others.sort();
        in_time(&mut others, |path| path);
        if let Some(file) = files.get_mut(*path) {
            file.before = std::iter::once(first).chain(others).collect();
        }
    }
}

fn take(
    args: &Args,
    due: &[(PathBuf, FileStamp)],
    files: &mut HashMap<PathBuf, Watched>,
    stopping: &AtomicBool,
) -> Result<(), Failure> {
    let store = match open::importing(args, false) {
        Ok(store) => store,
        // Another process is writing to it.
        Err(Failure::Error(Error::Busy(_))) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    for (path, looked) in due {
        if stopping.load(Ordering::SeqCst) {
            break;
        }
        let start = Instant::now();
        let Some(file) = files.get_mut(path) else { continue };
        let paths: Vec<PathBuf> = file.before.iter().chain([path]).cloned().collect();
        let report = one(&store, &paths, true, &ProgressBar::hidden());
        file.changed = None;
        let news = match &report.imported {
            Some(imported) => {
                file.imported = Some(*looked);
                file.rests_until = Some(Instant::now() + start.elapsed() * REST);
                imported.added > 0 || report.attached > 0
            }
            // Reported once: a session that continues after it was deleted is expected.
            None if report.left_out.is_some() => {
                file.imported = Some(*looked);
                file.failed.replace(*looked).is_none()
            }
            // The server may be unreachable, and the file fine.
            None => {
                file.rests_until = Some(Instant::now() + REST_AFTER_FAILURE);
                file.failed.replace(*looked) != Some(*looked)
            }
        };
        if news && args.json {
            output::json(&report)?;
        } else if news {
            output::text(report.text())?;
        }
    }
    Ok(())
}

/// Records the first signal, and wakes the waiting thread. A second one exits at once: nothing is lost by it.
fn stop_at_a_signal(stopping: Arc<AtomicBool>) -> Result<mpsc::Receiver<()>, Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let cannot =
        |e: std::io::Error| Error::internal("import.signals", format!("cannot wait for signals: {e}"));
    let (wake, woken) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(cannot)?, signal(SignalKind::terminate()).map_err(cannot)?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            for ended in [false, true] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if ended {
                    std::process::exit(130);
                }
                stopping.store(true, Ordering::SeqCst);
                let _ = wake.send(());
            }
        });
    });
    Ok(woken)
}
