//! Reading, following, and the bytes of assets.

use super::{Entry, HistoryQuery, Order, Page, Tenant, more, page_limit};
use crate::streaming::hub::{Position, Subscription};
use crate::transfer::ends_early;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::asset::{Asset, Payload};
use everturn_core::chain::Hash;
use everturn_core::event::{Event, check_name};
use everturn_core::id::{ConversationId, Key, TurnId, clip};
use everturn_core::limits::{ASSET_PIECE_BYTES, PAGE_BYTES_MAX};
use everturn_core::turn::Turn;
use everturn_core::write::{Action, Write};
use everturn_store::TurnQuery;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

/// Turns read at a time.
const TURNS_PAGE: usize = 500;

impl Tenant {
    /// One turn and what it says.
    pub fn turn(&self, id: TurnId) -> Result<Turn, Error> {
        self.shared().index.turn(&self.tenant, id)
    }

    /// The conversation that a turn was said in, also if the turn itself cannot be read because it is damaged.
    pub fn conversation_of(&self, id: TurnId) -> Result<ConversationId, Error> {
        Ok(self.shared().index.stored_turn(&self.tenant, id)?.conversation)
    }

    /// One turn as a conversation sees it: a fork sees what it inherited as it was.
    pub fn turn_in(&self, conversation: ConversationId, id: TurnId) -> Result<Turn, Error> {
        self.shared().index.turn_in(&self.key(conversation), id)
    }

