//! Writes OpenAI's vocabularies as tables that are searched in place: nothing is parsed or built at start-up.

#[path = "src/tokens/hash.rs"]
mod hash;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=data");
    println!("cargo::rerun-if-changed=src/tokens/hash.rs");
    for name in ["cl100k_base", "o200k_base"] {
        let file = std::fs::read(format!("data/{name}.tokens")).expect("the vocabulary is in the package");
        let path = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join(name);
        std::fs::write(path, table(&tokens(&file))).expect("the build folder can be written");
    }
}

/// The format of the file is described in `data/vocabularies.md`.
fn tokens(mut file: &[u8]) -> Vec<&[u8]> {
    let mut tokens = Vec::new();
    while let Some((length, rest)) = file.split_first() {
        let (token, rest) = rest.split_at(usize::from(*length));
        tokens.push(token);
        file = rest;
    }
    tokens
}

/// The format is described in `tokens::vocabulary`.
fn table(tokens: &[&[u8]]) -> Vec<u8> {
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
    let longest = tokens.iter().map(|token| token.len()).max().unwrap_or_default();
    let head = [tokens.len() as u32, slots.len() as u32, longest as u32];
    let numbers = head.into_iter().chain(starts).chain(slots);
    numbers.flat_map(u32::to_le_bytes).chain(tokens.concat()).collect()
}
