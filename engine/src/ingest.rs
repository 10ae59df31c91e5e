//! Input into events: a turn becomes drafts, with secrets masked and payloads stored as assets first.

use crate::caller::mask_name;
use crate::everturn::Shared;
use everturn_core::Error;
use everturn_core::asset::{self, Asset, Storage};
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::error::code;
use everturn_core::event::{Draft, Visibility, check_name, kind};
use everturn_core::id::{EventId, TenantName, TurnId, clip};
use everturn_core::json::{self, Raw};
use everturn_core::limits::{ASSET_BYTES_MAX, AUDIENCE_MAX};
use everturn_core::message;
use everturn_core::redaction;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Tokens, TurnBody};
use everturn_core::viewer::{check_blocks, without_private};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use ulid::Ulid;

/// A turn to append.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewTurn {
    /// The message as JSON text, in any shape: OpenAI chat, Anthropic blocks, Responses item. Kept as it is.
    pub message: String,
    /// Actor.
    pub actor: Option<String>,
    /// Visibility; by default everyone, or operators and the model for a tool result.
    pub visibility: Option<Visibility>,
    /// Actors that it is addressed to. It is then private: only they and its own actor see it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Token counts of the provider.
    pub tokens: Option<Tokens>,
    /// Model that wrote it.
    pub model: Option<String>,
    /// Client or importer through which it came.
    pub adapter: Option<String>,
    /// Further data to keep with it.
    pub metadata: BTreeMap<String, Raw>,
    /// Time at which it was said, if not now.
    pub occurred_at: Option<Timestamp>,
}

impl NewTurn {
    /// A message in any shape, as JSON text.
    pub fn message(json: impl Into<String>) -> NewTurn {
        NewTurn { message: json.into(), ..NewTurn::default() }
    }

    /// A text in a role.
    pub fn text(role: Role, text: &str) -> NewTurn {
        NewTurn::message(format!("{{\"role\":\"{role}\",\"content\":{}}}", json::quote(text)))
    }

    /// The result of a tool call.
    pub fn tool_result(call: &str, text: &str) -> NewTurn {
        let (call, text) = (json::quote(call), json::quote(text));
        NewTurn::message(format!("{{\"role\":\"tool\",\"tool_call_id\":{call},\"content\":{text}}}"))
    }

    /// A user's turn.
    pub fn user(text: &str) -> NewTurn {
        NewTurn::text(Role::User, text)
    }

    /// A turn of the model.
    pub fn assistant(text: &str) -> NewTurn {
        NewTurn::text(Role::Assistant, text)
    }

    /// The same turn with this actor.
    pub fn by(mut self, actor: impl Into<String>) -> NewTurn {
        self.actor = Some(actor.into());
        self
    }
}

/// A user's turn.
impl From<&str> for NewTurn {
    fn from(text: &str) -> NewTurn {
        NewTurn::user(text)
    }
}

/// A user's turn.
impl From<String> for NewTurn {
    fn from(text: String) -> NewTurn {
        NewTurn::user(&text)
    }
}

/// Redaction mode of a conversation.
pub fn redaction_mode(conversation: &Conversation) -> redaction::RedactionMode {
    conversation.policy.get("redaction").and_then(|raw| raw.read()).unwrap_or_default()
}

/// Drafts for turns, and the uploads they need.
pub struct Ingested {
    pub drafts: Vec<Draft>,
    pub uploads: Vec<(TenantName, Hash)>,
}

/// Position of an event in its turn.
pub enum DraftKind {
    /// A complete turn.
    Whole,
    /// A complete turn of a transcript value, with its id there if it keeps that, and with the value's event if that holds
    /// more than the turn.
    Imported(Option<TurnId>, Option<Raw>),
    /// A complete turn whose id is derived from its source, so that finding it again gives the same id.
    Found(TurnId),
    /// A complete turn, in this role if the message has none: not all items of a reply have one.
    Said(Role),
    /// A copy of a turn in a branch: its role, and the turns that it is a copy of.
    Copied(Role, Vec<TurnId>),
    /// The end of the copy of an open turn in a fork: its id, and the turns that it is a copy of.
    Cut(TurnId, Vec<TurnId>),
    /// The end of an open turn: its id, the role in which it was opened, the kind of its end, and the reason.
    End(TurnId, Role, &'static str, Option<String>),
}

impl Shared {
    /// A draft with a new id, the time and a salt.
    pub fn draft(&self, kind: impl Into<Cow<'static, str>>, body: &impl Serialize) -> Result<Draft, Error> {
        let text =
            serde_json::to_string(body).map_err(|e| Error::invalid("json.malformed", e.to_string()))?;
        Ok(Draft {
            id: EventId(self.journal.source.ulid()?),
            at: self.now(),
            occurred_at: None,
            kind: kind.into(),
            actor: None,
            role: None,
            visibility: Visibility::Internal,
            turn: None,
            key: None,
            body: self.journal.source.body(text)?,
        })
    }

