//! Requests that servers accept.

use super::raw;
use crate::wire::*;
use serde_json::json;

fn asked() -> ModelRequest {
    ModelRequest {
        model: None,
        system: Some(raw(r#""Be brief.""#)),
        messages: vec![raw(r#"{"role":"user", "content":"h\u0069"}"#)],
        tools: vec![raw(r#"{"name":"ls"}"#)],
        max_output_tokens: Some(100),
        temperature: Some(0.5),
        json: true,
        extra: BTreeMap::from([("top_p".to_string(), raw("0.9"))]),
    }
}

fn body_of(kind: Protocol, host: &str, model: &str, request: &ModelRequest) -> Value {
    serde_json::from_str(&body(kind, host, model, request).unwrap()).unwrap()
}

#[test]
fn a_chat_request_has_the_system_prompt_first_and_asks_for_usage() {
    assert_eq!(
        body_of(Protocol::OpenaiChat, "localhost", "m", &asked()),
        json!({
            "model": "m", "messages": [{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],
            "tools": [{"name":"ls"}], "max_tokens": 100, "temperature": 0.5,
            "response_format": {"type":"json_object"}, "stream": true,
            "stream_options": {"include_usage": true}, "top_p": 0.9,
        })
    );
    // Blocks become the content; a whole message stays one.
    for (system, first) in [
        (r#"[{"type":"text","text":"x"}]"#, json!({"role":"system","content":[{"type":"text","text":"x"}]})),
        (r#"{"role":"developer","content":"x"}"#, json!({"role":"developer","content":"x"})),
    ] {
        let request = ModelRequest { system: Some(raw(system)), ..ModelRequest::default() };
        assert_eq!(body_of(Protocol::OpenaiChat, "h", "m", &request)["messages"][0], first);
    }
}

#[test]
fn openai_itself_is_asked_with_the_newer_name_for_the_most_tokens() {
    for (host, name) in [
        ("api.openai.com", "max_completion_tokens"),
        ("x.openai.azure.com", "max_completion_tokens"),
        ("openrouter.ai", "max_tokens"),
    ] {
        assert_eq!(body_of(Protocol::OpenaiChat, host, "m", &asked())[name], 100, "{host}");
    }
}

#[test]
fn a_responses_request_has_instructions_and_is_not_stored_there() {
    assert_eq!(
        body_of(Protocol::OpenaiResponses, "h", "gpt-4o", &asked()),
        json!({
            "model": "gpt-4o", "instructions": "Be brief.", "input": [{"role":"user","content":"hi"}],
            "tools": [{"name":"ls"}], "max_output_tokens": 100, "temperature": 0.5,
            "text": {"format": {"type":"json_object"}}, "store": false, "stream": true, "top_p": 0.9,
        })
    );
    let blocks = ModelRequest { system: Some(raw(r#"[{"type":"input_text","text":"x"}]"#)), ..asked() };
    let sent = body_of(Protocol::OpenaiResponses, "h", "m", &blocks);
    assert_eq!(sent["input"][0], json!({"role":"system","content":[{"type":"input_text","text":"x"}]}));
    assert_eq!(sent.get("instructions"), None);
}

#[test]
fn models_that_reason_are_asked_for_sealed_reasoning_and_others_are_not() {
    for (model, sealed) in [
        ("o3", true),
        ("o4-mini", true),
        ("gpt-5", true),
        ("gpt-5.1-codex", true),
        ("openai/gpt-6", true),
        ("gpt-4o", false),
        ("gpt-5-chat-latest", false),
        ("gpt-oss-20b", false),
        ("ollama", false),
        ("x", false),
    ] {
        let sent = body_of(Protocol::OpenaiResponses, "h", model, &asked());
        assert_eq!(sent.get("include"), sealed.then_some(&json!(["reasoning.encrypted_content"])), "{model}");
    }
}

#[test]
fn an_anthropic_request_always_says_how_long_the_answer_may_be() {
    assert_eq!(
        body_of(Protocol::Anthropic, "h", "m", &asked()),
        json!({
            "model": "m", "max_tokens": 100, "system": "Be brief.", "messages": [{"role":"user","content":"hi"}],
            "tools": [{"name":"ls"}], "temperature": 0.5, "stream": true, "top_p": 0.9,
        })
    );
    let short = ModelRequest { max_output_tokens: None, ..asked() };
    assert_eq!(body_of(Protocol::Anthropic, "h", "m", &short)["max_tokens"], ANTHROPIC_OUTPUT_TOKENS_DEFAULT);
    let cached = r#"[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]"#;
    let request = ModelRequest { system: Some(raw(cached)), ..ModelRequest::default() };
    assert!(
        body(Protocol::Anthropic, "h", "m", &request).unwrap().contains(&format!(r#""system":{cached}"#))
    );
}

#[test]
fn messages_and_tools_are_sent_with_their_own_bytes() {
    for kind in [Protocol::OpenaiChat, Protocol::OpenaiResponses, Protocol::Anthropic] {
        let request = ModelRequest {
            messages: vec![raw(r#"{"b":1.00, "a":"\u0041"}"#)],
            tools: vec![raw("{ }")],
            ..asked()
        };
        let sent = body(kind, "h", "m", &request).unwrap();
        assert!(
            sent.contains(r#"[{"b":1.00, "a":"\u0041"}]"#) || sent.contains(r#",{"b":1.00, "a":"\u0041"}]"#),
            "{sent}"
        );
        assert!(sent.contains(r#""tools":[{ }]"#), "{sent}");
    }
}

#[test]
fn extra_fields_win_over_defaults_but_not_over_the_request() {
    let with = |name: &str, value: &str| ModelRequest {
        extra: BTreeMap::from([(name.to_string(), raw(value))]),
        ..asked()
    };
    let sent = body_of(Protocol::OpenaiChat, "h", "m", &with("stream_options", "null"));
    assert_eq!(sent.get("stream_options"), None);
    let sent = body_of(Protocol::OpenaiChat, "h", "m", &with("response_format", r#"{"type":"json_schema"}"#));
    assert_eq!(sent["response_format"], json!({"type":"json_schema"}));
    assert_eq!(body_of(Protocol::OpenaiResponses, "h", "m", &with("store", "true"))["store"], true);
    for (kind, name) in [
        (Protocol::OpenaiChat, "model"),
        (Protocol::OpenaiChat, "n"),
        (Protocol::OpenaiResponses, "input"),
        (Protocol::Anthropic, "system"),
        (Protocol::Anthropic, "stream"),
    ] {
        let error = body(kind, "h", "m", &with(name, "1")).unwrap_err();
        assert_eq!(error.code(), "model.extra_reserved", "{name}");
    }
    let error =
        body(Protocol::OpenaiChat, "h", "m", &ModelRequest { temperature: Some(f64::NAN), ..asked() })
            .unwrap_err();
    assert_eq!(error.code(), "model.temperature");
}

#[test]
fn a_request_may_ask_for_another_model_than_the_client_was_made_for() {
    let other = ModelRequest { model: Some("o3".into()), ..asked() };
    for kind in [Protocol::OpenaiChat, Protocol::OpenaiResponses, Protocol::Anthropic] {
        assert_eq!(body_of(kind, "h", "m", &other)["model"], "o3");
    }
    // Fields that depend on the model follow the requested one.
    assert!(body_of(Protocol::OpenaiResponses, "h", "m", &other).get("include").is_some());
}
