//! Embeds indexed entries in the background: messages before tool results, newest first, a few at a time. An
//! interrupted run continues where it ended, since the index knows which entries lack a vector. A caller about to
//! search can have the lexical matches embedded first.
//!
//! A synchronous embedder makes vectors in the indexer, along with the words. It leaves here only entries that were
//! indexed without it, by a process with another embedder or none.
//!
//! While vectors of a new model are made, queries still use the old model's, if its embedder is configured.

use crate::everturn::Shared;
use crate::load;
use crate::model::{self, Embed, EmbedAtOnce, QuestionVector};
use crate::recall::search::READ_AT_ONCE;
use everturn_core::Error;
use everturn_core::fact::Fact;
use everturn_core::id::{ConversationId, TenantName, TurnId};
use everturn_core::viewer::Viewer;
use everturn_store::{Behind, Unembedded};
use everturn_views::recall::{EntryId, EntryNo, IndexEntry, cut};
use everturn_views::vectors::cosine;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Entries in a background round: few, since requests wait for the processor meanwhile.
const BATCH_ENTRIES: usize = 8;
/// The same where a vector takes microseconds.
const BATCH_ENTRIES_AT_ONCE: usize = 256;
/// Entries in a round while a caller waits. A round that does not end in time is lost, so the first one is small, and
/// the next ones grow as long as they take little of the time that is left: a large one keeps every core busy.
const BATCH_ENTRIES_IN_TIME: RangeInclusive<usize> = 2..=256;
/// A round is short if it takes less than this fraction of the time left.
const SHORT_ROUNDS: u32 = 8;
/// Of a longer text the beginning and the end are embedded, unless the embedder is synchronous: other models read no
/// more.
const EMBEDDED_BYTES_MAX: usize = 8 * 1024;
/// Longest wait for the vector of a query; after that recall is lexical.
const QUESTION_PATIENCE: Duration = Duration::from_secs(3);
/// Longest wait for the reranker.
const RERANK_PATIENCE: Duration = Duration::from_secs(10);
/// Wait after a failure: the first one, and the longest.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Interval between checks whether to stop, while a model is waited for.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Vectors of other models dropped at once.
const DROPPED_AT_ONCE: usize = 2000;

/// State of the embedding thread.
#[derive(Default)]
pub struct Embeddings {
    news: Mutex<bool>,
    changed: Condvar,
    /// Held while embedding, by the thread or by a caller of `embed_now`.
    working: Mutex<()>,
}

impl Embeddings {
    fn news(&self) -> MutexGuard<'_, bool> {
        self.news.lock()
    }

    /// Wakes the thread: an entry lacks a vector, or the store closes.
    pub fn wake(&self) {
        *self.news() = true;
        self.changed.notify_all();
    }
}

/// Name under which vectors are stored: model and dimensions, since a model with other dimensions is another model.
fn kept_as(embedder: &dyn Embed, dimensions: usize) -> String {
    format!("{}/{dimensions}", embedder.model())
}

/// Name of the vectors that are made. None before an embedding server has replied once.
fn model(shared: &Shared) -> Option<String> {
    let embedder = shared.options.embedder.as_ref();
    embedder.map(|embedder| kept_as(&**embedder, embedder.dimensions().unwrap_or(0)))
}

/// The embedder and the name of its vectors, if it is synchronous.
pub fn at_once(shared: &Shared) -> Option<(&dyn EmbedAtOnce, Arc<str>)> {
    let embedder = shared.options.embedder.as_deref()?;
    let model = kept_as(embedder, embedder.dimensions()?);
    embedder.at_once().map(|at_once| (at_once, model.into()))
}

/// Backlog of a tenant's index. Also wakes the indexer: a lost or damaged index is made again even if nothing is
/// appended.
pub fn behind(shared: &Shared, tenant: &TenantName) -> Result<Behind, Error> {
    let behind = shared.recall.store.behind(Some(tenant), model(shared).as_deref())?;
    if behind.events > 0 && shared.options.index {
        shared.recall.indexer.note();
    }
    Ok(behind)
}

