//! Session files: whole, cut, damaged, foreign.

use crate::log::{Log, START, conversation_id};
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::turn::Role;
use everturn_formats::jsonl::{FileReport, Item, LINE_BYTES_MAX, Reader, TruncatedTail, Writer, verify};
use proptest::prelude::*;
use std::io::{self, BufReader, Read};

fn conversation() -> Log {
    let settings = Settings { title: Some(Some("A \"title\"".into())), ..Settings::default() };
    let mut log = Log::created(conversation_id(7), settings);
    log.say(Role::User, r#"{"role":"user","content":"hé","n":1.0}"#);
    // A body with line breaks between its tokens must not break the line.
    log.say(Role::Assistant, "{\"role\":\"assistant\",\n \"content\":\"two\\nlines\"}");
    // The kinds are open: an event may be called what the frame is called.
    log.add("session_end", "{}");
    log
}

fn written(log: &Log) -> String {
    let conversation = log.conversation.as_ref().unwrap();
    let mut writer = Writer::new(Vec::new(), conversation, START).unwrap();
    log.events.iter().for_each(|event| writer.event(event).unwrap());
    String::from_utf8(writer.finish(START.plus_s(60)).unwrap()).unwrap()
}

fn items(bytes: &[u8]) -> Vec<Item> {
    // A tiny buffer, so that every line crosses its edge.
    Reader::new(BufReader::with_capacity(7, bytes)).map(Result::unwrap).collect()
}

fn checked(bytes: impl AsRef<[u8]>) -> FileReport {
    verify(bytes.as_ref(), None).unwrap()
}

#[test]
fn a_conversation_comes_back_and_verifies_offline() {
    let log = conversation();
    let file = written(&log);
    let lines: Vec<&str> = file.lines().collect();
    let id = log.id;
    assert_eq!(
        lines[0],
        format!(
            r#"{{"type":"session_start","timestamp":"2026-01-01T00:00:00.000000Z","session_id":"{id}","conversation":"{id}","started_at":"2026-01-01T00:00:01.000000Z","format":1,"title":"A \"title\""}}"#
        )
    );
    assert_eq!(
        lines[5],
        r#"{"type":"session_end","timestamp":"2026-01-01T00:01:00.000000Z","ended_at":"2026-01-01T00:00:04.000000Z","duration_s":3.0,"entries":4,"by_type":{"conversation.created":1,"message":2,"session_end":1}}"#
    );
    let items = items(file.as_bytes());
    let Item::Header(header) = &items[0] else { panic!("{:?}", items[0]) };
    assert_eq!((header.conversation, header.title.as_deref()), (Some(id), Some("A \"title\"")));
    let events: Vec<_> = items
        .iter()
        .filter_map(|item| if let Item::Event { event, .. } = item { Some((**event).clone()) } else { None })
        .collect();
    assert_eq!(events, log.events);
    assert!(matches!(&items[5], Item::End(end) if end.entries == Some(4) && end.line == 6));

    let head = log.conversation.as_ref().unwrap().head;
    let report = verify(file.as_bytes(), Some(log.events[1].hash)).unwrap();
    assert!(report.is_ok() && !report.unclosed);
    assert_eq!((report.chain.head, report.chain.contains_head), (head, Some(true)));
    let other = verify(file.as_bytes(), Some(Hash::of(b"another head"))).unwrap();
    assert!(!other.is_ok() && other.broken.is_none());
}

#[test]
fn a_fork_verifies_across_the_seam() {
    let parent = conversation();
    let mut child = Log::fork(&parent, conversation_id(8));
    child.say(Role::User, r#"{"role":"user","content":"otherwise"}"#);
    let report = checked(written(&child));
    assert!(report.is_ok(), "{report:?}");
    assert_eq!((report.conversation, report.chain.events), (child.id, 6));

    // Under another conversation's header it is not that conversation's file.
    let renamed = written(&child).replacen(&child.id.to_string(), &parent.id.to_string(), 2);
    assert_eq!(checked(renamed).broken.unwrap().code, "file.other_conversation");
}

#[test]
fn erased_bodies_are_counted_and_no_error() {
    let mut log = conversation();
    log.events[1].body = None;
    let report = checked(written(&log));
    assert!(report.is_ok());
    assert_eq!(report.chain.erased, 1);
}

#[test]
fn a_cut_file_gives_everything_before_the_cut() {
    let log = conversation();
    let file = written(&log);
    let starts: Vec<usize> =
        std::iter::once(0).chain(file.match_indices('\n').map(|(at, _)| at + 1)).collect();
    for cut in 0..file.len() {
        let items = items(&file.as_bytes()[..cut]);
        let whole = starts.iter().filter(|start| **start <= cut && **start > 0).count();
        let line_start = starts[whole];
        let tail = items.last().filter(|item| matches!(item, Item::TruncatedTail(_)));
        if cut == line_start {
            assert_eq!((items.len(), tail), (whole, None), "cut at {cut}");
        } else if cut + 1 == starts[whole + 1] {
            assert_eq!((items.len(), tail), (whole + 1, None), "only the line break is missing at {cut}");
        } else {
            let expected = TruncatedTail { byte_offset: line_start as u64, bytes: (cut - line_start) as u64 };
            assert_eq!(
                (items.len(), tail),
                (whole + 1, Some(&Item::TruncatedTail(expected))),
                "cut at {cut}"
            );
        }
        if cut > starts[1] {
            let report = checked(&file.as_bytes()[..cut]);
            let torn = tail.is_some();
            assert_eq!((report.is_ok(), report.unclosed), (!torn, cut + 1 < file.len()), "cut at {cut}");
        }
    }
}

#[test]
fn a_bad_line_is_reported_and_reading_goes_on() {
    let file = written(&conversation());
    let lines: Vec<&str> = file.lines().collect();
    let third = lines[2].replace("\"role\":\"user\",\"vis", "\"role\":\"king\",\"vis");
    let twice = lines[2].replace("\"n\":1.0", "\"n\":1.0,\"n\":1");
    let offset = lines[0].len() as u64 + lines[1].len() as u64 + 2;
    for (bad, says) in [
        (b"{\"type\":".to_vec(), "the JSON ends too early".to_string()),
        (b"\0\0\0\0".to_vec(), "expected a JSON value".to_string()),
        (b"{\"a\":\"ok\xff\"}".to_vec(), format!("invalid UTF-8 at byte {} of the file", offset + 8)),
        (third.clone().into_bytes(), "king".to_string()),
        (twice.into_bytes(), "duplicate key \"n\"".to_string()),
    ] {
        let mut bytes = format!("{}\n{}\n", lines[0], lines[1]).into_bytes();
        bytes.extend(&bad);
        bytes.extend(format!("\n{}\n{}\n{}\n", lines[3], lines[4], lines[5]).as_bytes());
        let items = items(&bytes);
        assert_eq!(items.len(), 6);
        let Item::Corrupt(corrupt) = &items[2] else { panic!("{:?}", items[2]) };
        assert_eq!((corrupt.line, corrupt.byte_offset), (3, offset));
        assert!(corrupt.reason.contains(&says), "{} has no {says:?}", corrupt.reason);
        assert!(matches!(items[3], Item::Event { line: 4, .. }) && matches!(items[5], Item::End(_)));
        let report = checked(&bytes);
        assert!(!report.is_ok());
        assert_eq!((report.corrupt, &report.corrupt_lines[0]), (1, corrupt));
        assert_eq!(report.broken.unwrap().code, "chain.missing_seq");
    }
}

#[test]
fn a_line_over_the_limit_is_skipped_without_being_held() {
    let file = written(&conversation());
    let split = file.find('\n').unwrap() + 1;
    let long = LINE_BYTES_MAX as u64 * 3 + 5;
    let source = io::Cursor::new(&file[..split])
        .chain(io::repeat(b'x').take(long))
        .chain(io::Cursor::new("\n"))
        .chain(io::Cursor::new(&file[split..]));
    let items: Vec<Item> =
        Reader::new(BufReader::with_capacity(1 << 20, source)).map(Result::unwrap).collect();
    let Item::Corrupt(corrupt) = &items[1] else { panic!("{:?}", items[1]) };
    assert!(
        corrupt.reason.contains(&format!("LINE_BYTES_MAX is {LINE_BYTES_MAX}, this is {long}")),
        "{corrupt:?}"
    );
    assert!(matches!(&items[2], Item::Event { line: 3, event } if event.seq == 1));

    // The longest line that is allowed is not touched by the limit.
    let longest = format!("\"{}\"\n{{}}", "x".repeat(LINE_BYTES_MAX - 2));
    let lengths: Vec<usize> = Reader::new(longest.as_bytes())
        .map(|item| if let Ok(Item::Foreign { text, .. }) = item { text.len() } else { 0 })
        .collect();
    assert_eq!(lengths, [LINE_BYTES_MAX, 2]);

    let endless = BufReader::with_capacity(1 << 20, io::repeat(0).take(long));
    let items: Vec<Item> = Reader::new(endless).map(Result::unwrap).collect();
    assert_eq!(items, [Item::TruncatedTail(TruncatedTail { byte_offset: 0, bytes: long })]);
}

#[test]
fn marks_carriage_returns_and_empty_lines_change_nothing() {
    let log = conversation();
    let file = written(&log);
    let dressed = format!("\u{feff}{}", file.replace('\n', "\r\n\r\n"));
    let report = checked(&dressed);
    assert!(report.is_ok() && !report.unclosed, "{report:?}");
    assert_eq!(report.chain.events, 4);
    assert_eq!(items(dressed.as_bytes()).len(), 6);
}

#[test]
fn another_programs_session_file_is_handed_on_as_it_is() {
    let file = concat!(
        r#"{"type":"session_start","session_id":"uuid","image_id":"raw_1","started_at":"2026-04-27T14:30:00Z","conversation":7}"#,
        "\n",
        r#"{"type":"snapshot_created","timestamp":"2026-04-27T14:30:01Z","hash":"abc", "n": 1.0}"#,
        "\n[1]\n",
    );
    let items = items(file.as_bytes());
    let Item::Header(header) = &items[0] else { panic!("{:?}", items[0]) };
    assert_eq!((header.session_id.as_deref(), header.conversation), (Some("uuid"), None));
    assert!(header.text.contains(r#""image_id":"raw_1""#));
    let text = file.lines().nth(1).unwrap().to_string();
    assert_eq!(items[1..], [Item::Foreign { line: 2, text }, Item::Foreign { line: 3, text: "[1]".into() }]);
    let mut reader = Reader::new(file.as_bytes());
    assert_eq!((reader.by_ref().count(), reader.is_unclosed()), (3, true));
    assert_eq!(verify(file.as_bytes(), None).unwrap_err().code(), "file.no_chain");
    assert_eq!(verify(&b""[..], None).unwrap_err().code(), "file.no_chain");
}

#[test]
fn what_the_chain_cannot_see_the_frame_does() {
    let file = written(&conversation());
    let lines: Vec<&str> = file.lines().collect();
    let code = |lines: &[&str]| {
        let report = checked(lines.join("\n") + "\n");
        (report.is_ok(), report.unclosed, report.broken.map(|broken| (broken.line, broken.code)))
    };
    let [header, events @ .., end] = &lines[..] else { panic!("{lines:?}") };
    // The last event removed, and the end kept: the chain alone is whole.
    let without_last = [&[*header], &events[..3], &[*end]].concat();
    assert_eq!(code(&without_last), (false, false, Some((5, "file.entries"))));
    assert_eq!(code(&lines[..5]), (true, true, None), "a file still being written is fine");
    assert_eq!(code(&lines[1..]), (true, false, None), "the header is not needed");
    let stranger = [&lines[..3], &[r#"{"type":"note"}"#], &lines[3..]].concat();
    assert!(!code(&stranger).0, "a line without a place in the chain proves nothing");
    let two = [&lines[..], &lines[..]].concat();
    assert_eq!(code(&two), (false, false, Some((7, "file.second_session"))));
    let mut swapped = lines.clone();
    swapped.swap(2, 3);
    assert_eq!(code(&swapped), (false, false, Some((3, "chain.missing_seq"))));
}

#[test]
fn assets_travel_in_pieces_beside_the_chain() {
    let log = conversation();
    let assets: Vec<Vec<u8>> = [0, 5, 4_000_000].map(|size| vec![size as u8; size]).into();
    let mut writer = Writer::new(Vec::new(), log.conversation.as_ref().unwrap(), START).unwrap();
    assets.iter().for_each(|bytes| writer.asset(Hash::of(bytes), bytes).unwrap());
    log.events.iter().for_each(|event| writer.event(event).unwrap());
    let file = writer.finish(START).unwrap();
    assert!(checked(&file).is_ok(), "pieces are no events and no strangers");

    let read = |file: &[u8]| -> Vec<Item> { Reader::new(file).map(Result::unwrap).collect() };
    let mut back: Vec<(Hash, Vec<u8>)> = Vec::new();
    for item in read(&file) {
        let Item::Asset(part) = item else { continue };
        if part.offset == 0 {
            back.push((part.sha256, Vec::new()));
        }
        let (sha256, bytes) = back.last_mut().unwrap();
        assert_eq!((part.sha256, part.offset), (*sha256, bytes.len() as u64));
        bytes.extend(&part.piece);
    }
    let expected: Vec<_> = assets.into_iter().map(|bytes| (Hash::of(&bytes), bytes)).collect();
    assert!(back == expected);

    let broken = String::from_utf8(file).unwrap().replacen("\"base64\":\"\"", "\"base64\":\"?\"", 1);
    assert!(
        matches!(&read(broken.as_bytes())[1], Item::Corrupt(line) if line.reason.contains("piece of an asset"))
    );
    assert!(!checked(&broken).is_ok());
}

#[test]
fn a_newer_format_is_refused() {
    let file = written(&conversation()).replacen("\"format\":1", "\"format\":2", 1);
    let error = verify(file.as_bytes(), None).unwrap_err();
    assert_eq!(error.code(), "file.format_newer");
    assert!(error.text().contains("has format 2, this everturn reads up to 1"), "{error}");
    assert_eq!(Reader::new(file.as_bytes()).count(), 1, "and nothing is read behind the refusal");
}

/// Fails with this kind on every call.
struct Failing(io::ErrorKind);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
}

impl io::Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn a_failing_disk_is_an_error_that_says_so() {
    let log = conversation();
    for (kind, code) in [
        (io::ErrorKind::StorageFull, "file.disk_full"),
        (io::ErrorKind::BrokenPipe, "file.pipe_closed"),
        (io::ErrorKind::PermissionDenied, "file.io"),
    ] {
        let error = Writer::new(Failing(kind), log.conversation.as_ref().unwrap(), START).err().unwrap();
        assert_eq!(error.code(), code);
        assert!(error.text().starts_with("writing the session file: "), "{error}");
    }
    let mut reader = Reader::new(BufReader::new(Failing(io::ErrorKind::Other)));
    assert_eq!(reader.next().unwrap().unwrap_err().code(), "file.io");
    assert!(reader.next().is_none());
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let read: Result<Vec<Item>, _> = Reader::new(&bytes[..]).collect();
        prop_assert!(read.is_ok());
    }

    /// Whatever byte of an event's line is changed: it is seen. (The frame around the chain is not hashed.)
    #[test]
    fn a_changed_byte_in_an_event_is_seen(at in any::<prop::sample::Index>(), by in 1..=255u8) {
        let file = written(&conversation()).into_bytes();
        let (start, end) = (
            file.iter().position(|byte| *byte == b'\n').unwrap() + 1,
            file[..file.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap(),
        );
        let mut changed = file.clone();
        let at = start + at.index(end - start);
        changed[at] ^= by;
        let unchanged_meaning = items(&changed) == items(&file);
        prop_assert!(unchanged_meaning || !checked(&changed).is_ok(), "byte {at} by {by}");
    }
}
