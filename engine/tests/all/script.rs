//! Projectors written by callers: what they can say, and that they can do nothing else.

mod hostile;

use everturn_core::json::Raw;
use everturn_engine::Error;
use everturn_engine::script::{self, Metered, Script};
use everturn_views::projection::{Message, ProjectedView, ViewOptions, project};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: Metered<System> = Metered(System);

fn read(texts: &[&str]) -> Vec<Message> {
    texts.iter().map(|text| Message::read(Raw::new(text.to_string()).unwrap()).unwrap()).collect()
}

fn of(messages: &Value) -> Vec<Message> {
    messages.as_array().unwrap().iter().map(|message| Message::of(message.clone()).unwrap()).collect()
}

fn said(texts: &[&str]) -> Vec<Message> {
    texts.iter().map(|text| Message::of(json!({"role": "user", "content": text})).unwrap()).collect()
}

fn view<'a>(messages: &'a [Message], source: &str) -> Result<ProjectedView<'a>, Error> {
    project(messages, None, &ViewOptions::custom(Script::compile(source)?))
}

fn shown(messages: &[Message], source: &str) -> Vec<Value> {
    view(messages, source).unwrap().messages.iter().map(|shown| shown.value().clone()).collect()
}

/// The code and the sentence of an error, as one line.
fn refusal(messages: &[Message], source: &str) -> String {
    match view(messages, source) {
        Ok(view) => panic!("{source} shows {}", json!(view.source_indices)),
        Err(error) => format!("{} [{}]", error.text(), error.code()),
    }
}

const ODD: [&str; 9] = [
    r#"{"role":"user","content":"a","n":1}"#,
    r#"{"role":"user","content":"a","n":1.0}"#,
    r#"{"role":"user","content":"a","n":-0}"#,
    r#"{"role":"user","content":"a","n":[18446744073709551615,9223372036854775807,-9223372036854775808]}"#,
    r#"{"role":"user","content":"a","n":[1e2,0.1,123456789012345678901234567890,5e-324]}"#,
    r#"{"role":"user","content":"a","n":1e400}"#,
    r#"{ "z":null, "role":"user", "content":"\u00e9\u0000\ud83d\ude00", "a":{"b":[],"a":{}} }"#,
    r#"{"role":"user","content":[{"type":"text","text":"hi"}],"":true,"len":3}"#,
    r#"{"role":"user","content":"a","n":1}"#,
];

#[test]
fn a_message_that_passes_through_a_script_is_shown_byte_for_byte() {
    let messages = read(&ODD);
    for source in [
        "messages",
        "fn project(messages) { messages }",
        "messages.filter(|m| true)",
        "messages.map(|m| m)",
        "let all = []; for m in messages { all.push(m); } all",
        "let all = []; for (m, i) in messages { all.push(i); } all",
        "#{messages: [0, messages[1], 2, messages[3], 4, messages[5], 6, messages[7], 8]}",
    ] {
        let view = view(&messages, source).unwrap();
        assert_eq!(view.messages.len(), ODD.len(), "{source}");
        for (shown, text) in view.messages.iter().zip(ODD) {
            assert!(shown.is_unchanged(), "{source}: {text}");
            assert_eq!(shown.raw().get(), text, "{source}");
        }
    }
}

#[test]
fn a_number_in_the_list_is_the_message_that_it_counts() {
    let messages = said(&["a", "b", "c"]);
    assert_eq!(view(&messages, "[2, 0]").unwrap().source_indices[0], Some(2));
    assert_eq!(view(&messages, "[0, 2]").unwrap().dropped_indices, [1]);
    assert_eq!(view(&messages, "[]").unwrap().kept_count, 0);
    for source in ["[3]", "[-1]", "#{messages: [0, 3]}"] {
        let refusal = refusal(&messages, source);
        assert!(refusal.contains("counted from 0 and there are 3 [script.result]"), "{refusal}");
    }
}

