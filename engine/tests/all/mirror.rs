//! A file per conversation beside the store: what an export says, also after crashes, erasures and failing disks.

use crate::stage::{PATIENCE, Short, Stage, files, refused, until};
use base64::Engine;
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::{Everturn, Format, NewStream, NewTurn, Options, Tenant};
use everturn_formats::jsonl;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const NOWHERE: Vec<PathBuf> = Vec::new();

impl Stage {
    fn mirror(&self) -> PathBuf {
        self.folder.path().join("mirror")
    }

    /// With patience: a process that another test is just starting holds the store's lock a moment longer.
    fn reopen(&self, mirror: Option<PathBuf>) -> Everturn {
        self.open_with(Options { mirror, patience: PATIENCE, ..Options::default() })
    }

    fn mirrored(&self) -> (Everturn, Tenant) {
        let store = self.reopen(Some(self.mirror()));
        let scope = store.tenant("acme").unwrap();
        (store, scope)
    }

    /// Opens with the mirror, and closes again: what was missed is written.
    fn catch_up(&self) {
        let (store, scope) = self.mirrored();
        let ids: Vec<ConversationId> =
            scope.list(Default::default()).unwrap().data.iter().map(|conversation| conversation.id).collect();
        until("every file is up to date", || ids.iter().all(|id| self.is_current(&scope, *id)));
        drop((scope, store));
    }

    fn file(&self, id: ConversationId) -> PathBuf {
        self.mirror().join("acme").join(format!("{id}.jsonl"))
    }

    fn is_current(&self, scope: &Tenant, id: ConversationId) -> bool {
        let text = std::fs::read_to_string(self.file(id)).unwrap_or_default();
        text.ends_with('\n') && events(&text) == exported(scope, id)
    }

    /// The file says what an export says, and verifies without a store.
    #[track_caller]
    fn assert_mirrors(&self, scope: &Tenant, id: ConversationId) {
        let text = std::fs::read_to_string(self.file(id)).unwrap();
        assert_eq!(events(&text), exported(scope, id));
        let report = jsonl::verify(text.as_bytes(), None).unwrap();
        assert!(report.is_ok(), "{report:?}");
        assert_eq!(report.chain.head, scope.conversation(id).get().unwrap().head);
    }
}

/// The lines that are events.
fn events(file: &str) -> Vec<String> {
    let frame = |line: &&str| {
        ["session_start", "session_end", "asset_content"]
            .iter()
            .any(|kind| line.starts_with(&format!("{{\"type\":\"{kind}\"")))
    };
    file.lines().filter(|line| !frame(line)).map(str::to_string).collect()
}

fn exported(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let mut file = Vec::new();
    scope.conversation(id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
    events(&String::from_utf8(file).unwrap())
}

/// A conversation with something of everything.
fn eventful(scope: &Tenant) -> ConversationId {
    let settings = Settings { title: Some(Some("Trip".into())), ..Settings::default() };
    let id = scope.begin_with(settings).id;
    scope.say(id, NewTurn::user("hello").by("ann"));
    let old = scope.say(id, NewTurn::assistant("helo"));
    scope.conversation(id).supersede(old.id, NewTurn::assistant("hello")).wait().unwrap();
    let data = base64::engine::general_purpose::STANDARD.encode([7; 9000]);
    scope.say(
        id,
        NewTurn::message(format!(
            r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}"#
        )),
    );
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).chunk(None, "streamed").unwrap();
    scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    let body = Raw::new(r#"{"path":"a"}"#.into()).unwrap();
    scope.conversation(id).log().append("snapshot_created", None, body).wait().unwrap();
    id
}

