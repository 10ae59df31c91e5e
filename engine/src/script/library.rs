//! Everything that a script can call.
//!
//! An allow list instead of the interpreter's own packages, in which some functions sleep, some make a gigabyte of
//! text in one step, and some recurse as deep as their argument. Here only `push` and `remove` change a value in
//! place, and anything that could become large is measured before it is made.

use super::convert::{self, Large};
use super::limits::{SCRIPT_ITEMS_MAX, SCRIPT_TEXT_BYTES_MAX};
use everturn_core::message::{MessagePart, parts};
use rhai::{
    Array, Dynamic, Engine, EvalAltResult, FLOAT, FnPtr, INT, ImmutableString, Map, NativeCallContext,
    Position,
};
use serde_json::Value;
use std::ops::{Range, RangeInclusive};

type Outcome<T> = Result<T, Box<EvalAltResult>>;

/// Gives an engine its functions.
pub(super) fn register(engine: &mut Engine) {
    engine.register_type_with_name::<Large>("number");
    engine.register_iterator::<Array>();
    engine.register_iterator::<Range<INT>>();
    engine.register_iterator::<RangeInclusive<INT>>();
    text(engine);
    lists(engine);
    maps(engine);
    numbers(engine);
    // Printed text is discarded; the interpreter calls these with it.
    engine.on_print(|_| {}).on_debug(|_, _, _| {});
    engine.register_fn("print", |_: Dynamic| ImmutableString::new());
    engine.register_fn("debug", |_: Dynamic| ImmutableString::new());
}

fn text(engine: &mut Engine) {
    let len = |text: &str| text.chars().count() as INT;
    engine.register_fn("len", len).register_get("len", move |text: &mut ImmutableString| len(text));
    engine.register_fn("is_empty", |text: &str| text.is_empty());
    engine.register_fn("contains", |text: &str, part: &str| text.contains(part));
    engine.register_fn("starts_with", |text: &str, part: &str| text.starts_with(part));
    engine.register_fn("ends_with", |text: &str, part: &str| text.ends_with(part));
    engine.register_fn("index_of", |text: &str, part: &str| {
        text.find(part).map_or(-1, |at| text[..at].chars().count() as INT)
    });
    engine.register_fn("to_lower", |text: &str| text.to_lowercase());
    engine.register_fn("to_upper", |text: &str| text.to_uppercase());
    engine.register_fn("trim", |text: &str| text.trim().to_string());
    engine.register_fn("sub_string", |text: &str, start: INT| chars(text, start, INT::MAX));
    engine.register_fn("sub_string", chars);
    engine.register_fn("replace", |text: &str, part: &str, with: &str| -> Outcome<String> {
        let parts = text.matches(part).count();
        fits(text.len().saturating_add(parts.saturating_mul(with.len())), SCRIPT_TEXT_BYTES_MAX, "string")?;
        Ok(text.replace(part, with))
    });
    engine.register_fn("split", |text: &str, at: &str| -> Outcome<Array> {
        fits(text.matches(at).count(), SCRIPT_ITEMS_MAX, "array")?;
        Ok(text.split(at).map(|part| part.into()).collect())
    });
    engine.register_fn("to_string", |text: ImmutableString| text);
    engine.register_fn("to_string", |char: char| char.to_string());
    engine.register_fn("to_string", |flag: bool| flag.to_string());
}

fn lists(engine: &mut Engine) {
    let len = |list: &mut Array| list.len() as INT;
    engine.register_fn("len", len).register_get("len", len);
    engine.register_fn("is_empty", |list: &mut Array| list.is_empty());
    // For `${…}`, where an error would make the interpreter write out the whole value.
    engine.register_fn("to_string", |list: &mut Array| format!("a list of {}", list.len()));
    engine.register_fn("push", |list: &mut Array, item: Dynamic| list.push(item));
    engine.register_fn("+", |list: Array, more: Array| [list, more].concat());
    engine.register_fn("==", |a: &mut Array, b: Array| convert::same_items(a, &b));
    engine.register_fn("!=", |a: &mut Array, b: Array| !convert::same_items(a, &b));
    engine.register_fn("contains", |list: &mut Array, wanted: Dynamic| position(list, &wanted) >= 0);
    engine.register_fn("index_of", |list: &mut Array, wanted: Dynamic| position(list, &wanted));
    engine.register_fn("reverse", |list: &mut Array| list.iter().rev().cloned().collect::<Array>());
    engine.register_fn("extract", |list: &mut Array, start: INT| items(list, start, INT::MAX));
    engine.register_fn("extract", |list: &mut Array, start: INT, len: INT| items(list, start, len));
    engine.register_fn("join", |list: &mut Array, between: &str| -> Outcome<String> {
        let mut out = String::new();
        for (n, item) in list.iter().enumerate() {
            if n > 0 {
                out.push_str(between);
            }
            let Ok(item) = item.as_immutable_string_ref() else {
                return Err(format!("item {n} is no text; join takes a list of texts").into());
            };
            out.push_str(&item);
            fits(out.len(), SCRIPT_TEXT_BYTES_MAX, "string")?;
        }
        Ok(out)
    });
    engine.register_fn("map", |ctx: NativeCallContext, list: &mut Array, f: FnPtr| -> Outcome<Array> {
        list.iter().map(|item| call(&ctx, &f, item)).collect()
    });
    engine.register_fn("filter", |ctx: NativeCallContext, list: &mut Array, f: FnPtr| -> Outcome<Array> {
        let mut out = Array::new();
        for item in list.iter() {
            if holds(&ctx, &f, item)? {
                out.push(item.clone());
            }
        }
        Ok(out)
    });
    engine.register_fn("find", |ctx: NativeCallContext, list: &mut Array, f: FnPtr| {
        first(&ctx, list, &f, true).map(|found| found.map_or(Dynamic::UNIT, |index| list[index].clone()))
    });
    engine.register_fn("some", |ctx: NativeCallContext, list: &mut Array, f: FnPtr| {
        first(&ctx, list, &f, true).map(|found| found.is_some())
    });
    engine.register_fn("all", |ctx: NativeCallContext, list: &mut Array, f: FnPtr| {
        first(&ctx, list, &f, false).map(|found| found.is_none())
    });
}

