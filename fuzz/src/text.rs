//! Readers of the crate `core`: JSON, names, policies, secrets, payloads and events.

use crate::text_of;
use everturn_core::access::KeyRole;
use everturn_core::chain::{Hash, Verifier};
use everturn_core::conversation::{POLICIES, Settings, check_policy, fork_title, is_project};
use everturn_core::event::{Event, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, FactId, GenerationId, KeyId, TenantName, TurnId, clip};
use everturn_core::json::{self, Raw};
use everturn_core::limits::{ASSET_INLINE_BYTES_MAX, TITLE_BYTES_MAX};
use everturn_core::pairing::BlockPath;
use everturn_core::redaction::{self, RedactionMode};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Successor, Turn};
use everturn_core::viewer::Viewer;
use everturn_core::{asset, encoding, misleading};
use everturn_formats::provider::Provider;
use everturn_views::context::Sections;
use everturn_views::facts;
use everturn_views::projection::ViewOptions;
use everturn_views::state::{self, Fold};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt::Display;
use std::str::FromStr;

/// JSON text: what is accepted is JSON, and its parts are found where they are.
pub fn json(bytes: &[u8]) {
    let text = &*text_of(bytes);
    let mended = json::replace_lone_surrogates(text);
    let found = json::scan(text, |string| {
        assert_eq!(&text[string.start + 1..string.end - 1], string.raw);
        let plain = json::unescape(string.raw);
        assert_eq!(serde_json::from_str::<String>(&json::quote(&plain)).unwrap(), plain);
    });
    if found.is_err() {
        json::fields(text);
        json::elements(text);
        return;
    }
    assert!(serde_json::from_str::<&RawValue>(text).is_ok(), "accepted, and is not JSON");
    assert_eq!(mended, text, "a lone surrogate was accepted");
    assert_eq!(Raw::new(text.to_string()).unwrap().get().trim(), text.trim());
    let fields = json::fields(text);
    if !fields.is_empty() {
        let written = json::object(fields.iter().map(|(name, value)| (&**name, value.to_string())));
        json::check(&written).unwrap();
        assert_eq!(json::fields(&written), fields);
    }
}

/// Ids, times and other names with one spelling.
pub fn names(bytes: &[u8]) {
    let text = &*text_of(bytes);
    exact::<ConversationId>(text);
    exact::<TurnId>(text);
    exact::<EventId>(text);
    exact::<FactId>(text);
    exact::<GenerationId>(text);
    exact::<KeyId>(text);
    exact::<Hash>(text);
    exact::<KeyRole>(text);
    exact::<Role>(text);
    exact::<Status>(text);
    exact::<Visibility>(text);
    exact::<Provider>(text);
    exact::<Successor>(text);
    if let Ok(tenant) = TenantName::new(text) {
        assert_eq!(tenant.as_str(), text);
    }
    if let Some(path) = BlockPath::read(text) {
        assert_eq!(BlockPath::read(&path.to_string()), Some(path));
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        at.check().unwrap();
        assert_eq!(at.to_string().parse::<Timestamp>().unwrap(), at);
    }
    assert!(clip(text).chars().count() <= text.chars().count().min(61));
    let shown = misleading::visible(text);
    assert_eq!(misleading::visible(&shown), shown);
    let fork = fork_title(text, 7);
    assert!(fork.len() <= TITLE_BYTES_MAX && fork_title(&fork, 7) == fork);
    if let Some((project, wanted)) = text.split_once('\n') {
        is_project(project, wanted);
    }
}

/// Names that are read are written in the same way.
fn exact<T: FromStr + Display>(text: &str) {
    if let Ok(name) = text.parse::<T>() {
        assert_eq!(name.to_string(), text);
    }
}

/// Names that are long, or that have digits where most have none.
pub fn written_names() -> Vec<Vec<u8>> {
    let names = [
        ConversationId::from_bytes([7; 16]).to_string(),
        TurnId::from_bytes([255; 16]).to_string(),
        KeyId::from_bytes([0; 16]).to_string(),
        Hash([171; 32]).to_string(),
        "content[12]".to_string(),
        "2026-01-01T10:00:00.123456+05:30".to_string(),
        "-9999-01-02T01:59:59Z".to_string(),
        "/home/ana/src/web\nweb".to_string(),
    ];
    names.map(String::into_bytes).to_vec()
}

