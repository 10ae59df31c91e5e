//! The only access to time and randomness. Everything below takes both as arguments.

use everturn_core::Error;
use everturn_core::event::Body;
use everturn_core::time::Timestamp;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use ulid::Ulid;

/// Source of time and randomness. The system's by default; a seeded one makes a run repeatable.
pub trait World: Send + Sync {
    /// The time now. It may jump back: order never depends on it.
    fn now(&self) -> Timestamp;
    /// Fills the buffer with unpredictable bytes.
    fn fill(&self, buffer: &mut [u8]) -> Result<(), Error>;
}

/// The machine's own clock and random numbers.
pub struct SystemWorld;

impl World for SystemWorld {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn fill(&self, buffer: &mut [u8]) -> Result<(), Error> {
        getrandom::fill(buffer)
            .map_err(|e| Error::internal("random.unavailable", format!("no random numbers: {e}")))
    }
}

/// Times, ids and salts for new events.
pub struct Source {
    world: Arc<dyn World>,
    state: Mutex<State>,
}

struct State {
    last: Ulid,
    /// Random bytes fetched ahead: asking the system for sixteen at a time costs more than hashing them.
    pool: [u8; POOL_BYTES],
    used: usize,
}

const POOL_BYTES: usize = 4096;

impl Source {
    pub fn new(world: Arc<dyn World>) -> Source {
        Source {
            world,
            state: Mutex::new(State { last: Ulid::nil(), pool: [0; POOL_BYTES], used: POOL_BYTES }),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.world.now()
    }

    /// A new ULID, greater than every one before it, even if the clock stops or jumps back.
    pub fn ulid(&self) -> Result<Ulid, Error> {
        let mut state = self.state.lock();
        let random = u128::from_be_bytes(self.bytes(&mut state)?);
        let fresh = Ulid::from_parts(self.world.now().millis(), random);
        state.last = if fresh.timestamp_ms() > state.last.timestamp_ms() {
            fresh
        } else {
            state.last.increment().unwrap_or(fresh)
        };
        Ok(state.last)
    }

    /// A body with a salt of its own.
    pub fn body(&self, text: String) -> Result<Body, Error> {
        let mut state = self.state.lock();
        let mut salt: [u8; 16] = self.bytes(&mut state)?;
        if salt == [0; 16] {
            // All zero means erased in a store.
            salt[0] = 1;
        }
        Ok(Body { salt, text })
    }

    /// Thirty-two unpredictable bytes.
    pub fn secret(&self) -> Result<[u8; 32], Error> {
        let mut secret = [0; 32];
        self.world.fill(&mut secret)?;
        Ok(secret)
    }

    fn bytes<const N: usize>(&self, state: &mut State) -> Result<[u8; N], Error> {
        if state.used + N > POOL_BYTES {
            self.world.fill(&mut state.pool)?;
            state.used = 0;
        }
        let mut out = [0; N];
        out.copy_from_slice(&state.pool[state.used..state.used + N]);
        // A salt must not stay in memory after it was handed out.
        state.pool[state.used..state.used + N].fill(0);
        state.used += N;
        Ok(out)
    }
}
