//! Compaction: a checkpoint replaces older turns in prompts. It only appends, and only once the checkpoint exists.

use super::ConversationCompaction;
use crate::caller::redact;
use crate::conversation::ConversationHandle;
use crate::everturn::Shared;
use crate::model::{self, Summarizer};
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{CheckpointRef, Conversation, Retention};
use everturn_core::error::code;
use everturn_core::event::{Draft, kind};
use everturn_core::id::{ConversationId, EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::policy::{CompactionPolicy, CompactionStrategy, is_due};
use everturn_core::turn::{Status, Turn};
use everturn_core::write::{Action, Summarized, Write};
use everturn_store::TurnQuery;
use everturn_views::compaction::{self, Candidate, Checkpoint, CompactionBody, Covers, Cut, EXTRACTIVE};
use everturn_views::speech;
use everturn_views::tokens::TokenizerFamily;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Most turns that are read at once. A compaction on request goes on from there, an automatic one leaves the rest to the
/// next.
pub const COVERED_TURNS_MAX: usize = 4096;
/// A message with more bytes is read in part: see [`shortened`].
const LARGE_MESSAGE_BYTES: usize = 256 * 1024;
/// Bytes that are read at either end of a large message's texts.
const LARGE_TEXT_END_BYTES: usize = 16 * 1024;
/// Most attempts at a checkpoint while text it covers is being erased.
const ERASED_ATTEMPTS: usize = 5;
/// Most turns that are summarized again before an erasure returns; the rest follow in the background.
const ANEW_AT_ONCE_TURNS_MAX: u64 = 256;
/// Additional instruction to a model for turns that are erased afterwards.
const UNQUOTED: &str = "The covered turns are erased afterwards. Quote nothing from them: say everything in your own words, \
                        and name only tools and files. Leave critical_identifiers empty.";
/// Most requests to a summarizer before the checkpoint is extracted instead.
const ATTEMPTS: usize = 2;

/// Options of a manual compaction.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompactOptions {
    /// Dry run: return the checkpoint without writing it.
    pub dry_run: bool,
    /// Number of turns at the end to leave as they are, instead of the policy's.
    pub keep_last: Option<usize>,
    /// Do not ask a model.
    pub extractive: bool,
}

/// Result of a compaction or of its dry run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Compacted {
    /// The event; null for a dry run.
    pub event: Option<EventId>,
    /// The checkpoint that replaces the turns in prompts.
    pub checkpoint: Checkpoint,
    /// The newly covered turns.
    pub covers: Covers,
    /// The model, or `extractive`.
    pub summarizer: String,
    /// Prompt tokens of the covered turns and the previous checkpoint.
    pub tokens_before: u64,
    /// Prompt tokens of the checkpoint.
    pub tokens_after: u64,
    /// Turns whose content was erased because the conversation's retention asks for it.
    pub erased: usize,
}

/// A summary of a part of a conversation. Nothing is written.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Summary {
    /// The summarized turns.
    pub covers: Covers,
    /// The model, or `extractive`.
    pub summarizer: String,
    /// The summary.
    pub checkpoint: Checkpoint,
}

/// Purpose of a compaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Shorter prompts: a checkpoint that is no shorter than what it covers is not written.
    Shorten,
    /// The turns must be covered, however long the checkpoint is.
    Cover,
}

/// Turns that no summary covers yet, read once.
pub(crate) struct Unsummarized {
    shared: Arc<Shared>,
    /// Number of erasures before the turns were read.
    mark: u64,
    pub conversation: Conversation,
    /// Checkpoint of the turns before them, and where it is. `None` if it was erased, or if turns that it covers were
    /// edited since and no earlier one is without them.
    previous: Option<(CheckpointRef, Checkpoint)>,
    turns: Vec<Turn>,
    /// Bytes of their messages.
    bytes: u64,
    /// Token counts of turns whose messages are read in part.
    large: HashMap<TurnId, u64>,
    /// Message and token count of each turn, computed on demand: usually there are too few turns to need them.
    contents: OnceCell<Vec<(Option<Value>, u64)>>,
    barrier: Option<u64>,
}

