//! The embedder inside the program: potion-base-8M, a table with a vector for each token. The vector of a text is the mean
//! over its tokens, so a text costs little more than splitting it into words, and all of it is read.

mod table;
mod wordpiece;

use super::{Embed, EmbedAtOnce};
use everturn_core::{Error, vectors};
use futures_util::future::BoxFuture;
use std::sync::LazyLock;
use table::{DIMENSIONS, Table};
use wordpiece::WordPiece;

/// Kept with vectors. The digits are the beginning of the table's SHA-256: another table is another model.
const MODEL: &str = "potion-base-8m:64811434875c";

static ENCODER: LazyLock<Encoder> = LazyLock::new(Encoder::open);

/// The built-in embedder: potion-base-8M, 256 numbers, English. Reads the whole of a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinEmbedder;

impl BuiltinEmbedder {
    /// The built-in embedder.
    pub fn new() -> BuiltinEmbedder {
        BuiltinEmbedder
    }

    /// Whether vectors that are kept under this name are those of a built-in embedder, of this version or an earlier one.
    pub fn made(model: &str) -> bool {
        ["potion-base-8m:", "pocket-encoder/"].iter().any(|name| model.starts_with(name))
    }

    /// The numbers of a text's tokens. Words that the vocabulary cannot spell have none.
    pub fn tokens(&self, text: &str) -> Vec<u16> {
        let mut tokens = Vec::new();
        ENCODER.words.tokens(text, |token| tokens.push(token));
        tokens
    }
}

impl Embed for BuiltinEmbedder {
    fn model(&self) -> &str {
        MODEL
    }

    fn dimensions(&self) -> Option<usize> {
        Some(DIMENSIONS)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>> {
        Box::pin(async move { Ok(texts.iter().map(|text| ENCODER.vector(text)).collect()) })
    }

    fn at_once(&self) -> Option<&dyn EmbedAtOnce> {
        Some(self)
    }
}

impl EmbedAtOnce for BuiltinEmbedder {
    fn vector(&self, text: &str) -> Vec<f32> {
        ENCODER.vector(text)
    }
}

struct Encoder {
    table: Table,
    words: WordPiece,
}

impl Encoder {
    fn open() -> Encoder {
        let (table, vocabulary) = Table::open();
        Encoder { table, words: WordPiece::new(vocabulary) }
    }

    /// Of length 1, or empty for a text without a known token.
    fn vector(&self, text: &str) -> Vec<f32> {
        let mut sum = [0.0; DIMENSIONS];
        self.words.tokens(text, |token| self.table.add(token, &mut sum));
        // Only the direction is kept, so a sum is as good as a mean.
        vectors::normalized(&sum).unwrap_or_default()
    }
}
