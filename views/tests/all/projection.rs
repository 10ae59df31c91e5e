//! What each projection policy promises, rule by rule. Reclaimed bodies are in `projection_reclaim`, lists of policies, replay and
//! frozen decisions in `projection_record`, properties of every transcript in `projection_properties`.

use everturn_core::json::Raw;
use everturn_views::projection::{Message, ProjectedView, ViewOptions, project};
use serde_json::{Value, json};

pub fn read(messages: &Value) -> Vec<Message> {
    let read = |message: &Value| Message::read(Raw::new(message.to_string()).unwrap()).unwrap();
    messages.as_array().unwrap().iter().map(read).collect()
}

pub fn view<'a>(messages: &'a [Message], options: Value) -> ProjectedView<'a> {
    project(messages, None, &ViewOptions::parse(&options).unwrap()).unwrap()
}

/// The messages of the view.
fn shown(messages: &Value, options: Value) -> Value {
    let messages = read(messages);
    view(&messages, options).messages.iter().map(|shown| shown.value().clone()).collect()
}

pub fn call(id: &str, name: &str) -> Value {
    json!({"role":"assistant","content":null,"tool_calls":[{"id":id,"type":"function","function":{"name":name,"arguments":"{}"}}]})
}

pub fn result(id: &str, content: &str) -> Value {
    json!({"role":"tool","tool_call_id":id,"content":content})
}

/// A body long enough to be reclaimed.
pub fn long(text: &str) -> String {
    format!("{text}\n{}", "lorem ipsum dolor sit amet ".repeat(30))
}

pub fn failed_then_repaired() -> Value {
    json!([
        {"role":"user","content":"list"},
        call("a", "ls"), result("a", "error: no such directory"),
        call("b", "ls"), result("b", "src"),
        {"role":"assistant","content":"there is src"},
    ])
}

#[test]
fn options_are_a_name_or_an_object_with_all_aliases() {
    for (options, policy) in [
        (json!(null), "raw"),
        (json!({}), "raw"),
        (json!(""), "raw"),
        (json!("identity"), "raw"),
        (json!("clean_tool_repair"), "clean_tool_repair"),
        (json!({"policy":"squash_failed_calls"}), "squash_failed_calls"),
        (json!({"kind":"context_gc"}), "reachability_gc"),
        (json!({"strategy":"tool_result_gc"}), "reachability_gc"),
        (json!({"policy":["clean_tool_repair","clear_tool_uses"]}), "clean_tool_repair+clear_tool_uses"),
    ] {
        assert_eq!(view(&[], options.clone()).policy, policy, "{options}");
    }
    let gc = |options: Value| ViewOptions::parse(&options).unwrap().reachability;
    for alias in ["root_window", "recent_messages", "keep_last"] {
        assert_eq!(gc(json!({alias: 3})).root_window, 3, "{alias}");
    }
    for alias in ["min_chars", "min_reclaim_chars", "tool_result_min_chars"] {
        assert_eq!(gc(json!({alias: 3})).min_chars, 3, "{alias}");
    }
    assert_eq!((gc(json!({})).root_window, gc(json!({})).min_chars), (8, 500));
    for barrier in ["write_barrier", "write_barrier_refs", "barrier_refs"] {
        assert!(gc(json!({barrier: ["turn-42"]})).write_barrier, "{barrier}");
        for blank in [json!(null), json!(""), json!([" "]), json!({}), json!(false)] {
            assert!(!gc(json!({barrier: blank})).write_barrier, "{barrier}");
        }
    }
}

