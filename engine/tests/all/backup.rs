//! Backup and restore: what comes back is what was there, and what was erased since does not come back.

use crate::stage::{PATIENCE, Short, Stage, files, quiet, refused, until};
use everturn_core::access::KeyRole;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Tombstone};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::turn::{Status, Turn};
use everturn_engine::backup::{
    BackedUp, Comparison, FolderOptions, UndoneRemovals, archives_of, check, contents, left_out,
};
use everturn_engine::{
    AppendOptions, Everturn, Lifecycle, ListQuery, NewConversation, NewKey, NewStream, NewTurn, Options,
    Tenant,
};
use everturn_formats::archive::{ArchiveContents, ArchiveHeader, Erased, FORMAT, Ranges, Writer};
use everturn_views::state::State;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TENANTS: [&str; 2] = ["acme", "globex"];

/// Everything that can be asked of one conversation.
#[derive(PartialEq, Debug)]
struct Snapshot {
    conversation: Conversation,
    events: Vec<Event>,
    turns: Vec<Turn>,
    verified: Hash,
    state: State,
    assets: Vec<Vec<u8>>,
}

fn answers(store: &Everturn) -> Vec<(Vec<Snapshot>, Vec<Tombstone>, Vec<everturn_core::access::AccessKey>)> {
    let of = |name: &&str| {
        let scope = store.tenant(name).unwrap();
        let listed = scope.list(ListQuery { limit: 1000, ..ListQuery::default() }).unwrap().data;
        let each = listed.into_iter().map(|conversation| Snapshot {
            events: scope.conversation(conversation.id).log().read(0, 1000).unwrap(),
            turns: scope.turns(conversation.id),
            verified: scope.conversation(conversation.id).log().verify(None).unwrap().head.hash,
            state: scope.conversation(conversation.id).state().read().unwrap(),
            assets: scope
                .conversation(conversation.id)
                .assets()
                .list()
                .unwrap()
                .iter()
                .map(|asset| scope.assets().bytes(asset).unwrap())
                .collect(),
            conversation,
        });
        (each.collect(), scope.tombstones().unwrap(), store.keys().list(name).unwrap())
    };
    TENANTS.iter().map(of).collect()
}

fn said_once() -> (Vec<NewTurn>, AppendOptions) {
    let options = AppendOptions { idempotency_key: Some("once".into()), ..AppendOptions::default() };
    (vec![NewTurn::user("said once")], options)
}

/// A bit of everything, in two tenants. Gives a conversation that goes on.
fn fill(store: &Everturn) -> ConversationId {
    for name in TENANTS {
        let scope = store.tenant(name).unwrap();
        store.keys().create(NewKey::new(name, KeyRole::Writer)).unwrap();
        let id = scope.begin();
        let first = scope.say(id, NewTurn::user(&format!("a first word of {name}")));
        scope.conversation(id).supersede(first.id, NewTurn::user("a better word")).wait().unwrap();
        let picture = scope
            .conversation(id)
            .assets()
            .add(None, "image/png", format!("the bytes of {name}").into())
            .unwrap();
        let block =
            format!(r#"{{"role":"user","content":[{{"type":"image","asset_id":"{}"}}]}}"#, picture.id);
        scope.say(id, NewTurn::message(&block));
        let fork = scope.conversation(id).fork(3).wait().unwrap().id();
        scope.say(fork, NewTurn::user("another way"));
        let deep = scope.conversation(fork).fork(2).wait().unwrap().id();
        scope.say(deep, NewTurn::user("deep"));
        scope.conversation(fork).delete("no longer wanted").wait().unwrap();
        let gone = scope.begin();
        scope.say(gone, NewTurn::user("soon gone"));
        scope.conversation(gone).delete("asked for").wait().unwrap();
        let erased = scope.say(deep, NewTurn::user("not for long"));
        scope.conversation(deep).erase(erased.id, None, "asked for").wait().unwrap();
        scope.conversation(deep).update(Lifecycle::Archived).wait().unwrap();
    }
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let (turns, options) = said_once();
    scope.conversation(id).append_all(turns).with(options).wait().unwrap();
    id
}

fn backup(store: &Everturn, folder: &Path) -> BackedUp {
    store.backup_to_folder(folder, FolderOptions::default(), &mut |_, _| {}).unwrap()
}

fn restore(archives: &[PathBuf], into: &Stage) {
    Everturn::restore(&into.url(), archives, &mut |_, _| {}).unwrap();
}

fn compare(store: &Everturn, archives: &[PathBuf]) -> Comparison {
    store.compare(archives, &mut |_, _| {}).unwrap()
}

fn problems(found: &Comparison) -> Vec<&str> {
    found.differences.iter().map(|difference| difference.problem.as_str()).collect()
}

fn open_turn(scope: &Tenant, id: ConversationId) -> TurnId {
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).chunk(None, "half a ").unwrap();
    scope.conversation(id).open_turn(turn).chunk(None, "sentence").unwrap();
    turn
}

