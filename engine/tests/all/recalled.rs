//! Facts that are recalled into a prompt: which ones, where they stand, what gives way to what, and the same bytes again.

use crate::stage::{Short, memory, refused};
use everturn_core::fact::Fact;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::turn::Turn;
use everturn_engine::{
    Context, ContextOptions, Correction, Digest, Everturn, NewFact, NewTurn, RecallRequest, Tenant,
};
use everturn_views::context::{BlockSource, Section, Sections};
use serde_json::json;
use std::collections::BTreeSet;

/// A conversation that knows something of the harbour, and has talked about other things since.
struct Harbour {
    store: Everturn,
    scope: Tenant,
    id: ConversationId,
    /// The turn that the crane was learned from.
    said: Turn,
    crane: Fact,
    pilot: Fact,
}

fn new(subject: &str, predicate: &str, object: &str) -> NewFact {
    let [subject, predicate, object] = [subject, predicate, object].map(str::to_string);
    NewFact { subject, predicate, object, ..NewFact::default() }
}

fn harbour() -> Harbour {
    let (store, scope) = memory();
    let id = scope.begin();
    let said = scope.say(id, NewTurn::user("The harbour crane lifts forty tonnes, said Olsen.").by("ann"));
    for n in 0..30 {
        scope.say(id, NewTurn::assistant(&format!("Something else, number {n}. {}", "Chatter. ".repeat(5))));
    }
    let add = |fact| scope.conversation(id).facts().add(fact).unwrap();
    let learned = NewFact { source_turn: Some(said.id), ..new("the harbour crane", "lifts", "40 t") };
    let crane = add(learned);
    add(new("the harbour pilot", "is", "Nilsen"));
    let pilot = add(new("the harbour pilot", "is", "Bergström"));
    let gone = add(new("the harbour gate", "opens at", "six"));
    scope.conversation(id).facts().retract(gone.id, None, None).unwrap();
    add(new("the bakery", "sells", "rolls"));
    let elsewhere = scope.begin();
    scope.conversation(elsewhere).facts().add(new("the harbour of Oslo", "is", "frozen")).unwrap();
    store.index_now().unwrap();
    Harbour { store, scope, id, said, crane, pilot }
}

fn asks(token_budget: u64) -> ContextOptions {
    let input = json!({"role": "user", "content": "Who runs our harbour?"});
    ContextOptions {
        recall: Some(RecallRequest { turns: 2, facts: 5, query: None }),
        input: vec![Raw::of(&input).unwrap()],
        last_n: Some(8),
        ..ContextOptions::new(token_budget)
    }
}

/// Everything that the model reads, as one text.
fn read(context: &Context) -> String {
    let parts = context.system.iter().chain(&context.messages);
    parts.map(Raw::get).collect::<Vec<_>>().join("\n")
}

fn facts_in(context: &Context) -> BTreeSet<String> {
    let blocks = context.receipt.blocks.iter().filter(|block| block.section == Section::Facts);
    let ids = blocks.flat_map(|block| match &block.source {
        BlockSource::Ids(ids) => ids.clone(),
        other => panic!("{other:?} is no fact"),
    });
    ids.collect()
}

#[test]
fn the_facts_that_hold_are_in_their_section_with_their_ids_in_the_receipt() {
    let Harbour { scope, id, crane, pilot, .. } = harbour();
    let context = scope.conversation(id).contexts().build(&asks(4000)).unwrap();
    assert_eq!(facts_in(&context), BTreeSet::from([crane.id.to_string(), pilot.id.to_string()]));
    assert_eq!(context.included, context.receipt.blocks);
    assert!(context.tokens.by_section[&Section::Facts] > 0);
    let said = read(&context);
    let place = |text: &str| said.find(text).unwrap_or_else(|| panic!("{text} in {said}"));
    let recalled = place("# Earlier turns");
    for fact in ["the harbour crane lifts 40 t", "the harbour pilot is Bergström"] {
        assert!(place("# Facts") < place(fact) && place(fact) < recalled, "{said}");
    }
    assert!(recalled < place("said Olsen"));
    for other in ["Nilsen", "opens at", "rolls", "frozen"] {
        assert!(!said.contains(other), "{other}: superseded, retracted, not asked for, elsewhere:\n{said}");
    }
    let recall = |facts| Some(RecallRequest { turns: 0, facts, query: None });
    let one =
        scope.conversation(id).contexts().build(&ContextOptions { recall: recall(1), ..asks(4000) }).unwrap();
    assert_eq!((facts_in(&one).len(), read(&one).contains("said Olsen")), (1, false));
    let sections = Sections::parse(&json!({"facts": false})).unwrap();
    let none = scope.conversation(id).contexts().build(&ContextOptions { sections, ..asks(4000) }).unwrap();
    assert_eq!((facts_in(&none).len(), read(&none).contains("said Olsen")), (0, true));
}

