//! The hash chain: the links that make a lost, changed or reordered event visible.
//!
//! The encoding of the envelope is version 1 (golden file: `core/tests/golden/format1_chain.json`). It is a plain
//! concatenation in a fixed order, integers big-endian, every text behind its length, every optional field behind a
//! presence byte, so that no two different envelopes give the same bytes:
//!
//! ```text
//! "everturn.event.v1\n" id[16] conversation[16] seq[u64] at[i64 µs] occurred_at[? i64 µs]
//! kind[u32 len, bytes] actor[? u32 len, bytes] role[? u32 len, bytes] visibility[u32 len, bytes]
//! turn[? 16] body_hash[32] prev[32] key[u32 len, bytes]
//! ```
//!
//! `key`, the access key that wrote the event, needs no presence byte: it is last, and nothing stands there without one.

use crate::Error;
use crate::error::code;
use crate::event::{Body, Draft, Event, kind};
use crate::id::ConversationId;
use ring::digest::{Context, SHA256, digest};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// First bytes of every hashed envelope: names the structure and the version of its encoding. Frozen.
const EVENT_TAG: &[u8] = b"everturn.event.v1\n";
/// First bytes of the input from which a conversation's first `prev` is derived. Frozen.
const GENESIS_TAG: &[u8] = b"everturn.genesis.v1\n";

/// A SHA-256 hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Hashes bytes.
    pub fn of(bytes: &[u8]) -> Hash {
        Hash::from_digest(digest(&SHA256, bytes))
    }

    fn from_digest(digest: ring::digest::Digest) -> Hash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest.as_ref());
        Hash(hash)
    }
}

/// Hashes bytes that come piece by piece.
#[derive(Clone)]
pub struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Hasher {
        Hasher(Context::new(&SHA256))
    }
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes.
    pub fn finish(self) -> Hash {
        Hash::from_digest(self.0.finish())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        hex::encode_to_slice(self.0, &mut text).map_err(|_| fmt::Error)?;
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| {
            Error::invalid(
                "hash.malformed",
                format!("{:?} is not a SHA-256 in 64 hexadecimal digits", crate::id::clip(text)),
            )
        })?;
        Ok(Hash(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Hash {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Hash".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[0-9a-f]{64}$"})
    }
}

/// End of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Head {
    /// `seq` of the last event; 0 before the first.
    pub seq: u64,
    /// Hash of the last event.
    pub hash: Hash,
}

impl Head {
    /// The head of a conversation without events.
    pub fn genesis(conversation: ConversationId) -> Head {
        let mut hasher = Hasher::default();
        hasher.update(GENESIS_TAG);
        hasher.update(&conversation.to_bytes());
        Head { seq: 0, hash: hasher.finish() }
    }
}

/// Assigns a draft its `seq` and hashes, as the event after `head`.
pub fn next_event(conversation: ConversationId, head: Head, draft: Draft) -> Event {
    let body_hash = body_hash(&draft.body);
    let mut event = Event {
        id: draft.id,
        conversation,
        seq: head.seq + 1,
        at: draft.at,
        occurred_at: draft.occurred_at,
        kind: draft.kind.into_owned(),
        actor: draft.actor,
        role: draft.role,
        visibility: draft.visibility,
        turn: draft.turn,
        key: draft.key,
        body: Some(draft.body),
        hidden: false,
        body_hash,
        prev: head.hash,
        hash: Hash([0; 32]),
    };
    event.hash = envelope_hash(&event);
    event
}

/// `sha256(salt ‖ body)`.
pub fn body_hash(body: &Body) -> Hash {
    let mut hasher = Hasher::default();
    hasher.update(&body.salt);
    hasher.update(body.text.as_bytes());
    hasher.finish()
}

/// The hash over the envelope without body and salt.
pub fn envelope_hash(event: &Event) -> Hash {
    Hash::of(&envelope_bytes(event))
}

/// The bytes that are hashed. Frozen: see the head of this file.
pub fn envelope_bytes(event: &Event) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(EVENT_TAG);
    out.extend_from_slice(&event.id.to_bytes());
    out.extend_from_slice(&event.conversation.to_bytes());
    out.extend_from_slice(&event.seq.to_be_bytes());
    out.extend_from_slice(&event.at.0.to_be_bytes());
    optional(&mut out, event.occurred_at.map(|t| t.0.to_be_bytes()).as_ref().map(|b| &b[..]));
    text(&mut out, &event.kind);
    optional_text(&mut out, event.actor.as_deref());
    optional_text(&mut out, event.role.map(|role| role.as_str()));
    text(&mut out, event.visibility.as_str());
    optional(&mut out, event.turn.map(|turn| turn.to_bytes()).as_ref().map(|b| &b[..]));
    out.extend_from_slice(&event.body_hash.0);
    out.extend_from_slice(&event.prev.0);
    if let Some(key) = &event.key {
        text(&mut out, key);
    }
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn optional_text(out: &mut Vec<u8>, value: Option<&str>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        text(out, value);
    }
}

