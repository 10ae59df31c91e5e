//! Every reader of bytes that Everturn did not write itself, as a function of bytes: [`TARGETS`].
//!
//! A target returns if the bytes were read or refused, and panics if a promise is broken: input that is accepted and written
//! again is the same, what is rendered is valid for its provider, an answer over HTTP is never 500. Each is run in two ways:
//! `tests/targets.rs` runs it on its seeds, on [`regressions`] and on mutations of both, with the compiler of the project;
//! `targets/` (a package of its own) hands it to libFuzzer, with a nightly compiler.
//!
//! This crate has no fuzzing engine, and no fixtures: [`seeds`] are taken from the tests, the documentation and the
//! golden files of the other crates.

#![allow(clippy::unwrap_used, reason = "a target that cannot go on has found something")]

mod files;
mod messages;
mod mutation;
mod network;
mod seeds;
mod stage;
mod store;
mod text;
mod views;

/// The checks of the crate `formats` for what a provider accepts.
#[path = "../../formats/tests/all/provider_valid.rs"]
#[allow(missing_docs, reason = "documented where its tests are")]
mod provider_valid;

/// The checks of the crate `formats` for documents.
#[path = "../../formats/tests/all/document_valid.rs"]
#[allow(missing_docs, reason = "documented where its tests are")]
mod document_valid;

pub use mutation::Mutator;
pub use seeds::{SeedSource, regressions, seeds};

use SeedSource::{Block, Json, Lines, Literals, Made, Whole};
use everturn_engine::script::Metered;
use std::borrow::Cow;

/// Scripts are limited by the memory they take, which only this counts.
#[global_allocator]
static ALLOCATOR: Metered<std::alloc::System> = Metered(std::alloc::System);

/// A reader of foreign bytes.
pub struct Target {
    /// Name, the same as that of its folder in `regressions/`.
    pub name: &'static str,
    /// Reads the bytes. Panics if a promise is broken.
    pub read: fn(&[u8]),
    /// Sources of its seeds.
    pub seeds: &'static [SeedSource],
    /// Mutated inputs in a run of the tests: as many as a debug build reads in about a second.
    pub rounds: u32,
}

const MESSAGES: &[SeedSource] = &[
    Json("formats/tests/all/provider.rs"),
    Json("formats/tests/all/provider_parts.rs"),
    Json("core/tests/all/pairing.rs"),
    Json("core/src/message.rs"),
    Json("docs/projection.md"),
    Whole("formats/tests/all/render/example.openai-chat.json"),
    Whole("formats/tests/all/render/example.openai-responses.json"),
    Whole("formats/tests/all/render/example.anthropic.json"),
    Whole("formats/tests/all/render/example.gemini.json"),
];

