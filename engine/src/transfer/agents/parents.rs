//! Parents of imported conversations: a subagent's names the conversation that it worked for once that is in the store.

use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::conversation::{Conversation, Settings};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_formats::agents::ImportOrigin;
use everturn_store::{ConversationQuery, ListOrder};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Keys of the parent's id in the metadata, while it is in the store and while it is not. Stored in the log, so frozen.
const PARENT: &str = "parent";
const MISSING: &str = "missing_parent";
/// Time for which a subagent may go on after the last turn of the session that it works for.
const LONGER_S: u64 = 24 * 60 * 60;

impl Tenant {
    /// The metadata of a conversation to be.
    pub(super) fn origin_metadata(&self, origin: &ImportOrigin, arrives: bool) -> Result<Raw, Error> {
        let mut import: Map<String, Value> = Raw::of(origin)?.read().unwrap_or_default();
        if !arrives {
            self.name_parent(&mut import)?;
        }
        Raw::of(&import)
    }

    /// Names the parents of conversations that an import met, and those of others that waited for one that it brought.
    pub(super) fn link_parents(
        &self,
        met: &[ConversationId],
        brought: &BTreeSet<ConversationId>,
    ) -> Result<(), Error> {
        let index = &self.shared().journal.index;
        let (mut began, mut ended) = (None, None);
        for id in met {
            let conversation = index.conversation(&self.key(*id))?;
            if brought.contains(id) {
                let said = (conversation.began, conversation.last_said);
                began = [began, said.0].into_iter().flatten().min();
                ended = ended.max(said.1);
            }
            self.link_parent(&conversation)?;
        }
        let (Some(began), Some(ended)) = (began, ended) else { return Ok(()) };
        // A subagent works while its session does.
        let last = ConversationId::from_bytes([u8::MAX; 16]);
        let mut query = ConversationQuery {
            since: Some(began),
            after: Some((ended.plus_s(LONGER_S), last)),
            limit: PAGE_ENTRIES_MAX,
            ..ConversationQuery::default()
        };
        loop {
            let page = index.conversations(self.name(), &query)?;
            for conversation in &page {
                let missing = import_of(conversation).and_then(|import| parent_in(&import, MISSING));
                if missing.is_some_and(|parent| brought.contains(&parent)) {
                    self.link_parent(conversation)?;
                }
            }
            match page.last() {
                Some(last) if page.len() == query.limit => query.after = Some(ListOrder::Said.position(last)),
                _ => return Ok(()),
            }
        }
    }

    fn link_parent(&self, conversation: &Conversation) -> Result<(), Error> {
        let Some(mut import) = import_of(conversation) else { return Ok(()) };
        if !self.name_parent(&mut import)? {
            return Ok(());
        }
        let mut settings = Settings::default();
        settings.metadata.insert("import".into(), Raw::of(&import)?);
        match self.conversation(conversation.id).update(settings).wait() {
            // An archived conversation is left as it is, and a deleted one needs nothing.
            Ok(_) | Err(Error::Conflict(_) | Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Puts the id of the parent under the key that says whether it is in the store; whether that is another one.
    fn name_parent(&self, import: &mut Map<String, Value>) -> Result<bool, Error> {
        let Some(parent) = parent_in(import, PARENT).or_else(|| parent_in(import, MISSING)) else {
            return Ok(false);
        };
        let (key, other) = match self.shared().journal.index.conversation(&self.key(parent)) {
            Ok(_) => (PARENT, MISSING),
            Err(Error::NotFound(_)) => (MISSING, PARENT),
            Err(error) => return Err(error),
        };
        let Some(id) = import.shift_remove(other) else { return Ok(false) };
        import.insert(key.to_string(), id);
        Ok(true)
    }
}

fn import_of(conversation: &Conversation) -> Option<Map<String, Value>> {
    conversation.metadata.get("import")?.read()
}

fn parent_in(import: &Map<String, Value>, key: &str) -> Option<ConversationId> {
    import.get(key)?.as_str()?.parse().ok()
}
