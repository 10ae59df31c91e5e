//! Pairing of tool calls with their results, in every shape.

use everturn_core::pairing::{BlockPath, Pairs, pair};
use serde_json::{Value, json};

fn pairs(messages: &Value) -> Pairs<'_> {
    pair(messages.as_array().unwrap())
}

/// For each call, the index of the message with its result.
fn answered_at(messages: &Value) -> Vec<Option<usize>> {
    let pairs = pairs(messages);
    for (n, call) in pairs.calls.iter().enumerate() {
        if let Some(result) = call.result {
            assert_eq!(pairs.results[result].call, Some(n));
        }
    }
    pairs.calls.iter().map(|call| Some(pairs.results[call.result?].message)).collect()
}

#[test]
fn a_calls_result_is_found_by_id_in_every_shape() {
    for (messages, expected) in [
        (
            json!([
                {"role":"assistant","content":null,"tool_calls":[
                    {"id":"a","function":{"name":"ls","arguments":"{}"}}, {"id":"b","function":{"name":"ls","arguments":"{}"}}]},
                {"role":"tool","tool_call_id":"b","content":"2"},
                {"role":"tool_result","tool_call_id":"a","id":"b","content":"1"},
            ]),
            vec![Some(2), Some(1)],
        ),
        (
            json!([
                {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"ls","input":{}},{"type":"tool_use","id":"b","name":"ls","input":{}}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"2"},{"type":"tool_result","tool_use_id":"a","content":"1"}]},
            ]),
            vec![Some(1), Some(1)],
        ),
        (
            json!([
                {"type":"function_call","call_id":"a","name":"ls","arguments":"{}"},
                {"type":"function_call","call_id":"b","name":"ls","arguments":"{}"},
                {"type":"function_call_output","call_id":"b","output":"2"},
                {"type":"function_call_output","call_id":"a","output":"1"},
            ]),
            vec![Some(3), Some(2)],
        ),
        (
            json!([
                {"role":"assistant","content":[{"type":"tool_call","id":"a","name":"ls","args":{}}]},
                {"role":"tool","content":[{"type":"tool_result","tool_call_id":"a","content":"1"}]},
            ]),
            vec![Some(1)],
        ),
        (
            json!([
                {"role":"assistant","content":"","function_call":{"name":"ls","arguments":"{}"}},
                {"role":"function","name":"ls","content":"1"},
            ]),
            vec![Some(1)],
        ),
    ] {
        assert_eq!(answered_at(&messages), expected, "{messages}");
    }
}

#[test]
fn an_id_that_comes_again_belongs_to_the_nearest_call() {
    let turn = |body: &str| {
        vec![
            json!({"role":"assistant","tool_calls":[{"id":"call_0","function":{"name":"ls"}}]}),
            json!({"role":"tool","tool_call_id":"call_0","content":body}),
        ]
    };
    let twice: Value = [turn("1"), turn("2")].concat().into();
    assert_eq!(answered_at(&twice), [Some(1), Some(3)]);
    let broken_off: Value = [turn("1")[..1].to_vec(), turn("2")].concat().into();
    assert_eq!(answered_at(&broken_off), [None, Some(2)]);
    let repeated: Value = [turn("1"), turn("2")[1..].to_vec()].concat().into();
    assert_eq!(answered_at(&repeated), [Some(1)]);
    let late: Value = [&turn("1")[..1], &turn("2")[..], &turn("1")[1..]].concat().into();
    assert_eq!(answered_at(&late), [Some(3), Some(2)]);
}

#[test]
fn without_ids_a_result_is_found_by_name_before_the_next_assistant_message() {
    let call = |name: &str| json!({"role":"assistant","tool_calls":[{"function":{"name":name}}]});
    let result = |name: &str| json!({"role":"tool","name":name,"content":"x"});
    let both = json!({"role":"assistant","tool_calls":[{"function":{"name":"ls"}},{"function":{"name":"cat"}},{"function":{"name":"ls"}}]});
    for (messages, expected) in [
        (json!([call("ls"), result("ls")]), vec![Some(1)]),
        (json!([call("ls"), result("cat")]), vec![None]),
        (json!([call("ls"), {"role":"user","content":"wait"}, result("ls")]), vec![Some(2)]),
        (json!([call("ls"), {"role":"assistant","content":"hm"}, result("ls")]), vec![None]),
        (json!([both, result("cat"), result("ls"), result("ls")]), vec![Some(2), Some(1), Some(3)]),
        (json!([call("ls"), {"role":"tool","content":"nameless"}]), vec![Some(1)]),
        (json!([call("ls"), call("ls"), result("ls")]), vec![None, Some(2)]),
        (
            json!([{"type":"function_call","name":"a"},{"type":"function_call","name":"b"},
                {"type":"function_call_output","name":"b","output":""},{"type":"function_call_output","name":"a","output":""}]),
            vec![Some(3), Some(2)],
        ),
    ] {
        assert_eq!(answered_at(&messages), expected, "{messages}");
    }
}

