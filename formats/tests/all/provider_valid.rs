//! What each provider's server checks before it answers, written down apart from the renderers.
//!
//! It needs nothing but `serde_json`, so that tests of other crates can include this file by its path.

use serde_json::Value;
use std::collections::{BTreeSet, HashSet};

type Check = Result<(), String>;

/// Whether the provider (by its name) would accept these messages and this system field.
pub fn check(provider: &str, system: Option<&Value>, messages: &[Value]) -> Check {
    let result = match provider {
        "openai-chat" => chat(messages).and(none(system)),
        "openai-responses" => responses(messages).and(string(system)),
        "anthropic" => anthropic(messages).and(text_blocks(system)),
        "gemini" => gemini(messages).and(instruction(system)),
        "neutral" => neutral(messages).and(string(system)),
        other => Err(format!("no provider {other}")),
    };
    result.and_then(|()| messages.iter().try_for_each(marks))
}

fn ensure(holds: bool, what: impl Fn() -> String) -> Check {
    if holds { Ok(()) } else { Err(what()) }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn filled(value: &Value, key: &str) -> bool {
    text(value, key).is_some_and(|text| !text.is_empty())
}

fn is_word(text: &str, extra: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-' || extra.contains(c))
}

/// Our own marks are nobody's business.
fn marks(message: &Value) -> Check {
    let blocks = ["content", "parts", "tool_calls", "output"].iter().flat_map(|key| list(message, key));
    for part in blocks.chain([message]) {
        for mark in ["_harn_projection", "visibility", "asset_id"] {
            ensure(part.get(mark).is_none(), || format!("{mark} was sent: {part}"))?;
        }
    }
    Ok(())
}

fn none(system: Option<&Value>) -> Check {
    ensure(system.is_none(), || "there is no system field".into())
}

fn string(system: Option<&Value>) -> Check {
    let fine = system.is_none_or(|system| system.as_str().is_some_and(|text| !text.is_empty()));
    ensure(fine, || format!("system is not a string with words: {system:?}"))
}

fn text_blocks(system: Option<&Value>) -> Check {
    let Some(system) = system else { return Ok(()) };
    let blocks = system.as_array().ok_or("system is not a list")?;
    ensure(!blocks.is_empty(), || "system is empty".into())?;
    blocks.iter().try_for_each(|block| {
        let words = text(block, "text").is_some_and(|text| !text.trim().is_empty());
        ensure(words && text(block, "type") == Some("text"), || format!("system block {block}"))
    })
}

fn instruction(system: Option<&Value>) -> Check {
    let Some(system) = system else { return Ok(()) };
    let parts = list(system, "parts");
    let fine = !parts.is_empty() && parts.iter().all(|part| filled(part, "text"));
    ensure(fine, || format!("systemInstruction {system}"))
}

/// Ids of calls against ids of the results that follow: each exactly once, in any order.
fn same(calls: &[&str], results: &[&str]) -> Check {
    let (asked, answered): (BTreeSet<_>, BTreeSet<_>) = (calls.iter().collect(), results.iter().collect());
    ensure(asked == answered && calls.len() == results.len(), || {
        format!("calls {calls:?} are followed by results {results:?}")
    })
}

fn is_data(data: &str, url: bool) -> bool {
    let payload = match url {
        true => data.split_once(";base64,").map(|(_, payload)| payload).filter(|_| data.starts_with("data:")),
        false => Some(data),
    };
    payload.is_some_and(|data| {
        let body = data.trim_end_matches('=');
        !body.is_empty()
            && data.len() % 4 == 0
            && data.len() - body.len() <= 2
            && body.chars().all(|c| c.is_ascii_alphanumeric() || c == '+' || c == '/')
    })
}

fn is_link(url: &str) -> bool {
    (url.starts_with("https://") || url.starts_with("http://")) && url.len() > 8
}

const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

fn is_picture_url(url: &str) -> bool {
    is_link(url)
        || PICTURES.iter().any(|mime| url.starts_with(&format!("data:{mime};"))) && is_data(url, true)
}

// OpenAI chat completions

fn chat(messages: &[Value]) -> Check {
    let mut ids = HashSet::new();
    let mut at = 0;
    while let Some(message) = messages.get(at) {
        let say = |what: &str| format!("{what}: {message}");
        at += 1;
        let role = text(message, "role").ok_or_else(|| say("no role"))?;
        if role != "tool" {
            let name = message.get("name").is_none_or(|n| n.as_str().is_some_and(|n| is_word(n, "", 64)));
            ensure(name, || say("name"))?;
        }
        for key in ["parts", "type", "tool_results"] {
            ensure(message.get(key).is_none(), || say("a field of another shape"))?;
        }
        match role {
            "user" | "system" | "developer" => chat_content(message, role, false).map_err(|e| say(&e))?,
            "assistant" => {
                let calls = list(message, "tool_calls");
                ensure(message.get("tool_calls").is_none() || !calls.is_empty(), || say("no calls"))?;
                let silent =
                    !calls.is_empty() || filled(message, "refusal") || message.get("audio").is_some();
                chat_content(message, role, silent).map_err(|e| say(&e))?;
                let mut asked = Vec::new();
                for call in calls {
                    let id = text(call, "id").ok_or_else(|| say("call without id"))?;
                    ensure((1..=40).contains(&id.len()), || say("id too long or empty"))?;
                    ensure(ids.insert(id), || say("id repeats"))?;
                    let kind = text(call, "type").unwrap_or_default();
                    let (function, input) = match kind {
                        "function" => (&call["function"], "arguments"),
                        _ => (&call["custom"], "input"),
                    };
                    let name = text(function, "name").is_some_and(|name| is_word(name, "", 64));
                    ensure(name && text(function, input).is_some(), || say("call"))?;
                    asked.push(id);
                }
                let results: Vec<&str> = messages[at..]
                    .iter()
                    .take_while(|next| text(next, "role") == Some("tool"))
                    .map(|next| text(next, "tool_call_id").unwrap_or_default())
                    .collect();
                if at < messages.len() || !results.is_empty() {
                    same(&asked, &results).map_err(|e| say(&e))?;
                }
                for result in &messages[at..at + results.len()] {
                    let content =
                        result["content"].is_string() || chat_content(result, "tool", false).is_ok();
                    let fine = content && result.get("is_error").is_none();
                    ensure(fine, || format!("tool content {result}"))?;
                }
                at += results.len();
            }
            _ => return Err(say("a result without its call, or an unknown role")),
        }
    }
    Ok(())
}

fn chat_content(message: &Value, role: &str, may_be_silent: bool) -> Check {
    match message.get("content") {
        Some(Value::String(words)) => ensure(may_be_silent || !words.is_empty(), || "empty content".into()),
        Some(Value::Array(blocks)) => {
            ensure(!blocks.is_empty(), || "no blocks".into())?;
            blocks.iter().try_for_each(|block| {
                let kind = text(block, "type").unwrap_or_default();
                let fine = match (kind, role) {
                    ("text", _) => filled(block, "text"),
                    ("refusal", "assistant") => filled(block, "refusal"),
                    ("image_url", "user") => text(&block["image_url"], "url").is_some_and(is_picture_url),
                    ("input_audio", "user") => {
                        let audio = &block["input_audio"];
                        matches!(text(audio, "format"), Some("wav" | "mp3"))
                            && text(audio, "data").is_some_and(|data| is_data(data, false))
                    }
                    ("file", "user") => {
                        let file = &block["file"];
                        let inline = text(file, "file_data").is_some_and(|data| is_data(data, true));
                        filled(file, "file_id") || inline && filled(file, "filename")
                    }
                    _ => false,
                };
                ensure(fine, || format!("block {block}"))
            })
        }
        None | Some(Value::Null) => ensure(may_be_silent, || "nothing said".into()),
        Some(_) => Err("content of another type".into()),
    }
}

// OpenAI Responses

fn responses(items: &[Value]) -> Check {
    let mut ids = HashSet::new();
    let mut at = 0;
    while at < items.len() {
        let mut asked = Vec::new();
        let start = at;
        while let Some(item) = items.get(at).filter(|item| is_of_assistant(item)) {
            let say = |what: &str| format!("{what}: {item}");
            at += 1;
            match text(item, "type").unwrap_or("message") {
                "message" => responses_message(item, "assistant").map_err(|e| say(&e))?,
                "reasoning" => {
                    ensure(filled(item, "encrypted_content"), || say("reasoning that is not sealed"))?;
                    let next = items.get(at).is_some_and(is_of_assistant);
                    ensure(next, || say("reasoning without what it led to"))?;
                }
                kind @ ("function_call" | "custom_tool_call") => {
                    let id = text(item, "call_id").unwrap_or_default();
                    ensure((1..=64).contains(&id.len()) && ids.insert(id), || say("call id"))?;
                    let input = if kind == "function_call" { "arguments" } else { "input" };
                    let name = text(item, "name").is_some_and(|name| is_word(name, "", 64));
                    ensure(name && text(item, input).is_some(), || say("call"))?;
                    asked.push((id, kind));
                }
                kind => {
                    if let Some(id) = text(item, "call_id") {
                        asked.push((id, kind));
                    }
                }
            }
        }
        let mut answered = Vec::new();
        while let Some(item) = items.get(at).filter(|item| is_output(item)) {
            at += 1;
            let id = text(item, "call_id").or_else(|| text(item, "id")).unwrap_or_default();
            let kind = text(item, "type").unwrap_or_default();
            let call = asked.iter().any(|(asked, of)| *asked == id && format!("{of}_output") == kind);
            ensure(call, || format!("a result of another kind, or without its call: {item}"))?;
            if kind == "function_call_output" {
                let output = &item["output"];
                let blocks = output.as_array().is_some_and(|blocks| {
                    !blocks.is_empty() && blocks.iter().all(|block| input_block(block).is_ok())
                });
                ensure(output.is_string() || blocks, || format!("output {item}"))?;
            }
            answered.push(id);
        }
        let asked: Vec<&str> = asked.iter().map(|(id, _)| *id).collect();
        if at < items.len() || !answered.is_empty() {
            same(&asked, &answered)?;
        } else if !asked.is_empty() {
            let last = &items[at - 1];
            ensure(last.get("role").is_none(), || format!("a call waits, and more was said: {last}"))?;
        }
        if at == start {
            let item = &items[at];
            let role = text(item, "role").ok_or_else(|| format!("item {at} is nothing known: {item}"))?;
            responses_message(item, role).map_err(|e| format!("item {at}: {e}: {item}"))?;
            at += 1;
        }
    }
    Ok(())
}

fn is_output(item: &Value) -> bool {
    item.get("role").is_none() && text(item, "type").is_some_and(|kind| kind.ends_with("_output"))
}

fn is_of_assistant(item: &Value) -> bool {
    const KINDS: [&str; 7] = [
        "reasoning",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "item_reference",
        "compaction",
        "message",
    ];
    match (text(item, "role"), text(item, "type")) {
        (Some(role), _) => role == "assistant",
        (None, Some(kind)) => KINDS.contains(&kind) || kind.ends_with("_call"),
        (None, None) => false,
    }
}

fn responses_message(item: &Value, role: &str) -> Check {
    ensure(matches!(role, "user" | "assistant" | "system" | "developer"), || format!("role {role}"))?;
    ensure(item.get("name").is_none() && item.get("tool_calls").is_none(), || {
        "a field of another shape".into()
    })?;
    match &item["content"] {
        Value::String(words) => ensure(!words.is_empty(), || "empty content".into()),
        Value::Array(blocks) => {
            ensure(!blocks.is_empty(), || "no blocks".into())?;
            blocks.iter().try_for_each(|block| match (role, text(block, "type")) {
                ("assistant", Some("output_text")) => ensure(filled(block, "text"), || format!("{block}")),
                ("assistant", Some("refusal")) => ensure(filled(block, "refusal"), || format!("{block}")),
                ("assistant", _) => Err(format!("block {block}")),
                ("user", _) => input_block(block),
                _ => ensure(text(block, "type") == Some("input_text"), || format!("block {block}")),
            })
        }
        other => Err(format!("content {other}")),
    }
}

fn input_block(block: &Value) -> Check {
    let fine = match text(block, "type") {
        Some("input_text") => filled(block, "text"),
        Some("input_image") => {
            filled(block, "file_id") || text(block, "image_url").is_some_and(is_picture_url)
        }
        Some("input_file") => {
            let inline = text(block, "file_data").is_some_and(|data| is_data(data, true));
            let link = text(block, "file_url").is_some_and(is_link);
            filled(block, "file_id") || link || inline && filled(block, "filename")
        }
        _ => false,
    };
    ensure(fine, || format!("block {block}"))
}

// Anthropic

fn anthropic(messages: &[Value]) -> Check {
    let mut ids = HashSet::new();
    if let Some(first) = messages.first() {
        ensure(text(first, "role") == Some("user"), || format!("first message {first}"))?;
    }
    let mut waiting: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let say = |what: String| format!("message {at}: {what}: {message}");
        let role = text(message, "role").unwrap_or_default();
        ensure(role == "user" || role == "assistant", || say("role".into()))?;
        const ENVELOPE: [&str; 7] = ["id", "type", "model", "usage", "stop_reason", "name", "tool_calls"];
        for key in ENVELOPE {
            ensure(message.get(key).is_none(), || say(format!("{key} is not permitted")))?;
        }
        let blocks = match &message["content"] {
            Value::String(words) => {
                ensure(!words.trim().is_empty(), || say("blank content".into()))?;
                ensure(waiting.is_empty(), || say(format!("calls {waiting:?} have no results")))?;
                let last = at + 1 == messages.len() && role == "assistant";
                ensure(!last || words.trim_end() == words, || say("ends in white space".into()))?;
                continue;
            }
            Value::Array(blocks) => blocks,
            _ => return Err(say("content".into())),
        };
        ensure(!blocks.is_empty(), || say("no blocks".into()))?;
        let kinds: Vec<&str> = blocks.iter().map(|block| text(block, "type").unwrap_or_default()).collect();
        let results: Vec<&str> = blocks
            .iter()
            .filter(|block| text(block, "type") == Some("tool_result"))
            .map(|block| text(block, "tool_use_id").unwrap_or_default())
            .collect();
        ensure(kinds[..results.len()].iter().all(|kind| *kind == "tool_result"), || {
            say("words before results".into())
        })?;
        ensure(results.is_empty() || role == "user", || say("results by the assistant".into()))?;
        same(&waiting, &results).map_err(say)?;
        waiting.clear();
        // Beside signed thinking stands only what the same provider wrote, be it newer than this list.
        let signed = role == "assistant" && kinds.iter().any(|kind| kind.ends_with("thinking"));
        for block in blocks {
            let known = ["text", "tool_use", "thinking", "redacted_thinking"];
            let newer = signed && text(block, "type").is_some_and(|kind| !known.contains(&kind));
            anthropic_block(block, role).or_else(|e| if newer { Ok(()) } else { Err(say(e)) })?;
            if text(block, "type") == Some("tool_use") {
                let id = text(block, "id").unwrap_or_default();
                ensure(ids.insert(id), || say("id repeats".into()))?;
                waiting.push(id);
            }
        }
        if role == "assistant" {
            let thinks = matches!(kinds.last(), Some(&"thinking" | &"redacted_thinking"));
            ensure(!thinks, || say("ends in thinking".into()))?;
            let last = blocks.last().and_then(|block| text(block, "text")).unwrap_or_default();
            let ends = at + 1 == messages.len() && last.trim_end() != last;
            ensure(!ends, || say("ends in white space".into()))?;
            let of = |kind: fn(&str) -> bool, key: &str| -> BTreeSet<String> {
                let blocks = blocks.iter().filter(|block| text(block, "type").is_some_and(kind));
                blocks.filter_map(|block| text(block, key).map(str::to_string)).collect()
            };
            let asked = of(|kind| kind == "server_tool_use" || kind == "mcp_tool_use", "id");
            let answered = of(|kind| kind.ends_with("_tool_result"), "tool_use_id");
            ensure(asked == answered, || say("a server's call without its result".into()))?;
        }
    }
    Ok(())
}

