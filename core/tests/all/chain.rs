//! The verifier detects every change to a chain.

use crate::sample::{conversation_id, draft, event_id, head_of, link, turn_id};
use everturn_core::Error;
use everturn_core::chain::{ChainReport, Hash, Head, Verifier, envelope_hash};
use everturn_core::event::{Draft, Event, Visibility};
use everturn_core::id::ConversationId;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use proptest::prelude::*;
use proptest::sample::Index;

fn any_draft(n: u64) -> impl Strategy<Value = Draft> {
    (
        "[a-z.]{1,12}",
        prop::option::of("[^\\x00-\\x1f\\x7f-\\x9f]{1,12}"),
        prop::option::of(prop::sample::select(vec![Role::User, Role::Assistant, Role::System, Role::Tool])),
        prop::sample::select(vec![Visibility::Public, Visibility::Internal, Visibility::Private]),
        prop::option::of(0..9u64),
        prop::option::of(any::<i32>()),
        "[a-z0-9]{0,20}",
    )
        .prop_map(move |(kind, actor, role, visibility, turn, occurred_at, text)| Draft {
            actor,
            role,
            visibility,
            turn: turn.map(turn_id),
            occurred_at: occurred_at.map(|us| Timestamp(us.into())),
            ..draft(n, kind, format!("{{\"text\":\"{text}\"}}"))
        })
}

/// A chain of 2 to 11 events, some of them erased.
fn any_chain() -> impl Strategy<Value = Vec<Event>> {
    (2..12u64)
        .prop_flat_map(|length| (1..=length).map(any_draft).collect::<Vec<_>>())
        .prop_flat_map(|drafts| {
            let length = drafts.len();
            (Just(drafts), prop::collection::vec(prop::bool::weighted(0.2), length))
        })
        .prop_map(|(drafts, erased)| {
            let id = conversation_id(1);
            let mut events = link(id, Head::genesis(id), drafts);
            for (event, erased) in events.iter_mut().zip(erased) {
                if erased {
                    event.body = None;
                }
            }
            events
        })
}

fn verify(id: ConversationId, events: &[Event], wanted: Option<Hash>) -> Result<ChainReport, Error> {
    let mut verifier = Verifier::new(id, wanted);
    events.iter().try_for_each(|event| verifier.push(event))?;
    Ok(verifier.finish())
}

/// Changes an event; the index chooses a position within it.
type Change = fn(&mut Event, Index);

/// Every way to change one event.
const CHANGES: [(&str, Change); 15] = [
    ("id", |event, _| event.id = event_id(999)),
    ("conversation", |event, _| event.conversation = conversation_id(999)),
    ("seq up", |event, _| event.seq += 1),
    ("seq down", |event, _| event.seq -= 1),
    ("at", |event, _| event.at.0 += 1),
    ("occurred_at", |event, _| {
        event.occurred_at = event.occurred_at.map_or(Some(Timestamp(0)), |_| None);
    }),
    ("kind", |event, _| event.kind.push('x')),
    ("actor", |event, _| event.actor = if event.actor.is_none() { Some(String::new()) } else { None }),
    ("role", |event, _| event.role = if event.role == Some(Role::User) { None } else { Some(Role::User) }),
    ("visibility", |event, _| {
        event.visibility = match event.visibility {
            Visibility::Public => Visibility::Internal,
            _ => Visibility::Public,
        };
    }),
    ("turn", |event, _| event.turn = event.turn.map_or(Some(turn_id(1)), |_| None)),
    ("body_hash", |event, byte| event.body_hash.0[byte.index(32)] ^= 1),
    ("prev", |event, byte| event.prev.0[byte.index(32)] ^= 1),
    ("hash", |event, byte| event.hash.0[byte.index(32)] ^= 1),
    ("body or salt", |event, byte| {
        let Some(body) = &mut event.body else { return };
        let at = byte.index(body.text.len() + body.salt.len());
        if at < body.text.len() {
            body.text.replace_range(at..=at, if &body.text[at..=at] == "x" { "y" } else { "x" });
        } else {
            body.salt[at - body.text.len()] ^= 1;
        }
    }),
];

