//! Compacting a conversation that the client stores itself: items go in, a summary comes back that replaces
//! them in later requests.

use super::ask::Input;
use super::conversations::new_turn;
use super::error::Refused;
use super::fields::Fields;
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
use everturn::{HistoryEntry, HistoryQuery};
use everturn_core::Error;
use everturn_core::conversation::{Retention, Settings};
use everturn_core::json::{Raw, quote};
use everturn_core::turn::Role;
use everturn_views::tokens::Family;
use serde_json::{Value, json};
use std::sync::Arc;

/// First bytes of our summaries, before base64. It is not encrypted: it is the client's own conversation.
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

/// Summarizes, in a temporary conversation. User messages are repeated before the summary.
async fn compact(Writer(scope): Writer, Json(mut body): Json<Fields>) -> Result<axum::Json<Value>, Refused> {
    let model = models::find(&scope, Some(body.need("model")?))?;
    let input = body.take::<Input>("input")?.map(Input::items).transpose()?.unwrap_or_default();
    let previous: Option<String> = body.take("previous_response_id")?;
    let instructions: Option<String> = body.take("instructions")?;
    if input.is_empty() && previous.is_none() {
        return Err(Refused::field(
            "input",
            "there is nothing to compact; give input or previous_response_id",
        ));
    }
    let turns = input.iter().map(new_turn).collect::<Result<Vec<_>, _>>()?;
    let id = fresh()?;
    let (summary, mut output, read) = blocking(move || {
        let place = match &previous {
            Some(previous) => {
                let (turn, end) = end_of(&scope, previous)?;
                scope.conversation(turn.conversation).fork(end).wait()?
            }
            None => {
                let settings = Settings { retention: Some(Retention::Ephemeral), ..Settings::default() };
                scope.create(settings).wait()?
            }
        };
        let summarized = (|| {
            if !turns.is_empty() {
                place.append_all(turns).wait()?;
            }
            let end = place.get()?.head.seq;
            let summary = place.compaction().summarize(1, end, instructions.as_deref())?;
            let family = Family::of_model(model.served_name());
            let (mut shown, mut read) = (Vec::new(), 0);
            let mut query = HistoryQuery::default();
            loop {
                let page = place.history(query.clone())?;
                for entry in page.data {
                    let HistoryEntry::Turn(turn) = entry else { continue };
                    read += turn.value().map_or(0, |message| family.message(&message));
                    if turn.role == Role::User {
                        shown.extend(items::of_turn(&scope, &turn));
                    }
                }
                match page.next {
                    Some(next) => query.after = Some(next),
                    None => break,
                }
            }
            let text = summary.checkpoint.handoff_md;
            let tokens = (read, family.count(&text));
            Ok((text, shown, tokens))
        })();
        place.delete("it was there to be summarized").wait()?;
        summarized
    })
    .await?;
    output.push(json!({
        "id": ids::item("compaction", id, 0),
        "type": "compaction",
        "encrypted_content": BASE64_STANDARD.encode(format!("{MARK}{summary}")),
    }));
    Ok(axum::Json(json!({
        "id": ids::response(id),
        "object": "response.compaction",
        "created_at": ids::created(id),
        "output": output,
        "usage": {
            "input_tokens": read.0,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": read.1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read.0 + read.1,
        },
    })))
}
