//! In, out, and proof.

use crate::access::{Admin, Reader, Writer};
use crate::app::{App, blocking, large, large_thread};
use crate::json::{Path, Query, stalled};
use crate::pipe;
use crate::problem::Problem;
use crate::schema;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::chain::{Hash, Report};
use everturn_core::id::ConversationId;
use everturn_engine::{Doctor, Format, Imported, Scope};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::sync::{Arc, TryLockError};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/transcript`, `export` and `verify`, `/import` and `/doctor`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(get_transcript))
        .routes(routes!(export))
        .routes(routes!(verify))
        .routes(routes!(import))
        .routes(routes!(doctor))
}

/// Reads a conversation as a transcript value, version 2.
#[utoipa::path(
    get, path = "/conversations/{id}/transcript", tag = "transfer", params(schema::InConversation),
    responses((status = 200, description = "The transcript.", body = schema::Transcript))
)]
async fn get_transcript(Reader(scope): Reader, Path(id): Path<ConversationId>) -> Result<Response, Problem> {
    let text = written(scope, id, Format::Transcript).await?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// A conversation as a file that is written while it is sent.
async fn written(scope: Scope, id: ConversationId, format: Format) -> Result<Body, Error> {
    // What can be refused is refused before the first byte.
    let scope = blocking(move || scope.get(id).map(|_| scope)).await?;
    let thread = large_thread().await?;
    pipe::written(thread, move |out| scope.export(id, format, out, &mut |_| {})).await
}

/// Which format.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Export {
    /// `jsonl` (the default) has everything, verifies offline and can be imported again; `transcript` is a transcript value.
    /// `openai-chat`, `openai-responses`, `anthropic` and `gemini` are the messages of a request; `markdown` and `html` are
    /// for people.
    #[serde(default)]
    #[param(value_type = Option<schema::Format>)]
    format: Format,
}

/// Exports a conversation as a file.
#[utoipa::path(
    get, path = "/conversations/{id}/export", tag = "transfer", params(schema::InConversation, Export),
    responses((status = 200, description = "The file. One that ends early is cut off, not complete.", content(
        (String = "application/jsonl"), (schema::Exported = "application/json"), (String = "text/markdown"),
        (String = "text/html")
    )))
)]
async fn export(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Query(export): Query<Export>,
) -> Result<Response, Problem> {
    let format = export.format;
    let name = format!("{id}.{}", format.extension());
    let headers = [
        (CONTENT_TYPE, format.content_type().to_string()),
        // Also a page is a file: it is never shown in this server's name.
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    Ok((headers, written(scope, id, format).await?).into_response())
}

/// What to look for.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Verify {
    /// A head hash noted earlier, which the log must still contain.
    #[param(value_type = Option<String>)]
    head: Option<String>,
}

/// What a verification found.
#[derive(Serialize)]
struct Verdict {
    conversation: ConversationId,
    ok: bool,
    #[serde(flatten)]
    report: Option<Report>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// Walks the chain of a conversation.
#[utoipa::path(
    get, path = "/conversations/{id}/verify", tag = "transfer", params(schema::InConversation, Verify),
    responses((status = 200, description = "What was found; `ok` says whether it holds.", body = schema::Verdict))
)]
async fn verify(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Query(verify): Query<Verify>,
) -> Result<Response, Problem> {
    let head: Option<Hash> = verify.head.as_deref().map(str::parse).transpose()?;
    let (report, mut problems) = match large(move || scope.verify(id, head)).await {
        Ok(report) => (Some(report), Vec::new()),
        Err(Error::Corrupt(found)) => (None, vec![found.text]),
        Err(error) => return Err(error.into()),
    };
    if report.as_ref().is_some_and(|report| report.contains_head == Some(false)) {
        let text =
            "the log does not contain that head: it was cut or rewritten, or the head is of another one";
        problems.push(text.into());
    }
    let verdict = Verdict { conversation: id, ok: problems.is_empty(), report, problems };
    Ok(axum::Json(verdict).into_response())
}

/// What the file is called.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Import {
    /// Tells one conversation from another where the content does not: a list of messages has no session id.
    #[param(value_type = Option<String>)]
    name: Option<String>,
}

/// Takes over conversations from a file: an export, a session file, a transcript value, what Claude Code, Codex or Gemini
/// CLI left on disk, or messages as providers take them; its content tells which. Importing a file again adds only what is
/// new.
#[utoipa::path(
    post, path = "/import", tag = "transfer", params(Import),
    request_body(
        content((String = "application/jsonl"), (schema::Transcript = "application/json")),
        description = "The file, of any content type.",
    ),
    responses(
        (status = 200, description = "What was taken over.", body = schema::Imported),
        (status = 409, description = "What is here under that id is something else.", body = schema::Problem)
    )
)]
async fn import(
    State(app): State<Arc<App>>,
    Writer(scope): Writer,
    Query(import): Query<Import>,
    body: Body,
) -> Result<axum::Json<Imported>, Problem> {
    let bytes_max = app.config.import_bytes_max;
    let thread = large_thread().await?;
    let mut file = pipe::read(body, app.config.limits.body_timeout);
    let imported = tokio::task::spawn_blocking(move || {
        let _thread = thread;
        let mut within = Read::by_ref(&mut file).take(bytes_max);
        let imported = scope.import_as(import.name.as_deref(), &mut within, &mut |_| {});
        let too_large = within.limit() == 0 && file.read(&mut [0]).is_ok_and(|more| more > 0);
        let broken = file.broken;
        (imported, too_large, broken)
    });
    match imported.await {
        Ok((_, true, _)) => Err(Error::too_large(
            "limit.exceeded",
            format!(
                "the file is larger than {bytes_max} bytes; import it on the server with `everturn import`"
            ),
        )
        .into()),
        Ok((_, _, Some(io::ErrorKind::TimedOut))) => Err(stalled(&app.config)),
        Ok((_, _, Some(_))) => {
            let text = "the file ended before it was whole; send it again, what is here already is left out";
            Err(Error::invalid("body.broken", text).into())
        }
        Ok((imported, ..)) => Ok(axum::Json(imported?)),
        Err(_) => {
            Err(Error::internal("server.panic", "the import failed inside the server; see its log").into())
        }
    }
}

/// Checks everything of this tenant: chains, bodies, assets. The database is read from end to end, so one check runs at a
/// time, whoever asks.
#[utoipa::path(
    get, path = "/doctor", tag = "transfer",
    responses((status = 200, description = "What was found; nothing is wrong if `findings` is empty.", body = schema::Doctor))
)]
async fn doctor(State(app): State<Arc<App>>, Admin(scope): Admin) -> Result<axum::Json<Doctor>, Problem> {
    let found = large(move || match app.checking.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(Error::busy("doctor.busy", "another check of the store is running; ask again in a minute"))
        }
        _checking => scope.doctor(&mut |_| {}),
    });
    Ok(axum::Json(found.await?))
}
