//! Projections of long transcripts, and with `--reference` against the reference implementation on the same
//! ones.
//!
//! Only the projection is timed: on both sides the messages are parsed values before the clock starts, and the
//! event is complete when it stops: the reference builds it as a value, ours writes it as text. The two sides
//! are two processes that alternate, and the shortest time of a round counts, since a busy machine can only
//! add. Our messages know their length and whether they are signed from parsing, before the clock starts; the
//! reference computes what it needs of this inside. Decision 0007 says how much that is.

use crate::figures::{Samples, bytes, count, time};
use crate::project_fixture::{self, SIZES};
use crate::report::Row;
use crate::{Result, Scale, allocations, processor};
use everturn_core::chain::Hash;
use everturn_core::json::Raw;
use everturn_views::projection::{self, Incremental, Message, Previous, ProjectedView, ViewOptions};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;

/// The ratio to the reference that every policy must reach, at the largest size.
const BAR: f64 = 4.0;

/// The largest size, in tokens.
const LARGEST: usize = SIZES[SIZES.len() - 1];

/// Number of timed calls in each round, each with freshly parsed messages, so that they are as close to the
/// processor as the reference's, which are the same at every call.
const RUNS: usize = 30;

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
    let mut rows: Vec<Row> = subjects.iter().map(Subject::speed).collect();
    rows.extend(subjects.iter().filter(|subject| subject.is_largest()).map(Subject::view));
    for messages in [project_fixture::messages(LARGEST), long()] {
        for subject in subjects.iter().filter(|subject| subject.is_largest()) {
            rows.push(growing(&messages, subject, scale)?);
        }
    }
    Ok(rows)
}

/// A transcript of 10,000 messages.
fn long() -> Vec<Value> {
    const MESSAGES: usize = 10_000;
    let mut tokens = LARGEST;
    loop {
        let mut messages = project_fixture::messages(tokens);
        if messages.len() >= MESSAGES {
            messages.truncate(MESSAGES);
            return messages;
        }
        tokens *= 2;
    }
}

/// Times the next view of a transcript that grows by two turns at a time, against the same view from scratch.
fn growing(values: &[Value], subject: &Subject, scale: Scale) -> Result<Row> {
    const TURNS: usize = 2;
    let messages = values.iter().cloned().map(Message::of).collect::<Result<Vec<_>, _>>()?;
    let (mut ours, mut scratch) = (Samples::default(), Samples::default());
    for _ in 0..scale.rounds {
        let mut incremental = Incremental::default();
        let mut end = messages.len() - RUNS * TURNS;
        messages[..end].iter().cloned().for_each(|message| incremental.push(message));
        incremental.project(None, &subject.options, Previous::None)?;
        let mut shortest = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            messages[end..end + TURNS].iter().cloned().for_each(|message| incremental.push(message));
            end += TURNS;
            let (took, view) =
                processor::once(|| incremental.project(None, &subject.options, Previous::Last));
            let prefix_hash = view?.prefix_hash;
            let (whole, view) =
                processor::once(|| projection::project(&messages[..end], None, &subject.options));
            if view?.prefix_hash != prefix_hash {
                return Err(format!("{}: the next view is not the one from scratch", subject.policy).into());
            }
            shortest = (shortest.0.min(took), shortest.1.min(whole));
        }
        ours.push(shortest.0 / 1e6);
        scratch.push(shortest.1 / 1e6);
    }
    let what = format!("next projection, {} messages, {}", count(values.len() as f64), subject.policy);
    let against = format!("{} from scratch", time(scratch.median()));
    Ok(Row::new(what, time(ours.median()), against).ratios(&scratch.over(&ours)))
}

/// One policy on one transcript.
struct Subject {
    policy: String,
    tokens: usize,
    options: ViewOptions,
    values: Rc<[Value]>,
    ours: Side,
    reference: Option<Side>,
    /// SHA-256 over the view's bytes and the reclaimed bodies, and nothing else: a lower bound for any
    /// implementation, since these hashes are part of every result.
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
                ours: Side::default(),
                reference: None,
                floor: Samples::default(),
            });
        };
        for (policy, options) in project_fixture::policies() {
            add(policy, ViewOptions::parse(&options)?);
        }
        // The reference's projector returns the messages it was given, which are shared there; here indices do
        // that.
        let all_but_the_first = |messages: &[&Message]| Ok((1..messages.len()).collect());
        add("custom", ViewOptions::custom(all_but_the_first));
        // The reference has no such policy.
        let clearing = json!({"policy": "clear_tool_uses", "trigger": 0, "keep": 3});
        add("clear_tool_uses", ViewOptions::parse(&clearing)?);
    }
    Ok(subjects)
}

