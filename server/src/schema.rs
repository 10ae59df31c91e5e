//! What answers look like, for the description of the API.
//!
//! Answers are the model's own JSON, the same that the command-line tool prints. These structs say so in the words of
//! OpenAPI; nothing is ever made from them. That they are true is tested by validating real answers against them.
#![allow(dead_code, reason = "read by the derive only")]

use utoipa::ToSchema;

/// A conversation.
#[derive(ToSchema)]
pub struct Conversation {
    /// Its id.
    #[schema(examples("conv_01JD0000000000000000000000"))]
    id: String,
    /// For people.
    title: Option<String>,
}
