//! Sessions of Claude Code that continue in another file: such files are read one after the other, as one.

use super::find::Input;
use everturn_core::json::replace_lone_surrogates;
use everturn_formats::agents;
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Groups each file with the one that it continues, in order. The others stay alone.
pub fn join(files: Vec<Input>) -> Vec<Vec<Input>> {
    let paths: Vec<&Path> = files.iter().map(|file| file.path.as_path()).collect();
    let before = before(&paths, &paths);
    let mut joined: Vec<Vec<Input>> = Vec::new();
    let mut places: HashMap<usize, usize> = HashMap::new();
    for (at, file) in files.into_iter().enumerate() {
        // The files are in order of time: one that seems to continue a later one begins a group.
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

/// The files that some files continue: indexes into `among`.
pub fn before(files: &[&Path], among: &[&Path]) -> HashMap<usize, usize> {
    let open = |path: &Path| {
        let is_plain = path.extension().is_some_and(|end| end == "jsonl");
        File::open(path).ok().filter(|_| is_plain).map(BufReader::new)
    };
    let continued =
        files.iter().enumerate().filter_map(|(at, path)| Some((at, agents::continues(open(path)?)?)));
    let continued: Vec<(usize, String)> = continued.collect();
    let mut before: HashMap<usize, usize> = HashMap::new();
    if continued.is_empty() {
        return before;
    }
    for (at, source) in among.iter().enumerate().filter_map(|(at, path)| Some((at, open(path)?))) {
        for line in source.lines().map_while(Result::ok) {
            let named = |(of, name): &&(usize, String)| files[*of] != among[at] && line.contains(name);
            for (of, name) in continued.iter().filter(named) {
                let line = replace_lone_surrogates(line.trim_start_matches('\u{feff}'));
                let line: Value = serde_json::from_str(&line).unwrap_or_default();
                if line["uuid"] == name.as_str() {
                    before.entry(*of).or_insert(at);
                }
            }
        }
    }
    before
}
