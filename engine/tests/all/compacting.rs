//! Compaction: summaries roll forward, nothing is lost, and what goes wrong leaves the log as it was.

use crate::stage::{PATIENCE, Short, Stage, memory, quiet, refused};
use everturn_core::approval::{Approval, ApprovalBody};
use everturn_core::conversation::{Conversation, Retention, Settings};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::model::Summarizer;
use everturn_engine::{
    ApprovalOutcome, CompactOptions, ContextOptions, Error, Everturn, NewTurn, Options, Tenant, Update,
};
use everturn_views::compaction::Checkpoint;
use everturn_views::state::ToolBody;
use serde_json::json;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

pub fn policy(name: &str, json: serde_json::Value) -> Settings {
    let mut settings = Settings::default();
    settings.policy.insert(name.into(), Raw::of(&json).unwrap());
    settings
}

/// A conversation of so many turns, each with a name of its own.
pub fn talk(scope: &Tenant, id: ConversationId, turns: usize) {
    for n in 0..turns {
        let turn = match n % 2 {
            0 => NewTurn::user(&format!("Please look at src/part_{n}.rs, it takes {n}17 ms.")).by("ana"),
            _ => NewTurn::assistant(&format!("I changed src/part_{n}.rs and the tests pass.")).by("gpt"),
        };
        scope.say(id, turn);
    }
}

pub fn by_hand(keep_last: usize) -> CompactOptions {
    CompactOptions { keep_last: Some(keep_last), ..CompactOptions::default() }
}

fn shown(conversation: &Conversation) -> Option<u64> {
    conversation.checkpoint.map(|at| at.through_seq)
}

#[test]
fn by_default_fifty_one_turns_make_the_oldest_half_a_summary_in_the_background() {
    let store = Everturn::open("memory:").unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let mut follow = scope.conversation(id).subscribe(0).unwrap();
    talk(&scope, id, 51);
    let compaction = loop {
        match follow.recv_timeout(PATIENCE).unwrap().expect("the compaction comes") {
            Update::Event(event) if event.kind == "compaction" => break event,
            _ => {}
        }
    };
    // The first event began the conversation, so the twenty-fifth turn is at 26.
    assert_eq!(compaction.seq, 53);
    let after = scope.conversation(id).get().unwrap();
    assert_eq!((shown(&after), after.summarized_through), (Some(26), Some(scope.turns(id)[24].id)));
    let state = scope.conversation(id).state().read().unwrap();
    assert_eq!(state.recent_turn_ids.len(), 26);
    assert!(state.checkpoint.unwrap().relevant_files.contains(&"src/part_3.rs".to_string()));
    assert_eq!(scope.turns(id).len(), 51, "the history keeps every turn");
    scope.conversation(id).log().verify(None).unwrap();
}

#[test]
fn eight_thousand_tokens_make_one_due_as_well_but_never_what_was_said_last() {
    let store = Everturn::open("memory:").unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let mut follow = scope.conversation(id).subscribe(0).unwrap();
    let long = "These are many words about nothing in particular. ".repeat(1000);
    scope.say(id, NewTurn::user(&long));
    scope.say(id, NewTurn::assistant("Understood."));
    loop {
        match follow.recv_timeout(PATIENCE).unwrap().expect("the compaction comes") {
            Update::Event(event) if event.kind == "compaction" => break,
            _ => {}
        }
    }
    assert_eq!(shown(&scope.conversation(id).get().unwrap()), Some(2), "the long turn, and not the answer");
}

#[test]
fn a_policy_without_auto_is_left_alone_and_can_be_compacted_by_hand() {
    let stage = Stage::new();
    let id = {
        let store = stage.open_with(Options::default());
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin_with(policy("compaction", json!({"auto": false, "max_turns": 4}))).id;
        talk(&scope, id, 20);
        id
    };
    // The store was closed, and with it the last look at what changed was taken.
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    assert_eq!(shown(&scope.conversation(id).get().unwrap()), None);
    assert_eq!(
        scope.conversation(id).compaction().compact(CompactOptions::default()).unwrap().covers.turns,
        10
    );
}

