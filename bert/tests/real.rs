//! A real sentence model, all-MiniLM-L6-v2: finds what shares no word with the question. `./test bert` sets it up.

use everturn_engine::model::Embedder;
use everturn_engine::{Everturn, Options, RecallMode, RecallOptions};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[test]
fn a_real_model_from_a_folder_finds_what_shares_no_word_with_the_question() {
    let folder = std::env::var("EVERTURN_TEST_MODEL").expect("the folder of a model: ./test bert sets it");
    everturn_bert::install();
    let embedder = format!("folder:{folder}").parse::<Embedder>().unwrap().open().unwrap();
    let store =
        Everturn::open_with("memory:", Options { embedder: Some(embedder), ..Options::default() }).unwrap();
    let tenant = store.tenant("default").unwrap();
    let chat = tenant.create("").wait().unwrap();
    let said = [
        ("The physician will see you on Tuesday morning.", "medical appointment"),
        ("Our kitten sleeps on the warm sofa.", "a pet at home"),
        ("The invoice must be settled by Friday.", "paying a bill"),
        ("Heavy showers are expected over the weekend.", "how wet does it get?"),
        ("Compilation fails since the upgrade.", "broken builds"),
    ];
    for (text, _) in said {
        chat.append(text).wait().unwrap();
    }
    let end = Instant::now() + Duration::from_secs(120);
    while tenant.recall("anything", &RecallOptions::default()).unwrap().behind != Default::default() {
        assert!(Instant::now() < end, "the vectors do not come");
    }
    for (text, query) in said {
        assert!(words(text).is_disjoint(&words(query)), "{query:?} would be found by its words");
        let found = tenant.recall(query, &RecallOptions::default()).unwrap();
        let best = &found.data[0];
        assert_eq!((found.mode, best.snippet.text.as_str()), (RecallMode::Hybrid, text));
        assert!(
            best.matched.vector.as_ref().is_some_and(|rank| rank.rank == 1) && best.matched.lexical.is_none()
        );
    }
}
