//! Events of recent streams, so that a client that lost its connection can ask for the rest with the same numbers.
//!
//! They are in memory only. A response whose stream was dropped can be streamed again from its beginning.

use everturn_core::id::TurnId;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// Maximum number of streams; the oldest are dropped first.
const STREAMS_MAX: usize = 256;
/// Maximum size of all of them, as JSON.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// The recent streams of all tenants: a response is looked up in its tenant's store first.
#[derive(Default)]
pub struct Streams(Mutex<VecDeque<(TurnId, Arc<Stream>)>>);

/// The events of one response, numbered from 0.
#[derive(Default)]
pub struct Stream {
    state: Mutex<StreamState>,
    changed: Notify,
}

#[derive(Default)]
struct StreamState {
    events: Vec<Arc<Value>>,
    bytes: usize,
    ended: bool,
    /// Its writer is gone, although it did not end.
    broken: bool,
}

/// Writes a stream.
pub struct StreamWriter(Arc<Stream>);

impl Streams {
    pub fn begin(&self, turn: TurnId) -> StreamWriter {
        let stream = Arc::new(Stream::default());
        let mut recent = self.0.lock();
        recent.push_back((turn, stream.clone()));
        let bytes = |recent: &VecDeque<(TurnId, Arc<Stream>)>| -> usize {
            recent.iter().map(|(_, stream)| stream.state.lock().bytes).sum()
        };
        while recent.len() > STREAMS_MAX || (recent.len() > 1 && bytes(&recent) > BYTES_MAX) {
            recent.pop_front();
        }
        StreamWriter(stream)
    }

    pub fn find(&self, turn: TurnId) -> Option<Arc<Stream>> {
        let recent = self.0.lock();
        let (_, stream) = recent.iter().find(|(id, stream)| *id == turn && !stream.state.lock().broken)?;
        Some(stream.clone())
    }
}

impl StreamWriter {
    /// Adds events; `last` if none follow.
    pub fn tell(&self, events: &[Value], last: bool) {
        let mut state = self.0.state.lock();
        state.bytes += events.iter().map(|event| event.to_string().len()).sum::<usize>();
        state.events.extend(events.iter().cloned().map(Arc::new));
        state.ended |= last;
        drop(state);
        self.0.changed.notify_waiters();
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.broken = !state.ended;
        drop(state);
        self.0.changed.notify_waiters();
    }
}

impl Stream {
    /// The events from this number on, waiting for the next one; `None` after the last.
    pub async fn after(&self, from: usize) -> Option<Vec<Arc<Value>>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if from < state.events.len() {
                    return Some(state.events[from..].to_vec());
                }
                if state.ended || state.broken {
                    return None;
                }
            }
            changed.await;
        }
    }
}
