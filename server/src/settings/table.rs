//! All settings. docs/serve.md explains each; a test compares.

use super::wrong;
use everturn_core::Error;
use everturn_core::id::clip;
use toml::Value;

/// A setting.
pub struct Setting {
    /// Its dotted name; `*` stands for any name.
    pub key: &'static str,
    /// Type of its value.
    pub value_type: ValueType,
    /// Default value; empty for none.
    pub default: &'static str,
    /// Another environment variable, used if ours is not set.
    pub fallback_variable: Option<&'static str>,
}

/// Type of a setting's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// A text.
    Text,
    /// A non-negative whole number.
    Number,
    /// `true` or `false`.
    Flag,
    /// Texts; separated by commas in the environment.
    List,
}

const fn setting(key: &'static str, value_type: ValueType, default: &'static str) -> Setting {
    Setting { key, value_type, default, fallback_variable: None }
}

use ValueType::{Flag, List, Number, Text};

/// Every setting, in the order of the documentation.
pub const SETTINGS: &[Setting] = &[
    setting("listen", Text, "127.0.0.1:7317"),
    setting("store", Text, "sqlite:"),
    setting("read_only", Flag, "false"),
    setting("mirror", Text, ""),
    setting("body_bytes_max", Number, "16842752"),
    setting("asset_bytes_max", Number, "67108864"),
    setting("import_bytes_max", Number, "4294967296"),
    setting("heartbeat_s", Number, "15"),
    setting("shutdown_s", Number, "10"),
    setting("log_content", Flag, "false"),
    setting("behind_tls_proxy", Flag, "false"),
    setting("tls.cert", Text, ""),
    setting("tls.key", Text, ""),
    setting("keys.required", Flag, ""),
    setting("jwt.algorithm", Text, ""),
    setting("jwt.secret_env", Text, ""),
    setting("jwt.jwks_file", Text, ""),
    setting("jwt.jwks_url", Text, ""),
    setting("jwt.refresh_s", Number, "300"),
    setting("jwt.issuer", Text, ""),
    setting("jwt.audience", Text, ""),
    setting("jwt.tenant_claim", Text, "tenant"),
    setting("jwt.role_claim", Text, "role"),
    setting("jwt.actors_claim", Text, "actors"),
    setting("limits.requests_per_second", Number, "200"),
    setting("limits.burst", Number, "400"),
    setting("limits.concurrent", Number, "256"),
    setting("limits.failures_per_minute", Number, "30"),
    setting("limits.tenant_requests_per_second", Number, "1000"),
    setting("limits.tenant_burst", Number, "2000"),
    setting("limits.tenant_concurrent", Number, "512"),
    setting("limits.tenant_threads", Number, ""),
    setting("limits.tenant_large_operations", Number, "2"),
    setting("limits.large_operations", Number, "16"),
    setting("limits.tenant_body_bytes", Number, "33554432"),
    setting("limits.tenant_unsent_bytes", Number, "67108864"),
    setting("limits.unsent_bytes", Number, "134217728"),
    setting("limits.whole_bytes", Number, "16777216"),
    setting("limits.wait_s", Number, "10"),
    setting("limits.connections_per_address", Number, "12288"),
    setting("limits.connections", Number, "16384"),
    setting("limits.header_timeout_s", Number, "10"),
    setting("limits.body_timeout_s", Number, "30"),
    setting("limits.idle_timeout_s", Number, "120"),
    setting("quotas.turns", Number, ""),
    setting("quotas.bytes", Number, ""),
    setting("quotas.assets", Number, ""),
    setting("quotas.asset_bytes", Number, ""),
    setting("quotas.keys", Number, ""),
    setting("quotas.tenants.*.turns", Number, ""),
    setting("quotas.tenants.*.bytes", Number, ""),
    setting("quotas.tenants.*.assets", Number, ""),
    setting("quotas.tenants.*.asset_bytes", Number, ""),
    setting("quotas.tenants.*.keys", Number, ""),
    setting("prices", List, ""),
    setting("cors.origins", List, ""),
    setting("mcp.record", Text, ""),
    setting("mcp.session_idle_s", Number, "1800"),
    setting("telemetry.log", Text, "info"),
    setting("telemetry.log_format", Text, "auto"),
    Setting {
        key: "telemetry.otlp_endpoint",
        value_type: Text,
        default: "",
        fallback_variable: Some("OTEL_EXPORTER_OTLP_ENDPOINT"),
    },
    Setting {
        key: "telemetry.service_name",
        value_type: Text,
        default: "everturn",
        fallback_variable: Some("OTEL_SERVICE_NAME"),
    },
    setting("models.*.kind", Text, ""),
    setting("models.*.base_url", Text, ""),
    setting("models.*.model", Text, ""),
    setting("models.*.api_key_env", Text, ""),
    setting("models.*.context_tokens", Number, ""),
    setting("embedders.*.base_url", Text, ""),
    setting("embedders.*.model", Text, ""),
    setting("embedders.*.api_key_env", Text, ""),
    setting("recall.embedder", Text, "builtin"),
    setting("recall.rerank", Text, "none"),
    setting("summarizers.*", Text, ""),
];

impl Setting {
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
        match self.value_type {
            ValueType::Text => Ok(Value::String(text.into())),
            ValueType::Number => text
                .parse::<i64>()
                .ok()
                .filter(|number| *number >= 0)
                .map(Value::Integer)
                .ok_or_else(|| wrong(self.key, place, &format!("{:?} is not a whole number", clip(text)))),
            ValueType::Flag => match text {
                "true" | "1" | "yes" | "on" => Ok(Value::Boolean(true)),
                "false" | "0" | "no" | "off" => Ok(Value::Boolean(false)),
                _ => Err(wrong(self.key, place, &format!("{:?} is neither true nor false", clip(text)))),
            },
            ValueType::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(Value::Array(items.map(|item| Value::String(item.into())).collect()))
            }
        }
    }

    /// Refuses a value of another type.
    pub(super) fn check(&self, value: &Value, key: &str, place: &str) -> Result<(), Error> {
        let (fits, wanted) = match self.value_type {
            ValueType::Text => (value.is_str(), "a text in quotes"),
            ValueType::Number => {
                let number = value.as_integer().is_some_and(|n| n >= 0);
                (number, "a non-negative whole number")
            }
            ValueType::Flag => (value.is_bool(), "true or false"),
            ValueType::List => {
                let texts = |items: &Vec<Value>| items.iter().all(Value::is_str);
                (value.as_array().is_some_and(texts), "a list of texts in quotes")
            }
        };
        if fits { Ok(()) } else { Err(wrong(key, place, &format!("must be {wanted}"))) }
    }
}

/// The setting with this name.
pub(super) fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.matches(key))
}

/// The error for an unknown setting, with the most similar name.
pub(super) fn unknown(key: &str, place: &str) -> Error {
    // A name inside a table of names is the user's own, so it is copied before comparing.
    let candidate = |setting: &Setting| {
        let theirs: Vec<&str> = key.split('.').collect();
        let parts = setting.key.split('.').enumerate();
        let parts = parts
            .map(|(at, part)| if part == "*" { theirs.get(at).copied().unwrap_or("NAME") } else { part });
        parts.collect::<Vec<_>>().join(".")
    };
    let nearest = SETTINGS.iter().map(candidate).min_by_key(|name| strsim::damerau_levenshtein(name, key));
    let nearest = nearest.unwrap_or_default();
    let text = format!("{place}: there is no setting {:?}; did you mean {nearest:?}?", clip(key));
    Error::invalid("config.unknown", text)
}
