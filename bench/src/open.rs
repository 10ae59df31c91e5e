//! Opening a large store against opening a small one.

use crate::corpus::{self, Filled};
use crate::figures::{Samples, count, time};
use crate::report::Row;
use crate::{Result, Scale};
use everturn_engine::{HistoryQuery, Order};
use std::time::Instant;

/// The bar in docs/BENCHMARKS.md, in seconds.
const OPEN_MAX_S: f64 = 0.1;

pub fn run(short: &Filled, long: &Filled, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("open: {} rounds", scale.rounds);
    let mut opened = [Samples::default(), Samples::default()];
    let mut answered = [Samples::default(), Samples::default()];
    for _ in 0..scale.rounds {
        for (side, filled) in [short, long].into_iter().enumerate() {
            let started = Instant::now();
            let store = corpus::open(&filled.url)?;
            opened[side].push_time(started.elapsed());
            let last = HistoryQuery { order: Order::Descending, ..HistoryQuery::default() };
            store.tenant("bench")?.conversation(filled.conversations[0]).history(last)?;
            answered[side].push_time(started.elapsed());
        }
    }
    // A store has one event more than turns: the one that began the conversation.
    let events = format!("{} against {} events", count(long.turns as f64), count(short.turns as f64));
    let row = |what: &str, [short, long]: &[Samples; 2]| {
        let met = long.median() <= OPEN_MAX_S;
        Row::new(format!("{what}, {events}"), time(long.median()), time(short.median()))
            .ratios(&long.over(short))
            .bar("≤ 100 ms", met)
    };
    Ok(vec![row("opening a store", &opened), row("opening a store and reading the last 50 turns", &answered)])
}
