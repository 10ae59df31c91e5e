//! The table of all operations.

use crate::decode::{InvalidRequest, RawRequest};
use crate::{About, Operation, Requester};
use crate::{
    assets, compaction, context, conversations, erasing, events, facts, generations, keys, projections,
    recall, sessions, state, streams, transfer, turns, usage,
};
use everturn_core::Error;
use schemars::{Schema, SchemaGenerator};
use std::pin::Pin;

/// An operation of any type.
pub struct Row {
    /// Metadata of the operation.
    pub about: About,
    /// Schema of the request, with the doc comment of its struct as its description.
    pub request: fn(&mut SchemaGenerator) -> Schema,
    /// Schema of the answer.
    pub answer: fn(&mut SchemaGenerator) -> Schema,
    /// Parses a request.
    pub read: fn(&RawRequest<'_>) -> Result<Box<dyn Request>, InvalidRequest>,
}

/// A parsed request.
pub trait Request: Send {
    /// Runs it. `path` is the one of the request, below `/api/v1`.
    fn run(self: Box<Self>, requester: Requester, path: String) -> Running;
}

/// A running operation.
pub type Running = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

/// The answer of an operation.
pub struct Reply {
    /// The answer as JSON.
    pub json: Vec<u8>,
    /// The status over HTTP.
    pub status: u16,
    /// Version of the answer, for `ETag`.
    pub tag: Option<String>,
    /// URL path of something new.
    pub location: Option<String>,
}

impl<O: Operation> Request for O {
    fn run(self: Box<Self>, requester: Requester, path: String) -> Running {
        Box::pin(async move {
            let answer = Operation::run(*self, &requester).await?;
            let json = serde_json::to_vec(&answer)
                .map_err(|e| Error::internal("answer.json", format!("an answer cannot be written: {e}")))?;
            let (status, tag) = (O::status(&answer), O::tag(&answer));
            Ok(Reply { json, status, tag, location: O::location(&path, &answer) })
        })
    }
}

const fn row<O: Operation>() -> Row {
    Row {
        about: O::ABOUT,
        request: |generator| O::json_schema(generator),
        answer: |generator| generator.subschema_for::<O::Answer>(),
        read: |raw| match raw.read::<O>() {
            Ok(request) => Ok(Box::new(request)),
            Err(wrong) => Err(wrong.naming_fields::<O>(raw)),
        },
    }
}

impl Row {
    /// The operation with this name.
    pub fn named(name: &str) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.about.name == name)
    }
}

/// All operations, in the order of the description.
pub static TABLE: &[Row] = &[
    row::<conversations::CreateConversation>(),
    row::<conversations::ListConversations>(),
    row::<conversations::ResolveConversation>(),
    row::<conversations::GetConversation>(),
    row::<conversations::ChangeConversation>(),
    row::<conversations::DeleteConversation>(),
    row::<conversations::ForkConversation>(),
    row::<conversations::ResetConversation>(),
    row::<conversations::ListTombstones>(),
    row::<turns::AppendTurns>(),
    row::<turns::ListTurns>(),
    row::<turns::GetTurn>(),
    row::<turns::SupersedeTurn>(),
    row::<turns::EditAndBranch>(),
    row::<erasing::EraseTurn>(),
    row::<streams::OpenTurn>(),
    row::<streams::AppendChunk>(),
    row::<streams::CommitTurn>(),
    row::<streams::AbortTurn>(),
    row::<events::ListChanges>(),
    row::<events::ListEvents>(),
    row::<events::AppendEvent>(),
    row::<erasing::EraseEvents>(),
    row::<erasing::EraseActor>(),
    row::<state::GetState>(),
    row::<state::Pin>(),
    row::<state::Unpin>(),
    row::<state::SetScratchpad>(),
    row::<state::ClearScratchpad>(),
    row::<state::AbandonToolCall>(),
    row::<state::RequestApproval>(),
    row::<state::ResolveApproval>(),
    row::<facts::ListFacts>(),
    row::<facts::AddFact>(),
    row::<facts::ExtractFacts>(),
    row::<facts::GetFact>(),
    row::<facts::CorrectFact>(),
    row::<facts::RetractFact>(),
    row::<recall::Recall>(),
    row::<context::BuildContext>(),
    row::<context::RecordContext>(),
    row::<context::ReplayContext>(),
    row::<projections::ProjectTranscript>(),
    row::<projections::ProjectConversation>(),
    row::<projections::RecordProjection>(),
    row::<projections::ReplayProjection>(),
    row::<compaction::Compact>(),
    row::<compaction::RevertCompaction>(),
    row::<compaction::Summarize>(),
    row::<generations::Generate>(),
    row::<generations::ListGenerations>(),
    row::<generations::GetGeneration>(),
    row::<generations::StopGeneration>(),
    row::<generations::ListModels>(),
    row::<sessions::StartSession>(),
    row::<sessions::LogSession>(),
    row::<sessions::EndSession>(),
    row::<assets::ListAssets>(),
    row::<assets::GetAsset>(),
    row::<transfer::Export>(),
    row::<transfer::Import>(),
    row::<transfer::Verify>(),
    row::<transfer::CheckStore>(),
    row::<keys::CreateKey>(),
    row::<keys::ListKeys>(),
    row::<keys::RevokeKey>(),
    row::<keys::WhoAmI>(),
    row::<usage::GetUsage>(),
    row::<usage::GetTokenUsage>(),
];
