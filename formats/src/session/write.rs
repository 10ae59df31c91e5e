//! Writing a session: the header, entries from any number of threads, the end.

use super::entry::{Entry, SessionFields, line};
use super::place::{self, cannot, failed};
use super::read::{Item, Reader};
use super::{END, START};
use crate::jsonl::TruncatedTail;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::event::check_name;
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use parking_lot::{Condvar, Mutex, MutexGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time at which written lines are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fsync {
    /// Before each append returns.
    Always,
    /// At most this long after it was written.
    Interval(Duration),
    /// When the session ends or is dropped.
    Close,
}

/// Options of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// Durability; by default after a second at most.
    pub fsync: Fsync,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions { fsync: Fsync::Interval(Duration::from_secs(1)) }
    }
}

/// Header of a new session. Unknown values are written as null, so that every header has the same fields.
#[derive(Clone, PartialEq, Debug)]
pub struct NewSession {
    /// Name of the subject's field in the header: `image_id`, `subject`, …
    pub subject_key: String,
    /// Subject of the session, and name of its folder.
    pub subject: String,
    /// Unique id, made by the caller.
    pub session_id: String,
    /// Start time.
    pub started_at: Timestamp,
    /// Name of the model.
    pub agent_provider: Option<String>,
    /// Temperature of the model.
    pub agent_temperature: Option<f64>,
    /// Files and texts that the agent had read.
    pub context_loaded: Vec<String>,
    /// Hash of the state of the work at the start.
    pub starting_snapshot_hash: Option<String>,
    /// Further fields.
    pub extra: SessionFields,
}

impl NewSession {
    /// A session about a subject, with no other fields set.
    pub fn about(
        subject: impl Into<String>,
        session_id: impl Into<String>,
        started_at: Timestamp,
    ) -> NewSession {
        NewSession {
            subject_key: "subject".into(),
            subject: subject.into(),
            session_id: session_id.into(),
            started_at,
            agent_provider: None,
            agent_temperature: None,
            context_loaded: Vec::new(),
            starting_snapshot_hash: None,
            extra: SessionFields::default(),
        }
    }

    /// The line, line break included.
    pub fn line(&self) -> Result<String, Error> {
        check_name("subject key", &self.subject_key)?;
        check_name("session_id", &self.session_id)?;
        if self.agent_temperature.is_some_and(|number| !number.is_finite()) {
            return Err(Error::invalid("session.temperature", "agent_temperature must be a finite number"));
        }
        // These fields would make it the header of a conversation's file.
        for reserved in ["conversation", "format"] {
            if self.subject_key == reserved || self.extra.get(reserved).is_some() {
                let text = format!("a header field cannot be called {reserved}; rename it");
                return Err(Error::invalid("session.reserved_field", text));
            }
        }
        let mut fields = vec![
            ("session_id".to_string(), Raw::of(&self.session_id)?),
            (self.subject_key.clone(), Raw::of(&self.subject)?),
            ("started_at".to_string(), Raw::of(&self.started_at)?),
            ("agent_provider".to_string(), Raw::of(&self.agent_provider)?),
            ("agent_temperature".to_string(), Raw::of(&self.agent_temperature)?),
            ("context_loaded".to_string(), Raw::of(&self.context_loaded)?),
            ("starting_snapshot_hash".to_string(), Raw::of(&self.starting_snapshot_hash)?),
        ];
        fields.extend(self.extra.0.iter().cloned());
        line(START, self.started_at, &SessionFields(fields))
    }
}

/// Totals that `session_end` adds by itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct SessionSummary {
    /// When it ended.
    pub ended_at: Timestamp,
    /// Duration in seconds; 0 if the clock went back meanwhile.
    pub duration_s: f64,
    /// Lines between the header and the end.
    pub entries: u64,
    /// Number of entries by type.
    pub by_type: BTreeMap<String, u64>,
}

