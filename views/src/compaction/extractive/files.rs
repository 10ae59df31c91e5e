//! The files of the covered turns: edited ones first, each in one spelling.
//!
//! A file is relevant if a tool was given its path, or if a person or the model names its path. A name without a folder is
//! resolved; where it cannot be, it counts only if a tool has seen it or the model reports work on it, since `Node.js` and
//! `cmd.Env` look like files as well.
//! A file that only tool output mentions does not count.

use super::pending::completes;
use super::spoken::{Material, Source, masked, strings};
use super::tools::ToolCall;
use crate::compaction::limits::IDENTIFIER_BYTES_MAX;
use crate::identifier::{self, IdentifierKind, has_file_ending};
use aho_corasick::AhoCorasick;
use everturn_core::turn::Role;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Maximum number of files that one round adds without an edit: the most mentioned ones.
const OTHERS_MAX: usize = 24;
/// Maximum number of edited files that one round adds.
const EDITED_MAX: usize = 120;
/// Maximum number of names without a folder that are looked up.
const LOOKUPS_MAX: usize = 64;

/// Use of a file by a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Touch {
    Seen,
    Read,
    Edited,
    /// Removed, or changed back to its committed state.
    Undone,
}

/// A relevant file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct File {
    pub path: String,
    pub edited: bool,
    pub score: u32,
}

/// The files of the covered turns.
#[derive(Default, Debug)]
pub(super) struct Files {
    /// Edited ones first, each group in the order of its first mention.
    pub relevant: Vec<File>,
    /// The folder that all relative paths are relative to, if absolute ones occur too.
    pub root: Option<String>,
    /// Files of the previous checkpoint, in the same spelling.
    pub previous: Vec<String>,
    /// Files that were removed or changed back.
    undone: HashSet<String>,
    /// Turn of the last edit of each file.
    edited_at: HashMap<String, usize>,
    /// Paths of names without their folder.
    resolved: HashMap<String, String>,
    /// Paths that commands were given.
    seen: HashSet<String>,
    /// Old and new paths of moved files and folders.
    moved: Vec<(String, String)>,
}

#[derive(Default)]
struct Mentions {
    first: usize,
    score: u32,
    edited: bool,
}

impl Files {
    pub fn of(material: &Material<'_>, previous: &[String]) -> Files {
        let mut touched: Vec<(Touch, String, usize)> = Vec::new();
        let mut moved: Vec<(String, String)> = Vec::new();
        let mut roots: HashMap<String, u32> = HashMap::new();
        for call in &material.calls {
            for (from, to) in call.moves() {
                moved.extend(clean(&from).zip(clean(&to)));
            }
            call_paths(call, &mut |touch, path| {
                if let Some(path) = clean(path) {
                    touched.push((touch, path, call.turn));
                }
            });
            for key in ["workdir", "cwd", "working_directory", "directory"] {
                if let Some(folder) = call.arguments.get(key).and_then(Value::as_str).and_then(clean) {
                    *roots.entry(folder).or_default() += 2;
                }
            }
        }
        let said = spoken(material);
        let known = touched.iter().map(|(_, path, _)| path.as_str());
        let said_paths = said.iter().map(|(name, _)| *name).filter(|name| name.contains('/'));
        let known = known.chain(previous.iter().map(String::as_str)).chain(said_paths);
        let known: HashSet<&str> = known.collect();
        let root = root(&known, roots);
        let mut files = Files { root, ..Files::default() };
        files.previous =
            previous.iter().filter_map(|path| clean(path)).map(|path| files.relative(&path)).collect();
        files.moved = moved.iter().map(|(from, to)| (files.relative(from), files.relative(to))).collect();
        files.resolve(material, &said, &touched);
        files.collect(&said, touched);
        files.previous.retain(|path| !files.undone.contains(path));
        files
    }

    /// Whether a text names a file that was removed or changed back.
    pub fn names_undone(&self, text: &str) -> bool {
        !self.undone.is_empty() && self.mentioned(text).any(|path| self.undone.contains(&path))
    }

