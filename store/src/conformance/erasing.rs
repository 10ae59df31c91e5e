//! Erasing a turn also erases everything that repeats it, in every conversation.

use super::views::compaction;
use super::*;
use everturn_core::conversation::Settings;
use everturn_core::event::{Body, Draft, kind};
use everturn_core::id::{FactId, Key};
use everturn_core::write::{Action, EventAddress, Write};
use serde_json::json;

/// `seq` of each erased body.
fn gone(store: &dyn Backend, key: &Key) -> Vec<u64> {
    log(store, key).iter().filter(|event| event.body.is_none()).map(|event| event.seq).collect()
}

fn checkpoint(store: &dyn Backend, key: &Key) -> Option<u64> {
    store.conversation(key).expect("it is there").checkpoint.map(|at| at.seq)
}

/// A checkpoint repeats what it covers: also one that a fork made over an inherited turn, one of a fork's fork,
/// and one that is no longer in force. The checkpoint in force afterwards is the one that the log determines.
pub fn erasing_reaches_checkpoints_of_forks_and_those_that_were_taken_back(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork, nested, early) = (m.key(), m.key(), m.key(), m.key());
    let (one, two, three) = (m.say("kept"), m.say("regret"), m.say("kept too"));
    let [first, second, third] = [&one, &two, &three].map(turn_of);
    create(store, &key, vec![m.created(), one, two, three]);
    done(store, m.fork(&early, &key, 2));
    append(store, &early, vec![m.say("elsewhere"), compaction(&m, first, 2, json!(null))]);
    done(store, m.fork(&fork, &key, 4));
    let before = append(store, &fork, vec![compaction(&m, first, 2, json!(null))]).conversation.checkpoint;
    let over = append(store, &fork, vec![compaction(&m, second, 3, json!(before))]).conversation.checkpoint;
    done(store, m.fork(&nested, &fork, 7));
    append(store, &nested, vec![compaction(&m, third, 4, json!(null))]);
    let over_here = append(store, &key, vec![compaction(&m, third, 4, json!(null))]).conversation.checkpoint;
    let back = json!({"previous": over_here, "reverts": over_here.map(|at| at.event), "restores": null});
    append(store, &key, vec![m.draft(kind::COMPACTION, back.to_string())]);
    assert!(over.is_some() && checkpoint(store, &fork) == Some(7));

    let committed = done(store, m.erase(&key, &[second]));
    let place = |key: &Key, seq| EventAddress { conversation: key.id, seq };
    let mut told = committed.erased.clone();
    told.sort();
    let mut expected = vec![place(&key, 3), place(&key, 5), place(&fork, 7), place(&nested, 9)];
    expected.sort();
    assert_eq!(told, expected, "the answer names all of them");
    let all = |store: &dyn Backend| {
        let checkpoints = [&key, &fork, &nested, &early].map(|key| checkpoint(store, key));
        ([&key, &fork, &nested, &early].map(|key| gone(store, key)), checkpoints)
    };
    let erased = [vec![3, 5], vec![3, 7], vec![3, 7, 9], vec![]];
    assert_eq!(all(store), (erased, [None, Some(6), None, Some(5)]));
    let now = all(store);
    store.rebuild().expect("it is made again");
    assert_eq!(all(store), now, "the same as from the log alone");
    for key in [&key, &fork, &nested, &early] {
        verify(store, key);
    }
}

/// A model may still be summarizing text while it is erased: the result is refused, in the same step that would
/// have written it. A result that was read afterwards, or cannot see the erased text, is written.
pub fn what_was_made_of_erased_words_is_not_written(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork, apart) = (m.key(), m.key(), m.key());
    let (one, two) = (m.say("kept"), m.say("regret"));
    let [first, second] = [&one, &two].map(turn_of);
    create(store, &key, vec![m.created(), one]);
    done(store, m.fork(&apart, &key, 2));
    append(store, &key, vec![two]);
    done(store, m.fork(&fork, &key, 3));
    let mark = || store.erasures(&key.tenant).expect("it is counted");
    let derive = |key: &Key, mark| {
        let drafts = vec![compaction(&m, first, 2, json!(null))];
        Write { key: key.clone(), action: Action::Derive { drafts, mark } }
    };
    let before = mark();
    done(store, derive(&apart, before));
    // Requested through the fork: the content is the same.
    done(store, m.erase(&fork, &[second]));
    refused(store, derive(&key, before), "derive.erased");
    refused(store, derive(&fork, before), "derive.erased");
    assert_eq!(gone(store, &key), [3]);
    done(store, derive(&key, mark()));
    let unseen = m.say("nobody else's regret");
    let turn = turn_of(&unseen);
    append(store, &key, vec![unseen]);
    let before = mark();
    done(store, m.erase(&key, &[turn]));
    done(store, derive(&fork, before));
    // Within one batch as well.
    let last = m.say("last regret");
    let turn = turn_of(&last);
    append(store, &fork, vec![last]);
    let checkpoint = store.conversation(&fork).expect("it is there").checkpoint;
    let drafts = vec![compaction(&m, first, 2, json!(checkpoint))];
    let late = Write { key: fork.clone(), action: Action::Derive { drafts, mark: mark() } };
    let answers = store.commit(vec![m.erase(&fork, &[turn]), late]);
    assert_eq!(answers[1].as_ref().map(drop).expect_err("too late").code(), "derive.erased");
    verify(store, &fork);
}

