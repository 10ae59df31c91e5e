//! News of a store that several processes write.
//!
//! Every write stamps its conversation with its transaction. What is visible now and was not visible in the snapshot
//! of the last look is new: nothing is missed, nothing comes twice, and nothing waits for transactions that are still
//! open. A notification only says that it is worth looking. It is sent after the commit and not with it: PostgreSQL
//! commits transactions with notifications one after the other.

use super::Postgres;
use super::db::{Db, Mode, Pending, Scope, boxed};
use super::link::{Hosts, Link};
use super::ready::Readiness;
use super::rows;
use crate::{ChangeFeed, ChangedConversation, RemoteChanges};
use everturn_core::Error;
use everturn_core::id::{ConversationId, Key, TenantName, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::write::EventAddress;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, Row};

/// A process that gave no sign for this long is taken for dead.
const SILENT: Duration = Duration::from_secs(5);
pub const SILENT_S: f64 = SILENT.as_secs() as f64;
/// The same, for a process that has not given signs itself for as long.
const SILENT_FOR_NEW_S: f64 = 60.0;
/// Interval between two signs.
const SIGN_EVERY: Duration = Duration::from_secs(1);
/// A gap between two signs of this process after which it does not judge others: they may have had the same outage.
const GAP: Duration = Duration::from_secs(3);
/// Shortest time between two looks, and between two notifications: what happens meanwhile is in the next one.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
const NOTIFY_PAUSE: Duration = Duration::from_millis(2);
/// Pause before the next attempt to listen.
const LISTEN_AGAIN: Duration = Duration::from_millis(500);
/// Time after which everything that was visible is on disk, and on a synchronous standby, however it was committed.
const SETTLED: Duration = Duration::from_secs(10);
/// A snapshot in which nothing is visible.
const BEFORE_EVERYTHING: &str = "1:1:";

/// A place in the order in which changes become visible.
///
/// After a crash or a failover the server gives the numbers of transactions that it forgot to others: those that were
/// rolled back, or committed without a wait for the disk. A snapshot from before may have seen such a number, and would
/// take the new transaction for an old one. So the first look at a restarted server goes on from a snapshot that was old
/// enough by then.
#[derive(Default)]
struct Cursor {
    /// `None` before everything.
    now: Option<Snapshot>,
    /// Taken [`SETTLED`] before `settling` or earlier,
    settled: Option<Snapshot>,
    /// and the one that becomes it next.
    settling: Option<Snapshot>,
}

#[derive(Clone)]
struct Snapshot {
    text: String,
    /// Run of the server: another one after a restart, a crash or a failover.
    run: String,
    taken: Instant,
}

/// The columns of a [`Snapshot`]. Statistics start again after a crash from which the server recovers without a restart.
const SNAPSHOT: &str = "SELECT pg_current_snapshot()::text, concat(pg_postmaster_start_time(), ' ', pg_stat_get_bgwriter_stat_reset_time())";

/// Rows that are visible now and were not in the snapshot $1.
macro_rules! new {
    ($column:literal) => {
        concat!(
            $column,
            " >= pg_snapshot_xmin($1::text::pg_snapshot) AND NOT pg_visible_in_snapshot(",
            $column,
            ", $1::text::pg_snapshot)"
        )
    };
}

/// What is new since the snapshot $1: bodies that were erased, keys, and conversations.
const NEWS: [&str; 3] = [
    concat!(
        "SELECT b.tenant, c.id, b.seq FROM erased_bodies b
         JOIN conversation_rows c ON c.tenant = b.tenant AND c.no = b.conversation WHERE ",
        new!("b.changed")
    ),
    concat!("SELECT 1 FROM access_keys k WHERE ", new!("k.changed"), " LIMIT 1"),
    concat!(
        "SELECT c.tenant, c.id, c.head_seq, c.deleted IS NOT NULL, c.expires, NOT pg_visible_in_snapshot(c.begun, $1::text::pg_snapshot)
         FROM conversation_rows c WHERE ",
        new!("c.changed"),
        " AND NOT c.replaced ORDER BY c.no"
    ),
];

impl Cursor {
    /// A place after everything.
    fn now(db: &Db) -> Result<Cursor, Error> {
        let mut cursor = Cursor::default();
        let taken = Instant::now();
        let row = db.query_one(SNAPSHOT, &[])?;
        cursor.advance(snapshot(row.as_ref(), taken)?);
        Ok(cursor)
    }

    fn advance(&mut self, now: Snapshot) {
        if self.settling.as_ref().is_none_or(|settling| now.taken - settling.taken >= SETTLED) {
            self.settled = self.settling.replace(now.clone());
        }
        self.now = Some(now);
    }

    /// Changes since the last call. All queries of `db` see one snapshot, and the cursor moves there.
    fn news(&mut self, db: &Db) -> Result<RemoteChanges, Error> {
        let text = |from: Option<&Snapshot>| from.map_or(BEFORE_EVERYTHING, |from| &from.text).to_string();
        let (mut now, mut found) = look(db, text(self.now.as_ref()))?;
        if self.now.as_ref().is_some_and(|last| last.run != now.run) {
            (now, found) = look(db, text(self.settled.as_ref()))?;
        }
        self.advance(now);
        Ok(found)
    }
}

