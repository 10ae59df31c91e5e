//! Options of a view: a name, or an object that is parsed strictly.

use super::custom::Projector;
use super::hash;
use crate::state::Scratchpad;
use everturn_core::Error;
use everturn_core::id::clip;
use everturn_core::redaction::{RedactionMode, mask, redact};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of policies in one list.
pub const POLICIES_MAX: usize = 16;

/// Options of a view.
#[derive(Clone, Default)]
pub struct ViewOptions {
    /// Policies, applied in this order, each to the result of the one before it.
    pub policies: Vec<ProjectionPolicy>,
    /// Treatment of messages with signed reasoning.
    pub signatures: Signatures,
    /// Reason to record in the event, instead of a derived one.
    pub reason: Option<String>,
    /// `summary_prefix`: number of messages at the end that are kept unchanged.
    pub keep_last: usize,
    /// `summary_prefix`: text that replaces the rest.
    pub summary: Option<String>,
    /// Options of `reachability_gc`.
    pub reachability: Reachability,
    /// Options of `clear_tool_uses`.
    pub clearing: Clearing,
    /// Number of tokens to be gained before previous decisions are revised.
    pub freeze: Option<u64>,
    /// `custom`: the script given as `projector`, to be run by the caller.
    pub script: Option<Value>,
    /// `custom`: the projector to run.
    pub projector: Option<Arc<dyn Projector>>,
    /// The request as the event records it.
    pub(super) record: Value,
}

impl std::fmt::Debug for ViewOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name(), self.record)
    }
}

/// A policy that selects messages for the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProjectionPolicy {
    /// Everything.
    Raw,
    /// Removes failed calls whose tool succeeded later.
    CleanToolRepair,
    /// Removes failed calls.
    SquashFailedCalls,
    /// Replaces the beginning by a summary.
    SummaryPrefix,
    /// Removes the bodies of old tool results that nothing refers to.
    ReachabilityGc,
    /// Removes the bodies of old tool results.
    ClearToolUses,
    /// Applies a projector.
    Custom,
}

impl ProjectionPolicy {
    /// The name in options, results and events.
    pub fn name(self) -> &'static str {
        match self {
            ProjectionPolicy::Raw => "raw",
            ProjectionPolicy::CleanToolRepair => "clean_tool_repair",
            ProjectionPolicy::SquashFailedCalls => "squash_failed_calls",
            ProjectionPolicy::SummaryPrefix => "summary_prefix",
            ProjectionPolicy::ReachabilityGc => "reachability_gc",
            ProjectionPolicy::ClearToolUses => "clear_tool_uses",
            ProjectionPolicy::Custom => "custom",
        }
    }

    fn parse(value: &Value) -> Result<ProjectionPolicy, Error> {
        let Some(name) = value.as_str() else {
            return Err(wrong(
                "policy",
                "must be a name or a list of names; options stand beside it, as in \
                 {\"policy\":\"reachability_gc\",\"root_window\":2}",
            ));
        };
        Ok(match name {
            "raw" | "identity" | "" => ProjectionPolicy::Raw,
            "clean_tool_repair" => ProjectionPolicy::CleanToolRepair,
            "squash_failed_calls" => ProjectionPolicy::SquashFailedCalls,
            "summary_prefix" => ProjectionPolicy::SummaryPrefix,
            "reachability_gc" | "context_gc" | "tool_result_gc" => ProjectionPolicy::ReachabilityGc,
            "clear_tool_uses" => ProjectionPolicy::ClearToolUses,
            "custom" => ProjectionPolicy::Custom,
            _ => {
                return Err(wrong(
                    "policy",
                    format!(
                        "{} is unknown; use raw, clean_tool_repair, squash_failed_calls, summary_prefix, \
                         reachability_gc, clear_tool_uses or custom",
                        clip(&value.to_string())
                    ),
                ));
            }
        })
    }
}

/// Treatment of messages with signed reasoning, which a provider rejects if changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Signatures {
    /// A view that would drop or change one is raw instead.
    #[default]
    Respect,
    /// Their turns are kept; the rest of the policy applies.
    PerTurn,
    /// They are treated like any other message; for views that no provider will see.
    Ignore,
}