#[test]
fn the_file_says_what_an_export_says_verifies_and_imports() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let id = eventful(&scope);
    let fork = scope.conversation(id).fork(3).wait().unwrap().id();
    scope.say(fork, NewTurn::user("otherwise"));
    until("both files are there", || stage.is_current(&scope, id) && stage.is_current(&scope, fork));
    stage.assert_mirrors(&scope, id);
    stage.assert_mirrors(&scope, fork);
    // It keeps up while the store is open.
    for n in 0..50 {
        scope.say(id, NewTurn::user(&format!("more {n}")));
    }
    until("the file follows", || stage.is_current(&scope, id));
    stage.assert_mirrors(&scope, id);
    let header = std::fs::read_to_string(stage.file(id)).unwrap().lines().next().unwrap().to_string();
    assert!(header.contains("\"title\":\"Trip\",\"live\":true}"), "{header}");

    let elsewhere = Everturn::open("memory:").unwrap().tenant("acme").unwrap();
    let imported = elsewhere.import(std::fs::read(stage.file(id)).unwrap().as_slice(), &mut |_| {}).unwrap();
    assert_eq!(imported.conversation.head, scope.conversation(id).get().unwrap().head);
    assert_eq!(
        elsewhere.assets().bytes(&elsewhere.conversation(id).assets().list().unwrap()[0]).unwrap(),
        [7; 9000]
    );
    drop((scope, store));
}

#[test]
fn closing_the_store_finishes_the_files() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let ids: Vec<ConversationId> = (0..20)
        .map(|_| {
            let id = scope.begin();
            scope.say(id, NewTurn::user("said just before the end"));
            id
        })
        .collect();
    drop((scope, store));
    let scope = stage.open_read_only().tenant("acme").unwrap();
    ids.iter().for_each(|id| stage.assert_mirrors(&scope, *id));
}

#[test]
fn a_file_that_was_cut_anywhere_is_continued_where_it_ends() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let id = eventful(&scope);
    drop((scope, store));
    let whole = std::fs::read(stage.file(id)).unwrap();
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    let header = ends[0];
    let mut cuts: Vec<usize> =
        ends.iter().flat_map(|end| [end - 1, *end, (end + 40).min(whole.len())]).collect();
    cuts.extend([0, 10]);
    for cut in cuts {
        std::fs::write(stage.file(id), &whole[..cut]).unwrap();
        stage.catch_up();
        let now = std::fs::read(stage.file(id)).unwrap();
        if cut >= header {
            assert_eq!(now, whole, "cut at {cut}");
        } else {
            assert_eq!(
                events(&String::from_utf8(now).unwrap()),
                events(std::str::from_utf8(&whole).unwrap())
            );
        }
    }
    // What was said meanwhile without the mirror comes, too, also behind a torn line.
    let scope = stage.reopen(None).tenant("acme").unwrap();
    (0..250).for_each(|n| drop(scope.say(id, NewTurn::user(&format!("unmirrored {n}")))));
    drop(scope);
    std::fs::write(stage.file(id), [&whole[..], b"{\"type\":\"mess"].concat()).unwrap();
    stage.catch_up();
    assert!(std::fs::read(stage.file(id)).unwrap().starts_with(&whole), "what is there is not written again");
    stage.assert_mirrors(&stage.open_read_only().tenant("acme").unwrap(), id);
}

#[test]
fn a_conversation_from_before_the_mirror_gets_its_file_with_the_next_commit_of_its_tenant() {
    let stage = Stage::new();
    let scope = stage.reopen(None).tenant("acme").unwrap();
    let old = eventful(&scope);
    drop(scope);
    let (store, scope) = stage.mirrored();
    scope.begin();
    until("the old one has a file", || stage.is_current(&scope, old));
    drop((scope, store));
}

const JOB: &str = "EVERTURN_TEST_MIRROR";

/// The child: says one thing after the other until it is killed. Without a job it does nothing.
#[test]
fn a_process_that_mirrors_until_it_is_killed_comes_in_here() {
    let Ok(folder) = std::env::var(JOB) else { return };
    let folder = PathBuf::from(folder);
    let url = format!("sqlite:{}", folder.join("store.db").display());
    let options = Options { mirror: Some(folder.join("mirror")), ..Options::default() };
    let scope = Everturn::open_with(&url, options).unwrap().tenant("acme").unwrap();
    let ids = [scope.begin(), scope.begin()];
    println!("\nready");
    for n in 0.. {
        let turn = scope.say(ids[n % 2], NewTurn::user(&format!("{n} {}", "word ".repeat(n % 300))));
        if n % 7 == 0 {
            scope.conversation(ids[n % 2]).erase(turn.id, None, "asked for").wait().unwrap();
        }
        println!("{n}");
    }
}