/// The result of one of the two implementations.
#[derive(Default)]
struct Side {
    /// The shortest time of each round.
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
        let (mut ours, mut floor) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            let messages = read()?;
            let (took, made) = processor::once(|| projected(&messages, &self.options));
            ours = ours.min(took);
            let hashed = hashed(&messages, &made?.0);
            let hash = |text: &String| _ = std::hint::black_box(Hash::of(text.as_bytes()));
            floor = floor.min(processor::once(|| hashed.iter().for_each(hash)).0);
        }
        self.ours.times.push(ours / 1e6);
        self.floor.push(floor / 1e6);

        let messages = read()?;
        let mut made = None;
        (self.ours.allocations, self.ours.allocated_bytes) =
            allocations::of(|| made = Some(projected(&messages, &self.options)));
        if let Some(made) = made {
            self.ours.note(&made?.0);
        }
        Ok(())
    }

    fn is_largest(&self) -> bool {
        self.tokens == LARGEST
    }

    fn speed(&self) -> Row {
        let what = format!("projection, {} tokens, {}", count(self.tokens as f64), self.policy);
        let floors = self.ours.times.over(&self.floor).median();
        let cost = format!("{}, {floors:.2} × its SHA-256", self.ours.cost());
        let Some(reference) = &self.reference else { return Row::new(what, cost, "") };
        let cap = reference.times.over(&self.floor).median();
        let row = Row::new(what, cost, format!("{}, {cap:.1} × ours' SHA-256, reference", reference.cost()))
            .ratios(&reference.times.over(&self.ours.times));
        if self.is_largest() { row.at_least(BAR) } else { row }
    }

    fn view(&self) -> Row {
        let what = format!("what is left by {}", self.policy);
        Row::new(what, self.ours.left(), self.reference.as_ref().map_or(String::new(), Side::left))
    }
}

/// A view and the metadata of its event.
fn projected<'a>(messages: &'a [Message], options: &ViewOptions) -> Result<(ProjectedView<'a>, Raw)> {
    let view = projection::project(messages, None, options)?;
    let event = Raw::of(&view.metadata())?;
    Ok((view, event))
}

/// The texts that have to be hashed for a view.
fn hashed(messages: &[Message], view: &ProjectedView<'_>) -> Vec<String> {
    let pointers = view.redaction_pointers.iter();
    let bodies = pointers.filter_map(|pointer| messages[pointer.source_index].value()["content"].as_str());
    let whole = view.messages.iter().map(|shown| shown.raw().get()).collect();
    bodies.map(str::to_string).chain([whole]).collect()
}

impl Side {
    fn note(&mut self, view: &ProjectedView<'_>) {
        self.kept = view.kept_count as u64;
        self.dropped = view.dropped_count as u64;
        self.redacted = view.redacted_count as u64;
        self.prefix_hash = view.prefix_hash.clone();
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

/// Adds a line of the reference's output to its subject.
fn theirs(subjects: &mut [Subject], line: &Value) -> Result<()> {
    let number =
        |field: &str| line[field].as_u64().ok_or_else(|| format!("the reference says no {field}: {line}"));
    let tokens = number("tokens")?;
    let subject = subjects
        .iter_mut()
        .find(|subject| line["policy"] == subject.policy && tokens == subject.tokens as u64)
        .ok_or_else(|| format!("the reference measured something else: {line}"))?;
    let side = subject.reference.get_or_insert_default();
    side.times.push(line["min_us"].as_f64().ok_or("the reference says no min_us")? / 1e6);
    side.allocations = number("allocations")?;
    side.allocated_bytes = number("allocated_bytes")?;
    side.kept = number("kept")?;
    side.dropped = number("dropped")?;
    side.redacted = number("redacted")?;
    side.prefix_hash = line["prefix_hash"].as_str().unwrap_or_default().into();
    Ok(())
}

/// Builds or runs the reference's binary, and returns its output.
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
