//! The embedder that is there without anything to download: a small sentence model inside the program.

use super::Embed;
use super::local::{Encode, Workers, threads_default};
use everturn_core::{Error, vectors};
use futures_util::future::BoxFuture;
use pocket_encoder::{Encoder, model_info};
use std::sync::{Arc, OnceLock};

/// Bytes of text that the model reads at once: about the 128 tokens it can read, of prose.
const WINDOW_BYTES: usize = 480;

/// The built-in embedder: paraphrase-MiniLM-L3, 384 numbers, English. Nothing is loaded before the first text.
///
/// It reads about 480 bytes at a time. Of a longer text it reads the first such window and the last one, since a window of
/// that length takes a twentieth of a second; the vector is their mean. What is between is found by its words only.
#[derive(Clone)]
pub struct BuiltinEmbedder(Arc<Inner>);

struct Inner {
    model: String,
    dimensions: usize,
    threads: usize,
    workers: OnceLock<Result<Workers, Error>>,
}

impl BuiltinEmbedder {
    /// On half of the cores at most.
    pub fn new() -> BuiltinEmbedder {
        BuiltinEmbedder::with_threads(threads_default())
    }

    /// On so many threads.
    pub fn with_threads(threads: usize) -> BuiltinEmbedder {
        let info = model_info();
        let weights = info.revision.trim_start_matches("sha256:");
        let model = format!("{}:{}", info.id, &weights[..weights.len().min(12)]);
        let workers = OnceLock::new();
        BuiltinEmbedder(Arc::new(Inner { model, dimensions: info.dimensions, threads, workers }))
    }
}

impl Default for BuiltinEmbedder {
    fn default() -> BuiltinEmbedder {
        BuiltinEmbedder::new()
    }
}

impl Embed for BuiltinEmbedder {
    fn model(&self) -> &str {
        &self.0.model
    }

    fn dimensions(&self) -> Option<usize> {
        Some(self.0.dimensions)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let workers = inner.workers.get_or_init(|| Workers::new(inner.threads));
            workers.as_ref().map_err(Clone::clone)?.encode(Arc::new(Bundled), texts).await
        })
    }
}

/// The model in the program. Its weights are shared by whoever uses it.
struct Bundled;

impl Encode for Bundled {
    fn encode(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
        let encoder = Encoder::new().map_err(broken)?;
        texts
            .iter()
            .map(|text| {
                let windows = encoder.embed(&windows(text)).map_err(broken)?;
                mean(&windows).ok_or_else(|| broken("its vector has no direction"))
            })
            .collect()
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::internal("embedder.builtin", format!("the built-in embedder failed: {why}"))
}

fn mean(windows: &[Vec<f32>]) -> Option<Vec<f32>> {
    let mut sum = windows.first()?.clone();
    for window in &windows[1..] {
        sum.iter_mut().zip(window).for_each(|(sum, number)| *sum += number);
    }
    vectors::normalized(&sum)
}

/// The parts of a text that are read, none of them blank unless all of the text is.
fn windows(text: &str) -> Vec<&str> {
    let text = text.trim();
    let (first, rest) = cut(text);
    let mut last = rest.len().saturating_sub(WINDOW_BYTES);
    while !rest.is_char_boundary(last) {
        last += 1;
    }
    let read: Vec<&str> = [first, &rest[last..]].into_iter().filter(|part| !part.trim().is_empty()).collect();
    if read.is_empty() { vec![first] } else { read }
}

/// Cuts a window off, between words where there is a space not too far from its end.
fn cut(text: &str) -> (&str, &str) {
    if text.len() <= WINDOW_BYTES {
        return (text, "");
    }
    let mut end = WINDOW_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let space = text[..end].rfind(char::is_whitespace).filter(|space| *space > WINDOW_BYTES / 2);
    text.split_at(space.unwrap_or(end))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_read_at_both_ends_and_between_words() {
        assert_eq!(windows(" short "), ["short"]);
        let word = "seven77 ";
        let long = word.repeat(1000);
        let read = windows(&long);
        assert_eq!(read.len(), 2);
        assert!(read.iter().all(|window| window.len() <= WINDOW_BYTES));
        assert!(long.starts_with(read[0]) && long.trim_end().ends_with(read[1]));
        assert!(read[0].ends_with("seven77"), "{}", read[0]);
        let foreign = "語".repeat(5000);
        assert_eq!(windows(&foreign).concat().chars().count(), 320, "two windows of 160 characters");
        assert_eq!(windows(""), [""]);
    }
}
