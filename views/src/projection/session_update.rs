//! Notification of a host about a projection.

use serde_json::{Map, Value, json};

/// The session update of the Agent Client Protocol that reports a projection to a host. `metadata` is the
/// event's.
pub fn session_update(metadata: &Value) -> Value {
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
    let fields = always.iter().chain(reclaimed.iter().filter(|_| reclaims));
    let told: Map<String, Value> =
        fields.map(|(name, field)| (name.to_string(), metadata[*field].clone())).collect();
    json!({"sessionUpdate": "transcript_projected", "_meta": {"harn": told}})
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
        let plain = session_update(&metadata(0));
        assert_eq!(plain["sessionUpdate"], "transcript_projected");
        assert_eq!(plain["_meta"]["harn"]["prefixHash"], "sha256:x");
        assert_eq!(plain["_meta"]["harn"]["reclaimedTokens"], Value::Null);
        assert_eq!(session_update(&metadata(1))["_meta"]["harn"]["reclaimedTokens"], 7);
    }
}
