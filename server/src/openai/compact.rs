//! Compacting a conversation that the client stores itself: items go in, a summary comes back that replaces
//! them in later requests.

use super::conversations::new_turn;
use super::error::RequestError;
use super::fields::Fields;
use super::request::Input;
use super::responses::fresh;
use super::target::end_of;
use super::{ids, items, models};
use crate::access::Writer;
use crate::app::{App, blocking};
use crate::json::Json;
use axum::Router;
use axum::routing::post;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use everturn_core::Error;
use everturn_core::conversation::{Retention, Settings};
use everturn_core::json::{Raw, quote};
use everturn_core::pairing;
use everturn_core::turn::{Role, Turn};
use everturn_engine::{ConversationHandle, HistoryEntry, HistoryQuery};
use everturn_views::tokens::TokenizerFamily;
use serde_json::{Value, json};
use std::sync::Arc;

/// First bytes of a summary made here, before base64. It is not encrypted: the conversation is the client's own.
const MARK: &str = "everturn.summary.1\n";

/// `/v1/responses/compact`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/responses/compact", post(compact))
}

/// The message that a compaction item stands for; `None` if the item is something else.
pub fn summary_of(item: &Raw) -> Result<Option<String>, Error> {
    let value: Value = item.read().unwrap_or_default();
    if value["type"] != "compaction" {
        return Ok(None);
    }
    let bytes = value["encrypted_content"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let text = text.as_deref().and_then(|text| text.strip_prefix(MARK)).ok_or_else(|| {
        let text = "a compaction item was not created by this server; send the items that it replaces";
        Error::invalid("compaction.foreign", text)
    })?;
    let words = quote(&format!("Summary of the conversation so far:\n\n{text}"));
    Ok(Some(format!(r#"{{"role":"developer","content":{words}}}"#)))
}

/// Summarizes, in a temporary conversation. User messages are repeated before the summary. From a call that waits for its
/// result on, everything is repeated after it: the result comes with a later request.
async fn compact(
    Writer(tenant): Writer,
    Json(mut body): Json<Fields>,
) -> Result<axum::Json<Value>, RequestError> {
    let model = models::find(&tenant, Some(body.need("model")?))?;
    let input = body.take::<Input>("input")?.map(Input::items).transpose()?.unwrap_or_default();
    let previous: Option<String> = body.take("previous_response_id")?;
    let instructions: Option<String> = body.take("instructions")?;
    if input.is_empty() && previous.is_none() {
        return Err(RequestError::field(
            "input",
            "there is nothing to compact; give input or previous_response_id",
        ));
    }
    let turns = input.iter().map(new_turn).collect::<Result<Vec<_>, _>>()?;
    let id = fresh()?;
    let (output, read, written) = blocking(move || {
        let place = match &previous {
            Some(previous) => {
                let (turn, end) = end_of(&tenant, previous)?;
                tenant.conversation(turn.conversation).fork(end).wait()?
            }
            None => {
                let settings = Settings { retention: Some(Retention::Ephemeral), ..Settings::default() };
                tenant.create(settings).wait()?
            }
        };
        let summarized = (|| {
            if !turns.is_empty() {
                place.append_all(turns).wait()?;
            }
            let end = place.get()?.head.seq;
            let turns = turns_of(&place)?;
            let messages: Vec<Value> = turns.iter().map(|turn| turn.value().unwrap_or_default()).collect();
            let kept_from = waiting_from(&place, &turns, &messages)?;
            let to = turns.get(kept_from).map_or(end, |turn| turn.seq - 1);
            let summary = match kept_from {
                0 if !turns.is_empty() => None,
                _ => {
                    Some(place.compaction().summarize(1, to, instructions.as_deref())?.checkpoint.handoff_md)
                }
            };
            let family = TokenizerFamily::of_model(model.served_name());
            let read: u64 = messages.iter().map(|message| family.message(message)).sum();
            let (covered, kept) = turns.split_at(kept_from);
            let asked = covered.iter().filter(|turn| turn.role == Role::User);
            let mut output: Vec<Value> = asked.flat_map(|turn| items::of_turn(&tenant, turn)).collect();
            let written = summary.as_ref().map_or(0, |text| family.count(text));
            output.extend(summary.map(|text| {
                json!({
                    "id": ids::item("compaction", id, 0),
                    "type": "compaction",
                    "encrypted_content": BASE64_STANDARD.encode(format!("{MARK}{text}")),
                })
            }));
            output.extend(kept.iter().flat_map(|turn| items::of_turn(&tenant, turn)));
            Ok((output, read, written))
        })();
        place.delete("it was there to be summarized").wait()?;
        summarized
    })
    .await?;
    Ok(axum::Json(json!({
        "id": ids::response(id),
        "object": "response.compaction",
        "created_at": ids::created(id),
        "output": output,
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        },
    })))
}

/// All turns, in order.
fn turns_of(place: &ConversationHandle) -> Result<Vec<Turn>, Error> {
    let (mut turns, mut query) = (Vec::new(), HistoryQuery::default());
    loop {
        let page = place.history(query.clone())?;
        turns.extend(page.data.into_iter().filter_map(|entry| match entry {
            HistoryEntry::Turn(turn) => Some(*turn),
            _ => None,
        }));
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(turns),
        }
    }
}

/// Index of the first turn that is not summarized, because a call waits for its result; the number of turns if none does.
/// A call that is followed by a message of a person was interrupted, and no longer waits.
fn waiting_from(place: &ConversationHandle, turns: &[Turn], messages: &[Value]) -> Result<usize, Error> {
    let asks = |(turn, message): &(&Turn, &Value)| {
        turn.role == Role::User && pairing::pair([*message]).results.is_empty()
    };
    let asked = turns.iter().zip(messages).rfind(asks).map_or(0, |(turn, _)| turn.seq);
    let pending = place.state().read()?.pending_tools;
    let since = pending.iter().map(|tool| tool.since_seq).filter(|since| *since > asked).min();
    let called = since.and_then(|since| turns.iter().position(|turn| turn.seq >= since));
    Ok(called.map_or(turns.len(), |called| pairing::pair(messages).cut_at_or_before(called)))
}