fn corrects(m: &Maker, fact: FactId, object: &str) -> Draft {
    let draft = m.draft(kind::FACT_CORRECTED, "null");
    let right = FactId(draft.id.0);
    let text = json!({"fact": right, "corrects": fact, "object": object, "confidence": 1.0}).to_string();
    Draft { body: Body { text, ..draft.body }, ..draft }
}

/// A correction holds part of a fact. Once nothing is left that the fact was learned from, it is erased too,
/// and so is whatever corrects or retracts the correction.
pub fn a_correction_goes_with_the_last_source_of_its_fact(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork) = (m.key(), m.key());
    let (one, two) = (m.say("I like tea"), m.say("as I said, tea"));
    let [first, second] = [&one, &two].map(turn_of);
    let tea = m.learn(first, "tea");
    let fact = FactId(tea.id.0);
    let again = m.draft(kind::FACT_EXTRACTED, "null");
    let text = json!({"fact": fact, "subject": "s", "predicate": "p", "object": "tea", "confidence": 1.0});
    let again = Draft { turn: Some(second), body: Body { text: text.to_string(), ..again.body }, ..again };
    create(store, &key, vec![m.created(), one, two, tea, again]);
    done(store, m.fork(&fork, &key, 5));
    let green = corrects(&m, fact, "green tea");
    let greener = corrects(&m, FactId(green.id.0), "greener tea");
    let body = json!({"fact": FactId(greener.id.0), "reason": "it was said in anger"}).to_string();
    append(store, &fork, vec![green, greener, m.draft(kind::FACT_RETRACTED, body)]);
    done(store, m.erase(&key, &[first]));
    assert_eq!(gone(store, &fork), [2, 4], "the fact has another source");
    assert_eq!(store.learned_from(&key.tenant, second).expect("it is found").len(), 4);
    store.rebuild().expect("it is made again");
    done(store, m.erase(&key, &[second]));
    assert_eq!(gone(store, &fork), [2, 3, 4, 5, 7, 8, 9]);
    assert_eq!(store.fact(&key.tenant, fact).expect("it is looked for"), None);
    verify(store, &fork);
}

/// Each of two turns keeps what was learned from the other, unless both are erased at once.
pub fn a_correction_goes_when_all_sources_of_its_fact_are_erased_at_once(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (one, two) = (m.say("I like tea"), m.say("as I said, tea"));
    let [first, second] = [&one, &two].map(turn_of);
    let tea = m.learn(first, "tea");
    let fact = FactId(tea.id.0);
    let again = m.draft(kind::FACT_EXTRACTED, "null");
    let text = json!({"fact": fact, "subject": "s", "predicate": "p", "object": "tea", "confidence": 1.0});
    let again = Draft { turn: Some(second), body: Body { text: text.to_string(), ..again.body }, ..again };
    create(store, &key, vec![m.created(), one, two, tea, again, corrects(&m, fact, "green tea")]);
    done(store, m.erase(&key, &[first, second]));
    assert_eq!(gone(store, &key), [2, 3, 4, 5, 6]);
    assert_eq!(store.fact(&key.tenant, fact).expect("it is looked for"), None);
    verify(store, &key);
}

/// A fork's first event records the checkpoint inherited from its parent. It may be erased because of its
/// title.
pub fn a_checkpoint_goes_with_the_event_that_took_it_over(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork) = (m.key(), m.key());
    let (one, two) = (m.say("kept"), m.say("kept too"));
    let first = turn_of(&one);
    create(store, &key, vec![m.created(), one, two]);
    let taken = append(store, &key, vec![compaction(&m, first, 2, json!(null))]).conversation.checkpoint;
    done(store, m.fork(&fork, &key, 4));
    let settings = Settings { title: Some(Some("regret".into())), checkpoint: taken, ..Settings::default() };
    let seq = append(store, &fork, vec![m.update(settings)]).conversation.head.seq;
    assert_eq!(checkpoint(store, &fork), Some(4));
    let committed = done(store, m.erase_events(&fork, &[(&fork, seq)]));
    assert_eq!((committed.conversation.checkpoint, checkpoint(store, &fork)), (None, None));
    assert_eq!(checkpoint(store, &key), Some(4), "the parent keeps its own");
    store.rebuild().expect("it is made again");
    assert_eq!(checkpoint(store, &fork), None, "the same as from the log alone");
    verify(store, &fork);
}

