//! Properties of projection over every transcript in every shape.
//!
//! The validity check follows the documented demands of providers and does not use `pairing`.

use crate::projection_generated::{options, transcript};
use everturn_core::json::Raw;
use everturn_core::pairing::pair;
use everturn_views::projection::{
    Message, ProjectedView, Signatures, ViewOptions, project, project_after, replay, resolve_pointer,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashSet;

/// The reason for which a provider would refuse the messages, if any.
///
/// The calls of a turn are in one message or in a run of items, and the results follow at once. Each result
/// answers a call of that turn, and each call has a result unless it is in the very last turn and none was
/// answered.
fn refusal(messages: &[Value]) -> Option<String> {
    let mut at = 0;
    while at < messages.len() {
        let mut calls: Vec<(Option<String>, String)> = Vec::new();
        let mut reasons_for_nothing = false;
        while at < messages.len() && is_assistant(&messages[at]) {
            let message = &messages[at];
            reasons_for_nothing = message["type"] == "reasoning";
            if message.get("role").is_some() {
                // A new message is a new turn: the calls before it can no longer be answered.
                if let Some((id, name)) = calls.first() {
                    return Some(format!("{name} {id:?} has no result before message {at}"));
                }
                let speaks = |block: &Value| !matches!(block["type"].as_str(), Some("thinking"));
                let silent = match &message["content"] {
                    Value::Array(blocks) => !blocks.iter().any(speaks),
                    Value::String(text) => text.is_empty(),
                    _ => true,
                };
                match message.get("tool_calls") {
                    Some(list) if list.as_array().is_none_or(Vec::is_empty) => {
                        return Some(format!("{at}: no calls"));
                    }
                    None if silent => return Some(format!("message {at} is empty")),
                    _ => {}
                }
            }
            calls.extend(calls_of(message));
            at += 1;
            if at < messages.len() && messages[at].get("role").is_some() && !calls.is_empty() {
                break;
            }
        }
        if reasons_for_nothing && at < messages.len() {
            return Some(format!("the reasoning before message {at} leads to nothing"));
        }
        let (made, turn_end) = (calls.len(), at);
        while at < messages.len() && !is_assistant(&messages[at]) {
            for (id, name) in results_of(&messages[at]) {
                if calls.is_empty() && made == 0 {
                    return Some(format!("the result {id:?} in message {at} has no call"));
                }
                let answers = |call: &(Option<String>, String)| match (&id, &call.0) {
                    (Some(id), Some(call)) => id == call,
                    _ => name.as_ref() == Some(&call.1),
                };
                match calls.iter().position(answers) {
                    Some(call) => calls.remove(call),
                    None => return Some(format!("the result {id:?} {name:?} in message {at} has no call")),
                };
            }
            if messages[at]["content"] == json!([])
                || messages[at]["content"].is_null() && messages[at].get("role").is_some()
            {
                return Some(format!("message {at} is empty"));
            }
            at += 1;
        }
        if let Some((id, name)) = calls.first()
            && (turn_end < messages.len() || calls.len() < made)
        {
            return Some(format!("{name} {id:?} before message {turn_end} has no result"));
        }
    }
    None
}

fn is_assistant(message: &Value) -> bool {
    message["role"] == "assistant" || message["type"] == "function_call" || message["type"] == "reasoning"
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_string)
}

fn calls_of(message: &Value) -> Vec<(Option<String>, String)> {
    let mut calls = Vec::new();
    if message["type"] == "function_call" {
        calls.push((text(&message["call_id"]), text(&message["name"]).unwrap()));
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        calls.push((text(&call["id"]), text(&call["function"]["name"]).unwrap()));
    }
    for block in message["content"].as_array().into_iter().flatten() {
        if block["type"] == "tool_use" || block["type"] == "tool_call" {
            calls.push((text(&block["id"]), text(&block["name"]).unwrap()));
        }
    }
    calls
}

fn results_of(message: &Value) -> Vec<(Option<String>, Option<String>)> {
    if message["type"] == "function_call_output" {
        return vec![(text(&message["call_id"]), None)];
    }
    if message["role"] == "tool" {
        return vec![(text(&message["tool_call_id"]), text(&message["name"]))];
    }
    if message["role"] == "tool_result" {
        return vec![(text(&message["tool_use_id"]), text(&message["tool_name"]))];
    }
    let blocks = message["content"].as_array().into_iter().flatten();
    blocks
        .filter(|block| block["type"] == "tool_result")
        .map(|block| (text(&block["tool_use_id"]), None))
        .collect()
}

fn read(messages: &[Value]) -> Vec<Message> {
    messages.iter().map(|message| Message::read(Raw::new(message.to_string()).unwrap()).unwrap()).collect()
}

fn values(view: &ProjectedView<'_>) -> Vec<Value> {
    view.messages.iter().map(|shown| shown.value().clone()).collect()
}

