//! Tree of lines by parent, read in the order of the lines, with the current branches kept as paths.
//!
//! A line whose parent is the newest turn goes on. One whose parent is an earlier turn leaves the branch behind it: those
//! turns are superseded. One whose parent was left behind takes that branch up again, as a chain of its own; so does one of
//! another session than the turns that it would leave. A parent that was never seen, or comes later (so that there would be
//! a circle), is none: the line goes on where the chain ends.
//!
//! Takes a few bytes of memory for every line, regardless of its length.

use std::collections::HashMap;

/// Most branches that become separate chains; further ones continue at the end of the chain.
const FORKS_MAX: usize = 500;
/// Most forks of forks.
const LEVELS_MAX: u32 = 50;

/// Position of a line: its depth in turns, and the newest segment at that time.
#[derive(Clone, Copy)]
struct Node {
    segment: u32,
    depth: u32,
}

/// A part of a chain, from one branching to the next.
struct Segment {
    chain: usize,
    /// Depth at which it begins.
    start: u32,
    /// Its first turn.
    first: u64,
    /// Turns that it left behind.
    tail: Vec<Turn>,
    /// Chain that continued those turns.
    fork: Option<usize>,
}

#[derive(Clone, Copy)]
struct Turn {
    name: u64,
    said: Said,
}

/// Circumstances of a turn.
#[derive(Clone, Copy, Default)]
pub struct Said {
    /// Whether it is a tool result. Several results follow one message side by side, and none of them supersedes the
    /// others.
    pub result: bool,
    /// The session, where a file may have several.
    pub session: u64,
}

struct Chain {
    /// Turns before its own.
    base: u32,
    path: Vec<Turn>,
    segments: Vec<u32>,
    level: u32,
}

/// Position of a parent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ParentAt {
    /// On a chain.
    On { chain: usize, depth: u32 },
    /// Among the turns that a segment left behind, and no chain has continued yet.
    Left { chain: usize, segment: u32, depth: u32 },
}

/// All chains of a file.
#[derive(Default)]
pub struct Tree {
    known: HashMap<u64, Node>,
    segments: Vec<Segment>,
    chains: Vec<Chain>,
    /// Number of chains that branched from others.
    forks: usize,
}

/// Segment of a node that counts equal lines.
const COUNTER: u32 = u32::MAX;

impl Tree {
    /// Starts a new chain; chains count from 0.
    pub fn chain(&mut self) -> usize {
        self.add(0, Vec::new(), 0)
    }

    fn add(&mut self, base: u32, path: Vec<Turn>, level: u32) -> usize {
        let chain = self.chains.len();
        let segment = self.segments.len() as u32;
        self.segments.push(Segment { chain, start: 0, first: 0, tail: Vec::new(), fork: None });
        self.chains.push(Chain { base, path, segments: vec![segment], level });
        chain
    }

    /// Number of earlier occurrences of a text; counts this one.
    pub fn count(&mut self, text: u64) -> u64 {
        let node = self.known.entry(text).or_insert(Node { segment: COUNTER, depth: 0 });
        node.depth += 1;
        u64::from(node.depth - 1)
    }

    /// Whether a line was seen.
    pub fn has(&self, line: u64) -> bool {
        self.known.contains_key(&line)
    }

    /// Current position of a line.
    pub fn find(&self, line: u64) -> Option<ParentAt> {
        let node = self.known.get(&line).filter(|node| node.segment != COUNTER)?;
        let mut chain = self.segments[node.segment as usize].chain;
        let mut since = node.segment;
        loop {
            let segments = &self.chains[chain].segments;
            let later = &segments[segments.partition_point(|segment| *segment <= since)..];
            let cut = later.iter().find(|segment| self.segments[**segment as usize].start < node.depth);
            match cut.map(|segment| (*segment, self.segments[*segment as usize].fork)) {
                None => return Some(ParentAt::On { chain, depth: node.depth }),
                Some((segment, None)) => return Some(ParentAt::Left { chain, segment, depth: node.depth }),
                Some((_, Some(fork))) => {
                    chain = fork;
                    since = self.chains[fork].segments[0];
                }
            }
        }
    }

    /// The turn of a line, or the nearest to a line that is no part of one. It is the line's own or the one before it, but no
    /// tool result, whose call would be missing.
    pub fn turn_at(&self, line: u64) -> Option<u64> {
        let ParentAt::On { chain, depth } = self.find(line)? else { return None };
        let Chain { base, path, .. } = &self.chains[chain];
        let at = depth.checked_sub(*base)? as usize;
        let before = at.checked_sub(1).and_then(|at| path.get(at));
        let turn = before.filter(|turn| turn.name == line || !turn.said.result).or(path.get(at));
        turn.map(|turn| turn.name)
    }

    /// A chain for the turns that a segment left behind, and the turn of the other chain before which it branches.
    /// `None` if there are too many.
    pub fn fork(&mut self, segment: u32) -> Option<(usize, u64)> {
        let left = &self.segments[segment as usize];
        let (of, base, path, first) = (left.chain, left.start, left.tail.clone(), left.first);
        let fork = self.branch(of, base, path)?;
        self.segments[segment as usize].fork = Some(fork);
        Some((fork, first))
    }

