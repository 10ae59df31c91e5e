//! Viewers: private content is visible only to its own actor and its audience.
//!
//! Everything derived from turns and events (checkpoints, recall, facts, contexts, exports, live streams) reads them
//! through a [`Viewer`], so that no view can forget the rule.

use crate::Error;
use crate::event::{Body, Event, Visibility, kind};
use crate::id::clip;
use crate::json::{Raw, array, elements, fields, has_unicode_escape, object};
use crate::turn::{Turn, TurnBody};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;

/// A reader of conversations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Viewer {
    /// The owner of the store; sees everything.
    #[default]
    Owner,
    /// These actors. An empty list sees only public content.
    Actors(Arc<[String]>),
}

impl Viewer {
    /// A viewer of public content only.
    pub fn everyone() -> Viewer {
        Viewer::Actors(Arc::from([]))
    }

    /// A viewer of everything that any of these actors may see.
    pub fn actors(names: impl IntoIterator<Item = String>) -> Viewer {
        Viewer::Actors(names.into_iter().collect())
    }

    /// Whether it sees content that is private to this actor.
    pub fn is(&self, actor: Option<&str>) -> bool {
        match self {
            Viewer::Owner => true,
            Viewer::Actors(names) => actor.is_some_and(|actor| names.iter().any(|name| name == actor)),
        }
    }

    /// Whether it sees content of this visibility.
    pub fn sees(&self, visibility: Visibility, actor: Option<&str>, audience: &[String]) -> bool {
        visibility != Visibility::Private
            || self.is(actor)
            || audience.iter().any(|addressed| self.is(Some(addressed)))
    }

    /// Whether it sees everything that another viewer sees.
    pub fn includes(&self, other: &Viewer) -> bool {
        match (self, other) {
            (Viewer::Owner, _) => true,
            (Viewer::Actors(_), Viewer::Owner) => false,
            (Viewer::Actors(_), Viewer::Actors(names)) => names.iter().all(|name| self.is(Some(name))),
        }
    }

    /// The names of its actors; `None` for the owner.
    pub fn names(&self) -> Option<Vec<String>> {
        match self {
            Viewer::Owner => None,
            Viewer::Actors(names) => Some(names.to_vec()),
        }
    }

    /// A turn as the viewer sees it: without its content, or without its private blocks, where those are not for the
    /// viewer.
    pub fn turn(&self, mut turn: Turn) -> Turn {
        if self.is(turn.actor.as_deref()) {
            return turn;
        }
        let rest = match &turn.message {
            _ if !self.sees(turn.visibility, turn.actor.as_deref(), &turn.audience) => None,
            None => return turn,
            Some(message) => without_private(message.get()),
        };
        match rest {
            Some(Cow::Borrowed(_)) => {}
            Some(Cow::Owned(rest)) => (turn.message, turn.hidden) = (Raw::joined(rest).ok(), true),
            None => {
                (turn.message, turn.tokens, turn.model, turn.adapter) = (None, None, None, None);
                (turn.reason, turn.partial, turn.hidden) = (None, None, true);
                turn.metadata.clear();
                turn.audience.clear();
            }
        }
        turn
    }

    /// An event as the viewer sees it: without its body, or without its private blocks, where those are not for the
    /// viewer.
    pub fn event(&self, mut event: Event) -> Event {
        if self.is(event.actor.as_deref()) || event.body.is_none() {
            return event;
        }
        let is_private = event.visibility == Visibility::Private;
        let addressed: Addressed =
            if is_private { event.read().unwrap_or_default() } else { Addressed::default() };
        if !self.sees(event.visibility, event.actor.as_deref(), &addressed.audience) {
            (event.body, event.hidden) = (None, true);
            return event;
        }
        if self.is_confided_to_others(&event) {
            (event.body, event.hidden) = (None, true);
            return event;
        }
        if let Some(rest) = self.without_reason(&event) {
            event.hidden = true;
            event.body = Some(Body { salt: [0; 16], text: rest });
            return event;
        }
        let body: Option<TurnBody> = if kind::is_of_turn(&event.kind) { event.read() } else { None };
        let Some((body, message)) = body.and_then(|body| body.message.clone().map(|message| (body, message)))
        else {
            if tells_of_private_blocks(&event) {
                (event.body, event.hidden) = (None, true);
            }
            return event;
        };
        let rest = match without_private(message.get()) {
            Some(Cow::Borrowed(_)) => return event,
            Some(Cow::Owned(rest)) => Raw::joined(rest).ok(),
            None => None,
        };
        // An imported event object repeats the message.
        let rest = rest.map(|message| TurnBody { message: Some(message), event: None, ..body });
        let text = rest.and_then(|body| serde_json::to_string(&body).ok());
        event.hidden = true;
        event.body = text.map(|text| Body { salt: [0; 16], text });
        event
    }

