//! Reading order: what was edited stands where it stood, and what lost its partner leaves the prompt.

use crate::sample::{conversation_id, draft, link, turn_id};
use everturn_core::Error;
use everturn_core::chain::Head;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::{TenantName, TurnId};
use everturn_core::turn::{Role, Turn, TurnRow};
use everturn_core::write::{Changes, Turns, fold};
use everturn_views::reading::messages;
use everturn_views::state::Fold;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};

/// A random step of a conversation. The numbers choose among the existing turns.
#[derive(Clone, Debug)]
enum Step {
    Say,
    Call(u8),
    Answer(u8),
    /// A new turn takes the place of one that stands.
    Edit(u8, New),
    Open,
    /// An answer is generated anew: what it replaces goes when it opens.
    Regenerate(u8),
    Commit(u8),
    Abort(u8),
    /// The aborted turn names another, open or not, as its replacement.
    AbortFor(u8, u8),
    /// A new turn takes the place of an aborted one.
    Retry(u8),
}

/// Text of an edit.
#[derive(Clone, Copy, Debug)]
enum New {
    Words,
    TheSame,
    AnotherCall,
}

fn step() -> impl Strategy<Value = Step> {
    let new = prop_oneof![Just(New::Words), Just(New::TheSame), Just(New::AnotherCall)];
    prop_oneof![
        2 => Just(Step::Say),
        3 => (1..4u8).prop_map(Step::Call),
        5 => any::<u8>().prop_map(Step::Answer),
        4 => (any::<u8>(), new).prop_map(|(which, new)| Step::Edit(which, new)),
        2 => Just(Step::Open),
        2 => any::<u8>().prop_map(Step::Regenerate),
        3 => any::<u8>().prop_map(Step::Commit),
        1 => any::<u8>().prop_map(Step::Abort),
        2 => any::<(u8, u8)>().prop_map(|(which, by)| Step::AbortFor(which, by)),
        1 => any::<u8>().prop_map(Step::Retry),
    ]
}

/// A plain account of the same: which turn is read at which place.
#[derive(Default)]
struct Account {
    drafts: Vec<Draft>,
    standing: BTreeMap<u64, u64>,
    /// Turns and their places.
    open: Vec<(u64, u64)>,
    aborted: Vec<(u64, u64)>,
    said: BTreeMap<u64, Value>,
    /// Calls that have no result, edited away or not.
    calls: Vec<String>,
    made: usize,
}

fn pick<T>(list: &[T], which: u8) -> Option<usize> {
    (!list.is_empty()).then(|| which as usize % list.len())
}

impl Account {
    fn add(&mut self, kind: &'static str, turn: Option<u64>, body: Value) -> u64 {
        let seq = self.drafts.len() as u64 + 1;
        let turn = turn.unwrap_or(seq);
        let draft = Draft { turn: Some(turn_id(turn)), ..draft(seq, kind, body.to_string()) };
        self.drafts.push(Draft { role: Some(Role::Assistant), ..draft });
        seq
    }

    fn say(&mut self, message: Value) -> u64 {
        let seq = self.add(kind::MESSAGE, None, json!({"message": message}));
        self.said.insert(seq, message);
        seq
    }

