//! Facts: what turns support is kept, once; what misbehaves is dropped and counted; what is erased is in no file.

use crate::scripted_server::*;
use crate::stage::*;
use everturn_core::conversation::{Retention, Settings};
use everturn_core::event::Visibility;
use everturn_core::fact::{Fact, FactStatus, FactsDropped};
use everturn_core::id::{ConversationId, FactId};
use everturn_core::json::Raw;
use everturn_engine::model::{self, Configured, Endpoint, HttpModel, Limits, wait};
use everturn_engine::{
    CompactOptions, Correction, Everturn, ExtractOptions, Extraction, FactQuery, Format, GenerateOptions,
    Lifecycle, NewFact, NewStream, NewTurn, Options, RecallOptions, Tenant,
};
use everturn_views::recall::RecallKind;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const NOWHERE: Vec<PathBuf> = Vec::new();

fn policy(facts: Value) -> Settings {
    let mut settings = Settings::default();
    settings.policy.insert("facts".into(), Raw::of(&facts).unwrap());
    settings
}

fn options(server: &ScriptedServer) -> Options {
    let mut endpoint = Endpoint::new(model::Protocol::OpenaiChat, server.url(), "some-model");
    endpoint.limits = Limits { backoff_first: Duration::from_millis(1), attempts: 1, ..Limits::default() };
    let model = Configured::new(Arc::new(HttpModel::new(endpoint).unwrap()));
    Options { models: BTreeMap::from([("default".to_string(), model)]), ..quiet() }
}

/// A store in memory whose model is the server.
fn learning(server: &ScriptedServer, facts: Value) -> (Everturn, Tenant, ConversationId) {
    let store = Everturn::open_with("memory:", options(server)).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(policy(facts)).id;
    (store, scope, id)
}

fn found(subject: &str, predicate: &str, object: &str, turn: u64, quote: &str) -> Value {
    json!({"subject": subject, "predicate": predicate, "object": object, "confidence": 0.8, "source_turn": turn, "quote": quote})
}

fn finds(facts: &[Value]) -> Vec<Act> {
    vec![says(&json!({"facts": facts}).to_string())]
}

fn berlin(turn: u64) -> Value {
    found("Zoë", "lives in", "Berlin", turn, "live in Berlin")
}

fn all(scope: &Tenant, id: ConversationId) -> Vec<Fact> {
    let query = FactQuery { include_superseded: true, include_retracted: true, ..FactQuery::default() };
    scope.conversation(id).facts().list(query).unwrap().data
}

fn current(scope: &Tenant, id: ConversationId) -> Vec<String> {
    scope.conversation(id).facts().list(FactQuery::default()).unwrap().data.iter().map(Fact::text).collect()
}

fn new(subject: &str, predicate: &str, object: &str) -> NewFact {
    let [subject, predicate, object] = [subject, predicate, object].map(str::to_string);
    NewFact { subject, predicate, object, ..NewFact::default() }
}

fn everything() -> ExtractOptions {
    ExtractOptions { from: Some(1), to: None }
}

#[test]
fn what_the_turns_support_is_kept_and_the_rest_is_dropped_and_counted() {
    let answers = [
        berlin(2),
        found("Zoë", "likes", "opera", 2, "I adore the opera"),
        found("Zoë", "owns", "a boat", 77, "live in Berlin"),
        json!({"subject": "Zoë"}),
    ];
    let server = ScriptedServer::start(vec![finds(&answers)]);
    let (_store, scope, id) = learning(&server, json!({}));
    let turn = scope.say(id, NewTurn::user("By the way, I live\nin Berlin.").by("zoë"));
    scope.say(id, NewTurn::assistant("Noted."));
    let done = scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    assert_eq!(
        done.dropped,
        FactsDropped { ungrounded: 1, no_such_turn: 1, malformed: 1, ..FactsDropped::default() }
    );
    assert_eq!(
        (done.turns, done.from_seq, done.to_seq, done.model.as_str()),
        (2, Some(1), Some(3), "some-model")
    );
    let facts = all(&scope, id);
    assert_eq!(done.facts, facts);
    assert_eq!((facts[0].text().as_str(), facts[0].confidence), ("Zoë lives in Berlin", 0.8));
    assert_eq!(facts[0].sources[0].turn, turn.id);
    assert_eq!(facts[0].sources[0].quote.as_deref(), Some("live in Berlin"));
    assert_eq!(scope.kinds(id)[3..], ["fact.extracted", "facts.read"]);
    assert_eq!(scope.fact(facts[0].id).unwrap(), facts[0]);
    assert!(
        server.seen()[0].json()["messages"][1]["content"].as_str().unwrap().contains("I live\\nin Berlin")
    );
    scope.conversation(id).log().verify(None).unwrap();
}

