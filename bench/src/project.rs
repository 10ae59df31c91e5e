//! Projections of long transcripts, and with `--reference` against the reference implementation on the same ones.
//!
//! Only the projection is timed: on both sides the messages are there as parsed values before the clock starts. The two
//! sides are two processes that take turns. The reference starts from nothing but those values at every call; ours is
//! measured twice against that same call:
//!
//! - *cold*: from nothing but those values too, with messages that were never projected before;
//! - *next turn*: as an agent does it, with the `Memo` of a projection of all but the last call and its result.

use crate::figures::{Samples, bytes, count, time};
use crate::project_fixture::{self, SIZES};
use crate::report::Row;
use crate::{Result, Scale, allocations, processor};
use everturn_core::projection::{self, Memo, Message, Options, View};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// What spec 7 asks for, at the largest size.
const BAR: f64 = 20.0;

/// How often a call is timed in each round, each time with messages or a memo of its own: as often as the timer does that
/// is given no time.
const RUNS: usize = 30;

/// What one turn adds: a call and its result.
const TURN: usize = 2;

pub fn run(with_reference: bool, scale: Scale) -> Result<Vec<Row>> {
    if with_reference {
        eprintln!("building the reference takes more than 20 CPU minutes and 8 GB of memory, once");
        reference("build")?;
    }
    let mut subjects = subjects()?;
    eprintln!("project: {} rounds", scale.rounds);
    for _ in 0..scale.rounds {
        if with_reference {
            let said = String::from_utf8(reference("run")?)?;
            for line in said.lines() {
                theirs(&mut subjects, &serde_json::from_str(line)?)?;
            }
        }
        for subject in &mut subjects {
            subject.measure()?;
        }
    }
    let mut rows: Vec<Row> = subjects.iter().flat_map(Subject::speed).collect();
    rows.extend(subjects.iter().filter(|subject| subject.is_largest()).map(Subject::view));
    Ok(rows)
}

/// One policy on one transcript.
struct Subject {
    policy: String,
    tokens: usize,
    options: Options,
    values: Rc<[Value]>,
    cold: Side,
    next_turn: Side,
    reference: Option<Side>,
    /// SHA-256 over the view's bytes and nothing else: what no implementation that starts from nothing can do without,
    /// since the hash of a view is part of every result.
    floor: Samples,
}

fn subjects() -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for tokens in SIZES {
        let values: Rc<[Value]> = project_fixture::messages(tokens).into();
        let mut add = |policy: &str, options| {
            subjects.push(Subject {
                policy: policy.into(),
                tokens,
                options,
                values: values.clone(),
                cold: Side::default(),
                next_turn: Side::default(),
                reference: None,
                floor: Samples::default(),
            });
        };
        for (policy, options) in project_fixture::policies() {
            add(policy, Options::parse(&options)?);
        }
        // The reference's projector returns the messages it was given, which are shared there; here indices say that.
        let all_but_the_first = |messages: &[&Message]| Ok((1..messages.len()).collect());
        add("custom", Options::custom(all_but_the_first));
        // The reference has no such policy.
        let clearing = json!({"policy": "clear_tool_uses", "trigger": 0, "keep": 3});
        add("clear_tool_uses", Options::parse(&clearing)?);
    }
    Ok(subjects)
}

/// What one of the two implementations made of it.
#[derive(Default)]
struct Side {
    /// The median of each round.
    times: Samples,
    allocations: u64,
    allocated_bytes: u64,
    kept: u64,
    dropped: u64,
    redacted: u64,
    prefix_hash: String,
}

impl Subject {
    fn measure(&mut self) -> Result<()> {
        let read = || self.values.iter().cloned().map(Message::of).collect::<Result<Vec<_>, _>>();
        let copies = (0..=RUNS).map(|_| read()).collect::<Result<Vec<_>, _>>()?;
        let messages = &copies[0];
        let mut copies = copies.iter().rev();
        let mut cold = || Ok(projection::project(copies.next().ok_or(OUT)?, None, &self.options)?);
        self.cold.measure(&mut cold)?;

        let mut memo = Memo::default();
        let before = &messages[..messages.len() - TURN];
        memo.project(before, None, &self.options, None)?;
        let turn = || -> Result<_> {
            let new = self.values[before.len()..].iter().cloned().map(Message::of);
            Ok((memo.clone(), before.iter().cloned().map(Ok).chain(new).collect::<Result<Vec<_>, _>>()?))
        };
        let mut turns = (0..=RUNS).map(|_| turn()).collect::<Result<Vec<_>>>()?;
        let mut turns = turns.iter_mut();
        let mut next_turn = || {
            let (memo, messages) = turns.next().ok_or(OUT)?;
            Ok(memo.project(messages, None, &self.options, None)?)
        };
        let view = self.next_turn.measure(&mut next_turn)?;

        let text: String = view.messages.iter().map(|shown| shown.raw().get()).collect();
        self.floor.push(seconds(|| Sha256::digest(&text)));
        Ok(())
    }

