//! What can be asked.
//!
//! An [`Operation`] is one struct: the request, with the type of its answer, its role, its route and the function that
//! runs it. [`TABLE`] lists them all. The REST routes, the OpenAPI description, the MCP tools, the access tests and the
//! client of the command line are loops over that table, so that a new field is written once, and a new operation is a
//! struct here and a row there.
//!
//! What it is not: it knows no HTTP, no MCP and no arguments of a program, and it decides nothing about conversations
//! (the engine does).
//!
//! Reading order: [`Operation`] and [`About`]; a file of operations, such as `facts`; [`table`] for what is done with all
//! of them; [`given`] for how a request is read, and [`sent`] for how it is written.

mod about;
mod asker;
pub mod assets;
pub mod compaction;
pub mod context;
pub mod conversations;
pub mod erasing;
pub mod events;
pub mod facts;
pub mod generations;
pub mod given;
pub mod keys;
mod page;
pub mod projections;
pub mod recall;
pub mod sent;
pub mod state;
pub mod streams;
pub mod table;
pub mod transfer;
pub mod turns;
pub mod usage;

pub use about::{About, Method, Noun, Work};
pub use asker::{Asker, ConversationName, Elsewhere, Threads};
pub use page::Page;
pub use table::{Reply, Row, TABLE};

use everturn_core::Error;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Something that can be asked of a tenant's conversations: the fields of the struct are the request.
pub trait Operation: Serialize + DeserializeOwned + JsonSchema + Send + Sized + 'static {
    /// What is answered.
    type Answer: Serialize + DeserializeOwned + JsonSchema + Send + 'static;

    /// Its name, its route, and who may ask.
    const ABOUT: About;

    /// Does it.
    fn run(self, asker: &Asker) -> impl Future<Output = Result<Self::Answer, Error>> + Send;

    /// The status over HTTP.
    fn status(_answer: &Self::Answer) -> u16 {
        Self::ABOUT.status
    }

    /// The version of the answer, for `ETag`.
    fn tag(_answer: &Self::Answer) -> Option<String> {
        None
    }

    /// Where something new can be read; `path` is the one that was asked.
    fn location(_path: &str, _answer: &Self::Answer) -> Option<String> {
        None
    }
}
