//! Looking up, listing and folding.

use super::*;
use crate::{ConversationQuery, ListOrder, TenantUsage, TurnQuery};
use everturn_core::Error;
use everturn_core::conversation::{Lifecycle, Retention, Settings, SystemPrompt};
use everturn_core::event::{Draft, kind};
use everturn_core::id::{ConversationId, Key};
use everturn_core::json::Raw;
use everturn_core::limits::{EPHEMERAL_TTL_S, PAGE_BYTES_MAX};
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Successor, Turn};
use everturn_core::write::{Action, Write};

/// Consecutive pages of events form the whole log.
pub fn events_are_read_in_pages(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, key) = (m.key(), m.key());
    create(store, &parent, vec![m.created(), m.say("a"), m.say("b"), m.say("c")]);
    done(store, m.fork(&key, &parent, 3));
    append(store, &key, vec![m.say("d"), m.say("e")]);
    let whole = log(store, &key);
    for size in 1..=whole.len() + 1 {
        let mut joined = Vec::new();
        loop {
            let page = store.events(&key, joined.len() as u64, size).expect("a page");
            assert!(page.len() <= size);
            if page.is_empty() {
                break;
            }
            joined.extend(page);
        }
        assert_eq!(joined, whole, "pages of {size}");
    }
    assert!(store.events(&key, 0, 0).expect("a page").is_empty());
    assert!(store.events(&key, u64::MAX, 10).expect("a page").is_empty());
}

/// A page of large turns is limited by bytes, and the pages together are complete: in a fork and its parent,
/// settled or not.
pub fn pages_end_when_their_bytes_do(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, key) = (m.key(), m.key());
    let large = || m.say(&"x".repeat(PAGE_BYTES_MAX / 3));
    create(store, &parent, vec![m.created(), m.say("a"), large(), large(), large(), large(), m.say("b")]);
    done(store, m.fork(&key, &parent, 6));
    append(store, &key, vec![m.say("c"), large(), large()]);
    append(store, &key, vec![large(), large(), m.say("d")]);
    let (mut after, mut sizes) = (0, Vec::new());
    loop {
        let page = store.events(&key, after, 1000).expect("a page");
        let Some(last) = page.last() else { break };
        after = last.seq;
        let bytes: usize = page.iter().filter_map(|event| event.text()).map(str::len).sum();
        assert!(bytes < 2 * PAGE_BYTES_MAX, "{bytes}");
        sizes.push(page.len());
    }
    assert_eq!((sizes.iter().sum::<usize>(), sizes.len()), (13, 3), "{sizes:?}");
    for descending in [false, true] {
        let base = TurnQuery { descending, bytes_max: Some(PAGE_BYTES_MAX), ..TurnQuery::default() };
        let seqs = joined(store, &key, &base, 100).iter().map(|turn| turn.seq).collect::<Vec<_>>();
        let mut all: Vec<u64> = history(store, &key).iter().map(|turn| turn.seq).collect();
        if descending {
            all.reverse();
        }
        assert_eq!(seqs, all);
        let first = store.turns(&key, &TurnQuery { limit: 100, ..base }).expect("a page");
        assert!(first.len() < all.len() && !first.is_empty(), "{}", first.len());
    }
}

/// Usage of a tenant is counted from its own rows: inherited events once, and neither erased bodies nor deleted
/// conversations.
pub fn what_a_tenant_stores_is_counted(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, fork, gone) = (m.key(), m.key(), m.key());
    let tenant = &parent.tenant;
    assert_eq!(store.usage(tenant).expect("counted"), TenantUsage::default());
    let said = m.say("words");
    let turn = turn_of(&said);
    create(store, &parent, vec![m.created(), said, m.say("more words")]);
    done(store, m.fork(&fork, &parent, 3));
    append(store, &fork, vec![m.say("of the fork")]);
    let asset = |id: &str, bytes: u64| {
        let sha256 = everturn_core::chain::Hash::of(id.as_bytes());
        let body =
            format!(r#"{{"_type":"transcript_asset","id":"{id}","sha256":"{sha256}","bytes":{bytes}}}"#);
        m.draft(kind::ASSET_ADDED, body)
    };
    append(store, &parent, vec![asset("asset_a", 20)]);
    create(store, &gone, vec![m.created(), m.say("deleted"), asset("asset_b", 7)]);
    let bytes = |key: &Key, from: usize| {
        log(store, key)
            .iter()
            .skip(from)
            .filter_map(|event| event.text())
            .map(|text| text.len() as u64)
            .sum::<u64>()
    };
    let expected = bytes(&parent, 0) + bytes(&fork, 3) + bytes(&gone, 0);
    let usage = store.usage(tenant).expect("counted");
    assert_eq!((usage.conversations, usage.turns, usage.bytes), (3, 4, expected));
    assert_eq!((usage.assets, usage.asset_bytes), (2, 27));
    done(store, m.delete(&gone));
    done(store, m.erase(&parent, &[turn]));
    let usage = store.usage(tenant).expect("counted");
    let expected = bytes(&parent, 0) + bytes(&fork, 3);
    assert_eq!(
        (usage.conversations, usage.turns, usage.bytes),
        (2, 3, expected),
        "an erased turn is still a turn"
    );
    assert_eq!((usage.assets, usage.asset_bytes), (1, 20));
    assert_eq!(store.usage(&super::tenant("globex")).expect("counted"), TenantUsage::default());
}

