//! Proof: that a log is what was written, and that a store is healthy.

use crate::Shared;
use crate::scope::{ListQuery, Scope};
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::chain::{Hash, Report, Verifier};
use everturn_core::id::{ConversationId, Key};
use everturn_core::limits::PAGE_ENTRIES_MAX;
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
        let key = self.key(id);
        let stored = self.shared().index.conversation(&key)?.head;
        let report = walk(self.shared(), &key, head, progress)?;
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
        Ok(report)
    }

    /// Checks everything of this tenant: every chain, every asset, and the database itself.
    pub fn doctor(&self, progress: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error> {
        let mut doctor = Doctor::default();
        for problem in self.shared().index.check()? {
            let advice = "restore the file from a backup; `export` still writes what can be read".into();
            doctor.findings.push(Finding { conversation: None, problem, advice });
        }
        let mut after = None;
        loop {
            let page = self.list(ListQuery { after, limit: PAGE_ENTRIES_MAX, ..ListQuery::default() })?;
            for conversation in page.data {
                match self.verify(conversation.id, None) {
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

fn walk(
    shared: &Shared,
    key: &Key,
    head: Option<Hash>,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, Error> {
    let mut verifier = Verifier::new(key.id, head);
    let mut after = 0;
    loop {
        // Not checked on the way: the verifier tells apart what is missing, what was moved and what was changed.
        let page = shared.log.stored_events(key, after, PAGE_ENTRIES_MAX)?;
        let Some(last) = page.last() else { return Ok(verifier.finish()) };
        after = last.seq;
        page.iter().try_for_each(|event| verifier.push(event))?;
        progress(after);
    }
}
