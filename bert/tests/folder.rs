//! Models in a folder, against a plain implementation of the same network.

mod tiny;

use everturn_bert::FolderEmbedder;
use everturn_engine::model::{Embed, Embedder, wait};
use std::path::Path;

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

fn open(folder: &Path) -> Result<FolderEmbedder, everturn_engine::Error> {
    FolderEmbedder::with_threads(folder, 2)
}

#[test]
fn a_folder_is_chosen_by_a_word() {
    let folder = tempfile::tempdir().unwrap();
    tiny::Tiny::write(folder.path());
    everturn_bert::install();
    let word = format!("folder:{}", folder.path().display());
    assert_eq!(word.parse::<Embedder>().unwrap().open().unwrap().dimensions(), Some(tiny::HIDDEN));
}

/// Against a plain implementation of the same network: same numbers, in batches of any lengths.
#[test]
fn a_model_in_a_folder_gives_the_vectors_of_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::Tiny::write(folder.path());
    let embedder = open(folder.path()).unwrap();
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
    let name = |folder: &Path| open(folder).unwrap().model().to_string();
    assert_eq!(name(&one), name(&two), "where it lies does not matter");
    let mut weights = std::fs::read(two.join("model.safetensors")).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    std::fs::write(two.join("model.safetensors"), weights).unwrap();
    assert_ne!(name(&one), name(&two));
}

#[test]
fn a_folder_that_is_no_model_says_which_file_is_wrong() {
    let refused = |folder: &Path| match open(folder) {
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
