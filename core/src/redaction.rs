//! Secrets in a conversation: found by their shape, marked or masked before anything is stored.

use crate::Error;
use crate::asset::edit;
use crate::chain::Hash;
use crate::json;
use aho_corasick::{AhoCorasick, MatchKind};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::LazyLock;

/// Treatment of secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RedactionMode {
    /// Do not look for secrets.
    Off,
    /// Record the secrets found in a turn in its metadata.
    #[default]
    Mark,
    /// Also replace them by `‹secret:kind:hash8›`.
    Mask,
}

/// A found secret, identified by its kind and a short hash; the secret itself is not kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FoundSecret {
    /// Name of the shape that matched.
    pub kind: String,
    /// First eight hexadecimal digits of its SHA-256: distinguishes secrets without revealing them.
    pub hash8: String,
}

/// Shapes of secrets. The first that matches names the secret, so more specific ones come first. Word
/// boundaries are ASCII: with Unicode boundaries, a single non-ASCII letter makes the search many times slower.
const SHAPES: &[(&str, &str)] = &[
    ("private_key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)"),
    ("aws_access_key", r"(?-u:\b)(?:AKIA|ASIA)[0-9A-Z]{16}(?-u:\b)"),
    (
        "aws_secret_key",
        r"(?:aws_secret_access_key|AWS_SECRET_ACCESS_KEY)[\x22'\s]*[:=][\x22'\s]*[A-Za-z0-9/+=]{40}",
    ),
    ("google_api_key", r"(?-u:\b)AIza[0-9A-Za-z_-]{35}"),
    ("azure_account_key", r"(?-u:\b)AccountKey=[A-Za-z0-9+/=]{40,}"),
    ("github_token", r"(?-u:\b)(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})"),
    ("gitlab_token", r"(?-u:\b)glpat-[A-Za-z0-9_-]{20,}"),
    ("slack_token", r"(?-u:\b)xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("stripe_key", r"(?-u:\b)[rs]k_live_[A-Za-z0-9]{16,}"),
    ("anthropic_key", r"(?-u:\b)sk-ant-[A-Za-z0-9_-]{20,}"),
    ("openai_key", r"(?-u:\b)sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}"),
    ("npm_token", r"(?-u:\b)npm_[A-Za-z0-9]{36}"),
    ("huggingface_token", r"(?-u:\b)hf_[A-Za-z0-9]{30,}"),
    ("everturn_key", r"(?-u:\b)et_[A-Za-z0-9]{6,}_[A-Za-z0-9_-]{20,}"),
    ("jwt", r"(?-u:\b)eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    (
        "connection_string",
        r"(?-u:\b)[a-z][a-z0-9+.-]{1,20}://[^\s:/@\x22'<>]{1,100}:[^\s@/\x22'<>]{3,200}@[^\s\x22'<>]+",
    ),
];

/// Every secret contains one of these; a text with none of them need not be searched with the shapes.
const HINTS: &[&str] = &[
    "PRIVATE KEY",
    "AKIA",
    "ASIA",
    "_secret_access_key",
    "_SECRET_ACCESS_KEY",
    "AIza",
    "AccountKey=",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "k_live_",
    "sk-",
    "npm_",
    "hf_",
    "et_",
    "eyJ",
    "://",
];

/// Which hint is found does not matter. With this kind of match, a text is searched many bytes at a time.
static HINT: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(HINTS);
    automaton.expect("the hints are constant and tested")
});

static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let alternatives: Vec<String> = SHAPES.iter().map(|(_, shape)| format!("({shape})")).collect();
    Regex::new(&alternatives.join("|")).expect("the shapes are constant and tested")
});

/// Searches every string of a JSON text, keys included. The text is returned unchanged unless `mode` is
/// [`RedactionMode::Mask`].
pub fn redact(message: &str, mode: RedactionMode) -> Result<(Cow<'_, str>, Vec<FoundSecret>), Error> {
    let mut secrets: Vec<FoundSecret> = Vec::new();
    // These escapes can spell a hint in other letters. Most texts have no escape at all.
    let escaped = memchr::memchr(b'\\', message.as_bytes()).map_or("", |at| &message[at..]);
    let is_plain = !escaped.contains("\\u") && !escaped.contains("\\/");
    if mode == RedactionMode::Off || (is_plain && !HINT.is_match(message)) {
        return Ok((Cow::Borrowed(message), secrets));
    }
    let mut edits = Vec::new();
    json::scan(message, |s| {
        // Searched without its escapes: in `\nAKIA…` the letter of the escape would hide where the key begins.
        let text = json::unescape(s.raw);
        if !HINT.is_match(&*text) {
            return;
        }
        let masked = mask(&text, &mut secrets);
        if mode == RedactionMode::Mask && masked != text {
            edits.push((s.start, s.end, json::quote(&masked)));
        }
    })?;
    secrets.sort_by(|a, b| (&a.kind, &a.hash8).cmp(&(&b.kind, &b.hash8)));
    secrets.dedup();
    let message = if edits.is_empty() { Cow::Borrowed(message) } else { Cow::Owned(edit(message, edits)) };
    Ok((message, secrets))
}

