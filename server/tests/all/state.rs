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
    let approve = json!({"state": "approved", "actor": "ana", "reason": "checked"});
    let event = stage.post(&resolve, &approve, 200).await;
    assert_eq!((&event["actor"], &event["body"]["reason"]), (&json!("ana"), &json!("checked")));
    let late = stage.post(&resolve, &json!({"state": "denied"}), 409).await;
    assert_eq!(late["code"], "approval.resolved");
    assert!(late["detail"].as_str().unwrap().contains("was approved by ana at "), "{late}");
    let other = format!("{path}/approvals/a9/resolve");
    assert_eq!(stage.post(&other, &json!({"state": "approved"}), 404).await["code"], "approval.absent");
    let twice = json!({"approval_id": "a1"});
    assert_eq!(stage.post(&format!("{path}/approvals"), &twice, 409).await["code"], "approval.resolved");
    let past = json!({"approval_id": "a2", "deadline": "2000-01-01T00:00:00Z"});
    assert_eq!(stage.post(&format!("{path}/approvals"), &past, 400).await["code"], "approval.deadline");
    for (wrong, status, code) in [
        (json!({"approval_id": ""}), 400, "name.malformed"),
        (json!({"approval_id": "i".repeat(201)}), 413, "limit.exceeded"),
        (json!({"approval_id": "a2", "question": "?".repeat(5000)}), 413, "limit.exceeded"),
    ] {
        assert_eq!(stage.post(&format!("{path}/approvals"), &wrong, status).await["code"], code);
    }
    stage.post(&format!("{path}/approvals"), &json!({"approval_id": "a3"}), 201).await;
    let resolve = format!("{path}/approvals/a3/resolve");
    assert_eq!(stage.post(&resolve, &json!({"state": "expired"}), 400).await["code"], "approval.not_expired");
    stage.post(&resolve, &json!({"state": "cancelled"}), 200).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_is_given_up_and_revived() {
    let stage = Stage::new().await;
    let path = format!("/api/v1/conversations/{}", stage.conversation().await);
    let call = json!({"type": "function_call", "call_id": "c 1", "name": "look", "arguments": "{}"});
    stage.post(&format!("{path}/turns"), &json!({"turns": [{"message": call}]}), 201).await;
    let pending = async || stage.get(&format!("{path}/state"), 200).await["pending_tools"].clone();
    assert_eq!(pending().await[0]["tool_call_id"], "c 1");
    let abandon = format!("{path}/tool-calls/c%201/abandon");
    let event = stage.post(&abandon, &json!({"actor": "ana", "reason": "it hangs"}), 200).await;
    assert_eq!((&event["kind"], &event["actor"]), (&json!("tool.abandoned"), &json!("ana")));
    assert_eq!(pending().await, json!([]));
    assert_eq!(stage.post(&abandon, &json!({}), 404).await["code"], "tool_call.absent");
    let ask = json!({"token_budget": 10_000, "provider": "openai-responses", "input": [{"role": "user", "content": "And?"}]});
    let context = stage.post(&format!("{path}/context"), &ask, 200).await;
    assert!(context["messages"].to_string().contains("abandoned (it hangs)"), "{context}");
    let result = json!({"type": "function_call_output", "call_id": "c 1", "output": "late"});
    stage.post(&format!("{path}/turns"), &json!({"turns": [{"message": result}]}), 201).await;
    let context = stage.post(&format!("{path}/context"), &ask, 200).await;
    assert!(!context["messages"].to_string().contains("abandoned"), "{context}");
    stage.stop().await;
}
