//! Files of others, and ours that somebody else may have changed: sessions, conversations, backups, the editor's protocol.

use crate::{stage, text_of};
use everturn_core::chain::Hash;
use everturn_core::id::TenantName;
use everturn_core::json::{self, Raw};
use everturn_core::time::Timestamp;
use everturn_core::{encoding, message};
use everturn_formats::acp::{AcpChange, AcpListener, Side};
use everturn_formats::agents::{
    AgentEntry, EntryContent, Opened, continues, detect, first_time, open, unknown,
};
use everturn_formats::archive::{self, ArchiveContents, ArchiveHeader, Block, FORMAT, Through, Writer};
use everturn_formats::session::{self, Mapped, Mapper};
use everturn_formats::{jsonl as conversation_file, transcript as value};
use std::io::{BufRead, BufReader, Write};

/// The file of a conversation: read in pieces of any size, it has the same items, and its events are written as they are.
pub fn jsonl(bytes: &[u8]) {
    let whole = items(bytes);
    for size in [1, 7] {
        assert_eq!(items(BufReader::with_capacity(size, bytes)), whole);
    }
    for item in whole.into_iter().flatten() {
        if let conversation_file::Item::Event { event, .. } = item {
            let line = encoding::to_line(&event).unwrap();
            assert_eq!(encoding::from_line(&line).unwrap(), *event);
        }
    }
    let _ = conversation_file::verify(bytes, Some(Hash([7; 32])));
}

fn items(source: impl BufRead) -> Vec<Result<conversation_file::Item, everturn_core::Error>> {
    conversation_file::Reader::new(source).collect()
}

/// Magic number of the frame at the end of a backup, and its size: see `formats/src/archive/frame.rs`.
const TRAILER: [u8; 8] = [0x5e, 0x2a, 0x4d, 0x18, 32, 0, 0, 0];

/// A backup. An input that is not compressed stands for the records within: a mutated archive would not get past its hash.
pub fn archive(bytes: &[u8]) {
    let packed = if bytes.starts_with(&[0x28, 0xb5]) { bytes.to_vec() } else { packed(bytes) };
    let read = read_archive(&packed);
    let added = ArchiveContents::default().add(&*packed);
    assert!(read.is_ok() || added.is_err(), "an archive was added that cannot be read");
}

fn packed(records: &[u8]) -> Vec<u8> {
    let mut packed = zstd::encode_all(records, 1).unwrap();
    let hash = Hash::of(&packed);
    packed.extend_from_slice(&TRAILER);
    packed.extend_from_slice(&hash.0);
    packed
}

fn read_archive(bytes: &[u8]) -> Result<Hash, everturn_core::Error> {
    let mut reader = archive::Reader::new(bytes)?;
    while let Some(item) = reader.next_item()? {
        if let archive::Item::Event(line) = item {
            let _ = line.event();
        }
    }
    reader.finish()
}

/// A small backup, and its records.
pub fn archives() -> Vec<Vec<u8>> {
    let mut events = stage::log();
    events.truncate(6);
    let at = Timestamp(1_767_225_600_000_000);
    let header = ArchiveHeader { format: FORMAT, number: 1, follows: None, created: at };
    let mut writer = Writer::new(Vec::new(), &header).unwrap();
    let tenant = TenantName::new("acme").unwrap();
    let block = Block {
        no: 1,
        tenant: tenant.clone(),
        id: events[0].conversation,
        created: at,
        parent: None,
        after: 0,
    };
    writer.block(&block).unwrap();
    for event in &events {
        writer.event(event).unwrap();
    }
    writer.asset(2, Hash::of(b"bytes"), Some(b"bytes")).unwrap();
    let last = events.last().unwrap();
    writer.through(Through { seq: last.seq, hash: Some(last.hash), erased: Default::default() }).unwrap();
    writer.loose(&tenant, last).unwrap();
    let (packed, _, _) = writer.finish().unwrap();
    let records = zstd::decode_all(&*packed).unwrap();
    vec![packed, records]
}

/// A transcript value: what it is taken apart into can be stored.
pub fn transcript(bytes: &[u8]) {
    let text = &*text_of(bytes);
    if let Ok(raw) = Raw::new(text.to_string()) {
        let _ = value::messages(&raw);
    }
    let Ok(parsed) = value::parse(text) else { return };
    for asset in &parsed.assets {
        json::check(asset.raw.get()).unwrap();
        let _ = asset.bytes();
    }
    for item in &parsed.items {
        item.asset_ids();
        match item {
            value::Item::Turn { message, .. } => json::check(message.get()).unwrap(),
            value::Item::Event { .. } => json::check(item.body().unwrap().unwrap().get()).unwrap(),
        }
    }
    parsed.settings.normalise().unwrap();
}

/// A session file: every line becomes a turn or an event, and a turn has a message with its role.
pub fn session(bytes: &[u8]) {
    let _ = session::check(bytes);
    let mut mapper = None;
    for item in session::Reader::new(bytes) {
        match item {
            Ok(session::Item::Start(header)) => {
                let _ = Mapper::settings(&header);
                let _ = Mapper::start(&header);
                mapper = Some(Mapper::new(&header));
            }
            Ok(session::Item::Entry(recorded)) => {
                recorded.entry();
                let mapper = mapper.get_or_insert_with(|| Mapper::resume(None, std::iter::empty()));
                match mapper.step(&recorded) {
                    Ok(Mapped::Turn { role, message, .. }) => {
                        json::check(message.get()).unwrap();
                        let value = message.read().unwrap();
                        assert_eq!(message::role(&value).unwrap(), role, "{}", message.get());
                    }
                    Ok(Mapped::Event { body, .. }) => json::check(body.get()).unwrap(),
                    Err(_) => {}
                }
            }
            Ok(session::Item::End(end)) => drop(Mapper::end(&end)),
            Ok(_) => {}
            Err(_) => break,
        }
    }
}

