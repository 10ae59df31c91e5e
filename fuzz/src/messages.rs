//! Messages in the shape of any provider, and replies of model servers.

use crate::document_valid::{check_markdown, check_page};
use crate::{provider_valid, text_of};
use everturn_core::chain::Head;
use everturn_core::conversation::{Conversation, SystemPrompt};
use everturn_core::echo::Words;
use everturn_core::id::{ConversationId, TenantName, TurnId};
use everturn_core::json::{self, Raw};
use everturn_core::message;
use everturn_core::pairing;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn};
use everturn_core::viewer;
use everturn_formats::provider::{Input, NoMedia, Provider, SystemSection, render};
use everturn_formats::render::{Outline, Preamble, Style, document as begin};
use everturn_formats::session;
use everturn_formats::wire::{Delta, Failure, Protocol, Reader, embeddings};
use everturn_views::tokens::TokenizerFamily;
use everturn_views::{recall, speech};
use serde_json::{Value, json};
use std::fmt::Debug;

/// 2026-01-01T00:00:00Z.
const START: Timestamp = Timestamp(1_767_225_600_000_000);

/// The messages of an input: a list, the list of a request, or one message. None, where it is not JSON that is stored.
pub fn list(text: &str) -> Vec<Raw> {
    let Ok(raw) = Raw::new(text.to_string()) else { return Vec::new() };
    if let Some(list) = raw.read::<Vec<Raw>>() {
        return list;
    }
    let lists = ["messages", "input", "contents"];
    let named = lists.iter().find_map(|name| json::field(raw.get(), name));
    named.and_then(|list| serde_json::from_str(list).ok()).unwrap_or_else(|| vec![raw])
}

/// One message: every way to look at it agrees with the others.
pub fn message(bytes: &[u8]) {
    let messages = list(&text_of(bytes));
    for raw in &messages {
        let text = raw.get();
        let Some(value) = raw.read::<Value>() else { continue };
        let role = message::role(&value);
        if let Some(front) = message::role_in_front(text) {
            assert_eq!(role.as_ref().ok(), Some(&front));
        }
        if let Some(given) = message::in_role(text, Role::Tool) {
            json::check(&given).unwrap();
            assert_eq!(message::role(&serde_json::from_str(&given).unwrap()).unwrap(), Role::Tool);
        }
        message::parts(&value);
        message::carries_signature(&value);
        message::asset_ids(&value);
        message::json_output(text);
        message::json_within(text);
        message::text_within(&value);
        message::in_words(&value);
        message::render(&value, |_| None);
        let _ = viewer::check_blocks(text);
        if let Some(public) = viewer::without_private(text) {
            json::check(&public).unwrap();
            assert_eq!(viewer::without_private(&public).unwrap(), public, "something private was left");
        }
        Words::of(&value).buckets();
        speech::spoken(&value);
        speech::of_message(role.unwrap_or(Role::User), &value);
        recall::text_of(&value);
        recall::recalled_stretches(&value);
        TokenizerFamily::O200k.message(&value);
    }
    let values: Vec<Value> = messages.iter().filter_map(Raw::read).collect();
    let pairs = pairing::pair(&values);
    for at in 0..=values.len() {
        let cut = pairs.cut_at_or_before(at);
        assert!(cut <= at && pairs.cut_at_or_after(at, values.len()) >= at);
        assert_eq!(pairs.cut_at_or_before(cut), cut);
    }
}

/// Messages for a provider: whatever comes in, the provider accepts what goes out.
pub fn provider(bytes: &[u8]) {
    let messages = list(&text_of(bytes));
    let system = [SystemSection { name: "prompt", text: "Be kind." }];
    for provider in Provider::ALL {
        let input = Input { system: &system, messages: &messages, media: &NoMedia };
        let rendered = render(provider, &input).unwrap();
        assert_eq!(rendered.messages.len(), rendered.sources.len());
        let parsed: Option<Vec<Value>> = rendered.messages.iter().map(Raw::read).collect();
        let system = rendered.system.as_ref().map(|system| system.read::<Value>().unwrap());
        // A number beyond every range is JSON, and no value.
        let Some(parsed) = parsed else { continue };
        provider_valid::check(provider.as_str(), system.as_ref(), &parsed)
            .unwrap_or_else(|why| panic!("{provider}: {why}"));
    }
}

