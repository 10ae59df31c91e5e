//! A body comes back byte for byte, whatever JSON it is; JSON that parsers disagree about is refused.

use crate::sample::{conversation_id, draft};
use everturn_core::Error;
use everturn_core::chain::{Head, Verifier, next_event};
use everturn_core::encoding::{from_line, to_line};
use everturn_core::limits::JSON_DEPTH_MAX;
use proptest::prelude::*;

/// Maximum nesting of [`json`].
const GENERATED_DEPTH_MAX: usize = 5;

fn space() -> impl Strategy<Value = String> {
    prop_oneof![3 => Just(String::new()), 1 => "[ \t\n\r]{1,3}"]
}

/// Characters that may occur between two quotes.
fn string_inside() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[^\\x00-\\x1f\"\\\\]{1,4}",
        Just(r"\n".to_string()),
        Just(r#"\""#.to_string()),
        Just(r"\\".to_string()),
        Just(r"\/".to_string()),
        Just(r"\u0000".to_string()),
        Just(r"\u00E9".to_string()),
        Just(r"\ud83e\udd80".to_string()),
        Just("\u{2028}\u{7f}🦀".to_string()),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?",
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        Just("1".to_string()),
        Just("1.0".to_string()),
        Just("-0".to_string()),
        Just("1e400".to_string()),
    ]
}

/// Generates JSON as text, because a value would already have lost its spelling.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_string()),
        Just("true".to_string()),
        Just("false".to_string()),
        number(),
        string_inside().prop_map(|inside| format!("\"{inside}\"")),
    ];
    let spaced = |value: BoxedStrategy<String>| {
        (space(), value, space()).prop_map(|(before, value, after)| before + &value + &after).boxed()
    };
    let tree = leaf.prop_recursive(GENERATED_DEPTH_MAX as u32, 40, 5, move |inner| {
        let item = spaced(inner.boxed());
        let field = (space(), string_inside(), space(), item.clone());
        prop_oneof![
            prop::collection::vec(item, 0..5).prop_map(|items| format!("[{}]", items.join(","))),
            (prop::collection::vec(field, 0..5), space()).prop_map(|(fields, empty)| {
                // The number in front keeps the keys of one object distinct.
                let fields: Vec<String> = fields
                    .into_iter()
                    .enumerate()
                    .map(|(n, (before, key, after, value))| format!("{before}\"{n}{key}\"{after}:{value}"))
                    .collect();
                if fields.is_empty() { format!("{{{empty}}}") } else { format!("{{{}}}", fields.join(",")) }
            }),
        ]
    });
    let deep = 0..=JSON_DEPTH_MAX - GENERATED_DEPTH_MAX;
    (spaced(tree.boxed()), prop_oneof![4 => Just(0), 1 => deep])
        .prop_map(|(text, depth)| format!("{}{text}{}", "[".repeat(depth), "]".repeat(depth)))
}

/// Takes a body through every step from append to export and back.
fn there_and_back(body: &str) -> Result<String, Error> {
    let draft = draft(1, "note", body);
    draft.check()?;
    let conversation = conversation_id(1);
    let event = next_event(conversation, Head::genesis(conversation), draft);
    let line = to_line(&event)?;
    assert!(!line.contains(['\n', '\r']), "one event is one line");
    let read = from_line(&line)?;
    assert_eq!(read, event);
    Verifier::new(conversation, None).push(&read)?;
    Ok(read.body.unwrap().text)
}

/// The same text with every character escaped.
fn escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

proptest! {
    #[test]
    fn any_body_comes_back_byte_for_byte(body in json()) {
        prop_assert_eq!(there_and_back(&body).unwrap(), body);
    }

    #[test]
    fn a_repeated_key_is_refused_however_it_is_spelled(
        key in "[^\\x00-\\x1f\"\\\\]{0,6}",
        value in json(),
        spell in any::<bool>(),
        fields_between in 0..40usize,
        depth in 0..20usize,
    ) {
        let again = if spell { escaped(&key) } else { key.clone() };
        let between: String = (0..fields_between).map(|n| format!("\"{key}{n}\":0,")).collect();
        // Deep values are flattened, so that the depth limit is not what refuses them.
        let value = if value.starts_with("[[[") { "0".to_string() } else { value };
        let object = format!("{{\"{key}\":{value},{between}\"{again}\":1}}");
        let body = format!("{}{object}{}", "[{\"x\":".repeat(depth), "}]".repeat(depth));
        prop_assert_eq!(there_and_back(&body).unwrap_err().code(), "json.duplicate_key", "{}", body);
    }

    #[test]
    fn a_line_of_any_bytes_is_an_error_and_never_a_panic(line in ".{0,80}") {
        prop_assert!(from_line(&line).is_err());
    }
}

/// Regression: `"body":null` was read as "no body", so the salt stood alone and the event could not be read
/// back.
#[test]
fn a_body_that_is_null_is_still_a_body() {
    assert_eq!(there_and_back("null").unwrap(), "null");
}

#[test]
fn the_deepest_body_that_is_taken_also_comes_back() {
    let deepest = format!("{}{}", "[".repeat(JSON_DEPTH_MAX), "]".repeat(JSON_DEPTH_MAX));
    assert_eq!(there_and_back(&deepest).unwrap(), deepest);
    assert_eq!(there_and_back(&format!("[{deepest}]")).unwrap_err().code(), "limit.exceeded");
}
