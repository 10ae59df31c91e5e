//! Budgets: hard limits on the messages view of a conversation, and the policy when it is full.
//!
//! Compaction normally keeps a view small. These limits apply when it does not: when it is switched off, or
//! blocked by a tool call that is never answered.

use crate::Error;
use crate::conversation::EventsLeft;
use crate::json::Raw;
use crate::write::Summarized;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Default for the number of turns that a messages view retains.
pub const MESSAGES_MAX: u64 = 4096;
/// Default for the number of events that a messages view spans.
pub const EVENTS_MAX: u64 = 32768;
/// Default for the number of turns that [`BudgetRecovery::Compact`] keeps verbatim; half of `max_messages` if that is
/// smaller.
pub const KEEP_LAST: u64 = 100;

/// `policy.budget` of a conversation. `null` in place of a number means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct BudgetPolicy {
    /// Maximum number of turns.
    pub max_messages: Option<u64>,
    /// Maximum number of events.
    pub max_events: Option<u64>,
    /// Maximum size of messages, in bytes.
    pub max_bytes: Option<u64>,
    /// Reaction to an append that would exceed a limit. `None` if the policy does not say;
    /// [`Conversation::limits`](crate::conversation::Conversation::limits) then decides.
    pub recovery: Option<BudgetRecovery>,
}

impl Default for BudgetPolicy {
    fn default() -> BudgetPolicy {
        BudgetPolicy {
            max_messages: Some(MESSAGES_MAX),
            max_events: Some(EVENTS_MAX),
            max_bytes: None,
            recovery: None,
        }
    }
}

/// Reaction to an append that would exceed a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetRecovery {
    /// The append is refused.
    Reject,
    /// The view starts later; the turns left out are not replaced by anything.
    Trim {
        /// Number of turns to keep.
        keep_last: u64,
    },
    /// The turns left out are summarized.
    Compact {
        /// Number of turns to keep.
        keep_last: u64,
    },
}

impl BudgetRecovery {
    /// The name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            BudgetRecovery::Reject => "reject",
            BudgetRecovery::Trim { .. } => "trim",
            BudgetRecovery::Compact { .. } => "compact",
        }
    }
}

impl BudgetPolicy {
    /// Parses a policy. Unknown fields and values are errors that name the field; nothing is silently
    /// defaulted.
    pub fn parse(raw: &Raw) -> Result<BudgetPolicy, Error> {
        let wrong =
            |field: &str, what: &str| Error::invalid("policy.budget", format!("policy.budget{field} {what}"));
        let Some(Value::Object(fields)) = raw.read::<Value>() else {
            return Err(wrong("", "must be an object, such as {\"max_messages\": 1000}"));
        };
        let mut policy = BudgetPolicy::default();
        for (name, value) in &fields {
            let limit = || match value {
                Value::Null => Ok(None),
                value => value.as_u64().filter(|number| *number > 0).map(Some).ok_or_else(|| {
                    wrong(&format!(".{name}"), "must be a whole number above 0, or null for no limit")
                }),
            };
            match name.as_str() {
                "max_messages" => policy.max_messages = limit()?,
                "max_events" => policy.max_events = limit()?,
                "max_bytes" => policy.max_bytes = limit()?,
                "recovery" => {
                    let recovery = serde_json::from_value(value.clone()).map_err(|_| {
                        wrong(
                            ".recovery",
                            "must be \"reject\", {\"trim\": {\"keep_last\": N}} or {\"compact\": {\"keep_last\": N}}",
                        )
                    })?;
                    policy.recovery = Some(recovery);
                }
                other => {
                    let known = "is not known; there are max_messages, max_events, max_bytes and recovery";
                    return Err(wrong(&format!(".{}", crate::id::clip(other)), known));
                }
            }
        }
        Ok(policy)
    }

    /// Fills in the recovery if the policy has none: `compact` with automatic compaction on, else `reject`.
    pub fn with_recovery(mut self, auto_compaction: bool) -> BudgetPolicy {
        let keep_last = KEEP_LAST.min(self.max_messages.map_or(KEEP_LAST, |max| max / 2));
        let default =
            if auto_compaction { BudgetRecovery::Compact { keep_last } } else { BudgetRecovery::Reject };
        self.recovery.get_or_insert(default);
        self
    }

    /// Whether an append over a limit is refused, as opposed to making room for it.
    pub fn rejects(&self) -> bool {
        matches!(self.recovery, Some(BudgetRecovery::Reject) | None)
    }

    /// The first limit that this usage exceeds: its name, the limit and the usage. Reaching a limit does not
    /// exceed it.
    pub fn exceeded(&self, usage: &Usage) -> Option<(&'static str, u64, u64)> {
        [
            ("max_messages", self.max_messages, usage.messages),
            ("max_events", self.max_events, usage.events),
            ("max_bytes", self.max_bytes, usage.bytes),
        ]
        .into_iter()
        .find_map(|(name, limit, used)| limit.filter(|limit| used > *limit).map(|limit| (name, limit, used)))
    }

