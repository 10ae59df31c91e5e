//! Verification of logs, and health checks of a store.

use crate::conversation::ConversationHandle;
use crate::erasing::erasures::{Erasures, Gone, Recorded};
use crate::everturn::{Everturn, Shared};
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::chain::{self, ChainReport, Hash, Head, Verifier, envelope_hash};
use everturn_core::error::code;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_store::{ProblemKind, StoreProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// A problem of a store, with advice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Finding {
    /// The tenant, if the problem concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
    /// The conversation, if the problem concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationId>,
    /// Description of the problem.
    pub problem: String,
    /// Advice on how to proceed.
    pub advice: String,
}

impl Finding {
    fn about(key: Key, problem: impl Into<String>, advice: &str) -> Finding {
        let (tenant, conversation) = (Some(key.tenant), Some(key.id));
        Finding { tenant, conversation, problem: problem.into(), advice: advice.into() }
    }
}

impl From<StoreProblem> for Finding {
    fn from(problem: StoreProblem) -> Finding {
        let (tenant, conversation) = problem.key.map(|key| (key.tenant, key.id)).unzip();
        Finding { tenant, conversation, problem: problem.text, advice: advice(problem.kind).into() }
    }
}

/// Result of checking a store, or a tenant's part of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Doctor {
    /// Conversations whose chains were verified.
    pub conversations: u64,
    /// Events that were checked.
    pub events: u64,
    /// Bodies that are erased.
    pub erased: u64,
    /// Assets whose bytes were checked.
    pub assets: u64,
    /// Problems; empty if there are none.
    pub findings: Vec<Finding>,
}

