//! Telling clients what has changed.

use everturn::{Subscription, Tenant, Update};
use everturn_core::Error;
use everturn_core::id::{ConversationId, TenantName};
use futures_util::StreamExt;
use rmcp::RoleServer;
use rmcp::model::{
    ResourceListChangedNotification, ResourceUpdatedNotification, ResourceUpdatedNotificationParam,
    ServerNotification,
};
use rmcp::service::{Peer, SubscriptionSink};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// So many events at once are one change.
const EVENTS_AT_ONCE: usize = 256;

/// Who is told.
pub enum Client {
    /// That of a session.
    Session(Peer<RoleServer>),
    /// One that listens, in the protocol without sessions.
    Listening(SubscriptionSink),
}

impl Client {
    /// A conversation has changed, or may have. `false` if the client went away.
    pub async fn updated(&self, uri: &str) -> bool {
        let changed = ResourceUpdatedNotification::new(ResourceUpdatedNotificationParam::new(uri));
        self.tell(ServerNotification::ResourceUpdatedNotification(changed)).await
    }

    /// The list of conversations has changed, or may have. `false` if the client went away.
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

/// Everything after this moment.
pub fn from_now(scope: &Tenant, id: ConversationId) -> Result<Subscription, Error> {
    scope.conversation(id).subscribe(scope.conversation(id).get()?.head.seq)
}

/// Tells whenever something was appended, until the client goes away or the conversation is deleted. Text that is still
/// being written is no change; its end is one.
pub async fn conversation(
    scope: Tenant,
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
                        tracing::warn!(code = error.code(), "a conversation cannot be followed any more");
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
        match scope.conversation(id).subscribe(again_from.saturating_sub(1)) {
            Ok(again) => updates = again,
            Err(_) => return,
        }
    }
}

/// Tells whenever a conversation of the tenant was begun or deleted, until the client goes away.
pub async fn list(mut listed: Receiver<TenantName>, tenant: TenantName, client: Client) {
    loop {
        let theirs = match listed.recv().await {
            Ok(whose) => whose == tenant,
            // Too many to count: one of them may be theirs.
            Err(RecvError::Lagged(_)) => true,
            Err(RecvError::Closed) => return,
        };
        if theirs && !client.list_changed().await {
            return;
        }
    }
}
