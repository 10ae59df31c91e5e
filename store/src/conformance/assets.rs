//! Promises about the bytes of assets, wherever they are.

use super::tenant;
use crate::Assets;
use everturn_core::Error;
use everturn_core::chain::Hash;

fn put(assets: &dyn Assets, name: &str, bytes: &[u8]) -> Hash {
    let sha256 = Hash::of(bytes);
    assets.put(&tenant(name), sha256, bytes.to_vec()).expect("written");
    sha256
}

/// Bytes come back as they are, also none at all; absent ones are `NotFound`.
pub fn bytes_of_assets_come_back(assets: &dyn Assets) {
    let large: Vec<u8> = (0..1_500_000_u32).map(|n| (n % 251) as u8).collect();
    for bytes in [&b"\0\xff picture"[..], b"", &large] {
        let sha256 = put(assets, "acme", bytes);
        assert!(assets.get(&tenant("acme"), sha256).expect("it is there") == bytes);
    }
    let absent = Hash::of(b"absent");
    assert!(matches!(assets.get(&tenant("acme"), absent), Err(Error::NotFound(_))));
    assert!(matches!(assets.get_range(&tenant("acme"), absent, 0..1), Err(Error::NotFound(_))));
}

/// A range ends where the bytes end.
pub fn a_range_of_an_asset_ends_with_its_bytes(assets: &dyn Assets) {
    let sha256 = put(assets, "acme", b"0123456789");
    let range = |range| assets.get_range(&tenant("acme"), sha256, range).expect("it is there");
    assert_eq!(range(0..4), b"0123");
    assert_eq!(range(4..u64::MAX), b"456789");
    assert_eq!(range(10..20), b"");
    assert_eq!(range(u64::MAX - 1..u64::MAX), b"");
}

/// The same bytes again change nothing, and replace damaged ones.
pub fn damaged_bytes_are_noticed_and_replaced(assets: &dyn Assets) {
    let sha256 = Hash::of(b"right");
    assets.put(&tenant("acme"), sha256, b"wrong".to_vec()).expect("written");
    assert!(matches!(assets.get(&tenant("acme"), sha256), Err(Error::Corrupt(_))));
    for _ in 0..2 {
        put(assets, "acme", b"right");
        assert_eq!(assets.get(&tenant("acme"), sha256).expect("it is there"), b"right");
    }
    assert_eq!(assets.list().expect("a listing").len(), 1);
}

/// Deleted bytes are gone; deleting them again is no error. Other tenants keep the same bytes.
pub fn deleted_bytes_are_gone(assets: &dyn Assets) {
    let (acme, other) = (tenant("acme"), tenant("other"));
    let sha256 = put(assets, "acme", b"shared");
    assert!(matches!(assets.get(&other, sha256), Err(Error::NotFound(_))));
    put(assets, "other", b"shared");
    for _ in 0..2 {
        assets.delete(&acme, sha256).expect("deleted");
        assert!(matches!(assets.get(&acme, sha256), Err(Error::NotFound(_))));
    }
    assert_eq!(assets.get(&other, sha256).expect("it is there"), b"shared");
    assert!(
        matches!(assets.list().expect("a listing").as_slice(), [(tenant, hash, _)] if *tenant == other && *hash == sha256)
    );
}

/// Everything is listed, with its tenant and a time that does not go back when the same bytes are put again.
pub fn all_bytes_are_listed(assets: &dyn Assets) {
    assert_eq!(assets.list().expect("a listing"), []);
    let mut expected: Vec<_> = (0..20)
        .map(|n: u8| {
            let name = if n.is_multiple_of(2) { "acme" } else { "other" };
            (tenant(name), put(assets, name, &[n]))
        })
        .collect();
    let listed = || {
        let mut listed = assets.list().expect("a listing");
        listed.sort();
        listed
    };
    let before = listed();
    expected.sort();
    assert_eq!(before.iter().map(|(name, hash, _)| (name.clone(), *hash)).collect::<Vec<_>>(), expected);
    put(assets, "acme", &[0]);
    assert!(before.iter().zip(listed()).all(|(before, after)| before.2 <= after.2));
}
