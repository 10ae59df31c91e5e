//! The description of the native API, made from the table of operations.

use crate::app::App;
use crate::problem::ProblemBody;
use crate::schema::{for_each, simplify};
use axum::Router;
use axum::routing::get;
use everturn_api::{About, Noun, Operation, Row, TABLE};
use everturn_core::asset::Asset;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock};

static TEXT: LazyLock<String> = LazyLock::new(document);

type Object = Map<String, Value>;

/// OpenAPI 3.1, as JSON.
pub fn document() -> String {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut described = DocumentBuilder {
        requests: settings.clone().for_deserialize().into_generator(),
        answers: settings.for_serialize().into_generator(),
        bodies: Object::new(),
        paths: Object::new(),
    };
    for row in TABLE {
        let about = &row.about;
        described.add(row, about.name, about.path);
        if let Some((name, path)) = about.alias {
            described.add(row, name, path);
        }
    }
    described.add_streams();
    described.answers.subschema_for::<ProblemBody<'static>>();
    let DocumentBuilder { mut requests, mut answers, bodies, paths } = described;
    let mut schemas = answers.take_definitions(false);
    let mut asked = requests.take_definitions(false);
    asked.extend(bodies);
    // A schema that differs between request and answer has a name of its own in requests.
    let differ: Vec<String> = asked
        .iter()
        .filter(|(name, schema)| schemas.get(*name).is_some_and(|known| known != *schema))
        .map(|(name, _)| name.clone())
        .collect();
    for (name, mut schema) in asked {
        for_each(&mut schema, &|fields| rename(fields, &differ));
        schemas.insert(if differ.contains(&name) { format!("{name}Input") } else { name }, schema);
    }
    discriminate(&mut schemas, "HistoryEntry", "entry");
    schemas.insert("Transcript".into(), transcript());
    schemas.values_mut().for_each(simplify);
    let tags: Vec<Value> =
        Noun::ALL.iter().map(|noun| json!({"name": noun.as_str(), "description": noun.text()})).collect();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Everturn",
            "description": "Every word is kept; the model reads what it needs. A conversation store for AI agents.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            "version": env!("CARGO_PKG_VERSION"),
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {
                "type": "http",
                "scheme": "bearer",
                "description": "A key (`et_…`) or a JWT. A server that listens on loopback only may need none.",
            }},
        },
        "security": [{"key": []}, {}],
        "tags": tags,
    });
    for_each(&mut document, &plain_numbers);
    serde_json::to_string_pretty(&document).unwrap_or_default()
}

struct DocumentBuilder {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
    bodies: Object,
    paths: Object,
}

impl DocumentBuilder {
    /// Adds an operation at one of its paths.
    fn add(&mut self, row: &Row, name: &str, path: &str) {
        let about = &row.about;
        let mut request = object((row.request)(&mut self.requests));
        let text = take_text(&mut request);
        let example = request.remove("examples").and_then(|examples| examples.get(0).cloned());
        let mut fields = Fields::of(&mut request);
        let names = path.contains('{')
            || ["conversation", "forked_from"].iter().any(|field| fields.properties.contains_key(*field))
            || name == everturn_api::conversations::ResolveConversation::ABOUT.name;
        let mut parameters = Vec::new();
        for field in About::fields_of(path) {
            parameters.extend(fields.take(field).map(|schema| parameter(field, "path", schema, true)));
        }
        let conditions = [
            (about.once, "idempotency_key", "Idempotency-Key", None),
            (
                about.if_match,
                "expected_seq",
                "If-Match",
                Some("The ETag of a GET: refuse if it has changed since."),
            ),
        ];
        for (applies, field, header, text) in conditions {
            if applies && let Some(schema) = fields.take(field) {
                let text = text.map_or_else(|| schema["description"].clone(), Value::from);
                parameters.push(header_parameter(header, text));
            }
        }
        if about.versioned && about.method == everturn_api::Method::Get {
            let text = "The ETag of a GET: answer 304 if it has not changed since.";
            parameters.push(header_parameter("If-None-Match", text.into()));
        }
        let mut operation = json!({"tags": [about.noun.as_str()], "operationId": name});
        if about.method.has_body() {
            if !fields.properties.is_empty() || is_open(&request) {
                let name = format!("{}Request", camel(name));
                let mut content = json!({"schema": {"$ref": format!("#/components/schemas/{name}")}});
                if let Some(example) = example {
                    content["example"] = example;
                }
                self.bodies.insert(name, fields.into_schema(request));
                operation["requestBody"] =
                    json!({"content": {"application/json": content}, "required": true});
            }
        } else {
            for (field, schema) in std::mem::take(&mut fields.properties) {
                let required = fields.required.contains(&Value::from(field.as_str()));
                parameters.push(parameter(&field, "query", schema, required));
            }
        }
        let answer = (row.answer)(&mut self.answers);
        let mut success =
            json!({"description": about.answer, "content": {"application/json": {"schema": answer}}});
        if about.versioned {
            success["headers"] = json!({"ETag": {"schema": {"type": "string"}, "description": "The `seq` of its last event."}});
        }
        operation["responses"][about.status.to_string()] = success.clone();
        if let Some(text) = about.repeated {
            success["description"] = text.into();
            operation["responses"]["200"] = success;
        }
        if about.versioned && about.method == everturn_api::Method::Get {
            operation["responses"]["304"] = json!({"description": "Not modified."});
        }
        self.put(about.method.as_str(), path, &text, names, parameters, operation);
    }