#[test]
fn a_dry_run_shows_what_would_happen_and_writes_nothing() {
    let (_store, scope) = memory();
    let id = scope.begin();
    talk(&scope, id, 10);
    let before = scope.head(id);
    let would =
        scope.conversation(id).compaction().compact(CompactOptions { dry_run: true, ..by_hand(2) }).unwrap();
    assert_eq!((would.covers.turns, would.event, scope.head(id)), (8, None, before));
    let did = scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    assert_eq!((did.checkpoint, did.covers), (would.checkpoint, would.covers));
}

/// A compaction stopped after 4,093 turns of 20,000 and did not say so.
#[test]
fn a_compaction_of_very_many_turns_covers_them_all_in_one_checkpoint() {
    let stage = Stage::new();
    let on_disk = stage.open_with(quiet());
    let tenant = on_disk.tenant("acme").unwrap();
    for (_store, scope) in [memory(), (on_disk, tenant)] {
        let unbounded = json!({"max_messages": null, "max_events": null});
        let begun = scope.begin_with(policy("budget", unbounded));
        let chat = scope.conversation(begun.id);
        let said = |n: u64| NewTurn::user(&format!("Please look at src/part_{n}.rs."));
        for batch in 0..9 {
            chat.append_all((0..500).map(|n| said(batch * 500 + n))).wait().unwrap();
        }
        // The first event began the conversation.
        let half = chat.compaction().compact(CompactOptions { dry_run: true, ..by_hand(0) }).unwrap();
        assert_eq!((half.event, half.covers.turns), (None, 4500));
        let half = CompactOptions { dry_run: true, ..CompactOptions::default() };
        assert_eq!(chat.compaction().compact(half).unwrap().covers.turns, 2250);
        assert_eq!(chat.compaction().compact(by_hand(4400)).unwrap().covers.turns, 100);
        assert!(chat.compaction().revert().unwrap().checkpoint.is_none());
        let made = chat.compaction().compact(by_hand(3)).unwrap();
        assert_eq!((made.covers.from_seq, made.covers.to_seq, made.covers.turns), (2, 4498, 4497));
        assert!(made.tokens_before > 40_000, "{}", made.tokens_before);
        let context = chat.contexts().build(&ContextOptions::new(4000)).unwrap();
        assert!(context.messages.iter().any(|one| one.get().contains("src/part_4499.rs")));
        // One compaction, taken back at once.
        let reverted = chat.compaction().revert().unwrap();
        assert!(reverted.checkpoint.is_none());
    }
}

#[test]
fn each_checkpoint_continues_the_one_before_and_can_be_taken_back() {
    let (_store, scope) = memory();
    let id = scope.begin();
    talk(&scope, id, 8);
    scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    let first = scope.conversation(id).get().unwrap();
    talk(&scope, id, 8);
    let second = scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    assert_eq!((second.covers.from_seq, second.covers.turns), (8, 8), "only what is new since the first");
    assert!(
        second.checkpoint.relevant_files.contains(&"src/part_0.rs".to_string()),
        "and what the first knew"
    );
    let back = scope.conversation(id).compaction().revert().unwrap();
    assert_eq!((back.checkpoint, back.summarized_through), (first.checkpoint, first.summarized_through));
    assert_eq!(scope.conversation(id).state().read().unwrap().recent_turn_ids.len(), 10);
    assert_eq!(scope.conversation(id).compaction().revert().unwrap().checkpoint, None);
    refused(scope.conversation(id).compaction().revert(), "compaction.none", "no compaction to revert");
    // It can be done again, and everything that was derived can be made again.
    scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    scope.conversation(id).log().verify(None).unwrap();
}

#[test]
fn what_is_derived_can_be_made_again_after_compactions_and_reverts() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    talk(&scope, id, 12);
    scope.conversation(id).compaction().compact(by_hand(6)).unwrap();
    scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    scope.conversation(id).compaction().revert().unwrap();
    scope.conversation(id).state().pin("branch", Raw::of(&"main").unwrap()).wait().unwrap();
    let (before, state) =
        (scope.conversation(id).get().unwrap(), scope.conversation(id).state().read().unwrap());
    store.rebuild().unwrap();
    assert_eq!(
        (scope.conversation(id).get().unwrap(), scope.conversation(id).state().read().unwrap()),
        (before, state)
    );
}

