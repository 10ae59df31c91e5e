//! Contexts: inside the budget, valid for the provider, the same bytes again, and provable later.

use crate::compacting::by_hand;
use crate::dice::{Dice, ToldOnFailure, seed};
use crate::stage::{Short, Stage, memory, refused};
use everturn_core::conversation::{Settings, SystemPrompt};
use everturn_core::event::Visibility;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::turn::Turn;
use everturn_engine::model::Provider;
use everturn_engine::{
    Caller, CompactOptions, Context, ContextOptions, Digest, NewFact, NewTurn, RecallRequest, Tenant,
};
use everturn_views::context::{BlockSource, ContextBlock, LeftOut, Section, Sections};
use everturn_views::projection;
use serde_json::{Value, json};

#[path = "../../../formats/tests/all/provider_valid.rs"]
mod provider_valid;

fn message(value: Value) -> NewTurn {
    NewTurn { message: value.to_string(), ..NewTurn::default() }
}

/// Everything that the model reads, as one text.
fn read(context: &Context) -> String {
    let parts = context.system.iter().chain(&context.messages);
    parts.map(Raw::get).collect::<Vec<_>>().join("\n")
}

pub fn assert_valid(provider: Provider, context: &Context) {
    let system = context.system.as_ref().map(|raw| raw.read::<Value>().unwrap());
    let messages: Vec<Value> = context.messages.iter().map(|raw| raw.read().unwrap()).collect();
    if let Err(wrong) = provider_valid::check(provider.as_str(), system.as_ref(), &messages) {
        panic!("{provider} would refuse it: {wrong}\n{}", read(context));
    }
}

/// A conversation with whatever can happen in one. Every turn has a word of its own.
struct Told {
    id: ConversationId,
    /// Words that must not be in any context: superseded, aborted, erased.
    gone: Vec<String>,
}

fn tell(scope: &Tenant, dice: &mut Dice, turns: usize) -> Told {
    let mut settings = Settings::default();
    if dice.once_in(2) {
        settings.system_prompt = Some(Some(SystemPrompt::new("You are careful.".into())));
    }
    let id = scope.begin_with(settings).id;
    let mut gone = Vec::new();
    for n in 0..turns {
        let word = format!("word{n}x");
        match dice.roll(14) {
            0 | 1 => drop(scope.say(id, NewTurn::user(&format!("I say {word} here.")).by("ana"))),
            2 => drop(scope.say(id, NewTurn::assistant(&format!("I answer {word} there.")).by("gpt"))),
            3 | 4 => {
                // A call, and mostly its result, in one of the shapes.
                let (call, result) = match dice.roll(3) {
                    0 => (
                        json!({"role": "assistant", "content": format!("calling {word}"), "tool_calls": [{"id": format!("c{n}"),
                            "type": "function", "function": {"name": "read", "arguments": "{\"n\":1}"}}]}),
                        json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": format!("result {word}")}),
                    ),
                    1 => (
                        json!({"role": "assistant", "content": [{"type": "text", "text": format!("calling {word}")},
                            {"type": "tool_use", "id": format!("c{n}"), "name": "read", "input": {"n": 1}}]}),
                        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": format!("c{n}"),
                            "content": format!("result {word}"), "is_error": dice.once_in(3)}]}),
                    ),
                    _ => (
                        json!({"type": "function_call", "call_id": format!("c{n}"), "name": "read", "arguments": "{}"}),
                        json!({"type": "function_call_output", "call_id": format!("c{n}"), "output": format!("result {word}")}),
                    ),
                };
                scope.say(id, message(call).by("gpt"));
                if !dice.once_in(6) {
                    if dice.once_in(5) {
                        scope.say(id, NewTurn::user("in between").by("ana"));
                    }
                    scope.say(id, message(result));
                }
            }
            5 => {
                let turn = scope.say(id, NewTurn::user(&format!("superseded {word}")));
                scope.conversation(id).supersede(turn.id, NewTurn::user("instead")).wait().unwrap();
                gone.push(word);
            }
            6 => {
                let turn = scope.conversation(id).open(Default::default()).wait().unwrap().id;
                scope.conversation(id).open_turn(turn).chunk(None, &format!("aborted {word}")).unwrap();
                scope.conversation(id).open_turn(turn).abort("enough", None).wait().unwrap();
                gone.push(word);
            }
            7 => {
                let turn = scope.say(id, NewTurn::user(&format!("erased {word} of src/{word}.rs")));
                scope.conversation(id).erase(turn.id, None, "asked").wait().unwrap();
                gone.push(word);
            }
            8 => drop(scope.say(
                id,
                message(json!({"role": "assistant", "content": [
                    {"type": "thinking", "thinking": format!("hm {word}"), "signature": "c2ln"},
                    {"type": "text", "text": format!("thought about {word}")}]})),
            )),
            9 => drop(
                scope
                    .conversation(id)
                    .state()
                    .pin(&format!("pin{}", dice.roll(4)), Raw::of(&word).unwrap())
                    .wait()
                    .unwrap(),
            ),
            10 => {
                // Sometimes one that takes the place of another.
                let subject = format!("thought {}", dice.roll(20));
                let [predicate, object] = ["was read about".into(), format!("by {word}")];
                scope
                    .conversation(id)
                    .facts()
                    .add(NewFact { subject, predicate, object, ..NewFact::default() })
                    .unwrap();
            }
            12 => {
                // Any turn that stands is edited in its place; a checkpoint may still tell of it.
                let turns = scope.turns(id);
                let standing: Vec<_> =
                    turns.iter().filter(|turn| turn.superseded_by.is_none() && !turn.erased).collect();
                if !standing.is_empty() {
                    let turn = standing[dice.roll(standing.len())].id;
                    scope.conversation(id).supersede(turn, NewTurn::user("changed")).wait().unwrap();
                }
            }
            11 => {
                // Nothing to compact is no failure here.
                let keep_last = Some(dice.roll(8));
                let _ = scope
                    .conversation(id)
                    .compaction()
                    .compact(CompactOptions { keep_last, ..CompactOptions::default() });
            }
            _ => drop(scope.say(id, NewTurn::user(&format!("{word} ").repeat(1 + dice.roll(120))).by("bob"))),
        }
    }
    Told { id, gone }
}

