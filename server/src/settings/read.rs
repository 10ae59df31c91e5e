//! Converting settings to configuration.

use super::{Settings, wrong};
use crate::config::{Config, Hidden, Jwt, JwtKeys, Limits, Tls};
use crate::telemetry::Telemetry;
use everturn_core::Error;
use everturn_engine::model::{
    Configured, Embed, Embedder, Embedding, Endpoint, HttpEmbedder, HttpModel, ModelSummarizer, Protocol,
    Secret, Summarizer,
};
use everturn_engine::{Options, Price, Quota, Quotas};
use jsonwebtoken::Algorithm;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Looks up an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Opens an embedder: [`Embedder::open`], or with another number of threads.
pub type OpenEmbedder = fn(Embedder) -> Result<Arc<dyn Embed>, Error>;

fn secret(environment: Environment<'_>, variable: &str) -> Option<String> {
    environment(variable).filter(|secret| !secret.is_empty())
}

impl Settings {
    fn wrong(&self, key: &str, why: &str) -> Error {
        let place = self.origin(key).map(ToString::to_string).unwrap_or_else(|| "not set".into());
        wrong(key, &place, why)
    }

    /// Options for opening the store, the same for a server and every other command: quotas, mirror, models and
    /// summarizers. Embedders are separate, since opening one may read a large file.
    pub fn options(&self, environment: Environment<'_>) -> Result<Options, Error> {
        let models = self.models(environment)?;
        Ok(Options {
            mirror: self.text("mirror").map(PathBuf::from),
            quotas: self.quotas(),
            prices: self.prices()?,
            summarizers: self.summarizers(&models)?,
            models,
            ..Options::default()
        })
    }

    /// Checks that all settings are valid together, and that every model has its key.
    pub fn check(&self, environment: Environment<'_>) -> Result<(), Error> {
        self.config(environment)?;
        self.telemetry()?;
        self.options(environment)?;
        self.embedder(environment, Embedder::open)?;
        self.reranker(environment, Embedder::open)?;
        self.check_model_keys(environment)
    }

    /// Returns an error if the variable of a model's key is not set. A command that needs no model runs without.
    pub fn check_model_keys(&self, environment: Environment<'_>) -> Result<(), Error> {
        let variables = self.values.keys().filter(|key| key.ends_with(".api_key_env"));
        for (key, variable) in variables.filter_map(|key| Some((key, self.text(key)?))) {
            if secret(environment, variable).is_none() {
                let why = format!("the variable {variable} is not set; export it first");
                return Err(self.wrong(key, &why));
            }
        }
        Ok(())
    }

    /// Configuration of the server.
    pub fn config(&self, environment: Environment<'_>) -> Result<Config, Error> {
        let path = |key| self.text(key).map(PathBuf::from);
        let tls = match (path("tls.cert"), path("tls.key")) {
            (Some(cert), Some(key)) => Some(Tls { cert, key }),
            (None, None) => None,
            (Some(_), None) => return Err(self.wrong("tls.key", "a certificate needs its key; set both")),
            (None, Some(_)) => return Err(self.wrong("tls.cert", "a key needs its certificate; set both")),
        };
        let jwt = self.jwt(environment)?;
        if jwt.is_some() && self.flag("keys.required") == Some(false) {
            return Err(self.wrong("keys.required", "must not be false while jwt is configured"));
        }
        let cors_origins = self.list("cors.origins");
        for origin in &cors_origins {
            let plain = origin.split_once("://").is_some_and(|(scheme, host)| {
                matches!(scheme, "http" | "https") && !host.is_empty() && !host.contains('/')
            });
            if !plain {
                let why = format!("{origin:?} is not an origin; write one as https://app.example.com");
                return Err(self.wrong("cors.origins", &why));
            }
        }
        Ok(Config {
            listen: self.listen()?,
            body_bytes_max: self.at_least_one("body_bytes_max")? as usize,
            asset_bytes_max: self.at_least_one("asset_bytes_max")? as usize,
            import_bytes_max: self.number("import_bytes_max").unwrap_or(u64::MAX),
            heartbeat: Duration::from_secs(self.at_least_one("heartbeat_s")?.into()),
            shutdown: Duration::from_secs(self.number("shutdown_s").unwrap_or(10)),
            tls,
            behind_tls_proxy: self.flag("behind_tls_proxy").unwrap_or(false),
            keys_required: self.flag("keys.required"),
            jwt,
            limits: self.limits()?,
            cors_origins,
            log_content: self.flag("log_content").unwrap_or(false),
            mcp_record: self.text("mcp.record").map(Into::into),
            mcp_session_idle: Duration::from_secs(self.at_least_one("mcp.session_idle_s")?.into()),
            #[cfg(feature = "mcp-fixtures")]
            mcp_fixtures: false,
        })
    }