    /// Every turn that a query asks for, oldest first, read page by page so that a long history is not held at once.
    /// `each` says whether to go on.
    pub(crate) fn each_turn(
        &self,
        key: &Key,
        mut query: TurnQuery,
        mut each: impl FnMut(Turn) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        (query.limit, query.bytes_max) = (TURNS_PAGE, Some(PAGE_BYTES_MAX));
        loop {
            let page = self.shared().index.turns(key, &query)?;
            let Some(last) = page.last() else { return Ok(()) };
            query.after = Some(last.seq);
            for turn in page {
                if each(turn)?.is_break() {
                    return Ok(());
                }
            }
        }
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
            bytes_max: Some(PAGE_BYTES_MAX),
        };
        let mut data: Vec<Entry> = self
            .shared()
            .index
            .turns(&self.key(id), &turns)?
            .into_iter()
            .map(|turn| Entry::Turn(Box::new(turn)))
            .collect();
        // A page that ends early, because of its bytes, is not known to be the last.
        let (last, full) = (data.last().map(Entry::seq), bytes(&data) >= PAGE_BYTES_MAX);
        let next = more(&mut data, limit, Entry::seq).or(last.filter(|_| full));
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
        let conversation = self.shared().index.conversation(&self.key(id))?;
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
            let events = self.shared().log.events(&self.key(id), from, (through - from) as usize)?;
            match events.last() {
                // Cut short by its bytes: the part that is there is the page.
                Some(last) if last.seq < through && query.order == Order::Ascending => through = last.seq,
                // The part that is wanted is the other one.
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

    /// Events after a place, oldest first. A page may end before `limit`, at `PAGE_BYTES_MAX`; only an empty one is the
    /// end.
    pub fn events(&self, id: ConversationId, after: u64, limit: usize) -> Result<Vec<Event>, Error> {
        self.shared().log.events(&self.key(id), after, page_limit(limit)?)
    }

    /// Everything from a place on, then what comes: no gap, no repeat.
    pub fn subscribe(&self, id: ConversationId, from_seq: u64) -> Result<Subscription, Error> {
        self.subscribe_after(id, Position { seq: from_seq.saturating_sub(1), chunk: None })
    }

    /// Everything after a place that an earlier subscription came to, also one before a restart. Each event comes once;
    /// the open turn that the place names goes on where it was, of others the whole text comes again.
    pub fn subscribe_after(&self, id: ConversationId, position: Position) -> Result<Subscription, Error> {
        Subscription::new(self.shared().clone(), self.key(id), position)
    }

    /// Adds an asset to a conversation, to be shown by a turn's `asset_id`.
    pub fn add_asset(
        &self,
        id: ConversationId,
        name: Option<String>,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        let conversation = self.shared().conversation(&self.key(id))?;
        check_name("mime_type", mime_type)?;
        let payload = Payload { bytes, mime_type: mime_type.to_string(), name };
        let mut uploads = Vec::new();
        let asset_id = crate::ingest::asset_id(self.shared().source.ulid()?);
        let draft = self.shared().asset_draft(&self.tenant, asset_id, payload, None, &mut uploads)?;
        let mut drafts = self.make_room(&conversation, std::slice::from_ref(&draft), "add_asset")?;
        drafts.push(draft);
        let action = Action::Append { drafts, expected_seq: None, idempotency: None };
        let answer = self.shared().submit(Write { key: self.key(id), action }, uploads);
        Commit::new(answer, |committed| {
            committed.events.last().and_then(Event::read::<Asset>).ok_or_else(crate::writer::closed)
        })
        .wait()
    }

    /// The descriptors of a conversation's assets.
    pub fn assets(&self, id: ConversationId) -> Result<Vec<Asset>, Error> {
        let raw = self.shared().index.assets(&self.key(id))?;
        Ok(raw.iter().filter_map(|raw| raw.read()).collect())
    }

    /// The descriptor of an asset, in whichever conversation it was added.
    pub fn asset(&self, id: &str) -> Result<Asset, Error> {
        let found = self.shared().index.assets_with_id(&self.tenant, id, 2)?;
        if let [(one, _), (other, _)] = found.as_slice() {
            let text =
                format!("{} is another asset in {one} than in {other}; name the conversation", clip(id));
            return Err(Error::invalid("asset.ambiguous", text));
        }
        found.first().and_then(|(_, raw)| raw.read()).ok_or_else(|| absent_asset(id))
    }

    /// The descriptor of a conversation's asset.
    pub fn asset_in(&self, conversation: ConversationId, id: &str) -> Result<Asset, Error> {
        let raw = self.shared().index.asset(&self.key(conversation), id)?;
        raw.and_then(|raw| raw.read()).ok_or_else(|| absent_asset(id))
    }

    /// An asset's bytes.
    pub fn asset_bytes(&self, asset: &Asset) -> Result<Vec<u8>, Error> {
        self.shared().assets.get(&self.tenant, kept_here(asset)?)
    }

    /// Some of an asset's bytes: up to the end, where the range goes beyond it. The pieces that the range touches are compared
    /// with their hashes; an asset without those is read and compared as a whole.
    pub fn asset_range(&self, asset: &Asset, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let sha256 = kept_here(asset)?;
        if asset.bytes == Some(0) && range.start == 0 {
            return self.asset_bytes(asset);
        }
        if range.is_empty() || asset.bytes.is_some_and(|bytes| range.start >= bytes) {
            let (start, end, bytes) = (range.start, range.end, asset.bytes.unwrap_or(0));
            let text = format!("{} has {bytes} bytes, none of them in {start}..{end}", asset.id);
            return Err(Error::invalid("asset.range", text));
        }
        let piece = ASSET_PIECE_BYTES as u64;
        let (first, last) = (range.start / piece, (range.end - 1) / piece);
        let (begin, bytes) = match asset.pieces.is_empty() {
            true => (0, self.asset_bytes(asset)?),
            false => {
                let end = last.saturating_add(1).saturating_mul(piece);
                let bytes = self.shared().assets.get_range(&self.tenant, sha256, first * piece..end)?;
                let hashes = asset.pieces.iter().skip(first as usize).take((last - first) as usize + 1);
                if !bytes.chunks(ASSET_PIECE_BYTES).map(Hash::of).eq(hashes.copied()) {
                    return Err(everturn_store::assets::damaged(sha256));
                }
                (first * piece, bytes)
            }
        };
        let place = |at: u64| usize::try_from(at - begin).map_or(bytes.len(), |at| at.min(bytes.len()));
        Ok(bytes[place(range.start)..place(range.end)].to_vec())
    }
}

fn absent_asset(id: &str) -> Error {
    Error::not_found("asset.absent", format!("no asset {} here", clip(id)))
}

fn kept_here(asset: &Asset) -> Result<Hash, Error> {
    asset.sha256.ok_or_else(|| {
        Error::not_found(
            "asset.elsewhere",
            format!("the bytes of {} are not kept here; its storage says where", asset.id),
        )
    })
}

/// Bytes of the messages of a page.
fn bytes(page: &[Entry]) -> usize {
    let length = |entry: &Entry| match entry {
        Entry::Turn(turn) => turn.message.as_ref().map_or(0, |message| message.get().len()),
        Entry::Event(event) => event.text().map_or(0, str::len),
    };
    page.iter().map(length).sum()
}
