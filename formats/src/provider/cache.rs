//! Marks that have Anthropic keep the beginning of a prompt, so that the next one which begins so costs less.
//!
//! Everyone else finds equal beginnings by themselves.

use super::{Rendered, raw};
use everturn_core::Error;
use everturn_core::json::{Raw, array, elements, field, fields, object, quote};
use serde_json::Value;

/// The field with its value.
const MARK: &str = r#""cache_control":{"type":"ephemeral"}"#;

/// Marks a prompt for Anthropic at the ends of sections: at the blocks of the system field with these indices, and at the
/// last message that came from the first `tail` messages of the input. At most four marks are allowed in a request: give
/// no more than three indices. A prompt in which somebody has set marks already stays as it is.
pub fn mark_cache(rendered: &mut Rendered, system: &[usize], tail: usize) -> Result<(), Error> {
    let marked = |raw: &Raw| raw.get().contains("\"cache_control\"");
    if rendered.system.iter().chain(&rendered.messages).any(marked) {
        return Ok(());
    }
    if let Some(blocks) = &rendered.system {
        let blocks = elements(blocks.get()).into_iter().enumerate();
        let blocks: Vec<String> = blocks
            .map(|(n, block)| if system.contains(&n) { with_mark(block) } else { block.to_string() })
            .collect();
        rendered.system = Some(raw(&array(&blocks))?);
    }
    let before = rendered.sources.iter().take_while(|source| source.is_none_or(|n| n < tail)).count();
    let last = rendered.sources[..before].iter().rposition(Option::is_some);
    if let Some(last) = last
        && let Some(message) = mark_message(rendered.messages[last].get())
    {
        rendered.messages[last] = raw(&message)?;
    }
    Ok(())
}

fn with_mark(block: &str) -> String {
    match block.trim_end().strip_suffix('}') {
        Some(open) => format!("{open},{MARK}}}"),
        None => block.to_string(),
    }
}

/// The message with a mark on its last block that can carry one: reasoning cannot, nor can empty words.
fn mark_message(message: &str) -> Option<String> {
    let content = field(message, "content")?;
    let content = if content.starts_with('"') {
        let blank = serde_json::from_str::<String>(content).is_ok_and(|text| text.trim().is_empty());
        let block = object([("type", quote("text")), ("text", content.to_string())]);
        (!blank).then(|| array(&[with_mark(&block)]))?
    } else {
        let mut blocks: Vec<String> = elements(content).into_iter().map(str::to_string).collect();
        let last = blocks.iter().rposition(|block| carries(block))?;
        blocks[last] = with_mark(&blocks[last]);
        array(&blocks)
    };
    let all = fields(message);
    let all = all
        .iter()
        .map(|(key, value)| (&**key, if key == "content" { content.clone() } else { value.to_string() }));
    Some(object(all))
}

fn carries(block: &str) -> bool {
    let Ok(block) = serde_json::from_str::<Value>(block) else { return false };
    match block.get("type").and_then(Value::as_str) {
        Some("text") => block["text"].as_str().is_some_and(|text| !text.trim().is_empty()),
        Some(kind) => matches!(kind, "image" | "document" | "tool_use" | "tool_result"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Input, NoMedia, Provider, SystemSection, render};
    use super::*;
    use serde_json::json;

    fn prompt(sections: &[(&str, &str)], messages: &[Value]) -> Rendered {
        let system: Vec<SystemSection<'_>> =
            sections.iter().map(|(name, text)| SystemSection { name, text }).collect();
        render(Provider::Anthropic, &Input { system: &system, messages, media: &NoMedia }).unwrap()
    }

    fn places(rendered: &Rendered) -> Vec<String> {
        let all = rendered.system.iter().chain(&rendered.messages);
        all.filter(|raw| raw.get().contains("cache_control")).map(|raw| raw.get().to_string()).collect()
    }

    #[test]
    fn the_ends_of_sections_are_marked_and_nothing_else_changes() {
        let messages = [
            json!({"role":"user","content":"one"}),
            json!({"role":"assistant","content":"two"}),
            json!({"role":"user","content":"three"}),
        ];
        let mut rendered =
            prompt(&[("system", "be brief"), ("state", "all well"), ("digests", "x")], &messages);
        mark_cache(&mut rendered, &[0, 1], 2).unwrap();
        let system = r#"[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}},{"type":"text","text":"all well","cache_control":{"type":"ephemeral"}},{"type":"text","text":"x"}]"#;
        assert_eq!(rendered.system.as_ref().unwrap().get(), system);
        let texts: Vec<&str> = rendered.messages.iter().map(Raw::get).collect();
        assert_eq!(
            texts,
            [
                r#"{"role":"user","content":"one"}"#,
                r#"{"role":"assistant","content":[{"type":"text","text":"two","cache_control":{"type":"ephemeral"}}]}"#,
                r#"{"role":"user","content":"three"}"#,
            ]
        );
    }

    #[test]
    fn a_mark_is_never_on_reasoning_and_leaves_its_bytes_alone() {
        let thinking = r#"{"type":"thinking", "thinking":"h\u006d", "signature":"c2ln"}"#;
        for (blocks, marked) in [
            (format!(r#"[{thinking},{{"type":"text","text":"a"}}]"#), r#""text":"a","cache_control""#),
            (format!(r#"[{{"type":"text","text":"a"}},{thinking}]"#), r#""text":"a","cache_control""#),
            (format!(r#"[{thinking},{{"type":"text","text":" "}}]"#), ""),
        ] {
            let message = mark_message(&format!(r#"{{"role":"assistant","content":{blocks}}}"#));
            match (&message, marked) {
                (None, "") => {}
                (Some(message), marked) => {
                    assert!(message.contains(thinking) && message.contains(marked), "{message}")
                }
                (None, _) => panic!("{blocks} got no mark"),
            }
        }
    }

    #[test]
    fn results_of_tools_are_marked_in_their_message() {
        let messages = [
            json!({"role":"user","content":"go"}),
            json!({"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"ls","input":{}}]}),
            json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"a.rs"}]}),
            json!({"role":"user","content":"and now?"}),
        ];
        let mut rendered = prompt(&[], &messages);
        mark_cache(&mut rendered, &[], 3).unwrap();
        let [place] = &places(&rendered)[..] else { panic!("{rendered:?}") };
        assert!(place.contains(r#""content":"a.rs","cache_control":{"type":"ephemeral"}}]"#), "{place}");
    }

    #[test]
    fn without_a_tail_or_with_marks_of_the_callers_own_none_is_added() {
        let mut rendered = prompt(&[("system", "x")], &[json!({"role":"user","content":"hi"})]);
        mark_cache(&mut rendered, &[], 0).unwrap();
        assert_eq!(places(&rendered), Vec::<String>::new());
        let own = json!({"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}]});
        let mut rendered = prompt(&[("system", "x")], &[own, json!({"role":"user","content":"hi"})]);
        let before = rendered.clone();
        mark_cache(&mut rendered, &[0], 1).unwrap();
        assert_eq!(rendered, before);
    }
}
