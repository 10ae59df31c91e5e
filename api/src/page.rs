//! Pages of lists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Page_{T}")]
pub struct Page<T> {
    /// The entries.
    pub data: Vec<T>,
    /// Cursor of the next page; null at the end.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A list that always fits one page.
    pub fn whole(data: Vec<T>) -> Page<T> {
        Page { data, next: None }
    }
}

impl<T, C: ToString> From<everturn_engine::Page<T, C>> for Page<T> {
    fn from(page: everturn_engine::Page<T, C>) -> Page<T> {
        Page { data: page.data, next: page.next.map(|next| next.to_string()) }
    }
}
