//! Streaming files to and from a server.

use super::http::{Request, Server};
use crate::output::Failure;
use everturn_core::Error;
use everturn_engine::{ImportOptions, Imported};
use reqwest::Body;
use std::io::{self, BufRead, Write};
use tokio::sync::mpsc::{Receiver, channel};

/// Number of pieces of a file that may wait to be sent.
const PIECES: usize = 4;

/// Writes a file as it arrives.
pub fn export(
    server: &Server,
    request: Request<'_>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let mut response = server.wait(request.send())?;
    let mut lines = 0;
    // A truncated file is an error here: the server does not end the stream then.
    while let Some(piece) = server.wait(response.chunk()).map_err(|e| server.unanswered(&e))? {
        out.write_all(&piece)?;
        lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
        progress(lines);
    }
    Ok(())
}

/// Sends a file as it is read.
pub fn import(
    server: &Server,
    options: ImportOptions<'_>,
    file: &mut (dyn BufRead + Send),
) -> Result<Imported, Error> {
    std::thread::scope(|threads| {
        let (sender, receiver) = channel::<io::Result<Vec<u8>>>(PIECES);
        let reading = threads.spawn(move || -> io::Result<()> {
            loop {
                let piece = file.fill_buf().map(<[u8]>::to_vec);
                let (bytes, failed) = (piece.as_ref().map_or(0, Vec::len), piece.is_err());
                if bytes == 0 && !failed {
                    return Ok(());
                }
                let kind = piece.as_ref().err().map(|e| io::Error::new(e.kind(), e.to_string()));
                // The server has answered without reading everything: it refuses the file.
                if sender.blocking_send(piece).is_err() {
                    return Ok(());
                }
                if let Some(error) = kind {
                    return Err(error);
                }
                file.consume(bytes);
            }
        });
        let pieces = futures_util::stream::unfold(receiver, async |mut receiver: Receiver<_>| {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        let request = server.post(&["import"]).query_some("name", options.name);
        let request = request.query_some("watched", options.watched.then_some(true));
        let imported = request.body(Body::wrap_stream(pieces)).read();
        match reading.join() {
            Ok(Err(e)) => Err(Error::internal("file.io", format!("cannot read the file: {e}"))),
            _ => imported,
        }
    })
}