#[test]
fn a_call_stays_with_its_result_and_what_is_pending_is_never_covered() {
    let (_store, scope) = memory();
    let id = scope.begin();
    talk(&scope, id, 4);
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "deploy", "arguments": "{\"to\":\"staging\"}"}}]});
    let call = scope.say(id, NewTurn { message: call.to_string(), ..NewTurn::default() });
    talk(&scope, id, 4);
    let covered = scope.conversation(id).compaction().compact(by_hand(1)).unwrap().covers;
    assert!(covered.to_seq < call.seq, "the call has no result yet");
    let state = scope.conversation(id).state().read().unwrap();
    assert_eq!(
        (state.pending_tools[0].tool_name.as_str(), state.pending_tools[0].since_seq),
        ("deploy", call.seq)
    );
    assert_eq!(state.pending_tools[0].summary, r#"{"to":"staging"}"#);
    refused(
        scope.conversation(id).compaction().compact(by_hand(1)),
        "compaction.nothing",
        &format!("pending since seq {}", call.seq),
    );
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "done"});
    scope.say(id, NewTurn { message: result.to_string(), ..NewTurn::default() });
    assert_eq!(
        scope.conversation(id).state().read().unwrap().pending_tools,
        [],
        "gone at the very next read"
    );
    // The result is the last turn: with one turn kept, the call must stay as well.
    assert!(scope.conversation(id).compaction().compact(by_hand(1)).is_err());
    talk(&scope, id, 2);
    assert!(scope.conversation(id).compaction().compact(by_hand(1)).unwrap().covers.to_seq > call.seq);
}

#[test]
fn an_approval_a_started_tool_and_an_open_turn_hold_it_back_until_they_are_answered() {
    let (_store, scope) = memory();
    let id = scope.begin();
    talk(&scope, id, 2);
    let ask = ApprovalBody {
        approval_id: "a1".into(),
        question: Some("Deploy to production?".into()),
        ..ApprovalBody::default()
    };
    let asked = scope.conversation(id).state().request_approval(ask, None).wait().unwrap().seq;
    let tool = || ToolBody {
        tool_call_id: "t1".into(),
        tool_name: Some("backup".into()),
        summary: Some("12 GB".into()),
    };
    scope.conversation(id).state().tool_started(tool()).wait().unwrap();
    let open = scope.conversation(id).open(Default::default()).wait().unwrap();
    talk(&scope, id, 6);
    assert!(scope.conversation(id).compaction().compact(by_hand(1)).unwrap().covers.to_seq < asked);
    let state = scope.conversation(id).state().read().unwrap();
    assert_eq!(state.pending_approvals[0].question.as_deref(), Some("Deploy to production?"));
    assert_eq!((state.pending_tools[0].summary.as_str(), &state.open_turns[..]), ("12 GB", &[open.id][..]));
    let said = state.render();
    assert!(said.contains("Deploy to production? (a1)") && said.contains("backup (t1): 12 GB"), "{said}");
    refused(
        scope.conversation(id).compaction().compact(by_hand(1)),
        "compaction.nothing",
        &format!("pending since seq {asked}"),
    );
    let approved =
        ApprovalOutcome { approval_id: "a1".into(), state: Approval::Approved, actor: None, reason: None };
    scope.conversation(id).state().resolve_approval(approved).wait().unwrap();
    scope.conversation(id).state().tool_finished(tool()).wait().unwrap();
    scope.conversation(id).open_turn(open.id).commit(NewTurn::assistant("said")).wait().unwrap();
    let state = scope.conversation(id).state().read().unwrap();
    assert_eq!((state.pending_approvals.len(), state.pending_tools.len(), state.open_turns.len()), (0, 0, 0));
    assert!(scope.conversation(id).compaction().compact(by_hand(1)).unwrap().covers.to_seq > open.seq);
}

/// A summarizer whose answers are scripted.
struct FakeSummarizer {
    answers: Mutex<Vec<FakeAnswer>>,
    asked: Mutex<Vec<String>>,
}

enum FakeAnswer {
    Says(String),
    Fails,
    Hangs,
    /// Says it has been asked, and waits until it may answer.
    WaitsFor(Sender<()>, Receiver<()>, String),
}

