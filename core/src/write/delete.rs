//! Deletion of a conversation. Events that its forks still read stay, also those of its ancestors.

use super::lookup::{Fork, Lookup, Traces};
use crate::Error;
use crate::chain::Hash;
use crate::conversation::Tombstone;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Rows that a deletion changes and removes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deletion {
    /// Replaces the conversation, without title, owner, participants, metadata and policy.
    pub tombstone: Tombstone,
    /// The conversation itself, then ancestors that were deleted before and kept for it.
    pub purges: Vec<Purge>,
    /// Hashes of bytes that no asset of the tenant uses afterwards.
    pub released: Vec<Hash>,
}

/// Removes everything of a conversation after a `seq`: events, their rows, text of open turns, and all its
/// answered requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purge {
    /// Its number in the store.
    pub conversation: u64,
    /// `seq` of the last event to keep; 0 for none.
    pub keep: u64,
}

/// Plans the deletion of the conversation that the lookup is about.
pub fn deletion(tombstone: Tombstone, lookup: &dyn Lookup) -> Result<Deletion, Error> {
    let lineage = lookup.lineage()?;
    let own = lineage.first().map(|level| level.conversation);
    let forks = |conversation| {
        let mut forks = lookup.forks(conversation)?;
        forks.iter_mut().for_each(|fork| fork.deleted |= Some(fork.conversation) == own);
        Ok::<Vec<Fork>, Error>(forks)
    };
    let mut purges = Vec::new();
    let mut hashes = Vec::new();
    for level in lineage.iter().take_while(|level| level.deleted || Some(level.conversation) == own) {
        let keep = needed(level.conversation, forks)?;
        let assets = lookup.assets(level.conversation, keep.saturating_add(1)..=u64::MAX)?;
        hashes.extend(assets.iter().filter_map(|asset| asset.sha256));
        purges.push(Purge { conversation: level.conversation, keep });
    }
    Ok(Deletion { tombstone, purges, released: released(hashes, lookup)? })
}

/// `seq` of the last event of a conversation that living forks read; 0 for none. A deleted fork needs only what
/// its own forks read through it.
pub fn needed<E>(conversation: u64, mut forks: impl FnMut(u64) -> Result<Vec<Fork>, E>) -> Result<u64, E> {
    let mut needed = 0;
    // Damaged rows may refer to each other.
    let mut seen = BTreeSet::from([conversation]);
    let mut deleted = vec![(conversation, u64::MAX)];
    while let Some((parent, cap)) = deleted.pop() {
        for fork in forks(parent)? {
            let reach = fork.at_seq.min(cap);
            if !fork.deleted {
                needed = reach.max(needed);
            } else if seen.insert(fork.conversation) {
                deleted.push((fork.conversation, reach));
            }
        }
    }
    Ok(needed)
}

/// A living fork that reads an event of a deleted conversation, the first of the nearest; `None` if none does.
pub fn reader<E>(
    conversation: u64,
    seq: u64,
    mut forks: impl FnMut(u64) -> Result<Vec<Fork>, E>,
) -> Result<Option<u64>, E> {
    let mut seen = BTreeSet::from([conversation]);
    let mut deleted = VecDeque::from([conversation]);
    while let Some(parent) = deleted.pop_front() {
        for fork in forks(parent)?.into_iter().filter(|fork| fork.at_seq >= seq) {
            if !fork.deleted {
                return Ok(Some(fork.conversation));
            }
            if seen.insert(fork.conversation) {
                deleted.push_back(fork.conversation);
            }
        }
    }
    Ok(None)
}

/// The hashes that no asset uses once the assets with these hashes are gone.
pub(super) fn released<T: Traces + ?Sized>(hashes: Vec<Hash>, lookup: &T) -> Result<Vec<Hash>, Error> {
    let mut going: BTreeMap<Hash, u64> = BTreeMap::new();
    hashes.into_iter().for_each(|hash| *going.entry(hash).or_default() += 1);
    let mut released = Vec::new();
    for (hash, count) in going {
        if lookup.asset_count(hash)? <= count {
            released.push(hash);
        }
    }
    Ok(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_parent_keeps_what_living_forks_read() {
        // Number, parent, the last event that both share, and whether it was deleted.
        type Row = (u64, u64, u64, bool);
        let needed_of_1 = |rows: &[Row]| {
            needed(1, |parent| {
                let forks = rows.iter().filter(|row| row.1 == parent);
                let fork = |row: &Row| Fork { conversation: row.0, at_seq: row.2, deleted: row.3 };
                Ok::<_, ()>(forks.map(fork).collect())
            })
        };
        let cases: [(&[Row], u64); 6] = [
            (&[], 0),
            (&[(2, 1, 5, false), (3, 1, 8, false)], 8),
            (&[(2, 1, 5, false), (3, 1, 8, true)], 5),
            // A fork of a deleted fork reads through it: no further than the deleted one, and no further than itself.
            (&[(2, 1, 5, true), (3, 2, 9, false)], 5),
            (&[(2, 1, 5, true), (3, 2, 3, false)], 3),
            // Damaged rows that refer to each other.
            (&[(2, 1, 5, true), (1, 2, 7, true), (3, 2, 4, false)], 4),
        ];
        for (rows, expected) in cases {
            assert_eq!(needed_of_1(rows), Ok(expected), "{rows:?}");
            let reader_of_1 = |seq| {
                reader(1, seq, |parent| {
                    let forks = rows.iter().filter(|row| row.1 == parent);
                    let fork = |row: &Row| Fork { conversation: row.0, at_seq: row.2, deleted: row.3 };
                    Ok::<_, ()>(forks.map(fork).collect())
                })
            };
            // What is needed has a reader, and it lives.
            let lives = |no| rows.iter().any(|row| row.0 == no && !row.3);
            assert!(expected == 0 || reader_of_1(expected).unwrap().is_some_and(lives), "{rows:?}");
            assert_eq!(reader_of_1(expected + 1), Ok(None), "{rows:?}");
        }
    }
}