impl Unsummarized {
    fn contents(&self) -> &[(Option<Value>, u64)] {
        let content = |turn: &Turn| {
            let message = turn.value();
            // Counts are cached for whole messages only.
            let count = |message| match turn.hidden {
                true => TokenizerFamily::default().message(message),
                false => self.shared.count(TokenizerFamily::default(), turn.id, message),
            };
            let large = self.large.get(&turn.id).copied();
            let tokens = large.unwrap_or_else(|| message.as_ref().map_or(0, count));
            (message, tokens)
        };
        self.contents.get_or_init(|| self.turns.iter().map(content).collect())
    }

    fn candidates(&self) -> Vec<Candidate<'_>> {
        let turns = self.turns.iter().zip(self.contents());
        turns
            .map(|(turn, (message, tokens))| Candidate {
                turn: turn.id,
                seq: turn.place,
                role: speech::of_turn(turn).role,
                actor: turn.actor.as_deref(),
                at: turn.occurred_at.unwrap_or(turn.created),
                message: message.as_ref(),
                tokens: *tokens,
            })
            .collect()
    }

    /// Whether nothing can be due, without counting tokens: a text has no more tokens than bytes.
    fn is_short(&self, policy: &CompactionPolicy) -> bool {
        policy.strategy != CompactionStrategy::Threshold
            && self.turns.len() as u64 <= policy.max_turns
            && self.bytes <= policy.max_tokens
    }

    pub fn tokens(&self) -> u64 {
        self.contents().iter().map(|(_, tokens)| tokens).sum()
    }

    /// Token count of the previous checkpoint.
    fn previous_tokens(&self) -> u64 {
        let previous = self.previous.as_ref();
        previous
            .map_or(0, |(_, checkpoint)| TokenizerFamily::default().count(&compaction::render(checkpoint)))
    }

    pub fn len(&self) -> usize {
        self.turns.len()
    }
}

/// Keeps only the beginning and the end of a message's long texts, so that a conversation of large messages fits into
/// memory.
fn shortened(message: Value) -> Value {
    match message {
        Value::String(text) if text.len() > 2 * LARGE_TEXT_END_BYTES => {
            let start = text.floor_char_boundary(LARGE_TEXT_END_BYTES);
            let end = text.ceil_char_boundary(text.len() - LARGE_TEXT_END_BYTES);
            Value::String(format!("{}\n…\n{}", &text[..start], &text[end..]))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(shortened).collect()),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, shortened(value))).collect(),
        other => other,
    }
}

impl Tenant {
    fn compact_to(
        &self,
        unsummarized: &Unsummarized,
        policy: &CompactionPolicy,
        cut: Cut,
        options: &CompactOptions,
        purpose: Purpose,
    ) -> Result<Option<Compacted>, Error> {
        self.compact_through(unsummarized, policy, cut, None, options, purpose)
    }

