//! Session files that are cut, damaged, foreign or made up: what is read of them, and how they go on.

use crate::session::{AT, CLOSE, Folder, entries, items, new_session, raw, read, said};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_formats::jsonl::TruncatedTail;
use everturn_formats::session::{Entry, Item, Reader, Report, Session, SessionFields, check};
use proptest::prelude::*;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The header of the document, on one line.
const HEADER: &str = r#"{"type":"session_start","session_id":"uuid","image_id":"img_1","started_at":"2026-04-27T14:30:00Z","agent_provider":"claude-sonnet-4-7","agent_temperature":1.0,"context_loaded":["taste.md","brief.md","notes.md"],"starting_snapshot_hash":"abc"}"#;

fn checked(text: impl AsRef<[u8]>) -> Report {
    check(text.as_ref()).unwrap()
}

fn codes(report: &Report) -> Vec<(u64, &str)> {
    report.problems.iter().map(|problem| (problem.line, problem.code)).collect()
}

/// A file with four entries that was not ended.
fn unclosed(folder: &Folder) -> PathBuf {
    let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
    for text in ["one", "zwei \u{fe0f}é", "", "four"] {
        session.append(&said(text)).unwrap();
    }
    session.path().unwrap().to_path_buf()
}

fn torn(path: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", path.display()))
}

#[test]
fn a_file_that_was_cut_anywhere_gives_what_is_before_and_goes_on_behind_it() {
    let folder = Folder::new();
    let path = unclosed(&folder);
    let whole = std::fs::read(&path).unwrap();
    let header = whole.iter().position(|byte| *byte == b'\n').unwrap();
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let complete = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
        let start = whole[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line_break_is_missing = cut < whole.len() && whole[cut] == b'\n';
        let tail = (cut > start && !line_break_is_missing)
            .then_some(TruncatedTail { byte_offset: start as u64, bytes: (cut - start) as u64 });
        if cut > 0 {
            let report = checked(&whole[..cut]);
            assert_eq!((report.truncated_tail, report.corrupt), (tail, 0), "cut at {cut}");
            assert!(report.unclosed);
        }
        let resumed = Session::resume(&path, CLOSE);
        if cut < header {
            let error = resumed.err().unwrap();
            assert_eq!(error.code(), "session.not_a_session");
            assert!(error.text().contains("does not begin with a whole session_start line"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), &whole[..cut], "nothing was touched");
            continue;
        }
        let session = resumed.unwrap();
        let kept = complete + usize::from(line_break_is_missing) - 1;
        session.append(&said("next")).unwrap();
        assert_eq!(session.mended().map(|mended| mended.tail), tail, "cut at {cut}");
        let summary = session.end(AT.plus_s(9), &SessionFields::default()).unwrap();
        assert_eq!(summary.entries, kept as u64 + 1);
        drop(session);
        let report = checked(std::fs::read(&path).unwrap());
        assert!(report.is_ok() && !report.unclosed, "cut at {cut}: {report:?}");
        let mut expected: Vec<Entry> = ["one", "zwei \u{fe0f}é", "", "four"].map(said)[..kept].to_vec();
        expected.push(said("next"));
        assert_eq!(entries(&path), expected, "cut at {cut}");
        match tail {
            Some(_) => {
                assert_eq!(std::fs::read(torn(&path, ".torn")).unwrap(), &whole[start..cut], "cut at {cut}");
                std::fs::remove_file(torn(&path, ".torn")).unwrap();
            }
            None => assert!(!torn(&path, ".torn").exists()),
        }
    }
}

#[test]
fn what_was_cut_off_earlier_is_not_overwritten() {
    let folder = Folder::new();
    let path = unclosed(&folder);
    for (n, ending) in [".torn", ".torn.1", ".torn.2"].into_iter().enumerate() {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(format!("{{\"cut\":{n}").bytes());
        std::fs::write(&path, bytes).unwrap();
        let session = Session::resume(&path, CLOSE).unwrap();
        assert_eq!(session.mended().unwrap().torn, torn(&path, ending));
    }
    assert_eq!(read(&torn(&path, ".torn")), "{\"cut\":0");
    assert_eq!(read(&torn(&path, ".torn.1")), "{\"cut\":1");
    assert_eq!(entries(&path).len(), 4);
}