/// A conversation with several actors, superseded and aborted turns, forked in the middle.
fn mixed(store: &dyn Backend, m: &Maker) -> Key {
    let (parent, key) = (m.key(), m.key());
    let (one, two, open) = (m.say("one"), m.say("two"), m.open());
    let (old, new, opened) = (turn_of(&one), turn_of(&two), turn_of(&open));
    create(
        store,
        &parent,
        vec![m.created(), one, m.turn("bot", Role::Assistant, &message("assistant", "hi"))],
    );
    append(store, &parent, vec![two, m.supersede(old, new), open, m.end(kind::ABORTED, opened, "uh")]);
    append(store, &parent, vec![m.turn("tool", Role::Tool, &message("tool", "42")), m.say("three")]);
    done(store, m.fork(&key, &parent, 8));
    let (four, five) = (m.say("four"), m.say("five"));
    let (replaced, by) = (turn_of(&four), turn_of(&five));
    append(store, &key, vec![four, m.draft("mask_generated", "{}"), five, m.supersede(replaced, by)]);
    append(store, &key, (0..7).map(|n| m.say(&format!("six {n}"))).collect());
    key
}

/// For any order, filter and page size, pages joined by `before` or `after` give every turn once, in order.
pub fn history_pages_join_to_the_whole(store: &dyn Backend) {
    let m = Maker::default();
    let key = mixed(store, &m);
    let everything = history(store, &key);
    assert_eq!(everything.len(), 14);
    for descending in [false, true] {
        for whole_log in [false, true] {
            for actors in [vec![], vec!["ada".to_string()], vec!["bot".into(), "tool".into()]] {
                let base = TurnQuery { descending, whole_log, actors, ..TurnQuery::default() };
                let mut expected: Vec<Turn> = everything.clone();
                expected.retain(|turn| whole_log || turn.superseded_by.is_none());
                expected.retain(|t| {
                    base.actors.is_empty() || t.actor.as_ref().is_some_and(|a| base.actors.contains(a))
                });
                let position = |turn: &Turn| if whole_log { turn.seq } else { turn.place };
                expected.sort_by_key(position);
                if descending {
                    expected.reverse();
                }
                for size in [1, 2, 3, 5, 100] {
                    assert_eq!(joined(store, &key, &base, size), expected, "{base:?} in pages of {size}");
                }
                let (after, before) = (Some(4), Some(13));
                expected.retain(|turn| position(turn) > 4 && position(turn) < 13);
                let between = TurnQuery { after, before, limit: 100, ..base };
                assert_eq!(store.turns(&key, &between).expect("a page"), expected);
            }
        }
    }
    let none = |query: TurnQuery| store.turns(&key, &query).expect("a page").is_empty();
    assert!(none(TurnQuery { limit: 0, ..TurnQuery::default() }));
    assert!(none(TurnQuery { before: Some(0), limit: 9, ..TurnQuery::default() }));
    assert!(none(TurnQuery { after: Some(u64::MAX), limit: 9, ..TurnQuery::default() }));
    assert!(none(TurnQuery { before: Some(3), after: Some(9), limit: 9, ..TurnQuery::default() }));
    assert!(none(TurnQuery { actors: vec!["nobody".into()], limit: 9, ..TurnQuery::default() }));
}

