//! What the renderers promise about the parts of a prompt: system material, names, reasoning, private blocks, media.

use crate::provider::{full, given, values, what};
use crate::provider_valid::check;
use everturn_core::json::Raw;
use everturn_formats::provider::{
    CONTINUES, Input, NoMedia, Provider, SystemSection, render, request_fields,
};
use serde_json::{Value, json};

#[test]
fn sections_go_into_the_providers_own_field() {
    let sections = [
        SystemSection { name: "prompt", text: "Be kind." },
        SystemSection { name: "none", text: "" },
        SystemSection { name: "state", text: "Goal: x" },
    ];
    let messages = [json!({"role": "user", "content": "hi"})];
    for (provider, fields, system, first) in [
        (
            Provider::OpenaiChat,
            ("messages", None),
            None,
            json!({"role": "system", "content": "Be kind.\n\nGoal: x"}),
        ),
        (
            Provider::OpenaiResponses,
            ("input", Some("instructions")),
            Some(json!("Be kind.\n\nGoal: x")),
            messages[0].clone(),
        ),
        (
            Provider::Anthropic,
            ("messages", Some("system")),
            Some(json!([{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Goal: x"}])),
            messages[0].clone(),
        ),
        (
            Provider::Gemini,
            ("contents", Some("systemInstruction")),
            Some(json!({"parts": [{"text": "Be kind."}, {"text": "Goal: x"}]})),
            json!({"role": "user", "parts": [{"text": "hi"}]}),
        ),
        (
            Provider::Neutral,
            ("messages", Some("system")),
            Some(json!("Be kind.\n\nGoal: x")),
            messages[0].clone(),
        ),
    ] {
        let out =
            render(provider, &Input { system: &sections, messages: &messages, media: &NoMedia }).unwrap();
        assert_eq!(request_fields(provider), fields);
        assert_eq!(out.system.as_ref().map(|raw| raw.read::<Value>().unwrap()), system, "{provider}");
        assert_eq!(values(&out)[0], first);
        let empty =
            render(provider, &Input::<Value> { system: &[], messages: &[], media: &NoMedia }).unwrap();
        assert!(empty.system.is_none() && empty.messages.is_empty());
    }
}

#[test]
fn system_messages_go_where_the_provider_allows_them() {
    let messages = [
        json!({"role": "system", "content": "So far: x.", "_harn_projection": {"synthetic": true, "policy": "summary_prefix"}}),
        json!({"role": "user", "content": "hi"}),
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "go"}),
    ];
    let chat = given(Provider::OpenaiChat, &messages);
    assert_eq!(chat[0], json!({"role": "system", "content": "So far: x."}), "markers are stripped");
    assert_eq!(chat[2]["role"], "system");
    let from_anthropic_blocks =
        json!({"role": "system", "content": [{"type": "text", "text": "a", "visibility": "internal"}]});
    assert_eq!(
        given(Provider::OpenaiResponses, &[from_anthropic_blocks])[0],
        json!({"role": "developer", "content": "a"})
    );
    let anthropic = full(Provider::Anthropic, &messages);
    assert_eq!(anthropic.system.as_ref().unwrap().get(), r#"[{"type":"text","text":"So far: x."}]"#);
    assert_eq!(values(&anthropic)[1], json!({"role": "user", "content": "<system>Be brief.</system>"}));
    assert_eq!(anthropic.sources, [Some(1), Some(2), Some(3)]);
    let gemini = full(Provider::Gemini, &messages);
    assert_eq!(gemini.system.as_ref().unwrap().get(), r#"{"parts":[{"text":"So far: x."}]}"#);
    assert_eq!(values(&gemini)[1]["parts"][0]["text"], "<system>Be brief.</system>");
}

#[test]
fn anthropic_and_gemini_hear_the_user_first() {
    let messages = [json!({"role": "assistant", "content": "Hello."})];
    let anthropic = full(Provider::Anthropic, &messages);
    assert_eq!(values(&anthropic)[0], json!({"role": "user", "content": CONTINUES}));
    assert_eq!(anthropic.sources, [None, Some(0)]);
    assert_eq!(given(Provider::Gemini, &messages)[0]["parts"][0]["text"], CONTINUES);
    assert_eq!(given(Provider::OpenaiChat, &messages).len(), 1);
}

#[test]
fn a_speakers_name_is_kept_or_said() {
    let named = |name: &str| json!({"role": "user", "content": "hi", "name": name});
    assert_eq!(given(Provider::OpenaiChat, &[named("Ann")])[0], named("Ann"));
    assert_eq!(
        given(Provider::OpenaiChat, &[named("Ann Lee")])[0],
        json!({"role": "user", "content": "Ann Lee: hi"})
    );
    assert_eq!(given(Provider::Anthropic, &[named("Ann")])[0], json!({"role": "user", "content": "Ann: hi"}));
    assert_eq!(
        given(Provider::OpenaiResponses, &[named("Ann")])[0],
        json!({"role": "user", "content": "Ann: hi"})
    );
    assert_eq!(given(Provider::Gemini, &[named("Ann")])[0]["parts"][0]["text"], "Ann: hi");
    assert_eq!(given(Provider::Neutral, &[named("Ann Lee")])[0], named("Ann Lee"));
    let parts = json!({"role": "user", "name": "Ann Lee", "parts": [{"text": "hi"}]});
    assert_eq!(given(Provider::Neutral, &[parts])[0], named("Ann Lee"));
    let picture =
        json!({"role": "user", "name": "Ann", "content": [{"type": "image", "asset_id": "asset_png"}]});
    assert_eq!(given(Provider::Anthropic, &[picture])[0]["content"][0]["text"], "Ann:");
}

#[test]
fn signed_reasoning_goes_to_its_own_provider_only() {
    let thinking = json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "sig"}, {"type": "text", "text": "Yes."}]});
    let item = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "enc"});
    let answer = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]});
    let gemini = json!({"role": "model", "parts": [{"text": "why", "thought": true}, {"text": "Yes.", "thoughtSignature": "ts"}]});
    let user = json!({"role": "user", "content": "?"});
    for (owner, messages, seal) in [
        (Provider::Anthropic, vec![user.clone(), thinking], "sig"),
        (Provider::OpenaiResponses, vec![user.clone(), item, answer], "\"enc\""),
        (Provider::Gemini, vec![user.clone(), gemini], "\"ts\""),
    ] {
        for provider in Provider::ALL {
            let out = full(provider, &messages);
            let text = out.messages.iter().map(Raw::get).collect::<Vec<_>>().join("\n");
            assert_eq!(text.contains(seal), provider == owner, "{owner} for {provider}: {text}");
            assert!(text.contains("Yes."), "the rest of the turn stays");
            if owner != Provider::Gemini {
                assert_eq!(out.left_out.is_empty(), provider == owner, "{:?}", out.left_out);
            }
        }
    }
}

