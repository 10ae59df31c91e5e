//! Lexical recall: in the right scope, and never of erased or deleted content.

use super::*;
use crate::{Behind, IndexChange, Proposal, Proposed, TurnQuery};
use everturn_core::Error;
use everturn_core::event::{Body, Draft, Event, Visibility, kind};
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::turn::{Role, Turn};
use everturn_core::viewer::Viewer;
use everturn_core::write::ErasedBody;
use everturn_views::recall::{
    EntryId, Filter, IndexEntry, RecallKind, TextQuery, score, searched_text, terms,
};

/// The index changes that follow from an event, as the engine computes them.
fn changes(store: &dyn Backend, tenant: &TenantName, event: &Event) -> Vec<IndexChange> {
    let key = Key { tenant: tenant.clone(), id: event.conversation };
    let put = |turn: Option<Turn>, fallen| {
        let entries = turn.map(|turn| IndexEntry::all_of_turn(tenant, &turn, fallen)).unwrap_or_default();
        entries.into_iter().map(|entry| IndexChange::Put(Box::new(entry))).collect()
    };
    match event.kind.as_str() {
        kind::MESSAGE | kind::TOOL_RESULT => put(Turn::begun(event), None),
        kind if kind::ends_turn(kind) => {
            // A deleted conversation is read in a fork.
            let reader = store.reader(&key, event.seq).expect("an answer").unwrap_or(key.id);
            let place = Key { id: reader, ..key.clone() };
            let turn = event.turn.and_then(|id| store.turn_in(&place, id).ok());
            put(
                turn.map(|turn| Turn { conversation: key.id, ..turn }),
                (kind == kind::ABORTED).then_some(event.seq),
            )
        }
        kind::SUPERSEDED => {
            let fell = |id| IndexChange::Fell { key, id: EntryId::Turn(id), seq: event.seq };
            event.turn.map(fell).into_iter().collect()
        }
        kind::ERASED => {
            let turns = event.read::<ErasedBody>().map(|body| body.turns).unwrap_or_default();
            let remove = |id| IndexChange::Remove { key: key.clone(), id: EntryId::Turn(id) };
            turns.into_iter().map(remove).collect()
        }
        _ => Vec::new(),
    }
}

/// Indexes everything that is committed, a few events at a time.
#[track_caller]
pub fn take_in(store: &dyn Backend) {
    while take_in_some(store, 3).expect("taken in") {}
}

/// Indexes some events. Returns whether there were any.
pub fn take_in_some(store: &dyn Backend, limit: usize) -> Result<bool, Error> {
    let unindexed = store.unindexed(limit)?;
    if unindexed.span.through == unindexed.span.after {
        return Ok(false);
    }
    let changes = unindexed.events.iter().flat_map(|(tenant, event)| changes(store, tenant, event)).collect();
    store.index(changes, unindexed.span)?;
    Ok(true)
}

/// The results of a query, as the texts of the turns, best first.
#[track_caller]
pub fn found(store: &dyn Backend, key: &Key, query: &str, filter: &Filter) -> Vec<String> {
    let query = TextQuery::parse(query);
    let proposed = store.find_text(&key.tenant, &query, filter, 100).expect("an answer");
    let hits = ranked(store, &key.tenant, &query, proposed);
    let told = |id: EntryId, conversation: ConversationId| match id {
        EntryId::Turn(id) => {
            let key = Key { tenant: key.tenant.clone(), id: filter.conversation.unwrap_or(conversation) };
            store.turn_in(&key, id).expect("the turn").text(|_| None)
        }
        EntryId::Fact(id) => id.to_string(),
    };
    hits.iter().map(|hit| told(hit.id, hit.conversation)).collect()
}

