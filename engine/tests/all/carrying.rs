//! The transcript value carries a conversation on: after export and import, elsewhere, every prompt is the same.

use crate::compacting::policy;
use crate::dice::{Dice, ToldOnFailure, rounds, seed};
use crate::stage::{Short, Stage, memory, quiet, refused, turns_of};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::approval::ApprovalBody;
use everturn_core::conversation::{Retention, Settings};
use everturn_core::event::Visibility;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::{Role, Turn};
use everturn_engine::model::Provider;
use everturn_engine::{
    Caller, Change, CompactOptions, ContextOptions, Everturn, Format, HistoryQuery, ListQuery,
    NewConversation, NewStream, NewTurn, Tenant,
};
use everturn_views::projection;
use everturn_views::state::ToolBody;
use serde_json::{Value, json};

const CONVERSATIONS: u64 = 16;
const STEPS: usize = 40;

/// A store in memory, and one in a file.
fn stores() -> (Stage, Vec<Everturn>) {
    let stage = Stage::new();
    let both = vec![Everturn::open_with("memory:", quiet()).unwrap(), stage.open_with(quiet())];
    (stage, both)
}

fn value(scope: &Tenant, id: ConversationId) -> Value {
    serde_json::from_str(&scope.conversation(id).transcript().unwrap()).unwrap()
}

/// Prompts of every kind, as bytes.
fn prompts(scope: &Tenant, id: ConversationId) -> Vec<String> {
    let with = |provider: Provider, token_budget: u64, participants: &[&str], projection: Option<&str>| {
        let participants = participants.iter().map(ToString::to_string).collect();
        let projection = projection.map(|policy| projection::ViewOptions::parse(&json!(policy)).unwrap());
        ContextOptions { provider, participants, projection, ..ContextOptions::new(token_budget) }
    };
    let options = [
        with(Provider::Neutral, 100_000, &[], None),
        with(Provider::Neutral, 700, &[], None),
        with(Provider::Anthropic, 100_000, &["ann"], None),
        with(Provider::OpenaiChat, 100_000, &["bot"], None),
        with(Provider::OpenaiChat, 100_000, &[], Some("clean_tool_repair")),
        ContextOptions { last_n: Some(3), ..with(Provider::Neutral, 100_000, &[], None) },
        ContextOptions { last_n: Some(8), ..with(Provider::OpenaiChat, 100_000, &[], None) },
        ContextOptions { last_n: Some(5), ..with(Provider::Anthropic, 900, &[], None) },
    ];
    // Other turns fit where the room is tight.
    let tight = (300..1500).step_by(400).map(|room| with(Provider::OpenaiChat, room, &[], None));
    let told = ["ann", "bot", "ben"].map(|actor| with(Provider::Neutral, 1100, &[actor], None));
    let options: Vec<ContextOptions> = options.into_iter().chain(tight).chain(told).collect();
    let prompt = |options| match scope.conversation(id).contexts().build(options) {
        Ok(context) => json!([context.system, context.messages]).to_string(),
        Err(error) => error.code().to_string(),
    };
    options.iter().map(prompt).collect()
}

/// The value is imported into an empty store of each kind, and reads the same there.
fn carried_on(scope: &Tenant, id: ConversationId) {
    let text = scope.conversation(id).transcript().unwrap();
    let ours: Value = serde_json::from_str(&text).unwrap();
    let expected = prompts(scope, id);
    let (_stage, stores) = stores();
    for (store, name) in stores.iter().zip(["other", scope.name().as_str()]) {
        let elsewhere = store.tenant(name).unwrap();
        let imported = elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
        assert_eq!((imported.conversation.id, imported.problems), (id, Vec::new()));
        assert_eq!(elsewhere.doctor(&mut |_| {}).unwrap().findings, []);
        for (there, here) in prompts(&elsewhere, id).iter().zip(&expected) {
            assert_eq!(there, here, "{}", scope.conversation(id).transcript().unwrap());
        }
        let mut again = value(&elsewhere, id);
        let mut last = ours["metadata"]["transcript_budget"]["last_action"].clone();
        // Places in another log.
        last.as_object_mut().into_iter().for_each(|last| drop((last.remove("trimmed"), last.remove("left"))));
        assert_eq!(again["metadata"]["transcript_budget"]["last_action"], last);
        again["metadata"]["transcript_budget"] = ours["metadata"]["transcript_budget"].clone();
        assert_eq!(again, ours, "and the value is equal");
        // Once more adds nothing, there as here.
        for scope in [&elsewhere, scope] {
            let head = scope.head(id);
            let again = scope.import(text.as_bytes(), &mut |_| {}).unwrap();
            assert_eq!((again.added, again.problems), (0, Vec::new()));
            assert_eq!(scope.head(id), head);
        }
    }
}

fn current(scope: &Tenant, id: ConversationId) -> Vec<Turn> {
    let query = HistoryQuery { limit: 1000, ..HistoryQuery::default() };
    turns_of(scope.conversation(id).history(query).unwrap().data)
}

struct Talk<'a> {
    scope: &'a Tenant,
    id: ConversationId,
    dice: Dice,
    count: usize,
}

