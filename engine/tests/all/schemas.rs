//! What the engine answers with has the shape that its schema says: the description of the API and of the tools is made
//! from these schemas.

use crate::stage::{Short, memory, until};
use everturn_core::access::KeyRole;
use everturn_core::approval::ApprovalBody;
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::fact::FactsDropped;
use everturn_core::id::{ConversationId, GenerationId};
use everturn_core::json::Raw;
use everturn_core::redaction::RedactionMode;
use everturn_engine::model::Provider;
use everturn_engine::{
    CompactOptions, ContextOptions, Correction, Digest, Extraction, FactQuery, Format, GenerationState,
    GenerationStatus, HistoryQuery, ListQuery, NewFact, NewKey, NewStream, NewTurn, Order, RecallOptions,
    RecallRequest, Tenant,
};
use everturn_views::projection::ProjectedView;
use everturn_views::state::ToolBody;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// All types are described by one generator, as in a document: two types under one name would show.
struct Described {
    generator: SchemaGenerator,
}

impl Described {
    fn new() -> Described {
        let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
        Described { generator }
    }

    /// Checks one answer, and that a client can read it back without loss.
    #[track_caller]
    fn fits<T: Serialize + DeserializeOwned + JsonSchema>(&mut self, answer: &T) {
        let told = serde_json::to_string(answer).unwrap();
        let read: T = serde_json::from_str(&told).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), told);
        self.check::<T>(&told);
    }

    #[track_caller]
    fn check<T: JsonSchema>(&mut self, told: &str) {
        let schema = self.generator.subschema_for::<T>().to_value();
        let answer: Value = serde_json::from_str(told).unwrap();
        if let Err(problem) = check(self.generator.definitions(), &schema, &answer, "answer") {
            panic!(
                "{}: {problem}\n{answer:#}\n{:#}",
                T::schema_name(),
                T::json_schema(&mut self.generator).to_value()
            );
        }
    }
}

/// The part of JSON Schema that descriptions of types are made of. A field that is not described is a mistake, too.
fn check(known: &Map<String, Value>, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let mut fields = BTreeSet::new();
    matches(known, schema, value, at, &mut fields)?;
    match value.as_object().and_then(|object| object.keys().find(|name| !fields.contains(*name))) {
        Some(name) if is_closed(known, schema) => Err(format!("{at}.{name} is not described")),
        _ => Ok(()),
    }
}

/// Whether the schema names fields: then there are no others.
fn is_closed(known: &Map<String, Value>, schema: &Value) -> bool {
    let target = target(known, schema);
    let parts = ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|word| target.get(word)?.as_array());
    target.get("properties").is_some() || parts.flatten().any(|part| is_closed(known, part))
}

fn target<'a>(known: &'a Map<String, Value>, schema: &'a Value) -> &'a Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(name) => target(known, &known[name.trim_start_matches("#/$defs/")]),
        None => schema,
    }
}

