//! What format 1 wrote is read: a store, a backup, files of a conversation and a receipt, as some build wrote them, have what
//! `expected.jsonl` says. The database of PostgreSQL is restored where `./test postgres` has started a server.
//!
//! `contrib/fixtures` writes `engine/tests/fixtures/format1` anew. Until 0.1.0 is released, that is right whenever a format
//! changes. After that it is never right: people have files like these, and every later build must read them.

use crate::compacting::by_hand;
use crate::stage::{Short, Stage, Still, files, memory, quiet};
use everturn_core::access::KeyRole;
use everturn_core::approval::{Approval, ApprovalBody};
use everturn_core::chain::Hash;
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::event::{Event, kind};
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::{
    AppendOptions, ApprovalOutcome, Caller, Context, ContextOptions, Digest, Everturn, FactQuery, Format,
    ListQuery, NewConversation, NewFact, NewKey, NewStream, NewTurn, Options, RecallRequest, Receipt, Tenant,
    ViewOptions,
};
use everturn_formats::provider::Provider;
use everturn_store::conformance::Database;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const TENANTS: [&str; 2] = ["acme", "globex"];
const TITLE: &str = "A trip to Lisbon";
/// Files of one conversation, and their formats.
const EXPORTS: [(&str, Format); 3] = [
    ("conversation.jsonl", Format::Jsonl),
    ("session.jsonl", Format::Session),
    ("transcript.json", Format::Transcript),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format1").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(fixture(name)).unwrap()
}

/// Whether the fixtures are written anew, so that nothing is read meanwhile.
fn is_writing() -> bool {
    std::env::var_os("EVERTURN_WRITE_FIXTURES").is_some()
}

/// A bit of everything that a log can hold.
fn furnish(store: &Everturn, clock: &Still) {
    let scope = store.tenant("acme").unwrap();
    let (key, _) = store.keys().create(NewKey::new("acme", KeyRole::Writer)).unwrap();
    let prompt = SystemPrompt::new("You are a travel agent.".into());
    let settings = Settings {
        title: Some(Some(TITLE.into())),
        owner: Some(Some("ann".into())),
        participants: vec!["ann".into(), "bot".into()],
        metadata: BTreeMap::from([("project".into(), Raw::of(&"trips").unwrap())]),
        system_prompt: Some(Some(prompt)),
        ..Settings::default()
    };
    let id = scope.create(NewConversation { settings, ..NewConversation::default() }).wait().unwrap().id();
    let chat = scope.conversation(id);
    let say = |turn: NewTurn| {
        clock.advance_s(1);
        scope.say(id, turn)
    };
    let first = say(NewTurn::user("Where is it warm in March? I live in Oslo.").by("ann"));
    let call = json!({"role": "assistant", "content": "I look.", "tool_calls": [{"id": "call_1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"month\":3}"}}]});
    say(NewTurn::message(call.to_string()).by("bot"));
    say(NewTurn::tool_result("call_1", "Lisbon 18 °C, Oslo 1 °C"));
    let answer = say(NewTurn::assistant("In Lisbon, 18 °C.").by("bot"));
    chat.state().pin("budget", 900).wait().unwrap();
    chat.state().set_scratchpad("plan", json!(["book", "pack"])).wait().unwrap();
    let fact = NewFact {
        subject: "ann".into(),
        predicate: "lives in".into(),
        object: "Oslo".into(),
        source_turn: Some(first.id),
        ..NewFact::default()
    };
    chat.facts().add(fact).unwrap();
    let picture = chat.assets().add(Some("beach.png".into()), "image/png", b"the bytes of a beach".to_vec());
    let shown = json!({"role": "user", "content": [{"type": "image", "asset_id": picture.unwrap().id}]});
    say(NewTurn::message(shown.to_string()).by("ann"));
    let request = ApprovalBody {
        approval_id: "a1".into(),
        question: Some("Book the flight?".into()),
        ..ApprovalBody::default()
    };
    chat.state().request_approval(request, Some("bot".into())).wait().unwrap();
    let outcome = ApprovalOutcome {
        approval_id: "a1".into(),
        state: Approval::Approved,
        actor: Some("ann".into()),
        reason: None,
    };
    chat.state().resolve_approval(outcome).wait().unwrap();
    clock.advance_s(1);
    chat.supersede(answer.id, NewTurn::assistant("In Lisbon: 18 °C, and dry.").by("bot")).wait().unwrap();
    let spoken = say(NewTurn::user("My card is 4711, forget that.").by("ann"));
    chat.erase(spoken.id, Some("ann".into()), "asked for").wait().unwrap();
    let keyed = scope.called_by(Caller::holding(key.id.to_string(), KeyRole::Writer, &[]));
    clock.advance_s(1);
    let once = AppendOptions { idempotency_key: Some("once".into()), ..AppendOptions::default() };
    keyed.conversation(id).append(NewTurn::user("Book it.").by("ann")).with(once).wait().unwrap();
    chat.compaction().compact(by_hand(2)).unwrap();
    let view: ViewOptions = ViewOptions::parse(&json!("clean_tool_repair")).unwrap();
    chat.contexts().project_turn(&view).unwrap();
    store.index_now().unwrap();
    clock.advance_s(1);
    let options = ContextOptions {
        provider: Provider::OpenaiChat,
        instructions: Some("Be brief.".into()),
        digests: vec![Digest { title: "Weather".into(), text: "Rain in Oslo.".into() }],
        recall: Some(RecallRequest { turns: 2, facts: 2, query: Some("warm March Oslo".into()) }),
        ..ContextOptions::new(4000)
    };
    let context = chat.contexts().build(&options).unwrap();
    chat.contexts().record(&context).unwrap();
    say(NewTurn::assistant("Booked.").by("bot"));
    let fork = chat.fork(6).wait().unwrap().id();
    clock.advance_s(1);
    scope.say(fork, NewTurn::user("And in April?").by("ann"));

    let other = store.tenant("globex").unwrap();
    let gone = other.begin();
    other.say(gone, NewTurn::user("soon gone"));
    other.conversation(gone).delete("no longer wanted").wait().unwrap();
    let spoken = other.begin();
    other.say(spoken, NewTurn::user("Tell me."));
    clock.advance_s(1);
    let open = other.conversation(spoken).open(NewStream::default()).wait().unwrap().id;
    other.conversation(spoken).open_turn(open).chunk(None, "Once upon a ").unwrap();
    other.conversation(spoken).open_turn(open).chunk(None, "time").unwrap();
}

