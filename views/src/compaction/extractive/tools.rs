//! Tool calls: one line for each tool that edited something, the messages of commits, one line for each failure that nobody
//! explained or repaired.

use super::files::Files;
use super::prose::clip;
use super::spoken::{is_private, masked, outputs};
use crate::compaction::plan::Candidate;
use everturn_core::{message, pairing};
use serde_json::Value;
use std::borrow::Cow;
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

/// A tool call.
#[derive(Debug)]
pub(super) struct ToolCall<'a> {
    pub name: &'a str,
    pub arguments: Cow<'a, Value>,
    /// Index of its turn among the covered ones.
    pub turn: usize,
    answered: bool,
    /// The line of its result that describes the failure.
    pub failure: Option<String>,
}

/// Calls of the turns, in order; private ones are left out.
pub(super) fn calls<'a>(turns: &[Candidate<'a>]) -> Vec<ToolCall<'a>> {
    let messages = turns.iter().map(|turn| turn.message.filter(|message| !is_private(message)));
    let pairs = pairing::pair(messages.map(|message| message.unwrap_or(&Value::Null)));
    let shown = pairs.calls.iter().filter(|call| !is_private(call.whole()));
    shown
        .map(|call| {
            let answer = call.result.and_then(|index| pairs.results.get(index));
            let mut read = ToolCall {
                name: call.name,
                arguments: call.arguments().map_or(Cow::Owned(Value::Null), message::arguments),
                turn: call.message,
                answered: answer.is_some(),
                failure: None,
            };
            // A search that finds the word "error" did not fail, nor did an edit that shows it.
            let lines = match () {
                () if looks(call.name) => 0,
                () if read.edits() => 1,
                () => 400,
            };
            read.failure = answer.and_then(|answer| failure(answer.content(), answer.failed, lines));
            read
        })
        .collect()
}

impl ToolCall<'_> {
    /// Whether the call changes a file, judging by the tool's name.
    pub fn edits(&self) -> bool {
        const WORDS: [&str; 6] = ["edit", "write", "patch", "replace", "create", "insert"];
        let name = self.name.to_ascii_lowercase();
        // One tool of Anthropic's views and edits.
        let views = self.arguments.get("command").and_then(Value::as_str) == Some("view");
        !views && WORDS.iter().any(|word| name.contains(word))
    }

    /// Whether the call searches or lists: its path is mostly a folder.
    pub fn seeks(&self) -> bool {
        const WORDS: [&str; 6] = ["list", "ls", "grep", "search", "glob", "find"];
        has_word(self.name, &WORDS)
    }

    /// The command of a shell.
    pub fn command(&self) -> Option<String> {
        match ["command", "cmd"].iter().find_map(|key| self.arguments.get(key))? {
            Value::String(text) => Some(text.clone()),
            // `["bash", "-lc", "…"]`, or a command as a list of words.
            Value::Array(words) => {
                let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                Some(match words[..] {
                    [_, flag, script] if flag.starts_with('-') && flag.ends_with('c') => script.to_string(),
                    _ => words.join(" "),
                })
            }
            _ => None,
        }
    }

    /// Old and new paths of files that the call moves.
    pub fn moves(&self) -> Vec<(String, String)> {
        let Some(command) = self.command().filter(|_| self.failure.is_none()) else { return Vec::new() };
        let part = |part: &str| {
            let words: Vec<&str> = part.split_whitespace().filter(|word| !word.starts_with('-')).collect();
            match words[..] {
                ["mv", from, to] | ["git", "mv", from, to] => Some((from.to_string(), to.to_string())),
                _ => None,
            }
        };
        command.split(['&', ';', '\n']).filter_map(part).collect()
    }

    pub fn succeeded(&self) -> bool {
        self.answered && self.failure.is_none()
    }
}

/// Summary of the tool calls in the covered turns.
#[derive(Default, Debug)]
pub(super) struct Work {
    /// `Ran edit_file: src/a.rs (3×), src/b.rs`
    pub edits: Vec<String>,
    /// Messages of commits.
    pub commits: Vec<String>,
    /// The same for other tools that do more than read.
    pub others: Vec<String>,
    /// `cargo_test core failed: error[E0382]: …`
    pub failures: Vec<String>,
}

/// Calls that are grouped because they do the same.
struct CallGroup<'a> {
    tool: &'a str,
    target: String,
    edits: bool,
    times: usize,
}

