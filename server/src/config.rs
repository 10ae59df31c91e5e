//! How it is served.

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
    /// Record what is asked over MCP into session files below this folder.
    pub mcp_record: Option<PathBuf>,
    /// How long an MCP session may be silent before it ends.
    pub mcp_session_idle: Duration,
    /// Also answer what the MCP conformance suite asks for. For tests only.
    pub mcp_fixtures: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7317)),
            body_bytes_max: everturn_core::limits::BODY_BYTES_MAX + 64 * 1024,
            mcp_record: None,
            mcp_session_idle: Duration::from_secs(30 * 60),
            mcp_fixtures: false,
        }
    }
}