fn joined(store: &dyn Backend, key: &Key, base: &TurnQuery, size: usize) -> Vec<Turn> {
    let mut all: Vec<Turn> = Vec::new();
    loop {
        let edge = all.last().map(|turn| if base.whole_log { turn.seq } else { turn.place });
        let mut query = TurnQuery { limit: size, ..base.clone() };
        if base.descending {
            query.before = edge;
        } else {
            query.after = edge;
        }
        let page = store.turns(key, &query).expect("a page");
        assert!(page.len() <= size);
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

/// Only the newest version of an edited turn is shown; the others are returned with `whole_log`.
pub fn history_leaves_out_what_is_superseded_unless_asked(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let drafts = [m.say("first try"), m.say("second try"), m.say("third try")];
    let [one, two, three] = [0, 1, 2].map(|n| turn_of(&drafts[n]));
    create(store, &key, [vec![m.created()], drafts.to_vec()].concat());
    append(store, &key, vec![m.supersede(one, two), m.supersede(two, three)]);
    let all = history(store, &key);
    let successors: Vec<_> = all.iter().map(|turn| turn.superseded_by).collect();
    assert_eq!(successors, [Some(Successor::Turn(two)), Some(Successor::Turn(three)), None]);
    let shown = store.turns(&key, &TurnQuery { limit: 10, ..TurnQuery::default() }).expect("a page");
    assert_eq!(shown, all[2..]);
    // A superseded turn is unchanged: its text and `seq` are as before.
    let old = store.turn(&key.tenant, one).expect("it was said");
    assert_eq!((old.seq, old.text(|_| None)), (2, "first try".to_string()));
    assert_eq!(store.conversation(&key).expect("it is there").turns, 3);
}

/// The texts of the current turns in reading order.
fn read(store: &dyn Backend, key: &Key) -> Vec<String> {
    let query = TurnQuery { limit: 100, ..TurnQuery::default() };
    let turns = store.turns(key, &query).expect("a page");
    turns.iter().map(|turn| turn.text(|_| None)).collect()
}

/// A replacement is read in the place of the turn that it replaces, however often that is edited; in pages of any size
/// and in both directions, and as of any `seq`.
pub fn an_edit_keeps_its_place(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let said = ["Q1", "A1", "Q2", "A2"].map(|text| m.say(text));
    let [q1, a1, ..] = [0, 1, 2, 3].map(|n| turn_of(&said[n]));
    create(store, &key, [vec![m.created()], said.to_vec()].concat());
    let edit = |old, text: &str| {
        let new = m.say(text);
        let by = turn_of(&new);
        append(store, &key, vec![new, m.supersede(old, by)]);
        by
    };
    let second = edit(q1, "Q1'");
    assert_eq!(read(store, &key), ["Q1'", "A1", "Q2", "A2"]);
    edit(a1, "A1'");
    let third = edit(second, "Q1''");
    append(store, &key, vec![m.say("Q3")]);
    assert_eq!(read(store, &key), ["Q1''", "A1'", "Q2", "A2", "Q3"]);
    let turn = store.turn_in(&key, third).expect("it was said");
    assert_eq!((turn.seq, turn.place), (10, 2));
    for descending in [false, true] {
        let base = TurnQuery { descending, ..TurnQuery::default() };
        let mut whole = read(store, &key);
        if descending {
            whole.reverse();
        }
        for size in 1..=6 {
            let pages = joined(store, &key, &base, size);
            assert_eq!(pages.iter().map(|turn| turn.text(|_| None)).collect::<Vec<_>>(), whole);
        }
    }
    for (as_of, was) in [
        (5, ["Q1", "A1", "Q2", "A2"]),
        (7, ["Q1'", "A1", "Q2", "A2"]),
        (9, ["Q1'", "A1'", "Q2", "A2"]),
        (11, ["Q1''", "A1'", "Q2", "A2"]),
    ] {
        for size in 1..=5 {
            let base = TurnQuery { as_of: Some(as_of), ..TurnQuery::default() };
            let then = joined(store, &key, &base, size);
            assert_eq!(then.iter().map(|turn| turn.text(|_| None)).collect::<Vec<_>>(), was, "as of {as_of}");
        }
    }
    let edits = |before, moved_after| {
        let query = TurnQuery {
            before: Some(before),
            moved_after: Some(moved_after),
            limit: 9,
            ..TurnQuery::default()
        };
        let turns = store.turns(&key, &query).expect("a page");
        turns.iter().map(|turn| turn.text(|_| None)).collect::<Vec<_>>()
    };
    assert_eq!(edits(99, 0), ["Q1''", "A1'"]);
    assert_eq!(
        (edits(3, 0), edits(99, 9), edits(99, 11)),
        (vec!["Q1''".into()], vec!["Q1''".into()], vec![])
    );
    // The log keeps the order of arrival.
    assert_eq!(texts(store, &key), ["Q1", "A1", "Q2", "A2", "Q1'", "A1'", "Q1''", "Q3"]);
    store.rebuild().expect("rebuilt");
    assert_eq!(read(store, &key), ["Q1''", "A1'", "Q2", "A2", "Q3"]);
    assert_eq!(store.check().expect("checked"), []);
}

/// An edit between two pages neither moves nor repeats anything.
pub fn an_edit_between_two_pages_repeats_nothing(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let said = ["Q1", "A1", "Q2", "A2"].map(|text| m.say(text));
    let ids = [0, 1, 2, 3].map(|n| turn_of(&said[n]));
    create(store, &key, [vec![m.created()], said.to_vec()].concat());
    let page = |query: TurnQuery| store.turns(&key, &TurnQuery { limit: 2, ..query }).expect("a page");
    let text = |turns: &[Turn]| turns.iter().map(|turn| turn.text(|_| None)).collect::<Vec<_>>();
    let first = page(TurnQuery::default());
    let last = page(TurnQuery { descending: true, ..TurnQuery::default() });
    for n in [1, 2] {
        let new = m.say(&format!("{n}, edited"));
        let by = turn_of(&new);
        append(store, &key, vec![new, m.supersede(ids[n], by)]);
    }
    let next = page(TurnQuery { after: first.last().map(|turn| turn.place), ..TurnQuery::default() });
    assert_eq!(
        (text(&first), text(&next)),
        (vec!["Q1".into(), "A1".into()], vec!["2, edited".into(), "A2".into()])
    );
    let before = last.last().map(|turn| turn.place);
    let next = page(TurnQuery { before, descending: true, ..TurnQuery::default() });
    assert_eq!(
        (text(&last), text(&next)),
        (vec!["A2".into(), "Q2".into()], vec!["1, edited".into(), "Q1".into()])
    );
}

/// A fork reads in the order of its fork point, edits inherited turns in their places, and takes an inherited turn as
/// a replacement without its parent noticing.
pub fn a_fork_keeps_its_own_places(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, early, late) = (m.key(), m.key(), m.key());
    let said = ["one", "two", "three"].map(|text| m.say(text));
    let [one, two, three] = [0, 1, 2].map(|n| turn_of(&said[n]));
    create(store, &parent, [vec![m.created()], said.to_vec()].concat());
    let better = m.say("one, better");
    let by = turn_of(&better);
    append(store, &parent, vec![better, m.supersede(one, by)]);
    done(store, m.fork(&early, &parent, 4));
    done(store, m.fork(&late, &parent, 6));
    assert_eq!(read(store, &early), ["one", "two", "three"]);
    assert_eq!(read(store, &late), ["one, better", "two", "three"]);
    let again = m.say("one, again");
    let newest = turn_of(&again);
    append(store, &late, vec![again, m.supersede(by, newest)]);
    assert_eq!(read(store, &late), ["one, again", "two", "three"]);
    append(store, &early, vec![m.supersede(one, three), m.say("four")]);
    assert_eq!(read(store, &early), ["three", "two", "four"]);
    for size in 1..=3 {
        let pages = joined(store, &early, &TurnQuery::default(), size);
        let ids: Vec<_> = pages.iter().map(|turn| turn.id).collect();
        assert_eq!((ids.len(), &ids[..2]), (3, &[three, two][..]), "pages of {size}");
    }
    assert_eq!(read(store, &parent), ["one, better", "two", "three"]);
}

/// A view that begins after an edited turn does not count its replacement, which is read before the view.
pub fn an_edit_of_what_a_view_leaves_out_does_not_count(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let said = ["one", "two", "three"].map(|text| m.say(text));
    let [one, two, three] = [0, 1, 2].map(|n| turn_of(&said[n]));
    create(store, &key, [vec![m.created()], said.to_vec()].concat());
    for (old, text) in [(one, "one, better"), (three, "three, better")] {
        let new = m.say(text);
        let by = turn_of(&new);
        append(store, &key, vec![new, m.supersede(old, by)]);
    }
    let fallen = |seq| store.fallen_after(&key, seq).expect("counted");
    assert_eq!([0, 1, 2, 3, 4].map(fallen), [2, 2, 2, 2, 2]);
    let fork = m.key();
    done(store, m.fork(&fork, &key, 6));
    assert_eq!([0, 2, 3].map(|seq| store.fallen_after(&fork, seq).expect("counted")), [1, 1, 1]);
    append(store, &fork, vec![m.supersede(two, three)]);
    assert_eq!([0, 2, 3].map(|seq| store.fallen_after(&fork, seq).expect("counted")), [2, 2, 2]);
}

/// Superseding the same turn twice would leave two current versions.
pub fn a_turn_is_superseded_once(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (one, two, three, open) = (m.say("1"), m.say("2"), m.say("3"), m.open());
    let [a, b, c, opened] = [&one, &two, &three, &open].map(turn_of);
    create(store, &key, vec![m.created(), one, two, three, m.supersede(a, b), open]);
    let error = refused(store, addition(&key, vec![m.supersede(a, c)]), "turn.superseded");
    assert!(matches!(error, Error::Conflict(_)) && error.text().contains(&b.to_string()));
    refused(store, addition(&key, vec![m.supersede(opened, c)]), "turn.open");
    // An aborted turn has no replacement yet.
    append(store, &key, vec![m.end(kind::ABORTED, opened, "uh")]);
    append(store, &key, vec![m.supersede(opened, c)]);
    assert_eq!(store.turn_in(&key, opened).expect("it was said").superseded_by, Some(Successor::Turn(c)));
}

/// A conversation is the fold of its settings events, later ones over earlier ones.
pub fn settings_fold_into_the_conversation(store: &dyn Backend) {
    let m = Maker::default();
    let (key, before) = (m.key(), m.key());
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (k.to_string(), raw(v))).collect();
    let settings = Settings {
        owner: Some(Some("ada".into())),
        title: Some(Some("Tëa".into())),
        metadata: map(&[("a", "1.50"), ("b", "{\"z\":1,\"a\":2}"), ("c", "\"gone\"")]),
        ttl: Some(Some(60)),
        policy: map(&[("redaction", "\"mask\"")]),
        system_prompt: Some(Some(SystemPrompt::new("Be brief.".into()))),
        predecessor: Some(before.id),
        ..Settings::default()
    };
    create(store, &key, vec![m.event(kind::CREATED, &settings), m.say("hello")]);
    let one = store.conversation(&key).expect("it is there");
    assert_eq!((one.owner.as_deref(), one.title.as_deref(), one.ttl), (Some("ada"), Some("Tëa"), Some(60)));
    assert_eq!(one.metadata["a"].get(), "1.50", "numbers keep their spelling");
    assert_eq!(one.metadata["b"].get(), "{\"z\":1,\"a\":2}", "keys keep their order");
    assert_eq!(one.policy["redaction"].get(), "\"mask\"");
    assert_eq!(one.predecessor, Some(before.id));
    assert_eq!(one.expires(), Some(one.updated.plus_s(60)));
    let prompt = one.system_prompt.expect("it was set");
    assert_eq!((prompt.seq, prompt.sha256), (1, SystemPrompt::new("Be brief.".into()).sha256));

    let change = Settings {
        title: Some(None),
        metadata: map(&[("c", "null"), ("d", "true")]),
        ttl: Some(None),
        system_prompt: Some(None),
        ..Settings::default()
    };
    append(store, &key, vec![m.update(change), m.state(Lifecycle::Archived)]);
    let two = store.conversation(&key).expect("it is there");
    assert_eq!((two.owner.as_deref(), two.title.as_deref(), two.ttl), (Some("ada"), None, None));
    assert_eq!(two.metadata.keys().collect::<Vec<_>>(), ["a", "b", "d"]);
    assert_eq!((two.state, two.system_prompt), (Lifecycle::Archived, None));

    let ephemeral = Settings { retention: Some(Retention::Ephemeral), ..Settings::default() };
    append(store, &key, vec![m.update(ephemeral)]);
    let three = store.conversation(&key).expect("it is there");
    assert_eq!((three.retention, three.ttl), (Retention::Ephemeral, Some(EPHEMERAL_TTL_S)));
    assert_eq!((three.turns, three.created), (1, one.created));
}

