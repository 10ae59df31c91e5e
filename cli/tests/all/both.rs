//! Every verb prints the same for a local store and for a server: one list, run both ways.

use crate::process::Serving;
use crate::{Said, Shell};
use regex::{Captures, Regex};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

/// Ids, hashes and salts, times, ports.
static CHANGES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r#"(?P<kind>conv|turn|evt|asset|fact|key|tr)_(?P<id>[0-9A-HJKMNP-TV-Z]{26})|(?P<hash>\b[0-9a-f]{32,64}\b)|(?P<took>"(duration_s|score)":[-0-9.e]+)|(?P<time>(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(\.\d+Z)?|\d{4}-\d\d-\d\d \d\d:\d\d)"#,
    )
    .unwrap()
});
/// Names of earlier values in a step: `conv-1` is the first conversation that was shown.
static NAMES: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(conv|turn|fact|hash|time)-\d+\b").unwrap());

/// A sequence of commands, each with what it reads from standard input.
type Scene = &'static [(&'static [&'static str], &'static str)];

const WRITING: Scene = &[
    (&["list"], ""),
    (&["history", "@last"], ""),
    (&["new", "--title", "Fix the build", "--owner", "ana", "--json"], ""),
    (&["new", "--metadata", r#"{"a":1.0,"b":[ 1 ]}"#, "--retention", "audit-only", "--ttl", "9000"], ""),
    (&["new", "--system-prompt", "Be brief.", "--policy", r#"{"compaction":{"max_turns":6}}"#, "--json"], ""),
    (&["new", "--redaction", "blur"], ""),
    (&["new", "--metadata", "[]"], ""),
    (&["new", "--retention", "forever"], ""),
    (&["list"], ""),
    (&["list", "--json", "--limit", "2"], ""),
    (&["list", "--after", "time-1/conv-1"], ""),
    (&["list", "--query", "build", "--state", "active", "--json"], ""),
    (&["list", "--after", "nonsense"], ""),
    (&["list", "--since", "7d", "--project", "web"], ""),
    (&["list", "--since", "yesterday"], ""),
    (&["list", "--since", "someday"], ""),
    (&["info", "conv-1"], ""),
    (&["info", "zzz"], ""),
    (&["rename", "conv-1", "Fix", "the", "build", "again"], ""),
    (&["rename", "conv-1", "Fix the build"], ""),
    (&["list", "--limit", "0"], ""),
    (&["list", "--limit", "5000", "--json"], ""),
    (&["history", "conv-1"], ""),
    (&["append", "conv-1", "What did we decide?", "--actor", "alice"], ""),
    (&["append", "conv-1", "-", "--role", "tool", "--actor", "grep", "--json"], "one\ntwo\nthree\n"),
    (&["append", "conv-1", "--message", "-", "--model", "sonnet", "--json"], MESSAGE),
    (
        &[
            "append",
            "conv-1",
            "--message",
            r#"{"type":"function_call","call_id":"c9","name":"f","arguments":"{ }"}"#,
            "--json",
        ],
        "",
    ),
    (&["append", "conv-1", "naïve “words”", "--expected-seq", "4", "--json"], ""),
    (&["append", "conv-1", "stale", "--expected-seq", "2"], ""),
    (&["append", "conv-1", "stale", "--expected-seq", "2", "--json"], ""),
    (&["append", "conv-1", "once", "--idempotency-key", "k1", "--json"], ""),
    (&["append", "conv-1", "once", "--idempotency-key", "k1", "--json"], ""),
    (&["append", "conv-1", "another", "--idempotency-key", "k1"], ""),
    (&["append", "conv-1", "x", "--idempotency-key", "a\nb"], ""),
    (&["append", "conv-1", "x", "--role", "king"], ""),
    (&["append", "conv-1", "x", "--actor", ""], ""),
    (&["append", "conv-1", "--message", "{"], ""),
    (&["append", "conv-1", "--message", "null"], ""),
    (&["append", "conv-1", "--message", "[1]"], ""),
    (&["append", "conv-1", "--message", "{\"role\":\"user\",\"role\":\"user\"}"], ""),
    (&["append", "conv-1", "--message", "{\"content\":\"x\"}"], ""),
    (
        &["append", "conv-1", "--stream", "--role", "assistant", "--model", "m", "--json", "-"],
        "it comes\nin pieces é",
    ),
    (&["append", "conv-1", "--stream", "-"], ""),
    (&["append", "conv_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X", "x"], ""),
    (&["append", "zzz", "x"], ""),
    (&["append", "conv_", "x"], ""),
    (&["history", "conv-1"], ""),
    (&["history", "conv-1", "--full", "--limit", "2"], ""),
    (&["history", "conv-1", "--json", "--limit", "3", "--before", "5"], ""),
    (&["history", "conv-1", "--after", "3", "--limit", "2"], ""),
    (&["history", "conv-1", "--events", "--json"], ""),
    (&["history", "conv-1", "--events", "--superseded", "--actor", "alice", "--actor", "grep"], ""),
    (&["history", "conv-1", "--limit", "0"], ""),
    (&["history", "conv-1", "--limit", "5000"], ""),
    (&["history", "@last", "--limit", "1"], ""),
    (&["history", "zzz", "--json"], ""),
];

const CLAUDE: &str = r#"{"type":"user","uuid":"u1","parentUuid":null,"sessionId":"s-both","cwd":"/w","version":"2","timestamp":"2026-01-01T00:00:00Z","message":{"role":"user","content":"find it"}}
{"type":"user","uuid":"x1","parentUuid":null,"sessionId":"s-both","isSidechain":true,"agentId":"ada","message":{"role":"user","content":"look"}}
{"type":"assistant","uuid":"a1","parentUuid":"u1","sessionId":"s-both","message":{"id":"m","role":"assistant","content":[{"type":"text","text":"here"}],"usage":{"input_tokens":1,"output_tokens":2}}}
{"type":"mode","mode":"normal","sessionId":"s-both"}
"#;

const MESSAGE: &str = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
 {"type":"text","text":"Let me look.\nOne moment."},
 {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}},
 {"type":"tool_use","id":"1","name":"grep","input":{"pattern":"TODO", "n": 1.0}}]}
"#;

const CALLS: &str = r#"{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"look","input":{}},
 {"type":"tool_use","id":"c2","name":"look","input":{}}]}"#;