    /// Whether this is the imported record of an erasure whose reason is not for the viewer.
    fn is_confided_to_others(&self, event: &Event) -> bool {
        #[derive(Deserialize)]
        struct Given {
            event: Described,
        }
        #[derive(Deserialize)]
        struct Described {
            metadata: Confided,
        }
        #[derive(Deserialize)]
        struct Confided {
            reason_for: Vec<String>,
        }
        // Most events have none and are not parsed.
        let has_readers = event.text().is_some_and(|text| text.contains("reason_for"));
        let given: Option<Given> = if has_readers { event.read() } else { None };
        given.is_some_and(|given| !self.sees(Visibility::Private, None, &given.event.metadata.reason_for))
    }

    /// The body of an event without its reason and the calls that it names, where these are about something private that is
    /// not for the viewer.
    fn without_reason(&self, event: &Event) -> Option<String> {
        #[derive(Deserialize)]
        struct Reasoned {
            reason_for: Option<Vec<String>>,
        }
        if !matches!(event.kind.as_str(), kind::ERASED | kind::TOOL_ABANDONED) {
            return None;
        }
        let readers = event.read::<Reasoned>()?.reason_for?;
        if readers.iter().any(|reader| self.is(Some(reader))) {
            return None;
        }
        let fields = fields(event.text()?);
        // Ids of private calls are not for others either.
        let is_hidden = |key: &str| matches!(key, "reason" | "reason_for" | "answered" | "tool_call_id");
        let rest = fields.iter().filter(|(key, _)| !is_hidden(key));
        Some(object(rest.map(|(key, value)| (&**key, value.to_string()))))
    }
}

/// Whether this is the imported record of a message, without the message itself, that has private blocks.
fn tells_of_private_blocks(event: &Event) -> bool {
    #[derive(Deserialize)]
    struct Given {
        event: Told,
    }
    #[derive(Deserialize)]
    struct Told {
        blocks: Raw,
    }
    // Most events have none and are not parsed.
    let has_some = event.text().is_some_and(|text| text.contains("private") || has_unicode_escape(text));
    let given: Option<Given> = if has_some { event.read() } else { None };
    given.is_some_and(|given| matches!(blocks_without_private(given.event.blocks.get(), true), Cow::Owned(_)))
}

/// The actors that see all of a turn; `None` if everyone does.
pub fn audience_of(turn: &Turn) -> Option<Vec<String>> {
    (!is_for_everyone(turn)).then(|| turn.actor.iter().chain(&turn.audience).cloned().collect())
}

/// The actors that may see an event; `None` if everyone may.
pub fn audience_of_event(event: &Event) -> Option<Vec<String>> {
    (event.visibility == Visibility::Private).then(|| {
        let addressed: Addressed = event.read().unwrap_or_default();
        event.actor.iter().cloned().chain(addressed.audience).collect()
    })
}

/// Actors named in the body of a private event.
#[derive(Default, Deserialize)]
struct Addressed {
    #[serde(default)]
    audience: Vec<String>,
}

/// Whether everyone sees all of a turn.
pub fn is_for_everyone(turn: &Turn) -> bool {
    turn.visibility != Visibility::Private
        && turn
            .message
            .as_ref()
            .is_none_or(|message| matches!(without_private(message.get()), Some(Cow::Borrowed(_))))
}

