//! Embedders of this machine: the one in the program, and one from a folder.

mod tiny;

use everturn_engine::model::{BuiltinEmbedder, Embed, Embedder, FolderEmbedder, wait};
use std::path::Path;
use std::sync::Arc;

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
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
        assert!((cosine(asked, asked) - 1.0).abs() < 1e-3, "vectors have length 1");
        let scores: Vec<f32> = said.iter().map(|said| cosine(asked, said)).collect();
        let best = (0..3).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        assert_eq!(best, Some(at), "{:?}: {scores:?}", pairs[at]);
    }
}

/// Whatever is asked of it has an answer: no words, more than the model reads, other scripts, and a text gets the same
/// vector alone and among others.
#[test]
fn the_built_in_embedder_takes_any_text() {
    let embedder = BuiltinEmbedder::with_threads(2);
    let long = "it went well until the disk was full ".repeat(5_000);
    let many = texts(&["", " \n\t", &long, "設定を保存する", "\u{0}\u{feff}", "the same text"]);
    let vectors = wait(embedder.embed(many.clone())).unwrap();
    assert_eq!(vectors.len(), many.len());
    assert!(
        vectors.iter().all(|vector| vector.len() == 384 && vector.iter().all(|number| number.is_finite()))
    );
    let alone = wait(embedder.embed(texts(&["the same text"]))).unwrap();
    assert_eq!(alone[0], vectors[5]);
    assert!(wait(embedder.embed(Vec::new())).unwrap().is_empty());
    assert!(embedder.model().contains("minilm-l3"), "{}", embedder.model());
}

/// The end of a long text counts: two that begin alike are told apart by how they end.
#[test]
fn the_end_of_a_long_text_is_read_too() {
    let embedder = BuiltinEmbedder::new();
    let begin = "we looked at the logs of the last night and at the metrics of the cluster ".repeat(30);
    let ends = ["the cat sleeps on the warm sofa", "the invoice must be paid by the customer"];
    let both: Vec<String> =
        ends.iter().map(|end| format!("{begin}{}", format!("{end}. ").repeat(12))).collect();
    let vectors = wait(embedder.embed(both)).unwrap();
    let asked = wait(embedder.embed(texts(&["a pet is resting on the couch"]))).unwrap();
    assert!(cosine(&asked[0], &vectors[0]) > cosine(&asked[0], &vectors[1]) + 0.05);
}

/// Against a plain implementation of the same network: same numbers, in batches of any lengths.
#[test]
fn a_model_in_a_folder_gives_the_vectors_of_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::Tiny::write(folder.path());
    let embedder = FolderEmbedder::open(folder.path()).unwrap();
    assert_eq!(embedder.dimensions(), Some(tiny::HIDDEN));
    let asked = ["the lock", "a file is open", "the writer waits for the lock of the file", "unheard", ""];
    let vectors = wait(embedder.embed(texts(&asked))).unwrap();
    for (text, vector) in asked.iter().zip(&vectors) {
        let expected = model.embed(text);
        let off = expected.iter().zip(vector).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-4, "{text:?}: {vector:?} instead of {expected:?}");
    }
    assert_ne!(vectors[0], vectors[1]);
}

#[test]
fn another_weight_is_another_model() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, two) = (one.path().join("tiny"), two.path().join("tiny"));
    for folder in [&one, &two] {
        std::fs::create_dir(folder).unwrap();
    }
    tiny::Tiny::write(&one);
    tiny::Tiny::write(&two);
    let name = |folder: &Path| FolderEmbedder::open(folder).unwrap().model().to_string();
    assert_eq!(name(&one), name(&two), "where it lies does not matter");
    let mut weights = std::fs::read(two.join("model.safetensors")).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    std::fs::write(two.join("model.safetensors"), weights).unwrap();
    assert_ne!(name(&one), name(&two));
}

#[test]
fn a_folder_that_is_no_model_says_which_file_is_wrong() {
    let refused = |folder: &Path| match FolderEmbedder::open(folder) {
        Ok(_) => panic!("{} is no model", folder.display()),
        Err(error) => {
            assert_eq!(error.code(), "embedder.folder");
            error.to_string()
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(refused(&path.join("nowhere")).contains("is not a folder"));
    for (file, garbage) in [
        ("config.json", "{}"),
        ("config.json", r#"{"model_type": "llama"}"#),
        ("tokenizer.json", "[1, 2]"),
        ("model.safetensors", "not weights"),
    ] {
        tiny::Tiny::write(path);
        std::fs::write(path.join(file), garbage).unwrap();
        let said = refused(path);
        assert!(said.contains(file), "{file} is wrong: {said}");
        std::fs::remove_file(path.join(file)).unwrap();
        let said = refused(path);
        assert!(said.contains(file) && said.contains("missing"), "{file} is missing: {said}");
    }
    tiny::Tiny::write(path);
    let weights = std::fs::read(path.join("model.safetensors")).unwrap();
    std::fs::write(path.join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    assert!(refused(path).contains("model.safetensors"), "cut off");
}

#[test]
fn an_embedder_is_chosen_by_a_word() {
    let open = |word: &str| word.parse::<Embedder>().and_then(Embedder::open);
    let builtin: Arc<dyn Embed> = open("builtin").unwrap();
    assert_eq!(builtin.model(), BuiltinEmbedder::new().model());
    let folder = tempfile::tempdir().unwrap();
    tiny::Tiny::write(folder.path());
    assert_eq!(
        open(&format!("folder:{}", folder.path().display())).unwrap().dimensions(),
        Some(tiny::HIDDEN)
    );
    for wrong in ["", "folder:", "folder", "bulitin", "http://localhost"] {
        assert_eq!(open(wrong).err().unwrap().code(), "embedder.unknown", "{wrong}");
    }
}