/// Backlog of the indexes of all tenants.
pub fn behind_in_all(shared: &Shared) -> Result<Behind, Error> {
    shared.recall.store.behind(None, model(shared).as_deref())
}

/// A query as a model reads it.
pub struct Question {
    /// Name of the vectors that it may be compared with.
    pub model: String,
    /// Its embedding.
    pub vector: QuestionVector,
}

/// Embedding of a query. `None` without an embedder.
pub fn of_question(shared: &Shared, tenant: &TenantName, text: &str) -> Result<Option<Question>, Error> {
    let Some(embedder) = asked(shared, tenant)? else { return Ok(None) };
    if let (Some(at_once), Some(dimensions)) = (embedder.at_once(), embedder.dimensions()) {
        return Ok(Some(Question { model: kept_as(&*embedder, dimensions), vector: at_once.question(text) }));
    }
    let text = cut(text, EMBEDDED_BYTES_MAX);
    match model::wait_for(embedder.embed(vec![text]), Some(QUESTION_PATIENCE)) {
        Some(vectors) => {
            let vector = vectors?.into_iter().next().ok_or_else(miscounted)?;
            let dimensions = embedder.dimensions().unwrap_or(vector.len());
            // The languages and the smallest relevant nearness of other models are unknown.
            let vector = QuestionVector::new(vector);
            Ok(Some(Question { model: kept_as(&*embedder, dimensions), vector }))
        }
        None => Err(slow(&*embedder, QUESTION_PATIENCE)),
    }
}

/// Nearness of texts to a query, according to another model.
pub fn nearness(embedder: &dyn Embed, question: &str, texts: &[String]) -> Result<Vec<f64>, Error> {
    let all = std::iter::once(question).chain(texts.iter().map(String::as_str));
    let all = all.map(|text| cut(text, EMBEDDED_BYTES_MAX)).collect();
    let Some(vectors) = model::wait_for(embedder.embed(all), Some(RERANK_PATIENCE)) else {
        return Err(slow(embedder, RERANK_PATIENCE));
    };
    let mut vectors = vectors?.into_iter();
    let question = vectors.next().filter(|_| vectors.len() == texts.len()).ok_or_else(miscounted)?;
    Ok(vectors.map(|vector| cosine(&question, &vector)).collect())
}

fn slow(embedder: &dyn Embed, patience: Duration) -> Error {
    let text = format!("{} did not answer within {} s", embedder.model(), patience.as_secs());
    Error::busy("embedder.slow", text)
}

/// The embedder; or the previous one, while the tenant has more vectors of that.
fn asked(shared: &Shared, tenant: &TenantName) -> Result<Option<Arc<dyn Embed>>, Error> {
    let Some(embedder) = &shared.options.embedder else { return Ok(None) };
    let kept = kept_as(&**embedder, embedder.dimensions().unwrap_or(0));
    let models = shared.recall.store.vector_models(Some(tenant))?;
    if models.iter().all(|model| *model == kept) {
        return Ok(Some(embedder.clone()));
    }
    let builtin = || model::builtin::open().ok();
    if let Some(former) = shared.options.former_embedder.clone().or_else(builtin) {
        let old = kept_as(&*former, former.dimensions().unwrap_or(0));
        if models.contains(&old) {
            let vectors = |model: &str| -> Result<u64, Error> {
                Ok(shared.recall.store.behind(Some(tenant), Some(model))?.vectors)
            };
            let (old, new) = (vectors(&old)?, vectors(&kept)?);
            if old < new {
                return Ok(Some(former));
            }
        }
    }
    Ok(Some(embedder.clone()))
}