/// Actors that began or ended a turn are participants; those that only appear in other events are not.
pub fn participants_are_those_who_spoke(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let open = m.open();
    let turn = turn_of(&open);
    create(store, &key, vec![m.created(), m.say("hi"), open, m.say("again")]);
    append(
        store,
        &key,
        vec![Draft { actor: Some("night shift".into()), ..m.end(kind::COMMITTED, turn, "!") }],
    );
    done(store, m.erase(&key, &[turn]));
    let conversation = store.conversation(&key).expect("it is there");
    assert_eq!(conversation.participants, ["ada", "bot", "night shift"]);
    assert_eq!(store.turn_in(&key, turn).expect("it was said").actor.as_deref(), Some("bot"));
}

fn listed(store: &dyn Backend, query: &ConversationQuery) -> Vec<ConversationId> {
    let found = store.conversations(&tenant("acme"), query).expect("a listing");
    found.into_iter().map(|conversation| conversation.id).collect()
}

/// Conversations are listed by their latest turn or their last change, newest first; pages joined by their last entry give
/// the whole list, also where several have the same time.
pub fn conversations_are_listed_latest_first(store: &dyn Backend) {
    let m = Maker::default();
    let keys: Vec<Key> = (0..7).map(|_| m.key()).collect();
    let at = Timestamp(1_800_000_000_000_000);
    for key in &keys {
        create(store, key, vec![Draft { at, ..m.created() }]);
    }
    create(store, &elsewhere(&keys[0]), vec![m.created()]);
    append(store, &keys[2], vec![Draft { at: at.plus_s(9), ..m.say("now") }]);
    append(store, &keys[5], vec![Draft { at: at.plus_s(5), ..m.say("before") }]);
    append(store, &keys[1], vec![Draft { at: Timestamp(0), ..m.say("by a wrong clock") }]);
    let long_ago = Some(Timestamp(1_600_000_000_000_000));
    append(store, &keys[6], vec![Draft { at: at.plus_s(7), occurred_at: long_ago, ..m.say("long ago") }]);
    // Nothing was said here, and nothing is said in the future.
    append(store, &keys[3], vec![Draft { at: at.plus_s(11), ..m.state(Lifecycle::Archived) }]);
    let future = Some(at.plus_s(99));
    append(store, &keys[4], vec![Draft { at: at.plus_s(3), occurred_at: future, ..m.say("by another") }]);
    for (order, expected) in
        [(ListOrder::Said, [2, 5, 4, 3, 0, 6, 1]), (ListOrder::Changed, [3, 2, 6, 5, 4, 1, 0])]
    {
        let expected: Vec<ConversationId> = expected.map(|n: usize| keys[n].id).to_vec();
        let all = ConversationQuery { order, limit: 100, ..ConversationQuery::default() };
        assert_eq!(listed(store, &all), expected, "{order:?}");
        for size in 1..=8 {
            let mut joined = Vec::new();
            let mut query = ConversationQuery { order, limit: size, ..ConversationQuery::default() };
            loop {
                let page = store.conversations(&tenant("acme"), &query).expect("a listing");
                let Some(last) = page.last() else { break };
                query.after = Some(order.position(last));
                joined.extend(page.iter().map(|conversation| conversation.id));
            }
            assert_eq!(joined, expected, "{order:?}, pages of {size}");
        }
        let since = ConversationQuery { since: Some(at.plus_s(5)), ..all };
        let number = if order == ListOrder::Said { 2 } else { 4 };
        assert_eq!(listed(store, &since), expected[..number], "{order:?}");
    }
    let all = ConversationQuery { limit: 100, ..ConversationQuery::default() };
    done(store, m.delete(&keys[5]));
    assert!(!listed(store, &all).contains(&keys[5].id));
}