impl Talk<'_> {
    fn words(&mut self) -> String {
        self.count += 1;
        let more =
            ["See src/parser.rs.", "Never use tabs.", "We decided on port 8080.", "Why is it slow?", ""];
        format!(
            "number {} about the {}. {}",
            self.count,
            self.dice.pick(&["harbour", "parser"]),
            self.dice.pick(&more)
        )
    }

    fn call(&mut self, id: &str) -> NewTurn {
        NewTurn::message(match self.dice.once_in(2) {
            true => json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "ls", "arguments": "{\"path\":\"src\"}"}}]}),
            false => json!({"role": "assistant", "content": [
                {"type": "text", "text": "I look."}, {"type": "tool_use", "id": id, "name": "ls", "input": {"path": "src"}}]}),
        }.to_string())
    }

    /// The message with other words, and the same calls or the same result.
    fn reworded(&mut self, message: &Value, words: &str) -> NewTurn {
        let mut message = message.clone();
        match message["content"].as_array().is_some() {
            true => message["content"][0] = json!({"type": "text", "text": words}),
            false => message["content"] = words.into(),
        }
        NewTurn::message(message.to_string())
    }

    /// What tools do, and what is done to it.
    fn tool_step(&mut self, words: &str) {
        let chat = self.scope.conversation(self.id);
        let id = format!("call_{}", self.count);
        let turns: Vec<Turn> =
            current(self.scope, self.id).into_iter().filter(|turn| turn.message.is_some()).collect();
        let speaks =
            |turn: &&Turn| turn.message.as_ref().is_some_and(|message| message.get().contains("tool"));
        let of_tools: Vec<Turn> = turns.iter().filter(speaks).cloned().collect();
        match self.dice.roll(6) {
            0 => drop(self.scope.say(self.id, NewTurn::tool_result(&format!("never_{id}"), words))),
            1 if !of_tools.is_empty() => {
                let turn = self.dice.pick(&of_tools).clone();
                let with = self.reworded(&turn.value().unwrap(), words);
                chat.supersede(turn.id, NewTurn { actor: turn.actor, ..with }).wait().unwrap();
            }
            2 if !of_tools.is_empty() => {
                drop(chat.erase(self.dice.pick(&of_tools).id, None, "asked for").wait());
            }
            3 => {
                let call = self.call(&id);
                self.scope.say(self.id, call);
                self.scope.say(self.id, NewTurn::user(words));
            }
            4 => {
                let tool = |summary: Option<&str>| ToolBody {
                    tool_call_id: id.clone(),
                    tool_name: Some("deploy".into()),
                    summary: summary.map(String::from),
                };
                chat.state().tool_started(tool(Some(words))).wait().unwrap();
                match self.dice.roll(3) {
                    0 => drop(chat.state().tool_finished(tool(None)).wait().unwrap()),
                    1 => {
                        let call = self.call(&id);
                        self.scope.say(self.id, call);
                    }
                    _ => {}
                }
            }
            _ => {
                let bytes = format!("{words} pixels ").repeat(200);
                let picture = json!({"role": "user", "content": [{"type": "image", "source":
                    {"type": "base64", "media_type": "image/png", "data": BASE64.encode(bytes)}}]});
                self.scope.say(self.id, NewTurn::message(picture.to_string()));
            }
        }
    }

    fn step(&mut self) {
        let chat = self.scope.conversation(self.id);
        let words = self.words();
        if self.dice.once_in(4) {
            return self.tool_step(&words);
        }
        match self.dice.roll(16) {
            0..=2 => {
                drop(self.scope.say(self.id, NewTurn::user(&words).by(*self.dice.pick(&["ann", "ben"]))))
            }
            3..=5 => {
                drop(self.scope.say(
                    self.id,
                    NewTurn { model: Some("m-1".into()), ..NewTurn::assistant(&words).by("bot") },
                ))
            }
            6 | 7 => {
                let id = format!("call_{}", self.count);
                let call = self.call(&id);
                self.scope.say(self.id, call);
                match self.dice.roll(4) {
                    0 => drop(chat.state().abandon_tool(&id, None, Some("gone")).unwrap()),
                    1 => {}
                    _ => drop(self.scope.say(self.id, NewTurn::tool_result(&id, "parser.rs lexer.rs"))),
                }
            }
            8 | 9 => {
                let turns: Vec<TurnId> = current(self.scope, self.id)
                    .iter()
                    .filter(|turn| turn.message.is_some() && turn.role != Role::Tool)
                    .map(|turn| turn.id)
                    .collect();
                if !turns.is_empty() {
                    let turn = chat.turn(*self.dice.pick(&turns)).unwrap();
                    let new =
                        NewTurn { actor: turn.actor, ..NewTurn::text(turn.role, &format!("edited {words}")) };
                    chat.supersede(turn.id, new).wait().unwrap();
                }
            }
            10 | 11 => {
                let keep_last = Some(self.dice.roll(6));
                // Nothing to cover, or a call that waits, is no matter here.
                let _ = chat.compaction().compact(CompactOptions { keep_last, ..CompactOptions::default() });
            }
            12 => {
                let name = *self.dice.pick(&["branch", "port"]);
                chat.state().pin(name, Raw::of(&words).unwrap()).wait().unwrap();
            }
            13 => drop(chat.state().set_scratchpad("plan", Raw::of(&words).unwrap()).wait().unwrap()),
            14 => {
                let turn = chat
                    .open(NewStream { actor: Some("bot".into()), ..NewStream::default() })
                    .wait()
                    .unwrap()
                    .id;
                chat.open_turn(turn).chunk(None, &words).unwrap();
                match self.dice.once_in(2) {
                    true => drop(chat.open_turn(turn).commit(NewTurn::default()).wait().unwrap()),
                    false => drop(chat.open_turn(turn).abort("enough", None).wait().unwrap()),
                }
            }
            _ => {
                let head = chat.get().unwrap().head.seq;
                if self.dice.once_in(2) {
                    self.id = chat.fork(head).wait().unwrap().id();
                } else {
                    let body = ApprovalBody {
                        approval_id: format!("ok-{}", self.count),
                        question: Some(words),
                        ..ApprovalBody::default()
                    };
                    chat.state().request_approval(body, Some("bot".into())).wait().unwrap();
                }
            }
        }
    }
}