/// Options of `reachability_gc`.
#[derive(Clone, Debug)]
pub struct Reachability {
    /// Number of last messages, which are roots and stay unchanged.
    pub root_window: usize,
    /// Minimum length of a body to be reclaimed.
    pub min_chars: usize,
    /// Additional roots, with the names of their fields.
    pub roots: Vec<(&'static str, Value)>,
    /// Whether to reclaim only if a write barrier is given.
    pub require_write_barrier: bool,
    /// Whether a write barrier is given.
    pub write_barrier: bool,
    /// Whether to keep results that a kept result refers to.
    pub transitive: bool,
}

impl Default for Reachability {
    fn default() -> Reachability {
        Reachability {
            root_window: 8,
            min_chars: 500,
            roots: Vec::new(),
            require_write_barrier: false,
            write_barrier: false,
            transitive: false,
        }
    }
}

/// Options of `clear_tool_uses`, with the defaults of Anthropic's context editing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clearing {
    /// Size of the view above which clearing starts.
    pub trigger: Trigger,
    /// Number of newest results to keep.
    pub keep: usize,
    /// Minimum number of tokens to clear; below it nothing is cleared.
    pub clear_at_least: u64,
    /// Tools whose results are kept.
    pub exclude_tools: Vec<String>,
    /// Whether to clear the arguments of the calls as well.
    pub clear_inputs: bool,
}

/// Condition for clearing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// The messages have more tokens than this, estimated.
    InputTokens(u64),
    /// They contain more calls than this.
    ToolUses(u64),
}

impl Trigger {
    /// Whether a view of this size is cleared.
    pub(super) fn is_exceeded(self, size: u64) -> bool {
        let (Trigger::InputTokens(most) | Trigger::ToolUses(most)) = self;
        size > most
    }
}

impl Default for Clearing {
    fn default() -> Clearing {
        Clearing {
            trigger: Trigger::InputTokens(100_000),
            keep: 3,
            clear_at_least: 0,
            exclude_tools: Vec::new(),
            clear_inputs: false,
        }
    }
}

const POLICY: [&str; 3] = ["policy", "kind", "strategy"];
const MIN_CHARS: [&str; 3] = ["min_chars", "min_reclaim_chars", "tool_result_min_chars"];
const ROOTS: [&str; 5] = ["roots", "active_plan", "scratchpad", "pending_tool_args", "unresolved_findings"];
const BARRIERS: [&str; 3] = ["write_barrier", "write_barrier_refs", "barrier_refs"];
const OTHERS: [&str; 14] = [
    "respect_provider_signatures",
    "reason",
    "keep_last",
    "summary",
    "root_window",
    "recent_messages",
    "require_write_barrier",
    "transitive",
    "trigger",
    "keep",
    "clear_at_least",
    "exclude_tools",
    "clear_inputs",
    "freeze",
];

/// Key of the event that lists the live scratchpads.
pub(super) const SCRATCHPADS: &str = "scratchpads";

impl ViewOptions {
    /// Options for one policy, with defaults for everything else.
    pub fn policy(policy: ProjectionPolicy) -> ViewOptions {
        ViewOptions {
            policies: vec![policy],
            record: json!({"policy": policy.name()}),
            ..ViewOptions::default()
        }
    }

    /// Options for `custom` with the projector to run.
    pub fn custom(projector: impl Projector + 'static) -> ViewOptions {
        ViewOptions { projector: Some(Arc::new(projector)), ..ViewOptions::policy(ProjectionPolicy::Custom) }
    }

    /// Refuses `custom` without a projector: it could never be run.
    pub fn check_projector(&self) -> Result<(), Error> {
        if self.policies.contains(&ProjectionPolicy::Custom) { self.projector().map(drop) } else { Ok(()) }
    }

    pub(super) fn projector(&self) -> Result<&Arc<dyn Projector>, Error> {
        self.projector.as_ref().ok_or_else(|| wrong("projector", "is missing; custom needs one"))
    }

