//! Storage quotas and usage of tenants.
//!
//! Usage is counted from a tenant's own rows when it is first needed, and kept in memory from then on: commits add to
//! it, and an erasure or a deletion causes a recount. So no row is written by every request, and without quotas
//! nothing is counted. Appends that run at the same moment may overshoot a quota together, by their own size.

use crate::journal::{Observed, Observer};
use crate::keys::Keys;
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::event::{Body, Draft, kind};
use everturn_core::id::TenantName;
use everturn_core::write::{Action, Write};
use everturn_store::{CheckedIndex, TenantUsage};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Storage quota of a tenant; null means unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "StorageQuotas")]
pub struct Quota {
    /// Turns.
    pub turns: Option<u64>,
    /// Bytes of events.
    pub bytes: Option<u64>,
    /// Assets.
    pub assets: Option<u64>,
    /// Bytes of assets.
    pub asset_bytes: Option<u64>,
    /// Keys that are neither revoked nor expired.
    pub keys: Option<u64>,
}

/// The quotas of all tenants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Quotas {
    /// Quota of tenants that are not named.
    pub default: Quota,
    /// Quotas by tenant, instead of the default.
    pub tenants: BTreeMap<String, Quota>,
}

impl Quotas {
    fn are_unlimited(&self) -> bool {
        self.default == Quota::default() && self.tenants.values().all(|quota| *quota == Quota::default())
    }

    /// The quota of a tenant.
    pub fn of(&self, tenant: &TenantName) -> Quota {
        self.tenants.get(tenant.as_str()).copied().unwrap_or(self.default)
    }
}

/// Quotas, and the usage of tenants as far as it was counted.
pub(crate) struct QuotaCounts {
    quotas: Quotas,
    index: Arc<dyn CheckedIndex>,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    tenants: HashMap<TenantName, TenantUsage>,
    /// Number of erasures and deletions: a count that began before one of them is not kept.
    removals: u64,
}

impl QuotaCounts {
    pub fn new(quotas: Quotas, index: Arc<dyn CheckedIndex>) -> QuotaCounts {
        QuotaCounts { quotas, index, counts: Mutex::default() }
    }

    /// Usage of a tenant.
    fn stored(&self, tenant: &TenantName) -> Result<TenantUsage, Error> {
        let removals = {
            let counts = self.counts.lock();
            if let Some(known) = counts.tenants.get(tenant) {
                return Ok(*known);
            }
            counts.removals
        };
        let usage = self.index.usage(tenant)?;
        // A commit that came meanwhile may be missing: the error is no larger than the permitted overshoot.
        let mut counts = self.counts.lock();
        if counts.removals == removals {
            counts.tenants.insert(tenant.clone(), usage);
        }
        Ok(usage)
    }

    /// Refuses additions that would exceed the tenant's quota.
    fn check_quota(&self, tenant: &TenantName, more: TenantUsage) -> Result<(), Error> {
        let quota = self.quotas.of(tenant);
        if (Quota { keys: None, ..quota }) == Quota::default() {
            return Ok(());
        }
        let has = self.stored(tenant)?;
        check("quotas.turns", quota.turns, has.turns, more.turns)?;
        check("quotas.bytes", quota.bytes, has.bytes, more.bytes)?;
        check("quotas.assets", quota.assets, has.assets, more.assets)?;
        check("quotas.asset_bytes", quota.asset_bytes, has.asset_bytes, more.asset_bytes)
    }

    /// Refuses a write over the quota. Ending a turn, hiding or removing something is never refused, and neither is a
    /// request that was answered before.
    pub(crate) fn check_write(&self, write: &mut Write) -> Result<(), Error> {
        if self.quotas.are_unlimited() {
            return Ok(());
        }
        let more = match &write.action {
            Action::Create { drafts, .. }
            | Action::Branch { drafts, .. }
            | Action::Append { drafts, .. }
            | Action::Derive { drafts, .. }
            | Action::Approve { drafts, .. }
                if drafts.iter().any(is_bounded) =>
            {
                let mut more = TenantUsage::default();
                drafts.iter().for_each(|draft| add(&mut more, &draft.kind, Some(&draft.body)));
                more
            }
            // Existing ones are skipped, so the number of new ones is not known.
            Action::Restore { .. } => TenantUsage::default(),
            _ => return Ok(()),
        };
        let refused = self.check_quota(&write.key.tenant, more);
        match (&mut write.action, refused) {
            (
                Action::Create { idempotency: Some(asked), .. }
                | Action::Append { idempotency: Some(asked), .. },
                Err(error),
            ) => {
                asked.only_repeat = Some(error);
                Ok(())
            }
            (_, refused) => refused,
        }
    }

