//! The engine of [Everturn](https://crates.io/crates/everturn), a conversation store for AI agents: everything one can do with it,
//! as a library.
//!
//! Programs add the package `everturn`, which re-exports all of this and whose front page is the guide.
//!
//! Not here: the engine opens no port, reads no arguments and formats nothing for people.
//!
//! How to build and change it: `CONTRIBUTING.md` in the root of the repository. What it keeps out: `SECURITY.md` there.

#![cfg_attr(docsrs, feature(doc_cfg))]

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
pub use everturn::{Everturn, Options, sqlite_notices, store_file};
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
pub use proof::{ConversationLog, Doctor, Finding};
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
