//! Editing: a replacement is read where the replaced turn stood, in every view.

use crate::context::assert_valid;
use crate::dice::{Dice, ToldOnFailure, seed};
use crate::stage::{Short, Stage, memory, quiet, refused, turns_of, words};
use everturn_core::conversation::{Retention, Settings, SystemPrompt};
use everturn_core::event::Visibility;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::turn::{Status, Turn};
use everturn_engine::model::Provider;
use everturn_engine::{
    Caller, CompactOptions, Context, ContextOptions, Everturn, Format, HistoryQuery, NewTurn, Order,
    RecallOptions, RecallRequest, Tenant,
};
use everturn_views::projection;
use serde_json::{Value, json};

/// A store in memory, and one in a file.
fn stores() -> (Stage, Vec<Everturn>) {
    let stage = Stage::new();
    let both = vec![Everturn::open_with("memory:", quiet()).unwrap(), stage.open_with(quiet())];
    (stage, both)
}

/// `Q1 A1 Q2 A2`.
fn two_rounds(scope: &Tenant) -> (ConversationId, Vec<Turn>) {
    let id = scope.begin();
    let said = ["Q1", "A1", "Q2", "A2"].map(|text| match text.starts_with('Q') {
        true => scope.say(id, NewTurn::user(text)),
        false => scope.say(id, NewTurn::assistant(text)),
    });
    (id, said.to_vec())
}

fn edit(scope: &Tenant, id: ConversationId, turn: TurnId, text: &str) -> Turn {
    let role = scope.conversation(id).turn(turn).unwrap().role;
    let new = NewTurn::text(role, text);
    scope.conversation(id).supersede(turn, new).wait().unwrap().turns.remove(0)
}

fn history(scope: &Tenant, id: ConversationId, query: HistoryQuery) -> Vec<Turn> {
    turns_of(scope.conversation(id).history(query).unwrap().data)
}

/// The words of the current turns, as history shows them.
fn read(scope: &Tenant, id: ConversationId) -> Vec<String> {
    history(scope, id, HistoryQuery { limit: 1000, ..HistoryQuery::default() })
        .iter()
        .filter_map(words)
        .collect()
}

fn contents(messages: &[Raw]) -> Vec<String> {
    let text = |raw: &Raw| raw.read::<Value>().unwrap()["content"].as_str().map(str::to_string);
    messages.iter().filter_map(text).collect()
}

fn build(scope: &Tenant, id: ConversationId) -> Context {
    scope.conversation(id).contexts().build(&ContextOptions::new(100_000)).unwrap()
}

fn export(scope: &Tenant, id: ConversationId, format: Format) -> String {
    let mut out = Vec::new();
    scope.conversation(id).export(format, &mut out, &mut |_| {}).unwrap();
    String::from_utf8(out).unwrap()
}

/// Words in the order in which a text has them.
#[track_caller]
fn in_order(text: &str, words: &[&str]) {
    let mut rest = text;
    for word in words {
        let at =
            rest.find(word).unwrap_or_else(|| panic!("{word} is not after what comes before it in {text}"));
        rest = &rest[at + word.len()..];
    }
}

#[test]
fn an_edit_keeps_its_place_in_every_view() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let (id, said) = two_rounds(&scope);
        let chat = scope.conversation(id);
        edit(&scope, id, said[0].id, "Z1, edited");
        edit(&scope, id, said[3].id, "Z2, edited");
        let wanted = ["Z1, edited", "A1", "Q2", "Z2, edited"];
        assert_eq!(read(&scope, id), wanted);
        assert_eq!(contents(&build(&scope, id).messages), wanted);
        let raw = projection::ViewOptions::parse(&json!("raw")).unwrap();
        assert_eq!(contents(&chat.contexts().project(&raw).unwrap().messages), wanted);
        let value: Value = serde_json::from_str(&export(&scope, id, Format::Transcript)).unwrap();
        let messages: Vec<&str> =
            value["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
        assert_eq!(messages, wanted);
        for format in [Format::OpenaiChat, Format::OpenaiResponses, Format::Anthropic, Format::Gemini] {
            let text = export(&scope, id, format);
            in_order(&text, &wanted);
            assert!(!text.contains("Q1"), "{text}");
        }
        for format in [Format::Markdown, Format::Html] {
            // For people, with what was said first, once.
            let text = export(&scope, id, format);
            let text = text.rsplit("</nav>").next().unwrap();
            in_order(text, &["Q1", "Z1, edited", "A1", "Q2", "A2", "Z2, edited"]);
            assert_eq!(text.matches("Z1, edited").count(), 1, "{text}");
        }
        store.index_now().unwrap();
        let found = scope.recall("edited", &RecallOptions::default()).unwrap().data;
        let mut places: Vec<_> = found.iter().map(|hit| (hit.seq, hit.place)).collect();
        places.sort_unstable();
        assert_eq!(places, [(6, Some(2)), (8, Some(5))]);
        // The log keeps the order of arrival.
        let all: Vec<String> = scope.turns(id).iter().filter_map(words).collect();
        assert_eq!(all, ["Q1", "A1", "Q2", "A2", "Z1, edited", "Z2, edited"]);
    }
}

