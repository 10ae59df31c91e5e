//! A file line by line, at most one in memory.

use super::LINE_BYTES_MAX;
use std::io::{self, BufRead, Read};

/// Reads lines.
pub struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    number: u64,
    offset: u64,
}

/// A line of the file.
pub enum LineRead<'a> {
    /// A trimmed line, and whether it ends the file without a line break.
    Line { number: u64, bytes: &'a [u8], last: bool },
    /// A line that was too long and was skipped.
    Skipped { number: u64, bytes: u64 },
}

impl<R: BufRead> Lines<R> {
    pub fn new(source: R) -> Lines<R> {
        Lines { source, buffer: Vec::new(), number: 0, offset: 0 }
    }

    pub fn source(&self) -> &R {
        &self.source
    }

    /// Bytes of the file read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next line that is not empty.
    pub fn next(&mut self) -> io::Result<Option<LineRead<'_>>> {
        loop {
            self.buffer.clear();
            if self.buffer.capacity() > LINE_BYTES_MAX / 8 {
                self.buffer = Vec::new();
            }
            let first = self.offset == 0;
            let most = LINE_BYTES_MAX as u64 + 1;
            let read = self.source.by_ref().take(most).read_until(b'\n', &mut self.buffer)? as u64;
            if read == 0 {
                return Ok(None);
            }
            self.offset += read;
            self.number += 1;
            let ended = self.buffer.last() == Some(&b'\n');
            if !ended && read == most {
                let skipped = self.source.skip_until(b'\n')? as u64;
                self.offset += skipped;
                return Ok(Some(LineRead::Skipped { number: self.number, bytes: read + skipped }));
            }
            let mut bytes = self.buffer.as_slice();
            if first {
                bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            // Asked again, because the borrow checker does not see that the loop ends here.
            let bytes = self.buffer.strip_prefix(b"\xef\xbb\xbf").filter(|_| first).unwrap_or(&self.buffer);
            return Ok(Some(LineRead::Line { number: self.number, bytes: bytes.trim_ascii(), last: !ended }));
        }
    }
}
