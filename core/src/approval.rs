//! Approvals: questions that must be answered before work continues. Each has one outcome.

use crate::Error;
use crate::error::code;
use crate::event::{Draft, Event, check_name, kind};
use crate::id::clip;
use crate::limits::APPROVAL_QUESTION_BYTES_MAX;
use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of `approval.requested` and `approval.resolved`. Frozen: logs hold it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ApprovalBody {
    /// Id that pairs the two.
    pub approval_id: String,
    /// Id of the call that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Question for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Time at which it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Outcome, when resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Approval>,
    /// Reason for the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Actors that may know of it, if the call is private.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
}

/// State of an approval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// Not answered yet.
    Pending,
    /// Granted.
    Approved,
    /// Refused.
    Denied,
    /// No longer needed.
    Cancelled,
    /// Not answered in time.
    Expired,
}

impl Approval {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Approval::Pending => "pending",
            Approval::Approved => "approved",
            Approval::Denied => "denied",
            Approval::Cancelled => "cancelled",
            Approval::Expired => "expired",
        }
    }
}

/// Whether an event of this kind is about an approval.
pub fn is_about_approval(kind: &str) -> bool {
    matches!(kind, kind::APPROVAL_REQUESTED | kind::APPROVAL_RESOLVED)
}

/// Refuses a request or a resolution, given the last event about the same approval and, for a resolution, its request.
pub fn admit(draft: &Draft, last: Option<&Event>, request: Option<&Event>) -> Result<(), Error> {
    let body: ApprovalBody = serde_json::from_str(&draft.body.text).unwrap_or_default();
    let is_resolution = draft.kind == kind::APPROVAL_RESOLVED;
    match last {
        Some(last) if last.kind == kind::APPROVAL_RESOLVED => return Err(resolved(last)),
        Some(_) if !is_resolution => {
            return Err(exists(&body.approval_id));
        }
        _ => {}
    }
    if !is_resolution {
        return Ok(());
    }
    let request = request.ok_or_else(|| absent(&body.approval_id))?;
    let deadline = request.read::<ApprovalBody>().and_then(|request| request.deadline);
    match (deadline.filter(|deadline| *deadline <= draft.at), body.state == Some(Approval::Expired)) {
        (None, true) => {
            let text = format!(
                "approval {:?} has not passed a deadline; resolve it as approved, denied or cancelled",
                clip(&body.approval_id)
            );
            Err(Error::invalid("approval.not_expired", text))
        }
        (Some(deadline), false) => {
            let text = format!(
                "approval {:?} expired at {deadline}; request it again under another id",
                clip(&body.approval_id)
            );
            Err(Error::conflict("approval.expired", text))
        }
        (Some(_), true) | (None, false) => Ok(()),
    }
}

/// Refuses a request whose id cannot be named later, or whose question is too long.
pub fn check_request(request: &ApprovalBody) -> Result<(), Error> {
    check_name("approval id", &request.approval_id)?;
    let bytes = request.question.as_ref().map_or(0, String::len);
    if bytes > APPROVAL_QUESTION_BYTES_MAX {
        let advice = "ask briefly and keep the details in a turn";
        let (limit, got) = (APPROVAL_QUESTION_BYTES_MAX as u64, bytes as u64);
        return Err(Error::limit("APPROVAL_QUESTION_BYTES_MAX", limit, got, advice));
    }
    Ok(())
}

/// The id is taken.
pub fn exists(approval_id: &str) -> Error {
    let text = format!("approval {:?} is requested already; choose another id", clip(approval_id));
    Error::conflict("approval.exists", text)
}

/// The error for an approval that is not pending.
pub fn absent(approval_id: &str) -> Error {
    let text = format!("no approval {:?} waits; `state` shows those that do", clip(approval_id));
    Error::not_found("approval.absent", text)
}

/// The approval has an outcome: names it, its actor and its time.
fn resolved(by: &Event) -> Error {
    let body: ApprovalBody = by.read().unwrap_or_default();
    let outcome = body.state.map_or("resolved", Approval::as_str);
    let actor = by.actor.as_ref().map(|actor| format!(" by {}", clip(actor))).unwrap_or_default();
    let reason = body.reason.map(|reason| format!(" ({})", clip(&reason))).unwrap_or_default();
    let text = format!(
        "approval {:?} was {outcome}{actor} at {}, seq {}{reason}; nothing was changed",
        clip(&body.approval_id),
        by.at,
        by.seq
    );
    Error::conflict(code::APPROVAL_RESOLVED, text)
}
