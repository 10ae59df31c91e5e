//! Power loss: at whatever moment it strikes, everything acknowledged is complete, and nothing is half there.
//!
//! A random scenario runs once on a watched disk. Then, for many moments of its trace, the disk as it may look
//! after the power came back is written out and opened: each file as it was at its last sync, plus any of the
//! later writes, each sector of them independently.

use crate::dice::Dice;
use crate::disk::{Disk, Step};
use everturn_core::chain::Head;
use everturn_core::event::kind;
use everturn_core::id::{Key, TurnId};
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use everturn_store::{ConversationIndex, ConversationQuery, Log, Maintenance, TurnIndex};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SECTOR_BYTES: usize = 512;

/// Content by which images are compared: the head's hash stands for the whole log before it.
type Contents = BTreeMap<Key, (Head, u64, Vec<(TurnId, String)>)>;

fn contents(store: &Sqlite) -> Contents {
    let all = ConversationQuery { limit: usize::MAX, ..ConversationQuery::default() };
    let listed = store.conversations(&tenant("acme"), &all).unwrap();
    let keys = listed.iter().map(|c| Key { tenant: c.tenant.clone(), id: c.id });
    let open = store.open_turns().unwrap();
    keys.map(|key| {
        let report = verify(store, &key);
        let own = open.iter().filter(|(of, _)| *of == key);
        let texts = own.map(|(_, turn)| (*turn, store.open_text(&key, *turn).unwrap())).collect();
        (key, (report.head, report.erased, texts))
    })
    .collect()
}

/// A conversation of the scenario, with the operations still possible on it.
struct Living {
    key: Key,
    said: Vec<TurnId>,
    open: Option<(TurnId, u64)>,
}

/// Runs the scenario. Returns the content of the store before its first commit and after each.
fn run(seed: u64, folder: &Path, disk: &Disk) -> Vec<Contents> {
    let path = folder.join("store.db");
    let open = || Sqlite::open(&path, Duration::ZERO).unwrap();
    let (mut dice, m) = (Dice::new(seed), Maker::default());
    let mut store = open();
    let mut after = vec![contents(&store)];
    disk.acknowledge(0);
    let mut living: Vec<Living> = Vec::new();
    while after.len() <= 120 {
        let mut batch = Vec::new();
        let which = dice.roll(living.len().max(1));
        let text = "x".repeat(dice.roll(6000));
        match (dice.roll(20), living.get_mut(which)) {
            (0..=2, _) | (_, None) => {
                let (key, said) = (m.key(), m.say(&text));
                living.push(Living { key: key.clone(), said: vec![turn_of(&said)], open: None });
                batch.push(creation(&key, vec![m.created(), said]));
            }
            (3..=10, Some(_)) => {
                // One transaction over several conversations.
                for one in living.iter_mut().take(1 + which) {
                    let said = m.say(&text);
                    one.said.push(turn_of(&said));
                    batch.push(addition(&one.key, vec![said, m.draft("note", "{}")]));
                }
            }
            (11..=14, Some(one)) => match one.open.take() {
                None => {
                    let begin = m.open();
                    one.open = Some((turn_of(&begin), 0));
                    batch.push(addition(&one.key, vec![begin]));
                }
                Some((turn, offset)) if dice.roll(3) > 0 => {
                    one.open = Some((turn, offset + text.len() as u64));
                    batch.push(chunk(&one.key, turn, offset, &text));
                }
                Some((turn, _)) => {
                    one.said.push(turn);
                    batch.push(addition(&one.key, vec![m.end(kind::COMMITTED, turn, &text)]));
                }
            },
            (15, Some(one)) => batch.push(m.erase(&one.key, &[*dice.pick(&one.said)])),
            (16, Some(_)) => batch.push(m.delete(&living.swap_remove(which).key)),
            (17, Some(one)) => {
                let child = m.key();
                batch.push(m.fork(&child, &one.key, 2));
                let said = one.said[..1].to_vec();
                living.push(Living { key: child, said, open: None });
            }
            (18, Some(_)) => {
                // The log moves into the database while others read and write.
                let mode = *dice.pick(&["PASSIVE", "FULL", "RESTART", "TRUNCATE"]);
                let beside = rusqlite::Connection::open(&path).unwrap();
                beside.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(())).unwrap();
                continue;
            }
            _ => {
                drop(store);
                store = open();
                continue;
            }
        }
        for answer in store.commit(batch) {
            answer.unwrap();
        }
        disk.acknowledge(after.len());
        after.push(contents(&store));
    }
    let synced = disk.syncs_by_descriptor();
    assert!(
        cfg!(not(target_os = "linux")) || synced > 60,
        "{synced} syncs by the way that a user's store takes"
    );
    after
}

