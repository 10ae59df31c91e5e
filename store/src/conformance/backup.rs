//! Reading and restoring a whole store.

use super::*;
use crate::{ConversationQuery, ErasedPage, Member};
use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Parent, Tombstone};
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, Key, KeyId, TenantName};
use everturn_core::turn::{Status, Turn};
use everturn_core::write::{Action, AnsweredRequest, EventAddress, Write};
use std::collections::BTreeMap;

fn member(store: &dyn Backend, key: &Key) -> Member {
    let members = store.members().expect("a listing");
    members.into_iter().rfind(|member| member.key == *key).expect("every conversation is a member")
}

/// Its own events, read in pages of two or three.
fn own_events(store: &dyn Backend, member: &Member) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event.seq);
        let page = store.member_events(member.no, after, member.through, 100).expect("a page");
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

fn own_requests(store: &dyn Backend, member: &Member) -> Vec<AnsweredRequest> {
    let mut requests: Vec<AnsweredRequest> = Vec::new();
    loop {
        let after = requests.last().map_or(0, |request| request.last_seq);
        let page = store.requests(member.no, after, member.through, 1).expect("a page");
        if page.is_empty() {
            return requests;
        }
        requests.extend(page);
    }
}

/// Numbers follow the order of creation; a fork has its own events only, and names its parent by number.
/// Unsettled events are included.
pub fn every_conversation_is_a_member_with_its_own_events(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    create(store, &parent, vec![m.created(), m.say("one"), m.say("two")]);
    done(store, m.fork(&child, &parent, 2));
    create(store, &elsewhere(&parent), vec![m.created()]);
    for n in 0..5 {
        append(store, &parent, vec![m.say(&format!("more {n}"))]);
        append(store, &child, vec![m.say(&format!("apart {n}"))]);
    }
    let members = store.members().expect("a listing");
    let keys: Vec<&Key> = members.iter().map(|member| &member.key).collect();
    assert_eq!(keys, [&parent, &child, &elsewhere(&parent)]);
    assert_eq!(members.iter().map(|member| member.no).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(members.iter().map(|member| member.through).collect::<Vec<_>>(), [8, 8, 1]);
    assert_eq!(members[1].parent, Some((1, 2)));
    assert!(members.iter().all(|member| member.deleted.is_none()));
    for member in &members {
        assert_eq!(member.hash, Some(store.conversation(&member.key).expect("it is there").head.hash));
    }
    for member in &members {
        assert_eq!(store.member(member.no).expect("it is there"), *member);
        let own: Vec<Event> =
            log(store, &member.key).into_iter().filter(|event| event.conversation == member.key.id).collect();
        assert_eq!(own_events(store, member), own);
        assert_eq!(member.created, store.conversation(&member.key).expect("it is there").created);
    }
    let part = store.member_events(1, 3, 6, usize::MAX).expect("a page");
    assert_eq!(part, log(store, &parent)[3..6]);
    let least = store.member_events(1, 3, 6, 0).expect("a page");
    assert_eq!(least, log(store, &parent)[3..4], "never nothing");
    assert_eq!(store.member(4).expect_err("there is none").code(), "backup.member");
    assert_eq!(store.member_events(4, 0, 9, 9).expect_err("there is none").code(), "backup.member");
}

/// A tombstone records the end of the log; only what forks need is left of the log.
pub fn a_deleted_parent_is_a_member_with_what_its_forks_need(store: &dyn Backend) {
    let m = Maker::default();
    let (parent, child) = (m.key(), m.key());
    create(store, &parent, vec![m.created(), m.say("one"), m.say("two"), m.say("three")]);
    done(store, m.fork(&child, &parent, 2));
    let whole = log(store, &parent);
    let head = store.conversation(&parent).expect("it is there").head;
    done(store, m.delete(&parent));
    let found = member(store, &parent);
    assert_eq!(found.through, 2);
    assert_eq!(found.deleted.as_ref().expect("it was deleted").head, head);
    assert_eq!(own_events(store, &found), whole[..2]);
    // Its id may be reused: both are members.
    create(store, &parent, vec![m.created()]);
    let members = store.members().expect("a listing");
    assert_eq!(members.iter().filter(|member| member.key == parent).count(), 2);
    assert_eq!(members[0], found);
    done(store, m.delete(&child));
    let found = store.member(found.no).expect("its tombstone stays");
    assert_eq!((found.through, own_events(store, &found)), (0, Vec::new()));
}

/// Copies everything of one tenant into another, as a restore does.
fn copy(store: &dyn Backend, from: &TenantName, to: &TenantName) {
    let members: Vec<Member> =
        store.members().expect("a listing").into_iter().filter(|m| m.key.tenant == *from).collect();
    let there = |id: ConversationId| Key { tenant: to.clone(), id };
    let bury = |tombstone: &Tombstone| {
        let action = Action::Bury { tombstone: tombstone.clone() };
        done(store, Write { key: there(tombstone.id), action });
    };
    let mut dead: BTreeMap<ConversationId, Tombstone> = BTreeMap::new();
    let mut reach: BTreeMap<u64, u64> = BTreeMap::new();
    for member in &members {
        if let Some(tombstone) = dead.remove(&member.key.id) {
            bury(&tombstone);
        }
        // A deleted fork without own events may have begun after what is kept of its parent.
        let left = member.parent.map(|(no, at_seq)| (no, at_seq.min(reach[&no]))).filter(|left| left.1 > 0);
        let parent = left.map(|(no, at_seq)| Parent {
            conversation: members.iter().find(|m| m.no == no).expect("its parent is a member").key.id,
            at_seq,
        });
        reach.insert(member.no, member.through.max(left.map_or(0, |left| left.1)));
        let key = there(member.key.id);
        done(store, Write { key: key.clone(), action: Action::Begin { created: member.created, parent } });
        let events = own_events(store, member);
        for batch in events.chunks(3) {
            done(store, restoration(&key, batch));
        }
        let requests = own_requests(store, member);
        done(store, Write { key: key.clone(), action: Action::Remember { requests } });
        match &member.deleted {
            Some(tombstone) => drop(dead.insert(member.key.id, tombstone.clone())),
            None => {
                for turn in history(store, &member.key).iter().filter(|turn| turn.status == Status::Pending) {
                    let text = store.open_text(&member.key, turn.id).expect("a text");
                    if !text.is_empty() {
                        done(store, chunk(&key, turn.id, 0, &text));
                    }
                }
            }
        }
    }
    dead.values().for_each(bury);
}

/// All answers about one conversation.
type Contents = (Conversation, Vec<Event>, Vec<Turn>, Vec<String>);

/// All answers about one tenant.
fn answers(store: &dyn Backend, tenant: &TenantName) -> (Vec<Contents>, Vec<Tombstone>) {
    let all = ConversationQuery { limit: usize::MAX, ..ConversationQuery::default() };
    let conversations = store.conversations(tenant, &all).expect("a listing").into_iter();
    let each = conversations.map(|conversation| {
        let key = Key { tenant: tenant.clone(), id: conversation.id };
        let turns = history(store, &key);
        let open = turns.iter().map(|turn| store.open_text(&key, turn.id).expect("a text")).collect();
        (Conversation { tenant: super::tenant("any"), ..conversation }, log(store, &key), turns, open)
    });
    (each.collect(), store.tombstones(tenant).expect("a listing"))
}

/// With edits, forks of deleted forks, erased and open turns and reused ids, the copy equals the original.
pub fn what_a_backup_reads_gives_the_same_answers_elsewhere(store: &dyn Backend) {
    let m = Maker::default();
    let (root, child, grandchild, plain, through) = (m.key(), m.key(), m.key(), m.key(), m.key());
    let (one, two, open) = (m.say("one"), m.say("two"), m.open());
    let [first, second, opened] = [&one, &two, &open].map(turn_of);
    create(store, &root, vec![m.created(), one, two, open, m.asset("asset_a", b"a"), m.show("asset_a")]);
    done(store, chunk(&root, opened, 0, "still "));
    done(store, chunk(&root, opened, 6, "coming"));
    done(store, m.fork(&child, &root, 5));
    let better = m.say("two, better");
    let by = turn_of(&better);
    append(store, &child, vec![better, m.supersede(second, by), m.learn(first, "tea")]);
    // Forks the child before the child's own first event.
    done(store, m.fork(&grandchild, &child, 4));
    append(store, &grandchild, vec![m.say("deep")]);
    done(store, m.erase(&grandchild, &[first]));
    create(store, &plain, vec![m.created(), m.say("plain")]);
    done(store, m.fork(&through, &plain, 2));
    done(store, m.delete(&plain));
    create(store, &plain, vec![m.created(), m.say("another under the same id")]);
    done(store, m.delete(&child));
    done(store, m.delete(&root));
    let (talking, speaking) = (m.key(), m.open());
    let spoken = turn_of(&speaking);
    create(store, &talking, vec![m.created(), speaking]);
    done(store, chunk(&talking, spoken, 0, "still "));
    done(store, chunk(&talking, spoken, 6, "coming"));
    let gone = m.key();
    create(store, &gone, vec![m.created(), m.say("gone")]);
    done(store, m.delete(&gone));

    let (acme, globex) = (tenant("acme"), tenant("globex"));
    let before = answers(store, &acme);
    copy(store, &acme, &globex);
    assert_eq!(answers(store, &globex), before);
    let reduced = |tenant: &TenantName| -> Vec<(ConversationId, u64, Option<Tombstone>)> {
        let members = store.members().expect("a listing").into_iter().filter(|m| m.key.tenant == *tenant);
        members.map(|member| (member.key.id, member.through, member.deleted)).collect()
    };
    assert_eq!(reduced(&globex), reduced(&acme), "also what only a backup sees");
    store.rebuild().expect("it can be rebuilt");
    assert_eq!(answers(store, &globex), before);
    // It can be continued.
    append(store, &elsewhere(&grandchild), vec![m.say("after")]);
    append(store, &elsewhere(&talking), vec![m.end(kind::COMMITTED, spoken, "still coming")]);
    verify(store, &elsewhere(&grandchild));
    refused(
        store,
        Write { key: elsewhere(&talking), action: Action::Begin { created: m.now(), parent: None } },
        "conversation.exists",
    );
    assert_eq!(store.check().expect("a check"), []);
}

/// Erased bodies are listed regardless of what erased them and in which conversation.
pub fn erased_bodies_are_listed_wherever_they_were(store: &dyn Backend) {
    let m = Maker::default();
    let (key, other) = (m.key(), m.key());
    let (said, checkpoint) = (m.say("secret"), m.draft("x.summary", "{}"));
    let turn = turn_of(&said);
    create(store, &key, vec![m.created(), said, checkpoint, m.say("stays")]);
    done(store, m.fork(&other, &key, 2));
    append(store, &other, vec![m.learn(turn, "secret")]);
    let listed = || {
        let mut found = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let ErasedPage { erased, next } = store.erased(at).expect("a page");
            found.extend(erased);
            from = next;
        }
        found.sort();
        found
    };
    assert_eq!(listed(), []);
    let Write { key: of, action } = m.erase(&key, &[turn]);
    let Action::Erase { turns, draft, .. } = action else { unreachable!("it is an erasure") };
    let events = vec![EventAddress { conversation: key.id, seq: 3 }];
    done(store, Write { key: of, action: Action::Erase { turns, events, summaries: false, draft } });
    let (here, there) = (member(store, &key).no, member(store, &other).no);
    assert_eq!(listed(), [(here, 2), (here, 3), (there, 4)]);
}

