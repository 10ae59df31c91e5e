//! `kill -9` at random moments under load: nothing acknowledged is lost, whatever was on its way.
//!
//! A child appends from three threads and tells each thing that was acknowledged, one line each; what must be known
//! also if the answer never came (an erasure, a request with a key) it tells before it asks. After the kill the
//! parent opens the same store and looks for all of it.

use crate::child::{Process, given, tell};
use crate::dice::{Dice, ToldOnFailure, rounds, seed};
use crate::stage::{PATIENCE, Short, Stage, files, turns_of, words};
use base64::Engine;
use everturn_core::asset;
use everturn_core::chain::Hash;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::{Status, Turn};
use everturn_engine::{
    AppendOptions, Appended, Error, Everturn, HistoryQuery, ListQuery, NewConversation, NewStream, NewTurn,
    Options, Tenant,
};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

/// Kills in a row, all on one store.
const ROUNDS: u64 = 40;
/// After so many rounds everything from the beginning on is looked at again.
const ROUNDS_BETWEEN_FULL_CHECKS: u64 = 20;
/// After so many rounds the whole store is examined.
const ROUNDS_BETWEEN_EXAMINATIONS: u64 = 10;
/// A child lives up to this long after it has opened the store.
const LIFE_MS_MAX: usize = 150;
/// So many steps each thread of a child takes before it rests, so that a fast disk does not make the checks long.
const STEPS_MAX: usize = 40;
const STORE: &str = "EVERTURN_TEST_STORE";
const SHARED: &str = "EVERTURN_TEST_CONVERSATION";
const SEED: &str = "EVERTURN_TEST_SEED";
const TENANT: &str = "acme";

// ---- the child ----

type Job = fn(&mut Worker) -> Result<(), Error>;

pub fn append_until_killed() {
    let options = Options { debounce: Duration::from_millis(3), ..Options::default() };
    let store = Everturn::open_with(&given(STORE), options).unwrap();
    let scope = store.tenant(TENANT).unwrap();
    let shared: ConversationId = given(SHARED).parse().unwrap();
    let seed: u64 = given(SEED).parse().unwrap();
    tell(format_args!("ready"));
    let jobs: [Job; 3] = [Worker::talk, Worker::stream, Worker::rearrange];
    std::thread::scope(|threads| {
        for (number, job) in jobs.into_iter().enumerate() {
            let scope = scope.clone();
            threads.spawn(move || {
                let mut worker = Worker {
                    scope,
                    shared,
                    own: shared,
                    name: format!("{seed}-{number}"),
                    count: 0,
                    dice: Dice::new(seed * 10 + number as u64),
                    said: Vec::new(),
                };
                let working = worker.begin().and_then(|()| (0..STEPS_MAX).try_for_each(|_| job(&mut worker)));
                if let Err(error) = working {
                    tell(format_args!("failed\t{error:?}"));
                }
                loop {
                    std::thread::park();
                }
            });
        }
    });
}

struct Worker {
    scope: Tenant,
    shared: ConversationId,
    own: ConversationId,
    name: String,
    count: u64,
    dice: Dice,
    /// Turns of `own` that nothing was done to yet.
    said: Vec<(TurnId, String)>,
}

impl Worker {
    fn begin(&mut self) -> Result<(), Error> {
        self.own = self.scope.create(NewConversation::default()).wait()?.id();
        Ok(())
    }

    /// Words that stand nowhere else.
    fn words(&mut self) -> String {
        self.count += 1;
        let filler = "lorem ipsum ".repeat(self.dice.roll(40));
        format!("mark:{}-{}: {filler}", self.name, self.count)
    }

    fn place(&mut self) -> ConversationId {
        if self.dice.once_in(3) { self.shared } else { self.own }
    }