/// `explained_through` is the last turn in which the model reports something: it has told what a failure before it means.
pub(super) fn work(calls: &[ToolCall<'_>], files: &Files, explained_through: Option<usize>) -> Work {
    let mut groups: Vec<CallGroup<'_>> = Vec::new();
    let mut known: HashMap<(&str, String), usize> = HashMap::new();
    let mut failures: HashMap<(&str, String), (usize, &str)> = HashMap::new();
    let mut commits = Vec::new();
    for (index, call) in calls.iter().enumerate().filter(|(_, call)| call.answered) {
        let mut targets = files.edited_by(call);
        if targets.is_empty() {
            targets.push(target(call));
        }
        for target in targets {
            let key = (call.name, target.clone());
            match &call.failure {
                Some(error) => {
                    failures.insert(key, (index, error));
                    continue;
                }
                // A call that succeeded in the end is not a failure.
                None => failures.remove(&key),
            };
            let place = *known.entry(key).or_insert_with(|| {
                groups.push(CallGroup { tool: call.name, target, edits: call.edits(), times: 0 });
                groups.len() - 1
            });
            groups[place].times += 1;
        }
        if call.succeeded() {
            commits.extend(call.command().as_deref().and_then(commit_message));
        }
    }
    let first = commits.len().saturating_sub(LINES_MAX);
    Work {
        edits: lines(groups.iter().filter(|group| group.edits && !group.target.is_empty())),
        others: lines(groups.iter().filter(|group| !group.edits && !looks(group.tool))),
        commits: commits.split_off(first),
        failures: failed(calls, failures, explained_through),
    }
}

fn lines<'a>(groups: impl Iterator<Item = &'a CallGroup<'a>>) -> Vec<String> {
    let mut tools: Vec<(&str, Vec<&CallGroup<'_>>)> = Vec::new();
    for group in groups {
        match tools.iter().position(|(tool, _)| *tool == group.tool) {
            Some(index) => tools[index].1.push(group),
            None if tools.len() < 64 => tools.push((group.tool, vec![group])),
            None => {}
        }
    }
    tools.truncate(LINES_MAX);
    tools
        .into_iter()
        .map(|(tool, groups)| {
            let named: Vec<&&CallGroup<'_>> =
                groups.iter().filter(|group| !group.target.is_empty()).collect();
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

fn failed(
    calls: &[ToolCall<'_>],
    failures: HashMap<(&str, String), (usize, &str)>,
    explained_through: Option<usize>,
) -> Vec<String> {
    let mut failures: Vec<_> = failures.into_iter().collect();
    failures.sort_by(|a, b| (a.1.0, &a.0).cmp(&(b.1.0, &b.0)));
    failures.retain(|(_, (index, _))| {
        explained_through.is_none_or(|turn| turn < calls[*index].turn) && !is_repaired(calls, *index)
    });
    let first = failures.len().saturating_sub(LINES_MAX);
    failures[first..]
        .iter()
        .map(|((tool, target), (_, error))| {
            let space = if target.is_empty() { "" } else { " " };
            format!("{tool}{space}{target} failed: {error}")
        })
        .collect()
}

/// Whether something was edited after a failure, and the same program then succeeded.
fn is_repaired(calls: &[ToolCall<'_>], failure: usize) -> bool {
    let program = program(&calls[failure]);
    let later = &calls[failure + 1..];
    let Some(edit) = later.iter().position(|call| call.edits() && call.succeeded()) else { return false };
    later[edit..]
        .iter()
        .any(|call| call.name == calls[failure].name && call.succeeded() && self::program(call) == program)
}

/// The program that a command runs, without changes of the folder before it.
fn program(call: &ToolCall<'_>) -> Option<String> {
    let command = call.command()?;
    let mut parts = command.split("&&").map(str::trim);
    let part = parts.find(|part| !part.starts_with("cd "))?;
    let program = part.split_whitespace().find(|word| !word.contains('='))?;
    Some(program.to_string())
}

/// The first line of the message of a commit that a command makes.
fn commit_message(command: &str) -> Option<String> {
    let (_, behind) = command.split_once("git commit")?;
    let (_, message) = behind.split_once("-m ").or_else(|| behind.split_once("--message="))?;
    let message = message.trim_start();
    let line = match message.strip_prefix("\"$(cat <<") {
        Some(document) => document.lines().nth(1)?,
        None => {
            let quote = message.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            message[1..].split(quote).next()?.lines().next()?
        }
    };
    let line = line.trim();
    (!line.is_empty()).then(|| format!("Committed: {}", clip(&masked(line), ERROR_CHARS_MAX)))
}

fn has_word(tool: &str, words: &[&str]) -> bool {
    tool.to_lowercase()
        .split(|c: char| !c.is_alphanumeric())
        .any(|part| words.iter().any(|word| part == *word || (word.len() > 3 && part.starts_with(word))))
}

/// Whether a tool, judging by its name, only reads or keeps the agent's own notes.
fn looks(tool: &str) -> bool {
    const WORDS: [&str; 16] = [
        "read",
        "list",
        "ls",
        "grep",
        "search",
        "glob",
        "find",
        "get",
        "cat",
        "view",
        "fetch",
        "show",
        "todo",
        "todowrite",
        "plan",
        "think",
    ];
    has_word(tool, &WORDS) || tool.to_lowercase().contains("search")
}

/// Target of a call: a file, an address, a command, a query.
fn target(call: &ToolCall<'_>) -> String {
    const SOUGHT: [&str; 3] = ["pattern", "query", "q"];
    const KEYS: [&str; 12] = [
        "file_path",
        "path",
        "file",
        "filename",
        "notebook_path",
        "url",
        "query",
        "pattern",
        "target",
        "name",
        "id",
        "q",
    ];
    // For a search, the query says more than the location.
    let sought = if looks(call.name) { &SOUGHT[..] } else { &[] };
    let texts = sought.iter().chain(&KEYS).filter_map(|key| call.arguments.get(key)?.as_str());
    let text = texts.map(str::to_string).chain(call.command()).next().unwrap_or_default();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    clip(&masked(line), TARGET_CHARS_MAX)
}
/// The line of a result that describes the failure, if it failed: among the first few, unless the result is marked.
fn failure(content: Option<&Value>, failed: bool, lines_max: usize) -> Option<String> {
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
    } else {
        lines().take(lines_max).find(|line| begins(line))
    };
    match found {
        Some(line) => Some(clip(&masked(line), ERROR_CHARS_MAX)),
        None => failed.then(|| "without a message".to_string()),
    }
}