/// A title made from a first message, and imported lines that repeat one, do not name the turn; they are found
/// by their text, also where a fork inherited the title.
pub fn titles_and_imported_lines_that_repeat_a_turn_are_found(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork, other) = (m.key(), m.key(), m.key());
    let words = "please look into the failing test of the parser, it is really quite urgent";
    let titled = |title: &str| Settings { title: Some(Some(title.into())), ..Settings::default() };
    let said = m.say(words);
    let turn = turn_of(&said);
    let line = |text: &str| {
        m.draft(kind::IMPORT_LINE, json!({"type": "last-prompt", "lastPrompt": text}).to_string())
    };
    let created = m.event(kind::CREATED, &titled("please look into the failing test of the parser…"));
    create(
        store,
        &key,
        vec![created, line(words), said, line("something else"), m.update(titled("The parser"))],
    );
    let Write { key: child, action: Action::Create { mut drafts, parent, idempotency } } =
        m.fork(&fork, &key, 5)
    else {
        panic!("it forks")
    };
    drafts.push(m.update(titled(words)));
    done(store, Write { key: child, action: Action::Create { drafts, parent, idempotency } });
    create(store, &other, vec![m.event(kind::CREATED, &titled(words))]);
    let found = || {
        let mut found: Vec<(bool, u64)> = store
            .echoes(&fork, turn)
            .expect("they are looked for")
            .iter()
            .map(|event| (event.conversation == fork.id, event.seq))
            .collect();
        found.sort_unstable();
        found
    };
    assert_eq!(found(), [(false, 1), (false, 2), (true, 7)]);
    store.rebuild().expect("it is made again");
    assert_eq!(found(), [(false, 1), (false, 2), (true, 7)]);
}

/// Events other than turns can be erased too, with everything that followed from them.
pub fn events_of_any_kind_can_be_erased(store: &dyn Backend) {
    let m = Maker::default();
    let (key, other) = (m.key(), m.key());
    let note = m.draft("note", r#"{"it":"said regret"}"#);
    let asset = m.asset("asset_1", b"regret");
    create(
        store,
        &key,
        vec![m.created(), m.draft(kind::IMPORT_LINE, r#"{"message":"regret"}"#), note, asset],
    );
    create(store, &other, vec![m.created(), m.draft("note", "{}")]);
    let theirs = elsewhere(&other);
    done(store, restoration(&theirs, &log(store, &other)));
    let committed = done(store, m.erase_events(&key, &[(&key, 2), (&key, 3), (&key, 4), (&other, 2)]));
    assert_eq!(
        (gone(store, &key), gone(store, &other), gone(store, &theirs)),
        (vec![2, 3, 4], vec![2], vec![])
    );
    assert_eq!((committed.erased.len(), committed.released.len()), (4, 1));
    assert_eq!(store.asset(&key, "asset_1").expect("it is looked for"), None);
    assert_eq!(verify(store, &key).erased, 3);
    assert_eq!(done(store, m.erase_events(&key, &[(&key, 2)])).erased, [], "once is enough");
}

/// Finds everything that an actor of one tenant wrote, also where only a fork still shows it.
pub fn what_an_actor_wrote_is_found_wherever_it_can_be_read(store: &dyn Backend) {
    let m = Maker::default();
    let (key, fork, other) = (m.key(), m.key(), m.key());
    let by = |draft: Draft, actor: &str| Draft { actor: Some(actor.into()), ..draft };
    create(
        store,
        &key,
        vec![m.created(), by(m.say("one"), "ann"), by(m.say("two"), "bob"), by(m.say("three"), "ann")],
    );
    done(store, m.fork(&fork, &key, 3));
    create(store, &other, vec![m.created(), by(m.draft("note", "{}"), "ann")]);
    done(store, restoration(&elsewhere(&key), &log(store, &key)));
    let written = |actor: &str| {
        let (mut found, mut after) = (Vec::new(), 0);
        while let Some(page) = store.written_by(&key.tenant, actor, after).expect("it is found") {
            assert!(page.through > after);
            after = page.through;
            found.extend(page.events.into_iter().map(|one| (one.place, one.seen_in)));
        }
        found
    };
    let place = |key: &Key, seq| EventAddress { conversation: key.id, seq };
    let all = vec![(place(&key, 2), key.id), (place(&key, 4), key.id), (place(&other, 2), other.id)];
    assert_eq!(written("ann"), all);
    assert_eq!((written("bob").len(), written("carl").len()), (1, 0));
    done(store, m.delete(&key));
    assert_eq!(written("ann"), [(place(&key, 2), fork.id), (place(&other, 2), other.id)]);
    done(store, m.erase_events(&other, &[(&other, 2)]));
    assert_eq!(written("ann"), [(place(&key, 2), fork.id)]);
}