fn maps(engine: &mut Engine) {
    engine.register_fn("len", |map: &mut Map| map.len() as INT);
    engine.register_fn("is_empty", |map: &mut Map| map.is_empty());
    engine.register_fn("to_string", |map: &mut Map| format!("a map of {}", map.len()));
    engine.register_fn("contains", |map: &mut Map, key: &str| map.contains_key(key));
    engine.register_fn("keys", |map: &mut Map| map.keys().map(|key| key.as_str().into()).collect::<Array>());
    engine.register_fn("remove", |map: &mut Map, key: &str| map.remove(key).unwrap_or(Dynamic::UNIT));
    engine.register_fn("+", |mut map: Map, more: Map| {
        map.extend(more);
        map
    });
    engine.register_fn("==", |a: &mut Map, b: Map| convert::same_fields(a, &b));
    engine.register_fn("!=", |a: &mut Map, b: Map| !convert::same_fields(a, &b));
    engine.register_fn("text", |message: &mut Map| -> Outcome<String> {
        convert::message(message).map(|message| words(&message)).map_err(|e| e.to_string().into())
    });
}

fn numbers(engine: &mut Engine) {
    engine.register_fn("min", |a: INT, b: INT| a.min(b));
    engine.register_fn("max", |a: INT, b: INT| a.max(b));
    engine.register_fn("to_string", |number: INT| number.to_string());
    engine.register_fn("to_string", |number: FLOAT| number.to_string());
    engine.register_fn("to_string", |number: Large| number.0.to_string());
    engine.register_fn("==", |a: Large, b: Large| a == b);
    engine.register_fn("!=", |a: Large, b: Large| a != b);
}

fn fits(size: usize, max: usize, what: &str) -> Outcome<()> {
    match size > max {
        true => Err(EvalAltResult::ErrorDataTooLarge(what.to_string(), Position::NONE).into()),
        false => Ok(()),
    }
}

/// Start and length of a part; a negative start counts from the end.
fn part(size: usize, start: INT, len: INT) -> (usize, usize) {
    let start = if start < 0 { (size as INT).saturating_add(start) } else { start };
    (usize::try_from(start).unwrap_or(0), usize::try_from(len).unwrap_or(0))
}

fn chars(text: &str, start: INT, len: INT) -> String {
    let (start, len) = part(text.chars().count(), start, len);
    text.chars().skip(start).take(len).collect()
}

fn items(list: &[Dynamic], start: INT, len: INT) -> Array {
    let (start, len) = part(list.len(), start, len);
    list.iter().skip(start).take(len).cloned().collect()
}

fn position(list: &[Dynamic], wanted: &Dynamic) -> INT {
    list.iter().position(|item| convert::same(item, wanted)).map_or(-1, |at| at as INT)
}

fn call(ctx: &NativeCallContext, f: &FnPtr, item: &Dynamic) -> Outcome<Dynamic> {
    f.call_within_context(ctx, (item.clone(),))
}

fn holds(ctx: &NativeCallContext, f: &FnPtr, item: &Dynamic) -> Outcome<bool> {
    call(ctx, f, item)?.as_bool().map_err(|_| "the function must return true or false".into())
}

/// Index of the first item for which the function returns `answer`.
fn first(ctx: &NativeCallContext, list: &[Dynamic], f: &FnPtr, answer: bool) -> Outcome<Option<usize>> {
    for (index, item) in list.iter().enumerate() {
        if holds(ctx, f, item)? == answer {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// The text of a message in any shape, including tool results.
fn words(message: &Value) -> String {
    let mut said = Vec::new();
    for part in parts(message) {
        match part {
            MessagePart::Text(text) => said.push(text),
            MessagePart::Result { content: Some(Value::String(text)), .. } => said.push(text.as_str()),
            MessagePart::Result { content: Some(Value::Array(blocks)), .. } => {
                said.extend(blocks.iter().filter_map(|block| block.get("text")?.as_str()));
            }
            _ => {}
        }
    }
    said.join("\n")
}