#[test]
fn every_prompt_is_the_same_after_export_and_import() {
    let first = seed(0);
    let (_stage, stores) = stores();
    for n in first..first + rounds(CONVERSATIONS) {
        let _told = ToldOnFailure(n);
        let scope = stores[usize::from(n % 4 == 0)].tenant("acme").unwrap();
        let mut settings = Settings::default();
        if n % 2 == 0 {
            settings.metadata.insert("system_prompt".into(), Raw::of(&"Be brief.").unwrap());
        }
        if n % 3 == 0 {
            let budget = json!({"max_messages": 12, "recovery": {"trim": {"keep_last": 7}}});
            settings.policy.insert("budget".into(), Raw::of(&budget).unwrap());
        }
        let id =
            scope.create(NewConversation { settings, ..NewConversation::default() }).wait().unwrap().id();
        let mut talk = Talk { scope: &scope, id, dice: Dice::new(n), count: 0 };
        for _ in 0..STEPS {
            talk.step();
        }
        let id = talk.id;
        carried_on(&scope, id);
    }
}

/// Regression: a call that had lost its result to an edit took room in the prompt although it was not shown, and another actor
/// was told of a result that had lost its call.
#[test]
fn what_lost_its_other_half_by_an_edit_takes_no_room_and_is_not_told() {
    let (_store, scope) = memory();
    let words = (0..60).map(|n| format!("word{n} ")).collect::<String>();
    let call = |id: &str| {
        let thinking = json!({"type": "thinking", "thinking": words});
        let call = json!({"type": "tool_use", "id": id, "name": "ls", "input": {}});
        NewTurn::message(json!({"role": "assistant", "content": [thinking, call]}).to_string()).by("bot")
    };
    let lost = ["result", "call"].map(|what| {
        let id = scope.begin();
        scope.say(id, NewTurn::user(&words));
        scope.say(id, NewTurn::assistant(&words));
        scope.say(id, NewTurn::user("Q1"));
        let called = scope.say(id, call("c1"));
        let result = scope.say(id, NewTurn::tool_result("c1", &words));
        scope.say(id, NewTurn::user("Q2"));
        let edited = if what == "call" { called.id } else { result.id };
        scope.conversation(id).supersede(edited, NewTurn::user("X")).wait().unwrap();
        id
    });
    let (_other, elsewhere) = memory();
    for id in lost {
        let text = scope.conversation(id).transcript().unwrap();
        elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
        for token_budget in (60..900).step_by(20) {
            for participants in [vec![], vec!["ann".to_string()], vec!["bot".to_string()]] {
                let options = ContextOptions { participants, ..ContextOptions::new(token_budget) };
                let prompt = |scope: &Tenant| match scope.conversation(id).contexts().build(&options) {
                    Ok(context) => json!([context.system, context.messages]).to_string(),
                    Err(error) => error.code().to_string(),
                };
                assert_eq!(prompt(&elsewhere), prompt(&scope), "{token_budget} {:?}", options.participants);
                assert!(!prompt(&scope).contains("<tool_result"));
            }
        }
    }
}

#[test]
fn the_summary_stands_for_what_it_covers() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for n in 0..8 {
        scope.say(id, NewTurn::user(&format!("question {n}")).by("ann"));
    }
    let chat = scope.conversation(id);
    chat.compaction().compact(CompactOptions { keep_last: Some(3), ..CompactOptions::default() }).unwrap();
    let ours = value(&scope, id);
    assert_eq!(ours["messages"].as_array().unwrap().len(), 3, "what is covered is in the summary");
    let told = chat.state().read().unwrap().checkpoint.unwrap().handoff_md;
    assert_eq!(ours["summary"], told);
    let first = &ours["events"].as_array().unwrap().iter().find(|event| event["message_index"] == 0).unwrap();
    assert_eq!((&first["text"], &first["actor"]), (&json!("question 5"), &json!("ann")));
    let (_other, elsewhere) = memory();
    elsewhere.import(ours.to_string().as_bytes(), &mut |_| {}).unwrap();
    let state = elsewhere.conversation(id).state().read().unwrap();
    assert_eq!(state.checkpoint, chat.state().read().unwrap().checkpoint);
    // It can be compacted further, and reverted.
    elsewhere.say(id, NewTurn::user("question 8"));
    let compaction = elsewhere.conversation(id);
    compaction
        .compaction()
        .compact(CompactOptions { keep_last: Some(1), ..CompactOptions::default() })
        .unwrap();
    assert_eq!(value(&elsewhere, id)["messages"].as_array().unwrap().len(), 1);
    let goal = |scope: &Tenant| scope.conversation(id).state().read().unwrap().checkpoint.unwrap().goal;
    assert_eq!(goal(&elsewhere), goal(&scope), "the next checkpoint continues the imported one");
    carried_on(&elsewhere, id);
}

/// A value of another program: its summary, its edits of the same conversation, and what came since.
#[test]
fn a_value_with_another_id_is_one_conversation_that_grows() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let mut foreign = json!({"_type": "transcript", "version": 2, "id": "chat-7", "state": "active",
            "summary": "They planned a trip to Oslo.", "metadata": {},
            "messages": [{"role": "user", "content": "And the hotel?"}], "events": [], "assets": []});
        let import = |value: &Value| scope.import(value.to_string().as_bytes(), &mut |_| {}).unwrap();
        let id = import(&foreign).conversation.id;
        let context = scope.conversation(id).contexts().build(&ContextOptions::new(5000)).unwrap();
        assert!(json!(context.system).to_string().contains("trip to Oslo"), "{:?}", context.system);
        let again = import(&foreign);
        assert_eq!((again.conversation.id, again.added), (id, 0));
        foreign["messages"]
            .as_array_mut()
            .unwrap()
            .push(json!({"role": "assistant", "content": "Near the station."}));
        let grown = import(&foreign);
        assert_eq!((grown.conversation.id, grown.added, grown.turns), (id, 1, 1));
        assert_eq!(value(&scope, id)["messages"], foreign["messages"]);
        foreign["messages"][0]["content"] = json!("Something else?");
        let differs = import(&foreign);
        assert_eq!((differs.added, differs.problems.len()), (0, 1));
        assert!(differs.problems[0].contains("reads differently"), "{:?}", differs.problems);
    }
}