/// Collects the described fields of the value; several parts of a schema may each describe some of them.
fn matches(
    known: &Map<String, Value>,
    schema: &Value,
    value: &Value,
    at: &str,
    fields: &mut BTreeSet<String>,
) -> Result<(), String> {
    // The tag of an enum stands beside the reference to the type that it tags.
    let mut beside = schema.clone();
    if schema.get("properties").is_some()
        && let Some(referred) = beside.as_object_mut().and_then(|schema| schema.remove("$ref"))
    {
        matches(known, &json!({ "$ref": referred }), value, at, fields)?;
        return matches(known, &beside, value, at, fields);
    }
    let schema = match target(known, schema) {
        Value::Bool(true) => return Ok(()),
        Value::Object(schema) => schema,
        other => return Err(format!("{at}: {other} is not a schema")),
    };
    let part = |word: &str| schema.get(word).and_then(Value::as_array);
    for (word, most) in [("anyOf", usize::MAX), ("oneOf", 1)] {
        let Some(choices) = part(word) else { continue };
        let (mut fit, mut tried) = (Vec::new(), Vec::new());
        for choice in choices {
            let mut own = BTreeSet::new();
            match matches(known, choice, value, at, &mut own) {
                Ok(()) => fit.push(own),
                Err(problem) => tried.push(problem),
            }
        }
        if fit.is_empty() || fit.len() > most {
            return Err(format!("{at} fits {} of {word}: {}", fit.len(), tried.join("; or ")));
        }
        fields.extend(fit.into_iter().flatten());
    }
    for each in part("allOf").into_iter().flatten() {
        matches(known, each, value, at, fields)?;
    }
    if part("enum").is_some_and(|words| !words.contains(value))
        || schema.get("const").is_some_and(|c| c != value)
    {
        return Err(format!("{at}: {value} is not one of {}", Value::Object(schema.clone())));
    }
    let kinds: &[&str] = match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(number) if number.is_i64() || number.is_u64() => &["integer", "number"],
        Value::Number(_) => &["number"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    };
    let allowed = match schema.get("type") {
        None => true,
        Some(Value::Array(several)) => several.iter().any(|kind| kinds.iter().any(|one| kind == one)),
        Some(kind) => kinds.iter().any(|one| kind == one),
    };
    if !allowed {
        return Err(format!("{at} is {}, not {}", kinds[0], schema["type"]));
    }
    match value {
        Value::String(text) => check_text(schema, text, at),
        Value::Array(list) => {
            let first = part("prefixItems").map(Vec::as_slice).unwrap_or_default();
            list.iter().enumerate().try_for_each(|(n, item)| match first.get(n).or(schema.get("items")) {
                Some(schema) => check(known, schema, item, &format!("{at}[{n}]")),
                None => Ok(()),
            })
        }
        Value::Object(object) => {
            let missing = part("required")
                .into_iter()
                .flatten()
                .find(|name| value.get(name.as_str().unwrap()).is_none());
            if let Some(name) = missing {
                return Err(format!("{at} has no {name}"));
            }
            let named = schema.get("properties").and_then(Value::as_object);
            object.iter().try_for_each(|(name, value)| {
                let place = format!("{at}.{name}");
                let described = named.and_then(|named| named.get(name));
                match described.or(schema.get("additionalProperties").filter(|other| **other != json!(false)))
                {
                    Some(described) => {
                        fields.insert(name.clone());
                        check(known, described, value, &place)
                    }
                    None => Ok(()),
                }
            })
        }
        _ => Ok(()),
    }
}

/// The formats and patterns that our types have.
fn check_text(schema: &Map<String, Value>, text: &str, at: &str) -> Result<(), String> {
    let fits =
        match (schema.get("format").and_then(Value::as_str), schema.get("pattern").and_then(Value::as_str)) {
            (Some("date-time"), _) => text.parse::<everturn_core::time::Timestamp>().is_ok(),
            (_, Some("^[0-9a-f]{64}$")) => {
                text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            }
            _ => true,
        };
    // An id has an example with its prefix.
    let example = schema
        .get("examples")
        .and_then(|list| list[0].as_str())
        .and_then(|example| example.split_once("_01"));
    let alike = example
        .is_none_or(|(prefix, _)| text.starts_with(prefix) || (prefix == "turn" && text.starts_with("evt_")));
    (fits && alike).then_some(()).ok_or_else(|| format!("{at}: {text:?} is not as {schema:?}"))
}

fn raw(text: &str) -> Raw {
    Raw::new(text.to_string()).unwrap()
}

/// Turns of every kind, a pin, an approval, a tool, an asset: a conversation with something in every field.
fn talk(scope: &Tenant, answers: &mut Described) -> ConversationId {
    let mut settings = Settings {
        title: Some(Some("Harbour".into())),
        owner: Some(Some("ana".into())),
        ttl: Some(Some(86_400)),
        system_prompt: Some(Some(SystemPrompt::new("Be brief.".into()))),
        ..Settings::default()
    };
    settings.metadata.insert("a".into(), raw("[1.0, null]"));
    settings.policy.insert("redaction".into(), raw("\"mask\""));
    let conversation = scope.begin_with(settings);
    answers.fits(&conversation);
    let id = conversation.id;
    for n in 0..8 {
        let turn = NewTurn::user(&format!("The harbour is in src/part_{n}.rs, it takes {n}17 ms.")).by("ana");
        answers.fits(&scope.try_say(id, turn).unwrap());
    }
    let detailed = NewTurn {
        tokens: Some(everturn_core::turn::Tokens { prompt: Some(3), completion: None }),
        model: Some("some-model".into()),
        adapter: Some("test".into()),
        occurred_at: Some(crate::stage::START),
        ..NewTurn::message(
            r#"{"role":"assistant","content":null,"name":"x","tool_calls":[{"id":"c1","type":"function","function":{"name":"run","arguments":"{}"}}]}"#,
        )
    };
    answers.fits(&scope.say(id, detailed));
    let spoken = scope.say(id, NewTurn::user("no"));
    answers.fits(&scope.conversation(id).supersede(spoken.id, NewTurn::user("yes")).wait().unwrap());
    answers.fits(&scope.turn(spoken.id).unwrap());
    let open = scope.conversation(id).open(NewStream::default()).wait().unwrap();
    answers.fits(&open);
    answers.fits(&scope.conversation(id).state().pin("limits", raw("{\"files\": 3.0}")).wait().unwrap());
    let approval =
        ApprovalBody { approval_id: "a1".into(), question: Some("May I?".into()), ..ApprovalBody::default() };
    scope.conversation(id).state().request_approval(approval, Some("gpt".into())).wait().unwrap();
    let tool = ToolBody { tool_call_id: "c2".into(), tool_name: Some("look".into()), summary: None };
    scope.conversation(id).state().tool_started(tool).wait().unwrap();
    id
}

