//! A relay between two programs: bytes pass unchanged, and a listener gets a copy of each line.
//!
//! The listener can neither delay nor break the connection: it runs on its own thread, behind a queue that drops lines
//! rather than wait.

use crate::output::Failure;
use everturn_core::Error;
use everturn_formats::session::Sender;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum total of the lines that wait for the listener.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum length of a line that the listener gets.
const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Maximum time that the end of the program waits for the listener.
pub const LISTENER_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum time for the rest of the output, once the program has ended: its own children may hold the pipe.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// A line on its way, with the time at which it passed.
pub struct PassedLine {
    /// Connection or session within which ids of requests are unique.
    pub channel: String,
    pub from: Sender,
    pub at: Instant,
    pub bytes: Vec<u8>,
}

/// Runs a program between its client, which is on standard input and output, and itself. `listen` runs on a thread of
/// its own; it gets the lines, and the way to send lines to the client.
pub fn run(
    command: &[OsString],
    listen: impl FnOnce(Arc<PassedLines>, Arc<ClientPipe>) + Send + 'static,
) -> Result<ExitStatus, Failure> {
    let mut child = start(command)?;
    let lines = Arc::new(PassedLines::default());
    let client = Arc::new(ClientPipe::default());
    let listener = on_thread({
        let (lines, client) = (lines.clone(), client.clone());
        move || listen(lines, client)
    })?;
    pass_signals(child.id());
    if let Some(mut input) = child.stdin.take() {
        let lines = lines.clone();
        on_thread(move || {
            pass(std::io::stdin().lock(), Sender::Client, &lines, |bytes| {
                input.write_all(bytes).and_then(|()| input.flush())
            });
        })?;
    }
    let passed = child.stdout.take().map(|output| {
        let (lines, client) = (lines.clone(), client.clone());
        on_thread(move || pass(output, Sender::Server, &lines, |bytes| client.pass(bytes)))
    });
    let status = child.wait()?;
    if let Some(passed) = passed {
        let _ = passed?.recv_timeout(OUTPUT_PATIENCE);
    }
    lines.close();
    if let Err(RecvTimeoutError::Timeout) = listener.recv_timeout(LISTENER_PATIENCE) {
        eprintln!("everturn: the last part was not recorded: the store did not answer in time");
    }
    Ok(status)
}

/// Ends this process with the exit code of the program.
pub fn end_as(status: ExitStatus) -> Result<(), Failure> {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal: Option<i32> = None;
    // A signal, as a shell reports it: 128 and its number.
    match status.code().or(signal.map(|signal| 128 + signal)) {
        Some(0) => Ok(()),
        code => std::process::exit(code.unwrap_or(1)),
    }
}

fn start(command: &[OsString]) -> Result<Child, Error> {
    let mut words = command.iter();
    let program = words.next().ok_or_else(|| {
        Error::invalid(
            "command.absent",
            "there is no command to run; write it after --, as in `-- node agent.js`",
        )
    })?;
    let child = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    child.map_err(|e| {
        let text = format!("cannot run {}: {e}; check the command after --", program.display());
        Error::invalid("command.cannot_run", text)
    })
}

/// Runs work on a thread. The receiver is closed when it has ended.
pub fn on_thread(work: impl FnOnce() + Send + 'static) -> Result<mpsc::Receiver<()>, Failure> {
    let (ended, end) = mpsc::channel::<()>();
    thread::Builder::new().name("relay".into()).spawn(move || {
        let _ended = ended;
        work();
    })?;
    Ok(end)
}

/// Passes bytes on until the source or the target ends.
fn pass(
    mut source: impl Read,
    from: Sender,
    lines: &PassedLines,
    mut target: impl FnMut(&[u8]) -> std::io::Result<()>,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut line = Vec::new();
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        // Copied first: the answer to a request may come back before this thread runs again.
        lines.split(from, &mut line, &buffer[..read]);
        if target(&buffer[..read]).is_err() {
            break;
        }
    }
    if !line.is_empty() {
        lines.push(PassedLine { channel: String::new(), from, at: Instant::now(), bytes: line });
    }
}

