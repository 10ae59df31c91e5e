//! Errors as OpenAI's and Anthropic's packages expect them: each raises its own exception by status and body.

use crate::problem::Problem;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use everturn_core::Error;
use everturn_core::error::code;
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Maximum size of an error's body that is converted.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Anthropic's code for a request that cannot be threaded.
const THREAD: &str = "thread_unsupported_request";

/// A refused request, and the field at fault.
#[derive(Debug)]
pub struct RequestError(Box<(Problem, Option<Cow<'static, str>>)>);

impl RequestError {
    /// Refused because of this field.
    pub fn field(param: impl Into<Cow<'static, str>>, detail: impl Into<Cow<'static, str>>) -> RequestError {
        let problem = Problem::new(StatusCode::BAD_REQUEST, "invalid_value", detail);
        RequestError(Box::new((problem, Some(param.into()))))
    }

    /// Refused because of this field, with the engine's error.
    pub fn at(param: &'static str) -> impl FnOnce(Error) -> RequestError {
        move |error| RequestError(Box::new((error.into(), Some(param.into()))))
    }

    /// The error for a client of Anthropic that wants the server to keep the conversation: it sends all of it then.
    pub fn thread() -> RequestError {
        let text = "thread is not supported here; send the whole conversation, and name a conversation of Everturn to \
                    have it recorded";
        Problem::new(StatusCode::BAD_REQUEST, THREAD, text).into()
    }

    pub fn absent(code: &'static str, detail: impl Into<Cow<'static, str>>) -> RequestError {
        Problem::new(StatusCode::NOT_FOUND, code, detail).into()
    }
}

impl RequestError {
    /// The error as a message of a socket.
    pub fn message(self) -> Value {
        let (problem, param) = *self.0;
        let (status, mut body) = openai_body(problem.status, problem.code, &problem.detail, param.as_deref());
        json!({"type": "error", "status": status.as_u16(), "error": body["error"].take()})
    }
}

impl From<Problem> for RequestError {
    fn from(problem: Problem) -> RequestError {
        RequestError(Box::new((problem, None)))
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> RequestError {
        match error.code() {
            "previous_response_not_found" => RequestError::at("previous_response_id")(error),
            _ => Problem::from(error).into(),
        }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let (problem, param) = *self.0;
        let mut response = problem.into_response();
        response.extensions_mut().insert(Param(param));
        response
    }
}

/// The field at fault, for [`convert_errors`].
#[derive(Clone)]
struct Param(Option<Cow<'static, str>>);

/// Converts every error under `/v1` to the body that the client expects, including those of [`crate::access`].
pub async fn convert_errors<F: Future<Output = Response>>(
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let path = request.uri().path();
    if !path.starts_with("/v1/") {
        return answer(request).await;
    }
    let anthropic = path.starts_with("/v1/messages");
    let response = answer(request).await;
    let problem = HeaderValue::from_static("application/problem+json");
    if response.headers().get(CONTENT_TYPE) != Some(&problem) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let param = parts.extensions.remove::<Param>().and_then(|param| param.0);
    let bytes = axum::body::to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_default();
    let said: ProblemText = serde_json::from_slice(&bytes).unwrap_or_default();
    let (status, body) = if anthropic {
        let status = status(parts.status, &said.code);
        let mut body = anthropic_body(status, &said.detail);
        if said.code == THREAD {
            body["error"]["details"] = json!({"error_code": THREAD});
        }
        (status, body)
    } else {
        openai_body(parts.status, &said.code, &said.detail, param.as_deref())
    };
    parts.status = status;
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body.to_string()))
}

#[derive(Deserialize, Default)]
struct ProblemText {
    detail: String,
    code: String,
}

/// The equivalent status for a client of a model: the model failed, or its prompt was too long.
fn status(status: StatusCode, code: &str) -> StatusCode {
    match code {
        code::MODEL_UNKNOWN | code::MODEL_NONE => StatusCode::NOT_FOUND,
        code::CONTEXT_OVERFLOW
        | code::BUDGET_TOO_SMALL
        | "context.truncated"
        | "generate.max_output_tokens" => StatusCode::BAD_REQUEST,
        "model.rate_limited" | "model.quota" => StatusCode::TOO_MANY_REQUESTS,
        "model.unauthorized" | "model.not_found" | "model.redirected" | "model.garbage" => {
            StatusCode::BAD_GATEWAY
        }
        "model.timeout" => StatusCode::GATEWAY_TIMEOUT,
        _ => status,
    }
}

/// OpenAI's code for an error if it has one; else ours.
pub fn openai_code(code: &str) -> &str {
    match code {
        code::MODEL_UNKNOWN | code::MODEL_NONE => "model_not_found",
        code::CONTEXT_OVERFLOW
        | code::BUDGET_TOO_SMALL
        | "context.truncated"
        | "generate.max_output_tokens" => "context_length_exceeded",
        "model.rate_limited" | "access.rate" => "rate_limit_exceeded",
        "model.quota" => "insufficient_quota",
        "access.unauthorized" => "invalid_api_key",
        "conversation.absent" => "conversation_not_found",
        code => code,
    }
}

fn openai_body(given: StatusCode, code: &str, text: &str, param: Option<&str>) -> (StatusCode, Value) {
    let status = status(given, code);
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    let error = json!({"message": text, "type": kind, "param": param, "code": openai_code(code)});
    (status, json!({ "error": error }))
}

/// An error object in Anthropic's format.
pub fn anthropic_body(status: StatusCode, text: &str) -> Value {
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": text}})
}

/// The last event of a failed stream, in either format.
pub fn in_stream(error: &Error, anthropic: bool) -> Value {
    let problem = Problem::from(error.clone());
    match anthropic {
        true => anthropic_body(status(problem.status, error.code()), &problem.detail),
        false => openai_body(problem.status, error.code(), &problem.detail, None).1,
    }
}

/// The last frame of a stream that ends because of a problem.
pub fn last_frame(path: &str, problem: &Problem) -> String {
    if path.starts_with("/v1/messages") {
        format!("event: error\ndata: {}\n\n", anthropic_body(problem.status, &problem.detail))
    } else {
        format!("data: {}\n\n", openai_body(problem.status, problem.code, &problem.detail, None).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refusals before the routes have their own format; under `/v1` they are converted to the client's.
    #[tokio::test]
    async fn refusals_at_the_door_are_dressed_as_well() {
        let door = |request: Request| async move {
            let problem = match request.uri().path() {
                path if path.ends_with("busy") => {
                    Problem::later("access.rate", std::time::Duration::from_secs(7), "rate".into())
                }
                _ => Problem::unauthorized("this needs a key"),
            };
            problem.into_response()
        };
        for (path, status, pointer, word) in [
            ("/v1/models", 401, "/error/code", "invalid_api_key"),
            ("/v1/busy", 429, "/error/code", "rate_limit_exceeded"),
            ("/v1/messages", 401, "/error/type", "authentication_error"),
            ("/v1/messages/busy", 429, "/error/type", "rate_limit_error"),
            ("/api/v1/busy", 429, "/code", "access.rate"),
        ] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = convert_errors(request, door).await;
            assert_eq!(response.status().as_u16(), status, "{path}");
            assert_eq!(response.headers().contains_key("retry-after"), status == 429);
            let bytes = axum::body::to_bytes(response.into_body(), ERROR_BYTES_MAX).await.unwrap();
            let body: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(body.pointer(pointer).unwrap(), word, "{path}: {body}");
        }
    }
}