/// Proposed candidates with their scores, best first, as the engine would rank them.
#[track_caller]
pub(super) fn ranked(
    store: &dyn Backend,
    tenant: &TenantName,
    query: &TextQuery,
    proposed: Proposed,
) -> Vec<Proposal> {
    let fit = |found: &Proposal| match found.id {
        EntryId::Turn(id) => {
            let key = Key { tenant: tenant.clone(), id: found.conversation };
            let text = store.turn_in(&key, id).ok().and_then(|turn| searched_text(&turn, &[]));
            text.map_or(0.0, |text| score(query, &proposed.counts, &terms(&text)))
        }
        EntryId::Fact(_) => found.score,
    };
    let mut found: Vec<Proposal> =
        proposed.found.iter().map(|found| Proposal { score: fit(found), ..found.clone() }).collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.no.cmp(&a.no)));
    found
}

/// The same in one conversation.
#[track_caller]
fn found_in(store: &dyn Backend, key: &Key, query: &str) -> Vec<String> {
    found(store, key, query, &within(key))
}

fn within(key: &Key) -> Filter {
    Filter { conversation: Some(key.id), ..Filter::default() }
}

/// A conversation with these turns of ada.
fn said(store: &dyn Backend, m: &Maker, texts: &[&str]) -> Key {
    let key = m.key();
    let turns = texts.iter().map(|text| m.say(text));
    create(store, &key, std::iter::once(m.created()).chain(turns).collect());
    take_in(store);
    key
}

/// Words match in any case, with or without accents; names whole and by part, in any spelling; phrases;
/// prefixes.
pub fn what_was_said_is_found_by_its_words(store: &dyn Backend) {
    let m = Maker::default();
    let path = "look at src/store/sqlite.rs first";
    let code = "then call buildContext with E0308";
    let prose = "the Café was closed, the writer held the lock";
    let chinese = "数据库锁住了";
    let key = said(store, &m, &[path, code, prose, chinese]);
    let none: [&str; 0] = [];
    for (query, texts) in [
        ("lock", &[prose][..]),
        ("CAFE", &[prose]),
        ("src/store/sqlite.rs", &[path]),
        ("sqlite.rs", &[path]),
        ("sqlite", &[path]),
        ("build_context", &[code]),
        ("BuildContext", &[code]),
        ("buildcontext", &[code]),
        ("context", &[code]),
        ("e0308", &[code]),
        ("\"held the lock\"", &[prose]),
        ("\"the held lock\"", &none),
        ("clos*", &[prose]),
        ("locking", &[prose]),
        ("closes", &[prose]),
        ("build_con*", &[code]),
        ("据库", &[chinese]),
        ("库据", &none),
        ("elsewhere", &none),
        ("", &none),
        ("\" ) OR ( * NEAR", &none),
    ] {
        assert_eq!(found_in(store, &key, query), texts, "{query}");
        assert_eq!(found(store, &key, query, &Filter::default()), texts, "{query} anywhere");
    }
}

