//! Nothing that one tenant stores affects the results of another. With one index for all, the counts behind a
//! score revealed how many entries of any tenant have a word, and prefixes with their scores revealed another
//! tenant's words letter by letter.

use super::recall::ranked;
use super::vectors::{MODEL, embed, meaning};
use super::*;
use everturn_core::id::Key;
use everturn_views::recall::{Filter, TextQuery};

const QUESTIONS: [&str; 9] = [
    "harbour",
    "harbour weather secret",
    "zebra",
    "harb*",
    "zebrafi*",
    "\"harbour master\"",
    "\"harbour master\" weather zebra",
    "build_context",
    "the of",
];

/// All results that a tenant gets, to the last digit.
fn told(store: &dyn Backend, key: &Key) -> Vec<String> {
    let behind = store.behind(Some(&key.tenant), Some(MODEL)).expect("a number");
    let mut told = vec![format!("{behind:?}, {:?}", store.vector_models(Some(&key.tenant)).expect("models"))];
    for conversation in [None, Some(key.id)] {
        let filter = Filter { conversation, ..Filter::default() };
        for question in QUESTIONS {
            let query = TextQuery::parse(question);
            let proposed = store.find_text(&key.tenant, &query, &filter, 20).expect("an answer");
            told.push(format!(
                "{question}: {proposed:?}, {:?}",
                ranked(store, &key.tenant, &query, proposed.clone())
            ));
        }
        for question in ["#1", "#2 #3"] {
            let found = store.find_near(&key.tenant, MODEL, &meaning(question), &filter, 20);
            told.push(format!("{question}: {:?}", found.expect("an answer")));
        }
    }
    told
}

/// The attack: guess another tenant's words by their prefixes and watch every signal of a ranking, whatever the
/// other does.
pub fn what_one_tenant_stores_changes_no_answer_of_another(store: &dyn Backend) {
    let m = Maker::default();
    let own = m.key();
    let mut turns = vec![m.created()];
    for n in 0..12 {
        turns.push(m.say(&format!("a note about the weather of the harbour, number {n} #{}", n % 8)));
    }
    turns.push(m.say("the harbour master calls build_context #1 #2"));
    turns.push(m.say("zebra crossing, harbour harbour #3"));
    create(store, &own, turns);
    embed(store, MODEL);
    let before = told(store, &own);
    assert!(before[1].contains("score"), "something is found: {}", before[1]);
    let same = |after: &str| {
        let now = told(store, &own);
        let changed: Vec<_> = before.iter().zip(&now).filter(|(before, now)| before != now).collect();
        assert!(changed.is_empty(), "{after}: {changed:#?}");
    };

    let (theirs, doomed) = (elsewhere(&own), elsewhere(&m.key()));
    let secret = m.say("the secret word is zebrafish42, harbour master #1");
    let erased = turn_of(&secret);
    create(store, &theirs, vec![m.created(), secret]);
    create(store, &doomed, vec![m.created()]);
    same("while it is not in the index yet");
    for n in 0..40 {
        append(store, &theirs, vec![m.say(&format!("zebrafish{n} and the harb{n} master build_context #2"))]);
        append(store, &doomed, vec![m.say("harbour harbour harbour weather weather of the zebra #1 #2 #3")]);
    }
    embed(store, MODEL);
    same("when it is in the index");
    done(store, m.erase(&theirs, &[erased]));
    done(store, m.delete(&doomed));
    same("before what was removed left the index");
    take_in(store);
    same("when what was removed is out of the index");
}
