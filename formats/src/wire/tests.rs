//! Answers assembled from real responses of servers.

mod bodies;
mod bytes;

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn raw(text: &str) -> Raw {
    Raw::new(text.to_string()).unwrap()
}

fn feed(assembly: &mut Box<dyn Assemble>, data: &str) -> Result<Vec<Delta>, Failure> {
    assembly.event(&sse::SseEvent { name: None, id: None, data: data.to_string() })
}

fn run(kind: Protocol, events: &[&str]) -> Result<(Vec<Delta>, ModelReply), Failure> {
    let mut assembly = kind.assembly();
    let mut deltas = Vec::new();
    for data in events {
        deltas.extend(feed(&mut assembly, data)?);
    }
    assert!(assembly.complete(), "the answer has no end");
    Ok((deltas, assembly.answer()?))
}

fn text(text: &str) -> Delta {
    Delta::Text(text.to_string())
}

fn sealed(block: &str) -> Delta {
    Delta::Sealed(Raw::new(block.into()).unwrap())
}

fn call(index: usize, id: Option<&str>, name: Option<&str>, arguments: &str) -> Delta {
    let owned = |text: Option<&str>| text.map(str::to_string);
    Delta::Call { index, id: owned(id), name: owned(name), arguments: arguments.to_string() }
}

fn called(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: Some(id.to_string()), name: name.to_string(), arguments: arguments.to_string() }
}

#[test]
fn a_chat_stream_becomes_one_message() {
    let (deltas, answer) = run(Protocol::OpenaiChat, &[
        r#"{"id":"c1","model":"m-1","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"finish_reason":null}],"usage":null}"#,
        r#"{"id":"c1","choices":[{"index":0,"delta":{"reasoning_content":"hm","reasoning":"hm"}}]}"#,
        r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"Hel"}}]}"#,
        r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"lo 😀"}}]}"#,
        r#"{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        r#"{"id":"c1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5},"odd":1.0}}"#,
        "[DONE]",
    ])
    .unwrap();
    assert_eq!(deltas, [Delta::Thinking("hm".into()), text("Hel"), text("lo 😀")]);
    assert_eq!(
        answer.messages[0].get(),
        r#"{"role":"assistant","content":"Hello 😀","reasoning_content":"hm","reasoning":"hm"}"#
    );
    assert_eq!((answer.text.as_str(), &answer.finish), ("Hello 😀", &Finish::Stop));
    assert_eq!(answer.tokens, ReplyTokens { prompt: Some(7), completion: Some(3), cached: Some(5) });
    assert!(answer.usage.unwrap().get().contains(r#""odd":1.0"#));
    assert_eq!((answer.model.as_str(), answer.id.as_deref()), ("m-1", Some("c1")));
}

#[test]
fn calls_of_a_chat_stream_are_told_apart_by_index_and_by_id() {
    let one = |calls: &str| format!(r#"{{"choices":[{{"delta":{{"tool_calls":{calls}}}}}]}}"#);
    let end = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    let whole = [called("a", "ls", r#"{"x":1}"#), called("b", "cat", "{}")];
    for pieces in [
        // As OpenAI does it.
        vec![
            r#"[{"index":0,"id":"a","type":"function","function":{"name":"ls","arguments":""}}]"#,
            r#"[{"index":0,"function":{"arguments":"{\"x\""}}]"#,
            r#"[{"index":0,"function":{"arguments":":1}"}}]"#,
            r#"[{"index":1,"id":"b","type":"function","function":{"name":"cat","arguments":"{}"}}]"#,
        ],
        // Interleaved.
        vec![
            r#"[{"index":0,"id":"a","type":"function","function":{"name":"ls","arguments":"{\"x\""}},{"index":1,"id":"b","type":"function","function":{"name":"cat","arguments":"{"}}]"#,
            r#"[{"index":0,"function":{"arguments":":1}"}},{"index":1,"function":{"arguments":"}"}}]"#,
        ],
        // Without an index, or with the same for all.
        vec![
            r#"[{"id":"a","type":"function","function":{"name":"ls","arguments":"{\"x\":1}"}}]"#,
            r#"[{"id":"b","type":"function","function":{"name":"cat","arguments":"{}"}}]"#,
        ],
        vec![
            r#"[{"index":0,"id":"a","type":"function","function":{"name":"ls","arguments":"{\"x\":1}"}}]"#,
            r#"[{"index":0,"id":"b","type":"function","function":{"name":"cat","arguments":"{}"}}]"#,
        ],
        // With id and name in every piece.
        vec![
            r#"[{"index":0,"id":"a","type":"function","function":{"name":"ls","arguments":"{\"x\""}}]"#,
            r#"[{"index":0,"id":"a","type":"function","function":{"name":"ls","arguments":":1}"}}]"#,
            r#"[{"index":1,"id":"b","type":"function","function":{"name":"cat","arguments":"{}"}}]"#,
        ],
    ] {
        let mut events: Vec<String> = pieces.iter().map(|calls| one(calls)).collect();
        events.push(end.to_string());
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let (deltas, answer) = run(Protocol::OpenaiChat, &events).unwrap();
        assert_eq!(answer.calls, whole, "{pieces:?}");
        // Waiting for results is not being done, whatever the server calls it.
        assert_eq!(answer.finish, Finish::ToolCalls);
        assert_eq!(
            answer.messages[0].get(),
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"ls","arguments":"{\"x\":1}"}},{"id":"b","type":"function","function":{"name":"cat","arguments":"{}"}}]}"#
        );
        // The deltas add up to the final answer, and each call is introduced once.
        for (index, call) in whole.iter().enumerate() {
            let mine = deltas.iter().filter_map(|delta| match delta {
                Delta::Call { index: i, id, name, arguments } if *i == index => Some((id, name, arguments)),
                _ => None,
            });
            assert_eq!(mine.clone().map(|m| m.2.as_str()).collect::<String>(), call.arguments);
            assert_eq!(mine.clone().filter_map(|m| m.1.as_deref()).collect::<Vec<_>>(), [&call.name]);
            assert_eq!(
                mine.filter_map(|m| m.0.as_deref()).collect::<Vec<_>>(),
                [call.id.as_deref().unwrap()]
            );
        }
    }
}

