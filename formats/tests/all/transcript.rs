//! Transcript values: read, stored as `engine` would, and written again.

use crate::log::{Log, conversation_id};
use everturn_core::conversation::{Lifecycle, Settings, SystemPrompt};
use everturn_core::event::{Visibility, kind};
use everturn_core::json::Raw;
use everturn_core::turn::Role;
use everturn_formats::transcript::{BARE_EVENT, Item, NO_EVENT, ParsedTranscript, parse};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn messages(text: &str) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Messages {
        messages: Vec<Raw>,
    }
    let read: Messages = serde_json::from_str(text).unwrap();
    read.messages.iter().map(|message| message.get().to_string()).collect()
}

/// The value without what its events say of their turns.
fn bare(mut value: Value) -> Value {
    for event in value["events"].as_array_mut().unwrap() {
        let event = event.as_object_mut().unwrap();
        for name in ["id", "turn", "at", "message_index"] {
            event.remove(name);
        }
    }
    value
}

/// Reads, stores and writes a value, which must be equal, its messages byte for byte.
fn round_trip(text: &str) -> ParsedTranscript {
    let imported = parse(text).unwrap();
    let written = Log::imported(&imported).export();
    assert_eq!(value(&written), value(text));
    assert_eq!(messages(&written), messages(text));
    let again = parse(&written).unwrap();
    assert_eq!(value(&Log::imported(&again).export()), value(text), "and once more");
    imported
}

/// The example of the seed, its `[...]` filled in. The asset has a name only if one is given.
fn seed(name: Option<&str>) -> Value {
    let blocks = json!([
        {"type": "image", "asset_id": "asset_1", "visibility": "public"},
        {"type": "text", "text": "Review this screenshot", "visibility": "public"}
    ]);
    let mut asset = json!({
        "_type": "transcript_asset",
        "id": "asset_1",
        "kind": "image",
        "mime_type": "image/png",
        "visibility": "internal",
        "storage": {"path": ".harn/assets/asset_1.png"}
    });
    if let Some(name) = name {
        asset["name"] = name.into();
    }
    json!({
        "_type": "transcript",
        "version": 2,
        "id": "tr_...",
        "state": "active",
        "summary": "optional compacted summary",
        "metadata": {},
        "messages": [{"role": "user", "content": blocks}],
        "events": [{
            "kind": "message",
            "role": "user",
            "visibility": "public",
            "text": "<image:screenshot.png> Review this screenshot",
            "blocks": blocks
        }],
        "assets": [asset]
    })
}

/// The event that is kept with the first item, a turn.
fn first_event(imported: &ParsedTranscript) -> Option<&str> {
    let Item::Turn { event, .. } = &imported.items[0] else { panic!("{:?}", imported.items[0]) };
    event.as_ref().map(Raw::get)
}

#[test]
fn the_seeds_example_comes_back_equal() {
    let named = round_trip(&seed(Some("screenshot.png")).to_string());
    assert_eq!(first_event(&named), Some(BARE_EVENT), "with the asset's name, the event is what we derive");

    let unnamed = round_trip(&serde_json::to_string_pretty(&seed(None)).unwrap());
    let kept = first_event(&unnamed).unwrap();
    assert!(kept.contains("<image:screenshot.png>"), "without it, the text is kept as given");
    assert!(unnamed.settings.transcript.contains_key("version"));
}

#[test]
fn keys_stand_in_the_order_of_the_specification() {
    let text = Log::imported(&parse(&seed(None).to_string()).unwrap()).export();
    let value: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let keys: Vec<&str> = value.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        ["_type", "version", "id", "state", "summary", "metadata", "messages", "events", "assets"]
    );
}

