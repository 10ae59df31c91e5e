//! Pages of a long conversation against those of a short one.

use crate::corpus::{self, Filled, Words};
use crate::figures::{Samples, count, time};
use crate::report::Row;
use crate::{Result, Scale};
use everturn_core::id::ConversationId;
use everturn_engine::{HistoryQuery, Order, Tenant};
use std::hint::black_box;
use std::time::Instant;

/// Number of reads of one conversation before switching to the other.
const READS: usize = 50;
const PAGE: usize = 50;

/// A way to read; `words` choose a random position.
type Read = fn(&Tenant, ConversationId, turns: u64, words: &mut Words) -> Result<usize>;

pub fn run(short: &Filled, long: &Filled, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("read: {} against {} turns", long.turns, short.turns);
    let stores = [corpus::open(&short.url)?, corpus::open(&long.url)?];
    let scopes = [stores[0].tenant("bench")?, stores[1].tenant("bench")?];
    let reads: [(&str, Read, bool); 5] = [
        ("the last 50 turns", |scope, id, _, _| page(scope, id, None, Order::Descending), true),
        (
            "50 turns from the middle",
            |scope, id, turns, _| page(scope, id, Some(turns / 2), Order::Ascending),
            true,
        ),
        ("the first 50 turns", |scope, id, _, _| page(scope, id, None, Order::Ascending), true),
        (
            "50 events from the middle",
            |scope, id, turns, _| Ok(scope.conversation(id).log().read(turns / 2, PAGE)?.len()),
            true,
        ),
        (
            "50 turns from anywhere: more than SQLite's cache holds",
            |scope, id, turns, words| {
                page(scope, id, Some(words.number() % (turns - PAGE as u64)), Order::Ascending)
            },
            false,
        ),
    ];
    let lengths = format!("{} against {} turns", count(long.turns as f64), count(short.turns as f64));
    let mut rows = Vec::new();
    for (name, read, promised) in reads {
        let mut words = Words::default();
        let mut times = [Samples::default(), Samples::default()];
        // Two more than are counted, to warm up.
        for round in 0..scale.rounds * 2 + 2 {
            for (side, filled) in [short, long].into_iter().enumerate() {
                let mut batch = Samples::default();
                for _ in 0..READS {
                    let started = Instant::now();
                    let found =
                        black_box(read(&scopes[side], filled.conversations[0], filled.turns, &mut words)?);
                    batch.push_time(started.elapsed());
                    if found != PAGE {
                        return Err(format!("{name}: {found} entries instead of {PAGE}").into());
                    }
                }
                if round >= 2 {
                    times[side].push(batch.median());
                }
            }
        }
        let row = Row::new(format!("{name}, {lengths}"), time(times[1].median()), time(times[0].median()))
            .ratios(&times[1].over(&times[0]));
        rows.push(if promised { row.at_most(1.5) } else { row });
    }
    Ok(rows)
}

fn page(scope: &Tenant, id: ConversationId, after: Option<u64>, order: Order) -> Result<usize> {
    let query = HistoryQuery { after, limit: PAGE, order, ..HistoryQuery::default() };
    Ok(scope.conversation(id).history(query)?.data.len())
}