#[test]
fn nothing_is_read_twice_unless_it_is_asked_for_and_then_nothing_is_counted_twice() {
    let server = ScriptedServer::start(vec![finds(&[berlin(2)]), finds(&[]), finds(&[berlin(2)])]);
    let (_store, scope, id) = learning(&server, json!({}));
    scope.say(id, NewTurn::user("I live in Berlin."));
    let first = scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    assert_eq!(first.facts.len(), 1);
    let again = scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    assert_eq!((again.turns, server.seen().len()), (0, 1), "there is nothing new, and nobody is asked");
    scope.say(id, NewTurn::user("It rains."));
    scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    let asked = server.seen()[1].json()["messages"][1]["content"].as_str().unwrap().to_string();
    assert!(
        asked.contains("It rains") && !asked.contains("Berlin"),
        "neither the turn nor the fact: {asked}"
    );
    assert!(asked.contains("lives in"), "but how it is spelled");
    let by_hand = scope.conversation(id).facts().extract(everything()).unwrap();
    assert_eq!((by_hand.turns, by_hand.facts.len(), by_hand.dropped.known), (2, 0, 1));
    assert_eq!(all(&scope, id)[0].confidence, 0.8);
}

/// What was recalled into a prompt comes back in the answer. Taken for evidence, every recall would confirm itself.
#[test]
fn what_an_answer_repeats_of_a_recalled_fact_confirms_nothing() {
    let server = ScriptedServer::start(vec![finds(&[berlin(2)]), finds(&[berlin(5)]), finds(&[berlin(7)])]);
    let (_store, scope, id) = learning(&server, json!({}));
    scope.say(id, NewTurn::user("I live in Berlin."));
    scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    let repeats = scope.say(id, NewTurn::assistant("You told me that you live in Berlin."));
    let done = scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    assert_eq!((repeats.seq, done.turns, done.facts.len(), done.dropped.known), (5, 1, 0, 1));
    assert_eq!(all(&scope, id)[0].confidence, 0.8);
    let insists = scope.say(id, NewTurn::user("Yes, I still live in Berlin."));
    let done = scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    assert_eq!(
        (insists.seq, done.facts[0].confidence, done.facts[0].sources.len()),
        (7, 0.96, 2),
        "a person does"
    );
}

#[test]
fn what_another_turn_says_too_is_surer_and_what_it_contradicts_gives_way() {
    let paris = |turn| found("zoë", "Lives in", "Paris", turn, "moved to Paris");
    let server = ScriptedServer::start(vec![finds(&[berlin(2), berlin(3)]), finds(&[paris(7)])]);
    let (_store, scope, id) = learning(&server, json!({}));
    scope.say(id, NewTurn::user("I live in Berlin."));
    scope.say(id, NewTurn::user("We live in Berlin, both of us."));
    scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    let facts = all(&scope, id);
    assert_eq!((facts.len(), facts[0].sources.len(), facts[0].confidence), (1, 2, 0.96));
    let before = scope.conversation(id).get().unwrap().head.seq;
    let moved = scope.say(id, NewTurn::user("We moved to Paris."));
    assert_eq!(moved.seq, 7);
    scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    assert_eq!(current(&scope, id), ["zoë Lives in Paris"]);
    let facts = all(&scope, id);
    assert_eq!((facts[0].status, facts[0].superseded_by), (FactStatus::Superseded, Some(facts[1].id)));
    let then = scope
        .conversation(id)
        .facts()
        .list(FactQuery { as_of: Some(before), ..FactQuery::default() })
        .unwrap();
    assert_eq!(then.data.iter().map(Fact::text).collect::<Vec<_>>(), ["Zoë lives in Berlin"]);
    refused(
        scope.conversation(id).facts().list(FactQuery { as_of: Some(99), ..FactQuery::default() }),
        "seq.out_of_range",
        "has no seq 99",
    );
}

