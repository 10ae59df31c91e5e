//! Private questions: the model reads the question that it is asked, and nobody else's secrets; its answer is for the
//! same actors.

use super::*;
use everturn::Visibility;

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
        let options = options(model_with(server, Kind::OpenaiChat, limits()));
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