#[test]
fn a_script_changes_messages_and_adds_its_own() {
    let messages = said(&["a", "b"]);
    let view = view(
        &messages,
        r#"messages[1].content = "short"; messages[1].extra = [1, 2.5, true, (), 'c', #{k: "v"}];
           #{messages: messages + [#{role: "user", content: `${messages.len()} before`}], reason: "shortened"}"#,
    )
    .unwrap();
    assert_eq!(view.reason, "shortened");
    assert_eq!(view.source_indices, [Some(0), None, None]);
    assert_eq!(
        view.messages[1].value(),
        &json!({"role": "user", "content": "short", "extra": [1, 2.5, true, null, "c", {"k": "v"}]})
    );
    assert_eq!(view.messages[2].value()["content"], "2 before");
}

#[test]
fn indices_of_the_script_are_passed_on() {
    let messages = said(&["a", "b"]);
    let view = view(&messages, r#"#{messages: [#{role: "user", content: "x"}], kept_indices: [1]}"#).unwrap();
    assert_eq!((view.kept_indices, view.dropped_indices), (vec![1], vec![0]));
    let refusal = refusal(&messages, "#{messages: [0], kept_indices: [7]}");
    assert!(refusal.contains("kept_indices"), "{refusal}");
}

#[test]
fn every_function_does_what_its_page_says() {
    let messages = of(&json!([
        {"role": "user", "content": "Grüße an Ada"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]},
        {"role": "tool", "tool_call_id": "a", "content": "result"},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "first"},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "second"}]},
        ]},
    ]));
    for (expression, value) in [
        ("messages[0].content.len", json!(12)),
        ("messages[0].content.len()", json!(12)),
        ("messages[0].content.index_of(\"an\")", json!(6)),
        ("messages[0].content.index_of(\"zz\")", json!(-1)),
        ("messages[0].content.sub_string(-3)", json!("Ada")),
        ("messages[0].content.sub_string(2, 3)", json!("üße")),
        ("messages[0].content.sub_string(20, 3) + \"x\".sub_string(0, -1)", json!("")),
        ("messages[0].content.to_upper()", json!("GRÜSSE AN ADA")),
        ("messages[0].content.to_lower().starts_with(\"grü\")", json!(true)),
        ("messages[0].content.ends_with(\"Ada\") && !messages[0].content.is_empty()", json!(true)),
        ("\" a \".trim() + \"b\".replace(\"b\", \"cc\")", json!("acc")),
        ("\"a,b,,c\".split(\",\")", json!(["a", "b", "", "c"])),
        ("[\"a\", \"b\"].join(\", \")", json!("a, b")),
        ("text(messages[0])", json!("Grüße an Ada")),
        ("messages[1].text()", json!("one\ntwo")),
        ("messages[2].text()", json!("result")),
        ("messages[3].text()", json!("first\nsecond")),
        ("messages[1].content[2].text", json!("two")),
        ("messages[0].nothing ?? messages[0].nothing?.more ?? 5", json!(5)),
        ("[1, 2] + [3]", json!([1, 2, 3])),
        ("[1, 2, 3].reverse()", json!([3, 2, 1])),
        ("[1, 2, 3].extract(-2)", json!([2, 3])),
        ("[1, 2, 3].extract(-9, 2)", json!([1, 2])),
        ("[1, 2, 3].map(|n| n * 2)", json!([2, 4, 6])),
        ("[1, 2, 3].filter(|n| n != 2)", json!([1, 3])),
        ("[1, 2, 3].find(|n| n > 1)", json!(2)),
        ("[1, 2, 3].find(|n| n > 3)", json!(null)),
        ("[[1, 2, 3].some(|n| n > 2), [1, 2].some(|n| n > 2)]", json!([true, false])),
        ("[[1, 2, 3].all(|n| n > 0), [1, 2].all(|n| n > 1)]", json!([true, false])),
        ("[2 in [1, 2], [1].contains(2), [1, 2].index_of(2), [].is_empty()]", json!([true, false, 1, true])),
        (
            "[\"role\" in messages[0], \"a\" in \"cab\", messages[0].contains(\"x\")]",
            json!([true, true, false]),
        ),
        (
            "[messages[0] == messages[0], messages[0] != messages[1], [1] == [1.0]]",
            json!([true, true, false]),
        ),
        ("[#{a: 1} == #{a: 1, b: 2}, #{a: 1} == #{b: 1}, [1] == [1, 2]]", json!([false, false, false])),
        ("messages[0].keys()", json!(["content", "role"])),
        (
            "let m = messages[0]; m.remove(\"role\"); m + #{a: 1, b: ()}",
            json!({"content": "Grüße an Ada", "a": 1, "b": null}),
        ),
        ("[min(1, 2), max(1, 2), [1, 2].len(), #{a: 1}.len()]", json!([1, 2, 2, 1])),
        ("`${1} ${1.5} ${true} ${\"a\"} ${[1]} ${#{}} ${()}`", json!("1 1.5 true a a list of 1 a map of 0 ")),
        ("1.to_string() + 'c'.to_string()", json!("1c")),
        ("print(\"seen by nobody\"); debug(1)", json!(null)),
    ] {
        let (before, last) = expression.rsplit_once("; ").unwrap_or(("", expression));
        let shown = shown(&messages, &format!("{before}; [#{{role: \"user\", value: {last}}}]"));
        assert_eq!(shown[0]["value"], value, "{expression}");
    }
}