    /// Drafts of a turn: events for its payloads, then its own.
    pub fn ingest(
        &self,
        conversation: &Conversation,
        turn: NewTurn,
        place: DraftKind,
        into: &mut Ingested,
    ) -> Result<(), Error> {
        json::check(&turn.message).map_err(|e| e.at("message"))?;
        if !turn.message.trim_start().starts_with('{') {
            let text = format!("a message is a JSON object, this is {}", clip(&turn.message));
            return Err(Error::invalid("message.not_an_object", text));
        }
        if matches!(place, DraftKind::Whole | DraftKind::End(.., kind::COMMITTED, _)) {
            check_blocks(&turn.message).map_err(|e| e.at("message"))?;
        }
        let (redacted, mut secrets) = redaction::redact(&turn.message, redaction_mode(conversation))?;
        let (stored, payloads) = match place {
            // Interrupted text stays text, whatever it looks like: it must be possible to write it also where no
            // asset can be added, or the store could not be opened again.
            DraftKind::End(.., kind::INTERRUPTED, _) | DraftKind::Cut(..) => {
                (redacted.into_owned(), Vec::new())
            }
            _ => self.extract(&redacted)?,
        };
        let role = match message::role_in_front(&stored) {
            Some(role) => Ok(role),
            None => message::role(&speaker(&stored)),
        };
        let role = match (role, &place) {
            (
                Err(error),
                DraftKind::End(_, role, ..) | DraftKind::Said(role) | DraftKind::Copied(role, _),
            ) if error.is(code::ROLE_MISSING) => *role,
            (Ok(role), DraftKind::End(_, opened, ..)) if role != *opened => {
                let text =
                    format!("the turn was opened as {opened}; commit it in that role, or open another one");
                return Err(Error::invalid("turn.role", text));
            }
            (role, _) => role?,
        };
        let stored = message::in_role(&stored, role).unwrap_or(stored);
        let id = match &place {
            DraftKind::Found(turn) | DraftKind::Imported(Some(turn), _) => turn.0,
            _ => self.journal.source.ulid()?,
        };
        let turn_id = match &place {
            DraftKind::End(turn, ..) | DraftKind::Cut(turn, ..) => *turn,
            _ => TurnId(id),
        };
        let public = without_private(&stored);
        let default = match role {
            // The message itself says so.
            _ if public.is_none() => Visibility::Private,
            Role::Tool => Visibility::Internal,
            _ => Visibility::Public,
        };
        let visibility = visibility(turn.visibility, &turn.audience, default)?;
        let public = public.filter(|_| visibility != Visibility::Private);
        for (asset_id, payload) in payloads {
            let is_public = public.as_ref().is_some_and(|public| public.contains(&asset_id));
            let audience = (!is_public).then(|| turn.actor.iter().chain(&turn.audience).cloned().collect());
            let draft =
                self.asset_draft(&conversation.tenant, asset_id, payload, audience, &mut into.uploads)?;
            into.drafts.push(Draft { turn: Some(turn_id), ..draft });
        }
        let mut metadata = turn.metadata;
        let mode = redaction_mode(conversation);
        secrets.extend(redact_metadata(&mut metadata, mode)?);
        if !secrets.is_empty() {
            metadata.insert("secrets".into(), Raw::of(&secrets)?);
        }
        let whole = if role == Role::Tool { kind::TOOL_RESULT } else { kind::MESSAGE };
        let mut copy_of = Vec::new();
        let (kind, reason, mut event) = match place {
            DraftKind::Whole | DraftKind::Said(_) | DraftKind::Found(_) => (whole, None, None),
            DraftKind::Imported(_, event) => (whole, None, event),
            DraftKind::Copied(_, origins) => {
                copy_of = origins;
                (whole, None, None)
            }
            DraftKind::Cut(_, origins) => {
                copy_of = origins;
                (kind::INTERRUPTED, Some("the fork was made while it was open".into()), None)
            }
            DraftKind::End(_, _, kind, reason) => (kind, reason, None),
        };
        if let Some(event) = &mut event {
            redact(event, mode)?;
        }
        let reason = reason.map(|reason| match mode {
            redaction::RedactionMode::Mask => redaction::mask(&reason, &mut Vec::new()).into_owned(),
            _ => reason,
        });
        let mut body = TurnBody {
            // `Draft::check` below looks at all of it.
            message: Some(Raw::joined(stored)?),
            tokens: turn.tokens,
            model: turn.model,
            adapter: turn.adapter,
            metadata,
            audience: turn.audience,
            reason,
            copy_of,
            event,
        };
        let names = body.model.iter_mut().chain(&mut body.adapter).chain(&mut body.audience);
        names.for_each(|name| mask_name(name, mode));
        let draft = Draft {
            id: EventId(id),
            occurred_at: turn.occurred_at,
            actor: turn.actor,
            role: Some(role),
            visibility,
            turn: Some(turn_id),
            ..self.draft(kind, &body)?
        };
        draft.check()?;
        into.drafts.push(draft);
        Ok(())
    }