#[test]
fn a_wrong_option_is_an_error_that_names_the_field() {
    for (options, field) in [
        (json!(7), "options"),
        (json!("tidy"), "policy"),
        (json!({"policy":"tidy"}), "policy"),
        (json!({"policy":3}), "policy"),
        (json!({"policy":[]}), "policy"),
        (json!({"policy":["raw", 1]}), "policy"),
        (json!({"policy":"raw","kind":"raw"}), "kind"),
        (json!({"keep_last":-1}), "keep_last"),
        (json!({"keep_last":"3"}), "keep_last"),
        (json!({"keep_last":1.5}), "keep_last"),
        (json!({"root_window":-2}), "root_window"),
        (json!({"root_window":1,"recent_messages":1}), "recent_messages"),
        (json!({"min_chars":true}), "min_chars"),
        (json!({"min_chars":1,"min_reclaim_chars":1}), "min_reclaim_chars"),
        (json!({"summary":5}), "summary"),
        (json!({"summary":" "}), "summary"),
        (json!({"reason":[]}), "reason"),
        (json!({"respect_provider_signatures":"sometimes"}), "respect_provider_signatures"),
        (json!({"require_write_barrier":"yes"}), "require_write_barrier"),
        (json!({"transitive":1}), "transitive"),
        (json!({"trigger":{"type":"messages","value":3}}), "trigger"),
        (json!({"trigger":-3}), "trigger"),
        (json!({"keep":{"type":"input_tokens","value":3}}), "keep"),
        (json!({"clear_at_least":{"type":"input_tokens"}}), "clear_at_least"),
        (json!({"exclude_tools":"ls"}), "exclude_tools"),
        (json!({"clear_inputs":"no"}), "clear_inputs"),
        (json!({"freeze":-1}), "freeze"),
        (json!({"keep_lats":3}), "keep_lats"),
        (json!({"policy": vec!["raw"; 17]}), "POLICIES_MAX is 16, this is 17"),
    ] {
        let error = ViewOptions::parse(&options).err().unwrap_or_else(|| panic!("{options} is taken"));
        assert!(error.text().starts_with(field), "{options}: {error}");
    }
    let error = project(&[], None, &ViewOptions::parse(&json!("custom")).unwrap()).unwrap_err();
    assert_eq!(error.text(), "projector is missing; custom needs one");
}

/// Regression: it was called unknown, and the policy that it named was recommended.
#[test]
fn a_policy_given_with_its_options_inside_is_told_where_they_belong() {
    let inside = json!({"policy":"reachability_gc","root_window":2});
    for options in [json!({"policy": inside}), json!({"policy": ["raw", inside]})] {
        let error = ViewOptions::parse(&options).unwrap_err();
        assert_eq!(error.code(), "projection.option");
        let says = "policy must be a name or a list of names; options stand beside it, as in \
                    {\"policy\":\"reachability_gc\",\"root_window\":2}";
        assert_eq!(error.text(), says);
    }
}

#[test]
fn the_result_has_every_field_and_the_event_everything_but_messages() {
    let messages = read(&failed_then_repaired());
    let view = view(&messages, json!({"policy":"clean_tool_repair"}));
    let result = serde_json::to_value(&view).unwrap();
    let keys: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "policy",
            "reason",
            "messages",
            "source_indices",
            "kept_indices",
            "dropped_indices",
            "redacted_indices",
            "kept_count",
            "dropped_count",
            "redacted_count",
            "reclaimed_chars",
            "reclaimed_tokens",
            "prefix_hash",
            "provider_safety_blocked",
            "roots_consulted",
            "redaction_pointers",
            "first_changed_index",
            "event"
        ]
    );
    assert_eq!(result["kept_indices"], json!([0, 3, 4, 5]));
    assert_eq!(result["dropped_indices"], json!([1, 2]));
    assert_eq!((&result["kept_count"], &result["dropped_count"]), (&json!(4), &json!(2)));
    assert_eq!(result["source_indices"], json!([0, 3, 4, 5]));
    assert_eq!(result["first_changed_index"], 1);
    let event = &result["event"];
    assert_eq!(event["kind"], "transcript.projection");
    assert_eq!(event["role"], "system");
    assert_eq!(event["visibility"], "internal");
    assert_eq!(event["text"], result["reason"]);
    for key in keys.iter().filter(|key| !["messages", "event"].contains(key)) {
        assert_eq!(event["metadata"][key], result[key], "{key}");
    }
    assert_eq!(event["metadata"]["respects_provider_signatures"], true);
    assert_eq!(event["metadata"]["summary_keep_last"], Value::Null);
}