#[test]
fn a_restored_store_gives_the_same_answers() {
    let (stage, copy) = (Stage::new(), Stage::new());
    let store = stage.open();
    let id = fill(&store);
    // Beside the process that writes.
    let reader = stage.open_read_only();
    let folder = stage.folder.path().join("backups");
    let done = backup(&reader, &folder);
    assert_eq!((done.number, done.follows, done.problems.len()), (1, None, 0));
    restore(&archives_of(&folder, None).unwrap(), &copy);
    let restored = copy.open();
    assert_eq!(answers(&restored), answers(&store));
    assert_eq!(restored.tenant("acme").unwrap().doctor(&mut |_| {}).unwrap().findings, []);
    // A client that repeats a request after the restore appends nothing.
    let (turns, options) = said_once();
    let again =
        restored.tenant("acme").unwrap().conversation(id).append_all(turns).with(options).wait().unwrap();
    assert!(again.repeated);
    assert_eq!(answers(&restored), answers(&store));
    restored.rebuild().unwrap();
    assert_eq!(answers(&restored), answers(&store));
    // Numbers come back too, so that backups go on where they were.
    restored.tenant("acme").unwrap().say(id, NewTurn::user("it goes on"));
    assert_eq!(backup(&restored, &folder).number, 2);
}

#[test]
fn a_store_in_memory_is_backed_up_the_same_way() {
    let copy = Stage::new();
    let store = Everturn::open_with("memory:", quiet()).unwrap();
    fill(&store);
    let file = copy.folder.path().join("memory.zst");
    store.backup_to_file(&file, &[], &mut |_, _| {}).unwrap();
    restore(&[file], &copy);
    assert_eq!(answers(&copy.open_read_only()), answers(&store));
}

#[test]
fn an_open_turn_comes_back_with_what_it_had_said() {
    let (stage, copy) = (Stage::new(), Stage::new());
    let store = stage.open_with(Options { debounce: Duration::ZERO, ..quiet() });
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = open_turn(&scope, id);
    let folder = stage.folder.path().join("backups");
    until("the text is durable", || {
        let _ = std::fs::remove_dir_all(&folder);
        backup(&store, &folder);
        let read = zstd_text(&archives_of(&folder, None).unwrap()[0]);
        read.contains("half a sentence")
    });
    restore(&archives_of(&folder, None).unwrap(), &copy);
    let said = copy.open().tenant("acme").unwrap().turn(turn).unwrap();
    assert_eq!(
        (said.status, crate::stage::words(&said).unwrap()),
        (Status::Interrupted, "half a sentence".into())
    );
    // When it has ended, an increment has its end, and what it had said so far is not needed any more.
    scope.conversation(id).open_turn(turn).commit(NewTurn::assistant("a whole sentence")).wait().unwrap();
    backup(&store, &folder);
    let again = Stage::new();
    restore(&archives_of(&folder, None).unwrap(), &again);
    assert_eq!(answers(&again.open_read_only()), answers(&store));
    assert_eq!(again.files_with("half a"), Vec::<PathBuf>::new());
}

fn zstd_text(path: &Path) -> String {
    let mut text = String::new();
    let mut reader = everturn_formats::archive::Reader::new(std::fs::File::open(path).unwrap()).unwrap();
    while let Some(item) = reader.next_item().unwrap() {
        text += &format!("{item:?}\n");
    }
    text
}

#[test]
fn increments_bring_everything_that_happened_since() {
    let stage = Stage::new();
    let store = stage.open();
    let id = fill(&store);
    let folder = stage.folder.path().join("backups");
    backup(&store, &folder);
    let scope = store.tenant("acme").unwrap();
    let mut before = Vec::new();
    for round in 0..4 {
        let turn = scope.say(id, NewTurn::user(&format!("round {round}")));
        let fork = scope.conversation(id).fork(2).wait().unwrap().id();
        scope.say(fork, NewTurn::user("in the fork"));
        scope.conversation(fork).supersede(scope.turns(fork)[0].id, NewTurn::user("edited")).wait().unwrap();
        scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
        if round == 2 {
            scope.conversation(id).delete("the parent of forks").wait().unwrap();
            break;
        }
        before.push(answers(&store));
        let done = backup(&store, &folder);
        assert_eq!((done.number, done.counts.erased), (round + 2, 0), "erased before it was backed up");
        assert!(done.counts.conversations <= 2, "only what is new: {done:?}");
    }
    let done = backup(&store, &folder);
    assert_eq!((done.counts.deleted, done.number), (1, 4));
    let quiet = backup(&store, &folder);
    assert_eq!((quiet.counts.conversations, quiet.counts.events, quiet.counts.deleted), (0, 0, 0));
    let copy = Stage::new();
    let archives = archives_of(&folder, None).unwrap();
    assert_eq!(archives.len(), 5);
    restore(&archives, &copy);
    assert_eq!(answers(&copy.open_read_only()), answers(&store));
    // And any moment between.
    for (round, before) in before.iter().enumerate() {
        let then = Stage::new();
        restore(&archives_of(&folder, Some(&(round + 2).to_string())).unwrap(), &then);
        assert_eq!(answers(&then.open_read_only()), *before);
    }
}

