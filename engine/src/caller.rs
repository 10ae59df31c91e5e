//! Callers of a tenant: their view, the actors that they write as, their access key, and a model of their own.
//!
//! A [`Tenant`] carries its caller, so that every handle made from it reads as that caller and signs what it writes.
//! [`Tenant::submit`] is the door for all writes of callers: names are checked, the key is noted, secrets are redacted.

use crate::conversation::ConversationHandle;
use crate::ingest::redaction_mode;
use crate::journal::Upload;
use crate::model::Configured;
use crate::streaming::open_turns::Open;
use crate::tenant::Tenant;
use crate::writer::Submitted;
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::asset::Asset;
use everturn_core::chain::{self, Hash, Head};
use everturn_core::conversation::Conversation;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::id::{Key, TurnId, clip};
use everturn_core::json::Raw;
use everturn_core::redaction::{self, RedactionMode};
use everturn_core::turn::{Role, Turn};
use everturn_core::viewer::Viewer;
use everturn_core::write::{Action, Write, absent_turn};
use everturn_store::TurnQuery;
use everturn_views::state::{Fold, speaks_of_tools};
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The caller of a tenant's operations. The default is the owner of the store.
#[derive(Clone, Debug)]
pub struct Caller {
    viewer: Viewer,
    role: KeyRole,
    /// Whether it may write only in the names of the viewer's actors.
    is_bound: bool,
    key: Option<Arc<str>>,
    model: Option<Configured>,
}

impl Default for Caller {
    fn default() -> Caller {
        Caller { viewer: Viewer::default(), role: KeyRole::Admin, is_bound: false, key: None, model: None }
    }
}

impl Caller {
    /// The holder of an access key. A key bound to actors sees what they see. Any other admin key sees everything, and any
    /// other key sees public content.
    pub fn holding(key: impl Into<Arc<str>>, role: KeyRole, actors: &[String]) -> Caller {
        let viewer = match (actors, role) {
            ([], KeyRole::Admin) => Viewer::Owner,
            (actors, _) => Viewer::actors(actors.iter().cloned()),
        };
        Caller { viewer, role, is_bound: !actors.is_empty(), key: Some(key.into()), model: None }
    }

    /// The same caller acting as these actors only.
    pub fn acting_as(&self, actors: Vec<String>) -> Result<Caller, Error> {
        for actor in &actors {
            everturn_core::event::check_name("actor", actor)?;
            self.check(actor)?;
        }
        Ok(Caller { viewer: Viewer::actors(actors), is_bound: true, ..self.clone() })
    }

    /// The actors that it is bound to; empty if it may act as anyone.
    pub fn actors(&self) -> &[String] {
        match &self.viewer {
            Viewer::Actors(names) if self.is_bound => names,
            _ => &[],
        }
    }

    /// The stored name of an idempotency key: for a caller that is bound to actors, the key and a second line that identifies
    /// them, however many they are and in whatever order.
    pub(crate) fn own_key(&self, key: &str) -> String {
        let actors: BTreeSet<&String> = self.actors().iter().collect();
        match actors.is_empty() {
            true => key.to_string(),
            false => format!("{key}\n{}", Hash::of(json!(actors).to_string().as_bytes())),
        }
    }

    /// Role of the caller.
    pub(crate) fn role(&self) -> KeyRole {
        self.role
    }

    /// Id of the key that it holds, or `jwt:` and the subject of its token.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The same caller with a model of its own. It is the default for replies, and it writes summaries and extracts facts
    /// instead of the model that a policy names. Background work does not use it.
    pub fn bringing(self, model: Configured) -> Caller {
        Caller { model: Some(model), ..self }
    }

    /// Its own model.
    pub(crate) fn model(&self) -> Option<&Configured> {
        self.model.as_ref()
    }

