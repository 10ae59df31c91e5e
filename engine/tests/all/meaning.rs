//! Found by meaning: vectors are made in the background, of one model at a time, and never in anybody's way.

use crate::stage::{PATIENCE, Stage, quiet};
use everturn_core::id::ConversationId;
use everturn_core::turn::Role;
use everturn_engine::model::{BuiltinEmbedder, Embed};
use everturn_engine::{
    Error, Everturn, NewConversation, NewFact, NewTurn, Options, RecallMode, RecallOptions, Recalled, Tenant,
};
use futures_util::future::BoxFuture;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Knows which words mean the same, and does what a test tells it.
struct Toy {
    model: String,
    told: Arc<Told>,
}

#[derive(Default)]
struct Told {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Every text that was embedded, in order.
    texts: Vec<String>,
    /// Most texts that came at once.
    at_once: usize,
    fails: bool,
    /// Texts with this in them are never answered.
    hangs: Option<String>,
}

const SAME: [&[&str]; 4] = [
    &["car", "automobile", "vehicle"],
    &["cat", "feline", "kitten"],
    &["bread", "loaf", "baguette"],
    &["rain", "drizzle", "shower"],
];

impl Toy {
    fn new(model: &str) -> Arc<Toy> {
        Arc::new(Toy { model: model.into(), told: Arc::default() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.told.state.lock().unwrap()
    }

    /// How often a text was embedded.
    fn seen(&self, text: &str) -> usize {
        self.state().texts.iter().filter(|seen| *seen == text).count()
    }

    fn wait_for(&self, enough: impl Fn(&State) -> bool) {
        let (state, waited) =
            self.told.changed.wait_timeout_while(self.state(), PATIENCE, |state| !enough(state)).unwrap();
        assert!(!waited.timed_out(), "still only {:?}", state.texts);
    }
}

impl Embed for Toy {
    fn model(&self) -> &str {
        &self.model
    }

    fn dimensions(&self) -> Option<usize> {
        Some(SAME.len())
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>> {
        let mut state = self.state();
        let hangs = state.hangs.as_ref().is_some_and(|word| texts.iter().any(|text| text.contains(word)));
        let answer = match state.fails {
            true => Err(Error::busy("test.down", "nobody is at home")),
            false => Ok(texts.iter().map(|text| meaning(text)).collect()),
        };
        state.at_once = state.at_once.max(texts.len());
        state.texts.extend(texts);
        self.told.changed.notify_all();
        if hangs { Box::pin(std::future::pending()) } else { Box::pin(async { answer }) }
    }
}

fn meaning(text: &str) -> Vec<f32> {
    let about = |words: &&[&str]| words.iter().filter(|word| text.contains(**word)).count() as f32 + 0.01;
    SAME.iter().map(about).collect()
}

fn open(stage: &Stage, embedder: &Arc<Toy>) -> Everturn {
    stage.open_with(Options { embedder: Some(embedder.clone()), ..quiet() })
}

fn say(scope: &Tenant, texts: &[&str]) -> ConversationId {
    let id = scope.create(NewConversation::default()).wait().unwrap().id();
    let turns: Vec<_> = texts.iter().map(|text| NewTurn::user(text)).collect();
    scope.conversation(id).append_all(turns).wait().unwrap();
    id
}

fn recall(scope: &Tenant, question: &str, mode: RecallMode) -> Recalled {
    scope.recall(question, &RecallOptions { mode, ..RecallOptions::default() }).unwrap()
}

/// The best answer's words.
fn best(recalled: &Recalled) -> &str {
    recalled.data.first().map_or("", |hit| hit.snippet.text.as_str())
}

/// Until everything has its vector.
fn settled(store: &Everturn) {
    let end = Instant::now() + PATIENCE;
    loop {
        let behind = store.behind().unwrap();
        if behind.events == 0 && behind.vectors == 0 {
            return;
        }
        assert!(Instant::now() < end, "still {behind:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_turn_is_found_by_what_it_means_without_being_asked_to_index() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let store = open(&stage, &toy);
    let scope = store.tenant("acme").unwrap();
    say(&scope, &["my automobile is red", "a kitten sleeps", "the loaf is fresh"]);
    settled(&store);
    for mode in [RecallMode::Vector, RecallMode::Hybrid] {
        let found = recall(&scope, "feline", mode);
        assert_eq!((found.mode, found.note.as_deref()), (mode, None));
        assert_eq!(best(&found), "a kitten sleeps", "{mode}");
        assert_eq!(found.data[0].matched.vector.unwrap().rank, 1);
        assert!(found.data[0].matched.lexical.is_none());
    }
    assert!(recall(&scope, "feline", RecallMode::Lexical).data.is_empty());
    assert!(
        store.tenant("other").unwrap().recall("feline", &RecallOptions::default()).unwrap().data.is_empty()
    );
}

/// Many turns mean what the question means; one alone has the number that it names, or its rare word, and nothing else of it.
#[test]
fn a_number_or_a_rare_word_is_found_among_what_means_the_same() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let store = open(&stage, &toy);
    let scope = store.tenant("acme").unwrap();
    let mut texts: Vec<String> =
        (0..30).map(|n| format!("the automobile got its winter tyres, number {n}")).collect();
    texts.push("closed OPS-4417 today".into());
    texts.push("Brixton said no".into());
    say(&scope, &texts.iter().map(String::as_str).collect::<Vec<_>>());
    settled(&store);
    for (question, first, wanted) in [
        ("vehicle ticket OPS-4417", true, "closed OPS-4417 today"),
        ("which vehicle did the lady from Brixton ask for yesterday", false, "Brixton said no"),
    ] {
        let found = recall(&scope, question, RecallMode::Hybrid);
        let texts: Vec<&str> = found.data.iter().map(|hit| hit.snippet.text.as_str()).collect();
        assert!(texts.contains(&wanted), "{question}: {texts:?}");
        assert_eq!(texts[0] == wanted, first, "{question}: {texts:?}");
    }
}

/// What was embedded is kept: a process that comes later embeds only what is new, the newest first.
#[test]
fn vectors_are_made_once_and_the_newest_first() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let store = open(&stage, &toy);
    say(&store.tenant("acme").unwrap(), &["the first car", "the second car"]);
    settled(&store);
    drop(store);
    let unattended = stage.open();
    let many: Vec<String> = (0..100).map(|n| format!("rain number {n}")).collect();
    say(&unattended.tenant("acme").unwrap(), &many.iter().map(String::as_str).collect::<Vec<_>>());
    unattended.index_now().unwrap();
    drop(unattended);
    let store = open(&stage, &toy);
    settled(&store);
    assert_eq!((toy.seen("the first car"), toy.seen("the second car")), (1, 1));
    let order: Vec<String> =
        toy.state().texts.iter().filter(|text| text.starts_with("rain")).cloned().collect();
    let newest_first: Vec<String> = many.iter().rev().cloned().collect();
    assert_eq!(order, newest_first);
}

/// What was said and learned gets its vectors before the newer results of tools.
#[test]
fn tools_wait_until_people_and_facts_have_their_vectors() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let writer = stage.open();
    let scope = writer.tenant("acme").unwrap();
    let id = say(&scope, &["a kitten sleeps"]);
    let (subject, predicate, object) = ("kitten".into(), "eats".into(), "bread".into());
    let fact = scope
        .conversation(id)
        .facts()
        .add(NewFact { subject, predicate, object, ..NewFact::default() })
        .unwrap();
    let result = NewTurn::text(Role::Tool, "rain: 3 mm");
    scope.conversation(id).append(result).wait().unwrap();
    writer.index_now().unwrap();
    let embedder: Option<Arc<dyn Embed>> = Some(toy.clone());
    let reader = stage.open_with(Options { embedder, read_only: true, ..quiet() });
    assert_eq!(reader.embed_now(PATIENCE).unwrap().vectors, 0);
    assert_eq!(toy.state().texts, [&fact.text(), "a kitten sleeps", "rain: 3 mm"]);
}

#[test]
fn an_embedder_that_fails_leaves_the_words_and_is_tried_again() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    toy.state().fails = true;
    let store = open(&stage, &toy);
    let scope = store.tenant("acme").unwrap();
    say(&scope, &["the kitten and the car"]);
    store.index_now().unwrap();
    let found = recall(&scope, "kitten", RecallMode::Hybrid);
    assert_eq!((found.mode, best(&found)), (RecallMode::Lexical, "the kitten and the car"));
    assert!(found.note.as_ref().unwrap().contains("nobody is at home"), "{:?}", found.note);
    assert_eq!(found.behind.vectors, 1, "and says what is missing");
    let refused = scope.recall("kitten", &RecallOptions { mode: RecallMode::Vector, ..Default::default() });
    assert_eq!(refused.unwrap_err().code(), "test.down");
    toy.wait_for(|state| state.texts.iter().any(|text| text == "the kitten and the car"));
    toy.state().fails = false;
    settled(&store);
    assert_eq!(best(&recall(&scope, "feline", RecallMode::Hybrid)), "the kitten and the car");
}

#[test]
fn a_store_closes_while_its_embedder_hangs() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    toy.state().hangs = Some("drizzle".into());
    let store = open(&stage, &toy);
    say(&store.tenant("acme").unwrap(), &["drizzle all day"]);
    toy.wait_for(|state| !state.texts.is_empty());
    let began = Instant::now();
    drop(store);
    assert!(began.elapsed() < PATIENCE / 4, "closing took {:?}", began.elapsed());
}

