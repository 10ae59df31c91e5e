//! Processes of their own: the test binary again, doing another job.
//!
//! The one test below is the door through which such a process comes in; run without a job it does nothing. This way
//! needs no second binary to be found, so it works the same under `cargo test` and `cargo nextest`.

use crate::stage::PATIENCE;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

const JOB: &str = "EVERTURN_TEST_JOB";
const DOOR: &str = "child::a_process_with_a_job_of_its_own_comes_in_here";

#[test]
fn a_process_with_a_job_of_its_own_comes_in_here() {
    let Ok(job) = std::env::var(JOB) else { return };
    // The test harness has written this test's name without ending the line.
    println!();
    end_with_the_parent();
    match job.as_str() {
        "append" => crate::crash::append_until_killed(),
        "import" => crate::importing::faults::import_until_killed(),
        "stream" => crate::nodes::stream_until_killed(),
        "compact" => crate::nodes::work::compact_until_killed(),
        "lead" => crate::nodes::work::lead_until_killed(),
        "own" => crate::processes::own_the_store(),
        other => panic!("no such job: {other}"),
    }
}

/// However the test ends, its children end too: their standard input is closed then.
fn end_with_the_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// What a job was given.
pub fn given(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// Tells the parent one line.
pub fn tell(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// A child. It is killed when this is dropped.
pub struct Process {
    child: Child,
    _stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    pub fn start(job: &str, given: &[(&str, String)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", DOOR, "--nocapture", "--test-threads=1"]).env(JOB, job);
        command.envs(given.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut out = out;
            let mut line = String::new();
            // A line without its end was cut by the kill: it was not told.
            while out.read_line(&mut line).is_ok_and(|n| n > 0) && line.ends_with('\n') {
                if sender.send(std::mem::take(&mut line).trim_end_matches('\n').to_string()).is_err() {
                    return;
                }
            }
        });
        Process { _stdin: child.stdin.take().unwrap(), child, lines }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line with this beginning.
    pub fn wait_for(&self, beginning: &str) {
        let next = || match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(error) => panic!("the child never told \"{beginning}\": {error}"),
        };
        while !next().starts_with(beginning) {}
    }

    /// `kill -9`. Gives what it told and [`Process::wait_for`] has not taken.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.lines.iter().collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