    /// Adds an operation with its responses; with `names`, the request names something that may not exist, so that it can answer 404.
    fn put(
        &mut self,
        method: &str,
        path: &str,
        text: &str,
        names: bool,
        parameters: Vec<Value>,
        mut operation: Value,
    ) {
        let (summary, description) = text.split_once("\n\n").unwrap_or((text, ""));
        operation["summary"] = summary.into();
        if !description.is_empty() {
            operation["description"] = description.into();
        }
        add_problems(&mut operation, &parameters, names, method != "GET");
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        let item = self.paths.entry(format!("/api/v1{path}")).or_insert_with(|| json!({}));
        item[method.to_lowercase()] = operation;
    }

    /// Streamed requests and answers need more than their row in the table says.
    fn add_streams(&mut self) {
        let stream = json!({"schema": {"type": "string"}});
        let binary = json!({"schema": {"type": "string", "format": "binary"}});
        // A generated client takes the first one.
        let bytes = json!({"application/octet-stream": binary, "*/*": binary});
        let descriptor = self.answers.subschema_for::<Asset>();
        let conversation = |place, required, text: &str| {
            parameter("conversation", place, json!({"type": "string", "description": text}), required)
        };

        // Without a type: some tools take the whole stream for the value, others each event.
        let live = json!({"schema": {"description": "Server-sent events."}});
        let events = &mut self.paths["/api/v1/conversations/{conversation}/events"]["get"];
        events["responses"]["200"]["content"]["text/event-stream"] = live.clone();
        let text = "The last `id:` that was received; takes precedence over `from`.";
        if let Some(parameters) = events["parameters"].as_array_mut() {
            parameters.push(header_parameter("Last-Event-ID", text.into()));
        }
        let generate = &mut self.paths["/api/v1/conversations/{conversation}/generate"]["post"];
        generate["responses"]["200"]["content"]["text/event-stream"] = live;

        let export = &mut self.paths["/api/v1/conversations/{conversation}/export"]["get"];
        export["responses"]["200"]["content"] = json!({
            "application/jsonl": stream,
            "application/json": {"schema": {
                "type": "object",
                "description": "A transcript value, or the fields of a request to a provider: `messages`, `input` or \
                                `contents`, and what goes before them.",
            }},
            "text/markdown": stream,
            "text/html": stream,
        });
        let import = &mut self.paths["/api/v1/import"]["post"];
        import["requestBody"] = json!({
            "description": "The file, of any content type.",
            "content": {
                "application/octet-stream": binary,
                "application/jsonl": binary,
                "application/json": binary,
            },
            "required": true,
        });
        let name = self.bodies.remove("ImportRequest").unwrap_or_default()["properties"]["name"].take();
        import["parameters"] = json!([parameter("name", "query", name, false)]);
        if let Some(responses) = import["responses"].as_object_mut() {
            responses.remove("415");
        }

        let operation = json!({
            "tags": ["transfer"],
            "operationId": "get_transcript",
            "responses": {"200": {
                "description": "The transcript.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Transcript"}}},
            }},
        });
        let path = "/conversations/{conversation}/transcript";
        let parameters = vec![conversation("path", true, "The conversation.")];
        self.put(
            "GET",
            path,
            "Reads a conversation as a transcript value, version 2.",
            true,
            parameters,
            operation,
        );

        let operation = json!({
            "tags": ["assets"],
            "operationId": "add_asset",
            "requestBody": {
                "description": "The bytes; Content-Type is the asset's media type.", "content": bytes, "required": true,
            },
            "responses": {"201": {
                "description": "Its descriptor.", "content": {"application/json": {"schema": descriptor}},
            }},
        });
        let named = json!({"type": "string", "description": "Name of the asset."});
        let visibility = json!({
            "type": "string", "enum": ["public", "internal", "private"],
            "description": "`private`: only for the actors of the caller. By default everyone may see it.",
        });
        let parameters = vec![
            conversation("query", true, "The conversation it belongs to."),
            parameter("name", "query", named, false),
            parameter("visibility", "query", visibility, false),
        ];
        self.put(
            "POST",
            "/assets",
            "Adds an asset, to be referenced by a turn's `asset_id`.",
            true,
            parameters,
            operation,
        );

        let header = |text: Option<&str>| match text {
            Some(text) => json!({"schema": {"type": "string"}, "description": text}),
            None => json!({"schema": {"type": "string"}}),
        };
        let operation = json!({
            "tags": ["assets"],
            "operationId": "get_asset_content",
            "responses": {
                "200": {
                    "description": "The bytes, in their own media type.",
                    "headers": {"Accept-Ranges": header(None), "ETag": header(Some("Their SHA-256."))},
                    "content": bytes,
                },
                "206": {"description": "A part.", "headers": {"Content-Range": header(None)}, "content": bytes},
                "304": {"description": "Not modified."},
                "416": {"description": "The range is beyond the end."},
            },
        });
        let asset = json!({
            "type": "string", "description": "The asset's id.", "examples": ["asset_01JD0000000000000000000000"],
        });
        let parameters = vec![
            parameter("asset", "path", asset, true),
            conversation(
                "query",
                false,
                "The conversation, needed if several have an imported asset with this id.",
            ),
            header_parameter(
                "If-None-Match",
                "The ETag of a GET: answer 304 if it has not changed since.".into(),
            ),
            header_parameter("Range", "One range of bytes.".into()),
            header_parameter("If-Range", "The part only if this is still the ETag.".into()),
        ];
        let text = "Reads an asset's bytes, or a part of them.";
        self.put("GET", "/assets/{asset}/content", text, true, parameters, operation);
    }
}

