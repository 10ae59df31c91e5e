//! Conversion of messages into script values and back; untouched values come back equal.

use super::limits::{
    self, SCRIPT_INPUT_BYTES_MAX, SCRIPT_INPUT_VALUES_MAX, SCRIPT_ITEMS_MAX, SCRIPT_TEXT_BYTES_MAX,
};
use everturn_core::Error;
use everturn_core::id::clip;
use everturn_core::limits::JSON_DEPTH_MAX;
use everturn_views::projection::Message;
use rhai::{Array, Dynamic, FLOAT, INT, ImmutableString, Map};
use serde_json::{Number, Value};

/// An integer beyond the interpreter's signed ones. It passes through unchanged.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Large(pub u64);

/// Size of a value.
#[derive(Clone, Copy, Default)]
struct Size {
    bytes: usize,
    values: usize,
}

fn values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(values).sum::<usize>(),
        _ => 1,
    }
}

/// The messages as a script sees them.
pub(super) fn list(messages: &[&Message]) -> Result<Array, Error> {
    let sizes = messages.iter().map(|message| size(message));
    let all = sizes.fold(Size::default(), |all, one| all.and(one));
    if all.bytes > SCRIPT_INPUT_BYTES_MAX {
        return Err(limits::INPUT_BYTES.exceeded(all.bytes));
    }
    if all.values > SCRIPT_INPUT_VALUES_MAX {
        return Err(limits::INPUT_VALUES.exceeded(all.values));
    }
    Ok(messages.iter().map(|message| dynamic(message.value())).collect())
}

fn size(message: &Message) -> Size {
    Size { bytes: message.raw().get().len(), values: values(message.value()) }
}

impl Size {
    fn and(self, more: Size) -> Size {
        Size { bytes: self.bytes + more.bytes, values: self.values + more.values }
    }
}