#[test]
fn a_signed_turn_that_cannot_be_whole_is_absent_as_a_whole() {
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "sig"});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}, {"type": "text", "text": "go on"}]});
    let user = json!({"role": "user", "content": "go"});
    let broken = json!({"role": "assistant", "content": [thought, {"type": "text", "text": "w"}, call("a"), call("b")]});
    let out = full(Provider::Anthropic, &[user.clone(), broken.clone(), result.clone()]);
    assert_eq!(
        values(&out),
        [user.clone(), json!({"role": "user", "content": [{"type": "text", "text": "go on"}]})]
    );
    // Elsewhere nobody checks it: what is whole stays.
    let chat = given(Provider::OpenaiChat, &[user.clone(), broken, result.clone()]);
    assert_eq!(chat[1]["tool_calls"].as_array().unwrap().len(), 1);
    let private = json!({"role": "assistant", "content": [thought, {"type": "text", "text": "w", "visibility": "private"}, call("a")]});
    assert_eq!(given(Provider::Anthropic, &[user.clone(), private, result]).len(), 2);
    // Reasoning alone, and reasoning in a message of its own before what it led to.
    let alone = json!({"role": "assistant", "content": [thought]});
    assert_eq!(given(Provider::Anthropic, &[user.clone(), alone.clone(), user.clone()]).len(), 2);
    let joined =
        given(Provider::Anthropic, &[user.clone(), alone, json!({"role": "assistant", "content": "Yes."})]);
    assert_eq!(
        joined[1],
        json!({"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]})
    );
    // A Responses reasoning item goes with the items that it led to.
    let items = [
        user.clone(),
        json!({"type": "reasoning", "summary": [], "encrypted_content": "e"}),
        json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}),
        user,
    ];
    assert_eq!(given(Provider::OpenaiResponses, &items).len(), 2);
}

