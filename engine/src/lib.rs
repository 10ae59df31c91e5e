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
//! - [`Everturn`] is an open store: [`Options`], checks, repair, [backups](backup), access [`Keys`].
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
//! # Not here
//!
//! The library opens no port, reads no arguments and formats nothing for people: the `everturn` program does.
//!
//! How to build and change it: `CONTRIBUTING.md` in the root of the repository. What it keeps out: `SECURITY.md` there.

// Reading order: `everturn` opens a store, `tenant` and `conversation` are its handles, `ingest` turns input into drafts of events, `journal`
// and `writer` commit them, and tell each `Observer`. Each feature has a folder: `context`, `streaming`, `compaction`, `recall`, `facts`,
// `generation`, `transfer`, `backup`, `erasing`, `mirror`. `background` sweeps, `load` gives requests priority over background work.

mod assets;
mod background;
pub mod backup;
mod caller;
mod compaction;
mod context;
mod conversation;
mod copy;
mod elsewhere;
mod erasing;
mod everturn;
mod expiry;
mod facts;
mod folds;
mod generation;
mod ingest;
mod journal;
mod keys;
mod listings;
mod load;
mod locks;
mod mirror;
pub mod model;
mod private;
mod proof;
mod quota;
mod recall;
pub mod script;
mod streaming;
mod tenant;
mod token_usage;
mod transfer;
mod world;
mod writer;

pub use assets::{ConversationAssets, TenantAssets};
pub use background::Swept;
pub use caller::Caller;
pub use compaction::{CompactOptions, Compacted, ConversationCompaction, Summary};
pub use context::{
    Context, ContextOptions, ConversationContexts, Digest, Projection, RecallRequest, Receipt, ReceiptPolicy,
};
pub use conversation::{
    Append, AppendOptions, Appended, ApprovalOutcome, Change, ConversationHandle, ConversationState,
    ForkOptions, HistoryEntry, HistoryQuery, Order,
};
pub use copy::{Copied, NotCopied};
pub use erasing::{ErasedActor, Records};
pub use everturn::{Everturn, Options, store_file};
pub use everturn_core::access::{AccessKey, KeyRole};
pub use everturn_core::approval::{Approval, ApprovalBody};
pub use everturn_core::asset::{Asset, Storage};
pub use everturn_core::budget::{BudgetPolicy, BudgetRecovery, Usage};
pub use everturn_core::chain::{ChainReport, Hash, Head};
pub use everturn_core::conversation::{
    BudgetRef, CheckpointRef, Conversation, EventsLeft, Lifecycle, Parent, PromptRef, Retention, Settings,
    SystemPrompt, Tombstone,
};
pub use everturn_core::error::{ErrorDetail, code};
pub use everturn_core::event::{Body, Event, Visibility};
pub use everturn_core::fact::{Fact, FactSource, FactStatus, FactsDropped, Retraction};
pub use everturn_core::id::{ConversationId, EventId, FactId, GenerationId, KeyId, TenantName, TurnId};
pub use everturn_core::json::Raw;
pub use everturn_core::policy::{CompactionPolicy, CompactionStrategy, FactsPolicy, OnOverflow};
pub use everturn_core::redaction::RedactionMode;
pub use everturn_core::time::Timestamp;
pub use everturn_core::turn::{Partial, Role, Spoken, Status, Successor, Tokens, Turn};
pub use everturn_core::viewer::Viewer;
pub use everturn_core::{Error, limits};
pub use everturn_formats::provider::Provider;
pub use everturn_formats::session::{NewSession, SessionFields, SessionSummary};
pub use everturn_store::{Behind, TenantUsage};
pub use everturn_views::compaction::{Checkpoint, Covers};
pub use everturn_views::context::{
    BlockSource, Cache, ContextBlock, ContextTokens, LeftOut, Section, SectionChoice, Sections,
};
#[doc(no_inline)]
pub use everturn_views::projection;
pub use everturn_views::projection::{
    Clearing, ProjectionPolicy, Projector, Reachability, Signatures, Trigger, ViewOptions,
};
pub use everturn_views::recall::{RecallKind, RecallMode, Snippet};
pub use everturn_views::state::{PendingApproval, PendingTool, PinnedValue, Scratchpad, State, ToolBody};
pub use everturn_views::tokens::TokenizerFamily;
pub use facts::{ConversationFacts, Correction, ExtractOptions, Extraction, FactQuery, NewFact};
pub use generation::{
    GenerateOptions, Generated, Generating, GenerationProgress, GenerationState, GenerationStatus,
    Regenerate, TenantGenerations,
};
pub use ingest::NewTurn;
pub use keys::{Grant, KEY_PREFIX, Keys, NewKey};
#[doc(hidden)]
pub use listings::Listings;
pub use proof::{ConversationLog, Doctor, Finding, Repaired};
pub use quota::{Quota, Quotas};
pub use recall::{Hit, Matched, Rank, RecallOptions, Recalled};
pub use streaming::changes::{ChangeKind, ChangeSubscription, ConversationChange, TenantChanges};
pub use streaming::hub::{Chunk, ChunkPosition, Position, Subscription, Update};
pub use streaming::turn::{NewStream, OpenTurnHandle};
pub use tenant::{ListQuery, NewConversation, Page, Tenant};
pub use token_usage::{ConversationUsage, DayUsage, Price, Spent, TokenUsage};
pub use transfer::{ConversationSession, Format, ImportOptions, Imported, Logged};
pub use world::{SystemWorld, World};
pub use writer::{Commit, CommitFuture};

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
