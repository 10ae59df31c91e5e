//! The views for people, read with the plain `sqlite3` program from a store that was killed while writing. The scenarios
//! are those of PostgreSQL, too.

use everturn_core::conversation::Settings;
use everturn_core::event::{Body, Draft, Visibility, kind};
use everturn_core::fact::{CorrectedBody, RetractedBody};
use everturn_core::id::{ConversationId, FactId, Key};
use everturn_core::time::Timestamp;
use everturn_core::turn::Turn;
use everturn_store::conformance::*;
use everturn_store::sqlite::Sqlite;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A store, and a way to ask it in SQL.
pub struct Store<'a> {
    pub m: Maker,
    pub store: &'a dyn Backend,
    pub ask: &'a dyn Fn(&str) -> Vec<Value>,
    /// Whether its tables lag behind the log.
    pub lags: bool,
}

impl Store<'_> {
    fn conversation(&self) -> Key {
        let key = self.m.key();
        create(self.store, &key, vec![self.m.created()]);
        key
    }

    fn ask(&self, sql: &str) -> Vec<Value> {
        (self.ask)(sql)
    }

    fn number(&self, sql: &str) -> i64 {
        self.ask(sql)[0]["n"].as_i64().unwrap()
    }

    /// Asserts the number of events that are only in the log.
    fn assert_lag(&self, expected: i64) {
        if self.lags {
            let lag = "select (select max(no) from events) - (select event from settled) as n";
            assert_eq!(self.number(lag), expected);
        }
    }
}

/// Runs a scenario on SQLite. Answers are those of `sqlite3` about the files as `kill -9` would leave them now.
fn in_sqlite(scenario: fn(&Store<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&folder.path().join("store.db"), Duration::ZERO).unwrap();
    let ask = |sql: &str| {
        let killed = tempfile::tempdir().unwrap();
        for name in ["store.db", "store.db-wal"] {
            std::fs::copy(folder.path().join(name), killed.path().join(name)).unwrap();
        }
        sqlite3(&killed.path().join("store.db"), sql)
    };
    scenario(&Store { m: Maker::default(), store: &store, ask: &ask, lags: true });
}

#[test]
fn turns_of_every_kind_are_in_the_view() {
    in_sqlite(turns_of_every_kind);
}

#[test]
fn a_private_turn_says_so() {
    in_sqlite(a_private_turn);
}

#[test]
fn the_words_and_the_speaker_of_every_shape_are_in_the_view() {
    in_sqlite(shapes);
}

#[test]
fn a_fork_has_the_turns_that_it_inherited_as_they_were() {
    in_sqlite(forks);
}

#[test]
fn facts_are_in_the_view_with_their_words() {
    in_sqlite(facts);
}

#[test]
fn an_expired_conversation_is_not_in_the_views() {
    in_sqlite(expired);
}

fn sqlite3(path: &Path, sql: &str) -> Vec<Value> {
    let mut command = Command::new("sqlite3");
    let said = command.args(["-readonly", "-json"]).arg(path).arg(sql).output();
    let said = said.expect("this needs the program sqlite3; ./test installs it");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    // Without rows it says nothing.
    serde_json::from_slice(&said.stdout).unwrap_or_default()
}

/// The fields of a turn that a view shows.
fn shown(turn: &Turn) -> Value {
    let turn = serde_json::to_value(turn).unwrap();
    let of = |name: &str| turn.get(name).cloned().unwrap_or_default();
    json!({
        "id": of("id"), "conversation": of("conversation"), "seq": of("seq"), "actor": of("actor"),
        "role": of("role"), "status": of("status"), "content": of("content"), "superseded_by": of("superseded_by"),
    })
}

const TURNS: &str = "select id, conversation, seq, actor, role, status, content, superseded_by from turns";

fn assert_same(s: &Store<'_>, key: &Key) {
    let mut turns = history(s.store, key);
    turns.sort_by_key(|turn| (turn.place, turn.seq));
    let expected: Vec<Value> = turns.iter().map(shown).collect();
    let mut found = s.ask(&format!("{TURNS} where conversation = '{}' order by place, seq", key.id));
    // What an open turn has said so far is compared below.
    found
        .iter_mut()
        .filter(|turn| turn["status"] == "pending")
        .for_each(|turn| turn["content"] = Value::Null);
    assert_eq!(found, expected, "{}", key.id);
}