/// Pinned: events carry these hashes, and a machine or release that hashes differently could not replay them.
#[test]
fn the_prefix_hash_is_over_canonical_json() {
    let a = read(
        &json!([{"role":"user","content":"héllo \u{1}\"\\\n/"},{"b":[1,2.50,-0.0,1e3,null,true],"a":{"ä":1,"z":2}}]),
    );
    // printf '%s' '[{"content":"héllo \u0001\"\\\n/","role":"user"},{"a":{"z":2,"ä":1},"b":[1,2.5,-0.0,1000.0,null,true]}]' | sha256sum
    assert_eq!(
        view(&a, json!("raw")).prefix_hash,
        "sha256:44b3655bda441c3fea53a0db6695b0c402242073bd2a0982f86c45c81d845cff"
    );
    let b = read(
        &json!([{"content":"héllo \u{1}\"\\\n/","role":"user"},{"a":{"z":2,"ä":1},"b":[1,2.5,-0.0,1000.0,null,true]}]),
    );
    assert_eq!(view(&a, json!("raw")).prefix_hash, view(&b, json!("raw")).prefix_hash);
    assert_eq!(
        view(&[], json!("raw")).prefix_hash,
        "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
    );
}

#[test]
fn numbers_beyond_a_double_are_shown_as_they_came() {
    let text = r#"{"role":"user","content":"x 1e999","n":[1e999, -1E+400,0.1,"a\"1e999"],"big":123456789012345678901234567890}"#;
    let message = Message::read(Raw::new(text.to_string()).unwrap()).unwrap();
    assert_eq!(message.value()["n"], json!(["1e999", "-1E+400", 0.1, "a\"1e999"]));
    let messages = [message];
    assert_eq!(serde_json::to_string(&view(&messages, json!("raw")).messages).unwrap(), format!("[{text}]"));
}

#[test]
fn raw_is_the_identity() {
    let messages = read(&failed_then_repaired());
    let view = view(&messages, json!("raw"));
    assert_eq!(view.reason, "raw_passthrough");
    assert_eq!((view.kept_count, view.dropped_count, view.first_changed_index), (6, 0, None));
    assert!(
        view.messages.iter().zip(&messages).all(|(shown, message)| std::ptr::eq(shown.raw(), message.raw()))
    );
}

#[test]
fn clean_tool_repair_hides_a_failed_call_whose_tool_succeeds_later() {
    let messages = read(&failed_then_repaired());
    let cleaned = view(&messages, json!("clean_tool_repair"));
    assert_eq!(cleaned.dropped_indices, [1, 2]);
    let chars: usize = messages[1..3].iter().map(|message| message.raw().get().chars().count()).sum();
    let tokens: usize = messages[1..3].iter().map(|message| message.raw().get().chars().count() / 4).sum();
    assert_eq!((cleaned.reclaimed_chars, cleaned.reclaimed_tokens), (chars, tokens));

    for (messages, dropped) in [
        // Never repaired, repaired by another tool, or by a call that was made before.
        (json!([call("a", "ls"), result("a", "error: x")]), vec![]),
        (json!([call("a", "ls"), result("a", "error: x"), call("b", "cat"), result("b", "ok")]), vec![]),
        (json!([call("b", "ls"), result("b", "ok"), call("a", "ls"), result("a", "error: x")]), vec![]),
        // Failed twice, then repaired.
        (
            json!([
                call("a", "ls"),
                result("a", "error: x"),
                call("b", "ls"),
                result("b", "error: y"),
                call("c", "ls"),
                result("c", "ok")
            ]),
            vec![0, 1, 2, 3],
        ),
    ] {
        assert_eq!(view(&read(&messages), json!("clean_tool_repair")).dropped_indices, dropped, "{messages}");
    }
}