/// `began` and `last_said` are the times of a conversation's turns, as stated; those that a fork inherits are in its first
/// event.
pub fn a_conversation_knows_when_it_was_said(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let at = |s: u64| Timestamp(1_500_000_000_000_000).plus_s(s);
    let said = |s: u64| Draft { occurred_at: Some(at(s)), ..m.say("then") };
    let times = |key: &Key| {
        let conversation = store.conversation(key).expect("it is there");
        (conversation.began, conversation.last_said)
    };
    create(store, &key, vec![m.created()]);
    assert_eq!(times(&key), (None, None));
    append(store, &key, vec![said(20), said(60), said(40)]);
    assert_eq!(times(&key), (Some(at(20)), Some(at(60))));
    let fork = m.key();
    let Write { action: Action::Create { parent, .. }, .. } = m.fork(&fork, &key, 3) else {
        panic!("it forks")
    };
    let inherited = Settings { parent, began: Some(at(20)), last_said: Some(at(60)), ..Settings::default() };
    let drafts = vec![m.event(kind::FORKED, &inherited)];
    done(store, Write { key: fork.clone(), action: Action::Create { drafts, parent, idempotency: None } });
    assert_eq!(times(&fork), (Some(at(20)), Some(at(60))));
    append(store, &fork, vec![said(70)]);
    assert_eq!(times(&fork), (Some(at(20)), Some(at(70))));
    let now = m.say("now");
    let at_now = now.at;
    append(store, &key, vec![said(10), now]);
    assert_eq!(times(&key), (Some(at(10)), Some(at_now)));
    store.rebuild().expect("a rebuild");
    assert_eq!((times(&key), times(&fork)), ((Some(at(10)), Some(at_now)), (Some(at(20)), Some(at(70)))));
}

