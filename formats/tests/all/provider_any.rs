//! Whatever comes in, what goes out is valid: transcripts that no client would write, in every shape at once.

use crate::provider_valid::check;
use everturn_core::json::Raw;
use everturn_formats::provider::{
    Input, Media, NoMedia, Provider, Rendered, Renderer, SystemSection, WAIT_MESSAGES_MAX, render,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::str::FromStr;

struct OneAsset;

impl Media for OneAsset {
    fn bytes(&self, asset_id: &str) -> Option<(String, Vec<u8>)> {
        (asset_id == "asset_1").then(|| ("image/png".into(), vec![1, 2, 3]))
    }

    fn label(&self, asset_id: &str) -> Option<String> {
        (asset_id == "asset_2").then(|| "lost.png".into())
    }
}

fn rendered(provider: Provider, messages: &[Value]) -> Rendered {
    let system =
        [SystemSection { name: "prompt", text: "Be kind." }, SystemSection { name: "state", text: " " }];
    render(provider, &Input { system: &system, messages, media: &OneAsset }).unwrap()
}

/// The same, message by message, and how many stretches it took.
fn in_stretches(provider: Provider, messages: &[Value]) -> (Rendered, usize) {
    let system =
        [SystemSection { name: "prompt", text: "Be kind." }, SystemSection { name: "state", text: " " }];
    let mut renderer = Renderer::new(provider, &system, &OneAsset);
    let mut all = Vec::new();
    for message in messages {
        all.extend(renderer.push(Raw::of(message).unwrap()).unwrap());
    }
    all.push(renderer.rest().unwrap());
    let stretches = all.len();
    let joined = all.into_iter().reduce(|mut all, next| {
        assert_eq!(next.system, None, "the system material comes first");
        all.messages.extend(next.messages);
        all.left_out.extend(next.left_out);
        all.sources.extend(next.sources);
        all
    });
    (joined.unwrap(), stretches)
}

fn values(rendered: &Rendered) -> Vec<Value> {
    rendered.messages.iter().map(|raw| raw.read().unwrap()).collect()
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a"),
        Just(""),
        Just(" \n"),
        Just("hello world"),
        Just("tail \t"),
        Just("error: no"),
        Just("é☃\u{1f600}\"\\"),
        Just("{\"x\": 1.50}"),
        Just("asset:asset_2"),
    ]
    .prop_map(str::to_string)
}

fn id() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => Just(json!("a")),
        4 => Just(json!("b")),
        4 => Just(json!("c")),
        2 => Just(json!("call_1")),
        1 => Just(json!("call_2")),
        1 => Just(json!("a b:c")),
        1 => Just(json!("a_b_c")),
        1 => Just(json!("long".repeat(20))),
        1 => Just(json!("")),
        1 => Just(Value::Null),
        1 => Just(json!(7)),
    ]
}

fn name() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => Just(json!("read")),
        4 => Just(json!("write")),
        1 => Just(json!("fs.read file")),
        1 => Just(json!("9lives")),
        1 => Just(json!("")),
        1 => Just(Value::Null),
        1 => Just(json!("n".repeat(90))),
    ]
}

fn arguments() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(json!({"path": "a", "visibility": "private", "n": 1.5})),
        Just(json!("{\"n\": 10.00}")),
        Just(json!("")),
        Just(json!("not json")),
        Just(json!("[1,2]")),
        Just(json!("{\"a\":1,\"a\":2}")),
        Just(json!([1, 2])),
        Just(json!(3)),
        Just(Value::Null),
    ]
}

fn data() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("iVBORw0KGgoA")),
        Just(json!("aGVsbG8=")),
        Just(json!("not base64!")),
        Just(json!("asset:asset_1")),
        Just(json!("asset:asset_2")),
        Just(json!("")),
        Just(Value::Null),
    ]
}