#[test]
fn a_call_made_beside_the_failed_one_does_not_repair_it() {
    let messages = json!([
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"read","input":{"path":"x"}},{"type":"tool_use","id":"b","name":"read","input":{"path":"y"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"gone","is_error":true},{"type":"tool_result","tool_use_id":"b","content":"here"}]},
    ]);
    assert_eq!(shown(&messages, json!("clean_tool_repair")), messages);
    let item = |id: &str| json!({"type":"function_call","call_id":id,"name":"read","arguments":"{}"});
    let output = |id: &str, text: &str| json!({"type":"function_call_output","call_id":id,"output":text});
    let messages = json!([item("a"), item("b"), output("a", "error: gone"), output("b", "here")]);
    assert_eq!(shown(&messages, json!("clean_tool_repair")), messages);
}

#[test]
fn several_calls_in_one_message_are_each_judged_on_their_own() {
    let messages = json!([
        {"role":"assistant","content":[{"type":"text","text":"both"},{"type":"tool_use","id":"a","name":"read","input":{}},{"type":"tool_use","id":"b","name":"ls","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"gone","is_error":true},{"type":"tool_result","tool_use_id":"b","content":"here"}]},
    ]);
    assert_eq!(
        shown(&messages, json!("squash_failed_calls")),
        json!([
            {"role":"assistant","content":[{"type":"text","text":"both"},{"type":"tool_use","id":"b","name":"ls","input":{}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"here"}]},
        ])
    );
    let messages = json!([
        {"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"ls"}},{"id":"b","function":{"name":"ls"}}]},
        result("a", "fine"), result("b", "failed: x"),
    ]);
    assert_eq!(
        shown(&messages, json!("squash_failed_calls")),
        json!([{"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"ls"}}]}, result("a", "fine")])
    );
}

/// No provider puts calls in two places of one message, but nothing forbids it.
#[test]
fn a_content_of_which_nothing_is_left_is_null() {
    let calls = json!([{"id":"b","function":{"name":"ls"}}]);
    let messages = json!([
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"read","input":{}}],"tool_calls":calls},
        result("a", "error: x"), result("b", "fine"),
    ]);
    assert_eq!(
        shown(&messages, json!("squash_failed_calls")),
        json!([{"role":"assistant","content":null,"tool_calls":calls}, result("b", "fine")])
    );
}

#[test]
fn prose_survives_the_call_beside_it() {
    for (messages, expected) in [
        (
            json!([{"role":"assistant","content":"Let me look.","tool_calls":[{"id":"a","function":{"name":"ls"}}],"n":1.50}, result("a", "error: x")]),
            r#"[{"role":"assistant","content":"Let me look.","n":1.50}]"#,
        ),
        (
            json!([{"role":"assistant","content":[{"type":"text","text":"Let me look."},{"type":"tool_use","id":"a","name":"ls","input":{}}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x","is_error":true},{"type":"text","text":"go on"}]}]),
            r#"[{"role":"assistant","content":[{"type":"text","text":"Let me look."}]},{"role":"user","content":[{"type":"text","text":"go on"}]}]"#,
        ),
        // Reasoning without a signature is removed with the call that it led to.
        (
            json!([{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"a","name":"ls","input":{}}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x","is_error":true}]}]),
            r#"[{"role":"user","content":"hi"}]"#,
        ),
        (
            json!([{"role":"assistant","content":"","function_call":{"name":"ls","arguments":"{}"}},{"role":"function","name":"ls","content":"error: x"}]),
            "[]",
        ),
    ] {
        let text = messages.to_string().replace("1.5", "1.50");
        let raws: Vec<Raw> = serde_json::from_str(&text).unwrap();
        let messages: Vec<_> = raws.into_iter().map(|raw| Message::read(raw).unwrap()).collect();
        let view = view(&messages, json!("squash_failed_calls"));
        assert_eq!(serde_json::to_string(&view.messages).unwrap(), expected);
    }
}

#[test]
fn a_reasoning_item_goes_with_the_call_that_it_led_to() {
    let reasoning = |id: &str| json!({"type":"reasoning","id":id,"summary":[]});
    let call = |id: &str| json!({"type":"function_call","call_id":id,"name":"ls","arguments":"{}"});
    let output = |id: &str, text: &str| json!({"type":"function_call_output","call_id":id,"output":text});
    let messages = json!([
        reasoning("r"),
        call("a"),
        output("a", "error: x"),
        reasoning("s"),
        call("b"),
        output("b", "ok")
    ]);
    assert_eq!(view(&read(&messages), json!("squash_failed_calls")).dropped_indices, [0, 1, 2]);
    // It stays while something that it led to does.
    let messages = json!([reasoning("r"), call("a"), call("b"), output("a", "error: x"), output("b", "ok")]);
    assert_eq!(view(&read(&messages), json!("squash_failed_calls")).dropped_indices, [1, 3]);
    // The very last one waits for what it will lead to.
    let messages = json!([call("a"), output("a", "error: x"), reasoning("r")]);
    assert_eq!(view(&read(&messages), json!("squash_failed_calls")).dropped_indices, [0, 1]);
    // If signed, the safety rule decides.
    let signed = json!({"type":"reasoning","id":"r","summary":[],"encrypted_content":"zzz"});
    let messages = read(&json!([signed, call("a"), output("a", "error: x")]));
    assert!(view(&messages, json!("squash_failed_calls")).provider_safety_blocked);
    let per_turn = json!({"policy":"squash_failed_calls","respect_provider_signatures":"per_turn"});
    assert_eq!(view(&messages, per_turn).dropped_count, 0);
}

#[test]
fn summary_prefix_puts_one_message_in_place_of_the_beginning() {
    let messages = read(&failed_then_repaired());
    let synthetic = |text: &str| json!({"role":"system","content":text,"_harn_projection":{"synthetic":true,"policy":"summary_prefix"}});
    let with = |options: Value, summary: Option<&str>| {
        project(&messages, summary, &ViewOptions::parse(&options).unwrap()).unwrap()
    };
    let one = with(json!({"policy":"summary_prefix","keep_last":1,"summary":"so far"}), Some("older"));
    assert_eq!(one.messages[0].value(), &synthetic("so far"));
    assert_eq!((&one.source_indices[..], &one.kept_indices[..]), (&[None, Some(5)][..], &[5][..]));
    assert_eq!((one.dropped_count, one.first_changed_index), (5, Some(0)));
    assert_eq!(one.event()["metadata"]["summary_keep_last"], 1);
    // The transcript's summary, else a generated one with counts.
    let options = json!({"policy":"summary_prefix","keep_last":1});
    assert_eq!(with(options.clone(), Some("older")).messages[0].value(), &synthetic("older"));
    let counted = with(options.clone(), None);
    assert_eq!(counted.messages[0].value(), &synthetic("[5 earlier messages are not shown]"));
    // The cut moves earlier rather than splitting the pair at 3 and 4.
    assert_eq!(with(json!({"policy":"summary_prefix","keep_last":2}), None).kept_indices, [3, 4, 5]);
    assert_eq!(with(json!("summary_prefix"), None).messages.len(), 1);
    for keep_last in [6, 7] {
        let noop = with(json!({"policy":"summary_prefix","keep_last":keep_last}), None);
        assert_eq!((noop.reason.as_str(), noop.dropped_count), ("summary_prefix_noop_short_history", 0));
    }
}

pub fn custom<'a>(
    messages: &'a [Message],
    options: Value,
    projector: impl Fn(&[&Message]) -> Value + Send + Sync + 'static,
) -> ProjectedView<'a> {
    let mut options = ViewOptions::parse(&options).unwrap();
    options.projector = ViewOptions::custom(move |messages: &[&Message]| Ok(projector(messages))).projector;
    project(messages, None, &options).unwrap()
}

/// The messages at these indices, as a projector returns them.
pub fn pick(messages: &[&Message], indices: &[usize]) -> Value {
    indices.iter().map(|index| messages[*index].value().clone()).collect()
}

#[test]
fn custom_indices_are_recovered_by_matching_equal_messages_in_order() {
    let messages = read(
        &json!([{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"user","content":"a"},{"role":"user","content":"c"}]),
    );
    let view = custom(
        &messages,
        json!("custom"),
        |m| json!([{"content":"a","role":"user"}, m[2].value(), {"role":"user","content":"new"}]),
    );
    assert_eq!(view.source_indices, [Some(0), Some(2), None]);
    assert_eq!((&view.kept_indices[..], &view.dropped_indices[..]), (&[0, 2][..], &[1, 3][..]));
    assert_eq!((view.reason.as_str(), view.first_changed_index), ("custom", Some(1)));
    // An equal message is shown as it came, whatever order its keys came back in.
    assert!(std::ptr::eq(view.messages[0].raw(), messages[0].raw()));
    let later = custom(&messages, json!("custom"), |m| pick(m, &[1, 0]));
    assert_eq!(later.source_indices, [Some(1), Some(2)]);
    let said = custom(
        &messages,
        json!("custom"),
        |m| json!({"messages":[{"role":"user","content":"A"}, m[3].value()],"reason":"shouted","kept_indices":[0, 3]}),
    );
    assert_eq!((said.reason.as_str(), said.kept_count, said.dropped_count), ("shouted", 2, 2));
    assert_eq!(said.source_indices, [Some(0), Some(3)]);
}

#[test]
fn what_a_projector_returns_is_read_strictly() {
    let messages = read(&json!([{"role":"user","content":"a"},{"role":"user","content":"b"}]));
    for (answer, says) in [
        (json!("x"), "must return a list"),
        (json!({"reason":"x"}), "must return messages"),
        (json!({"messages":[],"reason":3}), "reason"),
        (json!({"messages":[],"kept_indices":[2]}), "kept_indices"),
        (json!({"messages":[],"kept_indices":[0, 0]}), "kept_indices"),
        (json!({"messages":[],"dropped_indices":[-1]}), "dropped_indices"),
        (json!({"messages":[],"kept_indices":[0],"dropped_indices":[0, 1]}), "every message once"),
        (json!({"messages":[],"kept":[0]}), "kept, which is unknown"),
    ] {
        let returned = answer.clone();
        let options = ViewOptions::custom(move |_: &[&Message]| Ok(returned.clone()));
        let error = project(&messages, None, &options).unwrap_err();
        assert!(error.text().starts_with("projector") && error.text().contains(says), "{answer}: {error}");
    }
}

#[test]
fn a_number_from_a_projector_is_the_message_at_that_index() {
    let same = json!({"role":"user","content":"a"});
    let messages = read(&json!([same, {"role":"user","content":"b"}, same]));
    let view = custom(&messages, json!("custom"), |_| json!([2]));
    assert_eq!(view.source_indices, [Some(2)]);
    // Before the previous one, it is new, as an equal message would be there.
    let turned = custom(&messages, json!("custom"), |_| json!([1, 0, 1]));
    assert_eq!(turned.source_indices, [Some(1), Some(2), None]);
    for unfit in [json!([3]), json!([-1]), json!([0.5])] {
        let options = ViewOptions::custom(move |_: &[&Message]| Ok(unfit.clone()));
        assert!(
            project(&messages, None, &options).unwrap_err().text().contains("not the index of a message")
        );
    }
}

/// The example of the documentation drops error results and leaves their calls behind, which no provider
/// accepts.
#[test]
fn a_call_leaves_with_the_result_that_a_projector_drops() {
    let messages = read(&failed_then_repaired());
    let without_result = custom(&messages, json!("custom"), |m| pick(m, &[0, 1, 3, 4, 5]));
    assert_eq!(without_result.dropped_indices, [1, 2]);
    let without_call = custom(&messages, json!("custom"), |m| pick(m, &[0, 1, 2, 4, 5]));
    assert_eq!(without_call.dropped_indices, [3, 4]);
    // Where ids repeat, the first call and the last result only look like a pair.
    let again = read(&json!([call("a", "ls"), result("a", "1"), call("a", "ls"), result("a", "2")]));
    assert_eq!(custom(&again, json!("custom"), |m| pick(m, &[0, 3])).dropped_count, 4);
    // A result that the projector only shortened still answers its call.
    let short = custom(
        &again,
        json!("custom"),
        |m| json!([m[0].value(), {"role":"tool","tool_call_id":"a","content":"…"}, m[2].value(), m[3].value()]),
    );
    assert_eq!(short.source_indices, [Some(0), None, Some(2), Some(3)]);
}

fn signed() -> Value {
    json!([
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"sig"},{"type":"tool_use","id":"a","name":"ls","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x","is_error":true}]},
        call("b", "cat"), result("b", "error: x"),
        call("c", "ls"), result("c", "ok"), call("d", "cat"), result("d", "ok"),
    ])
}

#[test]
fn a_policy_that_would_break_signed_reasoning_gives_the_raw_view() {
    let messages = read(&signed());
    for policy in ["clean_tool_repair", "squash_failed_calls", "summary_prefix"] {
        let options =
            |respect: Value| json!({"policy":policy,"reason":"mine","respect_provider_signatures":respect});
        let blocked = view(&messages, options(json!(true)));
        assert!(blocked.provider_safety_blocked);
        assert_eq!(blocked.reason, "provider_safety_blocked: message 0 carries signed reasoning");
        assert_eq!((blocked.kept_count, blocked.dropped_count, blocked.reclaimed_tokens), (8, 0, 0));
        assert_eq!(blocked.prefix_hash, view(&messages, json!("raw")).prefix_hash);
        assert_eq!(blocked.policy, policy);

        let per_turn = view(&messages, options(json!("per_turn")));
        assert!(!per_turn.provider_safety_blocked);
        assert_eq!(per_turn.reason, "mine");
        let kept: &[usize] = if policy == "summary_prefix" { &[0, 1] } else { &[0, 1, 4, 5, 6, 7] };
        assert_eq!(per_turn.kept_indices, kept, "{policy}");

        let ignored = view(&messages, options(json!(false)));
        assert!(ignored.dropped_indices.starts_with(&[0, 1, 2, 3]));
        assert_eq!(ignored.event()["metadata"]["respects_provider_signatures"], false);
    }
}

#[test]
fn every_kind_of_signature_is_respected() {
    let turn = |first: Value| {
        json!([
            {"role":"assistant","content":[first, {"type":"tool_use","id":"a","name":"ls","input":{}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x","is_error":true}]},
        ])
    };
    let blocked =
        |messages: Value| view(&read(&messages), json!("squash_failed_calls")).provider_safety_blocked;
    for block in [
        json!({"type":"thinking","thinking":"","signature":"s"}),
        json!({"type":"reasoning","signature":"s"}),
        json!({"type":"redacted_thinking","data":"s"}),
        json!({"type":"reasoning","encrypted_content":"s"}),
        json!({"type":"thinking","thinking_signature":"s"}),
        json!({"type":"text","text":"x","thoughtSignature":"s"}),
    ] {
        assert!(blocked(turn(block.clone())), "{block}");
    }
    for block in [
        json!({"type":"thinking","thinking":"hm"}),
        json!({"type":"thinking","thinking":"hm","signature":""}),
        json!({"type":"text","text":"x","signature":"of a letter"}),
    ] {
        assert!(!blocked(turn(block.clone())), "{block}");
    }
}

#[test]
fn a_signed_message_that_a_projector_drops_or_changes_is_protected_whatever_it_says() {
    let messages = read(&json!([
        {"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"sig"},{"type":"text","text":"x"}]},
    ]));
    let dropped = custom(&messages, json!("custom"), |m| pick(m, &[0]));
    let lied = custom(
        &messages,
        json!("custom"),
        |m| json!({"messages":[m[0].value(), {"role":"assistant","content":"x"}],"kept_indices":[0, 1],"dropped_indices":[]}),
    );
    let reordered = custom(&messages, json!("custom"), |m| pick(m, &[1, 0]));
    for view in [dropped, lied] {
        assert!(view.provider_safety_blocked);
        assert_eq!((view.kept_count, view.dropped_count), (2, 0));
    }
    assert!(!reordered.provider_safety_blocked);
    let per_turn = json!({"policy":"custom","respect_provider_signatures":"per_turn"});
    assert_eq!(custom(&messages, per_turn.clone(), |m| pick(m, &[0])).kept_indices, [0, 1]);
    assert_eq!(custom(&messages, per_turn, |_| json!([])).kept_indices, [1]);
}
