//! Writing session files: where they are, what is in them byte by byte, threads, processes, full disks.

use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_formats::session::{
    AgentThinking, AgentToolCall, Entry, Fsync, Item, MaskGenerated, NewSession, PhotographerMessage, Reader,
    Session, SessionFields, SessionOptions, Sink, SnapshotCreated, TasteConfirmation, TasteProposal,
    ToolResult, VocabularyGapLogged,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// 2026-04-27T14:30:00Z.
pub const AT: Timestamp = Timestamp(1_777_300_200_000_000);
pub const CLOSE: SessionOptions = SessionOptions { fsync: Fsync::Close };

/// A folder of its own, gone with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("session-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Every file of a subject's sessions, sorted.
    pub fn sessions(&self, subject: &str) -> Vec<PathBuf> {
        let folder = self.0.join(subject).join("sessions");
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn new_session() -> NewSession {
    NewSession::about("img_1", "b6d7", AT)
}

pub fn said(text: &str) -> Entry {
    Entry::of(AT.plus_s(1), &PhotographerMessage { text: text.into() }).unwrap()
}

pub fn raw(text: &str) -> Raw {
    Raw::new(text.into()).unwrap()
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

pub fn items(path: &Path) -> Vec<Item> {
    Reader::new(BufReader::new(File::open(path).unwrap())).map(Result::unwrap).collect()
}

pub fn entries(path: &Path) -> Vec<Entry> {
    let entry = |item| if let Item::Entry(recorded) = item { recorded.entry() } else { None };
    items(path).into_iter().filter_map(entry).collect()
}

/// Looks again and again until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_session_reads_as_the_document_says_line_by_line() {
    let folder = Folder::new();
    let new = NewSession {
        subject_key: "image_id".into(),
        agent_provider: Some("claude-sonnet-4-7".into()),
        agent_temperature: Some(1.0),
        context_loaded: vec!["taste.md".into(), "brief.md".into(), "notes.md".into()],
        starting_snapshot_hash: Some("abc".into()),
        extra: SessionFields::parse("{\"camera\":\n  {\"iso\": 1.50}}").unwrap(),
        ..new_session()
    };
    let session = Session::start(folder.path(), &new, SessionOptions::default()).unwrap();
    let file = folder.path().join("img_1/sessions/2026-04-27T14-30-00_session_001.jsonl");
    assert_eq!(session.path(), Some(file.as_path()));
    let at = |s| AT.plus_s(s);
    for entry in [
        Entry::of(at(1), &AgentThinking { text: "hm\n\"é\"".into() }),
        Entry::of(
            at(2),
            &AgentToolCall {
                tool: "crop".into(),
                parameters: raw("{\"x\":\n1.0}"),
                call_id: Some("c1".into()),
            },
        ),
        Entry::of(
            at(3),
            &ToolResult { tool: None, result: raw("12345678901234567890"), call_id: None, is_error: None },
        ),
        Entry::of(at(4), &PhotographerMessage { text: "warmer".into() }),
        Entry::of(at(5), &SnapshotCreated { hash: "h".into(), label: Some("v1".into()) }),
        Entry::of(at(6), &MaskGenerated { name: "m".into(), provider: "sam".into(), target: "sky".into() }),
        Entry::of(at(7), &VocabularyGapLogged { description: "dodge".into(), workaround: None }),
        Entry::of(at(8), &TasteProposal { update: raw("[1]") }),
        Entry::of(at(9), &TasteConfirmation { update: raw("[1]") }),
        Entry::new("weather", at(10), &serde_json::json!({"z": 1, "a": {"rain": true}})),
        Entry::new("empty", at(10), &serde_json::json!({})),
    ] {
        session.append(&entry.unwrap()).unwrap();
    }
    let summary = session.end(at(61), &SessionFields::parse(r#"{"kept":3}"#).unwrap()).unwrap();
    assert_eq!((summary.entries, summary.duration_s), (11, 61.0));
    assert_eq!(
        read(&file),
        r#"{"type":"session_start","timestamp":"2026-04-27T14:30:00.000000Z","session_id":"b6d7","image_id":"img_1","started_at":"2026-04-27T14:30:00.000000Z","agent_provider":"claude-sonnet-4-7","agent_temperature":1.0,"context_loaded":["taste.md","brief.md","notes.md"],"starting_snapshot_hash":"abc","camera":{"iso": 1.50}}
{"type":"agent_thinking","timestamp":"2026-04-27T14:30:01.000000Z","text":"hm\n\"é\""}
{"type":"agent_tool_call","timestamp":"2026-04-27T14:30:02.000000Z","tool":"crop","parameters":{"x":1.0},"call_id":"c1"}
{"type":"tool_result","timestamp":"2026-04-27T14:30:03.000000Z","result":12345678901234567890}
{"type":"photographer_message","timestamp":"2026-04-27T14:30:04.000000Z","text":"warmer"}
{"type":"snapshot_created","timestamp":"2026-04-27T14:30:05.000000Z","hash":"h","label":"v1"}
{"type":"mask_generated","timestamp":"2026-04-27T14:30:06.000000Z","name":"m","provider":"sam","target":"sky"}
{"type":"vocabulary_gap_logged","timestamp":"2026-04-27T14:30:07.000000Z","description":"dodge","workaround":null}
{"type":"taste_proposal","timestamp":"2026-04-27T14:30:08.000000Z","update":[1]}
{"type":"taste_confirmation","timestamp":"2026-04-27T14:30:09.000000Z","update":[1]}
{"type":"weather","timestamp":"2026-04-27T14:30:10.000000Z","z":1,"a":{"rain":true}}
{"type":"empty","timestamp":"2026-04-27T14:30:10.000000Z"}
{"type":"session_end","timestamp":"2026-04-27T14:31:01.000000Z","ended_at":"2026-04-27T14:31:01.000000Z","duration_s":61.0,"entries":11,"by_type":{"agent_thinking":1,"agent_tool_call":1,"empty":1,"mask_generated":1,"photographer_message":1,"snapshot_created":1,"taste_confirmation":1,"taste_proposal":1,"tool_result":1,"vocabulary_gap_logged":1,"weather":1},"kept":3}
"#
    );
    // What is typed when it is written is typed when it is read.
    let call = entries(&file)[1].read::<AgentToolCall>().unwrap();
    assert_eq!((call.tool.as_str(), call.parameters.get()), ("crop", "{\"x\":1.0}"));
    assert_eq!(entries(&file)[0].read::<AgentToolCall>(), None);
}

#[test]
fn what_is_not_known_is_null_in_the_header() {
    let folder = Folder::new();
    let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
    assert_eq!(
        read(session.path().unwrap()),
        "{\"type\":\"session_start\",\"timestamp\":\"2026-04-27T14:30:00.000000Z\",\"session_id\":\"b6d7\",\"subject\":\"img_1\",\
         \"started_at\":\"2026-04-27T14:30:00.000000Z\",\"agent_provider\":null,\"agent_temperature\":null,\"context_loaded\":[],\
         \"starting_snapshot_hash\":null}\n"
    );
}

#[test]
fn numbers_count_the_sessions_of_the_folder_and_nothing_is_overwritten() {
    let folder = Folder::new();
    let start = |s| {
        let new = NewSession { started_at: AT.plus_s(s), ..new_session() };
        let session = Session::start(folder.path(), &new, CLOSE).unwrap();
        session.path().unwrap().file_name().unwrap().to_str().unwrap().to_string()
    };
    assert_eq!(start(0), "2026-04-27T14-30-00_session_001.jsonl");
    assert_eq!(start(0), "2026-04-27T14-30-00_session_002.jsonl", "in the same second");
    assert_eq!(start(86_400), "2026-04-28T14-30-00_session_003.jsonl");
    assert_eq!(start(0), "2026-04-27T14-30-00_session_004.jsonl", "after the clock went back");
    let sessions = folder.path().join("img_1/sessions");
    std::fs::write(sessions.join("2026-01-01T00-00-00_session_998.jsonl"), "precious").unwrap();
    std::fs::create_dir(sessions.join("2026-04-27T14-30-00_session_999.jsonl")).unwrap();
    std::fs::write(sessions.join("notes.txt"), "mine").unwrap();
    assert_eq!(start(0), "2026-04-27T14-30-00_session_1000.jsonl");
    assert_eq!(read(&sessions.join("2026-01-01T00-00-00_session_998.jsonl")), "precious");
    assert_eq!(folder.sessions("img_1").len(), 8);
    Session::start(folder.path(), &NewSession::about("other", "x", AT), CLOSE).unwrap();
    assert!(folder.sessions("other")[0].ends_with("sessions/2026-04-27T14-30-00_session_001.jsonl"));
}

#[test]
fn a_subject_is_one_folder_and_cannot_lead_elsewhere() {
    let folder = Folder::new();
    let root = folder.path().join("root");
    for subject in ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "C:", "a\0b", "a\nb", &"x".repeat(300)] {
        let error = Session::start(&root, &NewSession::about(subject, "s", AT), CLOSE).err().expect(subject);
        assert!(
            ["session.subject", "name.malformed", "limit.exceeded"].contains(&error.code()),
            "{subject:?}: {error:?}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    for subject in ["...", "a b", "émile", "-x", "a.b"] {
        Session::start(&root, &NewSession::about(subject, "s", AT), CLOSE).unwrap();
    }
}

#[test]
fn a_header_that_is_refused_leaves_no_file() {
    let folder = Folder::new();
    let fields = |text| SessionFields::parse(text).unwrap();
    for (new, says) in [
        (NewSession { subject_key: "session_id".into(), ..new_session() }, "duplicate key \"session_id\""),
        (NewSession { subject_key: "".into(), ..new_session() }, "subject key"),
        (NewSession { session_id: "".into(), ..new_session() }, "session_id"),
        (NewSession { extra: fields(r#"{"type":1}"#), ..new_session() }, "duplicate key \"type\""),
        (NewSession { extra: fields(r#"{"format":2}"#), ..new_session() }, "cannot be called format"),
        (
            NewSession { extra: fields(r#"{"conversation":2}"#), ..new_session() },
            "cannot be called conversation",
        ),
        (NewSession { extra: fields(r#"{"body_hash":2}"#), ..new_session() }, "cannot be called body_hash"),
        (NewSession { agent_temperature: Some(f64::NAN), ..new_session() }, "finite"),
        (NewSession { started_at: Timestamp(i64::MAX), ..new_session() }, "is not a time"),
        (NewSession { started_at: Timestamp(-99_999_999_999_999_999), ..new_session() }, "does not fit"),
    ] {
        let error = Session::start(folder.path(), &new, CLOSE).err().expect(says);
        assert!(error.text().contains(says), "{error:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn closing_twice_writes_one_end_and_nothing_comes_after_it() {
    let folder = Folder::new();
    let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
    session.append(&said("one")).unwrap();
    let first = session.end(AT.plus_s(5), &SessionFields::default()).unwrap();
    let whole = read(session.path().unwrap());
    assert_eq!(session.end(AT.plus_s(9), &SessionFields::default()).unwrap(), first);
    let error = session.append(&said("two")).unwrap_err();
    assert_eq!((error.code(), error.text()), ("session.ended", "the session was ended; start another one"));
    assert_eq!(read(session.path().unwrap()), whole);
    assert_eq!(whole.matches("session_end").count(), 1);
}

#[test]
fn a_clock_that_goes_back_gives_no_negative_duration() {
    let folder = Folder::new();
    let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
    assert_eq!(session.end(Timestamp(AT.0 - 1), &SessionFields::default()).unwrap().duration_s, 0.0);
}

#[test]
fn entries_that_could_not_be_read_back_are_refused_and_leave_no_trace() {
    let folder = Folder::new();
    let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
    let before = read(session.path().unwrap());
    let none = serde_json::json!({});
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    for (entry, says) in [
        (Entry::new("session_end", AT, &none).unwrap(), "end the session instead"),
        (Entry::new("session_start", AT, &none).unwrap(), "start a session instead"),
        (Entry::new("asset_content", AT, &none).unwrap(), "choose another type"),
        (Entry::new("", AT, &none).unwrap(), "choose a printable name"),
        (said("x").with("text", &1).unwrap(), "duplicate key \"text\""),
        (said("x").with("type", &1).unwrap(), "duplicate key \"type\""),
        (said("x").with("timestamp", &1).unwrap(), "duplicate key \"timestamp\""),
        (said("x").with("body_hash", &1).unwrap(), "rename it"),
        (said("x").with("deep", &raw(&deep)).unwrap(), "JSON_DEPTH_MAX"),
        (said(&"x".repeat(64 * 1024 * 1024)), "LINE_BYTES_MAX"),
        (Entry { at: Timestamp(i64::MIN), ..said("x") }, "is not a time"),
    ] {
        let error = session.append(&entry).unwrap_err();
        assert!(error.text().contains(says), "{error:?}");
    }
    assert!(Entry::new("x", AT, &[1]).unwrap_err().text().contains("must be a JSON object, not [1]"));
    assert_eq!(read(session.path().unwrap()), before);
    assert_eq!(session.end(AT, &SessionFields::default()).unwrap().entries, 0);
}

#[test]
fn many_threads_write_whole_lines_each_in_its_order() {
    let folder = Folder::new();
    let session = Session::start(folder.path(), &new_session(), CLOSE).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let session = &session;
            scope.spawn(move || {
                for n in 0..200u64 {
                    let payload = serde_json::json!({"thread": thread, "n": n, "pad": "x".repeat((n as usize * 37) % 5000)});
                    session.append(&Entry::new("tick", AT, &payload).unwrap()).unwrap();
                }
            });
        }
    });
    let summary = session.end(AT, &SessionFields::default()).unwrap();
    assert_eq!((summary.entries, summary.by_type["tick"]), (1600, 1600));
    let mut next = [0u64; 8];
    for entry in entries(session.path().unwrap()) {
        let number = |name| entry.fields.get(name).unwrap().read::<u64>().unwrap();
        assert_eq!(number("n"), next[number("thread") as usize]);
        next[number("thread") as usize] += 1;
    }
    assert_eq!(next, [200; 8]);
}

/// Every file of the folder is one session of its own, and their numbers count from 001 without a gap.
fn assert_numbered(folder: &Folder, count: usize) {
    let files = folder.sessions("img_1");
    let number = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        name.rsplit_once('_').unwrap().1.parse::<usize>().unwrap()
    };
    let numbers: BTreeSet<usize> = files.iter().map(number).collect();
    assert_eq!((files.len(), numbers), (count, (1..=count).collect()));
    let mut ids = BTreeSet::new();
    for file in &files {
        let items = items(file);
        let [Item::Start(start)] = items.as_slice() else { panic!("{items:?}") };
        ids.insert(start.session_id.clone().unwrap());
    }
    assert_eq!(ids.len(), count);
}

fn start_many(root: &Path, who: &str, sessions: u64, spread_s: u64) {
    for n in 0..sessions {
        let new = NewSession {
            started_at: AT.plus_s(if spread_s == 0 { 0 } else { n % spread_s }),
            session_id: format!("{who}-{n}"),
            ..new_session()
        };
        Session::start(root, &new, CLOSE).unwrap();
    }
}

#[test]
fn threads_that_start_in_the_same_second_get_files_of_their_own() {
    for spread in [0, 3] {
        let folder = Folder::new();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let root = folder.path();
                scope.spawn(move || start_many(root, &format!("t{thread}"), 25, spread));
            }
        });
        assert_numbered(&folder, 200);
    }
}

const JOB: &str = "EVERTURN_TEST_JOB";
const ROOT: &str = "EVERTURN_TEST_ROOT";

/// The test binary again, doing a job: the test below is its door.
fn child(job: &str, root: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "session::a_process_with_a_job_of_its_own_comes_in_here", "--nocapture"]);
    command.env(JOB, job).env(ROOT, root);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn a_process_with_a_job_of_its_own_comes_in_here() {
    let Ok(job) = std::env::var(JOB) else { return };
    let root = PathBuf::from(std::env::var(ROOT).unwrap());
    match job.as_str() {
        "start" => {
            let mut go = String::new();
            std::io::stdin().read_line(&mut go).unwrap();
            start_many(&root, &std::process::id().to_string(), 20, 3);
        }
        "hold" => {
            let session = Session::start(&root, &new_session(), CLOSE).unwrap();
            session.append(&said("mine")).unwrap();
            println!("\nheld");
            // Until the parent ends it or is gone.
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        "fill" => fill_the_disk(&root),
        other => panic!("no such job: {other}"),
    }
}

#[test]
fn processes_that_start_at_once_get_files_of_their_own() {
    let folder = Folder::new();
    let mut children: Vec<Child> = (0..10).map(|_| child("start", folder.path()).spawn().unwrap()).collect();
    for child in &mut children {
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert_numbered(&folder, 200);
}

#[test]
fn a_session_that_another_process_writes_is_refused_until_that_process_is_gone() {
    use std::io::BufRead;
    let folder = Folder::new();
    let mut holder = child("hold", folder.path()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    while lines.next().expect("the child ended too early").unwrap() != "held" {}
    let path = folder.sessions("img_1").remove(0);
    let error = Session::resume(&path, CLOSE).err().unwrap();
    assert_eq!(error.code(), "session.locked");
    assert!(error.text().contains("is being written by somebody else; wait"), "{error}");
    assert_eq!(entries(&path), [said("mine")], "reading is allowed");
    holder.kill().unwrap();
    holder.wait().unwrap();
    Session::resume(&path, CLOSE).unwrap().append(&said("yours")).unwrap();
    assert_eq!(entries(&path), [said("mine"), said("yours")]);
}

#[test]
fn always_syncs_each_line_interval_soon_and_close_at_the_end() {
    let folder = Folder::new();
    let start = |fsync| Session::start(folder.path(), &new_session(), SessionOptions { fsync }).unwrap();
    let always = start(Fsync::Always);
    assert_eq!(always.syncs(), 1, "the header");
    (1..=5).for_each(|n| {
        always.append(&said("x")).unwrap();
        assert_eq!(always.syncs(), 1 + n);
    });
    let interval = start(Fsync::Interval(Duration::from_millis(5)));
    until("the header is synced", || interval.syncs() == 1);
    interval.append(&said("x")).unwrap();
    until("the line is synced although no other comes", || interval.syncs() >= 2);
    let long = start(Fsync::Interval(Duration::from_secs(3600)));
    long.append(&said("x")).unwrap();
    assert_eq!(long.syncs(), 0);
    drop(long);
    let close = start(Fsync::Close);
    (0..5).for_each(|_| close.append(&said("x")).unwrap());
    assert_eq!(close.syncs(), 0);
    close.end(AT, &SessionFields::default()).unwrap();
    assert_eq!(close.syncs(), 1);
    assert_eq!(SessionOptions::default().fsync, Fsync::Interval(Duration::from_secs(1)));
}

/// A pipe takes lines and refuses to be synced, which shows when the system is really asked to.
#[cfg(unix)]
#[test]
fn a_sync_that_fails_is_told() {
    use std::os::fd::OwnedFd;
    let on_a_pipe = |fsync| {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, Session::on(File::from(OwnedFd::from(writer)), &new_session(), SessionOptions { fsync }))
    };
    let (_reader, always) = on_a_pipe(Fsync::Always);
    let error = always.err().unwrap();
    assert!(error.text().starts_with("syncing the session file: "), "{error}");
    let (_reader, close) = on_a_pipe(Fsync::Close);
    let close = close.unwrap();
    close.append(&said("x")).unwrap();
    assert!(close.sync().unwrap_err().text().starts_with("syncing"));
    assert!(close.end(AT, &SessionFields::default()).unwrap_err().text().starts_with("syncing"));
    let (mut reader, interval) = on_a_pipe(Fsync::Interval(Duration::from_millis(1)));
    // A full pipe would make the writer wait.
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let interval = interval.unwrap();
    until("somebody who writes is told", || interval.append(&said("x")).is_err());
}

#[test]
fn dropping_a_session_does_not_end_it() {
    let folder = Folder::new();
    let session = Session::start(folder.path(), &new_session(), SessionOptions::default()).unwrap();
    session.append(&said("one")).unwrap();
    let path = session.path().unwrap().to_path_buf();
    drop(session);
    assert!(!read(&path).contains("session_end"));
    let again = Session::resume(&path, CLOSE).unwrap();
    again.append(&said("two")).unwrap();
    let summary = again.end(AT.plus_s(60), &SessionFields::default()).unwrap();
    assert_eq!((summary.entries, summary.by_type["photographer_message"], summary.duration_s), (2, 2, 60.0));
}

/// The child: its files cannot grow beyond a limit, so that a line is cut in the middle by the system itself.
fn fill_the_disk(root: &Path) {
    let session = Session::start(root, &new_session(), CLOSE).unwrap();
    let path = session.path().unwrap().to_path_buf();
    let mut written = Vec::new();
    let error = loop {
        let entry = said(&"x".repeat(700));
        match session.append(&entry) {
            Ok(()) => written.push(entry),
            Err(error) => break error,
        }
    };
    assert!(error.text().contains("writing the session file"), "{error}");
    assert_eq!(entries(&path), written, "what was not written whole is gone");
    assert!(read(&path).ends_with('\n'));
    // What still fits starts its own line.
    session.append(&said("small")).unwrap();
    written.push(said("small"));
    assert_eq!(entries(&path), written);

    let session = Session::start(root, &new_session(), CLOSE);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let sink = Sink::new(session, move |error| heard.lock().unwrap().push(error.to_string()));
    (0..20).for_each(|_| sink.record(Ok(said(&"x".repeat(700)))));
    let kept = entries(sink.session().unwrap().path().unwrap()).len() as u64;
    assert!(kept > 0 && sink.failures() == 20 - kept, "{kept} and {}", sink.failures());
    assert_eq!(told.lock().unwrap().len(), 1);
    println!("\nfilled");
}

#[cfg(unix)]
#[test]
fn a_disk_that_is_full_in_the_middle_of_a_line_loses_that_line_only() {
    let folder = Folder::new();
    let program = child("fill", folder.path());
    let mut command = Command::new("sh");
    // Without the signal the system answers a write beyond the limit with a part of it, then with an error.
    command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(program.get_program());
    command.args(program.get_args()).env(JOB, "fill").env(ROOT, folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("filled"), "{said}{}", {
        String::from_utf8_lossy(&output.stderr)
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_sink_never_fails_whoever_it_records_and_tells_the_first_failure_only() {
    let folder = Folder::new();
    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    type Case = (fn(&Path) -> Result<Session, everturn_core::Error>, &'static str);
    let cases: [Case; 2] = [
        (|path| Session::start(path, &new_session(), CLOSE), "cannot make"),
        (
            |_| Session::on(File::options().write(true).open("/dev/full").unwrap(), &new_session(), CLOSE),
            "room",
        ),
    ];
    for (session, says) in cases {
        let told = Arc::new(AtomicU64::new(0));
        let heard = told.clone();
        let sink = Sink::new(session(&in_the_way), move |error| {
            assert!(error.text().contains(says), "{error}");
            heard.fetch_add(1, Ordering::Relaxed);
        });
        for n in 1..=10 {
            sink.record(Ok(said("x")));
            assert_eq!(sink.failures(), 1 + n);
        }
        sink.record(Entry::new("x", AT, &1));
        assert!(sink.last_error().unwrap().text().contains("must be a JSON object"));
        assert_eq!(sink.end(AT, &SessionFields::default()), None);
        assert_eq!((sink.failures(), told.load(Ordering::Relaxed)), (13, 1));
        assert!(sink.last_error().unwrap().text().contains(says));
    }
    let sink = Sink::new(Session::start(folder.path(), &new_session(), CLOSE), |error| panic!("{error}"));
    sink.record(Ok(said("heard")));
    assert_eq!(sink.end(AT, &SessionFields::default()).unwrap().entries, 1);
    assert_eq!((sink.failures(), sink.last_error()), (0, None));
}

/// Of the known types, an entry says what its type promises: at writing, and for whoever checks a file.
#[test]
fn entries_of_known_types_need_their_fields() {
    let complete = [
        ("agent_thinking", r#"{"text":""}"#),
        ("agent_thinking", r#"{"thinking":"hm"}"#),
        ("agent_tool_call", r#"{"tool":"crop","parameters":{}}"#),
        ("agent_tool_call", r#"{"name":"crop","args":[1]}"#),
        ("tool_result", r#"{"result":null}"#),
        ("tool_result", r#"{"call_id":"c","stdout":"x"}"#),
        ("photographer_message", r#"{"text":"warmer"}"#),
        ("photographer_message", r#"{"content":[{"type":"text","text":"x"}]}"#),
        ("snapshot_created", r#"{"hash":"h"}"#),
        ("mask_generated", r#"{"name":"m","provider":"sam","target":"sky"}"#),
        ("vocabulary_gap_logged", r#"{"description":"no grain"}"#),
        ("taste_proposal", r#"{"update":{}}"#),
        ("taste_confirmation", r#"{"update":"x"}"#),
        ("weather", "{}"),
    ];
    let lacking = [
        ("agent_thinking", r#"{"text":5}"#, "text"),
        ("agent_tool_call", r#"{"parameters":{}}"#, "tool"),
        ("agent_tool_call", r#"{"tool":"","parameters":{}}"#, "tool"),
        ("agent_tool_call", r#"{"tool":"crop"}"#, "parameters"),
        ("tool_result", r#"{"tool":"crop","call_id":"c","is_error":true}"#, "result"),
        ("photographer_message", r#"{"text":null}"#, "text"),
        ("snapshot_created", r#"{"label":"v1"}"#, "hash"),
        ("snapshot_created", r#"{"hash":""}"#, "hash"),
        ("mask_generated", r#"{"name":"m","target":"sky"}"#, "provider"),
        ("vocabulary_gap_logged", r#"{"workaround":"x"}"#, "description"),
        ("taste_proposal", "{}", "update"),
        ("taste_confirmation", r#"{"updates":1}"#, "update"),
    ];
    let at: Timestamp = "2026-04-27T14:30:00Z".parse().unwrap();
    let entry = |kind: &str, fields: &str| Entry {
        kind: kind.into(),
        at,
        fields: SessionFields::parse(fields).unwrap(),
    };
    let checked = |kind: &str, fields: &str| {
        let header = r#"{"type":"session_start","session_id":"s","started_at":"2026-04-27T14:30:00Z"}"#;
        let rest = fields.strip_prefix('{').unwrap();
        let comma = if rest == "}" { "" } else { "," };
        let line = format!(r#"{{"type":"{kind}","timestamp":"2026-04-27T14:30:00Z"{comma}{rest}"#);
        everturn_formats::session::check(format!("{header}\n{line}\n").as_bytes()).unwrap()
    };
    for (kind, fields) in complete {
        entry(kind, fields).line().unwrap();
        assert!(checked(kind, fields).is_ok(), "{kind} {fields}");
    }
    for (kind, fields, missing) in lacking {
        let error = entry(kind, fields).line().unwrap_err();
        assert_eq!(error.code(), "session.field", "{kind} {fields}");
        assert!(error.text().starts_with(&format!("{kind} needs `{missing}`")), "{error}");
        let report = checked(kind, fields);
        assert_eq!((report.problems[0].line, report.problems[0].code), (2, "session.field"));
        assert!(report.problems[0].text.contains(missing) && !report.is_ok());
    }
}
