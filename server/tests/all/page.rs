//! Serving of the page's files. The page itself is tested in a browser, in `server/web/test`.

use crate::stage::{Stage, config};
use everturn_core::access::KeyRole;
use everturn_engine::{Everturn, NewKey};
use everturn_server::Config;
use reqwest::Method;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_needs_no_key_and_may_run_nothing_but_itself() {
    let store = Everturn::open("memory:").unwrap();
    let new = NewKey::new("acme", KeyRole::Admin);
    store.keys().create(new).unwrap();
    let stage = Stage::over(store, Config { keys_required: None, ..config() }).await;
    let page = stage.request(Method::GET, "/").send().await.unwrap();
    assert_eq!(page.status(), 200);
    let header = |name: &str| page.headers()[name].to_str().unwrap().to_string();
    let policy = header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    let request = stage.request(Method::GET, "/").header("if-none-match", header("etag"));
    assert_eq!(request.send().await.unwrap().status(), 304);
    assert_eq!(stage.request(Method::GET, "/api/v1/usage").send().await.unwrap().status(), 401);
    stage.stop().await;
}

/// Views are loaded lazily: a file missing from the table would go unnoticed until its view is opened.
#[tokio::test(flavor = "multi_thread")]
async fn every_file_of_the_page_is_served() {
    let stage = Stage::new().await;
    let mut sent = 0;
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/web")).unwrap() {
        let (path, name) = (file.as_ref().unwrap().path(), file.unwrap().file_name().into_string().unwrap());
        let media_type = match path.extension().and_then(|end| end.to_str()) {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => continue,
        };
        let answer = stage.request(Method::GET, &format!("/web/{name}")).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{name} is not in the table of server/src/page.rs");
        assert_eq!(answer.headers()["content-type"], media_type, "{name}");
        let body = answer.bytes().await.unwrap();
        assert_eq!(body, std::fs::read(path).unwrap(), "{name}");
        let packed = stage.request(Method::GET, &format!("/web/{name}")).header("accept-encoding", "gzip");
        let packed = packed.send().await.unwrap();
        if media_type.starts_with("text/") {
            assert_eq!(packed.headers()["content-encoding"], "gzip", "{name}");
        }
        sent += packed.bytes().await.unwrap().len();
    }
    assert!((1..100 * 1024).contains(&sent), "the whole page takes {sent} bytes on the wire");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_does_not_get_it_under_its_own_name() {
    let stage = Stage::new().await;
    let request = stage.request(Method::GET, "/").header("host", "evil.example");
    assert_eq!(request.send().await.unwrap().status(), 403);
    stage.stop().await;
}
