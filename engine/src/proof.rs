//! Proof: that a log is what was written, and that a store is healthy.

use crate::erasures::{Erasures, Gone, Recorded};
use crate::scope::{ListQuery, Scope};
use crate::{Everturn, Shared};
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::chain::{Hash, Report, Verifier};
use everturn_core::id::{ConversationId, Key, Tenant};
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_store::{Problem, ProblemKind};
use serde::{Deserialize, Serialize};

/// Something that is wrong with a store, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Which conversation, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationId>,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub advice: String,
}

/// What a check of a tenant's part of the store found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Doctor {
    /// Conversations whose chains were walked.
    pub conversations: u64,
    /// Events that were checked.
    pub events: u64,
    /// Bodies that are erased.
    pub erased: u64,
    /// Assets whose bytes were checked.
    pub assets: u64,
    /// What is wrong; empty if nothing is.
    pub findings: Vec<Finding>,
}

impl Scope {
    /// Walks a conversation's chain. An error is the first thing that is wrong. With `head`, a hash noted earlier, also
    /// tells whether the log still contains it.
    pub fn verify(&self, id: ConversationId, head: Option<Hash>) -> Result<Report, Error> {
        self.verify_with(id, head, &mut |_| {})
    }

    /// The same, telling how many events were checked so far.
    pub fn verify_with(
        &self,
        id: ConversationId,
        head: Option<Hash>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Report, Error> {
        self.verify_knowing(id, head, &mut None, progress)
    }

    fn verify_knowing<'a>(
        &'a self,
        id: ConversationId,
        head: Option<Hash>,
        erasures: &mut Option<Erasures<'a>>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Report, Error> {
        let key = self.key(id);
        let stored = self.shared().index.conversation(&key)?.head;
        let (report, gone) = walk(self.shared(), &key, head, progress)?;
        // The log may have grown meanwhile, but it cannot have become shorter.
        if report.head.seq < stored.seq {
            let text = format!(
                "the log ends at seq {} but had {}; events are missing at its end",
                report.head.seq, stored.seq
            );
            return Err(Error::corrupt("chain.truncated", text));
        }
        if report.head.seq == stored.seq && report.head.hash != stored.hash {
            return Err(Error::corrupt(
                "chain.head_mismatch",
                "the last event is not the one that was written",
            ));
        }
        for gone in gone {
            // One that was imported or restored without its body was erased elsewhere.
            if !self.shared().log.had_body(&key, gone.place.seq)? {
                continue;
            }
            let erasures = match &mut *erasures {
                Some(erasures) => erasures,
                none => none.insert(Erasures::of(self.shared())?),
            };
            if !erasures.explain_in(&key, &gone)? {
                return Err(Error::corrupt("chain.erasure_unrecorded", gone.text()));
            }
        }
        Ok(report)
    }

    /// Checks everything of this tenant: every chain, every asset, and the database itself.
    pub fn doctor(&self, progress: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error> {
        let mut doctor = Doctor::default();
        for problem in self.shared().index.check()? {
            // Another tenant's is not this one's to know.
            if problem.key.as_ref().is_none_or(|key| key.tenant == *self.tenant()) {
                doctor.findings.push(Finding {
                    conversation: problem.key.map(|key| key.id),
                    problem: problem.text,
                    advice: advice(problem.kind).into(),
                });
            }
        }
        let (mut after, mut erasures) = (None, None);
        loop {
            let page = self.list(ListQuery { after, limit: PAGE_ENTRIES_MAX, ..ListQuery::default() })?;
            for conversation in page.data {
                match self.verify_knowing(conversation.id, None, &mut erasures, &mut |_| {}) {
                    Ok(report) => {
                        doctor.events += report.events;
                        doctor.erased += report.erased;
                    }
                    Err(error) => doctor.findings.push(Finding {
                        conversation: Some(conversation.id),
                        problem: error.to_string(),
                        advice:
                            "someone or something changed the stored log; compare with a backup or an export"
                                .into(),
                    }),
                }
                for asset in self.assets(conversation.id)? {
                    doctor.assets += 1;
                    doctor.findings.extend(self.check_asset(conversation.id, &asset));
                }
                doctor.conversations += 1;
                progress(&doctor);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(doctor),
            }
        }
    }

    fn check_asset(&self, conversation: ConversationId, asset: &Asset) -> Option<Finding> {
        // One that was imported as a descriptor only has its bytes elsewhere.
        let ours = everturn_store::assets::path(self.tenant(), asset.sha256?);
        asset.storage.as_ref().filter(|storage| storage.path.as_ref() == Some(&ours))?;
        let error = self.asset_bytes(asset).err()?;
        Some(Finding {
            conversation: Some(conversation),
            problem: format!("{}: {error}", asset.id),
            advice: "restore the asset folder from a backup".into(),
        })
    }
}

fn advice(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Damaged => "restore the file from a backup; `export` still writes what can be read",
        ProblemKind::Missing => "restore a backup, or import an export that has them",
        ProblemKind::Diverged => "`everturn doctor --repair` makes a fork of what stands beside the log",
        ProblemKind::Derived => "`everturn doctor --rebuild` makes it again from the log",
    }
}