fn optional(out: &mut Vec<u8>, value: Option<&[u8]>) {
    out.push(u8::from(value.is_some()));
    out.extend_from_slice(value.unwrap_or_default());
}

/// Checks an event against its hashes: the envelope, and the body unless erased. The caller compares `prev`
/// with the hash of the event before.
pub fn check(event: &Event) -> Result<(), Error> {
    let (code, what) = match &event.body {
        Some(body) if body_hash(body) != event.body_hash => (code::BODY_MISMATCH, "body"),
        _ if envelope_hash(event) != event.hash => ("chain.envelope_mismatch", "envelope"),
        _ => return Ok(()),
    };
    let (conversation, seq, id) = (event.conversation, event.seq, event.id);
    let command = erase_command(event).filter(|_| what == "body");
    let instead = command
        .map_or(String::new(), |command| format!("; without a backup, erase the damaged event: `{command}`"));
    Err(Error::corrupt(
        code,
        format!(
            "{conversation} seq {seq} ({id}): its {what} is not the one that was written; read around it with `before` {seq} \
             and `after` {seq}, and restore the store from a backup into a new folder{instead}"
        ),
    ))
}

/// The command that erases an event: with its turn, or by its `seq`. `None` if it holds no content.
fn erase_command(event: &Event) -> Option<String> {
    match event.turn.filter(|_| kind::is_of_turn(&event.kind)) {
        Some(turn) => Some(format!("everturn erase {turn} --reason damaged")),
        None if kind::has_words(&event.kind) => {
            Some(format!("everturn erase {} --event {} --reason damaged", event.conversation, event.seq))
        }
        None => None,
    }
}

/// Result of verifying a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Report")]
pub struct ChainReport {
    /// Number of events checked.
    pub events: u64,
    /// Number of erased bodies. They are not errors.
    pub erased: u64,
    /// End of the chain.
    pub head: Head,
    /// Whether the chain contains the given head; `None` if none was given.
    pub contains_head: Option<bool>,
}

/// Checks a chain one event at a time, in constant memory.
pub struct Verifier {
    head: Option<Head>,
    conversation: ConversationId,
    events: u64,
    erased: u64,
    wanted: Option<Hash>,
    found: bool,
}

impl Verifier {
    /// Starts at the beginning of a conversation. Its log starts with its own genesis, or with an ancestor's if
    /// it is a fork. With `wanted`, the report also says whether the chain contains that hash, noted earlier: a
    /// log that was truncated or rewritten as a whole does not.
    pub fn new(conversation: ConversationId, wanted: Option<Hash>) -> Verifier {
        Verifier { head: None, conversation, events: 0, erased: 0, wanted, found: false }
    }

    /// Starts after a part that has already been verified.
    pub fn after(conversation: ConversationId, head: Head) -> Verifier {
        Verifier { head: Some(head), ..Verifier::new(conversation, None) }
    }

    /// Checks the next event. Returns the first error found.
    pub fn push(&mut self, event: &Event) -> Result<(), Error> {
        let head = self.head.unwrap_or_else(|| Head::genesis(event.conversation));
        let broken = |code, what: String| Err(Error::corrupt(code, format!("seq {}: {what}", event.seq)));
        if event.seq != head.seq + 1 {
            return broken(
                "chain.missing_seq",
                format!("expected seq {}; events are missing or out of order", head.seq + 1),
            );
        }
        if event.prev != head.hash {
            return broken("chain.broken_link", "its prev is not the hash of the event before it".into());
        }
        match &event.body {
            None => self.erased += 1,
            Some(body) if body_hash(body) != event.body_hash => {
                return broken(code::BODY_MISMATCH, "its body is not the one that was written".into());
            }
            Some(_) => {}
        }
        if envelope_hash(event) != event.hash {
            return broken("chain.envelope_mismatch", "its envelope is not the one that was written".into());
        }
        self.found |= self.wanted == Some(event.hash);
        self.events += 1;
        self.head = Some(Head { seq: event.seq, hash: event.hash });
        Ok(())
    }

    /// Ends the verification.
    pub fn finish(self) -> ChainReport {
        let head = self.head.unwrap_or_else(|| Head::genesis(self.conversation));
        ChainReport {
            events: self.events,
            erased: self.erased,
            head,
            contains_head: self
                .wanted
                .map(|wanted| self.found || wanted == Head::genesis(self.conversation).hash),
        }
    }
}