#[test]
fn older_and_incomplete_values_are_brought_up_to_version_2() {
    for version in [r#""version":1,"#, ""] {
        let text = format!(
            r#"{{"_type":"transcript",{version}"id":"tr_demo","messages":[{{"role":"user","content":"hi"}},{{"role":"tool","content":"42"}}]}}"#
        );
        let imported = parse(&text).unwrap();
        assert_eq!(imported.settings.transcript["version"].get(), "1");
        let expected = json!({
            "_type": "transcript", "version": 2, "id": "tr_demo", "state": "active", "metadata": {},
            "messages": [{"role":"user","content":"hi"}, {"role":"tool","content":"42"}],
            "events": [
                {"kind":"message","role":"user","visibility":"public","text":"hi","blocks":[{"type":"text","text":"hi"}]},
                {"kind":"tool_result","role":"tool","visibility":"internal","text":"42","blocks":[{"type":"text","text":"42"}]}
            ],
            "assets": []
        });
        assert_eq!(bare(value(&Log::imported(&imported).export())), expected);
        round_trip(&expected.to_string());
    }
    let least = Log::imported(&parse(r#"{"_type":"transcript"}"#).unwrap()).export();
    assert_eq!(value(&least)["id"], json!("tr_000000000000000000000004K7"), "{least}");
}

#[test]
fn every_shape_of_message_gives_an_event() {
    let call = json!({"type":"function_call","call_id":"c","name":"ls","arguments":"{}"});
    let output = json!({"type":"function_call_output","call_id":"c","output":"ok"});
    let thought = json!([{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a"},{"type":"text","text":"b"}]);
    for (message, kind, role, visibility, text, blocks) in [
        (call.clone(), "message", "assistant", "public", "<tool_call:ls>", json!([call])),
        (output.clone(), "tool_result", "tool", "internal", "<tool_result>", json!([output])),
        (
            json!({"role":"developer","content":"Rules"}),
            "message",
            "developer",
            "public",
            "Rules",
            json!([{"type":"text","text":"Rules"}]),
        ),
        (json!({"role":"tool_result","content":[]}), "tool_result", "tool_result", "internal", "", json!([])),
        (
            json!({"role":"assistant","content":thought}),
            "message",
            "assistant",
            "public",
            "ab",
            thought.clone(),
        ),
        (
            json!({"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"grep","arguments":"{}"}}]}),
            "message",
            "assistant",
            "public",
            "<tool_call:grep>",
            json!([]),
        ),
        (json!({"role":"user"}), "message", "user", "public", "", json!([])),
    ] {
        let text_in = json!({"_type":"transcript","messages":[message]}).to_string();
        let written = bare(value(&Log::imported(&parse(&text_in).unwrap()).export()));
        let expected = json!([{"kind":kind,"role":role,"visibility":visibility,"text":text,"blocks":blocks}]);
        assert_eq!(written["events"], expected, "{message}");
    }
}

#[test]
fn unknown_fields_and_spellings_survive_at_every_level() {
    let text = r#" {"_type":"transcript","version":2,"id":"tr_01J9ZZZZZZZZZZZZZZZZZZZZZZ","state":"archived",
        "summary": null, "x_top": {"deep":[1.0, 18446744073709551615, null]}, "x_null": null, "title": "t",
        "metadata": {"none": null, "n": 1.0, "big": 9223372036854775807, "retention": "audit-only",
            "system_prompt": {"content": "Be kind.", "sha256": "not a hash", "bytes": 8, "x": 1}},
        "messages": [
            {"role":"user", "content": [ {"type":"text","text":"caf\u00e9","x":1.0} ], "x": 12345678901234567890123, "t": 1e2},
            {"role":"developer","content":"Rules"},
            {"type":"function_call","call_id":"c","name":"ls","arguments":"{}","x":-0.0},
            {"type":"function_call_output","call_id":"c","output":"ok"},
            {"role":"assistant","content":null,"tool_calls":[]}
        ],
        "events": [
            {"kind":"system_prompt","role":"system","visibility":"internal","text":"","blocks":[],"metadata":{"sha256":"…"},"x":null},
            {"kind":"message","role":"user","visibility":"private","text":"café","blocks":[{"type":"text","text":"caf\u00e9","x":1.0}],"x":{"y":1}},
            {"kind":"message","role":"developer","visibility":"public","text":"Rules","blocks":[{"type":"text","text":"Rules"}]},
            {"kind":"mask_generated"},
            {"kind":"turn.aborted","role":"assistant","visibility":"internal","id":7},
            {"kind":"turn.superseded"}, {"kind":"conversation.created","metadata":{"title":"old"}},
            {"kind":"conversation.state","state":"closed"}, {"kind":"import.finished"}, {"kind":"asset.added","id":"asset_9"},
            {"kind":"message","role":"king","text":"not one of our roles"}
        ],
        "assets": [{"id":"asset_1","x":[1.0]},{"_type":"transcript_asset","id":"ünï","kind":5,"sha256":"zz"}]
    } "#;
    let imported = round_trip(text);
    assert_eq!(imported.id.unwrap().to_string(), "conv_01J9ZZZZZZZZZZZZZZZZZZZZZZ");
    assert_eq!(imported.state, Lifecycle::Archived);
    assert_eq!(imported.settings.retention.unwrap().as_str(), "audit-only");
    assert_eq!(imported.settings.system_prompt, Some(Some(SystemPrompt::new("Be kind.".into()))));
    assert!(!imported.settings.metadata.contains_key("system_prompt"));
    let ids: Vec<&str> = imported.assets.iter().map(|asset| asset.id.as_str()).collect();
    assert_eq!(ids, ["asset_1", "ünï"]);
    let kinds: Vec<&str> = imported
        .items
        .iter()
        .filter_map(|item| if let Item::Event { kind, .. } = item { Some(kind.as_str()) } else { None })
        .collect();
    assert!(kinds.contains(&"imported.turn.aborted") && kinds.contains(&"mask_generated"), "{kinds:?}");
    assert!(matches!(&imported.items[1],
        Item::Turn { visibility: Visibility::Private, event: Some(raw), .. } if raw.get().contains(r#""x":{"y":1}"#)));
}

/// Regression: a field of a later version disabled all policies, and what was masked elsewhere was stored in clear.
#[test]
fn unknown_fields_beside_settings_are_kept_and_the_settings_hold() {
    let metadata = json!({
        "policy": {"redaction": "mask", "future_option": 1, "facts": null},
        "everturn": {"title": "A trip", "mood": "good"},
    });
    let value = json!({"_type":"transcript","version":2,"id":"t","state":"active","metadata":metadata,"messages":[],"events":[],"assets":[]});
    let imported = round_trip(&value.to_string());
    let policies: Vec<(&str, &str)> =
        imported.settings.policy.iter().map(|(name, raw)| (name.as_str(), raw.get())).collect();
    assert_eq!(policies, [("redaction", "\"mask\"")]);
    assert_eq!(imported.settings.title, Some(Some("A trip".into())));
}

#[test]
fn a_message_without_a_role_has_that_of_its_event() {
    let value = json!({"_type":"transcript","version":2,"id":"t","state":"active","metadata":{},
        "messages":[{"role":"user","content":"q"},{"content":"done"}],
        "events":[
            {"kind":"message","role":"user","visibility":"public","text":"q","blocks":[],"message_index":0},
            {"kind":"message","role":"assistant","visibility":"public","text":"done","blocks":[],"message_index":1}],
        "assets":[]});
    let imported = parse(&value.to_string()).unwrap();
    assert!(
        matches!(&imported.items[1], Item::Turn { role: Role::Assistant, message, .. }
            if message.get() == r#"{"role":"assistant","content":"done"}"#),
        "{:?}",
        imported.items
    );
}

#[test]
fn a_message_beyond_any_double_is_kept_and_paired() {
    let text = r#"{"_type":"transcript","version":2,"id":"t","state":"closed","metadata":{},"messages":[{"role":"user","content":"a","n":1e999}],"events":[{"kind":"message","role":"user","visibility":"public","text":"a","blocks":[{"type":"text","text":"a"}]}],"assets":[]}"#;
    let imported = parse(text).unwrap();
    let written = Log::imported(&imported).export();
    assert_eq!(messages(&written), [r#"{"role":"user","content":"a","n":1e999}"#]);
    assert!(written.contains(r#""events":[{"kind":"message","role":"user","visibility":"public","text":"a","blocks":[{"type":"text","text":"a"}]}]"#), "{written}");
}

#[test]
fn messages_find_their_events_where_either_side_has_more() {
    let message = |text: &str| json!({"role":"user","content":text});
    let event = |text: &str| json!({"kind":"message","role":"user","visibility":"public","text":text,"blocks":[{"type":"text","text":text}]});
    let shown = |messages: Vec<Value>, events: Vec<Value>| {
        let text = json!({"_type":"transcript","version":2,"id":"t","state":"active","metadata":{},"messages":messages,"events":events,"assets":[]});
        let imported = round_trip(&text.to_string());
        let show = |item: &Item| match item {
            Item::Turn { message, event, .. } => {
                let content = value(message.get())["content"].as_str().unwrap().to_string();
                match event {
                    Some(raw) if raw.get() == BARE_EVENT => content,
                    None => panic!("{content} has an event of ours"),
                    Some(raw) if raw.get() == NO_EVENT => format!("{content} alone"),
                    Some(raw) => format!("{content} with {}", value(raw.get())["text"].as_str().unwrap()),
                }
            }
            Item::Event { raw, .. } => format!("only {}", value(raw.get())["text"].as_str().unwrap()),
        };
        imported.items.iter().map(show).collect::<Vec<_>>().join(", ")
    };
    // A superseded turn has an event and no message; a trimmed event leaves a message alone.
    assert_eq!(shown(vec![message("b")], vec![event("a"), event("b")]), "only a, b");
    assert_eq!(shown(vec![message("a"), message("b")], vec![event("b")]), "a alone, b");
    assert_eq!(shown(vec![message("a"), message("b")], vec![]), "a alone, b alone");
    assert_eq!(shown(vec![], vec![event("a")]), "only a");
    assert_eq!(shown(vec![message("a")], vec![event("A")]), "a with A");
    assert_eq!(shown(vec![message("a"), message("a")], vec![event("a"), event("a")]), "a, a");
    assert_eq!(shown(vec![message("a"), message("b")], vec![event("b"), event("a")]), "only b, a, b alone");
    let tool = json!({"kind":"tool_result","role":"tool","text":"t"});
    assert_eq!(shown(vec![message("a")], vec![tool, event("a")]), "only t, a");
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let base = seed(None);
    let with = |pointer: &str, new: Value| {
        let mut changed = base.clone();
        match changed.pointer_mut(pointer) {
            Some(place) => *place = new,
            None => changed[pointer.trim_start_matches('/')] = new,
        }
        changed.to_string()
    };
    for (text, says) in [
        ("{".to_string(), "$: not JSON at byte 1"),
        ("[]".to_string(), "$: must be an object"),
        (r#"{"_type":"transcript","a":[{"b":1,"\u0062":2}]}"#.to_string(), "$: duplicate key"),
        ("{}".to_string(), "$._type: must be \"transcript\""),
        (with("/_type", json!("chat")), "$._type: must be \"transcript\""),
        (with("/version", json!(3)), "$.version: the value has version 3, this everturn reads up to 2"),
        (with("/version", json!("2")), "$.version: must be 1 or 2, not \"2\""),
        (with("/version", json!(0)), "$.version: must be 1 or 2, not 0"),
        (with("/version", json!(2.5)), "$.version: must be 1 or 2, not 2.5"),
        (with("/id", json!(7)), "$.id: must be a text"),
        (
            with("/state", json!("asleep")),
            "$.state: \"asleep\" is not one of active, archived, abandoned, closed",
        ),
        (with("/state", json!(null)), "$.state: must be a text"),
        (with("/summary", json!([])), "$.summary: must be a text, not []"),
        (with("/metadata", json!([])), "$.metadata: must be an object"),
        (
            with("/metadata", json!({"system_prompt": {"sha256": ""}})),
            "$.metadata.system_prompt: must be a text, or",
        ),
        (
            with("/metadata", json!({"retention": "never"})),
            "$.metadata.retention: \"never\" is not one of full",
        ),
        (with("/metadata", json!({"retention": 5})), "$.metadata.retention: must be a text"),
        // Regression: one wrong or unknown policy disabled all of them, redaction included.
        (
            with("/metadata", json!({"policy": {"redaction": "Mask"}})),
            "$.metadata.policy.redaction: policy.redaction \"Mask\" is not",
        ),
        (
            with("/metadata", json!({"policy": {"redaction": "mask", "budget": {"max_messages": -4}}})),
            "$.metadata.policy.budget: policy.budget.max_messages must be",
        ),
        (
            with("/metadata", json!({"everturn": {"title": "t", "ttl": -5}})),
            "$.metadata.everturn.ttl: must be a number of seconds above 0, not -5",
        ),
        (
            with("/metadata", json!({"everturn": {"participants": "ana"}})),
            "$.metadata.everturn.participants: must be a list of names",
        ),
        (
            with("/messages", json!([{"role":"user","content":"x","visibility":"Private"}])),
            "$.messages[0]: the visibility \"Private\" of a block is not public",
        ),
        (
            with(
                "/messages",
                json!([{"role":"user","content":[{"type":"text","text":"x","visibility":"Private"}]}]),
            ),
            "$.messages[0]: the visibility \"Private\" of a block is not public",
        ),
        (
            with("/messages", json!([{"role":"user","content":"x","audience":"ana"}])),
            "$.messages[0]: a block has no audience of its own",
        ),
        (
            with("/assets/0", json!({"id":"a","_type":"transcript_asset","data":"!!!","sha256":"00"})),
            "$.assets[0].sha256: must be the SHA-256",
        ),
        (with("/messages", json!({})), "$.messages: must be an array"),
        (with("/messages", json!([{"role":"user"}, 5])), "$.messages[1]: must be an object"),
        (with("/messages", json!([{"role":"king"}])), "$.messages[0].role: role \"king\" is not user"),
        (
            with("/messages", json!([{"role":"user"}, {"content":"x"}])),
            "$.messages[1].role: the message has no role",
        ),
        (with("/events", json!(null)), "$.events: must be an array"),
        (with("/events", json!(["x"])), "$.events[0]: must be an object"),
        (with("/events/0", json!({"role":"user"})), "$.events[0].kind: must be a text"),
        (with("/events/0/kind", json!("")), "$.events[0].kind: kind \"\" is empty"),
        (with("/events/0/role", json!(1)), "$.events[0].role: must be a text, not 1"),
        (
            with("/events/0/visibility", json!("all")),
            "$.events[0].visibility: visibility \"all\" is not public",
        ),
        (with("/assets", json!("x")), "$.assets: must be an array"),
        (with("/assets/0", json!([])), "$.assets[0]: must be an object"),
        (with("/assets/0/id", json!(1)), "$.assets[0].id: must be a text"),
        (with("/assets", json!([{"id":"a"},{"id":"a"}])), "$.assets[1].id: \"a\" is there twice"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.text().starts_with(says), "{error}\n  should begin with {says}");
    }
    // One level deeper in its new place than where it stood: still refused here, and not while storing.
    let deep = format!(r#"{{"_type":"transcript","x":{}{}}}"#, "[".repeat(99), "]".repeat(99));
    assert!(parse(&deep).unwrap_err().text().starts_with("$: JSON_DEPTH_MAX is 100"));
}

/// Everything that can happen to a conversation that was never imported.
fn lived() -> Log {
    let prompt = SystemPrompt::new("You are careful.".into());
    let mut log = Log::created(
        conversation_id(12),
        Settings {
            title: Some(Some("Lived".into())),
            system_prompt: Some(Some(prompt)),
            ..Settings::default()
        },
    );
    log.add(
        kind::ASSET_ADDED,
        r#"{"_type":"transcript_asset","id":"asset_1","kind":"image","name":"a.png"}"#,
    );
    let old = log.say(Role::User, r#"{"role":"user","content":[{"type":"image","asset_id":"asset_1"}]}"#);
    let new = log.say(Role::User, r#"{"role":"user", "content":"edited", "n":1.0}"#);
    log.about(kind::SUPERSEDED, old, &format!(r#"{{"by":"{new}"}}"#));
    let streamed = log.open(Role::Assistant);
    log.add("snapshot_created", "{\"event\": {\"kind\": \"mine\"}}");
    log.about(kind::COMMITTED, streamed, r#"{"message":{"role":"assistant","content":"streamed"}}"#);
    let aborted = log.open(Role::Assistant);
    log.about(kind::ABORTED, aborted, r#"{"message":{"role":"assistant","content":"abo"},"reason":"stop"}"#);
    let cut = log.open(Role::Assistant);
    log.about(kind::INTERRUPTED, cut, r#"{"message":{"role":"assistant","content":"cut of"}}"#);
    log.say(Role::Tool, r#"{"role":"tool","tool_call_id":"1","content":"secret"}"#);
    log.events.last_mut().unwrap().body = None;
    log.open(Role::Assistant);
    log
}

#[test]
fn a_conversation_is_shown_as_it_happened() {
    let text = lived().export();
    assert_eq!(
        messages(&text),
        [
            r#"{"role":"user", "content":"edited", "n":1.0}"#,
            r#"{"role":"assistant","content":"streamed"}"#,
            r#"{"role":"assistant","content":"cut of"}"#
        ]
    );
    let value = value(&text);
    assert_eq!(value["id"], json!("tr_0000000000000000000000000C"));
    assert_eq!(value["metadata"]["system_prompt"]["content"], json!("You are careful."));
    assert_eq!(value["metadata"]["system_prompt"]["bytes"], json!(16));
    assert_eq!(value["assets"][0]["name"], json!("a.png"));
    assert_eq!(value.get("summary"), None);
    let shown: Vec<String> = value["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| format!("{} {} {}", event["kind"], event["role"], event["text"]).replace('"', ""))
        .collect();
    assert_eq!(
        shown,
        [
            "conversation.created system ",
            "system_prompt system ",
            "asset.added system ",
            "message user <image:a.png>",
            "message user edited",
            "turn.superseded system ",
            "message assistant streamed",
            "snapshot_created system ",
            "message assistant abo",
            "turn.aborted system ",
            "message assistant cut of",
            "tool_result tool ",
            "message assistant ",
        ]
    );
    assert_eq!(
        bare(value.clone())["events"][7],
        json!({"kind":"snapshot_created","role":"system","visibility":"public","text":"","blocks":[],"metadata":{"event":{"kind":"mine"}}}),
        "a body that looks like an imported one is not taken for one"
    );
    assert_eq!(value["events"][4]["blocks"], json!([{"type":"text","text":"edited"}]));
    let links: Vec<&Value> =
        value["events"].as_array().unwrap().iter().map(|event| &event["message_index"]).collect();
    let none = &Value::Null;
    let [first, second, third] = [&json!(0), &json!(1), &json!(2)];
    assert_eq!(
        links,
        [none, none, none, none, first, none, second, none, none, none, third, none, none],
        "the edited, the streamed and the interrupted turn have messages"
    );
    let edited = &value["events"][4];
    assert_eq!(edited["turn"], value["events"][5]["metadata"]["by"]);
    assert_eq!(edited["id"].as_str().unwrap()[4..], edited["turn"].as_str().unwrap()[5..]);
    assert!(edited["at"].as_str().unwrap().starts_with("2026-01-01T00:00:0"));
    round_trip(&text);
}

/// The edit came last and is read first.
#[test]
fn a_message_that_was_edited_keeps_its_place_and_its_event_too() {
    let mut log = Log::created(conversation_id(14), Settings::default());
    let old = log.say(Role::User, r#"{"role":"user","content":"Q1"}"#);
    log.say(Role::Assistant, r#"{"role":"assistant","content":"A1"}"#);
    let new = log.say(Role::User, r#"{"role":"user","content":"Q1, better"}"#);
    log.about(kind::SUPERSEDED, old, &format!(r#"{{"by":"{new}"}}"#));
    let text = log.export();
    assert_eq!(value(&text)["events"][3]["message_index"], 0);
    let imported = round_trip(&text);
    let said: Vec<_> = imported
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Turn { message, about, .. } => Some((value(message.get())["content"].clone(), about.turn)),
            Item::Event { .. } => None,
        })
        .collect();
    assert_eq!(said[0], (json!("Q1, better"), Some(new)));
    assert_eq!(said[1].0, "A1");
    // Its link follows its message.
    let mut log = Log::imported(&imported);
    let third = log.say(Role::User, r#"{"role":"user","content":"better still"}"#);
    log.about(kind::SUPERSEDED, said[1].1.unwrap(), &format!(r#"{{"by":"{third}"}}"#));
    let value = value(&log.export());
    let links = |turn: String| {
        let events = value["events"].as_array().unwrap();
        events.iter().find(|event| event["turn"] == turn && event["kind"] == "message").unwrap()["message_index"].clone()
    };
    assert_eq!(links(new.to_string()), 0);
    assert_eq!(links(said[1].1.unwrap().to_string()), Value::Null);
    assert_eq!(links(third.to_string()), 1);
}

#[test]
fn a_summary_is_a_checkpoint() {
    let summary = |value: Value| parse(&value.to_string()).unwrap().checkpoint;
    let (checkpoint, through) = summary(seed(None)).unwrap();
    assert_eq!((checkpoint.handoff_md.as_str(), through), ("optional compacted summary", None));
    assert_eq!(summary(json!({"_type": "transcript", "summary": " "})), None);
    let body = json!({
        "checkpoint": {"goal": "tea", "user_constraints": [], "decisions": ["green"], "discoveries": [],
            "completed_work": [], "pending_work": [], "unresolved_questions": [], "critical_identifiers": [],
            "relevant_files": [], "handoff_md": "Tea."},
        "covers": {"from_seq": 2, "to_seq": 2, "turns": 1},
        "summarized": {"through": "turn_01J9ZZZZZZZZZZZZZZZZZZZZZZ", "through_seq": 2, "turns_before": 1},
        "summarizer": "extractive", "input_hash": "0".repeat(64), "tokens_before": 9, "tokens_after": 3,
    });
    let told = json!({"_type": "transcript", "summary": "Tea. And rain.", "events": [{"kind": "compaction", "metadata": body}]});
    let (checkpoint, through) = summary(told).unwrap();
    assert_eq!((checkpoint.goal.as_str(), checkpoint.handoff_md.as_str()), ("tea", "Tea. And rain."));
    assert_eq!(through.unwrap().to_string(), "turn_01J9ZZZZZZZZZZZZZZZZZZZZZZ");
}

#[test]
fn an_id_of_another_program_is_one_conversation() {
    let id = |id: &str| parse(&json!({"_type": "transcript", "id": id}).to_string()).unwrap().id;
    assert_eq!(id("chat-1"), id("chat-1"));
    assert_ne!(id("chat-1"), id("chat-2"));
    assert_eq!(id(""), None);
}

#[test]
fn what_happens_after_an_import_is_shown_and_the_import_is_not() {
    let text = seed(Some("screenshot.png")).to_string();
    let mut log = Log::imported(&parse(&text).unwrap());
    assert!(log.events.len() > 3, "there is bookkeeping to leave out");
    log.say(Role::Assistant, r#"{"role":"assistant","content":"Done"}"#);
    log.add(kind::UPDATED, r#"{"metadata":{"a":1}}"#);
    log.add(kind::STATE, r#"{"state":"archived"}"#);
    let mut expected = value(&text);
    expected["state"] = json!("archived");
    expected["metadata"] = json!({"a":1});
    let message = json!({"role":"assistant","content":"Done"});
    expected["messages"].as_array_mut().unwrap().push(message);
    expected["events"].as_array_mut().unwrap().extend([
        json!({"kind":"message","role":"assistant","visibility":"public","text":"Done","blocks":[{"type":"text","text":"Done"}]}),
        json!({"kind":"conversation.updated","role":"system","visibility":"public","text":"","blocks":[],"metadata":{"metadata":{"a":1}}}),
        json!({"kind":"conversation.state","role":"system","visibility":"public","text":"","blocks":[],"metadata":{"state":"archived"}}),
    ]);
    assert_eq!(bare(value(&log.export())), expected);
    round_trip(&expected.to_string());
}

#[test]
fn metadata_that_was_set_since_the_import_wins() {
    let text = r#"{"_type":"transcript","version":2,"metadata":{"a":null,"b":null,"system_prompt":"old"}}"#;
    let mut log = Log::imported(&parse(text).unwrap());
    assert_eq!(value(&log.export())["metadata"], json!({"a":null,"b":null,"system_prompt":"old"}));
    let prompt = Raw::of(&SystemPrompt::new("new".into())).unwrap();
    log.add(kind::UPDATED, &format!(r#"{{"metadata":{{"a":5}},"system_prompt":{}}}"#, prompt.get()));
    let metadata = &value(&log.export())["metadata"];
    assert_eq!(metadata["system_prompt"]["content"], json!("new"));
    assert_eq!((&metadata["a"], &metadata["b"]), (&json!(5), &Value::Null));
    log.add(kind::UPDATED, r#"{"system_prompt":null}"#);
    assert_eq!(value(&log.export())["metadata"], json!({"a":5,"b":null}));
}

#[test]
fn a_fork_of_an_import_has_an_id_of_its_own() {
    let parent = Log::imported(&parse(&seed(None).to_string()).unwrap());
    let child = Log::fork(&parent, conversation_id(13));
    let value = value(&child.export());
    assert_eq!(value["id"], json!("tr_0000000000000000000000000D"));
    assert_eq!(value["messages"], seed(None)["messages"]);
    assert_eq!(value["events"][1]["kind"], json!("conversation.forked"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        Just(json!(1.0)),
        "\\PC{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

/// Some unknown fields, none of which is one we know.
fn unknown() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("x_[a-z]{1,3}", any_json(), 0..3).prop_map(|map| map.into_iter().collect())
}

fn any_message() -> impl Strategy<Value = Value> {
    let block = prop_oneof![
        "\\PC{0,6}".prop_map(|text| json!({"type":"text","text":text})),
        (0..3u8).prop_map(|n| json!({"type":"image","asset_id":format!("asset_{n}")})),
        any_json(),
    ];
    let content = prop_oneof![
        "[ab]{0,2}".prop_map(Value::from),
        prop::collection::vec(block, 0..3).prop_map(Value::from),
        Just(Value::Null),
        any_json(),
    ];
    let role = prop::sample::select(vec!["user", "assistant", "system", "tool", "developer", "model"]);
    (role, content, unknown()).prop_map(|(role, content, mut fields)| {
        fields.insert("role".into(), role.into());
        fields.insert("content".into(), content);
        Value::Object(fields)
    })
}

/// What the events of a value are made of.
#[derive(Clone, Debug)]
enum Step {
    /// A message with the event that is derived from it.
    Derived(Value),
    /// A message whose event has more fields.
    Changed(Value, Map<String, Value>),
    /// A message without an event.
    Alone(Value),
    /// An event that looks like a message's and has none.
    Orphan(Value),
    /// Some other event.
    Other(String, Map<String, Value>),
}

fn any_step() -> impl Strategy<Value = Step> {
    let kinds = vec![
        "system_prompt",
        "mask_generated",
        "turn.aborted",
        "turn.committed",
        "turn.superseded",
        "conversation.created",
        "conversation.state",
        "import.finished",
        "asset.added",
        "turn.opened",
        "compaction",
    ];
    prop_oneof![
        4 => any_message().prop_map(Step::Derived),
        1 => (any_message(), unknown()).prop_map(|(message, fields)| Step::Changed(message, fields)),
        1 => any_message().prop_map(Step::Alone),
        1 => any_message().prop_map(Step::Orphan),
        2 => (prop::sample::select(kinds), unknown()).prop_map(|(kind, fields)| Step::Other(kind.into(), fields)),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    let prompt = prop::option::of(prop_oneof![
        "\\PC{0,9}".prop_map(|text| json!(SystemPrompt::new(text))),
        "\\PC{0,9}".prop_map(Value::from),
        Just(json!({"content":"x","more":1})),
        Just(Value::Null),
    ]);
    let assets =
        prop::collection::btree_map("asset_[0-2]", (unknown(), prop::option::of("[a-z.]{1,5}")), 0..3);
    (
        prop::collection::vec(any_step(), 0..8),
        assets,
        (unknown(), unknown(), prompt),
        prop::sample::select(vec!["active", "archived", "abandoned", "closed"]),
        prop::sample::select(vec![
            "tr_demo",
            "",
            "tr_01J9ZZZZZZZZZZZZZZZZZZZZZZ",
            "tr_01j9zzzzzzzzzzzzzzzzzzzzzz",
        ]),
    )
        .prop_map(|(steps, assets, (top, mut metadata, prompt), state, id)| {
            let assets: Vec<Value> = assets
                .into_iter()
                .map(|(id, (mut fields, name))| {
                    fields.insert("id".into(), id.into());
                    fields.extend(name.map(|name| ("name".to_string(), name.into())));
                    Value::Object(fields)
                })
                .collect();
            metadata.extend(prompt.map(|prompt| ("system_prompt".to_string(), prompt)));
            let (mut messages, mut events) = (Vec::new(), Vec::new());
            for step in steps {
                // What is derived is asked of the library; how it looks is pinned by the other tests.
                let derived = |message: &Value| {
                    let old = json!({"_type":"transcript","messages":[message],"assets":assets});
                    let written = Log::imported(&parse(&old.to_string()).unwrap()).export();
                    bare(value(&written))["events"][0].clone()
                };
                match step {
                    Step::Derived(message) => {
                        events.push(derived(&message));
                        messages.push(message);
                    }
                    Step::Changed(message, fields) => {
                        let mut event = derived(&message);
                        event.as_object_mut().unwrap().extend(fields);
                        events.push(event);
                        messages.push(message);
                    }
                    Step::Alone(message) => messages.push(message),
                    Step::Orphan(message) => events.push(derived(&message)),
                    Step::Other(kind, mut fields) => {
                        fields.insert("kind".into(), kind.into());
                        events.push(Value::Object(fields));
                    }
                }
            }
            let mut value = json!({"_type":"transcript","version":2,"id":id,"state":state,"metadata":metadata,
                "messages":messages,"events":events,"assets":assets});
            value.as_object_mut().unwrap().extend(top);
            value
        })
}

proptest! {
    #[test]
    fn any_value_comes_back_equal(value in any_value(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        round_trip(&text.unwrap());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
        prop_assert!(parse(&text).is_err());
    }

    /// One thing anywhere in a good value replaced by something else: read or refused, and never a panic.
    #[test]
    fn any_damage_is_read_or_refused_with_a_place(at in any::<prop::sample::Index>(), with in any_json()) {
        fn places(value: &Value, path: String, out: &mut Vec<String>) {
            out.push(path.clone());
            match value {
                Value::Array(items) => {
                    items.iter().enumerate().for_each(|(n, item)| places(item, format!("{path}/{n}"), out));
                }
                Value::Object(fields) => {
                    fields.iter().for_each(|(key, item)| places(item, format!("{path}/{key}"), out));
                }
                _ => {}
            }
        }
        let mut value = seed(None);
        let mut all = Vec::new();
        places(&value, String::new(), &mut all);
        *value.pointer_mut(&all[at.index(all.len())]).unwrap() = with;
        match parse(&value.to_string()) {
            Ok(imported) => { Log::imported(&imported).export(); }
            Err(error) => prop_assert!(error.text().starts_with('$'), "{}", error),
        }
    }
}