fn some_options(dice: &mut Dice, id: ConversationId, scope: &Tenant) -> ContextOptions {
    let mut options = ContextOptions::new(60 + dice.roll(6000) as u64);
    options.provider = *dice.pick(&Provider::ALL);
    options.model = [None, Some("gpt-4o"), Some("gpt-4"), Some("claude-x")][dice.roll(4)].map(String::from);
    if dice.once_in(3) {
        options.last_n = Some(dice.roll(12));
    }
    if dice.once_in(3) {
        options.participants = vec![["ana", "gpt", "bob", "nobody"][dice.roll(4)].to_string()];
    }
    let policies = ["raw", "clean_tool_repair", "squash_failed_calls", "reachability_gc", "clear_tool_uses"];
    if dice.once_in(2) {
        options.projection = Some(projection::ViewOptions::parse(&json!(dice.pick(&policies))).unwrap());
    } else if dice.once_in(3) {
        let prefix = json!({"policy": "summary_prefix", "keep_last": dice.roll(6)});
        options.projection = Some(projection::ViewOptions::parse(&prefix).unwrap());
    }
    if dice.once_in(3) {
        let sections = json!({"digests": {"share": 0.3}, "tail": {"share": 0.4}, "state": !dice.once_in(4)});
        options.sections = Sections::parse(&sections).unwrap();
    }
    if dice.once_in(3) {
        options.instructions = Some("Answer in one word.".into());
    }
    for n in 0..dice.roll(3) {
        options
            .digests
            .push(Digest { title: format!("Board {n}"), text: "open tasks ".repeat(1 + dice.roll(200)) });
    }
    if dice.once_in(2) {
        options.input = vec![Raw::of(&json!({"role": "user", "content": "And now?"})).unwrap()];
    }
    if dice.once_in(4) {
        options.tools = vec![Raw::of(&json!({"name": "read", "input_schema": {"type": "object"}})).unwrap()];
    }
    if dice.once_in(3) {
        let query = [None, Some("thought about what was read"), Some("\"thought about\" x*")][dice.roll(3)];
        options.recall =
            Some(RecallRequest { turns: dice.roll(6), facts: dice.roll(6), query: query.map(String::from) });
    }
    if dice.once_in(4) {
        options.at_seq = Some(1 + dice.roll(scope.conversation(id).get().unwrap().head.seq as usize) as u64);
    }
    options
}

/// The property that everything else rests on, over random conversations, budgets and options.
#[test]
fn a_context_is_within_its_budget_valid_deterministic_and_without_what_must_not_be_there() {
    let seed = seed(3);
    let _told = ToldOnFailure(seed);
    let mut dice = Dice::new(seed);
    let (mut built, mut replayed, mut recalled, mut facts) = (0, 0, 0, 0);
    for _ in 0..25 {
        let stage = Stage::new();
        let (store, scope);
        if dice.once_in(3) {
            store = stage.open();
            scope = store.tenant("acme").unwrap();
        } else {
            (store, scope) = memory();
        }
        let turns = 4 + dice.roll(60);
        let told = tell(&scope, &mut dice, turns);
        for _ in 0..60 {
            let options = some_options(&mut dice, told.id, &scope);
            // What the index learns meanwhile would change what is recalled.
            if options.recall.is_some() {
                store.index_now().unwrap();
            }
            let context = match scope.conversation(told.id).contexts().build(&options) {
                Ok(context) => context,
                Err(error) => {
                    assert_eq!(error.code(), "context.budget_too_small", "{error}");
                    assert!(
                        error.text().contains(&format!("token_budget is {}", options.token_budget)),
                        "{error}"
                    );
                    continue;
                }
            };
            built += 1;
            assert!(context.tokens.used <= options.token_budget, "{:?}", context.tokens);
            assert_valid(options.provider, &context);
            let said = read(&context);
            if options.at_seq.is_none() {
                for word in &told.gone {
                    assert!(!said.contains(word.as_str()), "{word} must not be there:\n{said}");
                }
            }
            let through = context.receipt.through_seq;
            // A replacement is there an event before the turn that it replaces is gone.
            let place = |turn: &Turn| if turn.seq == through { turn.seq } else { turn.place };
            let state = scope.conversation(told.id).state().at(through).unwrap();
            let summarized =
                state.summarized_through.map(|turn| scope.conversation(told.id).turn(turn).unwrap().place);
            for block in context.included.iter().filter(|block| block.section == Section::Tail) {
                let BlockSource::Ids(ids) = &block.source else { continue };
                let turn = scope
                    .conversation(told.id)
                    .turn(ids[0].replace("evt_", "turn_").parse().unwrap())
                    .unwrap();
                assert!(
                    summarized.is_none_or(|summarized| place(&turn) > summarized),
                    "a summarized turn is repeated: {}",
                    turn.seq
                );
                assert!(turn.seq <= through);
            }
            let told_of = |section: Section| -> Vec<u64> {
                let blocks = context.included.iter().filter(|block| block.section == section);
                let ids = blocks.filter_map(|block| match &block.source {
                    BlockSource::Ids(ids) => Some(ids[0].replace("evt_", "turn_").parse().unwrap()),
                    _ => None,
                });
                ids.map(|id| place(&scope.conversation(told.id).turn(id).unwrap())).collect()
            };
            let tail = [told_of(Section::Tail), told_of(Section::Input)].concat().into_iter().min();
            for seq in told_of(Section::Recalled) {
                assert!(
                    seq <= through && tail.is_none_or(|tail| seq < tail),
                    "{seq} is not further back than {tail:?}"
                );
                recalled += 1;
            }
            facts += context.included.iter().filter(|block| block.section == Section::Facts).count();
            let again = scope.conversation(told.id).contexts().build(&options).unwrap();
            assert_eq!(
                (read(&again), &again.receipt),
                (said.clone(), &context.receipt),
                "not the same again"
            );
            if dice.once_in(8) {
                let event = scope.conversation(told.id).contexts().record(&context).unwrap();
                scope.say(told.id, NewTurn::user("something later"));
                let replay = scope.conversation(told.id).contexts().replay_at(event.seq).unwrap();
                assert_eq!((read(&replay), replay.prefix_hash), (said, context.prefix_hash));
                replayed += 1;
            }
        }
        drop(store);
    }
    assert!(
        built > 600 && replayed > 50 && recalled > 100 && facts > 100,
        "{built} {replayed} {recalled} {facts}"
    );
}

