//! Approvals: each has one outcome, decided in the store, and a generation waits for it.

use crate::compacting::{by_hand, talk};
use crate::stage::{START, Short, Stage, Still, memory, refused};
use everturn_core::access::KeyRole;
use everturn_core::approval::Approval;
use everturn_core::event::Visibility;
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use everturn_engine::{
    ApprovalBody, ApprovalOutcome, Caller, ContextOptions, Error, Event, NewTurn, Swept, Tenant, World,
};
use serde_json::json;

fn ask(approval: &str, deadline: Option<Timestamp>) -> ApprovalBody {
    let question = Some("Send it?".to_string());
    ApprovalBody { approval_id: approval.into(), question, deadline, ..ApprovalBody::default() }
}

fn request(scope: &Tenant, id: ConversationId, body: ApprovalBody) -> Result<Event, Error> {
    scope.conversation(id).state().request_approval(body, Some("agent".into())).wait()
}

fn resolve(scope: &Tenant, id: ConversationId, state: Approval, actor: &str) -> Result<Event, Error> {
    resolve_named(scope, id, "a1", state, actor)
}

fn resolve_named(
    scope: &Tenant,
    id: ConversationId,
    approval: &str,
    state: Approval,
    actor: &str,
) -> Result<Event, Error> {
    let resolution = ApprovalOutcome {
        approval_id: approval.into(),
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

/// Regression: everyone read the question about a private call, and could answer it.
#[test]
fn an_approval_of_a_private_call_is_as_private_as_the_call() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let acting = |actor: &str| scope.called_by(Caller::default().acting_as(vec![actor.into()]).unwrap());
        let id = scope.begin();
        scope.say(id, NewTurn::user("hello"));
        let call = json!({"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"transfer","input":{}}]});
        let call = NewTurn {
            visibility: Some(Visibility::Private),
            actor: Some("ana".into()),
            ..NewTurn::message(call.to_string())
        };
        acting("ana").conversation(id).append(call).wait().unwrap();
        let question = Some("Pay the aardvark?".to_string());
        let body = ApprovalBody {
            approval_id: "a1".into(),
            tool_call_id: Some("c1".into()),
            question,
            ..ApprovalBody::default()
        };
        scope.conversation(id).state().request_approval(body, None).wait().unwrap();
        let (ana, ben) = (acting("ana"), acting("ben"));
        assert_eq!((pending(&ana, id), pending(&scope, id)), (vec!["a1".into()], vec!["a1".to_string()]));
        assert_eq!(pending(&ben, id), [""; 0]);
        let context = |scope: &Tenant| {
            let context = scope.conversation(id).contexts().build(&ContextOptions::new(8000)).unwrap();
            json!([context.system, context.messages]).to_string()
        };
        assert!(context(&ana).contains("aardvark") && !context(&ben).contains("aardvark"));
        let events = |scope: &Tenant| json!(scope.conversation(id).log().read(0, 100).unwrap()).to_string();
        assert!(events(&ana).contains("aardvark") && !events(&ben).contains("aardvark"));
        refused(resolve(&ben, id, Approval::Approved, "ben"), "approval.absent", "no approval \"a1\" waits");
        let again = ben.conversation(id).state().request_approval(ask("a1", None), None).wait();
        refused(again, "approval.exists", "requested already");
        let resolved = resolve(&ana, id, Approval::Denied, "ana").unwrap();
        assert_eq!(resolved.visibility, Visibility::Private);
        assert!(!events(&ben).contains("ana says so"));
        refused(resolve(&ben, id, Approval::Approved, "ben"), "approval.absent", "no approval \"a1\" waits");
        // For him the call is an id like any other, so his own question is for everyone.
        let guessed = ApprovalBody { tool_call_id: Some("c1".into()), ..ask("a2", None) };
        let asked = ben.conversation(id).state().request_approval(guessed, None).wait().unwrap();
        assert_ne!(asked.visibility, Visibility::Private);
        // Whoever may act as anyone answers in the name of one who sees it.
        let about = ApprovalBody { tool_call_id: Some("c1".into()), ..ask("a3", None) };
        let gateway = scope.called_by(Caller::holding("k1", KeyRole::Writer, &[]));
        gateway.conversation(id).state().request_approval(about, None).wait().unwrap();
        let as_ben = resolve_named(&gateway, id, "a3", Approval::Approved, "ben");
        refused(as_ben, "approval.absent", "no approval \"a3\" waits");
        resolve_named(&gateway, id, "a3", Approval::Approved, "ana").unwrap();
    }
}

/// Regression: until the sweep, every prompt of others was refused with the name of the approval.
#[test]
fn a_private_approval_that_is_due_holds_nobody_else_up() {
    let (stage, clock) = (Stage::new(), Still::new(7));
    let stored = stage.open_with(clock.options());
    let scope = stored.tenant("acme").unwrap();
    let acting = |actor: &str| scope.called_by(Caller::default().acting_as(vec![actor.into()]).unwrap());
    let id = scope.begin();
    scope.say(id, NewTurn::user("hello"));
    let call =
        json!({"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"transfer","input":{}}]});
    let call = NewTurn {
        visibility: Some(Visibility::Private),
        actor: Some("ana".into()),
        ..NewTurn::message(call.to_string())
    };
    acting("ana").conversation(id).append(call).wait().unwrap();
    let deadline = Some(START.plus_s(60));
    let body = ApprovalBody { tool_call_id: Some("c1".into()), ..ask("a1", deadline) };
    acting("ana").conversation(id).state().request_approval(body, None).wait().unwrap();
    clock.advance_s(61);
    acting("ben").conversation(id).contexts().build(&ContextOptions::new(8000)).unwrap();
    assert_eq!(pending(&scope, id), [""; 0]);
}

/// Regression: a list was read by position, and an approval of a private call from one broke the process.
#[test]
fn the_body_of_an_approval_is_an_object() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for (kind, body) in [
        ("approval.requested", json!(["a1", "c1"])),
        ("approval.resolved", json!(["a1", null, null, null, null, "approved"])),
        ("state.pin", json!(["branch", "main"])),
    ] {
        let appended = scope.conversation(id).log().append(kind, None, &body).wait();
        refused(appended, "state.malformed", "must ");
    }
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
    let by_hand = |kind: &str, body| chat.log().append(kind, None, body).wait();
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
    let store = everturn_engine::Everturn::open_with("memory:", clock.options()).unwrap();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    talk(&scope, id, 2);
    request(&scope, id, ask("a1", Some(START.plus_s(60)))).unwrap();
    let contexts = scope.conversation(id);
    let options = everturn_engine::ContextOptions::new(10_000);
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
        let context = chat.contexts().build(&everturn_engine::ContextOptions::new(4000)).unwrap();
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
        let store = everturn_engine::Everturn::open_with(url, clock.options()).unwrap();
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
