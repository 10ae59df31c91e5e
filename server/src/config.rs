//! How it is served.

use std::net::{Ipv4Addr, SocketAddr};

/// How it is served. The command-line tool fills it from flags, the environment and a file, in this order.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Largest body of a request, in bytes, unless the route says otherwise.
    pub body_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7317)),
            body_bytes_max: everturn_core::limits::BODY_BYTES_MAX + 64 * 1024,
        }
    }
}
