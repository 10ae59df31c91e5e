//! A model at a server, over HTTP, with a streamed reply.

use super::retry::{Fault, Tries};
use super::runtime::runtime;
use super::server::Server;
use super::task::Ends;
use super::{
    Delta, Endpoint, Generation, GenerationStep, LanguageModel, ModelReply, ModelRequest, Protocol, Provider,
};
use everturn_core::Error;
use everturn_formats::wire::{self, Failure, Reader};
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Steps buffered for a slow reader before reading from the server stops.
const STEPS_AHEAD: usize = 64;

/// A model at a server.
///
/// A failed attempt is repeated if that may help, but never after a part of the reply was seen.
pub struct HttpModel(Arc<Inner>);

struct Inner {
    kind: Protocol,
    model: String,
    server: Server,
}

impl HttpModel {
    /// A client for this model. Sends nothing yet.
    pub fn new(endpoint: Endpoint) -> Result<HttpModel, Error> {
        let server = Server::new(&endpoint, endpoint.kind.path())?;
        Ok(HttpModel(Arc::new(Inner { kind: endpoint.kind, model: endpoint.model, server })))
    }
}

impl LanguageModel for HttpModel {
    fn provider(&self) -> Provider {
        match self.0.kind {
            Protocol::OpenaiChat => Provider::OpenaiChat,
            Protocol::OpenaiResponses => Provider::OpenaiResponses,
            Protocol::Anthropic => Provider::Anthropic,
        }
    }

    fn model(&self) -> &str {
        &self.0.model
    }

    fn generate(&self, request: ModelRequest) -> Generation {
        let inner = self.0.clone();
        let begun = wire::body(inner.kind, inner.server.host(), &inner.model, &request)
            .and_then(|body| Ok((body, runtime()?)));
        let (body, runtime) = match begun {
            Ok(begun) => begun,
            Err(error) => return Generation::failed(error),
        };
        let (sender, steps) = mpsc::channel(STEPS_AHEAD);
        let task = runtime.spawn(async move {
            let last = match inner.server.in_time(inner.ask(&body, &sender)).await {
                Ok(answer) => Ok(GenerationStep::Done(Box::new(answer))),
                Err(failure) => Err(inner.server.error(&failure)),
            };
            // The reader may be gone.
            let _ = sender.send(last).await;
        });
        Generation::new(Running { steps, _ends: Ends(task.abort_handle()) })
    }
}

/// The steps of a request that runs elsewhere; dropping them ends it.
struct Running {
    steps: mpsc::Receiver<Result<GenerationStep, Error>>,
    _ends: Ends,
}

impl Stream for Running {
    type Item = Result<GenerationStep, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.steps.poll_recv(context)
    }
}

/// Destination of the pieces of a reply.
struct Watcher<'a> {
    steps: &'a mpsc::Sender<Result<GenerationStep, Error>>,
    shown: bool,
}

impl Watcher<'_> {
    async fn show(&mut self, deltas: &mut Vec<Delta>) {
        for delta in deltas.drain(..) {
            self.shown = true;
            // A reader that stops drops the generation, which ends this task.
            let _ = self.steps.send(Ok(GenerationStep::Delta(delta))).await;
        }
    }

    /// A server may accept a request and then report in the stream that it is overloaded. As long as nothing was
    /// passed on, this is no different from refusing it.
    fn fault(&self, failure: Failure) -> Fault {
        Fault { again: failure.transient() && !self.shown, failure, wait: None }
    }
}

impl Inner {
    async fn ask(
        &self,
        body: &str,
        steps: &mpsc::Sender<Result<GenerationStep, Error>>,
    ) -> Result<ModelReply, Failure> {
        let mut watcher = Watcher { steps, shown: false };
        let mut tries = Tries::new(&self.server.limits);
        loop {
            match self.attempt(body, &mut watcher).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => tries.again(fault).await?,
            }
        }
    }

    async fn attempt(&self, body: &str, watcher: &mut Watcher<'_>) -> Result<ModelReply, Fault> {
        let mut incoming = self.server.send(body).await?;
        let mut reader = Reader::new(self.kind, self.server.limits.answer_bytes_max);
        let mut deltas = Vec::new();
        loop {
            let piece = match incoming.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                // The reply is complete; only the end of the stream is missing.
                Err(_) if reader.complete() => break,
                Err(failure) => return Err(Fault::last(failure)),
            };
            let fed = reader.feed(piece.as_ref(), &mut deltas);
            watcher.show(&mut deltas).await;
            fed.map_err(|failure| watcher.fault(failure))?;
            if reader.ended() {
                incoming.linger();
                break;
            }
        }
        let answer = reader.finish(&mut deltas);
        watcher.show(&mut deltas).await;
        answer.map_err(|failure| watcher.fault(failure))
    }
}
