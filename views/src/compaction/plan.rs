//! The choice of turns that a compaction covers.

use super::limits::TOKENS_MAX;
use everturn_core::id::TurnId;
use everturn_core::message::{self, MessagePart};
use everturn_core::pairing;
use everturn_core::policy::{CompactionPolicy, CompactionStrategy, is_due};
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use serde_json::Value;

/// Number of newest turns with media, among the newest [`RECENT_TURNS`] turns, that stay verbatim.
pub const MULTIMODAL_KEPT: usize = 4;
/// Number of newest turns in which media count as recent.
pub const RECENT_TURNS: usize = 8;

/// An unsummarized turn. Superseded, aborted and open turns are not candidates.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its id.
    pub turn: TurnId,
    /// Its place in reading order; see [`reading`](crate::reading).
    pub seq: u64,
    /// Role of the actor.
    pub role: Role,
    /// Actor that spoke.
    pub actor: Option<&'a str>,
    /// Time at which the store accepted it.
    pub at: Timestamp,
    /// The message; `None` if it was erased.
    pub message: Option<&'a Value>,
    /// Tokens of the turn in a prompt.
    pub tokens: u64,
}

/// The turns that a compaction will cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Number of candidates covered, from the oldest.
    pub turns: usize,
    /// Their tokens.
    pub tokens: u64,
    /// `seq` of the first one.
    pub from_seq: u64,
    /// `seq` of the last one.
    pub to_seq: u64,
    /// The last one.
    pub through: TurnId,
}

/// Chooses the cut; `None` if nothing is due or nothing can be covered.
///
/// `turns` are all unsummarized ones, oldest first. `barrier` is the first `seq` that must not be covered: the
/// oldest pending approval, pending tool or open turn. `forced` is a compaction on request or after an
/// overflow: it does not check whether one is due, and if the prompt is already below the threshold it covers
/// the oldest half.
///
/// The cut never separates a call from its result and never passes the barrier. Recent turns with media
/// ([`MULTIMODAL_KEPT`] of the newest [`RECENT_TURNS`] turns) stay verbatim; if nothing could be covered then,
/// fewer of them do.
pub fn plan(
    policy: &CompactionPolicy,
    turns: &[Candidate<'_>],
    barrier: Option<u64>,
    forced: bool,
) -> Option<Cut> {
    let (reach, wanted) = wanted(policy, turns, barrier, forced)?;
    let pairs = pairing::pair(turns.iter().map(|turn| turn.message.unwrap_or(&Value::Null)));
    let recent = turns.len().saturating_sub(RECENT_TURNS);
    let media: Vec<usize> = (recent..turns.len())
        .rev()
        .filter(|index| turns[*index].message.is_some_and(has_media))
        .take(MULTIMODAL_KEPT)
        .collect();
    // Each iteration protects one turn with media less, the oldest first; the last one protects none.
    (0..=media.len()).rev().find_map(|kept| {
        let reach = if kept == 0 { reach } else { reach.min(media[kept - 1]) };
        let wanted = wanted.min(reach);
        if wanted == 0 {
            return None;
        }
        let count = match pairs.cut_at_or_before(wanted) {
            // One long group spans the wanted cut: cover the whole group if that is allowed.
            0 => pairs.cut_at_or_after(wanted, turns.len()),
            count => count,
        };
        (1..=reach).contains(&count).then(|| cut(&turns[..count]))
    })
}

/// The first `seq` that a compaction on request does not cover, independent of the text of turns; `None` if it covers all.
/// Their messages are not looked at.
pub fn leaves_from(policy: &CompactionPolicy, turns: &[Candidate<'_>]) -> Option<u64> {
    let (reach, wanted) = wanted(policy, turns, None, true)?;
    turns.get(wanted.min(reach)).map(|turn| turn.seq)
}

/// Number of oldest turns that may be covered, and that should be; `None` if nothing is due.
fn wanted(
    policy: &CompactionPolicy,
    turns: &[Candidate<'_>],
    barrier: Option<u64>,
    forced: bool,
) -> Option<(usize, usize)> {
    let tokens = turns.iter().fold(0u64, |sum, turn| sum.saturating_add(turn.tokens));
    // The checkpoint's size is not known here, so the largest possible one is assumed: nothing that the caller
    // found due is refused.
    let due = || is_due(policy, turns.len() as u64, tokens, tokens.saturating_add(TOKENS_MAX as u64));
    if turns.is_empty() || !(forced || due()) {
        return None;
    }
    let reach = barrier.map_or(turns.len(), |seq| turns.partition_point(|turn| turn.seq < seq)).min(
        match policy.strategy {
            CompactionStrategy::Half => turns.len(),
            CompactionStrategy::Tail | CompactionStrategy::Threshold => {
                turns.len().saturating_sub(policy.keep_last)
            }
        },
    );
    let wanted = match policy.strategy {
        CompactionStrategy::Half => half(turns),
        CompactionStrategy::Tail => reach,
        CompactionStrategy::Threshold => match over_threshold(policy, turns, tokens) {
            0 if forced => half(turns),
            count => count,
        },
    };
    Some((reach, wanted))
}

fn half(turns: &[Candidate<'_>]) -> usize {
    (turns.len() / 2).max(1)
}

/// Number of oldest turns to cover so that the rest and a checkpoint fit in half of the prompt's limit.
fn over_threshold(policy: &CompactionPolicy, turns: &[Candidate<'_>], tokens: u64) -> usize {
    let room = policy.input_limit.unwrap_or(0).saturating_sub(policy.reserved_tokens) / 2;
    let target = room.saturating_sub(TOKENS_MAX as u64);
    let mut rest = tokens;
    turns
        .iter()
        .take_while(|turn| {
            let over = rest > target;
            rest = rest.saturating_sub(turn.tokens);
            over
        })
        .count()
}

fn cut(covered: &[Candidate<'_>]) -> Cut {
    let (first, last) = (&covered[0], &covered[covered.len() - 1]);
    Cut {
        turns: covered.len(),
        tokens: covered.iter().fold(0, |sum, turn| sum.saturating_add(turn.tokens)),
        from_seq: first.seq,
        to_seq: last.seq,
        through: last.turn,
    }
}

/// Whether a turn contains media that text does not replace, including a screenshot in a tool result.
fn has_media(message: &Value) -> bool {
    message::parts(message).into_iter().any(|part| match part {
        MessagePart::Media { .. } => true,
        MessagePart::Result { content: Some(Value::Array(blocks)), .. } => {
            blocks.iter().any(|block| matches!(message::parts(block)[..], [MessagePart::Media { .. }]))
        }
        _ => false,
    })
}