/// The words are in the full archive, and the increment takes them back: in a turn, in an asset, in what was learned, in
/// a conversation that is deleted, in an inherited turn that is erased through a fork.
#[test]
fn what_was_erased_after_a_full_backup_is_in_no_file_of_a_restored_store() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let (id, other) = (scope.begin(), scope.begin());
    scope.say(id, NewTurn::user("harmless"));
    let turn = scope.say(id, NewTurn::user("the unspeakable word"));
    let picture =
        scope.conversation(id).assets().add(None, "text/plain", b"unspeakable bytes".to_vec()).unwrap();
    let block = format!(r#"{{"role":"user","content":[{{"type":"file","asset_id":"{}"}}]}}"#, picture.id);
    let shown = scope.say(id, NewTurn::message(&block));
    let inherited = scope.say(id, NewTurn::user("also unspeakable"));
    let fork = scope.conversation(id).fork(inherited.seq).wait().unwrap().id();
    scope.say(other, NewTurn::user("unspeakable, all of it"));
    let folder = stage.folder.path().join("backups");
    backup(&store, &folder);
    scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
    scope.conversation(id).erase(shown.id, None, "asked for").wait().unwrap();
    scope.conversation(fork).erase(inherited.id, None, "asked for").wait().unwrap();
    scope.conversation(other).delete("asked for").wait().unwrap();
    let done = backup(&store, &folder);
    assert!(done.counts.erased >= 3 && done.counts.deleted == 1, "{done:?}");

    let (before, after) = (Stage::new(), Stage::new());
    restore(&archives_of(&folder, Some("1")).unwrap(), &before);
    assert!(before.files_with("unspeakable").len() >= 2, "otherwise this test proves nothing");
    restore(&archives_of(&folder, None).unwrap(), &after);
    assert_eq!(after.files_with("unspeakable"), Vec::<PathBuf>::new());
    let restored = after.open();
    assert_eq!(answers(&restored), answers(&store));
    restored.index_now().unwrap();
    drop(restored);
    assert_eq!(after.files_with("unspeakable"), Vec::<PathBuf>::new());
}

#[test]
fn a_backup_beside_a_busy_writer_is_a_moment_of_it() {
    let stage = Stage::new();
    let store = stage.open_with(Options { debounce: Duration::ZERO, ..quiet() });
    let folder = stage.folder.path().join("backups");
    let ended = AtomicBool::new(false);
    let scopes: Vec<Tenant> = TENANTS.iter().map(|name| store.tenant(name).unwrap()).collect();
    std::thread::scope(|threads| {
        for scope in &scopes {
            let ended = &ended;
            threads.spawn(move || {
                let root = scope.begin();
                for round in 0.. {
                    if ended.load(Ordering::SeqCst) {
                        return;
                    }
                    let turn = scope.say(root, NewTurn::user(&format!("round {round}")));
                    let fork = scope.conversation(root).fork(turn.seq).wait().unwrap().id();
                    let open = open_turn(scope, fork);
                    if round % 2 == 0 {
                        scope.conversation(root).erase(turn.id, None, "asked for").wait().unwrap();
                    }
                    scope
                        .conversation(fork)
                        .open_turn(open)
                        .commit(NewTurn::assistant("a whole sentence"))
                        .wait()
                        .unwrap();
                    if round % 3 == 0 {
                        scope.conversation(fork).delete("asked for").wait().unwrap();
                    }
                }
            });
        }
        let reader = stage.open_read_only();
        let started = std::time::Instant::now();
        for _ in 0..6 {
            let done = backup(&reader, &folder);
            assert_eq!(done.problems, Vec::<String>::new());
            assert!(started.elapsed() < PATIENCE);
        }
        ended.store(true, Ordering::SeqCst);
    });
    let archives = archives_of(&folder, None).unwrap();
    assert_eq!(archives.len(), 6);
    for through in 1..=archives.len() {
        let copy = Stage::new();
        restore(&archives[..through], &copy);
        let restored = copy.open_read_only();
        for name in TENANTS {
            assert_eq!(restored.tenant(name).unwrap().doctor(&mut |_| {}).unwrap().findings, []);
        }
        assert_eq!(problems(&compare(&store, &archives[..through])), Vec::<&str>::new());
    }
    backup(&store, &folder);
    let copy = Stage::new();
    restore(&archives_of(&folder, None).unwrap(), &copy);
    assert_eq!(answers(&copy.open_read_only()), answers(&store));
}

