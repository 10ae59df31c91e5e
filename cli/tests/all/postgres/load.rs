//! Clients that write and follow conversations through several servers while these and their database fail, and the
//! check of what they were told.

use super::{PATIENCE, until};
use crate::Shell;
use crate::process::Serving;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Status and body of an answer.
pub type Answer = (u16, Value);

/// One request. `None` if no answer came: the connection broke, or the client lost patience.
pub fn request(address: &str, head: &str, body: &Value, headers: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    // Its answers end with the connection.
    let request = format!(
        "{head} HTTP/1.0\r\nhost: localhost\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?))
}

/// All events of a conversation, which must be there without a gap.
pub fn events(address: &str, conversation: &str, headers: &str) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let head =
            format!("GET /api/v1/conversations/{conversation}/events?from={}&limit=500", all.len() + 1);
        let mut page = Value::Null;
        // The last fault may have left connections that do not work.
        until("the events are read", || match request(address, &head, &Value::Null, headers) {
            Some((200, read)) => {
                page = read;
                true
            }
            _ => false,
        });
        let page = page["data"].as_array_mut().unwrap();
        if page.is_empty() {
            return all;
        }
        for event in page {
            assert_eq!(event["seq"], all.len() + 1, "no gap");
            all.push(event.take());
        }
    }
}

/// Text of the turn in an event.
pub fn text(event: &Value) -> Option<&str> {
    event["body"]["message"]["content"].as_str()
}

/// A turn that says this.
pub fn said(text: &str) -> Value {
    json!({"turns": [{"role": "user", "content": text}]})
}

/// What a client knows of a text that it sent.
struct Sent {
    conversation: String,
    text: String,
    outcome: Outcome,
}

#[derive(PartialEq)]
enum Outcome {
    /// At this `seq`.
    Written(u64),
    NotWritten,
    Unknown,
}

/// How a client makes sure that nothing is written twice.
#[derive(Clone, Copy)]
enum Manner {
    /// It repeats a request with the same idempotency key until it is answered.
    Key,
    /// It expects a `seq`, and reads what is there if it was not the one.
    Seq,
    /// It does not repeat.
    Once,
}

const MANNERS: [Manner; 6] = [Manner::Key, Manner::Seq, Manner::Once, Manner::Key, Manner::Seq, Manner::Key];
const CONVERSATIONS: usize = 3;

/// Texts that the clients may still send (any number, if `None`), and those that they are sending.
#[derive(Default)]
struct Pace {
    left: Option<usize>,
    running: usize,
}

pub struct Load {
    /// Addresses of the servers. A restarted one has another.
    addresses: Vec<RwLock<String>>,
    pub conversations: Vec<String>,
    done: AtomicBool,
    pace: Mutex<Pace>,
    acknowledged: AtomicU64,
    /// The last event that the follower of each conversation has got.
    followed: Vec<AtomicU64>,
    sent: Mutex<Vec<Sent>>,
    /// Refusals, by status and code.
    refused: Mutex<BTreeMap<(u16, String), u64>>,
    slowest_ms: AtomicU64,
}

impl Load {
    pub fn on(servers: &[&Serving]) -> Load {
        let make = |_| {
            let (status, made) =
                request(&servers[0].address(), "POST /api/v1/conversations", &json!({}), "").unwrap();
            assert_eq!(status, 201, "{made}");
            made["id"].as_str().unwrap().to_string()
        };
        Load {
            addresses: servers.iter().map(|server| RwLock::new(server.address())).collect(),
            conversations: (0..CONVERSATIONS).map(make).collect(),
            done: AtomicBool::new(false),
            pace: Mutex::default(),
            followed: (0..CONVERSATIONS).map(|_| AtomicU64::new(0)).collect(),
            acknowledged: AtomicU64::new(0),
            sent: Mutex::default(),
            refused: Mutex::default(),
            slowest_ms: AtomicU64::new(0),
        }
    }

