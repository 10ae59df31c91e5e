//! A view made after another is the one that is made from scratch.

use crate::projection::{call, failed_then_repaired, long, read, result};
use crate::projection_generated::{options, transcript};
use everturn_views::projection::{
    Incremental, Message, Previous, ProjectedView, ProjectionPolicy, ViewOptions, project_after,
};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

fn told(view: &ProjectedView<'_>) -> Value {
    serde_json::to_value(view).unwrap()
}

fn grown(messages: &[Message]) -> Incremental {
    let mut incremental = Incremental::default();
    messages.iter().cloned().for_each(|message| incremental.push(message));
    incremental
}

/// A change between two views.
#[derive(Clone, Debug)]
enum Step {
    /// So many more messages come.
    Grow(usize),
    /// One of the messages is edited, in the place where it stands.
    Edit(Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..12usize).prop_map(Step::Grow),
        1 => any::<Index>().prop_map(Step::Edit),
    ];
    prop::collection::vec(step, 1..30)
}

/// Long transcripts, also such as no provider takes: messages are swapped, so that results come late, twice or never.
fn history() -> impl Strategy<Value = Vec<Value>> {
    let swaps = prop::collection::vec(any::<(Index, Index)>(), 0..5);
    (prop::collection::vec(transcript(), 4..16), swaps, any::<bool>()).prop_map(|(parts, swaps, unique)| {
        let mut all: Vec<Value> = Vec::new();
        for (n, part) in parts.into_iter().enumerate() {
            // Where ids do not come again, results may answer calls from long before.
            let text = Value::from(part).to_string();
            let text = if unique { text.replace("\"call_", &format!("\"call_{n}_")) } else { text };
            all.extend(serde_json::from_str::<Vec<Value>>(&text).unwrap());
        }
        for (one, other) in swaps.iter().filter(|_| !all.is_empty()).collect::<Vec<_>>() {
            let (one, other) = (one.index(all.len()), other.index(all.len()));
            all.swap(one, other);
        }
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_view_after_another_is_the_one_from_scratch(
        history in history(),
        steps in steps(),
        options in options(),
        single in prop::option::weighted(0.7, 0..4usize),
        freeze in prop::option::weighted(0.3, 0..600u64),
        windows in prop::collection::vec(0..40usize, 1..4),
        plan in prop::collection::vec(0..6u8, 0..3),
        mode in 0..3u8,
    ) {
        let mut options = options;
        // Those that keep their decisions more often than the others.
        let settling =
            [ProjectionPolicy::CleanToolRepair, ProjectionPolicy::SquashFailedCalls, ProjectionPolicy::ReachabilityGc, ProjectionPolicy::ClearToolUses];
        options.policies = single.map_or(options.policies, |n| vec![settling[n]]);
        options.freeze = freeze;
        let plan: Vec<String> = plan.iter().map(|n| format!("src/part{n}.rs")).collect();
        let all = read(&history.into());
        let mut messages: Vec<Message> = Vec::new();
        let mut incremental = Incremental::default();
        let mut metadata: Option<Value> = None;
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Grow(count) => {
                    let end = all.len().min(messages.len() + count);
                    for message in &all[messages.len()..end] {
                        messages.push(message.clone());
                        incremental.push(message.clone());
                    }
                }
                Step::Edit(index) if !messages.is_empty() => {
                    let at = index.index(messages.len());
                    messages[at] = Message::of(json!({"role":"user","content":format!("edited {n}")})).unwrap();
                    incremental = grown(&messages);
                    // Only a view that was recorded can still be compared with.
                    metadata = metadata.filter(|_| mode != 0);
                }
                Step::Edit(_) => {}
            }
            options.reachability.root_window = windows[n % windows.len()];
            options.reachability.roots = plan.get(n % 5).map(|path| ("active_plan", json!(path))).into_iter().collect();
            let scratch = project_after(&messages, Some("so far"), &options, metadata.as_ref()).unwrap();
            let previous = match (&metadata, mode) {
                (None, _) => Previous::None,
                (Some(_), 0) => Previous::Last,
                (Some(metadata), _) => Previous::Recorded(metadata),
            };
            let view = incremental.project(Some("so far"), &options, previous).unwrap();
            prop_assert_eq!(told(&view), told(&scratch), "after {} messages", messages.len());
            metadata = (mode < 2).then(|| scratch.event()["metadata"].clone());
        }
    }
}

