//! A word in every place that the system writes, then erased: every file and every answer is searched for it.

use crate::stage::{PATIENCE, Short, Stage, quiet, refused};
use everturn_core::approval::ApprovalBody;
use everturn_core::conversation::Settings;
use everturn_core::event::kind;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::model::Summarizer;
use everturn_engine::{
    Change, CompactOptions, ContextOptions, Correction, Error, Everturn, ExtractOptions, FactQuery, Format,
    HistoryQuery, Lifecycle, ListQuery, NewConversation, NewFact, NewStream, NewTurn, Options, RecallOptions,
    Tenant, Update,
};
use everturn_formats::archive::{ArchiveContents, Reader};
use everturn_views::compaction::Checkpoint;
use everturn_views::state::ToolBody;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

const WORD: &str = "quetzalcoatlus";
const NOWHERE: Vec<PathBuf> = Vec::new();

fn titled(title: &str) -> Settings {
    Settings { title: Some(Some(title.into())), ..Settings::default() }
}

/// Turns around it, of many sizes.
fn around(scope: &Tenant, id: ConversationId, turns: usize) {
    for n in 0..turns {
        scope.say(
            id,
            NewTurn::user(&format!("Please look at src/part_{n}.rs {}", "filler ".repeat(n % 7 * 40))),
        );
    }
}

fn extracted(keep_last: usize) -> CompactOptions {
    CompactOptions { keep_last: Some(keep_last), extractive: true, ..CompactOptions::default() }
}

/// Everything that can be asked about a tenant, in one text.
fn answers(scope: &Tenant) -> String {
    let mut all = String::new();
    let query = ListQuery { limit: 1000, ..ListQuery::default() };
    for conversation in scope.list(query).unwrap().data {
        let id = conversation.id;
        all += &format!("{conversation:?}\n{:?}\n", scope.conversation(id).get().unwrap());
        let query = HistoryQuery {
            include_superseded: true,
            include_events: true,
            limit: 1000,
            ..HistoryQuery::default()
        };
        all += &format!("{:?}\n", scope.conversation(id).history(query).unwrap());
        all += &format!("{:?}\n", scope.conversation(id).log().read(0, 1000).unwrap());
        all += &format!(
            "{:?}\n{}\n",
            scope.conversation(id).state().read().unwrap(),
            scope.conversation(id).state().read().unwrap().render()
        );
        let facts = FactQuery {
            include_superseded: true,
            include_retracted: true,
            limit: 1000,
            ..FactQuery::default()
        };
        all += &format!("{:?}\n", scope.conversation(id).facts().list(facts).unwrap());
        all += &format!(
            "{:?}\n",
            scope.conversation(id).contexts().build(&ContextOptions::new(100_000)).map(|c| format!("{c:?}"))
        );
        all += &format!("{:?}\n", scope.conversation(id).assets().list().unwrap());
        for format in Format::ALL {
            let mut file = Vec::new();
            scope.conversation(id).export(format, &mut file, &mut |_| {}).unwrap();
            all += &String::from_utf8_lossy(&file);
        }
        all += &format!("{:?}\n", scope.conversation(id).transcript().unwrap());
        let mut live = scope.conversation(id).subscribe(0).unwrap();
        let head = scope.conversation(id).get().unwrap().head.seq;
        while let Some(update) = live.recv_timeout(PATIENCE).unwrap() {
            all += &format!("{update:?}\n");
            if matches!(&update, Update::Event(event) if event.seq == head) {
                break;
            }
        }
        scope.conversation(id).log().verify(None).unwrap();
    }
    all += &format!("{:?}", scope.recall(WORD, &RecallOptions::default()).unwrap());
    all
}

/// A backup of the whole store, without its compression.
fn archived(store: &Everturn) -> String {
    let mut bytes = Vec::new();
    store.backup(&mut bytes, &ArchiveContents::default(), &mut |_, _| {}).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    std::iter::from_fn(|| reader.next_item().unwrap()).map(|item| format!("{item:?}\n")).collect()
}