impl FakeSummarizer {
    fn new(answers: Vec<FakeAnswer>) -> Arc<FakeSummarizer> {
        Arc::new(FakeSummarizer { answers: Mutex::new(answers), asked: Mutex::default() })
    }

    fn options(self: &Arc<FakeSummarizer>) -> Options {
        let summarizers = BTreeMap::from([("default".to_string(), self.clone() as Arc<dyn Summarizer>)]);
        Options { summarizers, ..quiet() }
    }
}

impl Summarizer for FakeSummarizer {
    fn name(&self) -> String {
        "fake-1".into()
    }

    fn summarize(
        &self,
        system: &str,
        _: &str,
    ) -> Pin<Box<dyn Future<Output = Result<String, Error>> + Send + 'static>> {
        self.asked.lock().unwrap().push(system.to_string());
        match self.answers.lock().unwrap().remove(0) {
            FakeAnswer::Says(text) => Box::pin(async { Ok(text) }),
            FakeAnswer::Fails => Box::pin(async { Err(Error::busy("model.unavailable", "500")) }),
            FakeAnswer::Hangs => Box::pin(std::future::pending()),
            FakeAnswer::WaitsFor(asked, may, text) => Box::pin(async move {
                asked.send(()).unwrap();
                may.recv().unwrap();
                Ok(text)
            }),
        }
    }
}

pub fn good(goal: &str) -> String {
    serde_json::to_string(&Checkpoint {
        goal: goal.into(),
        handoff_md: "All is well.".into(),
        ..Checkpoint::default()
    })
    .unwrap()
}

fn with_model(
    answers: Vec<FakeAnswer>,
    settings: Settings,
) -> (Everturn, Tenant, ConversationId, Arc<FakeSummarizer>) {
    let model = FakeSummarizer::new(answers);
    let store = Everturn::open_with("memory:", model.options()).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(settings).id;
    talk(&scope, id, 8);
    (store, scope, id, model)
}

#[test]
fn a_model_writes_the_checkpoint_and_identifiers_that_it_lost_are_added() {
    let (_store, scope, id, _) = with_model(vec![FakeAnswer::Says(good("Fix it"))], Settings::default());
    let compacted = scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    assert_eq!((compacted.summarizer.as_str(), compacted.checkpoint.goal.as_str()), ("fake-1", "Fix it"));
    let names = [compacted.checkpoint.critical_identifiers, compacted.checkpoint.relevant_files].concat();
    assert!(names.iter().any(|name| name == "src/part_3.rs"), "{names:?}");
    assert!(names.iter().any(|name| name == "217 ms"), "{names:?}");
}

#[test]
fn a_model_that_answers_garbage_is_told_so_once_and_then_the_checkpoint_is_extracted() {
    let answers =
        vec![FakeAnswer::Says("Sure! Here is your summary.".into()), FakeAnswer::Says("{\"goal\":1}".into())];
    let (_store, scope, id, model) = with_model(answers, Settings::default());
    assert_eq!(scope.conversation(id).compaction().compact(by_hand(2)).unwrap().summarizer, "extractive");
    let asked = model.asked.lock().unwrap();
    assert!(asked.len() == 2 && asked[1].contains("Your previous answer was refused:"), "{asked:?}");
}

#[test]
fn the_second_attempt_of_a_model_counts() {
    let answers = vec![FakeAnswer::Fails, FakeAnswer::Says(good("Second"))];
    let (_store, scope, id, _) = with_model(answers, Settings::default());
    assert_eq!(scope.conversation(id).compaction().compact(by_hand(2)).unwrap().checkpoint.goal, "Second");
}

#[test]
fn a_model_that_hangs_or_fails_leaves_the_log_as_it_was_until_there_is_a_checkpoint() {
    let settings = policy("compaction", json!({"timeout_s": 1}));
    let (_store, scope, id, _) = with_model(vec![FakeAnswer::Hangs, FakeAnswer::Fails], settings);
    let before = scope.conversation(id).get().unwrap().head.seq;
    let compacted = scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    assert_eq!(
        (compacted.summarizer.as_str(), scope.conversation(id).get().unwrap().head.seq),
        ("extractive", before + 1)
    );
}

