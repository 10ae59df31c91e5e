//! Background work that one of several nodes does, and the next one when that dies; assets that all of them have.

use super::{CONVERSATION, STORE, open};
use crate::child::{Process, given, tell};
use crate::compacting::{good, talk};
use crate::stage::{START, Short, Still, refused, until};
use base64::Engine;
use everturn_core::approval::ApprovalBody;
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use everturn_engine::model::Summarizer;
use everturn_engine::{Error, Everturn, NewTurn, Options, Tenant};
use everturn_store::Assets;
use everturn_store::assets::Place;
use everturn_store::conformance::Database;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A model that takes its time; in a child it never answers.
#[derive(Default)]
struct SlowModel {
    calls: AtomicUsize,
    hangs: bool,
}

impl SlowModel {
    fn open(self: &Arc<SlowModel>, url: &str) -> Everturn {
        let summarizers = BTreeMap::from([("default".to_string(), self.clone() as Arc<dyn Summarizer>)]);
        let sweep_every = Duration::from_secs(1);
        Everturn::open_with(url, Options { summarizers, sweep_every, ..Options::default() }).unwrap()
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Summarizer for SlowModel {
    fn name(&self) -> String {
        "slow-1".into()
    }

    fn summarize(
        &self,
        _: &str,
        _: &str,
    ) -> Pin<Box<dyn Future<Output = Result<String, Error>> + Send + 'static>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            tell(format_args!("summarizing"));
            return Box::pin(std::future::pending());
        }
        Box::pin(async {
            // Longer than the moment of quiet after which a node that shares the conversation checks it.
            std::thread::sleep(Duration::from_secs(1));
            Ok(good("Keep going"))
        })
    }
}

fn compactions(tenant: &Tenant, id: ConversationId) -> usize {
    tenant.kinds(id).iter().filter(|kind| *kind == "compaction").count()
}

#[test]
fn a_conversation_of_two_nodes_is_compacted_once() {
    let Some(database) = Database::new() else { return };
    let model = Arc::<SlowModel>::default();
    let stores = [model.open(&database.url()), model.open(&database.url())];
    let tenants = [0, 1].map(|nth| stores[nth].tenant("acme").unwrap());
    let id = tenants[0].begin();
    (0..26).for_each(|_| tenants.iter().for_each(|tenant| talk(tenant, id, 1)));
    until("it is compacted", || compactions(&tenants[1], id) > 0);
    // Closing waits for work in progress.
    drop(tenants);
    drop(stores);
    let after = open(&database);
    assert_eq!((model.calls(), compactions(&after.tenant("acme").unwrap(), id)), (1, 1));
}

/// The child: asks a model that never answers for a checkpoint.
pub fn compact_until_killed() {
    let model = Arc::new(SlowModel { hangs: true, ..SlowModel::default() });
    let store = model.open(&given(STORE));
    talk(&store.tenant("acme").unwrap(), given(CONVERSATION).parse().unwrap(), 51);
    loop {
        std::thread::park();
    }
}

#[test]
fn the_work_of_a_node_that_dies_is_taken_over() {
    let Some(database) = Database::new() else { return };
    let id = open(&database).tenant("acme").unwrap().begin();
    let child = Process::start("compact", &[(STORE, database.url()), (CONVERSATION, id.to_string())]);
    child.wait_for("summarizing");
    // Not earlier: on a busy machine it would find that the child takes too long with its turns, and do the work itself.
    let model = Arc::<SlowModel>::default();
    let store = model.open(&database.url());
    let tenant = store.tenant("acme").unwrap();
    // Every node looks at changed conversations after some seconds, and leaves this one alone while the child lives.
    let later = Instant::now() + Duration::from_secs(9);
    until("the moment to take over has passed", || Instant::now() > later);
    assert_eq!((model.calls(), compactions(&tenant, id)), (0, 0));
    child.kill();
    until("another node compacts it", || compactions(&tenant, id) == 1);
    assert_eq!(model.calls(), 1);
}

/// A node that ended before it came to a check used to leave it to the next append, if no other was there to hear of it.
#[test]
fn what_nobody_checked_is_checked_by_a_node_that_starts_later() {
    let Some(database) = Database::new() else { return };
    let unchecked = Options { auto_compaction: false, ..Options::default() };
    let before = Everturn::open_with(&database.url(), unchecked).unwrap();
    let id = before.tenant("acme").unwrap().begin();
    talk(&before.tenant("acme").unwrap(), id, 51);
    drop(before);
    let store = Arc::<SlowModel>::default().open(&database.url());
    until("it is compacted", || compactions(&store.tenant("acme").unwrap(), id) == 1);
}

