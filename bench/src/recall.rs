//! Recall: indexing rate, time of lexical and hybrid queries, size of the index, and its effect on appends.
//!
//! The words are distributed as in real text: a few very frequent, most of them rare, with names of files and
//! functions among them. A corpus of a handful of words would have every word in every turn.
//!
//! The embeddings of the turns are synthetic (`vectors::MadeUp`), because a million real ones take hours; for a
//! query the built-in model reads as many English words, as it does in use. So hybrid rows show the time, not
//! the quality.
//!
//! A query is repeated in several rounds, and its shortest time counts: on a machine with other load the others
//! include waiting for a processor. The processor time of all threads is shown beside it, and the first round's
//! time too, in which word counts are not cached yet.

use crate::corpus::{self, Filled, Words};
use crate::figures::{Samples, bytes, count, rate, time};
use crate::place::{Scratch, processor_time};
use crate::report::Row;
use crate::vectors::MadeUp;
use crate::{Result, Scale};
use everturn_core::id::ConversationId;
use everturn_core::turn::Role;
use everturn_engine::model::Embed;
use everturn_engine::{Everturn, NewTurn, Options, RecallMode, RecallOptions, Tenant};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VOCABULARY: u64 = 60_000;
/// Number of turns of one conversation.
pub const CONVERSATION_TURNS: u64 = 500;
/// Number of turns of a long conversation.
const LONG_TURNS: u64 = 30_000;
/// Number of queries of each kind for each store.
const QUESTIONS: usize = 100;
/// Number of repetitions of each.
const ROUNDS: usize = 3;
/// Sizes of texts in bytes, used in rotation.
const TURN_BYTES: [usize; 8] = [120, 900, 200, 2400, 300, 700, 150, 1600];
/// Interval of the turns whose words are used for queries.
const SAMPLED_EVERY: u64 = 97;
/// Maximum time for storing embeddings.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Queries of one kind, each with its conversation.
pub struct Kind {
    name: &'static str,
    questions: Vec<(String, Option<ConversationId>)>,
}

/// Some turns of a store: their conversation and text.
pub type Sampled = Vec<(ConversationId, String)>;

pub fn run(place: &Scratch, scale: Scale, only: Option<u64>, keep: Option<&Path>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut sizes = vec![10_000, 100_000, scale.long];
    sizes.retain(|turns| *turns <= scale.long);
    for turns in only.map_or(sizes, |only| vec![only]) {
        let name = format!("recall-{turns}.db");
        let path = keep.map_or_else(|| place.file(&name), |folder| folder.join(&name));
        rows.extend(one(&path, turns)?);
    }
    if only.is_none() {
        rows.push(long_conversation(place)?);
        rows.push(appends(place, scale)?);
    }
    Ok(rows)
}

/// Indexes the same turns in one conversation and spread over many.
fn long_conversation(place: &Scratch) -> Result<Row> {
    let mut rates = Vec::new();
    for (name, each) in [("one-conversation.db", LONG_TURNS), ("many-conversations.db", CONVERSATION_TURNS)] {
        let url = place.store(name);
        fill(&url, LONG_TURNS, each)?;
        let store = open(&url, false, None)?;
        let began = Instant::now();
        store.index_now()?;
        rates.push(LONG_TURNS as f64 / began.elapsed().as_secs_f64());
    }
    let row = Row::new(
        format!("indexing {} turns of one conversation", count(LONG_TURNS as f64)),
        rate(rates[0]),
        format!("{} spread over many", rate(rates[1])),
    );
    Ok(row.ratio(rates[0] / rates[1]).at_least(0.8))
}