/// A call whose result was edited away used to stay in a list of items if the assistant's own words followed it.
#[test]
fn a_call_without_a_result_does_not_wait_once_more_was_said() {
    let user = json!({"role": "user", "content": "q"});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let chat = json!({"role": "assistant", "content": "I look.", "tool_calls": [
        {"id": "k", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let answer = json!({"role": "assistant", "content": "Never mind."});
    for messages in [
        vec![user.clone(), call("a"), answer.clone()],
        vec![user.clone(), call("a"), call("b"), answer.clone()],
        vec![user.clone(), chat, answer.clone()],
    ] {
        for provider in
            [Provider::OpenaiResponses, Provider::OpenaiChat, Provider::Anthropic, Provider::Gemini]
        {
            let out = given(provider, &messages);
            check(&provider.to_string(), None, &out).unwrap();
            assert!(!out.iter().any(|item| item.to_string().contains("\"f\"")), "{provider}: {out:?}");
        }
    }
    // At the end they wait, also with other items of the reply between them.
    let waiting = [user, call("a"), answer, call("b")];
    assert_eq!(given(Provider::OpenaiResponses, &waiting), waiting);
}

/// Responses wants an item that has an id only together with the reasoning before it. Dropping such items after the
/// broken turns were dropped left an earlier reasoning item standing alone, and reasoning of Anthropic counted as well,
/// of which its server knows nothing.
#[test]
fn items_go_with_the_responses_reasoning_before_them() {
    let sealed = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"});
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    let signed = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let foreign = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [signed]});
    let out = given(Provider::OpenaiResponses, &[sealed.clone(), foreign, search.clone()]);
    assert_eq!(out, [sealed.clone(), search.clone()]);

    let open = json!({"type": "reasoning", "id": "rs_2", "summary": []});
    let out = full(Provider::OpenaiResponses, &[sealed, open, search]);
    assert!(out.messages.is_empty());
    let left: Vec<usize> = what(&out).into_iter().map(|(message, _)| message).collect();
    assert_eq!(left, [0, 1, 2]);
}

/// The result stands between the two messages for Gemini, so the words do not follow the thought that ends the first.
#[test]
fn a_thought_before_a_result_leads_to_nothing() {
    let call = json!({"functionCall": {"id": "a", "name": "read", "args": {}}, "thoughtSignature": "c2ln"});
    let thought = json!({"text": "hm", "thought": true, "thoughtSignature": "s"});
    let messages = [
        json!({"role": "model", "parts": [call, thought]}),
        json!({"role": "assistant", "content": "well"}),
        json!({"role": "tool", "tool_call_id": "a", "content": "ok"}),
    ];
    let out = given(Provider::Gemini, &messages);
    assert_eq!(out[1..], [json!({"role": "model", "parts": [{"text": "well"}]})]);
}

#[test]
fn unsigned_reasoning_is_for_neutral_only() {
    let messages = [
        json!({"role": "user", "content": "?"}),
        json!({"role": "assistant", "content": [{"type": "reasoning", "text": "because"}, {"type": "text", "text": "Yes."}]}),
    ];
    for provider in Provider::ALL {
        let text = full(provider, &messages).messages.iter().map(Raw::get).collect::<String>();
        assert_eq!(text.contains("because"), provider == Provider::Neutral);
    }
    // Without its reasoning item, what followed must not name itself.
    let items = [
        json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "because"}]}),
        json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}),
    ];
    assert_eq!(given(Provider::OpenaiResponses, &items), [json!({"role": "assistant", "content": "Yes."})]);
    assert!(full(Provider::Neutral, &items).messages[0].get().contains("because"));
}

#[test]
fn private_blocks_never_leave_and_internal_ones_do() {
    let messages = [
        json!({"role": "user", "content": "hidden", "visibility": "private"}),
        json!({"role": "user", "visibility": "public", "content": [{"type": "text", "text": "a", "visibility": "internal"}, {"type": "text", "text": "hidden", "visibility": "private"}]}),
        json!({"role": "assistant", "content": [{"type": "tool_call", "id": "1", "name": "f", "arguments": {"visibility": "private", "asset_id": "x"}}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "hidden", "visibility": "private"}, {"type": "text", "text": "shown"}]}),
    ];
    for provider in Provider::ALL {
        let out = full(provider, &messages);
        let text = out.messages.iter().map(Raw::get).collect::<String>().replace('\\', "");
        assert!(!text.contains("hidden") && text.contains("shown") && !text.contains("internal"), "{text}");
        assert!(
            text.contains(r#""visibility":"private","asset_id":"x""#),
            "a tool's own argument stays: {text}"
        );
        assert_eq!(what(&out), [(0, "it is private"), (1, "a private block"), (3, "a private block")]);
    }
}

