//! The compaction policy of a conversation.

use crate::Error;
use crate::json::Raw;
use serde::Serialize;
use serde_json::{Map, Value};

/// `policy.compaction` of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CompactionPolicy {
    /// Number of unsummarized turns above which a compaction is due.
    pub max_turns: u64,
    /// Number of unsummarized content tokens above which a compaction is due.
    pub max_tokens: u64,
    /// Number of turns at the end that [`CompactionStrategy::Tail`] and [`CompactionStrategy::Threshold`] keep verbatim.
    pub keep_last: usize,
    /// Strategy: when to compact, and how much.
    pub strategy: CompactionStrategy,
    /// Whether compaction runs automatically. It can always be requested.
    pub auto: bool,
    /// Model that writes the checkpoint; without one it is extracted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summarizer: Option<String>,
    /// Reaction to a provider's error that the prompt is too long.
    pub on_overflow: OnOverflow,
    /// Context window of the model in tokens; required by [`CompactionStrategy::Threshold`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_limit: Option<u64>,
    /// Number of those tokens to leave free.
    pub reserved_tokens: u64,
    /// Timeout of one attempt of the summarizer, in seconds.
    pub timeout_s: u64,
}

impl Default for CompactionPolicy {
    fn default() -> CompactionPolicy {
        CompactionPolicy {
            max_turns: 50,
            max_tokens: 8000,
            keep_last: 2,
            strategy: CompactionStrategy::Half,
            auto: true,
            summarizer: None,
            on_overflow: OnOverflow::CompactAndRetry,
            input_limit: None,
            reserved_tokens: 20_000,
            timeout_s: 60,
        }
    }
}

/// Strategy: when a compaction is due and how much it covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionStrategy {
    /// Over `max_turns` or `max_tokens`: the oldest half, rounded down, at least one turn.
    Half,
    /// Over `max_turns` or `max_tokens`: all but the last `keep_last` turns.
    Tail,
    /// When the prompt, with system prompt and tools, reaches `input_limit` − `reserved_tokens`: as many of the oldest turns as it takes to
    /// halve it.
    Threshold,
}

/// Reaction to a provider's error that the prompt is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOverflow {
    /// Compact, then retry once.
    CompactAndRetry,
    /// Return the provider's error.
    Fail,
}

impl CompactionPolicy {
    /// Parses `policy.compaction`. An absent field has its default; an unknown field or value is an error that
    /// names it.
    pub fn parse(raw: &Raw) -> Result<CompactionPolicy, Error> {
        let fields: Map<String, Value> = raw
            .read()
            .ok_or_else(|| Error::invalid("policy.compaction", "policy.compaction must be an object"))?;
        let mut policy = CompactionPolicy::default();
        for (field, value) in &fields {
            match field.as_str() {
                "max_turns" => policy.max_turns = whole(field, value)?,
                "max_tokens" => policy.max_tokens = whole(field, value)?,
                "keep_last" => {
                    policy.keep_last = usize::try_from(whole(field, value)?)
                        .map_err(|_| wrong(field, value, "a smaller number"))?;
                }
                "strategy" => {
                    policy.strategy = match value.as_str() {
                        Some("half") => CompactionStrategy::Half,
                        Some("tail") => CompactionStrategy::Tail,
                        Some("threshold") => CompactionStrategy::Threshold,
                        _ => return Err(wrong(field, value, "\"half\", \"tail\" or \"threshold\"")),
                    }
                }
                "auto" => {
                    policy.auto = value.as_bool().ok_or_else(|| wrong(field, value, "true or false"))?;
                }
                "summarizer" => {
                    let name = value.as_str().filter(|name| !name.trim().is_empty());
                    policy.summarizer =
                        Some(name.ok_or_else(|| wrong(field, value, "the name of a model"))?.to_string());
                }
                "on_overflow" => {
                    policy.on_overflow = match value.as_str() {
                        Some("compact_and_retry") => OnOverflow::CompactAndRetry,
                        Some("fail") => OnOverflow::Fail,
                        _ => return Err(wrong(field, value, "\"compact_and_retry\" or \"fail\"")),
                    }
                }
                "input_limit" => policy.input_limit = Some(whole(field, value)?),
                "reserved_tokens" => policy.reserved_tokens = whole(field, value)?,
                "timeout_s" => {
                    policy.timeout_s = match whole(field, value)? {
                        0 => return Err(wrong(field, value, "at least one second")),
                        seconds => seconds,
                    }
                }
                _ => {
                    return Err(Error::invalid(
                        "policy.compaction",
                        format!(
                            "policy.compaction.{} is unknown; known are max_turns, max_tokens, keep_last, strategy, auto, \
                             summarizer, on_overflow, input_limit, reserved_tokens and timeout_s",
                            crate::id::clip(field)
                        ),
                    ));
                }
            }
        }
        match policy.input_limit {
            Some(limit) if limit <= policy.reserved_tokens => Err(Error::invalid(
                "policy.compaction",
                format!(
                    "policy.compaction.input_limit is {limit}, which is not more than reserved_tokens ({}); raise the one \
                     or lower the other",
                    policy.reserved_tokens
                ),
            )),
            None if policy.strategy == CompactionStrategy::Threshold => Err(Error::invalid(
                "policy.compaction",
                "policy.compaction.input_limit is missing; strategy \"threshold\" needs the model's limit in tokens",
            )),
            _ => Ok(policy),
        }
    }
}

/// Whether an automatic compaction is due.
///
/// `turns` and `tokens` count unsummarized content; `prompt_tokens` adds the checkpoint.
pub fn is_due(policy: &CompactionPolicy, turns: u64, tokens: u64, prompt_tokens: u64) -> bool {
    policy.auto
        && turns > 0
        && match policy.strategy {
            CompactionStrategy::Half | CompactionStrategy::Tail => {
                turns > policy.max_turns || tokens > policy.max_tokens
            }
            CompactionStrategy::Threshold => policy
                .input_limit
                .is_some_and(|limit| prompt_tokens >= limit.saturating_sub(policy.reserved_tokens)),
        }
}

fn whole(field: &str, value: &Value) -> Result<u64, Error> {
    value.as_u64().ok_or_else(|| wrong(field, value, "a non-negative whole number"))
}

fn wrong(field: &str, value: &Value, expected: &str) -> Error {
    Error::invalid(
        "policy.compaction",
        format!("policy.compaction.{field} is {}; give {expected}", crate::id::clip(&value.to_string())),
    )
}