    fn append(
        &mut self,
        to: ConversationId,
        turns: Vec<NewTurn>,
        key: Option<String>,
    ) -> Result<Appended, Error> {
        let sent: Vec<String> = turns.iter().map(|turn| turn.message.clone()).collect();
        let options = AppendOptions { idempotency_key: key, ..AppendOptions::default() };
        let appended = self.scope.conversation(to).append_all(turns).with(options).wait()?;
        for (turn, message) in appended.turns.iter().zip(sent) {
            let hash = Hash::of(message.as_bytes());
            tell(format_args!("turn\t{to}\t{}\t{}\t{hash}", turn.id, turn.seq));
        }
        tell(format_args!("head\t{to}\t{}\t{}", appended.head.seq, appended.head.hash));
        Ok(appended)
    }

    fn talk(&mut self) -> Result<(), Error> {
        let to = self.place();
        match self.dice.roll(5) {
            0 | 1 => {
                let words = self.words();
                self.append(to, vec![NewTurn::user(&words).by("ann")], None)?;
            }
            2 => {
                let count = 2 + self.dice.roll(5);
                let turns = (0..count).map(|_| NewTurn::assistant(&self.words())).collect();
                self.append(to, turns, None)?;
            }
            3 => {
                let words = self.words();
                let key = format!("key-{}-{}", self.name, self.count);
                tell(format_args!("asking\t{to}\t{key}\t{words}"));
                self.append(to, vec![NewTurn::user(&words)], Some(key.clone()))?;
                tell(format_args!("answered\t{key}"));
            }
            _ => {
                let body = Raw::of(&self.words())?;
                let event = self.scope.conversation(to).log().append("note", None, body).wait()?;
                tell(format_args!("head\t{to}\t{}\t{}", event.seq, event.hash));
            }
        }
        Ok(())
    }

    fn stream(&mut self) -> Result<(), Error> {
        let to = self.place();
        let turn = self.scope.conversation(to).open(NewStream::default()).wait()?.id;
        let text = self.words();
        tell(format_args!("opened\t{to}\t{turn}\t{text}"));
        let mut sent = 0;
        while sent < text.len() {
            let piece = (1 + self.dice.roll(40)).min(text.len() - sent);
            self.scope
                .conversation(to)
                .open_turn(turn)
                .chunk(Some(sent as u64), &text[sent..sent + piece])?;
            sent += piece;
            if self.dice.once_in(3) {
                // As a model does, so that the debounce has something to gather.
                std::thread::sleep(Duration::from_millis(1));
            }
            if self.dice.once_in(60) {
                // Left open: the next process that opens the store ends it.
                return Ok(());
            }
        }
        let ended = match self.dice.roll(3) {
            0 => self.scope.conversation(to).open_turn(turn).abort("enough", None).wait()?,
            1 => self.scope.conversation(to).open_turn(turn).commit(NewTurn::assistant(&text)).wait()?,
            _ => self.scope.conversation(to).open_turn(turn).commit(NewTurn::default()).wait()?,
        };
        let hash = Hash::of(ended.message.unwrap().get().as_bytes());
        tell(format_args!("turn\t{to}\t{turn}\t{}\t{hash}", ended.seq));
        tell(format_args!("ended\t{to}\t{turn}\t{}", ended.status));
        Ok(())
    }

    fn rearrange(&mut self) -> Result<(), Error> {
        let own = self.own;
        match self.dice.roll(5) {
            0 => {
                let message = picture(self.dice.roll(6) as u8, &self.words());
                let turn = self.append(own, vec![NewTurn::message(message)], None)?.turns.remove(0);
                self.said.push((turn.id, format!("{}-{}", self.name, self.count)));
            }
            1 => {
                let head = self.scope.conversation(own).get()?.head.seq;
                let at = 1 + self.dice.roll(head as usize) as u64;
                let fork = self.scope.conversation(own).fork(at).wait()?.get()?;
                tell(format_args!("head\t{}\t{}\t{}", fork.id, fork.head.seq, fork.head.hash));
                let words = self.words();
                self.append(fork.id, vec![NewTurn::user(&words)], None)?;
            }
            2 if !self.said.is_empty() => {
                let (old, _) = self.said.swap_remove(self.dice.roll(self.said.len()));
                let words = self.words();
                let new = self
                    .scope
                    .conversation(own)
                    .supersede(old, NewTurn::user(&words))
                    .wait()?
                    .turns
                    .remove(0)
                    .id;
                tell(format_args!("superseded\t{own}\t{old}\t{new}"));
            }
            3 if !self.said.is_empty() => {
                let (turn, mark) = self.said.swap_remove(self.dice.roll(self.said.len()));
                tell(format_args!("erasing\t{turn}"));
                let head =
                    self.scope.conversation(own).erase(turn, Some("ann".into()), "asked for").wait()?;
                tell(format_args!("erased\t{own}\t{turn}\t{mark}"));
                tell(format_args!("head\t{own}\t{}\t{}", head.seq, head.hash));
            }
            _ => {
                let words = self.words();
                let turn = self.append(own, vec![NewTurn::user(&words)], None)?.turns.remove(0);
                self.said.push((turn.id, format!("{}-{}", self.name, self.count)));
            }
        }
        Ok(())
    }
}