    /// Refuses to write to an open turn of others. One that the caller may not see is absent for it.
    pub(crate) fn check_open(&self, turn: TurnId, open: &Open) -> Result<(), Error> {
        let sees = self.viewer.sees(open.visibility, open.actor.as_deref(), &open.audience);
        if !sees && !self.has_opened(open.key.as_deref()) {
            return Err(absent_turn(turn));
        }
        open.actor.as_deref().map_or(Ok(()), |actor| self.check(actor))
    }

    /// Whether the turn was opened with the caller's own key. A caller that may act as anyone can continue a private turn that
    /// it opened for another actor.
    pub(crate) fn has_opened(&self, by: Option<&str>) -> bool {
        !self.is_bound && self.key() == by
    }

    pub(crate) fn check(&self, actor: &str) -> Result<(), Error> {
        if !self.is_bound || self.viewer.is(Some(actor)) {
            return Ok(());
        }
        let names = self.actors().join(", ");
        let text = format!("{:?} is not you: your key acts as {names}; use another key", clip(actor));
        Err(Error::forbidden("actor.forbidden", text))
    }

    /// Names the writer of an event. What a model, a tool or an instruction says without a name is nobody's, unless it is
    /// private: nobody could read it.
    fn sign(&self, draft: &mut Draft) -> Result<(), Error> {
        draft.key = self.key.as_deref().map(str::to_string);
        let is_private = draft.visibility == Visibility::Private && kind::begins_turn(&draft.kind);
        let is_own = is_private || draft.role.is_none_or(|role| role == Role::User);
        match (&draft.actor, self.actors()) {
            (Some(actor), _) => self.check(actor),
            (None, _) if !is_own => Ok(()),
            (None, [only]) => {
                draft.actor = Some(only.clone());
                Ok(())
            }
            (None, [_, ..]) if kind::begins_turn(&draft.kind) => {
                let names = self.actors().join(", ");
                let text = format!("your key acts as {names}; name one of them as the actor of the turn");
                Err(Error::invalid("actor.missing", text))
            }
            (None, _) => Ok(()),
        }
    }
}

impl Tenant {
    /// The same tenant for another caller.
    pub fn called_by(&self, caller: Caller) -> Tenant {
        let mut tenant = self.clone();
        tenant.caller = Arc::new(caller);
        tenant
    }

    /// The caller that reads and writes through this handle.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(crate) fn viewer(&self) -> &Viewer {
        &self.caller.viewer
    }

    /// Writes the events of a caller: signed, and with their secrets redacted.
    pub(crate) fn submit(
        &self,
        key: Key,
        mut action: Action,
        uploads: Vec<Upload>,
    ) -> Result<Submitted, Error> {
        match self.prepare(&key, None, &mut action) {
            Ok(()) => self.shared().submit(Write { key, action }, uploads),
            Err(error) => {
                self.shared().journal.uploaded(&uploads);
                Err(error)
            }
        }
    }

    /// Signs and redacts events. The conversation is read if it is not given.
    pub(crate) fn prepare(
        &self,
        key: &Key,
        conversation: Option<&Conversation>,
        action: &mut Action,
    ) -> Result<(), Error> {
        let begins = matches!(action, Action::Create { .. } | Action::Branch { .. });
        let forks = matches!(action, Action::Create { parent: Some(_), .. } | Action::Branch { .. });
        let copies = match action {
            Action::Branch { copies, .. } => copies.clone(),
            _ => BTreeMap::new(),
        };
        let drafts = match action {
            Action::Create { drafts, .. }
            | Action::Branch { drafts, .. }
            | Action::Append { drafts, .. }
            | Action::Approve { drafts, .. }
            | Action::Derive { drafts, .. } => &mut drafts[..],
            Action::Erase { draft, .. } => std::slice::from_mut(draft),
            _ => return Ok(()),
        };
        if !begins {
            self.check_calls(key, drafts)?;
        }
        // A copy keeps its author and the key that wrote it.
        let is_copy = |draft: &Draft| {
            let was_open = matches!(&*draft.kind, kind::OPENED | kind::INTERRUPTED);
            copies.contains_key(&draft.id) || forks && was_open
        };
        let mut own = drafts.iter_mut().filter(|draft| !is_copy(draft));
        own.try_for_each(|draft| self.caller.sign(draft))?;
        address_assets(drafts)?;
        // Bodies of turns and settings were redacted where they came in.
        let mode = match conversation {
            Some(conversation) => Some(redaction_mode(conversation)),
            None if begins => None,
            None => self.shared().journal.conversation(key).ok().map(|found| redaction_mode(&found)),
        };
        let mode = mode.or_else(|| drafts.iter().find_map(mode_of_settings)).unwrap_or_default();
        drafts.iter_mut().try_for_each(|draft| redact(draft, mode))
    }
}

