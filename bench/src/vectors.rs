//! Nearest vectors: one-bit codes and rescoring against comparing all of them.
//!
//! Vectors are synthetic: around one centre for every hundred of them, like texts about the same subject; then
//! around one for every thousand, which is more than are compared exactly, and for every ten thousand. Around a
//! centre they lie in all directions alike, which is harder than texts are. Everything is in memory here, so
//! that the scan is measured and not a disk. Times are processor times.

use crate::figures::{Samples, time};
use crate::processor;
use crate::report::Row;
use crate::{Result, Scale};
use everturn_engine::Error;
use everturn_engine::model::{BuiltinEmbedder, Embed};
use everturn_views::vectors::{Codes, RESCORED, WEIGHED, code, normalized, pack, rank, similarity};
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;

/// Number of dimensions: that of the built-in embedding model.
const DIMENSIONS: usize = 256;
/// Distance of vectors from their centre, relative to the centre's own size.
const SPREAD: f32 = 0.9;
/// Number of queries for each size.
const QUESTIONS: usize = 50;

pub fn run(scale: Scale) -> Result<Vec<Row>> {
    let long = scale.long as usize;
    [(10_000, 100), (100_000, 100), (long, 100), (long, 1_000), (long, 10_000)]
        .into_iter()
        .map(|(count, together)| measure(count, together))
        .collect()
}

fn measure(count: usize, together: usize) -> Result<Row> {
    let mut noise = Noise(7);
    let centres: Vec<Vec<f32>> = (0..count.div_ceil(together)).map(|_| noise.vector()).collect();
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
        let (took, found) = processor::once(|| {
            let near = codes.nearest(0..count, &query, RESCORED * WEIGHED, |_| true);
            let candidates = codes.likeliest(&query, near, RESCORED);
            rank(&query, candidates.into_iter().map(|row| (row, packed[row].clone())))
        });
        scanned.push(took / 1e6);
        let (took, exact) = processor::once(|| {
            let all = packed.iter().enumerate();
            let mut all: Vec<(usize, f32)> =
                all.filter_map(|(row, packed)| Some((row, similarity(&query, packed)?))).collect();
            all.select_nth_unstable_by(9, |a, b| b.1.total_cmp(&a.1));
            all
        });
        compared.push(took / 1e6);
        hits +=
            exact[..10].iter().filter(|(row, _)| found[..10].iter().any(|(found, _)| found == row)).count();
    }
    let recall = hits as f64 / (10 * QUESTIONS) as f64;
    let what = format!(
        "the ten nearest of {count} vectors of {DIMENSIONS} numbers, {together} around each centre: recall@10 {recall:.3}"
    );
    let measured =
        format!("{}, codes of {} MiB", time(scanned.median()), count * DIMENSIONS / 8 / 1024 / 1024);
    let against = format!("{} comparing all", time(compared.median()));
    Ok(Row::new(what, measured, against)
        .ratios(&scanned.over(&compared))
        .bar("recall@10 ≥ 0.95", recall >= 0.95))
}

/// Text of queries. The model splits made-up words into twice as many pieces, and would take that much longer.
const ENGLISH: &str = "which port did we choose for the new server when the old deployment failed last week and who said that \
    every service should keep its own log file instead of writing to one shared table because the nightly backup was slow \
    after somebody changed the default settings in production without telling anybody about the missing index on orders";

/// Synthetic embeddings for many texts at a time, as for turns, around the same centres; for a single text, as
/// for queries, the built-in model reads as many words of English.
pub struct MadeUp {
    real: BuiltinEmbedder,
    noise: Mutex<Noise>,
    centres: Vec<Vec<f32>>,
}

impl MadeUp {
    /// Always the same ones.
    pub fn new() -> MadeUp {
        let mut noise = Noise(7);
        let centres = (0..1000).map(|_| noise.vector()).collect();
        MadeUp { real: BuiltinEmbedder::new(), noise: Mutex::new(noise), centres }
    }
}

impl Embed for MadeUp {
    fn model(&self) -> &str {
        "made-up"
    }

    fn dimensions(&self) -> Option<usize> {
        Some(DIMENSIONS)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>> {
        if let [question] = &texts[..] {
            let (words, from) =
                (question.split_whitespace().count(), question.bytes().map(usize::from).sum::<usize>());
            let read: Vec<&str> = ENGLISH.split_whitespace().cycle().skip(from % 58).take(words).collect();
            return self.real.embed(vec![read.join(" ")]);
        }
        let mut noise = self.noise.lock();
        let centre = |text: &String| &self.centres[text.len() * 31 % self.centres.len()];
        let vectors = texts.iter().map(|text| noise.near(centre(text))).collect();
        Box::pin(ready(Ok(vectors)))
    }
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
