//! Erased content is gone from the database, its write-ahead log and the asset folder, byte for byte.
//!
//! Every text that is written carries a unique mark. Random operations run over many conversations; after each
//! that erases or deletes, all files are read: they must not contain a mark of anything erased, and must
//! contain every mark of what is left.

use crate::dice::Dice;
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::event::{Draft, kind};
use everturn_core::id::{Key, TurnId};
use everturn_store::assets::FolderAssets;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{Assets, Committed, ConversationIndex, Maintenance};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Prefix of every mark.
const MARK: &str = "mark-";
/// Number of digits after that and a letter.
const DIGITS: usize = 8;

/// Whether a mark is in the text of a turn or in the bytes of an asset. Titles and metadata (`s`), names of
/// actors (`n`) and ids of assets (`a`) are also in rows that SQLite moves between pages, which leaves copies
/// of them until the file is compacted.
fn promised(mark: &str) -> bool {
    mark[MARK.len()..].starts_with('t')
}

/// An event with the marks in its body and envelope.
struct Kept {
    seq: u64,
    /// Gone when its content is erased.
    content: Vec<String>,
    /// Gone when its conversation is deleted.
    envelope: Vec<String>,
}

struct Turn {
    id: TurnId,
    begin: u64,
    content: Option<u64>,
    asset: Option<u64>,
}

struct Conversation {
    key: Key,
    parent: Option<(usize, u64)>,
    deleted: bool,
    events: Vec<Kept>,
    turns: Vec<Turn>,
    open: Option<(Turn, u64, Vec<String>)>,
}

struct World {
    folder: PathBuf,
    store: Option<Sqlite>,
    assets: FolderAssets,
    m: Maker,
    dice: Dice,
    marks: usize,
    all: Vec<Conversation>,
}

impl World {
    fn new(seed: u64, folder: &Path) -> World {
        let mut world = World {
            folder: folder.to_path_buf(),
            store: None,
            assets: FolderAssets::new(&folder.join("assets")),
            m: Maker::default(),
            dice: Dice::new(seed),
            marks: 0,
            all: Vec::new(),
        };
        world.reopen();
        world
    }

    fn reopen(&mut self) {
        drop(self.store.take());
        self.store = Some(Sqlite::open(&self.folder.join("store.db"), Duration::ZERO).unwrap());
    }

    fn store(&self) -> &Sqlite {
        self.store.as_ref().unwrap()
    }

    /// A new mark; the letter says where it is.
    fn mark(&mut self, letter: char) -> String {
        self.marks += 1;
        format!("{MARK}{letter}{:0DIGITS$}", self.marks)
    }

    /// A mark in a text of any length: some fit into a page, some take several.
    fn text(&mut self) -> (String, String) {
        let mark = self.mark('t');
        let length = *self.dice.pick(&[0, 10, 300, 900, 3000, 9000]);
        let text =
            format!("{}{mark} {}", "a ".repeat(self.dice.roll(9)), ".".repeat(self.dice.roll(length + 1)));
        (mark, text)
    }

    fn settings(&mut self) -> (Settings, Vec<String>) {
        let marks = [self.mark('s'), self.mark('s'), self.mark('s')];
        let [title, owner, (mark, value)] = [
            (marks[0].clone(), String::new()),
            (marks[1].clone(), String::new()),
            (marks[2].clone(), "m".repeat(self.dice.roll(700))),
        ];
        let settings = Settings {
            title: Some(Some(title.0)),
            owner: Some(Some(owner.0)),
            metadata: [("note".to_string(), raw(&format!("\"{mark}{value}\"")))].into(),
            ..Settings::default()
        };
        (settings, marks.to_vec())
    }

    fn living(&mut self) -> Option<usize> {
        let living: Vec<usize> = (0..self.all.len()).filter(|n| !self.all[*n].deleted).collect();
        (!living.is_empty()).then(|| *self.dice.pick(&living))
    }

