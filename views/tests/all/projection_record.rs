//! Several policies in order, views rebuilt from their event, and frozen decisions.

use crate::projection::{call, custom, failed_then_repaired, long, pick, read, result, view};
use crate::projection_reclaim::gc;
use everturn_views::projection::{ViewOptions, project, project_after, replay, resolve_pointer};
use serde_json::{Value, json};

#[test]
fn policies_in_a_list_apply_in_order_and_indices_are_those_of_the_transcript() {
    let given = json!([
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"ls","input":{}},{"type":"tool_use","id":"b","name":"cat","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x","is_error":true},{"type":"tool_result","tool_use_id":"b","content":long("y")}]},
        {"role":"user","content":"thanks"},
    ]);
    let messages = read(&given);
    let both = view(&messages, gc(json!({"policy":["squash_failed_calls","reachability_gc"]})));
    assert_eq!(both.reason, "squash_failed_calls; reachability_gc");
    // The body is the second block of the transcript's message, but the first one of the view's.
    assert_eq!(both.redaction_pointers[0].source, "transcript.messages[1].content[1].content");
    assert_eq!(both.messages[1].value()["content"].as_array().unwrap().len(), 1);
    resolve_pointer(&messages, &serde_json::to_value(&both.redaction_pointers[0]).unwrap()).unwrap();
    assert_eq!(replay(&messages, &both.event()["metadata"]).unwrap().prefix_hash, both.prefix_hash);
    let hidden = json!({"type":"tool_use","id":"a","name":"ls","input":{}}).to_string().len();
    let failed =
        json!({"type":"tool_result","tool_use_id":"a","content":"x","is_error":true}).to_string().len();
    assert_eq!(both.reclaimed_chars, hidden + failed + both.redaction_pointers[0].content_chars);
    // A body that a later policy drops is not also counted as reclaimed.
    let dropped = view(&messages, gc(json!({"policy":["reachability_gc","summary_prefix"],"root_window":0})));
    assert_eq!((dropped.redacted_count, dropped.dropped_count), (0, 3));
    assert_eq!(
        dropped.reclaimed_chars,
        messages.iter().map(|m| m.raw().get().chars().count()).sum::<usize>()
    );
}

#[test]
fn replay_gives_the_view_again_or_says_what_differs() {
    let given = failed_then_repaired();
    let messages = read(&given);
    let options = json!({"policy":["clean_tool_repair","summary_prefix"],"keep_last":2});
    let first = project(&messages, Some("so far"), &ViewOptions::parse(&options).unwrap()).unwrap();
    let metadata = &first.event()["metadata"];
    let mut longer = read(&given);
    longer.extend(read(&json!([{"role":"user","content":"more"}])));
    let again = replay(&longer, metadata).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&first).unwrap());

    let mut other = given.clone();
    other[5]["content"] = "there is nothing".into();
    let error = replay(&read(&other), metadata).unwrap_err();
    assert!(error.code() == "projection.replay" && error.text().contains(&first.prefix_hash), "{error}");
    let error = replay(&messages[..3], metadata).unwrap_err();
    assert!(error.text().contains("made of 6 messages, here are 3"), "{error}");
    assert_eq!(replay(&messages, &json!({})).unwrap_err().code(), "projection.metadata");
    // A body that is not shown is part of what is rebuilt.
    let given =
        |body: &str| read(&json!([call("a", "ls"), result("a", &long(body)), {"role":"user","content":"x"}]));
    let messages = given("one");
    let metadata = view(&messages, gc(json!({}))).event()["metadata"].clone();
    assert_eq!(replay(&given("two"), &metadata).unwrap_err().code(), "projection.pointer_hash");
}

#[test]
fn a_projectors_view_is_replayed_from_indices_unless_it_wrote_messages() {
    let messages = read(&failed_then_repaired());
    let picked = custom(&messages, json!("custom"), |m| pick(m, &[0, 5]));
    assert_eq!(replay(&messages, &picked.event()["metadata"]).unwrap().prefix_hash, picked.prefix_hash);
    let written = custom(&messages, json!("custom"), |_| json!([{"role":"user","content":"other"}]));
    let error = replay(&messages, &written.event()["metadata"]).unwrap_err();
    assert!(error.text().contains("run that projector again"), "{error}");
}

