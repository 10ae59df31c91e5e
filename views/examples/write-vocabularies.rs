//! Writes `data/*.tokens` from the vocabularies of `tiktoken-rs`: `cargo run -p everturn-views --example write-vocabularies`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    for (name, vocabulary) in
        [("cl100k_base", tiktoken_rs::cl100k_base()), ("o200k_base", tiktoken_rs::o200k_base())]
    {
        let vocabulary = vocabulary.expect("a vocabulary of the crate is whole");
        // Special tokens come after a gap.
        let tokens = (0..).map_while(|rank| vocabulary.decode_bytes(&[rank]).ok());
        let file: Vec<u8> = tokens
            .flat_map(|token| {
                let length = u8::try_from(token.len()).expect("no token is longer than 255 bytes");
                std::iter::once(length).chain(token)
            })
            .collect();
        std::fs::write(folder.join(format!("{name}.tokens")), file)?;
    }
    Ok(())
}
