//! A conversation: everything its log folds into, except the turns.

use crate::Error;
use crate::access::KeyRole;
use crate::chain::{Hash, Head};
use crate::event::check_name;
use crate::id::{ConversationId, EventId, TenantName, TurnId};
use crate::json::Raw;
use crate::limits::{METADATA_BYTES_MAX, PARTICIPANTS_MAX, TITLE_BYTES_MAX};
use crate::redaction::{self, RedactionMode};
use crate::time::Timestamp;
use crate::words;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Lifecycle state of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ConversationState")]
pub enum Lifecycle {
    /// Accepts turns.
    #[default]
    Active,
    /// Put away; it can be made active again.
    Archived,
    /// Given up; it can be made active again.
    Abandoned,
    /// Ended for good: no turn, prompt, pin, approval or tool call is added. Settings, facts, checkpoints and erasure still
    /// are. `reset` starts a new one that refers to it.
    Closed,
}
words!(Lifecycle, "state.unknown", Active "active", Archived "archived", Abandoned "abandoned", Closed "closed");

/// Retention of content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Retention {
    /// Content is kept forever.
    #[default]
    Full,
    /// Content is kept until a compaction covers it; hashes stay.
    AuditOnly,
    /// Content is kept until it leaves the verbatim window; the conversation has a time to live.
    Ephemeral,
}
words!(Retention, "retention.unknown", Full "full", AuditOnly "audit-only", Ephemeral "ephemeral");

/// Origin of a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Parent {
    /// The parent conversation.
    pub conversation: ConversationId,
    /// `seq` of the last event shared with the parent.
    pub at_seq: u64,
}

/// System prompt of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SystemPrompt {
    /// The text.
    pub content: String,
    /// SHA-256 of the text.
    pub sha256: Hash,
    /// Size of the text in bytes.
    pub bytes: u64,
}

impl SystemPrompt {
    /// Hashes and measures the text.
    pub fn new(content: String) -> SystemPrompt {
        SystemPrompt { sha256: Hash::of(content.as_bytes()), bytes: content.len() as u64, content }
    }
}

/// Reference to the system prompt, without its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PromptRef {
    /// SHA-256 of the text.
    pub sha256: Hash,
    /// `seq` of the event that holds the text.
    pub seq: u64,
}

/// The checkpoint in force: the content of a compaction event, without its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct CheckpointRef {
    /// The compaction event.
    pub event: EventId,
    /// `seq` of the compaction event.
    pub seq: u64,
    /// The last turn that it covers.
    pub through: TurnId,
    /// `seq` of that turn: later turns are read verbatim.
    pub through_seq: u64,
    /// Number of turns up to it, superseded ones included.
    pub turns_before: u64,
}

/// Content of the last `transcript_budget` event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct BudgetRef {
    /// `seq` of the event.
    pub seq: u64,
    /// Turns up to this `seq` were trimmed from the messages view.
    pub through_seq: u64,
    /// Number of turns up to it, superseded ones included.
    pub turns_before: u64,
    /// The events that left the view, if some did without their turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<EventsLeft>,
}

/// Events that left the messages view while the turns around them stay: earlier values of pins and scratchpads, resolved
/// approvals, custom events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventsLeft {
    /// `seq` of the last event that may have left.
    pub through_seq: u64,
    /// Number of events up to it that stayed.
    pub kept: u64,
}

/// Start of the messages view: the `seq` up to which turns are summarized or trimmed, and the number of those
/// turns, superseded ones included.
pub fn view_start(checkpoint: Option<CheckpointRef>, budget: Option<BudgetRef>) -> (u64, u64) {
    let summarized = checkpoint.map_or((0, 0), |at| (at.through_seq, at.turns_before));
    let trimmed = budget.map_or((0, 0), |at| (at.through_seq, at.turns_before));
    summarized.max(trimmed)
}

