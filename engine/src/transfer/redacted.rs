//! Exports with secrets and personal data masked.

use everturn_core::Error;
use everturn_core::conversation::{Conversation, SystemPrompt};
use everturn_core::event::Event;
use everturn_core::json::Raw;
use everturn_core::redaction::{mask_json, mask_text};
use everturn_core::turn::{Partial, Turn};
use everturn_formats::render::Document;
use std::collections::BTreeMap;

/// A document whose turns and events are masked before they are written.
pub struct Redacted<'a>(pub Box<dyn Document + 'a>);

impl Document for Redacted<'_> {
    fn turn(&mut self, one: &Turn) -> Result<(), Error> {
        self.0.turn(&turn(one.clone())?)
    }

    fn event(&mut self, one: &Event) -> Result<(), Error> {
        self.0.event(&event(one.clone())?)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        self.0.finish()
    }
}

/// A turn without secrets and personal data.
pub fn turn(one: Turn) -> Result<Turn, Error> {
    Ok(Turn {
        actor: one.actor.as_deref().map(mask_text),
        message: one.message.as_ref().map(raw).transpose()?,
        partial: one.partial.map(|partial| Partial::new(mask_text(&partial.text))),
        metadata: fields(one.metadata)?,
        reason: one.reason.as_deref().map(mask_text),
        ..one
    })
}

/// An event without them.
pub fn event(mut one: Event) -> Result<Event, Error> {
    one.actor = one.actor.as_deref().map(mask_text);
    if let Some(body) = &mut one.body {
        body.text = mask_json(&body.text)?.into_owned();
    }
    Ok(one)
}

/// A conversation without them.
pub fn conversation(one: Conversation) -> Result<Conversation, Error> {
    Ok(Conversation {
        owner: one.owner.as_deref().map(mask_text),
        title: one.title.as_deref().map(mask_text),
        participants: one.participants.iter().map(|name| mask_text(name)).collect(),
        metadata: fields(one.metadata)?,
        policy: fields(one.policy)?,
        ..one
    })
}

/// A system prompt without them.
pub fn system_prompt(one: &SystemPrompt) -> SystemPrompt {
    SystemPrompt::new(mask_text(&one.content))
}

fn raw(one: &Raw) -> Result<Raw, Error> {
    Raw::new(mask_json(one.get())?.into_owned())
}

fn fields(all: BTreeMap<String, Raw>) -> Result<BTreeMap<String, Raw>, Error> {
    all.into_iter().map(|(name, value)| Ok((mask_text(&name), raw(&value)?))).collect()
}