#[test]
fn the_script_is_a_function_or_its_own_body() {
    let messages = said(&["a", "b"]);
    for source in [
        "[1]",
        "return [1];",
        "fn project(messages) { [1] }",
        "fn project(all) { if all.len() == 2 { return [1]; } [] }",
        "fn last(list) { [list.len() - 1] }\nfn project(messages) { last(messages) }",
        "fn last(list) { [list.len() - 1] } last(messages)",
    ] {
        assert_eq!(view(&messages, source).unwrap().source_indices, [Some(1)], "{source}");
    }
    let refusal = refusal(&messages, "fn project(a, b) { a }");
    assert!(refusal.contains("project takes one parameter, the messages"), "{refusal}");
}

#[test]
fn errors_name_the_line_the_column_and_what_to_do() {
    let messages = said(&["a"]);
    for (source, text) in [
        ("let a = 1;\nlet b = ;", "line 2, column 9: Unexpected ';'; correct the script [script.syntax]"),
        ("mesages", "line 1, column 1: Undefined variable: mesages; correct the script [script.syntax]"),
        (
            "\n  messages[5]",
            "line 2, column 12: Array index 5 out of bounds: only 1 element in array; correct the script [script.failed]",
        ),
        (
            "fn a(x) { \n x.nope() }\n a(messages)",
            "line 2, column 4: there is no function nope (array); the functions are listed in docs/projectors.md [script.failed]",
        ),
        (
            "messages.filter(|m|\n 1)",
            "line 1, column 10: the function must return true or false [script.failed]",
        ),
        ("throw \"not a chat\"", "line 1, column 1: not a chat [script.failed]"),
        ("throw messages", "line 1, column 1: the script threw no text [script.failed]"),
        ("1 / 0", "line 1, column 3: Division by zero: 1 / 0; correct the script [script.failed]"),
    ] {
        assert_eq!(refusal(&messages, source), text, "{source}");
    }
    for long in [
        format!("throw \"{}\"", "x".repeat(10_000)),
        "x".repeat(10_000),
        format!("x.{}()", "x".repeat(10_000)),
    ] {
        assert!(refusal(&messages, &long).len() < 500);
    }
}