    /// Prices of models, each written as `MODEL PROMPT COMPLETION`.
    fn prices(&self) -> Result<Vec<Price>, Error> {
        let price = |text: &String| {
            let mut parts = text.split_whitespace();
            let model = parts.next()?.to_string();
            let mut number = || parts.next()?.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
            let (prompt, completion) = (number()?, number()?);
            parts.next().is_none().then_some(Price { model, prompt, completion })
        };
        let read = |text: &String| {
            price(text).ok_or_else(|| {
                let why = format!(
                    "{text:?} is not a price; write the model, the price of a million tokens of prompts, and that of completions: \
                     \"gpt-4.1 2.00 8.00\""
                );
                self.wrong("prices", &why)
            })
        };
        self.list("prices").iter().map(read).collect()
    }

    /// Quotas of tenants.
    fn quotas(&self) -> Quotas {
        let read = |prefix: &str| {
            let number = |name: &str| self.number(&format!("{prefix}.{name}"));
            Quota {
                turns: number("turns"),
                bytes: number("bytes"),
                assets: number("assets"),
                asset_bytes: number("asset_bytes"),
                keys: number("keys"),
            }
        };
        let default = read("quotas");
        let tenant = |name: String| {
            let own = read(&format!("quotas.tenants.{name}"));
            let quota = Quota {
                turns: own.turns.or(default.turns),
                bytes: own.bytes.or(default.bytes),
                assets: own.assets.or(default.assets),
                asset_bytes: own.asset_bytes.or(default.asset_bytes),
                keys: own.keys.or(default.keys),
            };
            (name, quota)
        };
        Quotas { default, tenants: self.names("quotas.tenants").into_iter().map(tenant).collect() }
    }

    fn limits(&self) -> Result<Limits, Error> {
        let number = |name: &str| self.at_least_one(&format!("limits.{name}"));
        let size = |name: &str| number(name).map(|number| number as usize);
        let seconds = |name: &str| number(name).map(|number| Duration::from_secs(number.into()));
        let limits = Limits {
            requests_per_second: number("requests_per_second")?,
            burst: number("burst")?,
            concurrent: size("concurrent")?,
            failures_per_minute: number("failures_per_minute")?,
            tenant_requests_per_second: number("tenant_requests_per_second")?,
            tenant_burst: number("tenant_burst")?,
            tenant_concurrent: size("tenant_concurrent")?,
            tenant_threads: match self.number("limits.tenant_threads") {
                Some(_) => size("tenant_threads")?,
                None => Limits::default().tenant_threads,
            },
            tenant_large_operations: size("tenant_large_operations")?,
            large_operations: size("large_operations")?,
            tenant_body_bytes: size("tenant_body_bytes")?,
            tenant_unsent_bytes: size("tenant_unsent_bytes")?,
            unsent_bytes: size("unsent_bytes")?,
            whole_bytes: size("whole_bytes")?,
            wait: seconds("wait_s")?,
            connections_per_address: size("connections_per_address")?,
            connections: size("connections")?,
            header_timeout: seconds("header_timeout_s")?,
            body_timeout: seconds("body_timeout_s")?,
            idle_timeout: seconds("idle_timeout_s")?,
        };
        let body = self.at_least_one("body_bytes_max")? as usize;
        if limits.tenant_body_bytes < body {
            let why = format!("must be at least body_bytes_max, which is {body}");
            return Err(self.wrong("limits.tenant_body_bytes", &why));
        }
        Ok(limits)
    }