/// Settings of a conversation. In an update, an absent field is left as it is and null removes it. This is also
/// the body of `conversation.created`, `.updated` and `.forked`, so its names are frozen.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Owner within the tenant.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub owner: Option<Option<String>>,
    /// Title for people.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub title: Option<Option<String>>,
    /// Metadata, merged key by key; null removes a key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Raw>,
    /// Time to live: seconds after the last change until the conversation is deleted.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Option<u64>>,
    /// Retention of content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// Policies by name: `compaction`, `budget`, `facts`, `redaction`, `projection`,
    /// `abandon_tools_after_s`. Merged key by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub policy: BTreeMap<String, Raw>,
    /// Instructions for the whole conversation; null removes them.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<Option<SystemPrompt>>,
    /// On creation by `reset`: the previous conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<ConversationId>,
    /// On creation by `fork`: the origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// On creation: the participants declared, or those of a fork's origin. Others join by speaking.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub participants: Vec<String>,
    /// On creation by `fork`: the checkpoint in force at the fork point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRef>,
    /// On creation by `fork`: the parent's last budget action before the fork point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetRef>,
    /// On creation by `fork`: time of the first inherited turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<Timestamp>,
    /// On creation by `fork`: time of the last inherited turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_said: Option<Timestamp>,
    /// On creation by importing a transcript value: its other fields, kept for export.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub transcript: BTreeMap<String, Raw>,
}

/// Distinguishes null (`Some(None)`) from absent (`None`).
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

impl Settings {
    /// Retention that they set, as a field or in the metadata, which holds where both do.
    pub fn retention(&self) -> Result<Option<Retention>, Error> {
        let Some(raw) = self.metadata.get("retention") else { return Ok(self.retention) };
        match raw.read::<Option<String>>() {
            Some(Some(word)) => word.parse().map(Some).map_err(|e: Error| e.at("metadata.retention")),
            Some(None) => Ok(self.retention),
            None => Err(Error::invalid("retention.unknown", "metadata.retention must be a text")),
        }
    }

    /// Whether content is erased because of them.
    pub fn erases(&self) -> bool {
        self.retention().is_ok_and(|retention| retention.is_some_and(|word| word != Retention::Full))
    }

    /// Refuses settings by which others' content is deleted or erased to a caller that may do neither. Of a conversation that
    /// is new, its author decides.
    pub fn check_role(&self, role: KeyRole) -> Result<(), Error> {
        if role == KeyRole::Admin || !self.erases() && self.ttl.flatten().is_none() {
            return Ok(());
        }
        let text = "only an admin may set `ttl` or `retention` of an existing conversation, because they delete content of others; use an admin's key, or set them when you create a conversation";
        Err(Error::forbidden("access.role", text))
    }

    /// Redaction mode that the settings ask for.
    pub fn redaction(&self) -> Option<RedactionMode> {
        self.policy.get("redaction").and_then(|raw| raw.read())
    }

    /// The settings with their secrets redacted, in their own mode or else in the current one.
    pub fn redacted(self, current: RedactionMode) -> Result<Settings, Error> {
        let raw = Raw::of(&self)?;
        let (redacted, _) = redaction::redact(raw.get(), self.redaction().unwrap_or(current))?;
        let Cow::Owned(masked) = redacted else { return Ok(self) };
        let mut settings: Settings =
            serde_json::from_str(&masked).map_err(|e| Error::internal("settings.redacted", e.to_string()))?;
        if let Some(Some(prompt)) = settings.system_prompt {
            settings.system_prompt = Some(Some(SystemPrompt::new(prompt.content)));
        }
        Ok(settings)
    }

    /// Moves metadata keys that have a field of their own into that field, then checks everything.
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
        // In the metadata of transcript values, never stored there.
        self.metadata.remove("transcript_budget");
        self.retention = self.retention()?;
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
        if self.ttl == Some(Some(0)) {
            let text =
                "ttl is 0 seconds, which would delete the conversation at once; give more, or delete it";
            return Err(Error::invalid("ttl.zero", text));
        }
        if let Some(Some(owner)) = &self.owner {
            check_name("owner", owner)?;
        }
        let got = self.participants.len();
        if got > PARTICIPANTS_MAX {
            let (limit, got) = (PARTICIPANTS_MAX as u64, got as u64);
            return Err(Error::limit(
                "PARTICIPANTS_MAX",
                limit,
                got,
                "declare fewer; others join by speaking",
            ));
        }
        let mut known = std::collections::HashSet::new();
        self.participants.retain(|name| known.insert(name.clone()));
        self.participants.iter().try_for_each(|name| check_name("participant", name))?;
        for (name, raw) in self.policy.iter().filter(|(_, raw)| raw.get() != "null") {
            check_policy(name, raw)?;
        }
        Ok(self)
    }
}

