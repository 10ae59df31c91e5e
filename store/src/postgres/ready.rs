//! Whether commits succeed now. A batch that was committed a moment ago shows it. Otherwise a transaction without content is
//! tried, on a connection of its own, one at a time however many callers ask.

use super::db::explain;
use super::link::Hosts;
use everturn_core::Error;
use parking_lot::{Condvar, Mutex};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

/// Time for which a commit shows that the next one will succeed.
const VALID: Duration = Duration::from_secs(2);
/// Longest wait of a caller.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time after which the server is asked what a trial waits for, and for that answer.
const SLOW: Duration = Duration::from_secs(1);
/// Longest trial that waits for a standby. It is cancelled then, for otherwise its session would stay for ever; the server
/// logs that.
const TRIAL_MAX: Duration = Duration::from_secs(10);

/// A transaction that has to reach the disk and every synchronous standby, and locks nothing.
const TRIAL: &str =
    "SELECT pg_is_in_recovery(), CASE WHEN current_setting('transaction_read_only')::boolean THEN NULL
     ELSE pg_logical_emit_message(true, 'everturn', 'ready') END";

const WAITS_FOR_STANDBY: &str =
    "SELECT 1 FROM pg_stat_activity WHERE usename = current_user AND wait_event = 'SyncRep' LIMIT 1";

/// The state of the last trial.
pub struct Readiness(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Signalled when a trial is wanted.
    wanted: Notify,
}

#[derive(Default)]
struct State {
    /// Last commit that succeeded.
    succeeded: Option<Instant>,
    /// Beginning of the trial that is under way.
    trying: Option<Instant>,
    /// Failure of the last trial, or what the one under way waits for.
    reason: Option<Error>,
}

impl State {
    fn is_valid(&self) -> bool {
        self.succeeded.is_some_and(|at| at.elapsed() < VALID)
    }
}

impl Readiness {
    pub fn start(runtime: &Handle, hosts: Arc<Hosts>) -> Readiness {
        let shared = Arc::<Shared>::default();
        runtime.spawn(run(hosts, shared.clone()));
        Readiness(shared)
    }

    /// Notes a commit that wrote something.
    pub fn committed(&self) {
        self.0.end(Ok(()), false);
    }

    /// Whether a commit would succeed. Answers within [`PATIENCE`].
    pub fn check(&self) -> Result<(), Error> {
        let mut state = self.0.state.lock();
        if state.is_valid() {
            return Ok(());
        }
        let began = *state.trying.get_or_insert_with(|| {
            self.0.wanted.notify_one();
            Instant::now()
        });
        let is_open = |state: &mut State| state.trying == Some(began) && !state.is_valid();
        let left = PATIENCE.saturating_sub(began.elapsed());
        self.0.changed.wait_while_for(&mut state, is_open, left);
        match &state.reason {
            _ if state.is_valid() => Ok(()),
            Some(reason) => Err(reason.clone()),
            None => Err(unanswered()),
        }
    }
}

impl Shared {
    fn end(&self, tried: Result<(), Error>, is_trial: bool) {
        let mut state = self.state.lock();
        if is_trial {
            state.trying = None;
        }
        if tried.is_ok() {
            state.succeeded = Some(Instant::now());
        }
        state.reason = tried.err();
        self.changed.notify_all();
    }
}

fn unanswered() -> Error {
    Error::busy(
        "store.unanswered",
        "the database does not answer commits: it hangs, or the network to it is cut; look at it",
    )
}

fn standby() -> Error {
    Error::busy(
        "store.standby",
        "this PostgreSQL server is a standby; name the primary, or target_session_attrs=read-write, in the URL",
    )
}

/// Makes the trials that are wanted, until the store closes.
async fn run(hosts: Arc<Hosts>, shared: Arc<Shared>) {
    let mut session = None;
    loop {
        shared.wanted.notified().await;
        shared.state.lock().reason = None;
        let tried = match connected(&hosts, session.take()).await {
            Ok(client) => {
                let tried = trial(&hosts, &client, &shared).await;
                session = tried.is_ok().then_some(client);
                tried
            }
            Err(error) => Err(error),
        };
        shared.end(tried, true);
    }
}

/// The session of the last trial, or another one.
async fn connected(hosts: &Hosts, last: Option<Client>) -> Result<Client, Error> {
    if let Some(client) = last.filter(|client| !client.is_closed()) {
        return Ok(client);
    }
    let connected = timeout(PATIENCE, hosts.connect()).await.map_err(|_| unanswered())?;
    let (client, connection) = connected.map_err(|e| hosts.explain(&e))?;
    tokio::spawn(connection);
    Ok(client)
}

async fn trial(hosts: &Hosts, client: &Client, shared: &Shared) -> Result<(), Error> {
    let mut asked = pin!(client.simple_query(TRIAL));
    let answer = match timeout(SLOW, &mut asked).await {
        Ok(answer) => answer,
        Err(_) => {
            let waits = timeout(SLOW, waits_for_standby(hosts)).await.is_ok_and(|waits| waits);
            if waits {
                shared.state.lock().reason = Some(Error::busy(
                    "store.standby_away",
                    "commits wait for a synchronous standby that is away; bring it back, or take it out of \
                     synchronous_standby_names",
                ));
            }
            // Otherwise the server hangs, and another may have been promoted: the next trial asks all hosts again.
            match timeout(if waits { TRIAL_MAX } else { PATIENCE }, &mut asked).await {
                Ok(answer) => answer,
                Err(_) => {
                    let _ = timeout(SLOW, hosts.cancel(client)).await;
                    return Err(shared.state.lock().reason.clone().unwrap_or_else(unanswered));
                }
            }
        }
    };
    let answer = answer.map_err(|e| explain(&e).error)?;
    let row = row(&answer).ok_or_else(unanswered)?;
    match (row.get(0), row.get(1)) {
        (Some("t"), _) => Err(standby()),
        (_, None) => Err(Error::busy(
            "store.read_only",
            "the database takes no writes: default_transaction_read_only is on; turn it off",
        )),
        _ => Ok(()),
    }
}

fn row(answer: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}

/// Whether the server says that a commit of ours waits for a standby.
async fn waits_for_standby(hosts: &Hosts) -> bool {
    let Ok((client, connection)) = hosts.connect().await else { return false };
    tokio::spawn(connection);
    client.simple_query(WAITS_FOR_STANDBY).await.is_ok_and(|answer| row(&answer).is_some())
}

/// Interval between two looks at what a standby has replayed.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The age of the last transaction that was replayed; null on a primary.
const REPLAYED: &str = "SELECT extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())";

/// Reports how far a standby is behind, until the store closes. Servers of the primary write every second, so that an old
/// transaction means that nothing came since.
pub async fn report_replay(hosts: Arc<Hosts>) {
    let (mut session, mut replayed) = (None, None::<Instant>);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let looked = async {
            let client = connected(&hosts, session.take()).await.ok()?;
            let answer = client.simple_query(REPLAYED).await.ok()?;
            session = Some(client);
            row(&answer).map(|row| row.get(0).and_then(|age| age.parse::<f64>().ok()))
        };
        // If it does not answer, the last transaction gets older.
        if let Ok(Some(age)) = timeout(LOOK_EVERY, looked).await {
            let ago = age.map(|age| Duration::try_from_secs_f64(age).unwrap_or_default());
            replayed = ago.and_then(|ago| Instant::now().checked_sub(ago));
        }
        if let Some(replayed) = replayed {
            metrics::gauge!("everturn_replay_age_seconds").set(replayed.elapsed().as_secs_f64());
        }
    }
}
