//! Reading a conversation, and following it.

use super::ConversationHandle;
use crate::everturn::Shared;
use crate::proof::ConversationLog;
use crate::streaming::hub::{Position, Subscription};
use crate::tenant::{Page, more, page_limit};
use crate::transfer::ends_early;
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::id::{Key, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_BYTES_MAX;
use everturn_core::turn::{Partial, Role, Spoken, Status, Turn};
use everturn_store::TurnQuery;
use everturn_views::speech::{self, Stretch};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Direction of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum Order {
    /// Oldest first.
    #[default]
    #[serde(rename = "asc")]
    Ascending,
    /// Newest first.
    #[serde(rename = "desc")]
    Descending,
}

/// Part of a history to read.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryQuery {
    /// Only entries before this place: the `next` of a page, or the `place` of a turn, which is its `seq` unless it
    /// supersedes another. With `include_superseded` or `include_events`, before this `seq`.
    #[serde(deserialize_with = "everturn_core::json::place")]
    pub before: Option<u64>,
    /// Only entries after this place, or this `seq`.
    #[serde(deserialize_with = "everturn_core::json::place")]
    pub after: Option<u64>,
    /// Most entries of a page.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: usize,
    /// Oldest or newest first.
    pub order: Order,
    /// Only turns of these actors, if any are named.
    #[serde(alias = "actor")]
    pub actors: Vec<String>,
    /// Also superseded turns; then in the order of the log.
    pub include_superseded: bool,
    /// Also events that are not turns; then in the order of the log.
    pub include_events: bool,
}

impl Default for HistoryQuery {
    fn default() -> HistoryQuery {
        HistoryQuery {
            before: None,
            after: None,
            limit: 50,
            order: Order::Ascending,
            actors: Vec::new(),
            include_superseded: false,
            include_events: false,
        }
    }
}

/// One entry of a history. `entry` says which of the two it is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "entry", rename_all = "lowercase")]
pub enum HistoryEntry {
    /// A turn.
    Turn(Box<Turn>),
    /// An event that is not a turn.
    Event(Box<Event>),
}

/// Only an event has a `kind`. The text is kept until that is known, so that a message keeps its exact bytes.
impl<'de> Deserialize<'de> for HistoryEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HistoryEntry, D::Error> {
        #[derive(Deserialize)]
        struct Kind {
            kind: Option<serde::de::IgnoredAny>,
        }
        let raw = Raw::deserialize(deserializer)?;
        let entry = match raw.read::<Kind>() {
            Some(Kind { kind: Some(_) }) => serde_json::from_str(raw.get()).map(HistoryEntry::Event),
            _ => serde_json::from_str(raw.get()).map(HistoryEntry::Turn),
        };
        entry.map_err(serde::de::Error::custom)
    }
}

impl HistoryEntry {
    /// `seq` in the log.
    pub fn seq(&self) -> u64 {
        match self {
            HistoryEntry::Turn(turn) => turn.seq,
            HistoryEntry::Event(event) => event.seq,
        }
    }

    /// Position in reading order.
    pub fn place(&self) -> u64 {
        match self {
            HistoryEntry::Turn(turn) => turn.place,
            HistoryEntry::Event(event) => event.seq,
        }
    }
}

impl Shared {
    /// A turn with its durable text so far, if it is open.
    pub(crate) fn with_partial(&self, key: &Key, mut turn: Turn) -> Result<Turn, Error> {
        if turn.status != Status::Pending {
            return Ok(turn);
        }
        let text = self.journal.log.open_text(key, turn.id)?;
        if text.is_empty() {
            // It may have ended meanwhile.
            turn = self.journal.index.turn_in(key, turn.id)?;
        }
        if turn.status == Status::Pending {
            turn.partial = Some(Partial::new(text));
        }
        Ok(turn)
    }
}

/// Turns read at a time.
const TURNS_PAGE: usize = 500;