/// First lines by which a file is taken for one of an agent.
const HEADS: [&str; 12] = [
    "{\"type\":\"user\",\"uuid\":\"u\",\"parentUuid\":null,\"sessionId\":\"s\",\"message\":{\"role\":\"user\",\"content\":\"x\"}}\n",
    "{\"timestamp\":\"2026-01-01T00:00:00Z\",\"type\":\"session_meta\",\"payload\":{\"id\":\"i\"}}\n",
    "{\"sessionId\":\"s\",\"projectHash\":\"h\",\"startTime\":\"2026-01-01T00:00:00Z\",\"kind\":\"main\"}\n",
    "{\"sessionId\":\"s\",\"projectHash\":\"h\",\"messages\":[",
    "{\"type\":\"session\",\"version\":3,\"id\":\"i\",\"timestamp\":\"2026-01-01T00:00:00Z\",\"cwd\":\"/a\"}\n",
    "{\"type\":\"session.start\",\"data\":{\"sessionId\":\"s\"},\"id\":\"a\",\"timestamp\":\"2026-01-01T00:00:00Z\",\"parentId\":null}\n",
    "{\"role\":\"_system_prompt\",\"content\":\"x\"}\n",
    "{\"role\":\"user\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}}\n",
    "{\"info\":{\"id\":\"i\"},\"messages\":[{\"info\":{\"id\":\"m\",\"role\":\"user\"},\"parts\":[]},",
    "[{\"role\":\"user\",\"content\":\"x\"},",
    "{\"contents\":[{\"role\":\"user\",\"parts\":[{\"text\":\"x\"}]},",
    "{\"role\":\"user\",\"content\":\"x\"}\n",
];

/// A file of an agent: read in pieces of any size, it has the same entries. A first byte below [`HEADS`] puts such a line in
/// front, so that every format is read, whatever the rest of the input looks like.
pub fn agents(bytes: &[u8]) {
    let head = bytes.first().and_then(|first| HEADS.get(usize::from(*first)));
    let file = match head {
        Some(head) => [head.as_bytes(), &bytes[1..]].concat(),
        None => bytes.to_vec(),
    };
    detect(&file);
    unknown(&file);
    first_time(&*file);
    continues(&*file);
    let whole = entries(&*file);
    assert_eq!(entries(BufReader::with_capacity(7, &*file)), whole);
}

/// The entries and problems of a file, in words.
fn entries(source: impl BufRead) -> Option<String> {
    let Ok(Opened::Agent(mut reader)) = open(source, Some("name")) else { return None };
    let found: Vec<AgentEntry> = reader.by_ref().map_while(Result::ok).collect();
    for entry in &found {
        assert!(entry.thread < reader.threads().len(), "an entry of no thread");
        match &entry.step {
            EntryContent::Turn(turn) => json::check(&turn.message).unwrap(),
            EntryContent::Event { body, .. } | EntryContent::Compaction { body, .. } => {
                json::check(body.get()).unwrap();
            }
            EntryContent::System(_) => {}
        }
    }
    let problems = reader.problems();
    Some(format!("{found:?} {:?} {problems:?}", reader.threads()))
}

/// Compressed files, and a beginning of each format.
pub fn agent_files() -> Vec<Vec<u8>> {
    let plain = HEADS[0].repeat(3).into_bytes();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let mut files = vec![gzip.finish().unwrap(), zstd::encode_all(&*plain, 1).unwrap()];
    files.extend(HEADS.iter().map(|head| head.as_bytes().to_vec()));
    files.extend(
        (0..HEADS.len() as u8).map(|first| [&[first], HEADS[usize::from(first)].as_bytes()].concat()),
    );
    files
}

/// What an editor and an agent say to each other, a message a line. A line of the editor begins with `>`.
pub fn acp(bytes: &[u8]) {
    let mut listener = AcpListener::new("agent").in_run("1");
    let mut steps = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        steps.extend(match line.strip_prefix(b">") {
            Some(line) => listener.hear(Side::Editor, line),
            None => listener.hear(Side::Agent, line),
        });
    }
    steps.extend(listener.finish());
    listener.agent();
    for step in steps {
        let turns = match step.what {
            AcpChange::Turn(turn) => vec![turn],
            AcpChange::AcpStart(start) => start.replay,
            _ => Vec::new(),
        };
        for turn in turns {
            assert_eq!(message::role(&turn.message).unwrap(), turn.role);
        }
    }
}

/// A session with a prompt, a call with a permission, and its end.
pub fn acp_exchanges() -> Vec<Vec<u8>> {
    let lines = [
        r#">{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#,
        r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentInfo":{"name":"a","version":"1"}}}"#,
        r#">{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/a","mcpServers":[]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}"#,
        r#">{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"Hi"}]}}"#,
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"Hel"}}}}"#,
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"t","title":"Read","kind":"read","status":"pending","rawInput":{"path":"x"}}}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"t"},"options":[{"optionId":"y","name":"Allow","kind":"allow_once"}]}}"#,
        r#">{"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"y"}}}"#,
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed","content":[{"type":"content","content":{"type":"text","text":"y"}}]}}}"#,
        r#"{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}"#,
    ];
    vec![lines.join("\n").into_bytes(), lines[..6].join("\n").into_bytes()]
}
