//! A conversation store for AI agents: every turn is kept in an append-only, hash-chained log, and the context of the next model call is
//! built from that log, within a token budget.
//!
//! ```
//! use everturn::{ContextOptions, Everturn, NewTurn};
//!
//! let store = Everturn::open("memory:")?; // or "sqlite:chats.db", created if it does not exist
//! let tenant = store.tenant("acme")?;
//! let chat = tenant.create("A trip to Oslo").wait()?;
//!
//! chat.append("Which day do we leave?").by("alice").wait()?;
//! chat.append(NewTurn::assistant("On the 3rd of May.")).wait()?;
//!
//! let context = chat.contexts().build(&ContextOptions::new(8_000))?;
//! assert_eq!(context.messages.len(), 2);
//! assert!(context.tokens.used <= 8_000);
//! # Ok::<(), everturn::Error>(())
//! ```
//!
//! # Coming back to a conversation
//!
//! Keep its id, or ask for it by name: [`Tenant::resolve`] takes a whole id, the beginning of one, or `@last`.
//!
//! ```
//! # use everturn::{Everturn, HistoryQuery};
//! # let store = Everturn::open("memory:")?;
//! # let tenant = store.tenant("acme")?;
//! # let chat = tenant.create("A trip to Oslo").wait()?;
//! # chat.append("Which day do we leave?").wait()?;
//! let id = chat.id().to_string(); // conv_…
//!
//! // Tomorrow, in another process:
//! let chat = tenant.conversation(tenant.resolve(&id)?);
//! assert_eq!(chat.history(HistoryQuery::default())?.data.len(), 1);
//! # Ok::<(), everturn::Error>(())
//! ```
//!
//! # Streaming a reply
//!
//! [`open`](ConversationHandle::open) begins a turn, and [`open_turn`](ConversationHandle::open_turn) is its handle. Chunks are published at
//! once, and the text so far survives a crash of the process.
//!
//! ```
//! # use everturn::{Everturn, NewStream, NewTurn};
//! # let store = Everturn::open("memory:")?;
//! # let chat = store.tenant("acme")?.create("A trip to Oslo").wait()?;
//! let answer = chat.open(NewStream::default()).wait()?;
//! let stream = chat.open_turn(answer.id);
//! for word in ["On the ", "3rd of May."] {
//!     // `None` appends at the end. With an offset, a repeated chunk is harmless.
//!     stream.chunk(None, word)?;
//! }
//! // Without a message, the chunks are the text of the turn.
//! stream.commit(NewTurn::default()).wait()?;
//! # Ok::<(), everturn::Error>(())
//! ```
//!
//! # Finding your way
//!
//! - [`Everturn`] is an open store: [`Options`], checks, [backups](backup), access [`Keys`].
//! - [`Tenant`] is everything that one tenant owns: creating, listing and finding conversations, [recall](Tenant::recall) over all of them,
//!   [import](Tenant::import), [`changes`](Tenant::changes) of all conversations, their [`assets`](Tenant::assets). No call reaches another tenant's data.
//! - [`ConversationHandle`] is one conversation: [`append`](ConversationHandle::append), [`history`](ConversationHandle::history),
//!   [`subscribe`](ConversationHandle::subscribe), [`fork`](ConversationHandle::fork), [`supersede`](ConversationHandle::supersede),
//!   [`edit_and_branch`](ConversationHandle::edit_and_branch),
//!   [`generate`](ConversationHandle::generate), [`export`](ConversationHandle::export). Related methods have a handle of their own:
//!   [`contexts`](ConversationHandle::contexts), [`state`](ConversationHandle::state), [`facts`](ConversationHandle::facts),
//!   [`assets`](ConversationHandle::assets), [`compaction`](ConversationHandle::compaction), [`log`](ConversationHandle::log), and
//!   [`open_turn`](ConversationHandle::open_turn) for streamed replies.
//! - [`model`] connects model servers, local models and embedders; [`script`] runs projectors and summarizers that users write.
//!
//! # Waiting
//!
//! A write returns a [`Commit`] (an append returns an [`Append`]). Sync callers `wait` for it, async callers `.await` it on any
//! executor; the write then survives a power loss. A few writes that read first, such as adding a fact or recording a context, block
//! until they are durable. Reads run on the caller's thread, on a connection of their own, and never wait for the writer.
//! A [`Subscription`] is an iterator for sync callers and a stream for async ones.
//!
//! # Errors
//!
//! Every [`Error`] has a class, a stable [`code`](Error::code), and a text with the problem and the remedy.
//!
//! # What may grow
//!
//! Options, queries and policies are constructed with `..Default::default()`, or with their `new`: any release may add fields. What is
//! returned is only read. Enums may get variants: match them with a wildcard arm.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `program` (default) | the command-line program, with all of the following |
//! | `postgres` | stores in PostgreSQL |
//! | `objects` | assets of such stores in S3, Google Cloud Storage, Azure or a shared folder; turns on `postgres` |
//! | `models` | clients of model servers: [`model`]`::HttpModel`, `HttpEmbedder`, `Endpoint` |
//! | `scripts` | projectors written as scripts: [`script`]`::Script` |
//! | `embedder` | the built-in embedder, with its table of 8 MB: recall by meaning |
//! | `bert` | embedders from a folder; call `bert::install()` |
//!
//! A library turns off what it does not need: `cargo add everturn --no-default-features`. Stores in memory and in SQLite, the log, contexts
//! and recall by words are always there. What needs a missing feature is refused with the code `feature.missing`.
//!
//! # Not here
//!
//! The library opens no port, reads no arguments and formats nothing for people: the `everturn` program does. It is in this package,
//! behind the feature `program`.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "bert")]
pub use everturn_bert as bert;
pub use everturn_engine::*;

/// The page about generating; its examples are run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/generate.md")]
struct GeneratePage;

/// The page about recall.
#[cfg(doctest)]
#[doc = include_str!("../../docs/recall.md")]
struct RecallPage;

/// The page about embedders.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embeddings.md")]
struct EmbeddingsPage;

/// The page about facts.
#[cfg(doctest)]
#[doc = include_str!("../../docs/facts.md")]
struct FactsPage;

/// The quick start for Rust.
#[cfg(doctest)]
#[doc = include_str!("../../docs/quickstart-rust.md")]
struct QuickstartPage;