/// Events that stood beside a log and are a conversation of their own now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Repaired {
    /// Whose.
    pub tenant: Tenant,
    /// The conversation that two processes wrote.
    pub conversation: ConversationId,
    /// The last event that both share.
    pub at_seq: u64,
    /// The fork that has the others.
    pub fork: ConversationId,
    /// How many they are.
    pub events: u64,
}

impl Everturn {
    /// Drops what is derived from the log and makes it again. What recall looks in follows in the background. Refused where
    /// rows know of events that the log lacks, since they are the last evidence of them; `Options::accept_loss` allows it.
    pub fn rebuild(&self) -> Result<(), Error> {
        let shared = &self.inner.shared;
        if !shared.options.accept_loss {
            refuse_loss(&shared.index.check()?)?;
        }
        shared.forget_derived();
        shared.index.rebuild()?;
        shared.indexer.note();
        Ok(())
    }

    /// Makes forks of what two processes wrote beside each other, before each commit checked who owns the store. One
    /// branch stays the conversation's log; each other becomes a fork from where they parted. Nothing is dropped.
    pub fn repair(&self) -> Result<Vec<Repaired>, Error> {
        let shared = &self.inner.shared;
        let mut repaired = Vec::new();
        // A branch of a branch is found once that is a fork.
        while let Some(branch) = shared.index.branches()?.into_iter().next() {
            let Key { tenant, id: conversation } = branch.key.clone();
            let scope = self.tenant(tenant.as_str())?;
            let fork = scope.fork(conversation, branch.at_seq).wait()?.id;
            let events = shared.index.adopt(&branch, &scope.key(fork))?;
            shared.forget_derived();
            repaired.push(Repaired { tenant, conversation, at_seq: branch.at_seq, fork, events });
        }
        if !repaired.is_empty() {
            // Moved rows leave copies of their words in unused space.
            shared.index.rebuild()?;
            shared.index.compact()?;
            shared.indexer.note();
        }
        Ok(repaired)
    }
}

impl Shared {
    /// Forgets what was read from derived rows.
    fn forget_derived(&self) {
        self.known().clear();
        self.folds.forget(None);
    }
}

/// How many conversations with missing events a refusal names.
const MISSING_NAMED_MAX: usize = 20;

fn refuse_loss(problems: &[Problem]) -> Result<(), Error> {
    let missing: Vec<String> = problems
        .iter()
        .filter(|problem| problem.kind == ProblemKind::Missing)
        .map(|problem| match &problem.key {
            Some(key) => format!("{} ({}): {}", key.id, key.tenant, problem.text),
            None => problem.text.clone(),
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let rest = match missing.len().saturating_sub(MISSING_NAMED_MAX) {
        0 => String::new(),
        rest => format!("; and {rest} more"),
    };
    let named = missing[..missing.len().min(MISSING_NAMED_MAX)].join("; ");
    Err(Error::conflict(
        "rebuild.loss",
        format!(
            "the log lacks events that were written, and rebuilding would remove the last sign of them: {named}{rest}; \
             restore a backup, or add --accept-loss to go on without them"
        ),
    ))
}

/// Checks a chain. Also gives events without a body that no erasure in this log explains.
fn walk(
    shared: &Shared,
    key: &Key,
    head: Option<Hash>,
    progress: &mut dyn FnMut(u64),
) -> Result<(Report, Vec<Gone>), Error> {
    let mut verifier = Verifier::new(key.id, head);
    let (mut recorded, mut gone) = (Recorded::default(), Vec::new());
    let mut after = 0;
    loop {
        // Not checked on the way: the verifier tells apart what is missing, what was moved and what was changed.
        let page = shared.log.stored_events(key, after, PAGE_ENTRIES_MAX)?;
        let Some(last) = page.last() else {
            gone.retain(|gone| !recorded.explains(gone));
            return Ok((verifier.finish(), gone));
        };
        after = last.seq;
        for event in &page {
            verifier.push(event)?;
            recorded.add(event);
            gone.extend(Gone::of(event));
        }
        progress(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebuilding_is_refused_with_every_place_that_is_missing_and_only_then() {
        let key =
            Key { tenant: Tenant::new("acme").expect("a name"), id: ConversationId::from_bytes([7; 16]) };
        let problem = |kind, text: &str| Problem { key: Some(key.clone()), kind, text: text.into() };
        let stale = problem(ProblemKind::Derived, "1 row about turns differs from the log");
        assert!(refuse_loss(std::slice::from_ref(&stale)).is_ok());
        let cut = problem(ProblemKind::Missing, "seq 5 to 7 are missing");
        let error = refuse_loss(&[stale, cut]).expect_err("something is missing");
        assert_eq!(error.code(), "rebuild.loss");
        let says = format!("{} (acme): seq 5 to 7 are missing", key.id);
        assert!(error.text().contains(&says) && error.text().contains("--accept-loss"), "{error}");
    }
}
