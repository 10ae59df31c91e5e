//! Recall from the outside: what is said is found within a second, whatever happens to the index in between.

use crate::dice::Dice;
use crate::stage::{PATIENCE, Short, Stage, memory, quiet, refused, until};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::turn::Role;
use everturn_engine::{
    Context, ContextOptions, Everturn, NewFact, NewStream, NewTurn, Options, RecallOptions, RecallRequest,
    Recalled, Tenant,
};
use everturn_views::context::{BlockSource, Section};
use everturn_views::recall::{RecallKind, RecallMode};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file with a tenant's index.
fn index_of(stage: &Stage, tenant: &str) -> PathBuf {
    stage.folder.path().join(format!("store.db-index/t-{tenant}.db"))
}

/// Waits until everything is in the index.
fn indexed(store: &Everturn) {
    let end = Instant::now() + PATIENCE;
    while store.behind().unwrap().events > 0 {
        assert!(Instant::now() < end, "the index does not catch up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn recall(scope: &Tenant, query: &str) -> Recalled {
    scope.recall(query, &RecallOptions::default()).unwrap()
}

fn shown(recalled: &Recalled) -> Vec<String> {
    recalled.data.iter().map(|hit| hit.snippet.marked("[", "]")).collect()
}

fn within(id: ConversationId) -> RecallOptions {
    RecallOptions { conversation: Some(id), ..RecallOptions::default() }
}

/// A reminder, the state of an editor or a result inside a message was found as the words of the person who sent it.
#[test]
fn what_a_program_wrote_into_a_message_of_the_user_is_not_the_users_words() {
    let stage = Stage::new();
    let on_disk = stage.open();
    let tenant = on_disk.tenant("default").unwrap();
    for (store, scope) in [memory(), (on_disk, tenant)] {
        let id = scope.begin();
        let text = |text: &str| json!({"type":"text","text":text});
        let result = json!({"type":"tool_result","tool_use_id":"t1","content":"a quokka in the zoo"});
        for content in [
            json!([
                text("<system-reminder>be nice to the zebra</system-reminder>"),
                text("Which parser is it?")
            ]),
            json!("Which lexer?\n\n<system-reminder>mind the okapi</system-reminder>"),
            json!(
                "# Context from my IDE setup:\n\n## Open tabs:\n- wombat.rs\n\n## My request for Codex:\nFix the lexer."
            ),
            json!([result, text("And the lexer?")]),
        ] {
            scope.say(id, NewTurn::message(json!({"role":"user","content":content}).to_string()));
        }
        indexed(&store);
        for mode in [RecallMode::Lexical, RecallMode::Hybrid] {
            let found = |query: &str, roles: &[Role]| {
                let options = RecallOptions { roles: roles.to_vec(), mode, ..within(id) };
                let hits = scope.recall(query, &options).unwrap().data;
                hits.iter().map(|hit| (hit.seq, hit.role)).collect::<Vec<_>>()
            };
            for (word, seq) in [("zebra", 2), ("okapi", 3), ("wombat.rs", 4), ("quokka", 5)] {
                assert_eq!(found(word, &[Role::User]), [], "{word}");
                for roles in [&[][..], &[Role::Tool], &[Role::Tool, Role::User]] {
                    assert_eq!(found(word, roles), [(seq, Some(Role::Tool))], "{word} {roles:?}");
                }
            }
            let mut lexer = found("lexer", &[Role::User]);
            lexer.sort();
            assert_eq!(lexer, [3, 4, 5].map(|seq| (seq, Some(Role::User))));
            assert_eq!(found("lexer", &[Role::Tool]), []);
            assert_eq!(found("parser", &[]), [(2, Some(Role::User))]);
        }
    }
}

/// A message in which a tool or a program speaks beside a person was shown whole as the words of one of them.
#[test]
fn everybody_in_a_message_is_named_for_what_they_said() {
    let (store, scope) = memory();
    let id = scope.begin();
    let text = |text: &str| json!({"type":"text","text":text});
    let opened = "<ide_opened_file>heron.py is open</ide_opened_file>";
    for content in [
        json!([{"type":"tool_result","tool_use_id":"t","content":"flamingo on 4711"}, text("Stop, use the pelican.")]),
        json!([text(opened), text("Explain the stork.")]),
    ] {
        let turn = NewTurn::message(json!({"role":"user","content":content}).to_string());
        scope.say(id, turn.by("ann"));
    }
    scope.say(id, NewTurn::user("Thanks."));
    indexed(&store);
    let found = |query: &str| {
        let hits =
            scope.recall(query, &RecallOptions { mode: RecallMode::Lexical, ..within(id) }).unwrap().data;
        hits.into_iter().map(|hit| (hit.role.unwrap(), hit.snippet.text)).collect::<Vec<_>>()
    };
    assert_eq!(found("flamingo"), [(Role::Tool, "flamingo on 4711".into())]);
    assert_eq!(found("pelican"), [(Role::User, "Stop, use the pelican.".into())]);
    assert_eq!(found("heron.py"), [(Role::Tool, opened.into())]);
    assert_eq!(found("stork"), [(Role::User, "Explain the stork.".into())]);

    let options = ContextOptions {
        recall: Some(RecallRequest { turns: 5, facts: 0, query: Some("flamingo stork".into()) }),
        last_n: Some(1),
        ..ContextOptions::new(4000)
    };
    let conversation = scope.conversation(id);
    let contexts = conversation.contexts();
    let prompt = |context: everturn_engine::Context| {
        context.system.iter().chain(&context.messages).map(Raw::get).collect::<String>()
    };
    let context = contexts.build(&options).unwrap();
    let said = prompt(context);
    for said_by in [
        "Z] tool:\\nflamingo on 4711\\n\\nann (user):\\nStop, use the pelican.".to_string(),
        format!("Z] editor state:\\n{opened}\\n\\nann (user):\\nExplain the stork."),
    ] {
        assert!(said.contains(&said_by), "{said_by} in {said}");
    }
}

/// Claude's shape carries what tools answer, and what the program adds, in messages of the user: both were the user's words.
#[test]
fn results_and_notices_in_messages_of_the_user_are_not_the_users_words() {
    let (store, scope) = memory();
    let id = scope.begin();
    for message in [
        json!({"role":"user","content":"where is the wombat?"}),
        json!({"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Grep","input":{"pattern":"animal"}}]}),
        json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"wombat in the zoo"}]}),
        json!({"role":"user","content":"<task-notification>the wombat was counted</task-notification>"}),
        json!({"role":"assistant","content":"In the zoo."}),
        json!({"role":"user","content":"Thanks."}),
    ] {
        scope.say(id, NewTurn::message(message.to_string()));
    }
    indexed(&store);
    let found = |role| {
        let options = RecallOptions { roles: vec![role], mode: RecallMode::Lexical, ..within(id) };
        let hits = scope.recall("wombat", &options).unwrap().data;
        assert!(hits.iter().all(|hit| hit.role == Some(role)));
        let mut found: Vec<String> = hits.iter().map(|hit| hit.snippet.text.clone()).collect();
        found.sort();
        found
    };
    assert_eq!(found(Role::User), ["where is the wombat?"]);
    let [notice, result] = &found(Role::Tool)[..] else { panic!("{:?}", found(Role::Tool)) };
    assert!(notice.contains("was counted") && result.contains("wombat in the zoo"), "{notice} {result}");
    // Recalled text in a prompt names its speaker, too.
    let options = ContextOptions {
        recall: Some(RecallRequest { turns: 5, facts: 0, query: Some("wombat zoo counted".into()) }),
        last_n: Some(2),
        ..ContextOptions::new(4000)
    };
    let context = scope.conversation(id).contexts().build(&options).unwrap();
    let text = context.system.iter().chain(&context.messages).map(Raw::get).collect::<String>();
    for said in
        ["user:\\nwhere is the wombat?", "tool:\\nwombat in the zoo", "notification:\\n<task-notification>"]
    {
        assert!(text.contains(said), "{said} in {text}");
    }
    // A participant is told who spoke as well, and not what another's tools answered.
    let view = ContextOptions { participants: vec!["bob".into()], ..ContextOptions::new(4000) };
    let context = scope.conversation(id).contexts().build(&view).unwrap();
    let text = context.messages.iter().map(Raw::get).collect::<String>();
    assert!(text.contains("user: where is the wombat?") && text.contains("notification: <task-"), "{text}");
    assert!(!text.contains("user: <t"), "{text}");
}

