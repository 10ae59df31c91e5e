//! Access keys.

use super::*;
use everturn_core::Error;
use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::chain::Hash;
use everturn_core::id::KeyId;
use everturn_core::time::Timestamp;

fn made(store: &dyn Backend, m: &Maker, owner: &str) -> AccessKey {
    let key = AccessKey {
        id: KeyId::from_bytes(m.key().id.to_bytes()),
        tenant: tenant(owner),
        role: KeyRole::Writer,
        actors: vec!["ada".into(), "the café’s bot".into()],
        label: Some("the café’s bot".into()),
        created: m.now(),
        expires: None,
        revoked: None,
        last_used: None,
        secret: Hash::of(b"secret"),
    };
    store.put_key(&key).expect("a new key");
    key
}

fn found(store: &dyn Backend, id: KeyId) -> AccessKey {
    store.key(id).expect("an answer").expect("it is there")
}

/// Every field survives, and an id is used once.
pub fn a_key_comes_back_as_it_was_kept(store: &dyn Backend) {
    let m = Maker::default();
    let plain = made(store, &m, "acme");
    let mut other = AccessKey { id: KeyId::from_bytes(m.key().id.to_bytes()), ..plain.clone() };
    (other.role, other.label, other.expires) = (KeyRole::Admin, None, Some(m.now()));
    (other.revoked, other.last_used) = (Some(m.now()), Some(m.now()));
    store.put_key(&other).expect("a new key");
    assert_eq!(found(store, plain.id), plain);
    assert_eq!(found(store, other.id), other);
    assert_eq!(store.key(KeyId::from_bytes([0; 16])).expect("an answer"), None);
    let again = AccessKey { id: plain.id, ..other };
    assert!(matches!(store.put_key(&again), Err(Error::Conflict(_))));
    assert_eq!(found(store, plain.id), plain, "the first one stays");
}

/// A tenant sees its own keys, oldest first.
pub fn keys_are_listed_by_their_tenant_only(store: &dyn Backend) {
    let m = Maker::default();
    let (first, theirs, second) =
        (made(store, &m, "acme"), made(store, &m, "globex"), made(store, &m, "acme"));
    assert_eq!(store.keys(&tenant("acme")).expect("a listing"), [first, second]);
    assert_eq!(store.keys(&tenant("globex")).expect("a listing"), [theirs]);
    assert!(store.keys(&tenant("nobody")).expect("a listing").is_empty());
}

/// Another tenant's key looks absent; revoking again keeps the first time.
pub fn a_key_is_revoked_once_and_by_its_tenant_only(store: &dyn Backend) {
    let m = Maker::default();
    let key = made(store, &m, "acme");
    let foreign = store.revoke_key(&tenant("globex"), key.id, m.now()).expect_err("not theirs");
    assert_eq!((foreign.code(), found(store, key.id)), ("key.absent", key.clone()));
    let (first, later) = (m.now(), m.now());
    let revoked = store.revoke_key(&key.tenant, key.id, first).expect("it is ours");
    assert_eq!(revoked, AccessKey { revoked: Some(first), ..key.clone() });
    assert_eq!(store.revoke_key(&key.tenant, key.id, later).expect("it is ours"), revoked);
    assert_eq!(found(store, key.id), revoked);
    let nowhere = store.revoke_key(&key.tenant, KeyId::from_bytes([0; 16]), later).expect_err("nowhere");
    assert_eq!(nowhere.code(), "key.absent");
}

/// The last use never goes back, even if a clock does.
pub fn the_last_use_of_a_key_never_goes_back(store: &dyn Backend) {
    let m = Maker::default();
    let key = made(store, &m, "acme");
    let (earlier, later) = (m.now(), m.now());
    for at in [later, earlier] {
        store.touch_key(key.id, at).expect("it is there");
        assert_eq!(found(store, key.id), AccessKey { last_used: Some(later), ..key.clone() });
    }
    store.touch_key(KeyId::from_bytes([0; 16]), later).expect("nothing to note");
}

/// Revoked and expired keys are not valid.
pub fn a_store_knows_whether_any_key_is_valid(store: &dyn Backend) {
    let m = Maker::default();
    let any = |at: Timestamp| store.any_key(Some(at)).expect("an answer");
    let ever = || store.any_key(None).expect("an answer");
    assert!(!any(m.now()) && !ever());
    let key = made(store, &m, "acme");
    assert!(any(m.now()));
    store.revoke_key(&key.tenant, key.id, m.now()).expect("it is ours");
    assert!(!any(m.now()) && ever());
    let end = m.now();
    let brief = AccessKey { id: KeyId::from_bytes(m.key().id.to_bytes()), expires: Some(end), ..key };
    store.put_key(&brief).expect("a new key");
    assert!(any(Timestamp(end.0 - 1)) && !any(end));
}