fn snapshot(row: Option<&Row>, taken: Instant) -> Result<Snapshot, Error> {
    let row = row.ok_or_else(|| rows::wrong("the server has no snapshot"))?;
    Ok(Snapshot { text: rows::get(row, 0)?, run: rows::get(row, 1)?, taken })
}

/// The snapshot of this moment, and what is new in it since the one that `start` is the text of. One round trip.
fn look(db: &Db, start: String) -> Result<(Snapshot, RemoteChanges), Error> {
    let taken = Instant::now();
    let mut all = vec![Pending { sql: SNAPSHOT, params: Vec::new() }];
    all.extend(NEWS.map(|sql| Pending { sql, params: boxed![start.clone()] }));
    let answers = db.together(&all, false)?;
    let [now, erased, keys, changed] = &answers[..] else { return Err(rows::wrong("an answer is missing")) };
    let erasure = |row: &Row| {
        let Key { tenant, id } = key(row, 0)?;
        Ok((tenant, EventAddress { conversation: id, seq: rows::unsigned(row, 2)? }))
    };
    let change = |row: &Row| {
        Ok(ChangedConversation {
            key: key(row, 0)?,
            head_seq: rows::unsigned(row, 2)?,
            deleted: rows::get(row, 3)?,
            expires: rows::get::<Option<i64>>(row, 4)?.map(Timestamp),
            created: rows::get(row, 5)?,
        })
    };
    let news = RemoteChanges {
        changed: changed.iter().map(change).collect::<Result<_, Error>>()?,
        erased: erased.iter().map(erasure).collect::<Result<_, Error>>()?,
        keys: !keys.is_empty(),
    };
    Ok((snapshot(now.first(), taken)?, news))
}

fn key(row: &Row, column: usize) -> Result<Key, Error> {
    let tenant = TenantName::new(rows::get::<String>(row, column)?)?;
    Ok(Key { tenant, id: ConversationId::from_bytes(rows::bytes(row, column + 1)?) })
}

/// This process among those that share the store.
pub struct Node {
    pub no: i64,
    pub ready: Readiness,
    cursor: Mutex<Cursor>,
    bell: Arc<Bell>,
}

/// Notifications in both directions, and signs of life.
#[derive(Default)]
struct Bell {
    /// Since when, and when last, this process gave signs without a gap.
    steady: Mutex<Option<(Instant, Instant)>>,
    rung: Mutex<bool>,
    /// Last time that somebody went to look.
    looked: Mutex<Option<Instant>>,
    changed: Condvar,
    /// Signalled when this process has committed something.
    tell: Notify,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock() = true;
        self.changed.notify_all();
    }

    fn gave_sign(&self) {
        let (mut steady, now) = (self.steady.lock(), Instant::now());
        let since = steady.filter(|(_, last)| last.elapsed() < GAP).map_or(now, |(since, _)| since);
        *steady = Some((since, now));
    }
}

impl Node {
    /// Joins the processes that share the store.
    pub fn join(link: &Link) -> Result<Node, Error> {
        let db = Db::begin(link, Scope::All, Mode::Write)?;
        // Those that died long ago have no turns left.
        db.execute("DELETE FROM nodes WHERE seen < clock_timestamp() - interval '1 day'", &[])?;
        let row = db.query_one("INSERT INTO nodes DEFAULT VALUES RETURNING no", &[])?;
        let no = rows::get(&row.ok_or_else(|| rows::wrong("no number for this process"))?, 0)?;
        db.commit()?;
        let cursor = Cursor::now(&Db::begin(link, Scope::All, Mode::Read)?)?;
        let bell = Arc::<Bell>::default();
        link.runtime.spawn(listen(link.hosts.clone(), no, bell.clone()));
        let ready = Readiness::start(&link.runtime, link.hosts.clone());
        Ok(Node { no, ready, cursor: Mutex::new(cursor), bell })
    }

    /// Notes that something was committed, and tells the others, soon and not more often than they can be told.
    pub fn committed(&self) {
        self.ready.committed();
        self.bell.tell.notify_one();
    }

    /// Leaves: what it left open is taken over at once.
    pub fn leave(&self, link: &Link) {
        let left = Db::begin(link, Scope::All, Mode::Write).and_then(|db| {
            db.execute("DELETE FROM nodes WHERE no = $1", &[&self.no]).and_then(|_| db.commit())
        });
        if let Err(error) = left {
            tracing::debug!(%error, "the other processes notice later that this one has ended");
        }
    }

    /// Whether this process has given signs for long enough to judge others.
    pub fn is_steady(&self) -> bool {
        self.bell.steady.lock().is_some_and(|(since, last)| last.elapsed() < GAP && since.elapsed() >= SILENT)
    }
}

