//! How it is served.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How it is served. The command-line tool fills it from flags, the environment and a file, in this order.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Largest body of a request, in bytes, unless the route says otherwise.
    pub body_bytes_max: usize,
    /// Largest asset that is taken, in bytes: it is held in memory while it is hashed.
    pub asset_bytes_max: usize,
    /// Largest file that is imported, in bytes. It is read as it comes.
    pub import_bytes_max: u64,
    /// A live stream without news says so this often, so that nothing on the way takes it for dead.
    pub heartbeat: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7317)),
            body_bytes_max: everturn_core::limits::BODY_BYTES_MAX + 64 * 1024,
            asset_bytes_max: 64 * 1024 * 1024,
            import_bytes_max: 4 * 1024 * 1024 * 1024,
            heartbeat: Duration::from_secs(15),
        }
    }
}
