//! Tools for models: every operation of the table is a tool, in tool sets.
//!
//! A failure is an answer too, one that says what to do; the protocol's own errors are for tools that do not
//! exist.

use super::service::McpCaller;
use crate::schema::{for_each, simplify};
use everturn_api::decode::RawRequest;
use everturn_api::hints::in_tools;
use everturn_api::{Noun, Request, Requester, Row, TABLE};
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::id::clip;
use everturn_engine::model::wait;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

/// The default tools for agents.
const DEFAULT: &str = "default";
/// All tools that destroy nothing.
const ALL: &str = "all";
/// Tools that erase, delete or touch keys.
const DESTRUCTIVE: &str = "destructive";

/// Tool sets that are offered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Toolsets(Vec<&'static str>);

impl Default for Toolsets {
    fn default() -> Toolsets {
        Toolsets(vec![DEFAULT])
    }
}

impl FromStr for Toolsets {
    type Err = Error;

    /// Parses names separated by commas.
    fn from_str(text: &str) -> Result<Toolsets, Error> {
        let known: Vec<&str> = [DEFAULT, ALL, DESTRUCTIVE]
            .into_iter()
            // Tools about keys are destructive.
            .chain(Noun::ALL.iter().filter(|noun| **noun != Noun::Keys).map(|noun| noun.as_str()))
            .collect();
        let sets = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| {
            known.iter().find(|known| **known == name).copied().ok_or_else(|| {
                let text = format!("{:?} is not a tool set; there are {}", clip(name), known.join(", "));
                Error::invalid("mcp.toolset", text)
            })
        });
        sets.collect::<Result<_, _>>().map(Toolsets)
    }
}

impl Toolsets {
    /// Whether tools that erase, delete or touch keys are offered.
    pub fn destroy(&self) -> bool {
        self.0.contains(&DESTRUCTIVE)
    }

    fn have(&self, row: &Row) -> bool {
        let about = &row.about;
        match about.destructive {
            true => self.destroy(),
            false => self.0.iter().any(|set| match *set {
                DEFAULT => about.in_default_toolset,
                set => set == ALL || set == about.noun.as_str(),
            }),
        }
    }
}

/// The tool with this name, if it is offered.
pub fn find(name: &str, toolsets: &Toolsets) -> Option<&'static Row> {
    Row::named(name).filter(|row| toolsets.have(row))
}

/// Tools that a caller can use, read-only ones first.
pub fn list_for(caller: &McpCaller) -> Vec<Tool> {
    let offered = TABLE.iter().zip(TOOLS.iter());
    let mut offered: Vec<(KeyRole, &Tool)> = offered
        .filter(|(row, _)| row.about.role <= caller.role && caller.toolsets.have(row))
        .map(|(row, tool)| (row.about.role, tool))
        .collect();
    offered.sort_by_key(|(role, _)| *role);
    offered.into_iter().map(|(_, tool)| tool.clone()).collect()
}

/// The description of a tool.
pub fn describe(name: &str) -> Option<Tool> {
    TOOLS.iter().find(|tool| tool.name == name).cloned()
}

/// Parses the arguments of a tool.
pub fn read(row: &Row, arguments: &str) -> Result<Box<dyn Request>, Error> {
    everturn_core::json::check(arguments)?;
    (row.read)(&RawRequest { body: arguments, ..RawRequest::default() })
        .map_err(|wrong| Error::invalid("arguments.shape", format!("invalid arguments: {}", wrong.text)))
}

/// Runs the operation of a tool. Blocks.
pub fn run(row: &Row, requester: Requester, arguments: &str) -> Result<Vec<u8>, Error> {
    Ok(wait(read(row, arguments)?.run(requester, String::new()))?.json)
}

/// The answer of an operation as the result of its tool.
pub fn answer(json: Vec<u8>) -> Result<CallToolResult, Error> {
    let answer = serde_json::from_slice(&json)
        .map_err(|e| Error::internal("answer.json", format!("the answer cannot be read: {e}")))?;
    let mut result = CallToolResult::structured(answer);
    // The text is the answer itself, with numbers as they were written.
    result.content = vec![ContentBlock::text(String::from_utf8_lossy(&json).into_owned())];
    Ok(result)
}

/// An error as an answer that a model can read and act on.
pub fn refused(error: &Error) -> CallToolResult {
    let text = format!("{}: {}", error.code(), in_tools(error.text()));
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// Descriptions, in the order of the table.
static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| TABLE.iter().map(tool).collect());

