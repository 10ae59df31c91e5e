//! What comes first in an answer, with the built-in embedder.

use crate::stage::{Short, quiet};
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use everturn_engine::model::BuiltinEmbedder;
use everturn_engine::{Everturn, NewTurn, Options, RecallMode, RecallOptions, Recalled, Tenant};
use std::sync::Arc;

fn memory() -> (Everturn, Tenant) {
    let options = Options { embedder: Some(Arc::new(BuiltinEmbedder::new())), ..quiet() };
    let store = Everturn::open_with("memory:", options).unwrap();
    let scope = store.tenant("acme").unwrap();
    (store, scope)
}

/// A conversation in which these were said one after the other.
fn said(store: &Everturn, scope: &Tenant, texts: &[&str]) -> ConversationId {
    let id = scope.begin();
    texts.iter().for_each(|text| drop(scope.say(id, NewTurn::user(text))));
    store.index_now().unwrap();
    id
}

fn recall(scope: &Tenant, question: &str, mode: RecallMode) -> Recalled {
    scope.recall(question, &RecallOptions { mode, ..RecallOptions::default() }).unwrap()
}

fn texts(recalled: &Recalled) -> Vec<&str> {
    recalled.data.iter().map(|hit| hit.snippet.text.as_str()).collect()
}

#[test]
fn who_speaks_is_part_of_what_is_found() {
    let (store, scope) = memory();
    let id = scope.begin();
    for (actor, text) in [("ana", "I would take the train"), ("ben", "I would take the boat")] {
        scope.say(id, NewTurn::user(text).by(actor));
    }
    store.index_now().unwrap();
    for mode in [RecallMode::Lexical, RecallMode::Vector, RecallMode::Hybrid] {
        for (actor, text) in [("Ana", "I would take the train"), ("Ben", "I would take the boat")] {
            let found = recall(&scope, &format!("what would {actor} take?"), mode);
            assert_eq!(texts(&found)[0], text, "{mode} {actor}");
        }
    }
}

#[test]
fn other_forms_of_a_word_are_found_after_the_word_itself() {
    let (store, scope) = memory();
    said(&store, &scope, &["somebody is locking the file", "see file_locking.rs", "the lock is free"]);
    let found = recall(&scope, "lock", RecallMode::Lexical);
    assert_eq!(texts(&found), ["the lock is free", "somebody is locking the file"]);
    assert_eq!(found.data[1].snippet.marked("[", "]"), "somebody is [locking] the file");
}

#[test]
fn a_phrase_must_be_there_in_both_ways_of_looking() {
    let (store, scope) = memory();
    said(
        &store,
        &scope,
        &["the write ahead log is large", "ahead of the log we write", "a big journal file"],
    );
    for mode in [RecallMode::Lexical, RecallMode::Hybrid] {
        let found = recall(&scope, "how big is the \"write ahead log\"?", mode);
        assert_eq!(texts(&found), ["the write ahead log is large"], "{mode}");
    }
}

/// Turns that neither share a word nor come near were among the answers where the embedder knows no word of the question.
#[test]
fn a_hit_without_a_reason_is_none() {
    let (store, scope) = memory();
    said(&store, &scope, &["Buy milk.", "And the marmalade?", "Call the plumber at nine."]);
    assert_eq!(texts(&recall(&scope, "marmalade", RecallMode::Hybrid)), ["And the marmalade?"]);
    assert_eq!(texts(&recall(&scope, "quetzalcoatl77", RecallMode::Hybrid)), Vec::<&str>::new());
}

/// Ten turns that have nothing to do with a question were its answer: the ten that were the least far away.
#[test]
fn a_question_about_nothing_finds_nothing() {
    let (store, scope) = memory();
    said(
        &store,
        &scope,
        &["the invoices are sent on Fridays", "Postgres keeps the orders", "we meet at noon"],
    );
    for question in ["xqzzt blorf wibblenix", "purple elephant accordion"] {
        let found = recall(&scope, question, RecallMode::Hybrid);
        assert_eq!(texts(&found), [""; 0], "{question}");
    }
    assert_eq!(
        texts(&recall(&scope, "when are bills mailed?", RecallMode::Hybrid)).first(),
        Some(&"the invoices are sent on Fridays")
    );
}