/// The actors that see all of these private turns. Empty without any turn.
pub fn common_audience(turns: &[Turn]) -> Vec<String> {
    let Some((first, others)) = turns.split_first() else { return Vec::new() };
    let sees = |turn: &Turn, name: &String| turn.actor.as_ref() == Some(name) || turn.audience.contains(name);
    let names =
        first.actor.iter().chain(first.audience.iter().filter(|name| first.actor.as_ref() != Some(*name)));
    names.filter(|name| others.iter().all(|turn| sees(turn, name))).cloned().collect()
}

/// Fields that hold blocks, which may hold blocks. Arguments and other JSON of tools are not looked into: a `visibility`
/// there is the tool's own.
pub const NESTS: [&str; 7] =
    ["content", "parts", "tool_calls", "tool_results", "output", "source", "summary"];

/// A message without its private blocks; `None` if all of it is private.
pub fn without_private(message: &str) -> Option<Cow<'_, str>> {
    // Most messages have no private block and are not taken apart. An escape could hide the word.
    if !message.contains("private") && !has_unicode_escape(message) {
        return Some(Cow::Borrowed(message));
    }
    object_without_private(message)
}

/// `None` if it is private.
fn object_without_private(text: &str) -> Option<Cow<'_, str>> {
    let fields = fields(text);
    if fields.iter().any(|(key, value)| key == "visibility" && is_private(value)) {
        return None;
    }
    let mut changed = false;
    let mut kept = Vec::with_capacity(fields.len());
    for (key, value) in &fields {
        let value = match value.as_bytes() {
            [b'[', ..] if NESTS.contains(&&**key) => blocks_without_private(value, key.starts_with("tool_")),
            [b'{', ..] if NESTS.contains(&&**key) && is_block(value) => {
                object_without_private(value).unwrap_or_else(|| Cow::Owned("null".into()))
            }
            _ => Cow::Borrowed(*value),
        };
        changed |= matches!(value, Cow::Owned(_));
        kept.push((&**key, value.into_owned()));
    }
    Some(if changed { Cow::Owned(object(kept)) } else { Cow::Borrowed(text) })
}

/// Whether a JSON value is the word `private`, however it is escaped.
fn is_private(value: &str) -> bool {
    serde_json::from_str::<Cow<'_, str>>(value).is_ok_and(|word| word == "private")
}

fn blocks_without_private(text: &str, all: bool) -> Cow<'_, str> {
    let mut changed = false;
    let mut kept = Vec::new();
    for block in elements(text) {
        let looks = block.starts_with('{') && (all || is_block(block));
        match if looks { object_without_private(block) } else { Some(Cow::Borrowed(block)) } {
            Some(block) => {
                changed |= matches!(block, Cow::Owned(_));
                kept.push(block.into_owned());
            }
            None => changed = true,
        }
    }
    if changed { Cow::Owned(array(&kept)) } else { Cow::Borrowed(text) }
}

/// Refuses a message with a block that seems to be private and would be shown to everyone.
pub fn check_blocks(message: &str) -> Result<(), Error> {
    // Most messages say nothing of this and are not taken apart. An escape could hide the words.
    let says = |word: &str| message.contains(word);
    match says("visibility") || says("audience") || has_unicode_escape(message) {
        true => check_block(message),
        false => Ok(()),
    }
}

