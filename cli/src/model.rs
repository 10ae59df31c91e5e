//! The model named on the command line.

use crate::args::{Args, Model, ModelApi};
use crate::client::Client;
use crate::open;
use crate::output::Failure;
use clap::parser::ValueSource;
use everturn_core::Error;
use everturn_core::error::code;
use everturn_engine::Options;
use everturn_engine::model::Protocol;
use everturn_server::socket::RequestedModel;

/// The tenant's client, in which the model named on the command line is the default; the options are for a local store. A
/// server has its own models: the URL of another one is refused with this text.
pub fn open(args: &Args, options: Options, model: &Model, servers_own: &str) -> Result<Client, Failure> {
    if open::server(args)?.is_some() {
        if args.sources.base_url == Some(ValueSource::CommandLine) {
            return Err(Error::invalid("url.model", format!("{servers_own}; leave --base-url out")).into());
        }
        return open::with(args, options);
    }
    open::asking(args, options, asked(model)?).map_err(|failure| match failure {
        Failure::Error(error) if error.is(code::MODEL_UNKNOWN) => {
            let advice = "describe it under [models.NAME] in the configuration, or pass --base-url";
            error.reworded(|text| format!("{text}; {advice}")).into()
        }
        Failure::Error(error) if error.is(code::MODEL_NONE) => {
            error.reworded(|text| format!("{text}, or pass --base-url")).into()
        }
        other => other,
    })
}

fn asked(model: &Model) -> Result<Option<RequestedModel>, Error> {
    let Some(base_url) = model.base_url.clone() else {
        return Ok(model.model.clone().map(RequestedModel::Named));
    };
    let kind = match model.speaks {
        ModelApi::OpenaiChat => Protocol::OpenaiChat,
        ModelApi::OpenaiResponses => Protocol::OpenaiResponses,
        ModelApi::Anthropic => Protocol::Anthropic,
    };
    let key = |name: &String| {
        let unset = format!("the environment variable {name} is not set; export it first");
        open::environment(name).ok_or_else(|| Error::invalid("model.no_key", unset))
    };
    let api_key = model.api_key_env.as_ref().map(key).transpose()?;
    Ok(Some(RequestedModel::At { kind, base_url, model: model.model.clone().unwrap_or_default(), api_key }))
}
