//! Reclaimed bodies of tool results, and how to find them again.

use crate::projection::{call, long, read, result, view};
use everturn_core::json::Raw;
use everturn_views::projection::{
    Message, ViewOptions, project, project_after, resolve_pointer, strip_markers,
};
use everturn_views::state::Scratchpad;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Options for `reachability_gc` with only the last message as a root.
pub fn gc(options: Value) -> Value {
    let mut all = json!({"policy":"reachability_gc","root_window":1});
    all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    all
}

/// A long result about `body`, called with `arguments`, and a last message `last`.
fn one_result(arguments: Value, body: &str, last: &str) -> Value {
    json!([
        {"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"read_file","input":arguments}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":long(body)}]},
        {"role":"user","content":last},
    ])
}

/// A key may end in a quote or contain escapes; it is kept as written, and hashed as decoded.
#[test]
fn a_changed_message_keeps_odd_keys_and_is_hashed_as_it_is_shown() {
    let text =
        r#"{"role":"tool","tool_call_id":"c","\u0063ontent":"BODY","a\"":1,"\"":2,"\u0062":{"z":1,"a":[]}}"#;
    let tool = Message::read(Raw::new(text.replace("\"BODY\"", &json!(long("fn old")).to_string())).unwrap())
        .unwrap();
    let last = Message::of(json!({"role":"user","content":"thanks"})).unwrap();
    let messages = [tool, last];
    let view = view(&messages, gc(json!({})));
    assert_eq!(view.redacted_indices, [0]);
    let shown = view.messages[0].raw().get();
    assert!(shown.contains(r#","a\"":1,"\"":2,"\u0062":{"z":1,"a":[]},"#), "{shown}");
    let again = [Message::read(view.messages[0].raw().clone()).unwrap(), messages[1].clone()];
    assert_eq!(view.prefix_hash, crate::projection::view(&again, json!("raw")).prefix_hash);
}

/// Prompts show only the content of an MCP server's result; the pointer is to all of it, as it is stored.
#[test]
fn the_result_of_an_mcp_server_is_found_again_as_it_is_stored() {
    let mut given = one_result(json!({"path":"src/old.rs"}), "", "thanks");
    let body = json!({"content":[{"type":"text","text":long("fn old")}],"isError":false});
    given[1]["content"][0]["content"] = body.clone();
    let messages = read(&given);
    let view = view(&messages, gc(json!({})));
    assert_eq!(view.redacted_indices, [1]);
    let pointer = serde_json::to_value(&view.redaction_pointers[0]).unwrap();
    assert_eq!(resolve_pointer(&messages, &pointer).unwrap().read::<Value>().unwrap(), body);
}

#[test]
fn reachability_gc_reclaims_what_nothing_refers_to_and_leaves_a_pointer() {
    let given = one_result(json!({"path":"src/old.rs"}), "fn old", "thanks");
    let messages = read(&given);
    let view = view(&messages, gc(json!({})));
    let body = given[1]["content"][0]["content"].as_str().unwrap();
    assert_eq!((view.kept_count, view.dropped_count), (3, 0));
    assert_eq!((&view.redacted_indices[..], view.redacted_count), (&[1][..], 1));
    assert_eq!(
        (view.reclaimed_chars, view.reclaimed_tokens),
        (body.chars().count(), body.chars().count() / 4)
    );
    assert_eq!(view.roots_consulted, ["last_1_messages"]);
    let pointer = serde_json::to_value(&view.redaction_pointers[0]).unwrap();
    let hash = pointer["content_hash"].as_str().unwrap();
    assert_eq!(
        pointer,
        json!({"policy":"reachability_gc","source":"transcript.messages[1].content[0].content","source_index":1,"source_block_index":0,
            "content_hash":hash,"content_chars":body.len(),"estimated_tokens_reclaimed":body.len()/4,
            "tool_call_id":"toolu_1","tool_name":"read_file","reason":"stale_tool_result_unreachable"})
    );
    let block = &view.messages[1].value()["content"][0];
    let line = format!(
        "[tool result reclaimed by reachability_gc; source_index=1; content_hash={hash}; tokens_reclaimed={}]",
        body.len() / 4
    );
    assert_eq!(block["content"], line);
    let marker = json!({"redacted":true,"policy":"reachability_gc","redaction_pointer":pointer});
    assert_eq!(block["_harn_projection"], marker);
    assert_eq!(view.messages[1].value()["_harn_projection"]["redaction_pointers"], json!([pointer]));
    assert_eq!(resolve_pointer(&messages, &pointer).unwrap().read::<String>().unwrap(), body);
    assert_eq!(
        strip_markers(view.messages[1].value()).unwrap(),
        json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":line}]})
    );
    assert_eq!(strip_markers(view.messages[0].value()), None);
}

#[test]
fn a_pointer_into_another_transcript_is_refused() {
    let messages = read(&one_result(json!({}), "a", "thanks"));
    let pointer = serde_json::to_value(&view(&messages, gc(json!({}))).redaction_pointers[0]).unwrap();
    let other = read(&one_result(json!({}), "b", "thanks"));
    assert_eq!(resolve_pointer(&other, &pointer).unwrap_err().code(), "projection.pointer_hash");
    assert_eq!(resolve_pointer(&other[..1], &pointer).unwrap_err().code(), "projection.pointer_target");
    for wrong in [json!({}), json!({"source":"x"}), json!(3)] {
        assert_eq!(resolve_pointer(&messages, &wrong).unwrap_err().code(), "projection.pointer");
    }
}

#[test]
fn bodies_are_reclaimed_in_every_shape() {
    let last = json!({"role":"user","content":"thanks"});
    let item = json!({"type":"function_call","call_id":"a","name":"ls","arguments":"{}"});
    for (given, source) in [
        (json!([call("a", "ls"), result("a", &long("x")), last]), "transcript.messages[1].content"),
        (
            json!([item, {"type":"function_call_output","call_id":"a","output":long("x")}, last]),
            "transcript.messages[1].output",
        ),
        (
            json!([call("a", "ls"), {"role":"tool","tool_call_id":"a","content":[{"type":"text","text":long("x")}]}, last]),
            "transcript.messages[1].content",
        ),
        (
            json!([call("a", "ls"), {"role":"tool","tool_results":[{"tool_call_id":"a","content":long("x")}]}, last]),
            "transcript.messages[1].tool_results[0].content",
        ),
    ] {
        let messages = read(&given);
        let view = view(&messages, gc(json!({})));
        assert_eq!(view.redacted_count, 1, "{given}");
        assert_eq!(view.redaction_pointers[0].source, source);
        let pointer = serde_json::to_value(&view.redaction_pointers[0]).unwrap();
        resolve_pointer(&messages, &pointer).unwrap();
        let text = view.messages[1].raw().get();
        assert!(
            text.contains("[tool result reclaimed by reachability_gc;") && !text.contains("lorem"),
            "{text}"
        );
        let stripped = strip_markers(view.messages[1].value()).unwrap();
        assert!(!stripped.to_string().contains("_harn_projection"));
    }
}

#[test]
fn short_recent_and_failed_results_stay() {
    let reclaims = |given: &Value, options| view(&read(given), gc(options)).redacted_count;
    let mut given = one_result(json!({}), "x", "thanks");
    assert_eq!(reclaims(&given, json!({})), 1);
    let chars = given[1]["content"][0]["content"].as_str().unwrap().len();
    assert_eq!(reclaims(&given, json!({"min_chars":chars})), 1);
    assert_eq!(reclaims(&given, json!({"min_chars":chars + 1})), 0);
    assert_eq!(reclaims(&given, json!({"root_window":2})), 0);
    assert_eq!(reclaims(&given, json!({"root_window":0})), 1);
    given[1]["content"][0]["is_error"] = true.into();
    assert_eq!(reclaims(&given, json!({})), 0);
}

#[test]
fn what_a_root_refers_to_stays() {
    let reached = |arguments: Value, body: &str, last: &str| {
        view(&read(&one_result(arguments, body, last)), gc(json!({}))).redacted_count == 0
    };
    for (arguments, body, last) in [
        (json!({"path":"src/a.rs"}), "", "now change src/a.rs, please"),
        (json!({"path":"./src/a.rs"}), "", "error in src/a.rs:12:5."),
        (json!({}), "src/a.rs:10:fn main", "see `./src/a.rs:99`"),
        (json!({}), "impl UserService", "rename UserService"),
        (json!({}), "call http::parse_header", "what is parse_header?"),
        (json!({}), "Cargo.toml", "open Cargo.toml"),
        (json!({}), "closes #123", "is #123 done?"),
        (json!({"number":123}), "", "is #123 done?"),
        (json!({}), "commit 1a2b3c4d", "revert 1a2b3c4d"),
        (json!({}), "123e4567-e89b-12d3-a456-426614174000", "id 123e4567-e89b-12d3-a456-426614174000!"),
        (json!({"issue_id":"ABC-7"}), "", "work on ABC-7"),
        (json!({}), "{\"finding\": {\"findingId\": \"F-17\"}}", "resolve F-17"),
        (json!({}), "", "look at toolu_1 again"),
        // The whole value of a reference field counts even if it is a plain word.
        (json!({"object_id":"widget"}), "", "Then paint the widget."),
        (json!({"object_ids":["gadget","widget"]}), "", "Widget is next"),
        (json!({}), "{\"symbol\": \"parse\"}", "does parse allocate?"),
        // A number in a reference field is told by its sign or by the field's name.
        (json!({"issue_number":12}), "", "is #12 done?"),
        (json!({"issue_number":12}), "", "Issue 12 is next"),
        (json!({"issueNumber":"12"}), "", "close issues, first issue 12."),
        (json!({"pull_request_number":12}), "", "merge pull request 12"),
        (json!({}), "{\"issue_number\": 12}", "issue 12"),
        // A capitalised word with a digit is a symbol.
        (json!({}), "class Widget4:", "rename Widget4"),
    ] {
        assert!(reached(arguments.clone(), body, last), "{arguments} {body} {last}");
    }
    for (arguments, body, last) in [
        // An equal token, not a substring.
        (json!({"path":"src/a.rs"}), "", "src/a.rs.bak and lib/src/a.rs"),
        (json!({}), "UserService", "UserServices"),
        (json!({}), "#12", "#123"),
        // Words of prose are not identifiers, and neither are numbers with a unit.
        (json!({}), "the parser takes 250ms", "the parser takes 250ms"),
        // Nor is a number in a reference field found in any other number.
        (json!({"issue_number":12}), "", "wait 12 more, or issue 120, or #121"),
        (json!({"object_id":"widget"}), "", "widgets"),
        // Nor are tool names and the field names of the shapes.
        (json!({}), "read_file tool_result", "call read_file for a tool_result"),
        // Nor are the keys of JSON in a body.
        (json!({}), "", "the created_at field"),
    ] {
        assert!(!reached(arguments.clone(), body, last), "{arguments} {body} {last}");
    }
    let keys = json!([
        call("a", "ls"), result("a", &json!({"created_at": "x".repeat(600)}).to_string()),
        {"role":"user","content":"the created_at field"},
    ]);
    assert_eq!(view(&read(&keys), gc(json!({}))).redacted_count, 1);
}

#[test]
fn fields_beside_the_content_are_read_like_it() {
    let reclaimed = |given: &Value| view(&read(given), gc(json!({}))).redacted_count;
    for (field, value) in [
        ("data", json!({"object_id": "widget"})),
        ("data", json!("see Widget4")),
        ("metadata", json!({"about": ["src/widget.rs"]})),
        ("result", json!({"kind": "widget"})),
        ("error", json!(null)),
    ] {
        let told = json!({"role":"user","content":"Look at the widget, Widget4, in src/widget.rs"});
        let unread = usize::from(value.is_null());
        let mut given = json!([call("a", "ls"), result("a", &long("x")), told]);
        given[1][field] = value.clone();
        assert_eq!(reclaimed(&given), unread, "{field} of the message: {value}");
        // In a block, and beside the blocks.
        for place in ["/1/content/0", "/1"] {
            let mut given = one_result(json!({}), "x", told["content"].as_str().unwrap());
            given.pointer_mut(place).unwrap()[field] = value.clone();
            assert_eq!(reclaimed(&given), unread, "{field} of {place}: {value}");
        }
    }
    // The bytes of an image name nothing.
    let image = json!({"type":"image","mimeType":"image/png","data":"src/widget.rs"});
    let mut given = one_result(json!({}), "x", "Look at src/widget.rs");
    given[1]["content"][0]["content"] = json!([{"type":"text","text":long("x")}, image]);
    assert_eq!(reclaimed(&given), 1);
}

/// Some models count their calls from zero in every turn.
#[test]
fn a_recent_call_does_not_keep_results_of_the_same_tool_or_with_the_same_id() {
    for (old, recent) in [("a", "b"), ("call_0", "call_0")] {
        let given = json!([
            call(old, "read_file"),
            result(old, &long("alpha")),
            call(recent, "read_file"),
            result(recent, "beta"),
        ]);
        assert_eq!(view(&read(&given), gc(json!({"root_window":2}))).redacted_indices, [1]);
        // Neither does a kept result in between.
        let mut given = given;
        given.as_array_mut().unwrap().push(json!({"role":"user","content":"thanks"}));
        assert_eq!(view(&read(&given), gc(json!({"transitive":true}))).redacted_indices, [1]);
    }
}

#[test]
fn given_material_is_a_root() {
    let given = one_result(json!({"path":"src/a.rs","name":"parser"}), "", "thanks");
    for field in ["roots", "active_plan", "scratchpad", "pending_tool_args", "unresolved_findings"] {
        for material in [json!("see src/a.rs"), json!({"x":[{"path":"src/a.rs:3"}]}), json!(["parser"])] {
            let messages = read(&given);
            let view = view(&messages, gc(json!({field: material})));
            assert_eq!(view.redacted_count, 0, "{field} {material}");
            assert_eq!(view.roots_consulted, ["last_1_messages", field]);
        }
    }
}

#[test]
fn without_a_required_write_barrier_nothing_is_reclaimed() {
    let messages = read(&one_result(json!({}), "", "thanks"));
    let view = |options| view(&messages, gc(options));
    let missing = view(json!({"require_write_barrier":true,"write_barrier":" "}));
    assert_eq!(
        (missing.reason.as_str(), missing.redacted_count),
        ("reachability_gc_write_barrier_missing", 0)
    );
    assert_eq!(missing.roots_consulted, ["last_1_messages", "write_barrier_required"]);
    let given = view(json!({"require_write_barrier":true,"barrier_refs":["turn-42"],"roots":"x"}));
    assert_eq!(given.redacted_count, 1);
    assert_eq!(
        given.roots_consulted,
        ["last_1_messages", "roots", "write_barrier", "write_barrier_required"]
    );
}

/// While a scratchpad is there, nothing has to be handed in.
#[test]
fn a_live_scratchpad_is_root_and_write_barrier_by_itself() {
    let messages = read(&json!([
        call("a", "ls"), result("a", &long("src/a.rs")),
        call("b", "ls"), result("b", &long("src/b.rs")),
        {"role":"user","content":"thanks"},
    ]));
    let pad = |seq, text: &str| (format!("plan{seq}"), Scratchpad { value: Raw::of(&text).unwrap(), seq });
    let live = BTreeMap::from([pad(17, "next: src/a.rs"), pad(20, "nothing else")]);
    let options = gc(json!({"require_write_barrier": true, "freeze": 1}));
    let asked = ViewOptions::parse(&options).unwrap();
    let without = project(&messages, None, &asked.clone().with_scratchpads(&BTreeMap::new())).unwrap();
    assert_eq!(without.reason, "reachability_gc_write_barrier_missing");
    let view = project(&messages, None, &asked.clone().with_scratchpads(&live)).unwrap();
    assert_eq!(view.redacted_indices, [3], "the scratchpad names src/a.rs");
    let consulted = ["last_1_messages", "scratchpad", "write_barrier", "write_barrier_required"];
    assert_eq!(view.roots_consulted, consulted);
    let metadata = &view.event()["metadata"];
    assert_eq!(metadata["options"]["scratchpads"], json!(["scratchpad:plan17@17", "scratchpad:plan20@20"]));
    // The next version of the scratchpad does not thaw what is frozen.
    let later = asked.with_scratchpads(&BTreeMap::from([pad(30, "src/b.rs")]));
    let frozen = project_after(&messages, None, &later, Some(metadata)).unwrap();
    assert_eq!((frozen.reason.as_str(), frozen.redacted_indices), ("reachability_gc_frozen", vec![3]));
    // Other policies have no roots.
    let raw = project(&messages, None, &ViewOptions::parse(&json!("raw")).unwrap().with_scratchpads(&live))
        .unwrap();
    assert!(raw.event()["metadata"]["options"].get("scratchpads").is_none());
}

#[test]
fn roots_are_told_with_the_number_of_messages_that_were_used() {
    let messages = read(&one_result(json!({}), "", "thanks"));
    for (window, told) in [(0, &[][..]), (2, &["last_2_messages"]), (8, &["last_3_messages"])] {
        assert_eq!(view(&messages, gc(json!({"root_window":window}))).roots_consulted, told);
    }
    assert!(view(&[], gc(json!({}))).roots_consulted.is_empty());
}

#[test]
fn what_a_kept_result_refers_to_stays_if_transitive() {
    let given = json!([
        call("a", "ls"), result("a", &long("src/deep.rs")),
        call("b", "ls"), result("b", &long("src/mid.rs uses src/deep.rs")),
        call("c", "ls"), result("c", &long("src/top.rs uses src/mid.rs")),
        call("d", "ls"), result("d", &long("src/other.rs")),
        call("e", "ls"), result("e", "error: src/lost.rs"),
        call("f", "ls"), result("f", &long("src/lost.rs")),
        {"role":"user","content":"open src/top.rs"},
    ]);
    assert_eq!(view(&read(&given), gc(json!({}))).redacted_indices, [1, 3, 7, 11]);
    assert_eq!(view(&read(&given), gc(json!({"transitive":true}))).redacted_indices, [7]);
}

fn five_results() -> Value {
    let mut messages = Vec::new();
    for n in 0..5 {
        let tool = if n == 1 { "search" } else { "read" };
        messages.push(json!({"role":"assistant","content":[{"type":"tool_use","id":format!("t{n}"),"name":tool,"input":{"path":"src/a.rs"}}]}));
        messages.push(json!({"role":"user","content":[{"type":"tool_result","tool_use_id":format!("t{n}"),"content":long("x")}]}));
    }
    messages.into()
}

#[test]
fn clear_tool_uses_clears_the_oldest_first_by_the_knobs() {
    let given = five_results();
    let messages = read(&given);
    let tokens = given[1]["content"][0]["content"].as_str().unwrap().len() / 4;
    for (options, cleared, reason) in [
        (json!({}), vec![], "clear_tool_uses_below_trigger"),
        (json!({"trigger":100}), vec![1, 3], "clear_tool_uses"),
        (json!({"trigger":{"type":"tool_uses","value":4},"keep":1}), vec![1, 3, 5, 7], "clear_tool_uses"),
        (json!({"trigger":{"type":"tool_uses","value":5}}), vec![], "clear_tool_uses_below_trigger"),
        (json!({"trigger":0,"keep":{"type":"tool_uses","value":0}}), vec![1, 3, 5, 7, 9], "clear_tool_uses"),
        (json!({"trigger":0,"exclude_tools":["search"]}), vec![1], "clear_tool_uses"),
        (json!({"trigger":0,"clear_at_least":2 * tokens}), vec![1, 3], "clear_tool_uses"),
        (
            json!({"trigger":0,"clear_at_least":{"type":"input_tokens","value":2 * tokens + 1}}),
            vec![],
            "clear_tool_uses_below_clear_at_least",
        ),
    ] {
        let mut all = json!({"policy":"clear_tool_uses"});
        all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let view = view(&messages, all);
        assert_eq!((view.redacted_indices, view.reason.as_str()), (cleared, reason), "{options}");
    }
}

#[test]
fn clear_inputs_clears_the_arguments_in_the_type_that_they_had() {
    let arguments = r#"{"path":"src/a.rs"}"#;
    for (made, source, cleared) in [
        (
            json!({"role":"assistant","content":[{"type":"tool_use","id":"a","name":"ls","input":{"path":"src/a.rs"}}]}),
            "transcript.messages[0].content[0].input",
            "\"input\":{}",
        ),
        (
            json!({"role":"assistant","tool_calls":[{"id":"a","function":{"name":"ls","arguments":arguments}}]}),
            "transcript.messages[0].tool_calls[0].function.arguments",
            "\"arguments\":\"{}\"",
        ),
        (
            json!({"type":"function_call","call_id":"a","name":"ls","arguments":arguments}),
            "transcript.messages[0].arguments",
            "\"arguments\":\"{}\"",
        ),
    ] {
        let messages = read(&json!([made, result("a", &long("x"))]));
        let view =
            view(&messages, json!({"policy":"clear_tool_uses","trigger":0,"keep":0,"clear_inputs":true}));
        assert_eq!((&view.redacted_indices[..], view.redacted_count), (&[0, 1][..], 2));
        assert_eq!(view.redaction_pointers[0].source, source);
        let call = strip_markers(view.messages[0].value()).unwrap().to_string();
        assert!(call.contains(cleared) && !call.contains("_harn"), "{call}");
        for pointer in &view.redaction_pointers {
            resolve_pointer(&messages, &serde_json::to_value(pointer).unwrap()).unwrap();
        }
    }
}