/// One file, as the disk has it.
#[derive(Default)]
struct File {
    safe: Vec<u8>,
    later: Vec<Step>,
}

impl File {
    fn apply(bytes: &mut Vec<u8>, step: &Step, mut keeps: impl FnMut() -> bool) {
        match step {
            Step::Wrote { offset, bytes: new, .. } => {
                for (n, sector) in new.chunks(SECTOR_BYTES).enumerate().filter(|_| keeps()) {
                    let start = offset + n * SECTOR_BYTES;
                    bytes.resize(bytes.len().max(start + sector.len()), 0);
                    bytes[start..start + sector.len()].copy_from_slice(sector);
                }
            }
            Step::Cut { size, .. } if keeps() => bytes.resize(*size, 0),
            _ => {}
        }
    }

    /// A possible content after the crash: `luck` is how many in four of the later writes arrived.
    fn after_crash(&self, luck: usize, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.safe.clone();
        // Some disks lose everything after a point, some lose parts here and there.
        let end = if dice.roll(2) == 0 { self.later.len() } else { dice.roll(self.later.len() + 1) };
        for step in &self.later[..end] {
            File::apply(&mut bytes, step, || dice.roll(4) < luck);
        }
        bytes
    }
}

/// Opens a crashed disk and reports what is wrong with it.
fn examine(
    files: &BTreeMap<PathBuf, Vec<u8>>,
    before: &Contents,
    after: Option<&Contents>,
) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name.file_name().unwrap()), bytes).unwrap();
    }
    let path = folder.path().join("store.db");
    let store = Sqlite::open(&path, Duration::ZERO).map_err(|error| format!("does not open: {error:?}"))?;
    let wrong = store.check().map_err(|error| format!("cannot be checked: {error:?}"))?;
    if !wrong.is_empty() {
        return Err(format!("damaged: {wrong:?}"));
    }
    let found = contents(&store);
    if found == *before || after.is_some_and(|after| found == *after) {
        return Ok(());
    }
    Err(format!(
        "holds {} conversations, expected {}, or what the next commit adds",
        found.len(),
        before.len()
    ))
}

/// Crashes at many moments of a trace. With `obeys_sync` false, the disk only claims to sync.
fn crash(seed: u64, trace: &[Step], after: &[Contents], obeys_sync: bool) -> Result<usize, String> {
    let mut dice = Dice::new(seed ^ 0xc4a5);
    let mut files: BTreeMap<PathBuf, File> = BTreeMap::new();
    let mut acknowledged = None;
    let mut images = 0;
    for (moment, step) in trace.iter().enumerate() {
        match step {
            Step::Acknowledged(commit) => acknowledged = Some(*commit),
            Step::Synced { file } if obeys_sync => {
                let file = files.entry(file.clone()).or_default();
                for step in std::mem::take(&mut file.later) {
                    File::apply(&mut file.safe, &step, || true);
                }
            }
            Step::Synced { .. } => {}
            Step::Deleted { file } => drop(files.remove(file)),
            Step::Wrote { file, .. } | Step::Cut { file, .. } => {
                files.entry(file.clone()).or_default().later.push(step.clone());
            }
        }
        // Right after an acknowledgement there is most to lose; in between, some of many thousand moments.
        let Some(commit) = acknowledged else { continue };
        if !matches!(step, Step::Acknowledged(_)) && dice.roll(40) > 0 {
            continue;
        }
        let luck = dice.roll(5);
        let image =
            files.iter().map(|(name, file)| (name.clone(), file.after_crash(luck, &mut dice))).collect();
        images += 1;
        examine(&image, &after[commit], after.get(commit + 1))
            .map_err(|wrong| format!("seed {seed}, step {moment}, after commit {commit}: {wrong}"))?;
    }
    Ok(images)
}

#[test]
fn what_was_acknowledged_survives_a_power_loss_at_any_moment() {
    // One run takes seconds; `./test soak` repeats it.
    let rounds = std::env::var("EVERTURN_TEST_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    for seed in 1..=rounds {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::watch(folder.path());
        let after = run(seed, &folder.path().canonicalize().unwrap(), &disk);
        let trace = disk.trace();
        let moved = trace.iter().filter(|step| match step {
            Step::Wrote { file, .. } => file.ends_with("store.db"),
            _ => false,
        });
        assert!(moved.count() > 100, "seed {seed}: checkpoints belong to the scenario");
        let images = crash(seed, &trace, &after, true).unwrap();
        assert!(images > 150, "seed {seed}: only {images} images");
        // The same disk without its syncs: if this were not noticed, the test above would prove nothing.
        crash(seed, &trace, &after, false).expect_err("a disk that does not sync loses something");
    }
}