/// Masks the secrets in a text and adds each to `secrets`.
pub fn mask<'a>(text: &'a str, secrets: &mut Vec<FoundSecret>) -> Cow<'a, str> {
    PATTERN.replace_all(text, |found: &regex::Captures<'_>| {
        let shape = (1..=SHAPES.len()).find(|group| found.get(*group).is_some()).map_or(0, |group| group - 1);
        let kind = SHAPES[shape].0.to_string();
        let hash8 = Hash::of(found[0].as_bytes()).to_string()[..8].to_string();
        let masked = format!("‹secret:{kind}:{hash8}›");
        secrets.push(FoundSecret { kind, hash8 });
        masked
    })
}

/// Shapes of personal data. Not secrets: they belong in a turn, but may not be wanted in a fact. A number
/// counts as a phone number only if it is formatted like one; a card number must have a valid check digit.
const PERSONAL: &[(&str, &str)] = &[
    ("email", r"[\w.%+'-]+@[\w-]+(?:\.[\w-]+)+"),
    ("card", r"(?-u:\b)[0-9](?:[ -]?[0-9]){12,18}(?-u:\b)"),
    (
        "phone",
        r"(?x) \+[0-9](?:[\ ()./-]{0,2}[0-9]){6,14}
            | (?-u:\b)00[1-9](?:[\ ()./-]{0,2}[0-9]){6,13}
            | \(?(?-u:\b)0[0-9]{1,5}\)?[\ /-]{1,2}[1-9](?:[\ -]?[0-9]){3,10}(?-u:\b)
            | (?:\([0-9]{3}\)\ ?|(?-u:\b)[0-9]{3}[\ .-])[0-9]{3}[\ .-][0-9]{4}(?-u:\b)",
    ),
];

static PERSON: LazyLock<Regex> = LazyLock::new(|| {
    let alternatives: Vec<String> = PERSONAL.iter().map(|(_, shape)| format!("({shape})")).collect();
    Regex::new(&alternatives.join("|")).expect("the shapes are constant and tested")
});

/// Replaces e-mail addresses, phone and card numbers by `‹email›`, `‹phone›` and `‹card›`. There is no hash,
/// because numbers could be recovered from one by trying them all.
pub fn mask_personal(text: &str) -> Cow<'_, str> {
    PERSON.replace_all(text, |found: &regex::Captures<'_>| {
        let shape =
            (1..=PERSONAL.len()).find(|group| found.get(*group).is_some()).map_or(0, |group| group - 1);
        match PERSONAL[shape].0 {
            "card" if !luhn(&found[0]) => found[0].to_string(),
            kind => format!("‹{kind}›"),
        }
    })
}

/// Masks the secrets and the personal data in every string of a JSON text, keys included.
pub fn mask_json(text: &str) -> Result<Cow<'_, str>, Error> {
    let mut edits = Vec::new();
    json::scan(text, |s| {
        let plain = json::unescape(s.raw);
        let masked = mask_text(&plain);
        if masked != plain {
            edits.push((s.start, s.end, json::quote(&masked)));
        }
    })?;
    Ok(if edits.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(edit(text, edits)) })
}

/// Masks the secrets and the personal data in a text.
pub fn mask_text(text: &str) -> String {
    mask_personal(&mask(text, &mut Vec::new())).into_owned()
}

/// Validates the check digit of a card number.
fn luhn(number: &str) -> bool {
    let digits = number.bytes().rev().filter(u8::is_ascii_digit).map(|b| u32::from(b - b'0'));
    let sum: u32 = digits
        .enumerate()
        .map(|(at, digit)| match (at % 2, digit * 2) {
            (0, _) => digit,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        })
        .sum();
    sum.is_multiple_of(10)
}

