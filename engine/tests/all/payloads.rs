//! Large payloads: out of the turn, kept once, put back for a provider, gone with the last one who shows them.

use crate::stage::{Short, Stage, files, memory, refused};
use base64::Engine;
use everturn_core::asset;
use everturn_core::chain::Hash;
use everturn_core::id::ConversationId;
use everturn_core::turn::Turn;
use everturn_engine::{AppendOptions, NewStream, NewTurn, Role, Tenant};
use std::path::PathBuf;

fn encoded(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Text, so that it can be looked for in files.
fn payload(mark: &str) -> Vec<u8> {
    format!("{mark} ").repeat(9000 / (mark.len() + 1) + 1).into_bytes()
}

fn message(bytes: &[u8]) -> String {
    format!(
        r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{}"}}}},{{"type":"text","text":"look"}}]}}"#,
        encoded(bytes)
    )
}

fn show(scope: &Tenant, id: ConversationId, bytes: &[u8]) -> Turn {
    let appended = scope.try_say(id, NewTurn::message(message(bytes))).unwrap();
    appended.turns.into_iter().next().unwrap()
}

fn asset_files(stage: &Stage) -> Vec<PathBuf> {
    let folder = stage.folder.path().join("store.db-assets");
    if folder.is_dir() { files(&folder) } else { Vec::new() }
}

fn restored(scope: &Tenant, turn: &Turn) -> String {
    let assets = scope.conversation(turn.conversation).assets().list().unwrap();
    asset::restore(turn.message.as_ref().unwrap().get(), |id| {
        scope.assets().bytes(assets.iter().find(|asset| asset.id == id)?).ok()
    })
    .unwrap()
}

/// Regression: the bytes were stored before the request was known to be a repeat, and stayed.
#[test]
fn a_repeat_brings_no_erased_bytes_back() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let chat = scope.conversation(scope.begin());
    let show = || {
        let options = AppendOptions { idempotency_key: Some("k".into()), ..AppendOptions::default() };
        chat.append(NewTurn::message(message(&payload("pixels")))).with(options).wait().unwrap()
    };
    let shown = show();
    assert!(show().repeated);
    assert_eq!(asset_files(&stage).len(), 1);
    chat.erase(shown.turns[0].id, None, "on request").wait().unwrap();
    assert!(show().repeated);
    assert_eq!(asset_files(&stage), [] as [PathBuf; 0]);
}

#[test]
fn a_large_inline_payload_becomes_an_asset_and_comes_back_byte_for_byte() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let id = scope.begin();
    let bytes = payload("pixels");
    let turn = show(&scope, id, &bytes);
    assert_eq!(scope.kinds(id), ["conversation.created", "asset.added", "message"]);
    let stored = turn.message.as_ref().unwrap().get().to_string();
    assert!(stored.len() < 400 && stored.contains("\"asset_id\":\"asset_"), "{stored}");
    let assets = scope.conversation(id).assets().list().unwrap();
    assert_eq!(assets.len(), 1);
    assert_eq!((assets[0].kind.as_str(), assets[0].mime_type.as_str()), ("image", "image/png"));
    assert_eq!((assets[0].bytes, assets[0].sha256), (Some(bytes.len() as u64), Some(Hash::of(&bytes))));
    assert_eq!(scope.assets().bytes(&assets[0]).unwrap(), bytes);
    assert_eq!(restored(&scope, &turn), message(&bytes));
    let path = assets[0].storage.as_ref().unwrap().path.clone().unwrap();
    assert!(stage.folder.path().join("store.db-assets").join(path).is_file());

    // Small ones stay where they are.
    let small = message(b"tiny");
    assert_eq!(scope.say(id, NewTurn::message(small.clone())).message.unwrap().get(), small);
}

#[test]
fn a_streamed_turn_may_end_with_a_payload_too() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let bytes = payload("drawn");
    let turn = scope
        .conversation(id)
        .open(NewStream { role: Some(Role::User), ..NewStream::default() })
        .wait()
        .unwrap()
        .id;
    let turn =
        scope.conversation(id).open_turn(turn).commit(NewTurn::message(message(&bytes))).wait().unwrap();
    assert_eq!(restored(&scope, &turn), message(&bytes));
}

#[test]
fn the_same_bytes_are_stored_once_for_a_tenant_and_never_shared_between_tenants() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let [one, two] = [0, 1].map(|_| scope.begin());
    let bytes = payload("again");
    for id in [one, one, two] {
        show(&scope, id, &bytes);
    }
    assert_eq!(asset_files(&stage).len(), 1);
    let other = store.tenant("other").unwrap();
    let asset = scope.conversation(one).assets().list().unwrap().remove(0);
    refused(other.assets().bytes(&asset), "asset.absent", "are not here");
    show(&other, other.begin(), &bytes);
    assert_eq!(asset_files(&stage).len(), 2);
}