fn trip(store: &Everturn) -> (Tenant, ConversationId) {
    let scope = store.tenant("acme").unwrap();
    let listed = scope.list(ListQuery::default()).unwrap().data;
    let id = listed.iter().find(|conversation| conversation.title.as_deref() == Some(TITLE)).unwrap().id;
    (scope, id)
}

/// Lines of JSON.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn push(&mut self, name: &str, value: impl Serialize) {
        self.0.push(json!({name: value}).to_string());
    }

    fn extend(&mut self, name: &str, values: impl IntoIterator<Item = impl Serialize>) {
        values.into_iter().for_each(|value| self.push(name, value));
    }
}

/// Everything that can be read of a store.
fn everything(store: &Everturn) -> Vec<String> {
    let mut lines = Lines::default();
    for name in TENANTS {
        let scope = store.tenant(name).unwrap();
        let mut ids: Vec<ConversationId> = scope
            .list(ListQuery::default())
            .unwrap()
            .data
            .iter()
            .map(|conversation| conversation.id)
            .collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| lines.0.extend(conversation(&scope, id)));
        lines.extend("tombstone", scope.tombstones().unwrap());
        lines.extend("key", store.keys().list(name).unwrap());
    }
    assert_eq!(store.doctor(&mut |_| {}).unwrap().findings, []);
    lines.0
}

/// Everything that can be read of a conversation.
fn conversation(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let chat = scope.conversation(id);
    let mut lines = Lines::default();
    lines.push("conversation", chat.get().unwrap());
    let events: Vec<Event> = chat.log().read(0, 1000).unwrap();
    lines.extend("event", &events);
    lines.extend("turn", scope.turns(id));
    lines.push("state", chat.state().read().unwrap());
    let facts =
        FactQuery { include_superseded: true, include_retracted: true, limit: 100, ..FactQuery::default() };
    lines.extend("fact", chat.facts().list(facts).unwrap().data);
    for asset in chat.assets().list().unwrap() {
        let sha256 = Hash::of(&scope.assets().bytes(&asset).unwrap());
        lines.push("asset", json!({"asset": asset, "sha256": sha256}));
    }
    lines.push("chain", chat.log().verify(None).unwrap());
    for event in events.iter().filter(|event| event.kind == kind::RECEIPT) {
        lines.push("prompt", prompt(&chat.contexts().replay_at(event.seq).unwrap()));
    }
    for event in events.iter().filter(|event| event.kind == kind::PROJECTION) {
        lines.push("view", chat.contexts().replay_projection(event.seq).unwrap());
    }
    lines.0
}