/// Documents for people and sessions: nothing that is said becomes a part of them.
pub fn document(bytes: &[u8]) {
    let turns: Vec<Turn> = list(&text_of(bytes)).iter().enumerate().filter_map(turn).collect();
    let tenant = TenantName::new("fuzz").unwrap();
    let id = ConversationId::from_bytes([7; 16]);
    let mut conversation = Conversation::new(id, tenant, START, Head::genesis(id));
    conversation.title = turns.first().map(|turn| turn.text(|_| None).chars().take(100).collect());
    let prompt = SystemPrompt::new("Be kind.".into());
    let mut outline = Outline::default();
    turns.iter().for_each(|turn| outline.note(turn, None));
    let about = Preamble {
        conversation: &conversation,
        system_prompt: Some(&prompt),
        outline: &outline,
        given_up: &[],
        media: &NoMedia,
    };
    let written = |style| {
        let mut out = Vec::new();
        let mut document = begin(style, &mut out, about).unwrap();
        turns.iter().for_each(|turn| document.turn(turn).unwrap());
        document.finish().unwrap();
        String::from_utf8(out).unwrap()
    };
    let page = written(Style::Html);
    check_page(&page).unwrap_or_else(|why| panic!("{why}\n{page}"));
    let text = written(Style::Markdown);
    check_markdown(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let file = written(Style::Session);
    let report = session::check(file.as_bytes()).unwrap();
    assert!(report.is_ok(), "{report:?}\n{file}");
    for provider in Provider::ALL {
        let request = written(Style::Messages(provider));
        json::check(&request).unwrap_or_else(|error| panic!("{provider}: {error}\n{request}"));
    }
}

/// A turn as the API shows it. None for what is no message.
fn turn((at, message): (usize, &Raw)) -> Option<Turn> {
    let role = message::role(&message.read()?).ok()?;
    let mut id = [0; 16];
    id[15] = at as u8;
    id[14] = (at >> 8) as u8;
    let shown = json!({
        "id": TurnId::from_bytes(id), "conversation": ConversationId::from_bytes([7; 16]), "seq": at + 2, "role": role,
        "status": "complete", "visibility": "public", "created": START,
    });
    let mut turn: Turn = serde_json::from_value(shown).unwrap();
    turn.message = Some(message.clone());
    Some(turn)
}

/// The reply of a model server: however the bytes are cut, the reply is the same. The first byte chooses the protocol.
pub fn reply(bytes: &[u8]) {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let protocol = match first % 3 {
        0 => Protocol::OpenaiChat,
        1 => Protocol::OpenaiResponses,
        _ => Protocol::Anthropic,
    };
    let whole = replied(protocol, rest.chunks(rest.len().max(1)));
    assert_eq!(replied(protocol, rest.chunks(1)), whole);
    assert_eq!(replied(protocol, rest.chunks(7)), whole);
    let body = &*text_of(rest);
    Failure::of_status(400 + u16::from(*first), body).error(Some("secret"));
    let _ = embeddings::read(body, usize::from(*first));
}

/// The reply, its deltas or its failure, in words.
fn replied<'a>(protocol: Protocol, pieces: impl Iterator<Item = &'a [u8]>) -> String {
    const BYTES_MAX: usize = 1024 * 1024;
    let mut reader = Reader::new(protocol, BYTES_MAX);
    let mut deltas = Vec::new();
    for piece in pieces {
        if let Err(failure) = reader.feed(piece, &mut deltas) {
            return words(&deltas, &failure);
        }
    }
    match reader.finish(&mut deltas) {
        Ok(reply) => {
            for message in &reply.messages {
                json::check(message.get()).unwrap();
            }
            words(&deltas, &reply)
        }
        Err(failure) => words(&deltas, &failure),
    }
}

fn words(deltas: &[Delta], end: &impl Debug) -> String {
    format!("{deltas:?}\n{end:?}")
}

/// A streamed reply of each protocol.
pub fn replies() -> Vec<Vec<u8>> {
    let chat = "\0data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\",\"tool_calls\":[{\"index\":0,\"id\":\"t\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\n\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    let responses = "\u{1}event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"model\":\"m\"}}\n\ndata: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"Hi\"}\n\ndata: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"Hi\"}]}}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n";
    let anthropic = "\u{2}event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"c\",\"usage\":{\"input_tokens\":1}}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}}\n\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":1}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    let whole = "\0{\"id\":\"c\",\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}";
    [chat, responses, anthropic, whole].map(|reply| reply.as_bytes().to_vec()).to_vec()
}
