//! Deadlines: tool calls that are given up, and approvals that expire.

use super::{ApprovalOutcome, ConversationHandle};
use crate::everturn::Shared;
use crate::journal::{Observed, Observer};
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::approval::Approval;
use everturn_core::conversation::{Conversation, Lifecycle};
use everturn_core::error::code;
use everturn_core::event::{Draft, kind};
use everturn_core::id::Key;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::time::Timestamp;
use everturn_core::viewer::{audience_of, is_for_everyone};
use everturn_core::write::Action;
use everturn_store::{ChangeFeed, ConversationQuery, WorkDone};
use everturn_views::state::{AbandonedBody, Fold, Tool};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Age of changes that are looked at when a process begins.
const LOOK_BACK_S: u64 = 30 * 24 * 60 * 60;
/// Most conversations that are looked at for it where many processes share a store: the last that changed.
const LOOK_BACK_MAX: usize = 10_000;

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
    if let Some(leases) = &shared.elsewhere {
        return settle_shared(shared, &**leases);
    }
    if !shared.deadlines.searched.swap(true, Ordering::SeqCst) {
        search(shared)?;
    }
    // A conversation that changes meanwhile is watched again.
    let mut watched = std::mem::take(&mut *shared.deadlines.watched.lock()).into_iter();
    let mut all = Settled::default();
    while let Some(key) = watched.next() {
        let conversation = Tenant::within(shared.clone(), key.tenant.clone()).conversation(key.id);
        let settled = match settle(&conversation) {
            Ok(settled) => settled,
            Err(error) => {
                shared.deadlines.watched.lock().extend([key].into_iter().chain(watched));
                return Err(error);
            }
        };
        all.add(&settled);
        if settled.next.is_some() {
            shared.deadlines.watched.lock().insert(key);
        }
    }
    Ok(all)
}

/// Settles what is due in one conversation. In one that is gone, archived or damaged, nothing is.
fn settle(conversation: &ConversationHandle) -> Result<Settled, Error> {
    match conversation.settle_due() {
        Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(Settled::default()),
        // The others must not wait for it.
        Err(error @ Error::Corrupt(_)) => {
            let id = conversation.id();
            tracing::warn!(%id, %error, "a damaged conversation is left out of the sweep");
            Ok(Settled::default())
        }
        settled => settled,
    }
}

/// As [`settle_all`], where any process may have asked or called: whoever checks a conversation notes its next deadline.
fn settle_shared(shared: &Arc<Shared>, leases: &dyn ChangeFeed) -> Result<Settled, Error> {
    let mut all = Settled::default();
    look_back(shared, leases, &mut all)?;
    for key in leases.due_work(shared.now(), PAGE_ENTRIES_MAX)? {
        if leases.take_work(&key)?.is_none() {
            continue;
        }
        let conversation = Tenant::within(shared.clone(), key.tenant.clone()).conversation(key.id);
        let settled = settle(&conversation);
        let done = settled.as_ref().ok().map(|settled| WorkDone { through: 0, due: settled.next });
        leases.end_work(&key, done)?;
        all.add(&settled?);
    }
    Ok(all)
}

/// Settles what is due in conversations that changed lately, once: processes that ended before they checked them noted no
/// deadline.
fn look_back(shared: &Arc<Shared>, leases: &dyn ChangeFeed, all: &mut Settled) -> Result<(), Error> {
    if shared.deadlines.searched.load(Ordering::SeqCst) {
        return Ok(());
    }
    let lately = Timestamp(shared.now().0.saturating_sub_unsigned(LOOK_BACK_S * 1_000_000));
    for (key, _) in leases.changed_since(lately, LOOK_BACK_MAX)? {
        let conversation = Tenant::within(shared.clone(), key.tenant.clone()).conversation(key.id);
        // Settling does no harm if another process does it at the same time.
        let settled = settle(&conversation)?;
        all.add(&settled);
        if settled.next.is_some() && leases.take_work(&key)?.is_some() {
            leases.end_work(&key, Some(WorkDone { through: 0, due: settled.next }))?;
        }
    }
    shared.deadlines.searched.store(true, Ordering::SeqCst);
    Ok(())
}

