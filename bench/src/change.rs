//! Forking a long conversation and erasing one of its turns, against the same in a short one.

use crate::corpus::{self, Filled};
use crate::figures::{Samples, count, time};
use crate::report::Row;
use crate::{Result, Scale};
use everturn_core::id::TurnId;
use everturn_engine::{HistoryEntry, HistoryQuery, Order};
use std::time::Instant;

pub fn run(short: &Filled, long: &Filled, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("change: {} against {} turns", long.turns, short.turns);
    let stores = [corpus::open(&short.url)?, corpus::open(&long.url)?];
    let scopes = [stores[0].tenant("bench")?, stores[1].tenant("bench")?];
    let conversations = [short.conversations[0], long.conversations[0]];
    let mut last: [Vec<TurnId>; 2] = Default::default();
    for side in [0, 1] {
        let query = HistoryQuery { limit: scale.rounds, order: Order::Descending, ..HistoryQuery::default() };
        let page = scopes[side].conversation(conversations[side]).history(query)?;
        last[side] = page
            .data
            .iter()
            .filter_map(|entry| match entry {
                HistoryEntry::Turn(turn) => Some(turn.id),
                _ => None,
            })
            .collect();
    }
    let [mut forks, mut erasures] =
        [[Samples::default(), Samples::default()], [Samples::default(), Samples::default()]];
    let [short_turns, long_turns] = &last;
    for turns in short_turns.iter().zip(long_turns).map(|(short, long)| [short, long]) {
        for side in [0, 1] {
            let (scope, id) = (&scopes[side], conversations[side]);
            let head = scope.conversation(id).get()?.head.seq;
            let began = Instant::now();
            scope.conversation(id).fork(head).wait()?;
            forks[side].push_time(began.elapsed());
        }
        for side in [0, 1] {
            let began = Instant::now();
            scopes[side].conversation(conversations[side]).erase(*turns[side], None, "measured").wait()?;
            erasures[side].push_time(began.elapsed());
        }
    }
    let lengths = format!("{} against {} turns", count(long.turns as f64), count(short.turns as f64));
    let rows = [("forking a conversation", forks), ("erasing a turn", erasures)].map(|(what, times)| {
        Row::new(format!("{what}, {lengths}"), time(times[1].median()), time(times[0].median()))
            .ratios(&times[1].over(&times[0]))
            .at_most(1.5)
    });
    Ok(rows.into())
}
