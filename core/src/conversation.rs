//! A conversation: what its log folds into, apart from the turns.

use crate::Error;
use crate::chain::{Hash, Head};
use crate::event::check_name;
use crate::id::{ConversationId, EventId, TenantName, TurnId};
use crate::json::Raw;
use crate::limits::{METADATA_BYTES_MAX, TITLE_BYTES_MAX};
use crate::time::Timestamp;
use crate::words;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Where a conversation is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ConversationState")]
pub enum Lifecycle {
    /// Open for turns.
    #[default]
    Active,
    /// Put away; `resume` brings it back.
    Archived,
    /// Given up; `resume` brings it back.
    Abandoned,
    /// Ended for good; `reset` starts a new one that names it.
    Closed,
}
words!(Lifecycle, "state.unknown", Active "active", Archived "archived", Abandoned "abandoned", Closed "closed");

/// How long content is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Retention {
    /// For ever.
    #[default]
    Full,
    /// Until a compaction covers it; hashes stay.
    AuditOnly,
    /// Until it leaves the verbatim window; and the conversation has a time to live.
    Ephemeral,
}
words!(Retention, "retention.unknown", Full "full", AuditOnly "audit-only", Ephemeral "ephemeral");

/// Where a fork left its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Parent {
    /// The conversation it came from.
    pub conversation: ConversationId,
    /// The last event that both share.
    pub at_seq: u64,
}

/// The session's system prompt: text, fingerprint, size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SystemPrompt {
    /// The text.
    pub content: String,
    /// Its fingerprint.
    pub sha256: Hash,
    /// Its size.
    pub bytes: u64,
}

impl SystemPrompt {
    /// A prompt with its fingerprint.
    pub fn new(content: String) -> SystemPrompt {
        SystemPrompt { sha256: Hash::of(content.as_bytes()), bytes: content.len() as u64, content }
    }
}

/// What a conversation knows of its prompt without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PromptRef {
    /// Its fingerprint.
    pub sha256: Hash,
    /// The event whose body holds the text.
    pub seq: u64,
}

/// The checkpoint in force: what a compaction event said, without its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointRef {
    /// The compaction.
    pub event: EventId,
    /// Its place.
    pub seq: u64,
    /// The last turn it covers.
    pub through: TurnId,
    /// That turn's place: what comes after it is read verbatim.
    pub through_seq: u64,
    /// How many turns there are up to it, superseded ones included.
    pub turns_before: u64,
}

/// What the last `transcript_budget` event said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetRef {
    /// Its place.
    pub seq: u64,
    /// Turns up to this place were trimmed from the messages view.
    pub through_seq: u64,
    /// How many turns there are up to it, superseded ones included.
    pub turns_before: u64,
}

/// Where the messages view begins: turns up to this place are summarized or trimmed. Also how many turns that is,
/// superseded ones included.
pub fn view_start(checkpoint: Option<CheckpointRef>, budget: Option<BudgetRef>) -> (u64, u64) {
    let summarized = checkpoint.map_or((0, 0), |at| (at.through_seq, at.turns_before));
    let trimmed = budget.map_or((0, 0), |at| (at.through_seq, at.turns_before));
    summarized.max(trimmed)
}

/// What can be set on a conversation. In an update, a field that is absent stays as it is and one that is null goes.
/// This is also the body of `conversation.created`, `.updated` and `.forked`, so its names are frozen.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Whose it is within the tenant.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub owner: Option<Option<String>>,
    /// For people.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub title: Option<Option<String>>,
    /// Merged key by key; null removes a key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Raw>,
    /// Seconds after the last change until it is deleted.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Option<u64>>,
    /// How long content is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// `compaction`, `budget`, `facts`, `redaction`; merged key by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub policy: BTreeMap<String, Raw>,
    /// Session-level instructions; null removes them.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<Option<SystemPrompt>>,
    /// On creation by `reset`: the conversation before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<ConversationId>,
    /// On creation by `fork`: where it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// On creation by `fork`: who had taken part so far.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub participants: Vec<String>,
    /// On creation by `fork`: the checkpoint in force where it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRef>,
    /// On creation by `fork`: what its parent's budget had done until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetRef>,
    /// On creation by an import of a transcript value: its further fields, kept for the way out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub transcript: BTreeMap<String, Raw>,
}

