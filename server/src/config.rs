//! Configuration of the server. The source of each value is decided in [`settings`](crate::settings).

use jsonwebtoken::Algorithm;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of the server. The command-line tool fills it from flags, the environment and a file, in this
/// order.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Maximum size of a request body in bytes, unless the route says otherwise.
    pub body_bytes_max: usize,
    /// Time that running requests get after the server was told to stop.
    pub shutdown: Duration,
    /// Certificate; without one, plain HTTP.
    pub tls: Option<Tls>,
    /// Whether a proxy terminates TLS and adds the client's address to `X-Forwarded-For`.
    pub behind_tls_proxy: bool,
    /// Whether every request needs a key. By default: as soon as the store has one, or tokens are configured.
    pub keys_required: Option<bool>,
    /// Tokens of another issuer that are accepted as well as keys.
    pub jwt: Option<Jwt>,
    /// Limits per key, tenant and address.
    pub limits: Limits,
    /// Other origins whose web pages may send requests.
    pub cors_origins: Vec<String>,
    /// Whether queries and error texts are logged. They may contain content of conversations.
    pub log_content: bool,
    /// Maximum size of an asset in bytes: it is held in memory while it is hashed.
    pub asset_bytes_max: usize,
    /// Maximum size of an imported file in bytes. It is processed as it arrives.
    pub import_bytes_max: u64,
    /// Interval of heartbeats on an idle live stream, so that nothing on the way closes it.
    pub heartbeat: Duration,
    /// Folder for session files that record MCP requests.
    pub mcp_record: Option<PathBuf>,
    /// Time after which an idle MCP session ends.
    pub mcp_session_idle: Duration,
    /// Whether to serve the fixtures of the MCP conformance suite. For tests only.
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
    /// The certificate, followed by its chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sustained requests per second with one key.
    pub requests_per_second: u32,
    /// Burst of requests with one key.
    pub burst: u32,
    /// Concurrent requests and streams with one key.
    pub concurrent: usize,
    /// Wrong keys per minute from one address.
    pub failures_per_minute: u32,
    /// Sustained requests per second of one tenant.
    pub tenant_requests_per_second: u32,
    /// Burst of requests of one tenant.
    pub tenant_burst: u32,
    /// Concurrent requests and streams of one tenant.
    pub tenant_concurrent: usize,
    /// Threads that work for one tenant; by default two for each core, so that those of other tenants are not
    /// outnumbered.
    pub tenant_threads: usize,
    /// Concurrent operations of one tenant that read or write whole conversations.
    pub tenant_large_operations: usize,
    /// The same for all tenants together.
    pub large_operations: usize,
    /// Bytes of request bodies of one tenant in memory at the same time.
    pub tenant_body_bytes: usize,
    /// Bytes of unsent answers of one tenant above which its next requests wait.
    pub tenant_unsent_bytes: usize,
    /// The same for all tenants together.
    pub unsent_bytes: usize,
    /// Maximum size of a conversation that is returned, or of a file that is imported, as one value in memory.
    pub whole_bytes: usize,
    /// Maximum time that a request waits for its turn.
    pub wait: Duration,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// Connections in total.
    pub connections: usize,
    /// Timeout for the header of the first request on a connection.
    pub header_timeout: Duration,
    /// Timeout without progress on a request's body or an answer.
    pub body_timeout: Duration,
    /// Timeout of an idle connection.
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

/// Accepted tokens and their claims.
#[derive(Clone, Debug)]
pub struct Jwt {
    /// Signature algorithm. A token with another one is refused.
    pub algorithm: Algorithm,
    /// Keys for verifying signatures.
    pub keys: JwtKeys,
    /// Interval of reloading keys.
    pub refresh: Duration,
    /// Required value of `iss`.
    pub issuer: Option<String>,
    /// Required value in `aud`.
    pub audience: Option<String>,
    /// The claim that names the tenant.
    pub tenant_claim: String,
    /// The claim that names the role.
    pub role_claim: String,
    /// The claim with the actors that the holder may act as.
    pub actors_claim: String,
}

/// Source of the keys of tokens.
#[derive(Clone, Debug)]
pub enum JwtKeys {
    /// A shared secret.
    Secret(Hidden),
    /// A JWKS file.
    File(PathBuf),
    /// A JWKS URL.
    Url(String),
}

/// A secret text, which `Debug` does not show.
#[derive(Clone)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}