#[test]
fn a_result_has_the_name_of_its_call() {
    let messages = json!([
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"ls","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"}]},
    ]);
    assert_eq!(pairs(&messages).results[0].name, Some("ls"));
}

#[test]
fn a_result_is_a_failure_when_it_says_so() {
    for (fields, failed) in [
        (json!({"content":"fine"}), false),
        (json!({"content":"fine","is_error":true}), true),
        (json!({"content":"fine","error":true}), true),
        (json!({"content":"fine","error":"no such file"}), true),
        (json!({"content":"fine","success":false}), true),
        (json!({"content":"fine","status":"error"}), true),
        (json!({"content":"fine","status":"Failed"}), true),
        (json!({"content":"fine","status":"rejected"}), true),
        (json!({"content":"fine","status":"exception"}), true),
        (json!({"content":"fine","status":"denied"}), true),
        (json!({"content":"fine","status":"ok","is_error":true}), true),
        // The text counts only if there is no flag.
        (json!({"content":"Error: boom"}), true),
        (json!({"content":"  TOOL ERROR boom"}), true),
        (json!({"content":"failed: boom"}), true),
        (json!({"content":"no error: all fine"}), false),
        (json!({"content":[{"type":"text","text":"error: boom"}]}), true),
        (json!({"content":"error: boom","is_error":false}), false),
        (json!({"content":"error: boom","error":false}), false),
        (json!({"content":"error: boom","status":"success"}), false),
        (json!({"content":"error: boom","success":true}), false),
        (json!({"content":"error: boom","error":null,"is_error":null}), true),
    ] {
        let mut message = json!({"role":"tool","tool_call_id":"a"});
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(pairs(&json!([message])).results[0].failed, failed, "{message}");
    }
    // The status of a Responses item describes the item, not the tool.
    let item =
        json!([{"type":"function_call_output","call_id":"a","output":"error: boom","status":"completed"}]);
    assert!(pairs(&item).results[0].failed);
}

#[test]
fn a_cut_parts_no_call_from_its_result() {
    let messages = json!([
        {"role":"user","content":"go"},
        {"role":"assistant","tool_calls":[{"id":"a","function":{"name":"ls"}},{"id":"b","function":{"name":"ls"}}]},
        {"role":"tool","tool_call_id":"a","content":"1"},
        {"role":"tool","tool_call_id":"b","content":"2"},
        {"role":"assistant","content":"done"},
        {"type":"reasoning","summary":[]},
        {"type":"function_call","call_id":"c","name":"ls"},
        {"type":"function_call_output","call_id":"c","output":""},
    ]);
    let pairs = pairs(&messages);
    let before: Vec<_> = (0..=8).map(|index| pairs.cut_at_or_before(index)).collect();
    assert_eq!(before, [0, 1, 1, 1, 4, 5, 5, 5, 8]);
    let after: Vec<_> = (0..=8).map(|index| pairs.cut_at_or_after(index, 8)).collect();
    assert_eq!(after, [0, 1, 4, 4, 4, 5, 8, 8, 8]);
    assert_eq!(pairs.cut_at_or_before(99), 8);
    assert_eq!(pair([]).cut_at_or_before(3), 0);
}

#[test]
fn a_call_that_waits_does_not_hold_a_cut() {
    let messages = json!([{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"ls"}}]},{"role":"user","content":"x"}]);
    assert_eq!(pairs(&messages).cut_at_or_before(1), 1);
}

#[test]
fn calls_in_parts_of_gemini_are_paired_with_their_results() {
    let call = |name: &str| json!({"functionCall": {"name": name, "args": {"n": 1}}});
    let response =
        |name: &str, response: Value| json!({"functionResponse": {"name": name, "response": response}});
    let messages = [
        json!({"role": "model", "parts": [{"text": "I look."}, call("ls"), call("cat"), call("rm")]}),
        json!({"role": "user", "parts": [
            response("cat", json!({"error": "denied"})), response("ls", json!({"output": "error: none"}))]}),
    ];
    let pairs = pair(&messages);
    let calls: Vec<_> =
        pairs.calls.iter().map(|call| (call.place.to_string(), call.name, call.result)).collect();
    assert_eq!(
        calls,
        [
            ("parts[1]".to_string(), "ls", Some(1)),
            ("parts[2]".to_string(), "cat", Some(0)),
            ("parts[3]".to_string(), "rm", None)
        ]
    );
    assert_eq!(pairs.calls[0].arguments(), Some(&json!({"n": 1})));
    let failed: Vec<bool> = pairs.results.iter().map(|result| result.failed).collect();
    assert_eq!((failed, pairs.cut_at_or_before(1)), (vec![true, false], 0));
    assert_eq!(BlockPath::read("parts[3]"), Some(BlockPath::Part(3)));
}