#[test]
fn a_bad_line_in_the_middle_is_told_and_reading_goes_on() {
    let folder = Folder::new();
    let path = unclosed(&folder);
    let text = read(&path).replacen("\"zwei", "zwei", 1);
    std::fs::write(&path, &text).unwrap();
    let report = checked(&text);
    assert_eq!((report.corrupt, report.corrupt_lines[0].line, report.entries), (1, 3, 3));
    assert!(!report.is_ok() && report.unclosed && report.truncated_tail.is_none());
    assert!(matches!(&items(&path)[2], Item::Corrupt(corrupt) if corrupt.line == 3));
    assert_eq!(entries(&path), ["one", "", "four"].map(said));
    // It stays where it is when the session goes on.
    let session = Session::resume(&path, CLOSE).unwrap();
    session.append(&said("next")).unwrap();
    assert_eq!(session.end(AT, &SessionFields::default()).unwrap().entries, 4);
    assert!(read(&path).starts_with(&text));
    assert_eq!(codes(&checked(read(&path))), []);
}

#[test]
fn a_closed_session_is_not_resumed() {
    let folder = Folder::new();
    let path = unclosed(&folder);
    Session::resume(&path, CLOSE).unwrap().end(AT, &SessionFields::default()).unwrap();
    let whole = read(&path);
    let error = Session::resume(&path, CLOSE).err().unwrap();
    assert_eq!(error.code(), "session.ended");
    assert!(error.text().ends_with("the session was ended; start another one"), "{error}");
    assert_eq!(read(&path), whole);
}