    fn extract(&self, message: &str) -> Result<asset::Extracted, Error> {
        let mut failed = None;
        let extracted = asset::extract(message, |_| match self.journal.source.ulid() {
            Ok(id) => asset_id(id),
            Err(error) => {
                failed = Some(error);
                String::new()
            }
        })?;
        match failed {
            Some(error) => Err(error),
            None => Ok(extracted.unwrap_or_else(|| (message.to_string(), Vec::new()))),
        }
    }

    /// Stores the bytes of an asset and drafts its `asset.added` event. With an audience it is private.
    pub fn asset_draft(
        &self,
        tenant: &TenantName,
        id: String,
        payload: asset::Payload,
        audience: Option<Vec<String>>,
        uploads: &mut Vec<(TenantName, Hash)>,
    ) -> Result<Draft, Error> {
        check_asset(payload.bytes.len())?;
        let sha256 = Hash::of(&payload.bytes);
        let descriptor = Asset {
            marker: asset::TYPE.into(),
            id,
            kind: payload.kind().into(),
            mime_type: payload.mime_type,
            name: payload.name,
            bytes: Some(payload.bytes.len() as u64),
            sha256: Some(sha256),
            pieces: asset::pieces(&payload.bytes),
            visibility: if audience.is_some() { Visibility::Private } else { Visibility::Internal },
            audience: audience.unwrap_or_default(),
            storage: Some(Storage { path: Some(everturn_store::assets::path(tenant, sha256)), url: None }),
        };
        self.journal.upload(tenant, sha256, payload.bytes)?;
        uploads.push((tenant.clone(), sha256));
        Ok(Draft { visibility: descriptor.visibility, ..self.draft(kind::ASSET_ADDED, &descriptor)? })
    }
}

/// Refuses an asset that is too large.
pub fn check_asset(bytes: usize) -> Result<(), Error> {
    let (limit, advice) = (ASSET_BYTES_MAX as u64, "keep it elsewhere and link to it");
    if bytes > ASSET_BYTES_MAX {
        return Err(Error::limit("ASSET_BYTES_MAX", limit, bytes as u64, advice));
    }
    Ok(())
}

/// Redacts a JSON value, and returns the secrets found in it.
pub fn redact(value: &mut Raw, mode: redaction::RedactionMode) -> Result<Vec<redaction::FoundSecret>, Error> {
    let (redacted, found) = redaction::redact(value.get(), mode)?;
    if let Cow::Owned(masked) = redacted {
        *value = Raw::new(masked)?;
    }
    Ok(found)
}

/// Redacts metadata, names and values, and returns the secrets found in it.
pub fn redact_metadata(
    metadata: &mut BTreeMap<String, Raw>,
    mode: redaction::RedactionMode,
) -> Result<Vec<redaction::FoundSecret>, Error> {
    if metadata.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = Raw::of(&*metadata)?;
    let found = redact(&mut all, mode)?;
    if !found.is_empty() {
        *metadata = all.read().unwrap_or_default();
    }
    Ok(found)
}

/// Visibility of a turn: as asked for, else this. One with an audience is private.
pub fn visibility(
    asked: Option<Visibility>,
    audience: &[String],
    default: Visibility,
) -> Result<Visibility, Error> {
    if audience.len() > AUDIENCE_MAX {
        let (limit, got) = (AUDIENCE_MAX as u64, audience.len() as u64);
        return Err(Error::limit("AUDIENCE_MAX", limit, got, "address fewer actors, or everyone"));
    }
    audience.iter().try_for_each(|actor| check_name("audience", actor))?;
    match asked {
        _ if audience.is_empty() => Ok(asked.unwrap_or(default)),
        None | Some(Visibility::Private) => Ok(Visibility::Private),
        Some(other) => {
            let text = format!("a turn with an audience is private, not {other}; leave one of the two out");
            Err(Error::invalid("turn.audience", text))
        }
    }
}

/// An asset's id.
pub fn asset_id(ulid: Ulid) -> String {
    format!("asset_{}", EventId(ulid).to_string().trim_start_matches(EventId::PREFIX))
}

/// Fields of a message that determine its role. Only these, because a message may hold numbers that no double can,
/// which are kept but cannot be parsed.
fn speaker(message: &str) -> Value {
    #[derive(Default, Deserialize)]
    struct Speaker<'a> {
        #[serde(borrow, default)]
        role: Option<&'a RawValue>,
        #[serde(borrow, default)]
        r#type: Option<&'a RawValue>,
    }
    let said: Speaker<'_> = serde_json::from_str(message).unwrap_or_default();
    let fields = [("role", said.role), ("type", said.r#type)];
    let read = |raw: &RawValue| serde_json::from_str(raw.get()).ok();
    Value::Object(
        fields.into_iter().filter_map(|(name, raw)| Some((name.to_string(), read(raw?)?))).collect(),
    )
}