/// A question does not wait for an embedder that hangs, nor does whoever wants everything embedded now.
#[test]
fn nobody_waits_for_an_embedder_that_hangs() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    toy.state().hangs = Some("drizzle".into());
    let store = open(&stage, &toy);
    let scope = store.tenant("acme").unwrap();
    say(&scope, &["drizzle all day"]);
    store.index_now().unwrap();
    let found = recall(&scope, "drizzle", RecallMode::Hybrid);
    assert_eq!((found.mode, best(&found)), (RecallMode::Lexical, "drizzle all day"));
    assert!(found.note.is_some());
    let left = store.embed_now(Duration::from_millis(10)).unwrap();
    assert_eq!(left.vectors, 1);
}

/// While a new model's vectors are made, the old one's answer; then the old ones are gone.
#[test]
fn a_change_of_the_model_is_not_noticed_by_who_asks() {
    let stage = Stage::new();
    let (old, new) = (Toy::new("old"), Toy::new("new"));
    let store = open(&stage, &old);
    let texts = ["my automobile is red", "a kitten sleeps", "the loaf is fresh", "a shower at noon"];
    say(&store.tenant("acme").unwrap(), &texts);
    settled(&store);
    drop(store);
    new.state().fails = true;
    let options = Options { embedder: Some(new.clone()), former_embedder: Some(old.clone()), ..quiet() };
    let store = stage.open_with(options);
    let scope = store.tenant("acme").unwrap();
    let found = recall(&scope, "feline", RecallMode::Hybrid);
    assert_eq!((found.mode, best(&found), found.behind.vectors), (RecallMode::Hybrid, "a kitten sleeps", 4));
    assert_eq!((old.seen("feline"), new.seen("feline")), (1, 0), "the old one is asked");
    new.state().fails = false;
    settled(&store);
    assert_eq!(best(&recall(&scope, "vehicle", RecallMode::Vector)), "my automobile is red");
    assert_eq!((old.seen("vehicle"), new.seen("vehicle")), (0, 1), "the new one is asked");
    let end = Instant::now() + PATIENCE;
    while store.vector_models().unwrap() != ["new/4"] {
        assert!(Instant::now() < end, "the old vectors are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_erased_turn_has_no_vector_any_more() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let store = open(&stage, &toy);
    let scope = store.tenant("acme").unwrap();
    let id = say(&scope, &["a kitten sleeps", "my automobile is red"]);
    settled(&store);
    let found = recall(&scope, "feline", RecallMode::Vector);
    let turn = found.data[0].turn.unwrap();
    scope.conversation(id).erase(turn, None, "asked to").wait().unwrap();
    store.index_now().unwrap();
    let texts: Vec<String> =
        recall(&scope, "feline", RecallMode::Vector).data.into_iter().map(|hit| hit.snippet.text).collect();
    assert_eq!(texts, ["my automobile is red"]);
}

/// Just after an import everything waits for a vector, the oldest for long. A process that asks and ends has those embedded that
/// share words with its question, within its filter, before newer ones that it has no use for.
#[test]
fn what_a_question_s_words_find_is_embedded_first() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let writer = stage.open();
    let scope = writer.tenant("acme").unwrap();
    let asked = say(&scope, &["the rusty automobile", "a loaf", "an automobile and a kitten"]);
    say(&scope, &["an automobile elsewhere", "drizzle", "shower"]);
    writer.index_now().unwrap();
    let embedder: Option<Arc<dyn Embed>> = Some(toy.clone());
    let reader = stage.open_with(Options { embedder, read_only: true, ..quiet() });
    let scope = reader.tenant("acme").unwrap();
    let options = RecallOptions { conversation: Some(asked), ..RecallOptions::default() };
    assert_eq!(scope.embed_for("rusty automobile", &options, PATIENCE).unwrap().vectors, 0);
    let by_words = ["the rusty automobile", "an automobile and a kitten"];
    let newest = ["shower", "drizzle", "an automobile elsewhere", "a loaf"];
    assert_eq!(toy.state().texts, [&by_words[..], &newest].concat(), "then the others, newest first");
    scope.embed_for("rusty automobile", &options, PATIENCE).unwrap();
    assert_eq!(toy.state().texts.len(), 6, "nothing is embedded twice");
}

/// Two texts at a time leave most cores without work. Where there is time, more come at once.
#[test]
fn who_has_time_embeds_many_texts_at_once() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let writer = stage.open();
    say(&writer.tenant("acme").unwrap(), &["rain"; 200]);
    writer.index_now().unwrap();
    let embedder: Option<Arc<dyn Embed>> = Some(toy.clone());
    let reader = stage.open_with(Options { embedder, read_only: true, ..quiet() });
    assert_eq!(reader.embed_now(PATIENCE).unwrap().vectors, 0);
    assert!(toy.state().at_once >= 64, "only {}", toy.state().at_once);
}

