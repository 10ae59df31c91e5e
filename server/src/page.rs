//! Parts of lists.

use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// A part of a list.
#[derive(Serialize, ToSchema)]
pub struct Page<T> {
    /// The entries.
    pub data: Vec<T>,
    /// Where the next part begins; null at the end.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A list that is always whole.
    pub fn whole(data: Vec<T>) -> Page<T> {
        Page { data, next: None }
    }
}

impl<T: Serialize> IntoResponse for Page<T> {
    fn into_response(self) -> Response {
        axum::Json(self).into_response()
    }
}
