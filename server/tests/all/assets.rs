//! Assets over REST.

use crate::stage::{Stage, answer, config};
use everturn_engine::Everturn;
use everturn_server::Config;
use reqwest::{Method, Response};
use serde_json::json;

async fn add(stage: &Stage, id: &str, name: &str, kind: &str, bytes: Vec<u8>) -> String {
    let request = stage.request(Method::POST, &format!("/api/v1/assets?conversation={id}&name={name}"));
    let asset = answer(request.header("content-type", kind).body(bytes), 201).await;
    asset["id"].as_str().unwrap().to_string()
}

async fn content(stage: &Stage, asset: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = stage.request(Method::GET, &format!("/api/v1/assets/{asset}/content"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_back_whole_and_in_parts() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    // More than one piece, so that it is streamed.
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let asset = add(&stage, &id, "birds.wav", "audio/wav", bytes.clone()).await;
    let listed = stage.get(&format!("/api/v1/assets?conversation={id}"), 200).await;
    assert_eq!(listed["data"][0], stage.get(&format!("/api/v1/assets/{asset}"), 200).await);
    assert_eq!(listed["data"][0]["bytes"], 3_000_000);

    let whole = content(&stage, &asset, &[("accept-encoding", "gzip, zstd")]).await;
    assert_eq!(whole.status(), 200);
    for (name, value) in [
        ("content-type", "audio/wav"),
        ("content-length", "3000000"),
        ("accept-ranges", "bytes"),
        ("x-content-type-options", "nosniff"),
        ("content-disposition", "inline; filename=\"birds.wav\""),
    ] {
        assert_eq!(whole.headers()[name], value);
    }
    assert!(whole.headers().get("content-encoding").is_none());
    let etag = whole.headers()["etag"].to_str().unwrap().to_string();
    assert_eq!(etag, format!("\"{}\"", listed["data"][0]["sha256"].as_str().unwrap()));
    assert_eq!(whole.bytes().await.unwrap(), bytes);

    for (range, from, to) in [
        ("bytes=0-9", 0, 10),
        ("bytes=2999990-", 2_999_990, 3_000_000),
        ("bytes=-5", 2_999_995, 3_000_000),
        ("bytes=10-2500000", 10, 2_500_001),
    ] {
        let part = content(&stage, &asset, &[("range", range), ("if-range", &etag)]).await;
        assert_eq!(part.status(), 206);
        assert_eq!(part.headers()["content-range"], format!("bytes {from}-{}/3000000", to - 1));
        assert_eq!(part.bytes().await.unwrap(), &bytes[from..to]);
    }
    let beyond = content(&stage, &asset, &[("range", "bytes=3000000-")]).await;
    assert_eq!(
        (beyond.status().as_u16(), &beyond.headers()["content-range"]),
        (416, &"bytes */3000000".parse().unwrap())
    );
    assert!(beyond.text().await.unwrap().contains("asset.range"));
    assert_eq!(
        content(&stage, &asset, &[("range", "bytes=0-1"), ("if-range", "\"old\"")]).await.status(),
        200
    );
    assert_eq!(content(&stage, &asset, &[("if-none-match", &etag)]).await.status(), 304);
    stage.stop().await;
}

/// An added asset must not run as a page on our origin, nor inject a header.
#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_added_is_not_run() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let page = b"<script>alert(1)</script>".to_vec();
    let asset = add(&stage, &id, "..%2F..%2Fa%22%3B%C3%A9.html", "text/html", page).await;
    let shown = content(&stage, &asset, &[]).await;
    let headers = shown.headers();
    assert_eq!(
        headers["content-disposition"],
        "attachment; filename=\"a___.html\"; filename*=UTF-8''a%22%3B%C3%A9.html"
    );
    assert_eq!(headers["content-security-policy"], "default-src 'none'; sandbox");
    let bad = stage.request(Method::POST, &format!("/api/v1/assets?conversation={id}&name=a%0Ab"));
    let status = bad.body("x").send().await.unwrap().status().as_u16();
    assert!(status == 201 || status == 400, "{status}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_added_or_found() {
    let store = Everturn::open("memory:").unwrap();
    let stage = Stage::over(store, Config { asset_bytes_max: 100, ..config() }).await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/assets?conversation={id}");
    let large = stage.request(Method::POST, &path).body(vec![0; 101]);
    assert_eq!(answer(large, 413).await["code"], "limit.exceeded");
    answer(stage.request(Method::POST, &path).body(vec![0; 100]), 201).await;
    let nowhere = "/api/v1/assets?conversation=conv_01JD0000000000000000000000";
    answer(stage.request(Method::POST, nowhere).body("x"), 404).await;
    assert_eq!(
        answer(stage.request(Method::POST, "/api/v1/assets").body("x"), 400).await["code"],
        "query.shape"
    );
    assert_eq!(stage.get("/api/v1/assets/asset_nothing", 404).await["code"], "asset.absent");
    assert_eq!(stage.get("/api/v1/assets/asset_nothing/content", 404).await["code"], "asset.absent");
    let empty = answer(stage.request(Method::POST, &path).body(""), 201).await;
    let none = content(&stage, empty["id"].as_str().unwrap(), &[]).await;
    assert_eq!((none.status().as_u16(), none.bytes().await.unwrap().len()), (200, 0));
    assert_eq!(stage.post("/api/v1/project", &json!({"transcript": []}), 200).await["messages"], json!([]));
    stage.stop().await;
}