/// In a large store the rare words of a question choose. What has only a common one comes after that, and before what has none.
#[test]
fn what_has_only_a_common_word_of_the_question_is_embedded_too() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let writer = stage.open();
    let scope = writer.tenant("acme").unwrap();
    say(&scope, &["the zebra"]);
    for _ in 0..3 {
        say(&scope, &["the automobile"; 500]);
    }
    say(&scope, &["the rain"; 10]);
    writer.index_now().unwrap();
    let embedder: Option<Arc<dyn Embed>> = Some(toy.clone());
    let reader = stage.open_with(Options { embedder, read_only: true, ..quiet() });
    let scope = reader.tenant("acme").unwrap();
    scope.embed_for("the zebra in the automobile", &RecallOptions::default(), PATIENCE).unwrap();
    let texts = toy.state().texts.clone();
    assert_eq!((texts[0].as_str(), texts[1].as_str()), ("the zebra", "the automobile"));
    assert_eq!(texts.iter().position(|text| text == "the rain"), Some(200));
}

/// An embedder that needs no waiting: vectors come with the words, and nothing ever waits for one.
#[test]
fn the_built_in_embedder_s_vectors_come_with_the_words() {
    let stage = Stage::new();
    let embedder: Option<Arc<dyn Embed>> = Some(Arc::new(BuiltinEmbedder::new()));
    let store = stage.open_with(Options { embedder: embedder.clone(), index: false, ..quiet() });
    let scope = store.tenant("acme").unwrap();
    let id = say(&scope, &["We send the parcels by train.", "My cat sleeps on the keyboard.", "🚀"]);
    let (subject, predicate, object) = ("the relay".into(), "listens on".into(), "port 8443".into());
    scope.conversation(id).facts().add(NewFact { subject, predicate, object, ..NewFact::default() }).unwrap();
    let behind = store.index_now().unwrap();
    assert_eq!((behind.events, behind.vectors), (0, 0));
    for (question, text) in [
        ("shipping packages over rails", "We send the parcels by train."),
        ("a pet resting", "My cat sleeps on the keyboard."),
        ("which socket number does it use", "the relay listens on port 8443"),
    ] {
        assert_eq!(best(&recall(&scope, question, RecallMode::Vector)), text, "{question}");
    }
    let nothing = recall(&scope, "🚀", RecallMode::Hybrid);
    assert!(nothing.data.is_empty(), "{nothing:?}");
}

