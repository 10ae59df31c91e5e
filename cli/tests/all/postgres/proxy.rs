//! A bad network between a server and its database.

use super::cluster::free_port;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Fate of the bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Network {
    Up,
    /// Every piece is late.
    Slow(Duration),
    /// Connections are closed as soon as they are made.
    Down,
    /// Requests arrive, but the answers are lost: nobody knows whether a commit happened. A connection that lost
    /// something stays that way.
    LosesAnswers,
    /// Requests are lost.
    LosesRequests,
    /// The database seems to have said its last word, but still reads.
    HalfClosed,
    /// Who listens for notifications listens for others.
    Deaf,
}

const CHANNEL: &[u8] = b"LISTEN everturn";

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    target: u16,
    network: parking_lot::Mutex<Network>,
    open: parking_lot::Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

impl Proxy {
    pub fn to(target: u16) -> Proxy {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let shared = Arc::new(Shared {
            target,
            network: parking_lot::Mutex::new(Network::Up),
            open: parking_lot::Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || accept(&listener, &accepting));
        Proxy { port, shared }
    }

    pub fn set(&self, network: Network) {
        *self.shared.network.lock() = network;
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        if *shared.network.lock() == Network::Down {
            continue;
        }
        // Refused: the database is down too.
        let Ok(database) = TcpStream::connect(("127.0.0.1", shared.target)) else { continue };
        let _ = (client.set_nodelay(true), database.set_nodelay(true));
        let twin = |stream: &TcpStream| stream.try_clone().unwrap();
        shared.open.lock().extend([twin(&client), twin(&database)]);
        let (requests, answers) = ((twin(&client), twin(&database)), (database, client));
        for ((from, to), is_answer) in [(requests, false), (answers, true)] {
            let shared = shared.clone();
            std::thread::spawn(move || copy(from, to, is_answer, &shared));
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, is_answer: bool, shared: &Shared) {
    let (mut bytes, mut loses) = ([0; 16 * 1024], false);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        match *shared.network.lock() {
            Network::LosesAnswers => loses |= is_answer,
            Network::LosesRequests => loses |= !is_answer,
            Network::HalfClosed if is_answer => {
                let _ = to.shutdown(Shutdown::Write);
                loses = true;
            }
            _ => {}
        }
        let network = *shared.network.lock();
        if let Network::Slow(time) = network {
            std::thread::sleep(time);
        }
        if network == Network::Deaf
            && let Some(at) = bytes[..count].windows(CHANNEL.len()).position(|bytes| bytes == CHANNEL)
        {
            bytes[at..at + CHANNEL.len()].copy_from_slice(b"LISTEN nothing_");
        }
        if !loses && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // One side has ended, so the other has too.
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
