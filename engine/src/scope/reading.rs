//! Reading, following, and the bytes of assets.

use super::{Entry, HistoryQuery, Order, Page, Scope, more, page_limit};
use crate::hub::Subscription;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::asset::{Asset, Payload};
use everturn_core::event::{Event, check_name};
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::turn::Turn;
use everturn_core::write::{Action, Write};
use everturn_store::TurnQuery;
use std::collections::BTreeMap;

impl Scope {
    /// One turn and what it says.
    pub fn turn(&self, id: TurnId) -> Result<Turn, Error> {
        self.shared().index.turn(&self.tenant, id)
    }

    /// One turn as a conversation sees it: a fork sees what it inherited as it was.
    pub fn turn_in(&self, conversation: ConversationId, id: TurnId) -> Result<Turn, Error> {
        self.shared().index.turn_in(&self.key(conversation), id)
    }

    /// A page of the history, summarized turns included.
    pub fn history(&self, id: ConversationId, query: HistoryQuery) -> Result<Page<Entry>, Error> {
        let limit = page_limit(query.limit)?;
        let descending = query.order == Order::Descending;
        if query.include_events {
            return self.history_with_events(id, &query, limit);
        }
        let turns = TurnQuery {
            before: query.before,
            after: query.after,
            descending,
            actors: query.actors,
            include_superseded: query.include_superseded,
            as_of: None,
            limit: limit + 1,
        };
        let mut data: Vec<Entry> = self
            .shared()
            .index
            .turns(&self.key(id), &turns)?
            .into_iter()
            .map(|turn| Entry::Turn(Box::new(turn)))
            .collect();
        let next = more(&mut data, limit, Entry::seq);
        Ok(Page { data, next })
    }

    /// With events there is an entry at every place, so a page is a range of places. Turns that were not asked for are
    /// left out of it, so that a page may be shorter than its limit and still not the last.
    fn history_with_events(
        &self,
        id: ConversationId,
        query: &HistoryQuery,
        limit: usize,
    ) -> Result<Page<Entry>, Error> {
        let head = self.shared().index.conversation(&self.key(id))?.head.seq;
        let (low, high) = (
            query.after.unwrap_or(0),
            query.before.map_or(head, |before| before.saturating_sub(1)).min(head),
        );
        let (from, through) = match query.order {
            Order::Ascending => (low, high.min(low.saturating_add(limit as u64))),
            Order::Descending => (low.max(high.saturating_sub(limit as u64)), high),
        };
        if from >= through {
            return Ok(Page { data: Vec::new(), next: None });
        }
        let turns = TurnQuery {
            before: Some(through + 1),
            after: Some(from),
            include_superseded: true,
            limit,
            ..TurnQuery::default()
        };
        let mut turns: BTreeMap<u64, Turn> = self
            .shared()
            .index
            .turns(&self.key(id), &turns)?
            .into_iter()
            .map(|turn| (turn.seq, turn))
            .collect();
        let events = self.shared().log.events(&self.key(id), from, (through - from) as usize)?;
        let asked_for = |turn: &Turn| {
            (query.include_superseded || turn.superseded_by.is_none())
                && (query.actors.is_empty()
                    || turn.actor.as_ref().is_some_and(|actor| query.actors.contains(actor)))
        };
        let mut data: Vec<Entry> = events
            .into_iter()
            .filter_map(|event| match turns.remove(&event.seq) {
                Some(turn) => asked_for(&turn).then(|| Entry::Turn(Box::new(turn))),
                None => Some(Entry::Event(Box::new(event))),
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

    /// Events after a place, oldest first.
    pub fn events(&self, id: ConversationId, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        self.shared().log.events(&self.key(id), after, page_limit(limit)?)
    }

    /// Everything from a place on, then what comes: no gap, no repeat.
    pub fn subscribe(&self, id: ConversationId, from_seq: u64) -> Result<Subscription, Error> {
        Subscription::new(self.shared().clone(), self.key(id), from_seq)
    }

    /// Adds an asset to a conversation, to be shown by a turn's `asset_id`.
    pub fn add_asset(
        &self,
        id: ConversationId,
        name: Option<String>,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        self.shared().conversation(&self.key(id))?;
        check_name("mime_type", mime_type)?;
        let payload = Payload { bytes, mime_type: mime_type.to_string(), name };
        let mut uploads = Vec::new();
        let asset_id = crate::ingest::asset_id(self.shared().source.ulid()?);
        let draft = self.shared().asset_draft(&self.tenant, asset_id, payload, None, &mut uploads)?;
        let action = Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None };
        let answer = self.shared().submit(Write { key: self.key(id), action }, uploads);
        Commit::new(answer, |committed| {
            committed.events.first().and_then(Event::read::<Asset>).ok_or_else(crate::writer::closed)
        })
        .wait()
    }

    /// The descriptors of a conversation's assets.
    pub fn assets(&self, id: ConversationId) -> Result<Vec<Asset>, Error> {
        let raw = self.shared().index.assets(&self.key(id))?;
        Ok(raw.iter().filter_map(|raw| raw.read()).collect())
    }

    /// An asset's bytes.
    pub fn asset_bytes(&self, asset: &Asset) -> Result<Vec<u8>, Error> {
        let sha256 = asset.sha256.ok_or_else(|| {
            Error::not_found(
                "asset.elsewhere",
                format!("the bytes of {} are not kept here; its storage says where", asset.id),
            )
        })?;
        self.shared().assets.get(&self.tenant, sha256)
    }
}