pub fn turns_of_every_kind(s: &Store<'_>) {
    let (m, key) = (&s.m, s.conversation());
    let [one, two, three] = ["one", "two \"quoted\" 東京", "three"].map(|text| m.say(text));
    append(s.store, &key, vec![one.clone(), two.clone(), three.clone()]);
    let replacement = m.say("two!");
    let replaced = vec![replacement.clone(), m.supersede(turn_of(&two), turn_of(&replacement))];
    append(s.store, &key, replaced);
    let streamed = m.open();
    append(s.store, &key, vec![streamed.clone()]);
    done(s.store, chunk(&key, turn_of(&streamed), 0, "strea"));
    append(s.store, &key, vec![m.end(kind::COMMITTED, turn_of(&streamed), "streamed")]);
    done(s.store, m.erase(&key, &[turn_of(&three)]));
    let open = m.open();
    append(s.store, &key, vec![open.clone()]);
    // A chunk that was written again overlaps the one before; offsets are bytes.
    for (offset, text) in [(0, "Es war "), (7, "spät, "), (7, "spät, und"), (17, " kühl")] {
        done(s.store, chunk(&key, turn_of(&open), offset, text));
    }
    // Other events settle what was before them.
    s.assert_lag(0);
    append(s.store, &key, vec![m.say("not settled")]);
    append(s.store, &key, vec![m.say("nor this")]);
    s.assert_lag(2);
    assert_same(s, &key);
    let said =
        |id: String| s.ask(&format!("select content from turns where id = '{id}'"))[0]["content"].clone();
    assert_eq!(said(turn_of(&open).to_string()), "Es war spät, und kühl");
    assert_eq!(said(turn_of(&streamed).to_string()), "streamed");
    assert_eq!(said(turn_of(&three).to_string()), Value::Null, "erased");
    assert_eq!(said(turn_of(&two).to_string()), "two \"quoted\" 東京");
    let listed = s.ask("select id, tenant, turns, head_seq, parent from conversations");
    let times = s.number(
        "select count(*) as n from conversations where created <= began and began <= last_said and last_said <= updated",
    );
    assert_eq!(times, 1);
    let head = log(s.store, &key).last().unwrap().seq;
    let expected = json!([{"id": key.id, "tenant": "acme", "turns": 8, "head_seq": head, "parent": null}]);
    assert_eq!(json!(listed), expected);
    done(s.store, m.delete(&key));
    assert_eq!(s.ask("select * from turns"), Vec::<Value>::new(), "deleted");
    assert_eq!(s.ask("select * from conversations"), Vec::<Value>::new());
}

/// Private turns are in the view, and a query can leave them out.
pub fn a_private_turn(s: &Store<'_>) {
    let (m, key) = (&s.m, s.conversation());
    let body = json!({"message": {"role": "user", "content": "psst"}, "audience": ["bob"]}).to_string();
    let private = m.say("psst");
    let private =
        Draft { visibility: Visibility::Private, body: Body { text: body, ..private.body }, ..private };
    append(s.store, &key, vec![m.say("aloud"), private]);
    let found =
        s.ask("select content, visibility, cast(audience as text) as audience from turns order by place");
    let expected = json!([
        {"content": "aloud", "visibility": "public", "audience": null},
        {"content": "psst", "visibility": "private", "audience": "[\"bob\"]"},
    ]);
    assert_eq!(json!(found), expected);
}

/// A fork of a fork, each with changes to what it inherited, before and after the next one was made.
pub fn shapes(s: &Store<'_>) {
    let key = s.conversation();
    let picture = json!({"type": "image", "source": {"type": "url", "url": "x"}});
    let said = [
        (json!({"role": "user", "content": "plain"}), "user", json!("plain")),
        (
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "One."},
                {"type": "tool_use", "id": "c", "name": "ls", "input": {"text": "no"}}, {"type": "text", "text": "Two."}
            ]}),
            "assistant",
            json!("One.\nTwo."),
        ),
        (
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "a.txt"}]}),
            "tool",
            json!("a.txt"),
        ),
        (
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
                {"type": "text", "text": "b.txt"}, picture, {"type": "text", "text": "c.txt"}
            ]}]}),
            "tool",
            json!("b.txt\nc.txt"),
        ),
        (
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "d.txt"}, {"type": "text", "text": "and this?"}
            ]}),
            "user",
            json!("d.txt\nand this?"),
        ),
        (json!({"role": "tool", "tool_call_id": "c", "content": "e.txt"}), "tool", json!("e.txt")),
        (json!({"type": "function_call_output", "call_id": "c", "output": "f.txt"}), "tool", json!("f.txt")),
        (
            json!({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "g.txt"}]}),
            "tool",
            json!("g.txt"),
        ),
        (
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}),
            "assistant",
            json!("Done."),
        ),
        (json!({"role": "user", "content": [picture]}), "user", json!(null)),
        (json!({"role": "user", "content": null}), "user", json!(null)),
    ];
    let draft = |message: &Value| {
        s.m.turn("ada", everturn_core::message::role(message).unwrap(), &message.to_string())
    };
    let drafts = said.iter().map(|(message, ..)| draft(message)).collect();
    append(s.store, &key, drafts);
    let found = s.ask("select speaker, text from turns order by seq");
    let expected: Vec<Value> =
        said.iter().map(|(_, speaker, text)| json!({"speaker": speaker, "text": text})).collect();
    assert_eq!(found, expected);
}