#[test]
fn two_compactions_at_once_give_one_winner_and_no_lost_turn() {
    let ((asked, was_asked), (go, may)) = (channel(), channel());
    let answers = vec![FakeAnswer::WaitsFor(asked, may, good("Too late"))];
    let (_store, scope, id, _) = with_model(answers, Settings::default());
    let slow = scope.clone();
    let slow = std::thread::spawn(move || slow.conversation(id).compaction().compact(by_hand(2)));
    was_asked.recv_timeout(PATIENCE).unwrap();
    let winner = scope
        .conversation(id)
        .compaction()
        .compact(CompactOptions { extractive: true, ..by_hand(4) })
        .unwrap();
    go.send(()).unwrap();
    refused(slow.join().unwrap(), "compaction.stale", "another compaction finished first");
    let after = scope.conversation(id).get().unwrap();
    assert_eq!(after.checkpoint.map(|at| at.event), winner.event);
    assert_eq!(
        scope.conversation(id).state().read().unwrap().recent_turn_ids.len(),
        4,
        "covered by the winner, or said verbatim"
    );
}

#[test]
fn a_summary_of_a_part_touches_nothing() {
    let (_store, scope) = memory();
    let id = scope.begin();
    talk(&scope, id, 10);
    let (before, state) = (scope.head(id), scope.conversation(id).state().read().unwrap());
    let summary = scope.conversation(id).compaction().summarize(3, 6, None).unwrap();
    assert_eq!((summary.covers.from_seq, summary.covers.to_seq, summary.covers.turns), (3, 6, 4));
    assert!(summary.checkpoint.relevant_files.contains(&"src/part_3.rs".to_string()));
    assert!(!summary.checkpoint.relevant_files.contains(&"src/part_8.rs".to_string()));
    assert_eq!((scope.head(id), scope.conversation(id).state().read().unwrap()), (before, state));
    refused(
        scope.conversation(id).compaction().summarize(500, 600, None),
        "summarize.empty",
        "no turns between",
    );
}

#[test]
fn with_retention_audit_only_the_words_go_when_a_compaction_covers_them_and_hashes_stay() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin_with(Settings { retention: Some(Retention::AuditOnly), ..Settings::default() }).id;
    let secret = "the violet submarine leaves before dawn and nobody must know the harbour it leaves from";
    scope.say(id, NewTurn::user(secret));
    talk(&scope, id, 6);
    let compacted = scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    assert_eq!(compacted.erased, 5);
    let turns = scope.turns(id);
    assert_eq!(turns.iter().filter(|turn| turn.erased).count(), 5);
    scope.conversation(id).log().verify(None).unwrap();
    // The second compaction works with what is left.
    talk(&scope, id, 4);
    assert_eq!(scope.conversation(id).compaction().compact(by_hand(2)).unwrap().erased, 4);
}

/// An extracted summary repeats whole sentences. Erasing the turn alone left its words in the compaction.
#[test]
fn erasing_a_turn_takes_its_words_out_of_the_summaries_as_well() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let secret = "We decided to use the violet submarine codeword for src/secret_harbour.rs.";
    let turn = scope.say(id, NewTurn::user(secret)).id;
    talk(&scope, id, 6);
    scope.conversation(id).compaction().compact(by_hand(4)).unwrap();
    talk(&scope, id, 2);
    scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    assert!(
        scope.conversation(id).state().read().unwrap().render().contains("violet submarine"),
        "the summary repeats it"
    );
    let through = shown(&scope.conversation(id).get().unwrap());
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    assert_eq!(shown(&scope.conversation(id).get().unwrap()), through, "what was summarized still is");
    let state = scope.conversation(id).state().read().unwrap();
    assert!(!state.render().contains("submarine"), "{}", state.render());
    assert!(state.render().contains("src/part_1.rs"), "the rest is there: {}", state.render());
    scope.conversation(id).log().verify(None).unwrap();
    drop((scope, store));
    for word in ["violet submarine", "secret_harbour"] {
        assert_eq!(stage.files_with(word), Vec::<std::path::PathBuf>::new(), "{word}");
    }
}

