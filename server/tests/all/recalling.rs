//! Recall over HTTP.

use crate::stage::{Stage, config};
use everturn_engine::{Everturn, Options};
use serde_json::json;

/// "Nothing found" alone would suggest that it was never said.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_behind_is_named_in_the_answer() {
    let store = Everturn::open_with("memory:", Options { index: false, ..Options::default() }).unwrap();
    let stage = Stage::over(store.clone(), config()).await;
    let id = stage.conversation().await;
    stage.say(&id, "the lighthouse").await;
    let ask = json!({"query": "lighthouse", "mode": "lexical"});
    let found = stage.post("/api/v1/recall", &ask, 200).await;
    assert_eq!(found["data"], json!([]));
    assert!(found["note"].as_str().unwrap().starts_with("2 events are not in the index yet"), "{found}");
    store.index_now().unwrap();
    let found = stage.post("/api/v1/recall", &ask, 200).await;
    assert_eq!((found["data"].as_array().unwrap().len(), found.get("note")), (1, None), "{found}");
    stage.stop().await;
}