const READING: Scene = &[
    (&["new", "--title", "Talk", "--json"], ""),
    (&["append", "conv-1", "Look at src/part_0.rs, it takes 17 ms.", "--actor", "ana"], ""),
    (&["append", "conv-1", "Look at src/part_1.rs, it takes 117 ms.", "--actor", "ana"], ""),
    (&["append", "conv-1", "Look at src/part_2.rs, it takes 217 ms.", "--actor", "ben"], ""),
    (
        &[
            "append",
            "conv-1",
            "--message",
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"run","arguments":"{}"}}]}"#,
        ],
        "",
    ),
    (&["append", "conv-1", "--message", r#"{"role":"tool","tool_call_id":"c1","content":"error: no"}"#], ""),
    (&["append", "conv-1", "Go on.", "--actor", "ana"], ""),
    (&["append", "conv-1", "And on.", "--actor", "ana"], ""),
    (&["state", "conv-1"], ""),
    (&["state", "conv-1", "--json"], ""),
    (&["pin", "conv-1", "branch", "release/2.1"], ""),
    (&["pin", "conv-1", "a b/c?d%", "{\"files\": 3.0}", "--json"], ""),
    (&["pin", "conv-1", "nothing", "null"], ""),
    (&["pin", "@last", "bad\nname", "1"], ""),
    (&["state", "conv-1"], ""),
    (&["state", "conv-1", "--at", "9", "--json"], ""),
    (&["state", "conv-1", "--at", "99"], ""),
    (&["unpin", "conv-1", "a b/c?d%"], ""),
    (&["unpin", "conv-1", "a b/c?d%"], ""),
    (&["unpin", "conv-1", "nothing", "--json"], ""),
    (&["scratchpad", "conv-1", "plan", "{\"step\": 2}"], ""),
    (&["scratchpad", "conv-1", "plan", "--clear", "--json"], ""),
    (&["scratchpad", "conv-1", "plan", "--clear"], ""),
    (&["context", "conv-1", "--budget", "1000"], ""),
    (
        &[
            "context",
            "conv-1",
            "--budget",
            "1000",
            "--provider",
            "anthropic",
            "--model",
            "claude-sonnet-4-5",
            "--json",
        ],
        "",
    ),
    (
        &[
            "context",
            "conv-1",
            "--budget",
            "400",
            "--project",
            "clean_tool_repair",
            "--last",
            "3",
            "--participant",
            "ben",
            "--sections",
            r#"{"digests":{"share":0.3}}"#,
            "--instructions",
            "Be brief.",
            "--digest",
            "Work board=3 open",
            "--input",
            "And now?",
            "--json",
        ],
        "",
    ),
    (
        &[
            "context",
            "conv-1",
            "--budget",
            "400",
            "--project",
            r#"{"policy":"custom","projector":"messages"}"#,
            "--show",
        ],
        "",
    ),
    (&["context", "conv-1", "--budget", "1000", "--at", "4", "--show"], ""),
    (&["context", "conv-1", "--budget", "1000", "--input", "And now?", "--record"], ""),
    (&["context", "conv-1", "--budget", "1000", "--input", "And now?", "--record", "--json"], ""),
    (&["context", "conv-1", "--replay", "14", "--show"], ""),
    (&["context", "conv-1", "--replay", "14", "--json"], ""),
    (&["context", "conv-1", "--replay", "2"], ""),
    (&["context", "conv-1", "--budget", "3"], ""),
    (&["context", "conv-1", "--budget", "100", "--provider", "nobody"], ""),
    (&["context", "conv-1", "--budget", "100", "--sections", "{"], ""),
    (&["context", "conv-1", "--budget", "100", "--sections", r#"{"x":1}"#], ""),
    (&["context", "conv-1", "--budget", "100", "--digest", "nothing"], ""),
    (&["project", "conv-1", "--policy", "clean_tool_repair"], ""),
    (&["project", "conv-1", "--policy", "squash_failed_calls,clear_tool_uses", "--messages"], ""),
    (&["project", "conv-1", "--policy", "nonsense"], ""),
    (&["project", "conv-1", "--options", "[]"], ""),
    (
        &[
            "project",
            "conv-1",
            "--policy",
            "custom",
            "--options",
            r#"{"projector":"messages.filter(|m| m.role == \"user\")"}"#,
            "--messages",
        ],
        "",
    ),
    (&["project", "conv-1", "--policy", "custom", "--options", r#"{"projector":"let x = ;"}"#], ""),
    (&["project", "-", "--policy", "raw"], r#"[{"role":"user","content":"no store is needed"}]"#),
    (&["project", "zzz", "--policy", "raw"], ""),
    (&["compact", "conv-1", "--dry-run"], ""),
    (&["compact", "conv-1", "--keep-last", "2", "--dry-run", "--json"], ""),
    (&["compact", "conv-1", "--keep-last", "2"], ""),
    (&["compact", "conv-1", "--keep-last", "2", "--json"], ""),
    (&["state", "conv-1"], ""),
    (&["state", "conv-1", "--json"], ""),
    (&["compact", "conv-1", "--revert", "--json"], ""),
    (&["compact", "conv-1", "--revert"], ""),
];

const KEEPING: Scene = &[
    (&["new", "--title", "Kept", "--json"], ""),
    (&["append", "conv-1", "a secret nobody should keep", "--json"], ""),
    (&["append", "conv-1", "shared", "--json"], ""),
    (&["append", "conv-1", "only in the first"], ""),
    (&["fork", "conv-1", "--at", "3", "--json"], ""),
    (&["append", "conv-2", "only in the fork"], ""),
    (&["history", "conv-2"], ""),
    (&["fork", "conv-1"], ""),
    (&["fork", "conv-1", "--at", "99"], ""),
    (&["verify", "conv-1"], ""),
    (&["verify", "conv-1", "--json"], ""),
    (&["verify", "conv-1", "--head", "hash-1"], ""),
    (
        &[
            "verify",
            "conv-1",
            "--head",
            "abababababababababababababababababababababababababababababababab",
            "--json",
        ],
        "",
    ),
    (&["verify", "conv-1", "--head", "xyz"], ""),
    (&["erase", "turn-1", "--reason", "asked for", "--actor", "dpo"], ""),
    (&["erase", "turn-2", "--reason", "asked for", "--json"], ""),
    (&["erase", "turn_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X", "--reason", "r"], ""),
    (&["erase", "turn_x", "--reason", "r"], ""),
    (&["history", "conv-1"], ""),
    (&["verify", "--all"], ""),
    (&["verify", "--all", "--json"], ""),
    (&["export", "conv-1", "-o", "session.jsonl"], ""),
    (&["export", "conv-1", "-o", "session.jsonl"], ""),
    (&["export", "conv-1", "-o", "session.jsonl", "--force"], ""),
    (&["export", "conv-1"], ""),
    (&["export", "conv-1", "--format", "transcript"], ""),
    (&["export", "conv-1", "--format", "openai-chat"], ""),
    (&["export", "conv-1", "--format", "openai-responses"], ""),
    (&["export", "conv-2", "--format", "anthropic"], ""),
    (&["export", "conv-1", "--format", "gemini"], ""),
    (&["export", "conv-2", "--format", "markdown"], ""),
    (&["export", "conv-1", "--format", "html"], ""),
    (&["export", "conv-1", "--format", "markdown", "--redacted"], ""),
    (&["export", "conv-1", "--redacted"], ""),
    (&["list", "--forked-from", "conv-1"], ""),
    (&["export", "conv-1", "--format", "markdown", "-o", "talk.md"], ""),
    (&["export", "--all", "all", "--format", "markdown"], ""),
    (&["export", "--all", "all", "--format", "markdown"], ""),
    (&["export", "conv-1", "--format", "pdf"], ""),
    (&["export", "zzz", "--format", "html"], ""),
    (&["export", "zzz"], ""),
    (&["verify", "session.jsonl", "--json"], ""),
    (&["delete", "conv-2", "--reason", "test data", "--json"], ""),
    (&["delete", "conv-1", "--reason", "test & done"], ""),
    (&["delete", "conv-1", "--reason", "again"], ""),
    (&["history", "conv-1"], ""),
    (&["import", "session.jsonl", "missing.json", "."], ""),
    (&["import", "session.jsonl", "--json"], ""),
    (&["import", "-"], TRANSCRIPT),
    (&["import", "-"], CLAUDE),
    (&["import", "-", "--json"], CLAUDE),
    (&["history", "@last", "--json"], ""),
    (
        &["import", "-", "--json"],
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]"#,
    ),
    (&["import", "-", "--dry-run"], CLAUDE),
    (&["import", "-"], ""),
    (&["import", "-", "--json"], "nonsense"),
    (&["import", "-"], r#"{"_type":"transcript","version":2,"messages":[{"content":1}]}"#),
    (&["history", "@last"], ""),
    (&["export", "@last", "--format", "transcript"], ""),
    (&["doctor"], ""),
    (&["doctor", "--json"], ""),
];

const TRANSCRIPT: &str = r#"{"_type":"transcript","version":2,"id":"tr_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X","state":"active","summary":"so far","metadata":{"a":1.0},
    "messages":[{"role":"user","content":[{"type":"image","asset_id":"asset_1","visibility":"public"},
        {"type":"text","text":"Review this screenshot","visibility":"public"}]}],
    "assets":[{"_type":"transcript_asset","id":"asset_1","kind":"image","mime_type":"image/png","name":"screenshot.png",
        "visibility":"internal","storage":{"path":".harn/assets/asset_1.png"}}]}"#;

const FACTS: Scene = &[
    (&["new", "--policy", r#"{"facts":{"redact":true}}"#, "--json"], ""),
    (&["new", "--policy", r#"{"facts":{"extrcat":true}}"#], ""),
    (&["append", "conv-1", "I live in Lisbon,  by the sea.", "--actor", "ana", "--json"], ""),
    (&["facts", "conv-1"], ""),
    (
        &[
            "facts",
            "conv-1",
            "add",
            "Ana",
            "lives in",
            "Lisbon",
            "--source",
            "turn-1",
            "--quote",
            "in Lisbon, by",
            "--json",
        ],
        "",
    ),
    (&["facts", "conv-1", "add", "ana", "lives_in", "lisbon", "--confidence", "0.5", "--actor", "ben"], ""),
    (
        &["facts", "conv-1", "add", "Ana", "lives in", "Porto", "--source", "turn-1", "--quote", "in Porto"],
        "",
    ),
    (&["facts", "conv-1", "add", "Ana", "has the address", "ana@example.org"], ""),
    (&["facts", "conv-1", "add", "Ana", "is", "", "--json"], ""),
    (&["facts", "conv-1", "add", "Ana", "is", "here", "--confidence", "7"], ""),
    (&["facts", "conv-1", "add", "Ana", "drinks", "tea"], ""),
    (&["facts", "conv-1", "correct", "fact-1", "--object", "Porto", "--actor", "ana", "--json"], ""),
    (&["facts", "conv-1", "correct", "fact-1"], ""),
    (&["facts", "conv-1", "list"], ""),
    (&["facts", "conv-1", "list", "--all", "--limit", "2", "--json"], ""),
    (&["facts", "conv-1", "list", "--all", "--limit", "1"], ""),
    (&["facts", "conv-1", "list", "--as-of", "3"], ""),
    (&["facts", "conv-1", "list", "--as-of", "99"], ""),
    (&["facts", "conv-1", "list", "--after", "3", "--limit", "0"], ""),
    (&["facts", "conv-1", "retract", "fact-2", "--reason", "not so & never", "--actor", "ben"], ""),
    (&["facts", "conv-1", "retract", "fact-2"], ""),
    (&["facts", "conv-1", "retract", "fact_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X", "--json"], ""),
    (&["facts", "conv-1", "retract", "nonsense"], ""),
    (&["facts", "conv-1", "extract"], ""),
    (&["facts", "zzz"], ""),
    (&["facts", "conv-1", "list", "--all"], ""),
    (&["erase", "turn-1", "--reason", "asked for"], ""),
    (&["facts", "conv-1", "list", "--all", "--json"], ""),
];

const RECALL: Scene = &[
    (&["recall", "port"], ""),
    (&["new", "--title", "Deployment", "--json"], ""),
    (&["append", "conv-1", "--actor", "ana", "Which port should the relay listen on?"], ""),
    (
        &[
            "append",
            "conv-1",
            "--role",
            "assistant",
            "It listens on 8443: see src/relay/listen.rs, fn bind_listener.",
        ],
        "",
    ),
    (&["new", "--title", "Holidays"], ""),
    (&["append", "conv-2", "A port town in the south, with trains."], ""),
    (&["facts", "conv-1", "add", "relay", "listens on port", "8443"], ""),
    (&["recall", "which", "port"], ""),
    (&["recall", "which port", "--json", "--mode", "lexical"], ""),
    (&["recall", "port", "--conversation", "conv-2", "--json"], ""),
    (&["recall", "listen.rs", "--role", "assistant", "--mode", "lexical"], ""),
    (&["recall", "bindListener", "--mode", "lexical"], ""),
    (&["recall", "\"port should\"", "--actor", "ana"], ""),
    (&["recall", "8443", "--kind", "fact", "--json"], ""),
    (&["recall", "rel*", "--limit", "1"], ""),
    (&["recall", "port", "--before", "2020-01-01T00:00:00Z"], ""),
    (&["recall", "port", "--after", "yesterday"], ""),
    (&["recall", "port", "--since", "someday"], ""),
    (&["recall", "port", "--mode", "guess"], ""),
    (&["recall", "port", "--limit", "0"], ""),
    (&["recall", "AND \" * ( NEAR"], ""),
    (
        &[
            "context",
            "conv-1",
            "--budget",
            "900",
            "--last",
            "1",
            "--recall",
            "3",
            "--facts",
            "--input",
            "which port?",
            "--show",
        ],
        "",
    ),
    (&["erase", "turn-1", "--reason", "test"], ""),
    (&["recall", "which port should"], ""),
];

const CHANGING: Scene = &[
    (&["new", "--title", "Trip", "--metadata", r#"{"a":1,"b":2.50}"#, "--ttl", "9000", "--json"], ""),
    (
        &[
            "update",
            "conv-1",
            "--title",
            "Lisbon in May",
            "--metadata",
            r#"{"a":null,"c":[ 1.0 ]}"#,
            "--json",
        ],
        "",
    ),
    (&["update", "conv-1", "--ttl", "none", "--owner", "ana", "--retention", "audit-only", "--json"], ""),
    (&["update", "conv-1", "--title", "", "--policy", r#"{"compaction":{"max_turns":6}}"#, "--json"], ""),
    (&["update", "conv-1", "--title", "late", "--expected-seq", "1"], ""),
    (&["update", "conv-1", "--ttl", "soon"], ""),
    (&["update", "conv-1", "--retention", "forever"], ""),
    (&["update", "conv-1", "--system-prompt", "Be brief."], ""),
    (&["append", "conv-1", "To Faro?", "--actor", "ana", "--json"], ""),
    (&["supersede", "turn-1", "To Porto?", "--json"], ""),
    (&["supersede", "turn-1", "To Rome?"], ""),
    (
        &["supersede", "turn-2", "--message", "-", "--json"],
        r#"{"role":"user","content":[{"type":"text","text":"To Porto, 1.0"}]}"#,
    ),
    (&["history", "conv-1", "--json"], ""),
    (&["history", "conv-1", "--superseded", "--json"], ""),
    (&["summarize", "conv-1", "--json"], ""),
    (&["summarize", "conv-1", "--from", "90"], ""),
    (&["append", "conv-1", "--message", CALLS, "--json"], ""),
    (&["append", "conv-1", "--role", "tool", "whose?"], ""),
    (&["append", "conv-1", "--role", "tool", "--tool-call-id", "c1", "one", "--json"], ""),
    (&["append", "conv-1", "--role", "user", "--tool-call-id", "c1", "one"], ""),
    (&["append", "conv-1", "--role", "tool", "two", "--json"], ""),
    (&["append", "conv-1", "--message", CALLS], ""),
    (&["abandon-call", "conv-1", "c1", "--actor", "ana", "--reason", "it hangs", "--json"], ""),
    (&["abandon-call", "conv-1", "c1"], ""),
    (&["abandon-call", "conv-1"], ""),
    (&["abandon-call", "conv-1"], ""),
    (&["state", "conv-1", "--json"], ""),
    (&["request-approval", "conv-1", "appr-2", "--question", "Go?", "--actor", "gpt", "--json"], ""),
    (&["request-approval", "conv-1", "appr-2"], ""),
    (&["request-approval", "conv-1", "appr-3", "--deadline", "2000-01-01T00:00:00Z"], ""),
    (&["deny", "conv-1", "appr-2", "--actor", "ana", "--reason", "no", "--json"], ""),
    (&["approve", "conv-1", "appr-2"], ""),
    (&["approve", "conv-1", "appr-1"], ""),
    (&["deny", "conv-1", "appr-1", "--json"], ""),
    (&["archive", "conv-1", "--reason", "later"], ""),
    (&["append", "conv-1", "too late"], ""),
    (&["archive", "conv-1", "--undo", "--json"], ""),
    (&["reset", "conv-1", "--json"], ""),
    (&["list"], ""),
    (&["close", "conv-2", "--reason", "over", "--json"], ""),
    (&["append", "conv-2", "too late"], ""),
    (&["archive", "conv-2"], ""),
];

const KEYS: Scene = &[
    (&["keys", "list"], ""),
    (&["keys", "create", "--role", "root"], ""),
    (&["keys", "revoke", "key_01J9ZQ3V7Y2N8Q4R5S6T7V8W9X"], ""),
    (&["keys", "list", "--json"], ""),
];

/// Commands in a folder of their own, on a local store or against a server, and their output. Values that
/// differ each time are replaced by names in the order of appearance.
struct Play {
    shell: Shell,
    server: Option<Serving>,
    names: HashMap<String, String>,
    counts: HashMap<String, usize>,
}

impl Play {
    fn local() -> Play {
        Play { shell: Shell::new(), server: None, names: HashMap::new(), counts: HashMap::new() }
    }

    fn remote() -> Play {
        let shell = Shell::new();
        // A store is created with its first conversation; a server creates it when it starts.
        let server = Serving::start(&shell, &[]);
        Play { server: Some(server), shell, names: HashMap::new(), counts: HashMap::new() }
    }

    fn run(&self, args: &[&str], input: &str) -> Said {
        let args: Vec<String> = args.iter().map(|arg| self.real(arg)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = self.shell.command(&args);
        if let Some(server) = &self.server {
            command.env_remove("EVERTURN_STORE").env("EVERTURN_URL", &server.url);
        }
        self.shell.feed(command, input.as_bytes())
    }

    /// The value of a name.
    fn real(&self, arg: &str) -> String {
        let known = |found: &Captures| {
            let found = self.names.iter().find(|(_, name)| **name == found[0]).map(|(real, _)| real.clone());
            found.unwrap_or_else(|| panic!("{arg:?} names something that was not shown yet"))
        };
        NAMES.replace_all(arg, known).into_owned()
    }

    /// A text with names in place of values that differ each time.
    fn named(&mut self, text: &str) -> String {
        let (names, counts) = (&mut self.names, &mut self.counts);
        let named = CHANGES.replace_all(text, |found: &Captures| {
            if found.name("took").is_some() {
                return "\"duration_s\":TIME".to_string();
            }
            let kind = match (found.name("kind"), found.name("hash")) {
                (Some(kind), _) => kind.as_str().to_string(),
                (None, Some(_)) => "hash".to_string(),
                // Two events may fall into the same millisecond here and not there.
                (None, None) if names.values().any(|name| name == "time-1") => return "TIME".to_string(),
                (None, None) => {
                    names.insert(found[0].to_string(), "time-1".into());
                    return "TIME".to_string();
                }
            };
            let next = counts.entry(kind.clone()).or_default();
            names
                .entry(found[0].to_string())
                .or_insert_with(|| {
                    *next += 1;
                    format!("{kind}-{next}")
                })
                .clone()
        });
        named.replace(&self.shell.folder.path().display().to_string(), "FOLDER")
    }

    fn show(&mut self, scene: Scene) -> String {
        let mut out = String::new();
        for (args, input) in scene {
            let said = self.run(args, input);
            let (stdout, stderr) = (self.named(&said.out), self.named(&said.err));
            writeln!(out, "$ everturn {args:?}\n{stdout}{stderr}[{}]", said.code).unwrap();
        }
        out
    }
}

/// Runs both ways, step by step, so that the first difference is shown with what led to it.
fn same(scene: Scene) {
    let (mut local, mut remote) = (Play::local(), Play::remote());
    // The local store must exist before it is read, like the server's.
    local.shell.ok(&["new"]);
    let first = local.shell.json(&["list", "--json"])["data"][0]["id"].as_str().unwrap().to_string();
    local.shell.ok(&["delete", &first, "--reason", "only to make the store"]);
    for step in scene {
        let step: Scene = std::slice::from_ref(step);
        let (here, there) = (local.show(step), remote.show(step));
        assert_eq!(there, here, "left is the server's");
    }
}

#[test]
fn writing_is_the_same() {
    same(WRITING);
}

#[test]
fn reading_is_the_same() {
    same(READING);
}

#[test]
fn keeping_is_the_same() {
    same(KEEPING);
}

#[test]
fn facts_are_the_same() {
    same(FACTS);
}

#[test]
fn recall_is_the_same() {
    same(RECALL);
}

#[test]
fn changing_is_the_same() {
    same(CHANGING);
}

#[test]
fn keys_are_the_same() {
    same(KEYS);
}

#[test]
fn too_much_is_refused_in_the_same_words() {
    let (local, remote) = (Play::local(), Play::remote());
    let id = local.shell.new_conversation();
    let there = remote.run(&["new", "--json"], "");
    let there: serde_json::Value = serde_json::from_str(&there.out).unwrap();
    // The second is too long only once it is serialised as JSON.
    for long in ["x".repeat(16 * 1024 * 1024 + 1), "\"".repeat(9 * 1024 * 1024)] {
        let here = local.run(&["append", &id, "-", "--model", "m"], &long);
        let there = remote.run(&["append", there["id"].as_str().unwrap(), "-", "--model", "m"], &long);
        assert!(here.err.contains("BODY_BYTES_MAX is 16777216"), "{}", here.err);
        assert_eq!((here.err, here.code), (there.err, there.code));
    }
}
