//! Random choices that come again from their seed.

/// Xorshift: enough to vary a test, and the same on every machine.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Neighbouring seeds begin alike; a few rounds apart they do not.
        for _ in 0..8 {
            dice.next();
        }
        dice
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        (self.next() % sides as u64) as usize
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

/// Says the seed if the test fails while this is alive.
pub struct ToldOnFailure(pub u64);

impl Drop for ToldOnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat this run: EVERTURN_SEED={}", self.0);
        }
    }
}
