//! What was deleted, erased or decided by an admin stays so, whatever file is imported afterwards.

use crate::compacting::by_hand;
use crate::stage::{Short, Stage, Still, memory, refused, words};
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::conversation::{Retention, Settings};
use everturn_core::event::Visibility;
use everturn_core::id::ConversationId;
use everturn_engine::{
    Caller, ContextOptions, Everturn, Format, ImportOptions, Imported, NewTurn, RecallOptions, Tenant,
};
use serde_json::{Value, json};

/// A store in memory and one in a file.
fn stores() -> [(Option<Stage>, Everturn); 2] {
    let stage = Stage::new();
    let file = stage.open();
    [(None, memory().0), (Some(stage), file)]
}

fn exported(scope: &Tenant, id: ConversationId, format: Format) -> Vec<u8> {
    let mut file = Vec::new();
    scope.conversation(id).export(format, &mut file, &mut |_| {}).unwrap();
    file
}

fn import(scope: &Tenant, role: KeyRole, file: &[u8]) -> Result<Imported, Error> {
    scope.import_with(ImportOptions { role, ..ImportOptions::default() }, file, &mut |_| {})
}

/// The same tenant for the holder of a writer's key that is bound to nobody.
fn writing(scope: &Tenant) -> Tenant {
    scope.called_by(Caller::holding("key_writer", KeyRole::Writer, &[]))
}

/// The file of a conversation that went on elsewhere, from a copy.
fn gone_on(scope: &Tenant, id: ConversationId, change: impl FnOnce(&Tenant)) -> Vec<u8> {
    let (_elsewhere, other) = memory();
    import(&other, KeyRole::Admin, &exported(scope, id, Format::Jsonl)).unwrap();
    change(&other);
    exported(&other, id, Format::Jsonl)
}

fn said(scope: &Tenant, id: ConversationId) -> Vec<Option<String>> {
    scope.turns(id).iter().map(words).collect()
}

/// Regression: a writer, who may delete and erase nothing, imported the log of somebody's conversation with one more event,
/// which set a `ttl` or recorded an erasure.
#[test]
fn a_file_that_goes_on_in_a_conversation_changes_only_what_its_importer_could() {
    for (_stage, store) in stores() {
        let scope = store.tenant("acme").unwrap();
        let writer = writing(&scope);
        let begin = || {
            let id = scope.begin();
            let first = scope.say(id, NewTurn::user("one").by("ana"));
            let private = NewTurn { visibility: Some(Visibility::Private), ..NewTurn::user("two").by("ana") };
            (id, first.id, scope.say(id, private).id)
        };
        let set = |settings: Settings| {
            move |other: &Tenant, id: ConversationId| {
                drop(other.conversation(id).update(settings).wait().unwrap())
            }
        };
        let ttl = || Settings { ttl: Some(Some(1)), ..Settings::default() };
        let retention = |retention| Settings { retention: Some(retention), ..Settings::default() };
        type Changing<'a> = Box<dyn FnOnce(&Tenant, ConversationId) + 'a>;
        let (id, first, private) = begin();
        let changes: Vec<(Changing<'_>, &str)> = vec![
            (Box::new(set(ttl())), "(conversation.updated): only an admin may set `ttl` or `retention`"),
            (
                Box::new(set(retention(Retention::Ephemeral))),
                "(conversation.updated): only an admin may set `ttl` or `retention`",
            ),
            (
                Box::new(set(retention(Retention::AuditOnly))),
                "(conversation.updated): only an admin may set `ttl` or `retention`",
            ),
            (
                Box::new(move |other, id| {
                    other.conversation(id).erase(first, None, "evil").wait().unwrap();
                }),
                "(turn.erased): only an admin erases",
            ),
            (
                Box::new(move |other, id| {
                    drop(other.conversation(id).supersede(private, NewTurn::user("x")).wait().unwrap())
                }),
                "a turn that is not for you",
            ),
            (
                Box::new(|other, id| {
                    let admin = other.called_by(Caller::holding("key_admin", KeyRole::Admin, &[]));
                    admin.say(id, NewTurn::user("I, the admin"));
                }),
                "it says that another key wrote it",
            ),
        ];
        for (change, says) in changes {
            let head = scope.head(id);
            let file = gone_on(&scope, id, |other| {
                // What comes before is allowed, and not written either.
                other.say(id, NewTurn::user("allowed"));
                change(other, id);
            });
            refused(import(&writer, KeyRole::Writer, &file), "access.role", says);
            assert_eq!(scope.head(id), head, "{says}: nothing is written");
        }
        // An admin may.
        let file = gone_on(&scope, id, |other| set(ttl())(other, id));
        assert_eq!(import(&scope, KeyRole::Admin, &file).unwrap().conversation.ttl, Some(1));

        // What a writer could have written directly comes in, more than a batch of it.
        let (id, ..) = begin();
        let file = gone_on(&scope, id, |other| {
            (0..700).for_each(|n| drop(other.say(id, NewTurn::user(&format!("more {n}")))));
            let settings = Settings { title: Some(Some("Named".into())), ..Settings::default() };
            set(settings)(other, id);
        });
        let imported = import(&writer, KeyRole::Writer, &file).unwrap();
        assert_eq!((imported.added, imported.conversation.title.as_deref()), (701, Some("Named")));
        assert_eq!(import(&writer, KeyRole::Writer, &file).unwrap().added, 0);

        // Of a conversation that is new here, its importer decides.
        let (_elsewhere, other) = memory();
        let new = other.begin_with(Settings { ttl: Some(Some(86_400)), ..Settings::default() }).id;
        let gone = other.say(new, NewTurn::user("gone"));
        other.conversation(new).erase(gone.id, None, "mine").wait().unwrap();
        set(retention(Retention::Ephemeral))(&other, new);
        let imported = import(&writer, KeyRole::Writer, &exported(&other, new, Format::Jsonl)).unwrap();
        assert_eq!(
            (imported.conversation.ttl, imported.conversation.retention),
            (Some(86_400), Retention::Ephemeral)
        );
        assert_eq!(said(&scope, new), [None]);
        assert_eq!(store.doctor(&mut |_| {}).unwrap().findings, []);
    }
}

