//! From a log to a transcript value.

use super::{
    BARE_EVENT, CARRIED, Carried, DATA, Derived, GivenChange, GivenEvent, Labels, NO_EVENT, STATE_REASON,
    TYPE, TurnDetails, VERSION, changes_state, prompt_content,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Lifecycle, Retention, Settings, SystemPrompt};
use everturn_core::event::{Event, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, TurnId};
use everturn_core::json::{self, Raw};
use everturn_core::message;
use everturn_core::pairing;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Turn, TurnBody};
use everturn_core::viewer::audience_of;
use everturn_core::write::StateBody;
use everturn_views::state::{ToolBody, speaks_of_tools};
use serde::ser::{Error as _, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Write;

/// Reads the bytes of an asset; `None` if they are not here.
pub type ReadBytes<'a> = dyn Fn(Hash) -> Result<Option<Vec<u8>>, Error> + 'a;

/// Input of [`export`].
#[derive(Clone, Copy)]
pub struct ExportSource<'a> {
    /// The conversation as it is now.
    pub conversation: &'a Conversation,
    /// Its system prompt, with its text.
    pub system_prompt: Option<&'a SystemPrompt>,
    /// The events of its log after a `seq`, in order, inherited ones included: some at a time, none at the end.
    pub events: &'a dyn Fn(u64) -> Result<Vec<Event>, Error>,
    /// Its turns after a `seq`, in order, superseded and open ones included: some at a time, none at the end.
    pub turns: &'a dyn Fn(u64) -> Result<Vec<Turn>, Error>,
    /// Its current turns after a place, in reading order: some at a time, none at the end.
    pub read: &'a dyn Fn(u64) -> Result<Vec<Turn>, Error>,
    /// Whether assets were added to it.
    pub has_assets: bool,
    /// The bytes with this hash, `None` if they are not here. Absent if the value is to be without bytes.
    pub bytes: Option<&'a ReadBytes<'a>>,
    /// Calls before the first message that wait for their result, in order.
    pub waiting: &'a [WaitingCall],
    /// Ids of all calls that wait for their result or were given up.
    pub unanswered: &'a HashSet<String>,
    /// The handoff note of its checkpoint; without one, the summary that it was imported with.
    pub summary: Option<&'a str>,
    /// `seq` after which events are shown, if the log has more of them than the budget allows.
    pub events_after: u64,
    /// `seq` of earlier events that are shown nevertheless, because their settings are in force.
    pub in_force: &'a BTreeSet<u64>,
}

/// A call that waits for its result.
#[derive(Clone, Debug)]
pub struct WaitingCall {
    /// The call.
    pub body: ToolBody,
    /// Time since which it waits.
    pub at: Timestamp,
    /// Actors that may see it; `None` if everyone may.
    pub audience: Option<Vec<String>>,
}

/// The value, keys in the order of the specification.
#[derive(Serialize)]
struct Value<'a, M, E, A> {
    #[serde(rename = "_type")]
    marker: &'static str,
    version: u64,
    id: Raw,
    state: Lifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<Raw>,
    metadata: BTreeMap<String, Raw>,
    messages: M,
    events: E,
    assets: A,
    #[serde(flatten)]
    further: BTreeMap<&'a str, &'a Raw>,
}

/// A list that is read while it is written, so that no conversation is too long for it.
struct List<'a, I> {
    items: RefCell<I>,
    /// The error that ended it.
    failed: &'a RefCell<Option<Error>>,
}

impl<T: Serialize, I: Iterator<Item = Result<T, Error>>> Serialize for List<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for item in &mut *self.items.borrow_mut() {
            match item {
                Ok(item) => list.serialize_element(&item)?,
                Err(error) => {
                    let text = error.to_string();
                    *self.failed.borrow_mut() = Some(error);
                    return Err(S::Error::custom(text));
                }
            }
        }
        list.end()
    }
}

