//! Imports that are cut short, torn apart, repeated or disturbed: what is there in the end is the whole.

use super::{Claude, call, import, kept, said, stands};
use crate::child::{Process, given, tell};
use crate::dice::{Dice, ToldOnFailure, rounds, seed};
use crate::stage::{Short, Stage, memory, quiet, turns_of};
use everturn_core::id::ConversationId;
use everturn_engine::{Everturn, HistoryQuery, NewTurn, Order, Tenant};
use proptest::prelude::*;
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

const STORE: &str = "EVERTURN_TEST_STORE";
const FILE: &str = "EVERTURN_TEST_FILE";
/// Kills in a row, all on one store.
const ROUNDS: u64 = 4;
/// A child lives up to this long after it has opened the store.
const LIFE_MS_MAX: usize = 250;

/// A session with everything in it, drawn with dice.
fn drawn(dice: &mut Dice, steps: usize) -> Claude {
    let mut file = Claude::default();
    let mut known: Vec<String> = Vec::new();
    for n in 0..steps {
        // Mostly on from the newest, sometimes from anywhere, rarely from nowhere.
        let parent = match dice.roll(12) {
            0 if !known.is_empty() => Some(known[dice.roll(known.len())].clone()),
            1 => None,
            _ => known.last().cloned(),
        };
        let parent = parent.as_deref();
        let id = format!("n{n}");
        match dice.roll(8) {
            0 | 1 => file.user(&id, parent, &format!("question {n}")),
            2 | 3 => file.say(&id, parent, &format!("answer {n}")),
            4 => {
                // A message of several blocks, with answers in between.
                file.block(&id, parent, &format!("m{n}"), call(&format!("c{n}")), 1);
                file.result(&format!("{id}r"), Some(&id), &format!("c{n}"), "one");
                file.block(&format!("{id}b"), Some(&id), &format!("m{n}"), call(&format!("d{n}")), 2);
                file.result(&format!("{id}s"), Some(&format!("{id}b")), &format!("d{n}"), "two");
            }
            5 => file.other(json!({"type":"mode","mode":"normal","sessionId":"s-1"})),
            6 => {
                let rest = json!({"type":"system","subtype":"note","content":n});
                file.push(&id, parent, rest);
            }
            _ => {
                let rest = json!({"type":"user","isSidechain":true,"agentId":"ada","message":{"role":"user","content":id}});
                file.push(&id, parent, rest);
            }
        }
        known.push(id);
    }
    file
}

/// All conversations of a tenant, as far as they do not depend on when they were imported.
fn everything(scope: &Tenant) -> Vec<(ConversationId, Vec<String>, Vec<String>)> {
    let mut all: Vec<_> =
        scope.list(everturn_engine::ListQuery { limit: 1000, ..Default::default() }).unwrap().data;
    all.sort_by_key(|conversation| conversation.id);
    all.iter()
        .map(|conversation| {
            scope.conversation(conversation.id).log().verify(None).unwrap();
            (conversation.id, stands(scope, conversation.id), kept(scope, conversation.id))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever a session is like and wherever it was cut: its parts one after the other give what the whole gives, and the
    /// whole again gives nothing.
    #[test]
    fn parts_one_after_the_other_give_the_whole(seed in any::<u64>(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4)) {
        let file = drawn(&mut Dice::new(seed), 40);
        let text = file.text();
        let (_store, whole) = memory();
        let report = import(&whole, &text).unwrap();
        prop_assert_eq!(&report.problems, &Vec::<String>::new());
        prop_assert_eq!(import(&whole, &text).unwrap().added, 0);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
        cuts.sort_unstable();
        let (_store, parts) = memory();
        for cut in cuts {
            // A beginning that holds no whole line is refused.
            let _ = import(&parts, &text[..cut]);
        }
        import(&parts, &text).unwrap();
        prop_assert_eq!(everything(&parts), everything(&whole));
    }
}

/// A message that was half there when it was first imported stayed in a branch that had left it: the branch knew the half
/// only. Found by the test above with another seed.
#[test]
fn a_branch_leaves_the_newest_version_of_a_message() {
    let mut file = Claude::default();
    file.user("n3", None, "question 3");
    file.user("n12", Some("n3"), "question 12");
    file.block("n13", Some("n12"), "m13", call("c13"), 1);
    let half = file.text();
    file.block("n13b", Some("n13"), "m13", call("d13"), 2);
    file.user("n17", Some("n3"), "question 17");
    file.user("n35", Some("n12"), "question 35");
    let (_store, whole) = memory();
    let branch = import(&whole, &file.text()).unwrap().linked[0];
    assert_eq!(said(&whole, branch), ["user question 3", "user question 12", "user question 35"]);
    let (_store, parts) = memory();
    import(&parts, &half).unwrap();
    import(&parts, &file.text()).unwrap();
    assert_eq!(everything(&parts), everything(&whole));
}

/// A branch began behind the half of the message that had left it, and not before that.
#[test]
fn a_branch_begins_before_the_first_version_of_what_left_it() {
    let mut file = Claude::default();
    file.user("n14", None, "question 14");
    file.user("n15", Some("n14"), "question 15");
    file.block("n29", Some("n14"), "m29", call("c29"), 1);
    let half = file.text();
    file.block("n29b", Some("n29"), "m29", call("d29"), 2);
    file.say("n30", Some("n29b"), "answer 30");
    file.user("n37", Some("n15"), "question 37");
    let (_store, whole) = memory();
    let branch = import(&whole, &file.text()).unwrap().linked[0];
    assert_eq!(said(&whole, branch), ["user question 14", "user question 15", "user question 37"]);
    let (_store, parts) = memory();
    import(&parts, &half).unwrap();
    import(&parts, &file.text()).unwrap();
    assert_eq!(everything(&parts), everything(&whole));
}

pub fn import_until_killed() {
    let store = Everturn::open_with(&given(STORE), quiet()).unwrap();
    let scope = store.tenant("acme").unwrap();
    tell(format_args!("ready"));
    let file = BufReader::new(File::open(given(FILE)).unwrap());
    let report = scope.import(file, &mut |_| {}).unwrap();
    tell(format_args!("done\t{}", report.added));
}

#[test]
fn an_import_that_is_killed_again_and_again_gives_the_whole_in_the_end() {
    let seed = seed(1);
    let _told = ToldOnFailure(seed);
    let mut dice = Dice::new(seed);
    let stage = Stage::new();
    let path = stage.folder.path().join("session.jsonl");
    let text = drawn(&mut dice, 1000).text();
    std::fs::write(&path, &text).unwrap();
    let mut finished = 0;
    let rounds = rounds(ROUNDS);
    for _ in 0..rounds {
        let child = Process::start("import", &[(STORE, stage.url()), (FILE, path.display().to_string())]);
        child.wait_for("ready");
        std::thread::sleep(Duration::from_millis(dice.roll(LIFE_MS_MAX) as u64));
        finished += u64::from(child.kill().iter().any(|line| line.starts_with("done")));
    }
    assert!(finished < rounds, "no import was killed");
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    import(&scope, &text).unwrap();
    let (_store, whole) = memory();
    import(&whole, &text).unwrap();
    assert_eq!(everything(&scope), everything(&whole));
    assert_eq!(import(&scope, &text).unwrap().added, 0);
}

/// Reads a file, and lets somebody else say something in the middle of it.
struct Disturbed<'a> {
    scope: &'a Tenant,
    id: ConversationId,
    file: &'a [u8],
    said: bool,
}

impl Read for Disturbed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buffer)
    }
}

