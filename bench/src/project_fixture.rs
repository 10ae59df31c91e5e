//! Transcripts to project: an agent that works through a repository, the same in every run and in both binaries.
//!
//! The reference implementation's binary (`bench/reference`) includes this file too, so it needs nothing but
//! `serde_json`. The shape is OpenAI chat, with `is_error` on results that failed: the reference looks there.

use serde_json::{Value, json};

/// Sizes in tokens of four characters of JSON.
pub const SIZES: [usize; 3] = [10_000, 50_000, 100_000];

/// The compared policies, with their options. `custom` is not among them: its projector is code, and on both
/// sides it returns all messages but the first.
pub fn policies() -> [(&'static str, Value); 5] {
    [
        ("raw", json!({"policy": "raw"})),
        ("clean_tool_repair", json!({"policy": "clean_tool_repair"})),
        ("squash_failed_calls", json!({"policy": "squash_failed_calls"})),
        ("summary_prefix", json!({"policy": "summary_prefix", "keep_last": 20})),
        ("reachability_gc", json!({"policy": "reachability_gc"})),
    ]
}

/// Number of rounds of a task: names in one task do not occur in the next, or nothing could be reclaimed.
const TASK_ROUNDS: usize = 12;

/// Interval at which a call fails and is retried.
const FAILING: usize = 7;

const TOOLS: [&str; 8] =
    ["read_file", "search_code", "list_dir", "run_tests", "edit_file", "git_show", "run_lint", "fetch_page"];
const AREAS: [&str; 10] =
    ["billing", "ledger", "router", "session", "upload", "mailer", "search", "tenant", "quota", "export"];
const VERBS: [&str; 8] = ["load", "merge", "parse", "check", "write", "split", "rank", "flush"];
const NOUNS: [&str; 8] = ["page", "entry", "batch", "token", "header", "cursor", "record", "window"];

/// Messages with at least this many tokens in total.
pub fn messages(tokens: usize) -> Vec<Value> {
    let mut fixture = Fixture { numbers: 1, messages: Vec::new(), chars: 0 };
    let mut round = 0;
    while fixture.chars / 4 < tokens {
        fixture.round(round);
        round += 1;
    }
    fixture.messages
}

struct Fixture {
    numbers: u64,
    messages: Vec<Value>,
    chars: usize,
}

impl Fixture {
    fn round(&mut self, round: usize) {
        let task = round / TASK_ROUNDS;
        if round.is_multiple_of(TASK_ROUNDS) {
            let symbol = self.symbol(task);
            self.push(json!({
                "role": "user",
                "content": format!("please find out why {symbol} is slow for large inputs, and make it linear."),
            }));
        }
        let tool = self.pick(&TOOLS);
        if round % FAILING == FAILING - 1 {
            // A model often explains what it does, and often calls a tool without text.
            let words = round.is_multiple_of(2).then(|| self.words(task));
            let error = format!("Error: no such file: {}; did the path change?", self.path(task));
            self.call(task, tool, words, &format!("call_{round:05}_a"), &error, true);
        }
        let words = Some(self.words(task));
        let body = self.body(task);
        self.call(task, tool, words, &format!("call_{round:05}_b"), &body, false);
    }

    fn call(&mut self, task: usize, tool: &str, words: Option<String>, id: &str, body: &str, failed: bool) {
        // Written by hand: the order of a map's keys depends on a feature of serde_json that the two binaries
        // do not share.
        let (path, query, limit) = (self.path(task), self.symbol(task), self.below(200));
        let arguments = format!(r#"{{"path":"{path}","query":"{query}","limit":{limit}}}"#);
        self.push(json!({
            "role": "assistant",
            "content": words,
            "tool_calls": [{
                "id": id,
                "type": "function",
                "function": {"name": tool, "arguments": arguments},
            }],
        }));
        let mut result = json!({"role": "tool", "tool_call_id": id, "content": body});
        if failed {
            result["is_error"] = json!(true);
        }
        self.push(result);
    }

    fn push(&mut self, message: Value) {
        self.chars += message.to_string().chars().count();
        self.messages.push(message);
    }

    /// No capitals, since a capitalised word counts as a symbol and would keep every result that has it too;
    /// and a non-ASCII letter, which few conversations do without.
    fn words(&mut self, task: usize) -> String {
        let (symbol, path) = (self.symbol(task), self.path(task));
        format!("i think {symbol} walks the whole list again for every item – i will look at {path} next.")
    }

    /// Output of a tool, 400 to 800 characters: paths, code, and an object's id now and then.
    fn body(&mut self, task: usize) -> String {
        let length = 400 + self.below(400);
        let mut body = String::new();
        while body.len() < length {
            let (path, symbol, other) = (self.path(task), self.symbol(task), self.symbol(task));
            let (line, column) = (1 + self.below(900), 1 + self.below(80));
            body.push_str(&match self.below(4) {
                0 => format!("{path}:{line}:{column}: let {symbol} = {other}(&items[{column}..])?;\n"),
                1 => format!("    for item in {symbol}.iter() {{ total += {other}(item, \"{line}\"); }}\n"),
                2 => format!("commit {:016x}{:024x}\n", self.next(), self.next()),
                _ => format!("{line:>5} | if {symbol} > {column} {{ return {other}; }}\t// see {path}\n"),
            });
        }
        body.truncate(length);
        body
    }

    fn path(&mut self, task: usize) -> String {
        format!("src/{}_{task}/{}_{}.rs", AREAS[task % AREAS.len()], self.pick(&VERBS), self.pick(&NOUNS))
    }

    fn symbol(&mut self, task: usize) -> String {
        let (verb, noun) = (self.pick(&VERBS), self.pick(&NOUNS));
        format!("{}_{task}::{verb}_{noun}_{task}", AREAS[task % AREAS.len()])
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    /// Knuth's linear congruential generator: no other seed, and no library to agree on.
    fn next(&mut self) -> u64 {
        self.numbers =
            self.numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.numbers
    }
}