#[test]
fn media_are_converted_put_back_or_named() {
    let png =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQID"}});
    let data_url = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID"}});
    let asset = json!({"type": "image", "asset_id": "asset_png"});
    let moved = json!({"type": "input_image", "image_url": "data:image/png;base64,asset:asset_png", "asset_id": "asset_png"});
    let block = |provider, block: &Value| {
        let out =
            given(provider, &[json!({"role": "user", "content": [block, {"type": "text", "text": "see"}]})]);
        out[0].get("content").or(out[0].get("parts")).unwrap()[0].clone()
    };
    for same in [&png, &data_url, &asset, &moved] {
        assert_eq!(block(Provider::OpenaiChat, same), data_url, "{same}");
        assert_eq!(block(Provider::Anthropic, same), png);
        assert_eq!(
            block(Provider::OpenaiResponses, same),
            json!({"type": "input_image", "image_url": "data:image/png;base64,AQID"})
        );
        assert_eq!(
            block(Provider::Gemini, same),
            json!({"inlineData": {"mimeType": "image/png", "data": "AQID"}})
        );
        assert_eq!(block(Provider::Neutral, same)["data"], "AQID");
    }
    let link = json!({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}});
    assert_eq!(block(Provider::OpenaiChat, &link)["image_url"]["url"], "https://example.org/a.png");
    assert_eq!(
        block(Provider::Gemini, &link),
        json!({"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/a.png"}})
    );
    let pdf =
        json!({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,BAUG"});
    assert_eq!(
        block(Provider::Anthropic, &pdf),
        json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "BAUG"}})
    );
    assert_eq!(block(Provider::OpenaiChat, &pdf)["file"]["filename"], "a.pdf");
    let sound = json!({"type": "input_audio", "input_audio": {"data": "AQID", "format": "mp3"}});
    assert_eq!(block(Provider::OpenaiChat, &sound), sound);
    assert_eq!(block(Provider::Gemini, &sound)["inlineData"]["mimeType"], "audio/mp3");
    assert_eq!(block(Provider::Anthropic, &sound)["text"], "<audio>");
    let gone = json!({"type": "image", "asset_id": "asset_gone"});
    let named = json!({"type": "image", "asset_id": "asset_none", "name": "x.png"});
    for provider in Provider::ALL {
        assert_eq!(block(provider, &gone)["text"], "<image:holiday.png>");
        assert_eq!(block(provider, &named)["text"], "<image:x.png>");
    }
    let broken =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQI"}});
    assert_eq!(block(Provider::Anthropic, &broken)["text"], "<image>", "what is not Base64 is not sent");
    let letter = json!({"type": "document", "title": "letter", "source": {"type": "text", "media_type": "text/plain", "data": "Dear A"}});
    assert_eq!(block(Provider::OpenaiChat, &letter)["text"], "<document:letter>\nDear A");
    assert_eq!(block(Provider::Anthropic, &letter), letter);
}

#[test]
fn what_a_result_shows_reaches_every_provider() {
    let messages = [
        json!({"role": "user", "content": "look"}),
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "shot", "input": {}}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [
            {"type": "text", "text": "torn"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQID"}}]}]}),
    ];
    assert_eq!(given(Provider::Anthropic, &messages), messages);
    let chat = given(Provider::OpenaiChat, &messages);
    assert_eq!(chat[2]["content"], "Error: torn\n<image>");
    assert_eq!(
        chat[3],
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID"}}]})
    );
    let responses = given(Provider::OpenaiResponses, &messages);
    assert_eq!(responses[2]["output"][1]["type"], "input_image");
    let gemini = given(Provider::Gemini, &messages);
    assert_eq!(gemini[2]["parts"][0]["functionResponse"]["response"], json!({"error": "torn\n<image>"}));
    assert_eq!(gemini[3]["parts"][0]["inlineData"]["data"], "AQID");
    assert!(given(Provider::Neutral, &messages)[2]["is_error"].as_bool().unwrap());
}

#[test]
fn a_content_that_answers_gemini_holds_nothing_else() {
    let messages = [
        json!({"role": "user", "parts": [{"text": "go"}]}),
        json!({"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}),
        json!({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "x"}}}, {"text": "and"}]}),
    ];
    let out = given(Provider::Gemini, &messages);
    assert_eq!(out[2]["parts"].as_array().unwrap().len(), 1);
    assert_eq!(out[3], json!({"role": "user", "parts": [{"text": "and"}]}));
}