/// Regression: a writer brought a deleted conversation back with a file from before.
#[test]
fn only_an_admin_brings_a_deleted_conversation_back() {
    for (_stage, store) in stores() {
        let scope = store.tenant("acme").unwrap();
        let writer = writing(&scope);
        for format in [Format::Jsonl, Format::Transcript] {
            let id = scope.begin();
            scope.say(id, NewTurn::user("a secret"));
            let file = exported(&scope, id, format);
            scope.conversation(id).delete("asked for").wait().unwrap();
            refused(import(&writer, KeyRole::Writer, &file), "access.role", "was deleted on");
            refused(scope.conversation(id).get(), "conversation.absent", "");
            assert_eq!(import(&scope, KeyRole::Admin, &file).unwrap().turns, 1, "{format}");
            // It is here again.
            assert_eq!(import(&writer, KeyRole::Writer, &file).unwrap().added, 0, "{format}");
        }
        // As a session file it would be another conversation with the same words.
        let id = scope.begin();
        scope.say(id, NewTurn::user("a secret"));
        let file = exported(&scope, id, Format::Session);
        scope.conversation(id).delete("asked for").wait().unwrap();
        refused(import(&writer, KeyRole::Writer, &file), "access.role", "was deleted on");
        let session = br#"{"type":"session_start","session_id":"s1","timestamp":"2026-01-01T10:00:00Z","schema_version":"1"}
{"type":"user_message","timestamp":"2026-01-01T10:00:01Z","content":"hello"}
"#;
        let id = import(&writer, KeyRole::Writer, session).unwrap().conversation.id;
        scope.conversation(id).delete("asked for").wait().unwrap();
        refused(import(&writer, KeyRole::Writer, session), "access.role", "was deleted on");
        assert_eq!(import(&scope, KeyRole::Admin, session).unwrap().conversation.id, id);
    }
}

