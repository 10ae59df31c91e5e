//! The operations of the table, each at its route.

use super::{ROOT, at};
use crate::access::allowed;
use crate::app::{App, blocking, elsewhere, replying};
use crate::headers::{IfNoneMatch, etag, if_match, text};
use crate::json;
use crate::lanes::{Charge, SMALL_BYTES};
use crate::problem::Problem;
use axum::Router;
use axum::body::HttpBody;
use axum::extract::{FromRequestParts, Query, RawPathParams, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName, LOCATION};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use everturn_api::decode::{InvalidRequest, Part, RawRequest};
use everturn_api::{About, Method, Reply, Requester, Row, TABLE, Threads, Work};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::id::{ConversationId, clip};
use everturn_engine::Tenant;
use everturn_engine::model::wait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Every operation that is not streamed.
pub fn routes() -> Router<Arc<App>> {
    TABLE.iter().filter(|row| !row.about.streams).fold(Router::new(), |router, row| {
        paths(&row.about).fold(router, |router, path| {
            let method = match row.about.method {
                Method::Get => MethodFilter::GET,
                Method::Post => MethodFilter::POST,
                Method::Put => MethodFilter::PUT,
                Method::Patch => MethodFilter::PATCH,
                Method::Delete => MethodFilter::DELETE,
            };
            let handler = move |State(app): State<Arc<App>>, request| answer(row, app, request);
            router.route(&at(path), on(method, handler))
        })
    })
}

fn paths(about: &About) -> impl Iterator<Item = &'static str> {
    [about.path].into_iter().chain(about.alias.map(|(_, path)| path))
}

/// Answers a request for an operation.
pub async fn answer(row: &'static Row, app: Arc<App>, request: Request) -> Result<Response, Problem> {
    let is_quick = row.about.work == Work::Quick;
    let threads = if is_quick { Threads::Elsewhere(elsewhere) } else { Threads::Here };
    let requester = allowed(request.extensions(), row.about.role)?.requester(threads);
    let path = request.uri().path();
    let path = path.strip_prefix(ROOT).unwrap_or(path).to_string();
    let known = (row.about.method == Method::Get).then(|| IfNoneMatch::of(request.headers()));
    let asked = ReceivedRequest::new(&row.about, request, &app).await?;
    if let Some((conversation, seq)) = asked.seen {
        catch_up(&app, &requester.tenant, conversation, seq).await?;
    }
    let answered = if is_quick {
        let operation = match asked.body.len() > SMALL_BYTES {
            // It takes milliseconds, and other connections of this thread would wait.
            true => blocking(move || asked.read(&row.about, row.read)).await,
            false => asked.read(&row.about, row.read),
        };
        match operation {
            Ok(operation) => operation.run(requester, path).await.map(|reply| (reply, None)),
            Err(error) => Err(error),
        }
    } else {
        replying(row.about.work, move || wait(asked.read(&row.about, row.read)?.run(requester, path))).await
    };
    match answered {
        Ok((reply, charge)) => Ok(response(known, reply, charge)),
        Err(error) if row.about.if_match && error.is(code::STALE_SEQ) => Err(Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "conversation.changed",
            error.text().to_string(),
        )),
        Err(error) => Err(error.into()),
    }
}

/// Longest wait for events that the caller has seen elsewhere.
const CATCH_UP: Duration = Duration::from_secs(2);
/// Pause between two checks for them.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(20);

/// Waits until a conversation has the event that the caller has seen: a standby may be behind.
async fn catch_up(app: &App, tenant: &Tenant, id: ConversationId, seq: u64) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        let chat = tenant.conversation(id);
        let head = match blocking(move || chat.get()).await {
            Ok(conversation) => conversation.head.seq,
            // A server that writes is never behind: the conversation does not exist, as the operation will report.
            Err(Error::NotFound(_)) if !app.store.is_read_only() => return Ok(()),
            // It may have been created just now.
            Err(Error::NotFound(_)) => 0,
            Err(error) => return Err(error),
        };
        if head >= seq {
            return Ok(());
        }
        if began.elapsed() >= CATCH_UP {
            let advice = match app.store.is_read_only() {
                true => "try again, or ask a server that writes",
                false => "no server has that event; check where the number comes from",
            };
            let text =
                format!("{id} ends at {head} here, and Everturn-Seq says that you have seen {seq}; {advice}");
            return Err(Error::busy("store.behind", text));
        }
        tokio::time::sleep(CATCH_UP_PAUSE).await;
    }
}

/// Header with the `seq` of an event that the caller has seen: the answer is at least as new.
const SEEN: HeaderName = HeaderName::from_static("everturn-seq");

struct ReceivedRequest {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: String,
    /// The conversation of the path, and the last event of it that the caller has seen.
    seen: Option<(ConversationId, u64)>,
}

