//! The model named on the command line.

use crate::args::{Args, Model, Speaks};
use crate::open;
use clap::parser::ValueSource;
use everturn::model::{Configured, Endpoint, Generate, HttpModel, Kind, Secret, Summarize, Summarizer};
use everturn_core::Error;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The summarizer for a local store; none if no model was named. A server has its own: naming another one is
/// refused with this text.
pub fn summarizers(
    args: &Args,
    model: &Model,
    servers_own: &str,
) -> Result<BTreeMap<String, Arc<dyn Summarize>>, Error> {
    let mut summarizers = BTreeMap::new();
    if open::server(args)?.is_some() {
        if args.sources.base_url == Some(ValueSource::CommandLine) {
            return Err(Error::invalid("url.model", format!("{servers_own}; leave --base-url out")));
        }
    } else if let Some(client) = client(model)? {
        summarizers.insert("default".to_string(), Arc::new(Summarizer::new(client)) as _);
    }
    Ok(summarizers)
}

/// The model for generations, under the name that a store uses.
pub fn models(args: &Args, model: &Model, servers_own: &str) -> Result<BTreeMap<String, Configured>, Error> {
    if open::server(args)?.is_some() {
        if args.sources.base_url == Some(ValueSource::CommandLine) {
            return Err(Error::invalid("url.model", format!("{servers_own}; leave --base-url out")));
        }
        return Ok(BTreeMap::new());
    }
    let client = client(model)?.ok_or_else(|| {
        let text = "no model is named; say --base-url and --model (or EVERTURN_MODEL_URL and EVERTURN_MODEL)";
        Error::invalid("model.absent", text)
    })?;
    Ok(BTreeMap::from([("default".to_string(), Configured::new(client))]))
}

fn client(model: &Model) -> Result<Option<Arc<dyn Generate>>, Error> {
    let Some(url) = &model.base_url else { return Ok(None) };
    let kind = match model.speaks {
        Speaks::OpenaiChat => Kind::OpenaiChat,
        Speaks::OpenaiResponses => Kind::OpenaiResponses,
        Speaks::Anthropic => Kind::Anthropic,
    };
    let mut endpoint = Endpoint::new(kind, url, model.model.clone().unwrap_or_default());
    if let Some(name) = &model.api_key_env {
        let key = std::env::var(name).map_err(|_| {
            Error::invalid(
                "model.no_key",
                format!("the environment variable {name} is not set; export it first"),
            )
        })?;
        endpoint.api_key = Some(Secret::new(key));
    }
    Ok(Some(Arc::new(HttpModel::new(endpoint)?)))
}