impl ConversationLog<'_> {
    /// Events after a `seq`, oldest first. A page may end before `limit`, at `PAGE_BYTES_MAX`; only an empty one is
    /// the end.
    pub fn read(&self, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        self.0.events(after, page_limit(limit)?)
    }

    /// Events of these kinds, or of any if none is named, from a `seq` on in either direction; by default from the end of
    /// the log that the order begins with. `next` is the `seq` to go on from. At most 20,000 events are searched
    /// at a time, so a page may be short, or empty, before the end.
    pub fn find(
        &self,
        kinds: &[String],
        from: Option<u64>,
        order: Order,
        limit: usize,
    ) -> Result<Page<Event>, Error> {
        let limit = page_limit(limit)?;
        let head = self.0.get()?.head.seq;
        let mut data = Vec::new();
        let mut next = Some(match order {
            Order::Ascending => from.unwrap_or(1).max(1),
            Order::Descending => from.map_or(head, |from| from.min(head)),
        });
        let mut searched = 0;
        while let Some(at) = next.filter(|at| (1..=head).contains(at)) {
            if data.len() >= limit || searched >= SEARCHED_MAX {
                return Ok(Page { data, next });
            }
            let (first, last) = match order {
                Order::Ascending => (at, at.saturating_add(EVENTS_PAGE - 1).min(head)),
                Order::Descending => ((at + 1).saturating_sub(EVENTS_PAGE).max(1), at),
            };
            searched += last - first + 1;
            let mut found = self.between(first, last)?;
            if order == Order::Descending {
                found.reverse();
            }
            next = match order {
                Order::Ascending => Some(last + 1),
                Order::Descending => Some(first - 1),
            };
            for event in found.into_iter().filter(|event| kinds.is_empty() || kinds.contains(&event.kind)) {
                if data.len() == limit {
                    return Ok(Page { data, next: Some(event.seq) });
                }
                data.push(event);
            }
        }
        Ok(Page { data, next: None })
    }

    /// Events between two places, both included.
    fn between(&self, first: u64, last: u64) -> Result<Vec<Event>, Error> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after = events.last().map_or(first - 1, |event| event.seq);
            let left = usize::try_from(last - after).unwrap_or(usize::MAX);
            let page = if left == 0 { Vec::new() } else { self.0.events(after, left)? };
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }
}

/// Events read at a time in a search.
const EVENTS_PAGE: u64 = 500;

/// Most events that one search reads.
const SEARCHED_MAX: u64 = 20_000;

impl ConversationHandle {
    /// A turn as the caller sees it, with its speakers, and with its durable text so far if it is open.
    pub(crate) fn viewed(&self, turn: Turn) -> Result<Turn, Error> {
        let mut turn = self.tenant.viewer().turn(self.shared().with_partial(self.key(), turn)?);
        let message = if turn.role == Role::User { turn.value() } else { None };
        let speech = speech::of_said(&turn, message.as_ref());
        turn.speaker = (speech.name() != turn.role.as_str()).then(|| speech.name().into());
        if let Some(message) = message.filter(|_| speech.role == Role::User) {
            let owned =
                |Stretch { notice, text }| Spoken { notice: notice.map(Into::into), text: text.into() };
            turn.spoken = speech::spoken(&message).into_iter().map(owned).collect();
        }
        Ok(turn)
    }

    /// One turn as the conversation sees it: a fork sees inherited turns as they were.
    pub fn turn(&self, id: TurnId) -> Result<Turn, Error> {
        self.viewed(self.shared().journal.index.turn_in(self.key(), id)?)
    }

