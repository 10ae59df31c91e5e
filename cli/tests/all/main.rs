//! The binary from the command line: its output, and its exit code.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod acp;
mod attacks;
mod backup;
mod bad_input;
mod both;
mod changing;
mod conversations;
mod documents;
mod erasing;
mod guidance;
mod importing;
mod mcp;
mod models;
mod postgres;
mod process;
mod reading;
mod recalling;
mod remote;
mod serving;
mod session;
mod settings;
mod sharing;
mod terminal;
mod transfer;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A store of its own in a folder of its own.
struct Shell {
    folder: tempfile::TempDir,
}

/// The output and the exit code of a command.
struct Said {
    out: String,
    err: String,
    code: i32,
}

impl Shell {
    fn new() -> Shell {
        Shell { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
        command.args(args).current_dir(self.folder.path());
        command.env("EVERTURN_STORE", format!("sqlite:{}", self.path("store.db").display()));
        command.env_remove("EVERTURN_URL").env_remove("EVERTURN_KEY").env_remove("EVERTURN_KEY_FILE");
        command
            .env("XDG_CONFIG_HOME", self.folder.path())
            .env_remove("EVERTURN_TENANT")
            // Embeddings have tests of their own; without them, results do not depend on a server's progress.
            .env("EVERTURN_RECALL_EMBEDDER", "none")
            .env("NO_COLOR", "1")
            .env("TZ", "UTC")
            .env("COLUMNS", "100");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::from(self.command(args).output().unwrap())
    }

    fn run_with(&self, args: &[&str], input: &[u8]) -> Said {
        self.feed(self.command(args), input)
    }

    fn feed(&self, mut command: Command, input: &[u8]) -> Said {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // The child may refuse and end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(input);
        Said::from(child.wait_with_output().unwrap())
    }

    /// Standard output of a command that must succeed.
    fn ok(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
        said.out
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// Standard error of a command that must fail with code 1 and print nothing else.
    fn refused(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, 1, "{args:?}: {}{}", said.out, said.err);
        assert_eq!(said.out, "", "{args:?}");
        said.err
    }

    fn new_conversation(&self) -> String {
        self.json(&["new", "--json", "--title", "Fix the build"])["id"].as_str().unwrap().to_string()
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            code: output.status.code().expect("the command was not killed"),
        }
    }
}

/// Compares with a text in which ids, times and hashes are replaced: they differ each time.
macro_rules! assert_shows {
    ($text:expr, @$expected:literal) => {
        insta::with_settings!({filters => vec![
            (r"(conv|turn|evt|asset|tr)_[0-9A-HJKMNP-TV-Z]{26}", "${1}_ID"),
            (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+Z| UTC)?", "TIME"),
            (r"\b[0-9a-f]{64}\b", "HASH"),
            (r"process \d+ \([^)]*\)", "process PID"),
            (r"/[^\s:]*/(store\.db|[a-z-]+\.(jsonl|json|txt))", "FOLDER/$1"),
        ]}, { insta::assert_snapshot!($text, @$expected) });
    };
}
pub(crate) use assert_shows;
