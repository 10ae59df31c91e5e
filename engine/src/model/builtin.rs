//! Built-in embedder: potion-base-8M, a table with a vector for each token. The vector of a text is the mean over its
//! tokens, so embedding costs little more than splitting a text into words, and covers all of it.

mod closeness;
mod table;
mod wordpiece;

pub use closeness::Closeness;

use super::{Embed, EmbedAtOnce, QuestionVector};
use everturn_core::Error;
use everturn_views::recall::{Language, terms};
use everturn_views::vectors;
use futures_util::future::BoxFuture;
use std::sync::{Arc, LazyLock};
use table::{DIMENSIONS, Table};
use wordpiece::WordPiece;

/// Model name kept with vectors. The digits are the beginning of the table's SHA-256: another table is another model.
const MODEL: &str = "potion-base-8m:64811434875c";

/// Share of partial-word tokens above which a query means nothing to the table: a name in code, or nonsense.
const PARTS_SHARE_MAX: f64 = 0.5;
/// The nearest turn to every query of `bench recall-quality` is nearer than this. Many queries without an answer stay
/// below it, not all of them.
const NEARNESS_MIN: f64 = 0.2;

/// Lexical share of a query below which a match in another language with Latin letters is accidental.
const FOREIGN_WORDS_HOLD: f64 = 0.3;

/// The built-in embedder, if this program has it.
pub fn open() -> Result<Arc<dyn Embed>, Error> {
    Ok(Arc::new(BuiltinEmbedder))
}

static ENCODER: LazyLock<Encoder> = LazyLock::new(Encoder::open);

/// The built-in embedder: potion-base-8M, 256 dimensions, English. Reads the whole of a text. Needs the feature `embedder`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinEmbedder;

impl BuiltinEmbedder {
    /// The built-in embedder.
    pub fn new() -> BuiltinEmbedder {
        BuiltinEmbedder
    }

    /// Whether `model` names a built-in embedder, whatever its table.
    pub fn made(model: &str) -> bool {
        model.starts_with("potion-base-8m:")
    }

    /// Token numbers of a text. Words that the vocabulary cannot spell have none.
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

    fn question(&self, text: &str) -> QuestionVector {
        let words_hold = ENCODER.words_hold(text);
        let spelt = words_hold <= 1.0 || ENCODER.parts_share(text) <= PARTS_SHARE_MAX;
        QuestionVector {
            numbers: if spelt { ENCODER.vector(text) } else { Vec::new() },
            words_hold,
            nearness_min: NEARNESS_MIN,
        }
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

    /// Whether a query is in English, or in no language.
    fn knows_language(&self, question: &str) -> bool {
        self.words_hold(question) > 1.0
    }

    /// See [`QuestionVector::words_hold`].
    fn words_hold(&self, question: &str) -> f64 {
        let terms = terms(question);
        let latin = terms.words.iter().filter(|(word, _)| word.is_ascii()).count();
        match Language::of(&terms) {
            _ if latin * 2 <= terms.words.len() => 0.0,
            None | Some(Language::English) => f64::INFINITY,
            Some(_) => FOREIGN_WORDS_HOLD,
        }
    }

    /// Share of partial-word tokens, where names in code are split into words.
    fn parts_share(&self, text: &str) -> f64 {
        let (mut tokens, mut parts) = (0, 0);
        self.words.tokens(&terms(text).words_text(), |token| {
            tokens += 1;
            parts += u32::from(self.words.is_part(token));
        });
        f64::from(parts) / f64::from(tokens).max(1.0)
    }

    /// Unit vector, or empty for a text without a known token.
    fn vector(&self, text: &str) -> Vec<f32> {
        let mut sum = [0.0; DIMENSIONS];
        self.words.tokens(text, |token| self.table.add(token, &mut sum));
        // Only the direction is kept, so a sum is as good as a mean.
        vectors::normalized(&sum).unwrap_or_default()
    }
}
