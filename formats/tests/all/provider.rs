//! What the renderers promise, one promise a test: shapes, pairs, ids, arguments, what is left out.

use crate::provider_valid::check;
use everturn_core::json::Raw;
use everturn_core::pairing::pair;
use everturn_formats::provider::{Input, Media, NoMedia, Provider, Rendered, render};
use serde_json::{Value, json};

pub struct Shelf;

impl Media for Shelf {
    fn bytes(&self, asset_id: &str) -> Option<(String, Vec<u8>)> {
        match asset_id {
            "asset_png" => Some(("image/png".into(), vec![1, 2, 3])),
            "asset_pdf" => Some(("application/pdf".into(), vec![4, 5, 6])),
            _ => None,
        }
    }

    fn label(&self, asset_id: &str) -> Option<String> {
        (asset_id == "asset_gone").then(|| "holiday.png".into())
    }
}

pub fn full(provider: Provider, messages: &[Value]) -> Rendered {
    let out = render(provider, &Input { system: &[], messages, media: &Shelf }).unwrap();
    let system: Option<Value> = out.system.as_ref().map(|raw| raw.read().unwrap());
    check(provider.as_str(), system.as_ref(), &values(&out)).unwrap();
    out
}

pub fn values(rendered: &Rendered) -> Vec<Value> {
    rendered.messages.iter().map(|raw| raw.read().unwrap()).collect()
}

pub fn given(provider: Provider, messages: &[Value]) -> Vec<Value> {
    values(&full(provider, messages))
}

pub fn what(rendered: &Rendered) -> Vec<(usize, &str)> {
    rendered.left_out.iter().map(|left| (left.message, left.what.as_str())).collect()
}

fn chat_call(id: &str) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "read", "arguments": "{\"n\": 1.50}"}}]})
}

fn chat_result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "done"})
}

/// The same conversation as each client would have written it.
fn shapes() -> Vec<(&'static str, Vec<Value>)> {
    let user = json!({"role": "user", "content": "Read a."});
    vec![
        (
            "chat",
            vec![
                user.clone(),
                json!({"role": "assistant", "content": "Reading.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"n\":1.50}"}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{}"}}]}),
                json!({"role": "tool", "tool_call_id": "c1", "content": "uno"}),
                json!({"role": "tool", "tool_call_id": "c2", "content": "two"}),
                json!({"role": "assistant", "content": "Fine."}),
            ],
        ),
        (
            "anthropic",
            vec![
                user.clone(),
                json!({"role": "assistant", "content": [{"type": "text", "text": "Reading."},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"n": 1.5}},
                {"type": "tool_use", "id": "c2", "name": "read", "input": {}}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "uno"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}]}]}),
                json!({"role": "assistant", "content": "Fine."}),
            ],
        ),
        (
            "responses",
            vec![
                user.clone(),
                json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Reading."}]}),
                json!({"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{\"n\":1.50}"}),
                json!({"type": "function_call", "call_id": "c2", "name": "read", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": "c1", "output": "uno"}),
                json!({"type": "function_call_output", "call_id": "c2", "output": "two"}),
                json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Fine."}]}),
            ],
        ),
        (
            "gemini",
            vec![
                json!({"role": "user", "parts": [{"text": "Read a."}]}),
                json!({"role": "model", "parts": [{"text": "Reading."},
                {"functionCall": {"id": "c1", "name": "read", "args": {"n": 1.5}}},
                {"functionCall": {"id": "c2", "name": "read", "args": {}}}]}),
                json!({"role": "user", "parts": [
                {"functionResponse": {"id": "c1", "name": "read", "response": {"output": "uno"}}},
                {"functionResponse": {"id": "c2", "name": "read", "response": {"output": "two"}}}]}),
                json!({"role": "model", "parts": [{"text": "Fine."}]}),
            ],
        ),
        (
            "ours",
            vec![
                user,
                json!({"role": "assistant", "content": [{"type": "text", "text": "Reading."},
                {"type": "tool_call", "id": "c1", "name": "read", "arguments": {"n": 1.5}},
                {"type": "tool_call", "id": "c2", "name": "read", "arguments": {}}]}),
                json!({"role": "tool_result", "tool_call_id": "c1", "name": "read", "content": "uno"}),
                json!({"role": "tool", "tool_call_id": "c2", "name": "read", "content": "two"}),
                json!({"role": "assistant", "content": "Fine."}),
            ],
        ),
    ]
}