/// A JSON value as a script sees it. Recursion is bounded: a parsed value is not nested deeper than its parser
/// allows.
fn dynamic(value: &Value) -> Dynamic {
    match value {
        Value::Null => Dynamic::UNIT,
        Value::Bool(flag) => Dynamic::from_bool(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Dynamic::from_int(whole),
            (None, Some(large)) => Dynamic::from(Large(large)),
            (None, None) => Dynamic::from_float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => ImmutableString::from(text.as_str()).into(),
        Value::Array(items) => Dynamic::from_array(items.iter().map(dynamic).collect()),
        Value::Object(fields) => Dynamic::from_map(
            fields.iter().map(|(key, value)| (key.as_str().into(), dynamic(value))).collect(),
        ),
    }
}

/// Result of a script, as a projector returns it: each number in the list stands for the message with that index.
pub(super) fn answer(returned: &Dynamic, messages: &[&Message]) -> Result<Value, Error> {
    let mut out = Out::default();
    if let Ok(list) = returned.as_array_ref() {
        return out.messages(&list, messages).map(Value::Array);
    }
    let Ok(fields) = returned.as_map_ref() else {
        return Err(wrong(format_args!(
            "the script returned {}; return a list of messages, or #{{messages, reason}}",
            name_of(returned)
        )));
    };
    let mut answer = serde_json::Map::new();
    for (key, value) in fields.iter() {
        let value = match (key.as_str(), value.as_array_ref()) {
            ("messages", Ok(list)) => Value::Array(out.messages(&list, messages)?),
            (key, _) => out.value(value, 0).map_err(|e| e.at(format_args!("in {}", clip(key))))?,
        };
        answer.insert(key.to_string(), value);
    }
    Ok(Value::Object(answer))
}

/// A message made by the script, as JSON.
pub(super) fn message(fields: &Map) -> Result<Value, Error> {
    Out::default().fields(fields, 0)
}

/// Size of the output so far. Strings are shared inside a script but not outside, so that a small script value can
/// become a large JSON value.
#[derive(Default)]
struct Out(Size);

impl Out {
    fn messages(&mut self, list: &Array, messages: &[&Message]) -> Result<Vec<Value>, Error> {
        let one = |(n, item): (usize, &Dynamic)| {
            if let Ok(index) = item.as_int() {
                let index = usize::try_from(index).ok().filter(|index| *index < messages.len());
                let Some(index) = index else {
                    return Err(wrong(format_args!(
                        "entry {n} of the list is {item}, but messages are counted from 0 and there are {}",
                        messages.len()
                    )));
                };
                self.grow(size(messages[index]))?;
                return Ok(messages[index].value().clone());
            }
            let Ok(fields) = item.as_map_ref() else {
                return Err(wrong(format_args!(
                    "entry {n} of the list is {}; return messages, or their numbers",
                    name_of(item)
                )));
            };
            self.fields(&fields, 1).map_err(|e| e.at(format_args!("in entry {n} of the list")))
        };
        list.iter().enumerate().map(one).collect()
    }

    fn grow(&mut self, more: Size) -> Result<(), Error> {
        self.0 = self.0.and(more);
        if self.0.bytes > SCRIPT_TEXT_BYTES_MAX {
            return Err(limits::TEXT.reached());
        }
        if self.0.values > SCRIPT_ITEMS_MAX {
            return Err(limits::ITEMS.reached());
        }
        Ok(())
    }

    fn value(&mut self, value: &Dynamic, depth: usize) -> Result<Value, Error> {
        self.grow(Size { bytes: 0, values: 1 })?;
        if let Ok(text) = value.as_immutable_string_ref() {
            self.grow(Size { bytes: text.len(), values: 0 })?;
            return Ok(Value::from(text.as_str()));
        }
        if depth > JSON_DEPTH_MAX {
            return Err(wrong(format_args!(
                "the result is nested deeper than {JSON_DEPTH_MAX}; make it flatter"
            )));
        }
        if let Ok(items) = value.as_array_ref() {
            return items
                .iter()
                .map(|item| self.value(item, depth + 1))
                .collect::<Result<_, _>>()
                .map(Value::Array);
        }
        if let Ok(fields) = value.as_map_ref() {
            return self.fields(&fields, depth);
        }
        if value.is_unit() {
            Ok(Value::Null)
        } else if let Ok(flag) = value.as_bool() {
            Ok(flag.into())
        } else if let Ok(whole) = value.as_int() {
            Ok(whole.into())
        } else if let Ok(number) = value.as_float() {
            let number = Number::from_f64(number);
            number
                .map(Value::Number)
                .ok_or_else(|| wrong(format_args!("{value} is no number that JSON can hold")))
        } else if let Some(large) = value.clone().try_cast::<Large>() {
            Ok(large.0.into())
        } else if let Ok(char) = value.as_char() {
            Ok(char.to_string().into())
        } else {
            Err(wrong(format_args!("{} cannot stand in a message", name_of(value))))
        }
    }

    fn fields(&mut self, fields: &Map, depth: usize) -> Result<Value, Error> {
        let mut out = serde_json::Map::new();
        for (key, value) in fields {
            self.grow(Size { bytes: key.len(), values: 0 })?;
            out.insert(key.to_string(), self.value(value, depth + 1)?);
        }
        Ok(Value::Object(out))
    }
}

/// Whether two values are equal. Numbers of different kinds are different, as they are in JSON.
pub(super) fn same(a: &Dynamic, b: &Dynamic) -> bool {
    if let (Ok(a), Ok(b)) = (a.as_immutable_string_ref(), b.as_immutable_string_ref()) {
        return *a == *b;
    }
    if let (Ok(a), Ok(b)) = (a.as_array_ref(), b.as_array_ref()) {
        return same_items(&a, &b);
    }
    if let (Ok(a), Ok(b)) = (a.as_map_ref(), b.as_map_ref()) {
        return same_fields(&a, &b);
    }
    a.type_id() == b.type_id()
        && (a.is_unit()
            || equal::<bool>(a, b)
            || equal::<INT>(a, b)
            || equal::<FLOAT>(a, b)
            || equal::<char>(a, b)
            || equal::<Large>(a, b))
}

fn equal<T: Clone + PartialEq + 'static>(a: &Dynamic, b: &Dynamic) -> bool {
    a.clone().try_cast::<T>().is_some_and(|a| b.clone().try_cast::<T>() == Some(a))
}

pub(super) fn same_items(a: &Array, b: &Array) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

pub(super) fn same_fields(a: &Map, b: &Map) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((key, a), (other, b))| key == other && same(a, b))
}

/// Name of a value's kind, for errors.
fn name_of(value: &Dynamic) -> &'static str {
    if value.is_unit() {
        "nothing"
    } else if value.is_string() {
        "text"
    } else if value.is_int() || value.is_float() {
        "a number"
    } else if value.is_bool() {
        "true or false"
    } else if value.is_array() {
        "a list"
    } else if value.is_map() {
        "a map"
    } else if value.is_fnptr() {
        "a function"
    } else {
        "something else"
    }
}

fn wrong(what: std::fmt::Arguments<'_>) -> Error {
    Error::invalid("script.result", what.to_string())
}