fn notes(scope: &Tenant, turns: usize) -> ConversationId {
    let prompt = Some(Some(SystemPrompt::new("You plan trips.".into())));
    let id = scope.begin_with(Settings { system_prompt: prompt, ..Settings::default() }).id;
    for n in 0..turns {
        scope.say(id, NewTurn::user(&format!("Note {n} about gate B{n}.")).by("ana"));
    }
    id
}

#[test]
fn sections_come_in_their_order_with_their_tokens() {
    let (_store, scope) = memory();
    let id = notes(&scope, 8);
    scope
        .conversation(id)
        .compaction()
        .compact(CompactOptions { keep_last: Some(3), ..CompactOptions::default() })
        .unwrap();
    let options = ContextOptions {
        instructions: Some("Be brief.".into()),
        digests: vec![Digest { title: "Board".into(), text: "two open".into() }],
        input: vec![Raw::of(&json!({"role": "user", "content": "And now?"})).unwrap()],
        attachments: vec![Raw::of(&json!({"type": "text", "text": "the attached page"})).unwrap()],
        provider: Provider::Anthropic,
        ..ContextOptions::new(4000)
    };
    let context = scope.conversation(id).contexts().build(&options).unwrap();
    let said = read(&context);
    let order = [
        "You plan trips.",
        "Be brief.",
        "State of this conversation",
        "# Board",
        "Note 5",
        "Note 7",
        "And now?",
        "the attached page",
    ];
    let places: Vec<usize> =
        order.iter().map(|text| said.find(text).unwrap_or_else(|| panic!("{text} in {said}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
    let sections: Vec<Section> = context.tokens.by_section.keys().copied().collect();
    assert_eq!(sections, [Section::System, Section::State, Section::Digests, Section::Tail, Section::Input]);
    let used: u64 = context.tokens.by_section.values().sum();
    assert!(context.tokens.used.abs_diff(used) <= 40, "{:?}", context.tokens);
    assert_eq!(context.receipt.tokenizer, "estimate");
}

#[test]
fn digests_give_way_before_the_tail_and_the_tail_from_its_oldest_end() {
    let (_store, scope) = memory();
    let id = notes(&scope, 30);
    let digest = |n: usize| Digest { title: format!("D{n}"), text: "words and words ".repeat(3) };
    let options = |budget| ContextOptions {
        digests: (0..3).map(digest).collect(),
        last_n: Some(20),
        ..ContextOptions::new(budget)
    };
    let roomy = scope.conversation(id).contexts().build(&options(4000)).unwrap();
    assert_eq!(roomy.messages.len(), 20);
    assert!(read(&roomy).contains("# D2"));
    let tight = scope.conversation(id).contexts().build(&options(230)).unwrap();
    assert!(!read(&tight).contains("# D0"), "the turns that were asked for come first");
    assert!(read(&tight).contains("Note 29") && !read(&tight).contains("Note 5 "), "{}", read(&tight));
    assert!(
        tight.left_out.iter().any(|left| left.section == Section::Digests && left.reason.contains("tail"))
    );
    assert!(tight.left_out.iter().any(|left| left.section == Section::Tail));
}

#[test]
fn what_a_renderer_leaves_out_is_told_under_the_section_it_was_in() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let answer = |call: &str| json!({"role": "tool", "tool_call_id": call, "content": "12 files"});
    scope.say(id, message(answer("never_called")));
    scope.say(id, NewTurn::user("and now?"));
    let left_out = |input: Vec<Value>| -> Vec<(Section, String)> {
        let input = input.iter().map(|message| Raw::of(message).unwrap()).collect();
        let options = ContextOptions { input, provider: Provider::OpenaiChat, ..ContextOptions::new(4000) };
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        context.left_out.into_iter().map(|left| (left.section, left.reason)).collect()
    };
    let orphan = |section| (section, "tool result without its call".to_string());
    assert_eq!(left_out(vec![]), [orphan(Section::Tail)]);
    assert_eq!(left_out(vec![answer("nor_this")]), [orphan(Section::Tail), orphan(Section::Input)]);
}

#[test]
fn too_small_a_budget_is_an_error_with_the_numbers() {
    let (_store, scope) = memory();
    let id = notes(&scope, 4);
    scope.conversation(id).state().pin("limit", Raw::of(&"900 EUR").unwrap()).wait().unwrap();
    refused(
        scope.conversation(id).contexts().build(&ContextOptions::new(20)),
        "context.budget_too_small",
        "token_budget is 20, but",
    );
    refused(
        scope.conversation(id).contexts().build(&ContextOptions::new(20)),
        "context.budget_too_small",
        "system 8, state",
    );
}

/// Regression: the answer was a prompt without a message, which no provider accepts.
#[test]
fn a_budget_without_room_for_the_newest_turn_is_an_error_with_the_numbers() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for n in 0..3 {
        scope.say(
            id,
            NewTurn::user(&format!("Note {n}: the shop opens at nine on Mondays and closes at six.")),
        );
    }
    let build = |options: &ContextOptions| scope.conversation(id).contexts().build(options);
    refused(build(&ContextOptions::new(8)), "context.budget_too_small", "token_budget is 8, but");
    refused(
        build(&ContextOptions::new(8)),
        "context.budget_too_small",
        "needed for the newest turn alone: turn",
    );
    // An input, or a prompt that was asked for without turns, needs none.
    let input = vec![Raw::of(&json!({"role": "user", "content": "x"})).unwrap()];
    assert_eq!(build(&ContextOptions { input, ..ContextOptions::new(15) }).unwrap().messages.len(), 1);
    assert!(
        build(&ContextOptions { last_n: Some(0), ..ContextOptions::new(8) }).unwrap().messages.is_empty()
    );
    let sections = Sections::parse(&json!({"tail": false})).unwrap();
    assert!(build(&ContextOptions { sections, ..ContextOptions::new(8) }).unwrap().messages.is_empty());
    // With the budget that the error names it works.
    let error = build(&ContextOptions::new(8)).unwrap_err().text().to_string();
    let needed = error.split("but ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
    assert_eq!(build(&ContextOptions::new(needed)).unwrap().messages.len(), 1);
    refused(build(&ContextOptions::new(needed - 1)), "context.budget_too_small", "newest turn");
}

#[test]
fn a_participant_sees_its_own_turns_as_the_assistants_and_the_others_by_their_names() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("We need a plan.").by("ana"));
    scope.say(id, NewTurn::assistant("I draft it.").by("planner"));
    scope.say(id, NewTurn::assistant("I check it.").by("critic"));
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "lint", "arguments": "{}"}}]});
    scope.say(id, message(call).by("critic"));
    scope.say(id, message(json!({"role": "tool", "tool_call_id": "c1", "content": "3 warnings"})));
    scope.say(
        id,
        NewTurn { visibility: Some(Visibility::Private), ..NewTurn::assistant("Do not tell.").by("critic") },
    );
    let view = |who: &str| {
        let options = ContextOptions { participants: vec![who.into()], ..ContextOptions::new(4000) };
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        let messages = context.messages.iter().map(|raw| raw.read::<Value>().unwrap());
        messages
            .map(|m| (m["role"].as_str().unwrap().to_string(), m["content"].to_string()))
            .collect::<Vec<_>>()
    };
    let planner = view("planner");
    assert_eq!(planner[0], ("user".into(), "\"ana: We need a plan.\"".into()));
    assert_eq!(planner[1], ("assistant".into(), "\"I draft it.\"".into()));
    assert_eq!(planner[2], ("user".into(), "\"critic: I check it.\"".into()));
    assert!(
        planner.iter().all(|(role, text)| role != "tool" && !text.contains("Do not tell")),
        "{planner:?}"
    );
    let critic = view("critic");
    assert!(critic.iter().any(|(role, text)| role == "tool" && text.contains("3 warnings")), "{critic:?}");
    assert_eq!(critic.last().unwrap(), &("assistant".into(), "\"Do not tell.\"".into()));
}

