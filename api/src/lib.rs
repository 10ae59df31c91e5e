//! The operations of the API.
//!
//! An [`Operation`] is one struct: the request, with the type of its answer, its role, its route and the
//! function that runs it. [`TABLE`] lists them all. The REST routes, the OpenAPI description, the MCP tools and
//! the client of the command line are loops over that table, so that a new field is written once, and a new
//! operation is a struct here and a row there. The access tests try every route of the OpenAPI description: the table,
//! and the routes that only stream.
//!
//! This crate knows no HTTP, no MCP and no command-line arguments, and it decides nothing about conversations
//! (the engine does).
//!
//! Reading order: [`Operation`] and [`About`]; a file of operations, such as `facts`; [`table`] for what all of
//! them have in common; [`decode`] for reading a request, [`encode`] for writing one, and [`hints`] for the words of errors.

mod about;
pub mod assets;
pub mod compaction;
pub mod context;
pub mod conversations;
pub mod decode;
pub mod encode;
pub mod erasing;
pub mod events;
pub mod facts;
pub mod generations;
pub mod hints;
pub mod keys;
mod page;
pub mod projections;
pub mod recall;
mod requester;
pub mod sessions;
pub mod state;
pub mod streams;
pub mod table;
pub mod transfer;
pub mod turns;
pub mod usage;

pub use about::{About, Method, Noun, Work};
pub use page::Page;
pub use requester::{ConversationName, Requester, Threads, WorkFuture};
pub use table::{Reply, Request, Row, TABLE};

use everturn_core::Error;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An operation on a tenant's conversations: the fields of the struct are the request.
pub trait Operation: Serialize + DeserializeOwned + JsonSchema + Send + Sized + 'static {
    /// Type of the answer.
    type Answer: Serialize + DeserializeOwned + JsonSchema + Send + 'static;

    /// Name, route and role.
    const ABOUT: About;

    /// Runs the operation.
    fn run(self, requester: &Requester) -> impl Future<Output = Result<Self::Answer, Error>> + Send;

    /// HTTP status of an answer.
    fn status(_answer: &Self::Answer) -> u16 {
        Self::ABOUT.status
    }

    /// Version of the answer, for `ETag`.
    fn tag(_answer: &Self::Answer) -> Option<String> {
        None
    }

    /// URL path of something new; `path` is the one of the request.
    fn location(_path: &str, _answer: &Self::Answer) -> Option<String> {
        None
    }
}
