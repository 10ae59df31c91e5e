//! Pipes for bodies that are too large to hold in memory: the blocking side runs on a thread of its own, and
//! both sides wait for each other.

use crate::lanes::Thread;
use axum::body::{Body, Bytes};
use everturn_core::Error;
use futures_util::StreamExt;
use std::io::{self, BufRead, Read, Write};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Number of pieces that may be in a pipe.
const PIECES: usize = 4;
/// Size of a piece in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// A body that `work` writes. If it fails before the first piece is full, the error is the answer. Later, the
/// connection is closed, so that a part is not mistaken for the whole.
pub async fn written(
    thread: Option<Thread>,
    work: impl FnOnce(&mut dyn Write) -> Result<(), Error> + Send + 'static,
) -> Result<Body, Error> {
    let (sender, mut receiver) = channel::<Result<Bytes, Error>>(PIECES);
    tokio::task::spawn_blocking(move || {
        let _thread = thread;
        let mut out = io::BufWriter::with_capacity(PIECE_BYTES, Outgoing(sender.clone()));
        let flushed = |e: io::Error| Error::internal("file.io", format!("writing the answer: {e}"));
        if let Err(error) = work(&mut out).and_then(|()| out.flush().map_err(flushed)) {
            tracing::warn!(%error, "an answer ended early");
            // The client may be gone.
            let _ = sender.blocking_send(Err(error));
        }
    });
    let first = receiver.recv().await.transpose()?;
    let rest = futures_util::stream::unfold(receiver, async |mut receiver: Receiver<_>| {
        receiver.recv().await.map(|piece: Result<Bytes, Error>| (piece, receiver))
    });
    let pieces = futures_util::stream::iter(first.map(Ok)).chain(rest);
    // The compression layer polls once more after its end.
    Ok(Body::from_stream(pieces.map(|piece| piece.map_err(|e| io::Error::other(e.to_string()))).fuse()))
}

struct Outgoing(Sender<Result<Bytes, Error>>);

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))) {
            Ok(()) => Ok(bytes.len()),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body to read, with a timeout between its parts. It is read as fast as the reader consumes it.
pub fn read(body: Body, patience: Duration) -> Incoming {
    let (sender, receiver) = channel(PIECES);
    tokio::spawn(async move {
        let mut pieces = body.into_data_stream();
        loop {
            let piece = match tokio::time::timeout(patience, pieces.next()).await {
                Ok(None) => return,
                Ok(Some(piece)) => piece.map_err(io::Error::other),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            let last = piece.is_err();
            if sender.send(piece).await.is_err() || last {
                return;
            }
        }
    });
    Incoming { receiver, piece: Bytes::new(), broken: None }
}

/// The blocking end of the pipe.
pub struct Incoming {
    receiver: Receiver<io::Result<Bytes>>,
    piece: Bytes,
    /// Error that ended the body early.
    pub broken: Option<io::ErrorKind>,
}

impl BufRead for Incoming {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece.inspect_err(|e| self.broken = Some(e.kind()))?,
                None => return Ok(&[]),
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, bytes: usize) {
        drop(self.piece.split_to(bytes));
    }
}

impl Read for Incoming {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let bytes = from.len().min(into.len());
        into[..bytes].copy_from_slice(&from[..bytes]);
        self.consume(bytes);
        Ok(bytes)
    }
}
