//! Conversations as resources: listed, and read as Markdown or as a transcript value.

use everturn_api::conversations::{cursor, cursor_text, preview};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::id::{ConversationId, clip};
use everturn_core::message::{self, MessagePart};
use everturn_core::redaction;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, Turn};
use everturn_engine::{HistoryEntry, HistoryQuery, ListQuery, Order, Tenant};
use everturn_views::speech;
use rmcp::model::{ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write;

/// Prefix of the URI, before the id.
const ROOT: &str = "everturn://conversations/";
const TRANSCRIPT: &str = "/transcript";
/// Number of conversations on a page.
const PAGE: usize = 100;
/// Maximum number of turns in a resource; the newest are shown.
const RESOURCE_TURNS_MAX: usize = 200;
/// Maximum number of characters shown of a tool result.
const RESULT_CHARS_MAX: usize = 4000;
/// Maximum size of a transcript resource.
const RESOURCE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The URI of a conversation.
pub fn uri(id: ConversationId) -> String {
    format!("{ROOT}{id}")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    pub conversation: ConversationId,
    /// Whether to return a transcript value instead of text.
    transcript: bool,
}

impl Address {
    pub fn parse(uri: &str) -> Result<Address, Error> {
        let wrong = || {
            let text = format!("there is nothing at {:?}; resources are {ROOT}{{id}}", clip(uri));
            Error::not_found("resource.absent", text)
        };
        let rest = uri.strip_prefix(ROOT).ok_or_else(wrong)?;
        let (id, transcript) = match rest.strip_suffix(TRANSCRIPT) {
            Some(id) => (id, true),
            None => (rest, false),
        };
        Ok(Address { conversation: id.parse().map_err(|_| wrong())?, transcript })
    }
}

/// The two forms in which a conversation can be read.
pub fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(format!("{ROOT}{{id}}"), "conversation")
            .with_title("A conversation")
            .with_description(format!(
                "The newest {RESOURCE_TURNS_MAX} turns as Markdown. Can be subscribed to."
            ))
            .with_mime_type("text/markdown"),
        ResourceTemplate::new(format!("{ROOT}{{id}}{TRANSCRIPT}"), "transcript")
            .with_title("A conversation's transcript")
            .with_description(
                "The whole conversation as a transcript value, version 2. Can be subscribed to.",
            )
            .with_mime_type("application/json"),
    ]
}

/// A page of conversations. Blocks.
pub fn list(tenant: &Tenant, after: Option<&str>) -> Result<ListResourcesResult, Error> {
    let after = after.map(cursor).transpose()?;
    let page = tenant.list(ListQuery { after, limit: PAGE, ..ListQuery::default() })?;
    let described = page.data.iter().map(|conversation| resource(tenant, conversation));
    let mut list = ListResourcesResult::with_all_items(described.collect::<Result<_, _>>()?);
    list.next_cursor = page.next.map(cursor_text);
    Ok(list)
}

fn resource(tenant: &Tenant, conversation: &Conversation) -> Result<Resource, Error> {
    let resource = Resource::new(uri(conversation.id), conversation.id.to_string())
        .with_description(facts(conversation))
        .with_mime_type("text/markdown");
    let title = match &conversation.title {
        Some(title) => Some(masked(title).into_owned()),
        None => preview(tenant, conversation)?,
    };
    Ok(match title {
        Some(title) => resource.with_title(title),
        None => resource,
    })
}

/// Masks secrets: a list is shown to people who look for something else.
fn masked(text: &str) -> Cow<'_, str> {
    redaction::mask(text, &mut Vec::new())
}

fn facts(conversation: &Conversation) -> String {
    let turns = match conversation.turns {
        1 => "1 turn".to_string(),
        turns => format!("{turns} turns"),
    };
    format!("{turns}, {}, last turn {}", conversation.state, second(conversation.said()))
}

/// Reads a conversation. Blocks.
pub fn read(tenant: &Tenant, uri: &str) -> Result<ReadResourceResult, Error> {
    let address = Address::parse(uri)?;
    let (text, kind) = match address.transcript {
        true => (transcript(tenant, address.conversation)?, "application/json"),
        false => (markdown(tenant, address.conversation)?, "text/markdown"),
    };
    Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri).with_mime_type(kind)]))
}

