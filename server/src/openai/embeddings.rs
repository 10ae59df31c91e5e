//! Embeddings, with the configured models.

use super::error::RequestError;
use super::fields::Fields;
use super::models::unknown;
use crate::access::Reader;
use crate::app::App;
use crate::json::Json;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use everturn_views::tokens::TokenizerFamily;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of texts in a request.
const TEXTS_MAX: usize = 2048;

/// `/v1/embeddings`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/embeddings", post(create))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
    Tokens(Vec<u32>),
    SeveralTokens(Vec<Vec<u32>>),
    Other(serde::de::IgnoredAny),
}

impl Texts {
    /// The texts. Tokens are decoded: an embedder reads text.
    fn read(self, family: TokenizerFamily) -> Option<Vec<String>> {
        match self {
            Texts::One(text) => Some(vec![text]),
            Texts::Several(texts) => Some(texts),
            Texts::Tokens(tokens) => family.decode(&tokens).map(|text| vec![text]),
            Texts::SeveralTokens(lists) => lists.iter().map(|tokens| family.decode(tokens)).collect(),
            Texts::Other(_) => None,
        }
    }
}

async fn create(
    State(app): State<Arc<App>>,
    Reader(_): Reader,
    Json(mut body): Json<Fields>,
) -> Result<axum::Json<Value>, RequestError> {
    let asked: String = body.need("model")?;
    let named = app.embedders.get(&asked).or_else(|| app.embedders.values().find(|e| e.model() == asked));
    let embedder = named.ok_or_else(|| unknown(&asked))?;
    let family = TokenizerFamily::of_model(embedder.model());
    let texts = body.need::<Texts>("input")?.read(family).ok_or_else(|| {
        let text = "input must be a text, a list of tokens, or a list of texts or of lists of tokens; tokens are those of \
                    the model, or of cl100k_base";
        RequestError::field("input", text)
    })?;
    if texts.is_empty() || texts.len() > TEXTS_MAX || texts.iter().any(String::is_empty) {
        let text =
            format!("input must be 1 to {TEXTS_MAX} texts, none of them empty; these are {}", texts.len());
        return Err(RequestError::field("input", text));
    }
    let base64 = match body.take::<String>("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(RequestError::field(
                "encoding_format",
                "encoding_format is neither float nor base64",
            ));
        }
    };
    let tokens: u64 = texts.iter().map(|text| family.count(text)).sum();
    let vectors = embedder.embed(texts).await?;
    let length = vectors.first().map_or(0, Vec::len);
    if body.take::<usize>("dimensions")?.is_some_and(|wanted| wanted != length) {
        let text = format!(
            "{asked} gives vectors of {length} numbers; ask for that, or configure an embedder with another length"
        );
        return Err(RequestError::field("dimensions", text));
    }
    let data: Vec<Value> = vectors
        .into_iter()
        .enumerate()
        .map(|(index, vector)| {
            let embedding = match base64 {
                true => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                    json!(BASE64_STANDARD.encode(bytes))
                }
                false => json!(vector),
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(axum::Json(json!({"object": "list", "data": data, "model": asked, "usage": usage})))
}