/// Outcome of [`PassedLines::next`].
pub enum NextLine {
    /// A line.
    Line(PassedLine),
    /// The timeout.
    Nothing,
    /// No more lines can come.
    End,
}

/// The lines that passed, for the listener.
#[derive(Default)]
pub struct PassedLines {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<PassedLine>,
    bytes: usize,
    /// Lines that were too long, or for which there was no room.
    lost: u64,
    is_closed: bool,
}

impl PassedLines {
    /// Waits for the next line, with a timeout or until one comes.
    pub fn next(&self, timeout: Option<Duration>) -> NextLine {
        let mut queue = self.queue.lock();
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.bytes.len();
                return NextLine::Line(line);
            }
            if queue.is_closed {
                return NextLine::End;
            }
            match timeout {
                None => self.changed.wait(&mut queue),
                Some(timeout) => {
                    let waited = self.changed.wait_for(&mut queue, timeout);
                    if waited.timed_out() && queue.lines.is_empty() && !queue.is_closed {
                        return NextLine::Nothing;
                    }
                }
            }
        }
    }

    /// Whether no line waits.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().lines.is_empty()
    }

    /// Takes the number of lines that were lost since the last call.
    pub fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.queue.lock().lost)
    }

    /// Cuts bytes into lines; the last one, without its end, stays in `line`.
    fn split(&self, from: Sender, line: &mut Vec<u8>, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            // One that is too long is not kept, but its end is found.
            if line.len() <= LINE_BYTES_MAX {
                line.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.push(PassedLine {
                    channel: String::new(),
                    from,
                    at: Instant::now(),
                    bytes: std::mem::take(line),
                });
            }
        }
    }

    /// Adds a line; it is lost if there is no room.
    pub fn push(&self, line: PassedLine) {
        let mut queue = self.queue.lock();
        if line.bytes.len() > LINE_BYTES_MAX || queue.bytes + line.bytes.len() > QUEUE_BYTES_MAX {
            queue.lost += 1;
            return;
        }
        queue.bytes += line.bytes.len();
        queue.lines.push_back(line);
        drop(queue);
        self.changed.notify_one();
    }

    /// Ends the queue: no more lines will come.
    pub fn close(&self) {
        self.queue.lock().is_closed = true;
        self.changed.notify_all();
    }
}

/// The pipe to the client, shared by the program's output and by lines of this process.
#[derive(Default)]
pub struct ClientPipe(Mutex<Output>);

#[derive(Default)]
struct Output {
    /// Whether the program has written a part of a line.
    is_within_line: bool,
    /// Lines of this process that wait for its end.
    waiting: Vec<u8>,
}

impl ClientPipe {
    /// Sends a line, between two lines of the program.
    pub fn send(&self, line: &str) {
        let mut output = self.0.lock();
        output.waiting.extend_from_slice(line.as_bytes());
        output.waiting.push(b'\n');
        // If the client is gone, the line is not needed.
        let _ = output.send_waiting();
    }

    fn pass(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut output = self.0.lock();
        let end = match output.waiting.is_empty() {
            true => 0,
            false => bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        };
        for part in [&bytes[..end], &bytes[end..]] {
            output.write(part)?;
            output.send_waiting()?;
        }
        Ok(())
    }
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some(last) = bytes.last() else { return Ok(()) };
        self.is_within_line = *last != b'\n';
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    fn send_waiting(&mut self) -> std::io::Result<()> {
        if self.is_within_line || self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.write(&waiting)
    }
}

/// Passes signals to stop on to the program. The terminal sends Ctrl-C to both.
fn pass_signals(child: u32) {
    #[cfg(unix)]
    {
        let _ = on_thread(move || {
            use tokio::signal::unix::{SignalKind, signal};
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async {
                let kinds = (
                    signal(SignalKind::terminate()),
                    signal(SignalKind::interrupt()),
                    signal(SignalKind::hangup()),
                );
                let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) = kinds else { return };
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = hangup.recv() => {}
                        _ = interrupt.recv() => continue,
                    }
                    // SAFETY: takes two numbers and touches no memory of ours.
                    unsafe { libc::kill(child.cast_signed(), libc::SIGTERM) };
                }
            });
        });
    }
    #[cfg(not(unix))]
    let _ = child;
}
