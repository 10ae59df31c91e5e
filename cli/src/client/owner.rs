//! A local store for writing, which another process may own: requests then go to that process, through its socket. When it
//! ends, another one owns the store, possibly this one.

use super::{Client, Local, OpenFile, Remote};
use everturn_api::decode::RawRequest;
use everturn_api::{About, Operation, Row};
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::asset::Asset;
use everturn_core::error::code;
use everturn_core::id::ConversationId;
use everturn_core::json::quote;
use everturn_engine::{Everturn, ImportOptions, Imported, Options, SystemWorld, Tenant, World, store_file};
use everturn_server::socket::{self, RequestedModel, ServedSocket, Tenure};
use everturn_server::{App, Config, SharedStore, ToolDispatch};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time that a command waits for another one that is writing: long enough for a loop of appends in two
/// shells.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two checks of the lock and the socket: neither announces a change.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time after which a command that owns the store lets others use it: most commands end sooner.
const SHARED_AFTER: Duration = Duration::from_millis(200);
/// Maximum time that a command waits at its end for requests of others. They go on at the next owner.
const PASSING_SHUTDOWN: Duration = Duration::from_secs(2);
/// Maximum number of owners that a request is sent to, each after the one before has ended.
const OWNERS_MAX: usize = 5;

/// A local store, and how to open it.
pub struct LocalStore {
    pub url: String,
    pub tenant: String,
    pub options: Options,
    /// Settings of the socket through which others use the store while this process owns it.
    pub shared: Option<Config>,
    pub tenure: Tenure,
    /// Whether to wait for an owner that will end soon, rather than to use its socket.
    pub alone: bool,
    /// The model that operations ask, in place of the configured default.
    pub model: Option<RequestedModel>,
}

/// A local store for writing.
pub enum WritableStore {
    /// This process owns it now.
    Here(Box<Everturn>),
    /// Another process owns it; requests go to that process.
    Through(Remote, OwnedError),
}

/// The error that names the owner of a store.
pub struct OwnedError(pub Error);

impl LocalStore {
    fn file(&self) -> Result<Option<PathBuf>, Error> {
        store_file(&self.url)
    }

    /// Serves the store, which this process owns now, to others: a command only once it has run for a while.
    fn share(&self, store: &Everturn) -> Result<Option<OwnerSocket>, Error> {
        let Some((mut config, file)) = self.shared.clone().zip(self.file()?) else { return Ok(None) };
        let tenure = self.tenure;
        if tenure == Tenure::Passing {
            config.shutdown = config.shutdown.min(PASSING_SHUTDOWN);
        }
        let store = store.clone();
        let open = move || socket::share(Arc::new(App::new(store, config)), &file, None, tenure);
        Ok(match tenure {
            Tenure::Lasting => open().map(|sharing| OwnerSocket::Open { _sharing: sharing }),
            Tenure::Passing => DelayedSocket::start(open).map(|later| OwnerSocket::Delayed { _later: later }),
        })
    }

    /// The client of a store that this process owns now.
    pub fn here(&self, store: Everturn) -> Result<Client, Error> {
        let owner_socket = self.share(&store)?;
        Ok(Client::Local(Box::new(Local::new(store, &self.tenant, owner_socket, self.model.clone())?)))
    }