    /// Compacts these turns and, if `until` is given, those after them that come before it, in one checkpoint.
    fn compact_through(
        &self,
        unsummarized: &Unsummarized,
        policy: &CompactionPolicy,
        mut cut: Cut,
        until: Option<u64>,
        options: &CompactOptions,
        purpose: Purpose,
    ) -> Result<Option<Compacted>, Error> {
        let conversation = &unsummarized.conversation;
        let span = compaction_span(conversation.id, &cut);
        let _entered = span.enter();
        let key = self.key(conversation.id);
        let previous = unsummarized.previous.as_ref().map(|(_, checkpoint)| checkpoint);
        let unquoted = conversation.retention != Retention::Full;
        let written_for = |part: &Unsummarized, turns: usize, previous: Option<&Checkpoint>| {
            let candidates = part.candidates();
            let (covered, kept) = candidates.split_at(turns);
            let asked = CheckpointRequest { extractive: options.extractive, unquoted, kept, style: None };
            self.write_checkpoint(policy, previous, covered, asked)
        };
        let mut written = written_for(unsummarized, cut.turns, previous);
        while let Some(until) = until {
            let after = Some((cut.to_seq + 1, conversation.head.seq));
            let part = self.conversation(key.id).unsummarized(after)?;
            let Some(next) = compaction::plan(&everything(policy), &part.candidates(), Some(until), true)
            else {
                break;
            };
            written = written_for(&part, next.turns, Some(&written.checkpoint));
            cut = Cut {
                turns: cut.turns + next.turns,
                tokens: cut.tokens + next.tokens,
                from_seq: cut.from_seq,
                ..next
            };
        }
        let tokens_before = cut.tokens + unsummarized.previous_tokens();
        let count =
            |checkpoint: &Checkpoint| TokenizerFamily::default().count(&compaction::render(checkpoint));
        // Counts of what is erased roll on, and are few.
        if !unquoted {
            match compaction::fitted(&written.checkpoint, |shown| count(shown) < tokens_before) {
                Some(fitted) => written.checkpoint = fitted,
                None if purpose == Purpose::Shorten => return Ok(None),
                None => {}
            }
        }
        let tokens_after = count(&written.checkpoint);
        span.record("gen_ai.request.model", written.summarizer.as_str());
        span.record("everturn.compaction.tokens_before", tokens_before);
        span.record("everturn.compaction.tokens_after", tokens_after);
        let covers = Covers { from_seq: cut.from_seq, to_seq: cut.to_seq, turns: cut.turns as u64 };
        let (after, before) =
            unsummarized.previous.as_ref().map_or((0, 0), |(at, _)| (at.through_seq, at.turns_before));
        // All turns of this range of `seq`: a view after it does not show the covered ones that were said later.
        let fallen_after = |seq| self.shared().journal.index.fallen_after(&key, seq);
        let turns = match cut.to_seq > after {
            true => (before + covers.turns + fallen_after(after)?).saturating_sub(fallen_after(cut.to_seq)?),
            false => before,
        };
        let mut compacted = Compacted {
            event: None,
            checkpoint: written.checkpoint.clone(),
            covers,
            summarizer: written.summarizer.clone(),
            tokens_before,
            tokens_after,
            erased: 0,
        };
        if options.dry_run {
            return Ok(Some(compacted));
        }
        let body = CompactionBody {
            checkpoint: Some(written.checkpoint),
            covers,
            summarized: Some(Summarized {
                through: cut.through,
                through_seq: cut.to_seq,
                turns_before: turns,
            }),
            previous: conversation.checkpoint,
            summarizer: written.summarizer,
            prompt_hash: written.prompt_hash,
            input_hash: written.input_hash,
            tokens_before,
            tokens_after,
            reverts: None,
            restores: None,
        };
        compacted.event = Some(self.conversation(key.id).append_compaction(&body, unsummarized.mark)?);
        let how = if compacted.summarizer == EXTRACTIVE { "extractive" } else { "model" };
        metrics::counter!("everturn_compactions_total", "summarizer" => how).increment(1);
        compacted.erased = self.conversation(conversation.id).compaction().apply_retention(cut.to_seq)?;
        Ok(Some(compacted))
    }

    /// Asks the summarizer, up to twice. Without one, or if it fails, the checkpoint is extracted.
    fn write_checkpoint(
        &self,
        policy: &CompactionPolicy,
        previous: Option<&Checkpoint>,
        covered: &[Candidate<'_>],
        asked: CheckpointRequest<'_>,
    ) -> Written {
        // An earlier checkpoint may quote, if the retention was another one.
        let outlined = previous.filter(|_| asked.unquoted).map(compaction::outline_of);
        let previous = outlined.as_ref().or(previous);
        let mut prompt = compaction::prompt(previous, covered);
        if asked.unquoted {
            prompt.system = format!("{}\n\n{UNQUOTED}", prompt.system);
        }
        if let Some(style) = asked.style {
            prompt.system = format!("{}\n\nWrite in this style: {style}", prompt.system);
        }
        let input_hash = Hash::of(prompt.user.as_bytes());
        let summarizer = if asked.extractive { None } else { self.summarizer(policy) };
        if let Some(summarizer) = summarizer {
            let mut system = prompt.system.clone();
            for attempt in 1..=ATTEMPTS {
                let time = Duration::from_secs(policy.timeout_s);
                let answer = model::wait_for(summarizer.summarize(&system, &prompt.user), Some(time))
                    .unwrap_or_else(|| {
                        let text = format!("no answer within {} s", policy.timeout_s);
                        Err(Error::busy("model.timeout", text))
                    });
                let checkpoint = answer.and_then(|answer| compaction::accept(&answer));
                let checkpoint = checkpoint.and_then(|checkpoint| match asked.unquoted {
                    true => compaction::check_unquoted(&checkpoint, covered).map(|()| checkpoint),
                    false => Ok(checkpoint),
                });
                match checkpoint {
                    Ok(mut checkpoint) => {
                        if !asked.unquoted {
                            compaction::complete(&mut checkpoint, previous, covered);
                        }
                        let prompt_hash = Some(Hash::of(system.as_bytes()));
                        return Written {
                            checkpoint,
                            summarizer: summarizer.name(),
                            prompt_hash,
                            input_hash,
                        };
                    }
                    Err(error) => {
                        tracing::warn!(
                            code = error.code(),
                            attempt,
                            summarizer = summarizer.name(),
                            "no checkpoint from the model"
                        );
                        system = format!(
                            "{}\n\nYour previous answer was refused: {}",
                            prompt.system,
                            error.text()
                        );
                    }
                }
            }
        }
        let checkpoint = match asked.unquoted {
            true => compaction::outline(previous, covered),
            false => compaction::extract_before(previous, covered, asked.kept),
        };
        Written { checkpoint, summarizer: EXTRACTIVE.into(), prompt_hash: None, input_hash }
    }

    fn summarizer(&self, policy: &CompactionPolicy) -> Option<Arc<dyn Summarizer>> {
        let name = policy.summarizer.as_deref();
        let found = self.generations().summarizer(name);
        if found.is_none()
            && let Some(name) = name
        {
            tracing::warn!(name, "no such summarizer is configured; the checkpoint is extracted");
        }
        found
    }
}

impl ConversationCompaction<'_> {
    /// Compacts now: a checkpoint replaces the oldest turns that no summary covers. Blocks while a model writes it.
    /// Nothing is removed: the history still has every turn. An error if the checkpoint would be no shorter than the turns.
    pub fn compact(&self, options: CompactOptions) -> Result<Compacted, Error> {
        self.compact_with(options, Purpose::Shorten)
    }