/// A message with a payload that becomes an asset. Few different ones, so that some are shared.
fn picture(number: u8, caption: &str) -> String {
    let data = base64::engine::general_purpose::STANDARD.encode(vec![number; 9000 + number as usize]);
    format!(
        r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}},{{"type":"text","text":"{caption}"}}]}}"#
    )
}

// ---- the parent ----

/// Everything that children told.
#[derive(Default)]
struct Told {
    /// Where, at which place, and the hash of the message as it was sent.
    turns: HashMap<TurnId, (ConversationId, u64, Hash)>,
    heads: Vec<(ConversationId, u64, Hash)>,
    opened: HashMap<TurnId, (ConversationId, String)>,
    ended: HashMap<TurnId, Status>,
    superseded: Vec<(ConversationId, TurnId, TurnId)>,
    erasing: HashSet<TurnId>,
    erased: Vec<(ConversationId, TurnId, String)>,
    asked: HashMap<String, (ConversationId, String)>,
}

impl Told {
    fn line(&mut self, line: &str) {
        let fields: Vec<&str> = line.split('\t').collect();
        let conversation = |n: usize| fields[n].parse::<ConversationId>().unwrap();
        let turn = |n: usize| fields[n].parse::<TurnId>().unwrap();
        let hash = |n: usize| fields[n].parse::<Hash>().unwrap();
        match fields[0] {
            "turn" => {
                self.turns.insert(turn(2), (conversation(1), fields[3].parse().unwrap(), hash(4)));
            }
            "head" => self.heads.push((conversation(1), fields[2].parse().unwrap(), hash(3))),
            "opened" => drop(self.opened.insert(turn(2), (conversation(1), fields[3].to_string()))),
            "ended" => {
                self.ended.insert(turn(2), fields[3].parse().unwrap());
            }
            "superseded" => self.superseded.push((conversation(1), turn(2), turn(3))),
            "erasing" => {
                self.erasing.insert(turn(1));
            }
            "erased" => self.erased.push((conversation(1), turn(2), fields[3].to_string())),
            "asking" => {
                drop(self.asked.insert(fields[2].to_string(), (conversation(1), fields[3].to_string())))
            }
            "answered" => drop(self.asked.remove(fields[1])),
            "failed" => panic!("the child could not go on: {line}"),
            // What the test harness itself prints.
            _ => {}
        }
    }

    fn join(&mut self, other: Told) {
        self.turns.extend(other.turns);
        self.heads.extend(other.heads);
        self.opened.extend(other.opened);
        self.ended.extend(other.ended);
        self.superseded.extend(other.superseded);
        self.erasing.extend(other.erasing);
        self.erased.extend(other.erased);
    }

