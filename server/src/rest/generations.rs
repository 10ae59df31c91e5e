//! Model replies, whole or streamed.

use super::{at, operations};
use crate::app::App;
use crate::problem::Problem;
use crate::sse::{self, Frames, frame};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use everturn_api::generations::{Generate, GeneratedAnswer};
use everturn_api::{Operation, Requester};
use everturn_core::Error;
use everturn_engine::model::Delta;
use everturn_engine::{Generating, GenerationProgress};
use everturn_views::state::PendingApproval;
use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use std::sync::Arc;

/// `/conversations/{conversation}/generate`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route(&at(Generate::ABOUT.path), post(generate))
}

async fn generate(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let (requester, generate) = operations::read::<Generate>(&app, request).await?;
    if !generate.stream {
        return Ok(axum::Json(generate.run(&requester).await?).into_response());
    }
    let name = generate.conversation.clone();
    let pending =
        requester.blocking(move |tenant| name.find(tenant)?.state().read()).await?.pending_approvals;
    let answering = match pending.is_empty() {
        true => GenerationStream {
            generating: Some(generate.begin(&requester).await?),
            ..GenerationStream::default()
        },
        false => GenerationStream {
            pending,
            waiting: Some(begun(requester, generate)),
            ..GenerationStream::default()
        },
    };
    Ok(sse::answer(&app, answering))
}

/// Begins a generation in a task of its own, so that it goes on if its reader leaves.
fn begun(requester: Requester, generate: Generate) -> BoxFuture<'static, Result<Generating, Error>> {
    let begun = tokio::spawn(async move { generate.begin(&requester).await });
    let broken =
        |_| Err(Error::internal("server.panic", "the generation failed inside the server; see its log"));
    async move { begun.await.unwrap_or_else(broken) }.boxed()
}

#[derive(Default)]
struct GenerationStream {
    /// Approvals that the generation waits for, until they have been sent to the reader.
    pending: Vec<PendingApproval>,
    /// The generation, once they are resolved.
    waiting: Option<BoxFuture<'static, Result<Generating, Error>>>,
    generating: Option<Generating>,
    /// Whether `started` has been sent.
    begun: bool,
}

impl Frames for GenerationStream {
    async fn next(&mut self) -> Option<Event> {
        if !self.pending.is_empty() {
            return Some(frame("waiting", &json!({"waits_for": std::mem::take(&mut self.pending)})));
        }
        if let Some(waiting) = &mut self.waiting {
            let begun = waiting.await;
            self.waiting = None;
            match begun {
                Ok(generating) => self.generating = Some(generating),
                Err(error) => return Some(frame("error", &Problem::from(error).body())),
            }
        }
        let generating = self.generating.as_mut()?;
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
                Ok(GenerationProgress::Delta(delta)) => match shown(&delta) {
                    Some(shown) => frame("delta", &shown),
                    None => continue,
                },
                Ok(GenerationProgress::Done(generated)) => {
                    frame("done", &GeneratedAnswer::new(generating, *generated))
                }
                Err(error) => frame("error", &Problem::from(error).body()),
            });
        }
    }

    fn stopping(&self) -> Event {
        let begun = self.generating.as_ref().map(|generating| (generating.id, generating.turn));
        let (id, turn) = begun.unzip();
        frame("stopping", &json!({"id": id, "turn": turn}))
    }
}

/// A piece of the reply for the reader; `None` for a seal, which is for its provider only.
fn shown(delta: &Delta) -> Option<Value> {
    Some(match delta {
        Delta::Sealed(_) | Delta::Item(_) | Delta::ThinkingEnd => return None,
        Delta::Text(text) => json!({"type": "text", "text": text}),
        Delta::Thinking(text) => json!({"type": "thinking", "text": text}),
        Delta::Refusal(text) => json!({"type": "refusal", "text": text}),
        Delta::Call { index, id, name, arguments } => {
            json!({"type": "call", "index": index, "id": id, "name": name, "arguments": arguments})
        }
    })
}