#[test]
fn after_kill_9_the_files_go_on_where_they_end() {
    let stage = Stage::new();
    for round in 1..=4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "mirror::a_process_that_mirrors_until_it_is_killed_comes_in_here",
                "--nocapture",
            ])
            .env(JOB, stage.folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while lines.next().unwrap().unwrap() != "ready" {}
        lines.by_ref().take(20 * round).for_each(drop);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    stage.catch_up();
    let scope = stage.open_read_only().tenant("acme").unwrap();
    let all = scope.list(Default::default()).unwrap().data;
    assert_eq!(all.len(), 8);
    all.iter().for_each(|conversation| stage.assert_mirrors(&scope, conversation.id));
}

#[test]
fn erased_words_leave_the_mirror_its_relatives_and_what_was_set_aside() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("the unspeakable word"));
    let between = scope.conversation(id).fork(turn.seq).wait().unwrap().id();
    let fork = scope
        .conversation(between)
        .fork(scope.conversation(between).get().unwrap().head.seq)
        .wait()
        .unwrap()
        .id();
    let sibling = scope.conversation(id).fork(turn.seq).wait().unwrap().id();
    // The one in between is gone; the words are inherited all the same.
    scope.conversation(between).delete("not needed").wait().unwrap();
    let all = [id, fork, sibling];
    until("the files are there", || all.iter().all(|id| stage.is_current(&scope, *id)));
    until("the file of the one in between is gone", || !stage.file(between).exists());
    std::fs::write(format!("{}.1", stage.file(sibling).display()), "unspeakable, set aside").unwrap();
    // Files come and go while the mirror works.
    let with_the_words = || {
        let texts = files(&stage.mirror()).into_iter().filter_map(|path| std::fs::read_to_string(path).ok());
        texts.filter(|text| text.contains("unspeakable")).count()
    };
    assert_eq!(with_the_words(), 4);
    scope.conversation(fork).erase(turn.id, None, "asked for").wait().unwrap();
    until("the words are gone", || with_the_words() == 0);
    until("the files are whole", || all.iter().all(|id| stage.is_current(&scope, *id)));
    all.iter().for_each(|id| stage.assert_mirrors(&scope, *id));
    drop((scope, store));
    assert_eq!(stage.files_with("unspeakable"), NOWHERE);
}

/// As after a crash between the erasure and its mirror: the files end before the erasure's event.
#[test]
fn words_that_were_erased_while_the_mirror_was_off_leave_it_at_the_next_start() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("the unspeakable word"));
    let fork = scope.conversation(id).fork(turn.seq).wait().unwrap().id();
    let late = scope.conversation(id).fork(turn.seq).wait().unwrap().id();
    let other = scope.begin();
    drop((scope, store));
    std::fs::remove_file(stage.file(late)).unwrap();
    // Whoever erases would bring the files up to date as well.
    std::fs::remove_file(format!("{}-copies", stage.path().display())).unwrap();
    let scope = stage.reopen(None).tenant("acme").unwrap();
    // More than a page lies between the end of the file and the erasure.
    (0..150).for_each(|n| drop(scope.say(late, NewTurn::user(&format!("{n}")))));
    scope.conversation(late).erase(turn.id, None, "asked for").wait().unwrap();
    drop(scope);
    assert_eq!(stage.files_with("unspeakable").len(), 2, "otherwise this test proves nothing");
    std::fs::write(format!("{}.new", stage.file(other).display()), "unspeakable, half written").unwrap();
    stage.catch_up();
    until("the words are gone", || {
        stage.catch_up();
        stage.files_with("unspeakable") == NOWHERE
    });
    let scope = stage.open_read_only().tenant("acme").unwrap();
    [id, fork, late].iter().for_each(|id| stage.assert_mirrors(&scope, *id));
}

