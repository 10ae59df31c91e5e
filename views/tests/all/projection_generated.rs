//! Generated transcripts in every shape, and options for every policy.

use everturn_views::projection::{Message, ViewOptions};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    OpenAi,
    Anthropic,
    Responses,
    Ours,
}

/// How a result reports whether the call failed.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Fine,
    FlaggedFine,
    Flag,
    Status,
    Words,
    WordsButFlaggedFine,
}

#[derive(Clone, Debug)]
struct Tool {
    name: usize,
    about: usize,
    outcome: Outcome,
    long: bool,
}

#[derive(Clone, Debug)]
struct Round {
    asked: bool,
    prose: bool,
    thinks: bool,
    signed: bool,
    tools: Vec<Tool>,
    /// Without ids, where the shape allows it.
    nameless: bool,
    /// Ids that start from zero in every turn, as with some models.
    repeats_ids: bool,
    backwards: bool,
    remark: bool,
}

fn tool() -> impl Strategy<Value = Tool> {
    let outcome = prop_oneof![
        3 => Just(Outcome::Fine),
        1 => Just(Outcome::FlaggedFine),
        2 => Just(Outcome::Flag),
        1 => Just(Outcome::Status),
        2 => Just(Outcome::Words),
        1 => Just(Outcome::WordsButFlaggedFine),
    ];
    (0..3usize, 0..6usize, outcome, any::<bool>()).prop_map(|(name, about, outcome, long)| Tool {
        name,
        about,
        outcome,
        long,
    })
}

fn round() -> impl Strategy<Value = Round> {
    let flags = prop::array::uniform7(any::<bool>());
    (flags, prop::bool::weighted(0.15), prop::collection::vec(tool(), 0..4)).prop_map(
        |([asked, prose, thinks, nameless, repeats_ids, backwards, remark], signed, tools)| Round {
            asked,
            prose,
            thinks,
            signed,
            tools,
            nameless,
            repeats_ids,
            backwards,
            remark,
        },
    )
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![Just(Shape::OpenAi), Just(Shape::Anthropic), Just(Shape::Responses), Just(Shape::Ours)]
}

/// Transcripts of one shape, or of several; the last call may still wait for its result.
pub fn transcript() -> impl Strategy<Value = Vec<Value>> {
    let rounds = |shape: BoxedStrategy<Shape>| prop::collection::vec((round(), shape), 0..7);
    let one = shape().prop_flat_map(move |shape| rounds(Just(shape).boxed()));
    let mixed = rounds(shape().boxed());
    (prop_oneof![3 => one, 1 => mixed], any::<bool>()).prop_map(|(rounds, waits)| {
        let mut messages = Vec::new();
        let last = rounds.len();
        for (n, (round, shape)) in rounds.into_iter().enumerate() {
            write_round(&mut messages, n, &round, shape, !(waits && n + 1 == last));
        }
        messages
    })
}

const TOOLS: [&str; 3] = ["read_file", "run", "search"];

fn body(tool: &Tool, id: &str) -> String {
    let start =
        if matches!(tool.outcome, Outcome::Words | Outcome::WordsButFlaggedFine) { "Error: " } else { "" };
    let padding = if tool.long { "some words that mean nothing ".repeat(25) } else { String::new() };
    format!("{start}{id} in src/part{}.rs\n{padding}é", tool.about)
}

fn flags(outcome: Outcome) -> Map<String, Value> {
    let flags = match outcome {
        Outcome::Fine | Outcome::Words => json!({}),
        Outcome::FlaggedFine => json!({"status":"ok"}),
        Outcome::Flag => json!({"is_error":true}),
        Outcome::Status => json!({"status":"failed"}),
        Outcome::WordsButFlaggedFine => json!({"is_error":false}),
    };
    flags.as_object().unwrap().clone()
}

fn with(mut value: Value, more: Map<String, Value>) -> Value {
    value.as_object_mut().unwrap().extend(more);
    value
}

