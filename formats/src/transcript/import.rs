//! From a transcript value to settings, assets, turns and events.

use super::{
    BARE_EVENT, CARRIED, CARRIED_FIELDS, DATA, Derived, GivenEvent, Labels, NO_EVENT, TYPE, TurnDetails,
    VERSION, changes_state, prompt_content,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::Error;
use everturn_core::asset::{self, Asset};
use everturn_core::chain::Hash;
use everturn_core::conversation::{Lifecycle, POLICIES, Settings, SystemPrompt, check_policy};
use everturn_core::event::{Visibility, check_name, kind};
use everturn_core::id::{ConversationId, EventId, TurnId, clip};
use everturn_core::json::{self, Raw};
use everturn_core::message;
use everturn_core::turn::Role;
use everturn_core::viewer::check_blocks;
use everturn_core::write::SupersededBody;
use everturn_views::compaction::{Checkpoint, CompactionBody};
use everturn_views::state;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// A transcript value, ready to be stored as the [module](super) describes.
#[derive(Clone, PartialEq, Debug)]
pub struct ParsedTranscript {
    /// Id of the conversation: its own if that is one of ours, else one derived from the value's id.
    pub id: Option<ConversationId>,
    /// Initial settings of the conversation.
    pub settings: Settings,
    /// State after everything is stored.
    pub state: Lifecycle,
    /// Descriptors, to be stored before the items that refer to them.
    pub assets: Vec<AssetItem>,
    /// The checkpoint that its summary is, and the last turn that this covers.
    pub checkpoint: Option<(Checkpoint, Option<TurnId>)>,
    /// Turns and events, in order.
    pub items: Vec<Item>,
}

/// An asset.
#[derive(Clone, PartialEq, Debug)]
pub struct AssetItem {
    /// Its id, unique among the value's assets.
    pub id: String,
    /// The descriptor as it came, without the bytes: the body of `asset.added`.
    pub raw: Raw,
    /// Readers that may see it.
    pub visibility: Visibility,
    data: Option<Data>,
}

/// Bytes of an asset that are not decoded yet.
#[derive(Clone, PartialEq, Debug)]
struct Data {
    asset: Asset,
    encoded: Raw,
    path: String,
}

impl AssetItem {
    /// Its hash and its bytes, which match all that the descriptor says of them; `None` if the value has none.
    pub fn bytes(&self) -> Result<Option<(Hash, Vec<u8>)>, Error> {
        let Some(Data { asset, encoded, path }) = &self.data else { return Ok(None) };
        let encoded: Option<Cow<'_, str>> = encoded.read();
        let bytes = encoded.and_then(|encoded| BASE64.decode(&*encoded).ok());
        let bytes = bytes.ok_or_else(|| wrong(path, "must be the bytes of the asset, in base64"))?;
        let sha256 = Hash::of(&bytes);
        let is_it = asset.sha256 == Some(sha256)
            && asset.bytes.is_none_or(|length| length == bytes.len() as u64)
            && (asset.pieces.is_empty() || asset.pieces == asset::pieces(&bytes));
        match is_it {
            true => Ok(Some((sha256, bytes))),
            false => Err(wrong(path, "has other bytes than the descriptor says; was the file changed?")),
        }
    }
}

/// One step of the conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A message.
    Turn {
        /// Role of the turn.
        role: Role,
        /// Readers that may see the turn.
        visibility: Visibility,
        /// The message as it came.
        message: Raw,
        /// The event object as it came, if it differs from the one derived from the message; [`NO_EVENT`] if the value has
        /// none for it, [`BARE_EVENT`] if it is the derived one without the fields of [`TurnDetails`].
        event: Option<Raw>,
        /// Whether `event` equals the event derived from the turn with the id of `about`.
        is_derived: bool,
        /// Details from its event.
        about: Box<TurnDetails>,
    },
    /// An event that belongs to no message.
    Event {
        /// The kind to store it under: as given, except that one that ends or supersedes a turn has `imported.` in
        /// front. Under its own name it would have to be about a turn of ours.
        kind: String,
        /// Role of the event, if it is one of ours.
        role: Option<Role>,
        /// Readers that may see the event.
        visibility: Visibility,
        /// The event object as it came.
        raw: Raw,
        /// Its actor, time and turn.
        about: Box<TurnDetails>,
    },
}

