//! How it is served. Where each value comes from is decided in [`settings`](crate::settings).

use jsonwebtoken::Algorithm;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// How it is served. The command-line tool fills it from flags, the environment and a file, in this order.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Largest body of a request, in bytes, unless the route says otherwise.
    pub body_bytes_max: usize,
    /// How long requests that run may go on after the server was told to stop.
    pub shutdown: Duration,
    /// The certificate to answer with; without one, plain HTTP.
    pub tls: Option<Tls>,
    /// A proxy in front of us speaks TLS and says in `X-Forwarded-For` whom it speaks for.
    pub behind_tls_proxy: bool,
    /// Whether every request needs a key. By default: as soon as the store has one, or tokens are configured.
    pub keys_required: Option<bool>,
    /// Tokens of somebody else that are taken as well as keys.
    pub jwt: Option<Jwt>,
    /// How much one key, one tenant and one address may ask for.
    pub limits: Limits,
    /// Web pages of other origins that may ask.
    pub cors_origins: Vec<String>,
    /// Whether queries and what errors say are logged. They may hold what people said.
    pub log_content: bool,
    /// Largest asset that is taken, in bytes: it is held in memory while it is hashed.
    pub asset_bytes_max: usize,
    /// Largest file that is imported, in bytes. It is read as it comes.
    pub import_bytes_max: u64,
    /// A live stream without news says so this often, so that nothing on the way takes it for dead.
    pub heartbeat: Duration,
    /// Record what is asked over MCP into session files below this folder.
    pub mcp_record: Option<PathBuf>,
    /// How long an MCP session may be silent before it ends.
    pub mcp_session_idle: Duration,
    /// Also answer what the MCP conformance suite asks for. For tests only.
    #[cfg(feature = "mcp-fixtures")]
    pub mcp_fixtures: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7317)),
            body_bytes_max: everturn_core::limits::BODY_BYTES_MAX + 64 * 1024,
            shutdown: Duration::from_secs(10),
            tls: None,
            behind_tls_proxy: false,
            keys_required: None,
            jwt: None,
            limits: Limits::default(),
            cors_origins: Vec::new(),
            log_content: false,
            asset_bytes_max: 64 * 1024 * 1024,
            import_bytes_max: 4 * 1024 * 1024 * 1024,
            heartbeat: Duration::from_secs(15),
            mcp_record: None,
            mcp_session_idle: Duration::from_secs(30 * 60),
            #[cfg(feature = "mcp-fixtures")]
            mcp_fixtures: false,
        }
    }
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate, followed by those that signed it.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How much may be asked for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests a second with one key, in the long run.
    pub requests_per_second: u32,
    /// Requests at once after a pause, with one key.
    pub burst: u32,
    /// Requests and streams that run at the same time with one key.
    pub concurrent: usize,
    /// Wrong keys a minute from one address.
    pub failures_per_minute: u32,
    /// Requests a second of one tenant, in the long run.
    pub tenant_requests_per_second: u32,
    /// Requests at once after a pause, of one tenant.
    pub tenant_burst: u32,
    /// Requests and streams of one tenant that run at the same time.
    pub tenant_concurrent: usize,
    /// Threads that work for one tenant; by default two for each core, so that another tenant's are not many times outnumbered.
    pub tenant_threads: usize,
    /// Operations of one tenant that read or write whole conversations at the same time.
    pub tenant_large_operations: usize,
    /// The same of all tenants together.
    pub large_operations: usize,
    /// Bytes of request bodies of one tenant that are in memory at the same time.
    pub tenant_body_bytes: usize,
    /// Past this many bytes of answers that one tenant has not read yet, its next requests wait.
    pub tenant_unsent_bytes: usize,
    /// The same of all tenants together.
    pub unsent_bytes: usize,
    /// Largest conversation that is answered, or file that is imported, as one value in memory.
    pub whole_bytes: usize,
    /// How long a request waits for its turn.
    pub wait: Duration,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// Connections in all.
    pub connections: usize,
    /// How long a new connection may take to send a request's header.
    pub header_timeout: Duration,
    /// How long nothing may come of a request's body, or be taken of an answer.
    pub body_timeout: Duration,
    /// How long a connection may be kept for its next request.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests_per_second: 200,
            burst: 400,
            concurrent: 256,
            failures_per_minute: 30,
            tenant_requests_per_second: 1000,
            tenant_burst: 2000,
            tenant_concurrent: 512,
            tenant_threads: 2 * std::thread::available_parallelism().map_or(1, usize::from),
            tenant_large_operations: 2,
            large_operations: 16,
            tenant_body_bytes: 32 * 1024 * 1024,
            tenant_unsent_bytes: 64 * 1024 * 1024,
            unsent_bytes: 128 * 1024 * 1024,
            whole_bytes: 16 * 1024 * 1024,
            wait: Duration::from_secs(10),
            connections_per_address: 12288,
            connections: 16384,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
        }
    }
}

/// Which tokens are taken, and what they say.
#[derive(Clone, Debug)]
pub struct Jwt {
    /// How they are signed. A token that names another algorithm is refused.
    pub algorithm: Algorithm,
    /// What they are signed with.
    pub keys: JwtKeys,
    /// How often keys are read again.
    pub refresh: Duration,
    /// What `iss` must be.
    pub issuer: Option<String>,
    /// What `aud` must contain.
    pub audience: Option<String>,
    /// The claim that names the tenant.
    pub tenant_claim: String,
    /// The claim that names the role.
    pub role_claim: String,
}

/// Where the keys of tokens are.
#[derive(Clone, Debug)]
pub enum JwtKeys {
    /// A secret that both sides have.
    Secret(Hidden),
    /// A JWKS file.
    File(PathBuf),
    /// A JWKS address.
    Url(String),
}

/// A text that is shown nowhere.
#[derive(Clone)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}
