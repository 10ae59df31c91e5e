//! A store in memory with a conversation in it. Its clock and its random numbers only count, so it is the same in every run.

use crate::views;
use everturn_core::encoding;
use everturn_core::event::Event;
use everturn_core::id::ConversationId;
use everturn_engine::{
    Error, Everturn, Format, NewConversation, NewTurn, Options, SystemWorld, Tenant, Timestamp, World,
};
use everturn_formats::jsonl::{Item, Reader};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time and randomness that count.
#[derive(Default)]
struct Counting(AtomicU64);

impl World for Counting {
    fn now(&self) -> Timestamp {
        // 2026-01-01T00:00:00Z, and a second more at each look.
        let seconds = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp(1_767_225_600_000_000).plus_s(seconds)
    }

    fn fill(&self, buffer: &mut [u8]) -> Result<(), Error> {
        for chunk in buffer.chunks_mut(8) {
            // Odd, so that no two of the counted numbers become the same.
            let number = self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&number.to_be_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

/// An empty store without work in the background.
pub fn store() -> Everturn {
    open(Arc::new(Counting::default()))
}

/// The same with the time of the machine, for credentials that end.
pub fn store_of_today() -> Everturn {
    open(Arc::new(SystemWorld))
}

fn open(world: Arc<dyn World>) -> Everturn {
    let options = Options {
        world,
        index: false,
        auto_compaction: false,
        sweep_every: Duration::from_secs(24 * 60 * 60),
        ..Options::default()
    };
    Everturn::open_with("memory:", options).unwrap()
}

/// Id of the conversation of [`furnish`].
pub fn conversation() -> ConversationId {
    ConversationId::from_bytes([1; 16])
}

/// A conversation with turns of two providers, a pin, an asset and a fork.
pub fn furnish(tenant: &Tenant) {
    let new = NewConversation { id: Some(conversation()), ..NewConversation::from("Fix the build") };
    let chat = tenant.create(new).wait().unwrap();
    for talk in views::conversations() {
        let messages: Vec<Value> = serde_json::from_slice(&talk).unwrap();
        for message in messages {
            chat.append(NewTurn::message(message.to_string())).wait().unwrap();
        }
    }
    chat.state().pin("branch", json!({"name": "main"})).wait().unwrap();
    chat.assets().add(Some("a.txt".into()), "text/plain", b"bytes".to_vec()).unwrap();
    chat.append(NewTurn::user("Fork here.").by("ana")).wait().unwrap();
}

fn exported(format: Format) -> Vec<Vec<u8>> {
    let store = store();
    let tenant = store.tenant("acme").unwrap();
    furnish(&tenant);
    let mut file = Vec::new();
    tenant.conversation(conversation()).export(format, &mut file, &mut |_| {}).unwrap();
    vec![file]
}

/// The conversation as a file.
pub fn jsonl() -> Vec<Vec<u8>> {
    exported(Format::Jsonl)
}

/// The conversation as a session file.
pub fn session() -> Vec<Vec<u8>> {
    exported(Format::Session)
}

/// The conversation as a transcript value.
pub fn transcript() -> Vec<Vec<u8>> {
    exported(Format::Transcript)
}

/// The events of the conversation.
pub fn log() -> Vec<Event> {
    let file = jsonl().remove(0);
    let items = Reader::new(&*file).map(Result::unwrap);
    items.filter_map(|item| if let Item::Event { event, .. } = item { Some(*event) } else { None }).collect()
}

/// The events as lines, all together and one by one.
pub fn events() -> Vec<Vec<u8>> {
    let mut lines: Vec<String> = log().iter().map(|event| encoding::to_line(event).unwrap()).collect();
    lines.push(lines.join("\n"));
    lines.into_iter().map(String::into_bytes).collect()
}