/// A compaction that was taken back is not in force, and was not found when its words were to be erased.
#[test]
fn erasing_reaches_a_summary_that_was_taken_back() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("We decided to use the violet submarine codeword.")).id;
    talk(&scope, id, 6);
    scope.conversation(id).compaction().compact(by_hand(4)).unwrap();
    scope.conversation(id).compaction().revert().unwrap();
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    assert_eq!(shown(&scope.conversation(id).get().unwrap()), None, "what was taken back stays so");
    drop((scope, store));
    assert_eq!(stage.files_with("violet submarine"), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_fork_has_the_checkpoint_that_was_in_force_where_it_left() {
    let (_store, scope) = memory();
    let id = scope.begin();
    talk(&scope, id, 8);
    let before = scope.conversation(id).get().unwrap().head.seq;
    scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    let after = scope.conversation(id).get().unwrap().head.seq;
    scope.conversation(id).compaction().compact(by_hand(1)).unwrap();
    let early = scope.conversation(id).fork(before).wait().unwrap().get().unwrap();
    assert_eq!(
        (early.checkpoint, scope.conversation(early.id).state().read().unwrap().checkpoint),
        (None, None)
    );
    let late = scope.conversation(id).fork(after).wait().unwrap().get().unwrap();
    assert_eq!(shown(&late), Some(7));
    assert_eq!(scope.conversation(late.id).state().read().unwrap().recent_turn_ids.len(), 2);
    // They go their own ways.
    scope.conversation(early.id).compaction().compact(by_hand(5)).unwrap();
    assert_eq!(shown(&scope.conversation(early.id).get().unwrap()), Some(4));
    assert_eq!(shown(&scope.conversation(id).get().unwrap()), Some(8));
}

/// Many compactions: what the first round knew still reaches the prompt after the hundredth.
#[test]
fn a_hundred_rounds_keep_pins_identifiers_and_open_questions() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.conversation(id).state().pin("branch", Raw::of(&"release/2.1").unwrap()).wait().unwrap();
    scope.say(id, NewTurn::user("Port src/first_thing.rs. It must never take more than 350 ms."));
    scope.say(id, NewTurn::assistant("Before I start: which database should I use for the queue?"));
    for round in 0..100 {
        for n in 0..4 {
            scope.say(
                id,
                NewTurn::assistant(&format!(
                    "I ported src/round_{round}/part_{n}.rs; it takes {n}{round} ms."
                )),
            );
        }
        scope.conversation(id).compaction().compact(by_hand(2)).unwrap();
    }
    let context = scope.conversation(id).contexts().build(&ContextOptions::new(8000)).unwrap();
    let system = context.system.unwrap();
    for kept in ["release/2.1", "src/first_thing.rs", "350 ms", "which database should I use for the queue?"]
    {
        assert!(system.get().contains(kept), "{kept} is lost:\n{}", system.get());
    }
    assert!(context.tokens.used <= 8000);
    assert_eq!(scope.turns(id).len(), 402);
}

#[test]
fn pins_are_limited_and_a_pin_can_be_changed_and_taken_away() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let value = |n: usize| Raw::of(&n).unwrap();
    for n in 0..100 {
        scope.conversation(id).state().pin(&format!("pin {n}"), value(n)).wait().unwrap();
    }
    refused(
        scope.conversation(id).state().pin("one more", value(1)).wait(),
        "limit.exceeded",
        "PINS_MAX is 100, this is 101",
    );
    scope.conversation(id).state().pin("pin 5", value(500)).wait().unwrap();
    scope.conversation(id).state().unpin("pin 6").wait().unwrap();
    let pins = scope.conversation(id).state().read().unwrap().pins;
    assert_eq!((pins.len(), pins["pin 5"].value.get(), pins.contains_key("pin 6")), (99, "500", false));
    let before = scope.conversation(id).get().unwrap().head.seq;
    scope.conversation(id).state().unpin("pin 5").wait().unwrap();
    assert!(
        scope.conversation(id).state().at(before).unwrap().pins.contains_key("pin 5"),
        "it was there then"
    );
    assert!(!scope.conversation(id).state().read().unwrap().pins.contains_key("pin 5"));
}