fn mime() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("image/png")),
        Just(json!("image/bmp")),
        Just(json!("application/pdf")),
        Just(json!("text/plain")),
        Just(json!("audio/wav")),
        Just(json!("video/mp4")),
        Just(json!("nonsense")),
        Just(Value::Null),
    ]
}

fn url() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("https://example.org/a.png")),
        Just(json!("http://example.org/a.pdf")),
        Just(json!("data:image/png;base64,iVBORw0KGgoA")),
        Just(json!("data:image/png;base64,asset:asset_1")),
        Just(json!("data:,plain")),
        Just(json!("ftp://x")),
        Just(Value::Null),
    ]
}

fn media() -> impl Strategy<Value = Value> {
    prop_oneof![
        url().prop_map(|url| json!({"type": "image_url", "image_url": {"url": url}})),
        url().prop_map(|url| json!({"type": "input_image", "image_url": url, "detail": "auto"})),
        (data(), mime(), prop_oneof![Just("image"), Just("document")]).prop_map(|(data, mime, kind)| {
            json!({"type": kind, "source": {"type": "base64", "media_type": mime, "data": data}})
        }),
        url().prop_map(|url| json!({"type": "image", "source": {"type": "url", "url": url}})),
        word().prop_map(
            |w| json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": w}})
        ),
        Just(json!({"type": "image", "source": {"type": "file", "file_id": "file_1"}})),
        (data(), prop_oneof![Just("wav"), Just("ogg")]).prop_map(
            |(data, format)| json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
        ),
        data().prop_map(|data| json!({"type": "file", "file": {"filename": "a.pdf", "file_data": data}})),
        Just(json!({"type": "input_file", "file_id": "file-1"})),
        url().prop_map(|url| json!({"type": "input_file", "file_url": url})),
        Just(json!({"type": "image", "asset_id": "asset_1", "visibility": "public"})),
        Just(json!({"type": "image", "asset_id": "asset_2"})),
        (data(), mime()).prop_map(|(data, mime)| json!({"type": "image", "data": data, "mime_type": mime})),
        Just(json!({"type": "video"})),
    ]
}

fn said() -> impl Strategy<Value = Value> {
    let block = prop_oneof![
        word().prop_map(|text| json!({"type": "text", "text": text})),
        media(),
        Just(json!({"type": "hologram", "x": 1})),
        Just(json!({"no": "type"})),
        word().prop_map(Value::from),
        Just(json!({"type": "text", "text": "secret", "visibility": "private"})),
    ];
    prop_oneof![
        3 => word().prop_map(Value::from),
        3 => prop::collection::vec(block, 0..3).prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!({"rows": [1.5, {"visibility": "private"}]})),
        1 => Just(json!({"type": "text", "text": "secret", "visibility": "private"})),
        1 => Just(json!(42)),
    ]
}

fn block() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => word().prop_map(|text| json!({"type": "text", "text": text})),
        1 => word().prop_map(|text| json!({"type": "output_text", "text": text, "annotations": []})),
        1 => word().prop_map(|text| json!({"type": "input_text", "text": text})),
        1 => word().prop_map(|text| json!({"type": "refusal", "refusal": text})),
        1 => word().prop_map(Value::from),
        1 => word().prop_map(|text| json!({"text": text})),
        1 => (word(), word()).prop_map(|(a, b)| json!({"type": "thinking", "thinking": a, "signature": b})),
        1 => word().prop_map(|data| json!({"type": "redacted_thinking", "data": data})),
        1 => word().prop_map(|text| json!({"type": "reasoning", "text": text})),
        4 => (id(), name(), arguments())
            .prop_map(|(id, name, input)| json!({"type": "tool_use", "id": id, "name": name, "input": input})),
        1 => (id(), name(), arguments())
            .prop_map(|(id, name, a)| json!({"type": "tool_call", "id": id, "name": name, "arguments": a})),
        4 => (id(), said(), any::<bool>())
            .prop_map(|(id, c, e)| json!({"type": "tool_result", "tool_use_id": id, "content": c, "is_error": e})),
        2 => media(),
        1 => prop_oneof![Just("s1"), Just("s2")]
            .prop_map(|id| json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {}})),
        1 => prop_oneof![Just("s1"), Just("s2")]
            .prop_map(|id| json!({"type": "web_search_tool_result", "tool_use_id": id, "content": []})),
        1 => Just(json!({"type": "hologram"})),
        1 => Just(json!({"type": 7})),
        1 => Just(Value::Null),
        1 => Just(json!({"type": "text", "text": "secret", "visibility": "private"})),
        1 => Just(json!({"type": "text", "text": "for the model", "visibility": "internal", "cache_control": {"type": "ephemeral"}})),
    ]
}

