//! Backups: what is written is read again, and whatever happened to the file since is found.

use crate::log::{Log, START, conversation_id};
use everturn_core::access::{self, AccessKey};
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Settings, Tombstone};
use everturn_core::event::Event;
use everturn_core::id::{KeyId, TenantName, TurnId};
use everturn_core::turn::Role;
use everturn_core::write::AnsweredRequest;
use everturn_core::{Error, encoding};
use everturn_formats::archive::{
    ArchiveContents, ArchiveHeader, Block, Deleted, Erased, FORMAT, Item, LINE_BYTES_MAX, OpenText, ParentNo,
    Ranges, Reader, Through, Writer,
};
use proptest::prelude::*;
use std::io::Read;

fn header(number: u64, follows: Option<Hash>) -> ArchiveHeader {
    ArchiveHeader { format: FORMAT, number, follows, created: START }
}

fn tenant() -> TenantName {
    TenantName::new("acme").unwrap()
}

fn block(no: u64, after: u64) -> Block {
    Block {
        no,
        tenant: tenant(),
        id: conversation_id(no),
        created: START,
        parent: (no > 1).then_some(ParentNo { no: 1, at_seq: 2 }),
        after,
    }
}

fn events(count: usize) -> Vec<Event> {
    let mut log = Log::created(conversation_id(1), Settings::default());
    for n in 1..count {
        log.say(Role::User, &format!(r#"{{"role":"user","content":"turn {n}"}}"#));
    }
    log.events
}

fn ranges(numbers: &[u64]) -> Ranges {
    let mut ranges = Ranges::default();
    numbers.iter().for_each(|number| ranges.insert(*number));
    ranges
}

fn through(events: &[Event], erased: &[u64]) -> Through {
    let last = events.last();
    Through { seq: last.map_or(0, |e| e.seq), hash: last.map(|e| e.hash), erased: ranges(erased) }
}

fn key(n: u8) -> AccessKey {
    AccessKey {
        id: KeyId::from_bytes([n; 16]),
        tenant: tenant(),
        role: access::KeyRole::Admin,
        actors: vec!["ada".into()],
        label: Some("laptop".into()),
        created: START,
        expires: None,
        revoked: Some(START),
        last_used: None,
        secret: Hash([n; 32]),
    }
}

/// One of everything.
fn full() -> (Vec<u8>, Hash) {
    let mut writer = Writer::new(Vec::new(), &header(1, None)).unwrap();
    let mut events = events(4);
    events[2].body = None;
    writer.block(&block(1, 0)).unwrap();
    for event in &events {
        writer.event(event).unwrap();
    }
    let bytes = b"the bytes of an asset".repeat(10);
    writer.asset(4, Hash::of(&bytes), Some(&bytes)).unwrap();
    writer.asset(4, Hash::of(b""), Some(b"")).unwrap();
    writer.asset(4, Hash::of(b"elsewhere"), None).unwrap();
    writer
        .request(AnsweredRequest {
            creation: true,
            key: "k".into(),
            fingerprint: Hash([3; 32]),
            first_seq: 1,
            last_seq: 1,
        })
        .unwrap();
    writer.open_text(OpenText { turn: TurnId::from_bytes([5; 16]), text: "so\nfar".into() }).unwrap();
    writer.through(through(&events, &[3])).unwrap();
    writer.block(&block(2, 0)).unwrap();
    writer.through(through(&[], &[])).unwrap();
    writer.deleted(deleted(2)).unwrap();
    writer.key(key(1)).unwrap();
    let (bytes, id, size) = writer.finish().unwrap();
    assert_eq!(bytes.len() as u64, size);
    (bytes, id)
}

fn deleted(no: u64) -> Deleted {
    let head = Head { seq: 7, hash: Hash([9; 32]) };
    let tombstone = Tombstone { id: conversation_id(no), head, deleted: START, reason: "asked for".into() };
    Deleted { no, tombstone, through: 0 }
}

fn increment(follows: Hash, number: u64, erased: &[u64]) -> (Vec<u8>, Hash) {
    let mut writer = Writer::new(Vec::new(), &header(number, Some(follows))).unwrap();
    writer.erased(Erased { no: 1, seqs: ranges(erased) }).unwrap();
    let (bytes, id, _) = writer.finish().unwrap();
    (bytes, id)
}

fn read(mut source: impl Read) -> Result<(Vec<Item>, Hash), Error> {
    let mut reader = Reader::new(&mut source)?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    Ok((items, reader.finish()?))
}

#[test]
fn everything_comes_back_as_it_was_written() {
    let (bytes, id) = full();
    let (items, read_id) = read(&bytes[..]).unwrap();
    assert_eq!(read_id, id);
    let mut expected = events(4);
    expected[2].body = None;
    let read: Vec<Event> = items
        .iter()
        .filter_map(|item| if let Item::Event(line) = item { Some(line.event().unwrap()) } else { None })
        .collect();
    assert_eq!(read, expected);
    let asset = b"the bytes of an asset".repeat(10);
    assert!(items.iter().any(|item| matches!(item, Item::Asset(_, Some(bytes)) if *bytes == asset)));
    assert!(items.iter().any(|item| matches!(item, Item::Asset(_, Some(bytes)) if bytes.is_empty())));
    assert!(items.iter().any(|item| matches!(item, Item::Key(found) if *found == key(1))));
    assert!(items.iter().any(|item| matches!(item, Item::Text(text) if text.text == "so\nfar")));
    assert!(items.iter().any(|item| matches!(item, Item::Deleted(found) if *found == deleted(2))));
    assert!(items.iter().any(|item| matches!(item, Item::Block(found) if *found == block(2, 0))));
}

/// The lines are frozen: archives outlive the program that wrote them. Other tools can read them with `zstd -dc`.
#[test]
fn an_archive_is_zstandard_with_one_record_a_line() {
    let (bytes, _) = full();
    let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
    let event = encoding::to_line(&events(1)[0]).unwrap();
    let one = conversation_id(1);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        r#"{"backup":{"format":1,"number":1,"follows":null,"created":"2026-01-01T00:00:00.000000Z"}}"#
    );
    assert_eq!(
        lines[1],
        format!(
            r#"{{"conversation":{{"no":1,"tenant":"acme","id":"{one}","created":"2026-01-01T00:00:00.000000Z","parent":null,"after":0}}}}"#
        )
    );
    assert_eq!(lines[2], format!("{{\"event\":{event}}}"));
    assert!(
        lines[6].starts_with(r#"{"asset":{"seq":4,"sha256":""#) && lines[6].ends_with(r#"","bytes":210}}"#)
    );
    assert!(lines[7].starts_with(r#"{"piece":"dGhl"#));
    let has = |line: &str| assert!(lines.contains(&line), "{line} is not in\n{text}");
    has(&format!(
        r#"{{"request":{{"creation":true,"key":"k","fingerprint":"{}","first_seq":1,"last_seq":1}}}}"#,
        Hash([3; 32])
    ));
    has(&format!(r#"{{"text":{{"turn":"{}","text":"so\nfar"}}}}"#, TurnId::from_bytes([5; 16])));
    has(&format!(r#"{{"through":{{"seq":4,"hash":"{}","erased":[[3,3]]}}}}"#, events(4)[3].hash));
    has(r#"{"through":{"seq":0,"hash":null}}"#);
    has(&format!(
        r#"{{"deleted":{{"no":2,"tombstone":{{"id":"{}","head":{{"seq":7,"hash":"{}"}},"deleted":"2026-01-01T00:00:00.000000Z","reason":"asked for"}},"through":0}}}}"#,
        conversation_id(2),
        Hash([9; 32])
    ));
    has(&format!(
        r#"{{"key":{{"id":"{}","tenant":"acme","role":"admin","actors":["ada"],"label":"laptop","created":"2026-01-01T00:00:00.000000Z","expires":null,"revoked":"2026-01-01T00:00:00.000000Z","last_used":null,"secret_sha256":"{}"}}}}"#,
        key(1).id,
        Hash([1; 32])
    ));
    has(r#"{"end":{"conversations":2,"events":4,"assets":2,"deleted":1,"erased":0,"requests":1,"keys":1}}"#);
    let (bytes, _) = increment(Hash([7; 32]), 2, &[1, 2, 4]);
    let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
    assert!(text.contains(r#"{"erased":{"no":1,"seqs":[[1,2],[4,4]]}}"#), "{text}");
}

#[test]
fn wherever_an_archive_is_cut_it_is_found() {
    let (bytes, _) = full();
    for end in 0..bytes.len() {
        let error = ArchiveContents::default().add(&bytes[..end]).unwrap_err();
        assert!(
            matches!(error.code(), "backup.cut" | "backup.damaged") || end < 4,
            "cut at {end}: {error:?}"
        );
    }
    ArchiveContents::default().add(&bytes[..]).unwrap();
}

#[test]
fn whichever_byte_is_changed_it_is_found() {
    let (bytes, _) = full();
    for at in 0..bytes.len() {
        for bit in [0x01, 0x10, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= bit;
            assert!(ArchiveContents::default().add(&changed[..]).is_err(), "byte {at}, bits {bit:#x}");
        }
    }
}

#[test]
fn what_stands_behind_an_archive_is_found() {
    let (bytes, _) = full();
    for tail in [&b"\n"[..], &bytes, &zstd::encode_all(&b"{}"[..], 3).unwrap()] {
        assert!(ArchiveContents::default().add(&[&bytes, tail].concat()[..]).is_err());
    }
}

/// A file of a few kilobytes that expands to gigabytes takes neither memory nor long.
#[test]
fn an_archive_that_expands_without_end_is_refused() {
    let endless = vec![b'x'; LINE_BYTES_MAX + 10];
    let (whole, _) = full();
    let head = zstd::decode_all(&whole[..]).unwrap();
    let first = head.split_inclusive(|byte| *byte == b'\n').next().unwrap();
    let packed = |text: &[u8]| [zstd::encode_all(text, 3).unwrap(), vec![0; 40]].concat();
    let bomb = packed(&[first, &endless].concat());
    assert!(bomb.len() < 100_000);
    let error = ArchiveContents::default().add(&bomb[..]).unwrap_err();
    assert!(error.text().contains("LINE_BYTES_MAX"), "{error:?}");
    assert_eq!(ArchiveContents::default().add(&packed(&endless)[..]).unwrap_err().code(), "limit.exceeded");
}

#[test]
fn files_that_are_something_else_are_named_as_such() {
    let packed = |text: &str| [zstd::encode_all(text.as_bytes(), 3).unwrap(), vec![0; 40]].concat();
    for foreign in [&b""[..], b"{}", b"SQLite format 3\0", &packed("{}\n"), &packed("{\"type\":\"x\"}\n")] {
        assert_eq!(ArchiveContents::default().add(foreign).unwrap_err().code(), "backup.foreign");
    }
    for damaged in ["", "{\"backup\":{\"formaz\":1}}\n", "{\"backup\":{\"format\":1,\"number\":true}}\n"] {
        let error = ArchiveContents::default().add(&packed(damaged)[..]).unwrap_err();
        assert!(matches!(error.code(), "backup.cut" | "backup.damaged"), "{damaged}: {error:?}");
    }
    let newer = packed("{\"backup\":{\"format\":2,\"shape\":\"unknown\"}}\n");
    let error = ArchiveContents::default().add(&newer[..]).unwrap_err();
    assert_eq!(error.code(), "backup.newer");
    assert!(error.text().contains("format 2"), "{error}");
}

#[test]
fn increments_are_read_in_their_order_only() {
    let (base, base_id) = full();
    let (second, second_id) = increment(base_id, 2, &[1]);
    let (third, third_id) = increment(second_id, 3, &[2]);
    let (other, _) = increment(Hash([1; 32]), 2, &[]);
    let read = |archives: &[&[u8]]| {
        let mut contents = ArchiveContents::default();
        archives.iter().try_for_each(|archive| contents.add(*archive)).map(|()| contents)
    };
    let contents = read(&[&base, &second, &third]).unwrap();
    assert_eq!(contents.last.unwrap().1, third_id);
    let member = &contents.members[&1];
    assert_eq!(member.erased, ranges(&[1, 2, 3]));
    assert!(!member.has_body(2) && member.has_body(4) && member.has(2) && !member.has(5));
    assert_eq!(contents.members[&2].deleted.as_ref().unwrap().0, deleted(2).tombstone);
    assert_eq!(read(&[&second]).unwrap_err().code(), "backup.incomplete");
    for wrong in [&[&base[..], &third][..], &[&base, &second, &second], &[&base, &other], &[&base, &base]] {
        assert_eq!(read(wrong).unwrap_err().code(), "backup.order");
    }
}

/// A source that fails says nothing about the archive.
#[test]
fn a_disk_that_fails_is_not_a_damaged_archive() {
    struct Failing<'a>(&'a [u8]);
    impl Read for Failing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(std::io::Error::other("the disk is gone")),
                read => Ok(read),
            }
        }
    }
    let (bytes, _) = full();
    let error = ArchiveContents::default().add(Failing(&bytes[..bytes.len() / 2])).unwrap_err();
    assert_eq!(error.code(), "file.io");
    assert!(error.text().contains("the disk is gone"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Foreign bytes never panic, also inside a frame that is right.
    #[test]
    fn any_bytes_are_an_error_or_an_archive(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "(\\{\"(event|asset|piece|through|end)\":[ -~]{0,40}\\}\n){0,5}") {
        prop_assert!(ArchiveContents::default().add(&bytes[..]).is_err());
        let head = "{\"backup\":{\"format\":1,\"number\":1,\"follows\":null,\"created\":\"2026-01-01T00:00:00Z\"}}\n";
        let unended = zstd::encode_all([head, text.as_str()].concat().as_bytes(), 3).unwrap();
        prop_assert!(ArchiveContents::default().add(&unended[..]).is_err());
    }

    /// Whatever texts people choose, they come back.
    #[test]
    fn texts_and_requests_come_back(text in any::<String>(), key in any::<String>(), asset in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut writer = Writer::new(Vec::new(), &header(1, None)).unwrap();
        let request = AnsweredRequest { creation: false, key, fingerprint: Hash([0; 32]), first_seq: 1, last_seq: 2 };
        let open = OpenText { turn: TurnId::from_bytes([1; 16]), text };
        writer.block(&block(1, 0)).unwrap();
        writer.request(request.clone()).unwrap();
        writer.open_text(open.clone()).unwrap();
        writer.asset(1, Hash::of(&asset), Some(&asset)).unwrap();
        writer.through(through(&[], &[])).unwrap();
        let (bytes, id, _) = writer.finish().unwrap();
        let (items, read_id) = read(&bytes[..]).unwrap();
        prop_assert_eq!(read_id, id);
        prop_assert!(matches!(&items[1], Item::Request(found) if *found == request));
        prop_assert!(matches!(&items[2], Item::Text(found) if *found == open));
        prop_assert!(matches!(&items[3], Item::Asset(_, Some(found)) if *found == asset));
    }
}