#[track_caller]
fn nowhere(stage: &Stage, scope: &Tenant) {
    if stage.path().exists() {
        assert!(!archived(&stage.open_read_only()).contains(WORD), "still backed up");
    }
    let answers = answers(scope);
    let at = answers
        .find(WORD)
        .map(|at| answers[at.saturating_sub(300)..(at + 60).min(answers.len())].to_string());
    assert_eq!(at, None, "still answered");
    // What a background thread does is waited for; what is left then is told by the last line.
    let start = std::time::Instant::now();
    while stage.files_with(WORD) != NOWHERE && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(stage.files_with(WORD), NOWHERE);
}

/// A fork summarized a turn that it had inherited. Erasing the turn in the parent left its words in the fork's checkpoint,
/// which nobody looked for, and in those of the fork's forks.
#[test]
fn a_forks_own_summary_of_an_inherited_turn_goes_with_the_turn() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user(&format!("We decided to call it {WORD} for ever."))).id;
    around(&scope, id, 6);
    let head = scope.conversation(id).get().unwrap().head.seq;
    let fork = scope.conversation(id).fork(head).wait().unwrap().id();
    around(&scope, fork, 4);
    scope.conversation(fork).compaction().compact(extracted(2)).unwrap();
    let nested =
        scope.conversation(fork).fork(scope.conversation(fork).get().unwrap().head.seq).wait().unwrap().id();
    around(&scope, nested, 4);
    scope.conversation(nested).compaction().compact(extracted(1)).unwrap();
    scope.conversation(nested).compaction().revert().unwrap();
    assert!(
        scope.conversation(fork).state().read().unwrap().render().contains(WORD),
        "otherwise this test proves nothing"
    );
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    nowhere(&stage, &scope);
    // The forks go on as before, and can be summarized again.
    around(&scope, fork, 3);
    scope.conversation(fork).compaction().compact(extracted(1)).unwrap();
    assert!(scope.conversation(fork).state().read().unwrap().checkpoint.is_some());
    nowhere(&stage, &scope);
}

/// A branch copied an edit from after the point where it begins. Erasing the edit left the copy, and copies of it.
#[test]
fn copies_of_an_edit_in_branches_go_with_the_edit() {
    let stage = Stage::new();
    for store in [Everturn::open_with("memory:", quiet()).unwrap(), stage.open()] {
        let scope = store.tenant("acme").unwrap();
        let chat = scope.conversation(scope.begin());
        let said = ["Q1", "A1", "Q2", "A2"].map(|text| scope.say(chat.id(), NewTurn::user(text)).id);
        let edit =
            chat.supersede(said[0], format!("We decided on a {WORD}.").into()).wait().unwrap().turns[0].id;
        let (fork, _) = chat.edit_and_branch(said[3], "A2, other".into()).unwrap();
        // A copy of the copy, in a conversation that outlives the one that it was copied from.
        let (nested, _) = fork.edit_and_branch(said[2], "Q2, other".into()).unwrap();
        let inherits = nested.fork(nested.get().unwrap().head.seq).wait().unwrap();
        let (summed, _) = chat.edit_and_branch(said[3], "A2, summed up".into()).unwrap();
        for chat in [&summed, &chat] {
            chat.compaction().compact(extracted(1)).unwrap();
        }
        nested.delete("not needed").wait().unwrap();
        assert!(answers(&scope).contains(WORD), "otherwise this test proves nothing");
        chat.erase(edit, None, "asked for").wait().unwrap();
        nowhere(&stage, &scope);
        // What it replaced stays replaced, in the branches and in further ones.
        let (last, _) = chat.edit_and_branch(said[3], "A2, again".into()).unwrap();
        for chat in [&fork, &inherits, &last] {
            let shown =
                format!("{:?}", chat.contexts().build(&ContextOptions::new(10_000)).unwrap().messages);
            assert!(shown.contains("A1") && !shown.contains("Q1"), "{shown}");
        }
        let findings = store.doctor(&mut |_| {}).unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// The words were read before the erasure, and the branch was committed after it; or the branch came just before.
#[test]
fn a_branch_beside_an_erasure_keeps_no_copy() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    for _ in 0..20 {
        let chat = scope.conversation(scope.begin());
        let said = ["Q1", "A1", "Q2"].map(|text| scope.say(chat.id(), NewTurn::user(text)).id);
        let edit = chat.supersede(said[0], format!("a {WORD} it is").into()).wait().unwrap().turns[0].id;
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| chat.edit_and_branch(said[2], "Q2, other".into()).unwrap());
            }
            threads.spawn(|| chat.erase(edit, None, "asked for").wait().unwrap());
        });
    }
    nowhere(&stage, &scope);
}