#[test]
fn every_shape_renders_for_every_provider() {
    for (shape, messages) in shapes() {
        for provider in Provider::ALL {
            let out = full(provider, &messages);
            assert!(out.left_out.is_empty(), "{shape} for {provider}: {:?}", out.left_out);
            // Number spellings aside, which only text keeps, every shape says the same.
            let text = values(&out)
                .iter()
                .map(|m| m.to_string().replace("1.50", "1.5"))
                .collect::<Vec<_>>()
                .join("\n");
            for word in ["Read a.", "Reading.", "c1", "c2", "uno", "two", "Fine."] {
                assert_eq!(
                    text.matches(word).count(),
                    if word.starts_with('c') { 2 } else { 1 },
                    "{word}: {text}"
                );
            }
        }
    }
}

/// Golden examples: the chat conversation, for each provider.
#[test]
fn the_same_conversation_as_each_provider_reads_it() {
    let messages = &shapes()[0].1;
    assert_eq!(given(Provider::OpenaiChat, messages), *messages);
    assert_eq!(
        given(Provider::Anthropic, messages),
        [
            json!({"role": "user", "content": "Read a."}),
            json!({"role": "assistant", "content": [{"type": "text", "text": "Reading."},
            {"type": "tool_use", "id": "c1", "name": "read", "input": {"n": 1.50}},
            {"type": "tool_use", "id": "c2", "name": "read", "input": {}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "uno"},
            {"type": "tool_result", "tool_use_id": "c2", "content": "two"}]}),
            json!({"role": "assistant", "content": "Fine."}),
        ]
    );
    assert_eq!(
        given(Provider::OpenaiResponses, messages),
        [
            json!({"role": "user", "content": "Read a."}),
            json!({"role": "assistant", "content": "Reading."}),
            json!({"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{\"n\":1.50}"}),
            json!({"type": "function_call", "call_id": "c2", "name": "read", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "c1", "output": "uno"}),
            json!({"type": "function_call_output", "call_id": "c2", "output": "two"}),
            json!({"role": "assistant", "content": "Fine."}),
        ]
    );
    assert_eq!(
        given(Provider::Gemini, messages),
        [
            json!({"role": "user", "parts": [{"text": "Read a."}]}),
            json!({"role": "model", "parts": [{"text": "Reading."},
            {"functionCall": {"id": "c1", "name": "read", "args": {"n": 1.50}}},
            {"functionCall": {"id": "c2", "name": "read", "args": {}}}]}),
            json!({"role": "user", "parts": [
            {"functionResponse": {"id": "c1", "name": "read", "response": {"output": "uno"}}},
            {"functionResponse": {"id": "c2", "name": "read", "response": {"output": "two"}}}]}),
            json!({"role": "model", "parts": [{"text": "Fine."}]}),
        ]
    );
    assert_eq!(
        given(Provider::Neutral, messages),
        [
            json!({"role": "user", "content": "Read a."}),
            json!({"role": "assistant", "content": [{"type": "text", "text": "Reading."},
            {"type": "tool_call", "id": "c1", "name": "read", "arguments": {"n": 1.50}},
            {"type": "tool_call", "id": "c2", "name": "read", "arguments": {}}]}),
            json!({"role": "tool", "tool_call_id": "c1", "name": "read", "content": "uno"}),
            json!({"role": "tool", "tool_call_id": "c2", "name": "read", "content": "two"}),
            json!({"role": "assistant", "content": "Fine."}),
        ]
    );
}

