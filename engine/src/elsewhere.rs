//! Other processes that write to the same store: their events reach the readers of this one, and turns that they left
//! open when they died are ended, and their background work is taken over.

use crate::background::{publish_open_turns, recover};
use crate::everturn::Shared;
use crate::streaming::hub::Update;
use everturn_core::Error;
use everturn_core::id::{Key, TenantName};
use everturn_core::write::EventAddress;
use everturn_store::{ChangeFeed, RemoteChanges};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time between two looks: repairs lost notifications.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most events published at once. A reader that misses more reads the log.
const PUBLISHED_MAX: u64 = 256;

/// Follows the others until the store closes.
pub fn run(shared: &Shared) {
    let Some(elsewhere) = &shared.elsewhere else { return };
    let (mut failed, mut unread, mut recovered) = (false, RemoteChanges::default(), None::<Instant>);
    while !shared.pauses.ended() {
        elsewhere.wait(LOOK_EVERY);
        // News come once: those that could not be taken in are kept for the next time.
        let looked = elsewhere.news().and_then(|news| {
            unread.add(news);
            take_in(shared, &**elsewhere, &unread)
        });
        if looked.is_ok() {
            unread = RemoteChanges::default();
        }
        // What processes that died have left is not news.
        let looked = looked.and_then(|()| {
            if recovered.is_none_or(|last| last.elapsed() >= LOOK_EVERY) {
                recover(shared)?;
                shared.compaction.take_over(&**elsewhere, shared.now())?;
                recovered = Some(Instant::now());
            }
            Ok(())
        });
        match looked {
            Ok(()) if std::mem::take(&mut failed) => {
                tracing::info!("changes by other processes are read again")
            }
            Ok(()) => {}
            Err(error) if failed => {
                tracing::debug!(%error, "changes by other processes still cannot be read")
            }
            Err(error) => {
                tracing::warn!(%error, "changes by other processes cannot be read; retrying");
                failed = true;
            }
        }
    }
}

/// May be repeated after a failure.
fn take_in(shared: &Shared, elsewhere: &dyn ChangeFeed, news: &RemoteChanges) -> Result<(), Error> {
    if news.keys {
        shared.keys.changed_elsewhere();
    }
    if !news.erased.is_empty() || news.changed.iter().any(|change| change.deleted) {
        let mut erased: BTreeMap<TenantName, Vec<EventAddress>> = BTreeMap::new();
        for (tenant, place) in &news.erased {
            erased.entry(tenant.clone()).or_default().push(*place);
        }
        erased.iter().for_each(|(tenant, places)| shared.hub.erase(tenant, places));
        shared.journal.forget_derived();
    }
    let followed: HashMap<Key, u64> = shared.hub.followed().into_iter().collect();
    for change in &news.changed {
        shared.journal.changed_elsewhere(change);
        let Some(head) = followed.get(&change.key) else { continue };
        if change.deleted {
            shared.hub.publish(&change.key, std::iter::once(Update::Deleted));
        } else if change.head_seq > *head {
            let after = (*head).max(change.head_seq.saturating_sub(PUBLISHED_MAX));
            let events = match shared.journal.log.events(&change.key, after, PUBLISHED_MAX as usize) {
                // Deleted since: the next news says so.
                Err(Error::NotFound(_)) => continue,
                events => events?,
            };
            shared.hub.publish(&change.key, events.into_iter().map(|event| Update::Event(Arc::new(event))));
        }
    }
    let mut open = if followed.is_empty() { Vec::new() } else { elsewhere.open_turns_elsewhere()? };
    open.retain(|(key, _)| followed.contains_key(key));
    // With the heads after what was just published.
    publish_open_turns(shared, &shared.hub.followed().into_iter().collect(), open)
}
