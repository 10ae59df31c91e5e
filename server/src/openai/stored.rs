//! A response in OpenAI's format, and the part of its request that has to be stored for that.

use super::{ids, items};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::event::kind;
use everturn_core::id::{ConversationId, TurnId, clip};
use everturn_core::json::Raw;
use everturn_core::turn::{Status, Turn, reason};
use everturn_engine::model::{Finish, ModelReply};
use everturn_engine::{HistoryEntry, HistoryQuery, Order, Tenant};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Number of events read at a time to find the end of a reply: usually it is among the first.
const EVENTS_PAGE: usize = 32;

/// Key of the stored request in the metadata of the reply's turn.
pub const KEY: &str = "openai";

/// The stored part of the request.
#[derive(Clone, Serialize, Deserialize)]
pub struct StoredRequest {
    /// The model, as requested.
    pub model: String,
    /// Fields that the response repeats.
    pub echo: Map<String, Value>,
    /// The conversation, if it was named.
    pub conversation: Option<ConversationId>,
    /// Number of input turns.
    pub inputs: usize,
}

/// Status of a reply.
pub enum State {
    InProgress,
    /// It ended normally, at this time in seconds since 1970.
    Done(i64),
    /// It was cut, for this reason.
    Cut(&'static str),
    Cancelled,
    /// It failed: code and text.
    Failed(String, String),
}

/// A response, for the client.
pub struct ResponseView<'a> {
    pub turn: TurnId,
    /// The stored part of its request.
    pub kept: &'a StoredRequest,
}

impl ResponseView<'_> {
    pub fn object(&self, state: &State, output: &[Value], usage: Option<Value>) -> Value {
        let (status, error, incomplete) = match state {
            State::InProgress => ("in_progress", Value::Null, Value::Null),
            State::Done(_) => ("completed", Value::Null, Value::Null),
            State::Cut(reason) => ("incomplete", Value::Null, json!({"reason": reason})),
            State::Cancelled => ("cancelled", Value::Null, Value::Null),
            State::Failed(code, text) => {
                ("failed", json!({"code": failure(code), "message": text}), Value::Null)
            }
        };
        let mut object = json!({
            "id": ids::response(self.turn),
            "object": "response",
            "created_at": ids::created(self.turn),
            "completed_at": match state {
                State::Done(at) => Some(at),
                _ => None,
            },
            "status": status,
            "error": error,
            "incomplete_details": incomplete,
            "model": self.kept.model,
            "output": output,
            "usage": usage,
            "conversation": self.kept.conversation.map(|id| json!({"id": id})),
        });
        if let Value::Object(fields) = &mut object {
            fields.extend(self.kept.echo.clone());
        }
        object
    }
}

/// The code of a failed response.
fn failure(code: &str) -> &'static str {
    match code {
        "model.rate_limited" | "model.quota" => "rate_limit_exceeded",
        code::MODEL_REFUSED | code::CONTEXT_OVERFLOW => "invalid_prompt",
        _ => "server_error",
    }
}

/// Status of a reply that ended at this time.
pub fn done(finish: &Finish, at: i64) -> State {
    match finish {
        Finish::Length => State::Cut("max_output_tokens"),
        Finish::ContentFilter => State::Cut("content_filter"),
        _ => State::Done(at),
    }
}

/// The `seq` of a reply's last event, and its time in seconds since 1970.
pub fn ended(tenant: &Tenant, turn: &Turn) -> Result<(u64, i64), Error> {
    let mut left = items::generation(turn).items.unwrap_or(1);
    let mut after = turn.seq;
    loop {
        let events = tenant.conversation(turn.conversation).log().read(after, EVENTS_PAGE)?;
        for event in &events {
            after = event.seq;
            let ends = event.turn == Some(turn.id) && kind::ends_turn(&event.kind);
            let item = event.kind == kind::MESSAGE
                && Turn::begun(event).is_some_and(|item| items::generation(&item).answer == Some(turn.id));
            left -= usize::from(ends || item);
            if left == 0 {
                return Ok((after, event.at.0.div_euclid(1_000_000)));
            }
        }
        if events.is_empty() {
            let text = format!("the end of {} is not in the log", ids::response(turn.id));
            return Err(Error::internal("response.endless", text));
        }
    }
}

pub fn usage(answer: &ModelReply) -> Option<Value> {
    let raw: Option<Value> = answer.usage.as_ref().and_then(Raw::read);
    used(answer.tokens.prompt?, answer.tokens.completion?, raw.as_ref())
}

