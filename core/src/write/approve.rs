//! Approvals are decided where they are written: of two resolutions at once, one wins.

use super::lookup::{Lookup, owner};
use crate::Error;
use crate::approval::{self, ApprovalBody, is_about_approval};
use crate::conversation::Conversation;
use crate::event::{Draft, Event};

/// Refuses a request or a resolution that the log does not allow. The caller knows the request and the last event about
/// the approval up to `seen`; later events are read here.
pub(super) fn check(
    conversation: &Conversation,
    draft: &Draft,
    (mut request, mut last): (Option<u64>, Option<u64>),
    seen: u64,
    lookup: &dyn Lookup,
) -> Result<(), Error> {
    let body: ApprovalBody = serde_json::from_str(&draft.body.text).unwrap_or_default();
    let lineage = lookup.lineage()?;
    let event = |seq: u64| -> Result<Option<Event>, Error> {
        let found = owner(&lineage, seq).map(|at| lookup.event(at)).transpose()?.flatten();
        let is_it = |event: &Event| {
            is_about_approval(&event.kind)
                && event.read::<ApprovalBody>().is_some_and(|about| about.approval_id == body.approval_id)
        };
        Ok(found.filter(is_it))
    };
    for seq in seen.saturating_add(1)..=conversation.head.seq {
        if let Some(found) = event(seq)? {
            last = Some(seq);
            if found.kind == crate::event::kind::APPROVAL_REQUESTED {
                request = Some(seq);
            }
        }
    }
    let at = |seq: Option<u64>| seq.map(event).transpose().map(Option::flatten);
    approval::admit(draft, at(last)?.as_ref(), at(request)?.as_ref())
}
