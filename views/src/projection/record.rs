//! Rebuilding a view from its event.
//!
//! The event records the decisions, not only the policy: a few numbers from which the view follows without the
//! roots, the summary or the projector of that time.

use super::edit::Edit;
use super::options::{SCRATCHPADS, ViewOptions, wrong};
use super::part::is_valid;
use super::pointer::Pointer;
use super::{Decided, Message, ProjectedView, ProjectionPolicy, Shown, Signatures, hash, reclaimed};
use everturn_core::Error;
use everturn_core::json::Raw;
use everturn_core::pairing::BlockPath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Decisions that the result does not contain: removed parts and inserted messages.
#[derive(Serialize)]
pub(super) struct Choices<'v> {
    messages: usize,
    edits: Vec<Taken>,
    synthetic: Vec<PutIn<'v>>,
}

#[derive(Serialize)]
struct Taken {
    index: usize,
    removed: Vec<String>,
}

#[derive(Serialize)]
struct PutIn<'v> {
    at: usize,
    message: &'v Raw,
}

/// `None` if a projector wrote messages of its own, which only the projector can reproduce.
pub(super) fn decisions<'v>(shown: &'v [Shown<'_>], messages: usize) -> Option<Choices<'v>> {
    let (mut edits, mut synthetic) = (Vec::new(), Vec::new());
    let mut next = 0;
    for (at, shown) in shown.iter().enumerate() {
        match shown.source {
            Some(source) if !shown.foreign && source >= next => {
                next = source + 1;
                let removed = &shown.edit().removed;
                if !removed.is_empty() {
                    let removed = removed.iter().map(BlockPath::to_string).collect();
                    edits.push(Taken { index: source, removed });
                }
            }
            None if shown.value().pointer("/_harn_projection/policy") == Some(&"summary_prefix".into()) => {
                synthetic.push(PutIn { at, message: shown.raw() });
            }
            _ => return None,
        }
    }
    Some(Choices { messages, edits, synthetic })
}

/// A view as recorded in an event's metadata.
pub(super) struct Recorded {
    pub(super) prefix_hash: String,
    /// Number of messages at the time.
    pub(super) messages: usize,
    policy: String,
    options: Value,
    kept: HashSet<usize>,
    edits: HashMap<usize, Edit>,
    synthetic: HashMap<usize, Value>,
}

#[derive(Deserialize)]
struct Metadata {
    policy: String,
    prefix_hash: String,
    source_indices: Vec<Option<usize>>,
    redaction_pointers: Vec<Value>,
    options: Value,
    decisions: Option<Decisions>,
}

#[derive(Deserialize)]
struct Decisions {
    messages: usize,
    edits: Vec<Removed>,
    synthetic: Vec<Synthetic>,
}

#[derive(Deserialize)]
struct Removed {
    index: usize,
    removed: Vec<String>,
}

#[derive(Deserialize)]
struct Synthetic {
    at: usize,
    message: Value,
}

fn unfit(what: impl std::fmt::Display) -> Error {
    Error::invalid(
        "projection.metadata",
        format!("not the metadata of a transcript.projection event: {what}"),
    )
}

impl Recorded {
    /// `None` if the view cannot be rebuilt.
    pub(super) fn read(metadata: &Value) -> Result<Option<Recorded>, Error> {
        let metadata = Metadata::deserialize(metadata).map_err(unfit)?;
        let Some(decisions) = metadata.decisions else { return Ok(None) };
        let mut edits: HashMap<usize, Edit> = HashMap::new();
        for Removed { index, removed } in decisions.edits {
            let place = |text: &String| {
                BlockPath::read(text).ok_or_else(|| unfit(format_args!("{text} is not a place in a message")))
            };
            edits.entry(index).or_default().removed = removed.iter().map(place).collect::<Result<_, _>>()?;
        }
        for pointer in &metadata.redaction_pointers {
            let pointer = Pointer::read(pointer)?;
            edits.entry(pointer.source_index).or_default().pointers.push(pointer);
        }
        Ok(Some(Recorded {
            prefix_hash: metadata.prefix_hash,
            messages: decisions.messages,
            policy: metadata.policy,
            options: metadata.options,
            kept: metadata.source_indices.into_iter().flatten().collect(),
            edits,
            synthetic: decisions.synthetic.into_iter().map(|one| (one.at, one.message)).collect(),
        }))
    }

    /// The view's messages, rebuilt from those given.
    pub(super) fn shown<'a>(&self, messages: &'a [Message]) -> Result<Vec<Shown<'a>>, Error> {
        let then = messages.get(..self.messages).ok_or_else(|| {
            Error::conflict(
                "projection.replay",
                format!("the view was made of {} messages, here are {}", self.messages, messages.len()),
            )
        })?;
        let mut out = Vec::with_capacity(then.len());
        let put_in = |out: &mut Vec<Shown<'a>>| -> Result<(), Error> {
            while let Some(message) = self.synthetic.get(&out.len()) {
                out.push(Shown::written(Message::of(message.clone())?, None));
            }
            Ok(())
        };
        for (index, message) in then.iter().enumerate().filter(|(index, _)| self.kept.contains(index)) {
            put_in(&mut out)?;
            let mut shown = Shown::raw_from(index, message);
            if let Some(edit) = self.edits.get(&index) {
                shown.change(messages, edit.clone())?;
            }
            out.push(shown);
        }
        put_in(&mut out)?;
        Ok(out)
    }
}

