//! Recall by embedding: the nearest come first, and never erased content or another tenant's.

use super::*;
use crate::{Behind, IndexChange, Unembedded};
use everturn_core::event::kind;
use everturn_core::id::{FactId, Key};
use everturn_core::turn::Role;
use everturn_views::recall::{Embedded, EntryId, EntryNo, Filter, IndexEntry};

pub(super) const MODEL: &str = "compass/8";

/// An embedding model with eight dimensions: a text has those whose numbers it contains.
pub(super) fn meaning(text: &str) -> Vec<f32> {
    let direction = |at: usize| text.matches(&format!("#{at}")).count() as f32 - 0.1;
    (0..8).map(direction).collect()
}

fn text(store: &dyn Backend, entry: &Unembedded) -> String {
    match entry.id {
        EntryId::Turn(id) => store.turn_in(&entry.key, id).expect("the turn").text(|_| None),
        EntryId::Fact(id) => id.to_string(),
    }
}

/// Indexes what is committed, and embeds everything.
#[track_caller]
pub(super) fn embed(store: &dyn Backend, model: &str) {
    take_in(store);
    loop {
        let waiting = store.unembedded(model, None, 3).expect("what waits");
        if waiting.is_empty() {
            return;
        }
        let vectors = waiting.iter().map(|entry| (entry.no, meaning(&text(store, entry)))).collect();
        store.put_vectors(&waiting[0].key.tenant, model, vectors).expect("kept");
    }
}

/// The texts nearest to a query, best first.
#[track_caller]
fn near(store: &dyn Backend, key: &Key, model: &str, question: &str, filter: &Filter) -> Vec<String> {
    let hits = store.find_near(&key.tenant, model, &meaning(question), filter, 3).expect("an answer");
    assert!(hits.is_sorted_by(|a, b| a.score >= b.score), "best first");
    let told = |id: EntryId, conversation| match id {
        EntryId::Turn(id) => {
            let key = Key { tenant: key.tenant.clone(), id: filter.conversation.unwrap_or(conversation) };
            store.turn_in(&key, id).expect("the turn").text(|_| None)
        }
        EntryId::Fact(id) => id.to_string(),
    };
    hits.iter().map(|hit| told(hit.id, hit.conversation)).collect()
}

/// The same in alphabetical order, for ties.
#[track_caller]
fn alike(store: &dyn Backend, key: &Key, question: &str, filter: &Filter) -> Vec<String> {
    let mut texts = near(store, key, MODEL, question, filter);
    texts.sort();
    texts
}

fn within(key: &Key) -> Filter {
    Filter { conversation: Some(key.id), ..Filter::default() }
}

/// Near comes before far; conversations, tenants and filters are respected; later entries are found as well.
pub fn what_is_nearest_in_meaning_comes_first(store: &dyn Backend) {
    let m = Maker::default();
    let (one, two) = (m.key(), m.key());
    let foreign = elsewhere(&one);
    let bot = m.turn("bot", Role::Assistant, &message("assistant", "the bot #1 #2"));
    create(store, &one, vec![m.created(), m.say("far #5"), m.say("near #1"), bot]);
    create(store, &two, vec![m.created(), m.say("nearest #1 #1 #3")]);
    create(store, &foreign, vec![m.created(), m.say("a stranger's #1 #1 #3")]);
    embed(store, MODEL);
    let asked = |filter: &Filter| near(store, &one, MODEL, "#1 #1 #3", filter);
    assert_eq!(asked(&Filter::default()), ["nearest #1 #1 #3", "near #1", "the bot #1 #2"]);
    assert_eq!(asked(&within(&one)), ["near #1", "the bot #1 #2", "far #5"]);
    assert_eq!(asked(&Filter { roles: vec![Role::Assistant], ..Filter::default() }), ["the bot #1 #2"]);
    assert_eq!(asked(&Filter { actors: vec!["bot".into()], ..within(&one) }), ["the bot #1 #2"]);
    assert_eq!(near(store, &foreign, MODEL, "#1", &Filter::default()), ["a stranger's #1 #1 #3"]);
    assert_eq!(near(store, &elsewhere(&two), MODEL, "#1", &within(&two)), [""; 0]);
    append(store, &two, vec![m.say("later #1 #1 #3 #3")]);
    embed(store, MODEL);
    assert_eq!(asked(&within(&two)), ["nearest #1 #1 #3", "later #1 #1 #3 #3"]);
}

