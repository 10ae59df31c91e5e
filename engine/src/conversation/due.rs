//! Deadlines: tool calls that are given up, and approvals that expire.

use super::{ApprovalOutcome, ConversationHandle};
use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::approval::Approval;
use everturn_core::error::code;
use everturn_core::event::{Draft, kind};
use everturn_core::id::Key;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::viewer::{audience_of, is_for_everyone};
use everturn_core::write::Action;
use everturn_store::ConversationQuery;
use everturn_views::state::{AbandonedBody, Tool};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Conversations in which something may become due.
#[derive(Default)]
pub struct Deadlines {
    watched: Mutex<HashSet<Key>>,
    /// Whether the conversations of earlier processes were looked for.
    searched: AtomicBool,
}

impl Observer for Deadlines {
    fn committed(&self, commit: &Observed<'_>) {
        if commit.deleted {
            self.watched.lock().remove(commit.key);
        } else if commit.committed.conversation.abandon_tools_after_s().is_some()
            || commit.has(|kind| kind == kind::APPROVAL_REQUESTED)
        {
            self.watched.lock().insert(commit.key.clone());
        }
    }
}

/// Settles everything that is due.
pub fn settle_all(shared: &Arc<Shared>) -> Result<Settled, Error> {
    if !shared.deadlines.searched.swap(true, Ordering::SeqCst) {
        search(shared)?;
    }
    // A conversation that changes meanwhile is watched again.
    let mut watched = std::mem::take(&mut *shared.deadlines.watched.lock()).into_iter();
    let mut all = Settled::default();
    while let Some(key) = watched.next() {
        let conversation = Tenant::within(shared.clone(), key.tenant.clone()).conversation(key.id);
        let waits = match conversation.settle_due() {
            Ok(settled) => {
                all.abandoned += settled.abandoned;
                all.expired += settled.expired;
                settled.waits
            }
            // It was deleted or archived.
            Err(Error::NotFound(_) | Error::Conflict(_)) => false,
            Err(error) => {
                shared.deadlines.watched.lock().extend([key].into_iter().chain(watched));
                return Err(error);
            }
        };
        if waits {
            shared.deadlines.watched.lock().insert(key);
        }
    }
    Ok(all)
}

/// Finds the conversations whose policy sets a deadline.
fn search(shared: &Shared) -> Result<(), Error> {
    let index = &shared.journal.index;
    for tenant in index.tenants()? {
        let mut query = ConversationQuery { limit: PAGE_ENTRIES_MAX, ..ConversationQuery::default() };
        loop {
            let page = index.conversations(&tenant, &query)?;
            let Some(last) = page.last() else { break };
            query.after = Some(query.order.position(last));
            let due = page.iter().filter(|conversation| conversation.abandon_tools_after_s().is_some());
            let keys = due.map(|conversation| Key { tenant: tenant.clone(), id: conversation.id });
            shared.deadlines.watched.lock().extend(keys);
        }
    }
    Ok(())
}

/// Result of settling what is due.
#[derive(Default)]
pub struct Settled {
    /// Tool calls given up.
    pub abandoned: usize,
    /// Approvals expired.
    pub expired: usize,
    /// Whether more may become due.
    pub waits: bool,
}

impl ConversationHandle {
    /// Settles what is due, where this process may write.
    pub(crate) fn settle_if_due(&self) -> Result<(), Error> {
        if self.shared().options.read_only {
            return Ok(());
        }
        match self.settle_due() {
            // It is archived or closed, and stays as it is; or another process writes now.
            Ok(_) | Err(Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives up tool calls and lets approvals expire whose time has passed.
    pub(crate) fn settle_due(&self) -> Result<Settled, Error> {
        let conversation = self.shared().journal.index.conversation(self.key())?;
        let fold = self.shared().fold(self.key(), conversation.head.seq)?;
        let now = self.shared().now();
        let mut settled = Settled::default();
        for waiting in &fold.approvals {
            if !waiting.is_due(now) {
                settled.waits |= waiting.deadline.is_some();
                continue;
            }
            let resolution = ApprovalOutcome {
                approval_id: waiting.id.clone(),
                state: Approval::Expired,
                actor: None,
                reason: Some("not answered in time".into()),
            };
            match self.state().resolve_approval(resolution).wait() {
                Ok(_) => settled.expired += 1,
                // It has just been resolved.
                Err(error) if error.is(code::APPROVAL_RESOLVED) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(after) = conversation.abandon_tools_after_s() {
            let is_due = |tool: &&Tool| tool.at.plus_s(after) <= now;
            let due: Vec<Tool> = fold.tools.iter().filter(is_due).cloned().collect();
            if !due.is_empty() {
                self.abandon(&due, None, Some(&format!("no result within {after} s")))?;
            }
            settled.abandoned = due.len();
            settled.waits |= due.len() < fold.tools.len();
        }
        Ok(settled)
    }

    /// Gives up these calls, in one step.
    pub(crate) fn abandon(
        &self,
        tools: &[Tool],
        actor: Option<String>,
        reason: Option<&str>,
    ) -> Result<Vec<everturn_core::event::Event>, Error> {
        let draft = |tool: &Tool| {
            // Everyone reads this event, so a private call is named by its id only, and the reason is for its actors.
            let turn =
                tool.turn.map(|turn| self.shared().journal.index.turn_in(self.key(), turn)).transpose()?;
            let is_public = tool.id.is_none() || turn.as_ref().is_none_or(is_for_everyone);
            let body = AbandonedBody {
                tool_call_id: tool.id.clone(),
                tool_name: is_public.then(|| tool.name.clone()),
                reason: reason.map(str::to_string),
                reason_for: turn.as_ref().and_then(audience_of).filter(|_| reason.is_some()),
            };
            let draft = self.shared().draft(kind::TOOL_ABANDONED, &body)?;
            let draft = Draft { turn: tool.turn, actor: actor.clone(), ..draft };
            draft.check()?;
            Ok(draft)
        };
        let drafts = tools.iter().map(draft).collect::<Result<Vec<Draft>, Error>>();
        let action = drafts.map(|drafts| Action::Append { drafts, expected_seq: None, idempotency: None });
        self.write(action, |committed| Ok(committed.events)).wait()
    }
}