/// The same value with the keys of every object reversed.
fn turned_over(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(turned_over).collect(),
        Value::Object(fields) => {
            fields.iter().rev().map(|(key, value)| (key.clone(), turned_over(value))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn the_check_refuses_what_providers_refuse() {
    let call = json!({"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"ls"}}]});
    let result = json!({"role":"tool","tool_call_id":"a","content":"x"});
    let done = json!({"role":"assistant","content":"done"});
    let item = json!({"type":"function_call","call_id":"a","name":"ls"});
    let reasoning = json!({"type":"reasoning","summary":[]});
    for (messages, valid) in [
        (vec![call.clone(), result.clone(), done.clone()], true),
        (vec![call.clone()], true),
        (vec![call.clone(), done.clone()], false),
        (vec![result.clone()], false),
        (vec![call.clone(), result.clone(), result.clone()], false),
        (vec![reasoning.clone(), item.clone()], true),
        (vec![reasoning.clone(), json!({"role":"user","content":"x"})], false),
        (vec![json!({"role":"assistant","content":"x","tool_calls":[]})], false),
        (vec![json!({"role":"assistant","content":[{"type":"thinking","thinking":"x"}]})], false),
        (vec![json!({"role":"user","content":[]})], false),
    ] {
        assert_eq!(refusal(&messages).is_none(), valid, "{messages:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 700, ..ProptestConfig::default() })]

    /// Generated transcripts are accepted by a provider; otherwise the next property would mean little.
    #[test]
    fn generated_transcripts_are_valid(messages in transcript()) {
        prop_assert_eq!(refusal(&messages), None, "{:#?}", messages);
    }

    #[test]
    fn valid_in_is_valid_out_for_every_policy(messages in transcript(), options in options()) {
        let messages = read(&messages);
        let view = project(&messages, None, &options).unwrap();
        prop_assert_eq!(refusal(&values(&view)), None, "{} gave {:#?}", view.policy, values(&view));
    }

    /// Everything at the end that can be kept is kept, and nothing else.
    #[test]
    fn what_a_projector_leaves_of_the_end_is_valid(messages in transcript(), at in any::<prop::sample::Index>()) {
        let start = at.index(messages.len() + 1);
        let mut options = ViewOptions::custom(move |given: &[&Message]| Ok((start..given.len()).collect()));
        options.signatures = Signatures::Ignore;
        let given = read(&messages);
        let view = project(&given, None, &options).unwrap();
        prop_assert_eq!(refusal(&values(&view)), None, "from {}", start);
        let is_whole = (start..messages.len()).all(|index| view.kept_indices.contains(&index));
        let could_be = refusal(&messages[start..]).is_none();
        prop_assert!(is_whole || !could_be, "from {start}: {:?}", view.kept_indices);
    }

    #[test]
    fn signed_reasoning_is_whole_unless_told_otherwise(messages in transcript(), options in options()) {
        let messages = read(&messages);
        let view = project(&messages, None, &options).unwrap();
        if view.event()["metadata"]["respects_provider_signatures"] == true {
            let shown: HashSet<&str> = view.messages.iter().map(|shown| shown.raw().get()).collect();
            for message in messages.iter().filter(|m| m.raw().get().contains("\"signature\"") || m.raw().get().contains("encrypted")) {
                prop_assert!(shown.contains(message.raw().get()));
            }
        }
        if view.provider_safety_blocked {
            prop_assert_eq!(view.kept_count, messages.len());
            prop_assert_eq!(view.first_changed_index, None);
        }
    }

    #[test]
    fn every_message_is_kept_or_dropped_and_unchanged_ones_are_the_input(messages in transcript(), options in options()) {
        let before = messages.clone();
        let messages = read(&messages);
        let view = project(&messages, None, &options).unwrap();
        let mut all = [&view.kept_indices[..], &view.dropped_indices[..]].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..messages.len()).collect::<Vec<_>>());
        prop_assert_eq!((view.kept_count, view.dropped_count), (view.kept_indices.len(), view.dropped_indices.len()));
        prop_assert_eq!(view.source_indices.iter().flatten().copied().collect::<Vec<_>>(), view.kept_indices.clone());
        for shown in &view.messages {
            if shown.is_unchanged() {
                prop_assert!(std::ptr::eq(shown.raw(), messages[shown.source().unwrap()].raw()));
            }
        }
        let first = view.messages.iter().zip(&messages).position(|(shown, message)| shown.raw() != message.raw());
        let same_length = view.messages.len() == messages.len();
        let shorter = view.messages.len().min(messages.len());
        prop_assert_eq!(view.first_changed_index, first.or((!same_length).then_some(shorter)));
        prop_assert_eq!(messages.iter().map(|m| m.value().clone()).collect::<Vec<_>>(), before);
    }

    #[test]
    fn the_same_input_has_the_same_hash_whatever_the_order_of_its_keys(messages in transcript(), options in options()) {
        let (one, other) = (read(&messages), read(&messages.iter().map(turned_over).collect::<Vec<_>>()));
        let (one, other) = (project(&one, None, &options).unwrap(), project(&other, None, &options).unwrap());
        prop_assert_eq!(&one.prefix_hash, &other.prefix_hash);
        prop_assert_eq!(&one.reason, &other.reason);
        prop_assert_eq!(one.kept_indices, other.kept_indices);
    }

    #[test]
    fn pointers_resolve_and_replay_gives_the_same_view(messages in transcript(), options in options()) {
        let messages = read(&messages);
        let view = project(&messages, Some("summary"), &options).unwrap();
        let metadata = &view.event()["metadata"];
        for pointer in metadata["redaction_pointers"].as_array().unwrap() {
            let body = resolve_pointer(&messages, pointer).unwrap();
            let source = messages[pointer["source_index"].as_u64().unwrap() as usize].raw().get();
            prop_assert!(source.contains(body.get()));
        }
        let again = replay(&messages, metadata).unwrap();
        prop_assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&view).unwrap());
    }

    /// Turn after turn with frozen decisions: valid each time, and the beginning stays unchanged.
    #[test]
    fn frozen_views_are_valid_and_begin_as_before(messages in transcript(), options in options(), cut in any::<prop::sample::Index>(), freeze in 0..2000u64) {
        let messages = read(&messages);
        let mut options = options;
        options.freeze = Some(freeze);
        let cut = cut.index(messages.len() + 1);
        let earlier: Vec<Value> = messages[..cut].iter().map(|m| m.value().clone()).collect();
        prop_assume!(refusal(&earlier).is_none());
        let first = project(&messages[..cut], None, &options).unwrap();
        let second = project_after(&messages, None, &options, Some(&first.event()["metadata"])).unwrap();
        prop_assert_eq!(refusal(&values(&second)), None);
        if second.reason.ends_with("_frozen") {
            for (now, then) in second.messages.iter().zip(&first.messages) {
                prop_assert_eq!(now.raw(), then.raw());
            }
        } else {
            prop_assert_eq!(second.prefix_hash, project(&messages, None, &options).unwrap().prefix_hash);
        }
    }

    /// A cut that is searched from the end equals the one computed from all messages, also where results come
    /// late or twice.
    #[test]
    fn a_summary_replaces_as_much_as_can_go(
        parts in prop::collection::vec(transcript(), 1..8),
        swaps in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..4),
        keep_last in 0..12usize,
    ) {
        let mut all: Vec<Value> = parts.into_iter().flatten().collect();
        for (one, other) in swaps.iter().filter(|_| !all.is_empty()).map(|(a, b)| (a.index(all.len()), b.index(all.len()))).collect::<Vec<_>>() {
            all.swap(one, other);
        }
        let messages = read(&all);
        let options = json!({"policy": "summary_prefix", "keep_last": keep_last, "respect_provider_signatures": false});
        let view = project(&messages, None, &ViewOptions::parse(&options).unwrap()).unwrap();
        let cut = match messages.len().checked_sub(keep_last) {
            None | Some(0) => 0,
            Some(cut) => pair(&all).cut_at_or_before(cut),
        };
        prop_assert_eq!(view.dropped_indices, (0..cut).collect::<Vec<_>>());
    }

    /// The hash is over what is shown.
    #[test]
    fn the_hash_is_that_of_the_text(messages in transcript(), options in options()) {
        let messages = read(&messages);
        let view = project(&messages, None, &options).unwrap();
        let texts: Vec<&str> = view.messages.iter().map(|shown| shown.raw().get()).collect();
        let shown: Vec<Message> = texts.iter().map(|text| Message::read(Raw::new(text.to_string()).unwrap()).unwrap()).collect();
        prop_assert_eq!(&view.prefix_hash, &project(&shown, None, &ViewOptions::default()).unwrap().prefix_hash);
        let mut values: Vec<Value> = texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        values.iter_mut().for_each(Value::sort_all_objects);
        let sorted = serde_json::to_string(&values).unwrap();
        prop_assert_eq!(view.prefix_hash, format!("sha256:{}", hex::encode(Sha256::digest(sorted))));
    }

    /// Untrusted bytes never panic.
    #[test]
    fn any_json_is_projected(text in "[\\[{\"a-z:,}\\] 0-9]{0,40}", messages in transcript(), options in options()) {
        let mut messages = read(&messages);
        if let Ok(raw) = Raw::new(text) {
            messages.insert(messages.len() / 2, Message::read(raw).unwrap());
        }
        let _ = project(&messages, None, &options).unwrap();
    }
}
