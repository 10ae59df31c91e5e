//! The bytes of assets in memory, in folders, in PostgreSQL and in S3. `./test postgres` starts real servers and names
//! them in the environment; without it the tests that need one say that they are skipped.

use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_store::Assets;
use everturn_store::assets::{FolderAssets, MemoryAssets, ObjectAssets, Place};
use everturn_store::conformance::tenant;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

type Promise = fn(&dyn Assets);

static PREFIXES: AtomicU32 = AtomicU32::new(0);

/// The address of a new, empty place in the bucket of the test. `None`, and a note, if there is no S3 server.
pub fn s3() -> Option<String> {
    let Ok(bucket) = std::env::var("EVERTURN_TEST_S3") else {
        eprintln!("skipped: EVERTURN_TEST_S3 names no bucket; use ./test postgres");
        return None;
    };
    let nth = PREFIXES.fetch_add(1, Ordering::SeqCst);
    Some(format!("{bucket}/store-{}-{nth}", std::process::id()))
}

pub fn folder() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    (folder, url)
}

fn given(url: &str, id: &str) -> Result<ObjectAssets, Error> {
    let place = Place::new(url, std::env::vars())?;
    match place.owner()? {
        Some(owner) if owner == id => {}
        Some(_) => return Err(place.taken()),
        None => place.give(id)?,
    }
    place.check_writable()?;
    Ok(place.into_assets())
}

mod memory {
    everturn_store::conformance!(assets | promise: super::Promise | promise(&super::MemoryAssets::default()));
}

mod beside {
    everturn_store::conformance!(assets | promise: super::Promise | {
        let folder = tempfile::tempdir().unwrap();
        promise(&super::FolderAssets::new(&folder.path().join("assets")));
    });
}

mod shared_folder {
    everturn_store::conformance!(assets | promise: super::Promise | {
        let (_folder, url) = super::folder();
        promise(&super::given(&url, "one").unwrap());
    });
}

mod in_s3 {
    everturn_store::conformance!(assets | promise: super::Promise | {
        let Some(url) = super::s3() else { return };
        promise(&super::given(&url, "one").unwrap());
    });
}

/// A place belongs to one store: another would delete its assets as unused.
#[test]
fn a_place_belongs_to_one_store() {
    let (_folder, url) = folder();
    for url in [Some(url), s3()].into_iter().flatten() {
        let assets = given(&url, "one").unwrap();
        let sha256 = Hash::of(b"mine");
        assets.put(&tenant("acme"), sha256, b"mine".to_vec()).unwrap();
        assert_eq!(given(&url, "other").err().unwrap().code(), "assets.taken");
        // A second process of the same store.
        assert_eq!(given(&url, "one").unwrap().get(&tenant("acme"), sha256).unwrap(), b"mine");
        assert_eq!(assets.list().unwrap().len(), 1, "the mark of the store is no asset");
    }
    // The assets of a store that needs no mark, because they are beside it.
    let (folder, url) = folder();
    let beside = FolderAssets::new(folder.path());
    beside.put(&tenant("acme"), Hash::of(b"x"), b"x".to_vec()).unwrap();
    assert_eq!(given(&url, "one").err().unwrap().code(), "assets.foreign");
    assert_eq!(beside.list().unwrap().len(), 1);
}

#[test]
fn wrong_places_are_refused_when_they_are_opened() {
    let refused = |url: &str, code: &str, says: &str| {
        let error = given(url, "one").err().unwrap_or_else(|| panic!("{url} was accepted"));
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    for url in ["", "bucket/prefix", "ftp://host/x", "https://example.com/x", "memory:///", "s3:///x"] {
        refused(url, "assets.url", "s3://BUCKET/PREFIX");
    }
    refused("s3://key:secret@bucket/x", "assets.url", "in the environment");
    refused("s3://bucket/x?region=eu", "assets.url", "parameters");
    refused("file:///nowhere/at/all", "assets.absent", "mount it first");
    let Some(url) = s3() else { return };
    let bucket = std::env::var("EVERTURN_TEST_S3").unwrap();
    refused(&url.replace(&bucket, &format!("{bucket}-absent")), "assets.absent", "make it first");
    let with = |changes: &[(&str, &str)]| {
        let kept: Vec<(String, String)> = std::env::vars()
            .filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name))
            .collect();
        let changed = changes.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let place = Place::new(&url, kept.into_iter().chain(changed)).unwrap();
        place.owner().and_then(|_| place.give("one")).and_then(|()| place.check_writable()).unwrap_err()
    };
    let error = with(&[("AWS_SECRET_ACCESS_KEY", "wrong")]);
    assert_eq!(error.code(), "assets.denied", "{error}");
    let error = with(&[("AWS_ACCESS_KEY_ID", "reader"), ("AWS_SECRET_ACCESS_KEY", "reading")]);
    assert_eq!(
        (error.code(), error.to_string().contains("cannot write")),
        ("assets.denied", true),
        "{error}"
    );
    // Nobody listens on port 1.
    let error = with(&[("AWS_ENDPOINT", "http://127.0.0.1:1")]);
    assert_eq!((error.code(), matches!(error, Error::Busy(_))), ("assets.unreachable", true), "{error}");
}

#[test]
fn an_endpoint_without_encryption_has_to_be_allowed() {
    let settings = [
        ("AWS_ENDPOINT", "http://127.0.0.1:1"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "here"),
    ];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string()));
    let error = Place::new("s3://bucket/prefix", settings.into_iter()).unwrap().owner().unwrap_err();
    assert_eq!(error.code(), "assets.unreachable", "{error}");
    assert!(error.text().contains("set AWS_ALLOW_HTTP=true"), "{error}");
}

/// A server that takes connections and does not answer: the request ends.
#[test]
fn a_place_that_hangs_is_an_error_in_bounded_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let settings = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "here"),
    ];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string()));
    let assets = Place::new("s3://bucket/prefix", settings.into_iter()).unwrap().into_assets();
    let began = std::time::Instant::now();
    let error = assets.put(&tenant("acme"), Hash::of(b"bytes"), b"bytes".to_vec()).unwrap_err();
    assert_eq!(error.code(), "assets.unreachable", "{error}");
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