/// The fields of a request that are not yet in the path, a header, the query or the body.
struct Fields {
    properties: Object,
    required: Vec<Value>,
}

impl Fields {
    fn of(request: &mut Object) -> Fields {
        let taken = |value: Option<Value>| value.unwrap_or_default();
        Fields {
            properties: object_of(taken(request.remove("properties"))),
            required: match taken(request.remove("required")) {
                Value::Array(names) => names,
                _ => Vec::new(),
            },
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.required.retain(|required| required != name);
        self.properties.remove(name)
    }

    fn into_schema(self, request: Object) -> Value {
        let mut schema = json!({"type": "object", "properties": self.properties});
        if !self.required.is_empty() {
            schema["required"] = self.required.into();
        }
        // Only a request that says so accepts undescribed fields.
        schema["additionalProperties"] = json!(is_open(&request));
        schema
    }
}

/// Whether a request accepts undescribed fields.
fn is_open(request: &Object) -> bool {
    request.get("additionalProperties") == Some(&json!(true))
}

fn object(schema: Schema) -> Object {
    object_of(schema.to_value())
}

fn object_of(value: Value) -> Object {
    match value {
        Value::Object(fields) => fields,
        _ => Object::new(),
    }
}

fn take_text(schema: &mut Object) -> String {
    schema.remove("description").and_then(|text| text.as_str().map(str::to_string)).unwrap_or_default()
}

/// A parameter. It is omitted rather than null.
fn parameter(name: &str, place: &str, mut schema: Value, required: bool) -> Value {
    simplify(&mut schema);
    if schema["default"].is_null() {
        schema.as_object_mut().map(|fields| fields.remove("default"));
    }
    let text = schema.as_object_mut().map(take_text).unwrap_or_default();
    if let Value::Array(types) = &schema["type"]
        && let [one, Value::String(null)] = types.as_slice()
        && null == "null"
    {
        schema["type"] = one.clone();
    }
    let of_one = |any: &Value| match any.as_array().map(Vec::as_slice) {
        Some([one, null]) if null["type"] == "null" => Some(one.clone()),
        _ => None,
    };
    if let Some(one) = of_one(&schema["anyOf"]) {
        schema = one;
    }
    json!({"name": name, "in": place, "description": text, "required": required, "schema": schema})
}

fn header_parameter(name: &str, text: Value) -> Value {
    json!({
        "name": name, "in": "header", "description": text, "required": false, "schema": {"type": ["string", "null"]},
    })
}

/// `append_turns` becomes `AppendTurns`.
fn camel(name: &str) -> String {
    let capital =
        |word: &str| word.get(..1).map(|first| first.to_uppercase() + &word[1..]).unwrap_or_default();
    name.split('_').map(capital).collect()
}

/// A transcript value, which is another project's format.
fn transcript() -> Value {
    let list = json!({"type": "array", "items": {}});
    json!({
        "type": "object",
        "description": "A transcript value, version 2.",
        "properties": {
            "_type": {"type": "string", "description": "Always `transcript`."},
            "version": {"type": "integer", "minimum": 0},
            "id": {"type": ["string", "null"]},
            "state": {"type": ["string", "null"]},
            "summary": {"type": ["string", "null"]},
            "metadata": {"type": "object", "additionalProperties": true},
            "messages": list,
            "events": list,
            "assets": list,
        },
        "required": ["_type", "version", "metadata", "messages", "events", "assets"],
    })
}

fn rename(fields: &mut Object, differ: &[String]) {
    if let Some(Value::String(path)) = fields.get_mut("$ref")
        && differ.iter().any(|name| path.rsplit('/').next() == Some(name))
    {
        path.push_str("Input");
    }
}

/// Gives each variant of a tagged choice a schema of its own, and maps each tag to its variant: generated clients
/// read the tag.
fn discriminate(schemas: &mut Object, name: &str, tag: &str) {
    let Some(choice) = schemas.get_mut(name) else { return };
    let mut mapping = Object::new();
    let mut variants = Vec::new();
    for variant in choice["oneOf"].as_array_mut().into_iter().flatten() {
        let word = variant["properties"][tag]["const"].as_str().unwrap_or_default().to_string();
        let named = format!("{}{name}", camel(&word));
        let reference = format!("#/components/schemas/{named}");
        let whole = std::mem::replace(variant, json!({"$ref": reference}));
        let parts = json!([
            {"$ref": whole["$ref"]},
            {"type": "object", "properties": {tag: {"type": "string", "enum": [word]}}, "required": [tag]},
        ]);
        variants.push((named, json!({"description": whole["description"], "allOf": parts})));
        mapping.insert(word, reference.into());
    }
    choice["discriminator"] = json!({"propertyName": tag, "mapping": mapping});
    schemas.extend(variants);
}

/// Numbers for OpenAPI: unsigned ones become signed ones with a minimum of 0.
fn plain_numbers(fields: &mut Object) {
    match fields.get("format").and_then(Value::as_str) {
        Some("uint64") => {
            fields.insert("format".into(), "int64".into());
            fields.entry("maximum").or_insert(json!(i64::MAX));
        }
        Some("uint32" | "uint16") => drop(fields.insert("format".into(), "int32".into())),
        Some("uint") => drop(fields.remove("format")),
        _ => {}
    }
}

/// Adds the problems that follow from the parameters of an operation. Every problem is problem+json.
fn add_problems(operation: &mut Value, parameters: &[Value], names: bool, changes: bool) {
    let body = &operation["requestBody"]["content"];
    let (takes, has_body) = (!parameters.is_empty(), body.is_object());
    let has_json = body.as_object().is_some_and(|content| content.keys().eq(["application/json"]));
    let table = [
        ("400", "Something about the request is wrong; `detail` says what to do.", true),
        ("401", "A key is needed.", true),
        ("403", "The key may not do this.", true),
        ("404", "Nothing with that id exists, or it belongs to another tenant.", names),
        ("409", "The current state does not allow it; read again, then decide.", changes),
        (
            "412",
            "It changed since it was read.",
            parameters.iter().any(|parameter| parameter["name"] == "If-Match"),
        ),
        ("413", "A limit was exceeded; `detail` has its name and both numbers.", takes || has_body),
        ("415", "The body is not JSON.", has_json),
        ("429", "Too many requests; `Retry-After` says when to try again.", true),
        ("500", "An internal error.", true),
        ("503", "Temporarily unavailable; `Retry-After` says when to try again.", true),
    ];
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, text, applies) in table {
        if applies && !responses.contains_key(status) {
            responses.insert(status.into(), json!({"description": text}));
        }
    }
    for (status, response) in responses {
        if status.as_str() >= "400" {
            let problem = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
            response["content"] = json!({"application/problem+json": problem});
        }
    }
}

/// `/openapi.json`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/openapi.json", get(|| async { ([("content-type", "application/json")], TEXT.as_str()) }))
}