/// Filters by project: its name, or a folder that it is in.
pub fn listing_filters_by_project(store: &dyn Backend) {
    let m = Maker::default();
    let about = |name: &str, value: serde_json::Value| {
        let key = m.key();
        let metadata = [(name.to_string(), Raw::of(&value).expect("it is JSON"))].into();
        create(store, &key, vec![m.event(kind::CREATED, &Settings { metadata, ..Settings::default() })]);
        key.id
    };
    let web = about("import", serde_json::json!({"format": "codex", "cwd": "/home/ada/web"}));
    let api = about("import", serde_json::json!({"format": "codex", "cwd": "/home/ada/api"}));
    let own = about("project", serde_json::json!("web"));
    about("project", serde_json::json!({"name": "web"}));
    let find = |project: &str, limit| {
        listed(
            store,
            &ConversationQuery { project: Some(project.into()), limit, ..ConversationQuery::default() },
        )
    };
    assert_eq!(find("Web", 9), [own, web]);
    assert_eq!(find("web", 1), [own]);
    assert_eq!(find("/home/ada", 9), [api, web]);
    assert_eq!(find("/home/ada/api/", 9), [api]);
    assert_eq!(find("home", 9), []);
}

/// Filters by agent: its name, or the beginning of it.
pub fn listing_filters_by_agent(store: &dyn Backend) {
    let m = Maker::default();
    let by = |name: &str, value: serde_json::Value| {
        let key = m.key();
        let metadata = [(name.to_string(), Raw::of(&value).expect("it is JSON"))].into();
        create(store, &key, vec![m.event(kind::CREATED, &Settings { metadata, ..Settings::default() })]);
        key.id
    };
    let claude = by("import", serde_json::json!({"format": "claude-code", "cwd": "/home/ada/web"}));
    let codex = by("import", serde_json::json!({"format": "codex"}));
    let own = by("agent", serde_json::json!("Codex"));
    by("project", serde_json::json!("codex"));
    let find = |agent: &str| {
        listed(
            store,
            &ConversationQuery { agent: Some(agent.into()), limit: 9, ..ConversationQuery::default() },
        )
    };
    assert_eq!(find("codex"), [own, codex]);
    assert_eq!(find("claude"), [claude]);
    assert_eq!(find("Claude-Code"), [claude]);
    assert_eq!((find("cod"), find(""), find("nobody")), (vec![], vec![], vec![]));
}