    pub fn replace(&self, nth: usize, server: &Serving) {
        *self.addresses[nth].write() = server.address();
    }

    fn address(&self, nth: usize) -> String {
        self.addresses[nth % self.addresses.len()].read().clone()
    }

    /// Waits until the clients have written this much more, as long as they get on.
    pub fn more(&self, wanted: u64) {
        let now = || self.acknowledged.load(Ordering::SeqCst);
        let (goal, mut last, mut since) = (now() + wanted, now(), Instant::now());
        while last < goal {
            assert!(since.elapsed() < PATIENCE, "the clients do not get on");
            std::thread::sleep(Duration::from_millis(10));
            if now() > last {
                (last, since) = (now(), Instant::now());
            }
        }
    }

    /// Lets the clients send only this many more texts, and waits until they have.
    pub fn last(&self, count: usize) {
        self.pace.lock().left = Some(count);
        until("the clients come to rest", || {
            let pace = self.pace.lock();
            pace.left == Some(0) && pace.running == 0
        });
    }

    /// Waits for permission to send a text. False at the end.
    fn begin(&self) -> bool {
        loop {
            let mut pace = self.pace.lock();
            if self.done.load(Ordering::SeqCst) {
                return false;
            }
            if pace.left != Some(0) {
                pace.left = pace.left.map(|left| left - 1);
                pace.running += 1;
                return true;
            }
            drop(pace);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs the clients while `faults` happen, and checks what they were told.
    pub fn run(&self, shell: &Shell, url: &str, faults: impl FnOnce(&Load)) {
        std::thread::scope(|scope| {
            /// Ends the clients, also when the faults panic.
            struct End<'a>(&'a AtomicBool);
            impl Drop for End<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
            let end = End(&self.done);
            for (client, manner) in MANNERS.into_iter().enumerate() {
                scope.spawn(move || self.write(client, manner));
            }
            let mut followers: Vec<_> =
                (0..CONVERSATIONS).map(|nth| scope.spawn(move || self.follow(nth))).collect();
            followers.push(scope.spawn(|| self.follow_all()));
            faults(self);
            self.last(0);
            // Nothing is appended any more that would show what a follower has missed.
            until("the followers have everything", || {
                let mut all = self.conversations.iter().zip(&self.followed);
                all.all(|(id, last)| self.ends_at(1, id, last.load(Ordering::SeqCst)))
            });
            drop(end);
            for follower in followers {
                follower.join().unwrap();
            }
        });
        self.check(shell, url);
    }

    /// One request to a server, with the refusals counted.
    fn ask(&self, server: usize, head: &str, body: &Value, headers: &str) -> Option<Answer> {
        let began = Instant::now();
        let answer = request(&self.address(server), head, body, headers);
        self.slowest_ms.fetch_max(began.elapsed().as_millis() as u64, Ordering::SeqCst);
        if let Some((status, problem)) = &answer
            && *status >= 400
        {
            let code = problem["code"].as_str().expect("every refusal has a code").to_string();
            let detail = problem["detail"].as_str().unwrap_or_default();
            let expected = *status == 503 || (*status == 409 && code == "append.stale_seq");
            assert!(expected && !detail.is_empty(), "{status}: {problem}");
            *self.refused.lock().entry((*status, code)).or_default() += 1;
        }
        answer
    }

    fn write(&self, client: usize, manner: Manner) {
        let mut heads: HashMap<String, u64> = HashMap::new();
        for nth in 0.. {
            if !self.begin() {
                return;
            }
            let conversation = self.conversations[(client + nth) % CONVERSATIONS].clone();
            let text = format!("client {client} word {nth}");
            let head = format!("POST /api/v1/conversations/{conversation}/turns");
            let (mut began, mut server) = (Instant::now(), client);
            let outcome = loop {
                assert!(began.elapsed() < PATIENCE, "{text} was not taken in time");
                server += 1;
                let (mut body, mut headers) = (said(&text), String::new());
                let known = *heads.entry(conversation.clone()).or_insert(1);
                match manner {
                    Manner::Key => headers = format!("idempotency-key: {client}-{nth}\r\n"),
                    Manner::Seq => body["expected_seq"] = json!(known),
                    Manner::Once => {}
                }
                let outcome = match self.ask(server, &head, &body, &headers) {
                    Some((200 | 201, answer)) => {
                        Outcome::Written(answer["turns"][0]["seq"].as_u64().unwrap())
                    }
                    Some((409, _)) => {
                        let (head, found) = self.look(server, &conversation, known, &text);
                        heads.insert(conversation.clone(), head);
                        // Others were faster: that is not an outage.
                        began = Instant::now();
                        match found {
                            Some(seq) => Outcome::Written(seq),
                            None => continue,
                        }
                    }
                    Some((_, problem)) if problem["code"] != "commit.unknown" => Outcome::NotWritten,
                    _ => Outcome::Unknown,
                };
                match (manner, outcome) {
                    (Manner::Seq, Outcome::Written(seq)) => {
                        heads.insert(conversation.clone(), seq);
                        break Outcome::Written(seq);
                    }
                    (_, Outcome::Written(seq)) => break Outcome::Written(seq),
                    (Manner::Once, outcome) => {
                        std::thread::sleep(Duration::from_millis(20));
                        break outcome;
                    }
                    _ => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            if matches!(outcome, Outcome::Written(_)) {
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            self.sent.lock().push(Sent { conversation, text, outcome });
            self.pace.lock().running -= 1;
        }
    }

    /// Reads on after `known`: the new head, and the place of this text.
    fn look(&self, server: usize, conversation: &str, known: u64, text: &str) -> (u64, Option<u64>) {
        let head = format!("GET /api/v1/conversations/{conversation}/events?from={}&limit=1000", known + 1);
        let Some((200, page)) = self.ask(server, &head, &Value::Null, "") else { return (known, None) };
        let page = page["data"].as_array().unwrap();
        let seq = |event: &Value| event["seq"].as_u64().unwrap();
        let found = page.iter().find(|event| self::text(event) == Some(text)).map(seq);
        (page.last().map_or(known, seq), found)
    }

    /// Whether a conversation ends here now.
    fn ends_at(&self, server: usize, conversation: &str, seq: u64) -> bool {
        let now = self.ask(server, &format!("GET /api/v1/conversations/{conversation}"), &Value::Null, "");
        now.is_some_and(|(status, now)| status == 200 && now["head"]["seq"] == seq)
    }

    /// Follows a conversation to its end, through whatever server answers: no gap, no repeat.
    fn follow(&self, nth: usize) {
        let (conversation, mut last) = (&self.conversations[nth], 0);
        let path = format!("/api/v1/conversations/{conversation}/events");
        let see = |last: &mut u64, event: &Value| {
            if let Some(seq) = event["seq"].as_u64() {
                assert_eq!(seq, *last + 1, "a follower of {conversation} gets each event once");
                *last = seq;
                self.followed[nth].store(seq, Ordering::SeqCst);
            }
        };
        self.follow_until(nth, &path, &mut last, see, |server, last| {
            self.ends_at(server, conversation, *last)
        });
    }

    /// Follows all conversations: in the end it knows all heads.
    fn follow_all(&self) {
        let mut heads: HashMap<String, u64> = HashMap::new();
        let see = |heads: &mut HashMap<String, u64>, change: &Value| {
            if let (Some(id), Some(seq)) = (change["id"].as_str(), change["seq"].as_u64()) {
                heads.insert(id.to_string(), seq);
            }
        };
        self.follow_until(1, "/api/v1/events", &mut heads, see, |server, heads| {
            let all = self.conversations.iter();
            all.clone().all(|id| heads.get(id).is_some_and(|seq| self.ends_at(server, id, *seq)))
        });
    }

    /// Follows a stream through whatever server answers, resuming where it broke, until the load is over and everything
    /// was seen.
    fn follow_until<T>(
        &self,
        mut server: usize,
        path: &str,
        seen: &mut T,
        see: impl Fn(&mut T, &Value),
        is_all: impl Fn(usize, &T) -> bool,
    ) {
        let (mut ended, mut position) = (None::<Instant>, String::new());
        loop {
            if self.done.load(Ordering::SeqCst) {
                let began = *ended.get_or_insert_with(Instant::now);
                if is_all(server, seen) {
                    return;
                }
                assert!(began.elapsed() < PATIENCE, "a follower of {path} stays behind, after {position}");
            }
            server += 1;
            let _ = self.follow_once(server, path, &mut position, |event| see(seen, event));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Follows until the connection ends, or nothing comes for a while after the end of the load.
    fn follow_once(
        &self,
        server: usize,
        path: &str,
        position: &mut String,
        mut see: impl FnMut(&Value),
    ) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(self.address(server))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        let resume =
            if position.is_empty() { String::new() } else { format!("last-event-id: {position}\r\n") };
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nhost: localhost\r\naccept: text/event-stream\r\n{resume}\r\n"
        )?;
        let (mut lines, mut line, mut id, mut data) = (BufReader::new(stream), String::new(), None, None);
        loop {
            match lines.read_line(&mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if self.done.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let Some(text) = line.strip_prefix("data: ") {
                data = Some(serde_json::from_str::<Value>(text).expect("JSON in one line"));
            } else if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.trim().to_string());
            } else if line.trim().is_empty() {
                // The frame is complete.
                data.take().iter().for_each(&mut see);
                *position = id.take().unwrap_or(std::mem::take(position));
            }
            line.clear();
        }
    }

    /// Everything acknowledged is there once, at its place; what was refused is not there; every chain verifies.
    fn check(&self, shell: &Shell, url: &str) {
        let sent = self.sent.lock();
        let count = |is: fn(&Outcome) -> bool| sent.iter().filter(|sent| is(&sent.outcome)).count();
        eprintln!(
            "{} written, {} refused, {} unknown; slowest answer {} ms; {:?}",
            count(|outcome| matches!(outcome, Outcome::Written(_))),
            count(|outcome| *outcome == Outcome::NotWritten),
            count(|outcome| *outcome == Outcome::Unknown),
            self.slowest_ms.load(Ordering::SeqCst),
            self.refused.lock(),
        );
        let address = (0..self.addresses.len())
            .map(|nth| self.address(nth))
            .find(|address| request(address, "GET /api/v1/whoami", &Value::Null, "").is_some());
        let address = address.expect("a server is left");
        for conversation in &self.conversations {
            let mut there: HashMap<String, Vec<u64>> = HashMap::new();
            for event in events(&address, conversation, "") {
                if let Some(text) = text(&event).filter(|text| text.starts_with("client ")) {
                    there.entry(text.to_string()).or_default().push(event["seq"].as_u64().unwrap());
                }
            }
            let mut known = HashSet::new();
            for Sent { text, outcome, .. } in sent.iter().filter(|sent| sent.conversation == *conversation) {
                let places = there.get(text).map_or(&[][..], |places| places);
                match outcome {
                    Outcome::Written(seq) => assert_eq!(places, [*seq], "{text} was acknowledged at {seq}"),
                    Outcome::NotWritten => {
                        assert!(places.is_empty(), "{text} was refused, and is at {places:?}")
                    }
                    Outcome::Unknown => assert!(places.len() <= 1, "{text} is at {places:?}"),
                }
                known.insert(text.as_str());
            }
            assert!(there.keys().all(|text| known.contains(text.as_str())), "nobody sent what is there");
            shell.ok(&["verify", conversation, "--store", url]);
        }
    }
}