#[test]
fn what_stands_beside_signed_reasoning_is_its_providers_own() {
    let newer = json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "of_next_year", "x": 1}, {"type": "text", "text": "Yes."}]});
    assert_eq!(
        given(Provider::Anthropic, &[json!({"role": "user", "content": "?"}), newer.clone()])[1],
        newer
    );
    // A signature stays on its part also where the part is spelled anew.
    let snake = json!({"role": "model", "parts": [{"function_call": {"name": "f", "args": {}}, "thought_signature": "ts"}]});
    assert_eq!(
        given(Provider::Gemini, &[json!({"role": "user", "content": "?"}), snake])[1]["parts"][0],
        json!({"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "ts"})
    );
}

#[test]
fn a_failure_stays_a_failure() {
    let messages = [
        json!({"role": "user", "content": "go"}),
        json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}),
        json!({"role": "tool", "tool_call_id": "a", "content": "torn", "is_error": true}),
    ];
    assert_eq!(given(Provider::Anthropic, &messages)[2]["content"][0]["is_error"], true);
    // Chat completions know no `is_error`, and strict servers refuse it.
    let chat = json!({"role": "tool", "tool_call_id": "a", "content": "Error: torn"});
    assert_eq!(given(Provider::OpenaiChat, &messages)[2], chat);
    assert_eq!(
        given(Provider::Gemini, &messages)[2]["parts"][0]["functionResponse"]["response"],
        json!({"error": "torn"})
    );
    for provider in Provider::ALL {
        let there = given(provider, &messages);
        assert_eq!(
            given(Provider::Anthropic, &there).last().unwrap()["content"][0]["is_error"],
            true,
            "{provider}"
        );
    }
}

/// The judge itself must be able to say no.
#[test]
fn the_list_of_rules_refuses_what_providers_refuse() {
    let user = json!({"role": "user", "content": "x"});
    let chat_call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let tool_use =
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]});
    let tool_result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]});
    let item = json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"});
    let part = json!({"role": "user", "parts": [{"text": "x"}]});
    let model_call = json!({"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]});
    let refused: [(&str, Vec<Value>); 24] = [
        ("openai-chat", vec![chat_call.clone(), user.clone()]),
        ("openai-chat", vec![json!({"role": "tool", "tool_call_id": "a", "content": "x"})]),
        ("openai-chat", vec![json!({"role": "user", "content": ""})]),
        ("openai-chat", vec![json!({"role": "user", "content": "x", "name": "a b"})]),
        ("openai-chat", vec![json!({"role": "user", "content": "x", "visibility": "public"})]),
        ("openai-chat", vec![json!({"role": "user", "content": [{"type": "image", "source": {}}]})]),
        ("openai-responses", vec![item.clone(), user.clone()]),
        ("openai-responses", vec![json!({"type": "function_call_output", "call_id": "a", "output": "x"})]),
        ("openai-responses", vec![json!({"type": "reasoning", "encrypted_content": "x"}), user.clone()]),
        (
            "openai-responses",
            vec![json!({"role": "assistant", "content": [{"type": "input_text", "text": "x"}]})],
        ),
        ("anthropic", vec![json!({"role": "assistant", "content": "x"})]),
        ("anthropic", vec![user.clone(), tool_use.clone(), user.clone()]),
        ("anthropic", vec![tool_result.clone()]),
        (
            "anthropic",
            vec![user.clone(), tool_use.clone(), tool_result.clone(), tool_use.clone(), tool_result.clone()],
        ),
        (
            "anthropic",
            vec![
                user.clone(),
                tool_use,
                json!({"role": "user", "content": [{"type": "text", "text": "x"}, tool_result["content"][0]]}),
            ],
        ),
        (
            "anthropic",
            vec![
                user.clone(),
                json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]}),
            ],
        ),
        ("anthropic", vec![json!({"role": "user", "content": " "})]),
        ("anthropic", vec![json!({"role": "system", "content": "x"})]),
        ("gemini", vec![json!({"role": "model", "parts": [{"text": "x"}]})]),
        ("gemini", vec![part.clone(), model_call.clone(), part.clone()]),
        ("gemini", vec![part.clone(), json!({"role": "model", "parts": [{"text": "x"}]}), model_call]),
        ("gemini", vec![json!({"role": "user", "parts": [{"text": ""}]})]),
        (
            "gemini",
            vec![json!({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]})],
        ),
        ("neutral", vec![json!({"role": "tool", "tool_call_id": "a", "name": "f", "content": "x"})]),
    ];
    for (provider, messages) in refused {
        assert!(check(provider, None, &messages).is_err(), "{provider}: {messages:?}");
    }
}
