//! A local store for writing, which another process may own: then that one is asked, through its socket. When it
//! ends, another takes its place, be it this process.

use super::{Client, Local, Remote};
use everturn::{Everturn, Options, SystemWorld, Tenant, World, store_file};
use everturn_api::given::Given;
use everturn_api::{About, Operation, Row};
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::error::code;
use everturn_core::json::quote;
use everturn_server::socket::{self, Sharing};
use everturn_server::{App, Asked, Config, SharedStore};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time that a command waits for another one that is writing: long enough for a loop of appends in two
/// shells.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two looks at the lock and the socket. Neither announces a change.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Number of owners that a request is sent to, one after the other ended.
const OWNERS_MAX: usize = 5;

/// A local store, and how to open it.
pub struct LocalStore {
    pub url: String,
    pub tenant: String,
    pub options: Options,
    /// Settings of the socket through which others use the store while this process owns it. Only a process that runs
    /// for long has one: the others end before anybody waits.
    pub shared: Option<Config>,
}

/// A local store for writing.
pub enum Reached {
    /// This process owns it now.
    Here(Box<Everturn>),
    /// Another process owns it, and is asked.
    Through(Remote, Owned),
}

/// The error that names the owner of a store.
pub struct Owned(pub Error);

impl LocalStore {
    fn file(&self) -> Result<Option<PathBuf>, Error> {
        store_file(&self.url)
    }

    /// Serves the store, which this process owns now, to others.
    fn share(&self, store: &Everturn) -> Result<Option<Sharing>, Error> {
        let Some((config, file)) = self.shared.clone().zip(self.file()?) else { return Ok(None) };
        Ok(socket::share(Arc::new(App::new(store.clone(), config)), &file, None))
    }

    /// The client of a store that this process owns now.
    pub fn here(&self, store: Everturn) -> Result<Client, Error> {
        let sharing = self.share(&store)?;
        Ok(Client::Local(Box::new(Local::new(store, &self.tenant, sharing)?)))
    }

    /// Opens the store, or finds its owner. Waits for a process that owns it and has no socket.
    pub fn reach(&self, patience: Duration) -> Result<Reached, Error> {
        let until = Instant::now() + patience;
        loop {
            let owned = match Everturn::open_with(&self.url, self.options.clone()) {
                Err(error) if error.is(code::STORE_OWNED) => error,
                opened => return opened.map(|store| Reached::Here(Box::new(store))),
            };
            if let Some(socket) = self.file()?.and_then(|file| socket::find(&file)) {
                return Ok(Reached::Through(Remote::through(&socket, &self.tenant)?, Owned(owned)));
            }
            if Instant::now() >= until {
                return Err(owned);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// As [`LocalStore::reach`], with the usual patience.
    pub fn open(&self) -> Result<Reached, Error> {
        self.reach(PATIENCE)
    }
}

/// Whether a request may be sent to the next owner: it never left, or a second time is as good as once.
fn may_repeat(error: &Error, about: &About) -> bool {
    match error.code() {
        code::OWNER_GONE => true,
        code::OWNER_LOST => about.once || about.idempotent,
        _ => false,
    }
}

/// The arguments of an operation, with a key that makes it happen once however often it is sent.
fn with_key(about: &About, arguments: String) -> Result<String, Error> {
    if !about.once {
        return Ok(arguments);
    }
    let mut fields: BTreeMap<&str, &RawValue> = match serde_json::from_str(&arguments) {
        Ok(fields) => fields,
        // Not an object: whoever runs it says so.
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
    pub owned: Owned,
    now: Mutex<Arc<Client>>,
}

impl Owner {
    pub fn new(local: LocalStore, remote: Remote, owned: Owned) -> Owner {
        Owner { local, owned, now: Mutex::new(Arc::new(Client::Remote(Box::new(remote)))) }
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
            match remote.call(&operation) {
                Err(error) if owners < OWNERS_MAX && may_repeat(&error, &O::ABOUT) => {
                    let next = match self.local.open()? {
                        Reached::Here(store) => self.local.here(*store)?,
                        Reached::Through(remote, _) => Client::Remote(Box::new(remote)),
                    };
                    *self.now.lock() = Arc::new(next);
                }
                answer => return answer,
            }
        }
    }
}

/// An operation that happens once, however often it is sent.
fn once<O: Operation>(operation: O) -> Result<O, Error> {
    if !O::ABOUT.once {
        return Ok(operation);
    }
    let unwritten = |e: &dyn std::fmt::Display| {
        Error::internal("request.json", format!("a request cannot be written: {e}"))
    };
    let text = serde_json::to_string(&operation).map_err(|e| unwritten(&e))?;
    let text = with_key(&O::ABOUT, text)?;
    Given { body: &text, ..Given::default() }.read().map_err(|wrong| unwritten(&wrong.text))
}

/// The store of `everturn mcp`: this process owns it and serves its socket, or reads beside the owner.
pub struct McpStore {
    local: LocalStore,
    role: Mutex<Role>,
}

enum Role {
    Owner { store: Everturn, _sharing: Option<Sharing> },
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
                Err(error) if may_repeat(error, &tool.about) => self.next_owner(&owner, PATIENCE),
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
    fn of(reached: Reached, local: &LocalStore) -> Result<Role, Error> {
        Ok(match reached {
            Reached::Here(store) => Role::Owner { _sharing: local.share(&store)?, store: *store },
            Reached::Through(owner, _) => {
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

    fn ask(&self, tool: &'static Row, arguments: String) -> Asked {
        let Some(owner) = self.owner() else { return Asked::Here(self.tenant(), arguments) };
        if tool.about.role == KeyRole::Reader {
            if !owner.is_there() {
                // Reading needs no owner, but somebody has to index and sweep. If it fails, the next request tries.
                let _ = self.next_owner(&owner, Duration::ZERO);
            }
            return Asked::Here(self.tenant(), arguments);
        }
        let arguments = match with_key(&tool.about, arguments) {
            Ok(arguments) => arguments,
            Err(error) => return Asked::Answered(Err(error)),
        };
        match self.ask_owner(tool, &arguments) {
            Some(answer) => Asked::Answered(answer),
            None => Asked::Here(self.tenant(), arguments),
        }
    }
}