impl SessionSummary {
    pub(super) fn new(
        started_at: Option<Timestamp>,
        ended_at: Timestamp,
        entries: u64,
        by_type: BTreeMap<String, u64>,
    ) -> SessionSummary {
        let duration_s = ended_at.0.saturating_sub(started_at.unwrap_or(ended_at).0).max(0) as f64 / 1e6;
        SessionSummary { ended_at, duration_s, entries, by_type }
    }
}

/// An incomplete line that [`Session::resume`] cut off.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Mended {
    /// File that has the cut bytes now.
    pub torn: PathBuf,
    /// Their former place.
    #[serde(flatten)]
    pub tail: TruncatedTail,
}

/// A session being written. Shared by reference between threads; each line is one `write`. Dropping it makes
/// the written lines durable and does not end the session: [`Session::resume`] continues it.
pub struct Session {
    shared: Arc<Shared>,
    path: Option<PathBuf>,
    mended: Option<Mended>,
    syncer: Option<JoinHandle<()>>,
}

struct Shared {
    /// Locked against other writers as long as it is open.
    file: File,
    fsync: Fsync,
    state: Mutex<State>,
    /// Wakes the thread that syncs at intervals.
    changed: Condvar,
    syncs: AtomicU64,
}

struct State {
    /// `None` in a file of another program without a start time.
    started_at: Option<Timestamp>,
    entries: u64,
    by_type: BTreeMap<String, u64>,
    ended: Option<SessionSummary>,
    /// Bytes of whole lines.
    bytes: u64,
    /// Whether a write failed and its remains could not be cut off yet.
    torn: bool,
    /// Whether anything was written since the last sync.
    dirty: bool,
    /// Error of the syncing thread; the next write returns it.
    failed: Option<Error>,
    closing: bool,
}

impl Session {
    /// Creates the file of a new session below `root` and writes its header.
    pub fn start(root: &Path, new: &NewSession, options: SessionOptions) -> Result<Session, Error> {
        // Before the file is created: a refused header leaves nothing behind.
        let header = new.line()?;
        let (file, path) = place::create(root, &new.subject, new.started_at)?;
        // Nobody else knows of the file yet. If files cannot be locked, it is written all the same.
        let _ = file.try_lock();
        Session::begin(file, Some(path), new, &header, options)
    }

    /// Begins a session on an empty file that the caller opened and keeps others from writing to.
    pub fn on(file: File, new: &NewSession, options: SessionOptions) -> Result<Session, Error> {
        Session::begin(file, None, new, &new.line()?, options)
    }

    fn begin(
        file: File,
        path: Option<PathBuf>,
        new: &NewSession,
        header: &str,
        options: SessionOptions,
    ) -> Result<Session, Error> {
        let state = State::new(Some(new.started_at));
        let session = Session::with(file, path, state, options)?;
        session.shared.write(header, &mut session.shared.state())?;
        session.shared.settle()?;
        Ok(session)
    }

