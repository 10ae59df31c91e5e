//! Statements of facts: found by the fact's id, and erased with the turn that they were learned from.

use super::*;
use everturn_core::event::{Draft, kind};
use everturn_core::id::{FactId, Key, TurnId};
use serde_json::json;

fn fact_of(draft: &Draft) -> FactId {
    FactId(draft.id.0)
}

/// A fact is found by its id without its conversation: in this tenant, and no longer once the conversation is
/// deleted.
pub fn a_fact_is_found_by_its_id_alone(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let said = m.say("I like tea");
    let learned = m.learn(turn_of(&said), "tea");
    let (turn, fact) = (turn_of(&said), fact_of(&learned));
    create(store, &key, vec![m.created(), said, learned]);
    let corrected = m.draft(kind::FACT_CORRECTED, "null");
    let right = fact_of(&corrected);
    let body = json!({"fact": right, "corrects": fact, "object": "green tea", "confidence": 1.0}).to_string();
    let body = everturn_core::event::Body { text: body, ..corrected.body };
    append(store, &key, vec![Draft { body, ..corrected }]);
    let found = |fact| store.fact(&key.tenant, fact).expect("facts are found");
    assert_eq!((found(fact), found(right)), (Some(key.id), Some(key.id)));
    assert_eq!(found(FactId(turn.0)), None);
    assert_eq!(store.fact(&elsewhere(&key).tenant, fact).expect("facts are found"), None);
    store.rebuild().expect("it can be rebuilt");
    assert_eq!(found(fact), Some(key.id));
    done(store, m.delete(&key));
    assert_eq!(found(fact), None);
}

/// Erasing a turn erases the statements learned from it, also in a fork, and nothing else.
pub fn what_was_learned_from_a_turn_is_erased_with_it_wherever_it_was_stated(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork) = (m.key(), m.key());
    let (one, two) = (m.say("I like tea"), m.say("I like milk"));
    let (first, second) = (turn_of(&one), turn_of(&two));
    let (tea, milk) = (m.learn(first, "tea"), m.learn(second, "milk"));
    let (gone, stays) = (fact_of(&tea), fact_of(&milk));
    create(store, &key, vec![m.created(), one, two]);
    done(store, m.fork(&fork, &key, 3));
    append(store, &key, vec![tea, milk]);
    append(store, &fork, vec![m.learn(first, "tea, the fork says"), m.learn(second, "milk")]);
    // The same turns under another tenant must not be touched.
    let theirs = elsewhere(&key);
    done(store, restoration(&theirs, &log(store, &key)));
    let learned = |turn| {
        let all = store.learned_from(&key.tenant, turn).expect("it is found");
        all.into_iter().map(|one| (one.conversation == fork.id, one.fact)).collect::<Vec<_>>()
    };
    assert_eq!((learned(first)[0], learned(first).len(), learned(first)[1].0), ((false, gone), 2, true));
    done(store, m.erase(&fork, &[first]));
    assert_eq!((learned(first).len(), learned(second).len()), (0, 2));
    let words = |key: &Key| {
        let facts = log(store, key).into_iter().filter(|event| kind::is_fact(&event.kind));
        facts.map(|event| event.body.is_some()).collect::<Vec<_>>()
    };
    assert_eq!((words(&key), words(&fork)), (vec![false, true], vec![false, true]));
    assert_eq!(words(&theirs), [true, true]);
    verify(store, &key);
    verify(store, &fork);
    let found = |fact| store.fact(&key.tenant, fact).expect("facts are found");
    assert_eq!((found(gone), found(stays)), (None, Some(key.id)));
    store.rebuild().expect("it can be rebuilt");
    assert_eq!((found(gone), found(stays)), (None, Some(key.id)));
    let absent = TurnId(m.created().id.0);
    refused(store, addition(&key, vec![m.learn(absent, "nothing")]), "turn.absent");
}