    /// The error for an append over a limit.
    pub fn refuse(&self, usage: &Usage) -> Error {
        let text = format!(
            "{}; `compact` the conversation, raise the limit, or set policy.budget.recovery to trim or compact",
            self.over(usage)
        );
        Error::too_large("budget.exceeded", text)
    }

    /// The error for an append that exceeds a limit by itself, so that no trimming helps.
    pub fn refuse_alone(&self, incoming: &Usage) -> Error {
        let (name, limit, used) = self.first_over(incoming);
        let text = format!(
            "policy.budget.{name} is {limit}, and this append alone has {used}; append less at a time, or raise the limit"
        );
        Error::too_large("budget.exceeded", text)
    }

    /// The error for an append without room, because the remaining events cannot leave the view.
    pub fn refuse_events(&self, usage: &Usage) -> Error {
        let text = format!(
            "{}, and pins, scratchpads, pending approvals and tools cannot leave; remove or resolve some, or raise the limit",
            self.over(usage)
        );
        Error::too_large("budget.exceeded", text)
    }

    /// The limit that a usage is over.
    pub fn over(&self, usage: &Usage) -> String {
        let (name, limit, used) = self.first_over(usage);
        format!("policy.budget.{name} is {limit}, this would make it {used}")
    }

    fn first_over(&self, usage: &Usage) -> (&'static str, u64, u64) {
        self.exceeded(usage).unwrap_or(("max_messages", 0, 0))
    }
}

/// Size of a messages view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Number of turns that are neither superseded nor aborted.
    pub messages: u64,
    /// Number of events since the start of the view.
    pub events: u64,
    /// Size of those turns' messages, in bytes.
    pub bytes: u64,
}

impl Usage {
    /// The sum of both.
    pub fn plus(self, more: Usage) -> Usage {
        Usage {
            messages: self.messages + more.messages,
            events: self.events + more.events,
            bytes: self.bytes + more.bytes,
        }
    }
}

/// The body of a `transcript_budget` event; also shown as `transcript_budget.last_action` of a conversation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BudgetAction {
    /// `reject`, `trim` or `compact`.
    pub action: String,
    /// The operation that hit the limit.
    pub source: String,
    /// The limit that was hit, with both numbers.
    pub reason: String,
    /// The policy in force.
    pub policy: Value,
    /// Usage before the append.
    pub usage_before: Usage,
    /// Usage that the append would have caused.
    pub usage_attempted: Usage,
    /// Usage afterwards.
    pub usage_after: Usage,
    /// Number of turns that left the view.
    pub removed_messages: u64,
    /// Number of events that left the view.
    pub removed_events: u64,
    /// New start of the view, if it was trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trimmed: Option<Summarized>,
    /// The events that left the view without their turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<EventsLeft>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BudgetPolicy, Error> {
        BudgetPolicy::parse(&Raw::new(text.to_string()).unwrap())
    }

    #[test]
    fn a_policy_is_read_strictly() {
        let all = parse(
            r#"{"max_messages":10,"max_events":null,"max_bytes":5,"recovery":{"trim":{"keep_last":3}}}"#,
        );
        assert_eq!(
            all.unwrap(),
            BudgetPolicy {
                max_messages: Some(10),
                max_events: None,
                max_bytes: Some(5),
                recovery: Some(BudgetRecovery::Trim { keep_last: 3 })
            }
        );
        assert_eq!(parse("{}").unwrap(), BudgetPolicy::default());
        for (text, named) in [
            ("[]", "policy.budget must be an object"),
            (r#"{"max_messages":-1}"#, "policy.budget.max_messages"),
            (r#"{"max_messages":0}"#, "policy.budget.max_messages"),
            (r#"{"max_bytes":"many"}"#, "policy.budget.max_bytes"),
            (r#"{"recovery":"forget"}"#, "policy.budget.recovery"),
            (r#"{"recovery":{"trim":{}}}"#, "policy.budget.recovery"),
            (r#"{"max_turns":1}"#, "policy.budget.max_turns is not known"),
        ] {
            assert!(parse(text).unwrap_err().text().contains(named), "{text}");
        }
    }

    #[test]
    fn the_default_recovery_is_compact_where_automatic_compaction_is_on() {
        let compact = |text: &str| parse(text).unwrap().with_recovery(true).recovery.unwrap();
        assert_eq!(compact("{}"), BudgetRecovery::Compact { keep_last: KEEP_LAST });
        assert_eq!(compact(r#"{"max_messages":10}"#), BudgetRecovery::Compact { keep_last: 5 });
        assert_eq!(compact(r#"{"recovery":"reject"}"#), BudgetRecovery::Reject);
        assert!(parse("{}").unwrap().with_recovery(false).rejects());
    }

    #[test]
    fn exceeding_means_strictly_greater() {
        let policy = BudgetPolicy { max_messages: Some(2), ..BudgetPolicy::default() };
        assert_eq!(policy.exceeded(&Usage { messages: 2, ..Usage::default() }), None);
        let over = Usage { messages: 3, ..Usage::default() };
        assert_eq!(policy.exceeded(&over), Some(("max_messages", 2, 3)));
        assert!(
            policy.refuse(&over).text().starts_with("policy.budget.max_messages is 2, this would make it 3")
        );
    }
}
