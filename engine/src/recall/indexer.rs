//! Takes what is committed into the indexes of the tenants, after the fact: nobody who appends waits for it.
//!
//! What is taken in is asked of the indexes themselves, so that a crash or a lost file costs time and nothing else.

use super::embedding;
use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::load;
use everturn_core::Error;
use everturn_core::event::{Event, kind};
use everturn_core::id::{Key, TenantName};
use everturn_core::turn::Turn;
use everturn_core::write::ErasedBody;
use everturn_store::{IndexChange, Span};
use everturn_views::recall::{Embedded, Entry, EntryId};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long commits are gathered: a transaction for each would cost more than the words.
const GATHER: Duration = Duration::from_millis(100);
/// How long to wait after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// The same events come so often again where another process takes them in meanwhile, not more often.
const REPEATS_MAX: u32 = 3;
/// Events in one transaction.
const BATCH_EVENTS: usize = 512;
/// The same while requests keep coming, so that it gives way often.
const BATCH_EVENTS_BUSY: usize = 128;
/// Whoever erases or closes does not wait for more events than this to be taken in first.
const WAITED_EVENTS_MAX: u64 = 2000;
/// Whoever erases waits until the words are out of the file, if it is no larger than this; else that follows.
const SCRUB_AT_ONCE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Between two scrubs pass at least so many times as long as the last one took, and a moment.
const SCRUB_PAUSES: u32 = 20;
const SCRUB_PAUSE_MIN: Duration = Duration::from_secs(1);

/// What the indexer is told.
#[derive(Default)]
pub struct Indexer {
    news: Mutex<News>,
    changed: Condvar,
    /// Held by whoever takes something in: the thread, or a caller who wants it done now.
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
}

impl Indexer {
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock()
    }

    /// Something was committed.
    pub fn note(&self) {
        if !std::mem::replace(&mut self.news().events, true) {
            self.changed.notify_one();
        }
    }

    /// Words are to be taken out of the files.
    pub fn note_removal(&self) {
        let mut news = self.news();
        (news.events, news.removals) = (true, true);
        self.changed.notify_one();
    }

    pub fn wake(&self) {
        // Under the lock, so that it is not missed by who looks in this very moment.
        let _news = self.news();
        self.changed.notify_all();
    }
}

/// Takes in until the store closes.
pub fn run(shared: &Shared) {
    let stopping = || shared.pauses.are_over();
    // What an earlier process left undone.
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
                tracing::warn!(%error, "not indexed; it is tried again");
                shared.pauses.sleep(AGAIN);
                shared.recall.indexer.note();
            }
        }
        if removals && Instant::now() >= next_scrub && !stopping() {
            let began = Instant::now();
            match shared.recall.store.scrub(None, None) {
                Ok(_) => shared.recall.indexer.news().removals = false,
                Err(error) => tracing::debug!(%error, "removed words stay in the index file for now"),
            }
            next_scrub = Instant::now() + SCRUB_PAUSE_MIN + began.elapsed() * SCRUB_PAUSES;
        }
    }
    close(shared);
}

