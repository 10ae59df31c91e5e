//! Compressed files, with a limit on their expanded size.

use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufRead, BufReader, Read};

/// Magic numbers of Zstandard and gzip.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// Largest ratio of expanded to compressed size, above `FREE_BYTES`. Sessions compress to a tenth or a fiftieth; a file
/// that expands ten thousand times was made to fill a disk.
pub const EXPANSION_MAX: u64 = 300;

/// Expanded size that is allowed at any ratio.
const FREE_BYTES: u64 = 16 * 1024 * 1024;

/// Largest window of the decoder, as a power of two.
const WINDOW_LOG_MAX: u32 = 27;

/// A file as it is, or expanded while it is read.
pub enum Expanded<R: BufRead> {
    /// Not compressed.
    Plain(R),
    /// Zstandard or gzip.
    Compressed(Box<BufReader<Bounded<R>>>),
}

impl<R: BufRead> Expanded<R> {
    /// Looks at the first bytes.
    pub fn new(mut source: R) -> io::Result<Expanded<R>> {
        let head = source.fill_buf()?;
        let (is_zstd, is_gzip) = (head.starts_with(&ZSTD), head.starts_with(&GZIP));
        let source = match is_zstd || is_gzip {
            true => Counted { source, bytes: 0 },
            false => return Ok(Expanded::Plain(source)),
        };
        let decoder = if is_gzip {
            Decoder::Gzip(MultiGzDecoder::new(source))
        } else {
            let mut decoder = zstd::Decoder::with_buffer(source)?;
            decoder.window_log_max(WINDOW_LOG_MAX)?;
            Decoder::Zstd(decoder)
        };
        let expanded = BufReader::new(Bounded { decoder, bytes: 0, is_cut: false });
        Ok(Expanded::Compressed(Box::new(expanded)))
    }

    /// Whether it ended in the middle of a compressed frame.
    pub fn is_cut(&self) -> bool {
        matches!(self, Expanded::Compressed(source) if source.get_ref().is_cut)
    }
}

impl<R: BufRead> Read for Expanded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Expanded::Plain(source) => source.read(buffer),
            Expanded::Compressed(source) => source.read(buffer),
        }
    }
}

impl<R: BufRead> BufRead for Expanded<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Expanded::Plain(source) => source.fill_buf(),
            Expanded::Compressed(source) => source.fill_buf(),
        }
    }

    fn consume(&mut self, bytes: usize) {
        match self {
            Expanded::Plain(source) => source.consume(bytes),
            Expanded::Compressed(source) => source.consume(bytes),
        }
    }
}

/// Counts the bytes read.
struct Counted<R> {
    source: R,
    bytes: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.source.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.source.consume(bytes);
    }
}

enum Decoder<R: BufRead> {
    Zstd(zstd::Decoder<'static, Counted<R>>),
    Gzip(MultiGzDecoder<Counted<R>>),
}

impl<R: BufRead> Decoder<R> {
    /// Bytes of the compressed file that were read.
    fn taken(&self) -> u64 {
        match self {
            Decoder::Zstd(decoder) => decoder.get_ref().bytes,
            Decoder::Gzip(decoder) => decoder.get_ref().bytes,
        }
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Zstd(decoder) => decoder.read(buffer),
            Decoder::Gzip(decoder) => decoder.read(buffer),
        }
    }
}

/// A decoder that stops when the file expands too much.
pub struct Bounded<R: BufRead> {
    decoder: Decoder<R>,
    bytes: u64,
    is_cut: bool,
}

impl<R: BufRead> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.decoder.read(buffer) {
            Ok(read) => read,
            // A file that is still being written ends in the middle of a frame; its bytes so far were passed on.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.is_cut = true;
                0
            }
            Err(error) => return Err(error),
        };
        self.bytes += read as u64;
        let most = FREE_BYTES.max(self.decoder.taken().saturating_mul(EXPANSION_MAX));
        if self.bytes > most {
            let text = format!(
                "EXPANSION_MAX is {EXPANSION_MAX} times, this compressed file becomes larger; expand it yourself if it is yours"
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(read)
    }
}