    /// Whether a text names a file that was edited, after a turn or at any time.
    pub fn names_edited(&self, text: &str, after: Option<usize>) -> bool {
        let is_later = |at: &usize| after.is_none_or(|after| *at > after);
        self.mentioned(text).any(|path| self.edited_at.get(&path).is_some_and(is_later))
    }

    /// The files that a call edits.
    pub fn edited_by(&self, call: &ToolCall<'_>) -> Vec<String> {
        let mut paths: Vec<String> = Vec::new();
        if call.edits() {
            call_paths(call, &mut |touch, path| {
                let Some(path) = clean(path).map(|path| self.spelt(&path)) else { return };
                if touch == Touch::Edited && !paths.contains(&path) {
                    paths.push(path);
                }
            });
        }
        paths
    }

    /// Whether a name is that of a file or of a folder around one.
    pub fn covers(&self, name: &str) -> bool {
        let Some(path) = clean(name) else { return false };
        let path = self.spelt(&path);
        let mut known = self
            .relevant
            .iter()
            .map(|file| file.path.as_str())
            .chain(self.previous.iter().map(String::as_str));
        self.undone.contains(&path)
            || known.any(|known| {
                known.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    }

    /// The one spelling of a path.
    pub fn spelt(&self, path: &str) -> String {
        let path = clean(path).unwrap_or_else(|| path.to_string());
        let mut path = self.relative(&path);
        for (from, to) in &self.moved {
            if let Some(rest) = path.strip_prefix(from.as_str()).filter(|rest| rest.starts_with('/')) {
                path = format!("{to}{rest}");
            }
        }
        self.resolved.get(&path).cloned().unwrap_or(path)
    }

    fn relative(&self, path: &str) -> String {
        let inside = self.root.as_deref().and_then(|root| path.strip_prefix(root)?.strip_prefix('/'));
        inside.unwrap_or(path).to_string()
    }

    fn mentioned(&self, text: &str) -> impl Iterator<Item = String> {
        let mut names = Vec::new();
        identifier::scan(text, |name| {
            if matches!(name.kind, IdentifierKind::Path | IdentifierKind::FileName) {
                names.push(self.spelt(name.text));
            }
        });
        names.into_iter()
    }

    /// Finds the paths of names that were said without their folder.
    fn resolve(&mut self, material: &Material<'_>, said: &[(&str, u32)], touched: &[(Touch, String, usize)]) {
        let mut paths: Vec<String> = touched.iter().map(|(_, path, _)| self.relative(path)).collect();
        paths.extend(self.previous.iter().cloned());
        let folders = said.iter().filter(|(name, _)| name.contains('/'));
        paths.extend(folders.filter_map(|(name, _)| clean(name)).map(|path| self.relative(&path)));
        let whole: HashSet<&str> = paths.iter().map(String::as_str).collect();
        let mut by_name: HashMap<&str, Vec<&str>> = HashMap::new();
        for path in &whole {
            if let Some((_, name)) = path.rsplit_once('/') {
                by_name.entry(name).or_default().push(path);
            }
        }
        // A file in the folder of the project may be named with that folder.
        for (name, paths) in &by_name {
            if let Some(path) = whole.get(name).and_then(|name| longer(name, paths)) {
                self.resolved.insert(name.to_string(), path.to_string());
            }
        }
        for paths in by_name.values_mut() {
            let ends: Vec<(&str, &str)> =
                paths.iter().filter_map(|path| Some((*path, longer(path, paths)?))).collect();
            paths.retain(|path| !ends.iter().any(|(end, _)| end == path));
            self.resolved.extend(ends.into_iter().map(|(end, path)| (end.to_string(), path.to_string())));
        }
        let mut unknown: Vec<&str> = Vec::new();
        for (name, _) in said {
            if name.contains('/') || whole.contains(name) || unknown.contains(name) {
                continue;
            }
            match by_name.get(name) {
                Some(paths) => {
                    // Of several with this name, none is meant for certain: the smallest keeps the result the same.
                    let path = paths.iter().min().map_or_else(String::new, |path| path.to_string());
                    self.resolved.insert(name.to_string(), path);
                }
                None if unknown.len() < LOOKUPS_MAX => unknown.push(name),
                None => {}
            }
        }
        // A path that stands for a part of an absolute one outside of the root.
        for path in whole.iter().filter(|path| path.starts_with('/')) {
            let parts = path.match_indices('/').skip(1).map(|(at, _)| &path[at + 1..]);
            if let Some(part) = parts.into_iter().find(|part| part.contains('/') && whole.contains(part)) {
                self.resolved.insert(path.to_string(), part.to_string());
            }
        }
        for (name, path) in look_up(material, &unknown) {
            let path = clean(&path).map_or(path, |path| self.relative(&path));
            self.resolved.insert(name.to_string(), path);
        }
    }

    fn collect(&mut self, said: &[(&str, u32)], touched: Vec<(Touch, String, usize)>) {
        let mut files: HashMap<String, Mentions> = HashMap::new();
        let mut count = 0;
        let mut mention = |path: String, score: u32, files: &mut HashMap<String, Mentions>| {
            count += 1;
            let file = files.entry(path).or_insert(Mentions { first: count, ..Mentions::default() });
            file.score += score;
        };
        for (touch, path, turn) in touched {
            let path = self.spelt(&path);
            match touch {
                Touch::Seen => {
                    self.seen.insert(path);
                }
                Touch::Read => mention(path, 2, &mut files),
                Touch::Edited => {
                    mention(path.clone(), 4, &mut files);
                    self.undone.remove(&path);
                    if let Some(file) = files.get_mut(&path) {
                        // Its place is that of its first edit.
                        if !file.edited {
                            file.first = turn;
                        }
                        file.edited = true;
                    }
                    self.edited_at.insert(path, turn);
                }
                Touch::Undone => {
                    self.undone.insert(path);
                }
            }
        }
        for (name, score) in said {
            let path = self.spelt(name);
            let bare = !path.contains('/');
            // "main.ts/cli.ts" are two files.
            if path.rsplit('/').skip(1).any(has_file_ending) {
                continue;
            }
            let last = path.rsplit('/').next().unwrap_or_default();
            let known = files.contains_key(&path) || self.previous.contains(&path);
            let seen = last.trim_start_matches('.').contains('.') && self.seen.contains(&path);
            let may_be = !bare && !is_of_host(&path) || self.resolved.contains_key(*name);
            if known || (may_be && (seen || has_file_ending(last))) {
                mention(path, *score, &mut files);
            }
        }
        files.retain(|path, _| !self.undone.contains(path) && path.len() <= IDENTIFIER_BYTES_MAX);
        let mut files: Vec<(String, Mentions)> = files.into_iter().collect();
        files.sort_by(|a, b| (!a.1.edited, a.1.first, &a.0).cmp(&(!b.1.edited, b.1.first, &b.0)));
        let edited = files.iter().filter(|(_, file)| file.edited).count();
        let mut others = files.split_off(edited);
        files.truncate(EDITED_MAX);
        if others.len() > OTHERS_MAX {
            let mut scores: Vec<u32> = others.iter().map(|(_, file)| file.score).collect();
            scores.sort_unstable_by(|a, b| b.cmp(a));
            let least = scores[OTHERS_MAX - 1];
            others.retain(|(_, file)| file.score >= least);
            others.truncate(OTHERS_MAX);
        }
        files.append(&mut others);
        self.relevant = files
            .into_iter()
            .map(|(path, file)| File { path, edited: file.edited, score: file.score })
            .collect();
    }
}

/// The one path of which a relative path is the end, if there is no other: `src/cli/args.ts` for `cli/args.ts`.
fn longer<'p>(path: &str, paths: &[&'p str]) -> Option<&'p str> {
    /// More files of one name are not compared.
    const PATHS_MAX: usize = 256;
    let is_end = |end: &str, path: &str| path.strip_suffix(end).is_some_and(|rest| rest.ends_with('/'));
    if path.starts_with('/') || paths.len() > PATHS_MAX {
        return None;
    }
    let others = || paths.iter().copied().filter(|other| is_end(path, other));
    let longest = others().max_by_key(|other| (other.len(), *other))?;
    let relative = others().filter(|other| !other.starts_with('/')).max_by_key(|other| other.len());
    relative.filter(|_| others().all(|other| other == longest || is_end(other, longest)))
}

