//! Vectors from a server with OpenAI's embeddings endpoint.

use super::retry::{Fault, Tries};
use super::server::Server;
use super::task::Task;
use super::{Embed, Endpoint, Protocol};
use everturn_core::Error;
use everturn_formats::wire::{Failure, embeddings};
use futures_util::future::BoxFuture;
use std::sync::{Arc, OnceLock};

/// Embedding options.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// Dimensions of the vectors. Without it the first reply decides.
    pub dimensions: Option<usize>,
    /// Whether to ask the server for vectors of that length, which few models can.
    pub shorten: bool,
    /// Most texts in one request.
    pub batch_texts_max: usize,
    /// Most bytes of text in one request, unless a single text is longer.
    pub batch_bytes_max: usize,
}

impl Default for Embedding {
    fn default() -> Embedding {
        Embedding { dimensions: None, shorten: false, batch_texts_max: 64, batch_bytes_max: 256 * 1024 }
    }
}

/// An embedding model at a server.
pub struct HttpEmbedder(Arc<Inner>);

struct Inner {
    model: String,
    server: Server,
    how: Embedding,
    dimensions: OnceLock<usize>,
}

impl HttpEmbedder {
    /// A client for this model. Sends nothing yet.
    pub fn new(endpoint: Endpoint, how: Embedding) -> Result<HttpEmbedder, Error> {
        if endpoint.kind == Protocol::Anthropic {
            return Err(Error::invalid(
                "model.kind",
                "Anthropic has no embeddings; give an OpenAI-compatible server",
            ));
        }
        if how.batch_texts_max == 0 || how.dimensions == Some(0) || (how.shorten && how.dimensions.is_none())
        {
            return Err(Error::invalid(
                "model.limits",
                "batch_texts_max and dimensions must be at least 1, and shorten needs dimensions",
            ));
        }
        let server = Server::new(&endpoint, embeddings::PATH)?;
        let dimensions = how.dimensions.map_or_else(OnceLock::new, OnceLock::from);
        Ok(HttpEmbedder(Arc::new(Inner { model: endpoint.model, server, how, dimensions })))
    }
}

impl Embed for HttpEmbedder {
    fn model(&self) -> &str {
        &self.0.model
    }

    fn dimensions(&self) -> Option<usize> {
        self.0.dimensions.get().copied()
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let mut vectors = Vec::with_capacity(texts.len());
            for batch in batches(texts, inner.how.batch_texts_max, inner.how.batch_bytes_max) {
                let inner = inner.clone();
                vectors.extend(Task::spawn(async move { inner.batch(&batch).await })?.await?);
            }
            Ok(vectors)
        })
    }
}

impl Inner {
    async fn batch(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
        let body = embeddings::body(&self.model, texts, self.how.dimensions.filter(|_| self.how.shorten))?;
        let vectors =
            self.server.in_time(self.ask(&body, texts.len())).await.map_err(|f| self.server.error(&f))?;
        let got = vectors.first().map_or(0, Vec::len);
        let expected = *self.dimensions.get_or_init(|| got);
        if got != expected {
            return Err(Error::invalid(
                "model.dimensions",
                format!(
                    "{} returns vectors of {got} dimensions, {expected} are expected; check model and dimensions",
                    self.model
                ),
            ));
        }
        Ok(vectors)
    }

    async fn ask(&self, body: &str, texts: usize) -> Result<Vec<Vec<f32>>, Failure> {
        let mut tries = Tries::new(&self.server.limits);
        loop {
            match self.attempt(body, texts).await {
                Ok(vectors) => return Ok(vectors),
                Err(fault) => tries.again(fault).await?,
            }
        }
    }

    async fn attempt(&self, body: &str, texts: usize) -> Result<Vec<Vec<f32>>, Fault> {
        let limits = &self.server.limits;
        let mut incoming = self.server.send(body).await?;
        let mut answer = Vec::new();
        while let Some(piece) = incoming.next().await.map_err(Fault::last)? {
            answer.extend_from_slice(piece.as_ref());
            if answer.len() > limits.answer_bytes_max {
                let (most, got) = (limits.answer_bytes_max as u64, answer.len() as u64);
                let error = Error::limit("MODEL_ANSWER_BYTES_MAX", most, got, "embed fewer texts at once");
                return Err(Fault::last(error.into()));
            }
        }
        let read = String::from_utf8(answer)
            .map_err(|_| Failure::garbage("it is not UTF-8"))
            .and_then(|answer| embeddings::read(&answer, texts));
        read.map_err(|failure| Fault { again: failure.transient(), failure, wait: None })
    }
}

/// Splits texts into requests.
fn batches(texts: Vec<String>, texts_max: usize, bytes_max: usize) -> Vec<Vec<String>> {
    let mut batches: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for text in texts {
        match batches.last_mut() {
            Some(batch) if batch.len() < texts_max && bytes + text.len() <= bytes_max => {
                bytes += text.len();
                batch.push(text);
            }
            _ => {
                bytes = text.len();
                batches.push(vec![text]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_hold_as_much_as_they_may_and_a_long_text_stands_alone() {
        let texts = |lengths: &[usize]| lengths.iter().map(|n| "x".repeat(*n)).collect::<Vec<_>>();
        let cut = |lengths: &[usize]| {
            batches(texts(lengths), 3, 10)
                .iter()
                .map(|b| b.iter().map(String::len).collect())
                .collect::<Vec<Vec<_>>>()
        };
        assert_eq!(cut(&[1, 1, 1, 1]), [vec![1, 1, 1], vec![1]]);
        assert_eq!(cut(&[5, 5, 1]), [vec![5, 5], vec![1]]);
        assert_eq!(cut(&[99, 1, 99]), [vec![99], vec![1], vec![99]]);
        assert_eq!(cut(&[]), Vec::<Vec<usize>>::new());
    }
}
