//! Indexes commits for recall, in the background: no append waits for it.
//!
//! Each index records its own position, so a crash or a lost file costs only the time to index again.

use super::embedding;
use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::load;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::event::{Event, kind};
use everturn_core::id::{Key, TenantName};
use everturn_core::turn::Turn;
use everturn_core::write::ErasedBody;
use everturn_store::{ChangedConversation, IndexChange, Span};
use everturn_views::recall::{Embedded, EntryId, IndexEntry};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Time for which commits are gathered: a transaction for each would cost more than the indexing itself.
const GATHER: Duration = Duration::from_millis(100);
/// Wait after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Most times that the same events may come again, as happens while another process indexes them.
const REPEATS_MAX: u32 = 3;
/// Events in one transaction.
const BATCH_EVENTS: usize = 512;
/// The same while requests keep coming, so that it pauses often.
const BATCH_EVENTS_BUSY: usize = 128;
/// Most events that an erasure or a close waits for to be indexed first, and the longest time: other processes may add to
/// them without end.
const WAITED_EVENTS_MAX: u64 = 2000;
const WAITED_TIME_MAX: Duration = Duration::from_secs(3);
/// Largest index file that an erasure scrubs before it returns; a larger one is scrubbed later.
const SCRUB_AT_ONCE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Pause between two scrubs: this many times as long as the last one took, and a minimum.
const SCRUB_PAUSES: u32 = 20;
const SCRUB_PAUSE_MIN: Duration = Duration::from_secs(1);

/// State of the indexer.
#[derive(Default)]
pub struct Indexer {
    news: Mutex<News>,
    changed: Condvar,
    /// Held while indexing, by the thread or by a caller of `index_now`.
    working: Mutex<()>,
}

#[derive(Default)]
struct News {
    events: bool,
    removals: bool,
}

impl Observer for Indexer {
    fn committed(&self, commit: &Observed<'_>) {
        if commit.deleted {
            self.note_removal();
        } else {
            self.note();
        }
    }

    fn changed_elsewhere(&self, change: &ChangedConversation) {
        if change.deleted {
            self.note_removal();
        } else {
            self.note();
        }
    }
}

impl Indexer {
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock()
    }

    /// Notes a commit.
    pub fn note(&self) {
        if !std::mem::replace(&mut self.news().events, true) {
            self.changed.notify_one();
        }
    }

    /// Notes that text must be removed from the files.
    pub fn note_removal(&self) {
        let mut news = self.news();
        (news.events, news.removals) = (true, true);
        self.changed.notify_one();
    }

    pub fn wake(&self) {
        // Under the lock, so that a thread about to wait does not miss it.
        let _news = self.news();
        self.changed.notify_all();
    }
}

/// Indexes until the store closes.
pub fn run(shared: &Shared) {
    let stopping = || shared.pauses.ended();
    // An earlier process may have left work undone.
    shared.recall.indexer.note_removal();
    let mut next_scrub = Instant::now();
    while !stopping() {
        let mut news = shared.recall.indexer.news();
        while !stopping() && !news.events {
            let left = next_scrub.saturating_duration_since(Instant::now());
            if !news.removals {
                shared.recall.indexer.changed.wait(&mut news);
            } else if !left.is_zero() {
                shared.recall.indexer.changed.wait_for(&mut news, left);
            } else {
                break;
            }
        }
        let (events, removals) = (std::mem::take(&mut news.events), news.removals);
        drop(news);
        if events {
            shared.pauses.sleep(GATHER);
            if let Err(error) = catch_up_in_slices(shared) {
                tracing::warn!(%error, "indexing failed; retrying");
                shared.pauses.sleep(AGAIN);
                shared.recall.indexer.note();
            }
        }
        if removals && Instant::now() >= next_scrub && !stopping() {
            let began = Instant::now();
            // Removals from here on are noted again.
            shared.recall.indexer.news().removals = false;
            let is_clean = shared.recall.store.scrub(None, None).unwrap_or_else(|error| {
                tracing::debug!(%error, "removed text stays in the index file for now");
                false
            });
            shared.recall.indexer.news().removals |= !is_clean;
            next_scrub = Instant::now() + SCRUB_PAUSE_MIN + began.elapsed() * SCRUB_PAUSES;
        }
    }
    close(shared);
}