    fn is_largest(&self) -> bool {
        SIZES.iter().max() == Some(&self.tokens)
    }

    fn speed(&self) -> [Row; 2] {
        [(&self.cold, "cold"), (&self.next_turn, "next turn")].map(|(side, when)| {
            let what = format!("projection, {} tokens, {}, {when}", count(self.tokens as f64), self.policy);
            let floors = side.times.over(&self.floor).median();
            let cost = format!("{}, {floors:.2} × its SHA-256", side.cost());
            let Some(reference) = &self.reference else { return Row::new(what, cost, "") };
            let row = Row::new(what, cost, format!("{}, reference", reference.cost()))
                .ratios(&reference.times.over(&side.times));
            // The reference has no memo: only what starts from nothing is held to the bar.
            if self.is_largest() && when == "cold" { row.at_least(BAR) } else { row }
        })
    }

    fn view(&self) -> Row {
        let what = format!("what is left by {}", self.policy);
        Row::new(what, self.cold.left(), self.reference.as_ref().map_or(String::new(), Side::left))
    }
}

/// The timer called more often than it says.
const OUT: &str = "everything that was prepared has been measured";

impl Side {
    /// Times a call, and gives the view that one more made.
    fn measure<'a>(&mut self, call: &mut impl FnMut() -> Result<View<'a>>) -> Result<View<'a>> {
        self.times.push(seconds(&mut *call));
        let mut view = Err(OUT.into());
        (self.allocations, self.allocated_bytes) = allocations::of(|| view = call());
        let view = view?;
        self.kept = view.kept_count as u64;
        self.dropped = view.dropped_count as u64;
        self.redacted = view.redacted_count as u64;
        self.prefix_hash = view.prefix_hash.clone();
        Ok(view)
    }

    fn cost(&self) -> String {
        let times = count(self.allocations as f64);
        format!("{}, {times} allocations, {}", time(self.times.median()), bytes(self.allocated_bytes))
    }

    fn left(&self) -> String {
        let hash = self.prefix_hash.strip_prefix("sha256:").unwrap_or(&self.prefix_hash);
        let Side { kept, dropped, redacted, .. } = self;
        format!("kept {kept}, dropped {dropped}, redacted {redacted}, hash {hash:.8}")
    }
}

/// How long a call typically takes.
fn seconds<T>(call: impl FnMut() -> T) -> f64 {
    processor::median(&processor::time(Duration::ZERO, call)) / 1e6
}

/// Adds a line of the reference to what it is about.
fn theirs(subjects: &mut [Subject], line: &Value) -> Result<()> {
    let number =
        |field: &str| line[field].as_u64().ok_or_else(|| format!("the reference says no {field}: {line}"));
    let tokens = number("tokens")?;
    let subject = subjects
        .iter_mut()
        .find(|subject| line["policy"] == subject.policy && tokens == subject.tokens as u64)
        .ok_or_else(|| format!("the reference measured something else: {line}"))?;
    let side = subject.reference.get_or_insert_default();
    side.times.push(line["median_us"].as_f64().ok_or("the reference says no median_us")? / 1e6);
    side.allocations = number("allocations")?;
    side.allocated_bytes = number("allocated_bytes")?;
    side.kept = number("kept")?;
    side.dropped = number("dropped")?;
    side.redacted = number("redacted")?;
    side.prefix_hash = line["prefix_hash"].as_str().unwrap_or_default().into();
    Ok(())
}

/// Builds or runs the reference's binary, and gives what it printed.
fn reference(verb: &str) -> Result<Vec<u8>> {
    const MANIFEST: &str = "bench/reference/Cargo.toml";
    if !Path::new(MANIFEST).is_file() {
        return Err(format!("{MANIFEST} is not here; start this in the repository's root").into());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args([verb, "--release", "--locked", "--manifest-path", MANIFEST]);
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        cargo.args(["--target-dir", "target/reference"]);
    }
    if verb == "run" {
        cargo.args(["--quiet", "--", "project"]);
    }
    let output = cargo.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("cargo {verb} of the reference failed: {}", output.status).into());
    }
    Ok(output.stdout)
}
