//! Nearest vectors by a flat scan: one bit for each number finds candidates, the numbers themselves decide.
//!
//! A vector is kept in memory as the signs of its numbers ([`code`], 48 bytes for 384 dimensions) and stored
//! with eight bits a number ([`pack`]). A query counts differing signs over all [`Codes`], weighs the signs of
//! the best few thousand by its own numbers, takes the best few hundred of those, and compares them exactly
//! ([`rank`]). There is nothing to train or build, a removal leaves nothing behind, and any closure can be a
//! filter.
//!
//! This module knows neither models nor texts. Vectors of different models must not be mixed in one [`Codes`].

use std::ops::Range;

/// Number of candidates that are compared exactly. Measured on a million synthetic vectors around a thousand
/// centres: 98 of 100 true ten best are among them, and 88 are among the 400 with the fewest differing signs.
pub const RESCORED: usize = 600;

/// Number of rows to weigh, as a multiple of the number wanted.
pub const WEIGHED: usize = 7;

/// Number of rows whose distances are counted at a time: small enough to stay in the nearest cache.
const BLOCK: usize = 512;

/// The signs of many vectors of one length.
#[derive(Clone, Debug)]
pub struct Codes {
    dimensions: usize,
    words: usize,
    bits: Vec<u64>,
}

impl Codes {
    /// For vectors of this many dimensions.
    pub fn new(dimensions: usize) -> Codes {
        Codes { dimensions, words: dimensions.div_ceil(64).max(1), bits: Vec::new() }
    }

    /// Number of dimensions.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.bits.len() / self.words
    }

    /// Whether there are no vectors.
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// Appends a code made by [`code`]. `false` if its length differs.
    pub fn push(&mut self, code: &[u8]) -> bool {
        if code.len() != self.words * 8 {
            return false;
        }
        self.bits.extend(code.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        true
    }

    /// Reserves capacity for more rows.
    pub fn reserve(&mut self, rows: usize) {
        self.bits.reserve(rows * self.words);
    }

    /// Keeps the rows for which `keep` is true, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut kept = 0;
        for row in 0..self.len() {
            if keep(row) {
                let from = row * self.words;
                self.bits.copy_within(from..from + self.words, kept * self.words);
                kept += 1;
            }
        }
        self.bits.truncate(kept * self.words);
    }

    /// The rows of a range with the fewest differing signs that `keep` accepts, nearest first, each with its
    /// number of differing signs, at most `count`. Ties keep their order.
    pub fn nearest(
        &self,
        rows: Range<usize>,
        query: &[f32],
        count: usize,
        mut keep: impl FnMut(usize) -> bool,
    ) -> Vec<(u16, usize)> {
        let mut of_query = Codes::new(self.dimensions);
        let count = count.min(rows.len());
        if count == 0 || query.len() != self.dimensions || !of_query.push(&code(query)) {
            return Vec::new();
        }
        // Candidates so far: truncated to `count` whenever there are twice as many, after which nothing farther
        // than the last of those is considered.
        let mut best: Vec<(u16, usize)> = Vec::with_capacity(2 * count);
        let mut bound = u16::MAX;
        let mut distances = [0_u16; BLOCK];
        let bits = &self.bits[rows.start * self.words..rows.end * self.words];
        for (block, codes) in bits.chunks(BLOCK * self.words).enumerate() {
            let distances = &mut distances[..codes.len() / self.words];
            count_differing(&of_query.bits, codes, distances);
            for (at, &distance) in distances.iter().enumerate() {
                let row = rows.start + block * BLOCK + at;
                if distance >= bound || !keep(row) {
                    continue;
                }
                best.push((distance, row));
                if best.len() == 2 * count {
                    best.select_nth_unstable(count - 1);
                    best.truncate(count);
                    bound = best[count - 1].0;
                }
            }
        }
        best.sort_unstable();
        best.truncate(count);
        best
    }

    /// Of the rows found by [`nearest`](Codes::nearest), in one range or in several, those that are probably
    /// the nearest by their numbers, best first, at most `count`. A sign weighs as much as the magnitude of the
    /// query's number: near zero, a different sign means little. So [`WEIGHED`] times as many rows should have
    /// been found.
    pub fn likeliest(&self, query: &[f32], mut near: Vec<(u16, usize)>, count: usize) -> Vec<usize> {
        near.sort_unstable();
        near.truncate(count.saturating_mul(WEIGHED));
        if near.len() <= count {
            return near.into_iter().map(|(_, row)| row).collect();
        }
        // The combined weight of eight signs, for all 256 combinations.
        let worth: Vec<[f32; 256]> = query.chunks(8).map(worth_of_signs).collect();
        let mut weighed: Vec<(f32, usize)> = near
            .into_iter()
            .map(|(_, row)| {
                let signs = self.bits[row * self.words..][..self.words].iter().flat_map(|w| w.to_le_bytes());
                (signs.zip(&worth).map(|(signs, worth)| worth[usize::from(signs)]).sum(), row)
            })
            .collect();
        weighed.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        weighed.truncate(count);
        weighed.into_iter().map(|(_, row)| row).collect()
    }
}

/// For each combination of eight signs, the sum of the numbers whose sign is set.
fn worth_of_signs(numbers: &[f32]) -> [f32; 256] {
    let mut worth = [0.0; 256];
    for signs in 1..256_usize {
        let first = numbers.get(signs.trailing_zeros() as usize).copied().unwrap_or(0.0);
        worth[signs] = worth[signs & (signs - 1)] + first;
    }
    worth
}

