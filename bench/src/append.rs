//! Durable appends: one writer against the bare disk, 64 writers against one.

use crate::corpus::{self, Words};
use crate::figures::{Samples, rate, time};
use crate::place::{self, Scratch};
use crate::report::Row;
use crate::{Result, Scale};
use everturn_core::id::ConversationId;
use everturn_engine::{NewTurn, Tenant};
use futures_util::future::try_join_all;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

pub const TURN_BYTES: usize = 1024;
pub const WRITERS: usize = 64;
const PREALLOCATED_BYTES: u64 = 64 * 1024 * 1024;

/// Number of appends before anything is measured, so that the write-ahead log has its final size: from then on
/// SQLite overwrites it.
const WARM_UP: usize = 2000;

/// Maximum number of attempts for a valid round, on a machine with other load.
const TRIES: usize = 3;

/// One kind of text, and its append rate.
struct Subject {
    /// Its name in the rows.
    name: &'static str,
    text: String,
    single: Samples,
    latency: Samples,
    threads: Samples,
    tasks: Samples,
}

/// Texts of equal length. One non-ASCII letter is enough to send a careless search down its slow path, and few
/// conversations do without.
fn subjects() -> [Subject; 2] {
    let ascii = Words::default().text(TURN_BYTES);
    let beyond = format!("é{}", &ascii["é".len()..]);
    [("ASCII", ascii), ("one letter beyond ASCII", beyond)].map(|(name, text)| Subject {
        name,
        text,
        single: Samples::default(),
        latency: Samples::default(),
        threads: Samples::default(),
        tasks: Samples::default(),
    })
}

pub fn run(place: &Scratch, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("append: {} rounds", scale.rounds);
    let mut preallocated = Floor::preallocated(&place.file("preallocated"))?;
    let mut growing = Floor::growing(&place.file("growing"))?;
    let store = corpus::open(&place.store("append.db"))?;
    let scope = store.tenant("bench")?;
    let slice = Duration::from_millis(scale.slice_ms);
    let one = corpus::begin(&scope, 1)?[0];
    let many = corpus::begin(&scope, WRITERS)?;
    let ascii = Words::default().text(TURN_BYTES);

    let (mut young, mut young_floor, mut ignored): (Samples, Samples, Samples) = Default::default();
    for _ in 0..10 {
        young_floor.push(repeat(slice / 10, &mut ignored, || growing.append())?);
        let started = Instant::now();
        for _ in 0..WARM_UP / 10 {
            append(&scope, one, &ascii)?;
        }
        young.push((WARM_UP / 10) as f64 / started.elapsed().as_secs_f64());
    }

    let mut calm = Rounds::new();
    let mut all = Rounds::new();
    let mut tried = 0;
    while calm.count < scale.rounds && tried < scale.rounds * TRIES {
        tried += 1;
        let mut round = Rounds::new();
        let waited = place::waited_for_cpu();
        round.floor.push(repeat(slice, &mut round.floor_latency, || preallocated.append())?);
        round.growing.push(repeat(slice, &mut ignored, || growing.append())?);
        for subject in &mut round.subjects {
            subject.single.push(repeat(slice, &mut subject.latency, || append(&scope, one, &subject.text))?);
        }
        let waited = place::waited_for_cpu().zip(waited).map(|(after, before)| after - before);
        for Subject { text, threads, tasks, .. } in &mut round.subjects {
            threads.push(on_threads(&scope, &many, text, slice)?);
            tasks.push(as_tasks(&scope, &many, text, slice)?);
        }
        if waited.is_none_or(|waited| waited < slice * 4 / 20) {
            calm.add(&round);
        }
        all.add(&round);
    }
    let enough = calm.count * 2 >= scale.rounds;
    let Rounds { floor, growing: floor_growing, floor_latency, subjects, .. } =
        if enough { &calm } else { &all };
    eprintln!("  {} of {tried} rounds were calm", calm.count);

    let mut rows = Vec::new();
    for subject in subjects {
        rows.extend(alone(subject, floor, floor_growing, floor_latency));
        rows.extend(together(subject));
    }
    rows.push(compare(
        "1 writer, ASCII, the first appends of a new store",
        &young,
        &young_floor,
        "write + fdatasync, growing file",
    ));
    let counted = format!("{} of {tried}", calm.count);
    rows.push(Row::new("rounds in which nobody else held the CPU", counted, ""));
    // Waiting for a CPU slows the bare disk and one writer alike: the ratios would look better than they are.
    Ok(if enough { rows } else { rows.into_iter().map(Row::disturbed).collect() })
}

struct Rounds {
    count: usize,
    floor: Samples,
    growing: Samples,
    floor_latency: Samples,
    subjects: [Subject; 2],
}

impl Rounds {
    fn new() -> Rounds {
        let [floor, growing, floor_latency] = Default::default();
        Rounds { count: 0, floor, growing, floor_latency, subjects: subjects() }
    }

    fn add(&mut self, round: &Rounds) {
        self.count += 1;
        self.floor.extend(&round.floor);
        self.growing.extend(&round.growing);
        self.floor_latency.extend(&round.floor_latency);
        for (sum, one) in self.subjects.iter_mut().zip(&round.subjects) {
            sum.single.extend(&one.single);
            sum.latency.extend(&one.latency);
            sum.threads.extend(&one.threads);
            sum.tasks.extend(&one.tasks);
        }
    }
}