fn role() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => Just("user"), 4 => Just("assistant"), 1 => Just("system"), 1 => Just("developer"), 2 => Just("tool"),
        1 => Just("model"), 1 => Just("king"),
    ]
}

fn part() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => word().prop_map(|text| json!({"text": text})),
        1 => (word(), word()).prop_map(|(text, seal)| json!({"text": text, "thoughtSignature": seal})),
        1 => word().prop_map(|text| json!({"text": text, "thought": true})),
        1 => word().prop_map(|text| json!({"text": text, "thought": true, "thoughtSignature": "s"})),
        3 => (name(), arguments()).prop_map(|(name, args)| json!({"functionCall": {"name": name, "args": args}})),
        2 => (id(), name(), any::<bool>()).prop_map(|(id, name, sealed)| match sealed {
            true => json!({"functionCall": {"id": id, "name": name, "args": {}}, "thoughtSignature": "c2ln"}),
            false => json!({"function_call": {"id": id, "name": name, "args": {}}, "thought_signature": "c2ln"}),
        }),
        3 => (name(), word()).prop_map(|(name, said)| json!({"functionResponse": {"name": name, "response": {"output": said}}})),
        2 => (id(), name()).prop_map(|(id, name)| json!({"functionResponse": {"id": id, "name": name, "response": {"x": 1}}})),
        1 => (data(), mime()).prop_map(|(data, mime)| json!({"inlineData": {"mimeType": mime, "data": data}})),
        1 => Just(json!({"fileData": {"fileUri": "https://example.org/v.mp4"}})),
        1 => Just(json!({"executableCode": {"language": "PYTHON", "code": "1"}})),
        1 => Just(Value::Null),
    ]
}