#[test]
fn what_is_no_session_is_not_resumed_and_not_touched() {
    let folder = Folder::new();
    let path = folder.path().join("x.jsonl");
    let conversation =
        HEADER.replace("\"image_id\"", "\"conversation\":\"conv_00000000000000000000000001\",\"image_id\"");
    for (text, says) in [
        ("", "does not begin with a whole session_start"),
        ("my notes\n", "does not begin with"),
        ("{\"type\":\"x\"}\n{\"type\":\"session_start\"}\n", "does not begin with"),
        (&format!("{conversation}\n"), "is the file of a conversation; append to it in its store"),
        (&format!("{}\n", HEADER.replacen('{', "{\"format\":99,", 1)), "upgrade it"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Session::resume(&path, CLOSE).err().expect(says);
        assert!(error.text().contains(says), "{error}");
        assert_eq!(read(&path), text);
    }
    let absent = Session::resume(&folder.path().join("absent"), CLOSE).err().unwrap();
    assert_eq!(absent.code(), "file.absent");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_session_has_one_writer_at_a_time() {
    let folder = Folder::new();
    let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
    let path = session.path().unwrap().to_path_buf();
    assert_eq!(Session::resume(&path, CLOSE).err().unwrap().code(), "session.locked");
    drop(session);
    let session = Session::resume(&path, CLOSE).unwrap();
    assert_eq!(Session::resume(&path, CLOSE).err().unwrap().code(), "session.locked");
    drop(session);
}

#[test]
fn a_session_of_another_program_is_read_checked_and_resumed() {
    let text = format!(
        "\u{feff}{HEADER}\r\n\r\n{{\"timestamp\":\"2026-04-27T14:30:05+00:00\",\"type\":\"weather\",\"rain\":1}}"
    );
    let report = checked(&text);
    assert!(report.is_ok(), "{report:?}");
    assert_eq!((report.session_id.as_deref(), report.entries, report.notes), (Some("uuid"), 1, Vec::new()));
    let folder = Folder::new();
    let path = folder.path().join("theirs.jsonl");
    std::fs::write(&path, &text).unwrap();
    let session = Session::resume(&path, CLOSE).unwrap();
    session.append(&said("ours")).unwrap();
    assert_eq!(session.end(AT.plus_s(60), &SessionFields::default()).unwrap().duration_s, 60.0);
    assert!(checked(read(&path)).is_ok());
    assert_eq!(entries(&path).len(), 2);
}

#[test]
fn a_check_says_what_is_wrong_with_the_header() {
    for (from, to, line, says) in [
        ("\"session_id\":\"uuid\",", "", 1, "the header has no session_id"),
        ("\"started_at\":\"2026-04-27T14:30:00Z\",", "", 1, "the header has no started_at time"),
        ("2026-04-27T14:30:00Z", "yesterday", 1, "the header has no started_at time"),
        (
            "\"agent_temperature\":1.0",
            "\"agent_temperature\":\"hot\"",
            1,
            "agent_temperature must be a number, not \"hot\"",
        ),
        (
            "[\"taste.md\",\"brief.md\",\"notes.md\"]",
            "\"taste.md\"",
            1,
            "context_loaded must be a list of texts",
        ),
        ("\"claude-sonnet-4-7\"", "{}", 1, "agent_provider must be a text, not {}"),
        (
            HEADER,
            r#"{"type":"x","timestamp":"2026-04-27T14:30:00Z"}"#,
            1,
            "does not begin with a session_start line",
        ),
    ] {
        assert!(HEADER.contains(from));
        let report = checked(HEADER.replace(from, to) + "\n");
        assert!(!report.is_ok());
        assert_eq!(report.problems[0].line, line);
        assert!(report.problems[0].text.contains(says), "{:?}", report.problems);
    }
    // What another program need not know is worth a note only.
    let report = checked(
        r#"{"type":"session_start","session_id":"x","started_at":"2026-04-27T14:30:00Z","agent_provider":null}"#,
    );
    assert!(report.is_ok());
    let notes: Vec<_> = report.notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(
        notes,
        [
            "the header has no agent_temperature",
            "the header has no context_loaded",
            "the header has no starting_snapshot_hash"
        ]
    );
    assert_eq!(check(&b""[..]).unwrap_err().code(), "session.empty");
}

#[test]
fn a_check_compares_the_file_with_its_end() {
    let line = |kind: &str, second: u32| {
        format!("{{\"type\":\"{kind}\",\"timestamp\":\"2026-04-27T14:30:{second:02}Z\"}}\n")
    };
    let end =
        |rest: &str| format!("{{\"type\":\"session_end\",\"ended_at\":\"2026-04-27T14:31:00Z\"{rest}}}\n");
    let file = |lines: &[String]| format!("{HEADER}\n{}", lines.concat());
    let good =
        file(&[line("a", 1), line("b", 2), line("a", 2), end(r#","entries":3,"by_type":{"a":2,"b":1}"#)]);
    let report = checked(&good);
    assert!(report.is_ok() && report.notes.is_empty() && !report.unclosed, "{report:?}");
    assert_eq!((report.by_type["a"], report.by_type["b"]), (2, 1));

    let missing = good.replacen(&line("b", 2), "", 1);
    assert_eq!(codes(&checked(&missing)), [(4, "session.entries"), (4, "session.by_type")]);
    assert!(checked(&missing).problems[0].text.contains("counts 3 entries, the file has 2 before it"));
    let other = good.replacen(&line("b", 2), &line("c", 2), 1);
    assert_eq!(codes(&checked(&other)), [(5, "session.by_type")]);
    let after = format!("{good}{}", line("late", 3));
    assert_eq!(codes(&checked(&after)), [(6, "session.after_end")]);
    assert!(checked(&after).unclosed, "the end is not at the end");
    let twice = format!("{good}{}", end(r#","entries":3"#));
    assert_eq!(codes(&checked(&twice)), [(6, "session.after_end")]);
    let second = file(&[line("a", 1), format!("{HEADER}\n")]);
    assert_eq!(codes(&checked(&second)), [(3, "session.second_header")]);
    let untyped = file(&[
        "{\"timestamp\":\"2026-04-27T14:30:00Z\"}\n".into(),
        "[1]\n".into(),
        "{\"type\":\"x\"}\n".into(),
    ]);
    assert_eq!(
        codes(&checked(&untyped)),
        [(2, "session.no_type"), (3, "session.no_type"), (4, "session.no_timestamp")]
    );

    // Clocks go back; that is told and no fault.
    let back = checked(file(&[line("a", 9), line("a", 5), line("a", 8), end("")]));
    assert!(back.is_ok());
    let notes: Vec<_> = back.notes.iter().map(|note| (note.line, note.code)).collect();
    assert_eq!(notes, [(3, "session.time_back"), (5, "session.end"), (0, "session.time_back")]);
    assert!(back.notes[2].text.contains("go back 2 times"), "{:?}", back.notes);
}

#[test]
fn a_check_lists_so_many_problems_and_counts_the_rest() {
    let text = format!("{HEADER}\n{}{}", "[1]\n".repeat(500), "x\n".repeat(500));
    let report = checked(text);
    assert_eq!((report.wrong, report.problems.len()), (500, 100));
    assert_eq!((report.corrupt, report.corrupt_lines.len()), (500, 100));
}

fn value() -> impl Strategy<Value = Raw> {
    let leaf = prop_oneof![
        Just("null".to_string()),
        any::<bool>().prop_map(|b| b.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?",
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    let tree = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" , "))),
            prop::collection::btree_map(any::<String>(), inner, 0..4).prop_map(|map| {
                let fields =
                    map.iter().map(|(key, value)| format!("{}:{value}", serde_json::to_string(key).unwrap()));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
            }),
        ]
    });
    tree.prop_map(|text| raw(&text))
}

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop_oneof!["[a-z_]{1,20}", "[^\\p{Cc}]{1,40}"];
    let fields = prop::collection::btree_map(any::<String>(), value(), 0..5);
    // Whole microseconds between the years 0 and 9999.
    (kind, -62_167_219_200_000_000i64..253_402_300_799_999_999, fields.prop_shuffle_pairs())
        .prop_map(|(kind, at, fields)| Entry { kind, at: Timestamp(at), fields: SessionFields(fields) })
}

trait Shuffled {
    fn prop_shuffle_pairs(self) -> BoxedStrategy<Vec<(String, Raw)>>;
}

impl<S: Strategy<Value = std::collections::BTreeMap<String, Raw>> + 'static> Shuffled for S {
    /// As a list in any order, without names that mean something.
    fn prop_shuffle_pairs(self) -> BoxedStrategy<Vec<(String, Raw)>> {
        let reserved = |name: &str| ["type", "timestamp", "body_hash"].contains(&name);
        self.prop_map(move |map| map.into_iter().filter(|(name, _)| !reserved(name)).collect::<Vec<_>>())
            .prop_shuffle()
            .boxed()
    }
}

proptest! {
    // Few cases with many entries each: every case makes a file and syncs it.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_entries_come_back_equal_and_in_order(given in prop::collection::vec(entry(), 0..50)) {
        let folder = Folder::new();
        let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
        given.iter().for_each(|entry| session.append(entry).unwrap());
        let path = session.path().unwrap();
        session.end(AT, &SessionFields::default()).unwrap();
        prop_assert_eq!(entries(path), given);
        let text = read(path);
        prop_assert!(checked(&text).is_ok());
        for line in text.lines() {
            let keys: Vec<String> = serde_json::from_str::<SessionFields>(line).unwrap().0.into_iter().map(|(key, _)| key).collect();
            prop_assert_eq!(&keys[..2], ["type", "timestamp"]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(report) = check(bytes.as_slice()) {
            prop_assert!(report.is_ok() || report.wrong + report.corrupt > 0 || report.truncated_tail.is_some());
        }
        prop_assert!(Reader::new(BufReader::with_capacity(3, bytes.as_slice())).count() <= 401);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// One byte of a real file is changed, or a piece is cut out: every other line is still read.
    #[test]
    fn damage_stays_where_it_is(at in 0usize..2000, byte in any::<u8>(), cut in 0usize..50) {
        let lines: Vec<String> = (0..10).map(|n| format!("{{\"type\":\"n\",\"timestamp\":\"2026-04-27T14:30:00Z\",\"n\":{n}}}\n")).collect();
        let mut bytes = format!("{HEADER}\n{}", lines.concat()).into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.drain(at + 1..(at + 1 + cut).min(bytes.len()));
        let Ok(report) = check(bytes.as_slice()) else { return Ok(()) };
        // A changed byte may split a line in two; what was cut out may join two.
        prop_assert!(report.entries + report.corrupt + u64::from(report.truncated_tail.is_some()) >= 8);
        let folder = Folder::new();
        let path = folder.path().join("x.jsonl");
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(session) = Session::resume(&path, CLOSE) {
            session.append(&said("next")).unwrap();
            drop(session);
            prop_assert_eq!(entries(&path).last().cloned(), Some(said("next")));
        }
    }
}