type Hook = Box<dyn FnOnce() + Send>;

/// A model that is interrupted once while it writes, and repeats what it was told.
#[derive(Default)]
struct Interrupted {
    meanwhile: Mutex<Option<Hook>>,
    asked: Mutex<u32>,
}

impl Summarizer for Interrupted {
    fn name(&self) -> String {
        "interrupted-1".into()
    }

    fn summarize(
        &self,
        _: &str,
        user: &str,
    ) -> Pin<Box<dyn Future<Output = Result<String, Error>> + Send + 'static>> {
        *self.asked.lock().unwrap() += 1;
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile();
        }
        let says = if user.contains(WORD) { WORD } else { "nothing" };
        let checkpoint = Checkpoint {
            goal: format!("To speak about {says}."),
            handoff_md: "All is well.".into(),
            ..Checkpoint::default()
        };
        let answer = serde_json::to_string(&checkpoint).unwrap();
        Box::pin(async { Ok(answer) })
    }
}

/// The model had read the words before they were erased, and its summary was written afterwards.
#[test]
fn a_summary_that_a_model_still_writes_is_not_kept_if_its_words_are_erased_meanwhile() {
    for sqlite in [true, false] {
        let stage = Stage::new();
        let model = Arc::new(Interrupted::default());
        let summarizers = BTreeMap::from([("default".to_string(), model.clone() as Arc<dyn Summarizer>)]);
        let options = Options { summarizers, ..quiet() };
        let url = if sqlite { stage.url() } else { "memory:".into() };
        let store = Everturn::open_with(&url, options).unwrap();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let turn = scope.say(id, NewTurn::user(&format!("call it {WORD}"))).id;
        around(&scope, id, 6);
        let fork =
            scope.conversation(id).fork(scope.conversation(id).get().unwrap().head.seq).wait().unwrap().id();
        let (other, asked_in) = (scope.clone(), fork);
        let erase = move || {
            other.conversation(asked_in).erase(turn, None, "asked for").wait().unwrap();
        };
        *model.meanwhile.lock().unwrap() = Some(Box::new(erase));
        let options = CompactOptions { keep_last: Some(2), ..CompactOptions::default() };
        let compacted = scope.conversation(id).compaction().compact(options).unwrap();
        assert_eq!(*model.asked.lock().unwrap(), 2, "it is asked again, about what is left");
        assert_eq!(compacted.checkpoint.goal, "To speak about nothing.");
        assert_eq!(scope.kinds(id).iter().filter(|kind| *kind == "compaction").count(), 1);
        nowhere(&stage, &scope);
    }
}