/// A URL without its password, also where it is mistyped.
pub fn without_password(url: &str) -> String {
    let masked = match url.rsplit_once('@') {
        None => url.to_string(),
        Some((before, host)) => {
            let scheme = before.find(":/").map_or(0, |end| end + 1);
            let start = scheme + before[scheme..].len() - before[scheme..].trim_start_matches('/').len();
            match before[start..].split_once(':') {
                Some((user, _)) => format!("{}{user}:***@{host}", &before[..start]),
                None => url.to_string(),
            }
        }
    };
    match masked.split_once("password=") {
        Some((start, rest)) => {
            let end = rest.find('&').unwrap_or(rest.len());
            format!("{start}password=***{}", &rest[end..])
        }
        None => masked,
    }
}

/// A URL without the parts that may hold secrets: user, password, query and fragment. For what is stored or passed on.
pub fn without_secrets(url: &str) -> String {
    let url = &url[..url.find(['?', '#']).unwrap_or(url.len())];
    let scheme = url.find(":/").map_or(0, |end| end + 1);
    let start = scheme + url[scheme..].len() - url[scheme..].trim_start_matches('/').len();
    let end = url[start..].find(['/', '\\']).map_or(url.len(), |end| start + end);
    let host = url[start..end].rsplit_once('@').map_or(&url[start..end], |(_, host)| host);
    format!("{}{host}{}", &url[..start], &url[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_stored_without_user_and_query() {
        for (url, stored) in [
            ("http://127.0.0.1:3001/mcp", "http://127.0.0.1:3001/mcp"),
            ("https://host/@scope/mcp", "https://host/@scope/mcp"),
            ("https://host/mcp?api_key=s3cret&x=1#part", "https://host/mcp"),
            ("https://user:p@ss@host:1/mcp/", "https://host:1/mcp/"),
            ("https://token@host", "https://host"),
            ("http:/user:pass@host/x", "http:/host/x"),
            ("user:pass@host/x?y", "host/x"),
        ] {
            assert_eq!(without_secrets(url), stored, "{url}");
        }
    }

    /// Assembled at run time, so that no scanner reports this file as a leak.
    fn samples() -> Vec<(&'static str, String)> {
        vec![
            ("aws_access_key", format!("AKIA{}", "IOSFODNN7EXAMPLE")),
            (
                "aws_secret_key",
                format!("AWS_SECRET_ACCESS_KEY={}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            ),
            ("google_api_key", format!("AIza{}", "Sy".repeat(17) + "D")),
            ("azure_account_key", format!("AccountKey={}==", "Q".repeat(44))),
            ("gitlab_token", format!("glpat-{}", "x1".repeat(10))),
            ("stripe_key", format!("sk_live_{}", "4eC39HqLyjWDarjt")),
            ("npm_token", format!("npm_{}", "a".repeat(36))),
            ("huggingface_token", format!("hf_{}", "a".repeat(34))),
            ("everturn_key", format!("et_abcdef_{}", "s3cr3t".repeat(5))),
            ("github_token", format!("ghp_{}", "a1".repeat(18))),
            ("openai_key", format!("sk-proj-{}", "Ab3".repeat(10))),
            ("anthropic_key", format!("sk-ant-api03-{}", "x9".repeat(20))),
            ("slack_token", format!("xoxb-{}", "123456789012-abcdef")),
            (
                "jwt",
                format!("eyJ{}.eyJ{}.{}", "hbGciOiJIUzI1NiJ9", "zdWIiOiIxMjM0NTY3", "SflKxwRJSMeKKF2QT4"),
            ),
            ("connection_string", format!("postgres://app:{}@db.internal:5432/prod", "hunter22")),
            ("private_key", format!("-----BEGIN RSA {0}-----\nMIIEow\n-----END RSA {0}-----", "PRIVATE KEY")),
        ]
    }

    #[test]
    fn every_shape_is_marked_and_masked() {
        for (kind, secret) in samples() {
            let message = serde_json::json!({"role":"tool","content":[{"type":"text","text":format!("key: {secret} !")}],"n":1.0}).to_string();
            let (same, found) = redact(&message, RedactionMode::Mark).unwrap();
            assert_eq!(same, message, "marking changes nothing");
            assert_eq!(found.len(), 1, "{kind}");
            assert_eq!(found[0].kind, kind);
            let (masked, _) = redact(&message, RedactionMode::Mask).unwrap();
            assert!(masked.contains(&format!("key: ‹secret:{kind}:{}› !", found[0].hash8)), "{masked}");
            assert!(masked.contains("\"n\":1.0") && !masked.contains(&secret), "{masked}");
            assert!(redact(&message, RedactionMode::Off).unwrap().1.is_empty());
        }
    }

    /// Regression: the text was searched with its escapes, so that a key at the beginning of a line was not found.
    #[test]
    fn no_escape_hides_a_secret() {
        let key = format!("AKIA{}", "IOSFODNN7EXAMPLE");
        let url = format!("postgres:\\/\\/app:{}@db.internal\\/prod", "hunter22");
        for hidden in [
            format!(r#"{{"content":"key:\n{key}"}}"#),
            format!(r#"{{"content":"\t{key}\n"}}"#),
            format!(r#"{{"content":"\u0041{}"}}"#, &key[1..]),
            format!(r#"{{"{key}":1}}"#),
            format!(r#"{{"content":"{url}"}}"#),
        ] {
            let (masked, found) = redact(&hidden, RedactionMode::Mask).unwrap();
            assert_eq!(found.len(), 1, "{hidden}");
            assert!(
                masked.contains("‹secret:") && !masked.contains(&key[1..]) && !masked.contains("hunter22"),
                "{masked}"
            );
        }
    }

    #[test]
    fn what_says_who_somebody_is_can_be_masked_and_the_rest_stays() {
        for (text, masked) in [
            ("mail zoë.k+x@büro.example.org now", "mail ‹email› now"),
            ("call +49 (0)30 901820 today", "call ‹phone› today"),
            ("call 0049 30 901820", "call ‹phone›"),
            ("030/901820 or 0171 2345678", "‹phone› or ‹phone›"),
            ("(555) 010-9999, 555-010-9999", "‹phone›, ‹phone›"),
            ("pays with 4111 1111 1111 1111.", "pays with ‹card›."),
            ("5500-0000-0000-0004", "‹card›"),
        ] {
            assert_eq!(mask_personal(text), masked);
        }
        for text in [
            "2026-04-27T14:30:00Z",
            "order 4111 1111 1111 1112",
            "version 1.20.3 on port 5432",
            "192.168.100.200:8080",
            "commit 0123456789abcdef, 1,500,000 rows",
            "@handle and a@b",
            "build 20260427.1 took 1800 seconds",
        ] {
            assert_eq!(mask_personal(text), text);
        }
    }

    #[test]
    fn a_json_text_is_masked_as_a_whole() {
        let key = format!("AKIA{}", "IOSFODNN7EXAMPLE");
        let text = format!(
            r#"{{"n":1.0,"a@b.example":["zo\u00eb@b.example",{{"t":"\n{key} 4111 1111 1111 1111"}}]}}"#
        );
        let masked = mask_json(&text).unwrap();
        assert!(
            masked.starts_with(r#"{"n":1.0,"‹email›":["‹email›",{"t":"\n‹secret:aws_access_key:"#),
            "{masked}"
        );
        assert!(masked.ends_with(r#" ‹card›"}]}"#), "{masked}");
        let plain = r#"{"id":"toolu_01A09q90qw90lq917835lq9","at":"2026-04-27T14:30:00Z"}"#;
        assert_eq!(mask_json(plain).unwrap(), plain);
    }

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (url, shown) in [
            ("postgres://u:hunter2@h/db?x=1", "postgres://u:***@h/db?x=1"),
            ("mysql://u:hunter2@h/db", "mysql://u:***@h/db"),
            ("postgres:/u:hunter2@h/db", "postgres:/u:***@h/db"),
            ("u:hunter2@h/db", "u:***@h/db"),
            ("postgres://u:hun/t:e@r2@h/db", "postgres://u:***@h/db"),
            (
                "postgres://h/db?user=u&password=hunter2&sslmode=require",
                "postgres://h/db?user=u&password=***&sslmode=require",
            ),
            ("postgres://u@h:5432/db", "postgres://u@h:5432/db"),
            ("postgres://h:5432/db", "postgres://h:5432/db"),
            ("sqlite:/home/me@x/chats.db", "sqlite:/home/me@x/chats.db"),
            ("http://localhost:4318", "http://localhost:4318"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn ordinary_text_is_left_alone() {
        for text in [
            "see https://example.org/a:b@c",
            "sk-short",
            "AKIA is a prefix",
            "git@github.com:a/b.git",
            "task_id-12",
        ] {
            assert!(mask(text, &mut Vec::new()) == text, "{text}");
        }
    }
}