#[test]
fn an_edit_between_two_pages_neither_moves_nor_repeats_anything() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let (id, said) = two_rounds(&scope);
        for order in [Order::Ascending, Order::Descending] {
            let query = HistoryQuery { limit: 2, order, ..HistoryQuery::default() };
            let first = scope.conversation(id).history(query.clone()).unwrap();
            let newest = scope.turns(id).into_iter().rev().find(|turn| turn.place == said[0].seq).unwrap();
            edit(&scope, id, newest.id, "edited");
            let next = match order {
                Order::Ascending => HistoryQuery { after: first.next, ..query },
                Order::Descending => HistoryQuery { before: first.next, ..query },
            };
            let second = scope.conversation(id).history(next).unwrap();
            let mut places: Vec<u64> =
                turns_of([first.data, second.data].concat()).iter().map(|turn| turn.place).collect();
            places.sort_unstable();
            assert_eq!(places, [2, 3, 4, 5]);
            assert_eq!(second.next, None);
        }
    }
}

#[test]
fn an_edit_and_branch_leaves_the_conversation_and_goes_on_from_there() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let (id, said) = two_rounds(&scope);
        let chat = scope.conversation(id);
        let first = edit(&scope, id, said[0].id, "Q1, edited");
        let before = chat.get().unwrap().head;
        let (fork, appended) = chat.edit_and_branch(said[2].id, NewTurn::user("Q2, other")).unwrap();
        assert_eq!(appended.turns.len(), 1);
        assert_eq!(appended.turns[0].conversation, fork.id());
        assert_eq!(read(&scope, fork.id()), ["Q1, edited", "A1", "Q2, other"]);
        // An edited turn is branched from where it is read, not from where it came.
        let (fork, _) = chat.edit_and_branch(first.id, NewTurn::user("Q1, other")).unwrap();
        assert_eq!(read(&scope, fork.id()), ["Q1, other"]);
        assert_eq!(read(&scope, id), ["Q1, edited", "A1", "Q2", "A2"]);
        assert_eq!(chat.get().unwrap().head, before);
        let conversations = || scope.list(Default::default()).unwrap().data.len();
        let count = conversations();
        refused(chat.edit_and_branch(said[0].id, NewTurn::message("nonsense")), "json.malformed", "");
        assert_eq!(conversations(), count, "a refused request leaves no fork");
    }
}

/// Twelve turns, of which a checkpoint covers the first eight.
fn summarized(scope: &Tenant, settings: Settings) -> (ConversationId, Vec<Turn>) {
    let id = scope.begin_with(settings).id;
    let said = (0..12).map(|n| match n % 2 {
        0 => scope.say(id, NewTurn::user(&format!("Please look at src/part_{n}.rs."))),
        _ => scope.say(id, NewTurn::assistant(&format!("I changed src/part_{n}.rs."))),
    });
    let said = said.collect();
    let options = CompactOptions { keep_last: Some(4), extractive: true, ..CompactOptions::default() };
    scope.conversation(id).compaction().compact(options).unwrap();
    (id, said)
}

fn prompt(context: &Context) -> String {
    context.system.iter().chain(&context.messages).map(Raw::get).collect::<Vec<_>>().join("\n")
}