/// Every entry waits for an embedding of each known model, the newest first, unless others are requested first;
/// their number is reported.
pub fn entries_wait_for_their_vectors_newest_first(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.say("one"), m.say("two")]);
    take_in(store);
    let behind = || store.behind(Some(&key.tenant), Some(MODEL)).expect("a number");
    assert_eq!(behind(), Behind { events: 0, vectors: 2 }, "of a model that nobody asked for yet");
    let waiting = || store.unembedded(MODEL, None, 9).expect("what waits");
    let texts = || waiting().iter().map(|entry| text(store, entry)).collect::<Vec<_>>();
    assert_eq!(texts(), ["two", "one"]);
    let gone = m.say("gone soon");
    let erased = turn_of(&gone);
    append(store, &key, vec![m.say("three"), gone]);
    take_in(store);
    assert_eq!(texts(), ["gone soon", "three", "two", "one"]);
    let of_gone = waiting()[0].no;
    let oldest = waiting()[3].no;
    done(store, m.erase(&key, &[erased]));
    take_in(store);
    assert_eq!(texts(), ["three", "two", "one"]);
    let (first, second) = (waiting()[0].no, waiting()[1].no);
    let wanted = [oldest, of_gone, EntryNo(999), second];
    let wanted =
        |limit| store.unembedded(MODEL, Some((&key.tenant, &wanted[..])), limit).expect("what waits");
    let numbers = |waiting: Vec<Unembedded>| waiting.iter().map(|entry| entry.no).collect::<Vec<_>>();
    assert_eq!(numbers(wanted(9)), [oldest, second, first], "what is wanted comes before what is newer");
    assert_eq!((numbers(wanted(1)), numbers(wanted(2))), (vec![oldest], vec![oldest, second]));
    let made = vec![
        (first, meaning("#1")),
        (second, Vec::new()),
        (of_gone, meaning("#1")),
        (EntryNo(999), meaning("#1")),
    ];
    store.put_vectors(&key.tenant, MODEL, made).expect("kept");
    assert_eq!(numbers(wanted(9)), [oldest], "the second waits no longer, however much it is wanted");
    assert_eq!(texts(), ["one"], "with nothing to embed it does not wait either");
    assert_eq!(behind().vectors, 1);
    assert_eq!(near(store, &key, MODEL, "#1", &Filter::default()), ["three"]);
    assert_eq!(store.behind(Some(&key.tenant), Some("another/8")).expect("a number").vectors, 3);
}

/// Prose is embedded before tool calls and results, also by a model that is added later.
pub fn what_was_said_gets_its_vector_before_what_tools_did(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let call =
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"grep","input":{"for":"it"}}]}"#;
    let result =
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"two places"}]}"#;
    let said_and_called = call.replace("[{", r#"[{"type":"text","text":"I look"},{"#);
    let turns = |m: &Maker| {
        vec![
            m.say("find it"),
            m.turn("bot", Role::Assistant, &said_and_called),
            m.turn("bot", Role::Assistant, call),
            m.turn("bot", Role::User, result),
            m.turn("grep", Role::Tool, &message("tool", "three places")),
            m.turn("bot", Role::Assistant, &message("assistant", "found")),
        ]
    };
    create(store, &key, [vec![m.created()], turns(&m)].concat());
    take_in(store);
    let waiting = |model| store.unembedded(model, None, 99).expect("what waits");
    let places = |model| waiting(model).iter().map(|entry| entry.seq).collect::<Vec<_>>();
    assert_eq!(places(MODEL), [7, 3, 2, 6, 5, 4]);
    append(store, &key, turns(&m));
    take_in(store);
    let both = [13, 9, 8, 7, 3, 2, 12, 11, 10, 6, 5, 4];
    assert_eq!((places(MODEL), places("later/8")), (both.to_vec(), both.to_vec()));
    embed(store, MODEL);
    assert_eq!(store.behind(Some(&key.tenant), Some(MODEL)).expect("a number").vectors, 0);
    let result = waiting("later/8")[6].no;
    assert_eq!(
        store.unembedded("later/8", Some((&key.tenant, &[result])), 1).expect("what waits")[0].no,
        result
    );
}

