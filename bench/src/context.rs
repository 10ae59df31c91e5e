//! Building a context of a long conversation against one of a short one, warm and from a store that was just opened.

use crate::allocations;
use crate::corpus::{self, Filled};
use crate::figures::{Samples, count, time};
use crate::report::Row;
use crate::{Result, Scale};
use everturn_engine::ContextOptions;
use std::hint::black_box;
use std::time::Instant;

/// Number of contexts of one conversation before switching to the other.
const BUILT: usize = 20;
/// The budget in docs/BENCHMARKS.md.
const BUDGET: u64 = 8000;

pub fn run(short: &Filled, long: &Filled, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("context: {} against {} turns", long.turns, short.turns);
    let options = ContextOptions::new(BUDGET);
    let lengths = format!("{} against {} turns", count(long.turns as f64), count(short.turns as f64));
    let mut warm = [Samples::default(), Samples::default()];
    let mut allocated = [0, 0];
    {
        let stores = [corpus::open(&short.url)?, corpus::open(&long.url)?];
        let scopes = [stores[0].tenant("bench")?, stores[1].tenant("bench")?];
        for round in 0..scale.rounds * 2 + 2 {
            for (side, filled) in [short, long].into_iter().enumerate() {
                let mut batch = Samples::default();
                for _ in 0..BUILT {
                    let started = Instant::now();
                    let context = black_box(
                        scopes[side].conversation(filled.conversations[0]).contexts().build(&options)?,
                    );
                    batch.push_time(started.elapsed());
                    let used = context.tokens.used;
                    if !(BUDGET / 2..=BUDGET).contains(&used) {
                        return Err(
                            format!("a context of {used} tokens does not measure what it should").into()
                        );
                    }
                }
                if round >= 2 {
                    warm[side].push(batch.median());
                }
            }
        }
        for (side, filled) in [short, long].into_iter().enumerate() {
            let built = || scopes[side].conversation(filled.conversations[0]).contexts().build(&options);
            allocated[side] = allocations::of(built).0;
        }
    }
    let mut cold = [Samples::default(), Samples::default()];
    for round in 0..scale.rounds + 1 {
        for (side, filled) in [short, long].into_iter().enumerate() {
            let store = corpus::open(&filled.url)?;
            let scope = store.tenant("bench")?;
            let started = Instant::now();
            black_box(scope.conversation(filled.conversations[0]).contexts().build(&options)?);
            // The first round also loads the vocabulary.
            if round > 0 {
                cold[side].push_time(started.elapsed());
            }
        }
    }
    let row = |what: &str, [short, long]: &[Samples; 2]| {
        Row::new(format!("{what}, {lengths}"), time(long.median()), time(short.median()))
            .ratios(&long.over(short))
            .at_most(1.5)
    };
    let [few, many] = allocated;
    let allocations =
        Row::new(format!("allocations of one, {lengths}"), count(many as f64), count(few as f64))
            .ratio(many as f64 / few.max(1) as f64);
    Ok(vec![
        row("a context of 8,000 tokens", &warm),
        row("the same from a store that was just opened", &cold),
        allocations,
    ])
}