fn one(path: &Path, turns: u64) -> Result<Vec<Row>> {
    let (of, mut rows) = (count(turns as f64), Vec::new());
    let url = format!("sqlite:{}", path.display());
    let kept = path.with_extension("questions.json");
    let sampled: Sampled = if kept.exists() {
        eprintln!("recall: {of} turns of an earlier run");
        serde_json::from_slice(&std::fs::read(&kept)?)?
    } else {
        let (made, sampled) = made(path, &url, turns)?;
        rows.extend(made);
        std::fs::write(&kept, serde_json::to_vec(&sampled)?)?;
        sampled
    };
    let kinds = kinds(&sampled);
    let store = open(&url, false, None)?;
    for kind in &kinds {
        rows.push(asked(&store, &of, RecallMode::Lexical, kind)?);
    }
    drop(store);
    let (log, before) = sizes(path)?;
    let store = open(&url, false, Some(Arc::new(MadeUp::new())))?;
    let missing = store.behind()?.vectors;
    if missing > 0 {
        let (wall, processor) = (Instant::now(), processor_time());
        let left = store.embed_now(PATIENCE)?;
        let took = (wall.elapsed().as_secs_f64(), (processor_time() - processor).as_secs_f64());
        if left.vectors > 0 {
            return Err(format!("{} turns have no vector after {PATIENCE:?}", left.vectors).into());
        }
        let (_, after) = sizes(path)?;
        rows.push(Row::new(
            format!("putting made-up vectors of {of} turns"),
            format!("{}, {:.1} s", rate(missing as f64 / took.0), took.0),
            format!("{:.1} s of processor time", took.1),
        ));
        let each = bytes(after.saturating_sub(before) / missing);
        rows.push(Row::new(
            format!("store, index and vectors of {of} turns"),
            bytes(log + after),
            format!("{each} of it the vector of a turn"),
        ));
    }
    let first = Instant::now();
    store.tenant("bench")?.recall("the first question", &RecallOptions::default())?;
    rows.push(Row::new(
        format!("the first question in {of} turns, hybrid: reads all signs, loads the model"),
        time(first.elapsed().as_secs_f64()),
        "",
    ));
    for kind in &kinds {
        rows.push(asked(&store, &of, RecallMode::Hybrid, kind)?);
    }
    Ok(rows)
}

/// Fills and indexes a store, and measures both.
fn made(path: &Path, url: &str, turns: u64) -> Result<(Vec<Row>, Sampled)> {
    let of = count(turns as f64);
    eprintln!("recall: filling {of} turns");
    let (filled, sampled) = fill(url, turns, CONVERSATION_TURNS)?;
    let indexed = indexed(&open(url, false, None)?, turns)?;
    let (log, index) = sizes(path)?;
    let json = filled.json_bytes()?;
    let show = |total: u64| format!("{}, {} a turn", bytes(total), bytes(total / turns));
    let size = |what: &str, total: u64| {
        Row::new(format!("{what} of {of} turns"), show(total), format!("{} as JSON", show(json)))
            .ratio(total as f64 / json as f64)
    };
    let rows = vec![
        indexed,
        size("store", log).at_most(1.5),
        size("store and index of words", log + index).at_most(2.5),
    ];
    Ok((rows, sampled))
}

/// Indexes everything that is in a store.
pub fn indexed(store: &Everturn, turns: u64) -> Result<Row> {
    let of = count(turns as f64);
    eprintln!("recall: indexing {of} turns");
    let (wall, processor) = (Instant::now(), processor_time());
    store.index_now()?;
    let took = (wall.elapsed().as_secs_f64(), (processor_time() - processor).as_secs_f64());
    Ok(Row::new(
        format!("indexing {of} turns"),
        format!("{}, {:.1} s", rate(turns as f64 / took.0), took.0),
        format!("{:.1} s of processor time", took.1),
    ))
}

/// Bytes of a store's own files, and of its index.
fn sizes(path: &Path) -> Result<(u64, u64)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (mut log, mut index) = (0, 0);
    for file in path.parent().unwrap_or(Path::new(".")).read_dir()? {
        let file = file?;
        let other = file.file_name().to_string_lossy().into_owned();
        if other == format!("{name}-index") {
            for file in file.path().read_dir()? {
                index += file?.metadata()?.len();
            }
        } else if other.starts_with(&name) && file.file_type()?.is_file() {
            log += file.metadata()?.len();
        }
    }
    Ok((log, index))
}

