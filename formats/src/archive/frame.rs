//! The outside of an archive: bytes, their hash, and the frame at the end that holds it.

use everturn_core::chain::{Hash, Hasher};
use std::io::{self, Read, Write};

/// Header of a Zstandard frame that decoders skip, with 32 bytes of content. Frozen.
const TRAILER_HEAD: [u8; 8] = [0x5e, 0x2a, 0x4d, 0x18, 32, 0, 0, 0];
/// Magic number of Zstandard.
const ZSTANDARD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Size of the whole frame.
const TRAILER_BYTES: usize = TRAILER_HEAD.len() + 32;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 128 * 1024;

/// Hashes everything written through it.
pub struct Hashing<W> {
    out: W,
    hasher: Hasher,
    bytes: u64,
}

impl<W: Write> Hashing<W> {
    pub fn new(out: W) -> Hashing<W> {
        Hashing { out, hasher: Hasher::default(), bytes: 0 }
    }

    /// Writes the hash at the end. Returns the flushed output with the hash and the number of bytes.
    pub fn finish(mut self) -> io::Result<(W, Hash, u64)> {
        let hash = self.hasher.finish();
        self.out.write_all(&TRAILER_HEAD)?;
        self.out.write_all(&hash.0)?;
        self.out.flush()?;
        Ok((self.out, hash, self.bytes + TRAILER_BYTES as u64))
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buffer)?;
        self.hasher.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Passes on everything but the last frame, and hashes it.
pub struct Checking<R> {
    source: R,
    hasher: Hasher,
    /// Bytes read and not passed on yet; the last [`TRAILER_BYTES`] are held back.
    pending: Vec<u8>,
    given: usize,
    ended: bool,
    /// Whether the source itself failed, which says nothing about its content.
    pub failed: bool,
    /// Whether it begins like Zstandard data; `None` before the first read.
    pub is_zstandard: Option<bool>,
}

impl<R: Read> Checking<R> {
    pub fn new(source: R) -> Checking<R> {
        let hasher = Hasher::default();
        Checking {
            source,
            hasher,
            pending: Vec::new(),
            given: 0,
            ended: false,
            failed: false,
            is_zstandard: None,
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        while !self.ended && self.pending.len() - self.given <= TRAILER_BYTES {
            self.pending.drain(..self.given);
            self.given = 0;
            let kept = self.pending.len();
            self.pending.resize(kept + CHUNK_BYTES, 0);
            let read = self.source.read(&mut self.pending[kept..]);
            self.pending.truncate(kept + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// At the end: the hash, if the last frame says the same and everything before it was read.
    pub fn finish(mut self) -> io::Result<Option<Hash>> {
        self.fill()?;
        let rest = &self.pending[self.given..];
        let hash = self.hasher.finish();
        Ok((self.ended && rest == [&TRAILER_HEAD[..], &hash.0].concat()).then_some(hash))
    }
}

impl<R: Read> Read for Checking<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fill()?;
        self.is_zstandard.get_or_insert(self.pending.starts_with(&ZSTANDARD));
        let end = self.pending.len().saturating_sub(TRAILER_BYTES).max(self.given);
        let count = buffer.len().min(end - self.given);
        let piece = &self.pending[self.given..self.given + count];
        buffer[..count].copy_from_slice(piece);
        self.hasher.update(piece);
        self.given += count;
        Ok(count)
    }
}