/// A title made of the first message, lines that repeat it, and a fork that took the title over.
#[test]
fn titles_and_imported_lines_go_with_the_turn_that_they_repeat() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let codex = [
        json!({"timestamp":"2026-01-01T00:00:00.000Z","type":"session_meta","payload":{"id":"0199aaaa-0000-7000-8000-000000000001","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/work","originator":"codex_cli_rs","cli_version":"0.50.0"}}),
        json!({"timestamp":"2026-01-01T00:00:01.000Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":format!("Please find out where {WORD} is used in this repository")}]}}),
        json!({"timestamp":"2026-01-01T00:00:01.000Z","type":"event_msg","payload":{"type":"user_message","message":format!("Please find out where {WORD} is used in this repository"),"kind":"plain"}}),
        json!({"timestamp":"2026-01-01T00:00:02.000Z","type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"It is used nowhere."}]}}),
        json!({"timestamp":"2026-01-01T00:00:02.000Z","type":"event_msg","payload":{"type":"agent_message","message":"It is used nowhere."}}),
    ];
    let mut claude = crate::importing::Claude::default();
    let asked = format!("now tell me everything about the {WORD}, and be quick about it please");
    claude.other(json!({"type":"queue-operation","operation":"enqueue","content":asked,"sessionId":"s-1"}));
    claude.user("u1", None, &asked);
    claude.say("a1", Some("u1"), "It could fly.");
    claude.other(json!({"type":"last-prompt","lastPrompt":format!("{}…", &asked[..50]),"sessionId":"s-1"}));
    let codex: String = codex.iter().map(|line| format!("{line}\n")).collect();
    let mut ids = Vec::new();
    for file in [codex, claude.text()] {
        let imported = scope.import(file.as_bytes(), &mut |_| {}).unwrap();
        let id = imported.conversation.id;
        assert!(
            imported.conversation.title.as_deref().is_some_and(|title| title.contains(WORD)),
            "{imported:?}"
        );
        let head = imported.conversation.head.seq;
        let fork = scope.conversation(id).fork(head).wait().unwrap().get().unwrap();
        let title = imported.conversation.title.unwrap();
        assert_eq!(fork.title, Some(format!("{title} (fork at #{head})")));
        ids.push((id, fork.id));
    }
    for (id, fork) in ids {
        let before = scope.conversation(id).get().unwrap();
        let turn =
            scope.turns(id).into_iter().find(|t| t.message.as_ref().is_some_and(|m| m.get().contains(WORD)));
        scope.conversation(id).erase(turn.unwrap().id, Some("dpo".into()), "asked for").wait().unwrap();
        let after = scope.conversation(id).get().unwrap();
        assert_eq!((&after.title, scope.conversation(fork).get().unwrap().title), (&None, None));
        assert_eq!(
            (after.policy, after.metadata.get("import")),
            (before.policy, before.metadata.get("import"))
        );
    }
    nowhere(&stage, &scope);
    store.rebuild().unwrap();
    nowhere(&stage, &scope);
}

/// Bytes as a file of Zstandard that is not made smaller.
fn zstandard(bytes: &[u8]) -> Vec<u8> {
    let (size, block) = (bytes.len() as u32, (bytes.len() as u32) << 3 | 1);
    [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &size.to_le_bytes(), &block.to_le_bytes()[..3], bytes].concat()
}

/// Every other kind of file that can be imported, plain and compressed.
#[test]
fn words_of_every_importer_go_with_the_turn() {
    let asked = format!("Tell me everything about the {WORD}, and be quick about it please");
    let lines =
        |lines: &[serde_json::Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let gemini = [
        json!({"sessionId":"g-1","projectHash":"h","startTime":"2026-01-01T00:00:00.000Z"}),
        json!({"id":"m1","timestamp":"2026-01-01T00:00:01.000Z","type":"user","content":[{"text":asked}]}),
        json!({"id":"m2","timestamp":"2026-01-01T00:00:02.000Z","type":"info","content":asked}),
        json!({"id":"m3","timestamp":"2026-01-01T00:00:03.000Z","type":"gemini","content":"It could fly."}),
    ];
    let messages =
        [json!({"role":"user","content":asked}), json!({"role":"assistant","content":"It could fly."})];
    let blocks = [
        json!({"role":"user","content":[{"type":"text","text":asked}]}),
        json!({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"look","input":{"at":"birds"}}]}),
        json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":format!("a {WORD}")}]}),
    ];
    let responses = json!([
        {"type":"message","role":"user","content":[{"type":"input_text","text":asked}]},
        {"type":"function_call","call_id":"c","name":"look","arguments":json!({"at": WORD}).to_string()},
        {"type":"function_call_output","call_id":"c","output":"a bird"},
    ]);
    let contents = json!({"contents":[{"role":"user","parts":[{"text":asked}]},{"role":"model","parts":[{"text":"It could fly."}]}]});
    let transcript = json!({"_type":"transcript","version":2,"messages":messages});
    let files = [
        ("gemini-cli", lines(&gemini)),
        ("openai-chat", json!({"messages": messages}).to_string()),
        ("openai-responses", responses.to_string()),
        ("anthropic", json!({"messages": blocks}).to_string()),
        ("gemini", contents.to_string()),
        ("messages", lines(&messages)),
        ("transcript", transcript.to_string()),
    ];
    for (name, file) in files {
        for bytes in [file.clone().into_bytes(), zstandard(file.as_bytes())] {
            let compressed = bytes.starts_with(&[0x28]);
            if name == "transcript" && compressed {
                continue;
            }
            let stage = Stage::new();
            let store = stage.open();
            let scope = store.tenant("acme").unwrap();
            let imported = scope.import(&bytes[..], &mut |_| {}).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            let id = imported.conversation.id;
            store.index_now().unwrap();
            assert_ne!(stage.files_with(WORD), NOWHERE, "{name}");
            let with_words: Vec<_> = scope
                .turns(id)
                .into_iter()
                .filter(|turn| turn.message.as_ref().is_some_and(|message| message.get().contains(WORD)))
                .collect();
            assert!(!with_words.is_empty(), "{name}");
            for turn in with_words {
                scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
            }
            nowhere(&stage, &scope);
            store.rebuild().unwrap();
            nowhere(&stage, &scope);
        }
    }
}

