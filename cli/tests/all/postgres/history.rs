//! Random requests through two servers at once, on a network to the database that breaks now and then. The recorded
//! answers are checked against the log: it must be one order in which every answer makes sense.

use super::cluster::{Database, Folder};
use super::load::{Answer, events, request, said, text};
use super::proxy::{Network, Proxy};
use super::rounds;
use crate::Shell;
use crate::process::Serving;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One answered request about one conversation.
#[derive(Clone, Debug)]
struct Call {
    /// Times since the beginning of the run, in nanoseconds.
    began: u64,
    ended: u64,
    saw: Saw,
}

#[derive(Clone, Debug)]
enum Saw {
    /// A text was appended: its place, the end of the log after it, and the end that was required before it.
    Appended { text: String, seq: u64, head: u64, expected: Option<u64> },
    /// A text was appended before, under the same key.
    Repeated { text: String, seq: u64 },
    /// The log did not end where it was expected to.
    Stale { head: u64, expected: u64 },
    /// It is not known whether the text was appended.
    Unknown { text: String },
    /// The text was not appended.
    Refused { text: String },
    /// The log ended here.
    Head(u64),
    /// The log had these events from `from` on, and no more.
    Page { from: u64, ids: Vec<String> },
}

impl Saw {
    /// The end of the log that the answer shows.
    fn head(&self) -> Option<u64> {
        match self {
            Saw::Appended { head, .. } | Saw::Stale { head, .. } | Saw::Head(head) => Some(*head),
            // An empty page may begin far behind the end.
            Saw::Page { from, ids } => (!ids.is_empty()).then(|| from - 1 + ids.len() as u64),
            Saw::Repeated { .. } | Saw::Unknown { .. } | Saw::Refused { .. } => None,
        }
    }

    /// Text and place, if it was appended.
    fn place(&self) -> Option<(&str, u64)> {
        match self {
            Saw::Appended { text, seq, .. } | Saw::Repeated { text, seq } => Some((text, *seq)),
            _ => None,
        }
    }
}

/// An event of the log: its id, and its text if it is a turn.
type Logged = (String, Option<String>);