/// Listens, tells and gives signs, over one connection of its own, until the store closes: however busy the others are,
/// this process is not taken for dead.
async fn listen(hosts: Arc<Hosts>, no: i64, bell: Arc<Bell>) {
    loop {
        if let Err(error) = listen_once(&hosts, no, &bell).await {
            tracing::debug!(%error, "cannot listen for changes; looking once a second meanwhile");
        }
        // Something may have happened while nobody listened.
        bell.ring();
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

async fn listen_once(hosts: &Hosts, no: i64, bell: &Bell) -> Result<(), tokio_postgres::Error> {
    let Ok(connected) = tokio::time::timeout(SILENT, hosts.connect()).await else { return Ok(()) };
    let (client, mut connection) = connected?;
    let own = no.to_string();
    let heard = async {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(told))) if told.payload() != own => bell.ring(),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    };
    tokio::select! {
        ended = heard => ended,
        ended = notify(&client, &own, bell) => ended,
        ended = give_signs(&client, &own, bell) => ended,
    }
}

/// Gives a sign every second, until one is not answered in time.
async fn give_signs(client: &Client, own: &str, bell: &Bell) -> Result<(), tokio_postgres::Error> {
    // A sign that is lost in a crash is given again, and one must not wait for a standby.
    let sql = format!(
        "BEGIN; SET LOCAL synchronous_commit = off;
         INSERT INTO nodes (no, seen) OVERRIDING SYSTEM VALUE VALUES ({own}, clock_timestamp())
             ON CONFLICT (no) DO UPDATE SET seen = excluded.seen;
         COMMIT"
    );
    loop {
        match tokio::time::timeout(GAP, client.batch_execute(&sql)).await {
            Ok(given) => given?,
            Err(_) => return Ok(()),
        }
        bell.gave_sign();
        tokio::time::sleep(SIGN_EVERY).await;
    }
}

/// Tells the others of commits.
async fn notify(client: &Client, own: &str, bell: &Bell) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("LISTEN everturn").await?;
    // What happened before is not told.
    bell.ring();
    // One that is lost in a crash is repaired by the next look, so it does not wait for the disk or a standby.
    let notify = format!("BEGIN; SET LOCAL synchronous_commit = off; NOTIFY everturn, '{own}'; COMMIT");
    loop {
        bell.tell.notified().await;
        client.batch_execute(&notify).await?;
        tokio::time::sleep(NOTIFY_PAUSE).await;
    }
}

impl Postgres {
    pub(super) fn node(&self) -> Result<&Node, Error> {
        self.node
            .as_ref()
            .ok_or_else(|| Error::internal("store.node", "the store was opened for reading only"))
    }
}

impl ChangeFeed for Postgres {
    fn wait(&self, patience: Duration) {
        let Ok(node) = self.node() else { return std::thread::sleep(patience) };
        if let Some(looked) = *node.bell.looked.lock() {
            std::thread::sleep(LOOK_PAUSE.saturating_sub(looked.elapsed()));
        }
        let mut rung = node.bell.rung.lock();
        if !*rung {
            node.bell.changed.wait_for(&mut rung, patience);
        }
        *rung = false;
        *node.bell.looked.lock() = Some(Instant::now());
    }

    fn wake(&self) {
        self.node.iter().for_each(|node| node.bell.ring());
    }

    fn news(&self) -> Result<RemoteChanges, Error> {
        self.node()?.cursor.lock().news(&self.of_all()?)
    }

    fn open_turns_elsewhere(&self) -> Result<Vec<(Key, TurnId)>, Error> {
        let sql = "SELECT c.tenant, c.id, t.id FROM turn_rows t JOIN conversation_rows c ON c.tenant = t.tenant AND c.no = t.conversation
             WHERE t.status = 'pending' AND t.node <> $1 AND c.deleted IS NULL";
        self.of_all()?.query(sql, &[&self.node()?.no])?.iter().map(open_turn).collect()
    }

    fn orphaned_turns(&self) -> Result<Vec<(Key, TurnId)>, Error> {
        // A process that has just begun, as a command does, waits longer: an outage may have kept others from giving signs.
        let silent_s = if self.node()?.is_steady() { SILENT_S } else { SILENT_FOR_NEW_S };
        let sql = "SELECT c.tenant, c.id, t.id FROM turn_rows t JOIN conversation_rows c ON c.tenant = t.tenant AND c.no = t.conversation
             WHERE t.status = 'pending' AND c.deleted IS NULL
                 AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.no = t.node AND (n.seen > clock_timestamp() - $1 * interval '1 s'
                     OR pg_postmaster_start_time() > clock_timestamp() - interval '10 s'))";
        self.of_all()?.query(sql, &[&silent_s])?.iter().map(open_turn).collect()
    }
}

fn open_turn(row: &Row) -> Result<(Key, TurnId), Error> {
    Ok((key(row, 0)?, TurnId::from_bytes(rows::bytes(row, 2)?)))
}