impl Tenant {
    /// Refuses to answer, finish or give up a tool call that the caller may not see: it is absent for it.
    fn check_calls(&self, key: &Key, drafts: &[Draft]) -> Result<(), Error> {
        let is_about_tools = |draft: &Draft| {
            draft.kind.starts_with("tool")
                || kind::is_of_turn(&draft.kind) && speaks_of_tools(&draft.body.text)
        };
        if !self.caller.is_bound || !drafts.iter().any(is_about_tools) {
            return Ok(());
        }
        let chat = self.conversation(key.id);
        let mut head = self.shared().journal.conversation(key)?.head;
        let mut fold = Fold::clone(&*self.shared().fold(key, head.seq)?);
        for draft in drafts {
            let event = chain::next_event(key.id, head, draft.clone());
            head = Head { seq: event.seq, hash: event.hash };
            for tool in fold.settle(&event) {
                let is_own = drafts.iter().any(|draft| draft.turn.is_some() && draft.turn == tool.turn);
                if !is_own && chat.pending_tool(&tool)?.is_none() {
                    let text = "no call that you can see waits for this; take its id from the state";
                    return Err(Error::not_found("tool_call.absent", text));
                }
            }
        }
        Ok(())
    }
}

/// Addresses private assets to the actors of their turns: some are known only once they are signed.
fn address_assets(drafts: &mut [Draft]) -> Result<(), Error> {
    for at in 0..drafts.len() {
        let (asset, turn) = (&drafts[at], drafts[at].turn);
        if asset.kind != kind::ASSET_ADDED || asset.visibility != Visibility::Private || turn.is_none() {
            continue;
        }
        let said = drafts.iter().find(|draft| draft.turn == turn && kind::is_of_turn(&draft.kind));
        let Some(actor) = said.and_then(|said| said.actor.clone()) else { continue };
        let Some(mut asset) = Raw::new(asset.body.text.clone())?.read::<Asset>() else { continue };
        if !asset.audience.contains(&actor) {
            asset.audience.push(actor);
            drafts[at].body.text = Raw::of(&asset)?.get().to_string();
        }
    }
    Ok(())
}

/// Masks the secrets in a name.
pub(crate) fn mask_name(name: &mut String, mode: RedactionMode) {
    if mode == RedactionMode::Mask
        && let Cow::Owned(masked) = redaction::mask(name, &mut Vec::new())
    {
        *name = masked;
    }
}

/// Redaction mode that the settings in an event ask for.
fn mode_of_settings(draft: &Draft) -> Option<RedactionMode> {
    let settings: everturn_core::conversation::Settings = if kind::is_settings(&draft.kind) {
        serde_json::from_str(&draft.body.text).ok()?
    } else {
        return None;
    };
    settings.redaction()
}

/// Whether events of this kind are redacted when they are written. The others were before, or hold hashes and places that
/// must stay as they are.
fn is_redacted_here(kind: &str) -> bool {
    !kind::is_of_turn(kind)
        && !kind::is_settings(kind)
        && !matches!(kind, kind::SYSTEM_PROMPT | kind::RECEIPT | kind::PROJECTION)
}