/// The last round: indexes the rest if it is little, and removes erased text from the files.
fn close(shared: &Shared) {
    let closed = (|| -> Result<(), Error> {
        catch_up_if_quick(shared)?;
        if shared.recall.indexer.news().removals {
            shared.recall.store.scrub(None, None).map(drop)
        } else {
            Ok(())
        }
    })();
    if let Err(error) = closed {
        tracing::debug!(%error, "the index is completed when the store is opened again");
    }
}

/// Indexes all commits; stops early when the store closes.
pub fn catch_up(shared: &Shared) -> Result<(), Error> {
    let mut progress = Progress::default();
    while !shared.pauses.ended() {
        if !progress.goes_on(take_in(shared, BATCH_EVENTS)?)? {
            break;
        }
    }
    Ok(())
}

/// Detects an index that cannot be written: it keeps asking for the same events.
#[derive(Default)]
struct Progress {
    last: Option<Span>,
    repeats: u32,
}

impl Progress {
    /// Whether there was anything to index.
    fn goes_on(&mut self, span: Option<Span>) -> Result<bool, Error> {
        let Some(span) = span else { return Ok(false) };
        self.repeats = if self.last.as_ref() == Some(&span) { self.repeats + 1 } else { 0 };
        self.last = Some(span);
        if self.repeats > REPEATS_MAX {
            let text = "a recall index cannot be written; it is retried later";
            return Err(Error::busy("recall.stuck", text));
        }
        Ok(true)
    }
}

/// The same, for the background.
fn catch_up_in_slices(shared: &Shared) -> Result<(), Error> {
    let mut progress = Progress::default();
    while !shared.pauses.ended() {
        let events = if shared.load.is_busy() { BATCH_EVENTS_BUSY } else { BATCH_EVENTS };
        if !progress.goes_on(load::slice(shared, || take_in(shared, events))?)? {
            break;
        }
    }
    Ok(())
}

/// Indexes the rest if it is little. Returns whether everything is indexed.
fn catch_up_if_quick(shared: &Shared) -> Result<bool, Error> {
    let until = Instant::now() + WAITED_TIME_MAX;
    if shared.recall.store.behind(None, None)?.events > WAITED_EVENTS_MAX {
        return Ok(false);
    }
    let mut progress = Progress::default();
    while progress.goes_on(take_in(shared, BATCH_EVENTS_BUSY)?)? {
        if Instant::now() >= until {
            return Ok(false);
        }
    }
    Ok(true)
}

/// After an erasure or a deletion: removes the text from the tenant's files before the caller gets the result, if
/// that is quick. An error means that it stays there until somebody intervenes.
pub fn forget_erased(shared: &Shared, tenant: &TenantName) -> Result<(), Error> {
    let forgotten = (|| -> Result<bool, Error> {
        if !shared.options.index {
            // The thread that is indexing removes it.
            return Ok(true);
        }
        Ok(catch_up_if_quick(shared)?
            && shared.recall.store.scrub(Some(tenant), Some(SCRUB_AT_ONCE_BYTES_MAX))?)
    })();
    match forgotten {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) if error.is(code::RECALL_READ_ONLY) => {
            shared.recall.indexer.note_removal();
            let text = "erased, but its text stays in the index, which cannot be written; make the folder that ends in `-index` and its \
                        files writable, then run `everturn recall --index`";
            return Err(Error::busy("recall.scrub", text));
        }
        Err(error) => tracing::debug!(%error, "erased text stays in the index file for now"),
    }
    shared.recall.indexer.note_removal();
    Ok(())
}

/// Indexes one batch. Returns its span, if there was anything.
fn take_in(shared: &Shared, events: usize) -> Result<Option<Span>, Error> {
    let _working = shared.recall.indexer.working.lock();
    let unindexed = shared.recall.store.unindexed(events)?;
    if unindexed.span.through == unindexed.span.after {
        metrics::gauge!("everturn_recall_behind_events").set(0);
        return Ok(None);
    }
    let mut changes = Vec::with_capacity(unindexed.events.len());
    for (tenant, event) in &unindexed.events {
        changes_of(shared, tenant, event, &mut changes)?;
    }
    embed(shared, &mut changes);
    if changes
        .iter()
        .any(|change| matches!(change, IndexChange::Remove { .. } | IndexChange::RemoveAt { .. }))
    {
        shared.recall.indexer.news().removals = true;
    }
    let span = unindexed.span.clone();
    shared.recall.store.index(changes, unindexed.span)?;
    shared.recall.embeddings.wake();
    if let Ok(behind) = shared.recall.store.behind(None, None) {
        metrics::gauge!("everturn_recall_behind_events").set(behind.events as f64);
    }
    Ok(Some(span))
}