#[test]
fn nothing_is_made_of_a_damaged_backup() {
    let stage = Stage::new();
    let store = stage.open();
    fill(&store);
    let folder = stage.folder.path().join("backups");
    backup(&store, &folder);
    store.tenant("acme").unwrap().begin();
    backup(&store, &folder);
    let archives = archives_of(&folder, None).unwrap();
    let copy = Stage::new();
    for path in &archives {
        let whole = std::fs::read(path).unwrap();
        let step = (whole.len() / 40).max(1);
        for at in (0..whole.len()).step_by(step) {
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            for bytes in [&changed[..], &whole[..at]] {
                std::fs::write(path, bytes).unwrap();
                let error = Everturn::restore(&copy.url(), &archives, &mut |_, _| {}).unwrap_err();
                assert!(error.text().contains(&path.display().to_string()), "{error:?}");
                assert_eq!(files(copy.folder.path()), Vec::<PathBuf>::new());
            }
        }
        // The next backup notices, instead of building on it.
        std::fs::write(path, &whole[..whole.len() - 1]).unwrap();
        let next = store.backup_to_folder(&folder, FolderOptions::default(), &mut |_, _| {});
        refused(next, "backup.cut", "--full starts a new full archive");
        std::fs::write(path, &whole).unwrap();
    }
    restore(&archives, &copy);
}

#[test]
fn archives_that_do_not_belong_together_are_refused() {
    let (stage, other, copy) = (Stage::new(), Stage::new(), Stage::new());
    let mut chains = Vec::new();
    for stage in [&stage, &other] {
        let store = stage.open();
        let folder = stage.folder.path().join("backups");
        for _ in 0..3 {
            store.tenant("acme").unwrap().begin();
            backup(&store, &folder);
        }
        chains.push(archives_of(&folder, None).unwrap());
    }
    let [ours, theirs] = &chains[..] else { unreachable!() };
    let attempt = |archives: &[&PathBuf]| {
        let archives: Vec<PathBuf> = archives.iter().map(|path| path.to_path_buf()).collect();
        Everturn::restore(&copy.url(), &archives, &mut |_, _| {})
    };
    refused(attempt(&[&ours[1]]), "backup.incomplete", "the full one first");
    refused(attempt(&[&ours[0], &ours[2]]), "backup.order", "one between them is missing");
    refused(attempt(&[&ours[0], &ours[2], &ours[1]]), "backup.order", "the order is wrong");
    refused(attempt(&[&ours[0], &theirs[1]]), "backup.order", "of another backup");
    refused(attempt(&[&ours[0], &theirs[0]]), "backup.order", "begins a backup anew");
    refused(attempt(&[]), "backup.absent", "name at least one");
    assert_eq!(files(copy.folder.path()), Vec::<PathBuf>::new());
    // A folder of another store is not continued by mistake.
    let folder = other.folder.path().join("backups");
    let mixed = stage.open().backup_to_folder(&folder, FolderOptions::default(), &mut |_, _| {});
    refused(mixed, "backup.other_store", "name another target");
    std::fs::remove_file(&ours[1]).unwrap();
    let gap = archives_of(&stage.folder.path().join("backups"), None).unwrap();
    refused(check(&gap), "backup.order", "one between them is missing");
}

#[test]
fn a_restore_replaces_nothing() {
    let stage = Stage::new();
    let store = stage.open();
    fill(&store);
    let folder = stage.folder.path().join("backups");
    backup(&store, &folder);
    let archives = archives_of(&folder, None).unwrap();
    refused(
        Everturn::restore(&stage.url(), &archives, &mut |_, _| {}),
        "restore.exists",
        "restore to another path",
    );
    // Not even beside what is left of another store: a write-ahead log would become part of the new one.
    for left in ["store.db-wal", "store.db-recall", "store.db-assets"] {
        let copy = Stage::new();
        std::fs::write(copy.folder.path().join(left), "left").unwrap();
        refused(Everturn::restore(&copy.url(), &archives, &mut |_, _| {}), "restore.exists", left);
    }
    refused(Everturn::restore("memory:", &archives, &mut |_, _| {}), "restore.memory", "name a file");
}