#[test]
fn the_items_of_a_responses_turn_become_one_message() {
    let messages = &shapes()[2].1;
    let chat = given(Provider::OpenaiChat, messages);
    assert_eq!(chat.len(), 5, "{chat:#?}");
    assert_eq!(chat[1]["content"], "Reading.");
    assert_eq!(chat[1]["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(full(Provider::OpenaiChat, messages).sources, [Some(0), Some(1), Some(4), Some(5), Some(6)]);
}

#[test]
fn a_message_in_the_providers_shape_passes_in_its_own_bytes() {
    for (provider, texts) in [
        (
            Provider::OpenaiChat,
            vec![
                r#"{"role":"user","content":[{"type":"text","text":"a","x":1e2}],"name":"Ann","future":{"b":1.0, "a":2}}"#,
                r#"{"content":"","role":"assistant","tool_calls":[{"function":{"arguments":"{ }","name":"f"},"id":"1","type":"function"}],"refusal":null}"#,
                r#"{"role":"tool","content":"","tool_call_id":"1"}"#,
                r#"{"role":"developer","content":"be brief"}"#,
                r#"{"role":"assistant","content":null,"refusal":"no"}"#,
            ],
        ),
        (
            Provider::Anthropic,
            vec![
                r#"{"role":"user","content":[{"cache_control":{"type":"ephemeral"},"type":"text","text":"a"}]}"#,
                r#"{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"Zz=="},{"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]},{"type":"tool_use","id":"1","name":"f","input":{"big":123456789012345678901234567890, "e":1E5}}]}"#,
                r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1"},{"type":"text","text":"and"}]}"#,
                r#"{"role":"assistant","content":[{"type":"redacted_thinking","data":"QQ=="},{"type":"text","text":"x","citations":[]}]}"#,
            ],
        ),
        (
            Provider::OpenaiResponses,
            vec![
                r#"{"type":"message","role":"system","content":[{"type":"input_text","text":"s"}]}"#,
                r#"{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"gAAA"}"#,
                r#"{"type":"web_search_call","id":"ws_1","status":"completed","action":{"n":1.0}}"#,
                r#"{"id":"fc_1","type":"function_call","status":"completed","call_id":"1","name":"f","arguments":"{}"}"#,
                r#"{"type":"custom_tool_call","call_id":"2","name":"sh","input":"ls"}"#,
                r#"{"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"x"}]}"#,
                r#"{"type":"custom_tool_call_output","call_id":"2","output":"y"}"#,
                r#"{"type":"item_reference","id":"msg_1"}"#,
            ],
        ),
        (
            Provider::Gemini,
            vec![
                r#"{"parts":[{"text":"a"},{"inlineData":{"data":"AQID","mimeType":"video/mp4"}}],"role":"user"}"#,
                r#"{"role":"model","parts":[{"text":"","thoughtSignature":"c2ln"},{"functionCall":{"args":{"n":1.0},"name":"f"},"thoughtSignature":"c2ln"}]}"#,
                r#"{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"rows":[1.50]}}}]}"#,
                r#"{"role":"model","parts":[{"executableCode":{"code":"1","language":"PYTHON"}}]}"#,
            ],
        ),
        (
            Provider::Neutral,
            vec![
                r#"{"role":"user","content":"a","name":"Ann Lee"}"#,
                r#"{"role":"assistant","content":[{"type":"reasoning","text":"hm"},{"type":"tool_call","id":"1","name":"f","arguments":{"n":1.0}}]}"#,
                r#"{"role":"tool","tool_call_id":"1","name":"f","content":[{"type":"image","mime_type":"image/png","data":"AQID"}]}"#,
            ],
        ),
    ] {
        let raws: Vec<Raw> = texts.iter().map(|text| Raw::new(text.to_string()).unwrap()).collect();
        let out = render(provider, &Input { system: &[], messages: &raws, media: &NoMedia }).unwrap();
        assert_eq!(out.messages, raws, "{provider}");
        assert_eq!(out.left_out, []);
        check(provider.as_str(), None, &values(&out)).unwrap();
    }
}

#[test]
fn a_result_moves_next_to_its_call() {
    let messages = [
        json!({"role": "user", "content": "go"}),
        chat_call("a"),
        json!({"role": "user", "content": "meanwhile"}),
        chat_result("a"),
    ];
    for provider in Provider::ALL {
        let out = full(provider, &messages);
        assert_eq!(out.left_out, []);
        assert_eq!(out.sources, [Some(0), Some(1), Some(3), Some(2)], "{provider}");
    }
}

#[test]
fn what_has_no_partner_is_left_out_and_named() {
    let messages = [
        chat_result("x"),
        json!({"role": "user", "content": "go"}),
        chat_call("a"),
        json!({"role": "user", "content": "stop"}),
    ];
    for provider in Provider::ALL {
        let out = full(provider, &messages);
        assert_eq!(out.sources, [Some(1), Some(3)], "{provider}");
        assert_eq!(what(&out), [(0, "tool result without its call"), (2, "call of read without its result")]);
    }
}

#[test]
fn a_call_that_the_list_ends_with_is_pending_and_stays() {
    for provider in Provider::ALL {
        let out = full(provider, &[json!({"role": "user", "content": "go"}), chat_call("a")]);
        assert_eq!(out.sources, [Some(0), Some(1)], "{provider}");
        assert_eq!(out.left_out, []);
        // Answered in part, it is not: the provider would refuse the rest.
        let two = json!({"role": "assistant", "content": "x", "tool_calls": [chat_call("a")["tool_calls"][0], chat_call("b")["tool_calls"][0]]});
        let out = full(provider, &[json!({"role": "user", "content": "go"}), two, chat_result("b")]);
        assert_eq!(what(&out), [(1, "call of read without its result")], "{provider}");
        assert!(!out.messages.iter().any(|raw| raw.get().contains("\"a\"")));
    }
}

#[test]
fn parallel_calls_stay_together() {
    let messages = [
        json!({"role": "user", "content": "go"}),
        chat_call("a"),
        chat_call("b"),
        chat_result("b"),
        chat_result("a"),
    ];
    let chat = given(Provider::OpenaiChat, &messages);
    assert_eq!(chat[1]["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!((&chat[2]["tool_call_id"], &chat[3]["tool_call_id"]), (&json!("b"), &json!("a")));
    let anthropic = given(Provider::Anthropic, &messages);
    assert_eq!(anthropic.len(), 3, "{anthropic:#?}");
    assert_eq!(anthropic[2]["content"].as_array().unwrap().len(), 2);
}

#[test]
fn anthropic_gets_results_in_one_message_before_words() {
    let messages = [
        json!({"role": "user", "content": "go"}),
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}},
            {"type": "tool_use", "id": "b", "name": "f", "input": {}}]}),
        json!({"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "tool_result", "tool_use_id": "a", "content": "1"}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": "2"}]}),
    ];
    let out = given(Provider::Anthropic, &messages);
    assert_eq!(
        out[2..],
        [
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"},
            {"type": "tool_result", "tool_use_id": "b", "content": "2"}]}),
            json!({"role": "user", "content": [{"type": "text", "text": "look"}]}),
        ]
    );
}

