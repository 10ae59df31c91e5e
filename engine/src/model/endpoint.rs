//! Address of a model, and its timeouts.

use super::Protocol;
use everturn_core::Error;
use everturn_formats::wire::MODEL_ANSWER_BYTES_MAX;
use reqwest::Url;
use std::fmt;
use std::time::Duration;

/// An API key. It is sent to the server and shown nowhere else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Result<String, Error>);

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Secret {
        Secret(Ok(key.into()))
    }

    /// A key that is missing because this environment variable is not set. The model exists, and each request to it
    /// fails with an error that says so.
    pub fn unset(variable: &str) -> Secret {
        let text = format!("the variable {variable} is not set; export it first");
        Secret(Err(Error::invalid("model.no_key", text)))
    }

    /// The key, for the header that carries it.
    pub(super) fn reveal(&self) -> Result<&str, Error> {
        self.0.as_deref().map_err(Error::clone)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[key]")
    }
}

/// A model at a server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The protocol.
    pub kind: Protocol,
    /// Address of the server: `https://api.openai.com/v1`, `https://api.anthropic.com`, `http://localhost:8080`.
    pub base_url: String,
    /// The API key, if the server requires one.
    pub api_key: Option<Secret>,
    /// The model's name at that server.
    pub model: String,
    /// Timeouts and retries.
    pub limits: Limits,
}

impl Endpoint {
    /// A model without a key, with the default limits.
    pub fn new(kind: Protocol, base_url: impl Into<String>, model: impl Into<String>) -> Endpoint {
        Endpoint {
            kind,
            base_url: base_url.into(),
            api_key: None,
            model: model.into(),
            limits: Limits::default(),
        }
    }
}

/// Timeouts and retries of requests to a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// For the connection.
    pub connect_timeout: Duration,
    /// From the request to the first byte of the reply, in each attempt. The server reads the prompt meanwhile.
    pub first_byte_timeout: Duration,
    /// Between two pieces of the reply.
    pub idle_timeout: Duration,
    /// For everything, including retries and waits.
    pub total_timeout: Duration,
    /// Most attempts, including the first.
    pub attempts: u32,
    /// The wait after the first attempt. It doubles after each, up to `backoff_max`, and is shortened at random by up
    /// to half, so that clients that failed at the same time do not retry at the same time.
    pub backoff_first: Duration,
    /// The longest wait, even if the server asks for a longer one.
    pub backoff_max: Duration,
    /// Largest reply in bytes.
    pub answer_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(180),
            idle_timeout: Duration::from_secs(120),
            total_timeout: Duration::from_secs(15 * 60),
            attempts: 4,
            backoff_first: Duration::from_millis(500),
            backoff_max: Duration::from_secs(30),
            answer_bytes_max: MODEL_ANSWER_BYTES_MAX,
        }
    }
}

/// URL of `path` at a server. As in the providers' own clients, the version is part of the base URL of an
/// OpenAI-compatible server and not of an Anthropic one; a missing version is added, an existing one stays.
pub fn url(kind: Protocol, base_url: &str, path: &str) -> Result<Url, Error> {
    let wrong = |what: &str| {
        Error::invalid(
            "model.base_url",
            format!("base_url {what}; give one such as https://api.openai.com/v1"),
        )
    };
    let mut url = Url::parse(base_url.trim()).map_err(|e| wrong(&format!("is not an address ({e})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong(&format!("has the scheme {:?}, only http and https work", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("holds a name or password, which belongs into api_key"));
    }
    if url.fragment().is_some() {
        return Err(wrong("has a fragment (#)"));
    }
    let base = url.path().trim_end_matches('/');
    let base = base.strip_suffix(path).map_or(base, |base| base.trim_end_matches('/'));
    let versioned = match kind {
        Protocol::Anthropic => base.ends_with("/v1"),
        Protocol::OpenaiChat | Protocol::OpenaiResponses => !base.is_empty(),
    };
    let path = format!("{base}{}/{path}", if versioned { "" } else { "/v1" });
    url.set_path(&path);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_understood_with_and_without_slash_and_version() {
        use Protocol::{Anthropic, OpenaiChat};
        for (kind, base, expected) in [
            (OpenaiChat, "https://api.openai.com", "https://api.openai.com/v1/p"),
            (OpenaiChat, "https://api.openai.com/", "https://api.openai.com/v1/p"),
            (OpenaiChat, "https://api.openai.com/v1", "https://api.openai.com/v1/p"),
            (OpenaiChat, " https://api.openai.com/v1// ", "https://api.openai.com/v1/p"),
            (OpenaiChat, "https://api.openai.com/v1/p", "https://api.openai.com/v1/p"),
            (OpenaiChat, "https://x.example/v1beta/openai/", "https://x.example/v1beta/openai/p"),
            (OpenaiChat, "http://[::1]:8080", "http://[::1]:8080/v1/p"),
            (
                OpenaiChat,
                "https://x.example/openai?api-version=1",
                "https://x.example/openai/p?api-version=1",
            ),
            (Anthropic, "https://api.anthropic.com", "https://api.anthropic.com/v1/p"),
            (Anthropic, "https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/p"),
            (Anthropic, "https://x.example/anthropic", "https://x.example/anthropic/v1/p"),
            (Anthropic, "https://x.example/anthropic/v1/p", "https://x.example/anthropic/v1/p"),
        ] {
            assert_eq!(url(kind, base, "p").unwrap().as_str(), expected, "{base}");
        }
    }

    #[test]
    fn other_addresses_are_refused_with_the_reason() {
        for (base, says) in [
            ("file:///etc/passwd", "scheme \"file\""),
            ("unix:/run/x.sock", "scheme \"unix\""),
            ("api.openai.com", "not an address"),
            ("localhost:8080", "scheme \"localhost\""),
            ("", "not an address"),
            ("https://", "not an address"),
            ("https://me:pass@x.example", "api_key"),
            ("https://x.example/#a", "fragment"),
        ] {
            let error = url(Protocol::OpenaiChat, base, "p").unwrap_err();
            assert!(error.code() == "model.base_url" && error.text().contains(says), "{base}: {error}");
            assert!(!error.text().contains("pass@"), "{error}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let mut endpoint = Endpoint::new(Protocol::Anthropic, "http://x", "m");
        endpoint.api_key = Some(Secret::new("sk-123"));
        assert!(!format!("{endpoint:?}").contains("sk-123"));
    }
}
