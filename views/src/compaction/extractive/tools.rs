//! Tool calls: one line for each tool that succeeded, one for each failure that no later call repaired.

use super::prose::clip;
use super::spoken::{masked, outputs};
use crate::compaction::plan::Candidate;
use everturn_core::{message, pairing};
use serde_json::Value;
use std::collections::HashMap;

/// Prefix of every line about tools that succeeded; the rolling list recognises them by it.
pub(in crate::compaction) const RAN: &str = "Ran ";
/// Maximum length of a call's target, in characters.
const TARGET_CHARS_MAX: usize = 60;
/// Maximum length of a tool's error, in characters.
const ERROR_CHARS_MAX: usize = 160;
/// Maximum number of targets in one line.
const TARGETS_MAX: usize = 6;
/// Maximum number of lines of each kind.
const LINES_MAX: usize = 6;

/// Summary of the tool calls in the covered turns.
#[derive(Default, Debug)]
pub(super) struct Work {
    /// `Ran edit_file: src/a.rs (3×), src/b.rs`
    pub done: Vec<String>,
    /// `cargo_test core failed: error[E0382]: …`
    pub failures: Vec<String>,
}

/// Calls that are grouped because they do the same.
struct CallGroup {
    tool: String,
    target: String,
    times: usize,
    failure: Option<String>,
    place: usize,
}

pub(super) fn work(turns: &[Candidate<'_>]) -> Work {
    let pairs = pairing::pair(turns.iter().map(|turn| turn.message.unwrap_or(&Value::Null)));
    let mut groups: Vec<CallGroup> = Vec::new();
    let mut known: HashMap<(String, String), usize> = HashMap::new();
    for call in &pairs.calls {
        let Some(answer) = call.result.and_then(|index| pairs.results.get(index)) else { continue };
        let target = call.arguments().map(|arguments| target(call.name, arguments)).unwrap_or_default();
        let failure = failure(answer.content(), answer.failed, looks(call.name));
        let key = (call.name.to_string(), target.clone());
        let index = *known.entry(key).or_insert_with(|| {
            groups.push(CallGroup { tool: call.name.to_string(), target, times: 0, failure: None, place: 0 });
            groups.len() - 1
        });
        let group = &mut groups[index];
        group.times += usize::from(failure.is_none());
        group.place = answer.message;
        // A call that succeeded in the end is not a failure.
        group.failure = failure;
    }
    Work { done: done(&groups), failures: failures(groups) }
}

fn done(groups: &[CallGroup]) -> Vec<String> {
    let mut tools: Vec<(&str, Vec<&CallGroup>)> = Vec::new();
    for group in groups.iter().filter(|group| group.times > 0 && group.failure.is_none()) {
        match tools.iter().position(|(tool, _)| *tool == group.tool) {
            Some(index) => tools[index].1.push(group),
            None if tools.len() < 64 => tools.push((&group.tool, vec![group])),
            None => {}
        }
    }
    // Tools that change something say more about the work than those that only read.
    tools.sort_by_key(|(tool, _)| looks(tool));
    tools.truncate(LINES_MAX);
    tools
        .into_iter()
        .map(|(tool, groups)| {
            let named: Vec<&&CallGroup> = groups.iter().filter(|group| !group.target.is_empty()).collect();
            // The latest ones: the earliest are often only exploration.
            let shown = &named[named.len().saturating_sub(TARGETS_MAX)..];
            let mut line = format!("{RAN}{tool}");
            for (index, group) in shown.iter().enumerate() {
                line.push_str(if index == 0 { ": " } else { ", " });
                line.push_str(&group.target);
                if group.times > 1 {
                    line.push_str(&format!(" ({}×)", group.times));
                }
            }
            if shown.len() < named.len() {
                line.push_str(&format!(" and {} more", named.len() - shown.len()));
            }
            if named.is_empty() {
                let times: usize = groups.iter().map(|group| group.times).sum();
                line.push_str(&if times > 1 { format!(" ({times}×)") } else { String::new() });
            }
            line
        })
        .collect()
}

fn failures(mut groups: Vec<CallGroup>) -> Vec<String> {
    groups.retain(|group| group.failure.is_some());
    groups.sort_by_key(|group| group.place);
    let first = groups.len().saturating_sub(LINES_MAX);
    groups[first..]
        .iter()
        .map(|group| {
            let space = if group.target.is_empty() { "" } else { " " };
            let error = group.failure.as_deref().unwrap_or_default();
            format!("{}{space}{} failed: {error}", group.tool, group.target)
        })
        .collect()
}

/// Whether a tool, judging by its name, only reads.
pub(super) fn looks(tool: &str) -> bool {
    const WORDS: [&str; 12] =
        ["read", "list", "ls", "grep", "search", "glob", "find", "get", "cat", "view", "fetch", "show"];
    tool.to_lowercase()
        .split(|c: char| !c.is_alphanumeric())
        .any(|part| WORDS.iter().any(|word| part == *word || (word.len() > 3 && part.starts_with(word))))
}

/// Target of a call: a file, an address, a command, a query.
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
    // For a search, the query says more than the location.
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

/// The line of a result that describes the failure, if it failed.
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