#[test]
fn a_deleted_conversation_takes_its_file_along_and_a_strange_file_stays() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let ids = [scope.begin(), scope.begin(), scope.begin()];
    until("the files are there", || ids.iter().all(|id| stage.file(*id).exists()));
    let kept = std::fs::read(stage.file(ids[2])).unwrap();
    scope.conversation(ids[0]).delete("done").wait().unwrap();
    until("its file is gone", || !stage.file(ids[0]).exists());
    drop((scope, store));
    // Deleted while nobody mirrored.
    stage.reopen(None).tenant("acme").unwrap().conversation(ids[1]).delete("done").wait().unwrap();
    // The only copy of a conversation that this store has never heard of.
    let strange = stage.mirror().join("acme/conv_00000000000000000000000001.jsonl");
    std::fs::write(&strange, "precious").unwrap();
    std::fs::write(stage.mirror().join("acme/notes.txt"), "mine").unwrap();
    let (store, scope) = stage.mirrored();
    until("its file is gone", || !stage.file(ids[1]).exists());
    // It comes back with its conversation.
    scope.conversation(ids[2]).delete("by mistake").wait().unwrap();
    scope.import(kept.as_slice(), &mut |_| {}).unwrap();
    until("it is back", || stage.is_current(&scope, ids[2]));
    drop((scope, store));
    assert_eq!(std::fs::read(&strange).unwrap(), b"precious");
    assert_eq!(std::fs::read(stage.mirror().join("acme/notes.txt")).unwrap(), b"mine");
}

#[test]
fn a_file_that_the_log_does_not_agree_with_is_set_aside() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let id = scope.begin();
    drop((scope, store));
    let before = std::fs::read(stage.path()).unwrap();
    let (store, scope) = stage.mirrored();
    scope.say(id, NewTurn::user("this way"));
    drop((scope, store));
    let this_way = std::fs::read(stage.file(id)).unwrap();
    // The store comes back from a backup, and goes on differently.
    for (asides, says) in [&[][..], &["that way"], &["that way", "and on"]].iter().enumerate() {
        std::fs::write(stage.file(id), &this_way).unwrap();
        std::fs::write(stage.path(), &before).unwrap();
        // The record of the last commit is not part of that copy, and knows of more.
        let _ = std::fs::remove_file(format!("{}-head", stage.path().display()));
        let scope = stage.reopen(None).tenant("acme").unwrap();
        says.iter().for_each(|text| drop(scope.say(id, NewTurn::user(text))));
        drop(scope);
        stage.catch_up();
        stage.assert_mirrors(&stage.open_read_only().tenant("acme").unwrap(), id);
        let aside = |number| PathBuf::from(format!("{}.{number}", stage.file(id).display()));
        assert_eq!(std::fs::read(aside(asides + 1)).unwrap(), this_way);
        assert!(!aside(asides + 2).exists());
    }
}

#[test]
fn one_folder_is_the_mirror_of_one_process_and_of_one_that_writes() {
    let stage = Stage::new();
    let (store, scope) = stage.mirrored();
    let options = || Options { mirror: Some(stage.mirror()), ..Options::default() };
    refused(Everturn::open_with("memory:", options()), "mirror.folder", "is the mirror of another process");
    drop((scope, store));
    Everturn::open_with("memory:", options()).unwrap();
    let file = stage.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let nowhere = Options { mirror: Some(file), ..Options::default() };
    refused(Everturn::open_with("memory:", nowhere), "mirror.folder", "choose another folder");
}

/// The thread that writes the mirror may be behind by the very append whose words are erased.
#[test]
fn erased_words_are_gone_from_the_mirror_when_the_erasure_is_acknowledged() {
    let stage = Stage::new();
    let (_store, scope) = stage.mirrored();
    let id = scope.begin();
    for n in 0..20 {
        let canary = format!("canary {n}");
        let turn = scope.say(id, NewTurn::user(&canary));
        scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
        let file = std::fs::read_to_string(stage.file(id)).unwrap_or_default();
        assert!(!file.contains(&canary), "{n}: {file}");
    }
}
