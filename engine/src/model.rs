//! Models: requests to them, and the clients that send them.
//!
//! The engine uses models through the traits [`LanguageModel`], [`Summarizer`] and [`Embed`], which a program may implement.
//! `HttpModel` and `HttpEmbedder` use a server, [`ModelSummarizer`] uses a [`LanguageModel`], and `BuiltinEmbedder` runs in
//! this process, as do the models in folders of the package `everturn-bert` ([`FolderEmbedders`]). Clients of servers need the feature
//! `models`, the built-in embedder needs `embedder`; the traits need none.
//!
#![cfg_attr(feature = "models", doc = "```no_run")]
#![cfg_attr(not(feature = "models"), doc = "```ignore")]
//! # use everturn_engine as everturn;
//! use everturn::Raw;
//! use everturn::model::{Endpoint, HttpModel, LanguageModel, Protocol, ModelRequest};
//!
//! let model = HttpModel::new(Endpoint::new(Protocol::OpenaiChat, "http://localhost:8080/v1", "smollm2"))?;
//! let hello = Raw::new(r#"{"role": "user", "content": "hello"}"#.to_string())?;
//! let answer = model.generate(ModelRequest { messages: vec![hello], ..ModelRequest::default() }).wait()?;
//! println!("{}", answer.text);
//! # Ok::<(), everturn::Error>(())
//! ```
//!
//! Everything here serves sync callers and any executor: requests run on a small runtime of their own, and the
//! returned values only wait for it. Dropping one ends its request.

#[cfg(feature = "embedder")]
pub(crate) mod builtin;
#[cfg(not(feature = "embedder"))]
#[path = "model/no_builtin.rs"]
pub(crate) mod builtin;
mod choice;
#[cfg(feature = "models")]
mod embedder;
#[cfg(feature = "models")]
mod endpoint;
#[cfg(feature = "models")]
mod http;
#[cfg(feature = "models")]
mod retry;
pub(crate) mod runtime;
#[cfg(feature = "models")]
mod server;
#[cfg(feature = "models")]
mod task;

pub use crate::load::{heavy_max as recalls_at_once_max, lower_priority};
#[cfg(feature = "embedder")]
pub use builtin::BuiltinEmbedder;
pub(crate) use builtin::Closeness;
pub use choice::{Embedder, FolderEmbedders};
#[cfg(feature = "models")]
pub use embedder::{Embedding, HttpEmbedder};
#[cfg(feature = "models")]
pub use endpoint::{Endpoint, Limits, Secret};
pub use everturn_formats::provider::Provider;
pub use everturn_formats::wire::{Delta, Finish, ModelReply, ModelRequest, Protocol, ReplyTokens, ToolCall};
#[cfg(feature = "models")]
pub use http::HttpModel;

use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::json::{Raw, quote};
use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A model that generates replies.
pub trait LanguageModel: Send + Sync {
    /// Provider that defines the shape of its messages, tools and replies.
    fn provider(&self) -> Provider;
    /// Name of the model.
    fn model(&self) -> &str;
    /// Sends a request. The work begins at once and ends early if the [`Generation`] is dropped; errors are reported
    /// there.
    fn generate(&self, request: ModelRequest) -> Generation;
}

/// Default context of a model: most tokens of a prompt and its reply.
pub const CONTEXT_TOKENS_DEFAULT: u64 = 128_000;

/// A model that can continue conversations.
#[derive(Clone)]
pub struct Configured {
    /// Client of the model.
    pub client: Arc<dyn LanguageModel>,
    /// Most tokens of a prompt and its reply together.
    pub context_tokens: u64,
}

impl Configured {
    /// A model with a context of [`CONTEXT_TOKENS_DEFAULT`].
    pub fn new(client: Arc<dyn LanguageModel>) -> Configured {
        Configured { client, context_tokens: CONTEXT_TOKENS_DEFAULT }
    }
}

impl fmt::Debug for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.client.model())
    }
}

/// A model that summarizes.
pub trait Summarizer: Send + Sync {
    /// Name of the summarizer, stored with each summary.
    fn name(&self) -> String;
    /// Asks for a summary: `system` has the instructions, `user` the text. Nothing is sent before the first poll.
    fn summarize(&self, system: &str, user: &str) -> BoxFuture<'static, Result<String, Error>>;
}

/// A model that turns texts into vectors.
pub trait Embed: Send + Sync {
    /// Name of the model, stored with its vectors: vectors of different models are not comparable.
    fn model(&self) -> &str;
    /// Dimensions of its vectors, if known yet.
    fn dimensions(&self) -> Option<usize>;
    /// One vector per text, in order. An empty vector means that the model knows no word of the text.
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>>;
    /// Synchronous embedding, for a model that is about as fast as lexical indexing. The indexer then embeds whole texts
    /// as it indexes them; other models embed in the background.
    fn at_once(&self) -> Option<&dyn EmbedAtOnce> {
        None
    }
}

/// A model that turns a text into a vector in microseconds, and cannot fail.
pub trait EmbedAtOnce {
    /// The vector of a text; empty if the model knows no word of it.
    fn vector(&self, text: &str) -> Vec<f32>;
    /// The vector of a query, with thresholds for its results.
    fn question(&self, text: &str) -> QuestionVector;
}

