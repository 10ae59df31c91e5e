//! Protection against requests that pages of other sites make a browser send.
//!
//! A server without keys trusts everyone who can reach it, and a browser on this machine can. A page elsewhere
//! may point a name of its own at 127.0.0.1 (DNS rebinding); such requests carry that name as `Host`, or the
//! page's `Origin`.

use crate::config::Config;
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::http::header::{HOST, ORIGIN};
use axum::http::request::Parts;

/// Refuses a request for a host other than this machine.
pub fn check(config: &Config, request: &Parts) -> Result<(), Problem> {
    let header = |name| request.headers.get(name).map(|value| value.to_str().unwrap_or_default());
    // HTTP/2 has the name in the URI instead.
    let host = request.uri.authority().map(|authority| authority.as_str()).or_else(|| header(HOST));
    let listens = config.listen.ip();
    if !host.is_some_and(|host| is_ours(host, listens)) {
        let text = "this server has no keys and answers only to localhost; use http://localhost:PORT";
        return Err(Problem::new(StatusCode::FORBIDDEN, "access.host", text));
    }
    let Some(origin) = header(ORIGIN) else { return Ok(()) };
    let ours = origin.split_once("://").is_some_and(|(_, host)| is_ours(host, listens));
    if ours || config.cors_origins.iter().any(|allowed| allowed == origin) {
        return Ok(());
    }
    let text = "pages of other sites may not use a server without keys; allow them with cors.origins";
    Err(Problem::new(StatusCode::FORBIDDEN, "access.origin", text))
}

/// Whether a host, with or without a port, is this machine.
fn is_ours(host: &str, listens: impl ToString) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || is_port(port) => name,
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            Some(_) => return false,
            None => host,
        },
    };
    // Nearly every request names one of these: compared as they are, the address need not be formatted.
    name.eq_ignore_ascii_case("localhost")
        || ["127.0.0.1", "::1"].contains(&name)
        || name == listens.to_string()
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_ours() {
        for ours in ["localhost", "LOCALHOST:80", "127.0.0.1:7317", "[::1]", "[::1]:1", "127.0.0.2:9"] {
            assert!(is_ours(ours, "127.0.0.2"), "{ours}");
        }
        for foreign in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7317",
            "localhost:80@evil.example",
            "[::1]evil.example",
            "[::1",
            "::1",
            "127.0.0.3",
        ] {
            assert!(!is_ours(foreign, "127.0.0.2"), "{foreign}");
        }
    }
}
