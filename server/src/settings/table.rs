//! All settings. docs/serve.md explains each; a test compares.

use super::wrong;
use everturn_core::Error;
use everturn_core::id::clip;
use toml::Value;

/// A setting.
pub struct Known {
    /// Its dotted name; `*` stands for any name.
    pub key: &'static str,
    /// Type of its value.
    pub shape: Shape,
    /// Default value; empty for none.
    pub default: &'static str,
    /// Another environment variable, which ours takes precedence over.
    pub also: Option<&'static str>,
}

/// Type of a setting's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A text.
    Text,
    /// A non-negative whole number.
    Number,
    /// `true` or `false`.
    Flag,
    /// Texts; separated by commas in the environment.
    List,
}

const fn known(key: &'static str, shape: Shape, default: &'static str) -> Known {
    Known { key, shape, default, also: None }
}

use Shape::{Flag, List, Number, Text};

/// Every setting, in the order of the documentation.
pub const KNOWN: &[Known] = &[
    known("listen", Text, "127.0.0.1:7317"),
    known("store", Text, "sqlite:"),
    known("read_only", Flag, "false"),
    known("mirror", Text, ""),
    known("body_bytes_max", Number, "16842752"),
    known("asset_bytes_max", Number, "67108864"),
    known("import_bytes_max", Number, "4294967296"),
    known("heartbeat_s", Number, "15"),
    known("shutdown_s", Number, "10"),
    known("log_content", Flag, "false"),
    known("behind_tls_proxy", Flag, "false"),
    known("tls.cert", Text, ""),
    known("tls.key", Text, ""),
    known("keys.required", Flag, ""),
    known("jwt.algorithm", Text, ""),
    known("jwt.secret_env", Text, ""),
    known("jwt.jwks_file", Text, ""),
    known("jwt.jwks_url", Text, ""),
    known("jwt.refresh_s", Number, "300"),
    known("jwt.issuer", Text, ""),
    known("jwt.audience", Text, ""),
    known("jwt.tenant_claim", Text, "tenant"),
    known("jwt.role_claim", Text, "role"),
    known("jwt.actors_claim", Text, "actors"),
    known("limits.requests_per_second", Number, "200"),
    known("limits.burst", Number, "400"),
    known("limits.concurrent", Number, "256"),
    known("limits.failures_per_minute", Number, "30"),
    known("limits.tenant_requests_per_second", Number, "1000"),
    known("limits.tenant_burst", Number, "2000"),
    known("limits.tenant_concurrent", Number, "512"),
    known("limits.tenant_threads", Number, ""),
    known("limits.tenant_large_operations", Number, "2"),
    known("limits.large_operations", Number, "16"),
    known("limits.tenant_body_bytes", Number, "33554432"),
    known("limits.tenant_unsent_bytes", Number, "67108864"),
    known("limits.unsent_bytes", Number, "134217728"),
    known("limits.whole_bytes", Number, "16777216"),
    known("limits.wait_s", Number, "10"),
    known("limits.connections_per_address", Number, "12288"),
    known("limits.connections", Number, "16384"),
    known("limits.header_timeout_s", Number, "10"),
    known("limits.body_timeout_s", Number, "30"),
    known("limits.idle_timeout_s", Number, "120"),
    known("quotas.turns", Number, ""),
    known("quotas.bytes", Number, ""),
    known("quotas.assets", Number, ""),
    known("quotas.asset_bytes", Number, ""),
    known("quotas.keys", Number, ""),
    known("quotas.tenants.*.turns", Number, ""),
    known("quotas.tenants.*.bytes", Number, ""),
    known("quotas.tenants.*.assets", Number, ""),
    known("quotas.tenants.*.asset_bytes", Number, ""),
    known("quotas.tenants.*.keys", Number, ""),
    known("prices", List, ""),
    known("cors.origins", List, ""),
    known("mcp.record", Text, ""),
    known("mcp.session_idle_s", Number, "1800"),
    known("telemetry.log", Text, "info"),
    known("telemetry.log_format", Text, "auto"),
    Known {
        key: "telemetry.otlp_endpoint",
        shape: Text,
        default: "",
        also: Some("OTEL_EXPORTER_OTLP_ENDPOINT"),
    },
    Known {
        key: "telemetry.service_name",
        shape: Text,
        default: "everturn",
        also: Some("OTEL_SERVICE_NAME"),
    },
    known("models.*.kind", Text, ""),
    known("models.*.base_url", Text, ""),
    known("models.*.model", Text, ""),
    known("models.*.api_key_env", Text, ""),
    known("models.*.context_tokens", Number, ""),
    known("embedders.*.base_url", Text, ""),
    known("embedders.*.model", Text, ""),
    known("embedders.*.api_key_env", Text, ""),
    known("recall.embedder", Text, "builtin"),
    known("recall.rerank", Text, "none"),
    known("summarizers.*", Text, ""),
];

