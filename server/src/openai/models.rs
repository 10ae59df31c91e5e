//! Models: listing them, and finding the one of a request.

use super::error::RequestError;
use crate::access::Reader;
use crate::app::App;
use crate::json::Path;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use everturn_core::id::clip;
use everturn_engine::Tenant;
use everturn_engine::model::{Configured, Provider};
use serde_json::{Value, json};
use std::sync::Arc;

/// `/v1/models`.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/models", get(list)).route("/v1/models/{*id}", get(retrieve))
}

/// The model of a request.
pub struct SelectedModel {
    /// Its name in the request.
    pub asked: String,
    pub name: String,
    /// The model to request from its provider, if different from the configured one.
    pub served: Option<String>,
    pub configured: Configured,
}

impl SelectedModel {
    /// Its provider, which determines the message shape.
    pub fn provider(&self) -> Provider {
        self.configured.client.provider()
    }

    /// Its name at the provider.
    pub fn served_name(&self) -> &str {
        self.served.as_deref().unwrap_or_else(|| self.configured.client.model())
    }
}

/// Finds a model by its configured name, by its name at the provider, or as `name/model` for any model of that
/// provider.
pub fn find(tenant: &Tenant, asked: Option<String>) -> Result<SelectedModel, RequestError> {
    let models = tenant.generations().models();
    let Some(asked) = asked else {
        let configured = tenant.generations().model(None).map_err(RequestError::at("model"))?;
        let same = |(name, _): &&(String, String)| models.len() == 1 || name == "default";
        let name = models.iter().find(same).map(|(name, _)| name.clone()).unwrap_or_default();
        return Ok(SelectedModel { asked: name.clone(), name, served: None, configured });
    };
    let by_name = models.iter().find(|(name, _)| *name == asked);
    let by_served = || models.iter().find(|(_, served)| *served == asked);
    let (name, served) = match by_name.or_else(by_served) {
        Some((name, _)) => (name.clone(), None),
        None => match asked.split_once('/').filter(|(name, _)| models.iter().any(|(known, _)| known == name))
        {
            Some((name, served)) if !served.is_empty() => (name.to_string(), Some(served.to_string())),
            _ => return Err(unknown(&asked)),
        },
    };
    let configured = tenant.generations().model(Some(&name)).map_err(RequestError::at("model"))?;
    Ok(SelectedModel { asked, name, served, configured })
}

/// The error for an unknown model.
pub fn unknown(asked: &str) -> RequestError {
    RequestError::absent(
        "model_not_found",
        format!(
            "the model {:?} is not configured here; GET /v1/models lists those that are, and NAME/MODEL requests another model from the server of NAME",
            clip(asked)
        ),
    )
}

fn object(id: &str) -> Value {
    json!({"id": id, "object": "model", "created": 0, "owned_by": "everturn"})
}

async fn list(State(app): State<Arc<App>>, Reader(tenant): Reader) -> Json<Value> {
    let models = tenant.generations().models();
    let mut ids: Vec<&str> = models.iter().map(|(name, _)| name.as_str()).collect();
    ids.extend(models.iter().map(|(_, served)| served.as_str()));
    ids.extend(app.embedders.iter().flat_map(|(name, embedder)| [name.as_str(), embedder.model()]));
    let mut seen = Vec::new();
    ids.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    let data: Vec<Value> = ids.into_iter().map(object).collect();
    Json(json!({"object": "list", "data": data}))
}

async fn retrieve(
    State(app): State<Arc<App>>,
    Reader(tenant): Reader,
    Path(id): Path<String>,
) -> Result<Json<Value>, RequestError> {
    let embeds = app.embedders.iter().any(|(name, embedder)| *name == id || embedder.model() == id);
    if !embeds {
        find(&tenant, Some(id.clone()))?;
    }
    Ok(Json(object(&id)))
}
