//! Taking parts out of a message, or replacing them, without touching a byte of the rest.

use super::pointer::Pointer;
use crate::Error;
use crate::pairing::Place;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt::{self, Write};

/// What was done to a message of the transcript; places are those of the message as it was.
#[derive(Clone, Debug, Default)]
pub(super) struct Edit {
    /// Calls and results that left.
    pub(super) removed: Vec<Place>,
    /// Bodies and arguments that were replaced.
    pub(super) pointers: Vec<Pointer>,
    /// How long what was removed is.
    pub(super) removed_chars: usize,
}

impl Edit {
    /// Whether it does the same; what it removed need not have been counted.
    pub(super) fn is_same(&self, other: &Edit) -> bool {
        self.removed == other.removed && self.pointers == other.pointers
    }
}

/// An object whose values stay text.
pub(super) struct Fields<'a>(pub(super) Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The key under which what was done to a message or block is noted.
pub(super) const MARKER: &str = "_harn_projection";

/// The message with the edit applied. Counts what was removed.
pub(super) fn apply(text: &str, edit: &mut Edit) -> Result<String, Error> {
    rewrite(text, edit)
        .map_err(|e| Error::invalid("projection.message", format!("the message cannot be changed: {e}")))
}

fn rewrite(text: &str, edit: &mut Edit) -> Result<String, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(text)?;
    let whole = edit.pointers.iter().find(|pointer| pointer.place == Place::Message);
    let inside = edit.pointers.iter().any(|pointer| pointer.place != Place::Message);
    let mut out = Object::new();
    let mut removed_chars = 0;
    for (key, value) in &fields.0 {
        if key == MARKER && !edit.pointers.is_empty() {
            continue;
        }
        let place: Option<fn(usize) -> Place> = match key.as_str() {
            "content" => Some(Place::Block),
            "tool_calls" => Some(Place::ToolCall),
            "tool_results" => Some(Place::ToolResult),
            _ => None,
        };
        let touched = |place: &Place| match place {
            Place::Block(_) => key == "content",
            Place::ToolCall(_) => key == "tool_calls",
            Place::ToolResult(_) => key == "tool_results",
            Place::FunctionCall => key == "function_call",
            Place::Message => false,
        };
        if key == "function_call" && edit.removed.contains(&Place::FunctionCall) {
            removed_chars += value.get().chars().count();
        } else if key == "function_call"
            && let Some(pointer) = edit.pointers.iter().find(|pointer| pointer.place == Place::FunctionCall)
        {
            out.field(key, &element(value.get(), pointer)?);
        } else if let Some(pointer) = whole.filter(|pointer| pointer.field == *key) {
            out.field(key, &pointer.replacement(value.get()));
        } else if let Some(place) = place
            && (edit.removed.iter().any(touched)
                || edit.pointers.iter().any(|pointer| touched(&pointer.place)))
        {
            let items: Vec<&RawValue> = serde_json::from_str(value.get())?;
            let mut left = Vec::with_capacity(items.len());
            let mut removed: Vec<bool> = vec![false; items.len()];
            for gone in edit.removed.iter().filter(|gone| touched(gone)) {
                if let Some(slot) = gone.index().and_then(|n| removed.get_mut(n)) {
                    *slot = true;
                }
            }
            let mut pointers: Vec<Option<&Pointer>> = vec![None; items.len()];
            for pointer in edit.pointers.iter().filter(|pointer| touched(&pointer.place)) {
                if let Some(slot) = pointer.place.index().and_then(|n| pointers.get_mut(n)) {
                    *slot = Some(pointer);
                }
            }
            for (n, item) in items.iter().enumerate() {
                match pointers[n] {
                    _ if removed[n] => removed_chars += item.get().chars().count(),
                    Some(pointer) => left.push(element(item.get(), pointer)?),
                    None => left.push(item.get().to_string()),
                }
            }
            match (left.is_empty(), place(0)) {
                // A content must be there, a list of calls must not be empty.
                (true, Place::Block(_)) => out.field(key, "null"),
                (true, _) => {}
                (false, _) => out.field(key, &format!("[{}]", left.join(","))),
            }
        } else {
            out.field(key, value.get());
        }
    }
    if let Some(pointer) = whole {
        out.field(MARKER, &pointer.marker());
    } else if inside {
        out.field(MARKER, &Pointer::markers(&edit.pointers));
    }
    edit.removed_chars = removed_chars;
    Ok(out.end())
}

/// A block, call or result with what the pointer points to replaced.
fn element(text: &str, pointer: &Pointer) -> Result<String, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(text)?;
    let (outer, inner) =
        pointer.field.split_once('.').map_or((pointer.field.as_str(), None), |(o, i)| (o, Some(i)));
    let mut out = Object::new();
    for (key, value) in &fields.0 {
        match inner {
            _ if key == MARKER => {}
            _ if key != outer => out.field(key, value.get()),
            None => out.field(key, &pointer.replacement(value.get())),
            Some(inner) => {
                let nested: Fields<'_> = serde_json::from_str(value.get())?;
                let mut object = Object::new();
                for (key, value) in &nested.0 {
                    if key == inner {
                        object.field(key, &pointer.replacement(value.get()));
                    } else {
                        object.field(key, value.get());
                    }
                }
                out.field(key, &object.end());
            }
        }
    }
    out.field(MARKER, &pointer.marker());
    Ok(out.end())
}

/// An object that is being written.
struct Object(String);

impl Object {
    fn new() -> Object {
        Object("{".to_string())
    }

    fn field(&mut self, key: &str, value: &str) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        // Writing into a string does not fail.
        let _ = write!(self.0, "{comma}{}:{value}", crate::json::quote(key));
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}
