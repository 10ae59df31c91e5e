//! The description of the API is complete, committed, and correct: every example is sent, every answer
//! validated.

use crate::generations::{self, done, text};
use crate::stage::Stage;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub fn document() -> Value {
    serde_json::from_str(&everturn_server::document()).unwrap()
}

/// Every operation: method, path, description.
pub fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let each = paths.flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
    });
    each.collect()
}

/// A change of the API is visible in review. `EVERTURN_UPDATE=1` rewrites the file.
#[test]
fn the_description_is_the_committed_one() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let now = everturn_server::document() + "\n";
    if std::env::var_os("EVERTURN_UPDATE").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == now,
        "docs/openapi.json is not what the server says; run this with EVERTURN_UPDATE=1"
    );
}

#[test]
fn the_description_is_complete() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let place = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{place}: the id is taken");
        assert!(operation["summary"].is_string(), "{place}: no summary");
        assert!(tags.contains(operation["tags"][0].as_str().unwrap()), "{place}: no tag");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{place}: {parameter}");
        }
        for variable in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
            let parameters = operation["parameters"].as_array().unwrap();
            assert!(
                parameters.iter().any(|p| p["name"] == variable && p["in"] == "path"),
                "{place}: {variable}"
            );
        }
        let responses = operation["responses"].as_object().unwrap();
        for status in ["401", "403", "429", "503"] {
            assert!(responses.contains_key(status), "{place}: {status}");
        }
        for (status, response) in responses {
            assert!(
                response["description"].as_str().is_some_and(|text| !text.is_empty()),
                "{place}: {status}"
            );
            if status.as_str() >= "400" {
                assert!(response["content"]["application/problem+json"].is_object(), "{place}: {status}");
            }
        }
    }
}

/// The source of a path variable: a pointer into the object that it belongs to.
struct Prepared {
    stage: Stage,
    variables: BTreeMap<&'static str, String>,
    queries: BTreeMap<&'static str, String>,
    export: String,
}

/// A model reply with facts.
const FACTS: &str = r#"{"facts": [{"subject": "The service", "predicate": "uses", "object": "port 2", "confidence": 0.9,
    "source_turn": 4, "quote": "We decided to use port 2."}]}"#;

/// A server with one of everything.
async fn prepared(answer: &str) -> Prepared {
    let (stage, tell) = generations::stage().await;
    for step in [text("Lis"), done(answer)] {
        tell.send(step).unwrap();
    }
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}");
    for n in 0..3 {
        stage.say(&id, &format!("We decided to use port {n}.")).await;
    }
    let turn = stage.say(&id, "hello").await["id"].as_str().unwrap().to_string();
    stage.send(Method::PUT, &format!("{path}/pins/language"), &json!({"value": "pt"}), 200).await;
    stage.send(Method::PUT, &format!("{path}/scratchpads/language"), &json!({"value": "pt"}), 200).await;
    let started = json!({"kind": "tool.started", "body": {"tool_call_id": "call_7"}});
    stage.post(&format!("{path}/events"), &started, 201).await;
    let asset = stage.request(Method::POST, &format!("/api/v1/assets?conversation={id}")).body("bytes");
    let asset = crate::stage::answer(asset, 201).await["id"].as_str().unwrap().to_string();
    let seq =
        stage.post(&format!("{path}/contexts"), &json!({"token_budget": 5000}), 201).await["recorded_seq"]
            .to_string();
    let fact = json!({"subject": "Ana", "predicate": "prefers", "object": "trains", "source_turn": turn, "quote": "hello"});
    let fact = stage.post(&format!("{path}/facts"), &fact, 201).await["id"].as_str().unwrap().to_string();
    let export = stage.request(Method::GET, &format!("{path}/export")).send().await.unwrap();
    Prepared {
        export: export.text().await.unwrap(),
        variables: BTreeMap::from([
            ("conversation", id.clone()),
            ("turn", turn),
            ("asset", asset),
            ("name", "language".into()),
            ("approval", "appr-1".into()),
            ("call", "call_7".into()),
            ("fact", fact),
            ("seq", seq),
        ]),
        queries: BTreeMap::from([("conversation", id), ("name", "@last".into())]),
        stage,
    }
}