#[test]
fn a_store_is_held_against_a_backup() {
    let stage = Stage::new();
    let store = stage.open();
    let id = fill(&store);
    let scope = store.tenant("acme").unwrap();
    let folder = stage.folder.path().join("backups");
    backup(&store, &folder);
    let full = archives_of(&folder, None).unwrap();
    let old = Stage::new();
    restore(&full, &old);
    let found = compare(&store, &full);
    assert_eq!((problems(&found), found.erased, found.deleted), (Vec::new(), 0, 0));
    assert!(found.conversations > 4 && found.events > 20 && found.assets == 2 && found.keys == 2);

    // What was erased and deleted since is as it should be.
    let turn = scope.turns(id)[0].id;
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    let deleted = scope.list(ListQuery::default()).unwrap().data.last().unwrap().id;
    scope.conversation(deleted).delete("asked for").wait().unwrap();
    let found = compare(&store, &full);
    assert_eq!((problems(&found), found.erased, found.deleted), (Vec::new(), 1, 1));

    // A key that was revoked since, and one that is valid again.
    let key = store.keys().list("acme").unwrap()[0].id;
    store.keys().revoke("acme", key).unwrap();
    let found = compare(&store, &full);
    assert_eq!((problems(&found), found.keys, found.revoked), (Vec::new(), 2, 1));

    // An older copy of the store, and one that went another way.
    let new = scope.begin();
    backup(&store, &folder);
    let both = archives_of(&folder, None).unwrap();
    assert_eq!(left_out(&folder, &both).unwrap(), UndoneRemovals::default());
    let since = UndoneRemovals { erased: 1, deleted: 1, revoked: 1 };
    assert_eq!(left_out(&folder, &full).unwrap(), since);
    let anew = FolderOptions { full: true, keep: None };
    store.backup_to_folder(&folder, anew, &mut |_, _| {}).unwrap();
    assert_eq!(left_out(&folder, &full).unwrap(), since, "also where the newest backup begins anew");
    let copy = old.open();
    let differences = |found: &Comparison, of: ConversationId| {
        let about = |d: &&everturn_engine::backup::Difference| d.conversation == Some(of);
        found.differences.iter().filter(about).map(|d| d.problem.clone()).collect::<Vec<_>>().join("; ")
    };
    let found = compare(&copy, &both);
    assert!(differences(&found, new).contains("is missing, with 1 event, and was not deleted"), "{found:?}");
    assert!(differences(&found, id).contains("is cut: it ends at seq 2, the backup has 3"), "{found:?}");
    assert!(differences(&found, id).contains("seq 2: was erased, and its body is back"), "{found:?}");
    let valid_again = format!("the access key {key} was revoked, and is valid again");
    assert!(problems(&found).contains(&valid_again.as_str()), "{found:?}");
    let next = copy.backup_to_folder(&folder, FolderOptions::default(), &mut |_, _| {});
    refused(next, "backup.other_store", "name another target");
    copy.tenant("acme").unwrap().say(id, NewTurn::user("something else"));
    copy.tenant("acme").unwrap().say(id, NewTurn::user("and more"));
    let found = compare(&copy, &both);
    assert!(differences(&found, id).contains("was rewritten: it differs from seq 3 on"), "{found:?}");
}

/// A body that goes without a trace in the log is not an erasure.
#[test]
fn a_body_that_is_gone_without_a_record_is_named() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    scope.say(id, NewTurn::user("a word"));
    let full = stage.folder.path().join("full.zst");
    let done = store.backup_to_file(&full, &[], &mut |_, _| {}).unwrap();
    let header = ArchiveHeader {
        format: FORMAT,
        number: 2,
        follows: Some(done.id),
        created: scope.conversation(id).get().unwrap().created,
    };
    let mut seqs = Ranges::default();
    seqs.insert(2);
    let forged = stage.folder.path().join("forged.zst");
    let mut writer = Writer::new(std::fs::File::create(&forged).unwrap(), &header).unwrap();
    writer.erased(Erased { no: 1, seqs }).unwrap();
    writer.finish().unwrap();
    let copy = Stage::new();
    restore(&[full.clone(), forged], &copy);
    let found = compare(&copy.open_read_only(), &[full]);
    assert_eq!(problems(&found), ["seq 2: its body is gone, and no erasure is recorded"]);
}

#[test]
fn a_store_that_lost_something_does_not_go_on_with_its_backup() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let folder = stage.folder.path().join("backups");
    backup(&store, &folder);
    let old = Stage::new();
    restore(&archives_of(&folder, None).unwrap(), &old);
    scope.say(id, NewTurn::user("later"));
    backup(&store, &folder);
    let next = old.open().backup_to_folder(&folder, FolderOptions::default(), &mut |_, _| {});
    refused(next, "backup.lost", "ends at seq 1 and had 2");
    let anew = FolderOptions { full: true, keep: None };
    let done = old.open().backup_to_folder(&folder, anew, &mut |_, _| {}).unwrap();
    assert_eq!((done.number, done.follows), (1, None));
    assert_eq!(archives_of(&folder, None).unwrap().len(), 1);
    assert_eq!(archives_of(&folder, Some("2")).unwrap().len(), 2, "what was there is there still");
    // Old backups go when they are asked to go, with their increments, but not while they have what the store lost.
    let keep = FolderOptions { full: false, keep: Some(1) };
    let kept = old.open().backup_to_folder(&folder, keep, &mut |_, _| {}).unwrap().kept_because;
    assert!(kept.unwrap().contains("the store lacks"));
    assert_eq!(archives_of(&folder, Some("2")).unwrap().len(), 2);
    old.open().tenant("acme").unwrap().conversation(id).delete("no longer wanted").wait().unwrap();
    let done = old.open().backup_to_folder(&folder, keep, &mut |_, _| {}).unwrap();
    assert_eq!(done.kept_because, None);
    let left: Vec<String> = files(&folder)
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("everturn-"))
        .collect();
    assert_eq!(left.len(), 3, "{left:?}");
    restore(&archives_of(&folder, None).unwrap(), &Stage::new());
}