impl BufRead for Disturbed<'_> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if !self.said && self.scope.conversation(self.id).get().is_ok() {
            self.said = true;
            self.scope.say(self.id, NewTurn::user("in between"));
        }
        let piece = self.file.len().min(10_000);
        Ok(&self.file[..piece])
    }

    fn consume(&mut self, bytes: usize) {
        self.file = &self.file[bytes..];
    }
}

#[test]
fn what_is_said_meanwhile_is_not_in_the_way() {
    let (_store, whole) = memory();
    let text = drawn(&mut Dice::new(7), 600).text();
    let id = import(&whole, &text).unwrap().conversation.id;
    let (_store, scope) = memory();
    scope.import(Disturbed { scope: &scope, id, file: text.as_bytes(), said: false }, &mut |_| {}).unwrap();
    let mut now = stands(&scope, id);
    let at = now.iter().position(|turn| turn.contains("in between")).unwrap();
    assert!(at > 0 && at + 1 < now.len(), "it was said in the middle");
    now.remove(at);
    assert_eq!(now, stands(&whole, id));
}

#[test]
fn a_long_session_is_not_held_up_by_budgets_and_one_edit_can_take_the_place_of_hundreds() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u0", None, "first");
    for n in 1..4500 {
        file.user(&format!("u{n}"), Some(&format!("u{}", n - 1)), "on");
    }
    file.user("last", Some("u3600"), "from here on anew");
    let report = import(&scope, &file.text()).unwrap();
    let id = report.conversation.id;
    assert_eq!((report.turns, scope.conversation(id).get().unwrap().turns), (4501, 4501));
    let newest = HistoryQuery { order: Order::Descending, limit: 2, ..HistoryQuery::default() };
    let newest = turns_of(scope.conversation(id).history(newest).unwrap().data);
    assert!(newest[0].message.as_ref().unwrap().get().contains("from here on anew"));
    assert!(newest[1].metadata["claude_code"].get().contains(r#""uuid":"u3600""#));
    assert_eq!(import(&scope, &file.text()).unwrap().added, 0);
    scope.conversation(id).log().verify(None).unwrap();
}

#[test]
fn what_does_not_fit_into_a_turn_is_kept_beside_it() {
    let (_store, scope) = memory();
    let mut file = Claude::default();
    file.user("u1", None, "hi");
    let mut deep = json!(1);
    (0..98).for_each(|_| deep = json!([deep]));
    file.push(
        "u2",
        Some("u1"),
        json!({"type":"user","message":{"role":"user","content":"deep"},"toolUseResult":deep}),
    );
    file.other(json!({"type":"huge","sessionId":"s-1","text":"x".repeat(17_000_000)}));
    file.user("u3", Some("u2"), "still here");
    let report = import(&scope, &file.text()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let id = report.conversation.id;
    assert_eq!(said(&scope, id), ["user hi", "user still here"]);
    let assets = scope.conversation(id).assets().list().unwrap();
    assert_eq!(assets.len(), 2);
    let text = String::from_utf8(scope.assets().bytes(&assets[1]).unwrap()).unwrap();
    assert_eq!(text, file.lines[2]);
    assert_eq!(kept(&scope, id).iter().filter(|line| line.contains("asset_id")).count(), 2);
    assert_eq!(import(&scope, &file.text()).unwrap().added, 0);
}
