//! Folds of conversations' events, cached and extended by newer events only.

use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::Event;
use everturn_core::id::{Key, TurnId};
use everturn_core::json::Raw;
use everturn_views::state::{self, Fold};
use everturn_views::tokens::TokenizerFamily;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// Events read at a time.
const PAGE: u64 = 512;
/// Interval in events at which a fold is stored, so that knowing a state never takes reading more events than this.
const KEEP_EVERY: u64 = 1024;
/// Most folds in memory.
const REMEMBERED_MAX: usize = 1024;
/// Most token counts in memory.
const COUNTED_MAX: usize = 200_000;

/// A fold as stored, with a hash that detects damage and a wrong `seq`.
#[derive(Serialize, Deserialize)]
struct KeptFold {
    hash: Hash,
    fold: Raw,
}

/// `sha256(hash of the last event ‖ fold)`.
fn fold_hash(last: &Event, fold: &Raw) -> Hash {
    Hash::of(&[&last.hash.0, fold.get().as_bytes()].concat())
}

/// Cached folds and token counts.
pub struct Folds {
    /// Each as of its last use.
    folds: Cache<Key, Arc<Fold>>,
    /// Token counts, by turn and tokenizer.
    counts: Cache<(TurnId, TokenizerFamily), u64>,
}

impl Default for Folds {
    fn default() -> Folds {
        Folds { folds: Cache::new(REMEMBERED_MAX), counts: Cache::new(COUNTED_MAX) }
    }
}

impl Observer for Folds {
    fn committed(&self, commit: &Observed<'_>) {
        if !commit.committed.erased.is_empty() {
            // Titles, checkpoints and calls may have changed, also in any fork that inherits the event.
            self.folds.clear();
        } else if commit.deleted {
            self.folds.remove(commit.key);
        }
    }

    fn forget_all(&self) {
        self.folds.clear();
    }
}

impl Shared {
    /// Fold of a conversation's events up to a `seq`. Reads only events newer than the known fold.
    pub fn fold(&self, key: &Key, through_seq: u64) -> Result<Arc<Fold>, Error> {
        let known = self.folds.folds.get(key).filter(|fold| fold.through_seq <= through_seq);
        if let Some(fold) = known.as_ref().filter(|fold| fold.through_seq == through_seq) {
            return Ok(fold.clone());
        }
        let kept = || self.kept_fold(key, through_seq).map(|fold| fold.unwrap_or_else(Fold::new));
        let mut fold = match &known {
            Some(fold) if through_seq - fold.through_seq <= KEEP_EVERY => Fold::clone(fold),
            Some(fold) => {
                Some(kept()?).filter(|k| k.through_seq > fold.through_seq).unwrap_or((**fold).clone())
            }
            None => kept()?,
        };
        while fold.through_seq < through_seq {
            let limit = PAGE.min(through_seq - fold.through_seq);
            let page = self.journal.log.events(key, fold.through_seq, limit as usize)?;
            if page.is_empty() {
                break;
            }
            let before = fold.through_seq;
            page.iter().for_each(|event| fold.apply(event));
            if before / KEEP_EVERY < fold.through_seq / KEEP_EVERY
                && !self.options.read_only
                && let Some(last) = page.last()
            {
                let fold = Raw::of(&fold)?;
                let kept = KeptFold { hash: fold_hash(last, &fold), fold };
                self.journal.index.keep_fold(key, last.seq, &Raw::of(&kept)?)?;
            }
        }
        let fold = Arc::new(fold);
        // An older fold, requested for an earlier `seq`, must not replace the newest.
        if self.folds.folds.get(key).is_none_or(|newest| newest.through_seq < fold.through_seq) {
            self.folds.folds.insert(key.clone(), fold.clone());
        }
        Ok(fold)
    }

    /// Newest stored fold at or before a `seq`. A damaged one is ignored and computed again.
    fn kept_fold(&self, key: &Key, at_or_before: u64) -> Result<Option<Fold>, Error> {
        let Some((seq, raw)) = self.journal.index.fold(key, at_or_before)? else { return Ok(None) };
        let Some(kept) = self.sound_fold(key, seq, &raw)? else { return Ok(None) };
        let fold = kept.read::<Fold>().filter(|fold| fold.version == state::VERSION);
        Ok(fold.filter(|fold| fold.through_seq == seq))
    }

    /// The fold stored for a `seq`, if it is undamaged.
    fn sound_fold(&self, key: &Key, seq: u64, raw: &Raw) -> Result<Option<Raw>, Error> {
        let Some(kept) = raw.read::<KeptFold>() else { return Ok(None) };
        let last = self.journal.log.events(key, seq.saturating_sub(1), 1)?.pop();
        Ok(last.filter(|last| fold_hash(last, &kept.fold) == kept.hash).map(|_| kept.fold))
    }

    /// `seq` of damaged folds after `floor`.
    pub fn damaged_folds(&self, key: &Key, floor: u64) -> Result<Vec<u64>, Error> {
        let (mut damaged, mut at) = (Vec::new(), u64::MAX);
        while let Some((seq, raw)) = self.journal.index.fold(key, at)?.filter(|(seq, _)| *seq > floor) {
            if self.sound_fold(key, seq, &raw)?.is_none() {
                damaged.push(seq);
            }
            at = seq - 1;
        }
        Ok(damaged)
    }

    /// Token count of a turn, computed once.
    pub fn count(&self, family: TokenizerFamily, turn: TurnId, message: &Value) -> u64 {
        if let Some(count) = self.folds.counts.get(&(turn, family)) {
            return count;
        }
        let count = family.message(message);
        self.folds.counts.insert((turn, family), count);
        count
    }
}