/// Sends every operation with its example, in the order of the description except for what must come first or
/// last; each must return one of its successes, with a body that fits the schema.
#[tokio::test(flavor = "multi_thread")]
async fn every_example_works_and_every_answer_fits() {
    let document = document();
    let mut asked = 0;
    for (method, path, operation) in operations(&document) {
        // Each on a server of its own, so that none depends on another.
        let answer = if path.ends_with("/facts/extract") { FACTS } else { "Lisbon" };
        let mut prepared = prepared(answer).await;
        let place = format!("{method} {path}");
        match path.as_str() {
            "/api/v1/turns/{turn}/chunks" | "/api/v1/turns/{turn}/commit" | "/api/v1/turns/{turn}/abort" => {
                let open = format!("/api/v1/conversations/{}/turns/open", prepared.variables["conversation"]);
                let turn = prepared.stage.post(&open, &json!({}), 201).await;
                prepared.variables.insert("turn", turn["id"].as_str().unwrap().into());
            }
            // Only here: a generation would wait for it.
            path if path.contains("{approval}") => {
                let ask = format!("/api/v1/conversations/{}/approvals", prepared.variables["conversation"]);
                prepared.stage.post(&ask, &json!({"approval_id": "appr-1"}), 201).await;
            }
            "/api/v1/conversations/{conversation}/projections/{seq}" => {
                let record =
                    format!("/api/v1/conversations/{}/projections", prepared.variables["conversation"]);
                let body = r#"{"policy":"raw"}"#;
                let made = prepared.stage.request(Method::POST, &record).body(body).send().await.unwrap();
                let location = made.headers()["location"].to_str().unwrap();
                prepared.variables.insert("seq", location.rsplit('/').next().unwrap().into());
            }
            "/api/v1/conversations/{conversation}/compact/revert" => {
                let compact = format!("/api/v1/conversations/{}/compact", prepared.variables["conversation"]);
                prepared.stage.post(&compact, &json!({"keep_last": 1, "extractive": true}), 200).await;
            }
            "/api/v1/keys/{key}" => {
                let made = prepared.stage.post("/api/v1/keys", &json!({"role": "reader"}), 201).await;
                prepared.variables.insert("key", made["id"].as_str().unwrap().into());
            }
            "/api/v1/generations/{generation}" | "/api/v1/generations/{generation}/stop" => {
                let generate =
                    format!("/api/v1/conversations/{}/generate", prepared.variables["conversation"]);
                let made = prepared.stage.post(&generate, &json!({}), 200).await;
                prepared.variables.insert("generation", made["id"].as_str().unwrap().into());
            }
            _ => {}
        }
        let (status, kind, body) = prepared.ask(&method, &path, operation).await;
        prepared.stage.stop().await;
        // A finished generation cannot be stopped: the one example that ends in a conflict, as described.
        let fine = (200..300).contains(&status) || place.ends_with("{generation}/stop") && status == 409;
        assert!(fine, "{place}: {status} {body}");
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{place}: {status} is not described");
        if kind.ends_with("json") {
            let schema = &response["content"][&kind]["schema"];
            assert!(schema.is_object(), "{place}: {kind} is not described");
            fits(&document, schema, &serde_json::from_str(&body).unwrap(), &place);
        }
        asked += 1;
    }
    assert!(asked > 45, "{asked}");
}

