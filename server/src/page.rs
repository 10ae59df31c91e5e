//! The page at `/`: the files under `server/web/`, compiled into the binary.
//!
//! The page has no privileges: its script calls the public API with the key that the user typed in. The files are therefore served
//! without authentication and contain no data. The Content-Security-Policy allows no other origin and no script from content.

use crate::app::App;
use crate::headers::{IfNoneMatch, etag};
use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// `blob:` is for images of assets, which are fetched with the key. Trusted types make the browser refuse to parse text as HTML
/// anywhere, also in our own script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; \
    connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

struct File {
    path: &'static str,
    /// Its name in `server/web/`.
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal => $name:literal, $media_type:expr;)+) => {
        &[$(File {
            path: $path,
            name: $name,
            media_type: $media_type,
            bytes: include_bytes!(concat!("../web/", $name)),
        }),+]
    };
}

const FILES: &[File] = files! {
    "/" => "index.html", HTML;
    "/web/style.css" => "style.css", STYLE;
    "/web/icon.svg" => "icon.svg", "image/svg+xml";
    "/web/api.js" => "api.js", SCRIPT;
    "/web/app.js" => "app.js", SCRIPT;
    "/web/calls.js" => "calls.js", SCRIPT;
    "/web/conversation.js" => "conversation.js", SCRIPT;
    "/web/dom.js" => "dom.js", SCRIPT;
    "/web/list.js" => "list.js", SCRIPT;
    "/web/menu.js" => "menu.js", SCRIPT;
    "/web/message.js" => "message.js", SCRIPT;
    "/web/palette.js" => "palette.js", SCRIPT;
    "/web/projected.js" => "projected.js", SCRIPT;
    "/web/proof.js" => "proof.js", SCRIPT;
    "/web/scroller.js" => "scroller.js", SCRIPT;
    "/web/state.js" => "state.js", SCRIPT;
    "/web/text.js" => "text.js", SCRIPT;
    "/web/timeline.js" => "timeline.js", SCRIPT;
    "/web/usage.js" => "usage.js", SCRIPT;
};

/// One route for each file.
pub fn routes() -> Router<Arc<App>> {
    FILES.iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(async move |headers: HeaderMap| answer(file, &headers)))
    })
}

fn answer(file: &File, headers: &HeaderMap) -> Response {
    let Some(bytes) = read(file) else { return StatusCode::NOT_FOUND.into_response() };
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let tag = format!("{:016x}", hasher.finish());
    if let Some(unchanged) = IfNoneMatch::of(headers).unchanged(&tag) {
        return unchanged;
    }
    let fixed = [
        (CONTENT_TYPE, file.media_type),
        // Revalidated on each load, so that files of two versions are never mixed.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
        (HeaderName::from_static("referrer-policy"), "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    (etag(tag), fixed, bytes).into_response()
}

/// Debug builds read the files from the folder `EVERTURN_WEB`, if set, so that changing the page needs no build.
fn read(file: &File) -> Option<Cow<'static, [u8]>> {
    if cfg!(debug_assertions)
        && let Some(folder) = std::env::var_os("EVERTURN_WEB")
    {
        return std::fs::read(std::path::Path::new(&folder).join(file.name)).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(file.bytes))
}