    /// A chain for a session that goes on at a depth of a chain on which another session did so already, and the turn before
    /// which it branches. `None` if the session would leave turns of its own, or none at all: then it goes on in that chain.
    pub fn beside(&mut self, chain: usize, depth: u32, session: u64) -> Option<(usize, u64)> {
        let Chain { base, path, .. } = &self.chains[chain];
        let base = *base;
        let at = after_results(path, depth.saturating_sub(base) as usize);
        let left = path.get(at..)?;
        let first = left.first().filter(|_| left.iter().all(|turn| turn.said.session != session))?.name;
        Some((self.branch(chain, base + at as u32, Vec::new())?, first))
    }

    fn branch(&mut self, of: usize, base: u32, path: Vec<Turn>) -> Option<usize> {
        let level = self.chains[of].level + 1;
        if level > LEVELS_MAX || self.forks >= FORKS_MAX {
            return None;
        }
        self.forks += 1;
        Some(self.add(base, path, level))
    }

    /// Appends a turn to a chain, at `depth` or at its end; returns the turns that it supersedes.
    pub fn append(&mut self, chain: usize, depth: Option<u32>, name: u64, said: Said) -> Vec<u64> {
        let Chain { base, path, segments, .. } = &mut self.chains[chain];
        let at = depth.map_or(path.len(), |depth| depth.saturating_sub(*base) as usize);
        let at = after_results(path, at);
        let mut left = Vec::new();
        if at < path.len() && !said.result {
            let tail = path.split_off(at);
            left = tail.iter().map(|turn| turn.name).collect();
            segments.push(self.segments.len() as u32);
            let start = *base + at as u32;
            self.segments.push(Segment { chain, start, first: name, tail, fork: None });
        }
        path.push(Turn { name, said });
        left
    }

    /// Records that a line is at a depth of a chain, or at its end.
    pub fn note(&mut self, line: u64, chain: usize, depth: Option<u32>) {
        let Chain { base, path, segments, .. } = &self.chains[chain];
        let depth = depth.unwrap_or(*base + path.len() as u32);
        let segment = segments.last().copied().unwrap_or_default();
        self.known.entry(line).or_insert(Node { segment, depth });
    }

    /// Records that a line is at the position of another, though it was elsewhere before.
    pub fn moves(&mut self, line: u64, to: u64) {
        self.known.remove(&line);
        self.alias(line, to);
    }

    /// Records that a line is at the position of another, wherever that is by now.
    pub fn alias(&mut self, line: u64, parent: u64) {
        if let Some(node) = self.known.get(&parent).copied() {
            self.known.entry(line).or_insert(node);
        }
    }
}

/// The place in a path, or the one behind the tool results there.
fn after_results(path: &[Turn], at: usize) -> usize {
    let at = at.min(path.len());
    at + path[at..].iter().take_while(|turn| turn.said.result).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends a turn behind another.
    fn say(tree: &mut Tree, name: u64, parent: Option<u64>) -> (usize, Vec<u64>) {
        let (chain, depth) = match parent.and_then(|parent| tree.find(parent)) {
            Some(ParentAt::On { chain, depth }) => (chain, Some(depth)),
            Some(ParentAt::Left { segment, depth, .. }) => (tree.fork(segment).unwrap().0, Some(depth)),
            None => (0, None),
        };
        let left = tree.append(chain, depth, name, Said::default());
        tree.note(name, chain, None);
        (chain, left)
    }

    #[test]
    fn a_branch_leaves_what_is_behind_its_parent_and_can_be_taken_up_again() {
        let mut tree = Tree::default();
        tree.chain();
        assert_eq!(say(&mut tree, 1, None), (0, vec![]));
        assert_eq!(say(&mut tree, 2, Some(1)), (0, vec![]));
        assert_eq!(say(&mut tree, 3, Some(2)), (0, vec![]));
        assert_eq!(say(&mut tree, 4, Some(3)), (0, vec![]));
        // From 2 on anew.
        assert_eq!(say(&mut tree, 5, Some(2)), (0, vec![3, 4]));
        assert_eq!(say(&mut tree, 6, Some(5)), (0, vec![]));
        // Back to 3, of which 4 went on: a chain of its own, in which 4 is left.
        assert_eq!(say(&mut tree, 7, Some(3)), (1, vec![4]));
        assert_eq!(say(&mut tree, 8, Some(7)), (1, vec![]));
        // And 4 again, which the second chain has left.
        assert_eq!(say(&mut tree, 9, Some(4)), (2, vec![]));
        // The first chain is where it was.
        assert_eq!(say(&mut tree, 10, Some(6)), (0, vec![]));
        // Unknown parents continue at the end; so does a line that is its own parent.
        assert_eq!(say(&mut tree, 11, Some(99)), (0, vec![]));
        assert_eq!(say(&mut tree, 12, Some(12)), (0, vec![]));
        assert_eq!(say(&mut tree, 13, Some(1)), (0, vec![2, 5, 6, 10, 11, 12]));
    }

    #[test]
    fn answers_side_by_side_leave_nothing() {
        let mut tree = Tree::default();
        tree.chain();
        say(&mut tree, 1, None);
        for answer in [2, 3] {
            assert!(tree.append(0, Some(1), answer, Said { result: true, session: 0 }).is_empty());
            tree.note(answer, 0, None);
        }
        assert_eq!(say(&mut tree, 4, Some(2)), (0, vec![]));
        assert_eq!(say(&mut tree, 5, Some(3)), (0, vec![4]));
    }
}