#[test]
fn a_result_that_is_no_view_is_refused() {
    let messages = said(&["a"]);
    for (source, text) in [
        ("", "the script returned nothing; return a list of messages"),
        ("5", "the script returned a number"),
        ("\"a\"", "the script returned text"),
        ("|m| m", "the script returned a function"),
        ("[\"a\"]", "entry 0 of the list is text; return messages, or their numbers"),
        ("[0, ()]", "entry 1 of the list is nothing"),
        ("[0, 0.0]", "entry 1 of the list is a number"),
        (
            "[#{role: \"user\", content: |m| m}]",
            "in entry 0 of the list: a function cannot stand in a message",
        ),
        ("[#{role: \"user\", n: 1.0 / 0.0}]", "inf is no number that JSON can hold"),
        ("[#{role: \"user\", n: 0..3}]", "something else cannot stand in a message"),
        ("#{messages: [0], reason: |m| m}", "in reason: a function cannot stand"),
        (
            "let a = []; for i in 0..150 { a = [a]; } [#{role: \"user\", content: a}]",
            "nested deeper than 100; make it flatter",
        ),
    ] {
        let refusal = refusal(&messages, source);
        assert!(refusal.contains(text) && refusal.ends_with("[script.result]"), "{source}: {refusal}");
    }
    // The rest is what every projector is told.
    for (source, text) in [
        ("#{messages: 5}", "must return messages, a list"),
        ("#{}", "must return messages, a list"),
        ("#{messages: [], reason: 5}", "reason that is text"),
        ("#{messages: [], more: 5}", "returned more, which is unknown"),
    ] {
        let refusal = refusal(&messages, source);
        assert!(refusal.contains(text), "{source}: {refusal}");
    }
}

#[test]
fn there_is_no_way_out() {
    let messages = said(&["a"]);
    for source in [
        "eval(\"1\")",
        "Fn(\"eval\").call(\"1\")",
        "import \"a\" as b; 1",
        "export messages",
        "sleep(1)",
        "timestamp()",
        "rand()",
        "open_file(\"a\")",
        "parse_json(\"{}\")",
        "take(messages)",
        "exit(messages)",
        "blob(5)",
        "messages.curry(1)",
        "(|a, b| a).curry(1)",
        "call(\"eval\", \"1\")",
    ] {
        let refusal = refusal(&messages, source);
        assert!(
            refusal.contains("[script.syntax]") || refusal.contains("[script.failed]"),
            "{source}: {refusal}"
        );
    }
}

/// A function that keeps a variable which keeps the function is never freed: memory that no limit gives back.
#[test]
fn functions_keep_nothing_from_around_them() {
    let messages = said(&["a"]);
    for source in [
        "let role = \"tool\"; messages.filter(|m| m.role != role)",
        "let kept = [1]; let f = || kept; kept.push(f); messages",
        "let kept = 1; let f = || kept; kept = f; messages",
        "fn hold() { let kept = [1]; kept.push(|| kept); } hold(); messages",
    ] {
        let refusal = refusal(&messages, source);
        assert!(
            refusal.contains("cannot use") && refusal.contains("from around it; use a loop"),
            "{source}: {refusal}"
        );
    }
}

/// A limit in the text of an error: its name, its number and what to do.
fn assert_limit(refusal: &str, name: &str, number: impl ToString) {
    let text = format!("{name} is {}, ", number.to_string());
    assert!(refusal.contains(&text) && refusal.ends_with("[script.limit]"), "{name}: {refusal}");
    assert!(refusal.rsplit_once("; ").is_some_and(|(_, advice)| advice.len() > 20), "{refusal}");
}