    fn listen(&self) -> Result<SocketAddr, Error> {
        let text = self.text("listen").unwrap_or_default();
        let address = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        address.as_deref().unwrap_or(text).parse().map_err(|_| {
            self.wrong("listen", "must be an address and a port, such as 127.0.0.1:7317 or [::1]:7317")
        })
    }

    fn at_least_one(&self, key: &str) -> Result<u32, Error> {
        let number = self.number(key).and_then(|number| u32::try_from(number).ok());
        number.filter(|number| *number > 0).ok_or_else(|| self.wrong(key, "must be from 1 to 4294967295"))
    }

    fn jwt(&self, environment: Environment<'_>) -> Result<Option<Jwt>, Error> {
        let sources = ["jwt.secret_env", "jwt.jwks_file", "jwt.jwks_url"];
        let given: Vec<&str> = sources.into_iter().filter(|key| self.text(key).is_some()).collect();
        let Some(name) = self.text("jwt.algorithm") else {
            return match given.first() {
                Some(key) => Err(self.wrong(key, "also say how tokens are signed, with jwt.algorithm")),
                None => Ok(None),
            };
        };
        let algorithm = match name {
            "HS256" => Algorithm::HS256,
            "RS256" => Algorithm::RS256,
            "ES256" => Algorithm::ES256,
            _ => return Err(self.wrong("jwt.algorithm", "must be HS256, RS256 or ES256")),
        };
        let text = |key: &str| self.text(key).unwrap_or_default().to_string();
        let keys = match given.as_slice() {
            ["jwt.secret_env"] if algorithm == Algorithm::HS256 => {
                let variable = text("jwt.secret_env");
                let secret = environment(&variable).unwrap_or_default();
                if secret.len() < 32 {
                    let why = format!("the variable {variable} must hold 32 characters or more");
                    return Err(self.wrong("jwt.secret_env", &why));
                }
                JwtKeys::Secret(Hidden(secret))
            }
            ["jwt.jwks_file"] if algorithm != Algorithm::HS256 => JwtKeys::File(text("jwt.jwks_file").into()),
            ["jwt.jwks_url"] if algorithm != Algorithm::HS256 => JwtKeys::Url(text("jwt.jwks_url")),
            _ => {
                let why = "HS256 needs jwt.secret_env; RS256 and ES256 need jwt.jwks_file or jwt.jwks_url; one of them only";
                return Err(self.wrong("jwt.algorithm", why));
            }
        };
        Ok(Some(Jwt {
            algorithm,
            keys,
            refresh: Duration::from_secs(self.at_least_one("jwt.refresh_s")?.into()),
            issuer: self.text("jwt.issuer").map(str::to_string),
            audience: self.text("jwt.audience").map(str::to_string),
            tenant_claim: text("jwt.tenant_claim"),
            role_claim: text("jwt.role_claim"),
            actors_claim: text("jwt.actors_claim"),
        }))
    }

    /// Configuration of logs and traces.
    pub fn telemetry(&self) -> Result<Telemetry, Error> {
        let json = match self.text("telemetry.log_format") {
            None | Some("auto") => None,
            Some("pretty") => Some(false),
            Some("json") => Some(true),
            Some(_) => return Err(self.wrong("telemetry.log_format", "must be auto, pretty or json")),
        };
        Ok(Telemetry {
            log: self.text("telemetry.log").unwrap_or("info").to_string(),
            json,
            otlp_endpoint: self.text("telemetry.otlp_endpoint").map(str::to_string),
            service_name: self.text("telemetry.service_name").unwrap_or("everturn").to_string(),
        })
    }