impl Prepared {
    async fn ask(&self, method: &str, path: &str, operation: &Value) -> (u16, String, String) {
        let mut path = path.to_string();
        for (name, value) in &self.variables {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let required = parameters.filter(|p| p["in"] == "query" && p["required"] == true);
        let query: Vec<String> = required
            .map(|p| p["name"].as_str().unwrap())
            .map(|name| format!("{name}={}", self.queries[name]))
            .collect();
        if !query.is_empty() {
            path += &format!("?{}", query.join("&"));
        }
        let mut request = self.stage.request(method.parse().unwrap(), &path);
        if let Some(content) = operation["requestBody"]["content"].as_object() {
            request = match content.get("application/json") {
                Some(json) if !path.ends_with("/import") => request
                    .header("content-type", "application/json")
                    .body(example(&document(), json).to_string()),
                _ => request.header("content-type", "application/jsonl").body(self.export.clone()),
            };
        }
        let response = request.send().await.unwrap();
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_string());
        (response.status().as_u16(), kind.unwrap_or_default(), response.text().await.unwrap())
    }
}

/// The example of a body: its own, or its schema's.
fn example(document: &Value, content: &Value) -> Value {
    if let Some(example) = content.get("example") {
        return example.clone();
    }
    let name =
        content["schema"]["$ref"].as_str().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    let example = document["components"]["schemas"][name].get("example").cloned();
    example.unwrap_or_else(|| panic!("{name} has no example"))
}

/// Validates an answer with its schema: the part of JSON Schema that descriptions of structs are made of. An
/// undescribed field is an error, too.
fn fits(document: &Value, schema: &Value, answer: &Value, place: &str) {
    if let Err(problem) = check(document, schema, answer, "answer") {
        panic!("{place}: {problem}\n{answer:#}");
    }
}

fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let fields = schema.as_object().ok_or_else(|| format!("{at}: {schema} is not a schema"))?;
    if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
        let target =
            document.pointer(name.trim_start_matches('#')).ok_or_else(|| format!("{name} is nowhere"))?;
        return check(document, target, value, at);
    }
    if let Some(choices) = fields.get("oneOf").or(fields.get("anyOf")).and_then(Value::as_array) {
        let tried: Vec<String> =
            choices.iter().filter_map(|choice| check(document, choice, value, at).err()).collect();
        return if tried.len() < choices.len() { Ok(()) } else { Err(tried.join("; or ")) };
    }
    if let Some(parts) = fields.get("allOf").and_then(Value::as_array) {
        // Each part describes some of the fields.
        let known: Vec<&Value> = parts.iter().map(|part| resolved(document, part)).collect();
        let object = value.as_object().ok_or_else(|| format!("{at} is not an object"))?;
        for (name, value) in object {
            let described = known.iter().find_map(|part| part["properties"].get(name));
            let described = described.ok_or_else(|| format!("{at}.{name} is not described"))?;
            check(document, described, value, &format!("{at}.{name}"))?;
        }
        return known.iter().try_for_each(|part| required(part, value, at));
    }
    if let Some(words) = fields.get("enum").and_then(Value::as_array) {
        return words
            .contains(value)
            .then_some(())
            .ok_or_else(|| format!("{at}: {value} is not in {words:?}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = match fields.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|allowed| allowed == kind),
        Some(allowed) => allowed == kind,
    };
    if !allowed {
        return Err(format!("{at} is {kind}, not {}", fields["type"]));
    }
    match value {
        Value::Array(list) => {
            let Some(items) = fields.get("items") else { return Ok(()) };
            list.iter()
                .enumerate()
                .try_for_each(|(n, item)| check(document, items, item, &format!("{at}[{n}]")))
        }
        Value::Object(object) => {
            required(schema, value, at)?;
            let Some(known) = fields.get("properties").and_then(Value::as_object) else {
                let Some(each) = fields.get("additionalProperties") else { return Ok(()) };
                return object
                    .iter()
                    .try_for_each(|(name, value)| check(document, each, value, &format!("{at}.{name}")));
            };
            object.iter().try_for_each(|(name, value)| match known.get(name) {
                Some(described) => check(document, described, value, &format!("{at}.{name}")),
                None => Err(format!("{at}.{name} is not described")),
            })
        }
        _ => Ok(()),
    }
}

fn required(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let missing = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|name| value.get(name.as_str().unwrap()).is_none());
    missing.map_or(Ok(()), |name| Err(format!("{at} has no {name}")))
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// Generated clients send what the description says: a file is bytes, and not an object.
#[test]
fn files_are_bytes_and_entries_have_a_tag() {
    let document = document();
    let binary = json!({"type": "string", "format": "binary"});
    for (method, path) in [("post", "/api/v1/import"), ("post", "/api/v1/assets")] {
        let content = document["paths"][path][method]["requestBody"]["content"].as_object().unwrap();
        assert_eq!(content.keys().next().unwrap(), "application/octet-stream", "{path}");
        assert!(content.values().all(|kind| kind["schema"] == binary), "{path}");
    }
    let schemas = &document["components"]["schemas"];
    let entry = &schemas["HistoryEntry"];
    assert_eq!(entry["discriminator"]["propertyName"], "entry", "{entry}");
    for word in ["turn", "event"] {
        let reference = entry["discriminator"]["mapping"][word].as_str().unwrap();
        let variant = document.pointer(reference.trim_start_matches('#')).unwrap();
        assert_eq!(variant["allOf"][1]["properties"]["entry"]["enum"], json!([word]), "{variant}");
        assert!(entry["oneOf"].as_array().unwrap().contains(&json!({"$ref": reference})));
    }
}

/// A limit in the description is one that the server enforces: a value just beyond it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn limits_in_the_description_hold() {
    let document = document();
    let mut prepared = prepared("Lisbon").await;
    prepared
        .variables
        .extend([("key", "key_1".to_string()), ("generation", "gen_01JD0000000000000000000000".into())]);
    let beyond = |schema: &Value| -> Vec<String> {
        let least = schema["minimum"].as_i64().map(|least| (i128::from(least) - 1).to_string());
        let most = schema["maximum"].as_i64().map(|most| (i128::from(most) + 1).to_string());
        least.into_iter().chain(most).collect()
    };
    let refused = |status: u16| status == 400 || status == 413;
    let mut tried = 0;
    for (method, path, operation) in operations(&document) {
        let mut address = path.clone();
        for (name, value) in &prepared.variables {
            address = address.replace(&format!("{{{name}}}"), value);
        }
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
            for value in beyond(&parameter["schema"]) {
                let name = parameter["name"].as_str().unwrap();
                let request =
                    prepared.stage.request(method.parse().unwrap(), &format!("{address}?{name}={value}"));
                let response = request.send().await.unwrap();
                assert!(refused(response.status().as_u16()), "{method} {path}?{name}={value}");
                tried += 1;
            }
        }
        let Some(body) = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str()
        else {
            continue;
        };
        let schema = document.pointer(body.trim_start_matches('#')).unwrap();
        for (name, field) in schema["properties"].as_object().unwrap() {
            for value in beyond(field) {
                // Other fields as in the example, so that only this one is wrong.
                let mut example =
                    example(&document, &operation["requestBody"]["content"]["application/json"]);
                example.as_object_mut().unwrap().shift_remove(name);
                let rest = example.to_string();
                let rest = rest.trim_start_matches('{').trim_end_matches('}');
                let comma = if rest.is_empty() { "" } else { "," };
                let text = format!("{{\"{name}\":{value}{comma}{rest}}}");
                let request = prepared.stage.request(method.parse().unwrap(), &address);
                let response =
                    request.header("content-type", "application/json").body(text).send().await.unwrap();
                assert!(refused(response.status().as_u16()), "{method} {path} {name}={value}");
                tried += 1;
            }
        }
    }
    assert!(tried > 50, "{tried}");
    prepared.stage.stop().await;
}