    fn check(&self, scope: &Tenant, stage: &Stage) {
        let mut assets = HashMap::new();
        for (id, (conversation, seq, sent)) in &self.turns {
            let turn =
                scope.conversation(*conversation).turn(*id).unwrap_or_else(|e| panic!("{id} is lost: {e}"));
            assert_eq!(turn.seq, *seq, "{id} has moved");
            if turn.erased {
                assert!(self.erasing.contains(id), "{id} was erased by nobody");
            } else {
                assert_eq!(
                    Hash::of(original(scope, &turn, &mut assets).as_bytes()),
                    *sent,
                    "{id} is not what was sent"
                );
            }
        }
        let touched: HashSet<ConversationId> =
            self.heads.iter().map(|(conversation, ..)| *conversation).collect();
        for conversation in touched {
            scope
                .conversation(conversation)
                .log()
                .verify(None)
                .unwrap_or_else(|e| panic!("{conversation}: {e}"));
        }
        for (conversation, seq, hash) in &self.heads {
            let event = scope.conversation(*conversation).log().read(seq - 1, 1).unwrap();
            assert_eq!(event.first().map(|e| e.hash), Some(*hash), "{conversation} at seq {seq}");
        }
        for (id, status) in &self.ended {
            assert_eq!(scope.turn(*id).unwrap().status, *status, "{id}");
        }
        for (id, (conversation, text)) in &self.opened {
            let turn =
                scope.conversation(*conversation).turn(*id).unwrap_or_else(|e| panic!("{id} is lost: {e}"));
            assert_ne!(turn.status, Status::Pending, "{id} is still open");
            let said = words(&turn).unwrap();
            assert!(text.starts_with(&said), "{id} holds {said:?}, which is no beginning of {text:?}");
            if turn.status != Status::Interrupted {
                assert_eq!(said, *text, "{id} is {} but not whole", turn.status);
            }
        }
        for (conversation, old, new) in &self.superseded {
            let by = scope.conversation(*conversation).turn(*old).unwrap().superseded_by;
            assert_eq!(by.map(|by| by.to_string()), Some(new.to_string()), "{old}");
        }
        let left = if self.erased.is_empty() { HashSet::new() } else { marks(stage) };
        for (conversation, turn, mark) in &self.erased {
            assert!(scope.conversation(*conversation).turn(*turn).unwrap().erased, "{turn} came back");
            assert!(!left.contains(mark), "the erased words {mark} of {turn} are still in a file");
        }
    }
}

/// Every mark that stands in any file of the store. All of them in one pass, because there are many to look for.
fn marks(stage: &Stage) -> HashSet<String> {
    let mut found = HashSet::new();
    for path in files(stage.folder.path()) {
        let mut before = Vec::new();
        for piece in BufReader::new(File::open(path).unwrap()).split(b':') {
            let piece = piece.unwrap();
            if before.ends_with(b"mark") {
                found.insert(String::from_utf8_lossy(&piece).into_owned());
            }
            before = piece;
        }
    }
    found
}

/// The message as it was sent, payloads and all.
fn original(scope: &Tenant, turn: &Turn, known: &mut HashMap<ConversationId, Vec<asset::Asset>>) -> String {
    let stored = turn.message.as_ref().unwrap().get();
    if !stored.contains("asset_") {
        return stored.to_string();
    }
    let assets = known
        .entry(turn.conversation)
        .or_insert_with(|| scope.conversation(turn.conversation).assets().list().unwrap());
    let bytes = |id: &str| {
        let asset = assets.iter().find(|asset| asset.id == id).expect("its descriptor is there");
        Some(scope.assets().bytes(asset).expect("its bytes are there"))
    };
    asset::restore(stored, bytes).unwrap()
}

