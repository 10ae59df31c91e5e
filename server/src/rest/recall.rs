//! Recall: finding again what was said and learned.

use crate::access::Reader;
use crate::app::{App, blocking};
use crate::json::{Json, Path};
use crate::problem::Problem;
use crate::schema;
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use everturn_engine::{RecallOptions, Recalled};
use everturn_views::recall::{Kind, Mode};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/recall` and `/conversations/{id}/recall`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(recall)).routes(routes!(recall_in))
}

/// What to recall. Everything but the query may be left out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RecallRequest, example = json!({"query": "which port did we choose", "limit": 5}))]
struct Ask {
    /// Whatever is typed: words, `"phrases"`, `begin*`.
    query: String,
    /// Only what these said.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    actors: Vec<String>,
    /// Only what was said in these roles.
    #[serde(default)]
    #[schema(value_type = Option<Vec<schema::Role>>)]
    roles: Vec<Role>,
    /// Only what was said at this time or later.
    #[schema(value_type = Option<String>, format = DateTime)]
    after: Option<Timestamp>,
    /// Only what was said before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
    /// Turns, facts; both if none is named.
    #[serde(default)]
    #[schema(value_type = Option<Vec<schema::RecallKind>>)]
    kinds: Vec<Kind>,
    /// At most this many; 10 by default.
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// By words, by meaning, or both, which is the default.
    #[serde(default)]
    #[schema(value_type = Option<schema::RecallMode>)]
    mode: Mode,
    /// Also superseded and aborted turns.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    include_superseded: bool,
}

impl Ask {
    fn within(self, conversation: Option<ConversationId>) -> (String, RecallOptions) {
        let options = RecallOptions {
            conversation,
            actors: self.actors,
            roles: self.roles,
            after: self.after,
            before: self.before,
            kinds: self.kinds,
            limit: self.limit.unwrap_or(RecallOptions::default().limit),
            mode: self.mode,
            include_superseded: self.include_superseded,
        };
        (self.query, options)
    }
}

/// Finds turns and facts again, in all conversations.
///
/// By words and by meaning, best first. What was erased, deleted or taken back is not found.
#[utoipa::path(
    post, path = "/recall", tag = "recall", request_body = Ask,
    responses((status = 200, description = "What was found.", body = schema::Recalled))
)]
async fn recall(Reader(scope): Reader, Json(body): Json<Ask>) -> Result<axum::Json<Recalled>, Problem> {
    let (query, options) = body.within(None);
    Ok(axum::Json(blocking(move || scope.recall(&query, &options)).await?))
}

/// Finds turns and facts of one conversation again; a fork's with what it inherited.
#[utoipa::path(
    post, path = "/conversations/{id}/recall", tag = "recall", params(schema::InConversation), request_body = Ask,
    responses((status = 200, description = "What was found.", body = schema::Recalled))
)]
async fn recall_in(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Json(body): Json<Ask>,
) -> Result<axum::Json<Recalled>, Problem> {
    let (query, options) = body.within(Some(id));
    Ok(axum::Json(blocking(move || scope.recall(&query, &options)).await?))
}