/// Everything else that can be written, each erased by itself.
#[test]
fn every_event_with_words_can_be_erased_by_its_place() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let metadata = BTreeMap::from([("note".to_string(), Raw::of(&format!("about the {WORD}")).unwrap())]);
    let prompt = everturn_core::conversation::SystemPrompt::new(format!("You are a {WORD}."));
    let policy = BTreeMap::from([("redaction".to_string(), Raw::of(&"off").unwrap())]);
    let settings = Settings {
        metadata,
        system_prompt: Some(Some(prompt)),
        policy: policy.clone(),
        ..titled(&format!("The {WORD}"))
    };
    let id = scope.begin_with(settings).id;
    around(&scope, id, 5);
    scope.conversation(id).state().pin("animal", Raw::of(&WORD).unwrap()).wait().unwrap();
    let asked = ApprovalBody {
        approval_id: "a1".into(),
        question: Some(format!("Free the {WORD}?")),
        ..Default::default()
    };
    scope
        .conversation(id)
        .log()
        .append(kind::APPROVAL_REQUESTED, None, Raw::of(&asked).unwrap())
        .wait()
        .unwrap();
    let started =
        ToolBody { tool_call_id: "t1".into(), tool_name: None, summary: Some(format!("feeding the {WORD}")) };
    scope.conversation(id).log().append(kind::TOOL_STARTED, None, Raw::of(&started).unwrap()).wait().unwrap();
    scope
        .conversation(id)
        .log()
        .append("audit.note", Some("ann".into()), Raw::of(&json!({"saw": WORD})).unwrap())
        .wait()
        .unwrap();
    let fact = scope
        .conversation(id)
        .facts()
        .add(NewFact {
            subject: "it".into(),
            predicate: "is".into(),
            object: WORD.into(),
            ..NewFact::default()
        })
        .unwrap();
    let correction = Correction { object: Some(format!("a young {WORD}")), ..Correction::default() };
    scope.conversation(id).facts().correct(fact.id, correction).unwrap();
    let given =
        ContextOptions { instructions: Some(format!("Think of a {WORD}.")), ..ContextOptions::new(100_000) };
    let context = scope.conversation(id).contexts().build(&given).unwrap();
    scope.conversation(id).contexts().record(&context).unwrap();
    scope
        .conversation(id)
        .update(Change {
            state: Some(Lifecycle::Abandoned),
            reason: Some(format!("the {WORD} flew away")),
            ..Change::default()
        })
        .wait()
        .unwrap();
    assert_ne!(stage.files_with(WORD), NOWHERE);
    let with_words: Vec<u64> = scope
        .conversation(id)
        .log()
        .read(0, 1000)
        .unwrap()
        .iter()
        .filter(|event| {
            event.text().is_some_and(|text| text.contains(WORD)) || event.kind == kind::ASSET_ADDED
        })
        .map(|event| event.seq)
        .collect();
    assert!(with_words.len() >= 9, "{with_words:?}");
    refused(scope.conversation(id).log().erase(&[3], None, ""), "erase.turn", "erase that turn");
    refused(scope.conversation(id).log().erase(&[999], None, ""), "seq.out_of_range", "has no seq 999");
    scope.conversation(id).log().erase(&with_words, Some("dpo".into()), "asked for").unwrap();
    let record = scope
        .conversation(id)
        .log()
        .read(scope.conversation(id).get().unwrap().head.seq - 1, 1)
        .unwrap()
        .remove(0)
        .seq;
    refused(scope.conversation(id).log().erase(&[record], None, ""), "erase.wordless", "it stays");
    nowhere(&stage, &scope);
    let after = scope.conversation(id).get().unwrap();
    assert_eq!((after.title, after.policy), (None, policy));
    assert_eq!(after.state.to_string(), "abandoned");
    store.rebuild().unwrap();
    let rebuilt = scope.conversation(id).get().unwrap();
    assert_eq!((rebuilt.title, rebuilt.state.to_string()), (None, "abandoned".into()));
    nowhere(&stage, &scope);
}