impl Item {
    /// Ids of the assets that a turn refers to.
    pub fn asset_ids(&self) -> Vec<String> {
        match self {
            Item::Turn { message, .. } if message.get().contains("asset_") => {
                message.read().map(|message| message::asset_ids(&message)).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// The body of the event that stores an [`Item::Event`]; `None` for a turn, whose body is a `TurnBody`.
    pub fn body(&self) -> Option<Result<Raw, Error>> {
        match self {
            Item::Turn { .. } => None,
            Item::Event { kind, raw, .. } => Some(match change(kind, raw) {
                Some(mut fields) => {
                    fields.insert("event".into(), raw.clone());
                    Raw::of(&fields)
                }
                None => Raw::of(&GivenEvent { event: raw.clone() }),
            }),
        }
    }
}

/// The change of the state that an event of the value tells of in its metadata.
fn change(kind: &str, raw: &Raw) -> Option<Fields> {
    if !changes_state(kind) {
        return None;
    }
    let mut fields = raw.read::<Fields>()?;
    let metadata = fields.remove("metadata")?;
    // A call without an id is given up by its turn.
    let by_turn = kind == kind::TOOL_ABANDONED && fields.get("turn").and_then(Raw::read::<TurnId>).is_some();
    if state::check(kind, &metadata).is_err()
        && !(by_turn && metadata.read::<state::AbandonedBody>().is_some())
    {
        return None;
    }
    metadata.read::<Fields>().filter(|fields| !fields.contains_key("event"))
}

type Fields = BTreeMap<String, Raw>;

/// Reads a transcript value. Version 1 and missing fields are brought up to version 2; an error names the place, such
/// as `$.messages[3].role`.
pub fn parse(text: &str) -> Result<ParsedTranscript, Error> {
    json::check(text).map_err(|error| error.at("$"))?;
    let mut value: Fields = serde_json::from_str(text).map_err(|_| wrong("$", "must be an object"))?;

    let version = version(&mut value)?;
    let mut settings = Settings::default();
    settings.transcript.insert("version".into(), Raw::of(&version)?);
    let id = id(&mut value, &mut settings)?;
    let state = lifecycle(&mut value)?;
    metadata(&mut value, &mut settings)?;
    if let Some(summary) = value.get("summary").filter(|raw| raw.read::<Option<String>>().is_none()) {
        return Err(wrong("$.summary", format!("must be a text, not {}", clip(summary.get()))));
    }
    let summary = value.get("summary").and_then(Raw::read::<String>).filter(|text| !text.trim().is_empty());
    if summary.is_some() {
        value.remove("summary");
    }

    let assets = assets(&mut value)?;
    let mut labels = Labels::default();
    assets.iter().for_each(|asset| labels.add(&asset.raw));
    let events = list(&mut value, "events")?;
    let events = events.map(|events| numbered("$.events", events, Given::read)).transpose()?;
    let told = events.iter().flatten().filter_map(|event| Some((event.message_index?, event.role?)));
    let told: HashMap<usize, Role> = told.collect();
    let messages = list(&mut value, "messages")?.unwrap_or_default().into_iter().enumerate();
    let messages = messages
        .map(|(n, raw)| Message::read(&format!("$.messages[{n}]"), raw, told.get(&n).copied()))
        .collect::<Result<Vec<_>, _>>()?;
    let checkpoint = summary.map(|summary| checkpoint(summary, events.as_deref().unwrap_or_default()));
    let mut items = match events {
        Some(events) if events.iter().any(|event| event.message_index.is_some()) => {
            pair_linked(messages, events, &labels)?
        }
        Some(events) => pair(messages, events, &labels)?,
        // A value without the field is older than events: they are derived.
        None => messages.into_iter().map(|message| message.turn(None, TurnDetails::default())).collect(),
    };

    // No two turns have one id.
    let mut turns = HashSet::new();
    for item in &mut items {
        if let Item::Turn { about, is_derived, .. } = item
            && about.turn.is_some_and(|turn| !turns.insert(turn))
        {
            (about.turn, *is_derived) = (None, false);
        }
    }

    settings.transcript.extend(value);
    // The settings are nested one level deeper in the event, and must still fit.
    json::check(Raw::of(&settings)?.get()).map_err(|error| error.at("$"))?;
    Ok(ParsedTranscript { id, settings, state, assets, checkpoint, items })
}

/// The summary as a checkpoint: with the other parts of the one in force that the events tell of, if it begins with its
/// note.
fn checkpoint(summary: String, events: &[Given]) -> (Checkpoint, Option<TurnId>) {
    let compactions = || {
        let told = events.iter().rev().filter(|event| event.kind == kind::COMPACTION);
        told.filter_map(|event| event.raw.read::<Fields>())
    };
    let body = |fields: Fields| fields.get("metadata")?.read::<CompactionBody>();
    let told = compactions().next().and_then(body);
    let told = match told.as_ref().and_then(|last| last.reverts.map(|_| last.restores)) {
        Some(restored) => restored.and_then(|restored| {
            let is_it =
                |fields: &Fields| fields.get("id").and_then(Raw::read::<EventId>) == Some(restored.event);
            compactions().find(is_it).and_then(body)
        }),
        None => told,
    };
    let through = told.as_ref().and_then(|told| told.summarized.as_ref()).map(|told| told.through);
    match told.and_then(|told| told.checkpoint).filter(|told| summary.starts_with(&told.handoff_md)) {
        Some(told) => (Checkpoint { handoff_md: summary, ..told }, through),
        None => (Checkpoint { handoff_md: summary, ..Checkpoint::default() }, None),
    }
}

fn wrong(path: impl fmt::Display, what: impl fmt::Display) -> Error {
    Error::invalid("transcript.malformed", format!("{path}: {what}"))
}

fn version(value: &mut Fields) -> Result<u64, Error> {
    let marker = value.remove("_type").and_then(|raw| raw.read::<String>());
    if marker.as_deref() != Some(TYPE) {
        return Err(wrong("$._type", format!("must be \"{TYPE}\"; this is no transcript value")));
    }
    let Some(raw) = value.remove("version") else { return Ok(1) };
    match raw.read::<u64>() {
        Some(version @ 1..=VERSION) => Ok(version),
        Some(version) if version > VERSION => Err(Error::invalid(
            "transcript.newer",
            format!(
                "$.version: the value has version {version}, this everturn reads up to {VERSION}; upgrade it"
            ),
        )),
        _ => Err(wrong("$.version", format!("must be 1 or {VERSION}, not {}", clip(raw.get())))),
    }
}

fn id(value: &mut Fields, settings: &mut Settings) -> Result<Option<ConversationId>, Error> {
    let Some(raw) = value.remove("id") else { return Ok(None) };
    let id: String = raw.read().ok_or_else(|| wrong("$.id", "must be a text such as tr_01J…"))?;
    let ours = id.strip_prefix("tr_").and_then(|ulid| format!("conv_{ulid}").parse().ok());
    if ours.is_some() {
        return Ok(ours);
    }
    settings.transcript.insert("id".into(), raw);
    let foreign = || {
        let mut bytes = [0; 16];
        bytes[6..].copy_from_slice(&Hash::of(format!("transcript {id}").as_bytes()).0[..10]);
        ConversationId::from_bytes(bytes)
    };
    Ok((!id.is_empty()).then(foreign))
}

fn lifecycle(value: &mut Fields) -> Result<Lifecycle, Error> {
    let Some(raw) = value.remove("state") else { return Ok(Lifecycle::Active) };
    let word: String = raw.read().ok_or_else(|| wrong("$.state", "must be a text such as active"))?;
    word.parse().map_err(|error: Error| error.at("$.state"))
}

/// Metadata becomes settings. An entry that these cannot hold as it is (null, or a prompt with more to it than its
/// text) is kept under `transcript.metadata` as well.
fn metadata(value: &mut Fields, settings: &mut Settings) -> Result<(), Error> {
    let Some(raw) = value.remove("metadata") else { return Ok(()) };
    let fields: Fields = raw.read().ok_or_else(|| wrong("$.metadata", "must be an object"))?;
    let mut kept = Fields::new();
    for (key, raw) in fields {
        if raw.get() == "null" {
            kept.insert(key, raw);
        } else if key == "system_prompt" {
            let path = "$.metadata.system_prompt";
            let content = prompt_content(&raw)
                .ok_or_else(|| wrong(path, "must be a text, or an object with the text as content"))?;
            let prompt = SystemPrompt::new(content);
            if !same(&raw, &Raw::of(&prompt)?) {
                kept.insert(key, raw);
            }
            settings.system_prompt = Some(Some(prompt));
        } else if key == "policy"
            && let Some((policies, others)) = known(&raw, &POLICIES)
        {
            for (name, policy) in &policies {
                let path = format!("$.metadata.policy.{name}");
                check_policy(name, policy).map_err(|error| error.at(path))?;
            }
            settings.policy = policies;
            kept.extend(others.map(|others| (key, others)));
        } else if key == CARRIED
            && let Some((carried, others)) = known(&raw, &CARRIED_FIELDS)
        {
            settings.title = carried_field(&carried, "title", "a text")?.map(Some);
            settings.owner = carried_field(&carried, "owner", "a text")?.map(Some);
            settings.ttl = carried_field(&carried, "ttl", "a number of seconds above 0")?.map(Some);
            settings.participants =
                carried_field(&carried, "participants", "a list of names")?.unwrap_or_default();
            kept.extend(others.map(|others| (key, others)));
        } else {
            settings.metadata.insert(key, raw);
        }
    }
    if let Some(raw) = settings.metadata.get("retention") {
        let path = "$.metadata.retention";
        let word: String = raw.read().ok_or_else(|| wrong(path, "must be a text such as full"))?;
        settings.retention = Some(word.parse().map_err(|error: Error| error.at(path))?);
    }
    if !kept.is_empty() {
        settings.transcript.insert("metadata".into(), Raw::of(&kept)?);
    }
    Ok(())
}

/// The fields of an object that have these names, and an object of the others, if there are any. `None` if it has none of
/// these names: it is another program's.
fn known(raw: &Raw, names: &[&str]) -> Option<(Fields, Option<Raw>)> {
    let fields: Fields = raw.read()?;
    let is_known = |name: &str, raw: &Raw| names.contains(&name) && raw.get() != "null";
    let (known, others): (Fields, Fields) = fields.into_iter().partition(|(name, raw)| is_known(name, raw));
    let others = if others.is_empty() { None } else { Raw::of(&others).ok() };
    (!known.is_empty()).then_some((known, others))
}

fn carried_field<T: DeserializeOwned>(fields: &Fields, name: &str, what: &str) -> Result<Option<T>, Error> {
    let read = |raw: &Raw| {
        let path = format!("$.metadata.{CARRIED}.{name}");
        raw.read().ok_or_else(|| wrong(path, format!("must be {what}, not {}", clip(raw.get()))))
    };
    fields.get(name).map(read).transpose()
}

fn assets(value: &mut Fields) -> Result<Vec<AssetItem>, Error> {
    let mut ids = HashSet::new();
    numbered("$.assets", list(value, "assets")?.unwrap_or_default(), |path, raw| {
        let fields = object(path, &raw)?;
        let at = format!("{path}.id");
        let id: String = fields.get("id").and_then(Raw::read).ok_or_else(|| wrong(&at, "must be a text"))?;
        check_name("asset id", &id).map_err(|error| error.at(&at))?;
        if !ids.insert(id.clone()) {
            return Err(wrong(&at, format!("{:?} is there twice; give each asset its own id", clip(&id))));
        }
        let described = raw.read::<Asset>();
        let visibility = described.as_ref().map_or(Visibility::Internal, |asset| asset.visibility);
        let is_hashed = fields.get("sha256").is_some_and(|raw| raw.get() != "null");
        let is_text = fields.get(DATA).is_some_and(|raw| raw.get().starts_with('"'));
        if is_hashed && is_text && described.as_ref().is_none_or(|asset| asset.sha256.is_none()) {
            let path = format!("{path}.sha256");
            return Err(wrong(path, "must be the SHA-256 of the bytes, beside a descriptor of them"));
        }
        // Without a hash, what another program calls data stays in the descriptor.
        let encoded = fields.get(DATA).cloned().zip(described.filter(|asset| asset.sha256.is_some()));
        let Some((encoded, asset)) = encoded else {
            return Ok(AssetItem { id, raw, visibility, data: None });
        };
        let fields = json::fields(raw.get());
        let kept = fields.iter().filter(|(key, _)| key != DATA);
        let raw = Raw::joined(json::object(kept.map(|(key, value)| (&**key, value.to_string()))))?;
        let data = Some(Data { asset, encoded, path: format!("{path}.{DATA}") });
        Ok(AssetItem { id, raw, visibility, data })
    })
}

/// The elements of a list; `None` if the field is missing.
fn list(value: &mut Fields, name: &str) -> Result<Option<Vec<Raw>>, Error> {
    let Some(raw) = value.remove(name) else { return Ok(None) };
    raw.read().map(Some).ok_or_else(|| wrong(format_args!("$.{name}"), "must be an array"))
}

/// Reads each element, which is told its path.
fn numbered<T>(
    path: &str,
    elements: Vec<Raw>,
    mut read: impl FnMut(&str, Raw) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    elements.into_iter().enumerate().map(|(n, raw)| read(&format!("{path}[{n}]"), raw)).collect()
}

fn object(path: &str, raw: &Raw) -> Result<Fields, Error> {
    raw.read().ok_or_else(|| wrong(path, "must be an object"))
}

/// The role of a message or event, by the same lens that reads it later.
fn role(fields: &Fields) -> Result<Role, Error> {
    let mut head = Map::new();
    for name in ["role", "type"] {
        if let Some(value) = fields.get(name).and_then(|raw| raw.read::<Value>()) {
            head.insert(name.to_string(), value);
        }
    }
    message::role(&Value::Object(head))
}

fn visibility(path: &str, fields: &Fields, role: Option<Role>) -> Result<Visibility, Error> {
    match fields.get("visibility") {
        None if role == Some(Role::Tool) => Ok(Visibility::Internal),
        None => Ok(Visibility::Public),
        Some(raw) => {
            let path = format!("{path}.visibility");
            let word: String = raw.read().ok_or_else(|| wrong(&path, "must be a text such as public"))?;
            word.parse().map_err(|error: Error| error.at(&path))
        }
    }
}

/// A message of the value.
struct Message {
    role: Role,
    raw: Raw,
}

impl Message {
    /// A message without a role has that of its event.
    fn read(path: &str, raw: Raw, told: Option<Role>) -> Result<Message, Error> {
        let raw = match told.and_then(|role| message::in_role(raw.get(), role)) {
            Some(named) => Raw::joined(named)?,
            None => raw,
        };
        check_blocks(raw.get()).map_err(|error| error.at(path))?;
        let role = role(&object(path, &raw)?).map_err(|error| error.at(format_args!("{path}.role")))?;
        Ok(Message { role, raw })
    }

    /// Its turn, with the visibility that a turn of its role has by itself.
    fn turn(self, event: Option<Raw>, about: TurnDetails) -> Item {
        let visibility = if self.role == Role::Tool { Visibility::Internal } else { Visibility::Public };
        let (role, message, about) = (self.role, self.raw, Box::new(about));
        Item::Turn { role, visibility, message, event, is_derived: false, about }
    }

    fn without_event(self) -> Result<Item, Error> {
        Ok(self.turn(Some(Raw::new(NO_EVENT.to_string())?), TurnDetails::default()))
    }

    /// Its turn where its event stands elsewhere.
    fn apart_from(self, event: Option<&Given>) -> Result<Item, Error> {
        let item = self.without_event()?;
        Ok(match (item, event) {
            (Item::Turn { role, message, event, is_derived, .. }, Some(told)) => {
                let (visibility, about) = (told.visibility, Box::new(told.about.clone()));
                Item::Turn { role, visibility, message, event, is_derived, about }
            }
            (item, _) => item,
        })
    }
}

/// An event of the value.
struct Given {
    kind: String,
    role: Option<Role>,
    visibility: Visibility,
    raw: Raw,
    about: TurnDetails,
    /// Index of its message.
    message_index: Option<usize>,
}

impl Given {
    fn read(path: &str, raw: Raw) -> Result<Given, Error> {
        let fields = object(path, &raw)?;
        let at = format!("{path}.kind");
        let kind: String =
            fields.get("kind").and_then(Raw::read).ok_or_else(|| wrong(&at, "must be a text"))?;
        check_name("kind", &stored_kind(&kind)).map_err(|error| error.at(&at))?;
        if let Some(role) = fields.get("role").filter(|raw| raw.read::<Option<String>>().is_none()) {
            return Err(wrong(
                format_args!("{path}.role"),
                format!("must be a text, not {}", clip(role.get())),
            ));
        }
        let role = role(&fields).ok();
        let visibility = visibility(path, &fields, role)?;
        let message_index = fields.get("message_index").and_then(Raw::read);
        let mut about = about(&fields);
        if visibility != Visibility::Private {
            about.audience.clear();
        }
        Ok(Given { kind, role, visibility, raw, about, message_index })
    }

    /// Whether it can be the event of a message.
    fn is_message(&self) -> bool {
        matches!(self.kind.as_str(), kind::MESSAGE | kind::TOOL_RESULT)
    }

    fn may_be(&self, message: &Message) -> bool {
        self.role.is_none_or(|role| role == message.role)
    }

    fn item(self) -> Item {
        let Given { kind, role, visibility, raw, about, .. } = self;
        Item::Event { kind: stored_kind(&kind), role, visibility, raw, about: Box::new(about) }
    }
}

/// Details of a turn from its event. In a value of another program the same names may mean something else: a detail that
/// cannot be ours is left out, and stays in the event.
fn about(fields: &Fields) -> TurnDetails {
    fn read<T: DeserializeOwned>(fields: &Fields, name: &str) -> Option<T> {
        fields.get(name).and_then(Raw::read)
    }
    let is_name = |name: &String| check_name("actor", name).is_ok();
    let turn: Option<TurnId> = read(fields, "turn");
    TurnDetails {
        turn,
        actor: read(fields, "actor").filter(is_name),
        audience: read(fields, "audience")
            .filter(|names: &Vec<String>| names.iter().all(is_name))
            .unwrap_or_default(),
        at: read(fields, "at"),
        model: read(fields, "model"),
        tokens: read(fields, "tokens"),
        // Another program's metadata stays in its event.
        metadata: turn.and_then(|_| read(fields, "metadata")).unwrap_or_default(),
    }
}

fn stored_kind(kind: &str) -> String {
    let about_a_turn = kind::ends_turn(kind) || kind == kind::SUPERSEDED || kind::is_fact(kind);
    // These events refer to places in their original log.
    let places = [kind::COMPACTION, kind::BUDGET, kind::PROJECTION, kind::RECEIPT, kind::FACTS_READ];
    let about_places = places.contains(&kind);
    if about_a_turn || about_places { format!("imported.{kind}") } else { kind.to_string() }
}

/// Puts messages and events into one order that keeps both, each message with its event.
///
/// The value does not say which event is which message's, and either side may have more: a message whose event was
/// trimmed, an event whose message was superseded. So the two are walked side by side, and those with the same role and
/// the same blocks are preferred.
fn pair(messages: Vec<Message>, events: Vec<Given>, labels: &Labels) -> Result<Vec<Item>, Error> {
    let message_keys: Vec<Option<String>> = messages.iter().map(message_key).collect();
    let event_keys: Vec<Option<String>> = events.iter().map(event_key).collect();
    let last_message = last_places(&message_keys);
    let last_event = last_places(&event_keys);
    let comes_later = |places: &HashMap<&str, usize>, key: &Option<String>, now: usize| {
        key.as_deref().and_then(|key| places.get(key)).is_some_and(|last| *last > now)
    };

    let mut items = Vec::with_capacity(messages.len().max(events.len()));
    let mut waiting = messages.into_iter().enumerate().peekable();
    for (e, event) in events.into_iter().enumerate() {
        if !event.is_message() {
            items.push(event.item());
            continue;
        }
        loop {
            let Some((m, message)) = waiting.peek() else {
                items.push(event.item());
                break;
            };
            let equal = event_keys[e].is_some() && event_keys[e] == message_keys[*m];
            let paired = if equal {
                true
            } else if comes_later(&last_event, &message_keys[*m], e) {
                false
            } else if comes_later(&last_message, &event_keys[e], *m) {
                let Some((_, message)) = waiting.next() else { break };
                items.push(message.without_event()?);
                continue;
            } else {
                event.may_be(message)
            };
            match waiting.next_if(|_| paired) {
                Some((_, message)) => items.push(together(message, event, labels)?),
                None => items.push(event.item()),
            }
            break;
        }
    }
    for (_, message) in waiting {
        items.push(message.without_event()?);
    }
    Ok(items)
}

/// The same where events name their messages. Messages are stored in their order, in which the conversation reads: one
/// that was edited stands where the first turn of its chain stood, before its event, which is then kept apart from it.
fn pair_linked(messages: Vec<Message>, events: Vec<Given>, labels: &Labels) -> Result<Vec<Item>, Error> {
    let mut event_of: HashMap<usize, usize> = HashMap::new();
    for (e, event) in events.iter().enumerate() {
        let message = event.message_index.and_then(|index| Some((index, messages.get(index)?)));
        if let Some((index, message)) = message
            && event.is_message()
            && event.may_be(message)
        {
            event_of.entry(index).or_insert(e);
        }
    }
    let index_of: HashMap<usize, usize> =
        event_of.iter().map(|(message, event)| (*event, *message)).collect();
    let first_of = first_of_chains(&events, &index_of);
    let mut items = Vec::with_capacity(messages.len().max(events.len()));
    let mut events: Vec<Option<Given>> = events.into_iter().map(Some).collect();
    let mut waiting = messages.into_iter().enumerate().peekable();
    for e in 0..events.len() {
        let index = index_of.get(&e).copied();
        let before = index.or_else(|| first_of.get(&e).map(|message| message + 1));
        while let Some((m, message)) = waiting.next_if(|(m, _)| before.is_some_and(|before| *m < before)) {
            let event = event_of.get(&m).and_then(|e| events[*e].as_ref());
            items.push(message.apart_from(event)?);
        }
        let message = waiting.next_if(|(m, _)| index == Some(*m));
        match (events[e].take(), message) {
            (Some(event), Some((_, message))) => items.push(together(message, event, labels)?),
            (Some(event), None) => items.push(event.item()),
            (None, _) => {}
        }
    }
    for (_, message) in waiting {
        items.push(message.without_event()?);
    }
    Ok(items)
}

/// For each event of a turn that was edited, the index of the message that is read in its place.
fn first_of_chains(events: &[Given], index_of: &HashMap<usize, usize>) -> HashMap<usize, usize> {
    let mut by: HashMap<TurnId, TurnId> = HashMap::new();
    for event in events.iter().filter(|event| event.kind == kind::SUPERSEDED) {
        let body = event.raw.read::<Fields>().and_then(|fields| fields.get("metadata")?.read());
        if let (Some(turn), Some(SupersededBody { by: successor })) = (event.about.turn, body) {
            by.insert(turn, successor);
        }
    }
    // Each turn is looked up once: chains may be long, and a value may name turns in a circle.
    let mut read: HashMap<TurnId, Option<usize>> = HashMap::new();
    for (event, index) in index_of {
        read.extend(events[*event].about.turn.map(|turn| (turn, Some(*index))));
    }
    let mut first = HashMap::new();
    for (n, event) in events.iter().enumerate() {
        if !event.is_message() || index_of.contains_key(&n) {
            continue;
        }
        let (mut chain, mut turn) = (Vec::new(), event.about.turn);
        while let Some(next) = turn.filter(|turn| !read.contains_key(turn)) {
            read.insert(next, None);
            chain.push(next);
            turn = by.get(&next).copied();
        }
        let index = turn.and_then(|turn| read.get(&turn).copied().flatten());
        read.extend(chain.into_iter().map(|turn| (turn, index)));
        first.extend(index.map(|index| (n, index)));
    }
    first
}

/// A turn with its event, which is kept only if export would not derive it.
fn together(message: Message, event: Given, labels: &Labels) -> Result<Item, Error> {
    let Given { visibility, raw, about, message_index, .. } = event;
    let derive = || Derived::of(message.role, visibility, Some(&message.raw), labels);
    let is_derived =
        about.turn.is_some() && same(&Raw::of(&derive().about(about.clone(), message_index))?, &raw);
    let event = match is_derived || !same(&Raw::of(&derive())?, &raw) {
        true => raw,
        false => Raw::new(BARE_EVENT.to_string())?,
    };
    let (role, message, about) = (message.role, message.raw, Box::new(about));
    Ok(Item::Turn { role, visibility, message, event: Some(event), is_derived, about })
}

/// Whether two are equal as values. Numbers beyond any double are equal only byte for byte.
fn same(a: &Raw, b: &Raw) -> bool {
    a == b || a.read::<Value>().zip(b.read::<Value>()).is_some_and(|(a, b)| a == b)
}

/// Role and blocks of a message as one text.
fn message_key(message: &Message) -> Option<String> {
    let derived = Derived::of(message.role, Visibility::Public, Some(&message.raw), &Labels::default());
    key(message.role, Raw::of(&derived.blocks).ok()?.read()?)
}

fn event_key(event: &Given) -> Option<String> {
    let fields: Fields = event.raw.read().filter(|_| event.is_message())?;
    key(event.role?, fields.get("blocks")?.read()?)
}

/// `None` where there are no blocks to compare.
fn key(role: Role, blocks: Value) -> Option<String> {
    let blocks = blocks.as_array().filter(|blocks| !blocks.is_empty())?;
    Some(format!("{role} {}", Value::from(blocks.clone())))
}

fn last_places(keys: &[Option<String>]) -> HashMap<&str, usize> {
    keys.iter().enumerate().filter_map(|(place, key)| Some((key.as_deref()?, place))).collect()
}