/// Filters by a part of the title in any (ASCII) case, and by state.
pub fn listing_filters_by_title_and_state(store: &dyn Backend) {
    let m = Maker::default();
    let titled = |title: Option<&str>| {
        let key = m.key();
        let settings = Settings { title: Some(title.map(str::to_string)), ..Settings::default() };
        create(store, &key, vec![m.event(kind::CREATED, &settings)]);
        key
    };
    let (trip, budget, percent, none) =
        (titled(Some("Trip to Köln")), titled(Some("BUDGET trip")), titled(Some("100%_sure")), titled(None));
    append(store, &budget, vec![m.state(Lifecycle::Archived)]);
    let find = |text: Option<&str>, state: Option<Lifecycle>| {
        listed(
            store,
            &ConversationQuery {
                text: text.map(str::to_string),
                state,
                limit: 9,
                ..ConversationQuery::default()
            },
        )
    };
    assert_eq!(find(Some("tRiP"), None), [budget.id, trip.id]);
    assert_eq!(find(Some("Köln"), None), [trip.id]);
    assert_eq!(find(Some("kölN"), None), [trip.id]);
    assert_eq!(find(Some("kÖln"), None), [], "only ASCII letters match in any case, on every backend");
    assert_eq!(find(Some("%_"), None), [percent.id], "nothing in a title is a wildcard");
    assert_eq!(find(Some("%"), Some(Lifecycle::Archived)), []);
    assert_eq!(find(Some("trip"), Some(Lifecycle::Archived)), [budget.id]);
    assert_eq!(find(None, Some(Lifecycle::Active)), [none.id, percent.id, trip.id]);
    assert_eq!(find(Some("absent"), None), []);
}

/// Forks are listed by the conversation that they were forked from, whatever became of it.
pub fn forks_are_listed_by_their_parent(store: &dyn Backend) {
    let m = Maker::default();
    let (root, first, second, nested) = (m.key(), m.key(), m.key(), m.key());
    create(store, &root, vec![m.created(), m.say("one"), m.say("two")]);
    create(store, &elsewhere(&root), vec![m.created()]);
    done(store, m.fork(&first, &root, 2));
    done(store, m.fork(&second, &root, 3));
    done(store, m.fork(&nested, &first, 3));
    let forks = |parent: &Key| {
        let mut found = listed(
            store,
            &ConversationQuery { parent: Some(parent.id), limit: 9, ..ConversationQuery::default() },
        );
        found.sort();
        found
    };
    let mut both = [first.id, second.id];
    both.sort();
    assert_eq!(forks(&root), both);
    assert_eq!(forks(&first), [nested.id]);
    assert_eq!(forks(&nested), []);
    done(store, m.delete(&second));
    done(store, m.delete(&root));
    assert_eq!(forks(&root), [first.id]);
}