/// A reader that is slower than the erasure had the words in its buffer and handed them out afterwards.
#[test]
fn a_slow_reader_is_not_given_words_that_were_erased_meanwhile() {
    for sqlite in [true, false] {
        let stage = Stage::new();
        let url = if sqlite { stage.url() } else { "memory:".into() };
        let store = Everturn::open_with(&url, quiet()).unwrap();
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let early = scope.say(id, NewTurn::user(&format!("early {WORD}"))).id;
        // This one has read the log already and stands in the middle of it.
        let mut behind = scope.conversation(id).subscribe(0).unwrap();
        assert!(behind.recv_timeout(PATIENCE).unwrap().is_some());
        // This one follows, and what comes waits in the ring; of a part it has a copy.
        let mut live = scope.conversation(id).subscribe(2).unwrap();
        scope.say(id, NewTurn::user("nothing"));
        assert!(live.recv_timeout(PATIENCE).unwrap().is_some());
        let open = scope.conversation(id).open(NewStream::default()).wait().unwrap().id;
        scope.conversation(id).open_turn(open).chunk(None, &format!("chunk of {WORD}")).unwrap();
        scope.conversation(id).open_turn(open).abort("enough", None).wait().unwrap();
        let late = scope.say(id, NewTurn::user(&format!("late {WORD}"))).id;
        scope.say(id, NewTurn::user("more"));
        assert!(live.recv_timeout(PATIENCE).unwrap().is_some());
        for turn in [early, open, late] {
            scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
        }
        let head = scope.conversation(id).get().unwrap().head.seq;
        for (name, reader) in [("behind", &mut behind), ("live", &mut live)] {
            let mut seen = Vec::new();
            loop {
                let update = reader.recv_timeout(PATIENCE).unwrap().expect("the rest comes");
                assert!(!format!("{update:?}").contains(WORD), "{name}: {update:?}");
                if let Update::Event(event) = &update {
                    seen.push(event.seq);
                    if event.seq == head {
                        break;
                    }
                }
            }
            let first = seen[0];
            assert_eq!(
                seen,
                (first..=head).collect::<Vec<_>>(),
                "{name}: without a gap and without a repeat"
            );
        }
    }
}

/// What a model learned while the words were erased, and corrections of what had been learned before.
#[test]
fn facts_and_their_corrections_go_with_the_turn() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("I keep a bird.")).id;
    let new = NewFact {
        subject: "user".into(),
        predicate: "keeps".into(),
        object: "a bird".into(),
        source_turn: Some(turn),
        ..NewFact::default()
    };
    let fact = scope.conversation(id).facts().add(new).unwrap().id;
    let correction = Correction { object: Some(format!("a {WORD}")), ..Correction::default() };
    let right = scope.conversation(id).facts().correct(fact, correction).unwrap().id;
    scope.conversation(id).facts().retract(right, None, Some(format!("no {WORD} is kept"))).unwrap();
    store.index_now().unwrap();
    assert_ne!(stage.files_with(WORD), NOWHERE);
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    nowhere(&stage, &scope);
    assert!(
        scope.conversation(id).facts().extract(ExtractOptions::default()).is_err(),
        "there is no model here"
    );
}