impl ReceivedRequest {
    async fn new(about: &About, request: Request, app: &Arc<App>) -> Result<ReceivedRequest, Problem> {
        let (mut parts, body) = request.into_parts();
        let path = RawPathParams::from_request_parts(&mut parts, app).await.map_err(|_| {
            Error::not_found("id.malformed", "the path contains an id that is not UTF-8; check it")
        })?;
        let path: Vec<(String, String)> =
            path.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        // Names are for people: a path takes only an id, so that it never means another conversation.
        let named = path.iter().find(|(name, _)| name == "conversation");
        let id = named.map(|(_, value)| value.parse::<ConversationId>());
        if let (Some((_, value)), Some(Err(_))) = (named, &id) {
            let text = format!(
                "{:?} is not the id of a conversation, such as conv_01J9ZZZZZZZZZZZZZZZZZZZZZZ; \
                 `GET /api/v1/conversations` lists them, and `GET /api/v1/conversations/resolve?name=@last` finds the latest",
                clip(value)
            );
            return Err(Error::not_found("id.malformed", text).into());
        }
        let Query(query) = Query::try_from_uri(&parts.uri)
            .map_err(|e| Error::invalid("query.shape", format!("the query is invalid: {}", e.body_text())))?;
        let query: Vec<(String, String)> = query;
        // With a body, the query may only name the conversation.
        let beside = query.iter().find(|(name, _)| about.method.has_body() && name != "conversation");
        if let Some((name, _)) = beside {
            let text = format!("the query is invalid: {:?} belongs in the body", clip(name));
            return Err(Error::invalid("query.shape", text).into());
        }
        let seen = match (id, text(&parts.headers, &SEEN)?) {
            (Some(Ok(id)), Some(seq)) => Some((
                id,
                seq.trim().parse().map_err(|_| {
                    let text = format!("Everturn-Seq is {:?}; send the seq of an event", clip(&seq));
                    Error::invalid("header.shape", text)
                })?,
            )),
            _ => None,
        };
        let mut headers = Vec::new();
        if about.once
            && let Some(key) = text(&parts.headers, &HeaderName::from_static("idempotency-key"))?
        {
            headers.push(("idempotency_key".into(), key));
        }
        if about.if_match
            && let Some(seq) = if_match(&parts.headers)?
        {
            headers.push(("expected_seq".into(), seq.to_string()));
        }
        let body = match about.method.has_body() {
            true => json::text(Request::from_parts(parts, body), app).await?,
            false if body.is_end_stream() => String::new(),
            false => {
                let body = json::body(Request::from_parts(parts, body), &app.config, SMALL_BYTES).await?;
                if !matches!(body.trim(), "" | "{}") {
                    let text = "this request takes no body; put its fields in the query";
                    return Err(Error::invalid("body.unexpected", text).into());
                }
                String::new()
            }
        };
        Ok(ReceivedRequest { path, query, headers, body, seen })
    }

    fn read<T>(
        self,
        about: &About,
        read: impl Fn(&RawRequest<'_>) -> Result<T, InvalidRequest>,
    ) -> Result<T, Error> {
        let ReceivedRequest { path, query, headers, body, .. } = self;
        if !body.trim().is_empty() {
            everturn_core::json::check(&body)?;
        }
        read(&RawRequest { path, query, headers, body: &body }).map_err(|wrong| refused(about, wrong))
    }
}

fn refused(about: &About, InvalidRequest { part, text }: InvalidRequest) -> Error {
    match part {
        // A missing field is in none of the parts; without a body, it is attributed to the query.
        Part::Body if !about.method.has_body() => {
            Error::invalid("query.shape", format!("the query is invalid: {text}"))
        }
        Part::Path => Error::not_found("id.malformed", format!("the path contains a malformed id: {text}")),
        Part::Query => Error::invalid("query.shape", format!("the query is invalid: {text}")),
        Part::Header => Error::invalid("header.shape", format!("a header is invalid: {text}")),
        Part::Body => Error::invalid("body.shape", format!("the body is invalid: {text}")),
    }
}

fn response(known: Option<IfNoneMatch>, reply: Reply, charge: Option<Charge>) -> Response {
    if let (Some(known), Some(tag)) = (known, &reply.tag)
        && let Some(unchanged) = known.unchanged(tag)
    {
        return unchanged;
    }
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    let mut response = (status, [(CONTENT_TYPE, "application/json")], reply.json).into_response();
    if let Some(tag) = reply.tag {
        response
            .headers_mut()
            .extend(etag(tag).into_iter().filter_map(|(name, tag)| Some((name, tag.parse().ok()?))));
    }
    if let Some(location) = reply.location.and_then(|path| at(&path).parse().ok()) {
        response.headers_mut().insert(LOCATION, location);
    }
    if let Some(charge) = charge {
        response.extensions_mut().insert(Arc::new(Some(charge)));
    }
    response
}

/// Answers a request for an operation whose stream was not asked for.
pub async fn answer_whole<O: everturn_api::Operation>(
    app: Arc<App>,
    request: Request,
) -> Result<Response, Problem> {
    match Row::named(O::ABOUT.name) {
        Some(row) => answer(row, app, request).await,
        None => Err(Error::internal("operation.absent", "an operation is not in the table").into()),
    }
}

/// Reads a request for an operation with a handler of its own, and its caller.
pub async fn read<O: everturn_api::Operation>(
    app: &Arc<App>,
    request: Request,
) -> Result<(Requester, O), Problem> {
    let requester = allowed(request.extensions(), O::ABOUT.role)?.requester(Threads::Elsewhere(elsewhere));
    let asked = ReceivedRequest::new(&O::ABOUT, request, app).await?;
    Ok((requester, blocking(move || asked.read(&O::ABOUT, read_as::<O>)).await?))
}

fn read_as<O: everturn_api::Operation>(raw: &RawRequest<'_>) -> Result<O, InvalidRequest> {
    raw.read().map_err(|wrong| wrong.naming_fields::<O>(raw))
}