/// Adds vectors to new entries, if the embedder is synchronous.
fn embed(shared: &Shared, changes: &mut [IndexChange]) {
    let Some((embedder, model)) = embedding::at_once(shared) else { return };
    for change in changes {
        if let IndexChange::Put(entry) = change
            && entry.audience.is_none()
        {
            let numbers = embedder.vector(entry.embedded_text());
            entry.vector = Some(Embedded { model: model.clone(), numbers });
        }
    }
}

/// Changes that an event makes to the index. Text that was only recalled into a prompt is in no turn, and so never
/// here.
fn changes_of(
    shared: &Shared,
    tenant: &TenantName,
    event: &Event,
    changes: &mut Vec<IndexChange>,
) -> Result<(), Error> {
    let key = Key { tenant: tenant.clone(), id: event.conversation };
    let before = changes.len();
    match changes_read_in(shared, &key, event, changes) {
        // Deleted since; a fork may still read it.
        Err(Error::NotFound(_)) => {
            let Some(id) = shared.recall.store.reader(&key, event.seq)? else { return Ok(()) };
            changes.truncate(before);
            match changes_read_in(shared, &Key { id, ..key }, event, changes) {
                Err(Error::NotFound(_)) => Ok(()),
                read => read,
            }
        }
        read => read,
    }
}

/// The same, read in its conversation or in a fork of it.
fn changes_read_in(
    shared: &Shared,
    place: &Key,
    event: &Event,
    changes: &mut Vec<IndexChange>,
) -> Result<(), Error> {
    let tenant = &place.tenant;
    let key = Key { tenant: tenant.clone(), id: event.conversation };
    match event.kind.as_str() {
        kind::MESSAGE | kind::TOOL_RESULT => {
            let entries = Turn::begun(event).map(|turn| IndexEntry::all_of_turn(tenant, &turn, None));
            let entries = entries.into_iter().flatten();
            changes.extend(entries.map(|entry| IndexChange::Put(Box::new(entry))));
        }
        kind if kind::ends_turn(kind) => {
            let Some(id) = event.turn else { return Ok(()) };
            let turn = match shared.journal.index.turn_in(place, id) {
                // A damaged turn cannot be indexed, and must not keep the rest from being indexed.
                Err(error @ Error::Corrupt(_)) => {
                    tracing::warn!(%error, "not indexed");
                    return Ok(());
                }
                turn => Turn { conversation: key.id, ..turn? },
            };
            let fallen = (kind == kind::ABORTED).then_some(event.seq);
            let entries = IndexEntry::all_of_turn(tenant, &turn, fallen).into_iter();
            changes.extend(entries.map(|entry| IndexChange::Put(Box::new(entry))));
        }
        kind::SUPERSEDED => {
            let key = key.clone();
            let fell = event.turn.map(|id| IndexChange::Fell { key, id: EntryId::Turn(id), seq: event.seq });
            changes.extend(fell);
        }
        kind::ERASED => {
            let (turns, events) =
                event.read::<ErasedBody>().map(|body| (body.turns, body.events)).unwrap_or_default();
            let remove = |id| IndexChange::Remove { key: key.clone(), id: EntryId::Turn(id) };
            changes.extend(turns.into_iter().map(remove));
            // Copies of a turn in branches are among the other events.
            changes.extend(events.into_iter().map(|at| IndexChange::RemoveAt { tenant: tenant.clone(), at }));
        }
        _ => {}
    }
    changes.extend(shared.fact_changes(place, event)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_events_again_and_again_are_an_error() {
        let span = |after| Some(Span { tenant: None, after, through: after + 1 });
        let mut progress = Progress::default();
        assert!((0..100).all(|after| progress.goes_on(span(after)).unwrap()));
        assert!(!progress.goes_on(None).unwrap());
        let stuck = (0..100).find_map(|_| progress.goes_on(span(7)).err()).unwrap();
        assert_eq!(stuck.code(), "recall.stuck");
    }
}
