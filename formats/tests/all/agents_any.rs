//! Files of others, and files that nobody would write.

use crate::agents::{Read, read};
use everturn_formats::agents::{EntryContent, Opened, open};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Real files, where they are: they are not part of the project.
static FIXTURES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    let mut found = Vec::new();
    for agent in ["claude_code", "codex", "gemini"] {
        let files = std::fs::read_dir(folder.join(agent)).into_iter().flatten().flatten();
        for file in files.map(|file| file.path()).filter(|path| path.extension().is_some()) {
            let name = format!("{agent}/{}", file.file_name().unwrap().to_string_lossy());
            found.push((name, std::fs::read(&file).unwrap()));
        }
    }
    found.sort();
    if found.is_empty() {
        eprintln!("skipped: there are no real session files in {}", folder.display());
    }
    found
});

/// A line of each kind, to be broken.
const SAMPLES: [&str; 3] = [
    r#"{"type":"user","uuid":"u1","parentUuid":null,"sessionId":"s","message":{"role":"user","content":"hi"}}
{"type":"assistant","uuid":"a1","parentUuid":"u1","sessionId":"s","message":{"id":"m","role":"assistant","content":[{"type":"text","text":"x"}],"usage":{"input_tokens":1}}}
{"type":"assistant","uuid":"a2","parentUuid":"a1","sessionId":"s","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":{}}]}}
{"type":"user","uuid":"r1","parentUuid":"a2","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"y"}]}}
{"type":"user","uuid":"u2","parentUuid":"u1","sessionId":"s","isSidechain":true,"message":{"role":"user","content":"z"}}
{"type":"system","subtype":"compact_boundary","uuid":"b","parentUuid":null,"logicalParentUuid":"r1","sessionId":"s"}
{"type":"user","uuid":"c","parentUuid":"b","sessionId":"s","isCompactSummary":true,"message":{"role":"user","content":"so far"}}
"#,
    r#"{"timestamp":"2026-01-01T00:00:00Z","type":"session_meta","payload":{"id":"i"}}
{"timestamp":"2026-01-01T00:00:00Z","type":"event_msg","payload":{"type":"user_message","message":"x"}}
{"timestamp":"2026-01-01T00:00:00Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}}
{"timestamp":"2026-01-01T00:00:00Z","type":"compacted","payload":{"message":"so far"}}
"#,
    r#"{"sessionId":"g","projectHash":"h","messages":[{"id":"1","type":"user","content":"x"},{"id":"2","type":"gemini","content":"","thoughts":[{"subject":"a"}],"toolCalls":[{"id":"t","name":"n","args":{},"result":[{"functionResponse":{"response":{"output":"y"}}}]}]}]}"#,
];

/// Each line of a file is there: as a turn, as a part of one, or as it was.
fn accounts_for_everything(name: &str, read: &Read) {
    assert!(read.problems.is_empty(), "{name}: {:?}", read.problems);
    let kept =
        read.entries.iter().filter(|entry| !matches!(entry.step, EntryContent::Turn(_))).count() as u64;
    let mut lines = 0;
    for entry in &read.entries {
        let EntryContent::Turn(said) = &entry.step else { continue };
        everturn_core::json::check(&said.message).unwrap_or_else(|error| panic!("{name}: {error}"));
        // A message of several lines has the rest of each of them.
        let rest = said.metadata.get("claude_code").and_then(|raw| raw.read::<Vec<serde_json::Value>>());
        lines += rest.map_or(1, |rest| rest.len() as u64);
    }
    // What tools answered stands in the same line of Gemini CLI as the call.
    let twice = if name.starts_with("gemini") { 1 } else { 0 };
    assert_eq!(lines + kept - twice, read.lines, "{name}");
}

#[test]
fn real_files_are_read_without_loss() {
    for (name, bytes) in FIXTURES.iter() {
        let read = read(bytes).unwrap_or_else(|| panic!("{name} is not recognised"));
        let agent = name.split('/').next().unwrap().replace('_', "-");
        assert!(read.format.name().starts_with(&agent), "{name} is read as {}", read.format);
        accounts_for_everything(name, &read);
        assert!(!read.entries.is_empty(), "{name}");
        // Every line that is no turn is an event that says what it is, and nothing is unreadable.
        for entry in &read.entries {
            if let EntryContent::Event { what, .. } = &entry.step {
                assert!(!what.is_empty() && what != "unreadable", "{name} line {}", entry.line);
            }
        }
    }
}

#[test]
fn the_lines_of_a_real_codex_file_that_go_to_the_model_are_turns() {
    let Some((name, bytes)) = FIXTURES.iter().find(|(name, _)| name.starts_with("codex")) else { return };
    let read = read(bytes).unwrap();
    let text = String::from_utf8_lossy(bytes);
    let items = text.lines().filter(|line| line.contains("\"type\":\"response_item\"")).count();
    let turns = read.entries.iter().filter(|entry| matches!(entry.step, EntryContent::Turn(_))).count();
    // Snapshots and messages between agents have no role.
    assert_eq!(turns, items - 3, "{name}");
}

/// Reads whatever there is to the end, or to an error.
fn exhaust(bytes: &[u8]) {
    match open(bytes, Some("name")) {
        Ok(Opened::Agent(mut reader)) => {
            for entry in reader.by_ref() {
                let Ok(entry) = entry else { break };
                if let EntryContent::Turn(said) = &entry.step {
                    everturn_core::json::check(&said.message).unwrap();
                }
            }
            reader.problems();
        }
        Ok(Opened::Other(..)) | Err(_) => {}
    }
}

#[test]
fn hostile_files_end() {
    let nested = |n: usize| format!("{{\"a\":{}1{}}}", "[".repeat(n), "]".repeat(n));
    let line = |content: &str| {
        format!(
            "{{\"type\":\"user\",\"uuid\":\"u\",\"sessionId\":\"s\",\"message\":{{\"role\":\"user\",\"content\":{content}}}}}\n"
        )
    };
    let many_parents: String = (0..3000)
        .map(|n| format!("{{\"type\":\"user\",\"uuid\":\"u{n}\",\"parentUuid\":\"u{}\",\"sessionId\":\"s\",\"message\":{{\"role\":\"user\",\"content\":\"x\"}}}}\n", n / 7))
        .collect();
    let many_agents: String = (0..3000)
        .map(|n| format!("{{\"type\":\"assistant\",\"isSidechain\":true,\"uuid\":\"u{n}\",\"sessionId\":\"s{n}\",\"message\":{{\"id\":\"m\",\"role\":\"assistant\",\"content\":\"x\"}}}}\n"))
        .collect();
    for text in [
        nested(100_000),
        line(&nested(200)),
        line("1e999"),
        line("\"\\u0000\""),
        line("{}"),
        line(&format!("\"{}\"", "x".repeat(2_000_000))),
        format!("[{}", "{\"role\":\"user\"},".repeat(1000)),
        format!("[{}", "[".repeat(100_000)),
        "{\"role\":\"user\",\"content\":\"../../../../etc/passwd\"}\n".into(),
        "\n".repeat(100_000),
        many_parents,
        many_agents,
    ] {
        exhaust(text.as_bytes());
    }
    exhaust(&[0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff, 0xff, 0xff]);
    exhaust(&[0; 4096]);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), start in 0_usize..8) {
        let starts: [&[u8]; 8] = [b"", b"{", b"[", b"{\"type\":\"user\",", b"{\"role\":\"user\"}\n", b"[{\"role\":", b"{\"sessionId\":\"s\",\"messages\":[", &[0x28, 0xb5, 0x2f, 0xfd]];
        exhaust(&[starts[start], &bytes].concat());
    }

    /// Bytes changed, taken out, doubled or moved, in samples and real files.
    #[test]
    fn broken_files_never_panic(
        which in any::<proptest::sample::Index>(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0_usize..40, 0_u8..6, any::<u8>()), 1..12),
    ) {
        let all: Vec<&[u8]> =
            SAMPLES.iter().map(|text| text.as_bytes()).chain(FIXTURES.iter().map(|(_, bytes)| bytes.as_slice())).collect();
        let mut bytes = all[which.index(all.len())].to_vec();
        for (at, length, kind, byte) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            let end = (at + length).min(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..end)),
                2 => bytes.insert(at, b"{}[]\",:\n\\"[usize::from(byte) % 9]),
                3 => {
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
                4 => bytes.truncate(at.max(20)),
                _ => bytes[at..end].reverse(),
            }
        }
        exhaust(&bytes);
    }
}

