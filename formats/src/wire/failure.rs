//! Error responses of model servers, classified by the caller's next move.

use everturn_core::Error;
use everturn_core::error::code;
use serde_json::Value;

/// Most bytes read of the body of an error response.
pub const MODEL_ERROR_BYTES_MAX: usize = 64 * 1024;

/// Most characters of a server's message in an error.
const SAID_CHARS_MAX: usize = 300;

/// Class of a failure, named by the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Class {
    /// The key is wrong or lacks the permission.
    Unauthorized,
    /// The server knows no such model or address.
    NotFound,
    /// The prompt does not fit.
    Overflow,
    /// The account is empty.
    Quota,
    /// Too many requests or tokens for now.
    RateLimited,
    /// The server cannot be reached, or has a fault of its own.
    Unavailable,
    /// It took too long.
    Timeout,
    /// The answer ended in the middle.
    Cut,
    /// The server found the request wrong.
    Refused,
    /// It redirects to another address.
    Redirected,
    /// It does not follow the protocol.
    Garbage,
    /// An error of our own, such as a limit.
    Ours(Error),
}

/// A request that gave no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Class of the failure.
    pub class: Class,
    /// HTTP status, if there was one.
    pub status: Option<u16>,
    /// Message of the server, or ours where it sent none. Untrusted: may hold anything.
    pub said: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(Class::Ours(error), String::new())
    }
}

impl Failure {
    /// A failure without a status.
    pub fn new(class: Class, said: impl Into<String>) -> Failure {
        Failure { class, status: None, said: said.into() }
    }

    /// A response that breaks the protocol. `what` is our text: the bytes may be somebody's words, which do not
    /// belong in an error.
    pub fn garbage(what: impl Into<String>) -> Failure {
        Failure::new(Class::Garbage, what)
    }

    /// Whether the same request may succeed later.
    pub fn transient(&self) -> bool {
        matches!(self.class, Class::RateLimited | Class::Unavailable)
    }

    /// Reads a response with an error status.
    pub fn of_status(status: u16, body: &str) -> Failure {
        let parsed: Option<Value> = serde_json::from_str(body).ok();
        let words = parsed.as_ref().map(words).unwrap_or_default();
        let said = match (&parsed, words.message) {
            (_, Some(message)) => message,
            (None, None) if body.trim_start().starts_with('<') => "a page of HTML".to_string(),
            (None, None) => body.to_string(),
            (Some(_), None) => String::new(),
        };
        let class = match status {
            300..=399 => Class::Redirected,
            401 | 403 => Class::Unauthorized,
            404 => Class::NotFound,
            402 => Class::Quota,
            _ if quota(&words.kind) => Class::Quota,
            413 => Class::Overflow,
            _ if overflows(&words.kind, &said) => Class::Overflow,
            429 => Class::RateLimited,
            // Not implemented: waiting does not help.
            501 => Class::Refused,
            408 | 409 | 500.. => Class::Unavailable,
            _ => Class::Refused,
        };
        Failure { class, status: Some(status), said }
    }

    /// Reads an error object that came in place of an answer.
    pub fn of_object(object: &Value) -> Failure {
        let Words { message, kind, code } = words(object);
        let said = message.unwrap_or_else(|| kind.trim().to_string());
        let status = code.or_else(|| STATUSES.iter().find(|(word, _)| kind.contains(word)).map(|(_, s)| *s));
        let class = match status {
            _ if quota(&kind) => Class::Quota,
            _ if overflows(&kind, &said) => Class::Overflow,
            Some(status) => Failure::of_status(status, "").class,
            None => Class::Unavailable,
        };
        Failure { class, status: None, said }
    }