/// Everything that `read` returns, page by page.
fn each<'a, T: 'a>(
    read: &'a dyn Fn(u64) -> Result<Vec<T>, Error>,
    seq: fn(&T) -> u64,
) -> impl Iterator<Item = Result<T, Error>> + 'a {
    let mut after = 0;
    let pages = std::iter::from_fn(move || match read(after) {
        Ok(page) => {
            after = page.last().map(seq)?;
            Some(Ok(page))
        }
        Err(error) => Some(Err(error)),
    });
    pages.flat_map(|page| {
        let (items, error) = match page {
            Ok(page) => (page, None),
            Err(error) => (Vec::new(), Some(Err(error))),
        };
        items.into_iter().map(Ok).chain(error)
    })
}

impl<'a> ExportSource<'a> {
    fn each_event(&self) -> impl Iterator<Item = Result<Event, Error>> + use<'a> {
        each(self.events, |event| event.seq)
    }

    fn each_turn(&self) -> impl Iterator<Item = Result<Turn, Error>> + use<'a> {
        each(self.turns, |turn| turn.seq)
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Written {
    Given(Raw),
    Derived(Derived),
    Lifecycle(LifecycleEvent),
}

/// An event that is no message.
#[derive(Serialize)]
struct LifecycleEvent {
    kind: String,
    role: Role,
    visibility: Visibility,
    text: String,
    blocks: [Raw; 0],
    /// Absent where no event of the log says this.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    at: Timestamp,
    /// The body; absent once erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Raw>,
}

/// Progress of the export: messages come first, then events, then assets.
#[derive(Default)]
struct SoFar {
    /// The index in `messages` of each current turn's message; `None` where it is summarized, trimmed or open.
    indices: HashMap<TurnId, Option<usize>>,
    /// Assets that messages refer to.
    shown_assets: HashSet<String>,
    /// Calls whose result is not among the messages and that nothing waits for: their turn, and the actors that may see it
    /// if not everyone may.
    settled: BTreeMap<String, (TurnId, Option<Vec<String>>)>,
    /// Calls with a result among the messages.
    answered: HashSet<String>,
    /// Calls that an event tells to run, with the actors that may see it if not everyone may; and calls that one tells to
    /// be finished, after their message.
    started: BTreeMap<String, Option<Vec<String>>>,
    finished: HashSet<String>,
}

impl SoFar {
    fn message(&mut self, turn: &Turn, message: &Raw, unanswered: &HashSet<String>) {
        let text = message.get();
        if !speaks_of_tools(text) && !text.contains("asset_") {
            return;
        }
        let Some(value) = message.read::<Json>() else { return };
        self.shown_assets.extend(message::asset_ids(&value));
        let pairs = pairing::pair([&value]);
        for id in pairs.results.iter().filter_map(|result| result.id) {
            self.settled.remove(id);
            self.answered.insert(id.to_string());
        }
        let calls = pairs.calls.iter().filter(|call| call.result.is_none()).filter_map(|call| call.id);
        let settled = calls.filter(|id| !unanswered.contains(*id));
        self.settled.extend(settled.map(|id| (id.to_string(), (turn.id, audience_of(turn)))));
    }

    fn event(&mut self, event: &Event) {
        #[derive(Default, Deserialize)]
        struct Addressed {
            #[serde(default)]
            audience: Vec<String>,
        }
        let id = || event.read::<ToolBody>().map(|body| body.tool_call_id);
        match (event.kind.as_str(), event.turn) {
            (kind::TOOL_STARTED, _) => {
                let is_private = event.visibility == Visibility::Private;
                let audience = is_private.then(|| event.read::<Addressed>().unwrap_or_default().audience);
                self.started.extend(id().map(|id| (id, audience)));
            }
            (kind::TOOL_FINISHED, _) => {
                let id = id().unwrap_or_default();
                self.started.remove(&id);
                self.finished.insert(id);
            }
            (_, Some(turn)) if !self.finished.is_empty() => {
                self.finished.retain(|id| self.settled.get(id).is_none_or(|(settled, _)| *settled != turn));
            }
            _ => {}
        }
    }

