//! The description of the native API, made from the handlers themselves.

use crate::app::App;
use crate::problem::ProblemBody;
use axum::Router;
use axum::routing::get;
use std::sync::{Arc, LazyLock};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, SecurityRequirement};
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Everturn",
        description = "Every word is kept; the model reads what it needs. A conversation store for AI agents."
    ),
    servers((url = "/")),
    components(schemas(ProblemBody, crate::schema::Order, crate::schema::Format)),
    tags(
        (name = "conversations", description = "Begin, find, change, fork, delete."),
        (name = "turns", description = "Append, stream, read, supersede, erase."),
        (name = "events", description = "The log itself, as pages or live."),
        (name = "state", description = "What a conversation needs to go on: pins, approvals, what is pending."),
        (name = "facts", description = "What was learned from what was said."),
        (name = "recall", description = "Finding again what was said and learned."),
        (name = "context", description = "What a model is given: context, projection, compaction."),
        (name = "generations", description = "Answers of models."),
        (name = "assets", description = "Large or non-text payloads."),
        (name = "transfer", description = "In, out, and proof."),
        (name = "keys", description = "Who may ask, of the caller's own tenant."),
        (name = "usage", description = "How much the caller's tenant stores, and how much it may."),
    )
)]
struct Description;

static TEXT: LazyLock<String> = LazyLock::new(document);

/// OpenAPI 3.1, as JSON.
pub fn document() -> String {
    let (_, mut api) = OpenApiRouter::with_openapi(Description::openapi())
        .nest("/api/v1", crate::rest::routes())
        .split_for_parts();
    for item in api.paths.paths.values_mut() {
        item.get.iter_mut().for_each(|operation| add_what_all_answer(operation, false));
        let changes = [&mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        changes.into_iter().flatten().for_each(|operation| add_what_all_answer(operation, true));
    }
    let key = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
    let key = key.description(Some("A key (`et_…`) or a JWT. A server on this machine only may need none."));
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("key", SecurityScheme::Http(key.build()));
    api.security = Some(vec![SecurityRequirement::new("key", [""; 0]), SecurityRequirement::default()]);
    api.to_pretty_json().unwrap_or_default()
}

/// The problems that follow from what an operation takes; its own are said where it is. Every problem is problem+json.
fn add_what_all_answer(operation: &mut Operation, changes: bool) {
    let parameters = operation.parameters.as_deref().unwrap_or_default();
    let names = parameters.iter().any(|parameter| match parameter {
        RefOr::T(parameter) => {
            parameter.parameter_in == ParameterIn::Path || parameter.name == "conversation"
        }
        RefOr::Ref(_) => false,
    });
    let (takes, has_body) = (!parameters.is_empty(), operation.request_body.is_some());
    let has_json = matches!(&operation.request_body, Some(RefOr::T(body)) if body.content.keys().eq(["application/json"]));
    let table = [
        ("400", "Something about the request is wrong; `detail` says what to do.", takes || has_body),
        ("401", "A key is needed.", true),
        ("403", "The key may not do this.", true),
        ("404", "There is nothing with that id, or it is somebody else's.", names),
        ("409", "What is there now does not allow it; read again, then decide.", names && changes),
        ("413", "A limit was hit; `detail` has its name and both numbers.", takes || has_body),
        ("415", "The body is not JSON.", has_json),
        ("429", "Too many requests; `Retry-After` says when to try again.", true),
        ("500", "A fault of the server's.", true),
        ("503", "Not now; `Retry-After` says when to try again.", true),
    ];
    let responses = &mut operation.responses.responses;
    for (status, text, applies) in table {
        if applies && !responses.contains_key(status) {
            responses.insert(status.into(), ResponseBuilder::new().description(text).build().into());
        }
    }
    let problem = Ref::from_schema_name(ProblemBody::name());
    for (status, response) in responses.iter_mut() {
        if let RefOr::T(response) = response
            && status.as_str() >= "400"
        {
            response.content.clear();
            let content = ContentBuilder::new().schema(Some(problem.clone())).build();
            response.content.insert("application/problem+json".into(), RefOr::T(content));
        }
    }
}

/// `/openapi.json`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/openapi.json", get(|| async { ([("content-type", "application/json")], TEXT.as_str()) }))
}