    /// Continues a session that was not ended. An incomplete last line is cut off and kept in
    /// `<file>.torn`; see [`Session::mended`].
    pub fn resume(path: &Path, options: SessionOptions) -> Result<Session, Error> {
        let mut file =
            OpenOptions::new().read(true).append(true).open(path).map_err(|e| cannot("open", path, &e))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let text = format!(
                "{} is being written by somebody else; wait until they are done, or start another session",
                path.display()
            );
            return Err(Error::busy("session.locked", text));
        }
        let (state, tail) = read_back(&file, path)?;
        let mended = match tail {
            Some(tail) => {
                let torn = keep_torn(&mut file, path, tail)?;
                file.set_len(tail.byte_offset)
                    .and_then(|()| file.sync_all())
                    .map_err(|e| failed("cutting off an unfinished line", &e))?;
                Some(Mended { torn, tail })
            }
            None => None,
        };
        let mut session = Session::with(file, Some(path.to_path_buf()), state, options)?;
        session.mended = mended;
        session.shared.end_last_line()?;
        Ok(session)
    }

    fn with(
        file: File,
        path: Option<PathBuf>,
        mut state: State,
        options: SessionOptions,
    ) -> Result<Session, Error> {
        state.bytes = file.metadata().map_err(|e| failed("looking at the session file", &e))?.len();
        let shared = Arc::new(Shared {
            file,
            fsync: options.fsync,
            state: Mutex::new(state),
            changed: Condvar::new(),
            syncs: AtomicU64::new(0),
        });
        let syncer = match options.fsync {
            Fsync::Interval(interval) => {
                let shared = shared.clone();
                let thread = std::thread::Builder::new().name("session-sync".into());
                let thread = thread.spawn(move || shared.sync_at_intervals(interval));
                Some(thread.map_err(|e| failed("starting a thread", &e))?)
            }
            Fsync::Always | Fsync::Close => None,
        };
        Ok(Session { shared, path, mended: None, syncer })
    }

    /// Writes an entry. If this fails, the file is as it was before, or will be before the next line is written. The
    /// failure may also be that of an earlier sync at an interval; then this entry is not written.
    pub fn append(&self, entry: &Entry) -> Result<(), Error> {
        let line = entry.line()?;
        let mut state = self.shared.state();
        if state.ended.is_some() {
            return Err(ended("the session was ended; start another one"));
        }
        self.shared.write(&line, &mut state)?;
        state.count(Some(entry.kind.clone()));
        drop(state);
        self.shared.settle()
    }

    /// Writes `session_end` with these further fields, durably. Ending it again writes nothing and returns the first
    /// summary.
    pub fn end(&self, at: Timestamp, extra: &SessionFields) -> Result<SessionSummary, Error> {
        let mut state = self.shared.state();
        if let Some(summary) = &state.ended {
            return Ok(summary.clone());
        }
        let summary = SessionSummary::new(state.started_at, at, state.entries, state.by_type.clone());
        let mut fields = SessionFields::of(&summary)?;
        fields.0.extend(extra.0.iter().cloned());
        self.shared.write(&line(END, at, &fields)?, &mut state)?;
        state.ended = Some(summary.clone());
        drop(state);
        self.shared.sync()?;
        Ok(summary)
    }

    /// Makes all written lines durable.
    pub fn sync(&self) -> Result<(), Error> {
        self.shared.sync()
    }

    /// Path of the file, unless it was opened by the caller.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Incomplete line that was cut off to continue.
    pub fn mended(&self) -> Option<&Mended> {
        self.mended.as_ref()
    }

    /// Number of syncs since the file was opened.
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.syncer.take() {
            // The thread does not panic, and there is nobody to report it to.
            let _ = thread.join();
        }
        // Callers that must know call `end` or `sync`.
        let _ = self.shared.sync();
        // Closing the file would not be enough: a child process that is just being started holds it open a moment longer.
        let _ = self.shared.file.unlock();
    }
}

impl State {
    fn new(started_at: Option<Timestamp>) -> State {
        State {
            started_at,
            entries: 0,
            by_type: BTreeMap::new(),
            ended: None,
            bytes: 0,
            torn: false,
            dirty: false,
            failed: None,
            closing: false,
        }
    }