    /// Events that say of calls what messages and events do not: that their result is no longer awaited, because it was
    /// erased, is not for the reader or was trimmed with the call, or that it still is, although the call was trimmed.
    fn rest(&self, source: &ExportSource<'_>) -> Vec<Result<Written, Error>> {
        let tool = |kind: &str, body: ToolBody, at: Timestamp, audience: Option<Vec<String>>| {
            let mut metadata: BTreeMap<String, Raw> = Raw::of(&body)?.read().unwrap_or_default();
            let visibility = if audience.is_some() { Visibility::Private } else { Visibility::Internal };
            if let Some(audience) = audience {
                metadata.insert("audience".into(), Raw::of(&audience)?);
            }
            let metadata = Some(Raw::of(&metadata)?);
            let event = LifecycleEvent { visibility, metadata, ..LifecycleEvent::new(kind, at) };
            Ok(Written::Lifecycle(event))
        };
        let finished = |id: &str, at, audience| {
            let body = ToolBody { tool_call_id: id.to_string(), tool_name: None, summary: None };
            tool(kind::TOOL_FINISHED, body, at, audience)
        };
        let now = source.conversation.updated;
        let settled = self.settled.iter().filter(|(id, _)| !self.finished.contains(*id));
        let mut rest: Vec<_> =
            settled.map(|(id, (_, audience))| finished(id, now, audience.clone())).collect();
        let is_over = |id: &String| {
            let is_told = self.answered.contains(id) || self.settled.contains_key(id);
            !is_told && !source.unanswered.contains(id)
        };
        let over = self.started.iter().filter(|(id, _)| is_over(id));
        rest.extend(over.map(|(id, audience)| finished(id, now, audience.clone())));
        for WaitingCall { body, at, audience } in source.waiting {
            // As it was called, not as it was announced.
            if self.started.contains_key(&body.tool_call_id) {
                rest.push(finished(&body.tool_call_id, *at, audience.clone()));
            }
            rest.push(tool(kind::TOOL_STARTED, body.clone(), *at, audience.clone()));
        }
        rest
    }
}

/// Writes the conversation as a transcript value, version 2. Messages keep the exact bytes they were given with.
pub fn export(source: &ExportSource<'_>, mut out: impl Write) -> Result<(), Error> {
    let origin = Origin::of(source)?;
    let added = if source.has_assets { assets(source, &origin)? } else { Vec::new() };
    let mut labels = Labels::default();
    added.iter().for_each(|asset| labels.add(&asset.descriptor));

    let (failed, so_far) = (RefCell::default(), RefCell::<SoFar>::default());
    let assets = added.iter().map(|asset| asset.write(source, &so_far.borrow()));
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
        messages: List { items: RefCell::new(messages(source, &so_far)), failed: &failed },
        events: List { items: RefCell::new(events(source, &origin, &labels, &so_far)), failed: &failed },
        assets: List { items: RefCell::new(assets), failed: &failed },
        further: origin.further(),
    };
    let written = serde_json::to_writer(&mut out, &value);
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    let written = written.map_err(std::io::Error::from).and_then(|()| out.flush());
    written.map_err(|error| Error::internal("file.io", format!("writing the transcript: {error}")))
}

/// Data of an import in the log, besides turns; empty for a conversation that was not imported.
#[derive(Default)]
struct Origin {
    /// `Settings::transcript` of the value.
    kept: BTreeMap<String, Raw>,
    /// The conversation that was imported: for a fork of it, another one than is exported.
    conversation: Option<ConversationId>,
    /// `seq` of the last event of the import.
    finished_seq: u64,
    /// Whether the value names its participants. Those of another program's value are its speakers.
    names_participants: bool,
}