fn message() -> impl Strategy<Value = Value> {
    let call = (id(), name(), arguments()).prop_map(
        |(id, name, a)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": a}}),
    );
    prop_oneof![
        3 => (role(), word()).prop_map(|(role, text)| json!({"role": role, "content": text})),
        4 => (role(), prop::collection::vec(block(), 0..5)).prop_map(|(role, c)| json!({"role": role, "content": c})),
        2 => (role(), word(), word()).prop_map(|(role, text, name)| json!({"role": role, "content": text, "name": name})),
        4 => (prop::option::of(word()), prop::collection::vec(call, 0..3))
            .prop_map(|(text, calls)| json!({"role": "assistant", "content": text, "tool_calls": calls})),
        4 => (id(), said()).prop_map(|(id, c)| json!({"role": "tool", "tool_call_id": id, "content": c})),
        1 => (name(), said()).prop_map(|(name, c)| json!({"role": "tool_result", "name": name, "content": c})),
        1 => (name(), arguments())
            .prop_map(|(name, a)| json!({"role": "assistant", "function_call": {"name": name, "arguments": a}})),
        1 => (name(), word()).prop_map(|(name, c)| json!({"role": "function", "name": name, "content": c})),
        3 => (id(), name(), arguments(), any::<bool>()).prop_map(|(id, name, a, own)| {
            let item = json!({"type": "function_call", "call_id": id, "name": name, "arguments": a});
            if own { with(item, "id", json!("fc_1")) } else { item }
        }),
        3 => (id(), said()).prop_map(|(id, o)| json!({"type": "function_call_output", "call_id": id, "output": o})),
        1 => (id(), word()).prop_map(|(id, i)| json!({"type": "custom_tool_call", "call_id": id, "name": "sh", "input": i})),
        1 => (id(), said()).prop_map(|(id, o)| json!({"type": "custom_tool_call_output", "call_id": id, "output": o})),
        2 => word().prop_map(|seal| json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal})),
        1 => Just(json!({"type": "web_search_call", "id": "ws_1", "status": "completed"})),
        1 => prop::collection::vec(block(), 0..3)
            .prop_map(|c| json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": c})),
        5 => (prop_oneof![Just("user"), Just("model"), Just("function")], prop::collection::vec(part(), 0..4))
            .prop_map(|(role, parts)| json!({"role": role, "parts": parts})),
        1 => (id(), said()).prop_map(|(id, c)| json!({
            "role": "assistant", "content": "x", "visibility": "public",
            "tool_calls": [{"id": id.clone(), "function": {"name": "f", "arguments": "{}"}}],
            "tool_results": [{"tool_call_id": id, "content": c}],
        })),
        1 => word().prop_map(|w| json!({"role": "system", "content": w, "_harn_projection": {"synthetic": true}})),
        1 => Just(json!({"role": "user", "content": "hidden", "visibility": "private"})),
        1 => prop_oneof![
            Just(Value::Null), Just(json!("hi")), Just(json!([])), Just(json!({})), Just(json!({"role": null})),
            Just(json!({"type": "hologram"})), Just(json!({"role": "user"})), Just(json!({"parts": [{"text": "x"}]})),
            Just(json!({"role": "user", "content": {"deep": [[[{"type": "text", "text": "x"}]]]}})),
        ],
    ]
}

fn with(mut value: Value, key: &str, field: Value) -> Value {
    value[key] = field;
    value
}

/// The names and ids of the calls, in order, and of the results.
fn pairs(provider: Provider, messages: &[Value]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    for message in messages {
        let blocks = message["content"].as_array().or(message["parts"].as_array());
        for block in
            blocks.into_iter().flatten().chain(message["tool_calls"].as_array().into_iter().flatten())
        {
            match provider {
                Provider::Anthropic if block["type"] == "tool_use" => {
                    found.push((text(&block["id"]), text(&block["name"])))
                }
                Provider::Anthropic if block["type"] == "tool_result" => {
                    found.push((text(&block["tool_use_id"]), String::new()))
                }
                Provider::Neutral if block["type"] == "tool_call" => {
                    found.push((text(&block["id"]), text(&block["name"])))
                }
                Provider::OpenaiChat if block["function"].is_object() => {
                    found.push((text(&block["id"]), text(&block["function"]["name"])));
                }
                Provider::Gemini if block["functionCall"].is_object() => {
                    found.push((text(&block["functionCall"]["id"]), text(&block["functionCall"]["name"])));
                }
                Provider::Gemini if block["functionResponse"].is_object() => {
                    found.push((text(&block["functionResponse"]["id"]), String::new()));
                }
                _ => {}
            }
        }
        match message["type"].as_str() {
            Some("function_call" | "custom_tool_call") => {
                found.push((text(&message["call_id"]), text(&message["name"])))
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                found.push((text(&message["call_id"]), String::new()))
            }
            _ if message["role"] == "tool" => found.push((text(&message["tool_call_id"]), String::new())),
            _ => {}
        }
    }
    found
}

