//! Writes OpenAI's vocabularies as tables that are searched in place: nothing is parsed or built at start-up.

#[path = "src/tokens/hash.rs"]
mod hash;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/tokens/hash.rs");
    for (name, vocabulary) in
        [("cl100k_base", tiktoken_rs::cl100k_base()), ("o200k_base", tiktoken_rs::o200k_base())]
    {
        let vocabulary = vocabulary.expect("a vocabulary of the crate is whole");
        // Special tokens come after a gap.
        let tokens: Vec<Vec<u8>> = (0..).map_while(|rank| vocabulary.decode_bytes(&[rank]).ok()).collect();
        let path = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join(name);
        std::fs::write(path, table(&tokens)).expect("the build folder can be written");
    }
}

/// The format is described in `tokens::vocabulary`.
fn table(tokens: &[Vec<u8>]) -> Vec<u8> {
    let mut slots = vec![0u32; (tokens.len() * 5 / 4).next_power_of_two()];
    let mut starts = vec![0u32];
    for (rank, token) in tokens.iter().enumerate() {
        let mut slot = hash::of(token) as usize % slots.len();
        while slots[slot] != 0 {
            slot = (slot + 1) % slots.len();
        }
        slots[slot] = rank as u32 + 1;
        starts.push(starts[rank] + token.len() as u32);
    }
    let longest = tokens.iter().map(Vec::len).max().unwrap_or_default();
    let head = [tokens.len() as u32, slots.len() as u32, longest as u32];
    let numbers = head.into_iter().chain(starts).chain(slots);
    numbers.flat_map(u32::to_le_bytes).chain(tokens.iter().flatten().copied()).collect()
}