    /// Opens the store, or finds its owner. Waits for a process that owns it and has no socket, or whose socket is not to be
    /// used.
    pub fn reach(&self, patience: Duration) -> Result<WritableStore, Error> {
        let until = Instant::now() + patience;
        loop {
            let owned = match Everturn::open_with(&self.url, self.options.clone()) {
                Err(error) if error.is(code::STORE_OWNED) => error,
                opened => return opened.map(|store| WritableStore::Here(Box::new(store))),
            };
            let has_waited = Instant::now() >= until;
            match self.file()?.and_then(|file| socket::find(&file)) {
                Some((socket, tenure)) if has_waited || !self.alone || tenure == Tenure::Lasting => {
                    return Ok(WritableStore::Through(
                        Remote::through(&socket, &self.tenant)?,
                        OwnedError(owned),
                    ));
                }
                None if has_waited => return Err(owned),
                _ => {}
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// As [`LocalStore::reach`], with the usual patience.
    pub fn open(&self) -> Result<WritableStore, Error> {
        self.reach(PATIENCE)
    }
}

/// The socket through which others use a store, until this is dropped.
pub enum OwnerSocket {
    Open { _sharing: ServedSocket },
    Delayed { _later: DelayedSocket },
}

/// A socket that is opened once the command has run for a while.
pub struct DelayedSocket {
    ended: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DelayedSocket {
    /// `None` if no thread could be started: others are then refused.
    fn start(open: impl FnOnce() -> Option<ServedSocket> + Send + 'static) -> Option<DelayedSocket> {
        let (ended, end) = mpsc::channel();
        let thread = std::thread::Builder::new().name("everturn-socket".into()).spawn(move || {
            if end.recv_timeout(SHARED_AFTER) == Err(RecvTimeoutError::Timeout) {
                let _sharing = open();
                let _ = end.recv();
            }
        });
        Some(DelayedSocket { ended: Some(ended), thread: Some(thread.ok()?) })
    }
}

impl Drop for DelayedSocket {
    fn drop(&mut self) {
        self.ended.take();
        if let Some(thread) = self.thread.take() {
            // A panicked thread has reported it itself.
            let _ = thread.join();
        }
    }
}

/// Whether a request may be sent to the next owner: it was never sent, or repeating it changes nothing.
fn may_repeat(error: &Error, repeatable: bool) -> bool {
    match error.code() {
        code::OWNER_GONE => true,
        code::OWNER_LOST => repeatable,
        _ => false,
    }
}

/// The arguments of an operation, with an idempotency key, so that it may be sent again.
fn with_key(about: &About, arguments: String) -> Result<String, Error> {
    if !about.once {
        return Ok(arguments);
    }
    let mut fields: BTreeMap<&str, &RawValue> = match serde_json::from_str(&arguments) {
        Ok(fields) => fields,
        // Not an object: the operation will refuse it.
        Err(_) => return Ok(arguments),
    };
    if fields.get("idempotency_key").is_some_and(|key| key.get() != "null") {
        return Ok(arguments);
    }
    let mut random = [0; 16];
    SystemWorld.fill(&mut random)?;
    let key = uuid::Builder::from_random_bytes(random).into_uuid();
    let key = RawValue::from_string(quote(&format!("owner-{key}")));
    let key =
        key.map_err(|e| Error::internal("request.json", format!("a request cannot be written: {e}")))?;
    fields.insert("idempotency_key", &key);
    serde_json::to_string(&fields)
        .map_err(|e| Error::internal("request.json", format!("a request cannot be written: {e}")))
}

/// A store that another process owned when it was opened.
pub struct Owner {
    local: LocalStore,
    now: Mutex<Arc<Client>>,
}

impl Owner {
    pub fn new(local: LocalStore, remote: Remote) -> Owner {
        let now = Mutex::new(Arc::new(Client::Remote(Box::new(remote))));
        Owner { local, now }
    }

    /// The client of the present owner, which may be this process.
    pub fn now(&self) -> Arc<Client> {
        self.now.lock().clone()
    }

    /// Runs an operation, at the next owner if this one ends.
    pub fn call<O: Operation>(
        &self,
        operation: O,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<O::Answer, Error> {
        let operation = once(operation)?;
        let mut owners = 0;
        loop {
            let now = self.now();
            let remote = match &*now {
                Client::Remote(remote) => remote,
                here => return here.call_telling(operation, progress),
            };
            owners += 1;
            let answer = match &self.local.model {
                Some(model) if O::ABOUT.asks_model => remote.call_asking(&operation, model.clone()),
                _ => remote.call(&operation),
            };
            match answer {
                Err(error)
                    if owners < OWNERS_MAX && may_repeat(&error, O::ABOUT.once || O::ABOUT.idempotent) =>
                {
                    self.next()?;
                }
                answer => return answer,
            }
        }
    }

    /// Moves on to the next owner, which may be this process.
    fn next(&self) -> Result<(), Error> {
        let next = match self.local.open()? {
            WritableStore::Here(store) => self.local.here(*store)?,
            WritableStore::Through(remote, _) => Client::Remote(Box::new(remote)),
        };
        *self.now.lock() = Arc::new(next);
        Ok(())
    }

    /// Imports a file, from its beginning if the owner ends: what was imported before adds nothing.
    pub fn import(&self, options: ImportOptions<'_>, open: &mut OpenFile<'_>) -> Result<Imported, Error> {
        let mut lost =
            Error::busy(code::OWNER_LOST, "the process that owned the store has ended; import it again");
        for _ in 0..OWNERS_MAX {
            let Some(mut file) = open()? else { break };
            let mut once = || Ok(Some(std::mem::replace(&mut file, Box::new(std::io::empty()))));
            match self.now().import(options, &mut once) {
                Err(error) if may_repeat(&error, true) => lost = error,
                answer => return answer,
            }
            self.next()?;
        }
        Err(lost)
    }

    /// Adds an asset to a conversation, at the next owner if this one has ended before.
    pub fn attach(
        &self,
        id: ConversationId,
        name: &str,
        mime_type: &str,
        bytes: &[u8],
    ) -> Result<Asset, Error> {
        let attach = || self.now().attach(id, name, mime_type, bytes.to_vec());
        match attach() {
            Err(error) if may_repeat(&error, false) => {
                self.next()?;
                attach()
            }
            answer => answer,
        }
    }
}

/// The operation with an idempotency key, so that it may be sent again.
fn once<O: Operation>(operation: O) -> Result<O, Error> {
    if !O::ABOUT.once {
        return Ok(operation);
    }
    let unwritten = |e: &dyn std::fmt::Display| {
        Error::internal("request.json", format!("a request cannot be written: {e}"))
    };
    let text = serde_json::to_string(&operation).map_err(|e| unwritten(&e))?;
    let text = with_key(&O::ABOUT, text)?;
    RawRequest { body: &text, ..RawRequest::default() }.read().map_err(|wrong| unwritten(&wrong.text))
}

/// The store of `everturn mcp`: this process owns it and serves its socket, or another does and this one only reads it.
pub struct McpStore {
    local: LocalStore,
    role: Mutex<Role>,
}

enum Role {
    Owner { store: Everturn, _owner_socket: Option<OwnerSocket> },
    Beside { reader: Everturn, owner: Arc<Remote> },
}

impl McpStore {
    pub fn open(local: LocalStore) -> Result<McpStore, Error> {
        let role = Role::of(local.open()?, &local)?;
        Ok(McpStore { local, role: Mutex::new(role) })
    }

    /// The owner to ask; `None` if it is this process.
    fn owner(&self) -> Option<Arc<Remote>> {
        match &*self.role.lock() {
            Role::Owner { .. } => None,
            Role::Beside { owner, .. } => Some(owner.clone()),
        }
    }

    /// Finds the owner after this one, or becomes it.
    fn next_owner(&self, ended: &Arc<Remote>, patience: Duration) -> Result<(), Error> {
        let mut role = self.role.lock();
        if matches!(&*role, Role::Beside { owner, .. } if Arc::ptr_eq(owner, ended)) {
            *role = Role::of(self.local.reach(patience)?, &self.local)?;
        }
        Ok(())
    }

    fn ask_owner(&self, tool: &'static Row, arguments: &str) -> Option<Result<Vec<u8>, Error>> {
        for _ in 0..OWNERS_MAX {
            let owner = self.owner()?;
            let answer = owner.tool(tool.about.name, arguments);
            let next = match &answer {
                Err(error) if may_repeat(error, tool.about.once || tool.about.idempotent) => {
                    self.next_owner(&owner, PATIENCE)
                }
                _ => return Some(answer),
            };
            if let Err(error) = next {
                return Some(Err(error));
            }
        }
        Some(Err(Error::busy(
            code::OWNER_GONE,
            "the processes that own the store end one after the other; try again",
        )))
    }
}

impl Role {
    fn of(reached: WritableStore, local: &LocalStore) -> Result<Role, Error> {
        Ok(match reached {
            WritableStore::Here(store) => Role::Owner { _owner_socket: local.share(&store)?, store: *store },
            WritableStore::Through(owner, _) => {
                let options = Options { read_only: true, ..local.options.clone() };
                Role::Beside { reader: Everturn::open_with(&local.url, options)?, owner: Arc::new(owner) }
            }
        })
    }

    fn store(&self) -> &Everturn {
        match self {
            Role::Owner { store, .. } => store,
            Role::Beside { reader, .. } => reader,
        }
    }
}

impl SharedStore for McpStore {
    fn tenant(&self) -> Tenant {
        self.role
            .lock()
            .store()
            .tenant(&self.local.tenant)
            .expect("the name was checked when the store was opened")
    }

    fn ask(&self, tool: &'static Row, arguments: String) -> ToolDispatch {
        let Some(owner) = self.owner() else { return ToolDispatch::Here(self.tenant(), arguments) };
        if tool.about.role == KeyRole::Reader {
            if !owner.is_there() {
                // Reading needs no owner, but indexing and sweeping do. If this fails, the next request tries again.
                let _ = self.next_owner(&owner, Duration::ZERO);
            }
            return ToolDispatch::Here(self.tenant(), arguments);
        }
        let arguments = match with_key(&tool.about, arguments) {
            Ok(arguments) => arguments,
            Err(error) => return ToolDispatch::Answered(Err(error)),
        };
        match self.ask_owner(tool, &arguments) {
            Some(answer) => ToolDispatch::Answered(answer),
            None => ToolDispatch::Here(self.tenant(), arguments),
        }
    }
}
