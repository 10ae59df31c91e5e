//! The model named on the command line.

use crate::args::{Args, Model, Speaks};
use crate::client::Client;
use crate::open;
use clap::parser::ValueSource;
use everturn::Options;
use everturn::model::{Configured, Endpoint, Generate, HttpModel, Kind, Secret, Summarizer};
use everturn_core::Error;
use everturn_core::error::code;
use everturn_core::id::clip;
use std::sync::Arc;

/// Options of a local store, in which the model named on the command line is the default. A server has its own
/// models: naming another one is refused with this text.
pub fn options(args: &Args, model: &Model, servers_own: &str) -> Result<Options, Error> {
    let mut options = open::options(args)?;
    if open::server(args)?.is_some() {
        if args.sources.base_url == Some(ValueSource::CommandLine) {
            return Err(Error::invalid("url.model", format!("{servers_own}; leave --base-url out")));
        }
        return Ok(options);
    }
    let named = match (client(model)?, &model.model) {
        (Some(client), _) => Configured::new(client),
        (None, Some(name)) => match options.models.get(name) {
            Some(named) => named.clone(),
            // The process that owns the store may know it.
            None => return Ok(options),
        },
        (None, None) => return Ok(options),
    };
    options.summarizers.insert("default".into(), Arc::new(Summarizer::new(named.client.clone())));
    options.models.insert("default".into(), named);
    Ok(options)
}

/// Refuses a model named by its URL if another process owns the store, since that one has its own models; and a name that
/// is not configured, if none does.
pub fn check(args: &Args, store: &Client, model: &Model) -> Result<(), Error> {
    match store {
        Client::Local(_) if model.base_url.is_none() => match &model.model {
            Some(name) if !open::options(args)?.models.contains_key(name) => {
                let text = format!(
                    "there is no model {:?}; describe it under [models.NAME] in the configuration, or say --base-url",
                    clip(name)
                );
                Err(Error::invalid("model.absent", text))
            }
            _ => Ok(()),
        },
        Client::Owner(owner) if args.sources.base_url == Some(ValueSource::CommandLine) => {
            let owned = owner.owned.0.text();
            let owned = owned.split_once(';').map_or(owned, |(owned, _)| owned);
            let text = format!(
                "{owned}, which asks its own models; leave --base-url out, or describe this model under [models.NAME] in the \
                 configuration, start that process again and pass --model NAME"
            );
            Err(Error::busy(code::STORE_OWNED, text))
        }
        _ => Ok(()),
    }
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
        let key = open::environment(name).ok_or_else(|| {
            Error::invalid(
                "model.no_key",
                format!("the environment variable {name} is not set; export it first"),
            )
        })?;
        endpoint.api_key = Some(Secret::new(key));
    }
    Ok(Some(Arc::new(HttpModel::new(endpoint)?)))
}