/// Regression: a conversation whose time had passed, and that no sweep had deleted yet, went on with the events of a file.
#[test]
fn a_conversation_that_is_due_does_not_come_back_by_its_own_file() {
    let stage = Stage::new();
    let world = Still::new(7);
    for url in ["memory:".to_string(), stage.url()] {
        let store = Everturn::open_with(&url, world.options()).unwrap();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin_with(Settings { ttl: Some(Some(60)), ..Settings::default() }).id;
        scope.say(id, NewTurn::user("for a minute"));
        let elsewhere = Everturn::open_with("memory:", world.options()).unwrap();
        let other = elsewhere.tenant("acme").unwrap();
        import(&other, KeyRole::Admin, &exported(&scope, id, Format::Jsonl)).unwrap();
        other.say(id, NewTurn::user("later"));
        let file = exported(&other, id, Format::Jsonl);
        world.advance_s(61);
        refused(import(&writing(&scope), KeyRole::Writer, &file), "access.role", "was deleted on");
        refused(scope.conversation(id).get(), "conversation.absent", "");
    }
}

/// Regression: a value was compared with what reads now, so that turns at its end that had been erased or covered since were
/// taken for new.
#[test]
fn a_value_brings_nothing_back_that_was_erased_or_covered_since() {
    for (_stage, store) in stores() {
        let scope = store.tenant("acme").unwrap();
        let begin = |retention| {
            let id = scope.begin_with(Settings { retention: Some(retention), ..Settings::default() }).id;
            let text = |n| format!("word {n} must stay on src/a{n}.rs for the long build of the year");
            let said =
                (0..3).map(|n| scope.say(id, NewTurn::user(&text(n).repeat(3))).id).collect::<Vec<_>>();
            (id, said)
        };
        for erased in [vec![2], vec![1], vec![0], vec![1, 2], vec![0, 1, 2]] {
            let (id, turns) = begin(Retention::Full);
            let value = exported(&scope, id, Format::Transcript);
            for n in &erased {
                scope.conversation(id).erase(turns[*n], None, "asked for").wait().unwrap();
            }
            let before = said(&scope, id);
            let again = scope.import(value.as_slice(), &mut |_| {}).unwrap();
            assert_eq!((again.added, again.problems.len()), (0, 0), "{erased:?}");
            assert_eq!(said(&scope, id), before, "{erased:?}");
        }
        for retention in [Retention::Ephemeral, Retention::AuditOnly, Retention::Full] {
            let (id, _) = begin(retention);
            let value = exported(&scope, id, Format::Transcript);
            scope.conversation(id).compaction().compact(by_hand(0)).unwrap();
            let before = said(&scope, id);
            let again = scope.import(value.as_slice(), &mut |_| {}).unwrap();
            assert_eq!((again.added, again.problems.len()), (0, 0), "{retention}");
            assert_eq!(said(&scope, id), before, "{retention}");
            // A program that goes on from there adds what is new, once.
            let mut grown: Value = serde_json::from_slice(&value).unwrap();
            grown["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "one more"}));
            let grown = grown.to_string();
            assert_eq!(scope.import(grown.as_bytes(), &mut |_| {}).unwrap().added, 1, "{retention}");
            assert_eq!(said(&scope, id).last().unwrap().as_deref(), Some("one more"));
            assert_eq!(scope.import(grown.as_bytes(), &mut |_| {}).unwrap().added, 0, "{retention}");
        }
    }
}

/// Regression: once its source was compacted, a value brought nothing new any more, without a turn having changed.
#[test]
fn a_value_that_was_compacted_since_brings_what_is_new() {
    for foreign in [false, true] {
        let (source, copy) = (Everturn::open("memory:").unwrap(), Everturn::open("memory:").unwrap());
        let (source, copy) = (source.tenant("a").unwrap(), copy.tenant("a").unwrap());
        let id = source.begin();
        let value = || {
            let mut value: Value =
                serde_json::from_slice(&exported(&source, id, Format::Transcript)).unwrap();
            if foreign {
                value["id"] = json!("tr_foreign");
                for message in value["messages"].as_array_mut().unwrap() {
                    *message = json!({"role": message["role"], "content": message["content"]});
                }
                value.as_object_mut().unwrap().retain(|key, _| {
                    ["_type", "version", "id", "messages", "summary"].contains(&key.as_str())
                });
            }
            value.to_string()
        };
        let text =
            |n: usize| format!("word {n} must stay on src/a{n}.rs for the long build of the year").repeat(3);
        for n in 0..6 {
            source.say(id, NewTurn::user(&text(n)));
        }
        let imported = copy.import(value().as_bytes(), &mut |_| {}).unwrap().conversation.id;
        source.conversation(id).compaction().compact(by_hand(3)).unwrap();
        source.say(id, NewTurn::user("one more"));
        let again = copy.import(value().as_bytes(), &mut |_| {}).unwrap();
        assert_eq!(again.added, 1, "{:?}", again.problems);
        assert!(again.problems[0].contains("keeps its own summary"), "{:?}", again.problems);
        let here = said(&copy, imported);
        assert_eq!((here.len(), here.last().unwrap().as_deref()), (7, Some("one more")));
        assert_eq!(copy.import(value().as_bytes(), &mut |_| {}).unwrap().added, 0);
    }
}

/// Regression: the same where its source was trimmed.
#[test]
fn a_value_that_was_trimmed_since_brings_what_is_new() {
    let (source, copy) = (Everturn::open("memory:").unwrap(), Everturn::open("memory:").unwrap());
    let (source, copy) = (source.tenant("a").unwrap(), copy.tenant("a").unwrap());
    let policy = json!({"compaction": {"auto": false}, "budget": {"max_messages": 6, "recovery": {"trim": {"keep_last": 4}}}});
    let settings = serde_json::from_value(json!({ "policy": policy })).unwrap();
    let id = source.begin_with(settings).id;
    let mut imported = None;
    for n in 1..10 {
        source.say(id, NewTurn::user(&format!("turn {n}")));
        let value = exported(&source, id, Format::Transcript);
        let again = copy.import(&value[..], &mut |_| {}).unwrap();
        assert!(n == 1 || again.added == 1, "{n}: {:?}", again.problems);
        imported = Some(again.conversation.id);
    }
    let told = said(&copy, imported.unwrap());
    assert_eq!(told, (1..10).map(|n| Some(format!("turn {n}"))).collect::<Vec<_>>());
}

/// The same for a value of another program, whose turns have no ids.
#[test]
fn a_foreign_value_brings_nothing_back_that_was_erased_since() {
    for (_stage, store) in stores() {
        let scope = store.tenant("acme").unwrap();
        for (n, erased) in [vec![2], vec![0, 1, 2], vec![1]].into_iter().enumerate() {
            let message = |text: &str| json!({"role": "user", "content": text});
            let messages = ["ok", "ok", "the secret"].map(message);
            let mut value = json!({"_type": "transcript", "version": 2, "id": format!("tr_foreign_{n}"), "messages": messages});
            let id = scope.import(value.to_string().as_bytes(), &mut |_| {}).unwrap().conversation.id;
            for place in &erased {
                let turn = scope.turns(id)[*place].id;
                scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
            }
            let before = said(&scope, id);
            assert_eq!(
                scope.import(value.to_string().as_bytes(), &mut |_| {}).unwrap().added,
                0,
                "{erased:?}"
            );
            assert_eq!(said(&scope, id), before, "{erased:?}");
            value["messages"].as_array_mut().unwrap().push(message("and on"));
            assert_eq!(
                scope.import(value.to_string().as_bytes(), &mut |_| {}).unwrap().added,
                1,
                "{erased:?}"
            );
            assert_eq!(said(&scope, id).last().unwrap().as_deref(), Some("and on"));
        }
    }
}

/// Regression: an imported `turn.erased` was stored, and the words that it is about stayed in every view.
#[test]
fn an_imported_erasure_erases() {
    for (stage, store) in stores() {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let turn = scope.say(id, NewTurn::user("the xylophone is red"));
        scope.say(id, NewTurn::user("it is late"));
        let file = gone_on(&scope, id, |other| {
            other.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
            other.say(id, NewTurn::user("good night"));
        });
        assert!(!String::from_utf8_lossy(&file).contains("xylophone"));
        let imported = import(&scope, KeyRole::Admin, &file).unwrap();
        assert_eq!((imported.added, imported.problems.len()), (2, 0));
        assert_eq!(said(&scope, id), [None, Some("it is late".into()), Some("good night".into())]);
        for format in Format::ALL {
            assert!(
                !String::from_utf8_lossy(&exported(&scope, id, format)).contains("xylophone"),
                "{format}"
            );
        }
        let prompt = scope.conversation(id).contexts().build(&ContextOptions::new(9000)).unwrap();
        assert!(!format!("{prompt:?}").contains("xylophone"));
        store.index_now().unwrap();
        assert_eq!(scope.recall("xylophone", &RecallOptions::default()).unwrap().data.len(), 0);
        if let Some(stage) = &stage {
            assert_eq!(stage.files_with("xylophone"), Vec::<std::path::PathBuf>::new());
        }
        let report = scope.conversation(id).log().verify(None).unwrap();
        assert_eq!(report.erased, 1);
        assert_eq!(store.doctor(&mut |_| {}).unwrap().findings, []);
        // The log is the file's: both go on together.
        assert_eq!(import(&scope, KeyRole::Admin, &file).unwrap().added, 0);
        assert_eq!(
            scope.import(exported(&scope, id, Format::Jsonl).as_slice(), &mut |_| {}).unwrap().added,
            0
        );
    }
}

/// A file that has the words of a turn and the record of its erasure leaves neither.
#[test]
fn words_that_a_file_says_are_erased_are_not_taken() {
    let (_memory, from) = memory();
    let id = from.begin();
    let turn = from.say(id, NewTurn::user("the xylophone is red"));
    let before = exported(&from, id, Format::Jsonl);
    from.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
    // Its lines, with the body that it no longer has.
    let line_of = |file: &[u8], has: &str| {
        let text = String::from_utf8(file.to_vec()).unwrap();
        text.lines().find(|line| line.contains(has)).unwrap().to_string()
    };
    let said = line_of(&before, "xylophone");
    let after = String::from_utf8(exported(&from, id, Format::Jsonl)).unwrap();
    let is_turn = |line: &str| line.contains("\"message\"") && line.contains(&turn.id.to_string());
    let lines: Vec<&str> = after.lines().map(|line| if is_turn(line) { &*said } else { line }).collect();
    let file = lines.join("\n") + "\n";
    assert!(file.contains("xylophone"));
    for (_stage, store) in stores() {
        for (tenant, role) in [("acme", KeyRole::Admin), ("other", KeyRole::Writer)] {
            let scope = store.tenant(tenant).unwrap();
            refused(import(&scope, role, file.as_bytes()), "import.contradictory", "has its words");
            refused(scope.conversation(id).get(), "conversation.absent", "");
        }
        assert_eq!(store.doctor(&mut |_| {}).unwrap().findings, []);
    }
}

/// A fork that erased a turn of its parent does so where the parent is, if an admin imports it. A record reaches no other
/// conversation.
#[test]
fn a_fork_brings_its_erasures_of_the_past_that_it_shares() {
    for (_stage, store) in stores() {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let turn = scope.say(id, NewTurn::user("the xylophone is red"));
        let (_elsewhere, other) = memory();
        import(&other, KeyRole::Admin, &exported(&scope, id, Format::Jsonl)).unwrap();
        let fork = other.conversation(id).fork(2).wait().unwrap().id();
        other.conversation(fork).erase(turn.id, None, "asked for").wait().unwrap();
        let file = exported(&other, fork, Format::Jsonl);
        refused(import(&writing(&scope), KeyRole::Writer, &file), "access.role", "only an admin erases");
        assert_eq!(said(&scope, id), [Some("the xylophone is red".into())]);
        import(&scope, KeyRole::Admin, &file).unwrap();
        assert_eq!((said(&scope, id), said(&scope, fork)), (vec![None], vec![None]));
        assert_eq!(store.doctor(&mut |_| {}).unwrap().findings, []);
    }
}