impl Origin {
    fn of(source: &ExportSource<'_>) -> Result<Origin, Error> {
        let mut events = source.each_event();
        let created = events.find(|event| event.as_ref().map_or(true, |event| event.kind == kind::CREATED));
        let created = created.transpose()?;
        let Some((created, settings)) =
            created.and_then(|event| event.read::<Settings>().map(|settings| (event, settings)))
        else {
            return Ok(Origin::default());
        };
        if settings.transcript.is_empty() {
            return Ok(Origin::default());
        }
        let mut origin = Origin {
            kept: settings.transcript,
            conversation: Some(created.conversation),
            // An import that was cut short has no end; all its events belong to it.
            finished_seq: u64::MAX,
            names_participants: !settings.participants.is_empty(),
        };
        // The value itself may contain the end of an earlier import, which is not this one.
        let is_end = |event: &Event| event.kind == kind::IMPORT_FINISHED && origin.given(event).is_none();
        if let Some(end) = events.find(|event| event.as_ref().map_or(true, is_end)) {
            origin.finished_seq = end?.seq;
        }
        Ok(origin)
    }

    fn is_imported(&self) -> bool {
        self.conversation.is_some()
    }

    /// The event object that an imported event holds.
    fn given(&self, event: &Event) -> Option<Raw> {
        let is_of_import = self.is_imported() && event.seq <= self.finished_seq;
        let given = match changes_state(&event.kind) {
            _ if !is_of_import => None,
            true => event.read::<GivenChange>().map(|given| given.event),
            false => event.read::<GivenEvent>().map(|given| given.event),
        };
        given.filter(|given| given.get().starts_with('{'))
    }

    /// Whether the event was written by the import itself and is no part of the value.
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

/// The id of the value. A foreign id belongs to the imported conversation, not to its forks.
fn id(conversation: &Conversation, origin: &Origin) -> Result<Raw, Error> {
    match origin.kept.get("id").filter(|_| origin.conversation == Some(conversation.id)) {
        Some(id) => Ok(id.clone()),
        None => Raw::of(&format!("tr_{}", conversation.id.0)),
    }
}

fn metadata(source: &ExportSource<'_>, origin: &Origin) -> Result<BTreeMap<String, Raw>, Error> {
    const PROMPT: &str = "system_prompt";
    let mut metadata = source.conversation.metadata.clone();
    if let Some(prompt) = source.system_prompt {
        metadata.insert(PROMPT.into(), Raw::of(prompt)?);
    }
    if !source.conversation.policy.is_empty() {
        metadata.insert("policy".into(), Raw::of(&source.conversation.policy)?);
    }
    let told = metadata.get("retention").and_then(Raw::read::<Retention>).unwrap_or_default();
    if source.conversation.retention != told {
        metadata.insert("retention".into(), Raw::of(&source.conversation.retention)?);
    }
    let Conversation { title, owner, ttl, participants, .. } = source.conversation;
    let is_named = !origin.is_imported() || origin.names_participants;
    let carried = Carried {
        title: title.clone(),
        owner: owner.clone(),
        ttl: *ttl,
        participants: if is_named { participants.clone() } else { Vec::new() },
    };
    if carried != Carried::default() {
        metadata.entry(CARRIED.into()).or_insert(Raw::of(&carried)?);
    }
    // Entries that settings could not hold are restored, unless they have been changed since.
    let kept: BTreeMap<String, Raw> = origin.kept.get("metadata").and_then(Raw::read).unwrap_or_default();
    for (key, raw) in kept {
        if matches!(key.as_str(), "policy" | CARRIED) && raw.get() != "null" {
            // Fields beside those that are settings.
            let mut fields: BTreeMap<String, Raw> = raw.read().unwrap_or_default();
            let settings: Option<BTreeMap<String, Raw>> = metadata.get(&key).and_then(|now| now.read());
            fields.extend(settings.unwrap_or_default());
            metadata.insert(key, Raw::of(&fields)?);
            continue;
        }
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

/// Messages that a model call would continue from: complete or interrupted turns that are neither superseded,
/// summarized nor trimmed.
fn messages<'a>(
    source: &'a ExportSource<'_>,
    so_far: &'a RefCell<SoFar>,
) -> impl Iterator<Item = Result<Raw, Error>> + 'a {
    let (start, _) = source.conversation.view_start();
    let mut count = 0;
    each(source.read, |turn| turn.place).filter_map(move |turn| {
        let turn = match turn {
            Ok(turn) => turn,
            Err(error) => return Some(Err(error)),
        };
        let message = turn.message.clone().filter(|_| turn.place > start && is_said(&turn));
        let mut so_far = so_far.borrow_mut();
        so_far.indices.insert(turn.id, message.as_ref().map(|_| count));
        if let Some(message) = &message {
            so_far.message(&turn, message, source.unanswered);
        }
        count += usize::from(message.is_some());
        message.map(Ok)
    })
}

fn is_said(turn: &Turn) -> bool {
    matches!(turn.status, Status::Complete | Status::Interrupted) && turn.superseded_by.is_none()
}

fn events<'a>(
    source: &'a ExportSource<'_>,
    origin: &'a Origin,
    labels: &'a Labels,
    so_far: &'a RefCell<SoFar>,
) -> impl Iterator<Item = Result<Written, Error>> + 'a {
    let mut turns = source.each_turn().peekable();
    let ExportSource { events_after, in_force, .. } = *source;
    let is_shown = move |event: &Event| event.seq > events_after || in_force.contains(&event.seq);
    let shown = source.each_event().filter(move |event| event.as_ref().map_or(true, is_shown));
    let shown = shown.filter_map(move |event| {
        let written = event.and_then(|event| {
            so_far.borrow_mut().event(&event);
            while turns.next_if(|turn| turn.as_ref().is_ok_and(|turn| turn.seq < event.seq)).is_some() {}
            let turn = turns.next_if(|turn| turn.as_ref().map_or(true, |turn| turn.seq == event.seq));
            write(&event, turn.transpose()?, origin, labels, &so_far.borrow().indices)
        });
        written.transpose()
    });
    shown.chain(std::iter::once_with(move || so_far.borrow().rest(source)).flatten())
}