#[test]
fn a_long_list_goes_out_while_it_comes_in() {
    let call = |id: usize| json!({"type": "function_call", "call_id": format!("c{id}"), "name": "f", "arguments": "{}"});
    let answer =
        |id: usize| json!({"type": "function_call_output", "call_id": format!("c{id}"), "output": "ok"});
    let ask = || json!({"role": "user", "content": "go"});
    let rounds: Vec<Value> = (0..50).flat_map(|id| [ask(), call(id), answer(id)]).collect();
    assert_eq!(in_stretches(Provider::Anthropic, &rounds).1, 50, "a stretch for each round");

    // A result that takes its time holds everything behind its call, up to a limit; then the call counts as unanswered.
    for (between, kept) in [(WAIT_MESSAGES_MAX / 2, true), (WAIT_MESSAGES_MAX * 2, false)] {
        let mut late = vec![ask(), call(0)];
        late.extend((0..between).map(|_| ask()));
        late.extend([answer(0), ask(), call(1), answer(1)]);
        let (out, _) = in_stretches(Provider::Anthropic, &late);
        assert_eq!(check("anthropic", None, &values(&out)), Ok(()));
        let ids: Vec<String> =
            pairs(Provider::Anthropic, &values(&out)).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, if kept { vec!["c0", "c0", "c1", "c1"] } else { vec!["c1", "c1"] });
        let reasons: Vec<&str> = out.left_out.iter().map(|left| left.what.as_str()).collect();
        let all = ["call of f without its result", "tool result without its call"];
        assert_eq!(reasons, if kept { &[][..] } else { &all[..] });
        assert_eq!(kept, out == rendered(Provider::Anthropic, &late));
    }
}

/// A conversation as one client would write it, in one shape, with unique plain ids.
fn orderly() -> impl Strategy<Value = Vec<Value>> {
    let turn = (0..3usize, word(), 0..3usize, any::<bool>());
    (0..5usize, prop::collection::vec(turn, 1..6)).prop_map(|(shape, turns)| {
        let mut messages = vec![json!({"role": "user", "content": "go"})];
        for (t, (calls, text, _, failed)) in turns.into_iter().enumerate() {
            let ids: Vec<String> = (0..calls).map(|n| format!("id_{t}_{n}")).collect();
            let said = if text.is_empty() { "ok".to_string() } else { text };
            messages.extend(turn_in(shape, &ids, &said, failed));
        }
        messages
    })
}

