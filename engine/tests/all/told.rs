//! What the engine answers with can be read back by a client, and written again with the same bytes.

use everturn_core::conversation::{Conversation, Tombstone};
use everturn_core::json::Raw;
use everturn_engine::{
    Appended, Compacted, Context, ContextOptions, Digest, Doctor, Everturn, Format, HistoryEntry,
    HistoryQuery, Imported, NewTurn, Options, Page,
};
use everturn_views::state::State;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn again<T: Serialize + DeserializeOwned>(value: &T) {
    let told = serde_json::to_string(value).unwrap();
    let read: T = serde_json::from_str(&told).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), told);
}

fn each<T: Serialize + DeserializeOwned, C>(page: &Page<T, C>) {
    page.data.iter().for_each(again);
}

#[test]
fn every_answer_is_read_back() {
    let options = Options { auto_compaction: false, ..Options::default() };
    let scope = Everturn::open_with("memory:", options).unwrap().tenant("acme").unwrap();
    let mut new = everturn_engine::NewConversation::default();
    new.settings.title = Some(Some("Ünïcode".into()));
    new.settings.metadata.insert("a".into(), Raw::new("[1.0, 1e2]".into()).unwrap());
    let id = scope.create(new).wait().unwrap().id();
    for n in 0..8 {
        let turn = NewTurn::user(&format!("Look at src/part_{n}.rs, it takes {n}17 ms.")).by("ana");
        again::<Appended>(&scope.conversation(id).append(turn).wait().unwrap());
    }
    let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"run","arguments":"{\"x\": 1}"}}]}"#;
    scope.conversation(id).append(NewTurn::message(call)).wait().unwrap();
    scope
        .conversation(id)
        .state()
        .pin("limits", Raw::new("{\"files\": 3.0}".into()).unwrap())
        .wait()
        .unwrap();
    again::<Compacted>(
        &scope
            .conversation(id)
            .compaction()
            .compact(everturn_engine::CompactOptions { dry_run: true, ..Default::default() })
            .unwrap(),
    );
    again::<Compacted>(&scope.conversation(id).compaction().compact(Default::default()).unwrap());
    again::<State>(&scope.conversation(id).state().read().unwrap());
    let ask = ContextOptions {
        digests: vec![Digest { title: "Board".into(), text: "3 open".into() }],
        projection: Some(
            everturn_engine::script::options(&serde_json::json!({"policy": "clean_tool_repair"})).unwrap(),
        ),
        sections: everturn_views::context::Sections::parse(&serde_json::json!({"digests": {"share": 0.3}}))
            .unwrap(),
        input: vec![Raw::new(r#"{"role":"user","content":"And now?"}"#.into()).unwrap()],
        ..ContextOptions::new(300)
    };
    let context = scope.conversation(id).contexts().build(&ask).unwrap();
    again::<Context>(&context);
    scope.conversation(id).contexts().record(&context).unwrap();
    again::<Context>(&scope.conversation(id).contexts().build(&ContextOptions::new(400)).unwrap());
    each::<HistoryEntry, _>(&scope.conversation(id).history(HistoryQuery::default()).unwrap());
    each::<HistoryEntry, _>(
        &scope
            .conversation(id)
            .history(HistoryQuery { include_events: true, ..HistoryQuery::default() })
            .unwrap(),
    );
    let turn = scope.conversation(id).history(HistoryQuery::default()).unwrap().data.remove(0);
    let HistoryEntry::Turn(turn) = turn else { panic!("the first entry is a turn") };
    scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
    again(&*scope.turn(turn.id).map(Box::new).unwrap());
    again::<Doctor>(&scope.doctor(&mut |_| {}).unwrap());
    again(&scope.conversation(id).log().verify(None).unwrap());
    again::<Conversation>(&scope.conversation(id).get().unwrap());
    again::<Conversation>(&scope.conversation(id).fork(5).wait().unwrap().get().unwrap());
    let mut file = Vec::new();
    scope.conversation(id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
    again::<Imported>(&scope.import(file.as_slice(), &mut |_| {}).unwrap());
    again::<Tombstone>(&scope.conversation(id).delete("test").wait().unwrap());
}

/// Types that public fields show used to have no name for a program that depends on this crate alone.
#[test]
fn types_of_public_fields_have_names() {
    let scope = Everturn::open("memory:").unwrap().tenant("acme").unwrap();
    let chat = scope.create("Names").wait().unwrap();
    let appended = chat.append(NewTurn::user("hello")).wait().unwrap();
    let everturn_engine::State { pending_approvals, pending_tools, pins, scratchpads, .. } =
        chat.state().read().unwrap();
    let _: Vec<everturn_engine::PendingApproval> = pending_approvals;
    let _: Vec<everturn_engine::PendingTool> = pending_tools;
    let _: Vec<everturn_engine::PinnedValue> = pins.into_values().collect();
    let _: Vec<everturn_engine::Scratchpad> = scratchpads.into_values().collect();
    let _: Option<everturn_engine::Successor> = appended.turns[0].superseded_by;
    let _: Option<everturn_engine::Body> = chat.log().read(0, 1).unwrap().remove(0).body;
    let conversation = chat.get().unwrap();
    let _: Option<everturn_engine::PromptRef> = conversation.system_prompt;
    let _: Option<everturn_engine::CheckpointRef> = conversation.checkpoint;
    let _: Option<everturn_engine::BudgetRef> = conversation.budget;
    let fact = everturn_engine::NewFact {
        subject: "tea".into(),
        predicate: "is".into(),
        object: "green".into(),
        ..Default::default()
    };
    let everturn_engine::Fact { status, sources, retracted, .. } = chat.facts().add(fact).unwrap();
    let (_, _, _): (
        everturn_engine::FactStatus,
        Vec<everturn_engine::FactSource>,
        Option<everturn_engine::Retraction>,
    ) = (status, sources, retracted);
    let everturn_engine::ViewOptions { policies, signatures, reachability, clearing, .. } =
        everturn_engine::script::options(&serde_json::json!({"policy": "clear_tool_uses"})).unwrap();
    let _: Vec<everturn_engine::ProjectionPolicy> = policies;
    let (_, _, clearing): (
        everturn_engine::Signatures,
        everturn_engine::Reachability,
        everturn_engine::Clearing,
    ) = (signatures, reachability, clearing);
    let _: everturn_engine::Trigger = clearing.trigger;
    let context = chat.contexts().build(&ContextOptions::new(1000)).unwrap();
    let _: everturn_engine::BlockSource = context.included[0].source.clone();
}