/// An event in the form of the value, with the turn that it began; `None` if the value does not show it.
fn write(
    event: &Event,
    turn: Option<Turn>,
    origin: &Origin,
    labels: &Labels,
    indices: &HashMap<TurnId, Option<usize>>,
) -> Result<Option<Written>, Error> {
    if let Some(turn) = turn {
        let index = indices.get(&turn.id).copied().flatten();
        let derived = || Derived::of(turn.role, event.visibility, turn.message.as_ref(), labels);
        let given = event.read::<TurnBody>().and_then(|body| body.event);
        return Ok(match given.as_ref().map(Raw::get) {
            Some(NO_EVENT) => None,
            Some(BARE_EVENT) => Some(Written::Derived(derived())),
            Some(_) => given.map(|given| linked(given, index).map(Written::Given)).transpose()?,
            None => Some(Written::Derived(derived().about(TurnDetails::of(&turn), index))),
        });
    }
    if let Some(given) = origin.given(event) {
        // The event of a message that stands elsewhere in the log.
        let turn = given.read::<BTreeMap<String, Raw>>().and_then(|fields| fields.get("turn")?.read());
        let index = turn.and_then(|turn: TurnId| indices.get(&turn).copied());
        let given = match index {
            Some(index) => linked(given, index)?,
            None => given,
        };
        return Ok(Some(Written::Given(given)));
    }
    let is_shown = !origin.is_bookkeeping(event) && !is_content(event);
    is_shown.then(|| lifecycle(event).map(Written::Lifecycle)).transpose()
}

/// An imported event whose link to its message, if it has one, is as the messages are now.
fn linked(given: Raw, index: Option<usize>) -> Result<Raw, Error> {
    const INDEX: &str = "message_index";
    if !given.get().contains(INDEX) {
        return Ok(given);
    }
    let mut fields: BTreeMap<String, Raw> = given.read().unwrap_or_default();
    let Some(old) = fields.remove(INDEX).filter(|old| old.read::<usize>() != index) else { return Ok(given) };
    // Something else under this name stays.
    if old.read::<usize>().is_none() {
        return Ok(given);
    }
    if let Some(index) = index {
        fields.insert(INDEX.into(), Raw::of(&index)?);
    }
    Raw::of(&fields)
}

