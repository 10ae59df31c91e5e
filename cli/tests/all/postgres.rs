//! Several servers on one PostgreSQL, with real processes and real faults.
//!
//! `./test postgres` names the programs of PostgreSQL in `EVERTURN_TEST_POSTGRES_BIN`; without it these tests say that
//! they are skipped. `EVERTURN_TEST_ROUNDS` repeats them.

mod cluster;
mod faults;
mod history;
mod load;
mod operating;
mod pooler;
mod proxy;
mod ready;

use std::time::{Duration, Instant};

/// Longest time for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test as often as wanted, or says that it is skipped.
fn rounds(round: impl Fn(u64)) {
    if std::env::var("EVERTURN_TEST_POSTGRES_BIN").is_err() {
        eprintln!("skipped: EVERTURN_TEST_POSTGRES_BIN names no PostgreSQL; use ./test postgres");
        return;
    }
    let rounds = std::env::var("EVERTURN_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for nth in 1..=rounds {
        let began = Instant::now();
        round(nth);
        eprintln!("round {nth} of {rounds}: {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}