#[test]
fn the_event_keeps_root_material_only_as_its_hash() {
    let messages = read(&failed_then_repaired());
    let view = view(&messages, gc(json!({"scratchpad":"a very private plan"})));
    let options = &view.event()["metadata"]["options"];
    assert!(options["scratchpad"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(options["root_window"], 1);
}

#[test]
fn frozen_decisions_stay_until_enough_can_be_gained() {
    let turn = |n: usize| {
        vec![call(&format!("c{n}"), "ls"), result(&format!("c{n}"), &long(&format!("src/f{n}.rs")))]
    };
    let transcript = |turns: usize| -> Value { (0..turns).flat_map(turn).collect() };
    let tokens = long("src/f0.rs").chars().count() / 4;
    let options = |freeze: usize| {
        let options = json!({"policy":"reachability_gc","root_window":2,"freeze":freeze,"scratchpad":"x"});
        ViewOptions::parse(&options).unwrap()
    };
    let first_messages = read(&transcript(3));
    let first = project(&first_messages, None, &options(1)).unwrap();
    assert_eq!(first.redacted_indices, [1, 3]);
    assert_eq!(first.unchanged_leading_tokens, None);

    // Two more turns could each give up their body; that is not enough for a freeze of three bodies.
    let messages = read(&transcript(5));
    let frozen =
        project_after(&messages, None, &options(3 * tokens), Some(&first.event()["metadata"])).unwrap();
    assert_eq!(
        (&frozen.redacted_indices[..], frozen.reason.as_str()),
        (&[1, 3][..], "reachability_gc_frozen")
    );
    let chars: usize = first.messages.iter().map(|shown| shown.raw().get().chars().count()).sum();
    assert_eq!(frozen.unchanged_leading_tokens, Some(chars / 4));
    assert_eq!(frozen.event()["metadata"]["unchanged_leading_tokens"], chars / 4);
    assert_eq!(replay(&messages, &frozen.event()["metadata"]).unwrap().prefix_hash, frozen.prefix_hash);

    let fresh =
        project_after(&messages, None, &options(2 * tokens), Some(&first.event()["metadata"])).unwrap();
    assert_eq!(fresh.redacted_indices, [1, 3, 5, 7]);
    let same: usize = first.messages[..5].iter().map(|shown| shown.raw().get().chars().count()).sum();
    assert_eq!(fresh.unchanged_leading_tokens, Some(same / 4));
}

#[test]
fn decisions_about_other_messages_or_of_another_policy_are_not_kept() {
    let messages = read(&failed_then_repaired());
    let frozen = |policy: &str| ViewOptions::parse(&json!({"policy":policy,"freeze":1_000_000})).unwrap();
    let previous = project(&messages, None, &frozen("raw")).unwrap();
    let after = |messages, policy| {
        project_after(messages, None, &frozen(policy), Some(&previous.event()["metadata"])).unwrap()
    };
    assert_eq!(after(&messages, "raw").reason, "raw_frozen");
    assert_eq!(after(&messages, "clean_tool_repair").dropped_count, 2);
    let compacted = read(&json!([{"role":"system","content":"summary"},{"role":"user","content":"go"}]));
    assert_eq!(after(&compacted, "raw").unchanged_leading_tokens, Some(0));
    // The same number, but different ones.
    let mut other = failed_then_repaired();
    other[0]["content"] = "something else".into();
    let other = read(&other);
    let view = after(&other, "raw");
    assert_eq!((view.reason.as_str(), view.unchanged_leading_tokens), ("raw_passthrough", Some(0)));
    let error = project_after(&messages, None, &frozen("raw"), Some(&json!({"policy":"raw"}))).unwrap_err();
    assert_eq!(error.code(), "projection.metadata");
}