#[test]
fn a_context_can_be_built_as_it_was_at_any_point() {
    let (_store, scope) = memory();
    let id = notes(&scope, 6);
    scope.conversation(id).state().pin("gate", Raw::of(&"B4").unwrap()).wait().unwrap();
    let options = |at_seq| ContextOptions { at_seq, ..ContextOptions::new(2000) };
    let (then, at) = (
        scope.conversation(id).contexts().build(&options(None)).unwrap(),
        scope.conversation(id).get().unwrap().head.seq,
    );
    scope
        .conversation(id)
        .compaction()
        .compact(CompactOptions { keep_last: Some(1), ..CompactOptions::default() })
        .unwrap();
    scope.conversation(id).state().unpin("gate").wait().unwrap();
    let first = scope.turns(id)[0].id;
    scope.conversation(id).supersede(first, NewTurn::user("Another start.")).wait().unwrap();
    scope
        .conversation(id)
        .update(Settings { system_prompt: Some(None), ..Settings::default() })
        .wait()
        .unwrap();
    assert_ne!(read(&scope.conversation(id).contexts().build(&options(None)).unwrap()), read(&then));
    assert_eq!(read(&scope.conversation(id).contexts().build(&options(Some(at))).unwrap()), read(&then));
    refused(
        scope.conversation(id).contexts().build(&options(Some(9999))),
        "seq.out_of_range",
        "has no seq 9999",
    );
}