/// Names of policies. An imported log of a newer version may name others, which have no effect.
pub const POLICIES: [&str; 6] =
    ["compaction", "budget", "facts", "redaction", "projection", "abandon_tools_after_s"];

/// Refuses a policy that is empty or not understood: storing it would promise something that does not happen.
pub fn check_policy(name: &str, raw: &Raw) -> Result<(), Error> {
    match name {
        "redaction" if raw.read::<crate::redaction::RedactionMode>().is_some() => Ok(()),
        "redaction" => Err(Error::invalid(
            "policy.redaction",
            format!("policy.redaction {} is not \"off\", \"mark\" or \"mask\"", crate::id::clip(raw.get())),
        )),
        "compaction" => crate::policy::CompactionPolicy::parse(raw).map(drop),
        "budget" => crate::budget::BudgetPolicy::parse(raw).map(drop),
        "facts" => crate::policy::FactsPolicy::parse(raw).map(drop),
        // Checked by the engine, which has the projectors.
        "projection" => Ok(()),
        "abandon_tools_after_s" if raw.read::<u64>().is_some_and(|seconds| seconds > 0) => Ok(()),
        "abandon_tools_after_s" => Err(Error::invalid(
            "policy.abandon_tools_after_s",
            format!(
                "policy.abandon_tools_after_s is {}; give a number of seconds above 0",
                crate::id::clip(raw.get())
            ),
        )),
        _ => Err(Error::invalid(
            "policy.unknown",
            format!("policy.{} is unknown; known are {}", crate::id::clip(name), POLICIES.join(", ")),
        )),
    }
}

/// The current state of a conversation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Conversation {
    /// Its id.
    pub id: ConversationId,
    /// Tenant that it belongs to.
    pub tenant: TenantName,
    /// Owner within the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Title for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Beginning of the first user turn, if there is no title; marked as such for a fork. Only set when conversations are
    /// read or listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// Every actor that has spoken, and those declared at the creation.
    pub participants: Vec<String>,
    /// Metadata of the caller. Where a single conversation is read, also `system_prompt` with its text.
    pub metadata: BTreeMap<String, Raw>,
    /// Lifecycle state.
    pub state: Lifecycle,
    /// Time of creation.
    pub created: Timestamp,
    /// Time of the last event.
    pub updated: Timestamp,
    /// Time of the first turn, as its author or importer states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<Timestamp>,
    /// Time of the latest turn, as its author or importer states it. Of a fork without turns of its own, that of the last
    /// inherited one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_said: Option<Timestamp>,
    /// The last turn that a checkpoint covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summarized_through: Option<TurnId>,
    /// Time to live: seconds after `updated` until it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// Retention of content.
    pub retention: Retention,
    /// Policies by name: `compaction`, `budget`, `facts`, `redaction`, `projection`,
    /// `abandon_tools_after_s`.
    pub policy: BTreeMap<String, Raw>,
    /// End of the log.
    pub head: Head,
    /// Number of turns, inherited ones included.
    pub turns: u64,
    /// Origin, if it is a fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The conversation that it continues after a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<ConversationId>,
    /// Reference to the system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<PromptRef>,
    /// The checkpoint in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRef>,
    /// The last budget action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetRef>,
    /// Budget of the messages view: `policy`, `usage` and `last_action`. Only where a single conversation is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript_budget: Option<Raw>,
}

/// Metadata key of a conversation that belongs to a chain of responses and was never named.
pub const HIDDEN: &str = "everturn.hidden";

impl Conversation {
    /// The conversation without anything that someone wrote: numbers, times, ids and state.
    pub fn without_words(self) -> Conversation {
        Conversation {
            owner: None,
            title: None,
            preview: None,
            participants: Vec::new(),
            metadata: BTreeMap::new(),
            policy: BTreeMap::new(),
            // The hash of a short prompt can be guessed.
            system_prompt: None,
            ..self
        }
    }

