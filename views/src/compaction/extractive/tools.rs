//! What tools did: one line for each tool that worked, one for each failure that nothing after it made good.

use super::prose::clip;
use super::spoken::{masked, outputs};
use crate::compaction::plan::Candidate;
use everturn_core::{message, pairing};
use serde_json::Value;
use std::collections::HashMap;

/// What every line about tools that worked begins with; the rolling list knows them by it.
pub(in crate::compaction) const RAN: &str = "Ran ";
/// Longest target of a call, in characters.
const TARGET_CHARS_MAX: usize = 60;
/// Longest error of a tool, in characters.
const ERROR_CHARS_MAX: usize = 160;
/// Most targets in one line.
const TARGETS_MAX: usize = 6;
/// Most lines of each kind.
const LINES_MAX: usize = 6;

/// What the tools of the covered turns did.
#[derive(Default, Debug)]
pub(super) struct Work {
    /// `Ran edit_file: src/a.rs (3×), src/b.rs`
    pub done: Vec<String>,
    /// `cargo_test core failed: error[E0382]: …`
    pub failures: Vec<String>,
}

/// The calls that belong together because they do the same.
struct Deed {
    tool: String,
    target: String,
    times: usize,
    failure: Option<String>,
    place: usize,
}

pub(super) fn work(turns: &[Candidate<'_>]) -> Work {
    let pairs = pairing::pair(turns.iter().map(|turn| turn.message.unwrap_or(&Value::Null)));
    let mut deeds: Vec<Deed> = Vec::new();
    let mut known: HashMap<(String, String), usize> = HashMap::new();
    for call in &pairs.calls {
        let Some(answer) = call.result.and_then(|index| pairs.results.get(index)) else { continue };
        let target = call.arguments().map(|arguments| target(call.name, arguments)).unwrap_or_default();
        let failure = failure(answer.content(), answer.failed, looks(call.name));
        let key = (call.name.to_string(), target.clone());
        let index = *known.entry(key).or_insert_with(|| {
            deeds.push(Deed { tool: call.name.to_string(), target, times: 0, failure: None, place: 0 });
            deeds.len() - 1
        });
        let deed = &mut deeds[index];
        deed.times += usize::from(failure.is_none());
        deed.place = answer.message;
        // What worked in the end is no failure any more.
        deed.failure = failure;
    }
    Work { done: done(&deeds), failures: failures(deeds) }
}

fn done(deeds: &[Deed]) -> Vec<String> {
    let mut tools: Vec<(&str, Vec<&Deed>)> = Vec::new();
    for deed in deeds.iter().filter(|deed| deed.times > 0 && deed.failure.is_none()) {
        match tools.iter().position(|(tool, _)| *tool == deed.tool) {
            Some(index) => tools[index].1.push(deed),
            None if tools.len() < 64 => tools.push((&deed.tool, vec![deed])),
            None => {}
        }
    }
    // Tools that change something say more about the work than those that look.
    tools.sort_by_key(|(tool, _)| looks(tool));
    tools.truncate(LINES_MAX);
    tools
        .into_iter()
        .map(|(tool, deeds)| {
            let named: Vec<&&Deed> = deeds.iter().filter(|deed| !deed.target.is_empty()).collect();
            // The latest ones: the earliest are often only the way there.
            let shown = &named[named.len().saturating_sub(TARGETS_MAX)..];
            let mut line = format!("{RAN}{tool}");
            for (index, deed) in shown.iter().enumerate() {
                line.push_str(if index == 0 { ": " } else { ", " });
                line.push_str(&deed.target);
                if deed.times > 1 {
                    line.push_str(&format!(" ({}×)", deed.times));
                }
            }
            if shown.len() < named.len() {
                line.push_str(&format!(" and {} more", named.len() - shown.len()));
            }
            if named.is_empty() {
                let times: usize = deeds.iter().map(|deed| deed.times).sum();
                line.push_str(&if times > 1 { format!(" ({times}×)") } else { String::new() });
            }
            line
        })
        .collect()
}

fn failures(mut deeds: Vec<Deed>) -> Vec<String> {
    deeds.retain(|deed| deed.failure.is_some());
    deeds.sort_by_key(|deed| deed.place);
    let first = deeds.len().saturating_sub(LINES_MAX);
    deeds[first..]
        .iter()
        .map(|deed| {
            let space = if deed.target.is_empty() { "" } else { " " };
            let error = deed.failure.as_deref().unwrap_or_default();
            format!("{}{space}{} failed: {error}", deed.tool, deed.target)
        })
        .collect()
}

/// Whether a tool by its name only looks and changes nothing.
pub(super) fn looks(tool: &str) -> bool {
    const WORDS: [&str; 12] =
        ["read", "list", "ls", "grep", "search", "glob", "find", "get", "cat", "view", "fetch", "show"];
    tool.to_lowercase()
        .split(|c: char| !c.is_alphanumeric())
        .any(|part| WORDS.iter().any(|word| part == *word || (word.len() > 3 && part.starts_with(word))))
}

/// What a call is about: a file, an address, a command, a query.
fn target(tool: &str, arguments: &Value) -> String {
    const SOUGHT: [&str; 3] = ["pattern", "query", "q"];
    const KEYS: [&str; 14] = [
        "file_path",
        "path",
        "file",
        "filename",
        "notebook_path",
        "url",
        "command",
        "cmd",
        "query",
        "pattern",
        "target",
        "name",
        "id",
        "q",
    ];
    let arguments = message::arguments(arguments);
    // Of a search, what is sought says more than where.
    let sought = if looks(tool) { &SOUGHT[..] } else { &[] };
    let text = sought.iter().chain(&KEYS).find_map(|key| match arguments.get(key)? {
        Value::String(text) => Some(text.clone()),
        // Some shells take the command as a list of words.
        Value::Array(words) => Some(words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        _ => None,
    });
    let text = text.unwrap_or_default();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    clip(&masked(line), TARGET_CHARS_MAX)
}

/// The line of a result that says what went wrong, if something did.
fn failure(content: Option<&Value>, failed: bool, looks: bool) -> Option<String> {
    let mut texts = Vec::new();
    if let Some(content) = content {
        outputs(content, &mut |text| texts.push(text.to_string()));
    }
    let lines = || texts.iter().flat_map(|text| text.lines()).map(str::trim).filter(|line| !line.is_empty());
    let begins = |line: &str| {
        let line = line.as_bytes();
        [
            "error",
            "fatal:",
            "panicked at",
            "thread '",
            "traceback",
            "exception",
            "failed",
            "test result: failed",
        ]
        .iter()
        .any(|word| line.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes())))
    };
    let found = if failed {
        lines().find(|line| begins(line)).or_else(|| lines().next())
    } else if looks {
        // A search that finds the word "error" did not fail.
        None
    } else {
        lines().take(400).find(|line| begins(line))
    };
    match found {
        Some(line) => Some(clip(&masked(line), ERROR_CHARS_MAX)),
        None => failed.then(|| "without a message".to_string()),
    }
}