/// Recalled turns first, then facts, then digests, and the tail last, whatever the budget.
#[test]
fn facts_give_way_after_recalled_turns_and_before_digests() {
    let Harbour { scope, id, .. } = harbour();
    // Room enough for each, so that none goes for want of a share while there is room.
    let shares = json!({"facts": {"share": 0.9}, "recalled": {"share": 0.9}, "digests": {"share": 0.9}});
    let options = |budget| ContextOptions {
        sections: Sections::parse(&shares).unwrap(),
        digests: vec![Digest { title: "Board".into(), text: "two are open, and one of them waits".into() }],
        ..asks(budget)
    };
    let flexible = [Section::Facts, Section::Recalled, Section::Digests];
    let mut seen: Vec<Vec<Section>> = Vec::new();
    let mut budget = 500;
    while let Ok(context) = scope.conversation(id).contexts().build(&options(budget)) {
        let here = context.tokens.by_section.keys().copied().filter(|section| flexible.contains(section));
        let here: Vec<Section> = here.collect();
        let tail = context.included.iter().filter(|block| block.section == Section::Tail).count();
        assert!(tail == 8 || here.is_empty(), "the tail goes last: {tail} turns beside {here:?}");
        for section in flexible.into_iter().filter(|section| !here.contains(section)) {
            let left = context.left_out.iter().filter(|left| left.section == section);
            assert_ne!(left.count(), 0, "{section} is gone without a word at {budget}");
        }
        if seen.last() != Some(&here) {
            seen.push(here);
        }
        budget -= 4;
    }
    let order = [&flexible[..], &[Section::Facts, Section::Digests], &[Section::Digests], &[]];
    assert_eq!(seen, order, "down to a budget of {budget}");
}

#[test]
fn a_receipt_gives_the_facts_back_as_they_were_or_says_which_one_is_gone() {
    let Harbour { store, scope, id, said, crane, pilot } = harbour();
    let context = scope.conversation(id).contexts().build(&asks(4000)).unwrap();
    let seq = scope.conversation(id).contexts().record(&context).unwrap().seq;
    let the_same = |when: &str| {
        store.index_now().unwrap();
        let replay = scope.conversation(id).contexts().replay_at(seq).unwrap();
        assert_eq!(read(&replay), read(&context), "{when}");
        assert_eq!((&replay.included, &replay.prefix_hash), (&context.included, &context.prefix_hash));
    };
    the_same("at once");
    scope.conversation(id).facts().add(new("the harbour master", "is", "Dahl")).unwrap();
    the_same("when there is more to find");
    let correction = Correction { object: Some("50 t".into()), ..Correction::default() };
    scope.conversation(id).facts().correct(crane.id, correction).unwrap();
    the_same("after a correction");
    scope.conversation(id).facts().retract(pilot.id, None, None).unwrap();
    the_same("after a retraction");
    let now = read(&scope.conversation(id).contexts().build(&asks(4000)).unwrap());
    assert!(now.contains("50 t") && now.contains("Dahl") && !now.contains("Bergström"), "{now}");
    // What it was learned from is erased. Alone in the prompt, the fact is what the answer must name.
    let recall = Some(RecallRequest { turns: 0, facts: 5, query: Some("crane".into()) });
    let at_seq = Some(context.receipt.through_seq);
    let alone =
        scope.conversation(id).contexts().build(&ContextOptions { recall, at_seq, ..asks(4000) }).unwrap();
    assert!(facts_in(&alone).contains(&crane.id.to_string()) && !read(&alone).contains("said Olsen"));
    scope.conversation(id).erase(said.id, None, "asked for").wait().unwrap();
    refused(
        scope.conversation(id).contexts().replay(&alone.receipt),
        "receipt.erased",
        &format!("{} was erased", crane.id),
    );
    refused(scope.conversation(id).contexts().replay_at(seq), "receipt.erased", "can no longer be shown");
}
