//! Notifications of changed lists of conversations.

use crate::journal::{Observed, Observer};
use everturn_core::event::kind;
use everturn_core::id::TenantName;
use everturn_store::ChangedConversation;
use tokio::sync::broadcast;

/// Notifications buffered for a slow listener.
const AHEAD_MAX: usize = 64;

/// Names a tenant whenever one of its conversations begins or is deleted.
pub struct Listings(broadcast::Sender<TenantName>);

impl Default for Listings {
    fn default() -> Listings {
        Listings(broadcast::Sender::new(AHEAD_MAX))
    }
}

impl Listings {
    /// Notifications from now on. A slow listener misses some, and is told so.
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

    fn changed_elsewhere(&self, change: &ChangedConversation) {
        if change.created || change.deleted {
            let _ = self.0.send(change.key.tenant.clone());
        }
    }
}