/// Everything that one person said, wherever; and nothing of anybody else.
#[test]
fn everything_that_an_actor_said_can_be_erased_at_once() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let other = store.tenant("globex").unwrap();
    let theirs = other.begin();
    other.say(theirs, NewTurn::user("ann of globex stays").by("ann"));
    let mut conversations = Vec::new();
    for n in 0..12 {
        let id = scope.begin_with(titled(&format!("Ann speaks of the {WORD} again and again"))).id;
        scope.say(
            id,
            NewTurn::user(&format!("Ann speaks of the {WORD} again and again, in number {n}")).by("ann"),
        );
        scope.say(id, NewTurn::user(&format!("bob in number {n}")).by("bob"));
        around(&scope, id, 4);
        conversations.push(id);
    }
    let data = format!("{WORD} ").repeat(2000);
    let message = json!({"role": "user", "content": [{"type": "file", "filename": "a.txt", "file_data":
        format!("data:text/plain;base64,{}", base64::Engine::encode(&base64::engine::general_purpose::STANDARD, data))}]});
    scope.say(conversations[0], NewTurn::message(message.to_string()).by("ann"));
    scope.conversation(conversations[1]).compaction().compact(extracted(2)).unwrap();
    let fork = scope.conversation(conversations[2]).fork(3).wait().unwrap().id();
    scope.conversation(conversations[2]).delete("moved").wait().unwrap();
    let stream = NewStream { actor: Some("ann".into()), ..NewStream::default() };
    let open = scope.conversation(conversations[3]).open(stream).wait().unwrap().id;
    scope
        .conversation(conversations[3])
        .open_turn(open)
        .chunk(None, &format!("still speaking of {WORD}"))
        .unwrap();
    scope
        .conversation(conversations[4])
        .log()
        .append("note", Some("ann".into()), Raw::of(&WORD).unwrap())
        .wait()
        .unwrap();
    let mut told = 0;
    let done = scope.erase_actor("ann", Some("dpo".into()), "asked for", &mut |_| told += 1).unwrap();
    assert_eq!((done.turns, done.events, done.conversations), (14, 1, 12));
    assert!(told >= 12);
    nowhere(&stage, &scope);
    let bob = |id| {
        scope.turns(id).iter().filter(|turn| turn.actor.as_deref() == Some("bob") && !turn.erased).count()
    };
    let left: usize = conversations.iter().filter(|id| **id != conversations[2]).map(|id| bob(*id)).sum();
    assert_eq!((left, bob(fork)), (11, 1));
    assert!(answers(&other).contains("ann of globex stays"));
    let again = scope.erase_actor("ann", None, "asked for", &mut |_| {}).unwrap();
    assert_eq!((again.turns, again.events, again.conversations), (0, 0, 0));
    refused(scope.erase_actor("", None, "", &mut |_| {}), "name.malformed", "empty");
}

/// Writing the same settings by hand is no way around it: the request that made a conversation can come again.
#[test]
fn a_repeated_request_is_not_answered_with_erased_words() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let new = NewConversation {
        settings: titled(WORD),
        idempotency_key: Some("once".into()),
        ..NewConversation::default()
    };
    let id = scope.create(new.clone()).wait().unwrap().id();
    scope.conversation(id).log().erase(&[1], None, "asked for").unwrap();
    assert_eq!(scope.create(new).wait().unwrap().get().unwrap().title, None);
    nowhere(&stage, &scope);
}

