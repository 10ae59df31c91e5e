//! Streamed turns: opened, extended by chunks, ended.

use crate::caller::mask_name;
use crate::conversation::{AppendOptions, ConversationHandle, idempotency, repeat_or};
use crate::ingest::{self, DraftKind, NewTurn};
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::{Draft, Visibility, kind};
use everturn_core::id::{EventId, TurnId};
use everturn_core::json::{Raw, quote};
use everturn_core::turn::{Role, Status, Turn, TurnBody};
use everturn_core::write::{Action, Idempotency, SupersededBody, absent_turn, not_open};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Options of a streamed turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewStream {
    /// Actor.
    pub actor: Option<String>,
    /// Role; the assistant's by default.
    pub role: Option<Role>,
    /// Visibility; public by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Actors that it is addressed to. It is then private: only they and its own actor see it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Model that writes it.
    pub model: Option<String>,
    /// Further data to keep with it.
    pub metadata: BTreeMap<String, Raw>,
    /// A request repeated with the same key returns the existing turn.
    pub idempotency_key: Option<String>,
}

/// An open turn, extended chunk by chunk. From [`ConversationHandle::open_turn`].
pub struct OpenTurnHandle<'a> {
    conversation: &'a ConversationHandle,
    turn: TurnId,
}

impl ConversationHandle {
    /// Opens a turn to be streamed in chunks.
    pub fn open(&self, mut new: NewStream) -> Commit<Turn> {
        let prepared = (|| {
            let request = match new.visibility.is_some() || !new.audience.is_empty() {
                true => Raw::of(&new)?,
                false => Raw::of(&json!([new.actor, new.role, new.model, new.metadata]))?,
            };
            let (key, request) = (new.idempotency_key.take(), Hash::of(request.get().as_bytes()));
            idempotency(self.tenant.caller(), key, Some(request))
        })();
        match prepared {
            Ok(asked) => self.open_once(new, asked, |turn, _| Ok(turn)),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    /// The same for a request that is known already. `read` gets the turn, and whether it was opened before.
    pub(crate) fn open_once<T: 'static>(
        &self,
        new: NewStream,
        asked: Option<Idempotency>,
        read: impl FnOnce(Turn, bool) -> Result<T, Error> + Send + 'static,
    ) -> Commit<T> {
        let idempotency = asked.clone();
        let prepared = (|| {
            let ulid = self.shared().journal.source.ulid()?;
            let conversation = self.shared().journal.conversation(self.key())?;
            let role = new.role.unwrap_or(Role::Assistant);
            let visibility = ingest::visibility(new.visibility, &new.audience, Visibility::Public)?;
            let mut body = TurnBody {
                model: new.model,
                metadata: new.metadata,
                audience: new.audience,
                ..TurnBody::default()
            };
            let mode = ingest::redaction_mode(&conversation);
            ingest::redact_metadata(&mut body.metadata, mode)?;
            body.model.iter_mut().chain(&mut body.audience).for_each(|name| mask_name(name, mode));
            let draft = Draft {
                id: EventId(ulid),
                turn: Some(TurnId(ulid)),
                actor: new.actor,
                role: Some(role),
                visibility,
                ..self.shared().draft(kind::OPENED, &body)?
            };
            draft.check()?;
            let mut drafts = self.make_room(
                &conversation,
                std::slice::from_ref(&draft),
                "append_open",
                idempotency.as_ref(),
            )?;
            drafts.push(draft);
            Ok(Action::Append { drafts, expected_seq: None, prepared_for: None, idempotency })
        })();
        self.write(prepared.or_else(|error| repeat_or(error, asked)), |committed| {
            let turn = committed.events.last().and_then(Turn::begun).ok_or_else(crate::writer::closed)?;
            read(turn, committed.repeated)
        })
    }
}

impl<'a> OpenTurnHandle<'a> {
    pub(crate) fn new(conversation: &'a ConversationHandle, turn: TurnId) -> OpenTurnHandle<'a> {
        OpenTurnHandle { conversation, turn }
    }

    /// Adds to an open turn: published at once, durable within the debounce time. `offset` is the number of bytes
    /// before this piece, so that a repeated chunk changes nothing and a missing one is noticed; without it, the
    /// piece goes to the end. Returns the new length.
    pub fn chunk(&self, offset: Option<u64>, delta: &str) -> Result<u64, Error> {
        let (key, shared) = (self.conversation.key(), self.conversation.shared());
        let caller = self.conversation.tenant.caller();
        shared.streams.check(key, self.turn, |open| caller.check_open(self.turn, open))?;
        match shared.streams.chunk(&shared.hub, key, self.turn, offset, delta, shared.now())? {
            Some(length) => Ok(length),
            None => Err(self.not_open()),
        }
    }

    /// Error for a turn that is not open here.
    fn not_open(&self) -> Error {
        match self.conversation.turn(self.turn) {
            Ok(turn) if turn.status == Status::Pending && self.is_absent(&turn) => absent_turn(turn.id),
            Ok(turn) if turn.status == Status::Pending => {
                let text = format!("{} is open in another process; send its chunks there", turn.id);
                Error::conflict("turn.open_elsewhere", text)
            }
            Ok(turn) => not_open(turn.id, turn.status),
            Err(error) => error,
        }
    }

    /// Whether a turn that is open in another process is not for this caller.
    fn is_absent(&self, turn: &Turn) -> bool {
        let tenant = &self.conversation.tenant;
        if tenant.viewer().sees(turn.visibility, turn.actor.as_deref(), &turn.audience) {
            return false;
        }
        let log = &self.conversation.shared().journal.log;
        let opened = log.events(self.conversation.key(), turn.seq.saturating_sub(1), 1);
        let key = opened.ok().and_then(|mut events| events.pop()).and_then(|event| event.key);
        !tenant.caller().has_opened(key.as_deref())
    }

    /// Ends an open turn. Without a message, or in one without content, the text of the chunks is its content. In a
    /// message, `role` may be left out.
    pub fn commit(&self, last: NewTurn) -> Commit<Turn> {
        self.end(last, kind::COMMITTED, None, None)
    }

    /// Aborts an open turn; its text so far is kept. Its `superseded_by` names the abort, or the turn given here.
    pub fn abort(&self, reason: &str, replacement: Option<TurnId>) -> Commit<Turn> {
        self.end(NewTurn::default(), kind::ABORTED, Some(reason.to_string()), replacement)
    }

    /// Ends an open turn early. Text that was said stays part of the conversation; without any, the turn is aborted.
    pub(crate) fn stop(&self, reason: &str) -> Commit<Turn> {
        let open = self.conversation.shared().streams.get(self.conversation.key(), self.turn);
        let said = open.is_some_and(|open| !open.text.is_empty());
        let kind = if said { kind::INTERRUPTED } else { kind::ABORTED };
        self.end(NewTurn::default(), kind, Some(reason.to_string()), None)
    }

    pub(crate) fn end(
        &self,
        mut last: NewTurn,
        kind: &'static str,
        reason: Option<String>,
        replacement: Option<TurnId>,
    ) -> Commit<Turn> {
        let (conversation, turn) = (self.conversation.clone(), self.turn);
        let (key, shared) = (conversation.key(), conversation.shared());
        let appended =
            conversation.append_with(AppendOptions::default(), Ok(None), |conversation, ingested| {
                let open = shared.streams.get(key, turn).ok_or_else(|| self.not_open())?;
                self.conversation.tenant.caller().check_open(turn, &open)?;
                last.message = match last.message.is_empty() {
                    true => NewTurn::text(open.role, &open.text).message,
                    false => with_words(last.message, &open.text),
                };
                last.actor = last.actor.or(open.actor);
                last.visibility = Some(open.visibility);
                last.audience = open.audience;
                last.model = last.model.or(open.model);
                for (key, value) in open.metadata {
                    last.metadata.entry(key).or_insert(value);
                }
                shared.ingest(conversation, last, DraftKind::End(turn, open.role, kind, reason), ingested)?;
                if let Some(by) = replacement {
                    if by == turn {
                        let text = format!("{turn} cannot replace itself; name another turn, or none");
                        return Err(Error::invalid("turn.replaces_itself", text));
                    }
                    shared.journal.index.turn_in(key, by)?;
                    let body = SupersededBody { by };
                    ingested
                        .drafts
                        .push(Draft { turn: Some(turn), ..shared.draft(kind::SUPERSEDED, &body)? });
                }
                Ok(())
            });
        appended.map(move |_| conversation.turn(turn))
    }
}

/// Adds the text of the chunks to a message without content, such as one with tool calls only.
fn with_words(message: String, text: &str) -> String {
    let fields: Option<Map<String, Value>> = serde_json::from_str(&message).ok();
    let Some(fields) = fields.filter(|_| !text.is_empty()) else { return message };
    if ["content", "parts", "type"].iter().any(|name| fields.contains_key(*name)) {
        return message;
    }
    let rest = message.trim_start().strip_prefix('{').unwrap_or_default();
    let comma = if fields.is_empty() { "" } else { "," };
    format!("{{\"content\":{}{comma}{rest}", quote(text))
}
