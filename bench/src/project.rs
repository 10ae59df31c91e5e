//! Projections of long transcripts, and with `--reference` against the reference implementation on the same ones.
//!
//! Only the projection is timed: on both sides the messages are there before the clock starts. The two sides are two
//! processes that take turns.

use crate::figures::{Samples, bytes, count, time};
use crate::project_fixture::{self, SIZES};
use crate::report::Row;
use crate::{Result, Scale, allocations, processor};
use everturn_core::projection::{self, Message, Options};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What spec 7 asks for, at the largest size.
const BAR: f64 = 20.0;

/// How long a policy is measured at least in each round.
const TIME_MIN: Duration = Duration::from_millis(50);

pub fn run(with_reference: bool, scale: Scale) -> Result<Vec<Row>> {
    if with_reference {
        eprintln!("building the reference takes more than 20 CPU minutes and 8 GB of memory, once");
        reference("build")?;
    }
    let mut subjects = subjects()?;
    let mut floor = Samples::default();
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
        if let Some(subject) = subjects.iter().find(|subject| subject.is_largest()) {
            floor.push(subject.hash_alone());
        }
    }
    let mut rows: Vec<Row> = subjects.iter().map(Subject::speed).collect();
    rows.push(Row::new(
        "SHA-256 of the largest transcript's bytes and nothing else",
        time(floor.median()),
        "",
    ));
    rows.extend(subjects.iter().filter(|subject| subject.is_largest()).map(Subject::view));
    Ok(rows)
}

/// One policy on one transcript.
struct Subject {
    policy: String,
    tokens: usize,
    options: Options,
    messages: Arc<[Message]>,
    ours: Side,
    reference: Option<Side>,
}

fn subjects() -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for tokens in SIZES {
        let messages = project_fixture::messages(tokens).into_iter().map(Message::of);
        let messages: Arc<[Message]> = messages.collect::<Result<_, _>>()?;
        let mut add = |policy: &str, options| {
            let (policy, messages) = (policy.into(), messages.clone());
            subjects.push(Subject {
                policy,
                tokens,
                options,
                messages,
                ours: Side::default(),
                reference: None,
            });
        };
        for (policy, options) in project_fixture::policies() {
            add(policy, Options::parse(&options)?);
        }
        let all_but_the_first = |messages: &[&Message]| {
            Ok(messages.iter().skip(1).map(|message| message.value().clone()).collect())
        };
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
        let project = || projection::project(&self.messages, None, &self.options);
        let view = project()?;
        self.ours.kept = view.kept_count as u64;
        self.ours.dropped = view.dropped_count as u64;
        self.ours.redacted = view.redacted_count as u64;
        self.ours.prefix_hash = view.prefix_hash;
        (self.ours.allocations, self.ours.allocated_bytes) = allocations::of(project);
        self.ours.times.push(seconds(project));
        Ok(())
    }

    /// What no implementation can do without, since the hash of a view is part of every result.
    fn hash_alone(&self) -> f64 {
        let text: String = self.messages.iter().map(|message| message.raw().get()).collect();
        seconds(|| Sha256::digest(&text))
    }

    fn is_largest(&self) -> bool {
        SIZES.iter().max() == Some(&self.tokens)
    }

    fn speed(&self) -> Row {
        let what = format!("projection, {} tokens, {}", count(self.tokens as f64), self.policy);
        let Some(reference) = &self.reference else { return Row::new(what, self.ours.cost(), "") };
        let row = Row::new(what, self.ours.cost(), format!("{}, reference", reference.cost()))
            .ratios(&reference.times.over(&self.ours.times));
        if self.is_largest() { row.at_least(BAR) } else { row }
    }

    fn view(&self) -> Row {
        let what = format!("what is left by {}", self.policy);
        Row::new(what, self.ours.left(), self.reference.as_ref().map_or(String::new(), Side::left))
    }
}

impl Side {
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
    processor::median(&processor::time(TIME_MIN, call)) / 1e6
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