/// The first answer is returned before and after; a key of one conversation means nothing in another.
pub fn a_restored_request_is_answered_and_not_repeated(store: &dyn Backend) {
    let m = Maker::default();
    let key = m.key();
    let creation = |key: &Key, m: &Maker| Write {
        key: key.clone(),
        action: Action::Create {
            drafts: vec![m.created()],
            parent: None,
            idempotency: once("begin", "a conversation"),
        },
    };
    let addition = |key: &Key, m: &Maker| Write {
        key: key.clone(),
        action: Action::Append {
            drafts: vec![m.say("once"), m.say("and only once")],
            expected_seq: None,
            prepared_for: None,
            idempotency: once("say", "once"),
        },
    };
    done(store, creation(&key, &m));
    let said = done(store, addition(&key, &m));
    let requests = own_requests(store, &member(store, &key));
    assert_eq!(
        requests.iter().map(|r| (r.creation, &*r.key, r.first_seq, r.last_seq)).collect::<Vec<_>>(),
        [(true, "begin", 1, 1), (false, "say", 2, 3)]
    );
    copy(store, &tenant("acme"), &tenant("globex"));
    let there = elsewhere(&key);
    let again = done(store, addition(&there, &m));
    assert!(again.repeated);
    assert_eq!(again.events, said.events);
    let begun = done(store, creation(&Key { id: m.key().id, ..there.clone() }, &m));
    assert!(begun.repeated && begun.conversation.id == key.id);
    let other = Write {
        key: there.clone(),
        action: Action::Append {
            drafts: vec![m.say("twice")],
            expected_seq: None,
            prepared_for: None,
            idempotency: once("say", "twice"),
        },
    };
    refused(store, other, "idempotency.reused");
    assert_eq!(log(store, &there).len(), 3);
    let absent = Write { key: m.key(), action: Action::Remember { requests } };
    refused(store, absent, "conversation.absent");
}

/// Includes the hashes of their secrets, and tenants without a conversation.
pub fn keys_of_all_tenants_are_read_at_once(store: &dyn Backend) {
    let m = Maker::default();
    let key = |n: u8, name: &str| AccessKey {
        id: KeyId::from_bytes([n; 16]),
        tenant: tenant(name),
        role: KeyRole::Writer,
        actors: vec!["ada".into(), "the café’s bot".into()],
        label: Some(format!("key {n}")),
        created: m.now(),
        expires: None,
        revoked: None,
        last_used: None,
        secret: Hash([n; 32]),
    };
    let (one, two) = (key(1, "acme"), key(2, "globex"));
    store.put_key(&one).expect("it is kept");
    store.put_key(&two).expect("it is kept");
    let revoked = store.revoke_key(&one.tenant, one.id, m.now()).expect("it is there");
    assert_eq!(store.all_keys().expect("a listing"), [revoked, two]);
}