/// Finds the conversations of earlier processes in which something may become due: those whose policy sets a deadline, and
/// those that changed lately, where an approval may wait.
fn search(shared: &Shared) -> Result<(), Error> {
    let index = &shared.journal.index;
    let lately = Timestamp(shared.now().0.saturating_sub_unsigned(LOOK_BACK_S * 1_000_000));
    let may_be_due = |conversation: &&Conversation| {
        conversation.abandon_tools_after_s().is_some()
            || conversation.state == Lifecycle::Active && conversation.updated >= lately
    };
    for tenant in index.tenants()? {
        let mut query = ConversationQuery { limit: PAGE_ENTRIES_MAX, ..ConversationQuery::default() };
        loop {
            let page = index.conversations(&tenant, &query)?;
            let Some(last) = page.last() else { break };
            query.after = Some(query.order.position(last));
            let keys = page
                .iter()
                .filter(may_be_due)
                .map(|conversation| Key { tenant: tenant.clone(), id: conversation.id });
            shared.deadlines.watched.lock().extend(keys);
        }
    }
    Ok(())
}

/// Reason of a call that is given up after a time.
pub(crate) fn too_late(after_s: u64) -> String {
    format!("no result within {after_s} s")
}

/// Result of settling what is due.
#[derive(Default)]
pub struct Settled {
    /// Tool calls given up.
    pub abandoned: usize,
    /// Approvals expired.
    pub expired: usize,
    /// When more may become due.
    pub next: Option<Timestamp>,
}

impl Settled {
    /// Adds what was settled in one conversation.
    fn add(&mut self, one: &Settled) {
        self.abandoned += one.abandoned;
        self.expired += one.expired;
    }

    fn note(&mut self, due: Timestamp) {
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
    }
}

impl ConversationHandle {
    /// Settles what is due, where this process may write, and returns when more may become due.
    pub(crate) fn settle_if_due(&self) -> Result<Option<Timestamp>, Error> {
        if self.shared().options.read_only {
            return Ok(None);
        }
        // What is due is nobody's own: the caller may not see all of it.
        let tenant = Tenant::within(self.shared().clone(), self.key().tenant.clone());
        match tenant.conversation(self.id()).settle_due() {
            Ok(settled) => Ok(settled.next),
            // It is archived or closed, and stays as it is; or another process writes now.
            Err(Error::Conflict(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fold of all events, with what is due by now although no event says so yet: nobody may have been there to write it.
    pub(crate) fn fold_now(&self, conversation: &Conversation) -> Result<Arc<Fold>, Error> {
        let fold = self.shared().fold(self.key(), conversation.head.seq)?;
        let (now, after) = (self.shared().now(), conversation.abandon_tools_after_s());
        let is_due = fold.approvals.iter().any(|waiting| waiting.is_due(now))
            || after.is_some_and(|after| fold.tools.iter().any(|tool| tool.is_due(now, after)));
        Ok(if is_due { Arc::new(Fold::clone(&fold).as_of(now, after)) } else { fold })
    }

    /// Whether nothing can be written about what is due: in a store that is only read, and in a conversation that has ended.
    pub(crate) fn is_still(&self, conversation: &Conversation) -> bool {
        self.shared().options.read_only || conversation.state != Lifecycle::Active
    }

    /// Gives up tool calls and lets approvals expire whose time has passed.
    pub(crate) fn settle_due(&self) -> Result<Settled, Error> {
        let conversation = self.shared().journal.index.conversation(self.key())?;
        let fold = self.shared().fold(self.key(), conversation.head.seq)?;
        let now = self.shared().now();
        let mut settled = Settled::default();
        for waiting in &fold.approvals {
            if !waiting.is_due(now) {
                waiting.deadline.into_iter().for_each(|deadline| settled.note(deadline));
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
            let (due, left): (Vec<Tool>, Vec<Tool>) =
                fold.tools.iter().cloned().partition(|tool| tool.is_due(now, after));
            left.iter().for_each(|tool| settled.note(tool.at.plus_s(after)));
            if !due.is_empty() {
                self.abandon(&due, None, Some(&too_late(after)))?;
            }
            settled.abandoned = due.len();
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
            // Everyone reads this event, so the id and the reason of a private call are for its actors.
            let turn =
                tool.turn.map(|turn| self.shared().journal.index.turn_in(self.key(), turn)).transpose()?;
            let is_public = tool.id.is_none() || turn.as_ref().is_none_or(is_for_everyone);
            let body = AbandonedBody {
                tool_call_id: tool.id.clone(),
                tool_name: is_public.then(|| tool.name.clone()),
                reason: reason.map(str::to_string),
                reason_for: turn.as_ref().and_then(audience_of),
            };
            let draft = self.shared().draft(kind::TOOL_ABANDONED, &body)?;
            let draft = Draft { turn: tool.turn, actor: actor.clone(), ..draft };
            draft.check()?;
            Ok(draft)
        };
        let drafts = tools.iter().map(draft).collect::<Result<Vec<Draft>, Error>>();
        let action = drafts.map(Action::append);
        self.write(action, |committed| Ok(committed.events)).wait()
    }
}