    /// Error for the caller. The server's message is clipped to one short line, and a key repeated in it is hidden.
    pub fn error(&self, key: Option<&str>) -> Error {
        let said = match key {
            Some(key) if !key.is_empty() => self.said.replace(key, "[key]"),
            _ => self.said.clone(),
        };
        let said = one_line(&said);
        let status = self.status.map(|status| format!(" ({status})")).unwrap_or_default();
        match &self.class {
            Class::Unauthorized => Error::invalid(
                "model.unauthorized",
                format!(
                    "the model server refuses the key{status}: {said}; check the environment variable that api_key_env names"
                ),
            ),
            Class::NotFound => Error::not_found(
                "model.not_found",
                format!(
                    "the model server knows no such model or address{status}: {said}; check model and base_url"
                ),
            ),
            Class::Overflow => Error::too_large(
                code::CONTEXT_OVERFLOW,
                format!(
                    "the prompt does not fit the model{status}: {said}; compact the conversation or lower the token budget"
                ),
            ),
            Class::Quota => Error::invalid(
                "model.quota",
                format!("the account at the model server is used up{status}: {said}; top it up"),
            ),
            Class::RateLimited => Error::busy(
                "model.rate_limited",
                format!("the model server is asked too often{status}: {said}; try again later"),
            ),
            Class::Unavailable => Error::busy(
                "model.unavailable",
                format!("the model server is not available{status}: {said}; try again later"),
            ),
            Class::Timeout => Error::busy(
                "model.timeout",
                format!("the model server took too long: {said}; try again, or allow it more time"),
            ),
            Class::Cut => Error::busy(
                "model.stream_cut",
                format!("the answer broke off before its end: {said}; ask again"),
            ),
            Class::Refused => Error::invalid(
                code::MODEL_REFUSED,
                format!("the model server refuses the request{status}: {said}; change the request"),
            ),
            Class::Redirected => Error::invalid(
                "model.redirected",
                format!(
                    "the model server points elsewhere{status}, where the key must not follow; set base_url to the final address"
                ),
            ),
            Class::Garbage => Error::internal(
                "model.garbage",
                format!(
                    "the model server's answer cannot be read: {said}; check that base_url and kind fit the server"
                ),
            ),
            Class::Ours(error) => error.clone(),
        }
    }
}

/// Names of error objects in streams, and the status of each outside a stream.
const STATUSES: [(&str, u16); 14] = [
    ("overloaded", 529),
    ("rate_limit", 429),
    ("authentication_error", 401),
    ("invalid_api_key", 401),
    ("permission_error", 403),
    ("not_found", 404),
    ("billing_error", 402),
    ("request_too_large", 413),
    ("invalid_request", 400),
    ("invalid_prompt", 400),
    ("badrequest", 400),
    ("timeout", 504),
    ("server_error", 500),
    ("api_error", 500),
];

#[derive(Default)]
struct Words {
    message: Option<String>,
    /// `type` and `code`, lower case.
    kind: String,
    /// `code` or `status`, if it is a number in the range of statuses.
    code: Option<u16>,
}

/// Finds the message in the known forms of error objects: `{"error": {…}}`, `{"error": "…"}`, the object itself,
/// `detail`.
fn words(object: &Value) -> Words {
    let inner = object.get("error").filter(|error| !error.is_null()).unwrap_or(object);
    if let Value::String(message) = inner {
        return Words { message: Some(message.clone()), ..Words::default() };
    }
    let text = |key| inner.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let kind: Vec<&str> = ["type", "code", "status"].into_iter().filter_map(text).collect();
    let code = ["code", "status"].iter().find_map(|key| u16::try_from(inner.get(key)?.as_u64()?).ok());
    let message = text("message").map(str::to_string).or_else(|| {
        let detail = inner.get("detail").filter(|detail| !detail.is_null())?;
        Some(detail.as_str().map_or_else(|| detail.to_string(), str::to_string))
    });
    Words {
        message,
        kind: kind.join(" ").to_lowercase(),
        code: code.filter(|code| (300..600).contains(code)),
    }
}

fn quota(kind: &str) -> bool {
    kind.contains("insufficient_quota")
}

/// Whether the prompt is too long. Each provider has its own words and status for it: 400, 413, 429 and 500 were seen.
fn overflows(kind: &str, said: &str) -> bool {
    const KINDS: [&str; 3] = ["context_length_exceeded", "exceed_context_size", "string_above_max_length"];
    const PHRASES: [&str; 10] = [
        "context length",
        "context window",
        "context limit",
        "context size",
        "prompt is too long",
        "prompt too long",
        "input is too long",
        "reduce the length",
        "request too large",
        "too many input tokens",
    ];
    let said = said.to_lowercase();
    KINDS.iter().any(|word| kind.contains(word)) || PHRASES.iter().any(|phrase| said.contains(phrase))
}