/// Whether the event carries the content of a turn that is shown where it began.
fn is_content(event: &Event) -> bool {
    matches!(event.kind.as_str(), kind::COMMITTED | kind::INTERRUPTED) && event.turn.is_some()
}

fn lifecycle(event: &Event) -> Result<LifecycleEvent, Error> {
    /// A projection says what it did in words, and has its decision in `metadata`.
    #[derive(Deserialize)]
    struct Projected {
        text: String,
        metadata: Raw,
    }
    let projected = event.read::<Projected>().filter(|_| event.kind == kind::PROJECTION);
    let (text, metadata) = match projected {
        Some(Projected { text, metadata }) => (text, Some(metadata)),
        None => {
            let metadata = event.text().map(|text| without_prompt(&event.kind, text)).transpose();
            (String::new(), metadata.map_err(|error| error.at(format_args!("seq {}", event.seq)))?)
        }
    };
    Ok(LifecycleEvent {
        visibility: event.visibility,
        text,
        id: Some(event.id),
        turn: event.turn,
        actor: event.actor.clone(),
        metadata,
        ..LifecycleEvent::new(&event.kind, event.occurred_at.unwrap_or(event.at))
    })
}

impl LifecycleEvent {
    fn new(kind: &str, at: Timestamp) -> LifecycleEvent {
        LifecycleEvent {
            kind: kind.to_string(),
            role: Role::System,
            visibility: Visibility::Internal,
            text: String::new(),
            blocks: [],
            id: None,
            turn: None,
            actor: None,
            at,
            metadata: None,
        }
    }
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

/// An asset of the log.
struct Added {
    /// The descriptor, as it was given.
    descriptor: Raw,
    /// Whether it came with a turn.
    is_of_turn: bool,
}

impl Added {
    /// The descriptor with the bytes, if a message refers to it or no turn brought it. Without them it has no hash: bytes
    /// that are not in the value are not missing where it is imported.
    fn write(&self, source: &ExportSource<'_>, so_far: &SoFar) -> Result<Raw, Error> {
        let asset = self.descriptor.read::<Asset>();
        let Some((id, sha256)) = asset.and_then(|asset| Some((asset.id, asset.sha256?))) else {
            return Ok(self.descriptor.clone());
        };
        let is_carried = !self.is_of_turn || so_far.shown_assets.contains(&id);
        let data = match source.bytes.filter(|_| is_carried) {
            Some(bytes) => match bytes(sha256)? {
                Some(bytes) => Some(json::quote(&BASE64.encode(bytes))),
                None => return Ok(self.descriptor.clone()),
            },
            None => None,
        };
        let fields = json::fields(self.descriptor.get());
        let is_kept = |key: &str| data.is_some() || !matches!(key, "sha256" | "pieces");
        let fields = fields.iter().filter(|(key, _)| is_kept(key));
        let fields = fields.map(|(key, value)| (&**key, value.to_string()));
        Raw::joined(json::object(fields.chain(data.clone().map(|data| (DATA, data)))))
    }
}

fn assets(source: &ExportSource<'_>, origin: &Origin) -> Result<Vec<Added>, Error> {
    let mut assets = Vec::new();
    for event in source.each_event() {
        let event = event?;
        if event.kind == kind::ASSET_ADDED
            && origin.given(&event).is_none()
            && let Some(text) = event.text()
        {
            let descriptor = Raw::new(text.to_string());
            let descriptor = descriptor.map_err(|error| error.at(format_args!("seq {}", event.seq)))?;
            assets.push(Added { descriptor, is_of_turn: event.turn.is_some() });
        }
    }
    Ok(assets)
}
