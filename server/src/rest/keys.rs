//! Keys: who may ask, of the caller's own tenant.

use crate::access::{Admin, Role};
use crate::app::{App, blocking};
use crate::json::{Json, Path};
use crate::problem::{Problem, ProblemBody};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use everturn_core::access::AccessKey;
use everturn_core::id::KeyId;
use everturn_core::time::Timestamp;
use everturn_engine::NewKey;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/keys`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(revoke))
}

/// A key to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateKey {
    /// `reader`, `writer` or `admin`.
    #[schema(value_type = String, examples("writer"))]
    role: Role,
    /// For people: who has it, and what for.
    #[schema(examples("the build bot"))]
    label: Option<String>,
    /// When it ends by itself, RFC 3339.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires: Option<Timestamp>,
}

/// A key, without its secret.
#[derive(ToSchema)]
#[schema(as = Key)]
#[allow(dead_code, reason = "read by the derive only")]
struct KeySchema {
    /// Its id.
    #[schema(examples("key_01JD0000000000000000000000"))]
    id: String,
    /// Whose conversations it opens.
    tenant: String,
    /// `reader`, `writer` or `admin`.
    role: String,
    /// For people.
    label: Option<String>,
    /// When it was made.
    created: String,
    /// When it ends by itself.
    expires: Option<String>,
    /// When it was taken back.
    revoked: Option<String>,
    /// When it was last used, to about a minute.
    last_used: Option<String>,
}

/// A key that was just made.
#[derive(ToSchema)]
#[allow(dead_code, reason = "read by the derive only")]
struct MadeKey {
    /// The key.
    #[serde(flatten)]
    key: KeySchema,
    /// The words to send as `Authorization: Bearer`. They are shown this once.
    #[schema(examples("et_01JD0000000000000000000000_5f0c…"))]
    secret: String,
}

/// Keys of the tenant.
#[derive(ToSchema)]
#[allow(dead_code, reason = "read by the derive only")]
struct KeyList {
    /// Oldest first.
    data: Vec<KeySchema>,
    /// Always null: all of them are here.
    next: Option<String>,
}

#[derive(Serialize)]
struct Made {
    #[serde(flatten)]
    key: AccessKey,
    secret: String,
}

/// Makes a key for the caller's tenant. Its words are in this answer and nowhere else.
///
/// A server without keys asks nobody for one; from the first key on it asks everybody, so the first must be an admin's.
#[utoipa::path(
    post, path = "/keys", tag = "keys", request_body = CreateKey,
    responses(
        (status = 201, body = MadeKey), (status = 400, body = ProblemBody), (status = 401, body = ProblemBody),
        (status = 403, body = ProblemBody)
    )
)]
async fn create(
    Admin(scope): Admin,
    State(app): State<Arc<App>>,
    Json(body): Json<CreateKey>,
) -> Result<Response, Problem> {
    if body.role != Role::Admin && app.access.is_open(&app).await? && app.config.keys_required.is_none() {
        let text =
            "from the first key on every request needs one, so the first must be an admin's; make that first";
        return Err(Problem::new(StatusCode::CONFLICT, "key.first", text));
    }
    let tenant = scope.tenant().to_string();
    let new = NewKey { tenant, role: body.role, label: body.label, expires: body.expires };
    let (key, secret) = blocking(move || app.store.keys().create(new)).await?;
    Ok((StatusCode::CREATED, axum::Json(Made { key, secret })).into_response())
}

/// The keys of the caller's tenant, revoked and expired ones too.
#[utoipa::path(
    get, path = "/keys", tag = "keys",
    responses((status = 200, body = KeyList), (status = 401, body = ProblemBody), (status = 403, body = ProblemBody))
)]
async fn list(Admin(scope): Admin, State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let keys = blocking(move || app.store.keys().list(scope.tenant().as_str())).await?;
    Ok(axum::Json(serde_json::json!({"data": keys, "next": null})).into_response())
}

/// Takes a key back. It opens nothing from now on; its record stays.
#[utoipa::path(
    delete, path = "/keys/{id}", tag = "keys", params(("id" = String, Path)),
    responses(
        (status = 200, body = KeySchema), (status = 401, body = ProblemBody), (status = 403, body = ProblemBody),
        (status = 404, body = ProblemBody)
    )
)]
async fn revoke(
    Admin(scope): Admin,
    State(app): State<Arc<App>>,
    Path(id): Path<KeyId>,
) -> Result<Response, Problem> {
    let key = blocking(move || app.store.keys().revoke(scope.tenant().as_str(), id)).await?;
    Ok(axum::Json(key).into_response())
}