fn used(input: u64, output: u64, raw: Option<&Value>) -> Option<Value> {
    let detail =
        |paths: &[&str]| -> u64 { paths.iter().find_map(|path| raw?.pointer(path)?.as_u64()).unwrap_or(0) };
    Some(json!({
        "input_tokens": input,
        "input_tokens_details": {
            "cached_tokens": detail(&["/prompt_tokens_details/cached_tokens", "/input_tokens_details/cached_tokens",
                "/cache_read_input_tokens"]),
            "cache_write_tokens": detail(&["/input_tokens_details/cache_write_tokens", "/cache_creation_input_tokens"]),
        },
        "output_tokens": output,
        "output_tokens_details": {
            "reasoning_tokens": detail(&["/completion_tokens_details/reasoning_tokens",
                "/output_tokens_details/reasoning_tokens"]),
        },
        "total_tokens": input + output,
    }))
}

/// The turn of a response, and the stored part of its request.
pub fn find(tenant: &Tenant, id: &str) -> Result<(Turn, StoredRequest), Error> {
    let absent = || Error::not_found("response_not_found", format!("there is no response {:?}", clip(id)));
    let turn = match tenant.turn(ids::turn_of_response(id).ok_or_else(absent)?) {
        Err(Error::NotFound(_)) => return Err(absent()),
        turn => turn?,
    };
    let kept = turn.metadata.get(KEY).and_then(|raw| raw.read()).ok_or_else(absent)?;
    Ok((turn, kept))
}

/// The turns of a query, up to its limit: a single page may end earlier, by its bytes.
pub fn turns(tenant: &Tenant, id: ConversationId, mut query: HistoryQuery) -> Result<Vec<Turn>, Error> {
    let wanted = query.limit;
    let mut turns = Vec::new();
    loop {
        query.limit = wanted - turns.len();
        let page = tenant.conversation(id).history(query.clone())?;
        turns.extend(page.data.into_iter().filter_map(|entry| match entry {
            HistoryEntry::Turn(turn) => Some(*turn),
            HistoryEntry::Event(_) => None,
        }));
        match (page.next, query.order) {
            (Some(next), Order::Ascending) if turns.len() < wanted => query.after = Some(next),
            (Some(next), Order::Descending) if turns.len() < wanted => query.before = Some(next),
            _ => return Ok(turns),
        }
    }
}

/// The turns of a reply: the one that was open, and those that followed in the same batch.
pub fn answer_turns(tenant: &Tenant, first: &Turn) -> Result<Vec<Turn>, Error> {
    let wanted = items::generation(first).items.unwrap_or(1);
    let mut turns = vec![first.clone()];
    let mut query = HistoryQuery { after: Some(first.place), ..HistoryQuery::default() };
    while turns.len() < wanted {
        let page = tenant.conversation(first.conversation).history(query.clone())?;
        for entry in page.data {
            if let HistoryEntry::Turn(turn) = entry
                && items::generation(&turn).answer == Some(first.id)
            {
                turns.push(*turn);
            }
        }
        if page.next.is_none() {
            break;
        }
        query.after = page.next;
    }
    Ok(turns)
}

/// A response, read from the log.
pub fn object(tenant: &Tenant, turn: &Turn, kept: &StoredRequest) -> Result<Value, Error> {
    let about = items::generation(turn);
    let state = match turn.status {
        Status::Pending => State::InProgress,
        Status::Complete => match about.finish.as_deref() {
            Some("length") => State::Cut("max_output_tokens"),
            Some("content_filter") => State::Cut("content_filter"),
            _ => State::Done(ended(tenant, turn)?.1),
        },
        Status::Aborted | Status::Interrupted if turn.reason.as_deref() == Some(reason::STOPPED) => {
            State::Cancelled
        }
        Status::Aborted | Status::Interrupted => {
            let reason = turn.reason.clone().unwrap_or_default();
            let code = about.error.clone().unwrap_or_else(|| "interrupted".into());
            let text = reason::text(&reason, &code);
            State::Failed(code, text.to_string())
        }
    };
    let mut output = Vec::new();
    // A reply that was stopped or broke off keeps its text so far.
    if turn.status != Status::Pending {
        for turn in answer_turns(tenant, turn)? {
            output.extend(items::of_turn(tenant, &turn));
        }
    }
    if let State::Cut(_) = state {
        items::cut(&mut output);
    }
    let tokens = turn.tokens.unwrap_or_default();
    let usage = tokens.prompt.zip(tokens.completion).and_then(|(i, o)| used(i, o, about.usage.as_ref()));
    let shown = ResponseView { turn: turn.id, kept };
    Ok(shown.object(&state, &output, usage))
}