fn check_block(text: &str) -> Result<(), Error> {
    for (key, value) in fields(text) {
        let nests = NESTS.contains(&&*key);
        match &*key {
            "visibility" => {
                let word: Value = serde_json::from_str(value).unwrap_or_default();
                if !word.is_null() && word.as_str().is_none_or(|word| word.parse::<Visibility>().is_err()) {
                    let text = format!(
                        "the visibility {} of a block is not public, internal or private; correct it",
                        clip(value)
                    );
                    return Err(Error::invalid("block.visibility", text));
                }
            }
            "audience" => {
                let text = "a block has no audience of its own; make it private, or append a turn with this audience";
                return Err(Error::invalid("block.audience", text));
            }
            key if nests && value.starts_with('[') => {
                let all = key.starts_with("tool_");
                let mut blocks = elements(value).into_iter();
                blocks.try_for_each(|block| match block.starts_with('{') && (all || is_block(block)) {
                    true => check_block(block),
                    false => Ok(()),
                })?;
            }
            _ if nests && value.starts_with('{') && is_block(value) => check_block(value)?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether an object is a block and not data of a tool.
pub fn is_block(text: &str) -> bool {
    const MARKS: [&str; 6] = ["type", "text", "functionCall", "functionResponse", "inlineData", "fileData"];
    fields(text).iter().any(|(key, _)| MARKS.contains(&&**key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_blocks_are_taken_out_and_the_rest_keeps_its_bytes() {
        for (message, rest) in [
            (r#"{"role":"user","content":"private"}"#, Some(r#"{"role":"user","content":"private"}"#)),
            (r#"{"role":"user","visibility":"private","content":"x"}"#, None),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a","n":1.0},{"type":"text","text":"b","visibility":"private"}]}"#,
                Some(r#"{"role":"user","content":[{"type":"text","text":"a","n":1.0}]}"#),
            ),
            (
                r#"{"role":"user","content":[{"type":"text","text":"b","visibility":"priv\u0061te"}]}"#,
                Some(r#"{"role":"user","content":[]}"#),
            ),
            (
                r#"{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"b","visibility":"private"}]}]}"#,
                Some(r#"{"role":"user","content":[{"type":"tool_result","content":[]}]}"#),
            ),
            (
                r#"{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"text","text":"b","visibility":"private"}]}}]}"#,
                Some(
                    r#"{"role":"user","content":[{"type":"document","source":{"type":"content","content":[]}}]}"#,
                ),
            ),
            (
                r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"b","visibility":"private"}]}"#,
                Some(r#"{"type":"reasoning","summary":[]}"#),
            ),
            (
                r#"{"role":"assistant","tool_calls":[{"id":"1","visibility":"private"},{"id":"2"}]}"#,
                Some(r#"{"role":"assistant","tool_calls":[{"id":"2"}]}"#),
            ),
            (
                r#"{"role":"assistant","content":[{"type":"tool_use","input":{"visibility":"private"}}]}"#,
                Some(
                    r#"{"role":"assistant","content":[{"type":"tool_use","input":{"visibility":"private"}}]}"#,
                ),
            ),
        ] {
            assert_eq!(without_private(message).as_deref(), rest, "{message}");
        }
    }

    #[test]
    fn a_block_that_seems_private_and_is_not_is_refused() {
        for (message, code) in [
            (r#"{"role":"user","content":"visibility, audience"}"#, None),
            (r#"{"role":"user","content":[{"type":"text","text":"a","visibility":"internal"}]}"#, None),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a","visibility":"Private"}]}"#,
                Some("block.visibility"),
            ),
            (r#"{"role":"user","visibility":true,"content":"a"}"#, Some("block.visibility")),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a","audi\u0065nce":["bob"]}]}"#,
                Some("block.audience"),
            ),
            (
                r#"{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"text","text":"a","visibility":"hidden"}]}}]}"#,
                Some("block.visibility"),
            ),
            (
                r#"{"role":"assistant","content":[{"type":"tool_use","input":{"visibility":"hidden","audience":1}}]}"#,
                None,
            ),
        ] {
            let refused = check_blocks(message).err();
            assert_eq!(refused.as_ref().map(Error::code), code, "{message}");
        }
    }

    #[test]
    fn the_owner_sees_everything_and_others_what_is_for_them() {
        let (ada, bob) = (Viewer::actors(["ada".to_string()]), Viewer::actors(["bob".to_string()]));
        let to_bob = ["bob".to_string()];
        for (viewer, private, addressed) in [
            (Viewer::Owner, true, true),
            (ada, true, true),
            (bob, false, true),
            (Viewer::everyone(), false, false),
        ] {
            assert_eq!(viewer.sees(Visibility::Private, Some("ada"), &[]), private, "{viewer:?}");
            assert_eq!(viewer.sees(Visibility::Private, Some("ada"), &to_bob), addressed, "{viewer:?}");
            assert!(viewer.sees(Visibility::Internal, Some("ada"), &[]));
        }
        assert!(!Viewer::everyone().sees(Visibility::Private, None, &[]));
    }
}