#[test]
fn what_is_said_is_found_with_who_when_and_why() {
    let (store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("where is the harbour?").by("ann"));
    let turn =
        scope.say(id, NewTurn::text(Role::Assistant, "The harbour is behind src/harbour/map.rs.").by("bot"));
    indexed(&store);
    let found = recall(&scope, "map.rs harbour");
    assert_eq!(found.mode, RecallMode::Lexical);
    assert!(found.note.as_ref().unwrap().contains("no embedder"), "{:?}", found.note);
    assert_eq!(found.behind.events, 0);
    let best = &found.data[0];
    assert_eq!(
        (best.kind, best.turn, best.conversation, best.seq),
        (RecallKind::Turn, Some(turn.id), id, turn.seq)
    );
    assert_eq!(
        (best.actor.as_deref(), best.role, best.at),
        (Some("bot"), Some(Role::Assistant), turn.created)
    );
    assert_eq!(best.snippet.marked("[", "]"), "The [harbour] is behind src/[harbour]/[map.rs].");
    let rank = best.matched.lexical.unwrap();
    assert!(
        rank.rank == 1
            && rank.score > 0.0
            && best.score > found.data[1].score
            && best.matched.vector.is_none()
    );
    let lexical = RecallOptions { mode: RecallMode::Lexical, ..within(id) };
    assert_eq!(scope.recall("harbour", &lexical).unwrap().note, None, "asked for words, got words");
    let of_ann = RecallOptions { actors: vec!["ann".into()], roles: vec![Role::User], ..within(id) };
    assert_eq!(shown(&scope.recall("harbour", &of_ann).unwrap()), ["where is the [harbour]?"]);
    let other = scope.begin();
    assert!(scope.recall("harbour", &within(other)).unwrap().data.is_empty());
    assert!(recall(&store.tenant("globex").unwrap(), "harbour").data.is_empty());
    assert!(recall(&scope, "\"*( NOT").data.is_empty());
    refused(scope.recall("x", &RecallOptions { limit: 0, ..within(id) }), "limit.zero", "at least 1");
}