    /// The endpoint of a model in a table, by name.
    fn endpoint(&self, table: &str, name: &str, environment: Environment<'_>) -> Result<Endpoint, Error> {
        let key = |field: &str| format!("{table}.{name}.{field}");
        let needed = |field: &str| {
            self.text(&key(field)).ok_or_else(|| self.wrong(&key(field), "every model needs it"))
        };
        let kind = match self.text(&key("kind")).unwrap_or("openai-chat") {
            "openai-chat" => Protocol::OpenaiChat,
            "openai-responses" => Protocol::OpenaiResponses,
            "anthropic" => Protocol::Anthropic,
            _ => {
                let why = "must be openai-chat, openai-responses or anthropic";
                return Err(self.wrong(&key("kind"), why));
            }
        };
        let mut endpoint = Endpoint::new(kind, needed("base_url")?, needed("model")?);
        if let Some(variable) = self.text(&key("api_key_env")) {
            endpoint.api_key =
                Some(secret(environment, variable).map_or_else(|| Secret::unset(variable), Secret::new));
        }
        Ok(endpoint)
    }

    /// The models, by name.
    fn models(&self, environment: Environment<'_>) -> Result<BTreeMap<String, Configured>, Error> {
        let mut models = BTreeMap::new();
        for name in self.names("models") {
            let endpoint = self.endpoint("models", &name, environment)?;
            let mut model = Configured::new(Arc::new(HttpModel::new(endpoint)?));
            let key = format!("models.{name}.context_tokens");
            if self.number(&key).is_some() {
                model.context_tokens = self.at_least_one(&key)?.into();
            }
            models.insert(name, model);
        }
        Ok(models)
    }

    /// Embedding models, by name.
    pub fn embedders(&self, environment: Environment<'_>) -> Result<BTreeMap<String, Arc<dyn Embed>>, Error> {
        let mut embedders: BTreeMap<String, Arc<dyn Embed>> = BTreeMap::new();
        for name in self.names("embedders") {
            let endpoint = self.endpoint("embedders", &name, environment)?;
            embedders.insert(name, Arc::new(HttpEmbedder::new(endpoint, Embedding::default())?));
        }
        Ok(embedders)
    }

    /// Embedding model of recall, opened with `open`. Without one, recall is lexical.
    pub fn embedder(
        &self,
        environment: Environment<'_>,
        open: OpenEmbedder,
    ) -> Result<Option<Arc<dyn Embed>>, Error> {
        self.embedder_of("recall.embedder", environment, open)
    }

    /// Model that reranks the best results of recall, if configured.
    pub fn reranker(
        &self,
        environment: Environment<'_>,
        open: OpenEmbedder,
    ) -> Result<Option<Arc<dyn Embed>>, Error> {
        self.embedder_of("recall.rerank", environment, open)
    }

    fn embedder_of(
        &self,
        key: &str,
        environment: Environment<'_>,
        open: OpenEmbedder,
    ) -> Result<Option<Arc<dyn Embed>>, Error> {
        let name = self.text(key).unwrap_or("none");
        if name == "none" {
            return Ok(None);
        }
        let embedder = if self.names("embedders").iter().any(|known| known == name) {
            let endpoint = self.endpoint("embedders", name, environment)?;
            Embedder::Endpoint(Box::new(endpoint), Embedding::default())
        } else {
            name.parse().map_err(|_| {
                self.wrong(
                    key,
                    "must be builtin, none, folder:PATH, or a name that is described under [embedders]",
                )
            })?
        };
        open(embedder).map(Some)
    }

    /// Models that write summaries, by name.
    fn summarizers(
        &self,
        models: &BTreeMap<String, Configured>,
    ) -> Result<BTreeMap<String, Arc<dyn Summarizer>>, Error> {
        let mut summarizers: BTreeMap<String, Arc<dyn Summarizer>> = BTreeMap::new();
        for name in self.names("summarizers") {
            let key = format!("summarizers.{name}");
            let model = self.text(&key).unwrap_or_default();
            let model = models.get(model).ok_or_else(|| {
                self.wrong(&key, &format!("there is no model {model:?}; describe it under [models.{model}]"))
            })?;
            summarizers.insert(name, Arc::new(ModelSummarizer::new(model.client.clone())));
        }
        Ok(summarizers)
    }
}