fn prompt(context: &Context) -> Value {
    json!({"system": context.system, "messages": context.messages, "prefix_hash": context.prefix_hash})
}

#[track_caller]
fn same(read: &[String], expected: &str) {
    for (number, (read, expected)) in read.iter().zip(expected.lines()).enumerate() {
        assert_eq!(read, expected, "line {} of expected.jsonl", number + 1);
    }
    assert_eq!(read.len(), expected.lines().count());
}

/// The store, unpacked into a folder.
fn unpacked() -> Stage {
    let stage = Stage::new();
    let database = zstd::decode_all(&*std::fs::read(fixture("store.db.zst")).unwrap()).unwrap();
    std::fs::write(stage.path(), database).unwrap();
    let assets = fixture("store.db-assets");
    for from in files(&assets) {
        let to = stage.folder.path().join("store.db-assets").join(from.strip_prefix(&assets).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
    stage
}

/// A repeated request gets its first answer, and the log goes on.
fn goes_on(store: &Everturn) {
    let (scope, id) = trip(store);
    let chat = scope.conversation(id);
    let once = AppendOptions { idempotency_key: Some("once".into()), ..AppendOptions::default() };
    let head = scope.head(id);
    chat.append(NewTurn::user("Book it.").by("ann")).with(once).wait().unwrap();
    assert_eq!(scope.head(id), head, "it was answered before");
    scope.say(id, NewTurn::user("Thanks.").by("ann"));
    chat.log().verify(Some(head)).unwrap();
}

#[test]
fn a_store_of_format_1_is_read_and_goes_on() {
    if is_writing() {
        return;
    }
    let stage = unpacked();
    same(&everything(&stage.open_read_only()), &text("expected.jsonl"));
    goes_on(&stage.open());
    assert_eq!(stage.open_read_only().doctor(&mut |_| {}).unwrap().findings, []);
}

#[test]
fn a_backup_of_format_1_is_restored() {
    if is_writing() {
        return;
    }
    let stage = Stage::new();
    Everturn::restore(&stage.url(), &[fixture("archive.jsonl.zst")], &mut |_, _| {}).unwrap();
    same(&everything(&stage.open_read_only()), &text("expected.jsonl"));
    goes_on(&stage.open());
}

#[test]
fn files_of_format_1_are_imported() {
    if is_writing() {
        return;
    }
    let expected = text("expected.jsonl");
    for (name, format) in EXPORTS {
        let (_store, scope) = memory();
        let id = scope.import(text(name).as_bytes(), &mut |_| {}).unwrap().conversation.id;
        if format == Format::Jsonl {
            let read = conversation(&scope, id);
            let from = expected.lines().position(|line| *line == read[0]).unwrap();
            same(&read, &expected.lines().skip(from).take(read.len()).collect::<Vec<_>>().join("\n"));
            let verified = everturn_formats::jsonl::verify(text(name).as_bytes(), None).unwrap();
            assert!(verified.is_ok(), "{verified:?}");
        }
        let said: Vec<Value> = scope.turns(id).iter().filter_map(|turn| turn.value()).collect();
        assert!(said.iter().any(|message| message["content"] == "Booked."), "{name}: {said:?}");
        if format == Format::Transcript {
            let mut again = Vec::new();
            scope.conversation(id).export(format, &mut again, &mut |_| {}).unwrap();
            let [again, value]: [Value; 2] =
                [&*again, text(name).as_bytes()].map(|bytes| serde_json::from_slice(bytes).unwrap());
            for field in ["version", "id", "summary", "messages", "events"] {
                assert_eq!(again[field], value[field], "{field}");
            }
        }
    }
}

#[test]
fn a_receipt_of_format_1_is_replayed() {
    if is_writing() {
        return;
    }
    let stage = unpacked();
    let store = stage.open_read_only();
    let (scope, id) = trip(&store);
    let receipt: Receipt = serde_json::from_str(&text("receipt.json")).unwrap();
    assert_eq!((receipt.version, receipt.renderer_version), (1, 1));
    let replayed = scope.conversation(id).contexts().replay(&receipt).unwrap();
    assert_eq!(json!(replayed.receipt).to_string() + "\n", text("receipt.json"));
    assert_eq!(replayed.prefix_hash, receipt.prefix_hash);
    let line = json!({"prompt": prompt(&replayed)}).to_string();
    assert!(text("expected.jsonl").lines().any(|expected| expected == line));
}

#[test]
fn a_database_of_format_1_is_read_and_goes_on() {
    if is_writing() {
        return write_database();
    }
    let Some(database) = Database::new() else { return };
    database.run(&text("postgres.sql")).unwrap();
    let read_only = Options { read_only: true, ..quiet() };
    same(&everything(&Everturn::open_with(&database.url(), read_only).unwrap()), &text("expected.jsonl"));
    goes_on(&Everturn::open_with(&database.url(), quiet()).unwrap());
}

/// Writes everything but the database of PostgreSQL.
#[test]
fn the_fixtures_are_written_where_that_is_asked_for() {
    if !is_writing() {
        return;
    }
    let (stage, clock) = (Stage::new(), Still::new(1));
    let store = stage.open_with(clock.options());
    furnish(&store, &clock);
    let (scope, id) = trip(&store);
    for (name, format) in EXPORTS {
        let mut out = std::fs::File::create(fixture(name)).unwrap();
        scope.conversation(id).export(format, &mut out, &mut |_| {}).unwrap();
    }
    let receipts = scope.conversation(id).log().read(0, 1000).unwrap();
    let receipt = receipts.iter().find(|event| event.kind == kind::RECEIPT).unwrap();
    std::fs::write(fixture("receipt.json"), format!("{}\n", receipt.text().unwrap())).unwrap();
    drop((store, scope));

    // The epoch of its last owner is random. A copy has no unused pages, in which it would remain.
    let copy = stage.folder.path().join("copy.db");
    let db = rusqlite::Connection::open(stage.path()).unwrap();
    db.execute_batch(&format!("UPDATE ownership SET epoch = 1; VACUUM INTO '{}'", copy.display())).unwrap();
    drop(db);
    let db = rusqlite::Connection::open(&copy).unwrap();
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    drop(db);
    let database = zstd::encode_all(&*std::fs::read(&copy).unwrap(), 19).unwrap();
    std::fs::write(fixture("store.db.zst"), database).unwrap();
    let assets = stage.folder.path().join("store.db-assets");
    let _ = std::fs::remove_dir_all(fixture("store.db-assets"));
    for from in files(&assets) {
        let to = fixture("store.db-assets").join(from.strip_prefix(&assets).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
    // Closed, so that all text of the open turn is in it.
    let stage = unpacked();
    let store = stage.open_with(Options { read_only: true, ..clock.options() });
    store.backup_to_file(&fixture("archive.jsonl.zst"), &[], &mut |_, _| {}).unwrap();
    let expected: String = everything(&store).iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(fixture("expected.jsonl"), expected).unwrap();
}

/// Writes the database of PostgreSQL, if there is a server: as SQL that any program can run, without what differs from one
/// time to the next.
fn write_database() {
    let Some(database) = Database::without_extensions() else { return };
    let clock = Still::new(1);
    let store = Everturn::open_with(&database.url(), clock.options()).unwrap();
    furnish(&store, &clock);
    drop(store);
    database
        .run(
            "BEGIN; SET LOCAL everturn.tenants = '*';
             UPDATE schema_versions SET at = '2026-01-01T00:00:00Z';
             UPDATE store_identity SET id = '00000000-0000-0000-0000-000000000001';
             DELETE FROM nodes; DELETE FROM leases; UPDATE turn_rows SET node = NULL;
             UPDATE conversation_rows SET begun = '3', changed = '3'; UPDATE erased_bodies SET changed = '3';
             UPDATE asset_bytes SET written = '2026-01-01T00:00:00Z';
             UPDATE access_keys SET changed = '3';
             -- The index of recall is derived, and made again.
             UPDATE recall_feed SET version = 0, snapshot = '1:1:'; DELETE FROM recall_conversations;
             DELETE FROM recall_tenants; DELETE FROM recall_entries; DELETE FROM recall_words;
             DELETE FROM recall_models; DELETE FROM recall_waiting;
             COMMIT",
        )
        .unwrap();
    let program =
        std::env::var("EVERTURN_TEST_POSTGRES_BIN").map_or("pg_dump".into(), |bin| format!("{bin}/pg_dump"));
    let said = Command::new(program)
        .args(["--no-owner", "--no-privileges", "--no-comments", "--inserts", &database.admin()])
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let dump = String::from_utf8(said.stdout).unwrap();
    // Settings of this server's version, commands of `psql`, and comments.
    let is_kept =
        |line: &&str| !line.is_empty() && !["--", "SET ", "\\"].iter().any(|with| line.starts_with(with));
    let lines: Vec<&str> = dump.lines().filter(is_kept).collect();
    let sql = format!("SET check_function_bodies = false;\n{}\n", lines.join("\n"));
    std::fs::write(fixture("postgres.sql"), sql).unwrap();
}