    /// Every turn of a query, in its order, read page by page so that a long history is not held at once. `each`
    /// returns whether to go on.
    pub(crate) fn each_turn(
        &self,
        mut query: TurnQuery,
        mut each: impl FnMut(Turn) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        (query.limit, query.bytes_max) = (TURNS_PAGE, Some(PAGE_BYTES_MAX));
        loop {
            let page = self.turns(&query)?;
            let Some(last) = page.last() else { return Ok(()) };
            query.after = Some(if query.whole_log { last.seq } else { last.place });
            for turn in page {
                if each(turn)?.is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// A page of the history in reading order, summarized turns included.
    pub fn history(&self, query: HistoryQuery) -> Result<Page<HistoryEntry>, Error> {
        let limit = page_limit(query.limit)?;
        let descending = query.order == Order::Descending;
        if query.include_events {
            return self.history_with_events(&query, limit);
        }
        let turns = TurnQuery {
            before: query.before,
            after: query.after,
            descending,
            actors: query.actors,
            whole_log: query.include_superseded,
            moved_after: None,
            as_of: None,
            limit: limit + 1,
            bytes_max: Some(PAGE_BYTES_MAX),
        };
        let found = self.shared().journal.index.turns(self.key(), &turns)?;
        let entry = |turn| Ok(HistoryEntry::Turn(Box::new(self.viewed(turn)?)));
        let mut data: Vec<HistoryEntry> = found.into_iter().map(entry).collect::<Result<_, Error>>()?;
        // A page cut by its byte limit is not known to be the last.
        let position = if query.include_superseded { HistoryEntry::seq } else { HistoryEntry::place };
        let (last, full) = (data.last().map(position), bytes(&data) >= PAGE_BYTES_MAX);
        let next = more(&mut data, limit, position).or(last.filter(|_| full));
        Ok(Page { data, next })
    }

    /// With events there is an entry at every `seq`, so a page is a range of `seq`. Turns that were not asked for are
    /// left out of it, so that a page may be shorter than its limit and still not the last.
    fn history_with_events(&self, query: &HistoryQuery, limit: usize) -> Result<Page<HistoryEntry>, Error> {
        let conversation = self.shared().journal.index.conversation(self.key())?;
        let head = conversation.head.seq;
        let (low, high) = (
            query.after.unwrap_or(0),
            query.before.map_or(head, |before| before.saturating_sub(1)).min(head),
        );
        let (mut from, mut through) = match query.order {
            Order::Ascending => (low, high.min(low.saturating_add(limit as u64))),
            Order::Descending => (low.max(high.saturating_sub(limit as u64)), high),
        };
        if from >= through {
            return Ok(Page { data: Vec::new(), next: None });
        }
        let events = loop {
            let events = self.events(from, (through - from) as usize)?;
            match events.last() {
                // Cut by the byte limit: the part that was read is the page.
                Some(last) if last.seq < through && query.order == Order::Ascending => through = last.seq,
                // The other part is wanted.
                Some(last) if last.seq < through => {
                    from = through - (through - from).div_ceil(2);
                    continue;
                }
                Some(_) => {}
                None => return Err(ends_early(&conversation, from)),
            }
            break events;
        };
        let turns = TurnQuery {
            before: Some(through + 1),
            after: Some(from),
            whole_log: true,
            limit,
            ..TurnQuery::default()
        };
        let found = self.shared().journal.index.turns(self.key(), &turns)?;
        let entry = |turn| self.viewed(turn).map(|turn| (turn.seq, turn));
        let mut turns: BTreeMap<u64, Turn> = found.into_iter().map(entry).collect::<Result<_, Error>>()?;
        let asked_for = |turn: &Turn| {
            (query.include_superseded || turn.superseded_by.is_none())
                && (query.actors.is_empty()
                    || turn.actor.as_ref().is_some_and(|actor| query.actors.contains(actor)))
        };
        let mut data: Vec<HistoryEntry> = events
            .into_iter()
            .filter_map(|event| match turns.remove(&event.seq) {
                Some(turn) => asked_for(&turn).then(|| HistoryEntry::Turn(Box::new(turn))),
                None => Some(HistoryEntry::Event(Box::new(event))),
            })
            .collect();
        let next = match query.order {
            Order::Ascending => (through < high).then_some(through),
            Order::Descending => {
                data.reverse();
                (from > low).then_some(from + 1)
            }
        };
        Ok(Page { data, next })
    }

    /// Everything after a `seq`, then live updates: no gap, no repeat. With the [`Position`] of an earlier
    /// subscription, also one before a restart, the open turn that it names continues there; of others the whole text
    /// comes again.
    pub fn subscribe(&self, after: impl Into<Position>) -> Result<Subscription, Error> {
        Subscription::new(&self.tenant, self.key().clone(), after.into())
    }
}

/// Bytes of the messages in a page.
fn bytes(page: &[HistoryEntry]) -> usize {
    let length = |entry: &HistoryEntry| match entry {
        HistoryEntry::Turn(turn) => turn.message.as_ref().map_or(0, |message| message.get().len()),
        HistoryEntry::Event(event) => event.text().map_or(0, str::len),
    };
    page.iter().map(length).sum()
}