    /// A conversation and its ancestors, each with the last `seq` visible.
    fn lineage(&self, mut which: usize) -> Vec<(usize, u64)> {
        let mut levels = vec![(which, u64::MAX)];
        let mut cap = u64::MAX;
        while let Some((parent, seq)) = self.all[which].parent {
            cap = cap.min(seq);
            levels.push((parent, cap));
            which = parent;
        }
        levels
    }

    /// Every mark that can still be read.
    fn readable(&self) -> BTreeSet<String> {
        let mut marks = BTreeSet::new();
        for which in (0..self.all.len()).filter(|n| !self.all[*n].deleted) {
            for (level, cap) in self.lineage(which) {
                let seen = self.all[level].events.iter().filter(|event| event.seq <= cap);
                marks.extend(seen.flat_map(|event| event.content.iter().chain(&event.envelope)).cloned());
            }
            marks.extend(self.all[which].open.iter().flat_map(|(_, _, pieces)| pieces).cloned());
        }
        marks
    }

    /// Every mark in any file.
    fn found(&self) -> BTreeSet<String> {
        let mut marks = BTreeSet::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let bytes = std::fs::read(&path).unwrap();
                let starts = bytes.windows(MARK.len()).enumerate().filter(|(_, w)| *w == MARK.as_bytes());
                for (at, _) in starts {
                    let end = (at + MARK.len() + 1 + DIGITS).min(bytes.len());
                    marks.insert(String::from_utf8_lossy(&bytes[at..end]).into_owned());
                }
            }
        }
        marks
    }

    #[track_caller]
    fn check(&self, what: &str) {
        let (found, readable) = (self.found(), self.readable());
        let left: Vec<_> = found.difference(&readable).filter(|mark| promised(mark)).collect();
        assert!(left.is_empty(), "after {what}, still in the files: {left:?}");
        let lost: Vec<_> = readable.difference(&found).collect();
        assert!(lost.is_empty(), "after {what}, lost from the files: {lost:?}");
    }

    fn release(&self, committed: &Committed) {
        for hash in &committed.released {
            self.assets.delete(&tenant("acme"), *hash).unwrap();
        }
    }

    fn create(&mut self) {
        let key = self.m.key();
        let (settings, content) = self.settings();
        create(self.store(), &key, vec![self.m.event(kind::CREATED, &settings)]);
        let events = vec![Kept { seq: 1, content, envelope: vec![] }];
        self.all.push(Conversation { key, parent: None, deleted: false, events, turns: vec![], open: None });
    }

    fn change(&mut self, which: usize) {
        let (settings, content) = self.settings();
        let seq = self.append(which, vec![self.m.update(settings)]);
        self.all[which].events.push(Kept { seq, content, envelope: vec![] });
    }

    /// Appends and returns the `seq` of the first.
    fn append(&mut self, which: usize, drafts: Vec<Draft>) -> u64 {
        append(self.store(), &self.all[which].key, drafts).events[0].seq
    }

    fn say(&mut self, which: usize) {
        let ((mark, text), name) = (self.text(), self.mark('n'));
        let draft = Draft { actor: Some(name.clone()), ..self.m.say(&text) };
        let id = turn_of(&draft);
        let begin = self.append(which, vec![draft]);
        let one = &mut self.all[which];
        one.events.push(Kept { seq: begin, content: vec![mark], envelope: vec![name] });
        one.turns.push(Turn { id, begin, content: None, asset: None });
    }

    fn show(&mut self, which: usize) {
        let (name, (mark, text)) = (self.mark('a'), self.text());
        let hash = Hash::of(text.as_bytes());
        self.assets.put(&tenant("acme"), hash, text.clone().into_bytes()).unwrap();
        let id = format!("asset_{name}");
        let (asset, turn) = (self.m.asset(&id, text.as_bytes()), self.m.show(&id));
        let turn_id = turn_of(&turn);
        let seq = self.append(which, vec![asset, turn]);
        let one = &mut self.all[which];
        // The asset's id is in the index as long as the asset is, whether or not the turn that refers to it is
        // visible.
        one.events.push(Kept { seq, content: vec![name, mark], envelope: vec![] });
        one.turns.push(Turn { id: turn_id, begin: seq + 1, content: None, asset: Some(seq) });
    }

    fn stream(&mut self, which: usize) {
        let key = self.all[which].key.clone();
        let (mark, text) = self.text();
        match self.all[which].open.take() {
            None => {
                let draft = self.m.open();
                let id = turn_of(&draft);
                let begin = self.append(which, vec![draft]);
                self.all[which].events.push(Kept { seq: begin, content: vec![], envelope: vec![] });
                self.all[which].open = Some((Turn { id, begin, content: None, asset: None }, 0, vec![]));
            }
            Some((turn, offset, mut pieces)) if self.dice.roll(4) > 0 => {
                done(self.store(), chunk(&key, turn.id, offset, &text));
                pieces.push(mark);
                self.all[which].open = Some((turn, offset + text.len() as u64, pieces));
            }
            Some((turn, _, _)) => {
                let end = *self.dice.pick(&[kind::COMMITTED, kind::ABORTED, kind::INTERRUPTED]);
                let seq = self.append(which, vec![self.m.end(end, turn.id, &text)]);
                self.all[which].events.push(Kept { seq, content: vec![mark], envelope: vec![] });
                self.all[which].turns.push(Turn { content: Some(seq), ..turn });
            }
        }
    }

    fn fork(&mut self, which: usize) {
        let key = self.m.key();
        let parent = self.all[which].key.clone();
        let head = self.store().conversation(&parent).unwrap().head.seq;
        let at = 1 + self.dice.roll(head as usize) as u64;
        done(self.store(), self.m.fork(&key, &parent, at));
        let parent = Some((which, at));
        self.all.push(Conversation {
            key,
            parent,
            deleted: false,
            events: vec![],
            turns: vec![],
            open: None,
        });
    }

    /// Erases a turn, of this conversation or inherited.
    fn erase(&mut self, which: usize) -> bool {
        let levels = self.lineage(which);
        let (level, cap) = *self.dice.pick(&levels);
        let turns: Vec<usize> =
            (0..self.all[level].turns.len()).filter(|n| self.all[level].turns[*n].begin <= cap).collect();
        if turns.is_empty() {
            return false;
        }
        let turn = *self.dice.pick(&turns);
        let Turn { id, begin, content, asset } = self.all[level].turns[turn];
        let committed = done(self.store(), self.m.erase(&self.all[which].key, &[id]));
        self.release(&committed);
        let gone = [Some(begin), content.filter(|seq| *seq <= cap), asset];
        for event in self.all[level].events.iter_mut().filter(|event| gone.contains(&Some(event.seq))) {
            event.content.clear();
        }
        true
    }

    fn delete(&mut self, which: usize) {
        let committed = done(self.store(), self.m.delete(&self.all[which].key));
        self.release(&committed);
        self.all[which].deleted = true;
        self.all[which].open = None;
    }

    fn step(&mut self) {
        let Some(which) = self.living() else { return self.create() };
        match self.dice.roll(40) {
            0..=2 => self.create(),
            3..=12 => self.say(which),
            13..=15 => self.show(which),
            16..=23 => self.stream(which),
            24..=26 => self.change(which),
            27..=29 => self.fork(which),
            30..=35 => {
                if self.erase(which) {
                    self.check("erasing");
                }
            }
            36..=37 => {
                self.delete(which);
                self.check("deleting");
            }
            38 => self.reopen(),
            _ => self.store().rebuild().unwrap(),
        }
    }
}

#[test]
fn nothing_erased_or_deleted_is_left_in_any_file() {
    for seed in 1..=4 {
        eprintln!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::new(seed, folder.path());
        for _ in 0..400 {
            world.step();
        }
        while let Some(which) = world.living() {
            verify(world.store(), &world.all[which].key);
            world.delete(which);
            world.check("deleting what was left");
        }
        assert_eq!(world.found().iter().filter(|mark| promised(mark)).count(), 0);
        world.store().compact().unwrap();
        assert_eq!(world.found().len(), 0, "old titles, names and metadata go when the file is compacted");
        assert_eq!(world.store().check().unwrap(), Vec::new());
    }
}