/// An id is found by its first characters, in any case, with or without its prefix.
pub fn ids_are_found_by_their_beginning(store: &dyn Backend) {
    let m = Maker::default();
    let with = |first: u8, second: u8| Key {
        id: ConversationId::from_bytes([first, second, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ..m.key()
    };
    let keys = [with(0, 0), with(1, 2), with(1, 0xff), with(0x80, 0), with(0xff, 0xff)];
    for key in &keys {
        create(store, key, vec![m.created()]);
        create(store, &Key { tenant: tenant("globex"), ..with(2, 2) }, vec![m.created()]);
        done(store, m.delete(&Key { tenant: tenant("globex"), ..with(2, 2) }));
    }
    let find = |prefix: &str, limit| store.starting_with(&tenant("acme"), prefix, limit).expect("a listing");
    let all: Vec<ConversationId> = keys.iter().map(|key| key.id).collect();
    assert_eq!(find("", 10), all);
    assert_eq!(find("conv_", 10), all);
    assert_eq!(find("", 2), all[..2]);
    assert!(store.starting_with(&tenant("globex"), "", 10).expect("a listing").is_empty());
    for id in &all {
        let text = id.to_string();
        for length in 0..=text.len() - ConversationId::PREFIX.len() {
            let digits = &text[ConversationId::PREFIX.len()..][..length];
            let expected: Vec<ConversationId> = all
                .iter()
                .copied()
                .filter(|other| other.to_string()[ConversationId::PREFIX.len()..].starts_with(digits))
                .collect();
            assert_eq!(find(digits, 10), expected, "{digits}");
            assert_eq!(find(&digits.to_lowercase(), 10), expected);
            assert_eq!(find(&format!("conv_{digits}"), 10), expected);
        }
    }
    for wrong in ["8", "U", "I", "é", "conv", "turn_", "%", "_", "0 ", &"0".repeat(27)] {
        assert_eq!(find(wrong, 10), [], "{wrong}");
    }
    done(store, m.delete(&keys[0]));
    assert_eq!(find("", 10), all[1..]);
}

/// The sweeper gets exactly the due conversations of all tenants.
pub fn expired_lists_exactly_what_is_due(store: &dyn Backend) {
    let m = Maker::default();
    let start = Timestamp(1_800_000_000_000_000);
    let living = |ttl: Option<u64>| {
        let key = m.key();
        let settings = Settings { ttl: Some(ttl), ..Settings::default() };
        create(store, &key, vec![Draft { at: start, ..m.event(kind::CREATED, &settings) }]);
        key
    };
    let (short, long, never, gone) = (living(Some(10)), living(Some(20)), living(None), living(Some(1)));
    let ephemeral = elsewhere(&m.key());
    let settings = Settings { retention: Some(Retention::Ephemeral), ..Settings::default() };
    create(store, &ephemeral, vec![Draft { at: start, ..m.event(kind::CREATED, &settings) }]);
    done(store, m.delete(&gone));
    let due = |now: Timestamp| {
        let mut keys = store.expired(now, 100).expect("a listing");
        keys.sort();
        keys
    };
    let sorted = |mut keys: Vec<Key>| {
        keys.sort();
        keys
    };
    let almost = |seconds: u64| Timestamp(start.plus_s(seconds).0 - 1);
    assert_eq!(due(almost(10)), []);
    assert_eq!(due(start.plus_s(10)), std::slice::from_ref(&short));
    // A change restarts its time to live.
    append(store, &short, vec![Draft { at: start.plus_s(3), ..m.say("still here") }]);
    append(store, &short, vec![Draft { at: start.plus_s(5), ..m.say("and here") }]);
    assert_eq!(due(almost(15)), []);
    assert_eq!(due(start.plus_s(15)), std::slice::from_ref(&short));
    assert_eq!(due(start.plus_s(20)), sorted(vec![short.clone(), long.clone()]));
    assert_eq!(due(start.plus_s(EPHEMERAL_TTL_S)), sorted(vec![short.clone(), long, ephemeral]));
    assert_eq!(store.expired(start.plus_s(EPHEMERAL_TTL_S), 2).expect("a listing").len(), 2);
    assert!(!due(Timestamp(i64::MAX)).contains(&never));
    done(store, m.delete(&short));
    assert!(!due(Timestamp(i64::MAX)).contains(&short));
}