#[test]
fn a_receipt_says_when_a_part_was_erased_since() {
    let (_store, scope) = memory();
    let id = notes(&scope, 5);
    let context = scope.conversation(id).contexts().build(&ContextOptions::new(2000)).unwrap();
    let seq = scope.conversation(id).contexts().record(&context).unwrap().seq;
    let turn = scope.turns(id)[3].id;
    scope.conversation(id).erase(turn, None, "asked").wait().unwrap();
    refused(
        scope.conversation(id).contexts().replay_at(seq),
        "receipt.erased",
        &format!("{turn} was erased"),
    );
    refused(scope.conversation(id).contexts().replay_at(2), "receipt.absent", "no context.receipt at seq 2");
}

#[test]
fn a_thousand_calls_with_the_same_instructions_keep_one_copy() {
    let stage = Stage::new();
    let store = stage.open();
    let scope = store.tenant("acme").unwrap();
    let id = notes(&scope, 3);
    let options = ContextOptions {
        instructions: Some("a long handbook ".repeat(100)),
        tools: vec![Raw::of(&json!({"name": "read"})).unwrap()],
        ..ContextOptions::new(4000)
    };
    let mut last = 0;
    for _ in 0..20 {
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        last = scope.conversation(id).contexts().record(&context).unwrap().seq;
    }
    let kinds = scope.kinds(id);
    assert_eq!(kinds.iter().filter(|kind| *kind == "asset.added").count(), 2, "the handbook and the tool");
    assert!(read(&scope.conversation(id).contexts().replay_at(last).unwrap()).contains("a long handbook"));
}

#[test]
fn the_cache_report_says_how_much_is_as_in_the_last_recorded_call() {
    let (_store, scope) = memory();
    let id = notes(&scope, 5);
    let options = ContextOptions::new(2000);
    let first = scope.conversation(id).contexts().build(&options).unwrap();
    assert_eq!(first.cache.stable_prefix_tokens, 0);
    scope.conversation(id).contexts().record(&first).unwrap();
    scope.say(id, NewTurn::user("One more."));
    let second = scope.conversation(id).contexts().build(&options).unwrap();
    let same: u64 = first.included.iter().map(|block| block.tokens).sum();
    assert_eq!(
        (second.cache.stable_prefix_tokens, second.cache.first_changed_section),
        (same, Some(Section::Tail))
    );
    scope.conversation(id).state().pin("gate", Raw::of(&"B4").unwrap()).wait().unwrap();
    let third = scope.conversation(id).contexts().build(&options).unwrap();
    assert_eq!(third.cache.first_changed_section, Some(Section::State));
}