#[test]
fn a_turn_is_found_within_a_second_also_while_others_come() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    for n in 0..50 {
        scope.say(id, NewTurn::user(&format!("beacon number{n}")));
        let (said, query) = (Instant::now(), format!("number{n}"));
        if n % 10 == 0 {
            while recall(&scope, &query).data.is_empty() {
                // Ten times what is promised, for machines that do other things.
                assert!(said.elapsed() < Duration::from_secs(10), "not found");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn what_fell_is_not_found_even_before_the_index_hears_of_it() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let old = scope.say(id, NewTurn::user("the first compass"));
    let gone = scope.say(id, NewTurn::user("the erased compass"));
    let doomed = scope.begin();
    scope.say(doomed, NewTurn::user("the deleted compass"));
    indexed(&store);
    assert_eq!(recall(&scope, "compass").data.len(), 3);
    drop((scope, store));

    // Nothing takes in what happens now.
    let store = stage.open_with(Options { index: false, ..quiet() });
    let scope = store.tenant("acme").unwrap();
    scope.conversation(id).supersede(old.id, NewTurn::user("the second compass")).wait().unwrap();
    scope.conversation(id).erase(gone.id, None, "").wait().unwrap();
    scope.conversation(doomed).delete("").wait().unwrap();
    assert!(recall(&scope, "compass").data.is_empty());
    let all = RecallOptions { include_superseded: true, ..RecallOptions::default() };
    assert_eq!(shown(&scope.recall("compass", &all).unwrap()), ["the first [compass]"]);
    assert!(store.behind().unwrap().events > 0);
    assert_eq!(store.index_now().unwrap().events, 0);
    assert_eq!(shown(&recall(&scope, "compass")), ["the second [compass]"]);
}

#[test]
fn erased_words_leave_the_index_file_too() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let doomed = scope.begin();
    let mut erased = Vec::new();
    for n in 0..200 {
        // The words begin each with another letter, so that the index cannot shorten them by what they share.
        let letter = char::from(b'a' + (n % 26) as u8);
        let secret =
            scope.say(id, NewTurn::user(&format!("keep{n} {letter}unspeakable{n} {}", "filler ".repeat(n))));
        erased.push(secret.id);
        scope.say(doomed, NewTurn::user(&format!("{letter}unmentionable{n} too")));
    }
    indexed(&store);
    let hidden = |what: &str| stage.files_with(what).is_empty();
    assert!(
        stage
            .files_with("unspeakable")
            .iter()
            .any(|path| path.starts_with(index_of(&stage, "acme").parent().unwrap()))
    );
    for turn in erased {
        scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    }
    assert!(hidden("unspeakable"), "{:?}", stage.files_with("unspeakable"));
    scope.conversation(doomed).delete("").wait().unwrap();
    assert!(hidden("unmentionable"), "{:?}", stage.files_with("unmentionable"));
    drop((scope, store));
    let store = stage.open();
    store.rebuild().unwrap();
    indexed(&store);
    assert!(hidden("unspeakable") && hidden("unmentionable"), "also after making the index again");
}

/// Writing a large index anew takes a while. Whoever erases does not wait for it, and it happens all the same.
#[test]
fn erased_words_leave_a_large_index_file_in_the_background() {
    const WAITED_FOR_BYTES_MAX: u64 = 16 * 1024 * 1024;
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    // A word that has no stem: the index writes others as continuations of theirs, where they cannot be looked for.
    let secret = scope.say(id, NewTurn::user("keep this zanzibar word"));
    let index = index_of(&stage, "acme");
    let bytes = || std::fs::metadata(&index).map_or(0, |file| file.len());
    let mut dice = Dice::new(7);
    while bytes() <= WAITED_FOR_BYTES_MAX {
        let words: Vec<String> = (0..8_000).map(|_| format!("{:016x}", dice.next())).collect();
        scope.say(id, NewTurn::user(&words.join(" ")));
        store.index_now().unwrap();
    }
    assert!(stage.files_with("zanzibar").contains(&index), "otherwise this test proves nothing");
    scope.conversation(id).erase(secret.id, None, "asked for").wait().unwrap();
    assert!(recall(&scope, "zanzibar").data.is_empty());
    until("the words have left the files", || stage.files_with("zanzibar").is_empty());
}

#[test]
fn a_lost_or_damaged_index_is_made_again() {
    let stage = Stage::new();
    let index = index_of(&stage, "acme");
    let say = |text: &str| {
        let store = stage.open();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        scope.say(id, NewTurn::user(text));
        indexed(&store);
        recall(&scope, "lantern").data.len()
    };
    assert_eq!(say("the first lantern"), 1);
    std::fs::remove_file(&index).unwrap();
    assert_eq!(say("the second lantern"), 2, "lost");
    std::fs::write(&index, "this is no database, and never was one; ".repeat(500)).unwrap();
    assert_eq!(say("the third lantern"), 3, "something else");
    let mut bytes = std::fs::read(&index).unwrap();
    bytes[4096..].iter_mut().step_by(7).for_each(|byte| *byte ^= 0x55);
    std::fs::write(&index, bytes).unwrap();
    // What is damaged shows when it is read; it is then empty, and fills again.
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let end = Instant::now() + PATIENCE;
    while recall(&scope, "lantern").data.len() < 3 {
        assert!(Instant::now() < end, "still damaged");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop((scope, store));
    // Another log under the same name: the words of the old one are of no use.
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(stage.folder.path().join(format!("store.db{suffix}")));
    }
    assert_eq!(say("a lantern in another store"), 1);
}

/// An index that is lost or found damaged was made again only when the next turn came. On a server where nobody says anything
/// more, that is never.
#[test]
fn an_index_is_made_again_also_where_nothing_more_is_said() {
    let stage = Stage::new();
    let store = stage.open();
    let (scope, other) = (store.tenant("acme").unwrap(), store.tenant("globex").unwrap());
    for scope in [&scope, &other] {
        let id = scope.begin();
        for n in 0..300 {
            scope.say(id, NewTurn::user(&format!("the lantern number{n}")));
        }
    }
    indexed(&store);
    let all = RecallOptions { limit: 1000, ..RecallOptions::default() };
    let found = |scope: &Tenant| scope.recall("lantern", &all).unwrap();
    let made_again = |scope: &Tenant, other: &Tenant, what: &str| {
        until(what, || {
            let (own, theirs) = (found(scope), found(other));
            assert_eq!((theirs.data.len(), theirs.behind.events), (300, 0), "nobody else notices");
            own.data.len() == 300 && own.behind.events == 0
        });
    };
    std::fs::remove_file(index_of(&stage, "acme")).unwrap();
    let incomplete = found(&scope);
    assert!(incomplete.behind.events > 0, "it says that it is not complete");
    assert!(incomplete.note.unwrap().contains("ask again in a moment"));
    made_again(&scope, &other, "the lost index is complete");
    drop((scope, other, store));

    std::fs::write(index_of(&stage, "acme"), "this is no database, and never was one; ".repeat(500)).unwrap();
    let store = stage.open();
    let (scope, other) = (store.tenant("acme").unwrap(), store.tenant("globex").unwrap());
    made_again(&scope, &other, "the index that was something else is complete");
    drop((scope, other, store));

    // Behind the place where it says how far it is, nothing is left of it.
    let mut bytes = std::fs::read(index_of(&stage, "acme")).unwrap();
    bytes[2 * 4096..].iter_mut().step_by(7).for_each(|byte| *byte ^= 0x55);
    std::fs::write(index_of(&stage, "acme"), bytes).unwrap();
    let store = stage.open();
    made_again(
        &store.tenant("acme").unwrap(),
        &store.tenant("globex").unwrap(),
        "the damaged index is complete",
    );
}

#[test]
fn erasing_leaves_the_files_of_others_alone_and_the_last_deletion_takes_the_file() {
    let stage = Stage::new();
    let store = stage.open();
    let (scope, other) = (store.tenant("acme").unwrap(), store.tenant("globex").unwrap());
    let id = scope.begin();
    let secret = scope.say(id, NewTurn::user("an unspeakable word"));
    let theirs = other.begin();
    other.say(theirs, NewTurn::user("a word of others"));
    indexed(&store);
    let before = std::fs::read(index_of(&stage, "globex")).unwrap();
    scope.conversation(id).erase(secret.id, None, "").wait().unwrap();
    assert!(stage.files_with("unspeakable").is_empty());
    assert!(std::fs::read(index_of(&stage, "globex")).unwrap() == before);
    assert!(index_of(&stage, "acme").exists());
    scope.conversation(id).delete("").wait().unwrap();
    assert!(!index_of(&stage, "acme").exists(), "nothing is left that could be found");
    assert_eq!(recall(&other, "word").data.len(), 1);
}

#[test]
fn a_reader_beside_a_writer_recalls_and_indexes_for_itself_without_one() {
    let stage = Stage::new();
    let writer = stage.open();
    let scope = writer.tenant("acme").unwrap();
    let id = scope.begin();
    scope.say(id, NewTurn::user("the lighthouse"));
    indexed(&writer);
    let reader = stage.open_read_only();
    let reads = reader.tenant("acme").unwrap();
    assert_eq!(shown(&recall(&reads, "lighthouse")), ["the [lighthouse]"]);
    scope.say(id, NewTurn::user("a second lighthouse"));
    indexed(&reader);
    assert_eq!(recall(&reads, "lighthouse").data.len(), 2);
    drop((reads, reader, scope, writer));
    std::fs::remove_dir_all(stage.folder.path().join("store.db-index")).unwrap();
    let reader = stage.open_read_only();
    // Nothing found, because nobody indexes: the answer says so, and what helps.
    let blind = recall(&reader.tenant("acme").unwrap(), "lighthouse");
    assert_eq!((blind.data.len(), blind.behind.events), (0, 3));
    let note = blind.note.unwrap();
    assert!(note.contains("3 events are not in the index yet and not searched"), "{note}");
    assert!(note.contains("everturn recall --index"), "{note}");
    assert_eq!(reader.index_now().unwrap().events, 0);
    let seeing = recall(&reader.tenant("acme").unwrap(), "lighthouse");
    assert_eq!(seeing.data.len(), 2);
    assert!(!seeing.note.unwrap_or_default().contains("index"), "everything was searched");
}

#[test]
fn streams_forks_and_rebuilds() {
    let (store, scope) = memory();
    let id = scope.begin();
    let open = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(open).chunk(None, "the tide is coming in").unwrap();
    let fork = scope.conversation(id).fork(2).wait().unwrap().id();
    let said = NewTurn::text(Role::Assistant, "the tide is coming in");
    scope.conversation(id).open_turn(open).commit(said).wait().unwrap();
    scope.say(fork, NewTurn::user("the tide of the fork"));
    indexed(&store);
    let texts = |id| shown(&scope.recall("tide", &within(id)).unwrap());
    assert_eq!(texts(id), ["the [tide] is coming in"]);
    let mut of_fork = texts(fork);
    of_fork.sort();
    assert_eq!(of_fork, ["the [tide] is coming in", "the [tide] of the fork"], "with what was said so far");
    store.rebuild().unwrap();
    indexed(&store);
    assert_eq!((texts(id).len(), texts(fork).len(), recall(&scope, "tide").data.len()), (1, 2, 3));
}

/// A conversation whose tail is far from what was said first.
/// Regression: a fork no longer found what it had inherited once its parent was deleted, while its history showed it.
#[test]
fn a_fork_finds_what_it_inherited_from_a_deleted_parent() {
    let stage = Stage::new();
    let on_disk = stage.open();
    let tenant = on_disk.tenant("default").unwrap();
    for (store, scope) in [memory(), (on_disk, tenant)] {
        let id = scope.begin();
        let chat = scope.conversation(id);
        scope.say(id, NewTurn::user("the pangolin sleeps here"));
        let open = chat.open(NewStream::default()).wait().unwrap().id;
        let said = NewTurn::text(Role::Assistant, "then the pangolin wakes");
        chat.open_turn(open).commit(said).wait().unwrap();
        let (subject, predicate, object) = ("pangolin".into(), "eats".into(), "ants".into());
        chat.facts().add(NewFact { subject, predicate, object, ..NewFact::default() }).unwrap();
        let fork = chat.fork(chat.get().unwrap().head.seq).wait().unwrap().id();
        scope.say(id, NewTurn::user("the pangolin after the fork"));
        scope.say(fork, NewTurn::user("and more"));
        indexed(&store);
        chat.delete("asked").wait().unwrap();
        for _ in 0..2 {
            indexed(&store);
            for options in [RecallOptions::default(), within(fork)] {
                for mode in [RecallMode::Lexical, RecallMode::Hybrid] {
                    let found = scope.recall("pangolin", &RecallOptions { mode, ..options.clone() }).unwrap();
                    let turns = found.data.iter().filter(|hit| hit.kind == RecallKind::Turn);
                    let mut texts: Vec<String> = turns.map(|hit| hit.snippet.marked("", "")).collect();
                    texts.sort();
                    assert_eq!(texts, ["the pangolin sleeps here", "then the pangolin wakes"]);
                    assert!(found.data.iter().any(|hit| hit.kind == RecallKind::Fact));
                    assert!(found.data.iter().all(|hit| hit.conversation == fork), "{found:?}");
                }
            }
            store.rebuild().unwrap();
        }
        scope.conversation(fork).delete("asked").wait().unwrap();
        indexed(&store);
        assert!(recall(&scope, "pangolin").data.is_empty());
    }
}

fn long_ago(scope: &Tenant) -> (ConversationId, everturn_core::turn::Turn) {
    let id = scope.begin();
    let first =
        scope.say(id, NewTurn::user("The spare key of the lighthouse hangs behind the barometer.").by("ann"));
    for n in 0..60 {
        scope.say(
            id,
            NewTurn::text(
                Role::Assistant,
                &format!("Something else, number {n}. {}", "Chatter. ".repeat(20)),
            ),
        );
    }
    (id, first)
}

fn asks(query: Option<&str>) -> ContextOptions {
    let recall = RecallRequest { turns: 3, facts: 3, query: query.map(String::from) };
    let input = Raw::of(&serde_json::json!({"role": "user", "content": "where is the spare key?"})).unwrap();
    ContextOptions { recall: Some(recall), input: vec![input], ..ContextOptions::new(1500) }
}

fn recalled_ids(context: &Context) -> Vec<String> {
    let blocks = context.included.iter().filter(|block| block.section == Section::Recalled);
    let ids = blocks.flat_map(|block| match &block.source {
        BlockSource::Ids(ids) => ids.clone(),
        other => panic!("{other:?} is no turn"),
    });
    ids.map(|id| id.replace("evt_", "turn_")).collect()
}

#[test]
fn a_context_recalls_what_was_said_long_ago_and_replays_it() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let (id, first) = long_ago(&scope);
    let elsewhere = scope.begin();
    scope.say(elsewhere, NewTurn::user("The spare key of another lighthouse is lost."));
    indexed(&store);
    let context = scope.conversation(id).contexts().build(&asks(None)).unwrap();
    let shown = context.system.as_ref().map_or(String::new(), |system| system.get().to_string());
    let shown = format!("{shown}{:?}", context.messages);
    assert!(shown.contains("ann (user):") && shown.contains("hangs behind the barometer"), "{shown}");
    assert!(!shown.contains("another lighthouse"), "another conversation is another conversation");
    assert_eq!(recalled_ids(&context), [first.id.to_string()]);
    let none = scope.conversation(id).contexts().build(&asks(Some("xyzzy"))).unwrap();
    assert!(recalled_ids(&none).is_empty());
    assert!(
        recalled_ids(
            &scope.conversation(id).contexts().build(&ContextOptions { recall: None, ..asks(None) }).unwrap()
        )
        .is_empty()
    );

    let receipt = scope.conversation(id).contexts().record(&context).unwrap();
    indexed(&store);
    let hits = shown_in(&scope, id, "barometer");
    assert_eq!(hits.len(), 1, "what was recalled is not said again: {hits:?}");
    // Whatever the index finds by now, the receipt says what was there.
    for n in 0..5 {
        scope.say(id, NewTurn::user(&format!("spare key spare key spare key {n}")));
    }
    indexed(&store);
    let replay = scope.conversation(id).contexts().replay_at(receipt.seq).unwrap();
    assert_eq!((&replay.messages, &replay.system), (&context.messages, &context.system));
    assert_eq!(replay.prefix_hash, context.prefix_hash);
    scope.conversation(id).erase(first.id, None, "").wait().unwrap();
    refused(
        scope.conversation(id).contexts().replay_at(receipt.seq),
        "receipt.erased",
        &first.id.to_string(),
    );
    assert!(
        !recalled_ids(&scope.conversation(id).contexts().build(&asks(None)).unwrap())
            .contains(&first.id.to_string())
    );
}