/// Names of files that people and the model say, with a score.
fn spoken<'m>(material: &'m Material<'_>) -> Vec<(&'m str, u32)> {
    let mut said = Vec::new();
    for (source, text) in &material.texts {
        let score = match source {
            Source::User => 6,
            Source::Assistant => 4,
            _ => continue,
        };
        identifier::scan(text, |name| {
            let start = name.text.as_ptr() as usize - text.as_ptr() as usize;
            if matches!(name.kind, IdentifierKind::Path | IdentifierKind::FileName)
                && !goes_on_from(&text[..start])
            {
                said.push((name.text, score));
            }
        });
    }
    said
}

/// Whether a path behind this text is the end of one that is written with a variable: `<id>/metadata.json`, `$HOME/.profile`.
fn goes_on_from(before: &str) -> bool {
    before.ends_with(['>', ']', '}', ')', '*', '$', '%'])
}

/// Whether a path begins with the name of a host: `github.com/acme/web`.
fn is_of_host(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    [".com", ".org", ".net", ".io", ".dev"].iter().any(|ending| first.ends_with(ending))
}

/// Looks names without a folder up in what tools were given and answered: with a folder before them, or as they are.
fn look_up<'n>(material: &Material<'_>, names: &[&'n str]) -> Vec<(&'n str, String)> {
    let Ok(automaton) = AhoCorasick::new(names) else { return Vec::new() };
    let mut found: Vec<Option<String>> = vec![None; names.len()];
    let reports =
        material.said.iter().filter(|said| material.role(said) == Role::Assistant && completes(said));
    let mut reported: HashSet<&str> = HashSet::new();
    for said in reports {
        identifier::scan(&said.text, |name| {
            reported.insert(name.text);
        });
    }
    let mut calls = 0;
    for (source, text) in &material.texts {
        calls += usize::from(*source == Source::Tool);
        if !matches!(source, Source::Call | Source::Output) {
            continue;
        }
        for at in automaton.find_overlapping_iter(text.as_ref()) {
            let (before, behind) = (&text[..at.start()], &text[at.end()..]);
            let joins = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            if behind.starts_with(joins) || before.ends_with(|c: char| joins(c) || c == '.') {
                continue;
            }
            let in_path = |c: char| joins(c) || matches!(c, '/' | '.' | '~' | '@');
            let start = before
                .rfind(|c| !in_path(c))
                .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
            if goes_on_from(&before[..start]) {
                continue;
            }
            let folder = &before[start..];
            let known = &mut found[at.pattern().as_usize()];
            if known.as_ref().is_none_or(|path| !path.contains('/')) {
                *known = Some(format!("{folder}{}", names[at.pattern().as_usize()]));
            }
        }
    }
    let name = |(index, path): (usize, Option<String>)| {
        let name = names[index];
        match path {
            Some(path) if path.contains('/') => Some((name, path)),
            _ if !is_surely_a_file(name) => None,
            Some(path) => Some((name, path)),
            // Without tools there is nobody who could have seen it.
            None => (calls == 0 || reported.contains(name)).then(|| (name, name.to_string())),
        }
    };
    found.into_iter().enumerate().filter_map(name).collect()
}