#[test]
fn garbage_is_asked_about_once_more_and_a_model_that_hangs_is_left() {
    let server = ScriptedServer::start(vec![
        vec![says("I found some facts!")],
        finds(&[berlin(2)]),
        vec![says("{}")],
        vec![says("[]")],
        vec![Act::Hang],
        vec![Act::Hang],
        finds(&[berlin(2)]),
    ]);
    let (_store, scope, id) = learning(&server, json!({"timeout_s": 1}));
    scope.say(id, NewTurn::user("I live in Berlin."));
    assert_eq!(scope.conversation(id).facts().extract(everything()).unwrap().facts.len(), 1);
    let second = server.seen()[1].json()["messages"][0]["content"].as_str().unwrap().to_string();
    assert!(second.contains("Your previous answer was refused: the answer begins with"), "{second}");
    let head = scope.head(id);
    refused(scope.conversation(id).facts().extract(everything()), "facts.answer", "begins with");
    refused(scope.conversation(id).facts().extract(everything()), "model.timeout", "within 1 s");
    assert_eq!(scope.head(id), head, "a failure leaves no trace");
    assert_eq!(scope.conversation(id).facts().extract(everything()).unwrap().dropped.known, 1);
    let (_store, none) = memory();
    let id = none.begin();
    refused(
        none.conversation(id).facts().extract(ExtractOptions::default()),
        "model.none",
        "no model is configured",
    );
}

#[test]
fn what_is_still_being_said_is_read_when_it_is_complete() {
    let server = ScriptedServer::start(vec![finds(&[]), finds(&[berlin(4)])]);
    let (_store, scope, id) = learning(&server, json!({}));
    scope.say(id, NewTurn::user("hello"));
    scope.say(id, NewTurn { visibility: Some(Visibility::Private), ..NewTurn::user("between us") });
    let open = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.say(id, NewTurn::user("meanwhile"));
    assert_eq!(scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap().turns, 1);
    scope.conversation(id).open_turn(open).commit(NewTurn::assistant("You live in Berlin.")).wait().unwrap();
    let done = scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    assert_eq!((done.turns, done.facts.len()), (2, 1));
}

#[test]
fn in_the_background_an_exchange_is_read_once_and_nothing_where_nobody_asked_for_it() {
    let server =
        ScriptedServer::start(vec![finds(&[berlin(2)]), vec![says("no")], vec![says("no")], finds(&[])]);
    let loud = Options { auto_compaction: true, ..options(&server) };
    let store = Everturn::open_with("memory:", loud).unwrap();
    let scope = store.tenant("acme").unwrap();
    let silent = scope.begin();
    let id = scope.begin_with(policy(json!({"extract": true}))).id;
    let exchange = |id, word: &str| {
        scope.say(id, NewTurn::user(word));
        scope.say(id, NewTurn::assistant("I see."));
    };
    exchange(silent, "I live in Berlin.");
    exchange(id, "I live in Berlin.");
    let read = |id| scope.kinds(id).iter().filter(|kind| *kind == "facts.read").count();
    until("the exchange is read", || read(id) == 1);
    assert_eq!(current(&scope, id), ["Zoë lives in Berlin"]);
    exchange(id, "Nothing new.");
    until("a model that answers garbage is given up on", || read(id) == 2);
    let last = scope.conversation(id).log().read(0, 100).unwrap().pop().unwrap();
    let body: Value = last.read().unwrap();
    assert_eq!((&body["failed"], server.seen().len()), (&json!("facts.answer"), 3));
    exchange(id, "Still nothing.");
    until("it goes on after that", || read(id) == 3);
    assert_eq!((read(silent), server.seen().len()), (0, 4));
}

#[test]
fn after_a_generation_what_was_asked_and_answered_is_read() {
    let server = ScriptedServer::start(vec![vec![says("Nice.")], finds(&[berlin(2)])]);
    let store =
        Everturn::open_with("memory:", Options { auto_compaction: true, ..options(&server) }).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(policy(json!({"extract": true}))).id;
    let generate =
        GenerateOptions { input: vec![NewTurn::user("I live in Berlin.")], ..GenerateOptions::default() };
    wait(scope.conversation(id).generate(generate)).unwrap().wait().unwrap();
    until("it is learned", || current(&scope, id) == ["Zoë lives in Berlin"]);
    assert_eq!(scope.turns(id).len(), 2);
}