#[test]
fn an_edit_of_what_a_checkpoint_covers_is_told_until_the_checkpoint_is_made_anew() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let (id, said) = summarized(&scope, Settings::default());
        let chat = scope.conversation(id);
        let old = chat.get().unwrap().checkpoint.unwrap();
        let receipt = chat.contexts().record(&build(&scope, id)).unwrap().seq;
        let was = prompt(&chat.contexts().replay_at(receipt).unwrap());
        edit(&scope, id, said[2].id, "Please look at src/other.rs.");
        let told = build(&scope, id);
        let text = prompt(&told);
        assert!(text.contains("Edited since this summary") && text.contains("src/other.rs"), "{text}");
        assert!(told.messages.iter().all(|message| !message.get().contains("other.rs")), "not in the tail");
        let edited = chat.contexts().record(&told).unwrap().seq;
        // A compaction begins with what was not edited.
        let options = CompactOptions { keep_last: Some(4), extractive: true, ..CompactOptions::default() };
        chat.compaction().compact(options).unwrap();
        let new = chat.get().unwrap().checkpoint.unwrap();
        assert_eq!((new.through_seq, new.through, new.turns_before), (old.through_seq, old.through, 8));
        let text = prompt(&build(&scope, id));
        assert!(text.contains("src/other.rs") && !text.contains("Edited since"), "{text}");
        assert!(!text.contains("part_2.rs"), "{text}");
        assert_eq!(chat.compaction().usage().unwrap().messages, 4);
        // Older receipts say what they said.
        assert_eq!(prompt(&chat.contexts().replay_at(receipt).unwrap()), was);
        assert_eq!(prompt(&chat.contexts().replay_at(edited).unwrap()), prompt(&told));
    }
}

/// Regression: the view had the summary from before the edit, while the transcript value and the state told of it.
#[test]
fn a_summary_prefix_tells_of_an_edit_of_what_it_covers() {
    let (_stage, stores) = stores();
    let options =
        projection::ViewOptions::parse(&json!({"policy": "summary_prefix", "keep_last": 2})).unwrap();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let (id, said) = summarized(&scope, Settings::default());
        let chat = scope.conversation(id);
        edit(&scope, id, said[2].id, "Please look at src/other.rs.");
        let view = chat.contexts().project(&options).unwrap();
        assert!(view.messages[0].get().contains("src/other.rs"), "{:?}", view.messages);
        let asked = ContextOptions { projection: Some(options.clone()), ..ContextOptions::new(100_000) };
        let context = chat.contexts().build(&asked).unwrap();
        assert!(context.messages[0].get().contains("src/other.rs"), "{:?}", context.messages);
        // A private edit is told to nobody: everyone reads the record of the view.
        let secret = NewTurn {
            visibility: Some(Visibility::Private),
            actor: Some("ana".into()),
            ..NewTurn::user("Please look at src/secret.rs.")
        };
        chat.supersede(said[4].id, secret).wait().unwrap();
        let secret = NewTurn {
            visibility: Some(Visibility::Private),
            ..NewTurn::assistant("I look at src/secret.rs.")
        };
        chat.supersede(said[3].id, secret).wait().unwrap();
        let view = chat.contexts().project(&options).unwrap();
        assert!(!view.messages[0].get().contains("src/secret.rs"), "{:?}", view.messages);
        let context = chat.contexts().build(&asked).unwrap();
        assert!(!context.messages[0].get().contains("src/secret.rs"), "{:?}", context.messages);
        let (_, recorded) = chat.contexts().project_turn(&options).unwrap();
        assert!(!recorded.body.unwrap().text.contains("src/secret.rs"));
    }
}

#[test]
fn the_background_makes_the_checkpoint_of_an_edited_turn_anew() {
    for retention in [Retention::Full, Retention::AuditOnly] {
        let store = Everturn::open("memory:").unwrap();
        let scope = store.tenant("acme").unwrap();
        let settings = Settings { retention: Some(retention), ..Settings::default() };
        let (id, said) = summarized(&scope, settings);
        let chat = scope.conversation(id);
        let old = chat.get().unwrap().checkpoint.unwrap();
        edit(&scope, id, said[2].id, "Please look at src/other.rs.");
        crate::stage::until("there is another checkpoint", || chat.get().unwrap().checkpoint.unwrap() != old);
        let new = chat.get().unwrap().checkpoint.unwrap();
        assert_eq!((new.through_seq, new.turns_before), (old.through_seq, old.turns_before));
        let text = prompt(&build(&scope, id));
        assert!(text.contains("src/other.rs") && !text.contains("Edited since"), "{text}");
        if retention == Retention::AuditOnly {
            // What it said of the others is not lost with their texts.
            assert!(text.contains("part_7.rs"), "{text}");
            let erased = || scope.turns(id).into_iter().filter(|turn| turn.erased).count();
            crate::stage::until("the eight that it covers are erased, and the edit of one of them", || {
                erased() == 9
            });
        }
    }
}

