//! Numbers of a tenant: tokens by day, events by kind, and exports without secrets.

use crate::stage::{START, Short, Stage, Still, refused};
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_engine::{
    Event, Everturn, ForkOptions, Format, ListQuery, NewConversation, NewStream, NewTurn, Options, Order,
    Price, Role, Tokens,
};
use serde_json::json;
use std::sync::Arc;

const DAY_S: u64 = 86_400;

/// A store in memory and one in a file, whose clock is moved by hand.
fn stores(prices: Vec<Price>) -> (Stage, Vec<(Everturn, Arc<Still>)>) {
    let stage = Stage::new();
    let options = |still: &Arc<Still>| Options { prices: prices.clone(), ..still.options() };
    let (one, two) = (Still::new(1), Still::new(2));
    let memory = Everturn::open_with("memory:", options(&one)).unwrap();
    let file = stage.open_with(options(&two));
    (stage, vec![(memory, one), (file, two)])
}

fn reply(model: Option<&str>, prompt: u64, completion: u64) -> NewTurn {
    let tokens = Some(Tokens { prompt: Some(prompt), completion: Some(completion) });
    NewTurn { tokens, model: model.map(str::to_string), ..NewTurn::text(Role::Assistant, "Yes.") }
}

#[test]
fn tokens_are_counted_by_day_and_model_each_call_once() {
    let prices = vec![Price { model: "large".into(), prompt: 2.0, completion: 10.0 }];
    let (_stage, stores) = stores(prices);
    for (store, still) in stores {
        let scope = store.tenant("acme").unwrap();
        still.set(START.plus_s(10 * DAY_S));
        let id = scope.create("Counted").wait().unwrap().id();
        scope.say(id, NewTurn::user("How much?"));
        scope.say(id, reply(Some("large"), 1000, 100));
        let long_ago = NewTurn { occurred_at: Some(START), ..reply(Some("small"), 7, 1) };
        scope.say(id, long_ago);
        // A fork inherits calls and does not pay for them again.
        let at = scope.conversation(id).get().unwrap().head.seq;
        let fork = scope
            .conversation(id)
            .fork(ForkOptions { at_seq: Some(at), ..ForkOptions::default() })
            .wait()
            .unwrap();
        still.advance_s(DAY_S as i64);
        let open = fork.open(NewStream::default()).wait().unwrap();
        still.advance_s(3);
        fork.open_turn(open.id).commit(reply(None, 50, 5)).wait().unwrap();

        let usage = scope.token_usage(30, None).unwrap();
        assert_eq!((usage.from.as_str(), usage.through.as_str()), ("2025-12-14", "2026-01-12"));
        let rows: Vec<_> = usage
            .days
            .iter()
            .map(|row| {
                let spent = row.spent;
                let model = row.model.as_deref().unwrap_or("-");
                (row.day.as_str(), model, spent.calls, spent.prompt, spent.completion, spent.ms, spent.cost)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("2026-01-01", "small", 1, 7, 1, 0, None),
                ("2026-01-11", "large", 1, 1000, 100, 0, Some(0.003)),
                ("2026-01-12", "-", 1, 50, 5, 3000, None),
            ]
        );
        let sums: Vec<_> =
            usage.conversations.iter().map(|one| (one.conversation, one.spent.prompt)).collect();
        assert_eq!(sums, [(id, 1007), (fork.id(), 50)]);
        assert_eq!(usage.conversations[0].title.as_deref(), Some("Counted"));
        assert_eq!(usage.conversations[0].spent.cost, Some(0.003));

        // What was counted is not counted again, and new calls are added.
        scope.say(id, reply(Some("large"), 1, 1));
        assert_eq!(scope.token_usage(30, None).unwrap().conversations[0].spent.prompt, 1008);
        let today = scope.token_usage(1, None).unwrap();
        assert_eq!(today.days.iter().map(|row| row.spent.calls).sum::<u64>(), 2);
        let one = scope.token_usage(30, Some(fork.id())).unwrap();
        assert_eq!(one.conversations.len(), 1);

        // Others' are not there, deleted ones neither, also when the id is used again.
        let other = store.tenant("globex").unwrap();
        assert_eq!(other.token_usage(30, None).unwrap().days, []);
        refused(other.token_usage(30, Some(id)), "conversation.absent", "");
        scope.conversation(id).delete("test").wait().unwrap();
        still.advance_s(1);
        let again = NewConversation { id: Some(id), ..NewConversation::default() };
        if scope.create(again).wait().is_ok() {
            scope.say(id, reply(Some("large"), 5, 5));
            assert_eq!(scope.token_usage(30, Some(id)).unwrap().conversations[0].spent.prompt, 5);
        }
        refused(scope.token_usage(0, None), "usage.days", "");
        refused(scope.token_usage(u64::MAX, None), "usage.days", "");
    }
}