    pub(super) fn compact_with(&self, options: CompactOptions, purpose: Purpose) -> Result<Compacted, Error> {
        self.0.settle_if_due()?;
        unless_erased(|| self.0.compact_once(&options, purpose))
    }

    /// Reverts the last compaction: the checkpoint before it is in force again. Nothing is removed; the revert is an
    /// event too. Refused if the turns that it brings back are over the conversation's budget.
    pub fn revert(&self) -> Result<Conversation, Error> {
        let key = self.0.key();
        let conversation = self.0.shared().journal.index.conversation(key)?;
        let Some(current) = conversation.checkpoint else {
            let text = format!("{} has no compaction to revert", self.0.id());
            return Err(Error::invalid("compaction.none", text));
        };
        let body = |at: CheckpointRef| -> Result<Option<CompactionBody>, Error> {
            Ok(self.0.event_at(at.seq)?.and_then(|event| event.read::<CompactionBody>()))
        };
        let body_of_current = body(current)?.ok_or_else(|| {
            let text = format!("the compaction at seq {} was erased; `compact` makes a new one", current.seq);
            Error::invalid("compaction.erased", text)
        })?;
        let mut restores = body_of_current.previous;
        // One that was made anew after an edit replaced one that covers as much or more, with the words before the edit.
        while let Some(replaced) = restores.filter(|before| before.through_seq >= current.through_seq) {
            restores = body(replaced)?.and_then(|body| body.previous);
        }
        let mut reverted = conversation;
        reverted.set_checkpoint(restores);
        self.0.check_view(&reverted)?;
        self.0.restore_checkpoint(current, restores)?;
        self.0.shared().journal.index.conversation(key)
    }

    /// A summary of the turns from `from_seq` to `to_seq`. Writes nothing. `style` is added to a model's
    /// instructions.
    pub fn summarize(&self, from_seq: u64, to_seq: u64, style: Option<&str>) -> Result<Summary, Error> {
        let part = self.0.unsummarized(Some((from_seq, to_seq)))?;
        let candidates = part.candidates();
        let (Some(first), Some(last)) = (candidates.first(), candidates.last()) else {
            let text = format!("{} has no turns between seq {from_seq} and {to_seq}", self.0.id());
            return Err(Error::invalid("summarize.empty", text));
        };
        let covers = Covers { from_seq: first.seq, to_seq: last.seq, turns: candidates.len() as u64 };
        let policy = part.conversation.compaction();
        let asked = CheckpointRequest { style, ..CheckpointRequest::default() };
        let written = self.0.tenant.write_checkpoint(&policy, None, &candidates, asked);
        Ok(Summary { covers, summarizer: written.summarizer, checkpoint: written.checkpoint })
    }
}

