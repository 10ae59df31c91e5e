//! Assets: large or non-text payloads and their descriptors.

use super::{at, operations};
use crate::access::Writer;
use crate::app::{App, blocking, large_thread};
use crate::headers::{IfNoneMatch, etag, text};
use crate::json::{self, Query};
use crate::problem::Problem;
use crate::range::{RequestedRange, requested_range};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use everturn_api::ConversationName;
use everturn_api::assets::GetAsset;
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::event::Visibility;
use everturn_core::limits::ASSET_PIECE_BYTES;
use everturn_engine::Tenant;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::ops::Range;
use std::sync::Arc;

/// The routes of `/assets` that send or receive bytes.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(&at("/assets"), post(add_asset))
        .route(&at("/assets/{asset}/content"), get(get_asset_content))
}

/// Query of a new asset.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddAssetQuery {
    conversation: ConversationName,
    name: Option<String>,
    #[serde(default)]
    visibility: Visibility,
}

async fn add_asset(
    State(app): State<Arc<App>>,
    Writer(tenant): Writer,
    Query(add): Query<AddAssetQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let mime_type = text(request.headers(), &CONTENT_TYPE)?;
    let mime_type = mime_type.unwrap_or_else(|| "application/octet-stream".into());
    let thread = large_thread().await?;
    let bytes = json::bytes(request, &app.config, app.config.asset_bytes_max).await?;
    let add = move || {
        let conversation = add.conversation.find(&tenant)?;
        match add.visibility {
            Visibility::Private => conversation.assets().add_private(add.name, &mime_type, bytes.into()),
            _ => conversation.assets().add(add.name, &mime_type, bytes.into()),
        }
    };
    let asset = blocking(add).await?;
    drop(thread);
    let location = at(&format!("/assets/{}", asset.id));
    Ok((StatusCode::CREATED, [(LOCATION, location)], axum::Json(asset)).into_response())
}

async fn get_asset_content(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    let (requester, wanted_asset) = operations::read::<GetAsset>(&app, request).await?;
    let tenant = requester.tenant.clone();
    let asset = blocking(move || wanted_asset.find(&requester)).await?;
    let (Some(sha256), Some(size)) = (asset.sha256, asset.bytes) else {
        let text = format!("the bytes of {} are not stored here; its `storage` says where", asset.id);
        return Err(Error::not_found("asset.elsewhere", text).into());
    };
    if let Some(unchanged) = IfNoneMatch::of(&headers).unchanged(&sha256.to_string()) {
        return Ok(unchanged);
    }
    let range = requested_range(&headers, &format!("\"{sha256}\""), size);
    if range == RequestedRange::Beyond {
        let text = format!("the asset has {size} bytes; ask for a range within them");
        let problem = Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "asset.range", text);
        return Ok(([(CONTENT_RANGE, format!("bytes */{size}"))], problem).into_response());
    }
    let mut shown = shown(&asset);
    let (status, range) = match range {
        RequestedRange::Part(range) => {
            let place = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            shown.extend(place.parse().map(|place| (CONTENT_RANGE, place)));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        _ => (StatusCode::OK, 0..size),
    };
    shown.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    // The first piece is read before the answer begins, so that missing bytes are an error and not a truncated
    // answer.
    let first = piece(tenant.clone(), asset.clone(), range.clone()).await?;
    Ok((status, etag(sha256), shown, Uncompressed, body(tenant, asset, range, first)).into_response())
}

/// Number of bytes read at a time.
const PIECE_BYTES: u64 = ASSET_PIECE_BYTES as u64;

async fn piece(tenant: Tenant, asset: Asset, range: Range<u64>) -> Result<Bytes, Error> {
    blocking(move || {
        // Up to the end of a piece, so that each piece is read and checked once. An asset without hashes of
        // pieces is checked as a whole, so it is read at once.
        let end = match asset.pieces.is_empty() {
            true => range.end,
            false => range.end.min((range.start / PIECE_BYTES + 1) * PIECE_BYTES),
        };
        tenant.assets().range(&asset, range.start..end).map(Bytes::from)
    })
    .await
}

fn body(tenant: Tenant, asset: Asset, range: Range<u64>, first: Bytes) -> Body {
    let rest = range.start + first.len() as u64..range.end;
    let pieces = futures_util::stream::try_unfold((Some(first), rest), move |(first, rest)| {
        let (tenant, asset) = (tenant.clone(), asset.clone());
        async move {
            if let Some(first) = first {
                return Ok(Some((first, (None, rest))));
            }
            if rest.is_empty() {
                return Ok::<_, std::io::Error>(None);
            }
            let piece =
                piece(tenant, asset, rest.clone()).await.map_err(|e| std::io::Error::other(e.to_string()))?;
            let rest = rest.start + piece.len() as u64..rest.end;
            Ok(Some((piece, (None, rest))))
        }
    });
    Body::from_stream(pieces)
}

/// Marks an answer that must not be compressed: its length and its ranges are those of the stored bytes.
#[derive(Clone, Copy)]
pub struct Uncompressed;

impl axum::response::IntoResponseParts for Uncompressed {
    type Error = std::convert::Infallible;

    fn into_response_parts(
        self,
        mut response: axum::response::ResponseParts,
    ) -> Result<axum::response::ResponseParts, Self::Error> {
        response.extensions_mut().insert(self);
        Ok(response)
    }
}

/// Types that a browser shows without running anything in them.
const SHOWN: [&str; 9] = [
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "image/avif",
    "audio/mpeg",
    "audio/wav",
    "video/mp4",
    "video/webm",
];

/// The client that added an asset chose its type and its name: neither may make a browser run it as a page of
/// this server.
fn shown(asset: &Asset) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let kind = asset.mime_type.parse().ok().filter(|_| asset.mime_type.contains('/'));
    headers.insert(CONTENT_TYPE, kind.unwrap_or(HeaderValue::from_static("application/octet-stream")));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let manner = if SHOWN.contains(&asset.mime_type.as_str()) { "inline" } else { "attachment" };
    let label = asset.label();
    let name = label.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._- ".contains(c) { c } else { '_' }).collect();
    let mut disposition = format!("{manner}; filename=\"{plain}\"");
    if plain != name {
        const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');
        disposition += &format!("; filename*=UTF-8''{}", utf8_percent_encode(name, ESCAPED));
    }
    headers.extend(disposition.parse().map(|value| (CONTENT_DISPOSITION, value)));
    headers
}
