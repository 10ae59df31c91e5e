//! The embedder in the program. Those from a folder are in the package `everturn-bert`.

use everturn_engine::model::{BuiltinEmbedder, Embed, EmbedAtOnce, Embedder, wait};
use everturn_views::vectors::cosine;
use serde::Deserialize;
use std::sync::Arc;

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

/// A text, and what the original implementation makes of it.
#[derive(Deserialize)]
struct Original {
    text: String,
    tokens: Vec<u16>,
    vector: Vec<f32>,
}

/// Prose and code, scripts of many kinds, what looks like a letter and is none: the same tokens as the original gives, and the
/// same vector but for the rounding to bytes. `embedders/potion.py` writes the file.
#[test]
fn the_built_in_embedder_is_the_original() {
    let originals: Vec<Original> = serde_json::from_str(include_str!("embedders/potion.json")).unwrap();
    assert!(originals.len() > 20);
    let embedder = BuiltinEmbedder::new();
    for Original { text, tokens, vector: original } in originals {
        assert_eq!(embedder.tokens(&text), tokens, "{text:?}");
        let vector = embedder.vector(&text);
        assert_eq!(vector.is_empty(), tokens.is_empty(), "{text:?}");
        if !vector.is_empty() {
            assert!((cosine(&vector, &original)) >= 0.999, "{text:?}: {}", cosine(&vector, &original));
            let length = vector.iter().map(|number| number * number).sum::<f32>();
            assert!((length - 1.0).abs() < 1e-3, "{text:?}: {length}");
        }
    }
}

#[test]
fn the_built_in_embedder_knows_what_means_the_same() {
    let embedder = BuiltinEmbedder::new();
    let pairs = [
        ("Send a document", "Transfer a file"),
        ("the build is failing", "compilation does not succeed"),
        ("how much does it cost", "what is the price"),
    ];
    let asked = wait(embedder.embed(pairs.iter().map(|pair| pair.0.to_string()).collect())).unwrap();
    let said = wait(embedder.embed(pairs.iter().map(|pair| pair.1.to_string()).collect())).unwrap();
    for (at, asked) in asked.iter().enumerate() {
        assert_eq!(Some(asked.len()), embedder.dimensions());
        let scores: Vec<f64> = said.iter().map(|said| cosine(asked, said)).collect();
        let best = (0..3).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        assert_eq!(best, Some(at), "{:?}: {scores:?}", pairs[at]);
    }
}

/// Whatever is asked of it has an answer; a text without a known word has none, and a text gets the same vector alone and among
/// others.
#[test]
fn the_built_in_embedder_takes_any_text() {
    let embedder = BuiltinEmbedder::new();
    let long = "it went well until the disk was full ".repeat(5_000);
    let many = texts(&["", " \n\t", "\u{0}\u{feff}", "🚀", &"x".repeat(500_000), &long, "the same text"]);
    let vectors = wait(embedder.embed(many.clone())).unwrap();
    let lengths: Vec<usize> = vectors.iter().map(Vec::len).collect();
    assert_eq!(lengths, [0, 0, 0, 0, 0, 256, 256]);
    assert!(vectors.iter().flatten().all(|number| number.is_finite()));
    let alone = wait(embedder.embed(texts(&["the same text"]))).unwrap();
    assert_eq!(alone[0], vectors[6]);
    assert!(wait(embedder.embed(Vec::new())).unwrap().is_empty());
    assert!(embedder.model().starts_with("potion-base-8m:"), "{}", embedder.model());
}

/// All of a long text counts, also what stands in the middle of it.
#[test]
fn the_whole_of_a_long_text_is_read() {
    let embedder = BuiltinEmbedder::new();
    let around = "we looked at the logs of the last night and at the metrics of the cluster ".repeat(200);
    let middles = ["the cat sleeps on the warm sofa. ", "the invoice must be paid by the customer. "];
    let vector = |middle: &str| embedder.vector(&format!("{around}{}{around}", middle.repeat(100)));
    let asked = embedder.vector("a pet is resting on the couch");
    assert!(cosine(&asked, &vector(middles[0])) > cosine(&asked, &vector(middles[1])) + 0.05);
}

#[test]
fn an_embedder_is_chosen_by_a_word() {
    let open = |word: &str| word.parse::<Embedder>().and_then(Embedder::open);
    let builtin: Arc<dyn Embed> = open("builtin").unwrap();
    assert_eq!(builtin.model(), BuiltinEmbedder::new().model());
    for wrong in ["", "folder:", "folder", "bulitin", "http://localhost"] {
        assert_eq!(open(wrong).err().unwrap().code(), "embedder.unknown", "{wrong}");
    }
}

/// Models from a folder are not in every program. One without them says how to get one with them.
#[test]
fn a_program_without_models_from_folders_says_how_to_get_one() {
    let error = "folder:/models/mini".parse::<Embedder>().unwrap().open().err().unwrap();
    assert_eq!(error.code(), "embedder.no_bert");
    assert!(error.text().contains("--features bert") && error.text().contains("/models/mini"), "{error}");
}