pub fn forks(s: &Store<'_>) {
    let (m, root) = (&s.m, s.conversation());
    let said = ["one", "two", "three", "four"].map(|text| m.say(text));
    append(s.store, &root, said.to_vec());
    let open = m.open();
    append(s.store, &root, vec![open.clone()]);
    done(s.store, chunk(&root, turn_of(&open), 0, "half"));
    let (child, grandchild, sibling) = (m.key(), m.key(), m.key());
    done(s.store, m.fork(&child, &root, 6));
    let replace = |key: &Key, old: usize, text: &str| {
        let new = m.say(text);
        append(s.store, key, vec![new.clone(), m.supersede(turn_of(&said[old]), turn_of(&new))]);
    };
    replace(&child, 0, "one in the child");
    let at = log(s.store, &child).last().unwrap().seq;
    done(s.store, m.fork(&grandchild, &child, at));
    replace(&child, 1, "too late for the grandchild");
    replace(&root, 2, "too late for all");
    append(s.store, &root, vec![m.end(kind::COMMITTED, turn_of(&open), "whole, later")]);
    replace(&grandchild, 3, "four in the grandchild");
    done(s.store, m.fork(&sibling, &grandchild, 4));
    append(s.store, &sibling, vec![m.say("hello")]);
    done(s.store, m.erase(&root, &[turn_of(&said[1])]));
    append(s.store, &grandchild, vec![m.say("not settled")]);
    for key in [&root, &child, &grandchild, &sibling] {
        assert_same(s, key);
    }
    let parents = s.ask("select parent from conversations where parent is not null order by head_seq");
    assert_eq!(parents.len(), 3);
    let erased = s.number("select count(*) as n from turns where content is null and status = 'complete'");
    assert_eq!(erased, 4, "it is erased in each of them");
}

pub fn facts(s: &Store<'_>) {
    let (m, key) = (&s.m, s.conversation());
    let turn = m.say("I like tea. And rain.");
    append(s.store, &key, vec![turn.clone()]);
    let (tea, rain) = (m.learn(turn_of(&turn), "tea"), m.learn(turn_of(&turn), "rain"));
    append(s.store, &key, vec![tea.clone(), rain.clone()]);
    let fork = m.key();
    done(s.store, m.fork(&fork, &key, 4));
    let id = |draft: &Draft| FactId(draft.id.0);
    let correction = m.draft(kind::FACT_CORRECTED, "null");
    let body = CorrectedBody {
        fact: id(&correction),
        corrects: id(&tea),
        subject: None,
        predicate: None,
        object: Some("green tea".into()),
        confidence: 1.0,
        audience: Vec::new(),
    };
    let mut correction = correction;
    correction.body.text = serde_json::to_string(&body).unwrap();
    let retraction =
        m.event(kind::FACT_RETRACTED, &RetractedBody { fact: id(&rain), reason: None, audience: Vec::new() });
    append(s.store, &key, vec![correction.clone(), retraction]);
    let facts = |conversation: ConversationId| {
        s.ask(&format!(
            "select id, subject, predicate, object, source_turn, corrected_by, cast(retracted as integer) as retracted from conversation_facts
             where conversation = '{conversation}' order by seq"
        ))
    };
    let source = turn_of(&turn);
    let row = |fact: FactId, object: &str, source: Value, corrected_by: Value, retracted: u8| {
        json!({
            "id": fact, "subject": "ada", "predicate": "likes", "object": object, "source_turn": source,
            "corrected_by": corrected_by, "retracted": retracted,
        })
    };
    let expected = [
        row(id(&tea), "tea", json!(source), json!(id(&correction)), 0),
        row(id(&rain), "rain", json!(source), Value::Null, 1),
        row(id(&correction), "green tea", Value::Null, Value::Null, 0),
    ];
    assert_eq!(facts(key.id), expected);
    // As they were when the fork was made.
    let expected = [
        row(id(&tea), "tea", json!(source), Value::Null, 0),
        row(id(&rain), "rain", json!(source), Value::Null, 0),
    ];
    assert_eq!(facts(fork.id), expected);
    done(s.store, m.erase(&key, &[turn_of(&turn)]));
    let left = s.number("select count(*) as n from conversation_facts where object in ('tea', 'rain')");
    assert_eq!(left, 0, "erased with their turn");
}

/// Expired is gone for every reader the moment it is due, also where no process of ours comes by.
pub fn expired(s: &Store<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    let count =
        || s.number("select (select count(*) from conversations) + (select count(*) from turns) as n");
    for (ago_s, ttl, expected) in [(100, 60, 0), (100, 3600, 2)] {
        let (m, key) = (&s.m, s.m.key());
        let at = Timestamp(now - ago_s * 1_000_000);
        let settings = Settings { ttl: Some(Some(ttl)), ..Settings::default() };
        let created = Draft { at, ..m.event(kind::CREATED, &settings) };
        create(s.store, &key, vec![created, Draft { at, ..m.say("hello") }]);
        assert_eq!(count(), expected, "ttl {ttl}");
        // A turn in time that is not settled puts it off.
        if expected == 0 {
            append(s.store, &key, vec![Draft { at: Timestamp(now - 45_000_000), ..m.say("still here") }]);
            assert_eq!(count(), 3);
            done(s.store, m.delete(&key));
        }
    }
}