impl ConversationHandle {
    fn compact_once(&self, options: &CompactOptions, purpose: Purpose) -> Result<Compacted, Error> {
        let unsummarized = self.unsummarized(None)?;
        let mut policy = unsummarized.conversation.compaction();
        if let Some(keep_last) = options.keep_last {
            (policy.strategy, policy.keep_last) = (CompactionStrategy::Tail, keep_last);
        }
        let until = match unsummarized.len() < COVERED_TURNS_MAX {
            true => None,
            false => Some(self.left_from(&unsummarized, &policy)?),
        };
        let candidates = unsummarized.candidates();
        let cut = match until {
            Some(_) => compaction::plan(&everything(&policy), &candidates, until, true),
            None => compaction::plan(&policy, &candidates, unsummarized.barrier, true),
        };
        let cut = cut.ok_or_else(|| nothing_to_compact(&unsummarized, options.keep_last))?;
        let compacted = self.tenant.compact_through(&unsummarized, &policy, cut, until, options, purpose)?;
        compacted.ok_or_else(|| {
            let freely = || compaction::plan(&policy, &unsummarized.candidates(), None, true);
            match unsummarized.barrier {
                Some(seq) if freely().is_some_and(|free| free.turns > cut.turns) => Error::invalid(
                    code::NOTHING_TO_COMPACT,
                    format!("nothing to compact: {}", pending_since(seq)),
                ),
                _ => not_shorter(&cut, unsummarized.previous_tokens()),
            }
        })
    }

