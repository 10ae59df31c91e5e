//! Simplification of JSON Schema for its readers.

use serde_json::{Value, json};

/// Simplifies a schema: constants that are described one by one become a plain `enum`, and a schema that accepts anything
/// is `{}`.
pub fn simplify(schema: &mut Value) {
    match schema {
        Value::Bool(true) => *schema = json!({}),
        Value::Object(fields) => {
            if let Some(words) = fields.get("oneOf").and_then(words) {
                fields.remove("oneOf");
                fields.insert("type".into(), "string".into());
                fields.insert("enum".into(), words);
            }
            for name in ["properties", "$defs"] {
                let parts = fields.get_mut(name).and_then(Value::as_object_mut);
                parts.into_iter().flatten().for_each(|(_, part)| simplify(part));
            }
            for name in ["anyOf", "oneOf", "allOf", "prefixItems"] {
                let parts = fields.get_mut(name).and_then(Value::as_array_mut);
                parts.into_iter().flatten().for_each(simplify);
            }
            for name in ["items", "additionalProperties"] {
                fields.get_mut(name).into_iter().for_each(simplify);
            }
        }
        _ => {}
    }
}

/// The constants of a choice.
fn words(choices: &Value) -> Option<Value> {
    choices
        .as_array()?
        .iter()
        .map(|choice| choice.get("const").filter(|word| word.is_string()).cloned())
        .collect()
}

/// Applies a change to a schema and to everything in it.
pub fn for_each(value: &mut Value, change: &impl Fn(&mut serde_json::Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            change(fields);
            fields.values_mut().for_each(|value| for_each(value, change));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| for_each(item, change)),
        _ => {}
    }
}
