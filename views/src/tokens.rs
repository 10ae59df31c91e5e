//! Token counts.
//!
//! For OpenAI's models the count is exact: their vocabularies are compiled in. Others do not publish theirs, so
//! their count is an estimate that errs on the high side: seven fifths of the `o200k_base` count, rounded up.
//! Media have a flat cost each.
//!
//! A message costs the sum of its parts, and a part its text plus [`PART_TOKENS`]; for a message with one text
//! that is what OpenAI documents (three, and one for the role). Because the cost depends on the parts and not
//! on the message, a renderer may split or join messages without changing the sum.

mod hash;
mod vocabulary;

use everturn_core::message::{self, MessagePart};
use serde_json::Value;

/// Cost of a part beside its text: the marks around a message, its role, a name.
pub const PART_TOKENS: u64 = 4;
/// Cost of a prompt beside its messages: the marks that begin the reply.
pub const PROMPT_TOKENS: u64 = 3;
/// Cost of an image: the maximum that a provider charges for one in full size.
pub const IMAGE_TOKENS: u64 = 1600;
/// Cost of other media. The true cost depends on the length, which is not known here.
pub const MEDIA_TOKENS: u64 = 3200;

/// Tokenizer of a family of models.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TokenizerFamily {
    /// GPT-4o and all later models of OpenAI.
    #[default]
    O200k,
    /// GPT-4 and GPT-3.5.
    Cl100k,
    /// All other models: an estimate on the high side.
    Estimate,
}

impl TokenizerFamily {
    /// The family of a model by its name; an unknown model is estimated.
    pub fn of_model(name: &str) -> TokenizerFamily {
        // Servers that offer many models prefix the vendor: `openai/gpt-4o`.
        let name = name.rsplit('/').next().unwrap_or(name);
        let begins = |with: &[&str]| with.iter().any(|start| name.starts_with(start));
        if begins(&["gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "chatgpt-4o", "o1", "o3", "o4", "gpt-oss"]) {
            TokenizerFamily::O200k
        } else if begins(&["gpt-4", "gpt-3.5", "text-embedding-3", "text-embedding-ada-002"]) {
            TokenizerFamily::Cl100k
        } else {
            TokenizerFamily::Estimate
        }
    }

    /// The name in results and receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            TokenizerFamily::O200k => "o200k_base",
            TokenizerFamily::Cl100k => "cl100k_base",
            TokenizerFamily::Estimate => "estimate",
        }
    }

    /// About how many tokens of the default family this many of this one are.
    pub fn in_default(self, tokens: u64) -> u64 {
        match self {
            TokenizerFamily::O200k | TokenizerFamily::Cl100k => tokens,
            TokenizerFamily::Estimate => tokens.saturating_mul(5) / 7,
        }
    }

    /// Number of tokens of a text.
    pub fn count(self, text: &str) -> u64 {
        match self {
            TokenizerFamily::O200k => vocabulary::O200K.count(text) as u64,
            TokenizerFamily::Cl100k => vocabulary::CL100K.count(text) as u64,
            TokenizerFamily::Estimate => (TokenizerFamily::O200k.count(text) * 7).div_ceil(5),
        }
    }

    /// The text of tokens; `None` if they are not tokens of this family, or not text. An estimate has no tokens of its
    /// own: `cl100k_base` is read, which clients of embedding models send.
    pub fn decode(self, tokens: &[u32]) -> Option<String> {
        let bytes = match self {
            TokenizerFamily::O200k => vocabulary::O200K.decode(tokens),
            TokenizerFamily::Cl100k | TokenizerFamily::Estimate => vocabulary::CL100K.decode(tokens),
        };
        String::from_utf8(bytes?).ok()
    }

    /// Number of tokens of a message of any shape.
    pub fn message(self, message: &Value) -> u64 {
        let mut sum = 0;
        if message.get("role").is_none() && message.get("type").is_some() {
            sum += self.block(message);
        }
        match message.get("content") {
            Some(Value::String(text)) => sum += self.count(text) + PART_TOKENS,
            Some(Value::Array(blocks)) => sum += blocks.iter().map(|block| self.block(block)).sum::<u64>(),
            Some(Value::Null) | None => {}
            Some(other) => sum += self.count(&other.to_string()) + PART_TOKENS,
        }
        let beside = ["tool_calls", "tool_results"].iter().filter_map(|key| message.get(key)?.as_array());
        sum += beside.flatten().map(|block| self.block(block)).sum::<u64>();
        let gemini = message.get("parts").and_then(Value::as_array);
        sum += gemini.into_iter().flatten().map(|part| self.gemini(part)).sum::<u64>();
        sum.max(PART_TOKENS)
    }

    fn block(self, block: &Value) -> u64 {
        let sealed = sealed_bytes(block) / 4;
        if let Some(function) = block.get("function") {
            let name = function.get("name").and_then(Value::as_str).map_or(0, |name| self.count(name));
            let arguments = function.get("arguments").map_or(0, |arguments| self.content(arguments));
            return name + arguments + sealed + PART_TOKENS;
        }
        let price = match message::block(block) {
            MessagePart::Text(text) => self.count(text),
            MessagePart::Thinking { text, .. } => text.map_or(0, |text| self.count(text)),
            MessagePart::Call { name, arguments, .. } => {
                self.count(name) + arguments.map_or(0, |arguments| self.content(arguments))
            }
            MessagePart::Result { name, content, .. } => {
                name.map_or(0, |name| self.count(name)) + content.map_or(0, |content| self.content(content))
            }
            MessagePart::Media { kind: "image", .. } => IMAGE_TOKENS,
            MessagePart::Media { .. } => MEDIA_TOKENS,
            MessagePart::Other(_) => self.count(&block.to_string()),
        };
        price + sealed + PART_TOKENS
    }

    /// Tokens of a call's arguments or a result's content: a text, blocks, or any JSON.
    fn content(self, content: &Value) -> u64 {
        match content {
            Value::String(text) => self.count(text),
            Value::Array(blocks) if blocks.iter().any(|block| block.get("type").is_some()) => {
                blocks.iter().map(|block| self.block(block)).sum()
            }
            other => self.count(&other.to_string()),
        }
    }

    fn gemini(self, part: &Value) -> u64 {
        let text = part.get("text").and_then(Value::as_str).map_or(0, |text| self.count(text));
        let media = ["inlineData", "fileData"].iter().any(|key| part.get(key).is_some());
        let call = ["functionCall", "functionResponse"].iter().filter_map(|key| part.get(key));
        let inner: u64 = call
            .map(|call| {
                let name = call.get("name").and_then(Value::as_str).map_or(0, |name| self.count(name));
                let what = ["args", "response"].iter().filter_map(|key| call.get(key));
                name + what.map(|what| self.content(what)).sum::<u64>()
            })
            .sum();
        text + inner + if media { IMAGE_TOKENS } else { 0 } + sealed_bytes(part) / 4 + PART_TOKENS
    }
}