    /// Parses a name or an object. A field that no policy knows is an error; a field of another policy is not,
    /// so that one object can serve several. `null` means absent.
    pub fn parse(value: &Value) -> Result<ViewOptions, Error> {
        let empty = Map::new();
        let given = match value {
            Value::Null => &empty,
            Value::String(_) => return Ok(ViewOptions::policy(ProjectionPolicy::parse(value)?)),
            Value::Object(given) => given,
            _ => return Err(wrong("options", "must be the name of a policy or an object")),
        };
        let known = |key: &str| {
            [&POLICY[..], &MIN_CHARS, &ROOTS, &BARRIERS, &OTHERS, &["projector"]]
                .iter()
                .any(|names| names.contains(&key))
        };
        if let Some(key) = given.keys().find(|key| !known(key)) {
            return Err(wrong(clip(key).as_ref(), "is not an option of a projection; remove it"));
        }
        let fields = Fields(given);
        let policies = match fields.one_of(&POLICY)? {
            None => vec![ProjectionPolicy::Raw],
            Some((_, Value::Array(list))) if list.is_empty() => {
                return Err(wrong("policy", "is an empty list; name a policy, or raw"));
            }
            Some((_, Value::Array(list))) if list.len() > POLICIES_MAX => {
                let (max, got) = (POLICIES_MAX as u64, list.len() as u64);
                return Err(Error::limit("POLICIES_MAX", max, got, "name fewer policies"));
            }
            Some((_, Value::Array(list))) => {
                list.iter().map(ProjectionPolicy::parse).collect::<Result<_, _>>()?
            }
            Some((_, one)) => vec![ProjectionPolicy::parse(one)?],
        };
        let (gc, clear) = (Reachability::default(), Clearing::default());
        let keep_last = fields.number("keep_last")?;
        let root_window = match (fields.number("root_window")?, fields.number("recent_messages")?) {
            (Some(_), Some(_)) => {
                return Err(wrong("recent_messages", "is another name of root_window; give one of them"));
            }
            (given, alias) => given.or(alias).or(keep_last),
        };
        let mut roots = Vec::new();
        for name in ROOTS {
            if let Some(value) = fields.get(name) {
                roots.push((name, value.clone()));
            }
        }
        Ok(ViewOptions {
            policies,
            signatures: match fields.get("respect_provider_signatures") {
                None | Some(Value::Bool(true)) => Signatures::Respect,
                Some(Value::Bool(false)) => Signatures::Ignore,
                Some(Value::String(word)) if word == "per_turn" => Signatures::PerTurn,
                Some(_) => {
                    return Err(wrong("respect_provider_signatures", "must be true, false or \"per_turn\""));
                }
            },
            reason: fields.text("reason")?,
            keep_last: size(keep_last, 0),
            summary: fields.text("summary")?,
            reachability: Reachability {
                root_window: size(root_window, gc.root_window),
                min_chars: match fields.one_of(&MIN_CHARS)? {
                    Some((name, _)) => size(fields.number(name)?, gc.min_chars),
                    None => gc.min_chars,
                },
                roots,
                require_write_barrier: fields.flag("require_write_barrier")?,
                write_barrier: BARRIERS.iter().any(|name| fields.get(name).is_some_and(|v| !is_blank(v))),
                transitive: fields.flag("transitive")?,
            },
            clearing: Clearing {
                trigger: match fields.knob("trigger", &["input_tokens", "tool_uses"])? {
                    None => clear.trigger,
                    Some(("tool_uses", value)) => Trigger::ToolUses(value),
                    Some((_, value)) => Trigger::InputTokens(value),
                },
                keep: size(fields.knob("keep", &["tool_uses"])?.map(|(_, n)| n), clear.keep),
                clear_at_least: fields.knob("clear_at_least", &["input_tokens"])?.map_or(0, |(_, n)| n),
                exclude_tools: match fields.get("exclude_tools") {
                    None => Vec::new(),
                    Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
                        names.iter().filter_map(|name| name.as_str().map(str::to_string)).collect()
                    }
                    Some(_) => return Err(wrong("exclude_tools", "must be a list of tool names")),
                },
                clear_inputs: fields.flag("clear_inputs")?,
            },
            freeze: fields.number("freeze")?,
            script: fields.get("projector").cloned(),
            projector: None,
            record: record(given),
        })
    }

    /// The same with the secrets in given texts masked, if the mode says so.
    pub fn redacted(mut self, mode: RedactionMode) -> Result<ViewOptions, Error> {
        if mode == RedactionMode::Mask {
            for given in self.summary.iter_mut().chain(&mut self.reason) {
                *given = mask(given, &mut Vec::new()).into_owned();
            }
            if let (Cow::Owned(masked), _) = redact(&self.record.to_string(), mode)? {
                self.record = serde_json::from_str(&masked).unwrap_or_default();
            }
        }
        Ok(self)
    }

    /// Makes the scratchpads in force roots of `reachability_gc`, and their versions its write barrier.
    pub fn with_scratchpads(mut self, live: &BTreeMap<String, Scratchpad>) -> ViewOptions {
        if live.is_empty() || !self.policies.contains(&ProjectionPolicy::ReachabilityGc) {
            return self;
        }
        let values = live.iter().map(|(name, pad)| (name.clone(), pad.value.read().unwrap_or_default()));
        self.reachability.roots.push(("scratchpad", Value::Object(values.collect())));
        self.reachability.write_barrier = true;
        let versions = live.iter().map(|(name, pad)| format!("scratchpad:{name}@{}", pad.seq));
        self.record[SCRATCHPADS] = versions.collect();
        self
    }

    /// The names of the policies, joined by `+`.
    pub(super) fn name(&self) -> String {
        let names: Vec<_> = self.policies.iter().map(|policy| policy.name()).collect();
        if names.is_empty() { ProjectionPolicy::Raw.name().to_string() } else { names.join("+") }
    }
}