/// Turns before and after a turn, unless superseded or filtered out.
pub fn a_turn_has_neighbours(store: &dyn Backend) {
    let m = Maker::default();
    let key = said(store, &m, &["one", "two", "three needle", "four", "five", "six"]);
    let other = said(store, &m, &["another needle"]);
    let entry = |key: &Key| {
        let query = TextQuery::parse("needle");
        store.find_text(&key.tenant, &query, &within(key), 9).expect("an answer").found[0].no
    };
    let beside = |filter: &Filter, reach| {
        let beside = store.neighbours(&key.tenant, filter, &[entry(&key), entry(&other)], reach);
        let text = |(found, away): &(Proposal, usize)| match found.id {
            EntryId::Turn(id) => {
                format!("{} {away}", store.turn_in(&key, id).expect("a turn").text(|_| None))
            }
            EntryId::Fact(id) => id.to_string(),
        };
        let texts = |beside: &Vec<(Proposal, usize)>| beside.iter().map(text).collect::<Vec<_>>();
        beside.expect("an answer").iter().map(texts).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(beside(&Filter::default(), 2), [vec!["two 1", "one 2", "four 1", "five 2"], none.to_vec()]);
    let before = Filter { before_seq: Some(5), ..within(&key) };
    assert_eq!(beside(&before, 1), [vec!["two 1"], none.to_vec()]);
    // An edit is read where the turn stood that it replaces.
    let five =
        store.turns(&key, &TurnQuery { limit: 9, ..TurnQuery::default() }).expect("turns").swap_remove(4);
    let edit = m.say("five again");
    let by = TurnId(edit.id.0);
    append(store, &key, vec![edit, m.supersede(five.id, by)]);
    take_in(store);
    let last = beside(&Filter::default(), 2);
    assert_eq!(last[0], ["two 1", "one 2", "four 1", "five again 2"]);
    // One that took the place of another later stands at the end of what is read as of then, and of a fork from then.
    let (late, fork) = (m.say("four at last"), m.key());
    let by = TurnId(late.id.0);
    let then = append(store, &key, vec![late, m.say("seven")]).conversation.head.seq;
    done(store, m.fork(&fork, &key, then));
    let four =
        store.turns(&key, &TurnQuery { limit: 9, ..TurnQuery::default() }).expect("turns").swap_remove(3);
    append(store, &key, vec![m.supersede(four.id, by)]);
    take_in(store);
    assert_eq!(beside(&Filter::default(), 1)[0], ["two 1", "four at last 1"]);
    for filter in [Filter { through_seq: Some(then), ..within(&key) }, within(&fork)] {
        let beside = store.neighbours(&key.tenant, &filter, &[entry(&key)], 4).expect("an answer");
        let seqs: Vec<u64> = beside[0].iter().map(|(found, _)| found.seq).collect();
        assert_eq!(seqs, [3, 2, 5, 8, 7, 10], "{filter:?}");
    }
}

/// More and rarer matching words rank higher.
pub fn what_fits_best_comes_first(store: &dyn Backend) {
    let m = Maker::default();
    let mut texts: Vec<String> = (0..30).map(|n| format!("a note about the weather, number {n}")).collect();
    texts.push("the weather in the harbour".into());
    texts.push("the harbour master reads about the weather in the harbour, and notes it".into());
    texts.push("one word more than the harbour".into());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let key = said(store, &m, &texts);
    let best = found_in(store, &key, "harbour weather");
    assert_eq!(best.len(), 33, "any of the words is enough");
    assert!(best[..3].iter().all(|text| text.contains("harbour")), "{best:?}");
    assert!(best[0].contains("weather") && best[1].contains("weather"), "both words before one: {best:?}");
    assert_eq!(found_in(store, &key, "\"harbour master\" weather").len(), 1, "a phrase must be there");
}

/// Filters by actor, role, time and kind.
pub fn recall_is_narrowed_by_filters(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let by_ada = m.say("the signal from ada");
    let noon = by_ada.at;
    let by_bot = m.turn("bot", Role::Assistant, &message("assistant", "the signal from the bot"));
    let by_tool = m.turn("grep", Role::Tool, &message("tool", "the signal from a tool"));
    let later = by_tool.at;
    create(store, &key, vec![m.created(), by_ada, by_bot, by_tool]);
    take_in(store);
    let check = |filter: Filter, expected: &[&str]| {
        for conversation in [None, Some(key.id)] {
            let mut texts = found(store, &key, "signal", &Filter { conversation, ..filter.clone() });
            texts.sort();
            assert_eq!(texts, expected, "{filter:?}");
        }
    };
    let (ada, tool, bot) = ("the signal from ada", "the signal from a tool", "the signal from the bot");
    check(Filter::default(), &[tool, ada, bot]);
    check(Filter { actors: vec!["ada".into(), "nobody".into()], ..Filter::default() }, &[ada]);
    check(Filter { actors: vec!["nobody".into()], ..Filter::default() }, &[]);
    check(Filter { roles: vec![Role::Tool, Role::Assistant], ..Filter::default() }, &[tool, bot]);
    check(Filter { before: Some(later), ..Filter::default() }, &[ada, bot]);
    check(Filter { after: Some(later), ..Filter::default() }, &[tool]);
    check(Filter { after: Some(noon), before: Some(noon), ..Filter::default() }, &[]);
    check(Filter { kinds: vec![RecallKind::Fact], ..Filter::default() }, &[]);
    check(Filter { kinds: vec![RecallKind::Turn], ..Filter::default() }, &[tool, ada, bot]);
    // A message of a person with words of a program in it is a candidate for both roles.
    let mixed = "<system-reminder>beacon</system-reminder>\nthe beacon?";
    let other = said(store, &m, &[mixed]);
    for (roles, expected) in
        [(vec![Role::User], 1), (vec![Role::Tool], 1), (vec![Role::System], 0), (vec![Role::Assistant], 0)]
    {
        let filter = Filter { roles, ..within(&other) };
        assert_eq!(found(store, &other, "beacon", &filter).len(), expected, "{filter:?}");
    }
    let placed = Filter { conversation: Some(key.id), before_seq: Some(3), ..Filter::default() };
    assert_eq!(found(store, &key, "signal", &placed), [ada]);
}

/// Searches a set of conversations, few or many, and nothing in an empty one.
pub fn recall_is_limited_to_conversations(store: &dyn Backend) {
    let m = Maker::default();
    let keys: Vec<Key> = (0..105).map(|n| said(store, &m, &[&format!("the comet of night {n}")])).collect();
    take_in(store);
    let among = |keys: &[Key]| {
        let ids = keys.iter().map(|key| key.id).chain([m.key().id]).collect();
        found(store, &keys[0], "comet", &Filter { among: Some(ids), ..Filter::default() })
    };
    assert_eq!(among(&keys[7..8]), ["the comet of night 7"]);
    assert_eq!(among(&keys[3..5]).len(), 2);
    let many = among(&keys[2..]);
    assert!(
        many.len() == 100 && many.iter().all(|text| !text.ends_with(" 0") && !text.ends_with(" 1")),
        "{many:?}"
    );
    let none = Filter { among: Some(Vec::new()), ..Filter::default() };
    assert!(found(store, &keys[0], "comet", &none).is_empty());
}

/// Results never come from another conversation or tenant.
pub fn recall_stays_in_its_conversation_and_its_tenant(store: &dyn Backend) {
    let m = Maker::default();
    let (one, two) = (said(store, &m, &["the treasure of one"]), said(store, &m, &["the treasure of two"]));
    let foreign = elsewhere(&one);
    create(store, &foreign, vec![m.created(), m.say("the treasure of strangers")]);
    take_in(store);
    assert_eq!(found_in(store, &one, "treasure"), ["the treasure of one"]);
    assert_eq!(found_in(store, &two, "treasure"), ["the treasure of two"]);
    assert_eq!(found_in(store, &foreign, "treasure"), ["the treasure of strangers"]);
    assert_eq!(found(store, &one, "treasure", &Filter::default()).len(), 2);
    assert_eq!(found(store, &foreign, "treasure", &Filter::default()).len(), 1);
    assert_eq!(found_in(store, &elsewhere(&two), "treasure"), [""; 0], "not there at all");
}

/// A fork finds what it inherited, up to its fork point and as of it.
pub fn a_fork_finds_what_it_inherited(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let (first, second) = (m.say("the anchor before"), m.say("the anchor that fell later"));
    let fell = turn_of(&second);
    create(store, &parent, vec![m.created(), first, second]);
    done(store, m.fork(&child, &parent, 3));
    let instead = m.say("the anchor instead");
    let by = turn_of(&instead);
    append(store, &parent, vec![instead, m.supersede(fell, by)]);
    append(store, &child, vec![m.say("the anchor of the child")]);
    take_in(store);
    let sorted = |key: &Key| {
        let mut texts = found_in(store, key, "anchor");
        texts.sort();
        texts
    };
    assert_eq!(sorted(&parent), ["the anchor before", "the anchor instead"]);
    assert_eq!(
        sorted(&child),
        ["the anchor before", "the anchor of the child", "the anchor that fell later"]
    );
    done(store, m.delete(&parent));
    take_in(store);
    assert_eq!(sorted(&child).len(), 3, "what a fork inherited outlives its parent");
    done(store, m.delete(&child));
    take_in(store);
    assert_eq!(found(store, &parent, "anchor", &Filter::default()), [""; 0]);
}

/// What living forks read of a deleted conversation is found under them, also in an index that is made again.
pub fn what_forks_inherit_from_a_deleted_parent_is_found_under_them(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child, grandchild) = (m.key(), m.key(), m.key());
    let (said, open) = (m.say("the pangolin sleeps"), m.open());
    let ended = m.end(kind::COMMITTED, turn_of(&open), "the pangolin wakes");
    create(store, &parent, vec![m.created(), said, open, ended]);
    done(store, m.fork(&child, &parent, 4));
    done(store, m.fork(&grandchild, &child, 2));
    append(store, &parent, vec![m.say("the pangolin after the fork")]);
    take_in(store);
    let query = TextQuery::parse("pangolin");
    let hits = |filter: &Filter| {
        let mut found = store.find_text(&parent.tenant, &query, filter, 9).expect("an answer").found;
        found.sort_by_key(|hit| hit.seq);
        found.into_iter().map(|hit| (hit.conversation, hit.seq)).collect::<Vec<_>>()
    };
    let (anywhere, of) = (Filter::default(), |key: &Key, seqs: &[u64]| {
        seqs.iter().map(|seq| (key.id, *seq)).collect::<Vec<_>>()
    });
    assert_eq!(hits(&anywhere), of(&parent, &[2, 3, 5]));
    assert_eq!(hits(&within(&child)), of(&parent, &[2, 3]), "while it lives, what it said is under it");
    done(store, m.delete(&parent));
    for _ in 0..2 {
        take_in(store);
        assert_eq!(hits(&anywhere), of(&child, &[2, 3]));
        assert_eq!(hits(&within(&child)), of(&child, &[2, 3]));
        assert_eq!(hits(&within(&grandchild)), of(&grandchild, &[2]), "under the one in scope");
        assert_eq!(found(store, &parent, "pangolin", &anywhere).len(), 2, "and it is read there");
        assert_eq!(store.reader(&parent, 3).expect("an answer"), Some(child.id));
        store.rebuild().expect("made again");
    }
    take_in(store);
    done(store, m.delete(&child));
    for _ in 0..2 {
        take_in(store);
        assert_eq!(hits(&anywhere), of(&grandchild, &[2]), "a fork of a deleted fork reads through it");
        assert_eq!(hits(&within(&grandchild)), of(&grandchild, &[2]));
        assert_eq!(store.reader(&parent, 3).expect("an answer"), None);
        store.rebuild().expect("made again");
    }
    done(store, m.delete(&grandchild));
    take_in(store);
    assert_eq!(hits(&anywhere), []);
}