    /// The first `seq` that a compaction on request does not cover, if more turns are not summarized than are read at
    /// once.
    fn left_from(&self, unsummarized: &Unsummarized, policy: &CompactionPolicy) -> Result<u64, Error> {
        let after = unsummarized.previous.as_ref().map_or(0, |(at, _)| at.through_seq);
        let end = unsummarized.conversation.head.seq + 1;
        let query = TurnQuery { after: Some(after), before: Some(end), ..TurnQuery::default() };
        let mut turns = Vec::new();
        self.for_everyone().each_turn(query, |turn| {
            if matches!(turn.status, Status::Complete | Status::Interrupted) {
                let is_counted = policy.strategy == CompactionStrategy::Threshold;
                let message = is_counted.then(|| turn.value()).flatten();
                let count = |message: Value| match turn.hidden {
                    true => TokenizerFamily::default().message(&message),
                    false => self.shared().count(TokenizerFamily::default(), turn.id, &message),
                };
                turns.push(Candidate {
                    turn: turn.id,
                    seq: turn.place,
                    role: turn.role,
                    actor: None,
                    at: turn.created,
                    message: None,
                    tokens: message.map_or(0, count),
                });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let left = compaction::leaves_from(policy, &turns);
        Ok(left.into_iter().chain(unsummarized.barrier).min().unwrap_or(end))
    }

    /// Compacts if the policy says that it is due. The newest turn is never covered: it may not have been answered
    /// yet.
    pub(crate) fn compact_if_due(&self, options: &CompactOptions) -> Result<Option<Compacted>, Error> {
        unless_erased(|| self.compact_once_if_due(options))
    }

    fn compact_once_if_due(&self, options: &CompactOptions) -> Result<Option<Compacted>, Error> {
        if !self.shared().journal.conversation(self.key())?.compaction().auto {
            return Ok(None);
        }
        let unsummarized = self.unsummarized(None)?;
        let mut policy = unsummarized.conversation.compaction();
        if policy.strategy == CompactionStrategy::Threshold {
            let fold = self.shared().fold(self.key(), unsummarized.conversation.head.seq)?;
            let receipt = self.last_receipt(&fold)?;
            // The limit is one of the whole prompt, in tokens of the model that reads it; turns and checkpoint have what is
            // left of it.
            let fixed = self.fixed_tokens(receipt.as_ref())?;
            let family = receipt.map_or(TokenizerFamily::default(), |receipt| receipt.family());
            policy.reserved_tokens = family.in_default(policy.reserved_tokens);
            policy.input_limit =
                policy.input_limit.map(|limit| family.in_default(limit).saturating_sub(fixed));
        }
        if unsummarized.is_short(&policy) {
            return Ok(None);
        }
        let candidates = unsummarized.candidates();
        let checkpoint = unsummarized.previous_tokens();
        let (turns, tokens) = (candidates.len() as u64, unsummarized.tokens());
        if !is_due(&policy, turns, tokens, tokens + checkpoint) {
            return Ok(None);
        }
        let newest = candidates.last().map(|newest| newest.seq);
        let barrier = unsummarized.barrier.into_iter().chain(newest).min();
        let Some(cut) = compaction::plan(&policy, &candidates, barrier, false) else { return Ok(None) };
        self.tenant.compact_to(&unsummarized, &policy, cut, options, Purpose::Shorten)
    }

    /// Compacts turns before `seq`, because a prompt was too long. `None` if none of them can be covered.
    pub(crate) fn compact_before(&self, seq: u64) -> Result<Option<Compacted>, Error> {
        unless_erased(|| self.compact_once_before(seq))
    }

    fn compact_once_before(&self, seq: u64) -> Result<Option<Compacted>, Error> {
        let unsummarized = self.unsummarized(None)?;
        let policy = unsummarized.conversation.compaction();
        let barrier = unsummarized.barrier.into_iter().chain([seq]).min();
        let Some(cut) = compaction::plan(&policy, &unsummarized.candidates(), barrier, true) else {
            return Ok(None);
        };
        let options = CompactOptions::default();
        self.tenant.compact_to(&unsummarized, &policy, cut, &options, Purpose::Shorten)
    }

    /// The newest checkpoint, from this one back, none of whose turns was edited since it was written.
    fn unedited_checkpoint(
        &self,
        mut at: Option<CheckpointRef>,
    ) -> Result<Option<(CheckpointRef, Checkpoint)>, Error> {
        while let Some(checkpoint) = at {
            let body = self.event_at(checkpoint.seq)?.and_then(|event| event.read::<CompactionBody>());
            let Some(body) = body else { return Ok(None) };
            if !self.is_edited(checkpoint)? {
                return Ok(body.checkpoint.map(|text| (checkpoint, text)));
            }
            at = body.previous;
        }
        Ok(None)
    }

    /// Whether a turn that a checkpoint covers was edited since it was written.
    fn is_edited(&self, at: CheckpointRef) -> Result<bool, Error> {
        Ok(!self.edits_since(at, None, 1)?.is_empty())
    }

    /// Turns that replace those that a checkpoint covers, and came after it; the first of them in reading order.
    pub(crate) fn edits_since(
        &self,
        at: CheckpointRef,
        as_of: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Turn>, Error> {
        let query = TurnQuery {
            before: Some(at.through_seq + 1),
            moved_after: Some(at.seq),
            as_of,
            limit,
            ..TurnQuery::default()
        };
        self.turns(&query)
    }

    /// Writes the checkpoint in force again if a turn that it covers was edited. Until then, prompts carry the edits
    /// beside it.
    pub(crate) fn renew_if_edited(&self) -> Result<(), Error> {
        let Some(at) = self.shared().journal.conversation(self.key())?.checkpoint else { return Ok(()) };
        if !self.is_edited(at)? {
            return Ok(());
        }
        unless_erased(|| {
            let mut unsummarized = self.unsummarized(None)?;
            let policy = everything(&unsummarized.conversation.compaction());
            if unsummarized.conversation.retention != Retention::Full {
                unsummarized.turns = self.edits_since(at, None, COVERED_TURNS_MAX)?;
            }
            // Covered turns stay covered, unless an edit calls a tool.
            let barrier = unsummarized.barrier.into_iter().chain([at.through_seq + 1]).min();
            let cut = compaction::plan(&policy, &unsummarized.candidates(), barrier, true);
            let Some(cut) = cut else { return Ok(()) };
            let cut = match cut.to_seq < at.through_seq
                && unsummarized.previous.as_ref().is_some_and(|(base, _)| *base == at)
            {
                true => Cut { to_seq: at.through_seq, through: at.through, ..cut },
                false => cut,
            };
            let options = CompactOptions::default();
            self.tenant.compact_to(&unsummarized, &policy, cut, &options, Purpose::Cover).map(drop)
        })
    }

    /// Turns after the checkpoint, or in a range of places.
    fn unsummarized(&self, range: Option<(u64, u64)>) -> Result<Unsummarized, Error> {
        let key = self.key();
        let mark = self.shared().journal.index.erasures(&key.tenant)?;
        let conversation = self.shared().journal.index.conversation(key)?;
        let fold = self.shared().fold(key, conversation.head.seq)?;
        let previous = match range {
            Some(_) => None,
            // The turns that it covers may be erased, so that it cannot be written again without it.
            None if conversation.retention != Retention::Full => {
                let text = self.checkpoint(conversation.checkpoint)?;
                conversation.checkpoint.zip(text)
            }
            None => self.unedited_checkpoint(conversation.checkpoint)?,
        };
        let (after, through) = match range {
            Some((from, to)) => (from.saturating_sub(1), to),
            None => (previous.as_ref().map_or(0, |(at, _)| at.through_seq), conversation.head.seq),
        };
        let mut read = Unsummarized {
            shared: self.shared().clone(),
            mark,
            conversation,
            previous,
            turns: Vec::new(),
            bytes: 0,
            large: HashMap::new(),
            contents: OnceCell::new(),
            barrier: fold.barrier(),
        };
        let query =
            TurnQuery { after: Some(after), before: Some(through.saturating_add(1)), ..TurnQuery::default() };
        // Every participant reads a checkpoint, so it is made of what everyone may see.
        self.for_everyone().each_turn(query, |mut turn| {
            if !matches!(turn.status, Status::Complete | Status::Interrupted) {
                return Ok(ControlFlow::Continue(()));
            }
            let bytes = turn.message.as_ref().map_or(0, |message| message.get().len());
            read.bytes += bytes as u64;
            if bytes > LARGE_MESSAGE_BYTES
                && let Some(message) = turn.value()
            {
                let tokens = match turn.hidden {
                    true => TokenizerFamily::default().message(&message),
                    false => self.shared().count(TokenizerFamily::default(), turn.id, &message),
                };
                read.large.insert(turn.id, tokens);
                turn.message = Some(Raw::of(&shortened(message))?);
            }
            read.turns.push(turn);
            let full = read.turns.len() == COVERED_TURNS_MAX;
            Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(read)
    }

    fn append_compaction(&self, body: &CompactionBody, mark: u64) -> Result<EventId, Error> {
        let mut draft: Draft = self.shared().draft(kind::COMPACTION, body)?;
        redact(&mut draft, self.redaction()?)?;
        draft.check()?;
        let id = draft.id;
        let action = Action::Derive { drafts: vec![draft], mark };
        let answer = self.shared().journal.submit_now(Write { key: self.key().clone(), action })?;
        answer.recv().map_err(|_| crate::writer::closed())??;
        Ok(id)
    }

    /// Puts an earlier checkpoint, or none, in force.
    fn restore_checkpoint(
        &self,
        current: CheckpointRef,
        restores: Option<CheckpointRef>,
    ) -> Result<(), Error> {
        let from_seq = restores.map_or(1, |at| at.through_seq + 1);
        let turns = current.turns_before.saturating_sub(restores.map_or(0, |at| at.turns_before));
        let revert = CompactionBody {
            checkpoint: None,
            covers: Covers { from_seq, to_seq: current.through_seq, turns },
            summarized: None,
            previous: Some(current),
            summarizer: "revert".into(),
            prompt_hash: None,
            input_hash: Hash::of(current.event.to_string().as_bytes()),
            tokens_before: 0,
            tokens_after: 0,
            reverts: Some(current.event),
            restores,
        };
        // A revert contains no text that an erasure could affect.
        self.append_compaction(&revert, self.shared().journal.index.erasures(&self.key().tenant)?).map(drop)
    }

    /// After the checkpoint in force was erased, and the log names its replacement: summarizes what is left of the
    /// turns it covered. Large amounts are left to the background.
    pub(crate) fn summarize_anew(&self, lost: CheckpointRef) -> Result<Head, Error> {
        let key = self.key();
        let conversation = self.shared().journal.index.conversation(key)?;
        let left = conversation.checkpoint.map_or(0, |at| at.turns_before);
        let turns = lost.turns_before.saturating_sub(left);
        if turns > ANEW_AT_ONCE_TURNS_MAX && self.shared().options.auto_compaction {
            self.shared().compaction.note_lost(key, lost.through_seq);
            return Ok(conversation.head);
        }
        self.summarize_through(lost.through_seq)
    }

    /// Extracts checkpoints until everything up to `through_seq` is covered.
    pub(crate) fn summarize_through(&self, through_seq: u64) -> Result<Head, Error> {
        let key = self.key();
        let conversation = self.shared().journal.index.conversation(key)?;
        // A revert may have put a checkpoint in force that was erased since.
        if let Some(erased) = conversation.checkpoint
            && self.checkpoint(Some(erased))?.is_none()
        {
            self.restore_checkpoint(erased, None)?;
        }
        let options = CompactOptions { extractive: true, ..CompactOptions::default() };
        loop {
            let done = unless_erased(|| {
                let unsummarized = self.unsummarized(None)?;
                let conversation = &unsummarized.conversation;
                let policy = everything(&conversation.compaction());
                // Done once nothing is left to cover.
                match compaction::plan(&policy, &unsummarized.candidates(), Some(through_seq + 1), true) {
                    Some(cut) => {
                        let purpose = Purpose::Cover;
                        match self.tenant.compact_to(&unsummarized, &policy, cut, &options, purpose) {
                            // Another process was faster: its checkpoint may cover less.
                            Err(error) if error.is(code::COMPACTION_STALE) => Ok(None),
                            compacted => compacted.map(|_| None),
                        }
                    }
                    None => Ok(Some(conversation.head)),
                }
            })?;
            if let Some(head) = done {
                return Ok(head);
            }
        }
    }
}

/// Repeats `make` if text of the log was erased meanwhile.
fn unless_erased<T>(make: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ERASED_ATTEMPTS {
        match make() {
            Err(error) if error.is(code::SOURCE_ERASED) => {}
            made => return made,
        }
    }
    make()
}

/// Tracing span of a compaction, with numbers and names only.
fn compaction_span(id: ConversationId, cut: &Cut) -> tracing::Span {
    tracing::info_span!(
        "everturn.compaction",
        gen_ai.conversation.id = %id,
        gen_ai.request.model = tracing::field::Empty,
        everturn.compaction.turns = cut.turns,
        everturn.compaction.tokens_before = tracing::field::Empty,
        everturn.compaction.tokens_after = tracing::field::Empty,
    )
}

/// Request for a checkpoint.
#[derive(Clone, Copy, Default)]
struct CheckpointRequest<'a> {
    /// Do not ask a model.
    extractive: bool,
    /// Quote nothing: the turns are erased afterwards.
    unquoted: bool,
    /// Turns after the covered ones that stay verbatim.
    kept: &'a [Candidate<'a>],
    /// Style instructions for a model, in addition to the rules.
    style: Option<&'a str>,
}

struct Written {
    checkpoint: Checkpoint,
    summarizer: String,
    prompt_hash: Option<Hash>,
    input_hash: Hash,
}

/// A copy of the policy that keeps no turn verbatim.
fn everything(policy: &CompactionPolicy) -> CompactionPolicy {
    CompactionPolicy { strategy: CompactionStrategy::Tail, keep_last: 0, ..policy.clone() }
}

fn not_shorter(cut: &Cut, previous_tokens: u64) -> Error {
    let turns = if cut.turns == 1 { "turn".to_string() } else { format!("{} turns", cut.turns) };
    let also = if previous_tokens > 0 { " and of the summary before" } else { "" };
    let text = format!(
        "nothing to compact: a summary of the oldest {turns}{also} would be no shorter than the {} tokens that it replaces; \
         cover more turns, or wait until there are more",
        cut.tokens + previous_tokens
    );
    Error::invalid(code::NOTHING_TO_COMPACT, text)
}

fn pending_since(seq: u64) -> String {
    format!(
        "what is pending since seq {seq} must stay as it is (`state` shows it); append the tool's result, give the call \
         up (`abandon-call`), or resolve the approval"
    )
}

fn nothing_to_compact(unsummarized: &Unsummarized, keep_last: Option<usize>) -> Error {
    let text = match (unsummarized.len(), unsummarized.barrier) {
        (0, _) if unsummarized.conversation.turns == 0 => "there are no turns yet".to_string(),
        (0, _) => "every turn is summarized already".to_string(),
        (_, Some(seq)) => pending_since(seq),
        (turns, None) => match keep_last {
            Some(keep) if keep < turns => format!(
                "there are {turns} turns that no summary covers, and all are kept: {keep} as asked, and the others with them, \
                 since a tool call stays with its result"
            ),
            Some(keep) => {
                format!("there are {turns} turns that no summary covers, and {keep} are to be kept")
            }
            None => format!("the {turns} turns that no summary covers cannot be split"),
        },
    };
    Error::invalid(code::NOTHING_TO_COMPACT, format!("nothing to compact: {text}"))
}