/// The rows of one writer.
fn alone(subject: &Subject, floor: &Samples, growing: &Samples, floor_latency: &Samples) -> [Row; 3] {
    let Subject { name, single, latency, .. } = subject;
    let times = |of: &Samples| format!("p50 {}, p99 {}", time(of.median()), time(of.at(0.99)));
    let what = format!("durable append, 1 writer, 1 KiB, {name}");
    [
        compare(&what, single, floor, "write + fdatasync, preallocated file").at_least(0.7),
        compare(&format!("1 writer, {name}"), single, growing, "write + fdatasync, growing file"),
        Row::new(format!("latency, 1 writer, {name}"), times(latency), times(floor_latency))
            .ratio(latency.median() / floor_latency.median()),
    ]
}

/// The rows of many writers. The faster way counts.
fn together(subject: &Subject) -> [Row; 3] {
    let Subject { name, single, threads, tasks, .. } = subject;
    let better = if threads.median() > tasks.median() { threads } else { tasks };
    let what = format!("durable append, 64 writers on 64 conversations, {name}");
    [
        compare(&what, better, single, "one writer").at_least(10.0),
        compare(&format!("64 threads, {name}"), threads, single, "one writer"),
        compare(&format!("64 async tasks on one thread, {name}"), tasks, single, "one writer"),
    ]
}

pub fn compare(what: &str, these: &Samples, those: &Samples, name: &str) -> Row {
    Row::new(what, rate(these.median()), format!("{} {name}", rate(those.median())))
        .ratios(&these.over(those))
}

pub fn append(scope: &Tenant, id: ConversationId, text: &str) -> Result<()> {
    scope.conversation(id).append(NewTurn::user(text)).wait()?;
    Ok(())
}

/// Repeats a step for a while, and returns its rate per second.
pub fn repeat(slice: Duration, latency: &mut Samples, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    let (mut count, mut before) = (0, Duration::ZERO);
    while before < slice {
        step()?;
        let now = started.elapsed();
        latency.push_time(now - before);
        (count, before) = (count + 1, now);
    }
    Ok(f64::from(count) / before.as_secs_f64())
}

/// Each conversation has a thread that waits for each append.
pub fn on_threads(scope: &Tenant, ids: &[ConversationId], text: &str, slice: Duration) -> Result<f64> {
    let ready = Barrier::new(ids.len() + 1);
    std::thread::scope(|threads| {
        let writers: Vec<_> = ids
            .iter()
            .map(|id| {
                threads.spawn(|| {
                    ready.wait();
                    let started = Instant::now();
                    let mut count = 0;
                    while started.elapsed() < slice {
                        append(scope, *id, text)?;
                        count += 1;
                    }
                    Ok(count)
                })
            })
            .collect();
        ready.wait();
        let started = Instant::now();
        let mut count = 0;
        for writer in writers {
            let written: Result<i32> = writer.join().map_err(|_| "a writer panicked")?;
            count += written?;
        }
        Ok(f64::from(count) / started.elapsed().as_secs_f64())
    })
}

/// Each conversation has a task that awaits each append, all on this thread.
pub fn as_tasks(scope: &Tenant, ids: &[ConversationId], text: &str, slice: Duration) -> Result<f64> {
    let started = Instant::now();
    let writers = ids.iter().map(|id| async move {
        let mut count = 0;
        while started.elapsed() < slice {
            scope.conversation(*id).append(NewTurn::user(text)).await?;
            count += 1;
        }
        Ok::<i32, everturn_engine::Error>(count)
    });
    let counts = futures_executor::block_on(try_join_all(writers))?;
    Ok(f64::from(counts.iter().sum::<i32>()) / started.elapsed().as_secs_f64())
}

/// Lower bound of any durable append: the same number of bytes written to a file, and synced.
struct Floor {
    file: File,
    at: u64,
    /// Offset at which to start over.
    end: Option<u64>,
    bytes: [u8; TURN_BYTES],
}

impl Floor {
    /// A file with all blocks already written: a sync then has no metadata to write.
    fn preallocated(path: &Path) -> Result<Floor> {
        let mut floor = Floor { end: Some(PREALLOCATED_BYTES), ..Floor::growing(path)? };
        let block = [1; 64 * 1024];
        for _ in 0..PREALLOCATED_BYTES / block.len() as u64 {
            floor.file.write_all(&block)?;
        }
        floor.file.sync_all()?;
        floor.file.rewind()?;
        Ok(floor)
    }

    fn growing(path: &Path) -> Result<Floor> {
        Ok(Floor { file: File::create(path)?, at: 0, end: None, bytes: [b'x'; TURN_BYTES] })
    }

    fn append(&mut self) -> Result<()> {
        if self.end.is_some_and(|end| self.at + TURN_BYTES as u64 > end) {
            self.file.rewind()?;
            self.at = 0;
        }
        self.file.write_all(&self.bytes)?;
        // fdatasync on Linux.
        self.file.sync_data()?;
        self.at += TURN_BYTES as u64;
        Ok(())
    }
}