/// An entry that comes with its embedding does not wait for it, only for those of other models; a replacement
/// brings its own. Entries without an embedding can be listed.
pub fn a_vector_may_come_with_its_entry(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.say("alone #1")]);
    take_in(store);
    let waiting = |model| store.unembedded(model, None, 9).expect("what waits");
    let alone = waiting("other/8")[0].no;
    let with_vector = |id: u8, numbers: Vec<f32>| {
        append(store, &key, vec![m.draft("note", "{}")]);
        let vector = Some(Embedded { model: MODEL.into(), numbers });
        let entry = IndexEntry {
            tenant: key.tenant.clone(),
            conversation: key.id,
            seq: 2,
            id: EntryId::Fact(FactId::from_bytes([id; 16])),
            role: None,
            actor: None,
            at: m.now(),
            fallen: None,
            prose: true,
            text: "together".into(),
            persons: None,
            audience: None,
            vector,
        };
        let span = store.unindexed(9).expect("what is new").span;
        store.index(vec![IndexChange::Put(Box::new(entry))], span).expect("taken in");
    };
    with_vector(1, meaning("#2"));
    with_vector(2, Vec::new());
    assert_eq!(waiting(MODEL).iter().map(|entry| entry.no).collect::<Vec<_>>(), [alone]);
    assert_eq!(waiting("other/8").len(), 3);
    let nearest = |question: &str| {
        let found = store.find_near(&key.tenant, MODEL, &meaning(question), &Filter::default(), 9);
        found.expect("an answer").iter().map(|found| found.id).collect::<Vec<_>>()
    };
    let fact = EntryId::Fact(FactId::from_bytes([1; 16]));
    assert_eq!(nearest("#2"), [fact]);
    with_vector(1, meaning("#3"));
    assert_eq!(nearest("#3"), [fact]);
    let all: Vec<EntryNo> = waiting("other/8").iter().map(|entry| entry.no).collect();
    let nearness = |model| store.nearness(&key.tenant, model, &meaning("#3"), &all).expect("an answer");
    let nearest =
        store.find_near(&key.tenant, MODEL, &meaning("#3"), &Filter::default(), 9).expect("an answer");
    let expected = |no: &EntryNo| (nearest[0].no == *no).then_some(nearest[0].score);
    assert_eq!((all.len(), nearness(MODEL)), (3, all.iter().map(expected).collect()));
    assert_eq!(nearness("unheard/8"), [None; 3]);
}

/// Embeddings of different models are not compared, nor are those of different lengths. The old model's are
/// used until they are dropped.
pub fn vectors_of_different_models_are_never_compared(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.say("first #1"), m.say("second #2")]);
    embed(store, MODEL);
    let anywhere = Filter::default();
    assert_eq!(near(store, &key, "newer/8", "#1", &anywhere), [""; 0]);
    assert_eq!(store.vector_models(None).expect("models"), [MODEL]);
    let waiting = store.unembedded("newer/8", None, 1).expect("what waits");
    store.put_vectors(&key.tenant, "newer/8", vec![(waiting[0].no, meaning("#1"))]).expect("kept");
    assert_eq!(near(store, &key, "newer/8", "#1", &anywhere), ["second #2"], "as the newer one sees it");
    assert_eq!(near(store, &key, MODEL, "#1", &anywhere), ["first #1", "second #2"], "as the older one does");
    assert_eq!(store.vector_models(None).expect("models"), [MODEL, "newer/8"]);
    for vector in [&[1.0; 7][..], &[0.0; 8], &[f32::NAN; 8], &[]] {
        assert_eq!(store.find_near(&key.tenant, MODEL, vector, &anywhere, 9).expect("an answer"), []);
    }
    let rest = store.unembedded("newer/8", None, 9).expect("what waits");
    store
        .put_vectors(&key.tenant, "newer/8", vec![(rest[0].no, vec![1.0; 7])])
        .expect("not kept as a vector");
    assert_eq!(near(store, &key, "newer/8", "#1", &anywhere), ["second #2"]);
    assert_eq!(store.keep_vectors_of("newer/8", 1).expect("dropped"), 1);
    assert_eq!(store.keep_vectors_of("newer/8", 9).expect("dropped"), 1);
    assert_eq!(store.keep_vectors_of("newer/8", 9).expect("nothing left"), 0);
    assert_eq!(store.vector_models(None).expect("models"), ["newer/8"]);
    assert_eq!(near(store, &key, MODEL, "#1", &anywhere), [""; 0]);
}