#[test]
fn an_edited_turn_that_is_covered_is_recalled_as_older_than_the_tail() {
    let (store, scope) = memory();
    let (id, said) = summarized(&scope, Settings::default());
    edit(&scope, id, said[2].id, "Where is the lighthouse keeper?");
    store.index_now().unwrap();
    let mut options = ContextOptions::new(100_000);
    let query = Some("lighthouse keeper".to_string());
    options.recall = Some(RecallRequest { turns: 3, facts: 0, query });
    options.sections = everturn_views::context::Sections::parse(&json!({"state": false})).unwrap();
    let text = prompt(&scope.conversation(id).contexts().build(&options).unwrap());
    assert_eq!(text.matches("lighthouse keeper").count(), 1, "{text}");
}

#[test]
fn results_of_a_call_that_was_edited_away_leave_every_prompt() {
    let (_store, scope) = memory();
    let id = scope.begin();
    scope.say(id, NewTurn::user("List it."));
    let call = json!({"role": "assistant", "content": null,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]});
    let call = scope.say(id, NewTurn::message(call.to_string()));
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "secret.txt"});
    scope.say(id, NewTurn::message(result.to_string()));
    scope.say(id, NewTurn::assistant("There it is."));
    edit(&scope, id, call.id, "I had rather not.");
    let wanted = ["List it.", "I had rather not.", "There it is."];
    let raw = projection::ViewOptions::parse(&json!("raw")).unwrap();
    assert_eq!(contents(&scope.conversation(id).contexts().project(&raw).unwrap().messages), wanted);
    for provider in Provider::ALL {
        let options = ContextOptions { provider, ..ContextOptions::new(10_000) };
        let context = scope.conversation(id).contexts().build(&options).unwrap();
        assert_valid(provider, &context);
        let text = prompt(&context);
        in_order(&text, &wanted);
        assert!(!text.contains("secret.txt"), "{text}");
    }
}

/// Regression: a participant was told of the call, and `last_n` counted it, where no other prompt had it.
#[test]
fn participants_are_not_told_of_a_call_whose_result_was_edited_away() {
    let (_stage, stores) = stores();
    for store in stores {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        scope.say(id, NewTurn::user("first"));
        let call = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]});
        scope.say(id, NewTurn::message(call.to_string()));
        let result = scope.say(id, NewTurn::tool_result("c1", "nothing there"));
        scope.say(id, NewTurn::assistant("done"));
        let told = |last_n| {
            let options = ContextOptions {
                participants: vec!["ana".into()],
                provider: Provider::OpenaiChat,
                last_n,
                ..ContextOptions::new(9000)
            };
            json!(scope.conversation(id).contexts().build(&options).unwrap().messages).to_string()
        };
        assert!(told(None).contains("look"), "{}", told(None));
        scope.conversation(id).supersede(result.id, NewTurn::user("I looked myself.")).wait().unwrap();
        assert!(!told(None).contains("look>") && told(None).contains("I looked myself."), "{}", told(None));
        assert!(told(Some(3)).contains("first"), "{}", told(Some(3)));
    }
}