fn anthropic_block(block: &Value, role: &str) -> Check {
    let kind = text(block, "type").unwrap_or_default();
    let fine = match (kind, role) {
        ("text", _) => text(block, "text").is_some_and(|text| !text.trim().is_empty()),
        ("image" | "document", "user") => anthropic_source(&block["source"], kind),
        ("search_result" | "container_upload", "user") => true,
        ("tool_result", "user") => {
            let content = match block.get("content") {
                None | Some(Value::String(_)) => true,
                Some(Value::Array(blocks)) => blocks.iter().all(|block| {
                    text(block, "type") != Some("tool_result") && anthropic_block(block, "user").is_ok()
                }),
                Some(_) => false,
            };
            content && block.get("is_error").is_none_or(Value::is_boolean)
        }
        ("tool_use", "assistant") => {
            text(block, "id").is_some_and(|id| is_word(id, "", usize::MAX))
                && text(block, "name").is_some_and(|name| is_word(name, "", 64))
                && block["input"].is_object()
        }
        ("thinking", "assistant") => text(block, "thinking").is_some() && filled(block, "signature"),
        ("redacted_thinking", "assistant") => filled(block, "data"),
        ("server_tool_use" | "mcp_tool_use", "assistant") => true,
        (kind, "assistant") => kind.ends_with("_tool_result"),
        _ => false,
    };
    ensure(fine, || format!("block {block}"))
}