impl Tenant {
    /// Events without a body whose erasure is recorded in no log.
    fn unrecorded<'a>(
        &'a self,
        key: &Key,
        gone: Vec<Gone>,
        erasures: &mut Option<Erasures<'a>>,
    ) -> Result<Vec<Gone>, Error> {
        let mut unrecorded = Vec::new();
        for gone in gone {
            // An event imported or restored without its body was erased elsewhere.
            if !self.shared().journal.log.had_body(key, gone.place.seq)? {
                continue;
            }
            let erasures = match &mut *erasures {
                Some(erasures) => erasures,
                none => none.insert(Erasures::of(self.shared())?),
            };
            if !erasures.explain_in(key, &gone)? {
                unrecorded.push(gone);
            }
        }
        Ok(unrecorded)
    }

    /// Whether a turn has content.
    fn has_words(&self, key: &Key, turn: TurnId) -> bool {
        self.shared().journal.index.turn_in(key, turn).is_ok_and(|turn| turn.message.is_some())
    }

    /// Checks everything of this tenant: every chain, every asset, and the database itself.
    pub fn doctor(&self, progress: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error> {
        let Some(_checking) = self.shared().checking.try_lock() else {
            return Err(Error::busy(
                "doctor.busy",
                "another check of the store is running; ask again in a minute",
            ));
        };
        let problems = self.shared().journal.index.check()?.into_iter();
        // Findings about other tenants are not disclosed.
        let own =
            problems.filter(|problem| problem.key.as_ref().is_none_or(|key| key.tenant == *self.name()));
        let mut doctor = Doctor { findings: own.map(Finding::from).collect(), ..Doctor::default() };
        self.examine(&mut doctor, progress)?;
        Ok(doctor)
    }

    /// Verifies every chain and reads every asset. Goes on after damage.
    fn examine(&self, doctor: &mut Doctor, progress: &mut dyn FnMut(&Doctor)) -> Result<(), Error> {
        let own = doctor.findings.iter().filter(|finding| finding.tenant.as_ref() == Some(self.name()));
        let told: HashSet<ConversationId> = own.filter_map(|finding| finding.conversation).collect();
        let (mut walked, mut erasures) = (HashMap::new(), None);
        for id in self.shared().journal.index.starting_with(self.name(), "", usize::MAX)? {
            let key = self.key(id);
            let before = doctor.findings.len();
            let gone = self.examine_log(&key, !told.contains(&id), &mut walked, doctor);
            if doctor.findings.len() > before {
                // Rows that differ from a damaged log follow from its damage, and cannot be made again from it.
                let follows = |finding: &Finding| {
                    finding.conversation == Some(id) && finding.advice == advice(ProblemKind::Derived)
                };
                doctor.findings.retain(|finding| !follows(finding));
            }
            // Unreadable events were reported already.
            for gone in self.unrecorded(&key, gone, &mut erasures).unwrap_or_default() {
                doctor.findings.push(Finding::about(key.clone(), gone.text(), CHANGED));
            }
            self.examine_folds(&key, doctor);
            match self.conversation(id).assets().list() {
                Ok(assets) => {
                    doctor.assets += assets.len() as u64;
                    doctor.findings.extend(assets.iter().filter_map(|asset| self.check_asset(id, asset)));
                }
                // Reported already.
                Err(error) if told.contains(&id) || error.is_chain_damage() => {}
                Err(error) => doctor.findings.push(Finding::about(key, error.text(), CHANGED)),
            }
            doctor.conversations += 1;
            progress(doctor);
        }
        Ok(())
    }

    /// Reports damaged folds. A damaged fold is computed again when needed, at the cost of reading the log.
    fn examine_folds(&self, key: &Key, doctor: &mut Doctor) {
        let shared = self.shared();
        let Ok(conversation) = shared.journal.index.conversation(key) else { return };
        let floor = conversation.parent.map_or(0, |parent| parent.at_seq);
        for seq in shared.damaged_folds(key, floor).unwrap_or_default() {
            let text = format!("the fold at seq {seq} is not the one that was stored");
            doctor.findings.push(Finding::about(key.clone(), text, advice(ProblemKind::Derived)));
        }
    }

    /// Checks every event of a conversation. Events that forks share are checked once: `walked` holds how far each
    /// conversation's own events were. `all` is false where events are known to be missing or rows to be wrong.
    /// Returns events without a body that no erasure in this log explains.
    fn examine_log(
        &self,
        key: &Key,
        all: bool,
        walked: &mut HashMap<ConversationId, u64>,
        doctor: &mut Doctor,
    ) -> Vec<Gone> {
        let shared = self.shared();
        let (mut recorded, mut gone) = (Recorded::default(), Vec::new());
        // Those of events that no other conversation told of before.
        let mut told = Recorded::default();
        let mut end: Option<Head> = None;
        let mut end_is_sound = true;
        let find = |doctor: &mut Doctor, id: ConversationId, problem: String| {
            doctor.findings.push(Finding::about(self.key(id), problem, CHANGED));
        };
        loop {
            let after = end.map_or(0, |end| end.seq);
            let page = match shared.journal.log.stored_events(key, after, PAGE_ENTRIES_MAX) {
                Ok(page) => page,
                // The wrong rows, reported already, make it unreadable.
                Err(_) if !all => return Vec::new(),
                Err(error) => {
                    find(doctor, key.id, error.text().into());
                    return Vec::new();
                }
            };
            if page.is_empty() {
                break;
            }
            if page.iter().any(|event| event.seq <= after) {
                // Prevents an endless loop over the same page.
                find(doctor, key.id, format!("seq {after} is followed by an event with a lower seq"));
                return Vec::new();
            }
            for event in &page {
                let expected = end.map_or(0, |end| end.seq) + 1;
                // Of an event after a missing one, only the body can be checked.
                let before = if event.seq == expected { end } else { None };
                let alone = event.seq > expected;
                end = Some(Head { seq: event.seq, hash: envelope_hash(event) });
                recorded.add(event);
                let walked = walked.entry(event.conversation).or_default();
                if event.seq <= *walked {
                    continue;
                }
                *walked = event.seq;
                told.add(event);
                if alone && all {
                    let last = event.seq - 1;
                    find(doctor, event.conversation, format!("seq {expected} to {last} are missing"));
                }
                doctor.events += 1;
                doctor.erased += u64::from(event.body.is_none());
                gone.extend(Gone::of(event));
                let changed = changed_part(event, before, alone);
                end_is_sound = changed.is_none();
                if let Some(what) = changed {
                    let text = format!(
                        "seq {} ({}): its {what} is not the one that was written",
                        event.seq, event.id
                    );
                    find(doctor, event.conversation, text);
                }
            }
        }
        gone.retain(|gone| !recorded.explains(gone));
        for turn in told.turns().filter(|turn| self.has_words(key, *turn)) {
            doctor.findings.push(Finding::about(key.clone(), not_erased(turn), ERASE_AGAIN));
        }
        let Ok(stored) = shared.journal.index.conversation(key) else { return gone };
        let end = end.unwrap_or(Head::genesis(key.id));
        // The log may have grown meanwhile, but it cannot have become shorter.
        if all && end.seq < stored.head.seq {
            find(doctor, key.id, format!("the log ends at seq {} but had {}", end.seq, stored.head.seq));
        }
        if end_is_sound && end.seq == stored.head.seq && end.hash != stored.head.hash {
            find(doctor, key.id, "the last event is not the one that was written".into());
        }
        gone
    }

    fn check_asset(&self, conversation: ConversationId, asset: &Asset) -> Option<Finding> {
        // An asset imported as a descriptor only has its bytes elsewhere.
        let ours = everturn_store::assets::path(self.name(), asset.sha256?);
        asset.storage.as_ref().filter(|storage| storage.path.as_ref() == Some(&ours))?;
        let error = self.assets().bytes(asset).err()?;
        let problem = format!("{}: {error}", asset.id);
        Some(Finding::about(self.key(conversation), problem, "restore the asset folder from a backup"))
    }
}