fn erasable(
    stage: &Stage,
    server: &ScriptedServer,
    settings: Settings,
) -> (Everturn, Tenant, ConversationId) {
    let store = stage.open_with(options(server));
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(settings).id;
    (store, scope, id)
}

#[test]
fn erasing_a_turn_erases_what_was_learned_only_from_it_from_every_file() {
    let secret = |turn| found("Zoë", "fears", "unspeakable spiders", turn, "unspeakable spiders");
    let answers = [secret(2), berlin(2), berlin(3)];
    let stage = Stage::new();
    let server = ScriptedServer::start(vec![finds(&answers), finds(&[secret(2)])]);
    let (store, scope, id) = erasable(&stage, &server, Settings::default());
    let gone = scope.say(id, NewTurn::user("I live in Berlin and fear unspeakable spiders."));
    scope.say(id, NewTurn::user("All of us live in Berlin."));
    let fork = scope.conversation(id).fork(3).wait().unwrap().id();
    scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap();
    scope.conversation(fork).facts().extract(ExtractOptions::default()).unwrap();
    let facts = all(&scope, id);
    let fear = facts.iter().find(|fact| fact.predicate == "fears").unwrap().id;
    let home = facts.iter().find(|fact| fact.predicate == "lives in").unwrap().clone();
    let corrected = Correction { object: Some("wasps".into()), ..Correction::default() };
    let wasps = scope.conversation(id).facts().correct(fear, corrected).unwrap();
    assert_eq!((wasps.text().as_str(), wasps.corrects), ("Zoë fears wasps", Some(fear)));
    assert_ne!(stage.files_with("unspeakable"), NOWHERE, "otherwise this test proves nothing");

    // Through the fork, which learned it too.
    scope.conversation(fork).erase(gone.id, None, "asked for").wait().unwrap();
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
    assert_eq!(all(&scope, fork), []);
    let left = all(&scope, id);
    assert_eq!(left.iter().map(Fact::text).collect::<Vec<_>>(), ["Zoë lives in Berlin"]);
    assert_eq!(
        (left[0].id, left[0].confidence, left[0].sources.len()),
        (home.id, 0.8, 1),
        "the other source stays"
    );
    for erased in [fear, wasps.id] {
        refused(scope.conversation(id).facts().retract(erased, None, None), "fact.absent", "no fact");
    }
    refused(scope.fact(fear), "fact.absent", "no fact");
    for conversation in [id, fork] {
        scope.conversation(conversation).log().verify(None).unwrap();
    }
    drop((scope, store));
    stage.open().rebuild().unwrap();
    assert_eq!(stage.files_with("unspeakable"), NOWHERE, "also after making the index again");
    let scope = stage.open().tenant("acme").unwrap();
    assert_eq!(all(&scope, id), left);
}

/// Erased while the model was thinking about it.
#[test]
fn what_is_erased_while_it_is_read_is_not_learned() {
    let stage = Stage::new();
    let (go, wait) = channel();
    let answer =
        says(&json!({"facts": [found("Zoë", "fears", "unspeakable", 2, "unspeakable")]}).to_string());
    let server = ScriptedServer::start(vec![vec![Act::Await(wait), answer]]);
    let (_store, scope, id) = erasable(&stage, &server, Settings::default());
    let turn = scope.say(id, NewTurn::user("I fear the unspeakable."));
    let done = std::thread::scope(|threads| {
        let reads = threads.spawn(|| scope.conversation(id).facts().extract(ExtractOptions::default()));
        server.await_requests(1);
        scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
        go.send(()).unwrap();
        reads.join().unwrap()
    });
    let Extraction { facts, dropped, .. } = done.unwrap();
    assert_eq!((facts.len(), dropped.no_such_turn), (0, 1));
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
}