    fn call(&mut self, count: u8) -> Value {
        let ids: Vec<String> = (0..count).map(|n| format!("c{}_{n}", self.made)).collect();
        self.made += 1;
        self.calls.extend(ids.clone());
        let call = |id: &String| json!({"id": id, "function": {"name": "ls", "arguments": "{}"}});
        json!({"role": "assistant", "content": null, "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
    }

    fn superseded(&mut self, turn: u64, by: u64) {
        self.add(kind::SUPERSEDED, Some(turn), json!({"by": turn_id(by)}));
    }

    fn at(&self, which: u8) -> Option<(u64, u64)> {
        let places: Vec<_> = self.standing.iter().collect();
        pick(&places, which).map(|n| (*places[n].0, *places[n].1))
    }

    fn take(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Say => {
                let seq = self.say(json!({"role": "user", "content": "hi"}));
                self.standing.insert(seq, seq);
            }
            Step::Call(count) => {
                let message = self.call(count);
                let seq = self.say(message);
                self.standing.insert(seq, seq);
            }
            Step::Answer(which) => {
                let id = self.calls.remove(pick(&self.calls, which)?);
                let seq = self.say(json!({"role": "tool", "tool_call_id": id, "content": "done"}));
                self.standing.insert(seq, seq);
            }
            Step::Edit(which, new) => {
                let (place, old) = self.at(which)?;
                let message = match (new, &self.said[&old]) {
                    (New::TheSame, said) => said.clone(),
                    (New::AnotherCall, said) if said["role"] == "assistant" => self.call(1),
                    (_, said) => {
                        json!({"role": said["role"].as_str().unwrap().replace("tool", "user"), "content": "no"})
                    }
                };
                let new = self.say(message);
                self.superseded(old, new);
                self.standing.insert(place, new);
            }
            Step::Open => {
                let seq = self.add(kind::OPENED, None, json!({}));
                self.open.push((seq, seq));
            }
            Step::Regenerate(which) => {
                let (place, old) = self.at(which)?;
                let seq = self.add(kind::OPENED, None, json!({}));
                self.superseded(old, seq);
                self.standing.remove(&place);
                self.open.push((seq, place));
            }
            Step::Commit(which) => {
                let (turn, place) = self.open.remove(pick(&self.open, which)?);
                let message = self.call(1);
                self.add(kind::COMMITTED, Some(turn), json!({"message": message}));
                self.said.insert(turn, message);
                self.standing.insert(place, turn);
            }
            Step::Abort(which) => {
                let aborted = self.open.remove(pick(&self.open, which)?);
                self.add(
                    kind::ABORTED,
                    Some(aborted.0),
                    json!({"message": {"role": "assistant", "content": "h"}}),
                );
                self.aborted.push(aborted);
            }
            Step::AbortFor(which, by) => {
                let (turn, place) = self.open.remove(pick(&self.open, which)?);
                let open = pick(&self.open, by).filter(|_| by % 2 == 0);
                let named = open.map(|n| self.open[n].0).or(self.at(by).map(|(_, turn)| turn));
                self.add(kind::ABORTED, Some(turn), json!({}));
                let Some(named) = named else {
                    self.aborted.push((turn, place));
                    return None;
                };
                self.superseded(turn, named);
                match open {
                    Some(n) => self.open[n].1 = self.open[n].1.min(place),
                    None => {
                        let (was, _) = self.at(by)?;
                        self.standing.remove(&was);
                        self.standing.insert(was.min(place), named);
                    }
                }
            }
            Step::Retry(which) => {
                let (turn, place) = self.aborted.remove(pick(&self.aborted, which)?);
                let new = self.say(json!({"role": "assistant", "content": "again"}));
                self.superseded(turn, new);
                self.standing.insert(place, new);
            }
        }
        Some(())
    }

    fn events(&self) -> Vec<Event> {
        let id = conversation_id(1);
        link(id, Head::genesis(id), self.drafts.clone())
    }
}

struct Nothing;

impl Turns for Nothing {
    fn turn(&self, _: TurnId) -> Result<Option<TurnRow>, Error> {
        Ok(None)
    }
}

/// The turns as a store reads them, in the order of the log.
fn turns(events: &[Event]) -> Vec<Turn> {
    let id = conversation_id(1);
    let tenant = TenantName::new("default").unwrap();
    let mut conversation = Conversation::new(id, tenant, events[0].at, Head::genesis(id));
    let mut changes = Changes::default();
    events.iter().for_each(|event| fold(&mut conversation, event, &mut changes, &Nothing).unwrap());
    let rows: BTreeMap<u64, TurnRow> = changes.turns.into_iter().map(|row| (row.seq, row)).collect();
    let turn = |row: TurnRow| {
        let content = row.content_seq.unwrap_or(row.seq) as usize;
        Turn::read(id, row, &events[content - 1])
    };
    rows.into_values().map(turn).collect()
}

/// The current turns in reading order.
fn standing(mut turns: Vec<Turn>) -> Vec<Turn> {
    turns.retain(|turn| turn.superseded_by.is_none());
    turns.sort_by_key(|turn| turn.place);
    turns
}

fn ids(message: &Value) -> Vec<&str> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls.filter_map(|call| call["id"].as_str()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// However turns are edited, aborted and generated anew, each is read where the first of its chain stood; and the
    /// state, which sees one event at a time, says the same.
    #[test]
    fn a_turn_is_read_where_the_one_that_it_replaces_stood(steps in prop::collection::vec(step(), 1..50)) {
        let mut account = Account::default();
        for step in steps {
            account.take(step);
        }
        prop_assume!(!account.drafts.is_empty());
        let events = account.events();
        let turns = turns(&events);
        let mut read: Vec<TurnId> = standing(turns.clone()).iter().map(|turn| turn.id).collect();
        let open: Vec<TurnId> = account.open.iter().map(|(turn, _)| turn_id(*turn)).collect();
        read.retain(|turn| !open.contains(turn));
        let wanted: Vec<TurnId> = account.standing.values().map(|turn| turn_id(*turn)).collect();
        prop_assert_eq!(&read, &wanted);
        let mut fold = Fold::new();
        events.iter().for_each(|event| fold.apply(event));
        prop_assert_eq!(fold.recent.iter().map(|place| place.turn).collect::<Vec<_>>(), wanted);
        let places: Vec<u64> = fold.recent.iter().map(|place| place.place).collect();
        prop_assert_eq!(places, account.standing.keys().copied().collect::<Vec<_>>());
        let open: Vec<(TurnId, u64)> = fold.open.iter().map(|place| (place.turn, place.place)).collect();
        prop_assert_eq!(open, account.open.iter().map(|(turn, place)| (turn_id(*turn), *place)).collect::<Vec<_>>());
    }

    /// Every result has its call before it, every call its result unless it never had one; nothing else leaves.
    #[test]
    fn what_lost_its_partner_to_an_edit_leaves_the_prompt(steps in prop::collection::vec(step(), 1..50)) {
        let mut account = Account::default();
        for step in steps {
            account.take(step);
        }
        prop_assume!(!account.drafts.is_empty());
        let turns = turns(&account.events());
        let prompt: Vec<Value> = messages(&turns).unwrap().iter().map(|(_, message)| message.value().clone()).collect();
        let mut waiting = HashSet::new();
        for message in &prompt {
            waiting.extend(ids(message));
            if let Some(id) = message["tool_call_id"].as_str() {
                prop_assert!(waiting.remove(id), "the result of {} has no call before it: {:#?}", id, prompt);
            }
        }
        let never_answered: HashSet<&str> = account.calls.iter().map(String::as_str).collect();
        prop_assert!(waiting.is_subset(&never_answered), "{:?} lost their results: {:#?}", waiting, prompt);
        let kept = |message: &Value| message["content"].is_string() && message.get("tool_call_id").is_none();
        let stood = account.standing.values().map(|turn| &account.said[turn]);
        prop_assert_eq!(prompt.iter().filter(|m| kept(m)).count(), stood.filter(|m| kept(m)).count());
    }
}

/// `Q1 A1 Q2 A2` with another Q1 was read as `A1 Q2 A2 Q1'`.
#[test]
fn an_edit_keeps_its_place() {
    let mut account = Account::default();
    let said = |who: &str, text: &str| json!({"role": who, "content": text});
    let first = account.say(said("user", "Q1"));
    for (who, text) in [("assistant", "A1"), ("user", "Q2"), ("assistant", "A2")] {
        account.say(said(who, text));
    }
    let edited = account.say(said("user", "Q1'"));
    account.superseded(first, edited);
    let again = account.say(said("user", "Q1''"));
    account.superseded(edited, again);
    let turns = turns(&account.events());
    let read: Vec<String> =
        messages(&turns).unwrap().iter().map(|(_, m)| m.value()["content"].to_string()).collect();
    assert_eq!(read.join(" "), r#""Q1''" "A1" "Q2" "A2""#);
}

/// A block of a message leaves without a byte of the rest being touched.
#[test]
fn of_several_results_in_one_message_only_the_lost_one_leaves() {
    let mut account = Account::default();
    let call = |ids: &[&str]| {
        let block = |id: &&str| json!({"type": "tool_use", "id": id, "name": "ls", "input": {}});
        json!({"role": "assistant", "content": ids.iter().map(block).collect::<Vec<_>>()})
    };
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": 1.50});
    let both = account.say(call(&["a", "b"]));
    account.say(json!({"role": "user", "content": [result("a"), result("b")]}));
    let one = account.say(call(&["b"]));
    account.superseded(both, one);
    let turns = turns(&account.events());
    let read: Vec<Value> = messages(&turns).unwrap().iter().map(|(_, m)| m.value().clone()).collect();
    assert_eq!(read, [call(&["b"]), json!({"role": "user", "content": [result("b")]})]);
}

/// Two aborted turns that name each other are read nowhere.
#[test]
fn turns_that_replace_each_other_do_not_stand() {
    let mut account = Account::default();
    for _ in 0..2 {
        account.add(kind::OPENED, None, json!({}));
    }
    for (turn, by) in [(1, 2), (2, 1)] {
        account.add(kind::ABORTED, Some(turn), json!({}));
        account.superseded(turn, by);
    }
    assert!(standing(turns(&account.events())).is_empty());
}
