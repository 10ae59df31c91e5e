//! Seeds: inputs that the other crates have in their tests, documentation and golden files anyway.

use crate::Target;
use crate::mutation::INPUT_BYTES_MAX;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A source of seeds. Paths begin at the root of the repository.
#[derive(Clone, Copy)]
pub enum SeedSource {
    /// A whole file.
    Whole(&'static str),
    /// Each line of a file.
    Lines(&'static str),
    /// The string literals of a Rust file.
    Literals(&'static str),
    /// The JSON values in a file of any kind, in literals and in `json!`.
    Json(&'static str),
    /// The blocks of a page in a language.
    Block(&'static str, &'static str),
    /// Inputs that are made by a function.
    Made(fn() -> Vec<Vec<u8>>),
}

/// The seeds of a target, the same in every run.
pub fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let found: BTreeSet<Vec<u8>> = target.seeds.iter().flat_map(|source| source.read()).collect();
    let mut found: Vec<Vec<u8>> = found.into_iter().filter(|seed| seed.len() <= INPUT_BYTES_MAX).collect();
    found.sort_by_key(Vec::len);
    found
}

/// Inputs that once broke a promise of the target, each with the path of its file.
pub fn regressions(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let files = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// A file of the repository.
pub(crate) fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl SeedSource {
    fn read(self) -> Vec<Vec<u8>> {
        match self {
            SeedSource::Whole(path) => vec![file(path).into_bytes()],
            SeedSource::Lines(path) => file(path).lines().map(|line| line.as_bytes().to_vec()).collect(),
            SeedSource::Literals(path) => literals(&file(path)).into_iter().map(String::into_bytes).collect(),
            SeedSource::Json(path) => values(&file(path)),
            SeedSource::Block(path, language) => blocks(&file(path), language),
            SeedSource::Made(make) => make(),
        }
    }
}

/// The string literals of Rust source, without their escapes.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (before, from) = rest.split_at(at);
        rest = &from[1..];
        if from.starts_with("//") {
            rest = &from[from.find('\n').unwrap_or(from.len())..];
        } else if from.starts_with("'\"'") || from.starts_with("'\\\"'") {
            rest = &from[3..];
        } else if from.starts_with('"') {
            let hashes = before.len() - before.trim_end_matches('#').len();
            let is_raw = before[..before.len() - hashes].ends_with('r');
            let end = if is_raw { raw_end(rest, hashes) } else { plain_end(rest) };
            let Some(end) = end else { break };
            let literal = &rest[..end];
            found.extend(if is_raw { Some(literal.to_string()) } else { unescaped(literal) });
            rest = &rest[end + 1..];
        }
    }
    found
}

fn raw_end(text: &str, hashes: usize) -> Option<usize> {
    text.find(&format!("\"{}", "#".repeat(hashes)))
}

fn plain_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// A literal without its escapes; `None` for those of bytes, which are not text.
fn unescaped(literal: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once('\\') {
        text += before;
        let kind = after.chars().next()?;
        rest = &after[kind.len_utf8()..];
        match kind {
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            '0' => text.push('\0'),
            '\n' => rest = rest.trim_start(),
            'u' => {
                let (digits, after) = rest.strip_prefix('{')?.split_once('}')?;
                text.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
                rest = after;
            }
            'x' => return None,
            other => text.push(other),
        }
    }
    Some(text + rest)
}

/// Everything in a file that is an object or a list in JSON.
fn values(source: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for text in literals(source).iter().map(String::as_str).chain([source]) {
        let mut rest = text;
        while let Some(at) = rest.find(['{', '[']) {
            rest = &rest[at..];
            let mut parsed = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
            match parsed.next() {
                Some(Ok(value)) if value.get().len() > 2 => {
                    found.push(value.get().as_bytes().to_vec());
                    rest = &rest[parsed.byte_offset()..];
                }
                _ => rest = &rest[1..],
            }
        }
    }
    found
}

/// The fenced blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<Vec<u8>> {
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks.filter_map(|rest| Some(rest.split_once("\n```")?.0.as_bytes().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_found_with_and_without_escapes() {
        let source = r####"
            // "not this one", it's a comment
            let a = "one\n\"two\"";
            let quote = '"';
            let b = r#"{"three": "x"}"#;
            let c = "\u{e9} and \
                     more";
        "####;
        assert_eq!(literals(source), ["one\n\"two\"", "{\"three\": \"x\"}", "é and more"]);
    }

    #[test]
    fn values_are_found_in_literals_and_in_code() {
        let source = r####"json!({"a": [1]}); let b = "[{\"b\": 2}] x";"####;
        assert_eq!(values(source), [&b"[{\"b\": 2}]"[..], b"{\"a\": [1]}"]);
    }
}