/// Tells null (`Some(None)`) from absent (`None`).
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

impl Settings {
    /// Moves what has a field of its own out of the metadata, then checks everything.
    pub fn normalise(mut self) -> Result<Settings, Error> {
        if let Some(raw) = self.metadata.remove("system_prompt") {
            let prompt = raw.read::<SystemPrompt>().map(|p| p.content).or_else(|| raw.read::<String>());
            match (prompt, raw.get()) {
                (Some(content), _) => self.system_prompt = Some(Some(SystemPrompt::new(content))),
                (None, "null") => self.system_prompt = Some(None),
                (None, _) => {
                    return Err(Error::invalid(
                        "metadata.system_prompt",
                        "metadata.system_prompt must be a text, or an object with content, sha256 and bytes",
                    ));
                }
            }
        }
        // Shown there, never kept there.
        self.metadata.remove("transcript_budget");
        if let Some(raw) = self.metadata.get("retention") {
            match raw.read::<Option<String>>() {
                Some(Some(word)) => {
                    self.retention = Some(word.parse().map_err(|e: Error| e.at("metadata.retention"))?)
                }
                Some(None) => {}
                None => return Err(Error::invalid("retention.unknown", "metadata.retention must be a text")),
            }
        }
        if let Some(Some(title)) = &self.title
            && title.len() > TITLE_BYTES_MAX
        {
            return Err(Error::limit(
                "TITLE_BYTES_MAX",
                TITLE_BYTES_MAX as u64,
                title.len() as u64,
                "shorten the title",
            ));
        }
        if let Some(Some(owner)) = &self.owner {
            check_name("owner", owner)?;
        }
        for (name, raw) in self.policy.iter().filter(|(_, raw)| raw.get() != "null") {
            check_policy(name, raw)?;
        }
        Ok(self)
    }
}

/// A policy that says nothing, or something else than was meant, must not be kept.
fn check_policy(name: &str, raw: &Raw) -> Result<(), Error> {
    match name {
        "redaction" if raw.read::<crate::redaction::Mode>().is_none() => Err(Error::invalid(
            "policy.redaction",
            format!("policy.redaction {} is not \"off\", \"mark\" or \"mask\"", crate::id::clip(raw.get())),
        )),
        "compaction" => crate::policy::CompactionPolicy::parse(raw).map(drop),
        "budget" => crate::budget::Policy::parse(raw).map(drop),
        "facts" => crate::policy::FactsPolicy::parse(raw).map(drop),
        _ => Ok(()),
    }
}

/// A conversation as it stands now.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Conversation {
    /// Its id.
    pub id: ConversationId,
    /// Whose it is.
    pub tenant: TenantName,
    /// Whose it is within the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Every actor that has spoken.
    pub participants: Vec<String>,
    /// Whatever the caller keeps here. Where a single conversation is read, also `system_prompt` with its text, and
    /// `transcript_budget`.
    pub metadata: BTreeMap<String, Raw>,
    /// Where it is in its life.
    pub state: Lifecycle,
    /// When it began.
    pub created: Timestamp,
    /// When its last event was taken.
    pub updated: Timestamp,
    /// The last turn that a summary covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summarized_through: Option<TurnId>,
    /// Seconds after `updated` until it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// How long content is kept.
    pub retention: Retention,
    /// `compaction`, `budget`, `facts`, `redaction`.
    pub policy: BTreeMap<String, Raw>,
    /// Where its log ends.
    pub head: Head,
    /// How many turns it has, inherited ones included.
    pub turns: u64,
    /// Where it left its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The conversation that it continues after a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<ConversationId>,
    /// Its system prompt's fingerprint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<PromptRef>,
    /// The checkpoint in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRef>,
    /// What its budget did last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetRef>,
}

impl Conversation {
    /// Before its first event.
    pub fn new(id: ConversationId, tenant: TenantName, created: Timestamp, head: Head) -> Conversation {
        Conversation {
            id,
            tenant,
            owner: None,
            title: None,
            participants: Vec::new(),
            metadata: BTreeMap::new(),
            state: Lifecycle::Active,
            created,
            updated: created,
            summarized_through: None,
            ttl: None,
            retention: Retention::Full,
            policy: BTreeMap::new(),
            head,
            turns: 0,
            parent: None,
            predecessor: None,
            system_prompt: None,
            checkpoint: None,
            budget: None,
        }
    }