/// Whether a name with a file's ending cannot be something else: a field (`cmd.Env`), a method (`console.log`), a
/// program or a product (`Node.js`), a kind of archive (`tar.gz`).
fn is_surely_a_file(name: &str) -> bool {
    const UNSURE: [&str; 22] = [
        "app",
        "bin",
        "c",
        "cmd",
        "d",
        "db",
        "env",
        "exe",
        "go",
        "h",
        "key",
        "lock",
        "log",
        "m",
        "map",
        "mod",
        "o",
        "r",
        "service",
        "so",
        "sum",
        "properties",
    ];
    let Some((stem, ending)) = name.rsplit_once('.') else { return false };
    let product = ending == "js" && stem.starts_with(|c: char| c.is_ascii_uppercase());
    let archive = matches!(ending, "gz" | "xz" | "zst") && has_file_ending(&format!("a.{stem}"));
    !product && !archive && !stem.is_empty() && !UNSURE.contains(&ending.to_ascii_lowercase().as_str())
}

/// The folder of the project: the one that turns most absolute paths into relative ones that occur as well.
fn root(known: &HashSet<&str>, mut votes: HashMap<String, u32>) -> Option<String> {
    for path in known.iter().filter(|path| path.starts_with('/')) {
        for (at, _) in path.match_indices('/').skip(1) {
            let rest = &path[at + 1..];
            if known.contains(rest) || known.contains(format!("./{rest}").as_str()) {
                *votes.entry(path[..at].to_string()).or_default() += 1;
            }
        }
    }
    votes.retain(|folder, _| {
        folder.matches('/').count() > 1
            && known
                .iter()
                .any(|path| path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/')))
    });
    // Of equals the shortest, then the first by name.
    votes
        .into_iter()
        .max_by(|a, b| (a.1, b.0.len(), &b.0).cmp(&(b.1, a.0.len(), &a.0)))
        .map(|(folder, _)| folder)
}

/// A path without `./`, doubled or trailing slashes and without a line number. `None` if it is not one.
fn clean(path: &str) -> Option<String> {
    let path = path.trim();
    if path.is_empty()
        || path.len() > 4 * IDENTIFIER_BYTES_MAX
        || path.contains(['\n', '*', '$', '?', '<', '>', '|', '"'])
        || path.contains("://")
    {
        return None;
    }
    let path = masked(path);
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        if !(part.is_empty() && !parts.is_empty() || part == ".") {
            parts.push(part);
        }
    }
    let path = parts.join("/");
    let numbered = |path: &str| {
        path.rsplit_once(':')
            .filter(|(_, line)| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()))
            .map(|(path, _)| path.to_string())
    };
    let path = numbered(&path).unwrap_or(path);
    // As a person mentions it to an agent: `@src/cli/args.ts`.
    let mentioned =
        path.strip_prefix('@').filter(|path| has_file_ending(path.rsplit('/').next().unwrap_or(path)));
    let path = mentioned.map_or(path.clone(), str::to_string);
    (!path.is_empty() && path != "." && path != "..").then_some(path)
}