/// A message of the assistant that held nothing but results was passed on in its own bytes, its role included.
#[test]
fn results_that_the_assistant_brought_are_given_by_the_user() {
    let block = json!({"type": "tool_result", "tool_use_id": "a", "content": "ok"});
    let messages = [chat_call("a"), json!({"role": "assistant", "content": [block]})];
    assert_eq!(given(Provider::Anthropic, &messages)[2], json!({"role": "user", "content": [block]}));
    let part = json!({"functionResponse": {"id": "a", "name": "read", "response": {"output": "ok"}}});
    let messages = [chat_call("a"), json!({"role": "model", "parts": [part]})];
    assert_eq!(given(Provider::Gemini, &messages)[2], json!({"role": "user", "parts": [part]}));
}

/// Of two calls of one tool, one with an id, the result without an id came first and was taken for the other's.
#[test]
fn results_without_ids_stand_in_the_order_of_their_calls() {
    let messages = [
        json!({"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"}),
        json!({"role": "assistant", "function_call": {"name": "read", "arguments": "{}"}}),
        json!({"role": "tool", "tool_call_id": "", "content": "second"}),
        json!({"role": "tool", "tool_call_id": "a", "content": "first"}),
    ];
    let out = given(Provider::Gemini, &messages);
    let said = |n: usize| out[2]["parts"][n]["functionResponse"]["response"]["output"].as_str();
    assert_eq!((said(0), said(1)), (Some("first"), Some("second")));
    assert_eq!(given(Provider::Gemini, &out), out);
}

