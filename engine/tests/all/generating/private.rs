//! Private questions: the model reads the question that it is asked, and nobody else's secrets; its answer is for the
//! same actors.

use super::*;
use everturn_core::access::KeyRole;
use everturn_engine::{Caller, Visibility};

fn whispered(text: &str, audience: &[&str]) -> NewTurn {
    let audience = audience.iter().map(|name| name.to_string()).collect();
    NewTurn { visibility: Some(Visibility::Private), audience, ..NewTurn::user(text).by("ana") }
}

fn asking_privately(text: &str, audience: &[&str], actor: Option<&str>) -> GenerateOptions {
    GenerateOptions {
        input: vec![whispered(text, audience)],
        actor: actor.map(str::to_string),
        ..GenerateOptions::default()
    }
}

/// A store in memory and one in a file, with the server as their model.
fn both(server: &ScriptedServer, stage: &Stage) -> [(Everturn, Tenant, ConversationId); 2] {
    ["memory:".to_string(), stage.url()].map(|url| {
        let options = options(model_with(server, Protocol::OpenaiChat, limits()));
        let store = Everturn::open_with(&url, options).unwrap();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        (store, scope, id)
    })
}

/// A private question used to be missing from its own prompt, so that the model answered something else.
#[test]
fn a_private_question_is_in_its_prompt_and_its_answer_is_for_the_same_actors() {
    let server = ScriptedServer::start((0..10).map(|_| vec![says("An answer.")]).collect());
    let stage = Stage::new();
    for (_store, scope, id) in both(&server, &stage) {
        let before = server.seen().len();
        scope.say(id, NewTurn::user("The harbour opens at nine."));
        scope.say(
            id,
            NewTurn { visibility: Some(Visibility::Private), ..NewTurn::user("Mine: grotto.").by("bob") },
        );
        scope.say(id, whispered("Older: lagoon.", &[]));
        let first = generate(&scope, id, asking_privately("Alone: quartz?", &[], None)).unwrap();
        let second =
            generate(&scope, id, asking_privately("To you: basalt?", &["claude"], Some("claude"))).unwrap();
        let named = GenerateOptions {
            context: ContextOptions { participants: vec!["claude".into()], ..ContextOptions::new(0) },
            ..asking_privately("Named: marble?", &["claude"], Some("claude"))
        };
        let third = generate(&scope, id, named).unwrap();
        let anew =
            GenerateOptions { regenerate: Some(Regenerate::Turn(first.turns[0].id)), ..Default::default() };
        let fourth = generate(&scope, id, anew).unwrap();
        let public = generate(&scope, id, input("And for everyone?")).unwrap();

        let seen = &server.seen()[before..];
        let holds: [&[&str]; 5] =
            [&["quartz"], &["basalt"], &["basalt", "marble"], &["quartz"], &["And for everyone"]];
        let secrets = ["quartz", "basalt", "marble", "lagoon", "grotto"];
        for ((seen, holds), generated) in
            seen.iter().zip(holds).zip([&first, &second, &third, &fourth, &public])
        {
            for word in holds {
                assert_eq!(seen.body.matches(word).count(), 1, "{word} once in {}", seen.body);
            }
            for word in secrets.iter().filter(|word| !holds.contains(word)) {
                assert!(!seen.body.contains(word), "{word} in {}", seen.body);
            }
            replays(&scope, id, generated.receipt_seq, seen);
        }
        let audience =
            |generated: &Generated| (generated.turns[0].visibility, generated.turns[0].audience.clone());
        let private =
            |names: &[&str]| (Visibility::Private, names.iter().map(|name| name.to_string()).collect());
        assert_eq!(audience(&first), private(&["ana"]));
        assert_eq!(audience(&second), private(&["ana", "claude"]));
        assert_eq!(audience(&fourth), private(&["ana"]), "generated anew");
        assert_eq!(public.turns[0].visibility, Visibility::Public);

        // The receipt of a private prompt is for those who may see it.
        let as_actor = |name: &str| {
            let caller = scope.caller().acting_as(vec![name.into()]).unwrap();
            scope.called_by(caller).conversation(id)
        };
        let receipt = scope.conversation(id).contexts().replay_at(first.receipt_seq).unwrap().receipt;
        assert_eq!(receipt.audience.as_deref(), Some(&["ana".to_string()][..]));
        as_actor("ana").contexts().replay(&receipt).unwrap();
        for (name, seq) in [("bob", first.receipt_seq), ("bob", second.receipt_seq)] {
            as_actor(name).contexts().replay_at(seq).map(drop).unwrap_err();
        }
        assert_eq!(as_actor("bob").contexts().replay(&receipt).map(drop).unwrap_err().code(), "turn.absent");
        let given = ContextOptions { asked: receipt.policy.asked.clone(), ..ContextOptions::new(4000) };
        assert_eq!(as_actor("bob").contexts().build(&given).map(drop).unwrap_err().code(), "turn.absent");
    }
}