/// Calls back for every path that a call was given.
fn call_paths(call: &ToolCall<'_>, found: &mut impl FnMut(Touch, &str)) {
    const KEYS: [&str; 9] = [
        "file_path",
        "filePath",
        "path",
        "file",
        "filename",
        "notebook_path",
        "target_file",
        "absolute_path",
        "relative_path",
    ];
    if call.failure.is_some() {
        return;
    }
    let touch = match () {
        () if call.edits() => Touch::Edited,
        () if call.seeks() => Touch::Seen,
        () => Touch::Read,
    };
    for path in KEYS.iter().filter_map(|key| call.arguments.get(key)?.as_str()) {
        let is_file = touch != Touch::Seen || has_file_ending(path.rsplit('/').next().unwrap_or_default());
        found(if is_file { touch } else { Touch::Seen }, path);
    }
    for path in ["paths", "files"].iter().filter_map(|key| call.arguments.get(key)?.as_array()).flatten() {
        if let Some(path) = path.as_str() {
            found(touch, path);
        }
    }
    strings(&call.arguments, &mut |text| patch_paths(text, found));
    if let Some(command) = call.command() {
        command_paths(&command, found);
    }
}

/// Files that a patch in Codex' format changes.
fn patch_paths(text: &str, found: &mut impl FnMut(Touch, &str)) {
    if !text.contains("*** ") {
        return;
    }
    for line in text.lines().filter_map(|line| line.strip_prefix("*** ")) {
        for (heading, touch) in [
            ("Add File: ", Touch::Edited),
            ("Update File: ", Touch::Edited),
            ("Move to: ", Touch::Edited),
            ("Delete File: ", Touch::Undone),
        ] {
            if let Some(path) = line.strip_prefix(heading) {
                found(touch, path);
            }
        }
    }
}