/// Erased, deleted and replaced turns are not found, whatever was queried before; superseded ones only with
/// `include_superseded`.
pub fn what_is_gone_is_near_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let (key, other) = (m.key(), m.key());
    let (gone, old, new) = (m.say("erased #1"), m.say("old #1"), m.say("new #1 #2"));
    let (erased, fell, by) = (turn_of(&gone), turn_of(&old), turn_of(&new));
    create(store, &key, vec![m.created(), gone, old, m.say("else #4")]);
    create(store, &other, vec![m.created(), m.say("deleted #1")]);
    embed(store, MODEL);
    let asked = |filter: &Filter| alike(store, &key, "#1", filter);
    assert_eq!(asked(&Filter::default()), ["deleted #1", "erased #1", "old #1"]);
    append(store, &key, vec![new, m.supersede(fell, by)]);
    done(store, m.erase(&key, &[erased]));
    done(store, m.delete(&other));
    embed(store, MODEL);
    assert_eq!(asked(&Filter::default()), ["else #4", "new #1 #2"]);
    let all = Filter { include_superseded: true, ..Filter::default() };
    assert_eq!(asked(&all), ["else #4", "new #1 #2", "old #1"]);
    store.forget().expect("dropped");
    assert_eq!(asked(&all), [""; 0], "the vectors go with the index");
    embed(store, MODEL);
    assert_eq!(asked(&all), ["else #4", "new #1 #2", "old #1"], "and come back with it");
}

/// A fork also finds inherited turns by embedding, up to its fork point.
pub fn a_fork_is_near_what_it_inherited(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    create(store, &parent, vec![m.created(), m.say("before #1")]);
    done(store, m.fork(&child, &parent, 2));
    append(store, &parent, vec![m.say("after #1")]);
    let open = m.open();
    let turn = turn_of(&open);
    append(store, &child, vec![open]);
    embed(store, MODEL);
    assert_eq!(alike(store, &child, "#1", &within(&child)), ["before #1"]);
    append(store, &child, vec![m.end(kind::COMMITTED, turn, "streamed #1")]);
    embed(store, MODEL);
    assert_eq!(alike(store, &child, "#1", &within(&child)), ["before #1", "streamed #1"]);
    assert_eq!(alike(store, &parent, "#1", &within(&parent)), ["after #1", "before #1"]);
}

/// Among many, nearly all of the ten best are found, with and without a filter.
pub fn the_ten_nearest_of_many_are_found(store: &dyn Backend) {
    const MODEL: &str = "noise/48";
    let mut seed = 5_u64;
    let mut number = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created()]);
    for _ in 0..30 {
        let turn = |n: usize| match n % 2 {
            0 => m.say("said"),
            _ => m.turn("bot", Role::Assistant, &message("assistant", "answered")),
        };
        append(store, &key, (0..100).map(turn).collect());
    }
    take_in(store);
    let waiting = store.unembedded(MODEL, None, 9999).expect("what waits");
    assert_eq!(waiting.len(), 3000);
    // Around a hundred centres, like texts about the same subjects.
    let centres: Vec<Vec<f32>> = (0..100).map(|_| (0..48).map(|_| number()).collect()).collect();
    let mut around =
        |centre: usize| -> Vec<f32> { centres[centre].iter().map(|at| at + 0.8 * number()).collect() };
    let vectors: Vec<(EntryNo, Vec<f32>)> =
        waiting.iter().enumerate().map(|(at, entry)| (entry.no, around(at % 100))).collect();
    store.put_vectors(&key.tenant, MODEL, vectors.clone()).expect("kept");
    let cosine = |a: &[f32], b: &[f32]| {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    for roles in [vec![], vec![Role::User]] {
        let filter = Filter { roles: roles.clone(), ..Filter::default() };
        let allowed = |at: usize| roles.is_empty() || waiting[at].seq.is_multiple_of(2);
        let mut hits = 0;
        for question in 0..20 {
            let question = around(question * 5);
            let mut truth: Vec<(f32, EntryNo)> = (0..3000)
                .filter(|at| allowed(*at))
                .map(|at| (cosine(&vectors[at].1, &question), vectors[at].0))
                .collect();
            truth.sort_by(|a, b| b.0.total_cmp(&a.0));
            let found = store.find_near(&key.tenant, MODEL, &question, &filter, 10).expect("an answer");
            assert_eq!(found.len(), 10);
            hits += truth[..10].iter().filter(|(_, no)| found.iter().any(|found| found.no == *no)).count();
        }
        assert!(hits >= 190, "{hits} of 200 of the ten best, {roles:?}");
    }
}
