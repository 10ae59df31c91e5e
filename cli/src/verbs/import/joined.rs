//! Sessions of Claude Code that go on in another file: such files are read one after the other, as one.

use super::find::Input;
use everturn_core::json::replace_lone_surrogates;
use everturn_formats::agents;
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

/// Puts each file behind the one that it goes on from. The others stay alone.
pub fn join(files: Vec<Input>) -> Vec<Vec<Input>> {
    let open = |file: &Input| {
        let is_plain = file.path.extension().is_some_and(|end| end == "jsonl");
        File::open(&file.path).ok().filter(|_| is_plain).map(BufReader::new)
    };
    let continued =
        files.iter().enumerate().filter_map(|(at, file)| Some((at, agents::continues(open(file)?)?)));
    let continued: Vec<(usize, String)> = continued.collect();
    let mut before: HashMap<usize, usize> = HashMap::new();
    if !continued.is_empty() && files.len() > 1 {
        for (at, source) in files.iter().enumerate().filter_map(|(at, file)| Some((at, open(file)?))) {
            for line in source.lines().map_while(Result::ok) {
                let named = |(of, name): &&(usize, String)| *of != at && line.contains(name);
                for (of, name) in continued.iter().filter(named) {
                    let line = replace_lone_surrogates(line.trim_start_matches('\u{feff}'));
                    let line: Value = serde_json::from_str(&line).unwrap_or_default();
                    if line["uuid"] == name.as_str() {
                        before.entry(*of).or_insert(at);
                    }
                }
            }
        }
    }
    let mut joined: Vec<Vec<Input>> = Vec::new();
    let mut places: HashMap<usize, usize> = HashMap::new();
    for (at, file) in files.into_iter().enumerate() {
        // The files are in order of time: one that seems to go on from a later one begins by itself.
        match before.get(&at).and_then(|before| places.get(before)).copied() {
            Some(place) => {
                joined[place].push(file);
                places.insert(at, place);
            }
            None => {
                places.insert(at, joined.len());
                joined.push(vec![file]);
            }
        }
    }
    joined
}

/// The files, one after the other.
pub fn open(paths: &[PathBuf]) -> io::Result<Box<dyn Read + Send>> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let mut all: Box<dyn Read + Send> = Box::new(io::empty());
    for (at, path) in paths.iter().enumerate() {
        let mut file = BufReader::new(File::open(path)?);
        if at == 0 {
            all = Box::new(file);
            continue;
        }
        // Within a file it would be part of a line.
        if file.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
            file.consume(BYTE_ORDER_MARK.len());
        }
        // The last line of a file may have no end.
        all = Box::new(all.chain(&b"\n"[..]).chain(file));
    }
    Ok(all)
}