/// All targets.
pub static TARGETS: &[Target] = &[
    Target {
        name: "json",
        read: text::json,
        seeds: &[
            Literals("core/src/json.rs"),
            Json("formats/tests/all/provider.rs"),
            Json("core/src/message.rs"),
        ],
        rounds: 4000,
    },
    Target {
        name: "names",
        read: text::names,
        seeds: &[
            Literals("core/src/id.rs"),
            Literals("core/src/time.rs"),
            Literals("core/src/conversation.rs"),
            Made(text::written_names),
        ],
        rounds: 4000,
    },
    Target {
        name: "policies",
        read: text::policies,
        seeds: &[
            Json("core/src/policy/compaction.rs"),
            Json("core/src/budget.rs"),
            Json("core/src/conversation.rs"),
            Json("views/tests/all/projection.rs"),
            Json("engine/tests/all/refusals.rs"),
            Json("docs/compaction.md"),
            Json("docs/projection.md"),
        ],
        rounds: 2000,
    },
    Target {
        name: "redaction",
        read: text::redaction,
        seeds: &[Literals("core/src/redaction.rs"), Json("server/tests/all/redacting.rs")],
        rounds: 1000,
    },
    Target {
        name: "assets",
        read: text::assets,
        seeds: &[Made(text::messages_with_payloads), Json("core/src/asset.rs")],
        rounds: 500,
    },
    Target {
        name: "events",
        read: text::events,
        seeds: &[
            Whole("core/tests/golden/event_v1.jsonl"),
            Whole("core/tests/golden/event_v2.jsonl"),
            Lines("core/tests/golden/event_v1.jsonl"),
            Made(stage::events),
        ],
        rounds: 600,
    },
    Target { name: "message", read: messages::message, seeds: MESSAGES, rounds: 1500 },
    Target { name: "provider", read: messages::provider, seeds: MESSAGES, rounds: 400 },
    Target { name: "document", read: messages::document, seeds: MESSAGES, rounds: 200 },
    Target {
        name: "reply",
        read: messages::reply,
        seeds: &[
            Literals("formats/src/wire/tests.rs"),
            Literals("formats/src/wire/sse.rs"),
            Literals("formats/src/wire/chat.rs"),
            Literals("formats/src/wire/responses.rs"),
            Literals("formats/src/wire/anthropic.rs"),
            Literals("formats/src/wire/failure.rs"),
            Literals("formats/src/wire/embeddings.rs"),
            Literals("engine/tests/all/model_clients.rs"),
            Made(messages::replies),
        ],
        rounds: 1500,
    },
    Target {
        name: "words",
        read: views::words,
        seeds: &[
            Literals("views/src/speech.rs"),
            Literals("views/src/identifier.rs"),
            Literals("views/src/recall/period.rs"),
            Literals("views/src/recall/snippet.rs"),
            Literals("views/tests/all/compaction_examples.rs"),
        ],
        rounds: 500,
    },
    Target {
        name: "projection",
        read: views::projection,
        seeds: &[Made(views::projections), Json("views/tests/all/projection.rs")],
        rounds: 500,
    },
    Target {
        name: "checkpoint",
        read: views::checkpoint,
        seeds: &[Json("formats/tests/all/provider.rs"), Made(views::conversations)],
        rounds: 150,
    },
    Target {
        name: "answer",
        read: views::answer,
        seeds: &[
            Json("views/tests/all/compaction.rs"),
            Literals("views/tests/all/compaction.rs"),
            Json("views/tests/all/facts.rs"),
            Literals("views/tests/all/facts.rs"),
        ],
        rounds: 1000,
    },
    Target {
        name: "jsonl",
        read: files::jsonl,
        seeds: &[
            Made(stage::jsonl),
            Whole("core/tests/golden/event_v2.jsonl"),
            Literals("formats/tests/all/jsonl.rs"),
        ],
        rounds: 500,
    },
    Target { name: "archive", read: files::archive, seeds: &[Made(files::archives)], rounds: 300 },
    Target {
        name: "transcript",
        read: files::transcript,
        seeds: &[
            Made(stage::transcript),
            Json("formats/tests/all/transcript.rs"),
            Block("docs/import.md", "json"),
        ],
        rounds: 500,
    },
    Target {
        name: "session",
        read: files::session,
        seeds: &[
            Made(stage::session),
            Literals("formats/tests/all/session_reading.rs"),
            Literals("formats/tests/all/session_map.rs"),
            Literals("formats/tests/all/session.rs"),
        ],
        rounds: 600,
    },
    Target {
        name: "agents",
        read: files::agents,
        seeds: &[
            Literals("formats/tests/all/agents.rs"),
            Literals("formats/tests/all/agents_any.rs"),
            Literals("formats/tests/all/agents_withdrawn.rs"),
            Json("formats/tests/all/agents.rs"),
            Made(files::agent_files),
        ],
        rounds: 400,
    },
    Target {
        name: "acp",
        read: files::acp,
        seeds: &[
            Json("formats/tests/all/acp.rs"),
            Literals("formats/tests/all/acp.rs"),
            Made(files::acp_exchanges),
        ],
        rounds: 800,
    },
    Target {
        name: "script",
        read: store::script,
        seeds: &[Block("docs/projectors.md", "rhai"), Literals("engine/tests/all/script.rs")],
        rounds: 30,
    },
    Target {
        name: "import",
        read: store::import,
        seeds: &[
            Made(stage::jsonl),
            Made(stage::session),
            Made(stage::transcript),
            Literals("formats/tests/all/agents_any.rs"),
            Literals("engine/tests/all/importing.rs"),
            Made(files::agent_files),
        ],
        rounds: 60,
    },
    Target { name: "operation", read: network::operation, seeds: &[Made(network::operations)], rounds: 150 },
    Target {
        name: "http",
        read: network::http,
        seeds: &[
            Made(network::requests),
            Literals("server/tests/all/openai.rs"),
            Literals("server/tests/all/hostile.rs"),
        ],
        rounds: 150,
    },
    Target { name: "token", read: network::token, seeds: &[Made(network::tokens)], rounds: 200 },
    Target { name: "mcp", read: network::mcp, seeds: &[Made(network::mcp_lines)], rounds: 60 },
    Target {
        name: "settings",
        read: network::settings,
        seeds: &[Made(network::settings_files), Literals("server/tests/all/settings.rs")],
        rounds: 150,
    },
];

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The input as text. Bytes that are no text are replaced: their refusal is not what a reader of text has to do.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
