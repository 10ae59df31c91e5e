//! Readers of the crate `views`: texts, projections, checkpoints and the answers of summarizers.

use crate::messages::list;
use crate::text_of;
use everturn_core::id::TurnId;
use everturn_core::json::Raw;
use everturn_core::message;
use everturn_core::policy::CompactionPolicy;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use everturn_formats::transcript;
use everturn_views::compaction::{
    Candidate, Checkpoint, accept, check_unquoted, complete, extract, outline, plan, render,
};
use everturn_views::facts::{self, read_redaction};
use everturn_views::projection::{Incremental, Previous, ViewOptions, project, replay};
use everturn_views::recall::{TextQuery, cut, period, snippet, terms};
use everturn_views::tokens::TokenizerFamily;
use everturn_views::{identifier, speech};
use serde_json::Value;
use std::sync::LazyLock;

/// 2026-01-01T00:00:00Z.
const START: Timestamp = Timestamp(1_767_225_600_000_000);

/// What people and programs wrote, and what somebody searches it for: the first line.
pub fn words(bytes: &[u8]) {
    let text = &*text_of(bytes);
    let question = text.lines().next().unwrap_or_default();
    let _ = speech::words(text);
    speech::stretches(text);
    speech::without_tags(text);
    let mut end = 0;
    identifier::scan(text, |found| {
        let _ = found;
        end += 1;
    });
    assert!(end <= text.len());
    for (_, place) in terms(text).words {
        assert!(text.get(place.clone()).is_some(), "no text at {place:?}");
    }
    let query = TextQuery::parse(question);
    snippet(text, &query).marked("<", ">");
    if let Some(period) = period(question, START) {
        assert!(period.start < period.end);
    }
    assert!(cut(text, 100).len() <= text.len().max(400));
    for family in [TokenizerFamily::O200k, TokenizerFamily::Cl100k] {
        assert!(family.count(text) as usize <= text.len());
    }
}

/// Messages behind a line with the options of a projection: a view is the same whether it is made at once or as the messages
/// come, and its record gives it again.
pub fn projection(bytes: &[u8]) {
    let text = &*text_of(bytes);
    let (first, rest) = text.split_once('\n').unwrap_or(("null", text));
    let Ok(options) = ViewOptions::parse(&serde_json::from_str(first).unwrap_or_default()) else { return };
    let Ok(Ok((messages, summary))) = Raw::new(rest.to_string()).map(|raw| transcript::messages(&raw)) else {
        return;
    };
    let Ok(view) = project(&messages, summary.as_deref(), &options) else { return };
    let metadata = serde_json::to_value(view.metadata()).unwrap();
    assert_eq!(replay(&messages, &metadata).unwrap().prefix_hash, view.prefix_hash);
    let mut growing = Incremental::default();
    let mut last = None;
    for message in &messages {
        growing.push(message.clone());
        let view = growing.project(summary.as_deref(), &options, Previous::None);
        last = view.ok().map(|view| view.prefix_hash);
    }
    if !messages.is_empty() {
        assert_eq!(last, Some(view.prefix_hash));
    }
}

/// Options of each policy, with a conversation that has what they look for.
pub fn projections() -> Vec<Vec<u8>> {
    let options = [
        r#""raw""#,
        r#""clean_tool_repair""#,
        r#"{"policy":"reachability_gc","root_window":2,"min_chars":5}"#,
        r#"{"policy":"clear_tool_uses","keep_last":1}"#,
        r#"{"policy":"summary_prefix","keep_last":2,"summary":"So far."}"#,
        r#"{"policy":["clean_tool_repair","reachability_gc"],"respect_provider_signatures":"per_turn","freeze":true}"#,
    ];
    let talks = conversations();
    let both = |options: &str, talk: &[u8]| [options.as_bytes(), b"\n", talk].concat();
    options.iter().flat_map(|options| talks.iter().map(move |talk| both(options, talk))).collect()
}

/// Conversations with calls that fail, are repeated, and are answered.
pub fn conversations() -> Vec<Vec<u8>> {
    let talks = [
        r#"[{"role":"system","content":"You fix builds."},{"role":"user","content":"Never touch src/main.rs. Why does `cargo test` fail?"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"path\":\"src/mian.rs\"}"}}]},{"role":"tool","tool_call_id":"a","content":"error: no such file"},{"role":"assistant","content":"A typo.","tool_calls":[{"id":"b","type":"function","function":{"name":"read","arguments":"{\"path\":\"src/lib.rs\"}"}}]},{"role":"tool","tool_call_id":"b","content":"fn a1b2c3() { panic!() } // see OPS-1142"},{"role":"assistant","content":"We decided to remove the panic in src/lib.rs. Next: run the tests. Should I?"},{"role":"user","content":"Yes."}]"#,
        r#"[{"role":"user","content":"Hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"Look.","signature":"c2ln"},{"type":"tool_use","id":"t","name":"grep","input":{"pattern":"x"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":[{"type":"text","text":"nothing found"}]}]},{"role":"assistant","content":[{"type":"text","text":"There is none."}]}]"#,
        r#"[{"type":"message","role":"user","content":[{"type":"input_text","text":"Go"}]},{"type":"reasoning","id":"r","summary":[],"encrypted_content":"e"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"done"}]"#,
    ];
    talks.map(|talk| talk.as_bytes().to_vec()).to_vec()
}

/// Messages of an input as the turns that a compaction covers.
fn candidates(messages: &[Value]) -> Vec<Candidate<'_>> {
    let candidate = |(at, message): (usize, &'_ Value)| {
        let mut id = [0; 16];
        id[15] = at as u8;
        (TurnId::from_bytes(id), 2 * at as u64 + 1, message::role(message).unwrap_or(Role::User))
    };
    let named = messages.iter().enumerate().map(candidate);
    named
        .zip(messages)
        .map(|((turn, seq, role), message)| Candidate {
            turn,
            seq,
            role,
            actor: None,
            at: START.plus_s(60 * seq),
            message: Some(message),
            tokens: 10,
        })
        .collect()
}

/// Messages that are summarized without a model.
pub fn checkpoint(bytes: &[u8]) {
    let messages: Vec<Value> = list(&text_of(bytes)).iter().filter_map(Raw::read).collect();
    let turns = candidates(&messages);
    if let Some(cut) = plan(&CompactionPolicy::default(), &turns, None, true) {
        assert!(cut.turns <= turns.len() && cut.from_seq <= cut.to_seq);
    }
    let first = extract(None, &turns);
    render(&first);
    let again = extract(Some(&first), &turns);
    render(&again);
    check_unquoted(&outline(None, &turns), &turns).unwrap();
    let read: Checkpoint = serde_json::from_str(&serde_json::to_string(&again).unwrap()).unwrap();
    assert_eq!(read, again);
}

/// What the model was asked about.
static TALK: LazyLock<Vec<Value>> =
    LazyLock::new(|| list(&text_of(&conversations()[0])).iter().filter_map(Raw::read).collect());

/// The answer of a model that was asked for a checkpoint, for facts, or for what must not be stored.
pub fn answer(bytes: &[u8]) {
    let text = &*text_of(bytes);
    let turns = candidates(&TALK);
    if let Ok(mut checkpoint) = accept(text) {
        complete(&mut checkpoint, None, &turns);
        render(&checkpoint);
    }
    if let Ok((learned, _)) = facts::read(text, &turns) {
        assert!(learned.iter().all(|fact| turns.iter().any(|turn| turn.turn == fact.turn)));
    }
    let _ = read_redaction(text);
}