/// The options as recorded in the event. Material that may be large, or that is not part of the log, is
/// recorded as its hash, which is enough to compare it.
fn record(given: &Map<String, Value>) -> Value {
    let hashed = |key: &str| ROOTS.contains(&key) || BARRIERS.contains(&key) || key == "projector";
    let shown = given.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| {
        (key.clone(), if hashed(key) { hash::of_value(value).into() } else { value.clone() })
    });
    Value::Object(shown.collect())
}

/// Whether a value is empty: null, false, white space, or a container of only such values.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.iter().all(is_blank),
        Value::Object(fields) => fields.values().all(is_blank),
        _ => false,
    }
}

fn size(given: Option<u64>, default: usize) -> usize {
    given.map_or(default, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

pub(super) fn wrong(field: &str, what: impl std::fmt::Display) -> Error {
    Error::invalid("projection.option", format!("{field} {what}"))
}

struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A field with several names; giving two of them is an error.
    fn one_of(&self, names: &[&'static str]) -> Result<Option<(&'static str, &'a Value)>, Error> {
        let mut given = names.iter().filter_map(|name| Some((*name, self.get(name)?)));
        match (given.next(), given.next()) {
            (Some((first, _)), Some((second, _))) => {
                Err(wrong(second, format_args!("is another name of {first}; give one of them")))
            }
            (first, _) => Ok(first),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Error> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => {
                value.as_u64().map(Some).ok_or_else(|| wrong(name, "must be a non-negative whole number"))
            }
        }
    }

    fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.get(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| wrong(name, "must be true or false")),
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>, Error> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.clone())),
            Some(_) => Err(wrong(name, "must be non-blank text")),
        }
    }

    /// A number, or `{type, value}` where the type is one of those allowed; a plain number is of the first.
    fn knob(&self, name: &str, kinds: &[&'static str]) -> Result<Option<(&'static str, u64)>, Error> {
        let given = match self.get(name) {
            Some(Value::Object(given)) => given,
            _ => return Ok(self.number(name)?.map(|value| (kinds[0], value))),
        };
        let kind = given.get("type").and_then(Value::as_str);
        let kind = kinds.iter().find(|known| Some(**known) == kind);
        match (kind, given.get("value").and_then(Value::as_u64)) {
            (Some(kind), Some(value)) if given.len() == 2 => Ok(Some((kind, value))),
            _ => Err(wrong(
                name,
                format_args!(
                    "must be a number or {{type: {}, value}} with a non-negative whole number",
                    kinds.join(" | ")
                ),
            )),
        }
    }
}
