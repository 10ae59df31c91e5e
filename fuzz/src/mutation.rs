//! Inputs that nobody wrote, made of those that somebody did.

use fastrand::Rng;

/// Most bytes of an input. Long ones are slow, and what a reader does with a long input it does with a short one.
pub const INPUT_BYTES_MAX: usize = 16 * 1024;

/// Pieces that mean something to one reader or another.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "\n",
    "\r\n",
    "\\",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\u{0}",
    "\u{feff}",
    "\u{202e}",
    "é",
    "\u{1f600}",
    "null",
    "true",
    "-0",
    "1e999",
    "0.10",
    "18446744073709551616",
    "-9223372036854775808",
    "\"role\":\"user\"",
    "\"role\":\"tool\"",
    "\"content\":null",
    "\"content\":[]",
    "\"type\":",
    "\"tool_call_id\":\"a\"",
    "\"visibility\":\"private\"",
    "\"asset_id\":\"asset_1\"",
    "asset:asset_1",
    "data:image/png;base64,",
    "data: ",
    "event: ",
    "[DONE]",
    "%00",
    "%C3%28",
    "../",
    "@last",
    "conv_",
    "<",
    "</script>",
    "```",
    "javascript:",
    "AKIA",
    "1970-01-01T00:00:00Z",
    "-9999-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "messages.",
    "loop {}",
    "()",
    "-",
    ".",
    "=",
    "&",
    "?",
    "#",
];

/// Mutates inputs. The same seed gives the same inputs.
pub struct Mutator {
    random: Rng,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    /// Mutates these; without any, an empty input.
    pub fn new(seed: u64, mut seeds: Vec<Vec<u8>>) -> Mutator {
        if seeds.is_empty() {
            seeds.push(Vec::new());
        }
        Mutator { random: Rng::with_seed(seed), seeds }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.pick().to_vec();
        for _ in 0..self.random.usize(1..6) {
            self.mutate(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn pick(&mut self) -> &[u8] {
        let at = self.random.usize(..self.seeds.len());
        &self.seeds[at]
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.random.usize(..=input.len());
        // Pieces are short mostly, and now and then half of the input.
        let reach = if self.random.u8(..4) == 0 { input.len() } else { 24 };
        let end = input.len().min(at + self.random.usize(..=reach));
        match self.random.u8(..7) {
            0 if at < input.len() => input[at] ^= 1 << self.random.u8(..8),
            1 => drop(input.drain(at..end)),
            2 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            3 => {
                let piece = PIECES[self.random.usize(..PIECES.len())];
                input.splice(at..end, piece.bytes());
            }
            4 => {
                let piece = PIECES[self.random.usize(..PIECES.len())];
                input.splice(at..at, piece.bytes());
            }
            5 => {
                let other = self.pick().to_vec();
                let from = self.random.usize(..=other.len());
                let to = other.len().min(from + self.random.usize(..=200));
                input.splice(at..at, other[from..to].iter().copied());
            }
            _ => input.insert(at, self.random.u8(..)),
        }
    }
}
