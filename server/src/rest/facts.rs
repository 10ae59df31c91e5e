//! Facts: what was learned from what was said.

use crate::access::{Reader, Writer};
use crate::app::{App, blocking};
use crate::json::{Json, Path, Query};
use crate::page::Page;
use crate::problem::Problem;
use crate::schema;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use everturn_core::fact::Fact;
use everturn_core::id::{ConversationId, FactId, TurnId};
use everturn_engine::{Correction, ExtractOptions, Extraction, FactQuery, NewFact, Scope};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// `/conversations/{id}/facts` and `/facts`.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list_facts, add_fact)).routes(routes!(extract_facts)).routes(routes!(
        get_fact,
        correct_fact,
        retract_fact
    ))
}

/// Which facts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// As they were when the log ended here.
    as_of: Option<u64>,
    /// Also superseded ones.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    include_superseded: bool,
    /// Also those that were taken back.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    include_retracted: bool,
    /// Go on after a page: the `next` of the page before.
    after: Option<u64>,
    /// At most this many; 50 by default.
    limit: Option<usize>,
}

/// Lists facts in the order in which they were taken down, those inherited by a fork included.
#[utoipa::path(
    get, path = "/conversations/{id}/facts", tag = "facts", params(schema::InConversation, Which),
    responses((status = 200, description = "A page; `next` is the next page's `after`.", body = Page<schema::Fact>))
)]
async fn list_facts(
    Reader(scope): Reader,
    Path(id): Path<ConversationId>,
    Query(which): Query<Which>,
) -> Result<Page<Fact>, Problem> {
    let query = FactQuery {
        as_of: which.as_of,
        include_superseded: which.include_superseded,
        include_retracted: which.include_retracted,
        after: which.after,
        limit: which.limit.unwrap_or(FactQuery::default().limit),
    };
    let page = blocking(move || scope.facts(id, query)).await?;
    Ok(Page { data: page.data, next: page.next.map(|seq| seq.to_string()) })
}

/// A fact to add by hand.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewFact, example = json!({"subject": "Ana", "predicate": "prefers", "object": "window seats", "by": "ana"}))]
struct New {
    /// About whom or what.
    subject: String,
    /// What is said of it.
    predicate: String,
    /// What it is said to be.
    object: String,
    /// How sure, from 0 to 1; certain by default.
    confidence: Option<f64>,
    /// The turn that says so. When it is erased, so is the fact.
    #[schema(value_type = Option<String>)]
    source_turn: Option<TurnId>,
    /// The words of that turn that say so.
    quote: Option<String>,
    /// Who adds it.
    by: Option<String>,
}

/// Adds a fact. One that is known is not added twice; one that contradicts another takes its place.
#[utoipa::path(
    post, path = "/conversations/{id}/facts", tag = "facts", params(schema::InConversation), request_body = New,
    responses((status = 201, description = "The fact as it is now.", body = schema::Fact))
)]
async fn add_fact(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Json(body): Json<New>,
) -> Result<Response, Problem> {
    let New { subject, predicate, object, confidence, source_turn, quote, by } = body;
    let new = NewFact { subject, predicate, object, confidence, source_turn, quote, by };
    let fact = blocking(move || scope.add_fact(id, new)).await?;
    Ok((StatusCode::CREATED, axum::Json(fact)).into_response())
}

/// Which turns to read.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExtractRequest, example = json!({"from": 1}))]
struct Extract {
    /// The first place; without one, only what was not read before.
    from: Option<u64>,
    /// The last place; by default the end.
    to: Option<u64>,
}

/// Lets a model read turns and keeps the facts that they support.
#[utoipa::path(
    post, path = "/conversations/{id}/facts/extract", tag = "facts", params(schema::InConversation),
    request_body = Extract,
    responses((status = 200, description = "What was kept, and what was dropped and why.", body = schema::Extraction))
)]
async fn extract_facts(
    Writer(scope): Writer,
    Path(id): Path<ConversationId>,
    Json(body): Json<Extract>,
) -> Result<axum::Json<Extraction>, Problem> {
    let options = ExtractOptions { from: body.from, to: body.to };
    Ok(axum::Json(blocking(move || scope.extract_facts(id, options)).await?))
}

/// Reads a fact.
#[utoipa::path(
    get, path = "/facts/{fact}", tag = "facts", params(schema::OfFact),
    responses((status = 200, description = "The fact as it is now.", body = schema::Fact))
)]
async fn get_fact(Reader(scope): Reader, Path(fact): Path<FactId>) -> Result<axum::Json<Fact>, Problem> {
    Ok(axum::Json(blocking(move || scope.fact(fact)).await?))
}

/// Where.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Where {
    /// The conversation to do it in, for a fact that a fork inherited; by default the one that it was learned in.
    #[param(value_type = Option<String>)]
    conversation: Option<ConversationId>,
}

/// The conversation that is meant.
fn home(
    scope: &Scope,
    fact: FactId,
    named: Option<ConversationId>,
) -> Result<ConversationId, everturn_core::Error> {
    named.map_or_else(|| scope.fact_home(fact), Ok)
}

/// What is to be different.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FactCorrection, example = json!({"object": "aisle seats", "by": "ana"}))]
struct Correct {
    /// About whom or what.
    subject: Option<String>,
    /// What is said of it.
    predicate: Option<String>,
    /// What it is said to be.
    object: Option<String>,
    /// How sure, from 0 to 1; certain by default.
    confidence: Option<f64>,
    /// Who corrects it.
    by: Option<String>,
}

/// Corrects a fact: a new one takes its place, the old one stays readable.
#[utoipa::path(
    patch, path = "/facts/{fact}", tag = "facts", params(schema::OfFact, Where), request_body = Correct,
    responses((status = 200, description = "The fact that takes its place.", body = schema::Fact))
)]
async fn correct_fact(
    Writer(scope): Writer,
    Path(fact): Path<FactId>,
    Query(at): Query<Where>,
    Json(body): Json<Correct>,
) -> Result<axum::Json<Fact>, Problem> {
    let Correct { subject, predicate, object, confidence, by } = body;
    let correction = Correction { subject, predicate, object, confidence, by };
    let correct = move || scope.correct_fact(home(&scope, fact, at.conversation)?, fact, correction);
    Ok(axum::Json(blocking(correct).await?))
}

/// Where, by whom and why.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Retract {
    /// The conversation to do it in, for a fact that a fork inherited; by default the one that it was learned in.
    #[param(value_type = Option<String>)]
    conversation: Option<ConversationId>,
    /// Who takes it back.
    by: Option<String>,
    /// Why.
    reason: Option<String>,
}

/// Takes a fact back. It stays readable for whoever asks for those too; erasing its turns removes its words.
#[utoipa::path(
    delete, path = "/facts/{fact}", tag = "facts", params(schema::OfFact, Retract),
    responses((status = 200, description = "The fact, retracted.", body = schema::Fact))
)]
async fn retract_fact(
    Writer(scope): Writer,
    Path(fact): Path<FactId>,
    Query(asked): Query<Retract>,
) -> Result<axum::Json<Fact>, Problem> {
    let retract = move || {
        let id = home(&scope, fact, asked.conversation)?;
        scope.retract_fact(id, fact, asked.by, asked.reason)
    };
    Ok(axum::Json(blocking(retract).await?))
}