/// The log of a conversation.
pub struct ConversationLog<'a>(pub(crate) &'a ConversationHandle);

impl ConversationLog<'_> {
    /// Verifies a conversation's chain. An error is the first problem. With `head`, a hash noted earlier, also checks
    /// that the log still contains it.
    pub fn verify(&self, head: Option<Hash>) -> Result<ChainReport, Error> {
        self.0.log().verify_with(head, &mut |_| {})
    }

    /// As [`verify`](ConversationLog::verify), with a callback for the number of events checked so far.
    pub fn verify_with(
        &self,
        head: Option<Hash>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ChainReport, Error> {
        let key = self.0.key();
        let stored = self.0.shared().journal.index.conversation(key)?.head;
        let (report, gone, recorded) = walk(self.0.shared(), key, head, progress)?;
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
        if let Some(gone) = self.0.tenant.unrecorded(key, gone, &mut None)?.first() {
            return Err(Error::corrupt("chain.erasure_unrecorded", gone.text()));
        }
        match recorded.turns().find(|turn| self.0.tenant.has_words(key, *turn)) {
            Some(turn) => {
                Err(Error::corrupt("chain.erasure_undone", format!("{}; {ERASE_AGAIN}", not_erased(turn))))
            }
            None => Ok(report),
        }
    }
}

/// Advice for words that are there although their erasure is recorded.
const ERASE_AGAIN: &str = "erase it again (`everturn erase TURN`)";

fn not_erased(turn: TurnId) -> String {
    format!("{turn} was erased according to the log, and its words are here")
}

/// Advice for a changed log.
const CHANGED: &str = "someone or something changed the stored log; compare with a backup or an export";

