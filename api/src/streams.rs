//! Turns that come in pieces: open, chunks, commit or abort.

use crate::given::split;
use crate::turns::TurnInput;
use crate::{About, Asker, ConversationName, Method, Noun, Operation, Work};
use everturn::{NewStream, Tenant};
use everturn_core::Error;
use everturn_core::id::TurnId;
use everturn_core::turn::Turn;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Opens a turn whose text will come in chunks. One that is silent for ten minutes is ended as interrupted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"actor": "planner", "model": "gpt-5"}))]
pub struct OpenTurn {
    /// The conversation.
    pub conversation: ConversationName,
    /// How it begins.
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
        "Open a turn that comes in chunks",
        "The pending turn.",
    )
    .creates()
    .once()
    .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<Turn, Error> {
        let OpenTurn { conversation, new } = self;
        let open = move |tenant: &Tenant| Ok(conversation.find(tenant)?.open(new));
        asker.writing(open).await
    }
}

/// Adds to an open turn: shown at once, durable within a quarter of a second.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"delta": "Lisbon, ", "offset": 0}))]
pub struct AppendChunk {
    /// The turn's id.
    pub turn: TurnId,
    /// The piece.
    pub delta: String,
    /// Bytes of the turn's text before it: a repeated chunk then changes nothing, and a missing one is noticed.
    pub offset: Option<u64>,
}

/// How long the text of a turn is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Length {
    /// Bytes of the turn's text, this piece included: the next one's offset.
    pub length: u64,
}

impl Operation for AppendChunk {
    type Answer = Length;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "append_chunk",
        "/turns/{turn}/chunks",
        "Add to an open turn",
        "It is taken.",
    );

    async fn run(self, asker: &Asker) -> Result<Length, Error> {
        let tenant = &asker.tenant;
        let conversation = tenant.turn(self.turn)?.conversation;
        let length =
            tenant.conversation(conversation).open_turn(self.turn).chunk(self.offset, &self.delta)?;
        Ok(Length { length })
    }
}

/// Ends an open turn. Without words, what came in chunks is its content; words given here replace it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"tokens": {"prompt": 812, "completion": 5}}))]
pub struct CommitTurn {
    /// The turn's id.
    pub turn: TurnId,
    /// What is said, and what is kept with it.
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
        "End an open turn",
        "The turn, complete and durable.",
    )
    .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<Turn, Error> {
        let (turn, last) = (self.turn, self.last.into_turn()?);
        let end = move |tenant: &Tenant| {
            Ok(tenant.conversation(tenant.turn(turn)?.conversation).open_turn(turn).commit(last))
        };
        asker.writing(end).await
    }
}

/// Gives an open turn up. What was said so far is kept.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = json!({"reason": "the user stopped it"}))]
pub struct AbortTurn {
    /// The turn's id.
    pub turn: TurnId,
    /// Why; kept with the turn.
    pub reason: String,
    /// The turn that takes its place.
    pub replacement: Option<TurnId>,
}

impl Operation for AbortTurn {
    type Answer = Turn;
    const ABOUT: About = About::new(
        Method::Post,
        Noun::Turns,
        "abort_turn",
        "/turns/{turn}/abort",
        "Give an open turn up",
        "The turn, aborted.",
    )
    .work(Work::Quick);

    async fn run(self, asker: &Asker) -> Result<Turn, Error> {
        let abort = move |tenant: &Tenant| {
            let conversation = tenant.turn(self.turn)?.conversation;
            Ok(tenant.conversation(conversation).open_turn(self.turn).abort(&self.reason, self.replacement))
        };
        asker.writing(abort).await
    }
}
