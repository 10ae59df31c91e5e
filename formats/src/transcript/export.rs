//! From a log to a transcript value.

use super::{Derived, GivenEvent, Labels, NO_EVENT, STATE_REASON, TYPE, VERSION, prompt_content};
use everturn_core::Error;
use everturn_core::conversation::{Conversation, Settings, State, SystemPrompt};
use everturn_core::event::{Event, Visibility, kind};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::turn::{Role, Status, Turn, TurnBody};
use everturn_core::write::StateBody;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// All that a transcript value is made from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The conversation as it is now.
    pub conversation: &'a Conversation,
    /// Its system prompt, with its text.
    pub system_prompt: Option<&'a SystemPrompt>,
    /// Its whole log in the order of `seq`, inherited events included.
    pub events: &'a [Event],
    /// Its turns in any order, superseded and open ones included.
    pub turns: &'a [Turn],
    /// The handoff note of its checkpoint; without one, the summary that it was imported with.
    pub summary: Option<&'a str>,
}

/// The value, keys in the order of the specification.
#[derive(Serialize)]
struct Value<'a> {
    #[serde(rename = "_type")]
    marker: &'static str,
    version: u64,
    id: Raw,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<Raw>,
    metadata: BTreeMap<String, Raw>,
    messages: Vec<&'a Raw>,
    events: Vec<Written<'a>>,
    assets: Vec<Raw>,
    #[serde(flatten)]
    further: BTreeMap<&'a str, &'a Raw>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a> {
    Given(Raw),
    Derived(Derived),
    Lifecycle(Lifecycle<'a>),
}

/// An event that is not what somebody said.
#[derive(Serialize)]
struct Lifecycle<'a> {
    kind: &'a str,
    role: Role,
    visibility: Visibility,
    text: &'static str,
    blocks: [Raw; 0],
    /// The body; absent once erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Raw>,
}

/// The conversation as a transcript value, version 2. Messages keep the exact bytes they were given with.
pub fn export(source: &Source<'_>) -> Result<String, Error> {
    let origin = Origin::of(source.events);
    let assets = assets(source.events, &origin)?;
    let mut labels = Labels::default();
    assets.iter().for_each(|asset| labels.add(asset));

    let value = Value {
        marker: TYPE,
        version: VERSION,
        id: id(source.conversation, &origin)?,
        state: source.conversation.state,
        summary: match &source.summary {
            Some(summary) => Some(Raw::of(summary)?),
            None => origin.kept.get("summary").cloned(),
        },
        metadata: metadata(source, &origin)?,
        messages: messages(source.turns),
        events: events(source, &origin, &labels)?,
        assets,
        further: origin.further(),
    };
    serde_json::to_string(&value).map_err(|error| Error::internal("transcript.encode", error.to_string()))
}

/// What an import left in the log besides turns; empty for a conversation that was not imported.
#[derive(Default)]
struct Origin {
    /// `Settings::transcript` of the value.
    kept: BTreeMap<String, Raw>,
    /// The conversation that was imported: for a fork of it, another one than is exported.
    conversation: Option<ConversationId>,
    /// The last event of the import.
    finished_seq: u64,
}

impl Origin {
    fn of(events: &[Event]) -> Origin {
        let created = events.iter().find(|event| event.kind == kind::CREATED);
        let Some((created, settings)) = created.and_then(|event| Some((event, event.read::<Settings>()?)))
        else {
            return Origin::default();
        };
        if settings.transcript.is_empty() {
            return Origin::default();
        }
        let mut origin = Origin {
            kept: settings.transcript,
            conversation: Some(created.conversation),
            // An import that was cut short has no end; all there is belongs to it.
            finished_seq: u64::MAX,
        };
        // The value itself may tell of an earlier import; that one is not ours.
        let is_end = |event: &&Event| event.kind == kind::IMPORT_FINISHED && origin.given(event).is_none();
        if let Some(end) = events.iter().find(is_end) {
            origin.finished_seq = end.seq;
        }
        origin
    }

    fn is_imported(&self) -> bool {
        self.conversation.is_some()
    }

    /// The event object that an imported event holds.
    fn given(&self, event: &Event) -> Option<Raw> {
        let given = event.read::<GivenEvent>().filter(|_| self.is_imported())?;
        given.event.get().starts_with('{').then_some(given.event)
    }

    /// Whether the event was written by the import itself and says nothing of the value.
    fn is_bookkeeping(&self, event: &Event) -> bool {
        let state = event.kind == kind::STATE
            && event.read::<StateBody>().is_some_and(|body| body.reason.as_deref() == Some(STATE_REASON));
        self.is_imported() && (event.seq <= self.finished_seq || state)
    }

    /// Fields of the value that we do not know.
    fn further(&self) -> BTreeMap<&str, &Raw> {
        let known = |name: &str| matches!(name, "version" | "id" | "summary" | "metadata");
        self.kept.iter().filter(|(name, _)| !known(name)).map(|(name, raw)| (name.as_str(), raw)).collect()
    }
}