/// Regression: a value that had grown left pins, scratchpads and approvals as they were before, without a word.
#[test]
fn what_a_grown_value_changes_beside_turns_is_named() {
    let (_stage, stores) = stores();
    let (_source, source) = memory();
    let id = source.begin();
    let chat = source.conversation(id);
    let raw = |value: Value| Raw::of(&value).unwrap();
    source.say(id, NewTurn::user("one"));
    chat.state().pin("branch", raw(json!("main"))).wait().unwrap();
    chat.state().pin("key", raw(json!("api_key=sk-proj-a1b2c3d4e5f6g7h8i9j0k1l2m3n4"))).wait().unwrap();
    chat.log().append("scratchpad.set", None, raw(json!({"name": "plan", "value": 1}))).wait().unwrap();
    chat.log().append("approval.requested", None, raw(json!({"approval_id": "a1"}))).wait().unwrap();
    chat.log().append("approval.requested", None, raw(json!({"approval_id": "a2"}))).wait().unwrap();
    let first = chat.transcript().unwrap();
    chat.state().pin("branch", raw(json!("release"))).wait().unwrap();
    chat.log().append("scratchpad.clear", None, raw(json!({"name": "plan"}))).wait().unwrap();
    chat.log()
        .append("approval.resolved", None, raw(json!({"approval_id": "a1", "state": "approved"})))
        .wait()
        .unwrap();
    source.say(id, NewTurn::user("two"));
    let grown = chat.transcript().unwrap();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let import = |text: &str| {
            let imported = scope.import(text.as_bytes(), &mut |_| {}).unwrap();
            (imported.added, imported.problems)
        };
        assert_eq!(import(&first).1, Vec::<String>::new());
        assert_eq!(import(&first), (0, Vec::new()));
        let (added, problems) = import(&grown);
        assert_eq!((added, problems.len()), (1, 1), "{problems:?}");
        assert!(problems[0].ends_with("value: approval a1, pin branch, scratchpad plan"), "{problems:?}");
        let there = scope.conversation(id);
        assert_eq!(there.state().read().unwrap().pins["branch"].value.get(), "\"main\"");
        there.state().pin("branch", raw(json!("release"))).wait().unwrap();
        there.log().append("scratchpad.clear", None, raw(json!({"name": "plan"}))).wait().unwrap();
        there
            .log()
            .append("approval.resolved", None, raw(json!({"approval_id": "a1", "state": "approved"})))
            .wait()
            .unwrap();
        assert_eq!(import(&grown), (0, Vec::new()));
    }
}

/// A value lost how long its content may be kept: what was ephemeral here was kept for ever elsewhere.
#[test]
fn retention_and_the_other_settings_are_carried_on() {
    let (_stage, here) = stores();
    for store in here {
        let scope = store.tenant("acme").unwrap();
        let settings = Settings {
            title: Some(Some("A trip".into())),
            owner: Some(Some("ann".into())),
            ttl: Some(Some(3600)),
            retention: Some(Retention::Ephemeral),
            participants: vec!["ann".into(), "carl".into()],
            metadata: [("title".to_string(), Raw::of(&"of the caller").unwrap())].into(),
            ..Settings::default()
        };
        let id =
            scope.create(NewConversation { settings, ..NewConversation::default() }).wait().unwrap().id();
        scope.say(id, NewTurn::user("To Oslo?").by("ben"));
        carried_on(&scope, id);
        let ours = scope.conversation(id).get().unwrap();
        let text = scope.conversation(id).transcript().unwrap();
        let (_stage, stores) = stores();
        for store in stores {
            let elsewhere = store.tenant("other").unwrap();
            elsewhere.import(text.as_bytes(), &mut |_| {}).unwrap();
            let theirs = elsewhere.conversation(id).get().unwrap();
            assert_eq!((&theirs.title, &theirs.owner), (&ours.title, &ours.owner));
            assert_eq!((theirs.ttl, theirs.retention), (Some(3600), Retention::Ephemeral));
            assert_eq!(
                (&theirs.participants, &ours.participants[..]),
                (&ours.participants, &["ann", "carl", "ben"].map(String::from)[..])
            );
            assert_eq!(theirs.metadata["title"], ours.metadata["title"]);
            // What is set later is what the value says.
            let change = Change {
                settings: Settings {
                    retention: Some(Retention::Full),
                    title: Some(None),
                    ..Settings::default()
                },
                ..Change::default()
            };
            elsewhere.conversation(id).update(change).wait().unwrap();
            let metadata = &value(&elsewhere, id)["metadata"];
            assert_eq!(metadata["retention"], "full");
            assert_eq!(
                metadata["everturn"],
                json!({"owner": "ann", "ttl": 3600, "participants": ["ann", "carl", "ben"]})
            );
        }
    }
}

/// A program that reads a value and writes it again may use other white space, escapes and order of keys.
#[test]
fn a_value_in_other_bytes_is_the_same_value() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        scope.say(id, NewTurn::message(r#"{ "role": "user", "content": "caf\u00e9?",  "n": [1, 2] }"#));
        let mut value = value(&scope, id);
        for added in [0, 1, 0] {
            if added == 1 {
                let more = json!({"role": "assistant", "content": "Oui."});
                value["messages"].as_array_mut().unwrap().push(more);
            }
            let text = serde_json::to_string_pretty(&value).unwrap();
            let imported = scope.import(text.as_bytes(), &mut |_| {}).unwrap();
            assert_eq!((imported.added, imported.problems), (added, Vec::new()));
        }
    }
}