fn tool(row: &Row) -> Tool {
    let about = &row.about;
    let mut generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let mut input = (row.request)(&mut generator);
    let text = match input.remove("description") {
        // Streaming over HTTP does not concern tools.
        Some(Value::String(text)) if about.streams => {
            text.split("\n\n").next().unwrap_or_default().to_string()
        }
        Some(Value::String(text)) => text,
        _ => about.title.to_string(),
    };
    if let Some(Value::String(text)) = input.pointer_mut("/properties/conversation/description") {
        text.push_str(" Its id, the beginning of one, or @last for the one with the latest turn or a fork made of it since.");
    }
    // The `next` of a page is a string, and is passed as one.
    for name in ["before", "after", "from"] {
        if let Some(Value::Array(types)) = input.pointer_mut(&format!("/properties/{name}/type"))
            && types.contains(&json!("integer"))
        {
            types.push("string".into());
        }
    }
    if input.get("additionalProperties").is_none() {
        input.insert("additionalProperties".into(), false.into());
    }
    let input = whole(input.to_value(), generator.take_definitions(true));
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let answer = (row.answer)(&mut generator);
    let output = whole(answer.to_value(), generator.take_definitions(true));
    let hints = ToolAnnotations::new()
        .read_only(about.role <= KeyRole::Reader)
        .destructive(about.destructive)
        .idempotent(about.idempotent)
        .open_world(about.asks_model);
    Tool::new(about.name, text.replace('\n', " "), input)
        .with_title(about.title)
        .with_raw_output_schema(output)
        .with_annotations(hints)
}

/// Inlines enums where they are referred to: not every client follows a reference, or shows a choice with null.
fn inline_words(value: &mut Value, words: &JsonObject) {
    let find =
        |schema: &Value| words.get(schema["$ref"].as_str()?.strip_prefix("#/$defs/")?)?.as_object().cloned();
    // The field's own keywords take precedence.
    let add = |fields: &mut JsonObject, list: JsonObject| {
        for (name, value) in list {
            fields.entry(name).or_insert(value);
        }
    };
    match value {
        Value::Object(fields) => {
            let nullable = match fields.get("anyOf").and_then(Value::as_array).map(Vec::as_slice) {
                Some([one, null]) if null["type"] == "null" => find(one),
                _ => None,
            };
            if let Some(mut list) = nullable {
                list.insert("type".into(), json!(["string", "null"]));
                if let Some(words) = list.get_mut("enum").and_then(Value::as_array_mut) {
                    words.push(Value::Null);
                }
                fields.remove("anyOf");
                add(fields, list);
            } else if let Some(list) = fields.get("$ref").and_then(|path| find(&json!({"$ref": path}))) {
                fields.remove("$ref");
                add(fields, list);
            }
            fields.values_mut().for_each(|value| inline_words(value, words));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| inline_words(item, words)),
        _ => {}
    }
}

/// A schema that is an object itself, with the definitions that it refers to. Without `format`: `uint64` is not
/// a format of JSON Schema, and clients complain about it.
fn whole(mut schema: Value, mut definitions: JsonObject) -> Arc<JsonObject> {
    definitions.values_mut().for_each(simplify);
    let is_list = |definition: &Value| definition["type"] == "string" && definition["enum"].is_array();
    let words: JsonObject = definitions
        .iter()
        .filter(|(_, definition)| is_list(definition))
        .map(|(n, d)| (n.clone(), d.clone()))
        .collect();
    definitions.values_mut().for_each(|definition| inline_words(definition, &words));
    inline_words(&mut schema, &words);
    let named = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")).map(str::to_string);
    if let Some(definition) = named.and_then(|name| definitions.get(&name)) {
        schema = definition.clone();
    }
    if schema.get("properties").is_none() {
        schema["properties"] = json!({});
    }
    schema["type"] = "object".into();
    let text = schema.to_string();
    // Definitions that only the root used are not needed.
    let used = |name: &str, texts: &[String]| {
        let reference = format!("\"#/$defs/{name}\"");
        texts.iter().any(|text| text.contains(&reference))
    };
    loop {
        let texts: Vec<String> = definitions.values().map(Value::to_string).chain([text.clone()]).collect();
        let before = definitions.len();
        definitions.retain(|name, _| used(name, &texts));
        if definitions.len() == before {
            break;
        }
    }
    if !definitions.is_empty() {
        schema["$defs"] = Value::Object(definitions);
    }
    simplify(&mut schema);
    for_each(&mut schema, &|fields| fields.retain(|name, value| name != "format" || !value.is_string()));
    match schema {
        Value::Object(fields) => Arc::new(fields),
        _ => Arc::default(),
    }
}