#[test]
fn what_is_answered_is_what_its_schema_says() {
    let (store, scope) = memory();
    let mut answers = Described::new();
    let id = talk(&scope, &mut answers);
    answers.fits(&scope.conversation(id).state().read().unwrap());
    answers.fits(
        &scope
            .conversation(id)
            .compaction()
            .compact(CompactOptions { dry_run: true, ..CompactOptions::default() })
            .unwrap(),
    );
    answers.fits(&scope.conversation(id).compaction().compact(CompactOptions::default()).unwrap());
    answers.fits(&scope.conversation(id).state().read().unwrap());
    answers.fits(&scope.conversation(id).get().unwrap());
    answers.fits(&scope.list(ListQuery::default()).unwrap());
    answers.fits(&scope.conversation(id).compaction().summarize(1, 6, None).unwrap());
    facts(&scope, id, &mut answers);
    let ask = ContextOptions {
        digests: vec![Digest { title: "Board".into(), text: "3 open".into() }],
        projection: Some(everturn_engine::script::options(&json!({"policy": "clean_tool_repair"})).unwrap()),
        input: vec![raw(r#"{"role":"user","content":"And the harbour?"}"#)],
        recall: Some(RecallRequest { turns: 2, facts: 2, query: None }),
        ..ContextOptions::new(300)
    };
    let context = scope.conversation(id).contexts().build(&ask).unwrap();
    answers.fits(&context);
    answers.fits(&context.receipt);
    scope.conversation(id).contexts().record(&context).unwrap();
    answers.fits(&scope.conversation(id).contexts().build(&ContextOptions::new(20_000)).unwrap());
    let options = everturn_engine::script::options(&json!({"policy": "clean_tool_repair"})).unwrap();
    answers.check::<ProjectedView<'_>>(
        scope.conversation(id).contexts().project(&options).unwrap().result.get(),
    );
    until("everything is in the index", || store.behind().unwrap().events == 0);
    let found = scope.recall("harbour src/part_3.rs", &RecallOptions::default()).unwrap();
    assert!(!found.data.is_empty());
    answers.fits(&found);

    answers.fits(&scope.conversation(id).fork(5).wait().unwrap().get().unwrap());
    answers.fits(
        &scope.conversation(id).assets().add(Some("a.bin".into()), "image/png", b"bytes".to_vec()).unwrap(),
    );
    let turn = crate::stage::turns_of(scope.conversation(id).history(HistoryQuery::default()).unwrap().data)
        .remove(0);
    answers.fits(&scope.conversation(id).erase(turn.id, None, "asked for").wait().unwrap());
    answers.fits(&scope.turn(turn.id).unwrap());
    answers.fits(
        &scope
            .conversation(id)
            .history(HistoryQuery { include_events: true, limit: 1000, ..HistoryQuery::default() })
            .unwrap(),
    );
    answers.fits(&scope.conversation(id).log().verify(None).unwrap());
    answers.fits(&scope.conversation(id).log().verify(Some(scope.head(id))).unwrap());
    answers.fits(&scope.doctor(&mut |_| {}).unwrap());
    answers.fits(&scope.usage().unwrap());
    answers.fits(&scope.quota());
    let mut file = Vec::new();
    scope.conversation(id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
    answers.fits(&scope.import(file.as_slice(), &mut |_| {}).unwrap());
    answers.fits(&scope.erase_actor("ana", None, "asked for", &mut |_| {}).unwrap());
    answers.fits(&scope.conversation(id).delete("test").wait().unwrap());
    let new = NewKey::new("acme", KeyRole::Writer);
    answers.fits(&store.keys().create(new).unwrap().0);
    answers.fits(&[Order::Ascending, Order::Descending].to_vec());
    answers.fits(&[Format::Jsonl, Format::OpenaiChat].to_vec());
    answers.fits(&Provider::ALL.to_vec());
    assert!(Provider::ALL.iter().all(|provider| json!(provider) == provider.as_str()));
    answers.fits(&[RedactionMode::Off, RedactionMode::Mark, RedactionMode::Mask].to_vec());
    answers.fits(&SystemPrompt::new("Be brief.".into()));
    generations(id, &mut answers);
    no_name_is_taken_twice(&answers);
}

fn facts(scope: &Tenant, id: ConversationId, answers: &mut Described) {
    let new = |object: &str| NewFact {
        subject: "Ana".into(),
        predicate: "works at".into(),
        object: object.into(),
        by: Some("ana".into()),
        ..NewFact::default()
    };
    let turn = scope.say(id, NewTurn::user("I work at the harbour."));
    let quoted =
        NewFact { source_turn: Some(turn.id), quote: Some("at the harbour".into()), ..new("the harbour") };
    let fact = scope.conversation(id).facts().add(quoted).unwrap();
    answers.fits(&fact);
    let correction = Correction { object: Some("the lighthouse".into()), ..Correction::default() };
    answers.fits(&scope.conversation(id).facts().correct(fact.id, correction).unwrap());
    let other =
        scope.conversation(id).facts().add(NewFact { predicate: "likes".into(), ..new("boats") }).unwrap();
    answers.fits(
        &scope
            .conversation(id)
            .facts()
            .retract(other.id, Some("ana".into()), Some("no longer".into()))
            .unwrap(),
    );
    let every = FactQuery { include_superseded: true, include_retracted: true, ..FactQuery::default() };
    let facts = scope.conversation(id).facts().list(every).unwrap();
    answers.fits(&facts);
    let (facts, dropped) = (facts.data, FactsDropped::default());
    let extraction = json!({"model": "some-model", "turns": 1, "from_seq": 1, "to_seq": null, "facts": facts, "dropped": dropped});
    answers.fits(&serde_json::from_value::<Extraction>(extraction).unwrap());
}

fn generations(conversation: ConversationId, answers: &mut Described) {
    let failed = GenerationState::Failed { code: "model.busy".into(), text: "Ask again later.".into() };
    for state in [GenerationState::Running, GenerationState::Done, failed, GenerationState::Stopped] {
        let id = GenerationId::from_bytes([7; 16]);
        let mut status = serde_json::to_value(state).unwrap();
        status["id"] = json!(id);
        status["conversation"] = json!(conversation);
        answers.fits(&serde_json::from_value::<GenerationStatus>(status).unwrap());
    }
}

/// A generator tells types of one name apart by a number behind it.
fn no_name_is_taken_twice(answers: &Described) {
    let names: Vec<&String> = answers.generator.definitions().keys().collect();
    let twice = names.iter().filter(|name| name.ends_with(|last: char| last.is_ascii_digit()));
    assert_eq!(twice.count(), 0, "{names:?}");
}

/// The check itself, so that what passes it can be trusted.
#[test]
fn a_field_that_is_missing_unknown_or_of_another_type_is_seen() {
    let (_, scope) = memory();
    let head = json!(scope.conversation(scope.begin()).get().unwrap().head);
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let schema = generator.subschema_for::<everturn_core::chain::Head>().to_value();
    let wrong = |change: fn(&mut Map<String, Value>)| {
        let mut head = head.clone();
        change(head.as_object_mut().unwrap());
        check(generator.definitions(), &schema, &head, "head").unwrap_err()
    };
    assert_eq!(check(generator.definitions(), &schema, &head, "head"), Ok(()));
    assert!(wrong(|head| drop(head.remove("seq"))).contains("has no"));
    assert!(wrong(|head| drop(head.insert("more".into(), json!(1)))).contains("not described"));
    assert!(wrong(|head| drop(head.insert("seq".into(), json!("1")))).contains("is string"));
    assert!(wrong(|head| drop(head.insert("hash".into(), json!("XY")))).contains("is not as"));
}