#[test]
fn results_of_a_call_that_was_edited_away_are_not_messages() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("list it"));
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]});
    let call = scope.say(id, NewTurn::message(call.to_string()));
    scope.say(id, NewTurn::tool_result("c1", "a b c"));
    scope.conversation(id).supersede(call.id, NewTurn::assistant("I will not.")).wait().unwrap();
    let said: Vec<Value> =
        value(&scope, id)["messages"].as_array().unwrap().iter().map(|m| m["content"].clone()).collect();
    assert_eq!(said, ["list it", "I will not."]);
    carried_on(&scope, id);
}

/// A budget that trims leaves what it trimmed out of the value.
#[test]
fn the_value_holds_the_budget() {
    let (_store, scope) = memory();
    let id = scope
        .begin_with(policy("budget", json!({"max_messages": 4, "recovery": {"trim": {"keep_last": 2}}})))
        .id;
    for n in 0..9 {
        scope.say(id, NewTurn::user(&format!("question {n}")));
    }
    let ours = value(&scope, id);
    assert!(ours["messages"].as_array().unwrap().len() <= 4);
    assert_eq!(ours["metadata"]["transcript_budget"]["policy"]["max_messages"], 4);
    assert_eq!(ours["metadata"]["policy"]["budget"]["max_messages"], 4, "the next store holds it as well");
    carried_on(&scope, id);
}

#[test]
fn a_recorded_projection_reads_as_in_the_log_of_others() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("hello"));
    let options = ContextOptions {
        projection: Some(projection::ViewOptions::parse(&json!("clean_tool_repair")).unwrap()),
        ..ContextOptions::new(5000)
    };
    let chat = scope.conversation(id);
    let context = chat.contexts().build(&options).unwrap();
    chat.contexts().record(&context).unwrap();
    let ours = value(&scope, id);
    let projected =
        ours["events"].as_array().unwrap().iter().find(|e| e["kind"] == "transcript.projection").unwrap();
    assert_eq!(projected["metadata"]["policy"], "clean_tool_repair");
    assert!(projected["metadata"]["prefix_hash"].as_str().unwrap().starts_with("sha256:"));
    assert_ne!(projected["text"], "");
    carried_on(&scope, id);
}

/// An id in a value is kept only where it is free: a value cannot take the place of another conversation's turn.
#[test]
fn a_value_cannot_take_the_id_of_a_turn_that_is_here() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let said = scope.say(id, NewTurn::user("mine"));
    let mut forged = value(&scope, id);
    forged["id"] = json!("someone-else");
    forged["messages"][0]["content"] = json!("forged");
    let imported = scope.import(forged.to_string().as_bytes(), &mut |_| {}).unwrap().conversation.id;
    assert_ne!(imported, id);
    let found = scope.turn(said.id).unwrap();
    assert_eq!((found.conversation, found.value().unwrap()["content"].clone()), (id, json!("mine")));
    assert_ne!(scope.turns(imported)[0].id, said.id);
}

/// Bad values are refused or read, and leave a store that is sound.
#[test]
fn a_value_that_repeats_ids_or_sets_too_much_does_no_harm() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let turn = "turn_01J9ZZZZZZZZZZZZZZZZZZZZZZ";
        let message = |text: &str| json!({"role": "user", "content": text});
        let event = |text: &str| {
            json!({"kind": "message", "role": "user", "visibility": "public", "turn": turn,
            "text": text, "blocks": [{"type": "text", "text": text}]})
        };
        let twice = json!({"_type": "transcript", "version": 2, "id": "twice", "state": "active", "metadata": {},
            "messages": [message("a"), message("b")], "events": [event("a"), event("b")], "assets": []});
        let id = scope.import(twice.to_string().as_bytes(), &mut |_| {}).unwrap().conversation.id;
        let turns = scope.turns(id);
        assert_eq!(turns.len(), 2);
        assert_ne!(turns[0].id, turns[1].id);
        assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
        let pin = |n: usize| json!({"kind": "state.pin", "metadata": {"name": format!("p{n}"), "value": n}});
        let pins = json!({"_type": "transcript", "version": 2, "id": "pins", "messages": [],
            "events": (0..101).map(pin).collect::<Vec<_>>()});
        refused(
            scope.import(pins.to_string().as_bytes(), &mut |_| {}).map(drop),
            "limit.exceeded",
            "PINS_MAX",
        );
    }
}

/// Private turns are in the value of those who may see them, and stay private where it is imported.
#[test]
fn private_stays_private_in_a_value() {
    let (_store, scope) = memory();
    let seen_by = |scope: &Tenant, actor: &str| {
        scope.called_by(Caller::default().acting_as(vec![actor.into()]).unwrap())
    };
    let id = scope.begin();
    scope.say(id, NewTurn::user("aloud").by("ann"));
    scope.say(id, NewTurn { audience: vec!["ben".into()], ..NewTurn::user("psst canary").by("ann") });
    let ours = value(&scope, id);
    let theirs = seen_by(&scope, "carl").conversation(id).transcript().unwrap();
    assert!(!theirs.contains("canary"), "{theirs}");
    let (_other, elsewhere) = memory();
    elsewhere.import(ours.to_string().as_bytes(), &mut |_| {}).unwrap();
    let carl = seen_by(&elsewhere, "carl");
    assert!(!carl.conversation(id).transcript().unwrap().contains("canary"));
    let ben = seen_by(&elsewhere, "ben");
    assert!(ben.conversation(id).transcript().unwrap().contains("canary"));
}

fn picture(mark: &str) -> Value {
    let data = BASE64.encode(format!("{mark} ").repeat(2000));
    json!({"role": "user", "content": [{"type": "image", "source":
        {"type": "base64", "media_type": "image/png", "data": data}}, {"type": "text", "text": "look"}]})
}

