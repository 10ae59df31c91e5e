//! Generating when something goes wrong: providers that misbehave, prompts that are too long, answers that are stopped or
//! abandoned, stores that close.

use super::*;

/// Hangs, cuts, refusals and garbage: the input stays, the answer ends as aborted with the reason and with what was said.
#[test]
fn whatever_the_provider_does_the_input_stays_and_the_answer_ends_with_the_reason() {
    // Short only where nothing comes: a busy machine must not look like a slow server.
    let patient = Limits { attempts: 1, ..limits() };
    let short = Duration::from_millis(300);
    for (script, code, kept) in [
        (vec![Act::Hang], "model.timeout", ""),
        (vec![begun("half"), Act::Hang], "model.timeout", "half"),
        (vec![begun("half"), Act::Close], "model.stream_cut", "half"),
        (vec![Act::Close], "model.unavailable", ""),
        (vec![Act::Send(whole(500, "", "boom"))], "model.unavailable", ""),
        (vec![Act::Send(whole(429, "", ""))], "model.rate_limited", ""),
        (vec![Act::Send(whole(401, "", ""))], "model.unauthorized", ""),
        (vec![Act::Send(whole(400, "", r#"{"error":{"message":"bad tool"}}"#))], "model.refused", ""),
        (vec![Act::Send(whole(200, "", "<html>hi</html>"))], "model.garbage", ""),
        (vec![begun("half"), Act::Send(chunk("data: nonsense\n\n")), Act::Close], "model.garbage", "half"),
        (
            vec![
                begun("half"),
                Act::Send(chunk("data: {\"error\":{\"code\":503,\"message\":\"busy\"}}\n\n")),
            ],
            "model.unavailable",
            "half",
        ),
    ] {
        let server = ScriptedServer::start(vec![script]);
        let limits = match (code, kept) {
            ("model.timeout", "") => Limits { first_byte_timeout: short, ..patient.clone() },
            ("model.timeout", _) => Limits { idle_timeout: short, ..patient.clone() },
            _ => patient.clone(),
        };
        let (_store, scope, id) = asking_with(&server, Protocol::OpenaiChat, limits);
        let generating = begin(&scope, id, input("say something")).unwrap();
        let (generation, turn) = (generating.id, generating.turn);
        let error = generating.wait().unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        let turns = scope.turns(id);
        assert_eq!(
            kind_of_turns(&turns),
            [(Role::User, Status::Complete), (Role::Assistant, Status::Aborted)]
        );
        assert_eq!((turns[1].id, words(&turns[1]).unwrap().as_str()), (turn, kept));
        let reason = turns[1].reason.as_deref().unwrap();
        assert_eq!(reason, format!("{code}: {}", error.text()));
        let expected = GenerationState::Failed { code: error.code().into(), text: error.text().to_string() };
        assert_eq!(scope.generations().status(generation).unwrap().state, expected);
        // It does not stand in the way of another try, and is not in its prompt.
        server.await_requests(1);
        assert_eq!(server.seen().len(), 1);
        let context = scope.conversation(id).contexts().build(&ContextOptions::new(1000)).unwrap();
        assert_eq!(context.messages.len(), 1, "{:?}", context.messages);
    }
}

#[test]
fn what_passes_by_itself_is_tried_again_by_the_client() {
    let server = ScriptedServer::start(vec![
        vec![Act::Send(whole(429, "retry-after: 0\r\n", ""))],
        vec![Act::Send(whole(500, "", ""))],
        vec![says("at last")],
    ]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let generated = generate(&scope, id, input("go on")).unwrap();
    assert_eq!((generated.answer.text.as_str(), server.seen().len()), ("at last", 3));
    let receipts = scope.kinds(id).iter().filter(|kind| *kind == "context.receipt").count();
    assert_eq!(receipts, 1, "the same prompt, asked again");
}

#[test]
fn a_prompt_that_is_too_long_is_compacted_and_asked_once_more() {
    let overflow = || vec![Act::Send(whole(400, "", OVERFLOW))];
    let server = ScriptedServer::start(vec![overflow(), vec![says("ok")], overflow(), overflow()]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    long_ago(&scope, id);
    let generating = begin(&scope, id, input("and what now?")).unwrap();
    let first_receipt = generating.receipt_seq;
    let generated = generating.wait().unwrap();
    assert_eq!(generated.answer.text, "ok");
    let seen = server.seen();
    assert!(
        seen[1].body.len() < seen[0].body.len() * 2 / 3,
        "{} then {}",
        seen[0].body.len(),
        seen[1].body.len()
    );
    for (receipt, seen) in [(first_receipt, &seen[0]), (generated.receipt_seq, &seen[1])] {
        assert_eq!(seen.body.matches("and what now?").count(), 1);
        replays(&scope, id, receipt, seen);
    }
    let kinds = scope.kinds(id);
    assert_eq!(kinds.iter().filter(|kind| *kind == "compaction").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| *kind == "context.receipt").count(), 2);
    let about: Value = generated.turns[0].metadata["generation"].read().unwrap();
    assert_eq!(about["receipt_seq"], generated.receipt_seq);

    // Once more, and not twice.
    let error = generate(&scope, id, input("still there?")).unwrap_err();
    assert_eq!((error.code(), server.seen().len()), ("model.context_overflow", 4));
    assert_eq!(scope.turns(id).last().unwrap().status, Status::Aborted);
}

#[test]
fn a_prompt_that_is_too_long_is_not_asked_again_where_that_is_not_wanted_or_would_not_help() {
    let result = r#"{"role":"tool","tool_call_id":"c1","content":"a.rs"}"#;
    let called = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{}"}}]}"#;
    type Prepare = fn(&Tenant, ConversationId, &str, &str) -> GenerateOptions;
    let cases: [(&str, Prepare); 4] = [
        ("a result is in the input", |scope, id, called, result| {
            scope.say(id, NewTurn::user("look"));
            scope.say(id, NewTurn::message(called));
            GenerateOptions { input: vec![NewTurn::message(result)], ..GenerateOptions::default() }
        }),
        ("a result is in the input, and words after it", |scope, id, called, result| {
            scope.say(id, NewTurn::user("look"));
            scope.say(id, NewTurn::message(called));
            let input = vec![NewTurn::message(result), NewTurn::user("go on")];
            GenerateOptions { input, ..GenerateOptions::default() }
        }),
        ("a result came after the user's last words", |scope, id, called, result| {
            scope.say(id, NewTurn::user("look"));
            scope.say(id, NewTurn::message(called));
            scope.say(id, NewTurn::message(result));
            GenerateOptions::default()
        }),
        ("the policy says so", |scope, id, _, _| {
            let policy = BTreeMap::from([("compaction".to_string(), raw(r#"{"on_overflow":"fail"}"#))]);
            scope.conversation(id).update(Settings { policy, ..Settings::default() }).wait().unwrap();
            input("go on")
        }),
    ];
    for (why, prepare) in cases {
        let server = ScriptedServer::start(vec![vec![Act::Send(whole(400, "", OVERFLOW))], vec![says("ok")]]);
        let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
        long_ago(&scope, id);
        let options = prepare(&scope, id, called, result);
        let compactions =
            |scope: &Tenant| scope.kinds(id).iter().filter(|kind| *kind == "compaction").count();
        let before = compactions(&scope);
        let error = generate(&scope, id, options).unwrap_err();
        assert_eq!((error.code(), server.seen().len()), ("model.context_overflow", 1), "{why}");
        assert_eq!(compactions(&scope), before, "{why}");
    }
    // Where only a checkpoint is left, it is shortened.
    let server = ScriptedServer::start(vec![vec![Act::Send(whole(400, "", OVERFLOW))], vec![says("ok")]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    long_ago(&scope, id);
    let all = CompactOptions { keep_last: Some(0), ..CompactOptions::default() };
    while scope.conversation(id).compaction().compact(all.clone()).is_ok() {}
    generate(&scope, id, input("go on")).unwrap();
    // Tools that ran for an earlier request do not count.
    let server = ScriptedServer::start(vec![vec![Act::Send(whole(400, "", OVERFLOW))], vec![says("ok")]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    long_ago(&scope, id);
    for message in [called, result] {
        scope.say(id, NewTurn::message(message));
    }
    scope.say(id, NewTurn::assistant("one file"));
    generate(&scope, id, input("thanks, go on")).unwrap();
}

#[test]
fn two_answers_at_once_only_if_asked_for() {
    let (go, gate) = channel();
    let server = ScriptedServer::start(vec![
        vec![begun("slow"), Act::Await(gate), rest()],
        vec![says("quick")],
        vec![says("after")],
    ]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let slow = begin(&scope, id, input("one")).unwrap();
    server.await_requests(1);
    let before = scope.conversation(id).get().unwrap().head.seq;
    refused(begin(&scope, id, input("two")), "generation.running", &format!("{} is running", slow.id));
    assert_eq!(scope.conversation(id).get().unwrap().head.seq, before, "nothing was appended");
    // Elsewhere it does not matter.
    let running = scope.generations().running(id).unwrap();
    assert_eq!((running.len(), running[0].id, running[0].turn), (1, slow.id, Some(slow.turn)));
    let parallel = GenerateOptions { parallel: true, ..input("three") };
    assert_eq!(generate(&scope, id, parallel).unwrap().answer.text, "quick");
    refused(begin(&scope, id, input("two")), "generation.running", &slow.id.to_string());
    go.send(()).unwrap();
    assert_eq!(slow.wait().unwrap().answer.text, "slow");
    // The end is told when the next may begin.
    assert_eq!(generate(&scope, id, input("four")).unwrap().answer.text, "after");
}

#[test]
fn an_answer_goes_on_when_nobody_listens_any_more() {
    let (go, gate) = channel();
    let server = ScriptedServer::start(vec![vec![begun("one "), Act::Await(gate), more("two"), rest()]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let generating = begin(&scope, id, input("count")).unwrap();
    let (generation, turn) = (generating.id, generating.turn);
    drop(generating);
    let mut follower =
        scope.conversation(id).subscribe(scope.conversation(id).get().unwrap().head.seq).unwrap();
    go.send(()).unwrap();
    while !matches!(follower.recv_timeout(PATIENCE).unwrap().unwrap(), Update::Event(event) if event.kind == "turn.committed")
    {
    }
    assert_eq!(words(&scope.turn(turn).unwrap()).unwrap(), "one two");
    until("its end is known", || {
        scope.generations().status(generation).unwrap().state == GenerationState::Done
    });
}

#[test]
fn an_answer_begins_also_if_the_future_is_dropped() {
    let server = ScriptedServer::start(vec![vec![says("here")]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    drop(scope.conversation(id).generate(input("anybody?")));
    until("it is answered", || {
        let turns = scope.turns(id);
        turns.len() == 2 && turns[1].status == Status::Complete
    });
}

#[test]
fn a_stopped_answer_keeps_what_was_said_and_the_server_is_let_go() {
    let server = ScriptedServer::start(vec![vec![begun("as far as "), Act::Hang]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let mut generating = begin(&scope, id, input("tell me all")).unwrap();
    assert!(matches!(generating.recv().unwrap(), Some(GenerationProgress::Delta(Delta::Text(_)))));
    let status = scope.generations().stop(generating.id).unwrap();
    assert_eq!((status.state, status.turn), (GenerationState::Running, Some(generating.turn)));
    let (generation, turn) = (generating.id, generating.turn);
    refused(generating.wait(), "generation.stopped", &format!("{turn} keeps its text"));
    server.client_gone();
    let turn = scope.turn(turn).unwrap();
    assert_eq!((turn.status, turn.reason.as_deref()), (Status::Interrupted, Some("stopped")));
    assert_eq!(words(&turn).unwrap(), "as far as ");
    assert_eq!(turn.superseded_by, None, "it is part of the next prompt");
    assert_eq!(scope.generations().status(generation).unwrap().state, GenerationState::Stopped);
    refused(scope.generations().stop(generation), "generation.ended", "has ended already");
    let other = "gen_00000000000000000000000007".parse().unwrap();
    refused(scope.generations().stop(other), "generation.absent", "no generation gen_");
    refused(scope.generations().status(other), "generation.absent", "no generation gen_");
}

/// An open turn belongs to the conversation: others may end it, and the model must not be paid for what nobody keeps.
#[test]
fn an_answer_whose_turn_is_ended_by_others_ends() {
    type End = fn(&Tenant, ConversationId, &Generating);
    let ends: [(End, &str); 2] = [
        (
            |scope, id, g| {
                drop(scope.conversation(id).open_turn(g.turn).abort("enough", None).wait().unwrap())
            },
            "turn.not_open",
        ),
        (|scope, id, _| drop(scope.conversation(id).delete("done").wait().unwrap()), "turn.absent"),
    ];
    for (end, code) in ends {
        let server = ScriptedServer::start(vec![vec![begun("and "), Act::Hang]]);
        let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
        let generating = begin(&scope, id, input("go")).unwrap();
        server.await_requests(1);
        end(&scope, id, &generating);
        let error = generating.wait().unwrap_err();
        assert!(error.code() == code || error.code() == "conversation.absent", "{error:?}");
        server.client_gone();
    }
}

/// Regression: one emoji that was cut in half aborted the whole answer.
#[test]
fn half_a_character_is_replaced_and_the_answer_stays() {
    let half = r#"{"choices":[{"index":0,"delta":{"content":"so far \ud83d"}}]}"#;
    let head = Act::Send([stream_head(), chunk(format!("data: {half}\n\n"))].concat());
    let server = ScriptedServer::start(vec![vec![head, rest()]]);
    let (_store, scope, id) = asking(&server, Protocol::OpenaiChat);
    let generated = generate(&scope, id, input("Well?")).unwrap();
    assert_eq!(words(&generated.turns[0]).unwrap(), "so far \u{fffd}");
}

/// Regression: the second prompt ended with half an answer, and every later one had both.
#[test]
fn a_request_repeated_after_its_process_ended_replaces_what_was_cut_off() {
    let keyed = |key: &str, options: GenerateOptions| GenerateOptions {
        append: AppendOptions { idempotency_key: Some(key.into()), ..AppendOptions::default() },
        ..options
    };
    let nothing = GenerateOptions::default;
    let steps: [&dyn Fn() -> GenerateOptions; 3] =
        [&|| keyed("k1", input("tell me all")), &|| keyed("k2", nothing()), &|| {
            keyed("k3", anew(Regenerate::Last))
        }];
    for step in steps {
        let cut = || vec![begun("half of "), more("it"), Act::Hang];
        let server = ScriptedServer::start(vec![vec![says("A0")], cut(), cut(), vec![says("whole")]]);
        let stage = Stage::new();
        let open = || stage.open_with(options(model_with(&server, Protocol::OpenaiChat, limits())));
        let (store, asks_anew) = (open(), step().regenerate.is_some());
        let id = store.tenant("acme").unwrap().begin();
        generate(&store.tenant("acme").unwrap(), id, input("Q0")).unwrap();
        if !asks_anew && step().input.is_empty() {
            store.tenant("acme").unwrap().say(id, NewTurn::user("tell me all"));
        }
        drop(store);
        for _ in 0..2 {
            let store = open();
            let scope = store.tenant("acme").unwrap();
            let mut generating = begin(&scope, id, step()).unwrap();
            let mut heard = String::new();
            while heard != "half of it" {
                match generating.recv().unwrap() {
                    Some(GenerationProgress::Delta(Delta::Text(text))) => heard += &text,
                    other => panic!("{other:?}"),
                }
            }
            drop((scope, store));
            refused(generating.recv(), "store.closed", "open it again");
        }
        let store = open();
        let scope = store.tenant("acme").unwrap();
        let generated = generate(&scope, id, step()).unwrap();
        let said: &[&str] = if asks_anew { &["Q0", "whole"] } else { &["Q0", "A0", "tell me all", "whole"] };
        assert_eq!(told(&scope, id), said);
        let seen = server.seen();
        assert!(!seen[3].body.contains("half"), "{}", seen[3].body);
        assert_eq!(sent(&seen[1], "messages"), sent(&seen[3], "messages"), "the prompt is the same again");
        replays(&scope, id, generated.receipt_seq, &seen[3]);
    }
}

#[test]
fn a_store_that_closes_in_the_middle_has_the_input_and_what_was_said_when_it_opens_again() {
    let server =
        ScriptedServer::start(vec![vec![begun("half of "), more("it"), Act::Hang], vec![says("whole")]]);
    let stage = Stage::new();
    let store = stage.open_with(options(model_with(&server, Protocol::OpenaiChat, limits())));
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let mut generating = begin(&scope, id, input("tell me all")).unwrap();
    let mut heard = String::new();
    while heard != "half of it" {
        match generating.recv().unwrap() {
            Some(GenerationProgress::Delta(Delta::Text(text))) => heard += &text,
            other => panic!("{other:?}"),
        }
    }
    drop((scope, store));
    refused(generating.recv(), "store.closed", "open it again");

    let store = stage.open_with(options(model_with(&server, Protocol::OpenaiChat, limits())));
    let scope = store.tenant("acme").unwrap();
    let turns = scope.turns(id);
    assert_eq!(
        kind_of_turns(&turns),
        [(Role::User, Status::Complete), (Role::Assistant, Status::Interrupted)]
    );
    assert_eq!(words(&turns[1]).unwrap(), "half of it");
    assert_eq!(turns[1].reason.as_deref(), Some("the process that wrote it ended"));
    assert_eq!(generate(&scope, id, input("again")).unwrap().answer.text, "whole");
}