    /// Refuses an asset over the quota, before its event exists.
    pub(crate) fn check_upload(&self, tenant: &TenantName, bytes: usize) -> Result<(), Error> {
        self.check_quota(
            tenant,
            TenantUsage { assets: 1, asset_bytes: bytes as u64, ..TenantUsage::default() },
        )
    }
}

impl Observer for QuotaCounts {
    fn committed(&self, commit: &Observed<'_>) {
        if self.quotas.are_unlimited() {
            return;
        }
        let mut counts = self.counts.lock();
        if commit.deleted || commit.has(|kind| kind == kind::ERASED) {
            counts.tenants.remove(&commit.key.tenant);
            counts.removals += 1;
        } else if let Some(has) = counts.tenants.get_mut(&commit.key.tenant) {
            commit.events().iter().for_each(|event| add(has, &event.kind, event.body.as_ref()));
        }
    }
}

/// Adds an event to the usage.
fn add(usage: &mut TenantUsage, kind: &str, body: Option<&Body>) {
    usage.bytes += body.map_or(0, |body| body.text.len() as u64);
    usage.turns += u64::from(kind::begins_turn(kind));
    usage.conversations += u64::from(matches!(kind, kind::CREATED | kind::FORKED));
    if kind == kind::ASSET_ADDED
        && let Some(body) = body
        && let Ok(Asset { sha256: Some(_), bytes, .. }) = serde_json::from_str(&body.text)
    {
        usage.assets += 1;
        usage.asset_bytes += bytes.unwrap_or(0);
    }
}

/// Whether a quota applies to it.
fn is_bounded(draft: &Draft) -> bool {
    let made_of_what_is_there = [kind::COMPACTION, kind::FACT_EXTRACTED, kind::FACTS_READ];
    let free = [
        kind::STATE,
        kind::BUDGET,
        kind::SUPERSEDED,
        kind::UNPIN,
        kind::SCRATCHPAD_CLEAR,
        kind::FACT_RETRACTED,
        kind::TOOL_ABANDONED,
        kind::APPROVAL_RESOLVED,
    ];
    let kind = &*draft.kind;
    !kind::ends_turn(kind) && !free.contains(&kind) && !made_of_what_is_there.contains(&kind)
}

fn check(name: &'static str, limit: Option<u64>, has: u64, more: u64) -> Result<(), Error> {
    match limit {
        Some(limit) if has + more > limit => {
            let text = format!(
                "{name} of this tenant is {limit}, and this would make it {}; delete what is not needed, or ask for a larger quota",
                has + more
            );
            Err(Error::too_large("quota.exceeded", text))
        }
        _ => Ok(()),
    }
}

impl Keys {
    /// Number of keys of a tenant that are neither revoked nor expired.
    pub fn count_valid(&self, tenant: &TenantName) -> Result<u64, Error> {
        let now = self.shared().now();
        Ok(self.shared().keys.store.keys(tenant)?.iter().filter(|key| key.is_valid(now)).count() as u64)
    }

    /// Refuses a key over the quota.
    pub(crate) fn check_quota(&self, tenant: &TenantName) -> Result<(), Error> {
        match self.shared().options.quotas.of(tenant).keys {
            Some(limit) => check("quotas.keys", Some(limit), self.count_valid(tenant)?, 1),
            None => Ok(()),
        }
    }
}

impl Tenant {
    /// Usage of the tenant. Counted each time unless there are quotas, which takes as long as reading its rows.
    pub fn usage(&self) -> Result<TenantUsage, Error> {
        match self.shared().options.quotas.are_unlimited() {
            true => self.shared().journal.index.usage(self.name()),
            false => self.shared().quotas.stored(self.name()),
        }
    }

    /// Storage quota of the tenant.
    pub fn quota(&self) -> Quota {
        self.shared().options.quotas.of(self.name())
    }
}