#[test]
fn facts_go_with_the_turns_that_retention_erases() {
    let stage = Stage::new();
    let server =
        ScriptedServer::start(vec![finds(&[found("Zoë", "fears", "unspeakable", 2, "unspeakable")])]);
    let settings = Settings { retention: Some(Retention::AuditOnly), ..Settings::default() };
    let (_store, scope, id) = erasable(&stage, &server, settings);
    scope.say(id, NewTurn::user("I fear the unspeakable, which nobody should."));
    (0..3).for_each(|_| drop(scope.say(id, NewTurn::assistant("Yes."))));
    assert_eq!(scope.conversation(id).facts().extract(ExtractOptions::default()).unwrap().facts.len(), 1);
    let options = CompactOptions { keep_last: Some(1), extractive: true, ..CompactOptions::default() };
    scope.conversation(id).compaction().compact(options).unwrap();
    assert_eq!(all(&scope, id), []);
}

#[test]
fn what_must_not_be_kept_is_taken_out_before_anything_is_stored() {
    let said = "Write to zoe@example.org or call +49 30 901820; Project Nightingale is due in May.";
    let answers = [
        found("Zoë", "has the address", "zoe@example.org", 2, "Write to zoe@example.org"),
        found("Zoë", "is called at", "home, +49 30 901820", 2, "call +49 30 901820"),
        found("Project Nightingale", "is due in", "May", 2, "Project Nightingale is due in May"),
    ];
    let names = vec![says(r#"{"redact": ["Nightingale"]}"#)];
    let server = ScriptedServer::start(vec![
        finds(&answers),
        names,
        finds(&answers),
        vec![says("no")],
        vec![says("no")],
    ]);
    let rule = json!({"redact": true, "redact_prompt": "no code names"});
    let (_store, scope, id) = learning(&server, rule);
    scope.say(id, NewTurn::user(said));
    let done = scope.conversation(id).facts().extract(everything()).unwrap();
    assert_eq!(current(&scope, id), ["Zoë is called at home, ‹phone›", "Project ‹redacted› is due in May"]);
    assert_eq!(done.dropped.redacted, 1);
    let events: String = scope
        .conversation(id)
        .log()
        .read(2, 100)
        .unwrap()
        .iter()
        .filter_map(|event| event.text().map(str::to_string))
        .collect();
    for word in ["zoe@", "901820", "Nightingale"] {
        assert!(!events.contains(word), "{word} in {events}");
    }
    let asked = &server.seen()[1].body;
    assert!(asked.contains("no code names") && !asked.contains("901820"), "{asked}");
    let head = scope.head(id);
    refused(
        scope.conversation(id).facts().extract(everything()),
        "facts.redaction",
        "the answer begins with",
    );
    assert_eq!(scope.head(id), head, "what could not be redacted is not kept");
    refused(
        scope.conversation(id).facts().add(new("Zoë", "has the address", "zoe@example.org")),
        "fact.redacted",
        "redaction leaves nothing",
    );
    assert_eq!(
        scope
            .conversation(id)
            .facts()
            .add(new("Zoë", "is called at", "work, +49 30 1234567"))
            .unwrap()
            .object,
        "work, ‹phone›"
    );
}

#[test]
fn facts_are_added_corrected_and_taken_back_by_hand() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("Tea, please. I never drink coffee."));
    let by = |fact| NewFact { by: Some("me".into()), ..fact };
    let added = scope.conversation(id).facts().add(by(new(" Zoë ", "drinks", "tea\nonly"))).unwrap();
    assert_eq!(
        (added.text().as_str(), added.confidence, added.by.as_deref()),
        ("Zoë drinks tea only", 1.0, Some("me"))
    );
    let head = scope.head(id);
    assert_eq!(
        scope.conversation(id).facts().add(new("zoë", "Drinks", "Tea only.")).unwrap(),
        added,
        "it is known"
    );
    assert_eq!(scope.head(id), head);
    let quoted = NewFact {
        source_turn: Some(turn.id),
        quote: Some("never drink  coffee".into()),
        ..new("Zoë", "avoids", "coffee")
    };
    let avoids = scope.conversation(id).facts().add(quoted.clone()).unwrap();
    assert_eq!((avoids.sources[0].turn, avoids.sources[0].seq), (turn.id, Some(turn.seq)));
    let wrong = NewFact { quote: Some("never drink tea".into()), ..quoted };
    refused(scope.conversation(id).facts().add(wrong), "fact.ungrounded", "copy its words exactly");
    refused(scope.conversation(id).facts().add(new("Zoë", " ", "x")), "fact.empty", "predicate");
    let unsure = NewFact { confidence: Some(1.5), ..new("a", "b", "c") };
    refused(scope.conversation(id).facts().add(unsure), "fact.confidence", "between 0 and 1");
    refused(
        scope.conversation(id).facts().add(new("a", "b", &"x".repeat(1001))),
        "limit.exceeded",
        "OBJECT_BYTES_MAX",
    );

    let correction =
        Correction { object: Some("green tea".into()), confidence: Some(0.9), ..Correction::default() };
    let right = scope.conversation(id).facts().correct(added.id, correction).unwrap();
    assert_eq!(
        (right.text().as_str(), right.confidence, right.corrects),
        ("Zoë drinks green tea", 0.9, Some(added.id))
    );
    refused(
        scope.conversation(id).facts().correct(right.id, Correction::default()),
        "fact.unchanged",
        "says that already",
    );
    assert_eq!(current(&scope, id), ["Zoë avoids coffee", "Zoë drinks green tea"]);
    let back =
        scope.conversation(id).facts().retract(avoids.id, Some("me".into()), Some("not so".into())).unwrap();
    assert_eq!(
        (back.status, back.retracted.unwrap().reason.as_deref()),
        (FactStatus::Retracted, Some("not so"))
    );
    refused(
        scope.conversation(id).facts().retract(avoids.id, None, None),
        "fact.retracted",
        "retracted already",
    );
    assert_eq!(current(&scope, id), ["Zoë drinks green tea"]);
    assert_eq!(all(&scope, id).len(), 3);
    let absent = FactId(turn.id.0);
    refused(scope.conversation(id).facts().retract(absent, None, None), "fact.absent", "no fact");
    let first = scope
        .conversation(id)
        .facts()
        .list(FactQuery { limit: 1, include_superseded: true, ..FactQuery::default() })
        .unwrap();
    let rest = FactQuery { after: first.next, include_superseded: true, ..FactQuery::default() };
    assert_eq!(scope.conversation(id).facts().list(rest).unwrap().data, [right]);
    // Also when nothing more is said.
    scope.conversation(id).update(Lifecycle::Closed).wait().unwrap();
    scope.conversation(id).facts().add(new("Zoë", "left", "in May")).unwrap();
    refused(
        scope.conversation(id).log().append("fact.added", None, Raw::of(&json!({})).unwrap()).wait(),
        "kind.reserved",
        "written by Everturn itself",
    );
}