/// A value had the name of a picture only: elsewhere its prompts had a placeholder, and the store seemed damaged.
#[test]
fn a_picture_is_carried_with_its_bytes() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        scope.say(id, NewTurn::message(picture("covered").to_string()));
        scope.say(id, NewTurn::assistant("A cat."));
        let gone = scope.say(id, NewTurn::message(picture("erased").to_string()));
        let shown = scope.say(id, NewTurn::message(picture("shown").to_string()));
        scope.say(id, NewTurn::assistant("A dog."));
        let chat = scope.conversation(id);
        let later = chat.assets().add(Some("later.png".into()), "image/png", vec![7; 9000]).unwrap();
        chat.erase(gone.id, None, "asked for").wait().unwrap();
        let keep_last = Some(3);
        chat.compaction().compact(CompactOptions { keep_last, ..CompactOptions::default() }).unwrap();
        let value = value(&scope, id);
        let data = |asset: &Value| asset["data"].as_str().map(|data| BASE64.decode(data).unwrap());
        let carried: Vec<Option<Vec<u8>>> = value["assets"].as_array().unwrap().iter().map(data).collect();
        let bytes = |mark: &str| Some(format!("{mark} ").repeat(2000).into_bytes());
        assert_eq!(carried, [None, bytes("shown"), Some(vec![7; 9000])], "the erased one is not there");
        assert_eq!(value["assets"][0]["sha256"], Value::Null, "nothing is missing");
        carried_on(&scope, id);

        let (_other, elsewhere) = memory();
        elsewhere.import(value.to_string().as_bytes(), &mut |_| {}).unwrap();
        let prompt = prompts(&elsewhere, id).concat();
        assert!(prompt.contains(&BASE64.encode(bytes("shown").unwrap())), "{prompt}");
        // What was uploaded can be shown there, and a picture goes with its turn.
        let theirs = elsewhere.conversation(id);
        let asset = theirs.assets().get(&later.id).unwrap();
        assert_eq!(elsewhere.assets().bytes(&asset).unwrap(), vec![7; 9000]);
        theirs.erase(shown.id, None, "asked for").wait().unwrap();
        assert_eq!(theirs.assets().list().unwrap().len(), 2);
        assert!(!theirs.transcript().unwrap().contains(&BASE64.encode(bytes("shown").unwrap())));
        assert_eq!(elsewhere.doctor(&mut |_| {}).unwrap().findings, []);
    }
}

#[test]
fn a_picture_that_is_new_in_a_value_comes_with_its_turn() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("before"));
    let (_other, elsewhere) = memory();
    elsewhere.import(value(&scope, id).to_string().as_bytes(), &mut |_| {}).unwrap();
    scope.say(id, NewTurn::message(picture("new").to_string()));
    let imported = elsewhere.import(value(&scope, id).to_string().as_bytes(), &mut |_| {}).unwrap();
    assert_eq!((imported.added, imported.turns, imported.problems), (2, 1, Vec::new()));
    assert_eq!(prompts(&elsewhere, id), prompts(&scope, id));
    assert_eq!(elsewhere.doctor(&mut |_| {}).unwrap().findings, []);
}

#[test]
fn bytes_that_are_not_those_of_the_descriptor_are_refused() {
    let (_stage, stores) = stores();
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::message(picture("mine").to_string()));
    let ours = value(&scope, id);
    for store in stores {
        let elsewhere = store.tenant("acme").unwrap();
        let import = |field: &str, with: Value| {
            let mut forged = ours.clone();
            forged["assets"][0][field] = with;
            elsewhere.import(forged.to_string().as_bytes(), &mut |_| {}).map(drop)
        };
        let other = BASE64.encode("other");
        let says_otherwise = "$.assets[0].data: has other bytes than the descriptor says";
        refused(import("data", json!(other)), "transcript.malformed", says_otherwise);
        refused(import("bytes", json!(3)), "transcript.malformed", says_otherwise);
        refused(
            import("pieces", json!([ours["assets"][0]["sha256"]])),
            "transcript.malformed",
            says_otherwise,
        );
        for data in [json!("no base64!"), json!(7)] {
            refused(import("data", data), "transcript.malformed", "$.assets[0].data: must be the bytes");
        }
        assert_eq!(elsewhere.list(ListQuery::default()).unwrap().data.len(), 0, "nothing is left of it");
        // Without a hash it is another program's field, and stays.
        import("sha256", Value::Null).unwrap();
        assert_eq!(value(&elsewhere, id)["assets"][0]["data"], ours["assets"][0]["data"]);
    }
}

/// A picture and a call of a private turn are for its readers alone, here and where the value is imported.
#[test]
fn what_private_turns_bring_stays_private_in_a_value() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let seen_by = |scope: &Tenant, actor: &str| {
            scope.called_by(Caller::default().acting_as(vec![actor.into()]).unwrap())
        };
        let budget = json!({"max_messages": 6, "recovery": {"trim": {"keep_last": 5}}});
        let id = scope.begin_with(policy("budget", budget)).id;
        let private = |message: Value| NewTurn {
            audience: vec!["ben".into()],
            ..NewTurn::message(message.to_string()).by("ann")
        };
        let call = |id: &str| {
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": id,
            "name": "canary_tool", "input": {}}]})
        };
        scope.say(id, private(call("canary_waits")));
        for n in 0..5 {
            scope.say(id, NewTurn::user(&format!("question {n}")));
        }
        scope.say(id, private(call("canary_erased")));
        let result =
            scope.say(id, private(json!({"role": "tool", "tool_call_id": "canary_erased", "content": "1"})));
        scope.conversation(id).erase(result.id, None, "asked for").wait().unwrap();
        let mut image = picture("canary");
        image["content"][0]["source"]["name"] = "canary.png".into();
        scope.say(id, private(image));
        // An upload for ann alone, which somebody else's turn refers to.
        let upload = seen_by(&scope, "ann").conversation(id);
        let upload = upload.assets().add_private(Some("canary.pdf".into()), "application/pdf", vec![9; 9000]);
        let refers = json!({"role": "user", "content": [{"type": "file", "asset_id": upload.unwrap().id}]});
        scope.say(id, NewTurn::message(refers.to_string()).by("carl"));
        let ours = value(&scope, id);
        assert!(ours["events"].as_array().unwrap().iter().any(|event| event["kind"] == "tool.started"));
        let (_other, elsewhere) = memory();
        elsewhere.import(ours.to_string().as_bytes(), &mut |_| {}).unwrap();
        let data = BASE64.encode("canary ".repeat(2000));
        for scope in [&scope, &elsewhere] {
            let carl = seen_by(scope, "carl").conversation(id);
            let text = carl.transcript().unwrap();
            assert!(!text.contains("canary") && !text.contains(&data), "{text}");
            let events = carl.log().read(0, 1000).unwrap();
            assert!(!format!("{events:?}").contains("canary"), "{events:?}");
            assert_eq!(carl.state().read().unwrap().pending_tools, []);
            let ben = seen_by(scope, "ben").conversation(id);
            assert!(ben.transcript().unwrap().contains(&data));
            assert_eq!(ben.state().read().unwrap().pending_tools.len(), 1);
        }
        carried_on(&scope, id);
    }
}