fn one_line(text: &str) -> String {
    let mut out = String::new();
    let mut shown = 0;
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        for c in word.chars() {
            if shown == SAID_CHARS_MAX {
                out.push('…');
                return out;
            }
            out.push(c);
            shown += 1;
        }
    }
    if out.is_empty() { "it does not say why".to_string() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(status: u16, body: &str) -> &'static str {
        Failure::of_status(status, body).error(None).code()
    }

    #[test]
    fn a_refusal_is_mapped_by_what_the_caller_can_do() {
        for (status, body, expected) in [
            (401, r#"{"error":{"message":"Incorrect API key provided"}}"#, "model.unauthorized"),
            (403, "{}", "model.unauthorized"),
            (
                404,
                r#"{"error":{"message":"The model `x` does not exist","code":"model_not_found"}}"#,
                "model.not_found",
            ),
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 128000 tokens.","code":"context_length_exceeded"}}"#,
                "model.context_overflow",
            ),
            (
                400,
                r#"{"error":{"message":"too big","code":"context_length_exceeded"}}"#,
                "model.context_overflow",
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 205351 tokens > 200000 maximum"}}"#,
                "model.context_overflow",
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000"}}"#,
                "model.context_overflow",
            ),
            (
                500,
                r#"{"error":{"code":500,"message":"the request exceeds it","type":"exceed_context_size_error"}}"#,
                "model.context_overflow",
            ),
            (
                400,
                r#"{"object":"error","message":"This model's maximum context length is 4096 tokens","code":400}"#,
                "model.context_overflow",
            ),
            (413, "", "model.context_overflow"),
            (
                429,
                r#"{"error":{"message":"Request too large for gpt-x on tokens per min","code":"rate_limit_exceeded"}}"#,
                "model.context_overflow",
            ),
            (429, r#"{"error":{"message":"slow down"}}"#, "model.rate_limited"),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#,
                "model.quota",
            ),
            (402, "", "model.quota"),
            (400, r#"{"error":{"message":"bad tool"}}"#, "model.refused"),
            (422, r#"{"detail":[{"loc":["body"],"msg":"wrong"}]}"#, "model.refused"),
            (501, "", "model.refused"),
            (408, "", "model.unavailable"),
            (409, "", "model.unavailable"),
            (500, "", "model.unavailable"),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "model.unavailable",
            ),
            (302, "", "model.redirected"),
        ] {
            assert_eq!(code(status, body), expected, "{status} {body}");
        }
    }

    #[test]
    fn an_error_object_in_a_stream_is_mapped_in_the_same_way() {
        for (object, expected) in [
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "model.unavailable",
            ),
            (r#"{"error":{"code":429,"message":"slow down"}}"#, "model.rate_limited"),
            (r#"{"error":"out of memory"}"#, "model.unavailable"),
            (r#"{"type":"error","code":"rate_limit_exceeded","message":"x"}"#, "model.rate_limited"),
            (r#"{"error":{"type":"authentication_error","message":"x"}}"#, "model.unauthorized"),
            (
                r#"{"error":{"code":400,"message":"the request exceeds the available context size"}}"#,
                "model.context_overflow",
            ),
            (r#"{"error":{"code":"insufficient_quota","message":"x"}}"#, "model.quota"),
            (r#"{"error":{"type":"BadRequestError","message":"x"}}"#, "model.refused"),
        ] {
            assert_eq!(
                Failure::of_object(&serde_json::from_str(object).unwrap()).error(None).code(),
                expected,
                "{object}"
            );
        }
    }

    #[test]
    fn only_what_may_pass_by_itself_is_worth_another_try() {
        for (status, again) in [
            (408, true),
            (409, true),
            (429, true),
            (500, true),
            (503, true),
            (529, true),
            (400, false),
            (401, false),
            (404, false),
            (413, false),
            (302, false),
        ] {
            assert_eq!(Failure::of_status(status, "").transient(), again, "{status}");
        }
        assert!(!Failure::of_status(429, r#"{"error":{"code":"insufficient_quota"}}"#).transient());
    }

    #[test]
    fn the_servers_words_are_shown_short_on_one_line_and_without_the_key() {
        let body = format!(r#"{{"error":{{"message":"no\nsuch key sk-secret-1, {}"}}}}"#, "x".repeat(5000));
        let error = Failure::of_status(401, &body).error(Some("sk-secret-1"));
        assert!(error.text().contains("no such key [key], xxx"), "{error}");
        assert!(error.text().chars().count() < 500 && error.text().contains('…'), "{error}");
        // A key at the edge of what is shown must not be left half visible.
        for at in 280..310 {
            let body = format!("{} sk-secret-1", "y".repeat(at));
            let error = Failure::of_status(400, &body).error(Some("sk-secret-1"));
            assert!(!error.text().contains("sk-"), "{error}");
        }
        assert!(
            Failure::of_status(503, "<html><b>Bad gateway</b>").error(None).text().contains("a page of HTML")
        );
        assert!(Failure::of_status(500, "").error(Some("")).text().contains("it does not say why"));
    }

    proptest! {
        #[test]
        fn any_body_gives_an_error_without_the_key(status in 300u16..600, body in ".{0,40}(KEY123)?.{0,400}(KEY123)?") {
            let error = Failure::of_status(status, &body).error(Some("KEY123"));
            prop_assert!(!error.text().contains("KEY123"));
            prop_assert!(error.text().chars().count() < 600);
        }
    }
}