proptest! {
    #[test]
    fn an_untouched_chain_verifies_and_counts_what_is_erased(events in any_chain()) {
        let id = conversation_id(1);
        let report = verify(id, &events, Some(events[0].hash)).unwrap();
        let erased = events.iter().filter(|event| event.body.is_none()).count() as u64;
        prop_assert_eq!(report, ChainReport {
            events: events.len() as u64, erased, head: head_of(&events), contains_head: Some(true),
        });
    }

    #[test]
    fn any_changed_event_is_found(events in any_chain(), place in any::<Index>(), byte in any::<Index>()) {
        for (name, change) in CHANGES {
            let mut changed = events.clone();
            change(&mut changed[place.index(events.len())], byte);
            // An erased event has no body to change.
            if changed != events {
                prop_assert!(verify(conversation_id(1), &changed, None).is_err(), "{} changed unseen", name);
            }
        }
    }

    /// Changing an event and recomputing its hash breaks the link to the next one.
    #[test]
    fn a_mended_event_breaks_the_next_link(events in any_chain(), place in any::<Index>()) {
        let mut events = events;
        let place = place.index(events.len() - 1);
        events[place].actor = Some("somebody else".into());
        events[place].hash = envelope_hash(&events[place]);
        let error = verify(conversation_id(1), &events, None).unwrap_err();
        prop_assert_eq!(error.code(), "chain.broken_link");
        let says = format!("seq {}:", place + 2);
        prop_assert!(error.text().starts_with(&says), "{}", error);
    }

    #[test]
    fn a_removed_swapped_or_inserted_event_is_found(
        events in any_chain(), a in any::<Index>(), b in any::<Index>(),
    ) {
        let id = conversation_id(1);
        let mut removed = events.clone();
        removed.remove(a.index(events.len() - 1));
        prop_assert!(verify(id, &removed, None).is_err(), "removed unseen");

        let (x, y) = (a.index(events.len()), b.index(events.len()));
        if x != y {
            let mut swapped = events.clone();
            swapped.swap(x, y);
            prop_assert!(verify(id, &swapped, None).is_err(), "swapped unseen");
        }

        let mut repeated = events.clone();
        repeated.insert(x, events[y].clone());
        prop_assert!(verify(id, &repeated, None).is_err(), "repeated unseen");

        // A new event that is itself well-formed, inserted before an existing one.
        let place = a.index(events.len());
        let before = if place == 0 { Head::genesis(id) } else { head_of(&events[..place]) };
        let mut inserted = events.clone();
        inserted.insert(place, link(id, before, vec![draft(77, "note", "{}")]).remove(0));
        prop_assert!(verify(id, &inserted, None).is_err(), "inserted unseen");
    }

    #[test]
    fn a_cut_or_rewritten_log_lacks_the_head_that_was_noted(events in any_chain(), cut in any::<Index>()) {
        let id = conversation_id(1);
        let noted = Some(head_of(&events).hash);
        prop_assert_eq!(verify(id, &events, noted).unwrap().contains_head, Some(true));

        let cut = verify(id, &events[..cut.index(events.len())], noted).unwrap();
        prop_assert_eq!(cut.contains_head, Some(false));

        let rewritten = link(id, Head::genesis(id), (1..=events.len() as u64).map(|n| draft(n, "x", "0")).collect());
        prop_assert_eq!(verify(id, &rewritten, noted).unwrap().contains_head, Some(false));
    }

    #[test]
    fn a_fork_verifies_across_the_seam(events in any_chain(), at in any::<Index>()) {
        let child = conversation_id(2);
        let mut events = events;
        events.truncate(at.index(events.len()) + 1);
        let seam = head_of(&events);
        let own = link(child, seam, (50..53).map(|n| draft(n, "note", "{}")).collect());
        events.extend(own.iter().cloned());
        let report = verify(child, &events, Some(seam.hash)).unwrap();
        prop_assert_eq!((report.events, report.contains_head), (seam.seq + 3, Some(true)));

        // The fork's own part continues from the fork point and from nowhere else.
        let mut after = Verifier::after(child, seam);
        prop_assert!(own.iter().all(|event| after.push(event).is_ok()));
        prop_assert!(verify(child, &own, None).is_err());
    }
}

#[test]
fn an_empty_chain_ends_at_its_genesis() {
    let id = conversation_id(1);
    let genesis = Head::genesis(id);
    let report = verify(id, &[], Some(genesis.hash)).unwrap();
    assert_eq!((report.head, report.contains_head), (genesis, Some(true)));
    assert_ne!(genesis, Head::genesis(conversation_id(2)));
}