#[test]
fn ids_are_made_up_kept_apart_and_rewritten_where_they_must_be() {
    let call = |id: Value| json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}}]});
    let result = |id: Value| json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "x"}]});
    let long = "x".repeat(50);
    let mut messages = vec![json!({"role": "user", "content": "go"})];
    for id in [json!(null), json!("call_1"), json!("same"), json!("same"), json!("a b"), json!(long)] {
        messages.push(call(id.clone()));
        messages.push(result(id));
    }
    let ids = |provider| -> Vec<String> {
        let out = given(provider, &messages);
        let values: Vec<&Value> = out.iter().collect();
        let pairs = pair(values);
        assert!(pairs.calls.iter().all(|call| call.result.is_some()));
        pairs.calls.iter().map(|call| call.id.unwrap().to_string()).collect()
    };
    assert_eq!(ids(Provider::Neutral), ["call_2", "call_1", "same", "same_2", "a b", &long]);
    assert_eq!(ids(Provider::Anthropic)[..4], ["call_2", "call_1", "same", "same_2"]);
    assert!(ids(Provider::Anthropic)[4].starts_with("a_b_"), "{:?}", ids(Provider::Anthropic));
    assert_eq!(ids(Provider::OpenaiChat)[4], "a b");
    assert_eq!(ids(Provider::OpenaiChat)[5].len(), 40);
}

