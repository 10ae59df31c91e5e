//! Notifications of clients about changes.

use super::stdio::SharedStore;
use crate::app::blocking;
use everturn_core::Error;
use everturn_core::id::{ConversationId, TenantName};
use everturn_engine::{ChangeKind, ChangeSubscription, Listings, Subscription, Tenant, Update};
use futures_util::StreamExt;
use rmcp::RoleServer;
use rmcp::model::{
    ResourceListChangedNotification, ResourceUpdatedNotification, ResourceUpdatedNotificationParam,
    ServerNotification,
};
use rmcp::service::{Peer, SubscriptionSink};
use std::sync::Arc;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Maximum number of events that are combined into one change.
const EVENTS_AT_ONCE: usize = 256;

pub enum Client {
    Session(Peer<RoleServer>),
    /// Client that listens, in the protocol without sessions.
    Listening(SubscriptionSink),
}

impl Client {
    /// Reports a possible change of a conversation. `false` if the client is gone.
    pub async fn updated(&self, uri: &str) -> bool {
        let changed = ResourceUpdatedNotification::new(ResourceUpdatedNotificationParam::new(uri));
        self.tell(ServerNotification::ResourceUpdatedNotification(changed)).await
    }

    /// Reports a possible change of the list of conversations. `false` if the client is gone.
    pub async fn list_changed(&self) -> bool {
        let changed = ResourceListChangedNotification::default();
        self.tell(ServerNotification::ResourceListChangedNotification(changed)).await
    }

    async fn tell(&self, news: ServerNotification) -> bool {
        match self {
            Client::Session(peer) => peer.send_notification(news).await.is_ok(),
            Client::Listening(sink) => sink.send(news).await.is_ok(),
        }
    }
}

/// A subscription from this moment on.
pub fn from_now(tenant: &Tenant, id: ConversationId) -> Result<Subscription, Error> {
    tenant.conversation(id).subscribe(tenant.conversation(id).get()?.head.seq)
}

/// Reports every append, until the client is gone or the conversation is deleted. Chunks of an open turn are
/// not reported; its end is.
pub async fn conversation(
    tenant: Tenant,
    id: ConversationId,
    mut updates: Subscription,
    uri: String,
    client: Client,
) {
    loop {
        let mut batches = updates.ready_chunks(EVENTS_AT_ONCE);
        let again_from = loop {
            let Some(batch) = batches.next().await else { return };
            let mut news = false;
            let mut lagged = None;
            let mut over = false;
            for update in batch {
                match update {
                    Ok(Update::Event(_)) => news = true,
                    Ok(Update::Chunk(_)) => {}
                    Ok(Update::Lagged { resume_from }) => (news, lagged) = (true, Some(resume_from)),
                    Ok(Update::Deleted) => (news, over) = (true, true),
                    Err(error) => {
                        tracing::warn!(code = error.code(), "a subscription to a conversation ended");
                        over = true;
                    }
                }
            }
            if (news && !client.updated(&uri).await) || over {
                return;
            }
            if let Some(seq) = lagged {
                break seq;
            }
        };
        match tenant.conversation(id).subscribe(again_from.saturating_sub(1)) {
            Ok(again) => updates = again,
            Err(_) => return,
        }
    }
}

/// Source of changes of lists of conversations.
pub enum ListingSource {
    /// A store that this process serves.
    Served(Arc<Listings>),
    /// One that another process may own.
    Shared(Arc<dyn SharedStore>),
}

impl ListingSource {
    /// Changes from now on.
    pub fn subscribe(&self) -> ListingUpdates {
        match self {
            ListingSource::Served(listings) => ListingUpdates::Served(listings.subscribe()),
            ListingSource::Shared(store) => {
                ListingUpdates::Shared(store.clone(), store.tenant().changes(None))
            }
        }
    }
}

/// Changes of lists of conversations.
pub enum ListingUpdates {
    /// Tenants whose list has changed.
    Served(Receiver<TenantName>),
    /// Changes of the tenant.
    Shared(Arc<dyn SharedStore>, ChangeSubscription),
}

impl ListingUpdates {
    /// Waits for a change of the tenant's list, and returns the subscription to those after it; `None` if there can be no more.
    async fn next(self, tenant: &TenantName) -> Option<ListingUpdates> {
        match self {
            ListingUpdates::Served(mut listings) => loop {
                match listings.recv().await {
                    Ok(whose) if whose != *tenant => {}
                    // Some were missed: one of them may be the tenant's.
                    Ok(_) | Err(RecvError::Lagged(_)) => return Some(ListingUpdates::Served(listings)),
                    Err(RecvError::Closed) => return None,
                }
            },
            ListingUpdates::Shared(store, mut changes) => loop {
                let is_open = changes.wait().await;
                let from = store.clone();
                let read = blocking(move || {
                    if !is_open {
                        // This process owns the store now, and has opened it again.
                        return Ok((from.tenant().changes(Some(changes.position())), false));
                    }
                    let read = changes.read()?;
                    let is_listed = |kind| matches!(kind, ChangeKind::Created | ChangeKind::Deleted);
                    Ok((changes, read.reset || read.data.iter().any(|change| is_listed(change.change))))
                });
                match read.await {
                    Ok((rest, true)) => return Some(ListingUpdates::Shared(store, rest)),
                    Ok((rest, false)) => changes = rest,
                    Err(error) => {
                        tracing::warn!(
                            code = error.code(),
                            "changes of conversations are no longer reported"
                        );
                        return None;
                    }
                }
            },
        }
    }
}

/// Reports created and deleted conversations of the tenant, until the client is gone.
pub async fn list(mut listed: ListingUpdates, tenant: TenantName, client: Client) {
    while let Some(rest) = listed.next(&tenant).await {
        if !client.list_changed().await {
            return;
        }
        listed = rest;
    }
}
