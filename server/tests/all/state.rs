//! Pins, approvals and the rest of the state over REST.

use crate::stage::Stage;
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn pins_and_approvals_come_and_go() {
    let stage = Stage::new().await;
    let path = format!("/api/v1/conversations/{}", stage.conversation().await);
    let pin = format!("{path}/pins/reply%20language");
    let pinned = stage.send(Method::PUT, &pin, &json!({"value": {"is": "pt"}}), 200).await;
    let ask = json!({"approval_id": "a1", "tool_name": "mail", "question": "Send?"});
    stage.post(&format!("{path}/approvals"), &ask, 201).await;
    let state = stage.get(&format!("{path}/state"), 200).await;
    assert_eq!(state["pins"]["reply language"]["value"], json!({"is": "pt"}));
    assert_eq!(state["pending_approvals"][0]["question"], "Send?");
    let resolve = format!("{path}/approvals/a1/resolve");
    assert_eq!(stage.post(&resolve, &json!({"state": "pending"}), 400).await["code"], "state.malformed");
    assert_eq!(stage.post(&resolve, &json!({"state": "maybe"}), 400).await["code"], "body.shape");
    stage.post(&resolve, &json!({"state": "approved"}), 200).await;
    assert_eq!(stage.post(&resolve, &json!({"state": "approved"}), 404).await["code"], "approval.absent");
    stage.send(Method::DELETE, &pin, &json!({}), 200).await;
    assert_eq!(stage.send(Method::DELETE, &pin, &json!({}), 404).await["code"], "pin.absent");
    let now = stage.get(&format!("{path}/state"), 200).await;
    assert_eq!((&now["pins"], &now["pending_approvals"]), (&json!({}), &json!([])));
    let then = stage.get(&format!("{path}/state?at={}", pinned["seq"]), 200).await;
    assert!(then["pins"].get("reply language").is_some());
    let long = json!({"value": "x".repeat(5000)});
    assert_eq!(stage.send(Method::PUT, &pin, &long, 413).await["code"], "limit.exceeded");
    assert_eq!(stage.send(Method::PUT, &pin, &json!({}), 400).await["code"], "body.shape");
    stage.stop().await;
}
