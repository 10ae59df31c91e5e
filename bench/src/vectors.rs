//! The nearest of many vectors: one-bit codes and rescoring against comparing all of them.
//!
//! Vectors are made up: around one centre for every hundred of them, as texts about the same thing lie together. Everything is
//! in memory here, so that the scan is measured and not a disk.

use crate::figures::{Samples, time};
use crate::report::Row;
use crate::{Result, Scale};
use everturn_core::vectors::{Codes, RESCORED, code, normalized, pack, rank, similarity};
use std::time::Instant;

/// Numbers in a vector: those of the built-in embedder.
const DIMENSIONS: usize = 384;
/// How far from their centre vectors lie, as part of the centre's own size.
const SPREAD: f32 = 0.9;
/// Questions for each size.
const QUESTIONS: usize = 50;

pub fn run(scale: Scale) -> Result<Vec<Row>> {
    [10_000, 100_000, scale.long as usize].into_iter().map(measure).collect()
}

fn measure(count: usize) -> Result<Row> {
    let mut noise = Noise(7);
    let centres: Vec<Vec<f32>> = (0..count.div_ceil(100)).map(|_| noise.vector()).collect();
    let mut codes = Codes::new(DIMENSIONS);
    let mut packed = Vec::with_capacity(count);
    for at in 0..count {
        let vector = noise.near(&centres[at % centres.len()]);
        codes.push(&code(&vector));
        packed.push(pack(&vector).ok_or("a made up vector has a direction")?);
    }
    let (mut scanned, mut compared, mut hits) = (Samples::default(), Samples::default(), 0);
    for question in 0..QUESTIONS {
        let query = noise.near(&centres[question * 31 % centres.len()]);
        let query = normalized(&query).ok_or("a made up vector has a direction")?;
        let began = Instant::now();
        let candidates = codes.nearest(&query, RESCORED, |_| true);
        let found = rank(&query, candidates.into_iter().map(|row| (row, packed[row].clone())));
        scanned.push_time(began.elapsed());
        let began = Instant::now();
        let mut exact: Vec<(usize, f32)> = packed
            .iter()
            .enumerate()
            .filter_map(|(row, packed)| Some((row, similarity(&query, packed)?)))
            .collect();
        exact.select_nth_unstable_by(9, |a, b| b.1.total_cmp(&a.1));
        compared.push_time(began.elapsed());
        hits +=
            exact[..10].iter().filter(|(row, _)| found[..10].iter().any(|(found, _)| found == row)).count();
    }
    let recall = hits as f64 / (10 * QUESTIONS) as f64;
    let what = format!("the ten nearest of {count} vectors of {DIMENSIONS} numbers, recall@10 {recall:.3}");
    let measured =
        format!("{}, codes of {} MiB", time(scanned.median()), count * DIMENSIONS / 8 / 1024 / 1024);
    let against = format!("{} comparing all", time(compared.median()));
    Ok(Row::new(what, measured, against)
        .ratios(&scanned.over(&compared))
        .bar("recall@10 ≥ 0.95", recall >= 0.95))
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    fn vector(&mut self) -> Vec<f32> {
        (0..DIMENSIONS).map(|_| self.next()).collect()
    }

    fn near(&mut self, centre: &[f32]) -> Vec<f32> {
        centre.iter().map(|at| at + SPREAD * self.next()).collect()
    }
}