/// A client whose answer was lost asks again: the turn must be there once, whether or not the first time counted.
fn ask_again(scope: &Tenant, asked: &HashMap<String, (ConversationId, String)>) {
    for (key, (conversation, text)) in asked {
        let options = AppendOptions { idempotency_key: Some(key.clone()), ..AppendOptions::default() };
        let turns = vec![NewTurn::user(text)];
        let first =
            scope.conversation(*conversation).append_all(turns.clone()).with(options.clone()).wait().unwrap();
        let second = scope.conversation(*conversation).append_all(turns).with(options).wait().unwrap();
        assert!(second.repeated);
        assert_eq!(first.turns, second.turns);
        let after = first.turns[0].seq.saturating_sub(500);
        let near = scope.conversation(*conversation).log().read(after, 1000).unwrap();
        let count = near.iter().filter(|e| e.text().is_some_and(|body| body.contains(text))).count();
        assert_eq!(count, 1, "{key} was written {count} times");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed_at_any_moment() {
    let seed = seed(1);
    let _told = ToldOnFailure(seed);
    let mut dice = Dice::new(seed);
    let stage = Stage::new();
    let mut shared = stage.open().tenant(TENANT).unwrap().begin();
    let mut all = Told::default();
    let mut interrupted = 0;
    let rounds = rounds(ROUNDS);
    for round in 1..=rounds {
        let process = Process::start(
            "append",
            &[(STORE, stage.url()), (SHARED, shared.to_string()), (SEED, (seed * 1000 + round).to_string())],
        );
        // Most die at work, some while the store is being opened.
        if !dice.once_in(8) {
            process.wait_for("ready");
        }
        std::thread::sleep(Duration::from_micros(dice.roll(LIFE_MS_MAX * 1000) as u64));
        let mut told = Told::default();
        process.kill().iter().for_each(|line| told.line(line));

        let options = Options { patience: PATIENCE, ..Options::default() };
        let store = stage.open_with(options);
        let scope = store.tenant(TENANT).unwrap();
        ask_again(&scope, &told.asked);
        told.check(&scope, &stage);
        interrupted +=
            told.opened.len() - told.opened.keys().filter(|id| told.ended.contains_key(id)).count();
        all.join(told);
        if round % ROUNDS_BETWEEN_EXAMINATIONS == 0 {
            let doctor = scope.doctor(&mut |_| {}).unwrap();
            assert_eq!(doctor.findings, [], "round {round}");
            // All of a conversation is verified after each round it had a part in; a new one keeps that short.
            shared = scope.begin();
            println!("round {round}: {} events, {} assets", doctor.events, doctor.assets);
        }
        if round % ROUNDS_BETWEEN_FULL_CHECKS == 0 {
            all.check(&scope, &stage);
        }
    }
    let turns = all.turns.len();
    assert!(turns as u64 > rounds, "only {turns} turns were acknowledged: the children hardly worked");
    assert!(!marks(&stage).is_empty(), "nothing was looked for in the right way");
    assert!(interrupted > 0, "no stream was ever cut");
}

/// The views for people have every turn that the next process reads, with its words.
#[test]
fn a_store_that_was_killed_while_writing_can_be_read_with_sqlite3() {
    let stage = Stage::new();
    let shared = stage.open().tenant(TENANT).unwrap().begin();
    let process = Process::start(
        "append",
        &[(STORE, stage.url()), (SHARED, shared.to_string()), (SEED, seed(1).to_string())],
    );
    (0..60).for_each(|_| process.wait_for("turn"));
    process.kill();

    let sql = "select id, conversation, status, content from turns";
    let said = Command::new("sqlite3").args(["-readonly", "-json"]).arg(stage.path()).arg(sql).output();
    let said = said.expect("this needs the program sqlite3; ./test installs it");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&said.stdout).unwrap();
    let row = |turn: &Turn| {
        let is_it =
            |row: &&Value| row["id"] == json!(turn.id) && row["conversation"] == json!(turn.conversation);
        rows.iter().find(is_it).unwrap_or_else(|| panic!("{} is not in the view", turn.id)).clone()
    };

    let store = stage.open();
    let scope = store.tenant(TENANT).unwrap();
    let mut count = 0;
    for conversation in scope.list(ListQuery { limit: 1000, ..ListQuery::default() }).unwrap().data {
        let all = HistoryQuery { include_superseded: true, limit: 1000, ..HistoryQuery::default() };
        for turn in turns_of(scope.conversation(conversation.id).history(all).unwrap().data) {
            count += 1;
            let row = row(&Turn { conversation: conversation.id, ..turn.clone() });
            if row["status"] == "pending" {
                continue;
            }
            assert_eq!(row["status"], json!(turn.status));
            let content = match &row["content"] {
                Value::String(text) if text.starts_with('[') => serde_json::from_str(text).unwrap(),
                content => content.clone(),
            };
            let expected = turn.value().map(|message| message["content"].clone()).unwrap_or_default();
            assert_eq!(content, expected, "{}", turn.id);
        }
    }
    assert_eq!(count, rows.len());
}
