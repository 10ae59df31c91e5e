//! Changes of lists of conversations.

use crate::journal::{Observed, Observer};
use everturn_core::event::kind;
use everturn_core::id::TenantName;
use tokio::sync::broadcast;

/// News that may wait for a slow listener.
const AHEAD_MAX: usize = 64;

/// Names a tenant whenever this process begins or deletes one of its conversations.
pub struct Listings(broadcast::Sender<TenantName>);

impl Default for Listings {
    fn default() -> Listings {
        Listings(broadcast::Sender::new(AHEAD_MAX))
    }
}

impl Listings {
    /// From now on. A slow listener misses some, and is told so.
    pub fn subscribe(&self) -> broadcast::Receiver<TenantName> {
        self.0.subscribe()
    }
}

impl Observer for Listings {
    fn committed(&self, commit: &Observed<'_>) {
        if commit.deleted || commit.has(|kind| matches!(kind, kind::CREATED | kind::FORKED)) {
            // Nobody may be listening.
            let _ = self.0.send(commit.key.tenant.clone());
        }
    }
}
