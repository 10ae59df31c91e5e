//! Approvals: each has one outcome, decided in the store, and a generation waits for it.

use crate::compacting::{by_hand, talk};
use crate::stage::{START, Short, Stage, Still, memory, refused};
use everturn::{ApprovalBody, ApprovalOutcome, Error, Event, Swept, Tenant, World};
use everturn_core::approval::Approval;
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use serde_json::json;

fn ask(approval: &str, deadline: Option<Timestamp>) -> ApprovalBody {
    let question = Some("Send it?".to_string());
    ApprovalBody { approval_id: approval.into(), question, deadline, ..ApprovalBody::default() }
}

fn request(scope: &Tenant, id: ConversationId, body: ApprovalBody) -> Result<Event, Error> {
    scope.conversation(id).state().request_approval(body, Some("agent".into())).wait()
}

fn resolve(scope: &Tenant, id: ConversationId, state: Approval, actor: &str) -> Result<Event, Error> {
    let resolution = ApprovalOutcome {
        approval_id: "a1".into(),
        state,
        actor: Some(actor.into()),
        reason: Some(format!("{actor} says so")),
    };
    scope.conversation(id).state().resolve_approval(resolution).wait()
}

fn pending(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let state = scope.conversation(id).state().read().unwrap();
    state.pending_approvals.into_iter().map(|approval| approval.approval_id).collect()
}

/// Two resolutions at once used to be written both, and nobody knew which one counted.
#[test]
fn of_many_resolutions_at_once_one_wins_and_the_others_name_it() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        for _ in 0..10 {
            let id = scope.begin();
            request(&scope, id, ask("a1", None)).unwrap();
            let outcomes: Vec<Result<Event, Error>> = std::thread::scope(|threads| {
                let resolving: Vec<_> = (0..8)
                    .map(|n| {
                        let scope = &scope;
                        let state = if n % 2 == 0 { Approval::Approved } else { Approval::Denied };
                        threads.spawn(move || resolve(scope, id, state, &format!("person-{n}")))
                    })
                    .collect();
                resolving.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let (won, lost): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
            let [Ok(winner)] = &won[..] else { panic!("{} won", won.len()) };
            let (actor, seq) = (winner.actor.clone().unwrap(), winner.seq);
            for error in lost.into_iter().map(Result::unwrap_err) {
                assert_eq!(error.code(), "approval.resolved");
                assert!(error.text().contains(&format!("by {actor} at ")), "{error}");
                assert!(error.text().contains(&format!("seq {seq} ({actor} says so)")), "{error}");
            }
            let resolved = scope.kinds(id).iter().filter(|kind| *kind == "approval.resolved").count();
            assert_eq!((resolved, pending(&scope, id)), (1, Vec::new()));
        }
    }
}

#[test]
fn an_approval_is_requested_once_and_events_by_hand_obey_the_same_rules() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let absent = resolve(&scope, id, Approval::Approved, "ana");
    refused(absent, "approval.absent", "no approval \"a1\" waits");
    request(&scope, id, ask("a1", None)).unwrap();
    refused(request(&scope, id, ask("a1", None)), "approval.exists", "requested already");
    let chat = scope.conversation(id);
    let by_hand = |kind: &str, body| chat.append_event(kind, None, body).wait();
    refused(by_hand("approval.requested", json!({"approval_id": "a1"})), "approval.exists", "another id");
    by_hand("approval.resolved", json!({"approval_id": "a1", "state": "denied"})).unwrap();
    let again = by_hand("approval.resolved", json!({"approval_id": "a1", "state": "approved"}));
    refused(again, "approval.resolved", "was denied at ");
    refused(request(&scope, id, ask("a1", None)), "approval.resolved", "was denied at ");
    refused(request(&scope, id, ask("a2", Some(START))), "approval.deadline", "has passed");
    let state = {
        request(&scope, id, ask("a3", None)).unwrap();
        chat.state().read().unwrap()
    };
    let waiting = &state.pending_approvals[0];
    assert_eq!((waiting.requested_by.as_deref(), waiting.deadline), (Some("agent"), None));
}

#[test]
fn what_nobody_answers_expires_at_its_deadline() {
    let clock = Still::new(3);
    let stage = Stage::new();
    let id = {
        let store = stage.open_with(clock.options());
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        request(&scope, id, ask("a1", Some(START.plus_s(60)))).unwrap();
        talk(&scope, id, 4);
        clock.advance_s(59);
        assert_eq!((store.sweep().unwrap(), pending(&scope, id)), (Swept::default(), vec!["a1".to_string()]));
        clock.advance_s(1);
        assert_eq!(pending(&scope, id), Vec::<String>::new(), "for every reader at once");
        refused(
            resolve(&scope, id, Approval::Approved, "ana"),
            "approval.expired",
            "expired at 2026-01-01T00:01:00",
        );
        id
    };
    let store = stage.open_with(clock.options());
    let scope = store.tenant("acme").unwrap();
    assert_eq!(pending(&scope, id), Vec::<String>::new());
    // It holds nothing back, and who looks has it recorded.
    scope.conversation(id).compaction().compact(by_hand(1)).unwrap();
    let events = scope.conversation(id).log().read(0, 1000).unwrap();
    let expired = events.iter().find(|event| event.kind == "approval.resolved").unwrap();
    assert!(expired.text().unwrap().contains("\"state\":\"expired\""));
    refused(resolve(&scope, id, Approval::Approved, "ana"), "approval.resolved", "was expired at");

    let id = scope.begin();
    request(&scope, id, ask("a1", Some(START.plus_s(120)))).unwrap();
    clock.advance_s(60);
    assert_eq!(store.sweep().unwrap(), Swept { approvals: 1, ..Swept::default() });
    assert_eq!(store.sweep().unwrap(), Swept::default());
}

