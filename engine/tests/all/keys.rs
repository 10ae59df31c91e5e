//! Keys: made once, found by their words, taken back.

use crate::stage::{START, Stage, Still, quiet};
use everturn_core::access::KeyRole;
use everturn_core::time::Timestamp;
use everturn_engine::{Everturn, NewKey, Options};
use std::sync::Arc;

fn writer(tenant: &str) -> NewKey {
    NewKey::new(tenant, KeyRole::Writer)
}

fn still() -> (Arc<Still>, Everturn) {
    let world = Still::new(1);
    let store = Everturn::open_with("memory:", Options { world: world.clone(), ..quiet() }).unwrap();
    (world, store)
}

#[test]
fn the_words_of_a_key_open_its_tenant_and_are_kept_nowhere() {
    let stage = Stage::new();
    let words = {
        let store = stage.open();
        let label = Some("the build bot".to_string());
        let (key, words) = store.keys().create(NewKey { label, ..writer("acme") }).unwrap();
        assert!(words.starts_with(&format!("et_{}_", key.id.0)), "{words}");
        let grant = store.keys().find(&words).unwrap();
        assert_eq!((grant.key, grant.tenant.as_str(), grant.role), (key.id, "acme", KeyRole::Writer));
        assert_eq!(store.keys().list("acme").unwrap(), [key]);
        assert!(store.keys().list("globex").unwrap().is_empty());
        words
    };
    let secret = words.rsplit('_').next().unwrap();
    assert!(stage.files_with(secret).is_empty());
    assert!(stage.open().keys().find(&words).is_ok(), "it is there after a restart");
}

#[test]
fn wrong_words_revoked_and_expired_keys_answer_alike() {
    let (world, store) = still();
    let keys = store.keys();
    let (key, words) = keys.create(writer("acme")).unwrap();
    let (_, other) = keys.create(writer("acme")).unwrap();
    let end = Timestamp(START.0 + 60_000_000);
    let (_, brief) = keys.create(NewKey { expires: Some(end), ..writer("acme") }).unwrap();
    let grant = keys.find(&brief).unwrap();
    let before = keys.changes();
    assert_eq!(keys.revoke("globex", key.id).unwrap_err().code(), "key.absent");
    assert!(keys.find(&words).is_ok());
    keys.revoke("acme", key.id).unwrap();
    assert_ne!(keys.changes(), before);
    world.set(end);
    assert!(keys.has_expired(&grant));
    let (id, secret) = (&other[..29], &other[30..]);
    let wrong = [
        words.clone(),
        brief,
        format!("{id}_{}", secret.replace(&secret[..1], if secret.starts_with('0') { "1" } else { "0" })),
        format!("{}_{secret}", &words[..29]),
        id.to_string(),
        format!("{id}_"),
        "et_".into(),
        "".into(),
        "et_é_é".into(),
        format!("{other}00"),
    ];
    let said: Vec<String> = wrong.iter().map(|words| keys.find(words).unwrap_err().to_string()).collect();
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
    assert!(keys.find(&other).is_ok() && keys.any_valid().unwrap());
}

#[test]
fn the_last_use_is_written_once_a_minute() {
    let (world, store) = still();
    let keys = store.keys();
    let (key, _) = keys.create(writer("acme")).unwrap();
    let used = || keys.list("acme").unwrap()[0].last_used;
    assert_eq!(used(), None);
    for (second, expected) in [(0, 0), (59, 0), (60, 60), (61, 60)] {
        world.set(Timestamp(START.0 + second * 1_000_000));
        keys.touch(key.id).unwrap();
        assert_eq!(used(), Some(Timestamp(START.0 + expected * 1_000_000)), "after {second} s");
    }
}

#[test]
fn a_key_cannot_be_born_expired_or_with_a_novel_for_a_label() {
    let (_, store) = still();
    let refused = |new| store.keys().create(new).unwrap_err().code();
    assert_eq!(refused(NewKey { expires: Some(START), ..writer("acme") }), "key.expires");
    assert_eq!(refused(NewKey { label: Some("x".repeat(201)), ..writer("acme") }), "limit.exceeded");
    assert_eq!(refused(writer("no/such")), "tenant.malformed");
    assert!(!store.keys().any().unwrap());
}