pub fn asked(store: &Everturn, of: &str, mode: RecallMode, kind: &Kind) -> Result<Row> {
    let scope = store.tenant("bench")?;
    let Kind { name, questions } = kind;
    let mut shortest = vec![(f64::INFINITY, f64::INFINITY); questions.len()];
    let (mut first, mut found) = (Samples::default(), 0);
    for round in 0..ROUNDS {
        for ((question, conversation), shortest) in questions.iter().zip(&mut shortest) {
            let options = RecallOptions { conversation: *conversation, mode, ..RecallOptions::default() };
            let (wall, processor) = (Instant::now(), processor_time());
            let answer = scope.recall(question, &options)?;
            let took = (wall.elapsed().as_secs_f64(), (processor_time() - processor).as_secs_f64());
            if answer.mode != mode {
                return Err(format!("asked for {mode}, got {}: {:?}", answer.mode, answer.note).into());
            }
            *shortest = (shortest.0.min(took.0), shortest.1.min(took.1));
            if round == 0 {
                first.push(took.0);
                found += usize::from(!answer.data.is_empty());
            }
        }
    }
    let (mut wall, mut processor) = (Samples::default(), Samples::default());
    for (took, crunched) in shortest {
        wall.push(took);
        processor.push(crunched);
    }
    let p50 = wall.at(0.5);
    let row = Row::new(
        format!("recall in {of} turns, {mode}, {name} ({found} of {} find something)", questions.len()),
        format!("p50 {}, p99 {}", time(p50), time(wall.at(0.99))),
        format!(
            "processor p50 {}, p99 {}; first round p50 {}, p99 {}",
            time(processor.at(0.5)),
            time(processor.at(0.99)),
            time(first.at(0.5)),
            time(first.at(0.99))
        ),
    );
    eprintln!("  {mode}, {name}: {}; {}", row.measured, row.against);
    Ok(row.bar("p50 ≤ 20 ms", p50 <= 0.020))
}

/// Queries made from the sampled turns.
pub fn kinds(sampled: &Sampled) -> Vec<Kind> {
    let mut words = Words::default();
    let mut pick = |many: usize| -> Vec<&str> {
        let text = &sampled[words.number() as usize % sampled.len()].1;
        let all: Vec<&str> = text.split_whitespace().collect();
        (0..many).map(|_| all[words.number() as usize % all.len()]).collect()
    };
    let everywhere = |text: String| (text, None);
    let part = |n: usize, skipped: usize, many: usize| -> Vec<&str> {
        sampled[n % sampled.len()].1.split_whitespace().skip(skipped).take(many).collect()
    };
    let short = (0..QUESTIONS).map(|n| everywhere(pick(1 + n % 2).join(" "))).collect();
    let long = (0..QUESTIONS)
        .map(|n| everywhere(format!("what about the {}?", pick(4 + n % 8).join(" "))))
        .collect();
    let phrases =
        (0..QUESTIONS).map(|n| everywhere(format!("\"{}\"", part(n * 7, 2, 2).join(" ")))).collect();
    let common_phrases = (0..QUESTIONS as u64)
        .map(|n| everywhere(format!("\"{} {}\"", word(1 + n % 9), word(1 + n / 9 % 9))))
        .collect();
    let beginnings = (0..QUESTIONS as u64)
        .map(|n| {
            let whole = word(40 + n * n * 5);
            everywhere(format!("{}*", &whole[..whole.len().min(3 + n as usize % 2)]))
        })
        .collect();
    let within = (0..QUESTIONS)
        .map(|n| (part(n * 13, 1, 5).join(" "), Some(sampled[n * 13 % sampled.len()].0)))
        .collect();
    let common =
        (0..QUESTIONS as u64).map(|n| everywhere(format!("{} {}", word(n % 30), word(n % 30 + 3)))).collect();
    [
        ("one or two words", short),
        ("questions of 7 to 14 words", long),
        ("phrases", phrases),
        ("phrases of the commonest words", common_phrases),
        ("beginnings of three or four letters", beginnings),
        ("in one conversation", within),
        ("the commonest words only", common),
    ]
    .map(|(name, questions)| Kind { name, questions })
    .into()
}