#[test]
fn pictures_that_were_moved_into_assets_are_put_back_for_the_provider() {
    let (_store, scope) = memory();
    let id = scope.begin();
    use base64::Engine;
    let picture = base64::engine::general_purpose::STANDARD.encode([7u8; 9000]);
    scope.say(
        id,
        message(json!({"role": "user", "content": [{"type": "text", "text": "Look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}]})),
    );
    for provider in Provider::ALL {
        let context = scope
            .conversation(id)
            .contexts()
            .build(&ContextOptions { provider, ..ContextOptions::new(4000) })
            .unwrap();
        assert!(read(&context).contains(&picture), "{provider}");
        assert_valid(provider, &context);
    }
}

#[test]
fn a_projection_is_recorded_told_to_followers_and_can_be_made_again_from_the_log() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let call = |n: usize| {
        json!({"role": "assistant", "content": "I try.", "tool_calls": [{"id": format!("c{n}"), "type": "function",
            "function": {"name": "run", "arguments": "{}"}}]})
    };
    scope.say(id, message(call(1)));
    scope.say(id, message(json!({"role": "tool", "tool_call_id": "c1", "content": "error: no"})));
    scope.say(id, message(call(2)));
    scope.say(id, message(json!({"role": "tool", "tool_call_id": "c2", "content": "yes"})));
    let options = projection::ViewOptions::parse(&json!("clean_tool_repair")).unwrap();
    let mut follow = scope.conversation(id).subscribe(5).unwrap();
    let (view, event) = scope.conversation(id).contexts().project_turn(&options).unwrap();
    assert_eq!((view.messages.len(), event.kind.as_str()), (3, "transcript.projection"));
    match follow.recv_timeout(crate::stage::PATIENCE).unwrap() {
        Some(everturn_engine::Update::Event(told)) => assert_eq!(told.seq, event.seq),
        other => panic!("{other:?}"),
    }
    scope.say(id, NewTurn::user("later"));
    scope.conversation(id).supersede(scope.turns(id)[2].id, NewTurn::user("changed")).wait().unwrap();
    assert_eq!(scope.conversation(id).contexts().replay_projection(event.seq).unwrap(), view.messages);
    refused(
        scope.conversation(id).contexts().replay_projection(2),
        "projection.absent",
        "no transcript.projection at seq 2",
    );
}

/// A scratchpad that an event sets is in the state, in prompts and in projections until it is cleared.
#[test]
fn a_live_scratchpad_is_in_the_state_and_a_root_of_projections() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for n in 0..2 {
        let called = json!({"id": format!("c{n}"), "type": "function", "function": {"name": "run", "arguments": "{}"}});
        scope.say(id, message(json!({"role": "assistant", "content": null, "tool_calls": [called]})));
        let body = format!("src/part{n}.rs\n{}", "let x = 1;\n".repeat(80));
        scope.say(id, message(json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": body})));
    }
    scope.say(id, NewTurn::user("thanks"));
    let options = json!({"policy": "reachability_gc", "root_window": 1, "require_write_barrier": true});
    let options = projection::ViewOptions::parse(&options).unwrap();
    let chat = scope.conversation(id);
    let projected = || chat.contexts().project(&options).unwrap().result.read::<Value>().unwrap();
    assert_eq!(projected()["reason"], "reachability_gc_write_barrier_missing");
    let body = Raw::of(&json!({"name": "plan", "value": "next: src/part1.rs"})).unwrap();
    let set = chat.log().append("scratchpad.set", None, body).wait().unwrap();
    assert_eq!(chat.state().read().unwrap().scratchpads["plan"].seq, set.seq);
    let view = projected();
    assert_eq!(view["redacted_indices"], json!([1]), "the scratchpad names src/part1.rs");
    let version = json!([format!("scratchpad:plan@{}", set.seq)]);
    assert_eq!(view["event"]["metadata"]["options"]["scratchpads"], version);
    let asked = ContextOptions { projection: Some(options.clone()), ..ContextOptions::new(8000) };
    let context = read(&chat.contexts().build(&asked).unwrap());
    assert!(context.contains("next: src/part1.rs") && context.contains("tool result reclaimed"), "{context}");
    let body = Raw::of(&json!({"name": "plan"})).unwrap();
    chat.log().append("scratchpad.clear", None, body).wait().unwrap();
    assert!(chat.state().read().unwrap().scratchpads.is_empty());
    assert_eq!(projected()["reason"], "reachability_gc_write_barrier_missing");
}

/// Invariant 7: what is read does not grow with the conversation. Counted, not timed.
#[test]
fn a_state_is_kept_so_that_a_long_log_is_not_read_again() {
    let stage = Stage::new();
    let mut settings = Settings::default();
    settings.policy.insert("budget".into(), Raw::of(&json!({"max_messages": null})).unwrap());
    let id = {
        let store = stage.open_with(everturn_engine::Options::default());
        let scope = store.tenant("acme").unwrap();
        settings.policy.insert("compaction".into(), Raw::of(&json!({"auto": false})).unwrap());
        let id = scope.begin_with(settings).id;
        scope.conversation(id).state().pin("branch", Raw::of(&"main").unwrap()).wait().unwrap();
        for _ in 0..6 {
            let turns: Vec<_> = (0..500).map(|n| NewTurn::user(&n.to_string())).collect();
            scope.conversation(id).append_all(turns).wait().unwrap();
        }
        id
    };
    let database = kept_folds(&stage);
    assert!(database >= 2, "a fold about every thousand events: {database}");
    let store = stage.open_read_only();
    let scope = store.tenant("acme").unwrap();
    assert_eq!(scope.conversation(id).state().read().unwrap().pins["branch"].value.get(), "\"main\"");
    let context = scope.conversation(id).contexts().build(&ContextOptions::new(1000)).unwrap();
    assert!(read(&context).contains("branch: main"));
}

/// How many folds the store's file holds, seen from outside: each is a JSON text with this beginning.
fn kept_folds(stage: &Stage) -> usize {
    let bytes = std::fs::read(stage.path()).unwrap();
    let begins = format!("{{\"version\":{},\"through_seq\":", everturn_views::state::VERSION);
    String::from_utf8_lossy(&bytes).matches(&begins).count()
}

#[test]
fn what_is_said_is_in_the_context_exactly_as_it_was_given() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let odd = r#"{"role":"user","content":"1.50","x":{"n":1.0e2,"huge":1e999}}"#;
    scope.say(id, NewTurn { message: odd.into(), ..NewTurn::default() });
    let options = ContextOptions { provider: Provider::OpenaiChat, ..ContextOptions::new(500) };
    let context = scope.conversation(id).contexts().build(&options).unwrap();
    assert_eq!(context.messages[0].get(), odd);
}

fn result_of(call: &str, words: usize) -> NewTurn {
    NewTurn::tool_result(call, &"lorem ipsum ".repeat(words / 2))
}

fn calls(id: &str) -> NewTurn {
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "read", "input": {}}]});
    NewTurn::message(call.to_string())
}

/// A context of 8,000 tokens used to end at 2,539, because one older group of turns did not fit.
#[test]
fn a_group_that_does_not_fit_makes_room_for_older_ones() {
    let stage = Stage::new();
    let stored = stage.open();
    for scope in [memory().1, stored.tenant("acme").unwrap()] {
        let id = scope.begin();
        let long = "This is one of many sentences about the harbour. ".repeat(40);
        for n in 0..20 {
            scope.say(id, NewTurn::user(&format!("old {n}: {long}")));
        }
        scope.say(id, calls("c1"));
        scope.say(id, result_of("c1", 20_000));
        scope.say(id, NewTurn::user(&"a question that is far too long ".repeat(4000)));
        for n in 0..3 {
            scope.say(id, NewTurn::user(&format!("new {n}: {long}")));
        }
        let chat = scope.conversation(id);
        let context = chat.contexts().build(&ContextOptions::new(8000)).unwrap();
        assert!((7200..=8000).contains(&context.tokens.used), "{:?}", context.tokens);
        let said = json!(context.messages).to_string();
        assert!(said.contains("new 0: ") && said.contains("old 19: "), "{said}");
        assert!(
            said.contains("\"c1\"") && !said.contains("lorem ipsum lorem"),
            "the call without the body: {said}"
        );
        assert!(!said.contains("far too long"), "{said}");
        let reasons: Vec<&str> = context.left_out.iter().map(|left| left.reason.as_str()).collect();
        assert!(reasons.iter().any(|reason| reason.contains("bodies of their tool results")), "{reasons:?}");
        assert!(context.check_whole().is_err());
        let seq = chat.contexts().record(&context).unwrap().seq;
        let again = chat.contexts().replay_at(seq).unwrap();
        assert_eq!((again.prefix_hash, again.messages), (context.prefix_hash, context.messages));
    }
}