fn write_round(out: &mut Vec<Value>, n: usize, round: &Round, shape: Shape, answered: bool) {
    if round.asked {
        out.push(json!({"role":"user","content":format!("question {n} about src/part{}.rs", n % 6)}));
    }
    let prose = round.prose.then(|| format!("I will look at it, part {n}."));
    let id = |t: usize| if round.repeats_ids { format!("call_{t}") } else { format!("call_{n}_{t}") };
    let named = |t: usize| match round.nameless {
        true => Map::new(),
        false => json!({"id":id(t)}).as_object().unwrap().clone(),
    };
    let arguments = |tool: &Tool| json!({"path":format!("./src/part{}.rs:{n}", tool.about), "n": 1.50});
    let order: Vec<usize> = match round.backwards && !round.nameless {
        true => (0..round.tools.len()).rev().collect(),
        false => (0..round.tools.len()).collect(),
    };
    let order = if answered { order } else { Vec::new() };
    let thinking = |out: &mut Vec<Value>| {
        if round.signed {
            out.push(json!({"type":"thinking","thinking":"hm","signature":"abc"}));
        } else if round.thinks {
            out.push(json!({"type":"thinking","thinking":"hm"}));
        }
    };
    let says_something = prose.is_some() || !round.tools.is_empty();
    match shape {
        Shape::OpenAi if says_something => {
            let mut message = json!({"role":"assistant","content":prose});
            if !round.tools.is_empty() {
                let call = |(t, tool): (usize, &Tool)| {
                    let function = json!({"name":TOOLS[tool.name],"arguments":arguments(tool).to_string()});
                    with(json!({"type":"function","function":function}), named(t))
                };
                message["tool_calls"] = round.tools.iter().enumerate().map(call).collect();
            }
            out.push(message);
            for t in order {
                let tool = &round.tools[t];
                let name = match round.nameless {
                    true => json!({"role":"tool","name":TOOLS[tool.name]}),
                    false => json!({"role":"tool","tool_call_id":id(t)}),
                };
                let content = json!({"content":body(tool, &id(t))}).as_object().unwrap().clone();
                out.push(with(with(name, content), flags(tool.outcome)));
            }
        }
        Shape::Anthropic if says_something => {
            let mut blocks = Vec::new();
            thinking(&mut blocks);
            blocks.extend(prose.map(|text| json!({"type":"text","text":text})));
            for (t, tool) in round.tools.iter().enumerate() {
                blocks.push(
                    json!({"type":"tool_use","id":id(t),"name":TOOLS[tool.name],"input":arguments(tool)}),
                );
            }
            out.push(json!({"role":"assistant","content":blocks}));
            let mut results: Vec<Value> = Vec::new();
            for t in order {
                let tool = &round.tools[t];
                let content = match t % 2 {
                    0 => json!(body(tool, &id(t))),
                    _ => json!([{"type":"text","text":body(tool, &id(t))}]),
                };
                let block = json!({"type":"tool_result","tool_use_id":id(t),"content":content});
                results.push(with(block, flags(tool.outcome)));
            }
            if round.remark && !results.is_empty() {
                results.push(json!({"type":"text","text":"go on"}));
            }
            if !results.is_empty() {
                out.push(json!({"role":"user","content":results}));
            }
        }
        Shape::Responses if says_something => {
            if round.signed {
                out.push(
                    json!({"type":"reasoning","id":format!("rs_{n}"),"summary":[],"encrypted_content":"zz"}),
                );
            } else if round.thinks {
                out.push(json!({"type":"reasoning","id":format!("rs_{n}"),"summary":[]}));
            }
            out.extend(prose.map(|text| json!({"type":"message","role":"assistant","content":[{"type":"output_text","text":text}]})));
            for (t, tool) in round.tools.iter().enumerate() {
                let arguments = arguments(tool).to_string();
                out.push(json!({"type":"function_call","id":format!("fc_{n}_{t}"),"call_id":id(t),"name":TOOLS[tool.name],"arguments":arguments}));
            }
            for t in order {
                let tool = &round.tools[t];
                let item = json!({"type":"function_call_output","call_id":id(t),"output":body(tool, &id(t))});
                out.push(with(item, flags(tool.outcome)));
            }
        }
        Shape::Ours if says_something => {
            let mut blocks = Vec::new();
            thinking(&mut blocks);
            blocks.extend(prose.map(|text| json!({"type":"text","text":text})));
            for (t, tool) in round.tools.iter().enumerate() {
                blocks.push(with(
                    json!({"type":"tool_call","name":TOOLS[tool.name],"arguments":arguments(tool)}),
                    named(t),
                ));
            }
            out.push(json!({"role":"assistant","content":blocks}));
            for t in order {
                let tool = &round.tools[t];
                let name = match round.nameless {
                    true => json!({"role":"tool_result","tool_name":TOOLS[tool.name]}),
                    false => json!({"role":"tool_result","tool_use_id":id(t)}),
                };
                let content = json!({"content":body(tool, &id(t))}).as_object().unwrap().clone();
                out.push(with(with(name, content), flags(tool.outcome)));
            }
        }
        _ => {}
    }
}

/// Options for every policy, and for lists of them; custom ones drop every third message.
pub fn options() -> impl Strategy<Value = ViewOptions> {
    let policy = || {
        prop_oneof![
            Just("raw"),
            Just("clean_tool_repair"),
            Just("squash_failed_calls"),
            Just("summary_prefix"),
            Just("reachability_gc"),
            Just("clear_tool_uses"),
            Just("custom"),
        ]
    };
    let policies = prop_oneof![
        2 => policy().prop_map(|one| json!(one)),
        1 => prop::collection::vec(policy(), 1..4).prop_map(|list| json!(list)),
    ];
    let respect = prop_oneof![Just(json!(true)), Just(json!(false)), Just(json!("per_turn"))];
    (policies, respect, 0..6u64, 0..8u64, 0..3u64, any::<[bool; 2]>(), 2..5usize).prop_map(
        |(policy, respect, keep_last, root_window, keep, [transitive, clear_inputs], nth)| {
            let mut options = ViewOptions::parse(&json!({
                "policy":policy, "respect_provider_signatures":respect, "keep_last":keep_last, "root_window":root_window,
                "min_chars":40, "transitive":transitive, "trigger":0, "keep":keep, "clear_inputs":clear_inputs,
            }))
            .unwrap();
            let projector = move |messages: &[&Message]| {
                let kept = messages.iter().enumerate().filter(|(index, _)| index % nth != 1);
                Ok(kept.map(|(_, message)| message.value().clone()).collect())
            };
            options.projector = ViewOptions::custom(projector).projector;
            options
        },
    )
}