/// Embedding of a query.
#[derive(Clone, PartialEq, Debug)]
pub struct QuestionVector {
    /// The vector; empty if the model knows no word of the query.
    pub numbers: Vec<f32>,
    /// Lexical share of the query from which an entry ranks no lower than by words alone; its vector can then only
    /// raise it. 0 in a language that the model does not know, above 1 in one that it knows.
    pub words_hold: f64,
    /// Smallest nearness of a relevant entry: if nothing is nearer, nothing matches the query.
    pub nearness_min: f64,
}

impl QuestionVector {
    /// A vector that ranks in every language, and whose nearest entries always match.
    pub fn new(numbers: Vec<f32>) -> QuestionVector {
        QuestionVector { numbers, words_hold: f64::INFINITY, nearness_min: -1.0 }
    }
}

/// Next step of a running generation.
#[derive(Clone, Debug)]
pub enum GenerationStep {
    /// Another piece.
    Delta(Delta),
    /// The complete reply; nothing follows.
    Done(Box<ModelReply>),
}

/// A running generation: pieces of the reply, and finally the complete reply or an error. Dropping it ends the
/// request.
pub struct Generation(Pin<Box<dyn Stream<Item = Result<GenerationStep, Error>> + Send>>);

impl Generation {
    /// A generation from a stream that ends with [`GenerationStep::Done`] or an error.
    pub fn new(steps: impl Stream<Item = Result<GenerationStep, Error>> + Send + 'static) -> Generation {
        Generation(Box::pin(steps))
    }

    /// A generation that failed before it began.
    pub fn failed(error: Error) -> Generation {
        Generation::new(futures_util::stream::iter([Err(error)]))
    }

    /// The next step; blocks until there is one. `None` after the last.
    pub fn recv(&mut self) -> Result<Option<GenerationStep>, Error> {
        wait(self.next()).transpose()
    }

    /// The complete reply; blocks until it is there.
    pub fn wait(self) -> Result<ModelReply, Error> {
        wait(self.answer())
    }

    /// The complete reply.
    pub async fn answer(mut self) -> Result<ModelReply, Error> {
        while let Some(step) = self.next().await {
            if let GenerationStep::Done(answer) = step? {
                return Ok(*answer);
            }
        }
        Err(Error::internal("model.no_answer", "the model's reply is incomplete; ask again"))
    }
}

impl Stream for Generation {
    type Item = Result<GenerationStep, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Generation")
    }
}

/// Blocks until a future of this module is done, on any thread.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    wait_for(future, None).expect("without a timeout the future completes")
}

/// Blocks until a future is done, for at most `time` if given: one that takes longer is dropped, which ends its work.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>, time: Option<Duration>) -> Option<T> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let end = time.map(|time| Instant::now() + time);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(done);
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => std::thread::park(),
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
        }
    }
}

/// A [`Summarizer`] that asks a [`LanguageModel`].
pub struct ModelSummarizer {
    model: Arc<dyn LanguageModel>,
    /// Most tokens of a summary; `None` leaves it to the model.
    pub max_output_tokens: Option<u64>,
}

impl ModelSummarizer {
    /// A summarizer that asks this model.
    pub fn new(model: Arc<dyn LanguageModel>) -> ModelSummarizer {
        ModelSummarizer { model, max_output_tokens: None }
    }
}

impl Summarizer for ModelSummarizer {
    fn name(&self) -> String {
        self.model.model().to_string()
    }

    fn summarize(&self, system: &str, user: &str) -> BoxFuture<'static, Result<String, Error>> {
        let (model, max_output_tokens) = (self.model.clone(), self.max_output_tokens);
        let said = quote(user);
        let (system, user) = match model.provider() {
            Provider::Gemini => (
                format!(r#"{{"parts":[{{"text":{}}}]}}"#, quote(system)),
                format!(r#"{{"role":"user","parts":[{{"text":{said}}}]}}"#),
            ),
            _ => (quote(system), format!(r#"{{"role":"user","content":{said}}}"#)),
        };
        // JSON is requested only if the instructions mention it; servers refuse the request otherwise.
        let json = system.to_lowercase().contains("json");
        Box::pin(async move {
            let request = ModelRequest {
                system: Some(Raw::new(system)?),
                messages: vec![Raw::new(user)?],
                max_output_tokens,
                json,
                ..ModelRequest::default()
            };
            let answer = model.generate(request).answer().await?;
            match answer.finish {
                Finish::Length => Err(Error::too_large(
                    "model.answer_cut",
                    "the summary reached its token limit; allow more, or summarize less at once",
                )),
                Finish::ContentFilter => Err(refused()),
                _ if answer.refusal.is_some() => Err(refused()),
                _ if answer.text.trim().is_empty() => Err(Error::internal(
                    "model.garbage",
                    "the model gave an empty summary; ask again, or another model",
                )),
                _ => Ok(answer.text),
            }
        })
    }
}

fn refused() -> Error {
    Error::invalid(code::MODEL_REFUSED, "the model refuses to summarize this; ask another model")
}