#[test]
fn every_limit_is_reported_with_its_name_and_number() {
    let messages = said(&["a"]);
    let nested = format!("{}1{}", "(".repeat(100), ")".repeat(100));
    let functions: String = (0..65).map(|n| format!("fn f{n}() {{}} ")).collect();
    let variables: String = (0..200).map(|n| format!("let v{n} = 1; ")).collect();
    for (source, name, number) in [
        (" ".repeat(70_000).as_str(), "SCRIPT_SOURCE_BYTES_MAX", script::SCRIPT_SOURCE_BYTES_MAX as u64),
        (&nested, "SCRIPT_NESTING_MAX", script::SCRIPT_NESTING_MAX as u64),
        (&functions, "SCRIPT_FUNCTIONS_MAX", script::SCRIPT_FUNCTIONS_MAX as u64),
        (&variables, "SCRIPT_VARIABLES_MAX", script::SCRIPT_VARIABLES_MAX as u64),
        ("loop {}", "SCRIPT_OPERATIONS_MAX", script::SCRIPT_OPERATIONS_MAX),
        ("try { loop {} } catch { messages }", "SCRIPT_OPERATIONS_MAX", script::SCRIPT_OPERATIONS_MAX),
        ("fn f(n) { f(n + 1) } f(1)", "SCRIPT_CALLS_MAX", script::SCRIPT_CALLS_MAX as u64),
        ("fn f(n) { [n].map(|n| f(n)) } f(1)", "SCRIPT_CALLS_MAX", script::SCRIPT_CALLS_MAX as u64),
        ("let s = \"x\"; loop { s += s; }", "SCRIPT_TEXT_BYTES_MAX", script::SCRIPT_TEXT_BYTES_MAX as u64),
        ("let a = [1]; loop { a += a; }", "SCRIPT_ITEMS_MAX", script::SCRIPT_ITEMS_MAX as u64),
    ] {
        assert_limit(&refusal(&messages, source), name, number);
    }
    let fields: serde_json::Map<_, _> = (0..90_000).map(|n| (n.to_string(), json!(0))).collect();
    let wide = of(&json!([{"role": "user", "content": fields}]));
    let entries = refusal(&wide, "let m = messages[0].content; [m, m, m]");
    assert_limit(&entries, "SCRIPT_ENTRIES_MAX", script::SCRIPT_ENTRIES_MAX);
    let calls = |n: usize| format!("fn f(n) {{ if n > 1 {{ f(n - 1) }} else {{ [0] }} }} f({n})");
    assert_eq!(shown(&messages, &calls(script::SCRIPT_CALLS_MAX)).len(), 1);
    let deeper = refusal(&messages, &calls(script::SCRIPT_CALLS_MAX + 1));
    assert_limit(&deeper, "SCRIPT_CALLS_MAX", script::SCRIPT_CALLS_MAX);
    // In functions that our functions call, steps are counted on.
    let refusal = refusal(&messages, "let a = [1];\n loop { a.map(|n| for i in 0..10000 {}); }");
    assert_limit(&refusal, "SCRIPT_OPERATIONS_MAX", script::SCRIPT_OPERATIONS_MAX);
    assert!(refusal.starts_with("line 2, column "), "{refusal}");
}

#[test]
fn slow_steps_are_stopped_by_the_clock() {
    let messages = said(&[&"ab".repeat(4_000_000)]);
    let started = std::time::Instant::now();
    let refusal = refusal(&messages, "let s = messages[0].content; loop { s.contains(\"bb\"); }");
    // Generous: a step that has begun is not interrupted, and the machine may be busy.
    assert!(
        started.elapsed().as_millis() < 6 * u128::from(script::SCRIPT_TIME_MS_MAX),
        "{:?}",
        started.elapsed()
    );
    assert_limit(&refusal, "SCRIPT_TIME_MS_MAX", script::SCRIPT_TIME_MS_MAX);
}

#[test]
fn more_input_than_a_script_can_hold_is_refused_before_it_runs() {
    let large = said(&[&"x".repeat(9_000_000), &"y".repeat(9_000_000)]);
    let got = refusal(&large, "[0]");
    assert_limit(&got, "SCRIPT_INPUT_BYTES_MAX", script::SCRIPT_INPUT_BYTES_MAX);
    assert!(got.contains("this is 180000"), "{got}");
    let many = of(&json!([{"role": "user", "content": vec![0; 100_000]}]));
    assert_limit(&refusal(&many, "[0]"), "SCRIPT_INPUT_VALUES_MAX", script::SCRIPT_INPUT_VALUES_MAX);
}

#[test]
fn a_small_script_value_cannot_become_a_huge_result() {
    let messages = said(&[&"x".repeat(8_000_000)]);
    for source in [
        "let all = []; for i in 0..1000 { all.push(0); } all",
        "let all = []; let s = messages[0].content; for i in 0..5 { all.push(#{content: s}); } all",
    ] {
        assert_limit(&refusal(&messages, source), "SCRIPT_TEXT_BYTES_MAX", script::SCRIPT_TEXT_BYTES_MAX);
    }
    let dense = of(&json!([{"role": "user", "content": vec![0; 90_000]}]));
    assert_limit(&refusal(&dense, "[0, 0, 0]"), "SCRIPT_ITEMS_MAX", script::SCRIPT_ITEMS_MAX);
}

