//! Sessions: a conversation that is logged entry by entry, and exported as a session file.

use crate::{About, ConversationName, Method, Noun, Operation, Requester};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::time::Timestamp;
use everturn_engine::Logged;
use everturn_formats::session::{NewSession, SessionFields, SessionSummary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Starts a session about a subject: a conversation that `log_session` and `end_session` write to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"subject": "img_1", "subject_key": "image_id", "agent_provider": "claude-sonnet", "context_loaded": ["taste.md"]}))]
pub struct StartSession {
    /// Subject of the session.
    pub subject: String,
    /// Name of the subject in the header; `subject` by default.
    pub subject_key: Option<String>,
    /// Id of the session; by default a new one.
    pub session_id: Option<String>,
    /// Model of the agent.
    pub agent_provider: Option<String>,
    /// Temperature of the model.
    pub agent_temperature: Option<f64>,
    /// Context that the agent has loaded.
    #[serde(default)]
    pub context_loaded: Vec<String>,
    /// Hash of the state of the work at the beginning.
    pub starting_snapshot_hash: Option<String>,
    /// Time at which it began, if not now.
    pub timestamp: Option<Timestamp>,
    /// Additional fields of the header.
    #[serde(default)]
    pub fields: SessionFields,
    /// Idempotency key of your choice: a repeated request with the same key is executed once, also after a
    /// restart.
    pub idempotency_key: Option<String>,
}

impl Operation for StartSession {
    type Answer = Conversation;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Sessions,
        "start_session",
        "/sessions",
        "Start a session",
        "The conversation of the session.",
    )
    .creates()
    .once();

    async fn run(self, requester: &Requester) -> Result<Conversation, Error> {
        let start = move |tenant: &everturn_engine::Tenant| {
            let header = |id: String, now: Timestamp| NewSession {
                subject_key: self.subject_key.clone().unwrap_or_else(|| "subject".into()),
                agent_provider: self.agent_provider.clone(),
                agent_temperature: self.agent_temperature,
                context_loaded: self.context_loaded.clone(),
                starting_snapshot_hash: self.starting_snapshot_hash.clone(),
                extra: self.fields.clone(),
                ..NewSession::about(
                    self.subject.clone(),
                    self.session_id.clone().unwrap_or(id),
                    self.timestamp.unwrap_or(now),
                )
            };
            tenant.start_session(header, self.idempotency_key.clone())?.get()
        };
        requester.blocking(start).await
    }

    fn location(_: &str, answer: &Conversation) -> Option<String> {
        Some(crate::conversations::place(answer))
    }
}

/// Logs an entry of a session. Types with a meaning: `agent_thinking` (text), `agent_tool_call` (tool, parameters),
/// `tool_result` (result), `photographer_message` and `user_message` (text), `agent_message` (text),
/// `snapshot_created` (hash, label), `mask_generated` (name, provider, target), `vocabulary_gap_logged`
/// (description, workaround), `taste_proposal` and `taste_confirmation` (update). Any other type is kept as it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"type": "snapshot_created", "fields": {"hash": "9f2c", "label": "v1"}}))]
pub struct LogSession {
    /// The session's conversation.
    pub conversation: ConversationName,
    /// Type of the entry.
    pub r#type: String,
    /// Fields of the entry.
    #[serde(default)]
    pub fields: SessionFields,
    /// Time of the entry; by default now.
    pub timestamp: Option<Timestamp>,
    /// Idempotency key of your choice: a repeated request with the same key is executed once, also after a
    /// restart.
    pub idempotency_key: Option<String>,
}

impl Operation for LogSession {
    type Answer = Logged;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Sessions,
        "log_session",
        "/sessions/{conversation}/entries",
        "Log an entry of a session",
        "The entry's place in the log.",
    )
    .creates()
    .once();

    async fn run(self, requester: &Requester) -> Result<Logged, Error> {
        let log = move |tenant: &everturn_engine::Tenant| {
            let chat = self.conversation.find(tenant)?;
            chat.session().log(self.r#type, self.timestamp, self.fields, self.idempotency_key)
        };
        requester.blocking(log).await
    }
}

/// Ends a session with its numbers: duration, entries, and entries by type. Its conversation is closed, and can still
/// be read and exported.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"fields": {"snapshots": 3}}))]
pub struct EndSession {
    /// The session's conversation.
    pub conversation: ConversationName,
    /// Additional fields of the last entry.
    #[serde(default)]
    pub fields: SessionFields,
    /// Idempotency key of your choice: a repeated request with the same key is executed once, also after a
    /// restart.
    pub idempotency_key: Option<String>,
}

impl Operation for EndSession {
    type Answer = SessionSummary;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Sessions,
        "end_session",
        "/sessions/{conversation}/end",
        "End a session",
        "The numbers of the session.",
    )
    .once();

    async fn run(self, requester: &Requester) -> Result<SessionSummary, Error> {
        let end = move |tenant: &everturn_engine::Tenant| {
            self.conversation.find(tenant)?.session().end(&self.fields, self.idempotency_key)
        };
        requester.blocking(end).await
    }
}