fn anthropic_source(source: &Value, kind: &str) -> bool {
    let mime = text(source, "media_type").unwrap_or_default();
    match text(source, "type") {
        Some("base64") => {
            let known = if kind == "image" { PICTURES.contains(&mime) } else { mime == "application/pdf" };
            known && text(source, "data").is_some_and(|data| is_data(data, false))
        }
        Some("url") => text(source, "url").is_some_and(|url| url.starts_with("https://")),
        Some("text") => kind == "document" && mime == "text/plain" && filled(source, "data"),
        Some("file") => filled(source, "file_id"),
        Some("content") => kind == "document",
        _ => false,
    }
}

// Gemini

const KINDS: [&str; 7] = [
    "text",
    "functionCall",
    "functionResponse",
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
];

fn gemini(contents: &[Value]) -> Check {
    if let Some(first) = contents.first() {
        ensure(text(first, "role") == Some("user"), || format!("first content {first}"))?;
    }
    let mut waiting: Vec<&Value> = Vec::new();
    let mut before = "user";
    for (at, content) in contents.iter().enumerate() {
        let say = |what: String| format!("content {at}: {what}: {content}");
        let role = text(content, "role").unwrap_or_default();
        ensure(role == "user" || role == "model", || say("role".into()))?;
        ensure(content.get("content").is_none() && content.get("name").is_none(), || say("shape".into()))?;
        let parts = list(content, "parts");
        ensure(!parts.is_empty(), || say("no parts".into()))?;
        // Beside a signed part stands only what the same provider wrote, be it newer than this list.
        let signed = role == "model" && parts.iter().any(|part| filled(part, "thoughtSignature"));
        for part in parts {
            let newer = signed && part.is_object() && !KINDS.iter().any(|kind| part.get(kind).is_some());
            gemini_part(part).or_else(|e| if newer { Ok(()) } else { Err(say(e)) })?;
        }
        let answers: Vec<&Value> = parts.iter().filter_map(|part| part.get("functionResponse")).collect();
        ensure(answers.is_empty() || answers.len() == parts.len(), || say("words beside results".into()))?;
        let names = |values: &[&Value]| -> Vec<String> {
            let mut names: Vec<_> = values.iter().map(|v| format!("{} {}", v["name"], v["id"])).collect();
            names.sort();
            names
        };
        ensure(names(&waiting) == names(&answers), || say(format!("calls {waiting:?} before it")))?;
        waiting = parts.iter().filter_map(|part| part.get("functionCall")).collect();
        let after_user = waiting.is_empty() || role == "model" && before == "user";
        ensure(after_user, || say("calls do not follow the user or a result".into()))?;
        before = role;
    }
    let mut ids = HashSet::new();
    let calls = contents.iter().flat_map(|content| list(content, "parts"));
    let unique = calls.filter_map(|part| text(part.get("functionCall")?, "id")).all(|id| ids.insert(id));
    ensure(unique, || "an id repeats".into())
}