#[test]
fn scratchpads_are_limited_and_can_be_replaced_and_cleared() {
    let (_store, scope) = memory();
    let chat = scope.conversation(scope.begin());
    for n in 0..16 {
        chat.state().set_scratchpad(&format!("pad {n}"), json!({"step": n})).wait().unwrap();
    }
    refused(
        chat.state().set_scratchpad("one more", 1).wait(),
        "limit.exceeded",
        "SCRATCHPADS_MAX is 16, this is 17",
    );
    let event = json!({"name": "one more", "value": 1});
    refused(
        chat.log().append("scratchpad.set", None, event).wait(),
        "limit.exceeded",
        "SCRATCHPADS_MAX is 16, this is 17",
    );
    refused(
        chat.state().set_scratchpad("pad 5", "x".repeat(16 * 1024)).wait(),
        "limit.exceeded",
        "SCRATCHPAD_BYTES_MAX is 16384",
    );
    let replaced = chat.state().set_scratchpad("pad 5", "next: src/lib.rs").wait().unwrap();
    let cleared = chat.state().clear_scratchpad("pad 6").wait().unwrap();
    let state = chat.state().read().unwrap();
    assert_eq!((state.scratchpads.len(), state.scratchpads.contains_key("pad 6")), (15, false));
    let pad = &state.scratchpads["pad 5"];
    assert_eq!((pad.value.get(), pad.seq), ("\"next: src/lib.rs\"", replaced.seq));
    assert!(state.pins.is_empty(), "a scratchpad is not a pin");
    let before = chat.state().at(cleared.seq - 1).unwrap();
    assert!(before.scratchpads.contains_key("pad 6"), "it was there then");
    chat.state().set_scratchpad("one more", 1).wait().unwrap();
}

/// Turns of megabytes are summarized from the ends of their texts, so that few of them are in memory; they count in full.
#[test]
fn large_turns_are_read_in_part_and_counted_in_full() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for n in 0..4 {
        let log = format!(
            "Please look at src/first_{n}.rs. {} It ends in src/last_{n}.rs.",
            "noise ".repeat(80_000)
        );
        scope.say(id, NewTurn::user(&log));
    }
    let done = scope.conversation(id).compaction().compact(by_hand(1)).unwrap();
    assert!(done.tokens_before > 3 * 80_000, "{}", done.tokens_before);
    let text = serde_json::to_string(&done.checkpoint).unwrap();
    assert!(text.len() < 64 * 1024, "{}", text.len());
    for file in ["first_0.rs", "last_0.rs", "first_2.rs", "last_2.rs"] {
        assert!(text.contains(file), "{file}: {text}");
    }
}

/// A checkpoint that was made anew after an edit covers less than the one before; a revert used to panic there, and to put
/// the words before the edit in force.
#[test]
fn a_revert_takes_back_a_compaction_and_not_what_an_edit_made_of_it() {
    let (_store, scope) = memory();
    let id = scope.begin();
    talk(&scope, id, 10);
    let chat = scope.conversation(id);
    chat.compaction().compact(by_hand(2)).unwrap();
    let covered = scope.turns(id)[5].id;
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "k", "name": "run", "input": {}}]});
    chat.supersede(covered, NewTurn::message(call.to_string())).wait().unwrap();
    let anew = chat.compaction().compact(by_hand(2)).unwrap();
    assert!(anew.covers.to_seq < 9);
    let reverted = chat.compaction().revert().unwrap();
    assert_eq!(reverted.checkpoint, None);
    assert_eq!(chat.state().read().unwrap().checkpoint, None);
    chat.log().verify(None).unwrap();
}

/// What a revert brings back must fit the budget, as everything that the conversation shows.
#[test]
fn a_revert_over_the_budget_is_refused() {
    let (_store, scope) = memory();
    let id = scope.begin_with(policy("budget", json!({"max_messages": 8, "recovery": "reject"}))).id;
    talk(&scope, id, 8);
    let chat = scope.conversation(id);
    chat.compaction().compact(by_hand(2)).unwrap();
    assert!(chat.compaction().revert().is_ok());
    chat.compaction().compact(by_hand(2)).unwrap();
    talk(&scope, id, 5);
    refused(chat.compaction().revert(), "budget.exceeded", "max_messages is 8, this would make it 13");
    assert!(chat.get().unwrap().checkpoint.is_some());
}