/// Superseded and aborted turns are returned only with `include_superseded`.
pub fn what_does_not_stand_is_found_only_if_asked_for(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (old, new, open) = (m.say("the first draft"), m.say("the second draft"), m.open());
    let (fell, by, aborted) = (turn_of(&old), turn_of(&new), turn_of(&open));
    create(store, &key, vec![m.created(), old, open]);
    take_in(store);
    assert_eq!(found_in(store, &key, "draft"), ["the first draft"]);
    append(store, &key, vec![m.end(kind::ABORTED, aborted, "a draft given up")]);
    append(store, &key, vec![new, m.supersede(fell, by)]);
    take_in(store);
    assert_eq!(found_in(store, &key, "draft"), ["the second draft"]);
    let all = Filter { include_superseded: true, ..within(&key) };
    assert_eq!(found(store, &key, "draft", &all).len(), 3);
    let before = Filter { through_seq: Some(2), ..within(&key) };
    assert_eq!(found(store, &key, "draft", &before), ["the first draft"], "as it stood there");
}

/// A streamed turn is found once it is committed.
pub fn an_open_turn_is_found_when_it_is_said(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let open = m.open();
    let turn = turn_of(&open);
    create(store, &key, vec![m.created(), open]);
    done(store, chunk(&key, turn, 0, "half a thought"));
    take_in(store);
    assert_eq!(found_in(store, &key, "thought"), [""; 0]);
    append(store, &key, vec![m.say("meanwhile"), m.end(kind::COMMITTED, turn, "the whole thought")]);
    take_in(store);
    let hits =
        store.find_text(&key.tenant, &TextQuery::parse("thought"), &within(&key), 9).expect("an answer");
    assert_eq!(
        hits.found.iter().map(|hit| (hit.seq, hit.id)).collect::<Vec<_>>(),
        [(2, EntryId::Turn(turn))]
    );
}