/// Redacts the names and the body of an event.
pub(crate) fn redact(draft: &mut Draft, mode: RedactionMode) -> Result<(), Error> {
    if let Some(actor) = &mut draft.actor {
        mask_name(actor, mode);
    }
    if let Cow::Owned(kind) = &mut draft.kind {
        mask_name(kind, mode);
    }
    if is_redacted_here(&draft.kind)
        && let (Cow::Owned(masked), _) = redaction::redact(&draft.body.text, mode)?
    {
        draft.body.text = masked;
    }
    Ok(())
}

impl ConversationHandle {
    /// The same conversation as another viewer sees it. What it writes is signed as before.
    pub(crate) fn seen_by(&self, viewer: Viewer) -> ConversationHandle {
        let caller = Caller { viewer, is_bound: false, ..self.tenant.caller().clone() };
        self.tenant.called_by(caller).conversation(self.id())
    }

    /// The conversation as these actors see it, or as the caller does if none is named. A caller that is not bound may
    /// name any.
    pub(crate) fn claiming(&self, actors: &[String]) -> Result<ConversationHandle, Error> {
        actors.iter().try_for_each(|actor| self.tenant.caller.check(actor))?;
        Ok(match actors {
            [] => self.clone(),
            _ => self.seen_by(Viewer::actors(self.stored_names(actors)?)),
        })
    }

    /// These actors as turns name them: where the conversation masks secrets, without them.
    fn stored_names<'a>(&self, actors: impl IntoIterator<Item = &'a String>) -> Result<Vec<String>, Error> {
        let mode = self.redaction()?;
        let mut names: Vec<String> = actors.into_iter().cloned().collect();
        names.iter_mut().for_each(|name| mask_name(name, mode));
        Ok(names)
    }

    /// The conversation as the caller and this actor see it. A caller that is not bound may name any.
    pub(crate) fn also_as(&self, actor: Option<&String>) -> Result<ConversationHandle, Error> {
        actor.map_or(Ok(()), |actor| self.tenant.caller.check(actor))?;
        Ok(match self.tenant.viewer().names() {
            Some(names) => self.seen_by(Viewer::actors(names.into_iter().chain(actor.cloned()))),
            None => self.clone(),
        })
    }

    /// The conversation for a model that replies as this actor: it sees its own private turns, but nobody else's, and not
    /// those of an actor that the caller may not name.
    pub(crate) fn replying_as(
        &self,
        actor: Option<&String>,
        participants: &[String],
    ) -> Result<ConversationHandle, Error> {
        let caller = &self.tenant.caller;
        participants.iter().try_for_each(|actor| caller.check(actor))?;
        let actor = actor.filter(|actor| caller.check(actor).is_ok());
        Ok(self.seen_by(Viewer::actors(self.stored_names(actor.into_iter().chain(participants))?)))
    }

    /// The conversation with public content only, for derived content that is public itself.
    pub(crate) fn for_everyone(&self) -> ConversationHandle {
        self.seen_by(Viewer::everyone())
    }

    pub(crate) fn redaction(&self) -> Result<RedactionMode, Error> {
        let conversation = self.shared().journal.conversation(self.key())?;
        Ok(redaction_mode(&conversation))
    }

    /// Turns as the caller sees them.
    pub(crate) fn turns(&self, query: &TurnQuery) -> Result<Vec<Turn>, Error> {
        let turns = self.shared().journal.index.turns(self.key(), query)?;
        Ok(turns.into_iter().map(|turn| self.tenant.viewer().turn(turn)).collect())
    }

    /// Events as the caller sees them.
    pub(crate) fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        let events = self.shared().journal.log.events(self.key(), after, limit)?;
        Ok(events.into_iter().map(|event| self.tenant.viewer().event(event)).collect())
    }

    /// A turn that the caller may see; absent for it otherwise.
    pub(crate) fn visible_turn(&self, id: TurnId) -> Result<Turn, Error> {
        let turn = self.turn(id)?;
        let is_absent = turn.hidden && turn.message.is_none();
        if is_absent { Err(absent_turn(id)) } else { Ok(turn) }
    }
}
