//! Session updates that tell an editor about the conversation behind its session.

use everturn_core::event::{Event, kind};
use serde_json::{Map, Value, json};

/// The method under which an editor that knows only the protocol ignores them.
pub const METHOD: &str = "_everturn/session_update";

/// The session update that an event is told as; `None` for events that are not.
pub fn session_update(event: &Event) -> Option<Value> {
    let body: Value = event.read()?;
    match event.kind.as_str() {
        kind::PROJECTION => Some(projected(&body["metadata"])),
        kind::COMPACTION => Some(told(
            "transcript_compacted",
            "everturn",
            &body,
            &[
                ("summarizer", "summarizer"),
                ("tokensBefore", "tokens_before"),
                ("tokensAfter", "tokens_after"),
                ("covers", "covers"),
                ("reverts", "reverts"),
            ],
        )),
        kind::BUDGET => Some(told(
            "transcript_budget",
            "everturn",
            &body,
            &[
                ("action", "action"),
                ("source", "source"),
                ("reason", "reason"),
                ("usageBefore", "usage_before"),
                ("usageAfter", "usage_after"),
                ("removedMessages", "removed_messages"),
                ("removedEvents", "removed_events"),
            ],
        )),
        _ => None,
    }
}

/// `metadata` is the one of the projection's event.
fn projected(metadata: &Value) -> Value {
    let always = [
        ("policy", "policy"),
        ("reason", "reason"),
        ("prefixHash", "prefix_hash"),
        ("keptCount", "kept_count"),
        ("droppedCount", "dropped_count"),
        ("providerSafetyBlocked", "provider_safety_blocked"),
    ];
    let reclaimed = [
        ("redactedCount", "redacted_count"),
        ("reclaimedTokens", "reclaimed_tokens"),
        ("rootsConsulted", "roots_consulted"),
        ("redactionPointers", "redaction_pointers"),
    ];
    let reclaims = metadata["redacted_count"].as_u64().unwrap_or(0) > 0;
    let fields: Vec<_> = always.iter().chain(reclaimed.iter().filter(|_| reclaims)).copied().collect();
    told("transcript_projected", "harn", metadata, &fields)
}

fn told(name: &str, namespace: &str, body: &Value, fields: &[(&str, &str)]) -> Value {
    let present =
        fields.iter().filter_map(|(name, field)| Some((name.to_string(), body.get(*field)?.clone())));
    let meta: Map<String, Value> = present.collect();
    json!({"sessionUpdate": name, "_meta": {namespace: meta}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reclaimed_is_told_only_where_something_was() {
        let metadata = |redacted: u64| {
            json!({"policy": "p", "reason": "r", "prefix_hash": "sha256:x", "kept_count": 2, "dropped_count": 1,
                "provider_safety_blocked": false, "redacted_count": redacted, "reclaimed_tokens": 7,
                "roots_consulted": [], "redaction_pointers": [{}]})
        };
        let plain = projected(&metadata(0));
        assert_eq!(plain["sessionUpdate"], "transcript_projected");
        assert_eq!(plain["_meta"]["harn"]["prefixHash"], "sha256:x");
        assert_eq!(plain["_meta"]["harn"]["reclaimedTokens"], Value::Null);
        assert_eq!(projected(&metadata(1))["_meta"]["harn"]["reclaimedTokens"], 7);
    }
}
