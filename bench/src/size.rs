//! Size of a store against the size of its turns as JSON.

use crate::corpus::{self, Corpus, Filled};
use crate::figures::{bytes, count};
use crate::place::Scratch;
use crate::report::Row;
use crate::{Result, Scale};

/// Measures stores of its own, and `large` if it exists already.
pub fn run(place: &Scratch, scale: Scale, large: Option<&Filled>) -> Result<Vec<Row>> {
    eprintln!("size: {} turns each", scale.sized);
    let alike = |bytes| Corpus::one(scale.sized, bytes);
    // Many conversations that grow together, a question and its answer at a time: their rows are not adjacent.
    let mixed = Corpus {
        conversations: 100,
        turns: scale.sized,
        text_bytes: vec![100, 1024, 200, 4096, 300, 600, 200, 2048],
        batch: 2,
    };
    let kinds = [
        ("turns of 200 B", alike(200)),
        ("turns of 1 KiB", alike(1024)),
        ("turns of 4 KiB", alike(4096)),
        ("turns of 100 B to 4 KiB in 100 conversations", mixed),
    ];
    let mut rows = Vec::new();
    if let Some(large) = large {
        rows.push(row("turns of 200 B", large)?);
    }
    for (number, (name, corpus)) in kinds.into_iter().enumerate() {
        rows.push(row(name, &corpus::fill(&place.store(&format!("size-{number}.db")), &corpus)?)?);
    }
    Ok(rows)
}

fn row(name: &str, filled: &Filled) -> Result<Row> {
    let (disk, json) = (filled.disk_bytes()?, filled.json_bytes()?);
    let show = |total: u64| format!("{}, {} a turn", bytes(total), bytes(total / filled.turns));
    Ok(Row::new(
        format!("store size, {} {name}", count(filled.turns as f64)),
        show(disk),
        format!("{} as JSON", show(json)),
    )
    .ratio(disk as f64 / json as f64)
    .at_most(1.5))
}