/// One writer alternates between a store with an indexer and one without.
fn appends(place: &Scratch, scale: Scale) -> Result<Row> {
    let (with, without) =
        (open(&place.store("with.db"), true, None)?, open(&place.store("without.db"), false, None)?);
    let scopes = [with.tenant("bench")?, without.tenant("bench")?];
    let ids = [corpus::begin(&scopes[0], 1)?[0], corpus::begin(&scopes[1], 1)?[0]];
    let mut words = Words::default();
    let mut rates = [Samples::default(), Samples::default()];
    for _ in 0..scale.rounds {
        for (side, (scope, id)) in scopes.iter().zip(ids).enumerate() {
            let started = Instant::now();
            let mut appended = 0;
            while started.elapsed() < Duration::from_millis(scale.slice_ms) {
                let turn = NewTurn::user(&text(&mut words, 1024));
                scope.conversation(id).append(turn).wait()?;
                appended += 1;
            }
            rates[side].push(f64::from(appended) / started.elapsed().as_secs_f64());
        }
    }
    let behind = with.behind()?.events;
    let row = Row::new(
        format!("append, 1 writer, indexed ({} events behind at the end)", count(behind as f64)),
        rate(rates[0].median()),
        format!("{} not indexed", rate(rates[1].median())),
    );
    Ok(row.ratios(&rates[0].over(&rates[1])).at_least(0.9))
}

pub fn open(url: &str, index: bool, embedder: Option<Arc<dyn Embed>>) -> Result<Everturn> {
    let sweep_every = Duration::from_secs(24 * 60 * 60);
    Ok(Everturn::open_with(url, Options { sweep_every, index, embedder, ..Options::default() })?)
}

/// An unindexed store with this many turns in each conversation, and the texts of some of its turns.
pub fn fill(url: &str, turns: u64, each: u64) -> Result<(Filled, Sampled)> {
    let store = open(url, false, None)?;
    let scope = store.tenant("bench")?;
    let conversations = corpus::begin(&scope, turns.div_ceil(each) as usize)?;
    let (mut words, mut texts) = (Words::default(), Vec::new());
    for first in (0..turns).step_by(CONVERSATION_TURNS as usize) {
        let id = conversations[(first / each) as usize];
        let batch: Vec<NewTurn> = (first..turns.min(first + CONVERSATION_TURNS))
            .map(|number| {
                let role = if number % 2 == 0 { Role::User } else { Role::Assistant };
                let text = text(&mut words, TURN_BYTES[number as usize % TURN_BYTES.len()]);
                if number % SAMPLED_EVERY == 0 {
                    texts.push((id, text.clone()));
                }
                NewTurn::text(role, &text)
            })
            .collect();
        append(&scope, id, batch)?;
    }
    Ok((Filled { url: url.to_string(), conversations, turns }, texts))
}

fn append(scope: &Tenant, id: ConversationId, turns: Vec<NewTurn>) -> Result<()> {
    scope.conversation(id).append_all(turns).wait()?;
    Ok(())
}

/// A text in which the word of rank n is about n times rarer than the first, and one of fifty words is a path
/// or a name in code.
fn text(words: &mut Words, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    while text.len() < bytes {
        let (kind, draw) = (words.number() % 100, words.number());
        let mut ranked = || {
            let part = (words.number() >> 11) as f64 / (1u64 << 53) as f64;
            (VOCABULARY as f64).powf(part) as u64
        };
        match kind {
            0 => text.push_str(&format!("src/{}/{}.rs", word(ranked()), word(draw % 2000))),
            1 => text.push_str(&format!("{}_{}", word(ranked()), word(draw % 5000))),
            _ => text.push_str(&word(ranked())),
        }
        text.push_str(if kind % 13 == 0 { ". " } else { " " });
    }
    text.truncate(bytes);
    text
}

/// The word of a rank: common ones are short.
fn word(rank: u64) -> String {
    const SYLLABLES: [&str; 32] = [
        "ka", "to", "mi", "re", "su", "no", "ha", "li", "de", "po", "ver", "an", "ter", "in", "con", "al",
        "ment", "ra", "sta", "ble", "pro", "ex", "ti", "on", "er", "com", "per", "un", "dis", "ing", "est",
        "ly",
    ];
    let (mut left, mut word) = (rank + 1, String::new());
    while left > 0 {
        word.push_str(SYLLABLES[(left % 32) as usize]);
        left /= 32;
    }
    word
}