/// A prompt must be the same when it is replayed, whatever the clock says by then.
#[test]
fn a_prompt_with_an_approval_is_replayed_after_its_deadline() {
    let clock = Still::new(4);
    let store = everturn::Everturn::open_with("memory:", clock.options()).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    talk(&scope, id, 2);
    request(&scope, id, ask("a1", Some(START.plus_s(60)))).unwrap();
    let contexts = scope.conversation(id);
    let options = everturn::ContextOptions::new(10_000);
    let context = contexts.contexts().build(&options).unwrap();
    assert!(context.system.as_ref().unwrap().get().contains("Send it? (a1)"));
    let seq = contexts.contexts().record(&context).unwrap().seq;
    clock.advance_s(100);
    assert_eq!(contexts.contexts().replay_at(seq).unwrap().prefix_hash, context.prefix_hash);
    let now = contexts.contexts().build(&options).unwrap();
    assert!(now.system.is_none_or(|system| !system.get().contains("Send it?")));
}

/// A question of any length used to be stored, and to make every later prompt too long.
#[test]
fn approvals_have_limits_and_prompts_shorten_them() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let id = scope.begin();
        refused(request(&scope, id, ask("", None)), "name.malformed", "approval id \"\" is empty");
        refused(request(&scope, id, ask(&"i".repeat(201), None)), "limit.exceeded", "NAME_BYTES_MAX is 200");
        let long =
            |bytes: usize| ApprovalBody { question: Some("é".repeat(bytes / 2)), ..ask("long", None) };
        let limit = "APPROVAL_QUESTION_BYTES_MAX is 4096, this is 4098";
        refused(request(&scope, id, long(4098)), "limit.exceeded", limit);
        request(&scope, id, long(4096)).unwrap();
        let word = |n: usize| ApprovalBody {
            question: Some(format!("Question {n}? {}", "x".repeat(4000))),
            ..ask(&format!("a{n}"), None)
        };
        for n in 1..100 {
            request(&scope, id, word(n)).unwrap();
        }
        refused(
            request(&scope, id, ask("more", None)),
            "limit.exceeded",
            "APPROVALS_PENDING_MAX is 100, this is 101",
        );
        assert_eq!(pending(&scope, id).len(), 100);
        let chat = scope.conversation(id);
        let context = chat.contexts().build(&everturn::ContextOptions::new(4000)).unwrap();
        let system = context.system.as_ref().unwrap().get().to_string();
        assert!(system.contains("é … (long)") && system.contains("Question 9? xx"), "{system}");
        assert!(system.contains("- … and 90 more") && !system.contains("Question 10?"), "{system}");
        let seq = chat.contexts().record(&context).unwrap().seq;
        assert_eq!(chat.contexts().replay_at(seq).unwrap().prefix_hash, context.prefix_hash);
        resolve(&scope, id, Approval::Denied, "ana").unwrap();
        request(&scope, id, ask("more", None)).unwrap();
    }
}

#[test]
fn only_a_deadline_that_has_passed_lets_an_approval_expire() {
    let clock = Still::new(5);
    let stage = Stage::new();
    for url in ["memory:", &stage.url()] {
        let store = everturn::Everturn::open_with(url, clock.options()).unwrap();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        request(&scope, id, ask("a1", None)).unwrap();
        refused(
            resolve(&scope, id, Approval::Expired, "bob"),
            "approval.not_expired",
            "has not passed a deadline",
        );
        resolve(&scope, id, Approval::Approved, "ana").unwrap();
        let id = scope.begin();
        request(&scope, id, ask("a1", Some(clock.now().plus_s(60)))).unwrap();
        refused(
            resolve(&scope, id, Approval::Expired, "bob"),
            "approval.not_expired",
            "approved, denied or cancelled",
        );
        clock.advance_s(60);
        resolve(&scope, id, Approval::Expired, "bob").unwrap();
    }
}

/// Nobody was there when the deadline passed: the next process has it recorded, without an append.
#[test]
fn what_an_earlier_process_asked_is_expired_by_the_sweeper_of_the_next() {
    let (clock, stage) = (Still::new(3), Stage::new());
    let store = stage.open_with(clock.options());
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    request(&scope, id, ask("a1", Some(START.plus_s(60)))).unwrap();
    drop((scope, store));
    clock.advance_s(61);
    let store = stage.open_with(clock.options());
    assert_eq!(store.sweep().unwrap(), Swept { approvals: 1, ..Swept::default() });
    assert!(store.tenant("acme").unwrap().kinds(id).contains(&"approval.resolved".to_string()));
}

/// Regression: the sweep ended at the first conversation that was damaged, in every round.
#[test]
fn a_damaged_conversation_does_not_keep_the_approvals_of_others_from_expiring() {
    let (clock, stage) = (Still::new(3), Stage::new());
    let store = stage.open_with(clock.options());
    let scope = store.tenant("acme").unwrap();
    let ids: Vec<ConversationId> = (0..4).map(|_| scope.begin()).collect();
    ids.iter().for_each(|id| _ = request(&scope, *id, ask("a1", Some(START.plus_s(60)))).unwrap());
    drop((scope, store));
    let database = rusqlite::Connection::open(stage.path()).unwrap();
    let damaged = "UPDATE events SET body = replace(body, 'a1', 'a2')
         WHERE no = (SELECT min(no) FROM events WHERE body LIKE '%a1%')";
    assert_eq!(database.execute(damaged, []).unwrap(), 1);
    drop(database);
    clock.advance_s(61);
    let store = stage.open_with(clock.options());
    assert_eq!(store.sweep().unwrap(), Swept { approvals: 3, ..Swept::default() });
}