/// The part of an event that was changed. `before` is the head according to the envelope of the previous event, whose
/// stored hash may be wrong; `alone` means that the previous event is missing.
fn changed_part(event: &Event, before: Option<Head>, alone: bool) -> Option<&'static str> {
    let error = chain::check(event).err()?;
    if error.is(code::BODY_MISMATCH) {
        return Some("body");
    }
    let follows = |head: Head| envelope_hash(&Event { prev: head.hash, ..event.clone() }) == event.hash;
    (!alone && !before.is_some_and(follows)).then_some("envelope")
}

fn advice(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Damaged => "restore the file from a backup; `export` still writes what can be read",
        ProblemKind::Missing => {
            "restore a backup; without one, go on in a fork from before that seq (`everturn fork CONV --at SEQ`), or with what there is (`everturn doctor --rebuild --accept-loss`)"
        }
        ProblemKind::Derived => "`everturn doctor --rebuild` makes it again from the log",
    }
}

impl Everturn {
    /// Checks everything, of all tenants: every chain, every asset, and the database itself.
    pub fn doctor(&self, progress: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error> {
        let problems = self.inner.shared.journal.index.check()?;
        let findings = problems.into_iter().map(Finding::from).collect();
        let mut doctor = Doctor { findings, ..Doctor::default() };
        for tenant in self.inner.shared.journal.index.tenants()? {
            self.tenant(tenant.as_str())?.examine(&mut doctor, progress)?;
        }
        Ok(doctor)
    }

    /// Drops everything derived from the log and makes it again. The recall index follows in the background. Refused
    /// where rows know of events that the log lacks, since they are the last evidence of them; with
    /// `Options::accept_loss` it is done, and the result lists the events that were given up.
    pub fn rebuild(&self) -> Result<Vec<Finding>, Error> {
        let shared = &self.inner.shared;
        let mut missing = shared.journal.index.check()?;
        missing.retain(|problem| problem.kind == ProblemKind::Missing);
        if !shared.options.accept_loss {
            refuse_loss(&missing)?;
        }
        shared.journal.forget_derived();
        shared.journal.index.rebuild()?;
        shared.recall.indexer.note();
        Ok(missing.into_iter().map(Finding::from).collect())
    }
}

/// Most conversations with missing events that an error names.
const MISSING_NAMED_MAX: usize = 20;

fn refuse_loss(missing: &[StoreProblem]) -> Result<(), Error> {
    let missing: Vec<String> = missing
        .iter()
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
            "the log lacks events that were written, and rebuilding would remove the last evidence of them: {named}{rest}; \
             restore a backup, or add --accept-loss to go on without them"
        ),
    ))
}

/// Verifies a chain. Also returns events without a body that no erasure in this log explains, and the erasures that it
/// records.
fn walk(
    shared: &Shared,
    key: &Key,
    head: Option<Hash>,
    progress: &mut dyn FnMut(u64),
) -> Result<(ChainReport, Vec<Gone>, Recorded), Error> {
    let mut verifier = Verifier::new(key.id, head);
    let (mut recorded, mut gone) = (Recorded::default(), Vec::new());
    let mut after = 0;
    loop {
        // Not checked while reading: the verifier tells missing, moved and changed events apart.
        let page = shared.journal.log.stored_events(key, after, PAGE_ENTRIES_MAX)?;
        let Some(last) = page.last() else {
            gone.retain(|gone| !recorded.explains(gone));
            return Ok((verifier.finish(), gone, recorded));
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
            Key { tenant: TenantName::new("acme").expect("a name"), id: ConversationId::from_bytes([7; 16]) };
        let problem = |kind, text: &str| StoreProblem { key: Some(key.clone()), kind, text: text.into() };
        assert!(refuse_loss(&[]).is_ok());
        let cut = problem(ProblemKind::Missing, "seq 5 to 7 are missing");
        let error = refuse_loss(&[cut]).expect_err("something is missing");
        assert_eq!(error.code(), "rebuild.loss");
        let says = format!("{} (acme): seq 5 to 7 are missing", key.id);
        assert!(error.text().contains(&says) && error.text().contains("--accept-loss"), "{error}");
    }
}
