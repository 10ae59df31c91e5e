//! Random choices that come again from their seed.

pub struct Dice(fastrand::Rng);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(fastrand::Rng::with_seed(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0.usize(..sides)
    }

    /// True once in `sides` times.
    pub fn once_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.roll(of.len())]
    }
}

/// The seed to begin with: the environment's, or this one.
pub fn seed(default: u64) -> u64 {
    match std::env::var("EVERTURN_SEED") {
        Ok(text) => text.parse().expect("EVERTURN_SEED is a number"),
        Err(_) => default,
    }
}

/// How often something drawn at random is repeated: this often, times `EVERTURN_TEST_ROUNDS`, which `./test soak` sets.
pub fn rounds(each: u64) -> u64 {
    let rounds = std::env::var("EVERTURN_TEST_ROUNDS").map(|text| text.parse::<u64>());
    each * rounds.unwrap_or(Ok(1)).expect("EVERTURN_TEST_ROUNDS is a number")
}

/// Says the seed if the test fails while this is alive.
pub struct ToldOnFailure(pub u64);

impl Drop for ToldOnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat this run: EVERTURN_SEED={}", self.0);
        }
    }
}