#[test]
fn a_context_of_the_past_recalls_as_it_stood_then() {
    let (store, scope) = memory();
    let (id, first) = long_ago(&scope);
    let then = scope.conversation(id).get().unwrap().head.seq;
    let later = scope
        .conversation(id)
        .supersede(first.id, NewTurn::user("The spare key of the lighthouse is gone."))
        .wait()
        .unwrap();
    for n in 0..40 {
        scope.say(id, NewTurn::user(&format!("And more of it, {n}. {}", "Chatter. ".repeat(20))));
    }
    indexed(&store);
    let at = |at_seq| {
        recalled_ids(
            &scope.conversation(id).contexts().build(&ContextOptions { at_seq, ..asks(None) }).unwrap(),
        )
    };
    assert_eq!(at(Some(then)), [first.id.to_string()]);
    assert_eq!(at(None), [later.turns[0].id.to_string()]);
}

fn shown_in(scope: &Tenant, id: ConversationId, query: &str) -> Vec<String> {
    shown(&scope.recall(query, &within(id)).unwrap())
}

/// It holds the words of the store, which only its owner may read.
#[cfg(unix)]
#[test]
fn an_index_that_is_made_again_is_as_closed_as_the_store() {
    use std::os::unix::fs::PermissionsExt;
    let stage = Stage::new();
    drop(stage.open());
    std::fs::set_permissions(stage.path(), PermissionsExt::from_mode(0o600)).unwrap();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let folder = stage.folder.path().join("store.db-index");
    for text in ["the lighthouse", "another lighthouse"] {
        scope.say(id, NewTurn::user(text));
        store.index_now().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        for file in std::fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