/// Policies and other settings, as JSON of any shape.
pub fn policies(bytes: &[u8]) {
    let text = &*text_of(bytes);
    let Ok(raw) = Raw::new(text.to_string()) else { return };
    for name in POLICIES.iter().chain(&["other"]) {
        let _ = check_policy(name, &raw);
    }
    for kind in [
        kind::PIN,
        kind::UNPIN,
        kind::SCRATCHPAD_SET,
        kind::TOOL_STARTED,
        kind::TOOL_ABANDONED,
        kind::APPROVAL_REQUESTED,
    ] {
        let _ = state::check(kind, &raw);
    }
    if let Some(value) = raw.read::<Value>() {
        let _ = ViewOptions::parse(&value);
        let _ = Sections::parse(&value);
    }
    // Settings that were made normal are normal.
    if let Some(settings) = raw.read::<Settings>()
        && let Ok(normal) = settings.normalise()
    {
        let written = serde_json::to_string(&normal).unwrap();
        let read: Settings = serde_json::from_str(&written).unwrap();
        assert_eq!(serde_json::to_string(&read.normalise().unwrap()).unwrap(), written);
    }
}

/// Secrets: what is masked is JSON as before, and has none any more.
pub fn redaction(bytes: &[u8]) {
    let text = &*text_of(bytes);
    let mut secrets = Vec::new();
    let masked = redaction::mask(text, &mut secrets);
    assert_eq!(masked != text, !secrets.is_empty());
    redaction::mask_personal(text);
    redaction::without_password(text);
    redaction::without_secrets(text);
    let marked = redaction::redact(text, RedactionMode::Mark);
    let masked = redaction::redact(text, RedactionMode::Mask);
    if json::check(text).is_err() {
        return;
    }
    let ((marked, found), (masked, hidden)) = (marked.unwrap(), masked.unwrap());
    assert_eq!(marked, text);
    assert_eq!(found, hidden);
    json::check(&masked).unwrap();
    json::check(&redaction::mask_json(text).unwrap()).unwrap();
}

/// Stands for a payload in an input: real ones are longer than an input may be.
const PAYLOAD: &str = "@@";

/// Payloads in messages: those that are moved out come back as they were.
pub fn assets(bytes: &[u8]) {
    const ID: &str = "asset_fuzz";
    let large = "QUJD".repeat(ASSET_INLINE_BYTES_MAX / 4 + 1);
    let text = text_of(bytes).replace(PAYLOAD, &large);
    if text.contains(ID) || json::check(&text).is_err() {
        return;
    }
    let mut taken = Vec::new();
    let extracted = asset::extract(&text, |payload| {
        taken.push(payload.bytes.clone());
        format!("{ID}{}", taken.len() - 1)
    });
    let Some((small, payloads)) = extracted.unwrap() else { return };
    json::check(&small).unwrap();
    assert_eq!(payloads.len(), taken.len());
    let fetch = |id: &str| id.strip_prefix(ID)?.parse().ok().and_then(|at: usize| taken.get(at).cloned());
    assert_eq!(asset::restore(&small, fetch).unwrap(), text);
}

/// Messages with a payload in each of the shapes.
pub fn messages_with_payloads() -> Vec<Vec<u8>> {
    let messages = [
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,@@"}},{"type":"text","text":"x"}]}"#,
        r#"{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"@@"}},{"type":"image","asset_id":"a","data":"@@"}]}"#,
        r#"{"role":"user","parts":[{"inlineData":{"mimeType":"image/png","data":"@@"}},{"text":"@@"}]}"#,
        r#"{"role":"user","content":[{"type":"file","file":{"filename":"a\nb","file_data":"data:;base64,@@"}}]}"#,
        r#"{"type":"function_call_output","output":"@@","data":"@@"}"#,
    ];
    messages.iter().map(|message| message.as_bytes().to_vec()).collect()
}

/// Events as lines of a file: what is accepted is written and read as the same event.
pub fn events(bytes: &[u8]) {
    let text = &*text_of(bytes);
    let events: Vec<Event> = text.lines().filter_map(|line| encoding::from_line(line).ok()).collect();
    for event in &events {
        let line = encoding::to_line(event).unwrap();
        assert_eq!(&encoding::from_line(&line).unwrap(), event);
        let _ = everturn_core::chain::check(event);
        if let Some(turn) = Turn::begun(event) {
            turn.text(|_| None);
            Viewer::everyone().turn(turn);
        }
        Viewer::everyone().event(event.clone());
        event.read::<Settings>();
    }
    let Some(first) = events.first() else { return };
    let mut verifier = Verifier::new(first.conversation, None);
    let mut fold = Fold::new();
    for event in &events {
        let _ = verifier.push(event);
        fold.apply(event);
        fold.settle(event);
    }
    verifier.finish();
    fold.tools_in_order();
    fold.as_of(Timestamp(0), Some(1));
    facts::add_up(&events);
}