#[test]
fn a_stream_is_a_backup_too() {
    let (stage, copy) = (Stage::new(), Stage::new());
    let store = stage.open();
    fill(&store);
    let mut heard = Vec::new();
    let mut bytes = Vec::new();
    let done = store
        .backup(&mut bytes, &ArchiveContents::default(), &mut |done, total| heard.push((done, total)))
        .unwrap();
    assert_eq!(done.bytes, bytes.len() as u64);
    assert!(heard.iter().all(|(done, total)| done <= total) && heard.last().unwrap().0 == done.counts.events);
    let file = stage.folder.path().join("stream.zst");
    std::fs::write(&file, bytes).unwrap();
    let before = contents(std::slice::from_ref(&file)).unwrap();
    assert_eq!(before.last.as_ref().unwrap().1, done.id);
    store.tenant("acme").unwrap().create(NewConversation::default()).wait().unwrap();
    let mut increment = Vec::new();
    let next = store.backup(&mut increment, &before, &mut |_, _| {}).unwrap();
    assert_eq!((next.follows, next.counts.conversations), (Some(done.id), 1));
    let second = stage.folder.path().join("second.zst");
    std::fs::write(&second, increment).unwrap();
    restore(&[file, second], &copy);
    assert_eq!(answers(&copy.open_read_only()), answers(&store));
}

/// `--keep 1` removed the only archive that still had what the store had lost.
#[test]
fn old_archives_stay_while_they_have_what_the_store_lacks() {
    let stage = Stage::new();
    let folder = tempfile::tempdir().unwrap();
    let again = FolderOptions { full: true, keep: Some(1) };
    let archives = || std::fs::read_dir(folder.path()).unwrap().flatten().filter(is_archive).count();
    let id = {
        let store = stage.open();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        scope.say(id, NewTurn::user("the only copy"));
        for _ in 0..2 {
            let done = store.backup_to_folder(folder.path(), again, &mut |_, _| {}).unwrap();
            assert_eq!((done.kept_because, archives()), (None, 1));
        }
        id
    };
    let db = rusqlite::Connection::open(stage.path()).unwrap();
    db.execute("UPDATE events SET body = replace(body, 'only', 'lone') WHERE seq = 2", []).unwrap();
    drop(db);
    let store = stage.open();
    let done = store.backup_to_folder(folder.path(), again, &mut |_, _| {}).unwrap();
    assert!(done.problems[0].contains(&id.to_string()), "{:?}", done.problems);
    assert!(done.kept_because.is_some() && archives() == 2);
    // A store that lacks the conversation altogether is whole in itself.
    let (other, empty) = (Stage::new(), again);
    let done = other.open().backup_to_folder(folder.path(), empty, &mut |_, _| {}).unwrap();
    assert!(done.problems.is_empty() && done.kept_because.unwrap().contains("the store lacks"));
    assert_eq!(archives(), 3);
}

fn is_archive(file: &std::fs::DirEntry) -> bool {
    file.file_name().to_string_lossy().ends_with(".zst")
}

/// `--force` with the store's own name replaced the store by its backup.
#[test]
fn only_an_archive_is_replaced_by_an_archive() {
    let stage = Stage::new();
    let store = stage.open();
    store.tenant("acme").unwrap().begin();
    let none: &[PathBuf] = &[];
    for taken in [stage.path().to_path_buf(), stage.folder.path().join("notes.zst")] {
        if !taken.exists() {
            std::fs::write(&taken, "my notes").unwrap();
        }
        let before = std::fs::read(&taken).unwrap();
        refused(store.backup_to_file(&taken, none, &mut |_, _| {}), "backup.target", "is not a backup");
        assert_eq!(std::fs::read(&taken).unwrap(), before);
    }
    let damaged = stage.folder.path().join("damaged.zst");
    std::fs::write(&damaged, [0x28, 0xb5, 0x2f, 0xfd, 0, 0]).unwrap();
    refused(store.backup_to_file(&damaged, none, &mut |_, _| {}), "backup.target", "is a damaged backup");
    let archive = stage.folder.path().join("full.zst");
    for _ in 0..2 {
        store.backup_to_file(&archive, none, &mut |_, _| {}).unwrap();
    }
    let after = [archive.clone()];
    refused(store.backup_to_file(&archive, &after, &mut |_, _| {}), "backup.target", "one of the archives");
}