/// Whether the request was the same, apart from fields that change with every turn.
pub(super) fn is_same_request(policy: &str, recorded: &Value, options: &ViewOptions) -> bool {
    const PASSING: [&str; 12] = [
        "reason",
        "freeze",
        "summary",
        "roots",
        "active_plan",
        "scratchpad",
        "pending_tool_args",
        "unresolved_findings",
        "write_barrier",
        "write_barrier_refs",
        "barrier_refs",
        SCRATCHPADS,
    ];
    fn lasting(options: &Value) -> BTreeMap<&str, &Value> {
        let fields = options.as_object().into_iter().flatten();
        let fields = fields.filter(|(key, _)| !PASSING.contains(&key.as_str()));
        fields.map(|(key, value)| (key.as_str(), value)).collect()
    }
    policy == options.name() && lasting(recorded) == lasting(&options.record)
}

/// The previous view.
#[derive(Default)]
pub(super) struct Earlier<'a> {
    pub(super) shown: Vec<Shown<'a>>,
    /// Number of messages of the transcript at the time.
    pub(super) messages: usize,
    pub(super) is_same_request: bool,
}

impl<'a> Earlier<'a> {
    /// The view that an event records. It is empty if it cannot be rebuilt, or if the messages have changed since, as
    /// after a compaction: then no earlier decision applies to them.
    pub(super) fn recorded(
        metadata: &Value,
        messages: &'a [Message],
        options: &ViewOptions,
    ) -> Result<Earlier<'a>, Error> {
        let recorded = Recorded::read(metadata)?;
        let shown = recorded.as_ref().and_then(|recorded| recorded.shown(messages).ok());
        Ok(match (recorded, shown) {
            (Some(recorded), Some(shown)) if hash_of(&shown) == recorded.prefix_hash => Earlier {
                shown,
                messages: recorded.messages,
                is_same_request: is_same_request(&recorded.policy, &recorded.options, options),
            },
            _ => Earlier::default(),
        })
    }

    /// With `freeze`, keeps its decisions until enough can be gained. Returns an estimate of the number of unchanged
    /// tokens at the start.
    pub(super) fn keep(
        self,
        messages: &'a [Message],
        options: &ViewOptions,
        decided: &mut Decided<'a>,
    ) -> usize {
        if let Some(gain) = options.freeze
            && !decided.blocked
            && self.is_same_request
        {
            let mut frozen = self.shown.clone();
            frozen.extend((self.messages..messages.len()).map(|i| Shown::raw_from(i, &messages[i])));
            let (fresh, kept) = (reclaimed(messages, &decided.shown).1, reclaimed(messages, &frozen).1);
            // A call that was hidden while it waited may have its result by now; then the decisions cannot be kept.
            if (fresh.saturating_sub(kept) as u64) < gain && is_valid(messages, &frozen) {
                decided.shown = frozen;
                decided.reasons = vec![format!("{}_frozen", options.name())];
            }
        }
        let same = decided.shown.iter().zip(&self.shown).take_while(|(now, then)| now.is_same(then));
        same.map(|(now, _)| now.message.chars()).sum::<usize>() / 4
    }
}

fn hash_of(shown: &[Shown<'_>]) -> String {
    hash::of_messages(shown.iter().map(|shown| &*shown.message))
}

/// Rebuilds a view from the metadata of its event. `messages` are those of that time; later ones are ignored.
pub fn replay<'a>(messages: &'a [Message], metadata: &Value) -> Result<ProjectedView<'a>, Error> {
    let Some(recorded) = Recorded::read(metadata)? else {
        let what = "was made by a projector that wrote messages of its own; run that projector again";
        return Err(Error::invalid("projection.replay", format!("the view {what}")));
    };
    let shown = recorded.shown(messages)?;
    for pointer in shown.iter().flat_map(|shown| &shown.edit().pointers) {
        super::resolve_pointer(messages, &json!(pointer))?;
    }
    let found = hash_of(&shown);
    if found != recorded.prefix_hash {
        return Err(Error::conflict(
            "projection.replay",
            format!(
                "the view is {found}, the event says {}; of the messages {} are shown, and at least one of them is \
                 not what it was",
                recorded.prefix_hash,
                shown.len()
            ),
        ));
    }
    let flag = |name: &str| metadata.get(name) == Some(&Value::Bool(true));
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).map(str::to_string);
    let indices = |name: &str| Vec::<usize>::deserialize(metadata.get(name)?).ok();
    let policies = recorded.policy.split('+').map(|name| match ViewOptions::parse(&name.into()) {
        Ok(options) => Ok(options.policies[0]),
        Err(_) => Err(wrong("policy", "of the event is unknown")),
    });
    let options = ViewOptions {
        policies: policies.collect::<Result<Vec<ProjectionPolicy>, Error>>()?,
        signatures: if flag("respects_provider_signatures") {
            Signatures::Respect
        } else {
            Signatures::Ignore
        },
        keep_last: metadata.get("summary_keep_last").and_then(Value::as_u64).unwrap_or_default() as usize,
        record: recorded.options,
        ..ViewOptions::default()
    };
    let roots = metadata.get("roots_consulted").and_then(Value::as_array).into_iter().flatten();
    let decided = Decided {
        shown,
        reasons: vec![text("reason").unwrap_or_default()],
        roots: roots.filter_map(|root| root.as_str().map(str::to_string)).collect(),
        blocked: flag("provider_safety_blocked"),
        claim: indices("kept_indices").zip(indices("dropped_indices")),
    };
    let unchanged = metadata.get("unchanged_leading_tokens").and_then(Value::as_u64);
    Ok(decided.view(&messages[..recorded.messages], &options, found, unchanged.map(|tokens| tokens as usize)))
}