/// Regression: a process that ended before it checked the conversation had noted no deadline, and no sweep found one.
#[test]
fn a_sweep_settles_what_ended_processes_asked_for() {
    let Some(database) = Database::new() else { return };
    let clock = Still::new(5);
    let ask = |store: &Everturn, deadline: Timestamp| {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let (approval_id, deadline) = ("a1".to_string(), Some(deadline));
        let body = ApprovalBody { approval_id, deadline, ..ApprovalBody::default() };
        scope.conversation(id).state().request_approval(body, None).wait().unwrap();
        id
    };
    let open = || Everturn::open_with(&database.url(), clock.options()).unwrap();
    let store = open();
    let (first, later) = (ask(&store, START.plus_s(10)), ask(&store, START.plus_s(100)));
    drop(store);
    clock.advance_s(20);
    let store = open();
    let scope = store.tenant("acme").unwrap();
    let is_resolved = |id| scope.kinds(id).iter().any(|kind| kind == "approval.resolved");
    assert_eq!(store.sweep_all().unwrap().approvals, 1);
    assert_eq!((is_resolved(first), is_resolved(later)), (true, false));
    // The deadline of the other is noted, for this process as for any other.
    clock.advance_s(100);
    assert_eq!(store.sweep_all().unwrap().approvals, 1);
    assert!(is_resolved(later));
}

/// The child: does the work of the whole store, and asks for an approval that has a deadline.
pub fn lead_until_killed() {
    let store = Everturn::open(&given(STORE)).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    let deadline = Some(Timestamp(i64::try_from(now).unwrap()).plus_s(10));
    let body = ApprovalBody { approval_id: "a1".into(), deadline, ..ApprovalBody::default() };
    let conversation = store.tenant("acme").unwrap().conversation(given(CONVERSATION).parse().unwrap());
    conversation.state().request_approval(body, Some("agent".into())).wait().unwrap();
    tell(format_args!("asked"));
    loop {
        std::thread::park();
    }
}

/// A node must not serve an expired conversation because another set its time to live.
#[test]
fn what_expires_is_absent_on_every_node_when_it_is_due() {
    let Some(database) = Database::new() else { return };
    let clock = Still::new(5);
    // Nobody sweeps: the clock stands still, and then it is an hour later.
    let open = || Everturn::open_with(&database.url(), clock.options()).unwrap();
    let (one, other) = (open(), open());
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let mut changes = there.changes(None);
    let id = here.begin_with(Settings { ttl: Some(Some(60)), ..Settings::default() }).id;
    assert_eq!(changes.recv().unwrap().unwrap().data.remove(0).id, id);
    there.conversation(id).get().unwrap();
    clock.advance_s(61);
    refused(there.conversation(id).get(), "conversation.absent", "");
}

#[test]
fn sweeping_goes_on_when_the_node_that_sweeps_dies() {
    let Some(database) = Database::new() else { return };
    let id = open(&database).tenant("acme").unwrap().begin();
    let child = Process::start("lead", &[(STORE, database.url()), (CONVERSATION, id.to_string())]);
    child.wait_for("asked");
    let store = Arc::<SlowModel>::default().open(&database.url());
    let tenant = store.tenant("acme").unwrap();
    let expiring = || tenant.begin_with(Settings { ttl: Some(Some(1)), ..Settings::default() }).id;
    let is_deleted =
        |id: ConversationId| tenant.tombstones().unwrap().iter().any(|tombstone| tombstone.id == id);
    // The child sweeps what this node began.
    let first = expiring();
    until("the first node deletes it", || is_deleted(first));
    child.kill();
    let second = expiring();
    until("this node deletes it", || is_deleted(second));
    until("the approval expires", || tenant.kinds(id).iter().any(|kind| kind == "approval.resolved"));
    assert_eq!(tenant.kinds(id).iter().filter(|kind| *kind == "approval.resolved").count(), 1);
}

#[test]
fn assets_elsewhere_are_read_and_erased_by_every_node() {
    let Some(database) = Database::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = match std::env::var("EVERTURN_TEST_S3") {
        Ok(bucket) => format!("{bucket}/engine-{}", std::process::id()),
        Err(_) => format!("file://{}", folder.path().display()),
    };
    let one = Everturn::open(&format!("{}&assets={url}", database.url())).unwrap();
    // The database remembers the place.
    let other = open(&database);
    let (here, there) = (one.tenant("acme").unwrap(), other.tenant("acme").unwrap());
    let id = here.begin();
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let data = base64::engine::general_purpose::STANDARD.encode(&bytes);
    let message = format!(
        r#"{{"role":"user","content":[{{"type":"file","filename":"a.bin","file_data":"data:text/plain;base64,{data}"}}]}}"#
    );
    let turn = here.say(id, NewTurn::message(message));
    let asset = here.conversation(id).assets().list().unwrap().remove(0);
    let seen = there.assets().get(&asset.id).unwrap();
    assert!(there.assets().bytes(&seen).unwrap() == bytes);
    assert!(there.assets().range(&seen, 10..20).unwrap() == bytes[10..20]);
    let stored = || Place::new(&url, std::env::vars()).unwrap().into_assets().list().unwrap().len();
    assert_eq!(stored(), 1);
    there.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
    assert_eq!(stored(), 0);
}