/// Bytes that are gone are said to be gone, and a folder whose disk is not mounted is not made up.
#[test]
fn what_a_backup_lacks_is_named_and_where_it_goes_is_not_guessed() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let kept = scope.conversation(id).assets().add(None, "image/png", b"kept".to_vec()).unwrap();
    let lost = scope.conversation(id).assets().add(None, "image/png", b"lost".to_vec()).unwrap();
    let file = stage.path().with_extension("db-assets").join(lost.storage.unwrap().path.unwrap());
    std::fs::remove_file(file).unwrap();
    let done = store.backup_to_folder(
        &stage.folder.path().join("backups"),
        FolderOptions::default(),
        &mut |_, _| {},
    );
    let problems = done.unwrap().problems;
    assert!(
        problems.len() == 1 && problems[0].contains(&format!("asset {} at seq", lost.id)),
        "{problems:?}"
    );
    assert!(!problems[0].contains(&kept.id));
    let unmounted = stage.folder.path().join("mnt/backups");
    refused(
        store.backup_to_folder(&unmounted, FolderOptions::default(), &mut |_, _| {}),
        "backup.cannot_write",
        "No such file",
    );
    assert!(!stage.folder.path().join("mnt").exists());
}

fn sql(stage: &Stage, statement: &str) {
    let changed = rusqlite::Connection::open(stage.path()).unwrap().execute(statement, []).unwrap();
    assert_eq!(changed, 1, "{statement}");
}

/// A salt that was zeroed by hand reads like an erasure. `verify` said that all is in order, and the next increment took the
/// words out of the archives too.
#[test]
fn a_body_that_was_not_erased_is_damage_and_its_archived_original_stays() {
    let blank = "UPDATE events SET salt = zeroblob(16), body = printf('%*s', length(body), '') WHERE seq = 2";
    let salt = "UPDATE events SET salt = zeroblob(16) WHERE seq = 2";
    for (damage, code) in [(salt, "chain.body_mismatch"), (blank, "chain.erasure_unrecorded")] {
        let (stage, copy) = (Stage::new(), Stage::new());
        let folder = stage.folder.path().join("backups");
        let id = {
            let store = stage.open();
            let scope = store.tenant("acme").unwrap();
            let id = scope.begin();
            scope.say(id, NewTurn::user("the only copy").by("ann"));
            let other = scope.say(id, NewTurn::user("not for long"));
            backup(&store, &folder);
            scope.conversation(id).erase(other.id, None, "asked for").wait().unwrap();
            id
        };
        sql(&stage, damage);
        let store = stage.open();
        let scope = store.tenant("acme").unwrap();
        refused(scope.conversation(id).log().verify(None), code, "seq 2: its body is");
        let findings = scope.doctor(&mut |_| {}).unwrap().findings;
        assert!(findings.iter().any(|finding| finding.problem.contains("seq 2")), "{findings:?}");
        let found = compare(&store, &archives_of(&folder, None).unwrap());
        assert!(problems(&found)[0].starts_with("seq 2: its body is"), "{found:?}");
        let done = backup(&store, &folder);
        assert_eq!(done.counts.erased, 1, "the erasure that was asked for is carried");
        if damage == blank {
            assert!(done.problems[0].contains("seq 2: the body is gone"), "{:?}", done.problems);
        }
        restore(&archives_of(&folder, None).unwrap(), &copy);
        let restored = copy.open().tenant("acme").unwrap().turns(id);
        assert!(restored[0].message.as_ref().unwrap().get().contains("the only copy"));
        assert!(restored[1].erased);
        // If nobody has it any more, erasing says so in the log, and all is in order again.
        scope.conversation(id).erase(restored[0].id, None, "lost").wait().unwrap();
        scope.conversation(id).log().verify(None).unwrap();
        assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
        assert_eq!(stage.files_with("the only copy"), Vec::<PathBuf>::new());
    }
}

/// An erasure may be recorded elsewhere: in a fork, in an ancestor, in a conversation that is gone, in another store.
#[test]
fn a_body_that_was_erased_elsewhere_is_no_damage() {
    let (stage, copy) = (Stage::new(), Stage::new());
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turns: Vec<TurnId> = (0..3).map(|n| scope.say(id, NewTurn::user(&format!("word {n}"))).id).collect();
    let fork = scope.conversation(id).fork(4).wait().unwrap().id();
    let gone = scope.conversation(id).fork(4).wait().unwrap().id();
    scope.conversation(id).erase(turns[0], None, "in the parent").wait().unwrap();
    scope.conversation(fork).erase(turns[1], None, "in a fork").wait().unwrap();
    scope.conversation(gone).erase(turns[2], None, "in a fork that is deleted").wait().unwrap();
    let sound = |scope: &Tenant| {
        for conversation in scope.list(ListQuery::default()).unwrap().data {
            scope.conversation(conversation.id).log().verify(None).unwrap();
        }
        assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
    };
    sound(&scope);
    let mut file = Vec::new();
    scope.conversation(fork).export(everturn_engine::Format::Jsonl, &mut file, &mut |_| {}).unwrap();
    scope.conversation(gone).delete("no longer wanted").wait().unwrap();
    sound(&scope);
    scope.conversation(id).delete("no longer wanted").wait().unwrap();
    sound(&scope);
    let other = copy.open();
    let theirs = other.tenant("acme").unwrap();
    theirs.import(&file[..], &mut |_| {}).unwrap();
    sound(&theirs);
}