/// Any sequence of edits, aborts and replacements leaves a prompt that is valid for every provider, in the order in
/// which history shows the turns, and the same again from its receipt.
#[test]
fn whatever_is_edited_the_prompt_is_valid_and_in_reading_order() {
    let seed = seed(14);
    let _told = ToldOnFailure(seed);
    for round in 0..40 {
        let mut dice = Dice::new(seed.wrapping_add(round));
        let (_store, scope) = memory();
        let id = scope.begin();
        let chat = scope.conversation(id);
        // Places and their words, where a turn has words; receipts, and what they stood for.
        let mut model: Vec<(u64, TurnId, Option<String>)> = Vec::new();
        let mut receipts: Vec<(u64, String)> = Vec::new();
        for n in 0..40 {
            let text = format!("word{n}x");
            let call = json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": format!("c{n}"), "type": "function", "function": {"name": "ls", "arguments": "{}"}}]});
            let some = |dice: &mut Dice, model: &[(u64, TurnId, Option<String>)]| {
                (!model.is_empty()).then(|| dice.roll(model.len()))
            };
            match dice.roll(8) {
                0 | 1 => {
                    let turn = scope.say(id, NewTurn::user(&text));
                    model.push((turn.seq, turn.id, Some(text)));
                }
                2 => {
                    let turn = scope.say(id, NewTurn::assistant(&text));
                    model.push((turn.seq, turn.id, Some(text)));
                }
                3 => {
                    let turn = scope.say(id, NewTurn::message(call.to_string()));
                    model.push((turn.seq, turn.id, None));
                    if dice.once_in(2) {
                        let result =
                            json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": "done"});
                        let turn = scope.say(id, NewTurn::message(result.to_string()));
                        model.push((turn.seq, turn.id, None));
                    }
                }
                4 | 5 => {
                    let Some(at) = some(&mut dice, &model) else { continue };
                    let (new, said) = match dice.roll(3) {
                        0 => (NewTurn::message(call.to_string()), None),
                        1 => (NewTurn::user(&text), Some(text)),
                        _ => (NewTurn::assistant(&text), Some(text)),
                    };
                    let turn = chat.supersede(model[at].1, new).wait().unwrap().turns.remove(0);
                    (model[at].1, model[at].2) = (turn.id, said);
                }
                6 => {
                    // An aborted turn, and sometimes one that stands in its place.
                    let open = chat.open(Default::default()).wait().unwrap();
                    let between = scope.say(id, NewTurn::user(&text));
                    chat.open_turn(open.id).abort("enough", None).wait().unwrap();
                    model.push((between.seq, between.id, Some(text)));
                    if dice.once_in(2) {
                        let again = format!("again{n}x");
                        let turn = chat.supersede(open.id, NewTurn::assistant(&again)).wait().unwrap();
                        model.push((open.seq, turn.turns[0].id, Some(again)));
                    }
                }
                _ => {
                    if let Ok(context) = chat.contexts().build(&ContextOptions::new(100_000)) {
                        receipts.push((chat.contexts().record(&context).unwrap().seq, prompt(&context)));
                    }
                }
            }
            model.sort_by_key(|(place, ..)| *place);
        }
        let turns = history(&scope, id, HistoryQuery { limit: 1000, ..HistoryQuery::default() });
        let shown: Vec<(u64, TurnId)> = turns.iter().map(|turn| (turn.place, turn.id)).collect();
        assert_eq!(shown, model.iter().map(|(place, turn, _)| (*place, *turn)).collect::<Vec<_>>());
        assert!(turns.iter().all(|turn| turn.status == Status::Complete));
        let said: Vec<&str> = model.iter().filter_map(|(.., text)| text.as_deref()).collect();
        for provider in Provider::ALL {
            let options = ContextOptions { provider, ..ContextOptions::new(100_000) };
            let context = chat.contexts().build(&options).unwrap();
            assert_valid(provider, &context);
            in_order(&prompt(&context), &said);
        }
        for (seq, was) in receipts {
            assert_eq!(prompt(&chat.contexts().replay_at(seq).unwrap()), was);
        }
    }
}

/// Only the command line used to keep the author of an edited turn.
#[test]
fn an_edit_is_by_the_author_of_the_turn_unless_it_names_another() {
    let (_store, scope) = memory();
    let id = scope.begin();
    let turn = scope.say(id, NewTurn::user("Q").by("ana"));
    let by = |scope: &Tenant, new: NewTurn| {
        let (_, branched) = scope.conversation(id).edit_and_branch(turn.id, new).unwrap();
        branched.turns[0].actor.clone()
    };
    assert_eq!(by(&scope, NewTurn::user("Q1")).as_deref(), Some("ana"));
    assert_eq!(by(&scope, NewTurn::user("Q1").by("ben")).as_deref(), Some("ben"));
    // Whoever may not act as the author speaks for itself.
    let carl = scope.called_by(Caller::default().acting_as(vec!["carl".into()]).unwrap());
    assert_eq!(by(&carl, NewTurn::user("Q1")).as_deref(), Some("carl"));
    assert_eq!(edit(&scope, id, turn.id, "Q2").actor.as_deref(), Some("ana"));
}

/// A fork from before the system prompt was cleared had it in its prompts, and nowhere else.
#[test]
fn a_fork_has_the_system_prompt_that_its_settings_have() {
    let (_store, scope) = memory();
    let id = scope
        .begin_with(Settings {
            system_prompt: Some(Some(SystemPrompt::new("The old prompt.".into()))),
            ..Settings::default()
        })
        .id;
    let turn = scope.say(id, NewTurn::user("Q"));
    let before = scope.conversation(id).get().unwrap().head.seq;
    let cleared = Settings { system_prompt: Some(None), ..Settings::default() };
    scope.conversation(id).update(cleared).wait().unwrap();
    let chat = scope.conversation(id);
    let forks = [
        chat.fork(before).wait().unwrap().id(),
        chat.edit_and_branch(turn.id, NewTurn::user("other")).unwrap().0.id(),
    ];
    for fork in forks {
        let context = scope.conversation(fork).contexts().build(&ContextOptions::new(1000)).unwrap();
        assert_eq!(context.system, None);
        assert!(scope.conversation(fork).get().unwrap().system_prompt.is_none());
    }
}