#[test]
fn events_are_found_by_kind_in_both_directions() {
    let (_stage, stores) = stores(Vec::new());
    for (store, _) in stores {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        let body = || Raw::of(&json!({"n": 1})).unwrap();
        for n in 0..1200 {
            match n % 300 {
                7 => drop(scope.conversation(id).log().append("snapshot", None, body()).wait().unwrap()),
                _ => drop(scope.say(id, NewTurn::user("x"))),
            }
        }
        let chat = scope.conversation(id);
        let kinds = ["snapshot".to_string()];
        let seqs = |data: &[Event]| data.iter().map(|event| event.seq).collect::<Vec<u64>>();
        let all = [9, 309, 609, 909];
        let page = chat.log().find(&kinds, None, Order::Ascending, 10).unwrap();
        assert_eq!((seqs(&page.data), page.next), (all.to_vec(), None));
        let mut found = Vec::new();
        let mut from = None;
        loop {
            let page = chat.log().find(&kinds, from, Order::Descending, 3).unwrap();
            found.extend(seqs(&page.data));
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(found, [909, 609, 309, 9]);
        let last = chat.log().find(&[], None, Order::Descending, 2).unwrap();
        assert_eq!((seqs(&last.data), last.next), (vec![1201, 1200], Some(1199)));
        let first = chat.log().find(&[], Some(2), Order::Descending, 5).unwrap();
        assert_eq!((seqs(&first.data), first.next), (vec![2, 1], None));
        assert!(chat.log().find(&kinds, Some(0), Order::Descending, 5).unwrap().data.is_empty());
        let beyond = chat.log().find(&kinds, Some(u64::MAX), Order::Ascending, 5).unwrap();
        assert_eq!((beyond.data.len(), beyond.next), (0, None));
        assert!(chat.log().find(&["none".into()], None, Order::Ascending, 5).unwrap().next.is_none());
    }
}

#[test]
fn forks_of_a_conversation_are_listed() {
    let (_stage, stores) = stores(Vec::new());
    for (store, _) in stores {
        let scope = store.tenant("acme").unwrap();
        let id = scope.begin();
        scope.say(id, NewTurn::user("x"));
        let fork = scope.conversation(id).fork(ForkOptions::default()).wait().unwrap().id();
        scope.begin();
        let forks = |of: ConversationId| -> Vec<ConversationId> {
            let query = ListQuery { forked_from: Some(of), ..ListQuery::default() };
            scope.list(query).unwrap().data.iter().map(|one| one.id).collect()
        };
        assert_eq!((forks(id), forks(fork)), (vec![fork], vec![]));
    }
}

#[test]
fn a_redacted_export_has_no_secret_and_no_address_in_any_format() {
    let (_stage, stores) = stores(Vec::new());
    let key = format!("AKIA{}", "IOSFODNN7EXAMPLE");
    let (mail, phone) = ("zoe@example.org", "+49 30 901820");
    for (store, _) in stores {
        let scope = store.tenant("acme").unwrap();
        let words = || format!("{key} of {mail}, {phone}");
        let new = NewConversation {
            settings: Settings {
                title: Some(Some(format!("About {mail}"))),
                system_prompt: Some(Some(everturn_core::conversation::SystemPrompt::new(words()))),
                metadata: [("by".to_string(), Raw::of(&words()).unwrap())].into(),
                ..Settings::default()
            },
            ..NewConversation::default()
        };
        let chat = scope.create(new).wait().unwrap();
        chat.append(NewTurn::user(&words()).by(mail)).wait().unwrap();
        let call = json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": "call_1", "name": "mail", "input": {"to": mail, "text": format!("line\n{key}")}}]});
        chat.append(NewTurn::message(call.to_string())).wait().unwrap();
        chat.append(NewTurn::tool_result("call_1", &words())).wait().unwrap();
        chat.append(NewTurn::user("Call \u{200b}nobody").by("ana")).wait().unwrap();
        chat.log()
            .append("note", Some("ana".into()), Raw::of(&json!({"text": words()})).unwrap())
            .wait()
            .unwrap();
        for format in Format::ALL {
            let mut out = Vec::new();
            let written = chat.export_redacted(format, &mut out, &mut |_| {});
            if format == Format::Jsonl {
                refused(written, "export.redacted", "");
                continue;
            }
            written.unwrap();
            let text = String::from_utf8(out).unwrap();
            for secret in [key.as_str(), mail, phone, "901820"] {
                assert!(!text.contains(secret), "{format}: {secret} is in {text}");
            }
            assert!(text.contains("nobody") && text.contains("‹email›"), "{format}: {text}");
            assert!(
                text.contains("call_1") || matches!(format, Format::Markdown | Format::Html | Format::Gemini),
                "{text}"
            );
        }
        // The conversation itself is as it was.
        let mut out = Vec::new();
        chat.export(Format::Markdown, &mut out, &mut |_| {}).unwrap();
        assert!(String::from_utf8(out).unwrap().contains(mail));
    }
}