/// What stood behind a damaged event was in no archive, although the rest was said to be backed up.
#[test]
fn everything_that_can_be_read_of_a_damaged_store_is_in_the_archive() {
    let body = "UPDATE events SET body = replace(body, 'word 2', 'w0rd 2') WHERE body LIKE '%word 2%'";
    let envelope = "UPDATE events SET actor = 'mallory' WHERE body LIKE '%word 2%'";
    let row = "DELETE FROM places WHERE conversation = 1 AND seq = 4";
    for damage in [body, envelope, row] {
        let (stage, copy) = (Stage::new(), Stage::new());
        let (id, fork, other) = {
            let store = stage.open();
            let scope = store.tenant("acme").unwrap();
            let (id, other) = (scope.begin(), scope.begin());
            for n in 0..5 {
                scope.say(id, NewTurn::user(&format!("word {n}")).by("ann"));
            }
            scope.say(other, NewTurn::user("elsewhere"));
            let fork = scope.conversation(id).fork(5).wait().unwrap().id();
            scope.say(fork, NewTurn::user("word of the fork"));
            (id, fork, other)
        };
        sql(&stage, damage);
        let file = stage.folder.path().join("damaged.zst");
        let store = stage.open_read_only();
        let done = store.backup_to_file(&file, &[], &mut |_, _| {}).unwrap();
        let said = done.problems.join("\n");
        assert!(said.contains(&id.to_string()) && said.contains("seq 4"), "{damage}: {said}");
        let text = zstd_text(&file);
        for word in ["word 0", "word 1", "word 3", "word 4", "word of the fork", "elsewhere"] {
            assert!(text.contains(word), "{damage}: {word} is missing; {said}");
        }
        restore(std::slice::from_ref(&file), &copy);
        let restored = copy.open();
        let scope = restored.tenant("acme").unwrap();
        assert_eq!(scope.turns(other).len(), 1);
        let words: Vec<bool> = scope.turns(id).iter().map(|turn| !turn.erased).collect();
        if damage == body {
            assert_eq!(words, [true, true, false, true, true]);
            assert_eq!((done.counts.loose, scope.turns(fork).len()), (0, 5));
        } else {
            assert_eq!(words, [true, true], "{damage}");
            assert!(done.counts.loose >= 4, "{damage}: {done:?}");
            refused(scope.conversation(fork).get(), "conversation.absent", "no conversation");
        }
    }
}

/// Conversations are private: what is made for them is closed to others, unless its folder is meant for a group.
#[cfg(unix)]
#[test]
fn stores_and_backups_are_for_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (folder, of_files, of_folders) in
        [(0o755, 0o600, 0o700), (0o775, 0o600, 0o700), (0o750, 0o640, 0o750)]
    {
        let (stage, copy) = (Stage::new(), Stage::new());
        for stage in [&stage, &copy] {
            std::fs::set_permissions(stage.folder.path(), PermissionsExt::from_mode(folder)).unwrap();
        }
        let store = stage.open();
        fill(&store);
        store.note_records(&stage.folder.path().join("records")).unwrap();
        let archives = stage.folder.path().join("backups");
        let made = backup(&store, &archives).path.unwrap();
        restore(&archives_of(&archives, None).unwrap(), &copy);
        drop(copy.open());
        let beside = ["wal", "head", "copies"].map(|name| stage.path().with_extension(format!("db-{name}")));
        let others = [
            stage.path().with_extension("db.lock"),
            copy.path().with_extension("db-head"),
            archives.join(".everturn-backup.lock"),
        ];
        for path in [stage.path(), copy.path(), made].into_iter().chain(beside).chain(others) {
            assert_eq!(mode(&path), of_files, "{} in a folder of mode {folder:o}", path.display());
        }
        for path in
            [archives, stage.path().with_extension("db-assets"), copy.path().with_extension("db-index")]
        {
            assert_eq!(mode(&path), of_folders, "{} in a folder of mode {folder:o}", path.display());
        }
    }
}

/// Killed restores left conversations in hidden folders.
#[test]
fn a_restore_removes_what_a_killed_one_left() {
    let (stage, copy) = (Stage::new(), Stage::new());
    let store = stage.open();
    fill(&store);
    let file = stage.folder.path().join("full.zst");
    store.backup_to_file(&file, &[], &mut |_, _| {}).unwrap();
    let left = |number: u32| copy.folder.path().join(format!(".store.db.restoring-{number}-0"));
    for number in [1, 2] {
        std::fs::create_dir(left(number)).unwrap();
        std::fs::write(left(number).join("store.db"), "words").unwrap();
    }
    // The second one is still being written.
    std::fs::File::create(left(1).join("restoring.lock")).unwrap();
    let alive = std::fs::File::create(left(2).join("restoring.lock")).unwrap();
    alive.lock().unwrap();
    restore(&[file], &copy);
    assert!(!left(1).exists() && left(2).exists());
}