/// The signs of a vector: a bit for each number, padded to eight bytes.
pub fn code(vector: &[f32]) -> Vec<u8> {
    let mut code = vec![0; vector.len().div_ceil(64).max(1) * 8];
    for (at, number) in vector.iter().enumerate() {
        code[at / 8] |= u8::from(*number > 0.0) << (at % 8);
    }
    code
}

/// Counts the differing bits between one code and each of many, with the fastest instructions of this
/// processor.
fn count_differing(query: &[u64], codes: &[u64], distances: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vpopcntdq") {
            // SAFETY: the processor has the features that the function is compiled for. The function itself is
            // safe code.
            return unsafe { count_avx512(query, codes, distances) };
        }
        if is_x86_feature_detected!("popcnt") {
            // SAFETY: as above.
            return unsafe { count_popcnt(query, codes, distances) };
        }
    }
    count_by_length(query, codes, distances);
}

// Without these two the compiler may only use instructions that every x86-64 processor has, which counts bits
// by arithmetic and takes five times as long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vpopcntdq")]
fn count_avx512(query: &[u64], codes: &[u64], distances: &mut [u16]) {
    count_by_length(query, codes, distances);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt")]
fn count_popcnt(query: &[u64], codes: &[u64], distances: &mut [u16]) {
    count_by_length(query, codes, distances);
}

/// With the usual lengths known, the inner loop is unrolled.
#[inline(always)]
fn count_by_length(query: &[u64], codes: &[u64], distances: &mut [u16]) {
    match query.len() {
        4 => count_of::<4>(query, codes, distances),
        6 => count_of::<6>(query, codes, distances),
        8 => count_of::<8>(query, codes, distances),
        12 => count_of::<12>(query, codes, distances),
        16 => count_of::<16>(query, codes, distances),
        24 => count_of::<24>(query, codes, distances),
        words => {
            for (code, distance) in codes.chunks_exact(words).zip(distances) {
                *distance = code.iter().zip(query).map(|(a, b)| (a ^ b).count_ones() as u16).sum();
            }
        }
    }
}

#[inline(always)]
fn count_of<const WORDS: usize>(query: &[u64], codes: &[u64], distances: &mut [u16]) {
    let Some(query) = query.first_chunk::<WORDS>() else { return };
    for (code, distance) in codes.as_chunks::<WORDS>().0.iter().zip(distances) {
        let mut differing = 0;
        for word in 0..WORDS {
            differing += (code[word] ^ query[word]).count_ones();
        }
        *distance = differing as u16;
    }
}

/// A packed vector begins with the scale of its bytes.
const SCALE_BYTES: usize = 4;

/// Packs a vector into a quarter of its size: a scale and a signed byte for each number. It is normalised to
/// length 1 first, so that [`similarity`] is the cosine. `None` for a vector without a direction: no numbers,
/// all zero, or not finite.
pub fn pack(vector: &[f32]) -> Option<Vec<u8>> {
    let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    let largest = vector.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    if !length.is_finite() || length <= 0.0 || largest <= 0.0 {
        return None;
    }
    let step = largest / 127.0;
    let mut packed = Vec::with_capacity(SCALE_BYTES + vector.len());
    packed.extend_from_slice(&((f64::from(step) / length) as f32).to_le_bytes());
    packed.extend(vector.iter().map(|number| ((number / step).round() as i8).cast_unsigned()));
    Some(packed)
}

/// The cosine between a vector of length 1 and a packed one. `None` if their lengths differ.
pub fn similarity(query: &[f32], packed: &[u8]) -> Option<f32> {
    let (scale, numbers) = packed.split_first_chunk::<SCALE_BYTES>()?;
    if numbers.len() != query.len() {
        return None;
    }
    // Eight sums side by side, since the compiler must not reorder additions by itself.
    let mut sums = [0.0_f32; 8];
    let (query, query_rest) = query.as_chunks::<8>();
    let (numbers, numbers_rest) = numbers.as_chunks::<8>();
    for (query, numbers) in query.iter().zip(numbers) {
        for at in 0..8 {
            sums[at] += query[at] * f32::from(numbers[at].cast_signed());
        }
    }
    let rest: f32 = query_rest.iter().zip(numbers_rest).map(|(q, n)| q * f32::from(n.cast_signed())).sum();
    Some((sums.iter().sum::<f32>() + rest) * f32::from_le_bytes(*scale))
}

/// The vector scaled to length 1. `None` for one without a direction.
pub fn normalized(vector: &[f32]) -> Option<Vec<f32>> {
    let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    (length.is_finite() && length > 0.0)
        .then(|| vector.iter().map(|number| (f64::from(*number) / length) as f32).collect())
}

/// The cosine between two vectors; 0 if one has no direction.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

/// Ranks candidates by their packed vectors, best first; ties keep their order. One of another length is left
/// out.
pub fn rank<T: Ord + Copy>(
    query: &[f32],
    candidates: impl IntoIterator<Item = (T, Vec<u8>)>,
) -> Vec<(T, f32)> {
    let mut ranked: Vec<(T, f32)> = candidates
        .into_iter()
        .filter_map(|(candidate, packed)| similarity(query, &packed).map(|score| (candidate, score)))
        .collect();
    ranked.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked
}