/// Embeds until the store closes.
pub fn run(shared: &Shared) {
    let Some(embedder) = &shared.options.embedder else { return };
    let stopping = || shared.pauses.ended();
    let mut failures = 0_u32;
    let entries = if embedder.at_once().is_some() { BATCH_ENTRIES_AT_ONCE } else { BATCH_ENTRIES };
    while !stopping() {
        *shared.recall.embeddings.news() = false;
        match load::slice(shared, || round(shared, embedder, None, entries, None)) {
            Ok(true) => {
                if std::mem::take(&mut failures) > 0 {
                    tracing::info!(embedder = embedder.model(), "the embedder is available again");
                }
            }
            Ok(false) => {
                let idle = |news: &mut bool| !*news && !stopping();
                shared.recall.embeddings.changed.wait_while(&mut shared.recall.embeddings.news(), idle);
            }
            Err(_) if stopping() => return,
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(
                        code = error.code(),
                        embedder = embedder.model(),
                        "embedding failed; retrying, and recall is lexical meanwhile"
                    );
                }
                let pause = AGAIN_MIN.saturating_mul(1 << failures.min(6)).min(AGAIN_MAX);
                failures += 1;
                // New entries do not shorten it: a server that is down is not asked for every turn.
                let goes_on = |_: &mut bool| !stopping();
                shared.recall.embeddings.changed.wait_while_for(
                    &mut shared.recall.embeddings.news(),
                    goes_on,
                    pause,
                );
            }
        }
    }
}

/// Entries of a tenant to embed first, in this order, before its others.
pub type Wanted<'a> = Option<(&'a TenantName, &'a [EntryNo])>;

/// Embeds waiting entries, on the caller's thread, as far as the time allows.
pub fn catch_up(shared: &Shared, wanted: Wanted<'_>, time: Duration) -> Result<(), Error> {
    let Some(embedder) = &shared.options.embedder else { return Ok(()) };
    let end = Instant::now() + time;
    let (least, most) = BATCH_ENTRIES_IN_TIME.into_inner();
    let mut entries = least;
    loop {
        let began = Instant::now();
        if began >= end || !round(shared, embedder, wanted, entries, Some(end))? {
            return Ok(());
        }
        let short = began.elapsed() * SHORT_ROUNDS < end.saturating_duration_since(Instant::now());
        entries = if short { entries * 2 } else { entries / 2 }.clamp(least, most);
    }
}

/// Embeds a few entries. Returns whether there were any.
fn round(
    shared: &Shared,
    embedder: &Arc<dyn Embed>,
    wanted: Wanted<'_>,
    most: usize,
    end: Option<Instant>,
) -> Result<bool, Error> {
    let Some(_working) = turn(shared, end) else { return Ok(false) };
    let Some(dimensions) = dimensions(shared, embedder, end)? else { return Ok(false) };
    let kept = kept_as(&**embedder, dimensions);
    let waiting = shared.recall.store.unembedded(&kept, wanted, most)?;
    let Some(tenant) = waiting.first().map(|entry| entry.key.tenant.clone()) else {
        if wanted.is_none() {
            metrics::gauge!("everturn_recall_behind_vectors").set(0);
            drop_others(shared, &kept)?;
        }
        return Ok(false);
    };
    let (mut numbers, mut texts, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
    for (entry, text) in waiting.iter().zip(texts_of(shared, &tenant, &waiting)?) {
        match text {
            Some(text) => {
                numbers.push(entry.no);
                texts.push(if embedder.at_once().is_some() { text } else { cut(&text, EMBEDDED_BYTES_MAX) });
            }
            // Erased since it was indexed, and soon out of the index as well.
            None => vectors.push((entry.no, Vec::new())),
        }
    }
    if !texts.is_empty() {
        let Some(made) = embed(shared, embedder, texts, end)? else { return Ok(false) };
        let fits = |vector: &Vec<f32>| vector.is_empty() || vector.len() == dimensions;
        if made.len() != numbers.len() || !made.iter().all(fits) {
            return Err(miscounted());
        }
        vectors.extend(numbers.into_iter().zip(made));
    }
    shared.recall.store.put_vectors(&tenant, &kept, vectors)?;
    if let Ok(behind) = shared.recall.store.behind(None, Some(&kept)) {
        metrics::gauge!("everturn_recall_behind_vectors").set(behind.vectors as f64);
    }
    Ok(true)
}

/// Drops the vectors of other models, once every entry has its vector.
fn drop_others(shared: &Shared, kept: &str) -> Result<(), Error> {
    while shared.recall.store.vector_models(None)?.iter().any(|model| model != kept) {
        let dropped = shared.recall.store.keep_vectors_of(kept, DROPPED_AT_ONCE)?;
        if dropped < DROPPED_AT_ONCE || shared.pauses.ended() {
            break;
        }
    }
    Ok(())
}

/// Waits until no other thread embeds, at most until `end`: the holder may be waiting for a model that hangs.
fn turn(shared: &Shared, end: Option<Instant>) -> Option<MutexGuard<'_, ()>> {
    match end {
        Some(end) => shared.recall.embeddings.working.try_lock_until(end),
        None => Some(shared.recall.embeddings.working.lock()),
    }
}

