//! Generating with what is recalled: the model reads it once, and nobody takes it for something that was said again.

use super::*;
use everturn_engine::{NewFact, RecallOptions, RecallRequest};
use everturn_views::recall::RecallKind as Found;

#[test]
fn an_old_turn_and_a_fact_reach_the_model_once_and_are_not_said_again() {
    let answer = "Look behind the barometer.";
    let server = ScriptedServer::start(vec![vec![says(answer)], vec![says("Yes.")]]);
    let (store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let old = "The spare key of the lighthouse hangs behind the barometer.";
    let old_turn = scope.say(id, NewTurn::user(old).by("ann"));
    let [subject, predicate, object] = ["the spare key", "is made of", "brass"].map(str::to_string);
    let fact = scope
        .conversation(id)
        .facts()
        .add(NewFact { subject, predicate, object, ..NewFact::default() })
        .unwrap()
        .text();
    long_ago(&scope, id);
    // As near to the question as the old one, but the tail has it already.
    let late = "Somebody asked for the spare key of the lighthouse.";
    scope.say(id, NewTurn::user(late));
    scope.say(id, NewTurn::assistant("I heard it."));
    store.index_now().unwrap();

    let recall = Some(RecallRequest { turns: 5, facts: 5, query: None });
    let context = ContextOptions { recall, last_n: Some(4), ..ContextOptions::new(2000) };
    let options = GenerateOptions { context, ..input("Where is the spare key of the lighthouse?") };
    let generated = generate(&scope, id, options.clone()).unwrap();
    let seen = &server.seen()[0];
    for once in [old, &fact, late, "I heard it.", "Where is the spare key"] {
        assert_eq!(seen.body.matches(once).count(), 1, "{once:?} in {}", seen.body);
    }
    let body = seen.json();
    let messages = body["messages"].as_array().unwrap();
    let system = messages[0]["content"].as_str().unwrap();
    assert!(system.contains("ann (user):") && system.contains(old) && system.contains(&fact), "{system}");
    assert!(!system.contains(late), "what the tail has is not recalled: {system}");
    replays(&scope, id, generated.receipt_seq, seen);

    // The answer is a turn; what was recalled for it is none.
    store.index_now().unwrap();
    let found = |query: &str| -> Vec<(Found, Option<everturn_core::id::TurnId>)> {
        let within = RecallOptions { conversation: Some(id), limit: 50, ..RecallOptions::default() };
        let hits = scope.recall(query, &within).unwrap().data;
        hits.into_iter().map(|hit| (hit.kind, hit.turn)).collect()
    };
    assert_eq!(found("\"hangs behind the barometer\""), [(Found::Turn, Some(old_turn.id))]);
    assert_eq!(found("brass"), [(Found::Fact, None)]);
    assert_eq!(found("\"look behind\""), [(Found::Turn, Some(generated.turns[0].id))]);
    // Nor does the next prompt find it in the last one.
    let generated = generate(&scope, id, options).unwrap();
    let again = &server.seen()[1];
    assert_eq!(
        (again.body.matches(old).count(), again.body.matches(&fact).count()),
        (1, 1),
        "{}",
        again.body
    );
    replays(&scope, id, generated.receipt_seq, again);
}
