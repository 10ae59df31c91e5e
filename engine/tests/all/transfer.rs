//! Whole conversations out of a store and into one, unchanged.

use crate::stage::{Short, Stage, memory, refused, words};
use base64::Engine;
use everturn_core::conversation::{Lifecycle, Settings};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::turn::Successor;
use everturn_engine::{Format, NewStream, NewTurn, Tenant};
use serde_json::{Value, json};
use std::io::BufReader;

/// The value that the first document of the mission gives as the schema, its event's blocks written out.
const SEED: &str = r#"{
  "_type": "transcript",
  "version": 2,
  "id": "tr_...",
  "state": "active",
  "summary": "optional compacted summary",
  "metadata": {},
  "messages": [
    {
      "role": "user",
      "content": [
        {"type": "image", "asset_id": "asset_1", "visibility": "public"},
        {"type": "text", "text": "Review this screenshot", "visibility": "public"}
      ]
    }
  ],
  "events": [
    {
      "kind": "message",
      "role": "user",
      "visibility": "public",
      "text": "<image:screenshot.png> Review this screenshot",
      "blocks": [
        {"type": "image", "asset_id": "asset_1", "visibility": "public"},
        {"type": "text", "text": "Review this screenshot", "visibility": "public"}
      ]
    }
  ],
  "assets": [
    {
      "_type": "transcript_asset",
      "id": "asset_1",
      "kind": "image",
      "mime_type": "image/png",
      "visibility": "internal",
      "storage": {"path": ".harn/assets/asset_1.png"}
    }
  ]
}"#;

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn export(scope: &Tenant, id: ConversationId) -> Vec<u8> {
    let mut file = Vec::new();
    scope.conversation(id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
    file
}

/// A conversation with something of everything.
fn eventful(scope: &Tenant) -> ConversationId {
    let mut settings = Settings { title: Some(Some("Trip".into())), ..Settings::default() };
    settings.metadata.insert("system_prompt".into(), Raw::new("\"Be brief.\"".into()).unwrap());
    settings.metadata.insert("k".into(), Raw::new("1.50".into()).unwrap());
    let id = scope.begin_with(settings).id;
    scope.say(id, NewTurn::user("hello").by("ann"));
    let old = scope.say(id, NewTurn::assistant("helo"));
    scope.conversation(id).supersede(old.id, NewTurn::assistant("hello")).wait().unwrap();
    let data = base64::engine::general_purpose::STANDARD.encode([7; 9000]);
    scope.say(
        id,
        NewTurn::message(format!(
            r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}"#
        )),
    );
    scope.say(id, NewTurn::message(r#"{"role":"tool","tool_call_id":"1","content":"12345678901234567890"}"#));
    for text in ["streamed", "given up"] {
        let turn =
            scope.conversation(id).open(NewStream { actor: Some("gpt".into()), ..NewStream::default() });
        let turn = turn.wait().unwrap().id;
        scope.conversation(id).open_turn(turn).chunk(None, text).unwrap();
        if text == "streamed" {
            scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
        } else {
            scope.conversation(id).open_turn(turn).abort("enough", None).wait().unwrap();
        }
    }
    let gone = scope.say(id, NewTurn::user("forget this"));
    scope.conversation(id).erase(gone.id, None, "asked for").wait().unwrap();
    scope
        .conversation(id)
        .log()
        .append("snapshot_created", None, Raw::new(r#"{"path":"a"}"#.into()).unwrap())
        .wait()
        .unwrap();
    id
}

#[test]
fn the_transcript_value_of_the_mission_comes_back_equal() {
    let (_store, scope) = memory();
    let imported = scope.import(SEED.as_bytes(), &mut |_| {}).unwrap();
    assert_eq!((&*imported.format, imported.problems.len()), ("transcript", 0));
    let id = imported.conversation.id;
    let mut exported = value(&scope.conversation(id).transcript().unwrap());
    // The only addition: what the conversation retains, which is different in every store.
    let budget = exported["metadata"].as_object_mut().unwrap().remove("transcript_budget").unwrap();
    assert_eq!(budget["usage"]["messages"], 1);
    assert_eq!(exported, value(SEED));
    assert_eq!(scope.turns(id).len(), 1);
    // What is said later joins it.
    scope.say(id, NewTurn::assistant("It is fine."));
    let grown = value(&scope.conversation(id).transcript().unwrap());
    assert_eq!(grown["messages"][1]["content"], "It is fine.");
    assert_eq!(grown["events"][1]["text"], "It is fine.");
    assert_eq!((&grown["id"], &grown["summary"]), (&value(SEED)["id"], &value(SEED)["summary"]));
}

#[test]
fn a_transcript_value_of_ours_comes_back_equal() {
    let (_store, scope) = memory();
    let id = eventful(&scope);
    for state in [Lifecycle::Active, Lifecycle::Archived, Lifecycle::Closed] {
        match state {
            Lifecycle::Active => {}
            Lifecycle::Archived => drop(scope.conversation(id).update(Lifecycle::Archived).wait().unwrap()),
            _ => drop(scope.conversation(id).update(Lifecycle::Closed).wait().unwrap()),
        }
        let text = scope.conversation(id).transcript().unwrap();
        let ours = value(&text);
        assert_eq!(ours["id"], format!("tr_{}", &id.to_string()["conv_".len()..]));
        assert_eq!(ours["state"], state.as_str());
        assert_eq!(ours["metadata"]["system_prompt"]["content"], "Be brief.");
        let (_other, elsewhere) = memory();
        let imported = elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!((imported.conversation.id, imported.conversation.state), (id, state));
        let mut again = value(&elsewhere.conversation(id).transcript().unwrap());
        again["metadata"]["transcript_budget"] = ours["metadata"]["transcript_budget"].clone();
        assert_eq!(again, ours, "{state}");
    }
    let again = scope.import(scope.conversation(id).transcript().unwrap().as_bytes(), &mut |_| {}).unwrap();
    assert_eq!((again.conversation.id, again.added), (id, 0));
}

#[test]
fn a_file_of_events_gives_the_same_conversation_in_another_store() {
    let (_memory, from) = memory();
    let id = eventful(&from);
    let file = export(&from, id);
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let mut heard = 0;
    let imported = scope.import(file.as_slice(), &mut |events| heard = events).unwrap();
    let head = from.conversation(id).get().unwrap().head;
    assert_eq!(
        (&*imported.format, imported.events, imported.added, heard),
        ("jsonl", head.seq, head.seq, head.seq)
    );
    assert_eq!(imported.problems, Vec::<String>::new());
    assert_eq!(scope.conversation(id).get().unwrap(), from.conversation(id).get().unwrap());
    assert_eq!(scope.turns(id), from.turns(id));
    assert_eq!(
        scope.conversation(id).log().read(0, 1000).unwrap(),
        from.conversation(id).log().read(0, 1000).unwrap()
    );
    let asset = scope.conversation(id).assets().list().unwrap().remove(0);
    assert_eq!(scope.assets().bytes(&asset).unwrap(), [7; 9000]);
    assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);

    // Once more adds nothing; what came since is added.
    assert_eq!(scope.import(file.as_slice(), &mut |_| {}).unwrap().added, 0);
    from.say(id, NewTurn::user("one more"));
    assert_eq!(scope.import(export(&from, id).as_slice(), &mut |_| {}).unwrap().added, 1);
    assert_eq!(scope.head(id), from.head(id));

    // Two that went on differently are not mixed.
    from.say(id, NewTurn::user("this way"));
    scope.say(id, NewTurn::user("that way"));
    let diverged = scope.import(export(&from, id).as_slice(), &mut |_| {});
    refused(diverged, "restore.diverged", "import it under another tenant or store");
}

#[test]
fn a_fork_comes_with_its_parent() {
    let (_memory, from) = memory();
    let id = eventful(&from);
    let inherited = from.turns(id)[0].clone();
    let fork = from.conversation(id).fork(inherited.seq + 1).wait().unwrap().id();
    let by =
        from.conversation(fork).supersede(inherited.id, NewTurn::user("instead")).wait().unwrap().turns[0].id;
    for stage in [None, Some(Stage::new())] {
        let store = stage.as_ref().map_or_else(|| memory().0, Stage::open);
        let scope = store.tenant("acme").unwrap();
        let imported = scope.import(export(&from, fork).as_slice(), &mut |_| {}).unwrap();
        assert_eq!(imported.conversation, from.shown(fork));
        assert_eq!(scope.turns(fork), from.turns(fork));
        // What the fork did to what it inherited is there, and is not the parent's.
        assert_eq!(
            scope.conversation(fork).turn(inherited.id).unwrap().superseded_by,
            Some(Successor::Turn(by))
        );
        assert_eq!(scope.conversation(id).turn(inherited.id).unwrap().superseded_by, None);
        assert_eq!(
            scope.conversation(id).get().unwrap().head.seq,
            inherited.seq + 1,
            "the parent as far as the fork knows it"
        );
        // The rest of the parent comes with its own file, and does not disturb the fork.
        scope.import(export(&from, id).as_slice(), &mut |_| {}).unwrap();
        assert_eq!(scope.head(id), from.head(id));
        assert_eq!(scope.turns(fork), from.turns(fork));
    }
}

/// The reader looked at its first buffer only: a pipe that gave a few bytes at first was taken for a transcript value.
/// A fork of a fork that leaves within the shared past has no event of the one in between in its file, which an import
/// once asked for by name.
#[test]
fn a_fork_of_a_fork_within_the_shared_past_comes_with_its_ancestor() {
    let (_memory, here) = memory();
    let first = here.create("").wait().unwrap().id();
    let turns = vec![NewTurn::user("one"), NewTurn::user("two")];
    here.conversation(first).append_all(turns).wait().unwrap();
    let between = here.conversation(first).fork(3).wait().unwrap().id();
    let last = here.conversation(between).fork(2).wait().unwrap().get().unwrap();
    assert_eq!(last.parent.map(|parent| parent.conversation), Some(first));
    let (_elsewhere, there) = memory();
    let imported = there.import(export(&here, last.id).as_slice(), &mut |_| {}).unwrap();
    assert_eq!((imported.conversation.head, imported.problems.len()), (last.head, 0));
    there.conversation(last.id).log().verify(None).unwrap();
}

#[test]
fn what_a_file_is_does_not_depend_on_how_it_arrives() {
    let (_memory, from) = memory();
    let id = from.begin();
    from.say(id, NewTurn::user("hello"));
    let (_store, scope) = memory();
    let file = export(&from, id);
    let trickle = BufReader::with_capacity(1, file.as_slice());
    assert_eq!(scope.import(trickle, &mut |_| {}).unwrap().format, "jsonl");
    let trickle = BufReader::with_capacity(1, SEED.as_bytes());
    assert_eq!(scope.import(trickle, &mut |_| {}).unwrap().format, "transcript");
    // A value that tells of the start of a session is a value all the same.
    let value = r#"{"_type":"transcript","version":2,"events":[{"kind":"session_start"}]}"#;
    assert_eq!(scope.import(value.as_bytes(), &mut |_| {}).unwrap().format, "transcript");
}

/// Open turns were known by their id alone: importing a conversation into a second tenant while a turn was open took
/// the stream away from the first.
#[test]
fn importing_elsewhere_does_not_disturb_a_turn_that_is_open_here() {
    let (store, scope) = memory();
    let id = scope.begin();
    let turn = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
    scope.conversation(id).open_turn(turn).chunk(None, "half ").unwrap();
    let other = store.tenant("other").unwrap();
    other.import(export(&scope, id).as_slice(), &mut |_| {}).unwrap();
    assert_eq!(scope.conversation(id).open_turn(turn).chunk(Some(5), "done").unwrap(), 9);
    let turn = scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait().unwrap();
    assert_eq!(words(&turn).unwrap(), "half done");
}

#[test]
fn a_changed_file_is_refused_and_a_cut_one_gives_what_it_has() {
    let (_memory, from) = memory();
    let id = from.begin();
    from.say(id, NewTurn::user("the truth"));
    from.say(id, NewTurn::user("nothing but"));
    let file = String::from_utf8(export(&from, id)).unwrap();
    let (_store, scope) = memory();
    let changed = file.replace("the truth", "the lie!!");
    refused(
        scope.import(changed.as_bytes(), &mut |_| {}),
        "chain.body_mismatch",
        "its body is not the one that was written",
    );
    let cut = &file[..file.find("nothing").unwrap()];
    let (_store, scope) = memory();
    let imported = scope.import(cut.as_bytes(), &mut |_| {}).unwrap();
    assert_eq!(imported.added, 2);
    assert!(imported.problems[0].contains("the last line is cut off"), "{:?}", imported.problems);
    assert_eq!(words(&scope.turns(id)[0]).unwrap(), "the truth");
}

trait Shown {
    /// As an import answers: without the text of the prompt in its metadata.
    fn shown(&self, id: ConversationId) -> everturn_core::conversation::Conversation;
}

impl Shown for Tenant {
    fn shown(&self, id: ConversationId) -> everturn_core::conversation::Conversation {
        let mut conversation = self.conversation(id).get().unwrap();
        conversation.metadata.remove("system_prompt");
        conversation.transcript_budget = None;
        conversation
    }
}

fn written(scope: &Tenant, id: ConversationId, format: Format) -> String {
    let mut out = Vec::new();
    scope.conversation(id).export(format, &mut out, &mut |_| {}).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_format_is_written_from_a_store_and_twice_the_same() {
    let (_store, scope) = memory();
    let id = eventful(&scope);
    for format in Format::ALL {
        assert_eq!(format.as_str().parse::<Format>().unwrap(), format);
        let text = written(&scope, id, format);
        assert!(text.contains("hello"), "{format}: {text}");
        if format != Format::Jsonl {
            assert_eq!(text, written(&scope, id, format), "{format}");
        }
    }
    let unknown = "pdf".parse::<Format>().unwrap_err();
    assert!(
        unknown.text().contains("\"pdf\" is not one of jsonl, session, transcript, openai-chat"),
        "{}",
        unknown.text()
    );
    let chat = value(&written(&scope, id, Format::OpenaiChat));
    assert_eq!(chat["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert!(!chat.to_string().contains("helo\""), "what was superseded is not sent: {chat}");
    assert!(written(&scope, id, Format::Markdown).contains("superseded"));
}

/// Pages of a store are joined without a gap or a repeat, and what is known is written before the rest is read.
#[test]
fn a_long_conversation_is_written_page_by_page() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let said = 2500;
    for n in 0..said {
        let turn = if n % 2 == 0 {
            NewTurn::user(&format!("say {n}"))
        } else {
            NewTurn::assistant(&format!("say {n}"))
        };
        scope.say(id, turn);
    }
    let words: Vec<String> = (0..said).map(|n| format!("say {n}")).collect();
    let chat = value(&written(&scope, id, Format::OpenaiChat));
    let sent: Vec<&str> =
        chat["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(sent, words);
    let page = written(&scope, id, Format::Html);
    let shown: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("<p>say ")?.strip_suffix("</p>")).collect();
    assert_eq!(shown, words.iter().map(|word| &word[4..]).collect::<Vec<_>>());

    let bytes = std::cell::Cell::new(0);
    struct Counter<'a>(&'a std::cell::Cell<usize>);
    impl std::io::Write for Counter<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.set(self.0.get() + bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for format in [Format::Anthropic, Format::Markdown, Format::Html] {
        bytes.set(0);
        let mut steps = Vec::new();
        scope
            .conversation(id)
            .export(format, Counter(&bytes), &mut |seq| steps.push((seq, bytes.get())))
            .unwrap();
        assert!(steps.len() >= 3 && steps.is_sorted(), "{format}: {steps:?}");
        assert!(
            steps[0].1 > 10_000 && steps[0].1 < bytes.get() / 2,
            "{format}: {steps:?} of {}",
            bytes.get()
        );
    }
}
