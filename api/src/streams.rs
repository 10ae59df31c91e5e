//! Streamed turns: open, chunks, commit or abort.

use crate::decode::split;
use crate::turns::TurnInput;
use crate::{About, ConversationName, Method, Noun, Operation, Requester, Work};
use everturn_core::Error;
use everturn_core::id::TurnId;
use everturn_core::turn::Turn;
use everturn_engine::{NewStream, Tenant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Opens a turn whose text is sent in chunks. After ten minutes without a chunk it is ended as interrupted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"actor": "planner", "model": "gpt-5"}))]
pub struct OpenTurn {
    /// The conversation.
    pub conversation: ConversationName,
    /// The new turn.
    #[serde(flatten)]
    pub new: NewStream,
}
split!(OpenTurn { conversation: ConversationName } new);

impl Operation for OpenTurn {
    type Answer = Turn;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "open_turn",
        "/conversations/{conversation}/turns/open",
        "Open a streamed turn",
        "The pending turn.",
    )
    .creates()
    .once()
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Turn, Error> {
        let OpenTurn { conversation, new } = self;
        let open = move |tenant: &Tenant| Ok(conversation.find(tenant)?.open(new));
        requester.writing(open).await
    }
}

/// Appends a chunk to an open turn: shown at once, durable within a quarter of a second.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"delta": "Lisbon, ", "offset": 0}))]
pub struct AppendChunk {
    /// The turn's id.
    pub turn: TurnId,
    /// Text of the chunk.
    pub delta: String,
    /// Length of the turn's text before it, in bytes: a repeated chunk then changes nothing, and a missing one
    /// is detected.
    pub offset: Option<u64>,
}

/// Length of a turn's text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Length {
    /// Length of the turn's text in bytes, this chunk included: the offset of the next one.
    pub length: u64,
}

impl Operation for AppendChunk {
    type Answer = Length;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "append_chunk",
        "/turns/{turn}/chunks",
        "Append a chunk to an open turn",
        "The chunk was accepted.",
    );

    async fn run(self, requester: &Requester) -> Result<Length, Error> {
        let tenant = &requester.tenant;
        let conversation = tenant.turn(self.turn)?.conversation;
        let length =
            tenant.conversation(conversation).open_turn(self.turn).chunk(self.offset, &self.delta)?;
        Ok(Length { length })
    }
}

/// Commits an open turn. Without content, the chunks are its content; content given here replaces it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"tokens": {"prompt": 812, "completion": 5}}))]
pub struct CommitTurn {
    /// The turn's id.
    pub turn: TurnId,
    /// Final content and metadata.
    #[serde(flatten)]
    pub last: TurnInput,
}
split!(CommitTurn { turn: TurnId } last);

impl Operation for CommitTurn {
    type Answer = Turn;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "commit_turn",
        "/turns/{turn}/commit",
        "Commit an open turn",
        "The turn, complete and durable.",
    )
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Turn, Error> {
        let (turn, last) = (self.turn, self.last.into_turn()?);
        let end = move |tenant: &Tenant| {
            Ok(tenant.conversation(tenant.turn(turn)?.conversation).open_turn(turn).commit(last))
        };
        requester.writing(end).await
    }
}

/// Aborts an open turn. The text so far is kept.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"reason": "the user stopped it"}))]
pub struct AbortTurn {
    /// The turn's id.
    pub turn: TurnId,
    /// Reason; kept with the turn.
    pub reason: String,
    /// The turn that supersedes it.
    pub replacement: Option<TurnId>,
}

impl Operation for AbortTurn {
    type Answer = Turn;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "abort_turn",
        "/turns/{turn}/abort",
        "Abort an open turn",
        "The turn, aborted.",
    )
    .work(Work::Quick);

    async fn run(self, requester: &Requester) -> Result<Turn, Error> {
        let abort = move |tenant: &Tenant| {
            let conversation = tenant.turn(self.turn)?.conversation;
            Ok(tenant.conversation(conversation).open_turn(self.turn).abort(&self.reason, self.replacement))
        };
        requester.writing(abort).await
    }
}