/// A store whose index was made without the embedder, or with another one: what is there already gets its vectors
/// in the background, and words find it meanwhile as well as ever.
#[test]
fn an_index_with_another_model_s_vectors_is_answered_from_while_it_changes() {
    let (stage, old) = (Stage::new(), Toy::new("toy/8:0123456789ab"));
    let store = open(&stage, &old);
    say(&store.tenant("acme").unwrap(), &["my automobile is red", "a kitten sleeps", "the loaf is fresh"]);
    settled(&store);
    drop(store);
    let embedder: Option<Arc<dyn Embed>> = Some(Arc::new(BuiltinEmbedder::new()));
    let reader = stage.open_with(Options { embedder: embedder.clone(), read_only: true, ..quiet() });
    let found = recall(&reader.tenant("acme").unwrap(), "kitten", RecallMode::Hybrid);
    assert_eq!((best(&found), found.behind.vectors), ("a kitten sleeps", 3));
    drop(reader);
    let store = stage.open_with(Options { embedder, ..quiet() });
    settled(&store);
    assert_eq!(
        best(&recall(&store.tenant("acme").unwrap(), "a young cat", RecallMode::Vector)),
        "a kitten sleeps"
    );
    let end = Instant::now() + PATIENCE;
    while store.vector_models().unwrap().iter().any(|model| !model.starts_with("potion-base-8m:")) {
        assert!(Instant::now() < end, "the old vectors are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// While vectors are missing, an entry without one stands at least where words alone put it, however much has a vector that is
/// near the question.
#[test]
fn what_has_no_vector_yet_is_not_ranked_below_its_place_by_words() {
    let (stage, toy) = (Stage::new(), Toy::new("toy"));
    let store = open(&stage, &toy);
    let near: Vec<String> =
        (0..30).map(|n| format!("the vehicle got its winter tyres, number {n}")).collect();
    say(&store.tenant("acme").unwrap(), &near.iter().map(String::as_str).collect::<Vec<_>>());
    settled(&store);
    // These are taken in by a process without the embedder.
    drop(store);
    let unattended = stage.open();
    let unseen = ["an automobile from Brixton", "somebody from Brixton", "Brixton said no to it"];
    say(&unattended.tenant("acme").unwrap(), &unseen);
    unattended.index_now().unwrap();
    drop(unattended);
    let embedder: Option<Arc<dyn Embed>> = Some(toy.clone());
    let reader = stage.open_with(Options { embedder, read_only: true, ..quiet() });
    let scope = reader.tenant("acme").unwrap();
    let question = "which automobile did the lady from Brixton ask for yesterday";
    let order = |mode| -> Vec<String> {
        recall(&scope, question, mode).data.into_iter().map(|hit| hit.snippet.text).collect()
    };
    let (words, both) = (order(RecallMode::Lexical), order(RecallMode::Hybrid));
    assert!(words.len() >= 3, "{words:?}");
    for (place, text) in words.iter().enumerate().filter(|(_, text)| text.contains("Brixton")) {
        let at = both.iter().position(|other| other == text);
        assert!(at.is_some_and(|at| at <= place), "{text:?} is at {at:?} instead of {place}: {both:?}");
    }
    assert!(both.iter().any(|text| text.contains("tyres")), "what is near is found too: {both:?}");
    let scores: Vec<f64> =
        recall(&scope, question, RecallMode::Hybrid).data.iter().map(|hit| hit.score).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}

/// The built-in table does not know that these two are the same; a better model does.
#[test]
fn a_reranker_orders_the_best_once_more_and_may_fail() {
    let stage = Stage::new();
    let toy = Toy::new("better/v1");
    let options = Options {
        embedder: Some(Arc::new(BuiltinEmbedder::new())),
        reranker: Some(toy.clone()),
        ..Options::default()
    };
    let store = stage.open_with(options);
    let scope = store.tenant("acme").unwrap();
    say(&scope, &["the small cat slept", "the loaf is on the table", "the baguette is on the table"]);
    store.index_now().unwrap();
    let ask = || recall(&scope, "a small loaf", RecallMode::Hybrid);
    let hits = ask();
    let order: Vec<&str> = hits.data.iter().map(|hit| hit.snippet.text.as_str()).collect();
    assert_eq!(order.len(), 3);
    assert_eq!(order[2], "the small cat slept", "{order:?}");
    assert_eq!(hits.note, None);
    assert_eq!(toy.state().texts.len(), 4, "the question and what was found, nothing else");

    toy.state().fails = true;
    let without = ask();
    assert_eq!(without.data.len(), 3);
    assert!(without.note.unwrap().contains("the results are not reranked"));
    let order: Vec<&str> = without.data.iter().map(|hit| hit.snippet.text.as_str()).collect();
    assert_ne!(order[2], "the small cat slept", "by itself the built-in table puts it higher: {order:?}");
}