fn transcript(tenant: &Tenant, id: ConversationId) -> Result<String, Error> {
    let text = tenant.conversation(id).transcript()?;
    if text.len() > RESOURCE_BYTES_MAX {
        let (limit, got) = (RESOURCE_BYTES_MAX as u64, text.len() as u64);
        return Err(Error::limit(
            "RESOURCE_BYTES_MAX",
            limit,
            got,
            "read it in parts with the tool list_turns",
        ));
    }
    Ok(text)
}

fn markdown(tenant: &Tenant, id: ConversationId) -> Result<String, Error> {
    let conversation = tenant.conversation(id).get()?;
    let newest =
        HistoryQuery { limit: RESOURCE_TURNS_MAX, order: Order::Descending, ..HistoryQuery::default() };
    let page = tenant.conversation(id).history(newest)?;
    let title = conversation.title.as_deref().unwrap_or("Untitled conversation");
    let mut out = format!("# {title}\n\n{id}: {}\n", facts(&conversation));
    if let Some(seq) = page.next {
        let _ = writeln!(
            out,
            "\nEarlier turns are left out; the tool list_turns reads them, with order desc and before {seq}."
        );
    }
    for entry in page.data.iter().rev() {
        if let HistoryEntry::Turn(turn) = entry {
            out.push_str(&said(turn));
        }
    }
    Ok(out)
}

fn said(turn: &Turn) -> String {
    let name = speech::of_turn(turn).name();
    let who = match &turn.actor {
        Some(actor) => format!("{name} ({actor})"),
        None => name.to_string(),
    };
    let mut out =
        format!("\n## {who}, #{}, {}\n\n", turn.seq, second(turn.occurred_at.unwrap_or(turn.created)));
    if turn.status != Status::Complete {
        let _ = writeln!(out, "({})\n", turn.status);
    }
    match turn.value() {
        _ if turn.erased => out.push_str("(erased)\n"),
        Some(message) => {
            out.push_str(words(&message).trim_end());
            out.push('\n');
        }
        None => match turn.partial.as_ref().map(|partial| partial.text.trim_end()) {
            None | Some("") => out.push_str("(nothing yet)\n"),
            Some(text) => {
                let _ = writeln!(out, "{text}");
            }
        },
    }
    out
}

/// A message as text, with tool calls and results in brackets. Reasoning is left out.
pub fn words(message: &Value) -> String {
    let mut parts: Vec<String> = Vec::new();
    let blocks = message["content"].as_array();
    for (at, part) in message::parts(message).into_iter().enumerate() {
        let block = blocks.and_then(|blocks| blocks.get(at)).unwrap_or(message);
        parts.push(match part {
            MessagePart::Text(text) => text.to_string(),
            MessagePart::Thinking { .. } => continue,
            MessagePart::Call { name, arguments, .. } => {
                format!("[calls {name} {}]", arguments.map(plain).unwrap_or_default())
            }
            MessagePart::Result { name, content, .. } => {
                let name = name.map(|name| format!(" of {name}")).unwrap_or_default();
                format!("[result{name}: {}]", shortened(&content.map(plain).unwrap_or_default()))
            }
            MessagePart::Media { kind, label, asset_id } => {
                format!("[{kind} {}]", label.or(asset_id).unwrap_or_default())
            }
            MessagePart::Other(kind) => message::in_words(block).unwrap_or_else(|| format!("[{kind}]")),
        });
    }
    parts.join("\n\n")
}

/// Text as it is, blocks by their text, anything else as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => match message::json_output(text) {
            Some(Value::String(output)) => output,
            _ => text.clone(),
        },
        Value::Array(_) => words(&serde_json::json!({"role": "user", "content": value})),
        other => other.to_string(),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(RESULT_CHARS_MAX) {
        Some((end, _)) => {
            format!("{}… ({} more bytes; the tool list_turns has them)", &text[..end], text.len() - end)
        }
        None => text.to_string(),
    }
}

fn second(at: Timestamp) -> String {
    at.to_string().replace('T', " ").split('.').next().unwrap_or_default().to_string() + " UTC"
}