/// Size of signatures and encrypted reasoning, which are sent along too. Their cost is not documented; a
/// quarter of their length is that of the reasoning inside.
fn sealed_bytes(block: &Value) -> u64 {
    const SEALED: [&str; 4] = ["signature", "encrypted_content", "thinking_signature", "thoughtSignature"];
    let length = |key: &&str| block.get(key).and_then(Value::as_str).map_or(0, |seal| seal.len() as u64);
    let redacted = block.get("type").is_some_and(|kind| kind == "redacted_thinking");
    SEALED.iter().chain(redacted.then_some(&"data")).map(length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_are_decoded_or_refused() {
        for (family, tokens, text) in [
            (TokenizerFamily::Cl100k, vec![15339, 1917], Some("hello world")),
            (TokenizerFamily::Estimate, vec![15339, 1917], Some("hello world")),
            (TokenizerFamily::O200k, vec![24912, 2375], Some("hello world")),
            (TokenizerFamily::Cl100k, vec![], Some("")),
            (TokenizerFamily::Cl100k, vec![u32::MAX], None),
        ] {
            assert_eq!(family.decode(&tokens).as_deref(), text, "{family:?} {tokens:?}");
        }
    }

    #[test]
    fn counts_for_openai_are_exact() {
        // Counts that OpenAI publishes as examples for its tokenizer.
        for (text, o200k, cl100k) in [
            ("", 0, 0),
            ("hello world", 2, 2),
            ("tiktoken is great!", 6, 6),
            ("antidisestablishmentarianism", 6, 6),
            ("お誕生日おめでとう", 8, 9),
            ("2 + 2 = 4", 7, 7),
        ] {
            assert_eq!(TokenizerFamily::O200k.count(text), o200k, "{text}");
            assert_eq!(TokenizerFamily::Cl100k.count(text), cl100k, "{text}");
        }
    }

    #[test]
    fn an_estimate_is_higher_than_the_exact_count() {
        let text = "The quick brown fox jumps over the lazy dog, 42 times: src/store/sqlite.rs";
        assert!(TokenizerFamily::Estimate.count(text) * 5 >= TokenizerFamily::O200k.count(text) * 7);
    }

    #[test]
    fn models_are_known_by_name() {
        for (name, family) in [
            ("gpt-4o-mini", TokenizerFamily::O200k),
            ("openai/gpt-5", TokenizerFamily::O200k),
            ("o3", TokenizerFamily::O200k),
            ("gpt-4-turbo", TokenizerFamily::Cl100k),
            ("gpt-3.5-turbo", TokenizerFamily::Cl100k),
            ("claude-sonnet-4-5", TokenizerFamily::Estimate),
            ("SmolLM2-135M", TokenizerFamily::Estimate),
        ] {
            assert_eq!(TokenizerFamily::of_model(name), family, "{name}");
        }
    }

    /// Renderers split a message into items, and join items into one message.
    #[test]
    fn the_same_parts_cost_the_same_in_every_shape() {
        let family = TokenizerFamily::O200k;
        let chat = family.message(&json!({"role":"assistant","content":"I look.",
            "tool_calls":[{"id":"c","type":"function","function":{"name":"read","arguments":"{\"path\":\"a.rs\"}"}}]}));
        let items = family.message(&json!({"role":"assistant","content":[{"type":"output_text","text":"I look."}]}))
            + family.message(&json!({"type":"function_call","call_id":"c","name":"read","arguments":"{\"path\":\"a.rs\"}"}));
        let blocks = family.message(&json!({"role":"assistant","content":[{"type":"text","text":"I look."},
            {"type":"tool_use","id":"c","name":"read","input":{"path":"a.rs"}}]}));
        let gemini = family.message(&json!({"role":"model","parts":[{"text":"I look."},
            {"functionCall":{"name":"read","args":{"path":"a.rs"}}}]}));
        assert!(chat == items && items == blocks && blocks == gemini, "{chat} {items} {blocks} {gemini}");
        assert_eq!(
            family.message(&json!({"role":"user","content":"hello world"})),
            2 + 4,
            "as OpenAI documents it"
        );
    }

    #[test]
    fn media_and_seals_have_a_price() {
        let family = TokenizerFamily::O200k;
        let image = json!({"role":"user","content":[{"type":"image","asset_id":"asset_1"}]});
        assert_eq!(family.message(&image), IMAGE_TOKENS + PART_TOKENS);
        let sealed = json!({"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"x".repeat(400)}]});
        assert_eq!(family.message(&sealed), 100 + PART_TOKENS);
    }
}