/// Regression: 26,600 of 28,000 tokens were left free where turns that were too large came first, since they counted as
/// read and older ones were not.
#[test]
fn a_context_fills_any_budget_past_turns_that_are_too_large() {
    let seed = seed(15);
    let _told = ToldOnFailure(seed);
    let mut dice = Dice::new(seed);
    for _ in 0..6 {
        let (_store, scope) = memory();
        let id = scope.begin();
        for n in 0..80 {
            let words = if dice.once_in(8) { 2000 } else { 1 + dice.roll(80) };
            let text = "plain words and more ".repeat(words);
            if dice.once_in(2) {
                scope.say(id, NewTurn::user(&text));
            } else {
                let call = format!("c{n}");
                scope.say(id, calls(&call));
                scope.say(id, NewTurn::tool_result(&call, &text));
            }
        }
        let chat = scope.conversation(id);
        let ask = Raw::of(&json!({"role": "user", "content": "what next?"})).unwrap();
        for provider in Provider::ALL {
            let whole = ContextOptions { provider, ..ContextOptions::new(10_000_000) };
            let whole = chat.contexts().build(&whole).unwrap();
            for _ in 0..25 {
                let budget = 400 + dice.roll(24_000) as u64;
                let options =
                    ContextOptions { input: vec![ask.clone()], provider, ..ContextOptions::new(budget) };
                let context = chat.contexts().build(&options).unwrap();
                assert_valid(provider, &context);
                let used = context.tokens.used;
                assert!(used <= budget, "{provider}: {used} of {budget}");
                if used < budget - budget / 4 {
                    let is_out = |block: &&ContextBlock| {
                        !context.included.iter().any(|other| other.source == block.source)
                    };
                    let mut small = whole.included.iter().filter(|block| block.tokens < (budget - used) / 2);
                    assert_eq!(small.find(is_out), None, "{provider}: {used} of {budget}");
                }
            }
        }
        let options = ContextOptions { input: vec![ask], ..ContextOptions::new(6000) };
        let context = chat.contexts().build(&options).unwrap();
        let seq = chat.contexts().record(&context).unwrap().seq;
        let again = chat.contexts().replay_at(seq).unwrap();
        assert_eq!((again.prefix_hash, again.messages), (context.prefix_hash, context.messages));
    }
}

/// Regression: the checkpoint was emptied for a newest turn that did not fit even so, and older turns took the room.
#[test]
fn a_checkpoint_is_not_shortened_for_a_turn_that_does_not_fit_even_so() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("The goal is a faster parser. Never touch the lexer."));
    for n in 0..30 {
        scope.say(id, NewTurn::assistant(&format!("We decided to use variant {n} in src/module_{n}.rs.")));
    }
    let chat = scope.conversation(id);
    chat.compaction().compact(by_hand(1)).unwrap();
    scope.say(id, NewTurn::user(&"some words ".repeat(100)));
    let build = |budget: u64| chat.contexts().build(&ContextOptions::new(budget));
    let state_of = |context: &Context| context.tokens.by_section[&Section::State];
    let whole = state_of(&build(50_000).unwrap());
    scope.say(id, NewTurn::user(&"a question that is far too long ".repeat(1000)));
    for budget in (whole + 50..whole + 1500).step_by(97) {
        let context = build(budget).unwrap();
        assert_eq!(state_of(&context), whole, "{budget}: {:?}", context.left_out);
        let has_told = |left: &LeftOut| left.section == Section::Tail && left.lacked_room();
        assert!(context.left_out.iter().any(has_told), "{:?}", context.left_out);
    }
}

/// Regression: the checkpoint left no room for any turn, and the prompt was refused.
#[test]
fn a_checkpoint_gives_way_to_an_older_turn_where_the_newest_does_not_fit() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("The goal is a faster parser. Never touch the lexer."));
    for n in 0..30 {
        scope.say(id, NewTurn::assistant(&format!("We decided to use variant {n} in src/module_{n}.rs.")));
    }
    scope.say(id, NewTurn::user(&"some words ".repeat(200)));
    let chat = scope.conversation(id);
    chat.compaction().compact(by_hand(1)).unwrap();
    scope.say(id, NewTurn::user(&"a question that is far too long ".repeat(1000)));
    let whole =
        chat.contexts().build(&ContextOptions::new(50_000)).unwrap().tokens.by_section[&Section::State];
    let context = chat.contexts().build(&ContextOptions::new(whole + 100)).unwrap();
    assert_eq!(context.messages.len(), 1, "{:?}", context.left_out);
    assert!(context.tokens.by_section[&Section::State] < whole);
}

