//! Streamed turns.

use crate::stage::Stage;
use serde_json::json;

async fn open(stage: &Stage, id: &str) -> String {
    let turn =
        stage.post(&format!("/api/v1/conversations/{id}/turns/open"), &json!({"actor": "bot"}), 201).await;
    assert_eq!((&turn["status"], &turn["role"]), (&json!("pending"), &json!("assistant")));
    format!("/api/v1/turns/{}", turn["id"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_comes_in_pieces_and_a_repeated_piece_changes_nothing() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = open(&stage, &id).await;
    let chunks = format!("{path}/chunks");
    assert_eq!(stage.post(&chunks, &json!({"delta": "Lis", "offset": 0}), 200).await["length"], 3);
    assert_eq!(stage.post(&chunks, &json!({"delta": "Lis", "offset": 0}), 200).await["length"], 3);
    assert_eq!(stage.post(&chunks, &json!({"delta": "bôa", "offset": 3}), 200).await["length"], 7);
    assert_eq!(stage.post(&chunks, &json!({"delta": "x", "offset": 9}), 409).await["code"], "chunk.offset");
    let done =
        stage.post(&format!("{path}/commit"), &json!({"tokens": {"prompt": 3, "completion": 2}}), 200).await;
    assert_eq!((&done["content"], &done["status"]), (&json!("Lisbôa"), &json!("complete")));
    assert_eq!(done["tokens"]["prompt"], 3);
    assert_eq!(stage.post(&chunks, &json!({"delta": "x"}), 409).await["code"], "turn.not_open");
    stage.post(&format!("{path}/commit"), &json!({}), 409).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_given_up_keeps_what_was_said() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = open(&stage, &id).await;
    stage.post(&format!("{path}/chunks"), &json!({"delta": "I was go"}), 200).await;
    let turn = stage.post(&format!("{path}/abort"), &json!({"reason": "stopped"}), 200).await;
    assert_eq!((&turn["status"], &turn["reason"]), (&json!("aborted"), &json!("stopped")));
    assert_eq!(stage.get(&path, 200).await["content"], "I was go");
    let path = open(&stage, &id).await;
    stage.post(&format!("{path}/chunks"), &json!({"delta": "draft"}), 200).await;
    let last = json!({"content": [{"type": "text", "text": "final"}]});
    let turn = stage.post(&format!("{path}/commit"), &last, 200).await;
    assert_eq!(turn["content"][0]["text"], "final");
    stage.stop().await;
}

/// Acknowledged chunks are the content, unless other content is given.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_words_keeps_what_came_in_chunks() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let calls = json!([{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    for (last, content) in [
        (json!({}), "kept"),
        (json!({"role": "assistant"}), "kept"),
        (json!({"tool_calls": calls}), "kept"),
        (json!({"role": "assistant", "content": "other"}), "other"),
    ] {
        let open = stage.post(&format!("/api/v1/conversations/{id}/turns/open"), &json!({}), 201).await;
        let turn = format!("/api/v1/turns/{}", open["id"].as_str().unwrap());
        stage.post(&format!("{turn}/chunks"), &json!({"delta": "kept"}), 200).await;
        let ended = stage.post(&format!("{turn}/commit"), &last, 200).await;
        assert_eq!((&ended["content"], &ended["role"]), (&json!(content), &json!("assistant")), "{last}");
        assert_eq!(ended.get("tool_calls"), last.get("tool_calls"), "{last}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_turn_can_be_read_with_its_text_so_far() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = open(&stage, &id).await;
    assert_eq!(stage.get(&path, 200).await["partial"], json!({"text": "", "offset": 0}));
    stage.post(&format!("{path}/chunks"), &json!({"delta": "Lisbôa, "}), 200).await;
    let half = json!({"text": "Lisbôa, ", "offset": 9});
    // It is durable within the debounce time.
    while stage.get(&path, 200).await["partial"] != half {}
    let turns = stage.get(&format!("/api/v1/conversations/{id}/turns"), 200).await;
    assert_eq!((&turns["data"][0]["partial"], &turns["data"][0]["status"]), (&half, &json!("pending")));
    stage.post(&format!("{path}/commit"), &json!({}), 200).await;
    let turn = stage.get(&path, 200).await;
    assert_eq!((turn.get("partial"), &turn["content"]), (None, &json!("Lisbôa, ")));
    stage.stop().await;
}