    /// Where the messages view begins now, see [`view_start`].
    pub fn view_start(&self) -> (u64, u64) {
        view_start(self.checkpoint, self.budget)
    }

    /// Another checkpoint, or none, is in force.
    pub fn set_checkpoint(&mut self, checkpoint: Option<CheckpointRef>) {
        self.checkpoint = checkpoint;
        self.summarized_through = checkpoint.map(|at| at.through);
    }

    /// How it is compacted.
    pub fn compaction(&self) -> crate::policy::CompactionPolicy {
        let raw = self.policy.get("compaction");
        raw.and_then(|raw| crate::policy::CompactionPolicy::parse(raw).ok()).unwrap_or_default()
    }

    /// How much it may retain, and what happens when an append would go over.
    pub fn limits(&self) -> crate::budget::Policy {
        let raw = self.policy.get("budget");
        let policy = raw.and_then(|raw| crate::budget::Policy::parse(raw).ok()).unwrap_or_default();
        policy.with_recovery(self.compaction().auto)
    }

    /// Whether and how facts are learned from it.
    pub fn facts(&self) -> crate::policy::FactsPolicy {
        let raw = self.policy.get("facts");
        raw.and_then(|raw| crate::policy::FactsPolicy::parse(raw).ok()).unwrap_or_default()
    }

    /// Takes over settings that an event at `seq` carries. A parent is not among them: where a fork begins was decided
    /// when it began.
    pub fn set(&mut self, settings: Settings, seq: u64) {
        if let Some(owner) = settings.owner {
            self.owner = owner;
        }
        if let Some(title) = settings.title {
            self.title = title;
        }
        merge(&mut self.metadata, settings.metadata);
        merge(&mut self.policy, settings.policy);
        if let Some(retention) = settings.retention {
            self.retention = retention;
            // Said in two places, it must say the same in both.
            if let Some(word) = self.metadata.get_mut("retention")
                && let Ok(raw) = Raw::of(&retention)
            {
                *word = raw;
            }
            if retention == Retention::Ephemeral && self.ttl.is_none() {
                self.ttl = Some(crate::limits::EPHEMERAL_TTL_S);
            }
        }
        if let Some(ttl) = settings.ttl {
            self.ttl = ttl;
        }
        if let Some(prompt) = settings.system_prompt {
            self.system_prompt = prompt.map(|prompt| PromptRef { sha256: prompt.sha256, seq });
        }
        self.predecessor = settings.predecessor.or(self.predecessor);
        if !settings.participants.is_empty() {
            self.participants = settings.participants;
        }
        if let Some(checkpoint) = settings.checkpoint {
            self.set_checkpoint(Some(checkpoint));
        }
        self.budget = settings.budget.or(self.budget);
    }

    /// When it is due for deletion.
    pub fn expires(&self) -> Option<Timestamp> {
        self.ttl.map(|ttl| self.updated.plus_s(ttl))
    }

    /// Its metadata must stay small: it is read and written with every append.
    pub fn check(&self) -> Result<(), Error> {
        let bytes: usize =
            self.metadata.iter().chain(&self.policy).map(|(k, v)| k.len() + v.get().len()).sum();
        if bytes > METADATA_BYTES_MAX {
            return Err(Error::limit(
                "METADATA_BYTES_MAX",
                METADATA_BYTES_MAX as u64,
                bytes as u64,
                "keep large things in a turn or an asset",
            ));
        }
        Ok(())
    }
}

fn merge(into: &mut BTreeMap<String, Raw>, from: BTreeMap<String, Raw>) {
    for (key, value) in from {
        if value.get() == "null" {
            into.remove(&key);
        } else {
            into.insert(key, value);
        }
    }
}

/// What stays of a deleted conversation, so that audit can prove that it was deleted and not lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Tombstone {
    /// The conversation that was.
    pub id: ConversationId,
    /// Where its log ended.
    pub head: Head,
    /// When it was deleted.
    pub deleted: Timestamp,
    /// Why.
    pub reason: String,
}