/// Files that a command of a shell edits, removes or changes back. A file that it only reads is seen.
fn command_paths(command: &str, found: &mut impl FnMut(Touch, &str)) {
    let mut document: Option<String> = None;
    for line in command.lines() {
        if let Some(end) = &document {
            if line.trim() == end {
                document = None;
            }
            continue;
        }
        if let Some((_, behind)) = line.split_once("<<") {
            let end: String = behind
                .chars()
                .filter(|c| !"-'\" ".contains(*c))
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            document = (!end.is_empty()).then_some(end);
        }
        for part in line.split(['|', ';', '&']) {
            let words: Vec<&str> =
                part.split_whitespace().map(|word| word.trim_matches(['"', '\'', '(', ')'])).collect();
            simple_command(&words, found);
        }
    }
}

fn simple_command(words: &[&str], found: &mut impl FnMut(Touch, &str)) {
    let start = words.iter().position(|word| *word != "sudo" && !word.contains('=')).unwrap_or(words.len());
    let words = &words[start..];
    let Some((program, rest)) = words.split_first() else { return };
    let is_path = |word: &&&str| !word.starts_with('-') && (word.contains('/') || has_file_ending(word));
    let (program, rest) = match (*program, rest.split_first()) {
        ("git", Some((command, rest))) => (*command, rest),
        _ => (*program, rest),
    };
    let scratch = |path: &str| path.starts_with("/tmp/") || path.starts_with("/dev/");
    let written = rest.windows(2).filter(|pair| matches!(pair[0], ">" | ">>")).map(|pair| pair[1]);
    match program {
        "rm" | "unlink" | "checkout" | "restore" => {
            rest.iter().filter(is_path).for_each(|path| found(Touch::Undone, path))
        }
        "mv" => {
            let paths: Vec<&&str> = rest.iter().filter(|word| !word.starts_with('-')).collect();
            if let [from, to] = paths[..] {
                found(Touch::Undone, from);
                if has_file_ending(to.rsplit('/').next().unwrap_or_default()) {
                    found(Touch::Edited, to);
                }
            }
        }
        "sed" if rest.iter().any(|word| word.starts_with("-i")) => {
            let files =
                rest.iter().filter(|word| has_file_ending(word.rsplit('/').next().unwrap_or_default()));
            files.for_each(|path| found(Touch::Edited, path));
        }
        "cat" | "echo" | "printf" if rest.iter().any(|word| matches!(*word, ">" | ">>")) => {
            written.filter(|path| !scratch(path)).for_each(|path| found(Touch::Edited, path));
        }
        "tee" => rest
            .iter()
            .filter(is_path)
            .filter(|path| !scratch(path))
            .for_each(|path| found(Touch::Edited, path)),
        "cat" | "head" | "tail" | "less" | "nl" | "sed" => {
            let touch = |path: &str| if scratch(path) { Touch::Seen } else { Touch::Read };
            let files =
                rest.iter().filter(|word| has_file_ending(word.rsplit('/').next().unwrap_or_default()));
            files.for_each(|path| found(touch(path), path));
        }
        _ => rest.iter().filter(is_path).for_each(|path| found(Touch::Seen, path)),
    }
}
