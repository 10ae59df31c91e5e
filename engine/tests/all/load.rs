//! Under load: background work gives way to requests and is done all the same, and what runs at once is bounded.

use crate::stage::{PATIENCE, Short, memory};
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::ASSET_INLINE_BYTES_MAX;
use everturn_engine::model::Embed;
use everturn_engine::{
    Append, Error, Everturn, HistoryQuery, NewTurn, Options, RecallMode, RecallOptions, Tenant,
};
use futures_util::future::BoxFuture;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Requests without end while something is done.
fn under_requests<T>(store: &Everturn, body: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                store.note_request();
                std::thread::yield_now();
            }
        });
        // Also if it panics, or nobody would tell the thread.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        ended.store(true, Ordering::SeqCst);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn wait(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what} was waited for in vain");
        std::thread::yield_now();
    }
}

/// Vectors of nothing in particular. Counts how many questions it is asked at once.
#[derive(Default)]
struct Counting {
    running: AtomicUsize,
    most: AtomicUsize,
}

struct Counter(Arc<Counting>);

impl Embed for Counter {
    fn model(&self) -> &str {
        "counting"
    }

    fn dimensions(&self) -> Option<usize> {
        Some(2)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>> {
        let this = self.0.clone();
        Box::pin(async move {
            let running = this.running.fetch_add(1, Ordering::SeqCst) + 1;
            this.most.fetch_max(running, Ordering::SeqCst);
            std::thread::yield_now();
            this.running.fetch_sub(1, Ordering::SeqCst);
            Ok(texts.iter().map(|_| vec![1.0, 0.0]).collect())
        })
    }
}

/// Without a bound on how long it gives way, the background stands still for as long as requests come.
#[test]
fn words_vectors_and_checkpoints_follow_while_requests_never_end() {
    let embedder: Arc<dyn Embed> = Arc::new(Counter(Arc::default()));
    let store =
        Everturn::open_with("memory:", Options { embedder: Some(embedder), ..Options::default() }).unwrap();
    let scope = store.tenant("default").unwrap();
    under_requests(&store, || {
        let mut settings = Settings::default();
        let policy = json!({"max_turns": 20, "keep_last": 5});
        settings.policy.insert("compaction".into(), Raw::of(&policy).unwrap());
        let id = scope.begin_with(settings).id;
        for number in 0..40 {
            scope.say(id, NewTurn::user(&format!("lighthouse number {number}")));
        }
        let lexical = RecallOptions { mode: RecallMode::Lexical, ..RecallOptions::default() };
        wait("a word", || !scope.recall("lighthouse", &lexical).unwrap().data.is_empty());
        wait("a vector", || store.behind().unwrap().vectors == 0);
        wait("a checkpoint", || scope.conversation(id).get().unwrap().checkpoint.is_some());
    });
}

#[test]
fn recalls_that_run_at_once_are_bounded_and_all_are_answered() {
    let counting = Arc::new(Counting::default());
    let embedder: Arc<dyn Embed> = Arc::new(Counter(counting.clone()));
    let options = Options { embedder: Some(embedder), index: false, ..Options::default() };
    let store = Everturn::open_with("memory:", options).unwrap();
    let scope = store.tenant("default").unwrap();
    let callers = 32;
    let together = Barrier::new(callers);
    std::thread::scope(|threads| {
        for _ in 0..callers {
            threads.spawn(|| {
                together.wait();
                for _ in 0..20 {
                    scope.recall("anything", &RecallOptions::default()).unwrap();
                }
            });
        }
    });
    let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let most = counting.most.load(Ordering::SeqCst);
    assert!(most <= cores, "{most} recalls ran at once, on {cores} cores");
}

fn given_back(scope: &Tenant, id: ConversationId, text: &str) -> Option<Box<Append>> {
    match scope.conversation(id).append(NewTurn::user(text)).try_submit() {
        Ok(commit) => {
            commit.wait().unwrap();
            None
        }
        Err(append) => Some(append),
    }
}

/// An append that would block the thread of an async caller is handed back to it, whole.
#[test]
fn an_append_that_may_block_comes_back_and_others_are_appended() {
    let (_store, scope) = memory();
    let id = scope.begin();
    assert!(given_back(&scope, id, "short").is_none());
    assert!(given_back(&scope, id, &"x".repeat(ASSET_INLINE_BYTES_MAX)).is_some(), "it may hold a payload");
    let unknown = ConversationId(ulid::Ulid::from_parts(1, 1));
    assert!(given_back(&scope, unknown, "it would have to be looked for").is_some());
    let policy = Raw::of(&json!({"max_messages": 3, "recovery": {"compact": {"keep_last": 1}}})).unwrap();
    let mut settings = Settings::default();
    settings.policy.insert("budget".into(), policy);
    scope.conversation(id).update(settings).wait().unwrap();
    assert!(given_back(&scope, id, "two").is_none());
    assert!(given_back(&scope, id, "three").is_none());
    let append = given_back(&scope, id, "room must be made first").unwrap();
    assert_eq!(scope.conversation(id).history(HistoryQuery::default()).unwrap().data.len(), 3);
    assert_eq!(append.wait().unwrap().turns.len(), 1, "nothing is lost on the way");
}
