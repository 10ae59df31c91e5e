//! Recall by words: how fast turns are taken in, how long a question takes, what the index weighs, and whether appends
//! notice it.
//!
//! The words are drawn as in real text: a few very often, most of them hardly ever, with names of files and functions
//! among them. A corpus of a handful of words would have every word in every turn.

use crate::corpus::{self, Filled, Words};
use crate::figures::{Samples, bytes, count, rate, time};
use crate::place::Place;
use crate::report::Row;
use crate::{Result, Scale};
use everturn_core::id::ConversationId;
use everturn_core::turn::Role;
use everturn_engine::{AppendOptions, Everturn, NewTurn, Options, RecallMode, RecallOptions, Scope};
use std::path::Path;
use std::time::{Duration, Instant};

/// Different words there are.
const VOCABULARY: u64 = 60_000;
/// Turns of one conversation.
const CONVERSATION_TURNS: u64 = 500;
/// Questions that are asked of each store.
const QUESTIONS: usize = 300;
/// Bytes of text in a turn: taken in rotation.
const TURN_BYTES: [usize; 8] = [120, 900, 200, 2400, 300, 700, 150, 1600];
/// Turns whose words questions are made of.
const SAMPLED_EVERY: u64 = 97;

pub fn run(place: &Place, scale: Scale) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let sizes = [10_000, 100_000, scale.long];
    for turns in sizes.into_iter().filter(|turns| *turns <= scale.long) {
        eprintln!("recall: {turns} turns");
        rows.extend(one(&place.file(&format!("recall-{turns}.db")), turns)?);
        if turns == scale.long {
            break;
        }
    }
    rows.push(appends(place, scale)?);
    Ok(rows)
}

fn one(path: &Path, turns: u64) -> Result<Vec<Row>> {
    let (filled, texts) = fill(path, turns)?;
    let before = filled.disk_bytes()?;
    let store = open(path, false)?;
    let started = Instant::now();
    store.index_now()?;
    let indexing = started.elapsed().as_secs_f64();
    let scope = store.tenant("bench")?;
    let of = count(turns as f64);
    let mut rows = vec![Row::new(
        format!("indexing {of} turns"),
        format!("{}, {:.1} s", rate(turns as f64 / indexing), indexing),
        "",
    )];
    let mut words = Words::default();
    let asked = |name: &str, questions: Vec<(String, Option<ConversationId>)>| -> Result<Row> {
        let (mut took, mut found) = (Samples::default(), 0);
        for (question, conversation) in &questions {
            let options = RecallOptions {
                conversation: *conversation,
                mode: RecallMode::Lexical,
                ..RecallOptions::default()
            };
            let started = Instant::now();
            let answer = scope.recall(question, &options)?;
            took.push_time(started.elapsed());
            found += usize::from(!answer.data.is_empty());
        }
        let (p50, p99) = (took.at(0.5), took.at(0.99));
        let share = format!("{found} of {} found something", questions.len());
        let row = Row::new(
            format!("recall in {of} turns, {name}"),
            format!("p50 {}, p99 {}", time(p50), time(p99)),
            share,
        );
        Ok(row.bar("p50 ≤ 20 ms", p50 <= 0.020))
    };
    let mut pick = |many: usize| -> Vec<&str> {
        let text = &texts[words.number() as usize % texts.len()].1;
        let all: Vec<&str> = text.split_whitespace().collect();
        (0..many).map(|_| all[words.number() as usize % all.len()]).collect()
    };
    let question = |words: Vec<&str>| (format!("what about the {}?", words.join(" ")), None);
    let short: Vec<_> = (0..QUESTIONS).map(|n| (pick(1 + n % 2).join(" "), None)).collect();
    let long: Vec<_> = (0..QUESTIONS).map(|n| question(pick(4 + n % 8))).collect();
    let phrases: Vec<_> = (0..QUESTIONS / 3)
        .map(|n| {
            let text = &texts[n * 7 % texts.len()].1;
            let all: Vec<&str> = text.split_whitespace().skip(2).take(2).collect();
            (format!("\"{}\"", all.join(" ")), None)
        })
        .collect();
    let within: Vec<_> = (0..QUESTIONS)
        .map(|n| {
            let (conversation, text) = &texts[n * 13 % texts.len()];
            (text.split_whitespace().skip(1).take(5).collect::<Vec<_>>().join(" "), Some(*conversation))
        })
        .collect();
    let common: Vec<_> =
        (0..QUESTIONS / 10).map(|n| (format!("{} {}", word(n as u64), word(n as u64 + 3)), None)).collect();
    for (name, questions) in [
        ("one or two words", short),
        ("questions of 7 to 14 words", long),
        ("phrases", phrases),
        ("in one conversation", within),
        ("the commonest words only", common),
    ] {
        rows.push(asked(name, questions)?);
    }
    drop((scope, store));
    let (after, json) = (filled.disk_bytes()?, filled.json_bytes()?);
    let show = |total: u64| format!("{}, {} a turn", bytes(total), bytes(total / turns));
    rows.push(
        Row::new(format!("store and index of {of} turns"), show(after), format!("{} as JSON", show(json)))
            .ratio(after as f64 / json as f64)
            .at_most(2.5),
    );
    rows.push(
        Row::new(
            format!("of it the index of {of} turns"),
            show(after - before),
            format!("{} as JSON", show(json)),
        )
        .ratio((after - before) as f64 / json as f64),
    );
    Ok(rows)
}

/// One writer appends to a store that indexes and to one that does not, in turns.
fn appends(place: &Place, scale: Scale) -> Result<Row> {
    let (with, without) = (open(&place.file("with.db"), true)?, open(&place.file("without.db"), false)?);
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
                scope.append(id, vec![turn], AppendOptions::default()).wait()?;
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

fn open(path: &Path, index: bool) -> Result<Everturn> {
    let url = format!("sqlite:{}", path.display());
    let sweep_every = Duration::from_secs(24 * 60 * 60);
    Ok(Everturn::open_with(&url, Options { sweep_every, index, ..Options::default() })?)
}

/// A store that is not indexed, and the texts of some of its turns.
fn fill(path: &Path, turns: u64) -> Result<(Filled, Vec<(ConversationId, String)>)> {
    let store = open(path, false)?;
    let scope = store.tenant("bench")?;
    let conversations = corpus::begin(&scope, turns.div_ceil(CONVERSATION_TURNS) as usize)?;
    let (mut words, mut texts) = (Words::default(), Vec::new());
    for (at, id) in conversations.iter().enumerate() {
        let first = at as u64 * CONVERSATION_TURNS;
        let batch: Vec<NewTurn> = (first..turns.min(first + CONVERSATION_TURNS))
            .map(|number| {
                let role = if number % 2 == 0 { Role::User } else { Role::Assistant };
                let text = text(&mut words, TURN_BYTES[number as usize % TURN_BYTES.len()]);
                if number % SAMPLED_EVERY == 0 {
                    texts.push((*id, text.clone()));
                }
                NewTurn::text(role, &text)
            })
            .collect();
        append(&scope, *id, batch)?;
    }
    Ok((Filled { path: path.to_path_buf(), conversations, turns }, texts))
}

fn append(scope: &Scope, id: ConversationId, turns: Vec<NewTurn>) -> Result<()> {
    scope.append(id, turns, AppendOptions::default()).wait()?;
    Ok(())
}

/// A text in which the word of rank n comes about n times more rarely than the first, and one of fifty words is a path
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