/// A foreign id belongs to what was imported, and not to a fork of it.
fn id(conversation: &Conversation, origin: &Origin) -> Result<Raw, Error> {
    match origin.kept.get("id").filter(|_| origin.conversation == Some(conversation.id)) {
        Some(id) => Ok(id.clone()),
        None => Raw::of(&format!("tr_{}", conversation.id.0)),
    }
}

fn metadata(source: &Source<'_>, origin: &Origin) -> Result<BTreeMap<String, Raw>, Error> {
    const PROMPT: &str = "system_prompt";
    let mut metadata = source.conversation.metadata.clone();
    if let Some(prompt) = source.system_prompt {
        metadata.insert(PROMPT.into(), Raw::of(prompt)?);
    }
    // What settings could not hold comes back, unless it has been set to something else since.
    let kept: BTreeMap<String, Raw> = origin.kept.get("metadata").and_then(Raw::read).unwrap_or_default();
    for (key, raw) in kept {
        let same = match source.system_prompt.filter(|_| key == PROMPT) {
            Some(prompt) => prompt_content(&raw).as_ref() == Some(&prompt.content),
            None => raw.get() == "null" && !metadata.contains_key(&key),
        };
        if same {
            metadata.insert(key, raw);
        }
    }
    Ok(metadata)
}

/// What a model call would continue from: what was said, as it was said, and not taken back.
fn messages(turns: &[Turn]) -> Vec<&Raw> {
    let mut turns: Vec<&Turn> = turns.iter().filter(|turn| is_said(turn)).collect();
    turns.sort_by_key(|turn| turn.seq);
    turns.into_iter().filter_map(|turn| turn.message.as_ref()).collect()
}

fn is_said(turn: &Turn) -> bool {
    matches!(turn.status, Status::Complete | Status::Interrupted) && turn.superseded_by.is_none()
}

fn events<'a>(source: &Source<'a>, origin: &Origin, labels: &Labels) -> Result<Vec<Written<'a>>, Error> {
    let turns: HashMap<u64, &Turn> = source.turns.iter().map(|turn| (turn.seq, turn)).collect();
    let mut written = Vec::with_capacity(source.events.len());
    for event in source.events {
        if let Some(turn) = turns.get(&event.seq) {
            let given = event.read::<TurnBody>().and_then(|body| body.event);
            written.push(match given {
                Some(given) if given.get() == NO_EVENT => continue,
                Some(given) => Written::Given(given),
                None => {
                    let message = turn.message.as_ref();
                    Written::Derived(Derived::of(turn.role, event.visibility, message, labels))
                }
            });
        } else if let Some(given) = origin.given(event) {
            written.push(Written::Given(given));
        } else if !origin.is_bookkeeping(event) && !is_content(event) {
            written.push(Written::Lifecycle(lifecycle(event)?));
        }
    }
    Ok(written)
}

/// Whether the event carries the content of a turn that is shown where it began.
fn is_content(event: &Event) -> bool {
    matches!(event.kind.as_str(), kind::COMMITTED | kind::INTERRUPTED) && event.turn.is_some()
}

fn lifecycle(event: &Event) -> Result<Lifecycle<'_>, Error> {
    let metadata = event.text().map(|text| without_prompt(&event.kind, text)).transpose();
    Ok(Lifecycle {
        kind: &event.kind,
        role: Role::System,
        visibility: event.visibility,
        text: "",
        blocks: [],
        metadata: metadata.map_err(|error| error.at(format_args!("seq {}", event.seq)))?,
    })
}

/// A body as it is, except that a system prompt shows its fingerprint only: its text is in the value's metadata, once.
fn without_prompt(kind: &str, text: &str) -> Result<Raw, Error> {
    let body = Raw::new(text.to_string())?;
    if !matches!(kind, kind::CREATED | kind::UPDATED | kind::FORKED) {
        return Ok(body);
    }
    let mut fields: BTreeMap<String, Raw> = body.read().unwrap_or_default();
    let Some(mut prompt) = fields.get("system_prompt").and_then(Raw::read::<BTreeMap<String, Raw>>) else {
        return Ok(body);
    };
    prompt.remove("content");
    fields.insert("system_prompt".into(), Raw::of(&prompt)?);
    Raw::of(&fields)
}

/// The descriptors, as they were given.
fn assets(events: &[Event], origin: &Origin) -> Result<Vec<Raw>, Error> {
    events
        .iter()
        .filter(|event| event.kind == kind::ASSET_ADDED && origin.given(event).is_none())
        .filter_map(|event| Some((event.seq, event.text()?)))
        .map(|(seq, text)| Raw::new(text.to_string()).map_err(|error| error.at(format_args!("seq {seq}"))))
        .collect()
}