#[test]
fn a_fork_inherits_facts_and_goes_on_alone_and_other_tenants_see_nothing() {
    let (store, scope) = memory();
    let id = scope.begin();
    let tea = scope.conversation(id).facts().add(new("Zoë", "drinks", "tea")).unwrap();
    let fork =
        scope.conversation(id).fork(scope.conversation(id).get().unwrap().head.seq).wait().unwrap().id();
    scope.conversation(id).facts().add(new("Zoë", "drinks", "milk")).unwrap();
    assert_eq!(current(&scope, fork), ["Zoë drinks tea"]);
    assert_eq!(all(&scope, fork)[0].conversation, id, "it was learned there");
    scope.conversation(fork).facts().retract(tea.id, None, None).unwrap();
    assert_eq!((current(&scope, id), current(&scope, fork).len()), (vec!["Zoë drinks milk".to_string()], 0));
    assert_eq!(scope.fact(tea.id).unwrap().status, FactStatus::Superseded, "as its own conversation sees it");
    let other = store.tenant("globex").unwrap();
    refused(other.fact(tea.id), "fact.absent", "no fact");
    refused(
        other.conversation(id).facts().list(FactQuery::default()),
        "conversation.absent",
        "no conversation",
    );
    refused(
        other.conversation(id).facts().retract(tea.id, None, None),
        "conversation.absent",
        "no conversation",
    );
}