/// A checkpoint that was larger than the budget used to be an error.
#[test]
fn a_checkpoint_too_large_for_the_budget_is_shortened_by_its_parts() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("The goal is a faster parser. Never touch the lexer."));
    for n in 0..60 {
        let text = format!(
            "We decided to use variant {n}. I changed src/module_{n}/part_{n}.rs, see id deadbeef{n:04}."
        );
        scope.say(id, NewTurn::assistant(&text));
    }
    let chat = scope.conversation(id);
    chat.compaction().compact(by_hand(1)).unwrap();
    chat.state().pin("branch", "release/2.1").wait().unwrap();
    let full = chat.contexts().build(&ContextOptions::new(50_000)).unwrap();
    let state_of = |context: &Context| context.tokens.by_section[&Section::State];
    let whole = state_of(&full);
    assert!(whole > 1000, "{whole}");
    let mut last = u64::MAX;
    for budget in [whole, whole / 2, whole / 4, 200] {
        let context = chat.contexts().build(&ContextOptions::new(budget)).unwrap();
        let system = context.system.as_ref().unwrap().get().to_string();
        assert!(context.tokens.used <= budget && state_of(&context) <= last.min(budget));
        assert!(
            system.contains("release/2.1") && system.contains("faster parser"),
            "pins and goal stay: {system}"
        );
        // Regression: constraints went before lists, the goal was there twice, and half of the room was left.
        assert!(system.contains("Never touch the lexer."), "{system}");
        assert_eq!(system.matches("Goal:").count(), 1, "{system}");
        // For the first, it is enough to leave out files that sentences name.
        let is_used = budget == whole || context.tokens.used + 50 > budget;
        assert!(is_used, "{} of {budget}: {system}", context.tokens.used);
        assert!(context.left_out.iter().any(|left| left.reason.contains("checkpoint is shortened")));
        let seq = chat.contexts().record(&context).unwrap().seq;
        assert_eq!(chat.contexts().replay_at(seq).unwrap().prefix_hash, context.prefix_hash);
        last = state_of(&context);
    }
    refused(
        chat.contexts().build(&ContextOptions::new(20)).map(drop),
        "context.budget_too_small",
        "raise it",
    );
}

/// What the renderer of another version made of the same turns is not known here.
#[test]
fn a_receipt_of_another_version_is_refused() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("hi"));
    let chat = scope.conversation(id);
    let receipt = chat.contexts().build(&ContextOptions::new(2000)).unwrap().receipt;
    assert_eq!((receipt.version, receipt.renderer_version), (1, 1));
    chat.contexts().replay(&receipt).unwrap();
    let others = [(2, 1), (1, 2), (1, 12), (1, 0)];
    for (version, renderer_version) in others {
        let mut other = receipt.clone();
        (other.version, other.renderer_version) = (version, renderer_version);
        refused(
            chat.contexts().replay(&other).map(drop),
            "receipt.version",
            "replay it with the everturn that wrote it",
        );
    }
}

/// Regression: the private input of a recorded call was an asset for everyone, and not in the prompt.
#[test]
fn private_input_is_in_the_prompt_and_for_nobody_else() {
    let (_store, scope) = memory();
    let acting = |actor: &str| scope.called_by(Caller::default().acting_as(vec![actor.into()]).unwrap());
    let id = scope.begin();
    let (ann, bob) = (acting("ann").conversation(id), acting("bob").conversation(id));
    let input = Raw::of(&json!({"role": "user", "content": "psst canary", "visibility": "private"})).unwrap();
    let options =
        ContextOptions { input: vec![input], provider: Provider::Anthropic, ..ContextOptions::new(2000) };
    let context = ann.contexts().build(&options).unwrap();
    assert!(
        context.messages[0].get().contains("psst canary")
            && !context.messages[0].get().contains("visibility")
    );
    let seq = ann.contexts().record(&context).unwrap().seq;
    assert_eq!(ann.contexts().replay_at(seq).unwrap().prefix_hash, context.prefix_hash);
    assert_eq!(ann.assets().list().unwrap().len(), 1);
    assert_eq!(bob.assets().list().unwrap(), []);
    refused(bob.contexts().replay_at(seq), "receipt.absent", "no context.receipt");
}

/// Regression: where a prompt was larger once rendered than counted, as with texts full of quotes for Gemini, the turns that a
/// lower budget let in could be larger again, and after four attempts the budget was refused.
#[test]
fn the_tail_gives_way_until_a_rendered_prompt_fits_its_budget() {
    let (_store, scope) = memory();
    let id = scope.begin();
    for n in 0..60 {
        let text = ["some \"quoted\"\n\twords, ", "plain words and more "][n % 2].repeat(1 + n * 37 % 90);
        match n % 3 {
            0 => scope.say(id, NewTurn::user(&text)),
            _ => {
                let call = format!("c{n}");
                scope.say(id, calls(&call));
                scope.say(id, NewTurn::tool_result(&call, &text))
            }
        };
    }
    let ask = Raw::of(&json!({"role": "user", "content": "what next?"})).unwrap();
    for provider in Provider::ALL {
        for budget in (300..12_000).step_by(131) {
            let options =
                ContextOptions { input: vec![ask.clone()], provider, ..ContextOptions::new(budget) };
            let context = scope.conversation(id).contexts().build(&options).unwrap();
            assert!(context.tokens.used <= budget, "{provider}: {} of {budget}", context.tokens.used);
        }
    }
}