#[test]
fn unknown_and_signed_parts_of_a_chat_stream_keep_their_bytes() {
    let (_, answer) = run(Protocol::OpenaiChat, &[
        r#"{"choices":[{"delta":{"content":"a","seal":{"s":"\u0041\/+=","n":1.00}}}]}"#,
        r#"{"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.text","index":0,"text":"th"}]}}]}"#,
        r#"{"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.text","index":0,"text":"ink","signature":"Zm9v"}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"\u0042=="}}}]}}]}"#,
        r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
    ])
    .unwrap();
    let message = answer.messages[0].get();
    assert!(message.contains(r#""seal":{"s":"\u0041\/+=","n":1.00}"#), "{message}");
    assert!(message.contains(r#""text":"think","signature":"Zm9v""#), "{message}");
    assert!(message.contains(r#""extra_content":{"google":{"thought_signature":"\u0042=="}}"#), "{message}");
}

#[test]
fn servers_that_leave_out_done_usage_or_the_reason() {
    let word = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
    let (_, answer) =
        run(Protocol::OpenaiChat, &[word, r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#]).unwrap();
    assert_eq!((answer.finish, answer.tokens), (Finish::Length, ReplyTokens::default()));
    let (_, answer) = run(Protocol::OpenaiChat, &[word, "[DONE]"]).unwrap();
    assert_eq!(answer.finish, Finish::Other("not said".into()));
    let (_, answer) =
        run(Protocol::OpenaiChat, &[word, r#"{"choices":[{"finish_reason":"content_filter"}]}"#]).unwrap();
    assert_eq!(answer.finish, Finish::ContentFilter);
    let mut assembly = Protocol::OpenaiChat.assembly();
    feed(&mut assembly, word).unwrap();
    assert!(!assembly.complete());
    // An end without anything before it is no answer.
    let mut assembly = Protocol::OpenaiChat.assembly();
    feed(&mut assembly, "[DONE]").unwrap();
    assert!(!assembly.complete());
    assert_eq!(assembly.answer().unwrap_err().error(None).code(), "model.garbage");
}

#[test]
fn an_error_inside_a_stream_is_a_failure() {
    for (kind, data, code) in [
        (Protocol::OpenaiChat, r#"{"error":{"message":"boom","type":"server_error"}}"#, "model.unavailable"),
        (
            Protocol::OpenaiChat,
            r#"{"id":"x","choices":[],"error":{"code":429,"message":"slow"}}"#,
            "model.rate_limited",
        ),
        (
            Protocol::Anthropic,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            "model.unavailable",
        ),
        (
            Protocol::OpenaiResponses,
            r#"{"type":"error","code":"server_error","message":"x","param":null}"#,
            "model.unavailable",
        ),
        (
            Protocol::OpenaiResponses,
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"x"}}}"#,
            "model.rate_limited",
        ),
        (
            Protocol::OpenaiResponses,
            r#"{"type":"response.failed","response":{"status":"failed","error":null,"output":[]}}"#,
            "model.unavailable",
        ),
        (Protocol::OpenaiChat, "{nonsense", "model.garbage"),
        (Protocol::OpenaiChat, r#"{"choices":"none"}"#, "model.garbage"),
        (
            Protocol::Anthropic,
            r#"{"type":"content_block_delta","index":4,"delta":{"type":"text_delta","text":"x"}}"#,
            "model.garbage",
        ),
    ] {
        let failure = feed(&mut kind.assembly(), data).unwrap_err();
        assert_eq!(failure.error(None).code(), code, "{data}");
    }
}

#[test]
fn what_the_model_said_does_not_get_into_an_error() {
    for data in
        [r#"{"choices":[{"delta":{"content":"private"}},5]}"#, r#"{"choices":"private"}"#, r#"{"a":"private"#]
    {
        let error = feed(&mut Protocol::OpenaiChat.assembly(), data).unwrap_err().error(None);
        assert!(!error.text().contains("private"), "{error}");
    }
}

#[test]
fn an_answer_that_was_not_streamed_keeps_its_bytes() {
    let message = r#"{"role":"assistant", "content":"\u0041","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}], "odd":1.0}"#;
    let mut assembly = Protocol::OpenaiChat.assembly();
    let deltas = assembly
        .whole(&format!(r#"{{"id":"c","model":"m","choices":[{{"index":0,"message":{message},"finish_reason":"tool_calls"}}],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#))
        .unwrap();
    assert_eq!(deltas, [text("A"), call(0, Some("a"), Some("f"), "{}")]);
    assert!(assembly.ended());
    let answer = assembly.answer().unwrap();
    assert_eq!(answer.messages[0].get(), message);
    assert_eq!((answer.text.as_str(), answer.calls), ("A", vec![called("a", "f", "{}")]));

    let content = r#"[{"type":"thinking","thinking":"hm","signature":"\u0041="}, {"type":"text","text":"hi"},{"type":"tool_use","id":"t","name":"f","input":{"x" : 1}}]"#;
    let mut assembly = Protocol::Anthropic.assembly();
    let deltas = assembly
        .whole(&format!(r#"{{"id":"msg","type":"message","role":"assistant","model":"c","content":{content},"stop_reason":"tool_use","usage":{{"input_tokens":3,"output_tokens":4}}}}"#))
        .unwrap();
    assert_eq!(
        deltas,
        [
            Delta::Thinking("hm".into()),
            sealed(r#"{"type":"thinking","thinking":"hm","signature":"\u0041="}"#),
            text("hi"),
            call(0, Some("t"), Some("f"), r#"{"x" : 1}"#)
        ]
    );
    let answer = assembly.answer().unwrap();
    assert_eq!(answer.messages[0].get(), format!(r#"{{"role":"assistant","content":{content}}}"#));
    assert_eq!(answer.calls, [called("t", "f", r#"{"x" : 1}"#)]);
    assert_eq!(answer.tokens, ReplyTokens { prompt: Some(3), completion: Some(4), cached: None });

    for kind in [Protocol::OpenaiChat, Protocol::Anthropic, Protocol::OpenaiResponses] {
        assert_eq!(
            kind.assembly().whole(r#"{"error":{"code":503,"message":"x"}}"#).unwrap_err().error(None).code(),
            "model.unavailable"
        );
        let empty = kind.assembly().whole("{}").and_then(|_| {
            let mut assembly = kind.assembly();
            assembly.whole("{}")?;
            assembly.answer()
        });
        assert_eq!(empty.unwrap_err().error(None).code(), "model.garbage", "{kind:?}");
    }
}

#[test]
fn an_anthropic_stream_becomes_one_message_with_its_signature_intact() {
    let (deltas, answer) = run(Protocol::Anthropic, &[
        r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"usage":{"input_tokens":10,"cache_read_input_tokens":90,"cache_creation_input_tokens":5,"output_tokens":1,"service_tier":"standard"}}}"#,
        r#"{"type":"ping"}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Let "}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"me"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB\/+\u003d="}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"\u0041\/=="}}"#,
        r#"{"type":"content_block_stop","index":1}"#,
        r#"{"type":"content_block_start","index":2,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"Hi"}}"#,
        r#"{"type":"content_block_delta","index":2,"delta":{"type":"citations_delta","citation":{"cited_text":"q"}}}"#,
        r#"{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"tu","name":"ls","input":{},"caller":{"type":"direct"}}}"#,
        r#"{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":""}}"#,
        r#"{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{\"x\":"}}"#,
        r#"{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":" 1.0}"}}"#,
        r#"{"type":"content_block_start","index":4,"content_block":{"type":"tool_use","id":"tv","name":"pwd","input":{}}}"#,
        r#"{"type":"something_new","x":1}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":42,"service_tier":"standard"}}"#,
        r#"{"type":"message_stop"}"#,
    ])
    .unwrap();
    assert_eq!(
        deltas,
        [
            Delta::Thinking("Let ".into()),
            Delta::Thinking("me".into()),
            sealed(r#"{"type":"thinking","thinking":"Let me","signature":"EqQB\/+\u003d="}"#),
            sealed(r#"{"type":"redacted_thinking","data":"\u0041\/=="}"#),
            text("Hi"),
            call(0, Some("tu"), Some("ls"), ""),
            call(0, None, None, ""),
            call(0, None, None, "{\"x\":"),
            call(0, None, None, " 1.0}"),
            call(1, Some("tv"), Some("pwd"), ""),
        ]
    );
    assert_eq!(
        answer.messages[0].get(),
        concat!(
            r#"{"role":"assistant","content":["#,
            r#"{"type":"thinking","thinking":"Let me","signature":"EqQB\/+\u003d="},"#,
            r#"{"type":"redacted_thinking","data":"\u0041\/=="},"#,
            r#"{"type":"text","text":"Hi","citations":[{"cited_text":"q"}]},"#,
            r#"{"type":"tool_use","id":"tu","name":"ls","caller":{"type":"direct"},"input":{"x": 1.0}},"#,
            r#"{"type":"tool_use","id":"tv","name":"pwd","input":{}}]}"#,
        )
    );
    assert_eq!(answer.calls, [called("tu", "ls", r#"{"x": 1.0}"#), called("tv", "pwd", "{}")]);
    assert_eq!(answer.tokens, ReplyTokens { prompt: Some(105), completion: Some(42), cached: Some(90) });
    assert!(answer.usage.unwrap().get().ends_with(r#""output_tokens":42,"service_tier":"standard"}"#));
    assert_eq!(
        (answer.finish, answer.text.as_str(), answer.id.as_deref()),
        (Finish::ToolCalls, "Hi", Some("msg_1"))
    );
}

#[test]
fn a_tool_input_that_was_cut_is_kept_as_text() {
    let (_, answer) = run(Protocol::Anthropic, &[
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"x\": \"ab"}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}"#,
    ])
    .unwrap();
    assert!(
        answer.messages[0].get().contains(r#""input":{"INVALID_JSON":"{\"x\": \"ab"}"#),
        "{:?}",
        answer.messages
    );
    assert_eq!((answer.finish, &answer.calls[0].arguments), (Finish::Length, &r#"{"x": "ab"#.to_string()));
}

const ITEMS: [&str; 3] = [
    r#"{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"gAAA\u003d\/"}"#,
    r#"{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hello","annotations":[]}]}"#,
    r#"{"type":"function_call","id":"fc","call_id":"call_1","name":"ls","arguments":"{\"x\":1}"}"#,
];

fn responses_stream(output: &str) -> Vec<String> {
    let mut events = vec![
        r#"{"type":"response.created","response":{"id":"resp","model":"gpt-x","status":"in_progress","output":[]}}"#.to_string(),
        r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs","summary":[]}}"#.to_string(),
        r#"{"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"thinking"}"#.to_string(),
        r#"{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"Hel"}"#.to_string(),
        r#"{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"lo"}"#.to_string(),
        r#"{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc","call_id":"call_1","name":"ls","arguments":""}}"#.to_string(),
        r#"{"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"x\":1}"}"#.to_string(),
        r#"{"type":"response.unheard_of","x":1}"#.to_string(),
    ];
    for (index, item) in ITEMS.iter().enumerate() {
        events
            .push(format!(r#"{{"type":"response.output_item.done","output_index":{index},"item":{item}}}"#));
    }
    events.push(format!(
        r#"{{"type":"response.completed","response":{{"id":"resp","model":"gpt-x","status":"completed","error":null,"output":{output},"usage":{{"input_tokens":9,"output_tokens":4,"input_tokens_details":{{"cached_tokens":2}}}}}}}}"#
    ));
    events
}

#[test]
fn a_responses_stream_becomes_its_items() {
    // Some servers do not repeat the items at the end.
    for output in [format!("[{}]", ITEMS.join(",")), "[]".to_string(), "null".to_string()] {
        let events = responses_stream(&output);
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let (deltas, answer) = run(Protocol::OpenaiResponses, &events).unwrap();
        assert_eq!(
            deltas,
            [
                Delta::Thinking("thinking".into()),
                text("Hel"),
                text("lo"),
                call(0, Some("call_1"), Some("ls"), ""),
                call(0, None, None, r#"{"x":1}"#),
                Delta::Item(Raw::new(ITEMS[0].into()).unwrap()),
                Delta::Item(Raw::new(ITEMS[1].into()).unwrap()),
                Delta::Item(Raw::new(ITEMS[2].into()).unwrap()),
            ]
        );
        assert_eq!(answer.messages.iter().map(Raw::get).collect::<Vec<_>>(), ITEMS);
        assert_eq!((answer.text.as_str(), answer.finish), ("Hello", Finish::ToolCalls));
        assert_eq!(answer.calls, [called("call_1", "ls", r#"{"x":1}"#)]);
        assert_eq!(answer.tokens, ReplyTokens { prompt: Some(9), completion: Some(4), cached: Some(2) });
        assert_eq!((answer.id.as_deref(), answer.model.as_str()), (Some("resp"), "gpt-x"));
    }
}

#[test]
fn a_responses_answer_that_shows_itself_only_at_the_end_is_shown_all_the_same() {
    let body = format!(r#"{{"id":"r","model":"m","status":"completed","output":[{}]}}"#, ITEMS.join(","));
    let mut assembly = Protocol::OpenaiResponses.assembly();
    assert_eq!(
        assembly.whole(&body).unwrap(),
        [text("Hello"), call(0, Some("call_1"), Some("ls"), r#"{"x":1}"#)]
    );
    for (details, finish) in [
        (r#"{"reason":"max_output_tokens"}"#, Finish::Length),
        (r#"{"reason":"content_filter"}"#, Finish::ContentFilter),
        (r#"{"reason":"odd"}"#, Finish::Other("odd".into())),
    ] {
        let event = format!(
            r#"{{"type":"response.incomplete","response":{{"status":"incomplete","output":[{}],"incomplete_details":{details}}}}}"#,
            ITEMS[1]
        );
        assert_eq!(run(Protocol::OpenaiResponses, &[&event]).unwrap().1.finish, finish);
    }
    let refusal = r#"{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":[{"type":"refusal","refusal":"No."}]}]}}"#;
    assert_eq!(run(Protocol::OpenaiResponses, &[refusal]).unwrap().1.refusal.as_deref(), Some("No."));
}

/// JSON that looks a little like what a server sends.
fn nearly() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("choices"),
        Just("delta"),
        Just("tool_calls"),
        Just("function"),
        Just("index"),
        Just("content"),
        Just("type"),
        Just("content_block"),
        Just("content_block_start"),
        Just("content_block_delta"),
        Just("message_delta"),
        Just("text"),
        Just("response"),
        Just("response.completed"),
        Just("output"),
        Just("item"),
        Just("error"),
        Just("usage"),
        Just("response.output_item.added"),
        Just("input_json_delta"),
        Just("partial_json"),
        Just("message"),
        Just("tool_use"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u64..3).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
        "[a😀]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..4).prop_map(|members| Value::Object(
                members.into_iter().map(|(k, v)| (k.to_string(), v)).collect()
            )),
        ]
    })
    .prop_map(|value| value.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Whatever a server sends, it is read or refused.
    #[test]
    fn foreign_events_never_panic(events in prop::collection::vec(prop_oneof![nearly(), ".{0,30}"], 0..6)) {
        for kind in [Protocol::OpenaiChat, Protocol::OpenaiResponses, Protocol::Anthropic] {
            let mut assembly = kind.assembly();
            for event in &events {
                let _ = feed(&mut assembly, event);
            }
            let _ = assembly.whole(events.first().map_or("", String::as_str));
            let _ = assembly.answer();
        }
    }

    /// However the words and arguments are cut, the message is the same.
    #[test]
    fn however_it_is_cut_the_message_is_the_same(
        words in prop::collection::vec("[a-z😀\"\\\\ \n]{0,5}", 1..8),
        arguments in prop::collection::vec("[a-z0-9{}:\"\\\\]{0,5}", 1..8),
    ) {
        let (said, given) = (words.concat(), arguments.concat());
        let mut chat = vec![r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}}]}"#.to_string()];
        let mut anthropic = vec![
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#.to_string(),
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"a","name":"f","input":{}}}"#.to_string(),
        ];
        for piece in &words {
            chat.push(json!({"choices":[{"delta":{"content": piece}}]}).to_string());
            anthropic.push(json!({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":piece}}).to_string());
        }
        for piece in &arguments {
            chat.push(json!({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":piece}}]}}]}).to_string());
            anthropic.push(json!({"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":piece}}).to_string());
        }
        chat.push(r#"{"choices":[{"finish_reason":"tool_calls"}]}"#.to_string());
        anthropic.push(r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#.to_string());
        for (kind, events) in [(Protocol::OpenaiChat, chat), (Protocol::Anthropic, anthropic)] {
            let events: Vec<&str> = events.iter().map(String::as_str).collect();
            let (deltas, answer) = run(kind, &events).unwrap();
            let shown: String = deltas.iter().filter_map(|d| match d { Delta::Text(t) => Some(t.as_str()), _ => None }).collect();
            prop_assert_eq!(&answer.text, &said);
            prop_assert_eq!(&shown, &said);
            let expected = if given.is_empty() && kind == Protocol::Anthropic { "{}" } else { &given };
            prop_assert_eq!(&answer.calls[0].arguments, expected);
            let message: Value = answer.messages[0].read().unwrap();
            let kept = match kind {
                Protocol::Anthropic => &message["content"][0]["text"],
                _ => &message["content"],
            };
            prop_assert_eq!(kept, &json!(said));
        }
    }
}