/// The answer to two private questions is for those who see both.
#[test]
fn an_answer_is_not_for_somebody_who_sees_only_a_part_of_the_question() {
    let server = ScriptedServer::start((0..2).map(|_| vec![says("An answer.")]).collect());
    for (_store, scope, id) in both(&server, &Stage::new()) {
        let options = GenerateOptions {
            input: vec![
                whispered("quartz", &["bob", "carol"]),
                whispered("basalt", &["carol"]),
                NewTurn::user("Well?"),
            ],
            ..GenerateOptions::default()
        };
        let answer = generate(&scope, id, options).unwrap().turns.remove(0);
        assert_eq!(answer.visibility, Visibility::Private);
        assert_eq!(answer.audience, ["ana", "carol"]);
    }
}

/// Regression: a prompt with a participant's private turns was answered to everyone.
#[test]
fn a_reply_to_a_prompt_with_private_turns_of_a_participant_is_for_that_participant() {
    let server = ScriptedServer::start((0..8).map(|_| vec![says("An answer.")]).collect());
    for (_store, scope, id) in both(&server, &Stage::new()) {
        let to_both = NewTurn { audience: vec!["bob".into()], ..whispered("Ours: basalt.", &[]) };
        scope.say(id, NewTurn::user("Hello.").by("bob"));
        let with = |names: &[&str], actor: Option<&str>| GenerateOptions {
            context: ContextOptions {
                participants: names.iter().map(|name| name.to_string()).collect(),
                ..ContextOptions::new(0)
            },
            actor: actor.map(str::to_string),
            ..input("And now?")
        };
        let ask = |names: &[&str], actor| {
            let turn = generate(&scope, id, with(names, actor)).unwrap().turns.remove(0);
            (turn.visibility, turn.audience)
        };
        let private = |names: &[&str]| {
            (Visibility::Private, names.iter().map(|name| name.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(ask(&["ana"], None), (Visibility::Public, vec![]), "nothing is private yet");
        scope.say(id, to_both);
        assert_eq!(ask(&["bob"], None), private(&["ana", "bob"]));
        scope.say(id, whispered("Mine: quartz.", &[]));
        assert_eq!(ask(&["ana", "bob"], None), private(&["ana"]));
        // Ana herself speaks: what she says of her own is hers to decide.
        assert_eq!(ask(&["ana"], Some("ana")), (Visibility::Public, vec![]));
        scope.say(
            id,
            NewTurn { visibility: Some(Visibility::Private), ..NewTurn::user("Mine: marble.").by("bob") },
        );
        let refused = generate(&scope, id, with(&["ana", "bob"], None)).map(drop).unwrap_err();
        assert_eq!(refused.code(), "generate.audience");
    }
}

/// Regression: the receipt named the actor as it was given.
#[test]
fn no_receipt_names_a_secret_where_the_conversation_masks_them() {
    const SECRET: &str = "AKIAQ7Z2X5W3V4U6T2PQ";
    let server = ScriptedServer::start((0..4).map(|_| vec![says("An answer.")]).collect());
    let stage = Stage::new();
    for (_store, scope, _) in both(&server, &stage) {
        let id = scope.begin_with(policy("redaction", json!("mask"))).id;
        scope.say(
            id,
            NewTurn { visibility: Some(Visibility::Private), ..NewTurn::user("Mine: grotto.").by(SECRET) },
        );
        let options = GenerateOptions { actor: Some(SECRET.into()), ..input("Well?") };
        generate(&scope, id, options).unwrap();
        assert!(server.seen().last().unwrap().body.contains("grotto"), "it is still the same actor");
        let options = ContextOptions { participants: vec![SECRET.into()], ..ContextOptions::new(9000) };
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        assert!(json!(context.messages).to_string().contains("grotto"));
        scope.conversation(id).contexts().record(&context).unwrap();
        let events = json!(scope.conversation(id).log().read(0, 1000).unwrap()).to_string();
        assert!(!events.contains(SECRET), "{events}");
    }
}

/// A back end that asks for its users does not see their private turns, and still repeats a request for them.
#[test]
fn what_was_cut_off_of_a_private_answer_is_replaced_too() {
    let cut = vec![begun("half of "), more("it"), Act::Hang];
    let server = ScriptedServer::start(vec![cut, vec![says("whole")]]);
    let stage = Stage::new();
    let open = || stage.open_with(options(model_with(&server, Protocol::OpenaiChat, limits())));
    let request = || GenerateOptions {
        append: AppendOptions { idempotency_key: Some("k1".into()), ..AppendOptions::default() },
        ..asking_privately("Alone: quartz?", &[], None)
    };
    let writer = |store: &Everturn| {
        let tenant = store.tenant("acme").unwrap();
        tenant.called_by(Caller::holding("key_1", KeyRole::Writer, &[]))
    };
    let store = open();
    let id = store.tenant("acme").unwrap().begin();
    let mut generating = begin(&writer(&store), id, request()).unwrap();
    let mut heard = String::new();
    while heard != "half of it" {
        match generating.recv().unwrap() {
            Some(GenerationProgress::Delta(Delta::Text(text))) => heard += &text,
            other => panic!("{other:?}"),
        }
    }
    drop(store);
    refused(generating.recv(), "store.closed", "open it again");
    let store = open();
    generate(&writer(&store), id, request()).unwrap();
    assert!(!server.seen()[1].body.contains("half"));
    let scope = store.tenant("acme").unwrap();
    assert_eq!(told(&scope, id), ["Alone: quartz?", "whole"]);
    assert!(scope.turns(id).iter().all(|turn| turn.visibility == Visibility::Private));
}
