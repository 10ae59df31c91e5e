//! Model replies, whole or streamed.

use super::operations;
use crate::app::App;
use crate::problem::Problem;
use crate::sse::{self, Frames, frame};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use everturn::model::Delta;
use everturn::{Generating, Progress};
use everturn_api::Operation;
use everturn_api::generations::{Generate, GeneratedAnswer};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::sync::Arc;

/// `/conversations/{conversation}/generate`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route(Generate::ABOUT.path, post(generate))
}

async fn generate(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let (asker, generate) = operations::read::<Generate>(&app, request).await?;
    if !generate.stream {
        return Ok(axum::Json(generate.run(&asker).await?).into_response());
    }
    let generating = generate.begin(&asker).await?;
    Ok(sse::answer(&app, Answering { begun: false, generating }))
}

struct Answering {
    begun: bool,
    generating: Generating,
}

impl Frames for Answering {
    async fn next(&mut self) -> Option<Event> {
        let generating = &mut self.generating;
        if !std::mem::replace(&mut self.begun, true) {
            let started = json!({
                "id": generating.id,
                "conversation": generating.conversation,
                "turn": generating.turn,
                "receipt_seq": generating.receipt_seq,
                "input": generating.input,
            });
            return Some(frame("started", &started));
        }
        loop {
            return Some(match generating.next().await? {
                Ok(Progress::Delta(delta)) => match shown(&delta) {
                    Some(shown) => frame("delta", &shown),
                    None => continue,
                },
                Ok(Progress::Done(generated)) => frame("done", &GeneratedAnswer::new(generating, *generated)),
                Err(error) => frame("error", &Problem::from(error).body()),
            });
        }
    }

    fn stopping(&self) -> Event {
        frame("stopping", &json!({"id": self.generating.id, "turn": self.generating.turn}))
    }
}

/// A piece as it is shown; a seal is for its provider only.
fn shown(delta: &Delta) -> Option<Value> {
    Some(match delta {
        Delta::Sealed(_) => return None,
        Delta::Text(text) => json!({"type": "text", "text": text}),
        Delta::Thinking(text) => json!({"type": "thinking", "text": text}),
        Delta::Refusal(text) => json!({"type": "refusal", "text": text}),
        Delta::Call { index, id, name, arguments } => {
            json!({"type": "call", "index": index, "id": id, "name": name, "arguments": arguments})
        }
    })
}