/// The last look: what is left is taken in if it is little, and what was removed goes out of the files.
fn close(shared: &Shared) {
    let closed = (|| -> Result<(), Error> {
        let behind = shared.recall.store.behind(None, None)?.events;
        if behind > 0 && behind <= WAITED_EVENTS_MAX {
            catch_up_to_the_end(shared)?;
        }
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

/// Takes in everything that is committed; stops early when the store closes.
pub fn catch_up(shared: &Shared) -> Result<(), Error> {
    let mut progress = Progress::default();
    while !shared.pauses.are_over() {
        if !progress.goes_on(take_in(shared, BATCH_EVENTS)?)? {
            break;
        }
    }
    Ok(())
}

/// Tells an index that cannot be written from one that follows: it is asked for the same again and again.
#[derive(Default)]
struct Progress {
    last: Option<Span>,
    repeats: u32,
}

impl Progress {
    /// Whether there was anything.
    fn goes_on(&mut self, span: Option<Span>) -> Result<bool, Error> {
        let Some(span) = span else { return Ok(false) };
        self.repeats = if self.last.as_ref() == Some(&span) { self.repeats + 1 } else { 0 };
        self.last = Some(span);
        if self.repeats > REPEATS_MAX {
            let text = "an index of recall cannot be written; it is tried again later";
            return Err(Error::busy("recall.stuck", text));
        }
        Ok(true)
    }
}

/// The same, for the background.
fn catch_up_in_slices(shared: &Shared) -> Result<(), Error> {
    let mut progress = Progress::default();
    while !shared.pauses.are_over() {
        let events = if shared.load.is_busy() { BATCH_EVENTS_BUSY } else { BATCH_EVENTS };
        if !progress.goes_on(load::slice(shared, || take_in(shared, events))?)? {
            break;
        }
    }
    Ok(())
}

fn catch_up_to_the_end(shared: &Shared) -> Result<(), Error> {
    let mut progress = Progress::default();
    while progress.goes_on(take_in(shared, BATCH_EVENTS)?)? {}
    Ok(())
}

/// After an erasure or a deletion: takes the words out of the tenant's files before the caller hears of it, if that is quick. An
/// error says that they stay there until somebody does something.
pub fn forget_erased(shared: &Shared, tenant: &TenantName) -> Result<(), Error> {
    let forgotten = (|| -> Result<bool, Error> {
        if !shared.options.index {
            // Whoever indexes takes them out.
            return Ok(true);
        }
        if shared.recall.store.behind(None, None)?.events > WAITED_EVENTS_MAX {
            return Ok(false);
        }
        catch_up_to_the_end(shared)?;
        shared.recall.store.scrub(Some(tenant), Some(SCRUB_AT_ONCE_BYTES_MAX))
    })();
    match forgotten {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) if error.code() == "recall.read_only" => {
            shared.recall.indexer.note_removal();
            let text = "erased, but its words stay in the index, which cannot be written; make the folder that ends in `-index` and its \
                        files writable, then run `everturn recall --index`";
            return Err(Error::busy("recall.scrub", text));
        }
        Err(error) => tracing::debug!(%error, "erased words stay in the index file for now"),
    }
    shared.recall.indexer.note_removal();
    Ok(())
}

/// Takes in one batch. Gives what it was, if there was anything.
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
    if changes.iter().any(|change| matches!(change, IndexChange::Remove { .. })) {
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

/// Gives new entries their vectors, where that takes no longer than their words.
fn embed(shared: &Shared, changes: &mut [IndexChange]) {
    let Some((embedder, model)) = embedding::at_once(shared) else { return };
    for change in changes {
        if let IndexChange::Put(entry) = change {
            let numbers = embedder.vector(&entry.text);
            entry.vector = Some(Embedded { model: model.clone(), numbers });
        }
    }
}

/// What an event does to what can be found. What was only recalled into a prompt is in no turn, and so never here.
fn changes_of(
    shared: &Shared,
    tenant: &TenantName,
    event: &Event,
    changes: &mut Vec<IndexChange>,
) -> Result<(), Error> {
    let key = Key { tenant: tenant.clone(), id: event.conversation };
    match event.kind.as_str() {
        kind::MESSAGE | kind::TOOL_RESULT => {
            let entry = Turn::begun(event).and_then(|turn| Entry::of_turn(tenant, &turn, None));
            changes.extend(entry.map(|entry| IndexChange::Put(Box::new(entry))));
        }
        kind if kind::ends_turn(kind) => {
            let Some(id) = event.turn else { return Ok(()) };
            let turn = match shared.journal.index.turn_in(&key, id) {
                Err(Error::NotFound(_)) => return Ok(()),
                // What is damaged cannot be found, and must not keep the rest from being found.
                Err(error @ Error::Corrupt(_)) => {
                    tracing::warn!(%error, "not indexed");
                    return Ok(());
                }
                turn => turn?,
            };
            let fallen = (kind == kind::ABORTED).then_some(event.seq);
            let entry = Entry::of_turn(tenant, &turn, fallen);
            changes.extend(entry.map(|entry| IndexChange::Put(Box::new(entry))));
        }
        kind::SUPERSEDED => {
            let key = key.clone();
            let fell = event.turn.map(|id| IndexChange::Fell { key, id: EntryId::Turn(id), seq: event.seq });
            changes.extend(fell);
        }
        kind::ERASED => {
            let erased = event.read::<ErasedBody>().map(|body| body.turns).unwrap_or_default();
            let remove = |id| IndexChange::Remove { key: key.clone(), id: EntryId::Turn(id) };
            changes.extend(erased.into_iter().map(remove));
        }
        _ => {}
    }
    changes.extend(shared.fact_changes(&key, event)?);
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
