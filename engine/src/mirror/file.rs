//! A file of a mirror: finding its end, cutting it, setting it aside and replacing it.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::encoding;
use everturn_core::id::ConversationId;
use everturn_formats::jsonl::{Item, LINE_BYTES_MAX, Reader};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes read at a time when searching backwards for a line break.
const BLOCK_BYTES: u64 = 64 * 1024;

/// The last event in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Its `seq`; 0 if there is only a header.
    pub seq: u64,
    /// Its hash.
    pub hash: Option<Hash>,
    /// Offset at which its line ends. Anything after it is incomplete, or an asset whose event is missing.
    pub bytes: u64,
}

/// The file found at a path.
#[derive(PartialEq, Eq, Debug)]
pub enum MirroredFile {
    /// Nothing.
    Nothing,
    /// The file of this conversation.
    Ours(Tail),
    /// A file that this mirror did not write, or that is damaged at its beginning.
    Other,
}

/// Reads the beginning and the end of a file; the part in between does not matter for continuing it.
pub fn look(path: &Path, id: ConversationId) -> Result<MirroredFile, Error> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(MirroredFile::Nothing),
        Err(e) => return Err(failed(path, &e)),
    };
    match Reader::new(BufReader::new(&file)).next() {
        Some(Ok(Item::Header(header))) if header.conversation == Some(id) => {}
        _ => return Ok(MirroredFile::Other),
    }
    Ok(last_event(&mut file).map_err(|e| failed(path, &e))?.map_or(MirroredFile::Other, MirroredFile::Ours))
}

/// Searches backwards for the last event. `None` without a complete header.
fn last_event(file: &mut File) -> io::Result<Option<Tail>> {
    let length = file.metadata()?.len();
    let Some(last) = line_break_before(file, length)? else { return Ok(None) };
    let mut end = last + 1;
    loop {
        let start = line_break_before(file, end - 1)?.map_or(0, |at| at + 1);
        if start == 0 {
            return Ok(Some(Tail { seq: 0, hash: None, bytes: end }));
        }
        if end - start <= LINE_BYTES_MAX as u64 + 1 {
            let mut line = vec![0; (end - start - 1) as usize];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(&mut line)?;
            let event = std::str::from_utf8(&line).ok().and_then(|line| encoding::from_line(line).ok());
            if let Some(event) = event {
                return Ok(Some(Tail { seq: event.seq, hash: Some(event.hash), bytes: end }));
            }
        }
        end = start;
    }
}

fn line_break_before(file: &mut File, end: u64) -> io::Result<Option<u64>> {
    let mut block = Vec::new();
    let mut end = end;
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES);
        block.resize((end - start) as usize, 0);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(start + at as u64));
        }
        end = start;
    }
    Ok(None)
}

/// Deletes a file; a missing one is no error.
pub fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(path, &e)),
        _ => Ok(()),
    }
}

/// Renames a file that contradicts the log to an unused name.
pub fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let aside = asides(path).find(|aside| !aside.exists()).unwrap_or_else(|| path.to_path_buf());
    fs::rename(path, &aside).map_err(|e| failed(path, &e))?;
    Ok(aside)
}

/// Deletes files that were set aside: they may hold erased text.
pub fn remove_asides(path: &Path) -> Result<(), Error> {
    asides(path).take_while(|aside| aside.exists()).try_for_each(|aside| remove(&aside))
}

fn asides(path: &Path) -> impl Iterator<Item = PathBuf> {
    let path = path.as_os_str().to_owned();
    (1u64..).map(move |number| {
        let mut name = path.clone();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    })
}

/// Path of the file that will replace another.
pub fn beside(path: &Path) -> PathBuf {
    path.with_extension("jsonl.new")
}

/// Replaces a file by the one written beside it: after a crash it is either the old one or the new one.
pub fn replace(path: &Path, written: &File) -> Result<(), Error> {
    written.sync_all().map_err(|e| failed(path, &e))?;
    fs::rename(beside(path), path).map_err(|e| failed(path, &e))?;
    sync_folder(path)
}

/// Makes created, renamed and deleted names durable.
pub fn sync_folder(path: &Path) -> Result<(), Error> {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| failed(folder, &e))?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

pub fn failed(path: &Path, error: &io::Error) -> Error {
    Error::internal("mirror.io", format!("{}: {error}; check the disk and the folder", path.display()))
}

/// Passes on the output of `jsonl::Writer`, except for its header: that is marked as open-ended, or left out where
/// the file has one.
pub struct Lines<W> {
    out: W,
    header: Header,
}

#[derive(PartialEq)]
pub enum Header {
    /// The file is new.
    Wanted,
    /// The file has one.
    There,
    Done,
}

impl<W: Write> Lines<W> {
    pub fn new(out: W, header: Header) -> Lines<W> {
        Lines { out, header }
    }
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::mem::replace(&mut self.header, Header::Done) {
            Header::Wanted => {
                // A line is one write, and the header is the first.
                let open = line.strip_suffix(b"}\n").unwrap_or(line);
                self.out.write_all(open)?;
                self.out.write_all(b",\"live\":true}\n")?;
            }
            Header::There => {}
            Header::Done => self.out.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
