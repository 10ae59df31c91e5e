//! What a model can do with conversations: every operation of the table is a tool, in tool sets.
//!
//! What goes wrong is an answer too, one that says what to do; the protocol's own errors are for tools that do not exist.

use super::service::Who;
use crate::schema::{for_each, simplify};
use everturn::model::wait;
use everturn_api::given::Given;
use everturn_api::{Asker, Noun, Row, TABLE};
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::id::clip;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

/// What an agent needs.
const DEFAULT: &str = "default";
/// Everything that destroys nothing.
const ALL: &str = "all";
/// What erases, deletes or touches keys.
const DESTRUCTIVE: &str = "destructive";

/// Which tools are offered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Toolsets(Vec<&'static str>);

impl Default for Toolsets {
    fn default() -> Toolsets {
        Toolsets(vec![DEFAULT])
    }
}

impl FromStr for Toolsets {
    type Err = Error;

    /// Names with commas between them.
    fn from_str(text: &str) -> Result<Toolsets, Error> {
        let known: Vec<&str> = [DEFAULT, ALL, DESTRUCTIVE]
            .into_iter()
            // What is about keys is destructive.
            .chain(Noun::ALL.iter().filter(|noun| **noun != Noun::Keys).map(|noun| noun.as_str()))
            .collect();
        let sets = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| {
            known.iter().find(|known| **known == name).copied().ok_or_else(|| {
                let text = format!("{:?} is no tool set; there are {}", clip(name), known.join(", "));
                Error::invalid("mcp.toolset", text)
            })
        });
        sets.collect::<Result<_, _>>().map(Toolsets)
    }
}

impl Toolsets {
    /// Whether what erases, deletes or touches keys is offered.
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

/// The tool of this name, if it is offered.
pub fn find(name: &str, toolsets: &Toolsets) -> Option<&'static Row> {
    Row::named(name).filter(|row| toolsets.have(row))
}

/// What a caller can use, those that only read first.
pub fn list_for(caller: &Who) -> Vec<Tool> {
    let offered = TABLE.iter().zip(TOOLS.iter());
    let mut offered: Vec<(KeyRole, &Tool)> = offered
        .filter(|(row, _)| row.about.role <= caller.role && caller.toolsets.have(row))
        .map(|(row, tool)| (row.about.role, tool))
        .collect();
    offered.sort_by_key(|(role, _)| *role);
    offered.into_iter().map(|(_, tool)| tool.clone()).collect()
}

/// What a tool is, for whoever decides to use it.
pub fn describe(name: &str) -> Option<Tool> {
    TOOLS.iter().find(|tool| tool.name == name).cloned()
}

/// Does it. Blocks.
pub fn call(row: &Row, asker: Asker, arguments: String) -> CallToolResult {
    let done = || {
        everturn_core::json::check(&arguments)?;
        let request = (row.read)(&Given { body: &arguments, ..Given::default() }).map_err(|wrong| {
            let text = format!("the arguments are not what is expected: {}", wrong.text);
            Error::invalid("arguments.shape", text)
        })?;
        let reply = wait(request.run(asker, String::new()))?;
        let answer = serde_json::from_slice(&reply.json)
            .map_err(|e| Error::internal("answer.json", format!("the answer cannot be read: {e}")))?;
        Ok((answer, String::from_utf8_lossy(&reply.json).into_owned()))
    };
    match done() {
        Ok((answer, text)) => {
            let mut result = CallToolResult::structured(answer);
            // The text is the answer itself, in which numbers are written as they were said.
            result.content = vec![ContentBlock::text(text)];
            result
        }
        Err(error) => refused(&error),
    }
}

/// An error as an answer that a model can read and act on.
pub fn refused(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(format!("{}: {}", error.code(), error.text()))])
}

/// The descriptions, in the order of the table.
static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| TABLE.iter().map(tool).collect());

fn tool(row: &Row) -> Tool {
    let about = &row.about;
    let mut generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let mut input = (row.request)(&mut generator);
    let text = match input.remove("description") {
        // How it is streamed over HTTP is not for tools.
        Some(Value::String(text)) if about.streams => {
            text.split("\n\n").next().unwrap_or_default().to_string()
        }
        Some(Value::String(text)) => text,
        _ => about.title.to_string(),
    };
    if let Some(Value::String(text)) = input.pointer_mut("/properties/conversation/description") {
        text.push_str(" Its id, the beginning of one, or @last for the last changed.");
    }
    // The `next` of a page is a text, and goes on as one.
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
        .read_only(about.role == KeyRole::Reader)
        .destructive(about.destructive)
        .idempotent(about.idempotent)
        .open_world(about.asks_model);
    Tool::new(about.name, text.replace('\n', " "), input)
        .with_title(about.title)
        .with_raw_output_schema(output)
        .with_annotations(hints)
}

/// A schema that is an object itself, with the definitions that it refers to. Without `format`: `uint64` is no format of
/// JSON Schema's, and clients complain about it.
fn whole(mut schema: Value, mut definitions: JsonObject) -> Arc<JsonObject> {
    let named = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")).map(str::to_string);
    if let Some(definition) = named.and_then(|name| definitions.get(&name)) {
        schema = definition.clone();
    }
    if schema.get("properties").is_none() {
        schema["properties"] = json!({});
    }
    schema["type"] = "object".into();
    let text = schema.to_string();
    // What only the root was, nobody refers to.
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