#[test]
fn arguments_are_an_object_or_json_in_a_string_and_numbers_keep_their_spelling() {
    let result = r#"{"role":"tool","tool_call_id":"a","content":"x"}"#;
    for (arguments, text, object) in [
        (r#""{\"n\": 1.50}""#, r#"{"n": 1.50}"#, r#"{"n": 1.50}"#),
        (
            r#"{"n":12345678901234567890123, "m":1e2}"#,
            r#"{"n":12345678901234567890123, "m":1e2}"#,
            r#"{"n":12345678901234567890123, "m":1e2}"#,
        ),
        (r#""""#, "{}", "{}"),
        ("null", "{}", "{}"),
        (r#""[1,2.0]""#, "[1,2.0]", r#"{"value":[1,2.0]}"#),
        (r#""ls -l""#, "ls -l", r#"{"value":"ls -l"}"#),
        (r#""{\"a\":1,\"a\":2}""#, r#"{"a":1,"a":2}"#, r#"{"value":"{\"a\":1,\"a\":2}"}"#),
    ] {
        let call = format!(
            r#"{{"role":"assistant","content":[{{"type":"tool_call","id":"a","name":"f","arguments":{arguments}}}]}}"#
        );
        let raws = [Raw::new(call).unwrap(), Raw::new(result.to_string()).unwrap()];
        let out = |provider| {
            let input = Input { system: &[], messages: &raws, media: &NoMedia };
            render(provider, &input).unwrap().messages.iter().map(Raw::get).collect::<Vec<_>>().join("\n")
        };
        let quoted = format!("\"arguments\":{}", everturn_core::json::quote(text));
        assert!(out(Provider::OpenaiChat).contains(&quoted), "{arguments}: {}", out(Provider::OpenaiChat));
        assert!(out(Provider::OpenaiResponses).contains(&quoted));
        assert!(
            out(Provider::Anthropic).contains(&format!("\"input\":{object}")),
            "{arguments}: {}",
            out(Provider::Anthropic)
        );
        assert!(out(Provider::Gemini).contains(&format!("\"args\":{object}")));
    }
}

#[test]
fn free_text_of_a_custom_tool_is_wrapped_in_json_for_chat() {
    let messages = [
        json!({"type":"custom_tool_call","call_id":"a","name":"apply_patch","input":"*** Begin Patch"}),
        json!({"type":"custom_tool_call_output","call_id":"a","output":"Done"}),
    ];
    let raws: Vec<Raw> = messages.iter().map(|message| Raw::of(message).unwrap()).collect();
    let rendered =
        render(Provider::OpenaiChat, &Input { system: &[], messages: &raws, media: &NoMedia }).unwrap();
    let call: Value = serde_json::from_str(rendered.messages[0].get()).unwrap();
    let arguments = call["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({"value": "*** Begin Patch"}));
}

/// Anthropic refuses a result that names its tool, as those of Gemini CLI's sessions do.
#[test]
fn a_result_for_anthropic_does_not_name_its_tool() {
    let messages = [
        json!({"role":"assistant","content":[{"type":"tool_call","id":"toolu_1","name":"ls","arguments":{}}]}),
        json!({"role":"tool","content":[{"type":"tool_result","tool_use_id":"toolu_1","name":"ls","content":"a"}]}),
    ];
    let raws: Vec<Raw> = messages.iter().map(|message| Raw::of(message).unwrap()).collect();
    let rendered =
        render(Provider::Anthropic, &Input { system: &[], messages: &raws, media: &NoMedia }).unwrap();
    let result: Value = serde_json::from_str(rendered.messages.last().unwrap().get()).unwrap();
    assert_eq!(result["content"], json!([{"type":"tool_result","tool_use_id":"toolu_1","content":"a"}]));
}

#[test]
fn nothing_empty_is_sent() {
    let messages = [
        json!({"role": "user", "content": ""}),
        json!({"role": "user", "content": []}),
        json!({"role": "user", "content": [{"type": "text", "text": ""}]}),
        json!({"role": "assistant", "content": null}),
        json!({"role": "user", "parts": [{"text": ""}]}),
        json!({"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "a"}]}),
    ];
    for provider in Provider::ALL {
        let out = full(provider, &messages);
        assert_eq!(out.sources, [Some(5)], "{provider}");
    }
    assert!(given(Provider::Anthropic, &[json!({"role": "user", "content": " \n"})]).is_empty());
    let last = [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "So \n"})];
    assert_eq!(given(Provider::Anthropic, &last)[1]["content"], "So");
}

#[test]
fn what_is_no_message_is_named() {
    let messages = [
        json!(null),
        json!("hi"),
        json!({"role": "king", "content": "x"}),
        json!({"content": "x"}),
        json!({"type": "hologram"}),
        json!({"role": "user", "content": [{"type": "hologram"}]}),
    ];
    for provider in Provider::ALL {
        let out = full(provider, &messages);
        assert!(out.messages.is_empty());
        let named: Vec<usize> = what(&out).iter().map(|(message, _)| *message).collect();
        assert_eq!(named, [0, 1, 2, 3, 4, 5], "{:?}", out.left_out);
        assert!(what(&out)[5].1.contains("hologram"));
    }
    let huge = [Raw::new(r#"{"role":"user","content":"x","n":1e999}"#.into()).unwrap()];
    let out = render(Provider::OpenaiChat, &Input { system: &[], messages: &huge, media: &NoMedia }).unwrap();
    assert_eq!(what(&out), [(0, "it has a number that is out of every range")]);
}

#[test]
fn a_response_of_anthropic_loses_its_envelope_and_nothing_else() {
    let raw = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"x","n":1.50}],"stop_reason":"end_turn","usage":{}}"#;
    let out = render(
        Provider::Anthropic,
        &Input { system: &[], messages: &[Raw::new(raw.into()).unwrap()], media: &NoMedia },
    )
    .unwrap();
    assert_eq!(
        out.messages[1].get(),
        r#"{"role":"assistant","content":[{"type":"text","text":"x","n":1.50}]}"#
    );
}

/// Arguments in a string may be as deep as anything that is stored; inside a message they stand a little deeper.
#[test]
fn deep_arguments_do_not_stop_the_rest() {
    let deep = format!("{}{}", "{\"a\":".repeat(99), "1") + &"}".repeat(99);
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": deep}}]});
    for provider in Provider::ALL {
        let out = full(provider, &[json!({"role": "user", "content": "x"}), call.clone()]);
        assert_eq!(out.messages.len(), 2);
    }
}

#[test]
fn names_of_tools_are_made_acceptable() {
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "fs.read file", "input": {}}]});
    let name =
        |provider| given(provider, &[json!({"role": "user", "content": "x"}), call.clone()])[1].to_string();
    assert!(name(Provider::OpenaiChat).contains("\"fs_read_file\""));
    assert!(name(Provider::Anthropic).contains("\"fs_read_file\""));
    assert!(name(Provider::Gemini).contains("\"fs.read_file\""));
    assert!(name(Provider::Neutral).contains("\"fs.read file\""));
}

#[test]
fn a_result_of_nothing_but_empty_text_is_an_empty_result() {
    let call = json!({"type": "function", "id": "a", "function": {"name": "read", "arguments": "{}"}});
    let messages = [
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": ""}, {"type": "text", "text": ""}]}),
    ];
    let first = given(Provider::Neutral, &messages);
    assert_eq!(first[1]["content"], "");
    assert_eq!(given(Provider::Neutral, &first), first);
}

/// A search result in a message for another provider vanished without a word.
#[test]
fn what_a_provider_does_not_know_is_shown_as_its_text() {
    let found = json!({"type": "search_result", "source": "https://a.example", "title": "Notes",
        "content": [{"type": "text", "text": "The wombat digs."}]});
    let plan = json!({"type": "document", "title": "Plan", "source": {"type": "content", "content": [{"type": "text", "text": "Step one."}]}});
    let odd = json!({"type": "new_block", "text": "Odd words."});
    let called = json!({"type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": "{}", "output": "From afar."});
    let messages = [
        json!({"role": "user", "content": [found, plan, odd]}),
        json!({"role": "user", "content": {"a": "An object."}}),
        called,
        json!({"role": "user", "content": "Go."}),
    ];
    for provider in Provider::ALL {
        let out = full(provider, &messages);
        let text = out.messages.iter().map(Raw::get).collect::<Vec<_>>().join("\n");
        for words in ["The wombat digs.", "Step one.", "Odd words.", "An object.", "From afar.", "Go."] {
            assert!(text.contains(words), "{provider}: {words} in {text}");
        }
        assert!(out.left_out.is_empty(), "{:?}", out.left_out);
    }
    let anthropic = given(Provider::Anthropic, &messages);
    assert_eq!(anthropic[0]["content"][0], found, "its own block stays as it is");
    assert_eq!(anthropic[0]["content"][1], plan);
}

#[test]
fn what_nobody_can_read_is_told_from_what_is_left_out_on_purpose() {
    let unread = |message: Value| {
        let out = full(Provider::OpenaiChat, &[message, json!({"role": "user", "content": "Go."})]);
        assert_eq!(out.messages.len(), 1);
        out.left_out.iter().any(|left| left.unread)
    };
    for message in [
        json!("hi"),
        json!({"role": "User", "content": "x"}),
        json!({"content": "x"}),
        json!({"role": "user", "content": [{"type": "hologram", "payload": "x"}]}),
        json!({"role": "user", "content": [{"type": "input_text", "text": 5}]}),
        json!({"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}),
        json!({"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}),
        json!({"type": "compaction", "encrypted_content": "x"}),
    ] {
        assert!(unread(message.clone()), "{message}");
    }
    for message in [
        json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}),
        json!({"type": "web_search_call", "id": "ws", "action": {"type": "search", "query": "q"}}),
        json!({"role": "user", "content": "x", "visibility": "private"}),
        json!({"role": "user", "content": [null]}),
        json!({"role": "user", "content": ""}),
    ] {
        assert!(!unread(message.clone()), "{message}");
    }
}

/// Claude Code marks blocks for Anthropic's cache, and agents keep fields of their own in messages; strict servers refuse both.
#[test]
fn fields_of_other_apis_stay_here() {
    let mark = json!({"type": "ephemeral"});
    let messages = [
        json!({"role": "system", "content": [{"type": "text", "text": "S", "cache_control": mark}]}),
        json!({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": mark}], "origin": {"kind": "user"}, "toolCalls": []}),
        json!({"role": "assistant", "content": "y", "timestamp": "2026-01-01", "finish_reason": "stop"}),
        json!({"role": "user", "content": "z", "timestamp": 1}),
    ];
    let chat = json!(given(Provider::OpenaiChat, &messages)).to_string();
    let anthropic = given(Provider::Anthropic, &messages);
    for name in ["cache_control", "origin", "toolCalls", "timestamp", "finish_reason"] {
        assert!(!chat.contains(name), "{name} in {chat}");
        let fields = anthropic.iter().flat_map(|message| message.as_object().unwrap().keys());
        assert!(!fields.into_iter().any(|field| field == name), "{name} in {anthropic:?}");
    }
    assert_eq!(anthropic[0]["content"][0]["cache_control"], mark, "which is Anthropic's own");
    let thinking = json!({"role": "assistant", "content": "y", "reasoning_content": "hm"});
    assert_eq!(given(Provider::OpenaiChat, &[messages[3].clone(), thinking.clone()])[1], thinking);
}
