//! Session files like those of agents: one large one of each kind, and a folder of two years of work.
//!
//! The same in every run. Words are distributed as in `recall`: a few very frequent, most of them rare. Each
//! session of the folder holds one decision, about one part of one thing, that occurs nowhere else, so that a
//! question has one answer.

use crate::corpus::split_mix;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes a session of Claude Code of about this many bytes; returns its number of lines.
pub fn claude(path: &Path, size: u64) -> io::Result<u64> {
    let mut out = Out::new(path)?;
    let mut session = Claude::new("bench", 0);
    let mut words = Words(1);
    while out.bytes < size {
        session.work(&mut out, &mut words, 12)?;
    }
    out.finish()
}

/// Writes a session of Codex of about this many bytes; returns its number of lines.
pub fn codex(path: &Path, size: u64) -> io::Result<u64> {
    let mut out = Out::new(path)?;
    let mut words = Words(2);
    let at = |n: u64| time(n);
    let line = |n: u64, kind: &str, payload: String| {
        format!(r#"{{"timestamp":"{}","type":"{kind}","payload":{payload}}}"#, at(n))
    };
    let meta = r#"{"id":"bench-codex","cwd":"/home/ana/work/project","cli_version":"0.146.0","git":{"branch":"main"}}"#;
    out.line(&line(0, "session_meta", meta.into()))?;
    out.line(&line(0, "turn_context", r#"{"model":"gpt-5","cwd":"/home/ana/work/project"}"#.into()))?;
    let mut n = 1;
    while out.bytes < size {
        let asked = words.text(200);
        let answer = words.text(500);
        let said = |role: &str, kind: &str, text: &str| {
            format!(r#"{{"type":"message","role":"{role}","content":[{{"type":"{kind}","text":"{text}"}}]}}"#)
        };
        out.line(&line(n, "event_msg", format!(r#"{{"type":"user_message","message":"{asked}"}}"#)))?;
        out.line(&line(n, "response_item", said("user", "input_text", &asked)))?;
        for call in 0..6 {
            let sealed = words.hex(900);
            out.line(&line(
                n,
                "response_item",
                format!(r#"{{"type":"reasoning","summary":[],"encrypted_content":"{sealed}"}}"#),
            ))?;
            let command = words.text(80);
            out.line(&line(n, "response_item", format!(
                r#"{{"type":"function_call","name":"shell","arguments":"{{\"command\":[\"bash\",\"-lc\",\"{command}\"]}}","call_id":"call_{n}_{call}"}}"#
            )))?;
            let length = words.size(300, 12_000);
            let output = words.lines(length);
            out.line(&line(
                n,
                "response_item",
                format!(
                    r#"{{"type":"function_call_output","call_id":"call_{n}_{call}","output":"{output}"}}"#
                ),
            ))?;
        }
        out.line(&line(n, "response_item", said("assistant", "output_text", &answer)))?;
        out.line(&line(n, "event_msg", format!(r#"{{"type":"agent_message","message":"{answer}"}}"#)))?;
        let tokens = format!(
            r#"{{"type":"token_count","info":{{"last_token_usage":{{"input_tokens":{},"output_tokens":{}}}}}}}"#,
            9000 + n,
            n % 700
        );
        out.line(&line(n, "event_msg", tokens))?;
        n += 1;
    }
    out.finish()
}

/// A question with its answer in one session of the folder only.
pub struct Question {
    pub text: String,
    /// A word that only the answer has.
    pub answer: String,
}

/// A folder of sessions of Claude Code in several projects, with about this many bytes in all.
pub fn folder(path: &Path, files: u64, size: u64) -> io::Result<Vec<Question>> {
    const PROJECTS: [&str; 6] = ["shop", "ledger", "atlas", "courier", "garden", "signal"];
    let mut words = Words(3);
    let mut questions = Vec::new();
    for n in 0..files {
        let project = PROJECTS[(n % PROJECTS.len() as u64) as usize];
        let folder = path.join(format!("-home-ana-work-{project}"));
        std::fs::create_dir_all(&folder)?;
        let id = format!("{n:08x}-2222-4333-8444-555566667777");
        let mut out = Out::new(&folder.join(format!("{id}.jsonl")))?;
        // Sessions are short and long: a fifth of the mean to two and a half times as much.
        let share = size / files * words.size(20, 260) / 100;
        // Two years, a session every two and a half days.
        let mut session = Claude::new(&id, n * 60 * 60 * 24 * 730 / files.max(1));
        let mut decided = false;
        while out.bytes < share || !decided {
            if !decided && out.bytes >= share / 2 {
                let question = session.decision(&mut out, n)?;
                questions.push(question);
                decided = true;
            }
            let calls = words.size(2, 16);
            session.work(&mut out, &mut words, calls)?;
        }
        out.finish()?;
    }
    Ok(questions)
}

/// A session of Claude Code being written.
struct Claude {
    id: String,
    parent: Option<String>,
    lines: u64,
    /// Seconds since the beginning of 2024.
    clock: u64,
}

impl Claude {
    fn new(id: &str, clock: u64) -> Claude {
        Claude { id: id.to_string(), parent: None, lines: 0, clock }
    }

    fn line(&mut self, out: &mut Out, rest: &str) -> io::Result<()> {
        let uuid = format!("{:08x}-{}", self.lines, &self.id[self.id.len().saturating_sub(27)..]);
        let uuid = format!("{uuid}-{}", &self.id[..self.id.len().min(8)]);
        let parent = self.parent.as_ref().map_or("null".to_string(), |parent| format!("\"{parent}\""));
        let (id, at) = (&self.id, time(self.clock));
        out.line(&format!(
            r#"{{"parentUuid":{parent},"isSidechain":false,"userType":"external","cwd":"/home/ana/work/project","sessionId":"{id}","version":"2.1.80","gitBranch":"main",{rest},"uuid":"{uuid}","timestamp":"{at}"}}"#
        ))?;
        self.parent = Some(uuid);
        self.lines += 1;
        self.clock += 7;
        Ok(())
    }

    fn asked(&mut self, out: &mut Out, text: &str) -> io::Result<()> {
        self.line(out, &format!(r#""type":"user","message":{{"role":"user","content":"{text}"}}"#))
    }

    fn block(&mut self, out: &mut Out, message: u64, block: &str) -> io::Result<()> {
        let (id, n) = (&self.id[..self.id.len().min(8)], self.lines);
        let rest = format!(
            r#""type":"assistant","requestId":"req_{id}_{message}","message":{{"id":"msg_{id}_{message}","type":"message","role":"assistant","model":"claude-opus","content":[{block}],"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":3,"cache_creation_input_tokens":{},"cache_read_input_tokens":12000,"output_tokens":{}}}}}"#,
            n * 3 % 4000,
            n % 900
        );
        self.line(out, &rest)
    }

    /// A request and its replies and tool calls.
    fn work(&mut self, out: &mut Out, words: &mut Words, calls: u64) -> io::Result<()> {
        let length = words.size(40, 400);
        self.asked(out, &words.text(length))?;
        for _ in 0..calls {
            let message = self.lines;
            if words.number().is_multiple_of(3) {
                let thought = words.text(300);
                self.block(
                    out,
                    message,
                    &format!(
                        r#"{{"type":"thinking","thinking":"{thought}","signature":"{}"}}"#,
                        words.hex(400)
                    ),
                )?;
            }
            let call = format!("toolu_{}_{}", &self.id[..self.id.len().min(8)], self.lines);
            let file = format!("/home/ana/work/project/src/{}.rs", words.word());
            let kind = words.number() % 4;
            let (name, input) = match kind {
                0 => ("Read", format!(r#""file_path":"{file}""#)),
                1 => {
                    let (old, new) = (words.lines(200), words.lines(400));
                    ("Edit", format!(r#""file_path":"{file}","old_string":"{old}","new_string":"{new}""#))
                }
                2 => ("Grep", format!(r#""pattern":"{}","path":"/home/ana/work/project""#, words.word())),
                _ => {
                    ("Bash", format!(r#""command":"{}","description":"{}""#, words.text(60), words.text(30)))
                }
            };
            self.block(
                out,
                message,
                &format!(r#"{{"type":"tool_use","id":"{call}","name":"{name}","input":{{{input}}}}}"#),
            )?;
            let length = words.size(100, if kind == 1 { 600 } else { 4_600 });
            let result = words.lines(length);
            self.line(out, &format!(
                r#""type":"user","message":{{"role":"user","content":[{{"tool_use_id":"{call}","type":"tool_result","content":"{result}"}}]}},"toolUseResult":{{"stdout":"{result}","stderr":"","interrupted":false,"isImage":false}}"#
            ))?;
        }
        let (message, length) = (self.lines, words.size(100, 900));
        let text = words.text(length);
        self.block(out, message, &format!(r#"{{"type":"text","text":"{text}"}}"#))?;
        let rest =
            format!(r#""type":"system","subtype":"turn_duration","durationMs":{}"#, self.clock % 90_000);
        self.line(out, &rest)
    }

    /// The decision that is searched for later.
    fn decision(&mut self, out: &mut Out, n: u64) -> io::Result<Question> {
        const PARTS: [&str; 20] = [
            "retry policy",
            "cache",
            "login page",
            "search index",
            "invoice export",
            "rate limiter",
            "audit log",
            "migration",
            "backup job",
            "payment webhook",
            "color theme",
            "feature flags",
            "session cookie",
            "image upload",
            "error messages",
            "date format",
            "admin menu",
            "test database",
            "release script",
            "mail queue",
        ];
        const OF: [&str; 15] = [
            "warehouse",
            "booking",
            "newsletter",
            "payroll",
            "telemetry",
            "checkout",
            "catalogue",
            "messenger",
            "calendar",
            "dashboard",
            "gateway",
            "inventory",
            "support desk",
            "map viewer",
            "recruiting",
        ];
        const CHOSEN: [&str; 8] =
            ["Basalt", "Juniper", "Marlin", "Quartz", "Saffron", "Tundra", "Vesper", "Willow"];
        let part = PARTS[(n % 20) as usize];
        let of = OF[(n / 20 % 15) as usize];
        let answer = format!("{}{n}", CHOSEN[(n % 8) as usize]);
        self.asked(out, &format!("What do we do about the {part} of the {of} service?"))?;
        let message = self.lines;
        let text = format!(
            "We decided: the {part} of the {of} service moves to {answer}. It is simpler to run, and the old way broke twice last month."
        );
        self.block(out, message, &format!(r#"{{"type":"text","text":"{text}"}}"#))?;
        Ok(Question { text: format!("what did we decide about the {part} of the {of}"), answer })
    }
}

/// Formats seconds since the beginning of 2024.
fn time(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 2024;
    let length = |year: u64| if year.is_multiple_of(4) { 366 } else { 365 };
    while days >= length(year) {
        days -= length(year);
        year += 1;
    }
    let mut month = 1;
    for long in [31, length(year) - 337, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < long {
            break;
        }
        days -= long;
        month += 1;
    }
    let (day, hour) = (days + 1, rest / 3600);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{:02}:{:02}.000Z", rest / 60 % 60, rest % 60)
}

struct Out {
    file: BufWriter<File>,
    bytes: u64,
    lines: u64,
}

impl Out {
    fn new(path: &Path) -> io::Result<Out> {
        Ok(Out { file: BufWriter::with_capacity(1 << 20, File::create(path)?), bytes: 0, lines: 0 })
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.file.write_all(b"\n")?;
        self.bytes += text.len() as u64 + 1;
        self.lines += 1;
        Ok(())
    }

    fn finish(mut self) -> io::Result<u64> {
        self.file.flush()?;
        Ok(self.lines)
    }
}

/// Words that need no escaping in JSON.
struct Words(u64);

impl Words {
    fn number(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number between two, small ones more often.
    fn size(&mut self, least: u64, most: u64) -> u64 {
        let share = (self.number() % 1000) as f64 / 1000.0;
        least + ((most - least) as f64 * share * share) as u64
    }

    /// Of 30,000 words the n-th is drawn about as often as 1/n.
    fn word(&mut self) -> String {
        const SYLLABLES: [&str; 32] = [
            "ka", "to", "mi", "re", "su", "no", "ha", "li", "de", "po", "ver", "an", "ter", "in", "con",
            "al", "ment", "ra", "sta", "ble", "pro", "ex", "ti", "on", "er", "com", "per", "un", "dis",
            "ing", "est", "ly",
        ];
        let share = (self.number() % 1_000_000) as f64 / 1e6;
        let (mut left, mut word) = (30_000_f64.powf(share) as u64, String::new());
        while left > 0 {
            word.push_str(SYLLABLES[(left % 32) as usize]);
            left /= 32;
        }
        word
    }

    /// Prose of about this many bytes.
    fn text(&mut self, bytes: u64) -> String {
        let mut out = String::with_capacity(bytes as usize + 16);
        while (out.len() as u64) < bytes {
            let word = self.word();
            let end = match self.number() % 12 {
                0 => ". ",
                1 => ", ",
                _ => " ",
            };
            let _ = write!(out, "{word}{end}");
        }
        out
    }

    /// Tool output: lines with numbers, paths and punctuation.
    fn lines(&mut self, bytes: u64) -> String {
        let mut out = String::with_capacity(bytes as usize + 64);
        let mut n = 0;
        while (out.len() as u64) < bytes {
            n += 1;
            let (a, b, c) = (self.word(), self.word(), self.word());
            let _ = write!(
                out,
                "{n:5}\\tlet {a}_{b} = self.{c}({}); // {}\\n",
                self.number() % 1000,
                self.word()
            );
        }
        out
    }

    fn hex(&mut self, digits: usize) -> String {
        let mut out = String::with_capacity(digits + 16);
        while out.len() < digits {
            let _ = write!(out, "{:016x}", self.number());
        }
        out
    }
}