/// Which calls wait is the same elsewhere, whatever became of their turns and results.
#[test]
fn the_same_calls_wait_elsewhere_in_the_same_order() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let waiting = |scope: &Tenant, id: ConversationId| -> Vec<(Option<String>, String)> {
            let tools = scope.conversation(id).state().read().unwrap().pending_tools;
            tools.into_iter().map(|tool| (tool.tool_call_id, tool.summary)).collect()
        };
        let call = |id: &str| {
            json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "deploy", "arguments": format!("{{\"to\":\"{id}\"}}")}}]})
        };
        let say = |id, message: Value| scope.say(id, NewTurn::message(message.to_string()));
        let elsewhere = |id: ConversationId| {
            let (_other, elsewhere) = memory();
            elsewhere.import(value(&scope, id).to_string().as_bytes(), &mut |_| {}).unwrap();
            carried_on(&scope, id);
            waiting(&elsewhere, id)
        };
        let as_called = |id: &str| (Some(id.to_string()), format!("{{\"to\":\"{id}\"}}"));

        // Trimmed by a budget, announced as it started, and one of them edited.
        let budget = json!({"max_messages": 6, "recovery": {"trim": {"keep_last": 4}}});
        let id = scope.begin_with(policy("budget", budget)).id;
        let first = say(id, call("k1"));
        say(id, call("k2"));
        for started in ["k1", "k9", "k2"] {
            let tool =
                ToolBody { tool_call_id: started.into(), tool_name: None, summary: Some("runs".into()) };
            scope.conversation(id).state().tool_started(tool).wait().unwrap();
        }
        scope.conversation(id).supersede(first.id, NewTurn::message(call("k1").to_string())).wait().unwrap();
        for n in 0..7 {
            scope.say(id, NewTurn::user(&format!("question {n}")));
        }
        say(id, call("k3"));
        let expected =
            [(Some("k9".into()), "runs".into()), as_called("k1"), as_called("k2"), as_called("k3")];
        assert_eq!(waiting(&scope, id), expected);
        assert_eq!(elsewhere(id), expected);

        // The first one is edited, and stays the first.
        let id = scope.begin();
        let first = say(id, call("k1"));
        say(id, call("k2"));
        scope.conversation(id).supersede(first.id, NewTurn::message(call("k1").to_string())).wait().unwrap();
        assert_eq!(waiting(&scope, id), [as_called("k1"), as_called("k2")]);
        assert_eq!(elsewhere(id), [as_called("k1"), as_called("k2")]);

        // Its result was erased; then the call is edited; then another one is finished without a result.
        let id = scope.begin();
        let called = say(id, call("k1"));
        let result = scope.say(id, NewTurn::tool_result("k1", "secret"));
        scope.conversation(id).erase(result.id, None, "asked for").wait().unwrap();
        scope.say(id, NewTurn::user("and?"));
        assert_eq!((waiting(&scope, id), elsewhere(id)), (vec![], vec![]));
        let edited = NewTurn::message(call("k1").to_string());
        scope.conversation(id).supersede(called.id, edited).wait().unwrap();
        let finished = ToolBody { tool_call_id: "k2".into(), tool_name: None, summary: None };
        let second = say(id, call("k2"));
        scope.conversation(id).state().tool_finished(finished).wait().unwrap();
        let edited = NewTurn::message(call("k2").to_string());
        scope.conversation(id).supersede(second.id, edited).wait().unwrap();
        assert_eq!((waiting(&scope, id), elsewhere(id)), (vec![], vec![]));
    }
}

/// `last_n` counts turns that are in the prompt, not results whose call is gone.
#[test]
fn halves_of_tool_calls_are_no_turns_and_take_no_room() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for n in 0..4 {
        scope.say(id, NewTurn::user(&format!("question {n}")));
    }
    for n in 0..3 {
        scope.say(id, NewTurn::tool_result(&format!("never_{n}"), &"many words ".repeat(100)));
    }
    scope.say(id, NewTurn::user("question 4"));
    for (budget, last_n) in [(5000, Some(3)), (200, None)] {
        let options = ContextOptions { last_n, ..ContextOptions::new(budget) };
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        let said = last_n.unwrap_or(5);
        assert_eq!(context.messages.len(), said, "{:?}", context.messages);
        let orphans = context.left_out.iter().filter(|left| left.reason == "tool result without its call");
        assert_eq!(orphans.count(), 3);
        let receipt = scope.conversation(id).contexts().record(&context).unwrap();
        let again = scope.conversation(id).contexts().replay_at(receipt.seq).unwrap();
        assert_eq!(again.prefix_hash, context.prefix_hash);
    }
}