/// Files that the process writes beside the store: the mirror, and records of what was asked over MCP.
#[test]
fn the_mirror_and_records_of_sessions_lose_the_words_too() {
    let stage = Stage::new();
    let folder = |name: &str| stage.folder.path().join(name);
    let store = stage.open_with(Options { mirror: Some(folder("mirror")), ..quiet() });
    let scope = store.tenant("acme").unwrap();
    scope.records_in(&folder("records")).unwrap();
    let id = scope.begin();
    let said = format!("call it the {WORD}");
    let turn = scope.say(id, NewTurn::user(&said)).id;
    let fork = scope.conversation(id).fork(2).wait().unwrap().id();
    let line = |entry: serde_json::Value| format!("{entry}\n");
    let sessions = folder("records/acme/sessions");
    std::fs::create_dir_all(&sessions).unwrap();
    let file = sessions.join("one.jsonl");
    let stays =
        line(json!({"type": "agent_tool_call", "tool": "list", "parameters": {}, "call_id": "call_9"}));
    let before = [
        line(json!({"type": "session_start", "timestamp": "2026-01-01T00:00:00Z", "tenant": "acme"})),
        line(json!({"type": "agent_tool_call", "tool": "append", "parameters": {"text": WORD}, "call_id": "call_1"})),
        line(json!({"type": "tool_result", "tool": "append", "result": {"turn": turn}, "call_id": "call_1"})),
        line(json!({"type": "mcp_dispatch", "method": "prompts/get", "parameters": {"id": fork}, "result": {"text": said}})),
        stays.clone(),
    ]
    .concat();
    std::fs::write(&file, &before).unwrap();
    crate::stage::until("the mirror has it", || stage.files_with(WORD).len() >= 3);
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    nowhere(&stage, &scope);
    let after = std::fs::read_to_string(&file).unwrap();
    assert_eq!((after.len(), after.lines().count()), (before.len(), 5));
    assert!(after.ends_with(&stays), "{after}");
    let entries: Vec<serde_json::Value> =
        after.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let erased: Vec<bool> = entries.iter().map(|entry| entry["erased"] == true).collect();
    assert_eq!(erased, [false, true, true, true, false]);
    assert_eq!((&entries[1]["tool"], &entries[2]["call_id"]), (&json!("append"), &json!("call_1")));
}

/// `everturn erase` on the store itself knew nothing of the folders that a server had been told to write to.
#[test]
fn an_erasure_reaches_mirrors_and_records_that_another_process_made() {
    let stage = Stage::new();
    let folder = |name: &str| stage.folder.path().join(name);
    let sessions = folder("records/acme/sessions");
    let (id, other, turn, fork);
    {
        let store = stage.open_with(Options { mirror: Some(folder("mirror")), ..quiet() });
        let scope = store.tenant("acme").unwrap();
        scope.records_in(&folder("records")).unwrap();
        (id, other) = (scope.begin(), scope.begin());
        turn = scope.say(id, NewTurn::user(&format!("call it the {WORD}"))).id;
        fork = scope.conversation(id).fork(2).wait().unwrap().id();
        scope.say(other, NewTurn::user(&format!("{WORD} again")));
        std::fs::create_dir_all(&sessions).unwrap();
        for id in [id, other] {
            let record = json!({"type": "mcp_dispatch", "parameters": {"id": id}, "result": {"text": WORD}});
            std::fs::write(sessions.join(format!("{id}.jsonl")), format!("{record}\n")).unwrap();
        }
    }
    let mirrored = |id: ConversationId| folder("mirror/acme").join(format!("{id}.jsonl"));
    let copies = [mirrored(id), mirrored(fork), mirrored(other)];
    assert!(copies.iter().all(|copy| stage.files_with(WORD).contains(copy)), "{:?}", stage.files_with(WORD));
    // A folder that is gone is no reason to fail.
    stage.open_with(Options { mirror: Some(folder("gone")), ..quiet() });
    std::fs::remove_dir_all(folder("gone")).unwrap();

    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    scope.conversation(other).delete("asked for").wait().unwrap();
    nowhere(&stage, &scope);
    assert!(!mirrored(other).exists() && !folder("gone").exists());
    let text = std::fs::read_to_string(mirrored(fork)).unwrap();
    assert!(text.contains(&turn.to_string()), "the envelope stays: {text}");
}

/// An answer that was made before an erasure and recorded after it.
#[test]
fn what_was_read_before_an_erasure_is_not_recorded_after_it() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let records = scope.records_in(&stage.folder.path().join("records")).unwrap();
    std::fs::create_dir_all(stage.folder.path().join("records/acme/sessions")).unwrap();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user(WORD)).id;
    let mark = records.mark();
    assert!(!records.write(mark, |erased| erased));
    // Somebody else who reads the same store records too.
    let reader = stage.open_read_only();
    let theirs = reader.tenant("acme").unwrap().records_in(&stage.folder.path().join("records")).unwrap();
    let their_mark = theirs.mark();
    scope.conversation(id).erase(turn, None, "asked for").wait().unwrap();
    assert!(records.write(mark, |erased| erased) && theirs.write(their_mark, |erased| erased));
    let mark = records.mark();
    assert!(!records.write(mark, |erased| erased), "what is read from now on has no such words");
}