#[test]
fn facts_are_the_same_after_an_export_and_an_import() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("I drink tea."));
    let tea = scope
        .conversation(id)
        .facts()
        .add(NewFact { source_turn: Some(turn.id), ..new("Zoë", "drinks", "tea") })
        .unwrap();
    scope.conversation(id).facts().add(new("Zoë", "drinks", "milk")).unwrap();
    let mut file = Vec::new();
    scope.conversation(id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
    let (_other, elsewhere) = memory();
    elsewhere.import(&file[..], &mut |_| {}).unwrap();
    assert_eq!(all(&elsewhere, id), all(&scope, id));
    elsewhere.conversation(id).erase(turn.id, None, "asked").wait().unwrap();
    refused(elsewhere.fact(tea.id), "fact.absent", "no fact");
    assert_eq!(current(&elsewhere, id), ["Zoë drinks milk"]);
}

/// The facts that recall finds, and those that it finds only when asked for what does not hold any more.
fn findable(store: &Everturn, scope: &Tenant, within: Option<ConversationId>) -> [String; 2] {
    store.index_now().unwrap();
    let found = |include_superseded| {
        let options = RecallOptions {
            conversation: within,
            kinds: vec![RecallKind::Fact],
            limit: 50,
            include_superseded,
            ..RecallOptions::default()
        };
        let hits = scope.recall("zoë", &options).unwrap().data;
        let mut texts: Vec<String> = hits.into_iter().map(|hit| hit.fact.unwrap().text()).collect();
        texts.sort();
        texts
    };
    let (now, ever) = (found(false), found(true));
    let fell: Vec<String> = ever.into_iter().filter(|text| !now.contains(text)).collect();
    [now.join(", "), fell.join(", ")]
}

#[test]
fn recall_finds_the_facts_that_hold() {
    let (store, scope) = memory();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("Tea in Berlin, then Paris."));
    let from = |fact| NewFact { source_turn: Some(turn.id), ..fact };
    scope.conversation(id).facts().add(new("Zoë", "lives in", "Berlin")).unwrap();
    scope.conversation(id).facts().add(from(new("Zoë", "lives in", "Paris"))).unwrap();
    let tea = scope.conversation(id).facts().add(from(new("Zoë", "drinks", "tea"))).unwrap();
    let dog = scope.conversation(id).facts().add(new("Zoë", "has", "a dog")).unwrap();
    scope
        .conversation(id)
        .facts()
        .correct(tea.id, Correction { object: Some("mate".into()), ..Correction::default() })
        .unwrap();
    scope.conversation(id).facts().retract(dog.id, None, None).unwrap();
    let fell = "Zoë drinks tea, Zoë lives in Berlin";
    assert_eq!(findable(&store, &scope, None), ["Zoë drinks mate, Zoë lives in Paris", fell]);
    let fork =
        scope.conversation(id).fork(scope.conversation(id).get().unwrap().head.seq).wait().unwrap().id();
    scope.conversation(fork).facts().add(from(new("Zoë", "asks for", "milk"))).unwrap();
    scope.conversation(fork).facts().add(new("Zoë", "lives in", "Rome")).unwrap();
    let in_fork = [
        "Zoë asks for milk, Zoë drinks mate, Zoë lives in Rome",
        "Zoë drinks tea, Zoë lives in Berlin, Zoë lives in Paris",
    ];
    assert_eq!(findable(&store, &scope, Some(fork)), in_fork);
    assert_eq!(
        findable(&store, &scope, Some(id))[0],
        "Zoë drinks mate, Zoë lives in Paris",
        "the fork's are not its parent's"
    );
    // In the parent, which knows nothing of the fork: what held before holds again.
    scope.conversation(id).erase(turn.id, None, "asked").wait().unwrap();
    assert_eq!(findable(&store, &scope, None), ["Zoë lives in Berlin, Zoë lives in Rome", ""]);
    let said = scope.say(id, NewTurn::user("Oslo!"));
    scope
        .conversation(id)
        .facts()
        .add(NewFact { source_turn: Some(said.id), ..new("Zoë", "lives in", "Oslo") })
        .unwrap();
    assert_eq!(findable(&store, &scope, Some(id)), ["Zoë lives in Oslo", "Zoë lives in Berlin"]);
    scope.conversation(id).supersede(said.id, NewTurn::user("Never mind.")).wait().unwrap();
    assert_eq!(findable(&store, &scope, Some(id)), ["Zoë lives in Berlin", ""]);
    let other = store.tenant("globex").unwrap();
    assert_eq!(findable(&store, &other, None), ["", ""]);
}
