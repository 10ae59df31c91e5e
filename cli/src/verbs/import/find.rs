//! Finding the files to import.

use everturn_core::Error;
use everturn_core::time::Timestamp;
use everturn_formats::agents::{self, Opened};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

const DEPTH_MAX: usize = 16;

pub struct Inputs {
    pub files: Vec<Input>,
    /// The folders that were searched.
    pub places: Vec<PathBuf>,
    /// Whether these are the folders in which agents keep their sessions.
    pub is_usual: bool,
    /// Files in them whose format is not known.
    pub unknown: Vec<String>,
}

pub struct Input {
    /// The path as a person would write it; `-` is standard input.
    pub path: PathBuf,
    pub bytes: u64,
    /// The named path, or the folder that it is in.
    pub place: String,
}

/// The named files and those in the named folders; without any, the sessions of agents on this machine.
pub fn find(paths: &[PathBuf]) -> Result<Inputs, Error> {
    let mut unknown = Vec::new();
    let mut found = find_that(paths, &mut |path, _| {
        let known = is_readable(path);
        if !known {
            unknown.push(path.display().to_string());
        }
        known
    })?;
    found.unknown = unknown;
    in_time(&mut found.files, |file| &file.path);
    Ok(found)
}

/// Brings files into the order of their first timestamps: a session may have several. Files without one keep their places.
pub fn in_time<T>(files: &mut Vec<T>, path: fn(&T) -> &Path) {
    if files.len() < 2 {
        return;
    }
    let times: Vec<Option<Timestamp>> = files.iter().map(|file| first_time(path(file))).collect();
    let places: Vec<usize> = (0..files.len()).filter(|at| times[*at].is_some()).collect();
    let mut order = places.clone();
    order.sort_by_key(|at| times[*at]);
    let mut left: Vec<Option<T>> = std::mem::take(files).into_iter().map(Some).collect();
    let mut sources: Vec<usize> = (0..left.len()).collect();
    places.iter().zip(order).for_each(|(place, from)| sources[*place] = from);
    files.extend(sources.into_iter().filter_map(|from| left[from].take()));
}

fn first_time(path: &Path) -> Option<Timestamp> {
    let file = File::open(path).ok().filter(|_| !is_standard_input(path))?;
    agents::first_time(BufReader::new(file))
}

/// The same, with a predicate for the files of a folder.
pub fn find_that(paths: &[PathBuf], so: &mut dyn FnMut(&Path, u64) -> bool) -> Result<Inputs, Error> {
    let mut found =
        Inputs { files: Vec::new(), places: Vec::new(), is_usual: paths.is_empty(), unknown: Vec::new() };
    if paths.is_empty() {
        found.places = usual()?;
        for place in found.places.clone().iter().filter(|place| place.is_dir()) {
            walk(place, place, DEPTH_MAX, so, &mut found.files);
        }
    }
    for path in paths {
        if !is_standard_input(path) && path.is_dir() {
            found.places.push(path.clone());
            walk(path, path, DEPTH_MAX, so, &mut found.files);
        } else {
            let bytes = path.metadata().map_or(0, |data| data.len());
            found.files.push(Input { path: path.clone(), bytes, place: path.display().to_string() });
        }
    }
    Ok(found)
}

pub fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// Folders in which agents keep their sessions.
pub fn usual() -> Result<Vec<PathBuf>, Error> {
    let home = dirs::home_dir().ok_or_else(|| {
        Error::invalid("import.no_home", "there is no home folder; name the files or folders to import")
    })?;
    let place = |variable: &str, usual: &str| match std::env::var_os(variable).filter(|set| !set.is_empty()) {
        Some(set) => PathBuf::from(set),
        None => home.join(usual),
    };
    let codex = place("CODEX_HOME", ".codex");
    let mut places = vec![place("CLAUDE_CONFIG_DIR", ".claude").join("projects"), codex.join("sessions")];
    places.extend(Some(codex.join("archived_sessions")).filter(|archived| archived.is_dir()));
    let others = [
        ".pi/agent/sessions",
        ".factory/sessions",
        ".qwen/projects",
        ".copilot/session-state",
        ".kimi/sessions",
        ".kimi-code/sessions",
        ".cursor/projects",
    ];
    places.extend(others.iter().map(|place| home.join(place)).filter(|place| place.is_dir()));
    let gemini = home.join(".gemini/tmp");
    let projects = std::fs::read_dir(&gemini).into_iter().flatten().flatten();
    let mut chats: Vec<PathBuf> = projects.map(|project| project.path().join("chats")).collect();
    chats.retain(|chats| chats.is_dir());
    chats.sort();
    if chats.is_empty() {
        chats.push(gemini);
    }
    places.extend(chats);
    Ok(places)
}

/// Files of a folder that can be imported, in order. Links to folders are not followed: they could form a
/// cycle.
fn walk(
    place: &Path,
    folder: &Path,
    depth: usize,
    so: &mut dyn FnMut(&Path, u64) -> bool,
    files: &mut Vec<Input>,
) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() && depth > 0 {
            walk(place, &path, depth - 1, so, files);
        } else if kind.is_file() && has_a_name_of_ours(&path) {
            let bytes = entry.metadata().map_or(0, |data| data.len());
            if !so(&path, bytes) {
                continue;
            }
            files.push(Input { path, bytes, place: place.display().to_string() });
        }
    }
}

fn has_a_name_of_ours(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let name = [".zst", ".gz"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    [".jsonl", ".json"].iter().any(|end| name.ends_with(end))
}

/// Whether a file in a folder can be imported. There are others too: settings, indexes, notes.
pub fn is_readable(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    match agents::open(BufReader::new(file), None) {
        Ok(Opened::Agent(_)) => true,
        Ok(Opened::Other(head, _)) => {
            let head = String::from_utf8_lossy(&head);
            head.contains("\"session_start\"") || head.contains("\"_type\"")
        }
        // The error is reported when the file is imported.
        Err(_) => true,
    }
}
