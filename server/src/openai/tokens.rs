//! Counting the input tokens of a response.

use super::error::RequestError;
use super::fields::Fields;
use super::request::ResponseRequest;
use super::target::end_of;
use super::{models, tools};
use crate::access::Reader;
use crate::app::{App, blocking};
use crate::json::Json;
use axum::Router;
use axum::routing::post;
use everturn_core::json::Raw;
use everturn_engine::ContextOptions;
use everturn_engine::model::Provider;
use everturn_views::tokens::{PART_TOKENS, PROMPT_TOKENS, TokenizerFamily};
use serde_json::{Value, json};
use std::sync::Arc;

/// `/v1/responses/input_tokens`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/responses/input_tokens", post(count))
}

/// Tokens of messages and other texts together.
pub fn cost(family: TokenizerFamily, messages: &[Raw], texts: &[&str]) -> u64 {
    let message =
        |raw: &Raw| raw.read::<Value>().map_or_else(|| family.count(raw.get()), |m| family.message(&m));
    let messages: u64 = messages.iter().map(message).sum();
    let texts: u64 = texts.iter().map(|text| family.count(text) + PART_TOKENS).sum();
    messages + texts + PROMPT_TOKENS
}

/// With a conversation or a previous response, the whole context is counted: as built, and so never more than
/// the model accepts.
async fn count(Reader(tenant): Reader, Json(body): Json<Fields>) -> Result<axum::Json<Value>, RequestError> {
    let ask = ResponseRequest::read(body)?;
    let model = models::find(&tenant, ask.model)?;
    let provider = model.provider();
    let tools = tools::convert(Provider::OpenaiResponses, provider, ask.tools)?;
    let family = TokenizerFamily::of_model(model.served_name());
    let tokens = blocking(move || {
        let place = match (ask.conversation, ask.previous) {
            (Some(id), _) => Some((id, tenant.conversation(id).get()?.head.seq)),
            (None, Some(previous)) => {
                end_of(&tenant, &previous).map(|(turn, end)| Some((turn.conversation, end)))?
            }
            (None, None) => None,
        };
        let Some((id, seq)) = place else {
            let mut texts: Vec<&str> = tools.iter().map(Raw::get).collect();
            texts.extend(ask.instructions.as_deref());
            return Ok(cost(family, &ask.input, &texts));
        };
        let context = ContextOptions {
            instructions: ask.instructions,
            input: ask.input,
            tools,
            provider,
            model: Some(model.served_name().to_string()),
            at_seq: Some(seq),
            ..ContextOptions::new(model.configured.context_tokens)
        };
        Ok(tenant.conversation(id).contexts().build(&context)?.tokens.used)
    })
    .await?;
    Ok(axum::Json(json!({"object": "response.input_tokens", "input_tokens": tokens})))
}