    /// A conversation before its first event.
    pub fn new(id: ConversationId, tenant: TenantName, created: Timestamp, head: Head) -> Conversation {
        Conversation {
            id,
            tenant,
            owner: None,
            title: None,
            preview: None,
            participants: Vec::new(),
            metadata: BTreeMap::new(),
            state: Lifecycle::Active,
            created,
            updated: created,
            began: None,
            last_said: None,
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
            transcript_budget: None,
        }
    }

    /// Position in a listing: the time of the latest turn, or of the creation before there is one.
    pub fn said(&self) -> Timestamp {
        self.last_said.unwrap_or(self.created)
    }

    /// Takes note of the time of a turn.
    pub(crate) fn note_turn(&mut self, at: Timestamp) {
        self.began = Some(self.began.map_or(at, |began| began.min(at)));
        self.last_said = self.last_said.max(Some(at));
    }

    /// The program that it was imported from or that recorded it. A list of messages may be of any.
    pub fn agent(&self) -> Option<String> {
        const LISTS: [&str; 5] = ["messages", "openai-chat", "openai-responses", "anthropic", "gemini"];
        let is_program = |format: &String| !LISTS.contains(&format.as_str());
        self.named("agent").or_else(|| self.origin().format.filter(is_program))
    }

    /// Whether it was created for a chain of responses and never named. `@last` prefers any other conversation.
    pub fn is_hidden(&self) -> bool {
        self.metadata.contains_key(HIDDEN)
    }

    /// The project that it is about: `metadata.project`, or the folder that an imported session ran in.
    pub fn project(&self) -> Option<String> {
        self.named("project").or_else(|| self.origin().cwd)
    }

    /// The conversation that a subagent worked for.
    pub fn works_for(&self) -> Option<ConversationId> {
        let Origin { agent, parent, .. } = self.origin();
        parent.filter(|_| agent.is_some())
    }

    /// The branch that was checked out where an imported session ran.
    pub fn git_branch(&self) -> Option<String> {
        self.origin().git_branch
    }

    fn named(&self, key: &str) -> Option<String> {
        self.metadata.get(key).and_then(Raw::read::<String>).filter(|name| !name.trim().is_empty())
    }

    fn origin(&self) -> Origin {
        self.metadata.get("import").and_then(Raw::read).unwrap_or_default()
    }

    /// Current start of the messages view, see [`view_start`].
    pub fn view_start(&self) -> (u64, u64) {
        view_start(self.checkpoint, self.budget)
    }

    /// Number of events in the messages view. Where none left it, those that are in force since before its start are not
    /// among them.
    pub fn view_events(&self) -> u64 {
        let start = self.view_start().0;
        match self.budget.and_then(|budget| budget.left).filter(|left| left.through_seq > start) {
            Some(left) => left.kept + self.head.seq.saturating_sub(left.through_seq),
            None => self.head.seq.saturating_sub(start),
        }
    }

    /// Replaces the checkpoint in force.
    pub fn set_checkpoint(&mut self, checkpoint: Option<CheckpointRef>) {
        self.checkpoint = checkpoint;
        self.summarized_through = checkpoint.map(|at| at.through);
    }

    /// The compaction policy.
    pub fn compaction(&self) -> crate::policy::CompactionPolicy {
        let raw = self.policy.get("compaction");
        raw.and_then(|raw| crate::policy::CompactionPolicy::parse(raw).ok()).unwrap_or_default()
    }

    /// The budget policy, with its recovery.
    pub fn limits(&self) -> crate::budget::BudgetPolicy {
        self.budget_as_given().with_recovery(self.compaction().auto)
    }

    /// The budget policy without a default for its recovery, which depends on another policy: enough to compare sizes.
    pub(crate) fn budget_as_given(&self) -> crate::budget::BudgetPolicy {
        let raw = self.policy.get("budget");
        raw.and_then(|raw| crate::budget::BudgetPolicy::parse(raw).ok()).unwrap_or_default()
    }

    /// Seconds after which a tool call without a result is given up.
    pub fn abandon_tools_after_s(&self) -> Option<u64> {
        self.policy.get("abandon_tools_after_s").and_then(Raw::read)
    }

    /// The facts policy.
    pub fn facts(&self) -> crate::policy::FactsPolicy {
        let raw = self.policy.get("facts");
        raw.and_then(|raw| crate::policy::FactsPolicy::parse(raw).ok()).unwrap_or_default()
    }