#[test]
fn bytes_go_with_the_last_turn_that_shows_them_and_not_before() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let other = store.tenant("other").unwrap();
    let [one, two] = [0, 1].map(|_| scope.begin());
    let bytes = payload("vanish");
    let shown = [show(&scope, one, &bytes), show(&scope, one, &bytes), show(&scope, two, &bytes)];
    show(&other, other.begin(), &bytes);
    assert_eq!(asset_files(&stage).len(), 2);
    scope.conversation(one).erase(shown[0].id, None, "asked for").wait().unwrap();
    assert_eq!(restored(&scope, &shown[1]), message(&bytes), "another turn of the conversation shows them");
    scope.conversation(one).erase(shown[1].id, None, "asked for").wait().unwrap();
    assert_eq!(restored(&scope, &shown[2]), message(&bytes), "another conversation of the tenant shows them");
    scope.conversation(two).delete("over").wait().unwrap();
    let left = asset_files(&stage);
    assert_eq!(left.len(), 1, "only the other tenant's");
    assert!(left[0].to_string_lossy().contains("/other/"));
    assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
    assert_eq!(other.doctor(&mut |_| {}).unwrap().assets, 1);
}

#[test]
fn a_fork_keeps_the_payloads_that_it_inherited() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let id = scope.begin();
    let bytes = payload("inherited");
    let turn = show(&scope, id, &bytes);
    let fork = scope.conversation(id).fork(turn.seq).wait().unwrap().id();
    scope.conversation(id).delete("over").wait().unwrap();
    let inherited = scope.conversation(fork).turn(turn.id).unwrap();
    assert_eq!(restored(&scope, &inherited), message(&bytes));
    scope.conversation(fork).delete("over").wait().unwrap();
    assert_eq!(asset_files(&stage), Vec::<PathBuf>::new());
}

#[test]
fn an_asset_can_be_added_first_and_shown_later() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let asset = scope
        .conversation(id)
        .assets()
        .add(Some("plan.pdf".into()), "application/pdf", b"%PDF".to_vec())
        .unwrap();
    assert_eq!((asset.kind.as_str(), asset.label().as_str()), ("file", "plan.pdf"));
    let message = format!(r#"{{"role":"user","content":[{{"type":"document","asset_id":"{}"}}]}}"#, asset.id);
    let turn = scope.say(id, NewTurn::message(message));
    let text = turn.text(|wanted| (wanted == asset.id).then(|| asset.label()));
    assert_eq!(text, "<document:plan.pdf>");
    scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap();
    assert_eq!(scope.conversation(id).assets().list().unwrap(), []);
    refused(scope.assets().bytes(&asset), "asset.absent", "are not here");
}

#[test]
fn an_asset_is_found_by_its_id_alone_and_read_in_parts() {
    let stage = Stage::new();
    for store in [memory().0, stage.open()] {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let added = scope
            .conversation(id)
            .assets()
            .add(Some("a.txt".into()), "text/plain", b"0123456789".to_vec())
            .unwrap();
        assert_eq!(scope.assets().get(&added.id).unwrap(), added);
        assert_eq!(scope.conversation(id).assets().get(&added.id).unwrap(), added);
        let read = |range| scope.assets().range(&added, range).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!((read(0..4).unwrap(), read(4..10).unwrap()), ("0123".into(), "456789".into()));
        assert_eq!(read(8..1000).unwrap(), "89", "a range may go beyond the end");
        refused(read(10..11), "asset.range", "has 10 bytes, none of them in 10..11");
        refused(read(3..3), "asset.range", "none of them in 3..3");

        let other = store.tenant("globex").unwrap();
        refused(other.assets().get(&added.id), "asset.absent", &added.id);
        refused(scope.conversation(scope.begin()).assets().get(&added.id), "asset.absent", &added.id);
        refused(scope.assets().get("asset_none"), "asset.absent", "asset_none");
        scope.conversation(id).delete("over").wait().unwrap();
        refused(scope.assets().get(&added.id), "asset.absent", &added.id);
        refused(read(0..4), "asset.absent", "not here");
    }
}

/// A transcript value brings the ids of its assets along, and another one may have used the same for something else.
#[test]
fn an_id_that_means_two_assets_is_refused_unless_the_conversation_is_named() {
    let (_store, scope) = memory();
    let import = |name: &str, digit: &str| {
        let value = format!(
            r#"{{"_type":"transcript","version":2,"messages":[],"assets":[{{"_type":"transcript_asset","id":"asset_1","name":"{name}","sha256":"{}"}}]}}"#,
            digit.repeat(64)
        );
        scope.import(value.as_bytes(), &mut |_| {}).unwrap().conversation.id
    };
    let one = import("one", "1");
    import("the same again", "1");
    assert!(scope.assets().get("asset_1").is_ok());
    let two = import("two", "2");
    refused(scope.assets().get("asset_1"), "asset.ambiguous", "name the conversation");
    let names = [one, two].map(|id| scope.conversation(id).assets().get("asset_1").unwrap().name.unwrap());
    assert_eq!(names, ["one", "two"]);
}

#[test]
fn a_refused_append_leaves_no_event_and_a_missing_asset_is_a_finding() {
    let stage = Stage::new();
    let scope = stage.open().tenant("acme").unwrap();
    let id = scope.begin();
    let batch = vec![NewTurn::message(message(&payload("lost"))), NewTurn::message("[]")];
    assert!(scope.conversation(id).append_all(batch).wait().is_err());
    assert_eq!(scope.kinds(id), ["conversation.created"]);
    show(&scope, id, &payload("lost"));
    asset_files(&stage).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let findings = scope.doctor(&mut |_| {}).unwrap().findings;
    assert_eq!(findings.len(), 1);
    assert!(findings[0].problem.contains("are not here"), "{findings:?}");
    assert_eq!(findings[0].advice, "restore the asset folder from a backup");
}
