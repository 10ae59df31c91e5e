//! Two processes on one file: one writes, the others are told who, and may read.

use crate::child::{Process, given, tell};
use crate::stage::{PATIENCE, Short, Stage, refused, seqs, words};
use everturn_engine::{ChangeKind, Everturn, NewTurn, Options, Update};

const STORE: &str = "EVERTURN_TEST_STORE";

/// The child: has the store open for writing, and says one thing.
pub fn own_the_store() {
    let store = Everturn::open(&given(STORE)).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    scope.say(id, NewTurn::user("from the owner"));
    tell(format_args!("ready"));
    // Until it is killed.
    loop {
        std::thread::park();
    }
}

#[test]
fn a_second_writer_is_told_who_the_owner_is_and_readers_work() {
    let stage = Stage::new();
    let owner = Process::start("own", &[(STORE, stage.url())]);
    owner.wait_for("ready");
    let second = Everturn::open(&stage.url());
    let says = format!("is open for writing by process {} (all-", owner.id());
    assert!(matches!(second, Err(everturn_engine::Error::Busy(_))));
    refused(second, "store.owned", &says);
    refused(
        Everturn::open(&stage.url()),
        "store.owned",
        "wait until it ends, or, if it is a server, send it the request, on the command line with --url (reading is allowed)",
    );

    let reader = stage.open_read_only();
    let scope = reader.tenant("acme").unwrap();
    let id = scope.resolve("@last").unwrap();
    assert_eq!(words(&scope.turns(id)[0]).unwrap(), "from the owner");
    let mut subscription = scope.conversation(id).subscribe(0).unwrap();
    let updates: Vec<Update> =
        (0..2).map(|_| subscription.recv_timeout(PATIENCE).unwrap().unwrap()).collect();
    assert_eq!(seqs(&updates), [1, 2]);
    refused(scope.try_say(id, NewTurn::user("no")), "store.opened_read_only", "open it for writing");

    // The right to write goes with the process, however it ends.
    owner.kill();
    let store = stage.open_with(Options { patience: PATIENCE, ..Options::default() });
    store.tenant("acme").unwrap().say(id, NewTurn::user("from the next"));
    let updates = subscription.recv_timeout(PATIENCE).unwrap();
    assert_eq!(seqs(&[updates.unwrap()]), [3]);
}

#[test]
fn a_patient_second_writer_gets_its_turn_when_the_first_ends() {
    let stage = Stage::new();
    let owner = Process::start("own", &[(STORE, stage.url())]);
    owner.wait_for("ready");
    let url = stage.url();
    let waiting = std::thread::spawn(move || {
        Everturn::open_with(&url, Options { patience: PATIENCE, ..Options::default() })
    });
    owner.kill();
    let store = waiting.join().unwrap().unwrap();
    let scope = store.tenant("acme").unwrap();
    scope.say(scope.resolve("@last").unwrap(), NewTurn::user("at last"));
}

/// A process that only reads told a conversation that changed before the stream began, and called every change of a young one
/// its creation.
pub fn told_once_as_new(writer: &Everturn, reader: &Everturn) {
    let (here, there) = (writer.tenant("acme").unwrap(), reader.tenant("acme").unwrap());
    let before = here.begin();
    let mut changes = there.changes(None);
    let mut next = || {
        let told = changes.recv().unwrap().unwrap().data;
        told.iter().map(|told| (told.id, told.change, told.seq)).collect::<Vec<_>>()
    };
    let id = here.begin();
    assert_eq!(next(), [(id, ChangeKind::Created, 1)]);
    here.say(id, NewTurn::user("one"));
    assert_eq!(next(), [(id, ChangeKind::Changed, 2)]);
    here.say(before, NewTurn::user("two"));
    assert_eq!(next(), [(before, ChangeKind::Changed, 2)]);
}

#[test]
fn a_reader_of_changes_begins_now_and_is_told_once_that_a_conversation_is_new() {
    let stage = Stage::new();
    let writer = stage.open();
    told_once_as_new(&writer, &stage.open_read_only());
}