/// Erased and deleted content is not found, in the conversation and in its forks.
pub fn what_is_gone_is_not_found(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    let (one, two) = (m.say("the needle of the parent"), m.say("another needle"));
    let (inherited, own) = (turn_of(&one), turn_of(&two));
    create(store, &parent, vec![m.created(), one]);
    done(store, m.fork(&child, &parent, 2));
    append(store, &parent, vec![two]);
    take_in(store);
    let ids = |key: &Key| {
        let hits =
            store.find_text(&key.tenant, &TextQuery::parse("needle"), &within(key), 9).expect("an answer");
        hits.found.into_iter().map(|hit| hit.id).collect::<Vec<_>>()
    };
    assert_eq!((ids(&parent).len(), ids(&child).len()), (2, 1));
    done(store, m.erase(&child, &[inherited]));
    take_in(store);
    assert_eq!(ids(&parent), [EntryId::Turn(own)], "there is one copy, and it was erased through the fork");
    assert_eq!(ids(&child), []);
    done(store, m.delete(&parent));
    take_in(store);
    assert_eq!(ids(&parent), []);
    assert!(store.scrub(Some(&parent.tenant), None).expect("scrubbed"));
    assert_eq!(found(store, &parent, "needle", &Filter::default()), [""; 0]);
}