    /// Applies the settings that an event at `seq` carries. A parent is not among them: the origin of a fork is
    /// fixed at its creation.
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
            // Retention is shown in two places, which must agree.
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
        settings.began.into_iter().chain(settings.last_said).for_each(|at| self.note_turn(at));
    }

    /// Time at which it is due for deletion.
    pub fn expires(&self) -> Option<Timestamp> {
        self.ttl.map(|ttl| self.updated.plus_s(ttl))
    }

    /// Checks the size of the metadata, which is read and written with every append.
    pub fn check(&self) -> Result<(), Error> {
        let bytes: usize =
            self.metadata.iter().chain(&self.policy).map(|(k, v)| k.len() + v.get().len()).sum();
        if bytes > METADATA_BYTES_MAX {
            return Err(Error::limit(
                "METADATA_BYTES_MAX",
                METADATA_BYTES_MAX as u64,
                bytes as u64,
                "put large data into a turn or an asset",
            ));
        }
        Ok(())
    }
}

/// The part of `metadata.import` that is shown: where an imported session ran.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Origin {
    format: Option<String>,
    agent: Option<String>,
    parent: Option<ConversationId>,
    cwd: Option<String>,
    git_branch: Option<String>,
}

/// The title of a fork, which says so.
pub fn fork_title(title: &str, at_seq: u64) -> String {
    let mark = format!("{FORK_MARK}{at_seq})");
    let own = without_fork_mark(title);
    let end = own.floor_char_boundary(TITLE_BYTES_MAX - mark.len());
    format!("{}{mark}", own[..end].trim_end())
}

const FORK_MARK: &str = " (fork at #";

/// A title without the mark of a fork.
pub fn without_fork_mark(title: &str) -> &str {
    let is_seq = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match title.rsplit_once(FORK_MARK) {
        Some((own, rest)) if rest.strip_suffix(')').is_some_and(is_seq) => own,
        _ => title,
    }
}

/// Last part of a project's path, which may be of another system.
pub fn project_name(project: &str) -> &str {
    let path = project.trim_end_matches(['/', '\\']);
    path.rsplit(['/', '\\']).next().filter(|name| !name.is_empty()).unwrap_or(project)
}

/// Whether an agent has this name, or one that begins with it: `claude` is `claude-code` as well.
pub fn is_agent(agent: &str, wanted: &str) -> bool {
    let begins = agent.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted));
    begins
        && !wanted.is_empty()
        && agent[wanted.len()..].chars().next().is_none_or(|next| !next.is_alphanumeric())
}

/// Whether a project has this name, or lies in this folder.
pub fn is_project(project: &str, wanted: &str) -> bool {
    let folder = wanted.trim_end_matches(['/', '\\']);
    let rest = project.strip_prefix(folder).filter(|_| !folder.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '\\']))
        || project_name(project).eq_ignore_ascii_case(wanted)
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

/// Record of a deleted conversation, kept so that an audit can tell deletion from loss.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Tombstone {
    /// The deleted conversation.
    pub id: ConversationId,
    /// End of its log.
    pub head: Head,
    /// Time of the deletion.
    pub deleted: Timestamp,
    /// Reason for the deletion.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_of_a_fork_says_so_once() {
        assert_eq!(fork_title("Fix the build", 12), "Fix the build (fork at #12)");
        assert_eq!(fork_title("Fix the build (fork at #12)", 40), "Fix the build (fork at #40)");
        assert_eq!(without_fork_mark("A (fork at #x)"), "A (fork at #x)");
        let long = "ß".repeat(TITLE_BYTES_MAX);
        assert!(fork_title(&long, u64::MAX).len() <= TITLE_BYTES_MAX);
    }

    #[test]
    fn a_project_is_named_by_its_folder_or_by_a_folder_around_it() {
        for (wanted, found) in [
            ("web", true),
            ("WEB", true),
            ("/home/ada/web", true),
            ("/home/ada/web/", true),
            ("/home/ada", true),
            ("/home/ad", false),
            ("ada", false),
            ("", false),
            ("/", false),
        ] {
            assert_eq!(is_project("/home/ada/web", wanted), found, "{wanted:?}");
        }
        assert!(is_project("C:\\src\\web\\", "web"));
        assert!(is_project("holidays", "holidays"));
        assert_eq!(project_name("/"), "/");
    }
}