/// Checks that the log is an order in which every answer makes sense: writes and reads take effect at one moment
/// between their request and their answer.
fn check(log: &[Logged], calls: &[Call]) -> Result<(), String> {
    let mut places: HashMap<&str, Vec<u64>> = HashMap::new();
    for (at, (_, text)) in log.iter().enumerate() {
        text.iter().for_each(|text| places.entry(text).or_default().push(at as u64 + 1));
    }
    for Call { saw, .. } in calls {
        if let Some((text, seq)) = saw.place() {
            let at = places.get(text);
            if at != Some(&vec![seq]) {
                return Err(format!("{text:?} was acknowledged at {seq} and is at {at:?}"));
            }
        }
        match saw {
            Saw::Appended { text, seq, expected: Some(expected), .. } if expected + 1 != *seq => {
                return Err(format!("{text:?} expected {expected} and was put at {seq}"));
            }
            Saw::Stale { head, expected } if head == expected => {
                return Err(format!("refused, although the log ended at {head} as expected"));
            }
            Saw::Unknown { text } if places.get(text.as_str()).is_some_and(|at| at.len() > 1) => {
                return Err(format!("{text:?} is there more than once"));
            }
            Saw::Refused { text } if places.contains_key(text.as_str()) => {
                return Err(format!("{text:?} was refused and is there"));
            }
            Saw::Page { from, ids } => {
                let there = log.iter().skip(*from as usize - 1).map(|(id, _)| id);
                if !there.take(ids.len()).eq(ids) {
                    return Err(format!("a page from {from} has other events than the log"));
                }
            }
            _ => {}
        }
    }
    // What an answer shows is not older than any answer before its request, and not newer than any request after it.
    for call in calls {
        let Some(head) = call.saw.head() else { continue };
        let before = calls.iter().filter(|other| other.ended < call.began);
        if let Some(newer) = before.filter_map(|other| other.saw.head()).find(|known| *known > head) {
            return Err(format!("{call:?} shows {head}, although {newer} had been shown before"));
        }
        let appended = calls.iter().filter(|other| other.began > call.ended);
        let early = appended.filter_map(|other| match &other.saw {
            Saw::Appended { seq, .. } => Some(*seq),
            _ => None,
        });
        if let Some(early) = early.filter(|seq| *seq <= head).min() {
            return Err(format!("{call:?} shows {head}, although {early} was requested only afterwards"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_finds_what_must_not_be() {
    let log: Vec<Logged> = [None, Some("a"), Some("b")]
        .iter()
        .enumerate()
        .map(|(at, text)| (format!("evt_{at}"), text.map(str::to_string)))
        .collect();
    let call = |began, ended, saw| Call { began, ended, saw };
    let appended = |text: &str, seq, expected| Saw::Appended { text: text.into(), seq, head: seq, expected };
    let page = |from, ids: &[&str]| Saw::Page { from, ids: ids.iter().map(ToString::to_string).collect() };
    let good = [
        call(1, 4, appended("a", 2, None)),
        call(2, 5, appended("b", 3, Some(2))),
        call(2, 5, Saw::Stale { head: 3, expected: 1 }),
        call(6, 7, Saw::Head(3)),
        call(1, 3, page(1, &["evt_0", "evt_1"])),
        call(6, 7, Saw::Unknown { text: "c".into() }),
    ];
    assert_eq!(check(&log, &good), Ok(()));
    let bad = [
        ("lost", vec![call(1, 2, appended("c", 4, None))]),
        ("elsewhere", vec![call(1, 2, appended("a", 3, None))]),
        ("not where expected", vec![call(1, 2, appended("b", 3, Some(1)))]),
        ("refused without a reason", vec![call(1, 2, Saw::Stale { head: 2, expected: 2 })]),
        ("refused and written", vec![call(1, 2, Saw::Refused { text: "a".into() })]),
        ("order", vec![call(1, 2, appended("b", 3, None)), call(3, 4, appended("a", 2, None))]),
        ("stale read", vec![call(1, 2, appended("b", 3, None)), call(3, 4, Saw::Head(2))]),
        ("read back in time", vec![call(1, 2, Saw::Head(3)), call(3, 4, Saw::Head(2))]),
        ("read ahead of time", vec![call(1, 2, Saw::Head(3)), call(3, 4, appended("b", 3, None))]),
        ("other events", vec![call(1, 2, page(1, &["evt_0", "evt_2"]))]),
    ];
    for (what, calls) in bad {
        assert!(check(&log, &calls).is_err(), "{what}");
    }
    let doubled = [log.clone(), vec![("evt_4".to_string(), Some("a".to_string()))]].concat();
    assert!(check(&doubled, &[call(1, 2, appended("a", 2, None))]).is_err());
    assert!(check(&doubled, &[call(1, 2, Saw::Unknown { text: "a".into() })]).is_err());
}

/// Random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

const CONVERSATIONS: usize = 3;
const CLIENTS: u64 = 6;
const CALLS: u64 = 30;
/// A key that another server revoked is accepted for at most this long.
const REVOKED_WITHIN: Duration = Duration::from_secs(2);

struct Run<'a> {
    servers: [&'a Serving; 2],
    /// Header with an admin's key.
    admin: String,
    began: Instant,
    conversations: Vec<Conversation>,
    texts: AtomicU64,
}

#[derive(Default)]
struct Conversation {
    id: String,
    calls: Mutex<Vec<Call>>,
    /// Turns that were acknowledged.
    turns: Mutex<Vec<String>>,
    superseded: Mutex<HashSet<String>>,
}

impl Run<'_> {
    fn ask(&self, node: u64, head: &str, body: &Value, headers: &str) -> Option<Answer> {
        request(&self.servers[node as usize % 2].address(), head, body, &format!("{}{headers}", self.admin))
    }

    /// Asks until there is an answer, for requests that may be repeated.
    fn surely(&self, node: u64, head: &str, body: &Value) -> Answer {
        let began = Instant::now();
        loop {
            match self.ask(node, head, body, "") {
                Some(answer) if answer.0 != 503 => return answer,
                _ => assert!(began.elapsed() < super::PATIENCE, "{head}"),
            }
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn new_text(&self) -> String {
        format!("word {}", self.texts.fetch_add(1, Ordering::SeqCst))
    }

    /// Sends a request and records what its answer shows.
    fn call(
        &self,
        of: &Conversation,
        send: impl FnOnce() -> Option<Answer>,
        saw: impl FnOnce(Option<Answer>) -> Option<Saw>,
    ) -> Option<Saw> {
        let began = self.now();
        let answer = send();
        let ended = self.now();
        let saw = saw(answer)?;
        of.calls.lock().push(Call { began, ended, saw: saw.clone() });
        Some(saw)
    }

    fn append(
        &self,
        of: &Conversation,
        node: u64,
        text: &str,
        expected: Option<u64>,
        key: &str,
    ) -> Option<Saw> {
        let mut body = said(text);
        if let Some(expected) = expected {
            body["expected_seq"] = json!(expected);
        }
        let key = if key.is_empty() { String::new() } else { format!("idempotency-key: {key}\r\n") };
        let head = format!("POST /api/v1/conversations/{}/turns", of.id);
        self.call(
            of,
            || self.ask(node, &head, &body, &key),
            |answer| match self.appended(of, text, expected, answer) {
                // The same request to the other server may have succeeded.
                Saw::Refused { text } if !key.is_empty() => Some(Saw::Unknown { text }),
                saw => Some(saw),
            },
        )
    }

    fn appended(&self, of: &Conversation, text: &str, expected: Option<u64>, answer: Option<Answer>) -> Saw {
        let text = text.to_string();
        match answer {
            Some((200 | 201, answer)) => {
                of.turns.lock().push(answer["turns"][0]["id"].as_str().unwrap().to_string());
                let seq = answer["turns"][0]["seq"].as_u64().unwrap();
                if answer["repeated"] == true {
                    return Saw::Repeated { text, seq };
                }
                Saw::Appended { text, seq, head: answer["head"]["seq"].as_u64().unwrap(), expected }
            }
            Some((409, problem)) if problem["code"] == "append.stale_seq" => {
                let detail = problem["detail"].as_str().unwrap();
                let head = detail.strip_prefix("head is ").and_then(|rest| rest.split(',').next());
                Saw::Stale { head: head.unwrap().parse().unwrap(), expected: expected.unwrap() }
            }
            Some((status, problem))
                if (status, problem["code"].as_str()) == (409, Some("turn.superseded"))
                    || status == 503 && problem["code"] != "commit.unknown" =>
            {
                eprintln!("{text:?} is refused: {problem}");
                Saw::Refused { text }
            }
            None | Some((503, _)) => Saw::Unknown { text },
            Some((status, problem)) => panic!("{status}: {problem}"),
        }
    }

    fn head(&self, of: &Conversation, node: u64) -> Option<u64> {
        let head = format!("GET /api/v1/conversations/{}", of.id);
        let saw = self.call(
            of,
            || self.ask(node, &head, &Value::Null, ""),
            |answer| match answer {
                Some((200, row)) => Some(Saw::Head(row["head"]["seq"].as_u64().unwrap())),
                _ => None,
            },
        );
        saw.and_then(|saw| saw.head())
    }

    fn page(&self, of: &Conversation, node: u64, from: u64) {
        let head = format!("GET /api/v1/conversations/{}/events?from={from}&limit=1000", of.id);
        self.call(
            of,
            || self.ask(node, &head, &Value::Null, ""),
            |answer| {
                let Some((200, page)) = answer else { return None };
                let ids = page["data"].as_array().unwrap().iter();
                let ids: Vec<String> = ids.map(|event| event["id"].as_str().unwrap().to_string()).collect();
                Some(Saw::Page { from, ids })
            },
        );
    }

    /// One client.
    fn play(&self, mut dice: Dice) {
        for _ in 0..CALLS {
            let of = &self.conversations[dice.roll(CONVERSATIONS as u64) as usize];
            let (node, text) = (dice.roll(2), self.new_text());
            match dice.roll(10) {
                0 | 1 => drop(self.append(of, node, &text, None, "")),
                2 | 3 => {
                    if let Some(head) = self.head(of, node + 1) {
                        self.append(of, node, &text, Some(head), "");
                    }
                }
                // The same request to both servers at once, then again.
                4 | 5 => {
                    let key = text.replace(' ', "-");
                    let first = std::thread::scope(|scope| {
                        let other = scope.spawn(|| self.append(of, node + 1, &text, None, &key));
                        [self.append(of, node, &text, None, &key), other.join().unwrap()]
                    });
                    let again = self.append(of, node, &text, None, &key);
                    let seqs: HashSet<u64> = first
                        .iter()
                        .chain([&again])
                        .flatten()
                        .filter_map(Saw::place)
                        .map(|at| at.1)
                        .collect();
                    assert!(seqs.len() <= 1, "{key} was answered with {seqs:?}");
                    if !seqs.is_empty() {
                        let head = format!("POST /api/v1/conversations/{}/turns", of.id);
                        let other = self.ask(
                            node,
                            &head,
                            &said("other words"),
                            &format!("idempotency-key: {key}\r\n"),
                        );
                        assert!(
                            other
                                .as_ref()
                                .is_none_or(|(status, problem)| *status == 503
                                    || problem["code"] == "idempotency.reused"),
                            "{other:?}"
                        );
                    }
                }
                6 => self.page(of, node, 1 + dice.roll(40)),
                7 => drop(self.head(of, node)),
                // Two edit the same turn at once.
                8 => {
                    let turn = {
                        let turns = of.turns.lock();
                        if turns.is_empty() {
                            continue;
                        }
                        turns[dice.roll(turns.len() as u64) as usize].clone()
                    };
                    let other = self.new_text();
                    std::thread::scope(|scope| {
                        scope.spawn(|| self.supersede(of, node + 1, &turn, &other));
                        self.supersede(of, node, &turn, &text);
                    });
                }
                _ => self.approval(of, node, &text.replace(' ', "-")),
            }
        }
    }

    fn supersede(&self, of: &Conversation, node: u64, turn: &str, text: &str) {
        let head = format!("POST /api/v1/turns/{turn}/supersede");
        let body = json!({"role": "user", "content": text});
        let saw = self.call(
            of,
            || self.ask(node, &head, &body, ""),
            |answer| Some(self.appended(of, text, None, answer)),
        );
        if matches!(saw, Some(Saw::Appended { .. })) {
            assert!(of.superseded.lock().insert(turn.to_string()), "{turn} was superseded twice");
        }
    }

    /// Two people answer one approval at once, on two servers: one of them wins.
    fn approval(&self, of: &Conversation, node: u64, name: &str) {
        let head = format!("POST /api/v1/conversations/{}/approvals", of.id);
        let (status, asked) = self.surely(node, &head, &json!({"approval_id": name, "question": "Send it?"}));
        // Asked again after a lost answer.
        assert!(status == 201 || asked["code"] == "approval.exists", "{asked}");
        let head = format!("POST /api/v1/conversations/{}/approvals/{name}/resolve", of.id);
        let resolve = |node, state: &str| self.surely(node, &head, &json!({"state": state}));
        let answers = std::thread::scope(|scope| {
            let other = scope.spawn(|| resolve(node + 1, "denied"));
            [resolve(node, "approved"), other.join().unwrap()]
        });
        for (status, answer) in &answers {
            assert!(*status < 300 || answer["code"] == "approval.resolved", "{answer}");
        }
        // An answer whose confirmation was lost finds itself when it is repeated, so there may be no winner, but not two.
        assert!(answers.iter().filter(|(status, _)| *status < 300).count() <= 1, "{answers:?}");
    }

    /// Keys that one server makes and revokes, and the other is asked with.
    fn keys(&self, done: &AtomicBool) {
        let of = &self.conversations[0];
        for node in 0.. {
            if done.load(Ordering::SeqCst) {
                return;
            }
            let (status, key) = self.surely(node, "POST /api/v1/keys", &json!({"role": "reader"}));
            assert_eq!(status, 201, "{key}");
            let header = format!("authorization: Bearer {}\r\n", key["secret"].as_str().unwrap());
            let head = format!("GET /api/v1/conversations/{}", of.id);
            let look = |node: u64| {
                let address = self.servers[node as usize % 2].address();
                request(&address, &head, &Value::Null, &header).map(|(status, _)| status)
            };
            for other in [node + 1, node] {
                let status = look(other);
                assert!(matches!(status, Some(200 | 503) | None), "a new key: {status:?}");
            }
            let revoke = format!("DELETE /api/v1/keys/{}", key["id"].as_str().unwrap());
            let (status, answer) = self.surely(node, &revoke, &Value::Null);
            assert!(status < 300, "{answer}");
            let revoked = Instant::now();
            assert!(matches!(look(node), Some(401 | 503) | None), "refused at once where it was revoked");
            loop {
                let asked = Instant::now();
                match look(node + 1) {
                    Some(401) => break,
                    Some(200) => {
                        assert!(asked - revoked < REVOKED_WITHIN, "still accepted by the other server")
                    }
                    Some(503) | None => {}
                    Some(status) => panic!("{status}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn all_answers_of_two_servers_fit_one_order() {
    rounds(|round| {
        let seed = std::env::var("EVERTURN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or(20260101) + round;
        eprintln!("seed {seed}");
        let (shell, folder) = (Shell::new(), Folder::new());
        let database = Database::new(&folder);
        let url = |port| format!("postgres://everturn@127.0.0.1:{port}/everturn?connect_timeout=2");
        let proxies = [Proxy::to(database.port), Proxy::to(database.port)];
        let direct = url(database.port);
        let key = shell.json(&["keys", "create", "--role", "admin", "--json", "--store", &direct]);
        let serve = |proxy: &Proxy| {
            Serving::start_with(&shell, &["--store", &url(proxy.port)], |command| {
                let limits = ["REQUESTS_PER_SECOND", "BURST", "TENANT_REQUESTS_PER_SECOND", "TENANT_BURST"];
                for limit in limits {
                    command.env(format!("EVERTURN_LIMITS_{limit}"), "1000000");
                }
            })
        };
        let [one, two] = [serve(&proxies[0]), serve(&proxies[1])];
        let mut run = Run {
            servers: [&one, &two],
            admin: format!("authorization: Bearer {}\r\n", key["secret"].as_str().unwrap()),
            began: Instant::now(),
            conversations: Vec::new(),
            texts: AtomicU64::new(0),
        };
        for _ in 0..CONVERSATIONS {
            let (_, made) = run.surely(0, "POST /api/v1/conversations", &json!({}));
            let id = made["id"].as_str().unwrap().to_string();
            run.conversations.push(Conversation { id, ..Conversation::default() });
        }
        let (run, done) = (&run, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let mut dice = Dice(seed);
            let weather = Dice(dice.roll(u64::MAX) + 1);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let dice = Dice(dice.roll(u64::MAX) + 1);
                    scope.spawn(move || run.play(dice))
                })
                .collect();
            scope.spawn(|| run.keys(&done));
            scope.spawn(|| break_network(weather, &proxies, &done));
            let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
            done.store(true, Ordering::SeqCst);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        proxies.iter().for_each(|proxy| proxy.set(Network::Up));
        for conversation in &run.conversations {
            let log = events(&one.address(), &conversation.id, &run.admin);
            let of_kind = |kind: &str, of: &str| {
                let all = log.iter().filter(|event| event["kind"] == kind);
                all.map(|event| event.pointer(of).unwrap().to_string()).collect::<Vec<String>>()
            };
            for (kind, of) in [("turn.superseded", "/turn"), ("approval.resolved", "/body/approval_id")] {
                let all = of_kind(kind, of);
                let once: HashSet<&String> = all.iter().collect();
                assert_eq!(once.len(), all.len(), "{kind} more than once: {all:?}");
            }
            let log: Vec<Logged> = log
                .iter()
                .map(|event| (event["id"].as_str().unwrap().to_string(), text(event).map(str::to_string)))
                .collect();
            let calls = conversation.calls.lock();
            let unknown = calls.iter().filter(|call| matches!(call.saw, Saw::Unknown { .. })).count();
            eprintln!("{} events, {} calls, {unknown} with unknown end", log.len(), calls.len());
            check(&log, &calls).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            shell.ok(&["verify", &conversation.id, "--store", &direct]);
        }
    });
}

/// Cuts connections, and loses answers, now and then.
fn break_network(mut dice: Dice, proxies: &[Proxy; 2], done: &AtomicBool) {
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(200 + dice.roll(800)));
        let proxy = &proxies[dice.roll(2) as usize];
        match dice.roll(3) {
            0 => {}
            1 => proxy.set(Network::LosesAnswers),
            _ => proxy.set(Network::Slow(Duration::from_millis(5))),
        }
        std::thread::sleep(Duration::from_millis(dice.roll(100)));
        proxy.set(Network::Up);
        proxy.cut();
    }
}
