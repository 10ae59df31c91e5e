//! `clean_tool_repair` and `squash_failed_calls`: remove failed calls.

use super::part::{Cut, protected};
use super::{ProjectionPolicy, Shown, Signatures, ViewOptions};
use everturn_core::pairing::Pairs;
use std::collections::HashMap;

pub(super) fn cut(
    shown: &[Shown<'_>],
    pairs: &Pairs<'_>,
    policy: ProjectionPolicy,
    options: &ViewOptions,
) -> Cut {
    let stays = match options.signatures {
        Signatures::PerTurn => protected(shown, pairs),
        _ => Vec::new(),
    };
    let stays = |index: usize| stays.get(index) == Some(&true);
    // For each tool, the message of the last call that succeeded.
    let mut success: HashMap<&str, usize> = HashMap::new();
    if policy == ProjectionPolicy::CleanToolRepair {
        for call in &pairs.calls {
            if call.result.is_some_and(|result| !pairs.results[result].failed) {
                success.insert(call.name, call.message);
            }
        }
    }
    let mut parts = Vec::new();
    for call in &pairs.calls {
        let Some(result) = call.result.map(|result| &pairs.results[result]).filter(|result| result.failed)
        else {
            continue;
        };
        // Only a call made after the failure was known repairs it; a parallel one does not.
        let repaired = success.get(call.name).is_some_and(|success| *success > result.message);
        if (repaired || policy == ProjectionPolicy::SquashFailedCalls)
            && !stays(call.message)
            && !stays(result.message)
        {
            parts.extend([(call.message, call.place), (result.message, result.place)]);
        }
    }
    if parts.is_empty() { Cut::default() } else { Cut::of(shown, pairs, parts) }
}