impl Known {
    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("EVERTURN_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// Whether a dotted name matches.
    fn matches(&self, key: &str) -> bool {
        let (mut ours, mut theirs) = (self.key.split('.'), key.split('.'));
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some(our), Some(their)) if our == "*" || our == their => {}
                _ => return false,
            }
        }
    }

    /// Parses a value written as text.
    pub(super) fn parse(&self, text: &str, place: &str) -> Result<Value, Error> {
        let text = text.trim();
        match self.shape {
            Shape::Text => Ok(Value::String(text.into())),
            Shape::Number => text
                .parse::<i64>()
                .ok()
                .filter(|number| *number >= 0)
                .map(Value::Integer)
                .ok_or_else(|| wrong(self.key, place, &format!("{:?} is not a whole number", clip(text)))),
            Shape::Flag => match text {
                "true" | "1" | "yes" | "on" => Ok(Value::Boolean(true)),
                "false" | "0" | "no" | "off" => Ok(Value::Boolean(false)),
                _ => Err(wrong(self.key, place, &format!("{:?} is neither true nor false", clip(text)))),
            },
            Shape::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(Value::Array(items.map(|item| Value::String(item.into())).collect()))
            }
        }
    }

    /// Refuses a value of another type.
    pub(super) fn check(&self, value: &Value, key: &str, place: &str) -> Result<(), Error> {
        let (fits, wanted) = match self.shape {
            Shape::Text => (value.is_str(), "a text in quotes"),
            Shape::Number => {
                let number = value.as_integer().is_some_and(|n| n >= 0);
                (number, "a non-negative whole number")
            }
            Shape::Flag => (value.is_bool(), "true or false"),
            Shape::List => {
                let texts = |items: &Vec<Value>| items.iter().all(Value::is_str);
                (value.as_array().is_some_and(texts), "a list of texts in quotes")
            }
        };
        if fits { Ok(()) } else { Err(wrong(key, place, &format!("must be {wanted}"))) }
    }
}

/// The setting with this name.
pub(super) fn find(key: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.matches(key))
}

/// The error for an unknown setting, with the most similar name.
pub(super) fn unknown(key: &str, place: &str) -> Error {
    // A name inside a table of names is the user's own, so it is copied before comparing.
    let candidate = |known: &Known| {
        let theirs: Vec<&str> = key.split('.').collect();
        let parts = known.key.split('.').enumerate();
        let parts = parts
            .map(|(at, part)| if part == "*" { theirs.get(at).copied().unwrap_or("NAME") } else { part });
        parts.collect::<Vec<_>>().join(".")
    };
    let nearest = KNOWN.iter().map(candidate).min_by_key(|name| strsim::damerau_levenshtein(name, key));
    let nearest = nearest.unwrap_or_default();
    let text = format!("{place}: there is no setting {:?}; did you mean {nearest:?}?", clip(key));
    Error::invalid("config.unknown", text)
}