/// Lines of a session that never was on disk.
struct Endless<F> {
    line: F,
    number: u64,
    left: usize,
    buffer: Vec<u8>,
}

impl<F: Fn(u64) -> String> std::io::Read for Endless<F> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.buffer.is_empty() && self.left > 0 {
            self.buffer = (self.line)(self.number).into_bytes();
            self.buffer.push(b'\n');
            self.left = self.left.saturating_sub(self.buffer.len());
            self.number += 1;
        }
        let bytes = self.buffer.len().min(into.len());
        into[..bytes].copy_from_slice(&self.buffer[..bytes]);
        self.buffer.drain(..bytes);
        Ok(bytes)
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_long_file_is_read_in_little_memory() {
    const FILE: usize = 64 * 1024 * 1024;
    let peak_kib = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let words = "what was said, ".repeat(400);
    let claude = |n: u64| {
        format!(
            r#"{{"type":"assistant","uuid":"u{n}","parentUuid":"u{}","sessionId":"s","cwd":"/w","message":{{"id":"m{}","role":"assistant","content":[{{"type":"text","text":"{words}"}}]}}}}"#,
            n.saturating_sub(1),
            n / 3
        )
    };
    // Answers that are never counted.
    let codex = |n: u64| {
        format!(
            r#"{{"timestamp":"2026-01-01T00:00:00Z","type":"response_item","payload":{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{n} {words}"}}]}}}}"#
        )
    };
    let lines: [(&str, &dyn Fn(u64) -> String); 2] = [("claude-code", &claude), ("codex", &codex)];
    for (name, line) in lines {
        let before = peak_kib();
        let source = std::io::BufReader::new(Endless { line, number: 0, left: FILE, buffer: Vec::new() });
        let everturn_formats::agents::Opened::Agent(reader) =
            everturn_formats::agents::open(source, None).unwrap()
        else {
            panic!("{name} is not known")
        };
        assert_eq!(reader.format().name(), name);
        assert!(reader.map(Result::unwrap).count() > 3000);
        let grown = peak_kib() - before;
        assert!(grown < FILE as u64 / 1024 / 4, "{name}: {grown} KiB more");
    }
}