/// Dimensions of its vectors. A server reveals them with its first one.
fn dimensions(
    shared: &Shared,
    embedder: &Arc<dyn Embed>,
    end: Option<Instant>,
) -> Result<Option<usize>, Error> {
    if let Some(dimensions) = embedder.dimensions() {
        return Ok(Some(dimensions));
    }
    let made = embed(shared, embedder, vec!["How long is a vector?".to_string()], end)?;
    Ok(made.and_then(|vectors| vectors.first().map(Vec::len)))
}

/// Vectors of texts; `None` if the store closes or the time ends first.
fn embed(
    shared: &Shared,
    embedder: &Arc<dyn Embed>,
    texts: Vec<String>,
    end: Option<Instant>,
) -> Result<Option<Vec<Vec<f32>>>, Error> {
    let mut making = embedder.embed(texts);
    while !shared.pauses.ended() && end.is_none_or(|end| Instant::now() < end) {
        if let Some(made) = model::wait_for(&mut making, Some(LOOK_UP)) {
            return made.map(Some);
        }
    }
    Ok(None)
}

fn miscounted() -> Error {
    Error::internal("embedder.count", "the embedder returned other vectors than were asked for")
}

/// Texts of entries to embed, as everyone may see them: private words have no vectors.
fn texts_of(
    shared: &Shared,
    tenant: &TenantName,
    entries: &[Unembedded],
) -> Result<Vec<Option<String>>, Error> {
    let mut texts = Vec::with_capacity(entries.len());
    for some in entries.chunks(READ_AT_ONCE) {
        let turn = |entry: &Unembedded| match entry.id {
            EntryId::Turn(id) => Some((entry.key.id, id)),
            EntryId::Fact(_) => None,
        };
        let turns: Vec<(ConversationId, TurnId)> = some.iter().filter_map(turn).collect();
        let mut read = shared.journal.index.turns_in(tenant, &turns)?.into_iter();
        for entry in some {
            let text = match entry.id {
                EntryId::Turn(_) => match read.next() {
                    Some(Ok(turn)) => {
                        let public = Viewer::everyone().turn(turn);
                        let entry = IndexEntry::of_turn(tenant, &public, None);
                        entry.map(|entry| entry.embedded_text().to_string())
                    }
                    Some(Err(Error::NotFound(_))) | None => None,
                    Some(Err(error @ Error::Corrupt(_))) => {
                        tracing::warn!(%error, "not embedded");
                        None
                    }
                    Some(Err(error)) => return Err(error),
                },
                EntryId::Fact(id) => match shared.journal.index.conversation(&entry.key) {
                    Ok(conversation) => {
                        let facts =
                            shared.facts_at(&entry.key, conversation.head.seq, &Viewer::everyone())?;
                        facts.iter().find(|fact| fact.id == id).map(Fact::text)
                    }
                    Err(Error::NotFound(_)) => None,
                    Err(error) => return Err(error),
                },
            };
            texts.push(text.filter(|text| !text.trim().is_empty()));
        }
    }
    Ok(texts)
}
