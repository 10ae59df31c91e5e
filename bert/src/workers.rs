//! Threads for models that run on this machine.
//!
//! Encoding takes seconds of CPU time, so it runs neither on a caller's executor nor on every core: batches share a
//! few threads, and a single text (a query somebody waits for) goes to others and never queues behind them.

use everturn_core::Error;
use everturn_engine::model::{lower_priority, recalls_at_once_max};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A local model that encodes texts, on one thread. Texts are never empty.
pub trait Encode: Send + Sync + 'static {
    /// One unit vector for each text, in their order.
    fn encode(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Error>;
}

/// Most texts that a thread takes at a time: few, so that an abandoned batch ends soon.
const TEXTS_AT_ONCE: usize = 8;

/// Pools of one thread each: the libraries below would otherwise spread every multiplication over all cores.
pub struct Workers {
    /// For single texts. As many as there are concurrent recalls.
    questions: Vec<ThreadPool>,
    /// For batches, with a lower priority.
    batches: Vec<ThreadPool>,
    next: AtomicUsize,
}

impl Workers {
    /// This many threads for batches, and some for queries. They sleep until there is work.
    pub fn new(threads: usize) -> Result<Workers, Error> {
        let pool = |name: String, in_background: bool| {
            ThreadPoolBuilder::new()
                .num_threads(1)
                .thread_name(move |_| name.clone())
                .start_handler(move |_| {
                    if in_background {
                        lower_priority();
                    }
                })
                .build()
                .map_err(|e| Error::internal("thread", format!("cannot start a thread: {e}")))
        };
        let question = |at| pool(format!("everturn-ask-{at}"), false);
        let batch = |at| pool(format!("everturn-encode-{at}"), true);
        Ok(Workers {
            questions: (0..recalls_at_once_max()).map(question).collect::<Result<_, _>>()?,
            batches: (0..threads.max(1)).map(batch).collect::<Result<_, _>>()?,
            next: AtomicUsize::new(0),
        })
    }

    /// Encodes on these threads. Dropping the future ends the work after the texts that are being encoded.
    pub async fn encode(&self, model: Arc<dyn Encode>, texts: Vec<String>) -> Result<Vec<Vec<f32>>, Error> {
        let pools = if texts.len() == 1 { &self.questions } else { &self.batches };
        // A small batch is split over all threads as well.
        let at_once = texts.len().div_ceil(pools.len()).min(TEXTS_AT_ONCE);
        let (answers, mut parts): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        let mut texts = texts.into_iter().peekable();
        while texts.peek().is_some() {
            let part: Vec<String> = texts.by_ref().take(at_once).map(readable).collect();
            let (done, answer) = oneshot::async_channel();
            let model = model.clone();
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            pools[turn % pools.len()].spawn_fifo(move || {
                if !done.is_closed() {
                    // The caller may have stopped waiting.
                    let _ = done.send(model.encode(&part));
                }
            });
            parts.push(answer);
        }
        let mut vectors = answers;
        for part in parts {
            let ended =
                |_| Error::internal("embedder.ended", "the embedder ended; see the log, then try again");
            vectors.extend(part.await.map_err(ended)??);
        }
        Ok(vectors)
    }
}

/// Replaces a text without words, which needs a vector as well: one that is similar to nothing in particular.
fn readable(text: String) -> String {
    if text.trim().is_empty() { ".".to_string() } else { text }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]
mod tests {
    use super::*;
    use parking_lot::{Condvar, Mutex};
    use std::time::Duration;

    /// Ends when it is encoding on this many threads at once.
    struct Together {
        threads: usize,
        there: Mutex<usize>,
        changed: Condvar,
    }

    impl Encode for Together {
        fn encode(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
            let mut there = self.there.lock();
            *there += 1;
            self.changed.notify_all();
            let few = |there: &mut usize| *there < self.threads;
            let waited = self.changed.wait_while_for(&mut there, few, Duration::from_secs(10));
            assert!(!waited.timed_out(), "the other threads have nothing to do");
            Ok(texts.iter().map(|text| vec![text.len() as f32]).collect())
        }
    }

    #[test]
    fn a_small_batch_is_for_all_threads() {
        let model = Together { threads: 3, there: Mutex::default(), changed: Condvar::new() };
        let texts = ["a", "bc", "def"].map(String::from).to_vec();
        let workers = Workers::new(3).unwrap();
        let vectors = futures_executor::block_on(workers.encode(Arc::new(model), texts)).unwrap();
        assert_eq!(vectors, [[1.0], [2.0], [3.0]]);
    }
}