/// An answer seldom repeats the words of its question.
#[test]
fn an_answer_is_found_by_the_question_before_it() {
    let (store, scope) = memory();
    for n in 0..20 {
        said(&store, &scope, &[&format!("the kitchen needs {n} new chairs"), "Sure, will do."]);
    }
    let id = said(&store, &scope, &["Which city did you choose for the honeymoon?", "Lisbon!", "Lovely."]);
    let found = recall(&scope, "city of the honeymoon", RecallMode::Hybrid);
    assert_eq!(texts(&found)[..2], ["Which city did you choose for the honeymoon?", "Lisbon!"]);
    let (asked, answer) = (&found.data[0], &found.data[1]);
    assert_eq!((answer.conversation, answer.matched.beside), (id, Some(asked.seq)));
    assert_eq!(asked.matched.beside, None);
}

/// Most hits of a file's name did not contain it, and were only beside one that did.
#[test]
fn a_neighbour_is_no_hit_of_a_single_word() {
    let (store, scope) = memory();
    for n in 0..20 {
        said(&store, &scope, &[&format!("the kitchen needs {n} new chairs"), "Sure, will do."]);
    }
    said(&store, &scope, &["Look at a.txt first.", "Fine.", "Then send a.txt to Mia.", "Right away."]);
    let found = recall(&scope, "a.txt", RecallMode::Hybrid);
    assert_eq!(found.data.len(), 2, "{:?}", texts(&found));
    assert!(found.data.iter().all(|hit| hit.snippet.text.contains("a.txt") && !hit.snippet.marks.is_empty()));
}

/// The table knows English: in other languages words decide.
#[test]
fn meaning_does_not_make_words_worse_in_other_languages() {
    let (store, scope) = memory();
    let turns = [
        "Die Lieferungen nach Österreich gehen über Passau.",
        "Der Schlüssel liegt bei Frau Brandt am Empfang.",
        "Die Lieferung nach Bern geht über Basel.",
        "La llave del almacén la guarda Marta en el cajón.",
        "El tren a Sevilla sale del andén cuatro.",
        "机房的钥匙在前台王小姐那里。",
        "去上海的火车从三号站台出发。",
        "サーバー室の鍵は田中さんが持っています。",
        "京都行きの電車は三番ホームから出ます。",
    ];
    said(&store, &scope, &turns);
    for (question, answer) in [
        ("wie kommt die Lieferung nach Österreich?", 0),
        ("wer hat die Schlüssel?", 1),
        ("¿quién guarda las llaves del almacén?", 3),
        ("¿de qué andén salen los trenes a Sevilla?", 4),
        ("机房钥匙在谁那里？", 5),
        ("上海的火车几号站台？", 6),
        ("サーバー室の鍵は誰が持っている？", 7),
        ("京都行きの電車は何番ホーム？", 8),
    ] {
        let [words, both] =
            [RecallMode::Lexical, RecallMode::Hybrid].map(|mode| recall(&scope, question, mode));
        assert_eq!(texts(&words)[0], turns[answer], "{question}");
        assert_eq!(texts(&both)[0], turns[answer], "{question}");
    }
}

#[test]
fn a_time_in_the_question_lifts_what_was_said_then() {
    let (store, scope) = memory();
    let id = scope.begin();
    let at = |time: &str| Some(time.parse::<Timestamp>().unwrap());
    for (month, text) in [
        ("2023-03", "We moved the backups to Helsinki"),
        ("2023-05", "We moved the backups to Hamburg"),
        ("2023-08", "We moved the backups to Vienna"),
    ] {
        let turn = NewTurn { occurred_at: at(&format!("{month}-17T12:00:00Z")), ..NewTurn::user(text) };
        scope.say(id, turn);
    }
    store.index_now().unwrap();
    for (question, text) in [
        ("where did we move the backups in May 2023?", "We moved the backups to Hamburg"),
        ("where did we move the backups on 17 March 2023?", "We moved the backups to Helsinki"),
    ] {
        let found = recall(&scope, question, RecallMode::Hybrid);
        assert_eq!((texts(&found)[0], found.data.len()), (text, 3), "{question}");
    }
}

/// A small store does not answer every question with everything that it has.
#[test]
fn what_has_nothing_to_do_with_a_question_is_left_out() {
    let (store, scope) = memory();
    said(&store, &scope, &["The giraffe was born in the zoo of Prague."]);
    said(&store, &scope, &["Bump the parser to 1.4, then the build is green."]);
    let found = recall(&scope, "which animal was born?", RecallMode::Hybrid);
    assert_eq!(texts(&found), ["The giraffe was born in the zoo of Prague."]);
    assert_eq!(recall(&scope, "which animal was born?", RecallMode::Vector).data.len(), 2);
}