fn turn_in(shape: usize, ids: &[String], said: &str, failed: bool) -> Vec<Value> {
    let mut out = Vec::new();
    match shape {
        0 => {
            let calls: Vec<Value> = ids
                .iter()
                .map(|id| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}))
                .collect();
            let message = json!({"role": "assistant", "content": "calling"});
            out.push(if calls.is_empty() { message } else { with(message, "tool_calls", json!(calls)) });
            out.extend(ids.iter().map(|id| json!({"role": "tool", "tool_call_id": id, "content": said})));
        }
        1 => {
            let mut blocks = vec![json!({"type": "text", "text": "calling"})];
            blocks.extend(
                ids.iter().map(|id| json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": 1}})),
            );
            out.push(json!({"role": "assistant", "content": blocks}));
            let results: Vec<Value> = ids
                .iter()
                .map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": said, "is_error": failed}))
                .collect();
            out.extend((!results.is_empty()).then(|| json!({"role": "user", "content": results})));
        }
        2 => {
            out.push(json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "calling"}]}));
            out.extend(
                ids.iter().map(
                    |id| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}),
                ),
            );
            out.extend(
                ids.iter().map(|id| json!({"type": "function_call_output", "call_id": id, "output": said})),
            );
        }
        3 => {
            let mut parts = vec![json!({"text": "calling"})];
            parts.extend(ids.iter().map(|id| json!({"functionCall": {"id": id, "name": "f", "args": {}}})));
            out.push(json!({"role": "model", "parts": parts}));
            let results: Vec<Value> = ids
                .iter()
                .map(|id| json!({"functionResponse": {"id": id, "name": "f", "response": {"output": said}}}))
                .collect();
            out.extend((!results.is_empty()).then(|| json!({"role": "user", "parts": results})));
        }
        _ => {
            let mut blocks = vec![json!({"type": "text", "text": "calling"})];
            blocks.extend(
                ids.iter().map(|id| json!({"type": "tool_call", "id": id, "name": "f", "arguments": {}})),
            );
            out.push(json!({"role": "assistant", "content": blocks}));
            out.extend(
                ids.iter()
                    .map(|id| json!({"role": "tool", "tool_call_id": id, "name": "f", "content": said})),
            );
        }
    }
    out.push(json!({"role": "user", "content": "next"}));
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_comes_in_the_provider_accepts_what_goes_out(messages in prop::collection::vec(message(), 0..10)) {
        for provider in Provider::ALL {
            let out = rendered(provider, &messages);
            let system: Option<Value> = out.system.as_ref().map(|raw| raw.read().unwrap());
            if let Err(why) = check(provider.as_str(), system.as_ref(), &values(&out)) {
                prop_assert!(false, "{provider}: {why}\n{:#?}", values(&out));
            }
            prop_assert_eq!(out.sources.len(), out.messages.len());
            let places = out.sources.iter().flatten().chain(out.left_out.iter().map(|left| &left.message));
            prop_assert!(places.copied().all(|place| place < messages.len()));
            let text: String = out.messages.iter().map(Raw::get).collect();
            prop_assert!(!text.contains("secret") && !text.contains("hidden"), "{}", text);
            prop_assert_eq!(&rendered(provider, &messages), &out, "the same input gives the same bytes");
        }
    }

    #[test]
    fn a_round_trip_through_the_same_provider_gives_equal_json(messages in prop::collection::vec(message(), 0..10)) {
        for provider in Provider::ALL {
            let out = rendered(provider, &messages);
            let again = render(provider, &Input { system: &[], messages: &out.messages, media: &NoMedia }).unwrap();
            prop_assert_eq!(&again.messages, &out.messages, "{}", provider);
            prop_assert_eq!(&again.left_out, &vec![]);
        }
    }

    #[test]
    fn message_by_message_gives_what_the_whole_list_gives(messages in prop::collection::vec(message(), 0..24)) {
        // An id that is made up in one stretch may come with a call of a later one, see `Renderer`.
        let text = json!(messages).to_string().replace("call_1", "d").replace("call_2", "e");
        let messages: Vec<Value> = serde_json::from_str(&text).unwrap();
        for provider in Provider::ALL {
            prop_assert_eq!(&in_stretches(provider, &messages).0, &rendered(provider, &messages), "{}", provider);
        }
    }

    #[test]
    fn exact_text_and_parsed_values_give_the_same(messages in prop::collection::vec(message(), 0..6)) {
        let raws: Vec<Raw> = messages.iter().map(|message| Raw::of(message).unwrap()).collect();
        for provider in Provider::ALL {
            let from_values = render(provider, &Input { system: &[], messages: &messages, media: &OneAsset }).unwrap();
            let from_text = render(provider, &Input { system: &[], messages: &raws, media: &OneAsset }).unwrap();
            prop_assert_eq!(from_values, from_text);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn ids_and_pairs_survive_the_way_through_another_provider(messages in orderly()) {
        for first in Provider::ALL {
            let one = rendered(first, &messages);
            prop_assert!(one.left_out.is_empty(), "{:?}", one.left_out);
            for second in Provider::ALL {
                let two = rendered(second, &values(&one));
                let back = rendered(first, &values(&two));
                prop_assert_eq!(pairs(first, &values(&back)), pairs(first, &values(&one)), "{} by {}", first, second);
                let ids = |provider, rendered: &Rendered| -> Vec<String> {
                    pairs(provider, &values(rendered)).into_iter().map(|(id, _)| id).collect()
                };
                prop_assert_eq!(ids(second, &two), ids(first, &one), "{} to {}", first, second);
            }
        }
    }

    #[test]
    fn a_name_is_a_provider_or_an_error_that_lists_them(text in "[a-z-]{0,12}") {
        match Provider::from_str(&text) {
            Ok(provider) => prop_assert_eq!(provider.to_string(), text),
            Err(error) => prop_assert!(error.text().contains("openai-chat, openai-responses, anthropic, gemini, neutral")),
        }
    }
}
