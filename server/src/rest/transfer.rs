//! Import and export of conversations as files.

use super::{at, operations};
use crate::access::{Caller, Reader, Writer};
use crate::app::{App, blocking, large_thread};
use crate::json::{Path, Query, stalled};
use crate::pipe;
use crate::problem::Problem;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use everturn_api::Operation;
use everturn_api::transfer::Export;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::id::ConversationId;
use everturn_engine::{ConversationHandle, Format, ImportOptions, Imported};
use serde::Deserialize;
use std::io::{self, Read};
use std::sync::Arc;

/// `/conversations/{conversation}/transcript` and `export`, and `/import`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(&at("/conversations/{conversation}/transcript"), get(get_transcript))
        .route(&at(Export::ABOUT.path), get(export))
        .route(&at("/import"), post(import))
}

/// A query without parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

async fn get_transcript(
    Reader(tenant): Reader,
    Path(id): Path<ConversationId>,
    Query(NoParameters {}): Query<NoParameters>,
) -> Result<Response, Problem> {
    let text = written(tenant.conversation(id), Format::Transcript, false).await?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// A conversation as a file, written while it is sent.
async fn written(chat: ConversationHandle, format: Format, is_redacted: bool) -> Result<Body, Error> {
    // Errors must come before the first byte.
    let chat = blocking(move || chat.get().map(|_| chat)).await?;
    let thread = large_thread().await?;
    pipe::written(thread, move |out| match is_redacted {
        true => chat.export_redacted(format, out, &mut |_| {}),
        false => chat.export(format, out, &mut |_| {}),
    })
    .await
}

async fn export(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let (requester, Export { conversation, format, redacted }) =
        operations::read::<Export>(&app, request).await?;
    let chat = requester.blocking(move |tenant| conversation.find(tenant)).await?;
    let format = format.unwrap_or_default();
    let mark = if redacted { ".redacted" } else { "" };
    let name = format!("{}{mark}.{}", chat.id(), format.extension());
    let headers = [
        (CONTENT_TYPE, format.content_type().to_string()),
        // A page is a file, too: it is never shown on this server's origin.
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    Ok((headers, written(chat, format, redacted).await?).into_response())
}

/// Query of an import.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportQuery {
    name: Option<String>,
    #[serde(default)]
    watched: bool,
}

async fn import(
    State(app): State<Arc<App>>,
    Writer(tenant): Writer,
    Extension(caller): Extension<Caller>,
    Query(file_named): Query<ImportQuery>,
    body: Body,
) -> Result<axum::Json<Imported>, Problem> {
    let bytes_max = app.config.import_bytes_max;
    let thread = large_thread().await?;
    let mut file = pipe::read(body, app.config.limits.body_timeout);
    let imported = tokio::task::spawn_blocking(move || {
        let _thread = thread;
        let mut within = Read::by_ref(&mut file).take(bytes_max);
        let ImportQuery { name, watched } = &file_named;
        let options = ImportOptions { name: name.as_deref(), watched: *watched, role: caller.role };
        let imported = tenant.import_with(options, &mut within, &mut |_| {});
        let too_large = within.limit() == 0 && file.read(&mut [0]).is_ok_and(|more| more > 0);
        let broken = file.broken;
        (imported, too_large, broken)
    });
    match imported.await {
        Ok((_, true, _)) => Err(Error::too_large(
            code::LIMIT_EXCEEDED,
            format!(
                "the file is larger than {bytes_max} bytes; import it on the server with `everturn import`"
            ),
        )
        .into()),
        Ok((_, _, Some(io::ErrorKind::TimedOut))) => Err(stalled(&app.config)),
        Ok((_, _, Some(_))) => {
            let text = "the file ended early; send it again, existing events are skipped";
            Err(Error::invalid("body.broken", text).into())
        }
        Ok((imported, ..)) => Ok(axum::Json(imported?)),
        Err(_) => {
            Err(Error::internal("server.panic", "the import failed inside the server; see its log").into())
        }
    }
}
