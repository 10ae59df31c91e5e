//! A model server that does what a script says: answers, hangs, cuts, floods. It ends with the test.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// One thing the server does with a request, after it has read it.
pub enum Act {
    /// Writes these bytes.
    Send(Vec<u8>),
    /// Writes the bytes in pieces, with a pause before each.
    Drip(Vec<Vec<u8>>, Duration),
    /// Writes the bytes again and again until the client has gone.
    Flood(Vec<u8>),
    /// Waits for the test.
    Await(Receiver<()>),
    /// Does nothing until the client has gone.
    Hang,
    /// Closes the connection.
    Close,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The first line.
    pub line: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// Which connection it came on, from 0.
    pub connection: usize,
    pub at: Instant,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub struct ScriptedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    gone: Receiver<()>,
    accepts: Option<JoinHandle<()>>,
}

struct Shared {
    script: Mutex<std::vec::IntoIter<Vec<Act>>>,
    seen: Mutex<Vec<Seen>>,
    open: Mutex<Vec<TcpStream>>,
    gone: Sender<()>,
    ending: Mutex<bool>,
}

impl ScriptedServer {
    /// Serves one request after the other with the lists of the script.
    pub fn start(script: Vec<Vec<Act>>) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, gone) = channel();
        let shared = Arc::new(Shared {
            script: Mutex::new(script.into_iter()),
            seen: Mutex::default(),
            open: Mutex::default(),
            gone: sender,
            ending: Mutex::default(),
        });
        let accepting = shared.clone();
        let accepts = std::thread::spawn(move || {
            let mut serving = Vec::new();
            for (number, stream) in listener.incoming().enumerate() {
                let ending = accepting.ending.lock().unwrap();
                if *ending {
                    break;
                }
                let (stream, shared) = (stream.unwrap(), accepting.clone());
                shared.open.lock().unwrap().push(stream.try_clone().unwrap());
                drop(ending);
                serving.push(std::thread::spawn(move || shared.serve(stream, number)));
            }
            serving.into_iter().for_each(|thread| thread.join().unwrap());
        });
        ScriptedServer { address, shared, gone, accepts: Some(accepts) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Waits until a client has gone that was hung or flooded.
    pub fn client_gone(&self) {
        self.gone.recv_timeout(PATIENCE).expect("the client is still there");
    }

    /// Waits until so many requests have come.
    pub fn await_requests(&self, count: usize) {
        let start = Instant::now();
        while self.seen().len() < count {
            assert!(start.elapsed() < PATIENCE, "the request does not come");
            std::thread::yield_now();
        }
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        *self.shared.ending.lock().unwrap() = true;
        for stream in self.shared.open.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the listener, which then sees that it is over.
        drop(TcpStream::connect(self.address));
        if let Some(accepts) = self.accepts.take()
            && accepts.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the scripted server broke down");
        }
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream, connection: usize) {
        stream.set_nodelay(true).unwrap();
        while let Some(seen) = read_request(&mut stream, connection) {
            self.seen.lock().unwrap().push(seen);
            let acts = self.script.lock().unwrap().next();
            let acts =
                acts.unwrap_or_else(|| vec![Act::Send(whole(418, "", "the script is over")), Act::Close]);
            for act in acts {
                match act {
                    // A client that is gone does not mind.
                    Act::Send(bytes) => drop(stream.write_all(&bytes)),
                    Act::Drip(pieces, pause) => {
                        for piece in pieces {
                            std::thread::sleep(pause);
                            let _ = stream.write_all(&piece);
                        }
                    }
                    Act::Flood(bytes) => {
                        while stream.write_all(&bytes).is_ok() {}
                        let _ = self.gone.send(());
                    }
                    Act::Await(test) => test.recv_timeout(PATIENCE).expect("the test does not come"),
                    Act::Hang => {
                        let mut rest = [0; 64];
                        while stream.read(&mut rest).is_ok_and(|n| n > 0) {}
                        let _ = self.gone.send(());
                    }
                    Act::Close => {
                        let _ = stream.shutdown(Shutdown::Both);
                        return;
                    }
                }
            }
        }
    }
}

fn read_request(stream: &mut TcpStream, connection: usize) -> Option<Seen> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let mut lines = head.lines().map(str::to_string);
            let line = lines.next().unwrap();
            let headers: Vec<(String, String)> = lines
                .map(|line| line.split_once(": ").map(|(k, v)| (k.to_lowercase(), v.to_string())).unwrap())
                .collect();
            let length = headers.iter().find(|(name, _)| name == "content-length");
            let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap());
            while bytes.len() < end + 4 + length {
                match stream.read(&mut piece) {
                    Ok(n) if n > 0 => bytes.extend_from_slice(&piece[..n]),
                    _ => return None,
                }
            }
            let body = String::from_utf8(bytes.split_off(end + 4)).unwrap();
            return Some(Seen { line, headers, body, connection, at: Instant::now() });
        }
        match stream.read(&mut piece) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    }
}

/// An answer with a length.
pub fn whole(status: u16, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

/// The head of a stream in chunks.
pub fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()
}

/// The head of a stream that ends with the connection.
pub fn open_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_vec()
}

/// One chunk of a stream.
pub fn chunk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The end of the chunks.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A stream of these events from beginning to end.
pub fn stream(events: &[impl AsRef<str>]) -> Act {
    let mut bytes = stream_head();
    for event in events {
        bytes.extend(chunk(format!("data: {}\n\n", event.as_ref())));
    }
    bytes.extend(LAST_CHUNK);
    Act::Send(bytes)
}

/// A chat answer of one word, streamed.
pub fn says(word: &str) -> Act {
    stream(&[said(word).as_str(), FINISHED, "[DONE]"])
}

/// A piece of a chat answer.
pub fn said(word: &str) -> String {
    serde_json::json!({"id":"c","model":"m","choices":[{"index":0,"delta":{"content":word}}]}).to_string()
}

/// The end of a chat answer.
pub const FINISHED: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
