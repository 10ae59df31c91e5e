//! Conversations over REST.

use crate::stage::Stage;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_made_and_found_again() {
    let stage = Stage::new().await;
    let made = stage.post("/api/v1/conversations", &json!({"title": "Hello"}), 201).await;
    let id = made["id"].as_str().unwrap();
    let found = stage.get(&format!("/api/v1/conversations/{id}"), 200).await;
    assert_eq!(found["title"], "Hello");
    let absent = stage.get("/api/v1/conversations/conv_01JD0000000000000000000000", 404).await;
    assert_eq!(absent["code"], "conversation.absent");
    stage.stop().await;
}