#[test]
fn one_run_leaves_nothing_to_the_next_and_threads_can_share_a_script() {
    let script = Script::compile(
        "let n = 0; for i in 0..5000 { n += 1; } [#{role: \"user\", content: `${n} ${messages.len()}`}]",
    )
    .unwrap();
    let messages = said(&["a", "b"]);
    let options = ViewOptions::custom(script);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2 {
                    let view = project(&messages, None, &options).unwrap();
                    assert_eq!(view.messages[0].value()["content"], "5000 2");
                }
            });
        }
    });
}

/// The examples on the page, on the conversation on the page, show what the page says.
#[test]
fn the_page_about_projectors_is_true() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/projectors.md")).unwrap();
    let block =
        |text: &str, kind: &str| text.split_once(kind).unwrap().1.split_once("```").unwrap().0.to_string();
    let messages = of(&serde_json::from_str(&block(&page, "```json\n")).unwrap());
    let examples: Vec<&str> = page.split("```rhai\n").skip(1).collect();
    assert_eq!(examples.len(), 5);
    for example in examples {
        let source = example.split_once("```").unwrap().0;
        let expected: Value =
            serde_json::from_str(example.split_once("Shows `").unwrap().1.split_once('`').unwrap().0)
                .unwrap();
        let view = view(&messages, source).unwrap();
        assert_eq!(json!(view.source_indices), expected, "{source}");
    }
    macro_rules! limits {
        ($($name:ident),*) => { [$((stringify!($name), script::$name.to_string())),*] };
    }
    let limits = limits!(
        SCRIPT_SOURCE_BYTES_MAX,
        SCRIPT_NESTING_MAX,
        SCRIPT_FUNCTIONS_MAX,
        SCRIPT_INPUT_BYTES_MAX,
        SCRIPT_INPUT_VALUES_MAX,
        SCRIPT_OPERATIONS_MAX,
        SCRIPT_TIME_MS_MAX,
        SCRIPT_MEMORY_BYTES_MAX,
        SCRIPT_TEXT_BYTES_MAX,
        SCRIPT_ITEMS_MAX,
        SCRIPT_ENTRIES_MAX,
        SCRIPT_CALLS_MAX,
        SCRIPT_VARIABLES_MAX
    );
    for (name, number) in &limits {
        assert!(page.contains(&format!("| `{name}` | {number} |")), "{name} is {number}");
    }
    assert_eq!(page.matches("| `SCRIPT_").count(), limits.len());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..4).prop_map(|fields| json!(fields)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_passes_through_a_script_unchanged(content in prop::collection::vec(any_json(), 0..4)) {
        let messages: Vec<_> =
            content.iter().map(|content| Message::of(json!({"role": "user", "content": content})).unwrap()).collect();
        let view = view(&messages, "messages.map(|m| m + #{})").unwrap();
        prop_assert_eq!(view.messages.len(), messages.len());
        prop_assert!(view.messages.iter().all(|shown| shown.is_unchanged()));
    }

    #[test]
    fn whatever_is_written_is_run_or_refused_with_a_code(words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..24)) {
        let messages = said(&["a", "b"]);
        if let Err(error) = view(&messages, &words.concat()) {
            prop_assert!(error.code().starts_with("script.") || error.code() == "projection.option", "{:?}", error);
            prop_assert!(!error.text().contains("interpreter failed"), "{:?}", words);
        }
    }
}

const WORDS: [&str; 48] = [
    "messages", "[", "]", "(", ")", "{", "}", "#{", ":", ",", ";", ".", "..", "=", "==", "+", "-", "!",
    "|m| ", "|", "fn ", "let ", "x", "m", "1", "0.5", "\"a\"", "'c'", "`${", "if ", "else ", "for ", "in ",
    "while ", "loop ", "break ", "return ", "throw ", "try ", "catch ", "push", "filter", "map", "content",
    "?.", "??", "/*", "this",
];