/// Facts are found beside turns, and no longer once they are retracted.
pub fn facts_are_found_beside_turns(store: &dyn Backend) {
    let m = Maker::default();
    let key = said(store, &m, &["my compass points north"]);
    let id = FactId::from_bytes([7; 16]);
    let fact = |text: &str, fallen| {
        IndexChange::Put(Box::new(IndexEntry {
            tenant: key.tenant.clone(),
            conversation: key.id,
            seq: 2,
            id: EntryId::Fact(id),
            role: None,
            actor: None,
            at: m.now(),
            fallen,
            prose: true,
            text: text.into(),
            persons: None,
            audience: None,
            vector: None,
        }))
    };
    let index = |change: IndexChange| {
        append(store, &key, vec![m.draft("note", "{}")]);
        let span = store.unindexed(9).expect("what is new").span;
        store.index(vec![change], span).expect("taken in");
    };
    index(fact("compass points south", None));
    assert_eq!(found_in(store, &key, "compass").len(), 2);
    let only = |kind| Filter { kinds: vec![kind], ..within(&key) };
    assert_eq!(found(store, &key, "compass", &only(RecallKind::Fact)), [id.to_string()]);
    assert_eq!(found(store, &key, "compass", &only(RecallKind::Turn)).len(), 1);
    index(fact("compass points east", None));
    assert_eq!(found_in(store, &key, "south"), [""; 0], "the same fact again takes its place");
    assert_eq!(found_in(store, &key, "east"), [id.to_string()]);
    index(IndexChange::Remove { key: key.clone(), id: EntryId::Fact(id) });
    assert_eq!(found_in(store, &key, "east"), [""; 0]);
}