    fn count(&mut self, kind: Option<String>) {
        self.entries += 1;
        if let Some(kind) = kind {
            *self.by_type.entry(kind).or_default() += 1;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Writes one line with one `write`. The remains of a failed write are cut off at once or before the next, so
    /// that every line begins where a line ended.
    fn write(&self, line: &str, state: &mut State) -> Result<(), Error> {
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        if state.torn {
            self.cut_back(state)?;
        }
        let wrote = (&self.file).write_all(line.as_bytes());
        if let Err(error) = wrote {
            state.torn = true;
            // If this fails as well, it is repeated before the next line.
            let _ = self.cut_back(state);
            return Err(failed("writing the session file", &error));
        }
        state.bytes += line.len() as u64;
        if !state.dirty {
            state.dirty = true;
            self.changed.notify_all();
        }
        Ok(())
    }

    fn cut_back(&self, state: &mut State) -> Result<(), Error> {
        self.file
            .set_len(state.bytes)
            // A file that the caller opened may write at its position and not at its end.
            .and_then(|()| (&self.file).seek(SeekFrom::Start(state.bytes)))
            .map_err(|e| failed("cutting off an unfinished line", &e))?;
        state.torn = false;
        Ok(())
    }

    /// Adds the line break of a last line that was cut just before it: the next line must begin after one.
    fn end_last_line(&self) -> Result<(), Error> {
        let mut state = self.state();
        let mut last = [b'\n'];
        if state.bytes > 0 {
            (&self.file)
                .seek(SeekFrom::End(-1))
                .and_then(|_| (&self.file).read_exact(&mut last))
                .map_err(|e| failed("reading the session file", &e))?;
        }
        if last == [b'\n'] { Ok(()) } else { self.write("\n", &mut state) }
    }

    /// Syncs, if that must happen before the caller learns that its line is written.
    fn settle(&self) -> Result<(), Error> {
        if self.fsync == Fsync::Always { self.sync() } else { Ok(()) }
    }

    /// Syncs without holding the lock: others may write meanwhile, and their syncs join this one in the kernel.
    fn sync(&self) -> Result<(), Error> {
        let was_dirty = std::mem::take(&mut self.state().dirty);
        if !was_dirty && self.fsync != Fsync::Always {
            return Ok(());
        }
        let synced = self.file.sync_data();
        if let Err(error) = synced {
            self.state().dirty = true;
            return Err(failed("syncing the session file", &error));
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn sync_at_intervals(&self, interval: Duration) {
        let mut state = self.state();
        while !state.closing {
            if !state.dirty {
                self.changed.wait(&mut state);
                continue;
            }
            // The interval begins with the first unsynced line; later lines are synced with it.
            self.changed.wait_while_for(&mut state, |state| !state.closing, interval);
            drop(state);
            let synced = self.sync();
            state = self.state();
            if let Err(error) = synced {
                state.failed = Some(error);
            }
        }
    }
}

fn ended(text: &str) -> Error {
    Error::conflict(code::SESSION_ENDED, text)
}

/// State after the lines in the file, and the incomplete line at its end.
fn read_back(file: &File, path: &Path) -> Result<(State, Option<TruncatedTail>), Error> {
    let place = path.display();
    let refuse = |text: String| Err(Error::invalid("session.not_a_session", text));
    let mut reader = Reader::new(BufReader::new(file));
    let mut state: Option<State> = None;
    let mut tail = None;
    let mut first = true;
    for item in &mut reader {
        match item.map_err(|e| e.at(&place))? {
            Item::Start(start) if first && start.conversation.is_some() => {
                return refuse(format!("{place} is the file of a conversation; append to it in its store"));
            }
            Item::Start(start) if first => {
                state = Some(State::new(start.started_at));
            }
            Item::Entry(recorded) => {
                if let Some(state) = &mut state {
                    state.started_at = state.started_at.or(recorded.at);
                    state.count(recorded.kind);
                }
            }
            Item::TruncatedTail(cut) => tail = Some(cut),
            Item::Start(_) | Item::End(_) | Item::Corrupt(_) => {}
        }
        first = false;
    }
    if !reader.is_unclosed() {
        return Err(ended("the session was ended; start another one").at(&place));
    }
    match state {
        Some(state) => Ok((state, tail)),
        None => {
            refuse(format!("{place} does not begin with a whole session_start line; start another session"))
        }
    }
}

/// Copies the incomplete line to a file of its own, never over an existing one.
fn keep_torn(file: &mut File, path: &Path, tail: TruncatedTail) -> Result<PathBuf, Error> {
    let mut number = 0;
    let (mut out, torn) = loop {
        let mut name = path.as_os_str().to_owned();
        name.push(if number == 0 { ".torn".to_string() } else { format!(".torn.{number}") });
        let torn = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&torn) {
            Ok(out) => break (out, torn),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(e) => return Err(cannot("make", &torn, &e)),
        }
    };
    file.seek(SeekFrom::Start(tail.byte_offset))
        .and_then(|_| io::copy(file, &mut out))
        .and_then(|_| out.sync_all())
        .map_err(|e| failed("keeping an unfinished line", &e))?;
    Ok(torn)
}