fn gemini_part(part: &Value) -> Check {
    let present: Vec<&str> = KINDS.into_iter().filter(|kind| part.get(kind).is_some()).collect();
    let [kind] = present.as_slice() else { return Err(format!("part {part}")) };
    let data = &part[*kind];
    let named = text(data, "name").is_some_and(|name| {
        is_word(name, ".", 64) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    });
    let fine = match *kind {
        "text" => {
            let sealed = filled(part, "thoughtSignature");
            let thought = part.get("thought") == Some(&Value::Bool(true));
            data.as_str().is_some_and(|text| !text.is_empty() || sealed) && (!thought || sealed)
        }
        "functionCall" => named && data.get("args").is_none_or(Value::is_object),
        "functionResponse" => named && data["response"].is_object(),
        "inlineData" => {
            text(data, "mimeType").is_some_and(|mime| mime.contains('/'))
                && text(data, "data").is_some_and(|data| is_data(data, false))
        }
        "fileData" => filled(data, "fileUri"),
        _ => true,
    };
    ensure(fine, || format!("part {part}"))
}

// Our own shape

fn neutral(messages: &[Value]) -> Check {
    let mut ids = HashSet::new();
    let mut waiting: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let say = |what: &str| format!("message {at}: {what}: {message}");
        let role = text(message, "role").unwrap_or_default();
        if role == "tool" {
            let id = text(message, "tool_call_id").unwrap_or_default();
            let call = waiting.iter().position(|call| *call == id).ok_or_else(|| say("no call"))?;
            waiting.remove(call);
            ensure(message["name"].is_string(), || say("no name"))?;
            ensure(message["content"].is_string() || message["content"].is_array(), || say("content"))?;
            continue;
        }
        ensure(waiting.is_empty(), || say("calls before it have no results"))?;
        ensure(matches!(role, "user" | "assistant" | "system"), || say("role"))?;
        match &message["content"] {
            Value::String(words) => ensure(!words.is_empty(), || say("empty"))?,
            Value::Array(blocks) => {
                ensure(!blocks.is_empty(), || say("no blocks"))?;
                for block in blocks {
                    let fine = match text(block, "type") {
                        Some("text") => filled(block, "text"),
                        Some("reasoning") => filled(block, "text") && role == "assistant",
                        Some("tool_call") => {
                            let id = text(block, "id").unwrap_or_default();
                            waiting.push(id);
                            ids.insert(id) && filled(block, "name") && block["arguments"].is_object()
                        }
                        Some("image" | "audio" | "video" | "file") => {
                            filled(block, "data") || filled(block, "url")
                        }
                        _ => false,
                    };
                    ensure(fine, || say(&format!("block {block}")))?;
                }
            }
            _ => return Err(say("content")),
        }
    }
    // What waits at the end is pending, unless some of its message was answered.
    let pending = messages.last().is_none_or(|last| text(last, "role") == Some("assistant"));
    ensure(pending || waiting.is_empty(), || format!("calls {waiting:?} have no results"))
}