/// A revert leaves an earlier checkpoint in force; its lists used to stay behind.
#[test]
fn a_checkpoint_that_a_revert_put_in_force_is_carried_whole() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let chat = scope.conversation(id);
    for n in 0..6 {
        scope.say(id, NewTurn::user(&format!("Step {n}: you must never touch the database number {n}.")));
        scope.say(id, NewTurn::assistant(&format!("I found that redis answers in 400 ms on host-{n}.")));
    }
    for keep_last in [8, 2] {
        let options = CompactOptions { keep_last: Some(keep_last), ..CompactOptions::default() };
        chat.compaction().compact(options).unwrap();
    }
    chat.compaction().revert().unwrap();
    assert!(prompts(&scope, id)[0].contains("never touch the database number 0"));
    carried_on(&scope, id);
}

/// The budget of a conversation used to refuse the conversation's own value.
#[test]
fn a_value_is_not_refused_by_its_own_budget() {
    for limits in [json!({"max_events": 12}), json!({"max_messages": 6}), json!({"max_bytes": 700})] {
        let (_store, scope) = memory();
        let mut budget = limits;
        budget["recovery"] = "reject".into();
        let id = scope.begin_with(policy("budget", budget)).id;
        while scope.try_say(id, NewTurn::user("about the harbour and the trains to it")).is_ok() {}
        carried_on(&scope, id);
        let (_other, elsewhere) = memory();
        elsewhere.import(scope.conversation(id).transcript().unwrap().as_bytes(), &mut |_| {}).unwrap();
        refused(elsewhere.try_say(id, NewTurn::user("one more about the harbour")), "budget.exceeded", "");
    }
}

/// Regression: a streamed turn that ended with a content and no role was in no prompt, and its value could not be imported.
#[test]
fn a_streamed_turn_that_ends_without_a_role_is_carried() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let chat = scope.conversation(id);
    let blocks = json!({"content": [{"type": "text", "text": "in blocks"}]});
    let last = [(Role::User, json!({"content": "asked"})), (Role::Assistant, json!({"content": "done"}))];
    for (role, last) in last.into_iter().chain([(Role::User, blocks.clone()), (Role::Assistant, blocks)]) {
        let turn = chat.open(NewStream { role: Some(role), ..NewStream::default() }).wait().unwrap().id;
        chat.open_turn(turn).chunk(None, "draft").unwrap();
        chat.open_turn(turn).commit(NewTurn::message(last.to_string())).wait().unwrap();
    }
    carried_on(&scope, id);
    let prompt = &prompts(&scope, id)[0];
    assert!(prompt.contains("asked") && prompt.contains("done") && prompt.contains("in blocks"), "{prompt}");
    let raw = projection::ViewOptions::parse(&json!("raw")).unwrap();
    let projected: Value = chat.contexts().project(&raw).unwrap().result.read().unwrap();
    let roles: Vec<&str> = projected["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|message| message["role"].as_str())
        .collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
}

/// A call with a private result and a public one reads with the second, also after an edit of something else.
#[test]
fn a_public_result_beside_a_private_one_is_carried() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let question = scope.say(id, NewTurn::user("Q"));
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "k1", "type": "function", "function": {"name": "run", "arguments": "{}"}}]});
    scope.say(id, NewTurn::message(call.to_string()));
    let result = |text: &str| json!({"role": "tool", "tool_call_id": "k1", "content": text}).to_string();
    scope.say(
        id,
        NewTurn { visibility: Some(Visibility::Private), ..NewTurn::message(result("for ana")).by("ana") },
    );
    scope.say(id, NewTurn::message(result("for everyone")));
    scope.say(id, NewTurn::user("thanks"));
    scope.conversation(id).supersede(question.id, NewTurn::user("Q edited")).wait().unwrap();
    assert!(value(&scope, id)["messages"].to_string().contains("for everyone"));
    let (_other, elsewhere) = memory();
    elsewhere.import(scope.conversation(id).transcript().unwrap().as_bytes(), &mut |_| {}).unwrap();
    let everyone = |scope: &Tenant| {
        let context = scope.conversation(id).contexts().build(&ContextOptions::new(10_000)).unwrap();
        json!(context.messages).to_string()
    };
    assert!(everyone(&scope).contains("for everyone"));
    assert_eq!(everyone(&elsewhere), everyone(&scope));
}

/// The event of a turn that is covered or edited is a record elsewhere; its private blocks are no more for everyone there
/// than they were here.
#[test]
fn private_blocks_of_covered_and_edited_turns_stay_private() {
    let carl = |scope: &Tenant| scope.called_by(Caller::default().acting_as(vec!["carl".into()]).unwrap());
    for edits in [true, false] {
        let (_store, scope) = memory();
        let id = scope.begin();
        let said = json!({"role": "user", "content": [{"type": "text", "text": "aloud"},
            {"type": "text", "text": "canary", "visibility": "private"}]});
        let turn = scope.say(id, NewTurn::message(said.to_string()).by("ann"));
        for n in 0..6 {
            scope.say(id, NewTurn::user(&format!("question {n} about the harbour and its many ships")));
        }
        let chat = scope.conversation(id);
        match edits {
            true => drop(chat.supersede(turn.id, NewTurn::user("edited")).wait().unwrap()),
            false => {
                let options = CompactOptions { keep_last: Some(2), ..CompactOptions::default() };
                chat.compaction().compact(options).unwrap();
            }
        }
        let ours = chat.transcript().unwrap();
        assert!(ours.contains("canary"));
        let (_other, elsewhere) = memory();
        elsewhere.import(ours.as_bytes(), &mut |_| {}).unwrap();
        for scope in [&scope, &elsewhere] {
            let chat = carl(scope).conversation(id);
            let events = chat.log().read(0, 100).unwrap();
            let mut read = format!("{} {events:?}", chat.transcript().unwrap());
            for format in [Format::Jsonl, Format::Session, Format::Html] {
                let mut out = Vec::new();
                chat.export(format, &mut out, &mut |_| {}).unwrap();
                read += &String::from_utf8(out).unwrap();
            }
            assert!(!read.contains("canary"), "{read}");
        }
    }
}