/// Private entries are found by their audience, and influence nobody else's results.
pub fn private_entries_are_found_by_their_audience_alone(store: &dyn Backend) {
    let m = Maker::default();
    let key = said(store, &m, &["the compass points north", "the harbour and the compass"]);
    let everyone = Filter { viewer: Viewer::everyone(), ..within(&key) };
    let as_actor = |name: &str| Filter { viewer: Viewer::actors([name.to_string()]), ..within(&key) };
    let query = TextQuery::parse("compass harbour");
    let proposed = |filter: &Filter| store.find_text(&key.tenant, &query, filter, 100).expect("an answer");
    let before = proposed(&everyone);
    let private = |text: &str, audience: &[&str]| Draft {
        visibility: Visibility::Private,
        body: Body {
            text: format!(
                r#"{{"message":{{"role":"user","content":"{text}"}},"audience":{}}}"#,
                serde_json::json!(audience)
            ),
            ..m.say("").body
        },
        ..m.say("")
    };
    let (own, told) = (private("ada hides a compass", &[]), private("a compass for bob", &["bob"]));
    let turn = turn_of(&told);
    append(store, &key, vec![own, told]);
    take_in(store);
    assert_eq!(proposed(&everyone), before, "neither the results nor the counts change");
    assert_eq!(proposed(&as_actor("carol")), before);
    let texts = |filter: &Filter| found(store, &key, "compass", filter).len();
    assert_eq!((texts(&everyone), texts(&as_actor("bob")), texts(&as_actor("ada"))), (2, 3, 4));
    assert_eq!(texts(&within(&key)), 4, "the owner finds everything");
    let as_bob = |seq: u64| Filter { before_seq: Some(seq), ..as_actor("bob") };
    assert_eq!(texts(&as_bob(4)), 2, "filters hold for these, too");
    store.rebuild().expect("made again");
    take_in(store);
    assert_eq!((texts(&everyone), texts(&as_actor("bob"))), (2, 3));
    done(store, m.erase(&key, &[turn]));
    take_in(store);
    assert_eq!((texts(&as_actor("bob")), texts(&as_actor("ada"))), (2, 3), "erased for everyone");
    done(store, m.delete(&key));
    take_in(store);
    let anywhere = Filter { conversation: None, ..within(&key) };
    assert_eq!(found(store, &key, "compass", &anywhere), [""; 0]);
}

/// The index reports its lag, continues where it stopped, and indexes nothing twice.
pub fn an_index_catches_up_where_it_stopped(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    create(store, &key, vec![m.created(), m.say("the first beacon"), m.say("the second beacon")]);
    let behind = || store.behind(Some(&key.tenant), None).expect("a number").events;
    assert_eq!(behind(), 3);
    let two = store.unindexed(2).expect("what is new");
    assert_eq!((two.events.len(), two.span.after, two.span.through), (2, 0, 2));
    let put = || two.events.iter().flat_map(|(tenant, event)| changes(store, tenant, event)).collect();
    store.index(put(), two.span.clone()).expect("taken in");
    assert_eq!(behind(), 1);
    store.index(put(), two.span).expect("taken in by another process meanwhile");
    assert_eq!(behind(), 1, "which moves nothing back");
    assert_eq!(found_in(store, &key, "beacon"), ["the first beacon"]);
    take_in(store);
    assert_eq!(store.behind(Some(&key.tenant), None).expect("a number"), Behind::default());
    assert_eq!(found_in(store, &key, "beacon").len(), 2);
}

/// A rebuilt index returns the same results, without erased content.
pub fn an_index_made_again_finds_the_same(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let (gone, old, new) =
        (m.say("the lantern is erased"), m.say("the old lantern"), m.say("the new lantern"));
    let (erased, fell, by): (TurnId, TurnId, TurnId) = (turn_of(&gone), turn_of(&old), turn_of(&new));
    create(store, &key, vec![m.created(), gone, old, new, m.supersede(fell, by)]);
    done(store, m.erase(&key, &[erased]));
    let other = said(store, &m, &["a lantern of the deleted"]);
    done(store, m.delete(&other));
    take_in(store);
    let all = Filter { include_superseded: true, ..Filter::default() };
    let before = (found_in(store, &key, "lantern"), found(store, &key, "lantern", &all));
    assert_eq!((before.0.len(), before.1.len()), (1, 2));
    store.rebuild().expect("made again");
    assert!(store.behind(Some(&key.tenant), None).expect("a number").events > 0, "the words follow");
    take_in(store);
    assert_eq!((found_in(store, &key, "lantern"), found(store, &key, "lantern", &all)), before);
}