/// A result that comes after a hundred other messages still changes what was decided about its call.
#[test]
fn late_results_and_late_repairs_reach_what_was_settled() {
    let chatter = |n: usize| json!({"role":"assistant","content":format!("working, {n}")});
    for (policy, late, hidden) in [
        ("squash_failed_calls", json!([result("a", "error: no")]), 2),
        ("clean_tool_repair", json!([result("a", "error: no"), call("b", "ls"), result("b", "fine")]), 2),
    ] {
        let mut given = vec![call("a", "ls")];
        given.extend((0..100).map(chatter));
        let options = ViewOptions::parse(&json!(policy)).unwrap();
        let mut incremental = grown(&read(&given.clone().into()));
        assert_eq!(incremental.project(None, &options, Previous::None).unwrap().dropped_count, 0);
        read(&late).into_iter().for_each(|message| incremental.push(message));
        assert_eq!(incremental.project(None, &options, Previous::None).unwrap().dropped_count, hidden);
    }
    let whole = failed_then_repaired();
    let (failed, repaired) = whole.as_array().unwrap().split_at(3);
    let mut given = failed.to_vec();
    given.extend((0..100).map(chatter));
    let options = ViewOptions::parse(&json!("clean_tool_repair")).unwrap();
    let mut incremental = grown(&read(&given.into()));
    assert_eq!(incremental.project(None, &options, Previous::None).unwrap().dropped_count, 0);
    read(&repaired.to_vec().into()).into_iter().for_each(|message| incremental.push(message));
    assert_eq!(incremental.project(None, &options, Previous::None).unwrap().dropped_count, 2);
}

/// Without ids, what belongs together is known by what stands between.
#[test]
fn what_a_later_message_may_belong_to_is_not_settled() {
    let user = |n: usize| json!({"role":"user","content":format!("go on, {n}")});
    let nameless =
        json!({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"ls","arguments":"{}"}}]});
    let thought = |n: usize| json!({"type":"reasoning","id":format!("rs_{n}"),"summary":[]});
    let called = json!([
        {"type":"function_call","call_id":"a","name":"ls","arguments":"{}"},
        {"type":"function_call_output","call_id":"a","output":"error: no"},
    ]);
    let waiting = [vec![nameless], (0..100).map(user).collect()].concat();
    let thinking: Vec<Value> = (0..100).map(thought).collect();
    for (given, more, hidden) in
        [(waiting, json!([{"role":"tool","name":"ls","content":"error: no"}]), 2), (thinking, called, 102)]
    {
        let options = ViewOptions::parse(&json!("squash_failed_calls")).unwrap();
        let mut incremental = grown(&read(&given.into()));
        assert_eq!(incremental.project(None, &options, Previous::None).unwrap().dropped_count, 0);
        read(&more).into_iter().for_each(|message| incremental.push(message));
        assert_eq!(incremental.project(None, &options, Previous::None).unwrap().dropped_count, hidden);
    }
}

/// A body comes back when something refers to it again, and goes when nothing does any more.
#[test]
fn what_is_referred_to_again_is_shown_again() {
    let turn =
        |n: usize| [call(&format!("c{n}"), "ls"), result(&format!("c{n}"), &long(&format!("src/f{n}.rs")))];
    let options = ViewOptions::parse(&json!({"policy":"reachability_gc","root_window":2})).unwrap();
    let given: Value = (0..60).flat_map(turn).collect();
    let mut incremental = grown(&read(&given));
    let mut is_reclaimed = |said: &str| {
        let message = Message::of(json!({"role":"user","content":said})).unwrap();
        incremental.push(message);
        incremental.project(None, &options, Previous::Last).unwrap().redacted_indices.contains(&7)
    };
    let said = ["hello", "open src/f3.rs", "thanks", "bye", "src/f3.rs"];
    assert_eq!(said.map(&mut is_reclaimed), [true, false, false, true, false]);
}
