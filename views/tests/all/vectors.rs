//! Nearest vectors, compared with a plain exact search.

use everturn_views::vectors::{Codes, RESCORED, WEIGHED, code, normalized, pack, rank, similarity};
use proptest::prelude::*;

struct Noise(fastrand::Rng);

impl Noise {
    fn new(seed: u64) -> Noise {
        Noise(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self) -> f32 {
        2.0 * self.0.f32() - 1.0
    }

    fn vector(&mut self, dimensions: usize) -> Vec<f32> {
        (0..dimensions).map(|_| self.next()).collect()
    }

    fn near(&mut self, centre: &[f32], spread: f32) -> Vec<f32> {
        centre.iter().map(|number| number + spread * self.next()).collect()
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        (ab, aa, bb) = (ab + a * b, aa + a * a, bb + b * b);
    }
    ab / (aa * bb).sqrt()
}

fn exact(vectors: &[Vec<f32>], query: &[f32], count: usize, keep: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut rows: Vec<(usize, f32)> = vectors
        .iter()
        .enumerate()
        .filter(|(row, _)| keep(*row))
        .map(|(row, vector)| (row, cosine(vector, query)))
        .collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows.into_iter().take(count).map(|(row, _)| row).collect()
}

fn codes(vectors: &[Vec<f32>], dimensions: usize) -> Codes {
    let mut codes = Codes::new(dimensions);
    assert!(vectors.iter().all(|vector| codes.push(&code(vector))));
    codes
}

fn found(vectors: &[Vec<f32>], codes: &Codes, query: &[f32], keep: impl Fn(usize) -> bool) -> Vec<usize> {
    let near = codes.nearest(0..codes.len(), query, RESCORED * WEIGHED, keep);
    let candidates = codes.likeliest(query, near, RESCORED);
    let packed = candidates.into_iter().filter_map(|row| Some((row, pack(&vectors[row])?)));
    rank(&normalized(query).unwrap(), packed).into_iter().take(10).map(|(row, _)| row).collect()
}

/// Sentences about the same subject form clusters: with queries near one of them, at least 19 of 20 of the ten
/// best are found, with and without a filter.
#[test]
fn the_ten_nearest_of_clustered_vectors_are_found() {
    const DIMENSIONS: usize = 384;
    let mut noise = Noise::new(7);
    let centres: Vec<Vec<f32>> = (0..200).map(|_| noise.vector(DIMENSIONS)).collect();
    let vectors: Vec<Vec<f32>> =
        (0..6_000).map(|row| noise.near(&centres[row * 7 % centres.len()], 0.9)).collect();
    let codes = codes(&vectors, DIMENSIONS);
    for (name, every) in [("all", 1), ("one in 20", 20)] {
        let keep = |row: usize| row.is_multiple_of(every);
        let (mut hits, mut wanted) = (0, 0);
        for question in 0..20 {
            let query = noise.near(&centres[question * 3], 0.9);
            let truth = exact(&vectors, &query, 10, keep);
            let got = found(&vectors, &codes, &query, keep);
            assert!(got.iter().all(|row| keep(*row)), "{name}: a filter holds");
            wanted += truth.len();
            hits += truth.iter().filter(|row| got.contains(row)).count();
        }
        let recall = hits as f64 / wanted as f64;
        assert!(recall >= 0.95, "{name}: recall@10 is {recall}");
    }
}

/// Where a cluster has more vectors than are compared exactly, weighing the signs finds what counting them
/// misses.
#[test]
fn the_ten_nearest_of_a_crowd_are_found() {
    const DIMENSIONS: usize = 384;
    let mut noise = Noise::new(11);
    let centres: Vec<Vec<f32>> = (0..4).map(|_| noise.vector(DIMENSIONS)).collect();
    let vectors: Vec<Vec<f32>> = (0..6_000).map(|row| noise.near(&centres[row % 4], 0.9)).collect();
    let codes = codes(&vectors, DIMENSIONS);
    let (mut weighed, mut counted) = (0, 0);
    for question in 0..20 {
        let query = noise.near(&centres[question % 4], 0.9);
        let truth = exact(&vectors, &query, 10, |_| true);
        let of = |rows: Vec<usize>| truth.iter().filter(|row| rows.contains(row)).count();
        let near = codes.nearest(0..codes.len(), &query, RESCORED * WEIGHED, |_| true);
        counted += of(near[..RESCORED].iter().map(|(_, row)| *row).collect());
        weighed += of(codes.likeliest(&query, near, RESCORED));
    }
    assert!(weighed >= 190 && weighed > counted, "{weighed} of 200, {counted} by counting");
}

#[test]
fn removed_rows_are_gone_and_the_others_stay_in_order() {
    let mut noise = Noise::new(3);
    let mut vectors: Vec<Vec<f32>> = (0..9).map(|_| noise.vector(70)).collect();
    let mut codes = codes(&vectors, 70);
    for every in [4, 2] {
        codes.retain(|row| row % every != 1);
        let mut row = 0;
        vectors.retain(|_| {
            row += 1;
            (row - 1) % every != 1
        });
        assert_eq!(codes.len(), vectors.len());
        for (row, vector) in vectors.iter().enumerate() {
            let nearest = codes.nearest(0..codes.len(), vector, 1, |_| true);
            assert_eq!(nearest, [(0, row)], "its own code is the nearest");
        }
    }
}

#[test]
fn what_has_another_length_or_no_direction_is_left_out() {
    let mut codes = Codes::new(3);
    assert!(!codes.push(&code(&[1.0; 65])) && !codes.push(&[1, 2]) && codes.is_empty());
    assert!(codes.push(&code(&[1.0, -2.0, 0.5])));
    assert!(codes.nearest(0..1, &[1.0], 5, |_| true).is_empty());
    for vector in [&[][..], &[0.0, 0.0], &[f32::NAN, 1.0], &[f32::INFINITY, 1.0]] {
        assert_eq!(pack(vector), None, "{vector:?}");
        assert_eq!(normalized(vector), None, "{vector:?}");
    }
    assert_eq!(similarity(&[1.0, 0.0], &pack(&[1.0, 0.0, 0.0]).unwrap()), None);
    assert_eq!(similarity(&[1.0], &[1, 2]), None, "bytes that are no vector");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With few rows every one is a candidate, so the result equals that of the plain search, except for
    /// vectors that are closer together than a byte can distinguish.
    #[test]
    fn few_rows_are_ranked_as_a_plain_search_ranks_them(
        seed in any::<u64>(), rows in 1_usize..200, dimensions in 1_usize..130, every in 1_usize..4,
    ) {
        let mut noise = Noise::new(seed);
        let vectors: Vec<Vec<f32>> = (0..rows).map(|_| noise.vector(dimensions)).collect();
        let query = noise.vector(dimensions);
        let keep = |row: usize| row.is_multiple_of(every);
        let truth = exact(&vectors, &query, 10, keep);
        let got = found(&vectors, &codes(&vectors, dimensions), &query, keep);
        prop_assert_eq!(got.len(), truth.len());
        for (got, truth) in got.iter().zip(&truth) {
            let (got, truth) = (cosine(&vectors[*got], &query), cosine(&vectors[*truth], &query));
            prop_assert!((got - truth).abs() < 0.02, "{} instead of {}", got, truth);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Codes are ordered by differing signs, for any length and any number of results.
    #[test]
    fn codes_are_ranked_by_differing_signs(
        seed in any::<u64>(), rows in 1_usize..700, words in 1_usize..26, count in 1_usize..40,
    ) {
        let dimensions = words * 64 - (seed % 64) as usize;
        let mut noise = Noise::new(seed);
        let vectors: Vec<Vec<f32>> = (0..rows).map(|_| noise.vector(dimensions)).collect();
        let query = noise.vector(dimensions);
        let differing = |row: &usize| {
            vectors[*row].iter().zip(&query).filter(|(a, b)| (**a > 0.0) != (**b > 0.0)).count()
        };
        let mut truth: Vec<usize> = (0..rows).collect();
        truth.sort_by_cached_key(differing);
        truth.truncate(count);
        let codes = codes(&vectors, dimensions);
        let got = codes.nearest(0..rows, &query, count, |_| true);
        prop_assert!(got.iter().all(|(told, row)| usize::from(*told) == differing(row)));
        prop_assert_eq!(
            got.iter().map(|(_, row)| differing(row)).collect::<Vec<_>>(),
            truth.iter().map(differing).collect::<Vec<_>>()
        );
        // Two halves give the same result.
        let half = seed as usize % rows;
        let mut parts = codes.nearest(0..half, &query, count, |_| true);
        parts.extend(codes.nearest(half..rows, &query, count, |_| true));
        parts.sort_unstable();
        parts.truncate(count);
        prop_assert_eq!(parts, got);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A packed vector has the same similarity as the original, within the precision of a byte.
    #[test]
    fn packing_loses_little(seed in any::<u64>(), dimensions in 1_usize..400) {
        let mut noise = Noise::new(seed);
        let (vector, query) = (noise.vector(dimensions), noise.vector(dimensions));
        let unit = normalized(&query).unwrap();
        let packed = pack(&vector).unwrap();
        let similar = similarity(&unit, &packed).unwrap();
        prop_assert!((similar - cosine(&vector, &query)).abs() < 0.02);
        prop_assert_eq!(rank(&unit, [(1, packed)]), [(1, similar)]);
    }
}
